"""What the learned router reads of one question: what is known so far, each agent's past, and the rows made of both."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from metaprobe.routing.same_answers import SAME, agreement, content

NAN = math.nan
ANY = ""
"""The dimension of a question whose dimension is unknown."""
ROW = (
    "asked",
    "calibrated",
    "stated",
    "text",
    "rate",
    "log_price",
    "others",
    "agreeing",
    "disagreeing",
    "best_agreeing",
    "best_disagreeing",
    "best_other",
    "mean_other",
    "worst_other",
    "surprise",
    "pair_agreement",
    "mean_rate",
    "rate_lead",
    "mean_text",
)
"""Columns of the success head, an agent a row. No column names an agent; what differs is its past."""
PRICED = (*ROW, "log_priced", "log_lambda")
"""Columns of the graph: two more for the gain head, lambda * price of the row's agent, and lambda."""
FLOOR = 1e-9
"""Least price in US dollars for 1,000 questions, so that a free agent has a logarithm."""
VOTE = 1.5
"""An answer has a say where its calibrated log-odds are above -VOTE, and the more the higher they are."""
LONGEST_REASON = 200
"""Characters kept of why an agent failed: an error may carry a whole page, and a reason is one line."""


@dataclass(frozen=True, slots=True)
class AskedAgent:
    """What an agent that was asked, and paid for, has given; or that it failed.

    An agent failed where `error` is given, and where neither a text nor a confidence came: `AskedAgent("", None)` is no
    answer. A failed agent is never kept and never asked again, and its price is spent.
    """

    answer: str | None = ""
    """The text; None and blank text are the same."""
    confidence: float | None = None
    """On the scale of the outcomes that the router was trained on."""
    source: str = ""
    """Where the confidence is from, as `Signal.source` has it; empty where it is not known."""
    error: str | None = None
    """Why the call failed, and None where the call did not fail. An empty text is a failure too: the text of many
    exceptions is empty."""
    untold: bool = False
    """True where the agent answered, but neither the text nor a confidence is handed on: outcomes without texts."""

    @classmethod
    def failed(cls, reason: object = "") -> "AskedAgent":
        """Returns an agent that was asked and gave nothing to keep. `reason`: words, or the exception."""
        if isinstance(reason, BaseException):
            reason = f"{type(reason).__name__}: {reason}".removesuffix(": ")
        return cls(error=str(reason))

    @property
    def failure(self) -> str:
        """Why nothing of this agent can be kept, on one line; empty where it answered."""
        if self.error is not None:
            return " ".join(self.error.split())[:LONGEST_REASON] or "no reason was given"
        if self.untold or (self.answer and not self.answer.isspace()):
            return ""
        if self.confidence is not None and self.confidence == self.confidence:
            return ""
        return "it gave neither a text nor a confidence"


@dataclass(frozen=True, slots=True)
class Known:
    """Everything that is known about one question when the router is asked. All of it may be missing."""

    asked: Mapping[str, AskedAgent] = field(default_factory=dict)
    question: str = ""
    dimension: str = ""
    agents: Sequence[str] | None = None
    """Those that may be asked or kept; None for every agent that the router knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """One agent on one dimension, as outcomes have shown it."""

    rate: float
    """Log-odds of being right, shrunk to the agent's over all dimensions."""
    price_usd: float
    """Mean, for one question."""
    price_per_char: float = 0.0
    """By which the price rises with every character of the question above `mean_chars`."""
    mean_chars: float = 0.0
    knots: tuple[float, ...] = ()
    """Confidences, rising; empty where the agent stated none."""
    scores: tuple[float, ...] = ()
    """Normal scores of the knots: how far up a confidence is among the agent's own."""
    slope: float = 0.0
    intercept: float = 0.0
    """Log-odds of being right = intercept + slope * normal score."""
    stated: float = 0.0
    """Share of its answers that came with a confidence."""
    seconds: float | None = None
    """Mean time until its answer; None where it is not known."""

    def price(self, chars: int) -> float:
        """US dollars for asking it a question of so many characters; 0 characters for an unknown question."""
        if not chars:
            return self.price_usd
        return max(self.price_usd + self.price_per_char * (chars - self.mean_chars), 0.2 * self.price_usd)

    def score(self, confidence: float) -> float:
        """Normal score of a confidence: straight lines between the knots, flat outside them."""
        knots, scores = self.knots, self.scores
        right = bisect_right(knots, confidence)
        if right == 0:
            return scores[0]
        if right == len(knots):
            return scores[-1]
        left = knots[right - 1]
        share = (confidence - left) / (knots[right] - left)
        return scores[right - 1] + share * (scores[right] - scores[right - 1])

    def odd(self, confidence: float) -> bool:
        """Whether it lies so far outside what was seen in training that its scale must be another. -inf does not."""
        margin = 0.1 * (self.knots[-1] - self.knots[0]) + 1e-6
        return confidence != -math.inf and not self.knots[0] - margin <= confidence <= self.knots[-1] + margin


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The agents that a decision is among, on one dimension."""

    names: tuple[str, ...]
    pasts: tuple[Past, ...]
    mean_rate: float
    rates: tuple[float, ...]

    @classmethod
    def of(cls, names: Sequence[str], pasts: Sequence[Past]) -> "Candidates":
        rates = tuple(past.rate for past in pasts)
        return cls(tuple(names), tuple(pasts), sum(rates) / len(rates), rates)


def rows(
    panel: Candidates,
    asked: Sequence[tuple[int, AskedAgent]],
    texts: Sequence[float],
    chars: int,
) -> tuple[list[list[float]], list[float]]:
    """One row of `ROW` for each agent of the panel, and its price in US dollars.

    `asked`: columns of the panel with what they gave; nothing else of an agent is looked at but its past. `texts`: what
    the question's words say about each agent's success, NaN where there is no text. `training.router.rows` makes the
    same rows for many questions at once.
    """
    pasts, mean_rate = panel.pasts, panel.mean_rate
    prices = [past.price(chars) for past in pasts]
    mean_text = sum(texts) / len(texts)
    columns = [column for column, _ in asked]
    odds, stated, contents = [], [], []
    for column, answer in asked:
        past = pasts[column]
        if answer.confidence is None or not past.knots:
            odds.append(past.rate)
            stated.append(NAN)
        else:
            score = past.score(answer.confidence)
            odds.append(past.intercept + past.slope * score)
            stated.append(score)
        contents.append(content(answer.answer or ""))
    n = len(asked)
    alike = [[0.0] * n for _ in asked]
    pairs = 0.0
    for one in range(1, n):
        for other in range(one):
            alike[one][other] = alike[other][one] = same = agreement(contents[one], contents[other])
            pairs += same
    rates = [panel.rates[column] for column in columns]
    count, lead, common = _others(odds, rates, pairs)
    made = []
    for column, past in enumerate(pasts):
        rate = past.rate
        log_price = math.log(max(1000 * prices[column], FLOOR))
        if column in columns:
            place = columns.index(column)
            others, mine = odds[:place] + odds[place + 1 :], alike[place]
            heard, best, level = _others(others, rates[:place] + rates[place + 1 :], pairs - sum(mine))
            votes = _votes(others, mine[:place] + mine[place + 1 :])
            head = (1.0, odds[place], stated[place], texts[column], rate, log_price, heard, *votes, *level)
            made.append([*head, mean_rate, rate - best, mean_text])
        else:
            head = (0.0, NAN, NAN, texts[column], rate, log_price, count, NAN, NAN, NAN, NAN, *common)
            made.append([*head, mean_rate, rate - lead, mean_text])
    return made, prices


def _others(
    odds: Sequence[float], rates: Sequence[float], pairs: float
) -> tuple[float, float, tuple[float, float, float, float, float]]:
    """How many of these were asked, the best rate among them, and `best_other` to `pair_agreement` of `ROW`.

    `pairs`: sum of the agreement of any two of them.
    """
    n = len(odds)
    if n == 0:
        return 0.0, NAN, (NAN, NAN, NAN, NAN, NAN)
    if n == 1:
        level, rate = odds[0], rates[0]
        return 1.0, rate, (level, level, level, level - rate, NAN)
    if n == 2:  # the same by hand: it is on the way of most decisions
        (one, two), (rate, other) = odds, rates
        best, worst = (one, two) if one >= two else (two, one)
        mean = (one + two) / 2
        surprise = mean - (rate + other) / 2
        return 2.0, rate if rate >= other else other, (best, mean, worst, surprise, pairs)
    mean = sum(odds) / n
    return float(n), max(rates), (max(odds), mean, min(odds), mean - sum(rates) / n, 2 * pairs / (n * (n - 1)))


def _votes(odds: Sequence[float], alike: Sequence[float]) -> tuple[float, float, float, float]:
    """Weight of the others that agree with an answer, of those that do not, and the surest of either."""
    agreeing = disagreeing = 0.0
    best_agreeing = best_disagreeing = -math.inf
    for level, same in zip(odds, alike, strict=True):
        if level > -VOTE:
            agreeing += same * (level + VOTE)
            disagreeing += (1 - same) * (level + VOTE)
        if same > SAME:
            if level > best_agreeing:
                best_agreeing = level
        elif level > best_disagreeing:
            best_disagreeing = level
    return (
        agreeing,
        disagreeing,
        NAN if best_agreeing == -math.inf else best_agreeing,
        NAN if best_disagreeing == -math.inf else best_disagreeing,
    )


def describe_mismatch(sources: Mapping[str, str], agent: str, source: str, *, whole: bool = False) -> str:
    """What is wrong with an agent's confidence from this source, for a router that learned from `sources`.

    Empty where nothing is, or where one of the two is not known. A router that learned from two sources joined takes
    either alone, for one answer, where the other gave nothing, as it did in training; but not as the only source of a
    `whole` collection. For such a one, a router that names no source (learned from lines that name
    none) is taken to have learned from what the models stated.
    """
    learned = sources.get(agent, "stated" if whole else "")
    if not learned or not source or source == learned or (not whole and source in learned.split("+", 1)):
        return ""
    return (
        f"the confidence of {agent} is {_in_words(source)}, and the router learned from one that is "
        f"{_in_words(learned)}: give it that one, or train it on this one (`metaprobe train router RUNS --signal "
        "confidence=CHECKPOINT`)"
    )


def _in_words(source: str) -> str:
    """A source in words."""
    first, _, digest = source.rpartition("+")
    if source.isidentifier() and len(source) < 20:
        return "stated by the model" if source == "stated" else f"from {source}"
    return f"read by checkpoint {digest[:16]}" + (", joined with the stated one" if first else "")
