"""The reasoning check: whether a request needs several steps of reasoning, and so all four agents of MetaCrit."""

import re

from metaprobe.pipelines.writing_assistant.asking import Work
from metaprobe.records.types import Call

STAGE, AGENT = "reasoning", "reasoning-check"
REASONING_TOKENS = 8

_FOUND = re.compile(r"\b(non?[\s_-]*)?reasoning\b", re.IGNORECASE)


async def ask_reasoning(work: Work) -> tuple[bool | None, Call]:
    """Returns what the model says, and its call; None where it says neither, or both (noted)."""
    asked = await work.ask("reasoning", stage=STAGE, agent=AGENT, max_tokens=REASONING_TOKENS)
    found = read_reasoning(asked.text)
    if found is None:
        work.note("The model did not say whether the request needs reasoning; only the monitor was asked.")
    return found, asked


def read_reasoning(text: str) -> bool | None:
    """Returns True for `reasoning` and False for `non-reasoning`; None where neither or both stand there."""
    found = {not negated for negated in _FOUND.findall(text)}
    return found.pop() if len(found) == 1 else None
