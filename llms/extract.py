"""Recorded calls read again, over any number of processes: their hidden states, or log-probabilities by another model.

Hidden states are read a chunk of calls at a time, and stand beside the runs. Log-probabilities of recorded answers by
another model than the one that answered go from a run store into another.
"""

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

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
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.extras import require
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Run
from metaprobe.records.writing import atomic_write

CALLS_PER_CHUNK = 64
"""Calls whose states are in memory at once, and in one file."""
CHECKED_CALLS = 4
REREAD_TOLERANCE = 0.2
"""Nats a token, mean absolute, over the checked calls. SmolLM2-135M in bfloat16 is 0.02 to 0.03 off what it recorded in
other batches; with another chat template it is 1.3 to 1.8 off."""
MAX_WAIT = timedelta(days=30)
"""How long a process waits for the others, which may have longer calls to read."""


@dataclass(frozen=True, slots=True)
class Share:
    """Names this process's part of the work: chunks `index`, `index + count`, ..."""

    index: int = 0
    count: int = 1
    wait: Callable[[], None] = lambda: None
    """Returns when every process has come here."""


@dataclass(frozen=True, slots=True)
class ExtractReport:
    """Says what an extraction did."""

    calls: int
    """Number of calls read now."""
    tokens: int
    """Number of tokens in the prompts and answers of these calls."""
    stored_before: int
    """Calls that had the states asked for, and were not read again."""
    failed_calls: int
    """Calls that had ended in an error, and hold nothing to read."""
    rebuilt: int
    """Calls read whose token ids were not recorded: chat template and tokenizer made them from messages and text."""
    without_exact: int
    """Calls read whose answer does not hold the run's final answer; there `before_exact` and
    `exact_last` are `answer_last`, and `exact_mean` is `answer_mean`."""
    disagreement: float | None
    """Mean absolute difference from the recorded log-probabilities, nats a token, of a few calls. None: no call holds
    any."""

    def __add__(self, other: "ExtractReport") -> "ExtractReport":
        """Returns the report of two processes, or two chunks, of one extraction."""
        return replace(
            self,
            calls=self.calls + other.calls,
            tokens=self.tokens + other.tokens,
            rebuilt=self.rebuilt + other.rebuilt,
            without_exact=self.without_exact + other.without_exact,
        )


@dataclass(slots=True)
class CallSelection:
    """Chooses the calls to read, and counts the calls that are not read."""

    stage: str | None
    agent: str | None
    done: Collection[str] = ()
    """Ids of the calls that have all that is asked for."""
    stored: set[str] = field(default_factory=set)
    """Ids of the calls of this stage and agent that are done."""
    failed: int = 0
    """Number of calls of this stage and agent that ended in an error, and hold nothing to read."""
    seen: set[tuple[str, str]] = field(default_factory=set)
    """Stage and agent of every call that was met."""

    def holds(self, call: Call) -> bool:
        """Returns whether the call is of this stage and agent; None stands for any."""
        self.seen.add((call.stage, call.agent))
        return self.stage in (None, call.stage) and self.agent in (None, call.agent)

    def takes(self, call: Call) -> bool:
        """Returns whether the call is to be read: of this stage and agent, not failed, and not done."""
        if not self.holds(call):
            return False
        self.failed += call.error is not None
        if call.error is None and call.id in self.done:
            self.stored.add(call.id)
        return call.error is None and call.id not in self.done

    def nothing(self) -> RecordError:
        """Returns the error for a store in which no call is to be read and none is stored."""
        stages, agents = (", ".join(sorted({pair[i] for pair in self.seen} - {""})) or "none" for i in (0, 1))
        return RecordError(
            f"no call of stage {self.stage or 'any'} by agent {self.agent or 'any'} that holds an answer "
            f"({self.failed} had failed); stages found: {stages}; agents found: {agents}"
        )


@dataclass(frozen=True, slots=True)
class ExtractionWatch:
    """Callbacks that follow an extraction in this process."""

    on_total: Callable[[int], None] = lambda count: None
    """Called once, with how many calls (or runs) are to be read."""
    on_chunk: Callable[[int, int], None] = lambda count, tokens: None
    """Called for every chunk that is on the disk, with how many calls (or runs) and tokens it holds."""


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
    """Reads the calls of a store that lack these states, and writes the states beside the runs, float16.

    A chunk is `shard_calls` calls in the store's order, whatever the number of processes; each is a file that appears
    whole, and holds the same whoever wrote it. A call that has the states asked for, from answering or from an
    extraction before, is passed over: that is how a killed extraction goes on. `layers`, `positions`: see
    `Readings`. `other_model` reads calls of whatever model, as text that this model is shown.

    Raises `RecordError` before anything is read where a call cannot be, where no call is chosen, where the calls are of
    another model, and where the model gives their tokens other log-probabilities than were recorded; and before a chunk
    is written that holds a state which is NaN or infinite.
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
    todo, sample = _plan(store, llm, replay, selection, other_model, shard_calls)
    disagreement = _check_model(replay, llm, sample, other_model)
    canaries = replay.canaries() if todo else None
    share.wait()  # nobody writes before everybody has seen what is there: else the chunks would differ
    begins = range(share.index * shard_calls, len(todo), share.count * shard_calls)  # of this process's chunks
    watch.on_total(sum(min(shard_calls, len(todo) - begin) for begin in begins))
    report = ExtractReport(0, 0, len(selection.stored), selection.failed, 0, 0, disagreement)
    request = _digest(replay.layers, replay.positions, llm.name, llm.revision, llm.dtype, model)
    for readings in _chunks(_readings(store, llm, replay, todo), shard_calls, share):
        states = dict(zip((r.call_id for r in readings), replay.read(readings, batch_size=batch_size), strict=True))
        _check_finite(states, llm)
        hidden = {call_id: replace(read.hidden, canaries=canaries) for call_id, read in states.items()}
        write_canaries(store.path, hidden.values())
        with atomic_write(store.path / f"{STATES_PREFIX}{request}-{_digest(list(states))}{STATES_SUFFIX}") as file:
            file.write(activation_bytes(hidden, model=model))
        tokens = sum(r.tokens for r in readings)
        rebuilt, without = sum(r.rebuilt for r in readings), sum(not len(r.exact_at) for r in readings)
        report += ExtractReport(len(readings), tokens, 0, 0, rebuilt, without, None)
        watch.on_chunk(len(readings), tokens)
    share.wait()
    return report


def _check_model(replay: Readings, llm: CallReader, sample: Sequence[Reading], other_model: bool) -> float | None:
    """Returns how far the model's log-probabilities are from the recorded ones, nats a token; None where none are.

    Raises `RecordError` where they are no numbers, and `StoreMismatch` where they are not those of the model that
    answered, unless `other_model` says that they need not be.
    """
    disagreement = replay.disagreement(sample)
    if disagreement is not None and math.isnan(disagreement):
        raise RecordError(f"{llm.name} gives log-probabilities that are no numbers: {_remedy(llm)}")
    if disagreement is not None and disagreement > REREAD_TOLERANCE and not other_model:
        raise StoreMismatch(
            f"{llm.name} gives the recorded tokens other log-probabilities: {disagreement:.2f} nats a token off, where "
            f"{REREAD_TOLERANCE} is the most that rounding explains. Weights, tokenizer or chat template are not "
            "those that "
            f"answered: load these, or read the calls as another model would with --other-model"
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

    Returns the report and the number of processes.

    `via` vllm: through vLLM's engine, which shares the work among its own processes. The report is of all processes
    together, in the first of them, and None in the others.
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
        own = extract(RunStore(runs), llm, layers=layers, share=share, watch=watch, **options)  # type: ignore[arg-type]
        reports = accelerate.utils.gather_object([own])
    finally:
        state.destroy_process_group()
    return (sum(reports[1:], start=reports[0]) if share.index == 0 else None), share.count


def _plan(
    store: RunStore, llm: CallReader, replay: Readings, selection: CallSelection, other_model: bool, chunk: int
) -> tuple[set[str], list[Reading]]:
    """Returns the ids of the calls to read, and a few calls that can be checked.

    Every call is looked at, so that what cannot be read is said before hours have gone.
    """
    todo: set[str] = set()
    sample: list[Reading] = []
    others: Counter[str] = Counter()
    for run, call in _calls(store):
        if not selection.takes(call) or call.id in todo:
            continue
        if other := _other_model_of(call, llm):
            others[other] += 1
        if not others or other_model:
            reading = replay.reading(_as_shown(call, llm), run.final_answer)
            todo.add(call.id)
            if len(sample) < chunk and reading.logprobs is not None:
                sample.append(reading)
    if others and not other_model:
        raise StoreMismatch(
            f"{', '.join(f'{count} calls are of {name}' for name, count in others.items())}; loaded is {llm.name} "
            f"({llm.revision}): load the model that answered, choose its calls by stage or agent, or read them all the "
            f"same with --other-model"
        )
    if not todo and not selection.stored:
        raise selection.nothing()
    sample.sort(key=lambda r: (-len(r.answer), r.call_id))
    return todo, sample[:CHECKED_CALLS]


def _other_model_of(call: Call, llm: CallReader) -> str:
    """Returns the call's model where it is known to be another than the loaded one, else nothing."""
    if call.model and call.model != llm.name:
        return call.model
    unknown = ("", "unknown")
    if call.model_revision not in unknown and llm.revision not in unknown and call.model_revision != llm.revision:
        return f"{call.model} ({call.model_revision})"
    return ""


def _as_shown(call: Call, llm: CallReader) -> Call:
    """Returns a call of another model as text alone: ids of its tokenizer are other words in this one."""
    own = call.reader == reader_name(llm.name, llm.revision) or not _other_model_of(call, llm)
    return call if own else without_readings(call, "")


def _calls(store: RunStore) -> Iterator[tuple[Run, Call]]:
    return ((run, call) for run in store.runs() for call in run.calls)


def _readings(store: RunStore, llm: CallReader, replay: Readings, todo: set[str]) -> Iterator[Callable[[], Reading]]:
    """Yields each call to read, once; a call becomes token ids only when it is this process's turn to read it."""
    left = set(todo)
    for run, call in _calls(store):
        if call.id in left:
            left.remove(call.id)
            yield partial(replay.reading, _as_shown(call, llm), run.final_answer)


def _chunks(readings: Iterator[Callable[[], Reading]], size: int, share: Share) -> Iterator[list[Reading]]:
    for number in itertools.count():
        together = list(itertools.islice(readings, size))
        if not together:
            return
        if number % share.count == share.index:
            yield sorted((reading() for reading in together), key=lambda r: r.call_id)


def _check_finite(states: Mapping[str, ReadStates], llm: CallReader) -> None:
    """Raises `RecordError` where a state is NaN or infinite: stored, it would pass for one that need not be read."""
    broken: dict[str, int] = {}  # call -> its first such layer
    for call_id, read in states.items():
        bad = ~np.isfinite(read.hidden.values).all(axis=(1, 2))
        if bad.any():
            broken[call_id] = read.hidden.layers[int(bad.argmax())]
    if broken:
        call_id, layer = next(iter(broken.items()))
        raise RecordError(
            f"{llm.name} gives hidden states that are no numbers for {len(broken)} of {len(states)} calls, such as "
            f"{call_id} from layer {layer} on: {_remedy(llm)}"
        )


def _remedy(llm: CallReader) -> str:
    return f"its weights are damaged, or overflow in {llm.dtype}: load sound ones, in bfloat16 or float32"


def _digest(*what: object) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]


SHARD_RUNS = 64
"""Runs that are read together and stored as one file: what a killed reading has to do again."""


@dataclass(slots=True)
class RereadReport:
    """Says what a reading did."""

    calls: int
    """Read now."""
    tokens: int
    """Number of tokens of their prompts and answers, as the reader's tokenizer splits them."""
    runs: int
    """Stored now."""
    stored_before: int
    """Runs that the store held before, and that were not read again."""
    unread: dict[str, int] = field(default_factory=dict)
    """Why calls are there without log-probabilities: reason -> calls."""


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
    """Writes the runs of `store` into `out`, with log-probabilities that `llm` gives to what was answered.

    Ids, labels, statements and outcomes stay as they are, and so do calls of another stage or agent than is asked for.
    `watch` counts runs, a shard at a time. `Call.reader` says by whom a call was read. Runs that `out` holds already
    are passed over: that is how a killed reading goes on. Raises `RecordError` where both stores are one folder, where
    no call is chosen or none can be read, and `StoreMismatch` where `out` holds calls that another model read.
    """
    if min(batch_size, shard_runs) < 1 or top_logprobs < 0:
        raise RecordError(
            f"batch size {batch_size}, {shard_runs} runs a file, {top_logprobs} alternatives: expected at least 1, 1, 0"
        )
    if out.path.resolve() == store.path.resolve():
        raise RecordError(f"{out.path} holds the answers that are read: expected another folder for what is read")
    chosen = CallSelection(stage, agent)
    if not any(chosen.holds(call) for run in store.runs() for call in run.calls):
        raise chosen.nothing()
    reader = reader_name(llm.name, llm.revision)
    if out.path.exists() and out.run_ids():  # one folder holds what one model read: two would be mixed in training
        readers = {call.reader for run in out.runs() for call in run.calls} - {""}
        if others := sorted(readers - {reader}):
            raise StoreMismatch(f"{out.path} holds what {others[0]} read; expected a folder of its own for {reader}")
        if not readers:
            raise StoreMismatch(
                f"{out.path} holds runs that no other model read; expected a folder of its own for them"
            )
    with out.alone():
        done = out.run_ids()
        watch.on_total(len(store.run_ids() - done))
        report = RereadReport(0, 0, 0, len(done))
        todo = (run for run in store.runs() if run.id not in done)
        with out.writer(shard_runs=shard_runs) as writer:
            while runs := list(islice(todo, shard_runs)):
                calls = [call for run in runs for call in run.calls if chosen.holds(call)]
                read = read_answers(llm, calls, batch_size=batch_size, top_logprobs=top_logprobs)
                by_id = {one.call.id: one.call for one in read}
                for run in runs:
                    writer.add(replace(run, calls=tuple(by_id.get(call.id, call) for call in run.calls)))
                report.calls += sum(not one.unread for one in read)
                report.tokens += sum(one.tokens for one in read)
                report.runs += len(runs)
                report.unread = dict(Counter(report.unread) + Counter(one.unread for one in read if one.unread))
                watch.on_chunk(len(runs), sum(one.tokens for one in read))
    if report.unread and not report.calls:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in report.unread.items())
        raise RecordError(
            f"none of the calls could be read by {llm.name}: {reasons}; expected calls with their messages and text"
        )
    return report


def launch_reread(
    runs: Path, model: str, out: Path, *, watch: ExtractionWatch = UNWATCHED, **options: object
) -> RereadReport:
    """`reread` by names: what `LocalLLM.load` finds, and the folders of two run stores."""
    return reread(RunStore(runs), LocalLLM.load(model), RunStore(out), watch=watch, **options)  # type: ignore[arg-type]
