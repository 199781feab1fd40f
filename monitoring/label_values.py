"""What people and programs write for right, wrong and unsure, and which names say that a high value is a good one."""

import math
import re
from collections.abc import Mapping
from typing import Any

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

_GOOD = frozenset(
    "correct correctness right accurate accuracy factual factuality truthful truthfulness faithful faithfulness "
    "grounded groundedness helpful helpfulness useful usefulness relevant relevance good quality pass passed "
    "success successful match equivalence equivalent complete completeness sufficient sufficiency safe safety "
    "satisfied satisfaction thumbs feedback acceptable accepted coherent coherence fluent fluency concise "
    "conciseness".split()
)
_BAD = frozenset(
    "hallucination hallucinations hallucinated incorrect incorrectness wrong toxic toxicity harmful harmfulness error "
    "errors failure failed pii friction".split()
)
_FILLING = frozenset(
    "a ai an answer answers check context eval evaluation evaluator exact final gpt human is judge judgement judgment "
    "label llm metric model of openai output overall query rating response responses result retrieval retrieved score "
    "the to up user was".split()
)
"""Words of a name that say nothing of its direction."""

MAXIMIZE, MINIMIZE = "maximize", "minimize"
HUMAN, PROGRAM, JUDGE = "human", "program", "judge"
SOURCES = (HUMAN, PROGRAM, JUDGE)
"""Who gave a label; a label of one source never takes the place of one that a source before it gave."""

_GONE_KEYS = frozenset(
    "deleted isdeleted deletedat archived isarchived discarded superseded supersededby draft isdraft".split()
)
_VALID_KEYS = frozenset("valid isvalid".split())
_STATUS_KEYS = frozenset("status state".split())
_DIRECTION_KEYS = frozenset("direction optimizationdirection".split())
_ERROR_KEYS = frozenset("error errormessage errorcode".split())
_FINAL = frozenset(
    "submitted completed complete done final finished approved published active valid ok success".split()
)
"""Values of a status with which a label stands."""
_NOTHING = frozenset(("", "0", "false", "no", "none", "null", "nan", "{}", "[]"))


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


def direction_of_name(name: str) -> str:
    """Returns `maximize` where a high value under that name is good, `minimize` where it is bad, else nothing.

    Each word of the name must be known: `is_correct` and `hallucination_score` are, `not_correct` is not.
    """
    words = set(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).casefold()))
    good, bad = words & _GOOD, words & _BAD
    if words - _GOOD - _BAD - _FILLING or bool(good) == bool(bad):
        return ""
    return MAXIMIZE if good else MINIMIZE


def source_of(said: object) -> str:
    """Returns `human`, `program` or `judge` for the words that programs use for them, and nothing for other words."""
    word = str(said or "").strip().casefold().partition(":")[0]
    if word in ("human", "person", "annotator", "annotation"):
        return HUMAN
    if word in ("program", "code"):
        return PROGRAM
    return JUDGE if word in ("judge", "llm", "llm_judge", "ai_judge", "eval") else ""


def why_no_label(record: Mapping[str, Any]) -> str:
    """Returns why a record with these keys is no label that counts, such as `it is deleted`; else nothing.

    Keys that say whether a record is valid, final and free of errors are read in any spelling. Only values that are
    known to be good pass.
    """
    for key, value in record.items():
        name, told = str(key).casefold().replace("_", "").replace("-", ""), str("" if value is None else value).strip()
        word = told.casefold()
        if name in _GONE_KEYS and word not in _NOTHING:
            return f"`{key}` is {told[:40]}"
        if name in _VALID_KEYS and word not in ("", "true", "1", "yes"):
            return f"`{key}` is {told[:40]}: it was overridden"
        if name in _STATUS_KEYS and word and word not in _FINAL:
            return f"`{key}` is {told[:40]!r}, which is not known to be final"
        if name in _ERROR_KEYS and word not in _NOTHING:
            return f"`{key}` is set: whoever judged failed"
    return ""


def stated_direction(*records: Mapping[str, Any]) -> str:
    """Returns `maximize` or `minimize` as the first of these records states it, or its own word for another direction.

    Returns nothing where none of them states any.
    """
    for record in records:
        for key, value in record.items():
            if str(key).casefold().replace("_", "") in _DIRECTION_KEYS and value not in (None, ""):
                return str(value).strip().casefold()[:40]
    return ""
