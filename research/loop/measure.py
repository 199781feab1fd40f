"""The loop in production on replayed real answers with planted shifts, into docs/measured/loop.json.

    python -m research.loop.measure estimates --data DATA    # coverage, and labels that scores spare: 2 minutes
    python -m research.loop.measure recalibration --data DATA
    python -m research.loop.measure drift --data DATA        # minutes
    python -m research.loop.page

A replay draws answers from a pool of recorded ones with replacement, so the truth is the pool's share right. Labels are
those of the recorded answers.
"""

import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from scipy.stats import ks_2samp

from metaprobe.eval.metrics.calibration import brier, ece
from metaprobe.eval.results import plain
from metaprobe.production.monitoring.drift import LABEL_STREAM, DriftWatch
from metaprobe.production.monitoring.estimates import estimate_accuracy
from metaprobe.training.base_rates import fit_scale
from metaprobe.training.calibrators import sigmoid
from research.blocks import ROOT, keep_figures
from research.loop.worlds import Floats, Traffic, World, build_worlds, read_consistency

MEASURED = ROOT / "docs" / "measured" / "loop.json"
REPLAYS, ANSWERS, STREAMS = 1000, 1500, 40
LABELS = (20, 100, 300)
SHEETS, SHEET_REPLAYS, RIGHT = ((200, 20, 5000), (100, 30, 5000), (60, 20, 2000)), 1000, 0.95
"""Labels of a first sheet that took all there was, and of a second one, of so many; the share right of both."""
GROUPED = ((150, 10, 300), (50, 30, 300), (20, 50, 200))
"""Questions, answers to each, and labels."""
FLOOR = 0.15
"""Added to the wish for a label, so that sure answers are drawn as well."""
RECALIBRATED = (50, 100, 200)
DRAWS = 50
"""Number of draws of labels."""
DAY, REFERENCE, BEFORE, AFTER = 100, 500, 1000, 2000
"""Answers a day; of the baselines' reference; before and after the change."""
LABELLED = 0.1
"""Share of answers that are labelled where labels are watched."""
P_VALUE, PSI = 0.05, 0.2
"""At which the baselines ring, as is usual."""


@click.group()
def main() -> None:
    """Measure the loop."""


data_option = click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)


@main.command()
@data_option
def estimates(data: Path) -> None:
    """Coverage of 95 % intervals over replays, and labels that a powered estimate needs beside a plain mean."""
    rows = []
    for world in build_worlds(ROOT, data):
        for when, pool in (("before", world.before), ("after", world.after)):
            for labels in LABELS:
                for active in (False, True):
                    found = _covered(pool.score, pool.y, labels, active=active, of=world.shift)
                    rows.append({"world": world.name, "shift": world.shift, "when": when, **found})
        click.echo(world.shift, err=True)
    pool = next(build_worlds(ROOT, data)).before
    shuffled = np.random.default_rng(0).permutation(pool.score)
    predictors = [
        *((f"agreement of ten samples, {name}", score, y) for name, score, y in read_consistency(data)),
        ("log-probabilities, 57 task families, 0.5B coder", pool.score, pool.y),
        ("the same scores, shuffled: useless", shuffled, pool.y),
    ]
    spared = [
        {"predictor": name, **_covered(score, y, 200, active=active, of=name)}
        for name, score, y in predictors
        for active in (False, True)
    ]
    others = {
        "sheets": [_two_sheets(*counts) for counts in SHEETS],
        "grouped": [_grouped(*counts) for counts in GROUPED],
    }
    figures = {"coverage": rows, "spared": spared, **others, "replays": REPLAYS, "answers": ANSWERS}
    keep_figures(MEASURED, figures, "estimates", sort=False)


def _two_sheets(first: int, then: int, of: int) -> dict[str, Any]:
    """Coverage where a first sheet took all of `first` answers, and a later one `then` of `of`; scores are right."""
    rng, held = np.random.default_rng([first, then, of]), np.zeros(2)
    for _ in range(SHEET_REPLAYS):
        score = rng.beta(19, 1, first + of)
        y = (rng.random(len(score)) < score).astype(float)
        propensity = np.concatenate([np.ones(first), np.full(of, then / of)])
        asked = rng.random(len(score)) < propensity
        found = estimate_accuracy(score, np.where(asked, y, np.nan), np.where(asked, propensity, np.nan))[1:]
        held += [one.low <= RIGHT <= one.high for one in found]
    coverage = dict(zip(("powered", "labelled"), (held / SHEET_REPLAYS).tolist(), strict=True))
    return {"first": first, "then": then, "of": of, "replays": SHEET_REPLAYS, "coverage": coverage}


def _grouped(questions: int, times: int, labels: int) -> dict[str, Any]:
    """Coverage where each question is answered so many times, with and without saying so; half is right on average."""
    rng, held = np.random.default_rng([questions, times]), np.zeros((2, 2))
    for _ in range(SHEET_REPLAYS):
        easy = np.repeat(rng.beta(0.5, 0.5, questions), times)
        score = np.clip(0.5 + 0.3 * (easy - 0.5) + 0.1 * rng.normal(size=len(easy)), 0, 1)
        y, names = (rng.random(len(easy)) < easy).astype(float), np.repeat(np.arange(questions).astype(str), times)
        propensity = np.full(len(y), labels / len(y))
        asked = rng.random(len(y)) < propensity
        given = score, np.where(asked, y, np.nan), np.where(asked, propensity, np.nan)
        for told, group in enumerate((None, names)):
            held[told] += [one.low <= 0.5 <= one.high for one in estimate_accuracy(*given, group=group)[1:]]
    told_of = dict(zip(("untold", "told"), (held / SHEET_REPLAYS).tolist(), strict=True))
    return {"questions": questions, "times": times, "labels": labels, "replays": SHEET_REPLAYS, **told_of}


def _seed(name: str) -> int:
    return zlib.crc32(name.encode())


def _covered(score: Floats, y: NDArray[np.int64], labels: int, *, active: bool, of: str) -> dict[str, Any]:
    """Coverage of the three intervals, and the mean squared width of the powered one beside a plain uniform mean's."""
    truth = float(y.mean())
    rng = np.random.default_rng([labels, active, len(y), _seed(of)])  # of each world others, of one pool too
    held, widths, plain_width = np.zeros(3), np.zeros(3), 0.0
    for _ in range(REPLAYS):
        rows = rng.integers(len(y), size=ANSWERS)
        s, right = score[rows], y[rows].astype(float)
        wish = FLOOR + np.sqrt(s * (1 - s)) if active else np.ones(ANSWERS)
        propensity = np.minimum(labels * wish / wish.sum(), 1)
        asked = rng.random(ANSWERS) < propensity
        found = estimate_accuracy(s, np.where(asked, right, np.nan), np.where(asked, propensity, np.nan))
        held += [one.low <= truth <= one.high for one in found]
        widths += [one.width**2 for one in found]
        even = rng.random(ANSWERS) < labels / ANSWERS
        plain_width += estimate_accuracy(s, np.where(even, right, np.nan))[2].width ** 2
    names = ("scores", "powered", "labelled")
    return {
        "labels": labels,
        "drawn": "active" if active else "uniform",
        "share_right": truth,
        "squared_correlation": float(np.corrcoef(score, y)[0, 1] ** 2),
        "coverage": dict(zip(names, (held / REPLAYS).tolist(), strict=True)),
        "squared_width": float(widths[1] / plain_width),
    }


@main.command()
@data_option
def recalibration(data: Path) -> None:
    """Calibration error after the shift, before and after recalibration by so many labels."""
    rows = []
    for world in build_worlds(ROOT, data):
        pool, test = world.after.rows(world.after.half), world.after.rows(~world.after.half)
        rng, found = np.random.default_rng(0), {}
        for labels in RECALIBRATED:
            errors = []
            for _ in range(DRAWS):
                some = pool.rows(rng.choice(len(pool), size=min(labels, len(pool)), replace=False))
                fit = fit_scale(_log_odds(some.score), some.y, np.full(len(some), "m"))  # as `recalibrate` does
                moved = sigmoid(fit.weights[0] * _log_odds(test.score) + fit.rates.mean)
                constant = np.full(len(test), some.y.mean())
                right = (rng.random(len(test)) < moved).astype(np.int64)
                eces = [_ece(moved, test.y), _ece(constant, test.y), _ece(moved, right)]
                errors.append([*eces, *(float(brier(test.y, one)) for one in (moved, constant))])
            names = ("ece", "ece_constant", "noise", "brier", "brier_constant")
            found[labels] = dict(zip(names, np.median(errors, axis=0).tolist(), strict=True))
        told = {"answers": len(test), "before": _ece(test.score, test.y), "brier": float(brier(test.y, test.score))}
        rows.append({"world": world.name, "shift": world.shift, **told, "after": found})
        click.echo(world.shift, err=True)
    keep_figures(MEASURED, {"rows": rows, "draws": DRAWS}, "recalibration", sort=False)


def _log_odds(score: Floats) -> Floats:
    p = np.clip(score, 1e-6, 1 - 1e-6)
    return np.log(p) - np.log1p(-p)


def _ece(score: Floats, y: NDArray[np.int64]) -> float:
    return float(np.asarray(ece(y, score)))


@main.command()
@data_option
@click.option("--replays", default=STREAMS, show_default=True, type=click.IntRange(1))
def drift(data: Path, replays: int) -> None:
    """False alarms over whole streams, and answers until the alarm, beside KS per day and PSI."""
    rows = []
    for world in build_worlds(ROOT, data):
        found = {name: _rung(world, way, replays) for name, way in WAYS.items()}
        rows.append({"world": world.name, "shift": world.shift, "ways": found})
        click.echo(world.shift, err=True)
    told = {"replays": replays, "before": BEFORE, "after": AFTER, "day": DAY, "reference": REFERENCE}
    keep_figures(MEASURED, {"rows": rows, **told, "labelled": LABELLED}, "drift", sort=False)


def _rung(world: World, way: Callable[[Traffic, int], float], replays: int) -> dict[str, Any]:
    """`way` returns at which answer it rang first, infinity for never."""
    false, delays = 0, []
    for seed in range(replays):
        rng = np.random.default_rng([seed, _seed(world.shift)])
        quiet = world.before.rows(rng.integers(len(world.before), size=BEFORE + AFTER))
        false += np.isfinite(way(quiet, seed))
        after = world.after.rows(rng.integers(len(world.after), size=AFTER))
        first = quiet.rows(np.arange(BEFORE))
        names = ("score", "y", "tokens", "task", "half")
        parts = (np.concatenate([getattr(first, name), getattr(after, name)]) for name in names)
        at = way(Traffic(*parts), seed)
        if at >= BEFORE:
            delays.append(at - BEFORE)
    known = np.array(delays)
    return {
        "false_alarms": false / replays,
        "found": float(np.mean(np.isfinite(known))) if len(known) else None,
        "delay": plain(float(np.median(known))) if len(known) else None,
        "judged": len(known),
    }


def _watch(
    traffic: Traffic, seed: int, *, streams: tuple[str, ...] = ("score", "tokens", "task", LABEL_STREAM)
) -> float:
    """Score, length, mix of tasks, and labels of a tenth of the answers."""
    watch, time = DriftWatch(streams, seed=seed), np.arange(len(traffic), dtype=np.float64)
    labelled = np.random.default_rng(seed).random(len(traffic)) < LABELLED
    rang = np.inf
    for start in range(0, len(traffic), DAY):
        part = slice(start, start + DAY)
        values = {"score": traffic.score[part], "tokens": traffic.tokens[part], "task": traffic.task[part]}
        rows = np.arange(start, start + DAY)[labelled[part]]
        alarms = watch.update(time[part], values)
        alarms += watch.update_labels(time[rows], traffic.score[rows], traffic.y[rows])
        if alarms:
            rang = min(alarm.time for alarm in alarms)
            break
    return rang


def _ks(traffic: Traffic, seed: int, *, level: float = P_VALUE) -> float:
    """Each day's scores and lengths against the reference, at 5 % together."""
    for start in range(REFERENCE, len(traffic), DAY):
        part = slice(start, start + DAY)
        for values in (traffic.score, traffic.tokens):
            if ks_2samp(values[:REFERENCE], values[part], method="asymp").pvalue < level / 2:
                return float(start + DAY - 1)
    return np.inf


def _psi(traffic: Traffic, seed: int) -> float:
    """The population stability index of each day, in ten bins of the reference."""
    for start in range(REFERENCE, len(traffic), DAY):
        part = slice(start, start + DAY)
        for values in (traffic.score, traffic.tokens):
            edges = np.unique(np.quantile(values[:REFERENCE], np.linspace(0, 1, 11)[1:-1]))
            counts = [
                np.bincount(np.searchsorted(edges, x), minlength=len(edges) + 1)
                for x in (values[:REFERENCE], values[part])
            ]
            p, q = ((count + 0.5) / (count.sum() + 0.5 * len(count)) for count in counts)
            if float(np.sum((q - p) * np.log(q / p))) > PSI:
                return float(start + DAY - 1)
    return np.inf


WAYS: dict[str, Callable[[Traffic, int], float]] = {
    "watch": _watch,
    "without_tasks": partial(_watch, streams=("score", "tokens", LABEL_STREAM)),
    "ks": _ks,
    "ks_corrected": partial(_ks, level=P_VALUE / ((BEFORE + AFTER - REFERENCE) // DAY)),
    "psi": _psi,
}
"""Way -> how it watches a stream. New names of tasks alarm at once, so one way goes without them. KS is tested at 5 %
a day, and at 5 % over all days (Bonferroni)."""


if __name__ == "__main__":
    main()
