"""Linear probes on hidden states, from a checkpoint: a dot product, a sigmoid, no torch."""

import os
from dataclasses import dataclass
from typing import Self

import numpy as np

from metaprobe.checkpoints import Checkpoint, ContractMismatch, load_checkpoint
from metaprobe.probes.contract import OnMismatch, checked, mismatch
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.types import Call, FloatArray

KIND = "hidden"
INPUT = "hidden"


@dataclass(frozen=True, slots=True, eq=False)
class HiddenProbe:
    """Reads one layer at one position. `DifficultyProbe` and `ConfidenceProbe` say what of."""

    checkpoint: Checkpoint
    layer: int
    """0 is the embeddings' output, i the output of block i."""
    position: str
    width: int
    on_mismatch: OnMismatch = "warn"

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, sha256: str | None = None, on_mismatch: OnMismatch = "warn") -> Self:
        """The probe in a checkpoint folder, verified. `sha256`: the digest its author gave you.

        `on_mismatch`: what to do with a call of another model than it was trained on.
        """
        checkpoint = load_checkpoint(path, sha256=sha256)
        manifest = checkpoint.manifest
        if manifest.kind != KIND:
            raise ContractMismatch(f"{path} is a checkpoint of kind {manifest.kind!r}; expected {KIND!r}")
        layer, position, width = (manifest.contract.get(key) for key in ("layer", "position", "width"))
        if not isinstance(layer, int) or not isinstance(position, str) or not isinstance(width, int):
            raise ContractMismatch(f"{path}: contract needs layer, position and width, has {sorted(manifest.contract)}")
        return cls(checkpoint, layer, position, width, checked(on_mismatch))

    def probability(self, hidden: FloatArray) -> FloatArray:
        """P(right), calibrated, (n,), from hidden states (n, width) of this probe's layer and position."""
        if hidden.ndim != 2 or hidden.shape[1] != self.width:
            raise InvalidResponse(f"hidden states have shape {hidden.shape}; this probe reads (n, {self.width})")
        if not np.isfinite(hidden).all():
            raise InvalidResponse("hidden states hold NaN or infinity: capture them again, in bfloat16 or float32")
        name = self.checkpoint.manifest.outputs[0].name
        return self.checkpoint.run({INPUT: np.ascontiguousarray(hidden, dtype=np.float32)})[name][:, 0]

    def read(self, call: Call) -> float:
        """P(right) of one call that kept its hidden states. Raises `InvalidResponse` where it kept others, or none."""
        generator = self.checkpoint.manifest.generator
        mismatch(generator, model=call.model, on_mismatch=self.on_mismatch, stacklevel=3)
        hidden = call.hidden
        if hidden is None or self.layer not in hidden.layers or self.position not in hidden.positions:
            kept = "none" if hidden is None else f"layers {hidden.layers}, positions {hidden.positions}"
            raise InvalidResponse(
                f"call {call.id}: this probe reads layer {self.layer} at {self.position}; kept were {kept}. "
                f"Ask with a capture of that layer and position"
            )
        at = hidden.values[hidden.layers.index(self.layer), hidden.positions.index(self.position)]
        return float(self.probability(at[None])[0])


class ConfidenceProbe(HiddenProbe):
    """A probe on the answer: P(right), once it is given."""

    def confidence(self, call: Call) -> float:
        """P(right), in [0, 1]."""
        return self.read(call)


class DifficultyProbe(HiddenProbe):
    """A probe on the last prompt token: before anything is answered."""

    def difficulty(self, call: Call) -> float:
        """1 - P(right), in [0, 1]."""
        return 1 - self.read(call)
