"""Figures that recalibrating writes down, against a second calculation of it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from metaprobe.checkpoints import ContractMismatch
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.table import bare_table
from metaprobe.monitoring.labelled import LabelledScores
from metaprobe.probes.base_rates import CONTRACT, SEPARATOR
from metaprobe.records.errors import RecordError
from metaprobe.training import rescale as module
from metaprobe.training.calibration import sigmoid
from metaprobe.training.ladder import Fit, RunRates
from metaprobe.training.rescale import FEWEST, FEWEST_OF_A_KIND


def labelled(n: int, *, models: tuple[str, ...] = ("a", "b"), seed: int = 0) -> LabelledScores:
    """Labels of answers that are right more often than their score says, the second model's most of all."""
    rng = np.random.default_rng(seed)
    model = np.array([models[i % len(models)] for i in range(n)])
    score = rng.uniform(0.1, 0.9, n)
    logit = np.log(score / (1 - score)) + 1.0 + 1.0 * (model == "b")
    right = (rng.random(n) < sigmoid(logit)).astype(float)
    names = np.array([f"g{i // 2}" for i in range(n)])
    return LabelledScores(score, right, np.full(n, np.nan), np.arange(n, dtype=float), model, names)


def predictor(contract: dict[str, Any], *heads: str) -> Any:
    outputs = [SimpleNamespace(name=name) for name in heads]
    return SimpleNamespace(
        checkpoint=SimpleNamespace(path="here", manifest=SimpleNamespace(outputs=outputs, contract=contract))
    )


RUNS = {f"b{SEPARATOR}t{SEPARATOR}d": {"correct": 0.5}}
KNOWN = {CONTRACT: {"between": {"correct": 0.7}, "average": {}, "scale": {}, "runs": RUNS}}


@pytest.mark.parametrize(("n", "wrong", "carried"), [(20, 3, True), (19, 3, False), (20, 2, False)])
def test_twenty_labels_with_three_of_either_kind_are_enough(n: int, wrong: int, carried: bool) -> None:
    assert (FEWEST, FEWEST_OF_A_KIND) == (20, 3)
    labels = replace(labelled(n, models=("a",)), group=np.array([f"g{i}" for i in range(n)]))
    for few in (0.0, 1.0):  # the rarer label
        given = replace(labels, label=np.where(np.arange(n) < wrong, few, 1 - few))
        if carried:
            assert np.isfinite(module.fit_again(predictor({}, "correct"), given).held_out).all()
        else:
            with pytest.raises(RecordError, match=f"{n} labelled answers"):
                module.fit_again(predictor({}, "correct"), given)


def test_a_checkpoint_whose_score_is_no_probability_is_refused() -> None:
    with pytest.raises(ContractMismatch, match="gives no probability as its score"):
        module.fit_again(predictor({}, "difficulty"), labelled(60))


def made(labels: LabelledScores, held_out: np.ndarray, plain: np.ndarray | None = None) -> module.Rescaled:
    fit = Fit(np.array([0.5]), RunRates(0.25, 0.8, {"a": -0.5, "b": 0.5}))
    before = np.log(labels.score / (1 - labels.score))
    stands = np.ones(len(labels), dtype=bool) if plain is None else plain
    table = bare_table(labels.y, labels.group)
    return module.Rescaled("correct", table, labels.model, before, fit, held_out, stands)


def measured(labels: LabelledScores, held_out: np.ndarray, plain: np.ndarray | None = None) -> dict[str, Interval]:
    return module.measure_recalibrated(made(labels, held_out, plain), labels.score, 0)


def test_figures_are_of_the_plain_draw_and_compare_the_new_scores_with_the_old() -> None:
    labels = replace(labelled(60), group=np.array([f"g{i}" for i in range(60)]))
    held_out = np.clip(labels.score + 0.1, 0, 1)
    plain = np.arange(60) >= 20
    found = measured(labels, held_out, plain)
    y, p, before = labels.y[20:], held_out[20:], labels.score[20:]
    gain = np.mean((before - y) ** 2) - np.mean((p - y) ** 2)
    assert set(found) == {"auroc", "brier_skill", "brier_gain_over_before", "mean_score_minus_share_right"}
    assert found["brier_gain_over_before"].estimate == pytest.approx(gain)
    assert found["mean_score_minus_share_right"].estimate == pytest.approx(p.mean() - y.mean())
    pairs = p[y == 1][:, None] - p[y == 0][None, :]
    assert found["auroc"].estimate == pytest.approx(np.mean((pairs > 0) + 0.5 * (pairs == 0)))
    skill = 1 - np.mean((p - y) ** 2) / (y.mean() * (1 - y.mean()))
    assert found["brier_skill"].estimate == pytest.approx(skill)
    assert measured(labels, held_out, np.arange(60) < 9) == {}
    assert "brier_gain_over_before" in measured(labels, held_out, np.arange(60) < 10)
    alike = replace(labels, label=np.ones(60))
    assert set(measured(alike, held_out)) == {"brier_gain_over_before", "mean_score_minus_share_right"}
