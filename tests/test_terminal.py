"""The lines of progress: what a user who waits can see of what goes on."""

import os
import sys
from io import StringIO
from pathlib import Path
from threading import Event, active_count
from types import SimpleNamespace

import pytest

from metaprobe.papers.collecting.collection_progress import show_collection
from metaprobe.progress import lines_done, quiet_libraries
from metaprobe.records.types import Call, Usage
from metaprobe.terminal import asking_table, command_line


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
    with show_collection() as live:
        live.on_total(1400)
        live.on_call(ended_call(20), True)
        for _ in range(128):
            live.on_call(ended_call(20), False)
        assert screen.shown.wait(60)
    assert "0/1400 [" in screen.getvalue()
    assert active_count() <= before + 1, "tqdm has a thread of its own, and none of ours is left"


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
    with show_collection() as live:
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


def test_the_lines_of_a_file_are_counted_and_said_only_where_they_take_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = tmp_path / "lines.jsonl"
    plain.write_text("{}\n" * 40)
    packed = tmp_path / "lines.jsonl.gz"
    packed.write_bytes(b"")
    often = [15, 30, 40]
    for file, step, total, said in (
        (plain, 0.1, "40", []), (plain, 2.0, "40", often), (packed, 2.0, "?", often), (tmp_path, 2.0, "?", often)
    ):  # fmt: skip
        log, clock = Log(), Clock(monkeypatch)
        monkeypatch.setattr(sys, "stderr", log)
        done = []
        for line in lines_done("score", iter(range(40)), file):
            done.append(line)
            clock.now += step
        assert done == list(range(40))
        shown = [line.partition(f"/{total} [")[0] for line in log.getvalue().splitlines()]
        assert shown == [f"score: {number}" for number in said]


def test_lines_that_are_shown_on_a_terminal_have_no_bar_between_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    screen = Screen("nothing")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", screen)
    assert list(lines_done("score", iter(range(3)), tmp_path)) == [0, 1, 2]
    assert screen.getvalue() == ""


def test_a_recorded_command_is_one_that_a_shell_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/metaprobe", "compare", "my runs", "--out", "hub:a/b@c"])
    assert command_line() == "metaprobe compare 'my runs' --out hub:a/b@c"


@pytest.mark.parametrize(("spent", "said"), [(0.1, "80% less"), (0.62, "24% more"), (0.52, "")])
def test_spending_far_from_its_budget_is_said_beside_it(spent: float, said: str) -> None:
    way = {"accuracy": {"estimate": 0.7, "low": 0.6, "high": 0.8}, "cost_per_1000": 0.5}
    gain = {"estimate": 0.0, "low": -0.1, "high": 0.1}
    figure = {
        "asked": 1.0,
        "by": "one agent",
        "accuracy": way["accuracy"],
        "cost_per_1000": {"estimate": spent},
        "ways": {"small": way | {"panel_over_it": gain}},
        "best_single": way | {"agent": "small"},
        "oracle": way,
    }
    figures = {"questions": 9, "groups": 9, "agents": ["small", "large"], "budgets": {"0.5": figure}}
    [line] = [line for line in asking_table(figures) if line.startswith("budget")]
    assert ("than the budget is spent" in line) == bool(said)
    assert said in line
