"""How steps of the ladder and candidates of trees are compared, against numbers worked out by hand."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

from metaprobe.probes.terms import FREE, SCALED, TERMS
from metaprobe.training import ladder, trees
from metaprobe.training.calibration import sigmoid
from metaprobe.training.trees import Grown


def climb(n: int = 40, *, runs: int = 2) -> Any:
    """On groups of two answers each, with no terms to tell."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    groups = np.array([f"g{i // 2:02d}" for i in range(n)])
    names = np.array([f"r{i % 4 // (4 // runs)}" for i in range(n)])
    return ladder._Climb(rng.normal(size=(n, len(TERMS))), y, groups, names, np.arange(n), 0)


def test_a_gain_is_the_mean_difference_of_log_losses_and_its_error_is_clustered_by_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    losses = {"new": np.array([0.1, 0.3, 0.2, 0.4, 0.5, 0.3]), "old": np.array([0.4, 0.6, 0.1, 0.5, 0.5, 0.6])}
    steps = climb()
    monkeypatch.setattr(ladder._Climb, "_losses", lambda self, scores, rows: losses["new" if scores[0] else "old"])
    gain, se, clusters = steps._compare(np.ones(6), np.zeros(6), np.arange(6))
    each = np.array([0.3, 0.3, -0.1, 0.1, 0.0, 0.3])
    sums = np.array([0.6, 0.0, 0.3]) - 2 * each.mean()  # groups 0, 1 and 2
    assert (gain, clusters) == (pytest.approx(0.15), 3)
    assert se == pytest.approx(np.sqrt(3 / 2 * (sums**2).sum()) / 6)


@pytest.mark.parametrize(("gain", "clusters", "taken"), [(0.99, 10, False), (1.01, 10, True), (100.0, 1, False)])
def test_a_step_is_taken_where_its_gain_is_above_what_chance_gives_once_in_a_hundred(
    gain: float, clusters: int, taken: bool
) -> None:
    steps = climb()
    least = 0.02 * float(student.ppf(0.99, max(clusters - 1, 1)))
    steps._note(ladder.ALL_TERMS, gain * least, 0.02, clusters)
    [step] = steps.steps
    assert (step.name, step.against, step.gain, step.se) == (ladder.ALL_TERMS, SCALED, gain * least, 0.02)
    assert step.taken == taken
    assert steps.reached == (ladder.ALL_TERMS if taken else SCALED)
    assert steps.columns.shape == ((7, 7) if taken else (7, 1))
    steps._note(ladder.WITH_TREES, 1.0, 0.01, 10)  # trees stand on the linear part: it stays
    assert steps.reached == ladder.WITH_TREES
    assert steps.columns.shape == ((7, 7) if taken else (7, 1))


def test_a_step_without_any_gain_is_not_taken() -> None:
    steps = climb()
    steps._note(ladder.ALL_TERMS, 0.0, 0.0, 10)
    assert not steps.steps[0].taken


def test_losses_do_not_count_which_run_an_answer_is_of() -> None:
    steps = climb()
    scores = np.where(steps._y == 1, 1.0, -1.0)
    plain = steps._losses(scores, np.arange(40))
    assert plain == pytest.approx(np.log1p(np.exp(-1.0)), abs=1e-3)
    moved = steps._losses(scores + 3.0 * steps._runs, np.arange(40))  # one run's scores all lie higher
    assert moved.mean() == pytest.approx(plain.mean(), abs=0.05)
    assert steps._losses(-scores, np.arange(40)) == pytest.approx(np.log1p(np.exp(1.0)), abs=1e-3)


def test_a_single_number_is_made_of_its_terms_and_all_terms_stand_for_themselves() -> None:
    assert ladder._columns(ladder.ALL_TERMS).tolist() == np.eye(7).tolist()
    for name, made_of in FREE.items():
        assert dict(zip(TERMS, ladder._columns(name)[:, 0].tolist(), strict=True)) == {
            term: made_of.get(term, 0.0) for term in TERMS
        }


def test_planted_weights_are_found_in_the_units_of_the_terms() -> None:
    rng = np.random.default_rng(1)
    n = 20_000
    terms = rng.normal(size=(n, 7)) * np.array([0.1, 1, 10, 1, 1, 1, 1]) + 2.0
    terms[:, 6] = 5.0  # always the same: no weight, and nothing is divided by its spread of 0
    logit = 4.0 * (terms[:, 0] - 2.0) - 0.1 * (terms[:, 2] - 2.0) + 0.5
    y = (rng.random(n) < sigmoid(logit)).astype(np.int64)
    found = ladder._fit_columns(terms, y, np.full(n, "r"), np.arange(n), np.eye(7))
    assert found.weights[[0, 2]] == pytest.approx([4.0, -0.1], rel=0.15)
    assert found.weights[[1, 3, 4, 5]] == pytest.approx(0.0, abs=0.06)
    assert found.score(terms) == pytest.approx(logit, abs=0.35)
    one = ladder._fit_columns(terms, y, np.full(n, "r"), np.arange(n), np.eye(7)[:, :1])
    assert one.weights[1:].tolist() == [0.0] * 6
    # What the other term adds is noise to this one, of deviation 1: it flattens the curve.
    assert one.weights[0] == pytest.approx(4.0 / np.sqrt(1 + (1 / 1.7) ** 2), rel=0.1)


def grown(scores: list[float]) -> Grown:
    return Grown({}, 1, np.array(scores))


def test_weights_of_classes_are_tried_where_one_is_twice_as_common() -> None:
    def tried(*y: int) -> list[dict[str, Any]]:
        return list(trees._refinements(np.array(y), ["other"]))

    assert tried(1, 1, 0, 0, 0, 0) == [{"scale_pos_weight": 2.0}]
    assert tried(1, 1, 1, 0) == [{"scale_pos_weight": pytest.approx(1 / 3)}]
    assert tried(1, 1, 0, 0, 0) == []
    assert tried(1, 1, 1) == tried(0, 0, 0) == list(trees._refinements(None, ["other"])) == []


def test_statistics_of_log_probabilities_may_only_rise_and_terms_of_surprise_only_fall() -> None:
    names = ["all.mean", "first5.median", "last5.min", "all.max", "terms.mean", "terms.lowest3", "terms.min", "terms.n"]
    assert trees._signs(names) == [1, 1, 1, 0, -1, -1, -1, 0]
    assert list(trees._refinements(None, names)) == [{"monotone_constraints": [1, 1, 1, 0, -1, -1, -1, 0]}]


def test_candidates_are_judged_by_order_by_closeness_and_by_loss_after_platt_s_map() -> None:
    y = np.array([0, 1, 0, 1])
    assert trees._auroc(y, grown([0.0, 2.0, 1.0, 0.5])) == 0.75
    assert trees._auroc(np.ones(4, dtype=np.int64), grown([0.0, 2.0, 1.0, 0.5])) == 0.0
    assert trees._closeness(np.array([1.0, 3.0]), grown([2.0, 5.0])) == -2.5
    assert trees._loss(np.ones(4, dtype=np.int64), grown([0.0, 2.0, 1.0, 0.5])) == 0.0
    rng = np.random.default_rng(0)
    logit = rng.normal(size=5000)
    labels = (rng.random(5000) < sigmoid(logit)).astype(np.int64)
    entropy = np.logaddexp(0, np.where(labels == 1, -logit, logit)).mean()
    # Platt's map takes back any shift and scale.
    assert trees._loss(labels, Grown({}, 1, 3 * logit - 2)) == pytest.approx(entropy, abs=2e-3)
    assert trees._loss(labels, Grown({}, 1, np.zeros(5000))) == pytest.approx(np.log(2), abs=2e-3)


def test_thresholds_are_rounded_to_the_float32_below() -> None:
    values = np.array([0.1, -0.1, 1.0, 1.0 + 1e-12, 1.0 - 1e-12])
    found = trees.round_down(values)
    assert found.dtype == np.float32
    assert (found <= values).all()
    assert (np.nextafter(found, np.float32(np.inf)) > values).all()
    assert trees.safe(["p10%.mean", "plain"]) == ["p10pct.mean", "plain"]
