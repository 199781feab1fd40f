"""From outcomes to what a router learns from: arrays, pasts, scales, and what each way of asking would have come to."""

import json
from dataclasses import replace

import numpy as np
import pytest

from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.training.router.curve import alone_of, by_rule, each_alone, rule_of
from metaprobe.training.router.data import Outcomes, fingerprint_of, outcomes_of, pasts_json, pasts_of, relative
from metaprobe.training.router.fit import FEW, WHOLE, Board, cost_scale, time_scale, worth_offering
from metaprobe.training.router.rows import Rates, views_of


def question(number: int, *, group: str = "", dimension: str = "", text: str = "?", **agents: AgentOutcome):
    return QuestionOutcomes(f"q{number}", group or f"g{number}", text, dimension, agents)


def two(n: int = 40) -> list[QuestionOutcomes]:
    """The cheap agent is right on `easy`, which is half of them, and surer there; the dear one is right always."""
    return [
        question(
            i,
            dimension="hard" if i % 2 else "easy",
            text="x" * (10 + i),
            cheap=AgentOutcome("Nile", float(1 - i % 2), 0.2 + 0.6 * (1 - i % 2) + i / 1000, 0.001, 500.0),
            dear=AgentOutcome("the Nile" if i < 10 else "Amazon", 1.0, None, 0.003 + i / 1e6, 2000.0),
        )
        for i in range(n)
    ]


def test_outcomes_become_one_row_a_question_and_one_column_an_agent() -> None:
    data = outcomes_of(two())
    assert (data.agents, data.dimensions) == (("cheap", "dear"), ("easy", "hard"))
    assert data.score[:3].tolist() == [[1, 1], [0, 1], [1, 1]]
    assert data.cost[2].tolist() == [0.001, 0.003002]
    assert data.seconds[0].tolist() == [0.5, 2.0]
    np.testing.assert_array_equal(data.propensity, np.ones((40, 2)))
    assert data.confidence[0, 0] == 0.8
    assert np.isnan(data.confidence[:, 1]).all()
    assert (data.agreement[0, 0, 1], data.agreement[0, 1, 0], data.agreement[20, 0, 1]) == (0.5, 0.5, 0.0)
    assert data.dimension[:3].tolist() == [0, 1, 0]
    assert (data.questions[3], data.groups[3], len(data)) == ("x" * 13, "g3", 40)
    turned = outcomes_of(two(), ["dear", "cheap"])
    np.testing.assert_array_equal(turned.score, data.score[:, ::-1])


def test_what_is_not_known_stays_open_and_what_is_needed_is_asked_for() -> None:
    right, open_ = AgentOutcome("a", 1.0, -np.inf, 0.001), AgentOutcome("a")
    data = outcomes_of(
        [question(0, a=right, b=open_), question(1, a=AgentOutcome("a", 0.0, -2.5, 0.0)), question(2, b=open_)]
    )
    assert len(data) == 2  # without a scored answer there is nothing to learn
    assert data.dimension.tolist() == [-1, -1]
    np.testing.assert_array_equal(data.score, [[1, np.nan], [0, np.nan]])
    assert data.confidence[:, 0].tolist() == [-2.5, -2.5]  # minus infinity counts as the least of the others
    assert data.propensity.tolist() == [[1, 0], [1, 0]]
    assert np.isnan(data.seconds).all()
    with pytest.raises(RecordError, match="no answer is scored"):
        outcomes_of([question(0, a=open_)])
    with pytest.raises(RecordError, match="no answer is scored"):
        outcomes_of([question(0, a=right)], agents=["b"])
    with pytest.raises(RecordError, match="question q7: a has no cost_usd; give one, 0 where it costs nothing"):
        outcomes_of([question(7, a=AgentOutcome("a", 1.0))])
    with pytest.raises(RecordError, match="agent 'b' has no scored answer; leave it out"):
        pasts_of(outcomes_of([question(0, a=right, b=open_)]))


def test_rows_and_columns_can_be_chosen() -> None:
    data = outcomes_of(two())
    part = data.take(np.array([3, 1]))
    assert (part.questions, part.groups) == (("x" * 13, "x" * 11), ("g3", "g1"))
    for name in ("score", "confidence", "cost", "seconds", "propensity", "agreement", "dimension"):
        np.testing.assert_array_equal(getattr(part, name), getattr(data, name)[[3, 1]])
    only = data.only([1])
    assert only.agents == ("dear",)
    assert (only.score.shape, only.agreement.shape, only.seconds[0, 0]) == ((40, 1), (40, 1, 1), 2.0)
    assert (only.cost[1, 0], only.propensity.shape, only.confidence.shape) == (0.003001, (40, 1), (40, 1))


def test_a_past_holds_rates_prices_times_and_how_often_a_confidence_was_stated() -> None:
    pasts = pasts_of(outcomes_of(two()))
    cheap, dear = pasts["cheap"], pasts["dear"]
    assert set(cheap) == {"", "easy", "hard"}
    assert cheap["hard"].rate < cheap[""].rate < cheap["easy"].rate
    assert cheap[""].rate == pytest.approx(0, abs=1e-9)  # half of them are right
    assert (cheap[""].price_usd, cheap[""].price_per_char) == (pytest.approx(0.001), 0.0)
    assert dear[""].price_usd == pytest.approx(0.003 + 19.5e-6)
    assert dear[""].price_per_char == pytest.approx(1e-6)
    assert (dear[""].mean_chars, dear["easy"].mean_chars) == (29.5, 29.0)
    assert (cheap[""].seconds, dear[""].seconds) == (0.5, 2.0)
    assert (cheap[""].stated, dear[""].stated) == (1.0, 0.0)
    assert (dear[""].knots, dear[""].scores, dear[""].slope) == ((), (), 0.0)
    assert cheap[""].slope > 0.5  # its confidence tells
    assert cheap[""].knots[0] == pytest.approx(0.201)
    assert cheap[""].knots[-1] == pytest.approx(0.838)
    assert list(cheap[""].scores) == sorted(cheap[""].scores)
    half = [replace(q, agents={"cheap": replace(q.agents["cheap"], confidence=None, latency_ms=None)}) for q in two(4)]
    some = pasts_of(outcomes_of([*two()[:12], *half]))["cheap"][""]
    assert (some.stated, some.seconds) == (0.75, None)
    read = json.loads(pasts_json(pasts))
    assert read["dear"]["easy"]["price_usd"] == dear["easy"].price_usd


def test_scales_are_those_of_the_dearest_and_the_slowest_agent() -> None:
    data = outcomes_of(two())
    assert cost_scale(data) == pytest.approx(3.0195)
    assert time_scale(data) == pytest.approx(2.0)
    free = replace(data, cost=np.zeros_like(data.cost), seconds=np.zeros_like(data.seconds))
    assert (cost_scale(free), time_scale(free)) == (1.0, 1.0)
    small = replace(data, cost=data.cost / 100, seconds=data.seconds / 100)
    assert (cost_scale(small), time_scale(small)) == pytest.approx((0.030195, 0.02))
    partly = replace(data, cost=np.where(np.arange(40)[:, None] < 20, data.cost, np.nan))
    assert cost_scale(partly) == pytest.approx(3.0095)
    assert relative(np.array([1.0, 3.0])).tolist() == [0.5, 1.5]
    assert len(relative(np.empty(0))) == 0


def test_the_fingerprint_follows_outcomes_and_not_order_or_wording() -> None:
    questions = two()
    known = fingerprint_of(questions)
    assert fingerprint_of(questions[::-1]) == known
    assert fingerprint_of([replace(q, question="other words") for q in questions]) == known
    first = questions[0]
    cheap = first.agents["cheap"]
    for changed in (
        replace(first, id="other"),
        replace(first, group="other"),
        replace(first, dimension="other"),
        replace(first, propensities={"cheap": 1.0}),
        *(replace(first, agents={**first.agents, "cheap": replace(cheap, **{name: 0.125})})
          for name in ("score", "confidence", "cost_usd")),
    ):  # fmt: skip
        assert fingerprint_of([changed, *questions[1:]]) != known


def board(data: Outcomes) -> Board:
    pasts = pasts_of(data)
    views = views_of(data, pasts, np.full(data.score.shape, np.nan))
    return Board(views, data, lambda X, _: np.full(len(X), 0.5), 2)


def test_each_agent_alone_comes_to_its_own_accuracy_price_and_time() -> None:
    data = outcomes_of(two())
    reached = each_alone(board(data))
    np.testing.assert_allclose(reached.score.mean(axis=1), [0.5, 1.0])
    np.testing.assert_allclose(reached.cost.mean(axis=1), [1.0, 3.0195])
    np.testing.assert_allclose(reached.seconds.mean(axis=1), [0.5, 2.0])
    held_out = _Held(reached)
    cheap, dear = alone_of(held_out, data.agents)  # type: ignore[arg-type]
    assert (cheap.agent, cheap.accuracy, cheap.cost) == ("cheap", 0.5, pytest.approx(1.0))
    assert (dear.agent, dear.seconds) == ("dear", pytest.approx(2.0))
    score = reached.score.copy()
    score[0, 3] = np.nan
    [left] = alone_of(_Held(replace(reached, score=score)), data.agents)  # type: ignore[arg-type]
    assert left.agent == "dear"  # of the other it is not known for every question
    waits = replace(reached, seconds=np.full_like(reached.seconds, np.nan))
    assert [each.seconds for each in alone_of(_Held(waits), data.agents)] == [None, None]  # type: ignore[arg-type]


class _Held:
    def __init__(self, each: object, rule: object = None, rates: object = None) -> None:
        self.each, self.rule, self.rates = each, rule, rates


def test_the_fixed_rule_takes_the_best_past_less_its_dues() -> None:
    data = outcomes_of(two())
    made = board(data)
    rates = Rates(np.array([1e-6, 0.2, 10.0]), np.array([0.0, 0.0, 0.0]))
    reached = by_rule(made, rates)
    np.testing.assert_allclose(reached.score.mean(axis=1), [1.0, 1.0 - 0.0, 0.5])
    np.testing.assert_allclose(reached.cost[[0, 2]].mean(axis=1), [3.0195, 1.0])
    assert 1.0 < reached.cost[1].mean() < 3.0  # the cheap one where it is as good
    waiting = by_rule(made, Rates(np.array([1e-6]), np.array([5.0])))
    np.testing.assert_allclose(waiting.seconds.mean(axis=1), [0.5])
    points = rule_of(_Held(None, reached, rates))  # type: ignore[arg-type]
    assert [point.lambda_ for point in points] == [1e-6, 0.2, 10.0]
    assert points[2].accuracy == 0.5
    assert points[2].cost == pytest.approx(1.0)
    assert points[2].seconds == pytest.approx(0.5)


def test_few_agents_are_all_offered_and_of_many_those_that_some_cascade_asks() -> None:
    def team(agents: int, n: int = WHOLE) -> Outcomes:
        """The first is right where it is sure, which is half of the time, the second always, the others never."""
        questions = []
        for i in range(n):
            given = {f"a{a}": AgentOutcome("x", 0.0, (i * a % 7) / 7, 0.001 * (1 + a)) for a in range(2, agents)}
            given["a0"] = AgentOutcome("x", float(i % 2), 0.1 + 0.8 * (i % 2), 0.001)
            given["a1"] = AgentOutcome("x", 1.0, 0.5, 0.0025)
            questions.append(question(i, **given))
        return outcomes_of(questions)

    few = team(FEW)
    assert worth_offering(few, pasts_of(few)) == tuple(range(FEW))
    many = team(FEW + 1)
    assert worth_offering(many, pasts_of(many)) == (0, 1)
    short = team(FEW + 1, WHOLE - 1)
    assert worth_offering(short, pasts_of(short)) == tuple(range(FEW + 1))
    silent = replace(many, confidence=np.full_like(many.confidence, np.nan))
    assert worth_offering(silent, pasts_of(many)) == tuple(range(FEW + 1))


def test_without_a_gain_head_the_first_choice_is_kept() -> None:
    data = outcomes_of(two())
    made = board(data)
    mask, success = made.play(None, np.arange(3), np.array([[True, False]] * 3), Rates.of(np.ones(3)))
    assert mask.tolist() == [[True, False]] * 3
    assert success.tolist() == [[0.5, 0.5]] * 3
