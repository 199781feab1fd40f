"""Every option that is typed reaches the function that does the work."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from metaprobe.cli import main
from metaprobe.monitoring.entry import Entry
from metaprobe.monitoring.log import ScoreLog

NOVEMBER = 1_764_460_800.0  # 2025-11-30, midnight in UTC


class Reached(Exception):
    """Ends the command where the work would begin."""


class Listener:
    """Stands in for a function, and keeps what it was given."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        module, _, attribute = name.rpartition(".")
        self.given: tuple[Any, ...] = ()
        self.named: dict[str, Any] = {}
        owner: Any = import_module(module) if not module.endswith("ScoreLog") else ScoreLog
        monkeypatch.setattr(owner, attribute, self)

    def __call__(self, *given: Any, **named: Any) -> None:
        self.given, self.named = given, named
        raise Reached


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    """Runs a command until it calls the named function; returns what that was given, in order and by name."""

    def run(name: str, *words: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
        with monkeypatch.context() as patch:
            listener = Listener(name, patch)
            done = CliRunner().invoke(main, list(map(str, words)))
        assert isinstance(done.exception, Reached), done.output
        return listener.given, listener.named

    return run


@pytest.fixture(autouse=True)
def typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the words that a checkpoint records as its command."""
    monkeypatch.setattr("sys.argv", ["metaprobe", "train", "--seed", "4"])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with ScoreLog.open(tmp_path / "log.sqlite") as opened:
        for number in range(40):
            kept = {"request_id": f"r{number}", "time": 1e9 + number, "model": "m", "checkpoint": "c" * 64}
            opened.write(Entry(**kept, score=number / 40, flagged=number < 9))  # type: ignore[arg-type]
    return tmp_path / "log.sqlite"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "some.jsonl").write_text("{}\n")
    return tmp_path / "some.jsonl"


def test_adapting_and_recalibrating_are_told_the_labels_and_the_seed(
    reach: Any, log: Path, file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "c"
    name = "metaprobe.training.rescale.adapt_quality"
    given, named = reach(name, "adapt", "bundled:quality", file, "--out", out, "--seed", 7)
    assert (given, named["out"], named["seed"]) == (("bundled:quality", (file,)), out, 7)
    name = "metaprobe.monitoring.labelled.labelled_of_log"
    said = ["recalibrate", "bundled:quality", "--log", log, "--out", out, "--model", "m", "--since", "2025-11-30"]
    _, named = reach(name, *said)
    assert (named["model"], named["since"]) == ("m", NOVEMBER)


def test_extraction_is_told_by_whom_what_and_how_much_at_once(reach: Any, runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    said = ["--stage", "s", "--agent", "a", "--batch-size", 5]
    states = ["--layers", "0,8", "--position", "answer_last", "--shard-calls", 9, "--other-model"]
    name = "metaprobe.collecting.extract.launch_extract"
    given, named = reach(name, "extract", runs, "--llm", "m", "--via", "vllm", *states, *said)
    del named["watch"]
    shared = {"stage": "s", "agent": "a", "batch_size": 5}
    of_states = {"layers": "0,8", "positions": ("answer_last",), "shard_calls": 9}
    assert (given, named) == ((runs, "m"), {**shared, **of_states, "other_model": True, "via": "vllm"})
    name = "metaprobe.collecting.reread.launch_reread"
    words = ["extract", runs, "--logprobs", "m", "--out", tmp_path / "o", "--top-logprobs", 4, *said]
    given, named = reach(name, *words)
    del named["watch"]
    assert (given, named) == ((runs, "m", tmp_path / "o"), {**shared, "top_logprobs": 4})


def test_an_import_is_told_its_format_and_what_to_do_with_bad_lines(reach: Any, file: Path, tmp_path: Path) -> None:
    name = "metaprobe.records.import_store.import_file"
    said = ["--from", "openai-batch", "--correct", "exact", "--requests", file, "--skip-bad", "--bad", tmp_path / "b"]
    given, named = reach(name, "import", file, "--out", tmp_path / "o", *said)
    assert (given[0], given[1].path) == (file, tmp_path / "o")
    kept = {key: named[key] for key in ("form", "correct", "requests", "on_error", "bad_lines", "stated")}
    assert kept == {
        "form": "openai-batch",
        "correct": "exact",
        "requests": file,
        "on_error": "skip",
        "bad_lines": tmp_path / "b",
        "stated": None,
    }
    _, named = reach(name, "import", file, "--out", tmp_path / "o", "--stated-only")
    assert (named["form"], named["on_error"], named["stated"].__name__) == ("auto", "stop", "parse_named_confidence")
