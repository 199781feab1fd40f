"""MetaCrit: who is shown what, in which order, who is left out, and what the policy may decide."""

import asyncio

import pytest
from scripted import ScriptedLLM, run_once

from metaprobe.llms.base import Request
from metaprobe.papers.systems.metacrit import SYSTEM, answer_form, yes_no
from metaprobe.probes.signal_source import SignalSource
from metaprobe.records.types import Call, Item, Run
from metaprobe.routing.policy import Action, Outcome, State

ITEM = Item(id="i", question="Where did fortune cookies begin?", gold=("unclear",), check="exact")
SAID = {
    "answer": "RAW: bakers in California made them.\nAnswer: California",
    "monitor": "NOTE: historians disagree.\nConcern: yes",
    "control": "CRITIQUE: Japan is left out.\nConcern: no",
    "control-without-monitor": "ALONE: nothing to correct.\nConcern: no",
    "synthesis": "Step 5: it is disputed.\nAnswer: unclear",
    "synthesis-without-monitor": "Answer: Japan",
    "synthesis-without-control": "Answer: China",
    "synthesis-without-both": "Answer: California",
}
RAW, NOTE, CRITIQUE, ALONE = "RAW:", "NOTE:", "CRITIQUE:", "ALONE:"


class Always:
    """A policy with one answer, which remembers what it was told."""

    def __init__(self, action: str) -> None:
        self.action = action
        self.asked: list[tuple[State, tuple[str, ...]]] = []

    def decide(self, state, legal_actions):  # type: ignore[no-untyped-def]
        self.asked.append((state, tuple(legal_actions)))
        return state.make_decision(self.action, legal_actions, dict.fromkeys(legal_actions, 0.0), "always")

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """It learns nothing."""


def run(variant: str = "equations", said: dict[str, str] | None = None, **setup: object) -> tuple[Run, ScriptedLLM]:
    llm = ScriptedLLM({**SAID, **(said or {})})
    return run_once(SYSTEM, ITEM, llm, variant=variant, **setup), llm


def shown(llm: ScriptedLLM, stage: str) -> str:
    (prompt,) = llm.prompts_of(stage)
    assert ITEM.question in prompt
    return prompt


@pytest.mark.parametrize(("variant", "together"), [("figures", True), ("equations", False)])
def test_brainstorm_and_monitor_run_at_the_same_time_in_figures_only(variant: str, together: bool) -> None:
    class Watched(ScriptedLLM):
        running: frozenset[str] = frozenset()
        met: frozenset[str] = frozenset()

        async def complete(self, request: Request):  # type: ignore[no-untyped-def]
            self.running |= {request.stage}
            await asyncio.sleep(0)
            if len(self.running) > 1:
                self.met |= self.running
            call = await super().complete(request)
            self.running -= {request.stage}
            return call

    llm = Watched(SAID)
    run_once(SYSTEM, ITEM, llm, variant=variant)
    assert llm.met == (frozenset(("answer", "monitor")) if together else frozenset())


@pytest.mark.parametrize(
    ("action", "stages"),
    [
        (Action.SYNTHESISE, ["answer", "synthesis"]),
        (Action.MONITOR, ["answer", "monitor", "synthesis"]),
        (Action.MONITOR_CONTROL, ["answer", "monitor", "control", "synthesis"]),
    ],
)
def test_what_the_policy_decides_is_done_and_logged(action: str, stages: list[str]) -> None:
    policy = Always(action)
    found, llm = run(policy=policy)
    assert llm.stages == stages
    assert [(d.point, d.action) for d in found.decisions] == [("regulate", action)]
    ((state, legal),) = policy.asked
    assert legal == (Action.SYNTHESISE, Action.MONITOR, Action.MONITOR_CONTROL)
    assert state.signals.value("mean_logprob") == -0.5  # of A1's answer


def test_what_a_checkpoint_reads_of_the_answer_is_asked_for_by_the_agent_who_gave_it() -> None:
    asked: list[tuple[str, str, str]] = []

    class Heard(SignalSource):
        """Reads nothing, and remembers of whom it was asked to."""

        def signal(self, name: str, *, agent: str = "", stated: float | None = None, call: Call | None = None) -> None:
            asked.append((name, agent, call.agent if call else ""))

    run(policy=Always(Action.SYNTHESISE), signals=Heard())
    assert asked == [(name, "brainstormer", "brainstormer") for name in ("difficulty", "quality")]


def by_what_is_read(request: Request) -> str:
    """An answer that follows from stage's kind and prompt alone, as with a greedy model."""
    kind = request.stage.split("-")[0]
    text = "".join(message.content for message in request.messages)
    return f"{kind} {hash(text)}\nConcern: no\nAnswer: {len(text)}"


def test_every_stage_holds_exactly_the_answers_of_the_ablation_variants() -> None:
    full = run_once(SYSTEM, ITEM, ScriptedLLM({"*": by_what_is_read}), variant="every-stage")
    texts = {call.stage: call.text for call in full.calls}
    policy = Always(Action.SYNTHESISE)
    for stage, variant in (
        ("synthesis", "equations"),
        ("synthesis-without-monitor", "without-monitor"),
        ("synthesis-without-control", "without-control"),
        ("synthesis-without-both", "both"),
    ):
        setup = {"policy": policy} if variant == "both" else {}
        llm = ScriptedLLM({"*": by_what_is_read})
        alone = run_once(SYSTEM, ITEM, llm, variant="equations" if variant == "both" else variant, **setup)
        assert alone.calls[-1].text == texts[stage], variant
    assert full.final_answer == str(len(next(c for c in full.calls if c.stage == "synthesis").messages[0].content))
    assert len(set(texts.values())) == len(texts) == 8


def test_a_flag_that_cannot_be_read_is_none_and_recorded_as_asked() -> None:
    found, _ = run(said={"monitor": "Hard to say.", "control": "Concern: yes\nConcern: no"})
    assert [(s.kind, s.value) for s in found.statements] == [("flags", None), ("flags", None)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("It is fine.\nConcern: no", 0.0),
        ("**Concern:** Yes.", 1.0),
        ('"Concern: yes"', 1.0),
        ("concerns = no", 0.0),
        ("Concern: yes or no", None),
        ("Concern: yes/no", None),
        ("Concern: maybe", None),
        ("There is no concern.", None),
        ('write "Concern: yes" if you doubt it, or "Concern: no"', None),
        ("Concern: nothing", None),
        ("", None),
    ],
)
def test_yes_and_no_are_read_or_left_open(text: str, value: float | None) -> None:
    assert yes_no(text, "concern") == value


def test_a_silent_agent_is_shown_as_silent() -> None:
    _, llm = run(said={"monitor": "  "})
    assert "(nothing)" in shown(llm, "control")


@pytest.mark.parametrize(
    ("item", "form"),
    [
        (ITEM, "in as few words as possible"),
        (Item(id="n", question="2 + 2?", check="number"), "a number"),
        (Item(id="c", question="?", check="choice", choices=("true", "false")), "true or false"),
        (Item(id="c", question="?", check="choice", choices=("A", "B", "C")), "A, B or C"),
        (Item(id="l", question="?", check="choice", choices=("a long answer " * 5, "no")), "one of the given choices"),
    ],
)
def test_the_answer_is_asked_for_in_the_form_that_the_item_takes(item: Item, form: str) -> None:
    assert answer_form(item) == form
    llm = ScriptedLLM(SAID)
    run_once(SYSTEM, item, llm)
    asked = [i for i in range(len(llm.asked)) if f"({form})" in llm.prompt(i)]
    assert [llm.asked[i].stage for i in asked] == ["answer", "synthesis"]
