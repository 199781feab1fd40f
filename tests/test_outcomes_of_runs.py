"""Runs become what a panel learns from: who was right, how sure, at which price, and by whose number."""

import dataclasses

import pytest
from test_confidence_sources import PRICES, recorded

from metaprobe.llms.pricing import Price
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.records.types import Run, Usage
from metaprobe.training.recipes.outcomes_of_runs import outcomes_of
from metaprobe.training.recipes.panel import sources_of


def priced(run: Run, *usages: Usage, cost: float | None = None) -> Run:
    given = usages or tuple(call.usage for call in run.calls)
    pairs = zip(run.calls, given, strict=True)
    return dataclasses.replace(
        run, calls=tuple(dataclasses.replace(call, usage=usage, cost_usd=cost) for call, usage in pairs)
    )


def test_a_call_costs_by_its_agents_price_before_its_models_before_what_is_recorded() -> None:
    [run] = recorded(1)  # each call read 100 tokens and wrote 10
    cost = 0.001
    both = {"alpha": Price(1.0, 2.0), "org/model": Price(3.0, 4.0)}
    found = outcomes_of([priced(run, cost=cost)], prices=both)[0].agents
    assert found["alpha"].cost_usd == pytest.approx(2 * (100 * 1 + 10 * 2) / 1e6)
    assert found["beta"].cost_usd == pytest.approx(2 * (100 * 3 + 10 * 4) / 1e6)
    assert (found["beta"].prompt_tokens, found["beta"].completion_tokens) == (200, 20)
    assert outcomes_of([priced(run, cost=cost)])[0].agents["beta"].cost_usd == pytest.approx(2 * cost)
    with pytest.raises(RecordError, match=r"call 0-alpha-assess has no recorded cost.*'alpha' or of 'org/model'"):
        outcomes_of([run])
    with pytest.raises(RecordError, match="call 0-alpha-assess does not say how many tokens it read"):
        outcomes_of([priced(run, *[Usage(0, 10)] * 4)], prices=PRICES)


def test_what_joins_two_numbers_may_hold_either_alone() -> None:
    def questions(*named: str) -> list[QuestionOutcomes]:
        return [
            QuestionOutcomes(f"{i}", f"{i}", agents={"a": AgentOutcome("", 1.0, 0.5, 0.1, confidence_source=name)})
            for i, name in enumerate(named)
        ]

    assert sources_of(questions("stated+d", "stated", "d", "stated+d"), ["a"]) == {"a": "stated+d"}
    assert sources_of(questions("", ""), ["a"]) == {}
    assert sources_of(questions("stated", ""), ["a", "absent"]) == {"a": "stated"}
    with pytest.raises(RecordError, match=r"confidences of a are from 'stated\+d' and from \['e'\]"):
        sources_of(questions("stated+d", "e"), ["a"])
    unsaid = [QuestionOutcomes("1", "1", agents={"a": AgentOutcome("", 1.0, None, 0.1, confidence_source="e")})]
    assert sources_of([*questions("d"), *unsaid], ["a"]) == {"a": "d"}, "where there is no number there is no source"


def test_of_two_runs_that_asked_the_same_agents_the_one_counts_in_which_they_said_how_sure_they_are() -> None:
    [run] = recorded(1)
    silent = dataclasses.replace(run, id="silent", statements=())
    for order in ([silent, run], [run, silent]):
        agents = outcomes_of(order, prices=PRICES)[0].agents
        assert [agent.confidence for agent in agents.values()] == [0.9, 0.9]
