"""After a direct answer: accept it, or ask again step by step. A fixed threshold, and the learned choice."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metaprobe.checkpoints import Checkpoint, ContractMismatch, Pretrained, load_checkpoint
from metaprobe.probes.signals import Signals
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Decision
from metaprobe.routing.policy import Outcome, State, make_decision, without_failed

KIND = "choice"
INPUT = "signals"
POINT = "ask-again"
ACCEPT, AGAIN = "accept", "step-by-step"

INPUTS = ("difficulty", "confidence", "mean_logprob", "min_logprob", "first_logprob", "tokens")
"""The signals that the learned choice reads, in the order of the graph's columns."""
REQUIRED = ("mean_logprob", "min_logprob", "first_logprob", "tokens")
"""Without these it falls back; stated numbers may be missing, the graph then takes their training mean."""


@dataclass(frozen=True, slots=True)
class StatedThreshold:
    """Ask again where the stated number lies on the wrong side of 0.5: the heuristic of the papers."""

    signal: str = "confidence"
    threshold: float = 0.5
    again_if_above: bool = False
    """True for difficulty, where a high number is the bad one."""
    fallback: float = 0.5
    """Taken where the model stated nothing; said so in the reason."""

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        state, legal_actions, told = without_failed(state, legal_actions)
        stated = state.signals.value(self.signal)
        value = self.fallback if stated is None else stated
        bad = value >= self.threshold if self.again_if_above else value < self.threshold
        action = _legal(AGAIN if bad else ACCEPT, legal_actions)
        source = "fallback, nothing stated" if stated is None else "stated"
        side = ">=" if value >= self.threshold else "<"
        reason = f"{self.signal} {value:.2f} ({source}) {side} {self.threshold}{told}"
        score = value if self.again_if_above else 1 - value
        return make_decision(state, action, legal_actions, {ACCEPT: 1 - score, AGAIN: score}, reason)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """A fixed rule learns nothing."""


class LearnedChoice(Pretrained):
    """Ask again where P(right if asked again) - P(right now) exceeds the price; both probabilities are learned."""

    def __init__(self, checkpoint: Checkpoint, *, price: float | None = None, fallback: StatedThreshold | None = None):
        """`price`: gain in P(right) that asking again must bring; by default the one stored with the checkpoint."""
        manifest = checkpoint.manifest
        if manifest.kind != KIND or tuple(manifest.contract.get("signals", ())) != INPUTS:
            raise ContractMismatch(
                f"{checkpoint.path}: expected kind {KIND!r} with signals {list(INPUTS)}, got {manifest.kind!r} with "
                f"{manifest.contract.get('signals')}"
            )
        self.checkpoint = checkpoint
        self.price = manifest.thresholds.get("price", 0.0) if price is None else price
        self._fallback = fallback or StatedThreshold()

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, sha256: str | None = None) -> "LearnedChoice":
        """The choice in a checkpoint folder, verified. `sha256`: the digest its author gave you."""
        return cls(load_checkpoint(path, sha256=sha256))

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        """One of `accept` and `step-by-step`; the fixed rule's decision, with the reason, where signals are missing."""
        state, legal_actions, told = without_failed(state, legal_actions)
        missing = [name for name in REQUIRED if state.signals.value(name) is None]
        if missing:
            decision = self._fallback.decide(state, legal_actions)
            why = f"fixed rule, as no {', '.join(missing)}: {decision.reason}{told}"
            return make_decision(state, decision.action, legal_actions, decision.scores, why)
        outputs = self.checkpoint.run({INPUT: signal_row(state.signals)[None]})
        now, then = float(outputs[ACCEPT][0, 0]), float(outputs[AGAIN][0, 0])
        action = _legal(AGAIN if then - now > self.price else ACCEPT, legal_actions)
        reason = f"P(right) {now:.2f} now, {then:.2f} if asked again; gain must exceed {self.price:.2f}{told}"
        return make_decision(state, action, legal_actions, {ACCEPT: now, AGAIN: then - self.price}, reason)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Fitted beforehand; outcomes are learned from by training again."""


def _legal(wanted: str, legal_actions: Sequence[str]) -> str:
    """The wanted action, or the other one where only that is legal."""
    allowed = [action for action in (wanted, ACCEPT, AGAIN) if action in legal_actions]
    if not allowed:
        raise RecordError(f"point {POINT} knows the actions {ACCEPT} and {AGAIN}; legal are {list(legal_actions)}")
    return allowed[0]


def signal_row(signals: Signals) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """The signals as one float32 row in the order of `INPUTS`, NaN where unknown."""
    values = [signals.value(name) for name in INPUTS]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float32)
