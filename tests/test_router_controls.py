"""Controls of a router are tuned finely, spend what they may, and learn nothing of the questions they are judged on."""

import numpy as np
import pytest

from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.training.router.control_policies import ControlFamily, families_of
from metaprobe.training.router.data import Outcomes, outcomes_of

COST = {"cheap": 0.001, "dear": 0.003}


def planted(n: int, seed: int = 0) -> list[QuestionOutcomes]:
    """The dear agent is always right, the cheap one exactly where the question says `easy`, which is half of them, and
    then its confidence is above 0.5."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(n):
        easy = bool(rng.random() < 0.5)
        text = f"an {'easy' if easy else 'awkward'} question with {'plain' if easy else 'crooked'} words"
        confidence = float(rng.random() / 2 + (0.5 if easy else 0.0))
        agents = {
            "cheap": AgentOutcome("a", float(easy), confidence, COST["cheap"]),
            "dear": AgentOutcome("b", 1.0, None, COST["dear"]),
        }
        found.append(QuestionOutcomes(f"q{i}", f"g{i}", text, "", agents))
    return found


@pytest.fixture(scope="module")
def data() -> Outcomes:
    return outcomes_of(planted(600))


@pytest.fixture(scope="module")
def families(data: Outcomes) -> dict[str, ControlFamily]:
    return families_of(data, np.arange(400), np.arange(400, 600))


def test_each_control_spends_the_budget_and_reaches_what_it_is_known_to_reach(
    data: Outcomes, families: dict[str, ControlFamily]
) -> None:
    """A way that sees which questions are easy has two settings of use: the cheap agent for all, and the dear one for
    the rest. Between the two budgets its mixture buys right answers in proportion; without mixing it would buy none."""
    easy = data.score[:400, 0].mean()
    dearest_needed = 1.0 + 2.0 * (1 - easy)
    for name in ("TF-IDF logistic", "kNN on TF-IDF SVD"):
        for part in (0.25, 0.5, 1.0):
            budget = 1.0 + part * (dearest_needed - 1.0)
            score, cost, calls = families[name].at(budget)
            on_test = data.score[400:, 0].mean()
            assert score.mean() == pytest.approx(on_test + part * (1 - on_test), abs=1e-9)
            assert cost.mean() == pytest.approx(1.0 + part * 2.0 * (1 - on_test), abs=1e-9)
            assert calls.mean() == 1.0
    for budget in (1.2, 2.0, 2.9):
        score, cost, _ = families["random mixture"].at(budget)
        assert cost.mean() == pytest.approx(budget)
        assert score.mean() == pytest.approx(np.interp(budget, [1, 3], [data.score[400:, 0].mean(), 1]), abs=1e-9)
    score, cost, calls = families["tuned cascade"].at(9.0)
    # Its thresholds are quantiles, so that a few questions between two of them are asked of both for nothing.
    assert score.mean() == pytest.approx(1.0, abs=0.02)
    assert calls.mean() == pytest.approx(1.0 + (1 - data.score[400:, 0].mean()), abs=0.03)


def test_a_way_of_few_steps_spends_in_between_by_mixing_and_not_at_the_step_below(
    families: dict[str, ControlFamily],
) -> None:
    singles = families["random mixture"]
    assert singles.below(2.0)[1].mean() == pytest.approx(1.0)
    assert singles.at(2.0)[1].mean() == pytest.approx(2.0)
    assert singles.at(2.0)[0].mean() > singles.below(2.0)[0].mean()


def test_at_equal_spending_a_control_spends_on_the_other_questions_what_is_asked(
    families: dict[str, ControlFamily],
) -> None:
    for family in families.values():
        assert family.spending(1.7)[1].mean() == pytest.approx(1.7, abs=1e-3)


def test_outcomes_of_the_questions_it_is_judged_on_do_not_change_what_a_control_does(data: Outcomes) -> None:
    import dataclasses

    train, test = np.arange(400), np.arange(400, 600)
    score = data.score.copy()
    score[test] = 1 - score[test]
    other = families_of(dataclasses.replace(data, score=score), train, test)
    for name, family in families_of(data, train, test).items():
        assert np.array_equal(family.cost, other[name].cost)
        assert np.array_equal(family.settings[:, 1:], other[name].settings[:, 1:])  # the same choices, costs and calls


@pytest.mark.parametrize("question", ["the same words here", "", None])
def test_controls_on_words_need_no_word_that_several_questions_share(question: str | None) -> None:
    def line(i: int) -> QuestionOutcomes:
        text = f"word{i} other{i}" if question is None else question
        agents = {
            name: AgentOutcome("a", float((i + place) % 2), None, cost)
            for place, (name, cost) in enumerate(COST.items())
        }
        return QuestionOutcomes(f"q{i}", f"g{i}", text, f"d{i}" if question is None else "", agents)

    data = outcomes_of([line(i) for i in range(40)])
    found = families_of(data, np.arange(30), np.arange(30, 40))
    assert {"TF-IDF logistic", "kNN on TF-IDF SVD"} <= found.keys()
