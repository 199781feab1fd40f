"""A study: evidence, methods, and what the folds say of them. All training and comparing begins with one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from metaprobe.training.common.heads import INVERTED
from metaprobe.training.crossfit.evidence import invert, load_evidence
from metaprobe.training.crossfit.finished_folds import Progress
from metaprobe.training.crossfit.folds import CrossFit, crossfit
from metaprobe.training.crossfit.methods import (
    AFTER,
    BEFORE,
    LADDER,
    MEAN_LOGPROB,
    USUAL_LADDER,
    Evidence,
    LogprobLadder,
    Method,
    ProbeKind,
    standard_methods,
)

BLENDED = (MEAN_LOGPROB, LADDER, BEFORE, AFTER)
"""What the blend is made of: one signal of each kind. Fixed beforehand, not chosen."""


OnStep = Callable[[str], None]
OwnMethods = Callable[[Evidence, Sequence[str]], Sequence[Method]]


def no_methods(evidence: Evidence, names: Sequence[str]) -> Sequence[Method]:
    """Returns nothing."""
    return ()


def quiet(what: str) -> None:
    """Says nothing."""


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
    """Where the runs are, for what a comparison says of them; empty where they are not in stores."""

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
    kind: ProbeKind = "logistic",
    own: OwnMethods = no_methods,
    bare: bool = False,
    on_step: OnStep = quiet,
) -> Study:
    """Cross-fit every standard method on the labelled answers of these stores.

    `own` gives further methods for the evidence and the names of the standard ones. `hidden=False` leaves out the
    probes, which are of the given kind. With `bare` answers without log-probabilities will do, where none has any. Of a
    label whose 1 is the bad one, `critical`, the opposite is studied, so that everywhere higher scores are better
    answers.
    """
    evidence = load_evidence(stores, target=target, stage=stage, agent=agent, hidden=hidden, bare=bare)
    if target in INVERTED:
        evidence = invert(evidence)
    found = study_of(evidence, folds=folds, seed=seed, kind=kind, own=own, on_step=on_step)
    return replace(found, target=target, stores=tuple(Path(store) for store in stores))


def study_of(
    evidence: Evidence,
    *,
    folds: int = 5,
    seed: int = 0,
    kind: ProbeKind = "logistic",
    ladder: LogprobLadder = USUAL_LADDER,
    own: OwnMethods = no_methods,
    progress: Progress | None = None,
    on_step: OnStep = quiet,
) -> Study:
    """The same, of evidence that is loaded. `progress`: where finished folds are kept for the next start."""
    methods = tuple(standard_methods(evidence, kind=kind, ladder=ladder))
    methods += tuple(own(evidence, [method.name for method in methods]))
    blend = [name for name in BLENDED if name in {method.name for method in methods}]
    fits = crossfit(evidence, methods, folds=folds, seed=seed, blend=blend, progress=progress, on_step=on_step)
    return Study(evidence, methods, fits, seed)
