"""The lines of progress: what a user who waits can see of what goes on."""

import sys
from dataclasses import replace
from io import StringIO
from threading import Event, active_count

import pytest

from metaprobe.collecting.launch import TimeEstimate
from metaprobe.records.types import Call, Usage
from metaprobe.terminal import Live, command_line, live_collection, steps


class Screen(StringIO):
    """A terminal that tells when a text stands on it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.awaited = text
        self.shown = Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.awaited in text:
            self.shown.set()
        return super().write(text)


def ended_call(tokens: int) -> Call:
    return Call(id="c", usage=Usage(prompt_tokens=1, completion_tokens=tokens))


def test_calls_and_tokens_move_while_no_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen("0 failed, 128 calls and 1 from the cache, 2,560 tokens, ")
    monkeypatch.setattr("metaprobe.terminal.TICK_S", 0.001)
    monkeypatch.setattr(sys, "stderr", screen)
    before = active_count()
    with live_collection() as live:
        live.on_total(1400)
        live.on_call(ended_call(20), True)
        for _ in range(128):
            live.on_call(ended_call(20), False)
        assert screen.shown.wait(60)
    assert "0/1400 [" in screen.getvalue()
    assert active_count() <= before + 1, "tqdm has a thread of its own, and none of ours is left"


def test_failures_cost_rate_and_time_of_a_collection_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen("nothing")
    monkeypatch.setattr(sys, "stderr", screen)
    estimate = TimeEstimate(10, 300, 5.0, 4)

    class Bar:
        """What tqdm is asked."""

        total = 7

        def __init__(self) -> None:
            self.format_dict = {"elapsed": 2.0}
            self.said: list[str] = []
            self.ended = 0
            self.begun: list[int] = []

        def set_postfix_str(self, text: str, refresh: bool) -> None:
            self.said.append(text)

        def update(self, n: int) -> None:
            self.ended += n

        def reset(self, total: int) -> None:
            self.begun.append(total)

        def refresh(self) -> None:
            self.said.append(f"of {self.total}")

    bar = Bar()
    live = Live(bar)
    live.on_total(12)
    assert (bar.total, bar.said) == (12, ["of 12"])
    live.on_call(ended_call(100), False)  # of the warm-up
    live.on_estimate(estimate)
    assert bar.begun == [12]
    assert bar.said[-1] == "0 failed, 1 calls, 100 tokens, 50 tokens/s"
    live.on_call(replace(ended_call(40), cost_usd=0.25), False)
    assert bar.said[-1] == "0 failed, 2 calls, 140 tokens, 20 tokens/s, $0.2500"  # since the estimate
    live.on_call(ended_call(5), True)
    live.on_run(None, "why")
    live.on_run(object(), "")
    assert bar.said[-1] == "1 failed, 2 calls and 1 from the cache, 140 tokens, 20 tokens/s, $0.2500"
    assert bar.ended == 2
    assert (
        "about 10 min at most: 10 runs x up to 300 tokens at 5 tokens/s (measured just now with 4" in screen.getvalue()
    )
    live.on_estimate(replace(estimate, unlimited=("answer", "read")))
    assert "about 10 min or more (no limit at answer, read): " in screen.getvalue()


def test_a_step_that_says_nothing_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen("audit and export")
    monkeypatch.setattr("metaprobe.terminal.TICK_S", 0.001)
    monkeypatch.setattr(sys, "stderr", screen)
    with steps() as on_step:
        on_step("audit and export")
        assert screen.shown.wait(60)
        screen.shown.clear()
        assert screen.shown.wait(60)


def test_a_recorded_command_is_one_that_a_shell_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/metaprobe", "compare", "my runs", "--out", "hub:a/b@c"])
    assert command_line() == "metaprobe compare 'my runs' --out hub:a/b@c"
