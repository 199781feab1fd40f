"""Measures a panel on questions that it has not learned from: samples of one model, answers of several agents.

    python -m research.panel.measure measure [--only ROW ...] [--data DATA]
    python -m research.panel.measure page

Outer folds by group; every panel is trained on the other folds and asked as it ships. The simple ways to stop are tuned
on the test questions themselves, which favours them; the simple ways to pick have no settings.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval, statistic_interval
from metaprobe.eval.metrics.calibration import debiased_ece, ece, ece_interval
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.records.outcomes import QuestionOutcomes
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.compared_answers import EXACT
from metaprobe.routing.panel.model_rows import ANSWER_SIGNALS, JOINT, MAJORITY, PICKS, SUREST, WEIGHTED, Floats
from metaprobe.training.folds import group_folds
from metaprobe.training.panel.fitted_panel import MIN_PANEL_GROUPS, Placed, kept_right
from metaprobe.training.panel.labelled_panels import Panels, panels_of_outcomes, panels_of_runs, right_classes
from metaprobe.training.panel.played_panels import ORDERS, PlayedPanels
from metaprobe.training.recipes.panel import statistics_of, stopped, train_panel
from metaprobe.training.recipes.panel_evaluate import MEAN_ANSWERS, SIMPLE, at_budget, played_by
from metaprobe.training.training_options import PanelOptions
from research.blocks import (
    ROOT,
    ahead,
    behind,
    markdown,
    packed,
    points,
    read_figures,
    shown,
    signed,
    write,
    write_figures,
)
from research.panel.field import (
    BETA,
    Confidences,
    Stopped,
    batch_stops,
    beta_stops,
    confidences_of,
    esc_stops,
    majority_right,
    stopped_at,
    tokens_in_order,
    tuned_window,
    votes_of,
)
from research.routing.data import SETS

KEPT = ROOT / "docs" / "measured" / "panel.json"
PAGE = ROOT / "docs" / "research" / "panel.md"
FOLDS = 5
SIZES = (2, 3, 4, 6, 8, 12, 16)
SAMPLED = {
    "0.5B coder, GSM8K": "gsm8k-samples",
    "1.5B coder, GSM8K": "gsm8k-samples-1.5b",
    **{
        f"{model} coder, {shown}": f"states/qwen-coder-{model.lower()}/{task}-samples"
        for shown, task in (
            ("arithmetic", "arithmetic"),
            ("places", "places"),
            ("TriviaQA", "triviaqa"),
            ("MetaCog-Eval", "metacog-eval"),
        )
        for model in ("0.5B", "1.5B")
    },
}
"""Row -> recorded run. GSM8K: 300 problems, 16 samples each at temperature 0.6; the others: at 0.7, 10 samples of 500
questions, 8 of MetaCog-Eval."""
CONFIDENT = "confident vote"
"""A vote weighted by exp(mean log-probability / T). It needs no model, and is the simplest use of the same signals."""
TEMPERATURES = (0.05, 0.07, 0.1, 0.14, 0.2, 0.3, 0.5, 1.0)
"""T of it, in nats a token; the best on the other folds is taken."""
ONE_ANSWER = (MAJORITY, SUREST, WEIGHTED, CONFIDENT)
"""Simple ways to pick among the samples of one agent."""
KEPT_BY_IT = "kept"
"""The way that the checkpoint of each fold ships with: the joint one, or a simple one where its ladder stays there."""
SHOWN = ("3", "4", "8")
"""Numbers of answers of the page's first table."""
WELL = 0.05
"""Largest ECE that is called calibrated."""
WORTH, SURER = 0.015, 0.03
"""Gains that were hoped for: of accuracy over the plain vote, and of AUROC over the vote's share."""
PERFECT = 1000
"""Draws of labels for the ECE of a perfect forecast."""
PANEL = "panel"
"""Name of the panel among ways to stop."""
_STOPS = (f"Beta {BETA}", "ESC", "batch")
"""The field's ways to stop."""
STOPPED = ("3", "4", "6")
"""Mean numbers of answers at which ways to stop are summed up."""
LABELS = 1000
"""Questions that a panel of agents learns from."""
POOLS: Mapping[str, tuple[str, int | None]] = {
    "router_cascade9, five best": ("router_cascade9", 5),
    "router_cascade9, all nine": ("router_cascade9", None),
    "confidence_models11": ("confidence_models11", None),
    "mmlu_pro, token": ("mmlu_pro, token", None),
    "mmlu_pro, verbal": ("mmlu_pro, verbal", None),
    "router_llmrouter9": ("router_llmrouter9", None),
    "metacog-every-agent": ("metacog-every-agent", None),
}
"""Row -> set of outcomes, and how many agents of the highest accuracy; None for all."""

Gain = Sequence[float]
"""A difference and its interval."""


@click.group()
def main() -> None:
    """Measures what a panel is worth."""


@main.command()
@click.option("--only", multiple=True, type=click.Choice([*SAMPLED, *POOLS]), help="Rows to measure; all by default.")
@click.option("--data", type=click.Path(path_type=Path), default=None, help="Folder of the shared data sets.")
def measure(only: tuple[str, ...], data: Path | None) -> None:
    """Measure on recorded runs, and with --data on the shared outcomes too; keeps what was measured before."""
    for name, store in SAMPLED.items():
        if not only or name in only:
            _keep("samples", name, _samples(_with_confidences(RunStore(ROOT / "recorded" / store))))
    for row, (name, best) in POOLS.items() if data is not None else ():
        assert data is not None
        if not only or row in only:
            _keep("agents", row, _agents(_pool(SETS[name].load(data), best)))


def _keep(part: str, row: str, figures: dict[str, Any]) -> None:
    """Write the figures of a row as soon as they are known, so that rows can be measured side by side."""
    kept: dict[str, Any] = {"samples": {}, "agents": {}} | read_figures(KEPT)
    kept[part][row] = figures
    order = [*SAMPLED, *POOLS]
    kept[part] = dict(sorted(kept[part].items(), key=lambda one: order.index(one[0])))
    write_figures(KEPT, kept)
    click.echo(row)


def kinds_of(runs: Iterable[Run]) -> list[tuple[Panels, list[Run]]]:
    """Returns the panels of runs with their runs, apart by how their answers are compared: a panel is trained for one
    kind of question.

    Kinds with too few groups to learn from in each fold are left out.
    """
    by_check: dict[str, list[Run]] = {}
    for run in runs:
        by_check.setdefault(run.item.check, []).append(run)
    kinds = [(panels_of_runs(alike), alike) for _, alike in sorted(by_check.items())]
    return [(data, alike) for data, alike in kinds if len(set(data.groups)) * (FOLDS - 1) / FOLDS >= MIN_PANEL_GROUPS]


def _with_confidences(runs: Iterable[Run]) -> list[tuple[Panels, Confidences]]:
    """Returns the panels of runs with the confidences of the field's votes, by kind."""
    return [(data, confidences_of(alike, data)) for data, alike in kinds_of(runs)]


def _pool(questions: Sequence[QuestionOutcomes], best: int | None) -> Panels:
    """The outcomes as panels, of all agents or of those with the highest accuracy."""
    whole = panels_of_outcomes(questions)
    if best is None:
        return whole
    rate = [float(np.nanmean(whole.right[whole.agent == a])) for a in range(len(whole.agents))]
    names = {whole.agents[a] for a in np.argsort(rate)[-best:]}
    return panels_of_outcomes(
        [replace(q, agents={name: o for name, o in q.agents.items() if name in names}) for q in questions]
    )


def _folds(data: Panels, labels: int | None = None) -> Iterator[tuple[Panel, Any, Any]]:
    """A panel trained on the other folds, the questions it learned from and the test questions of each fold."""
    rate = np.nan_to_num(data.right).mean(axis=1)
    halves = (rate > np.median(rate)).astype(np.int64)
    for rest, test in group_folds(np.arange(len(data)), data.groups, halves, FOLDS, 0):
        learned = rest if labels is None else np.random.default_rng(0).permutation(rest)[:labels]
        with tempfile.TemporaryDirectory() as folder:
            yield Panel(train_panel(data.take(np.sort(learned)), PanelOptions(out=Path(folder) / "c"))), learned, test


def _confident(data: Panels, panel: Panel) -> dict[float, Floats]:
    """T -> whether the class that the confident vote keeps is right after 1, ..., K answers, (o, n, K).

    In the orders of `played_by` with the seed 0, so that the two are paired.
    """
    mean = -np.exp(data.signals[..., ANSWER_SIGNALS.index("mean")])
    placed, rng, K = Placed(data.answers(panel.agents), mean, data.right), np.random.default_rng(0), mean.shape[1]
    right = {T: np.zeros((ORDERS, *mean.shape)) for T in TEMPERATURES}
    for number in range(ORDERS):
        order = placed.draw(K, rng)
        for size in range(1, K + 1):
            part = order.first(size)
            member = (
                part.answers.answer_class[:, None, :] == np.arange(K)[:, None]
            )  # an unreadable answer votes for none
            for T, found in right.items():
                weight = (member * np.exp(part.odds / T)[:, None, :]).sum(axis=2)
                kept = np.where(member.any(axis=(1, 2)), weight.argmax(axis=1), -1)
                found[number, :, size - 1] = kept_right(part, kept)
    return right


def _samples(with_confidences: Sequence[tuple[Panels, Confidences]]) -> dict[str, Any]:
    """The figures of a store; of several kinds of questions each is trained alone, and all are counted together."""
    kinds, by_kind = [data for data, _ in with_confidences], dict(enumerate(with_confidences))
    field = _Field(sum(len(data) for data in kinds))
    n, ways = sum(len(data) for data in kinds), (*PICKS, CONFIDENT, KEPT_BY_IT)
    forms = np.concatenate([right_classes(data.answer_class, data.present, data.right).sum(axis=1) for data in kinds])
    K = min(data.answer_class.shape[1] for data in kinds)
    sizes, budgets = [size for size in SIZES if size <= K], [budget for budget in MEAN_ANSWERS if budget < K]
    right = {size: {way: np.zeros((ORDERS, n)) for way in ways} for size in sizes}
    sure, share = ({size: np.zeros((ORDERS, n)) for size in sizes} for _ in range(2))
    own, spent = {b: np.zeros(n) for b in budgets}, {b: np.zeros(n) for b in budgets}
    simple, sured = ({b: {way: np.zeros(n) for way in SIMPLE} for b in budgets} for _ in range(2))
    picks = []
    for kind, panel, learned, test, place in folds_of(kinds):
        data, confidences = by_kind[kind]
        picks.append(panel.pick)
        played = played_by(panel, data.take(test), seed=0)
        field.add(data, confidences, panel, played, (learned, np.asarray(test), place))
        known = {T: float(found[..., 1:].mean()) for T, found in _confident(data.take(learned), panel).items()}
        confident = _confident(data.take(test), panel)[max(TEMPERATURES, key=lambda T: known[T])]
        found = {**played.right, CONFIDENT: confident, KEPT_BY_IT: played.right[panel.pick]}
        for size in sizes:
            for way in ways:
                right[size][way][:, place] = found[way][..., size - 1]
            sure[size][:, place] = played.score[..., size - 1]
            share[size][:, place] = played.counts[..., size - 1, 0] / size
        for budget in budgets:
            own[budget][place], spent[budget][place], _ = at_budget(panel, played, float(budget), ())
        for kept, by_budget in ((MAJORITY, simple), (CONFIDENT, sured)):
            keeping = replace(played, right={**played.right, MAJORITY: found[kept]})
            for budget in budgets:
                for way, values in at_budget(panel, keeping, float(budget), [MAJORITY])[2].items():
                    by_budget[budget][way][place] = values
    weights = cluster_weights([group for data in kinds for group in data.groups])
    return {
        "questions": n,
        "samples": K,
        "same": {data.same: len(data) for data in kinds},
        "accuracy_of_one": float(np.nanmean(np.concatenate([data.right.ravel() for data in kinds]))),
        "unreadable": float(np.concatenate([(data.answer_class < 0)[data.present] for data in kinds]).mean()),
        "right_in_several_forms": float((forms[forms > 0] > 1).mean()),  # of questions that have a right answer
        "picks": picks,
        "sizes": {
            str(size): {
                "accuracy": {way: float(values.mean()) for way, values in right[size].items()},
                **{
                    f"{own_way}_over": {
                        way: packed(mean_interval((right[size][own_way] - right[size][way]).mean(axis=0), weights))
                        for way in ONE_ANSWER
                    }
                    for own_way in (JOINT, KEPT_BY_IT)
                },
                "auroc": packed(auroc_over_orders(weights, (right[size][JOINT], sure[size]))),
                "auroc_of_share": packed(auroc_over_orders(weights, (right[size][MAJORITY], share[size]))),
                "auroc_over_share": packed(
                    auroc_over_orders(weights, (right[size][JOINT], sure[size]), (right[size][MAJORITY], share[size]))
                ),
                "ece": packed(ece_interval(right[size][JOINT][0], sure[size][0], weights)),
                "ece_perfect": perfect_ece(sure[size][0]),
                "ece_debiased": packed(
                    debiased_ece(right[size][JOINT].ravel(), sure[size].ravel(), np.tile(weights, ORDERS))
                ),
            }
            for size in sizes
        },
        "field": field.figures({size: right[size][KEPT_BY_IT] for size in sizes}, weights),
        "budgets": {
            str(budget): {
                "panel": float(own[budget].mean()),
                "spent": float(spent[budget].mean()),
                "simple": {way: float(values.mean()) for way, values in simple[budget].items()},
                **{
                    name: {
                        way: packed(mean_interval(own[budget] - values, weights))
                        for way, values in by_budget[budget].items()
                    }
                    for name, by_budget in (("over_each", simple), ("over_each_confident", sured))
                },
            }
            for budget in budgets
        },
    }


def folds_of(kinds: Sequence[Panels]) -> Iterator[tuple[int, Panel, Any, Any, Any]]:
    """Yields each fold of each kind: the kind, the panel, rows learned from, test rows, and their places among all."""
    start = 0
    for kind, data in enumerate(kinds):
        for panel, learned, test in _folds(data):
            yield kind, panel, learned, test, start + np.asarray(test)
        start += len(data)


class _Field:
    """Holds the results of the field's ways on n questions, filled fold by fold."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.votes: dict[int, dict[str, Floats]] = {}
        """Size -> way -> whether the kept answer is right, (o, n)."""
        self.stops: dict[str, Stopped] = {}
        """Way to stop -> what it comes to."""

    def add(
        self, data: Panels, confidences: Confidences, panel: Panel, played: PlayedPanels, rows: tuple[Any, Any, Any]
    ) -> None:
        """Takes in the test questions of a fold.

        Args:
            data: the questions of one kind.
            confidences: of their answers.
            panel: the panel of the fold.
            played: the test questions, played by it.
            rows: of the questions learned from, of the test questions, and their places among all.
        """
        learned, test, place = rows
        seen, new = (
            votes_of(data.take(part), panel.agents, {kind: values[:, part] for kind, values in confidences.items()})
            for part in (learned, test)
        )
        for way, setting in seen.tuned().items():
            for size, values in new.right[way].items():
                by_way = self.votes.setdefault(size, {})
                by_way.setdefault(way, np.zeros((ORDERS, self.n)))[:, place] = values[setting]
        # Beta stopping, and the fewest answers that bring the panel as much accuracy, by the questions learned from.
        known = played_by(panel, data.take(learned), seed=0)
        at = beta_stops(known)
        target = float(np.take_along_axis(majority_right(known), at[..., None], axis=2).mean())
        enough = [samples for samples in self.grid(panel) if panel.plan(samples=samples).accuracy >= target]
        plan = panel.plan(samples=enough[0]) if enough else panel.plan(price=0.0)
        tokens, vote = tokens_in_order(data.take(test), panel.agents), majority_right(played)
        mean = float(beta_stops(played).mean() + 1)
        self._put(_STOPS[0], place, stopped_at(vote, tokens, beta_stops(played)))
        self._put(_STOPS[1], place, stopped_at(vote, tokens, esc_stops(played, tuned_window(known, target))))
        self._put(_STOPS[2], place, stopped_at(vote, tokens, batch_stops(played, mean)))
        parts = []
        for setting, share in ((plan.first, plan.share), (plan.second, 1 - plan.share)):
            at = stopped(played, statistics_of(played)[setting.way], setting)
            own = stopped_at(played.right[panel.pick], tokens, at)
            parts.append([share * values for values in (own.right, own.tokens, own.answers)])
        self._put(PANEL, place, Stopped(*(first + second for first, second in zip(*parts, strict=True))))

    @staticmethod
    def grid(panel: Panel) -> list[float]:
        """Returns the mean numbers of answers that are tried, rising."""
        return np.arange(1.0, max(one.samples for one in panel.settings) + 0.05, 0.05).tolist()

    def _put(self, way: str, place: Any, came: Stopped) -> None:
        whole = self.stops.setdefault(way, Stopped(*(np.zeros((ORDERS, self.n)) for _ in range(3))))
        for values, part in zip(
            (whole.right, whole.tokens, whole.answers), (came.right, came.tokens, came.answers), strict=True
        ):
            values[:, place] = part

    def figures(self, kept: Mapping[int, Floats], weights: Any) -> dict[str, Any]:
        """Returns the panel's gain over each vote, and over each way to stop its gain and the share of tokens saved."""
        own = self.stops[PANEL]

        def saved(mine: Floats, theirs: Floats) -> Interval:
            less, more = mine.mean(axis=0), theirs.mean(axis=0)
            return statistic_interval(lambda drawn: 1 - (drawn @ less) / (drawn @ more), weights)

        return {
            "picks": {
                str(size): {
                    way: packed(mean_interval((kept[size] - values).mean(axis=0), weights))
                    for way, values in by_way.items()
                }
                for size, by_way in self.votes.items()
            },
            "stops": {
                way: {
                    "accuracy": float(one.right.mean()),
                    "answers": float(one.answers.mean()),
                    "tokens": float(one.tokens.mean()),
                    "panel_over": packed(mean_interval((own.right - one.right).mean(axis=0), weights)),
                    "saved": packed(saved(own.tokens, one.tokens)),
                }
                for way, one in self.stops.items()
            },
        }


def auroc_over_orders(weights: Any, of: tuple[Floats, Floats], less: tuple[Floats, Floats] | None = None) -> Interval:
    """The mean AUROC over the orders of what was right (o, n) by its score (o, n), or how far it is over another."""

    def mean(pair: tuple[Floats, Floats], drawn: Any) -> Floats:
        return np.asarray(sum(np.asarray(auroc(y, p, drawn)) for y, p in zip(*pair, strict=True)) / len(pair[0]))

    return statistic_interval(lambda drawn: mean(of, drawn) - (0.0 if less is None else mean(less, drawn)), weights)


def perfect_ece(score: Floats) -> list[float]:
    """The ECE that noise alone gives a perfect forecast: its mean and 95 % quantile where labels come true as often as
    these probabilities (n,) say, each by itself."""
    rng = np.random.default_rng(0)
    drawn = [float(np.asarray(ece(rng.random(len(score)) < score, score))) for _ in range(PERFECT)]
    return [float(np.mean(drawn)), float(np.quantile(drawn, 0.95))]


def _agents(data: Panels) -> dict[str, Any]:
    n = len(data)
    right = {way: np.zeros(n) for way in PICKS}
    kept, sure = np.zeros(n), np.zeros(n)
    picks = []
    for panel, _, test in _folds(data, LABELS):
        picks.append(panel.pick)
        played = played_by(panel, data.take(test), seed=0, orders=1)
        for way in PICKS:
            right[way][test] = played.right[way][0, :, -1]
        kept[test] = played.right[panel.pick][0, :, -1]
        sure[test] = played.score[0, :, -1]
    weights = cluster_weights(list(data.groups))
    ways = {**right, "kept": kept}
    simple = [way for way in PICKS if way != JOINT]
    strongest = max(simple, key=lambda way: float(right[way].mean()))
    return {
        "questions": n,
        "agents": len(data.agents),
        "picks": picks,
        "accuracy": {way: packed(mean_interval(values, weights)) for way, values in ways.items()},
        "strongest_simple": strongest,
        "kept_over": {way: packed(mean_interval(kept - right[way], weights)) for way in simple},
        "ece": packed(ece_interval(right[JOINT], sure, weights)),
    }


@main.command()
def page() -> None:
    """Write the tables of docs/research/panel.md from what was kept."""
    kept = read_figures(KEPT)
    write(PAGE, "answer", _answer(kept))
    write(PAGE, "samples", _sample_rows(kept["samples"]))
    write(PAGE, "picks", _picks(kept["samples"]))
    write(PAGE, "stops", _stops(kept["samples"]))
    write(PAGE, "field", _field(kept["samples"]))
    write(PAGE, "votes", _votes(kept["samples"]))
    write(PAGE, "saved", _saved(kept["samples"]))
    rows = [
        [
            f"{name} ({row['agents']} agents, {row['questions']} questions)",
            *(f"{row['accuracy'][way][0]:.3f}" for way in (*PICKS, "kept")),
            f"{row['strongest_simple']}, {points(row['kept_over'][row['strongest_simple']])}",
            f"{row['ece'][0]:.3f}",
        ]
        for name, row in kept["agents"].items()
    ]
    write(PAGE, "agents", markdown(["set", *PICKS, "panel", "strongest simple way, panel over it", "ECE"], rows))


def over_strongest(row: dict[str, Any]) -> tuple[str, list[float]]:
    """Returns the simple way that is right most often at a number of answers, and the panel's gain over it."""
    way = max(ONE_ANSWER, key=lambda one: float(row["accuracy"][one]))
    return way, row["kept_over"][way]


def _answer(kept: dict[str, Any]) -> list[str]:
    """Returns the four sentences that the page opens with."""
    samples, agents = kept["samples"], kept["agents"].values()
    texts = {name: one for name, one in samples.items() if set(one["same"]) == {EXACT}}
    over_vote, over_best = (
        _gains(samples, lambda row: row["kept_over"][MAJORITY]),
        _gains(samples, lambda row: over_strongest(row)[1]),
    )
    sure, sure_of_texts = (_gains(among, lambda row: row["auroc_over_share"]) for among in (samples, texts))
    noise = [one["sizes"][SHOWN[-1]]["ece_perfect"][0] for one in samples.values()]
    gaps = [gain for at in over_best for gain, _, _ in at]
    stops = [over_simple(one["budgets"][budget]) for one in samples.values() for budget in STOPPED]
    earlier = sum(all(low > 0 for _, low, _ in gains) for gains in stops)
    later = sum(any(high < 0 for _, _, high in gains) for gains in stops)
    won = sum(min(g[1] for g in row["kept_over"].values()) > 0 for row in agents)
    worst = min(min(g[0] for g in row["kept_over"].values()) for row in agents)
    return [
        f"On {len(samples)} stores of samples of one model, with {_listed(SHOWN)} answers, a panel's pick is ahead of",
        f"the plain vote, by an interval, on {_standing(over_vote)}, and of each store's strongest simple way on",
        f"{_standing(over_best)} ({_one(min(gaps))} to {_one(max(gaps))} points), level elsewhere.",
        "Its probability of the kept answer has a higher AUROC than the vote's share on",
        f"{_standing(sure)}, of {len(texts)} stores of texts on {_listed(map(ahead, sure_of_texts))};",
        f"its ECE at {SHOWN[-1]} is at most {WELL} on {_at(samples, _well)[-1]}, where a perfect forecast would show",
        f"{min(noise):.3f} to {max(noise):.3f} by noise, and worse than 95 % of perfect forecasts on",
        f"{_at(samples, _worse)[-1]}.",
        f"Stopped at a price, it is more accurate than every simple way to stop and vote, at {_listed(STOPPED)} mean",
        f"answers each, in {earlier} of {len(stops)} cases, by an interval, and less than one of them in {later}.",
        f"Of several agents it is ahead of every simple way on {won} of {len(agents)} rows, at worst {_one(worst)}",
        "points from the strongest.",
    ]


def _gains(samples: Mapping[str, Any], gain: Callable[[dict[str, Any]], Gain]) -> list[list[Gain]]:
    """Returns the gain of each store and its interval, for each number of answers that is shown."""
    return [[gain(one["sizes"][size]) for one in samples.values()] for size in SHOWN]


def _at(samples: Mapping[str, Any], holds: Callable[[dict[str, Any]], bool]) -> list[int]:
    """Returns on how many stores something holds, for each number of answers that is shown."""
    return [sum(holds(one["sizes"][size]) for one in samples.values()) for size in SHOWN]


def _well(row: dict[str, Any]) -> bool:
    return float(row["ece"][0]) <= WELL


def _worse(row: dict[str, Any]) -> bool:
    """Whether the ECE is above what 95 % of perfect forecasts would show."""
    return float(row["ece"][0]) > row["ece_perfect"][1]


def _standing(by_size: Sequence[Sequence[Gain]]) -> str:
    """Returns how many gains are above 0 by their interval for each number of answers, and how many below it."""
    below = [behind(gains) for gains in by_size]
    return f"{_listed(map(ahead, by_size))} (behind on {_listed(below) if any(below) else 'none'})"


def _hoped(samples: dict[str, Any]) -> list[str]:
    """Returns how often the gains that were hoped for are there, and how well the probability is calibrated."""
    much = _at(samples, lambda row: row["kept_over"][MAJORITY][0] >= WORTH and row["kept_over"][MAJORITY][1] > 0)
    surer = _at(samples, lambda row: row["auroc_over_share"][0] >= SURER)
    freed = _at(samples, lambda row: row["ece_debiased"][0] <= WELL)
    apart = _at(samples, lambda row: row["ece_debiased"][1] > 0)
    return [
        f"With {_listed(SHOWN)} answers: at least {_one(WORTH)} points over the plain vote, by an interval above 0, on",
        f"{_listed(much)}; AUROC at least {SURER} over the share on {_listed(surer)}. ECE at most {WELL} on",
        f"{_listed(_at(samples, _well))}; above 95 % of perfect forecasts on {_listed(_at(samples, _worse))}; freed of",
        f"noise, over all orders, at most {WELL} on {_listed(freed)}, above 0 by its interval on {_listed(apart)}.",
    ]


def over_simple(row: dict[str, Any]) -> list[list[float]]:
    """Returns the gain over each simple way to stop at a budget, where the majority's and where the confident vote's
    answer is kept."""
    return [*row["over_each"].values(), *row["over_each_confident"].values()]


def _listed(values: Iterable[Any]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}"


def _sample_rows(samples: dict[str, Any]) -> list[str]:
    rows, most = [], SHOWN[-1]
    for name, one in samples.items():
        at = one["sizes"][most]
        rows.append(
            [
                name,
                f"{one['accuracy_of_one']:.3f}",
                f"{at['accuracy'][KEPT_BY_IT]:.3f}",
                points(at["kept_over"][MAJORITY]),
                points(over_strongest(at)[1]),
                points(at["auroc_over_share"]),
                "{:.3f} ({:.3f})".format(at["ece"][0], at["ece_perfect"][1]),
            ]
        )
    head = ["samples", "one", f"kept of {most}", "over the vote", "over the strongest", "AUROC", "ECE"]
    return markdown(head, rows)


def _picks(samples: dict[str, Any]) -> list[str]:
    lines = [*_hoped(samples), ""]
    for name, one in samples.items():
        rows = [
            [
                size,
                *(f"{row['accuracy'][way]:.3f}" for way in (*ONE_ANSWER, JOINT, KEPT_BY_IT)),
                *(points(row["joint_over"][way]) for way in (MAJORITY, CONFIDENT)),
                f"{over_strongest(row)[0]}, {points(over_strongest(row)[1])}",
                f"{row['auroc'][0]:.3f}",
                f"{row['auroc_of_share'][0]:.3f} ({points(row['auroc_over_share'])})",
                "{:.3f} ({:.3f}, {:.3f})".format(row["ece"][0], *row["ece_perfect"]),
                signed(row["ece_debiased"]),
            ]
            for size, row in one["sizes"].items()
        ]
        over = ["joint over majority, points", "over the confident vote", "strongest simple way, kept over it"]
        head = ["answers", *ONE_ANSWER, "joint", "kept", *over, "AUROC of kept", "of the share"]
        head += ["ECE (perfect forecast: mean, 95 %)", "ECE freed of noise"]
        same = ", ".join(f"{count} by {check}" for check, count in one["same"].items())
        about = (
            f"{one['questions']} questions, answers compared {same}; one is right with {one['accuracy_of_one']:.3f}; "
            f"{one['unreadable']:.0%} of the answers were cut or hold no answer. Right answers have several forms in "
            f"{one['right_in_several_forms']:.0%} of the questions that have one. Of {len(one['picks'])} checkpoints "
            f"{one['picks'].count(JOINT)} keep the joint answer."
        )
        lines += [f"### {name}", "", about, "", *markdown(head, rows), ""]
    return lines


def _stops(samples: dict[str, Any]) -> list[str]:
    lines = []
    for name, one in samples.items():
        rows = [
            [
                budget,
                f"{row['spent']:.1f}",
                f"{row['panel']:.3f}",
                *(f"{row['simple'][way]:.3f} ({points(row['over_each'][way])})" for way in SIMPLE),
            ]
            for budget, row in one["budgets"].items()
        ]
        lines += [f"### {name}", "", *markdown(["mean answers", "spent", "panel", *SIMPLE], rows), ""]
    return lines


def _field(samples: Mapping[str, Any]) -> list[str]:
    """Returns the sentences about the field's ways."""
    found = {name: one["field"] for name, one in samples.items() if "field" in one}
    gains = [gains for one in found.values() for gains in one["picks"].values()]
    most = [max(row, key=lambda way: -row[way][0]) for row in gains]
    strongest = [row[way] for row, way in zip(gains, most, strict=True)]
    tenth = [gain for row in gains for way, gain in row.items() if way.endswith("top 10 %")]
    others = [gain for row in gains for way, gain in row.items() if not way.endswith("top 10 %")]
    beta, esc, batch = ([one["stops"][way] for one in found.values()] for way in _STOPS)
    saved, level = [row["saved"][0] for row in beta], [row["panel_over"] for row in beta]
    level_esc, level_batch = ([row["panel_over"] for row in rows] for rows in (esc, batch))
    return [
        f"On {len(found)} stores the kept answer is ahead, by an interval, of votes after DeepConf over all or the",
        f"surest 90 % of the answers in {won(others)}, over the surest 10 % in {won(tenth)}, and of the strongest",
        f"of the twelve in hindsight in {won(strongest)} ({range_of(strongest)} points).",
        "Where it stops by what the questions learned from promise, it takes",
        f"{min(saved):.0%} to {max(saved):.0%} fewer tokens than Beta stopping, and is behind its accuracy in",
        f"{behind(level)} of {len(level)} ({range_of(level)} points), behind that of ESC in {behind(level_esc)}",
        f"and of the batch in {behind(level_batch)}.",
    ]


def won(gains: Sequence[Gain]) -> str:
    """Returns how many gains are above 0 by their interval, of how many, and how many are below it."""
    return f"{ahead(gains)} of {len(gains)} (behind in {behind(gains)})"


def range_of(gains: Sequence[Gain]) -> str:
    return f"{_one(min(gain for gain, _, _ in gains))} to {_one(max(gain for gain, _, _ in gains))}"


def _votes(samples: Mapping[str, Any]) -> list[str]:
    """Returns the table of the kept answer over each vote of the field, in points, at each number of answers."""
    found = {name: one["field"]["picks"] for name, one in samples.items() if "field" in one}
    ways = sorted({way for by_size in found.values() for row in by_size.values() for way in row})
    body = [
        [name, size, *(points(row[way]) for way in ways)]
        for name, by_size in found.items()
        for size, row in by_size.items()
    ]
    return [*markdown(["samples", "answers", *ways], body), ""]


def _saved(samples: Mapping[str, Any]) -> list[str]:
    """Returns the table of ways to stop: what they take, and the panel beside them."""
    body = []
    for name, one in samples.items():
        if "field" not in one:
            continue
        for way, row in one["field"]["stops"].items():
            numbers = [f"{row['accuracy']:.3f}", f"{row['answers']:.1f}", f"{row['tokens']:.0f}"]
            beside = ["", ""] if way == PANEL else [points(row["panel_over"]), shown(row["saved"], "+.0%")]
            body.append([name, way, *numbers, *beside])
    head = ["samples", "way to stop", "accuracy", "answers", "tokens", "panel over it, points", "tokens saved"]
    return [*markdown(head, body), ""]


def _one(value: float) -> str:
    return f"{100 * value:+.1f}"


if __name__ == "__main__":
    main()
