"""What other programs export of judgements, one reader each, and what each of their types means.

A type, a target or a state that is not listed here as one that makes a label is left out, with the reason.
"""

import ast
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metaprobe.monitoring.labels import JUDGE, PROGRAM, RIGHT_WORDS, WRONG_WORDS, label_value, source_of
from metaprobe.monitoring.sampling import ANSWERED
from metaprobe.records.label_state import may_be_bad, stated_direction, why_no_label

Record = Mapping[str, Any]
IDS = ("request_id", "metaprobe.request_id", "metaprobe_request_id", "metaprobe-request-id")
"""Under which an answer's id is looked for first, also in a record's metadata."""
SHEET = frozenset("request_id model tags question answer label".split())
"""Keys of a line that `metaprobe sample` wrote. Before it told `ANSWERED`, the time on it was the answer's."""
OURS = "metaprobe"
"""The name under which verdicts of metaprobe itself are exported."""

PLAIN, YES_NO, NUMBER, SCORE, WORD = "plain", "yes or no", "number", "score", "word"
"""Types of values. `plain`: 1 is right by the format's own rule. `number`: of an unknown range. `score`: in [0, 1] with
a direction."""


@dataclass(frozen=True, slots=True)
class Said:
    """One thing that a record says."""

    name: str
    """What was judged, such as `correctness`; empty where the program has one kind only."""
    request_id: str
    value: Any
    who: str
    time: object
    type: str = PLAIN
    kind: str = "label"
    """The type as the program calls it, for messages."""
    word: str = ""
    """The word that the program keeps beside a score."""
    direction: str = ""
    """As the record states it: `maximize`, `minimize`, or another word, with which the value means nothing."""
    source: str = ""
    """`human`, `program` or `judge`; empty where the record is the user's own and does not say."""
    why_not: str = ""
    """Why it is no label, whatever its value; empty where it may be one."""
    astray: str = ""
    """Why it is of no single answer; it does not count where the record names an answer's id."""
    part: str = ""
    """Which part of the trace was judged; empty for the whole."""
    own_id: str = ""
    overrides: str = ""
    """`own_id` of the record whose place this one takes; both are empty where the program has nothing of the kind."""


@dataclass(frozen=True, slots=True)
class FeedbackFormat:
    """One format of labels."""

    name: str
    what: str
    read: Callable[[Record], Iterator[Said]]
    keys: tuple[frozenset[str], ...]
    """Keys of its records, any of these sets of them."""


_VALUES = ("label", "value", "correct")
"""Keys under which a line of one's own holds the label; all that are filled must agree."""
_NAMES = (
    *("name", "metric", "criterion", "criteria", "kind", "what", "aspect", "scorer", "evaluator"),
    *("annotation_name", "assessment_name", "score_name", "label_name", "metric_name"),
)
"""Keys under which a line of one's own may say what was judged."""


def _lines(record: Record) -> Iterator[Said]:
    given = {key: record[key] for key in _VALUES if key in record}
    if not given:
        raise KeyError("label")
    told = {key: value for key, value in given.items() if value not in (None, "")}
    value = next(iter((told or given).values()))
    source = source_of(record.get("source"))
    who = record.get("who") or ("" if source == str(record.get("source") or "").casefold() else record.get("source"))
    when = record.get("time") or record.get("when")
    old_sheet = ANSWERED not in record and record.keys() >= SHEET
    if value in (None, "") and (old_sheet or ANSWERED in record):
        return  # the answer has no label yet, which differs from a label `unsure`
    if old_sheet:  # its time is the answer's
        when = record.get("when")
    metadata = held(record.get("metadata"))
    direction = stated_direction(record, metadata)
    type_ = SCORE if direction else PLAIN
    request_id = id_of(record, "id")
    why = why_no_label(record, metadata) or _why_unclear(record, told, direction)
    yield Said("", request_id, value, str(who or ""), when, type_, direction=direction, source=source, why_not=why)


def _why_unclear(record: Record, told: Record, direction: str) -> str:
    """Why a line of one's own does not say whether its value means right; empty where it does."""
    if len(told) > 1 and not _agree(told.values()):
        return (
            f"its {' and '.join(f'`{key}` ({str(value)[:20]})' for key, value in told.items())} contradict each other"
        )
    value = str(next(iter(told.values()), "")).strip().casefold()
    name = next((str(record[key]) for key in _NAMES if may_be_bad(str(record.get(key) or ""))), "")
    if name and not direction and value not in RIGHT_WORDS | WRONG_WORDS | {""}:
        return f'nothing says whether 1 of {name[:40]!r} is right; expected "direction" ("minimize" where 1 is bad)'
    return ""


def _agree(values: Iterable[object]) -> bool:
    """Whether all values are labels, and the same one."""
    try:
        return len({label_value(value) for value in values}) == 1
    except ValueError:
        return False


def _mlflow(record: Record) -> Iterator[Said]:
    info = record.get("info") or record
    trace = info.get("client_request_id") or info.get("trace_id") or info.get("request_id")
    found = [record] if "assessment_name" in record else listed(info.get("assessments"))
    for one in found:
        feedback = one.get("feedback")
        source = held(one.get("source")) or {"source_type": one.get("source")}
        called = str(source.get("source_type") or "")
        own, unread = _metadata(one)
        metadata = {**held(info.get("tags")), **own}
        judged = {key: said for key, said in held(feedback).items() if key != "value"}
        value = held(feedback).get("value")
        type_, kind = _type_of(value)
        why = why_no_label(one, judged, own) or unread
        if feedback is None:
            kind, why = "expectation", "what should be answered is no judgement of an answer"
        yield Said(
            str(one.get("assessment_name") or ""),
            id_of({**one, "metadata": metadata}, "") or str(trace or one.get("trace_id") or ""),
            value,
            str(source.get("source_id") or called),
            one.get("last_update_time") or one.get("create_time"),
            type_,
            f"{called or 'unknown source'} {kind}",
            direction=stated_direction(one, judged, own),
            source=source_of(called) or JUDGE,
            why_not=why,
            part=str(one.get("span_id") or ""),
            own_id=str(one.get("assessment_id") or ""),
            overrides=str(one.get("overrides") or ""),
        )


def _type_of(value: object) -> tuple[str, str]:
    """Type of a value that its program does not name, by what JSON has."""
    if isinstance(value, bool):
        return YES_NO, "boolean"
    if isinstance(value, (int, float)):
        return NUMBER, "number"
    if value is None:
        return "", "feedback"
    return (WORD, "text") if isinstance(value, str) else ("", type(value).__name__)


_LANGFUSE = {"BOOLEAN": YES_NO, "CATEGORICAL": WORD, "NUMERIC": NUMBER}


def _langfuse(record: Record) -> Iterator[Said]:
    called = str(record.get("dataType") or "")
    type_, text = _LANGFUSE.get(called.upper(), ""), record.get("stringValue")
    value = record.get("value")
    metadata, unread = _metadata(record)
    subject = held(record.get("subject"))
    why = why_no_label(record, metadata, subject, harmless=("_deprecation",)) or unread
    if called.upper() in ("TEXT", "CORRECTION"):
        why, value = why or "a text is no label", text or value
    elif not called:
        type_ = NUMBER
    elif not type_:
        why = why or "this type is not known"
    if type_ == WORD:  # its value is a category's number, in newer exports the category
        value = text or (value if isinstance(value, str) and not _is_number(value) else None)
    if type_ == YES_NO and text not in (None, "") and str(text).casefold() != ("true" if _is_one(value) else "false"):
        why = why or f"its value {value!r} and its text {str(text)[:20]!r} contradict each other"
    of_trace = (
        record.get("traceId") or subject.get("traceId") or (subject.get("id") if _is_of(subject, "trace") else "")
    )
    part = record.get("observationId") or (subject.get("id") if _is_of(subject, "observation") else "")
    called_source = str(record.get("source") or "")
    yield Said(
        str(record.get("name") or ""),
        id_of({**record, "traceId": of_trace}, "traceId"),
        value,
        str(record.get("authorUserId") or called_source),
        record.get("updatedAt") or record.get("timestamp"),
        type_,
        called or "untyped",
        direction=stated_direction(record, metadata),
        source=source_of(called_source) or PROGRAM,
        why_not=why,
        astray="" if of_trace else "it is of a session or a run of a data set, and of no answer",
        part=str(part or ""),
    )


def _is_of(subject: Record, kind: str) -> bool:
    return str(subject.get("kind") or "").casefold() == kind


def _phoenix(record: Record) -> Iterator[Said]:
    result = record.get("result") or {key: record.get(f"result.{key}", record.get(key)) for key in ("score", "label")}
    score, label = _known(result.get("score")), _known(result.get("label"))
    called = str(record.get("annotator_kind") or "")
    metadata, unread = _metadata(record)
    why = why_no_label(record, held(record.get("result")), metadata) or unread
    if record.get("document_position") not in (None, ""):
        why = why or "it is of a retrieved document"
    at = next((key for key in ("span_id", "context.span_id", "trace_id") if record.get(key)), "span_id")
    yield Said(
        str(record.get("name") or record.get("annotation_name") or ""),
        id_of({**record, "metadata": metadata}, at),
        label if score is None else score,
        str(record.get("user_id") or record.get("identifier") or called),
        record.get("updated_at") or record.get("created_at"),
        WORD if score is None else SCORE,
        f"{called or 'unknown annotator'} {'label' if score is None else 'score'}",
        str(label or ""),
        direction=stated_direction(record, held(record.get("result")), metadata),
        source=source_of(called) or JUDGE,
        why_not=why,
        astray="" if record.get(at) else "it is of a session, and of no answer",
    )


_GRADERS = {
    **dict.fromkeys(("string_check", "text_similarity", "python", "string-check-grader"), PROGRAM),
    **dict.fromkeys(("label_model", "score_model"), JUDGE),
}


_OUTCOMES = ("pass", "passed", "fail", "failed")
"""Values of a status that say how the answer did, and not whether its grader ran."""


def _openai_evals(record: Record) -> Iterator[Said]:
    item = held(record.get("datasource_item"))
    request_id = id_of({**item, "metadata": item.get("item")}, "id")
    status = str(record.get("status") or "")
    for result in listed(record.get("results")):
        why = "" if status in ("pass", "fail") else f"the item's status is {status!r}"
        judged = {key: said for key, said in result.items() if key != "status" or said not in _OUTCOMES}
        samples = (held(record.get("sample")), held(result.get("sample")), held(result.get("metadata")))
        why = why or why_no_label(record, judged, *samples, harmless=("status",))
        passed = result["passed"]
        yield Said(
            str(result.get("name")),
            request_id,
            passed,
            "openai-evals",
            record.get("created_at"),
            kind=str(result.get("type") or "grader"),
            source=_GRADERS.get(str(result.get("type")), JUDGE),
            why_not=why or ("" if isinstance(passed, bool) or passed in (0, 1) else "it neither passed nor failed"),
        )


FORMATS = (
    FeedbackFormat(
        "lines",
        "labels",
        _lines,
        tuple(frozenset({at, said}) for at in ("request_id", "id") for said in ("label", "correct")),
    ),
    FeedbackFormat(
        "mlflow",
        "MLflow assessments",
        _mlflow,
        (frozenset({"info"}), frozenset({"assessment_name"}), frozenset({"trace_id", "assessments"})),
    ),
    FeedbackFormat(
        "langfuse",
        "Langfuse scores",
        _langfuse,
        (frozenset({"traceId", "name", "value"}), frozenset({"name", "dataType"})),
    ),
    FeedbackFormat(
        "phoenix",
        "Phoenix annotations",
        _phoenix,
        tuple(frozenset({"annotator_kind", key}) for key in ("span_id", "result", "result.label", "result.score")),
    ),
    FeedbackFormat("openai-evals", "OpenAI evals", _openai_evals, (frozenset({"datasource_item", "results"}),)),
)
"""The first whose keys a record has reads the file."""
NAMES = tuple(form.name for form in FORMATS)


def id_of(record: Record, usual: str) -> str:
    """The answer's id: what its caller wrote there as such, else the program's own under `usual`."""
    metadata = held(record.get("metadata"))
    for key in IDS:
        for found in (record.get(key), metadata.get(key)):
            if found not in (None, ""):
                return str(found)
    found = record.get(usual)
    return "" if found is None else str(found)


def held(value: object) -> Record:
    """A mapping, also one that a table holds as text of JSON or of Python; empty where there is none."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = _parsed(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def _metadata(record: Record) -> tuple[Record, str]:
    """A record's metadata, and why it cannot be read, which is empty where it can."""
    given = _known(record.get("metadata"))
    found = held(given)
    if found or given in (None, {}, []) or (isinstance(given, str) and given.replace(" ", "") in ("{}", "[]")):
        return found, ""
    return {}, "its metadata, which may state a direction or an error, cannot be read"


def listed(value: object) -> Sequence[Record]:
    """A list, also one that a table holds as text of JSON or of Python; empty where there is none."""
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


def _known(value: object) -> object:
    """None for what tables write where there is nothing."""
    return None if value is None or str(value).strip().casefold() in ("", "nan", "none") else value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_one(value: object) -> bool:
    return value is True or str(value).casefold() in ("1", "1.0", "true")
