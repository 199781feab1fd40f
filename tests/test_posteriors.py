"""Posteriors are the same whatever arrived first, sure when they should be, and follow an agent that changes."""

import itertools
import math
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta as scipy_beta

from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Decision, Item, Label, Run, Statement
from metaprobe.routing.posteriors import Beta, Discount, Posterior, Posteriors, Prior, fitted_discount, prequential
from metaprobe.routing.profiles import (
    Experience,
    Observation,
    Profiles,
    in_order,
    question_observations,
    run_observations,
)

RECORDED = Path(__file__).parent.parent / "recorded" / "metacog-every-agent"
AGENTS, DIMENSIONS = ("a", "b"), ("x", "y", "z")
FOREVER = Discount(math.inf)

OUTCOMES = st.lists(
    st.tuples(
        st.sampled_from(AGENTS),
        st.sampled_from(DIMENSIONS),
        st.sampled_from((0.0, 1.0, 0.25)),
        st.integers(0, 9),  # few, so that several share a time
    ),
    max_size=30,
).map(lambda rows: [Observation(a, d, c, id=f"o{i}", time=float(t)) for i, (a, d, c, t) in enumerate(rows)])
PRIORS = st.builds(Prior, st.floats(0.01, 0.99), st.floats(0.1, 20), st.floats(0.1, 50))
DISCOUNTS = st.builds(Discount, st.one_of(st.just(math.inf), st.floats(0.05, 1000)), st.sampled_from(("count", "time")))


def seen(successes: int, failures: int, agent: str = "a", dimension: str = "x") -> list[Observation]:
    scores = [1.0] * successes + [0.0] * failures
    return [
        Observation(agent, dimension, s, id=f"{agent}/{dimension}/{i}", time=float(i)) for i, s in enumerate(scores)
    ]


def everything(posteriors: Posteriors) -> list[Posterior]:
    """Every posterior there is, and one of a dimension that was never seen."""
    each = [posteriors.of(agent, dimension) for agent in AGENTS for dimension in (*DIMENSIONS, "new")]
    return [*each, *(posteriors.overall(agent) for agent in AGENTS)]


@given(OUTCOMES, PRIORS, DISCOUNTS, st.randoms(use_true_random=False))
def test_the_order_of_arrival_and_repetitions_change_nothing(
    outcomes: list[Observation], prior: Prior, discount: Discount, random: object
) -> None:
    again = outcomes + outcomes[:7]
    random.shuffle(again)  # type: ignore[attr-defined]
    one, other = (Posteriors(past, prior=prior, discount=discount) for past in (outcomes, again))
    assert everything(one) == everything(other)  # to the last bit


def test_one_id_with_two_contents_is_refused() -> None:
    with pytest.raises(RecordError, match=r"observation a/x/0 was .*own id"):
        Posteriors([*seen(1, 0), *seen(0, 1)])


@given(OUTCOMES, PRIORS, DISCOUNTS)
def test_no_parameter_falls_below_its_floor(outcomes: list[Observation], prior: Prior, discount: Discount) -> None:
    posteriors = Posteriors(outcomes, prior=prior, discount=discount)
    for posterior in everything(posteriors):
        floor = min(prior.floor, prior.strength * min(prior.mean, 1 - prior.mean))
        assert min(posterior.prior.alpha, posterior.prior.beta) >= floor > 0
        assert min(posterior.successes, posterior.failures) >= 0
        assert 0 < posterior.mean < 1
        assert 0 < posterior.variance <= 0.25


def test_an_agent_that_always_failed_elsewhere_may_still_be_right_on_a_new_dimension() -> None:
    past = [one for k in range(40) for one in seen(0, 50, dimension=f"d{k}")]
    new = Posteriors(past, prior=Prior(strength=0.01)).of("a", "new")
    assert new.prior.alpha == 0.01
    assert 0 < new.mean < 0.01


@given(OUTCOMES, PRIORS, DISCOUNTS)
def test_the_mean_lies_between_the_prior_and_what_was_seen(
    outcomes: list[Observation], prior: Prior, discount: Discount
) -> None:
    for posterior in everything(Posteriors(outcomes, prior=prior, discount=discount)):
        if posterior.effective_count > 1e-9:
            low, high = sorted((posterior.prior.mean, posterior.successes / posterior.effective_count))
            assert low - 1e-9 <= posterior.mean <= high + 1e-9
        else:
            assert posterior.mean == pytest.approx(posterior.prior.mean)


@given(OUTCOMES.filter(bool), PRIORS, DISCOUNTS, st.data())
def test_a_success_instead_of_a_failure_lowers_no_mean_and_touches_no_other_agent(
    outcomes: list[Observation], prior: Prior, discount: Discount, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(outcomes) - 1))
    turned = outcomes[place]

    def fold(score: float) -> Posteriors:
        one = Observation(turned.agent, turned.dimension, score, id=turned.id, time=turned.time)
        return Posteriors([*outcomes[:place], one, *outcomes[place + 1 :]], prior=prior, discount=discount)

    worse, better = fold(0.0), fold(1.0)
    for agent in AGENTS:
        for dimension in (*DIMENSIONS, "new"):
            before, after = worse.of(agent, dimension).mean, better.of(agent, dimension).mean
            assert after >= before - 1e-12 if agent == turned.agent else after == before


@given(OUTCOMES, PRIORS)
def test_without_discount_the_evidence_is_the_plain_count_and_is_added_to_the_prior(
    outcomes: list[Observation], prior: Prior
) -> None:
    posteriors = Posteriors(outcomes, prior=prior, discount=FOREVER)
    for agent, dimension in itertools.product(AGENTS, DIMENSIONS):
        scores = [one.correct for one in outcomes if (one.agent, one.dimension) == (agent, dimension)]
        posterior = posteriors.of(agent, dimension)
        assert posterior.successes == pytest.approx(sum(scores))
        assert posterior.effective_count == pytest.approx(len(scores))
        assert posterior.belief.alpha == pytest.approx(posterior.prior.alpha + sum(scores))


def test_one_dimension_about_an_agent_that_is_surely_even_is_the_textbook_beta() -> None:
    posterior = Posteriors(seen(7, 2), prior=Prior(0.5, 1e9, concentration=2), discount=FOREVER).of("a", "x")
    assert (posterior.prior.alpha, posterior.prior.beta) == pytest.approx((1, 1))
    assert posterior.mean == pytest.approx(8 / 11)
    assert posterior.variance == pytest.approx(scipy_beta(8, 3).var())


@given(OUTCOMES, st.floats(0.1, 100), st.sampled_from(("count", "time")))
def test_an_outcome_loses_half_its_weight_every_half_life(
    outcomes: list[Observation], half_life: float, by: Literal["count", "time"]
) -> None:
    posteriors = Posteriors(outcomes, discount=Discount(half_life, by))
    for agent, dimension in itertools.product(AGENTS, DIMENSIONS):
        own = [one for one in in_order(outcomes) if one.agent == agent]
        ages = [len(own) - 1 - place if by == "count" else posteriors.now - one.time for place, one in enumerate(own)]
        weighed = [(one, 0.5 ** (age / half_life)) for one, age in zip(own, ages, strict=True)]
        known = [sum(w * one.correct for one, w in weighed if one.dimension == dimension)]
        known.append(sum(w * (1 - one.correct) for one, w in weighed if one.dimension == dimension))
        posterior = posteriors.of(agent, dimension)
        assert [posterior.successes, posterior.failures] == pytest.approx(known)


def test_by_time_an_agent_that_rests_is_forgotten_and_by_count_it_is_not() -> None:
    past = seen(30, 0)
    rested = Posteriors(past, discount=Discount(10, "time"), now=1000.0).of("a", "x")
    assert (rested.mean, rested.effective_count) == pytest.approx((0.5, 0))
    kept = Posteriors(past, discount=Discount(10, "count"))
    assert kept.of("a", "x") == Posteriors(past, discount=Discount(10, "count"), now=1000.0).of("a", "x")
    assert kept.rate_of("a", "x") > 0.9


def test_nothing_later_than_now_is_looked_at() -> None:
    past = seen(5, 5)
    assert everything(Posteriors(past, now=4.0)) == everything(Posteriors(past[:5]))
    assert Posteriors(past, now=-1.0).of("a", "x") == Posteriors().of("a", "x")
    assert (Posteriors().now, Posteriors(past).now, Posteriors(past).agents) == (None, 9.0, ("a",))


def test_a_dimension_shrinks_towards_its_agent_and_a_new_one_starts_there() -> None:
    past = [*seen(90, 10), *seen(80, 20, dimension="y"), *seen(0, 2, dimension="z")]
    posteriors = Posteriors(past, discount=FOREVER)
    assert 0.7 < posteriors.overall("a").mean < 0.85
    assert 0.6 < posteriors.of("a", "new").mean < 0.85
    assert 0.4 < posteriors.of("a", "z").mean < posteriors.of("a", "new").mean  # two failures do not make it hopeless
    assert posteriors.of("a", "x").mean == pytest.approx(0.9, abs=0.02)  # where much was seen, that is what counts
    assert posteriors.of("b", "x").mean == 0.5  # no agent tells of another


@given(st.integers(0, 3000), st.floats(0.5, 50))
def test_one_dimension_alone_never_tells_more_of_the_agent_than_the_spread_between_dimensions_allows(
    n: int, concentration: float
) -> None:
    prior = Prior(concentration=concentration)
    posteriors = Posteriors(seen(n, 0), prior=prior, discount=FOREVER)
    assert posteriors.overall("a").effective_count <= concentration + 1 + 1e-9
    new = posteriors.of("a", "new").prior
    assert new.alpha + new.beta <= concentration + 2 * prior.floor


def test_moments_agree_with_the_exact_hierarchical_posterior_on_a_grid() -> None:
    counts, prior = {"x": (3, 9), "y": (7, 3), "z": (20, 5)}, Prior(0.5, 2.0, 10.0)
    k = prior.concentration
    theta = np.linspace(0.0005, 0.9995, 1000)  # (G,) the agent's rate
    rate = np.linspace(0.0005, 0.9995, 1000)[:, None]  # (R, 1) the rate on x

    def likelihood(successes: int, failures: int) -> np.ndarray:  # (G,) beta-binomial, up to a constant
        return np.prod([k * theta + i for i in range(successes)], axis=0) * np.prod(
            [k * (1 - theta) + i for i in range(failures)], axis=0
        )

    others = math.prod(likelihood(*counts[name]) for name in ("y", "z"))
    density = (scipy_beta.pdf(rate, k * theta, k * (1 - theta)) * (others / others.sum())).sum(1)
    density *= rate[:, 0] ** 3 * (1 - rate[:, 0]) ** 9
    density /= density.sum()
    mean = float(density @ rate[:, 0])
    deviation = math.sqrt(density @ (rate[:, 0] - mean) ** 2)

    past = [one for name, (s, f) in counts.items() for one in seen(s, f, dimension=name)]
    ours = Posteriors(past, prior=prior, discount=FOREVER).of("a", "x")
    assert ours.mean == pytest.approx(mean, abs=0.015)
    assert math.sqrt(ours.variance) == pytest.approx(deviation, rel=0.1)


def planted(rng: np.random.Generator, agents: int, prior: Prior, asked: int) -> tuple[list[Observation], np.ndarray]:
    """Agents drawn from the prior, asked on four dimensions, the last of them seldom; and their true rates (A, 4)."""
    k = prior.concentration
    overall = rng.beta(prior.strength * prior.mean, prior.strength * (1 - prior.mean), agents)[:, None]
    true = rng.beta(k * overall, k * (1 - overall), (agents, 4))
    past = [
        Observation(f"{agent}", f"{dimension}", float(rng.random() < true[agent, dimension]), f"{agent}/{t}", float(t))
        for agent in range(agents)
        for t, dimension in enumerate(rng.choice(4, asked, p=[0.4, 0.3, 0.25, 0.05]))
    ]
    return past, true


@pytest.mark.parametrize("asked", [4, 40])
def test_of_intervals_at_90_percent_nine_in_ten_hold_the_truth(asked: int) -> None:
    prior = Prior(0.6, 4.0, 8.0)
    past, true = planted(np.random.default_rng(0), 250, prior, asked)

    def coverage(prior: Prior) -> tuple[float, float]:
        posteriors = Posteriors(past, prior=prior, discount=FOREVER)
        low, high = np.array(
            [posteriors.of(f"{agent}", f"{dimension}").interval(0.9) for agent, dimension in np.ndindex(true.shape)]
        ).T
        return float(np.mean((low <= true.ravel()) & (true.ravel() <= high))), float(np.mean(high - low))

    held, width = coverage(prior)
    assert held == pytest.approx(0.9, abs=0.035)  # 250 independent agents: a standard error below 0.014
    assert width < (0.75 if asked == 4 else 0.45)
    assert coverage(Prior(0.6, 4.0, concentration=100.0))[0] < 0.8  # as if dimensions hardly differed: they do


def test_an_agent_that_changes_is_followed_and_one_that_does_not_is_known_better_than_by_the_ema() -> None:
    rng, turn, n = np.random.default_rng(1), 400, 800
    errors: dict[str, list[tuple[float, float]]] = {"discounted": [], "plain": [], "ema": []}
    for _ in range(10):
        true = np.where(np.arange(n) < turn, 0.85, 0.35)
        scores = (rng.random(n) < true).astype(float)
        past = [Observation("a", "xyz"[t % 3], score, f"{t}", float(t)) for t, score in enumerate(scores)]
        ema = Profiles()
        for name, discount in (("discounted", Discount(60)), ("plain", FOREVER)):
            means = np.array([posterior.mean for _, posterior in prequential(past, discount=discount)])
            errors[name].append(means - true)
        rates = []
        for one in past:
            rates.append(ema.rate_of(one.agent, one.dimension))
            ema.learn(one)
        errors["ema"].append(np.array(rates) - true)
    off = {name: np.sqrt(np.mean(np.square(rows), axis=0)) for name, rows in errors.items()}  # (n,) each
    steady, changed = slice(turn // 2, turn), slice(turn + 150, n)
    assert off["discounted"][changed].mean() < 0.5 * off["plain"][changed].mean()
    assert off["discounted"][changed].mean() < off["ema"][changed].mean()
    assert off["discounted"][steady].mean() < 0.8 * off["ema"][steady].mean()
    assert off["plain"][steady].mean() < off["discounted"][steady].mean()  # forgetting has its price


def test_the_fitted_half_life_is_short_for_an_agent_that_keeps_changing_and_long_for_one_that_does_not() -> None:
    rng = np.random.default_rng(2)

    def past(rates: np.ndarray) -> list[Observation]:
        return [Observation("a", "x", float(rng.random() < rate), f"{t}", float(t)) for t, rate in enumerate(rates)]

    for by in ("count", "time"):
        assert fitted_discount(past(np.full(900, 0.7)), by=by).half_life >= 200
        assert fitted_discount(past(np.where(np.arange(900) // 100 % 2, 0.1, 0.9)), by=by).half_life <= 25
    assert fitted_discount([]) == FOREVER  # nothing speaks for forgetting


@given(OUTCOMES, PRIORS, DISCOUNTS)
@settings(max_examples=50)
def test_a_forecast_is_the_fold_of_what_was_strictly_earlier(
    outcomes: list[Observation], prior: Prior, discount: Discount
) -> None:
    forecasts = list(prequential(outcomes, prior=prior, discount=discount))
    assert [one for one, _ in forecasts] == in_order(outcomes)
    for one, posterior in forecasts:
        earlier = [other for other in outcomes if other.time < one.time]
        known = Posteriors(earlier, prior=prior, discount=discount, now=one.time).of(one.agent, one.dimension)
        assert posterior == known


@given(st.floats(0.01, 1e5), st.floats(0.01, 1e5), st.floats(0.001, 0.999))
def test_quantiles_agree_with_scipy(alpha: float, beta: float, level: float) -> None:
    # 1e-4: what the grid is documented for, between its points and beyond its ends.
    assert Beta(alpha, beta).quantiles([level])[0] == pytest.approx(scipy_beta.ppf(level, alpha, beta), abs=1e-4)


def test_draws_follow_the_posterior_and_the_generator() -> None:
    posteriors = Posteriors([*seen(8, 2), *seen(3, 7, agent="b")], discount=FOREVER)
    rng = np.random.default_rng(0)
    draws = np.array([list(posteriors.draw(AGENTS, "x", rng).values()) for _ in range(4000)])
    for column, agent in enumerate(AGENTS):
        posterior = posteriors.of(agent, "x")
        assert draws[:, column].mean() == pytest.approx(posterior.mean, abs=0.01)
        assert draws[:, column].var() == pytest.approx(posterior.variance, rel=0.1)
    first, second = (posteriors.draw(AGENTS, "x", np.random.default_rng(5)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Prior(mean=0.0), "mean is 0.0"),
        (lambda: Prior(strength=0), "strength is 0"),
        (lambda: Prior(concentration=math.inf), "concentration is inf"),
        (lambda: Prior(floor=math.nan), "floor is nan"),
        (lambda: Discount(0.0), "half-life is 0.0"),
        (lambda: Discount(5, "days"), "by 'days'"),
        (lambda: Observation("a", "x", 1.5, "o", 0), "correct is 1.5"),
        (lambda: Observation("a", "x", math.nan, "o", 0), "correct is nan"),
        (lambda: Observation("a", "x", 1, "o", math.inf), "time is inf"),
        (lambda: Observation("a", "x", 1, "", 0), "must have a name"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make: object, says: str) -> None:
    with pytest.raises(RecordError, match=says):
        make()  # type: ignore[operator]


def test_a_run_gives_what_was_executed_and_on_request_what_answered_for_the_record() -> None:
    run = Run(
        id="r",
        system="metacogagent",
        variant="every-agent",
        item=Item(id="i", question="q"),
        calls=(Call(id="c", stage="classify"), *(Call(id=name, stage="answer", agent=name) for name in "abz")),
        statements=(Statement("c", "dimension:x", 1.0),),
        labels=(Label("a", "correct", 1.0, "program"), Label("b", "correct", 0.0, "program")),
        decisions=(Decision("1", "assess", "ask"), Decision("2", "assign", "b")),
    )
    executed = Observation("b", "x", 0.0, id="r/b", time=3.0)
    assert list(run_observations(run, time=3.0)) == [executed]
    answered = [Observation("a", "x", 1.0, id="r/a", time=3.0), executed]  # nothing could check z, and y gave no answer
    assert list(run_observations(run, time=3.0, agents="abyz")) == answered


def test_a_question_gives_one_observation_an_agent_that_has_a_score() -> None:
    agents = {"a": AgentOutcome(score=1.0), "b": AgentOutcome(score=None), "c": AgentOutcome(score=0.5)}
    question = QuestionOutcomes(id="q", group="q", dimension="x", agents=agents)
    expected = [Observation("a", "x", 1.0, id="q/a", time=2.0), Observation("c", "x", 0.5, id="q/c", time=2.0)]
    assert list(question_observations(question, time=2.0)) == expected
    unknown = QuestionOutcomes(id="q", group="q", agents=agents)
    assert {one.dimension for one in question_observations(unknown, time=0.0)} == {"unknown"}


def test_an_observation_is_an_experience_that_the_papers_profiles_learn_from() -> None:
    one = Observation("a", "x", 1.0, id="o", time=0.0)
    assert isinstance(one, Experience)
    assert Profiles([one]).rate_of("a", "x") == 0.55


def test_on_700_recorded_items_in_random_order_it_foretells_better_than_ema_and_plain_counts() -> None:
    runs = list(RunStore(RECORDED).runs())
    order = np.random.default_rng(0).permutation(len(runs))
    past = in_order(
        one
        for place, run in zip(order, runs, strict=True)
        for one in run_observations(run, time=float(place), agents=("alpha", "beta", "gamma"))
    )
    assert len(past) == 2100
    correct = np.array([one.correct for one in past])
    ema, counts = Profiles(), {}
    forecasts = {"ema": [], "counts": [], "hierarchical": [posterior.mean for _, posterior in prequential(past)]}
    for one in past:
        key = (one.agent, one.dimension)
        successes, n = counts.get(key, (1.0, 2.0))
        forecasts["counts"].append(successes / n)
        forecasts["ema"].append(ema.rate_of(*key))
        counts[key] = (successes + one.correct, n + 1)
        ema.learn(one)
    loss = {name: -np.mean(np.log(np.where(correct == 1, p, 1 - np.array(p)))) for name, p in forecasts.items()}
    assert loss["hierarchical"] < loss["counts"] < loss["ema"] < math.log(2)
