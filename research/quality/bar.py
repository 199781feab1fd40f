"""How sure must the quality predictor be before it leaves its free number? Rules compared on sixteen data sets.

    python -m research.quality.bar measure --data DATA [NAME ...]
    python -m research.quality.bar page     # writes its block of docs/research/ladder.md

The rules, and what decides among them, were fixed before any was measured:

- A rule is two one-sided confidences: of a linear step (a number the wrong way round, all terms), and of the trees.
  `RULES` has one confidence for both (99 %, the rule until now; 95 %; 84 %, one standard error; 50 %, the lowest log
  loss on groups left out), the linear step alone eased, and the free number alone, which is no candidate.
- The data are the nine sets and five planted worlds of `equal_terms.py`, and the program's critical flag of two stores
  of debates. A rule compares inside the rows that a fold learns from; the test rows of the outer folds judge it.
- A rule is admitted if no row of the fourteen is more than `ALLOWED` AUROC behind the free number alone, and if it
  misses no more rows of `equal_terms.py` than 99 % does.
- Of those admitted the lowest log loss wins, as a mean over the data sets, each counted once (a world's two sizes
  together). Mean AUROC stands beside it. To see whether one set decides, the winner is named with each left out.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import cluster_weights, paired_difference
from metaprobe.eval.metrics.ranked import StratifiedAuroc, auroc
from metaprobe.records.store import RunStore
from metaprobe.training import ladder as ladders
from metaprobe.training.calibrators import fit_platt
from metaprobe.training.evidence import Evidence, runs_of
from metaprobe.training.ladder import Bar
from metaprobe.training.methods import LADDER, LogprobLadder
from metaprobe.training.study import crossfit
from research.blocks import ROOT, keep_figures, markdown, packed, read_figures, signed, write
from research.debates.measure import TARGETS, arguments_of
from research.quality.equal_terms import (
    ALLOWED,
    DRAWS,
    PAGE,
    RESAMPLES,
    SIZES,
    WORLDS,
    best_of,
    draws_of,
    free_scores,
)
from research.quality.figures import fold_of, too_few
from research.quality.measure import is_wanted, sets
from research.quality.methods import seen_as

FIGURES = ROOT / "docs" / "measured" / "bar.json"
FREE_ALONE, TODAY = "free number alone", "99 %"
RULES: Mapping[str, Bar] = {
    FREE_ALONE: Bar(1.0, 1.0),
    TODAY: Bar(0.99, 0.99),
    "95 %": Bar(0.95, 0.95),
    "84 %": Bar(0.84, 0.84),
    "50 %": Bar(0.5, 0.5),
    "95 %, trees 99 %": Bar(0.95, 0.99),
    "84 %, trees 99 %": Bar(0.84, 0.99),
    "50 %, trees 99 %": Bar(0.5, 0.99),
}
DEBATES = ("asap-debate-scaffold", "asap-debate")
FLAG = "not critical, program"
WHERE = ("pooled", "within runs")
Floats = NDArray[np.float64]
Figures = dict[str, Any]


@contextmanager
def trees_once() -> Iterator[None]:
    """Keeps fitted trees: another rule's, of the same rows, are not fitted again."""
    kept: dict[Any, Any] = {}

    def once(fit: Callable[..., Any]) -> Callable[..., Any]:
        def fitted(*args: Any, start: Floats, **more: Any) -> Any:
            roles = next(arg for arg in args if isinstance(arg, ladders.Roles))
            recipe = str(args[0].parameters) if isinstance(args[0], ladders.Trees) else ""
            key = fit.__name__, recipe, start.tobytes(), roles.train.tobytes(), roles.selection.tobytes()
            if key not in kept:
                kept[key] = fit(*args, start=start, **more)
            return kept[key]

        return fitted

    with (
        mock.patch.object(ladders, "fit_trees", once(ladders.fit_trees)),
        mock.patch.object(ladders, "refit_trees", once(ladders.refit_trees)),
    ):
        yield


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
@click.argument("names", nargs=-1)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="The data sets' folder.")
def measure_command(names: tuple[str, ...], data: Path | None) -> None:
    """Measure everything, or what begins with one of NAMES."""
    wanted = partial(is_wanted, names)

    def keep(section: str, name: str, figures: Figures) -> None:
        keep_figures(FIGURES, figures, section, name)
        click.echo(f"{name}: {json.dumps(figures)}", err=True)

    for store in filter(wanted, DEBATES):
        runs = list(RunStore(ROOT / "recorded" / store).runs(hidden=False))
        arguments = arguments_of(runs, *TARGETS[FLAG])
        assert arguments is not None
        keep("debates", store, measured(arguments.evidence))
    for of in sets(data, wanted):
        if not too_few(of):
            keep("sets", of.name, measured(of.evidence))
    for world in filter(wanted, WORLDS):
        for size in SIZES:
            keep("planted", f"{world}, {size} answers", planted(WORLDS[world], size))


def log_losses(y: NDArray[np.int64], p: Floats) -> Floats:
    """Returns the log loss (n,) of each answer, in nats."""
    p = np.clip(p, 1e-6, 1 - 1e-6)
    losses: Floats = -np.log(np.where(y == 1, p, 1 - p))
    return losses


def measured(evidence: Evidence) -> Figures:
    """Returns log loss and AUROC of each rule on the answers of a data set, and its gain over the best free number."""
    evidence = seen_as(evidence, "full+terms")
    table = evidence.table
    weights = cluster_weights(table.groups.tolist(), RESAMPLES)
    runs = np.unique(runs_of(table), return_inverse=True)[1]
    numbers = free_scores(list(table.logprobs))
    with trees_once():
        fits = {rule: crossfit(evidence, [LogprobLadder(bar=bar)]) for rule, bar in RULES.items()}
    fold = fold_of(fits[TODAY].roles, len(table))
    places = {"pooled": StratifiedAuroc(fold)}
    if runs.max():
        places["within runs"] = StratifiedAuroc(runs * (fold.max() + 1) + fold)
    figures: Figures = {"n": len(table), "groups": len(np.unique(table.groups)), "rules": {}}
    for rule, fit in fits.items():
        judged = fit[LADDER]
        row: Figures = {"log_loss": round(float(log_losses(table.y, judged.probability).mean()), 5)}
        for where, metric in places.items():
            _, best = best_of(table.y, numbers, metric)
            row[where] = {
                "auroc": round(float(np.asarray(metric(table.y, judged.ranking))), 4),
                "gain": packed(paired_difference(metric, table.y, judged.ranking, best, weights)),
                "over_today": packed(
                    paired_difference(metric, table.y, judged.ranking, fits[TODAY][LADDER].ranking, weights)
                ),
            }
        figures["rules"][rule] = row
    return figures


def planted(draw: Callable[[np.random.Generator, int], Any], size: int) -> Figures:
    """Returns log loss, AUROC and gain of each rule in a planted world: means over draws, on new answers."""
    figures: Figures = {"n": size, "rules": {rule: {"log_loss": [], "auroc": [], "gain": []} for rule in RULES}}
    for of in draws_of(draw, size):
        with trees_once():
            climbed = {rule: of.climbed(bar) for rule, bar in RULES.items()}
        for rule, (ladder, roles) in climbed.items():
            rows, scores, row = roles.calibration, ladder.score(of.new), figures["rules"][rule]
            platt = fit_platt(ladder.score(of.X[rows]), of.y[rows], rising=True)
            row["log_loss"].append(float(log_losses(of.truth, platt.probability(scores)).mean()))
            row["auroc"].append(float(auroc(of.truth, scores)))
            row["gain"].append(row["auroc"][-1] - float(auroc(of.truth, of.best_scores)))
    for rule, row in figures["rules"].items():
        gain, error = np.mean(row["gain"]), np.std(row["gain"], ddof=1) / np.sqrt(DRAWS)
        figures["rules"][rule] = {
            "log_loss": round(float(np.mean(row["log_loss"])), 5),
            "pooled": {
                "auroc": round(float(np.mean(row["auroc"])), 4),
                "gain": [round(float(gain + side * 2.262 * error), 4) for side in (0, -1, 1)],  # t of 9 degrees
            },
        }
    return figures


@main.command("page")
def page_command() -> None:
    """Write the block from the numbers."""
    table, said = lines_of(read_figures(FIGURES))
    write(PAGE, "bar", [*said, ""])
    write(PAGE, "bar-rules", [*table, ""])


def lines_of(figures: Figures) -> tuple[list[str], list[str]]:
    """Returns the table of the rules, and sentences: which rule is taken, and what it does on the debates."""
    fourteen = {**figures["sets"], **figures["planted"]}
    parts: dict[str, list[Figures]] = {}
    for section, of in figures.items():
        for name, one in of.items():
            parts.setdefault(name.rpartition(", ")[0] if section == "planted" else name, []).append(one["rules"])

    def rows(rule: str) -> Iterator[Figures]:
        return (
            one["rules"][rule][where] for one in fourteen.values() for where in WHERE if where in one["rules"][rule]
        )

    def behind(rule: str, other: str) -> float:
        return min(ours["auroc"] - theirs["auroc"] for ours, theirs in zip(rows(rule), rows(other), strict=True))

    def missed(rule: str) -> int:
        return sum(row["gain"][0] < -ALLOWED for row in rows(rule))

    def mean(rule: str, of: Callable[[Figures], list[float]], without: str = "") -> float:
        return float(
            np.mean([np.mean([x for one in some for x in of(one[rule])]) for n, some in parts.items() if n != without])
        )

    def loss(row: Figures) -> list[float]:
        return [row["log_loss"]]

    def order(row: Figures) -> list[float]:
        return [row[where]["auroc"] for where in WHERE if where in row]

    admitted = [
        rule
        for rule in RULES
        if rule != FREE_ALONE and round(behind(rule, FREE_ALONE), 4) >= -ALLOWED and missed(rule) <= missed(TODAY)
    ]
    taken = min(admitted, key=lambda rule: mean(rule, loss))
    others = {name: min(admitted, key=lambda rule: mean(rule, loss, name)) for name in parts}
    changed = [f"{rule} without {name}" for name, rule in others.items() if rule != taken]
    table = [
        [
            rule,
            f"{mean(rule, loss):.4f}",
            f"{mean(rule, order):.4f}",
            f"{behind(rule, FREE_ALONE):+.4f}",
            f"{missed(rule)} of {len(list(rows(rule)))}",
            "taken" if rule == taken else "yes" if rule in admitted else "no",
        ]
        for rule in RULES
    ]
    head = ["rule", "log loss", "AUROC", "worst against free", "rows missed", "admitted"]
    return markdown(head, table), [
        f"Of {len(RULES)} rules {len(admitted)} are admitted, and {taken} has the lowest log loss "
        f"({mean(taken, loss):.4f}; {TODAY} has {mean(TODAY, loss):.4f}). At worst it loses "
        f"{-behind(taken, FREE_ALONE):.4f} AUROC to the free number.",
        f"With one data set left out the same rule is taken in {len(parts) - len(changed)} of {len(parts)} cases"
        f"{': else ' + ', '.join(changed) if changed else ''}.",
        *(debate(name, one, taken) for name, one in figures["debates"].items()),
    ]


def debate(store: str, figures: Figures, taken: str) -> str:
    """Returns a sentence about the critical flag of a store of debates."""
    before, now = (figures["rules"][rule]["pooled"]["auroc"] for rule in (TODAY, taken))
    gain = signed(figures["rules"][taken]["pooled"]["over_today"])
    return (
        f"On the critical flag of {figures['n']} arguments ({store}) AUROC is {before:.3f} at {TODAY} and {now:.3f} at "
        f"{taken}: {gain}."
    )


if __name__ == "__main__":
    main()
