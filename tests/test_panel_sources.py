"""A panel reads a confidence only from the source that it learned from, on every path; others are left out and said."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_once import MadeOnce
from panel_worlds import completion

from metaprobe.checkpoints import Checkpoint, ContractMismatch
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.compared_answers import PanelAnswer
from metaprobe.routing.panel.sources import (
    SIGNAL_SOURCES,
    SOURCES_KEY,
    is_from,
    mean_confidence,
    with_learned_confidence,
)
from metaprobe.routing.panel.stored_panels import panel_lines, step_lines
from metaprobe.training.panel.labelled_panels import panels_of_lines, panels_of_outcomes
from metaprobe.training.recipes.panel import train_panel
from metaprobe.training.recipes.panel_evaluate import evaluate_panel
from metaprobe.training.training_options import PanelOptions

AGENTS = ("large", "small")
DIGEST = "d" * 64


def planted(n: int, source: str, *, scale: str = "mean", cost: float | None = 0.001) -> list[QuestionOutcomes]:
    """Two agents who are surer where they are right, on the scale of mean log-probabilities or of probabilities."""
    rng = np.random.default_rng(0)
    found = []
    for i in range(n):
        agents = {}
        for name, skill in zip(AGENTS, (0.7, 0.4), strict=True):
            right = rng.random() < skill
            mean = -float(rng.exponential(0.3 if right else 1.2)) - 0.01
            sure = mean if scale == "mean" else math.exp(mean)
            answer = f"city {i}" if right else f"town {rng.integers(5)}"
            agents[name] = AgentOutcome(answer, float(right), sure, cost, confidence_source=source)
        found.append(QuestionOutcomes(f"q{i}", f"q{i}", f"Where is {i}?", agents=agents))
    return found


def learned(made_once: MadeOnce, source: str, scale: str = "mean") -> Panel:
    def train(out: Path) -> Checkpoint:
        return train_panel(panels_of_outcomes(planted(60, source, scale=scale)), PanelOptions(out=out))

    return Panel.load(made_once(f"sources-{source[:10]}-{scale}", train))


@pytest.fixture(scope="module")
def by_logprobs(made_once: MadeOnce) -> Panel:
    return learned(made_once, "logprobs")


@pytest.fixture(scope="module")
def unnamed(made_once: MadeOnce) -> Panel:
    return learned(made_once, "")


def lone(panel: Panel, **more: Any) -> Any:
    return panel.judge([PanelAnswer("city 3", "large", **more)], question="Where is 3?")


def test_a_stated_number_is_not_read_as_a_log_probability(by_logprobs: Panel) -> None:
    contract = by_logprobs.checkpoint.manifest.contract
    assert contract[SOURCES_KEY] == dict.fromkeys(AGENTS, "logprobs")
    assert contract[SIGNAL_SOURCES] == {"stated": "logprobs"}
    silent, stated = lone(by_logprobs), lone(by_logprobs, stated=0.9)
    assert stated.score == silent.score
    assert "left out" in stated.reason
    assert "left out" not in silent.reason
    # The number from the source that it learned from is read.
    right = lone(by_logprobs, stated=-0.02, stated_source="logprobs")
    assert right.score != silent.score
    assert "left out" not in right.reason


def test_log_probabilities_that_come_are_the_confidence(by_logprobs: Panel, made_once: MadeOnce) -> None:
    for panel, value in ((by_logprobs, -0.25), (learned(made_once, "logprobs", "exp"), math.exp(-0.25))):
        known = lone(panel, stated=value, stated_source="logprobs")
        for more in ({}, {"stated": 0.9}, {"stated": 0.9, "stated_source": "stated"}):
            came = lone(panel, logprobs=[-0.1, -0.4], **more)
            assert came.score == pytest.approx(known.score)
            assert "have no" not in came.reason


@pytest.mark.parametrize("source", ["", "stated", "logprobs", DIGEST, f"stated+{DIGEST}"])
def test_every_path_checks_the_source(by_logprobs: Panel, tmp_path: Path, source: str) -> None:
    """Lines to score, and steps: a stated number is left out, and only what is named as learned is read."""
    line = {
        "question_id": "q",
        "agent": "large",
        "messages": [{"role": "user", "content": "Where is 3?"}],
        "response": {"choices": [{"message": {"content": "city 3"}, "finish_reason": "stop"}]},
    }
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps({**line, "verbalized_confidence": 0.9}) + "\n")
    [scored] = panel_lines(by_logprobs, path)
    assert scored["score"] == pytest.approx(lone(by_logprobs).score)
    assert "stated by the model" in scored["reason"]
    known = {"answer": "city 3", "confidence": -0.02, **({"confidence_source": source} if source else {})}
    path.write_text(json.dumps({"id": "q", "question": "Where is 3?", "agents": {"large": known}}) + "\n")
    [step] = step_lines(by_logprobs, path)
    assert ("left out" in step["reason"]) is (source != "logprobs")


def test_what_no_checkpoint_names_is_not_taken_for_a_stated_number(unnamed: Panel) -> None:
    assert unnamed.checkpoint.manifest.contract[SOURCES_KEY] == {}
    silent = lone(unnamed)
    stated = lone(unnamed, stated=0.9, stated_source="stated")
    assert stated.score == silent.score
    assert "does not name the source" in stated.reason
    assert lone(unnamed, stated=-0.02).score != silent.score, "of the kind that it learned from, as the caller says"


def test_an_old_contract_is_one_that_names_no_source(by_logprobs: Panel) -> None:
    held = by_logprobs.checkpoint
    contract = {key: value for key, value in held.manifest.contract.items() if key != SOURCES_KEY}
    old = Panel(replace(held, manifest=replace(held.manifest, contract=contract)))
    assert "does not name the source" in lone(old, stated=0.9, stated_source="stated").reason
    broken = replace(held, manifest=replace(held.manifest, contract={**contract, SOURCES_KEY: ["logprobs"]}))
    with pytest.raises(ContractMismatch):
        Panel(broken)


def test_an_evaluation_leaves_out_what_is_from_another_source(by_logprobs: Panel) -> None:
    own = evaluate_panel(by_logprobs, panels_of_outcomes(planted(60, "logprobs")), resamples=50)
    bare = [
        replace(q, agents={name: replace(one, confidence=None, confidence_source="") for name, one in q.agents.items()})
        for q in planted(60, "logprobs")
    ]
    silent = evaluate_panel(by_logprobs, panels_of_outcomes(bare), resamples=50)
    other = evaluate_panel(by_logprobs, panels_of_outcomes(planted(60, "stated")), resamples=50)
    assert own["reason"] == silent["reason"] == ""
    assert "another source" in other["reason"]
    assert other["answers"] == silent["answers"] != own["answers"]


def test_lines_without_costs_are_evaluated_by_the_number_of_answers(by_logprobs: Panel, tmp_path: Path) -> None:
    lines = [
        {
            "question_id": question.id,
            "agent": name,
            "messages": [{"role": "user", "content": question.question}],
            "response": completion(one.answer, logprob=one.confidence or 0.0),
            "labels": {"correct": int(one.score or 0)},
        }
        for question in planted(60, "logprobs")
        for name, one in question.agents.items()
    ]
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    figures = evaluate_panel(by_logprobs, panels_of_lines(path, by_logprobs.same), resamples=50)
    whole = evaluate_panel(by_logprobs, panels_of_outcomes(planted(60, "logprobs")), resamples=50)
    assert figures["answers"]["2"]["accuracy"] == whole["answers"]["2"]["accuracy"], "the same log-probabilities came"
    assert "cost" in figures["reason"]
    assert "budgets" not in figures
    with pytest.raises(RecordError, match="cost"):
        evaluate_panel(by_logprobs, panels_of_lines(path, by_logprobs.same), budget=1.0, resamples=50)


def test_a_panel_learns_from_one_source_of_an_agent(tmp_path: Path) -> None:
    QuestionOutcomes.write(tmp_path / "o.jsonl", [*planted(30, "logprobs"), *renamed(planted(30, "stated"))])
    with pytest.raises(RecordError, match="one source"):
        train_panel(tmp_path / "o.jsonl", PanelOptions(out=tmp_path / "c"))


def renamed(questions: list[QuestionOutcomes]) -> list[QuestionOutcomes]:
    return [replace(one, id=f"other {one.id}", group=f"other {one.id}") for one in questions]


@pytest.mark.parametrize(
    ("learned_from", "source", "read"),
    [
        ("stated", "stated", True),
        ("stated", "", True),
        ("stated", "logprobs", False),
        ("", "", True),
        ("", "stated", False),
        ("", DIGEST, False),
        (DIGEST, DIGEST, True),
        (DIGEST, "", False),
        (DIGEST, "stated", False),
        (f"stated+{DIGEST}", "stated", True),
        (f"stated+{DIGEST}", DIGEST, True),
        (f"stated+{DIGEST}", "logprobs", False),
        ("logprobs", "", False),
    ],
)
def test_a_source_is_that_of_training_or_a_part_of_it(learned_from: str, source: str, read: bool) -> None:
    assert is_from(learned_from, source) is read
    answer, why = with_learned_confidence(PanelAnswer("a", stated=0.5, stated_source=source), learned_from, [0.0, 1.0])
    assert (answer.stated == 0.5, why == "") == (read, read)


@given(st.floats(-50, 0), st.lists(st.floats(-50, 50), min_size=1, max_size=4).map(sorted))
def test_a_mean_log_probability_is_read_on_the_scale_of_training_alone(mean: float, levels: list[float]) -> None:
    value = mean_confidence(mean, levels)
    if levels[-1] <= 0:
        assert value == mean
    elif levels[0] >= 0 and levels[-1] <= 1:
        assert value == math.exp(mean)
    else:
        assert math.isnan(value)


def test_a_score_of_another_question_is_left_out(by_logprobs: Panel) -> None:
    """A panel that reads no score says nothing of one."""
    assert lone(by_logprobs, score=0.9, score_source="other").reason == lone(by_logprobs).reason
