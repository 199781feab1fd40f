"""Every system refuses, before anything is asked, what it could not use: signals, checkpoints, policies, constants."""

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedLLM, run_once
from test_every_system import ITEM_OF, SUM

from metaprobe.checkpoints import ContractMismatch
from metaprobe.llms.base import Request
from metaprobe.papers.collecting.launch import launch
from metaprobe.papers.collecting.plan import CollectionPlan
from metaprobe.papers.policies.explore import EpsilonGreedy, Exhaustive
from metaprobe.papers.policies.panel_policy import AgentPolicy
from metaprobe.papers.policies.review import ReviewRules
from metaprobe.papers.systems import SYSTEMS
from metaprobe.papers.systems.suitability import check_suitability
from metaprobe.probes.signal_source import SIGNAL_NAMES, SignalSource
from metaprobe.probes.signals import Signal
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Decision
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.policy import Action, Outcome, Policy, State

# Whether a bundled checkpoint passes every audit is not the subject here.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

VARIANTS = [(name, variant) for name, system in SYSTEMS.items() for variant in system.variants]
STATED = SignalSource()


class Planted(SignalSource):
    """Claims that a checkpoint gives these numbers; none has to be read."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    @property
    def description(self) -> dict[str, str]:
        return dict.fromkeys(self.names, "planted")


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_a_variant_refuses_every_signal_that_it_does_not_read(name: str, variant: str) -> None:
    system = SYSTEMS[name]
    for signal in SIGNAL_NAMES:
        if signal in system.signals_in(variant):
            continue
        with pytest.raises(RecordError, match=rf"signal '{signal}': .*{name}"):
            check_suitability(system, [variant], Planted(signal), PaperRules())
        with pytest.raises(RecordError, match=rf"signal '{signal}@nobody': .*{name}"):
            check_suitability(system, [variant], Planted(f"{signal}@nobody"), PaperRules())


@pytest.fixture(scope="module")
def router() -> Policy:
    return AgentPolicy(Panel.load("bundled:router"))


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_a_variant_refuses_every_policy_and_constant_that_it_would_not_ask(
    router: Policy, name: str, variant: str
) -> None:
    system = SYSTEMS[name]
    points = set(system.points_in(variant))
    for policy in (router, Exhaustive(), ReviewRules(), EpsilonGreedy(router, epsilon=0.1)):
        if points & set(policy.own):  # type: ignore[attr-defined]
            given = Planted("critical") if isinstance(policy, ReviewRules) else STATED
            check_suitability(system, [variant], given, policy)
            continue
        with pytest.raises(RecordError, match=rf"is for .*{name} \({variant}\) decides .*--policy"):
            check_suitability(system, [variant], STATED, policy)
    explorer = EpsilonGreedy(PaperRules(), epsilon=0.1)
    if not points:
        with pytest.raises(RecordError, match="decides nothing"):
            check_suitability(system, [variant], STATED, explorer)
    check_suitability(system, [variant], STATED, PaperRules())
    for constant, value in {"theta": 0.4, "good": 0.8, "base_tokens": 100, "rate": 0.2}.items():
        used = any(constant in PaperRules.constants[point] for point in points)
        rules = PaperRules(**{constant: value})  # type: ignore[arg-type]
        if used:
            check_suitability(system, [variant], STATED, rules)
        else:
            with pytest.raises(RecordError, match=rf"policy constant {constant}={value:g}: it is for .*{name}"):
                check_suitability(system, [variant], STATED, rules)


class Watching(SignalSource):
    """Remembers which numbers were asked for; reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def replacement(self, name: str, agent: str = "") -> None:
        self.asked.add(name)

    def signal(self, name: str, *, agent: str = "", stated: float | None = None, call: Call | None = None) -> Any:
        self.asked.add(name)
        return None if stated is None else Signal(stated, "stated")


class Curious:
    """Goes the way on which most is asked, and remembers where it had a choice."""

    def __init__(self) -> None:
        self.points: set[str] = set()

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        if len(legal_actions) > 1 or state.point == "budget":
            self.points.add(state.point)
        decision = PaperRules().decide(state, legal_actions)
        most = {"assess": Action.ASK, "iterate": Action.AGAIN if state.round < 2 else Action.STOP}.get(
            state.point, decision.action
        )
        return dataclasses.replace(decision, action=most) if most in legal_actions else decision

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """It learns nothing."""


def said(request: Request) -> str:
    """Something every stage can read; numbers differ with the round, so that there is something to choose."""
    if request.sampling.json_schema:
        properties = json.loads(request.sampling.json_schema)["properties"]
        return json.dumps({name: spec["enum"][0] if "enum" in spec else "" for name, spec in properties.items()})
    return f"Verdict: IMPROVE\nConfidence: 0.4\nDifficulty: 0.4\nAnswer: {request.round}"


SAID = {"*": said}


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_what_a_variant_declares_is_what_it_asks_for(name: str, variant: str) -> None:
    system = SYSTEMS[name]
    policy, signals = Curious(), Watching()
    run_once(system, ITEM_OF.get(name, SUM), ScriptedLLM(SAID), variant=variant, policy=policy, signals=signals)
    assert policy.points == set(system.points_in(variant))
    # An agent's confidence is not asked for where there is but one thing to do.
    assert set(system.signals_in(variant)) <= signals.asked or variant == "no-delegation"
    if variant != "no-delegation":
        assert signals.asked <= set(system.signals_in(variant))


@pytest.mark.parametrize(
    ("system", "signals", "policy", "said"),
    [
        (
            "essay-debate",
            ["quality=bundled:critical"],
            "paper",
            r"predicts critical, and not instruction.* or give it as",
        ),
        ("essay-debate", ["quality=bundled:quality"], "paper", "needs instruction, justification, evidence, critical"),
        ("essay-debate", ["quality=bundled:qwen-coder-0.5b-confidence"], "paper", "all from one checkpoint"),
        ("essay-debate", ["critical=bundled:quality"], "paper", r"predicts correct, and not critical"),
        ("essay-debate", [], "learned:bundled:router", r"is for assess, assign, and essay-debate .* decides at review"),
        ("metacrit", ["confidence=bundled:quality"], "paper", "it takes difficulty, quality"),
        ("metacrit", ["quality=bundled:quality"], "paper", r"nothing would read quality .* at regulate none"),
        ("monitor-generate-verify", ["quality=bundled:critical"], "paper", "not correct or quality"),
        ("self-report", [], "learned:bundled:router", "decides nothing"),
        ("zero-shot-cot", [], "paper:theta=0.4", "it is for assess, assign, and zero-shot-cot"),
        ("essay-debate", [], "review", "deciding at review needs the signal critical or quality, and none is given"),
        (
            "essay-debate",
            ["critical=bundled:critical"],
            "review:keep=0.5",
            "the constant keep needs the signal quality",
        ),
        ("essay-debate", ["critical@=bundled:critical"], "review", "expected NAME=CHECKPOINT"),
        ("metacogagent", ["confidence=bundled:quality"], "learned:bundled:router", "stated by the model"),
    ],
)
def test_the_command_refuses_before_a_model_is_loaded(
    tmp_path: Path, system: str, signals: list[str], policy: str, said: str
) -> None:
    """The model does not exist: to load it would be another error."""
    os.environ.setdefault("OPENAI_API_KEY", "sk-test")
    task = tmp_path / "task.jsonl"
    item = ITEM_OF.get(system, SUM)
    fields = {name: getattr(item, name) for name in ("id", "question", "gold", "check", "fields")}
    task.write_text(json.dumps(fields) + "\n")
    plan = CollectionPlan(system=system, task=str(task), llm=("no-such-model",), signal=tuple(signals), policy=policy)
    with pytest.raises((RecordError, ContractMismatch), match=said):
        launch(plan, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("text", ["again", "again=x", "sure=0.5", "critical=nan", "keep=1.5"])
def test_constants_of_the_review_are_three_probabilities(text: str) -> None:
    with pytest.raises(RecordError, match=f"policy constant '?{text.partition('=')[0]}"):
        ReviewRules.parse(text)
    assert ReviewRules.parse("critical=0.3,again=0.8") == ReviewRules(critical=0.3, again=0.8)
