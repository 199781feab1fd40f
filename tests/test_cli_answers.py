"""What commands ask the library for, what they say, and how errors are shown."""

import errno
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from asked_library import ANSWERS, FOLDS, SAID, SAME, Asked, run

import metaprobe
from metaprobe.checkpoints import CheckpointError
from metaprobe.collecting.collect import CollectReport
from metaprobe.records.errors import RecordError
from metaprobe.serving.http.settings import Settings
from metaprobe.terminal import CHECKPOINT, FILE, FOLDER, FOLDER_THERE, RUNS
from metaprobe.training.options import (
    CompareOptions,
)


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
    router = stand_in("routing.learned.LearnedRouter.load", "router")
    refused = {"action": None, "line": 2, "reason": f"{line_file}:2: why"}
    lines = stand_in("training.router.evaluate.route_lines", [{"action": "ask"}, refused])
    typed = ("--budget", "0.5", "--seconds", "2", "--sha256", "abc")
    result = run("route", "bundled:router", line_file, *typed)
    assert result.exit_code == 1
    means = {"budget": 0.5, "seconds": 2.0, "lambda_": None, "per_second": None}
    assert router == [(("bundled:router",), {"sha256": "abc"} | means)]
    assert lines == [(("router", line_file), {})]
    assert [json.loads(line) for line in result.stdout.splitlines()] == lines.answer
    assert result.stderr == f"{line_file}:2: why\n"
    lines.answer = [{"action": "keep"}]
    whole = run("route", "bundled:router", line_file, "--lambda", "2", "--per-second", "0")
    assert (whole.exit_code, whole.stderr) == (0, "")
    assert (router[-1][1]["lambda_"], router[-1][1]["per_second"]) == (2.0, 0.0)
    lines.answer = []
    none = run("route", "bundled:router", line_file)
    assert (none.exit_code, none.stderr) == (1, f"{line_file} holds no lines to decide\n")
    for wrong in (("--budget", "1", "--lambda", "1"), ("--seconds", "1", "--per-second", "1"), ("--budget", "0")):
        assert run("route", "bundled:router", line_file, *wrong).exit_code == 2


def test_evaluate_router_writes_its_decisions_where_they_are_asked_for(stand_in: Any, line_file: Path) -> None:
    router = stand_in("routing.learned.LearnedRouter.load", "router")
    stand_in("records.outcomes.read_outcomes", "questions")
    figures = stand_in("training.router.evaluate.evaluate_router", ({"accuracy": 0.5}, [{"id": 1}, {"id": 2}]))
    result = run("evaluate", "router", "--json", "bundled:router", line_file, "--sha256", "abc", "--seconds", "3")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"budget": None, "seconds": 3.0, "accuracy": 0.5}
    assert figures == [(("router", "questions"), {"seed": 0})]
    assert router[0][1]["sha256"] == "abc"
    place = line_file.parent / "a" / "b" / "decisions.jsonl"
    for _ in range(2):
        told = run(
            "evaluate",
            "router",
            "--json",
            "bundled:router",
            line_file,
            "--decisions",
            place,
            "--seed",
            3,
            "--budget",
            1,
        )
        assert json.loads(told.stdout)["budget"] == 1
        assert place.read_text(encoding="utf-8") == '{"id": 1}\n{"id": 2}\n'
    assert figures[-1][1] == {"seed": 3}


def test_push_says_where_it_is_and_which_digest(stand_in: Any) -> None:
    loaded = stand_in("checkpoints.load_checkpoint", "loaded")
    pushed = stand_in("checkpoints.push", SimpleNamespace(location="hub:a/b@1", digest="abc", url="there"))
    result = run("push", "bundled:quality", "a/b", "--license", "mit", "--tag", "x", "--private", "--sha256", "d")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"location": "hub:a/b@1", "sha256": "abc", "url": "there"}
    assert loaded == [(("bundled:quality",), {"sha256": "d"})]
    assert pushed == [(("loaded", "a/b"), {"license": "mit", "tags": ("x",), "private": True})]
    run("push", "bundled:quality", "a/b", "--license", "mit")
    assert pushed[-1][1] == {"license": "mit", "tags": (), "private": False}


def test_demo_says_what_it_made(stand_in: Any, tmp_path: Path) -> None:
    report = CollectReport(3, 4)
    collected = stand_in("demo.collect_demo", report)
    made = SimpleNamespace(comparison="c", checkpoints=[SimpleNamespace(path="there")], report="report.html")
    trained = stand_in("demo.train_demo", made)
    stand_in("eval.report.write.comparison_table", "the table")
    result = run("demo", "--out", tmp_path, "--llm", "m", "--limit", 5, "--batch-size", 2, "--folds", 3, "--seed", 9)
    assert result.exit_code == 0, result.output
    assert collected == [((tmp_path,), {"model": "m", "limit": 5, "batch_size": 2})]
    assert trained == [
        ((tmp_path,), {"collected": report, "folds": 3, "seed": 9, "command": "metaprobe typed"})
    ]  # fmt: skip
    assert (collected.followed, trained.followed) == (["watch"], ["on_step"])
    assert result.stdout == "the table\ncheckpoint  there\nreport      report.html\n"
    assert "collected 3 runs; 4 were stored before" in result.stderr


def test_collect_tells_of_what_failed_was_cut_or_could_not_be_read(stand_in: Any, tmp_path: Path) -> None:
    asked = stand_in("collecting.launch.launch", CollectReport(3, 4))
    result = run("collect", "s", "--task", "t", "--out", tmp_path, "--no-text", "--agent", "a", "--agent", "b")
    assert result.exit_code == 0
    plan, out, _ = asked[0][0]
    assert (plan.system, plan.task, plan.text, plan.agent, out) == ("s", "t", False, ("a", "b"), tmp_path)
    assert "failed" not in result.stderr.partition("collected 3 runs; 4 were stored before\n")[2]
    run("collect", "s", "--task", "t", "--out", tmp_path)
    plain = asked[1][0][0]
    assert (plain.text, plain.agent, plain) == (True, (), type(plain)(system="s", task="t"))
    for count in (1, 10, 11, 13):
        failed = tuple(f"run {n}: reason" for n in range(count))
        asked.answer = CollectReport(3, 4, failed, {"confidence": 5}, {"answer": (2, 9)})
        told = run("collect", "s", "--task", "t", "--out", tmp_path)
        assert (told.exit_code, told.stdout) == (1, "")
        assert told.stderr.count("failed: run") == min(count, 10)
        assert ("... and" in told.stderr) == (count > 10)
        assert count <= 10 or f"... and {count - 10} more; all of them stand in failed.jsonl" in told.stderr
        assert "signal confidence could not be read of 5 calls" in told.stderr
        assert "2 of 9 answers of stage answer were cut: --tokens answer=N" in told.stderr


def test_compare_and_summarize_ask_for_what_is_typed(stand_in: Any, store: Path) -> None:
    compared = stand_in("training.comparison.compare", "comparison")
    stand_in("eval.report.write.comparison_table", "the table")
    for typed, given in (((), {}), ((*ANSWERS, *FOLDS, "--target", "q"), {**SAME, "target": "q"})):
        result = run("compare", store, "--out", store / "r", *typed)
        assert result.exit_code == 0, result.output
        assert result.stdout == f"the table\nreport      {store / 'r' / 'report.html'}\n"
        runs, asked = compared[-1][0]
        assert runs == (store,)
        expected = CompareOptions(out=store / "r", command="metaprobe typed", **given)
        for name in ("out", "command", "target", "stage", "agent", "folds", "seed"):
            assert getattr(asked, name) == getattr(expected, name)
    summed = stand_in("collecting.collection_summary.summarize_stores", [{"runs": 1}])
    assert json.loads(run("summarize", store, store).stdout) == [{"runs": 1}]
    assert summed == [(((store, store),), {})]


def test_a_comparison_says_what_it_found_on_stderr(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(runs: Any, options: CompareOptions) -> str:
        assert options.on_step is not CompareOptions(out=store).on_step
        options.on_line("a line about the data")
        return "comparison"

    monkeypatch.setattr("metaprobe.training.comparison.compare", compare)
    monkeypatch.setattr("metaprobe.eval.report.write.comparison_table", lambda comparison: f"of {comparison}")
    result = run("compare", store, "--out", store / "r")
    assert (result.exit_code, result.stderr) == (0, "a line about the data\n")
    assert result.stdout.startswith("of comparison\n")


def test_score_asks_for_the_digest_and_says_where_there_was_nothing(stand_in: Any, line_file: Path) -> None:
    loaded = stand_in("probes.quality.QualityPredictor.load", "predictor")
    lines = stand_in("probes.score_file.score_lines", [{"score": 0.5, "heads": {}}, {"score": None, "heads": {"a": 1}}])
    result = run("score", "bundled:quality", line_file, "--sha256", "abc", "--on-mismatch", "refuse")
    assert (result.exit_code, result.stderr) == (0, "")
    assert loaded == [(("bundled:quality",), {"sha256": "abc", "run": None, "on_mismatch": "refuse"})]
    assert [json.loads(line) for line in result.stdout.splitlines()] == lines.answer
    lines.answer = [{"score": 0.5, "heads": {}}, {"score": None, "heads": {}}]
    half = run("score", "bundled:quality", line_file)
    assert (half.exit_code, half.stderr) == (0, "scored 1 of 2 lines; the reasons stand in the lines\n")
    assert loaded[-1][1] == {"sha256": None, "run": None, "on_mismatch": "warn"}
    lines.answer = []
    nothing = run("score", "bundled:quality", line_file)
    assert (nothing.exit_code, nothing.stdout) == (1, "")
    assert nothing.stderr == f"{line_file} holds no lines to score\n"
    run("score", "bundled:quality", "-")
    assert lines[-1][0] == ("predictor", Path("/dev/stdin"))


def test_a_server_is_started_as_typed_and_asks_for_keys_unless_told_not_to(stand_in: Any) -> None:
    started = stand_in("serving.http.run_server.serve")
    typed = ("--port", 9, "--host", "h", "--workers", 2, "--on-mismatch", "refuse", "--grace", 5)
    for words in ((), typed, ("--no-auth",)):
        result = run("serve", "bundled:quality", *words)
        assert result.exit_code == 0, result.output
    usual, other, open_to_all = (arguments[0] for arguments, _ in started)
    assert (usual.checkpoint, usual.auth, usual.workers, usual.on_mismatch) == ("bundled:quality", True, 1, "warn")
    assert usual == Settings(checkpoint="bundled:quality")
    assert (other.port, other.host, other.workers, other.on_mismatch, other.grace_s) == (9, "h", 2, "refuse", 5)
    assert other.auth
    assert not open_to_all.auth


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


def test_a_checkpoint_is_loaded_by_its_digest_and_an_unknown_kind_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def loaded(path: Any, *, sha256: str | None) -> Any:
        asked.append((path, sha256))
        return SimpleNamespace(manifest=SimpleNamespace(kind="stages", contract={}))

    monkeypatch.setattr("metaprobe.loading.load_checkpoint", loaded)
    with pytest.raises(CheckpointError, match="'stages'; expected 'quality'"):
        metaprobe.load("there", sha256="abc")
    assert asked == [("there", "abc")]


def test_names_that_are_imported_later_are_all_there_and_another_one_is_named() -> None:
    for name in metaprobe.__all__:
        assert getattr(metaprobe, name) is not None
    assert {*metaprobe.__all__, "__version__"} <= set(dir(metaprobe))
    with pytest.raises(AttributeError, match=r"no attribute 'nosuch'; it has .*QualityPredictor"):
        metaprobe.nosuch  # noqa: B018


def test_an_extraction_says_where_nothing_showed_which_model_answered(stand_in: Any, store: Path) -> None:
    pytest.importorskip("torch")
    from metaprobe.collecting.extract import ExtractReport

    fields = dict.fromkeys(ExtractReport.__dataclass_fields__, 0)
    report = ExtractReport(**fields | {"calls": 5, "disagreement": None})  # type: ignore[arg-type]
    asked = stand_in("collecting.extract.launch_extract", (report, 2))
    unchecked = run("extract", store, "--llm", "m")
    assert unchecked.exit_code == 0, unchecked.output
    assert "not checked: no call holds raw log-probabilities that would show whether m is" in unchecked.stderr
    assert json.loads(unchecked.stdout)["processes"] == 2
    assert asked[0][1]["positions"] is None
    run("extract", store, "--llm", "m", "--position", "answer_last")
    assert asked[-1][1]["positions"] == ("answer_last",)
    assert "not checked" not in run("extract", store, "--llm", "m", "--other-model").stderr
    asked.answer = (ExtractReport(**fields | {"calls": 5, "disagreement": 0.0}), 1)  # type: ignore[arg-type]
    assert "not checked" not in run("extract", store, "--llm", "m").stderr
    asked.answer = (None, 2)  # the first of the processes says it
    assert run("extract", store, "--llm", "m").stdout == ""
