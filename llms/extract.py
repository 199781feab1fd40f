"""Reads recorded calls again, in any number of processes: their hidden states, or another model's log-probabilities.

Hidden states are read one chunk of calls at a time, and stored beside the runs. Another model's log-probabilities of
recorded answers go from one run store into another.
"""

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from metaprobe.llms.call_selection import CallSelection
from metaprobe.llms.hidden_capture import chosen_layers
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import (
    CallReader,
    Reading,
    Readings,
    ReadStates,
    StateReplay,
    read_answers,
    reader_name,
    without_readings,
)
from metaprobe.llms.states_check import check_version, checked_engine
from metaprobe.llms.vllm_states import EngineReplay, StatesEngine
from metaprobe.records.activations import STATES_PREFIX, STATES_SUFFIX, activation_bytes, write_canaries
from metaprobe.records.canaries import CanaryStates, compare_canaries
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.extras import require
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Run
from metaprobe.records.writing import atomic_write

CALLS_PER_CHUNK = 64
"""Number of calls whose states are in memory at once, and in one file."""
CHECKED_CALLS = 4
"""Number of calls whose log-probabilities are compared with the recorded ones before an extraction."""
REREAD_TOLERANCE = 0.2
"""Largest mean absolute difference between recorded and recomputed log-probabilities over the checked calls, in nats a
token.

SmolLM2-135M in bfloat16 differs by 0.02 to 0.03 from what it recorded in other batches; with another chat template it
differs by 1.3 to 1.8.
"""
MAX_WAIT = timedelta(days=30)
"""How long a process waits for the others, which may have longer calls to read."""


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the work for this process: chunks `index`, `index + count`, ..."""

    index: int = 0
    count: int = 1
    wait: Callable[[], None] = lambda: None
    """Returns when every process has reached this point."""


@dataclass(frozen=True, slots=True)
class ExtractReport:
    """Result of an extraction."""

    calls: int
    """Number of calls that were read now."""
    tokens: int
    """Number of tokens in the prompts and answers of these calls."""
    stored_before: int
    """Number of calls that already had the states, and were not read again."""
    failed_calls: int
    """Number of calls that had ended in an error, so that there is nothing to read."""
    rebuilt: int
    """Number of calls read without recorded token ids: chat template and tokenizer made the ids from
    messages and text.
    """
    without_exact: int
    """Number of calls read whose answer does not hold the run's final answer.

    For these calls `before_exact` and `exact_last` are `answer_last`, and `exact_mean` is `answer_mean`.
    """
    disagreement: float | None
    """Mean absolute difference from the recorded log-probabilities of a few calls, in nats a token; None if none are
    recorded.
    """

    def __add__(self, other: "ExtractReport") -> "ExtractReport":
        """Returns the joint report of two processes, or two chunks, of one extraction."""
        return replace(
            self,
            calls=self.calls + other.calls,
            tokens=self.tokens + other.tokens,
            rebuilt=self.rebuilt + other.rebuilt,
            without_exact=self.without_exact + other.without_exact,
        )


@dataclass(frozen=True, slots=True)
class ExtractionWatch:
    """Callbacks that report the progress of an extraction in this process."""

    on_total: Callable[[int], None] = lambda count: None
    """Called once with the number of calls (or runs) to read."""
    on_chunk: Callable[[int, int], None] = lambda count, tokens: None
    """Called for every stored chunk with its number of calls (or runs) and tokens."""


UNWATCHED = ExtractionWatch()


def extract(
    store: RunStore,
    llm: LocalLLM | StatesEngine,
    *,
    layers: str = "all",
    positions: Sequence[str] | None = None,
    stage: str | None = None,
    agent: str | None = None,
    batch_size: int = 32,
    shard_calls: int = CALLS_PER_CHUNK,
    other_model: bool = False,
    share: Share = Share(),
    watch: ExtractionWatch = UNWATCHED,
) -> ExtractReport:
    """Reads the calls of a store that lack these states, and stores the states beside the runs, as float16.

    A chunk is `shard_calls` calls in the store's order, for any number of processes. Each chunk is a file that appears
    complete, with the same content from any process. A call that already has the requested states is skipped, so a
    killed extraction can continue.

    Raises `RecordError` before anything is read if a call cannot be read, if no call is selected, or if the calls are
    of another model. It is also raised if the model's log-probabilities differ from the recorded ones, and before a
    chunk is written that holds a state which is NaN or infinite.

    Args:
        store: the run store.
        llm: the model that reads.
        layers: layers to keep, see `Readings`.
        positions: token positions to keep, see `Readings`.
        stage: stage of the calls; by default any.
        agent: agent of the calls; by default any.
        batch_size: calls read at once.
        shard_calls: calls in one file.
        other_model: whether to read calls of any model, as text.
        share: this process's part of the work.
        watch: callbacks that report progress.
    """
    if min(batch_size, shard_calls) < 1:
        raise RecordError(f"batch size {batch_size}, {shard_calls} calls a file: expected at least 1")
    replay: Readings
    if isinstance(llm, LocalLLM):
        replay = StateReplay(llm, layers=layers, positions=positions)
    elif chosen_layers(layers, llm.config) != llm.layers:
        raise RecordError(f"layers {layers!r}: the engine was loaded for {list(llm.layers)}; ask for these")
    else:
        replay = EngineReplay(llm, positions=positions)
    model = f"{llm.name}@{llm.revision}" if other_model else ""
    stored = {
        call_id
        for file in store.activation_files()
        if {*replay.layers, *replay.positions} <= {*file.layout.layers, *file.layout.positions} and file.model == model
        for call_id in file.call_ids
    }
    selection = CallSelection(stage, agent, stored)
    ids_to_read, sample = _plan(store, llm, replay, selection, other_model, shard_calls)
    disagreement = _check_model(replay, llm, sample, other_model)
    canaries = replay.canaries() if ids_to_read else None
    share.wait()  # nobody writes before everybody has seen what is there: else the chunks would differ
    chunk_begins = range(
        share.index * shard_calls, len(ids_to_read), share.count * shard_calls
    )  # of this process's chunks
    watch.on_total(sum(min(shard_calls, len(ids_to_read) - chunk_begin) for chunk_begin in chunk_begins))
    report = ExtractReport(0, 0, len(selection.stored), selection.failed, 0, 0, disagreement)
    written: list[Path] = []
    request = _digest(replay.layers, replay.positions, llm.name, llm.revision, llm.dtype, model)
    for readings in _chunks(_delayed_readings(store, llm, replay, ids_to_read), shard_calls, share):
        states = dict(zip((r.call_id for r in readings), replay.read(readings, batch_size=batch_size), strict=True))
        _check_finite(states, llm)
        hidden = {call_id: replace(states_read.hidden, canaries=canaries) for call_id, states_read in states.items()}
        write_canaries(store.path, hidden.values())
        path = store.path / f"{STATES_PREFIX}{request}-{_digest(list(states))}{STATES_SUFFIX}"
        with atomic_write(path) as file:
            file.write(activation_bytes(hidden, model=model))
        written.append(path)
        tokens = sum(r.tokens for r in readings)
        rebuilt, without_exact = sum(r.rebuilt for r in readings), sum(not len(r.exact_at) for r in readings)
        report += ExtractReport(len(readings), tokens, 0, 0, rebuilt, without_exact, None)
        watch.on_chunk(len(readings), tokens)
    if canaries is not None and written:
        _check_unchanged(replay, canaries, written)
    share.wait()
    return report


def _check_unchanged(replay: Readings, before: CanaryStates, written: Sequence[Path]) -> None:
    """Raises `RecordError`, and removes the files written, if the reader no longer gives the canaries' states that it
    gave before it read the calls."""
    after = replay.canaries()
    checked = None if after is None else compare_canaries(before, after, before.layers)
    if checked is not None and checked.passed:
        return
    for path in written:
        path.unlink(missing_ok=True)
    reason = "it no longer reads the canaries" if checked is None else checked.reason
    raise RecordError(
        f"the reader changed while it read the calls, and its {len(written)} files of states were removed: {reason}"
    )


def _check_model(replay: Readings, llm: CallReader, sample: Sequence[Reading], other_model: bool) -> float | None:
    """Returns how far the model's log-probabilities are from the recorded ones, in nats a token; None without recorded
    ones.

    Raises `RecordError` if they are not finite. Raises `StoreMismatch` if they do not belong to the model that
    answered, unless `other_model`.

    Args:
        replay: reads the calls.
        llm: the model.
        sample: calls to check.
        other_model: whether another model may read the calls.
    """
    disagreement = replay.disagreement(sample)
    if disagreement is not None and math.isnan(disagreement):
        raise RecordError(f"{llm.name} gives log-probabilities that are no numbers: {_remedy(llm)}")
    if disagreement is not None and disagreement > REREAD_TOLERANCE and not other_model:
        raise StoreMismatch(
            f"{llm.name} gives the recorded tokens other log-probabilities: {disagreement:.2f} nats a token off, where "
            f"{REREAD_TOLERANCE} is the most that rounding explains. Weights, tokenizer or chat template are not those "
            "that answered: load these, or read the calls as another model would with --other-model"
        )
    return disagreement


def launch_extract(
    runs: Path,
    model: str,
    *,
    via: Literal["transformers", "vllm"] = "transformers",
    layers: str = "all",
    watch: ExtractionWatch = UNWATCHED,
    **options: object,
) -> tuple[ExtractReport | None, int]:
    """Runs `extract` by names, in each process that `accelerate launch` or `torchrun` started.

    Returns the report of all processes, and the number of processes. Only the first process gets the report; the others
    get None.

    Args:
        runs: folder of the run store.
        model: name of the model.
        via: `transformers`, or `vllm` for vLLM's engine, which shares the work among its own processes.
        layers: layers to keep.
        watch: callbacks that report progress.
        **options: other options of `extract`.
    """
    if via == "vllm":
        engine = checked_engine(model, layers)
        return extract(RunStore(runs), engine, layers=layers, watch=watch, **options), 1  # type: ignore[arg-type]
    torch = require("torch", "train")
    accelerate = require("accelerate", "train")
    state = accelerate.PartialState(cpu=not torch.cuda.is_available(), timeout=MAX_WAIT)
    try:
        share = Share(state.process_index, state.num_processes, state.wait_for_everyone)
        llm = LocalLLM.load(model, device=str(state.device))
        check_version(llm)
        report = extract(RunStore(runs), llm, layers=layers, share=share, watch=watch, **options)  # type: ignore[arg-type]
        reports = accelerate.utils.gather_object([report])
    finally:
        state.destroy_process_group()
    return (sum(reports[1:], start=reports[0]) if share.index == 0 else None), share.count


def _plan(
    store: RunStore, llm: CallReader, replay: Readings, selection: CallSelection, other_model: bool, calls_per_file: int
) -> tuple[set[str], list[Reading]]:
    """Returns the ids of the calls to read, and a few calls for a check of the model.

    Every call is inspected first, so that unreadable calls are reported before hours of work.

    Args:
        store: the run store.
        llm: the model.
        replay: reads the calls.
        selection: selects the calls.
        other_model: whether calls of any model are read.
        calls_per_file: number of calls in one file.
    """
    ids_to_read: set[str] = set()
    sample: list[Reading] = []
    count_by_other_model: Counter[str] = Counter()
    for run, call in _calls(store):
        if not selection.takes(call) or call.id in ids_to_read:
            continue
        if other_model_name := _other_model_of(call, llm):
            count_by_other_model[other_model_name] += 1
        if not count_by_other_model or other_model:
            reading = replay.reading(_as_shown(call, llm), run.final_answer)
            ids_to_read.add(call.id)
            if len(sample) < calls_per_file and reading.logprobs is not None:
                sample.append(reading)
    if count_by_other_model and not other_model:
        raise StoreMismatch(
            f"{', '.join(f'{count} calls are of {name}' for name, count in count_by_other_model.items())}; loaded is "
            f"{llm.name} ({llm.revision}): load the model that answered, choose its calls by stage or agent, or read "
            f"them all the same with --other-model"
        )
    if not ids_to_read and not selection.stored:
        raise selection.nothing()
    sample.sort(key=lambda r: (-len(r.answer), r.call_id))
    return ids_to_read, sample[:CHECKED_CALLS]


def _other_model_of(call: Call, llm: CallReader) -> str:
    """Returns the call's model if it is known to differ from the loaded one, else an empty text."""
    if call.model and call.model != llm.name:
        return call.model
    unknown_names = ("", "unknown")
    if (
        call.model_revision not in unknown_names
        and llm.revision not in unknown_names
        and call.model_revision != llm.revision
    ):
        return f"{call.model} ({call.model_revision})"
    return ""


def _as_shown(call: Call, llm: CallReader) -> Call:
    """Returns a call of another model as text alone, because token ids of its tokenizer mean other words here."""
    is_own_call = call.reader == reader_name(llm.name, llm.revision) or not _other_model_of(call, llm)
    return call if is_own_call else without_readings(call, "")


def _calls(store: RunStore) -> Iterator[tuple[Run, Call]]:
    return ((run, call) for run in store.runs() for call in run.calls)


def _delayed_readings(
    store: RunStore, llm: CallReader, replay: Readings, ids_to_read: set[str]
) -> Iterator[Callable[[], Reading]]:
    """Yields a function for each call to read. The function makes the token ids, so only the reading process does this
    work.

    Args:
        store: the run store.
        llm: the model.
        replay: reads the calls.
        ids_to_read: ids of the calls to read.
    """
    remaining_ids = set(ids_to_read)
    for run, call in _calls(store):
        if call.id in remaining_ids:
            remaining_ids.remove(call.id)
            yield partial(replay.reading, _as_shown(call, llm), run.final_answer)


def _chunks(readings: Iterator[Callable[[], Reading]], calls_per_file: int, share: Share) -> Iterator[list[Reading]]:
    for chunk_number in itertools.count():
        chunk = list(itertools.islice(readings, calls_per_file))
        if not chunk:
            return
        if chunk_number % share.count == share.index:
            yield sorted((reading() for reading in chunk), key=lambda r: r.call_id)


def _check_finite(states: Mapping[str, ReadStates], llm: CallReader) -> None:
    """Raises `RecordError` if a state is NaN or infinite: once stored, it would not be read again."""
    first_bad_layer: dict[str, int] = {}  # id of a call -> its first layer with such a state
    for call_id, call_states in states.items():
        is_bad_layer = ~np.isfinite(call_states.hidden.values).all(axis=(1, 2))
        if is_bad_layer.any():
            first_bad_layer[call_id] = call_states.hidden.layers[int(is_bad_layer.argmax())]
    if first_bad_layer:
        call_id, layer = next(iter(first_bad_layer.items()))
        raise RecordError(
            f"{llm.name} gives hidden states that are no numbers for {len(first_bad_layer)} of {len(states)} calls, "
            f"such as {call_id} from layer {layer} on: {_remedy(llm)}"
        )


def _remedy(llm: CallReader) -> str:
    return f"its weights are damaged, or overflow in {llm.dtype}: load sound ones, in bfloat16 or float32"


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


SHARD_RUNS = 64
"""Number of runs that are read together and stored as one file. A killed process has to repeat these."""


@dataclass(slots=True)
class RereadReport:
    """Result of a rereading."""

    calls: int
    """Number of calls that were read now."""
    tokens: int
    """Number of tokens of their prompts and answers, in the reader's tokenization."""
    runs: int
    """Number of runs that were stored now."""
    stored_before: int
    """Number of runs that the store already held, so that they were not read again."""
    unread: dict[str, int] = field(default_factory=dict)
    """Maps the reason why calls have no log-probabilities to the number of calls."""


def reread(
    store: RunStore,
    llm: LocalLLM,
    out: RunStore,
    *,
    stage: str | None = None,
    agent: str | None = None,
    batch_size: int = 32,
    top_logprobs: int = 0,
    shard_runs: int = SHARD_RUNS,
    watch: ExtractionWatch = UNWATCHED,
) -> RereadReport:
    """Writes the runs of `store` into `out`, with the log-probabilities that `llm` gives to the answers.

    Ids, labels, statements and outcomes stay, and so do calls of another stage or agent. `Call.reader` names the model
    that read a call. Runs that `out` already holds are skipped, so a killed rereading can continue. Raises
    `RecordError` if both stores are one folder, if no call is selected, or if no call can be read. Raises
    `StoreMismatch` if `out` holds calls that another model read.

    Args:
        store: the run store to read.
        llm: the model that reads.
        out: the run store to write.
        stage: stage of the calls; by default any.
        agent: agent of the calls; by default any.
        batch_size: calls read at once.
        top_logprobs: alternatives kept for each token.
        shard_runs: runs in one shard.
        watch: callbacks that count runs, one shard at a time.
    """
    # Check the options, and that the store holds the runs of one reader.
    if min(batch_size, shard_runs) < 1 or top_logprobs < 0:
        raise RecordError(
            f"batch size {batch_size}, {shard_runs} runs a file, {top_logprobs} alternatives: expected at least 1, 1, 0"
        )
    if out.path.resolve() == store.path.resolve():
        raise RecordError(f"{out.path} holds the answers that are read: expected another folder for what is read")
    selection = CallSelection(stage, agent)
    if not any(selection.holds(call) for run in store.runs() for call in run.calls):
        raise selection.nothing()
    reader = reader_name(llm.name, llm.revision)
    if out.path.exists() and out.run_ids():  # one folder holds what one model read: two would be mixed in training
        readers = {call.reader for run in out.runs() for call in run.calls} - {""}
        if other_readers := sorted(readers - {reader}):
            raise StoreMismatch(
                f"{out.path} holds what {other_readers[0]} read; expected a folder of its own for {reader}"
            )
        if not readers:
            raise StoreMismatch(
                f"{out.path} holds runs that no other model read; expected a folder of its own for them"
            )
    # Read and store the runs that are not stored yet.
    with out.alone():
        stored_ids = out.run_ids()
        watch.on_total(len(store.run_ids() - stored_ids))
        report = RereadReport(0, 0, 0, len(stored_ids))
        todo = (run for run in store.runs() if run.id not in stored_ids)
        with out.writer(shard_runs=shard_runs) as writer:
            while runs := list(islice(todo, shard_runs)):
                calls = [call for run in runs for call in run.calls if selection.holds(call)]
                read_calls = read_answers(llm, calls, batch_size=batch_size, top_logprobs=top_logprobs)
                read_call_of_id = {read_call.call.id: read_call.call for read_call in read_calls}
                for run in runs:
                    writer.add(replace(run, calls=tuple(read_call_of_id.get(call.id, call) for call in run.calls)))
                report.calls += sum(not read_call.unread for read_call in read_calls)
                report.tokens += sum(read_call.tokens for read_call in read_calls)
                report.runs += len(runs)
                report.unread = dict(
                    Counter(report.unread) + Counter(read_call.unread for read_call in read_calls if read_call.unread)
                )
                watch.on_chunk(len(runs), sum(read_call.tokens for read_call in read_calls))
    if report.unread and not report.calls:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in report.unread.items())
        raise RecordError(
            f"none of the calls could be read by {llm.name}: {reasons}; expected calls with their messages and text"
        )
    return report


def launch_reread(
    runs: Path, model: str, out: Path, *, watch: ExtractionWatch = UNWATCHED, **options: object
) -> RereadReport:
    """Runs `reread` by names: the model is loaded by `LocalLLM.load`, and the stores are given by their folders.

    Args:
        runs: folder of the run store to read.
        model: name of the model.
        out: folder of the run store to write.
        watch: callbacks that report progress.
        **options: other options of `reread`.
    """
    return reread(RunStore(runs), LocalLLM.load(model), RunStore(out), watch=watch, **options)  # type: ignore[arg-type]
