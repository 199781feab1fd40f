"""The same predictor with probabilities that labels have made right: base rates and a scale.

    log-odds = base rate of the run + scale x what the checkpoint says of the answer

The scale is shrunk towards 1, by as much as the scales of the checkpoint's own training runs differ (their spread is in
its contract), so that twenty labels move it little and two thousand decide. The base rate makes the mean probability
the share of right answers. Of a predictor that was taught agreement it is drawn towards 0 log-odds, so that few labels
leave agreement nearly as it is. From `BEND_FROM` labels on, `adapt` may give high scores another scale than low ones.
The order of answers of one run stays as it is: of one run a threshold that is set on all labels therefore keeps its
promise. Of several runs it is set on scores whose base rates were fitted without the answer's own fold, which is nearly
the same.

`adapt` takes labelled answers with what the checkpoint reads of them, for one that is new to a model. `recalibrate`
takes scores and labels of a score log; no answer is read again. Logged answers may have been chosen for labels by their
scores: the curve of right answers over the score is not changed by that. Thresholds and figures are, and are therefore
made on labels that are thinned to a plain draw (`records.labelled_scores.thin`).
"""

import dataclasses
import hashlib
import json
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.checkpoints import (
    Checkpoint,
    CheckpointExists,
    ContractMismatch,
    FlagOptions,
    Generator,
    Training,
    check_target,
)
from metaprobe.checkpoints.checkpoint import check_kind
from metaprobe.checkpoints.flagging import AGREEMENT, FLAGGED_BY, USUAL_FLAGS, threshold_at, threshold_of
from metaprobe.checkpoints.manifest import GOLDEN, MODEL, Manifest
from metaprobe.eval.compare import Judged, method_results
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.calibration import brier, brier_skill, ece_interval
from metaprobe.eval.metrics.ranked import auroc, auroc_within
from metaprobe.eval.table import AnswerTable, answer_table, bare_table
from metaprobe.probes.blend import BLEND_KIND as BLEND
from metaprobe.probes.blend import INPUT_NAMES, STATED_INPUTS, BlendPredictor
from metaprobe.probes.contract import CERTAIN, CONTRACT, ITSELF, BaseRates, name_of_run, other_reader
from metaprobe.probes.decisions import DecisionPredictor, answers_of
from metaprobe.probes.features import features
from metaprobe.probes.quality import CRITICAL_HEAD, FEATURES_INPUT, MAIN_HEADS, QUALITY_KIND, QualityPredictor
from metaprobe.probes.score_lines import StoredStates
from metaprobe.records.bad_lines import BadFile, reason_of
from metaprobe.records.canaries import CANARIES_FILE
from metaprobe.records.errors import InvalidResponse, RecordError, of_kind
from metaprobe.records.extras import require
from metaprobe.records.labelled_scores import LabelledScores, thin
from metaprobe.records.parse import parse_response
from metaprobe.records.reading import without_surrogates
from metaprobe.records.response import cut_to_answer
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Run, Statement
from metaprobe.training.calibration import Beta, Calibrator, Floats, Platt, clustered_se, log_odds_of, mean_gap, sigmoid
from metaprobe.training.checkpoint import NO_FLAGS, Export, GraphBuilder, StoredFlags, write_checkpoint
from metaprobe.training.evidence import SCALES, Evidence, evidence_of, load_runs, read_decisions, runs_of
from metaprobe.training.folds import group_folds, join_copies
from metaprobe.training.ladder import AGREEMENT_SD, INTERCEPT_SD, LEAST_SCALE, Fit, fit_scale
from metaprobe.training.options import LEFT_OUT, NEW_ONLY, LineOptions, ReplaceOptions
from metaprobe.training.study import ENOUGH_FOR_ECE, figures_within
from metaprobe.training.thresholds import (
    ScoredAnswers,
    critical_thresholds,
    flagging_of,
    share_below,
    too_few,
    with_flag,
)

NO_ORDER = (
    "answers with higher scores are not right more often here, so that the adapted scores say next to nothing: look at "
    "the labels, or train on them"
)
CORRECT = MAIN_HEADS[0]
"""The head that labels make of agreement."""
RECALIBRATED = "recalibrated"
"""In the contract of a recalibrated predictor: how its scores follow from those of the one before."""
LEARNED_UNTIL = "learned_until"
"""In the contract: no answer after that time (seconds since 1970) gave a label by which the predictor was adapted or
recalibrated, nor one of those that it was made from."""
FEWEST, FEWEST_OF_A_KIND = 20, 3
"""Labelled answers, and of them right and wrong ones, below which nothing is rescaled."""
FEWEST_TESTED = 10
"""Answers of a plain draw below which nothing is measured after a recalibration."""
RESCALE_FOLDS = 5
BEND_FROM = 400
"""Labelled answers from which a map may bend. Of fewer a bend that is there is hardly ever found."""
BEND_SURE = 1.0
"""Standard errors by which a bend must lower the log loss on groups left out."""
Inputs = dict[str, NDArray[np.float32]]
AUDITED_BEFORE = "all of them: the order of answers is that of the checkpoint before, audited there"


@dataclass(frozen=True, slots=True)
class Bend:
    """Where a map of log-odds changes its slope, and over which width."""

    centre: float
    """Log-odds before at which the slope is the mean of the two."""
    spread: float
    """Log-odds before over which the slope changes."""

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
        """Returns the map of these two weights of the columns, of a run whose base rate is `mean`."""
        below, above = weights.tolist()
        shift = mean + (below + above) / 2 * self.centre
        return Beta(self.centre, self.spread, below * self.spread, above * self.spread, shift)


@dataclass(frozen=True, slots=True, eq=False)
class Rescaled:
    """One head on n labelled answers."""

    name: str
    table: AnswerTable
    runs: NDArray[np.str_]
    """(n,): which answers have a base rate in common."""
    before: Floats
    """(n,): log-odds that the checkpoint's graph gives, which are those of an average run."""
    fit: Fit
    """Weights of the log-odds, one for the scale, or two for those below and above the `bend`."""
    held_out: Floats
    """(n,): probabilities, each by a fit on the other folds."""
    fold: NDArray[np.int64]
    """(n,): the fold that each answer was left out of."""
    places: Floats
    """(n,): share of the other folds' answers, of those that stand for all, that this fit scores lower. For answers of
    one run, whose order is that of before, it is not needed."""
    plain: NDArray[np.bool_]
    """(n,): answers that stand for all answers, as a plain draw would. Thresholds and figures are made on them."""
    bend: Bend | None = None
    """Where and how softly the map bends; None for a straight one."""

    @property
    def several(self) -> bool:
        """Whether the answers are of several runs."""
        return len(np.unique(self.runs)) > 1

    @property
    def scale(self) -> float:
        """The scale of the log-odds; of a map that bends, the mean of its two."""
        return float(self.fit.weights.mean())

    @property
    def calibrator(self) -> Platt | Beta:
        """Maps log-odds before to probabilities of an average run."""
        mean = self.fit.rates.mean
        return Platt(self.scale, mean) if self.bend is None else self.bend.map(self.fit.weights, mean)

    @property
    def log_odds(self) -> Floats:
        """(n,): rescaled, the base rates of the runs included."""
        return self.calibrator.logit(self.before) + self.fit.rates.of(self.runs) - self.fit.rates.mean

    @property
    def in_words(self) -> str:
        """The scale, or the scales below and above the bend."""
        if self.bend is None:
            return f"scale {self.scale:.2f}"
        (below, above), centre = self.fit.weights.tolist(), float(sigmoid(np.array(self.bend.centre)))
        return f"scale {below:.2f} far below and {above:.2f} far above {centre:.0%}, a map that bends"

    @property
    def ranking(self) -> Floats:
        """(n,): probabilities that order the answers. The order within one run is that of before, whatever is fitted,
        and needs no holding out; that of several runs does."""
        return self.held_out if self.several else sigmoid(self.log_odds)

    @property
    def scored(self) -> ScoredAnswers:
        """The answers that stand for all, with scores whose order no label of the answer itself has made."""
        at = self.plain
        scores = log_odds_of(self.held_out) if self.several else self.log_odds
        rows, exported = np.arange(int(at.sum())), sigmoid(self.log_odds)
        places = self.places[at] if self.several else share_below(exported[at], exported[at])
        return ScoredAnswers(
            self.table.rows(at), rows, scores[at], Platt(1.0, 0.0), exported[at], self.held_out[at], places
        )


def rescale(
    name: str,
    table: AnswerTable,
    runs: NDArray[np.str_],
    before: Floats,
    known: BaseRates | None,
    *,
    plain: NDArray[np.bool_] | None = None,
    may_bend: bool = False,
    mean_sd: float = INTERCEPT_SD,
    seed: int = 0,
) -> Rescaled:
    """Returns the head with base rates and scale by the labels of the table, and what folds by group say of it.

    Raises `RecordError` for fewer than 20 labelled answers, or fewer than 3 of either kind, and where all are of one
    group.

    Args:
        name: of the head.
        table: the n labelled answers.
        runs: (n,) which answers have a base rate in common.
        before: (n,) log-odds of the checkpoint, of an average run.
        known: what the checkpoint knows of its own runs.
        plain: (n,) answers that stand for all answers; all by default.
        may_bend: whether, from `BEND_FROM` labels on, the map may have another scale for high scores than for low
            ones. It then bends where that lowers the log loss on groups left out by more than a standard error.
        mean_sd: of the prior of the base rates' mean (`fit_scale`).
        seed: of the folds.
    """
    y, groups = table.y, table.groups
    ones = int(y.sum())
    fewer = min(ones, len(y) - ones)
    if len(y) < FEWEST or fewer < FEWEST_OF_A_KIND:
        raise RecordError(
            f"{name}: {len(y)} labelled answers, {ones} of label 1 and {len(y) - ones} of label 0; a new base rate "
            f"takes {FEWEST}, with {FEWEST_OF_A_KIND} of either kind: label more (`metaprobe sample` chooses which)"
        )
    scales = 0.0 if known is None else known.scale.get(name, 0.0)
    stands = np.ones(len(y), dtype=np.bool_) if plain is None else plain
    folds = min(RESCALE_FOLDS, fewer, len(np.unique(groups)))
    if folds < 2:
        raise RecordError(
            f"{name}: all {len(y)} labelled answers are of one group; expected several, for answers are held out "
            "by group: give those that do not belong together groups of their own"
        )
    parts = list(group_folds(np.arange(len(y)), groups.tolist(), y, folds, seed))

    def fitted(bend: Bend | None) -> Rescaled:
        held_out, places, fold = np.full(len(y), np.nan), np.full(len(y), np.nan), np.zeros(len(y), dtype=np.int64)
        columns = before[:, None] if bend is None else bend.columns(before)
        for number, (rest, part) in enumerate(parts):
            of = fit_scale(columns[rest], y[rest], runs[rest], scales=scales, mean_sd=mean_sd)
            logit = columns @ of.weights + of.rates.of(runs)
            held_out[part], fold[part] = sigmoid(logit[part]), number
            standing = rest[stands[rest]]
            places[part] = share_below(logit[standing if len(standing) else rest], logit[part])
        whole = fit_scale(columns, y, runs, scales=scales, mean_sd=mean_sd)
        return Rescaled(name, table, runs, before, whole, held_out, fold, places, stands, bend)

    straight = fitted(None)
    if not may_bend or len(y) < BEND_FROM:
        return straight
    bent = fitted(Bend.of(before))
    return bent if bend_pays(straight, bent) else straight


def bend_pays(straight: Rescaled, bent: Rescaled) -> bool:
    """Returns whether the bend lowers the log loss on groups left out by more than a standard error."""
    y, groups = straight.table.y, straight.table.groups
    losses = [
        np.logaddexp(0, np.where(y == 1, -logit, logit))
        for logit in map(log_odds_of, (straight.held_out, bent.held_out))
    ]
    gain, cluster = losses[0] - losses[1], np.unique(groups, return_inverse=True)[1]
    return bool(gain.mean() > BEND_SURE * clustered_se(gain, cluster))


def _heads_of(checkpoint: Checkpoint) -> list[str]:
    """Returns the names of the checkpoint's heads that are probabilities."""
    return [output.name for output in checkpoint.manifest.outputs if output.name not in SCALES]


def _write(
    predictor: QualityPredictor,
    rescaled: Mapping[str, Rescaled],
    out: str | Path,
    inputs: Inputs,
    *,
    sources: Mapping[str, str] = MappingProxyType({}),
    **fields: Any,
) -> Checkpoint:
    """Writes the predictor with the rescaled heads, whose graph is checked on the inputs of n answers.

    Args:
        predictor: the one before.
        rescaled: head -> its new scale.
        out: the folder to write.
        inputs: of the graph, (n, d) each.
        sources: head -> output of the graph before that it is made of; by default its own.
        fields: those of an `Export` that depend on the labels.
    """
    base, maps = predictor.checkpoint, {name: head.calibrator for name, head in rescaled.items()}
    expected = {name: values.ravel().astype(np.float64) for name, values in base.run(inputs).items()}
    expected |= {name: one.probability(log_odds_of(expected[sources.get(name, name)])) for name, one in maps.items()}
    return write_checkpoint(
        out,
        Export(
            kind=base.manifest.kind,
            graph=map_outputs((Path(base.path) / MODEL).read_bytes(), maps, sources),
            inputs=inputs,
            expected=expected,
            calibration=", ".join(dict.fromkeys(one.name for one in maps.values())),
            not_audited=[AUDITED_BEFORE],
            packages=("onnx",),
            extra={name: data for name, data in base.extra.items() if name == CANARIES_FILE},
            **fields,
        ),
    )


def _contract(
    predictor: QualityPredictor, heads: Mapping[str, Rescaled], scales: Mapping[str, float], until: float
) -> dict[str, Any]:
    """Returns the contract of before with the new base rates. `scales`: head -> how much the runs' scales differ."""
    contract = dict(predictor.checkpoint.manifest.contract)
    contract.pop(RECALIBRATED, None)  # which was of the one before
    contract.pop(CONTRACT, None)
    if set(heads) & set(MAIN_HEADS):  # the flag now lies on the score
        contract.pop(FLAGGED_BY, None)
        contract["targets"] = list(dict.fromkeys([*heads, *contract.get("targets", ())]))
        contract["kinds"] = dict.fromkeys(heads, "binary") | dict(contract.get("kinds", {}))
    runs: dict[str, dict[str, float]] = {}
    for name, head in heads.items():
        for run, offset in head.fit.rates.runs.items():
            runs.setdefault(run, {})[name] = offset
    if len(runs) > 1:  # of one run all is known
        contract[CONTRACT] = {
            "between": {name: head.fit.rates.between for name, head in heads.items()},
            "scale": dict(scales),
            "average": {name: float(head.table.y.mean()) for name, head in heads.items()},
            "runs": runs,
        }
    return contract | {"adapted_from": predictor.checkpoint.digest, LEARNED_UNTIL: until}


def _check_rescalable(checkpoint: Checkpoint, out: str | Path) -> None:
    """Raises `ContractMismatch` for a checkpoint that is no predictor, `CheckpointExists` where `out` is its folder."""
    check_kind(checkpoint.path, checkpoint.manifest.kind, QUALITY_KIND, BLEND)
    if Path(out).resolve() == Path(checkpoint.path).resolve():
        raise CheckpointExists(
            f"{out} is the checkpoint itself, which may be in service; give another folder, so that this one can be "
            "gone back to"
        )


# By labelled answers with their log-probabilities


def adapt_quality(
    checkpoint: str | Path,
    labelled: Sequence[str | Path],
    *,
    out: str | Path,
    flags: FlagOptions = USUAL_FLAGS,
    writing: ReplaceOptions = NEW_ONLY,
    lines: LineOptions = LEFT_OUT,
    stage: str | None = None,
    agent: str | None = None,
    seed: int = 0,
    command: str = "",
) -> Checkpoint:
    """Returns the checkpoint with the base rates and the scale of the labelled answers, written to `out`.

    Every head that is a probability and that has labels there is adapted, the others stay.

    Args:
        checkpoint: the folder of a predictor or blend.
        labelled: run stores, or files of import lines with labels.
        out: the folder to write.
        flags: what the stored threshold flags.
        writing: what of a checkpoint in `out` may be replaced.
        lines: what is done with bad lines; by default they are left out and counted.
        stage: only answers of this stage; by default all labelled answers.
        agent: only answers of this agent; by default all.
        seed: the seed of folds and resamples.
        command: how the training was started, for the checkpoint's record.

    Raises `RecordError` where there are fewer than 20 labelled answers of a head, fewer than 3 of either kind, or too
    few for the option in `flags`.
    """
    require("onnx", "fit")
    with writing.replacing(), lines.handling():
        predictor = QualityPredictor.load(checkpoint)
        check_target(out, predictor.checkpoint.manifest.kind)
        runs = chosen_calls(load_runs(labelled), stage, agent)
        if isinstance(predictor, BlendPredictor):
            # The labelled calls get the hidden states that their store has and the blend reads.
            stores = [StoredStates(RunStore(path), predictor) for path in map(Path, labelled) if path.is_dir()]
            wanted = {label.call_id for run in runs for label in run.labels}

            def with_states(call: Call) -> Call:
                held = (states.of(call.id) for states in stores) if call.id in wanted else ()
                return replace(call, hidden=next((one for one in held if one is not None), call.hidden))

            runs = [replace(run, calls=tuple(map(with_states, run.calls))) for run in runs]
        return adapt_predictor(predictor, runs, out=out, flags=flags, seed=seed, command=command)


def chosen_calls(runs: Sequence[Run], stage: str | None, agent: str | None) -> list[Run]:
    """Returns the runs with the labels of the calls of that stage and agent alone; None stands for any.

    Raises `RecordError`, with the stages and agents that there are, where no labelled call is one of these.
    """
    if stage is None and agent is None:
        return list(runs)
    calls = {call.id: call for run in runs for call in run.calls}
    there = {label.call_id for run in runs for label in run.labels} & calls.keys()
    wanted = {id for id in there if stage in (None, calls[id].stage) and agent in (None, calls[id].agent)}
    if not wanted:
        stages, agents = ({getattr(calls[id], name) for id in there} for name in ("stage", "agent"))
        raise RecordError(
            f"no labelled answer is of stage {stage or 'any'} and agent {agent or 'any'}; expected one of the stages "
            f"{', '.join(sorted(stages)) or '(none)'} and the agents {', '.join(sorted(agents)) or '(none)'}"
        )
    return [replace(run, labels=tuple(one for one in run.labels if one.call_id in wanted)) for run in runs]


def adapt_predictor(
    predictor: QualityPredictor,
    runs: Sequence[Run],
    *,
    out: str | Path,
    flags: FlagOptions = USUAL_FLAGS,
    seed: int = 0,
    command: str = "",
) -> Checkpoint:
    """Adapts to runs in memory. Raises `CheckpointExists` where `out` is the predictor's own folder."""
    _check_rescalable(predictor.checkpoint, out)
    if predictor.schema.uses_top:
        raise RecordError(
            f"the checkpoint reads the schema {predictor.schema.name!r}; expected one without '+top', "
            "for the labelled answers' log-probabilities are all that is adapted to: train on them instead"
        )
    runs = [with_whole_names(one) for one in runs]
    heads = _heads_of(predictor.checkpoint)
    sources = {name: name for name in heads}
    if AGREEMENT in heads and CORRECT not in heads:
        # Labels make a probability of being right of what was learned without any; the head of before stays beside it.
        sources, heads = {CORRECT: AGREEMENT}, [CORRECT]
    known = BaseRates.from_contract(predictor.checkpoint.manifest.contract, heads)
    labels = {label.name for one in runs for label in one.labels}
    if not (targets := [name for name in heads if name in labels]):
        raise RecordError(
            f"the labelled answers hold {'labels ' + ', '.join(sorted(labels)) if labels else 'no labels'}; the "
            f"checkpoint's heads that are probabilities are {', '.join(heads)}: label at least one of these, as "
            f'"labels": {{"{heads[0] if heads else "correct"}": 1}}'
        )
    decided, blended = isinstance(predictor, DecisionPredictor), isinstance(predictor, BlendPredictor)
    tables = {name: answer_table(runs, target=name, bare=decided or blended) for name in targets}
    gathered = evidence_of(runs, tables)
    for name, evidence in gathered.items():  # answers that agree token by token are copies, of one group
        table, note = join_copies(evidence.table)
        regrouped = "; ".join(filter(None, (evidence.regrouped, note)))
        gathered[name] = replace(evidence, table=table, regrouped=regrouped)
    if decided:
        gathered = {name: read_decisions(evidence, predictor.schema.names) for name, evidence in gathered.items()}
    _check_reader(predictor.checkpoint.manifest.contract, next(iter(gathered.values())))
    adapted: dict[str, Rescaled] = {}
    inputs: dict[str, Inputs] = {}
    for name, evidence in gathered.items():
        table = evidence.table
        inputs[name] = _inputs(predictor, evidence, runs)
        before = log_odds_of(predictor.checkpoint.run(inputs[name])[sources[name]].ravel())
        mean_sd = AGREEMENT_SD if sources[name] == AGREEMENT else INTERCEPT_SD
        adapted[name] = rescale(name, table, runs_of(table), before, known, may_bend=True, mean_sd=mean_sd, seed=seed)
        if adapted[name].scale <= LEAST_SCALE:
            warnings.warn(f"{name}: {NO_ORDER}", stacklevel=2)
    main = next((name for name in MAIN_HEADS if name in adapted), None)
    if main is None and flags.flags:
        raise RecordError(
            f"{next(iter(flags.flags))} sets the threshold of the score, and the labels are of {', '.join(adapted)}: "
            f"label {MAIN_HEADS[0]}, or leave the option out"
        )
    stored = NO_FLAGS if main is None else flagging_of(adapted[main].scored, flags, seed=seed)
    critical: Mapping[str, float] = {}
    if CRITICAL_HEAD in adapted:
        answers = adapted[CRITICAL_HEAD].scored
        turned = replace(answers, table=replace(answers.table, y=1 - answers.table.y), scores=-answers.scores)
        with suppress(RecordError):  # too few groups
            critical = critical_thresholds(turned, seed=seed)
    metrics, lines = dict[str, Interval](), list[str]()
    for name, head in adapted.items():
        prefix = f"{name}." if len(adapted) > 1 else ""
        metrics |= {f"{prefix}{figure}": value for figure, value in measure_adapted(head, seed).items()}
        runs_held = len(np.unique(head.runs))
        line = (
            f"{name}: {head.in_words}, {len(head.table)} labelled answers of {runs_held} "
            f"run{'s' * (runs_held > 1)}, {head.table.y.mean():.0%} of them 1"
        )
        line += f"; {NO_ORDER}" if head.scale <= LEAST_SCALE else ""
        lines += [line + (stored.lacking if name == main else "")]
        lines += filter(None, [gathered[name].without_decisions])
        for part, rows in inputs[name].items() if blended else ():
            if without := int(np.isnan(rows).all(axis=1).sum()):
                lines.append(
                    f"{without} of {len(rows)} labelled answers came without {INPUT_NAMES[part]}, and are scored "
                    "by the rest"
                )
    shown = main or next(iter(adapted))
    scales = {} if known is None else {name: known.scale[name] for name in adapted if name in known.scale}
    return _write(
        predictor,
        adapted,
        out,
        inputs[shown],
        sources=sources,
        title=f"{_titled(predictor)}, adapted",
        summary=(
            f"Checkpoint {predictor.checkpoint.digest[:16]} with the base rates and the scale of "
            f"{len(gathered[shown].table)} labelled answers; the order of answers of one run is as before."
        ),
        contract=_contract(predictor, adapted, scales, time.time()),  # labels do not say when their answers were
        **gathered[shown].origin(seed, command),
        logprobs_reader=gathered[shown].logprobs_reader,
        calibrated_on="the labelled answers; numbers by five folds over their groups",
        metrics=metrics,
        stored=stored,
        thresholds=critical,
        runs=len(np.unique(adapted[shown].runs)),
        heads=lines,
    )


def _inputs(predictor: QualityPredictor, evidence: Evidence, runs: Sequence[Run]) -> Inputs:
    """Returns what the predictor's graph reads of the answers, input -> (n, d).

    Raises `RecordError` for an answer whose hidden states are not those that a blend reads, or may not be scored.
    """
    if isinstance(predictor, DecisionPredictor):
        return {FEATURES_INPUT: evidence.features}
    if not isinstance(predictor, BlendPredictor):
        return {FEATURES_INPUT: features(predictor.schema, list(evidence.table.logprobs))}
    calls = {call.id: (run, call) for run in runs for call in run.calls}
    rows = []
    for call_id in evidence.table.call_ids.tolist():
        run, call = calls[call_id]
        if call.hidden is not None and (fault := predictor.states_fault(call.hidden)):
            raise RecordError(f"call {call_id}: {fault}")
        try:
            rows.append(predictor.inputs(call, **{name: run.stated_of(call, name) for name in STATED_INPUTS}))
        except InvalidResponse as error:
            raise RecordError(f"call {call_id}: {error}") from error
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


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
    strict: bool = False,
    seed: int = 0,
) -> Checkpoint:
    """Adapts to responses, in any format that the predictor reads, each with its label of 0 or 1.

    A response that cannot be read, or whose label is neither 0 nor 1, is left out, with a warning that counts these by
    reason. `replace`: whether the checkpoint in `out` is replaced, where it is not known to be in service. `strict`:
    whether the first such response raises. Raises `RecordError` where more than half cannot be read.
    """
    responses = list(responses)
    shape = np.shape(labels) if isinstance(labels, np.ndarray) else (len(list(labels)),)  # type: ignore[arg-type]
    if shape != (len(responses),) or (groups is not None and len(groups) != len(responses)):
        raise RecordError(
            f"{len(responses)} responses came with labels of shape {shape}"
            f"{'' if groups is None else f' and {len(groups)} groups'}; expected one of each a response"
        )
    runs = []
    bad = BadFile("those given", strict=strict, unit="responses")
    for i, (response, given) in enumerate(zip(responses, labels, strict=True)):  # type: ignore[arg-type]
        name = f"response-{i}"
        group = "" if groups is None or groups[i] is None else str(groups[i])
        item = Item(id=name, task="", group=group or name, question="")
        try:
            label = Label(name, target, _label_value(given), "caller")
            of_run: dict[str, Any] = {"id": name, "system": "adapt", "variant": "", "item": item, "labels": (label,)}
            runs.append(_run_of_response(predictor, response, of_run))
        except RecordError as error:
            if strict:
                raise
            bad.leave_out(of_kind(f"response {i}: {error}", reason_of(error)))
        else:
            bad.sound += 1
    if refusal := bad.refusal():
        raise RecordError(refusal)
    if bad.bad:
        warnings.warn(bad.said(), stacklevel=3)
    with ReplaceOptions(replace=replace).replacing():
        return adapt_predictor(predictor, runs, out=out, flags=flags, seed=seed, command="QualityPredictor.adapt")


def _label_value(given: object) -> float:
    """Returns a label as 0 or 1. Raises `RecordError` for anything else."""
    try:
        value = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise RecordError(
            f"the labels cannot be read as numbers ({error}); expected 0 or 1 for each response"
        ) from error
    if value not in (0.0, 1.0):
        raise RecordError(f"the label is {given!r}; expected 0 or 1 for each response")
    return value


def _run_of_response(predictor: QualityPredictor, response: object, of_run: Mapping[str, Any]) -> Run:
    """Returns the run of one response. Raises `InvalidResponse` for a response that the predictor does not read."""
    name: str = of_run["id"]
    if isinstance(predictor, DecisionPredictor):
        answers = tuple(dataclasses.replace(answer, call_id=name) for answer in answers_of(response))
        return Run(**of_run, calls=(Call(id=name, stage="answer"),), decision_answers=answers)
    parsed = cut_to_answer(parse_response(response))
    call = Call(
        id=name,
        stage="answer",
        hidden=parsed.hidden,
        model=parsed.model or "",
        logprobs=np.asarray(parsed.logprobs, dtype=np.float32),
        logprobs_mode=parsed.logprobs_mode,
        reader=parsed.reader,
        finish_reason=parsed.finish_reason,
    )
    stated = tuple(Statement(name, kind, value) for kind, value in parsed.stated.items())
    return Run(**of_run, calls=(call,), statements=stated)


def _check_reader(contract: Mapping[str, Any], evidence: Evidence) -> None:
    """Raises `RecordError` where another model gave the log-probabilities than those the checkpoint was trained on."""
    reader = evidence.logprobs_reader
    if evidence.generator is not None and (trained := other_reader(reader, contract)):
        raise RecordError(
            f"the labelled answers hold log-probabilities of {reader or ITSELF}, and the checkpoint was trained on "
            f"those of {trained}: read the answers with that model (`metaprobe extract RUNS --logprobs MODEL --out "
            "RUNS2`), or train on them instead"
        )


def _titled(predictor: QualityPredictor) -> str:
    kind = "Blend" if isinstance(predictor, BlendPredictor) else "Quality predictor"
    return f"{kind}: {' and '.join(output.name for output in predictor.checkpoint.manifest.outputs)}"


def measure_adapted(head: Rescaled, seed: int) -> dict[str, Interval]:
    """Returns held-out figures of the adapted scores: order, skill, and how far off they are on average."""
    table, p = head.table, head.held_out
    weights = cluster_weights(table.groups.tolist(), seed=seed)
    [result] = method_results(
        table, [Judged("adapted", "learned", p, head.ranking, 1.0)], fold=head.fold if head.several else None
    )
    metrics = {"auroc": result.auroc, "brier_skill": result.brier_skill, "aurc": result.aurc}
    if len(table) >= ENOUGH_FOR_ECE:
        metrics["ece"] = result.ece
    mean = np.array([values.mean() for values in table.logprobs]) if table.measured else None
    within_fold = auroc_within(head.fold if head.several else None)
    if head.several:
        within = auroc_within(head.fold, head.runs)
        metrics = figures_within(within, table.y, head.before, mean, weights) | metrics
    if mean is not None:
        gain = paired_difference(within_fold, table.y, head.ranking, mean, weights)
        metrics["auroc_gain_over_mean_log_probability"] = gain
    metrics["mean_score_minus_share_right"] = interval(mean_gap, table.y, p, weights)
    return metrics


# By scores and labels of a log


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
    base = predictor.checkpoint
    _check_rescalable(base, out)
    with writing.replacing():
        check_target(out, base.manifest.kind)
        head = _fit_again(predictor, labelled, seed)
        stored = flags_again(base.manifest, head, labelled.propensity, flags, seed=seed)
        # Where a label does not say when its answer was, it may be any that came until now.
        until, rates = float(labelled.time.max()), head.fit.rates
        learned = until if (labelled.time > 0).all() else time.time()
        learned = max(learned, float(base.manifest.contract.get(LEARNED_UNTIL, learned)))
        moved = {"labels": len(labelled), "until": until, "scale": head.scale, "base_rate": rates.mean}
        groups, kept = len(np.unique(labelled.group)), int(head.plain.sum())
        # A log has no features: the golden rows of the checkpoint before are real answers.
        golden = json.loads((Path(base.path) / GOLDEN).read_text(encoding="utf-8"))["inputs"]
        inputs = {  # null is NaN
            name: np.array(one["values"], dtype=np.float32).reshape(one["shape"]) for name, one in golden.items()
        }
        generator, models = base.manifest.generator, [str(name) for name in np.unique(labelled.model) if name]
        if models and (generator is None or set(models) != set(generator.models)):
            mode = "unknown" if generator is None else generator.logprobs_mode
            generator = Generator(models[0], logprobs_mode=mode, others=tuple(models[1:]))
        digest = hashlib.sha256()
        for column in (labelled.score, labelled.label, labelled.time):
            digest.update(np.ascontiguousarray(column, dtype="<f8").tobytes())
        digest.update("\0".join(labelled.group.tolist()).encode())
        return _write(
            predictor,
            {head.name: head},
            out,
            inputs,
            title=f"{_titled(predictor)}, recalibrated",
            summary=(
                f"Checkpoint {base.digest[:16]}, recalibrated by {len(labelled)} labelled answers; the order of "
                "answers of one model is as before."
            ),
            contract={**_contract(predictor, {head.name: head}, {}, learned), RECALIBRATED: moved},
            generator=generator,
            training=Training(digest.hexdigest(), len(labelled), groups, seed, command, ""),
            calibrated_on="the labelled answers; numbers by five folds over them, on those that stand for all answers",
            metrics=measure_recalibrated(head, labelled.score, seed),
            stored=stored,
            # Probabilities of the head `critical` stay as they are.
            thresholds={k: v for k, v in base.manifest.thresholds.items() if k.startswith(CRITICAL_HEAD)},
            runs=len(rates.runs),
            heads=[
                f"{head.name}: scale {head.scale:.2f}, base rate {rates.mean:+.2f} log-odds, by {len(labelled)} "
                f"labelled answers, {labelled.y.mean():.0%} of them right; {kept} of them stand for all{stored.lacking}"
            ],
        )


def _fit_again(predictor: QualityPredictor, labelled: LabelledScores, seed: int) -> Rescaled:
    """Returns the head that gives the score. Raises as `recalibrate_quality` does."""
    base = predictor.checkpoint
    heads = _heads_of(base)
    head = next((name for name in MAIN_HEADS if name in heads), None)
    if head is None:
        raise ContractMismatch(
            f"{base.path} gives no probability as its score ({_titled(predictor)}); train it again "
            "in place of recalibrating"
        )
    known = BaseRates.from_contract(base.manifest.contract, heads)
    # A verdict added the base rate of the answer's model to what the graph gave.
    before = log_odds_of(labelled.score) - _shifts(labelled, known, head)
    runs = np.array([name_of_run(m) for m in labelled.model.tolist()])
    table, plain = bare_table(labelled.y, labelled.group), thin(labelled.propensity, seed=seed)
    return rescale(head, table, runs, before, known, plain=plain, seed=seed)


def _shifts(labelled: LabelledScores, known: BaseRates | None, head: str) -> Floats:
    """Returns what a checkpoint that knows these base rates adds to the log-odds (n,) by the answers' models."""
    names, place = np.unique(labelled.model, return_inverse=True)
    shifts = [{} if known is None else known.of_model(model) or {} for model in names.tolist()]
    return np.array([of.get(head, 0.0) for of in shifts])[place]


def flags_again(
    before: Manifest, head: Rescaled, propensity: Floats, asked: FlagOptions, *, seed: int = 0
) -> StoredFlags:
    """Returns what is stored of flagging: remade by the plain draw, or the curve of before moved with the scores.

    The curve is moved where the plain draw is too small and one map moves every score. The thresholds for `catch` move
    along, for the order of the wrong answers is as before; those for `risk` do not, for they depend on the base rate.
    Raises as `flagging_of` does.
    """
    answers = head.scored
    few = too_few(answers.table.y, answers.table.groups, calibrating=len(answers.table))
    if not few or head.several or not before.flagging or CONTRACT in before.contract:  # there is no one such map
        return flagging_of(answers, asked, seed=seed)

    def move(threshold: float) -> float:
        return float(head.calibrator.probability(log_odds_of([threshold]))[0])

    points = tuple(replace(point, threshold=move(point.threshold)) for point in before.flagging)
    caught = [promise for promise in before.promises if promise.option == "catch"]
    promises = tuple(replace(promise, threshold=move(promise.threshold)) for promise in caught)
    lacking = f"; the curve of flag rates is that of the checkpoint before, its scores moved with the others: {few}"
    stored = StoredFlags({}, points, promises, lacking=lacking)
    # The sum is over all answers: a labelled answer counts as 1 / propensity answers.
    known = np.isfinite(propensity)
    weights = np.where(known, 1 / np.where(known, propensity, 1.0), 0.0) if known.any() else np.ones(len(known))
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


def learned_until(checkpoint: Checkpoint) -> float:
    """Returns the time until which answers gave labels that a checkpoint was adapted by, in seconds since 1970.

    -1 for a checkpoint that was not adapted. Where its contract does not say the time, it is when it was made.
    """
    manifest = checkpoint.manifest
    if "adapted_from" not in manifest.contract:
        return -1.0
    return float(manifest.contract.get(LEARNED_UNTIL, datetime.fromisoformat(manifest.created).timestamp()))


def score_again(new: Checkpoint, before: Checkpoint, labelled: LabelledScores) -> Floats:
    """Returns the scores (n,) that a recalibrated checkpoint gives to answers that the one before has scored.

    Raises `ContractMismatch` for a checkpoint that was not recalibrated from that one.
    """
    contract = new.manifest.contract
    if contract.get("adapted_from") != before.digest or RECALIBRATED not in contract:
        raise ContractMismatch(f"{new.path} was not recalibrated from {before.path}")
    heads = _heads_of(new)
    head = next(name for name in MAIN_HEADS if name in heads)
    old, now = (BaseRates.from_contract(of, heads) for of in (before.manifest.contract, contract))
    log_odds = log_odds_of(labelled.score) - _shifts(labelled, old, head)
    log_odds = contract[RECALIBRATED]["scale"] * log_odds + contract[RECALIBRATED]["base_rate"]
    return sigmoid(log_odds + _shifts(labelled, now, head))


def map_outputs(
    graph: bytes, maps: Mapping[str, Calibrator], sources: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """Returns the graph with each named output, a probability, replaced by a map of its log-odds.

    `sources`: output -> the one that it is made of, where that is another, which stays as it is.
    """
    onnx = require("onnx", "fit")
    model = onnx.load_from_string(graph)
    for name, calibrator in maps.items():
        source = sources.get(name, name)
        if source != name:
            more = GraphBuilder(f"{name}/")
            calibrator.add_to(more, _log_odds_in(more, source), name)
            model.graph.initializer.extend(more.initializers())
            model.graph.node.extend(more.nodes)
            number = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, 1])
            model.graph.output.insert(0, number)
            continue
        taken = [one.name for one in model.graph.initializer]  # a graph may be mapped again and again
        bases = (name, *(f"{name}/{n}" for n in range(1, len(taken) + 1)))
        base = next(base for base in bases if not any(other.startswith(f"{base}/") for other in taken))
        inner = f"{base}/before"
        for one in model.graph.node:
            one.input[:] = [inner if value == name else value for value in one.input]
            one.output[:] = [inner if value == name else value for value in one.output]
        more = GraphBuilder(f"{base}/")
        calibrator.add_to(more, _log_odds_in(more, inner), name)
        model.graph.initializer.extend(more.initializers())
        model.graph.node.extend(more.nodes)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def _log_odds_in(graph: GraphBuilder, probability: str) -> str:
    """Adds the log-odds of a probability to a graph, and returns their name."""
    p = graph.add("Clip", probability, graph.number(CERTAIN), graph.number(1 - CERTAIN))
    q = graph.add("Sub", graph.number(1.0), p)
    return graph.add("Sub", graph.add("Log", p), graph.add("Log", q))


def with_whole_names(run: Run) -> Run:
    """The run with names that a manifest can hold, as a store would give it back."""
    names = {"model", "stage", "agent", "reader"}
    calls = tuple(
        replace(call, **{name: without_surrogates(getattr(call, name)) for name in names}) for call in run.calls
    )
    item = replace(run.item, task=without_surrogates(run.item.task), group=without_surrogates(run.item.group))
    return replace(run, item=item, calls=calls, variant=without_surrogates(run.variant))
