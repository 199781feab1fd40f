"""The ladder of models climbs where answers left out pay for it, and nowhere else."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from metaprobe.eval.controls import REVERSED
from metaprobe.eval.metrics.ranked import StratifiedAuroc, auroc
from metaprobe.probes.features import FREE, TERM_NAMES, TERMS, features, schema
from metaprobe.records.errors import RecordError
from metaprobe.training import trees as trees_module
from metaprobe.training.base_rates import FIRST_BETWEEN, INTERCEPT_SD, MIN_BETWEEN, fit_offsets, scales_between
from metaprobe.training.calibrators import fit_platt, sigmoid
from metaprobe.training.folds import final_roles
from metaprobe.training.ladder import ALL_TERMS, DRAWN_TERMS, WITH_TREES, Bar, Ladder, LadderRows, fit_ladder
from metaprobe.training.recipes.train_quality import RunProbability, fit_probability, trees_graph

WIDE = ("first3.std", "first5.std", *TERM_NAMES)
"""Two features for trees beside the terms."""


@pytest.fixture(autouse=True, scope="module")
def _one_size_of_tree() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees_module, "GRID", trees_module.GRID[:1])
        patch.setattr(trees_module, "MAX_ROUNDS", 60)
        yield


class World(LadderRows):
    def fit(self) -> Ladder:
        return fit_ladder(self, final_roles(self.groups.tolist(), self.y))

    def head(self, *, inverted: bool = False) -> RunProbability:
        return fit_probability(self, final_roles(self.groups.tolist(), self.y), inverted=inverted)


def world(
    n: int, weights: dict[str, float], *, seed: int = 0, runs: int = 1, between: float = 0.0, pair: float = 0.0
) -> World:
    """Terms drawn independently; log-odds are their weighted sum, the run's base rate, and `pair` times the lesser of
    two features that no term knows of."""
    rng = np.random.default_rng(seed)
    names = WIDE if pair else TERM_NAMES
    X = rng.normal(size=(n, len(names))).astype(np.float32)
    place = rng.integers(0, runs, n)
    logit = X[:, -len(TERMS) :] @ np.array([weights.get(name, 0.0) for name in TERMS])
    logit += (between * rng.normal(size=runs))[place] + (pair * X[:, :2].min(axis=1) if pair else 0.0)
    y = (rng.uniform(size=n) < sigmoid(logit)).astype(np.int64)
    groups = np.array([f"g{i}" for i in rng.integers(0, n // 2, n)])
    return World(X, y, groups, np.array([f"m{i}|t|v" for i in place]), names)


def test_the_first_free_number_is_kept_where_it_is_all_there_is() -> None:
    made = world(600, {"mean": -1.5, "length": -0.75})
    found = made.fit()
    assert found.reached == "scaled"
    assert not any(step.taken for step in found.steps)
    *others, turned, terms = [step.name for step in found.steps]
    assert (others, terms) == ([name for name in FREE if name != "scaled"], ALL_TERMS)
    assert turned.endswith(REVERSED)
    mean, length = TERMS.index("mean"), TERMS.index("length")
    assert np.flatnonzero(found.weights).tolist() == [mean, length]
    assert found.weights[mean] == pytest.approx(-1.5, abs=0.4)
    assert found.weights[length] == found.weights[mean] / 2
    assert found.trees is None
    scaled = -made.X[:, mean] - made.X[:, length] / 2
    assert found.selection_auroc == pytest.approx(float(auroc(made.y, scaled)), abs=0.03)
    # A score is log-odds, wherever the zero of the terms lies.
    elsewhere = World(made.X + np.float32(3), made.y, made.groups, made.runs, made.names).fit()
    np.testing.assert_allclose(elsewhere.score(made.X + np.float32(3)), found.score(made.X), atol=1e-4)
    assert sigmoid(found.score(made.X)).mean() == pytest.approx(made.y.mean(), abs=0.03)


@pytest.mark.parametrize("name", [name for name in FREE if name != "scaled"])
def test_the_free_number_that_tells_is_taken_and_need_not_pay_for_it(name: str) -> None:
    """A weight of 0.5: with so few answers hardly one step in three would be sure to pay."""
    found = world(400, {name: -0.5}, seed=4).fit()
    assert found.reached == name
    (step,) = (step for step in found.steps if step.taken)
    assert (step.name, step.against) == (name, "scaled")
    assert step.gain == max(step.gain for step in found.steps if step.name in FREE) > 0
    assert np.flatnonzero(found.weights).tolist() == [TERMS.index(name)]


def test_chance_does_not_turn_a_number_round_and_what_is_sure_does() -> None:
    """Faulty arguments have the highest log-probabilities; where labels are drawn by lot the theory's sign is kept."""
    turned = world(600, {"mean": 1.0}).fit()
    assert turned.reached == f"mean{REVERSED}"
    assert turned.weights[TERMS.index("mean")] == pytest.approx(1.0, abs=0.3)
    for seed in range(4):
        made = world(300, {}, seed=seed)
        found = made.fit()
        assert found.reached in FREE
        assert (found.weights <= 0).all()
        assert found.weights.min() < 0, "next to nothing, and still an order"
        assert (np.diff(made.head().learned(made.X)[np.argsort(found.score(made.X))]) >= 0).all()


def scaled_of(made: World) -> NDArray[np.float64]:
    """Returns the scaled total of each answer, higher for answers that are likelier right."""
    return -made.X[:, TERMS.index("mean")].astype(np.float64) - made.X[:, TERMS.index("length")] / 2


def test_few_labels_do_not_choose_and_never_lose_much_to_the_scaled_total() -> None:
    """40 labels keep the order of the scaled total where it tells, and learn the first token where that tells."""
    gains: dict[str, list[float]] = {"scaled": [], "first": []}
    for seed in range(12):
        for name, weights in (("scaled", {"mean": -1.0, "length": -0.5}), ("first", {"first": -1.5})):
            found, new = world(50, weights, seed=seed).fit(), world(2000, weights, seed=100 + seed)
            assert found.reached == DRAWN_TERMS
            assert not found.steps
            assert found.number == ""
            gains[name].append(float(auroc(new.y, found.score(new.X)) - auroc(new.y, scaled_of(new))))
    assert np.mean(gains["scaled"]) > -0.03
    assert np.mean(gains["first"]) > 0.1


def test_few_labels_order_better_than_by_a_choice_among_numbers() -> None:
    weights, gains = {"mean": -1.0, "length": -0.5}, []
    for seed in range(12):
        made, new = world(30, weights, seed=seed), world(2000, weights, seed=100 + seed)
        roles = final_roles(made.groups.tolist(), made.y)
        chosen = fit_ladder(made, roles, bar=Bar(min_rows=0))
        assert chosen.reached != DRAWN_TERMS
        gains.append(float(auroc(new.y, made.fit().score(new.X)) - auroc(new.y, chosen.score(new.X))))
    assert np.mean(gains) > 0.02


def test_from_250_labels_on_steps_are_compared_in_folds_too() -> None:
    made = world(260, {"mean": -1.5, "length": -0.75})
    whole = final_roles(made.groups.tolist(), made.y)
    fewer = replace(whole, train=whole.train[::2], calibration=np.union1d(whole.calibration, whole.train[1::2]))
    assert fit_ladder(made, fewer).reached == "scaled"
    assert world(240, {"mean": -1.5, "length": -0.75}).fit().reached == DRAWN_TERMS
    assert world(260, {"mean": -1.5, "length": -0.75}).fit().reached == "scaled"
    assert world(120, {"mean": -1.5, "length": -0.75}, runs=3).fit().reached != DRAWN_TERMS


def test_all_terms_are_taken_where_several_tell() -> None:
    found = world(900, {"mean": -0.8, "first": -0.8, "halves": 0.8, "length": -0.8}).fit()
    assert found.reached == ALL_TERMS
    expected = [0, -0.8, 0, 0, -0.8, 0.8, -0.8]
    np.testing.assert_allclose(found.weights, expected, atol=0.3)


def test_trees_are_taken_for_what_only_they_find_and_only_from_enough_answers() -> None:
    weights = {"mean": -1.0, "length": -0.5}
    made = world(3000, weights, pair=1.5)
    found = made.fit()
    assert found.reached == WITH_TREES
    assert found.trees is not None
    assert (found.steps[-1].name, found.steps[-1].against, found.steps[-1].taken) == (WITH_TREES, "scaled", True)
    new = world(2000, weights, pair=1.5, seed=1)
    scaled = -new.X[:, -6].astype(np.float64) - new.X[:, -1] / 2
    assert float(auroc(new.y, found.score(new.X))) > float(auroc(new.y, scaled)) + 0.03
    # The trees add to the free number, and do not count it again.
    both = np.column_stack([found.score(new.X), scaled])
    assert fit_offsets(both, new.y, new.runs, sd=10.0).weights[1] == pytest.approx(0.0, abs=0.2)
    few = world(400, weights, pair=1.5).fit()
    assert few.trees is None
    assert WITH_TREES not in {step.name for step in few.steps}


@pytest.mark.slow
def test_noise_takes_no_further_step_in_nine_of_ten_draws() -> None:
    reached = [world(300, {}, seed=seed, runs=2).fit().reached for seed in range(10)]
    assert sum(name in FREE for name in reached) >= 9


def test_what_a_ladder_promises_is_of_answers_that_it_was_not_fitted_on() -> None:
    """Labels are drawn by lot; where a few answers have a run of their own, what was fitted knows its base rate."""
    promised = [world(150, {}, seed=seed, runs=40).fit().selection_auroc for seed in range(2)]
    assert np.mean(promised) < 0.58, "0.48 held out, and 0.68 of the answers that it learned from"


def test_which_run_an_answer_is_of_is_no_evidence_but_counts_in_its_score() -> None:
    """Runs differ in their base rates and in all terms; within a run nothing tells answers apart."""
    rng = np.random.default_rng(0)

    def draw(each: int) -> World:
        place = np.repeat(np.arange(8), each)
        rate = np.linspace(-2.5, 2.5, 8)[place]
        X = (0.5 * rate[:, None] + rng.normal(size=(len(place), len(TERMS)))).astype(np.float32)
        y = (rng.uniform(size=len(place)) < sigmoid(rate)).astype(np.int64)
        return World(X, y, np.arange(len(y)).astype(str), np.array([f"m{i}|t|v" for i in place]), TERM_NAMES)

    made, new = draw(150), draw(1500)
    found = made.fit()
    assert found.reached in FREE
    assert np.abs(found.weights).max() < 0.15
    evidence, of_runs = found.score(new.X), found.score_of(new.X, new.runs)
    assert float(StratifiedAuroc(new.runs)(new.y, evidence)) == pytest.approx(0.5, abs=0.03)
    assert float(auroc(new.y, of_runs)) > 0.8
    assert float(StratifiedAuroc(new.runs)(new.y, of_runs)) == pytest.approx(0.5, abs=0.03)
    np.testing.assert_allclose(found.score_of(new.X, np.full(len(new.y), "stranger")), evidence)
    shifts = made.head().shifts
    assert sorted(shifts, key=shifts.__getitem__) == [f"m{i}|t|v" for i in range(8)]


def learned_of(head: RunProbability, X: np.ndarray, runs: np.ndarray) -> np.ndarray:
    """P(good), (n,), of answers of runs that the head was fitted on."""
    return head.calibrator.probability(head.scorer.score_of(X, runs))


def test_an_inverted_head_turns_its_shifts_round() -> None:
    made = world(600, {"mean": -1.0, "length": -0.5}, runs=4, between=1.5)
    head, turned = made.head(), made.head(inverted=True)
    assert turned.shifts == pytest.approx({run: -shift for run, shift in head.shifts.items()})
    assert turned.between == head.between > 0.3
    np.testing.assert_allclose(turned.value(made.X), 1 - head.value(made.X))
    of_runs = learned_of(head, made.X, made.runs)
    shift = np.array([head.shifts[run] for run in made.runs])
    p = head.value(made.X)
    np.testing.assert_allclose(np.log(of_runs / (1 - of_runs)), np.log(p / (1 - p)) + shift, atol=1e-9)


@pytest.mark.parametrize(("n", "pair"), [(400, 0.0), (1500, 1.5)])
def test_a_graph_gives_what_the_ladder_gives(n: int, pair: float) -> None:
    made = world(n, {"mean": -1.0, "length": -0.5, "halves": 0.7, "first": -0.7}, pair=pair, runs=3, between=1.0)
    head = made.head()
    assert (head.scorer.trees is not None) == bool(pair)
    session = onnxruntime.InferenceSession(trees_graph({"correct": head}, width=len(made.names)))
    (found,) = session.run(None, {"features": made.X})
    assert np.ptp(found) > 0.5
    np.testing.assert_allclose(found[:, 0], head.value(made.X), atol=1e-5)


def test_features_without_the_terms_are_refused() -> None:
    made = world(100, {})
    turned = World(made.X, made.y, made.groups, made.runs, TERM_NAMES[::-1])
    with pytest.raises(RecordError, match=r"the last features are terms\.length, .*; expected terms\.lowest3, "):
        turned.fit()


def small(seed: int) -> tuple[World, World]:
    """A few answers of one to three runs, and 600 new ones: how surprised a wrong answer is, and where, differs."""
    rng = np.random.default_rng(seed)
    n, runs = int(rng.integers(60, 401)), int(rng.integers(1, 4))
    whole, spikes, rate = rng.uniform(0, 0.5), rng.uniform(0, 3), rng.normal(size=runs)

    def draw(n: int) -> World:
        place = rng.integers(0, runs, n)
        y = (rng.uniform(size=n) < sigmoid(rate[place])).astype(np.int64)
        series = []
        for wrong in 1 - y:
            x = rng.exponential(0.4 * np.exp(whole * wrong + 0.3 * rng.normal()), int(rng.integers(10, 80)))
            x[rng.integers(0, len(x), rng.poisson(1 + spikes * wrong))] += rng.exponential(2)
            series.append(-x.astype(np.float32))
        names = np.array([f"m{i}|t|v" for i in place])
        groups = np.array([f"g{i // 2}" for i in range(n)])
        return World(features(schema("terms"), series), y, groups, names, TERM_NAMES)

    return draw(n), draw(600)


@pytest.mark.slow
def test_what_is_exported_never_loses_to_the_mean_or_the_minimum_by_more_than_noise() -> None:
    """Log loss on new answers; the free numbers are calibrated on every answer, the ladder as it is exported."""
    lost: dict[str, list[float]] = {"mean": [], "min": []}
    for seed in range(10):
        known, new = small(seed)
        ours = learned_of(known.head(), new.X, new.runs)
        for name, losses in lost.items():
            column = TERMS.index(name)
            platt = fit_platt(-known.X[:, column].astype(np.float64), known.y)
            theirs = platt.probability(-new.X[:, column].astype(np.float64))
            losses.append(float(np.mean(loss(new.y, ours) - loss(new.y, theirs))))
    for name, losses in lost.items():
        assert np.mean(losses) <= 2 * np.std(losses) / np.sqrt(len(losses)), (name, losses)


def loss(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    return -np.log(np.where(y == 1, p, 1 - p))


# Base rates of runs beside the weights of the evidence: what was planted is found, and few answers stay modest.


WEIGHTS = np.array([1.0, -0.5])


def planted(runs: int, each: int, *, between: float, scales: float = 0.0, seed: int = 0):
    """Evidence (n, 2), labels, the run of each answer, and the runs' true offsets; each run has a scale of its own."""
    rng = np.random.default_rng(seed)
    offsets, scale = between * rng.normal(size=runs), 1 + scales * rng.normal(size=runs)
    place = np.repeat(np.arange(runs), each)
    Z = rng.normal(size=(len(place), 2))
    logit = 0.3 + offsets[place] + scale[place] * (Z @ WEIGHTS)
    y = (rng.uniform(size=len(place)) < sigmoid(logit)).astype(np.int64)
    return Z, y, np.char.add("run", np.char.zfill(place.astype(str), 3)), offsets


@pytest.mark.parametrize(("runs", "each"), [(60, 200), (150, 15)])
def test_the_spread_of_base_rates_is_recovered_from_runs_of_many_answers_and_of_few(runs: int, each: int) -> None:
    Z, y, names, _ = planted(runs, each, between=0.8)
    assert fit_offsets(Z, y, names).rates.between == pytest.approx(0.8, abs=0.2)


def test_planted_weights_and_base_rates_are_recovered() -> None:
    Z, y, runs, offsets = planted(60, 200, between=0.8)
    fit = fit_offsets(Z, y, runs)
    np.testing.assert_allclose(fit.weights, WEIGHTS, atol=0.07)
    found = np.array([fit.rates.runs[name] for name in sorted(fit.rates.runs)])
    true = offsets + 0.3
    assert np.abs(fit.rates.mean + found - true).max() < 0.55  # three standard errors of a run's rate
    assert np.corrcoef(found, offsets)[0, 1] > 0.95
    # Evidence that differs between runs is not taken for what tells their answers apart.
    place = np.unique(runs, return_inverse=True)[1]
    shifted = Z + np.array([1.0, 0.0]) * (3 * offsets[place])[:, None]
    np.testing.assert_allclose(fit_offsets(shifted, y, runs).weights, WEIGHTS, atol=0.12)


@pytest.mark.parametrize("seed", range(12))
def test_the_spread_of_base_rates_is_where_another_round_would_leave_it(seed: int) -> None:
    """Runs that hardly differ are hard for plain EM, which is far from its end after a hundred rounds; runs of a few
    answers, many with one label only, are hard for extrapolation, whose jumps the weights must first follow."""
    Z, y, names, _ = planted(4, 40, between=0.1, seed=seed)
    few, rng = np.arange(40) // 2, np.random.default_rng(seed)
    one_label = np.where(few % 2, few % 4 == 1, rng.random(40) < 0.5).astype(np.int64)
    check_at_end(Z, y, names)
    check_at_end(rng.normal(size=(40, 2)), one_label, few.astype(np.str_))


def check_at_end(Z: np.ndarray, y: np.ndarray, names: np.ndarray) -> None:
    fit = fit_offsets(Z, y, names)
    rates, place = fit.rates, np.unique(names, return_inverse=True)[1]
    p = sigmoid(rates.of(names) + Z @ fit.weights)
    own = np.bincount(place, p * (1 - p)) + rates.between**-2
    round_more = np.sqrt(np.mean(np.array([rates.runs[name] for name in np.unique(names)]) ** 2 + 1 / own))
    assert rates.between == pytest.approx(max(round_more, MIN_BETWEEN), rel=1e-6)


@pytest.mark.parametrize("sd", [0.3, 1.0])
def test_of_one_run_it_is_the_logistic_regression_of_scikit_learn_with_the_same_prior(sd: float) -> None:
    Z, y, _, _ = planted(1, 300, between=0.0)
    fit = fit_offsets(Z, y, np.full(300, "one"), sd=sd)
    X = np.column_stack([sd * Z, np.full(300, INTERCEPT_SD)])  # so that each weight has a prior of N(0, 1)
    theirs = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(fit.weights, sd * theirs.coef_[0, :2], atol=1e-5)
    assert fit.rates.mean == pytest.approx(INTERCEPT_SD * theirs.coef_[0, 2], abs=1e-5)
    assert fit.rates.runs == {}
    assert fit.rates.between == FIRST_BETWEEN  # nothing shows it


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_still_has_a_finite_fit(label: int) -> None:
    rng = np.random.default_rng(0)
    Z, runs = rng.normal(size=(40, 2)), np.repeat(["a", "b"], 20)
    for names in (runs, np.full(40, "a")):
        fit = fit_offsets(Z, np.full(40, label), names)
        assert np.isfinite(fit.weights).all()
        p = sigmoid(Z @ fit.weights + fit.rates.of(names))
        assert np.isfinite(p).all()
        assert (np.abs(p - label) < 0.3).all()


def test_a_run_of_few_answers_stays_near_the_others_and_an_unknown_one_is_the_mean() -> None:
    Z, y, runs, _ = planted(20, 100, between=0.5)
    rng = np.random.default_rng(1)
    few, many = np.full(3, "few"), np.full(300, "many")
    Z = np.vstack([Z, rng.normal(size=(303, 2))])
    y, runs = np.concatenate([y, np.ones(303, dtype=np.int64)]), np.concatenate([runs, few, many])
    rates = fit_offsets(Z, y, runs).rates
    assert 0 < rates.runs["few"] < 0.5 * rates.runs["many"]
    found = rates.of(np.array(["few", "nobody", "many"]))
    np.testing.assert_allclose(found - rates.mean, [rates.runs["few"], 0.0, rates.runs["many"]])


@pytest.mark.parametrize(
    ("scales", "each", "low", "high"), [(0.4, 300, 0.25, 0.55), (0.4, 80, 0.2, 0.6), (0.0, 80, MIN_BETWEEN, 0.2)]
)
def test_how_much_scales_of_runs_differ_is_recovered(scales: float, each: int, low: float, high: float) -> None:
    """The error of a scale that few answers show is not a difference between runs."""
    Z, y, runs, _ = planted(40, each, between=0.7, scales=scales, seed=2)
    assert low <= scales_between(Z @ WEIGHTS, y, runs) <= high
