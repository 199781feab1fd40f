"""The artefact: a folder with a manifest, an ONNX graph, golden rows and a model card.

checkpoint = load_checkpoint("out/quality")
outputs = checkpoint.run({"features": features})    # float32 (n, width) -> one array an output
"""

from metaprobe.checkpoints.bundle import bundled, bundled_names
from metaprobe.checkpoints.checkpoint import Checkpoint, Limits, load_checkpoint
from metaprobe.checkpoints.describe import describe, describe_verified
from metaprobe.checkpoints.diff import Change, CheckpointDiff, compare
from metaprobe.checkpoints.errors import (
    CheckpointError,
    CheckpointExists,
    ContractMismatch,
    GoldenMismatch,
    HubError,
    MovingRevision,
    NotACheckpoint,
    TamperedCheckpoint,
    UnsafeModel,
    UntrustedCheckpoint,
)
from metaprobe.checkpoints.manifest import (
    Audit,
    Calibration,
    Draft,
    FileEntry,
    Generator,
    Manifest,
    Metric,
    Severity,
    TensorSpec,
    Training,
)
from metaprobe.checkpoints.onnx_guard import check_model
from metaprobe.checkpoints.publish import Pretrained, Published, push, save_copy
from metaprobe.checkpoints.write import check_target, save_checkpoint, seal

__all__ = [
    "Audit",
    "Calibration",
    "Change",
    "Checkpoint",
    "CheckpointDiff",
    "CheckpointError",
    "CheckpointExists",
    "ContractMismatch",
    "Draft",
    "FileEntry",
    "Generator",
    "GoldenMismatch",
    "HubError",
    "Limits",
    "Manifest",
    "Metric",
    "MovingRevision",
    "NotACheckpoint",
    "Pretrained",
    "Published",
    "Severity",
    "TamperedCheckpoint",
    "TensorSpec",
    "Training",
    "UnsafeModel",
    "UntrustedCheckpoint",
    "bundled",
    "bundled_names",
    "check_model",
    "check_target",
    "compare",
    "describe",
    "describe_verified",
    "load_checkpoint",
    "push",
    "save_checkpoint",
    "save_copy",
    "seal",
]
