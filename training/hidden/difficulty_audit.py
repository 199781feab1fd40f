"""The audits of a graded difficulty: those that need no labels of 0 and 1, and why the others were not made."""

from collections.abc import Sequence
from dataclasses import fields

from metaprobe.eval.audits.run_audits import AuditReport
from metaprobe.eval.audits.training_data import (
    FEW_SHARED,
    group_overlap,
    label_noise,
    near_duplicates,
    repeated_questions,
)
from metaprobe.training.common.roles import Roles, Rows
from metaprobe.training.crossfit.methods import Evidence

NOT_MADE = "class balance, shuffled labels, random features, other domains, layers tried: made for targets of 0 and 1"


def difficulty_audits(
    evidence: Evidence, items: Rows, splits: Sequence[Roles], *, labels: bool, seed: int = 0
) -> AuditReport:
    """What can be said of the items' split, and of the labels where the difficulty is made of them (`labels`).

    `items`: a row of the answer table for each item; `splits`: outer folds of items.
    """
    table = evidence.table
    groups, questions = table.groups[items], table.questions[items]
    parts = [{role.name: getattr(roles, role.name) for role in fields(roles)} for roles in splits]
    audits, skipped = [group_overlap(groups, parts)], [NOT_MADE]
    if any(question.strip() for question in questions.tolist()):
        audits += [repeated_questions(questions, parts), near_duplicates(questions, parts, seed=seed)]
    else:
        skipped.append("repeated questions, near-duplicates, prompt TF-IDF: need the questions' texts")
    if not labels:
        skipped.append("label noise: the levels come with the items; no answer was judged")
    elif noise := label_noise(evidence.labels_by_source, table.groups, y=table.y, seed=seed):
        audits += noise
    else:
        skipped.append(f"label noise: needs {FEW_SHARED} answers labelled by two sources")
    return AuditReport(tuple(audits), tuple(skipped))
