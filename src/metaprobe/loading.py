"""A trained object from its folder, whatever kind it is."""

import os
from collections.abc import Callable
from typing import Any

from metaprobe.checkpoints import load_checkpoint
from metaprobe.checkpoints.kinds import wrong_kind
from metaprobe.probes.hidden import ConfidenceProbe, DifficultyProbe
from metaprobe.probes.quality import QualityPredictor
from metaprobe.routing.ask_again import LearnedChoice
from metaprobe.routing.gate import StreamingGate
from metaprobe.routing.learned import LearnedRouter

BY_KIND: dict[str, Callable[..., Any]] = {
    "quality": QualityPredictor.load,
    "gate": StreamingGate.load,
    "router": LearnedRouter.load,
    "choice": LearnedChoice.load,
}
"""Kind of a checkpoint -> what loads it. A probe is loaded by the position that it reads."""


def load(path: str | os.PathLike[str], *, sha256: str | None = None) -> Any:
    """Returns what a checkpoint holds: a predictor, gate, probe, router or choice.

    `path` is a folder, or `bundled:NAME`; `sha256` is the digest that its author gave you. Raises `CheckpointError`
    where the folder is damaged, or of a kind that nothing here loads.

        predictor = load("bundled:quality")
        gate = load("bundled:gate")
    """
    manifest = load_checkpoint(path, sha256=sha256).manifest
    if manifest.kind == "hidden":
        before = manifest.contract.get("position") == "prompt_last"
        return (DifficultyProbe if before else ConfidenceProbe).load(path, sha256=sha256)
    if manifest.kind == "adapter":
        from metaprobe.probes.adapter import AdapterProbe  # needs an extra

        return AdapterProbe.load(path, sha256=sha256)
    if manifest.kind not in BY_KIND:
        raise wrong_kind(path, manifest.kind, "hidden", "adapter", *BY_KIND)
    return BY_KIND[manifest.kind](path, sha256=sha256)
