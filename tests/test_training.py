"""Fitted methods find what was planted, and nothing where nothing was planted; roles never mix."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from conftest import made_up
from hypothesis import given, settings
from hypothesis import strategies as st

from metaprobe.eval.controls import REVERSED, STATED
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.records.errors import RecordError
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import final_roles, outer_folds
from metaprobe.training.methods import AFTER, BLEND, LADDER, MEAN_LOGPROB, CellTable, HiddenProbeMethod, blend_weights
from metaprobe.training.recipes.train_hidden import write_hidden
from metaprobe.training.study import BEST_BASELINE, Study, crossfit, out_of_domain, standard_methods
from metaprobe.training.trees import fit_trees, round_down

groups_and_labels = st.integers(0, 1000).map(
    lambda seed: (
        [f"g{i}" for i in np.random.default_rng(seed).integers(0, 60, 300)],
        np.random.default_rng(seed + 1).integers(0, 2, 300),
    )
)


@settings(max_examples=20)
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
    fits = crossfit(evidence, standard_methods(evidence), folds=3)
    found = {m.name: float(auroc(evidence.table.y, m.probability)) for m in fits.methods}
    assert found["mean log-probability"] > 0.65
    assert found[LADDER] > 0.65
    assert found["hidden probe, answer"] > 0.65
    assert found[BLEND] > 0.65
    # 0.09 is four standard errors of an AUROC at n = 600.
    assert abs(found[STATED] - 0.5) < 0.09
    assert abs(found["hidden probe, before"] - 0.5) < 0.09
    assert found[BEST_BASELINE] == pytest.approx(found["mean log-probability"], abs=0.05)
    assert fits[STATED].coverage == pytest.approx(0.8, abs=0.06)
    assert all(np.isfinite(m.probability).all() for m in fits.methods)


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
    small = dataclasses.replace(evidence, table=table, features=evidence.features[:40], states=None)
    with pytest.raises(RecordError, match=said):
        crossfit(small, [CellTable()])


def test_no_method_learns_from_the_rows_it_is_tested_on(evidence: Evidence) -> None:
    groups = evidence.table.groups.tolist()
    roles = next(iter(outer_folds(groups, evidence.table.y)))
    flipped = evidence.table.y.copy()
    flipped[roles.test] = 1 - flipped[roles.test]
    tested = dataclasses.replace(evidence, table=dataclasses.replace(evidence.table, y=flipped.copy()))
    flipped[roles.calibration] = 1 - flipped[roles.calibration]
    calibrated = dataclasses.replace(evidence, table=dataclasses.replace(evidence.table, y=flipped))
    for method in standard_methods(evidence):
        if method.name.endswith(REVERSED):  # which way round a free number tells is read off all labels, on purpose
            continue
        other = tested if method.name == BLEND else calibrated  # a blend weighs its parts on the calibration rows
        again = {one.name: one for one in standard_methods(other)}
        first = method.fit(evidence, roles, seed=0).score(roles.test)
        second = again[method.name].fit(other, roles, seed=0).score(roles.test)
        np.testing.assert_array_equal(first, second, err_msg=method.name)


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


def test_a_blend_weighs_its_parts_by_what_they_add_and_equally_where_little_is_known() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 3000)
    good, noise = 2 * (2 * y - 1) + rng.normal(size=3000) * 2, rng.normal(size=3000)
    logits = np.array([good, good + 0.01 * noise, noise])
    weights = blend_weights(logits, y)
    assert weights[2] < 0.05
    assert weights[0] == pytest.approx(weights[1], abs=0.1)
    assert weights.min() >= 0
    np.testing.assert_allclose(blend_weights(0.1 * logits[:, :8], y[:8]), 1 / 3, atol=0.05)


def test_what_a_recipe_reaches_on_a_task_it_has_not_seen_stands_in_the_card(tmp_path: Path) -> None:
    made = made_up(600)
    parts = np.unique(made.table.groups, return_inverse=True)[1] % 2
    table = dataclasses.replace(made.table, tasks=np.array(["first", "sec|ond"])[parts])
    evidence = dataclasses.replace(made, table=table)
    methods = [m for m in standard_methods(evidence) if m.name in (AFTER, MEAN_LOGPROB)]
    (probe,) = (m for m in methods if isinstance(m, HiddenProbeMethod))
    known = out_of_domain(evidence, probe)
    assert known is not None
    assert (known.by, sorted(known.auroc)) == ("task", ["first", "sec|ond"])
    assert known.mean.low > 0.6
    fits = crossfit(evidence, methods, folds=2)
    made_of_it = write_hidden(
        tmp_path, Study(evidence, (probe,), fits, 0), when="after", target="correct", command="test"
    )
    assert made_of_it.manifest.metrics["auroc_without_task.first"].estimate == known.auroc["first"].estimate
    assert made_of_it.manifest.audits[f"{AFTER} is above chance on a task it has not seen"].passed
    card = (tmp_path / "README.md").read_text()
    assert "| auroc_without_task.sec_ond |" in card, "a name from outside does not break the table"
    assert "by the same recipe fitted on all others" in card
