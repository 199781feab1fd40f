"""The lines of progress: what a user who waits can see of what goes on."""

import os
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from threading import Event, active_count
from types import SimpleNamespace

import pytest

from metaprobe.collecting.launch import TimeEstimate
from metaprobe.progress import (
    Live,
    StepTimes,
    lines_done,
    lines_in,
    live_collection,
    quiet_libraries,
    share_done,
    steps,
)
from metaprobe.records.types import Call, Usage
from metaprobe.terminal import command_line


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
    monkeypatch.setattr("metaprobe.progress.TICK_S", 0.001)
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
    estimate = TimeEstimate(120, 300, 5.0, 4)

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
    said = "about 120 min at most: 120 runs x up to 300 tokens at 5 tokens/s (measured just now with 4"
    assert said in screen.getvalue()
    live.on_estimate(replace(estimate, unlimited=("answer", "read")))
    assert "about 120 min or more (no limit at answer, read): " in screen.getvalue()


def test_a_step_that_says_nothing_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen("audit and export")
    monkeypatch.setattr("metaprobe.progress.TICK_S", 0.001)
    monkeypatch.setattr(sys, "stderr", screen)
    with steps() as on_step:
        on_step("audit and export")
        assert screen.shown.wait(60)
        screen.shown.clear()
        assert screen.shown.wait(60)


class Log(StringIO):
    """No terminal."""


class Clock:
    """A clock that goes as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("metaprobe.progress.time", SimpleNamespace(monotonic=lambda: self.now))


def test_where_there_is_no_terminal_a_line_is_said_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    log, clock = Log(), Clock(monkeypatch)
    monkeypatch.setattr(sys, "stderr", log)
    with live_collection() as live:
        live.on_total(40)
        for _ in range(40):
            live.on_call(ended_call(20), False)
            live.on_run(object(), "")
            clock.now += 2.0
    lines = log.getvalue().splitlines()
    assert [int(line.partition("/40 [")[0].removeprefix("collect: ")) for line in lines] == [16, 31, 40]
    assert all("\r" not in line and "0 failed, " in line for line in lines)


def test_libraries_draw_no_bars_of_their_own_unless_the_user_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = pytest.importorskip("transformers.utils.logging")
    for given, kept in ((None, "1"), ("0", "0")):
        monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS", raising=False)
        if given is not None:
            monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", given)
        monkeypatch.setattr(logs, "_tqdm_active", True)
        quiet_libraries()
        assert os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] == kept
        assert not logs.is_progress_bar_enabled()


def test_what_came_to_nothing_leaves_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for screen in (Log(), Screen("nothing")):
        monkeypatch.setattr(sys, "stderr", screen)
        with pytest.raises(OSError, match="full"), live_collection():
            raise OSError("full")
        assert screen.getvalue().rpartition("\r")[2].strip() == ""
        assert "\n" not in screen.getvalue()


def test_a_training_in_a_log_says_its_steps_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    log, clock = Log(), Clock(monkeypatch)
    monkeypatch.setattr(sys, "stderr", log)
    with steps() as on_step:
        for fold in range(1, 5):
            on_step(f"fold {fold} of 4, method 1 of 2: mean")
            clock.now += 1.0
            on_step(f"fold {fold} of 4, method 2 of 2: slow")
            clock.now += 39.0
        on_step("audit and export")
    assert [line.partition("  ")[0] for line in log.getvalue().splitlines()] == [
        "fold 2 of 4, method 1 of 2: mean",
        "fold 3 of 4, method 1 of 2: mean",
        "fold 4 of 4, method 1 of 2: mean",
        "audit and export",
    ]
    assert "about 02:00 left of these" in log.getvalue()


def test_the_lines_of_a_file_are_counted_and_said_only_where_they_take_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text("{}\n" * 40)
    for step, said in ((0.1, []), (2.0, [15, 30, 40])):
        log, clock = Log(), Clock(monkeypatch)
        monkeypatch.setattr(sys, "stderr", log)
        done = []
        for line in lines_done("score", iter(range(40)), file):
            done.append(line)
            clock.now += step
        assert done == list(range(40))
        assert [int(line.partition("/40 [")[0].removeprefix("score: ")) for line in log.getvalue().splitlines()] == said
    packed = tmp_path / "lines.jsonl.gz"
    packed.write_bytes(b"")
    assert lines_in(packed) is lines_in(tmp_path) is None


def test_lines_that_are_shown_on_a_terminal_have_no_bar_between_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    screen = Screen("nothing")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", screen)
    assert list(lines_done("score", iter(range(3)), tmp_path)) == [0, 1, 2]
    assert screen.getvalue() == ""


class Drawn:
    """What tqdm is asked of a step."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        self._left = text

    def set_description_str(self, text: str) -> None:
        self.said.append((text.strip(), self._left))


def test_counted_steps_say_how_long_the_rest_will_take(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, bar = Clock(monkeypatch), Drawn()
    times = StepTimes(bar)
    for what in ("reading runs", "fold 1 of 2, method 1 of 2: a", "fold 1 of 2, method 2 of 2: b", "fold 2 of 2: c"):
        times.tell(what)
        clock.now += 10.0
    times.tell("fold 1 of 4: of the next head")
    clock.now += 100.0
    times.tell("fold 2 of 4: of the next head")
    times.tell("export")
    assert [left for _, left in bar.said] == [
        "",
        "",
        "about 00:30 left of these",
        "about 00:20 left of these",
        "",
        "about 05:00 left of these",
        "",
    ]


def test_the_share_of_nested_counts_is_that_of_all() -> None:
    assert share_done("head 2 of 2, correct: fold 3 of 5, method 4 of 8: mean") == pytest.approx(0.5 + 0.2 + 0.0375)
    assert share_done("step 1 of 10: selection log loss 0.5") == 0.0
    assert share_done("audit and export") is share_done("5 of 3") is share_done("0 of 7") is None


def test_a_recorded_command_is_one_that_a_shell_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/metaprobe", "compare", "my runs", "--out", "hub:a/b@c"])
    assert command_line() == "metaprobe compare 'my runs' --out hub:a/b@c"
