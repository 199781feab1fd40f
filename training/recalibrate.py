"""Recalibrates a predictor by the scores and labels of a score log; no answer is read again.

Logged answers may have been chosen for labels by their scores: the curve of right answers over the score is not changed
by that. Thresholds and figures are, and are therefore made on labels that are thinned to a plain draw
(`records.labelled_scores.equal_chance_mask`). `training/rescale.py` fits the base rates and the scale.
"""

import hashlib
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from metaprobe.checkpoints import (
    Checkpoint,
    ContractMismatch,
    FlagOptions,
    Generator,
    Training,
    check_target,
)
from metaprobe.checkpoints.checkpoint import LEARNED_UNTIL
from metaprobe.checkpoints.description import GAIN_OVER_BEFORE
from metaprobe.checkpoints.flagging import USUAL_FLAGS, threshold_at, threshold_of
from metaprobe.checkpoints.manifest import GOLDEN, Manifest
from metaprobe.eval.answer_table import bare_table
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.calibration import brier, brier_skill, ece_interval
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.probes.contract import BASE_RATES_KEY, BaseRates, name_of_run
from metaprobe.probes.quality import MAIN_HEADS, QualityPredictor
from metaprobe.probes.verdict import Verdict
from metaprobe.records.extras import require
from metaprobe.records.labelled_scores import LabelledScores, equal_chance_mask
from metaprobe.training.calibrators import Floats, log_odds_of, mean_gap, sigmoid
from metaprobe.training.export import StoredFlags
from metaprobe.training.rescale import (
    RECALIBRATED,
    Rescaled,
    check_rescalable,
    probability_heads,
    rescale,
    rescaled_contract,
    title_of,
    write_rescaled,
)
from metaprobe.training.study import ENOUGH_FOR_ECE
from metaprobe.training.thresholds import (
    flagging_of,
    too_few,
    with_flag,
)
from metaprobe.training.training_options import NEW_ONLY, ReplaceOptions

FEWEST_TESTED = 10
"""Fewest randomly drawn answers for measuring anything after a recalibration."""


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
    is computed again. If there are too few labels, the previous curve is moved along with the scores. A threshold that
    so few labels cannot carry is left out, and the card says so. `writing`: what of a checkpoint in `out` may be
    replaced.

    Raises `RecordError` for fewer than 20 labels, fewer than 3 of either kind, or too few for the option in `flags`,
    `ContractMismatch` for a checkpoint whose score is no probability, and `CheckpointExists` where `out` is the
    checkpoint itself, or may not be replaced.
    """
    require("onnx", "fit")
    predictor = QualityPredictor.load(checkpoint, sha256=sha256)
    base = predictor.checkpoint
    check_rescalable(base, out)
    with writing.replacing():
        check_target(out, base.manifest.kind)
        head = _fit_again(predictor, labelled, seed)
        stored = flags_again(base.manifest, head, labelled.propensity, flags, seed=seed)
        # Where a label does not say when its answer was, it may be any that came until now.
        until, rates = float(labelled.time.max()), head.fit.rates
        learned = until if (labelled.time > 0).all() else time.time()
        learned = max(learned, float(base.manifest.contract.get(LEARNED_UNTIL, learned)))
        moved = {"labels": len(labelled), "until": until, "scale": head.scale, "base_rate": rates.mean}
        groups, plain_count = len(np.unique(labelled.group)), int(head.plain.sum())
        # A log has no features: the golden rows of the checkpoint before are real answers.
        golden = json.loads((Path(base.path) / GOLDEN).read_text(encoding="utf-8"))["inputs"]
        inputs = {  # null is NaN
            name: np.array(array["values"], dtype=np.float32).reshape(array["shape"]) for name, array in golden.items()
        }
        generator, models = base.manifest.generator, [str(name) for name in np.unique(labelled.model) if name]
        if models and (generator is None or set(models) != set(generator.models)):
            mode = "unknown" if generator is None else generator.logprobs_mode
            generator = Generator(models[0], logprobs_mode=mode, others=tuple(models[1:]))
        digest = hashlib.sha256()
        for column in (labelled.score, labelled.label, labelled.time):
            digest.update(np.ascontiguousarray(column, dtype="<f8").tobytes())
        digest.update("\0".join(labelled.group.tolist()).encode())
        return write_rescaled(
            predictor,
            {head.name: head},
            out,
            inputs,
            title=f"{title_of(predictor)}, recalibrated",
            summary=(
                f"Checkpoint {base.digest[:16]}, recalibrated by {len(labelled)} labelled answers; the order of "
                "answers of one model is as before."
            ),
            contract={**rescaled_contract(predictor, {head.name: head}, {}, learned), RECALIBRATED: moved},
            generator=generator,
            training=Training(digest.hexdigest(), len(labelled), groups, seed, command, ""),
            calibrated_on="the labelled answers; numbers by five folds over them, on those that stand for all answers",
            metrics=measure_recalibrated(head, labelled.score, seed),
            stored=stored,
            # Probabilities of the head `critical` stay as they are.
            thresholds={k: v for k, v in base.manifest.thresholds.items() if k.startswith(Verdict.critical_head)},
            runs=len(rates.runs),
            heads=[
                f"{head.name}: scale {head.scale:.2f}, base rate {rates.mean:+.2f} log-odds, by {len(labelled)} "
                f"labelled answers, {labelled.y.mean():.0%} of them right; {plain_count} of them stand for "
                f"all{stored.lacking}"
            ],
        )


def _fit_again(predictor: QualityPredictor, labelled: LabelledScores, seed: int) -> Rescaled:
    """Returns the head that gives the score. Raises as `recalibrate_quality` does."""
    base = predictor.checkpoint
    heads = probability_heads(base)
    head = next((name for name in MAIN_HEADS if name in heads), None)
    if head is None:
        raise ContractMismatch(
            f"{base.path} gives no probability as its score ({title_of(predictor)}); train it again "
            "in place of recalibrating"
        )
    base_rates = BaseRates.from_contract(base.manifest.contract, heads)
    # A verdict added the base rate of the answer's model to what the graph gave.
    before = log_odds_of(labelled.score) - _shifts(labelled, base_rates, head)
    runs = np.array([name_of_run(m) for m in labelled.model.tolist()])
    table, plain = bare_table(labelled.y, labelled.group), equal_chance_mask(labelled.propensity, seed=seed)
    return rescale(head, table, runs, before, base_rates, plain=plain, seed=seed)


def _shifts(labelled: LabelledScores, base_rates: BaseRates | None, head: str) -> Floats:
    """Returns the base-rate shift (n,) that a checkpoint adds to the log-odds of each answer, by the answer's model.

    The shift is 0 for a model without a known base rate.
    """
    names, place = np.unique(labelled.model, return_inverse=True)
    shifts = [{} if base_rates is None else base_rates.of_model(model) or {} for model in names.tolist()]
    return np.array([shifts_of_run.get(head, 0.0) for shifts_of_run in shifts])[place]


def flags_again(
    before: Manifest, head: Rescaled, propensity: Floats, asked: FlagOptions, *, seed: int = 0
) -> StoredFlags:
    """Returns the stored flagging of a recalibrated predictor: remade from new labels, or the old curve mapped.

    If the randomly drawn labels are too few and one map moves every score, the previous curve is mapped with the
    scores. Thresholds for `catch` are mapped too, because the order of the wrong answers is unchanged. Thresholds for
    `risk` are dropped, because they depend on the base rate. Raises the errors of `flagging_of`.
    """
    answers = head.scored
    few = too_few(answers.table.y, answers.table.groups, calibrating=len(answers.table))
    if not few or head.several or not before.flagging or BASE_RATES_KEY in before.contract:  # there is no one such map
        return flagging_of(answers, asked, seed=seed)

    def move(threshold: float) -> float:
        return float(head.calibrator.probability(log_odds_of([threshold]))[0])

    points = tuple(replace(point, threshold=move(point.threshold)) for point in before.flagging)
    caught = [promise for promise in before.promises if promise.option == "catch"]
    promises = tuple(replace(promise, threshold=move(promise.threshold)) for promise in caught)
    lacking = f"; the curve of flag rates is that of the checkpoint before, its scores moved with the others: {few}"
    stored = StoredFlags({}, points, promises, lacking=lacking)
    # The sum is over all answers: a labelled answer counts as 1 / propensity answers.
    was_drawn = np.isfinite(propensity)
    weights = (
        np.where(was_drawn, 1 / np.where(was_drawn, propensity, 1.0), 0.0)
        if was_drawn.any()
        else np.ones(len(was_drawn))
    )
    wrong = float(np.average(1 - sigmoid(head.log_odds), weights=weights))
    rate = float(np.clip(wrong, points[0].rate, points[-1].rate))
    flag = threshold_of(stored, asked) if asked.flags else threshold_at(points, rate)
    return with_flag(stored, flag, asked, answers, wrong, seed=seed)


def measure_recalibrated(head: Rescaled, scores: Floats, seed: int) -> dict[str, Interval]:
    """Returns held-out figures of the new probabilities on the plain draw, beside the `scores` (n,) before."""
    y, p, before = head.table.y[head.plain], head.held_out[head.plain], scores[head.plain]
    if len(y) < FEWEST_TESTED:
        return {}
    weights = cluster_weights(head.table.groups[head.plain].tolist(), seed=seed)
    metrics = {
        GAIN_OVER_BEFORE: paired_difference(brier, y, before, p, weights),
        "mean_score_minus_share_right": interval(mean_gap, y, p, weights),
    }
    if 0 < y.sum() < len(y):
        metrics = {
            "auroc": interval(auroc, y, p, weights),
            "brier_skill": interval(brier_skill, y, p, weights),
        } | metrics
    if len(y) >= ENOUGH_FOR_ECE:
        metrics["ece"] = ece_interval(y, p, weights)
    return {
        name: metric
        for name, metric in metrics.items()
        if np.isfinite([metric.estimate, metric.low, metric.high]).all()
    }


def score_again(new: Checkpoint, before: Checkpoint, labelled: LabelledScores) -> Floats:
    """Returns the scores (n,) that a recalibrated checkpoint gives to answers that the one before has scored.

    Raises `ContractMismatch` for a checkpoint that was not recalibrated from that one.
    """
    contract = new.manifest.contract
    if contract.get("adapted_from") != before.digest or RECALIBRATED not in contract:
        raise ContractMismatch(f"{new.path} was not recalibrated from {before.path}")
    heads = probability_heads(new)
    head = next(name for name in MAIN_HEADS if name in heads)
    old, now = (
        BaseRates.from_contract(stored_contract, heads) for stored_contract in (before.manifest.contract, contract)
    )
    log_odds = log_odds_of(labelled.score) - _shifts(labelled, old, head)
    log_odds = contract[RECALIBRATED]["scale"] * log_odds + contract[RECALIBRATED]["base_rate"]
    return sigmoid(log_odds + _shifts(labelled, now, head))
