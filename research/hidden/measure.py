"""Measures how right and wrong answers differ, per model and task: collects, writes docs/research/probes.md.

    python -m research.hidden.measure collect --models MODELS --data DATA
    python -m research.hidden.measure measure
    python -m research.hidden.measure stated                   # from the stores in recorded/
    python -m research.hidden.measure page

MODELS holds `qwen-coder-0.5b/model.gguf` and `qwen-coder-1.5b/model.gguf`; SmolLM2-135M comes with its wheel. `collect`
resumes where it was stopped. `measure` keeps its numbers in docs/measured/probes.json, from which `page` makes the
tables, so that no number there is typed by hand.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

from metaprobe.eval.answer_table import answer_table
from metaprobe.eval.compare import add_details, method_results
from metaprobe.eval.metrics.bootstrap import cluster_weights
from metaprobe.eval.metrics.calibration import stated_calibration
from metaprobe.records.store import RunStore
from metaprobe.training.evidence import Evidence, load_evidence
from metaprobe.training.ladder import SURE
from metaprobe.training.methods import AFTER, BEFORE, BLEND, MEAN_LOGPROB
from metaprobe.training.study import crossfit, standard_methods
from research.blocks import ROOT, packed, read_figures, write, write_figures
from research.hidden.controls import over_strongest, says, with_joined
from research.hidden.tables import calibration, discrimination, efficiency, kinds

PAGE = ROOT / "docs" / "research" / "probes.md"
FIGURES = ROOT / "docs" / "measured" / "probes.json"

MODELS = {
    "smollm2-135m": "smollm2-135m",
    "qwen-coder-0.5b": "{models}/qwen-coder-0.5b/model.gguf",
    "qwen-coder-1.5b": "{models}/qwen-coder-1.5b/model.gguf",
}
TASKS = {
    "places": 1200,
    "arithmetic": 1300,
    "true-false": 1200,
    "creak": 1200,
    "factual-qa": 1200,
}
"""Task set -> items asked about, spread evenly over its dimensions and levels."""
MADE_HERE = ("arithmetic",)


@click.group()
def main() -> None:
    """Collect, measure, write the page."""


@main.command("collect")
@click.argument("names", nargs=-1)
@click.option("--models", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out/probes"))
def collect_command(names: tuple[str, ...], models: Path, data: Path, out: Path) -> None:
    """Collect MODEL-TASK stores: those named, or all."""
    for model, where in MODELS.items():
        for task, limit in TASKS.items():
            if names and f"{model}-{task}" not in names:
                continue
            line = [sys.executable, "-m", "metaprobe.cli", "collect", "self-report", "--variant", "p-true"]
            line += ["--task", task, "--limit", str(limit), "--llm", where.format(models=models)]
            line += ["--layers", "every:2", "--top-logprobs", "15"]
            line += [] if task in MADE_HERE else ["--data", str(data)]
            line += ["--batch-size", "64", "--concurrency", "256", "--out", str(out / f"{model}-{task}")]
            subprocess.run(line, check=True)


@main.command("measure")
@click.argument("names", nargs=-1)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out/probes"))
def measure_command(names: tuple[str, ...], out: Path) -> None:
    """Cross-fits every method on every store."""
    figures: dict[str, Any] = read_figures(FIGURES)
    for model in MODELS:
        stores = {task: out / f"{model}-{task}" for task in TASKS if (out / f"{model}-{task}").is_dir()}
        for task, store in stores.items():
            if names and f"{model}-{task}" not in names:
                continue
            click.echo(f"{model} on {task}", err=True)
            figures[f"{model}/{task}"] = measured(store, evidence_in(store))
            write_figures(FIGURES, figures, sort=True)


@main.command("stated")
@click.option("--runs", type=click.Path(file_okay=False, path_type=Path), default=ROOT / "recorded")
def stated_command(runs: Path) -> None:
    """Stated confidence as it was stated, of the stores that are there; needs no hidden states and no model."""
    figures = read_figures(FIGURES)
    for key, row in figures.items():
        store = runs / key.replace("/", "-")
        if "methods" not in row or not store.is_dir():
            continue
        table = answer_table(RunStore(store))
        # A handful of the measured answers is not recorded.
        if abs(len(table) / row["n"] - 1) > 0.01 or abs(float(table.y.mean()) - row["accuracy"]) > 0.01:
            raise click.ClickException(f"{store} holds other answers than those that were measured as {key}")
        found = stated_calibration(table.y, table.stated_confidence, cluster_weights(list(table.groups)))
        if found is not None:
            row["stated"] = {"mean": found.mean, "accuracy": found.accuracy, "ece": packed(found.ece), "n": found.ece.n}
    write_figures(FIGURES, figures, sort=True)


@main.command("page")
def page_command() -> None:
    """Write the tables of docs/research/probes.md from the numbers."""
    figures = read_figures(FIGURES)
    rows = {key: value for key, value in figures.items() if "methods" in value}
    beside = with_joined(figures)
    setting = ", ".join(f"{key.replace('/', ' on ')} ({row['tokens']:,} tokens)" for key, row in rows.items())
    write(
        PAGE, "setting", [f"Measured: {setting}. System `self-report`, variant `p-true`, every second layer kept.", ""]
    )
    write(PAGE, "discrimination", [*discrimination(beside), "", *says(beside), ""])
    larger = {key: row for key, row in beside.items() if key not in rows and "methods" in row}
    write(PAGE, "calibration", [*calibration(rows), "", *calibration(larger), ""])
    write(PAGE, "speed", [*speed(), ""])
    write(PAGE, "kinds", [*kinds(rows), ""])
    write(PAGE, "efficiency", [*efficiency(beside), ""])


def speed() -> list[str]:
    """Returns the figures of the two speed benchmarks."""
    found, kept = (read_figures(FIGURES.with_name(f"{name}.json")) for name in ("probes_speed", "capture"))
    rows, layers, width = found["states"]
    times = ", ".join(f"{name} {kept[name]['time']}" for name in ("plain again", "4 layers", "all layers"))
    peaks = ", ".join(f"{name} {kept[name]['peak_mb']} MB" for name in ("plain", "4 layers", "all layers"))
    return [
        f"- All layers' probes on ({rows}, {layers}, {width}), 5 folds x 3 penalties: {max(found['batched_s'])} s "
        f"against {found['scikit_learn_s']} s of scikit-learn layer by layer, {found['ratio']} times as fast "
        f"({found['ratio_scaled_once']} times where scikit-learn need not scale in each fold), AUROC within "
        f"{found['largest_auroc_difference']:.4f}; {found['threads']} thread(s).",
        f"- Keeping hidden states while generating ({kept['model']}, batch {kept['batch']}, prompts of about "
        f"{kept['prompt']} tokens, {kept['rounds']} rounds): time relative to plain: {times}; peak memory: {peaks}, "
        f"transformers' own `output_hidden_states` {kept['output_hidden_states']['peak_mb']} MB.",
    ]


def evidence_in(store: Path) -> Evidence:
    """Returns the answers of a store with their states."""
    evidence = load_evidence([store])
    assert evidence.states is not None, f"{store} holds no hidden states"
    return evidence


def measured(store: Path, evidence: Evidence) -> dict[str, Any]:
    """Cross-fits every method on the answers of a store, and returns their figures."""
    table, fits = (
        evidence.table,
        crossfit(evidence, standard_methods(evidence), on_step=lambda what: click.echo(f"  {what}", err=True)),
    )
    results = add_details(table, fits.methods, method_results(table, fits.methods))
    probes = {name: fits.probes[name] for name in (BEFORE, AFTER) if name in fits.probes}
    blend = next(one for one in results if one.name == BLEND)
    assert blend.controls is not None, "a learned method is held against the controls"
    return {
        "n": len(table),
        "groups": len(set(table.groups.tolist())),
        "accuracy": round(float(table.y.mean()), 4),
        "sure": SURE,
        "methods": {
            one.name: {
                "family": one.family,
                **{name: packed(getattr(one, name)) for name in ("auroc", "ece", "brier_skill", "aurc")},
                **({} if one.error_fall is None else {"error_fall": packed(one.error_fall)}),
                **({} if one.controls is None else {"over_strongest": over_strongest(one.controls)}),
            }
            for one in results
        },
        "over_mean_logprob": next(packed(c.difference) for c in blend.controls.controls if c.name == MEAN_LOGPROB),
        "chosen": {
            name: sorted({f"layer {p.layers[0]} at {p.position}" for p in of_folds})
            for name, of_folds in probes.items()
        },
        "selected": {
            name: float(np.mean([max(point.auroc for point in p.sweep) for p in of_folds]))
            for name, of_folds in probes.items()
        },
        "tokens": int(sum(call.usage.completion_tokens for run in RunStore(store) for call in run.calls)),
    }


if __name__ == "__main__":
    main()
