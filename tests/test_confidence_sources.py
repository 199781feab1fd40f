"""Where a confidence is from stands in a panel's contract: another source is refused or said, and none is leaked."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tiny import tiny_quality

from metaprobe.checkpoints import ContractMismatch, Training
from metaprobe.cli import main
from metaprobe.llms.pricing import Price
from metaprobe.papers.policies.explore import EpsilonGreedy
from metaprobe.papers.policies.panel_policy import AgentPolicy, check_sources
from metaprobe.probes.signal_source import SignalSource
from metaprobe.probes.signals import Signal, Signals
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes, read_outcomes
from metaprobe.records.store import RunStore, fingerprint
from metaprobe.records.types import Call, Item, Label, Run, Statement, Usage
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.policy import Action, State
from metaprobe.training.panel.labelled_panels import sources_of
from metaprobe.training.recipes.outcomes_of_runs import assessment_part, outcomes_of, source_of_confidences
from metaprobe.training.recipes.panel import train_router
from metaprobe.training.training_options import RouterOptions

AGENTS = ("alpha", "beta")
PRICES = {name: Price(1.0, 1.0) for name in AGENTS}
OTHER = "f" * 64

# Whether so little data passes every audit is not the subject here.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")


def planted(n: int, source: str = "stated") -> list[QuestionOutcomes]:
    """Beta is right three times of four, alpha half the time, and both know it."""
    rng = np.random.default_rng(0)
    found = []
    for i in range(n):
        agents = {}
        for name, skill in zip(AGENTS, (0.5, 0.75), strict=True):
            right = float(rng.random() < skill)
            sure = round(float(np.clip(0.3 + 0.4 * right + rng.normal(0, 0.1), 0.0, 1.0)), 2)
            agents[name] = AgentOutcome("", right, sure, 0.001, confidence_source=source)
        found.append(QuestionOutcomes(f"q{i}", f"g{i}", dimension="any", agents=agents))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_router(planted(200), RouterOptions(out=tmp_path_factory.mktemp("sources") / "stated")).path


def why(policy: AgentPolicy, source: str) -> str:
    """Why the policy decides as it does where alpha's confidence is from there."""
    signals = Signals(confidence=Signal(0.5, source), profile=Signal(0.5, "profile"))
    return policy.decide(State("d", "assess", signals, "alpha", dimension="any"), (Action.EXECUTE, Action.ASK)).reason


def test_a_confidence_from_another_source_is_said_and_not_used(folder: Path) -> None:
    """The number is one that the agent often stated, so that its range tells nothing."""
    policy = AgentPolicy(Panel.load(folder))
    assert policy.sources == {"alpha": "stated", "beta": "stated"}
    assert "by the papers' rule" not in why(policy, "stated")
    assert why(policy, "") == why(policy, "stated"), "not known is not held against it"
    other = why(policy, OTHER)
    assert "by the papers' rule" in other
    assert "alpha is read by checkpoint ffff" in other
    assert "learned from one that is stated by the model" in other
    assert "train it on this one" in other


def test_a_collection_with_another_signal_is_refused_before_its_first_call(folder: Path, tmp_path: Path) -> None:
    policy = AgentPolicy(Panel.load(folder))
    checkpoint = tiny_quality(tmp_path / "quality")
    other = SignalSource.load([f"confidence={tmp_path / 'quality'}"])
    check_sources(policy, SignalSource(), AGENTS)
    for under in (policy, EpsilonGreedy(policy, epsilon=0.1)):
        with pytest.raises(ContractMismatch, match=checkpoint.digest[:16]):
            check_sources(under, other, AGENTS)
    # One that learned from both joined takes either for an answer, but not for a collection.
    joined = AgentPolicy(Panel.load(folder))
    joined.sources.update(dict.fromkeys(AGENTS, f"stated+{checkpoint.digest}"))
    assert "by the papers' rule" not in why(joined, "stated")
    with pytest.raises(ContractMismatch, match="joined with the stated one"):
        check_sources(joined, SignalSource(), AGENTS)
    check_sources(joined, SignalSource.load([f"confidence=stated+{tmp_path / 'quality'}"]), AGENTS)


def test_outcomes_say_the_source_and_a_mixture_of_two_is_refused(tmp_path: Path) -> None:
    questions = planted(4, source=OTHER)
    QuestionOutcomes.write(tmp_path / "o.jsonl", questions)
    assert read_outcomes(tmp_path / "o.jsonl") == questions
    assert sources_of(questions, AGENTS) == dict.fromkeys(AGENTS, OTHER)
    assert sources_of(planted(4, source=""), AGENTS) == {}
    with pytest.raises(RecordError, match="one source"):
        sources_of([*questions, *planted(2)], AGENTS)


def recorded(n: int) -> list[Run]:
    """Two agents that state and answer; whether they are right is tossed, so that log-probabilities tell an answer from
    all others, but nothing of whether it is right."""
    rng = np.random.default_rng(3)
    runs = []
    for i in range(n):
        calls, labels, said = [], [], []
        for name in AGENTS:
            usage = Usage(prompt_tokens=100, completion_tokens=10)
            assess = Call(id=f"{i}-{name}-assess", stage="assess", agent=name, model="org/model", usage=usage)
            logprobs = -rng.exponential(1.0, 20).astype(np.float32)
            answer = Call(
                id=f"{i}-{name}",
                stage="answer",
                agent=name,
                model="org/model",
                usage=usage,
                logprobs=logprobs,
                logprobs_mode="raw",
            )
            right = float(rng.random() < 0.5)
            calls += [assess, answer]
            labels.append(Label(answer.id, "correct", right, "program"))
            said.append(Statement(assess.id, "confidence", 0.9))
        item = Item(id=f"q{i}", question=f"question {i}?", gold=("4",), check="number", group=f"g{i}", dimension="any")
        runs.append(
            Run(
                f"r{i}",
                "metacogagent",
                "every-agent",
                item,
                tuple(calls),
                tuple(said),
                tuple(labels),
                final_answer="4",
            )
        )
    return runs


def test_a_checkpoints_number_takes_the_stated_ones_place_and_what_is_not_stated_is_not_paid(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    store.append(recorded(5))
    runs = list(store)
    checkpoint = tiny_quality(tmp_path / "quality")
    specs = {"": [], "read": ["confidence="], "both": ["confidence=stated+"], "beta": ["confidence@beta="]}
    found = {
        name: source_of_confidences([f"{spec}{tmp_path / 'quality'}" for spec in given], store)
        for name, given in specs.items()
    }
    outcomes = {name: outcomes_of(runs, prices=PRICES, source=told)[0].agents for name, told in found.items()}
    predicted = found["read"].signal("confidence", agent="alpha", call=runs[0].calls[1])
    assert predicted is not None
    assert outcomes[""]["alpha"].confidence == 0.9
    assert outcomes["read"]["alpha"].confidence == predicted.value
    assert outcomes["read"]["alpha"].confidence_source == checkpoint.digest
    assert outcomes["both"]["alpha"].confidence_source == f"stated+{checkpoint.digest}"
    assert [outcomes["beta"][name].confidence_source for name in AGENTS] == ["stated", checkpoint.digest]
    one = 110 / 1e6
    assert [outcomes[name]["alpha"].cost_usd for name in ("", "read", "both")] == pytest.approx([2 * one, one, 2 * one])
    parts = {name: assessment_part(runs, prices=PRICES, source=found[name]) for name in ("", "read", "both")}
    assert parts == {"": 0.5, "read": 1.0, "both": 1.0}  # a draft is the answer, and all of it is paid beforehand
    with pytest.raises(RecordError, match="confidence of beta is read in the answer"):
        assessment_part(runs, prices=PRICES, source=found["beta"])


def test_only_the_confidence_is_read_and_a_checkpoint_of_these_runs_is_refused(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    store.append(recorded(3))
    tiny_quality(tmp_path / "seen", training=Training(fingerprint(store), 6, 3, 0, "metaprobe train quality"))
    with pytest.raises(RecordError, match="trained on these very runs"):
        source_of_confidences([f"confidence@beta={tmp_path / 'seen'}"], store)
    with pytest.raises(RecordError, match="reads confidence only"):
        source_of_confidences([f"difficulty={tmp_path / 'seen'}"], store)


def test_the_command_learns_from_a_signal_and_says_so_in_the_contract(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    store.append(recorded(80))
    checkpoint = tiny_quality(tmp_path / "quality")
    (tmp_path / "prices.json").write_text(json.dumps({name: {"prompt": 1, "completion": 1} for name in AGENTS}))
    options = ["--out", str(tmp_path / "c")]
    signal = ["--signal", f"confidence={tmp_path / 'quality'}"]
    prices = ["--prices", str(tmp_path / "prices.json")]
    made = CliRunner().invoke(main, ["train", "router", str(tmp_path / "runs"), *options, *prices, *signal])
    assert made.exit_code == 0, made.output
    policy = AgentPolicy(Panel.load(tmp_path / "c"))
    assert policy.sources == dict.fromkeys(AGENTS, checkpoint.digest)
    assert policy.assessment == 1.0
    QuestionOutcomes.write(tmp_path / "o.jsonl", planted(80))
    elsewhere = ["--out", str(tmp_path / "d")]
    refused = CliRunner().invoke(main, ["train", "router", str(tmp_path / "o.jsonl"), *elsewhere, *signal])
    assert refused.exit_code == 2
    assert "signal is for a folder of runs" in refused.output


# Runs become what a panel learns from: who was right, how sure, at which price, and by whose number.


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
