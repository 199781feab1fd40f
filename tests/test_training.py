"""What is fitted finds what was planted, and nothing where nothing was; roles never mix."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaprobe.eval.metrics import auroc
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.training.calibrate import fit_platt, flag_threshold, sigmoid
from metaprobe.training.crossfit import BEST_BASELINE, crossfit
from metaprobe.training.linear import fit_linear_probe
from metaprobe.training.methods import BLEND, STATED, TREES, CellTable, Evidence, standard_methods
from metaprobe.training.roles import Roles, final_roles, outer_folds
from metaprobe.training.trees import fit_trees, round_down


def learning(evidence: Evidence) -> tuple[np.ndarray, list[str], Roles]:
    """Labels, groups and roles, as `fit_linear_probe` takes them."""
    groups = evidence.table.groups.tolist()
    return evidence.table.y, groups, final_roles(groups, evidence.table.y)


groups_and_labels = st.integers(0, 1000).map(
    lambda seed: (
        [f"g{i}" for i in np.random.default_rng(seed).integers(0, 60, 300)],
        np.random.default_rng(seed + 1).integers(0, 2, 300),
    )
)


@settings(max_examples=20, deadline=None)
@given(groups_and_labels)
def test_no_group_has_rows_in_two_roles_and_every_row_is_tested_once(data: tuple[list[str], np.ndarray]) -> None:
    groups, y = data
    tested = []
    for roles in outer_folds(groups, y, folds=5):
        parts = [roles.train, roles.selection, roles.calibration, roles.test]
        names = [{groups[i] for i in part} for part in parts]
        assert sum(map(len, names)) == len(set.union(*names))
        assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))
        tested += roles.test.tolist()
    assert sorted(tested) == list(range(len(y)))


def test_planted_signals_are_found_and_statements_that_know_nothing_are_at_chance(evidence: Evidence) -> None:
    methods = standard_methods(evidence)
    fits = crossfit(evidence, methods, blend=("mean log-probability", TREES))
    found = {m.name: float(auroc(evidence.table.y, m.probability)) for m in fits.methods}
    assert found["mean log-probability"] > 0.65
    assert found[TREES] > 0.65
    assert found["hidden probe, answer"] > 0.65
    assert found[BLEND] > 0.65
    # 0.09 is four standard errors of an AUROC at n = 600.
    assert abs(found[STATED] - 0.5) < 0.09
    assert abs(found["hidden probe, before"] - 0.5) < 0.09
    assert found[BEST_BASELINE] == pytest.approx(found["mean log-probability"], abs=0.05)
    assert fits[STATED].coverage == pytest.approx(0.8, abs=0.06)
    assert all(np.isfinite(m.probability).all() for m in fits.methods)


def test_shuffled_labels_leave_nothing_to_find(evidence: Evidence) -> None:
    y = np.random.default_rng(1).permutation(evidence.table.y)
    shuffled = dataclasses.replace(evidence, table=dataclasses.replace(evidence.table, y=y))
    fits = crossfit(shuffled, standard_methods(shuffled))
    for method in fits.methods:
        assert abs(float(auroc(y, method.probability)) - 0.5) < 0.1, method.name


def test_the_probe_chooses_the_planted_layer_and_points_along_the_planted_direction(evidence: Evidence) -> None:
    assert evidence.activations is not None
    probe = fit_linear_probe(evidence.activations, *learning(evidence), positions=("prompt_last", "answer_last"))
    assert (probe.layer, probe.position) == (2, "answer_last")
    assert int(np.argmax(np.abs(probe.weights))) == 5
    assert len(probe.sweep) == 6


def test_a_layer_that_never_varies_teaches_nothing_and_breaks_nothing(evidence: Evidence) -> None:
    assert evidence.activations is not None
    values = evidence.activations.values.copy()
    values[:, 0] = 3.0
    constant = Activations(evidence.activations.call_ids, values, (0, 1, 2), ("prompt_last", "answer_last"))
    probe = fit_linear_probe(constant, *learning(evidence), positions=("answer_last",))
    assert probe.layer == 2
    assert [point.auroc for point in probe.sweep if point.layer == 0] == [0.5]


def test_ridge_agrees_with_scikit_learn(evidence: Evidence) -> None:
    from sklearn.linear_model import Ridge

    from metaprobe.training.linear import PENALTIES, _ridge_path

    X, y = np.asarray(evidence.activations.values[:, 2, 1], dtype=np.float64), evidence.table.y  # type: ignore[union-attr]
    Z = (X - X.mean(0)) / X.std(0)
    path = _ridge_path(Z.T @ Z, Z.T @ (y - y.mean()), PENALTIES)
    unit = float(np.linalg.eigvalsh(Z.T @ Z).mean())
    for weights, penalty in zip(path.T, PENALTIES, strict=True):
        np.testing.assert_allclose(weights, Ridge(alpha=penalty * unit).fit(Z, y).coef_, atol=1e-8)


def test_hidden_states_with_nan_are_refused(evidence: Evidence) -> None:
    assert evidence.activations is not None
    values = evidence.activations.values.copy()
    values[3, 1, 0, 0] = np.nan
    broken = Activations(evidence.activations.call_ids, values, (0, 1, 2), ("prompt_last", "answer_last"))
    with pytest.raises(RecordError, match="layer 1, prompt_last: 1 of"):
        fit_linear_probe(broken, *learning(evidence), positions=("prompt_last",))


def test_an_absent_position_is_named(evidence: Evidence) -> None:
    assert evidence.activations is not None
    with pytest.raises(RecordError, match="answer_mean"):
        fit_linear_probe(evidence.activations, *learning(evidence), positions=("answer_mean",))


@pytest.mark.parametrize(
    ("y", "said"),
    [
        ([1] * 40, "all 40 labels are 1"),
        ([0] * 38 + [1, 1], "2 groups have a label 1"),
        ([0] * 32 + [1] * 8, "at least 10 of each"),
    ],
)
def test_labels_that_cannot_be_split_say_so(evidence: Evidence, y: list[int], said: str) -> None:
    table = evidence.table.rows(np.arange(40))
    table = dataclasses.replace(table, y=np.array(y), groups=np.array([f"g{i}" for i in range(40)]))
    small = dataclasses.replace(evidence, table=table, features=evidence.features[:40], activations=None)
    with pytest.raises(RecordError, match=said):
        crossfit(small, [CellTable()])


def test_platt_recovers_a_planted_line() -> None:
    rng = np.random.default_rng(0)
    score = rng.normal(3, 2, 20_000)
    y = (rng.uniform(size=20_000) < sigmoid(0.7 * score - 1)).astype(np.int64)
    platt = fit_platt(score, y)
    assert (platt.slope, platt.intercept) == (pytest.approx(0.7, abs=0.05), pytest.approx(-1, abs=0.1))
    with pytest.raises(RecordError, match="both classes"):
        fit_platt(score, np.ones(20_000, dtype=np.int64))


def test_the_flag_threshold_keeps_its_promise_in_expectation() -> None:
    rng = np.random.default_rng(0)
    missed, trivial = [], []
    for _ in range(400):
        p = rng.uniform(size=240)
        y = (rng.uniform(size=240) < p).astype(np.int64)
        threshold = flag_threshold(p[:120], y[:120], miss_rate=0.1)
        wrong = p[120:][y[120:] == 0]
        missed.append(float((wrong >= threshold).mean()))
        trivial.append(float((p[120:][y[120:] == 1] < threshold).mean()))
    # Three standard errors of the mean over 400 repetitions.
    assert np.mean(missed) <= 0.1 + 3 * np.std(missed) / 20
    assert np.mean(missed) > 0.06  # not by flagging everything
    assert np.mean(trivial) < 0.9


def test_a_tie_of_wrong_answers_is_flagged_together() -> None:
    p = np.array([0.2] * 15 + [0.7] * 15)
    threshold = flag_threshold(p, np.zeros(30, dtype=np.int64), miss_rate=0.4)
    assert 0.7 < threshold < 0.7001
    assert (np.float32(p) < threshold).all()


def test_a_statement_that_is_confident_the_wrong_way_round_is_shown_as_such(evidence: Evidence) -> None:
    rng = np.random.default_rng(3)
    wrong_way = 1 - evidence.table.y * 0.3 - rng.uniform(0, 0.7, len(evidence.table))
    table = dataclasses.replace(evidence.table, stated_confidence=wrong_way)
    methods = standard_methods(dataclasses.replace(evidence, table=table))
    fits = crossfit(dataclasses.replace(evidence, table=table), methods[:1])
    assert float(auroc(table.y, fits[STATED].ranking)) < 0.4


def test_no_method_learns_from_the_rows_it_is_tested_on(evidence: Evidence) -> None:
    groups = evidence.table.groups.tolist()
    roles = next(iter(outer_folds(groups, evidence.table.y)))
    flipped = evidence.table.y.copy()
    flipped[roles.test] = 1 - flipped[roles.test]
    flipped[roles.calibration] = 1 - flipped[roles.calibration]
    other = dataclasses.replace(evidence, table=dataclasses.replace(evidence.table, y=flipped))
    for method, again in zip(standard_methods(evidence), standard_methods(other), strict=True):
        first = method.fit(evidence, roles, seed=0).score(roles.test)
        second = again.fit(other, roles, seed=0).score(roles.test)
        np.testing.assert_array_equal(first, second, err_msg=method.name)


def test_what_was_never_stated_is_left_out(evidence: Evidence) -> None:
    silent = dataclasses.replace(evidence.table, stated_confidence=np.full(len(evidence.table), np.nan))
    names = [method.name for method in standard_methods(dataclasses.replace(evidence, table=silent))]
    assert STATED not in names
    assert TREES in names


def test_too_few_wrong_answers_flag_everything() -> None:
    assert flag_threshold(np.array([0.2, 0.9]), np.array([0, 1]), miss_rate=0.1) == float("inf")


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_thresholds_rounded_down_split_float32_numbers_as_before(values: list[float]) -> None:
    thresholds = np.array(values)
    rounded = round_down(thresholds)
    assert (rounded.astype(np.float64) <= thresholds).all()
    assert (np.nextafter(rounded, np.float32(np.inf)).astype(np.float64) > thresholds).all()


def test_rounding_thresholds_changes_no_prediction(evidence: Evidence) -> None:
    import lightgbm

    X, y = np.round(evidence.features, 1), evidence.table.y  # repeated values lie on the thresholds
    roles = final_roles(list(evidence.table.groups), y)
    trees = fit_trees(X, y, roles, names=evidence.feature_names)
    plain = lightgbm.train(
        {"objective": "binary", "verbosity": -1, "num_threads": 1}, lightgbm.Dataset(X, y), num_boost_round=20
    )
    from metaprobe.training.trees import float32_thresholds

    np.testing.assert_allclose(float32_thresholds(plain).predict(X), plain.predict(X), atol=1e-12)
    assert trees.score(X).shape == y.shape
