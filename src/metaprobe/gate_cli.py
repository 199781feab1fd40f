"""`metaprobe train gate`: from stored runs to a streaming gate."""

from pathlib import Path

import click

from metaprobe.checkpoints import check_target
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
)


@click.command("gate", short_help="On the first log-probabilities: when to stop a stream.")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@click.option("--target", default="correct", show_default=True, help="Label to predict.")
@click.option(
    "--alpha",
    "alphas",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    multiple=True,
    help="False-alarm rate to store thresholds for; repeatable.  [default: of 0.01 to 0.3 those that the runs allow]",
)
@click.option(
    "--stronger-accuracy",
    type=click.FloatRange(0, 1),
    default=0.9,
    show_default=True,
    help="Assumed of the model that stopped answers are escalated to, in the figures.",
)
@click.option(
    "--stronger-price",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="Assumed price of one of its tokens, in tokens of the model that is watched.",
)
@stage_option
@agent_option
@folds_option
@seed_option
def train_gate_command(
    runs: tuple[Path, ...],
    out: Path,
    target: str,
    alphas: tuple[float, ...],
    stronger_accuracy: float,
    stronger_price: float,
    stage: str | None,
    agent: str | None,
    folds: int,
    seed: int,
) -> None:
    """Heads on the first tokens of an answer, and when to stop it at a promised rate of false alarms."""
    from metaprobe.eval.gate import Stronger, gate_lines
    from metaprobe.training.gate.train import train_gate

    check_target(out, "gate")
    with steps() as on_step:
        checkpoint, report = train_gate(
            out,
            runs,
            target=target,
            stage=stage,
            agent=agent,
            alphas=alphas or None,
            stronger=Stronger(stronger_accuracy, stronger_price),
            folds=folds,
            seed=seed,
            command=command_line(),
            on_step=on_step,
        )
    for line in gate_lines(report):
        click.echo(line, err=True)
    say_checkpoint(checkpoint)
