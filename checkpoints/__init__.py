"""The artefact: a folder with a manifest, an ONNX graph, golden rows and a model card.

checkpoint = load_checkpoint("out/quality")
outputs = checkpoint.run({"features": features})    # float32 (n, width) -> one array an output
"""

from metaprobe.checkpoints.checkpoint import Checkpoint, Limits, load_checkpoint
from metaprobe.checkpoints.describe import describe
from metaprobe.checkpoints.errors import (
    CheckpointError,
    CheckpointExists,
    ContractMismatch,
    GoldenMismatch,
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
from metaprobe.checkpoints.write import check_target, save_checkpoint

__all__ = [
    "Audit",
    "Calibration",
    "Checkpoint",
    "CheckpointError",
    "CheckpointExists",
    "ContractMismatch",
    "Draft",
    "FileEntry",
    "Generator",
    "GoldenMismatch",
    "Limits",
    "Manifest",
    "Metric",
    "NotACheckpoint",
    "Severity",
    "TamperedCheckpoint",
    "TensorSpec",
    "Training",
    "UnsafeModel",
    "UntrustedCheckpoint",
    "check_model",
    "check_target",
    "describe",
    "load_checkpoint",
    "save_checkpoint",
]
