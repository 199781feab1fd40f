"""What flagging catches and costs: measured on held-out answers, stored with the checkpoint, chosen by a rate."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from conftest import made_up
from tiny import responses, tiny_quality

import metaprobe
from metaprobe.checkpoints import ContractMismatch, FlagPoint, Metric, load_checkpoint
from metaprobe.checkpoints.description import describe
from metaprobe.checkpoints.flagging import flag_sentences, flag_table, threshold_at
from metaprobe.checkpoints.manifest import Manifest, manifest_bytes, parse_manifest
from metaprobe.training.crossfit.flagging_measured import flag_points
from metaprobe.training.crossfit.methods import LADDER
from metaprobe.training.crossfit.study import Study, study_of
from metaprobe.training.hidden.train import write_hidden
from metaprobe.training.quality.train import write_quality


def point(rate: float, threshold: float, caught: float = 0.62, cost: float = 0.18) -> FlagPoint:
    return FlagPoint(rate, threshold, *(Metric(x, x - 0.05, x + 0.05, 100) for x in (caught, cost)))


CURVE = (point(0.1, 0.2), point(0.3, 0.4), point(0.5, 0.5, 0.8, 0.4))


@pytest.fixture(scope="module")
def study() -> Study:
    return study_of(dataclasses.replace(made_up(600), states=made_up(600).states), folds=3, kind="mass-mean")


def test_a_curve_says_what_held_out_answers_say(study: Study) -> None:
    table, held_out = study.evidence.table, study.fits[LADDER].probability
    exported = np.linspace(0.2, 0.8, 101)
    points = {p.rate: p for p in flag_points(table, held_out, exported)}
    assert list(points) == pytest.approx(np.arange(1, 20) / 20)
    one = points[0.3]
    lowest = held_out < np.quantile(held_out, 0.3)
    assert one.caught.estimate == pytest.approx(lowest[table.y == 0].mean(), abs=0.01)
    assert one.cost.estimate == pytest.approx(lowest[table.y == 1].mean(), abs=0.01)
    assert one.caught.estimate > one.cost.estimate + 0.2
    assert one.caught.low < one.caught.estimate < one.caught.high
    assert one.caught.n == int((table.y == 0).sum())
    assert (exported < one.threshold).mean() == pytest.approx(0.3, abs=0.011)  # of the exported model's own scores


def test_a_threshold_knows_no_labels_and_too_few_answers_give_no_curve(study: Study) -> None:
    table, held_out = study.evidence.table, study.fits[LADDER].probability
    exported = np.random.default_rng(0).uniform(size=80)
    turned = dataclasses.replace(table, y=1 - table.y)
    thresholds = [[p.threshold for p in flag_points(of, held_out, exported)] for of in (table, turned)]
    assert thresholds[0] == thresholds[1]
    assert thresholds[0] == sorted(thresholds[0])
    assert flag_points(table, held_out, exported[:49]) == ()


def test_a_trained_predictor_stores_the_curve_and_flags_by_it(study: Study, tmp_path: Path) -> None:
    checkpoint = write_quality(tmp_path / "q", {"correct": study}, command="a test")
    answers = list(study.evidence.table.logprobs)
    shares = {}
    for rate in (0.1, 0.3, 0.42, 0.6):
        predictor = metaprobe.load(tmp_path / "q", flag_rate=rate)
        assert predictor.threshold is not None
        verdicts = predictor.predict_many(answers)
        assert all(v.flagged == (v.score < predictor.threshold) for v in verdicts if v.score is not None)
        shares[rate] = np.mean([v.flagged for v in verdicts])
    assert shares == pytest.approx({rate: rate for rate in shares}, abs=0.1)
    stored = metaprobe.QualityPredictor.load(tmp_path / "q")
    assert stored.threshold == checkpoint.manifest.thresholds.get("flag")
    card = (tmp_path / "q" / "README.md").read_text()
    said = flag_sentences(checkpoint.manifest.flagging, checkpoint.manifest.metrics)
    assert said
    for line in (*said, *flag_table(checkpoint.manifest.flagging)):
        assert line in card
        assert line in describe(checkpoint)


def test_a_probe_stores_the_curve_too(study: Study, tmp_path: Path) -> None:
    checkpoint = write_hidden(tmp_path / "p", study, when="after", target="correct", command="a test")
    assert len(checkpoint.manifest.flagging) == 19
    with pytest.raises(ContractMismatch, match=r"flag_rate is for predictors, which flag answers; .* 'hidden'"):
        metaprobe.load(tmp_path / "p", flag_rate=0.3)


def test_the_sentence_is_the_measured_one_and_says_when_nothing_was_gained() -> None:
    gained = {"auroc_gain_over_mean_log_probability": Metric(0.05, 0.02, 0.08, 100)}
    assert flag_sentences(CURVE, gained) == [
        "Flagging 30% of the answers catches 62% of the wrong ones and costs 18% of the right ones "
        "(held out; flagging at random: 30% of both)."
    ]
    for low, high, stands in (
        (-0.03, 0.02, "is not shown to rank them worse"),
        (-0.08, -0.02, "ranks them better"),
    ):
        level = {"correct.auroc_gain_over_mean_log_probability": Metric((low + high) / 2, low, high, 100)}
        [_, said] = flag_sentences(CURVE, level)
        assert said.startswith(f"The mean log-probability {stands} (gain")
        assert said.endswith("you may not need this.")
    assert flag_sentences((), gained) == flag_table(()) == []
    assert flag_table(CURVE)[3] == "| 30% | 62% [57%, 67%] | 18% [13%, 23%] | 0.4000 |"


def test_a_rate_between_two_stored_ones_has_a_threshold_between_theirs() -> None:
    assert [threshold_at(CURVE, rate) for rate in (0.1, 0.2, 0.3, 0.4, 0.5)] == pytest.approx(
        [0.2, 0.3, 0.4, 0.45, 0.5]
    )
    for rate in (0.0, 0.05, 0.7, 1.0, 30, float("nan"), True):
        with pytest.raises(ContractMismatch, match=r"expected a share from 0.1 to 0.5, such as 0.3"):
            threshold_at(CURVE, rate)


def test_a_checkpoint_without_a_curve_refuses_a_rate_and_says_why(tmp_path: Path) -> None:
    with pytest.raises(
        ContractMismatch,
        match=r"stores no curve of flag rates; .* 0\.1 have none.*10 wrong ones.*adapt it with more labels",
    ):
        metaprobe.load("bundled:critical", flag_rate=0.3)
    tiny_quality(tmp_path / "q")
    with pytest.raises(ContractMismatch, match="stores no curve"):
        metaprobe.load(tmp_path / "q", flag_rate=0.3)
    assert metaprobe.QualityPredictor.load(tmp_path / "q").threshold == 0.4


def test_a_curve_is_kept_in_the_manifest_and_older_manifests_do_without(tmp_path: Path) -> None:
    checkpoint = tiny_quality(tmp_path / "q", flagging=CURVE)
    assert load_checkpoint(tmp_path / "q").manifest.flagging == CURVE
    predictor = metaprobe.load(tmp_path / "q", flag_rate=0.2)
    assert predictor.threshold == pytest.approx(0.3)
    flagged = [verdict.flagged for verdict in predictor.predict_many(responses(20))]
    scores = [verdict.score for verdict in predictor.predict_many(responses(20))]
    assert flagged == [score is not None and score < 0.3 for score in scores]
    old = manifest_bytes(checkpoint.manifest).decode().replace('"flagging"', '"flaggin"')
    with pytest.raises(ContractMismatch, match="unknown field 'flaggin'"):
        parse_manifest(old.encode())
    assert isinstance(load_checkpoint("bundled:quality").manifest, Manifest)  # made before there were curves
