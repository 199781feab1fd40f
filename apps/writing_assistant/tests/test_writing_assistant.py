"""The writing assistant: which module is asked in which condition and stage, and what becomes of what it says."""

import asyncio
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from scripted import ScriptedLLM, run_once
from writing_turns import DRAFT, IN_FORM, TOLD, reply_of, turn_with

from metaprobe.llms.base import LLMError, Request, Token
from metaprobe.llms.cache import ReplayLLM
from metaprobe.papers.collecting.collect import collect_runs
from metaprobe.papers.systems import Models, Prompts, Session, Setup
from metaprobe.papers.systems.system_options import Options
from metaprobe.papers.tasks import load_task
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Decision
from metaprobe.routing.gate import LOGPROBS_ALONE, StreamingGate
from metaprobe.routing.policy import Action, Outcome, State
from metaprobe_writing_assistant.system.assistant import EMPTY_REPLY, SYSTEM, reply
from metaprobe_writing_assistant.system.contract import CONDITIONS, Profile, Remark, item_of_turn, turn_of_item

MODULES = ["stage", "topic", "assess", "guide", "aggregate"]
CHAIN = ["reasoning", "answer", "monitor", "control", "synthesis"]


def asked(condition: str, **answers: str) -> list[str]:
    """The stages that were asked, in order, with some answers other than in form."""
    return reply_of(condition, answers={**IN_FORM, **answers})[1].stages


def test_each_condition_has_the_modules_of_the_papers_table_12() -> None:
    assert asked("single") == ["stage", "guide", "respond"]
    assert asked("multi") == [*MODULES, "respond"]
    assert asked("metacrit") == [*MODULES, *CHAIN, "respond"]


@pytest.mark.slow
def test_words_are_explained_only_before_writing_and_a_score_is_given_only_from_then_on() -> None:
    before, _, _ = reply_of("multi", answers={**IN_FORM, "stage": "PRE"})
    assert (before.stage, before.rubric) == ("pre", None)
    assert [card.word for card in before.cards] == ["vein", "oxygen", "illusion"]
    vein, oxygen, illusion = before.cards
    assert (vein.part_of_speech, vein.explanation, vein.source) == ("noun", "a tube for blood", "WordNet 3.0")
    assert "blood" in vein.definition
    assert oxygen.explanation.endswith("gen (maker)")
    assert illusion.explanation == ""
    for stage in ("DURING", "POST"):
        later, _, _ = reply_of("multi", answers={**IN_FORM, "stage": stage})
        assert later.cards == ()
        assert later.rubric is not None
        assert (later.rubric.score, later.rubric.reasons, len(later.rubric.steps)) == (2, "say why.", 3)


def test_what_the_modules_found_is_what_the_teacher_reads() -> None:
    _, llm, _ = reply_of("metacrit")
    read = llm.prompt(-1)
    for part in ("ask before you tell.", "from 0 to 5, to be told to the learner: 2", "say why.", "about light", DRAFT):
        assert part in read
    _, llm, _ = reply_of("multi")
    assert "Critical points" not in llm.prompt(-1)


def test_without_a_stage_there_are_no_words_and_no_score_and_the_guidance_is_a_general_one() -> None:
    for said, noted in (("NOT APPLIED", False), ("Well, pre or post?", True), ("", True)):
        found, llm, _ = reply_of("multi", answers={**IN_FORM, "stage": said})
        assert (found.stage, found.cards, found.rubric) == (None, (), None)
        assert any("did not name a stage" in note for note in found.notes) == noted
        assert "Stage: not known" in llm.prompts_of("aggregate")[0]
    alone, llm, _ = reply_of("single", answers={**IN_FORM, "stage": "NOT APPLIED"})
    assert (alone.stage, llm.stages) == (None, ["stage", "respond"])
    assert "Give feedback to someone who learns to write" in llm.prompt(-1)


def test_the_single_teacher_works_by_the_prompt_that_the_model_made_for_the_stage() -> None:
    _, llm, _ = reply_of("single")
    assert "Stage: while drafting" in llm.prompts_of("guide")[0]
    assert "1. One. 2. Two. 3. Three." in llm.prompt(-1)
    assert "about: 16, from China" in llm.prompt(-1)


def test_a_request_without_reasoning_is_looked_at_by_the_monitor_alone() -> None:
    found, llm, _ = reply_of("metacrit", answers={**IN_FORM, "reasoning": "Non-reasoning"})
    assert llm.stages == [*MODULES, "reasoning", "monitor", "respond"]
    assert found.reasoning is False
    assert "only one possible and objective answer" in llm.prompts_of("monitor")[0]
    unread, llm, _ = reply_of("metacrit", answers={**IN_FORM, "reasoning": "maybe"})
    assert (unread.reasoning, llm.stages[-2:]) == (None, ["monitor", "respond"])
    assert any("needs reasoning" in note for note in unread.notes)


def test_remarks_stand_beside_the_sentence_of_the_draft_that_they_quote() -> None:
    found, _, _ = reply_of("metacrit")
    assert found.remarks == (
        Remark("monitor", "1. One answer."),
        Remark("monitor", "is this so?", "The blood inside them is blue, because it has no oxygen!"),
        Remark("control", "1. Context."),
        Remark("control", "true, by light.", "Veins look blue."),
        Remark("control", '"not in the draft" gone.'),
    )
    assert all(remark.quote is None or remark.quote in DRAFT for remark in found.remarks)


def test_the_profile_is_asked_for_only_where_the_form_left_something_open_and_only_once() -> None:
    open_form = turn_with(profile=Profile("16"), history=(("user", "I am Lin."), ("assistant", "Hello.")))
    found, llm, _ = reply_of("multi", open_form)
    assert llm.stages[0] == "profile"
    assert "I am Lin." in llm.prompt(0)
    assert found.profile == Profile("16", "beginner", "to argue", "examples")
    again, llm, _ = reply_of("multi", dataclasses.replace(open_form, profile=found.profile))
    assert "profile" not in llm.stages
    assert again.profile == found.profile
    silent, _, _ = reply_of("multi", open_form, {**IN_FORM, "profile": "No idea."})
    assert silent.profile == Profile("16", "N/A", "N/A", "N/A")


def test_the_final_response_comes_piece_by_piece_and_no_other_call_does() -> None:
    pieces: list[str] = []
    found, _, _ = reply_of("metacrit", on_text=pieces.append)
    assert len(pieces) > 1
    assert "".join(pieces).replace(" ", "") == found.text.replace(" ", "")


def test_a_reply_that_is_cancelled_stops_the_stream_and_keeps_what_had_come() -> None:
    pieces: list[str] = []
    stopped: list[bool] = []

    class Endless(ScriptedLLM):
        async def stream(self, request: Request) -> AsyncIterator[Token | Call]:
            try:
                while True:
                    await asyncio.sleep(0)
                    yield Token("word ", -0.5)
            finally:
                stopped.append(True)

    async def cancelled() -> None:
        item = item_of_turn(turn_with(), "t")
        setup = Setup(Models(Endless(IN_FORM)), Prompts.load(SYSTEM.folder, SYSTEM.prompts))
        session = Session(setup, item, system=SYSTEM.name, variant="single", run_id="r")
        task = asyncio.create_task(reply(session, turn_with(), "single", on_text=pieces.append))
        while len(pieces) < 3:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert (pieces[:3], stopped) == (["word "] * 3, [True])


def test_a_model_that_does_not_stream_hands_over_its_answer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = dataclasses.replace(ScriptedLLM.capabilities, stream=False)
    monkeypatch.setattr(ScriptedLLM, "capabilities", quiet)
    pieces: list[str] = []
    found, _, _ = reply_of("single", on_text=pieces.append)
    assert pieces == [found.text]


def test_an_empty_turn_asks_no_model_and_says_what_to_do() -> None:
    for condition in CONDITIONS:
        pieces: list[str] = []
        found, llm, session = reply_of(condition, turn_with("  ", "\n"), on_text=pieces.append)
        assert (found.text, pieces, llm.asked) == (EMPTY_REPLY, [EMPTY_REPLY], [])
        assert session.run(found.text).calls == ()


def test_a_text_without_a_message_is_looked_at() -> None:
    _, llm, _ = reply_of("multi", turn_with(""))
    assert "Please look at my text." in llm.prompt(-1)


@pytest.mark.slow
def test_fifty_thousand_words_are_cut_for_the_model_alone_and_the_reply_says_so() -> None:
    draft = " ".join(f"word{number}" for number in range(50_000))
    turn = turn_with("Is it good?", draft)
    found, llm, session = reply_of("metacrit", turn)
    assert turn_of_item(session.item).draft == draft
    assert any("left out 48800" in note for note in found.notes)
    for prompt in map(llm.prompt, range(len(llm.asked))):
        assert len(prompt.split()) < 4000
    assert "word0 " in llm.prompt(-1)
    assert "word49999" in llm.prompt(-1)
    few, llm, _ = reply_of("single", turn, options=Options(constants={"shown_words": 20}))
    assert len(llm.prompt(0).split()) < 400
    assert any("left out 49980" in note for note in few.notes)


@pytest.mark.parametrize(
    "text", ["Das Blut in den Adern ist blau. " * 6, "\u8840\u7ba1\u770b\u8d77\u6765\u662f\u84dd\u8272\u7684\u3002" * 6]
)
def test_a_text_in_another_language_is_answered_with_a_note(text: str) -> None:
    found, _, _ = reply_of("multi", turn_with(draft=text))
    assert found.text
    assert any("does not look like English" in note for note in found.notes)
    assert not any("English" in note for note in reply_of("multi")[0].notes)


def test_ten_thousand_signs_of_a_script_without_blanks_are_cut_as_well() -> None:
    found, llm, _ = reply_of("single", turn_with(draft="\u8840" * 10_000))
    assert any("left out 8800" in note for note in found.notes)
    assert len(llm.prompt(-1)) < 4000


def test_what_no_module_can_read_becomes_none_with_a_note_and_never_an_error() -> None:
    for stage in ("PRE", "DURING", "POST", "?"):
        for text in ("", "???", "Remark: Score: \u2014 Step 1", "{", "\n" * 50, "x " * 400):
            broken = {**dict.fromkeys(IN_FORM, text), "stage": stage, "reasoning": "reasoning"}
            for condition in CONDITIONS:
                found, _, _ = reply_of(condition, answers=broken)
                assert found.rubric is None
                assert found.text or any("gave no answer" in note for note in found.notes)


def test_a_stage_and_a_reasoning_that_cannot_be_read_are_asked_for_once_more_in_a_fixed_form() -> None:
    answers = {**IN_FORM, "stage": ["I think so.", '{"stage": "POST"}'], "reasoning": ["?", '{"request": "REASONING"}']}
    found, llm, _ = reply_of("metacrit", answers=answers)
    assert (found.stage, found.reasoning, found.notes) == ("post", True, ())
    for stage, values in (
        ("stage", ["PRE", "DURING", "POST", "NOT APPLIED"]),
        ("reasoning", ["REASONING", "NON-REASONING"]),
    ):
        _, again = (request for request in llm.asked if request.stage == stage)
        (spec,) = json.loads(again.sampling.json_schema)["properties"].values()
        assert spec["enum"] == values
        assert [message.role for message in again.messages] == ["system", "user", "assistant", "user"]


def test_a_score_that_cannot_be_read_is_asked_for_once_more_in_a_fixed_form() -> None:
    answers = {**IN_FORM, "assess": ["A fine text.", '{"score": 4}']}
    found, llm, session = reply_of("multi", answers=answers)
    first, second = (request for request in llm.asked if request.stage == "assess")
    assert "A fine text." in second.messages[-2].content
    assert json.loads(second.sampling.json_schema)["properties"]["score"]["enum"] == [0, 1, 2, 3, 4, 5]
    assert found.rubric is not None
    assert (found.rubric.score, found.rubric.reasons, found.rubric.steps) == (4, "A fine text.", ())
    assert session.run("").stated("rubric", first.id) == 0.8


@dataclasses.dataclass(frozen=True)
class Thrifty:
    """Hears only whom it is told to hear, as far as that is legal."""

    action: str

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        chosen = self.action if self.action in legal_actions else legal_actions[0]
        return state.make_decision(chosen, legal_actions, {}, "thrifty")

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Learns nothing."""


def test_the_policy_decides_whether_monitor_and_control_are_worth_their_tokens() -> None:
    none, llm, session = reply_of("metacrit", policy=Thrifty(Action.SYNTHESISE))
    assert llm.stages == [*MODULES, "reasoning", "answer", "respond"]
    assert none.remarks == ()
    assert [decision.action for decision in session.run("").decisions] == [Action.SYNTHESISE]
    _, llm, _ = reply_of("metacrit", policy=Thrifty(Action.MONITOR))
    assert llm.stages == [*MODULES, "reasoning", "answer", "monitor", "synthesis", "respond"]
    simple = {**IN_FORM, "reasoning": "NON-REASONING"}
    _, llm, _ = reply_of("metacrit", answers=simple, policy=Thrifty(Action.SYNTHESISE))
    assert llm.stages == [*MODULES, "reasoning", "respond"]


def test_small_models_take_the_place_of_two_calls_and_their_digests_are_noted() -> None:
    turn = turn_with("My essay is finished. Please evaluate my whole final essay and its arguments.", DRAFT * 8)
    found, llm, session = reply_of("metacrit", turn, options=Options(constants={"learned": 1}))
    assert (found.stage, found.reasoning) == ("post", True)
    assert not {"stage", "reasoning"} & set(llm.stages)
    noted = {label.name: label for label in session.run("").labels}
    assert (noted["stage"].value, noted["reasoning"].value) == (2.0, 1.0)
    assert all(len(noted[name].source) == 64 for name in ("stage", "reasoning"))


def test_a_gate_that_would_have_stopped_the_response_is_said_in_the_reply() -> None:
    gate = StreamingGate.load(on_mismatch="ignore")
    assert reply_of("single", gate=gate)[0].doubted is False
    gate.limits = {LOGPROBS_ALONE: dict.fromkeys(gate.looks, (0.0, 1.1))}
    assert reply_of("single", answers={**IN_FORM, "respond": "word " * 30}, gate=gate)[0].doubted is True


def test_a_bad_condition_history_or_item_is_refused_with_what_was_expected() -> None:
    with pytest.raises(RecordError, match="'triple': expected one of single, multi, metacrit"):
        reply_of("triple")
    with pytest.raises(RecordError, match="role user or assistant"):
        reply_of("single", turn_with(history=(("teacher", "x"),)))
    item = item_of_turn(turn_with(), "t")
    with pytest.raises(RecordError, match="has no field history"):
        turn_of_item(dataclasses.replace(item, fields={k: v for k, v in item.fields.items() if k != "history"}))
    for history in ("[", '{"a": 1}', "[1]", '[["user"]]', '[["user", 3]]'):
        with pytest.raises(RecordError, match=r"expected a JSON list|expected \(role, text\)"):
            turn_of_item(dataclasses.replace(item, fields={**item.fields, "history": history}))


def test_a_model_that_is_gone_is_an_error_and_not_half_a_reply() -> None:
    with pytest.raises(LLMError):
        reply_of("single", answers={"stage": "PRE"})


def test_a_turn_comes_back_from_its_item_as_it_was() -> None:
    turn = turn_with("a $b {c}", 'x\n"y"', Profile("16", None, "g", None), history=(("user", "q"), ("assistant", "a")))
    assert turn_of_item(item_of_turn(turn, "t")) == turn


def test_runs_are_stored_replayed_and_labelled_where_the_task_knows_stage_and_reasoning(tmp_path: Path) -> None:
    item = next(item for item in load_task("writing-turns") if item.dimension == "during" and item.level == "yes")
    item = dataclasses.replace(item, fields={**item.fields, "demographic": TOLD.demographic or ""})
    prompts = Prompts.load(SYSTEM.folder, SYSTEM.prompts)
    llm = ScriptedLLM({**IN_FORM, "reasoning": "NON-REASONING"})
    asyncio.run(collect_runs(SYSTEM, [item], Setup(Models(llm), prompts), RunStore(tmp_path), variants=["metacrit"]))
    (run,) = RunStore(tmp_path)
    by_stage = {call.stage: call.id for call in run.calls}
    assert (run.label("correct", by_stage["stage"]), run.label("correct", by_stage["reasoning"])) == (1.0, 0.0)
    assert run.label("stage", by_stage["respond"]) == 1.0
    again = run_once(SYSTEM, item, ReplayLLM(run.calls), variant="metacrit")
    assert again.final_answer == run.final_answer
    assert [call.stage for call in again.calls] == [call.stage for call in run.calls]


def test_the_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    exec(compile(code, "README.md", "exec"), {"asyncio": asyncio, "llm": ScriptedLLM(IN_FORM)})
    assert capsys.readouterr().out.splitlines()[-1].startswith("during veins")
