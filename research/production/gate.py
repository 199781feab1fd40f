"""What the streaming gate sees and saves on the recorded runs, into docs/research/production.md.

    python -m research.production.gate measure
    python -m research.production.gate page

`measure` trains a gate on each store by the recipe of `metaprobe train gate`; the numbers are of held-out folds by
group, and are kept in docs/measured/gate.json.
"""

import json
import tempfile
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from metaprobe.checkpoints import UntrustedCheckpoint
from metaprobe.eval.gate_performance import GateReport, LookResult, RateResult, UseResult, gate_markdown
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.training.gate.train import write_gate
from research.blocks import write

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "research" / "production.md"
FIGURES = ROOT / "docs" / "measured" / "gate.json"
RUNS: dict[str, tuple[str, ...]] = {
    "SmolLM2-135M, MetaCog-Eval, 700 items": ("metacog-every-agent", "alpha"),
    "Qwen2.5-Coder-0.5B, MetaCog-Eval, 700 items": ("metacog-every-agent", "beta"),
    "Qwen2.5-Coder-1.5B, MetaCog-Eval, 700 items": ("metacog-every-agent", "gamma"),
    "Qwen2.5-Coder-0.5B, GSM8K, 200 problems, answers of Self-Refine": ("gsm8k-self-refine", ""),
}
"""What is measured -> store in recorded/, and agent."""


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
def measure_command() -> None:
    """Train a gate on each store; half a minute of one core."""
    figures = {title: measured(store, agent) for title, (store, agent) in RUNS.items()}
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def measured(store: str, agent: str) -> dict[str, Any]:
    """The report of one gate, and the audits that it failed; `agent` is empty where the store has one only."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrustedCheckpoint)
        checkpoint, report = write_gate(
            Path(folder) / "gate",
            [ROOT / "recorded" / store],
            stage="answer",
            agent=agent or None,
            command="research/production/gate.py",
        )
    failed = [name for name, audit in checkpoint.manifest.audits.items() if not audit.passed]
    return {"report": asdict(report), "failed": failed}


@main.command("page")
def page_command() -> None:
    """Write the section of docs/research/production.md from the numbers."""
    lines: list[str] = []
    for title, found in json.loads(FIGURES.read_text(encoding="utf-8")).items():
        audits = f"failed audits: {', '.join(found['failed'])}" if found["failed"] else "all audits passed"
        told = gate_markdown(report_of(found["report"])).splitlines()
        lines += [f"### {title}", "", *told, f"- {audits}.", ""]
    write(PAGE, "gate", lines)


def report_of(found: dict[str, Any]) -> GateReport:
    """A report as `dataclasses.asdict` and JSON left it."""
    looks = [LookResult(**with_intervals(look)) for look in found["looks"]]
    rates = [
        RateResult(
            **with_intervals({name: value for name, value in rate.items() if name != "by_task"})
            | {"uses": tuple(UseResult(**with_intervals(use)) for use in rate["uses"])},
            by_task=with_intervals(rate.get("by_task", {})),
        )
        for rate in found["rates"]
    ]
    return GateReport(tuple(looks), tuple(rates), tuple(found["assumptions"]))


def with_intervals(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of one row, its intervals as such again."""
    return {name: Interval(**value) if isinstance(value, dict) else value for name, value in row.items()}


if __name__ == "__main__":
    main()
