"""Fits the quality predictor on all groups, and exports it. Held-out metrics come from the folds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, FlagOptions, Generator
from metaprobe.checkpoints.flag_options import USUAL_FLAGS
from metaprobe.checkpoints.manifest import RAW
from metaprobe.eval.method_results import Finding as Finding
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.probes.base_rates import CONTRACT
from metaprobe.probes.features import ALONE, schema
from metaprobe.probes.quality_contract import INPUT, KIND, MAIN_HEADS
from metaprobe.training.common.graphs import trees_graph
from metaprobe.training.common.heads import (
    CRITICAL,
    INVERTED,
    LEVELS,
    QUALITY,
    SCALES,
    FittedHead,
    RunProbability,
    fit_probability,
)
from metaprobe.training.common.ladder import ALL_TERMS, WITH_TREES, Ladder
from metaprobe.training.common.offsets import scales_between
from metaprobe.training.common.operating_points import PROMISE
from metaprobe.training.common.roles import Roles, final_roles
from metaprobe.training.common.trees import in_memory
from metaprobe.training.common.write_checkpoint import Export, write_checkpoint
from metaprobe.training.crossfit.folds import CrossFit
from metaprobe.training.crossfit.held_out import measure_held_out, training_record
from metaprobe.training.crossfit.methods import (
    RUN_IDENTITY,
    USUAL_LADDER,
    Evidence,
    LogprobLadder,
)
from metaprobe.training.crossfit.stored_thresholds import (
    PROMISES,
    ScoredAnswers,
    StoredFlags,
    critical_thresholds,
    flagging_of,
    own_points,
)
from metaprobe.training.quality.figures import (
    NOT_AUDITED,
    GradedStudy,
    measure_grades,
    rare_figures,
)

MADE_OF = {
    "scaled": "the total log-probability over the root of the length",
    "lowest3": "the mean of the three lowest log-probabilities",
    "mean": "the mean log-probability",
    "min": "the lowest log-probability",
    "total": "the total log-probability",
    ALL_TERMS: "all seven terms",
    WITH_TREES: "terms and trees",
}
"""Steps of the ladder in words."""


@dataclass(frozen=True, slots=True, eq=False)
class QualityHead:
    """One binary target of the quality predictor: its answers, and what the folds said."""

    evidence: Evidence
    fits: CrossFit
    inverted: bool = False
    """Whether the answers' `y` is 1 where the label is 0."""
    ladder: LogprobLadder = USUAL_LADDER
    """The recipe."""

    def roles(self, seed: int) -> Roles:
        table = self.evidence.table
        return final_roles(table.groups.tolist(), table.y, seed=seed)


def export_quality(
    path: str | Path,
    heads: Mapping[str, QualityHead | GradedStudy],
    *,
    seed: int,
    command: str,
    raw: bool = False,
    flags: FlagOptions = USUAL_FLAGS,
) -> Checkpoint:
    """Fits one calibrated head a target on all groups, writes them in one graph, and returns the checkpoint.

    `flags`: what the stored threshold flags. `raw` adds `raw.onnx`, the same from log-probabilities. Nothing is said of
    whether an answer is like the training data: ranges and densities of the features were the wrong way round on models
    left out (docs/research/travel.md).
    """
    kept = _Kept(flags, several=len(heads) > 1)
    for target, head in heads.items():
        if isinstance(head, GradedStudy):
            kept.add_graded(target, head, seed)
        else:
            kept.add_probability(target, head, seed)
    largest = max(heads.values(), key=lambda head: len(head.evidence.table))
    evidence = largest.evidence
    used = schema(evidence.schema if kept.grown else ALONE)
    last = slice(len(evidence.feature_names) - len(used.names), None)
    X = in_memory(evidence.features[:, last])
    graph = trees_graph(kept.fitted, width=X.shape[1], input_name=INPUT)
    names = list(kept.fitted)
    return write_checkpoint(
        path,
        Export(
            kind=KIND,
            title=f"Quality predictor: {' and '.join(names)}",
            summary=_summary(kept, len(used.names)),
            graph=graph,
            input_name=INPUT,
            inputs=X,
            expected={name: head.value(X) for name, head in kept.fitted.items()},
            contract={
                "schema": used.name,
                "features": list(used.names),
                "targets": names,
                "kinds": {name: head.kind for name, head in kept.fitted.items()},
                "scales": {name: list(SCALES[name]) for name in names if name in SCALES},
                **kept.base_rates(),
            },
            generator=_shared_generator(heads),
            logprobs_reader=evidence.logprobs_reader,
            training=training_record(evidence, seed, command),
            calibration=", ".join(dict.fromkeys(name for h in kept.fitted.values() for name in h.calibrations)),
            metrics=kept.metrics,
            audits=kept.checks,
            not_audited=kept.not_made,
            thresholds=kept.thresholds,
            flagging=kept.stored.flagging,
            promises=kept.stored.promises,
            operating=kept.stored.operating,
            packages=("lightgbm", "onnxmltools", "onnx") if kept.grown else ("onnx",),
            extra=_raw_graph(graph, used.name, evidence) if raw else {},
            heads=kept.lines,
        ),
    )


def _raw_graph(graph: Any, schema_name: str, evidence: Evidence) -> dict[str, bytes]:
    from metaprobe.training.quality.raw_parity import build_raw_graph  # few ask for it

    return {RAW: build_raw_graph(graph, schema_name, list(evidence.table.logprobs))}


@dataclass(slots=True)
class _Kept:
    """What the heads of one checkpoint bring to it, added head by head."""

    flags: FlagOptions
    several: bool
    fitted: dict[str, FittedHead] = field(default_factory=dict)
    metrics: dict[str, Interval] = field(default_factory=dict)
    checks: list[Finding] = field(default_factory=list)
    not_made: list[str] = field(default_factory=list)
    thresholds: dict[str, float] = field(default_factory=dict)
    stored: StoredFlags = field(default_factory=StoredFlags)
    """What the head that gives the score stores of flagging."""
    runs: int = 1
    """Runs whose answers that head learned from."""
    lines: list[str] = field(default_factory=list)
    average: dict[str, float] = field(default_factory=dict)
    scale: dict[str, float] = field(default_factory=dict)
    strangers: bool = False
    """Whether it is made for runs that nobody has seen: it then knows no base rate, and no threshold that depends on
    one."""

    @property
    def grown(self) -> bool:
        """Whether a head reads more than the terms."""
        return any(
            not isinstance(head, RunProbability) or head.scorer.trees is not None for head in self.fitted.values()
        )

    def base_rates(self) -> dict[str, Any]:
        """The contract's statement of what is known of the runs; empty where there is one run, so that all is known."""
        heads = {name: head for name, head in self.fitted.items() if isinstance(head, RunProbability)}
        if not any(head.shifts for head in heads.values()):
            return {}
        runs: dict[str, dict[str, float]] = {}
        for name, head in heads.items():
            for run, shift in head.shifts.items() if not self.strangers else ():
                runs.setdefault(run, {})[name] = shift
        between = {name: head.between for name, head in heads.items()}
        return {CONTRACT: {"between": between, "scale": self.scale, "average": self.average, "runs": runs}}

    def add_graded(self, target: str, head: GradedStudy, seed: int) -> None:
        """Fits the head of a graded target."""
        self.fitted[target] = level = head.fit(head.roles(seed), seed)
        figures, audits = measure_grades(head, seed=seed)
        self._note(target, figures, audits, NOT_AUDITED)
        n = len(head.evidence.table)
        self.lines.append(f"{target}: {level.kind}, {_scale(target)}, {n} answers{_constant_steps(head)}")

    def add_probability(self, target: str, head: QualityHead, seed: int) -> None:
        """Fits the head of a target of two classes, and the thresholds that it carries."""
        table, X, roles = head.evidence.table, head.evidence.features, head.roles(seed)
        self.fitted[target] = probability = fit_probability(
            X,
            table.y,
            table.groups,
            RUN_IDENTITY.cells(table),
            roles,
            names=head.evidence.feature_names,
            inverted=head.inverted,
            climb=not head.ladder.new_tasks,
            seed=seed,
        )
        self.strangers = self.strangers or head.ladder.new_tasks
        self.average[target] = _positive(head)
        rows, own = roles.learning, RUN_IDENTITY.cells(table)
        self.scale[target] = scales_between(probability.scorer.score(X[rows]), table.y[rows], own[rows])
        figures, report = measure_held_out(head.evidence, head.fits, head.ladder, seed)
        if head.inverted:
            figures |= rare_figures(table, head.fits[head.ladder.name].probability, seed=seed)
        self._note(target, figures, report.audits, report.skipped)
        place = len(self.lines)
        self.lines.append(
            f"{target}: {probability.kind}, a probability, {len(table)} answers, {_positive(head):.0%} positive"
        )
        self.lines += [f"{target}: {line}" for line in steps_of(probability.scorer)]
        if head.ladder.new_tasks:
            return  # a threshold of these runs says nothing of another one
        if target == CRITICAL:
            scores, calibrator = _scores(head, probability), probability.calibrator
            self.thresholds |= critical_thresholds(scores, table, roles.calibration, calibrator, seed=seed)
        elif target in MAIN_HEADS:
            self.stored, self.runs = _flags(head, probability, roles, self.flags, seed), len(np.unique(own))
            self.thresholds |= {**self.stored.thresholds, **_own_points(head, probability, roles)}
            self.lines[place] += self.stored.lacking

    def _note(
        self, target: str, figures: Mapping[str, Interval], audits: Sequence[Finding], skipped: Sequence[str]
    ) -> None:
        prefix = f"{target}." if self.several else ""
        self.metrics.update({f"{prefix}{name}": value for name, value in figures.items()})
        prefix = f"not {target}." if target in INVERTED else prefix  # what the audits saw
        self.checks.extend(replace(audit, name=f"{prefix}{audit.name}") for audit in audits)
        self.not_made.extend(f"{prefix}{reason}" for reason in skipped)


def _flags(head: QualityHead, probability: RunProbability, roles: Roles, asked: FlagOptions, seed: int) -> StoredFlags:
    """What the head that gives the score stores of flagging."""
    scores, rows, held_out = _scores(head, probability), roles.calibration, head.fits[head.ladder.name].probability
    exported = probability.calibrator.probability(scores[rows])
    table = head.evidence.table
    answers = ScoredAnswers(table, rows, scores, probability.calibrator, exported, held_out, held_out)
    return flagging_of(answers, asked, seed=seed)


def _own_points(head: QualityHead, probability: RunProbability, roles: Roles) -> dict[str, float]:
    return own_points(_scores(head, probability), head.evidence, roles.calibration, probability.calibrator)


def _scores(head: QualityHead, probability: RunProbability) -> NDArray[np.float64]:
    """Log-odds (n,) of all answers, the base rates of their runs included."""
    return probability.scorer.score_of(head.evidence.features, RUN_IDENTITY.cells(head.evidence.table))


def steps_of(ladder: Ladder) -> list[str]:
    """Returns which step of the ladder was reached, and what each further one would have gained, in words."""
    lines = [f"made of {MADE_OF.get(ladder.reached, ladder.reached)}"]
    lines += [
        f"{MADE_OF.get(step.name, step.name)} over {MADE_OF.get(step.against, step.against)}: log loss "
        f"{-step.gain:+.4f} (standard error {step.se:.4f}) on groups left out, {'taken' if step.taken else 'not taken'}"
        for step in ladder.steps
    ]
    return lines


def _summary(kept: _Kept, features: int) -> str:
    names, said = list(kept.fitted), []
    if binary := [name for name in names if name not in SCALES]:
        said.append(f"Probability that an answer is {' and '.join(binary)}")
    if levels := [name for name in names if name in LEVELS]:
        said.append(f"expected level of {', '.join(levels)}")
    if QUALITY in names:
        said.append("expected Q (the sum of the three levels, 0 where critical)")
    read = (
        f"{features} statistics of its token log-probabilities over windows (LightGBM, then a calibrator)"
        if kept.grown
        else "its token log-probabilities: what each head is made of stands below"
    )
    return f"{'; '.join(said)}, from {read}." + _promised(kept)


def _promised(kept: _Kept) -> str:
    """What the thresholds mean."""
    others = [name for name in kept.thresholds if name not in kept.stored.thresholds]
    return kept.stored.said(runs=kept.runs) + "".join((PROMISES | PROMISE)[name] for name in others)


def _scale(target: str) -> str:
    low, high = SCALES[target]
    return f"{low} to {high}"


def _constant_steps(head: GradedStudy) -> str:
    low, high = SCALES[head.data.target]
    fixed = [str(step) for step in range(low + 1, high + 1) if step not in head.data.steps]
    if not head.data.steps or not fixed:
        return ""
    return f"; too few answers to learn the step to {', '.join(fixed)}: its share is taken"


def _positive(head: QualityHead) -> float:
    share = float(head.evidence.table.y.mean())
    return 1 - share if head.inverted else share


def _shared_generator(heads: Mapping[str, QualityHead | GradedStudy]) -> Generator | None:
    """The model or models that all heads' answers are from; None where one is not named, or their modes differ."""
    generators = {head.evidence.generator for head in heads.values()}
    known = [generator for generator in generators if generator is not None]
    if len(known) < len(generators) or len({generator.logprobs_mode for generator in known}) > 1:
        return None
    if len(known) == 1:
        return known[0]
    names = sorted({name for generator in known for name in generator.models})
    return Generator(names[0], logprobs_mode=known[0].logprobs_mode, others=tuple(names[1:]))
