"""What the choice between a direct answer and another step by step is trained on, and what each policy would spend."""

from dataclasses import replace

import numpy as np
import pytest

from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Item, Label, Run, Statement, Usage
from metaprobe.training.ask_again.data import DIRECT, STEPS, Paired, pair_variants
from metaprobe.training.ask_again.fit import LEARNED, ORACLE, evaluate_choice


def run(number: int, variant: str, *, right: bool, drawn: int, surprise: float = 1.0, confidence: float = 0.5) -> Run:
    """An answer of so many tokens, after statements of 3 and of 2 tokens."""
    name = f"{variant}{number:03}"
    calls = [
        Call(id=f"{name}d", stage="difficulty", usage=Usage(1, 3)),
        Call(id=f"{name}c", stage="confidence", usage=Usage(1, 2)),
        Call(
            id=name,
            stage="answer",
            model="m",
            logprobs=np.full(4, -surprise, np.float32),
            logprobs_mode="raw",
            usage=Usage(9, drawn),
        ),
    ]
    return Run(
        name,
        "s",
        variant,
        Item(f"i{number:03}", f"question {number}", task="t"),
        tuple(calls),
        statements=(Statement(name, "confidence", confidence), Statement(name, "difficulty", 1 - confidence)),
        labels=(Label(name, "correct", float(right), "program"),),
    )


def runs(n: int = 60) -> list[Run]:
    """Of every four items the first is right both ways, the second only step by step, the third only directly, the
    last never; direct answers that are wrong surprise, and are stated with less confidence."""
    made = []
    for i in range(n):
        direct, steps = i % 4 in (0, 2), i % 4 in (0, 1)
        doubt = 0.0 if direct else 1.0
        made.append(
            run(i, DIRECT, right=direct, drawn=10, surprise=0.5 + doubt + i / 1000, confidence=0.9 - 0.8 * doubt)
        )
        made.append(run(i, STEPS, right=steps, drawn=100))
    return made


@pytest.fixture(scope="module")
def data() -> Paired:
    return pair_variants(runs())


def test_items_answered_both_ways_are_paired_in_one_order(data: Paired) -> None:
    assert len(data) == 60
    assert data.correct[:4].tolist() == [[1, 1], [0, 1], [1, 0], [0, 0]]
    assert data.tokens[0].tolist() == [10, 100]
    assert data.statement_tokens[0].tolist() == [3, 2]
    assert data.generator is not None
    assert data.generator.model == "m"
    assert data.regrouped == ""
    signals = data.signals[1]
    assert (signals.value("difficulty"), signals.value("confidence")) == (pytest.approx(0.9), pytest.approx(0.1))
    assert data.X.shape[0] == 60
    turned = pair_variants(runs()[::-1])
    np.testing.assert_array_equal(turned.correct, data.correct)


def test_fewer_than_fifty_pairs_and_answers_without_a_label_or_a_partner_are_not_enough() -> None:
    fifty = runs(50)
    assert len(pair_variants(fifty)) == 50
    bare = replace(fifty[0], labels=())
    for few in (fifty[1:], [bare, *fifty[1:]], [replace(fifty[0], variant="other"), *fifty[1:]]):
        with pytest.raises(RecordError, match=r"49 items were answered and labelled .* the choice needs at least 50"):
            pair_variants(few)


def test_each_policy_pays_for_the_answers_it_needs_and_the_statements_it_reads(data: Paired) -> None:
    policies, learned = evaluate_choice(data, folds=2)
    found = {policy.name: policy for policy in policies}
    again = data.correct[:, 0] == 0  # whom a rule on a stated number asks again here
    for name, right, tokens, asked in (
        ("always direct", data.correct[:, 0], np.full(60, 10.0), np.zeros(60, bool)),
        ("always step by step", data.correct[:, 1], np.full(60, 100.0), np.ones(60, bool)),
        # Both answers, and the statement of confidence; difficulty is stated before there is an answer.
        ("stated confidence < 0.5", np.where(again, *data.correct.T[::-1]), 12.0 + 100 * again, again),
        ("stated difficulty >= 0.5", np.where(again, *data.correct.T[::-1]), np.where(again, 103.0, 13.0), again),
        ("mean log-probability < tuned", np.where(again, *data.correct.T[::-1]), 10.0 + 100 * again, again),
        (ORACLE, data.correct.max(axis=1), 10.0 + 100 * (data.correct[:, 1] > data.correct[:, 0]), None),
    ):
        np.testing.assert_array_equal(found[name].correct, right, err_msg=name)
        np.testing.assert_array_equal(found[name].tokens, tokens, err_msg=name)
        if asked is not None:
            np.testing.assert_array_equal(found[name].step_by_step, asked, err_msg=name)
    chosen = learned[:, 1] > learned[:, 0]
    np.testing.assert_array_equal(found[LEARNED].tokens, 15.0 + 100 * chosen)
    np.testing.assert_array_equal(found[LEARNED].correct, data.correct[np.arange(60), chosen.astype(int)])
    assert learned[~again, 0].min() > 0.8 > 0.2 > learned[again, 0].max()


def test_a_threshold_is_tuned_to_never_or_always_where_that_is_best(data: Paired) -> None:
    for column, asked in ((0, False), (1, True)):
        better, place = data.correct.copy(), np.arange(60) % 4
        better[:, column], better[:, 1 - column] = place != 1 + 2 * (column == 0), place == 3 - 2 * (column == 0)
        policies, _ = evaluate_choice(replace(data, correct=better), folds=2)
        tuned = next(policy for policy in policies if policy.name == "mean log-probability < tuned")
        assert tuned.step_by_step.tolist() == [asked] * 60
