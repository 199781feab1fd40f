"""When to stop asking for answers, and whom to ask next: simple ways and the learned one, on the same curves.

To stop, a setting is a way with its threshold, and what it was worth on groups left out: mean answers and accuracy. A
plan takes the best setting at a price, or mixes the two neighbouring settings of the upper hull that spend a number of
answers. To choose an agent, there are ways from cheap settings to dear ones; one of them reads the words of the
question alone.

NumPy only. A step is computed with plain numbers for one question, in training as well. Shapes: b questions, A agents.
Prices are US dollars for 1,000 answers.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.probes.hashed_words import hashed_words
from metaprobe.records.errors import RecordError
from metaprobe.routing.panel_rows import PANEL_STATE, PLAIN_MATH, Floats, Mask, largest_other

# When to stop asking one model.
STOPS = "fixed number", "first to m", "m in a row", "adaptive consistency", "sure enough", "expected gain"
"""Ways to stop, the simplest first: after m answers; when m answers agree; when the last m do (Li et
al. 2024, arXiv:2401.10480, whose windows do not overlap); when the leading answer is the majority's
with this probability (Aggarwal et al. 2023, arXiv:2305.11860); when the kept answer is this likely right; when asking
on is expected to raise that by no more than this."""
FIXED, FIRST_TO, IN_A_ROW, CONSISTENT, SURE, ASKED_ON = STOPS
NEAR = 0.005
"""By how much the default may lose against the best accuracy."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Holds the values that the ways look at after some answers."""

    answers: int
    """How many came, those that cannot be read among them."""
    count: int
    """Answers of the largest class, and of the next."""
    second: int
    row: int
    """How many of the latest answers are the same; 0 where the last one cannot be read."""
    score: float
    """P(right) of the kept answer, 0 where none is kept."""
    gain: float
    """By how much asking on is expected to raise it."""


def majority_probability(count: int, second: int) -> float:
    """Returns P(the leading answer is drawn more often than the next), by a uniform prior; 0 without an answer.

    With Beta(count + 1, second + 1) it is P(at most `count` heads in count + second + 1 tosses of a fair coin).
    """
    tosses = count + second + 1
    return sum(math.comb(tosses, heads) for heads in range(count + 1)) / 2**tosses if count else 0.0


@dataclass(frozen=True, slots=True)
class Setting:
    """One way with its threshold, and what it gave on groups left out."""

    way: str
    threshold: float
    samples: float
    """Mean answers asked for."""
    accuracy: float
    """Accuracy of the kept answer."""

    def stops(self, seen: Seen) -> bool:
        """Returns whether it stops after what was seen."""
        if self.way == FIXED:
            return seen.answers >= self.threshold
        if self.way == FIRST_TO:
            return seen.count >= self.threshold
        if self.way == IN_A_ROW:
            return seen.row >= self.threshold
        if self.way == CONSISTENT:
            return majority_probability(seen.count, seen.second) >= self.threshold
        if self.way == SURE:
            return seen.score >= self.threshold
        return seen.gain <= self.threshold


@dataclass(frozen=True, slots=True)
class Plan:
    """When to stop: by one setting, or by one of two, which a draw chooses for each question."""

    first: Setting
    second: Setting
    share: float
    """Share of the questions that the first setting decides."""

    @property
    def samples(self) -> float:
        """Mean answers that it is expected to spend."""
        return self.share * self.first.samples + (1 - self.share) * self.second.samples

    @property
    def accuracy(self) -> float:
        """Accuracy that it is expected to reach."""
        return self.share * self.first.accuracy + (1 - self.share) * self.second.accuracy

    def setting_for(self, identity: str) -> Setting:
        """Returns the setting for the request or question of this id."""
        return self.setting(draw_of(identity))

    def setting(self, draw: float) -> Setting:
        """Returns the setting for one question; `draw` in [0, 1) follows from the request, so that a retry decides
        alike."""
        return self.first if draw < self.share else self.second


def plan_of(settings: Sequence[Setting], *, price: float | None = None, samples: float | None = None) -> Plan:
    """Returns the plan at a price of an answer, for a mean number of answers, or by default.

    `price`: how much accuracy one more answer must bring, at least 0. `samples`: at least 1; more than any setting
    spends is taken for the most accurate one. By default the cheapest point of the hull within `NEAR` of the best
    accuracy. Raises `RecordError` where both are given, or one is out of range.
    """
    given: tuple[tuple[str, object], ...] = (("price", price), ("samples", samples))
    for name, value in given:
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            raise RecordError(f"{name} is {value!r}; expected a number")
    if price is not None and samples is not None:
        raise RecordError(f"price={price:g} and samples={samples:g} were given; give one of the two")
    hull = upper_hull(settings)
    if price is not None:
        if not 0 <= price < math.inf:
            raise RecordError(f"price is {price}; expected the accuracy that one more answer must bring, at least 0")
        best = max(hull, key=lambda one: one.accuracy - price * one.samples)
        return Plan(best, best, 1.0)
    if samples is not None:
        if not 1 <= samples < math.inf:
            raise RecordError(f"samples is {samples}; expected a mean number of answers of at least 1")
        return mixed_plan(hull, samples)
    best = next(one for one in hull if one.accuracy >= hull[-1].accuracy - NEAR)
    return Plan(best, best, 1.0)


def mixed_plan(settings: Sequence[Setting], samples: float) -> Plan:
    """Returns the plan of two neighbouring settings, that of fewest answers first, that asks for so many on average."""
    left, right, share = neighbours([one.samples for one in settings], float(samples))
    return Plan(settings[left], settings[right], share)


def neighbours(costs: Sequence[float], budget: float) -> tuple[int, int, float]:
    """Returns two neighbouring places of rising costs, and the share of the first at which both together spend the
    budget; the first or last place alone where none or all spend less."""
    for left, (low, high) in enumerate(pairwise(costs)):
        if low <= budget <= high and low < high:
            return left, left + 1, (high - budget) / (high - low)
    end = 0 if budget < costs[0] else len(costs) - 1
    return end, end, 1.0


def upper_hull(settings: Sequence[Setting]) -> list[Setting]:
    """Returns the settings on the upper concave hull of accuracy over answers, up to the most accurate.

    Of two that give the same the simpler way is kept.
    """
    order = sorted(settings, key=lambda one: STOPS.index(one.way))
    return [order[i] for i in hull_corners([one.samples for one in order], [one.accuracy for one in order])]


def hull_corners(cost: ArrayLike, accuracy: ArrayLike) -> list[int]:
    """Returns which of the points (k,) are corners of their non-decreasing upper hull, cheapest first.

    Any point between two others can be had by choosing between them at random, question by question (RouterBench, Hu et
    al. 2024, section 3, arXiv:2403.12031). By Andrew's monotone chain, 1979; scipy's `ConvexHull` refuses points on one
    line. Raises `RecordError` for other shapes and for numbers that are not finite.
    """
    costs, accuracies = np.asarray(cost, dtype=np.float64), np.asarray(accuracy, dtype=np.float64)
    if costs.ndim != 1 or costs.shape != accuracies.shape or not costs.size:
        raise RecordError(f"costs and accuracies must be as many points; got {costs.shape} and {accuracies.shape}")
    if not (np.isfinite(costs).all() and np.isfinite(accuracies).all()):
        raise RecordError("a point has no finite cost or accuracy: leave it out, or record what is missing")
    order = np.lexsort((-accuracies, costs))
    # A point that costs as much or more and is no better than an earlier one cannot be a corner.
    best_before = np.maximum.accumulate(np.concatenate([[-np.inf], accuracies[order]]))[:-1]
    points: list[tuple[float, float]] = []
    corners: list[int] = []
    for place in order[accuracies[order] > best_before].tolist():
        point = (float(costs[place]), float(accuracies[place]))
        while len(points) > 1:
            left, middle = points[-2:]
            rise = (middle[1] - left[1]) * (point[0] - left[0])
            if rise > (point[1] - left[1]) * (middle[0] - left[0]):  # the middle lies above the line from left to here
                break
            points.pop()
            corners.pop()
        points.append(point)
        corners.append(place)
    return corners


def draw_of(request: str) -> float:
    """Returns a number in [0, 1) that follows from a request's id, so that a retry decides alike."""
    return int.from_bytes(hashlib.sha256(request.encode(errors="replace")).digest()[:8]) / 2**64


# The words of a question.
QUESTION_BUCKETS = 1 << 13
MAX_QUESTION_WORDS = 400
"""Words that are read of a question."""
MAX_WEIGHT = 1e6
"""Largest weight that is read: sums of larger ones pass float32. The largest trained on router_cascade9 is 0.3."""


@dataclass(frozen=True, slots=True, eq=False)
class QuestionWords:
    """A linear map on the hashed words of a question, one column an agent."""

    weights: NDArray[np.float32]
    """(QUESTION_BUCKETS, A), the inverse document frequencies multiplied in; no rows where there was no text to learn
    from."""
    squares: NDArray[np.float32]
    """(QUESTION_BUCKETS,): squared inverse document frequencies, for the length of a question's vector."""

    def shifts(self, question: str) -> NDArray[np.float64]:
        """Returns by how much likelier than usual each agent is right (A,); 0 where no word is known."""
        agents = self.weights.shape[1]
        if not len(self.weights) or not question:
            return np.zeros(agents)
        places = word_buckets(question)
        length = float(self.squares[places].sum()) if len(places) else 0.0
        if length == 0:
            return np.zeros(agents)
        return np.asarray(self.weights[places].sum(axis=0) / length**0.5, dtype=np.float64)

    def to_bytes(self) -> bytes:
        """Returns the bytes that `read_words` reads."""
        return np.column_stack([self.weights, self.squares]).astype("<f4").tobytes()


def word_buckets(question: str) -> NDArray[np.int64]:
    """Returns the buckets of the words and pairs of neighbours, each once, rising."""
    return hashed_words(question, QUESTION_BUCKETS, MAX_QUESTION_WORDS)


def read_words(data: bytes, agents: int) -> QuestionWords:
    """Returns the weights in a checkpoint's file. Raises `ValueError` where they are not those of so many agents."""
    values = np.frombuffer(data, dtype="<f4")
    table = values.reshape(-1, agents + 1) if len(values) else values.reshape(0, agents + 1)
    if len(table) not in (0, QUESTION_BUCKETS) or not (np.abs(table) <= MAX_WEIGHT).all() or (table[:, -1] < 0).any():
        raise ValueError(f"the words have {len(table)} rows; expected {QUESTION_BUCKETS} of finite numbers")
    return QuestionWords(table[:, :-1], table[:, -1])


# Whom to ask next.
ASKS = "one agent", "domain table", "question words", "tuned cascade", "expected gain"
"""Ways to choose whom to ask, the simplest first. The first asks the agent that it names. The next two ask one agent,
that of highest P(right) less what its price is worth, by its rate on the dimension, or with the question's words. A
cascade asks its agents in order, until one is sure enough of its answer, and keeps the last answer. The last way asks
whom the panel expects to raise P(right) of the kept answer by more than the price is worth."""
ONE, TABLE, WORDS, CASCADE, GAIN = ASKS
MOST_ASKED = 4
"""Agents that the expected gain asks of one question, where their answers can be read."""
GAIN_MARGIN = 1e-3
"""Gain, less the price, from which another agent is asked."""
MOST_SETTINGS = 1000
"""Settings of a way that a checkpoint may store; a trainer writes some dozens."""
ASK_STATE = (*PANEL_STATE, "chance", "chance over kept", "best other chance", "rate")
"""Columns by which the gain of asking an agent is expected: the panel's state; the agent's P(right) by the question's
words as log-odds, and above that of the kept answer; the best of the other agents that are left; the agent's log-odds
on the dimension."""


@dataclass(frozen=True, slots=True)
class AskSetting:
    """One way at one price, and what it came to on the questions that it was tuned on."""

    way: str
    price: float
    """Accuracy that a US dollar for 1,000 questions must bring; 0 for a cascade."""
    agents: tuple[int, ...]
    """Columns that it may ask, of a cascade in order."""
    thresholds: tuple[float, ...]
    """Holds, for a cascade, the log-odds of each answer but the last below which the next agent is asked."""
    cost: float
    """Mean US dollars for 1,000 questions."""
    accuracy: float


@dataclass(slots=True, eq=False)
class Asking:
    """Holds what is known about one question between two answers: (A,) each."""

    asked: list[bool]
    """Who was asked, those that failed among them."""
    answered: list[bool]
    """Agents whose answer came and can be read."""
    left: list[int]
    """Columns of those who can be asked and were not yet."""
    odds: list[float]
    """Log-odds of the answers by themselves; of others it is not read."""
    rate_here: list[float]
    """Log-odds of being right on the question's dimension."""
    chance: list[float]
    """P(right) on the dimension with the question's words."""
    price: list[float]


def probability_of(odds: Floats) -> Floats:
    """Returns probabilities of log-odds."""
    p: Floats = 1 / (1 + np.exp(-odds))
    return p


def chance_of(rate_here: Floats, shift: Floats) -> Floats:
    """Returns P(right) from log-odds on a dimension and what the words add to the probability."""
    return np.minimum(np.maximum(probability_of(rate_here) + shift, 0.01), 0.99)


def _beside(np: Any, chance: Any, kept: Any, best_other: Any, rate_here: Any) -> Any:
    """Returns the columns of `ASK_STATE` that are an agent's own."""
    return np.log(chance / (1 - chance)), chance - kept, np.maximum(best_other, 0.0), rate_here


def ask_rows(states: NDArray[np.float32], chance: Floats, left: Mask, rate_here: Floats) -> NDArray[np.float32]:
    """Returns a row for each agent, (b, A, len(ASK_STATE)), from the states (b, len(STATE)) of the panels so far."""
    best_other = largest_other(np.where(left, chance, -np.inf))
    own = np.stack(_beside(np, chance, states[:, PANEL_STATE.index("kept"), None], best_other, rate_here), axis=2)
    state = np.broadcast_to(states[:, None], (*chance.shape, len(PANEL_STATE)))
    return np.concatenate([state, own], axis=2, dtype=np.float32, casting="same_kind")


def ask_rows_of(state: list[float], known: Asking) -> NDArray[np.float32]:
    """Returns the same of one question, (A, len(ASK_STATE))."""
    second, first = sorted((0.0, 0.0, *(known.chance[agent] for agent in known.left)))[-2:]
    rows = []
    for agent, (chance, rate) in enumerate(zip(known.chance, known.rate_here, strict=True)):
        other = second if chance == first and agent in known.left else first
        rows.append(state + list(_beside(PLAIN_MATH, chance, state[0], other, rate)))
    return np.array(rows, dtype=np.float32)


def next_agent(setting: AskSetting, known: Asking, gain: Sequence[float] | None = None) -> int:
    """Returns whom a setting asks next, -1 where it stops or nobody is left.

    Where all its agents failed or cannot be asked, the likeliest of the others is. `gain` (A,): of asking each agent,
    which the way of that name needs.
    """
    done = any(known.answered)
    left = [agent for agent in known.left if agent in setting.agents]
    if setting.way == CASCADE:  # an agent that cannot be asked, or whose answer cannot be read, is passed over
        for agent, threshold in zip(setting.agents, (*setting.thresholds, -math.inf), strict=True):
            if agent in known.left:
                return agent
            if known.answered[agent] and known.odds[agent] >= threshold:
                return -1
    elif left and not (done and (setting.way != GAIN or sum(known.asked) >= MOST_ASKED)):
        merit = known.chance if gain is None else gain
        if setting.way == TABLE:
            merit = [1 / (1 + math.exp(-odds)) for odds in known.rate_here]
        value = {agent: merit[agent] - setting.price * known.price[agent] for agent in left}
        best = max(left, key=value.__getitem__)
        if not done or value[best] > GAIN_MARGIN:
            return best
    return max(known.left, key=known.rate_here.__getitem__) if known.left and not done else -1


def last_in_chain(setting: AskSetting, answered: Sequence[bool]) -> int:
    """Returns whose answer a cascade keeps: the last agent's whose answer can be read, -1 for nobody's."""
    return next((agent for agent in reversed(setting.agents) if answered[agent]), -1)


@dataclass(frozen=True, slots=True)
class AskPlan:
    """Whom to ask: by one setting, or by one of two, which a draw chooses for each question."""

    first: AskSetting
    second: AskSetting
    share: float
    """Share of the questions that the first setting decides."""
    accuracy: float
    """Expected, as it was on groups left out."""

    @property
    def cost(self) -> float:
        """Mean US dollars for 1,000 questions that it is expected to spend."""
        return self.share * self.first.cost + (1 - self.share) * self.second.cost

    def setting(self, draw: float) -> AskSetting:
        """Returns the setting for one question; `draw` in [0, 1) follows from the request, so that a retry decides
        alike."""
        return self.first if draw < self.share else self.second


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Holds the results of the ways on groups left out, and the settings of the ways."""

    settings: Mapping[str, Sequence[AskSetting]]
    """Way -> corners of its upper hull, cheapest first."""
    budgets: Floats
    """(g,) rising, US dollars for 1,000 questions."""
    accuracy: Mapping[str, Floats]
    """Way -> (g,) accuracy on groups left out, where it was mixed to spend each budget."""

    @property
    def least(self) -> float:
        """US dollars for 1,000 questions that the cheapest setting spends."""
        return min(one.cost for settings in self.settings.values() for one in settings)

    def plan(self, *, budget: float | None = None, price: float | None = None) -> AskPlan:
        """Returns the plan for a budget, at a price of accuracy, or by default.

        `budget`: mean US dollars for 1,000 questions; more than any way spends is taken for the dearest. `price`: the
        accuracy that a US dollar for 1,000 questions must bring. By default the cheapest budget within `NEAR` of the
        best accuracy. Raises `RecordError` where both are given, one is out of range, or the budget is below the
        cheapest agent's price.
        """
        given: tuple[tuple[str, object], ...] = (("budget", budget), ("price", price))
        for name, value in given:
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf
            ):
                raise RecordError(f"{name} is {value!r}; expected a number of at least 0")
        if budget is not None and price is not None:
            raise RecordError(f"budget={budget:g} and price={price:g} were given; give one of the two")
        return _planned(self, budget, price)

    def implied_price(self, budget: float) -> float:
        """Returns the accuracy that a US dollar for 1,000 questions more brings at this budget, more than 0."""
        best = np.maximum.accumulate(np.max([self.accuracy[way] for way in self.settings], axis=0))
        place = int(np.clip(np.searchsorted(self.budgets, budget), 0, len(self.budgets) - 1))
        low, high = max(place - 2, 0), min(place + 2, len(self.budgets) - 1)
        width = float(self.budgets[high] - self.budgets[low])
        rise = float(best[high] - best[low]) / width if width else 0.0
        return max(rise, NEAR / max(float(self.budgets[-1]), 1e-12))


@lru_cache(maxsize=64)
def _planned(curves: Curves, budget: float | None, price: float | None) -> AskPlan:
    """Returns the plan of these curves; most questions are asked at the same few budgets."""
    best = np.max([curves.accuracy[way] for way in curves.settings], axis=0)
    if budget is None:
        by_price = int(np.argmax(best - (price or 0.0) * curves.budgets))
        place = by_price if price is not None else int(np.argmax(best >= best.max() - NEAR))
        budget = float(curves.budgets[place])
    least = curves.least
    if budget < least * (1 - 1e-9):
        raise RecordError(
            f"budget is {budget:g} US dollars for 1,000 questions; the cheapest way to ask spends {least:g}"
        )
    within = [way for way in ASKS if way in curves.settings and curves.settings[way][0].cost <= budget * (1 + 1e-9)]
    reached = {way: float(np.interp(budget, curves.budgets, curves.accuracy[way])) for way in within}
    way = max(within, key=lambda name: reached[name])  # the simplest of equals
    first, second, share = mixed(curves.settings[way], budget)
    return AskPlan(first, second, share, reached[way])


def mixed(settings: Sequence[AskSetting], budget: float) -> tuple[AskSetting, AskSetting, float]:
    """Returns two neighbouring settings, cheapest first, and the share of the first at which they spend the budget."""
    left, right, share = neighbours([one.cost for one in settings], budget)
    return settings[left], settings[right], share


@dataclass(frozen=True, slots=True, eq=False)
class Asks:
    """Holds the part of a checkpoint that decides whom to ask."""

    curves: Curves
    price: Floats
    """(A, D + 1): US dollars for 1,000 answers on each dimension, and in the last column over all."""
    words: QuestionWords
    tokens: Floats
    """(2, A, D + 1): mean tokens of a prompt and of an answer, NaN where they are not known."""

    def to_contract(self) -> dict[str, Any]:
        """Returns all but the words as types of JSON."""
        settings = {
            way: [[one.price, list(one.agents), list(one.thresholds), one.cost, one.accuracy] for one in many]
            for way, many in self.curves.settings.items()
        }
        tokens = self.tokens.astype(object)
        tokens[np.isnan(self.tokens)] = None
        return {
            "settings": settings,
            "budgets": self.curves.budgets.tolist(),
            "accuracy": {way: values.tolist() for way, values in self.curves.accuracy.items()},
            "price": self.price.tolist(),
            "tokens": tokens.tolist(),
        }


def read_asks(record: Mapping[str, Any], words: bytes, agents: int, dimensions: int) -> Asks:
    """Returns what `Asks.to_contract` made. Raises `ValueError`, `KeyError` or `TypeError` where it is not whole."""
    settings: dict[str, list[AskSetting]] = {}
    for way, many in record["settings"].items():
        settings[str(way)] = [
            AskSetting(way, float(price), tuple(who), tuple(map(float, limits)), float(cost), float(accuracy))
            for price, who, limits, cost, accuracy in many[: MOST_SETTINGS + 1]
        ]
    budgets = np.array(record["budgets"], dtype=np.float64)
    accuracy = {way: np.array(record["accuracy"][way], dtype=np.float64) for way in settings}
    price = np.array(record["price"], dtype=np.float64)
    if not settings or not set(settings) <= set(ASKS) or not all(settings.values()):
        raise ValueError(f"the ways to ask are {', '.join(settings)}")
    for way, many in settings.items():
        if len(many) > MOST_SETTINGS or not all(_is_whole(one, agents) for one in many):
            raise ValueError(f"a setting of {way} is not whole")
        if [one.cost for one in many] != sorted(one.cost for one in many):
            raise ValueError(f"the settings of {way} do not get dearer")
    if budgets.ndim != 1 or not len(budgets) or not np.isfinite(budgets).all() or (np.diff(budgets) < 0).any():
        raise ValueError("the budgets do not rise")
    if not all(values.shape == budgets.shape and np.isfinite(values).all() for values in accuracy.values()):
        raise ValueError("a way has no accuracy at some budget")
    if price.shape != (agents, dimensions + 1) or not (np.isfinite(price) & (price >= 0)).all():
        raise ValueError(f"the prices have shape {price.shape}")
    tokens = np.full((2, *price.shape), np.nan)
    if "tokens" in record:
        tokens = np.array(record["tokens"], dtype=np.float64)  # null is NaN
    if tokens.shape != (2, *price.shape) or (tokens < 0).any() or np.isinf(tokens).any():
        raise ValueError(f"the tokens have shape {tokens.shape}")
    curves = Curves(settings, budgets, accuracy)
    if agents < 2 or budgets[0] < curves.least * (1 - 1e-9):
        raise ValueError(f"the budgets begin at {budgets[0]}, and {agents} agents are asked from {curves.least}")
    return Asks(curves, price, read_words(words, agents), tokens)


def _is_whole(setting: AskSetting, agents: int) -> bool:
    """Returns whether a stored setting is one that can be."""
    numbers = (setting.price, *setting.thresholds, setting.cost, setting.accuracy)
    known = all(type(agent) is int and 0 <= agent < agents for agent in setting.agents)
    chain = len(setting.agents) - 1 if setting.way == CASCADE else 0
    whole = known and bool(setting.agents) and len(setting.thresholds) == chain
    return whole and all(map(math.isfinite, numbers)) and setting.price >= 0 and setting.cost >= 0
