"""The streaming gate: ends a response that begins like a bad one, with a promised rate of false alarms.

The promise: at most a share alpha of the good responses is stopped. It holds over all looks together, on average over
new groups and over the calibration data, for responses like those of the training runs, also in their lengths. A
response shorter than a look has fewer looks, and one that ends before the first look is never stopped. Where answers
have become longer than in training, more looks are taken, and more good answers may be stopped.
"""

import os
from typing import Literal

from metaprobe.checkpoints import Checkpoint, ContractMismatch, Pretrained
from metaprobe.checkpoints.files import BUNDLED
from metaprobe.probes.contract import OnMismatch
from metaprobe.probes.stream_looks import PrefixHeads, StreamReader, threshold_name

Action = Literal["continue", "stop", "escalate"]

DEFAULT = f"{BUNDLED}gate"

Limits = dict[int, tuple[float, float]]
"""Look -> the P(good) below which a response is escalated, and stopped; 0 for never."""


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

    def __init__(self, heads: PrefixHeads, *, stop: float | None = 0.05, escalate: float | None = None) -> None:
        self.heads = heads
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
        self._limits: Limits = dict(zip(heads.looks, zip(*below, strict=True), strict=True))

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "StreamingGate":
        """Returns the gate of a checkpoint that is already verified."""
        return cls(PrefixHeads(checkpoint))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        stop: float | None = 0.05,
        escalate: float | None = None,
        sha256: str | None = None,
        on_mismatch: OnMismatch = "warn",
    ) -> "StreamingGate":
        """Returns the gate in a checkpoint folder, verified; without a path, the one that comes with the package.

        `sha256`: the digest that its author gave you.

        Raises `ContractMismatch` for a rate without thresholds in the checkpoint, and names the rates that it has.
        """
        heads = PrefixHeads.load(DEFAULT if path is None else path, sha256=sha256, on_mismatch=on_mismatch)
        return cls(heads, stop=stop, escalate=escalate)

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint that its heads were loaded from."""
        return self.heads.checkpoint

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of tokens after which it looks and may fire."""
        return self.heads.looks

    @property
    def alphas(self) -> tuple[float, ...]:
        """The false-alarm rates for which the checkpoint has thresholds."""
        return tuple(self.heads.checkpoint.manifest.contract.get("alphas", ()))

    def start(self, *, model: str = "", logprobs_mode: str = "unknown") -> "Gate":
        """Returns a gate for one response. Warns where `model` is known and the checkpoint was not trained on it."""
        return Gate(self.heads.start(model=model, logprobs_mode=logprobs_mode), self._limits)

    def _thresholds(self, alpha: float | None) -> tuple[float, ...]:
        if alpha is None:
            return (0.0,) * len(self.looks)
        stored = self.heads.checkpoint.manifest.thresholds
        names = [threshold_name(alpha, look) for look in self.looks]
        if missing := [name for name in names if name not in stored]:
            raise ContractMismatch(
                f"{self.heads.checkpoint.path} has no threshold {missing[0]!r}: it can promise false-alarm rates of "
                f"{', '.join(f'{known:g}' for known in self.alphas) or 'nothing'}, and {alpha!r} was asked for. Choose "
                f"one of these, or train on more groups"
            )
        return tuple(stored[name] for name in names)


class Gate:
    """Watches one response. Only one thread may use it at a time."""

    __slots__ = ("_action", "_limits", "_reader", "fired_at")

    def __init__(self, reader: StreamReader, limits: Limits) -> None:
        self._reader = reader
        self._limits = limits
        self._action: Action = "continue"
        self.fired_at: int | None = None
        """Tokens seen when it fired; None as long as it has not."""

    def push(self, logprob: float) -> Action:
        """Reads one token and returns the action. Once the gate has fired, the action stays the same.

        `logprob`: nats. Raises `InvalidResponse` for a number that is no log-probability; the gate is then unchanged.
        """
        score = self._reader.push(logprob)
        if score is not None and self.fired_at is None:
            escalate, stop = self._limits[self._reader.tokens_seen]
            if score < escalate:
                self._action, self.fired_at = "escalate", self._reader.tokens_seen
            elif score < stop:
                self._action, self.fired_at = "stop", self._reader.tokens_seen
        return self._action

    @property
    def action(self) -> Action:
        """The action that the last push returned."""
        return self._action

    @property
    def tokens_seen(self) -> int:
        return self._reader.tokens_seen

    @property
    def note(self) -> str:
        """Says why the gate's score is doubtful, such as a response of another model; empty where nothing is
        doubtful."""
        return self._reader.note

    @property
    def score(self) -> float | None:
        """P(good) at the last look, also after it fired; None before the first."""
        return self._reader.score
