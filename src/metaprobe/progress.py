"""Shows progress on stderr: a bar with the time left on a terminal, or a line every 30 seconds elsewhere."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeVar

from tqdm import tqdm

TICK_S = 1.0
"""Seconds between two redraws of a bar on a terminal while no unit of work ends."""
LINE_S = 30.0
"""Seconds between two lines if stderr is no terminal. Shorter work prints only its last line."""
LINE_FORMAT = "{desc}: {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"


T = TypeVar("T")


class TokenBar(tqdm):  # type: ignore[misc]
    """A progress bar that also takes counts of tokens."""

    def counters(self) -> tuple[Callable[[int], None], Callable[[int, int], None]]:
        """Returns two functions that draw the bar: one takes the total, the other calls and tokens of each chunk."""
        tokens = 0

        def on_total(total: int) -> None:
            self.reset(total)  # loading is no part of the rate

        def on_chunk(done: int, read: int) -> None:
            nonlocal tokens
            tokens += read
            rate = tokens / max(self.format_dict["elapsed"], 1e-9)
            self.set_postfix_str(f"{tokens:,} tokens, {rate:.0f} tokens/s", False)
            self.update(done)

        return on_total, on_chunk


class LogBar(TokenBar):
    """A progress bar for logs: it writes a whole line every `LINE_S` seconds.

    It also writes a last line if it has written one before, or if `ends`.
    """

    def __init__(self, *, ends: bool = False, **tqdm_options: Any) -> None:
        self._written_at = time.monotonic()
        self._ends, self._closed = ends, False
        super().__init__(mininterval=0, miniters=1, **{"bar_format": LINE_FORMAT, **tqdm_options})

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Writes a line if the last one is older than `LINE_S`."""
        if time.monotonic() - self._written_at >= LINE_S:
            self._write_line()

    def clear(self, nolock: bool = False) -> None:
        """Does nothing: a log has no line that could be wiped."""

    def close(self) -> None:
        """Writes the last line."""
        if self._closed:
            return
        self._closed = True
        if self._ends and (self.n or self.total):
            self._write_line()
        self.disable: bool = True
        self._decr_instances(self)

    def _write_line(self) -> None:
        self._written_at, self._ends = time.monotonic(), True
        self.fp.write(f"{str(self).rstrip()}\n")
        self.fp.flush()


@contextmanager
def progress_bar(
    what: str, unit: str, total: int | None = None, *, ends: bool = False, scaled: bool = False, quiet: bool = False
) -> Iterator[Any]:
    """Yields a bar that shows the count, the total, the time passed and left, and the rate.

    Args:
        what: text before the bar.
        unit: unit of the count.
        total: total count, if known.
        ends: whether a log gets a last line even if the work was short.
        scaled: whether counts are shown in thousands and millions, as for bytes.
        quiet: whether to turn off bars of other libraries (`quiet_libraries`).
    """
    if quiet:
        quiet_libraries()
    tqdm_options = {"desc": what, "unit": unit, "total": total, "file": sys.stderr, "smoothing": 0.05, "leave": False}
    tqdm_options["unit_scale"] = scaled
    token_bar = TokenBar(**tqdm_options) if sys.stderr.isatty() else LogBar(ends=ends, **tqdm_options)
    with token_bar as bar, _ticking(bar):
        try:
            yield bar
        finally:
            bar.leave = bool(bar.n or bar.total)  # an empty bar is wiped: an error follows


def lines_done(what: str, lines: Iterable[T], file: Path) -> Iterator[T]:
    """Yields the lines unchanged, and shows in a bar how many of the file's lines are done. If stdout is a terminal,
    there is no bar.

    Args:
        what: text before the bar.
        lines: results, one for each line of the file.
        file: the file; its lines are counted for the bar's total.
    """
    if sys.stdout.isatty():
        yield from lines
        return
    line_count = None  # unknown for a compressed file, and without a file
    if file.is_file() and file.suffix != ".gz":
        with file.open("rb") as opened:
            line_count = sum(block.count(b"\n") for block in iter(lambda: opened.read(1 << 20), b""))
    with progress_bar(what, " lines", line_count) as bar:
        for line in lines:
            yield line
            bar.update(1)


@contextmanager
def steps(first_step: str = "reading runs") -> Iterator[Callable[[str], None]]:
    """Yields a function that shows the current step, such as `fold 2 of 5, method 3 of 9`, beside the time passed."""
    bar_class = tqdm if sys.stderr.isatty() else LogBar
    with bar_class(desc=f"{first_step:56}", bar_format="{desc}  {elapsed}", file=sys.stderr) as bar, _ticking(bar):
        yield lambda step: bar.set_description_str(f"{step:56}")


@contextmanager
def _ticking(bar: Any) -> Iterator[None]:
    """Redraws the bar every `TICK_S` seconds, so that its clock also runs during a long step."""
    is_done = Event()
    interval_s = TICK_S if sys.stderr.isatty() else LINE_S

    def tick() -> None:
        while not is_done.wait(interval_s):
            bar.refresh()

    thread = Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


def say(line: str) -> None:
    """Prints a line about the data or the findings on stderr."""
    tqdm.write(line, file=sys.stderr)


def quiet_libraries() -> None:
    """Turns off the progress bars of other libraries, which would share the line with ours."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with suppress(ImportError):  # a collection over an API needs none
        import transformers

        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
