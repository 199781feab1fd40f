"""What the commands share: options that mean the same everywhere, and progress on stderr."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

RUNS = click.Path(exists=True, file_okay=False, path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)

seed_option = click.option("--seed", default=0, show_default=True, help="Seed of folds and fits.")
folds_option = click.option(
    "--folds", default=5, show_default=True, type=click.IntRange(2), help="Outer folds by group, for held-out figures."
)
model_option = click.option(
    "--llm", "model", default="smollm2-135m", show_default=True, help="Embedded name, folder, GGUF file or hub id."
)
target_option = click.option(
    "--target", "targets", multiple=True, default=("correct",), show_default=True, help="Label to predict; repeatable."
)
stage_option = click.option("--stage", help="Only calls of this stage.")
agent_option = click.option("--agent", help="Only calls of this agent.")


@contextmanager
def progress(what: str, unit: str) -> Iterator[tuple[Any, Callable[[], None]]]:
    quiet_libraries()
    with tqdm(desc=what, unit=f" {unit}s", file=sys.stderr, smoothing=0.05) as bar:
        yield bar, lambda: bar.update(1)


@contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    with tqdm(bar_format="{desc}  {elapsed}", file=sys.stderr) as bar:
        yield lambda what: bar.set_description_str(f"{what:48}")


def quiet_libraries() -> None:
    """Two progress bars on one line help nobody."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from metaprobe.records.extras import require

    require("transformers", "train").utils.logging.disable_progress_bar()


def say_collected(report: Any) -> None:
    click.echo(f"collected {report.done} runs; {report.stored_before} were stored before", err=True)
    for failure in report.failed[:10]:
        click.echo(f"failed: {failure}", err=True)
    if len(report.failed) > 10:
        click.echo(f"... and {len(report.failed) - 10} more", err=True)


def say_checkpoint(checkpoint: Any) -> None:
    from metaprobe.checkpoints import describe

    click.echo(describe(checkpoint))


def command_line() -> str:
    """How this program was called, for the records of what it makes."""
    return " ".join(["metaprobe", *sys.argv[1:]])
