"""`metaprobe inspect RUNS` describes a run store as counted from the store."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from metaprobe.cli import main
from metaprobe.eval.store_description import describe_store
from metaprobe.papers.collecting.collection_summary import summarize_stores
from metaprobe.records.errors import StoreMismatch
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Run, Statement


def run(number: int, *calls: Call, outcome: float | None, variant: str = "", task: str = "sums") -> Run:
    labels = (Label(calls[0].id, "correct", 1.0, "program"),) if number % 2 else ()
    stated = (Statement(calls[0].id, "confidence", 0.5 if number else None),)
    item = Item(f"i{number}", "q", group=f"g{number}", task=task)
    return Run(f"r{number}", "metacrit", variant, item, calls, labels=labels, statements=stated, outcome=outcome)


@pytest.fixture
def lines(tmp_path: Path) -> dict[str, str]:
    """The description's lines of three runs of five calls, by their names."""
    known = np.array([-0.5, -1.0], dtype=np.float32)
    asked = {"model": "m", "stage": "answer", "logprobs": known, "text": "x"}
    bare = {"model": "", "stage": "", "logprobs": None, "text": ""}
    store = RunStore(tmp_path / "runs")
    with store.writer(shard_runs=2) as writer:
        writer.add(run(0, Call(id="a", **asked), Call(id="b", **bare), outcome=1.0))  # type: ignore[arg-type]
        writer.add(run(1, Call(id="c", **asked, agent="ada"), outcome=None, variant="short"))  # type: ignore[arg-type]
        writer.add(run(3, Call(id="d", **asked), Call(id="e", **asked), outcome=0.0, task=""))  # type: ignore[arg-type]
    return {line[:12].strip(): line[12:] for line in describe_store(tmp_path / "runs").splitlines()}


def test_runs_calls_and_what_is_not_there_are_counted(lines: dict[str, str]) -> None:
    assert lines["runs"].startswith("3 in 2 files, ")
    assert lines["systems"] == "metacrit 2, metacrit (short) 1"
    assert lines["tasks"] == "sums 2, (unnamed) 1"
    assert lines["models"] == "m 4, (unnamed) 1"
    assert lines["calls"] == "answer 4, (no stage) 1"
    assert lines["agents"] == "ada 1"
    assert lines["outcomes"] == "known 2, not known 1"
    assert lines["labels"] == "correct by program 2"
    assert lines["stated"] == "confidence 2"
    assert lines["not there"] == "log-probabilities 1, texts 1"


HOSTILE = "m\x1b]0;title\x07\x1b[2J\u202e\rruns   9"


def test_names_from_elsewhere_do_not_command_the_terminal(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.append([run(1, Call(id="a", model=HOSTILE, stage=HOSTILE), outcome=1.0, variant=HOSTILE, task=HOSTILE)])
    shown = describe_store(tmp_path)
    assert [line for line in shown.splitlines() if not line.isprintable()] == []
    assert r"m\x1b]0;title\x07\x1b[2J\x202e\x0druns   9" in shown
    (tmp_path / "bad.jsonl").write_text(json.dumps({"id": HOSTILE, "labels": {HOSTILE: "x"}}))
    result = CliRunner().invoke(
        main, ["import", str(tmp_path / "bad.jsonl"), "--out", str(tmp_path / HOSTILE[:1])], color=True
    )
    assert result.exit_code == 1
    assert "\x1b" not in result.output


@pytest.mark.parametrize("settings", [b"\xff\xfe", b"[" * 100_000, b"[]", b"{"])
def test_damaged_settings_are_named(settings: bytes, tmp_path: Path) -> None:
    RunStore(tmp_path).append([run(1, Call(id="a"), outcome=1.0)])
    (tmp_path / "collection.json").write_bytes(settings)
    assert "collection.json is damaged" in describe_store(tmp_path)
    if settings != b"[]":
        with pytest.raises(StoreMismatch, match=r"collection.json is damaged"):
            summarize_stores([tmp_path])
