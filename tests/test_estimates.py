"""Estimates of accuracy: their intervals hold, also for few labels and for labels of answers that were chosen."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from metaprobe.cli import main
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.estimates import (
    LABELLED,
    POWERED,
    SCORES,
    estimate_accuracy,
    estimate_log,
    name_weeks,
)
from metaprobe.production.monitoring.label_draw import draw_sheet
from metaprobe.production.monitoring.log import FeedbackLabel, ScoreLog
from metaprobe.records.errors import RecordError


def answers(rng: np.random.Generator, n: int, *, told: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Calibrated scores of n answers, and whether they are right; about 70 % are, whatever the scores tell."""
    p = 1 / (1 + np.exp(-(0.9 + 0.15 * told + told * rng.normal(size=n))))
    return p, (rng.random(n) < p).astype(float)


def drawn(rng: np.random.Generator, p: np.ndarray, labels: float, *, active: bool) -> np.ndarray:
    """Propensities of a draw of about so many labels; an active one prefers uncertain answers."""
    wish = 0.1 + np.sqrt(p * (1 - p)) if active else np.ones(len(p))
    return np.minimum(labels * wish / wish.sum(), 1)


def covered(labels: int, *, active: bool, told: float = 2.0, times: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """How often powered and labelled intervals hold the share right, and how wide they are."""
    rng = np.random.default_rng([labels, active, int(10 * told)])
    truth = answers(rng, 100_000, told=told)[0].mean()
    held, width = np.zeros(2), np.zeros(2)
    for _ in range(times):
        p, y = answers(rng, 2000, told=told)
        propensity = drawn(rng, p, labels, active=active)
        asked = rng.random(2000) < propensity
        found = estimate_accuracy(p, np.where(asked, y, np.nan), np.where(asked, propensity, np.nan))[1:]
        held += [one.low <= truth <= one.high for one in found]
        width += [one.width for one in found]
    return held / times, width / times


def repeated(rng: np.random.Generator, questions: int, times: int) -> tuple[np.ndarray, ...]:
    """Scores, labels and questions of answers to the same questions, some of which are easy and some hard."""
    easy = np.repeat(rng.beta(0.5, 0.5, questions), times)
    score = np.clip(0.5 + 0.3 * (easy - 0.5) + 0.1 * rng.normal(size=len(easy)), 0, 1)
    names = np.repeat([f"q{number}" for number in range(questions)], times)
    return score, (rng.random(len(easy)) < easy).astype(float), names


@pytest.mark.parametrize(("questions", "times", "labels"), [(50, 30, 300), (20, 50, 200), (1500, 1, 100)])
def test_intervals_hold_for_many_answers_to_one_question_where_that_is_told(
    questions: int, times: int, labels: int
) -> None:
    rng, held, naive = np.random.default_rng([questions, times]), np.zeros(2), np.zeros(2)
    for _ in range(200):
        score, y, names = repeated(rng, questions, times)
        propensity = np.full(len(y), labels / len(y))
        asked = rng.random(len(y)) < propensity
        given = score, np.where(asked, y, np.nan), np.where(asked, propensity, np.nan)
        held += [one.low <= 0.5 <= one.high for one in estimate_accuracy(*given, group=names)[1:]]
        naive += [one.low <= 0.5 <= one.high for one in estimate_accuracy(*given)[1:]]
    assert (held / 200 >= 0.92).all(), held / 200
    assert (naive / 200 < 0.9).all() or times == 1, "else there is nothing to hold"


def test_answers_without_a_group_stand_for_themselves_and_what_is_no_group_is_refused() -> None:
    rng = np.random.default_rng(5)
    p, y = answers(rng, 400)
    label = np.where(np.arange(400) < 200, y, np.nan)
    alone, named = (estimate_accuracy(p, label, group=names) for names in ([""] * 400, [f"g{i}" for i in range(400)]))
    assert alone == named
    plain = estimate_accuracy(p, label)
    assert (alone[1].value, alone[2].value) == (plain[1].value, plain[2].value)
    assert alone[2].width == pytest.approx(plain[2].width, rel=0.05)
    assert alone[0] == plain[0]
    assert "groups of answers are independent" in alone[1].assumption
    assert alone[1].next_halving is None
    assert "depends on how they fall on groups" in alone[1].reason
    assert alone[2].complement().value == pytest.approx(1 - plain[2].value)
    with pytest.raises(RecordError, match=r"groups have the shape \(3,\); expected one name for each of 400"):
        estimate_accuracy(p, label, group=["a"] * 3)


@pytest.mark.parametrize(("first", "then", "of"), [(200, 20, 4000), (60, 20, 2000)])
def test_intervals_hold_after_a_first_sheet_that_took_all_and_a_later_one_that_took_few(
    first: int, then: int, of: int
) -> None:
    """The few stand for most answers: the many labels must not make up for their being few."""
    rng, held = np.random.default_rng([first, then]), np.zeros(2)
    for _ in range(200):
        p = rng.beta(19, 1, first + of)
        y = (rng.random(len(p)) < p).astype(float)
        propensity = np.r_[np.ones(first), np.full(of, then / of)]
        asked = rng.random(len(p)) < propensity
        found = estimate_accuracy(p, np.where(asked, y, np.nan), np.where(asked, propensity, np.nan))[1:]
        held += [one.low <= 0.95 <= one.high for one in found]
    assert (held / 200 >= 0.93).all(), held / 200


@pytest.mark.parametrize("active", [False, True], ids=["uniform", "active"])
@pytest.mark.parametrize("labels", [10, 200])
def test_intervals_hold_the_share_that_is_right(labels: int, active: bool) -> None:
    held, _ = covered(labels, active=active)
    assert (held >= 0.93).all(), held
    assert (held <= 0.995).all(), "an interval that always holds is too wide"


def test_scores_that_tell_much_spare_labels_and_scores_that_tell_nothing_cost_none() -> None:
    _, (powered, labelled) = covered(200, active=False, told=6.0)
    assert (powered / labelled) ** 2 < 0.5
    _, (powered, labelled) = covered(200, active=False, told=0.0)
    assert (powered / labelled) ** 2 < 1.05


def test_chosen_answers_are_not_taken_for_drawn_ones() -> None:
    rng = np.random.default_rng(3)
    p, y = answers(rng, 40_000)
    propensity = drawn(rng, p, 8000, active=True)
    asked = rng.random(len(p)) < propensity
    label = np.where(asked, y, np.nan)
    weighed = estimate_accuracy(p, label, np.where(asked, propensity, np.nan))[2]
    plain = estimate_accuracy(p, label)[2]
    assert weighed.low < y.mean() < weighed.high
    assert plain.high < y.mean() - 0.02, "uncertain answers are less often right"
    assert "stored propensities" in weighed.assumption
    assert "as good as drawn at random" in plain.assumption


def test_labels_that_came_unasked_are_left_out_where_others_were_drawn() -> None:
    rng = np.random.default_rng(4)
    p, y = answers(rng, 4000)
    asked, complained = rng.random(4000) < 0.1, (y == 0) & (rng.random(4000) < 0.5)
    label = np.where(asked | complained, y, np.nan)
    found = estimate_accuracy(p, label, np.where(asked, 0.1, np.nan))[1]
    assert found.low < y.mean() < found.high
    assert found.labels == asked.sum()
    assert found.left_out == (complained & ~asked).sum()
    assert f"{found.left_out} other labels are left out" in found.assumption


def test_once_all_answers_but_few_are_labelled_every_label_counts_whoever_chose_them() -> None:
    """After a sheet of 20, people labelled all but the last: 300 labels say more than 20."""
    rng = np.random.default_rng(14)
    p, y = answers(rng, 301)
    asked = np.isin(np.arange(301), rng.choice(301, 20, replace=False))
    propensity = np.where(asked, 20 / 301, np.nan)
    few = estimate_accuracy(p, np.where(asked, y, np.nan), propensity)
    most = estimate_accuracy(p, np.where(np.arange(301) < 300, y, np.nan), propensity)
    every = estimate_accuracy(p, y, propensity)
    for one, then, end in zip(few[1:], most[1:], every[1:], strict=True):
        assert (then.labels, end.labels) == (300, 301)
        assert (one.bounded, then.bounded, end.bounded, then.left_out) == (False, True, True, 0)
        assert one.width > 2 * then.width > 2 * end.width
        assert y[:300].sum() / 301 <= then.value <= (y[:300].sum() + 1) / 301
        assert end.value == pytest.approx(y.mean())
        assert then.next_halving is None
    plain = estimate_accuracy(p, y)[2]
    assert (every[2].low, every[2].high) == (plain.low, plain.high), "a census needs no draw"


@pytest.mark.parametrize("groups", [False, True], ids=["answers", "questions"])
@pytest.mark.parametrize("hidden", [3, 25])
def test_intervals_hold_where_the_answers_without_a_label_are_all_wrong(hidden: int, groups: bool) -> None:
    """People left out what they did not like: no rule that takes labels for drawn ones would hold."""
    rng, held, naive = np.random.default_rng([hidden, groups]), np.zeros(2), 0
    names = np.repeat(np.arange(100), 4).astype(str) if groups else None
    for _ in range(150):
        y = np.repeat(rng.random(100) < 0.7, 4) if groups else rng.random(400) < 0.7
        score = np.clip(0.7 + 0.2 * (y - 0.7) + 0.1 * rng.normal(size=400), 0, 1)
        asked = rng.random(400) < 0.08
        unseen = rng.permutation(np.flatnonzero(~y & ~asked))[:hidden]
        label = np.where(np.isin(np.arange(400), unseen), np.nan, y)
        found = estimate_accuracy(score, label, np.where(asked, 0.08, np.nan), group=names)[1:]
        held += [one.low <= 0.7 <= one.high for one in found]
        plain = estimate_accuracy(score, label, group=names)[2]
        naive += plain.low <= 0.7 <= plain.high
    assert (held / 150 >= 0.93).all(), held / 150
    assert naive < 0.9 * 150 or hidden < 25, "else there is nothing to hold"


def test_labels_of_a_whole_log_count_after_a_small_sheet_and_others_are_counted_as_left_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(15)
    right = rng.random(301) < 0.8
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        for i in range(301):
            log.write(
                Entry(request_id=f"r{i}", time=1e9 + i, model="m", checkpoint="c", score=0.6 + 0.001 * i, flagged=i < 9)
            )
        log.flush()
        sheet = draw_sheet(log, 20, seed=1)
        drawn_ids = {row.request_id for row in sheet.rows}
        log.add_labels(FeedbackLabel(name, float(right[int(name[1:])])) for name in drawn_ids)
        others = [f"r{i}" for i in range(300) if f"r{i}" not in drawn_ids]
        log.add_labels(FeedbackLabel(name, float(right[int(name[1:])])) for name in others[:100])
        some = {(one["of"], one["method"]): one for one in estimate_log(log.columns())}
        log.add_labels(FeedbackLabel(name, float(right[int(name[1:])])) for name in others[100:])
        most = {(one["of"], one["method"]): one for one in estimate_log(log.columns())}
    for method in (POWERED, LABELLED):
        one, then = some["accuracy", method], most["accuracy", method]
        assert one["labels"] == 20
        assert one["left_out"] <= 100
        assert "were not drawn" in one["assumption"]
        assert (then["labels"], then["rows"], then["left_out"]) == (len(drawn_ids | set(others)), 301, 0)
        assert then["high"] - then["low"] < (one["high"] - one["low"]) / 2
        assert most["risk", method]["bounded"] is True


def test_with_equal_weights_it_is_the_estimate_and_nearly_the_interval_of_ppi_python() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numba's own, at its import
        from ppi_py import ppi_mean_ci, ppi_mean_pointestimate

    rng = np.random.default_rng(5)
    p, y = answers(rng, 20_000)
    label = np.where(np.arange(20_000) < 2000, y, np.nan)
    ours = estimate_accuracy(p, label)[1]
    low, high = ppi_mean_ci(y[:2000], p[:2000], p[2000:], alpha=0.05)
    assert ours.value == pytest.approx(float(ppi_mean_pointestimate(y[:2000], p[:2000], p[2000:])[0]), abs=2e-4)
    assert ours.width == pytest.approx(float((high - low)[0]), rel=0.01)


def test_a_lower_level_gives_narrower_intervals_in_the_ratio_of_the_normal_quantiles() -> None:
    y = np.repeat([1.0, 0.0], 200)
    usual, half = (estimate_accuracy(np.full(400, 0.5), y, level=level) for level in (0.95, 0.5))
    for one, other in zip(usual, half, strict=True):
        assert (one.high - one.low) / (other.high - other.low) == pytest.approx(1.959964 / 0.674490, rel=1e-5)


def test_few_labels_give_a_wide_interval_and_none_gives_none() -> None:
    rng = np.random.default_rng(6)
    p, y = answers(rng, 500)
    widths = {}
    for n in (1, 5, 50):
        label = np.where(np.arange(500) < n, y, np.nan)
        widths[n] = estimate_accuracy(p, label)[2].width
    assert widths[1] > 0.7 > widths[5] > 0.4 > widths[50]
    scores, powered, labelled = estimate_accuracy(p, np.full(500, np.nan))
    assert scores.low < scores.value < scores.high
    assert "no label was asked" in scores.assumption
    for one in (powered, labelled):
        assert np.isnan([one.value, one.low, one.high]).all()
        assert one.reason == "there are no labels"
    assert estimate_accuracy([], [])[0].reason == "there are no answers"


def test_so_many_labels_more_halve_the_interval() -> None:
    rng = np.random.default_rng(7)
    p, y = answers(rng, 50_000)
    for place in (1, 2):
        before = estimate_accuracy(p, np.where(np.arange(50_000) < 300, y, np.nan))[place]
        assert before.next_halving is not None
        more = 300 + before.next_halving
        after = estimate_accuracy(p, np.where(np.arange(50_000) < more, y, np.nan))[place]
        assert after.width == pytest.approx(before.width / 2, rel=0.06)
    p, y = answers(rng, 300)
    few = estimate_accuracy(p, np.where(np.arange(300) < 200, y, np.nan))[1]
    assert few.next_halving is None
    assert "300 answers are too few" in few.reason


def test_risk_is_of_the_accepted_alone() -> None:
    rng = np.random.default_rng(8)
    p, y = answers(rng, 20_000)
    label, accepted = np.where(rng.random(20_000) < 0.1, y, np.nan), p > 0.8
    found = [one.complement() for one in estimate_accuracy(p[accepted], label[accepted])]
    assert [one.method for one in found] == [SCORES, POWERED, LABELLED]
    truth = 1 - y[accepted].mean()
    assert all(one.low < truth < one.high for one in found)
    assert found[1].rows == accepted.sum()


def test_weeks_begin_on_mondays_in_utc() -> None:
    sunday = np.datetime64("2026-11-22T23:59:59").astype(int)
    assert name_weeks([sunday, sunday + 1]).tolist() == ["2026-W47", "2026-W48"]
    assert name_weeks([np.datetime64("2027-01-01").astype("datetime64[s]").astype(int)]).tolist() == ["2026-W53"]


@pytest.mark.parametrize(
    ("score", "label", "propensity", "said"),
    [
        ([1.2], [1.0], None, "1 of 1 scores are not in"),
        ([0.5], [1.5], None, "1 of 1 labels are not in"),
        ([0.5], [1.0], [0.0], "1 of 1 propensities are not above 0"),
        ([0.5, 0.5], [1.0], None, r"shapes \(2,\), \(1,\)"),
    ],
)
def test_what_is_no_score_label_or_propensity_is_refused(
    score: list[float], label: list[float], propensity: list[float] | None, said: str
) -> None:
    with pytest.raises(RecordError, match=said):
        estimate_accuracy(score, label, propensity)


def test_answers_that_came_after_the_last_draw_do_not_move_what_labels_say(tmp_path: Path) -> None:
    """Half of the answers come later, with scores that are right, where the labelled ones' were too low: the difference
    of the two is no news about the answers."""
    rng = np.random.default_rng(11)
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        for i in range(600):
            later = i >= 300
            score = 0.5 if later else 0.2
            log.write(Entry(request_id=f"r{i}", time=1e9 + i, model="m", checkpoint="c", score=score))
            if i == 299:
                log.flush()
                sheet = draw_sheet(log, 150, seed=1)
        log.flush()
        log.add_labels(FeedbackLabel(row.request_id, float(rng.random() < 0.5)) for row in sheet.rows)
        found = {(one["of"], one["method"]): one for one in estimate_log(log.columns())}
    powered = found["accuracy", POWERED]
    assert powered["low"] < 0.5 < powered["high"]
    assert powered["value"] == pytest.approx(found["accuracy", LABELLED]["value"], abs=0.02)
    assert powered["rows"] <= 300
    assert "came after the last one that was drawn" in powered["reason"]
    assert found["accuracy", SCORES]["rows"] == 600


def test_versions_stand_apart_the_newest_first_and_one_can_be_chosen(tmp_path: Path) -> None:
    """Scores .37 too low of one version and .46 too high of another are no scores that are about right."""
    rng, where = np.random.default_rng(12), tmp_path / "scores.sqlite"
    right = {"old": 0.7, "new": 0.4}
    with ScoreLog.open(where) as log:
        for i in range(800):
            version = "old" if i < 400 else "new"
            score = {"old": 0.33, "new": 0.86}[version]
            entry = Entry(
                request_id=f"r{i}", time=1e9 + i, model="m", checkpoint=version, score=score, flagged=score < 0.5
            )
            log.write(entry)
        log.flush()
        log.add_labels(
            FeedbackLabel(f"r{i}", float(rng.random() < right["old" if i < 400 else "new"])) for i in range(800)
        )
        log.event("promoted", {"from": "old", "from_path": "out/a", "to": "new", "to_path": "out/b"})
    done = CliRunner().invoke(main, ["estimate", "--json", "--log", str(where)])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert list(dict.fromkeys((line["checkpoint"], line["path"]) for line in lines)) == [
        ("new", "out/b"),
        ("old", "out/a"),
    ]
    of = {(line["checkpoint"], line["method"]): line["value"] for line in lines if line["of"] == "accuracy"}
    for version, share in right.items():
        assert of[version, LABELLED] == pytest.approx(share, abs=0.07)
        assert of[version, SCORES] == pytest.approx({"old": 0.33, "new": 0.86}[version])
    assert {line["rows"] for line in lines if line["of"] != "risk"} == {400}
    chosen = CliRunner().invoke(main, ["estimate", "--json", "--log", str(where), "--checkpoint", "out/a"])
    assert {json.loads(line)["checkpoint"] for line in chosen.stdout.splitlines()} == {"old"}
    refused = CliRunner().invoke(main, ["estimate", "--log", str(where), "--by", "checkpoint"])
    assert (refused.exit_code, "stand apart already" in refused.output) == (1, True)
