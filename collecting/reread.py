"""Log-probabilities of recorded answers by another model than the one that answered, from a run store into another."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from metaprobe.collecting.extract import UNWATCHED, CallSelection, ExtractionWatch
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import ReadAnswer, read_answers, reader_name
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.store import RunStore, RunWriter
from metaprobe.records.types import Run

SHARD_RUNS = 64
"""Runs that are read together and stored as one file: what a killed reading has to do again."""


@dataclass(frozen=True, slots=True)
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
    unread: Mapping[str, int] = field(default_factory=dict)
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
    _check_reader(out, reader_name(llm.name, llm.revision))
    with out.alone():
        done = out.run_ids()
        watch.on_total(len(store.run_ids() - done))
        report = RereadReport(0, 0, 0, len(done))
        todo = (run for run in store.runs() if run.id not in done)
        with out.writer(shard_runs=shard_runs) as writer:
            while runs := list(islice(todo, shard_runs)):
                calls = [call for run in runs for call in run.calls if chosen.holds(call)]
                read = read_answers(llm, calls, batch_size=batch_size, top_logprobs=top_logprobs)
                report = _store(runs, read, writer, report)
                watch.on_chunk(len(runs), sum(one.tokens for one in read))
    if report.unread and not report.calls:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in report.unread.items())
        raise RecordError(
            f"none of the calls could be read by {llm.name}: {reasons}; expected calls with their messages and text"
        )
    return report


def _check_reader(out: RunStore, reader: str) -> None:
    """One folder holds what one model read: two would be mixed in training."""
    if not out.path.exists() or not out.run_ids():
        return
    readers = {call.reader for run in out.runs() for call in run.calls} - {""}
    if others := sorted(readers - {reader}):
        raise StoreMismatch(f"{out.path} holds what {others[0]} read; expected a folder of its own for {reader}")
    if not readers:
        raise StoreMismatch(f"{out.path} holds runs that no other model read; expected a folder of its own for them")


def _store(runs: Sequence[Run], read: Sequence[ReadAnswer], writer: RunWriter, report: RereadReport) -> RereadReport:
    by_id = {one.call.id: one.call for one in read}
    for run in runs:
        writer.add(dataclasses.replace(run, calls=tuple(by_id.get(call.id, call) for call in run.calls)))
    reasons = Counter(report.unread) + Counter(one.unread for one in read if one.unread)
    return RereadReport(
        report.calls + sum(not one.unread for one in read),
        report.tokens + sum(one.tokens for one in read),
        report.runs + len(runs),
        report.stored_before,
        dict(reasons),
    )


def launch_reread(
    runs: Path, model: str, out: Path, *, watch: ExtractionWatch = UNWATCHED, **options: object
) -> RereadReport:
    """`reread` by names: what `LocalLLM.load` finds, and the folders of two run stores."""
    return reread(RunStore(runs), LocalLLM.load(model), RunStore(out), watch=watch, **options)  # type: ignore[arg-type]
