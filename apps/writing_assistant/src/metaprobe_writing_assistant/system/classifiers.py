"""The stage classifier and the reasoning check, by the model that is asked or by small trained models on words.

The stage is before writing, while drafting, after the draft, or none of these. The reasoning check says whether a
request needs several steps of reasoning, and so all four agents of MetaCrit.
"""

import re
from functools import cache

from metaprobe.checkpoints.files import BUNDLED
from metaprobe.papers.systems.system_options import Constant
from metaprobe.probes.hashed_words import lower_words
from metaprobe.probes.text_classes import TextClass, TextClassifier
from metaprobe_writing_assistant.system.asking import Work
from metaprobe_writing_assistant.system.contract import Stage, Turn

STAGE, STAGE_AGENT, STAGE_TOKENS = "stage", "classifier", 16
REASONING, REASONING_AGENT, REASONING_TOKENS = "reasoning", "reasoning-check", 16
NO_STAGE = "none"
"""Class of a message without a stage, in the trained model and in the labels of tasks."""
STAGE_ANSWERS = ("PRE", "DURING", "POST", "NOT APPLIED")
REASONING_ANSWERS = ("REASONING", "NON-REASONING")
LEARNED = Constant("learned", 0, "1: small trained models tell stage and reasoning; 0: the model is asked", 0, 1)
STAGE_CHECKPOINT, REASONING_CHECKPOINT = f"{BUNDLED}writing-stage", f"{BUNDLED}writing-reasoning"
YES = "yes"
"""The class of a request that needs reasoning; the other one is `no`."""
DRAFT_WORDS = (1, 40, 120)
"""Bounds between the sizes of a draft that the models distinguish."""

_STAGES: dict[str, Stage] = {"pre": "pre", "during": "during", "post": "post"}
_STAGE_FOUND = re.compile(r"\bnot[ _-]*appl\w*|\bpre\b|\bduring\b|\bpost\b", re.IGNORECASE)
_REASONING_FOUND = re.compile(r"\b(non?[\s_-]*)?reasoning\b", re.IGNORECASE)


async def find_stage(work: Work) -> Stage | None:
    """Returns the stage, from the trained model or from the model that is asked.

    None if that names none, or several, even if it is asked for the name alone (noted).
    """
    if work.session.constant(LEARNED):
        stage_class = tell_stage(work.turn)
        work.source_of[STAGE] = stage_class.source
        return _STAGES.get(stage_class.name)
    call = await work.ask("stage", stage=STAGE, agent=STAGE_AGENT, max_tokens=STAGE_TOKENS)
    name = read_stage(call.text) or read_stage(await work.ask_in_form(call, "stage", STAGE_ANSWERS))
    if name is None:
        work.note("The model did not name a stage of writing; the answer is a general one.")
    work.module_answers[STAGE], work.source_of[STAGE] = (call, name or ""), call.model
    return _STAGES.get(name or NO_STAGE)


def read_stage(text: str) -> str | None:
    """Returns `pre`, `during`, `post` or `none` from a text; None if it says nothing, or several of them."""
    names = {NO_STAGE if name.lower().startswith("not") else name.lower() for name in _STAGE_FOUND.findall(text)}
    return names.pop() if len(names) == 1 else None


async def find_reasoning(work: Work) -> bool | None:
    """Returns whether the request needs reasoning, from the trained model or from the model that is asked.

    None if that says neither, even if it is asked for that alone (noted).
    """
    if work.session.constant(LEARNED):
        reasoning_class = _load(REASONING_CHECKPOINT).classify(turn_text(work.turn.message, work.turn.draft))
        work.source_of[REASONING] = reasoning_class.source
        return reasoning_class.name == YES
    call = await work.ask("reasoning", stage=REASONING, agent=REASONING_AGENT, max_tokens=REASONING_TOKENS)
    reasoning = read_reasoning(call.text)
    if reasoning is None:
        reasoning = read_reasoning(await work.ask_in_form(call, "request", REASONING_ANSWERS))
    if reasoning is None:
        work.note("The model did not say whether the request needs reasoning; only the monitor was asked.")
    work.module_answers[REASONING] = (call, "" if reasoning is None else YES if reasoning else "no")
    work.source_of[REASONING] = call.model
    return reasoning


def read_reasoning(text: str) -> bool | None:
    """Returns True for `reasoning` and False for `non-reasoning`; None if the text has neither or both."""
    answers = {not negated for negated in _REASONING_FOUND.findall(text)}
    return answers.pop() if len(answers) == 1 else None


def tell_stage(turn: Turn) -> TextClass:
    """Returns the stage of a turn: `pre`, `during`, `post` or `none`."""
    return _load(STAGE_CHECKPOINT).classify(turn_text(turn.message, turn.draft))


def turn_text(message: str, draft: str) -> str:
    """Returns what the models read of a turn: the message, and one word that says how long the draft is."""
    size = sum(len(lower_words(draft)) >= bound for bound in DRAFT_WORDS)
    return f"draftsize{size} {message}"


@cache
def _load(path: str) -> TextClassifier:
    return TextClassifier.load(path)
