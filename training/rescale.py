"""Corrects a predictor's probabilities by labels: it gets new base rates and a new scale.

    log-odds = base rate of the run + scale x log-odds of the checkpoint

The scale is shrunk towards 1. The shrinkage follows from how much the scales of the checkpoint's own training runs
differ, which its contract says: twenty labels move the scale little, two thousand decide it. The base rate makes the
mean probability the share of right answers. From `MIN_BEND_LABELS` labels on, `adapt` may give high scores another
scale than low ones. The order of answers of one run stays as it is. So for one run, a threshold that is set on all
labels keeps its promise. For several runs it is set on scores whose base rates were fitted without the answer's own
fold, which is nearly the same.

A predictor of agreement is joined with the labels in one fit. Its base rate is drawn towards 0 log-odds, so that few
labels leave agreement nearly as it is. The terms of the log-probabilities get weights of their own, which are drawn
towards 0 (`base_rates.BESIDE_SD`), so that many labels correct the order. Figures and thresholds then come from fits
without the answer's own fold.

`training/adapt.py` gives labelled answers, `training/recalibrate.py` gives scores and labels of a score log.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import (
    Checkpoint,
    CheckpointExists,
)
from metaprobe.checkpoints.checkpoint import LEARNED_UNTIL, check_kind
from metaprobe.checkpoints.flagging import FLAGGED_BY
from metaprobe.checkpoints.manifest import MODEL
from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.probes.blend import BLEND_KIND as BLEND
from metaprobe.probes.blend import BlendPredictor
from metaprobe.probes.quality import FEATURES_INPUT, MAIN_HEADS, QUALITY_KIND, QualityPredictor
from metaprobe.probes.training_runs import BASE_RATES_KEY, CERTAIN, BaseRates
from metaprobe.records.canaries import CANARIES_FILE
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.base_rates import INTERCEPT_SD, LEAST_SCALE, Fit, fit_scale, standardised
from metaprobe.training.calibrators import Beta, Calibrator, Floats, Platt, clustered_se, log_odds_of, sigmoid
from metaprobe.training.evidence import SCALES
from metaprobe.training.export import Export, GraphBuilder, write_checkpoint
from metaprobe.training.folds import group_folds
from metaprobe.training.ladder import WHOLE
from metaprobe.training.thresholds import (
    ScoredAnswers,
    share_below,
)

RECALIBRATED = "recalibrated"
"""Key of a recalibrated predictor's contract: the map from the scores of the previous predictor to its own."""
MIN_RESCALE_LABELS, MIN_RESCALE_LABELS_OF_A_KIND = 20, 3
"""Fewest labelled answers for rescaling, and fewest right and fewest wrong ones among them."""
RESCALE_FOLDS = 5
"""Most folds by group, in which each answer gets a score by a fit without it."""
MIN_BEND_LABELS = 400
"""Fewest labelled answers for fitting a bend. With fewer, even a true bend is hardly ever found."""
BEND_STANDARD_ERRORS = 1.0
"""Number of standard errors by which a bend must lower the log loss on groups left out."""
Inputs = dict[str, NDArray[np.float32]]
AUDITED_BEFORE = "all of them: the order of answers is that of the checkpoint before, audited there"
TERMS_NOT_AUDITED = (
    "all of them: agreement was audited in the checkpoint before, and the weights that the labels add are drawn to 0"
)


@dataclass(frozen=True, slots=True)
class Bend:
    """Point at which a map of log-odds changes its slope, and the width of the change."""

    centre: float
    """Input log-odds at which the slope is the mean of the slopes below and above."""
    spread: float
    """Width, in input log-odds, over which the slope changes."""

    @classmethod
    def of(cls, before: Floats) -> "Bend":
        """Returns the bend at the mean of these log-odds (n,), over their standard deviation."""
        return cls(float(before.mean()), float(before.std()) or 1.0)

    def columns(self, before: Floats) -> Floats:
        """Returns two rising functions (n, 2) of the log-odds (n,): with equal weights their sum is the log-odds."""
        z = (before - self.centre) / self.spread
        low, high = -np.logaddexp(0, -z), np.logaddexp(0, z)
        return np.stack([self.spread * low + self.centre / 2, self.spread * high + self.centre / 2], axis=1)

    def map(self, weights: Floats, mean: float) -> Beta:
        """Returns the map for a run with the base rate `mean`. `weights`: the slopes below and above the bend."""
        below, above = weights.tolist()
        shift = mean + (below + above) / 2 * self.centre
        return Beta(self.centre, self.spread, below * self.spread, above * self.spread, shift)


@dataclass(frozen=True, slots=True, eq=False)
class TermsBeside:
    """The terms of n answers, to which labels give weights beside the log-odds of agreement."""

    values: Floats
    """Standardised terms of each answer (n, m)."""
    centre: Floats
    """Mean of each term (m,), subtracted before scaling."""
    spread: Floats
    """Standard deviation of each term (m,), by which it is divided."""
    width: int
    """Number of features that the checkpoint reads; the terms are the last of them."""

    @classmethod
    def of(cls, features: NDArray[np.float32]) -> "TermsBeside":
        """Returns the terms among the features (n, width) of the labelled answers."""
        return cls(*standardised(WHOLE.of(features)), features.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class JoinedMap:
    """P(y = 1) = sigmoid(slope * log-odds of agreement + terms @ weights + intercept)."""

    slope: float
    weights: Floats
    """Weight of each term (m,), for terms in their own units."""
    intercept: float
    width: int
    name: ClassVar[str] = "platt, with terms"

    def probability(self, before: Floats, features: NDArray[np.float32]) -> Floats:
        """Returns the probabilities (n,) of answers with these log-odds of agreement (n,) and features (n, width)."""
        return sigmoid(self.slope * before + WHOLE.of(features) @ self.weights + self.intercept)

    def add_to(self, graph: GraphBuilder, before: str, output: str = "") -> str:
        """Adds the computation of `probability` to a graph: from log-odds (n, 1) and the graph's features to
        probabilities (n, 1).
        """
        terms = WHOLE.add_to(graph, FEATURES_INPUT, self.width)
        weighted = graph.add("MatMul", terms, graph.number(self.weights[:, None]))
        scaled = graph.add("Add", graph.add("Mul", before, graph.number(self.slope)), graph.number(self.intercept))
        return graph.add("Sigmoid", graph.add("Add", scaled, weighted), name=output)


@dataclass(frozen=True, slots=True, eq=False)
class Rescaled:
    """One head on n labelled answers."""

    name: str
    table: AnswerTable
    runs: NDArray[np.str_]
    """Run of each answer (n,). Answers of one run share a base rate."""
    before: Floats
    """Log-odds (n,) that the checkpoint's graph gives, which are those of an average run."""
    fit: Fit
    """Weights of the log-odds: one for the scale, or two for the parts below and above the `bend`. After them come the
    weights of the terms in `beside`.
    """
    held_out: Floats
    """Probability of each answer (n,), by a fit on the other folds."""
    fold: NDArray[np.int64]
    """Fold that each answer was left out of (n,)."""
    rank_shares: Floats
    """Rank share of each answer (n,): share of the other folds' representative answers that this fit scores lower. For
    answers of one run the rank shares are not needed, because the order of the answers does not change.
    """
    representative: NDArray[np.bool_]
    """Whether each answer (n,) belongs to the sample that represents all answers. Thresholds and figures are computed
    on this sample.
    """
    bend: Bend | None = None
    """Bend of the map; None for a straight map."""
    beside: TermsBeside | None = None
    """Terms that get weights from the labels; None if only the log-odds are read."""

    @property
    def reordered(self) -> bool:
        """Whether labels may have changed the order of answers: there are several runs, or weights of terms."""
        return self.has_several_runs or self.beside is not None

    @property
    def has_several_runs(self) -> bool:
        """Whether the answers are of several runs."""
        return len(np.unique(self.runs)) > 1

    @property
    def scale(self) -> float:
        """The scale of the log-odds; for a map that bends, the mean of its two scales."""
        return float(self.fit.weights[: 1 if self.bend is None else 2].mean())

    @property
    def calibrator(self) -> Platt | Beta:
        """Maps log-odds of the checkpoint to new probabilities in an average run."""
        mean = self.fit.rates.mean
        return Platt(self.scale, mean) if self.bend is None else self.bend.map(self.fit.weights, mean)

    @property
    def says_nothing(self) -> bool:
        """Whether higher scores are not likelier right: the scale is the smallest one, and no terms order answers."""
        is_least = self.scale <= LEAST_SCALE
        return is_least and (self.beside is None or float(auroc(self.table.y, self.held_out)) <= 0.5)

    @property
    def exported(self) -> Platt | Beta | JoinedMap:
        """The map that is added to the checkpoint's graph: the calibrator, with the terms if there are terms."""
        if self.beside is None:
            return self.calibrator
        weights = self.fit.weights[1:] / self.beside.spread
        shift = self.fit.rates.mean - float(weights @ self.beside.centre)
        return JoinedMap(self.scale, weights, shift, self.beside.width)

    @property
    def log_odds(self) -> Floats:
        """Rescaled log-odds (n,), base rates of the runs included."""
        log_odds_of_runs = self.calibrator.logit(self.before) + self.fit.rates.of(self.runs) - self.fit.rates.mean
        return log_odds_of_runs if self.beside is None else log_odds_of_runs + self.beside.values @ self.fit.weights[1:]

    @property
    def in_words(self) -> str:
        """The scale in words; two scales, below and above the bend, if the map bends."""
        if self.beside is not None:
            return f"scale {self.scale:.2f}, with weights of the terms of the log-probabilities beside it"
        if self.bend is None:
            return f"scale {self.scale:.2f}"
        (below, above), centre = self.fit.weights.tolist(), float(sigmoid(np.array(self.bend.centre)))
        return f"scale {below:.2f} far below and {above:.2f} far above {centre:.0%}, a map that bends"

    @property
    def ranking(self) -> Floats:
        """Probabilities (n,) that order the answers. They are held out if labels may have changed the order
        (`reordered`).
        """
        return self.held_out if self.reordered else sigmoid(self.log_odds)

    @property
    def scored(self) -> ScoredAnswers:
        """The answers that represent all answers. No answer's own label has influenced its score."""
        representative_rows = self.representative
        scores = log_odds_of(self.held_out) if self.reordered else self.log_odds
        rows, exported = np.arange(int(representative_rows.sum())), sigmoid(self.log_odds)
        rank_shares = (
            self.rank_shares[representative_rows]
            if self.reordered
            else share_below(exported[representative_rows], exported[representative_rows])
        )
        return ScoredAnswers(
            self.table.rows(representative_rows),
            rows,
            scores[representative_rows],
            Platt(1.0, 0.0),
            exported[representative_rows],
            self.held_out[representative_rows],
            rank_shares,
        )


def rescale(
    name: str,
    table: AnswerTable,
    runs: NDArray[np.str_],
    before: Floats,
    base_rates: BaseRates | None,
    *,
    representative: NDArray[np.bool_] | None = None,
    may_bend: bool = False,
    mean_sd: float = INTERCEPT_SD,
    beside: TermsBeside | None = None,
    seed: int = 0,
) -> Rescaled:
    """Returns the head with base rates and scale fitted to the labels of the table, and held-out scores by folds.

    Raises `RecordError` for fewer than 20 labelled answers, for fewer than 3 of either kind, and if all are of one
    group.

    Args:
        name: name of the head.
        table: the n labelled answers.
        runs: run of each answer (n,). Answers of one run share a base rate.
        before: log-odds (n,) of the checkpoint, for an average run.
        base_rates: base rates that the checkpoint knows of its own runs.
        representative: whether each answer (n,) belongs to the sample that represents all answers; all by default.
        may_bend: whether, from `MIN_BEND_LABELS` labels on, the map may have another scale for high scores than for low
            ones. It gets a bend if this lowers the log loss on groups left out by more than a standard error.
        mean_sd: standard deviation of the prior of the base rates' mean (`fit_scale`).
        beside: the terms of the answers, which get weights too; the map then never bends. None for no terms.
        seed: seed of the folds.
    """
    y, groups = table.y, table.groups
    one_count = int(y.sum())
    rarer_count = min(one_count, len(y) - one_count)
    if len(y) < MIN_RESCALE_LABELS or rarer_count < MIN_RESCALE_LABELS_OF_A_KIND:
        raise RecordError(
            f"{name}: {len(y)} labelled answers, {one_count} of label 1 and {len(y) - one_count} of label 0; a new "
            "base rate "
            f"takes {MIN_RESCALE_LABELS}, with {MIN_RESCALE_LABELS_OF_A_KIND} of either kind: label more (`metaprobe "
            "sample` chooses which)"
        )
    scales = 0.0 if base_rates is None else base_rates.scale.get(name, 0.0)
    is_representative = np.ones(len(y), dtype=np.bool_) if representative is None else representative
    folds = min(RESCALE_FOLDS, rarer_count, len(np.unique(groups)))
    if folds < 2:
        raise RecordError(
            f"{name}: all {len(y)} labelled answers are of one group; expected several, for answers are held out "
            "by group: give those that do not belong together groups of their own"
        )
    fold_parts = list(group_folds(np.arange(len(y)), groups.tolist(), y, folds, seed))

    def fit_map(bend: Bend | None) -> Rescaled:
        held_out, rank_shares, fold = np.full(len(y), np.nan), np.full(len(y), np.nan), np.zeros(len(y), dtype=np.int64)
        columns = before[:, None] if bend is None else bend.columns(before)
        terms = np.empty((len(y), 0)) if beside is None else beside.values
        design = np.column_stack([columns, terms])
        for fold_index, (rest, part) in enumerate(fold_parts):
            fold_fit = fit_scale(columns[rest], y[rest], runs[rest], scales=scales, mean_sd=mean_sd, beside=terms[rest])
            logit = design @ fold_fit.weights + fold_fit.rates.of(runs)
            held_out[part], fold[part] = sigmoid(logit[part]), fold_index
            representative_rest = rest[is_representative[rest]]
            rank_shares[part] = share_below(
                logit[representative_rest if len(representative_rest) else rest], logit[part]
            )
        final_fit = fit_scale(columns, y, runs, scales=scales, mean_sd=mean_sd, beside=terms)
        return Rescaled(
            name, table, runs, before, final_fit, held_out, fold, rank_shares, is_representative, bend, beside
        )

    straight = fit_map(None)
    if not may_bend or len(y) < MIN_BEND_LABELS or beside is not None:
        return straight
    bent = fit_map(Bend.of(before))
    return bent if bend_pays(straight, bent) else straight


def bend_pays(straight: Rescaled, bent: Rescaled) -> bool:
    """Returns whether the bend lowers the log loss on groups left out by more than a standard error."""
    y, groups = straight.table.y, straight.table.groups
    losses = [
        np.logaddexp(0, np.where(y == 1, -logit, logit))
        for logit in map(log_odds_of, (straight.held_out, bent.held_out))
    ]
    gain, cluster = losses[0] - losses[1], np.unique(groups, return_inverse=True)[1]
    return bool(gain.mean() > BEND_STANDARD_ERRORS * clustered_se(gain, cluster))


def probability_heads(checkpoint: Checkpoint) -> list[str]:
    """Returns the names of the checkpoint's heads that are probabilities."""
    return [output.name for output in checkpoint.manifest.outputs if output.name not in SCALES]


def write_rescaled(
    predictor: QualityPredictor,
    rescaled: Mapping[str, Rescaled],
    out: str | Path,
    inputs: Inputs,
    *,
    sources: Mapping[str, str] = MappingProxyType({}),
    **fields: Any,
) -> Checkpoint:
    """Writes the predictor with the rescaled heads. The graph is checked on the inputs of n answers.

    Args:
        predictor: the predictor that is rescaled.
        rescaled: maps a head to its new base rates and scale.
        out: the folder to write.
        inputs: maps the name of an input of the graph to its values (n, d).
        sources: maps a head to the old output that it is computed from; by default the output of the same name.
        **fields: fields of the `Export` that depend on the labels.
    """
    base, maps = predictor.checkpoint, {name: head.exported for name, head in rescaled.items()}
    values_given = {name: values.ravel().astype(np.float64) for name, values in base.run(inputs).items()}
    expected = dict(values_given)
    for name, output_map in maps.items():
        before = log_odds_of(values_given[sources.get(name, name)])
        if isinstance(output_map, JoinedMap):
            expected[name] = output_map.probability(before, inputs[FEATURES_INPUT])
        else:
            expected[name] = output_map.probability(before)
    terms_read = any(head.beside is not None for head in rescaled.values())
    return write_checkpoint(
        out,
        Export(
            kind=base.manifest.kind,
            graph=map_outputs((Path(base.path) / MODEL).read_bytes(), maps, sources),
            inputs=inputs,
            expected=expected,
            calibration=", ".join(dict.fromkeys(output_map.name for output_map in maps.values())),
            not_audited=[TERMS_NOT_AUDITED if terms_read else AUDITED_BEFORE],
            packages=("onnx",),
            extra={name: data for name, data in base.extra.items() if name == CANARIES_FILE},
            **fields,
        ),
    )


def rescaled_contract(
    predictor: QualityPredictor, heads: Mapping[str, Rescaled], scales: Mapping[str, float], until: float
) -> dict[str, Any]:
    """Returns the predictor's contract with the new base rates.

    Args:
        predictor: the predictor that is rescaled.
        heads: maps a head to its new base rates and scale.
        scales: maps a head to how much the scales of its training runs differ.
        until: time, in seconds since 1970, until which the new predictor has learned.
    """
    contract = dict(predictor.checkpoint.manifest.contract)
    contract.pop(RECALIBRATED, None)  # describes an earlier recalibration
    contract.pop(BASE_RATES_KEY, None)
    if set(heads) & set(MAIN_HEADS):  # the flag now lies on the score
        contract.pop(FLAGGED_BY, None)
        contract["targets"] = list(dict.fromkeys([*heads, *contract.get("targets", ())]))
        contract["kinds"] = dict.fromkeys(heads, "binary") | dict(contract.get("kinds", {}))
    runs: dict[str, dict[str, float]] = {}
    for name, head in heads.items():
        for run, offset in head.fit.rates.runs.items():
            runs.setdefault(run, {})[name] = offset
    if len(runs) > 1:  # with one run, the map of the graph holds its base rate
        contract[BASE_RATES_KEY] = {
            "between": {name: head.fit.rates.between for name, head in heads.items()},
            "scale": dict(scales),
            "average": {name: float(head.table.y.mean()) for name, head in heads.items()},
            "runs": runs,
        }
    return contract | {"adapted_from": predictor.checkpoint.digest, LEARNED_UNTIL: until}


def check_rescalable(checkpoint: Checkpoint, out: str | Path) -> None:
    """Raises `ContractMismatch` if a checkpoint is no predictor, and `CheckpointExists` if `out` is its folder."""
    check_kind(checkpoint.path, checkpoint.manifest.kind, QUALITY_KIND, BLEND)
    if Path(out).resolve() == Path(checkpoint.path).resolve():
        raise CheckpointExists(
            f"{out} is the checkpoint itself, which may be in service; give another folder, so that this one can be "
            "gone back to"
        )


def title_of(predictor: QualityPredictor) -> str:
    """Returns the title of a predictor's card, from its kind and heads."""
    kind = "Blend" if isinstance(predictor, BlendPredictor) else "Quality predictor"
    return f"{kind}: {' and '.join(output.name for output in predictor.checkpoint.manifest.outputs)}"


def map_outputs(
    graph: bytes, maps: Mapping[str, Calibrator | JoinedMap], sources: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """Returns the graph with each named output, a probability, replaced by a map of its log-odds.

    Args:
        graph: the graph.
        maps: maps the name of an output to its map.
        sources: maps an output to the output that it is computed from, if they differ; the latter is kept unchanged.
    """
    onnx = require("onnx", "fit")
    model = onnx.load_from_string(graph)
    for name, calibrator in maps.items():
        source = sources.get(name, name)
        if source != name:
            added_nodes = GraphBuilder(f"{name}/")
            calibrator.add_to(added_nodes, _log_odds_in(added_nodes, source), name)
            model.graph.initializer.extend(added_nodes.initializers())
            model.graph.node.extend(added_nodes.nodes)
            output_info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, 1])
            model.graph.output.insert(0, output_info)
            continue
        # The old output is renamed, and the map computes the output from it. A prefix that no name of the graph has is
        # needed, because a graph may be mapped repeatedly.
        names_taken = [node.name for node in model.graph.initializer]
        prefixes = (name, *(f"{name}/{n}" for n in range(1, len(names_taken) + 1)))
        prefix = next(prefix for prefix in prefixes if not any(other.startswith(f"{prefix}/") for other in names_taken))
        source_name = f"{prefix}/before"
        for node in model.graph.node:
            node.input[:] = [source_name if value == name else value for value in node.input]
            node.output[:] = [source_name if value == name else value for value in node.output]
        added_nodes = GraphBuilder(f"{prefix}/")
        calibrator.add_to(added_nodes, _log_odds_in(added_nodes, source_name), name)
        model.graph.initializer.extend(added_nodes.initializers())
        model.graph.node.extend(added_nodes.nodes)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def _log_odds_in(graph: GraphBuilder, probability: str) -> str:
    """Adds the log-odds of a probability to a graph, and returns their name."""
    p = graph.add("Clip", probability, graph.number(CERTAIN), graph.number(1 - CERTAIN))
    q = graph.add("Sub", graph.number(1.0), p)
    return graph.add("Sub", graph.add("Log", p), graph.add("Log", q))
