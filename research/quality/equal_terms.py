"""Is the predictor of log-probabilities ever worse than the best free number? Data sets, and five planted worlds.

    python -m research.quality.equal_terms measure --data DATA [NAME ...]
    python -m research.quality.equal_terms page     # writes its blocks of docs/research/ladder.md

DATA holds the folders of the data sets named in research/quality/data.py. The numbers are kept in
docs/measured/equal_terms.json, from which the page's blocks are made.

In the data sets the answers of one outer fold are compared, by recipes that saw none of their groups; the best free
number is the one that orders these very answers best, which nobody could have known beforehand. In a planted world the
predictor is trained on few answers, the best free number is the one that orders many others best, either way round, and
both are judged on new ones; the interval is over draws.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.controls import REVERSED
from metaprobe.eval.metrics.bootstrap import cluster_weights, paired_difference
from metaprobe.eval.metrics.ranked import MetricFunction, StratifiedAuroc, auroc
from metaprobe.probes.features import FREE, TERMS, features, schema
from metaprobe.training.calibrators import sigmoid
from metaprobe.training.evidence import load_evidence, runs_of
from metaprobe.training.folds import Roles, final_roles
from metaprobe.training.ladder import FEWEST_FOR_TREES, USUAL_BAR, Bar, Ladder, LadderRows, fit_ladder
from metaprobe.training.methods import USUAL_LADDER
from metaprobe.training.study import crossfit
from research.blocks import ROOT, ahead, behind, columns, keep_figures, packed, read_figures, signed, write
from research.quality.data import DataSet
from research.quality.figures import fold_of, too_few
from research.quality.measure import is_wanted, sets
from research.quality.methods import seen_as

PAGE = ROOT / "docs" / "research" / "ladder.md"
FIGURES = ROOT / "docs" / "measured" / "equal_terms.json"
STATES = ROOT / "recorded" / "states"
CODERS = "qwen-coder-"
"""Names of the sets of `both_coders` begin with it."""
RESAMPLES = 1000
ALLOWED = 0.005
"""AUROC by which the predictor may be behind the best free number."""
DRAWS, NEW = 10, 2000
"""Draws of a planted world, and new answers of each."""
SIZES = (300, 1000)
"""Answers that the predictor of a planted world learns from."""

Floats = NDArray[np.float64]


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
@click.argument("names", nargs=-1)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="The data sets' folder.")
def measure_command(names: tuple[str, ...], data: Path | None) -> None:
    """Measure everything, or what begins with one of NAMES."""
    wanted = partial(is_wanted, names)

    def keep(section: str, name: str, found: dict[str, Any]) -> None:
        keep_figures(FIGURES, found, section, name)
        click.echo(f"{name}: {found}", err=True)

    for world in filter(wanted, WORLDS):
        for size in SIZES:
            keep("planted", f"{world}, {size} answers", planted(WORLDS[world], size))
    for of in chain(sets(data, wanted), both_coders(wanted)):
        if not too_few(of):
            keep("sets", of.name, measured(of))


def both_coders(wanted: Callable[[str], bool]) -> Iterator[DataSet]:
    """Yields the answers of both coders on each list of `research.states`, on which no rule here was ever chosen."""
    for path in sorted(STATES.glob("*/*")):
        name = f"{path.parent.name}, {path.name}"
        if not path.name.endswith("-samples") and wanted(name):
            yield DataSet(name, "right, by program", load_evidence([path], hidden=False))


def free_scores(logprobs: list[Any]) -> dict[str, Floats]:
    """Returns every number of the log-probabilities that needs no fit, the surer and the shorter the higher."""
    X = features(schema("terms"), logprobs).astype(np.float64)
    weights = {name: np.array([parts.get(term, 0.0) for term in TERMS]) for name, parts in FREE.items()}
    return {name: -(X @ each) for name, each in weights.items()}


def best_of(y: NDArray[np.int64], numbers: Mapping[str, Floats], metric: MetricFunction) -> tuple[str, Floats]:
    """Returns the number that orders these answers best, either way round."""
    both = {
        f"{name}{way}": sign * values for name, values in numbers.items() for way, sign in (("", 1), (REVERSED, -1))
    }
    name = max(both, key=lambda name: float(np.asarray(metric(y, both[name]))))
    return name, both[name]


def measured(of: DataSet) -> dict[str, Any]:
    """The predictor and the best free number on the answers of a data set, pooled and within runs."""
    evidence = seen_as(of.evidence, "full+terms")
    table = evidence.table
    fits = crossfit(evidence, [USUAL_LADDER], on_step=lambda what: click.echo(what, err=True))
    score, fold = fits[USUAL_LADDER.name].ranking, fold_of(fits.roles, len(table))
    weights = cluster_weights(table.groups.tolist(), RESAMPLES)
    runs = np.unique(runs_of(table), return_inverse=True)[1]
    numbers = free_scores(list(table.logprobs))
    found: dict[str, Any] = {"n": len(table), "groups": len(np.unique(table.groups)), "runs": int(runs.max()) + 1}
    for where, metric in (
        ("pooled", StratifiedAuroc(fold)),
        ("within runs", StratifiedAuroc(runs * (fold.max() + 1) + fold)),
    ):
        name, best = best_of(table.y, numbers, metric)
        found[where] = {
            "auroc": round(float(np.asarray(metric(table.y, score))), 4),
            "best": name,
            "best_auroc": round(float(np.asarray(metric(table.y, best))), 4),
            "gain": packed(paired_difference(metric, table.y, score, best, weights)),
        }
    return found


# Planted worlds: answers whose tokens' surprise is drawn, and labels of which the cause is known.


def surprises(rng: np.random.Generator, n: int) -> list[Floats]:
    """Surprises of n answers of 8 to 80 tokens, with some very surprising tokens; answers differ in both."""
    drawn = []
    for _ in range(n):
        x = rng.exponential(0.3 * np.exp(0.5 * rng.normal()), int(np.exp(rng.uniform(np.log(8), np.log(80)))))
        x[rng.integers(0, len(x), rng.poisson(1.5))] += rng.exponential(2.0)
        drawn.append(x)
    return drawn


def standard(values: Floats) -> Floats:
    result: Floats = (values - values.mean()) / values.std()
    return result


def by_number(number: Callable[[Floats], float], weight: float) -> Callable[[np.random.Generator, int], Any]:
    """A world in which log-odds are `weight` times a number of the surprises, standardised."""

    def draw(rng: np.random.Generator, n: int) -> Any:
        drawn = surprises(rng, n)
        logit = weight * standard(np.array([number(x) for x in drawn]))
        return drawn, (rng.uniform(size=n) < sigmoid(logit)).astype(np.int64)

    return draw


def leaking(rng: np.random.Generator, n: int) -> Any:
    """The last token of a right answer is the end, of which the model is sure; a wrong one is cut before it."""
    drawn, y = surprises(rng, n), rng.integers(0, 2, n)
    for x, right in zip(drawn, y, strict=True):
        if right:
            x[-1] = 0.0
    return drawn, y


WORLDS: Mapping[str, Callable[[np.random.Generator, int], Any]] = {
    "only the mean": by_number(lambda x: float(np.log(x.mean())), -1.0),
    "only the minimum": by_number(lambda x: float(np.log(x.max())), -1.0),
    "only the length": by_number(lambda x: float(np.log(len(x))), -1.0),
    "noise": by_number(lambda x: float(len(x)), 0.0),
    "one leak": leaking,
}
"""World -> its draw: surprises of n answers, and their labels."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One draw of a planted world: answers to learn from, new ones, and the best free number on these."""

    seed: int
    X: NDArray[np.float32]
    y: NDArray[np.int64]
    names: tuple[str, ...]
    """Names of the features (d,)."""
    new: NDArray[np.float32]
    truth: NDArray[np.int64]
    """Labels of the new answers."""
    best_scores: Floats
    """The free number that is best on other answers of this world, of the new answers."""

    def climbed(self, bar: Bar = USUAL_BAR) -> tuple[Ladder, Roles]:
        """Returns the ladder on these answers, each of a group of its own and all of one run, and their roles."""
        groups, runs = np.arange(len(self.y)).astype(str), np.full(len(self.y), "one")
        roles = final_roles(groups.tolist(), self.y)
        return fit_ladder(LadderRows(self.X, self.y, groups, runs, self.names), roles, bar=bar, seed=self.seed), roles


def draws_of(draw: Callable[[np.random.Generator, int], Any], size: int) -> Iterator[Drawn]:
    """Yields `DRAWS` draws of a world with `size` answers to learn from."""
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        (known, y), (many, labels), (new, truth) = draw(rng, size), draw(rng, NEW), draw(rng, NEW)
        wide = schema("full+terms" if size >= 2 * FEWEST_FOR_TREES else "terms")  # trees are not tried on fewer
        X, unseen = (features(wide, [-x.astype(np.float32) for x in some]) for some in (known, new))
        name, _ = best_of(labels, free_scores([-x for x in many]), auroc)
        best = free_scores([-x for x in new])[name.removesuffix(REVERSED)] * (-1 if name.endswith(REVERSED) else 1)
        yield Drawn(seed, X, y, wide.names, unseen, truth, best)


def planted(draw: Callable[[np.random.Generator, int], Any], size: int) -> dict[str, Any]:
    """The predictor, trained on `size` answers, and the best free number on new ones; mean and interval of draws."""
    rows = []
    for of in draws_of(draw, size):
        ladder, _ = of.climbed()
        ours, theirs = float(auroc(of.truth, ladder.score(of.new))), float(auroc(of.truth, of.best_scores))
        rows.append((ours, theirs, ladder.reached))
    ours, theirs = np.array([row[:2] for row in rows]).T
    gain, error = float((ours - theirs).mean()), float((ours - theirs).std(ddof=1) / np.sqrt(DRAWS))
    return {
        "n": size,
        "auroc": round(float(ours.mean()), 4),
        "best_auroc": round(float(theirs.mean()), 4),
        "reached": dict(sorted(Counter(row[2] for row in rows).items())),
        "gain": [round(gain + side * 2.262 * error, 4) for side in (0, -1, 1)],  # t quantile of 9 degrees
    }


@main.command("page")
def page_command() -> None:
    """Write the blocks from the numbers."""
    found = read_figures(FIGURES)
    write(PAGE, "equal-terms", [summary(found), ""])
    write(PAGE, "equal-terms-all", [*every_row(found), ""])
    cells: dict[str, Callable[..., object]] = {
        "world": lambda name, of: name,
        "reached, by draws": lambda name, of: ", ".join(
            f"{rung} {times}" for rung, times in Counter(of["reached"]).most_common()
        ),
        "predictor": lambda name, of: f"{of['auroc']:.3f}",
        "best free number": lambda name, of: f"{of['best_auroc']:.3f}",
        "gain": lambda name, of: signed(of["gain"]),
    }
    write(PAGE, "worlds", [*columns(found["planted"].items(), cells), ""])


def compared(found: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Returns each row as (data set, `pooled` or `within runs`, its figures)."""
    return [
        (name, where, of)
        for name, of in found["sets"].items()
        for where in (("pooled", "within runs") if of["runs"] > 1 else ("pooled",))
    ]


def every_row(found: Mapping[str, Any]) -> list[str]:
    """Returns the table of the data sets."""
    cells: dict[str, Callable[..., object]] = {
        "data set": lambda name, where, of: name,
        "compared": lambda name, where, of: where,
        "answers": lambda name, where, of: f"{of['n']:,}",
        "predictor": lambda name, where, of: f"{of[where]['auroc']:.3f}",
        "best free number": lambda name, where, of: f"{of[where]['best_auroc']:.3f} ({of[where]['best']})",
        "gain": lambda name, where, of: signed(of[where]["gain"]),
    }
    return columns(compared(found), cells)


def summary(found: Mapping[str, Any]) -> str:
    """Says how many rows keep to `ALLOWED`, how many are ahead or behind, and where the predictor loses most."""
    rows = compared(found)
    gains = [of[where]["gain"] for _, where, of in rows]
    kept, held = (
        sum(gain[0] >= -ALLOWED for gain in some) for some in (gains, [of["gain"] for of in found["planted"].values()])
    )
    own = coders(found)
    worst, where, of = min(rows, key=lambda row: row[2][row[1]]["gain"][0])
    return (
        f"The predictor is at most {ALLOWED} AUROC behind the free number that is best on the very answers in {kept} "
        f"of {len(rows)} rows of {len(found['sets'])} data sets, and in {held} of {len(found['planted'])} planted "
        f"rows. It is ahead in {ahead(gains)} of the {len(rows)} rows and behind in {behind(gains)}; at worst "
        f"{signed(of[where]['gain'])} ({worst}, {where}). On the answers of two coders to eight lists, on which no "
        f"rule was chosen, it is ahead in {ahead(own)} of {len(own)} and behind in {behind(own)}."
    )


def coders(found: Mapping[str, Any]) -> list[list[float]]:
    """Returns the gain of each set of `both_coders`."""
    return [of["pooled"]["gain"] for name, of in found["sets"].items() if name.startswith(CODERS)]


if __name__ == "__main__":
    main()
