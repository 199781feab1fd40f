"""What the commands share: options that mean the same everywhere, and progress on stderr."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import click
from tqdm import tqdm

TICK_S, TICK_IN_A_LOG_S = 1.0, 60.0
"""Between two drawings of a line of progress on which nothing has ended."""

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER_THERE = click.Path(exists=True, file_okay=False, path_type=Path)


class Target(click.Path):
    """A folder to write to."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).startswith(_prefixes()):
            self.fail(f"{str(value)!r} can only be read; expected a folder to write to", param, ctx)
        return super().convert(value, param, ctx)


FOLDER = Target(file_okay=False, path_type=Path)


class Runs(click.Path):
    """A run store that exists."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if Path(value).is_file():
            self.fail(
                f"{str(value)!r} is a file; expected a run store. `metaprobe import FILE --out RUNS` makes one of "
                "OpenAI-format lines",
                param,
                ctx,
            )
        if (Path(value) / "manifest.json").is_file():
            self.fail(
                f"{str(value)!r} is a checkpoint; expected a run store, as `metaprobe collect` makes it", param, ctx
            )
        return super().convert(value, param, ctx)


RUNS = Runs(exists=True, file_okay=False, path_type=Path)


class Location(click.ParamType):  # type: ignore[type-arg]  # generic in click 8.5, not before
    """A checkpoint folder that exists, `bundled:NAME`, or `hub:OWNER/NAME@REVISION`."""

    name = "checkpoint"

    def __init__(self, *, or_runs: bool = False) -> None:
        """`or_runs`: whether the folder may also be a run store."""
        self.or_runs = or_runs

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from metaprobe.checkpoints import bundle

        text = str(value)
        if not text.startswith(_prefixes()) and not Path(text).is_dir():
            found = "a file" if Path(text).exists() else "not there"
            near = f"; did you mean {bundle.PREFIX}{text}?" if text in bundle.bundled_names() else ""
            self.fail(f"{text!r} is {found}; expected {_LOCATION}{near}", param, ctx)
        if not self.or_runs and is_store(text):
            self.fail(f"{text!r} is a run store; expected {_LOCATION}. `metaprobe train` makes one of it", param, ctx)
        return text


def is_store(path: str) -> bool:
    """Returns whether a folder holds the files of a run store."""
    return any(Path(path).glob("runs-*.parquet"))


def _prefixes() -> tuple[str, ...]:
    from metaprobe.checkpoints import bundle, hub

    return hub.PREFIX, bundle.PREFIX


_LOCATION = "a checkpoint folder, bundled:NAME or hub:OWNER/NAME@REVISION"
CHECKPOINT = Location()
CHECKPOINT_OR_RUNS = Location(or_runs=True)


seed_option = click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0, 2**32 - 1), help="Seed of folds and fits."
)
folds_option = click.option(
    "--folds", default=5, show_default=True, type=click.IntRange(2), help="Outer folds by group, for held-out figures."
)
model_option = click.option(
    "--llm", default="smollm2-135m", show_default=True, help="Embedded name, folder, GGUF file or hub id."
)
target_option = click.option(
    "--target", multiple=True, default=("correct",), show_default=True, help="Label to predict; repeatable."
)
stage_option = click.option("--stage", help="Only calls of this stage.")
agent_option = click.option("--agent", help="Only calls of this agent.")


class Live:
    """What a collection is doing, on one line of stderr: done, time left, failed, calls, tokens, their rate, cost."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._failed = self._calls = self._tokens = self._before = self._kept = 0
        self._cost = 0.0

    def on_estimate(self, estimate: Any) -> None:
        minutes = estimate.seconds / 60
        most = f"or more (no limit at {', '.join(estimate.unlimited)})" if estimate.unlimited else "at most"
        tqdm.write(
            f"about {minutes:.0f} min {most}: {estimate.runs} runs x up to {estimate.tokens_per_run} tokens at "
            f"{estimate.tokens_per_second:.0f} tokens/s (measured just now with {estimate.warm_up} calls, which are "
            "counted below), and the time to read long prompts",
            file=sys.stderr,
        )
        self._bar.reset(self._bar.total)  # loading and warming up is no part of the rate
        self._before = self._tokens

    def on_total(self, total: int) -> None:
        self._bar.total = total
        self._bar.refresh()

    def on_call(self, call: Any, kept: bool) -> None:
        if kept:  # it was paid for before: in another run of these, or when the collection was stopped
            self._kept += 1
        else:
            self._calls += 1
            self._tokens += call.usage.completion_tokens
            self._cost += call.cost_usd or 0.0
        self._show()

    def on_run(self, run: object, reason: str) -> None:
        self._failed += run is None
        self._show()
        self._bar.update(1)

    def _show(self) -> None:
        rate = (self._tokens - self._before) / max(self._bar.format_dict["elapsed"], 1e-9)
        cost = f", ${self._cost:.4f}" if self._cost else ""
        kept = f" and {self._kept:,} from the cache" if self._kept else ""
        self._bar.set_postfix_str(
            f"{self._failed} failed, {self._calls:,} calls{kept}, {self._tokens:,} tokens, {rate:.0f} tokens/s{cost}",
            False,
        )


@contextmanager
def live_collection() -> Iterator[Live]:
    quiet_libraries()
    with tqdm(desc="collect", unit=" runs", file=sys.stderr, smoothing=0.05) as bar, ticking(bar):
        yield Live(bar)


@contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    with tqdm(desc=f"{'reading runs':48}", bar_format="{desc}  {elapsed}", file=sys.stderr) as bar, ticking(bar):
        yield lambda what: bar.set_description_str(f"{what:48}")


@contextmanager
def ticking(bar: Any) -> Iterator[None]:
    """Draws the bar again and again: calls are seen that end no run, and a step that takes long is seen to go on."""
    ended = Event()
    every = TICK_S if sys.stderr.isatty() else TICK_IN_A_LOG_S

    def tick() -> None:
        while not ended.wait(every):
            bar.refresh()

    thread = Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def quiet_libraries() -> None:
    """Two progress bars on one line help nobody."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with suppress(ImportError):  # a collection over an API needs none
        import transformers

        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def say_collected(report: Any) -> None:
    click.echo(f"collected {report.done} runs; {report.stored_before} were stored before", err=True)
    for failure in report.failed[:10]:
        click.echo(f"failed: {failure}", err=True)
    if len(report.failed) > 10:
        click.echo(f"... and {len(report.failed) - 10} more; all of them stand in failed.jsonl", err=True)
    for name, count in report.unread.items():
        click.echo(f"signal {name} could not be read of {count} calls; the rules' fallback was taken there", err=True)
    for stage, (cut, answers) in report.cut.items():
        click.echo(f"{cut} of {answers} answers of stage {stage} were cut: --tokens {stage}=N sets the limit", err=True)


def say(line: str) -> None:
    """A line about the data or about what was found, on stderr."""
    tqdm.write(line, file=sys.stderr)


def say_checkpoint(checkpoint: Any) -> None:
    from metaprobe.checkpoints import describe

    click.echo(describe(checkpoint))


def command_line() -> str:
    """How this program was called, for the records of what it makes: a line that a shell takes."""
    return shlex.join(["metaprobe", *sys.argv[1:]])
