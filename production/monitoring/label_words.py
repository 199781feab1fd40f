"""The words of labels and of their sources, and what they mean."""

import math

RIGHT_WORDS = frozenset("right correct pass passed good thumbs_up thumbs-up like accept".split())
WRONG_WORDS = frozenset("wrong incorrect fail failed bad thumbs_down thumbs-down dislike reject".split())
"""Words that mean right or wrong, whatever was judged."""
_YES = frozenset("1 true yes y positive up c".split())
_NO = frozenset("0 false no n negative down i".split())
YES_WORDS, NO_WORDS = _YES - {"1", "c"}, _NO - {"0", "i"}
"""Words that mean right or wrong only if it is known whether a yes is good: a yes to `hallucination` is not.

The category `1` is not among them: it may be the lowest of five.
"""
UNSURE_WORDS = frozenset("unsure unknown skip skipped none null n/a na ?".split())
EXPECTED = "1 or right, 0 or wrong, null or unsure, or a share between 0 and 1"

HUMAN, PROGRAM, JUDGE = "human", "program", "judge"
LABEL_SOURCES = (HUMAN, PROGRAM, JUDGE)
"""Sources of labels. A label never replaces a label from an earlier source in this list."""


def label_value(label: object) -> float | None:
    """Returns 1 for right, 0 for wrong, a share between them for several judges, and None for unsure.

    Raises `ValueError` for anything else.
    """
    if label is None:
        return None
    if isinstance(label, str):
        word = label.strip().casefold()
        if word in RIGHT_WORDS | _YES:
            return 1.0
        if word in WRONG_WORDS | _NO:
            return 0.0
        if not word or word in UNSURE_WORDS:
            return None
        try:
            label = float(word)
        except ValueError:
            raise ValueError(f"label {word[:40]!r}; expected {EXPECTED}") from None
    # An integer may have more digits than a float can hold.
    if isinstance(label, (bool, int, float)) and 0 <= label <= 1 and math.isfinite(label):
        return float(label)
    raise ValueError(f"label {str(label)[:40]}; expected {EXPECTED}")


def source_of(word_or_none: object) -> str:
    """Returns `human`, `program` or `judge` for the words that programs use for them, and an empty text for other
    words.
    """
    word = str(word_or_none or "").strip().casefold().partition(":")[0]
    if word in ("human", "person", "annotator", "annotation"):
        return HUMAN
    if word in ("program", "code"):
        return PROGRAM
    return JUDGE if word in ("judge", "llm", "llm_judge", "ai_judge", "eval") else ""
