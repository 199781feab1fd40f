"""The artefact: a folder with a manifest, an ONNX graph, golden rows and a model card.

checkpoint = load_checkpoint("out/quality")
outputs = checkpoint.run({"features": features})    # float32 (n, width) -> one array an output
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from metaprobe.checkpoints.checkpoint import Checkpoint, Limits, load_checkpoint
from metaprobe.checkpoints.checkpoint_errors import (
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
from metaprobe.checkpoints.flagging import FlagOptions
from metaprobe.checkpoints.manifest import (
    Audit,
    Calibration,
    Draft,
    FlagPoint,
    Generator,
    Metric,
    OperatingPoint,
    Promise,
    Severity,
    Training,
)

if TYPE_CHECKING:
    from metaprobe.checkpoints.description import compare, describe, describe_differences, describe_verified
    from metaprobe.checkpoints.files import bundled_names, find_bundled
    from metaprobe.checkpoints.onnx_guard import check_model
    from metaprobe.checkpoints.publish import Pretrained, push
    from metaprobe.checkpoints.save import check_target, save_checkpoint

__all__ = [
    "Audit",
    "Calibration",
    "Checkpoint",
    "CheckpointError",
    "CheckpointExists",
    "ContractMismatch",
    "Draft",
    "FlagOptions",
    "FlagPoint",
    "Generator",
    "GoldenMismatch",
    "HubError",
    "Limits",
    "Metric",
    "MovingRevision",
    "NotACheckpoint",
    "OperatingPoint",
    "Pretrained",
    "Promise",
    "Severity",
    "TamperedCheckpoint",
    "Training",
    "UnsafeModel",
    "UntrustedCheckpoint",
    "bundled_names",
    "check_model",
    "check_target",
    "compare",
    "describe",
    "describe_differences",
    "describe_verified",
    "find_bundled",
    "load_checkpoint",
    "push",
    "save_checkpoint",
]
_LATER = {
    name: f"metaprobe.checkpoints.{module}"
    for module, names in {
        "description": "compare describe describe_differences describe_verified",
        "files": "bundled_names find_bundled",
        "onnx_guard": "check_model",
        "publish": "Pretrained push",
        "save": "check_target save_checkpoint",
    }.items()
    for name in names.split()
}
"""Maps names to their modules, which are imported on first use: a caller that only scores needs none of them."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'metaprobe.checkpoints' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
