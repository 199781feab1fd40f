"""Small promises of the commands: what is typed is used, what is said goes where programs do not read it."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from metaprobe.cli import main
from metaprobe.option_commands import Moment


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
