"""The writing assistant as a whole: a turn goes through the modules of its condition, and becomes a reply.

After MetaCrit's section 4, its appendices I and J and its Table 12. If the paper is silent or contradicts itself, this
is done here:

- The profile comes from a form. The user prompt generator is asked only for what the form leaves open, and the reply
  holds what it found, so that it is asked once in a conversation. In `single` the profile is a prefix (Table 12).
- Figure 18 asks the assessor for a number alone, appendix I for three steps: here three steps, then the number.
- If stage, reasoning or score cannot be read, it is asked for once more, alone and in a fixed form.
- The editor holds the learner's text; the writing extractor is asked if the editor is empty and the message is long
  enough to hold a text.
- Without a stage, the modules of a stage are left out, and the guidance is the general one.
- A reasoning check that cannot be read counts as "non-reasoning": only the monitor is asked.
- The policy may leave out monitor and control (`regulate`); the paper's rule never does.
- With the constant `learned`, two small models on words determine stage and reasoning, which saves two calls.
- Token limits and the length up to which a text is shown are ours; decoding is greedy. The paper states none.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

from metaprobe.papers.systems.session import Session
from metaprobe.papers.systems.system import System
from metaprobe.records.types import Call, Run
from metaprobe.routing.gate import StreamingGate
from metaprobe.routing.policy import Action
from metaprobe_writing_assistant.system import (
    classifiers,
    final_response,
    metacrit_chain,
    topic_module,
    user_prompt,
    vocabulary,
    writing_assessor,
)
from metaprobe_writing_assistant.system.asking import Work
from metaprobe_writing_assistant.system.classifiers import LEARNED
from metaprobe_writing_assistant.system.contract import (
    CONDITIONS,
    TURN_FIELDS,
    Card,
    Condition,
    Profile,
    Reply,
    RubricScore,
    Stage,
    Turn,
    check_condition,
    check_turn,
    turn_of_item,
)
from metaprobe_writing_assistant.system.final_response import OnText
from metaprobe_writing_assistant.system.quoting import SHOWN_WORDS

SINGLE, MULTI, METACRIT = CONDITIONS
EMPTY_REPLY = "There is nothing to answer yet. Write a message, or begin your text in the editor."
STAGE_CODES = {"pre": 0.0, "during": 1.0, "post": 2.0, None: 3.0}
"""How a reply's stage is written into its label `stage`."""


async def writing_assistant(session: Session) -> Run:
    """Replies to the turn that the item holds, in the condition that the variant names."""
    work = Work(session, turn_of_item(session.item), [])
    answer = await _reply(work, check_condition(session.variant), None, None)
    for field in (classifiers.STAGE, classifiers.REASONING):  # the item may say what is right
        if field in work.module_answers and (gold := session.item.fields.get(field)):
            module_call, answer_of_module = work.module_answers[field]
            session.label(module_call, "correct", float(answer_of_module == gold), source="program")
    return session.run(answer.text)


async def reply(
    session: Session,
    turn: Turn,
    condition: str,
    *,
    on_text: OnText | None = None,
    gate: StreamingGate | None = None,
) -> Reply:
    """Returns the answer to a turn, with the results of the condition's modules.

    If a model does not keep the requested form, the part is None in the reply, with a note. An empty turn asks no
    model. Cancelling the task stops the model. Raises `RecordError` for an unknown condition or a bad history,
    `LLMError` if the model cannot answer, and `MissingExtra` if the vocabulary module needs WordNet and it is not
    installed.

    Args:
        session: the session of one turn; a session is not used twice.
        turn: the turn.
        condition: the condition.
        on_text: called with each piece of the final response as it comes.
        gate: a streaming gate that says whether it would have stopped the response (`Reply.doubted`).
    """
    check_turn(turn)
    return await _reply(Work(session, turn, []), check_condition(condition), on_text, gate)


async def _reply(work: Work, condition: Condition, on_text: OnText | None, gate: StreamingGate | None) -> Reply:
    if not work.turn.message.strip() and not work.turn.draft.strip():
        if on_text is not None:
            on_text(EMPTY_REPLY)
        return Reply(text=EMPTY_REPLY, condition=condition, profile=work.turn.profile)
    work.note_what_is_cut()
    if condition == SINGLE:
        stage = await classifiers.find_stage(work)
        reply_so_far = Reply(text="", condition=condition, profile=work.turn.profile, stage=stage)
        response_call = await final_response.answer_alone(work, stage, on_text)
    else:
        profile, stage, topic = await asyncio.gather(
            user_prompt.make_profile(work), classifiers.find_stage(work), topic_module.identify_topic(work)
        )
        cards, rubric = await _stage_modules(work, stage, topic, profile)
        guidance = await topic_module.make_guidance(work, topic, stage)
        reply_so_far = Reply(
            text="", condition=condition, profile=profile, stage=stage, topic=topic, cards=cards, rubric=rubric
        )
        critical = ""
        if condition == METACRIT:
            reasoning = await classifiers.find_reasoning(work)
            critical, remarks = await metacrit_chain.regulate_request(work, reasoning, topic)
            reply_so_far = replace(reply_so_far, reasoning=reasoning, remarks=remarks)
        response_call = await final_response.respond(
            work, reply_so_far, guidance=guidance, critical=critical, on_text=on_text
        )
    session = work.session
    session.label(response_call, "stage", STAGE_CODES[stage], source=work.source_of["stage"])
    if reply_so_far.reasoning is not None:
        session.label(response_call, "reasoning", float(reply_so_far.reasoning), source=work.source_of["reasoning"])
    quality = session.signal("quality", agent=response_call.agent, call=response_call)
    if not response_call.text.strip():
        work.note("The model gave no answer. Ask again, or use a stronger model.")
    elif response_call.finish_reason == "length":
        work.note("The answer was cut at its greatest length.")
    return replace(
        reply_so_far,
        text=response_call.text.strip(),
        quality=None if quality is None else quality.value,
        doubted=_would_stop(gate, response_call),
        notes=tuple(work.notes),
    )


async def _stage_modules(
    work: Work, stage: Stage | None, topic: str | None, profile: Profile
) -> tuple[tuple[Card, ...], RubricScore | None]:
    """Returns words before writing, and a score while drafting and after if there is a text to judge.

    Args:
        work: the turn.
        stage: the stage.
        topic: the topic.
        profile: the profile.
    """
    if stage == "pre":
        return await vocabulary.make_cards(work, topic, profile), None
    if stage is None:
        return (), None
    writing = await writing_assessor.extract_writing(work)
    if not writing:
        work.note("There is no text to judge yet, so there is no score.")
        return (), None
    return (), await writing_assessor.assess(work, writing, profile)


def _would_stop(gate: StreamingGate | None, response_call: Call) -> bool:
    """Returns whether the gate would have stopped this response; False without a gate or without log-probabilities."""
    if gate is None or response_call.logprobs is None:
        return False
    gate_run = gate.start(model=response_call.model, logprobs_mode=response_call.logprobs_mode)
    return any(gate_run.push(float(logprob)) != "continue" for logprob in response_call.logprobs)


LIMITS = {
    user_prompt.STAGE: user_prompt.PROFILE_TOKENS,
    classifiers.STAGE: classifiers.STAGE_TOKENS,
    topic_module.TOPIC: topic_module.TOPIC_TOKENS,
    topic_module.GUIDE: max(topic_module.GUIDE_TOKENS, final_response.META_TOKENS),
    topic_module.AGGREGATE: topic_module.AGGREGATE_TOKENS,
    vocabulary.FETCH: vocabulary.FETCH_TOKENS,
    vocabulary.EXPLAIN: vocabulary.EXPLAIN_TOKENS,
    writing_assessor.EXTRACT: writing_assessor.EXTRACT_TOKENS,
    writing_assessor.STAGE: writing_assessor.ASSESS_TOKENS,
    classifiers.REASONING: classifiers.REASONING_TOKENS,
    metacrit_chain.ANSWER: metacrit_chain.ANSWER_TOKENS,
    Action.MONITOR: metacrit_chain.MONITOR_TOKENS,
    metacrit_chain.CONTROL: metacrit_chain.CONTROL_TOKENS,
    metacrit_chain.SYNTHESIS: metacrit_chain.SYNTHESIS_TOKENS,
    final_response.STAGE: final_response.RESPOND_TOKENS,
}

SYSTEM = System(
    name="writing-assistant",
    folder=str(Path(__file__).parent / "prompts"),
    run=writing_assistant,
    prompts=(
        *("rules", "profile", "stage", "topic", "guide_topic", "guide_stage", "aggregate"),
        *(f"stage_{stage}" for stage in ("pre", "during", "post", "none")),
        *("words", "explain", "extract", "assess", "again", "reasoning"),
        *("brainstorm", "monitor", "monitor_alone", "control", "synthesis", "heard_monitor", "heard_control"),
        *("feedback", "single", "respond", "found_words", "found_score", "found_critics"),
    ),
    variants=(METACRIT, MULTI, SINGLE),
    stages=tuple(LIMITS),
    fields=TURN_FIELDS,
    signals={"difficulty": metacrit_chain.ANSWER, "quality": final_response.STAGE},
    uses=("quality",),  # noted of the final response, whatever the policy makes of it
    decides=(metacrit_chain.REGULATE_POINT,),
    without=dict.fromkeys((MULTI, SINGLE), ("difficulty", metacrit_chain.REGULATE_POINT)),
    answer_stages=(final_response.STAGE,),
    extract_answer=lambda item, call, variant: call.text.strip(),
    limits=LIMITS,
    constants=(SHOWN_WORDS, LEARNED),
)
