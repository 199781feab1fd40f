"""Every branch of MetaCogAgent's Algorithm 1, its baselines and ablations, with a scripted language model.

Also: other signals in the place of stated ones, and what its runs say.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from scripted import CountingPanel, ScriptedLLM

from metaprobe.eval.systems.dispatch import DispatchedRun
from metaprobe.eval.systems.metacogagent_figures import measure_metacogagent
from metaprobe.papers.collecting.collect import collect_runs, label_run
from metaprobe.papers.policies.profiles import Experience, Profiles, experiences
from metaprobe.papers.systems import Models, Prompts, Session, Setup
from metaprobe.papers.systems.metacogagent import AGENTS, SYSTEM
from metaprobe.probes.signals import Signal
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Run
from metaprobe.routing.paper import PaperRules

ITEM = Item(id="i1", question="Jack has 3 pens and buys 1 more. How many pens?", gold=("4",), check="number", group="g")


PROMPTS = Prompts.load(SYSTEM.name, SYSTEM.prompts)


def model(answers: tuple[str, ...] = ("4", "4", "4"), sure: tuple[object, ...] = (90, 90, 90), kind: str = "math"):
    """Answers and confidences of alpha, beta and gamma."""
    script: dict[str, str] = {"classify": kind, "read": "x"}
    for agent, answer, confidence in zip(AGENTS, answers, sure, strict=True):
        script[f"{agent}:answer"] = answer
        script[f"{agent}:assess"] = confidence if isinstance(confidence, str) else f'{{"confidence": {confidence}}}'
    return ScriptedLLM(script)


def run(llm: ScriptedLLM, variant: str = "algorithm", *, index: int = 0, item: Item = ITEM, **setup: object) -> Run:
    given = Setup(**{"models": Models(llm), "prompts": PROMPTS, "agents": AGENTS, "panel": CountingPanel(), **setup})  # type: ignore[arg-type]
    session = Session(given, item, system=SYSTEM.name, variant=variant, run_id=f"{variant}/{item.id}", index=index)
    return label_run(asyncio.run(SYSTEM.run(session)), SYSTEM)


def asked(found: Run) -> list[str]:
    return [":".join(filter(None, (call.agent, call.stage))) for call in found.calls]


def actions(found: Run) -> list[str]:
    return [decision.action for decision in found.decisions]


def test_an_agent_that_is_sure_answers_alone() -> None:
    found = run(model())
    assert asked(found) == ["classify", "alpha:assess", "alpha:answer"]
    assert actions(found) == ["execute"]
    assert (found.final_answer, found.outcome) == ("4", 1.0)
    assert found.stated("confidence") == 0.9
    assert list(experiences(found)) == [Experience("alpha", "mathematical computation", 1.0)]


def test_the_dispatcher_goes_round_the_agents_by_the_items_places() -> None:
    assert [DispatchedRun(run(model(), index=index)).first for index in range(5)] == [
        "alpha",
        "beta",
        "gamma",
        "alpha",
        "beta",
    ]


def test_an_unsure_agent_delegates_to_the_surest_other_who_alone_learns() -> None:
    found = run(model(("5", "6", "4"), sure=(10, 60, 80)))
    assert asked(found) == ["classify", "alpha:assess", "beta:assess", "gamma:assess", "gamma:answer"]
    assert actions(found) == ["ask", "gamma"]
    assert found.outcome == 1.0
    assert list(experiences(found)) == [Experience("gamma", "mathematical computation", 1.0)]


def test_a_conflict_raises_the_threshold_so_that_the_same_stated_confidence_asks() -> None:
    past = [Experience("alpha", "mathematical computation", 0.0)] * 40
    low = Profiles(past)  # about 0.007
    assert actions(run(model(sure=(90, 90, 90)), profiles=low)) == ["ask", "beta"]
    without = run(model(sure=(90, 90, 90)), profiles=low, policy=PaperRules(damping=0))
    assert actions(without) == ["execute"]  # c is 0.54: above theta, below theta'


def test_where_nobody_is_sure_all_vote_the_first_agent_among_them_and_all_learn() -> None:
    llm = model(("4", "5", "four"), sure=(20, 30, 20))
    found = run(llm)
    assert actions(found) == ["ask", "collaborate"]
    assert Counter(llm.stages) == {"classify": 1, "assess": 3, "answer": 3}
    assert (found.final_answer, found.outcome) == ("4", 1.0)
    assert [(e.agent, e.correct) for e in experiences(found)] == [("alpha", 1.0), ("beta", 0.0), ("gamma", 1.0)]


def test_votes_are_weighted_by_confidence() -> None:
    past = [Experience("beta", "mathematical computation", 1.0)] * 3 + [
        Experience(agent, "mathematical computation", 0.0) for agent in ("alpha", "gamma") for _ in range(40)
    ]
    llm = model(("5", "4", "5"), sure=(10, 30, 10))
    assert run(llm, profiles=Profiles(past)).final_answer == "4"
    assert run(model(("5", "4", "5")), "majority").final_answer == "5"


@pytest.mark.parametrize(("said", "read"), [("I would rather not say", None), ('{"confidence": 85}', 0.85)])
def test_a_confidence_that_cannot_be_read_is_none_and_the_rules_fallback_stands_in_the_reason(
    said: str, read: float | None
) -> None:
    found = run(model(sure=(said, 90, 90)))
    assert found.stated("confidence") == read
    assert ("0.5 (nothing stated)" in found.decisions[0].reason) == (read is None)
    assert actions(run(model(sure=(said, 90, 90)), policy=PaperRules(unstated=0.1)))[0] == (
        "ask" if read is None else "execute"
    )


@pytest.mark.parametrize(
    ("kind", "dimension"), [("Code.", "code generation"), ("poetry", "unknown"), ("math or code", "unknown")]
)
def test_the_classified_dimension_drives_the_profile_and_can_be_read_without_texts(kind: str, dimension: str) -> None:
    profiles = Profiles([Experience("alpha", dimension, 0.0)] * 40)
    found = run(model(sure=(60, 90, 90), kind=kind), profiles=profiles)
    assert DispatchedRun(found).dimension == dimension
    assert actions(found) == ["ask", "beta"]
    assert found.stated(f"dimension:{dimension}") == (None if dimension == "unknown" else 1.0)
    assert actions(run(model(sure=(60, 90, 90), kind="everyday"), profiles=profiles)) == ["execute"]


def test_every_agent_answers_for_the_record_and_decides_and_learns_as_the_algorithm_does() -> None:
    for sure in ((90, 90, 90), (10, 60, 80), (10, 10, 10)):
        plain, full = (run(model(("5", "6", "4"), sure), variant) for variant in ("algorithm", "every-agent"))
        assert actions(plain) == actions(full)
        assert plain.final_answer == full.final_answer
        assert list(experiences(plain)) == list(experiences(full))
        assert Counter(call.stage for call in full.calls) == {"classify": 1, "assess": 3, "answer": 3}


@pytest.mark.parametrize("sure", [(90, 90, 90), (10, 60, 80), (10, 10, 10)])
def test_after_every_agent_the_other_variants_ask_nothing_new(sure: tuple[object, ...]) -> None:
    def questions(variant: str, index: int) -> set[object]:
        llm = model(("5", "6", "4"), sure)
        run(llm, variant, index=index)
        return {(request.agent, request.messages, request.sampling) for request in llm.asked}

    known = questions("every-agent", 0)
    for variant in set(SYSTEM.variants) - {"conversation"}:
        for index in range(3):
            assert questions(variant, index) <= known, variant
    assert not questions("conversation", 0) <= known  # the check can fail


def test_a_conversation_ends_where_an_agent_agrees_with_the_one_before_it() -> None:
    llm = model(("5", "4", "four"))
    found = run(llm, "conversation")
    assert asked(found) == ["alpha:answer", "beta:answer", "gamma:answer"]
    assert found.outcome == 1.0
    assert "alpha: 5\nbeta: 4" in llm.prompt(2)
    assert [call.parent for call in found.calls] == [None, found.calls[0].id, found.calls[1].id]


@pytest.mark.parametrize(
    ("variant", "sure", "stages", "taken"),
    [
        ("no-self-assessment", (10, 10, 10), {"answer": 1}, ["execute"]),
        ("no-delegation", (10, 90, 90), {"assess": 1, "answer": 1}, ["execute"]),
        ("no-cross-evaluation", (10, 10, 90), {"assess": 1, "answer": 1}, ["ask", "beta"]),
        ("no-collaboration", (10, 10, 20), {"assess": 3, "answer": 1}, ["ask", "gamma"]),
    ],
)
def test_ablations_leave_out_what_they_say(
    variant: str, sure: tuple[object, ...], stages: dict[str, int], taken: list[str]
) -> None:
    llm = model(sure=sure)
    found = run(llm, variant)
    assert actions(found) == taken
    assert Counter(llm.stages) == {"classify": 1, **stages}


# Other signals, and what runs say


@dataclass
class StubSource:
    """A reader in the place of the stated confidence, which says a number by the agent it reads."""

    when: str
    says: dict[str, float] = field(default_factory=dict)
    with_stated: bool = False

    def asks(self, name: str, agent: str = "") -> bool:
        return self.with_stated

    def reads(self, name: str, agent: str = "") -> str:
        return self.when

    def replacement(self, name: str, agent: str = "") -> object:
        return object()

    def signal(self, name: str, *, agent: str = "", stated: float | None = None, call: Call | None = None) -> Signal:
        assert call is not None
        assert call.stage == {"prompt": "read", "answer": "answer"}[self.when]
        return Signal(self.says[agent], "stub")


def test_a_probe_on_the_prompt_takes_the_place_of_the_assessment() -> None:
    llm = model()
    found = run(llm, signals=StubSource("prompt", {"alpha": 0.2, "beta": 0.9, "gamma": 0.3}))
    assert asked(found) == ["classify", "alpha:read", "beta:read", "gamma:read", "beta:answer"]
    assert llm.asked[2].messages == llm.asked[4].messages  # it reads what the agent would answer
    assert llm.asked[2].hidden
    assert actions(found) == ["ask", "beta"]
    assert found.stated("confidence") is None
    assert found.label("signal:confidence", found.calls[2].id) == 0.9


def test_a_predictor_reads_drafts_and_the_chosen_agents_draft_is_its_answer() -> None:
    llm = model(("5", "4", "6"))
    found = run(llm, signals=StubSource("answer", {"alpha": 0.2, "beta": 0.9, "gamma": 0.3}))
    assert asked(found) == ["classify", "alpha:answer", "beta:answer", "gamma:answer"]
    assert (actions(found), found.final_answer) == (["ask", "beta"], "4")
    assert [e.agent for e in experiences(found)] == ["beta"]
    assert all(request.hidden for request in llm.asked[1:])


def test_a_collection_learns_from_stored_runs_without_texts_when_it_goes_on(tmp_path: Path) -> None:
    items = [Item(f"i{k}", "q", gold=("4",), check="number", group=f"g{k}") for k in range(12)]
    llm = model(("5", "4", "4"), sure=(60, 90, 90))  # alpha is surer than it should be
    setup = Setup(models=Models(llm), prompts=PROMPTS, agents=("alpha", "beta"))

    def collected(limit: int) -> dict[str, Run]:
        store = RunStore(tmp_path)
        asyncio.run(collect_runs(SYSTEM, items[:limit], setup, store, wave=1, text=False))
        return {found.item.id: found for found in store.runs()}

    collected(7)
    runs = collected(12)
    alphas = [runs[f"i{k}"] for k in range(0, 12, 2)]
    # c = 0.36 + 0.4 p reaches 0.5 while p = 0.5 * 0.9^k is at least 0.35
    assert [actions(found) for found in alphas] == [["execute"]] * 4 + [["ask", "beta"]] * 2
    profiles = [found.label("profile:alpha", found.calls[0].id) for found in alphas]
    assert profiles == pytest.approx([0.5 * 0.9**k for k in (0, 1, 2, 3, 4, 4)])


def made_runs(variant: str, script: Callable[[int], ScriptedLLM], n: int) -> list[Run]:
    items = [
        Item(f"i{k}", "q", gold=("4",), check="number", group=f"g{k // 2}", dimension="dxy"[k % 3], level="easy")
        for k in range(n)
    ]
    return [run(script(k), variant, index=k, item=item) for k, item in enumerate(items)]


def mixed(k: int) -> ScriptedLLM:
    """Six items: two executed, two delegated (one of them rightly), two voted upon."""
    sure = [(90, 90, 90), (10, 10, 90), (10, 10, 10)][k // 2]
    # i2 goes from gamma to nobody surer but itself, i3 from alpha to gamma
    return model(("4", "5", "4" if k % 2 else "5"), sure)


def test_the_full_matrix_tells_which_delegations_helped() -> None:
    runs = made_runs("every-agent", mixed, 6)
    result = measure_metacogagent(runs, resamples=50)
    assert result.improved is not None
    assert result.improved.estimate == 0.0  # alpha would have been right as well
    assert result.by_level["easy"].calls == result.calls == {"classify": 6, "assess": 18, "answer": 18}
    assert sum(part.items for part in result.by_dimension.values()) == 6


def test_delegations_that_mend_and_that_break_are_told_apart() -> None:
    def script(k: int) -> ScriptedLLM:
        first, other = [("5", "4"), ("4", "5"), ("4", "4"), ("5", "4")][k]
        # Alpha, beta, gamma and alpha begin; the surest of the others gets the item.
        begins = k % 3
        answers, sure = [other] * 3, [10, 10, 10]
        answers[begins] = first
        sure[(begins + 1) % 3] = 90
        return model(tuple(answers), tuple(sure))

    result = measure_metacogagent(made_runs("every-agent", script, 4), resamples=50)
    assert result.delegated.estimate == 1
    assert result.improved is not None
    assert result.worsened is not None
    assert (result.improved.estimate, result.worsened.estimate) == (0.5, 0.25)
    assert result.precision is not None
    assert (result.precision.estimate, result.precision.groups) == (0.75, 2)
    assert result.flow == {("alpha", "beta"): 2, ("beta", "gamma"): 1, ("gamma", "alpha"): 1}


def test_calibration_error_is_that_of_the_agents_that_answered() -> None:
    runs = made_runs("algorithm", lambda k: model(("4" if k < 8 else "5",) * 3, sure=(80, 80, 80)), 10)
    result = measure_metacogagent(runs, resamples=50)
    assert result.calibration_stated is not None
    assert result.calibration is not None
    assert result.calibration_stated.ece.estimate == pytest.approx(0.0, abs=1e-9)  # says 0.8 and is right 8 times in 10
    assert result.calibration.ece.estimate == pytest.approx(0.8 - 0.68)  # c = 0.6 * 0.8 + 0.4 * 0.5
    assert result.calibration.n == 10
