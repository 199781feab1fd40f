"""The bets of a drift watch, worked out by hand: what each is multiplied by, and what the money becomes."""

from math import log, log2

import pytest

from metaprobe.monitoring.answer_lengths import LEAST, AnswerLengths
from metaprobe.monitoring.drift import (
    LABEL_BETS,
    RANK_BETS,
    DriftWatch,
    NameRanks,
    NumberRanks,
    RankBets,
    Wealth,
    label_factors,
    place_count,
    place_score,
)
from metaprobe.records.errors import RecordError


def test_bets_on_a_rank_are_the_densities_that_their_names_say() -> None:
    factors = dict(zip(RANK_BETS, RankBets().factors(0.25), strict=True))  # of equal names the last stays: 0.85
    assert factors == pytest.approx(
        {
            "lower": 0.85 * 0.25**-0.15,
            "higher": 0.85 * 0.75**-0.15,
            "more extreme": (0.85 * 0.25**-0.15 + 0.85 * 0.75**-0.15) / 2,
            "closer to the middle": 6 * 0.25 * 0.75,
            "otherwise distributed": 1.0,
        }
    )
    assert RankBets().factors(0.25)[:3] == pytest.approx([s * 0.25 ** (s - 1) for s in (0.3, 0.6, 0.85)])


def test_the_bet_on_any_shape_learns_which_tenths_come_and_forgets_them() -> None:
    bets = RankBets()
    assert bets.factors(0.05)[-1] == pytest.approx(1.0)
    assert bets.factors(0.07)[-1] == pytest.approx(10 * (1 + 3) / (1 + 30))
    kept = 1 * (1 - 1 / 300)
    assert bets.seen[0] == pytest.approx(kept + 1)
    assert bets.factors(0.95)[-1] == pytest.approx(10 * 3 / (kept + 1 + 30))
    assert bets.factors(1.0)[-1] == pytest.approx(10 * (3 + 1) / (sum([kept * kept + kept, 1]) + 30), rel=1e-3)
    assert bets.seen[9] == pytest.approx(1 * (1 - 1 / 300) + 1)


def test_a_rank_at_either_end_wins_much_and_not_everything() -> None:
    for rank in (0.0, 1.0):
        factors = RankBets().factors(rank)
        assert max(factors) == pytest.approx(0.3 * 1e-9**-0.7, rel=1e-6)
        assert min(factors) > 0


@pytest.mark.parametrize(("score", "label"), [(0.9, 0), (0.9, 1), (0.2, 0), (0.2, 1)])
def test_bets_on_a_label_pay_what_the_score_missed_less_the_tolerance(score: float, label: int) -> None:
    factors = label_factors(score, label, 0.05)
    missed = label - score
    outwards = missed if score > 0.5 else -missed
    paid = {
        "too high": -missed,
        "too low": missed,
        "too far from the middle": -outwards,
        "too near the middle": outwards,
    }
    stakes = (0.1, 0.3, 0.8)
    expected = [1 + stakes[i % 3] * (paid[name] - 0.05) / 1.05 for i, name in enumerate(LABEL_BETS)]
    assert factors == pytest.approx(expected)


def test_money_is_bet_little_by_little_and_what_is_not_yet_bet_is_kept() -> None:
    wealth = Wealth.of(2)
    assert wealth.evidence == 1.0
    first = (1 - 1 / log2(3)) / 2
    wealth.add([3.0, 0.1])
    assert wealth.money == pytest.approx([3 * first, 0.1 * first])
    assert wealth.evidence == pytest.approx(3.1 * first + 1 / log2(3))
    second = (1 / log2(3) - 1 / log2(4)) / 2
    wealth.add([2.0, 0.0])
    assert wealth.money == pytest.approx([2 * (3 * first + second), 0.0])
    assert (wealth.winner, wealth.steps) == (0, 2)
    assert wealth.best[0] == pytest.approx(log(first) + log(3) + log(2))
    assert wealth.began == [0, 1]  # the second bet lost: it is as good to begin it only now


def test_scores_are_ranked_by_their_log_odds_and_counts_by_their_ratio() -> None:
    assert [place_score(p) for p in (0.5, 1 / (1 + 2.718281828459045**-1))] == [500, 550]
    assert (
        place_score(0.0) == -191
    )  # the log-odds of 1e-6 are -13.8: below the grid, where ranks put them into its first bin
    assert place_score(1.0) == 1190
    assert [place_count(n) for n in (0, 1, 3, 1023, -5)] == [0, 50, 100, 500, 0]
    ranks = NumberRanks(place_score)
    assert [ranks.rank(p, 0.5) for p in (0.0, 1.0, 0.5, 0.5)] == pytest.approx([0.5, 1.5 / 2, 1.5 / 3, 2 / 4])


def test_a_rare_name_ranks_low_and_equally_rare_ones_share_their_place() -> None:
    ranks = NameRanks()
    assert [ranks.rank(name, 0.5) for name in "aab"] == pytest.approx([0.5, 0.5, 0.5 / 3])
    assert ranks.rank("c", 0.5) == pytest.approx(0.5 * 2 / 4)
    assert ranks.rank("c", 0.5) == pytest.approx((1 + 0.5 * 4) / 5)


@pytest.mark.parametrize(
    "wrong", [{"tolerance": 1.0}, {"tolerance": -0.1}, {"false_alarms": 0.0}, {"false_alarms": 1.0}, {"batch": 0}]
)
def test_settings_at_the_edge_of_what_can_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(RecordError, match="expected at least one stream, a share between 0 and 1"):
        DriftWatch(**wrong)  # type: ignore[arg-type]
    DriftWatch(tolerance=0.0, reference=1, batch=1)
    with pytest.raises(RecordError, match="reference 0"):
        DriftWatch(reference=0)


def test_what_an_ended_answer_spared_is_what_longer_ones_still_had_to_come() -> None:
    lengths = AnswerLengths()
    for more in range(LEAST):
        lengths.add("m", 10)
        assert lengths.estimate_left("m", 10) is None
        assert lengths.estimate_left("m", 9) == (1 if more == LEAST - 1 else None)
        lengths.add("n", 100 + more)
    assert lengths.estimate_left("n", 90) == round(10 + (LEAST - 1) / 2)
    assert lengths.estimate_left("n", 90, most=95) == 5
    assert lengths.estimate_left("n", 90, most=80) == 0
    assert lengths.estimate_left("unknown", 0) is None
