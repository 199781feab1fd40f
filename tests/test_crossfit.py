"""Nested roles: what is fitted, calibrated, blended and chosen in a fold each sees its own rows, and no others."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from conftest import made_up
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedGroupKFold

from metaprobe.eval.metrics.calibration import brier_skill
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.eval.results import Family
from metaprobe.records.errors import RecordError
from metaprobe.training.calibrators import choose_calibrator, fit_platt, sigmoid
from metaprobe.training.evidence import Evidence, Scores
from metaprobe.training.folds import Roles, Rows, final_roles, group_folds, outer_folds, roles_without
from metaprobe.training.methods import BLEND, Blend, CellTable, Fitted, Method, TextWords, blend_weights
from metaprobe.training.study import BEST_BASELINE, crossfit, standard_methods


@dataclass(frozen=True, eq=False)
class Written:
    """A method whose scores are written down."""

    name: str
    scores: Callable[[Roles], Scores]
    family: Family = "learned"
    fitted: bool = True
    selection_auroc: float = 0.5

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        scores = self.scores(roles)
        return Fitted(lambda rows: scores[rows], self.selection_auroc)


@pytest.fixture(scope="module")
def answers() -> Evidence:
    return replace(made_up(1000), states=None)


def noise(n: int, seed: int) -> Scores:
    return np.random.default_rng(seed).normal(size=n)


def memoriser(evidence: Evidence, knows: float = 0.0) -> Written:
    """Knows by heart what it learned from, and `knows` little of anything else."""
    y, guess = evidence.table.y, noise(len(evidence.table), 1) + knows * evidence.table.y

    def scores(roles: Roles) -> Scores:
        found = guess.copy()
        found[roles.learning] += 8.0 * (2 * y[roles.learning] - 1)
        return found

    return Written("memoriser", scores)


def knowing(evidence: Evidence, name: str = "honest", strength: float = 1.5, **given: object) -> Written:
    """Knows the same of every answer."""
    found = strength * evidence.table.y + noise(len(evidence.table), 2)
    return Written(name, lambda roles: found, **given)  # type: ignore[arg-type]


def test_what_learns_is_calibrated_on_rows_that_it_has_not_seen(answers: Evidence) -> None:
    fits = crossfit(answers, [memoriser(answers)])
    probability, y = fits["memoriser"].probability, answers.table.y
    assert brier_skill(y, probability) > -0.05, "it knows nothing of the test rows, and says so"
    scores, groups = memoriser(answers).scores, answers.table.groups
    for roles in fits.roles:
        at, found = roles.calibration, scores(roles)
        calibrator = choose_calibrator(found[at], y[at], groups[at])
        np.testing.assert_allclose(probability[roles.test], calibrator.probability(found[roles.test]))


def test_a_blend_is_weighed_and_calibrated_on_rows_that_its_parts_have_not_seen(answers: Evidence) -> None:
    y = answers.table.y
    parts = [memoriser(answers, knows=0.7), knowing(answers)]
    fits = crossfit(answers, [*parts, Blend(tuple(parts))])
    assert auroc(y, fits[BLEND].probability) > auroc(y, fits["honest"].probability) - 0.01
    for roles in fits.roles:
        at = roles.calibration

        def logit(scores: Scores, at: Rows = at) -> Scores:
            return fit_platt(scores[at], y[at]).logit(scores)

        logits = np.array([logit(part.scores(roles)) for part in parts])
        blended = logit(logit(blend_weights(logits[:, at], y[at]) @ logits))  # as a blend, then as any method
        np.testing.assert_allclose(fits[BLEND].probability[roles.test], sigmoid(blended)[roles.test], atol=1e-6)


def test_a_further_part_is_joined_only_where_it_pays(answers: Evidence) -> None:
    n, y = len(answers.table), answers.table.y
    base, nothing = knowing(answers), Written("nothing", lambda roles: noise(n, 5))
    other = Written("other", lambda roles: 1.5 * y + noise(n, 6))
    fits = crossfit(answers, [Blend((base,), (nothing, other))])
    joined = [[part.name for part in fold.methods] for fold in fits.joined[BLEND]]
    assert all("other" in names for names in joined)
    assert sum("nothing" in names for names in joined) <= 2, "by luck, in a fold with few calibration rows"


def test_answers_that_lack_a_part_are_weighed_by_the_others(answers: Evidence) -> None:
    y = answers.table.y
    rare = np.where(np.arange(len(y)) % 2, np.nan, 3.0 * y + noise(len(y), 7))
    parts = (knowing(answers, strength=0.7), Written("rare", lambda roles: rare))
    probability = crossfit(answers, [*parts, Blend(parts)])[BLEND].probability
    with_both, without = (np.arange(len(y)) % 2 == kind for kind in (0, 1))
    assert auroc(y[with_both], probability[with_both]) > 0.9 > auroc(y[without], probability[without]) > 0.6
    for rows in (with_both, without):
        assert probability[rows].mean() == pytest.approx(y[rows].mean(), abs=0.06)


def test_the_control_chosen_in_advance_is_a_control_whatever_learned_methods_promise(answers: Evidence) -> None:
    methods = [
        knowing(answers, "learned", 2.0, selection_auroc=0.99),
        knowing(answers, "stated", 2.0, family="explicit", fitted=False, selection_auroc=0.8),
        knowing(answers, "better", 1.0, family="plain", fitted=False, selection_auroc=0.75),
        knowing(answers, "worse", 3.0, family="log-probability", fitted=False, selection_auroc=0.7),
    ]
    fits = crossfit(answers, methods, folds=3)
    assert fits.best_baseline == ("stated",) * 3, "by its selection rows, not by what the test rows will show"
    np.testing.assert_array_equal(fits[BEST_BASELINE].probability, fits["stated"].probability)


def test_scores_that_are_missing_count_as_the_middle_one_and_lower_the_coverage(answers: Evidence) -> None:
    known = knowing(answers).scores(next(outer_folds(answers.table.groups.tolist(), answers.table.y)))
    gaps = np.where(np.arange(len(known)) % 4 == 0, np.nan, known)
    filled = np.where(np.isnan(gaps), np.median(gaps[np.isfinite(gaps)]), gaps)
    fits = crossfit(
        answers,
        [
            Written("gaps", lambda roles: gaps, "explicit", False),
            Written("filled", lambda roles: filled, "explicit", False),
        ],
    )
    assert (fits["gaps"].coverage, fits["filled"].coverage) == (0.75, 1.0)
    np.testing.assert_array_equal(fits["gaps"].probability, fits["filled"].probability)
    np.testing.assert_array_equal(fits["gaps"].ranking, filled)


def test_where_a_domain_is_left_out_no_group_that_it_shares_is_learned_from() -> None:
    rng = np.random.default_rng(0)
    groups = np.array([f"g{i}" for i in rng.integers(0, 120, 600)])
    y = rng.integers(0, 2, 600)
    domain = np.flatnonzero(np.arange(600) % 5 == 0)  # of most groups an answer or two
    roles = roles_without(domain, groups.tolist(), y)
    shared = set(groups[domain].tolist())
    assert len(shared) > 60
    assert roles.test.tolist() == domain.tolist()
    assert not shared & set(groups[roles.seen].tolist())
    assert len(roles.seen) == np.count_nonzero(~np.isin(groups, list(shared))), "every other group is"
    parts = [set(groups[rows].tolist()) for rows in (roles.train, roles.selection, roles.calibration)]
    assert sum(map(len, parts)) == len(set.union(*parts))


def test_what_a_method_promises_is_of_rows_that_it_has_not_learned_from() -> None:
    """Labels are drawn by lot; a question shares its word with one other, and its cell with none: learned is known."""
    evidence = made_up(600)
    n = len(evidence.table)
    table = replace(
        evidence.table,
        y=np.random.default_rng(5).integers(0, 2, n),
        questions=np.array([f"word{i % (n // 2)}" for i in range(n)]),
        levels=np.array([f"level {i}" for i in range(n)]),
    )
    drawn = replace(evidence, table=table)
    roles = final_roles(table.groups.tolist(), table.y)
    methods: list[Method] = [
        *(method for method in standard_methods(drawn) if method.fitted),
        CellTable(),
        TextWords("prompt TF-IDF", ("questions",)),
    ]
    for method in methods:
        # Four standard errors of an AUROC of 120 answers are 0.21; a probe is the best of some dozens of tries.
        assert abs(method.fit(drawn, roles, seed=0).selection_auroc - 0.5) < 0.22, method.name


def test_folds_that_groups_do_not_suffice_for_are_refused() -> None:
    y = np.array([0, 1] * 3)
    with pytest.raises(RecordError, match="6 answers in 1 groups do not suffice for 2 folds"):
        list(outer_folds(["g"] * 6, y, folds=2))


# Folds by group are scikit-learn's, made faster: the same answers in the same fold.


@given(st.integers(0, 2**32 - 1), st.integers(2, 7), st.integers(1, 6), st.integers(2, 4))
def test_they_are_the_folds_of_scikit_learn(seed: int, folds: int, members: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(30, 200))
    y, groups = rng.integers(0, classes, n), rng.integers(0, max(folds + 3, n // members), n).astype(str)
    rows = rng.permutation(n)[: n - 5]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a class with few members
        theirs = StratifiedGroupKFold(folds, shuffle=True, random_state=seed).split(rows, y[rows], groups[rows])
        expected = [(rows[rest].tolist(), rows[part].tolist()) for rest, part in theirs]
        if not all(part for _, part in expected):
            with pytest.raises(RecordError, match="is empty"):
                list(group_folds(rows, groups.tolist(), y, folds, seed))
            return
        found = [(rest.tolist(), part.tolist()) for rest, part in group_folds(rows, groups.tolist(), y, folds, seed)]
    assert found == expected


def test_too_few_groups_are_named() -> None:
    with pytest.raises(RecordError, match="6 answers in 2 groups do not suffice for 5 folds"):
        list(group_folds(np.arange(6), ["a", "a", "a", "b", "b", "b"], np.arange(6) % 2, 5, 0))
