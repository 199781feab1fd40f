"""The adapter probe against frozen linear probes on the same split, per model and task; for docs/research/probes.md.

    python -m research.hidden.measure collect --models MODELS --data DATA
    python -m research.hidden.adapter measure
    python -m research.hidden.adapter page

The base is the model that answered. One training a task, on the first of five outer folds (`adapter_roles`): the other
methods are fitted in the same roles and measured on the same test rows. `measure` resumes an unfinished training.
"""

import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from metaprobe.eval.compare import Judged, auroc_gain, method_results
from metaprobe.probes.adapter import AdapterProbe, JudgementTime
from metaprobe.training.adapter import AdapterSettings, adapter_roles, write_adapter
from metaprobe.training.evidence import load_evidence
from metaprobe.training.methods import AFTER, BEFORE, HiddenProbeMethod
from metaprobe.training.text_data import load_texts
from metaprobe.training.training_options import AdapterOptions
from research.blocks import markdown, packed, read_figures, shown, write, write_figures
from research.hidden.measure import FIGURES, MODELS, PAGE, TASKS

ADAPTER = FIGURES.with_name("adapter.json")
NAMES: dict[JudgementTime, tuple[str, str]] = {
    "before": ("adapter, before", BEFORE),
    "after": ("adapter, answer", AFTER),
}
MEAN = "mean log-probability"


@click.group()
def main() -> None:
    """Measure, write the table."""


@main.command("measure")
@click.argument("names", nargs=-1)
@click.option("--models", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out/probes"))
@click.option("--epochs", default=2, show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="bfloat16", show_default=True)
def measure_command(names: tuple[str, ...], models: Path, out: Path, epochs: int, dtype: Any) -> None:
    """Train an adapter on each store MODEL-TASK: those named, or all that are there."""
    figures: dict[str, Any] = read_figures(ADAPTER)
    settings = AdapterSettings(epochs=epochs, dtype=dtype, batch_size=16, lr=4e-4, evaluations=2, max_length=256)
    for model, where in MODELS.items():
        for task in TASKS:
            store = out / f"{model}-{task}"
            if not store.is_dir() or (names and store.name not in names):
                continue
            click.echo(store.name, err=True)
            figures[f"{model}/{task}"] = measured(
                store, where.format(models=models), settings, out / f"adapter-{store.name}"
            )
            write_figures(ADAPTER, figures, sort=True)


def measured(store: Path, llm: str, settings: AdapterSettings, checkpoint: Path) -> dict[str, Any]:
    """AUROC on the test rows of both ways, and what the adapter adds, paired."""
    started = time.monotonic()
    options = AdapterOptions(out=checkpoint, llm=llm, on_step=lambda what: click.echo(f"  {what}", err=True))
    made = write_adapter([store], options, settings)
    assert made is not None
    minutes = (time.monotonic() - started) / 60
    data, evidence = load_texts([store]), load_evidence([store])
    assert data.table.call_ids.tolist() == evidence.table.call_ids.tolist()
    roles = adapter_roles(data.table, seed=settings.seed)
    table = data.table.rows(roles.test)
    judged = [_judged(MEAN, np.array([np.mean(values) for values in table.logprobs]))]
    probe = AdapterProbe.load(checkpoint)
    for when, (adapter, frozen) in NAMES.items():
        answers = [data.answers[row] for row in roles.test] if when == "after" else None
        judged.append(_judged(adapter, probe.probability([data.prompts[row] for row in roles.test], answers)))
        states = evidence.states
        assert states is not None
        positions = tuple(p for p in states.positions if (p == "prompt_last") == (when == "before"))
        fitted = HiddenProbeMethod(frozen, positions).fit(evidence, roles, seed=settings.seed)
        judged.append(_judged(frozen, fitted.score(roles.test)))
    by_name = {method.name: method for method in judged}
    return {
        "n": len(table),
        "groups": len(set(table.groups.tolist())),
        "learned_from": len(roles.learning),
        "accuracy": float(table.y.mean()),
        "auroc": {result.name: packed(result.auroc) for result in method_results(table, judged)},
        "gain": {when: packed(auroc_gain(table, by_name[a], by_name[f])) for when, (a, f) in NAMES.items()},
        "steps": made.manifest.contract["steps"],
        "minutes": round(minutes, 1),
        "settings": {"rank": settings.rank, "epochs": settings.epochs, "dtype": settings.dtype, "lr": settings.lr},
    }


def _judged(name: str, scores: np.ndarray) -> Judged:
    return Judged(name, "learned", 1 / (1 + np.exp(-scores)), scores, 1.0)


@main.command("page")
def page_command() -> None:
    """Write the table into docs/research/probes.md."""
    figures = read_figures(ADAPTER)
    names = [MEAN, *(name for pair in NAMES.values() for name in pair)]
    head = ["model, task", "test answers", "learned from", *names, "adapter over probe, before", "on the answer"]
    head += ["minutes of training"]
    lines = [
        [
            key.replace("/", ", "),
            f"{row['n']} ({row['groups']})",
            f"{row['learned_from']}",
            *(shown(row["auroc"][name], ".2f") for name in names),
            *(shown(row["gain"][when], "+.2f") for when in NAMES),
            f"{row['minutes']:.0f}",
        ]
        for key, row in figures.items()
    ]
    write(PAGE, "adapter", [*markdown(head, lines), ""])


if __name__ == "__main__":
    main()
