"""The streaming gate: ends a response that begins like a bad one, with a promised rate of false alarms.

The promise: at most a share alpha of the good responses is stopped. It holds over all looks together, on average over
new groups and over the calibration data, for responses like those of the training runs, also in their lengths. A
response shorter than a look has fewer looks, and one that ends before the first look is never stopped. Where answers
have become longer than in training, more looks are taken, and more good answers may be stopped.
"""

import os
from typing import Literal, Self

import numpy as np

from metaprobe.checkpoints import Checkpoint, ContractMismatch, Pretrained, load_checkpoint
from metaprobe.checkpoints.checkpoint import check_kind
from metaprobe.checkpoints.files import BUNDLED
from metaprobe.probes.contract import OnMismatch, check_choice, mismatch
from metaprobe.probes.features import features_one, schema_of
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.response import LOGPROB_ROUNDING

Action = Literal["continue", "stop", "escalate"]

GATE = "gate"
GATE_INPUT = "features"
BUNDLED_GATE = f"{BUNDLED}gate"
NUMBER_TYPES = (float, int, np.floating, np.integer)
LOWEST_LOGPROB = float(np.finfo(np.float32).min)
"""Log-probabilities are kept as float32."""


def head_name(look: int) -> str:
    """Output of the graph that judges a response by its first `look` tokens."""
    return f"look{look}"


def threshold_name(alpha: float, look: int) -> str:
    """Returns the manifest's name of the P(good) below which a gate of false-alarm rate `alpha` fires at that look."""
    return f"stop@{alpha:g}/{head_name(look)}"


class StreamingGate(Pretrained):
    """Starts a gate for each response. Several threads may share it.

        >>> gate = StreamingGate.load(stop=0.05).start()  # one for each answer
        >>> [gate.push(logprob) for logprob in (-0.1, -0.2, -0.05)]
        ['continue', 'continue', 'continue']

    `stop` and `escalate` are false-alarm rates, chosen from those that the checkpoint has (`alphas`); None means
    never. A response that begins badly is stopped. Where both are given, `escalate` is at most `stop`, and a response
    that begins so badly that even the rate `escalate` allows it gets the action `escalate`: the question should go to
    a stronger model. The first look at which a threshold is crossed decides the action. At most a share `stop` of the
    good responses is ended in either way, and at most a share `escalate` gets the action `escalate`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        stop: float | None = 0.05,
        escalate: float | None = None,
        on_mismatch: OnMismatch = "warn",
    ) -> None:
        """`on_mismatch`: what to do with a response of another model or log-probability mode than was trained on.

        Raises `ContractMismatch` for a checkpoint of another kind, or whose heads do not fit what it says of them, and
        for a rate without thresholds in the checkpoint, naming the rates that it has.
        """
        check_kind(checkpoint.path, checkpoint.manifest.kind, GATE)
        self.checkpoint = checkpoint
        stated = checkpoint.manifest.contract.get("looks")
        self.looks: tuple[int, ...] = tuple(stated) if isinstance(stated, list | tuple) else ()
        """The numbers of tokens after which it looks and may fire, rising."""
        outputs = {spec.name for spec in checkpoint.manifest.outputs}
        if (
            not self.looks
            or not all(type(look) is int and look > 0 for look in self.looks)
            or sorted(set(self.looks)) != [*self.looks]
            or {head_name(look) for look in self.looks} != outputs
        ):
            raise ContractMismatch(
                f"{checkpoint.path} states looks {stated!r} and has outputs {sorted(outputs)}; expected rising numbers "
                f"of tokens and an output such as {head_name(10)!r} for each"
            )
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
        self._on_mismatch = check_choice(on_mismatch)
        for name, alpha in (("stop", stop), ("escalate", escalate)):
            if alpha is not None and (isinstance(alpha, bool) or not isinstance(alpha, int | float)):
                raise TypeError(f"{name} is {alpha!r}; expected a false-alarm rate such as 0.05, or None for never")
        if stop is not None and escalate is not None and escalate > stop:
            raise ValueError(
                f"escalate={escalate:g} is above stop={stop:g}: every response that is to be escalated would have been "
                f"stopped before. Give escalate at most {stop:g}, or stop=None"
            )
        self.stop, self.escalate = stop, escalate
        below = (self._thresholds(escalate), self._thresholds(stop))
        self.limits = dict(zip(self.looks, zip(*below, strict=True), strict=True))
        """Look -> the P(good) below which a response is escalated, and stopped; 0 for never."""

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        stop: float | None = 0.05,
        escalate: float | None = None,
        sha256: str | None = None,
        on_mismatch: OnMismatch = "warn",
    ) -> Self:
        """Returns the gate in a checkpoint folder, verified; without a path, the one that comes with the package.

        `sha256`: the digest that its author gave you. Raises a `CheckpointError`.
        """
        checkpoint = load_checkpoint(BUNDLED_GATE if path is None else path, sha256=sha256)
        return cls(checkpoint, stop=stop, escalate=escalate, on_mismatch=on_mismatch)

    @property
    def alphas(self) -> tuple[float, ...]:
        """The false-alarm rates for which the checkpoint has thresholds."""
        return tuple(self.checkpoint.manifest.contract.get("alphas", ()))

    def start(self, *, model: str = "", logprobs_mode: str = "unknown") -> "Gate":
        """Returns a gate for one response. Warns where `model` is known and the checkpoint was not trained on it."""
        manifest = self.checkpoint.manifest
        note = mismatch(
            manifest.generator,
            model=model,
            logprobs_mode=logprobs_mode,
            contract=manifest.contract,  # no `reader`: who streams gives its own numbers
            on_mismatch=self._on_mismatch,
            stacklevel=2,
        )
        return Gate(self, note)

    def probability(self, logprobs: list[float]) -> float:
        """Returns P(good) from the first tokens of a response; their number must be a look."""
        vector = features_one(self.schema, logprobs)
        return float(self.checkpoint.run({GATE_INPUT: vector[None]})[head_name(len(logprobs))][0, 0])

    def _thresholds(self, alpha: float | None) -> tuple[float, ...]:
        if alpha is None:
            return (0.0,) * len(self.looks)
        stored = self.checkpoint.manifest.thresholds
        names = [threshold_name(alpha, look) for look in self.looks]
        if missing := [name for name in names if name not in stored]:
            raise ContractMismatch(
                f"{self.checkpoint.path} has no threshold {missing[0]!r}: it can promise false-alarm rates of "
                f"{', '.join(f'{known:g}' for known in self.alphas) or 'nothing'}, and {alpha!r} was asked for. Choose "
                f"one of these, or train on more groups"
            )
        return tuple(stored[name] for name in names)


class Gate:
    """Watches one response. Only one thread may use it at a time."""

    __slots__ = ("_gates", "_last", "_logprobs", "action", "fired_at", "note", "score", "tokens_seen")

    def __init__(self, gates: StreamingGate, note: str = "") -> None:
        self._gates, self._last = gates, max(gates.limits)
        self.note = note
        """Says why the gate's score is doubtful, such as a response of another model; empty where nothing is
        doubtful."""
        self._logprobs: list[float] = []
        """Up to the last look: later tokens are not read."""
        self.tokens_seen = 0
        self.score: float | None = None
        """P(good) at the last look, also after it fired; None before the first."""
        self.action: Action = "continue"
        """The action that the last push returned."""
        self.fired_at: int | None = None
        """Tokens seen when it fired; None as long as it has not."""

    def push(self, logprob: float) -> Action:
        """Reads one token and returns the action. Once the gate has fired, the action stays the same.

        `logprob`: nats. Raises `InvalidResponse` for a number that is no log-probability; the gate is then unchanged.
        """
        if (
            not isinstance(logprob, NUMBER_TYPES)
            or not LOWEST_LOGPROB <= logprob <= LOGPROB_ROUNDING
            or logprob is False
        ):
            raise InvalidResponse(
                f"token {self.tokens_seen}: log-probability {logprob!r}, expected a number of nats, at most 0,"
                " that 32 bits hold"
            )
        if self.tokens_seen < self._last:
            self._logprobs.append(min(float(logprob), 0.0))
        self.tokens_seen += 1
        if self.tokens_seen not in self._gates.limits:
            return self.action
        with np.errstate(all="ignore"):  # a host application may have NumPy raise for what is rounded to 0 here
            self.score = self._gates.probability(self._logprobs)
        if self.fired_at is None:
            escalate, stop = self._gates.limits[self.tokens_seen]
            if self.score < stop or self.score < escalate:
                self.action, self.fired_at = "escalate" if self.score < escalate else "stop", self.tokens_seen
        return self.action
