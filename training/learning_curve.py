"""How good the methods of a study become with more labels: the folds are fitted again, each on fewer of them."""

from contextlib import suppress

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.results import LearningCurve, SeenMethod
from metaprobe.records.errors import RecordError
from metaprobe.training.methods import AFTER, BEFORE, BLEND, LADDER, MEAN_LOGPROB
from metaprobe.training.options import OnStep, quiet
from metaprobe.training.study import CrossFit, Study, crossfit

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
