"""MetaCrit's four agents on a learner's request: explore, monitor upward, control downward, join.

If no reasoning is needed, only the monitor looks at the request (the paper's figure 22). The policy decides, at
`regulate`, whether monitor and control are worth their tokens; the paper's rule hears all that it may.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from metaprobe.papers.systems.metacrit import quote, yes_no
from metaprobe.probes.signals import Signals
from metaprobe.records.spelling import AT_LINE, line_matches
from metaprobe.records.types import Call, Decision
from metaprobe.routing.policy import Action
from metaprobe_writing_assistant.system.asking import Work
from metaprobe_writing_assistant.system.contract import Remark, RemarkKind
from metaprobe_writing_assistant.system.writing_assessor import plain

ANSWER, CONTROL, SYNTHESIS = "answer", "control", "synthesis"
REGULATE_POINT = "regulate"
ANSWER_TOKENS, MONITOR_TOKENS, CONTROL_TOKENS, SYNTHESIS_TOKENS = 224, 160, 288, 288
MIN_QUOTED_WORDS = 2
"""Fewest words that a remark must quote for its sentence to be found: a single word occurs in many sentences."""

_REMARK = re.compile(
    # Single quotation marks close only before a dash, a colon or the end: an apostrophe is one of them.
    rf"{AT_LINE}remark\W*?:[\s*_]*(?:\"(.+?)\"|\u201c(.+?)\u201d|['\u2018](.+?)['\u2019](?=\s*(?:[-\u2013\u2014:]|$)))"
    r"\s*(?:[-\u2013\u2014:,]+\s*)?(.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_CONCERN = re.compile(rf"{AT_LINE}concerns?\W*[:=].*$", re.IGNORECASE | re.MULTILINE)
_SENTENCE = re.compile(r"[^.!?\n]+(?:[.!?]+[\"'\u201d\u2019)]*|(?=\n)|$)")


async def regulate_request(work: Work, reasoning: bool | None, topic: str | None) -> tuple[str, tuple[Remark, ...]]:
    """Returns what the final response has to consider, and the remarks; both empty if the policy hears no agent.

    Args:
        work: the turn.
        reasoning: whether the request needs reasoning.
        topic: the topic.
    """
    if not reasoning:
        if _decide(work, None, (Action.SYNTHESISE, Action.MONITOR)).action != Action.MONITOR:
            return "", ()
        note = await _criticise(work, "monitor_alone", Action.MONITOR, max_tokens=MONITOR_TOKENS)
        return note.text.strip(), remarks_of(Action.MONITOR, note, work.turn.draft)
    answer = await work.ask(
        "brainstorm",
        stage=ANSWER,
        agent="brainstormer",
        max_tokens=ANSWER_TOKENS,
        hidden=True,
        topic=topic or "(not named)",
    )
    critics = _decide(work, answer, (Action.SYNTHESISE, Action.MONITOR, Action.MONITOR_CONTROL)).action.split("+")
    monitor_note: Call | None = None
    critique: Call | None = None
    critic_arguments: dict[str, Any] = {"parent": answer, "answer": quote(answer)}
    if Action.MONITOR in critics:  # A2: V, an assessment of the first answer that corrects nothing
        monitor_note = await _criticise(work, "monitor", Action.MONITOR, max_tokens=MONITOR_TOKENS, **critic_arguments)
    if CONTROL in critics:  # A3: C, the critique in three steps
        critic_arguments["heard"] = heard(work, monitor_note, None)
        critique = await _criticise(work, "control", CONTROL, max_tokens=CONTROL_TOKENS, **critic_arguments)
    if monitor_note is None and critique is None:
        return answer.text.strip(), ()
    remarks = (
        *remarks_of(Action.MONITOR, monitor_note, work.turn.draft),
        *remarks_of(CONTROL, critique, work.turn.draft),
    )
    synthesis = await work.ask(
        "synthesis",
        stage=SYNTHESIS,
        agent="synthesiser",
        parent=answer,
        max_tokens=SYNTHESIS_TOKENS,
        hidden=True,
        answer=quote(answer),
        heard=heard(work, monitor_note, critique),
    )
    return synthesis.text.strip(), remarks


async def _criticise(work: Work, prompt: str, critic: str, **more: Any) -> Call:
    """Asks a critic, and notes whether it flags a concern.

    Args:
        work: the turn.
        prompt: name of the prompt.
        critic: the critic.
        **more: other arguments of `Work.ask`.
    """
    call = await work.ask(prompt, stage=critic, agent=critic, **more)
    work.session.state(call, "flags", yes_no(call.text, "concern"))
    return call


def _decide(work: Work, answer: Call | None, legal_actions: Sequence[str]) -> Decision:
    """Asks the policy which critics are heard; without a first answer it knows only the question.

    Args:
        work: the turn.
        answer: the first answer, if there is one.
        legal_actions: the legal actions.
    """
    session = work.session
    if answer is None:
        return session.decide(REGULATE_POINT, legal_actions, agent=Action.MONITOR)
    read_signals = {name: session.signal(name, agent=answer.agent, call=answer) for name in ("difficulty", "quality")}
    signals = replace(Signals.of(answer), **read_signals)
    return session.decide(REGULATE_POINT, legal_actions, agent=answer.agent, signals=signals)


def heard(work: Work, note: Call | None, critique: Call | None) -> str:
    """Returns what the critics said, each under its heading and after an empty line; empty if none is heard.

    Args:
        work: the turn.
        note: the monitor's note.
        critique: the critique.
    """
    texts = [("heard_monitor", note), ("heard_control", critique)]
    return "".join("\n\n" + work.text_of(name, text=quote(call)) for name, call in texts if call)


def remarks_of(kind: str, call: Call | None, draft: str) -> tuple[Remark, ...]:
    """Returns the remarks of one agent: those on lines `Remark: "..." - ...`, or its whole text as one remark.

    A quotation that is not in the draft is kept as part of the remark, and the remark is about no sentence.

    Args:
        kind: kind of the agent.
        call: its call.
        draft: the draft.
    """
    if call is None or not call.text.strip():
        return ()
    name: RemarkKind = "monitor" if kind == Action.MONITOR else "control"
    remarks_on_sentences = [
        Remark(name, remark_text.strip() if sentence else f'"{words}" {remark_text}'.strip(), sentence)
        for *quotations, remark_text in _REMARK.findall(call.text)
        for words in ["".join(quotations)]
        for sentence in [sentence_with(words, draft)]
        if remark_text.strip()
    ]
    general = _without(_CONCERN, _without(_REMARK, call.text)).strip()
    return (*([Remark(name, general)] if general else []), *remarks_on_sentences)


def _without(pattern: re.Pattern[str], text: str) -> str:
    copied_until, parts = 0, []
    for start, match in line_matches(pattern, text):
        parts.append(text[copied_until:start])
        copied_until = match.end()
    return "".join((*parts, text[copied_until:]))


def sentence_with(words: str, draft: str) -> str | None:
    """Returns the first sentence of a draft that holds these words, exactly as in the draft; None if there is none."""
    plain_words = plain(words).strip(" .!?,;:")
    if len(plain_words.split()) < MIN_QUOTED_WORDS:
        return None
    sentences = (found[0].strip() for found in _SENTENCE.finditer(draft))
    return next((sentence for sentence in sentences if plain_words in plain(sentence)), None)
