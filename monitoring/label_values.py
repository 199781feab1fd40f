"""What people and programs write for right, wrong and unsure, and who gave a label."""

import math

RIGHT_WORDS = frozenset("right correct pass passed good thumbs_up thumbs-up like accept".split())
WRONG_WORDS = frozenset("wrong incorrect fail failed bad thumbs_down thumbs-down dislike reject".split())
"""Words that say right or wrong, whatever was judged."""
_YES = frozenset("1 true yes y positive up c".split())
_NO = frozenset("0 false no n negative down i".split())
YES_WORDS, NO_WORDS = _YES - {"1", "c"}, _NO - {"0", "i"}
"""Words that mean right or wrong only where it is known whether a yes is good: a yes to `hallucination` is not. The
category `1` is none of them: it may be the lowest of five."""
UNSURE_WORDS = frozenset("unsure unknown skip skipped none null n/a na ?".split())
EXPECTED = "1 or right, 0 or wrong, null or unsure, or a share between 0 and 1"

HUMAN, PROGRAM, JUDGE = "human", "program", "judge"
SOURCES = (HUMAN, PROGRAM, JUDGE)
"""Who gave a label; a label of one source never takes the place of one that a source before it gave."""


def label_value(said: object) -> float | None:
    """1 for right, 0 for wrong, a share between them where several were asked, and None for unsure.

    Raises `ValueError` for what is none of these.
    """
    if said is None:
        return None
    if isinstance(said, str):
        word = said.strip().casefold()
        if word in RIGHT_WORDS | _YES:
            return 1.0
        if word in WRONG_WORDS | _NO:
            return 0.0
        if not word or word in UNSURE_WORDS:
            return None
        try:
            said = float(word)
        except ValueError:
            raise ValueError(f"label {word[:40]!r}; expected {EXPECTED}") from None
    # An integer may have more digits than a float can hold.
    if isinstance(said, (bool, int, float)) and 0 <= said <= 1 and math.isfinite(said):
        return float(said)
    raise ValueError(f"label {str(said)[:40]}; expected {EXPECTED}")


def source_of(said: object) -> str:
    """Returns `human`, `program` or `judge` for the words that programs use for them, and nothing for other words."""
    word = str(said or "").strip().casefold().partition(":")[0]
    if word in ("human", "person", "annotator", "annotation"):
        return HUMAN
    if word in ("program", "code"):
        return PROGRAM
    return JUDGE if word in ("judge", "llm", "llm_judge", "ai_judge", "eval") else ""
