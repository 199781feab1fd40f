"""`metaprobe train`: from stored runs to a checkpoint."""

from pathlib import Path
from typing import Literal

import click

from metaprobe.adapter_cli import train_adapter_command
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
    """Train on stored runs and write a checkpoint: quality, hidden, adapter, choice."""


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
    stage: str | None,
    agent: str | None,
    folds: int,
    seed: int,
) -> None:
    """A probe on hidden states; the layer is chosen on rows that it was not fitted on. Resumes where it was stopped."""
    from metaprobe.training.difficulty import LEVEL, SUCCESS_RATE, train_difficulty
    from metaprobe.training.evidence import load_evidence
    from metaprobe.training.progress import kept_beside
    from metaprobe.training.study import positions_of, study_of, train_hidden

    graded = target in (SUCCESS_RATE, LEVEL)
    if graded and (when == "after" or probe != "logistic"):
        raise click.UsageError(f"--target {target} is read before the answer, by a logistic probe")
    evidence = load_evidence(runs, target="correct" if graded else target, stage=stage, agent=agent)
    when = when or ("before" if graded else "after")
    positions_of(evidence, when)  # before minutes of fitting
    if graded:
        checkpoint, found = train_difficulty(
            out, evidence, target=target, folds=folds, seed=seed, command=command_line()
        )
        for ranked in found:
            r = ranked.spearman
            click.echo(f"{ranked.name:22} Spearman {r.estimate:+.3f} [{r.low:+.3f}, {r.high:+.3f}]", err=True)
    else:
        with kept_beside(out) as progress, steps() as on_step:
            study = study_of(evidence, folds=folds, seed=seed, kind=probe, progress=progress, on_step=on_step)
            checkpoint = train_hidden(out, study, when=when, target=target, command=command_line())
    say_checkpoint(checkpoint)


train.add_command(train_adapter_command)


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
