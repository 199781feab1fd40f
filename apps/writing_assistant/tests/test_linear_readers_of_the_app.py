"""The work on what a model or a learner wrote grows with the text, and not with its square."""

from random import Random

import pytest
from test_linear_readers import LENGTH, TEXTS, Reader, call, check, hostile

from metaprobe_writing_assistant.system import (
    classifiers,
    metacrit_chain,
    quoting,
    topic_module,
    user_prompt,
    vocabulary,
    writing_assessor,
)

READERS: dict[str, tuple[Reader, tuple[str, ...]]] = {
    "remarks": (
        lambda text: metacrit_chain.remarks_of("monitor", call(text), "One is here. Two are there."),
        ('remark: "', "remark: '", "remark", "concern", 'Remark: "One is" - ', "remark: \u201c"),
    ),
    "sentence": (lambda text: metacrit_chain.sentence_with("one is", text), (".", "a")),
    "profile": (user_prompt.read_profile, ("goals", "goals:")),
    "words": (vocabulary.read_words, ("1.", "a")),
    "explanations": (lambda text: vocabulary.read_explanations(text, ["sea"]), ("sea", "sea:", "1. ")),
    "score": (writing_assessor.read_score, ("score", "score: 1", "score:")),
    "steps": (writing_assessor.read_steps, ("step 1", "step", "score: 1\n")),
    "stage": (classifiers.read_stage, ("not", "pre")),
    "reasoning": (classifiers.read_reasoning, ("non", "no")),
    "topic": (topic_module.read_topic, ("topic", "not")),
    "instructions": (topic_module.read_instructions, ("instructions", "instructions:")),
    "quoted": (lambda text: quoting.quote_text(text, "draft"), ("<|", "[")),
    "foreign": (quoting.looks_foreign, ("a",)),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_long_run_of_blanks_takes_linear_time(reader: str) -> None:
    read, (part, *_) = READERS[reader]
    check(reader, read, (before + blank * LENGTH + "x" for blank in "\n " for before in ("a", part)))


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_no_text_takes_more_than_linear_time(reader: str) -> None:
    read, parts = READERS[reader]
    texts = list(hostile(parts))
    check(reader, read, Random(reader).sample(texts, min(TEXTS, len(texts))))
