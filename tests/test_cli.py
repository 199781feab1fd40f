"""The command line says what went wrong in one line, and does what the library does."""

import json
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from test_without_extras import WITHOUT_TORCH

from metaprobe.cli import main
from metaprobe.records.store import RunStore

# Whether so little data passes every audit is not the subject here.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


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


def test_a_bad_line_stops_an_import_unless_it_may_be_skipped(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"id": "a", "resp')
    stopped = run("import", lines, "--out", tmp_path / "runs")
    assert stopped.exit_code == 1
    assert "lines.jsonl:1" in stopped.output
    assert "--skip-bad" in stopped.output
    skipped = run("import", lines, "--skip-bad", "--out", tmp_path / "runs")
    assert skipped.exit_code == 1
    assert json.loads(skipped.stdout)["skipped"] == 1


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

    monkeypatch.setattr("metaprobe.collecting.collection_summary.summarize_stores", interrupted)
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
    assert "metaprobe[train]" in refused.stderr
