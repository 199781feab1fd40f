"""From run stores to what the methods learn from."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from metaprobe.checkpoints import Generator
from metaprobe.eval.table import AnswerTable, answer_table
from metaprobe.probes.features import features, schema
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.records.fingerprint import fingerprint
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Run
from metaprobe.training.methods import Evidence

SCHEMA = "full"


def load_evidence(
    stores: Sequence[str | Path],
    *,
    target: str = "correct",
    stage: str | None = None,
    agent: str | None = None,
    hidden: bool = True,
) -> Evidence:
    """Every labelled answer of the stores with its features, and its hidden states where all answers have them.

    Raises `RecordError` where no answer is labelled, where log-probabilities were recorded in different modes, and the
    store's own errors.
    """
    opened = [RunStore(store) for store in stores]
    runs = load_runs(stores)
    table = answer_table(runs, target=target, stage=stage, agent=agent)
    wanted = set(table.call_ids.tolist())
    calls = [call for run in runs for call in run.calls if call.id in wanted]
    computed = schema(SCHEMA)
    activations, without = _activations(opened, table) if hidden else (None, len(table))
    return Evidence(
        table=table,
        features=features(computed, list(table.logprobs)),
        feature_names=computed.names,
        schema=computed.name,
        activations=activations,
        without_hidden=without,
        generator=generator_of(calls),
        fingerprint=fingerprint(runs),
    )


def _activations(stores: Sequence[RunStore], table: AnswerTable) -> tuple[Activations | None, int]:
    """Hidden states in the order of the table, None unless every answer has them; and how many have none."""
    kept = [store.activations() for store in stores if store.has_activations()]
    if not kept:
        return None, len(table)
    if len({(a.layers, a.positions, a.values.shape[-1]) for a in kept}) > 1:
        raise RecordError("the stores hold hidden states of different layers, positions or width: train on one of them")
    row = {call_id: i for i, call_id in enumerate(itertools.chain.from_iterable(a.call_ids for a in kept))}
    if without := sum(call_id not in row for call_id in table.call_ids.tolist()):
        return None, without
    values = np.concatenate([a.values for a in kept])[[row[call_id] for call_id in table.call_ids.tolist()]]
    return Activations(tuple(table.call_ids.tolist()), values, kept[0].layers, kept[0].positions), 0


def generator_of(calls: Sequence[Call]) -> Generator | None:
    """The one model all answers are from; None where they are from several."""
    modes = {call.logprobs_mode for call in calls}
    if len(modes) > 1:
        raise RecordError(
            f"log-probabilities of different modes ({', '.join(sorted(modes))}) cannot be mixed: raw ones are before "
            f"temperature, processed ones after; train on one kind"
        )
    models = {(call.model, call.model_revision, call.model_dtype) for call in calls}
    if len(models) != 1:
        return None
    model, revision, dtype = models.pop()
    return Generator(model=model, revision=revision, dtype=dtype, logprobs_mode=modes.pop()) if model else None


def load_runs(stores: Sequence[str | Path]) -> list[Run]:
    """All runs of the stores. Raises `RecordError` where two of them hold a run of the same id."""
    runs: dict[str, Run] = {}
    for store in stores:
        for run in RunStore(store):
            if run.id in runs:
                raise RecordError(f"run {run.id!r} is in {store} and in another of the stores: name each store once")
            runs[run.id] = run
    return list(runs.values())
