"""`metaprobe extract`: hidden states of recorded calls."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from metaprobe.progress import progress_bar, quiet_libraries
from metaprobe.records.extras import require
from metaprobe.records.types import POSITIONS
from metaprobe.terminal import RUNS, agent_option, stage_option


@click.command(short_help="Hidden states of recorded calls, read again with a model.")
@click.argument("runs", type=RUNS)
@click.option("--llm", required=True, help="The model that answered: embedded name, folder, GGUF file or hub id.")
@click.option("--layers", default="all", show_default=True, help="'all', 'every:N', or numbers such as '0,8,16'.")
@click.option(
    "--position",
    "positions",
    multiple=True,
    type=click.Choice(POSITIONS),
    help="Token position to keep; repeatable. By default those that collecting keeps.",
)
@click.option("--every-token", is_flag=True, help="Keep every answer token besides.")
@stage_option
@agent_option
@click.option("--batch-size", default=32, show_default=True, type=click.IntRange(1), help="Calls read at once.")
@click.option("--shard-calls", default=64, show_default=True, type=click.IntRange(1), help="Calls written to one file.")
@click.option(
    "--other-model", is_flag=True, help="Read calls of whatever model, and leave out the check that it is one."
)
def extract(runs: Path, llm: str, positions: tuple[str, ...], **options: Any) -> None:
    """Read recorded calls again with a model and keep its hidden states beside the RUNS.

    What is there already is passed over, so a killed extraction goes on. Under `accelerate launch` or `torchrun` the
    processes share the work.
    """
    require("torch", "train")
    from metaprobe.collecting.extract import ExtractionWatch, launch_extract

    quiet_libraries()
    with progress_bar("extract", " calls", ends=True) as bar:
        tokens = 0

        def on_total(calls: int) -> None:
            bar.reset(calls)  # loading is no part of the rate

        def on_chunk(calls: int, read: int) -> None:
            nonlocal tokens
            tokens += read
            rate = tokens / max(bar.format_dict["elapsed"], 1e-9)
            bar.set_postfix_str(f"{tokens:,} tokens, {rate:.0f} tokens/s", False)
            bar.update(calls)

        report, processes = launch_extract(
            runs, llm, watch=ExtractionWatch(on_total, on_chunk), positions=positions or None, **options
        )
    if report is not None:
        if report.calls and report.disagreement is None and not options["other_model"]:
            click.echo(
                f"not checked: no call holds raw log-probabilities that would show whether {llm} is the model that "
                "answered",
                err=True,
            )
        click.echo(json.dumps({**dataclasses.asdict(report), "processes": processes}))
