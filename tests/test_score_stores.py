"""`metaprobe score CHECKPOINT RUNS`: every answer of a run store, scored as in Python."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tiny import FULL, responses, tiny_quality

from metaprobe.checkpoints import Checkpoint, Generator
from metaprobe.cli import main
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Run, Statement

KNOWN = ("a|sums|v", "b|sums|v")
RATES = {
    "between": {"correct": 1.2},
    "average": {"correct": 0.4},
    "runs": {name: {"correct": shift} for name, shift in zip((*KNOWN, "b|trivia|v"), (1.5, -0.5, 0.3), strict=True)},
}
EACH = 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    contract = {"schema": "full", "features": list(FULL.names), "base_rates": RATES}
    generator = Generator("a", logprobs_mode="raw", others=("b",))
    return tiny_quality(tmp_path_factory.mktemp("rates") / "c", contract=contract, generator=generator)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Answers of two runs that the checkpoint knows and of one that it does not, and one without numbers."""
    found = []
    for name in (*KNOWN, "a|dates|v"):
        model, task, variant = name.split("|")
        for number, logprobs in enumerate(responses(EACH)):
            call = Call(id=f"{name}/{number}/answer", model=model, logprobs=logprobs, logprobs_mode="raw")
            item = Item(id=f"{task}-{number}", task=task, question=f"{task} {number}?")
            found.append(Run(id=f"{name}/{number}", system="s", item=item, variant=variant, calls=(call,)))
    bare = replace(found[0], id="bare", calls=(replace(found[0].calls[0], id="bare/answer", logprobs=None),))
    return [bare, *found]


def score(checkpoint: Checkpoint, store: Path, *options: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(main, ["score", str(checkpoint.path), str(store), *options])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_answer_with_numbers_has_the_verdict_of_its_own_run(
    checkpoint: Checkpoint, runs: list[Run], tmp_path: Path
) -> None:
    RunStore(tmp_path).append(runs)
    found = {line["call"]: line for line in score(checkpoint, tmp_path)}
    calls = {run.calls[0].id: run for run in runs[1:]}
    assert found.keys() == calls.keys()
    for name in KNOWN:
        predictor = QualityPredictor(checkpoint, run=name)
        for run in runs:
            if f"{run.calls[0].model}|{run.item.task}|{run.variant}" == name and run.id != "bare":
                line, verdict = found[run.calls[0].id], predictor.predict(run.calls[0])
                assert (line["run"], line["id"]) == (name, run.id)
                assert line["score"] == pytest.approx(verdict.score)
                assert line["flagged"] == verdict.flagged
                assert line["reason"] == verdict.reason
    named = {line["call"]: line["score"] for line in score(checkpoint, tmp_path, "--run", "b|trivia|v")}
    predictor = QualityPredictor(checkpoint, run="b|trivia|v")
    assert named == {call: pytest.approx(predictor.predict(one.calls[0]).score) for call, one in calls.items()}
    strangers = [line for line in found.values() if line["run"] == "a|dates|v"]
    assert len(strangers) == EACH
    # The checkpoint knows one run of that model, of another task: what a response that names no task is scored by.
    assert {line["flagged"] for line in strangers} == {None}
    assert all("how often answers of this run are right is not known" in line["reason"] for line in strangers)
    assert QualityPredictor(checkpoint).predict(runs[-1].calls[0]).flagged is not None


def test_a_line_of_a_file_is_scored_as_of_the_run_that_it_names(
    checkpoint: Checkpoint, runs: list[Run], tmp_path: Path
) -> None:
    content = [{"token": "t", "logprob": float(value)} for value in runs[1].calls[0].logprobs or ()]
    choice = {"message": {"content": "t" * len(content)}, "logprobs": {"content": content}, "finish_reason": "stop"}
    answer = {"model": "a", "choices": [choice]}
    named = {"sums": {"task": "sums", "run_id": "v"}, "dates": {"task": "dates", "run_id": "v"}, "": {}}
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps({"id": n, "response": answer, **said}) + "\n" for n, said in named.items()))
    sums, dates, nothing = score(checkpoint, path)
    assert sums["score"] == pytest.approx(QualityPredictor(checkpoint, run="a|sums|v").predict(answer).score)
    assert dates["flagged"] is None
    assert "is not known" in dates["reason"]
    assert nothing["score"] == pytest.approx(sums["score"]), "the only run of that model"
    all_named = score(checkpoint, path, "--run", "b|sums|v")
    assert len({line["score"] for line in all_named}) == 1
    assert all_named[0]["score"] != sums["score"]


def test_of_several_stages_one_may_be_scored(checkpoint: Checkpoint, runs: list[Run], tmp_path: Path) -> None:
    [call] = runs[1].calls
    two = replace(runs[1], calls=(replace(call, stage="answer"), replace(call, id="said", stage="assess")))
    RunStore(tmp_path).append([two])
    assert [(line["stage"], line["item"]) for line in score(checkpoint, tmp_path)] == [
        ("answer", two.item.id),
        ("assess", two.item.id),
    ]
    assert [line["call"] for line in score(checkpoint, tmp_path, "--stage", "answer")] == [call.id]
    done = CliRunner().invoke(main, ["score", str(checkpoint.path), str(tmp_path), "--stage", "x"])
    assert "of stage x (the stages are answer, assess)" in f"{done.output}{done.exception}"
    lines = tmp_path / "lines.jsonl"
    lines.write_text("{}")
    done = CliRunner().invoke(main, ["score", str(checkpoint.path), str(lines), "--stage", "x"])
    assert "--stage is for run stores" in done.output


def test_what_only_states_a_number_about_an_answer_is_no_answer(
    checkpoint: Checkpoint, runs: list[Run], tmp_path: Path
) -> None:
    """Asked for its confidence, a model is sure of every token of "Confidence: 100": such a score is no verdict."""
    answered = runs[1]
    said = replace(answered.calls[0], id=f"{answered.id}/confidence", stage="confidence", parent=answered.calls[0].id)
    asked = replace(answered, calls=(*answered.calls, said), statements=(Statement(said.id, "confidence", 1.0),))
    RunStore(tmp_path).append([asked, runs[0]])
    assert [line["call"] for line in score(checkpoint, tmp_path)] == [answered.calls[0].id]
    flagged, *told = CliRunner().invoke(main, ["score", str(checkpoint.path), str(tmp_path)]).stderr.splitlines()
    assert flagged.startswith("flagged ")
    assert [line.split(" call ")[1].split()[:2] for line in told] == [
        ["that", "state"],
        ["without", "log-probabilities"],
    ]
    assert [line["call"] for line in score(checkpoint, tmp_path, "--stage", "confidence")] == [said.id]
    other = replace(answered.calls[0], id=f"{answered.id}/review", stage="review")
    stated = (Statement(answered.calls[0].id, "confidence", 1.0),)
    RunStore(tmp_path / "own").append([replace(answered, id="own", calls=(*answered.calls, other), statements=stated)])
    assert len(score(checkpoint, tmp_path / "own")) == 2, "an answer that states its own confidence is one"


def test_an_answer_that_cannot_be_scored_costs_its_own_line(
    checkpoint: Checkpoint, runs: list[Run], tmp_path: Path
) -> None:
    other = replace(runs[1].calls[0], id="other", model="c")
    RunStore(tmp_path).append([*runs, replace(runs[1], id="of another model", calls=(other,))])
    done = CliRunner().invoke(
        main, ["score", str(checkpoint.path), str(tmp_path), "--on-mismatch", "refuse"], catch_exceptions=False
    )
    lines = {line["call"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert lines["other"]["score"] is None
    assert "response of 'c'" in lines["other"]["reason"]
    assert all(line["score"] is not None for call, line in lines.items() if call != "other")
    assert f"scored {len(lines) - 1} of {len(lines)} lines" in done.stderr
    assert done.exit_code == 0


def test_what_can_score_no_store_is_named(checkpoint: Checkpoint, runs: list[Run], tmp_path: Path) -> None:
    RunStore(tmp_path / "bare").append(runs[:1])
    lines = tmp_path / "lines.jsonl"
    lines.write_text("{}\n", encoding="utf-8")
    for given, store, said in (
        (checkpoint.path, tmp_path / "bare", "holds no answer with log-probabilities"),
        ("bundled:gate", tmp_path / "bare", "expected 'quality' or 'blend'"),
        ("bundled:smollm2-135m-confidence", lines, "give a run store"),
        (checkpoint.path, tmp_path, "is no run store"),
    ):
        done = CliRunner().invoke(main, ["score", str(given), str(store)])
        assert done.exit_code != 0
        assert said in f"{done.output}{done.exception}"
