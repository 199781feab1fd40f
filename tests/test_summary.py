"""The summary of a collection is plain JSON, and its figures are those of the runs."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from metaprobe.cli import main
from metaprobe.collecting.summary import summarize
from metaprobe.eval.plain import plain
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore

RECORDED = Path(__file__).parent.parent / "recorded"


def test_the_command_prints_each_variant_with_its_own_accuracy(recorded_runs: Path) -> None:
    result = CliRunner().invoke(main, ["summarize", str(recorded_runs)])
    assert result.exit_code == 0, result.output
    found = {summary["variant"]: summary for summary in json.loads(result.output)}
    runs = list(RunStore(recorded_runs))
    for variant in ("direct", "step-by-step"):
        outcomes = [run.outcome for run in runs if run.variant == variant]
        final = found[variant]["accuracy by stage"]["final"]
        assert found[variant]["runs"] == len(outcomes)
        assert final["estimate"] == pytest.approx(np.mean(outcomes))
        assert final["low"] < final["estimate"] < final["high"]


@pytest.mark.parametrize("store", sorted(path.name for path in RECORDED.iterdir() if path.is_dir()))
def test_every_recorded_store_can_be_summarised(store: str) -> None:
    found = summarize(RunStore(RECORDED / store), resamples=20)
    assert json.loads(json.dumps(found))


def test_no_runs_are_an_error() -> None:
    with pytest.raises(RecordError, match="no runs"):
        summarize([])


@dataclass
class Pair:
    a: object
    b: object


def test_what_json_does_not_know_is_made_plain() -> None:
    value = Pair({("x", "y"): np.float64(0.5)}, (np.array([1, 2]), float("nan"), None, True))
    made = plain(value)
    assert made == {"a": {"x -> y": 0.5}, "b": [[1, 2], None, None, True]}
    json.dumps(made, allow_nan=False)


def test_all_recorded_stores_read_and_are_small() -> None:
    folder = Path(__file__).parent.parent / "recorded"
    stores = [path for path in folder.iterdir() if path.is_dir() and any(path.glob("*.parquet"))]
    assert stores
    for store in stores:
        runs = list(RunStore(store))
        assert runs
        assert all(call.logprobs is not None for run in runs for call in run.calls)
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 20e6
