"""Measures what the streaming gate sees and saves on the recorded runs, into docs/research/production.md.

    python -m research.production.gate measure
    python -m research.production.gate page

`measure` trains a gate on each store by the recipe of `metaprobe train gate`; the numbers are of held-out folds by
group, and are kept in docs/measured/gate.json.
"""

import tempfile
import warnings
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np

from metaprobe.checkpoints import UntrustedCheckpoint
from metaprobe.eval.gate_performance import interval_text
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval
from metaprobe.probes.features import features
from metaprobe.training.evidence import load_evidence
from metaprobe.training.ladder import fit_ladder
from metaprobe.training.options import GateOptions
from metaprobe.training.recipes import gate as recipe
from metaprobe.training.recipes.gate import SCHEMA, judge_gates, write_gate
from research.blocks import ROOT, markdown, read_figures, write, write_figures

PAGE = ROOT / "docs" / "research" / "production.md"
FIGURES = ROOT / "docs" / "measured" / "gate.json"
RUNS: dict[str, tuple[str, ...]] = {
    "SmolLM2-135M, MetaCog-Eval, 700 items": ("metacog-every-agent", "alpha"),
    "Qwen2.5-Coder-0.5B, MetaCog-Eval, 700 items": ("metacog-every-agent", "beta"),
    "Qwen2.5-Coder-1.5B, MetaCog-Eval, 700 items": ("metacog-every-agent", "gamma"),
    "Qwen2.5-Coder-0.5B, GSM8K, 200 problems, answers of Self-Refine": ("gsm8k-self-refine", ""),
    "Qwen2.5-Coder-0.5B, GSM8K, 1,000 problems with working": ("states/qwen-coder-0.5b/gsm8k", ""),
    "Qwen2.5-Coder-1.5B, GSM8K, 1,000 problems with working": ("states/qwen-coder-1.5b/gsm8k", ""),
}
"""Name of a measurement -> store in recorded/, and agent."""
RATES = (0.05, 0.1, 0.2, 0.3)


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
def measure_command() -> None:
    """Train a gate on each store; half a minute of one core."""
    figures = {title: measured(store, agent) for title, (store, agent) in RUNS.items()}
    write_figures(FIGURES, figures)


def measured(store: str, agent: str) -> dict[str, Any]:
    """The report of one gate, and the audits that it failed; `agent` is empty where the store has one only."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrustedCheckpoint)
        evidence = load_evidence([ROOT / "recorded" / store], stage="answer", agent=agent or None, hidden=False)
        options = GateOptions(out=Path(folder) / "gate", command="research/production/gate.py")
        checkpoint, report = write_gate(evidence, options)
    failed = [name for name, audit in checkpoint.manifest.audits.items() if not audit.passed]
    return {"report": asdict(report), "failed": failed, "by_the_mean": by_the_mean(store, agent)}


def by_the_mean(store: str, agent: str) -> dict[str, Any]:
    """Measures the same recipe with the mean log-probability alone: it stays at the first step at every look.

    Shares of the good and of the bad answers that are stopped, of both gates, and their difference, by the rate.
    """
    evidence = load_evidence([ROOT / "recorded" / store], stage="answer", agent=agent or None, hidden=False)
    table, X = evidence.table, features(SCHEMA, list(evidence.table.logprobs))
    gates = [judge_gates(evidence, X, alphas=RATES)[0].fired]
    with mock.patch.object(recipe, "fit_ladder", partial(fit_ladder, climb=False)):
        gates.append(judge_gates(evidence, X, alphas=RATES)[0].fired)
    found = {}
    for alpha in sorted(gates[0].keys() & gates[1].keys()):
        stopped = [(fired[alpha] > 0).astype(float) for fired in gates]
        found[f"{alpha:g}"] = {
            name: [
                float(stopped[0][rows].mean()),
                float(stopped[1][rows].mean()),
                asdict(mean_interval((stopped[0] - stopped[1])[rows], cluster_weights(table.groups[rows].tolist()))),
            ]
            for name, rows in (("good", table.y == 1), ("bad", table.y == 0))
        }
    return found


@main.command("page")
def page_command() -> None:
    """Write the section of docs/research/production.md from the numbers."""
    lines: list[str] = []
    for title, found in read_figures(FIGURES).items():
        audits = f"failed audits: {', '.join(found['failed'])}" if found["failed"] else "all audits passed"
        told = gate_markdown(found["report"])
        lines += [f"### {title}", "", *told, f"- {audits}.", "", *beside_the_mean(found["by_the_mean"]), ""]
    write(PAGE, "gate", lines)


def gate_markdown(report: dict[str, Any]) -> list[str]:
    """Returns the numbers as Markdown tables."""
    looks = markdown(
        ["tokens seen", "answers that long", "AUROC", "mean log-probability of them", "gain", "finished answer"],
        [
            [
                str(look["look"]),
                f"{look['share']:.0%}",
                interval(look["auroc"]),
                interval(look["mean_logprob"]),
                interval(look["gain"], "+.3f"),
                interval(look["full"]),
            ]
            for look in report["looks"]
        ],
    )
    head = ["promised", "good answers stopped", "bad answers stopped", "at token (median)", "stopped answers are"]
    head += ["accuracy", "over replacing as many at random, points", "tokens a question"]
    head += ["saved against giving up the same ones finished", "saved against the full predictor"]
    rates = markdown(
        head,
        [
            [
                f"{rate['alpha']:g}",
                interval(rate["false_alarms"], ".1%"),
                interval(rate["bad_stopped"], ".1%"),
                "-" if np.isnan(rate["median_look"]) else format(rate["median_look"], ".0f"),
                use["use"],
                f"{use['accuracy_before']:.1%} -> {interval(use['accuracy'], '.1%')}",
                interval(use["over_random"], "+.1f", 100),
                interval(use["tokens"], ".1f"),
                interval(use["saved"], ".1%"),
                interval(use["saved_full"], ".1%"),
            ]
            for rate in report["rates"]
            for use in rate["uses"]
        ],
    )
    return [*looks, "", *rates, "", *(f"- {assumption}" for assumption in report["assumptions"])]


def interval(value: dict[str, Any], form: str = ".3f", scale: float = 1.0) -> str:
    """Returns a kept interval as the package writes intervals in its own tables."""
    return interval_text(Interval(**value), form, scale)


def beside_the_mean(found: dict[str, Any]) -> list[str]:
    """Compares with the same recipe that stays at the mean."""
    rows = []
    for alpha, shares in found.items():
        cells = []
        for name in ("good", "bad"):
            ours, mean, gap = shares[name]
            low, high = (100 * gap[end] for end in ("low", "high"))
            cells += [f"{ours:.1%}", f"{mean:.1%}", f"{100 * gap['estimate']:+.1f} [{low:+.1f}, {high:+.1f}]"]
        rows.append([alpha, *cells])
    if not rows:
        return ["No rate is allowed in every fold, so nothing is stopped by either."]
    head = ["promised", "good stopped", "by the mean alone", "points", "bad stopped", "by the mean alone", "points"]
    return markdown(head, rows)


if __name__ == "__main__":
    main()
