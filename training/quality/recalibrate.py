"""The same predictor with its probabilities made right again, from scores and labels alone: no answer is read again.

`adapt` does this from labelled answers with their log-probabilities, for a checkpoint that is new to a model.
`recalibrate` does it in service, from the score log. Both move the log-odds by a base rate and a scale that are shrunk
towards what they were (`fit_scale`), so that the order of answers stays and few labels move little. Answers may have
been chosen for labels by their scores: the curve of right answers over the score is not changed by that. Thresholds and
figures are, and are therefore made on labels that are thinned to a plain draw (`monitoring.thinning`).
"""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import (
    Checkpoint,
    CheckpointExists,
    ContractMismatch,
    FlagOptions,
    FlagPoint,
    Generator,
    Promise,
    Training,
    check_target,
)
from metaprobe.checkpoints.flag_options import USUAL_FLAGS
from metaprobe.checkpoints.flagging import threshold_at, threshold_of
from metaprobe.checkpoints.manifest import GOLDEN, MODEL, RAW, Manifest
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.calibration import brier, brier_skill, ece_interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.table import AnswerTable, bare_table
from metaprobe.monitoring.labelled import LabelledScores
from metaprobe.monitoring.thinning import thin
from metaprobe.probes import quality_contract
from metaprobe.probes.base_rates import CERTAIN, CONTRACT, BaseRates, name_of_run
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.common.calibrators import Floats, Platt, sigmoid
from metaprobe.training.common.heads import SCALES
from metaprobe.training.common.offsets import Fit
from metaprobe.training.common.roles import group_folds
from metaprobe.training.common.write_checkpoint import Export, write_checkpoint
from metaprobe.training.crossfit.held_out import ENOUGH_FOR_ECE
from metaprobe.training.crossfit.stored_thresholds import (
    PROMISES,
    ScoredAnswers,
    StoredFlags,
    flagging_of,
    too_few,
    with_flag,
)
from metaprobe.training.options import NEW_ONLY, ReplaceOptions
from metaprobe.training.quality.adapt import (
    FEWEST,
    FEWEST_OF_A_KIND,
    FOLDS,
    LEARNED_UNTIL,
    RECALIBRATED,
    fit_scale,
    map_outputs,
)
from metaprobe.training.quality.adapted_head import mean_gap

FEWEST_TESTED = 10
"""Answers of a plain draw below which nothing is measured."""


@dataclass(frozen=True, slots=True, eq=False)
class Recalibrated:
    """The main head on labelled scores."""

    head: str
    labelled: LabelledScores
    before: Floats
    """(n,): log-odds that the graph gives; a score may have a base rate of its run besides."""
    fit: Fit
    held_out: Floats
    """(n,): probabilities, each by a fit on the other folds."""
    plain: NDArray[np.bool_]
    """(n,): those that stand for all answers, as a plain draw would."""

    @property
    def table(self) -> AnswerTable:
        """Of the plain draw."""
        return bare_table(self.labelled.y[self.plain], self.labelled.group[self.plain])

    @property
    def log_odds(self) -> Floats:
        """(n,): recalibrated."""
        return float(self.fit.weights[0]) * self.before + self.fit.rates.of(self.labelled.model)

    @property
    def platt(self) -> Platt:
        """From log-odds before to probabilities of an average model."""
        return Platt(float(self.fit.weights[0]), self.fit.rates.mean)

    @property
    def expected_wrong(self) -> float:
        """Share of all answers that is expected to be wrong; a labelled one counts as 1 / propensity answers."""
        drawn = self.labelled.propensity
        known = np.isfinite(drawn)
        weights = np.where(known, 1 / np.where(known, drawn, 1.0), 0.0) if known.any() else np.ones(len(drawn))
        return float(np.average(1 - sigmoid(self.log_odds), weights=weights))


def recalibrate_quality(
    checkpoint: str | Path,
    labelled: LabelledScores,
    *,
    out: str | Path,
    sha256: str | None = None,
    flags: FlagOptions = USUAL_FLAGS,
    writing: ReplaceOptions = NEW_ONLY,
    seed: int = 0,
    command: str = "",
) -> Checkpoint:
    """Returns the checkpoint whose scores were labelled, with right probabilities and new thresholds, written to `out`.

    Of several models each has a base rate of its own. `flags`: what the stored threshold flags. The curve of flag rates
    is remade, or where the labels are too few that of before is moved with the scores. A threshold that so few labels
    cannot carry is left out, and the card says so. `writing`: what of a checkpoint in `out` may be replaced.

    Raises `RecordError` for fewer than 20 labels, fewer than 3 of either kind, or too few for the option in `flags`,
    `ContractMismatch` for a checkpoint whose score is no probability, and `CheckpointExists` where `out` is the
    checkpoint itself, or may not be replaced.
    """
    require("onnx", "fit")
    predictor = QualityPredictor.load(checkpoint, sha256=sha256)
    if Path(out).resolve() == Path(predictor.checkpoint.path).resolve():
        raise CheckpointExists(f"{out} is the checkpoint itself, which may be in service; give another path")
    with writing.replacing():
        check_target(out, quality_contract.KIND)
        found = fit_again(predictor, labelled, seed=seed)
        return _write(predictor, found, out, flags, seed=seed, command=command)


def fit_again(predictor: QualityPredictor, labelled: LabelledScores, *, seed: int = 0) -> Recalibrated:
    """Returns the fit, without writing it. Raises as `recalibrate_quality` does."""
    manifest = predictor.checkpoint.manifest
    probabilities = [output.name for output in manifest.outputs if output.name not in SCALES]
    head = next((name for name in quality_contract.MAIN_HEADS if name in probabilities), None)
    if head is None:
        raise ContractMismatch(
            f"{predictor.checkpoint.path} gives no probability as its score (heads: "
            f"{', '.join(output.name for output in manifest.outputs)}); train it again in place of recalibrating"
        )
    y = labelled.y
    fewer = min(int(y.sum()), int((1 - y).sum()))
    if len(y) < FEWEST or fewer < FEWEST_OF_A_KIND:
        raise RecordError(
            f"{len(y)} labelled answers, {int(y.sum())} right and {int((1 - y).sum())} wrong; recalibrating takes "
            f"{FEWEST}, with {FEWEST_OF_A_KIND} of either kind: label more (`metaprobe sample`)"
        )
    known = BaseRates.from_contract(manifest.contract, probabilities)
    before = _graph_log_odds(labelled, known, head)
    between = 0.0 if known is None else known.between.get(head, 0.0)
    scales = 0.0 if known is None else known.scale.get(head, 0.0)

    def fit(rows: Any) -> Fit:
        return fit_scale(before[rows], y[rows], labelled.model[rows], between=between, scales=scales)

    held_out = np.full(len(y), np.nan)
    for rest, part in group_folds(np.arange(len(y)), labelled.group.tolist(), y, min(FOLDS, fewer), seed):
        of = fit(rest)
        held_out[part] = sigmoid(of.weights[0] * before[part] + of.rates.of(labelled.model[part]))
    plain = thin(labelled.propensity, seed=seed)
    return Recalibrated(head, labelled, before, fit(np.arange(len(y))), held_out, plain)


def _graph_log_odds(labelled: LabelledScores, known: BaseRates | None, head: str) -> Floats:
    """Returns the log-odds before a verdict added the base rate of the answer's model."""
    log_odds = _log_odds(labelled.score)
    for model in np.unique(labelled.model).tolist():
        shifts = None if known is None else known.of_model(model)
        log_odds[labelled.model == model] -= (shifts or {}).get(head, 0.0)
    return log_odds


def flags_again(before: Manifest, found: Recalibrated, asked: FlagOptions, *, seed: int = 0) -> StoredFlags:
    """Returns what is stored of flagging: remade by the plain draw, or the curve of before moved with the scores.

    The curve is moved where the plain draw is too small and one map moves every score. The thresholds for `catch` move
    along, for the order of the wrong answers is as before; those for `risk` do not, for they depend on the base rate.
    Raises as `flagging_of` does.
    """
    table, several = found.table, len(np.unique(found.labelled.model)) > 1
    held_out, exported = found.held_out[found.plain], sigmoid(found.log_odds[found.plain])
    scores = _log_odds(held_out) if several else found.log_odds[found.plain]
    ranking = held_out if several else exported
    rows, identity = np.arange(len(table)), Platt(1.0, 0.0)
    answers = ScoredAnswers(table, rows, scores, identity, exported, held_out, ranking)
    few = too_few(table.y, table.groups, calibrating=len(table))
    moved = None if not few or several else _moved(before, found)
    if moved is None:
        return flagging_of(answers, asked, seed=seed)
    lacking = f"; the curve of flag rates is that of the checkpoint before, its scores moved with the others: {few}"
    stored = StoredFlags({}, moved[0], moved[1], lacking=lacking)
    wrong = found.expected_wrong
    rate = float(np.clip(wrong, moved[0][0].rate, moved[0][-1].rate))
    flag = threshold_of(stored, asked) if asked.flags else threshold_at(moved[0], rate)
    return with_flag(stored, flag, asked, answers, wrong, seed=seed)


def _moved(before: Manifest, found: Recalibrated) -> tuple[tuple[FlagPoint, ...], tuple[Promise, ...]] | None:
    """The stored curve and the thresholds for `catch`, moved as the scores are; None where there is no one such map."""
    if not before.flagging or CONTRACT in before.contract:
        return None
    platt = found.platt

    def move(threshold: float) -> float:
        return float(platt.probability(_log_odds(np.array([threshold])))[0])

    points = tuple(replace(point, threshold=move(point.threshold)) for point in before.flagging)
    caught = [promise for promise in before.promises if promise.option == "catch"]
    return points, tuple(replace(promise, threshold=move(promise.threshold)) for promise in caught)


def _kept_thresholds(before: Manifest) -> dict[str, float]:
    """Thresholds of the head `critical`, whose probabilities stay as they are."""
    return {name: value for name, value in before.thresholds.items() if name.startswith(quality_contract.CRITICAL)}


def _log_odds(probability: Floats) -> Floats:
    p = np.clip(probability, CERTAIN, 1 - CERTAIN)
    log_odds: Floats = np.log(p) - np.log1p(-p)
    return log_odds


def _measure(found: Recalibrated, seed: int) -> dict[str, Interval]:
    """What is known of the new probabilities, held out, on the plain draw."""
    y, p, before = found.table.y, found.held_out[found.plain], found.labelled.score[found.plain]
    if len(y) < FEWEST_TESTED:
        return {}
    weights = cluster_weights(found.table.groups.tolist(), seed=seed)
    metrics = {
        "brier_gain_over_before": paired_difference(brier, y, before, p, weights),
        "mean_score_minus_share_right": interval(mean_gap, y, p, weights),
    }
    if 0 < y.sum() < len(y):
        metrics = {
            "auroc": interval(auroc, y, p, weights),
            "brier_skill": interval(brier_skill, y, p, weights),
        } | metrics
    if len(y) >= ENOUGH_FOR_ECE:
        metrics["ece"] = ece_interval(y, p, weights)
    return {name: one for name, one in metrics.items() if np.isfinite([one.estimate, one.low, one.high]).all()}


def _write(
    predictor: QualityPredictor, found: Recalibrated, out: str | Path, flags: FlagOptions, *, seed: int, command: str
) -> Checkpoint:
    base, head, labelled = predictor.checkpoint, found.head, found.labelled
    manifest = base.manifest
    platt, stored, kept = found.platt, flags_again(manifest, found, flags, seed=seed), _kept_thresholds(manifest)
    promised = stored.said(runs=len(found.fit.rates.runs)) + "".join(
        PROMISES[name] for name in kept if name in PROMISES
    )
    files = {name: (Path(base.path) / name).read_bytes() for name in (MODEL, RAW) if name in (*manifest.files, MODEL)}
    graphs = {name: map_outputs(data, {head: platt}) for name, data in files.items()}
    X = _golden_inputs(base)
    expected = {name: v.ravel().astype(np.float64) for name, v in base.run({quality_contract.INPUT: X}).items()}
    expected[head] = platt.probability(_log_odds(expected[head]))
    return write_checkpoint(
        out,
        Export(
            kind=quality_contract.KIND,
            title=f"Quality predictor: {' and '.join(expected)}, recalibrated",
            summary=(
                f"Checkpoint {base.digest[:16]}, recalibrated by {len(labelled)} labelled answers; the order of "
                f"answers of one model is as before.{promised}"
            ),
            graph=graphs[MODEL],
            input_name=quality_contract.INPUT,
            inputs=X,
            expected=expected,
            contract=_contract(manifest.contract, base.digest, found),
            generator=_generator(manifest.generator, labelled),
            training=Training(
                fingerprint_of(labelled), len(labelled), len(np.unique(labelled.group)), seed, command, ""
            ),
            calibration="platt",
            calibrated_on="the labelled answers; numbers by five folds over them, on those that stand for all answers",
            metrics=_measure(found, seed),
            not_audited=["all of them: the order of answers is that of the checkpoint before, audited there"],
            thresholds={**stored.thresholds, **kept},
            flagging=stored.flagging,
            promises=stored.promises,
            operating=stored.operating,
            packages=("onnx",),
            extra={RAW: graphs[RAW]} if RAW in graphs else {},
            heads=[_line(found) + stored.lacking],
        ),
    )


def _golden_inputs(base: Checkpoint) -> NDArray[np.float32]:
    """The golden rows of the checkpoint before: a log has no features, and these answers are real ones."""
    stored = json.loads((Path(base.path) / GOLDEN).read_text(encoding="utf-8"))["inputs"][quality_contract.INPUT]
    values = np.array(stored["values"], dtype=np.float32)  # null is NaN
    return values.reshape(stored["shape"])


def _contract(before: Mapping[str, Any], digest: str, found: Recalibrated) -> dict[str, Any]:
    contract = {**before, "adapted_from": digest}
    rates, labelled = found.fit.rates, found.labelled
    contract.pop(CONTRACT, None)
    if len(rates.runs) > 1:
        contract[CONTRACT] = {
            "between": {found.head: rates.between},
            "scale": {},
            "average": {found.head: float(labelled.y.mean())},
            "runs": {name_of_run(model): {found.head: shift} for model, shift in rates.runs.items()},
        }
    # Where a label does not say when its answer was, it may be any that came until now.
    until = float(labelled.time.max())
    learned = until if (labelled.time > 0).all() else time.time()
    contract[LEARNED_UNTIL] = max(learned, float(before.get(LEARNED_UNTIL, learned)))
    contract[RECALIBRATED] = {
        "labels": len(labelled),
        "until": until,
        "scale": float(found.fit.weights[0]),
        "base_rate": rates.mean,
    }
    return contract


def score_again(new: Checkpoint, before: Checkpoint, labelled: LabelledScores) -> Floats:
    """Returns the scores (n,) that a recalibrated checkpoint gives to answers that the one before has scored.

    Raises `ContractMismatch` for a checkpoint that was not recalibrated from that one.
    """
    contract = new.manifest.contract
    if contract.get("adapted_from") != before.digest or RECALIBRATED not in contract:
        raise ContractMismatch(f"{new.path} was not recalibrated from {before.path}")
    heads = [output.name for output in new.manifest.outputs if output.name not in SCALES]
    head = next(name for name in quality_contract.MAIN_HEADS if name in heads)
    log_odds = _graph_log_odds(labelled, BaseRates.from_contract(before.manifest.contract, heads), head)
    log_odds = contract[RECALIBRATED]["scale"] * log_odds + contract[RECALIBRATED]["base_rate"]
    if (rates := BaseRates.from_contract(contract, heads)) is not None:
        for model in np.unique(labelled.model).tolist():
            log_odds[labelled.model == model] += (rates.of_model(model) or {}).get(head, 0.0)
    return sigmoid(log_odds)


def _generator(before: Generator | None, labelled: LabelledScores) -> Generator | None:
    models = [str(name) for name in np.unique(labelled.model) if name]
    if not models:
        return before
    mode = "unknown" if before is None else before.logprobs_mode
    if before is not None and set(models) == set(before.models):
        return replace(before)
    return Generator(models[0], logprobs_mode=mode, others=tuple(models[1:]))


def _line(found: Recalibrated) -> str:
    y, labelled = found.table.y, found.labelled
    return (
        f"{found.head}: scale {float(found.fit.weights[0]):.2f}, base rate {found.fit.rates.mean:+.2f} log-odds, by "
        f"{len(labelled)} labelled answers, {labelled.y.mean():.0%} of them right; {len(y)} of them stand for all"
    )


def fingerprint_of(labelled: LabelledScores) -> str:
    """SHA-256 (hex) of scores, labels, groups and times."""
    digest = hashlib.sha256()
    for column in (labelled.score, labelled.label, labelled.time):
        digest.update(np.ascontiguousarray(column, dtype="<f8").tobytes())
    digest.update("\0".join(labelled.group.tolist()).encode())
    return digest.hexdigest()
