"""P(good) of a response that is still being written, by its first tokens, at a few fixed looks."""

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, ContractMismatch, load_checkpoint
from metaprobe.checkpoints.checkpoint import check_kind
from metaprobe.probes.contract import OnMismatch, Readers, check_choice, mismatch
from metaprobe.probes.features import Series, features, features_one, schema_of
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.response import ROUNDING

KIND = "gate"
INPUT = "features"
NUMBERS = (float, int, np.floating, np.integer)
LOWEST = float(np.finfo(np.float32).min)
"""Log-probabilities are kept as float32."""


def head_name(look: int) -> str:
    """Output of the graph that judges a response by its first `look` tokens."""
    return f"look{look}"


def threshold_name(alpha: float, look: int) -> str:
    """Returns the manifest's name of the P(good) below which a gate of false-alarm rate `alpha` fires at that look."""
    return f"stop@{alpha:g}/{head_name(look)}"


class PrefixHeads:
    """One calibrated head a look, each of which knows the first tokens and nothing else; may be shared by threads."""

    def __init__(self, checkpoint: Checkpoint, *, on_mismatch: OnMismatch = "warn") -> None:
        """`on_mismatch`: what to do with a response of another model or log-probability mode than was trained on."""
        manifest = checkpoint.manifest
        check_kind(checkpoint.path, manifest.kind, KIND)
        self.checkpoint = checkpoint
        self.looks = _looks(checkpoint)
        """Numbers of tokens after which there is a judgement, rising."""
        self.schema = schema_of(checkpoint)
        if self.schema.limit is None or self.schema.limit < self.looks[-1]:
            raise ContractMismatch(
                f"{checkpoint.path}: schema {self.schema.name!r} does not see the first {self.looks[-1]} tokens alone, "
                f"which its last look needs: train it again"
            )
        if self.schema.uses_top:
            raise ContractMismatch(
                f"{checkpoint.path}: schema {self.schema.name!r} reads alternatives, and no gate is shown any: retrain"
            )
        self._heads = {look: head_name(look) for look in self.looks}
        self._on_mismatch = check_choice(on_mismatch)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, sha256: str | None = None, on_mismatch: OnMismatch = "warn"
    ) -> "PrefixHeads":
        """The heads in a checkpoint folder, verified. `sha256`: the digest its author gave you."""
        return cls(load_checkpoint(path, sha256=sha256), on_mismatch=on_mismatch)

    def start(self, *, model: str = "", logprobs_mode: str = "unknown") -> "StreamReader":
        """A reader of one response, by `model` where that is known: another than was trained on is warned of."""
        note = mismatch(
            self.checkpoint.manifest.generator,
            model=model,
            logprobs_mode=logprobs_mode,
            readers=Readers.of("", self.checkpoint.manifest.contract),  # who streams gives its own numbers
            on_mismatch=self._on_mismatch,
            stacklevel=2,
        )
        return StreamReader(self, note)

    def probability(self, vector: NDArray[np.float32], look: int) -> float:
        """P(good) at that look, of the features known then, (len(schema.names),)."""
        return float(self.checkpoint.run({INPUT: vector[None]})[self._heads[look]][0, 0])

    def probabilities(self, logprobs: Sequence[Series]) -> NDArray[np.float64]:
        """P(good) of n finished responses at each look, (n, looks), as a stream would have it; NaN beyond their end."""
        result = np.full((len(logprobs), len(self.looks)), np.nan)
        if len(logprobs):
            outputs = self.checkpoint.run({INPUT: features(self.schema, logprobs)})
            lengths = np.array([len(x) for x in logprobs])
            for column, (look, head) in enumerate(self._heads.items()):
                result[:, column] = np.where(lengths >= look, outputs[head][:, 0], np.nan)
        return result


class StreamReader:
    """Reads one response token by token. Not for several threads at once; get one a response."""

    __slots__ = ("_heads", "_logprobs", "_looks", "note", "score", "tokens_seen")

    def __init__(self, heads: PrefixHeads, note: str = "") -> None:
        self._heads = heads
        self.note = note
        """A warning about the response; empty where there is none."""
        self._looks = frozenset(heads.looks)
        self._logprobs: list[float] = []
        """Up to the last look: later tokens are not read."""
        self.tokens_seen = 0
        self.score: float | None = None
        """P(good) at the last look; None before the first."""

    def push(self, logprob: float) -> float | None:
        """Takes in one token; returns P(good) where this token makes a look complete, else None.

        `logprob`: nats. Raises `InvalidResponse` for what is no log-probability; the reader is then as it was before.
        """
        if not isinstance(logprob, NUMBERS) or not LOWEST <= logprob <= ROUNDING or logprob is False:
            raise InvalidResponse(
                f"token {self.tokens_seen}: log-probability {logprob!r}, expected a number of nats, at most 0,"
                " that 32 bits hold"
            )
        if self.tokens_seen < self._heads.looks[-1]:
            self._logprobs.append(min(float(logprob), 0.0))
        self.tokens_seen += 1
        if self.tokens_seen not in self._looks:
            return None
        with np.errstate(all="ignore"):  # a host application may have NumPy raise for what is rounded to 0 here
            vector = features_one(self._heads.schema, self._logprobs)
            self.score = self._heads.probability(vector, self.tokens_seen)
        return self.score


def _looks(checkpoint: Checkpoint) -> tuple[int, ...]:
    stated = checkpoint.manifest.contract.get("looks")
    looks = tuple(stated) if isinstance(stated, list | tuple) else ()
    outputs = {spec.name for spec in checkpoint.manifest.outputs}
    if (
        not looks
        or not all(type(look) is int and look > 0 for look in looks)
        or sorted(set(looks)) != [*looks]
        or {head_name(look) for look in looks} != outputs
    ):
        raise ContractMismatch(
            f"{checkpoint.path} states looks {stated!r} and has outputs {sorted(outputs)}; expected rising numbers of "
            f"tokens and an output such as {head_name(10)!r} for each"
        )
    return looks
