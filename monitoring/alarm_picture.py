"""What an alarm is about, as numbers before and since, and as a small picture for a page or a ticket."""

from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from textwrap import wrap

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.monitoring.drift import LABEL, NAMES, Alarm

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 520, 180, 56, 34, 28
LETTERS = 84
"""Of a line of the title; a longer one has two."""
PARTS = 40
"""Parts of the time, each a point of the line."""
FORMATS = ((1, ".3f"), (100, ".1f"))
"""Numbers below the first are written as the second says; larger ones without a decimal."""


@dataclass(frozen=True, slots=True)
class Move:
    """How far a stream has moved."""

    what: str
    """What the numbers are: `mean score`, `share of 'stop'`, ..."""
    before: float
    """Mean until the change likely began; NaN where nothing came before it."""
    after: float
    """Mean from then to the alarm."""


def measure_move(alarm: Alarm, time: ArrayLike, values: ArrayLike) -> Move:
    """Returns the means on either side of where the change likely began, from the first value on that it is told of.

    `time`, `values` (n,): of the stream, at least those until the alarm; of labels give label less score. Of names the
    share of the one that was commonest before is taken.
    """
    times, numbers, what = _numbers(alarm, time, values)
    compared = times >= alarm.first if alarm.stream != LABEL and np.isfinite(alarm.first) else np.isfinite(times)
    before, after = compared & (times < alarm.began), (times >= alarm.began) & (times <= alarm.time)
    return Move(what, _mean(numbers[before]), _mean(numbers[after]))


def say_alarm(alarm: Alarm, move: Move, path: str = "") -> str:
    """Returns the alarm in a sentence, with its numbers. `path`: the folder of its version, where that is known."""
    text = alarm.text
    if path:
        text = text.replace(alarm.checkpoint[:12], f"{alarm.checkpoint[:12]} ({path})", 1)
    before = f"{_text(move.before)} before, " if np.isfinite(move.before) else ""
    return f"{text}; {move.what} {before}{_text(move.after)} since"


def draw_alarm(alarm: Alarm, time: ArrayLike, values: ArrayLike, *, title: str = "") -> str:
    """Returns an SVG: the stream over time, where the change likely began (dashed) and where it rang.

    `title`: as of `say_alarm`; made here where it is empty.
    """
    times, numbers, _ = _numbers(alarm, time, values)
    said = title or say_alarm(alarm, measure_move(alarm, time, values))
    title = escape(said)
    if not len(times):
        return f'<svg xmlns="http://www.w3.org/2000/svg" role="img"><title>{title}</title></svg>'
    first, last = float(times.min()), float(max(times.max(), alarm.time))
    edges = np.linspace(first, last, PARTS + 1)
    place = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, PARTS - 1)
    counts = np.bincount(place, minlength=PARTS)
    means = np.bincount(place, weights=numbers, minlength=PARTS) / np.maximum(counts, 1)
    low, high = float(means[counts > 0].min()), float(means[counts > 0].max())
    margin = 0.1 * (high - low) or 0.5

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - 8) * (at - first) / ((last - first) or 1)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low + margin) / (high - low + 2 * margin)

    middles = (edges[:-1] + edges[1:]) / 2
    points = " ".join(f"{x(middles[i]):.1f},{y(means[i]):.1f}" for i in np.flatnonzero(counts))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="sans-serif" '
        f'font-size="11" fill="currentColor"><title>{title}</title>',
        *(f'<text x="8" y="{13 + 13 * at}">{escape(part)}</text>' for at, part in enumerate(wrap(said, LETTERS)[:2])),
        *(f'<text x="{LEFT - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{_text(v)}</text>' for v in {low, high}),
        f'<text x="{LEFT}" y="{HEIGHT - 8}">{_day(first)}</text>',
        f'<text x="{WIDTH - 8}" y="{HEIGHT - 8}" text-anchor="end">{_day(last)}</text>',
        f'<polyline points="{points}" fill="none" stroke="#2a6f97" stroke-width="2"/>',
        _line(x(alarm.began), "#b5651d", 'stroke-dasharray="4 3"'),
        _line(x(alarm.time), "#b5651d", ""),
        "</svg>",
    ]
    return "".join(parts)


def _numbers(alarm: Alarm, time: ArrayLike, values: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64], str]:
    times, given = np.asarray(time, dtype=np.float64), np.asarray(values)
    if alarm.stream not in NAMES:
        numbers, known = given.astype(np.float64), np.isfinite(given.astype(np.float64))
        return times[known], numbers[known], "label less score" if alarm.stream == "label" else f"mean {alarm.stream}"
    known = given != ""
    earlier = given[known & (times < alarm.began)]
    names, counts = np.unique((earlier if len(earlier) else given[known]).astype(np.str_), return_counts=True)
    commonest = str(names[counts.argmax()]) if len(names) else ""
    return times[known], (given[known] == commonest).astype(np.float64), f"share of {commonest!r}"


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _text(value: float) -> str:
    style = next((style for below, style in FORMATS if abs(value) < below), ".0f")
    return format(value, style)


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _line(x: float, colour: str, more: str) -> str:
    ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"'
    return f'<line {ends} stroke="{colour}" stroke-width="1.5" {more}/>'
