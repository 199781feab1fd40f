"""`metaprobe train`: from stored runs to a checkpoint."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import click

from metaprobe.adapter_cli import train_adapter_command
from metaprobe.checkpoints import check_target
from metaprobe.gate_cli import train_gate_command
from metaprobe.records.types import POSITIONS
from metaprobe.router_cli import train_router_command
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


@click.group(short_help="Train on stored runs, and write a checkpoint.")
def train() -> None:
    """Train on stored runs and write a checkpoint: quality, gate, hidden, adapter, router, choice."""
    # Threads that spin while they wait take time from whatever else runs on this machine, ourselves included.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@train.command("quality", short_help="On log-probabilities: a calibrated verdict (LightGBM).")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@target_option
@stage_option
@agent_option
@click.option("--label-source", "source", help='Only labels of this source: "program", "judge", "judge:MODEL".')
@click.option("--raw-graph", "raw", is_flag=True, help="Also write raw.onnx, which takes log-probabilities.")
@click.option(
    "--new-tasks", is_flag=True, help="For tasks the runs do not hold: settings that do best on a task left out."
)
@click.option("--dask", "scheduler", metavar="ADDRESS", help="Fit on this Dask cluster; runs are read here.")
@folds_option
@seed_option
def train_quality_command(
    runs: tuple[Path, ...],
    out: Path,
    targets: tuple[str, ...],
    stage: str | None,
    agent: str | None,
    source: str | None,
    raw: bool,
    new_tasks: bool,
    scheduler: str | None,
    folds: int,
    seed: int,
) -> None:
    """A LightGBM predictor on log-probability features, one calibrated head a target.

    A target is a label: 0 or 1 (correct, critical, ...), 1 to 3 (instruction, justification, evidence), or quality,
    the judge's sum from 0 to 9. Labels may be missing: each head learns from the answers that have its own.
    """
    from metaprobe.training.common.heads import SCALES
    from metaprobe.training.quality.train import head_studies, train_quality

    if new_tasks and scheduler is not None:
        raise click.UsageError("--new-tasks fits many small boosters, which a cluster does not do: leave out --dask")
    if new_tasks and (graded := sorted(set(targets) & set(SCALES))):
        raise click.UsageError(f"--new-tasks chooses settings of labels that are 0 or 1, not of {', '.join(graded)}")
    check_target(out, "quality")  # before minutes of fitting, as in every command here
    with steps() as on_step, cluster(scheduler) as spread:
        studies = head_studies(
            runs,
            targets,
            stage=stage,
            agent=agent,
            source=source,
            new_tasks=new_tasks,
            folds=folds,
            seed=seed,
            spread=spread,
            on_step=on_step,
        )
        on_step("audit and export")
        checkpoint = train_quality(out, studies, command=command_line(), raw=raw)
    say_checkpoint(checkpoint)


@contextmanager
def cluster(scheduler: str | None) -> Iterator[bool]:
    """Whether features go to a Dask cluster, which is the default one meanwhile."""
    if scheduler is None:
        yield False
        return
    from metaprobe.records.extras import require

    with require("distributed", "train,dask").Client(scheduler):
        yield True


@train.command("hidden", short_help="On hidden states: difficulty before, confidence after.")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
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
    "positions",
    multiple=True,
    type=click.Choice(POSITIONS),
    help="Stored token position to try; repeatable.  [default: all that go with the layers]",
)
@click.option("--states-of", default="", metavar="MODEL", help="Whose states, where several models read the answers.")
@stage_option
@agent_option
@folds_option
@seed_option
def train_hidden_command(
    runs: tuple[Path, ...],
    out: Path,
    target: str,
    when: Literal["before", "after"] | None,
    probe: Literal["logistic", "ridge", "mass-mean", "low-rank"],
    layers: str,
    positions: tuple[str, ...],
    states_of: str,
    stage: str | None,
    agent: str | None,
    folds: int,
    seed: int,
) -> None:
    """A probe on hidden states; the layer is chosen on rows that it was not fitted on. Resumes where it was stopped."""
    from metaprobe.training.common.heads import INVERTED
    from metaprobe.training.crossfit.evidence import load_evidence, origin_of_states
    from metaprobe.training.crossfit.progress import kept_beside
    from metaprobe.training.crossfit.study import study_of
    from metaprobe.training.hidden.difficulty import LEVEL, SUCCESS_RATE, train_difficulty
    from metaprobe.training.hidden.train import positions_of, train_hidden
    from metaprobe.training.linear.states_choice import Wanted

    check_target(out, "hidden")
    if target in INVERTED:
        raise click.UsageError(f"--target {target}: probes give the probability of what is good; use `train quality`")
    graded = target in (SUCCESS_RATE, LEVEL)
    if graded and (when == "after" or probe != "logistic"):
        raise click.UsageError(f"--target {target} is read before the answer, by a logistic probe")
    when = when or ("before" if graded else "after")
    if when == "before" and positions and "prompt_last" not in positions:
        raise click.UsageError(f"before an answer only prompt_last is known, not {' or '.join(positions)}")
    wanted = Wanted(layers, positions, states_of)
    evidence = load_evidence(runs, target="correct" if graded else target, stage=stage, agent=agent, wanted=wanted)
    positions_of(evidence, when)  # before minutes of fitting
    assert evidence.states is not None
    click.echo(
        f"states      layers {', '.join(map(str, evidence.states.layers))} at {', '.join(evidence.states.positions)}",
        err=True,
    )
    for line in (*origin_of_states(evidence), *filter(None, [evidence.regrouped])):
        click.echo(line, err=True)
    if graded:
        with kept_beside(out) as progress, steps() as on_step:
            checkpoint, found = train_difficulty(
                out,
                evidence,
                target=target,
                folds=folds,
                seed=seed,
                command=command_line(),
                progress=progress,
                on_step=on_step,
            )
        for ranked in found:
            r = ranked.spearman
            click.echo(f"{ranked.name:22} Spearman {r.estimate:+.3f} [{r.low:+.3f}, {r.high:+.3f}]", err=True)
    else:
        with kept_beside(out) as progress, steps() as on_step:
            study = study_of(evidence, folds=folds, seed=seed, kind=probe, progress=progress, on_step=on_step)
            on_step("audit and export")
            checkpoint = train_hidden(out, study, when=when, target=target, command=command_line())
    say_checkpoint(checkpoint)


train.add_command(train_gate_command)
train.add_command(train_router_command)
train.add_command(train_adapter_command)


@train.command("choice", short_help="On answers of both kinds: whether to ask again.")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@folds_option
@seed_option
def train_choice_command(runs: tuple[Path, ...], out: Path, folds: int, seed: int) -> None:
    """Accept a direct answer or ask again step by step, from items that were answered both ways."""
    from metaprobe.training.choice import train_choice

    check_target(out, "choice")
    checkpoint, policies = train_choice(out, runs, seed=seed, folds=folds, command=command_line())
    for policy in policies:
        a = policy.accuracy
        click.echo(
            f"{policy.policy:32} accuracy {a.estimate:.3f} [{a.low:.3f}, {a.high:.3f}]  "
            f"{policy.tokens_per_question:5.1f} tokens  {policy.step_by_step:4.0%} step by step",
            err=True,
        )
    say_checkpoint(checkpoint)
