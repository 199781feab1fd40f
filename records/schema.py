"""Runs as Arrow tables and back: one row a run, nested lists of structs for what belongs to it.

Only types that DuckDB, Polars and `datasets` all read: dictionaries are lists of (action, value), not Arrow maps.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import InvalidResponse, RecordError, StoreMismatch
from metaprobe.records.extras import require
from metaprobe.records.reading import without_surrogates
from metaprobe.records.segments import check_segments
from metaprobe.records.types import (
    Call,
    Decision,
    DecisionAnswer,
    Item,
    Label,
    Message,
    Run,
    Sampling,
    Segment,
    Statement,
    Usage,
)

pa = require("pyarrow", "fit")

FORMAT = "1"
"""Goes up when an older reader could no longer read what is written."""
FORMAT_KEY = b"metaprobe.format"

_STRING, _STRINGS, _DOUBLE = pa.string(), pa.list_(pa.string()), pa.float64()
_INTS, _FLOATS = pa.list_(pa.int32()), pa.list_(pa.float32())


def _struct(strings: str, **others: Any) -> Any:
    return pa.struct({**dict.fromkeys(strings.split(), _STRING), **others})


_VALUES = pa.list_(_struct("action", value=_DOUBLE))
_ARRAYS: dict[str, type[np.generic]] = {"prompt_token_ids": np.int32, "token_ids": np.int32, "logprobs": np.float32}
_SAMPLING = pa.struct(
    {
        "temperature": _DOUBLE,
        "top_p": _DOUBLE,
        "seed": pa.int64(),
        "max_tokens": pa.int64(),
        "stop": _STRINGS,
        "json_schema": _STRING,
    }
)
_USAGE = pa.struct({"prompt_tokens": pa.int64(), "completion_tokens": pa.int64()})

ITEM = _struct(
    "id question group dimension level split source task check",
    gold=_STRINGS,
    choices=_STRINGS,
    fields=pa.list_(_struct("name text")),
)
CALL = _struct(
    "id stage agent parent model model_revision model_dtype text reader logprobs_mode finish_reason error note",
    round=pa.int64(),
    messages=pa.list_(_struct("role content")),
    prompt_token_ids=_INTS,
    tokens=_STRINGS,
    token_ids=_INTS,
    logprobs=_FLOATS,
    top_logprobs=pa.list_(_FLOATS),
    segments=pa.list_(_struct("kind", start=pa.int64(), end=pa.int64())),
    sampling=_SAMPLING,
    usage=_USAGE,
    latency_ms=_DOUBLE,
    cost_usd=_DOUBLE,
)
STATEMENT = _struct("call_id kind", value=_DOUBLE)
LABEL = _struct("call_id name source", value=_DOUBLE)
DECISION = _struct("id point action reason", scores=_VALUES, propensities=_VALUES)
DECISION_ANSWER = _struct(
    "call_id question source kind choice reason",
    value=_DOUBLE,
    options=_STRINGS,
    probabilities=pa.list_(_DOUBLE),
    confidence=_DOUBLE,
)
RUN = pa.schema(
    {
        "id": _STRING,
        "system": _STRING,
        "variant": _STRING,
        "item": ITEM,
        "calls": pa.list_(CALL),
        "statements": pa.list_(STATEMENT),
        "labels": pa.list_(LABEL),
        "decisions": pa.list_(DECISION),
        "decision_answers": pa.list_(DECISION_ANSWER),
        "final_answer": _STRING,
        "outcome": _DOUBLE,
    },
    metadata={FORMAT_KEY: FORMAT},
)


_MAY_BE_NULL = frozenset(
    (
        *("run.outcome", "run.statements[].value", "run.item.fields"),
        *(f"run.calls[].{name}" for name in (*_ARRAYS, "top_logprobs", "parent", "latency_ms", "cost_usd", "error")),
        *(f"run.calls[].{name}" for name in ("segments", "reader", "note")),
        *(f"run.decision_answers{name}" for name in ("", "[].value", "[].probabilities[]", "[].confidence")),
        *(f"run.calls[].sampling.{name}" for name in ("seed", "max_tokens", "stop", "json_schema")),
    )
)
"""Fields that may have no value: those of `metaprobe.records.types` that may be None, and those that older shards lack
(a program that joins old and new shards fills them with nulls)."""


def check_format(metadata: dict[bytes, bytes] | None, name: str) -> None:
    """Raises `StoreMismatch` where a Parquet file was not written by this version's kind of store."""
    version = (metadata or {}).get(FORMAT_KEY)
    if version is None:
        raise StoreMismatch(f"{name} is no shard of a run store (no {FORMAT_KEY.decode()} in it); move it elsewhere")
    if version != FORMAT.encode():
        raise StoreMismatch(
            f"{name} has format {version.decode(errors='replace')}, this metaprobe reads {FORMAT}; install a newer one"
        )


def run_to_batch(run: Run) -> Any:
    """A record batch of one row. Raises `RecordError` for a run whose fields are not what they say they are."""
    row = _plain(run)
    row["calls"] = [_call_row(call) for call in run.calls]
    row["item"]["fields"] = [{"name": name, "text": text} for name, text in run.item.fields.items()]
    for decision in row["decisions"]:
        for key in ("scores", "propensities"):
            decision[key] = [{"action": action, "value": value} for action, value in decision[key].items()]
    try:
        try:
            batch = pa.RecordBatch.from_pylist([row], schema=RUN)
        except UnicodeEncodeError:  # half a surrogate pair in a broken token must not cost the run
            batch = pa.RecordBatch.from_pylist([without_surrogates(row)], schema=RUN)
        table_to_runs(pa.Table.from_batches([batch]))  # else it would make its whole shard unreadable
        return batch
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RecordError(
            f"run {run.id!r} cannot be stored: {error}; expected the types of metaprobe.records.types"
        ) from error


def _check_fields(given: Any, expected: Any, name: str) -> None:
    """Raises `ValueError` where a type has fields, or is one, that are not as expected; older shards lack some."""
    if pa.types.is_struct(given) and pa.types.is_struct(expected):
        for field in given:
            if expected.get_field_index(field.name) < 0:
                raise ValueError(f"{name} has a field {field.name!r}, which it should not have")
            _check_fields(field.type, expected.field(field.name).type, f"{name}.{field.name}")
    elif pa.types.is_list(given) and pa.types.is_list(expected):
        _check_fields(given.value_type, expected.value_type, f"{name}[]")
    elif given != expected:
        raise ValueError(f"{name} is of type {given}; expected {expected}")


def _check_values(array: Any, name: str) -> None:
    """Raises `ValueError` where a value is missing that every run has."""
    if array.null_count and name not in _MAY_BE_NULL:
        raise ValueError(f"{name} has no value in {array.null_count} of {len(array)} places")
    if pa.types.is_struct(array.type):
        for field in array.type:
            _check_values(array.field(field.name), f"{name}.{field.name}")
    elif pa.types.is_list(array.type) and name != "run.calls[].logprobs" and not name.startswith("run.calls[].top"):
        _check_values(array.flatten(), f"{name}[]")


def _check_rows(columns: Any) -> None:
    """The same of a table or record batch of runs."""
    for name in columns.schema.names:
        column = columns.column(name)
        _check_values(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column, f"run.{name}")


def table_to_runs(table: Any) -> list[Run]:
    """The runs of a table of schema `RUN`. Token arrays are copies, which do not hold the shard in memory.

    Raises `ValueError` where it is of another, or its values are none of a run.
    """
    _check_fields(pa.struct(list(table.schema)), pa.struct(list(RUN)), "run")
    _check_rows(table)
    calls = _calls(table.column("calls").combine_chunks().flatten())
    counts = table.column("calls").combine_chunks().value_lengths().to_pylist()
    return [
        Run(
            id=row["id"],
            system=row["system"],
            variant=row["variant"],
            item=_item(row["item"]),
            calls=tuple(next(calls) for _ in range(count)),
            statements=tuple(Statement(**statement) for statement in row["statements"]),
            labels=tuple(Label(**label) for label in row["labels"]),
            decisions=tuple(_decision(decision) for decision in row["decisions"]),
            decision_answers=tuple(_decision_answer(answer) for answer in row.get("decision_answers") or ()),
            final_answer=row["final_answer"],
            outcome=row["outcome"],
        )
        for row, count in zip(table.drop_columns(["calls"]).to_pylist(), counts, strict=True)
    ]


def as_stored(run: Run) -> Run:
    """The run as a store would give it back. Raises `RecordError` for one that cannot be stored."""
    return table_to_runs(pa.Table.from_batches([run_to_batch(run)]))[0]


def _plain(record: Any) -> Any:
    """A record as nested dictionaries. `dataclasses.asdict` would copy every array of the calls."""
    if dataclasses.is_dataclass(record):
        return {f.name: _plain(getattr(record, f.name)) for f in dataclasses.fields(record) if f.name != "calls"}
    return [_plain(entry) for entry in record] if isinstance(record, tuple) else record


def _call_row(call: Call) -> dict[str, Any]:
    row = {field.name: getattr(call, field.name) for field in CALL}
    for name, dtype in _ARRAYS.items():
        if row[name] is not None:
            row[name] = np.asarray(row[name], dtype=dtype)
    if call.top_logprobs is not None:
        row["top_logprobs"] = list(np.asarray(call.top_logprobs, dtype=np.float32))  # Arrow takes rows, not matrices
    for name in ("messages", "segments", "sampling", "usage"):
        row[name] = _plain(row[name])
    return row


def _calls(structs: Any) -> Iterator[Call]:
    """Calls of a struct array. The token arrays are cut out of Arrow's buffers: number by number would be slow."""
    arrays = {name: _cut(structs.field(name), dtype) for name, dtype in _ARRAYS.items()}
    arrays["top_logprobs"] = _cut_matrices(structs.field("top_logprobs"))
    # A shard may lack the columns of segments, reader and note: those of recorded/ have not all of them.
    rest = [field.name for field in structs.type if field.name not in arrays]
    rows = pa.StructArray.from_arrays([structs.field(name) for name in rest], names=rest).to_pylist()
    for row, *values in zip(rows, *arrays.values(), strict=True):
        row["messages"] = tuple(Message(**message) for message in row["messages"])
        row["tokens"] = tuple(row["tokens"])
        row["segments"] = tuple(Segment(**segment) for segment in row.get("segments") or ())
        row |= {name: row.get(name) or "" for name in ("reader", "note")}
        row["sampling"], row["usage"] = _sampling(row["sampling"]), Usage(**row["usage"])
        call = Call(**row, **dict(zip(arrays, values, strict=True)))
        _check_tokens(call)
        yield call


def _check_tokens(call: Call) -> None:
    """Raises `ValueError` where a call's segments are not of its tokens."""
    if not call.segments:
        return
    held = (call.tokens or None, call.logprobs, call.token_ids)
    tokens = max((len(one) for one in held if one is not None), default=call.segments[-1].end)
    try:
        check_segments(call.segments, tokens)
    except InvalidResponse as error:
        raise ValueError(f"call {call.id!r}: {error}") from error


def _cut(lists: Any, dtype: type[np.generic]) -> list[NDArray[Any] | None]:
    values = lists.values.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
    return [None if span is None else values[slice(*span)].copy() for span in _spans(lists)]


def _cut_matrices(lists: Any) -> list[NDArray[Any] | None]:
    """(T, k) for each list of T rows; the rows of one matrix are equally long, as they were written from one."""
    values = lists.values.values.to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    row_offsets = lists.values.offsets.to_numpy()
    matrices: list[NDArray[Any] | None] = []
    for span in _spans(lists):
        if span is None:
            matrices.append(None)
        else:
            start, stop = row_offsets[span[0]], row_offsets[span[1]]
            rows = span[1] - span[0]
            matrices.append(values[start:stop].reshape(rows, (stop - start) // max(rows, 1)).copy())
    return matrices


def _spans(lists: Any) -> Iterator[tuple[int, int] | None]:
    offsets = lists.offsets.to_pylist()
    for valid, start, stop in zip(lists.is_valid().to_pylist(), offsets[:-1], offsets[1:], strict=True):
        yield (start, stop) if valid else None


def _item(row: dict[str, Any]) -> Item:
    # A shard may lack the column of fields: not all of recorded/ have it.
    fields = {field["name"]: field["text"] for field in row.pop("fields", None) or ()}
    return Item(**{**row, "gold": tuple(row["gold"]), "choices": tuple(row["choices"])}, fields=fields)


def _sampling(row: dict[str, Any]) -> Sampling:
    return Sampling(**{**row, "stop": tuple(row.get("stop") or ()), "json_schema": row.get("json_schema") or ""})


def _decision(row: dict[str, Any]) -> Decision:
    values = {key: {pair["action"]: pair["value"] for pair in row[key]} for key in ("scores", "propensities")}
    return Decision(**{**row, **values})


def _decision_answer(row: dict[str, Any]) -> DecisionAnswer:
    return DecisionAnswer(**{**row, **{key: tuple(row[key]) for key in ("options", "probabilities")}})
