"""Labelled answers as texts (questions, answers and grades), for methods that read only texts."""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.answer_table import AnswerTable, answer_table
from metaprobe.eval.audits_of_data import labels_by_source
from metaprobe.probes.adapter import prompt_of
from metaprobe.records.errors import RecordError
from metaprobe.records.store import fingerprint
from metaprobe.training.evidence import Evidence, generator_of
from metaprobe.training.folds import join_table
from metaprobe.training.stored_runs import load_runs

MAX_LEVELS = 10
"""Most distinct labels for which a target counts as levels of a rubric."""
MIN_STEP_GROUPS = 10
"""Fewest groups on each side of a step between two levels for which the step is learned."""


@dataclass(frozen=True, slots=True, eq=False)
class TextData:
    """n labelled answers with their texts. Entry i of each field is of row i of the table."""

    evidence: Evidence
    """The table of the answers, without features. Its `y` is the label, or whether a level is at least the middle one.
    """
    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    grades: NDArray[np.float64]
    """Label of each answer (n,), unchanged."""
    learnable_levels: tuple[int, ...] = ()
    """Levels k for which `grade >= k` can be learned; empty for labels 0 and 1."""

    @property
    def table(self) -> AnswerTable:
        return self.evidence.table

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of everything that training depends on."""
        rows = zip(self.table.call_ids, self.table.groups, self.table.y, self.prompts, self.answers, strict=True)
        return hashlib.sha256(repr([(str(c), str(g), int(y), p, a) for c, g, y, p, a in rows]).encode()).hexdigest()


def load_texts(
    data: Sequence[str | Path], *, target: str = "correct", stage: str | None = None, agent: str | None = None
) -> TextData:
    """Returns every labelled answer in run stores and files of import lines, with the texts of prompt and answer.

    Answers without a text, or without a text of a user message, are left out with a warning.

    Raises `RecordError` if no answer is labelled, or if labels are neither 0 and 1 nor whole levels. It is also raised
    if more than half of the answers have no text of a user message, as in a store without texts. Raises
    `ImportFileError` for an invalid line, and the errors of the store.
    """
    runs = load_runs(data, plain=True)
    grades = {label.call_id: label.value for run in runs for label in run.labels if label.name == target}
    # A table holds labels of 0 and 1, so levels get a placeholder that is replaced below.
    placeholder_runs = [
        replace(
            run,
            labels=tuple(
                replace(run_label, value=1.0) if run_label.name == target else run_label for run_label in run.labels
            ),
        )
        for run in runs
    ]
    # The answers that have both texts.
    table, regrouped = join_table(answer_table(placeholder_runs, target=target, stage=stage, agent=agent, bare=True))
    calls = {call.id: call for run in runs for call in run.calls}
    chosen_calls = [calls[call_id] for call_id in table.call_ids.tolist()]
    has_text = np.array([bool(call.text.strip()) for call in chosen_calls])
    without_question = [call.id for call in chosen_calls if prompt_of(call.messages) is None]
    has_question = ~np.isin(table.call_ids, without_question)
    if 2 * len(without_question) > len(chosen_calls) or not (has_text & has_question).any():
        raise RecordError(
            f"{len(without_question)} of {len(chosen_calls)} answers have no text of a user message, such as "
            f"{without_question[:3]}, and {(~has_text).sum()} no text of their own; texts are read here: collect "
            "without --no-text"
        )
    for lacks, missing_text in ((~has_text, "text"), (~has_question, "text of a user message")):
        if lacks.any():
            warnings.warn(f"{lacks.sum()} labelled answers are left out: they have no {missing_text}", stacklevel=2)
    table = table.rows(has_text & has_question)
    # Labels instead of the placeholders.
    values = np.array([grades[call_id] for call_id in table.call_ids.tolist()], dtype=np.float64)
    y, levels = _binary_labels(values, table.groups, target)
    table = replace(table, y=y)
    chosen_calls = [calls[call_id] for call_id in table.call_ids.tolist()]
    prompts = [prompt_of(call.messages) for call in chosen_calls]
    evidence = Evidence(
        table,
        np.empty((len(table), 0), dtype=np.float32),
        feature_names=(),
        schema="",
        generator=generator_of(chosen_calls),
        fingerprint=fingerprint(runs),
        labels_by_source={} if levels else labels_by_source(runs, table.call_ids.tolist(), target),
        regrouped=regrouped,
    )
    return TextData(
        evidence, tuple(p or "" for p in prompts), tuple(call.text for call in chosen_calls), values, levels
    )


def grouped_by_content(texts: TextData) -> TextData:
    """Returns the texts with groups named by their place in the order of questions and answers.

    Folds follow the order of the groups' names. With these names the same texts get the same folds, whatever the names
    of lines, ids and groups.
    """
    table = texts.table
    rows = zip(texts.prompts, texts.answers, texts.grades.tolist(), table.groups.tolist(), strict=True)
    places: dict[str, str] = {}
    for *_, group in sorted(rows):
        places.setdefault(group, f"{len(places):09d}")
    place_names = np.array([places[group] for group in table.groups.tolist()])
    return replace(texts, evidence=replace(texts.evidence, table=replace(table, groups=place_names)))


def _binary_labels(
    grades: NDArray[np.float64], groups: NDArray[np.str_], target: str
) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """Returns labels of 0 and 1, and the levels k for which `grade >= k` can be learned.

    Grades of 0 and 1 are returned as they are, without levels. Other grades are cut at the middle step.
    """
    levels = np.unique(grades)
    if np.isin(levels, (0, 1)).all():
        return grades.astype(np.int64), ()
    if (levels != np.rint(levels)).any() or len(levels) > MAX_LEVELS:
        raise RecordError(
            f"label {target} has {len(levels)} values from {levels[0]:g} to {levels[-1]:g}; expected 0 and 1, or at "
            f"most {MAX_LEVELS} whole levels: round it, or cut it in two"
        )
    steps = [int(level) for level in levels[1:]]
    groups_of_step = {
        step: min(len(np.unique(groups[side])) for side in (grades >= step, grades < step)) for step in steps
    }
    middle_step = max(steps, key=lambda step: groups_of_step[step])
    return (grades >= middle_step).astype(np.int64), tuple(
        step for step in steps if groups_of_step[step] >= MIN_STEP_GROUPS
    ) or (middle_step,)
