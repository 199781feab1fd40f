"""A quality predictor that learns from decisions: which question tells, what is missing, and a real recorded judge."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from outside_rows import DATA
from stored_runs import example

import metaprobe
from metaprobe.checkpoints import ContractMismatch
from metaprobe.cli import main
from metaprobe.eval.compare import method_results
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.eval.report.words import brief
from metaprobe.probes.decision_predictor import DecisionPredictor, decision_columns
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import DecisionAnswer, Item, Label, Run
from metaprobe.training.evidence import load_evidence
from metaprobe.training.methods import DECISIONS
from metaprobe.training.study import crossfit, decision_methods
from metaprobe.training.training_options import WrongOptions
from research.decisions.served import rubric_runs

JUDGE = "luna@luna-1"
LEVELS = ("low", "mid", "high")


def said(call_id: str, y: int, rng: np.random.Generator, *, sure: float = 1.5) -> tuple[DecisionAnswer, ...]:
    """A predicate that knows nothing, and a score whose middle level alone tells: its expectation does not."""
    of = {"call_id": call_id, "source": JUDGE}
    middle = 1 / (1 + np.exp(-rng.normal((2 * y - 1) * sure, 1.0)))
    low = (1 - middle) * rng.uniform(0.3, 0.7)
    shares = (low, middle, 1 - middle - low)
    return (
        DecisionAnswer(**of, question="kind", kind="predicate", value=float(rng.uniform())),
        DecisionAnswer(
            **of,
            question="tone",
            kind="score",
            value=float(shares[1] + 2 * shares[2]),
            options=LEVELS,
            probabilities=tuple(map(float, shares)),
        ),
        DecisionAnswer(**of, question="never", kind="refusal", reason="luna refused to answer"),
    )


def judged(i: int, rng: np.random.Generator, *, bare: bool = True) -> Run:
    y = int(rng.integers(0, 2))
    item = Item(f"item-{i}", f"question {i} of {rng.integers(0, 10**9)}", group=f"g{i}")
    label = Label(f"call-{i}", "correct", float(y), "human")
    run = replace(example(i), item=item, labels=(label,), decision_answers=said(f"call-{i}", y, rng))
    if i % 10 == 0:  # a score without its levels
        kind, tone, never = run.decision_answers
        tone = replace(tone, options=(), probabilities=(), reason="no probabilities came")
        run = replace(run, decision_answers=(kind, tone, never))
    return replace(run, calls=tuple(replace(c, tokens=(), logprobs=None) for c in run.calls)) if bare else run


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, rng = tmp_path_factory.mktemp("judged") / "runs", np.random.default_rng(0)
    RunStore(path).append([judged(i, rng) for i in range(240)])
    return path


@pytest.fixture(scope="module")
def trained(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("checkpoints") / "decided"
    told = CliRunner().invoke(main, ["train", "quality", str(store), "--reads", "decisions", "--out", str(out)])
    assert told.exit_code == 0, told.output
    return out


def test_it_learns_from_the_level_that_tells_and_says_what_it_left_out(trained: Path) -> None:
    predictor = metaprobe.load(trained)
    assert isinstance(predictor, DecisionPredictor)
    manifest, card = predictor.checkpoint.manifest, (trained / "README.md").read_text()
    assert manifest.metrics["auroc"].low > 0.8
    assert manifest.contract["judges"] == [JUDGE]
    assert "tone=mid" in manifest.contract["features"]
    assert "never" not in " ".join(manifest.contract["features"])
    assert "question never is left out" in card
    assert "24 of 240 labelled answers are left out" in card
    assert "all numbers of the decisions" in card


def test_it_is_held_against_the_expected_level_and_the_probability_that_it_read(trained: Path) -> None:
    audits = (trained / "README.md").read_text().partition("## Audits")[2]
    assert "passed: learned on decisions beats decision tone" in audits
    assert "passed: learned on decisions beats decision kind" in audits


def overconfident(path: Path, count: int) -> Path:
    """Writes lines of a judge that is too sure: `correct` tells, `complete` tells less, `polite` nothing."""
    rng, lines = np.random.default_rng(3), []
    for i in range(count):
        truth = rng.normal(0.3, 1.4)
        log_odds = {
            "correct": 2.2 + 0.5 * truth + rng.normal(0, 0.3),
            "complete": 1 + 0.4 * truth + rng.normal(0, 0.8),
        }
        log_odds["polite"] = rng.normal(2, 1)
        answers = [{"type": "predicate", "name": n, "probability": 1 / (1 + np.exp(-v))} for n, v in log_odds.items()]
        line = {"id": f"a{i}", "group": f"q{i}", "question": f"Question {i}?", "answer": f"Answer {i}."}
        line |= {"decisions": {"model": "rigged-judge", "answers": answers}}
        lines.append(line | {"labels": {"correct": int(rng.uniform() < 1 / (1 + np.exp(-truth)))}})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(("count", "alike"), [(150, 3), (300, 5)])
def test_a_predictor_that_is_the_judges_own_number_is_level_with_it_whatever_its_folds_reached(
    count: int, alike: int, tmp_path: Path
) -> None:
    lines = overconfident(tmp_path / "lines.jsonl", count)
    made = metaprobe.train_quality([lines], out=tmp_path / "out", reads="decisions")
    answers = [json.loads(line) for line in lines.read_text().splitlines()]
    raw = [line["decisions"]["answers"][0]["probability"] for line in answers]
    right = [line["labels"]["correct"] for line in answers]
    card, own = (tmp_path / "out/README.md").read_text(), auroc(right, raw)
    assert made.manifest.contract["features"] == ["correct"]
    assert f"{alike} of 5 folds reached the same step by themselves; the order is that of decision correct" in card
    assert made.manifest.metrics["auroc"].estimate == pytest.approx(own, abs=0.02), "over pairs of one fold"
    assert "- passed: learned on decisions is decision correct, calibrated: level, difference 0.000" in card
    assert "beats decision correct" not in card, "a number does not fail for not beating itself"
    given = np.mean((np.array(raw) - right) ** 2)
    assert f"of the number correct: {given:.3f} [" in card
    told = card.partition("of the number correct: ")[2].partition("\n")[0].split("; ")
    stated, calibrated, constant = (float(one.partition(" ")[0]) for one in told)
    assert calibrated < constant < stated


def test_inspect_names_the_judge_of_a_store_of_decisions(store: Path) -> None:
    shown = CliRunner().invoke(main, ["inspect", str(store)]).output
    assert f"decided     kind by {JUDGE} 240, tone by {JUDGE} 240\n" in shown


def test_a_stored_run_is_scored_and_what_is_missing_is_refused_by_name(trained: Path, store: Path) -> None:
    told = CliRunner().invoke(main, ["score", str(trained), str(store)])
    assert told.exit_code == 0, told.output
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    runs = {run.id: run for run in RunStore(store).runs()}
    y = np.array([runs[line["id"]].label("correct", line["call"]) for line in lines])
    known = np.array([line["score"] is not None for line in lines])
    assert (len(lines), int((~known).sum())) == (240, 24)
    scores = np.array([line["score"] for line in lines if line["score"] is not None])
    assert scores[y[known] == 1].mean() > scores[y[known] == 0].mean() + 0.3
    refused = next(line["reason"] for line in lines if line["score"] is None)
    assert "lacks tone (no probabilities came)" in refused


def test_a_decision_of_the_client_is_scored_and_one_of_another_judge_or_without_a_question_is_not(
    trained: Path,
) -> None:
    levels = [
        {"value": i, "label": name, "probability": p}
        for i, (name, p) in enumerate(zip(LEVELS, (0.1, 0.8, 0.1), strict=True))
    ]
    tone = {"type": "score", "name": "tone", "score": 1.0, "confidence": 0.8, "probabilities": levels}
    kind = {"type": "predicate", "name": "kind", "probability": 0.5}
    decision = {"model": JUDGE, "answers": [kind, tone]}
    predictor = DecisionPredictor.load(trained)
    sure = predictor.predict(json.dumps(decision))
    assert sure.score > 0.7
    assert sure.reason == ""
    with pytest.warns(UserWarning, match="decisions of 'vega'"):
        assert "decisions of 'vega'" in predictor.predict(decision | {"model": "vega"}).reason
    with pytest.raises(ContractMismatch, match="vega"):
        metaprobe.QualityPredictor.load(trained, on_mismatch="refuse").predict(decision | {"model": "vega"})
    for answers, words in (([kind], "lacks tone"), ([kind, {"type": "refusal", "name": "tone"}], "refused to answer")):
        with pytest.raises(InvalidResponse, match=words):
            predictor.predict(decision | {"answers": answers})
    with pytest.raises(InvalidResponse, match="no list of answers"):
        predictor.predict({"choices": []})


def test_labels_of_another_place_move_its_base_rate_and_keep_its_order(trained: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    runs = [judged(i, rng) for i in range(1, 160) if i % 10]
    hard = [replace(r, labels=(replace(r.labels[0], value=r.labels[0].value * (i % 2)),)) for i, r in enumerate(runs)]
    RunStore(tmp_path / "runs").append(hard)
    told = CliRunner().invoke(main, ["adapt", str(trained), str(tmp_path / "runs"), "--out", str(tmp_path / "there")])
    assert told.exit_code == 0, told.output
    here, there = DecisionPredictor.load(trained), metaprobe.load(tmp_path / "there")
    assert isinstance(there, DecisionPredictor)
    answers = [run.decisions_about(run.calls[0].id) for run in hard]
    before, after = ([v.score for v in p.predict_many(answers)] for p in (here, there))
    assert np.argsort(before).tolist() == np.argsort(after).tolist()
    share = np.mean([run.labels[0].value for run in hard])
    assert abs(np.mean(after) - share) < 0.05 < abs(np.mean(before) - share)
    again = here.adapt(answers, [run.labels[0].value for run in hard], out=tmp_path / "by-hand")
    assert again.predict(answers[0]).score == pytest.approx(after[0], abs=1e-6)


def test_answers_without_decisions_and_options_of_log_probabilities_are_refused(tmp_path: Path) -> None:
    RunStore(tmp_path / "runs").append(
        [replace(example(i), labels=(Label(f"call-{i}", "correct", i % 2.0, "human"),)) for i in range(40)]
    )
    with pytest.raises(RecordError, match="metaprobe judge"):
        metaprobe.train_quality([tmp_path / "runs"], out=tmp_path / "out", reads="decisions")
    with pytest.raises(WrongOptions, match="new_tasks"):
        metaprobe.train_quality([tmp_path / "runs"], out=tmp_path / "out", reads="decisions", new_tasks=True)


def test_refusals_of_answers_with_decisions_name_the_way_to_read_them_and_no_log_probabilities(tmp_path: Path) -> None:
    judged = overconfident(tmp_path / "judged.jsonl", 150)
    with pytest.raises(RecordError, match="train quality --reads decisions"):
        metaprobe.train_quality([judged], out=tmp_path / "out")
    lines = [json.loads(line) | {"labels": {}} for line in judged.read_text().splitlines()]
    (tmp_path / "unlabelled.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RecordError, match="150 calls have no such label") as refused:
        metaprobe.train_quality([tmp_path / "unlabelled.jsonl"], out=tmp_path / "out", reads="decisions")
    assert "log-prob" not in str(refused.value)


def test_a_panel_keeps_the_answer_that_the_decision_model_is_surer_of(tmp_path: Path) -> None:
    """Two samples a question; what the judge says tells which one is right, and nothing else does."""
    rng = np.random.default_rng(0)

    def line(question: int, sample: int) -> dict[str, object]:
        right = int(rng.integers(0, 2))
        sure = float(1 / (1 + np.exp(-rng.normal(3 * right - 1.5, 1.0))))
        said = {"choices": [{"message": {"content": f"It is {42 if right else sample}"}, "finish_reason": "stop"}]}
        decision = {"model": JUDGE, "answers": [{"type": "predicate", "name": "right", "probability": sure}]}
        of = {"id": f"{question}/{sample}", "question_id": f"q{question}", "response": said, "decisions": decision}
        return {**of, "agent": "m", "labels": {"correct": right}}

    lines = [line(question, sample) for question in range(160) for sample in range(2)]
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in lines))
    training = ["train", "panel", str(file), "--same", "number", "--out", str(tmp_path / "panel")]
    told = CliRunner().invoke(main, [*training, "--score-by", "right"])
    assert told.exit_code == 0, told.output
    new = [line(question, sample) for question in range(200, 300) for sample in range(2)]
    del new[0]["decisions"]
    file.write_text("".join(json.dumps(one) + "\n" for one in new))
    told = CliRunner().invoke(main, ["score", str(tmp_path / "panel"), str(file)])
    kept = [json.loads(one) for one in told.stdout.splitlines()]
    right = {one["id"]: one["labels"]["correct"] for one in new}
    mixed = [one for one in kept if {right[f"{one['id'][1:]}/{sample}"] for sample in range(2)} == {0, 1}]
    assert np.mean([right[one["kept"]] for one in mixed]) > 0.8
    assert "no number of the decision 'right'" in kept[0]["reason"]
    refused = CliRunner().invoke(main, [*training[:-1], str(tmp_path / "other"), "--score-by", "wrong"])
    assert "no answer of" in refused.output


RUBRIC = DATA / "llm_rubric_judge" / "data.jsonl"


@pytest.mark.slow
@pytest.mark.skipif(not RUBRIC.is_file(), reason="LLM-Rubric's data are not on this machine")
def test_on_ratings_of_people_it_learns_and_says_that_the_rater_is_most_of_it(tmp_path: Path) -> None:
    """The rater is the way of asking, and so a run of its own with its own base rate."""
    RunStore(tmp_path / "runs").append(rubric_runs(RUBRIC, "synth"))
    made = metaprobe.train_quality([tmp_path / "runs"], out=tmp_path / "out", reads="decisions")
    metrics = made.manifest.metrics
    assert metrics["auroc"].low > 0.6
    assert metrics["auroc_within_runs"].low > 0.5
    assert metrics["auroc_of_run_identity"].low > 0.6
    assert metrics["auroc_gain_over_strongest_control"].low < 0
    assert "beats run identity" in (tmp_path / "out" / "README.md").read_text().partition("## Contract")[0]


# Answers of decision models are a family of their own in a comparison, which learns which question tells.


def test_levels_give_entropy_and_margin_and_what_is_unknown_stays_unknown() -> None:
    told = {"tone": 1.2, "tone=low": 0.1, "tone=mid": 0.6, "tone=high": 0.3}
    names, values = decision_columns([told, {"tone": 1.0, "tone=low": 0.2, "tone=mid": None}, {}])
    row = dict(zip(names, values[0].tolist(), strict=True))
    assert row["tone.entropy"] == pytest.approx(-sum(p * np.log(p) for p in (0.1, 0.6, 0.3)), abs=1e-6)
    assert row["tone.margin"] == pytest.approx(0.3)
    assert np.isnan(values[1, names.index("tone.margin")])
    assert np.isnan(values[2]).all()


def test_a_comparison_learns_the_question_that_tells_and_says_where_none_was_answered(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def run(i: int) -> object:
        y, said = int(rng.integers(0, 2)), []
        for name, width in (("sound", 1.0), ("kind", 0.0)):
            p = float(1 / (1 + np.exp(-rng.normal(width * (2 * y - 1) * 1.5, 1.0))))
            said.append(DecisionAnswer(call_id=f"call-{i}", question=name, source="judge", kind="predicate", value=p))
        if i % 8 == 0:
            said = []
        item = Item(f"item-{i}", f"question {i} of {rng.integers(0, 10**9)}", group=f"g{i}")
        label = Label(f"call-{i}", "correct", float(y), "program")
        return replace(example(i), item=item, labels=(label,), decision_answers=tuple(said))

    RunStore(tmp_path).append([run(i) for i in range(240)])
    evidence = load_evidence([tmp_path])
    fits = crossfit(evidence, decision_methods(evidence))
    results = {result.name: result for result in method_results(evidence.table, fits.methods, resamples=200)}
    assert {result.family for result in results.values()} == {"decision"}
    assert results[DECISIONS].auroc.low > 0.8
    assert results["decision kind"].auroc.high < 0.65
    assert results[DECISIONS].calibrated_control == "decision sound", "what it is, and so is not held against"
    assert {one.name.removesuffix(", reversed") for one in results[DECISIONS].controls.controls} == {"decision kind"}
    assert results[DECISIONS].auroc == results["decision sound"].auroc
    assert results["decision sound"].controls is None
    assert all(result.coverage == 210 / 240 for result in results.values())
    right = {one.call_id: one.value for run in RunStore(tmp_path).runs() for one in run.labels}
    said = [one for run in RunStore(tmp_path).runs() for one in run.decision_answers if one.question == "sound"]
    given = results["decision sound"].stated
    assert given is not None
    assert given.brier.estimate == pytest.approx(np.mean([(one.value - right[one.call_id]) ** 2 for one in said]))
    assert (given.brier.n, given.ece.n) == (210, 210)
    assert results[DECISIONS].stated is None  # what is learned is no number that somebody gave


@pytest.mark.parametrize("asked", [pytest.param("right", marks=pytest.mark.slow), "wrong"])
def test_numbers_of_a_judge_are_shown_as_given_and_recalibrated(asked: str, tmp_path: Path) -> None:
    """A judge that is too sure of P(right), or of P(wrong), which is then read as 1 - p; and a level is no number."""
    rng, runs, brier = np.random.default_rng(1), list[Run](), list[float]()
    for i in range(200):
        y = int(rng.integers(0, 2))
        p = 0.99 if rng.uniform() < (0.8 if y else 0.4) else 0.3
        brier.append((p - y) ** 2)
        call, value = f"call-{i}", p if asked == "right" else 1 - p
        said = [DecisionAnswer(call_id=call, question=asked, source="judge", kind="predicate", value=value)]
        levels, shares = ("low", "high"), (high := float(rng.uniform()), 1 - high)
        more = {"kind": "score", "value": shares[1], "options": levels, "probabilities": shares}
        said.append(DecisionAnswer(call_id=call, question="level", source="judge", **more))
        item = Item(f"item-{i}", f"question {i} of {rng.integers(0, 10**9)}", group=f"g{i}")
        label = (Label(call, "correct", float(y), "program"),)
        runs.append(replace(example(i), item=item, labels=label, decision_answers=tuple(said)))
    RunStore(tmp_path / "runs").append(runs)
    compared = metaprobe.compare([tmp_path / "runs"], out=tmp_path / "out")
    name = "decision right" if asked == "right" else "decision wrong, reversed"
    judge = next(one for one in compared.methods if one.name == name)
    assert judge.stated is not None
    assert judge.stated.brier.estimate == pytest.approx(np.mean(brier), abs=1e-6)
    assert judge.stated.ece.estimate > judge.ece.estimate + 0.1
    assert next(one for one in compared.methods if one.name == "decision level").stated is None
    with (tmp_path / "out/tables/methods.csv").open(encoding="utf-8", newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["method"] == name)
    assert float(row["brier_stated"]) == pytest.approx(np.mean(brier), abs=1e-6)
    assert float(row["brier"]) < float(row["brier_stated"])
    (told,) = [line for line in brief(compared).found if line.startswith(f"D{name[1:]} is")]
    assert f"{judge.stated.ece.estimate:.2f} as stated, {judge.ece.estimate:.2f} recalibrated" in told
    assert f"Brier score {np.mean(brier):.2f} and {judge.brier.estimate:.2f}" in told
