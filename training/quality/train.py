"""From stored runs to a quality predictor, in two calls: a study of each head, and the checkpoint."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from metaprobe.checkpoints import Checkpoint
from metaprobe.eval.audits.domains import FEWEST, domains_of
from metaprobe.eval.table import AnswerTable
from metaprobe.records.errors import RecordError
from metaprobe.training.common.heads import INVERTED
from metaprobe.training.crossfit.methods import (
    FeatureTrees,
)
from metaprobe.training.crossfit.study import OnStep, Study, quiet, study_of
from metaprobe.training.quality.data import Graded, load_heads
from metaprobe.training.quality.figures import GradedStudy, graded_study
from metaprobe.training.quality.fit import QualityHead, export_quality

FEWEST_TASKS = 3
"""For settings that are chosen for new tasks."""


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
    on_step: OnStep = quiet,
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
