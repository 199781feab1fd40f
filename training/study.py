"""A study: evidence, methods, and what the folds say of them. All training and comparing begins with one.

Every method is fitted and calibrated in the same outer folds by group, so that each answer is judged by a model that
saw no answer of its group. A recipe of `metaprobe.training.recipes` then fits on all groups and writes a checkpoint,
whose figures are those of the folds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from metaprobe.eval.compare import BEST_BASELINE, Judged
from metaprobe.eval.controls import DECISION, NUMBERS, REVERSED
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.results import CONTROL_FAMILIES, Family
from metaprobe.eval.table import AnswerTable, usable_groups
from metaprobe.probes.decisions import MADE, is_predicate
from metaprobe.probes.features import DECIDED
from metaprobe.training.calibration import calibrator_on, sigmoid
from metaprobe.training.controls import control_methods, controls_apart
from metaprobe.training.evidence import Evidence, Scores, invert, load_evidence
from metaprobe.training.folds import Roles, outer_folds, with_fewer
from metaprobe.training.heads import INVERTED
from metaprobe.training.joined import CONFIDENCE, TRUE, Blend, FittedJoin, JoinedFit, TermsPart
from metaprobe.training.linear import LinearProbe
from metaprobe.training.methods import (
    AFTER,
    BEFORE,
    DECISIONS,
    USUAL_LADDER,
    Fitted,
    GivenScore,
    HiddenProbeMethod,
    LearnedDecisions,
    LogprobLadder,
    Method,
    calibrators_of,
)
from metaprobe.training.options import OnStep, quiet
from metaprobe.training.thresholds import share_below

OwnMethods = Callable[[Evidence, Sequence[str]], Sequence[Method]]


def no_methods(evidence: Evidence, names: Sequence[str]) -> Sequence[Method]:
    """Returns nothing."""
    return ()


@dataclass(frozen=True, slots=True, eq=False)
class CrossFit:
    """All methods on the same folds."""

    methods: tuple[Judged, ...]
    best_baseline: tuple[str, ...]
    """The control that each fold chose on its selection rows."""
    roles: tuple[Roles, ...]
    """Roles of each fold."""
    probes: Mapping[str, tuple[LinearProbe, ...]]
    """Name of each method on hidden states -> its probe of every fold."""
    joined: Mapping[str, tuple[JoinedFit, ...]] = field(default_factory=dict)
    """Name of each method that joins others -> what it joined in every fold."""
    places: Mapping[str, Scores] = field(default_factory=dict)
    """Name of each method -> (n,): where an answer lies among those that its fold was calibrated on (`share_below`)."""
    decided: tuple[str, ...] = ()
    """The decision that alone orders the answers of each fold, where one was learned; empty where more does."""

    def __getitem__(self, name: str) -> Judged:
        return next(method for method in self.methods if method.name == name)


def standard_methods(evidence: Evidence, *, ladder: LogprobLadder = USUAL_LADDER) -> list[Method]:
    """Returns the methods of the comparison, in its order.

    There are probes only where hidden states were captured. What was never stated has no number.
    """
    methods: list[Method] = [*decision_methods(evidence), *control_methods(evidence)]
    methods += [ladder] if evidence.feature_names else []
    positions = () if evidence.states is None else evidence.states.positions
    answer = tuple(position for position in positions if position != "prompt_last")
    for name, read in ((BEFORE, ("prompt_last",) if "prompt_last" in positions else ()), (AFTER, answer)):
        if read:
            methods.append(HiddenProbeMethod(name, read))
    blend = blend_of(evidence.table, [method for method in methods if isinstance(method, HiddenProbeMethod)])
    return methods if blend is None else [*methods, blend]


def blend_of(table: AnswerTable, probes: Sequence[HiddenProbeMethod]) -> Blend | None:
    """Returns the blend of one signal of each kind that these answers have; None where they have but one.

    The log-probabilities and the states of the answer are joined, fixed beforehand; what was stated of the answer and
    the state of the prompt where they pay.
    """
    own = [probe for probe in probes if probe.name == AFTER]
    parts: list[Method] = [*((TermsPart(),) if table.measured else ()), *own]
    extras: list[Method] = [part for part in (TRUE, CONFIDENCE) if np.isfinite(part.values(table)).any()]
    extras += [probe for probe in probes if probe.name == BEFORE]
    return Blend(tuple(parts), tuple(extras)) if parts and len(parts) + len(extras) > 1 else None


def decision_methods(evidence: Evidence) -> list[Method]:
    """Returns each question's number as a score, and what is learned of all of them; nothing without decisions.

    A number that is higher for wrong answers is there a second time with its sign reversed, as in `free_controls`.
    """
    if evidence.decisions is None:
        return []
    columns = zip(evidence.decision_names, evidence.decisions.T, strict=True)
    asked = [(name, column) for name, column in columns if "=" not in name and not name.endswith(MADE)]
    known = [(name, column) for name, column in asked if np.isfinite(column).any()]
    against = [one for one in known if auroc(evidence.table.y, _without_gaps(one[1])[0]) < 0.5]
    signed = [*known, *((f"{name}{REVERSED}", 1 - column) for name, column in against)]
    predicates = {name for name, column in known if is_predicate(name, evidence.decision_names, column)}
    given = [
        GivenScore(
            f"{DECISION}{name}",
            "decision",
            partial(_held, column=column),
            probability=name.removesuffix(REVERSED) in predicates,
        )
        for name, column in signed
    ]
    return [*given, *(() if evidence.schema == DECIDED else (LearnedDecisions(),))]


def _held(_: AnswerTable, *, column: Scores) -> Scores:
    """Returns a column that is at hand, whatever the table."""
    return column


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """Evidence, methods, and what the folds say of them."""

    evidence: Evidence
    methods: tuple[Method, ...]
    fits: CrossFit
    seed: int
    target: str = "correct"
    """The label that was studied."""
    stores: tuple[Path, ...] = ()
    """Folders of the runs, for what a comparison says of them; empty where they are not in stores."""

    @property
    def ladder(self) -> LogprobLadder:
        """The recipe of the quality predictor."""
        return next(method for method in self.methods if isinstance(method, LogprobLadder))


def study(
    stores: Sequence[str | Path],
    *,
    target: str = "correct",
    stage: str | None = None,
    agent: str | None = None,
    folds: int = 5,
    seed: int = 0,
    hidden: bool = True,
    own: OwnMethods = no_methods,
    bare: bool = False,
    on_step: OnStep = quiet,
) -> Study:
    """Makes a study of the labelled answers of these stores, by every standard method.

    `own` gives further methods for the evidence and the names of the standard ones. `hidden=False` leaves out the
    probes. With `bare` answers without log-probabilities will do, where none has any. Of a
    label whose 1 is the bad one, `critical`, the opposite is studied, so that everywhere higher scores are better
    answers.
    """
    evidence = load_evidence(stores, target=target, stage=stage, agent=agent, hidden=hidden, bare=bare)
    if target in INVERTED:
        evidence = invert(evidence)
    made = study_of(evidence, folds=folds, seed=seed, own=own, on_step=on_step)
    return replace(made, target=target, stores=tuple(Path(store) for store in stores))


def study_of(
    evidence: Evidence,
    *,
    folds: int = 5,
    seed: int = 0,
    ladder: LogprobLadder = USUAL_LADDER,
    own: OwnMethods = no_methods,
    on_step: OnStep = quiet,
) -> Study:
    """Makes a study of evidence that is loaded."""
    methods = tuple(standard_methods(evidence, ladder=ladder))
    methods += tuple(own(evidence, [method.name for method in methods]))
    fits = crossfit(evidence, methods, folds=folds, seed=seed, on_step=on_step)
    return Study(evidence, methods, fits, seed)


def crossfit(
    evidence: Evidence,
    methods: Sequence[Method],
    *,
    folds: int = 5,
    seed: int = 0,
    labels: int | None = None,
    on_step: OnStep = quiet,
) -> CrossFit:
    """Fit and calibrate every method in every outer fold, by group; the calibrator is chosen on calibration rows.

    `labels`: how many labels each fold learns from, calibration included, in whole groups drawn by `seed`; None for
    all. The test rows are the same.

    Adds the best plain baseline, chosen in each fold on its selection rows. What a blend joins is not fitted again
    where it is among the methods. Raises `RecordError` where the groups do not suffice.
    """
    table = evidence.table
    usable_groups(list(table.groups), table.y, folds=folds)
    n = len(table)
    columns = _columns(methods)
    probability = {name: np.full(n, np.nan) for name, _ in columns}
    ranking = dict(probability)  # the same arrays, but for given scores
    places = {name: np.full(n, np.nan) for name, _ in columns}
    selected: dict[str, list[float]] = {method.name: [] for method in methods}
    alone: dict[str, list[str]] = {}
    probes: dict[str, list[LinearProbe]] = {}
    joined: dict[str, list[JoinedFit]] = {}
    given: dict[str, Scores] = {}
    coverage: dict[str, float] = {name: 1.0 for name, _ in columns}
    chosen_baselines = []

    splits = tuple(
        roles if labels is None else with_fewer(roles, labels, list(table.groups), table.y, seed=seed)
        for roles in outer_folds(list(table.groups), table.y, folds=folds, seed=seed)
    )
    blends_last = sorted(methods, key=lambda method: isinstance(method, Blend))
    for number, roles in enumerate(splits):
        logits: dict[str, Scores] = {}
        made: dict[Method, Fitted] = {}
        for place, method in enumerate(blends_last, 1):
            on_step(f"fold {number + 1} of {folds}, method {place} of {len(methods)}: {method.name}")
            if isinstance(method, Blend):
                fitted = method.fit_with(made, evidence, roles, seed=seed)
            else:
                made[method] = fitted = method.fit(evidence, roles, seed=seed)
            if fitted.probe is not None:
                probes.setdefault(method.name, []).append(fitted.probe)
            if isinstance(fitted, FittedJoin):
                joined.setdefault(method.name, []).append(fitted.joined)
            raw = fitted.score(np.arange(n))
            if isinstance(method, GivenScore) and method.probability:
                given[method.name] = raw
            scores, coverage[method.name] = _without_gaps(raw)
            if not method.fitted:
                ranking[method.name] = scores
            rows = roles.calibration if method.fitted else roles.seen
            logits[method.name] = calibrator_on(rows, scores, table, seed, calibrators_of(method)).logit(scores)
            selected[method.name].append(fitted.selection_auroc)
            if isinstance(method, LogprobLadder | LearnedDecisions):
                alone.setdefault(method.name, []).append(fitted.number)
        if (BEST_BASELINE, "plain") in columns:
            # Which way round a reversed control tells was read off all answers, the test rows too.
            chosen = [m.name for m in methods if m.family in CONTROL_FAMILIES and not m.name.endswith(REVERSED)]
            best = max(chosen, key=lambda name: selected[name][-1])
            chosen_baselines.append(best)
            logits[BEST_BASELINE] = logits[best]
        for name, logit in logits.items():
            probability[name][roles.test] = sigmoid(logit[roles.test])
            places[name][roles.test] = share_below(logit[roles.calibration], logit[roles.test])
    # Where every fold is made of one and the same number, calibrators that differ by fold do not change the order.
    itself = {name: _given_name(name, numbers[0]) for name, numbers in alone.items() if len(set(numbers)) == 1}
    itself = {name: number for name, number in itself.items() if number in ranking}
    ranking |= {name: ranking[number] for name, number in itself.items()}
    positions = () if evidence.states is None else evidence.states.positions
    apart = {method.name: controls_apart(method, methods, positions) for method in methods}
    numbers = tuple(method.name for method in methods if method.family == "decision" and not method.fitted)
    results = tuple(
        Judged(
            name,
            family,
            probability[name],
            ranking[name],
            coverage[name],
            apart.get(name, ()),
            numbers if name == DECISIONS else (),
            given.get(name),
            itself.get(name, ""),
        )
        for name, family in columns
    )
    return CrossFit(
        methods=results,
        best_baseline=tuple(chosen_baselines),
        roles=splits,
        probes={name: tuple(of_folds) for name, of_folds in probes.items()},
        joined={name: tuple(of_folds) for name, of_folds in joined.items()},
        places=places,
        decided=tuple(alone.get(DECISIONS, ())),
    )


def _columns(methods: Sequence[Method]) -> list[tuple[str, Family]]:
    """Returns name and family of what is judged: the methods, then the best plain baseline and the blend, if any."""
    columns = [(method.name, method.family) for method in methods if not isinstance(method, Blend)]
    if any(method.family in CONTROL_FAMILIES for method in methods):
        columns.append((BEST_BASELINE, "plain"))
    return columns + [(method.name, method.family) for method in methods if isinstance(method, Blend)]


def _given_name(method: str, number: str) -> str:
    """Returns the name of the control, or of the decision, that a number of the ladder is."""
    if method == DECISIONS:
        return f"{DECISION}{number}"
    bare = number.removesuffix(REVERSED)
    return f"{NUMBERS.get(bare, '')}{number.removeprefix(bare)}"


def _without_gaps(scores: Scores) -> tuple[Scores, float]:
    """Returns the scores with the median in place of those that are not finite, and the share that was finite."""
    known = np.isfinite(scores)
    return np.where(known, scores, np.median(scores[known]) if known.any() else 0.0), float(known.mean())
