"""An agent loop of one's own: verdict, signals, policy, decision, in ten lines, with one's own names for the agents."""

import re
from pathlib import Path
from typing import Any

import pytest
from docs_worlds import WORLDS

from metaprobe.checkpoints import ContractMismatch
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.signals import Signal
from metaprobe.records.errors import InvalidResponse

PAGE = Path(__file__).parent.parent / "docs" / "route.md"
_, _, LOOP, CASCADE = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


def lines_of(code: str) -> int:
    """Without what is imported, and without blank lines."""
    return sum(bool(line.strip()) and not line.startswith("from ") for line in code.splitlines())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("loop")
    return folder, WORLDS["route"](folder)


@pytest.fixture
def world(made: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    folder, names = made
    monkeypatch.chdir(folder)
    names["asked_of"].clear()
    return dict(names)


def test_the_loop_of_the_page_takes_twenty_lines_with_failures(world: dict[str, Any]) -> None:
    assert lines_of(LOOP) <= 20


def test_the_loop_asks_the_next_agent_until_an_answer_is_good_enough(world: dict[str, Any]) -> None:
    exec(LOOP, world)
    assert world["asked_of"] == ["drafter", "solver"]
    assert (world["agent"], world["decision"].action) == ("solver", "execute")
    assert world["decision"].propensities == {"execute": 1.0, "ask": 0.0}
    score = world["predictor"].predict(world["response"]).score
    assert world["signals"].confidence.value == score
    assert world["decision"].scores["execute"] == score >= 0.7


def test_the_cascade_of_the_page_keeps_the_strong_answer_and_says_so(world: dict[str, Any]) -> None:
    exec(LOOP, world)
    world["asked_of"].clear()
    exec(CASCADE, world)
    assert world["asked_of"] == ["small-model", "large-model"]
    answer = world["answer"]
    assert (answer.answered_by, answer.choices[0].message.content) == ("large-model", "said by large-model")
    assert answer.cost_usd == pytest.approx((20 * 0.15 + 8 * 0.6 + 20 * 2.5 + 8 * 10.0) / 1e6)
    assert "< 0.700 (theta, as given)" in answer.reason


@pytest.fixture
def predictor(world: dict[str, Any]) -> QualityPredictor:
    return QualityPredictor.load("out/quality")


def test_signals_of_a_response_and_of_its_verdict_say_the_same(predictor: QualityPredictor) -> None:
    logprobs = [-0.1, -0.4, -0.2]
    verdict = predictor.predict(logprobs)
    read, told = predictor.signals(logprobs), predictor.signals(verdict)
    for signals in (read, told):
        assert signals.confidence == signals.quality == Signal(verdict.score or 0.0, verdict.checkpoint)
        assert signals.confidence.thresholds == predictor.checkpoint.manifest.thresholds
        assert signals.critical is None  # this predictor has no such head
    assert told.mean_logprob is told.tokens is None
    assert read.value("mean_logprob") == pytest.approx(-0.7 / 3)
    assert [read.value(name) for name in ("min_logprob", "first_logprob", "tokens")] == pytest.approx([-0.4, -0.1, 3])


def test_signals_of_what_cannot_be_judged_are_refused(predictor: QualityPredictor) -> None:
    with pytest.raises(InvalidResponse):
        predictor.signals({"choices": [{"message": {"content": "yes"}}]})
    other = QualityPredictor.load().predict([-0.1, -0.4, -0.2])
    with pytest.raises(ContractMismatch, match=r"the verdict is of checkpoint \w+, and this predictor is \w+: give"):
        predictor.signals(other)
