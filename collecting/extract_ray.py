"""Hidden states of recorded calls over a cluster, by Ray's actors: a chunk of calls is a task, and a lost one is done
again elsewhere.

The store's folder is shared by all machines, as it is where processes share the work. The chunks are made here before
anything is read, so they are the same however many workers there are, and so are the files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from metaprobe.collecting.extract import (
    CHECKED_CALLS,
    CHUNK,
    CallSelection,
    ExtractionWatch,
    ExtractReport,
    check_model,
    other_model_of,
    read_chunk,
    replay_of,
    stored_calls,
)
from metaprobe.llms.hidden_capture import Capture, chosen_layers
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.weights import resolve
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.extras import require
from metaprobe.records.store import RunStore

UNWATCHED = ExtractionWatch()
RETRIES = 3
"""So often is a chunk given out again whose worker has died; a chunk that kills four workers ends the extraction."""


@dataclass(frozen=True, slots=True)
class CallChunk:
    """Calls that are read together and stored in one file."""

    shards: tuple[str, ...]
    """Files of the store that hold them."""
    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What every worker is told."""

    runs: Path
    model: str
    layers: str = "all"
    positions: tuple[str, ...] | None = None
    every_token: bool = False
    other_model: bool = False
    batch_size: int = 32


class ChunkReader:
    """Loads the model once and reads chunks; Ray makes one in each worker."""

    def __init__(self, plan: ClusterPlan) -> None:
        self._plan, self._store = plan, RunStore(plan.runs)
        self._llm = LocalLLM.load(plan.model)
        self._replay = replay_of(self._llm, plan.layers, plan.positions, plan.every_token)
        self._reader = f"{self._llm.name}@{self._llm.revision}" if plan.other_model else ""
        self._checked = False

    def read(self, chunk: CallChunk) -> ExtractReport:
        """Reads a chunk and writes its file. Raises what `metaprobe.collecting.extract.extract` raises."""
        wanted, found = set(chunk.calls), {}
        for shard in chunk.shards:
            for run in self._store.runs_of(Path(shard)):
                for call in run.calls:
                    if call.id in wanted and call.id not in found:
                        if not self._plan.other_model and (other := other_model_of(call, self._llm)):
                            raise StoreMismatch(
                                f"call {call.id} is of {other}; loaded is {self._llm.name} ({self._llm.revision}): "
                                "load the model that answered, or read them all the same with --other-model"
                            )
                        found[call.id] = self._replay.reading(call, run.final_answer)
        readings = [found[call_id] for call_id in sorted(found)]
        if not self._checked:
            comparable = sorted(readings, key=lambda r: (-len(r.answer), r.call_id))[:CHECKED_CALLS]
            check_model(self._replay, self._llm, comparable, other_model=self._plan.other_model)
            self._checked = True
        return read_chunk(
            self._plan.runs,
            self._replay,
            self._llm,
            readings,
            model=self._reader,
            tokens=self._plan.every_token,
            batch_size=self._plan.batch_size,
        )


def extract_on_ray(
    plan: ClusterPlan,
    *,
    workers: int,
    stage: str | None = None,
    agent: str | None = None,
    shard_calls: int = CHUNK,
    cpus: float = 1,
    gpus: float = 0,
    reader: type = ChunkReader,
    watch: ExtractionWatch = UNWATCHED,
) -> ExtractReport:
    """Reads the calls of a store that lack these states, by `workers` of the Ray cluster that the environment names
    (`RAY_ADDRESS`), or of this machine where it names none.

    `cpus` and `gpus`: what one worker takes. A worker that dies is started again and its chunk read anew, `RETRIES`
    times. Raises `RecordError` for numbers below 1 and where no call is chosen, and what a worker raises.
    """
    ray = require("ray", "ray")
    if min(workers, shard_calls, plan.batch_size) < 1:
        raise RecordError(
            f"{workers} workers, {shard_calls} calls a file, batch size {plan.batch_size}: expected at least 1 of each"
        )
    chunks, stored, failed = plan_chunks(plan, stage, agent, shard_calls)
    watch.on_total(sum(len(chunk.calls) for chunk in chunks))
    report = ExtractReport(0, 0, stored, failed, 0, 0, None)
    if not chunks:
        return report
    _begun_ray()
    made = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=RETRIES)(reader)
    actors = [made.remote(plan) for _ in range(min(workers, len(chunks)))]
    try:
        for read in _given_out(ray, actors, chunks):
            report += read
            watch.on_chunk(read.calls, read.tokens)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, RecordError) else error from None
    finally:
        for actor in actors:
            ray.kill(actor)
    return report


def launch_on_ray(
    runs: Path, model: str, workers: int, *, watch: ExtractionWatch = UNWATCHED, **options: Any
) -> tuple[ExtractReport, int]:
    """`extract_on_ray` by names, and how many workers there are; one takes a GPU where the cluster has one for each."""
    told = {name: options.pop(name) for name in ("layers", "every_token", "other_model", "batch_size")}
    positions = options.pop("positions")
    plan = ClusterPlan(
        runs=runs.resolve(), model=model, positions=None if positions is None else tuple(positions), **told
    )
    ray = _begun_ray()
    gpus = 1 if ray.cluster_resources().get("GPU", 0) >= workers else 0
    return extract_on_ray(plan, workers=workers, gpus=gpus, watch=watch, **options), workers


def _begun_ray() -> Any:
    """Returns the module, connected to the cluster of `RAY_ADDRESS`, or to one of this machine."""
    ray = require("ray", "ray")
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)
    return ray


def _given_out(ray: Any, actors: Sequence[Any], chunks: Sequence[CallChunk]) -> Iterator[ExtractReport]:
    """The reports as they come: whoever is done gets the next chunk."""
    left, at_work = iter(chunks), {}
    for actor in actors:
        if (chunk := next(left, None)) is not None:
            at_work[actor.read.remote(chunk)] = actor
    while at_work:
        [done], _ = ray.wait(list(at_work), num_returns=1)
        actor = at_work.pop(done)
        if (chunk := next(left, None)) is not None:
            at_work[actor.read.remote(chunk)] = actor
        yield ray.get(done)


def plan_chunks(plan: ClusterPlan, stage: str | None, agent: str | None, size: int) -> tuple[list[CallChunk], int, int]:
    """The chunks to read, how many calls were stored before, how many had failed. No weights are read for it."""
    store, weights = RunStore(plan.runs), resolve(plan.model)
    layers = chosen_layers(plan.layers, AutoConfig.from_pretrained(weights.location))
    positions = Capture(layers).positions if plan.positions is None else plan.positions
    reader = f"{weights.name}@{weights.revision or 'unknown'}" if plan.other_model else ""
    selection = CallSelection(stage, agent, stored_calls(store, layers, positions, reader, plan.every_token))
    chosen: dict[str, str] = {}
    for shard in store.shards():
        for run in store.runs_of(shard):
            for call in run.calls:
                if selection.takes(call):
                    chosen.setdefault(call.id, str(shard))
    if not chosen and not selection.stored:
        raise selection.nothing()
    ids = list(chosen)
    parts = [ids[start : start + size] for start in range(0, len(ids), size)]
    chunks = [CallChunk(tuple(dict.fromkeys(chosen[i] for i in part)), tuple(part)) for part in parts]
    return chunks, len(selection.stored), selection.failed
