"""What the router does with what its heads say: known answers, worked out by hand from prices, gains and waiting."""

import dataclasses
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.checkpoints import ContractMismatch
from metaprobe.probes.signals import Signal, Signals
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.routing.learned import AGENTS, ANY, GAIN, INPUT, KIND, SUCCESS, WORDS, LearnedRouter
from metaprobe.routing.learned_budget import Alone, Point, lambda_of_budget, plan_of
from metaprobe.routing.learned_play import play
from metaprobe.routing.learned_policy import DRAWS, AgentPolicy, draw_confidences, load_policy
from metaprobe.routing.learned_state import FLOOR, PRICED, AskedAgent, Known, Past
from metaprobe.routing.learned_stored import WordScores, word_buckets
from metaprobe.routing.policy import ASK, EXECUTE, State
from metaprobe.routing.same_answers import agreement, content

TEAM = ("a", "b", "c", "d", "e")
PRICE = dict(zip(TEAM, (0.0, 0.0001, 0.0002, 0.0004, 0.0008), strict=True))
SECONDS = dict(zip(TEAM, (1.0, 2.0, 5.0, 3.0, 4.0), strict=True))
RATE = dict(zip(TEAM, (0.5, 0.6, 0.7, 0.8, 0.9), strict=True))


class Heads:
    """Heads that say what they are told, and remember what they were asked."""

    def __init__(self, success: Sequence[float], gain: Sequence[float]) -> None:
        self.success, self.gain = success, gain
        self.seen: list[np.ndarray] = []

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.seen.append(feeds[INPUT])
        return {SUCCESS: np.array(self.success), GAIN: np.array(self.gain)}


def router(heads: Heads | None = None, *, max_asked: int = 3, margin: float = 0.05, **prices: Any) -> LearnedRouter:
    """A router whose heads are written down: no model decides here."""
    past = {
        name: {
            ANY: {"rate": math.log(RATE[name] / (1 - RATE[name])), "price_usd": PRICE[name], "seconds": SECONDS[name]}
        }
        for name in TEAM
    }
    contract = {
        "columns": list(PRICED),
        "curve": [[0.1, 0.9, 1.0]],
        "alone": [],
        "max_asked": max_asked,
        "margin": margin,
        "offered": list(TEAM),
    }
    checkpoint = SimpleNamespace(
        path=Path("written"),
        digest="0" * 64,
        manifest=SimpleNamespace(kind=KIND, contract=contract, thresholds={"lambda": 0.1}),
        extra={AGENTS: json.dumps(past).encode(), WORDS: b""},
        session=heads or Heads([0.5] * 5, [0.0] * 5),
    )
    return LearnedRouter(checkpoint, **prices)  # type: ignore[arg-type]


def known(*asked: str) -> Known:
    return Known({name: AskedAgent(f"answer of {name}") for name in asked})


def test_the_first_agent_is_the_one_whose_chance_and_gain_less_its_price_are_most() -> None:
    """Before anybody was asked the gain is on top of the agent's own chance; whom to ask is asked whatever it costs."""
    heads = Heads([0.5, 0.6, 0.7, 0.8, 0.9], [0.1, 0.1, 0.2, 0.1, 0.0])
    worth = {name: heads.success[i] + heads.gain[i] - 1000 * PRICE[name] for i, name in enumerate(TEAM)}
    found = router(heads, lambda_=1.0).decide(known())
    assert found.scores == pytest.approx(worth)
    assert (found.action, found.agent, found.expected) == ("ask", "c", 0.7)
    poor = router(Heads([0.1] * 5, [-0.5] * 5), lambda_=1.0).decide(known())
    assert (poor.action, poor.agent) == ("ask", "a"), "all are worth less than nothing, and one must answer"


@pytest.mark.parametrize(
    ("gain", "margin", "action"),
    [(0.26, 0.05, "ask"), (0.24, 0.05, "keep"), (0.24, 0.03, "ask"), (0.21, 0.0, "ask"), (0.19, 0.0, "keep")],
)
def test_another_is_asked_where_its_gain_less_its_price_is_above_the_margin(
    gain: float, margin: float, action: str
) -> None:
    """Agent c costs 0.2 dollars for 1,000 questions, at one right answer a dollar; its worth alone is no part of it."""
    heads = Heads([0.3, 0.5, 0.99, 0.2, 0.2], [0.0, 0.0, gain, 0.0, 0.0])
    found = router(heads, margin=margin, lambda_=1.0).decide(known("b"))
    assert (found.action, found.agent) == (action, "c" if action == "ask" else "b")
    assert found.scores["c"] == pytest.approx(gain - 0.2)


def test_a_gain_of_just_the_margin_is_not_enough() -> None:
    heads = Heads([0.5] * 5, [0.5, 0.0, 0.0, 0.0, 0.0])
    assert router(heads, margin=0.5, lambda_=1.0).decide(known("b")).action == "keep", "agent a costs nothing"


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5])
def test_no_more_are_asked_than_the_contract_says_and_then_the_likeliest_answer_is_kept(most: int) -> None:
    heads = Heads([0.2, 0.8, 0.4, 0.6, 0.5], [9.0] * 5)
    found = router(heads, max_asked=most, lambda_=1.0)
    for count in range(most):
        assert found.decide(known(*TEAM[:count])).action == "ask"
    last = found.decide(known(*TEAM[:most]))
    assert (last.action, last.agent) == ("keep", "a" if most == 1 else "b")
    assert last.expected == heads.success[TEAM.index(last.agent)]


def test_waiting_is_priced_by_each_agents_own_time_in_what_is_decided_and_in_what_the_gain_head_reads() -> None:
    heads = Heads([0.5] * 5, [0.5] * 5)
    found = router(heads, lambda_=0.5, per_second=0.03).decide(known("a"))
    dues = {name: 0.5 * 1000 * PRICE[name] + 0.03 * SECONDS[name] for name in TEAM}
    assert {name: found.scores[name] for name in TEAM[1:]} == pytest.approx({n: 0.5 - dues[n] for n in TEAM[1:]})
    assert found.agent == "b"
    log_priced, log_lambda = heads.seen[0][:, -2], heads.seen[0][:, -1]
    expected = [math.log(0.5 * max(1000 * PRICE[name], FLOOR) + 0.03 * SECONDS[name]) for name in TEAM]
    np.testing.assert_allclose(log_priced, expected, rtol=1e-5)
    np.testing.assert_allclose(log_lambda, math.log(0.5), rtol=1e-6)
    unpriced = router(heads, lambda_=0.5)
    unpriced.decide(known("a"))
    expected = [math.log(0.5 * max(1000 * PRICE[name], FLOOR)) for name in TEAM]
    np.testing.assert_allclose(heads.seen[1][:, -2], expected, rtol=1e-5)


def test_of_an_agent_that_was_added_the_heads_read_what_the_words_say_of_agents_on_average() -> None:
    heads = Heads([0.5] * 6, [0.0] * 6)
    found = router(heads).with_agent("new", {ANY: Past(rate=0.0, price_usd=0.0001)})
    said = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.9], dtype=np.float32)  # of each agent, and their mean
    found._texts = lambda question: tuple(said.tolist())
    found.decide(Known(question="blue"))
    np.testing.assert_allclose(heads.seen[0][:, PRICED.index("text")], said, rtol=1e-6)


def test_with_three_others_asked_the_heads_read_all_three() -> None:
    """Rates stand for confidences that were not stated; the answers of b and c agree."""
    heads = Heads([0.5] * 5, [0.0] * 5)
    asked = {"b": AskedAgent("Nile"), "c": AskedAgent("the Nile"), "d": AskedAgent("Amazon")}
    router(heads, max_asked=5, lambda_=1.0).decide(Known(asked))
    row = dict(zip(PRICED, heads.seen[0][TEAM.index("e")].tolist(), strict=True))
    odds = [math.log(RATE[name] / (1 - RATE[name])) for name in "bcd"]
    assert row["others"] == 3
    assert row["best_other"] == pytest.approx(max(odds))
    assert row["worst_other"] == pytest.approx(min(odds))
    assert row["mean_other"] == pytest.approx(sum(odds) / 3)
    assert row["surprise"] == pytest.approx(0, abs=1e-6)
    assert row["pair_agreement"] == pytest.approx(0.5 / 3), "one pair of three shares one of two words"
    mine = dict(zip(PRICED, heads.seen[0][TEAM.index("d")].tolist(), strict=True))
    assert (mine["asked"], mine["others"], mine["pair_agreement"]) == (1, 2, pytest.approx(0.5))
    assert mine["agreeing"] == 0
    assert mine["disagreeing"] == pytest.approx(odds[0] + odds[1] + 2 * 1.5)
    assert mine["best_disagreeing"] == pytest.approx(odds[1])
    assert math.isnan(mine["best_agreeing"])


@pytest.mark.parametrize("lambda_", [0.0, -1.0, math.inf, math.nan])
def test_a_lambda_that_prices_nothing_is_refused_wherever_it_is_given(lambda_: float) -> None:
    with pytest.raises(RecordError, match="expected a number above 0"):
        router(lambda_=lambda_)
    with pytest.raises(RecordError, match="expected a number above 0"):
        router(lambda_=1.0).at(lambda_)


@pytest.mark.parametrize("per_second", [-0.1, math.inf, math.nan])
def test_a_second_cannot_cost_less_than_nothing(per_second: float) -> None:
    with pytest.raises(RecordError, match="expected a number of at least 0"):
        router(lambda_=1.0, per_second=per_second)


def test_the_fixed_rule_pays_for_waiting_and_keeps_the_answer_of_the_best_past() -> None:
    """Falls back as a stranger was asked: highest past rate less price and waiting, of those that may be asked."""
    for prices, chosen in (
        ({"lambda_": 0.001}, "e"),
        ({"lambda_": 0.5}, "d"),
        ({"lambda_": 0.001, "per_second": 0.11}, "d"),
        ({"lambda_": 0.001, "per_second": 0.9}, "a"),
    ):
        found = router(**prices).decide(Known({"stranger": AskedAgent("x")}))
        worth = {
            name: RATE[name] - 1000 * prices["lambda_"] * PRICE[name] - prices.get("per_second", 0.0) * SECONDS[name]
            for name in TEAM
        }
        assert found.scores == pytest.approx(worth)
        assert (found.action, found.agent, found.fallback) == ("ask", chosen, True)
    kept = router(lambda_=50.0).decide(Known({"stranger": AskedAgent("x"), "b": AskedAgent("y"), "d": AskedAgent("z")}))
    assert (kept.action, kept.agent) == ("keep", "d"), "what was paid for is paid for"


def test_a_price_rises_with_the_length_of_the_question_and_never_falls_below_a_fifth() -> None:
    past = Past(rate=0.0, price_usd=0.001, price_per_char=0.00001, mean_chars=50.0)
    assert past.price(150) == pytest.approx(0.002)
    assert past.price(50) == past.price(0) == 0.001  # 0: the question is not known
    assert Past(rate=0.0, price_usd=0.001, price_per_char=0.0001, mean_chars=50.0).price(1) == pytest.approx(0.0002)
    assert Past(rate=0.0, price_usd=0.001).price(999) == 0.001


def test_a_confidence_is_scored_between_the_knots_and_flat_outside_them() -> None:
    past = Past(rate=0.0, price_usd=0.0, knots=(0.2, 0.4, 0.8), scores=(-1.0, 0.0, 2.0))
    scores = [past.score(confidence) for confidence in (0.0, 0.2, 0.3, 0.4, 0.7, 0.8, 1.0)]
    assert scores == pytest.approx([-1, -1, -0.5, 0, 1.5, 2, 2])
    # A tenth of the range beyond either end, and a little for rounding.
    assert [past.odd(confidence) for confidence in (0.139, 0.14, 0.86, 0.861, -math.inf, math.inf)] == [
        True, False, False, True, False, True
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("It is 12.", "it is 12", 1.0), ("", "", 0.0), ("a b", "b c", 1 / 3), ("a", "", 0.0), ("1,234", "1234", 1.0),
     ("so 5 and 6\n#### 7", "7", 1.0), (r"\boxed{1.5}", "1.5", 1.0)],
)  # fmt: skip
def test_answers_agree_by_what_they_consist_of(one: str, other: str, same: float) -> None:
    assert agreement(content(one), content(other)) == pytest.approx(same)


def test_drawn_confidences_are_the_quantiles_of_those_that_were_given() -> None:
    past = Past(rate=0.0, price_usd=0.0, knots=(0.1, 0.9), scores=(-0.67448975, 0.67448975), stated=1.0)
    found = draw_confidences(past, 0)
    assert found.count(0.1) == found.count(0.9) == DRAWS / 2
    half = draw_confidences(dataclasses.replace(past, stated=0.5), 0)
    assert half.count(None) == DRAWS / 2
    assert half.count(0.1) == half.count(0.9) == DRAWS / 4
    assert found != draw_confidences(past, 1)
    # The nearest share: 0.53 of 32 is 16.96, 0.51 of them 16.32.
    assert [draw_confidences(dataclasses.replace(past, stated=share), 0).count(None) for share in (0.53, 0.51)] == [
        15,
        16,
    ]
    for silent in (dataclasses.replace(past, knots=(), scores=()), dataclasses.replace(past, stated=0.0)):
        assert draw_confidences(silent, 0) == [None] * DRAWS


def test_words_are_read_up_to_400_with_their_neighbours_once_each() -> None:
    assert len(word_buckets("Cat cat CAT")) == 2  # the word, and the pair
    assert word_buckets("cat dog").tolist() == sorted({zlib.crc32(t) % 8192 for t in (b"cat", b"dog", b"cat dog")})
    said = [f"w{n}" for n in range(401)]
    assert word_buckets(" ".join(said)).tolist() == word_buckets(" ".join(said[:400])).tolist()
    assert word_buckets(" ".join(said[:400])).tolist() != word_buckets(" ".join(said[:399])).tolist()
    weights = np.zeros((8192, 2), np.float32)
    squares = np.zeros(8192, np.float32)
    table = WordScores(weights, squares)
    assert table.of("cat") is None  # no known word
    (at,) = word_buckets("cat")
    weights[at], squares[at] = (3.0, 1.0), 4.0
    assert table.of("cat") == (1.5, 0.5)
    assert table.of("") is None
    assert WordScores(weights[:0], squares[:0]).of("cat") is None


def test_in_an_agents_place_asking_costs_every_price_and_the_longest_wait() -> None:
    """Worth of asking: the best other's chance less its answer's price, less all confidences' and the longest time."""
    heads = Heads([0.5, 0.3, 0.9, 0.6, 0.7], [0.0] * 5)
    lambda_, second, part = 0.2, 0.01, 0.25
    policy = AgentPolicy(router(heads, lambda_=lambda_, per_second=second, margin=0.05), assessment=part)
    state = State("d", "assess", Signals(confidence=Signal(0.5, "")), "b")
    found = policy.decide(state, (EXECUTE, ASK))
    others = tuple(name for name in TEAM if name != "b")

    def due(name: str, share: float) -> float:
        return share * (1000 * lambda_ * PRICE[name] + second * SECONDS[name])

    best = max(heads.success[TEAM.index(name)] - due(name, 1 - part) for name in others)
    confidences = part * (sum(1000 * lambda_ * PRICE[name] for name in others) + second * 5.0)
    needed = best - confidences + due("b", 1 - part) - 0.05
    assert found.scores == pytest.approx({EXECUTE: 0.3, ASK: needed})
    assert found.action == ASK
    handed = policy.decide(State("d", "assign", state.signals, "b", dict.fromkeys(others, state.signals)), others)
    assert handed.action == "c"


def test_of_ways_within_the_means_the_most_accurate_is_taken_and_of_equals_the_cheapest() -> None:
    curve = [
        Point(0.1, 0.8, 2.0, 0.0, 9.0),
        Point(0.2, 0.8, 1.0, 0.1, 4.0),
        Point(0.4, 0.7, 0.5, 0.2, 2.0),
    ]
    assert plan_of(curve, [], [], budget=5, seconds=10).lambda_ == 0.2
    assert plan_of(curve, [], [], budget=0.6, seconds=10).lambda_ == 0.4
    assert plan_of(curve, [], [], seconds=3).per_second == 0.2
    late = Alone("late", 0.99, 0.1, None)
    assert plan_of(curve, [], [late], seconds=10).agent == "", "of whose time nothing is known is not within a limit"
    assert plan_of(curve, [], [late], budget=10).agent == "late"
    same = [Point(0.3, 0.9, 1.0), Point(0.6, 0.9, 0.5), Point(0.9, 0.6, 0.2)]
    assert lambda_of_budget(same, 5.0) == 0.6


def test_a_budget_of_nothing_is_kept_by_what_costs_nothing() -> None:
    free, dear = Point(0.9, 0.6, 0.0), Point(0.1, 0.8, 2.0)
    assert plan_of([dear, free], [], [], budget=0.0).lambda_ == 0.9
    assert plan_of([dear, free], [], [Alone("local", 0.7, 0.0)], budget=0.0).agent == "local"
    with pytest.raises(RecordError, match=r"a budget of 0 US dollars .* is below 2, the cheapest way"):
        plan_of([dear], [], [], budget=0.0)


def altered(**changes: Any) -> SimpleNamespace:
    """The written checkpoint with other contents: of its contract, of `pasts`, or of `words`."""
    whole = router().checkpoint
    pasts, words = changes.pop("pasts", None), changes.pop("words", b"")
    extra = {AGENTS: whole.extra[AGENTS] if pasts is None else json.dumps(pasts).encode(), WORDS: words}
    manifest = SimpleNamespace(kind=KIND, contract={**whole.manifest.contract, **changes}, thresholds={"lambda": 0.1})
    return SimpleNamespace(**{**vars(whole), "manifest": manifest, "extra": extra})


PAST = {"rate": 0.0, "price_usd": 0.0}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"columns": ["rate"]}, r"expected the columns .*, got \['rate'\]; train it again with"),
        ({"pasts": {"a": {ANY: {**PAST, "knots": [0.1, 0.9], "scores": [0.0]}}}}, "a: 2 knots and 1 scores"),
        ({"pasts": {"a": {"sums": PAST}}}, "a has no past for unknown dimensions"),
        ({"words": np.zeros(7, dtype="<f4").tobytes()}, "has 1 rows; expected 8192"),
        ({"words": np.zeros(8, dtype="<f4").tobytes()}, "no whole router"),
        ({"columns": None}, "got None; train it again with"),
        ({"confidence_sources": -1}, "no whole router"),
        ({"confidence_sources": "x"}, "no whole router"),
        ({"offered": 5}, "no whole router"),
    ],
)
def test_a_checkpoint_that_is_no_whole_router_is_refused_with_what_is_wrong(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ContractMismatch, match=why):
        LearnedRouter(altered(**changes))  # type: ignore[arg-type]


def test_it_names_its_dimensions_and_knows_an_agent_over_all_where_the_dimension_is_new() -> None:
    sums, words = {**PAST, "rate": 2.0}, {**PAST, "rate": 1.0}
    pasts = {"a": {ANY: PAST, "words": words, "sums": sums}, "b": {ANY: PAST, "words": words}}
    found = LearnedRouter(altered(pasts=pasts, offered=["a", "b"]))  # type: ignore[arg-type]
    assert found.dimensions == ("sums", "words")
    assert [found.past("a", name).rate for name in ("sums", "words", "new", ANY)] == [2.0, 1.0, 0.0, 0.0]
    assert found.past("b", "sums").rate == 0.0
    with pytest.raises(RecordError, match=r"agent 'c' has pasts on \['sums'\]; one for the key \"\" is needed too"):
        found.with_agent("c", {"sums": found.past("a", "sums")})


def test_means_must_be_given_one_way_and_a_plan_needs_some() -> None:
    with pytest.raises(ValueError, match="budget and seconds fix lambda_ and per_second"):
        router(budget=1.0, per_second=0.1)
    with pytest.raises(ValueError, match="neither a budget nor seconds were given"):
        plan_of([Point(0.1, 0.8, 2.0)], [], [])


def test_a_policy_that_is_given_means_in_two_ways_names_what_was_given() -> None:
    with pytest.raises(RecordError, match=r"\{'budget': 1\.0, 'per_second': 0\.1\}: budget and seconds fix lambda"):
        load_policy("bundled:router", budget=1.0, per_second=0.1)


def test_a_question_without_a_scored_outcome_of_a_known_agent_cannot_be_played() -> None:
    stranger = {"z": AgentOutcome("x", 1.0, None, 0.0), "a": AgentOutcome("y", None, None, 0.0)}
    with pytest.raises(RecordError, match=r"question q has no scored outcome of an agent the router knows \(a, b"):
        play(router(), QuestionOutcomes("q", "g", agents=stranger))


def test_what_was_asked_is_paid_and_waited_for_and_what_is_not_recorded_counts_nothing() -> None:
    heads = Heads([0.2, 0.8, 0.4, 0.6, 0.5], [0.9, 0.8, 0.7, 0.6, 0.5])
    agents = {
        "a": AgentOutcome("x", 0.0, None, 0.5, latency_ms=100.0),
        "b": AgentOutcome("y", 1.0, None, None, latency_ms=None),
        "c": AgentOutcome("y", 0.5, None, 0.25, latency_ms=30.0),
        "d": AgentOutcome("y", 0.5, None, 8.0, latency_ms=800.0),
        "e": AgentOutcome("y", 0.5, None, 8.0, latency_ms=800.0),
    }
    game = play(router(heads, max_asked=3, lambda_=0.01), QuestionOutcomes("q", "g", agents=agents))
    assert (game.asked, game.kept, game.expected, game.score) == (("b", "a", "c"), "b", 0.8, 1.0)
    assert (game.cost_usd, game.latency_ms, game.fell_back) == (0.75, 130.0, False)


BLANK = (AskedAgent("", None), AskedAgent(" \n"), AskedAgent(None), AskedAgent("", math.nan))
FAILED = (AskedAgent.failed("timed out"), AskedAgent.failed(TimeoutError()), AskedAgent("42", 0.9, error=""), *BLANK)


@pytest.mark.parametrize("gave", FAILED)
def test_a_failed_agent_is_neither_kept_nor_asked_again_and_is_named(gave: AskedAgent) -> None:
    """The heads see a panel without it, and would have kept it: its past is the best."""
    heads = Heads([0.5, 0.6, 0.7, 0.8], [0.0] * 4)
    kept = router(heads, lambda_=1.0).decide(Known({"e": gave, "b": AskedAgent("answer of b")}))
    assert (kept.action, kept.agent, kept.fallback) == ("keep", "b", False)
    assert f"e ({gave.failure})" in kept.reason
    assert heads.seen[0].shape[0] == 4
    on = router(Heads([0.5, 0.6, 0.7, 0.8], [0.0] * 4), lambda_=0.1).decide(Known({"e": gave}))
    assert (on.action, on.agent) == ("ask", "d"), "nothing was heard, so the first is asked anew: d is worth 0.8 - 0.04"


def test_an_agent_that_answered_without_a_text_or_without_a_confidence_did_not_fail() -> None:
    for gave in (AskedAgent("42"), AskedAgent("", 0.5), AskedAgent("", -math.inf), AskedAgent(untold=True)):
        assert gave.failure == ""
    assert AskedAgent.failed().failure == "no reason was given"
    assert AskedAgent.failed(ValueError("x\ny")).failure == "ValueError: x y"


def test_failures_do_not_count_among_the_answers_that_may_be_asked_for() -> None:
    asked = {"a": AskedAgent.failed("x"), "b": AskedAgent.failed("y"), "c": AskedAgent("z")}
    found = router(Heads([0.7, 0.8, 0.9], [9.0] * 3), max_asked=2, lambda_=1.0).decide(Known(asked))
    assert (found.action, found.agent) == ("ask", "d"), "one answer was heard, and two may be"


def test_where_every_agent_failed_nothing_is_kept_and_all_are_named() -> None:
    found = router(lambda_=1.0).decide(Known({name: AskedAgent.failed(f"{name} is away") for name in TEAM}))
    assert (found.action, found.agent, found.expected, found.scores) == ("none", "", 0.0, {})
    assert all(f"{name} ({name} is away)" in found.reason for name in TEAM)
    few = router(lambda_=1.0).decide(Known({"a": AskedAgent.failed("x"), "stranger": AskedAgent("y")}, agents=["a"]))
    assert few.action == "none"
    assert "nothing is known of stranger" in few.reason


def test_agents_of_little_use_are_asked_where_all_others_failed() -> None:
    extended = router(lambda_=1.0)
    extended.offered = ("a", "b")
    extended._columns = {"a": 0, "b": 1}
    failed = {"a": AskedAgent.failed("x"), "b": AskedAgent.failed("y")}
    found = extended.decide(Known(failed, agents=None))
    assert found.action == "ask"
    assert found.agent in {"c", "d", "e"}


@given(
    gave=st.dictionaries(
        st.sampled_from((*TEAM, "stranger")),
        st.sampled_from((*FAILED, AskedAgent("42", 0.5), AskedAgent("no"), AskedAgent("", 0.2))),
    ),
    allowed=st.none() | st.lists(st.sampled_from(TEAM), min_size=1, unique=True),
    most=st.integers(1, 5),
    budget=st.booleans(),
)
def test_random_failures_are_never_kept_and_never_raise(
    gave: dict[str, AskedAgent], allowed: list[str] | None, most: int, budget: bool
) -> None:
    class Rising:
        def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            n = len(feeds[INPUT])
            return {SUCCESS: np.linspace(0.2, 0.9, n), GAIN: np.linspace(0.9, -0.2, n)}

    made = router(Rising(), max_asked=most, lambda_=1.0)  # type: ignore[arg-type]
    if budget:
        made.plan = dataclasses.replace(made.plan, agent="c", instead="one agent alone was better")
    asked: dict[str, AskedAgent] = {}
    for _ in range(len(TEAM) + 1):
        step = made.decide(Known(dict(asked), agents=allowed))
        if step.action != "ask":
            break
        assert step.agent not in asked
        asked[step.agent] = gave.get(step.agent, AskedAgent.failed("away"))
    if step.action == "keep":
        assert not asked[step.agent].failure
    else:
        assert step.action == "none"
        assert all(one.failure for one in asked.values())
    before = made.decide(Known(gave, agents=allowed))
    if before.action == "keep":
        assert not gave[before.agent].failure
    if before.action == "ask":
        assert before.agent not in gave or not gave[before.agent].failure


def test_the_agent_policy_neither_executes_nor_delegates_to_who_failed() -> None:
    class Flat:
        def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {SUCCESS: np.linspace(0.2, 0.9, len(feeds[INPUT])), GAIN: np.zeros(len(feeds[INPUT]))}

    policy = AgentPolicy(router(Flat(), lambda_=1.0), assessment=0.5)  # type: ignore[arg-type]
    sure = Signals(confidence=Signal(0.9, "stated"))
    assessed = policy.decide(State.at("assess", agent="e", signals=sure, failed={"e": "timed out"}), [EXECUTE, ASK])
    assert (assessed.action, set(assessed.propensities)) == (ASK, {ASK})
    assert "e (timed out)" in assessed.reason
    others = dict.fromkeys("abcd", sure)
    failed = {"e": "timed out", "d": "away"}
    assigned = policy.decide(State.at("assign", agent="e", signals=sure, others=others, failed=failed), list("abcd"))
    assert (assigned.action, set(assigned.propensities)) == ("c", {"a", "b", "c"})
    assert "d (away)" in assigned.reason
    with pytest.raises(RecordError, match=r"nothing is left to do at assign; failed: a \(x\), e \(y\)"):
        policy.decide(
            State.at("assign", agent="e", others={"a": sure}, failed={"a": "x", "e": "y"}), ["a", "collaborate"]
        )
