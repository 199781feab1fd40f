"""Which checkpoint goes where."""

import os
from pathlib import Path

from metaprobe.checkpoints.bundle import FOLDER
from metaprobe.checkpoints.errors import ContractMismatch
from metaprobe.checkpoints.files import BUNDLED

TAKEN_BY = {
    "quality": "`metaprobe score`, `metaprobe serve` and QualityPredictor",
    "gate": "`metaprobe serve --gate` and StreamingGate",
    "hidden": "`metaprobe collect --signal`, ConfidenceProbe and DifficultyProbe",
    "blend": "`metaprobe score CHECKPOINT RUNS` and TravellingBlend",
    "adapter": "`metaprobe collect --signal` and AdapterProbe",
    "router": "`metaprobe route` and `metaprobe collect --policy learned:`",
    "choice": "LearnedChoice",
    "text-classes": "TextClassifier and `metaprobe collect writing-assistant --constant learned=1`",
}


def check_kind(path: str | os.PathLike[str], kind: str, *expected: str) -> None:
    """Raises `ContractMismatch` for a checkpoint of another kind than one of those expected."""
    if kind not in expected:
        raise wrong_kind(path, kind, *expected)


def wrong_kind(path: str | os.PathLike[str], kind: str, *expected: str) -> ContractMismatch:
    """Says what came, what was expected, and who takes what came."""
    folder = Path(path)
    named = f"{BUNDLED}{folder.name}" if folder.parent == FOLDER else path
    taken = f": {TAKEN_BY[kind]} take it" if kind in TAKEN_BY else ""
    wanted = " or ".join(map(repr, expected))
    return ContractMismatch(f"{named} is a checkpoint of kind {kind!r}; expected {wanted}{taken}")
