"""How often answers of a run are right, apart from what one answer shows: what is added, for whom, and when not."""

import copy
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import FULL, responses, tiny_quality

from metaprobe import load
from metaprobe.checkpoints import Checkpoint, ContractMismatch, Generator
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.training_runs import shifted
from metaprobe.records.types import Call

RATES: dict[str, Any] = {
    "between": {"correct": 1.2},
    "average": {"correct": 0.4},
    "runs": {
        "a|sums|v": {"correct": 1.5},
        "b|sums|v": {"correct": -0.5},
        "b|trivia|v": {"correct": 0.3},
    },
}
TWO_MODELS = Generator("a", logprobs_mode="raw", others=("b",))


def made(path: Path, rates: object = RATES, **changes: Any) -> Checkpoint:
    contract = {"schema": "full", "features": list(FULL.names), "base_rates": rates}
    return tiny_quality(path, contract=contract, generator=TWO_MODELS, **changes)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return made(tmp_path_factory.mktemp("rates") / "c")


def answer(model: str) -> Call:
    return Call(id="c", model=model, logprobs=responses(1)[0], logprobs_mode="raw")


def log_odds(p: float | None) -> float:
    assert p is not None
    return math.log(p / (1 - p))


@given(st.floats(0, 1), st.floats(-6, 6))
def test_a_shift_is_added_to_the_log_odds(p: float, shift: float) -> None:
    found = shifted(p, shift)
    assert 0 < found < 1 or not shift
    if 1e-5 < p < 1 - 1e-5:
        assert log_odds(found) == pytest.approx(log_odds(p) + shift, abs=1e-6)
    assert shifted(p, 0.0) == p


def test_a_named_run_shifts_the_score_and_flags_and_an_unknown_one_does_neither(checkpoint: Checkpoint) -> None:
    plain = QualityPredictor(checkpoint)
    assert plain.runs == tuple(RATES["runs"])
    scores = responses(12)
    unknown = plain.predict_many(scores)
    assert {verdict.flagged for verdict in unknown} == {None}
    assumed = "is not known: the score assumes the average of the training runs (40% right),"
    assert all(assumed in v.reason for v in unknown)
    assert all(v.reason.endswith("orders answers of one run only; name the run") for v in unknown)
    for run, shift in RATES["runs"].items():
        known = QualityPredictor(checkpoint, run=run).predict_many(scores)
        for with_run, without in zip(known, unknown, strict=True):
            assert log_odds(with_run.score) == pytest.approx(log_odds(without.score) + shift["correct"], abs=1e-4)
            assert with_run.heads["correct"] == with_run.score
            assert with_run.flagged is (with_run.score < 0.4)
            assert "is not known" not in with_run.reason
    assert QualityPredictor(checkpoint, run="b|sums|v").predict(scores[0]).score == pytest.approx(
        QualityPredictor(checkpoint, run="b|sums|v").predict_many(scores)[0].score
    )


def test_a_model_of_one_run_is_recognized_by_the_response_and_one_of_several_is_not(checkpoint: Checkpoint) -> None:
    predictor = QualityPredictor(checkpoint)
    bare = predictor.predict(responses(1)[0])
    of_a, of_b = predictor.predict(answer("a")), predictor.predict(answer("b"))
    assert log_odds(of_a.score) == pytest.approx(log_odds(bare.score) + 1.5, abs=1e-4)
    assert of_a.flagged is not None
    assert of_b.flagged is None
    assert of_b.score == pytest.approx(bare.score)
    # A run that the caller names goes before the run that a response names.
    named = QualityPredictor(checkpoint, run="b|sums|v").predict(answer("a"))
    assert log_odds(named.score) == pytest.approx(log_odds(bare.score) - 0.5, abs=1e-4)


def test_a_run_that_leaves_the_task_or_the_way_of_asking_open_is_taken_for_any(tmp_path: Path) -> None:
    """The checkpoint was recalibrated by a score log, which knows models alone."""
    runs = {"a||": {"correct": 1.5}, "b|sums|": {"correct": -0.5}, "b|trivia|v": {"correct": 0.3}}
    predictor = QualityPredictor(made(tmp_path / "c", {**RATES, "runs": runs}))
    for run, known in {
        "a|dates|v": "a||",
        "a||day-9": "a||",
        "b|sums|w": "b|sums|",
        "b|trivia|v": "b|trivia|v",
    }.items():
        model = run[0]
        expected = QualityPredictor(predictor.checkpoint, run=known).predict(answer(model))
        assert predictor.of_run(run).predict(answer(model)) == expected
    for run in ("b|trivia|w", "b|dates|v", "c|sums|v", "b", ""):
        assert "is not known" in predictor.of_run(run).predict(answer("b")).reason


def test_a_run_that_is_not_known_is_refused_with_those_that_are(checkpoint: Checkpoint, tmp_path: Path) -> None:
    said = "no run is called 'c'; a run is named MODEL|TASK|VARIANT, and this checkpoint knows a|sums|v; "
    with pytest.raises(ContractMismatch, match=re.escape(said)):
        QualityPredictor.load(checkpoint.path, run="c")
    tiny_quality(tmp_path / "one")
    with pytest.raises(ContractMismatch, match="was made of one run"):
        QualityPredictor.load(tmp_path / "one", run="a|sums|v")
    for more, named in ((9, r"m1\|t\|v and 7 more$"), (2, r"m1\|t\|v$")):
        many = copy.deepcopy(RATES)
        many["runs"] |= {f"m{i}|t|v": {"correct": 0.1} for i in range(more)}
        with pytest.raises(ContractMismatch, match=named):
            QualityPredictor(made(tmp_path / f"{more}", many), run="c")


def test_without_runs_the_remedy_is_to_adapt_and_a_checkpoint_of_one_run_has_nothing_to_add(tmp_path: Path) -> None:
    verdict = QualityPredictor(made(tmp_path / "c", {**RATES, "runs": {}})).predict(responses(1)[0])
    assert verdict.flagged is None
    assert verdict.reason.endswith("; adapt the checkpoint with labelled answers")
    one = QualityPredictor(tiny_quality(tmp_path / "one"))
    verdict = one.predict(responses(1)[0])
    assert (one.runs, verdict.reason) == ((), "")
    assert verdict.flagged is not None


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in RATES.items() if name != key}


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        ([], "cannot be read"),
        (without("runs"), "'runs'"),
        (without("between"), "'between'"),
        ({**RATES, "runs": {"a": 1.0}}, "cannot be read"),
        ({**RATES, "runs": {"a": {"correct": "much"}}}, "'much' is no finite number"),
        ({**RATES, "average": {"correct": True}}, "True is no finite number"),
        ({**RATES, "runs": {"a": {"critical": 1.0}}}, "expected heads that are probabilities, which are correct"),
        ({**RATES, "between": {"no\x1bne": 1.0}}, r"no\x1bne"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_when_it_is_loaded(spoilt: object, said: str, tmp_path: Path) -> None:
    made(tmp_path / "c", spoilt)
    with pytest.raises(ContractMismatch, match=re.escape(said)):
        QualityPredictor.load(tmp_path / "c")


def test_the_front_door_takes_the_run_too(tmp_path: Path) -> None:
    made(tmp_path / "c", RATES)
    name = next(iter(RATES["runs"]))
    assert load(tmp_path / "c", run=name).predict([-0.5, -1.0]).flagged is not None
    with pytest.raises(ContractMismatch, match="run is for predictors"):
        load("bundled:gate", run=name)
