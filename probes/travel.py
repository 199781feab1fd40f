"""A probe learned from many tasks, with a free number beside it, for tasks that neither has seen.

Neither of the two needs a label of the new task. Each is standardised on the unlabelled answers of one run (a model, a
task, a way of asking), and the sum of both orders that run's answers. How often they are right it cannot say.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, ContractMismatch, Pretrained, load_checkpoint
from metaprobe.checkpoints.checkpoint import check_kind
from metaprobe.checkpoints.display import explain_fields
from metaprobe.probes.terms import FREE, TERMS, terms
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.types import FloatArray

KIND = "travel"
INPUT, OUTPUT = "hidden", "probe"
FEWEST = 20
"""Unlabelled answers of a run below which its means and standard deviations are too uncertain to standardise by."""
Floats = NDArray[np.float64]


@explain_fields
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TravellingBlend(Pretrained):
    """The probe's weights for one model, and which free number stands beside it.

    An example, with made-up states and log-probabilities of one run:

        >>> blend = TravellingBlend.load("bundled:smollm2-135m-travel")
        >>> states = np.random.default_rng(0).normal(size=(30, blend.width))
        >>> run = blend.of_run(states, [[-0.1 * i, -0.2] for i in range(30)])
        >>> run.score(states[0], [-0.05, -0.01]) > run.score(states[0], [-3.0, -2.0])
        True
    """

    checkpoint: Checkpoint
    """The checkpoint that it was loaded from."""
    layer: int
    """The layer that it reads: 0 is the embeddings' output, i the output of block i."""
    position: str
    """The position that it reads: `answer_mean`, the mean over the answer's tokens."""
    width: int
    """Numbers in a state."""
    free: str
    """The free number beside the probe, a name in `metaprobe.probes.terms.FREE`."""

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, sha256: str | None = None) -> Self:
        """Returns the blend in a checkpoint folder, verified. `sha256` is the digest that its author gave you."""
        return cls.of(load_checkpoint(path, sha256=sha256))

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """Returns the blend in a checkpoint that is loaded. Raises `ContractMismatch` for one that holds none."""
        manifest, path = checkpoint.manifest, checkpoint.path
        check_kind(path, manifest.kind, KIND)
        contract = manifest.contract
        layer, position, width, free = (contract.get(name) for name in ("layer", "position", "width", "free"))
        if not isinstance(layer, int) or not isinstance(position, str) or not isinstance(width, int):
            raise ContractMismatch(
                f"{path}: the contract of a travelling blend needs layer, position and width; got {contract}"
            )
        if not isinstance(free, str) or free not in FREE:
            raise ContractMismatch(f"{path}: the contract's free number is {free!r}; expected one of {', '.join(FREE)}")
        if [spec.shape for spec in manifest.inputs] != [(None, width)]:
            raise ContractMismatch(f"{path}: the graph does not read states of {width} numbers, as the contract says")
        return cls(checkpoint, layer, position, width, free)

    @property
    def read_model(self) -> str:
        """The model whose states the probe was learned from; empty where the checkpoint names none."""
        reader, generator = self.checkpoint.manifest.contract.get("reader", {}), self.checkpoint.manifest.generator
        return str(reader.get("model", "")) or (generator.models[0] if generator else "")

    def reads(self, model: str) -> bool:
        """Returns whether the states of this model's answers are those the probe was learned from."""
        named = "reader" in self.checkpoint.manifest.contract
        return named or not model or not self.read_model or model == self.read_model

    def probe_scores(self, states: Any) -> Floats:
        """Returns the probe's raw scores (n,) of n states (n, width); they mean something within one run alone.

        Raises `InvalidResponse` for states of another shape, or that hold NaN or infinity.
        """
        read = np.ascontiguousarray(states, dtype=np.float32)
        if read.ndim != 2 or read.shape[1] != self.width:
            raise InvalidResponse(
                f"states have shape {read.shape}; expected (n, {self.width}): layer {self.layer} at {self.position}"
            )
        if not np.isfinite(read).all():
            raise InvalidResponse("hidden states hold NaN or infinity: capture them again, in bfloat16 or float32")
        return self.checkpoint.run({INPUT: read})[OUTPUT][:, 0].astype(np.float64)

    def of_run(self, states: Any, logprobs: Sequence[FloatArray | Sequence[float]]) -> "RunBlend":
        """Returns the blend standardised on unlabelled answers of one run, by which its other answers are scored.

        `states` is (n, width), of the layer and position that the blend reads; `logprobs` are n lists of nats. Twenty
        answers are the least, and a hundred are better. Raises `InvalidResponse` for fewer, or for what cannot be read.
        """
        _check_enough(states, logprobs)
        probe = Standard.of(self.probe_scores(states))
        numbers = free_numbers(self.free, logprobs)
        free = Standard.of(numbers)
        both = Standard.of(probe(self.probe_scores(states)) + free(numbers))
        return RunBlend(self, probe, free, both)

    def standing(self, states: Any | None, logprobs: Sequence[FloatArray | Sequence[float]]) -> Floats:
        """Returns the scores (n,) of all answers of one run, standardised among themselves.

        Without `states` they are the free number's alone. Raises as `of_run` does.
        """
        if states is not None:
            return self.of_run(states, logprobs).scores(states, logprobs)
        _check_enough(logprobs, logprobs)
        numbers = free_numbers(self.free, logprobs)
        return Standard.of(numbers)(numbers)


def _check_enough(states: Any, logprobs: Sequence[FloatArray | Sequence[float]]) -> None:
    """Raises `InvalidResponse` for too few answers to standardise by, or for states of other answers."""
    if len(states) != len(logprobs) or len(logprobs) < FEWEST:
        raise InvalidResponse(
            f"{len(states)} states and log-probabilities of {len(logprobs)} answers came; expected as many of each, and"
            f" at least {FEWEST} answers of the run, without labels"
        )


@dataclass(frozen=True, slots=True)
class Standard:
    """Mean and standard deviation of a score on one run's unlabelled answers."""

    mean: float
    deviation: float
    """Never 0: of scores that are all equal it is 1."""

    @classmethod
    def of(cls, scores: Floats) -> "Standard":
        """Returns those of these scores (n,)."""
        return cls(float(scores.mean()), float(scores.std()) or 1.0)

    def __call__(self, scores: Floats) -> Floats:
        """Returns the scores in standard deviations above their mean."""
        return (scores - self.mean) / self.deviation


@dataclass(frozen=True, slots=True, eq=False)
class RunBlend:
    """The blend on one run: scores of which 0 is the run's average and 1 a standard deviation above it."""

    blend: TravellingBlend
    probe: Standard
    free: Standard
    both: Standard

    def score(self, state: Any | None, logprobs: FloatArray | Sequence[float]) -> float:
        """Returns the score of one answer, higher for a better one; it is no probability.

        `state` is (width,). Where it is None the score is the free number's alone, in the same unit. Raises
        `InvalidResponse` where state or log-probabilities cannot be read.
        """
        states = None if state is None else np.asarray(state)[None]
        return float(self.scores(states, [logprobs])[0])

    @np.errstate(all="ignore")  # a host application may have NumPy raise for what is rounded to 0 here
    def scores(self, states: Any | None, logprobs: Sequence[FloatArray | Sequence[float]]) -> Floats:
        """Returns the scores (n,) of n answers at once; `states` is (n, width) or None."""
        free = self.free(free_numbers(self.blend.free, logprobs))
        if states is None:
            return free
        return self.both(self.probe(self.blend.probe_scores(states)) + free)


def free_numbers(name: str, logprobs: Sequence[FloatArray | Sequence[float]]) -> Floats:
    """Returns a free number (n,) of n answers, higher for a better one: a weighted sum of the terms, on a log scale.

    Raises `InvalidResponse` for an answer without log-probabilities, or one that is above 0 or not finite.
    """
    weights = np.array([FREE[name].get(term, 0.0) for term in TERMS])
    numbers = np.empty(len(logprobs))
    for place, given in enumerate(logprobs):
        values = np.asarray(given, dtype=np.float64)
        if values.ndim != 1 or not len(values) or not all(math.isfinite(v) and v <= 0 for v in values.tolist()):
            raise InvalidResponse(
                f"answer {place}: log-probabilities are a list of finite numbers of at most 0, a token each; got "
                f"{len(values) if values.ndim else 0} of them, or others"
            )
        numbers[place] = -float((terms(values[None])[0] * weights).sum())
    return numbers
