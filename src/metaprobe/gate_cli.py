"""`metaprobe train gate`: from stored runs to a streaming gate."""

from pathlib import Path
from typing import Any

import click

from metaprobe.progress import say, steps
from metaprobe.terminal import (
    FOLDER,
    RUNS,
    agent_option,
    command_line,
    folds_option,
    replace_options,
    say_checkpoint,
    seed_option,
    stage_option,
)


@click.command("gate", short_help="On the first log-probabilities: when to stop a stream.")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@replace_options()
@click.option("--target", default="correct", show_default=True, help="Label to predict.")
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    multiple=True,
    help="False-alarm rate to store thresholds for; repeatable.  [default: of 0.01 to 0.3 those that the runs allow]",
)
@click.option(
    "--stronger-accuracy",
    type=click.FloatRange(0, 1),
    default=0.9,
    show_default=True,
    help="Assumed of the model that stopped answers are escalated to, in the numbers.",
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
def train_gate_command(runs: tuple[Path, ...], **named: Any) -> None:
    """Heads on the first tokens of an answer, and when to stop it at a promised rate of false alarms."""
    from metaprobe.training.options import GateOptions
    from metaprobe.training.recipes.gate import train_gate

    with steps() as on_step:
        options = GateOptions(**named, on_step=on_step, on_line=say, command=command_line())
        checkpoint = train_gate(runs, options)
    say_checkpoint(checkpoint)
