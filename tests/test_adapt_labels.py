"""Labels as they come: refusals among them, copies, numbers that stand for unknown ones, groups of one kind."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logged_answers import answers, stored, trained
from made_once import MadeOnce

from metaprobe.eval.metrics.ranked import auroc
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import ImportFileError, RecordError
from metaprobe.records.store import RunStore
from metaprobe.training.adapt import adapt_quality
from metaprobe.training.training_options import LineOptions

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")


@pytest.fixture(scope="module")
def base(made_once: MadeOnce) -> QualityPredictor:
    """For strangers: a free number of two models that are right half of the time."""
    parts = {"a": (250, 0.45), "b": (250, 0.55)}
    return QualityPredictor.load(trained(parts, made_once, new_tasks=True))


def line(i: int, values: Sequence[float], label: int, part: str = "content", **known: Any) -> str:
    message = {"content": "t" * len(values)} if part == "content" else {"content": None, "refusal": "No."}
    logprobs = {part: [{"token": "t", "logprob": value} for value in values]}
    choice = {"message": message, "finish_reason": "stop", "logprobs": logprobs}
    answer = {"model": "mine", "choices": [choice]}
    return json.dumps({"id": f"i{i}", "response": answer, "labels": {"correct": label}, **known}) + "\n"


def test_labelled_refusals_are_not_learned_from_and_said(base: QualityPredictor, tmp_path: Path) -> None:
    series, y = answers(80, seed=8, right=0.8)
    kept = [line(i, values, int(label)) for i, (values, label) in enumerate(zip(series, y, strict=True))]
    refused = [line(100 + i, [-1e-4 * (j + 1) for j in range(12)], 0, "refusal") for i in range(40)]
    for name, lines in (("kept", kept), ("both", kept + refused)):
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    plain = adapt_quality(base.checkpoint.path, [tmp_path / "kept.jsonl"], out=tmp_path / "plain")
    with pytest.warns(UserWarning, match="40 labelled refusals and tool calls are left out"):
        mixed = adapt_quality(base.checkpoint.path, [tmp_path / "both.jsonl"], out=tmp_path / "mixed")
    assert mixed.manifest.training.n == 80
    fresh = answers(50, seed=9)[0]
    scores = [[v.score for v in QualityPredictor(made).predict_many(fresh)] for made in (plain, mixed)]
    assert scores[0] == pytest.approx(scores[1])


@pytest.mark.parametrize("by", ["model", "task"])
def test_runs_of_one_kind_each_are_adapted_to(by: str, base: QualityPredictor, tmp_path: Path) -> None:
    """An order within runs cannot be measured if no run has both kinds."""
    series, _ = answers(60, seed=8)
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(line(i, values, i % 2, **{by: f"name-{i % 2}"}) for i, values in enumerate(series)))
    made = adapt_quality(base.checkpoint.path, [path], out=tmp_path / "mine")
    assert made.manifest.metrics.keys().isdisjoint({"auroc_within_runs"})
    assert len(QualityPredictor(made).runs) == 2


def test_a_copy_of_an_answer_buys_no_promise(base: QualityPredictor, tmp_path: Path) -> None:
    series, y = answers(12, seed=3, right=0.5)
    assert 4 <= sum(y == 0) < 9, "too few for a flag"
    made = base.adapt(series * 5, np.tile(y, 5), out=tmp_path / "mine").checkpoint
    assert "flag" not in made.manifest.thresholds
    assert made.manifest.training.groups == 12
    assert "60 groups were joined into 12, for they hold answers that agree" in made.manifest.training.regrouped
    apart = base.adapt(answers(60, seed=4, right=0.5)[0], answers(60, seed=4, right=0.5)[1], out=tmp_path / "apart")
    assert "flag" in apart.checkpoint.manifest.thresholds
    assert apart.checkpoint.manifest.training.regrouped == ""


def test_the_order_of_one_run_is_measured_as_it_is_however_groups_fall(base: QualityPredictor, tmp_path: Path) -> None:
    """All wrong answers in one group: each fold has another base rate, and the order is that of before all the same."""
    series, y = answers(60, seed=5, right=0.6)
    groups = ["wrong" if not label else None for label in y]
    mine = base.adapt(series, y, groups=groups, out=tmp_path / "mine").checkpoint.manifest
    before = np.array([verdict.score for verdict in base.predict_many(series)])
    assert mine.metrics["auroc"].estimate == pytest.approx(float(auroc(y, before)), abs=1e-6)
    assert mine.training.groups == 1 + int(y.sum()), "None is a group of its own"
    shares = [(point.rate, point.caught.estimate) for point in mine.flagging]
    assert shares == sorted(shares)
    wrong = int((y == 0).sum())
    assert all(caught <= rate * len(y) / wrong + 1 / wrong for rate, caught in shares), "more than were flagged"
    assert len({caught for _, caught in shares}) > 5


def test_one_group_alone_is_refused_in_words(base: QualityPredictor, tmp_path: Path) -> None:
    series, y = answers(60, seed=5, right=0.6)
    with pytest.raises(RecordError, match="all 60 labelled answers are of one group; expected several"):
        base.adapt(series, y, groups=["q"] * 60, out=tmp_path / "mine")
    base.adapt(series, y, groups=[f"q{i % 2}" for i in range(60)], out=tmp_path / "mine")


def test_numbers_that_stand_for_unknown_ones_are_counted(base: QualityPredictor, tmp_path: Path) -> None:
    series, y = answers(60, seed=5, right=0.6)
    spoilt = [[*values[:-1], -9999.0] if i % 6 == 0 else values for i, values in enumerate(series)]
    with pytest.warns(UserWarning, match="10 of 60 labelled answers hold a log-probability of -1000 or lower"):
        base.adapt(spoilt, y, out=tmp_path / "mine")


def test_answers_whose_numbers_stand_for_none_are_not_learned_from(base: QualityPredictor, tmp_path: Path) -> None:
    series, y = answers(60, seed=5, right=0.6)
    spoilt = [[-0.25] * 8 if i % 6 == 0 else values for i, values in enumerate(series)]
    with pytest.warns(UserWarning, match="10 labelled answers are left out: their log-probabilities are all 0"):
        made = base.adapt(spoilt, y, out=tmp_path / "mine").checkpoint
    assert made.manifest.training.n == 50


def test_labels_against_the_scores_are_said(base: QualityPredictor, tmp_path: Path) -> None:
    series, y = answers(200, seed=5, right=0.5)
    with pytest.warns(UserWarning, match="correct: answers with higher scores are not right more often here"):
        made = base.adapt(series, 1 - y, out=tmp_path / "mine").checkpoint
    assert "are not right more often here" in (Path(made.path) / "README.md").read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        base.adapt(series, y, out=tmp_path / "right")


def test_a_promise_over_several_runs_says_that_it_is_for_all_together(base: QualityPredictor, tmp_path: Path) -> None:
    store = stored(tmp_path / "runs", {"low": (80, 0.3), "high": (80, 0.8)}, seed=300)
    said = "It is one threshold for the answers of all these runs together"
    adapt_quality(base.checkpoint.path, [store], out=tmp_path / "both")
    assert said in (tmp_path / "both" / "README.md").read_text()
    alone = RunStore(tmp_path / "alone")
    alone.append([run for run in RunStore(store) if run.calls[0].model == "low"])
    adapt_quality(base.checkpoint.path, [alone.path], out=tmp_path / "one")
    assert said not in (tmp_path / "one" / "README.md").read_text()


def test_answers_of_one_stage_are_adapted_to_where_it_is_named(base: QualityPredictor, tmp_path: Path) -> None:
    store = RunStore(stored(tmp_path / "runs", {"m": (80, 0.6)}, seed=7))
    runs = [
        replace(run, calls=tuple(replace(call, stage="draft") for call in run.calls)) if place % 2 else run
        for place, run in enumerate(store)
    ]
    halves = RunStore(tmp_path / "halves")
    halves.append(runs)
    adapted = adapt_quality(base.checkpoint.path, [halves.path], out=tmp_path / "mine", stage="answer")
    assert adapted.manifest.training.n == 40
    with pytest.raises(RecordError, match=r"stage absent .* expected one of the stages answer, draft"):
        adapt_quality(base.checkpoint.path, [halves.path], out=tmp_path / "none", stage="absent")


def test_one_line_that_cannot_be_read_is_named_and_left_out(base: QualityPredictor, tmp_path: Path) -> None:
    series, y = answers(60, seed=5, right=0.6)
    lines = [line(i, values, int(label)) for i, (values, label) in enumerate(zip(series, y, strict=True))]
    lines[7] = lines[7].replace('"logprob":', '"logprob":"high"+')
    path, kept = tmp_path / "lines.jsonl", tmp_path / "bad.jsonl"
    path.write_text("".join(lines))
    with pytest.raises(ImportFileError, match=r"lines\.jsonl:8: not JSON"):
        adapt_quality(base.checkpoint.path, [path], out=tmp_path / "mine", lines=LineOptions(strict=True))
    with pytest.warns(UserWarning, match=r"1 of 60 lines of .*\n  1 x .*lines\.jsonl:8: not JSON"):
        made = adapt_quality(base.checkpoint.path, [path], out=tmp_path / "mine", lines=LineOptions(bad=kept))
    assert made.manifest.training.n == 59
    assert kept.read_text() == lines[7]


def test_lines_without_log_probabilities_are_left_out_and_counted(base: QualityPredictor, tmp_path: Path) -> None:
    series, y = answers(60, seed=5, right=0.6)
    lines = [line(i, values, int(label)) for i, (values, label) in enumerate(zip(series, y, strict=True))]
    bare = [one.replace('"logprobs": {"content"', '"other": {"content"') for one in lines]
    path = tmp_path / "lines.jsonl"
    path.write_text("".join([*lines[:7], *bare[7:9], *lines[9:]]))
    with pytest.warns(UserWarning, match=r"2 of 60 lines of .* left out: they hold no log-prob.* \(first: line 8\)"):
        made = adapt_quality(base.checkpoint.path, [path], out=tmp_path / "mine")
    assert made.manifest.training.n == 58
    path.write_text("".join(bare))
    with pytest.raises(ImportFileError, match=r"lines\.jsonl:1: the response holds no log-probabilities"):
        adapt_quality(base.checkpoint.path, [path], out=tmp_path / "none")


def test_labels_that_are_no_numbers_and_no_labels_at_all_are_named(base: QualityPredictor, tmp_path: Path) -> None:
    series, _ = answers(60, seed=5)
    with pytest.raises(RecordError, match="cannot be read as numbers"):
        base.adapt(series, ["yes"] * 60, out=tmp_path / "mine")
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(line(i, values, 1) for i, values in enumerate(series)).replace('"correct": 1', ""))
    with pytest.raises(RecordError, match=r'hold no labels; .* as "labels": \{"correct": 1\}'):
        adapt_quality(base.checkpoint.path, [path], out=tmp_path / "mine")
