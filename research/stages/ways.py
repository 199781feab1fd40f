"""Ways of deciding at each point: the learned heads, the paper's rule, simple ways, and who knows the outcomes.

Tuned ways choose their setting by value on the problems that the heads were fitted on.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from metaprobe.routing.actions import AGAIN
from metaprobe.routing.paper import PaperRules
from research.stages.data import SELF_REFINE, Candidates, Critics, Cycles, Floats
from research.stages.fit import QUANTILE, FittedStages, best_evaluated, candidates_in, returned
from research.stages.policy import ACTIONS, BREAKS, FIXES, LEAST_TOKENS, LENGTH, MOST_TOKENS, RIGHT, after
from research.stages.state import COLUMNS

LEARNED, RULE, ORACLE, SHUFFLED, RANDOM = (
    "learned",
    "paper's rule",
    "oracle",
    "learned, shuffled labels",
    "learned, dealt out at random",
)
"""Dealt out at random: the same decisions as often, each for another problem."""
CUTS = 24
"""Thresholds that a tuned way tries: quantiles of what it reads."""

Choice = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class PlayedStages:
    """What a way of deciding gave on n problems, each (n,); means over seeds of the folds."""

    correct: Floats
    tokens: Floats
    """Generated, by what is decided here: in all cycles; after A1's answer; by the answer alone, for the budget."""
    steps: Floats
    """Cycles, answers to choose from, critics heard, or max_tokens."""

    def value(self, token_price: float) -> Floats:
        return self.correct - token_price * self.tokens / 1000


@dataclass(frozen=True, slots=True, eq=False)
class StageOptions:
    """What each of k choices would give on n problems, (n, k) each: a choice is a column."""

    correct: Floats
    tokens: Floats
    steps: Floats

    def chosen(self, choice: Choice) -> PlayedStages:
        at = np.arange(len(choice)), choice
        return PlayedStages(self.correct[at], self.tokens[at], self.steps[at])

    def value(self, token_price: float) -> Floats:
        return self.correct - token_price * self.tokens / 1000


Data = TypeVar("Data", Cycles, Candidates, Critics)


@dataclass(frozen=True, slots=True, eq=False)
class Split(Generic[Data]):
    """Heads fitted on one part, ways played on the other."""

    fitted: FittedStages
    shuffled: FittedStages
    """Fitted to the outcomes of other problems."""
    seen: Data
    test: Data
    token_price: float
    rng: np.random.Generator


Ways = dict[str, PlayedStages]


def iterate_ways(split: Split[Cycles]) -> Ways:
    """Whether another cycle is worth it; steps are cycles.

    Of problems that were cut where the paper's rule stops, every way stops there at the latest.
    """
    seen, test = split.seen, split.test
    T, price = test.cycles, split.token_price
    known, options = (stop_options(each, split.fitted) for each in (seen, test))
    learned = learned_stops(split.fitted, test, price)
    good = PaperRules().good
    choices = {
        LEARNED: learned,
        RULE: first_stop(~(test.quality[:, :-1] >= good)),
        "always one cycle": np.zeros(len(test), dtype=np.intp),
        SHUFFLED: learned_stops(split.shuffled, test, price),
        RANDOM: split.rng.permutation(learned),
        ORACLE: options.value(price).argmax(axis=1),
    }
    if test.exhaustive:  # else the paper's rule is what goes on as long as is known
        choices[f"always {T} cycles"] = np.full(len(test), T - 1)
    for name, read in (("evaluation", _evaluation), ("log-probability", _mean_logprob)):
        choices[f"stop at a tuned {name}"] = first_stop(read(test) < _best_stop(read(seen), known, price))
    ways = {way: options.chosen(choice) for way, choice in choices.items()}
    if test.system != SELF_REFINE:  # which returns the last one always
        all_tokens = test.tokens.sum(axis=1)
        ways[f"the last of {T} cycles"] = PlayedStages(test.correct[:, -1], all_tokens, np.full(len(test), float(T)))
    return ways


def stop_options(data: Cycles, fitted: FittedStages) -> StageOptions:
    """Choice t: stop after t + 1 cycles, or as many as were run."""
    steps = np.minimum(np.arange(1.0, data.cycles + 1), data.ran[:, None])
    return StageOptions(returned(data, fitted.kept(data)), data.tokens.cumsum(axis=1), steps)


def learned_stops(fitted: FittedStages, data: Cycles, token_price: float) -> Choice:
    """(n,): after which cycle the continue head stops."""
    rows = data.steps  # (n, T - 1, d)
    gain = fitted.output(FIXES, rows) - fitted.output(BREAKS, rows) - token_price * fitted.tokens[AGAIN] / 1000
    return first_stop(gain > 0)


def first_stop(again: NDArray[np.bool_]) -> Choice:
    """(n,): the first cycle after which it is not gone on; the last one where it always is."""
    return np.asarray(np.where(again.all(axis=1), again.shape[1], again.argmin(axis=1)))


def select_ways(split: Split[Cycles] | Split[Candidates]) -> Ways:
    """Which answer is returned, all of them being there and paid for; steps are answers."""
    test = candidates_in(split.test)
    K = test.correct.shape[1]
    learned = likeliest(split.fitted, test)
    mean_logprob = test.rows[..., COLUMNS.index("mean_logprob")]
    choices = {
        LEARNED: learned,
        RULE: best_evaluated(test.quality)[:, -1],
        "first answer": np.nan_to_num(test.given, nan=np.inf).argmin(axis=1),
        "last answer": np.nan_to_num(test.given, nan=-np.inf).argmax(axis=1),
        "highest mean log-probability": np.nan_to_num(mean_logprob, nan=-np.inf).argmax(axis=1),
        "most frequent answer": test.votes.argmax(axis=1),
        "any answer": split.rng.integers(test.counts),
        SHUFFLED: likeliest(split.shuffled, test),
        RANDOM: split.rng.permutation(learned) % test.counts,
        ORACLE: test.correct.argmax(axis=1),
    }
    tokens, steps = (np.repeat(each[:, None].astype(np.float64), K, axis=1) for each in (test.tokens, test.counts))
    options = StageOptions(test.correct, tokens, steps)
    return {way: options.chosen(choice) for way, choice in choices.items()}


def likeliest(fitted: FittedStages, data: Candidates) -> Choice:
    """(n,): the answer that the selection head returns, the first of equals."""
    return np.asarray(np.where(data.there, fitted.output(RIGHT, data.rows), -np.inf).argmax(axis=1))


def budget_ways(split: Split[Cycles]) -> Ways:
    """How long an answer may get; steps are max_tokens."""
    seen, test = split.seen, split.test
    n, T = test.correct.shape

    def constant(limit: float) -> Floats:
        return np.full((n, T), limit)

    learned = _limits(split.fitted, test)
    finished = np.where(test.correct == 1, test.lengths, LEAST_TOKENS)
    cuts = np.quantile(seen.lengths, np.linspace(0.5, 1, CUTS))
    best = max(
        cuts, key=lambda cut: float(_cut_at(seen, np.full_like(seen.lengths, cut)).value(split.token_price).mean())
    )
    limits = {
        LEARNED: learned,
        RULE: test.limits,
        "the same quantile for all": constant(float(np.quantile(seen.lengths, QUANTILE))),
        "tuned, the same for all": constant(float(best)),
        SHUFFLED: _limits(split.shuffled, test),
        RANDOM: learned[split.rng.permutation(n)],
        ORACLE: np.minimum(finished, test.limits),
    }
    return {way: _cut_at(test, limit) for way, limit in limits.items()}


def _limits(fitted: FittedStages, data: Cycles) -> Floats:
    return np.maximum(LEAST_TOKENS, np.ceil(fitted.output(LENGTH, data.rows[:, -1]) * MOST_TOKENS))


def _cut_at(data: Cycles, limits: Floats) -> PlayedStages:
    """A problem's mean over its cycles; an answer that the limit would have cut counts as wrong.

    What came after a cut answer is taken as it was recorded, and an answer that was cut gets no longer by a higher one.
    """
    right = data.correct * (data.lengths <= limits)
    return PlayedStages(right.mean(axis=1), np.minimum(data.lengths, limits).mean(axis=1), limits.mean(axis=1))


def regulate_ways(split: Split[Critics]) -> Ways:
    """Which critics are heard before the synthesis; steps are how many."""
    seen, test = split.seen, split.test
    n, price = len(test), split.token_price
    known, options = critic_options(seen), critic_options(test)
    learned = learned_critics(split.fitted, test, price)
    choices = {
        LEARNED: learned,
        RULE: np.full(n, len(ACTIONS) - 1),
        **{f"always {action}": np.full(n, column) for column, action in enumerate(ACTIONS[:-1])},
        "tuned log-probability": _tuned_pair(seen, test, known.value(price)),
        SHUFFLED: learned_critics(split.shuffled, test, price),
        RANDOM: split.rng.permutation(learned),
        ORACLE: options.value(price).argmax(axis=1),
    }
    ways = {way: options.chosen(choice) for way, choice in choices.items()}
    ways["A1's answer, no synthesis"] = PlayedStages(test.first, np.zeros(n), np.zeros(n))
    return ways


def critic_options(data: Critics) -> StageOptions:
    """A choice an action; steps: critics heard."""
    steps = np.broadcast_to(np.arange(float(len(ACTIONS))), data.correct.shape)
    return StageOptions(data.correct, data.tokens, steps)


def learned_critics(fitted: FittedStages, data: Critics, token_price: float) -> Choice:
    """(n,): column of the action that the stage heads choose."""
    scores = [fitted.output(after(a), data.rows) - token_price * fitted.tokens[a] / 1000 for a in ACTIONS]
    return np.asarray(np.stack(scores, axis=1).argmax(axis=1))


def _tuned_pair(seen: Critics, test: Critics, value: Floats) -> Choice:
    """One action where the mean log-probability of A1's answer is below a cut, another one elsewhere."""
    read, other = (np.nan_to_num(each.rows[:, 0].astype(np.float64), nan=-np.inf) for each in (seen, test))
    best = (-np.inf, -np.inf, 0, 0)
    for cut in _cuts(read):
        below = read < cut
        low, high = (int(value[side].sum(axis=0).argmax()) if side.any() else 0 for side in (below, ~below))
        total = float(value[below, low].sum() + value[~below, high].sum())
        best = max(best, (total, cut, low, high), key=lambda found: found[0])
    return np.where(other < best[1], best[2], best[3])


def _best_stop(values: Floats, known: StageOptions, token_price: float) -> float:
    """The threshold from which to stop, of highest value."""
    return max(_cuts(values), key=lambda cut: float(known.chosen(first_stop(values < cut)).value(token_price).mean()))


def _cuts(values: Floats) -> list[float]:
    finite = values[np.isfinite(values)]
    inner = np.unique(np.quantile(finite, np.linspace(0, 1, CUTS))).tolist() if finite.size else []
    return [-np.inf, *inner, np.inf]


def _evaluation(data: Cycles) -> Floats:
    """(n, T - 1): of the last answer, after each cycle but the last."""
    return np.where(np.isnan(data.quality), -1.0, data.quality)[:, :-1]


def _mean_logprob(data: Cycles) -> Floats:
    column = data.steps[..., COLUMNS.index("mean_logprob")].astype(np.float64)
    return np.where(np.isnan(column), -np.inf, column)
