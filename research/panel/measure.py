"""Measures a panel on questions that it has not learned from: samples of one model, answers of several agents.

    python -m research.panel.measure measure [--data DATA]
    python -m research.panel.measure page

Outer folds by group; every panel is trained on the other folds and asked as it ships. The simple ways to stop are tuned
on the test questions themselves, which favours them; the simple ways to pick have no settings.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, mean_interval, statistic_interval
from metaprobe.eval.metrics.calibration import ece_interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.records.outcomes import QuestionOutcomes
from metaprobe.routing.panel import Panel
from metaprobe.routing.panel_rows import JOINT, MAJORITY, PICKS, SIGNALS, SUREST, WEIGHTED, Floats
from metaprobe.training.folds import group_folds
from metaprobe.training.options import PanelOptions
from metaprobe.training.panel_data import Panels, panels_at, panels_of_outcomes
from metaprobe.training.panel_fit import ORDERS, Placed, kept_right
from metaprobe.training.recipes.panel import train_panel
from metaprobe.training.recipes.panel_evaluate import BUDGETS, SIMPLE, at_budget, played_by
from research.blocks import markdown, write
from research.routing.data import SETS

ROOT = Path(__file__).parent.parent.parent
KEPT = ROOT / "docs" / "measured" / "panel.json"
PAGE = ROOT / "docs" / "research" / "panel.md"
FOLDS = 5
SIZES = (2, 3, 4, 6, 8, 12, 16)
SAMPLED = {"0.5B coder": "gsm8k-samples", "1.5B coder": "gsm8k-samples-1.5b"}
"""Name -> recorded run: 300 problems of GSM8K, 16 samples each at temperature 0.6."""
CONFIDENT = "confident vote"
"""A vote weighted by exp(mean log-probability / T). It needs no model, and is the simplest use of the same signals."""
TEMPERATURES = (0.05, 0.07, 0.1, 0.14, 0.2, 0.3, 0.5, 1.0)
"""T of it, in nats a token; the best on the other folds is taken."""
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


@click.group()
def main() -> None:
    """Measures what a panel is worth."""


@main.command()
@click.option("--data", type=click.Path(path_type=Path), default=None, help="Folder of the shared data sets.")
def measure(data: Path | None) -> None:
    """Measure on recorded runs, and with --data on the shared outcomes too; keeps what was measured before."""
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {"samples": {}, "agents": {}}
    for name, store in SAMPLED.items():
        click.echo(name)
        kept["samples"][name] = _samples(panels_at(ROOT / "recorded" / store))
    for row, (name, best) in POOLS.items() if data is not None else ():
        click.echo(row)
        assert data is not None
        kept["agents"][row] = _agents(_pool(SETS[name].load(data), best))
    KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


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
    mean = -np.exp(data.signals[..., SIGNALS.index("mean")])
    placed, rng, K = Placed(data.answers(panel.agents), mean, data.right), np.random.default_rng(0), mean.shape[1]
    right = {T: np.zeros((ORDERS, *mean.shape)) for T in TEMPERATURES}
    for number in range(ORDERS):
        order = placed.draw(K, rng)
        for size in range(1, K + 1):
            part = order.first(size)
            member = part.answers.form[:, None, :] == np.arange(K)[:, None]  # an unreadable answer votes for none
            for T, found in right.items():
                weight = (member * np.exp(part.odds / T)[:, None, :]).sum(axis=2)
                kept = np.where(member.any(axis=(1, 2)), weight.argmax(axis=1), -1)
                found[number, :, size - 1] = kept_right(part, kept)
    return right


def _samples(data: Panels) -> dict[str, Any]:
    n, ways = len(data), (*PICKS, CONFIDENT)
    right = {size: {way: np.zeros((ORDERS, n)) for way in ways} for size in SIZES}
    sure, share = ({size: np.zeros((ORDERS, n)) for size in SIZES} for _ in range(2))
    own, spent = {b: np.zeros(n) for b in BUDGETS}, {b: np.zeros(n) for b in BUDGETS}
    simple, sured, alike = ({b: {way: np.zeros(n) for way in SIMPLE} for b in BUDGETS} for _ in range(3))
    picks, temperatures = [], []
    for panel, learned, test in _folds(data):
        picks.append(panel.pick)
        played = played_by(panel, data.take(test), seed=0)
        known = {T: float(found[..., 1:].mean()) for T, found in _confident(data.take(learned), panel).items()}
        temperatures.append(max(TEMPERATURES, key=lambda T: known[T]))
        found = {**played.right, CONFIDENT: _confident(data.take(test), panel)[temperatures[-1]]}
        for size in SIZES:
            for way in ways:
                right[size][way][:, test] = found[way][..., size - 1]
            sure[size][:, test] = played.score[..., size - 1]
            share[size][:, test] = played.counts[..., size - 1, 0] / size
        for budget in BUDGETS:
            own[budget][test], spent[budget][test], _ = at_budget(panel, played, float(budget))
        for kept, by_budget in ((MAJORITY, simple), (CONFIDENT, sured), (panel.pick, alike)):
            keeping = replace(played, right={**played.right, MAJORITY: found[kept]})
            for budget in BUDGETS:
                for way, values in at_budget(panel, keeping, float(budget))[2].items():
                    by_budget[budget][way][test] = values
    weights = cluster_weights(list(data.groups))
    return {
        "questions": n,
        "accuracy_of_one": float(np.nanmean(data.right)),
        "unreadable": float((data.form < 0)[data.present].mean()),
        "picks": picks,
        "temperatures": temperatures,
        "sizes": {
            str(size): {
                "accuracy": {way: float(values.mean()) for way, values in right[size].items()},
                **{
                    f"joint_over_{name}": _packed(
                        mean_interval((right[size][JOINT] - right[size][way]).mean(axis=0), weights)
                    )
                    for name, way in (("majority", MAJORITY), ("confident", CONFIDENT))
                },
                "auroc": _packed(_auroc(weights, (right[size][JOINT], sure[size]))),
                "auroc_of_share": _packed(_auroc(weights, (right[size][MAJORITY], share[size]))),
                "auroc_over_share": _packed(
                    _auroc(weights, (right[size][JOINT], sure[size]), (right[size][MAJORITY], share[size]))
                ),
                "ece": _packed(ece_interval(right[size][JOINT][0], sure[size][0], weights)),
            }
            for size in SIZES
        },
        "budgets": {
            str(budget): {
                "panel": float(own[budget].mean()),
                "spent": float(spent[budget].mean()),
                "simple": {way: float(values.mean()) for way, values in simple[budget].items()},
                **{
                    name: {
                        way: _packed(mean_interval(own[budget] - values, weights))
                        for way, values in by_budget[budget].items()
                    }
                    for name, by_budget in (
                        ("over_each", simple),
                        ("over_each_confident", sured),
                        ("over_each_with_its_pick", alike),
                    )
                },
            }
            for budget in BUDGETS
        },
    }


def _auroc(weights: Any, of: tuple[Floats, Floats], less: tuple[Floats, Floats] | None = None) -> Interval:
    """The mean AUROC over the orders of what was right (o, n) by its score (o, n), or how far it is over another."""

    def mean(pair: tuple[Floats, Floats], drawn: Any) -> Floats:
        return np.asarray(sum(np.asarray(auroc(y, p, drawn)) for y, p in zip(*pair, strict=True)) / len(pair[0]))

    return statistic_interval(lambda drawn: mean(of, drawn) - (0.0 if less is None else mean(less, drawn)), weights)


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
        "learned_from": min(LABELS, n - n // FOLDS),
        "exclusive": data.exclusive,
        "picks": picks,
        "accuracy": {way: _packed(mean_interval(values, weights)) for way, values in ways.items()},
        "strongest_simple": strongest,
        "kept_over": {way: _packed(mean_interval(kept - right[way], weights)) for way in simple},
        "auroc": _packed(interval(auroc, right[JOINT], sure, weights)),
        "ece": _packed(ece_interval(right[JOINT], sure, weights)),
    }


def _packed(found: Any) -> list[float]:
    return [found.estimate, found.low, found.high]


@main.command()
def page() -> None:
    """Write the tables of docs/research/panel.md from what was kept."""
    kept = json.loads(KEPT.read_text())
    write(PAGE, "answer", _answer(kept))
    write(PAGE, "picks", _picks(kept["samples"]))
    write(PAGE, "stops", _stops(kept["samples"]))
    write(PAGE, "agents", _agent_rows(kept["agents"]))


def _answer(kept: dict[str, Any]) -> list[str]:
    lines = []
    for name, one in kept["samples"].items():
        gains = {size: row["joint_over_majority"] for size, row in one["sizes"].items()}
        told = ", ".join(f"{_points(gains[size])} at {size}" for size in ("4", "8", "16"))
        lines.append(
            f"- **{name}, {one['questions']} problems of GSM8K**: the panel's pick against the majority of the answers "
            f"that ended by themselves gains {told} answers;"
        )
        plain = {size: row["joint_over_confident"] for size, row in one["sizes"].items()}
        told = ", ".join(f"{_points(plain[size])} at {size}" for size in ("4", "8", "16"))
        lines.append(f"  against the confident vote, weighted by the answers' mean log-probability, it gains {told};")
        better = [b for b, row in one["budgets"].items() if min(g[1] for g in row["over_each"].values()) > 0]
        worst = min(min(g[0] for g in row["over_each"].values()) for row in one["budgets"].values())
        where = f"at {', '.join(better)} mean answers" if better else "at no mean number of answers"
        lines.append(
            f"  asking until it is not worth it is ahead of every simple way to stop, by an interval, {where}, and at "
            f"worst {_one(worst)} points from the best of them; where they keep the confident "
            f"vote's answer it is ahead {_ahead(one, 'over_each_confident')}, and where they keep the panel's own pick "
            f"{_ahead(one, 'over_each_with_its_pick')}."
        )
    rows = kept["agents"].values()
    ahead = sum(min(g[1] for g in row["kept_over"].values()) > 0 for row in rows)
    behind = min(min(g[0] for g in row["kept_over"].values()) for row in rows)
    lines.append(
        f"- **Answers of several agents, {len(kept['agents'])} rows**: ahead of every simple way by an interval on "
        f"{ahead}; at worst {_one(behind)} points from the strongest simple way."
    )
    return lines


def _ahead(one: dict[str, Any], over: str) -> str:
    """Says at which mean numbers of answers the panel is ahead, and how far it is from the best simple way to stop."""
    gaps = {b: min(row[over].values(), key=lambda gap: gap[0]) for b, row in one["budgets"].items()}
    better = [b for b, row in one["budgets"].items() if min(gap[1] for gap in row[over].values()) > 0]
    where = f"at {', '.join(better)}" if better else "nowhere"
    ends = sorted(gap[0] for gap in gaps.values())
    return f"{where} (by {_one(ends[0])} to {_one(ends[-1])} points)"


def _picks(samples: dict[str, Any]) -> list[str]:
    lines = []
    for name, one in samples.items():
        rows = [
            [
                size,
                *(f"{row['accuracy'][way]:.3f}" for way in (MAJORITY, SUREST, WEIGHTED, CONFIDENT, JOINT)),
                _points(row["joint_over_majority"]),
                _points(row["joint_over_confident"]),
                f"{row['auroc'][0]:.3f}",
                f"{row['auroc_of_share'][0]:.3f} ({_points(row['auroc_over_share'])})",
                f"{row['ece'][0]:.3f}",
            ]
            for size, row in one["sizes"].items()
        ]
        over = ("joint over majority, points", "over the confident vote")
        head = ["answers", "majority", "surest", "weighted", "confident", "joint", *over, "AUROC of kept"]
        lines += [f"### {name}", "", _about(one), "", *markdown([*head, "of the share", "ECE"], rows), ""]
    return lines


def _about(one: dict[str, Any]) -> str:
    return (
        f"{one['questions']} problems; one answer is right with {one['accuracy_of_one']:.3f}; {one['unreadable']:.0%} "
        f"of the answers were cut or hold no number."
    )


def _stops(samples: dict[str, Any]) -> list[str]:
    lines = []
    for name, one in samples.items():
        rows = [
            [
                budget,
                f"{row['spent']:.1f}",
                f"{row['panel']:.3f}",
                *(f"{row['simple'][way]:.3f} ({_points(row['over_each'][way])})" for way in SIMPLE),
            ]
            for budget, row in one["budgets"].items()
        ]
        lines += [f"### {name}", "", *markdown(["mean answers", "spent", "panel", *SIMPLE], rows), ""]
    return lines


def _agent_rows(agents: dict[str, Any]) -> list[str]:
    rows = [
        [
            f"{name} ({row['agents']} agents, {row['questions']} questions)",
            *(f"{row['accuracy'][way][0]:.3f}" for way in PICKS),
            f"{row['accuracy']['kept'][0]:.3f}",
            f"{row['strongest_simple']}, {_points(row['kept_over'][row['strongest_simple']])}",
            f"{row['ece'][0]:.3f}",
        ]
        for name, row in agents.items()
    ]
    return markdown(["set", *PICKS, "panel", "strongest simple way, panel over it", "ECE"], rows)


def _points(gap: Sequence[float]) -> str:
    estimate, low, high = (100 * value for value in gap)
    return f"{estimate:+.1f} [{low:+.1f}, {high:+.1f}]"


def _one(value: float) -> str:
    return f"{100 * value:+.1f}"


if __name__ == "__main__":
    main()
