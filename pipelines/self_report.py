"""The first system: a model states how difficult a question is, answers it, and states how sure it is.

Explicit metacognition in its plainest form: ease-of-learning judgement, answer, judgement of the answer. Every item can
be answered in two ways (the variants), so that the choice between them can be learned from complete outcomes.
"""

import re

from metaprobe.llms.base import LLM, Request
from metaprobe.pipelines.prompting import Prompts
from metaprobe.probes.verbalized import parse_confidence, parse_difficulty
from metaprobe.records.types import Call, Item, Run, Sampling, Statement

NAME = "self-report"
VARIANTS = ("direct", "step-by-step")
ANSWER_STAGE = "answer"
PROMPTS = ("difficulty", "direct", "step_by_step", "confidence")

STATEMENT_TOKENS = 8
DIRECT_TOKENS = 24
CODE_TOKENS = 96
STEP_TOKENS = 64

_FINAL = re.compile(r"(?:^|\n|\.\s)\s*\**(?:final )?answer\**\s*(?::|is)\s*\**\s*(.+)", re.IGNORECASE)


async def self_report(item: Item, llm: LLM, *, variant: str, run_id: str, prompts: Prompts) -> Run:
    """Ask `llm` for the difficulty, the answer and the confidence. `variant`: one of `VARIANTS`."""

    async def ask(stage: str, prompt: str, max_tokens: int, parent: str | None = None, **slots: str) -> Call:
        messages = prompts.messages(prompt, question=item.question, **slots)
        sampling = Sampling(max_tokens=max_tokens)
        call_id = f"{run_id}/{stage}"
        return await llm.complete(Request(id=call_id, stage=stage, messages=messages, sampling=sampling, parent=parent))

    difficulty = await ask("difficulty", "difficulty", STATEMENT_TOKENS)
    prompt, max_tokens = ("step_by_step", STEP_TOKENS) if variant == "step-by-step" else ("direct", DIRECT_TOKENS)
    answer = await ask(ANSWER_STAGE, prompt, CODE_TOKENS if item.check == "function" else max_tokens)
    final = extract_answer(item, answer, variant=variant)
    confidence = await ask("confidence", "confidence", STATEMENT_TOKENS, parent=answer.id, answer=final or "(none)")
    return Run(
        id=run_id,
        system=NAME,
        variant=variant,
        item=item,
        calls=(difficulty, answer, confidence),
        statements=(
            Statement(difficulty.id, "difficulty", parse_difficulty(difficulty.text)),
            Statement(confidence.id, "confidence", parse_confidence(confidence.text)),
        ),
        final_answer=final,
    )


def extract_answer(item: Item, answer: Call, *, variant: str) -> str:
    """What the model gave as its answer.

    Direct: the first line, or the second where the first only announces it. Step by step: what follows the last
    "Answer:", or else the last line. A function: all of it.
    """
    text = answer.text.strip()
    if item.check == "function":
        return text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    if variant == "direct":
        announced = lines[0].endswith(":") and len(lines) > 1  # "The code prints:", and then what it prints
        return lines[1] if announced else lines[0]
    marked = _FINAL.findall(text)
    return str(marked[-1]).strip() if marked else lines[-1]
