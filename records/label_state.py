"""Decides by names and keys whether a record of a judgement counts, and whether a high value in it is good.

Names are read in any spelling: `reviewStatus`, `review_status` and `review-status` are equal. A key about validity,
errors, review or retraction must have a value that is known to be good.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

MAXIMIZE, MINIMIZE = "maximize", "minimize"

_GOOD_NAME_WORDS = frozenset(
    "correct correctness right accurate accuracy factual factuality truthful truthfulness faithful faithfulness "
    "grounded groundedness helpful helpfulness useful usefulness relevant relevance good quality pass passed "
    "success successful match equivalence equivalent complete completeness sufficient sufficiency safe safety "
    "satisfied satisfaction thumbs feedback acceptable accepted coherent coherence fluent fluency concise "
    "conciseness".split()
)
_BAD_NAME_WORDS = frozenset(
    "hallucination hallucinations hallucinated incorrect incorrectness wrong toxic toxicity harmful harmfulness error "
    "errors failure failed pii friction".split()
)
_NEUTRAL_WORDS = frozenset(
    "a ai an answer answers check context eval evaluation evaluator exact final gpt human is judge judgement judgment "
    "label llm metric model of openai output overall query rating response responses result retrieval retrieved score "
    "the to up user was".split()
)
"""Words of a name that do not show whether a high value is good."""
_GOOD_VALUE_WORDS = (_GOOD_NAME_WORDS - {"quality", "thumbs", "feedback", "safety"}) | frozenset(
    "compliant excellent great readable supported".split()
)
_BAD_VALUE_WORDS = (_BAD_NAME_WORDS - {"error", "errors", "failure"}) | frozenset(
    "bad fail frustrated inaccurate incoherent incomplete insufficient irrelevant nonfactual poor "
    "unacceptable unfaithful ungrounded unhelpful unreadable unrelated unsafe unsupported untruthful "
    "verbose".split()
)
_PARTLY_WORDS = frozenset("mostly partial partially partly somewhat".split())
_NEGATION_WORDS = frozenset("no non not never without".split())

_VOID_WORDS = frozenset(
    "aborted archived canceled cancelled contested deleted deprecated discarded dismissed disputed error errored "
    "errors exception exceptions excluded expired fail failed failure failures flagged invalid invalidated "
    "invalidation nullified obsolete outdated overridden pending quarantined reject rejected rejection removed "
    "retract retracted retraction reverted revoked skipped stacktrace superseded tombstone traceback ungraded "
    "unparsable unparseable unreliable unreviewed unscored untrusted unverified voided withdrawn".split()
)
"""Words of a key whose record does not count, unless the value is empty or false."""
_VOID_KEYS = frozenset(
    "disabled draft duplicate hidden ignored inactive incomplete preliminary provisional stacktrace stale tentative "
    "timedout unfinished void".split()
)
"""Keys whose record does not count, unless the value is empty or false. Inside a longer key the words mean nothing."""
_VALID_WORDS = frozenset("approved reviewed succeeded success successful valid validity".split())
"""Words of a key whose record does not count if the value means no."""
_VALID_KEYS = frozenset(
    "accepted active complete completed confirmed done enabled final finalised finalized finished ok published "
    "reliable submitted succeeded success successful trusted usable verified".split()
)
_STATUS_WORDS = frozenset("approval review state status".split())
"""Words of a key whose value must be in `_FINAL_VALUES`."""
_DETAIL_WORDS = frozenset(
    "at by comment comments count date explanation from id ids name note notes text time timestamp type until url "
    "version".split()
)
"""Last words of a key that only adds details to a state, such as `reviewed_by`."""
_PREFIX_WORDS = frozenset(
    "annotation code execution has is judge label message optimization queue score trace was".split()
)
"""Words that a key may join to another word without a mark between them, as in `isdeleted`."""
_FINAL_VALUES = frozenset(
    "200 accepted active annotated approved complete completed confirmed done final finalised finalized finished "
    "graded labeled labelled ok published reviewed scored submitted succeeded success successful valid verified".split()
) | {"completed with retries"}
"""Values of a status with which a label counts."""
_EMPTY_OR_FALSE = frozenset(("", "0", "0.0", "false", "no", "none", "null", "nan", "{}", "[]"))
_EMPTY_VALUES = frozenset(("", "none", "null", "nan", "{}", "[]"))
_TRUE_VALUES = frozenset("1 1.0 true y yes".split())
_DIRECTION_OF_WORD = {
    **dict.fromkeys("higher max maximise maximize maximum".split(), MAXIMIZE),
    **dict.fromkeys("lower min minimise minimize minimum".split(), MINIMIZE),
    "higher is better": MAXIMIZE,
    "lower is better": MINIMIZE,
}
_AMBIGUOUS_WORDS = frozenset("higher lower max maximum min minimum".split())
"""Values that state a direction only under a key such as `direction`. Elsewhere they may mean something else."""
_IS_BETTER = re.compile(r"(bigger|greater|higher|larger|less|lower|smaller)(is)?better")
_REVERSED_WORDS = frozenset("flipped inverse inverted negated reverse reversed".split())


def name_words(name: str) -> list[str]:
    """Returns the words of a name in lower case. The words may be joined by capitals, by marks, or directly."""
    words = [word.casefold() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    known_words = (
        _VOID_WORDS
        | _VOID_KEYS
        | _VALID_WORDS
        | _VALID_KEYS
        | _STATUS_WORDS
        | _DETAIL_WORDS
        | _PREFIX_WORDS
        | {"direction"}
    )
    if len(words) == 1 and words[0] not in known_words:
        for split_at in range(2, len(words[0]) - 1):
            parts = [words[0][:split_at], words[0][split_at:]]
            if known_words.issuperset(parts):
                return parts
    return words


@dataclass(frozen=True, slots=True)
class LabelWords:
    """A label's name, or a word that is its value, and the meaning of its words."""

    text: str
    maximize: ClassVar[str] = MAXIMIZE
    """Direction of a name whose high values are good."""
    minimize: ClassVar[str] = MINIMIZE
    """Direction of a name whose high values are bad."""

    @property
    def direction(self) -> str:
        """`maximize` if a high value under this name is good, `minimize` if it is bad, else empty.

        Each word of the name must be known: `is_correct` and `hallucination_score` are, `not_correct` is not.
        """
        words = set(name_words(self.text))
        good, bad = words & _GOOD_NAME_WORDS, words & _BAD_NAME_WORDS
        if words - _GOOD_NAME_WORDS - _BAD_NAME_WORDS - _NEUTRAL_WORDS or bool(good) == bool(bad):
            return ""
        return MAXIMIZE if good else MINIMIZE

    @property
    def may_be_bad(self) -> bool:
        """Whether a high value under this name may be bad: the name has a word for something bad, or a negation."""
        return bool(set(name_words(self.text)) & (_BAD_NAME_WORDS | _BAD_VALUE_WORDS | _NEGATION_WORDS))

    @property
    def meaning(self) -> float | None:
        """1 for a word that calls an answer good, such as `factual`; 0 for one that calls it bad; else None.

        `not` or `non` before the word reverses it.
        """
        words = name_words(self.text)
        is_negated = len(words) == 2 and words[0] in _NEGATION_WORDS
        if len(words) != 1 + is_negated or not words:
            return None
        good, bad = words[-1] in _GOOD_VALUE_WORDS, words[-1] in _BAD_VALUE_WORDS
        return float(good != is_negated) if good != bad else None

    @property
    def tells_part(self) -> bool:
        """Whether a word calls an answer partly good, as `partially correct`."""
        words = name_words(self.text)
        return words[:1] != [] and words[0] in _PARTLY_WORDS and set(words[1:]) <= _GOOD_VALUE_WORDS

    @property
    def tells_state(self) -> bool:
        """Whether a category says, or may say, that nothing was judged, as `NOT_PARSABLE` and `error`."""
        words = set(name_words(self.text))
        return not words or bool(words & (_NEGATION_WORDS | _VOID_WORDS | _VOID_KEYS | _STATUS_WORDS))


class LabelState:
    """Tells by the keys of a record of a judgement whether it counts, and whether a high value in it is good."""

    def __init__(self, record: Mapping[str, Any], *deeper: Mapping[str, Any], harmless: Sequence[str] = ()) -> None:
        """Stores the records; they are read when a property is asked for.

        Args:
            record: the record.
            deeper: records that belong to it, such as its metadata; their nested fields are read too.
            harmless: keys of `record` whose meaning is known from the program that wrote it.
        """
        self._record, self._deeper, self._harmless = record, deeper, harmless

    @property
    def why_not(self) -> str:
        """Why the record is no label that counts, such as `it is deleted`; empty if it counts."""
        for key, value in self._record.items():
            if key not in self._harmless and (reason := _why_void(str(key), value)):
                return reason
        for inner in self._deeper:
            for key, value in inner.items():
                if reason := _why_void(str(key), value):
                    return reason
                if isinstance(value, Mapping) and (reason := LabelState(value).why_not):
                    return f"of `{key}`, {reason}"
        return ""

    @property
    def direction(self) -> str:
        """`maximize` or `minimize` as the records state it, or their own words for another direction.

        Empty if no record states a direction; both joined by "and" if the records contradict each other.
        """
        directions: dict[str, None] = {}
        for record in (self._record, *self._deeper):
            for key, value in record.items():
                inner = value.items() if isinstance(value, Mapping) and record is not self._record else ()
                for name, stated_value in ((key, value), *inner):
                    direction = _direction(str(name), stated_value)
                    if not direction and record is not self._record:
                        word = str(stated_value).strip().casefold().replace("_", " ")
                        direction = "" if word in _AMBIGUOUS_WORDS else _DIRECTION_OF_WORD.get(word, "")
                    if direction:
                        directions[direction] = None
        return " and ".join(directions)


def why_not_right(line: Mapping[str, Any]) -> str:
    """Returns why 1 and 0 beside these fields may not mean right and wrong; empty if they do.

    Lines that users write themselves usually hold no such fields. A line that says that high values are bad holds no
    label of being right.
    """
    metadata = line.get("metadata")
    inner = metadata if isinstance(metadata, Mapping) else {}
    state = LabelState(line, inner)
    direction = state.direction
    return state.why_not or ("" if direction in ("", MAXIMIZE) else f"its direction is {direction[:40]!r}")


def _why_void(key: str, value: object) -> str:
    """Returns why a field means that its record does not count; empty if it does not mean that."""
    words = name_words(key)
    if words[:1] in (["is"], ["has"], ["was"]):
        words = words[1:]
    shown_value = " ".join(str("" if value is None else value).split())
    word, whole_key, key_words = shown_value.casefold().replace("_", " "), "".join(words), set(words)
    is_negated = bool(key_words & _NEGATION_WORDS)
    if whole_key == "timeout" and word == "true":  # else it is how long a judge may take
        return f"`{key}` is {shown_value}"
    if key_words & _VOID_WORDS or whole_key in _VOID_KEYS or (is_negated and key_words & (_VALID_WORDS | _VALID_KEYS)):
        return "" if _is_nothing(value) else f"`{key}` is {shown_value[:40]}"
    if words[-1:] and words[-1] in _DETAIL_WORDS:
        return ""
    if key_words & _STATUS_WORDS:
        return (
            ""
            if word in _FINAL_VALUES | _EMPTY_VALUES or _is_nothing(value, _EMPTY_VALUES)
            else f"`{key}` is {shown_value[:40]!r}, not final"
        )
    if (
        key_words & _VALID_WORDS or whole_key in _VALID_KEYS
    ) and word not in _TRUE_VALUES | _FINAL_VALUES | _EMPTY_VALUES:
        return f"`{key}` is {shown_value[:40]}"
    return ""


def _is_nothing(value: object, empty_values: frozenset[str] = _EMPTY_OR_FALSE) -> bool:
    if isinstance(value, (Mapping, list, tuple)):
        return all(
            _is_nothing(inner, empty_values) for inner in (value.values() if isinstance(value, Mapping) else value)
        )
    return str("" if value is None else value).strip().casefold() in empty_values


def _direction(key: str, value: object) -> str:
    """Returns the direction that one field states; empty if it states none."""
    if isinstance(value, Mapping) or _is_nothing(value, _EMPTY_VALUES):
        return ""
    words, stated_value = name_words(key), str(value).strip().casefold()
    joined_words = "".join(words)
    if {"direction", "polarity"} & set(words) or joined_words == "better":
        return _DIRECTION_OF_WORD.get(stated_value.replace("_", " "), stated_value[:40])
    is_true = True if stated_value in _TRUE_VALUES else False if stated_value in _EMPTY_OR_FALSE else None
    better = _IS_BETTER.search(joined_words)
    if better or joined_words in ("maximise", "maximize", "minimise", "minimize"):
        higher_is_better = better[1] not in ("less", "lower", "smaller") if better else joined_words.startswith("max")
        return (
            f"{key} {stated_value[:20]}" if is_true is None else MAXIMIZE if higher_is_better == is_true else MINIMIZE
        )
    return (
        f"{key} {stated_value[:20]}"
        if joined_words.removeprefix("is") in _REVERSED_WORDS and is_true is not False
        else ""
    )
