"""The summary of a collection is plain JSON, and its numbers are those of the runs."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from metaprobe.cli import main
from metaprobe.papers.collecting.collection_summary import summarize_runs, summarize_stores
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "store", sorted({str(path.parent.relative_to(RECORDED)) for path in RECORDED.rglob("*.parquet")})
)
def test_every_recorded_store_can_be_summarised(store: str) -> None:
    found = summarize_runs(RunStore(RECORDED / store), resamples=20)
    assert json.loads(json.dumps(found))


def test_a_store_is_summed_up_beside_what_it_was_collected_with(tmp_path: Path) -> None:
    found = summarize_stores([RECORDED / "creak-metacrit", RECORDED / "gsm8k-mgv"], resamples=5)
    assert list(dict.fromkeys(summary["store"] for summary in found)) == [
        str(RECORDED / name) for name in ("creak-metacrit", "gsm8k-mgv")
    ]
    for summary in found:
        settings = json.loads((Path(summary["store"]) / "collection.json").read_text(encoding="utf-8"))
        assert [summary[name] for name in ("model", "policy", "signals")] == [
            settings[name] for name in ("model", "policy", "signals")
        ]
        assert summary["task set"] == settings["task"]
    own = {"metacrit": {"agreement", "failure types"}, "monitor-generate-verify": {"cycles"}}
    for summary in found:
        assert own[summary["system"]] <= summary.keys()
    bare = tmp_path / "bare"
    bare.mkdir()
    for shard in (RECORDED / "creak-metacrit").glob("*.parquet"):
        (bare / shard.name).write_bytes(shard.read_bytes())
    assert not {"task set", "model", "policy", "signals"} & summarize_stores([bare], resamples=5)[0].keys()


def intervals(found: Any, section: str = "") -> set[tuple[str, float, float]]:
    """Every interval that is wider than a point, with the section of the summary in which it stands."""
    if isinstance(found, list):
        return {one for part in found for one in intervals(part, section)}
    if not isinstance(found, dict):
        return set()
    if {"low", "high"} <= found.keys():
        return {(section, found["low"], found["high"])} if found["low"] != found["high"] else set()
    return {one for name, part in found.items() for one in intervals(part, section or name)}


STORES = ["creak-metacrit", "gsm8k-mgv", "metacog-every-agent", "essays-caelf-rated", "asap-debate-scaffold"]


@pytest.mark.parametrize("store", STORES)
def test_intervals_of_every_section_of_a_summary_follow_its_resamples_and_seed(store: str) -> None:
    runs = list(islice(RunStore(RECORDED / store).runs(hidden=False), 40))
    first = intervals(summarize_runs(runs, resamples=11))
    assert first == intervals(summarize_runs(runs, resamples=11, seed=0))
    # A task's own scores have resamples of their own.
    sections = {section for section, *_ in first} - {"task"}
    assert {"cost", "accuracy by stage"} & sections
    for resamples, seed in ((11, 1), (12, 0)):
        others = intervals(summarize_runs(runs, resamples=resamples, seed=seed))
        assert {section for section, *_ in first - others} >= sections


@pytest.mark.slow
def test_all_recorded_stores_read_and_have_log_probabilities() -> None:
    folder = Path(__file__).parent.parent / "recorded"
    stores = [path for path in folder.iterdir() if path.is_dir() and any(path.glob("*.parquet"))]
    assert stores
    for store in stores:
        runs = list(RunStore(store))
        assert runs
        assert all(call.logprobs is not None for run in runs for call in run.calls)
