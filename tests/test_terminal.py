"""The lines of progress: what a user who waits can see of what goes on."""

import sys
from io import StringIO
from threading import Event, active_count

import pytest

from metaprobe.records.types import Call, Usage
from metaprobe.terminal import command_line, live_collection, steps


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
