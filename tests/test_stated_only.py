"""Answers without log-probabilities: what was stated is compared with what the question tells, and own scores."""

import json
from pathlib import Path

import numpy as np
import pytest

import metaprobe
from metaprobe.eval.report.words import brief
from metaprobe.records.errors import RecordError


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 imported answers; the stated confidence knows something, the file own.csv more."""
    folder = tmp_path_factory.mktemp("stated")
    rng = np.random.default_rng(0)
    lines, scores = [], ["call_id,score"]
    for i in range(240):
        right = int(rng.random() < 0.5)
        answer = {"message": {"role": "assistant", "content": f"answer {i}"}, "finish_reason": "stop"}
        lines.append(
            {
                "id": f"q{i}",
                "messages": [{"role": "user", "content": f"question {i} of {rng.integers(9)}"}],
                "labels": {"correct": right},
                "verbalized_confidence": float(np.clip(0.5 + 0.15 * right + rng.normal(0, 0.2), 0, 1)),
                "response": {"model": "m", "choices": [answer]},
            }
        )
        scores.append(f"q{i},{right + rng.normal(0, 0.5)}")
    (folder / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "own.csv").write_text("\n".join(scores) + "\n")
    report = metaprobe.import_file(folder / "lines.jsonl", metaprobe.RunStore(folder / "runs"))
    assert report.without_logprobs == 240
    return folder


@pytest.mark.slow
def test_stated_confidence_and_a_method_of_ones_own_are_compared(store: Path, tmp_path: Path) -> None:
    found = metaprobe.compare(store / "runs", scores=store / "own.csv", folds=3, out=tmp_path / "out")
    by_name = {method.name: method for method in found.methods}
    assert not {"mean log-probability", "length", "learned on logprobs"} & by_name.keys()
    stated, own = by_name["stated confidence"], by_name["own"]
    assert 0.6 < stated.auroc.estimate < own.auroc.estimate
    assert own.diff_stated is not None
    assert own.diff_stated.low > 0
    assert found.headline == "own"
    assert any("hold no log-probabilities" in note for note in found.notes)
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_stated_confidence_stands_by_itself_too(store: Path, tmp_path: Path) -> None:
    found = metaprobe.compare(store / "runs", folds=3, out=tmp_path / "out")
    assert found.headline == "stated confidence"
    assert not brief(found).learned


def test_nothing_is_trained_on_them(store: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="240 have it but no log-probabilities"):
        metaprobe.train_quality(store / "runs", out=tmp_path / "q")
