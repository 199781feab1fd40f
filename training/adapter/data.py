"""From run stores to what the adapter probe reads: the texts of labelled answers, as token ids."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Generator
from metaprobe.eval.audits.training_data import labels_by_source
from metaprobe.eval.table import AnswerTable, answer_table, usable_groups
from metaprobe.probes.adapter import Encoder, When, layout, prompt_of
from metaprobe.records.errors import RecordError
from metaprobe.records.fingerprint import fingerprint
from metaprobe.training.common.grouping import join_table
from metaprobe.training.common.roles import Roles, Rows, outer_folds
from metaprobe.training.crossfit.evidence import generator_of, load_runs

FOLDS = 5
"""The test part is one of so many outer folds: training one language model a fold would take too long."""


@dataclass(frozen=True, slots=True, eq=False)
class AdapterData:
    """n labelled answers with their texts. Entry i of each field is of row i of the table."""

    table: AnswerTable
    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    generator: Generator | None
    """The model or models that the answers are from; None where one is not named."""
    fingerprint: str
    labels_by_source: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Source -> its labels (n,), NaN where it gave none."""
    regrouped: str = ""
    """Which groups were joined because their questions repeat, in words; empty where none were."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of everything that training depends on."""
        rows = zip(self.table.call_ids, self.table.groups, self.table.y, self.prompts, self.answers, strict=True)
        return hashlib.sha256(repr([(str(c), str(g), int(y), p, a) for c, g, y, p, a in rows]).encode()).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """m texts to judge: each row of the table once for each moment at which it is judged."""

    ids: tuple[tuple[int, ...], ...]
    rows: Rows
    """(m,): which row of the table."""
    when: NDArray[np.str_]
    """(m,): `before` or `after`."""

    def of(self, rows: Rows, when: When | None = None) -> Rows:
        """Which examples are of these rows (and of this moment), ascending."""
        chosen = np.isin(self.rows, rows)
        return np.flatnonzero(chosen if when is None else chosen & (self.when == when))


def load_adapter_data(
    stores: Sequence[str | Path], *, target: str = "correct", stage: str | None = None, agent: str | None = None
) -> AdapterData:
    """Every labelled answer of the stores with its texts.

    Raises `RecordError` where no answer is labelled, where a store was kept without texts, and the store's own errors.
    """
    runs = load_runs(stores)
    table, regrouped = join_table(answer_table(runs, target=target, stage=stage, agent=agent))
    calls = {call.id: call for run in runs for call in run.calls}
    chosen = [calls[call_id] for call_id in table.call_ids.tolist()]
    prompts = [prompt_of(call.messages) for call in chosen]
    if bare := [call.id for call, prompt in zip(chosen, prompts, strict=True) if prompt is None]:
        raise RecordError(
            f"{len(bare)} of {len(chosen)} answers have no text of a user message, such as {bare[:3]}: the adapter "
            f"reads texts; collect without --no-text"
        )
    return AdapterData(
        table,
        tuple(prompt or "" for prompt in prompts),
        tuple(call.text for call in chosen),
        generator_of(chosen),
        fingerprint(runs),
        labels_by_source(runs, table.call_ids.tolist(), target),
        regrouped,
    )


def adapter_roles(table: AnswerTable, *, seed: int = 0) -> Roles:
    """Train, selection, calibration and test rows, disjoint by group: the first of five outer folds.

    What is compared with an adapter probe is fitted in the same roles. Raises `RecordError` where the groups do not
    suffice, or where all labels are the same.
    """
    groups = table.groups.tolist()
    usable_groups(groups, table.y, folds=FOLDS)
    return next(outer_folds(groups, table.y, folds=FOLDS, seed=seed))


def examples(data: AdapterData, whens: Sequence[When], encoder: Encoder) -> Examples:
    """Every answer as text, `before` without and `after` with the answer itself."""
    n = len(data.table)
    texts = [
        layout(prompt, answer if when == "after" else None)
        for when in whens
        for prompt, answer in zip(data.prompts, data.answers, strict=True)
    ]
    ids = tuple(tuple(row) for row in encoder.ids(texts))
    return Examples(ids, np.tile(np.arange(n), len(whens)), np.repeat(np.array(whens), n))
