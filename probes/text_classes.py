"""Classifies a text by a checkpoint: a linear map of the hashed pieces of its words, without a language model."""

import os
from dataclasses import dataclass
from typing import Self

from metaprobe.checkpoints import Checkpoint, ContractMismatch, Pretrained, load_checkpoint
from metaprobe.checkpoints.checkpoint import check_kind
from metaprobe.checkpoints.display import explain_fields
from metaprobe.probes.hashed_words import hashed_pieces

TEXT_CLASSES = "text-classes"
PIECES_INPUT = "pieces"


@explain_fields
@dataclass(frozen=True, slots=True)
class TextClass:
    """The classes of one text."""

    name: str
    """The likeliest class."""
    probabilities: dict[str, float]
    """Maps each class to its probability; the probabilities sum to 1."""
    source: str
    """Digest of the checkpoint."""


@explain_fields
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TextClassifier(Pretrained):
    """Classifies texts by the pieces of their words."""

    checkpoint: Checkpoint
    """The checkpoint that it was loaded from."""
    classes: tuple[str, ...]
    """Names of the classes, in the order of the graph's outputs."""
    buckets: int
    """Number of hash buckets for the pieces of words."""

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, sha256: str | None = None) -> Self:
        """Returns the verified classifier of a checkpoint folder. `sha256`: the digest that its author gave you.

        Raises `ContractMismatch` for a checkpoint of another kind, or one whose contract does not fit its graph.
        """
        return cls.of(load_checkpoint(path, sha256=sha256))

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """Returns the classifier in a checkpoint that is loaded; raises as `load` does."""
        manifest = checkpoint.manifest
        check_kind(checkpoint.path, manifest.kind, TEXT_CLASSES)
        buckets, classes = manifest.contract.get("buckets"), tuple(output.name for output in manifest.outputs)
        if not isinstance(buckets, int) or [spec.shape for spec in manifest.inputs] != [(None, buckets)]:
            raise ContractMismatch(
                f"{checkpoint.path}: the contract says {buckets!r} buckets, and the graph takes "
                f"{', '.join(str(spec.shape) for spec in manifest.inputs)}; expected one input (any, buckets)"
            )
        return cls(checkpoint, classes, buckets)

    def classify(self, text: str) -> TextClass:
        """Returns the likeliest class of a text. For an empty text, the classes' base rates decide."""
        outputs = self.checkpoint.run({PIECES_INPUT: hashed_pieces(text, self.buckets)[None, :]})
        weights = {name: float(outputs[name][0, 0]) for name in self.classes}
        total = sum(weights.values()) or 1.0
        probabilities = {name: weight / total for name, weight in weights.items()}
        return TextClass(
            max(probabilities, key=lambda name: probabilities[name]), probabilities, self.checkpoint.digest
        )
