"""A session notes down what happened, in the order of the requests."""

import asyncio
from types import SimpleNamespace

import pytest
from scripted import ScriptedLLM, run_once

from metaprobe.papers.systems import Models, Session, System
from metaprobe.papers.systems.prompting import Prompts
from metaprobe.probes.signal_source import SignalSource
from metaprobe.probes.signals import Signal
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Item, Run, Sampling

ITEM = Item(id="i", question="What is $5 and a half?", fields={"essay": "An essay about $money."})
PROMPTS = Prompts({"first": "--- user\nQ: $question\nE: $essay\nN: $note"})


def system(run) -> System:  # type: ignore[no-untyped-def]
    return System(name="test", run=run, prompts=(), variants=("v",), stages=("draft", "check"))


async def two_at_once(session: Session) -> Run:
    calls = await asyncio.gather(
        *(session.ask("first", stage="draft", round=n, note=n, temperature=0.7) for n in (1, 2)),
        session.ask("first", stage="check", agent="judge-a", note="last"),
    )
    return session.run(calls[0].text)


def test_calls_are_kept_in_the_order_of_asking_and_slots_are_filled_as_they_are() -> None:
    llm = ScriptedLLM({"draft": lambda request: f"draft {request.round}", "check": "fine"})
    run = run_once(system(two_at_once), ITEM, llm, prompts=PROMPTS)
    assert [call.id for call in run.calls] == ["r/draft/1", "r/draft/2", "r/check/judge-a"]
    assert llm.prompt(0) == "Q: What is $5 and a half?\nE: An essay about $money.\nN: 1"
    assert run.final_answer == "draft 1"


def test_the_same_sampled_request_draws_the_same_in_another_run_but_not_in_another_round() -> None:
    llm = ScriptedLLM({"*": "x"})
    for _ in range(2):
        run_once(system(two_at_once), ITEM, llm, prompts=PROMPTS)
    seeds = [request.sampling.seed for request in llm.asked]
    assert seeds[:3] == seeds[3:]
    assert seeds[0] != seeds[1]
    assert seeds[2] is None  # greedy


def test_an_agents_model_goes_before_a_stages_and_that_before_the_default() -> None:
    default, stage, agent = (ScriptedLLM({"*": name}, name=name) for name in "dsa")
    models = Models(default, {"draft": stage, "judge-a": agent})
    assert [models.of("draft"), models.of("draft", "judge-a"), models.of("check")] == [stage, agent, default]
    assert models.description == "d+draft=s+judge-a=a"


@pytest.mark.parametrize(("value", "noted"), [(0.25, ("signal:confidence", 0.25)), (None, ("unread:confidence", 1.0))])
def test_what_a_checkpoint_read_and_that_it_could_not_is_noted_with_its_digest(value, noted) -> None:  # type: ignore[no-untyped-def]
    replaced = SimpleNamespace(digest="ab12", with_stated=False)

    class Signals(SignalSource):
        """A checkpoint in the place of the confidence gives `value`, or cannot read the call."""

        def signal(
            self, name: str, *, agent: str = "", stated: float | None = None, call: Call | None = None
        ) -> Signal | None:
            if name != "confidence" or value is None:
                return None if stated is None else Signal(stated, "stated")
            return Signal(value, replaced.digest)

    async def reads(session: Session) -> Run:
        call = await session.ask("first", stage="draft", note=1)
        session.signal("confidence", stated=0.5, call=call)
        session.signal("difficulty", stated=0.5, call=call)  # as it was stated: nothing to note
        session.signal("confidence", stated=0.5)  # of no call
        return session.run(call.text)

    signals = Signals()
    signals._replacements = {"confidence": replaced}  # type: ignore[dict-item]
    (note,) = run_once(system(reads), ITEM, ScriptedLLM({"*": "x"}), prompts=PROMPTS, signals=signals).labels
    assert (note.name, note.value, note.source, note.call_id) == (*noted, "ab12", "r/draft")


def test_two_calls_of_one_name_are_refused() -> None:
    async def twice(session: Session) -> Run:
        for _ in range(2):
            await session.ask("first", stage="draft", note=1)
        return session.run("")

    with pytest.raises(RecordError, match="asked twice as r/draft"):
        run_once(system(twice), ITEM, ScriptedLLM({"*": "x"}), prompts=PROMPTS)


def test_what_is_asked_without_a_round_is_of_the_first_and_of_no_agent() -> None:
    async def plainly(session: Session) -> Run:
        turn = session.messages("first", note="n")
        for call in (
            await session.ask("first", stage="draft", note="n"),
            await session.send(turn, Sampling(), stage="check"),
            await session.read(turn, model_of="draft"),
        ):
            assert (call.round, call.agent, call.parent) == (0, "", None)
        return session.run("done")

    llm = ScriptedLLM({"*": "x"})
    run = run_once(system(plainly), ITEM, llm, prompts=PROMPTS)
    assert [call.id for call in run.calls] == ["r/draft", "r/check", "r/read"]
    asked = [(r.sampling.max_tokens, r.sampling.temperature, r.sampling.seed, r.hidden) for r in llm.asked]
    assert asked == [(256, 0.0, None, False), (Sampling().max_tokens, 0.0, None, False), (1, 0.0, None, True)]
