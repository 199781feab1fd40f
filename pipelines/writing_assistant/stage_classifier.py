"""The stage classifier: before writing, while drafting, after the draft, or none of these."""

import re

from metaprobe.pipelines.writing_assistant.asking import Work
from metaprobe.pipelines.writing_assistant.contract import Stage
from metaprobe.records.types import Call

STAGE, AGENT = "stage", "classifier"
STAGE_TOKENS = 16
NONE = "none"
"""What the classes of the trained model and the labels of tasks call a message without a stage."""
ANSWERS = ("PRE", "DURING", "POST", "NOT APPLIED")

_NAMES: dict[str, Stage] = {"pre": "pre", "during": "during", "post": "post"}
_FOUND = re.compile(r"\bnot[ _-]*appl\w*|\bpre\b|\bduring\b|\bpost\b", re.IGNORECASE)


async def ask_stage(work: Work) -> tuple[Stage | None, Call]:
    """Returns the stage that the model names, and its first call.

    None where it names none, or several, also when it is asked for the name alone (noted)."""
    asked = await work.ask("stage", stage=STAGE, agent=AGENT, max_tokens=STAGE_TOKENS)
    name = read_stage(asked.text) or read_stage(await work.ask_in_form(asked, "stage", ANSWERS))
    if name is None:
        work.note("The model did not name a stage of writing; the answer is a general one.")
    work.judged[STAGE] = (asked, name or "")
    return stage_of(name), asked


def read_stage(text: str) -> str | None:
    """Returns `pre`, `during`, `post` or `none` as a text says it; None where it says nothing, or several of them."""
    found = {NONE if name.lower().startswith("not") else name.lower() for name in _FOUND.findall(text)}
    return found.pop() if len(found) == 1 else None


def stage_of(name: str | None) -> Stage | None:
    """Returns the stage of that name; None for `none` and for None."""
    return None if name is None else _NAMES.get(name)
