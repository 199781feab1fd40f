"""Writes docs/research/travel.md, and what labels buy in docs/train.md, from docs/measured/travel.json.

python -m research.travel.page
"""

from typing import Any

import click

from research.blocks import ROOT, markdown, older_ladder, read_figures, shown, signed, write

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
    write(PAGE, "travel-strangers", [*strangers(found["strangers"]), "", *older])
    write(PAGE, "travel-sets", [*sets(found["strangers"]), ""])
    write(PAGE, "travel-curve", [*curve(found["curve"]), ""])
    write(GUIDE, "labels", [*labels(found["curve"]), ""])
    write(PAGE, "travel-samples", [*samples(found["samples"]), ""])


def samples(found: dict[str, Any]) -> list[str]:
    """Returns, for each number, AUROC over all samples, gain over the scaled total, and AUROC among the samples of a
    problem."""
    lines = []
    for kind, one in found.items():
        lines += [
            f"Samples of {kind}: {one['answers']} of {one['problems']} problems; {one['right']:.0%} are right, "
            f"{one['cut']:.0%} were cut. {agreement(one['agreement'])}",
            "",
            *markdown(
                [
                    "number",
                    "AUROC",
                    "over the scaled total",
                    f"over the best free one ({one['best']})",
                    "AUROC within a problem",
                    f"over the best free one there ({one['best_within']})",
                ],
                [
                    [
                        name,
                        shown(row["auroc"]),
                        "" if name == "scaled total" else signed(row["gain"]),
                        "" if name == one["best"] else signed(row["over_best"]),
                        shown(row["within"]),
                        "" if name == one["best_within"] else signed(row["within_over_best"]),
                    ]
                    for name, row in one["numbers"].items()
                ],
            ),
            "",
        ]
    return lines[:-1]


def agreement(shares: dict[str, float]) -> str:
    """How many of the 15 others a sample agrees with, of those that were cut and those that ended."""
    parts = [f"one that {'was cut' if kind == 'cut' else kind} {share:.0%}" for kind, share in shares.items()]
    return f"Of the other samples of its problem, {' and '.join(parts)} have its number."


def strangers(found: dict[str, Any]) -> list[str]:
    """The mean over runs of every number, with a model left out and with a task left out."""
    rows = []
    for name, told in NAMES.items():
        row = [told]
        for where in ("model_left_out", "task_left_out"):
            numbers = found[where]["numbers"][name]
            row += [f"{numbers['auroc']:.3f}", signed(numbers["gain"]) if "gain" in numbers else ""]
        rows.append(row)
    count, others = found["model_left_out"], found["without_ranks"]
    ahead = [f"{signed(others['numbers'][name]['gain'])} over {NAMES[name]}" for name in ("mean", "lowest3", "length")]
    ranks = next(row for row in found["rows"] if row["name"].startswith("mu_shroom"))
    head = ["score", "its model left out: AUROC", "recipe less this", "its task left out: AUROC", "recipe less this"]
    return [
        f"{found['answers']} answers of {found['models'] - 1} models and of the 38 models of mu_shroom, which count as "
        f"one, to {found['tasks']} tasks. AUROC inside a run (model, "
        f"task, way of asking), mean over the {count['runs']} runs of {count['tasks']} tasks that have 15 right and 15 "
        "wrong answers; 95 % intervals draw tasks.",
        "",
        *markdown(head, rows),
        "",
        f"Without mu_shroom ({others['runs']} runs of {others['tasks']} tasks), its model left out, the recipe has "
        f"{', '.join(ahead)}. On mu_shroom alone length has {ranks['free']['length']:.3f} and the recipe "
        f"{ranks['default'][0]:.3f}.",
    ]


def sets(found: dict[str, Any]) -> list[str]:
    """Each source and model, by a fit without this model."""
    rows = [
        [
            row["name"],
            str(row["answers"]),
            f"{row['right']:.0%}",
            shown(row["default"]),
            f"{row['free']['mean']:.3f}",
            signed(row["over_mean"]),
            f"{row['best']} {row['free'][row['best']]:.3f}",
            signed(row["over_best"]),
            f"{row['six']:.3f}",
            f"{row['pooled']:.3f} / {row['pooled_mean']:.3f}",
            f"{row['ece']:.3f}",
        ]
        for row in found["rows"]
    ]
    head = [
        "source, model",
        "answers",
        "right",
        "recipe, within runs",
        "mean",
        "over the mean",
        "best free number, known afterwards",
        "over it",
        "six terms",
        "pooled: recipe / mean",
        "ECE without labels",
    ]
    return markdown(head, rows)


def curve(found: dict[str, Any]) -> list[str]:
    """Returns the gain from growing numbers of labels."""
    rows = []
    for count in sorted(found["counts"], key=int):
        cells = found["counts"][count]
        if count == "0":
            continue
        for way in WAYS:
            cell = cells[way]
            if not cell:
                rows.append([count, way, "nothing to split", "", "", "", ""])
                continue
            gain = signed(cell["over_mean"])
            rows.append(
                [
                    count,
                    way,
                    f"{cell['auroc']:.3f}",
                    gain,
                    f"{cell['within']:.3f}",
                    f"{cell['ece']:.3f}",
                    f"{cell['brier_skill']:.3f}",
                ]
            )
    none = found["counts"]["0"]
    head = ["labels", "way", "AUROC", "over the mean, first draw", "within runs and folds", "ECE", "Brier skill"]
    ours, mean = none["default"], none["mean"]
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
        ways = [
            found["counts"][count][way] for way in ("mean, Platt", "mean, base rates", "adapted default", "trained")
        ]
        rows.append([f"{int(count):,}", *(f"{cell['auroc']:.3f} / {cell['ece']:.3f}" for cell in ways)])
    mean = "mean log-probability, calibrated"
    return markdown(["labels", mean, "the same for each run", "`metaprobe adapt`", "`train quality`"], rows)


if __name__ == "__main__":
    page_command()
