"""Measures what the streaming gate sees and saves on the recorded runs, into docs/research/production.md.

    python -m research.production.gate measure
    python -m research.production.gate page

`measure` trains a gate on each store by the recipe of `metaprobe train gate`; the numbers are of held-out folds by
group, and are kept in docs/measured/gate.json.
"""

import tempfile
import warnings
from collections.abc import Callable
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
from metaprobe.training.recipes.gate import GATE_SCHEMA, judge_gates, write_gate
from research.blocks import ROOT, columns, markdown, points, read_figures, write, write_figures

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
    table, X = evidence.table, features(GATE_SCHEMA, list(evidence.table.logprobs))
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
        rows = []
        for alpha, shares in found["by_the_mean"].items():
            rows.append([alpha])
            for ours, mean, gap in (shares["good"], shares["bad"]):
                rows[-1] += [f"{ours:.1%}", f"{mean:.1%}", points([gap[end] for end in ("estimate", "low", "high")])]
        head = ["promised", "good stopped", "by the mean alone", "points", "bad stopped", "by the mean alone", "points"]
        none = ["No rate is allowed in every fold, so nothing is stopped by either."]
        beside = markdown(head, rows) if rows else none
        lines += [f"### {title}", "", *told, f"- {audits}.", "", *beside, ""]
    write(PAGE, "gate", lines)


def gate_markdown(report: dict[str, Any]) -> list[str]:
    """Returns the numbers as Markdown tables."""
    looks: dict[str, Callable[..., object]] = {
        "tokens seen": lambda look: look["look"],
        "answers that long": lambda look: f"{look['share']:.0%}",
        "AUROC": lambda look: interval(look["auroc"]),
        "mean log-probability of them": lambda look: interval(look["mean_logprob"]),
        "gain": lambda look: interval(look["gain"], "+.3f"),
        "finished answer": lambda look: interval(look["full"]),
    }
    rates: dict[str, Callable[..., object]] = {
        "promised": lambda rate, use: f"{rate['alpha']:g}",
        "good answers stopped": lambda rate, use: interval(rate["false_alarms"], ".1%"),
        "bad answers stopped": lambda rate, use: interval(rate["bad_stopped"], ".1%"),
        "at token (median)": lambda rate, use: "-" if np.isnan(rate["median_look"]) else f"{rate['median_look']:.0f}",
        "stopped answers are": lambda rate, use: use["use"],
        "accuracy": lambda rate, use: f"{use['accuracy_before']:.1%} -> {interval(use['accuracy'], '.1%')}",
        "over replacing as many at random, points": lambda rate, use: interval(use["over_random"], "+.1f", 100),
        "tokens a question": lambda rate, use: interval(use["tokens"], ".1f"),
        "saved against giving up the same ones finished": lambda rate, use: interval(use["saved"], ".1%"),
        "saved against the full predictor": lambda rate, use: interval(use["saved_full"], ".1%"),
    }
    uses = [(rate, use) for rate in report["rates"] for use in rate["uses"]]
    tables = [*columns([(look,) for look in report["looks"]], looks), "", *columns(uses, rates)]
    return [*tables, "", *(f"- {assumption}" for assumption in report["assumptions"])]


def interval(value: dict[str, Any], form: str = ".3f", scale: float = 1.0) -> str:
    """Returns a kept interval as the package writes intervals in its own tables."""
    return interval_text(Interval(**value), form, scale)


if __name__ == "__main__":
    main()
