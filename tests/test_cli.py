"""The command line says what went wrong in one line, does what the library does, and takes only places that fit."""

import errno
import json
import shutil
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import click
import pytest
from test_commands import run
from test_without_extras import WITHOUT_TORCH

from metaprobe.checkpoints import CheckpointError
from metaprobe.option_commands import CHECKPOINT, EXISTING_FILE, EXISTING_FOLDER, FOLDER_TYPE, RUNS, TimeType
from metaprobe.papers.collecting.collect import CollectReport
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore

# Whether so little data passes every audit is not the subject here.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")


@pytest.fixture(scope="module")
def quality(recorded_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "quality"
    RunStore(path.with_name("runs")).append(islice(RunStore(recorded_runs), 100))
    result = run("train", "quality", path.with_name("runs"), "--out", path, "--folds", 2)
    assert result.exit_code == 0, result.output
    return path


def test_training_writes_a_checkpoint_that_inspect_describes(quality: Path) -> None:
    assert {path.name for path in quality.iterdir()} == {"manifest.json", "model.onnx", "golden.json", "README.md"}
    result = run("inspect", quality)
    assert result.exit_code == 0
    assert "smollm2-135m" in result.output
    assert "auroc" in result.output


def test_import_then_score_gives_a_line_for_each_line(quality: Path, tmp_path: Path) -> None:
    content = [{"token": "t", "logprob": -0.3}] * 4
    response = {
        "model": "smollm2-135m",
        "choices": [{"message": {"content": "tttt"}, "logprobs": {"content": content}}],
    }
    lines = tmp_path / "lines.jsonl"
    lines.write_text(
        "".join(
            json.dumps({"id": f"q{i}", "response": response, "labels": {"correct": i % 2}}) + "\n" for i in range(3)
        )
    )
    result = run("import", lines, "--out", tmp_path / "runs")
    assert json.loads(result.stdout) == {
        "from": "lines",
        "left_out": 0,
        "imported": 3,
        "already_stored": 0,
        "relabelled": 0,
        "skipped": 0,
        "labelled": 3,
        "groups": 3,
        "without_logprobs": 0,
    }
    assert json.loads(run("import", lines, "--out", tmp_path / "runs").stdout)["already_stored"] == 3
    scored = [json.loads(line) for line in run("score", quality, lines).stdout.splitlines()]
    assert [line["id"] for line in scored] == ["q0", "q1", "q2"]
    assert all(0 < line["score"] < 1 for line in scored)


def test_scoring_says_how_many_lines_it_could_not_score(quality: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"choices": []}\n{"id": \n')
    nothing = run("score", quality, lines)
    assert nothing.exit_code == 1
    assert "scored 0 of 2 lines" in nothing.stderr
    assert [json.loads(line)["line"] for line in nothing.stdout.splitlines()] == [1, 2]


SOUND = json.dumps({"id": "s", "response": {"choices": [{"text": "a", "logprobs": {"token_logprobs": [-0.1]}}]}})


def test_a_bad_line_is_left_out_unless_it_is_to_stop_the_import(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text(f'{{"id": "a", "resp\n{SOUND}\n')
    stopped = run("import", lines, "--out", tmp_path / "strict", "--strict")
    assert stopped.exit_code == 1
    assert "lines.jsonl:1" in stopped.output
    done = run("import", lines, "--out", tmp_path / "runs")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert (told["imported"], told["skipped"]) == (1, 1)
    assert "lines.jsonl:1" in done.stderr


def test_lines_in_the_place_of_a_run_store_and_an_unwritable_place_are_named(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    choice = {"message": {"content": "t"}, "logprobs": {"content": [{"token": "t", "logprob": -0.3}]}}
    lines.write_text(json.dumps({"response": {"model": "m", "choices": [choice]}}))
    swapped = run("train", "hidden", lines, "--out", tmp_path / "q")
    assert swapped.exit_code == 2
    assert "metaprobe import FILE" in " ".join(swapped.stderr.split())
    assert "can only be read" in run("import", lines, "--out", "bundled:quality").stderr
    in_the_way = run("import", lines, "--out", lines / "runs")
    assert in_the_way.exit_code == 1
    assert in_the_way.stderr.startswith(f"Error: {lines}")


@pytest.mark.parametrize(("command", "kept"), [("summarize", False), ("import", True)])
def test_ctrl_c_promises_only_what_holds(
    command: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("metaprobe.papers.collecting.collection_summary.summarize_stores", interrupted)
    monkeypatch.setattr("metaprobe.records.import_store.import_file", interrupted)
    (tmp_path / "l.jsonl").write_text("{}\n")
    arguments = {"summarize": (tmp_path,), "import": (tmp_path / "l.jsonl", "--out", tmp_path / "runs")}[command]
    result = run(command, *arguments)
    assert result.exit_code == 130
    assert ("is kept" in result.stderr) is kept


def test_errors_are_one_line_that_says_what_to_do(quality: Path, recorded_runs: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(recorded_runs, damaged)
    shard = next(damaged.glob("*.parquet"))
    shard.write_bytes(shard.read_bytes()[:1000])
    tampered = tmp_path / "tampered"
    shutil.copytree(quality, tampered)
    (tampered / "README.md").write_text("something else")
    (tmp_path / "empty").mkdir()
    (tmp_path / "f.jsonl").write_text("{}\n")
    for arguments, said in [
        (("train", "quality", damaged, "--out", tmp_path / "q"), shard.name),
        (("inspect", tampered), "README.md"),
        (("score", tampered, tmp_path / "f.jsonl"), "README.md"),
        (("compare", tmp_path / "empty", "--out", tmp_path / "r"), "no run store"),
        (("train", "quality", recorded_runs, "--target", "kindness", "--out", tmp_path / "q"), "labels found: correct"),
        (("inspect", quality, "--sha256", "0" * 64), "0000"),
        (("collect", "self-report", "--task", "x", "--out", tmp_path / "c"), "no task 'x'"),
    ]:
        result = run(*arguments)
        assert result.exit_code == 1, arguments
        assert said in result.output
        assert "Traceback" not in result.output


@pytest.mark.slow
def test_who_learns_from_logs_needs_no_torch(recorded_runs, tmp_path):
    def typed(*line):
        command = [sys.executable, "-c", WITHOUT_TORCH, *map(str, line)]
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    for name, options in {"quality": (), "gate": ()}.items():
        done = typed("train", name, recorded_runs, "--out", tmp_path / name, "--folds", 2, *options)
        assert done.returncode == 0, done.stderr
    assert typed("inspect", tmp_path / "quality").returncode == 0
    refused = typed("train", "hidden", recorded_runs, "--out", tmp_path / "hidden")
    assert refused.returncode == 1
    assert "pip install '.[train]'" in refused.stderr


@pytest.mark.parametrize("count", [1, 10, 11])
def test_collect_tells_of_what_failed_was_cut_or_could_not_be_read(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = tuple(f"run {n}: reason" for n in range(count))
    report = CollectReport(3, 4, failed, {"confidence": 5}, {"answer": (2, 9)})
    monkeypatch.setattr("metaprobe.papers.collecting.launch.launch", lambda *_, **__: report)
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
    fits = {
        EXISTING_FILE: {file},
        EXISTING_FOLDER: {folder},
        FOLDER_TYPE: {folder, none},
        RUNS: {folder},
        CHECKPOINT: {folder},
    }
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
            FOLDER_TYPE.convert(place, None, None)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left"), "Error: No space left: make room, and run the same again"),
        (OSError(errno.EDQUOT, "Quota exceeded"), "Error: Quota exceeded: make room, and run the same again"),
        (OSError(errno.ENOSPC, "No space left", "my/file"), "Error: my/file: No space left"),
        (PermissionError(errno.EACCES, "Permission denied", "my/file"), "Error: my/file: Permission denied"),
        (RecordError("what is wrong"), "Error: what is wrong"),
        (CheckpointError("what is wrong"), "Error: what is wrong"),
        (OSError(errno.EBADF, "Bad file descriptor"), None),
    ],
)
def test_an_error_is_one_line_and_a_fault_of_ours_is_not_hidden(
    error: Exception, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr("metaprobe.papers.collecting.collection_summary.summarize_stores", failing)
    result = run("summarize", tmp_path)
    if said is None:
        assert isinstance(result.exception, OSError)
    else:
        assert (result.exit_code, result.stderr.strip()) == (1, said)


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="this system cannot change its time zone")
def test_a_moment_is_in_utc_wherever_the_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert TimeType().convert("2025-11-30", None, None) == 1_764_460_800.0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_file_whose_lines_are_mostly_bad_is_refused_with_their_counts(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text("no JSON\n" * 40 + f"[]\n{SOUND}\n", encoding="utf-8")
    done = run("import", file, "--out", tmp_path / "store", "--bad", tmp_path / "bad.jsonl")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "41 of 42 lines" in done.stderr
    assert "answers.jsonl:1: not JSON" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["answers.jsonl"], "nothing is written"
