"""The learned router's rows for many questions at once, as `routing.learned_state.rows` makes them for one.

A state is a question and the set of agents that were asked of it. `Views` holds what a router would know if it asked.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.routing.learned_state import ANY, FLOOR, ROW, VOTE, Past
from metaprobe.routing.same_answers import SAME
from metaprobe.training.router.data import Floats, Ints, Outcomes

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """What accuracy costs, in b states."""

    dollar: Floats
    """(b,): accuracy that a US dollar for 1,000 questions must bring, lambda."""
    second: Floats
    """(b,): accuracy that a second of waiting must bring."""

    @classmethod
    def of(cls, lambdas: Floats) -> "Rates":
        """Waiting costs nothing."""
        return cls(lambdas, np.zeros(len(lambdas)))

    def __len__(self) -> int:
        return len(self.dollar)

    def take(self, rows: Ints) -> "Rates":
        return Rates(self.dollar[rows], self.second[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Views:
    """n questions, A agents: what each would be known by, asked or not."""

    calibrated: Floats
    """(n, A): log-odds that the answer is right, by its confidence where one was stated."""
    stated: Floats
    """(n, A): normal score of the confidence, NaN where none was stated."""
    text: Floats
    """(n, A), NaN where there is no text."""
    rate: Floats
    """(n, A)."""
    price: Floats
    """(n, A) expected US dollars for 1,000 questions."""
    seconds: Floats
    """(n, A) expected until its answer, 0 where that is not known."""
    agreement: NDArray[np.float32]
    """(n, A, A)."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.rate.shape[0], self.rate.shape[1]

    def dues(self, question: Ints, rates: Rates) -> Floats:
        """(b, A): accuracy that asking each agent must bring."""
        return rates.dollar[:, None] * self.price[question] + rates.second[:, None] * self.seconds[question]

    def log_priced(self, question: Ints, rates: Rates) -> Floats:
        """(b, A): logarithm of the dues, a free agent's price taken as `FLOOR`."""
        price = np.maximum(self.price[question], FLOOR)
        wait = rates.second[:, None] * self.seconds[question]
        return np.log(price) + np.log(rates.dollar)[:, None] + np.log1p(wait / (rates.dollar[:, None] * price))


def views_of(data: Outcomes, pasts: Mapping[str, Mapping[str, Past]], text: Floats, *, dimension: bool = True) -> Views:
    """Without `dimension`, as if no question's were known. `text` is all NaN to leave the words out."""
    n, A = data.score.shape
    calibrated, stated, rate, price, seconds = (np.full((n, A), np.nan) for _ in range(5))
    chars = data.chars
    names = dict(enumerate(data.dimensions))
    at = data.dimension if dimension else np.full(n, -1)
    for column, name in enumerate(data.agents):
        for d in np.unique(at):
            here = np.flatnonzero(at == d)
            past = pasts[name].get(names.get(int(d), ANY)) or pasts[name][ANY]
            rate[here, column] = calibrated[here, column] = past.rate
            prices = past.price_usd + past.price_per_char * (chars[here] - past.mean_chars)
            prices = np.where(chars[here] > 0, np.maximum(prices, 0.2 * past.price_usd), past.price_usd)
            price[here, column] = 1000 * prices
            seconds[here, column] = past.seconds or 0.0
            if past.knots:
                given = here[np.isfinite(data.confidence[here, column])]
                stated[given, column] = np.interp(data.confidence[given, column], past.knots, past.scores)
                calibrated[given, column] = past.intercept + past.slope * stated[given, column]
    return Views(calibrated, stated, text, rate, price, seconds, data.agreement)


def batch_rows(views: Views, question: Ints, mask: Mask, agent: Ints) -> NDArray[np.float32]:
    """(b, len(ROW)): agent `agent[i]` of question `question[i]` when the agents of `mask[i]` (b, A) have been asked."""
    b = len(question)
    at = np.arange(b)
    asked = mask[at, agent]
    others = mask.copy()
    others[at, agent] = False
    count = others.sum(axis=1)
    odds, rate = views.calibrated[question], views.rate[question]
    alike = views.agreement[question, agent].astype(np.float64)
    votes = np.where(others, np.maximum(odds + VOTE, 0.0), 0.0)
    heard = others & asked[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rows without any other agent: NaN is meant
        level = np.where(others, odds, np.nan)
        mean = np.nanmean(level, axis=1)
        columns = {
            "asked": asked,
            "calibrated": np.where(asked, odds[at, agent], np.nan),
            "stated": np.where(asked, views.stated[question, agent], np.nan),
            "text": views.text[question, agent],
            "rate": rate[at, agent],
            "log_price": np.log(np.maximum(views.price[question, agent], FLOOR)),
            "others": count,
            "agreeing": np.where(asked, (alike * votes).sum(axis=1), np.nan),
            "disagreeing": np.where(asked, ((1 - alike) * votes).sum(axis=1), np.nan),
            "best_agreeing": np.nanmax(np.where(heard & (alike > SAME), odds, np.nan), axis=1),
            "best_disagreeing": np.nanmax(np.where(heard & (alike <= SAME), odds, np.nan), axis=1),
            "best_other": np.nanmax(level, axis=1),
            "mean_other": mean,
            "worst_other": np.nanmin(level, axis=1),
            "surprise": mean - np.nanmean(np.where(others, rate, np.nan), axis=1),
            "pair_agreement": _pairs(views, question, others, count),
            "mean_rate": rate.mean(axis=1),
            "rate_lead": rate[at, agent] - np.nanmax(np.where(others, rate, np.nan), axis=1),
            "mean_text": views.text[question].mean(axis=1),
        }
    return np.stack([columns[name] for name in ROW], axis=1).astype(np.float32)


def _pairs(views: Views, question: Ints, others: Mask, count: Ints) -> Floats:
    """Mean agreement of two of the others; NaN below two."""
    found = np.full(len(question), np.nan)
    some = np.flatnonzero(count > 1)
    if len(some):
        both = others[some].astype(np.float32)
        total = np.einsum("ba,bac,bc->b", both, views.agreement[question[some]], both)  # the diagonal is 0
        found[some] = total / (count[some] * (count[some] - 1))
    return found
