"""How the items are asked where `self-report` does not ask so: samples, a longer working, no stated difficulty."""

import asyncio

from metaprobe.papers.systems import Session, System
from metaprobe.papers.systems.self_report import (
    CODE_TOKENS,
    DIRECT_TOKENS,
    P_TRUE_TOKENS,
    STATEMENT_TOKENS,
    extract_answer,
    p_true,
)
from metaprobe.papers.systems.system_options import Constant
from metaprobe.papers.systems.vote_counting import most_voted
from metaprobe.probes.verbalized import parse_stated
from metaprobe.records.types import Call, Item, Run

SAMPLES = Constant("samples", 10, "answers to a question")
TEMPERATURE = Constant("temperature", 0.7, "at which they are drawn", low=0, high=2)
WORKING_TOKENS = 256
DIRECT, WORKED = "direct", "worked"


def direct_answer(item: Item, call: Call, variant: str) -> str:
    """Returns the answer as `self-report` takes it where it asks for the answer alone."""
    return extract_answer(item, call, DIRECT)


async def sample_answers(session: Session) -> Run:
    """Draw several answers to the question that `self-report` asks directly; the final one is most often given."""
    limit = CODE_TOKENS if session.item.check == "function" else DIRECT_TOKENS
    numbers, temperature = range(1, session.constant(SAMPLES) + 1), session.constant(TEMPERATURE)
    asked = {"stage": "answer", "max_tokens": limit, "temperature": temperature}
    calls = await asyncio.gather(*(session.ask("direct", round=number, **asked) for number in numbers))
    answers = {call.id: (direct_answer(session.item, call, ""), 1.0) for call in calls}
    return session.run(answers[most_voted(session.item, answers)][0])


def stated_answer(item: Item, call: Call, variant: str) -> str:
    """Returns the answer as `self-report` takes it: the first line, or what follows "Answer:" after a working."""
    return extract_answer(item, call, "step-by-step" if variant == WORKED else "direct")


async def state_confidence(session: Session) -> Run:
    """Ask for the answer, with its working in one variant, then for the confidence and whether the answer is true."""
    prompt, limit = ("step_by_step", WORKING_TOKENS) if session.variant == WORKED else ("direct", DIRECT_TOKENS)
    answer = await session.ask(prompt, stage="answer", max_tokens=limit, hidden=True)
    final = stated_answer(session.item, answer, session.variant)
    shown = final or "(none)"
    confidence = await session.ask(
        "confidence", stage="confidence", parent=answer, max_tokens=STATEMENT_TOKENS, answer=shown
    )
    session.state(confidence, "confidence", parse_stated("confidence", confidence.text))
    reply = await session.ask("p_true", stage="p_true", parent=answer, max_tokens=P_TRUE_TOKENS, answer=shown)
    session.state(reply, "p_true", p_true(reply))
    return session.run(final)


SAMPLED = System(
    name="sampled-answers",
    folder="self-report",
    run=sample_answers,
    prompts=("direct",),
    extract_answer=direct_answer,
    limits={"answer": CODE_TOKENS},
    constants=(SAMPLES, TEMPERATURE),
)
STATED = System(
    name="stated-report",
    folder="self-report",
    run=state_confidence,
    prompts=("direct", "step_by_step", "confidence", "p_true"),
    variants=(DIRECT, WORKED),
    stages=("answer", "confidence", "p_true"),
    extract_answer=stated_answer,
    limits={"answer": WORKING_TOKENS, "confidence": STATEMENT_TOKENS, "p_true": P_TRUE_TOKENS},
)
"""`self-report` with P(true), but for the stated difficulty, whose prompt would be a quarter of all that is read."""
