"""Audits of a trained score: controls, chance, recipes that learn from nothing, other domains, all in one call.

A verdict is that of the interval's bound, not of the estimate: what may be chance is neither praised nor blamed.
"""

import dataclasses

import numpy as np
import pytest
from audited_data import N, folds, questions
from conftest import made_up
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from metaprobe.eval.audits import (
    AuditInputs,
    LeftOutDomains,
    above_chance,
    beats_controls,
    domains_of,
    holds_elsewhere,
    judge_left_out,
    layers_tried,
    permute_by_group,
    random_features,
    run_audits,
    shuffled_labels,
)
from metaprobe.eval.controls import free_controls
from metaprobe.eval.metrics.bootstrap import (
    ControlComparison,
    ControlDifference,
    Interval,
    against_controls,
    cluster_weights,
    interval,
)
from metaprobe.eval.metrics.ranked import auroc


def out_of_fold(X, y, groups, k=3):
    """The difference of class means as a score, fitted in folds by group: an honest recipe."""
    scores = np.empty(len(y))
    for split in folds(groups, k):
        learn = np.concatenate([split["train"], split["selection"]])
        direction = X[learn][y[learn] == 1].mean(axis=0) - X[learn][y[learn] == 0].mean(axis=0)
        scores[split["test"]] = (X[split["test"]] - X[learn].mean(axis=0)) @ direction
    return scores


def planted(n=N, width=40, signal=1.0, seed=0):
    """Features of which the first knows y; two answers a group, which share half of what they are."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(rng.normal(size=n // 2), 2) + rng.normal(size=n)
    X = rng.normal(size=(n, width))
    X[:, 0] += signal * truth
    return X, (truth > 0).astype(np.int64), np.array([f"g{i // 2}" for i in range(n)])


def test_a_planted_length_confound_is_found_whichever_way_it_points():
    table = made_up(400).table
    weights = cluster_weights(table.groups.tolist(), 300)
    rng = np.random.default_rng(0)

    def audits(score, table):
        lengths = {name: values for name, values in free_controls(table).items() if name.startswith("length")}
        return beats_controls(against_controls(table.y, score, lengths, weights), name="probe")

    honest = table.y + rng.normal(size=len(table))
    assert all(a.passed for a in audits(honest, table))
    for sign, name in ((1, "length, reversed"), (-1, "length")):
        tokens = (50 + sign * 20 * table.y + rng.integers(0, 20, len(table))).astype(np.int64)
        by_tokens, *others = audits(sign * tokens + rng.normal(size=400), dataclasses.replace(table, tokens=tokens))
        # A number explained by how the answers were collected is no number of the probe.
        assert (by_tokens.name, by_tokens.passed, by_tokens.severity) == (f"probe beats {name}", False, "invalid")
        assert all(audit.passed for audit in others)


def test_a_score_that_the_mean_log_probability_beats_is_marked_and_the_mean_is_named():
    """A control of the answers themselves: the numbers are true, but a free number does as well."""
    table = made_up(400).table
    mean = free_controls(table)["mean log-probability"]
    score = mean + 2 * np.std(mean) * np.random.default_rng(0).normal(size=400)
    report = run_audits(AuditInputs(name="probe", table=table, score=score, controls=free_controls(table)))
    lost = next(a for a in report.audits if a.name == "probe beats mean log-probability")
    assert (lost.passed, lost.severity) == (False, "weak")
    assert "; the strongest control" in lost.detail
    assert report.controls.strongest.name == "mean log-probability"
    assert sum("the strongest control" in a.detail for a in report.audits) == 1


def test_a_score_whose_gain_is_the_sign_of_the_mean_alone_is_marked():
    """Faulty arguments may be the surest ones: turned round, the mean that everybody has ranks as well."""
    table = made_up(400).table
    faulty = dataclasses.replace(table, y=1 - table.y)
    mean = free_controls(table)["mean log-probability"]
    np.testing.assert_array_equal(free_controls(faulty)["mean log-probability, reversed"], -mean)
    score = -mean + 2 * np.std(mean) * np.random.default_rng(0).normal(size=400)
    report = run_audits(AuditInputs(name="probe", table=faulty, score=score, controls=free_controls(faulty)))
    lost = next(a for a in report.audits if a.name == "probe beats mean log-probability, reversed")
    assert (lost.passed, lost.severity) == (False, "weak")


def test_what_is_good_pooled_over_runs_must_beat_its_controls_within_them_too():
    """Two ways of asking, of which one is easy: a score that knows the way and the mean beats the mean, but pooled."""
    table = made_up(800).table
    rng = np.random.default_rng(0)
    easy = rng.integers(0, 2, 800)
    y = np.where(rng.uniform(size=800) < 0.6, easy, table.y)
    table = dataclasses.replace(table, y=y, variants=np.array(["hard", "easy"])[easy])
    mean = free_controls(table)["mean log-probability"]
    within = "probe beats every control within runs"
    found = {}
    for what, score in (("run", mean + easy), ("answer", mean + easy + 0.8 * y + 0.4 * rng.normal(size=800))):
        inputs = AuditInputs(name="probe", table=table, score=score, controls=free_controls(table))
        found[what] = {a.name: a for a in run_audits(inputs).audits}
    assert found["run"]["probe beats mean log-probability"].passed
    assert (found["run"][within].passed, found["run"][within].severity) == (False, "weak")
    assert "of the strongest control there, mean log-probability" in found["run"][within].detail
    assert found["answer"][within].passed


def test_a_score_that_knows_nothing_is_invalid_and_an_undecided_one_weak():
    rng = np.random.default_rng(0)
    for n, severity in ((20_000, "invalid"), (60, "weak")):
        y = rng.integers(0, 2, n)
        weights = cluster_weights([str(i) for i in range(n)], 100)
        audit = above_chance(interval(auroc, y, rng.normal(size=n), weights), name="probe")
        assert (audit.passed, audit.severity) == (False, severity)
        told = interval(auroc, y, y + 0.5 * rng.normal(size=n), weights)
        assert above_chance(told, name="probe").passed


def test_an_honest_recipe_is_at_chance_on_shuffled_labels_and_on_noise():
    X, y, groups = planted()
    score = out_of_fold(X, y, groups)
    assert auroc(y, score) > 0.7
    shuffled = shuffled_labels(lambda labels: out_of_fold(X, labels, groups), y, score, groups)
    assert shuffled.passed
    assert "cannot be tested with so few permutations, for the smallest p possible is 0.17" in shuffled.detail
    assert random_features(lambda noise: out_of_fold(noise, y, groups), y, X.shape, groups).passed


def test_with_three_groups_no_number_of_permutations_gives_a_p_value_that_counts():
    rng = np.random.default_rng(0)
    groups = np.repeat(["a", "b", "c"], 40)
    y = rng.integers(0, 2, 120)
    audit = shuffled_labels(lambda labels: rng.normal(size=120), y, y + rng.normal(size=120), groups, permutations=30)
    assert "cannot be tested with so few groups, for the smallest p possible is 0.17" in audit.detail
    assert "p = " not in audit.detail
    many = np.arange(120).astype(str)
    audit = shuffled_labels(lambda labels: rng.normal(size=120), y, y + rng.normal(size=120), many, permutations=30)
    assert "with the true labels: p = 0.032" in audit.detail


def test_a_recipe_that_peeks_at_test_labels_is_caught():
    X, y, groups = planted()

    def peeking(X, y):
        """Chooses the five features that go best with all labels, those of the test rows too, and only then folds."""
        best = np.argsort(-np.abs(np.corrcoef(X.T, y)[-1, :-1]))[:5]
        return out_of_fold(X[:, best], y, groups)

    shuffled = shuffled_labels(lambda labels: peeking(X, labels), y, peeking(X, y), groups)
    noise = random_features(lambda noise: peeking(noise, y), y, (len(y), 300), groups)
    assert (shuffled.passed, shuffled.severity) == (False, "invalid")
    assert (noise.passed, noise.severity) == (False, "invalid")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(0, 9))
def test_permuting_by_group_keeps_the_labels_and_equal_groups_whole(numbers, seed):
    groups = np.repeat([f"g{i:02}" for i in range(len(numbers))], 2)
    y = np.repeat(numbers, 2)
    out = permute_by_group(y, groups, np.random.default_rng(seed))
    assert sorted(out) == sorted(y)
    assert (out[::2] == out[1::2]).all()


def test_the_best_of_many_layers_must_hold_on_test():
    rng = np.random.default_rng(0)
    sweep = rng.normal(0.5, 0.08, (12, 3, 2))
    sweep[0, 0, 0] = np.nan
    lucky = layers_tried(sweep, Interval(0.52, 0.47, 0.57, 300, 150), name="probe")
    assert (lucky.passed, lucky.severity) == (False, "weak")
    assert "best of 71" in lucky.detail
    assert layers_tried(sweep - sweep[1:].max() + 0.6, Interval(0.58, 0.53, 0.63, 300, 150), name="probe").passed
    with pytest.raises(ValueError, match="no finite value"):
        layers_tried(np.array([np.nan]), Interval(0.5, 0.4, 0.6, 9, 9), name="probe")


def fit_on(X, y):
    def fit(rows):
        direction = X[rows][y[rows] == 1].mean(axis=0) - X[rows][y[rows] == 0].mean(axis=0)
        return lambda judged: X[judged] @ direction

    return fit


def in_domains(n=400):
    """Answers of two large tasks and a small one, in groups that stay within a task."""
    table = made_up(n).table
    number = np.unique(table.groups, return_inverse=True)[1]
    return dataclasses.replace(table, tasks=np.array(["red", "blue", "red", "blue", "small"])[number % 5])


def elsewhere_of(table, X):
    def fit(rows):
        rest = np.flatnonzero(~np.isin(np.arange(len(table)), rows))
        assert not set(table.tasks[rows]) & set(table.tasks[rest])
        scores = fit_on(X, table.y)(rest)(rows)
        return scores, 1 / (1 + np.exp(-scores))

    return judge_left_out(table, fit, X[:, 1], resamples=200)


def test_what_holds_on_tasks_left_out_passes_and_what_turns_round_there_does_not():
    table = in_domains()
    X = np.random.default_rng(0).normal(size=(400, 5))
    X[:, 0] += 1.5 * table.y
    found = elsewhere_of(table, X)
    assert (found.by, sorted(found.auroc)) == ("task", ["blue", "red"]), "the small task tells too little"
    assert found.ece is None, "of so few answers no calibration error is told"
    audit = holds_elsewhere(found, name="probe", home_auroc=0.9)
    assert (audit.name, audit.passed) == ("probe is above chance on a task it has not seen", True)
    assert found.gain.low > 0.2, "the baseline knows nothing"
    X[table.tasks == "red", 0] *= -1
    turned = elsewhere_of(table, X)
    audit = holds_elsewhere(turned, name="probe", home_auroc=0.9)
    assert (audit.passed, audit.severity) == (False, "weak")
    assert turned.mean.low <= turned.mean.estimate <= turned.mean.high < 0.5
    assert "0.900 at home; lowest" in audit.detail


def test_the_runner_makes_what_it_has_the_means_for_and_names_the_rest():
    table = made_up(300).table
    X = np.random.default_rng(2).normal(size=(300, 12))
    X[:, 0] += 3.0 * table.y
    score = out_of_fold(X, table.y, table.groups)
    bare = run_audits(AuditInputs(name="probe", table=table, score=score))
    assert [a.name for a in bare.failed] == ["probe was held against a control"]
    assert bare.failed[0].severity == "unaudited"
    assert {a.name for a in bare.audits if a.passed} == {"both classes are common", "probe is above chance"}
    assert len(bare.skipped) == 10
    asked = dataclasses.replace(table, questions=questions(300))
    full = AuditInputs(
        name="probe",
        table=asked,
        score=score,
        splits=folds(table.groups),
        controls=free_controls(asked) | {"prompt TF-IDF": np.random.default_rng(1).normal(size=300)},
        refit_labels=lambda y: out_of_fold(X, y, table.groups),
        refit_features=lambda noise: out_of_fold(noise, table.y, table.groups),
        features_shape=X.shape,
        labels={"program": table.y.astype(float), "human": table.y.astype(float)},
        left_out_domains=elsewhere_of(
            in_domains(), np.random.default_rng(0).normal(size=(400, 5)) + in_domains().y[:, None]
        ),
        selection_auroc=np.array([0.6, 0.7]),
    )
    report = run_audits(full)
    assert [line.partition(":")[0] for line in report.skipped] == ["controls within runs"]
    assert report.failed == ()
    assert len({a.name for a in report.audits}) == len(report.audits)
    assert {f"probe beats {name}" for name in full.controls} <= {a.name for a in report.audits}
    assert run_audits(full) == report
    assert run_audits(dataclasses.replace(full, score=-score)).failed


def test_an_interval_above_0_beside_a_fail_is_told_to_be_uncorrected():
    rows = [("words", (0.074, 0.012, 0.144), 0.14), ("length", (0.08, 0.023, 0.137), 0.032), ("mean", (0, -1, 1), 1)]
    controls = [ControlDifference(name, 0.8, Interval(*gain, 99, 9), 0.01, p) for name, gain, p in rows]
    told = {found.name: found for found in beats_controls(ControlComparison(0.9, tuple(controls)), name="probe")}
    marked = [
        name for name, found in told.items() if "the interval is of this one alone, not corrected" in found.detail
    ]
    assert marked == ["probe beats words"]
    assert "p = 0.140 after Holm's correction over 3 controls (" in told["probe beats words"].detail


GROUPS = np.array([f"g{i}" for i in range(N)])


def told(low: float, estimate: float, high: float) -> Interval:
    return Interval(estimate, low, high, N, N)


def weak(y: NDArray[np.int64], seed: int, strength: float) -> NDArray[np.float64]:
    """Scores that know a little of the labels."""
    return strength * y + np.random.default_rng(seed).normal(size=len(y))


def against(name: str, estimate: float, gain: Interval, p: float) -> ControlComparison:
    return ControlComparison(0.6, (ControlDifference(name, estimate, gain, p, p),))


@pytest.mark.parametrize(
    ("name", "control", "gain", "p", "passed", "severity"),
    [
        ("length", 0.6, told(-0.03, 0.01, 0.019), 0.5, False, "invalid"),
        ("length", 0.6, told(-0.03, 0.01, 0.03), 0.5, False, "weak"),  # it may well be better
        ("length", 0.51, told(-0.03, 0.01, 0.019), 0.5, False, "weak"),  # the control tells nothing
        ("mean log-probability", 0.6, told(-0.03, 0.01, 0.019), 0.5, False, "weak"),  # knows the answers
        ("mean log-probability", 0.6, told(0.001, 0.05, 0.1), 0.04, True, "weak"),
        ("mean log-probability", 0.6, told(-0.001, 0.05, 0.1), 0.04, False, "weak"),
        ("mean log-probability", 0.6, told(0.001, 0.05, 0.1), 0.06, False, "weak"),
    ],
)
def test_a_control_is_beaten_by_the_lower_bound_and_the_corrected_p_and_explains_by_the_upper_bound(
    name: str, control: float, gain: Interval, p: float, passed: bool, severity: str
) -> None:
    [audit] = beats_controls(against(name, control, gain, p), name="probe")
    assert (audit.passed, audit.severity) == (passed, severity)


@pytest.mark.parametrize(("strength", "passed"), [(0.08, True), (0.4, False)])
def test_a_recipe_leaks_where_the_interval_of_its_mean_lies_above_chance(strength: float, passed: bool) -> None:
    """The weaker one is above 0.5 by its estimate alone."""
    y = np.arange(N) % 2
    draws = iter(range(100))
    scores = [weak(y, seed, strength) for seed in range(10)]
    assert np.mean([auroc(y, score) for score in scores]) > 0.5
    shuffled = shuffled_labels(lambda labels: weak(labels, next(draws), strength), y, y + 0.0, GROUPS)
    noise = random_features(lambda X: weak(y, next(draws), strength), y, (N, 2), GROUPS)
    for audit in (shuffled, noise):
        assert float(audit.detail.split("mean AUROC ")[1][:5]) > 0.5
        assert (audit.passed, audit.severity) == (passed, "invalid")


@pytest.mark.parametrize(("low", "passed"), [(0.49, False), (0.51, True)])
def test_it_holds_elsewhere_by_the_lower_bound_of_the_mean(low: float, passed: bool) -> None:
    found = LeftOutDomains("task", {"a": told(0.4, 0.6, 0.7)}, told(low, 0.6, 0.7), told(-0.1, 0.0, 0.1), None)
    assert holds_elsewhere(found, name="probe", home_auroc=0.7).passed == passed


@pytest.mark.parametrize(("n", "right", "known"), [(100, 10, True), (100, 9, False), (99, 50, False), (100, 91, False)])
def test_a_domain_tells_from_100_answers_on_with_a_tenth_of_either_class(n: int, right: int, known: bool) -> None:
    table = made_up(100 + n).table
    y = np.r_[np.arange(100) % 2, np.arange(n) < right].astype(np.int64)
    found = domains_of(dataclasses.replace(table, y=y, tasks=np.repeat(["first", "second"], [100, n])))
    assert found[0] == ("task" if known else "")
