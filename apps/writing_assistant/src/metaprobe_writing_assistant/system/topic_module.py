"""The topic module: finds the topic, makes instructions for it, and joins these with those for the stage."""

import re

from metaprobe_writing_assistant.system.asking import Work
from metaprobe_writing_assistant.system.contract import Stage

TOPIC, GUIDE, AGGREGATE = "topic", "guide", "aggregate"
AGENTS = {TOPIC: "topic-identifier", GUIDE: "prompt-generator", AGGREGATE: "prompt-aggregator"}
TOPIC_TOKENS, GUIDE_TOKENS, AGGREGATE_TOKENS = 12, 160, 192
TOPIC_WORDS = 6
"""Most words of a topic. Of a longer answer only the first words are used."""

_NOT = re.compile(r"\W*(?:not[ _-]*appl|none\b|n/a)", re.IGNORECASE)
_INSTRUCTIONS = re.compile(r"instructions\W*:\s*", re.IGNORECASE)


async def identify_topic(work: Work) -> str | None:
    """Returns the keyword of the topic; None if the model finds none."""
    call = await work.ask("topic", stage=TOPIC, agent=AGENTS[TOPIC], max_tokens=TOPIC_TOKENS)
    return read_topic(call.text)


async def make_guidance(work: Work, topic: str | None, stage: Stage | None) -> str:
    """Returns the instructions for the final response, joined from those for the topic and those for the stage.

    Without a topic they are the stage's own, and no model is asked.

    Args:
        work: the turn.
        topic: the topic.
        stage: the stage.
    """
    stage_text = stage_guide(work, stage)
    if topic is None:
        return stage_text
    topic_call = await work.ask("guide_topic", stage=GUIDE, agent=AGENTS[GUIDE], max_tokens=GUIDE_TOKENS, topic=topic)
    joined_call = await work.ask(
        "aggregate",
        stage=AGGREGATE,
        agent=AGENTS[AGGREGATE],
        parent=topic_call,
        max_tokens=AGGREGATE_TOKENS,
        topic=topic,
        topic_guide=topic_call.text.strip() or "(none)",
        stage_guide=stage_text,
    )
    return read_instructions(joined_call.text) or stage_text


def stage_guide(work: Work, stage: Stage | None) -> str:
    """Returns what help means at a stage, as written in the prompt files."""
    return work.text_of(f"stage_{stage or 'none'}")


def read_topic(text: str) -> str | None:
    """Returns the first line of a text without quotation marks, cut to a few words; None for `NOT APPLIED`."""
    line = next(iter(text.strip().splitlines()), "").strip(" \"'.*:`")
    line = re.sub(r"^topic\W+", "", line, flags=re.IGNORECASE)
    return None if not line or _NOT.match(line) else " ".join(line.split()[:TOPIC_WORDS])


def read_instructions(text: str) -> str:
    """Returns the text after the last `Instructions:`, or the whole text if there is none."""
    return _INSTRUCTIONS.split(text)[-1].strip()
