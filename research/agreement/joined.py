"""Measures labels and agreement in one fit, and which answers to label: on the draws of `research.agreement.measure`.

python -m research.agreement.joined measure [--only STORE ...] [--draws N]
python -m research.agreement.joined page
"""

import warnings
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from metaprobe.eval.metrics.bootstrap import cluster_weights
from metaprobe.eval.metrics.calibration import debiased_ece
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.probes.features import SCALED
from metaprobe.production.monitoring.label_draw import draw_indices, label_deviation, rule_for
from metaprobe.training.base_rates import AGREEMENT_SD, fit_scale, standardised
from metaprobe.training.calibrators import log_odds_of, sigmoid
from metaprobe.training.ladder import DRAWN_TERMS, USUAL_BAR, WHOLE
from metaprobe.training.methods import agreement_ladder
from metaprobe.training.rescale import MIN_RESCALE_LABELS_OF_A_KIND
from research.agreement.measure import DRAWS, MOST_DRAWS, PAGE, SAMPLED, SMALL_ECE, paired_differences
from research.agreement.ways import (
    NONE_KEPT,
    REFUSED,
    SAMPLINGS,
    Draw,
    Floats,
    Rows,
    Samples,
    _Drawing,
    agreement_way,
    labels_way,
    read_samples,
)
from research.blocks import ROOT, ahead, behind, keep_figures, markdown, read_figures, signed, write

KEPT = ROOT / "docs" / "measured" / "no_labels_joined.json"
COUNTS = (25, 50, 100)
"""Labelled answers, each of its own question."""
CHOSEN = (20, 30, 50)
"""Labels for which ways to choose the answers are compared."""
REPEATS = 10
"""Choices of answers in each draw and way."""
CHOICE_RESAMPLES = 60
"""Resamples of questions by which one calibration error is freed of noise."""
AGREEMENT_WAY = agreement_way(*SAMPLINGS[0])
RANDOM, STRATIFIED, DOUBTFUL, ENDS = (
    "by chance",
    "one of each stratum of the score",
    "doubtful ones more often",
    "half of the lowest third, half of the highest",
)
CHOICES = (RANDOM, STRATIFIED, DOUBTFUL, ENDS)


def joined_way(count: int) -> str:
    """Returns the name of agreement and so many labels in one fit."""
    return f"agreement and {labels_way(count)}"


class _Joining(_Drawing):
    """One draw of questions: agreement, labels, both in one fit, and choices of the answers to label."""

    def draw_joined(self) -> tuple[Draw, dict[str, list[float]]]:
        """Returns the scores of all ways, and for each choice of answers the calibration errors of its repeats."""
        self._note(SCALED, self.samples.free[SCALED][self.test])
        self._learn(AGREEMENT_WAY, self._pairs(*SAMPLINGS[0]), agreement_ladder(SAMPLINGS[0][0] * SAMPLINGS[0][1]).bar)
        for count in COUNTS:
            chosen = self._labelled(count)
            rows = self._rows(chosen, self.samples.y[chosen])
            self._learn(labels_way(count), rows, USUAL_BAR)
            self._learn(labels_way(count, NONE_KEPT), rows, only=DRAWN_TERMS, whole=True)
            self._join(count, chosen)
        errors = self._choose() if AGREEMENT_WAY in self.heads else {}
        return Draw(self.test, self.scores, self.probabilities, self.reached), errors

    def _join(self, count: int, chosen: Rows) -> None:
        """Fits labels and agreement as `adapt` does.

        Where nothing was taught, labels alone remain. Where the labels are too few for `adapt`, agreement remains.
        """
        samples, way, y = self.samples, joined_way(count), self.samples.y[chosen]
        few = min(int(y.sum()), count - int(y.sum())) < MIN_RESCALE_LABELS_OF_A_KIND
        if AGREEMENT_WAY not in self.heads or few:
            self.scores[way] = self.scores[AGREEMENT_WAY if AGREEMENT_WAY in self.heads else labels_way(count)]
            self.reached[way] = REFUSED
            return
        odds, terms = log_odds_of(self._again(AGREEMENT_WAY, np.arange(len(samples.y)))), WHOLE.of(samples.X)
        beside, centre, spread = standardised(terms[chosen])
        fit = fit_scale(odds[chosen], y, np.full(count, "run"), mean_sd=AGREEMENT_SD, beside=beside)
        columns = np.column_stack([odds, (terms - centre) / spread])[self.test]
        scores = columns @ fit.weights + fit.rates.mean
        self._note(way, scores)
        self.probabilities[way], self.reached[way] = sigmoid(scores), way

    def _choose(self) -> dict[str, list[float]]:
        """Returns the calibration errors of agreement that is adapted by differently chosen answers."""
        samples, pool = self.samples, self._labelled(200)
        odds = log_odds_of(self._again(AGREEMENT_WAY, np.arange(len(samples.y))))
        ended = self.test[samples.ended[self.test]]
        weights = cluster_weights(samples.groups[ended].tolist(), CHOICE_RESAMPLES)
        errors: dict[str, list[float]] = {}
        for count in CHOSEN:
            for repeat in range(REPEATS):
                rng = np.random.default_rng([self.seed, count, repeat])
                for way, places in choices_of(odds[pool], count, rng).items():
                    chosen = pool[places]
                    y = samples.y[chosen]
                    if min(int(y.sum()), len(y) - int(y.sum())) < MIN_RESCALE_LABELS_OF_A_KIND:
                        continue
                    fit = fit_scale(odds[chosen], y, np.full(len(y), "run"), mean_sd=AGREEMENT_SD)
                    p = sigmoid(odds[ended] * fit.weights[0] + fit.rates.mean)
                    error = debiased_ece(samples.y[ended], p, weights).estimate
                    errors.setdefault(f"{count}, {way}", []).append(float(error))
        return errors


def choices_of(odds: Floats, count: int, rng: np.random.Generator) -> dict[str, Rows]:
    """Returns way -> places of the answers (count,) that it labels, by their scores, log-odds (n,)."""
    order = np.argsort(odds, kind="stable")
    low, _, high = np.array_split(order, 3)
    doubts = label_deviation(sigmoid(odds))
    half = count // 2
    return {
        RANDOM: rng.permutation(len(odds))[:count],
        STRATIFIED: np.array([rng.choice(part) for part in np.array_split(order, count)]),
        DOUBTFUL: draw_indices(rule_for(doubts, count).propensities(doubts), rng),
        ENDS: np.concatenate([rng.permutation(low)[:half], rng.permutation(high)[: count - half]]),
    }


@click.group()
def main() -> None:
    """Measure, write the blocks."""


@main.command()
@click.option("--only", multiple=True, help="Store, by its name in the table.")
@click.option("--draws", default=DRAWS)
def measure(only: Sequence[str], draws: int) -> None:
    """Draws questions, fits, scores; keeps the figures of each store as they are known."""
    warnings.simplefilter("ignore")
    for name in only or SAMPLED:
        samples = read_samples(ROOT / "recorded" / SAMPLED[name])
        made = [_Joining(samples, seed).draw_joined() for seed in range(draws)]
        keep_figures(KEPT, figures_of(samples, made), "stores", name, sort=False)
        click.echo(name)


def figures_of(samples: Samples, made: Sequence[tuple[Draw, dict[str, list[float]]]]) -> dict[str, Any]:
    """Returns what is kept of one store: paired differences of AUROC, calibration errors, errors of the choices."""
    draws = [draw for draw, _ in made]
    compared = {
        joined_way(count): {
            control: {"all": control, "ended": control}
            for control in (labels_way(count), labels_way(count, NONE_KEPT), AGREEMENT_WAY, SCALED)
        }
        for count in COUNTS
    }
    ways = list(dict.fromkeys([SCALED, AGREEMENT_WAY, *compared, *(c for by in compared.values() for c in by)]))
    errors: dict[str, list[float]] = {}
    for draw in draws:
        ended = samples.ended[draw.test]
        test = draw.test[ended]
        weights = cluster_weights(samples.groups[test].tolist(), CHOICE_RESAMPLES)
        for way in ways:
            if way in draw.probabilities:
                error = debiased_ece(samples.y[test], draw.probabilities[way][ended], weights).estimate
                errors.setdefault(way, []).append(float(error))
    chosen: dict[str, list[float]] = {}
    for _, by in made:
        for way, values in by.items():
            chosen.setdefault(way, []).append(float(np.mean(values)))
    return {
        "tokens": round(float(samples.tokens.mean()), 1),
        "draws": len(draws),
        "taught": sum(draw.reached[AGREEMENT_WAY] != REFUSED for draw in draws),
        "joined": {way: sum(draw.reached[way] != REFUSED for draw in draws) for way in compared},
        "auroc": {way: _mean([_auroc(samples, draw, way) for draw in draws]) for way in ways},
        "over": paired_differences(samples, draws, compared),
        "ece": {way: _mean(values) for way, values in errors.items()},
        "chosen": {way: _mean(values) for way, values in chosen.items()},
    }


def _auroc(samples: Samples, draw: Draw, way: str) -> float:
    return float(auroc(samples.y[draw.test], draw.scores[way]))


def _mean(values: Sequence[float]) -> float:
    return round(float(np.nanmean(values)), 4)


@main.command()
def page() -> None:
    """Writes the blocks of the page."""
    stores: dict[str, Any] = read_figures(KEPT)["stores"]
    write(PAGE, "joined", joined_lines(stores))
    write(PAGE, "joined-rows", joined_rows(stores))
    write(PAGE, "chosen", chosen_lines(stores))


def joined_lines(stores: dict[str, Any]) -> list[str]:
    """Returns what agreement adds to labels, for each number of labels."""
    told, small = [], []
    for count in COUNTS:
        way, parts = joined_way(count), []
        for name, control in (("labels", labels_way(count)), ("agreement", AGREEMENT_WAY)):
            ends = [one["over"][way][control]["all"] for one in stores.values()]
            parts.append(f"over {name} alone {ahead(ends)}, {behind(ends)}, {_worst(ends)}")
        means = [np.mean([one["auroc"][each] for one in stores.values()]) for each in (way, labels_way(count))]
        told.append(f"{count} labels: {means[0]:.3f}, labels alone {means[1]:.3f}; {'; '.join(parts)}.")
        learned = [one["ece"][way] for one in stores.values() if one["joined"][way] >= MOST_DRAWS]
        small.append(sum(error <= SMALL_ECE for error in learned))
    return [
        "Mean AUROC; stores ahead, behind (by an interval), worst difference:",
        "",
        *(f"- {line}" for line in told),
        "",
        f"An ECE of at most {SMALL_ECE} on {', '.join(map(str, small))} of {len(stores)}.",
    ]


def _worst(ends: Sequence[Sequence[float]]) -> str:
    return f"{min(end[0] for end in ends):+.3f}"


def joined_rows(stores: dict[str, Any]) -> list[str]:
    """Returns the table of further figures: a row a store."""
    rows = []
    for name, one in stores.items():
        cells = [name, f"{one['tokens']:.0f}", f"{one['taught']} of {one['draws']}"]
        for count in COUNTS:
            way = joined_way(count)
            cells.append(f"{one['auroc'][way]:.3f} / {one['auroc'][labels_way(count)]:.3f}")
            cells += [signed(one["over"][way][control]["all"]) for control in (labels_way(count), AGREEMENT_WAY)]
        cells.append(f"{one['ece'].get(joined_way(25), float('nan')):.3f}")
        rows.append(cells)
    head = ["answers", "tokens", "draws taught"]
    for count in COUNTS:
        head += [f"{count} labels joined / alone", "over labels alone", "over agreement alone"]
    return markdown([*head, "ECE, 25 joined"], rows)


def chosen_lines(stores: dict[str, Any]) -> list[str]:
    """Returns the mean calibration error by the choice of the answers to label."""
    means = {
        way: [float(np.mean([one["chosen"][f"{count}, {way}"] for one in stores.values()])) for count in CHOSEN]
        for way in CHOICES
    }
    gaps = np.array(list(means.values())) - np.array(means[RANDOM])
    by_chance = " / ".join(f"{mean:.3f}" for mean in means[RANDOM])
    return [
        f"Mean ECE after {', '.join(map(str, CHOSEN))} labels {RANDOM}: {by_chance}; {', '.join(CHOICES[1:])}: "
        f"{gaps.min():+.3f} to {gaps.max():+.3f}."
    ]


if __name__ == "__main__":
    main()
