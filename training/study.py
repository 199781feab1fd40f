"""The whole of training and comparing on given runs, in a few calls: what the command line and the demo use."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from metaprobe.checkpoints import Checkpoint
from metaprobe.eval.compare import policy_results
from metaprobe.eval.report.model import Comparison, PolicyResult
from metaprobe.eval.report.tables import tables_csv
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.choice import evaluate_choice, export_choice, paired_answers
from metaprobe.training.crossfit import CrossFit, crossfit
from metaprobe.training.evidence import load_evidence, load_runs
from metaprobe.training.fit import Head, export_hidden, export_quality
from metaprobe.training.heads import INVERTED
from metaprobe.training.heads_data import Graded, load_heads, turned_round
from metaprobe.training.heads_figures import GradedStudy, graded_study
from metaprobe.training.methods import (
    AFTER,
    BEFORE,
    MEAN_LOGPROB,
    TREES,
    Evidence,
    HiddenProbe,
    LowRankProbe,
    Method,
    ProbeKind,
    standard_methods,
)
from metaprobe.training.progress import Progress
from metaprobe.training.report import comparison

BLENDED = (MEAN_LOGPROB, TREES, BEFORE, AFTER)
"""What the blend is made of: one signal of each kind. Fixed beforehand, not chosen."""

OnStep = Callable[[str], None]


def _quiet(what: str) -> None:
    """Says nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """Evidence, methods, and what the folds say of them."""

    evidence: Evidence
    methods: tuple[Method, ...]
    fits: CrossFit
    seed: int


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
    on_step: OnStep = _quiet,
) -> Study:
    """Cross-fit every standard method on the labelled answers of these stores.

    `hidden=False` leaves out the probes, which are of the given kind. Of a label whose 1 is the bad one, `critical`,
    the opposite is studied, so that everywhere higher scores are better answers.
    """
    evidence = load_evidence(stores, target=target, stage=stage, agent=agent, hidden=hidden)
    if target in INVERTED:
        evidence = turned_round(evidence)
    return study_of(evidence, folds=folds, seed=seed, kind=kind, on_step=on_step)


def study_of(
    evidence: Evidence,
    *,
    folds: int = 5,
    seed: int = 0,
    kind: ProbeKind = "logistic",
    progress: Progress | None = None,
    on_step: OnStep = _quiet,
) -> Study:
    """The same, of evidence that is loaded. `progress`: where finished folds are kept for the next start."""
    methods = tuple(standard_methods(evidence, kind=kind))
    blend = [name for name in BLENDED if name in {method.name for method in methods}]
    fits = crossfit(evidence, methods, folds=folds, seed=seed, blend=blend, progress=progress, on_step=on_step)
    return Study(evidence, methods, fits, seed)


def head_studies(
    stores: Sequence[str | Path],
    targets: Sequence[str],
    *,
    stage: str | None = None,
    agent: str | None = None,
    source: str | None = None,
    folds: int = 5,
    seed: int = 0,
    spread: bool = False,
    on_step: OnStep = _quiet,
) -> dict[str, Study | GradedStudy]:
    """A study of each head that the targets need, from runs that are read once; for `train_quality`.

    A head is learned from the answers that have its label. `source`: whose labels (`load_heads`). `spread`: put the
    features on the cluster of the default Dask client, whose workers then fit the trees.
    """
    found: dict[str, Study | GradedStudy] = {}
    for target, data in load_heads(stores, targets, stage=stage, agent=agent, source=source, spread=spread).items():

        def step(what: str, target: str = target) -> None:
            on_step(f"{target}: {what}")

        if isinstance(data, Graded):
            found[target] = graded_study(data, folds=folds, seed=seed, on_step=step)
        else:
            found[target] = study_of(data, folds=folds, seed=seed, on_step=step)
    return found


def train_quality(
    path: str | Path, studies: Mapping[str, Study | GradedStudy], *, command: str, raw: bool = False
) -> Checkpoint:
    """The quality predictor with one head a target, from one study a target.

    A study of `critical` must have `y` turned round, as `head_studies` makes it. `raw` adds the graph that takes
    log-probabilities themselves, `raw.onnx`.
    """
    heads = {
        target: s if isinstance(s, GradedStudy) else Head(s.evidence, s.fits, target in INVERTED)
        for target, s in studies.items()
    }
    return export_quality(path, heads, seed=next(iter(studies.values())).seed, command=command, raw=raw)


def train_hidden(path: str | Path, of: Study, *, when: str, target: str, command: str) -> Checkpoint:
    """The probe `before` the answer (difficulty) or `after` it (confidence), of the kind the study was made with."""
    positions = positions_of(of.evidence, when)
    name = BEFORE if when == "before" else AFTER
    for method in of.methods:
        if isinstance(method, HiddenProbe | LowRankProbe) and method.name == name:
            return export_hidden(
                path, of.evidence, of.fits, method=method, target=target, seed=of.seed, command=command
            )
    raise AssertionError(f"no method reads {positions}")


def positions_of(evidence: Evidence, when: str) -> tuple[str, ...]:
    """Positions captured `before` or `after` the answer. Raises `RecordError` where there are none."""
    states = evidence.states
    if states is None:
        raise RecordError(
            f"{evidence.without_hidden} of {len(evidence.table)} labelled answers have no hidden states: collect them "
            f"with a local model and --capture, or run `metaprobe extract`"
        )
    positions = tuple(p for p in states.positions if (p == "prompt_last") == (when == "before"))
    if not positions:
        raise RecordError(f"no position {when} the answer was captured; there are: {', '.join(states.positions)}")
    return positions


def train_choice(
    path: str | Path, stores: Sequence[str | Path], *, seed: int, folds: int, command: str
) -> tuple[Checkpoint, tuple[PolicyResult, ...]]:
    """The learned choice between accepting a direct answer and asking again, beside the fixed thresholds."""
    data = paired_answers(load_runs(stores))
    policies, learned = evaluate_choice(data, folds=folds, seed=seed)
    checkpoint = export_choice(path, data, policies, learned, seed=seed, command=command)
    return checkpoint, policy_results(data.groups, policies, seed=seed)


def require_report() -> None:
    """Raises `MissingExtra` now rather than after minutes of collecting and fitting."""
    for module in ("pyarrow", "lightgbm", "sklearn", "jinja2", "matplotlib"):
        require(module, "train,report")


def write_comparison(
    folder: str | Path, of: Study, *, choices: tuple[PolicyResult, ...] = (), notes: Sequence[str] = (), command: str
) -> tuple[Comparison, Path]:
    """Report, tables as CSV and the figures as JSON in `folder`; returns the comparison and the report's path."""
    found = comparison(of.evidence, of.methods, of.fits, choices=choices, notes=notes, command=command, seed=of.seed)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tables_csv(found).items():
        (folder / name).write_text(text, encoding="utf-8")
    figures = {
        m.name: {
            key: {"estimate": i.estimate, "low": i.low, "high": i.high, "n": i.n, "groups": i.groups}
            for key in ("auroc", "auprc", "ece", "brier_skill", "aurc", "diff_stated", "diff_baseline")
            if (i := getattr(m, key)) is not None
        }
        for m in found.methods
    }
    (folder / "comparison.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    require_report()
    from metaprobe.eval.report.render import render_report  # training alone needs neither templates nor plots

    report = folder / "report.html"
    report.write_text(render_report(found), encoding="utf-8")
    return found, report
