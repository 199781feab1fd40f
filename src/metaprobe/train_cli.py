"""`metaprobe train`: from stored runs to a checkpoint."""

from pathlib import Path

import click

from metaprobe.terminal import (
    FOLDER,
    RUNS,
    agent_option,
    command_line,
    folds_option,
    say_checkpoint,
    seed_option,
    stage_option,
    steps,
    target_option,
)


@click.group()
def train() -> None:
    """Train on stored runs and write a checkpoint: quality, hidden, choice."""


@train.command("quality")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@target_option
@stage_option
@agent_option
@folds_option
@seed_option
def train_quality_command(
    runs: tuple[Path, ...],
    out: Path,
    targets: tuple[str, ...],
    stage: str | None,
    agent: str | None,
    folds: int,
    seed: int,
) -> None:
    """A LightGBM predictor on log-probability features, one calibrated head a target."""
    from metaprobe.training.study import study, train_quality

    with steps() as on_step:
        studies = {
            target: study(
                runs, target=target, stage=stage, agent=agent, folds=folds, seed=seed, hidden=False, on_step=on_step
            )
            for target in targets
        }
        checkpoint = train_quality(out, studies, command=command_line())
    say_checkpoint(checkpoint)


@train.command("hidden")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@click.option("--target", default="correct", show_default=True, help="Label to predict.")
@click.option(
    "--when",
    type=click.Choice(["before", "after"]),
    default="after",
    show_default=True,
    help="Read the last prompt token (difficulty) or the answer (confidence).",
)
@stage_option
@agent_option
@folds_option
@seed_option
def train_hidden_command(
    runs: tuple[Path, ...],
    out: Path,
    target: str,
    when: str,
    stage: str | None,
    agent: str | None,
    folds: int,
    seed: int,
) -> None:
    """A linear probe on hidden states; the layer is chosen on selection data."""
    from metaprobe.training.study import study, train_hidden

    with steps() as on_step:
        found = study(runs, target=target, stage=stage, agent=agent, folds=folds, seed=seed, on_step=on_step)
        checkpoint = train_hidden(out, found, when=when, target=target, command=command_line())
    say_checkpoint(checkpoint)


@train.command("choice")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@folds_option
@seed_option
def train_choice_command(runs: tuple[Path, ...], out: Path, folds: int, seed: int) -> None:
    """Accept a direct answer or ask again step by step, from items that were answered both ways."""
    from metaprobe.training.study import train_choice

    checkpoint, policies = train_choice(out, runs, seed=seed, folds=folds, command=command_line())
    for policy in policies:
        a = policy.accuracy
        click.echo(
            f"{policy.policy:32} accuracy {a.estimate:.3f} [{a.low:.3f}, {a.high:.3f}]  "
            f"{policy.tokens_per_question:5.1f} tokens  {policy.step_by_step:4.0%} step by step",
            err=True,
        )
    say_checkpoint(checkpoint)
