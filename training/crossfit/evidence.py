"""From run stores to what the methods learn from."""

import itertools
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from metaprobe.checkpoints import Generator
from metaprobe.eval.audits.training_data import labels_by_source
from metaprobe.eval.table import AnswerTable, answer_table, in_words
from metaprobe.probes.features import PLUS_TERMS, SEGMENTED, features, schema
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.fingerprint import fingerprint
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, FloatArray, Run
from metaprobe.training.common.grouping import join_table
from metaprobe.training.common.operating_points import evaluations_of
from metaprobe.training.common.write_checkpoint import answers_of, named_reader
from metaprobe.training.crossfit.methods import Evidence
from metaprobe.training.linear.states import InMemory, OnDisk
from metaprobe.training.linear.states_choice import (
    ANYTHING,
    Wanted,
    chosen_grid,
    chosen_reader,
    states_by_reader,
)

SCHEMA = "full+terms"

IN_MEMORY = 2 << 30
"""Bytes of hidden states that are held at once."""


def load_evidence(
    stores: Sequence[str | Path],
    *,
    target: str = "correct",
    stage: str | None = None,
    agent: str | None = None,
    hidden: bool = True,
    wanted: Wanted | None = None,
    bare: bool = False,
) -> Evidence:
    """Every labelled answer of the stores with its features, and its hidden states where all answers have them.

    With `bare`, where no labelled answer has log-probabilities, all of them, without features.

    Groups that ask the same question are one group (`training.common.grouping`), before anything is split.

    `wanted`: which hidden states, for a probe that is asked for. Without it, states that do not fit together (of
    several models, say) are left out with a warning; with it, they are refused.

    Raises `RecordError` where no answer is labelled, where log-probabilities were recorded in different modes, what
    `load_states` raises, and the store's own errors.
    """
    opened = [RunStore(store) for store in stores]
    runs = load_runs(stores)
    table = answer_table(runs, target=target, stage=stage, agent=agent, bare=bare)
    chosen = [
        (run, call)
        for run in runs
        for call in run.calls
        if stage in (None, call.stage) and agent in (None, call.agent) and in_words(call)
    ]
    labelled = sum(run.label(target, call.id) is not None for run, call in chosen)
    states, without, refused = None, len(table), ""
    if hidden:
        ids = table.call_ids.tolist()
        try:
            models = {call.model for call in _calls(runs, ids)}
            states, without = load_states(opened, ids, wanted=wanted or ANYTHING, models=models)
        except StoreMismatch as error:
            if wanted is not None:
                raise
            refused = str(error)
            warnings.warn(f"probes are left out: {error}", stacklevel=2)
    return replace(
        evidence_of(runs, {target: table})[target],
        states=states,
        without_hidden=without,
        states_refused=refused,
        reader="" if states is None else states.model,
        without_logprobs=labelled - len(table),
    )


def evidence_of(runs: Sequence[Run], tables: Mapping[str, AnswerTable], *, spread: bool = False) -> dict[str, Evidence]:
    """Of each target the evidence of its table, without hidden states; the features of an answer are computed once.

    Groups that ask the same question are one group. `spread`: features are a Dask array on the workers of the default
    Dask client. Raises `RecordError` where log-probabilities were recorded in different modes.
    """
    logprobs = {c: s for t in tables.values() for c, s in zip(t.call_ids.tolist(), t.logprobs, strict=True)}
    row = {call_id: i for i, call_id in enumerate(logprobs)}
    thinking = _thinking_of(tables.values())
    computed = schema(SEGMENTED + PLUS_TERMS if thinking else SCHEMA)
    measured = all(table.measured for table in tables.values())
    before = [thinking.get(call_id) for call_id in logprobs]
    X = (
        features(computed, list(logprobs.values()), thinking=before)
        if measured
        else np.empty((len(logprobs), 0), dtype=np.float32)
    )
    if spread:
        from metaprobe.training.common.dask_trees import distribute  # needs an extra

        X = distribute(X)
    calls = _calls(runs, row)
    generator, data, evaluated = generator_of(calls), fingerprint(runs), evaluations_of(runs)
    reader = logprobs_reader_of(calls)
    found = {}
    for target, given in tables.items():
        table, regrouped = join_table(given)
        ids = table.call_ids.tolist()
        found[target] = Evidence(
            table=table,
            features=X[[row[call_id] for call_id in ids]],
            feature_names=computed.names if measured else (),
            schema=computed.name,
            without_hidden=len(table),
            generator=generator,
            logprobs_reader=reader,
            fingerprint=data,
            labels_by_source=labels_by_source(runs, ids, target),
            regrouped=regrouped,
            evaluated=evaluated,
        )
    return found


def _thinking_of(tables: Iterable[AnswerTable]) -> dict[str, FloatArray]:
    """Call id -> log-probabilities of the thinking before its answer; empty where no answer has any."""
    thought = [table for table in tables if table.thinking is not None]
    return {c: s for t in thought for c, s in zip(t.call_ids.tolist(), t.thinking, strict=True)}  # type: ignore[arg-type]


def _calls(runs: Sequence[Run], ids: Collection[str]) -> list[Call]:
    wanted = set(ids)
    return [call for run in runs for call in run.calls if call.id in wanted]


def load_states(
    stores: Sequence[RunStore], call_ids: Sequence[str], *, wanted: Wanted = ANYTHING, models: Collection[str] = ()
) -> tuple[InMemory | OnDisk | None, int]:
    """Hidden states of these calls, None unless every one has them; and how many have none.

    The answering model's own states come first; where not all calls have these, those that one other model read
    (`states.model`). What several requests kept is joined: of the layers and positions that `wanted` leaves open, the
    largest grid that every call has. They are read into memory where they take at most `IN_MEMORY`, else block by block
    from the disk.

    Raises `RecordError` where what is asked for is not stored, and where a state is NaN or infinite; `StoreMismatch`
    where they do not fit together: of several `models` (those that answered), of several widths, by several readers of
    whom none is named, or with no layer and position in common.
    """
    held = states_by_reader(stores, call_ids)
    reader = chosen_reader(held, len(call_ids), wanted, models)
    if reader is None:
        return None, min((of.without for of in held.values()), default=len(call_ids))
    layers, positions = chosen_grid(held[reader].cells, wanted)
    left = set(call_ids)
    parts: dict[RunStore, tuple[str, ...]] = {}
    for store in stores:
        files = [file for file in store.activation_files() if file.model == reader]
        here = tuple(dict.fromkeys(call_id for file in files for call_id in file.call_ids if call_id in left))
        left.difference_update(here)
        if here:
            parts[store] = here
    row = {call_id: i for i, call_id in enumerate(itertools.chain.from_iterable(parts.values()))}
    order = np.array([row[call_id] for call_id in call_ids], dtype=np.intp)
    stored = OnDisk(tuple(parts), tuple(parts.values()), order, layers, positions, reader)
    [width] = held[reader].widths
    if 2 * len(call_ids) * len(layers) * len(positions) * width > IN_MEMORY:
        stored.check_finite()
        return stored, 0
    loaded = stored.loaded()
    if not all(np.isfinite(loaded.activations.values[:, i]).all() for i in range(len(layers))):
        stored.check_finite()  # which says where
    return loaded, 0


def reader_contract(evidence: Evidence) -> dict[str, dict[str, str]]:
    """What a probe's contract says of the model that read, where it is another than the one that answered."""
    if not evidence.reader:
        return {}
    return named_reader(evidence.reader)


def origin_of_states(evidence: Evidence) -> list[str]:
    """What a card must say of the answers and whose states they have; nothing where all is as usual."""
    lines = []
    if evidence.reader:
        answered = answers_of(evidence.generator)
        lines.append(f"The states are those of {evidence.reader}, which read what {answered} said")
    if without := evidence.without_logprobs:
        lines.append(
            f"{without} of {len(evidence.table) + without} labelled answers were left out, for they hold no "
            "log-probabilities to compare a probe with"
        )
    return lines


def generator_of(calls: Sequence[Call]) -> Generator | None:
    """The model all answers are from, or the models; None where one of them is not named."""
    modes = {call.logprobs_mode for call in calls}
    if len(modes) > 1:
        raise RecordError(
            f"log-probabilities of different modes ({', '.join(sorted(modes))}) cannot be mixed: raw ones are before "
            f"temperature, processed ones after; train on one kind"
        )
    names = sorted({call.model for call in calls})
    if not all(names) or not names:
        return None
    kinds = {(call.model_revision, call.model_dtype) for call in calls}
    revision, dtype = kinds.pop() if len(kinds) == 1 and len(names) == 1 else ("", "")
    return Generator(names[0], revision, dtype, logprobs_mode=modes.pop(), others=tuple(names[1:]))


def logprobs_reader_of(calls: Sequence[Call]) -> str:
    """The model that gave all log-probabilities, `NAME@REVISION`; empty where each is the answering model's own.

    Raises `RecordError` where they are of several models.
    """
    readers = sorted({call.reader for call in calls})
    if len(readers) > 1:
        named = ", ".join(reader or "the answering model itself" for reader in readers)
        raise RecordError(
            f"log-probabilities of different readers ({named}) cannot be mixed; expected those of one: choose the "
            "calls by stage or agent, or read all of them with `metaprobe extract RUNS --logprobs MODEL --out RUNS2`"
        )
    return readers[0] if readers else ""


def load_runs(stores: Sequence[str | Path]) -> list[Run]:
    """All runs of the stores. Raises `RecordError` where two of them hold a run of the same id."""
    runs: dict[str, Run] = {}
    for store in stores:
        for run in RunStore(store):
            if run.id in runs:
                raise RecordError(f"run {run.id!r} is in {store} and in another of the stores: name each store once")
            runs[run.id] = run
    return list(runs.values())


def invert(evidence: Evidence) -> Evidence:
    """The same of the opposite label: 1 where there is no critical failure."""
    table = replace(evidence.table, y=1 - evidence.table.y)
    sources = {source: 1 - labels for source, labels in evidence.labels_by_source.items()}
    return replace(evidence, table=table, labels_by_source=sources)
