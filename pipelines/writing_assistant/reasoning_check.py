"""The reasoning check: whether a request needs several steps of reasoning, and so all four agents of MetaCrit."""

import re

from metaprobe.pipelines.writing_assistant.asking import Work
from metaprobe.records.types import Call

STAGE, AGENT = "reasoning", "reasoning-check"
REASONING_TOKENS = 16
ANSWERS = ("REASONING", "NON-REASONING")

_FOUND = re.compile(r"\b(non?[\s_-]*)?reasoning\b", re.IGNORECASE)


async def ask_reasoning(work: Work) -> tuple[bool | None, Call]:
    """Returns what the model says, and its first call; None where it says neither, also when it is asked for that alone
    (noted)."""
    asked = await work.ask("reasoning", stage=STAGE, agent=AGENT, max_tokens=REASONING_TOKENS)
    found = read_reasoning(asked.text)
    if found is None:
        found = read_reasoning(await work.ask_in_form(asked, "request", ANSWERS))
    if found is None:
        work.note("The model did not say whether the request needs reasoning; only the monitor was asked.")
    work.judged[STAGE] = (asked, "" if found is None else "yes" if found else "no")
    return found, asked


def read_reasoning(text: str) -> bool | None:
    """Returns True for `reasoning` and False for `non-reasoning`; None where neither or both stand there."""
    found = {not negated for negated in _FOUND.findall(text)}
    return found.pop() if len(found) == 1 else None
