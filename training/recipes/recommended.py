"""The comparison as a command: the report, and the checkpoint of the method that the report is about."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from metaprobe.checkpoints import Checkpoint, CheckpointExists
from metaprobe.eval.compare import BEST_BASELINE
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.results import Comparison, LearningCurve, SeenMethod
from metaprobe.records.errors import RecordError
from metaprobe.training.comparison import EXPORTED, own_methods, require_report, write_comparison
from metaprobe.training.evidence import Evidence, load_runs, read_decisions
from metaprobe.training.methods import (
    AFTER,
    BEFORE,
    BLEND,
    DECISION_LADDER,
    DECISIONS,
    LADDER,
    MEAN_LOGPROB,
    GivenScore,
)
from metaprobe.training.options import CompareOptions, OnStep, quiet
from metaprobe.training.recipes.blend import write_blend
from metaprobe.training.recipes.hidden import write_hidden
from metaprobe.training.recipes.quality import write_quality
from metaprobe.training.study import CrossFit, Study, crossfit, study, study_of


def compare(stores: Sequence[str | Path], options: CompareOptions) -> Comparison:
    """Returns what a comparison of every method on these stores finds, and writes its report into the folder `out`.

    With `export` the checkpoint of the headline method is written too. Raises `CheckpointExists` where that folder is
    there already, and `RecordError` for a headline method of which there is no checkpoint.
    """
    require_report()
    if options.export is not None and Path(options.export).exists():
        raise CheckpointExists(f"{options.export} exists; expected a new folder for the checkpoint: name another one")
    given = [options.scores] if isinstance(options.scores, str | Path) else options.scores
    files = [Path(path) for path in given]

    def own(evidence: Evidence, names: Sequence[str]) -> list[GivenScore]:
        known = {call.id for run in load_runs(stores, told=True) for call in run.calls} if files else set()
        return own_methods(files, evidence.table, known, (*names, BLEND, BEST_BASELINE))

    made = study(
        stores,
        own=own,
        bare=True,
        target=options.target,
        stage=options.stage,
        agent=options.agent,
        folds=options.folds,
        seed=options.seed,
        on_step=options.on_step,
    )
    learning = learning_curve(made, on_step=options.on_step) if options.learning_curves else None
    options.on_step("report")
    command = options.recorded("compare")
    comparison, _ = write_comparison(options.out, made, learning=learning, command=command)
    if options.export is not None:
        options.on_step("audit and export")
        checkpoint = write_method(options.export, made, comparison.headline, command=command)
        options.on_line(f"checkpoint  {checkpoint.path} ({comparison.headline})")
    return comparison


def write_method(path: str | Path, of: Study, name: str, *, command: str) -> Checkpoint:
    """Writes the checkpoint of a study's method. Raises `RecordError` for one of which there is none."""
    if name not in EXPORTED:
        raise RecordError(
            f"the report is about {name!r}, of which there is no checkpoint; there is one of {', '.join(EXPORTED)}"
        )
    if name == BLEND:
        return write_blend(path, of, target=of.target, command=command)
    if name == LADDER:
        return write_quality(path, {of.target: of}, command=command)
    if name == DECISIONS:
        decided = study_of(read_decisions(of.evidence), seed=of.seed, ladder=DECISION_LADDER)
        return write_quality(path, {of.target: decided}, command=command)
    return write_hidden(path, of, when="before" if name == BEFORE else "after", target=of.target, command=command)


# How good the methods become with more labels: the folds are fitted again, each on fewer of them.

SIZES = (100, 300, 1000, 3000)
"""Labels that a fold learns from, as papers on probes show them."""
SHOWN = (MEAN_LOGPROB, LADDER, BEFORE, AFTER, BLEND)


def learning_curve(study: Study, *, on_step: OnStep = quiet) -> LearningCurve | None:
    """Returns the AUROC of the learned methods and of the mean log-probability by the number of labels.

    Each size is one draw of groups, the same for all methods. Sizes beyond the folds' labels, and those whose groups
    do not suffice for the folds, are left out; None where only the whole is left.
    """
    table, whole = study.evidence.table, min(len(roles.seen) for roles in study.fits.roles)
    methods = [method for method in study.methods if method.name in SHOWN]
    shown = [method.name for method in methods]
    weights = cluster_weights(table.groups.tolist(), seed=study.seed)

    def measured(fits: CrossFit) -> dict[str, Interval]:
        return {name: interval(auroc, table.y, fits[name].ranking, weights) for name in shown}

    points: dict[int, dict[str, Interval]] = {}
    for labels in (size for size in SIZES if size < whole):
        on_step(f"learning curve: {labels} labels")
        with suppress(RecordError):
            fits = crossfit(study.evidence, methods, folds=len(study.fits.roles), seed=study.seed, labels=labels)
            points[labels] = measured(fits)
    if not points or not shown:
        return None
    points[whole] = measured(study.fits)
    family = {judged.name: judged.family for judged in study.fits.methods}
    return LearningCurve(
        labels=tuple(points),
        methods=tuple(
            SeenMethod(name, family[name], tuple(point[name] for point in points.values())) for name in shown
        ),
    )
