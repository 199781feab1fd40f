"""Monitor-Generate-Verify follows Algorithm 1, and a checkpoint can take the place of its stated numbers."""

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from scripted import Answer, ScriptedLLM, run_once

from metaprobe.papers.systems.monitor_generate_verify import (
    MAX_CYCLES,
    NEUTRAL_STRATEGY,
    SYSTEM,
    VERIFIER_SCORES,
    parse_monitor,
    parse_strategy,
    parse_verdict,
)
from metaprobe.papers.systems.prompting import Prompts
from metaprobe.probes.signal_source import SignalSource
from metaprobe.probes.signals import Signal
from metaprobe.records.types import Call, Item, Run
from metaprobe.routing.paper import PaperRules

ITEM = Item(id="i1", question="Ann has 3 bags of 4 apples. How many apples?", gold=("12",), check="number")
STRATEGIES = Prompts.load(SYSTEM.name, SYSTEM.prompts).entries("strategies")


def solved(answer: object) -> str:
    return f"<think>\nworked out as {answer}\n</think>\n<answer>\n{answer}\n"


def evaluated(*scores: float, text: str = "Step 2 is off.") -> str:
    scores = scores * 4 if len(scores) == 1 else scores
    names = ("Coherence", "Plausibility", "Consistency", "Goal-conduciveness")
    lines = [f"{name}: {score}" for name, score in zip(names, scores, strict=True)]
    return "\n".join(["<evaluate>", *lines, f"Evaluation: {text}"])


def run(
    scores: Sequence[float] = (), *, signals: object = None, policy: object = None, **given: Answer
) -> tuple[Run, ScriptedLLM]:
    script: dict[str, Answer] = {
        "monitor": "<monitor>\nTask_Features: counting, products\nDifficulty (0-1): 0.25\n",
        "strategy": "Selected Strategy: multiplication",
        "answer": [solved(10 + cycle) for cycle in range(MAX_CYCLES.default)],
        "verify": [evaluated(score) for score in scores],
        "read": "The",
        **given,
    }
    llm = ScriptedLLM(script)
    setup: dict[str, Any] = {"signals": signals, "policy": policy}
    return run_once(SYSTEM, ITEM, llm, **{key: value for key, value in setup.items() if value is not None}), llm


@pytest.mark.parametrize(("score", "cycles"), [(0.85, 1), (0.84, 2)])
def test_it_stops_at_a_mean_of_exactly_085_and_not_below(score: float, cycles: int) -> None:
    _, llm = run([score, 0.9])
    assert llm.stages.count("answer") == cycles


def test_at_most_three_cycles_and_the_best_evaluated_answer_not_the_last() -> None:
    found, llm = run([0.3, 0.7, 0.5, 0.99])
    assert llm.stages.count("verify") == 3
    assert found.final_answer == "11"
    assert found.decisions[-1].action == "1"


def test_what_the_verifier_does_not_say_is_none_and_the_mean_is_over_the_rest() -> None:
    found, _ = run(verify=["<evaluate>\nCoherence: 0.9\nPlausibility: 7\nConsistency: 0.9\nEvaluation: fine"])
    assert [found.stated(name) for name in VERIFIER_SCORES] == [0.9, None, 0.9, None]
    assert found.decisions[1].action == "stop"


@pytest.mark.parametrize(
    ("text", "strategy", "known"),
    [
        ("Selected Strategy: [Multiplication and Division]", "multiplication and division", 1.0),
        ("Selected Strategy: subtraction multiplication.", "subtraction multiplication", 1.0),
        ("**Selected Strategy:** percentage calculation\nBecause of addition.", "percentage calculation", 1.0),
        ("linear equations", "linear equations", 1.0),
        ("Selected Strategy: the algebra strategy", "algebra", 1.0),
        ("Selected Strategy: algebra, then division", "algebra, then division", 0.0),
        ("Selected Strategy: guessing", "guessing", 0.0),
        ("  \n", NEUTRAL_STRATEGY, None),
    ],
)
def test_a_strategy_is_known_only_if_one_of_the_list_is_named(text: str, strategy: str, known: float | None) -> None:
    assert parse_strategy(text, STRATEGIES) == (strategy, known)


@pytest.mark.parametrize(
    ("text", "features", "difficulty"),
    [
        ("<monitor>\nTask_Features: sums, rates\nDifficulty (0-1): 0.4\n</monitor>", "sums, rates", 0.4),
        ("Task_Features: sums\nDifficulty: 80%", "sums", 0.8),
        ("**Task_Features**: sums\n**Difficulty (0-1)**: 0.8/1", "sums", 0.8),
        ("Task_Features: sums, rates. Difficulty (0-1): 0.5", "sums, rates.", 0.5),
        ("<monitor>Task Features: sums</monitor> Difficulty: 0.4", "sums", None),
        ("Task_Features: 3 difficulty levels\nDifficulty (0-1): 7", "3 difficulty levels", None),
        ("Difficulty (0-1): 0.2-0.4", "", None),
        ("It is a problem about 12 apples.", "", None),
        ("", "", None),
    ],
)
def test_features_and_difficulty_are_read_as_written_or_not_at_all(
    text: str, features: str, difficulty: float | None
) -> None:
    assert parse_monitor(text) == (features, difficulty)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("Coherence: 0.8", 0.8),
        ("1. COHERENCE (0-1): 0.8/1", 0.8),
        ("**Coherence**: 80% because all steps connect", 0.8),
        ("Coherence: 8/10", 0.8),
        ("Coherence: X.X", None),
        ("Coherence: 1.5", None),
        ("Coherence: 8", None),
        ("Coherence: -0.2", None),
        ("Coherence: 0.8\nCoherence: 0.2", None),
        ("Coherence: 0.8\nEvaluation: the Coherence: 0.2", 0.8),
        ("The coherence is good", None),
        ("<evaluate>\nCoherence: 0.8", 0.8),
    ],
)
def test_a_score_is_read_as_written_or_not_at_all(line: str, value: float | None) -> None:
    assert parse_verdict(line).scores["coherence"] == value


@dataclasses.dataclass
class Reader:
    """Stands for a checkpoint: gives its values one after another."""

    values: list[float]
    when: str
    layer: int | None = None
    digest: str = "abc"
    with_stated: bool = False
    thresholds: dict[str, float] = dataclasses.field(default_factory=dict)
    seen: list[Call] = dataclasses.field(default_factory=list)
    reader: object = dataclasses.field(
        default_factory=lambda: SimpleNamespace(checkpoint=SimpleNamespace(path="planted"))
    )

    @property
    def source(self) -> str:
        return "stated+" * self.with_stated + self.digest

    def probability(self, call: Call) -> float:
        self.seen.append(call)
        return self.values.pop(0)


def source(**readers: Reader) -> SignalSource:
    return SignalSource(readers)  # type: ignore[arg-type]


def test_a_read_quality_replaces_the_verifier_and_decides() -> None:
    reader = Reader([0.4, 0.9], "answer")
    found, llm = run(signals=source(quality=reader))
    assert llm.stages == ["monitor", "strategy", "answer"] * 2
    assert found.final_answer == "11"
    assert [call.stage for call in reader.seen] == ["answer", "answer"]
    assert [label.value for label in found.labels] == [0.4, 0.9]
    again = llm.prompts_of("answer")[1]
    assert "worked out as 10" in again
    assert "coherence" not in again
    assert "coherence" not in llm.prompts_of("monitor")[1]
    assert run([0.9])[1].stages.count("answer") == 1  # with the stated scores it ends after the first cycle


def test_a_read_difficulty_sets_the_budget_and_the_monitor_is_asked_for_the_features() -> None:
    reader = Reader([0.25, 0.75], "prompt", layer=3)
    found, llm = run([0.5, 0.9], signals=source(difficulty=reader))
    assert llm.stages == ["monitor", "read", "strategy", "answer", "verify"] * 2
    answers = [request for request in llm.asked if request.stage == "answer"]
    assert [request.sampling.max_tokens for request in answers] == [700, 500]  # 1 - P(right)
    assert NEUTRAL_STRATEGY in llm.prompts_of("read")[0]
    assert "worked out as 10" in llm.prompts_of("read")[1]
    assert "counting, products" in llm.prompts_of("strategy")[0]
    assert "0.750" in llm.prompts_of("strategy")[0]
    assert found.stated("difficulty") == 0.25  # what was stated is noted all the same


def test_signals_of_the_answer_reach_the_policy() -> None:
    seen = []

    class Watching(PaperRules):
        def decide(self, state: Any, legal_actions: Sequence[str]) -> Any:
            seen.append(state)
            return super().decide(state, legal_actions)

    run([0.9], policy=Watching())
    iterate = next(state for state in seen if state.point == "iterate")
    assert iterate.signals.difficulty == Signal(0.25, "stated")
    assert iterate.signals.value("mean_logprob") == -0.5
    assert iterate.round == 1


def test_a_policy_that_never_stops_is_stopped() -> None:
    _, llm = run([0.1] * MAX_CYCLES.default, policy=PaperRules(cycles=99))
    assert llm.stages.count("answer") == MAX_CYCLES.default
