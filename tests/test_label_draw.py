"""Whom to label: drawn by chance with propensities that are true, so that what is estimated from them is unbiased."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.estimates import estimate_log
from metaprobe.production.monitoring.label_draw import (
    draw_indices,
    draw_sheet,
    label_deviation,
    rule_for,
    sheet_rows,
    will_not_count,
)
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.production.monitoring.tables import LogError

START = 1.7e9


def filled(path: str | Path, scores: list[float | None], **more: object) -> ScoreLog:
    log = ScoreLog.open(path)
    for number, score in enumerate(scores):
        given = {"model": "m", "checkpoint": "c", "question": f"q{number}", "answer": f"a{number}"} | more
        log.write(Entry(request_id=f"r{number}", time=START + number, score=score, **given))  # type: ignore[arg-type]
    assert log.flush()
    return log


def test_the_doubtful_are_likelier_and_nobody_is_below_the_floor() -> None:
    scores = np.array([0.5, 0.9, 0.99, 1.0, np.nan] * 100)
    rule = rule_for(label_deviation(scores), 50, floor=0.25)
    likely = rule.propensities(label_deviation(scores))
    assert math.isclose(likely.sum(), 50, rel_tol=1e-6)
    assert likely[0] == likely[4] > likely[1] > likely[2] > likely[3]
    assert likely.min() > 0.24 * 50 / 500
    assert math.isclose(likely[3], 0.25 * 50 / 500, rel_tol=0.3)


@pytest.mark.parametrize("scores", [[0.5] * 20 + [1.0] * 5, [0.0] * 25, [0.5] * 25, [0.5] + [1.0] * 24])
def test_the_budget_is_met_whatever_the_scores_are(scores: list[float]) -> None:
    doubts = label_deviation(np.array(scores))
    for budget in (1, 5, 24, 25, 40):
        likely = rule_for(doubts, budget).propensities(doubts)
        assert math.isclose(likely.sum(), min(budget, 25), rel_tol=1e-6)
        assert ((likely > 0) & (likely <= 1)).all()
        assert len(set(draw_indices(likely, np.random.default_rng(0)).tolist())) == min(budget, 25)


def test_each_answer_is_drawn_as_often_as_its_propensity_says() -> None:
    generator = np.random.default_rng(3)
    likely = np.array([0.05, 0.2, 0.75, 1.0, 0.5, 0.5])
    times = np.zeros(6)
    for _ in range(1000):
        times[draw_indices(likely, generator)] += 1
    error = np.sqrt(likely * (1 - likely) / 1000)
    assert (abs(times / 1000 - likely) <= 5 * error).all()


def test_the_weighted_estimate_is_unbiased_over_two_sheets_though_the_scores_mislead(tmp_path: Path) -> None:
    """The certain answers are wrong more often than they say; a plain mean over the drawn ones is far off."""
    generator = np.random.default_rng(1)
    scores = np.where(np.arange(120) % 3 == 0, 0.5, 0.97)
    truth = np.where(scores == 0.5, generator.random(120) < 0.4, generator.random(120) < 0.8)
    estimates, plain = [], []
    with filled(tmp_path / "log.sqlite", scores.tolist()) as log:
        for turn in range(60):
            with log.tables.transaction() as run:  # as if nobody had been asked
                run("DELETE FROM samples")
                run("DELETE FROM sheets")
            draw_sheet(log, 20, until=START + 90, seed=turn)
            draw_sheet(log, 25, seed=1000 + turn)
            columns = log.columns()
            chosen = ~np.isnan(columns.propensity)
            assert chosen.sum() == 45
            estimates.append((truth[chosen] / columns.propensity[chosen]).sum() / 120)
            plain.append(truth[chosen].mean())
    error = np.std(estimates) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - truth.mean()) < 4 * error
    assert abs(np.mean(plain) - truth.mean()) > 8 * np.std(plain) / math.sqrt(len(plain))


def test_nobody_is_asked_twice_and_a_sheet_can_be_read_again(tmp_path: Path) -> None:
    with filled(tmp_path / "log.sqlite", [0.5] * 9) as log:
        first, second = draw_sheet(log, 4), draw_sheet(log, 4)
        assert not {row.request_id for row in first.rows} & {row.request_id for row in second.rows}
        assert sheet_rows(log, first.name) == first.rows
        log.label(first.rows[0].request_id, 1)
        assert sheet_rows(log, first.name) == first.rows[1:]
        last = draw_sheet(log, 4)
        assert len(last.rows) == 1
        with pytest.raises(LogError, match="none of the 9 answers of that time, model, checkpoint and tags is left"):
            draw_sheet(log, 4)
        assert (log.columns().propensity == 1).all()  # in the end everybody was certain to be asked
        with pytest.raises(LogError, match=f"no sheet 'other' in this log; the latest are {last.name}"):
            sheet_rows(log, "other")


def test_an_answer_that_was_stored_after_a_sheet_was_drawn_could_not_be_on_it(tmp_path: Path) -> None:
    """Whatever its own time: a writer may be late, and the clocks of two servers differ."""
    log = filled(tmp_path / "log.sqlite", [0.5] * 40)
    draw_sheet(log, 20)
    for number in range(40):
        log.write(Entry(request_id=f"late{number}", time=START, model="m", checkpoint="c", score=0.5))
    assert log.flush()
    sheet = draw_sheet(log, 12)
    assert sheet.candidates == 60
    likely = dict(log.tables.read("SELECT request_id, propensity FROM samples WHERE sheet = :s", {"s": sheet.name}))
    late, there = 12 / 60, 1 - (1 - 20 / 40) * (1 - 12 / 60)
    assert {name: float(p) for name, p in likely.items()} == {
        name: pytest.approx(late if name.startswith("late") else there) for name in likely
    }
    log.close()


def test_a_labelled_answer_may_be_drawn_and_costs_nothing(tmp_path: Path) -> None:
    with filled(tmp_path / "log.sqlite", [0.5] * 40) as log:
        for number in range(20):
            log.label(f"r{number}", 1)
        sheet = draw_sheet(log, 10, seed=0)
        assert len(sheet.rows) == 10
        assert all(int(row.request_id[1:]) >= 20 for row in sheet.rows)
        assert 0 < sheet.known < 20
        chosen = log.columns().propensity
        assert (~np.isnan(chosen)).sum() == 10 + sheet.known
        assert np.allclose(chosen[~np.isnan(chosen)], 0.5)  # one rule for both


def test_only_answers_of_that_model_tag_and_time_are_drawn(tmp_path: Path) -> None:
    with filled(tmp_path / "log.sqlite", [0.5] * 6, tags={"task": "faq"}) as log:
        log.write(Entry(request_id="x", time=START, model="other", checkpoint="c", score=0.5))
        log.write(Entry(request_id="y", time=START, model="m", checkpoint="c", score=0.5, shadow_of="r0"))
        log.flush()
        assert [row.request_id for row in draw_sheet(log, 99, model="other").rows] == ["x"]
        assert len(draw_sheet(log, 99, tags={"task": "faq"}, since=START + 2, until=START + 4).rows) == 2
        assert {row.request_id for row in draw_sheet(log, 99).rows} == {"r0", "r1", "r4", "r5"}


def test_answers_of_one_checkpoint_are_drawn_and_another_sheet_knows_how_likely_they_were(tmp_path: Path) -> None:
    log = filled(tmp_path / "log.sqlite", [0.5] * 20)
    for number in range(20):
        log.write(Entry(request_id=f"new{number}", time=START + number, model="m", checkpoint="d", score=0.5))
    assert log.flush()
    drawn_first = draw_sheet(log, 10, checkpoint="d")
    assert (drawn_first.candidates, {row.request_id[:3] for row in drawn_first.rows}) == (20, {"new"})
    sheet = draw_sheet(log, 15)
    likely = dict(log.tables.read("SELECT request_id, propensity FROM samples WHERE sheet = :s", {"s": sheet.name}))
    first, second = 10 / 20, 15 / 30
    expected = {True: 1 - (1 - first) * (1 - second), False: second}
    assert {name: float(p) for name, p in likely.items()} == {
        name: pytest.approx(expected[name.startswith("new")]) for name in likely
    }
    log.close()


@pytest.mark.parametrize(
    ("events", "checkpoints", "said"),
    [
        ([], "cc", None),
        (
            [("recalibrated", {"from": "c", "to": "n", "until": START + 9})],
            "cc",
            ("10", "--since 2023-11-14T22:13:30Z"),
        ),
        ([("recalibrated", {"from": "c", "to": "n"})], "cc", ("20", "--since")),
        ([("retrained", {"to": "n", "until": START + 4})], "cc", ("5", "--since 2023-11-14T22:13:25Z")),
        ([("recalibrated", {"from": "other", "to": "n", "until": START + 9})], "cc", None),
        ([], "cd", ("10", "--checkpoint d")),
        ([("recalibrated", {"from": "c", "to": "d", "until": START + 9})], "cd", ("10", "--checkpoint d")),
        ([("recalibrated", {"from": "d", "to": "n", "until": START + 14})], "cd", ("15", "--since")),
    ],
)
def test_labels_that_promotion_will_not_count_are_said(
    events: list[tuple[str, dict[str, object]]], checkpoints: str, said: tuple[str, str] | None, tmp_path: Path
) -> None:
    """Ten answers by each checkpoint, a second apart; all are drawn."""
    with ScoreLog.open(tmp_path / "log.sqlite") as log:
        for number in range(20):
            checkpoint = checkpoints[number // 10]
            log.write(Entry(request_id=f"r{number}", time=START + number, model="m", checkpoint=checkpoint, score=0.5))
        assert log.flush()
        for kind, details in events:
            log.event(kind, details, time=START + 30)
        found = will_not_count(log, draw_sheet(log, 99).rows)
    if said is None:
        assert found == ""
    else:
        assert found.startswith(f"of these 20 answers {said[0]} will not count for `promote`: ")
        assert said[1] in found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": 0}, "budget 0; expected at least one"),
        ({"budget": 1, "floor": 0.0}, "floor 0.0; expected more than 0"),
        ({"budget": 1, "since": START + 99}, "none of the 0 answers"),
    ],
)
def test_what_cannot_be_drawn_is_said(tmp_path: Path, given: dict[str, float], message: str) -> None:
    with filled(tmp_path / "log.sqlite", [0.5]) as log, pytest.raises(LogError, match=message):
        draw_sheet(log, **given)  # type: ignore[arg-type]


def test_answers_that_the_gate_ended_are_neither_drawn_nor_counted_as_answers(tmp_path: Path) -> None:
    with filled(tmp_path / "log.sqlite", [0.9] * 20) as log:
        for number in range(100, 140):
            ended = Entry(request_id=f"r{number}", time=START + number, score=0.1, model="m", checkpoint="c", tokens=4)
            log.write(replace(ended, action="stop" if number % 2 else "escalate"))
        assert log.flush()
        assert (len(log.columns()), len(log.columns(gated=True))) == (20, 60)
        assert log.columns().score.max() == log.columns().score.min() == 0.9
        sheet = draw_sheet(log, 60)
        assert sorted(row.request_id for row in sheet.rows) == sorted(f"r{number}" for number in range(20))
        [first, *_] = estimate_log(log.columns())
        assert (first["rows"], first["value"]) == (20, pytest.approx(0.9))
