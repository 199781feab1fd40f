"""From the answers of a judge to nine rubric questions to people's overall rating: what questions and raters add.

    python -m research.decisions.rubric measure --data DATA
    python -m research.decisions.rubric page

LLM-Rubric's data (Hashemi et al. 2024): gpt-3.5's probabilities of four levels for nine questions about a dialogue, and
the overall rating (Q0, 1 to 4) of people. Ratings of 0, which its files do not explain, are left out.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from lightgbm import LGBMRegressor
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold

from metaprobe.eval.metrics.bootstrap import cluster_weights, interval, paired_difference
from metaprobe.probes.decision_predictor import decision_columns
from metaprobe.training.base_rates import fit_offsets
from metaprobe.training.calibrators import sigmoid
from metaprobe.training.recipes.train_text import rmse
from research.blocks import ROOT, markdown, packed, read_figures, signed, write, write_figures

MEASURED = ROOT / "docs" / "measured" / "rubric.json"
PAGE = ROOT / "docs" / "research" / "rubric.md"
TARGET, LEVELS = "Q0", (1, 2, 3, 4)
FOLDS, INNER = 10, 5
RIDGES = (1.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Ridge penalties of the questions' columns, standardised."""
RATERS = (1.0, 3.0, 10.0, 30.0)
"""Penalty of a rater's offset: so many ratings of the average rater are in it from the beginning."""
PRIORS = (0.05, 0.1, 0.2, 0.4)
"""Prior standard deviations of a weight, of the ordinal models."""
SPLITS = ("text", "rater", "both")

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Predictor = Callable[[Rows], Floats]


@dataclass(frozen=True, slots=True, eq=False)
class Ratings:
    """n ratings of people, and what the judge said of the same texts."""

    y: Floats
    texts: NDArray[np.str_]
    raters: NDArray[np.str_]
    names: tuple[str, ...]
    X: Floats
    """(n, d): decision columns of the judge."""

    def columns(self, kind: str) -> Floats:
        """Returns the judge's expectation of the target, the expectations of all questions, or every column."""
        chosen = {
            "judge": [name == TARGET for name in self.names],
            "questions": [name.isalnum() for name in self.names],
            "all": [True] * len(self.names),
        }[kind]
        return self.X[:, np.array(chosen)]


def load(data: Path, source: str, *, zeros: bool = False) -> Ratings:
    """Returns the ratings of real or synthetic dialogues; `zeros` keeps those of 0."""
    with (data / "llm_rubric_judge" / "data.jsonl").open(encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if row["source"] == source]
    rows = [row for row in rows if zeros or row["human"][TARGET] >= LEVELS[0]]
    names, X = decision_columns([_decided(row["judge"]) for row in rows])
    return Ratings(
        np.array([row["human"][TARGET] for row in rows]),
        np.array([row["text_id"] for row in rows]),
        np.array([row["annotator"] for row in rows]),
        names,
        X.astype(np.float64),
    )


def _decided(judge: dict[str, Any]) -> dict[str, float]:
    decided = {}
    for question, answer in judge.items():
        shares = np.array(answer["probs"]) / sum(answer["probs"])
        decided[question] = float(shares @ np.array(LEVELS))
        decided |= {f"{question}={level}": float(share) for level, share in zip(LEVELS, shares, strict=True)}
    return decided


# The ladder: each method gets rows to learn from, and returns what predicts any rows.


def ridge(ratings: Ratings, kind: str, *, raters: bool) -> Callable[[Rows], Predictor]:
    """Returns a ridge regression on some columns, beside a shrunk offset for each rater that is known.

    Its penalties are chosen within the rows that it learns from, by texts.
    """
    X = ratings.columns(kind) if kind else np.empty((len(ratings.y), 0))

    def solve(rows: Rows, penalty: float, own: float) -> Predictor:
        centre, spread = X[rows].mean(axis=0), X[rows].std(axis=0)
        Z = (X - centre) / np.where(spread > 0, spread, 1.0)
        known = np.unique(ratings.raters[rows]) if raters else np.empty(0, dtype=np.str_)
        Z = np.column_stack([Z, ratings.raters[:, None] == known[None]])
        weights = np.r_[np.full(X.shape[1], penalty), np.full(len(known), own)]
        mean = ratings.y[rows].mean()
        w = np.linalg.solve(Z[rows].T @ Z[rows] + np.diag(weights), Z[rows].T @ (ratings.y[rows] - mean))
        return lambda chosen: np.asarray(mean + Z[chosen] @ w)

    grid = [(penalty, own) for penalty in (RIDGES if kind else (1.0,)) for own in (RATERS if raters else (1.0,))]
    return lambda rows: solve(rows, *_chosen(ratings, rows, grid, solve))


def ordinal(ratings: Ratings, kind: str, *, raters: bool) -> Callable[[Rows], Predictor]:
    """Returns a logistic step a level, as heads of levels are made here, with raters as the runs of a base rate."""
    X = ratings.columns(kind)

    def solve(rows: Rows, sd: float) -> Predictor:
        centre, spread = X[rows].mean(axis=0), X[rows].std(axis=0)
        Z = (X - centre) / np.where(spread > 0, spread, 1.0)
        who = ratings.raters if raters else np.full(len(X), "")
        fits = [fit_offsets(Z[rows], ratings.y[rows] >= level, who[rows], sd=sd) for level in LEVELS[1:]]

        def predicted(chosen: Rows) -> Floats:
            steps = [sigmoid(Z[chosen] @ fit.weights + fit.rates.of(who[chosen])) for fit in fits]
            return np.asarray(LEVELS[0] + sum(steps), dtype=np.float64)

        return predicted

    return lambda rows: solve(rows, *_chosen(ratings, rows, [(sd,) for sd in PRIORS], solve))


def trees(ratings: Ratings, kind: str, *, raters: bool) -> Callable[[Rows], Predictor]:
    """Returns LightGBM on what the rater's offset and the judge leave (`ridge`), with trees chosen within the rows."""
    X, start = ratings.columns(kind), ridge(ratings, "judge", raters=raters)

    def solve(rows: Rows, count: int) -> Predictor:
        base = start(rows)
        model = LGBMRegressor(
            n_estimators=count, learning_rate=0.03, num_leaves=4, min_child_samples=15, n_jobs=1, verbose=-1
        ).fit(X[rows], ratings.y[rows] - base(rows))
        return lambda chosen: np.asarray(base(chosen) + model.predict(X[chosen]))

    return lambda rows: solve(rows, *_chosen(ratings, rows, [(10,), (40,), (120,)], solve))


def _chosen(ratings: Ratings, rows: Rows, grid: Sequence[Any], solve: Callable[..., Predictor]) -> Any:
    """Returns the setting with the least squared error on texts of these rows that were left out."""
    if len(grid) == 1:
        return grid[0]
    errors = np.zeros(len(grid))
    parts = GroupKFold(INNER, shuffle=True, random_state=1).split(rows, groups=ratings.texts[rows])
    for rest, part in parts:
        for place, setting in enumerate(grid):
            errors[place] += np.square(solve(rows[rest], *setting)(rows[part]) - ratings.y[rows[part]]).sum()
    return grid[int(errors.argmin())]


JUDGE, CONSTANT, CALIBRATED, RATER = "judge's own expectation", "constant", "calibrated judge", "rater's mean alone"
JUDGE_RATER = "calibrated judge, rater known"
QUESTIONS, QUESTIONS_RATER = "all questions, ridge", "all questions and rater, ridge"
ALL_RATER, STEPS_RATER, TREES_RATER = (
    "all columns and rater, ridge",
    "questions and rater, steps",
    "columns and rater, trees",
)
ALL, STEPS, TREES = "all columns, ridge", "questions, steps", "columns, trees"
LADDER: dict[str, tuple[Callable[..., Any], str, bool]] = {
    CONSTANT: (ridge, "", False),
    CALIBRATED: (ridge, "judge", False),
    QUESTIONS: (ridge, "questions", False),
    ALL: (ridge, "all", False),
    STEPS: (ordinal, "questions", False),
    TREES: (trees, "all", False),
    RATER: (ridge, "", True),
    JUDGE_RATER: (ridge, "judge", True),
    QUESTIONS_RATER: (ridge, "questions", True),
    ALL_RATER: (ridge, "all", True),
    STEPS_RATER: (ordinal, "questions", True),
    TREES_RATER: (trees, "all", True),
}
"""Method -> how it is fitted, which columns, and whether it knows the rater."""
COMPARED = (
    (QUESTIONS, JUDGE),
    (QUESTIONS, CONSTANT),
    (QUESTIONS, CALIBRATED),
    (QUESTIONS_RATER, JUDGE),
    (QUESTIONS_RATER, RATER),
    (QUESTIONS_RATER, JUDGE_RATER),
    (RATER, QUESTIONS),
)
"""Pairs of which the difference in error is given, the first minus the second."""


def held_out(ratings: Ratings, split: str) -> list[tuple[Rows, Rows]]:
    """Returns (rows to learn from, rows to judge) a fold: texts left out, raters left out, or both at once."""
    n = len(ratings.y)
    folds = {}
    for name, groups in (("text", ratings.texts), ("rater", ratings.raters)):
        folds[name] = np.empty(n, dtype=np.intp)
        cut = GroupKFold(FOLDS if split != "both" else 5, shuffle=True, random_state=0).split(groups, groups=groups)
        for number, (_, part) in enumerate(cut):
            folds[name][part] = number
    numbers = range(int(folds["text"].max()) + 1)
    if split != "both":
        fold = folds[split]
        return [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in numbers]
    text, rater = folds["text"], folds["rater"]
    cells = [(i, j) for i in numbers for j in numbers]
    return [
        (np.flatnonzero((text != i) & (rater != j)), np.flatnonzero((text == i) & (rater == j)))
        for i, j in cells
        if ((text == i) & (rater == j)).any()
    ]


def measured(ratings: Ratings, split: str) -> dict[str, Any]:
    """Returns the error of each method on what it was not fitted on, and paired differences, by the left-out groups."""
    n, parts = len(ratings.y), held_out(ratings, split)
    scale = ratings.columns("judge")[:, 0]
    values = {JUDGE: scale}
    known = split == "text"
    for name, (method, kind, raters) in LADDER.items():
        if raters and not known:
            continue  # a rater whom nobody has seen has the average offset
        values[name] = np.full(n, np.nan)
        fit = method(ratings, kind, raters=raters)
        for rest, part in parts:
            values[name][part] = fit(rest)(part)
    groups = ratings.texts if split == "text" else ratings.raters
    weights = cluster_weights(groups.tolist(), 2000, 0)
    return {
        "rmse": {name: packed(interval(rmse, ratings.y, score, weights)) for name, score in values.items()},
        "difference": {
            f"{one} minus {other}": packed(paired_difference(rmse, ratings.y, values[one], values[other], weights))
            for one, other in COMPARED
            if one in values and other in values
        },
    }


SETS = {"real": ("real", False), "synthetic": ("synth", False), "synthetic, zeros kept": ("synth", True)}


@click.group()
def main() -> None:
    """Measure, write the block."""


@main.command("measure")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
def measure_command(data: Path) -> None:
    """Fits the ladder on each set and split."""
    figures: dict[str, Any] = {}
    for name, (source, zeros) in SETS.items():
        ratings = load(data, source, zeros=zeros)
        counts = {"ratings": len(ratings.y), "texts": len(set(ratings.texts)), "raters": len(set(ratings.raters))}
        figures[name] = counts | {split: measured(ratings, split) for split in (SPLITS if not zeros else ("text",))}
        click.echo(name)
        write_figures(MEASURED, figures)


HEADS = {"text": "text left out", "rater": "rater left out", "both": "both left out"}


@main.command("page")
def page_command() -> None:
    """Writes the tables into docs/research/rubric.md."""
    figures = read_figures(MEASURED)
    columns = [(name, split) for name in figures for split in SPLITS if split in figures[name]]
    head = [f"{name}, {HEADS[split]}" for name, split in columns]
    rows = []
    for method in (JUDGE, *LADDER):
        cells = [figures[name][split]["rmse"].get(method) for name, split in columns]
        rows.append([method, *("-" if cell is None else f"{cell[0]:.3f}" for cell in cells)])
    lines = [*markdown(["method", *head], rows), "", "Differences in error, paired; below 0 the first errs less.", ""]
    rows = [
        [pair, *(signed(figures[name][split]["difference"].get(pair)) for name, split in columns)]
        for pair in (f"{one} minus {other}" for one, other in COMPARED)
    ]
    lines += markdown(["difference", *head], rows)
    for name, of in figures.items():
        errors = of["text"]["rmse"]
        share = errors[QUESTIONS_RATER][0] / errors[JUDGE][0]
        lines += [
            "",
            f"{name.capitalize()}: {of['ratings']} ratings of {of['texts']} texts by {of['raters']} people. "
            f"{QUESTIONS_RATER.capitalize()} err {share:.2f} times as much as the judge's own expectation.",
        ]
    write(PAGE, "rubric", [*lines, ""])
    write(PAGE, "rubric-answer", [answer(figures), ""])


def answer(figures: Mapping[str, Any]) -> str:
    """Returns the first paragraph of the page."""
    talks = ("real", "synthetic")

    def error(method: str) -> str:
        return " and ".join(f"{figures[name]['text']['rmse'][method][0]:.3f}" for name in talks)

    def change(split: str, one: str, other: str) -> str:
        return " and ".join(signed(figures[name][split]["difference"][f"{one} minus {other}"]) for name in talks)

    return (
        f"The error of a predicted rating, on real and on synthetic talks, is {error(RATER)} by the rater's own mean, "
        f"which reads no text, {error(CALIBRATED)} by the calibrated judge, {error(CONSTANT)} by a constant, and "
        f"{error(JUDGE)} by the judge's own expectation. The judge's nine questions change that of the rater's mean by "
        f"{change('text', QUESTIONS_RATER, RATER)}. For a rater whom nobody has seen they change the constant's by "
        f"{change('rater', QUESTIONS, CONSTANT)}."
    )


if __name__ == "__main__":
    main()
