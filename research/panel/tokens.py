"""Compares ways to stop by the tokens that they take for the accuracy of Beta stopping, and measures cancelling.

    python -m research.panel.tokens measure [--only STORE ...]
    python -m research.panel.tokens page

The stores, folds and panels are those of `research.panel.measure`. Each way to stop gives a curve of accuracy over
tokens. On this curve a mixture of two settings is taken that is as accurate as Beta stopping at its own threshold. The
mixture is chosen on the other folds, or in hindsight on the test questions themselves.

For cancelling, `Panel.ask` runs as it ships, in simulated time: each token of each request takes one second. A request
that is cancelled has written as many tokens as it had seconds.
"""

import asyncio
import selectors
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import numpy as np

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval, statistic_interval
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Run
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.model_rows import MAJORITY, Floats, Ints
from metaprobe.routing.panel.planner import CONSISTENT, FIRST_TO, FIXED, IN_A_ROW, Setting, hull_corners, neighbours
from metaprobe.training.panel.checkpoint_plays import played_by
from metaprobe.training.panel.labelled_panels import MAX_LEARNED_ANSWERS, Panels
from metaprobe.training.panel.played_panels import PlayedPanels
from metaprobe.training.recipes.panel import statistics_of, stopped
from research.blocks import ROOT, keep_figures, markdown, packed, points, read_figures, shown, write
from research.panel.field import BETA, beta_stops, esc_stops, majority_right, stopped_at, tokens_in_order
from research.panel.measure import PAGE, SAMPLED, folds_of, kinds_of, range_of, won

KEPT = ROOT / "docs" / "measured" / "panel_tokens.json"
PANEL, ESC = "panel", "ESC"
STEP = 0.25
"""Step of the mean number of answers, from one plan of the panel to the next one that is tried."""
THRESHOLDS = 60
"""Thresholds of Beta stopping that are tried."""
NOT_REACHED = -1.0
"""Share of tokens saved that is counted where a way is never as accurate as Beta stopping: it lies below all others."""
EQUAL = 0.005
"""Accuracy by which a way may be behind Beta stopping where the two count as equal."""
VOTES = 8
"""Samples of the plain vote for which cancelling is measured."""
DEFAULT_STOP, VOTE = "the panel's default stop", f"a vote of {VOTES}"
"""Ways to stop for which cancelling is measured."""
FIFTH = 0.2
"""Share of tokens that was hoped to be saved."""
TOGETHER = ((DEFAULT_STOP, 2), (DEFAULT_STOP, VOTES), (VOTE, VOTES))
"""Ways to stop, with the number of samples that are under way together. `Panel.ask` has 2 by default."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Holds what g settings of one way give on n questions, as means over the orders of the answers."""

    right: Floats
    """(g, n): P(the kept answer is right)."""
    tokens: Floats
    """(g, n): tokens of the answers that were asked for."""

    def rows(self, rows: Ints) -> "Curve":
        return Curve(self.right[:, rows], self.tokens[:, rows])

    def mixture(self, target: float, weight: Floats) -> tuple[int, int, float, bool]:
        """Returns the two settings, and the share of the first, that reach an accuracy with the fewest tokens, and
        whether they reach it. Otherwise the most accurate setting is returned.

        Args:
            target: the accuracy.
            weight: (n,) multiplicity of each question.
        """
        accuracy, cost = (values @ weight / weight.sum() for values in (self.right, self.tokens))
        corners = hull_corners(cost, accuracy)
        reached = accuracy[corners]
        if reached[-1] < target - 1e-12:
            return corners[-1], corners[-1], 1.0, False
        left, right, share = neighbours(reached.tolist(), target)
        return corners[left], corners[right], share, True


def curves_of(panel: Panel, played: PlayedPanels, tokens: Floats) -> dict[str, Curve]:
    """Returns the curve of each way to stop on questions that a panel played.

    Args:
        panel: the panel.
        played: the questions, (o, n, K).
        tokens: (o, n, K) tokens of the first 1, ..., K answers.
    """
    K, statistics, vote = played.score.shape[2], statistics_of(played), majority_right(played)
    thresholds = {
        FIXED: np.arange(1.0, K + 1),
        FIRST_TO: np.arange(1.0, K + 1),
        IN_A_ROW: np.arange(1.0, K + 1),
        CONSISTENT: np.linspace(0.5, 0.9995, THRESHOLDS),
    }
    one = np.zeros(played.score.shape[:2], dtype=np.int64)
    found = {}
    for way, values in thresholds.items():
        at = [stopped(played, statistics[way].copy(), Setting(way, float(value), 0.0, 0.0)) for value in values]
        found[way] = _curve(vote, tokens, [one, *at])
    found[ESC] = _curve(vote, tokens, [one, *(esc_stops(played, window) for window in range(2, K + 1))])
    # The panel's plans mix two settings; each setting is played once.
    plans = [panel.plan(samples=float(samples)) for samples in np.arange(1.0, K + STEP / 2, STEP)]
    settings = list(dict.fromkeys(one for plan in plans for one in (plan.first, plan.second)))
    at = [stopped(played, statistics[one.way].copy(), one) for one in settings]
    whole = _curve(played.right[panel.pick], tokens, at)
    share = np.zeros((len(plans), len(settings)))
    for row, plan in enumerate(plans):
        share[row, settings.index(plan.first)] += plan.share
        share[row, settings.index(plan.second)] += 1 - plan.share
    found[PANEL] = Curve(share @ whole.right, share @ whole.tokens)
    return found


def _curve(right: Floats, tokens: Floats, at: Sequence[Ints]) -> Curve:
    """Returns the curve of the settings that stop after the answers at these places, each (o, n)."""
    came = [stopped_at(right, tokens, one) for one in at]
    means = [
        np.stack([values.mean(axis=0) for values in part])
        for part in ([c.right for c in came], [c.tokens for c in came])
    ]
    return Curve(*means)


def equal_accuracy(
    curves: dict[str, Curve], beta: tuple[Floats, Floats], fold: Ints, groups: Sequence[str]
) -> dict[str, Any]:
    """Returns for each way what it takes to be as accurate as Beta stopping.

    Args:
        curves: way -> its curve on n questions.
        beta: whether Beta stopping is right, and its tokens, (n,) each.
        fold: (n,) outer fold of each question.
        groups: group of each question.
    """
    right, tokens = beta
    weights = cluster_weights(list(groups))
    chosen: dict[str, tuple[Floats, Floats]] = {}
    reached = dict.fromkeys(curves, 0)
    for way, curve in curves.items():
        own, spent = np.zeros(len(fold)), np.zeros(len(fold))
        for number in np.unique(fold):
            seen, rows = (fold != number).astype(np.float64), fold == number
            first, second, share, there = curve.mixture(float(right @ seen / seen.sum()), seen)
            reached[way] += there
            own[rows] = share * curve.right[first, rows] + (1 - share) * curve.right[second, rows]
            spent[rows] = share * curve.tokens[first, rows] + (1 - share) * curve.tokens[second, rows]
        chosen[way] = own, spent
    panel, by_panel = chosen[PANEL]
    return {
        "accuracy": float(right.mean()),
        "tokens": float(tokens.mean()),
        "ways": {
            way: {
                "over": packed(mean_interval(own - right, weights)),
                "saved": packed(_saved(spent, tokens, weights)),
                "reached": reached[way],
                "saved_in_hindsight": packed(_saved_in_hindsight(curves[way], right, tokens, weights)),
                "panel_over": packed(mean_interval(panel - own, weights)),
                "panel_saved": packed(_saved(by_panel, spent, weights)),
            }
            for way, (own, spent) in chosen.items()
        },
    }


def _saved(spent: Floats, tokens: Floats, weights: Any) -> Interval:
    return statistic_interval(lambda drawn: 1 - (drawn @ spent) / (drawn @ tokens), weights)


def _saved_in_hindsight(curve: Curve, right: Floats, tokens: Floats, weights: Any) -> Interval:
    """Returns the share of tokens saved where the way is exactly as accurate on each resample of the questions."""

    def saved(drawn: Any) -> Floats:
        return np.array([one(weight.astype(np.float64)) for weight in drawn])

    def one(weight: Floats) -> float:
        left, second, share, there = curve.mixture(float(right @ weight / weight.sum()), weight)
        if not there:
            return NOT_REACHED
        spent = share * curve.tokens[left] + (1 - share) * curve.tokens[second]
        return float(1 - (spent @ weight) / (tokens @ weight))

    return statistic_interval(saved, weights)


class SimulatedTime(asyncio.SelectorEventLoop):
    """An event loop that does not wait: where all tasks sleep, its clock jumps to the next one that wakes."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jumps(self))

    def time(self) -> float:
        return self.now


class _Jumps(selectors.DefaultSelector):
    def __init__(self, loop: SimulatedTime) -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("every task waits for another one; expected one that sleeps")
        self.loop.now += max(timeout, 0.0)
        return super().select(0)


@dataclass(slots=True)
class Sampler:
    """A client of one model that gives recorded answers in their order. Each token takes a second."""

    answers: Sequence[Call]
    begun: int = 0
    whole: float = 0.0
    """Tokens of all requests that were begun, had they not been cancelled."""
    written: float = 0.0
    """Tokens that were written until an answer ended or its request was cancelled."""

    async def answer(self, **_: Any) -> Call:
        answer, clock = self.answers[self.begun], asyncio.get_running_loop().time
        self.begun += 1
        length, started = float(answer.usage.completion_tokens), clock()
        self.whole += length
        try:
            await asyncio.sleep(length)
        finally:
            self.written += min(clock() - started, length)
        return answer


SETTLED = "no answer under way can change which is kept"
"""The reason that `Panel.ask` gives where it cancels samples which cannot change the choice."""


@dataclass(slots=True)
class Cancelled:
    """Sums over questions of what cancelling saves."""

    whole: list[float] = field(default_factory=list)
    written: list[float] = field(default_factory=list)
    settled: list[bool] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        weights = cluster_weights(self.groups)
        return {
            "tokens": float(np.mean(self.whole)),
            "saved": packed(_saved(np.array(self.written), np.array(self.whole), weights)),
            "settled": float(np.mean(self.settled)),
        }


def named(stop: str, together: int) -> str:
    """Returns the name of a way to stop with the number of samples that are under way together."""
    return f"{stop}, {together} together"


def plain_vote(panel: Panel) -> Panel:
    """Returns the panel with a plain vote of a fixed number of samples in place of its ways to stop and to keep."""
    vote = Panel(panel.checkpoint)
    vote.settings, vote.pick = (Setting(FIXED, float(VOTES), float(VOTES), 0.0),), MAJORITY
    return vote


def asked(panel: Panel, item: Item, calls: Sequence[Call], together: int) -> tuple[Sampler, str]:
    """Returns what asking for samples of one question came to in simulated time, and why it stopped."""
    sampler, loop = Sampler(calls), SimulatedTime()
    ask: Awaitable[Any] = panel.ask(
        sampler.answer,
        [{"role": "user", "content": item.question}],
        model="recorded",
        at_most=len(calls),
        at_once=together,
        dimension=item.dimension,
        choices=item.choices,
        request_id=f"{item.task}/{item.id}",
    )
    try:
        answered = loop.run_until_complete(ask)
    finally:
        loop.close()
    return sampler, answered.stopped


def measured(runs: Sequence[Run]) -> dict[str, Any]:
    """Returns the figures of a store."""
    calls_of: dict[str, tuple[Item, list[Call]]] = {}
    for run in runs:
        for call in run.calls:
            if run.label("correct", call.id) is not None:
                name = f"{run.item.task}/{run.item.id}".strip("/")
                calls_of.setdefault(name, (run.item, []))[1].append(call)
    kinds: list[Panels] = [data for data, _ in kinds_of(runs)]
    n = sum(len(data) for data in kinds)
    curves: dict[str, Curve] = {}
    right, tokens, fold, groups = np.zeros(n), np.zeros(n), np.zeros(n, dtype=np.int64), [""] * n
    cancelled = {one: Cancelled() for one in TOGETHER}
    for number, (kind, panel, _, test, place) in enumerate(folds_of(kinds)):
        part = kinds[kind].take(np.asarray(test))
        played, lengths = played_by(panel, part, seed=0), tokens_in_order(part, panel.agents)
        for way, curve in curves_of(panel, played, lengths).items():
            shape = len(curve.right), n
            whole = curves.setdefault(way, Curve(np.zeros(shape), np.zeros(shape)))
            whole.right[:, place], whole.tokens[:, place] = curve.right, curve.tokens
        beta = stopped_at(majority_right(played), lengths, beta_stops(played))
        right[place], tokens[place], fold[place] = beta.right.mean(axis=0), beta.tokens.mean(axis=0), number
        for at, group in zip(place, part.groups, strict=True):
            groups[at] = group
        for (stop, together), sums in cancelled.items():
            asks = panel if stop == DEFAULT_STOP else plain_vote(panel)
            for name, group in zip(part.ids, part.groups, strict=True):
                item, calls = calls_of[name]
                most = MAX_LEARNED_ANSWERS if stop == DEFAULT_STOP else VOTES
                sampler, why = asked(asks, item, calls[:most], together)
                sums.whole.append(sampler.whole)
                sums.written.append(sampler.written)
                sums.settled.append(why == SETTLED)
                sums.groups.append(group)
    return {
        "questions": n,
        "equal_accuracy": equal_accuracy(curves, (right, tokens), fold, groups),
        "cancelled": {named(*one): sums.figures() for one, sums in cancelled.items()},
    }


@click.group()
def main() -> None:
    """Measures tokens at equal accuracy, and what cancelling saves."""


@main.command()
@click.option("--only", multiple=True, type=click.Choice([*SAMPLED]), help="Stores to measure; all by default.")
def measure(only: tuple[str, ...]) -> None:
    """Measure the stores, and keep the figures of each as soon as they are known."""
    for name, store in SAMPLED.items():
        if not only or name in only:
            keep_figures(KEPT, measured(list(RunStore(ROOT / "recorded" / store))), name, sort=False)
            click.echo(name, err=True)


@main.command()
def page() -> None:
    """Write the sentences and the table of docs/research/panel.md from what was kept."""
    kept = read_figures(KEPT)
    write(PAGE, "tokens", _sentences(kept))
    write(PAGE, "equal", _table(kept))


def _sentences(kept: Mapping[str, Any]) -> list[str]:
    """Returns what the panel takes at equal accuracy, the simple ways beside it, and what cancelling saves."""
    ways = [one["equal_accuracy"]["ways"] for one in kept.values()]
    panel, tuned = ([row[way] for row in ways] for way in (PANEL, CONSISTENT))
    equal = sum(row["saved"][1] >= FIFTH and row["over"][0] >= -EQUAL for row in panel)
    simple = [min(row[way]["panel_saved"][0] for way in row if way != PANEL) for row in ways]
    over, exact = ([row[name] for row in panel] for name in ("over", "saved_in_hindsight"))
    by_two, by_eight, vote = (
        [one["cancelled"][named(stop, together)] for one in kept.values()] for stop, together in TOGETHER
    )
    return [
        f"On {len(panel)} stores the panel, set on the other folds to the accuracy of Beta stopping, takes",
        f"{_saved_range(panel)} fewer tokens: by the interval a fifth fewer, and at most {100 * EQUAL:g} points less",
        f"accurate, on {equal}. The accuracy is ahead of Beta's in {won(over)} ({range_of(over)} points).",
        f"In hindsight, at equal accuracy, {sum(gain >= FIFTH for gain, _, _ in exact)} take a fifth fewer,",
        f"{sum(low >= FIFTH for _, low, _ in exact)} by the interval. A threshold chosen alike saves Beta",
        f"{_saved_range(tuned)}; the panel saves {min(simple):.0%} to {max(simple):.0%} of the tokens of the cheapest",
        f"simple way. Cancelling at the stop saves {_saved_range(by_two)} of the tokens of two samples at once,",
        f"{_saved_range(by_eight)} of eight, and {_saved_range(vote)} of a plain vote of {VOTES}.",
    ]


def _saved_range(rows: Sequence[Mapping[str, Any]]) -> str:
    saved = [row["saved"][0] for row in rows]
    return f"{min(saved):.0%} to {max(saved):.0%}"


def _table(kept: Mapping[str, Any]) -> list[str]:
    """Returns the table of all ways to stop at the accuracy of Beta stopping."""
    body = []
    for name, one in kept.items():
        figures = one["equal_accuracy"]
        beta = f"{figures['accuracy']:.3f} by {figures['tokens']:.0f} tokens"
        body.append([name, f"Beta {BETA}", beta, *[""] * 4])
        for way, row in figures["ways"].items():
            hindsight = shown(row["saved_in_hindsight"], "+.0%")
            panel = ["", ""] if way == PANEL else [points(row["panel_over"]), shown(row["panel_saved"], "+.0%")]
            body.append([name, way, points(row["over"]), shown(row["saved"], "+.0%"), hindsight, *panel])
    head = ["samples", "way to stop", "accuracy over Beta, points", "tokens saved", "saved in hindsight"]
    return [*markdown([*head, "panel over it, points", "panel saves"], body), ""]


if __name__ == "__main__":
    main()
