"""The field's ways to pick among samples and to stop, tuned on the questions that a panel learns from.

- Votes weighted by a confidence, as DeepConf has them (Fu et al. 2025, arXiv:2508.15260): over the whole answer, its
  lowest group of neighbouring tokens, its last group, or the mean of the lowest tenth of the groups; over all answers,
  or over the top 90 % or 10 % of them. DeepConf's confidence is read off the likeliest tokens, which the stores do not
  have: here it is the mean log-probability of the answer's own tokens, and a vote weighs exp(confidence / T). The
  group's width and T are tuned. Self-certainty (Kang et al. 2025) needs the whole distribution, which is not stored.
- Beta stopping (Adaptive-Consistency, Aggarwal et al. 2023) at its own threshold of 0.95; ESC's windows that do not
  overlap (Li et al. 2024); and a batch whose next sample goes to the question of the least Beta probability, which
  needs all questions at once.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.response import answer_logprobs
from metaprobe.records.types import Run
from metaprobe.routing.panel.model_rows import MAJORITY, AgentProfiles, Floats, Ints
from metaprobe.routing.panel.planner import CONSISTENT
from metaprobe.training.panel.fitted_panel import Placed, class_right
from metaprobe.training.panel.labelled_panels import MAX_LEARNED_ANSWERS, Panels
from metaprobe.training.panel.played_panels import ORDERS, PlayedPanels
from metaprobe.training.recipes.panel import statistics_of

WIDTHS = (5, 10, 20, 50)
"""Tokens of a group, of those that are tried."""
TEMPERATURES = (0.05, 0.07, 0.1, 0.14, 0.2, 0.3, 0.5, 1.0)
"""T of a vote's weight, in nats a token, of those that are tried."""
GROUPS = "mean", "lowest group", "last group", "lowest tenth"
"""Parts of an answer whose mean log-probability a confidence may be."""
KEEPS = {"all": 1.0, "top 90 %": 0.9, "top 10 %": 0.1}
"""Share of the answers that vote."""
FIELD_SIZES = (4, 8, 16)
"""Numbers of answers at which the ways to pick are tuned and compared."""
BETA = 0.95
"""Probability of the majority from which Adaptive-Consistency stops."""
ESC_WINDOWS = (2, 3, 4, 5)
"""Answers of ESC's window, of those that are tried."""

Confidences = dict[str, Floats]
"""Name of `GROUPS` -> confidences (w, n, K), by width; one where the width does not matter. NaN without answer."""


def confidences_of(runs: Sequence[Run], data: Panels) -> Confidences:
    """Returns the confidences of the answers of panels, which `panels_of_runs` made of these runs."""
    by_item: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
    for run in runs:
        for call in run.calls:
            if run.label("correct", call.id) is not None:
                own = answer_logprobs(call)
                values = np.zeros(0) if own is None else np.asarray(own, dtype=np.float64)
                by_item.setdefault((run.item.task, run.item.id), []).append(values)
    found = {
        name: np.full((1 if name == GROUPS[0] else len(WIDTHS), *data.answer_class.shape), np.nan) for name in GROUPS
    }
    answers = {f"{task}/{name}".strip("/"): many for (task, name), many in by_item.items()}
    for i, name in enumerate(data.ids):
        many = answers[name][:MAX_LEARNED_ANSWERS]
        assert len(many) == data.present[i].sum()
        for j, values in enumerate(many):
            if len(values):
                found[GROUPS[0]][0, i, j] = values.mean()
                for place, width in enumerate(WIDTHS):
                    groups = _groups(values, width)
                    tenth = np.sort(groups)[: max(1, len(groups) // 10)]
                    for kind, value in zip(GROUPS[1:], (groups.min(), groups[-1], tenth.mean()), strict=True):
                        found[kind][place, i, j] = value
    return found


def _groups(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Returns the means of all windows of neighbouring tokens; of a shorter answer its mean."""
    sums, w = np.concatenate([[0.0], np.cumsum(values)]), min(width, len(values))
    return (sums[w:] - sums[:-w]) / w


@dataclass(frozen=True, slots=True, eq=False)
class Votes:
    """Whether the kept answer is right, by way and setting."""

    right: dict[str, dict[int, Floats]]
    """Way -> size -> (settings, o, n)."""

    def tuned(self) -> dict[str, int]:
        """Returns the best setting of each way, over all sizes."""
        return {
            way: int(np.mean([values.mean(axis=(1, 2)) for values in by_size.values()], axis=0).argmax())
            for way, by_size in self.right.items()
        }


def votes_of(data: Panels, agents: AgentProfiles, confidences: Confidences) -> Votes:
    """Returns what the votes keep after several numbers of answers, in the orders of `played_by` with the seed 0."""
    K = data.answer_class.shape[1]
    sizes = [size for size in FIELD_SIZES if size <= K]
    right: dict[str, dict[int, list[Floats]]] = {}
    for kind, by_width in confidences.items():
        for confidence in by_width:
            usual = np.where(np.isfinite(confidence), confidence, np.nanmin(confidence))
            placed, rng = Placed(data.answers(agents), usual, data.right), np.random.default_rng(0)
            per_keep: dict[tuple[str, int], list[Floats]] = {}
            for _ in range(ORDERS):
                order = placed.draw(K, rng)
                for size in sizes:
                    part = order.first(size)
                    for keep, share in KEEPS.items():
                        per_keep.setdefault((keep, size), []).append(_kept(part, share))
            for (keep, size), parts in per_keep.items():
                way = f"{kind}, {keep}"
                right.setdefault(way, {}).setdefault(size, []).append(np.stack(parts, axis=1))
    return Votes({way: {size: np.concatenate(v) for size, v in by.items()} for way, by in right.items()})


def _kept(part: Placed, share: float) -> Floats:
    """Returns whether the class that is kept is right, (T, n), by votes of the surest share of the answers."""
    form, confidence = part.answers.answer_class, part.odds
    readable = form >= 0
    C = max(int(form.max()) + 1, 1)
    count = max(1, round(share * form.shape[1]))
    rank = np.argsort(np.argsort(np.where(readable, -confidence, np.inf), axis=1), axis=1)
    member = (form[:, :, None] == np.arange(C)) & (readable & (rank < count))[:, :, None]
    highest = np.where(readable, confidence, -np.inf).max(axis=1, keepdims=True)
    apart = np.where(readable, confidence - highest, 0.0)
    weight = np.exp(apart[None] / np.array(TEMPERATURES)[:, None, None])  # (T, n, s)
    kept = np.einsum("tns,nsc->tnc", weight, member).argmax(axis=2)
    labels = class_right(part)
    return np.where(readable.any(axis=1), np.take_along_axis(labels, kept.T, axis=1).T, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Stopped:
    """Holds the results of stopping on n questions, in o orders."""

    right: Floats
    """(o, n): whether the kept answer is right."""
    tokens: Floats
    """(o, n): tokens of the answers that were asked for."""
    answers: Floats
    """(o, n)"""


def tokens_in_order(data: Panels, agents: AgentProfiles) -> Floats:
    """Returns the tokens of the first 1, ..., K answers, (o, n, K), in the orders of `played_by` with the seed 0."""
    placed = Placed(data.answers(agents), np.nan_to_num(data.tokens[..., 1]), data.right)
    K, rng = data.answer_class.shape[1], np.random.default_rng(0)
    return np.cumsum(np.stack([placed.draw(K, rng).odds for _ in range(ORDERS)]), axis=2)


def stopped_at(right: Floats, tokens: Floats, at: Ints) -> Stopped:
    """Returns what comes of stopping after the answer at place `at` (o, n), from `right` and `tokens` (o, n, K)."""
    taken = [np.take_along_axis(values, at[..., None], axis=2)[..., 0] for values in (right, tokens)]
    return Stopped(taken[0], taken[1], at + 1.0)


def beta_stops(held: PlayedPanels, threshold: float = BETA) -> Ints:
    """Returns the place (o, n) of the answer after which Beta stopping ends, at latest the last one."""
    stops = statistics_of(held)[CONSISTENT] >= threshold
    return _first(stops, held)


def esc_stops(held: PlayedPanels, window: int) -> Ints:
    """Returns the place (o, n) of the answer after which ESC ends: the end of the first window of equal answers."""
    K = held.score.shape[2]
    ends = np.arange(1, K + 1) % window == 0
    return _first((held.counts[..., 2] >= window) & ends, held)


def tuned_window(held: PlayedPanels, target: float) -> int:
    """Returns the smallest of `ESC_WINDOWS` that is as accurate as `target` here, or else the most accurate."""
    accuracy = {}
    for window in ESC_WINDOWS:
        at = esc_stops(held, window)
        accuracy[window] = float(np.take_along_axis(majority_right(held), at[..., None], axis=2).mean())
    return next((w for w in ESC_WINDOWS if accuracy[w] >= target), max(ESC_WINDOWS, key=lambda w: accuracy[w]))


def _first(stops: NDArray[np.bool_], held: PlayedPanels) -> Ints:
    last = np.minimum(held.answers, stops.shape[2]) - 1
    stops = stops.copy()
    stops[:, np.arange(len(last)), last] = True
    return np.asarray(stops.argmax(axis=2))


def batch_stops(held: PlayedPanels, mean_answers: float) -> Ints:
    """Returns the place (o, n) of the last answer of each question, where a batch spends so many answers in the mean:
    each next one goes to the question whose majority has the least Beta probability."""
    sure = statistics_of(held)[CONSISTENT]
    o, n, _ = sure.shape
    last, at = np.minimum(held.answers, sure.shape[2]) - 1, np.zeros((o, n), dtype=np.int64)
    for order in range(o):
        queue = [(float(sure[order, i, 0]), 0, i) for i in range(n) if last[i] > 0]
        heapq.heapify(queue)
        left = round(n * (mean_answers - 1))
        while queue and left > 0:
            _, place, i = heapq.heappop(queue)
            at[order, i] = place + 1
            left -= 1
            if place + 1 < last[i]:
                heapq.heappush(queue, (float(sure[order, i, place + 1]), place + 1, i))
    return at


def majority_right(held: PlayedPanels) -> Floats:
    """Returns whether the majority's answer is right, (o, n, K)."""
    return held.right[MAJORITY]
