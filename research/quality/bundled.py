"""Measures what the recipe of `bundled:quality` knows beyond its controls, pooled and within runs;
docs/research/travel.md.

    python -m research.quality.bundled measure      # out-of-fold scores of the recorded runs: minutes of one core
    python -m research.quality.bundled page         # writes the table from docs/measured/bundled_controls.json

The folds are those of `research/stores/bundle.py quality`, so that the numbers are those of its card.
"""

from typing import Any

import click

from metaprobe.checkpoints.rendered_table import p_cell
from metaprobe.eval.compare import run_of_answers
from metaprobe.eval.controls import FITTED, free_controls
from metaprobe.eval.metrics.bootstrap import against_controls, cluster_weights, interval
from metaprobe.eval.metrics.ranked import MetricFunction, StratifiedAuroc, auroc
from metaprobe.training.methods import LogprobLadder
from metaprobe.training.recipes.train_quality import load_heads
from metaprobe.training.study import crossfit, standard_methods
from research.blocks import ROOT, markdown, packed, read_figures, shown, signed, write, write_figures

MEASURED = ROOT / "docs" / "measured" / "bundled_controls.json"
PAGE = ROOT / "docs" / "research" / "travel.md"
RESAMPLES = 1000
COLUMNS = ("control", *(f"{where}: {what}" for where in ("pooled", "within runs") for what in ("AUROC", "gain", "p")))


@click.group()
def main() -> None:
    """The bundled quality predictor against its controls."""


@main.command()
def measure() -> None:
    """Measures, and stores the numbers."""
    from research.stores import bundle  # which stores it learns from

    stores = [ROOT / name for name in f"{bundle.ANSWERS} {bundle.SHORT} {bundle.FAMILIES}".split()]
    evidence = load_heads(stores, ["correct"])["correct"]
    ladder = LogprobLadder(new_tasks=True)
    methods = [m for m in standard_methods(evidence, ladder=ladder) if m.name in (ladder.name, *FITTED)]
    fits = crossfit(evidence, methods, on_step=lambda what: click.echo(what, err=True))
    table, score = evidence.table, fits[ladder.name].ranking
    controls = free_controls(table) | {m.name: fits[m.name].ranking for m in methods if m is not ladder}
    weights = cluster_weights(table.groups.tolist(), RESAMPLES)
    runs = run_of_answers(table)

    def against(metric: MetricFunction) -> dict[str, Any]:
        own = interval(metric, table.y, score, weights)
        found = against_controls(table.y, score, controls, weights, metric=metric)
        return {
            "interval": [round(own.low, 3), round(own.high, 3)],
            "estimate": round(found.estimate, 3),
            "controls": {
                one.name: {
                    "estimate": round(one.estimate, 3),
                    "gain": packed(one.difference, 3),  # of the recipe's value less the control's
                    "p_holm": float(f"{one.p_holm:.2g}"),
                    "beaten": one.beaten,
                }
                for one in found.controls
            },
        }

    found = {
        "answers": len(table),
        "groups": len(set(table.groups.tolist())),
        "runs": int(runs.max()) + 1,
        "pooled": against(auroc),
        "within": against(StratifiedAuroc(runs)),
    }
    write_figures(MEASURED, found)


@main.command("page")
def page_command() -> None:
    """Writes the blocks from the stored numbers."""
    found = read_figures(MEASURED)
    write(PAGE, "bundled-controls", [summary(found), ""])
    write(PAGE, "bundled-every-control", [*every_control(found), ""])


def summary(found: dict[str, Any]) -> str:
    """Says what the recipe of `quality` reaches, and which controls it is not shown to beat within runs."""
    controls = found["within"]["controls"]
    held = [name for name, control in controls.items() if not control["beaten"]]
    own = [shown([where["estimate"], *where["interval"]]) for where in (found["pooled"], found["within"])]
    return (
        f"Out of fold, on {found['answers']:,} answers in {found['groups']:,} groups and {found['runs']} runs, the "
        f"recipe of `quality` reaches AUROC {own[0]} pooled and {own[1]} within runs. Within runs it beats "
        f"{len(controls) - len(held)} of {len(controls)} controls after Holm"
        f"{', and is not shown to beat ' + ', '.join(held) if held else ''}."
    )


def every_control(found: dict[str, Any]) -> list[str]:
    """Returns the table of the controls, the strongest within runs first."""
    pooled, within = found["pooled"], found["within"]
    rows = []
    for name, inside in within["controls"].items():
        rows.append([name])
        for control in (pooled["controls"][name], inside):
            rows[-1] += [f"{control['estimate']:.3f}", signed(control["gain"]), p_cell(control["p_holm"]).text]
    return markdown(COLUMNS, rows)


if __name__ == "__main__":
    main()
