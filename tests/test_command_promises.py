"""Small promises of the commands: what is typed is used, what is said goes where programs do not read it."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from metaprobe.cli import main
from metaprobe.monitoring.entry import Entry
from metaprobe.monitoring.log import ScoreLog
from metaprobe.terminal import Moment


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="this system cannot change its time zone")
def test_a_moment_is_in_utc_wherever_the_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert Moment().convert("2025-11-30", None, None) == 1_764_460_800.0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_bad_lines_that_are_not_listed_are_counted_beside_the_output(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text("no JSON\n" * 40, encoding="utf-8")
    words = ("import", file, "--out", tmp_path / "store", "--bad", tmp_path / "bad.jsonl")
    done = CliRunner().invoke(main, list(map(str, words)))
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["skipped"] == 40, done.stderr
    assert "... and 20 more bad lines" in done.stderr
    assert len(done.stdout.splitlines()) == 1


class Reached(Exception):
    """Ends a command where its work would begin."""


@pytest.mark.parametrize(
    ("words", "name", "expected"),
    [
        (
            "sample --page --days 2 --model m --tag a=b --floor 0.5 --seed 3",
            "monitoring.sampling.draw_sheet",
            {"since": 827_200, "model": "m", "checkpoint": None, "tags": {"a": "b"}, "floor": 0.5, "seed": 3},
        ),
        (
            "retrain --out new --hold-back 0.4",
            "training.recipes.retrain.retrain_quality",
            {"model": None, "since": None, "held_back": 0.4, "logprobs_mode": "unknown"},
        ),
    ],
)
def test_what_is_typed_reaches_the_library(
    words: str, name: str, expected: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: dict[str, object] = {}

    def stand_in(*_: object, **named: object) -> None:
        given.update(named)
        raise Reached

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"metaprobe.{name}", stand_in)
    monkeypatch.setattr("metaprobe.monitoring_cli.time.time", lambda: 1_000_000.0)
    with ScoreLog.open(tmp_path / "log.sqlite") as log:
        log.write(Entry(request_id="r", time=1000.0, model="m", checkpoint="c", score=0.5))
    done = CliRunner().invoke(main, [*words.split(), "--log", "log.sqlite"])
    assert isinstance(done.exception, Reached), done.output
    assert given == expected
