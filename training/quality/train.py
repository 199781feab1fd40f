"""From stored runs to a quality predictor: a study of each head, and the checkpoint."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from metaprobe.checkpoints import Checkpoint, FlagOptions
from metaprobe.checkpoints.flag_options import USUAL_FLAGS
from metaprobe.probes.quality_contract import KIND, MAIN_HEADS
from metaprobe.records.extras import require
from metaprobe.training.common.heads import INVERTED, SCALES
from metaprobe.training.common.writing import writes
from metaprobe.training.crossfit.methods import LogprobLadder
from metaprobe.training.crossfit.study import OnStep, Study, quiet, study_of
from metaprobe.training.options import QualityOptions, WrongOptions
from metaprobe.training.quality.data import Graded, load_heads
from metaprobe.training.quality.figures import GradedStudy, study_grades
from metaprobe.training.quality.fit import QualityHead, export_quality


@writes(KIND)
def train_quality(stores: Sequence[str | Path], options: QualityOptions) -> Checkpoint:
    """Returns the predictor's checkpoint, fitted on the labelled answers of these stores.

    Raises `RecordError` where data or options do not suffice, `MissingExtra` without the extra `fit`, and
    `CheckpointExists` where `out` holds something else.
    """
    for package in ("lightgbm", "sklearn", "onnxmltools"):
        require(package, "fit")
    if options.new_tasks and (graded := sorted(set(options.targets) & set(SCALES))):
        raise WrongOptions(f"new_tasks makes predictors of labels that are 0 or 1, not of {', '.join(graded)}")
    if options.flags and not any(name in MAIN_HEADS and name not in SCALES for name in options.targets):
        raise WrongOptions(
            f"{next(iter(options.flags))} sets the threshold of a score that is the probability of being right; the "
            f"targets are {', '.join(options.targets)}: add the target correct, or leave the option out"
        )
    with _cluster(options.dask) as spread:
        studies = head_studies(
            stores,
            options.targets,
            stage=options.stage,
            agent=options.agent,
            source=options.label_source,
            new_tasks=options.new_tasks,
            folds=options.folds,
            seed=options.seed,
            spread=spread,
            on_step=options.on_step,
        )
        options.on_step("audit and export")
        command = options.recorded("train_quality")
        return write_quality(options.out, studies, command=command, raw=options.raw_graph, flags=options.as_flags())


@contextmanager
def _cluster(scheduler: str | None) -> Iterator[bool]:
    """Yields whether features go to a Dask cluster, which is the default one meanwhile."""
    if scheduler is None:
        yield False
        return
    with require("distributed", "train,dask").Client(scheduler):
        yield True


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
    """A study of each head that the targets need, from runs that are read once; for `write_quality`.

    A head is learned from the answers that have its label. `source`: whose labels (`load_heads`). `new_tasks`: take
    only what does better on tasks left out, of heads that are a probability. `spread`: put the features on the cluster
    of the default Dask client, whose workers then fit the trees.
    """
    ladder = LogprobLadder(new_tasks)
    found: dict[str, Study | GradedStudy] = {}
    heads = load_heads(stores, targets, stage=stage, agent=agent, source=source, spread=spread)
    for place, (target, data) in enumerate(heads.items(), 1):
        head = f"head {place} of {len(heads)}, {target}"

        def step(what: str, head: str = head) -> None:
            on_step(f"{head}: {what}")

        if regrouped := (data.evidence if isinstance(data, Graded) else data).regrouped:
            step(regrouped)
        if isinstance(data, Graded):
            found[target] = study_grades(data, folds=folds, seed=seed, on_step=step)
        else:
            found[target] = study_of(data, folds=folds, seed=seed, ladder=ladder, on_step=step)
    return found


def write_quality(
    path: str | Path,
    studies: Mapping[str, Study | GradedStudy],
    *,
    command: str,
    raw: bool = False,
    flags: FlagOptions = USUAL_FLAGS,
) -> Checkpoint:
    """The quality predictor with one head a target, from one study a target.

    A study of `critical` must have `y` turned round, as `head_studies` makes it. `raw` adds the graph that takes
    log-probabilities themselves, `raw.onnx`. `flags`: what the stored threshold flags.
    """
    heads = {
        target: s if isinstance(s, GradedStudy) else QualityHead(s.evidence, s.fits, target in INVERTED, s.ladder)
        for target, s in studies.items()
    }
    seed = next(iter(studies.values())).seed
    return export_quality(path, heads, seed=seed, command=command, raw=raw, flags=flags)
