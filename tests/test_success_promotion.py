"""`metaprobe promote` for estimators of P(success): better by log loss on outcomes that neither version has seen."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_once import MadeOnce
from test_commands import run

from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.routing.success_estimator import SuccessEstimator
from metaprobe.training.recipes.train_success import train_success
from metaprobe.training.success_options import SuccessOptions
from metaprobe.training.versions import Promotion, SuccessPromotion

TODAY, BEFORE = {"small": 0.8, "large": 0.9}, {"small": 0.3, "large": 0.9}
"""Rates of right answers: the small candidate has become better."""


def drawn(rates: dict[str, float], n: int, seed: int) -> list[QuestionOutcomes]:
    rng = np.random.default_rng(seed)
    return [
        QuestionOutcomes(
            f"{seed}-{i}",
            f"{seed}-{i}",
            f"question {i}",
            "",
            {name: AgentOutcome(score=float(rng.random() < rate)) for name, rate in rates.items()},
        )
        for i in range(n)
    ]


@pytest.fixture(scope="session")
def new(made_once: MadeOnce) -> Path:
    return made_once(
        "success of today", lambda out: train_success(drawn(TODAY, 150, 0), SuccessOptions(out=out)) and None
    )


@pytest.fixture(scope="session")
def old(made_once: MadeOnce) -> Path:
    return made_once(
        "success of before", lambda out: train_success(drawn(BEFORE, 150, 1), SuccessOptions(out=out)) and None
    )


def decided(new: Path, old: Path, questions: list[QuestionOutcomes]) -> SuccessPromotion:
    made = Promotion.on_outcomes(SuccessEstimator.load(new), SuccessEstimator.load(old), questions)
    assert isinstance(made, SuccessPromotion)
    return made


def test_the_version_of_todays_rates_is_promoted_and_the_older_one_refused(
    new: Path, old: Path, tmp_path: Path
) -> None:
    QuestionOutcomes.write(tmp_path / "held-out.jsonl", drawn(TODAY, 150, 2))
    promoted = run("promote", "--json", new, "--over", old, tmp_path / "held-out.jsonl")
    refused = run("promote", "--json", old, "--over", new, tmp_path / "held-out.jsonl")
    assert promoted.exit_code == 0, promoted.output
    assert refused.exit_code == 1, refused.output
    told = json.loads(promoted.stdout)
    assert told["digest"] == json.loads(refused.stdout)["digest"] == SuccessEstimator.load(new).checkpoint.digest
    assert told["log_loss_gain"]["low"] > 0
    assert "log loss" in run("promote", new, "--over", old, tmp_path / "held-out.jsonl").stdout


def test_a_version_does_not_replace_its_equal(new: Path) -> None:
    same = decided(new, new, drawn(TODAY, 150, 2))
    assert not same.promoted
    assert same.log_loss_gain.estimate == 0


def test_outcomes_of_a_training_are_refused(new: Path, old: Path) -> None:
    for seen in (drawn(TODAY, 150, 0), drawn(BEFORE, 150, 1)):
        with pytest.raises(RecordError, match="was trained on"):
            decided(new, old, seen)


def test_too_few_groups_are_refused_and_logged_decisions_do_not_count(new: Path, old: Path) -> None:
    logged = [
        replace(one, agents={"small": one.agents["small"]}, chosen="small", propensities={"small": 0.5, "large": 0.5})
        for one in drawn(TODAY, 150, 3)
    ]
    for few in (drawn(TODAY, 29, 2), logged):
        with pytest.raises(RecordError, match="at least 30"):
            decided(new, old, few)


def test_a_version_without_a_candidate_of_the_running_one_is_refused(old: Path, tmp_path: Path) -> None:
    only = [replace(one, agents={"small": one.agents["small"]}) for one in drawn(TODAY, 150, 4)]
    train_success(only, SuccessOptions(out=tmp_path / "only"))
    made = decided(tmp_path / "only", old, drawn(TODAY, 150, 2))
    assert made.log_loss_gain.low > 0
    assert not made.promoted
    assert "insufficient" in made.reason


def test_options_of_other_kinds_are_refused(new: Path, old: Path, tmp_path: Path) -> None:
    QuestionOutcomes.write(tmp_path / "held-out.jsonl", drawn(TODAY, 40, 2))
    for option in ("--not-worse", "--price=1"):
        result = run("promote", new, "--over", old, tmp_path / "held-out.jsonl", option)
        assert result.exit_code == 2, result.output
        assert "not for estimators of P(success)" in " ".join(result.stderr.split())
