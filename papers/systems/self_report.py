"""The first system: a model states how difficult a question is, answers it, and states how sure it is.

The variant `p-true` also asks whether the answer is true, and takes the probability of the reply: P(true) of Kadavath
et al. 2022 (arXiv:2207.05221, section 4), with one proposed answer instead of several.

It is explicit metacognition in its plainest form: ease-of-learning judgement, answer, judgement of the answer. Every
item can be answered in two ways (the variants), so that the choice between them can be learned from complete outcomes.
"""

import re

import numpy as np

from metaprobe.api import Call, Item, Run, parse_stated
from metaprobe.papers.systems.session import Session
from metaprobe.papers.systems.system import System

ANSWER_STAGE = "answer"
P_TRUE_VARIANT = "p-true"
DIRECT = ("direct", P_TRUE_VARIANT)
"""Variants that ask for the answer alone."""

STATEMENT_TOKENS = 8
DIRECT_TOKENS = 24
CODE_TOKENS = 96
STEP_TOKENS = 64
P_TRUE_TOKENS = 2

_FINAL = re.compile(
    r"(?:^\s*+|\n[^\S\n]*+|\.\s++)\**(?:final )?answer\**\s*(?::|is)\s*+(?:\*++\s*+(?=.))?+(.+)", re.IGNORECASE
)


async def self_report(session: Session) -> Run:
    """Asks for the difficulty, the answer and the confidence."""
    item = session.item
    difficulty = await session.ask("difficulty", stage="difficulty", max_tokens=STATEMENT_TOKENS)
    session.state(difficulty, "difficulty", parse_stated("difficulty", difficulty.text))
    prompt, max_tokens = ("direct", DIRECT_TOKENS) if session.variant in DIRECT else ("step_by_step", STEP_TOKENS)
    max_tokens = CODE_TOKENS if item.check == "function" else max_tokens
    answer = await session.ask(prompt, stage=ANSWER_STAGE, max_tokens=max_tokens, hidden=True)
    final = extract_answer(item, answer, session.variant)
    confidence = await session.ask(
        "confidence", stage="confidence", parent=answer, max_tokens=STATEMENT_TOKENS, answer=final or "(none)"
    )
    session.state(confidence, "confidence", parse_stated("confidence", confidence.text))
    if session.variant == P_TRUE_VARIANT:
        reply = await session.ask(
            "p_true", stage="p_true", parent=answer, max_tokens=P_TRUE_TOKENS, answer=final or "(none)"
        )
        session.state(reply, "p_true", p_true(reply))
    return session.run(final)


def p_true(reply: Call) -> float | None:
    """Returns the probability of a reply "True" in [0, 1]; None if the reply is neither or has no log-probabilities.

    All other first tokens count as the opposite of the reply's: small models give other words next to no probability.
    """
    word = reply.text.strip().casefold()
    if reply.logprobs is None or not len(reply.logprobs) or not word.startswith(("true", "false")):
        return None
    probability = float(np.exp(reply.logprobs[0]))
    return probability if word.startswith("true") else 1 - probability


def extract_answer(item: Item, answer: Call, variant: str) -> str:
    """Returns the model's answer.

    Direct: the first line, or the second if the first only announces it. Step by step: the text after the last
    "Answer:", or else the last line. A function: all of it.

    Args:
        item: the item.
        answer: the call.
        variant: the variant.
    """
    text = answer.text.strip()
    if item.check == "function":
        return text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    if variant in DIRECT:
        is_announcement = lines[0].endswith(":") and len(lines) > 1  # "The code prints:", and then what it prints
        return lines[1] if is_announcement else lines[0]
    marked_answers = _FINAL.findall(text)
    return str(marked_answers[-1]).strip() if marked_answers else lines[-1]


SYSTEM = System(
    name="self-report",
    run=self_report,
    prompts=("difficulty", "direct", "step_by_step", "confidence", "p_true"),
    variants=("direct", "step-by-step", P_TRUE_VARIANT),
    stages=("difficulty", "answer", "confidence", "p_true"),
    default_variants=("direct", "step-by-step"),
    extract_answer=extract_answer,
    limits={
        "difficulty": STATEMENT_TOKENS,
        "answer": max(DIRECT_TOKENS, STEP_TOKENS, CODE_TOKENS),
        "confidence": STATEMENT_TOKENS,
        "p_true": P_TRUE_TOKENS,
    },
)
