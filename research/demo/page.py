"""Writes the numbers of a finished demo into docs/research/demo.md, so that no number there is typed by hand.

    metaprobe demo && python -m research.demo.page keep out/demo/report
    metaprobe demo --limit 700 --out out/all && python -m research.demo.page keep out/all/report --as all
    python -m research.demo.page page

`keep` takes the report's tables into docs/measured/demo.json, from which `page` writes. With the figures of all
questions beside those of the default, the page says which conclusions are the same.
"""

import csv
from pathlib import Path
from typing import Any

import click

from metaprobe.eval.compare import BEST_BASELINE
from metaprobe.eval.controls import STATED
from metaprobe.eval.metrics.calibration import DEFAULT_BINS
from metaprobe.eval.results import CONTROL_FAMILIES
from metaprobe.training.ladder import SURE
from metaprobe.training.methods import AFTER, BEFORE, BLEND, LADDER, MEAN_LOGPROB
from research.blocks import ROOT, Row, keep_figures, markdown, older_ladder, read_figures, spread, write

LEARNED = (LADDER, BEFORE, AFTER, BLEND)
PAGE = ROOT / "docs" / "research" / "demo.md"
FIGURES = ROOT / "docs" / "measured" / "demo.json"
TABLES = ("methods", "controls", "layers", "accuracy", "audits")

Tables = dict[str, list[Row]]


@click.group()
def main() -> None:
    """Keep the tables, write the pages."""


@main.command("keep")
@click.argument("report", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--as", "which", type=click.Choice(["default", "all"]), default="default")
@click.option("--clock-s", nargs=3, type=float, help="Seconds by the clock: set-up, answers, training and report.")
def keep_command(report: Path, which: str, clock_s: tuple[float, float, float] | None) -> None:
    """Keep the tables in the folder REPORT."""
    figures: dict[str, Any] = {name: read(report / "tables" / f"{name}.csv") for name in TABLES}
    figures["sure"] = SURE
    figures["about"] = {row["key"]: row["value"] for row in read(report / "tables" / "provenance.csv")}
    if clock_s:
        figures["clock_s"] = dict(zip(("set-up", "answers", "training and report"), clock_s, strict=True))
    keep_figures(FIGURES, figures, which, sort=False)


@main.command("page")
def page_command() -> None:
    """Write the answer and the section from the tables that were kept."""
    kept = read_figures(FIGURES)
    figures = kept["default"]
    seconds = figures["clock_s"]
    minutes, rest = divmod(round(sum(seconds.values())), 60)
    parts = ", ".join(f"{part} {taken:.0f} s" for part, taken in seconds.items())
    taken = [
        f"From a fresh clone, on two quiet cores without AMX, it took {minutes} min {rest:02d}: {parts}. With AMX, "
        "which multiplies bfloat16, it was not timed."
    ]
    write(PAGE, "answer", [answer(figures), ""])
    older = older_ladder({"`make demo`": figures, "the column of all questions": kept["all"]})
    write(PAGE, "same", [*same(figures, kept["all"]), "", *older, *taken, ""])
    write(PAGE, "methods", [*in_short(figures), ""])
    write(PAGE, "demo-results", in_full(figures, figures["about"]))


def answer(tables: Tables) -> str:
    """The page in three sentences."""
    auroc = {row["method"]: spread(row, "auroc") for row in tables["methods"]}
    pooled = [row for row in tables["controls"] if row["pairs"] == "all answers" and row["method"] in LEARNED]
    beaten = [
        name
        for name in dict.fromkeys(row["method"] for row in pooled)
        if all(float(row["beaten"]) for row in pooled if row["method"] == name)
    ]
    others = [name for name in dict.fromkeys(row["method"] for row in pooled) if name not in beaten]
    return (
        f"What the model states about its own confidence distinguishes right from wrong answers with an AUROC of "
        f"{auroc[STATED]}, and the mean log-probability, which costs nothing, with {auroc[MEAN_LOGPROB]}. "
        f"Of the learned methods, {' and '.join(f'*{name}*' for name in beaten) or 'none'} "
        f"beat{'s' if len(beaten) < 2 else ''} every control"
        + "".join(f", with {auroc[name]}" for name in beaten[:1])
        + f". This is not shown for {'; '.join(f'*{name}*' for name in others)}: a free number may do as well."
    )


def same(default: Tables, every: Tables) -> list[str]:
    """Returns the conclusions of the default run beside those of all questions, by their paired intervals."""
    runs = default, every
    rows = []
    for name in (MEAN_LOGPROB, BLEND):
        gains = [next(row for row in run["methods"] if row["method"] == name) for run in runs]
        rows.append([f"{name}, over {STATED}", *(spread(gain, "diff_stated", signed=True) for gain in gains)])
    pooled = [
        [row for row in run["controls"] if (row["method"], row["pairs"]) == (BLEND, "all answers")] for run in runs
    ]
    for row in pooled[0]:
        beside = next((other for other in pooled[1] if other["control"] == row["control"]), None)
        if row is pooled[0][0] or row["control"] == MEAN_LOGPROB:
            told = "not held against it" if beside is None else spread(beside, "difference", signed=True)
            rows.append([f"{BLEND}, over {row['control']}", spread(row, "difference", signed=True), told])
    beaten = [f"{sum(float(row['beaten']) > 0 for row in run)} of {len(run)}" for run in pooled]
    rows.append([f"controls that the {BLEND} is shown to beat", *beaten])
    about = [f"{run['about']['items']} questions in {run['about']['groups']} groups" for run in runs]
    return markdown(["AUROC ahead by", f"`make demo`: {about[0]}", f"all: {about[1]}"], rows)


def in_short(tables: Tables) -> list[str]:
    """Returns the one table of the measured page: each method beside the strongest control."""
    usual = strongest_control(tables["methods"])
    rows = [[row["method"], spread(row, "auroc"), over_strongest(row, tables, usual)] for row in tables["methods"]]
    return markdown(["method", "AUROC", f"over the strongest control ({usual})"], rows)


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
        f"Model {about['model']} ({about['dtype']}), MetaCog-Eval, {about['items']} items in {about['groups']} groups, "
        f"{about['answers']} answers (direct: {float(rate['accuracy']):.1%} right). Every answer is judged by models "
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
