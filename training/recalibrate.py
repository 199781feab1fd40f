"""Recalibrates a predictor by the scores and labels of a score log; no answer is read again.

Logged answers may have been chosen for labels by their scores. That does not change the curve of right answers over the
score, but it does change thresholds and figures. So these are computed on labels that are thinned to a draw with equal
chances (`records.labelled_scores.equal_chance_mask`). `training/rescale.py` fits the base rates and the scale.
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
from metaprobe.probes.quality import MAIN_HEADS, QualityPredictor
from metaprobe.probes.training_runs import BASE_RATES_KEY, BaseRates, name_of_run
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

MIN_TESTED_ANSWERS = 10
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

    Each model has a base rate of its own. The curve of flag rates is computed again. If there are too few labels, the
    previous curve is moved along with the scores. A threshold for which there are too few labels is left out, and the
    card says so.

    Raises `RecordError` for fewer than 20 labels, fewer than 3 of either kind, or too few for the option in `flags`.
    Raises `ContractMismatch` for a checkpoint whose score is no probability, and `CheckpointExists` if `out` is the
    checkpoint itself, or may not be replaced.

    Args:
        checkpoint: the folder of the predictor.
        labelled: scores that the predictor gave, with labels.
        out: the folder to write.
        sha256: digest that the checkpoint must have.
        flags: what the stored threshold flags.
        writing: whether a checkpoint in `out` may be replaced.
        seed: the seed of folds and resamples.
        command: how the training was started, for the checkpoint's record.
    """
    require("onnx", "fit")
    predictor = QualityPredictor.load(checkpoint, sha256=sha256)
    base = predictor.checkpoint
    check_rescalable(base, out)
    with writing.replacing():
        check_target(out, base.manifest.kind)
        head = _rescale_main_head(predictor, labelled, seed)
        stored = recalibrated_flags(base.manifest, head, labelled.propensity, flags, seed=seed)
        # A label without a time may belong to any answer given until now.
        last_time, rates = float(labelled.time.max()), head.fit.rates
        learned_until = last_time if (labelled.time > 0).all() else time.time()
        learned_until = max(learned_until, float(base.manifest.contract.get(LEARNED_UNTIL, learned_until)))
        score_map = {"labels": len(labelled), "until": last_time, "scale": head.scale, "base_rate": rates.mean}
        groups, representative_count = len(np.unique(labelled.group)), int(head.representative.sum())
        # A log has no features, so the golden rows of the old checkpoint, which are real answers, check the graph.
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
            contract={**rescaled_contract(predictor, {head.name: head}, {}, learned_until), RECALIBRATED: score_map},
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
                f"labelled answers, {labelled.y.mean():.0%} of them right; {representative_count} of them stand for "
                f"all{stored.lacking}"
            ],
        )


def _rescale_main_head(predictor: QualityPredictor, labelled: LabelledScores, seed: int) -> Rescaled:
    """Returns the head that gives the score, rescaled by the labels. Raises as `recalibrate_quality` does."""
    base = predictor.checkpoint
    heads = probability_heads(base)
    head = next((name for name in MAIN_HEADS if name in heads), None)
    if head is None:
        raise ContractMismatch(
            f"{base.path} gives no probability as its score ({title_of(predictor)}); train it again "
            "in place of recalibrating"
        )
    base_rates = BaseRates.from_contract(base.manifest.contract, heads)
    # A logged score holds the base rate of the answer's model, which is subtracted from the graph's log-odds here.
    before = log_odds_of(labelled.score) - _shifts(labelled, base_rates, head)
    runs = np.array([name_of_run(m) for m in labelled.model.tolist()])
    table, representative = bare_table(labelled.y, labelled.group), equal_chance_mask(labelled.propensity, seed=seed)
    return rescale(head, table, runs, before, base_rates, representative=representative, seed=seed)


def _shifts(labelled: LabelledScores, base_rates: BaseRates | None, head: str) -> Floats:
    """Returns the base-rate shift (n,) that a checkpoint adds to the log-odds of each answer, by the answer's model.

    The shift is 0 for a model without a known base rate.
    """
    names, model_index = np.unique(labelled.model, return_inverse=True)
    shifts = [{} if base_rates is None else base_rates.of_model(model) or {} for model in names.tolist()]
    return np.array([shifts_of_run.get(head, 0.0) for shifts_of_run in shifts])[model_index]


def recalibrated_flags(
    before: Manifest, head: Rescaled, propensity: Floats, options: FlagOptions, *, seed: int = 0
) -> StoredFlags:
    """Returns the stored flagging of a recalibrated predictor: computed from new labels, or the old curve mapped.

    The old curve is mapped with the scores if the randomly drawn labels are too few and one map moves every score.
    Thresholds for `catch` are mapped too, because the order of the wrong answers is unchanged. Thresholds for `risk`
    are dropped, because they depend on the base rate. Raises the errors of `flagging_of`.

    Args:
        before: manifest of the old checkpoint.
        head: the rescaled head.
        propensity: chance (n,) with which each answer was drawn for a label; NaN if it was not drawn.
        options: what the stored threshold flags.
        seed: seed of draws and resamples.
    """
    answers = head.scored
    why_too_few = too_few(answers.table.y, answers.table.groups, calibrating=len(answers.table))
    if (
        not why_too_few or head.has_several_runs or not before.flagging or BASE_RATES_KEY in before.contract
    ):  # or no single map moves every score
        return flagging_of(answers, options, seed=seed)

    def map_threshold(threshold: float) -> float:
        return float(head.calibrator.probability(log_odds_of([threshold]))[0])

    points = tuple(replace(point, threshold=map_threshold(point.threshold)) for point in before.flagging)
    catch_promises = [promise for promise in before.promises if promise.option == "catch"]
    promises = tuple(replace(promise, threshold=map_threshold(promise.threshold)) for promise in catch_promises)
    lacking = (
        f"; the curve of flag rates is that of the checkpoint before, its scores moved with the others: {why_too_few}"
    )
    stored = StoredFlags({}, points, promises, lacking=lacking)
    # The expected share of wrong answers among all: a labelled answer counts as 1 / propensity answers.
    was_drawn = np.isfinite(propensity)
    weights = (
        np.where(was_drawn, 1 / np.where(was_drawn, propensity, 1.0), 0.0)
        if was_drawn.any()
        else np.ones(len(was_drawn))
    )
    expected_wrong = float(np.average(1 - sigmoid(head.log_odds), weights=weights))
    rate = float(np.clip(expected_wrong, points[0].rate, points[-1].rate))
    flag_threshold = threshold_of(stored, options) if options.flags else threshold_at(points, rate)
    return with_flag(stored, flag_threshold, options, answers, expected_wrong, seed=seed)


def measure_recalibrated(head: Rescaled, scores: Floats, seed: int) -> dict[str, Interval]:
    """Returns held-out figures of the new probabilities on the representative answers, and the gain over old scores.

    `scores` (n,) are the old ones.
    """
    y, p, before = head.table.y[head.representative], head.held_out[head.representative], scores[head.representative]
    if len(y) < MIN_TESTED_ANSWERS:
        return {}
    weights = cluster_weights(head.table.groups[head.representative].tolist(), seed=seed)
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
    """Returns the scores (n,) that a recalibrated checkpoint gives to answers which the old checkpoint has scored.

    Raises `ContractMismatch` if `new` was not recalibrated from `before`.
    """
    contract = new.manifest.contract
    if contract.get("adapted_from") != before.digest or RECALIBRATED not in contract:
        raise ContractMismatch(f"{new.path} was not recalibrated from {before.path}")
    heads = probability_heads(new)
    head = next(name for name in MAIN_HEADS if name in heads)
    old_rates, new_rates = (
        BaseRates.from_contract(stored_contract, heads) for stored_contract in (before.manifest.contract, contract)
    )
    log_odds = log_odds_of(labelled.score) - _shifts(labelled, old_rates, head)
    log_odds = contract[RECALIBRATED]["scale"] * log_odds + contract[RECALIBRATED]["base_rate"]
    return sigmoid(log_odds + _shifts(labelled, new_rates, head))
