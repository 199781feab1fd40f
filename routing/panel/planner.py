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
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from numbers import Real
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.probes.hashed_words import hashed_words
from metaprobe.records.errors import RecordError
from metaprobe.routing.panel.model_rows import PANEL_STATE, Floats, Mask, largest_other
from metaprobe.routing.panel.priced_cascade import MOST_PRICED, Surety

# When to stop asking one model.
STOPS = "fixed number", "first to m", "m in a row", "adaptive consistency", "sure enough", "expected gain"
"""Ways to stop, the simplest first: after m answers; when m answers agree; when the last m do (Li et
al. 2024, arXiv:2401.10480, whose windows do not overlap); when the leading answer is the majority's
with this probability (Aggarwal et al. 2023, arXiv:2305.11860); when the kept answer is this likely right; when asking
on is expected to raise that by no more than this."""
FIXED, FIRST_TO, IN_A_ROW, CONSISTENT, SURE, ASKED_ON = STOPS
NEAR = 0.005
"""Largest loss in accuracy, against the most accurate setting, that the default setting may have."""


@dataclass(frozen=True, slots=True)
class Seen:
    """State of a question after some answers, from which the ways to stop decide."""

    answers: int
    """Number of answers so far, unreadable ones included."""
    count: int
    """Number of answers in the largest class."""
    second: int
    """Number of answers in the second largest class."""
    row: int
    """Number of latest answers in a row that are equal; 0 if the last answer cannot be read."""
    score: float
    """P(right) of the kept answer; 0 if none is kept."""
    gain: float
    """Expected rise of `score` if another answer is asked for."""


def majority_probability(count: int, second: int) -> float:
    """Returns P(the leading answer is drawn more often than the next), by a uniform prior; 0 without an answer.

    With Beta(count + 1, second + 1) it is P(at most `count` heads in count + second + 1 tosses of a fair coin).
    """
    tosses = count + second + 1
    return sum(math.comb(tosses, heads) for heads in range(count + 1)) / 2**tosses if count else 0.0


@dataclass(frozen=True, slots=True)
class Setting:
    """A way to stop with its threshold, and its results on held-out groups."""

    way: str
    threshold: float
    samples: float
    """Mean number of answers that this setting asks for."""
    accuracy: float
    """Accuracy of the kept answer with this setting."""

    def stops(self, seen: Seen) -> bool:
        """Returns whether this setting stops asking after the answers counted in `seen`."""
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
        """Expected mean number of answers."""
        return self.share * self.first.samples + (1 - self.share) * self.second.samples

    @property
    def accuracy(self) -> float:
        """Expected accuracy."""
        return self.share * self.first.accuracy + (1 - self.share) * self.second.accuracy

    def setting_for(self, identity: str) -> Setting:
        """Returns the setting for the request or question of this id."""
        return self.setting(draw_of(identity))

    def setting(self, draw: float) -> Setting:
        """Returns the setting for one question. `draw` in [0, 1) is `draw_of` its request, so that a retry gets the
        same setting."""
        return self.first if draw < self.share else self.second


def plan_of(settings: Sequence[Setting], *, price: float | None = None, samples: float | None = None) -> Plan:
    """Returns the plan at a price of an answer, for a mean number of answers, or by default.

    `price`: how much accuracy one more answer must bring, at least 0. `samples`: at least 1; more than any setting
    spends is taken for the most accurate one. By default the cheapest point of the hull within `NEAR` of the best
    accuracy. Raises `RecordError` where both are given, or one is out of range.
    """
    limits: tuple[tuple[str, object], ...] = (("price", price), ("samples", samples))
    for name, value in limits:
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            raise RecordError(f"{name} is {value!r}; expected a number")
    if price is not None and samples is not None:
        raise RecordError(f"price={price:g} and samples={samples:g} were given; give one of the two")
    hull = upper_hull(settings)
    if price is not None:
        if not 0 <= price < math.inf:
            raise RecordError(f"price is {price}; expected the accuracy that one more answer must bring, at least 0")
        best = max(hull, key=lambda setting: setting.accuracy - price * setting.samples)
        return Plan(best, best, 1.0)
    if samples is not None:
        if not 1 <= samples < math.inf:
            raise RecordError(f"samples is {samples}; expected a mean number of answers of at least 1")
        return mixed_plan(hull, samples)
    best = next(setting for setting in hull if setting.accuracy >= hull[-1].accuracy - NEAR)
    return Plan(best, best, 1.0)


def mixed_plan(settings: Sequence[Setting], samples: float) -> Plan:
    """Returns the plan of two neighbouring settings, that of fewest answers first, that asks for so many on average."""
    lower, upper, share = neighbours([setting.samples for setting in settings], float(samples))
    return Plan(settings[lower], settings[upper], share)


def neighbours(costs: Sequence[float], budget: float) -> tuple[int, int, float]:
    """Returns two neighbouring places of rising costs, and the share of the first at which both together spend the
    budget; the first place alone if every setting spends more, the last alone if every setting spends less.
    """
    for place, (low, high) in enumerate(pairwise(costs)):
        if low <= budget <= high and low < high:
            return place, place + 1, (high - budget) / (high - low)
    end = 0 if budget < costs[0] else len(costs) - 1
    return end, end, 1.0


def upper_hull(settings: Sequence[Setting]) -> list[Setting]:
    """Returns the settings on the upper concave hull of accuracy over answers, up to the most accurate.

    Of two that give the same the simpler way is kept.
    """
    order = sorted(settings, key=lambda setting: STOPS.index(setting.way))
    return [
        order[i] for i in hull_corners([setting.samples for setting in order], [setting.accuracy for setting in order])
    ]


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
    """Returns a hash of a request's id as a number in [0, 1), so that a retry gets the same decision."""
    return int.from_bytes(hashlib.sha256(request.encode(errors="replace")).digest()[:8]) / 2**64


# The words of a question.
QUESTION_BUCKETS = 1 << 13
MAX_QUESTION_WORDS = 400
"""Most words that are read of a question."""
MAX_WEIGHT = 1e6
"""Largest weight that is read: sums of larger ones pass float32. The largest trained on router_cascade9 is 0.3."""


@dataclass(frozen=True, slots=True, eq=False)
class QuestionWords:
    """A linear map on the hashed words of a question, one column an agent."""

    weights: NDArray[np.float32]
    """Weights (QUESTION_BUCKETS, A) of the words for each agent, already multiplied by the inverse document
    frequencies. No rows if there was no text to learn from.
    """
    squares: NDArray[np.float32]
    """Squared inverse document frequencies (QUESTION_BUCKETS,), for the length of a question's vector."""

    def shifts(self, question: str) -> NDArray[np.float64]:
        """Returns how far the question's words change each agent's P(right) (A,); 0 if no word is known."""
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
    """Returns the weights in the bytes of a checkpoint's file.

    Raises `ValueError` if their shape does not fit the number of agents, or a value is out of range.
    """
    values = np.frombuffer(data, dtype="<f4")
    table = values.reshape(-1, agents + 1) if len(values) else values.reshape(0, agents + 1)
    if len(table) not in (0, QUESTION_BUCKETS) or not (np.abs(table) <= MAX_WEIGHT).all() or (table[:, -1] < 0).any():
        raise ValueError(f"the words have {len(table)} rows; expected {QUESTION_BUCKETS} of finite numbers")
    return QuestionWords(table[:, :-1], table[:, -1])


# Whom to ask next.
ASKS = (
    "one agent",
    "domain table",
    "priced cascade",
    "two agree",
    "question words",
    "tuned cascade",
    "expected gain",
)
"""Ways to choose whom to ask, the simplest first. The first asks the agent that it names. A table asks one agent, that
of highest P(right) less what its price is worth, by its rate on the dimension; so do the question's words, with them. A
priced cascade (`routing.panel.priced_cascade`) begins as the table does, asks on while the expected gain is worth the
price, and keeps the surest answer. Two agents are asked, and a third one where their answers differ, whose answer is
then kept. A tuned cascade asks its agents in order, until one is sure enough of its answer, and keeps the last answer.
The last way asks whom the panel expects to raise P(right) of the kept answer by more than the price is worth."""
ONE, TABLE, PRICED, AGREE, WORDS, CASCADE, GAIN = ASKS
KEEPS_LAST = (CASCADE, AGREE)
"""Ways to ask that keep the last answer that came."""
MOST_ASKED = 4
"""Most agents that the way by expected gain asks about one question. More are asked only while no answer can be read.
"""
GAIN_MARGIN = 1e-3
"""Least expected gain, less the price, for which another agent is asked."""
MAX_ASK_SETTINGS = 1000
"""Most settings of one way to ask that a checkpoint may store. A trainer writes some dozens."""
ASK_STATE = (*PANEL_STATE, "chance", "chance over kept", "best other chance", "rate")
"""Columns by which the gain of asking an agent is expected: the panel's state; the agent's P(right) by the question's
words as log-odds, and above that of the kept answer; the best of the other agents that are left; the agent's log-odds
on the dimension."""


@dataclass(frozen=True, slots=True)
class AskSetting:
    """A way to ask at one price, and its mean cost and accuracy on the questions on which it was tuned."""

    way: str
    price: float
    """Gain in accuracy that one US dollar for 1,000 questions must bring; 0 for a cascade."""
    agents: tuple[int, ...]
    """Columns of the agents that may be asked; for a cascade in the order of asking."""
    thresholds: tuple[float, ...]
    """For a cascade: a threshold in log-odds for each answer except the last. Below it the next agent is asked."""
    cost: float
    """Mean spending with this setting, in US dollars for 1,000 questions."""
    accuracy: float

    @property
    def name(self) -> str:
        """Returns the way's name for a reader: a chain that holds one agent is called `ONE`."""
        return ONE if self.way in KEEPS_LAST and len(self.agents) == 1 else self.way


@dataclass(slots=True, eq=False)
class QuestionProgress:
    """State of one question between two answers. Each list has one entry for each of A agents, except `left`."""

    asked: list[bool]
    """Whether each of the A agents was asked, failed requests included."""
    answered: list[bool]
    """Whether each of the A agents gave a readable answer."""
    left: list[int]
    """Columns of the agents that can still be asked."""
    odds: list[float]
    """Log-odds, for each of the A agents, that its answer by itself is right. Meaningless for agents without an answer.
    """
    rate_here: list[float]
    """Log-odds, for each agent, of being right on the question's dimension."""
    chance: list[float]
    """P(right) of each agent, from the question's dimension and words."""
    price: list[float]
    answer_class: list[int]
    """Class of each answer so far. Equal answers have equal numbers."""
    sure: Surety | None
    """How far one answer changes the expected P(right) of the others; None if the checkpoint does not store it."""

    def worth(self, setting: "AskSetting") -> list[float]:
        """Returns what a priced cascade expects of asking each agent, (A,): the gain of P(right) less the price.

        Raises `RecordError` where the checkpoint knows no surety.
        """
        if self.sure is None:
            raise RecordError("the checkpoint does not know how far answers move P(right); train it again")
        A = len(self.asked)
        can_ask = np.array([agent in self.left and agent in setting.agents for agent in range(A)])
        rate, price = (np.array([values], dtype=np.float64) for values in (self.rate_here, self.price))
        odds, answered = np.array([self.odds], dtype=np.float64), np.array([self.answered])
        worth: list[float] = self.sure.worth(setting.price, rate, price, can_ask[None], odds, answered)[0][0].tolist()
        return worth


def probability_of(odds: Floats) -> Floats:
    """Returns probabilities of log-odds."""
    p: Floats = 1 / (1 + np.exp(-odds))
    return p


def chance_of(rate_here: Floats, shift: Floats) -> Floats:
    """Returns P(right) from log-odds on a dimension and what the words add to the probability."""
    return np.minimum(np.maximum(probability_of(rate_here) + shift, 0.01), 0.99)


def ask_rows(states: NDArray[np.float32], chance: Floats, left: Mask, rate_here: Floats) -> NDArray[np.float32]:
    """Returns a row for each agent, (b, A, len(ASK_STATE)), from the states (b, len(STATE)) of the panels so far."""
    best_other = largest_other(np.where(left, chance, -np.inf))
    p_kept = states[:, PANEL_STATE.index("kept"), None]
    agent_columns = np.stack(
        [np.log(chance / (1 - chance)), chance - p_kept, np.maximum(best_other, 0.0), rate_here], axis=2
    )
    state = np.broadcast_to(states[:, None], (*chance.shape, len(PANEL_STATE)))
    return np.concatenate([state, agent_columns], axis=2, dtype=np.float32, casting="same_kind")


def ask_rows_of(state: NDArray[np.float32], progress: QuestionProgress) -> NDArray[np.float32]:
    """Returns `ask_rows` (A, len(ASK_STATE)) of one question, from its panel's state (1, len(PANEL_STATE))."""
    left = np.zeros(len(progress.chance), dtype=bool)
    left[progress.left] = True
    rows: NDArray[np.float32] = ask_rows(
        state, np.array([progress.chance]), left[None], np.array([progress.rate_here])
    )[0]
    return rows


def next_agent(setting: AskSetting, progress: QuestionProgress, gain: Sequence[float] | None = None) -> int:
    """Returns the column of the agent that a setting asks next; -1 if it stops or no agent is left.

    If all agents of the setting failed or cannot be asked, the other agent with the highest rate is asked.

    Args:
        setting: the setting.
        progress: the state of the question.
        gain: expected gain of asking each agent (A,); needed for the way `GAIN`. For a priced cascade the result of
            `QuestionProgress.worth`, if it is already computed.
    """
    done = any(progress.answered)
    agents_left = [agent for agent in progress.left if agent in setting.agents]
    if setting.way == PRICED:
        worth = progress.worth(setting) if gain is None else gain
        best = max(agents_left, key=worth.__getitem__, default=-1)
        if agents_left and (not done or (worth[best] > 0 and sum(progress.answered) < MOST_PRICED)):
            return best
    elif setting.way == AGREE:
        classes_so_far = [progress.answer_class[agent] for agent in setting.agents if progress.answered[agent]]
        if agents_left and len(set(classes_so_far)) == len(classes_so_far):
            return next(agent for agent in setting.agents if agent in agents_left)
    elif setting.way == CASCADE:  # an agent that cannot be asked, or whose answer cannot be read, is passed over
        for agent, threshold in zip(setting.agents, (*setting.thresholds, -math.inf), strict=True):
            if agent in progress.left:
                return agent
            if progress.answered[agent] and progress.odds[agent] >= threshold:
                return -1
    elif agents_left and not (done and (setting.way != GAIN or sum(progress.asked) >= MOST_ASKED)):
        merit = progress.chance if gain is None else gain
        if setting.way == TABLE:
            merit = [1 / (1 + math.exp(-odds)) for odds in progress.rate_here]
        value = {agent: merit[agent] - setting.price * progress.price[agent] for agent in agents_left}
        best = max(agents_left, key=value.__getitem__)
        if not done or value[best] > GAIN_MARGIN:
            return best
    return max(progress.left, key=progress.rate_here.__getitem__) if progress.left and not done else -1


def kept_by(setting: AskSetting, answered: Sequence[bool], odds: Sequence[float]) -> int:
    """Returns the column of the agent whose answer a way keeps by its own rule, among readable answers.

    A tuned cascade and "two agree" keep the last agent's answer, a priced cascade the answer with the highest log-odds.
    Returns -1 if the panel's judgement chooses the answer, or if no answer is readable.

    Args:
        setting: the setting.
        answered: whether each agent gave a readable answer (A,).
        odds: log-odds that each agent's answer is right (A,).
    """
    if setting.way == PRICED:
        return max(
            (agent for agent, has_answered in enumerate(answered) if has_answered), key=odds.__getitem__, default=-1
        )
    if setting.way not in KEEPS_LAST:
        return -1
    return next((agent for agent in reversed(setting.agents) if answered[agent]), -1)


@dataclass(frozen=True, slots=True)
class AskPlan:
    """Plan for which agents to ask: one of two settings decides, chosen for each question by a draw."""

    first: AskSetting
    second: AskSetting
    share: float
    """Share of the questions that the first setting decides."""
    accuracy: float
    """Expected accuracy, measured on groups left out."""

    @property
    def cost(self) -> float:
        """Mean US dollars for 1,000 questions that it is expected to spend."""
        return self.share * self.first.cost + (1 - self.share) * self.second.cost

    @property
    def name(self) -> str:
        """Returns the names of the settings that decide some questions, the cheaper setting's first."""
        shares = ((self.first, self.share), (self.second, 1 - self.share))
        return " or ".join(dict.fromkeys(setting.name for setting, share in shares if share > 0))

    def setting(self, draw: float) -> AskSetting:
        """Returns the setting for one question. `draw` in [0, 1) is `draw_of` its request, so that a retry gets the
        same setting."""
        return self.first if draw < self.share else self.second


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Holds the results of the ways on groups left out, and the settings of the ways."""

    settings: Mapping[str, Sequence[AskSetting]]
    """Maps a way to ask to the settings at the corners of its upper hull (accuracy over cost), the cheapest first."""
    budgets: Floats
    """Budgets (g,), rising, in US dollars for 1,000 questions."""
    accuracy: Mapping[str, Floats]
    """Maps a way to ask to its accuracy (g,) on groups left out. At each budget two settings are mixed to spend it
    exactly.
    """
    margin: Mapping[str, Floats] = field(default_factory=dict)
    """Maps a way to an allowance for luck at each budget (g,), subtracted from its accuracy when ways are compared.

    The default way, which is used unless another way is shown to be better, has no entry.
    """

    def compared(self, way: str) -> Floats:
        """Returns the accuracy of a way less its `margin`, (g,), by which ways are compared."""
        return np.asarray(self.accuracy[way] - self.margin.get(way, 0.0))

    @property
    def best(self) -> Floats:
        """(g,): highest compared accuracy among the ways whose cheapest setting costs at most the budget."""
        within = [
            np.where(self.settings[way][0].cost <= self.budgets * (1 + 2e-9), self.compared(way), -np.inf)
            for way in self.settings
        ]
        return np.asarray(np.max(within, axis=0))

    @property
    def least(self) -> float:
        """US dollars for 1,000 questions that the cheapest setting spends."""
        return min(setting.cost for settings in self.settings.values() for setting in settings)

    def plan(self, *, budget: float | None = None, price: float | None = None) -> AskPlan:
        """Returns the plan for a budget or for a price of accuracy; by default for the cheapest budget within `NEAR` of
        the best accuracy.

        Args:
            budget: mean US dollars for 1,000 questions. A budget above the most expensive plan gives that plan.
            price: accuracy that each US dollar for 1,000 questions must gain.

        Raises `RecordError` if both are given, if one is out of range, or if the budget is below the cheapest agent's
        price.
        """
        limits: tuple[tuple[str, object], ...] = (("budget", budget), ("price", price))
        for name, value in limits:
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf
            ):
                raise RecordError(f"{name} is {value!r}; expected a number of at least 0")
        if budget is not None and price is not None:
            raise RecordError(f"budget={budget:g} and price={price:g} were given; give one of the two")
        return _planned(self, budget, price)

    def default_in_words(self) -> str:
        """Describes the default spending, without budget or price, and the accuracy change if it is halved."""
        plan, most = self.plan(), float(self.budgets[-1])
        text = f"default: ${plan.cost:.4g} of at most ${most:.4g} for 1,000 questions"
        half = plan.cost / 2
        if half <= 0:
            return text
        if half < self.least:
            return f"{text}; the cheapest way to ask spends ${self.least:.4g}"
        change = 100 * (self.plan(budget=half).accuracy - plan.accuracy)
        return f"{text}; half of it changes the expected accuracy by {change:+.1f} points (--budget {half:.4g})"

    def implied_price(self, budget: float) -> float:
        """Returns how much accuracy rises per additional US dollar for 1,000 questions at this budget, above 0."""
        best = np.maximum.accumulate(self.best)
        place = int(np.clip(np.searchsorted(self.budgets, budget), 0, len(self.budgets) - 1))
        low, high = max(place - 2, 0), min(place + 2, len(self.budgets) - 1)
        width = float(self.budgets[high] - self.budgets[low])
        rise = float(best[high] - best[low]) / width if width else 0.0
        return max(rise, NEAR / max(float(self.budgets[-1]), 1e-12))


@lru_cache(maxsize=256)
def _planned(curves: Curves, budget: float | None, price: float | None) -> AskPlan:
    """Returns the plan of these curves; most questions are asked at few budgets (`budget.STEPS_PER_E`)."""
    best = curves.best
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
    reached = {way: float(np.interp(budget, curves.budgets, curves.compared(way))) for way in within}
    way = max(within, key=lambda name: reached[name])  # the simplest of equals
    first, second, share = mixed(curves.settings[way], budget)
    return AskPlan(first, second, share, float(np.interp(budget, curves.budgets, curves.accuracy[way])))


def mixed(settings: Sequence[AskSetting], budget: float) -> tuple[AskSetting, AskSetting, float]:
    """Returns two neighbouring settings, cheapest first, and the share of the first at which they spend the budget."""
    lower, upper, share = neighbours([setting.cost for setting in settings], budget)
    return settings[lower], settings[upper], share


AFTER_COLUMNS = "whole", "log_odds", "two answers", "more answers", "agreement"
"""Columns by which P(right) is corrected once asking stopped: 1; the log-odds before; whether two answers came, or
more; whether another answer equals the kept one."""
MAX_AFTER = 20.0
"""Largest weight of `AFTER_COLUMNS` that a checkpoint may have, in log-odds."""
SUREST_BEFORE = 0.01
"""Distance from 0 and 1 to which P(right) is clipped before the correction."""


@dataclass(frozen=True, slots=True)
class After:
    """Corrects P(right) of the kept answer after asking stopped.

    A way stops at an answer because its P(right) is high. Because of this selection, such answers are right less often
    than their P(right) says.
    """

    weights: tuple[float, ...] = (0.0,) * len(AFTER_COLUMNS)
    """Weight of each column of `AFTER_COLUMNS`, in log-odds. The weighted sum is added to the log-odds before the
    correction; all weights are 0 for no correction.
    """

    def probability(self, before: float, answers: int, agreeing: int) -> float:
        """Returns the corrected P(right).

        Args:
            before: P(right) without correction.
            answers: number of readable answers.
            agreeing: number of other answers that are equal to the kept one.
        """
        if not any(self.weights):
            return before
        p = min(max(before, SUREST_BEFORE), 1 - SUREST_BEFORE)
        odds = math.log(p / (1 - p))
        columns = (1.0, odds, float(answers == 2), float(answers > 2), float(agreeing > 0))
        return 1 / (1 + math.exp(-odds - sum(map(mul, self.weights, columns))))


@dataclass(frozen=True, slots=True, eq=False)
class Asks:
    """Holds the part of a checkpoint that decides whom to ask."""

    curves: Curves
    price: Floats
    """Price (A, D + 1) of 1,000 answers on each dimension, in US dollars; the last column is over all dimensions."""
    words: QuestionWords
    tokens: Floats
    """Mean tokens (2, A, D + 1) of a prompt and of an answer; NaN if they are not known."""
    sure: Surety | None = None
    """How far one answer changes the expected P(right) of the others; None in checkpoints of earlier versions."""
    after: After = After()
    """Corrects P(right) of the kept answer when asking has ended."""

    def to_contract(self) -> dict[str, Any]:
        """Returns all but the words as types of JSON."""
        settings = {
            way: [
                [setting.price, list(setting.agents), list(setting.thresholds), setting.cost, setting.accuracy]
                for setting in many
            ]
            for way, many in self.curves.settings.items()
        }
        tokens = self.tokens.astype(object)
        tokens[np.isnan(self.tokens)] = None
        return {
            "settings": settings,
            "budgets": self.curves.budgets.tolist(),
            "accuracy": {way: values.tolist() for way, values in self.curves.accuracy.items()},
            "margin": {way: values.tolist() for way, values in self.curves.margin.items()},
            "after": list(self.after.weights),
            **(
                {"spread": self.sure.spread.tolist(), "carry": self.sure.carry, "slack": self.sure.slack}
                if self.sure
                else {}
            ),
            "price": self.price.tolist(),
            "tokens": tokens.tolist(),
        }


def read_asks(record: Mapping[str, Any], words: bytes, agents: int, dimensions: int) -> Asks:
    """Returns the `Asks` from a record that `Asks.to_contract` wrote, and from the bytes of the words' weights.

    Raises `ValueError`, `KeyError` or `TypeError` if the record is incomplete or invalid.
    """
    settings: dict[str, list[AskSetting]] = {}
    for way, many in record["settings"].items():
        settings[str(way)] = [
            AskSetting(way, float(price), tuple(asked_agents), tuple(map(float, limits)), float(cost), float(accuracy))
            for price, asked_agents, limits, cost, accuracy in many[: MAX_ASK_SETTINGS + 1]
        ]
    budgets = np.array(record["budgets"], dtype=np.float64)
    accuracy = {way: np.array(record["accuracy"][way], dtype=np.float64) for way in settings}
    price = np.array(record["price"], dtype=np.float64)
    if not settings or not set(settings) <= set(ASKS) or not all(settings.values()):
        raise ValueError(f"the ways to ask are {', '.join(settings)}")
    for way, many in settings.items():
        if len(many) > MAX_ASK_SETTINGS or not all(_is_whole(setting, agents) for setting in many):
            raise ValueError(f"a setting of {way} is not whole")
        if [setting.cost for setting in many] != sorted(setting.cost for setting in many):
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
    margin = {way: np.array(record.get("margin", {}).get(way, 0.0 * budgets), dtype=np.float64) for way in settings}
    if not all(values.shape == budgets.shape and np.isfinite(values).all() for values in margin.values()):
        raise ValueError("a way has no margin at some budget")
    sure = None
    if "spread" in record:
        numbers = float(record["carry"]), float(record["slack"])
        sure = Surety(np.array(record["spread"], dtype=np.float64), *numbers)
        if sure.spread.shape != (agents,) or not (np.isfinite(sure.spread) & (sure.spread >= 0)).all():
            raise ValueError(f"the spread of {agents} agents is {record['spread']}")
        if not all(map(math.isfinite, numbers)):
            raise ValueError(f"what carries over and the slack are {numbers}")
    elif PRICED in settings:
        raise ValueError("a priced cascade is stored, and no spread of its answers")
    after = After(tuple(map(float, record.get("after", After().weights))))
    if len(after.weights) != len(AFTER_COLUMNS) or not all(abs(weight) <= MAX_AFTER for weight in after.weights):
        raise ValueError(f"P(right) after the play is corrected by {after.weights}")
    curves = Curves(settings, budgets, accuracy, margin)
    if agents < 2 or budgets[0] < curves.least * (1 - 1e-9):
        raise ValueError(f"the budgets begin at {budgets[0]}, and {agents} agents are asked from {curves.least}")
    return Asks(curves, price, read_words(words, agents), tokens, sure, after)


def _is_whole(setting: AskSetting, agents: int) -> bool:
    """Returns whether a stored setting is one that can be."""
    numbers = (setting.price, *setting.thresholds, setting.cost, setting.accuracy)
    has_columns = all(type(agent) is int and 0 <= agent < agents for agent in setting.agents)
    chain = len(setting.agents) - 1 if setting.way == CASCADE else 0
    whole = has_columns and bool(setting.agents) and len(setting.thresholds) == chain
    return whole and all(map(math.isfinite, numbers)) and setting.price >= 0 and setting.cost >= 0
