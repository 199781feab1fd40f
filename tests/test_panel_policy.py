"""A panel in the place of MetaCogAgent's thresholds: what it is worth, and when it leaves them in force."""

import dataclasses
import json
import math
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedLLM, run_once

from metaprobe.checkpoints import CheckpointError, ContractMismatch, load_checkpoint
from metaprobe.cli import main
from metaprobe.llms.pricing import Price
from metaprobe.papers.collecting.launch import checkpoint_and_constants, policy_of
from metaprobe.papers.collecting.plan import CollectionPlan
from metaprobe.papers.policies.explore import EpsilonGreedy
from metaprobe.papers.policies.panel_policy import IMAGINED_DRAWS, AgentPolicy, draw_confidences
from metaprobe.papers.systems import SYSTEMS
from metaprobe.probes.signals import Signal, Signals
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.records.store import RunStore
from metaprobe.records.types import Decision, Item, Run
from metaprobe.routing.panel import judgement
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.model_rows import STATED
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.policy import Action, Policy, State
from metaprobe.training.panel.labelled_panels import agents_in, panels_of_outcomes
from metaprobe.training.recipes.outcomes_of_runs import assessment_part, outcomes_of
from metaprobe.training.recipes.panel import train_router
from metaprobe.training.training_options import RouterOptions

# Whether so little data passes every audit is not the subject here.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

AGENTS = ("alpha", "beta", "gamma")
PRICES = {"alpha": 0.0002, "beta": 0.0002, "gamma": 0.0004}
SKILL = {"alpha": 0.5, "beta": 0.5, "gamma": 0.6}
SCALE = {"alpha": 0.0, "beta": 2.0, "gamma": -1.0}
"""Log-odds by which a confidence is too high."""
RECORDED = Path(__file__).parent.parent / "recorded" / "metacog-every-agent"
Answers = Mapping[str, AgentOutcome]


def planted(n: int, *, tells: float, seed: int = 0) -> list[QuestionOutcomes]:
    """Agents whose confidence, in tenths, lies `tells` standard deviations higher where they are right.

    Each has a scale of its own, so that no threshold fits all of them.
    """
    rng = np.random.default_rng(seed)
    found = []
    for i in range(n):
        agents = {}
        for name in AGENTS:
            right = rng.random() < SKILL[name]
            confidence = 1 / (1 + math.exp(-rng.normal(SCALE[name] + tells * (right - 0.5), 1.0)))
            agents[name] = AgentOutcome("", float(right), round(confidence, 1), PRICES[name])
        found.append(QuestionOutcomes(f"{seed}-{i}", f"g{seed}-{i}", dimension="any", agents=agents))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A panel of agents whose confidences tell a lot."""
    options = RouterOptions(out=tmp_path_factory.mktemp("policy") / "tells")
    return train_router(planted(300, tells=3.0), options).path


@pytest.fixture(scope="module")
def policy(folder: Path) -> AgentPolicy:
    return AgentPolicy(Panel.load(folder), price=0.05)


@pytest.fixture(scope="module")
def deaf(tmp_path_factory: pytest.TempPathFactory) -> Panel:
    """A panel of agents whose confidences tell nothing."""
    options = RouterOptions(out=tmp_path_factory.mktemp("policy") / "deaf")
    return Panel(train_router(planted(200, tells=0.0), options))


def stated(confidence: float | None) -> Signals:
    return Signals(confidence=None if confidence is None else Signal(confidence, "stated"), profile=Signal(0.5, "x"))


def assess(policy: Policy, confidence: float | None, agent: str = "alpha") -> Decision:
    return policy.decide(State("d", "assess", stated(confidence), agent, dimension="any"), (Action.EXECUTE, Action.ASK))


def assign(policy: Policy, agents: Mapping[str, float | None], first: str = "alpha") -> Decision:
    others = {name: stated(confidence) for name, confidence in agents.items() if name != first}
    state = State("d", "assign", stated(agents[first]), first, others, dimension="any")
    return policy.decide(state, (*others, Action.COLLABORATE))


def cases(policy: AgentPolicy) -> list[tuple[str, float]]:
    """Every agent with the confidences that it was known to state."""
    agents = policy.panel.agents
    stated = agents.levels[:, agents.signals.index(STATED)]
    return [(agent, float(c)) for agent in AGENTS for c in np.unique(stated[agents.agent(agent)].round(1))]


def value(policy: Policy, questions: list[QuestionOutcomes], price: float = 0.05) -> float:
    """Mean of right - price * dollars, half of them for the confidence. A vote goes to the side that is surer."""
    total = 0.0
    for i, question in enumerate(questions):
        first, said = AGENTS[i % 3], {name: outcome.confidence for name, outcome in question.agents.items()}
        asked, executing = [first], [first]
        if assess(policy, said[first], first).action == Action.ASK:
            action = assign(policy, said, first).action
            asked = list(AGENTS)
            executing = list(AGENTS) if action == Action.COLLABORATE else [action]
        paid = sum(PRICES[name] / 2 for name in [*asked, *executing])
        side = sum((said[name] or 0.0) * (2 * (question.agents[name].score or 0.0) - 1) for name in executing)
        total += float(side > 0) - price * 1000 * paid
    return total / len(questions)


def test_where_confidences_tell_it_is_worth_more_than_the_papers_rule_at_any_threshold_and_than_any_agent_alone(
    policy: AgentPolicy,
) -> None:
    new = planted(600, tells=3.0, seed=1)
    best_alone = max(np.mean([q.agents[a].score for q in new]) - 50 * PRICES[a] for a in AGENTS)
    rules = [PaperRules(theta=theta / 10, weight=1, damping=0) for theta in range(0, 11, 2)]
    assert value(policy, new) > max([best_alone, *(value(rule, new) for rule in rules)]) + 0.02


def test_a_sure_agent_answers_an_unsure_one_asks_and_the_surest_other_is_chosen(policy: AgentPolicy) -> None:
    sure, unsure = assess(policy, 0.9), assess(policy, 0.1)
    assert (sure.action, unsure.action) == (Action.EXECUTE, Action.ASK)
    assert sure.scores[Action.EXECUTE] >= sure.scores[Action.ASK]
    assert unsure.scores[Action.EXECUTE] < unsure.scores[Action.ASK]
    assert assign(policy, {"alpha": 0.1, "beta": 1.0, "gamma": 0.1}).action == "beta"
    assert assign(policy, {"alpha": 0.1, "beta": 0.8, "gamma": 0.7}).action == "gamma", "0.7 is much, of gamma"


def test_confidences_that_tell_nothing_are_not_bought(deaf: Panel) -> None:
    policy = AgentPolicy(deaf, price=1.0)  # those of two others cost 0.2 or 0.3 of a right answer
    assert {assess(policy, c, agent).action for agent, c in cases(policy)} == {Action.EXECUTE}


def test_of_a_higher_price_and_a_dearer_assessment_come_fewer_questions(folder: Path) -> None:
    def asks(price: float, assessment: float = 0.5) -> int:
        policy = AgentPolicy(Panel.load(folder), price=price, assessment=assessment)
        return sum(assess(policy, c, agent).action == Action.ASK for agent, c in cases(policy))

    assert asks(0.3) > asks(2.0) > asks(10.0) == 0
    assert asks(2.0, 0.1) > asks(2.0, 0.9)


@pytest.mark.parametrize(
    ("agent", "confidence", "why"),
    [("alpha", None, "gave no confidence"), ("alpha", 7.0, "in training"), ("delta", 0.5, "nothing is known of delta")],
)
def test_what_it_was_not_trained_on_the_papers_rule_decides_and_says_why(
    policy: AgentPolicy, agent: str, confidence: float | None, why: str
) -> None:
    for decide in (
        lambda p: assess(p, confidence, agent),
        lambda p: assign(p, {agent: confidence, "beta": 0.4}, agent),
    ):
        found, rule = decide(policy), decide(PaperRules())
        assert (found.action, found.scores) == (rule.action, rule.scores)
        assert why in found.reason
        assert "by the papers' rule" in found.reason
        assert found.propensities[found.action] == 1.0


def test_a_stranger_among_the_others_and_other_points_leave_the_choice_to_the_papers_rule(policy: AgentPolicy) -> None:
    assert assign(policy, {"alpha": 0.1, "delta": 0.9}).action == "delta"
    assert "by the papers' rule" in assign(policy, {"alpha": 0.1, "delta": 0.9}).reason
    state = State("d", "iterate", Signals(quality=Signal(0.9, "stated")), round=1)
    found, rule = policy.decide(state, ("stop", "again")), PaperRules().decide(state, ("stop", "again"))
    assert found.action == rule.action == "stop"
    assert found.reason == f"{rule.reason}; by the papers' rule: the panel decides assess and assign only"


ITEM = Item(id="i", question="2 + 2?", gold=("4",), check="number", group="g")
SCRIPT = {"classify": "math", "assess": '{"confidence": 20}', "gamma:assess": '{"confidence": 90}', "*": "4"}


@pytest.mark.parametrize("variant", SYSTEMS["metacogagent"].variants)
@pytest.mark.parametrize("explored", [False, True])
def test_every_variant_of_metacogagent_runs_under_it(policy: AgentPolicy, variant: str, explored: bool) -> None:
    under = EpsilonGreedy(policy, epsilon=0.9, seed=3) if explored else policy
    run = run_once(SYSTEMS["metacogagent"], ITEM, ScriptedLLM(SCRIPT), variant=variant, policy=under)
    assert run.final_answer == "4"
    assert all(sum(d.propensities.values()) == pytest.approx(1) for d in run.decisions)


def test_in_the_pipeline_an_unsure_agent_hands_over_to_the_surest(policy: AgentPolicy) -> None:
    run = run_once(SYSTEMS["metacogagent"], ITEM, ScriptedLLM(SCRIPT), policy=policy)
    assert [decision.action for decision in run.decisions] == [Action.ASK, "gamma"]
    assert "most often to hand it to" in run.decisions[0].reason


@pytest.mark.parametrize("system", ["monitor-generate-verify", "self-refine", "self-verification", "metacrit"])
def test_every_other_system_with_a_decision_runs_as_under_the_papers_rules(policy: AgentPolicy, system: str) -> None:
    runs = [run_once(SYSTEMS[system], ITEM, ScriptedLLM({"*": "Answer: 4"}), policy=p) for p in (policy, PaperRules())]
    assert runs[0].final_answer == runs[1].final_answer
    assert [d.action for d in runs[0].decisions] == [d.action for d in runs[1].decisions] != []


@settings(max_examples=30)
@given(st.lists(st.sampled_from([0.1, 0.4, 0.5, 0.7, 0.9, 1.0]), min_size=50, max_size=400), st.integers(0, 5))
def test_what_others_may_say_is_drawn_as_often_as_they_said_it(said: list[float], seed: int) -> None:
    often, wanted = Counter(draw_confidences(panel_of(said), "a", seed)), Counter(said)
    assert sum(often.values()) == IMAGINED_DRAWS
    for confidence in wanted:
        share = (
            sum(count for c, count in often.items() if c is not None and abs(c - confidence) < 1e-9) / IMAGINED_DRAWS
        )
        # The levels are quantiles at the middles of 33 bins; between two values one may lie in between.
        assert share == pytest.approx(wanted[confidence] / len(said), abs=2.5 / IMAGINED_DRAWS)
    assert set(draw_confidences(panel_of([None] * 60), "a", seed)) == {None}, "nothing was said"


def panel_of(said: list[float | None]) -> Panel:
    """Two agents who said this in training."""
    questions = [
        QuestionOutcomes(str(i), str(i), agents={name: AgentOutcome(name, float(i % 2), c, 0.1) for name in "ab"})
        for i, c in enumerate(said)
    ]
    return SimpleNamespace(agents=agents_in(panels_of_outcomes(questions)))  # type: ignore[return-value]


def test_it_is_named_by_its_checkpoint_so_that_a_store_does_not_mix_two(folder: Path) -> None:
    panel = Panel.load(folder)
    assert panel.checkpoint.digest[:16] in repr(AgentPolicy(panel))
    assert len({repr(AgentPolicy(panel, price=x, assessment=s)) for x in (0.1, 0.2) for s in (0.4, 0.6)}) == 4
    with pytest.raises(RecordError, match=r"assessment is 1\.5"):
        AgentPolicy(panel, assessment=1.5)


def plan(spec: object) -> CollectionPlan:
    return CollectionPlan(system="metacogagent", task="t", policy=f"learned:{spec}")


def test_a_learned_policy_is_given_by_its_checkpoint_and_constants_after_it(folder: Path) -> None:
    found, rules = policy_of(plan(f"{folder},price=0.2,assessment=0.7,theta=0.4"))
    assert (found.lambda_, found.assessment, rules) == (0.2, 0.7, PaperRules(theta=0.4))
    assert found.team == AGENTS
    of_two, _ = policy_of(dataclasses.replace(plan(folder), agent=("gamma", "alpha")))
    assert of_two.team == ("gamma", "alpha"), "those that are named, in their order"
    within, _ = policy_of(plan(f"{folder},budget=0.5"))
    spent = within.panel.ask_plan(budget=0.5).cost
    assert spent <= 0.5, "the best way may not take all of it"
    assert within.lambda_ == within.panel.asks.curves.implied_price(spent)


def test_a_path_may_hold_commas_colons_and_equals_signs(folder: Path, tmp_path: Path) -> None:
    for name in ("a,b", "run=3", "c:d", "v,theta=1"):
        shutil.copytree(folder, tmp_path / name)
        assert checkpoint_and_constants(f"{tmp_path / name},theta=0.4") == (tmp_path / name, "theta=0.4")
        assert isinstance(policy_of(plan(tmp_path / name))[0], AgentPolicy)


@pytest.mark.parametrize(
    ("constants", "named"),
    [
        ("bugdet=0.5", "bugdet"),
        ("budget=much", "much"),
        ("budget=0.5,price=0.1", "give one of the two"),
        ("theta=7", "theta"),
        ("assessment=2", "assessment"),
        ("budget=0.0000001", "cheapest"),
        ("token_price=0.1", "token_price"),
    ],
)
def test_a_constant_that_cannot_be_is_named(folder: Path, constants: str, named: str) -> None:
    with pytest.raises(RecordError, match=named):
        policy_of(plan(f"{folder},{constants}"))


def test_a_checkpoint_that_is_none_or_of_another_kind_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        policy_of(plan(tmp_path / "nowhere"))
    with pytest.raises(RecordError, match="expected a checkpoint folder"):
        policy_of(plan(""))
    with pytest.raises(ContractMismatch, match=r"of kind 'gate'; expected 'panel'"):
        Panel.load("bundled:gate")
    held = load_checkpoint(folder)
    old = dataclasses.replace(held, manifest=dataclasses.replace(held.manifest, kind="router"))
    monkeypatch.setattr(judgement, "load_checkpoint", lambda path, sha256=None: old)
    with pytest.raises(ContractMismatch, match=r"of an earlier version, .* train one with `metaprobe train router`"):
        AgentPolicy(Panel.load(folder))


TOKENS = {name: Price(1.0, 2.0) for name in AGENTS}


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return list(RunStore(RECORDED))[:150]


def test_outcomes_of_runs_hold_what_was_known_before_anybody_answered_and_what_was_spent(runs: list[Run]) -> None:
    found = outcomes_of(runs, prices=TOKENS)
    assert [question.id for question in found] == [run.item.id for run in runs]
    for run, question in zip(runs[:20], found, strict=False):
        assert (question.question, question.group) == ("", run.item.group)
        for name, outcome in question.agents.items():
            assess, answer = (
                next(c for c in run.calls if (c.stage, c.agent) == (s, name)) for s in ("assess", "answer")
            )
            read = assess.usage.prompt_tokens + answer.usage.prompt_tokens
            written = assess.usage.completion_tokens + answer.usage.completion_tokens
            assert outcome.cost_usd == pytest.approx((read + 2 * written) / 1e6)
            assert outcome.confidence == run.stated("confidence", assess.id)
            assert outcome.score == run.label("correct", answer.id)
            assert outcome.answer == ""


def test_what_stating_a_confidence_took_is_its_part_of_what_the_agents_were_asked(runs: list[Run]) -> None:
    spent = dict.fromkeys(("assess", "answer"), 0)
    for call in (call for run in runs for call in run.calls if call.stage in spent):
        assert call.usage.prompt_tokens is not None
        assert call.usage.completion_tokens is not None
        spent[call.stage] += call.usage.prompt_tokens + 2 * call.usage.completion_tokens
    assert assessment_part(runs, prices=TOKENS) == pytest.approx(spent["assess"] / sum(spent.values()))
    assert assessment_part(runs, prices={name: Price(0, 0) for name in AGENTS}) is None


def test_of_several_runs_of_an_item_the_one_counts_in_which_most_was_asked(runs: list[Run]) -> None:
    run = runs[0]
    one = dataclasses.replace(run, calls=tuple(call for call in run.calls if call.agent in ("", "beta")))
    for order in ([one, run], [run, one]):
        (question,) = outcomes_of(order, prices=TOKENS)
        assert set(question.agents) == set(AGENTS)
    assert set(outcomes_of([one], prices=TOKENS)[0].agents) == {"beta"}


def test_runs_without_prices_or_without_answers_are_refused(runs: list[Run]) -> None:
    with pytest.raises(RecordError, match=r"no recorded cost.*--prices"):
        outcomes_of(runs)
    assert outcomes_of(runs[:3], prices={call.model: Price(1, 1) for call in runs[0].calls})  # by model as well
    with pytest.raises(RecordError, match="every-agent"):
        outcomes_of([dataclasses.replace(runs[0], calls=())], prices=TOKENS)


def test_the_command_trains_on_a_folder_of_runs_what_the_pipeline_can_use(runs: list[Run], tmp_path: Path) -> None:
    RunStore(tmp_path / "runs").append(runs)
    (tmp_path / "prices.json").write_text(json.dumps({name: {"prompt": 1, "completion": 2} for name in AGENTS}))
    options = ["--out", str(tmp_path / "c")]
    prices = ["--prices", str(tmp_path / "prices.json")]
    made = CliRunner().invoke(main, ["train", "router", str(tmp_path / "runs"), *options, *prices])
    assert made.exit_code == 0, made.output
    policy, _ = policy_of(plan(tmp_path / "c"))
    assert policy.team == AGENTS
    assert policy.assessment == assessment_part(runs, prices=TOKENS)
    options = ["--out", str(tmp_path / "d")]
    refused = CliRunner().invoke(main, ["train", "router", str(tmp_path / "prices.json"), *options, *prices])
    assert refused.exit_code == 2
    assert "prices is for a folder of runs" in refused.output
