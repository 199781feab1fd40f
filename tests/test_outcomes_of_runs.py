"""Runs become what a panel learns from: who was right, how sure, at which price, and by whose number."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_confidence_sources import AGENTS, PRICES, recorded
from test_handed_on import Listener

from metaprobe.llms.pricing import Price
from metaprobe.probes.signals import Signal
from metaprobe.probes.source import SignalSource
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes, write_outcomes
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Run, Usage
from metaprobe.training.options import WrongOptions
from metaprobe.training.recipes import confidence_sources as sources
from metaprobe.training.recipes import outcomes_of_runs as module
from metaprobe.training.recipes.confidence_sources import Confidences, CrossFitted, sources_of
from metaprobe.training.recipes.outcomes_of_runs import assessment_part, outcomes_at, outcomes_of


def without(run: Run, *stages: str, agent: str = "") -> Run:
    """The run with some agent's calls of these stages left out."""
    kept = tuple(call for call in run.calls if call.stage not in stages or (agent and call.agent != agent))
    return dataclasses.replace(run, calls=kept)


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


def test_of_several_runs_of_an_item_the_one_counts_in_which_most_was_asked() -> None:
    [run] = recorded(1)
    one = without(run, "assess", "answer", agent="alpha")
    lone = dataclasses.replace(one, labels=tuple(label for label in run.labels if label.call_id == "0-beta"))
    for order in ([lone, run], [run, lone]):
        assert list(outcomes_of(order, prices=PRICES)[0].agents) == ["alpha", "beta"]
    [only] = outcomes_of([lone], prices=PRICES)
    assert (only.id, only.group, only.dimension, list(only.agents)) == ("q0", "g0", "", ["beta"]), (
        "the classifier said none"
    )
    unjudged = dataclasses.replace(run, labels=())
    with pytest.raises(RecordError, match="no run holds an agent's answer that a program judged"):
        outcomes_of([unjudged], prices=PRICES)
    assert [q.id for q in outcomes_of([unjudged, *recorded(3)], prices=PRICES)] == ["q0", "q1", "q2"]


def test_what_is_stated_before_the_answer_is_a_part_of_what_agents_that_did_both_were_paid() -> None:
    made = recorded(2)
    long = [Usage(100, 10), Usage(100, 10), Usage(500, 110), Usage(100, 10)]
    assert assessment_part(made, prices=PRICES) == 0.5
    uneven = priced(made[0], *long)  # beta's statement costs 610, its answer 110
    assert assessment_part([uneven], prices=PRICES) == pytest.approx((110 + 610) / (2 * 110 + 610 + 110))
    answered = without(uneven, "assess", agent="beta")
    assert assessment_part([answered], prices=PRICES) == 0.5, "alpha alone was asked both"
    assert assessment_part([without(uneven, "assess")], prices=PRICES) is None
    assert assessment_part(made, prices={name: Price(0.0, 0.0) for name in AGENTS}) is None


def test_of_a_folder_of_runs_prices_and_signals_are_read_and_of_a_file_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunStore(tmp_path / "runs").append(recorded(3))
    (tmp_path / "prices.json").write_text('{"org/model": {"prompt": 1, "completion": 2}}')
    asked = {"prices": tmp_path / "prices.json", "signals": [], "seed": 7, "command": "called so"}
    found, part = outcomes_at(tmp_path / "runs", **asked)  # type: ignore[arg-type]
    assert (len(found), part) == (3, 0.5)
    assert found[0].agents["alpha"].cost_usd == pytest.approx(2 * 120 / 1e6)
    fitted = Confidences(fitted={"": CrossFitted({}, "digest", with_stated=False)})
    loaded = Listener(monkeypatch, module.Confidences, "load", fitted)
    found, part = outcomes_at(tmp_path / "runs", **{**asked, "signals": ["confidence=train:q"]})  # type: ignore[arg-type]
    assert loaded.calls == [((["confidence=train:q"], tmp_path / "runs"), {"seed": 7, "command": "called so"})]
    assert part == 1.0, "the answer is the draft that the confidence is read in"
    assert found[0].agents["alpha"].cost_usd == pytest.approx(120 / 1e6), "and nobody states anything"
    write_outcomes(tmp_path / "o.jsonl", [QuestionOutcomes("q", "g", agents={"a": AgentOutcome("", 1.0, None, 0.1)})])
    none = {"prices": None, "signals": (), "seed": 0, "command": ""}
    assert outcomes_at(tmp_path / "o.jsonl", **none)[1] is None  # type: ignore[arg-type]
    for name, given in (("prices", "p.json"), ("signals", ["confidence=c"])):
        with pytest.raises(WrongOptions, match=f"{name.removesuffix('s') if name == 'signals' else name} is for"):
            outcomes_at(tmp_path / "o.jsonl", **{**none, name: given})  # type: ignore[arg-type]


def test_a_predictor_is_fitted_in_folds_on_the_answers_of_the_agent_it_is_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    RunStore(tmp_path / "runs").append(recorded(3))
    table = SimpleNamespace(call_ids=SimpleNamespace(tolist=lambda: ["0-beta"]))
    fits = {sources.LADDER: SimpleNamespace(probability=SimpleNamespace(tolist=lambda: [0.25]))}
    of = SimpleNamespace(target="correct", evidence=SimpleNamespace(table=table), fits=fits)
    studied = Listener(monkeypatch, sources, "study", of)
    written = Listener(monkeypatch, sources, "write_quality", SimpleNamespace(digest="digest"))
    specs = ["confidence@beta=stated+train:q", "confidence=train:all"]
    found = Confidences.load(specs, tmp_path / "runs", folds=3, seed=7, command="called so")
    asked = {"stage": "answer", "hidden": False, "folds": 3, "seed": 7}
    store = [tmp_path / "runs"]
    assert studied.calls == [((store,), {**asked, "agent": "beta"}), ((store,), {**asked, "agent": None})]
    so = {"command": "called so"}
    assert written.calls == [(("q", {"correct": of}), so), (("all", {"correct": of}), so)]
    assert found.fitted["beta"] == CrossFitted({"0-beta": 0.25}, "digest", with_stated=True)
    assert found.fitted[""] == CrossFitted({"0-beta": 0.25}, "digest", with_stated=False)
    Confidences.load(["confidence=train:q"], tmp_path / "runs")
    assert (studied.calls[-1][1]["folds"], studied.calls[-1][1]["seed"]) == (5, 0)
    with pytest.raises(RecordError, match=r"no agent 'gamma' answers in .*; there are alpha, beta"):
        Confidences.load(["confidence@gamma=train:q"], tmp_path / "runs")


def test_a_fitted_number_stands_alone_or_joined_and_what_is_missing_leaves_the_other() -> None:
    answer, other = Call(id="c"), Call(id="d")
    alone = Confidences(fitted={"": CrossFitted({"c": 0.2}, "digest", with_stated=False)})
    assert alone.of("a", 0.8, answer) == Signal(0.2, "digest")
    assert alone.of("a", None, answer) == Signal(0.2, "digest")
    assert alone.of("a", 0.8, other) is None
    assert (alone.asks("a"), alone.reads_answer("a")) == (False, True)
    joined = Confidences(fitted={"a": CrossFitted({"c": 0.2}, "digest", with_stated=True)})
    both = joined.of("a", 0.8, answer)
    assert both is not None
    assert (both.value, both.source) == (pytest.approx(0.5), "stated+digest")
    assert joined.of("a", None, answer) == Signal(0.2, "digest")
    assert joined.of("a", 0.8, other) == Signal(0.8, "stated")
    assert joined.of("a", None, other) is None
    assert (joined.asks("a"), joined.reads_answer("a")) == (True, True)
    assert joined.of("b", 0.7, answer) == Signal(0.7, "stated"), "another agent's stays as it was stated"
    assert (joined.asks("b"), joined.reads_answer("b")) == (True, False)


def test_an_agents_own_checkpoint_goes_before_a_predictor_for_all() -> None:
    named = SimpleNamespace(
        replacement=lambda name, agent="": "own" if agent == "a" else None,
        signal=lambda name, agent, stated, call: Signal(0.9, f"own of {agent}"),
        asks=lambda name, agent: False,
        reads=lambda name, agent: "prompt",
    )
    found = Confidences(named, {"": CrossFitted({"c": 0.2}, "digest", with_stated=True)})  # type: ignore[arg-type]
    assert found.of("a", 0.5, Call(id="c")) == Signal(0.9, "own of a")
    assert (found.asks("a"), found.reads_answer("a")) == (False, False)
    assert (found.asks("b"), found.reads_answer("b")) == (True, True)
    with pytest.raises(RecordError, match="confidence of b is read in the answer"):
        assessment_part(
            [SimpleNamespace(calls=[Call(id="1", agent="a"), Call(id="2", agent="b")])],  # type: ignore[list-item]
            confidences=found,
        )


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
    assert isinstance(Confidences().replaced, SignalSource)


def test_of_two_runs_that_asked_the_same_agents_the_one_counts_in_which_they_said_how_sure_they_are() -> None:
    [run] = recorded(1)
    silent = dataclasses.replace(run, id="silent", statements=())
    for order in ([silent, run], [run, silent]):
        agents = outcomes_of(order, prices=PRICES)[0].agents
        assert [agent.confidence for agent in agents.values()] == [0.9, 0.9]


def test_what_an_agent_need_not_state_is_not_paid_for() -> None:
    [run] = recorded(1)
    dear = [Usage(1000, 100), Usage(100, 10), Usage(1000, 100), Usage(100, 10)]  # statement and answer of each

    class Read(Confidences):
        """As read in the answers of alpha, and stated by beta."""

        def asks(self, agent: str) -> bool:
            return agent == "beta"

        def of(self, agent: str, stated: float | None, answer: Call) -> Signal | None:
            assert answer.stage == "answer"
            return Signal(0.7, "read") if agent == "alpha" else Signal(stated or 0.0, "stated")

    confidences = Read.__new__(Read)
    whole = outcomes_of([priced(run, *dear)], prices=PRICES)[0].agents
    found = outcomes_of([priced(run, *dear)], prices=PRICES, confidences=confidences)[0].agents
    assert found["alpha"].cost_usd == pytest.approx(whole["alpha"].cost_usd / 11)
    assert found["beta"].cost_usd == pytest.approx(whole["beta"].cost_usd)
    assert (found["alpha"].confidence, found["beta"].confidence) == (0.7, 0.9)
