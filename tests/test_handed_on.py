"""What is asked of the training of `train router` arrives where it counts: every option, seed and name is handed on."""

from pathlib import Path
from typing import Any

import pytest

from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.training.options import RouterOptions
from metaprobe.training.recipes import panel


class HeardError(Exception):
    """Ends what was called once the call of interest was made."""


class Listener:
    """Stands in for a function, and keeps what it was called with."""

    def __init__(self, patch: pytest.MonkeyPatch, module: Any, name: str, *returned: Any) -> None:
        """It returns the value that is given; without one the call ends there."""
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.returned = returned
        patch.setattr(module, name, self)

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.calls.append((given, named))
        if not self.returned:
            raise HeardError
        return self.returned[0]

    @property
    def named(self) -> dict[str, Any]:
        """Of its only call."""
        [(_, named)] = self.calls
        return named

    @property
    def given(self) -> tuple[Any, ...]:
        """Of its only call."""
        [(given, _)] = self.calls
        return given


def test_a_router_is_of_the_agents_prices_and_signals_that_were_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = [
        QuestionOutcomes(f"{i}", f"{i}", agents={a: AgentOutcome("", float(i % 2), None, 0.1) for a in "abc"})
        for i in range(60)
    ]
    read = Listener(monkeypatch, panel, "outcomes_at", (made, 0.25))
    fitted = Listener(monkeypatch, panel, "cross_fit")
    asked: dict[str, Any] = {"out": tmp_path / "r", "prices": "prices.json", "signal": ["confidence=c"], "seed": 7}
    with pytest.raises(HeardError):
        panel.train_router("runs", RouterOptions(**asked, agent=["b", "a"], command="called so"))
    assert read.given == (Path("runs"),)
    assert read.named == {"prices": "prices.json", "signals": ["confidence=c"], "seed": 7, "command": "called so"}
    [panels] = fitted.given
    assert (panels.agents, len(panels), fitted.named["seed"]) == (("a", "b"), 60, 7)
    with pytest.raises(RecordError, match="no outcome of z; the agents are a, b, c"):
        panel.train_router(made, RouterOptions(**asked, agent=["a", "z"]))
    with pytest.raises(RecordError, match="none of 60 questions has two scored answers"):
        panel.train_router(made, RouterOptions(**asked, agent=["a"]))
