"""Figures that training writes, against what can be worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import made_up

from metaprobe.checkpoints.manifest import Generator
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.monitoring.labelled import LabelledScores
from metaprobe.training import rescale as module
from metaprobe.training.audit import audit_method
from metaprobe.training.calibration import choose_calibrator, fit_isotonic, fit_platt
from metaprobe.training.controls import make_tfidf
from metaprobe.training.folds import final_roles
from metaprobe.training.methods import GivenScore
from metaprobe.training.study import crossfit, standard_methods
from metaprobe.training.thresholds import RATES, flag_points


def test_flagging_so_many_catches_the_share_that_lies_below_their_score() -> None:
    table = replace(made_up(200), states=None).table
    y = np.repeat([0, 1], 100)
    scores = np.concatenate((np.linspace(0.0, 0.6, 100), np.linspace(0.4, 1.0, 100)))
    points = flag_points(replace(table, y=y), scores, scores[:50] + 1.0)
    assert [point.rate for point in points] == list(RATES)
    half = points[9]
    below = scores < np.sort(scores)[100]
    assert (half.caught.estimate, half.caught.n) == (below[:100].mean(), 100)
    assert (half.cost.estimate, half.cost.n) == (below[100:].mean(), 100)
    assert half.caught.low < half.caught.estimate < half.caught.high
    assert 1.0 <= half.threshold <= 1.31  # of the exported scores, not of the held-out ones


def test_words_of_a_question_count_by_the_logarithm_and_only_where_two_questions_hold_them() -> None:
    found = make_tfidf()
    rows = found.fit_transform(["a a a b", "a b", "b c"]).toarray()
    names = found.get_feature_names_out().tolist()
    assert names == ["a", "a b", "b"]
    weights = dict(zip(names, rows[0], strict=True))
    rarity = {name: 1 + np.log(4 / (1 + n)) for name, n in (("a", 2), ("b", 3))}
    assert weights["a"] / weights["b"] == pytest.approx((1 + np.log(3)) * rarity["a"] / rarity["b"])


def test_an_unknown_number_counts_as_the_median_where_it_is_chosen_and_stays_unknown() -> None:
    evidence = replace(made_up(400), states=None)
    roles = final_roles(evidence.table.groups.tolist(), evidence.table.y)
    values = np.array([float(series.mean()) for series in evidence.table.logprobs])
    values[roles.selection[:5]] = np.nan
    fitted = GivenScore("mean", "plain", lambda table: values).fit(evidence, roles, seed=0)
    known = np.where(np.isfinite(values), values, np.nanmedian(values))
    at = roles.selection
    assert fitted.selection_auroc == pytest.approx(float(auroc(evidence.table.y[at], known[at])))
    assert fitted.selection_auroc > 0.6
    assert np.isnan(fitted.score(at[:5])).all()
    nothing = GivenScore("none", "plain", lambda table: np.full(400, np.nan)).fit(evidence, roles, seed=0)
    assert nothing.selection_auroc == 0.5


def test_two_steps_that_are_too_steep_for_a_float_are_one() -> None:
    score = np.array([0.0] * 30 + [1e-7] * 30 + [-5.0] * 5 + [5.0] * 5)
    y = np.array([0] * 30 + [1] * 30 + [0] * 5 + [1] * 5)
    found = fit_isotonic(score, y)
    assert np.ptp(found.probability(np.array([0.0, 1e-7]))) * score.std() / 1e-7 <= 2.0 + 1e-6
    assert found.probability(np.array([5.0])) > 0.7
    only = fit_isotonic(np.array([0.0] * 40 + [1e-9] * 40 + [100.0]), np.array([0] * 40 + [1] * 41))
    assert np.ptp(only.probability(np.array([0.0, 1e-9]))) < 1e-3


def test_calibrators_are_compared_on_groups_that_they_were_not_fitted_on() -> None:
    rng = np.random.default_rng(0)
    score = rng.normal(size=300)
    y = (rng.random(300) < 1 / (1 + np.exp(-2 * score))).astype(np.int64)
    groups = [f"g{i % 60}" for i in range(300)]
    chosen = choose_calibrator(score, y, groups, candidates=("platt", "beta"))
    platt, beta = chosen.compared
    logit = fit_platt(score, y).logit(score)
    resubstituted = float(np.logaddexp(0, np.where(y == 1, -logit, logit)).mean())
    assert resubstituted < platt.loss < resubstituted + 0.02
    assert min(platt.se, beta.se) == 0.0  # that of the best
    alone = choose_calibrator(score, y, np.where(y == 1, "one", groups).tolist(), candidates=("platt", "beta"))
    assert alone.compared == ()  # right answers in a single group: there is no other to judge on


def test_a_probes_audits_refit_it_on_tossed_labels_and_on_noise() -> None:
    evidence = made_up(400)
    methods = standard_methods(evidence)
    probe = next(method for method in methods if method.name.startswith("hidden probe"))
    fits = crossfit(evidence, [probe, *[m for m in methods if m.family == "plain"]], folds=2)
    names = {finding.name for finding in audit_method(evidence, fits, probe).audits}
    assert {"shuffled labels are at chance", "random features are at chance"} <= names


def scored(models: list[str]) -> LabelledScores:
    n = len(models)
    half = np.full(n, 0.5)
    return LabelledScores(half, half, half, half, np.array(models), np.array([f"g{i}" for i in range(n)]))


def test_a_recalibrated_checkpoint_is_of_the_models_whose_answers_were_labelled() -> None:
    before = Generator("b", revision="r", logprobs_mode="raw", others=("a",))
    assert module._generator(before, scored(["", ""])) == before
    assert module._generator(before, scored(["a", "b", "a"])) == before
    found = module._generator(before, scored(["c", "a", "b"]))
    assert found == Generator("a", logprobs_mode="raw", others=("b", "c"))
    assert module._generator(None, scored(["c", ""])) == Generator("c", logprobs_mode="unknown")
