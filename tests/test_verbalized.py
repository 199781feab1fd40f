"""A model's statement about itself is read as a number or as nothing."""

import string
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaprobe.probes.verbalized import parse_stated

CONFIDENCE = {
    # a number and nothing else
    "85": 0.85,
    "85%": 0.85,
    " 85 % ": 0.85,
    "85 percent": 0.85,
    "**85**": 0.85,
    "0.85": 0.85,
    ".85": 0.85,
    "1": 0.01,
    "1.0": 1.0,
    "0": 0.0,
    "100%": 1.0,
    "0.5%": 0.005,
    "8/10": 0.8,
    "8 out of 10": 0.8,
    "85 (out of 100)": 0.85,
    "Nine out of ten": 0.9,
    # named
    "Confidence: 90%": 0.9,
    "**Confidence:** 90": 0.9,
    "CONFIDENCE SCORE: 90/100": 0.9,
    "Confidence (0-100): 85": 0.85,
    "Confidence (0-1): 1": 1.0,
    "On a scale from 0 to 10, I would say 8.": 0.8,
    '{"confidence": 85}': 0.85,
    '{"answer": 42, "confidence": 0.85}': 0.85,
    '```json\n{"answer": "42",\n "confidence": "85%"}\n```': 0.85,
    "Difficulty: 30, confidence: 85": 0.85,
    "Confidence: I am 85% sure. The answer is 42.": 0.85,
    "Difficulty (0-10): 7, confidence (0-100): 85%": 0.85,
    "Confidence: 85. Yes, confidence is 85%.": 0.85,
    # said in passing
    "I am 85% sure that the answer is 42.": 0.85,
    "I'm 85 percent confident; 2 checks were made.": 0.85,
    "85\n\nMy confidence comes from 3 facts.\nI know them.": None,
    "I would say 85, so 85%.": 0.85,
    # words
    "high": 0.7,
    "Very high.": 0.9,
    '{"confidence": "very low"}': 0.1,
    "I have moderate confidence in it.": 0.5,
    # nothing, or nothing definite
    "": None,
    "I do not know.": None,
    "-5": None,
    "-0.0": None,
    "150": None,
    "1.5": 0.015,
    "11/10": None,
    "8/0": None,
    "80-90": None,
    "80% to 90%": None,
    "85 or 90": None,
    "Confidence: 80. On reflection, confidence: 90": None,
    "Confidence: unknown. The answer is 42.": None,
    '{"answer": 42, "confidence": null}': None,
    '{"confidence": null, "answer": 42}': None,
    "Difficulty (0-10): 7, confidence (0-100): 85": None,
    "I have no confidence. The answer is 42.": None,
    "Paris, 3rd district, v2.1.3": None,
    "The price is high.": None,
    "Not a high confidence.": None,
    "Confidence: not high": None,
    "high confidence, or low confidence": None,
    "9" * 5000: None,
    "9" * 500 + "/" + "9" * 500: None,
    "٨٥": None,
}
DIFFICULTY = {
    "Difficulty: 70": 0.7,
    "Difficulty: 0.7 (confidence: 0.2)": 0.7,
    '{"difficulty": 7.5, "strategy": 3}': 0.075,
    "7/10 difficulty": 0.7,
    "Very hard": 0.9,
    "difficulty: very difficult": 0.9,
    "It is hard to say.": None,
    "Confidence: 0.9, difficulty: ?": None,
}


PARSERS = {"confidence": partial(parse_stated, "confidence"), "difficulty": partial(parse_stated, "difficulty")}
WORDS = {
    "confidence": {"very low": 0.1, "low": 0.3, "medium": 0.5, "moderate": 0.5, "high": 0.7, "very high": 0.9},
    "difficulty": {"very easy": 0.1, "easy": 0.3, "medium": 0.5, "moderate": 0.5, "hard": 0.7, "very hard": 0.9}
    | {"difficult": 0.7, "very difficult": 0.9, "very low": 0.1, "low": 0.3, "high": 0.7, "very high": 0.9},
}
"""A word stands for the middle of its fifth of the scale."""


@pytest.mark.parametrize("name", WORDS)
def test_a_word_stands_for_the_middle_of_its_fifth(name):
    for word, value in WORDS[name].items():
        assert PARSERS[name](f"{name}: {word}") == PARSERS[name](f"{name.title()} is {word}.") == value


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("confidence", *one) for one in CONFIDENCE.items()] + [("difficulty", *one) for one in DIFFICULTY.items()],
    ids=lambda x: repr(x)[:40],
)
def test_a_number_is_read_as_said(name, text, value):
    assert PARSERS[name](text) == (value if value is None else pytest.approx(value))


@pytest.mark.parametrize(
    ("text", "scale", "value"),
    [("8", 10, 0.8), ("1", 1, 1), ("0.85", 1, 0.85), ("1.0", 10, 1), ("85", 1, None), ("85%", 1, 0.85), ("4", 5, 0.8)],
)
def test_bare_numbers_are_of_the_callers_scale(text, scale, value):
    assert parse_stated("confidence", text, scale=scale) == (value if value is None else pytest.approx(value))


def test_scale_must_be_positive():
    with pytest.raises(ValueError, match="scale 0"):
        parse_stated("confidence", "1", scale=0)


NAMES = ["confidence", "difficulty", "sure", "not ", "very ", "high", "hard", "out of", "nine out of ten"]
SIGNS = [":", "=", " ", "\n", "-", "/", "%", ".", ",", '"', "{", "}", "∞", "½"]
NUMBERS = ["85", "0.9", "1e5", "NaN", "(0-10)", "scale of 0 to 0"]
fragments = st.sampled_from([*NAMES, *SIGNS, *NUMBERS])
texts = st.one_of(st.text(), st.text(string.digits + "./-% to"), st.lists(fragments).map("".join))


@settings(max_examples=200)
@given(texts, st.sampled_from([1, 5, 10, 100]))
def test_any_text_gives_a_number_in_the_unit_interval_or_nothing(text, scale):
    for value in (parse_stated("confidence", text, scale=scale), parse_stated("difficulty", text, scale=scale)):
        assert value is None or 0 <= value <= 1


@given(
    st.integers(0, 100),
    st.sampled_from(["{}", "{}%", "{}/100", "Confidence: {}", "I am {}% sure.", '{{"confidence": {}}}']),
)
def test_every_whole_percentage_survives_every_form(percent, form):
    assert parse_stated("confidence", form.format(percent)) == pytest.approx(percent / 100)
