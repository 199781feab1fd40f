"""Are the figures what they seem? Checks of the data, of what was learned, and of where it holds.

report = run_audits(AuditInputs(name="probe", table=table, score=held_out, splits=folds))
report.failed, report.audits, report.skipped, report.controls.strongest
"""

from metaprobe.eval.audits.controls import (
    above_chance,
    beats_controls,
    free_controls,
    layers_tried,
    permuted_by_group,
    random_features,
    shuffled_labels,
)
from metaprobe.eval.audits.data import (
    Split,
    auroc_ceiling,
    class_balance,
    group_overlap,
    label_noise,
    labels_by_source,
    near_duplicates,
    repeated_questions,
)
from metaprobe.eval.audits.domains import Elsewhere, domains_of, holds_elsewhere, left_out
from metaprobe.eval.audits.run import AuditInputs, AuditReport, run_audits
from metaprobe.eval.audits.transfer import TransferResult, transfer_matrix

__all__ = [
    "AuditInputs",
    "AuditReport",
    "Elsewhere",
    "Split",
    "TransferResult",
    "above_chance",
    "auroc_ceiling",
    "beats_controls",
    "class_balance",
    "domains_of",
    "free_controls",
    "group_overlap",
    "holds_elsewhere",
    "label_noise",
    "labels_by_source",
    "layers_tried",
    "left_out",
    "near_duplicates",
    "permuted_by_group",
    "random_features",
    "repeated_questions",
    "run_audits",
    "shuffled_labels",
    "transfer_matrix",
]
