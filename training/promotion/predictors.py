"""The guard of predictors and probes: a new version takes the running one's place only where it is better.

Routers have their own (`metaprobe.training.promotion.routers`), as they are judged by what their decisions cost.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import ContractMismatch
from metaprobe.checkpoints.checkpoint import load_verified
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, paired_difference
from metaprobe.eval.metrics.calibration import brier
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.table import answer_table
from metaprobe.probes.hidden import HiddenProbe
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import RecordError
from metaprobe.records.fingerprint import fingerprint
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call
from metaprobe.training.crossfit.evidence import load_runs, load_states
from metaprobe.training.linear.states_choice import Wanted

MARGIN = 0.01
"""Of AUROC, and of the Brier score: what may be lost where nothing may be lost that matters."""
FEWEST_GROUPS = 30
"""A bootstrap over fewer groups than this promises more than it keeps."""

Reader = QualityPredictor | HiddenProbe
READERS: dict[str, type[QualityPredictor] | type[HiddenProbe]] = {"quality": QualityPredictor, "hidden": HiddenProbe}


@dataclass(frozen=True, slots=True)
class Promotion:
    """Whether a new version may take the running one's place."""

    promoted: bool
    auroc_gain: Interval
    """Of the new one over the running one, on the same answers, resampled by group."""
    brier_gain: Interval
    """How much lower, that is better, the new one's Brier score is."""
    digest: str
    """Of the version that should run from now on."""
    reasons: tuple[str, ...]
    """Why not; empty where it was promoted."""


def load_reader(location: str | os.PathLike[str]) -> Reader:
    """The predictor or probe in a checkpoint, by its kind."""
    kind = load_verified(location).manifest.kind
    if kind not in READERS:
        raise ContractMismatch(f"{location} is a checkpoint of kind {kind!r}; expected one of {', '.join(READERS)}")
    return READERS[kind].load(location)


def promote(
    new: Reader,
    running: Reader,
    stores: Sequence[str | os.PathLike[str]],
    *,
    target: str = "correct",
    stage: str | None = None,
    agent: str | None = None,
    not_worse: bool = False,
    margin: float = MARGIN,
    seed: int = 0,
) -> Promotion:
    """The new version only where it is better on labelled runs that neither was trained on.

    Better: the 95 % interval of the gain in AUROC lies above 0, and that of the gain in the Brier score above -margin,
    so that no better order is bought with worse probabilities. With `not_worse` both need only lie above -margin: for
    a version that is smaller, newer or cheaper. Both conditions must hold, so two looks give no second chance.

    Raises `RecordError` for runs that one of them was trained on. That is noticed by the fingerprint of all the runs,
    so not where they are only a part of them, or more: keep held-out runs in a store of their own. Raises
    `ContractMismatch` where one gives no probability of `target`.
    """
    if margin < 0:
        raise ValueError(f"margin is {margin:g}; expected at least 0")
    runs = load_runs([Path(store) for store in stores])
    _check_unseen(fingerprint(runs), (new, running))
    table = answer_table(runs, target=target, stage=stage, agent=agent)
    by_id = {call.id: call for run in runs for call in run.calls}
    calls = [by_id[call_id] for call_id in table.call_ids.tolist()]
    scores = [_probabilities(reader, target, calls, stores) for reader in (new, running)]
    weights = cluster_weights(table.groups, seed=seed)
    gained = paired_difference(auroc, table.y, scores[0], scores[1], weights)
    sharper = paired_difference(brier, table.y, scores[1], scores[0], weights)
    reasons = tuple(find_reasons(gained, sharper, order=-margin if not_worse else 0.0, probabilities=-margin))
    kept = running if reasons else new
    return Promotion(not reasons, gained, sharper, kept.checkpoint.digest, reasons)


def find_reasons(gained: Interval, sharper: Interval, *, order: float, probabilities: float) -> list[str]:
    """Returns why a new version is not promoted: gains in AUROC and in the Brier score must surely be above these."""
    found = []
    if gained.groups < FEWEST_GROUPS:
        found.append(f"{gained.groups} groups are too few to decide; at least {FEWEST_GROUPS} are needed")
    if not gained.low > order:  # also where it is NaN, as of answers that are all right
        found.append(f"AUROC gain {_text(gained)} is not surely above {order:g}")
    if not sharper.low > probabilities:
        found.append(f"Brier gain {_text(sharper)} is not surely above {probabilities:g}")
    return found


def _text(gain: Interval) -> str:
    return f"{gain.estimate:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}] on {gain.n} answers in {gain.groups} groups"


def _check_unseen(data: str, readers: Sequence[Reader]) -> None:
    for reader in readers:
        training = reader.checkpoint.manifest.training
        if training is not None and training.fingerprint == data:
            raise RecordError(f"{reader.checkpoint.path} was trained on these runs; give held-out ones")


def _probabilities(
    reader: Reader, target: str, calls: Sequence[Call], stores: Sequence[str | os.PathLike[str]]
) -> NDArray[np.float64]:
    """P(target) of each call, (n,)."""
    manifest = reader.checkpoint.manifest
    heads = [output.name for output in manifest.outputs]
    if target not in heads or target in manifest.contract.get("scales", {}):
        raise ContractMismatch(f"{reader.checkpoint.path} gives no probability of {target!r}; its heads are {heads}")
    if isinstance(reader, QualityPredictor):
        return np.array([verdict.heads[target] for verdict in reader.predict_many(calls)])
    wanted = Wanted(",".join(map(str, reader.layers)), (reader.position,), reader.reader)
    opened = [RunStore(Path(store)) for store in stores]
    states, without = load_states(opened, [call.id for call in calls], wanted=wanted)
    if states is None:
        raise RecordError(f"{without} of {len(calls)} answers have no stored hidden states: run `metaprobe extract`")
    if states.model and not reader.reader:
        raise RecordError(
            f"the stored hidden states are those of {states.model}, and {reader.checkpoint.path} reads the answering "
            "model's own: run `metaprobe extract` with the model that answered"
        )
    read: NDArray[Any] = np.stack([states.read(layer, reader.position) for layer in reader.layers], axis=1)
    return reader.probability(read).astype(np.float64)
