"""`metaprobe train adapter`: a small language model that reads question and answer."""

from pathlib import Path
from typing import Any

import click

from metaprobe.progress import quiet_libraries, say, steps
from metaprobe.records.extras import require
from metaprobe.terminal import (
    FOLDER,
    RUNS,
    agent_option,
    command_line,
    model_option,
    replace_options,
    say_checkpoint,
    seed_option,
    stage_option,
)


@click.command("adapter", short_help="On prompt and answer as text: a small language model.")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@replace_options()
@model_option
@click.option("--target", default="correct", show_default=True, help="Label to predict.")
@click.option(
    "--when",
    type=click.Choice(["before", "after", "both"]),
    default="both",
    show_default=True,
    help="Judge from the question alone, from question and answer, or either.",
)
@click.option("--rank", default=8, show_default=True, type=click.IntRange(1), help="Of the LoRA matrices.")
@click.option("--epochs", default=3, show_default=True, type=click.IntRange(1), help="At most; it stops early.")
@click.option("--batch-size", default=8, show_default=True, type=click.IntRange(1), help="Texts read at once.")
@click.option("--accumulate", default=1, show_default=True, type=click.IntRange(1), help="Batches a step.")
@click.option("--lr", default=2e-4, show_default=True, type=click.FloatRange(0, min_open=True), help="Learning rate.")
@click.option(
    "--max-length", default=512, show_default=True, type=click.IntRange(8), help="Tokens read of a text: its last."
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="Of the base while training.",
)
@click.option(
    "--int8", is_flag=True, help="Round the exported weights to int8: a quarter of the size, at a loss it reports."
)
@click.option(
    "--work", type=FOLDER, help="Folder for the state of an unfinished training, gone on with.  [default: OUT.work]"
)
@stage_option
@agent_option
@seed_option
def train_adapter_command(runs: tuple[Path, ...], **named: Any) -> None:
    """A small language model with LoRA and a confidence head, merged and exported; it needs no torch to run.

    Stopped at any moment and called again, it goes on from its last evaluation.
    """
    require("torch", "train,adapter")
    require("peft", "train,adapter")
    from metaprobe.training.options import AdapterOptions
    from metaprobe.training.recipes.adapter import train_adapter

    quiet_libraries()
    with steps() as on_step:
        options = AdapterOptions(**named, on_step=on_step, on_line=say, command=command_line())
        checkpoint = train_adapter(runs, options)
    if checkpoint is not None:
        say_checkpoint(checkpoint)
