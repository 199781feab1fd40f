"""Drift: rings rarely where nothing has changed, soon where something has, and says what and since when."""

import json
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from metaprobe.production.monitoring.drift import (
    LABEL_STREAM,
    RANK_BETS,
    Alarm,
    DriftWatch,
    RankBets,
    label_factors,
)
from metaprobe.records.errors import RecordError

Columns = dict[str, np.ndarray]
READ = ("score", "tokens", "finish_reason")


def answers(rng: np.random.Generator, n: int, *, right: float = 0.7, longer: float = 1.0, cut: float = 0.05) -> Columns:
    y = rng.random(n) < right
    return {
        "score": 1 / (1 + np.exp(-(np.where(y, 1.5, -0.2) + rng.normal(size=n)))),
        "tokens": np.exp(rng.normal(4, 0.7, n)).round() * longer,
        "finish_reason": np.where(rng.random(n) < cut, "length", "stop"),
    }


def after(first: Columns, second: Columns) -> Columns:
    return {name: np.concatenate([first[name], second[name]]) for name in first}


def alarms_of(values: Columns, streams: tuple[str, ...] = READ, **settings: float) -> list[Alarm]:
    watch = DriftWatch(streams, **settings)  # type: ignore[arg-type]
    return watch.update(np.arange(len(next(iter(values.values())))), values)


@pytest.mark.slow
def test_whole_streams_where_nothing_changes_ring_in_at_most_five_percent() -> None:
    rang = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        rang += bool(alarms_of(answers(rng, 1200), seed=seed, reference=30))
    assert rang <= 5


def test_evidence_is_one_on_average_where_nothing_changes() -> None:
    """That is what makes it an e-process; a bet that is worth more than its price would be seen here."""
    rng = np.random.default_rng(1)
    ranks = rng.permutation((np.arange(10_000) + 0.5) / 10_000)  # even, for some bets have no variance
    bets = RankBets()
    means = np.mean([bets.factors(rank) for rank in ranks.tolist()], axis=0)
    assert means == pytest.approx(np.ones(len(RANK_BETS)), abs=0.06)
    p = rng.random(10_000)
    y = rng.random(10_000) < p - 0.05
    means = np.mean([label_factors(s, float(one), 0.05) for s, one in zip(p.tolist(), y.tolist(), strict=True)], axis=0)
    assert (means <= 1.02).all()
    assert means[0] > 0.97, "scores are too high by just what is tolerated"


@pytest.mark.parametrize(
    ("change", "stream", "moved"),
    [
        ({"right": 0.4}, "score", "lower"),
        ({"longer": 1.6}, "tokens", "higher"),
        ({"longer": 0.6}, "tokens", "lower"),
        ({"cut": 0.3}, "finish_reason", "lower"),
    ],
)
def test_a_change_rings_once_soon_and_is_named(change: dict[str, float], stream: str, moved: str) -> None:
    rng = np.random.default_rng(2)
    found = alarms_of(after(answers(rng, 1500), answers(rng, 1500, **change)))
    assert [alarm.stream for alarm in found] == [stream]
    [alarm] = found
    assert 1500 < alarm.time < 2100
    assert abs(alarm.began - 1500) < 150
    assert alarm.evidence >= 60
    assert (alarm.moved, alarm.rows) == (moved, alarm.time + 1)
    assert f" in the last {alarm.since} of {alarm.rows} values, of which the first 200 are the reference" in alarm.text
    said = {"score": "score is lower", "tokens": f"tokens is {moved}", "finish_reason": "rare values are more frequent"}
    assert said[stream] in alarm.text
    assert ("more wrong answers are expected" in alarm.text) == (stream == "score")


def test_scores_that_all_become_one_and_scores_that_spread_are_seen() -> None:
    rng = np.random.default_rng(3)
    usual = {"score": rng.beta(8, 4, 1500)}
    stuck = alarms_of(after(usual, {"score": np.full(500, 0.67)}), ("score",))
    wide = alarms_of(after(usual, {"score": rng.beta(1, 0.5, 500)}), ("score",))
    assert stuck[0].moved in ("closer to the middle", "otherwise distributed")
    assert wide[0].moved == "more extreme"


def test_a_mix_of_tasks_that_changes_is_seen_by_the_tasks_names() -> None:
    rng = np.random.default_rng(4)
    mix = np.concatenate([rng.choice(["faq", "sums", "code"], 1500, p=p) for p in ([0.7, 0.2, 0.1], [0.2, 0.2, 0.6])])
    assert [alarm.stream for alarm in alarms_of({"task": mix}, ("task",))][:1] == ["task"]
    new = np.concatenate([rng.choice(["faq", "sums"], 1500), np.full(60, "poems")])
    assert 1500 <= alarms_of({"task": new}, ("task",))[0].time < 1560
    unlike = np.array([f"question {i}" for i in range(2000)])  # a name for each is no change
    assert alarms_of({"task": unlike}, ("task",)) == []


def labelled(rng: np.random.Generator, n: int, truth: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, ...]:
    p = rng.beta(4, 2, n)
    return np.arange(n), p, (rng.random(n) < truth(p)).astype(float)


def test_labels_ring_where_scores_are_off_and_however_answers_were_chosen() -> None:
    rng = np.random.default_rng(5)
    rang = 0
    for _ in range(30):
        time, p, y = labelled(rng, 1500, lambda p: p - 0.04)  # within the tolerance
        chosen = p < np.where(time < 700, 0.6, 0.9)  # by a rule that changes, and that looks at scores alone
        rang += bool(DriftWatch((LABEL_STREAM,)).update_labels(time[chosen], p[chosen], y[chosen]))
    assert rang <= 2
    [first, *_] = DriftWatch((LABEL_STREAM,)).update_labels(*labelled(rng, 600, lambda p: p - 0.25))
    assert (first.stream, first.moved) == (LABEL_STREAM, "too high")
    assert first.text.startswith("scores are too high, by ")
    [first, *_] = DriftWatch((LABEL_STREAM,)).update_labels(*labelled(rng, 3000, lambda p: 0.5 + 0 * p))
    assert first.moved in ("too high", "too far from the middle")
    assert DriftWatch(("score",)).update_labels([0.0], [0.5], [1.0]) == []
    assert DriftWatch().update_labels([0.0, 1.0], [np.nan, 0.5], [1.0, np.nan]) == []


def test_answers_that_hang_together_ring_falsely_one_by_one_and_not_in_batches() -> None:
    def rang(batch: int) -> int:
        found = 0
        for seed in range(10):
            rng = np.random.default_rng(seed)
            topics = np.repeat(rng.normal(size=100), 20)  # twenty answers of each conversation
            values = {"score": 1 / (1 + np.exp(-(topics + 0.5 * rng.normal(size=2000))))}
            found += bool(alarms_of(values, ("score",), batch=batch, reference=40))
        return found

    assert rang(1) > 5
    assert rang(20) <= 1


def test_day_and_night_ring_falsely_together_and_not_in_strata() -> None:
    rng = np.random.default_rng(6)
    hour = np.repeat(np.arange(12), 250)
    night = hour % 2 == 1
    score = np.where(night, rng.beta(2, 4, 3000), rng.beta(4, 2, 3000))
    time = np.arange(3000)
    assert DriftWatch(("score",)).update(time, {"score": score})
    within = np.where(night, "night", "day")
    assert DriftWatch(("score",)).update(time, {"score": score}, within=within) == []
    worse = np.where(hour >= 6, score**2.5, score)
    assert DriftWatch(("score",)).update(time, {"score": worse}, within=within)[0].time > 1500


def test_what_is_stored_goes_on_as_if_nothing_had_been() -> None:
    rng = np.random.default_rng(7)
    values = after(answers(rng, 1000), answers(rng, 1000, right=0.4, longer=1.3))
    task = rng.choice(["a", "b"], 2000)
    values["task"] = task
    time = np.arange(2000)
    whole = DriftWatch(batch=2, seed=3)
    expected = whole.update(time, values, within=task)
    labels = labelled(rng, 300, lambda p: p)
    expected += whole.update_labels(*labels)
    watch, found = DriftWatch(batch=2, seed=3), []
    for part in (slice(0, 333), slice(333, 1402), slice(1402, 2000)):
        found += watch.update(time[part], {name: column[part] for name, column in values.items()}, within=task[part])
        watch = DriftWatch.from_json(watch.to_json())
    found += watch.update_labels(*labels)
    assert expected
    assert found == expected
    assert watch.evidence == pytest.approx(whole.evidence)


def test_after_an_alarm_the_new_is_what_is_usual() -> None:
    rng = np.random.default_rng(8)
    values = after(after(answers(rng, 1000), answers(rng, 3000, longer=2.0)), answers(rng, 1000))
    found = [alarm for alarm in alarms_of(values) if alarm.stream == "tokens"]
    assert [alarm.moved for alarm in found] == ["higher", "lower"]
    assert found[1].time > 4000


def test_what_is_missing_is_passed_over() -> None:
    rng = np.random.default_rng(9)
    values = after(answers(rng, 1000), answers(rng, 600, longer=2.0))
    holes = {
        name: np.insert(column, 500, ["" if name == "finish_reason" else np.nan] * 50)
        for name, column in values.items()
    }
    assert len(alarms_of(holes)) == 1
    assert alarms_of({"score": np.full(3000, np.nan)}, ("score",)) == []


@pytest.mark.parametrize(
    ("call", "said"),
    [
        *[
            (partial(DriftWatch, **wrong), "expected at least one stream, a share between 0 and 1")
            for wrong in ({"tolerance": 1.0}, {"tolerance": -0.1}, {"false_alarms": 0.0}, {"false_alarms": 1.0})
        ],
        (lambda: DriftWatch(reference=0), "reference 0"),
        (lambda: DriftWatch(("mood",)), "no stream mood; expected some of score, tokens"),
        (lambda: DriftWatch(()), "got 0 streams"),
        (lambda: DriftWatch(batch=0), "batch 0; expected"),
        (lambda: DriftWatch().update([1.0, 2.0], {"score": [0.5]}), r"score has the shape \(1,\)"),
        (lambda: DriftWatch().update_labels([1.0], [0.5], [1.0, 0.0]), "expected as many"),
        (lambda: DriftWatch.from_json("{}"), "no state of a drift watch"),
        (lambda: DriftWatch.from_json("[nonsense"), "no state of a drift watch"),
        (lambda: DriftWatch.from_json(json.dumps({"format": 99})), "format 99; expected"),
    ],
)
def test_what_cannot_be_watched_is_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(RecordError, match=said):
        call()


def test_scores_that_stay_off_are_said_once_and_again_when_that_changes() -> None:
    watch, rng = DriftWatch(("label",)), np.random.default_rng(10)

    def read(score: float, right: float, n: int) -> list[str]:
        label = rng.permutation((np.arange(n) < right * n).astype(float))
        return [alarm.moved for alarm in watch.update_labels(np.arange(float(n)), np.full(n, score), label)]

    assert read(0.2, 0.66, 1000) == ["too low"], "and not once every twenty labels"
    assert read(0.8, 0.3, 1000)[0] == "too high"
    assert read(0.7, 0.7, 2000) == []
    watch = DriftWatch.from_json(watch.to_json())
    assert read(0.8, 0.3, 1000)[:1] == ["too high"], "for it was well in between"


def test_versions_that_are_off_in_opposite_ways_are_each_named_with_their_own_direction() -> None:
    rng = np.random.default_rng(11)
    n = 400
    version = np.where(np.arange(n) % 2 == 0, "a" * 64, "b" * 64)
    score = np.where(version == "a" * 64, 0.33, 0.86)
    right = np.where(version == "a" * 64, 0.70, 0.40)
    label = (rng.random(n) < right).astype(float)
    found = DriftWatch((LABEL_STREAM,)).update_labels(np.arange(float(n)), score, label, version=version)
    assert sorted((alarm.checkpoint[0], alarm.moved) for alarm in found) == [("a", "too low"), ("b", "too high")]
    [low, high] = sorted(found, key=lambda alarm: alarm.checkpoint)
    assert "scores of checkpoint aaaaaaaaaaaa are too low" in low.text
    assert "fewer wrong answers than they say" in low.text
    assert "more wrong answers than they say" in high.text
