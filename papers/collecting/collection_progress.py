"""Shows a collection on stderr while it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from metaprobe.api import progress_bar


class CollectionProgress:
    """Shows a collection on one line of stderr: done, time left, failed, calls, tokens, their rate, cost."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._start()

    def _start(self) -> None:
        self._failed = self._calls = self._tokens = self._cached_calls = 0
        self._cost = 0.0

    def on_total(self, total: int) -> None:
        """Starts a collection of `total` runs; a second collection is counted from 0 again."""
        self._bar.reset(total)  # loading the models is no part of the rate
        self._start()

    def on_call(self, call: Any, from_cache: bool) -> None:
        if from_cache:  # the call was paid for earlier, by another run or before an interruption
            self._cached_calls += 1
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
        rate = self._tokens / max(self._bar.format_dict["elapsed"], 1e-9)
        cost = f", ${self._cost:.4f}" if self._cost else ""
        from_cache = f" and {self._cached_calls:,} from the cache" if self._cached_calls else ""
        self._bar.set_postfix_str(
            f"{self._failed} failed, {self._calls:,} calls{from_cache}, {self._tokens:,} tokens, "
            f"{rate:.0f} tokens/s{cost}",
            False,
        )


@contextmanager
def show_collection() -> Iterator[CollectionProgress]:
    """Yields an object that follows a collection."""
    with progress_bar("collect", " runs", ends=True, quiet=True) as bar:
        yield CollectionProgress(bar)
