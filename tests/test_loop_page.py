"""The most that scores can spare, on the page of the loop, is the estimate's need where they tell so much."""

import numpy as np
import pytest

from metaprobe.llms.weights import DEFAULT_MODEL
from metaprobe.production.monitoring.estimates import estimate_accuracy
from metaprobe.records.store import RunStore
from research.loop.page import ROOT, labels_needed, least_labels, spared

ANSWERS, LABELS = 1500, 200


@pytest.mark.parametrize("sharp", [0.5, 3.0])
def test_an_estimate_needs_the_labels_that_are_said_to_be_the_least(sharp: float) -> None:
    rng = np.random.default_rng(int(10 * sharp))
    widths, squared = np.zeros(2), []
    for _ in range(60):
        score = 1 / (1 + np.exp(-sharp * rng.normal(size=ANSWERS)))
        right = (rng.random(ANSWERS) < score).astype(float)
        asked = rng.random(ANSWERS) < LABELS / ANSWERS
        propensity = np.where(asked, LABELS / ANSWERS, np.nan)
        _, powered, labelled = estimate_accuracy(score, np.where(asked, right, np.nan), propensity)
        widths += powered.width**2, labelled.width**2
        squared.append(np.corrcoef(score, right)[0, 1] ** 2)
    needed = labels_needed(widths[0] / widths[1], LABELS / ANSWERS)
    least = least_labels(float(np.mean(squared)), LABELS / ANSWERS)
    assert needed == pytest.approx(least, abs=0.04)
    assert needed > least_labels(float(np.mean(squared)), 0)


def test_the_best_that_is_possible_stands_beside_what_was_needed() -> None:
    row = {"predictor": "p", "labels": 200, "squared_correlation": 0.45, "coverage": {"powered": 0.95}}
    rows = [{**row, "drawn": way, "squared_width": 0.61} for way in ("uniform", "active")]
    said, _, head, _, cells = spared({"spared": rows, "answers": ANSWERS})
    assert "at best | at best, 1500 answers | labels needed" in head
    assert "| p | 0.45 | 55% | 59% | 59% | 59% |" in cells
    assert "squared correlation of 0.5, or of 0.54 here; the best signal at hand has 0.45" in said


def test_the_quantised_model_was_asked_what_the_model_itself_was_asked() -> None:
    asked = {
        name: {(run.item.id, run.calls[0].messages) for run in RunStore(path) if run.variant == "direct"}
        for name, path in (
            ("itself", ROOT / "recorded" / "breadth" / DEFAULT_MODEL),
            ("quantised", ROOT / "recorded" / "quantised" / f"{DEFAULT_MODEL}-q4_0"),
        )
    }
    assert len(asked["quantised"]) == 1710
    assert asked["quantised"] == asked["itself"]
