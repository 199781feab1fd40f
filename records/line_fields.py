"""What stands under the keys of an import line, checked and as the types of the records."""

import json
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, get_args

from metaprobe.records.errors import ImportFileError
from metaprobe.records.openai_format import content_text
from metaprobe.records.segments import check_segments
from metaprobe.records.types import Label, LogprobsMode, Message, Sampling, Segment, Statement

LABEL_VALUES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("correct", "critical"), (0, 1)),
    **dict.fromkeys(("instruction", "justification", "evidence"), (1, 2, 3)),
}
"""What labels of these names may be. No training accepts another value, so none is stored."""
LABEL_BOUNDS = dict.fromkeys(("q", "quality"), (0.0, 9.0))

_HUGE = 1e300
_PLACES = {
    **dict.fromkeys(
        (*(LABEL_VALUES.keys() - {"correct"}), "quality", "is_correct", "lables"), ("labels", '{"correct": 1}')
    ),
    **dict.fromkeys(("question", "prompt", "input", "query"), ("messages", '[{"role": "user", "content": "..."}]')),
    "confidence": ("verbalized_confidence", "0.8"),
}
"""The key, with an example, under which a line holds what others have under these."""


def string(record: dict[str, Any], key: str, *, number: bool = False) -> str:
    value = record.get(key)
    if value is None:
        return ""
    if number and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ImportFileError(f'"{key}" is {name_value(value)}; expected a string')
    return value


def _number(value: object, name: str, low: float = -_HUGE, high: float = _HUGE) -> float:
    """A finite number in [low, high]. True and False are 1 and 0, as labels are often written so."""
    if not isinstance(value, (int, float)) or not low <= value <= high:  # a NaN fails the comparison
        bounds = "a finite number" if high == _HUGE else f"a number from {low:g} to {high:g}"
        raise ImportFileError(f"{name} is {name_value(value)}; expected {bounds}")
    return float(value)


def with_labels(record: dict[str, Any]) -> dict[str, Any]:
    """Returns the line with `correct` among its labels, where it stands beside them.

    Raises `ImportFileError` where the labels say something else of `correct`.
    """
    if "correct" not in record:
        return record
    value, labels = record["correct"], record.get("labels")
    if labels is not None and not isinstance(labels, dict):
        return record  # which is refused as it is
    held = {} if labels is None else labels
    if held.get("correct", value) != value:
        raise ImportFileError(
            f'"correct" is {name_value(value)}, and "labels" has {name_value(held["correct"])}; expected the same in'
            " both, or one of the two"
        )
    rest = {key: held for key, held in record.items() if key != "correct"}
    return {**rest, "labels": {**held, "correct": value}}


def labels_of(labels: object, call_id: str) -> tuple[Label, ...]:
    """A label of null says that nobody knows, and is left out."""
    if labels is None:
        return ()
    if not isinstance(labels, dict):
        raise ImportFileError(f'"labels" is {name_value(labels)}; expected an object such as {{"correct": 1}}')
    return tuple(
        Label(call_id, name, _label(name, value), "import") for name, value in labels.items() if value is not None
    )


def _label(name: str, value: object) -> float:
    allowed = LABEL_VALUES.get(name)
    if allowed and value not in allowed:
        raise ImportFileError(f"label {name!r} is {name_value(value)}; expected {' or '.join(map(str, allowed))}")
    return _number(value, f"label {name!r}", *LABEL_BOUNDS.get(name, (-_HUGE, _HUGE)))


def notes_of(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, what to do about it) for each key of a line that looks as if it were meant for another place."""
    # A bare response has keys of its own, among them a prompt.
    own = set() if "response" in record else {"prompt", "input"}
    for key in record.keys() & _PLACES.keys() - own:
        place, example = _PLACES[key]
        if record.get(place) is None:
            yield key, f'"{key}" is not read; if it was meant for "{place}", write "{place}": {example}'
    for name in record.get("labels") or ():
        if name not in LABEL_VALUES and (near := get_close_matches(name.lower(), LABEL_VALUES, 1, cutoff=0.9)):
            yield f"label {name}", f"label {name!r} is stored under that name; did you mean {near[0]!r}?"


def statements_of(record: dict[str, Any], call_id: str) -> tuple[Statement, ...]:
    """A confidence of null says that the model was asked and stated nothing; without the key it was not asked."""
    if "verbalized_confidence" not in record:
        return ()
    value = record["verbalized_confidence"]
    stated = None if value is None else _number(value, '"verbalized_confidence"', 0.0, 1.0)
    return (Statement(call_id, "confidence", stated),)


def messages_of(messages: object) -> tuple[Message, ...]:
    if messages is None:
        return ()
    if not isinstance(messages, list) or not all(
        isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages
    ):
        raise ImportFileError(f'"messages" is {name_value(messages)}; expected a list of {{"role", "content"}}')
    return tuple(Message(message["role"], content_text(message.get("content"))) for message in messages)


def sampling_of(sampling: object) -> Sampling:
    if sampling is None:
        return Sampling()
    if not isinstance(sampling, dict):
        raise ImportFileError(
            f'"sampling" is {name_value(sampling)}; expected {{"temperature", "top_p", "seed", "max_tokens"}}'
        )
    given: dict[str, Any] = {}
    for key, bounds in {"temperature": (0.0, 100.0), "top_p": (0.0, 1.0)}.items():
        if sampling.get(key) is not None:
            given[key] = _number(sampling[key], f"sampling {key!r}", *bounds)
    for key in ("seed", "max_tokens"):
        value = sampling.get(key)
        if value is not None:
            if not isinstance(value, int) or not -(2**63) <= value < 2**63:
                raise ImportFileError(f"sampling {key!r} is {name_value(value)}; expected a whole number of 64 bits")
            given[key] = value
    return Sampling(**given)


def segments_of(record: dict[str, Any], tokens: int) -> dict[str, tuple[Segment, ...]]:
    """The segments that a line states of its answer's tokens, by the call's own name; empty where it states none."""
    given = record.get("segments")
    if given is None:
        return {}
    held = given if isinstance(given, list) else [given]
    names = ("kind", "start", "end")
    if not all(isinstance(s, dict) and s.keys() >= set(names) and _whole(s["start"], s["end"]) for s in held):
        raise ImportFileError(
            f'"segments" is {name_value(given)}; expected a list of {{"kind", "start", "end"}}, the last two in tokens'
        )
    return {"segments": check_segments([Segment(*(s[name] for name in names)) for s in held], tokens)}


def _whole(*values: object) -> bool:
    return all(type(value) is int for value in values)


def mode_of(mode: object, unstated: LogprobsMode) -> LogprobsMode:
    if mode is None:
        return unstated
    for known in get_args(LogprobsMode):
        if mode == known:
            return known  # type: ignore[no-any-return]
    raise ImportFileError(f'"logprobs_mode" is {name_value(mode)}; expected one of {", ".join(get_args(LogprobsMode))}')


def name_value(value: object) -> str:
    """A value as it stands in the file, short, with what it is."""
    text = json.dumps(value, ensure_ascii=False, default=str)  # a table may hold dates and bytes
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
