"""Explicit against implicit on answers of two models and two tasks, through the public end."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import metaprobe
from metaprobe.eval.controls import EASE, IDENTITY, LENGTH, P_TRUE, STATED
from metaprobe.eval.report.words import brief
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Run, Statement
from metaprobe.training.methods import BLEND, LADDER, MEAN_LOGPROB
from metaprobe.training.recipes import compare_runs

BASE_RATES = {"easy": 0.85, "hard": 0.25}
SURE = {"easy": 0.6, "hard": 0.9}
"""Mean confidence by task. It is higher where fewer answers are right, so over all answers it misleads."""
QUESTIONS = 110


TURNED = {"easy": (1.6, 0.3), "hard": (0.3, 1.6)}
"""On easy questions stated confidence tells more, on hard ones the token does."""
BOTH = dict.fromkeys(BASE_RATES, (1.2, 1.2))


def write_lines(path: Path, effects: dict[str, tuple[float, float]] = TURNED) -> Path:
    """Writes answers of one token. `effects`: by task, how much confidence and token tell."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        for task, rate in BASE_RATES.items():
            for question in range(QUESTIONS):
                for model in ("small-1b", "big-7b"):
                    right = int(rng.uniform() < rate)
                    says, gives = effects[task]
                    stated = SURE[task] + 0.05 * (says * right + rng.normal()) - 0.02
                    token = -np.exp(-(gives * right + rng.normal()))
                    line = {
                        "id": f"{task}-{question}-{model}",
                        "group": f"{task}-{question}",
                        "task": task,
                        "model": model,
                        "question": f"{task} question {question}",
                        "answer": "",
                        "logprobs": [float(token)],
                        "verbalized_confidence": float(np.clip(stated, 0, 1)),
                        "correct": right,
                    }
                    file.write(json.dumps(line) + "\n")
    return path


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signals")
    return metaprobe.compare(write_lines(folder / "lines.jsonl"), folds=2, out=folder / "out"), folder / "out"


def test_a_base_rate_that_one_side_knows_is_no_lead_of_that_side(compared) -> None:
    comparison, _ = compared
    stated, learned = (next(m for m in comparison.methods if m.name == name) for name in (STATED, LADDER))
    assert learned.auroc.estimate - stated.auroc.estimate > 0.3, "over all answers it looks like a lead"
    signals = comparison.signals
    assert (signals.explicit, signals.implicit, signals.runs) == (STATED, LADDER, 4)
    assert signals.whole.ahead == ""
    assert learned.diff_stated.estimate == pytest.approx(signals.whole.difference.estimate)
    identity = next(m for m in comparison.methods if m.name == IDENTITY)
    assert identity.diff_stated.high < 0, "knowing the run alone tells nothing of answers of one run"
    first = brief(comparison).first[0][1]
    assert first.startswith("Neither is shown to be ahead")


def test_a_reversal_between_tasks_is_found_and_named(compared) -> None:
    comparison, folder = compared
    ahead = {part.name: part.ahead for part in comparison.signals.parts}
    crossed = {name: ahead.pop(name) for name in [*ahead] if " on " in name}
    assert ahead == {"all answers": "", "easy": "explicit", "hard": "implicit", "big-7b": "", "small-1b": ""}
    assert crossed["big-7b on easy"] == crossed["small-1b on easy"] == "explicit"
    assert crossed["big-7b on hard"] == crossed["small-1b on hard"] == "implicit"
    said = brief(comparison).first[0][1]
    assert "It turns round by task: implicit ahead on hard; explicit ahead on easy." in said
    with (folder / "tables" / "signals.csv").open(newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == list(ahead)
    assert "by task and model" not in said, "what the tasks say is not said again"
    with (folder / "tables" / "signals-crossed.csv").open(newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == list(crossed)
    with (folder / "items.csv").open(newline="") as file:
        assert {row["task"] for row in csv.DictReader(file)} == set(BASE_RATES)


def test_the_blend_joins_what_tells_answers_of_one_run_apart(tmp_path) -> None:
    """Over all answers the stated number misleads, so weights that ignored the runs would leave it out."""
    comparison = metaprobe.compare(write_lines(tmp_path / "lines.jsonl", BOTH), folds=2, out=tmp_path / "out")
    assert comparison.signals.joined == BLEND
    assert comparison.signals.whole.joined_gain.low > 0
    assert comparison.headline == BLEND
    assert "They complement each other" in brief(comparison).first[0][1]


def test_numbers_of_one_token_that_are_the_same_count_once(compared) -> None:
    comparison, _ = compared
    names = {method.name for method in comparison.methods}
    assert MEAN_LOGPROB in names
    assert not names & {"minimum log-probability", "first log-probability", "total log-probability", LENGTH}
    assert any(f"{MEAN_LOGPROB} also stands for minimum log-probability" in note for note in comparison.notes)
    assert f"Left out, because the same for all answers: {LENGTH}." in comparison.notes
    learned = next(method for method in comparison.methods if method.name == LADDER)
    assert {control.name for control in learned.controls.controls} <= names


def test_scores_and_numbers_are_kept_when_a_drawing_fails(tmp_path, monkeypatch) -> None:
    def broken(comparison: object) -> dict[str, bytes]:
        raise ZeroDivisionError("a drawing")

    monkeypatch.setattr("metaprobe.eval.report.write.report_files", broken)
    with pytest.raises(ZeroDivisionError) as raised:
        metaprobe.compare(write_lines(tmp_path / "lines.jsonl"), folds=2, out=tmp_path / "out")
    assert "items.csv" in raised.value.__notes__[0]
    written = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert written["signals"]["explicit"] == STATED
    with (tmp_path / "out" / "items.csv").open(newline="") as file:
        assert {row["method"] for row in csv.DictReader(file)} >= {STATED, LADDER, BLEND}


def test_the_report_is_written_before_a_checkpoint_that_may_fail(tmp_path, monkeypatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("an export")

    monkeypatch.setattr(compare_runs, "write_method", broken)
    with pytest.raises(ZeroDivisionError):
        metaprobe.compare(
            write_lines(tmp_path / "lines.jsonl"), folds=2, out=tmp_path / "out", export=tmp_path / "checkpoint"
        )
    assert (tmp_path / "out" / "report.html").exists()


def answer_of(number: int, model: str, task: str, rng: np.random.Generator) -> Run:
    """An answer with everything that a model may state; the big model is right on every question of the task easy."""
    right = 1 if (model, task) == ("big-7b", "easy") else int(rng.uniform() < 0.6)
    call = Call(
        id=f"{model}-{task}-{number}",
        stage="answer",
        model=model,
        text="true" if right else "false",
        logprobs=-rng.exponential(1.5 - right, size=4).astype(np.float32),
        finish_reason="stop",
    )
    stated = {
        "confidence": 0.3 + 0.4 * right + 0.2 * rng.uniform(),
        "difficulty": rng.uniform(),
        "p_true": rng.uniform(),
    }
    return Run(
        id=f"run-{call.id}",
        system="asked",
        variant="plain",
        item=Item(
            id=f"{task}-{number}",
            question=f"{task} claim {number}",
            group=f"{task}-{number}",
            task=task,
            dimension=f"dimension {number % 2}",
            level=("easy", "hard")[number % 3 > 0],
            check="choice",
            choices=("true", "false"),
            gold=("true",),
        ),
        calls=(call,),
        statements=tuple(Statement(call.id, kind, value) for kind, value in stated.items()),
        labels=(Label(call.id, "correct", float(right), "program"),),
        outcome=float(right),
    )


def test_a_store_of_all_that_is_stated_is_compared_also_with_a_run_without_mistakes(tmp_path) -> None:
    rng = np.random.default_rng(3)
    with RunStore(tmp_path / "runs").writer() as writer:
        for number in range(60):
            for task in ("easy", "hard"):
                for model in ("small-1b", "big-7b"):
                    writer.add(answer_of(number, model, task, rng))
    comparison = metaprobe.compare(tmp_path / "runs", folds=2, out=tmp_path / "out")
    assert {STATED, EASE, P_TRUE} <= {method.name for method in comparison.methods}
    assert comparison.signals.whole.ahead == "explicit"
    assert brief(comparison).first[0][1].startswith("Explicit: of a right and a wrong answer of one run, stated")
    assert {part.name: part.n for part in comparison.signals.parts if part.by == "task"} == {"easy": 120, "hard": 120}
    assert {row.model for row in comparison.by_model} == {"small-1b", "big-7b"}
    assert comparison.difficulty is not None
