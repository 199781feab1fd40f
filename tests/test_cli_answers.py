"""Commands print the library's results, show errors in one line, and take only places that fit."""

import errno
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from metaprobe.checkpoints import CheckpointError
from metaprobe.cli import main
from metaprobe.collecting.collect import CollectReport
from metaprobe.option_commands import CHECKPOINT, FILE, FOLDER, FOLDER_THERE, RUNS
from metaprobe.records.errors import RecordError


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize("count", [1, 10, 11])
def test_collect_tells_of_what_failed_was_cut_or_could_not_be_read(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = tuple(f"run {n}: reason" for n in range(count))
    report = CollectReport(3, 4, failed, {"confidence": 5}, {"answer": (2, 9)})
    monkeypatch.setattr("metaprobe.collecting.launch.launch", lambda *_, **__: report)
    result = run("collect", "s", "--task", "t", "--out", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "collected 3 runs; 4 were stored before\n" in result.stderr
    assert result.stderr.count("failed: run") == min(count, 10)
    assert ("... and 1 more; all of them stand in failed.jsonl" in result.stderr) == (count > 10)
    assert "signal confidence could not be read of 5 calls" in result.stderr
    assert "2 of 9 answers of stage answer were cut: --tokens answer=N" in result.stderr


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
