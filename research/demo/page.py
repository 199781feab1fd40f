"""Writes the numbers of a finished demo into docs/research/demo.md and README.md: no number there is typed by hand.

    metaprobe demo && python -m research.demo.page keep out/demo/report --clock-s SETUP ANSWERS REST --beside "..."
    python -m research.demo.page page

`keep` takes the report's tables and its flags into docs/measured/demo.json, from which `page` writes.
"""

import csv
import json
import re
from pathlib import Path
from typing import Any

import click

from metaprobe.eval.compare import BEST_BASELINE
from metaprobe.eval.controls import FITTED, STATED
from metaprobe.eval.metrics.calibration import DEFAULT_BINS
from metaprobe.eval.results import CONTROL_FAMILIES
from metaprobe.training.methods import AFTER, BEFORE, BLEND, LADDER, MEAN_LOGPROB
from metaprobe.training.recipes.all_of_runs import FLAGS_FILE
from metaprobe.training.taught_by_samples import TAUGHT
from research.blocks import ROOT, Row, keep_figures, markdown, read_figures, spread, write

LEARNED = (TAUGHT, LADDER, BEFORE, AFTER, BLEND)
PAGE, README = ROOT / "docs" / "research" / "demo.md", ROOT / "README.md"
FIGURES = ROOT / "docs" / "measured" / "demo.json"
TABLES = ("methods", "controls", "layers", "accuracy", "audits")
JOINED_WORDS = "words and log-probabilities"

Tables = dict[str, Any]


@click.group()
def main() -> None:
    """Keep the tables, write the pages."""


@main.command("keep")
@click.argument("report", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--clock-s", nargs=3, type=float, required=True, help="Seconds: set-up, answers, training and report.")
@click.option("--beside", required=True, help="What else ran on the machine meanwhile, for the page.")
def keep_command(report: Path, clock_s: tuple[float, float, float], beside: str) -> None:
    """Keep the tables and the flags in the folder REPORT."""
    figures: dict[str, Any] = {name: read(report / "tables" / f"{name}.csv") for name in TABLES}
    figures["about"] = {row["key"]: row["value"] for row in read(report / "tables" / "provenance.csv")}
    figures["flags"] = json.loads((report / FLAGS_FILE).read_text(encoding="utf-8"))
    figures["clock_s"] = dict(zip(("set-up", "answers", "training and report"), clock_s, strict=True))
    figures["beside"] = beside
    keep_figures(FIGURES, figures, "default", sort=False)


@main.command("page")
def page_command() -> None:
    """Write the blocks from the tables that were kept."""
    figures = read_figures(FIGURES)["default"]
    write(PAGE, "answer", [answer(figures), ""])
    write(PAGE, "flags", ["```text", *figures["flags"]["table"], "```", "", *took(figures), ""])
    write(PAGE, "not-shown", [*not_shown(figures), ""])
    write(PAGE, "demo-results", in_full(figures, figures["about"]))
    write(README, "demo", ["```text", *figures["flags"]["table"], "```", ""])


def answer(tables: Tables) -> str:
    """The page in three sentences: what was caught, with which signal, and what the other signals are worth."""
    auroc = {row["method"]: spread(row, "auroc") for row in tables["methods"]}
    flags, about = tables["flags"], tables["about"]
    used = flags["method"]
    kept, right = len(flags["answers"]) - flags["found"] - flags["lost"], flags["cost"]["n"]
    return (
        f"On {len(flags['answers'])} answers of {about['model']} that nothing was fitted to, the flag of the exported "
        f"checkpoint ({used}) finds {flags['found']} of {flags['mistakes']} mistakes and costs {flags['lost']} of "
        f"{right} right answers; of the {kept} that it keeps {(right - flags['lost']) / kept:.0%} are right. "
        f"On questions left out its AUROC is {auroc[used]}. Stated confidence has {auroc[STATED]}, the mean "
        f"log-probability {auroc[MEAN_LOGPROB]}, and the score that samples teach without a label {auroc[TAUGHT]}."
    )


def took(figures: Tables) -> list[str]:
    """Returns how long the recorded run took, in its parts, and what ran beside it."""
    seconds = figures["clock_s"]
    minutes, rest = divmod(round(sum(seconds.values())), 60)
    parts = ", ".join(f"{part} {taken:.0f} s" for part, taken in seconds.items())
    return [f"The recorded run took {minutes} min {rest:02d} from a fresh clone ({parts}). {figures['beside']}"]


def not_shown(tables: Tables) -> list[str]:
    """Returns the figures that limit what the demo shows, as a list."""
    auroc = {row["method"]: spread(row, "auroc") for row in tables["methods"]}
    used = tables["flags"]["method"]
    learned = BLEND if used == JOINED_WORDS else used
    held = [row for row in tables["controls"] if (row["method"], row["pairs"]) == (learned, "all answers")]
    beaten = sum(float(row["beaten"]) > 0 for row in held)
    own = {row["control"]: spread(row, "difference", signed=True) for row in held}
    taught = [row for row in tables["controls"] if (row["method"], row["pairs"]) == (TAUGHT, "all answers")]
    numbers = [row for row in tables["methods"] if row["family"] == "log-probability" and row["method"] not in FITTED]
    free = max(numbers, key=lambda row: float(row["auroc"]))
    shown = any(row["control"] == free["method"] and float(row["beaten"]) for row in taught)
    over = {row["control"]: spread(row, "difference", signed=True) for row in taught}
    answers = tables["flags"]["answers"]
    mistakes = [one for one in answers if not one["right"]]
    named = [one for one in mistakes if re.search(rf"\b{re.escape(one['gold'])}\b", one["answer"], re.IGNORECASE)]
    wrong = len(mistakes) / len(answers)
    return [
        f"- **The words of the answer tell much of it.** A plain predictor of words and log-probabilities, from the "
        f"same labels, has {auroc[JOINED_WORDS]}: some wrong answers only repeat the place. {learned.capitalize()} has "
        f"{auroc[learned]}, {own[JOINED_WORDS]} over it, and is shown to beat {beaten} of {len(held)} controls.",
        f"- **Without labels the order gains little.** What samples teach has {auroc[TAUGHT]}, {over[MEAN_LOGPROB]} "
        f"over the mean log-probability. The strongest free number ({free['method']}) has {auroc[free['method']]}, and "
        f"what samples teach is {'' if shown else 'not '}shown to beat it.",
        f"- **Most answers are wrong** ({wrong:.0%}), so the flag marks most of them. A model that answers better has "
        "fewer mistakes to find, and each flag is less often right.",
        f"- **The truth is what a program reads.** {len(named)} of the {len(mistakes)} mistakes hold the right country "
        f"beside other words, and count as wrong; {sum(one['flagged'] for one in named)} of them are flagged.",
    ]


def strongest_control(methods: list[Row]) -> str:
    """Returns the name of the control with the highest AUROC."""
    controls = [row for row in methods if row["family"] in CONTROL_FAMILIES and row["method"] != BEST_BASELINE]
    return max(controls, key=lambda row: float(row["auroc"]))["method"]


def over_strongest(method: Row, tables: Tables, usual: str) -> str:
    """Returns the gain over the strongest control that the method is held against, named where it is not the usual."""
    gain, held = spread(method, "diff_control", signed=True), (method["method"], "all answers")
    first = next((row["control"] for row in tables["controls"] if (row["method"], row["pairs"]) == held), usual)
    return gain if first == usual else f"{gain} (over {first})"


def in_full(tables: Tables, about: Row) -> list[str]:
    """The section of docs/research/demo.md."""
    methods, controls = tables["methods"], tables["controls"]
    rate = next(row for row in tables["accuracy"] if row["dimension"] == "all")
    intro = (
        f"Model {about['model']} ({about['dtype']}), {about['items']} places in {about['groups']} groups, "
        f"{about['answers']} answers ({float(rate['accuracy']):.1%} right). Every answer is judged by models "
        f"that saw no answer of its group (5 outer folds); intervals are of 95 %, by a bootstrap over groups."
    )
    stated = next(row for row in methods if row["method"] == STATED)
    page = [intro, "", "## Methods", "", *table(tables), ""]
    page += [
        f"The expected calibration error of {STATED} ({DEFAULT_BINS} bins of equal mass) is "
        f"{spread(stated, 'ece_stated')} as stated and {spread(stated, 'ece')} recalibrated.",
        "",
    ]
    page += ["## Against every control", "", *against_controls(controls), "", *differences(controls), ""]
    page += ["## Layers", "", *places(tables["layers"]), "", "## Accuracy", "", *cells(tables["accuracy"]), ""]
    passed = {row["name"]: "passed" if int(row["passed"]) else "**failed**" for row in tables["audits"]}
    page += ["## Audits", "", *(f"- {passed[row['name']]}: {row['name']}: {row['detail']}" for row in tables["audits"])]
    return [*page, "", "## Provenance", "", *(f"- {key}: {value}" for key, value in about.items()), ""]


def against_controls(controls: list[Row]) -> list[str]:
    """A point a learned method: whether it beats every control, and by the hardest one; pooled and within runs."""
    said = []
    for name in dict.fromkeys(row["method"] for row in controls if row["method"] in LEARNED):
        parts = []
        for pairs in dict.fromkeys(row["pairs"] for row in controls):
            mine = [row for row in controls if (row["method"], row["pairs"]) == (name, pairs)]
            parts.append(f"over {pairs} {beats(mine)}" if pairs == "all answers" else f"{pairs} {beats(mine)}")
        said.append(f"- **{name}** {'; '.join(parts)}.")
    return said


def beats(rows: list[Row]) -> str:
    """Compares one method on one kind of pairs with its controls, the strongest first."""
    first, standing = rows[0], [row for row in rows if not float(row["beaten"])]
    gain = f"{spread(first, 'difference', signed=True)} AUROC to the strongest, {first['control']}"
    if not standing:
        return f"beats each of the {len(rows)} controls singly ({gain})"
    names = ", ".join(row["control"] for row in standing)
    return f"is not shown to beat {names} ({gain})"


def differences(controls: list[Row]) -> list[str]:
    """Every learned method against every control."""
    rows = [
        [
            row["method"],
            row["pairs"],
            row["control"],
            f"{float(row['auroc']):.3f}",
            spread(row, "difference", signed=True),
            f"{float(row['p_holm']):.3f}",
            "yes" if float(row["beaten"]) else "no",
        ]
        for row in controls
        if row["method"] in LEARNED
    ]
    return markdown(["method", "over", "control", "its AUROC", "difference", "p, Holm", "beaten"], rows)


def places(layers: list[Row]) -> list[str]:
    """A line a probe: what its folds chose, and what its checkpoint reads."""
    said = []
    for probe in dict.fromkeys(row["probe"] for row in layers):
        mine = [row for row in layers if row["probe"] == probe]
        chosen = sorted((row for row in mine if int(row["folds"])), key=lambda row: -int(row["folds"]))
        folds = ", ".join(f"layer {row['layer']} at {row['position']} in {row['folds']}" for row in chosen)
        ships = [f"layer {row['layer']} at {row['position']}" for row in mine if row["shipped"] == "1"]
        said.append(
            f"- {probe}: chosen by the folds: {folds}; the checkpoint reads {ships[0] if ships else 'unknown'}."
        )
    return [*said, "", "A checkpoint chooses once more, on the learning part of all groups, by the rule of the folds."]


def read(path: Path) -> list[Row]:
    """The rows of one table."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table(tables: Tables) -> list[str]:
    """The method table."""
    methods, strongest = tables["methods"], strongest_control(tables["methods"])
    head = ["method", "kind", "AUROC", "within runs", "vs stated confidence", f"vs strongest control ({strongest})"]
    rest = {"auprc": "AUPRC", "ece_stated": "ECE, as stated", "ece": "ECE, recalibrated"}
    rest |= {"brier_skill": "Brier skill", "aurc": "AURC"}
    rows = [
        [
            row["method"],
            row["family"],
            spread(row, "auroc"),
            spread(row, "within_runs"),
            spread(row, "diff_stated", signed=True),
            over_strongest(row, tables, strongest),
            *(spread(row, metric) for metric in rest),
        ]
        for row in methods
    ]
    return markdown([*head, *rest.values()], rows)


def cells(accuracy: list[Row]) -> list[str]:
    """Accuracy by dimension and level, a column a variant."""
    variants = list(dict.fromkeys(row["variant"] for row in accuracy))
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in accuracy:
        shown = f"{float(row['accuracy']):.2f} (n = {row['n']})"
        found.setdefault((row["dimension"], row["level"]), {})[row["variant"]] = shown
    rows = [[*cell, *(by.get(variant, "-") for variant in variants)] for cell, by in found.items()]
    return markdown(["dimension", "level", *variants], rows)


if __name__ == "__main__":
    main()
