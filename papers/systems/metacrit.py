"""MetaCrit: one agent explores a question, one monitors the answer, one criticises it, one joins everything.

Four agents after Nelson and Narens: A1 brainstorms (object level), A2 monitors (upward), A3 controls (downward), A4
synthesises (meta level). The paper describes them twice, with differences; both descriptions are recorded variants:

| | `equations` (section 3, appendix B.2) | `figures` (appendix D, figures 6-9) |
|---|---|---|
| A1 | several views and a first answer R | a teacher's background on every part of the question |
| A2 | after A1, sees Q and R (eq. 2) | at the same time as A1, sees Q only (fig. 7; C.3 calls the inputs independent) |
| A3 | three steps, sees Q, R and V (eq. 4 leaves Q out; section 3.2's step 1 needs it) | four steps (fig. 8) |
| A4 | five steps (B.2; the six of section 3.2 are the same with 2 and 3 apart) | six steps (fig. 9) |

Figure 6 asks for background and no answer. Both variants ask for a line "Answer:", because otherwise nothing could be
checked before the synthesis. The line "Concern: yes" or "no" is ours too: the paper counts which agents flag a concern
(table 9) and does not say how it read that. The concern is about the answer, or about the question if the monitor sees
only the question. `without-monitor` and `without-control` remove the agent for all later ones, with the prompts of
`equations`. `every-stage` runs `equations` in full and then the syntheses of all three ablations, so that one run holds
the answer after every stage. It asks A3 once more without the monitor's note, which would otherwise reach the synthesis
through A3. Token limits are ours, and decoding is greedy: the paper states neither.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace

from metaprobe.api import Action, Call, Decision, Item, Run, Signals, final_answer
from metaprobe.papers.systems.session import Session
from metaprobe.papers.systems.system import System

BRAINSTORM_TOKENS = 256
MONITOR_TOKENS = 128
CONTROL_TOKENS = 256
SYNTHESIS_TOKENS = 320
MAX_LISTED_CHARS = 60
"""Choices up to this length are repeated in the instruction that asks for the answer."""

EQUATIONS, FIGURES, EVERY_STAGE = "equations", "figures", "every-stage"
SETTLED_CRITICS = {"without-monitor": "control", "without-control": Action.MONITOR, EVERY_STAGE: Action.MONITOR_CONTROL}
"""Maps a variant that settles which critics are heard to these critics; in other variants the policy is asked."""


async def metacrit(session: Session) -> Run:
    """Explores, asks the policy which critics are heard, monitors, controls, synthesises."""
    note: Call | None = None
    if session.variant == FIGURES:
        answer, note = await asyncio.gather(brainstorm(session), monitor(session))
        # The monitor has spoken already, so the policy decides only about the critic.
        critics = regulate(session, answer, (Action.MONITOR, Action.MONITOR_CONTROL)).action.split("+")
    else:
        answer = await brainstorm(session)
        settled_critics = SETTLED_CRITICS.get(session.variant)
        action = (
            settled_critics
            or regulate(session, answer, (Action.SYNTHESISE, Action.MONITOR, Action.MONITOR_CONTROL)).action
        )
        critics = action.split("+")
        if "monitor" in critics:
            note = await monitor(session, answer)
    critique = await control(session, answer, note) if "control" in critics else None
    final = await synthesise(session, answer, note, critique)
    if session.variant == EVERY_STAGE:
        await ablations(session, answer, note)
    return session.run(final_answer(session.item, final.text))


async def brainstorm(session: Session) -> Call:
    """A1: returns R, the raw answer. Equation 1."""
    return await session.ask(
        _prompt(session, "brainstorm"),
        stage="answer",
        agent="brainstormer",
        max_tokens=BRAINSTORM_TOKENS,
        hidden=True,
        form=answer_form(session.item),
    )


async def monitor(session: Session, answer: Call | None = None) -> Call:
    """A2: returns V, the assessment of the answer (equation 2), or of the question if there is no answer (figure 7)."""
    note = await session.ask(
        _prompt(session, "monitor"),
        stage="monitor",
        agent="monitor",
        parent=answer,
        max_tokens=MONITOR_TOKENS,
        answer="" if answer is None else quote(answer),
    )
    session.state(note, "flags", yes_no(note.text, "concern"))
    return note


async def control(session: Session, answer: Call, note: Call | None, *, stage: str = "control") -> Call:
    """A3: returns C, the critique of the answer in view of the monitor's note. Equation 4.

    Args:
        session: the session.
        answer: the answer.
        note: the monitor's note; None if the monitor is not heard.
        stage: stage of the call.
    """
    critique = await session.ask(
        _prompt(session, "control"),
        stage=stage,
        agent="control",
        parent=answer,
        max_tokens=CONTROL_TOKENS,
        model_of="control",
        answer=quote(answer),
        heard=heard(session, note, None),
    )
    session.state(critique, "flags", yes_no(critique.text, "concern"))
    return critique


async def synthesise(
    session: Session, answer: Call, note: Call | None, critique: Call | None, *, stage: str = "synthesis"
) -> Call:
    """A4: returns F, the final answer from everything that was said. Equation 5.

    Args:
        session: the session.
        answer: the first answer.
        note: the monitor's note; None if the monitor is not heard.
        critique: the critique; None if control is not heard.
        stage: stage of the call.
    """
    return await session.ask(
        _prompt(session, "synthesis"),
        stage=stage,
        agent="synthesiser",
        parent=answer,
        max_tokens=SYNTHESIS_TOKENS,
        model_of="synthesis",
        hidden=True,
        answer=quote(answer),
        heard=heard(session, note, critique),
        form=answer_form(session.item),
    )


async def ablations(session: Session, answer: Call, note: Call | None) -> None:
    """Asks for the answers without the monitor, without control, and without both.

    Args:
        session: the session.
        answer: the first answer.
        note: the monitor's note.
    """
    critique_without_note = await control(session, answer, None, stage="control-without-monitor")
    await asyncio.gather(
        synthesise(session, answer, None, critique_without_note, stage="synthesis-without-monitor"),
        synthesise(session, answer, note, None, stage="synthesis-without-control"),
        synthesise(session, answer, None, None, stage="synthesis-without-both"),
    )


def regulate(session: Session, answer: Call, legal_actions: Sequence[str]) -> Decision:
    """Decides which critics are heard before the synthesis.

    The paper's agents state nothing; a checkpoint may give numbers, for a learned policy.

    Args:
        session: the session.
        answer: the first answer.
        legal_actions: the legal actions.
    """
    read_signals = {name: session.signal(name, agent=answer.agent, call=answer) for name in ("difficulty", "quality")}
    signals = replace(Signals.of(answer), **read_signals)
    return session.decide("regulate", legal_actions, agent=answer.agent, signals=signals)


def heard(session: Session, note: Call | None, critique: Call | None) -> str:
    """Returns the critics' texts, each under its heading and after an empty line; empty if no critic is heard.

    Args:
        session: the session.
        note: the monitor's note.
        critique: the critique.
    """
    texts = [("heard_monitor", note), ("heard_control", critique)]
    return "".join("\n\n" + session.messages(name, text=quote(call))[0].content for name, call in texts if call)


def answer_form(item: Item) -> str:
    """Returns what the last line may hold. Small models need the instruction, and it must not depend on the answer."""
    if item.check == "number":
        return "a number"
    if item.check == "function":
        return "the code"
    if not item.choices:
        return "in as few words as possible"
    listed_choices = f"{', '.join(item.choices[:-1])} or {item.choices[-1]}"
    return listed_choices if len(listed_choices) <= MAX_LISTED_CHARS else "one of the given choices"


def quote(call: Call) -> str:
    """Returns a call's text as another agent is shown it."""
    return call.text.strip() or "(nothing)"


def yes_no(text: str, name: str) -> float | None:
    """Returns 1 for "NAME: yes", 0 for "NAME: no"; None if the text has neither or both."""
    pattern = rf"\b{name}s?\W{{0,4}}[:=]\W{{0,4}}(yes|no)\b(?!\W{{0,3}}(?:or|yes|no)\b)"
    words = {word.lower() for word in re.findall(pattern, text, re.IGNORECASE)}
    return None if len(words) != 1 else float(words == {"yes"})


def _prompt(session: Session, name: str) -> str:
    return f"{name}_figures" if session.variant == FIGURES else name


AGENT_PROMPTS = ("brainstorm", "monitor", "control", "synthesis")

SYSTEM = System(
    name="metacrit",
    run=metacrit,
    prompts=(*AGENT_PROMPTS, *(f"{name}_figures" for name in AGENT_PROMPTS), "heard_monitor", "heard_control"),
    variants=(EQUATIONS, FIGURES, "without-monitor", "without-control", EVERY_STAGE),
    stages=("answer", "monitor", "control", "synthesis"),
    signals=dict.fromkeys(("difficulty", "quality"), "answer"),
    decides=("regulate",),
    without=dict.fromkeys(SETTLED_CRITICS, ("difficulty", "quality", "regulate")),
    answer_stages=(
        "answer",
        "synthesis",
        "synthesis-without-monitor",
        "synthesis-without-control",
        "synthesis-without-both",
    ),
    limits={
        "answer": BRAINSTORM_TOKENS,
        "monitor": MONITOR_TOKENS,
        "control": CONTROL_TOKENS,
        "synthesis": SYNTHESIS_TOKENS,
    },
)
