"""What is asked of a router's training arrives where it counts: every option, seed and name is handed on."""

from pathlib import Path
from typing import Any

import pytest

from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.training.options import (
    RouterOptions,
)
from metaprobe.training.router import train as router


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
    read = Listener(monkeypatch, router, "outcomes_at", (["question"], 0.25))
    written = Listener(monkeypatch, router, "write_router", "checkpoint")
    asked = {"folds": 3, "seed": 7, "states": 500, "on_step": print, "command": "called so"}
    options = RouterOptions(
        out=tmp_path / "r",
        agent=["b", "a"],
        prices="prices.json",
        signal=["confidence=c"],
        **asked,  # type: ignore[arg-type]
    )
    assert router.train_router("runs", options) == "checkpoint"
    assert read.given == (Path("runs"),)
    assert read.named == {"prices": "prices.json", "signals": ["confidence=c"], "seed": 7, "command": "called so"}
    assert written.given == (tmp_path / "r", ["question"])
    assert callable(written.named.pop("on_line"))
    assert written.named == {**asked, "agents": ("b", "a"), "assessment": 0.25}
    written = Listener(monkeypatch, router, "write_router", "checkpoint")
    router.train_router(["outcome"], RouterOptions(out=tmp_path / "r"))  # type: ignore[list-item]
    assert (written.named["agents"], written.named["assessment"]) == (None, None)
    assert written.given[1] == ["outcome"]


def test_a_router_is_played_and_fitted_with_one_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played = Listener(monkeypatch, router, "cross_played", "held out")
    fit = Listener(monkeypatch, router, "fit_router")
    made = [
        QuestionOutcomes(f"{i}", f"{i}", agents={a: AgentOutcome("", float(i % 2), None, 0.1) for a in "ab"})
        for i in range(60)
    ]
    with pytest.raises(HeardError):
        router.write_router(tmp_path, made, folds=3, seed=7, states=500)
    assert played.named == {"folds": 3, "seed": 7, "states": 500}
    assert fit.named == {"seed": 7, "states": 500}
    assert fit.given[2].tolist() == list(range(60))
    with pytest.raises(RecordError, match="59 scored questions in 59 groups by 2 agents"):
        router.write_router(tmp_path, made[1:])
    with pytest.raises(RecordError, match="60 groups by 1 agents"):
        router.write_router(tmp_path, made, agents=["a"])
