"""The guard in service: two versions on the labelled answers of a score log, which neither has learned from.

The scores of the version that runs stand in the log. Those of the new one follow from these where it is the running one
recalibrated. Else they come from verdicts that were only compared (a shadow), or from the log-probabilities of the
answers, where the log keeps them. Answers that were chosen for labels are thinned to a plain draw first.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import cluster_weights, paired_difference
from metaprobe.eval.metrics.calibration import brier
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.plain import plain
from metaprobe.monitoring.labelled import LabelledScores, labelled_of_log
from metaprobe.monitoring.log import ScoreLog
from metaprobe.monitoring.promotable import RETRAINED
from metaprobe.monitoring.thinning import thin
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.types import Call
from metaprobe.training.promotion.pins import put_back, swap_pin
from metaprobe.training.promotion.predictors import MARGIN, Promotion, find_reasons
from metaprobe.training.quality.adapt import LEARNED_UNTIL, RECALIBRATED
from metaprobe.training.quality.recalibrate import score_again

PROMOTED, ROLLED_BACK = "promoted", "rolled back"
"""Kinds of events."""
SHADOW = (
    "SELECT s.shadow_of, s.score FROM scores s JOIN contexts c ON c.id = s.context "
    "WHERE s.shadow_of IS NOT NULL AND s.score IS NOT NULL AND c.checkpoint = :checkpoint"
)


@dataclass(frozen=True, slots=True, eq=False)
class PairedScores:
    """The same labelled answers, scored by both versions."""

    labelled: LabelledScores
    """With the scores of the version that runs."""
    new: NDArray[np.float64]
    """(n,): scores of the new one."""


def promote_scored(
    new: QualityPredictor,
    running: QualityPredictor,
    log: ScoreLog,
    *,
    not_worse: bool = False,
    sharper: bool | None = None,
    margin: float = MARGIN,
    seed: int = 0,
) -> Promotion:
    """The new version only where it is better on labelled answers of the log, as `promote` has it for run stores.

    `sharper`: judged by its probabilities, whose gain must surely be above 0, while the order may not be worse by more
    than the margin; None takes this for a version that was recalibrated from the running one, whose order is the same.
    Raises `RecordError` where the log holds no answers that both can be judged on.
    """
    if margin < 0:
        raise ValueError(f"margin is {margin:g}; expected at least 0")
    paired = pair_scores(new, running, log)
    kept = thin(paired.labelled.propensity, seed=seed)
    labelled, scores = paired.labelled.rows(kept), paired.new[kept]
    y, weights = labelled.y, cluster_weights(labelled.group.tolist(), seed=seed)
    gained = paired_difference(auroc, y, scores, labelled.score, weights)
    better = paired_difference(brier, y, labelled.score, scores, weights)
    if sharper is None:
        sharper = new.checkpoint.manifest.contract.get("adapted_from") == running.checkpoint.digest
    by_order = 0.0 if not (not_worse or sharper) else -margin
    by_brier = 0.0 if sharper and not not_worse else -margin
    reasons = tuple(find_reasons(gained, better, order=by_order, probabilities=by_brier))
    digest = (running if reasons else new).checkpoint.digest
    return Promotion(not reasons, gained, better, digest, reasons)


def promote_in_log(
    new: QualityPredictor,
    running: QualityPredictor,
    log: ScoreLog,
    *,
    pins: Path | None = None,
    location: str = "",
    **options: Any,
) -> Promotion:
    """The same, and where it is promoted, an event in the log that `roll_back` reads.

    `pins`: a file of `serve --pins` in which the new version then takes the running one's place, as the checkpoint at
    `location` (its folder where that is empty). Both happen or neither: raises `RecordError` where the file pins no
    such version, and `LogError` where the log cannot be written; the file then says what it said.
    """
    decided = promote_scored(new, running, log, **options)
    if decided.promoted:
        versions = {"from": running.checkpoint.digest, "to": new.checkpoint.digest}
        paths = {"from_path": str(running.checkpoint.path), "to_path": str(new.checkpoint.path)}
        gains = {"auroc_gain": decided.auroc_gain.estimate, "brier_gain": decided.brier_gain.estimate}
        details = {**versions, **paths, **plain(gains)}
        _exchange(log, PROMOTED, details, pins, versions["from"], location or paths["to_path"], versions["to"])
    return decided


def pair_scores(new: QualityPredictor, running: QualityPredictor, log: ScoreLog) -> PairedScores:
    """Returns the labelled answers that the running version scored and the new one can be asked about.

    Answers that the new one has learned from, or may have, are left out: those until the last of them. Raises
    `RecordError` where none is left.
    """
    labelled = labelled_of_log(log, checkpoint=running.checkpoint.digest)
    learned = _learned_until(new)
    for event in log.events(RETRAINED):
        if event.details["to"] == new.checkpoint.digest:
            learned = max(learned, float(event.details["until"]))
    unseen = labelled.rows(labelled.time > learned)
    found = _scores_of(new, running, log, unseen)
    known = np.isfinite(found)
    if not known.any():
        raise RecordError(
            f"the log holds {len(labelled)} labelled answers; the new version has learned, or may have, from "
            f"{len(labelled) - len(unseen)} of them, and there is no score of it for the others: serve it as shadow, "
            "or keep log-probabilities (`serve --log-logprobs`), and label what comes"
        )
    return PairedScores(unseen.rows(known), found[known])


def _learned_until(new: QualityPredictor) -> float:
    """Time of the last answer of a log whose label the version may have been adapted or recalibrated by.

    -1 for one that was only trained: what is known of its runs stands in the log, where `retrain` made it.
    """
    contract = new.checkpoint.manifest.contract
    if "adapted_from" not in contract:
        return -1.0
    made = datetime.fromisoformat(new.checkpoint.manifest.created).timestamp()  # of checkpoints from before
    return float(contract.get(LEARNED_UNTIL, made))


def _scores_of(
    new: QualityPredictor, running: QualityPredictor, log: ScoreLog, labelled: LabelledScores
) -> NDArray[np.float64]:
    """(n,): NaN where the new version's score cannot be known."""
    contract = new.checkpoint.manifest.contract
    if contract.get("adapted_from") == running.checkpoint.digest and RECALIBRATED in contract:
        return score_again(new.checkpoint, running.checkpoint, labelled)
    shadows = {str(of): float(score) for of, score in log.tables.read(SHADOW, {"checkpoint": new.checkpoint.digest})}
    found = np.array([shadows.get(name, np.nan) for name in labelled.group.tolist()], dtype=np.float64)
    for place in np.flatnonzero(~np.isfinite(found)).tolist():
        name, model = str(labelled.group[place]), str(labelled.model[place])
        entry = log.entry(name)
        if entry is None or entry.logprobs is None:
            continue
        call = Call(id=name, stage="answer", model=model, logprobs=np.asarray(entry.logprobs, dtype=np.float32))
        with suppress(InvalidResponse):
            score = new.predict(call).score
            found[place] = np.nan if score is None else score
    return found


def roll_back(log: ScoreLog, *, pins: Path | None = None) -> dict[str, str]:
    """Returns what ran before the last promotion that was not taken back, as `{"digest", "path", "was"}`.

    `was` is the digest that was promoted. It is written into the log, and `pins` changes with it, as in
    `promote_in_log`.

    Raises `RecordError` where there is none.
    """
    taken_back = {str(event.details.get("promotion")) for event in log.events(ROLLED_BACK)}
    for event in reversed(log.events(PROMOTED)):
        if str(event.time) not in taken_back:
            details = event.details
            found = {name: str(details[of]) for name, of in (("digest", "from"), ("path", "from_path"), ("was", "to"))}
            details = {**found, "promotion": str(event.time)}
            _exchange(log, ROLLED_BACK, details, pins, found["was"], found["path"], found["digest"])
            return found
    raise RecordError("the log holds no promotion that could be taken back")


def _exchange(
    log: ScoreLog, kind: str, details: dict[str, Any], pins: Path | None, before: str, location: str, digest: str
) -> None:
    """Writes the event and changes the pin, or neither."""
    if pins is None:
        return log.event(kind, details)
    pins = pins.resolve()  # a link stays one, and who reads what it leads to sees the change
    with put_back(pins), log.event_of(kind, details):
        swap_pin(pins, before, location, digest)
    return None
