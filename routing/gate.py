"""The streaming gate: ends a response that begins like a bad one, with a promised rate of false alarms.

The promise: of the good responses at most a share alpha are stopped, at any look. It holds jointly over the looks, on
average over new groups and over the calibration data, for responses that come as those of the training runs did, their
lengths included: a response shorter than a look has fewer looks, and one that ends before the first is never stopped.
Where answers have become longer than those, more looks are taken and more good ones may be stopped.
"""

import os
from collections.abc import Sequence
from typing import Literal

from metaprobe.checkpoints import Checkpoint, ContractMismatch, Pretrained, bundle
from metaprobe.probes.contract import OnMismatch
from metaprobe.probes.stream_looks import PrefixHeads, StreamReader, threshold_name
from metaprobe.records.types import FloatArray

Action = Literal["continue", "stop", "escalate"]

DEFAULT = f"{bundle.PREFIX}gate"

Limits = dict[int, tuple[float, float]]
"""Look -> the P(good) below which a response is escalated, and stopped; 0 for never."""


class StreamingGate(Pretrained):
    """Starts a gate a response; may be shared by threads.

        >>> gate = StreamingGate.load(stop=0.05).start()  # one for each answer
        >>> [gate.push(logprob) for logprob in (-0.1, -0.2, -0.05)]
        ['continue', 'continue', 'continue']

    `stop` and `escalate` are false-alarm rates, of those that the checkpoint has (`alphas`); None for never. A response
    that begins badly is stopped. Where both are given, one that begins so badly that even the smaller rate
    `escalate` allows it is handed on to a stronger model instead of being asked again: so `escalate` is at most `stop`.
    The look at which it fires decides which of the two it is. Of the good responses at most a share `stop` is ended
    either way, and at most a share `escalate` is handed on.
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
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        stop: float | None = 0.05,
        escalate: float | None = None,
        sha256: str | None = None,
        on_mismatch: OnMismatch = "warn",
    ) -> "StreamingGate":
        """The gate in a checkpoint folder, verified; without one, that which comes with the package.

        `sha256`: the digest its author gave you.

        Raises `ContractMismatch` for a rate that the checkpoint has no thresholds for, naming those it has.
        """
        heads = PrefixHeads.load(DEFAULT if path is None else path, sha256=sha256, on_mismatch=on_mismatch)
        return cls(heads, stop=stop, escalate=escalate)

    @property
    def checkpoint(self) -> Checkpoint:
        """What its heads were loaded from."""
        return self.heads.checkpoint

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of tokens after which it may fire."""
        return self.heads.looks

    @property
    def alphas(self) -> tuple[float, ...]:
        """False-alarm rates that the checkpoint has thresholds for."""
        return tuple(self.heads.checkpoint.manifest.contract.get("alphas", ()))

    def start(self, *, model: str = "", logprobs_mode: str = "unknown") -> "Gate":
        """A gate for one response, by `model` where that is known: another than was trained on is warned of."""
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
    """Watches one response. Not for several threads at once."""

    __slots__ = ("_action", "_limits", "_reader", "fired_at")

    def __init__(self, reader: StreamReader, limits: Limits) -> None:
        self._reader = reader
        self._limits = limits
        self._action: Action = "continue"
        self.fired_at: int | None = None
        """Tokens seen when it fired; None as long as it has not."""

    def push(self, logprob: float, top: Sequence[float] | FloatArray | None = None) -> Action:
        """Take in one token, say what to do. Once it has fired it keeps to that, however the response goes on.

        `logprob`: nats; `top`: the k likeliest at this step, looked at only where the checkpoint was trained with them.
        Raises `InvalidResponse` for what is no log-probability; the gate is then as it was before.
        """
        score = self._reader.push(logprob, top)
        if score is not None and self.fired_at is None:
            escalate, stop = self._limits[self._reader.tokens_seen]
            if score < escalate:
                self._action, self.fired_at = "escalate", self._reader.tokens_seen
            elif score < stop:
                self._action, self.fired_at = "stop", self._reader.tokens_seen
        return self._action

    @property
    def action(self) -> Action:
        """What the last push said."""
        return self._action

    @property
    def tokens_seen(self) -> int:
        return self._reader.tokens_seen

    @property
    def note(self) -> str:
        """What to be careful about, such as a response of another model; empty where all is well."""
        return self._reader.note

    @property
    def score(self) -> float | None:
        """P(good) at the last look, also after it fired; None before the first."""
        return self._reader.score
