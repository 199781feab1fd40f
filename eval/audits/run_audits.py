"""All audits of one trained method, in one call."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.audits.domains import FEWEST, Elsewhere, holds_elsewhere
from metaprobe.eval.audits.simpler_predictors import (
    RESAMPLES,
    REVERSED,
    Scores,
    above_chance,
    beats_controls,
    beats_controls_within,
    free_controls,
    has_questions,
    layers_tried,
    random_features,
    shuffled_labels,
)
from metaprobe.eval.audits.training_data import (
    FEW_SHARED,
    Split,
    class_balance,
    group_overlap,
    label_noise,
    near_duplicates,
    repeated_questions,
    reworded_questions,
)
from metaprobe.eval.audits.twins import repeated_series, twins_disagree
from metaprobe.eval.compare import run_of_answers
from metaprobe.eval.method_results import Finding
from metaprobe.eval.metrics.bootstrap import cluster_weights, interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.metrics.stratified import StratifiedAuroc
from metaprobe.eval.metrics.strongest_control import ControlComparison, against_controls
from metaprobe.eval.table import AnswerTable

PROMPT = "prompt TF-IDF"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AuditInputs:
    """What is known of one trained method. An audit whose input is None (or empty) is skipped."""

    name: str
    """The method's, as it is to be called in the card."""
    table: AnswerTable
    score: Scores
    """(n,): held-out scores, higher for likelier right."""
    splits: Sequence[Split] = ()
    """Role -> row indices, for each outer fold."""
    controls: Mapping[str, Scores] = field(default_factory=dict)
    """Held-out scores (n,) of what explains the numbers more simply, such as `prompt TF-IDF`. `free_controls` are
    added."""
    own: Collection[str] = ()
    """The free numbers that the method is itself, and so cannot beat."""
    refit_labels: Callable[[NDArray[np.int64]], Scores] | None = None
    """Labels (n,) -> held-out scores (n,), by the whole recipe."""
    refit_features: Callable[[NDArray[np.float32]], Scores] | None = None
    """Features -> held-out scores (n,), by the whole recipe."""
    features_shape: tuple[int, ...] | None = None
    """Shape of what `refit_features` takes."""
    labels: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Source -> labels (n,) of 0, 1 and NaN, as from `labels_by_source`."""
    elsewhere: Elsewhere | None = None
    """Figures of domains that were left out."""
    selection_auroc: NDArray[np.floating] | None = None
    """Of every combination tried, any shape."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What was looked at, and what was not."""

    audits: tuple[Finding, ...]
    skipped: tuple[str, ...]
    """Audits that could not be made, each with what they need."""
    controls: ControlComparison | None = None
    """The score against every control; None where the report is not of one score."""
    controls_within: ControlComparison | None = None
    """The same over pairs of answers of one run; None where there is one run."""

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The audits that did not pass."""
        return tuple(audit for audit in self.audits if not audit.passed)


def run_audits(inputs: AuditInputs, *, seed: int = 0) -> AuditReport:
    """Every audit whose input is there. The refits cost 5 and 3 times the recipe; the others take seconds."""
    name, table, score, splits = inputs.name, inputs.table, inputs.score, inputs.splits
    y, groups, questions = table.y, table.groups, table.questions
    weights = cluster_weights(groups.tolist(), RESAMPLES, seed)
    of_answers, found, skipped = [class_balance(y)], [above_chance(y, score, weights, name=name)], list[str]()
    if splits:
        of_answers.append(group_overlap(groups, splits))
    else:
        skipped.append("group overlap: needs the splits")
    if splits and has_questions(table):
        of_answers += [repeated_questions(questions, splits, y=y), near_duplicates(questions, splits, y=y, seed=seed)]
        of_answers.append(reworded_questions(questions, splits, y=y))
    else:
        skipped.append("repeated, nearly repeated and reworded questions: need the splits and the questions' texts")
    if splits and table.measured:
        of_answers.append(repeated_series(table.logprobs, splits, y=y))
    else:
        skipped.append("answers that occur twice: need the splits and the log-probabilities")
    if twins := twins_disagree(table.logprobs, y):
        of_answers.append(twins)
    if noise := label_noise(inputs.labels, groups, y=y, seed=seed):
        of_answers += noise
    else:
        skipped.append(f"label noise: needs {FEW_SHARED} answers labelled by two sources")
    free = {key: value for key, value in free_controls(table).items() if key.removesuffix(REVERSED) not in inputs.own}
    named = free | dict(inputs.controls)
    controls = against_controls(y, score, named, weights) if named else None
    if controls is None:
        skipped.append("controls: need log-probabilities or questions; without them something simpler may do as well")
    else:
        found += beats_controls(controls, name=name)
    within: ControlComparison | None = None
    if named and (runs := run_of_answers(table)).any():
        within = against_controls(y, score, named, weights, metric=StratifiedAuroc(runs))
        found.append(beats_controls_within(within, name=name))
    else:
        skipped.append("controls within runs: needs answers of several runs (models, tasks, ways of asking)")
    if PROMPT not in inputs.controls:
        skipped.append(f"{PROMPT}: needs its held-out scores")
    if inputs.refit_labels is not None:
        found.append(shuffled_labels(inputs.refit_labels, y, score, groups, seed=seed))
    else:
        skipped.append("shuffled labels: needs the recipe")
    if inputs.refit_features is not None and inputs.features_shape is not None:
        found.append(random_features(inputs.refit_features, y, inputs.features_shape, groups, seed=seed))
    else:
        skipped.append("random features: needs the recipe and the features' shape")
    if inputs.elsewhere is not None:
        found.append(holds_elsewhere(inputs.elsewhere, name=name, home=float(auroc(y, score))))
    else:
        needs = f"two tasks, or two dimensions, with {FEWEST} answers each, and a fit without each"
        skipped.append(f"other domains: needs {needs}")
    if inputs.selection_auroc is not None:
        found.append(layers_tried(inputs.selection_auroc, interval(auroc, y, score, weights), name=name))
    else:
        skipped.append("layers tried: needs the sweep that chose the probe")
    of_method = tuple(dataclasses.replace(finding, method=name) for finding in found)
    return AuditReport((*of_answers, *of_method), tuple(skipped), controls, within)
