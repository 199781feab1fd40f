"""Writes the figures of a finished demo into README.md and docs/demo.md, so that no number there is typed by hand.

make demo && python benchmarks/demo_results.py out/demo/report
"""

import csv
import re
from pathlib import Path

import click

ROOT = Path(__file__).parent.parent

Row = dict[str, str]


@click.command()
@click.argument("report", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(report: Path) -> None:
    """Rewrite both files from the tables in the folder REPORT."""
    methods, accuracy, choices, audits = (
        read(report / "tables" / f"{name}.csv") for name in ("methods", "accuracy", "choices", "audits")
    )
    about = {row["key"]: row["value"] for row in read(report / "tables" / "provenance.csv")}
    rate = next(row for row in accuracy if row["dimension"] == "all")
    intro = (
        f"Model {about['model']} ({about['dtype']}), MetaCog-Eval, {about['items']} items in {about['groups']} groups, "
        f"{about['answers']} answers (direct: {float(rate['accuracy']):.1%} right). Every answer is judged by models "
        f"that saw no answer of its group (5 outer folds); intervals are of 95 %, by a bootstrap over groups."
    )
    more = (
        "The best plain baseline is chosen in each fold on selection data; another one may do better on these answers. "
        "More, and what did not work: [docs/demo.md](docs/demo.md)."
    )
    write(ROOT / "README.md", "demo-results", [intro, "", *table(methods, short=True), "", more, ""])
    page = [intro, "", "### Methods", "", *table(methods), "", "### Accuracy", "", *cells(accuracy), ""]
    page += ["### Direct, or step by step", "", *policies(choices), "", "### Audits", ""]
    page += [f"- {'passed' if int(row['passed']) else '**failed**'}: {row['name']}: {row['detail']}" for row in audits]
    page += ["", "### Provenance", "", *(f"- {key}: {value}" for key, value in about.items()), ""]
    write(ROOT / "docs" / "demo.md", "demo-results", page)


def write(path: Path, name: str, lines: list[str]) -> None:
    """Replace what stands between the markers of that name."""
    mark = re.compile(rf"(<!-- {name}:.*? -->\n).*?(<!-- /{name} -->)", re.S)
    text, count = mark.subn(lambda m: m[1] + "\n" + "\n".join(lines) + m[2], path.read_text(encoding="utf-8"))
    if count != 1:
        raise click.ClickException(f"{path.name} has lost its {name} markers")
    path.write_text(text, encoding="utf-8")


def read(path: Path) -> list[Row]:
    """The rows of one table."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def spread(row: Row, name: str, *, signed: bool = False) -> str:
    """An estimate with its interval."""
    if not row[name]:
        return "-"
    style = "+.3f" if signed else ".3f"
    estimate, low, high = (float(row[key]) for key in (name, f"{name}_low", f"{name}_high"))
    return f"{estimate:{style}} [{low:{style}}, {high:{style}}]"


def table(methods: list[Row], *, short: bool = False) -> list[str]:
    """The method table; the short one has AUROC and its differences only."""
    head = ["method", "kind", "AUROC", "vs stated confidence", "vs best plain baseline"]
    rows = [
        [
            row["method"],
            row["family"],
            spread(row, "auroc"),
            spread(row, "diff_stated", signed=True),
            spread(row, "diff_baseline", signed=True),
            *([] if short else [spread(row, m) for m in ("auprc", "ece", "brier_skill", "aurc")]),
        ]
        for row in methods
    ]
    return markdown(head if short else [*head, "AUPRC", "ECE (debiased)", "Brier skill", "AURC"], rows)


def cells(accuracy: list[Row]) -> list[str]:
    """Accuracy by dimension and level, a column a variant."""
    variants = list(dict.fromkeys(row["variant"] for row in accuracy))
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in accuracy:
        shown = f"{float(row['accuracy']):.2f} (n = {row['n']})"
        found.setdefault((row["dimension"], row["level"]), {})[row["variant"]] = shown
    rows = [[*cell, *(by.get(variant, "-") for variant in variants)] for cell, by in found.items()]
    return markdown(["dimension", "level", *variants], rows)


def policies(choices: list[Row]) -> list[str]:
    """What each policy reaches, at what price."""
    rows = [
        [
            row["policy"],
            spread(row, "accuracy"),
            f"{float(row['tokens_per_question']):.1f}",
            f"{float(row['step_by_step']):.0%}",
        ]
        for row in choices
    ]
    return markdown(["policy", "accuracy", "tokens a question", "step by step"], rows)


def markdown(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""
    return ["| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows]]


if __name__ == "__main__":
    main()
