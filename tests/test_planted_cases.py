"""Data sets in which a good figure means something else: an audit notices each of them, and none of the honest ones."""

import dataclasses

import numpy as np
import pytest
from conftest import made_up

from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.audits import AuditInputs, run_audits
from metaprobe.eval.audits_of_data import number_series, repeated_series, reworded_questions, twins_disagree
from metaprobe.eval.compare import Judged
from metaprobe.eval.controls import IDENTITY, TERMS
from metaprobe.eval.results import Finding
from metaprobe.probes.features import TERMS as TERM_ORDER
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import outer_folds
from metaprobe.training.methods import AFTER, RUN_IDENTITY, HiddenProbeMethod, TermsRegression, control_methods
from metaprobe.training.study import CrossFit, audit_method, crossfit

PROBE = HiddenProbeMethod(AFTER, ("answer_last",))


def splits_of(table: AnswerTable) -> list[dict[str, np.ndarray]]:
    folds = outer_folds(table.groups.tolist(), table.y)
    return [{"train": roles.seen, "test": roles.test} for roles in folds]


def judged_by(evidence: Evidence, name: str, score: np.ndarray, *more: Judged) -> CrossFit:
    """Folds in which a method gave these held-out scores, beside the controls that need no fit."""
    free = [method for method in control_methods(evidence) if not method.fitted]
    fits = crossfit(evidence, free, folds=3)
    return dataclasses.replace(fits, methods=(Judged(name, "learned", score, score, 1.0), *fits.methods, *more))


def findings(evidence: Evidence, fits: CrossFit) -> dict[str, Finding]:
    return {audit.name: audit for audit in audit_method(evidence, fits, fits[AFTER]).audits}


def twice(table: AnswerTable, *, flipped: float = 0.0, seed: int = 0) -> AnswerTable:
    """The first third again under other groups, its log-probabilities rounded as a format would; labels flip."""
    n, rng = len(table), np.random.default_rng(seed)
    both = table.rows(np.concatenate([np.arange(n), np.arange(n // 3)]))
    copy = np.arange(len(both)) >= n
    logprobs = both.logprobs.copy()
    logprobs[n:] = [np.round(values, 5) for values in logprobs[n:]]
    y = np.where(copy & (rng.random(len(both)) < flipped), 1 - both.y, both.y)
    groups = np.where(copy, np.char.add("other ", both.groups), both.groups)
    return dataclasses.replace(both, logprobs=logprobs, y=y, groups=groups)


# Only a free number is informative


@pytest.mark.slow
def test_a_probe_that_a_regression_on_terms_explains_does_not_beat_it() -> None:
    """Rightness falls with the surprise and rises with the length: no single free number knows both, their terms do."""
    evidence, rng = made_up(900), np.random.default_rng(1)
    terms = np.asarray(evidence.features[:, -len(TERM_ORDER) :], dtype=np.float64)
    standard = (terms - terms.mean(axis=0)) / terms.std(axis=0)
    known = standard[:, TERM_ORDER.index("length")] - standard[:, TERM_ORDER.index("mean")]
    y = (rng.random(900) < 1 / (1 + np.exp(-1.5 * known))).astype(np.int64)
    evidence = dataclasses.replace(evidence, table=dataclasses.replace(evidence.table, y=y))
    terms_fit = crossfit(evidence, [TermsRegression()], folds=3).methods
    found = findings(evidence, judged_by(evidence, AFTER, known + 0.1 * rng.normal(size=900), *terms_fit))
    failed = {name for name, audit in found.items() if " beats " in name and not audit.passed}
    assert failed == {f"{AFTER} beats {TERMS}"}


def test_terms_are_fitted_without_the_test_rows_and_know_the_run() -> None:
    evidence = made_up(300)
    easy = np.arange(300) % 2
    y = (np.random.default_rng(0).random(300) < np.where(easy, 0.9, 0.1)).astype(np.int64)
    table = dataclasses.replace(evidence.table, y=y, tasks=np.array(["hard", "easy"])[easy])
    evidence = dataclasses.replace(evidence, table=table)
    roles = next(outer_folds(table.groups.tolist(), y))
    score = TermsRegression().fit(evidence, roles, seed=0).score(np.arange(300))
    assert score[easy == 1].min() > score[easy == 0].max()
    flipped = y.copy()
    flipped[roles.test] = 1 - y[roles.test]
    again = dataclasses.replace(evidence, table=dataclasses.replace(table, y=flipped))
    assert np.array_equal(TermsRegression().fit(again, roles, seed=0).score(np.arange(300)), score)


# The run explains it


def test_six_tasks_of_95_answers_without_messages_are_known_by_their_names() -> None:
    """The score knows which task an answer is of, and no more; no question is stored, and no domain is large."""
    evidence, rng = made_up(570), np.random.default_rng(0)
    task = np.arange(570) % 6
    rate = np.array([0.05, 0.2, 0.4, 0.6, 0.8, 0.95])[task]
    table = dataclasses.replace(
        evidence.table,
        y=(rng.random(570) < rate).astype(np.int64),
        tasks=np.array([f"task {i}" for i in task]),
        questions=np.full(570, ""),
    )
    evidence = dataclasses.replace(evidence, table=table, states=None)
    fits = crossfit(evidence, [RUN_IDENTITY])
    found = findings(evidence, judged_by(evidence, AFTER, rate + 0.02 * rng.normal(size=570), *fits.methods))
    assert found[f"{AFTER} is above chance"].passed
    explained = found[f"{AFTER} beats {IDENTITY}"]
    assert (explained.passed, explained.severity) == (False, "invalid")
    assert not found[f"{AFTER} beats every control within runs"].passed


# Questions and answers that occur twice


def template(n: int) -> np.ndarray:
    """Questions of one template, each with its numbers, some of which are the same by chance."""
    names, things = ("Tom", "Anna", "Ravi", "Mei", "Olu"), ("apples", "marbles", "pencils", "stamps", "tickets")
    return np.array(
        [
            f"{names[i % 5]} has {3 + i % 40} {things[i // 3 % 5]} and buys {50 + i % 20} more of the same. "
            f"How many {things[i // 3 % 5]} does {names[i % 5]} have now?"
            for i in range(n)
        ]
    )


def reworded(n: int) -> np.ndarray:
    """Every second question asks the one before in another order; each two have words and numbers of their own."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghiklmnoprstu"), 7)) for _ in range(400)]
    found = []
    for pair in range(n // 2):
        said = [*rng.choice(words, 10, replace=False).tolist(), str(10 + pair), str(200 + pair)]
        found += [" ".join(said) + "?", " ".join(rng.permutation(said)) + "?"]
    return np.array(found)


def test_questions_reworded_under_another_group_are_found_and_a_template_is_not() -> None:
    table = dataclasses.replace(made_up(240).table, groups=np.array([f"g{i}" for i in range(240)]))
    splits = splits_of(table)
    same = reworded_questions(reworded(240), splits, y=table.y)
    assert (same.passed, same.severity) == (False, "invalid")
    assert "in other words" in same.detail
    assert "AUROC can move by at most" in same.detail
    others = reworded(480)[::2]
    assert reworded_questions(others, splits, y=table.y).passed, "no other words for any of them"
    assert reworded_questions(template(240), splits, y=table.y).passed, "its numbers are the same by chance"
    short = np.array([f"what is {40 + i % 60} {'+*'[i % 2]} {7 + i % 60}" for i in range(240)])
    assert reworded_questions(short, splits).passed, "the same numbers, and another question"


def test_answers_that_are_there_twice_under_two_groups_are_found_by_their_log_probabilities() -> None:
    """No question is stored, so that nothing else could tell."""
    table = dataclasses.replace(made_up(300).table, questions=np.full(300, ""))
    copied = twice(table)
    found = repeated_series(copied.logprobs, splits_of(copied), y=copied.y)
    assert (found.passed, found.severity) == (False, "invalid")
    assert "AUROC can move by at most" in found.detail
    assert repeated_series(table.logprobs, splits_of(table), y=table.y).passed
    report = run_audits(AuditInputs(name="p", table=copied, score=copied.y + 0.0, splits=splits_of(copied)))
    assert "no answer twice" in {audit.name for audit in report.failed}


def test_copies_that_stay_in_one_fold_and_series_that_tell_nothing_are_no_leak() -> None:
    table = twice(made_up(300).table)
    together = dataclasses.replace(table, groups=np.char.replace(table.groups, "other ", ""))
    assert repeated_series(together.logprobs, splits_of(together)).passed
    alike = np.empty(4, dtype=object)
    alike[:] = [np.zeros(9), np.full(9, -1e-6), np.array([-1.0, -2.0, -3.0, -4.0]), np.array([-0.5, 0, 0, 0, -0.5])]
    assert number_series(alike).tolist() == [-1] * 4
    rounded = np.empty(2, dtype=object)
    rounded[:] = [np.array([-1.0, -2.0, -3.0, -4.0, 0.0]), np.array([-1.00001, -2.0, -3.0, -4.0, -0.00001])]
    assert number_series(rounded).tolist() == [0, 0]


@pytest.mark.parametrize(("flipped", "passed"), [(0.0, True), (0.3, False)])
def test_labels_that_differ_between_twins_are_noisy_and_the_ceiling_is_said(flipped: float, passed: bool) -> None:
    table = twice(made_up(300).table, flipped=flipped)
    found = twins_disagree(table.logprobs, table.y)
    assert found is not None
    assert found.passed == passed
    assert ("no score has more than AUROC" in found.detail) == (flipped > 0)
    assert twins_disagree(table.logprobs[:100], table.y[:100]) is None, "too few twins to tell"


def test_on_eight_honest_data_sets_none_of_these_fails() -> None:
    for seed in range(8):
        table = made_up(200, seed=seed).table
        asked = dataclasses.replace(table, questions=template(200))
        splits = splits_of(asked)
        told = [
            reworded_questions(asked.questions, splits, y=asked.y),
            repeated_series(asked.logprobs, splits, y=asked.y),
            twins_disagree(asked.logprobs, asked.y),
        ]
        assert [audit.name for audit in told if audit is not None and not audit.passed] == []
