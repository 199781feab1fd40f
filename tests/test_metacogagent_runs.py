"""MetaCogAgent with other signals in the place of stated ones, and what its runs say."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from metacog_agents import PROMPTS, actions, asked, model, run
from scripted import ScriptedLLM

from metaprobe.collecting.collect import collect
from metaprobe.eval.systems.metacogagent import evaluate
from metaprobe.pipelines import Models, Setup
from metaprobe.pipelines.metacogagent import SYSTEM
from metaprobe.probes.signals import Signal
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Run
from metaprobe.routing.profiles import experiences


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
        asyncio.run(collect(SYSTEM, items[:limit], setup, store, wave=1, text=False))
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
    result = evaluate(runs, resamples=50)
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

    result = evaluate(made_runs("every-agent", script, 4), resamples=50)
    assert result.delegated.estimate == 1
    assert result.improved is not None
    assert result.worsened is not None
    assert (result.improved.estimate, result.worsened.estimate) == (0.5, 0.25)
    assert result.precision is not None
    assert (result.precision.estimate, result.precision.groups) == (0.75, 2)
    assert result.flow == {("alpha", "beta"): 2, ("beta", "gamma"): 1, ("gamma", "alpha"): 1}


def test_calibration_error_is_that_of_the_agents_that_answered() -> None:
    runs = made_runs("algorithm", lambda k: model(("4" if k < 8 else "5",) * 3, sure=(80, 80, 80)), 10)
    result = evaluate(runs, resamples=50)
    assert result.calibration_stated is not None
    assert result.calibration is not None
    assert result.calibration_stated.ece.estimate == pytest.approx(0.0, abs=1e-9)  # says 0.8 and is right 8 times in 10
    assert result.calibration.ece.estimate == pytest.approx(0.8 - 0.68)  # c = 0.6 * 0.8 + 0.4 * 0.5
    assert result.calibration.n == 10
