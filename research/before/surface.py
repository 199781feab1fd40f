"""The step `question surface` of P(success), which needs no language model, against TF-IDF and the page's control.

python -m research.before.surface DATA    # docs/measured/before_surface.json, then the page

Labels and test questions are those of `research.before.measure`.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.ranked import auroc
from metaprobe.routing.question_surface import form_counts, read_part
from metaprobe.training.success_fit import SEEN_SHARE, SuccessData, fit_prior, log_loss, success_data
from metaprobe.training.surface_fit import fit_forms, read_surfaces
from research.before.measure import (
    FOREIGN,
    LABELS,
    STEP,
    STEP_FIGURES,
    SURFACE,
    TFIDF,
    drawn_labels,
    page,
    split_groups,
    surface_columns,
    text_control,
    word_columns,
)
from research.before.tasks import TASKS, outcomes
from research.blocks import keep_figures

KEPT = STEP_FIGURES
Floats = NDArray[np.float64]


def main(data: Path) -> None:
    """Measures every task, and writes the page."""
    sets = {task: success_data(outcomes(task, data)) for task in TASKS}
    keep_figures(KEPT, foreign_forms(sets), "forms", sort=False)
    for task, whole in sets.items():
        keep_figures(KEPT, measured(whole), "tasks", task, sort=False)
        print(task, flush=True)
    page()


def foreign_forms(sets: Mapping[str, SuccessData]) -> dict[str, dict[str, float]]:
    """Returns for each task the share of new questions of each task, its own too, whose form counts as unseen."""
    shares: dict[str, dict[str, float]] = {}
    for task, whole in sets.items():
        groups, _, test, others = split_groups(whole)
        if len(groups) - len(test) < 0.9 * max(LABELS):
            continue
        part = whole.take(drawn_labels(groups, others, max(LABELS), 0))
        form = np.array([form_counts(read_part(question)) for question in part.questions])
        forms = fit_forms(form, part.groups, SEEN_SHARE)
        new = {name: other.questions[:FOREIGN] for name, other in sets.items()}
        new[task] = whole.take(test).questions[:FOREIGN]
        shares[task] = {
            name: float(np.mean([forms.distance(question) > forms.limit for question in questions]))
            for name, questions in new.items()
        }
    return shares


def measured(whole: SuccessData) -> dict[str, Any]:
    """Returns AUROC and log loss of the step and of two controls, for each number of labels and each model."""
    groups, _, test, others = split_groups(whole)
    figures: dict[str, Any] = {"questions": len(whole.questions), "labels": {}}
    for labels in LABELS:
        if len(groups) - len(test) < 0.9 * labels:
            continue
        scores = scores_of(whole, drawn_labels(groups, others, labels, 0), test)
        rows = {}
        for column, target in enumerate(whole.candidates):
            y = (whole.score[test, column] >= 0.5).astype(np.int64)
            rows[target] = {
                "auroc": {
                    name: round(float(np.asarray(auroc(y, score[:, column]))), 4) for name, score in scores.items()
                },
                "log_loss": {
                    name: round(float(log_loss(score[:, column], y).mean()), 4) for name, score in scores.items()
                },
            }
        figures["labels"][str(labels)] = rows
    return figures


def scores_of(whole: SuccessData, train: NDArray[Any], test: NDArray[Any]) -> dict[str, Floats]:
    """Returns log-odds (t, A) of the step, TF-IDF and the control `surface` on the test questions."""
    part, by_dimension = whole.take(train), len(whole.dimensions) > 1
    rows = read_surfaces(whole.questions)
    prior, _ = fit_prior(part, rows[train], STEP, by_dimension=by_dimension, seed=0)
    offset = np.asarray(prior.table[:, whole.dimension].T)
    return {
        STEP: prior.log_odds(whole.take(test), rows[test]),
        TFIDF: text_control(word_columns(whole, train), whole, train, test, np.zeros_like(offset), 0),
        SURFACE: text_control(surface_columns(whole, train), whole, train, test, offset, 0),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
