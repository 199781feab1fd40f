"""Writes docs/research/travel.md, and what labels buy in docs/train.md, from docs/measured/travel.json.

python -m research.travel.page
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import click

from research.blocks import ROOT, columns, markdown, older_ladder, read_figures, shown, signed, write

MEASURED = ROOT / "docs" / "measured" / "travel.json"
PAGE = ROOT / "docs" / "research" / "travel.md"
GUIDE = ROOT / "docs" / "train.md"
NAMES = {
    "default": "bundled recipe",
    "ladder": "ladder with its steps, no trees",
    "six terms": "six terms, fitted",
    "mean": "mean log-probability",
    "min": "lowest log-probability",
    "total": "total log-probability",
    "lowest3": "mean of the three lowest",
    "first": "first log-probability",
    "length": "length, either way round",
}
WAYS = ("adapted default", "trained", "mean, Platt", "mean, base rates", "six terms", "trees alone")


@click.command("page")
def page_command() -> None:
    """Writes the blocks of the page."""
    found = read_figures(MEASURED)
    older = older_ladder({"the ladder with its steps": found["strangers"]})
    write(PAGE, "travel-answer", [answer(found["strangers"]), ""])
    write(PAGE, "travel-strangers", [*strangers(found["strangers"]), "", *older])
    write(PAGE, "travel-numbers", [*every_number(found["strangers"]), ""])
    write(PAGE, "travel-sets", [*sets(found["strangers"]), ""])
    write(PAGE, "travel-curve", [*curve(found["curve"]), ""])
    write(GUIDE, "labels", [*labels(found["curve"]), ""])
    write(PAGE, "travel-samples", [*samples(found["samples"]), ""])


def answer(found: dict[str, Any]) -> str:
    """Returns the first paragraph of the page."""
    numbers = found["model_left_out"]["numbers"]

    def over(name: str) -> str:
        return signed(numbers[name]["gain"])

    return (
        "On a model left out, the free number *scaled total* (the sum of the log-probabilities over the root of their "
        f"count) has AUROC {numbers['default']['auroc']:.3f} within runs: {over('mean')} over the mean, "
        f"{over('total')} over the total, {over('ladder')} over the ladder that fits steps, {over('six terms')} over "
        "six fitted terms. So the bundled predictor is this number and no more. It flags nothing until it has been "
        "adapted with some fifty to two hundred labels, because scores do not show how often a new model is right."
    )


def samples(found: dict[str, Any]) -> list[str]:
    """Returns, for each number, AUROC over all samples, gain over the scaled total, and AUROC among the samples of a
    problem."""
    lines = []
    for kind, one in found.items():
        best, inside = one["best"], one["best_within"]
        rows = [
            [
                name,
                shown(row["auroc"]),
                "" if name == "scaled total" else signed(row["gain"]),
                "" if name == best else signed(row["over_best"]),
                shown(row["within"]),
                "" if name == inside else signed(row["within_over_best"]),
            ]
            for name, row in one["numbers"].items()
        ]
        head = ["number", "AUROC", "over the scaled total", f"over the best free one ({best})"]
        agree = " and ".join(
            f"one that {'was cut' if ended == 'cut' else ended} {share:.0%}"
            for ended, share in one["agreement"].items()
        )
        lines += [
            f"Samples of {kind}: {one['answers']} of {one['problems']} problems; {one['right']:.0%} are right, "
            f"{one['cut']:.0%} were cut. Of the other samples of its problem, {agree} have its number.",
            "",
            *markdown([*head, "AUROC within a problem", f"over the best free one there ({inside})"], rows),
            "",
        ]
    return lines[:-1]


def strangers(found: dict[str, Any]) -> list[str]:
    """Says on how many answers the numbers were compared, and what the recipe gains without mu_shroom."""
    count, others = found["model_left_out"], found["without_ranks"]
    ahead = [f"{signed(others['numbers'][name]['gain'])} over {NAMES[name]}" for name in ("mean", "lowest3", "length")]
    ranks = next(row for row in found["rows"] if row["name"].startswith("mu_shroom"))
    return [
        f"{found['answers']} answers of {found['models'] - 1} models and of the 38 models of mu_shroom, which count as "
        f"one, to {found['tasks']} tasks. AUROC inside a run (model, "
        f"task, way of asking), mean over the {count['runs']} runs of {count['tasks']} tasks that have 15 right and 15 "
        "wrong answers; 95 % intervals draw tasks.",
        "",
        f"Without mu_shroom ({others['runs']} runs of {others['tasks']} tasks), its model left out, the recipe has "
        f"{', '.join(ahead)}. On mu_shroom alone length has {ranks['free']['length']:.3f} and the recipe "
        f"{ranks['default'][0]:.3f}.",
    ]


def every_number(found: dict[str, Any]) -> list[str]:
    """Returns the mean over runs of every number, with a model left out and with a task left out."""
    rows = []
    for name, told in NAMES.items():
        row = [told]
        for where in ("model_left_out", "task_left_out"):
            numbers = found[where]["numbers"][name]
            row += [f"{numbers['auroc']:.3f}", signed(numbers["gain"]) if "gain" in numbers else ""]
        rows.append(row)
    head = ["score", "its model left out: AUROC", "recipe less this", "its task left out: AUROC", "recipe less this"]
    return markdown(head, rows)


def sets(found: dict[str, Any]) -> list[str]:
    """Each source and model, by a fit without this model."""
    cells: dict[str, Callable[[dict[str, Any]], object]] = {
        "source, model": lambda row: row["name"],
        "answers": lambda row: row["answers"],
        "right": lambda row: f"{row['right']:.0%}",
        "recipe, within runs": lambda row: shown(row["default"]),
        "mean": lambda row: f"{row['free']['mean']:.3f}",
        "over the mean": lambda row: signed(row["over_mean"]),
        "best free number, known afterwards": lambda row: f"{row['best']} {row['free'][row['best']]:.3f}",
        "over it": lambda row: signed(row["over_best"]),
        "six terms": lambda row: f"{row['six']:.3f}",
        "pooled: recipe / mean": lambda row: f"{row['pooled']:.3f} / {row['pooled_mean']:.3f}",
        "ECE without labels": lambda row: f"{row['ece']:.3f}",
    }
    return columns([(row,) for row in found["rows"]], cells)


def curve(found: dict[str, Any]) -> list[str]:
    """Returns the gain from growing numbers of labels."""
    counts, rows = found["counts"], []
    for count, way in product(sorted(counts.keys() - {"0"}, key=int), WAYS):
        if cell := counts[count][way]:
            auroc, *others = (f"{cell[key]:.3f}" for key in ("auroc", "within", "ece", "brier_skill"))
            rows.append([count, way, auroc, signed(cell["over_mean"]), *others])
        else:
            rows.append([count, way, "nothing to split", "", "", "", ""])
    head = ["labels", "way", "AUROC", "over the mean, first draw", "within runs and folds", "ECE", "Brier skill"]
    ours, mean = counts["0"]["default"], counts["0"]["mean"]
    return [
        f"{found['answers']} answers of {found['set']}, five folds by question, mean of {found['draws']} draws of "
        f"labels. Without labels the recipe has AUROC {ours['auroc']:.3f} pooled and {ours['within']:.3f} within runs, "
        f"the mean log-probability {mean['auroc']:.3f} and {mean['within']:.3f}: {signed(ours['within_over_mean'])} "
        "within runs.",
        "",
        *markdown(head, rows),
    ]


def labels(found: dict[str, Any]) -> list[str]:
    """The same in short, for who wonders how many labels are wanted."""
    rows = []
    for count in ("50", "200", "1000"):
        cells = (
            found["counts"][count][way] for way in ("mean, Platt", "mean, base rates", "adapted default", "trained")
        )
        rows.append([f"{int(count):,}", *(f"{cell['auroc']:.3f} / {cell['ece']:.3f}" for cell in cells)])
    mean = "mean log-probability, calibrated"
    return markdown(["labels", mean, "the same for each run", "`metaprobe adapt`", "`train quality`"], rows)


if __name__ == "__main__":
    page_command()
