"""Shares that flagging catches and costs: measured on held-out answers, stored in the checkpoint, chosen by a rate."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import made_up
from logged_answers import answers
from tiny import tiny_quality

import metaprobe
from metaprobe.checkpoints import (
    ContractMismatch,
    Draft,
    FlagOptions,
    FlagPoint,
    Metric,
    OperatingPoint,
    Promise,
    load_checkpoint,
)
from metaprobe.checkpoints.description import describe
from metaprobe.checkpoints.flagging import flag_sentences, flag_table, threshold_at, threshold_of
from metaprobe.cli import main
from metaprobe.eval.answer_table import bare_table
from metaprobe.probes.features import features, schema
from metaprobe.production.http.judges import load_judges
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.middleware import settings_from_environment
from metaprobe.production.http.settings import Settings
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import final_roles
from metaprobe.training.methods import LADDER, USUAL_LADDER
from metaprobe.training.recipes.train_hidden import write_hidden
from metaprobe.training.recipes.train_quality import fit_probability, write_quality
from metaprobe.training.study import Study, crossfit, study_of
from metaprobe.training.thresholds import flag_points, share_below


def point(rate: float, threshold: float, caught: float = 0.62, cost: float = 0.18) -> FlagPoint:
    return FlagPoint(rate, threshold, *(Metric(x, x - 0.05, x + 0.05, 100) for x in (caught, cost)))


CURVE = (point(0.1, 0.2), point(0.3, 0.4), point(0.5, 0.5, 0.8, 0.4))
PROMISED = tuple(
    Promise(option, value, threshold)  # type: ignore[arg-type]
    for option, value, threshold in (("catch", 0.5, 0.3), ("catch", 0.9, 0.7), ("risk", 0.1, 0.8), ("risk", 0.3, 0.35))
)
STORED = Draft(
    kind="quality",
    thresholds={"flag": 0.42},
    flagging=CURVE,
    promises=PROMISED,
    operating=OperatingPoint("expected", 0.33, Metric(0.35, 0.3, 0.4, 200), CURVE[0].caught, CURVE[0].cost),
)


@pytest.fixture(scope="module")
def study() -> Study:
    return study_of(made_up(600), folds=2)


def test_a_curve_says_what_held_out_answers_say(study: Study) -> None:
    table, rank_shares = study.evidence.table, study.fits.rank_shares[LADDER]
    exported = np.linspace(0.2, 0.8, 101)
    points = {p.rate: p for p in flag_points(table, rank_shares, exported)}
    assert list(points) == pytest.approx(np.arange(1, 20) / 20)
    one = points[0.3]
    flagged = rank_shares <= np.quantile(rank_shares, 0.3)
    assert one.caught.estimate == pytest.approx(flagged[table.y == 0].mean(), abs=0.01)
    assert one.cost.estimate == pytest.approx(flagged[table.y == 1].mean(), abs=0.01)
    assert one.caught.estimate > one.cost.estimate + 0.2
    assert one.caught.low < one.caught.estimate < one.caught.high
    assert one.caught.n == int((table.y == 0).sum())
    assert (exported < one.threshold).mean() == pytest.approx(0.3, abs=0.011)  # of the exported model's own scores


def test_rank_shares_follow_the_order_of_the_scores() -> None:
    scores = np.array([-np.inf, 0.0, 0.5, 1.0, 1.5, 1.6, 1.6, 3.0, 4.0, np.inf])
    rank_shares = share_below(np.array([3.0, 1.0, 2.0]), scores)
    assert rank_shares.tolist() == pytest.approx(
        [1 / 24, 3 / 24, 5 / 24, 6 / 24, 7 / 24, 10 / 24, 10 / 24, 18 / 24, 19.5 / 24, 22.5 / 24]
    )
    many = share_below(np.random.default_rng(0).normal(size=60), np.random.default_rng(1).normal(size=240))
    assert [(many <= np.quantile(many, share)).mean() for share in (0.01, 0.05)] == pytest.approx([0.0125, 0.05])


def few_wrong_groups(groups: int, seed: int) -> Evidence:
    """One of 20 groups, with a quarter of all answers, is wrong throughout and surprising; the others are seldom."""
    rng = np.random.default_rng(seed)
    sizes = [60 if group % 20 == 0 else 10 for group in range(groups)]
    of = np.repeat(np.arange(groups), sizes)
    y = (rng.uniform(size=len(of)) > np.where(of % 20 == 0, 0.95, 0.04)).astype(np.int64)
    surprise = np.where(of % 20 == 0, 0.9, 0.5) * np.exp(0.4 * rng.normal(size=len(of)))
    logprobs = np.empty(len(of), dtype=object)
    logprobs[:] = [-rng.exponential(level, int(rng.integers(8, 60))).astype(np.float32) for level in surprise]
    table = dataclasses.replace(bare_table(y, np.array([f"g{group}" for group in of])), logprobs=logprobs)
    terms = schema("terms")
    return Evidence(table, features(terms, list(logprobs)), terms.names, terms.name)


@pytest.mark.parametrize("seed", range(2))
def test_where_few_groups_hold_the_wrong_answers_a_rate_catches_what_it_says(seed: int) -> None:
    """Counted by the rank within a fold, a rate of 10 % caught 44 % of the wrong answers, and 24 % of new ones."""
    known, new = few_wrong_groups(40, seed), few_wrong_groups(400, 100 + seed)
    table = known.table
    rank_shares = crossfit(known, [USUAL_LADDER]).rank_shares[LADDER]
    roles = final_roles(table.groups.tolist(), table.y)
    head = fit_probability(known.sample(), roles)
    scores, wrong = head.value(new.features), new.table.y == 0
    points = flag_points(table, rank_shares, head.value(known.features))
    assert all(p.caught.estimate <= p.rate / (1 - table.y.mean()) + 0.02 for p in points), "more than were flagged"
    assert [p.caught.estimate for p in points] == sorted(p.caught.estimate for p in points)
    for at in points[:4]:
        assert at.caught.estimate == pytest.approx((scores < at.threshold)[wrong].mean(), abs=0.13)


def test_a_threshold_knows_no_labels_and_too_few_answers_give_no_curve(study: Study) -> None:
    table, rank_shares = study.evidence.table, study.fits.rank_shares[LADDER]
    exported = np.random.default_rng(0).uniform(size=80)
    turned = dataclasses.replace(table, y=1 - table.y)
    thresholds = [[p.threshold for p in flag_points(of, rank_shares, exported)] for of in (table, turned)]
    assert thresholds[0] == thresholds[1]
    assert thresholds[0] == sorted(thresholds[0])


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
    said = flag_sentences(checkpoint.manifest, checkpoint.manifest.metrics)
    assert said[0].startswith("The stored threshold ")
    for line in (*said, *flag_table(checkpoint.manifest)):
        assert line in card
        assert line in describe(checkpoint)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")
def test_on_noise_about_as_many_are_flagged_as_are_expected_to_be_wrong(tmp_path: Path) -> None:
    """Every fold gives all answers nearly one number, and each fold another: which share of the held-out answers lies
    below the threshold of the exported model is an accident, and was 6 % to 87 % where 40 % were expected."""
    noise = dataclasses.replace(made_up(240, signal=0.0), states=None)
    operating = write_quality(tmp_path / "q", {"correct": study_of(noise)}, command="a test").manifest.operating
    assert operating is not None
    assert operating.value == pytest.approx(1 - noise.table.y.mean(), abs=0.03)
    assert operating.flagged.estimate == pytest.approx(operating.value, abs=0.06)
    new = made_up(2000, signal=0.0, seed=100).table.logprobs
    verdicts = metaprobe.QualityPredictor.load(tmp_path / "q").predict_many(list(new))
    assert np.mean([verdict.flagged for verdict in verdicts]) == pytest.approx(operating.value, abs=0.1)


def test_a_probe_stores_the_curve_too(study: Study, tmp_path: Path) -> None:
    checkpoint = write_hidden(tmp_path / "p", study, when="after", target="correct", command="a test")
    assert len(checkpoint.manifest.flagging) == 19
    with pytest.raises(ContractMismatch, match=r"flag_rate is for predictors, which flag answers; .* 'hidden'"):
        metaprobe.load(tmp_path / "p", flag_rate=0.3)


def test_the_sentence_is_the_measured_one_and_says_when_nothing_was_gained() -> None:
    gained = {"auroc_gain_over_mean_log_probability": Metric(0.05, 0.02, 0.08, 100)}
    assert flag_sentences(STORED, gained) == [
        "The stored threshold 0.4200 flags as many answers as are expected to be wrong (33% by their scores). On "
        "held-out answers it flags 35% [30%, 40%] of all, catches 62% [57%, 67%] of the wrong ones and costs "
        "18% [13%, 23%] of the right ones (flagging at random: 35% of each)."
    ]
    for low, high, stands in (
        (-0.03, 0.02, "is not shown to rank them worse"),
        (-0.08, -0.02, "ranks them better"),
    ):
        level = {"correct.auroc_gain_over_mean_log_probability": Metric((low + high) / 2, low, high, 100)}
        [_, said] = flag_sentences(STORED, level)
        assert said.startswith(f"The mean log-probability {stands} (gain")
        assert "do not need this" in said
    nothing = Draft(kind="quality")
    assert flag_sentences(nothing, gained) == flag_table(nothing) == []
    assert flag_table(STORED)[2:5] == [  # the stored threshold comes first
        "| stored: 35% [30%, 40%] | 62% [57%, 67%] | 18% [13%, 23%] | 0.4200 |",
        "| 10% | 62% [57%, 67%] | 18% [13%, 23%] | 0.2000 |",
        "| 30% | 62% [57%, 67%] | 18% [13%, 23%] | 0.4000 |",
    ]
    [said] = flag_sentences(Draft(kind="quality", thresholds={"flag": 0.4}), gained)
    assert "is not known: it was not measured" in said
    old = Draft(kind="quality", thresholds={"flag": 0.45}, flagging=CURVE)
    assert "; by the curve of flag rates it flags 30% to 50% of the answers. Adapt" in flag_sentences(old, gained)[0]
    [said] = flag_sentences(Draft(kind="quality", flagging=CURVE), gained)
    assert said.startswith("No threshold is stored: nothing is flagged")
    [_, besides] = flag_sentences(dataclasses.replace(STORED, thresholds={"flag": 0.42, "critical": 0.5}), gained)
    assert "`critical` flags besides" in besides


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
        match=r"stores no curve of flag rates; older ones have none.*too few labelled answers.*adapt, recalibrate",
    ):
        metaprobe.load("bundled:critical", flag_rate=0.3)
    tiny_quality(tmp_path / "q")
    with pytest.raises(ContractMismatch, match="stores no curve"):
        metaprobe.load(tmp_path / "q", flag_rate=0.3)
    assert metaprobe.QualityPredictor.load(tmp_path / "q").threshold == 0.4


def response_of(values: list[float]) -> dict[str, object]:
    tokens = [{"token": f"t{i} ", "logprob": value} for i, value in enumerate(values)]
    message = {"content": "".join(str(token["token"]) for token in tokens)}
    return {
        "model": "mine",
        "choices": [{"message": message, "finish_reason": "stop", "logprobs": {"content": tokens}}],
    }


GIVEN = ({"flag_rate": 0.2}, {"flag_below": 0.45}, {"catch": 0.6}, {"risk": 0.3})


def test_of_stored_promises_the_nearest_that_promises_no_less_is_taken() -> None:
    for asked, threshold in (
        ({}, 0.42), ({"flag_below": 0.45}, 0.45), ({"flag_below": 0}, 0.0), ({"flag_rate": 0.2}, 0.3),
        ({"catch": 0.2}, 0.3), ({"catch": 0.5}, 0.3), ({"catch": 0.51}, 0.7), ({"catch": 0.9}, 0.7),
        ({"risk": 0.1}, 0.8), ({"risk": 0.29}, 0.8), ({"risk": 0.1 + 0.2}, 0.35), ({"risk": 0.9}, 0.35),
    ):  # fmt: skip
        assert threshold_of(STORED, FlagOptions(**asked)) == pytest.approx(threshold), asked
    with pytest.raises(ContractMismatch, match=r"catch=0.95: .* carries catch up to 0.9; expected at least 19 "):
        threshold_of(STORED, FlagOptions(catch=0.95))
    with pytest.raises(ContractMismatch, match=r"risk=0.05: .* carries risk from 0.1; expected at least 118 "):
        threshold_of(STORED, FlagOptions(risk=0.05))
    only = dataclasses.replace(STORED, promises=PROMISED[:2])
    with pytest.raises(ContractMismatch, match=r"risk=0.5: .* no threshold .* was shown to keep such a promise"):
        threshold_of(only, FlagOptions(risk=0.5))
    for asked in ({"catch": 0.5}, {"risk": 0.5}):
        with pytest.raises(ContractMismatch, match=r"stores no threshold .* expected at least \d+ labelled .*adapt"):
            threshold_of(Draft(kind="quality", thresholds={"flag": 0.4}), FlagOptions(**asked))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["flag_rate", "flag_below", "catch", "risk"])
def test_an_option_out_of_range_and_two_options_are_refused(name: str) -> None:
    for value in (-0.1, 1.1, float("nan"), float("inf"), True, "0.3", *([] if name == "flag_below" else [0, 1, 0.0])):
        with pytest.raises(ContractMismatch, match=f"{name} is .*; expected a s"):
            FlagOptions(**{name: value})
    other = "catch" if name != "catch" else "risk"
    with pytest.raises(ContractMismatch, match=r"were given; .* at most one"):
        FlagOptions(**{name: 0.3, other: 0.3})
    with pytest.raises(ContractMismatch, match="at most one"):
        metaprobe.load("bundled:quality", **{name: 0.3, other: 0.3})


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapted to 200 labels, beside the lines that it was adapted to."""
    folder = tmp_path_factory.mktemp("adapted")
    series, y = answers(200, seed=9, right=0.6)
    (folder / "lines.jsonl").write_text(
        "".join(
            json.dumps({"id": f"a{i}", "response": response_of(values), "labels": {"correct": int(label)}}) + "\n"
            for i, (values, label) in enumerate(zip(series, y, strict=True))
        )
    )
    done = CliRunner().invoke(
        main, ["adapt", "bundled:quality", str(folder / "lines.jsonl"), "--out", str(folder / "c")]
    )
    assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize("asked", GIVEN, ids=lambda asked: next(iter(asked)))
def test_one_option_means_one_threshold_in_adapt_load_score_and_serve(
    adapted: Path, asked: dict[str, float], tmp_path: Path
) -> None:
    [(name, value)] = asked.items()
    typed = [f"--{name.replace('_', '-')}", str(value)]
    lines, held = str(adapted / "lines.jsonl"), str(adapted / "c")
    done = CliRunner().invoke(main, ["adapt", "bundled:quality", lines, "--out", str(tmp_path / "c"), *typed])
    assert done.exit_code == 0, done.output
    made = load_checkpoint(tmp_path / "c").manifest
    assert made.operating is not None
    assert (made.operating.option, made.operating.value) == (name, value)
    stored = metaprobe.QualityPredictor.load(tmp_path / "c").threshold
    chosen = metaprobe.load(held, **asked)  # type: ignore[call-overload]
    assert chosen.threshold == stored == metaprobe.QualityPredictor.load(held, **asked).threshold  # type: ignore[arg-type]
    assert chosen.threshold != metaprobe.QualityPredictor.load(held).threshold
    scored = CliRunner().invoke(main, ["score", held, lines, "--on-mismatch", "ignore", *typed])
    flags = [json.loads(line)["flagged"] for line in scored.output.splitlines() if line.startswith("{")]
    series, _ = answers(200, seed=9, right=0.6)
    assert flags == [verdict.flagged for verdict in chosen.predict_many(series)]
    served = load_judges(Settings(checkpoint=held, auth=False, **asked), Metrics())  # type: ignore[arg-type]
    assert [served.default.verdict(values)["flagged"] for values in series] == flags
    inside = settings_from_environment({"METAPROBE_CHECKPOINT": held, f"METAPROBE_{name.upper()}": str(value)})
    assert inside.flags == asked
    two = CliRunner().invoke(main, ["score", held, lines, *typed, "--catch" if name != "catch" else "--risk", "0.3"])
    assert two.exit_code == 2
    assert "at most one" in two.output


def test_a_score_of_the_callers_own_flags_whatever_the_run_and_a_share_does_not() -> None:
    series, _ = answers(40, seed=1)
    predictor = metaprobe.QualityPredictor.load("bundled:quality", flag_below=0.5)
    verdicts = predictor.predict_many(series)
    assert {verdict.flagged for verdict in verdicts} == {True, False}
    assert all(verdict.flagged == (verdict.score < 0.5) for verdict in verdicts if verdict.score is not None)
    assert all(verdict.reason for verdict in verdicts), "how often answers of this run are right is not known"
    with pytest.raises(ContractMismatch, match=r"catch=0.9: the checkpoint, of 23,207 labels .* stores no threshold"):
        metaprobe.QualityPredictor.load("bundled:quality", catch=0.9)
    with pytest.raises(ContractMismatch, match=r"flag_below: .* gives no score"):
        metaprobe.QualityPredictor.load("bundled:critical", flag_below=0.3)


def test_whoever_chose_a_threshold_decides_by_no_other_one(tmp_path: Path) -> None:
    tiny_quality(tmp_path / "q", thresholds={"flag": 0.4, "accept": 0.8}, flagging=CURVE)
    for asked, thresholds in (({}, {"flag": 0.4, "accept": 0.8}), ({"flag_below": 0.6}, {"flag": 0.6})):
        signal = metaprobe.QualityPredictor.load(tmp_path / "q", **asked).signals([-0.5] * 4).confidence
        assert signal is not None
        assert signal.thresholds == thresholds
