"""What the proxy needs of a streaming gate (`metaprobe.routing.gate`)."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from metaprobe.checkpoints import ContractMismatch
from metaprobe.records.errors import InvalidResponse


class AnswerGate(Protocol):
    """Watches one answer being written."""

    @property
    def tokens_seen(self) -> int: ...

    @property
    def score(self) -> float | None:
        """P(good) at the last look."""

    @property
    def fired_at(self) -> int | None:
        """After so many tokens."""

    def push(self, logprob: float, top: Sequence[float] | None = None) -> str:
        """`continue`, `stop` or `escalate`, after one more token."""


class Gates(Protocol):
    """Starts a gate for each answer; shared by all."""

    def start(self, *, model: str = "") -> AnswerGate: ...


class GatedAnswer:
    """One streamed answer and its gate, which steps back from what it cannot judge."""

    def __init__(self, gates: Gates | None) -> None:
        self._gates = gates
        self._gate: AnswerGate | None = None
        self._decided = ""
        self.note = ""
        """What to be careful about, or why the gate stepped back."""
        self.action = ""
        """`stop` or `escalate`, once the answer is to be ended for what the gate said."""

    def push(self, entries: Sequence[Mapping[str, Any]], model: str, *, shown: bool) -> None:
        """Takes in the tokens of a chunk. `shown`: whether it brought text too.

        What the gate says of tokens without text waits for the next text: a server holds back the beginning of a tool
        call until it can name the tool, and a call that has begun is never ended.
        """
        if self._gates is None or self.action:
            return
        if not self._decided:
            self._judge(self._gates, entries, model)
        if shown and self._gates is not None:
            self.action = self._decided

    def _judge(self, gates: Gates, entries: Sequence[Mapping[str, Any]], model: str) -> None:
        try:
            if self._gate is None:
                self._gate = gates.start(model=model)
                self.note = getattr(self._gate, "note", "")
            for entry in entries:
                top = [alternative["logprob"] for alternative in entry.get("top_logprobs") or ()]
                action = self._gate.push(entry["logprob"], sorted(top, reverse=True) or None)
                if action != "continue":
                    self._decided = action
                    break
        except ContractMismatch as error:
            self.note = f"not gated: {error}"
            self.step_back()
        except (InvalidResponse, LookupError, TypeError):
            self.step_back()  # what is wrong with these tokens, the verdict on the whole answer says

    def step_back(self) -> None:
        """Never stop this answer."""
        self._gates = None

    def verdict(self) -> tuple[float | None, str, dict[str, Any]]:
        """Score, reason and details of an answer that was ended."""
        assert self._gate is not None
        score, tokens = self._gate.score, self._gate.fired_at
        what = "handed on" if self.action == "escalate" else "stopped"
        known = "" if score is None else f", at P(good) {score:.3f}"
        reason = "; ".join(filter(None, [f"{what} early by the gate after {tokens} tokens{known}", self.note]))
        return score, reason, {"action": self.action, "tokens": tokens}
