"""Measures a predictor on models and tasks that it was not made on, and the gain from labels of these.

    python -m research.travel.measure strangers --data DATA   # one model left out, one task left out
    python -m research.travel.measure curve --data DATA       # 50 to 2,842 labels: minutes
    python -m research.travel.page                            # writes docs/research/travel.md from the kept numbers

Everything is fitted without the answers it is judged on: their model, or their task. Two models that answered the same
question are two models: nothing here reads the question.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from metaprobe.eval.metrics.bootstrap import cluster_weights, interval, paired_difference, statistic_interval
from metaprobe.eval.metrics.calibration import brier_skill, ece
from metaprobe.eval.metrics.ranked import StratifiedAuroc, auroc
from metaprobe.probes.features import TERMS
from metaprobe.training.base_rates import fit_offsets
from metaprobe.training.folds import final_roles, group_folds
from metaprobe.training.ladder import SURE, LadderRows, fit_ladder
from research.blocks import ROOT, keep_figures, packed
from research.travel.sets import Answers, join, names_of, others, recorded
from research.travel.ways import SIX, WAYS, Floats

MEASURED = ROOT / "docs" / "measured" / "travel.json"
PLAIN = ("mean", "min", "total", "lowest3", "first", "length")
"""Free numbers that the default is held against, all of them; the mean is the one that anybody would take."""
RESAMPLES = 1000
LEAST = 15
"""Right answers, and wrong ones, that a run needs for a number of its own."""
TASK_PARTS = 10
COUNTS = (50, 100, 200, 400, 1000)
DRAWS = 3
FOLDS = 5
CURVE_SET = "token_logprobs_qa"
RANKS = "mu_shroom"


@click.group()
def main() -> None:
    """Measures what travels."""


data_option = click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)


@main.command()
@data_option
def strangers(data: Path) -> None:
    """The default on models and tasks that were left out, beside every free number."""
    ours, theirs = recorded(ROOT), others(data)
    everything = join([ours, theirs])
    terms = everything.features().astype(np.float64)
    mine = np.isin(everything.source, np.unique(ours.source))
    scores = {
        "default": _left_out(everything, terms, mine, everything.model, fit_default),
        "six terms": _left_out(everything, terms, mine, everything.model, fit_six),
        "ladder": _left_out(everything, terms, mine, everything.model, fit_climbed),
    }
    tasks, task = np.unique(everything.task, return_inverse=True)  # whole tasks are dealt into parts
    parts = (np.random.default_rng(0).permutation(len(tasks)) % TASK_PARTS)[task].astype(str)
    away = {
        name: np.where(mine, _left_out(everything, terms, mine, parts, fit), scores[name])
        for name, fit in (("default", fit_default), ("six terms", fit_six), ("ladder", fit_climbed))
    }
    free = {name: -terms[:, TERMS.index(name)] for name in PLAIN}
    free["length"] = _either_way(everything, terms[:, TERMS.index("length")])
    rows = []
    for source, model in _cells(everything):
        here = (everything.source == source) & (everything.model == model)
        rows.append(_row(f"{source}, {model}", everything, here, scores, free))
    found = {
        "rows": rows,
        "model_left_out": _over_runs(everything, scores, free),
        "task_left_out": _over_runs(everything, away, free),
        # Whose numbers are ranks of logits, and which the recipe's gain over the mean is largest on.
        "without_ranks": _over_runs(everything, scores, free, among=everything.source != RANKS),
        "answers": len(everything),
        "runs": len(np.unique(everything.run)),
        "tasks": len(np.unique(everything.task)),
        "models": len(np.unique(everything.model)),
        "sure": SURE,
    }
    keep_figures(MEASURED, found, "strangers", sort=False)


def fit_default(terms: Floats, answers: Answers) -> Callable[[Floats], Floats]:
    """The bundled recipe, which learns a scale and an average base rate."""
    roles = final_roles(answers.group.tolist(), answers.y)
    sample = LadderRows(terms, answers.y, answers.group, answers.run, names_of("terms"))
    fit = fit_ladder(sample, roles, climb=False)
    return fit.score


def fit_climbed(terms: Floats, answers: Answers) -> Callable[[Floats], Floats]:
    """The ladder with its steps, chosen on groups left out of the same models and tasks; without trees."""
    roles = final_roles(answers.group.tolist(), answers.y)
    return fit_ladder(LadderRows(terms, answers.y, answers.group, answers.run, names_of("terms")), roles).score


def fit_six(terms: Floats, answers: Answers) -> Callable[[Floats], Floats]:
    """A logistic regression on six terms, with base rates of the runs as ours has them."""
    columns = [TERMS.index(name) for name in SIX]
    centre, spread = terms[:, columns].mean(axis=0), terms[:, columns].std(axis=0)
    fit = fit_offsets((terms[:, columns] - centre) / spread, answers.y, answers.run)
    return lambda other: (other[:, columns] - centre) / spread @ fit.weights + fit.rates.mean


def _left_out(
    answers: Answers,
    terms: Floats,
    learned: NDArray[np.bool_],
    parts: NDArray[np.str_],
    fit: Callable[[Floats, Answers], Callable[[Floats], Floats]],
) -> Floats:
    """Scores (n,) by fits on the answers of `learned`, each without the part that the answer is of."""
    scores = np.full(len(answers), np.nan)
    whole = None
    for name in np.unique(parts):
        here = parts == name
        rest = learned & ~here
        if not (learned & here).any():  # of no answer that is learned from: one fit serves all these
            whole = whole or fit(terms[learned], answers.rows(learned))
            scores[here] = whole(terms[here])
        else:
            scores[here] = fit(terms[rest], answers.rows(rest))(terms[here])
    return scores


def _either_way(answers: Answers, length: Floats) -> Floats:
    """Length as a score, of every source and model the way round that suits it: it is given every chance."""
    found = length.copy()
    for source, model in _cells(answers):
        here = (answers.source == source) & (answers.model == model)
        within = StratifiedAuroc(answers.run[here])
        if within(answers.y[here], length[here]) < 0.5:
            found[here] = -length[here]
    return found


def _cells(answers: Answers) -> Iterator[tuple[str, str]]:
    """Sources and models with enough answers of either kind."""
    for source in np.unique(answers.source):
        for model in np.unique(answers.model[answers.source == source]):
            ones = answers.y[(answers.source == source) & (answers.model == model)]
            if min(ones.sum(), len(ones) - ones.sum()) >= LEAST:
                yield str(source), str(model)


def _row(
    name: str, answers: Answers, here: NDArray[np.bool_], scores: dict[str, Floats], free: dict[str, Floats]
) -> dict[str, Any]:
    y, weights = answers.y[here], cluster_weights(answers.group[here].tolist(), RESAMPLES)
    within, own = StratifiedAuroc(answers.run[here]), scores["default"][here]
    plain = {key: float(within(y, values[here])) for key, values in free.items()}
    best = max(plain, key=lambda key: plain[key])
    return {
        "name": name,
        "answers": int(here.sum()),
        "runs": len(np.unique(answers.run[here])),
        "right": float(y.mean()),
        "default": packed(interval(within, y, own, weights), 3),
        "free": {key: round(value, 3) for key, value in plain.items()},
        "six": round(float(within(y, scores["six terms"][here])), 3),
        "over_mean": packed(paired_difference(within, y, own, free["mean"][here], weights), 3),
        "best": best,
        "over_best": packed(paired_difference(within, y, own, free[best][here], weights), 3),
        "pooled": round(float(auroc(y, own)), 3),
        "pooled_mean": round(float(auroc(y, free["mean"][here])), 3),
        "ece": round(float(ece(y, expit(own))), 3),
    }


def _over_runs(
    answers: Answers,
    scores: dict[str, Floats],
    free: dict[str, Floats],
    *,
    among: NDArray[np.bool_] | None = None,
) -> dict[str, Any]:
    """The mean over runs of the AUROC inside each, and its gain over each number; intervals draw tasks.

    `among`: the answers to take, all by default.
    """
    named = scores | free
    found, tasks = [], []
    for run in np.unique(answers.run if among is None else answers.run[among]):
        rows = np.flatnonzero(answers.run == run)
        y = answers.y[rows]
        if min(y.sum(), len(y) - y.sum()) >= LEAST:
            found.append([float(auroc(y, values[rows])) for values in named.values()])
            tasks.append(str(answers.task[rows[0]]))
    table, weights = np.array(found), cluster_weights(tasks, 2000)
    draws = (weights @ table) / weights.sum(axis=1, keepdims=True)  # (R, numbers)
    mean = table.mean(axis=0)
    gains = {}
    for place, name in enumerate(named):
        low, high = np.quantile(draws[:, 0] - draws[:, place], [0.025, 0.975])
        gains[name] = {
            "auroc": round(float(mean[place]), 3),
            "gain": [round(float(value), 3) for value in (mean[0] - mean[place], low, high)],
        }
    del gains["default"]["gain"]
    return {"runs": len(found), "tasks": len(set(tasks)), "numbers": gains}


@main.command()
@data_option
def curve(data: Path) -> None:
    """Measures the gain from growing numbers of labels of the new models and tasks, for six ways to use them."""
    theirs = others(data)
    answers = theirs.rows(theirs.source == CURVE_SET)
    ours = recorded(ROOT)
    base = fit_default(ours.features().astype(np.float64), ours)(answers.features().astype(np.float64))
    X, rows = answers.features("full+terms"), np.arange(len(answers))
    folds = list(group_folds(rows, answers.group.tolist(), answers.y, FOLDS, 0))
    fold = np.empty(len(answers), dtype=np.int64)
    for number, (_, test) in enumerate(folds):
        fold[test] = number
    # Answers of one run that different fits judged are not to be compared.
    strata = np.array([f"{run}#{number}" for run, number in zip(answers.run, fold, strict=True)])
    weights = cluster_weights(answers.group.tolist(), RESAMPLES)
    found: dict[str, dict[str, Any]] = {}
    for count in (*COUNTS, 0):
        scores = {name: np.full((DRAWS if count else 1, len(rows)), np.nan) for name in WAYS}
        for rest, test in folds:
            for draw in range(DRAWS if count else 1):
                some = _draw(answers, rest, count, draw)
                for name, way in WAYS.items():
                    scores[name][draw, test] = way(X, answers, base, some)[test]
        label = str(count or round(len(rows) * (1 - 1 / FOLDS)))
        found[label] = {name: _figures(answers, values, strata) for name, values in scores.items()}
        pairs = list(zip(scores["trained"], scores["adapted default"], strict=True))  # of the same labels

        def gain(weight: Any, pairs: list[tuple[Floats, Floats]] = pairs) -> Any:
            return np.mean([auroc(answers.y, a, weight) - auroc(answers.y, b, weight) for a, b in pairs], axis=0)

        found[label]["trained"]["over_adapted"] = packed(statistic_interval(gain, weights), 3)
        click.echo(f"{label}: {json.dumps(found[label])}", err=True)
    mean = np.array([values.mean() for values in answers.logprobs])
    # Nothing is fitted here, so that whole runs can be judged.
    found["0"] = {
        name: _figures(answers, score[None], answers.run) for name, score in (("default", base), ("mean", mean))
    }
    figures = {"set": CURVE_SET, "answers": len(answers), "draws": DRAWS, "counts": found}
    keep_figures(MEASURED, figures, "curve", sort=False)


def _draw(answers: Answers, rest: NDArray[np.int64], count: int, draw: int) -> NDArray[np.int64]:
    """`count` of these rows, with both classes; all where it is 0."""
    if not count:
        return rest
    rng = np.random.default_rng(draw)
    while True:
        some = np.sort(rng.choice(rest, count, replace=False))
        if 5 <= answers.y[some].sum() <= count - 5:
            return some


def _figures(answers: Answers, scores: Floats, strata: NDArray[np.str_]) -> dict[str, Any]:
    """AUROC pooled and within strata, calibration error and Brier skill, each the mean over draws (R, n)."""
    within, kept = StratifiedAuroc(strata), [row for row in scores if np.isfinite(row).all()]
    if not kept:
        return {}
    weights = cluster_weights(answers.group.tolist(), RESAMPLES)
    mean = np.array([values.mean() for values in answers.logprobs])
    y = answers.y
    return {
        "auroc": round(float(np.mean([auroc(y, row) for row in kept])), 3),
        "within": round(float(np.mean([within(y, row) for row in kept])), 3),
        "ece": round(float(np.mean([ece(y, expit(row)) for row in kept])), 3),
        "brier_skill": round(float(np.mean([brier_skill(y, expit(row)) for row in kept])), 3),
        "over_mean": packed(paired_difference(auroc, y, kept[0], mean, weights), 3),
        "within_over_mean": packed(paired_difference(within, y, kept[0], mean, weights), 3),
    }


if __name__ == "__main__":
    main()
