"""Fit on all groups and export: the quality predictor, a hidden-state probe. Held-out figures come from the folds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from metaprobe.checkpoints import Checkpoint, Generator, Training
from metaprobe.checkpoints.manifest import RAW
from metaprobe.eval.audits import AuditReport
from metaprobe.eval.compare import Judged, auroc_gain, method_results
from metaprobe.eval.metrics import Interval, StratifiedAuroc, auroc, cluster_weights, interval, paired_difference
from metaprobe.eval.results import Audit as Finding
from metaprobe.eval.table import AnswerTable
from metaprobe.probes import hidden as hidden_probe
from metaprobe.probes import quality
from metaprobe.training.audit import audited, out_of_domain
from metaprobe.training.calibrate import Calibrator, choose_calibrator
from metaprobe.training.crossfit import CrossFit
from metaprobe.training.evidence import origin_of_states, reader_contract
from metaprobe.training.export import Export, write_checkpoint
from metaprobe.training.graphs import linear_graph, trees_graph
from metaprobe.training.heads import (
    CRITICAL,
    INVERTED,
    LEVELS,
    QUALITY,
    SCALES,
    FittedHead,
    fit_probability,
)
from metaprobe.training.heads_figures import (
    NOT_AUDITED,
    GradedStudy,
    graded_figures,
    rare_figures,
)
from metaprobe.training.heads_thresholds import PROMISES, critical_thresholds, promised
from metaprobe.training.methods import (
    MEAN_LOGPROB,
    RUN_IDENTITY,
    USUAL_TREES,
    Evidence,
    FeatureTrees,
    HiddenProbe,
    LowRankProbe,
    Method,
    Scores,
)
from metaprobe.training.operating_points import PROMISE, operating_points
from metaprobe.training.raw_parity import checked_raw_graph
from metaprobe.training.roles import Roles, Rows, final_roles
from metaprobe.training.trees import in_memory

ENOUGH_FOR_ECE = 1000
"""Held-out answers below which no calibration error is quoted."""


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """One binary target of the quality predictor: its answers, and what the folds said."""

    evidence: Evidence
    fits: CrossFit
    inverted: bool = False
    """Whether the answers' `y` is 1 where the label is 0."""
    trees: FeatureTrees = USUAL_TREES
    """The recipe."""

    def roles(self, seed: int) -> Roles:
        table = self.evidence.table
        return final_roles(table.groups.tolist(), table.y, seed=seed)


def export_quality(
    path: str | Path, heads: Mapping[str, Head | GradedStudy], *, seed: int, command: str, raw: bool = False
) -> Checkpoint:
    """One calibrated head a target, in one graph.

    The region of support is that of the head with the most answers. `raw` adds `raw.onnx`, the same from
    log-probabilities.
    """
    fitted: dict[str, FittedHead] = {}
    metrics: dict[str, Interval] = {}
    checks: list[Finding] = []
    not_made: list[str] = []
    thresholds: dict[str, float] = {}
    lines: list[str] = []
    several = len(heads) > 1

    def note(target: str, found: Mapping[str, Interval], audits: Sequence[Finding], skipped: Sequence[str]) -> None:
        prefix = f"{target}." if several else ""
        metrics.update({f"{prefix}{name}": value for name, value in found.items()})
        prefix = f"not {target}." if target in INVERTED else prefix  # what the audits saw
        checks.extend(replace(audit, name=f"{prefix}{audit.name}") for audit in audits)
        not_made.extend(f"{prefix}{reason}" for reason in skipped)

    for target, head in heads.items():
        table, X = head.evidence.table, head.evidence.features
        if isinstance(head, GradedStudy):
            level = head.fit(head.roles(seed), seed)
            fitted[target] = level
            figures, audits = graded_figures(head, seed=seed)
            note(target, figures, audits, NOT_AUDITED)
            lines.append(f"{target}: {level.kind}, {_scale(target)}, {len(table)} answers{_constant_steps(head)}")
            continue
        roles = head.roles(seed)
        probability = fit_probability(
            X,
            table.y,
            table.groups,
            roles,
            names=head.evidence.feature_names,
            inverted=head.inverted,
            domain=head.trees.domain(table),
            seed=seed,
        )
        fitted[target] = probability
        figures, report = _held_out(head.evidence, head.fits, head.trees, seed)
        if head.inverted:
            figures |= rare_figures(table, head.fits[head.trees.name].probability, seed=seed)
        note(target, figures, report.audits, report.skipped)
        lines.append(
            f"{target}: {probability.kind}, a probability, {len(table)} answers, {_positive(head):.0%} positive"
        )
        if target == CRITICAL:
            scores = probability.trees.score(X)
            thresholds |= critical_thresholds(scores, table, roles.calibration, probability.calibrator, seed=seed)
        elif target in quality.MAIN_HEADS:
            scores = probability.trees.score(X)
            thresholds |= promised(scores, table, roles.calibration, probability.calibrator, seed=seed)
            thresholds |= _own_points(scores, head.evidence, roles.calibration, probability.calibrator)
    largest = max(heads.values(), key=lambda head: len(head.evidence.table))
    evidence, roles = largest.evidence, largest.roles(seed)
    X = in_memory(evidence.features)
    known = [in_memory(evidence.features[rows]) for rows in (roles.train, roles.calibration)]
    graph = trees_graph(fitted, width=X.shape[1], input_name=quality.INPUT)
    names = list(fitted)
    return write_checkpoint(
        path,
        Export(
            kind=quality.KIND,
            title=f"Quality predictor: {' and '.join(names)}",
            summary=_summary(names, len(evidence.feature_names), thresholds),
            graph=graph,
            input_name=quality.INPUT,
            inputs=X,
            expected={name: head.value(X) for name, head in fitted.items()},
            contract={
                "schema": evidence.schema,
                "features": list(evidence.feature_names),
                "targets": names,
                "kinds": {name: head.kind for name, head in fitted.items()},
                "scales": {name: list(SCALES[name]) for name in names if name in SCALES},
            },
            generator=_shared_generator(heads),
            training=_training(evidence, seed, command),
            calibration=", ".join(dict.fromkeys(name for h in fitted.values() for name in h.calibrations)),
            metrics=metrics,
            audits=checks,
            not_audited=not_made,
            thresholds=thresholds,
            support=quality.Support.fit(*known).to_manifest(),
            packages=("lightgbm", "onnxmltools", "onnx"),
            extra={RAW: checked_raw_graph(graph, evidence.schema, list(evidence.table.logprobs))} if raw else {},
            heads=lines,
        ),
    )


def _own_points(scores: Scores, evidence: Evidence, rows: Rows, calibrator: Calibrator) -> dict[str, float]:
    """The thresholds that take the place of a paper's, from the calibration rows."""
    call_ids = evidence.table.call_ids[rows].tolist()
    return operating_points(calibrator.probability(scores[rows]), call_ids, evidence.evaluated)


def _summary(names: Sequence[str], features: int, thresholds: Mapping[str, float]) -> str:
    said = []
    if binary := [name for name in names if name not in SCALES]:
        said.append(f"Probability that an answer is {' and '.join(binary)}")
    if levels := [name for name in names if name in LEVELS]:
        said.append(f"expected level of {', '.join(levels)}")
    if QUALITY in names:
        said.append("expected Q (the sum of the three levels, 0 where critical)")
    return (
        f"{'; '.join(said)}, from {features} statistics of its token log-probabilities over windows (LightGBM, then a "
        "calibrator)." + "".join((PROMISES | PROMISE)[name] for name in thresholds)
    )


def _scale(target: str) -> str:
    low, high = SCALES[target]
    return f"{low} to {high}"


def _constant_steps(head: GradedStudy) -> str:
    low, high = SCALES[head.data.target]
    fixed = [str(step) for step in range(low + 1, high + 1) if step not in head.data.steps]
    if not head.data.steps or not fixed:
        return ""
    return f"; too few answers to learn the step to {', '.join(fixed)}: its share is taken"


def _positive(head: Head) -> float:
    share = float(head.evidence.table.y.mean())
    return 1 - share if head.inverted else share


def _shared_generator(heads: Mapping[str, Head | GradedStudy]) -> Generator | None:
    """The model or models that all heads' answers are from; None where one is not named, or their modes differ."""
    generators = {head.evidence.generator for head in heads.values()}
    known = [generator for generator in generators if generator is not None]
    if len(known) < len(generators) or len({generator.logprobs_mode for generator in known}) > 1:
        return None
    if len(known) == 1:
        return known[0]
    names = sorted({name for generator in known for name in generator.models})
    return Generator(names[0], logprobs_mode=known[0].logprobs_mode, others=tuple(names[1:]))


def export_hidden(
    path: str | Path,
    evidence: Evidence,
    fits: CrossFit,
    *,
    method: HiddenProbe | LowRankProbe,
    target: str,
    seed: int,
    command: str,
) -> Checkpoint:
    """The probe of that method for `target`, fitted on all groups, its calibrator in its graph."""
    states, table = evidence.states, evidence.table
    assert states is not None, "train_hidden has looked"
    roles = final_roles(list(table.groups), table.y, seed=seed)
    probe = method.probe(evidence, roles, seed=seed)
    hidden = probe.read(states)
    scores = probe.score_of(hidden)
    calibrator = _calibrator(scores, table, roles.calibration, seed)
    thresholds = promised(scores, table, roles.calibration, calibrator, seed=seed)
    thresholds |= _own_points(scores, evidence, roles.calibration, calibrator)
    metrics, report = _held_out(evidence, fits, method, seed)
    before = probe.position == "prompt_last"
    layers = ", ".join(map(str, probe.layers))
    return write_checkpoint(
        path,
        Export(
            kind=hidden_probe.KIND,
            title=f"{'Difficulty' if before else 'Confidence'} probe: {target}",
            summary=(
                f"Probability that the answer {'will be' if before else 'is'} {target}, from the hidden state of layer "
                f"{layers} at {probe.position} ({probe.kind}, then a calibrator; chosen among {probe.tried} "
                "combinations on learning rows). Layer 0 is the embeddings' output, layer i the output of block i. "
                "Difficulty is one minus that probability."
                + "".join(f" {line}." for line in origin_of_states(evidence))
                + "".join((PROMISES | PROMISE)[name] for name in thresholds)
            ),
            graph=linear_graph(
                input_name=hidden_probe.INPUT,
                mean=probe.mean,
                scale=probe.scale,
                weights=probe.weights[:, None],
                intercept=np.array([probe.intercept]),
                outputs=[target],
                calibrator=calibrator,
            ),
            input_name=hidden_probe.INPUT,
            inputs=hidden,
            expected={target: calibrator.probability(scores)},
            contract={**probe.contract(target), **reader_contract(evidence)},
            generator=evidence.generator,
            training=_training(evidence, seed, command),
            calibration=calibrator.name,
            metrics=metrics,
            audits=report.audits,
            not_audited=report.skipped,
            thresholds=thresholds,
            packages=("onnx",),
        ),
    )


def _calibrator(scores: Scores, table: AnswerTable, rows: Rows, seed: int) -> Calibrator:
    return choose_calibrator(scores[rows], table.y[rows], table.groups[rows], seed=seed).calibrator


def _held_out(evidence: Evidence, fits: CrossFit, method: Method, seed: int) -> tuple[dict[str, Interval], AuditReport]:
    """Figures and audits of one method from the folds."""
    judged = fits[method.name]
    [found] = method_results(evidence.table, [judged])
    metrics = {
        "auroc": found.auroc,
        "auprc": found.auprc,
        "brier_skill": found.brier_skill,
        "aurc": found.aurc,
    }
    if len(evidence.table) >= ENOUGH_FOR_ECE:
        metrics["ece"] = found.ece
    # The baseline that needs no selecting, and that anybody would try first.
    metrics["auroc_gain_over_mean_log_probability"] = auroc_gain(evidence.table, judged, fits[MEAN_LOGPROB])
    # The refits need all features at once.
    refits = isinstance(evidence.features, np.ndarray)
    elsewhere = out_of_domain(evidence, method, seed=seed) if refits else None
    if elsewhere is not None:
        metrics |= {f"auroc_without_{elsewhere.by}.{name}": value for name, value in elsewhere.auroc.items()}
        metrics[f"auroc_without_{elsewhere.by}"] = elsewhere.mean
        metrics[f"auroc_gain_over_mean_log_probability_without_{elsewhere.by}"] = elsewhere.gain
        if elsewhere.ece is not None:
            metrics[f"ece_without_{elsewhere.by}"] = elsewhere.ece
    report = audited(evidence, fits, method, refits=refits, elsewhere=elsewhere, seed=seed)
    if report.controls is not None:
        metrics["auroc_gain_over_strongest_control"] = report.controls.strongest.difference
    inside = within_runs(evidence.table, fits, judged, seed=seed)
    if report.controls_within is not None:
        inside["auroc_within_runs_gain_over_strongest_control"] = report.controls_within.strongest.difference
    return inside | metrics, report


def within_runs(table: AnswerTable, fits: CrossFit, judged: Judged, *, seed: int = 0) -> dict[str, Interval]:
    """AUROC over pairs of answers of one run only, and of knowing nothing but the run.

    A run is a model, a task and a way of asking. Empty where there is one run, or where its identity was not fitted.
    """
    if not RUN_IDENTITY.varies(table) or RUN_IDENTITY.name not in {found.name for found in fits.methods}:
        return {}
    within, weights = StratifiedAuroc(RUN_IDENTITY.cells(table)), cluster_weights(table.groups.tolist(), seed=seed)
    mean = fits[MEAN_LOGPROB].ranking
    return {
        "auroc_within_runs": interval(within, table.y, judged.ranking, weights),
        "auroc_within_runs_gain_over_mean_log_probability": paired_difference(
            within, table.y, judged.ranking, mean, weights
        ),
        "auroc_of_run_identity": interval(auroc, table.y, fits[RUN_IDENTITY.name].ranking, weights),
    }


def _training(evidence: Evidence, seed: int, command: str) -> Training:
    groups = len(set(evidence.table.groups.tolist()))
    return Training(evidence.fingerprint, len(evidence.table), groups, seed, command, evidence.regrouped)
