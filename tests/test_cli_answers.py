"""Commands ask the library for the right things, print its results, and show errors."""

import errno
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from asked_library import SAID, Asked, run

from metaprobe.checkpoints import CheckpointError
from metaprobe.collecting.collect import CollectReport
from metaprobe.records.errors import RecordError
from metaprobe.terminal import CHECKPOINT, FILE, FOLDER, FOLDER_THERE, RUNS


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts an `Asked` in the place of a function of the library."""
    monkeypatch.setattr("metaprobe.checkpoints.describe", lambda checkpoint: f"{SAID} {checkpoint}")
    monkeypatch.setattr(sys, "argv", ["metaprobe", "typed"])

    def put(name: str, answer: Any = None) -> Asked:
        asked = Asked(answer)
        monkeypatch.setattr(f"metaprobe.{name}", asked)
        return asked

    return put


@pytest.fixture
def line_file(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_text("{}\n", encoding="utf-8")
    return path


def test_route_names_the_lines_that_it_could_not_decide(stand_in: Any, line_file: Path) -> None:
    stand_in("routing.panel.Panel.load", SimpleNamespace(ask_plan=lambda **_: None))
    refused = {"action": None, "line": 2, "reason": f"{line_file}:2: why"}
    lines = stand_in("routing.panel_lines.step_lines", [{"action": "ask"}, refused])
    result = run("route", "bundled:router", line_file)
    assert (result.exit_code, result.stderr) == (1, f"{line_file}:2: why\n")
    assert [json.loads(line) for line in result.stdout.splitlines()] == lines.answer
    lines.answer = [{"action": "keep"}]
    whole = run("route", "bundled:router", line_file)
    assert (whole.exit_code, whole.stderr) == (0, "")
    lines.answer = []
    none = run("route", "bundled:router", line_file)
    assert (none.exit_code, none.stderr) == (1, f"{line_file} holds no lines to decide\n")
    for wrong in (("--budget", "1", "--price", "1"), ("--price", "-1"), ("--budget", "0")):
        assert run("route", "bundled:router", line_file, *wrong).exit_code == 2


@pytest.mark.parametrize("count", [1, 10, 11])
def test_collect_tells_of_what_failed_was_cut_or_could_not_be_read(stand_in: Any, tmp_path: Path, count: int) -> None:
    failed = tuple(f"run {n}: reason" for n in range(count))
    stand_in("collecting.launch.launch", CollectReport(3, 4, failed, {"confidence": 5}, {"answer": (2, 9)}))
    result = run("collect", "s", "--task", "t", "--out", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "collected 3 runs; 4 were stored before\n" in result.stderr
    assert result.stderr.count("failed: run") == min(count, 10)
    assert ("... and 1 more; all of them stand in failed.jsonl" in result.stderr) == (count > 10)
    assert "signal confidence could not be read of 5 calls" in result.stderr
    assert "2 of 9 answers of stage answer were cut: --tokens answer=N" in result.stderr


def test_score_says_where_there_was_nothing(stand_in: Any, line_file: Path) -> None:
    stand_in("probes.quality.QualityPredictor.load", "predictor")
    lines = stand_in("probes.score_file.score_lines", [{"score": 0.5, "heads": {}}, {"score": None, "heads": {"a": 1}}])
    result = run("score", "bundled:quality", line_file)
    assert (result.exit_code, result.stderr) == (0, "")
    assert [json.loads(line) for line in result.stdout.splitlines()] == lines.answer
    lines.answer = [{"score": 0.5, "heads": {}}, {"score": None, "heads": {}}]
    half = run("score", "bundled:quality", line_file)
    assert (half.exit_code, half.stderr) == (0, "scored 1 of 2 lines; the reasons stand in the lines\n")
    lines.answer = []
    nothing = run("score", "bundled:quality", line_file)
    assert (nothing.exit_code, nothing.stdout) == (1, "")
    assert nothing.stderr == f"{line_file} holds no lines to score\n"
    run("score", "bundled:quality", "-")
    assert lines[-1][0] == ("predictor", Path("/dev/stdin"))


def test_what_may_be_a_folder_a_file_or_a_checkpoint(tmp_path: Path) -> None:
    file, folder, none = tmp_path / "f", tmp_path / "d", tmp_path / "n"
    file.write_text("x", encoding="utf-8")
    folder.mkdir()
    fits = {FILE: {file}, FOLDER_THERE: {folder}, FOLDER: {folder, none}, RUNS: {folder}, CHECKPOINT: {folder}}
    for kind, good in fits.items():
        for path in (file, folder, none):
            if path in good:
                found = kind.convert(str(path), None, None)
                assert found == (str(path) if kind is CHECKPOINT else path)
                assert isinstance(found, str if kind is CHECKPOINT else Path)
            else:
                with pytest.raises(click.BadParameter):
                    kind.convert(str(path), None, None)
    with pytest.raises(click.BadParameter, match=r"is a file; expected a checkpoint folder, bundled:NAME or hub:"):
        CHECKPOINT.convert(str(file), None, None)
    with pytest.raises(click.BadParameter, match=r"'quality' is not there.*did you mean bundled:quality"):
        CHECKPOINT.convert("quality", None, None)
    with pytest.raises(click.BadParameter) as wrong:
        CHECKPOINT.convert("nosuch", None, None)
    assert "did you mean" not in str(wrong.value)
    assert CHECKPOINT.convert("hub:a/b@c", None, None) == "hub:a/b@c"
    for place in ("hub:a/b@c", "bundled:quality"):
        with pytest.raises(click.BadParameter, match="can only be read"):
            FOLDER.convert(place, None, None)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left"), "Error: No space left: make room, and run the same again"),
        (OSError(errno.EDQUOT, "Quota exceeded"), "Error: Quota exceeded: make room, and run the same again"),
        (OSError(errno.ENOSPC, "No space left", "my/file"), "Error: my/file: No space left"),
        (PermissionError(errno.EACCES, "Permission denied", "my/file"), "Error: my/file: Permission denied"),
        (RecordError("what is wrong"), "Error: what is wrong"),
        (CheckpointError("what is wrong"), "Error: what is wrong"),
    ],
)
def test_an_error_is_one_line(error: Exception, said: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr("metaprobe.collecting.collection_summary.summarize_stores", failing)
    result = run("summarize", store)
    assert (result.exit_code, result.stderr.strip()) == (1, said)


def test_a_fault_of_ours_is_not_hidden(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr("metaprobe.collecting.collection_summary.summarize_stores", failing)
    assert isinstance(run("summarize", store).exception, OSError)
