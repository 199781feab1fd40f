"""Answers of decision APIs as records: read strictly, stored and given back, refusals and gaps said."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from openai.types import Decision

from metaprobe.cli import main
from metaprobe.probes.decision_predictor import decision_signals
from metaprobe.records.decision_questions import DecisionQuestion
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.store import RunStore, fingerprint
from metaprobe.records.types import Call, Item, Run

PREDICATE = {"type": "predicate", "name": "right", "instructions": "The answer is right."}
SCORE = {"type": "score", "name": "tone", "instructions": "How kind?", "levels": [{"label": x} for x in "abc"]}
CHOICE = {"type": "choice", "instructions": "Who?", "choices": [{"value": True}, {"value": "other"}]}
QUESTIONS = [PREDICATE, SCORE, CHOICE]


def level(value, probability, label=None):
    return {"value": value, "label": label or "abc"[value], "probability": probability}


def score(*levels, value, confidence=0.5):
    return {"type": "score", "name": "tone", "score": value, "confidence": confidence, "probabilities": list(levels)}


RIGHT = {"type": "predicate", "name": "right", "probability": 0.3}
TONE = score(level(0, 0.2), level(1, 0.2), level(2, 0.6), value=1.4)
WHO = {
    "type": "choice",
    "name": None,
    "choice": True,
    "confidence": 0.9,
    "probabilities": [{"value": "other", "probability": 0.1}, {"value": True, "probability": 0.9}],
}
USAGE = {"input_tokens": 9, "output_tokens": 0, "total_tokens": 9}


def test_an_openai_decision_is_read_in_its_questions_order():
    decision = Decision.construct(model="m-1", answers=[RIGHT, TONE, WHO], usage=USAGE)
    right, tone, who = DecisionQuestion.read_answers(decision, "call", questions=DecisionQuestion.read_all(QUESTIONS))
    assert (right.question, right.value, right.source) == ("right", 0.3, "m-1")
    assert (tone.value, tone.options, tone.probabilities) == (1.4, ("a", "b", "c"), (0.2, 0.2, 0.6))
    assert (who.question, who.choice, who.probabilities) == ("question 3", "true", (0.9, 0.1))


def test_a_refusal_and_a_level_without_a_probability_have_none_and_a_reason():
    answers = [{"type": "refusal", "name": "right"}, score(level(2, 0.6), value=1.4), WHO]
    refused, tone, _ = DecisionQuestion.read_answers(
        {"answers": answers}, "call", questions=DecisionQuestion.read_all(QUESTIONS)
    )
    assert (refused.value, refused.reason) == (None, "the judge refused to answer")
    assert (tone.probabilities, tone.reason) == ((None, None, 0.6), "no probability of a, b")


def test_a_store_gives_answers_back_and_their_change_shows_in_its_fingerprint(tmp_path):
    answers = DecisionQuestion.read_answers(
        [score(level(2, 0.6), level(0, 0.2), level(1, 0.2), value=1.4), WHO, RIGHT], "call"
    )
    run = Run(id="r", system="import", variant="", item=Item("i", "q"), calls=(Call(id="call"),))
    judged = Run(id="j", system="import", variant="", item=run.item, calls=run.calls, decision_answers=answers)
    RunStore(tmp_path).append([run, judged])
    assert [one.decision_answers for one in RunStore(tmp_path).runs()] == [(), answers]
    other = Run(id="j", system="import", variant="", item=run.item, calls=run.calls, decision_answers=answers[:1])
    assert fingerprint([judged]) != fingerprint([other])


@pytest.mark.parametrize(
    "answers",
    [
        [RIGHT, TONE],
        [TONE, RIGHT, WHO],
        [RIGHT | {"name": "wrong"}, TONE, WHO],
        [RIGHT | {"probability": 1.2}, TONE, WHO],
        [RIGHT | {"probability": float("nan")}, TONE, WHO],
        [RIGHT | {"probability": True}, TONE, WHO],
        [RIGHT, TONE, WHO | {"choice": "true"}],
        [RIGHT, TONE, WHO | {"choice": "nobody"}],
        [RIGHT, score(level(0, 0.5), level(1, 0.2), level(2, 0.6), value=1.4), WHO],
        [RIGHT, TONE | {"score": 0.2}, WHO],
        [RIGHT, TONE | {"score": 10**400}, WHO],
        [RIGHT, score(level(0, 0.2), level(1, 0.2, "z"), level(2, 0.6), value=1.4), WHO],
        [RIGHT, score(level(0, 0.2), level(0, 0.2), level(2, 0.6), value=1.4), WHO],
        "no JSON",
        None,
    ],
)
def test_answers_that_are_not_those_of_their_questions_are_an_error(answers):
    with pytest.raises(InvalidResponse):
        DecisionQuestion.read_answers(answers, "call", questions=DecisionQuestion.read_all(QUESTIONS))


@pytest.mark.parametrize(
    "questions",
    [
        [],
        [PREDICATE] * 401,
        [PREDICATE, PREDICATE],
        [PREDICATE | {"instructions": " "}],
        [PREDICATE | {"type": "refusal"}],
        [SCORE | {"levels": SCORE["levels"][:1]}],
        [SCORE | {"levels": [{"label": True}, {"label": "b"}]}],
        [CHOICE | {"choices": [{"value": True}, {"value": True}]}],
        [CHOICE | {"choices": [{"value": 1}, {"value": 2}]}],
    ],
)
def test_questions_that_the_format_forbids_are_refused(questions):
    with pytest.raises(InvalidResponse):
        DecisionQuestion.read_all(questions)


def test_the_lines_of_the_page_are_imported_with_their_choice_and_score(tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "text.md").read_text(encoding="utf-8")
    [lines] = re.findall(r"<!-- decision-lines:.*?```json\n(.*?)```", page, flags=re.S)
    (tmp_path / "lines.jsonl").write_text(lines)
    done = CliRunner().invoke(main, ["import", str(tmp_path / "lines.jsonl"), "--out", str(tmp_path / "runs")])
    assert done.exit_code == 0, done.output
    choice, score = (run.decision_answers[0] for run in RunStore(tmp_path / "runs"))
    told = [json.loads(line)["answers"][0] for line in lines.splitlines()]
    assert (choice.kind, choice.choice, score.kind) == ("choice", told[0]["choice"], "score")
    assert score.options == ("rude", "neutral", "kind")
    assert decision_signals([score]).value("tone") == pytest.approx(told[1]["score"], abs=1e-3)
