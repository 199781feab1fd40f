"""From run stores to what the methods learn from."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from metaprobe.checkpoints import Generator
from metaprobe.eval.audits import labels_by_source
from metaprobe.eval.table import answer_table
from metaprobe.probes.features import features, schema
from metaprobe.records.activations import Layout
from metaprobe.records.errors import RecordError
from metaprobe.records.fingerprint import fingerprint
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Run
from metaprobe.training.methods import Evidence
from metaprobe.training.states import OnDisk, States

SCHEMA = "full"

IN_MEMORY = 2 << 30
"""Bytes of hidden states that are held at once."""


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
    states, without = load_states(opened, table.call_ids.tolist()) if hidden else (None, len(table))
    return Evidence(
        table=table,
        features=features(computed, list(table.logprobs)),
        feature_names=computed.names,
        schema=computed.name,
        states=states,
        without_hidden=without,
        generator=generator_of(calls),
        fingerprint=fingerprint(runs),
        labels_by_source=labels_by_source(runs, table.call_ids.tolist(), target),
    )


def load_states(stores: Sequence[RunStore], call_ids: Sequence[str]) -> tuple[States | None, int]:
    """Hidden states of these calls, None unless every one has them; and how many have none.

    Stores may hold several kinds (other layers, positions, or another model's reading): the kind that has every call,
    and of several the one with most layers and positions. They are read into memory where they take at most
    `IN_MEMORY`, else block by block from the disk.
    """
    kinds: dict[tuple[Layout, str], dict[RunStore, dict[str, None]]] = {}
    for store in stores:
        for file in store.activation_files():
            held = kinds.setdefault((file.layout, file.model), {}).setdefault(store, {})
            held |= dict.fromkeys(file.call_ids)
    wanted, fewest = set(call_ids), len(call_ids)
    chosen: tuple[Layout, str] | None = None
    for kind, by_store in kinds.items():
        missing = len(wanted.difference(*by_store.values())) if by_store else len(wanted)
        fewest = min(fewest, missing)
        if not missing and (chosen is None or _size(kind[0]) > _size(chosen[0])):
            chosen = kind
    if chosen is None:
        if fewest == 0 or len(kinds) < 2 or len({layout for layout, _ in kinds}) < 2:
            return None, fewest
        raise RecordError(
            f"the stores hold hidden states of different layers, positions or width "
            f"({'; '.join(sorted(str(layout) for layout, _ in kinds))}), and no kind has all {len(wanted)} calls: "
            "train on one store, or run `metaprobe extract` on all of them alike"
        )
    layout, model = chosen
    parts: dict[RunStore, tuple[str, ...]] = {}
    for store, ids in kinds[chosen].items():
        here = tuple(call_id for call_id in ids if call_id in wanted)
        wanted.difference_update(here)
        if here:
            parts[store] = here
    row = {call_id: i for i, call_id in enumerate(itertools.chain.from_iterable(parts.values()))}
    order = np.array([row[call_id] for call_id in call_ids], dtype=np.intp)
    stored = OnDisk(tuple(parts), tuple(parts.values()), order, layout.layers, layout.positions, model)
    return (stored if 2 * len(call_ids) * _size(layout) > IN_MEMORY else stored.loaded()), 0


def _size(layout: Layout) -> int:
    return len(layout.layers) * len(layout.positions) * layout.width


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


def load_runs(stores: Sequence[str | Path]) -> list[Run]:
    """All runs of the stores. Raises `RecordError` where two of them hold a run of the same id."""
    runs: dict[str, Run] = {}
    for store in stores:
        for run in RunStore(store):
            if run.id in runs:
                raise RecordError(f"run {run.id!r} is in {store} and in another of the stores: name each store once")
            runs[run.id] = run
    return list(runs.values())
