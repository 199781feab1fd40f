"""Outcomes of asking agents are read and written line by line, and wrong lines are refused by name."""

import json
import math
from pathlib import Path

import pytest

from metaprobe.records.errors import ImportFileError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes, outcome_of_line, read_outcomes


def test_outcomes_survive_a_round_trip(tmp_path: Path) -> None:
    questions = [
        QuestionOutcomes(
            "full", "g", "Who?", "d", {"small": AgentOutcome("x", 1.0, 0.3, 0.2, 5.0, "stated", None, 9.0, 2.0)}
        ),
        QuestionOutcomes(
            "logged", "g", agents={"small": AgentOutcome("x", 0.5, -math.inf)}, chosen="ask", propensities={"ask": 0.9}
        ),
    ]
    QuestionOutcomes.write(tmp_path / "o.jsonl.gz", questions)
    assert read_outcomes(tmp_path / "o.jsonl.gz") == questions


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ({"id": "a"}, '"agents" is missing'),
        ({"agents": {}}, '"id" is missing'),
        ({"id": "a", "agents": {"m": {"correct": 2}}}, '"agents.m.correct" is 2'),
        ({"id": "a", "agents": {"m": {"score": 0.5, "correct": 1}}}, "differ"),
        ({"id": "a", "agents": {"m": {"cost_usd": -1}}}, '"agents.m.cost_usd" is -1'),
        ({"id": "a", "agents": {"m": {"confidence": "high"}}}, '"agents.m.confidence" is "high"'),
        ({"id": "a", "agents": {}, "propensities": {"x": None}}, '"propensities.x" is missing; expected a number'),
        ({"id": "a", "agents": {}, "propensities": [1]}, '"propensities" is [1]; expected an object'),
        ({"id": "a", "agents": {"m": 1}}, '"agents.m" is 1; expected an object'),
        ({"id": "a", "agents": {"m": {"answer": 7}}}, '"agents.m.answer" is 7; expected a string'),
        ({"id": "a", "agents": {"m": {"score": True}}}, '"agents.m.score" is true; expected a number'),
        ({"id": "a", "agents": {"m": {"confidence": math.nan}}}, '"agents.m.confidence" is NaN; expected a number'),
        ({"id": "a", "agents": {"m": {"latency_ms": math.inf}}}, "expected a number of at least 0, and finite"),
        ({"id": "fine", "agents": {}}, "id 'fine' stands in line 1 too"),
    ],
)
def test_a_bad_outcome_is_named_by_line_and_field(tmp_path: Path, line: dict[str, object], field: str) -> None:
    path = tmp_path / "o.jsonl"
    path.write_text(json.dumps({"id": "fine", "agents": {}}) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(ImportFileError, match=r"o\.jsonl:2: ") as error:
        read_outcomes(path, strict=True)
    assert field in str(error.value)
    assert error.value.line == 2
    with pytest.warns(UserWarning, match=r"1 of 2 lines of .* are bad and left out:\n  1 x .*o\.jsonl:2: "):
        assert [question.id for question in read_outcomes(path)] == ["fine"]


def test_the_least_that_a_line_may_say_and_the_bounds_of_its_numbers(tmp_path: Path) -> None:
    least = outcome_of_line({"id": "a", "agents": {"m": {}}, "group": None, "propensities": None})
    assert least == QuestionOutcomes("a", "a", agents={"m": AgentOutcome()})
    agents = {"none": {"score": 0, "cost_usd": 0, "latency_ms": 0}, "all": {"correct": True, "confidence": -math.inf}}
    line = {"id": "b", "group": "g", "agents": agents, "chosen": "all", "propensities": {"none": 0, "all": 1}}
    read = outcome_of_line(line)
    assert read.agents["none"] == AgentOutcome(score=0.0, cost_usd=0.0, latency_ms=0.0)
    assert read.agents["all"] == AgentOutcome(score=1.0, confidence=-math.inf)
    assert (read.group, read.chosen, dict(read.propensities)) == ("g", "all", {"none": 0.0, "all": 1.0})
    (tmp_path / "o.jsonl").write_text("\n")
    with pytest.raises(ImportFileError, match="holds no outcome; expected one JSON object a line"):
        read_outcomes(tmp_path / "o.jsonl")


@pytest.mark.parametrize(
    ("agent", "why"),
    [
        ({"error": "timed out\nafter 30 s", "cost_usd": 0.1}, "timed out after 30 s"),
        ({"error": {"message": "rate limit", "code": 429}}, "rate limit"),
        ({"error": True, "correct": 0, "answer": "half an ans"}, "no reason was given"),
        ({"answer": "", "correct": 0}, "no answer"),
        ({"answer": None, "confidence": None, "cost_usd": 0.1}, "no answer"),
    ],
)
def test_a_failed_call_is_no_answer_whose_score_is_nothing(agent: dict[str, object], why: str) -> None:
    found = outcome_of_line({"id": "a", "agents": {"m": agent}}).agents["m"]
    assert found == AgentOutcome("", 0.0, None, agent.get("cost_usd"), agent.get("latency_ms"), error=why)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "agent",
    [
        {"correct": 0},
        {"correct": 1, "answer": ""},
        {"confidence": 0.5, "answer": ""},
        {"answer": "42"},
        {"answer": "42", "error": None},
        {"answer": "42", "error": ""},
        {"correct": None, "cost_usd": 0.1},
    ],
)
def test_an_answer_whose_text_or_label_is_not_in_the_line_did_not_fail(agent: dict[str, object]) -> None:
    assert outcome_of_line({"id": "a", "agents": {"m": agent}}).agents["m"].error is None


def test_an_error_beside_a_right_answer_is_refused() -> None:
    with pytest.raises(ImportFileError, match=r'"agents\.m\.error" stands beside a score of 1'):
        outcome_of_line({"id": "a", "agents": {"m": {"error": "timeout", "correct": 1}}})
    with pytest.raises(ImportFileError, match=r'"agents\.m\.error" is 503; expected why'):
        outcome_of_line({"id": "a", "agents": {"m": {"error": 503}}})
