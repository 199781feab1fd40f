"""Reads judgements out of records by a mapping of fields, of which `PRESETS` has one for each product.

A type, a target or a state that is not listed as one that makes a label is left out, with the reason.
"""

import ast
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from metaprobe.api import LabelWords, stated_direction, why_no_label
from metaprobe.production.monitoring.labels import JUDGE, PROGRAM, RIGHT_WORDS, WRONG_WORDS, label_value, source_of
from metaprobe.production.monitoring.sampling import ANSWERED_AT_KEY

Record = Mapping[str, Any]
Paths = Sequence[str]
"""Places in a record, as keys that dots join. The first place that holds something counts."""

IDS = ("request_id", "metaprobe.request_id", "metaprobe_request_id", "metaprobe-request-id")
"""Keys under which an answer's id is looked for first."""
OURS = "metaprobe"
"""The name under which verdicts of metaprobe itself are exported."""

PLAIN, YES_NO, NUMBER, SCORE, WORD = "plain", "yes or no", "number", "score", "word"
"""Types of values. `plain`: 1 is right by the format's own rule. `number`: of an unknown range. `score`: in [0, 1] with
a direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRecord:
    """One thing that a record says of an answer."""

    name: str
    """Name of the judged quality, such as `correctness`; empty where the product has one kind only."""
    request_id: str
    value: Any
    who: str
    time: object
    kind: str
    """The type as the product calls it, for messages."""
    type: str = PLAIN
    word: str = ""
    """The word that the product keeps beside a score."""
    direction: str = ""
    """Direction that the record states: `maximize`, `minimize`, or another word, with which the value means nothing."""
    source: str = ""
    """`human`, `program` or `judge`; empty where the record is the user's own and does not say."""
    why_not: str = ""
    """Why it is no label, whatever its value; empty where it may be one."""
    part: str = ""
    """Which part of the trace was judged; empty for the whole."""
    own_id: str = ""
    overrides: str = ""
    """`own_id` of the record whose place this one takes; both are empty where the product has nothing of the kind."""


def _itself(record: Record) -> Iterable[Record]:
    return (record,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Places at which the records of one product hold what a label needs."""

    name: str
    what: str
    keys: tuple[frozenset[str], ...]
    """Any of these sets of keys tells a record of the product."""
    typed: Callable[[LabelRecord, Record], LabelRecord]
    """Adds the value's type, by the product's own rules, and why the value is no label."""
    judgements: Callable[[Record], Iterable[Record]] = _itself
    """The records within a record that hold one judgement each. The paths below begin there."""
    judged: Paths = ()
    value: Paths
    word: Paths = ()
    kind: Paths = ()
    who: Paths = ()
    time: Paths = ()
    source: Paths = ("source",)
    unsaid_source: str = ""
    """The source of a judgement that does not say it."""
    id: Paths
    """Places of the product's own id of the answer."""
    ids: Paths = ("metadata",)
    """Further objects that may hold an id under `IDS`, which goes before the product's own."""
    astray: str = ""
    """Why a judgement without any id is of no answer. Where it is empty, such a judgement is an error."""
    beside: Paths = ("metadata",)
    """Objects whose fields tell the state and the direction of the judgement, as its own fields do."""
    harmless: Paths = ()
    """Fields that the product's own rules explain, so that they tell nothing of the state."""
    part: Paths = ()
    own_id: Paths = ()
    overrides: Paths = ()


def read_judgements(preset: Preset, record: Record, id_path: str = "") -> Iterator[LabelRecord]:
    """Yields what a record says. `id_path`: where the answer's id is, in place of the preset's places.

    What is no record of the product raises `TypeError`, `AttributeError`, `ValueError` or `LookupError`.
    """
    for one in preset.judgements(record):
        beside, unread = _objects_beside(one, preset)
        own_id = first_value(one, preset.id)
        holders = [one, *(object_of(value_at(one, path)) for path in preset.ids)]
        asked_for = (held[key] for key in IDS for held in holders if held.get(key) not in (None, ""))
        asked_id = first_value(record, (id_path,)) if id_path else next(asked_for, None)
        request_id = own_id if asked_id is None and not id_path else asked_id
        why = why_no_label(one, *beside, harmless=preset.harmless) or unread
        if own_id is None and request_id is None:
            why = why or preset.astray
        told = LabelRecord(
            name=_text(first_value(one, preset.judged)),
            request_id=_text(request_id),
            value=first_value(one, preset.value),
            who=_text(first_value(one, preset.who)),
            time=first_value(one, preset.time),
            kind=_text(first_value(one, preset.kind)),
            word=_text(first_value(one, preset.word)),
            direction=stated_direction(one, *beside),
            source=source_of(_text(first_value(one, preset.source))) or preset.unsaid_source,
            why_not=why,
            part=_text(first_value(one, preset.part)),
            own_id=_text(first_value(one, preset.own_id)),
            overrides=_text(first_value(one, preset.overrides)),
        )
        yield preset.typed(told, one)


def _objects_beside(record: Record, preset: Preset) -> tuple[list[Record], str]:
    """Returns the objects beside a judgement, without the value itself, and why one of them cannot be read."""
    values = {path.rpartition(".")[2] for path in (*preset.value, *preset.word) if "." in path}
    objects: list[Record] = []
    unread = ""
    for path in preset.beside:
        given = _known(value_at(record, path))
        held = object_of(given)
        objects.append({key: value for key, value in held.items() if key not in values})
        empty = given in (None, {}, []) or (isinstance(given, str) and given.replace(" ", "") in ("{}", "[]"))
        if not held and not empty:
            unread = f"its {path}, which may state a direction or an error, cannot be read"
    return objects, unread


def first_value(record: Record, paths: Paths) -> Any:
    """Returns what the first place that holds something holds; None where none does."""
    values = (value_at(record, path) for path in paths)
    return next((value for value in values if value not in (None, "")), None)


def value_at(record: Record, path: str) -> Any:
    """Returns what a place of a record holds, which may be a column of that name; None where there is nothing."""
    if path in record:
        return record[path]
    value: Any = record
    for key in path.split("."):
        value = object_of(value).get(key)
    return value


def object_of(value: object) -> Record:
    """Returns a mapping, also one that a table holds as text of JSON or of Python; empty where there is none."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = _parsed(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def _list_of(value: object) -> Sequence[Record]:
    """Returns a list, also one that a table holds as text of JSON or of Python; empty where there is none."""
    if isinstance(value, str):
        value = _parsed(value)
    return value if isinstance(value, list) else ()


def _parsed(text: str) -> Any:
    """Raises `ValueError` for text that is neither JSON nor a Python literal."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        try:
            return ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"{text[:40]!r} is neither JSON nor a Python literal") from error


def _text(value: object) -> str:
    return "" if value is None or isinstance(value, (Mapping, list)) else str(value)


def _known(value: object) -> Any:
    """Returns None for what tables write where there is nothing."""
    return None if value is None or str(value).strip().casefold() in ("", "nan", "none") else value


# Lines of one's own

_VALUES = ("label", "value", "correct")
"""Keys under which a line of one's own holds the label; all that are filled must agree."""
_NAMES = (
    *("name", "metric", "criterion", "criteria", "kind", "what", "aspect", "scorer", "evaluator"),
    *("annotation_name", "assessment_name", "score_name", "label_name", "metric_name"),
)
"""Keys under which a line of one's own may say what was judged."""


def _labelled_lines(record: Record) -> Iterator[Record]:
    """Yields the line, unless it is of a sheet and has no label yet, which differs from a label `unsure`."""
    if not record.keys() & set(_VALUES):
        raise KeyError("label")
    if first_value(record, _VALUES) is not None or ANSWERED_AT_KEY not in record:
        yield record


def _typed_line(one: LabelRecord, record: Record) -> LabelRecord:
    filled = {key: record[key] for key in _VALUES if record.get(key) not in (None, "")}
    why = ""
    meanings: set[float | None] = set()
    with suppress(ValueError):  # a value that cannot be read counts as a disagreement
        meanings = {label_value(value) for value in filled.values()}
    if len(filled) > 1 and len(meanings) != 1:
        shown = " and ".join(f"`{key}` ({str(value)[:20]})" for key, value in filled.items())
        why = f"its {shown} contradict each other"
    elif not one.direction and str(one.value or "").strip().casefold() not in RIGHT_WORDS | WRONG_WORDS | {""}:
        name = next((str(record[key]) for key in _NAMES if LabelWords(str(record.get(key) or "")).may_be_bad), "")
        if name:
            why = f'nothing says whether 1 of {name[:40]!r} is right; expected "direction" ("minimize" where 1 is bad)'
    by_kind = one.who.casefold() == one.source  # "human" is whose label it is, and nobody's name
    type_ = SCORE if one.direction else PLAIN
    return replace(one, type=type_, kind="label", who="" if by_kind else one.who, why_not=one.why_not or why)


# MLflow


def _assessments(record: Record) -> Iterator[Record]:
    """Yields a trace's assessments, with the trace beside each; or the assessment that the record is."""
    trace = record.get("info") or record
    for one in [record] if "assessment_name" in record else _list_of(trace.get("assessments")):
        yield {**one, "trace": trace}


def _typed_assessment(one: LabelRecord, record: Record) -> LabelRecord:
    source = one.kind or "unknown source"
    if record.get("feedback") is None:
        why = "what should be answered is no judgement of an answer"
        return replace(one, kind=f"{source} expectation", type="", why_not=why)
    named = {bool: "boolean", int: "number", float: "number", str: "text", type(None): "feedback"}
    kind = named.get(type(one.value), type(one.value).__name__)
    type_ = {"boolean": YES_NO, "number": NUMBER, "text": WORD}.get(kind, "")
    return replace(one, type=type_, kind=f"{source} {kind}")


# Langfuse

_SCORES = {"BOOLEAN": YES_NO, "CATEGORICAL": WORD, "NUMERIC": NUMBER, "": NUMBER}
"""Data type -> type of the value. A number without a data type is of an unknown range."""


def _langfuse_scores(record: Record) -> Iterator[Record]:
    """Yields the score, with the subject's id under the subject's kind."""
    subject = object_of(record.get("subject"))
    yield {**record, "of": {str(subject.get("kind") or "").casefold(): subject.get("id")}}


def _typed_score(one: LabelRecord, record: Record) -> LabelRecord:
    type_, value, text, why = _SCORES.get(one.kind.upper(), ""), one.value, one.word, one.why_not
    if one.kind.upper() in ("TEXT", "CORRECTION"):
        why, value = why or "a text is no label", text or value
    elif not type_:
        why = why or "this type is not known"
    elif type_ == WORD:  # its value is a category's number, in newer exports the category
        value = text or (value if isinstance(value, str) and not _is_number(value) else None)
    elif type_ == YES_NO and text and text.casefold() != str(str(value).casefold() in ("1", "1.0", "true")).casefold():
        why = why or f"its value {value!r} and its text {text[:20]!r} contradict each other"
    return replace(one, type=type_, value=value, word="", kind=one.kind or "untyped", why_not=why)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# Phoenix


def _typed_annotation(one: LabelRecord, record: Record) -> LabelRecord:
    score, label = _known(one.value), _known(one.word)
    of_document = _known(record.get("document_position")) is not None
    told = "label" if score is None else "score"
    return replace(
        one,
        type=WORD if score is None else SCORE,
        value=label if score is None else score,
        word=label or "",
        kind=f"{one.kind or 'unknown annotator'} {told}",
        why_not=one.why_not or ("it is of a retrieved document" if of_document else ""),
    )


# OpenAI evals

_GRADERS = {
    **dict.fromkeys(("string_check", "text_similarity", "python", "string-check-grader"), PROGRAM),
    **dict.fromkeys(("label_model", "score_model"), JUDGE),
}
_OUTCOMES = ("pass", "passed", "fail", "failed")
"""Values of a status that say how the answer did, and not whether its grader ran."""


def _results(record: Record) -> Iterator[Record]:
    """Yields an item's results, with the item beside each."""
    for result in _list_of(record.get("results")):
        told = {key: value for key, value in result.items() if key != "status" or value not in _OUTCOMES}
        yield {**told, "item": record}


def _typed_result(one: LabelRecord, record: Record) -> LabelRecord:
    item, passed = record["item"], record["passed"]
    status = str(item.get("status") or "")
    why = "" if status in ("pass", "fail") else f"the item's status is {status!r}"
    why = why or why_no_label(item, harmless=("status",)) or one.why_not
    if not isinstance(passed, bool) and passed not in (0, 1):
        why = why or "it neither passed nor failed"
    source = _GRADERS.get(one.kind, JUDGE)
    return replace(one, kind=one.kind or "grader", who="openai-evals", source=source, why_not=why)


PRESETS = (
    Preset(
        name="lines",
        what="labels",
        keys=tuple(frozenset({at, label}) for at in ("request_id", "id") for label in ("label", "correct")),
        judgements=_labelled_lines,
        typed=_typed_line,
        value=_VALUES,
        who=("who", "source"),
        time=("time", "when"),
        id=("id",),
    ),
    Preset(
        name="mlflow",
        what="MLflow assessments",
        keys=(frozenset({"info"}), frozenset({"assessment_name"}), frozenset({"trace_id", "assessments"})),
        judgements=_assessments,
        typed=_typed_assessment,
        judged=("assessment_name",),
        value=("feedback.value",),
        kind=("source.source_type", "source"),
        who=("source.source_id", "source.source_type", "source"),
        time=("last_update_time", "create_time"),
        source=("source.source_type", "source"),
        unsaid_source=JUDGE,
        id=("trace.client_request_id", "trace.trace_id", "trace.request_id", "trace_id"),
        ids=("metadata", "trace.tags"),
        beside=("feedback", "metadata"),
        part=("span_id",),
        own_id=("assessment_id",),
        overrides=("overrides",),
    ),
    Preset(
        name="langfuse",
        what="Langfuse scores",
        keys=(frozenset({"traceId", "name", "value"}), frozenset({"name", "dataType"})),
        judgements=_langfuse_scores,
        typed=_typed_score,
        judged=("name",),
        value=("value",),
        word=("stringValue",),
        kind=("dataType",),
        who=("authorUserId", "source"),
        time=("updatedAt", "timestamp"),
        unsaid_source=PROGRAM,
        id=("traceId", "subject.traceId", "of.trace"),
        astray="it is of a session or a run of a data set, and of no answer",
        beside=("metadata", "subject"),
        harmless=("_deprecation",),
        part=("observationId", "of.observation"),
    ),
    Preset(
        name="phoenix",
        what="Phoenix annotations",
        keys=tuple(frozenset({"annotator_kind", key}) for key in ("span_id", "result", "result.label", "result.score")),
        typed=_typed_annotation,
        judged=("name", "annotation_name"),
        value=("result.score", "score"),
        word=("result.label", "label"),
        kind=("annotator_kind",),
        who=("user_id", "identifier", "annotator_kind"),
        time=("updated_at", "created_at"),
        source=("annotator_kind",),
        unsaid_source=JUDGE,
        id=("span_id", "context.span_id", "trace_id"),
        astray="it is of a session, and of no answer",
        beside=("result", "metadata"),
    ),
    Preset(
        name="openai-evals",
        what="OpenAI evals",
        keys=(frozenset({"datasource_item", "results"}),),
        judgements=_results,
        typed=_typed_result,
        judged=("name",),
        value=("passed",),
        kind=("type",),
        time=("item.created_at",),
        id=("item.datasource_item.id",),
        ids=("item.datasource_item", "item.datasource_item.item"),
        beside=("item.sample", "sample", "metadata"),
    ),
)
"""The first preset whose keys a record has reads the file."""
PRESET_NAMES = tuple(preset.name for preset in PRESETS)
