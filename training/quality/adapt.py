"""The same predictor for runs of one's own, from a few dozen labels: base rate and scale, and nothing that they cannot
carry.

    log-odds = base rate of the run + scale x what the checkpoint says of the answer

Both are shrunk towards what the checkpoint's own training runs were like (their spread is in its contract), so that
twenty labels move little and two thousand decide. The order of answers of one run stays as it is: of one run a
threshold that is set on all labels therefore keeps its promise. Of several runs it is set on scores whose base rates
were fitted without the answer's own fold, which is nearly the same.
"""

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.checkpoints import Checkpoint, CheckpointExists, FlagOptions, check_target
from metaprobe.checkpoints.flag_options import USUAL_FLAGS
from metaprobe.checkpoints.manifest import MODEL, RAW
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.table import answer_table
from metaprobe.probes import quality_contract
from metaprobe.probes.base_rates import CERTAIN, CONTRACT, BaseRates
from metaprobe.probes.contract import Readers
from metaprobe.probes.features import features
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.records.types import Run
from metaprobe.training.common.calibrators import Floats, Platt, sigmoid
from metaprobe.training.common.grouping import join_copies
from metaprobe.training.common.heads import SCALES
from metaprobe.training.common.offsets import USUAL_SCALES, Fit, fit_offsets
from metaprobe.training.common.roles import group_folds
from metaprobe.training.common.write_checkpoint import Export, write_checkpoint
from metaprobe.training.crossfit.evidence import evidence_of
from metaprobe.training.crossfit.held_out import training_record
from metaprobe.training.crossfit.methods import RUN_IDENTITY, Evidence
from metaprobe.training.crossfit.stored_thresholds import PROMISES, StoredFlags
from metaprobe.training.options import NEW_ONLY, ReplaceOptions
from metaprobe.training.quality.adapted_head import (
    LEAST_SCALE,
    NO_ORDER,
    Adapted,
    critical_of,
    flags_of,
    line_of,
    measure,
)
from metaprobe.training.quality.labelled_runs import label_responses, read_labelled_runs, with_whole_names

RECALIBRATED = "recalibrated"
"""In the contract of a recalibrated predictor: how its scores follow from those of the one before."""
LEARNED_UNTIL = "learned_until"
"""In the contract: no answer after that time (seconds since 1970) gave a label by which the predictor was adapted or
recalibrated, nor one of those that it was made from."""
FEWEST, FEWEST_OF_A_KIND = 20, 3
"""Labelled answers, and of them right and wrong ones, below which nothing is adapted."""
STRANGER = 1.5
"""Standard deviation, in log-odds, that a new run's base rate has at least: 0.5 may well be 0.18 or 0.82. That a few
training runs were alike says little of the next one."""
FOLDS = 5


def adapt_quality(
    checkpoint: str | Path,
    labelled: Sequence[str | Path],
    *,
    out: str | Path,
    flags: FlagOptions = USUAL_FLAGS,
    writing: ReplaceOptions = NEW_ONLY,
    seed: int = 0,
    command: str = "",
) -> Checkpoint:
    """Returns the checkpoint with the base rates and the scale of the labelled answers, written to `out`.

    `labelled`: run stores, or files of import lines with labels. Every head that is a probability and that has labels
    there is adapted, the others stay. `flags`: what the stored threshold flags. `writing`: what of a
    checkpoint in `out` may be replaced. Raises `RecordError` where there are
    fewer than 20 labelled answers of a head, or fewer than 3 of either kind, or too few for the option in `flags`.
    """
    require("onnx", "fit")
    with writing.replacing():
        check_target(out, quality_contract.KIND)
        runs, predictor = read_labelled_runs(labelled), QualityPredictor.load(checkpoint)
        return adapt_predictor(predictor, runs, out=out, flags=flags, seed=seed, command=command)


def adapt_predictor(
    predictor: QualityPredictor,
    runs: Sequence[Run],
    *,
    out: str | Path,
    flags: FlagOptions = USUAL_FLAGS,
    seed: int = 0,
    command: str = "",
) -> Checkpoint:
    """The same from runs in memory. Raises `CheckpointExists` where `out` is the predictor's own folder."""
    if Path(out).resolve() == Path(predictor.checkpoint.path).resolve():
        raise CheckpointExists(
            f"{out} is the checkpoint that is adapted, and may be in service; give another folder, so that it can be "
            "gone back to"
        )
    manifest = predictor.checkpoint.manifest
    if predictor.schema.uses_top or predictor.schema.uses_segments:
        raise RecordError(
            f"the checkpoint reads the schema {predictor.schema.name!r}; expected one without '+top' and '+segments', "
            "for the labelled answers' log-probabilities are all that is adapted to: train on them instead"
        )
    runs = [with_whole_names(one) for one in runs]
    known = _known(predictor)
    heads = [output.name for output in manifest.outputs if output.name not in SCALES]
    labels = {label.name for one in runs for label in one.labels}
    if not (targets := [name for name in heads if name in labels]):
        raise RecordError(
            f"the labelled answers hold {'labels ' + ', '.join(sorted(labels)) if labels else 'no labels'}; the "
            f"checkpoint's heads that are probabilities are {', '.join(heads)}: label at least one of these, as "
            f'"labels": {{"{heads[0] if heads else "correct"}": 1}}'
        )
    tables = {name: answer_table(runs, target=name) for name in targets}
    gathered = {name: without_copies(evidence) for name, evidence in evidence_of(runs, tables).items()}
    _check_reader(manifest.contract, next(iter(gathered.values())))
    found = {name: _adapt_head(predictor, name, evidence, known, seed) for name, evidence in gathered.items()}
    for name, head in found.items():
        if head.scale <= LEAST_SCALE:
            warnings.warn(f"{name}: {NO_ORDER}", stacklevel=2)
    return _write(predictor, found, out, flags, seed=seed, command=command)


def adapt_responses(
    predictor: QualityPredictor,
    responses: Sequence[object],
    labels: ArrayLike,
    groups: Sequence[object] | None,
    target: str,
    *,
    out: str | Path,
    flags: FlagOptions = USUAL_FLAGS,
    replace: bool = False,
    seed: int = 0,
) -> Checkpoint:
    """The same from responses, in any format of `parse_response`, each with its label of 0 or 1.

    `replace`: whether the checkpoint in `out` is replaced, where it is not known to be in service.
    """
    runs = label_responses(responses, labels, groups, target)
    with ReplaceOptions(replace=replace).replacing():
        return adapt_predictor(predictor, runs, out=out, flags=flags, seed=seed, command="QualityPredictor.adapt")


def _check_reader(contract: Mapping[str, Any], evidence: Evidence) -> None:
    """Raises `RecordError` where another model gave the log-probabilities than those the checkpoint was trained on."""
    readers = Readers.of(evidence.logprobs_reader, contract)
    if evidence.generator is not None and readers.differ():
        raise RecordError(
            f"the labelled answers hold log-probabilities of {readers.found or 'the model that answered'}, and the "
            f"checkpoint was trained on those of {readers.trained or 'the model that answered'}: read the answers with "
            "that model (`metaprobe extract RUNS --logprobs MODEL --out RUNS2`), or train on them instead"
        )


def _known(predictor: QualityPredictor) -> BaseRates | None:
    manifest = predictor.checkpoint.manifest
    heads = [output.name for output in manifest.outputs if output.name not in SCALES]
    return BaseRates.from_contract(manifest.contract, heads)


def _adapt_head(
    predictor: QualityPredictor, name: str, evidence: Evidence, known: BaseRates | None, seed: int
) -> Adapted:
    table = evidence.table
    ones = int(table.y.sum())
    fewer = min(ones, len(table) - ones)
    if len(table) < FEWEST or fewer < FEWEST_OF_A_KIND:
        raise RecordError(
            f"{name}: {len(table)} labelled answers, {ones} of them 1 and {len(table) - ones} of them 0; adapting "
            f"takes {FEWEST}, with {FEWEST_OF_A_KIND} of either kind: label more"
        )
    X = features(predictor.schema, list(table.logprobs))
    value = predictor.checkpoint.run({quality_contract.INPUT: X})[name].ravel().astype(np.float64)
    p = np.clip(value, CERTAIN, 1 - CERTAIN)
    before, runs = np.log(p) - np.log1p(-p), RUN_IDENTITY.cells(table)
    between = 0.0 if known is None else known.between.get(name, 0.0)
    scales = 0.0 if known is None else known.scale.get(name, 0.0)

    def fit(rows: NDArray[np.int64]) -> Fit:
        return fit_scale(before[rows], table.y[rows], runs[rows], between=between, scales=scales)

    held_out, folds = np.full(len(table), np.nan), min(FOLDS, fewer, len(np.unique(table.groups)))
    if folds < 2:
        raise RecordError(
            f"{name}: all {len(table)} labelled answers are of one group; expected several, for answers are held out "
            "by group: give those that do not belong together groups of their own"
        )
    for rest, part in group_folds(np.arange(len(table)), table.groups.tolist(), table.y, folds, seed):
        of = fit(rest)
        held_out[part] = sigmoid(of.weights[0] * before[part] + of.rates.of(runs[part]))
    return Adapted(evidence, before, fit(np.arange(len(table))), held_out)


def without_copies(evidence: Evidence) -> Evidence:
    """The evidence with the groups joined of answers that agree token by token: copies of one."""
    table, note = join_copies(evidence.table)
    return replace(evidence, table=table, regrouped="; ".join(filter(None, (evidence.regrouped, note))))


def fit_scale(
    before: Floats, y: NDArray[np.int64], runs: NDArray[np.str_], *, between: float = 0.0, scales: float = 0.0
) -> Fit:
    """Returns the scale of the log-odds `before` (n,) and the base rates of the runs, by labels y (n,) of 0 and 1.

    `between`, `scales`: how much base rates and scales differed among the runs that gave the log-odds; both are taken
    to be at least `STRANGER` and `USUAL_SCALES`. The scale is at least `LEAST_SCALE`.
    """
    column, mean_sd = before[:, None], max(STRANGER, between)
    found = fit_offsets(column, y, runs, expected=1.0, sd=max(USUAL_SCALES, scales), mean_sd=mean_sd)
    if found.weights[0] < LEAST_SCALE:
        found = fit_offsets(column, y, runs, expected=LEAST_SCALE, sd=1e-6, mean_sd=mean_sd)
    return found


def _write(
    predictor: QualityPredictor,
    heads: Mapping[str, Adapted],
    out: str | Path,
    flags: FlagOptions,
    *,
    seed: int,
    command: str,
) -> Checkpoint:
    base = predictor.checkpoint
    manifest, contract = base.manifest, _contract(predictor, heads)
    maps = {name: Platt(head.scale, head.fit.rates.mean) for name, head in heads.items()}
    main = next((name for name in quality_contract.MAIN_HEADS if name in heads), next(iter(heads)))
    largest = heads[main]
    X = features(predictor.schema, list(largest.table.logprobs))
    kept = base.run({quality_contract.INPUT: X})
    expected = {name: values.ravel().astype(np.float64) for name, values in kept.items()}
    for name, platt in maps.items():
        p = np.clip(expected[name], CERTAIN, 1 - CERTAIN)
        expected[name] = platt.probability(np.log(p) - np.log1p(-p))
    stored, thresholds = _flags(heads, flags, seed)
    metrics: dict[str, Interval] = {}
    lines = []
    for name, head in heads.items():
        prefix = f"{name}." if len(heads) > 1 else ""
        metrics |= {f"{prefix}{figure}": value for figure, value in measure(head, seed).items()}
        lines.append(line_of(name, head) + (stored.lacking if name == main else ""))
    files = {name: (Path(base.path) / name).read_bytes() for name in (MODEL, RAW) if name in (*manifest.files, MODEL)}
    graphs = {name: map_outputs(data, maps) for name, data in files.items()}
    return write_checkpoint(
        out,
        Export(
            kind=quality_contract.KIND,
            title=f"Quality predictor: {' and '.join(expected)}, adapted",
            summary=(
                f"Checkpoint {base.digest[:16]} with the base rates and the scale of {len(largest.table)} labelled "
                "answers; the order of answers of one run is as before."
                + stored.said(runs=len(np.unique(largest.runs)))
                + "".join(PROMISES[name] for name in thresholds if name not in stored.thresholds)
            ),
            graph=graphs[MODEL],
            input_name=quality_contract.INPUT,
            inputs=X,
            expected=expected,
            contract=contract,
            generator=largest.evidence.generator,
            logprobs_reader=largest.evidence.logprobs_reader,
            training=training_record(largest.evidence, seed, command),
            calibration="platt",
            calibrated_on="the labelled answers; numbers by five folds over their groups",
            metrics=metrics,
            not_audited=["all of them: the order of answers is that of the checkpoint before, audited there"],
            thresholds=thresholds,
            flagging=stored.flagging,
            promises=stored.promises,
            operating=stored.operating,
            packages=("onnx",),
            extra={RAW: graphs[RAW]} if RAW in graphs else {},
            heads=lines,
        ),
    )


def _flags(heads: Mapping[str, Adapted], asked: FlagOptions, seed: int) -> tuple[StoredFlags, dict[str, float]]:
    """What is stored of flagging by the score, and all thresholds, those of the head `critical` among them.

    Raises `RecordError` where an option is given and no head that gives the score has labels.
    """
    main = next((name for name in quality_contract.MAIN_HEADS if name in heads), None)
    if main is None and asked.flags:
        raise RecordError(
            f"{next(iter(asked.flags))} sets the threshold of the score, and the labels are of {', '.join(heads)}: "
            f"label {quality_contract.MAIN_HEADS[0]}, or leave the option out"
        )
    stored = StoredFlags() if main is None else flags_of(heads[main], asked, seed)
    critical = heads.get(quality_contract.CRITICAL)
    return stored, {**stored.thresholds, **(critical_of(critical, seed) if critical is not None else {})}


def _contract(predictor: QualityPredictor, heads: Mapping[str, Adapted]) -> dict[str, Any]:
    contract = dict(predictor.checkpoint.manifest.contract)
    contract[CONTRACT] = _base_rates(heads, _known(predictor))
    if len(contract[CONTRACT]["runs"]) < 2:
        del contract[CONTRACT]  # of one run all is known
    contract.pop(RECALIBRATED, None)  # which was of the one before
    # The labels do not say when their answers were.
    return contract | {"adapted_from": predictor.checkpoint.digest, LEARNED_UNTIL: time.time()}


def _base_rates(heads: Mapping[str, Adapted], known: BaseRates | None) -> dict[str, Any]:
    runs: dict[str, dict[str, float]] = {}
    for name, head in heads.items():
        for run, offset in head.fit.rates.runs.items():
            runs.setdefault(run, {})[name] = offset
    return {
        "between": {name: head.fit.rates.between for name, head in heads.items()},
        "scale": {} if known is None else {name: known.scale[name] for name in heads if name in known.scale},
        "average": {name: float(head.table.y.mean()) for name, head in heads.items()},
        "runs": runs,
    }


def map_outputs(graph: bytes, maps: Mapping[str, Platt]) -> bytes:
    """Returns the graph with each named output, a probability, replaced by Platt's map of its log-odds."""
    onnx = require("onnx", "fit")
    model = onnx.load_from_string(graph)
    node, constant = onnx.helper.make_node, onnx.numpy_helper.from_array
    for name, platt in maps.items():
        taken = {one.name for one in model.graph.initializer}  # a graph may be mapped again and again
        base = next(
            base for base in (name, *(f"{name}/{n}" for n in range(1, len(taken)))) if f"{base}/low" not in taken
        )
        inner = f"{base}/before"
        for one in model.graph.node:
            one.input[:] = [inner if value == name else value for value in one.input]
            one.output[:] = [inner if value == name else value for value in one.output]
        own = {key: f"{base}/{key}" for key in ("low", "high", "one", "p", "q", "log_p", "log_q", "log_odds")}
        values = {own["low"]: CERTAIN, own["high"]: 1 - CERTAIN, own["one"]: 1.0}
        model.graph.initializer.extend(constant(np.float32(value), key) for key, value in values.items())
        mapped, constants = platt.onnx_nodes(own["log_odds"], name, f"{base}/adapted")
        model.graph.initializer.extend(constants)
        model.graph.node.extend(
            [
                node("Clip", [inner, own["low"], own["high"]], [own["p"]]),
                node("Sub", [own["one"], own["p"]], [own["q"]]),
                node("Log", [own["p"]], [own["log_p"]]),
                node("Log", [own["q"]], [own["log_q"]]),
                node("Sub", [own["log_p"], own["log_q"]], [own["log_odds"]]),
                *mapped,
            ]
        )
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data
