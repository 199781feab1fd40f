"""`metaprobe train`: from stored runs to a checkpoint."""

from pathlib import Path
from typing import Any

import click

from metaprobe.adapter_cli import train_adapter_command
from metaprobe.gate_cli import train_gate_command
from metaprobe.progress import say, steps
from metaprobe.records.types import POSITIONS
from metaprobe.router_cli import train_router_command
from metaprobe.terminal import (
    CHECKPOINT,
    FOLDER,
    RUNS,
    agent_option,
    command_line,
    flag_options,
    flags_given,
    folds_option,
    replace_options,
    replacing_given,
    say_checkpoint,
    seed_option,
    stage_option,
    target_option,
    wait_without_spinning,
)


@click.group(short_help="Train on stored runs, and write a checkpoint.")
def train() -> None:
    """Train on stored runs and write a checkpoint: quality, gate, hidden, blend, adapter, router, choice."""
    wait_without_spinning()


@train.command("quality", short_help="On log-probabilities: a calibrated verdict.")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@replace_options()
@target_option
@stage_option
@agent_option
@click.option("--label-source", help='Only labels of this source: "program", "judge", "judge:MODEL".')
@click.option("--raw-graph", is_flag=True, help="Also write raw.onnx, which takes log-probabilities.")
@click.option(
    "--new-tasks", is_flag=True, help="For models and tasks the runs do not hold: a free number, no thresholds."
)
@click.option("--dask", metavar="ADDRESS", help="Fit on this Dask cluster; runs are read here.")
@flag_options
@folds_option
@seed_option
def train_quality_command(runs: tuple[Path, ...], **named: Any) -> None:
    """A predictor on log-probabilities, one calibrated head a target.

    A head that is a probability begins with a free number and climbs to seven terms, or terms and trees, only where
    held-out groups pay for it; the card says how far it came.

    A target is a label: 0 or 1 (correct, critical, ...), 1 to 3 (instruction, justification, evidence), or quality,
    the judge's sum from 0 to 9. Labels may be missing: each head learns from the answers that have its own.
    """
    from metaprobe.training.options import QualityOptions
    from metaprobe.training.recipes.quality import train_quality

    flags = flags_given(named)
    with steps() as on_step:
        options = QualityOptions(**named, **flags.flags, on_step=on_step, on_line=say, command=command_line())
        checkpoint = train_quality(runs, options)
    say_checkpoint(checkpoint)


@click.command("adapt", short_help="The same predictor for runs of your own, from fifty labels.")
@click.argument("checkpoint", type=CHECKPOINT)
@click.argument("labelled", type=click.Path(exists=True, path_type=Path), nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@replace_options()
@flag_options
@seed_option
def adapt(checkpoint: str, labelled: tuple[Path, ...], out: Path, seed: int, **named: Any) -> None:
    """Give CHECKPOINT the base rate and the scale of LABELLED: run stores, or files of OpenAI-format lines with labels.

    It takes at least 20 labels. The order of answers of one run stays as it is. As many answers are flagged as are
    expected to be wrong, unless an option says otherwise.
    """
    from metaprobe.training.rescale import adapt_quality

    flags, writing, command = flags_given(named), replacing_given(named), command_line()
    made = adapt_quality(checkpoint, labelled, out=out, flags=flags, writing=writing, seed=seed, command=command)
    say_checkpoint(made)


@train.command("hidden", short_help="On hidden states: difficulty before, confidence after.")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@replace_options()
@click.option(
    "--target",
    default="correct",
    show_default=True,
    help="Label to predict; success-rate or level for a graded difficulty, read before the answer.",
)
@click.option(
    "--when",
    type=click.Choice(["before", "after"]),
    help="Read the last prompt token (will it be right?) or the answer (is it?).  [default: after]",
)
@click.option(
    "--probe",
    type=click.Choice(["logistic", "ridge", "mass-mean", "low-rank"]),
    default="logistic",
    show_default=True,
    help="Kind of probe; low-rank reads all layers at once.",
)
@click.option("--layers", default="all", show_default=True, help="Stored layers to try: 'all', 'every:N', or '8,16'.")
@click.option(
    "--position",
    multiple=True,
    type=click.Choice(POSITIONS),
    help="Stored token position to try; repeatable.  [default: all that go with the layers]",
)
@click.option("--states-of", default="", metavar="MODEL", help="Whose states, where several models read the answers.")
@stage_option
@agent_option
@flag_options
@folds_option
@seed_option
def train_hidden_command(runs: tuple[Path, ...], **named: Any) -> None:
    """A probe on hidden states; the layer is chosen on rows that it was not fitted on. Resumes where it was stopped."""
    from metaprobe.training.options import HiddenOptions
    from metaprobe.training.recipes.hidden import train_hidden

    flags = flags_given(named)
    with steps() as on_step:
        options = HiddenOptions(**named, **flags.flags, on_step=on_step, on_line=say, command=command_line())
        checkpoint = train_hidden(runs, options)
    say_checkpoint(checkpoint)


@train.command("blend", short_help="On hidden states of many tasks, for tasks that they do not hold.")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@replace_options()
@click.option("--target", default="correct", show_default=True, help="Label to predict.")
@click.option("--layers", default="all", show_default=True, help="Stored layers to try: 'all', 'every:N', or '8,16'.")
@stage_option
@agent_option
@seed_option
def train_blend_command(runs: tuple[Path, ...], **named: Any) -> None:
    """A probe from runs of at least ten tasks, to stand beside the log-probabilities on tasks that it has not seen."""
    from metaprobe.training.options import BlendOptions
    from metaprobe.training.recipes.blend import train_blend

    with steps() as on_step:
        options = BlendOptions(**named, on_step=on_step, on_line=say, command=command_line())
        checkpoint = train_blend(runs, options)
    say_checkpoint(checkpoint)


train.add_command(train_gate_command)
train.add_command(train_router_command)
train.add_command(train_adapter_command)


@train.command("choice", short_help="On answers of both kinds: whether to ask again.")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@replace_options()
@folds_option
@seed_option
def train_choice_command(runs: tuple[Path, ...], out: Path, folds: int, seed: int, **named: Any) -> None:
    """Accept a direct answer or ask again step by step, from items that were answered both ways."""
    from metaprobe.training.ask_again.train import train_choice

    with steps("reading runs and fitting in folds"):
        checkpoint, policies = train_choice(out, runs, seed=seed, folds=folds, command=command_line(), **named)
    for policy in policies:
        a = policy.accuracy
        click.echo(
            f"{policy.policy:32} accuracy {a.estimate:.3f} [{a.low:.3f}, {a.high:.3f}]  "
            f"{policy.tokens_per_question:5.1f} tokens  {policy.step_by_step:4.0%} step by step",
            err=True,
        )
    say_checkpoint(checkpoint)
