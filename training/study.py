"""The whole of training and comparing on given runs, in a few calls: what the command line and the demo use."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from metaprobe.checkpoints import Checkpoint
from metaprobe.collecting.summary import plain
from metaprobe.eval.audits.domains import FEWEST, domains_of
from metaprobe.eval.compare import policy_results
from metaprobe.eval.compare_items import write_item_table
from metaprobe.eval.results import Comparison, Place, PolicyResult
from metaprobe.eval.table import AnswerTable
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.choice import evaluate_choice, export_choice, paired_answers
from metaprobe.training.common.heads import INVERTED
from metaprobe.training.comparison.compare import comparison
from metaprobe.training.crossfit.evidence import load_evidence, load_runs
from metaprobe.training.crossfit.folds import CrossFit, crossfit
from metaprobe.training.crossfit.methods import (
    AFTER,
    BEFORE,
    MEAN_LOGPROB,
    TREES,
    USUAL_TREES,
    Evidence,
    FeatureTrees,
    HiddenProbeMethod,
    LowRankProbe,
    Method,
    ProbeKind,
    standard_methods,
)
from metaprobe.training.crossfit.progress import Progress
from metaprobe.training.hidden.fit import export_hidden
from metaprobe.training.quality.data import Graded, load_heads, turned_round
from metaprobe.training.quality.figures import GradedStudy, graded_study
from metaprobe.training.quality.fit import QualityHead, export_quality

BLENDED = (MEAN_LOGPROB, TREES, BEFORE, AFTER)
"""What the blend is made of: one signal of each kind. Fixed beforehand, not chosen."""

FEWEST_TASKS = 3
"""For settings that are chosen for new tasks."""

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
    target: str = "correct"
    """The label that was studied."""
    stores: tuple[Path, ...] = ()
    """Where the runs are, for what a comparison says of them; empty where they are not in stores."""

    @property
    def trees(self) -> FeatureTrees:
        """The recipe of the quality predictor."""
        return next(method for method in self.methods if isinstance(method, FeatureTrees))


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
    found = study_of(evidence, folds=folds, seed=seed, kind=kind, on_step=on_step)
    return replace(found, target=target, stores=tuple(Path(store) for store in stores))


def study_of(
    evidence: Evidence,
    *,
    folds: int = 5,
    seed: int = 0,
    kind: ProbeKind = "logistic",
    trees: FeatureTrees = USUAL_TREES,
    progress: Progress | None = None,
    on_step: OnStep = _quiet,
) -> Study:
    """The same, of evidence that is loaded. `progress`: where finished folds are kept for the next start."""
    methods = tuple(standard_methods(evidence, kind=kind, trees=trees))
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
    new_tasks: bool = False,
    folds: int = 5,
    seed: int = 0,
    spread: bool = False,
    on_step: OnStep = _quiet,
) -> dict[str, Study | GradedStudy]:
    """A study of each head that the targets need, from runs that are read once; for `train_quality`.

    A head is learned from the answers that have its label. `source`: whose labels (`load_heads`). `new_tasks`: choose
    settings by tasks left out, of heads that are a probability. `spread`: put the features on the cluster of the
    default Dask client, whose workers then fit the trees.
    """
    trees = FeatureTrees(new_tasks)
    found: dict[str, Study | GradedStudy] = {}
    for target, data in load_heads(stores, targets, stage=stage, agent=agent, source=source, spread=spread).items():

        def step(what: str, target: str = target) -> None:
            on_step(f"{target}: {what}")

        if regrouped := (data.evidence if isinstance(data, Graded) else data).regrouped:
            step(regrouped)
        if isinstance(data, Graded):
            found[target] = graded_study(data, folds=folds, seed=seed, on_step=step)
        else:
            if new_tasks:
                _check_tasks(data.table)
            found[target] = study_of(data, folds=folds, seed=seed, trees=trees, on_step=step)
    return found


def _check_tasks(table: AnswerTable) -> None:
    """Raises `RecordError` where settings for new tasks could not be chosen and then judged."""
    if len(found := domains_of(table)[1]) < FEWEST_TASKS:
        raise RecordError(
            f"settings for new tasks take {FEWEST_TASKS} tasks (or dimensions of one) with {FEWEST} answers of both "
            f"kinds each, one to be judged, one to choose on and one to learn from; there are: "
            f"{', '.join(f'{name} ({len(rows)})' for name, rows in found.items()) or 'none'}"
        )


def train_quality(
    path: str | Path, studies: Mapping[str, Study | GradedStudy], *, command: str, raw: bool = False
) -> Checkpoint:
    """The quality predictor with one head a target, from one study a target.

    A study of `critical` must have `y` turned round, as `head_studies` makes it. `raw` adds the graph that takes
    log-probabilities themselves, `raw.onnx`.
    """
    heads = {
        target: s if isinstance(s, GradedStudy) else QualityHead(s.evidence, s.fits, target in INVERTED, s.trees)
        for target, s in studies.items()
    }
    return export_quality(path, heads, seed=next(iter(studies.values())).seed, command=command, raw=raw)


def train_hidden(path: str | Path, of: Study, *, when: str, target: str, command: str) -> Checkpoint:
    """The probe `before` the answer (difficulty) or `after` it (confidence), of the kind the study was made with."""
    positions = positions_of(of.evidence, when)
    name = BEFORE if when == "before" else AFTER
    for method in of.methods:
        if isinstance(method, HiddenProbeMethod | LowRankProbe) and method.name == name:
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
        other = "after" if when == "before" else "before"
        raise RecordError(
            f"no position {when} the answer was captured; there are: {', '.join(states.positions)}, "
            f"which --when {other} reads"
        )
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
    folder: str | Path,
    of: Study,
    *,
    choices: tuple[PolicyResult, ...] = (),
    notes: Sequence[str] = (),
    probes: Mapping[str, Checkpoint] | None = None,
    command: str,
) -> tuple[Comparison, Path]:
    """The report with its tables as CSV and its drawings as SVG; all figures as comparison.json; the item table.

    `probes`: the checkpoints of the study's probes, by their methods' names, so that the report says what they read.
    Returns the comparison and the report's path.
    """
    require_report()
    from metaprobe.eval.report.render import report_files  # training alone needs neither templates nor plots

    found = comparison(
        of.evidence,
        of.methods,
        of.fits,
        runs=load_runs(of.stores),
        target=of.target,
        choices=choices,
        notes=notes,
        shipped={name: _place(checkpoint) for name, checkpoint in (probes or {}).items()},
        command=command,
        seed=of.seed,
    )
    folder = Path(folder)
    texts = {**report_files(found), "comparison.json": json.dumps(figures(found), indent=2) + "\n"}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    write_item_table(folder, of.evidence.table, of.fits.methods)
    return found, folder / "report.html"


def _place(checkpoint: Checkpoint) -> Place:
    """Layer and position that the checkpoint of a probe of one layer reads."""
    contract = checkpoint.manifest.contract
    return contract["layer"], contract["position"]


IN_ITEMS = ("y", "probability", "ranking")
"""What has an entry for every answer, and stands in the item table."""


def figures(found: Comparison) -> dict[str, Any]:
    """Everything a comparison says, ready for JSON, but for what is in the item table. Not a number is null."""

    def shown(value: Any) -> dict[str, Any]:
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name not in (*IN_ITEMS, "methods")}

    return {
        "answers": len(found.y),
        "base_rate": found.base_rate,
        "methods": {method.name: shown(method) for method in found.methods},
        **shown(found),
    }
