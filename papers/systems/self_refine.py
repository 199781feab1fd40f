"""Self-Refine: answers, criticises the answer, answers again with all feedback, until the critic is content.

Madaan et al. 2023, as Algorithm 3 and section 4.1 of the Monitor-Generate-Verify paper describe it: at most three
cycles, temperature 0.3 throughout, 800 tokens, the refiner sees all answers and all feedback.

What the papers leave open is done as follows. A cycle is an answer and its critique, so three cycles are three answers
and each of them is judged (the third critique can only end the run). The critic ends with `Verdict: GOOD` or `Verdict:
IMPROVE`; without a readable verdict the feedback is not positive, and the run continues. The policy is asked at
`iterate`, with the verdict as quality 1 or 0. If a checkpoint replaces the quality, it decides about stopping; the
critic is still asked, because the refiner needs its text.

The variant `raw-critique` puts the directive of the MetaCrit paper (section 5.2) into the generator's, the critic's and
the refiner's prompt; that paper does not say into which.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from metaprobe.api import Action, Call, Run, Signals, final_answer
from metaprobe.papers.systems.session import Session
from metaprobe.papers.systems.system import System
from metaprobe.papers.systems.system_options import Constant
from metaprobe.papers.systems.zero_shot_cot import PLAIN, PROMPT_FOLDER, RAW_CRITIQUE, directive

REFINE_TEMPERATURE = Constant("temperature", 0.3, "at which answers and critiques are drawn", low=0, high=2)
REFINE_ANSWER_TOKENS = 800
FEEDBACK_TOKENS = 800
MAX_ANSWERS = Constant("most_cycles", 10, "answers after which it stops, also where a policy never does")
"""The paper's own three cycles are the policy's."""
ACCEPTED = "accepted"
"""Statement of a critique: 1 if it is content with the answer, 0 if not, None if it does not say."""

# "GOOD or IMPROVE" repeats the question.
_VERDICT = re.compile(r"verdict\W*\b(good|improve)\b(?!\W+(?:or\W+)?(?:good|improve))", re.IGNORECASE)


async def self_refine(session: Session) -> Run:
    """Refines until the critic is content or the policy stops, and returns the last answer."""
    history = ""
    attempts: list[tuple[Call, Signals]] = []
    answer = await _ask_for_answer(session, "self_refine_generate", 0, None)
    max_answers = session.constant(MAX_ANSWERS)
    for number in range(max_answers):
        feedback = await session.ask(
            "self_refine_feedback",
            stage="feedback",
            round=number,
            parent=answer,
            max_tokens=FEEDBACK_TOKENS,
            temperature=session.constant(REFINE_TEMPERATURE),
            answer=answer.text.strip(),
            directive=directive(session),
        )
        accepted = session.state(feedback, ACCEPTED, parse_good(feedback.text))
        quality = session.signal("quality", stated=accepted, call=answer)
        attempts.append((answer, dataclasses.replace(Signals.of(answer), quality=quality)))
        legal = [Action.STOP, Action.AGAIN] if number + 1 < max_answers else [Action.STOP]
        if session.decide("iterate", legal, **_known_signals(session, attempts)).action == Action.STOP:
            break
        slots = {"number": number + 1, "answer": answer.text.strip(), "feedback": feedback.text.strip()}
        history += session.messages("self_refine_history", **slots)[0].content + "\n\n"
        answer = await _ask_for_answer(session, "self_refine_refine", number + 1, answer, history=history.strip())
    return session.run(final_answer(session.item, answer.text))


def parse_good(text: str) -> float | None:
    """Returns 1 for GOOD, 0 for IMPROVE, None if neither or both are written after "Verdict"."""
    verdicts = {verdict.lower() for verdict in _VERDICT.findall(text)}
    return float(verdicts == {"good"}) if len(verdicts) == 1 else None


def _known_signals(session: Session, attempts: Sequence[tuple[Call, Signals]]) -> dict[str, Any]:
    """Returns what a policy may read after a critique: the signals of every answer so far, the last one's
    separately.
    """
    candidates = {str(index): signals for index, (_, signals) in enumerate(attempts)}
    return {"signals": attempts[-1][1], "candidates": candidates, "round": len(attempts)}


async def _ask_for_answer(session: Session, prompt: str, number: int, parent: Call | None, **slots: str) -> Call:
    return await session.ask(
        prompt,
        stage="answer",
        round=number,
        parent=parent,
        max_tokens=REFINE_ANSWER_TOKENS,
        temperature=session.constant(REFINE_TEMPERATURE),
        hidden=True,
        directive=directive(session),
        **dict[str, Any](slots),
    )


SYSTEM = System(
    name="self-refine",
    run=self_refine,
    folder=PROMPT_FOLDER,
    prompts=(
        "self_refine_generate",
        "self_refine_feedback",
        "self_refine_refine",
        "self_refine_history",
        "raw_critique",
    ),
    variants=(PLAIN, RAW_CRITIQUE),
    stages=("answer", "feedback"),
    signals={"quality": "answer"},
    limits={"answer": REFINE_ANSWER_TOKENS, "feedback": FEEDBACK_TOKENS},
    constants=(MAX_ANSWERS, REFINE_TEMPERATURE),
    decides=("iterate",),
)
