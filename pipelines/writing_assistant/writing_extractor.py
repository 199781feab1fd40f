"""The writing extractor: the learner's own text, apart from what is asked about it."""

import re

from metaprobe.pipelines.writing_assistant.asking import Work

STAGE, AGENT = "extract", "extractor"
EXTRACT_TOKENS = 512
FEWEST_WORDS = 25
"""A message that is shorter holds a request, and no text worth a score."""

_NONE = re.compile(r"\W*(none|nothing|not appl\w*|n/a)\W*", re.IGNORECASE)


async def extract_writing(work: Work) -> str:
    """Returns the text to be judged: the editor's, or else what the message holds of one; empty where neither does.

    A model is asked only where the editor is empty. What it hands back counts only where the message has it word for
    word, so that it cannot add a text of its own; otherwise the whole message is the text, and a note says so.
    """
    if work.turn.draft.strip():
        return work.turn.draft.strip()
    if len(work.message.split()) < FEWEST_WORDS:
        return ""
    asked = await work.ask("extract", stage=STAGE, agent=AGENT, max_tokens=EXTRACT_TOKENS)
    found = asked.text.strip().strip('"').strip()
    if not found or _NONE.fullmatch(found):
        return ""
    if plain(found) in plain(work.message):
        return found
    work.note("The text could not be told from the request in your message, so all of the message was judged.")
    return work.message


def plain(text: str) -> str:
    """Returns a text in small letters with single blanks and without quotation marks, for comparison."""
    return " ".join(re.sub(r"[\"'\u2018\u2019\u201c\u201d*]", "", text).lower().split())
