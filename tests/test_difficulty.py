"""Difficulty as a number: success rates and graded levels, predicted from the prompt's states."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from conftest import made_up

from metaprobe.eval.metrics.ordinal import spearman
from metaprobe.probes.hidden import DifficultyProbe
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.training.evidence import Evidence
from metaprobe.training.recipes.difficulty import (
    difficulty_audits,
    ease_of,
    ease_of_levels,
    evaluate_difficulty,
    item_folds,
    train_difficulty,
)
from metaprobe.training.states import InMemory


def sampled(items: int = 400, samples: int = 6, seed: int = 0) -> Evidence:
    """Items answered several times each; one direction of layer 2 before the answer knows their success rate."""
    rng = np.random.default_rng(seed)
    evidence = made_up(items * samples, seed=seed)
    item = np.repeat(np.arange(items), samples)
    ease = rng.normal(size=items)
    hidden = rng.normal(size=(items, 3, 2, 12))
    hidden[:, 2, 0, 5] += 2 * ease
    levels = np.where(ease < -0.5, "5 digits", np.where(ease < 0.5, "3 digits", "1 digits"))
    table = dataclasses.replace(
        evidence.table,
        items=np.char.add("i", item.astype(str)),
        groups=np.char.add("g", item.astype(str)),
        y=(rng.uniform(size=len(item)) < 1 / (1 + np.exp(-1.5 * ease[item]))).astype(np.int64),
        questions=np.char.add("question ", item.astype(str)),
        levels=levels[item],
    )
    states = Activations(
        tuple(table.call_ids.tolist()), hidden[item].astype(np.float16), (0, 1, 2), ("prompt_last", "answer_last")
    )
    return dataclasses.replace(evidence, table=table, states=InMemory(states))


def test_the_success_rate_is_that_of_an_items_samples() -> None:
    evidence = sampled(items=30, samples=4)
    items = ease_of(evidence.table, "success-rate")
    assert len(items) == 30
    assert items.samples.tolist() == [4] * 30
    for ease, row in zip(items.ease, items.rows, strict=True):
        assert ease == evidence.table.y[evidence.table.items == evidence.table.items[row]].mean()


def test_levels_are_ordered_by_their_number_or_their_name() -> None:
    assert ease_of_levels(["3 digits", "1 digits", "12 digits"]).tolist() == [0.5, 1.0, 0.0]
    assert ease_of_levels(["hard", "easy", "medium"]).tolist() == [0.0, 1.0, 0.5]
    assert ease_of_levels(["popularity 0", "popularity 9"]).tolist() == [0.0, 1.0]
    with pytest.raises(RecordError, match="cannot be ordered"):
        ease_of_levels(["north", "south"])


@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")  # the level table knows the ease too
@pytest.mark.parametrize("target", ["success-rate", "level"])
def test_a_planted_difficulty_is_found_and_exported(target: str, tmp_path: Path) -> None:
    evidence = sampled()
    checkpoint, found = train_difficulty(tmp_path / "d", evidence, target=target, command="test")
    by_name = {ranked.name: ranked for ranked in found}
    assert by_name["probe"].spearman.estimate > 0.65
    for name in ("prompt TF-IDF", "length of the prompt", "stated ease"):
        assert abs(by_name[name].spearman.estimate) < 0.2
        assert by_name[name].gain is not None
        assert by_name[name].gain.low > 0
    assert checkpoint.manifest.contract["layer"] == 2
    assert checkpoint.manifest.contract["position"] == "prompt_last"
    audits = checkpoint.manifest.audits
    for name in ("splits share no group", "no question in two roles", "no near-duplicate questions"):
        assert audits[name].passed
    card = (tmp_path / "d" / "README.md").read_text()
    assert "- not made: class balance, shuffled labels, random features" in card
    why = "needs 30 answers" if target == "success-rate" else "the levels come with the items"
    assert f"- not made: label noise: {why}" in card
    probe = DifficultyProbe.load(tmp_path / "d")
    states = evidence.states
    assert states is not None
    ease = probe.probability(states.read(2, "prompt_last").astype(np.float32))
    right = np.array([evidence.table.y[evidence.table.items == item].mean() for item in evidence.table.items])
    assert spearman(right, ease) > 0.65


def test_shuffled_difficulty_is_not_found() -> None:
    evidence = sampled()
    items = ease_of(evidence.table, "success-rate")
    shuffled = dataclasses.replace(items, ease=np.random.default_rng(1).permutation(items.ease))
    [probe, *_] = evaluate_difficulty(evidence, shuffled)
    assert probe.spearman.low < 0 < probe.spearman.high


def test_items_that_are_all_alike_are_refused() -> None:
    evidence = sampled(items=30)
    with pytest.raises(RecordError, match="nothing to order"):
        ease_of(dataclasses.replace(evidence.table, y=np.ones(len(evidence.table), dtype=np.int64)), "success-rate")
    with pytest.raises(RecordError, match="expected 'success-rate' or 'level'"):
        ease_of(evidence.table, "hardness")


def test_a_store_without_texts_is_judged_by_what_is_left() -> None:
    evidence = sampled(items=120)
    silent = dataclasses.replace(evidence.table, questions=np.full(len(evidence.table), ""))
    items = ease_of(silent, "success-rate")
    found = {ranked.name for ranked in evaluate_difficulty(dataclasses.replace(evidence, table=silent), items)}
    assert found == {"probe", "level table", "stated ease"}


def test_questions_that_stand_under_several_groups_are_a_leak() -> None:
    evidence = sampled(items=120)
    repeated = np.array([f"question {int(item[1:]) // 2}" for item in evidence.table.items])
    leaking = dataclasses.replace(evidence, table=dataclasses.replace(evidence.table, questions=repeated))
    items = ease_of(evidence.table, "success-rate")
    report = difficulty_audits(leaking, items.rows, item_folds(leaking, items), labels=True)
    failed = {audit.name: audit.severity for audit in report.audits if not audit.passed}
    assert failed == {"no question in two roles": "invalid", "no near-duplicate questions": "invalid"}


def test_sources_that_disagree_on_answers_are_told_of_a_success_rate_and_not_of_a_level() -> None:
    evidence = sampled(items=60)
    y = evidence.table.y.astype(np.float64)
    disputed = dataclasses.replace(evidence, labels_by_source={"judge:a": y, "judge:b": np.roll(y, 7)})
    items = ease_of(evidence.table, "success-rate")
    splits = item_folds(disputed, items)
    rate, level = (difficulty_audits(disputed, items.rows, splits, labels=labels) for labels in (True, False))
    assert "judge:a and judge:b agree" in {audit.name for audit in rate.audits if not audit.passed}
    assert not any("agree" in audit.name for audit in level.audits)
    assert any("label noise" in line for line in level.skipped)
