"""What is asked of a training arrives where it counts: every option, seed and name is handed on to what uses it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import made_up

from metaprobe import demo
from metaprobe.checkpoints import FlagOptions
from metaprobe.llms.weights import DEFAULT_MODEL
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.training import comparison as comparing
from metaprobe.training import study
from metaprobe.training.methods import AFTER, BEFORE, LADDER, MEAN_LOGPROB, USUAL_LADDER
from metaprobe.training.options import (
    CompareOptions,
    HiddenOptions,
    RouterOptions,
)
from metaprobe.training.recipes import hidden
from metaprobe.training.router import train as router
from metaprobe.training.states import Wanted
from metaprobe.training.study import Progress


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


def say(what: str) -> None:
    """Says nothing, and is told from the default by being another function."""


WHICH = {"target": "sound", "stage": "answer", "agent": "solver"}


def test_a_study_reads_the_answers_that_were_asked_for_and_fits_them_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = made_up(120)
    loaded = Listener(monkeypatch, study, "load_evidence", evidence)
    folded = Listener(monkeypatch, study, "crossfit", "fits")

    def own(of: Any, names: Any) -> list[Any]:
        return [SimpleNamespace(name=f"own beside {names[0]}", family="own")]

    found = study.study(
        ["a", "b"], **WHICH, folds=3, seed=7, hidden=False, kind="ridge", own=own, bare=True, on_step=say
    )
    assert loaded.calls == [((["a", "b"],), {**WHICH, "hidden": False, "bare": True})]
    assert folded.named == {
        "folds": 3,
        "seed": 7,
        "blend": [MEAN_LOGPROB, LADDER, BEFORE, AFTER],
        "progress": None,
        "on_step": say,
    }
    methods = folded.given[1]
    assert [method.kind for method in methods if method.name in (BEFORE, AFTER)] == ["ridge", "ridge"]
    assert methods[-1].name == f"own beside {methods[0].name}"
    assert (found.seed, found.target, found.stores, found.fits) == (7, "sound", (Path("a"), Path("b")), "fits")
    assert found.ladder is methods[[method.name for method in methods].index(LADDER)]
    kept, ladder = Progress(), replace(USUAL_LADDER)
    folded = Listener(monkeypatch, study, "crossfit", "fits")
    assert study.study_of(evidence, ladder=ladder, progress=kept).ladder is ladder
    assert folded.named["progress"] is kept
    loaded = Listener(monkeypatch, study, "load_evidence", evidence)
    study.study(["a"], target="critical")
    assert (loaded.named["hidden"], loaded.named["bare"]) == (True, False)
    assert loaded.named["target"] == "critical"
    turned = Listener(monkeypatch, study, "study_of")
    with pytest.raises(HeardError):
        study.study(["a"], target="critical")
    assert turned.given[0].table.y.tolist() == (1 - evidence.table.y).tolist()


def test_a_probe_is_of_the_states_answers_and_kind_that_were_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    evidence, lines = made_up(120), list[str]()
    common = {"stage": "answer", "agent": "solver", "folds": 3, "seed": 7, "on_step": say, "command": "called so"}
    options = HiddenOptions(
        **common,  # type: ignore[arg-type]
        out=tmp_path / "p",
        on_line=lines.append,
        target="sound",
        when="after",
        probe="ridge",
        layers="1,2",
        position=("answer_last",),
        states_of="reader",
        catch=0.8,
    )
    loaded = Listener(monkeypatch, hidden, "load_evidence", evidence)
    studied = Listener(monkeypatch, hidden, "study_of", "study")
    written = Listener(monkeypatch, hidden, "write_hidden", "checkpoint")
    assert hidden.train_hidden(["a"], options) == "checkpoint"
    wanted = Wanted("1,2", ("answer_last",), "reader")
    assert loaded.calls == [((["a"],), {**WHICH, "wanted": wanted})]
    assert studied.given == (evidence,)
    assert isinstance(studied.named.pop("progress"), Progress)
    assert studied.named == {"folds": 3, "seed": 7, "kind": "ridge", "on_step": say}
    assert written.given == (tmp_path / "p", "study")
    assert written.named == {
        "when": "after", "target": "sound", "command": "called so", "flags": FlagOptions(catch=0.8)
    }  # fmt: skip
    assert lines == ["states      layers 0, 1, 2 at prompt_last, answer_last"]
    loaded = Listener(monkeypatch, hidden, "load_evidence", evidence)
    graded = Listener(monkeypatch, hidden, "train_difficulty")
    with pytest.raises(HeardError):
        hidden.train_hidden(["a"], HiddenOptions(**common, out=tmp_path / "d", target="level"))  # type: ignore[arg-type]
    assert loaded.named["target"] == "correct", "the level comes with the items; the label says which answers there are"
    assert isinstance(graded.named.pop("progress"), Progress)
    assert graded.named == {"target": "level", "folds": 3, "seed": 7, "command": "called so", "on_step": say}


def test_a_router_is_of_the_agents_prices_and_signals_that_were_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read = Listener(monkeypatch, router, "outcomes_at", (["question"], 0.25))
    written = Listener(monkeypatch, router, "write_router", "checkpoint")
    asked = {"folds": 3, "seed": 7, "states": 500, "on_step": say, "command": "called so"}
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


def test_a_comparison_is_of_the_answers_that_were_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    studied = Listener(monkeypatch, comparing, "study", "study")
    written = Listener(monkeypatch, comparing, "write_comparison", ("comparison", "report"))
    options = CompareOptions(
        out=tmp_path / "c",
        **WHICH,  # type: ignore[arg-type]
        folds=3,
        seed=7,
        on_step=say,
        command="called so",
    )
    assert comparing.compare(["a"], options) == "comparison"
    assert callable(studied.named.pop("own"))
    assert studied.calls == [((["a"],), {**WHICH, "bare": True, "folds": 3, "seed": 7, "on_step": say})]
    assert written.calls == [((tmp_path / "c", "study"), {"command": "called so"})]


def test_a_demo_collects_trains_and_reports_with_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launched = Listener(monkeypatch, demo, "launch", SimpleNamespace(failed=("r1", "r2")))
    collected = demo.collect_demo(tmp_path, model="m", limit=5, batch_size=3, watch="watch")  # type: ignore[arg-type]
    plan, folder, watch = launched.given
    assert (folder, watch) == (tmp_path / "runs", "watch")
    assert (plan.system, plan.task, plan.llm, plan.layers) == ("self-report", "metacog-eval", ("m",), "every:3")
    assert (plan.limit, plan.batch_size) == (5, 3)
    launched = Listener(monkeypatch, demo, "launch", "collected")
    demo.collect_demo(tmp_path, watch="watch")  # type: ignore[arg-type]
    assert (launched.given[0].llm, launched.given[0].batch_size) == ((DEFAULT_MODEL,), 32)
    studied = Listener(monkeypatch, demo, "study", "study")
    quality = Listener(monkeypatch, demo, "write_quality", "quality")
    probes = Listener(monkeypatch, demo, "write_hidden", "probe")
    choice = Listener(monkeypatch, demo, "train_choice", ("choice", ("policies",)))
    written = Listener(monkeypatch, demo, "write_comparison", ("comparison", Path("report")))
    found = demo.train_demo(tmp_path, collected=collected, folds=3, seed=7, command="called so", on_step=say)
    stores, at, so = [tmp_path / "runs"], tmp_path / "checkpoints", {"command": "called so"}
    assert studied.calls == [((stores,), {"folds": 3, "seed": 7, "on_step": say})]
    assert quality.calls == [((at / "quality", {"correct": "study"}), so)]
    assert probes.calls == [
        ((at / "difficulty", "study"), {"when": "before", "target": "correct", **so}),
        ((at / "confidence", "study"), {"when": "after", "target": "correct", **so}),
    ]
    assert choice.calls == [((at / "choice", stores), {"seed": 7, "folds": 3, **so})]
    notes = ["2 runs failed and are missing here; run the demo again to try them again."]
    read = {BEFORE: "probe", AFTER: "probe"}
    reported = {"choices": ("policies",), "notes": notes, "probes": read, **so}
    assert written.calls == [((tmp_path / "report", "study"), reported)]
    assert (found.checkpoints, found.report) == (("quality", "probe", "probe", "choice"), Path("report"))
