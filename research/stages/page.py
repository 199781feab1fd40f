"""What the learned stages are worth on the recorded runs; writes a section of research/stages/README.md.

    python -m research.stages.page measure
    python -m research.stages.page page

Five outer folds by problem, five seeds of them; every number is of problems that a head was not fitted on. Numbers
stand in docs/measured/stages.json, so that no number on the page is typed by hand. A minute or two.
"""

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval
from metaprobe.training.crossfit.evidence import load_runs
from research.blocks import markdown, write
from research.stages.data import Critics, Cycles, StageData
from research.stages.play import SEEDS
from research.stages.read import stage_data
from research.stages.train import DEFAULT_PRICE, PointStudy, study_stages
from research.stages.ways import LEARNED, ORACLE, RANDOM, SHUFFLED

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "research" / "stages" / "README.md"
FIGURES = ROOT / "docs" / "measured" / "stages.json"
STORES = {
    "gsm8k-mgv": "Monitor-Generate-Verify on GSM8K, Qwen2.5-Coder-0.5B",
    "gsm8k-self-refine": "Self-Refine on GSM8K, Qwen2.5-Coder-0.5B",
    "gsm8k-self-verification": "Self-Verification on GSM8K, Qwen2.5-Coder-0.5B",
    "creak-metacrit": "MetaCrit on CREAK, Qwen2.5-Coder-0.5B",
}
FOLDS = 5
STEPS = {"iterate": "cycles", "select": "answers", "budget": "max_tokens", "regulate": "critics heard"}
HEADINGS = {
    "iterate": "iterate: is another cycle worth it?",
    "select": "select: which of the answers is returned, once all are there?",
    "budget": "budget: how long may an answer get?",
    "regulate": "regulate: which critics are heard before the synthesis?",
}


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
def measure_command() -> None:
    """Every head and every simple way, on every store."""
    figures = {}
    for name in STORES:
        click.echo(name, err=True)
        data = stage_data(load_runs([ROOT / "recorded" / name]))
        figures[name] = measured(data)
    FIGURES.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def measured(data: StageData) -> dict[str, Any]:
    studies = study_stages(data, token_price=DEFAULT_PRICE, folds=FOLDS, seeds=SEEDS)
    return {
        "problems": len(data),
        "groups": len(set(data.groups)),
        "folds": FOLDS,
        "seeds": SEEDS,
        "token_price": DEFAULT_PRICE,
        "cut": int((data.ran < data.cycles).sum()) if isinstance(data, Cycles) else 0,
        "steps": marginal(data),
        "points": {point: {**_ways(study, data), "used": study.used} for point, study in studies.items()},
    }


def _ways(study: PointStudy, data: StageData) -> dict[str, Any]:
    weights = cluster_weights(list(data.groups))
    mine = study.ways[LEARNED]
    found: dict[str, Any] = {}
    for way, played in study.ways.items():
        found[way] = {
            "accuracy": packed(mean_interval(played.correct, weights)),
            "tokens": packed(mean_interval(played.tokens, weights)),
            "steps": float(played.steps.mean()),
            "value": packed(mean_interval(played.value(DEFAULT_PRICE), weights)),
            "learned_more_accurate_by": packed(mean_interval(mine.correct - played.correct, weights)),
            "learned_of_more_value_by": packed(study.gains[way]) if way != LEARNED else None,
        }
    return {"ways": found}


def marginal(data: StageData) -> list[dict[str, Any]]:
    """What each step changes in the answer at hand, whoever decides; of the problems that got as far."""
    if isinstance(data, Critics):
        names = ["synthesis over A1's answer", "monitor over none", "control over the monitor alone"]
        chain, far = [data.first, *data.correct.T], [np.ones(len(data), dtype=bool)] * len(names)
    elif isinstance(data, Cycles):
        names = [f"cycle {t + 1} over cycle {t}" for t in range(1, data.cycles)]
        chain, far = list(data.correct.T), list(data.went_on.T)
    else:
        return []  # its answers are given at once
    found = []
    for name, before, after, on in zip(names, chain[:-1], chain[1:], far, strict=True):
        change, weights = (after - before)[on], cluster_weights([data.groups[i] for i in np.flatnonzero(on)])
        found.append(
            {
                "step": name,
                "gain": packed(mean_interval(change, weights)),
                "fixed": float((change > 0).mean()),
                "broken": float((change < 0).mean()),
            }
        )
    return found


def packed(value: Interval) -> list[float]:
    return [value.estimate, value.low, value.high]


@main.command("page")
def page_command() -> None:
    """Write the section of docs/research/routing.md from the numbers."""
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    lines = verdicts(figures)
    for name, found in figures.items():
        for point, study in found["points"].items():
            lines += ["", f"### {name}, {HEADINGS[point]}", "", *table(point, study["ways"])]
    write(PAGE, "stages", [*lines, ""])


def verdicts(figures: dict[str, Any]) -> list[str]:
    lines = []
    for name, found in figures.items():
        lines += [
            f"{STORES[name]}: {found['problems']} problems in {found['groups']} groups, {found['folds']} outer folds "
            f"by group, {found['seeds']} seeds, {found['token_price']:g} of accuracy for 1,000 tokens."
            + (f" {found['cut']} problems were ended by the paper's rule: there every way stops." * (found["cut"] > 0)),
            "",
        ]
        for point, study in found["points"].items():
            lines.append(f"- `{point}`: {verdict(study)}")
        rows = [
            [
                step["step"],
                spread([100 * x for x in step["gain"]], "+.1f"),
                f"{100 * step['fixed']:.1f}",
                f"{100 * step['broken']:.1f}",
            ]
            for step in found["steps"]
        ]
        lines.append("")
        if rows:
            lines += [*markdown(["step", "more right answers, points", "fixed", "broken"], rows), ""]
    return lines[:-1]


def verdict(study: dict[str, Any]) -> str:
    """What won, in words, and how much there was to win."""
    ways = study["ways"]
    rivals = {way: one for way, one in ways.items() if way not in (LEARNED, ORACLE, SHUFFLED, RANDOM)}
    best = max(rivals, key=lambda way: rivals[way]["value"][0])
    room = -ways[ORACLE]["learned_of_more_value_by"][0]
    mine = f"value {ways[LEARNED]['value'][0]:.3f}, accuracy {ways[LEARNED]['accuracy'][0]:.3f}"
    theirs = f"'{best}' {rivals[best]['value'][0]:.3f}, {rivals[best]['accuracy'][0]:.3f}"
    if study["used"]:
        return f"**used.** Head: {mine}; best simple way: {theirs}. The oracle is {room:.3f} of value above the head."
    as_good = [way for way, one in rivals.items() if one["learned_of_more_value_by"][1] <= 0]
    return (
        f"**not used**, the paper's rule decides. Head: {mine}; best simple way: {theirs}. As good as the head or "
        f"better: {', '.join(as_good)}. The oracle is {room:.3f} of value above the head."
    )


def table(point: str, ways: dict[str, Any]) -> list[str]:
    head = ["way", "accuracy", "tokens", STEPS[point], "learned more accurate by, points", "learned of more value by"]
    rows = []
    for way, one in sorted(ways.items(), key=lambda named: (named[0] != LEARNED, -named[1]["value"][0])):
        against = ["", ""]
        if way != LEARNED:
            points = [100 * x for x in one["learned_more_accurate_by"]]
            against = [spread(points, "+.1f"), spread(one["learned_of_more_value_by"], "+.4f")]
        rows.append([way, spread(one["accuracy"], ".3f"), f"{one['tokens'][0]:.0f}", f"{one['steps']:.2f}", *against])
    return markdown(head, rows)


def spread(value: list[float], form: str) -> str:
    estimate, low, high = (format(x, form) for x in value)
    return f"{estimate} [{low}, {high}]"


if __name__ == "__main__":
    main()
