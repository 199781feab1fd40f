"""The run store: a folder of Parquet shards with one row for each run, readable by DuckDB, Polars and `datasets`.

A row holds nested lists of structs for the parts of the run. Only types that all three programs read are used. So a
dictionary is a list of (action, value), not an Arrow map.
"""

import dataclasses
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.activations import (
    STATES_PREFIX,
    STATES_SUFFIX,
    ActivationFile,
    Activations,
    Layout,
    activation_bytes,
    gather,
    layout_of,
    write_canaries,
)
from metaprobe.records.errors import DamagedShard, InvalidResponse, RecordError, StoreMismatch, Unwritable
from metaprobe.records.extras import require
from metaprobe.records.lines import check_unpacked, check_values
from metaprobe.records.reading import without_surrogates
from metaprobe.records.segments import check_segments
from metaprobe.records.types import (
    Call,
    Decision,
    DecisionAnswer,
    Hidden,
    Item,
    Label,
    Message,
    Run,
    Sampling,
    Segment,
    Statement,
    Usage,
)
from metaprobe.records.writing import OneWriter, atomic_write

pa = require("pyarrow", "fit")
pq = require("pyarrow.parquet", "fit")

STORE_FORMAT = "1"
"""Version of the format. It is raised when an older reader could no longer read the file."""
FORMAT_KEY = b"metaprobe.format"

_STRING, _STRINGS, _DOUBLE = pa.string(), pa.list_(pa.string()), pa.float64()
_INTS, _FLOATS = pa.list_(pa.int32()), pa.list_(pa.float32())


def _struct(strings: str, **others: Any) -> Any:
    return pa.struct({**dict.fromkeys(strings.split(), _STRING), **others})


_ACTION_VALUES = pa.list_(_struct("action", value=_DOUBLE))
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
CALL_TYPE = _struct(
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
_CALL_FIELDS = tuple(field.name for field in CALL_TYPE)
STATEMENT = _struct("call_id kind", value=_DOUBLE)
LABEL_TYPE = _struct("call_id name source", value=_DOUBLE)
DECISION_TYPE = _struct("id point action reason", scores=_ACTION_VALUES, propensities=_ACTION_VALUES)
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
        "calls": pa.list_(CALL_TYPE),
        "statements": pa.list_(STATEMENT),
        "labels": pa.list_(LABEL_TYPE),
        "decisions": pa.list_(DECISION_TYPE),
        "decision_answers": pa.list_(DECISION_ANSWER),
        "final_answer": _STRING,
        "outcome": _DOUBLE,
    },
    metadata={FORMAT_KEY: STORE_FORMAT},
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
"""Fields that may have no value: optional fields of `metaprobe.records.types`, and fields that older shards lack.

A program that joins old and new shards fills the latter with nulls.
"""


_UNSTORABLE = (pa.ArrowException, AttributeError, TypeError, ValueError, OverflowError)
"""Errors that are raised for an object that is no run, or has fields of wrong types."""


def runs_to_batch(runs: Sequence[Run]) -> Any:
    """Returns runs as a record batch with one row for each.

    Raises `RecordError`, which names the run, if a field has the wrong type.
    """
    try:
        batch = pa.RecordBatch.from_pylist([_run_row(run) for run in runs], schema=RUN)
        table_to_runs(pa.Table.from_batches([batch]))
        return batch
    except _UNSTORABLE:
        # One run cannot be stored as it is. Each is converted alone, which repairs it or names it.
        table = pa.Table.from_batches([run_to_batch(run) for run in runs])
        return table.combine_chunks().to_batches()[0]


def run_to_batch(run: Run) -> Any:
    """Returns a run as a record batch of one row. Raises `RecordError` if a field has the wrong type."""
    try:
        row = _run_row(run)
        try:
            batch = pa.RecordBatch.from_pylist([row], schema=RUN)
        except UnicodeEncodeError:  # half a surrogate pair in a broken token must not cost the run
            batch = pa.RecordBatch.from_pylist([without_surrogates(row)], schema=RUN)
        table_to_runs(pa.Table.from_batches([batch]))  # else it would make its whole shard unreadable
        return batch
    except _UNSTORABLE as error:
        raise RecordError(
            f"run {getattr(run, 'id', run)!r} cannot be stored: {error}; expected the types of metaprobe.records.types"
        ) from error


def _run_row(run: Run) -> dict[str, Any]:
    row: dict[str, Any] = _as_plain(run)
    row["calls"] = [_call_row(call) for call in run.calls]
    row["item"]["fields"] = [{"name": name, "text": text} for name, text in run.item.fields.items()]
    for decision in row["decisions"]:
        for key in ("scores", "propensities"):
            decision[key] = [{"action": action, "value": value} for action, value in decision[key].items()]
    return row


def _check_fields(schema: Any, expected: Any, name: str) -> None:
    """Raises `ValueError` if a type is not the expected one, or has unexpected fields; older shards may lack some
    fields.

    Args:
        schema: the type in the shard.
        expected: the type of this format.
        name: name of the field in errors.
    """
    if pa.types.is_struct(schema) and pa.types.is_struct(expected):
        for field in schema:
            if expected.get_field_index(field.name) < 0:
                raise ValueError(f"{name} has a field {field.name!r}, which it should not have")
            _check_fields(field.type, expected.field(field.name).type, f"{name}.{field.name}")
    elif pa.types.is_list(schema) and pa.types.is_list(expected):
        _check_fields(schema.value_type, expected.value_type, f"{name}[]")
    elif schema != expected:
        raise ValueError(f"{name} is of type {schema}; expected {expected}")


def _check_values(array: Any, name: str) -> None:
    """Raises `ValueError` if a value is missing that every run has."""
    if array.null_count and name not in _MAY_BE_NULL:
        raise ValueError(f"{name} has no value in {array.null_count} of {len(array)} places")
    if pa.types.is_struct(array.type):
        for field in array.type:
            _check_values(array.field(field.name), f"{name}.{field.name}")
    elif pa.types.is_list(array.type) and name != "run.calls[].logprobs" and not name.startswith("run.calls[].top"):
        _check_values(array.flatten(), f"{name}[]")


def table_to_runs(table: Any) -> list[Run]:
    """Returns the runs of a table of schema `RUN`. Token arrays are copies, so that the shard does not stay in memory.

    Raises `ValueError` if the table has another schema, or its values do not make a run.
    """
    if not table.schema.equals(RUN):
        _check_fields(pa.struct(list(table.schema)), pa.struct(list(RUN)), "run")
    for name in table.schema.names:
        _check_values(table.column(name).combine_chunks(), f"run.{name}")
    call_lists = table.column("calls").combine_chunks()
    calls, counts = _calls(call_lists.flatten()), call_lists.value_lengths().to_pylist()
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
            decision_answers=tuple(
                DecisionAnswer(**answer | {key: tuple(answer[key]) for key in ("options", "probabilities")})
                for answer in row.get("decision_answers") or ()
            ),
            final_answer=row["final_answer"],
            outcome=row["outcome"],
        )
        for row, count in zip(table.drop_columns(["calls"]).to_pylist(), counts, strict=True)
    ]


def as_stored(run: Run) -> Run:
    """Returns the run as a store would return it. Raises `RecordError` if it cannot be stored."""
    return table_to_runs(pa.Table.from_batches([run_to_batch(run)]))[0]


def _as_plain(record: Any) -> Any:
    """Returns a record as nested dictionaries. `dataclasses.asdict` would copy every array of the calls."""
    names = _names_of_fields(record.__class__)
    if names is not None:
        return {name: _as_plain(getattr(record, name)) for name in names}
    return [_as_plain(entry) for entry in record] if isinstance(record, tuple) else record


@cache  # `dataclasses.fields` takes longer than to read the fields
def _names_of_fields(kind: type) -> tuple[str, ...] | None:
    """Returns the names of a record's fields, without its calls; None for a class that is no dataclass."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind) if field.name != "calls")


def _call_row(call: Call) -> dict[str, Any]:
    row = {name: getattr(call, name) for name in _CALL_FIELDS}
    for name, dtype in _ARRAYS.items():
        if row[name] is not None:
            row[name] = np.asarray(row[name], dtype=dtype)
    if call.top_logprobs is not None:
        row["top_logprobs"] = list(np.asarray(call.top_logprobs, dtype=np.float32))  # Arrow takes rows, not matrices
    for name in ("messages", "segments", "sampling", "usage"):
        row[name] = _as_plain(row[name])
    return row


def _calls(structs: Any) -> Iterator[Call]:
    """Yields the calls of a struct array. Token arrays are cut from Arrow's buffers, because reading single numbers is
    slow.

    Raises `ValueError` if a call's segments do not fit its tokens.
    """
    arrays = {name: _token_arrays(structs.field(name), dtype) for name, dtype in _ARRAYS.items()}
    arrays["top_logprobs"] = _token_matrices(structs.field("top_logprobs"))
    # A shard may lack the columns of segments, reader and note: those of recorded/ have not all of them.
    other_names = [field.name for field in structs.type if field.name not in arrays]
    rows = pa.StructArray.from_arrays([structs.field(name) for name in other_names], names=other_names).to_pylist()
    for row, *values in zip(rows, *arrays.values(), strict=True):
        row["messages"] = tuple(Message(**message) for message in row["messages"])
        row["tokens"] = tuple(row["tokens"])
        row["segments"] = tuple(Segment(**segment) for segment in row.get("segments") or ())
        row |= {name: row.get(name) or "" for name in ("reader", "note")}
        sampling_fields = row["sampling"]
        sampling_fields |= {
            "stop": tuple(sampling_fields.get("stop") or ()),
            "json_schema": sampling_fields.get("json_schema") or "",
        }
        row["sampling"], row["usage"] = Sampling(**sampling_fields), Usage(**row["usage"])
        call = Call(**row, **dict(zip(arrays, values, strict=True)))
        if call.segments:
            token_arrays = (call.tokens or None, call.logprobs, call.token_ids)
            token_count = max(
                (len(array) for array in token_arrays if array is not None), default=call.segments[-1].end
            )
            try:
                check_segments(call.segments, token_count)
            except InvalidResponse as error:
                raise ValueError(f"call {call.id!r}: {error}") from error
        yield call


def _token_arrays(lists: Any, dtype: type[np.generic]) -> list[NDArray[Any] | None]:
    values = lists.values.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
    return [None if span is None else values[slice(*span)].copy() for span in _spans(lists)]


def _token_matrices(lists: Any) -> list[NDArray[Any] | None]:
    """Returns a matrix (T, k) for each list of T rows. The rows of a matrix have equal lengths, as they
    were written.
    """
    values = lists.values.values.to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    row_offsets = lists.values.offsets.to_numpy()
    matrices: list[NDArray[Any] | None] = []
    for span in _spans(lists):
        if span is None:
            matrices.append(None)
            continue
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


def _decision(row: dict[str, Any]) -> Decision:
    values = {key: {pair["action"]: pair["value"] for pair in row[key]} for key in ("scores", "propensities")}
    return Decision(**{**row, **values})


_SHARD = re.compile(r"runs-(\d{5,})-[0-9a-f]{8}\.parquet")


def shard_paths(folder: Path) -> list[Path]:
    """Returns the shards of a folder, oldest first, without other files and leftovers of a kill."""
    numbered = [(int(match[1]), path.name, path) for path in folder.iterdir() if (match := _SHARD.fullmatch(path.name))]
    return [path for _, _, path in sorted(numbered)]


def write_shard(path: Path, batches: Sequence[Any]) -> None:
    """Writes these rows as a shard, completely or not at all. It replaces a shard with this name."""
    with atomic_write(path) as file:
        table = pa.Table.from_batches(batches).combine_chunks()
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)


class RunWriter:
    """Collects runs, and writes a shard for every `shard_runs` runs and at the end of the `with` block.

    The block may end in an exception or Ctrl-C: the runs that were added are written too. Threads may share a writer.
    No other process can write into the folder during the block: `StoreHeld` names the process that already writes.
    """

    def __init__(
        self, folder: Path, layout: Layout | None, *, shard_runs: int, text: bool, writer_lock: OneWriter | None = None
    ) -> None:
        """Sets up the writer; the folder is locked when the block begins.

        Args:
            folder: folder of the store.
            layout: layout of the hidden states in the store; None if there are none.
            shard_runs: runs in one shard, at least 1.
            text: whether texts are stored.
            writer_lock: the lock of the folder, if the caller has one already.
        """
        if shard_runs < 1:
            raise ValueError(f"shard_runs is {shard_runs}; expected at least 1")
        self._folder = folder
        self._layout = layout
        self._shard_runs = shard_runs
        self._text = text
        self._writer_lock = writer_lock or OneWriter(folder)
        self._path: Path | None = None
        self._batches: list[Any] = []
        self._hidden: dict[str, Hidden] = {}
        self._lock = Lock()
        self._closed = False

    def __enter__(self) -> Self:
        self._writer_lock.__enter__()
        for leftover in self._folder.glob(".runs-*.tmp"):  # left by a killed process
            leftover.unlink(missing_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = True
        try:
            self.flush()
        finally:
            self._writer_lock.__exit__(kind, error, traceback)

    def add(self, run: Run) -> None:
        """Adds one run. Raises `RecordError` if the run cannot be stored; the other runs are not affected.

        Raises `Unwritable` if the run completes a shard that cannot be written, as on a full disk. The exit of the
        `with` block tries to write the shard again.
        """
        self._buffer([run], run_to_batch(run if self._text else drop_text(run)))

    def add_all(self, runs: Iterable[Run]) -> None:
        """Adds runs, all or none, in a fraction of the time of `add` for each. Raises as `add`."""
        runs = list(runs)
        if runs:
            self._buffer(runs, runs_to_batch(runs if self._text else [drop_text(run) for run in runs]))

    def _buffer(self, runs: Sequence[Run], batch: Any) -> None:
        if self._closed:
            raise RecordError(f"run {runs[0].id!r} came after the writer was closed; add runs inside the `with` block")
        with self._lock:
            layout = self._layout
            hidden = [(call.id, call.hidden) for run in runs for call in run.calls if call.hidden is not None]
            for call_id, states in hidden:
                layout_of_call = layout_of(states, call_id)
                layout = layout or layout_of_call
                if layout_of_call != layout:
                    raise StoreMismatch(
                        f"call {call_id!r} has hidden states of {layout_of_call}; the store holds {layout}: put them"
                        " into a store of their own"
                    )
            self._layout = layout
            for call_id, states in hidden:
                self._hidden.setdefault(call_id, states)  # a call that comes twice: the first one, as everywhere
            self._batches.append(batch)
            if self._buffered_run_count() >= self._shard_runs:
                self._write_shard()

    def _buffered_run_count(self) -> int:
        return sum(batch.num_rows for batch in self._batches)

    def flush(self) -> None:
        """Writes the runs that are not yet on the disk as a shard of their own."""
        with self._lock:
            if self._batches:
                self._write_shard()

    def _write_shard(self) -> None:
        try:
            # The name stays until the shard is written: a second write replaces an interrupted one, so that no run is
            # stored twice.
            if self._path is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                newest = shard_paths(self._folder)[-1:]
                shard_number = int(newest[0].name.split("-")[1]) + 1 if newest else 0
                # The count sorts shards by time; the random part keeps writers apart where no folder can be locked.
                self._path = self._folder / f"runs-{shard_number:05d}-{secrets.token_hex(4)}.parquet"
            path = self._path
            if self._hidden:
                write_canaries(self._folder, self._hidden.values())
                with atomic_write(path.with_suffix(STATES_SUFFIX)) as file:
                    file.write(activation_bytes(self._hidden))
            write_shard(path, self._batches)
        except OSError as error:
            raise Unwritable(
                f"{self._buffered_run_count()} runs cannot be written to {self._folder}: {error.strerror or error}"
            ) from error
        self._path, self._batches, self._hidden = None, [], {}


def drop_text(run: Run) -> Run:
    """Returns the run without any text. Log-probabilities, labels, stated values and ids stay."""
    item = replace(run.item, question="", gold=(), choices=(), fields={})
    dropped_fields: dict[str, Any] = {
        "text": "",
        "tokens": (),
        "messages": (),
        "prompt_token_ids": None,
        "token_ids": None,
    }
    # Servers repeat the prompt in their errors. So the error's text is dropped, and only the fact of an error is kept.
    calls = (replace(call, **dropped_fields, error=None if call.error is None else "left out") for call in run.calls)
    return replace(run, item=item, calls=tuple(calls), final_answer="")


class RunStore:
    """Runs on disk. If a run was stored twice by accident, only the first copy is read.

    Runs are only added, and answers never change; their labels may (`rewrite`). One process may write at a time. Any
    number of processes may read meanwhile: they see complete shards, and each run once.

        >>> from metaprobe.records.types import Call, Item, Run
        >>> store = RunStore("my-runs")
        >>> store.append([Run("r1", "mine", "", Item("q1", "What is 2 + 2?"), (Call(id="c1", text="4"),))])
        >>> [run.calls[0].text for run in store]
        ['4']
    """

    settings_name = "collection.json"
    """Name of the file in a store that records how its runs were collected."""
    failures_name = "failed.jsonl"
    """Name of the file in a store that lists the runs which failed, and why."""

    def __init__(self, path: str | Path, *, damaged: Literal["raise", "skip"] = "raise") -> None:
        """With `damaged="skip"` unreadable files are skipped, and their names are collected in `damaged`."""
        self.path = Path(path)
        self.damaged: list[str] = []
        self._skip = damaged == "skip"
        self._writer_lock = OneWriter(self.path)

    def __repr__(self) -> str:
        return f"RunStore({str(self.path)!r})"

    def settings(self) -> dict[str, Any] | None:
        """Returns the settings with which the runs were collected; None if the store does not record them.

        Raises `StoreMismatch` if the file of the settings is damaged.
        """
        path = self.path / self.settings_name
        if not path.is_file():
            return None
        try:
            settings = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, RecursionError) as error:
            raise StoreMismatch(
                f"{path} is damaged ({error}), so it is not known what was collected here: collect into another folder"
            ) from error
        return settings

    def check_settings(self, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
        """Returns whether the store records settings.

        Raises `StoreMismatch` if a recorded setting differs. Also raises it if the store holds runs, or a list of
        failed runs, and records no settings: they would be taken for runs of this collection.

        Args:
            settings: the settings of this collection.
            defaults: values of settings that older stores do not record, where the value was not None.
        """
        recorded = self.settings()
        if (
            recorded is None
            and self.path.is_dir()
            and (stored_files := [*self.shard_files()[:1], *self.path.glob(self.failures_name)])
        ):
            raise StoreMismatch(
                f"{self.path} holds {stored_files[0].name} and no {self.settings_name}, so it is not known with what "
                "it was collected: collect into another folder"
            )
        recorded_or_default = {**defaults, **(recorded or {})}
        if recorded is not None and (
            changed := [key for key in settings if recorded_or_default.get(key) != settings[key]]
        ):
            changes_text = ", ".join(
                f"{key} {recorded_or_default.get(key)!r}, now {settings[key]!r}" for key in changed
            )
            raise StoreMismatch(
                f"{self.path} was collected with {changes_text}: collect into another folder, or delete this one"
            )
        return recorded is not None

    def __iter__(self) -> Iterator[Run]:
        return self.runs()

    def __len__(self) -> int:
        """Returns the number of different runs in the store."""
        return len(self.run_ids())

    def runs(self, *, hidden: bool = False) -> Iterator[Run]:
        """Yields every run once, oldest shard first, with one shard in memory at a time.

        With `hidden=True`, `Call.hidden` holds the states that were stored while the call was answered. `activations`
        reads states that were extracted afterwards.
        """
        seen_ids: set[str] = set()
        for shard in self.shards():
            states: dict[str, Hidden] = {}
            for file in self._activation_files([shard]) if hidden else ():
                states_of_shard = gather([file])
                for call_id, values in zip(states_of_shard.call_ids, states_of_shard.values, strict=True):
                    states[call_id] = Hidden(
                        values, states_of_shard.layers, states_of_shard.positions, canaries=file.canaries
                    )
            for run in self.runs_of(shard):
                if run.id in seen_ids:
                    continue
                seen_ids.add(run.id)
                if hidden:
                    calls = (replace(call, hidden=states.get(call.id)) for call in run.calls)
                    run = replace(run, calls=tuple(calls))
                yield run

    def runs_of(self, shard: Path) -> list[Run]:
        """Returns the runs of one shard, in order; none for a damaged shard that is skipped."""
        runs: list[Run] = []
        with self._guard(shard):
            runs.extend(table_to_runs(self._read_shard(shard)))
        return runs

    def run_ids(self) -> set[str]:
        """Returns the ids of the stored runs; none if the folder is empty or does not exist yet."""
        return set(self.shards_of_runs())

    def shards_of_runs(self) -> dict[str, Path]:
        """Returns the file of each stored run, by id; empty if the folder is empty or does not exist yet."""
        shards: dict[str, Path] = {}
        for shard in self.shard_files():
            with self._guard(shard):
                for run_id in self._read_shard(shard, columns=["id"]).column("id").to_pylist():
                    shards.setdefault(run_id, shard)
        return shards

    def shards(self) -> list[Path]:
        """Returns the Parquet files, oldest first. Raises `RecordError` if there is no store to read."""
        if not self.path.exists():
            raise RecordError(
                f"{self.path}: there is no such folder; expected a run store, as `metaprobe collect` makes it"
            )
        shards = self.shard_files()
        if not shards:
            raise RecordError(
                f"{self.path} is no run store, or nothing was collected into it yet: it holds no runs-*.parquet"
            )
        return shards

    def activations(
        self,
        call_ids: Sequence[str] | None = None,
        *,
        layers: Sequence[int] | None = None,
        positions: Sequence[str] | None = None,
        model: str | None = None,
    ) -> Activations:
        """Returns the hidden states of the given calls in the given order.

        The states were stored while answering, or extracted afterwards. A store may hold several kinds of states with
        other layers or positions. The kind that holds everything requested is read, so name layers and positions.
        Raises `RecordError` with the calls, layers or positions that are not stored, and `StoreMismatch` if several
        kinds would give different states.

        Args:
            call_ids: calls to read; by default all.
            layers: layers to read; by default all.
            positions: token positions to read; by default all.
            model: model that read the states, "" for the model that answered. It is needed only if `extract
                --other-model` read the same calls again.
        """
        files = self._activation_files(self.shards(), extracted=True)
        return gather(files, call_ids, layers=layers, positions=positions, model=model)

    def activation_files(self) -> list[ActivationFile]:
        """Returns the headers of all files of hidden states, those stored while answering first."""
        return list(self._activation_files(self.shards(), extracted=True))

    def alone(self) -> OneWriter:
        """Returns a lock for a `with` block in which only this object writes into the folder.

        The folder is made if it does not exist. Raises `StoreHeld` if another process writes.
        """
        return self._writer_lock

    def writer(self, *, shard_runs: int = 64, text: bool = True) -> RunWriter:
        """Returns a writer that adds runs in a `with` block.

        Ids and groups are always stored, so they should hold nothing private.

        Args:
            shard_runs: runs in one shard.
            text: whether to store texts, tokens, token ids, messages, questions, choices and accepted answers.
        """
        newest = next(self._activation_files(self.shard_files()[::-1]), None)
        layout = newest.layout if newest else None
        return RunWriter(self.path, layout, shard_runs=shard_runs, text=text, writer_lock=self._writer_lock)

    def append(self, runs: Iterable[Run]) -> None:
        """Adds runs as one shard: all of them, or none if one of them cannot be stored."""
        runs = list(runs)
        writer = self.writer(shard_runs=len(runs) + 1)
        writer.add_all(runs)
        with self._writer_lock:
            writer.flush()

    def rewrite(self, change: Callable[[Run], Run | None], shards: Container[Path] | None = None) -> None:
        """Replaces each run, or each run in `shards`, by `change(run)`, which has the same ids and no hidden states.

        If `change` returns None, the run is removed; its hidden states are not. A shard is rewritten, completely or not
        at all, if `change` returned another object for one of its runs. Other processes may read meanwhile, but not
        write.
        """
        self.shards()  # raises if there is no store, before the lock would make its folder
        with self._writer_lock:
            for shard in self.shards():
                if shards is not None and shard not in shards:
                    continue
                runs = self.runs_of(shard)
                changed = [change(run) for run in runs]
                if not any(changed_run is not run for changed_run, run in zip(changed, runs, strict=True)):
                    continue
                if remaining_runs := [run for run in changed if run is not None]:
                    write_shard(shard, [runs_to_batch(remaining_runs)])
                else:
                    shard.unlink()

    def take_back(self, before: Container[Path]) -> None:
        """Removes all shards that are not in `before`, with their hidden states."""
        with self._writer_lock:
            for shard in self.shard_files():
                if shard not in before:
                    shard.unlink()
                    shard.with_suffix(STATES_SUFFIX).unlink(missing_ok=True)

    def shard_files(self) -> list[Path]:
        if self.path.exists() and not self.path.is_dir():
            raise RecordError(f"{self.path} is a file; expected the folder of a run store")
        return shard_paths(self.path) if self.path.exists() else []

    def _read_shard(self, shard: Path, columns: list[str] | None = None) -> Any:
        if not shard.is_file():
            raise ValueError("it is no regular file")  # reading a pipe would wait
        with pq.ParquetFile(shard, page_checksum_verification=True) as file:
            version = (file.schema_arrow.metadata or {}).get(FORMAT_KEY)
            if version is None:
                raise StoreMismatch(
                    f"{shard} is no shard of a run store (no {FORMAT_KEY.decode()} in it); move it elsewhere"
                )
            if version != STORE_FORMAT.encode():
                raise StoreMismatch(
                    f"{shard} has format {version.decode(errors='replace')}, this metaprobe reads {STORE_FORMAT}; "
                    "install a newer one"
                )
            size = shard.stat().st_size
            check_values(file.metadata, size)
            batches, bytes_read = [], 0
            for batch in file.iter_batches(32, columns=columns, use_threads=False):
                batches.append(batch)
                bytes_read += batch.nbytes
                check_unpacked(bytes_read, size)
            table = pa.Table.from_batches(batches) if batches else file.read(columns=columns)
            table.validate(full=True)  # texts that are no UTF-8
            return table

    def _activation_files(self, shards: Iterable[Path], *, extracted: bool = False) -> Iterator[ActivationFile]:
        paths = [path for shard in shards if (path := shard.with_suffix(STATES_SUFFIX)).exists()]
        for path in [*paths, *(sorted(self.path.glob(f"{STATES_PREFIX}*{STATES_SUFFIX}")) if extracted else ())]:
            file = None
            with self._guard(path):
                file = ActivationFile(path)
            if file is not None:
                yield file

    @contextmanager
    def _guard(self, path: Path) -> Iterator[None]:
        """Converts library errors about a broken file to `DamagedShard`, or notes the file and continues."""
        file_errors = (pa.ArrowException, OSError, ValueError, KeyError, require("safetensors", "fit").SafetensorError)
        try:
            yield
        except (RecordError, PermissionError):
            raise
        except file_errors as error:
            if self._skip:
                if path.name not in self.damaged:
                    self.damaged.append(path.name)
                return
            other_shards = len(self.shard_files()) - (path.suffix != STATES_SUFFIX)
            command = "extract" if path.name.startswith(STATES_PREFIX) else "collect"
            raise DamagedShard(
                f"{path} is damaged ({str(error).strip() or type(error).__name__}); restore it from a copy, or delete"
                f" it and {command} again what it held; the other {other_shards} shards are not touched by this:"
                " RunStore(path, damaged='skip') reads them"
            ) from error


def fingerprint(runs: Iterable[Run]) -> str:
    """Returns a SHA-256 (hex) of ids, groups, log-probabilities, labels and statements of runs or of a run store.

    The order of runs and shards does not matter. Texts do not matter either, so a store without texts has the same
    fingerprint.
    """
    digests = sorted((run.id, _digest(run)) for run in runs)
    return hashlib.sha256(b"".join(digest for _, digest in digests)).hexdigest()


def _digest(run: Run) -> bytes:
    """Returns the digest of a run. Each value has its length before it, so that no two runs hash the same bytes."""
    facts = [
        [run.id, run.item.id, run.item.group],
        [[call.id, -1 if call.logprobs is None else len(call.logprobs)] for call in run.calls],
        [[label.call_id, label.name, float(label.value), label.source] for label in run.labels],
        [[s.call_id, s.kind, None if s.value is None else float(s.value)] for s in run.statements],
    ]
    if any(call.segments for call in run.calls):  # so that runs without them have the fingerprint that they always had
        facts.append([[[s.kind, s.start, s.end] for s in call.segments] for call in run.calls])
    if readers := [call.reader for call in run.calls if call.reader]:
        facts.append(readers)
    if run.decision_answers:
        facts.append([dataclasses.astuple(answer) for answer in run.decision_answers])
    content = json.dumps(facts).encode()
    digest = hashlib.sha256(len(content).to_bytes(8, "little") + content)
    for call in run.calls:
        if call.logprobs is not None:
            digest.update(np.ascontiguousarray(call.logprobs, dtype="<f4").tobytes())
    return digest.digest()
