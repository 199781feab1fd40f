"""The stage classifier and the reasoning check as small trained models on words, in the place of two calls."""

from functools import cache

from metaprobe.checkpoints.files import BUNDLED
from metaprobe.pipelines.system_options import Constant
from metaprobe.pipelines.writing_assistant.contract import Turn
from metaprobe.probes.hashed_words import words_of
from metaprobe.probes.text_classes import TextClass, TextClassifier

LEARNED = Constant("learned", 0, "1: small trained models tell stage and reasoning; 0: the model is asked", 0, 1)
STAGE_CHECKPOINT, REASONING_CHECKPOINT = f"{BUNDLED}writing-stage", f"{BUNDLED}writing-reasoning"
YES = "yes"
"""The class of a request that needs reasoning; the other one is `no`."""
DRAFT_WORDS = (1, 40, 120)
"""Bounds between the sizes of a draft that the models distinguish."""


def tell_stage(turn: Turn) -> TextClass:
    """Returns the stage of a turn: `pre`, `during`, `post` or `none`."""
    return _load(STAGE_CHECKPOINT).classify(turn_text(turn.message, turn.draft))


def tell_reasoning(turn: Turn) -> TextClass:
    """Returns whether a turn needs reasoning: `yes` or `no`."""
    return _load(REASONING_CHECKPOINT).classify(turn_text(turn.message, turn.draft))


def turn_text(message: str, draft: str) -> str:
    """Returns what the models read of a turn: the message, and one word that says how long the draft is."""
    size = sum(len(words_of(draft)) >= bound for bound in DRAFT_WORDS)
    return f"draftsize{size} {message}"


@cache
def _load(path: str) -> TextClassifier:
    return TextClassifier.load(path)
