"""Reads judgements from records by a mapping of fields; `PRESETS` has one mapping for each product.

A type, a target or a state that is not listed as one that makes a label is left out, with the reason.
"""

import ast
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from metaprobe.api import LabelState, LabelWords
from metaprobe.production.monitoring.label_draw import ANSWERED_AT_KEY
from metaprobe.production.monitoring.label_words import JUDGE, PROGRAM, RIGHT_WORDS, WRONG_WORDS, label_value, source_of

Record = Mapping[str, Any]
Paths = Sequence[str]
"""Places in a record, each as keys joined by dots. The first place that is not empty counts."""

ID_KEYS = ("request_id", "metaprobe.request_id", "metaprobe_request_id", "metaprobe-request-id")
"""Keys under which an answer's id is searched first."""
OWN_NAME = "metaprobe"
"""Name under which metaprobe exports its own verdicts."""

PLAIN_TYPE, YES_NO_TYPE, NUMBER_TYPE, SCORE_TYPE, WORD_TYPE = "plain", "yes or no", "number", "score", "word"
"""Types of values. `plain`: 1 is right by the format's own rule. `number`: has an unknown range. `score`: in [0, 1],
with a direction.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRecord:
    """One judgement of an answer in a record."""

    name: str
    """Name of the judged quality, such as `correctness`; empty if the product has only one kind."""
    request_id: str
    value: Any
    who: str
    time: object
    kind: str
    """The type in the product's own words, for messages."""
    type: str = PLAIN_TYPE
    word: str = ""
    """The word that the product stores beside a score."""
    direction: str = ""
    """Direction that the record states: `maximize`, `minimize`, or another word, with which the value has
    no meaning.
    """
    source: str = ""
    """`human`, `program` or `judge`; empty for a user's own record without a source."""
    why_not: str = ""
    """Why it is no label, whatever its value; empty if it may be one."""
    part: str = ""
    """The part of the trace that was judged; empty for the whole trace."""
    own_id: str = ""
    overrides: str = ""
    """`own_id` of the record that this one replaces; both are empty if the product has no replacements."""


def _itself(record: Record) -> Iterable[Record]:
    return (record,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Places at which the records of one product hold the data for a label."""

    name: str
    what: str
    keys: tuple[frozenset[str], ...]
    """Sets of keys. A record with all keys of one set belongs to the product."""
    add_type: Callable[[LabelRecord, Record], LabelRecord]
    """Adds the value's type, by the product's own rules, and why the value is no label."""
    judgements: Callable[[Record], Iterable[Record]] = _itself
    """Returns the records within a record that hold one judgement each. The paths below begin there."""
    judged: Paths = ()
    value: Paths
    word: Paths = ()
    kind: Paths = ()
    who: Paths = ()
    time: Paths = ()
    source: Paths = ("source",)
    default_source: str = ""
    """Source of a judgement that does not state it."""
    id: Paths
    """Places of the product's own id of the answer."""
    ids: Paths = ("metadata",)
    """Further objects that may hold an answer's id under a key of `ID_KEYS`. This id is used before `id`."""
    reason_without_id: str = ""
    """Reason to leave out a judgement that has no id. If empty, a judgement without an id is an error."""
    beside: Paths = ("metadata",)
    """Further objects whose fields may hold the state or the direction of the judgement."""
    harmless: Paths = ()
    """Fields of the judgement that the product's own rules interpret, so that no state is read from them."""
    part: Paths = ()
    own_id: Paths = ()
    overrides: Paths = ()


def read_judgements(preset: Preset, record: Record, id_path: str = "") -> Iterator[LabelRecord]:
    """Yields the judgements in a record. `id_path` is where the answer's id is, instead of the preset's places.

    A record of another product raises `TypeError`, `AttributeError`, `ValueError` or `LookupError`.
    """
    for judged_record in preset.judgements(record):
        beside, unread = _objects_beside(judged_record, preset)
        product_id = first_value(judged_record, preset.id)
        holders = [judged_record, *(object_of(value_at(judged_record, path)) for path in preset.ids)]
        metaprobe_ids = (holder[key] for key in ID_KEYS for holder in holders if holder.get(key) not in (None, ""))
        metaprobe_id = first_value(record, (id_path,)) if id_path else next(metaprobe_ids, None)
        request_id = product_id if metaprobe_id is None and not id_path else metaprobe_id
        state = LabelState(judged_record, *beside, harmless=preset.harmless)
        reason = state.why_not or unread
        if product_id is None and request_id is None:
            reason = reason or preset.reason_without_id
        read_record = LabelRecord(
            name=_cell_text(first_value(judged_record, preset.judged)),
            request_id=_cell_text(request_id),
            value=first_value(judged_record, preset.value),
            who=_cell_text(first_value(judged_record, preset.who)),
            time=first_value(judged_record, preset.time),
            kind=_cell_text(first_value(judged_record, preset.kind)),
            word=_cell_text(first_value(judged_record, preset.word)),
            direction=state.direction,
            source=source_of(_cell_text(first_value(judged_record, preset.source))) or preset.default_source,
            why_not=reason,
            part=_cell_text(first_value(judged_record, preset.part)),
            own_id=_cell_text(first_value(judged_record, preset.own_id)),
            overrides=_cell_text(first_value(judged_record, preset.overrides)),
        )
        yield preset.add_type(read_record, judged_record)


def _objects_beside(record: Record, preset: Preset) -> tuple[list[Record], str]:
    """Returns the objects beside a judgement, without the value itself, and why one of them cannot be read."""
    values = {path.rpartition(".")[2] for path in (*preset.value, *preset.word) if "." in path}
    objects: list[Record] = []
    unread = ""
    for path in preset.beside:
        raw = _value_or_none(value_at(record, path))
        parsed = object_of(raw)
        objects.append({key: value for key, value in parsed.items() if key not in values})
        empty = raw in (None, {}, []) or (isinstance(raw, str) and raw.replace(" ", "") in ("{}", "[]"))
        if not parsed and not empty:
            unread = f"its {path}, which may state a direction or an error, cannot be read"
    return objects, unread


def first_value(record: Record, paths: Paths) -> Any:
    """Returns the content of the first place that is not empty; None if all are empty."""
    values = (value_at(record, path) for path in paths)
    return next((value for value in values if value not in (None, "")), None)


def value_at(record: Record, path: str) -> Any:
    """Returns the content of a place in a record, which may also be a column of that name; None if it is empty."""
    if path in record:
        return record[path]
    value: Any = record
    for key in path.split("."):
        value = object_of(value).get(key)
    return value


def object_of(value: object) -> Record:
    """Returns a mapping, also from text of JSON or Python in a table; empty if there is none."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = _parsed(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def _list_of(value: object) -> Sequence[Record]:
    """Returns a list, also from text of JSON or Python in a table; empty if there is none."""
    if isinstance(value, str):
        value = _parsed(value)
    return value if isinstance(value, list) else ()


def _parsed(text: str) -> Any:
    """Returns the value of a text. Raises `ValueError` for text that is neither JSON nor a Python literal."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        try:
            return ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"{text[:40]!r} is neither JSON nor a Python literal") from error


def _cell_text(value: object) -> str:
    return "" if value is None or isinstance(value, (Mapping, list)) else str(value)


def _value_or_none(value: object) -> Any:
    """Returns the value; None for the texts that tables write for empty cells."""
    return None if value is None or str(value).strip().casefold() in ("", "nan", "none") else value


# Lines of one's own

_VALUES = ("label", "value", "correct")
"""Keys under which a user's own line may hold the label; all that are filled must agree."""
_NAMES = (
    *("name", "metric", "criterion", "criteria", "kind", "what", "aspect", "scorer", "evaluator"),
    *("annotation_name", "assessment_name", "score_name", "label_name", "metric_name"),
)
"""Keys under which a user's own line may say what was judged."""


def _labelled_lines(record: Record) -> Iterator[Record]:
    """Yields the line. A line of a sheet without a label is skipped; this differs from a label `unsure`."""
    if not record.keys() & set(_VALUES):
        raise KeyError("label")
    if first_value(record, _VALUES) is not None or ANSWERED_AT_KEY not in record:
        yield record


def _typed_line(judgement: LabelRecord, record: Record) -> LabelRecord:
    filled = {key: record[key] for key in _VALUES if record.get(key) not in (None, "")}
    reason = ""
    meanings: set[float | None] = set()
    with suppress(ValueError):  # a value that cannot be read counts as a disagreement
        meanings = {label_value(value) for value in filled.values()}
    if len(filled) > 1 and len(meanings) != 1:
        filled_texts = " and ".join(f"`{key}` ({str(value)[:20]})" for key, value in filled.items())
        reason = f"its {filled_texts} contradict each other"
    elif not judgement.direction and str(judgement.value or "").strip().casefold() not in RIGHT_WORDS | WRONG_WORDS | {
        ""
    }:
        name = next((str(record[key]) for key in _NAMES if LabelWords(str(record.get(key) or "")).may_be_bad), "")
        if name:
            reason = (
                f'nothing says whether 1 of {name[:40]!r} is right; expected "direction" ("minimize" where 1 is bad)'
            )
    who_is_source = judgement.who.casefold() == judgement.source  # "human" is whose label it is, and nobody's name
    type_ = SCORE_TYPE if judgement.direction else PLAIN_TYPE
    return replace(
        judgement,
        type=type_,
        kind="label",
        who="" if who_is_source else judgement.who,
        why_not=judgement.why_not or reason,
    )


# MLflow


def _assessments(record: Record) -> Iterator[Record]:
    """Yields a trace's assessments, each with the trace; or the record itself if it is an assessment."""
    trace = record.get("info") or record
    for assessment in [record] if "assessment_name" in record else _list_of(trace.get("assessments")):
        yield {**assessment, "trace": trace}


def _typed_assessment(judgement: LabelRecord, record: Record) -> LabelRecord:
    source = judgement.kind or "unknown source"
    if record.get("feedback") is None:
        reason = "what should be answered is no judgement of an answer"
        return replace(judgement, kind=f"{source} expectation", type="", why_not=reason)
    name_of_type = {bool: "boolean", int: "number", float: "number", str: "text", type(None): "feedback"}
    kind = name_of_type.get(type(judgement.value), type(judgement.value).__name__)
    type_ = {"boolean": YES_NO_TYPE, "number": NUMBER_TYPE, "text": WORD_TYPE}.get(kind, "")
    return replace(judgement, type=type_, kind=f"{source} {kind}")


# Langfuse

_TYPE_OF_LANGFUSE_DATA = {"BOOLEAN": YES_NO_TYPE, "CATEGORICAL": WORD_TYPE, "NUMERIC": NUMBER_TYPE, "": NUMBER_TYPE}
"""Maps the data type to the type of the value. A number without a data type has an unknown range."""


def _langfuse_scores(record: Record) -> Iterator[Record]:
    """Yields the score, with the subject's id under the subject's kind."""
    subject = object_of(record.get("subject"))
    yield {**record, "of": {str(subject.get("kind") or "").casefold(): subject.get("id")}}


def _typed_score(judgement: LabelRecord, record: Record) -> LabelRecord:
    type_, value, text, reason = (
        _TYPE_OF_LANGFUSE_DATA.get(judgement.kind.upper(), ""),
        judgement.value,
        judgement.word,
        judgement.why_not,
    )
    if judgement.kind.upper() in ("TEXT", "CORRECTION"):
        reason, value = reason or "a text is no label", text or value
    elif not type_:
        reason = reason or "this type is not known"
    elif type_ == WORD_TYPE:  # its value is a category's number, in newer exports the category
        value = text or (value if isinstance(value, str) and not _is_number(value) else None)
    elif (
        type_ == YES_NO_TYPE
        and text
        and text.casefold() != str(str(value).casefold() in ("1", "1.0", "true")).casefold()
    ):
        reason = reason or f"its value {value!r} and its text {text[:20]!r} contradict each other"
    return replace(judgement, type=type_, value=value, word="", kind=judgement.kind or "untyped", why_not=reason)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# Phoenix


def _typed_annotation(judgement: LabelRecord, record: Record) -> LabelRecord:
    score, label = _value_or_none(judgement.value), _value_or_none(judgement.word)
    is_of_document = _value_or_none(record.get("document_position")) is not None
    what = "label" if score is None else "score"
    return replace(
        judgement,
        type=WORD_TYPE if score is None else SCORE_TYPE,
        value=label if score is None else score,
        word=label or "",
        kind=f"{judgement.kind or 'unknown annotator'} {what}",
        why_not=judgement.why_not or ("it is of a retrieved document" if is_of_document else ""),
    )


# OpenAI evals

_SOURCE_OF_GRADER = {
    **dict.fromkeys(("string_check", "text_similarity", "python", "string-check-grader"), PROGRAM),
    **dict.fromkeys(("label_model", "score_model"), JUDGE),
}
_OUTCOMES = ("pass", "passed", "fail", "failed")
"""Values of a status that judge the answer, and do not say whether its grader ran."""


def _results(record: Record) -> Iterator[Record]:
    """Yields an item's results, each with the item."""
    for result in _list_of(record.get("results")):
        kept_fields = {key: value for key, value in result.items() if key != "status" or value not in _OUTCOMES}
        yield {**kept_fields, "item": record}


def _typed_result(judgement: LabelRecord, record: Record) -> LabelRecord:
    item, passed = record["item"], record["passed"]
    status = str(item.get("status") or "")
    reason = "" if status in ("pass", "fail") else f"the item's status is {status!r}"
    reason = reason or LabelState(item, harmless=("status",)).why_not or judgement.why_not
    if not isinstance(passed, bool) and passed not in (0, 1):
        reason = reason or "it neither passed nor failed"
    source = _SOURCE_OF_GRADER.get(judgement.kind, JUDGE)
    return replace(judgement, kind=judgement.kind or "grader", who="openai-evals", source=source, why_not=reason)


PRESETS = (
    Preset(
        name="lines",
        what="labels",
        keys=tuple(frozenset({id_name, label}) for id_name in ("request_id", "id") for label in ("label", "correct")),
        judgements=_labelled_lines,
        add_type=_typed_line,
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
        add_type=_typed_assessment,
        judged=("assessment_name",),
        value=("feedback.value",),
        kind=("source.source_type", "source"),
        who=("source.source_id", "source.source_type", "source"),
        time=("last_update_time", "create_time"),
        source=("source.source_type", "source"),
        default_source=JUDGE,
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
        add_type=_typed_score,
        judged=("name",),
        value=("value",),
        word=("stringValue",),
        kind=("dataType",),
        who=("authorUserId", "source"),
        time=("updatedAt", "timestamp"),
        default_source=PROGRAM,
        id=("traceId", "subject.traceId", "of.trace"),
        reason_without_id="it is of a session or a run of a data set, and of no answer",
        beside=("metadata", "subject"),
        harmless=("_deprecation",),
        part=("observationId", "of.observation"),
    ),
    Preset(
        name="phoenix",
        what="Phoenix annotations",
        keys=tuple(frozenset({"annotator_kind", key}) for key in ("span_id", "result", "result.label", "result.score")),
        add_type=_typed_annotation,
        judged=("name", "annotation_name"),
        value=("result.score", "score"),
        word=("result.label", "label"),
        kind=("annotator_kind",),
        who=("user_id", "identifier", "annotator_kind"),
        time=("updated_at", "created_at"),
        source=("annotator_kind",),
        default_source=JUDGE,
        id=("span_id", "context.span_id", "trace_id"),
        reason_without_id="it is of a session, and of no answer",
        beside=("result", "metadata"),
    ),
    Preset(
        name="openai-evals",
        what="OpenAI evals",
        keys=(frozenset({"datasource_item", "results"}),),
        judgements=_results,
        add_type=_typed_result,
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
