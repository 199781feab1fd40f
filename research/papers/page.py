"""The papers' numbers beside what was measured here: docs/measured/reproduction.json and docs/research/systems.md.

    python -m research.papers.page measure [PAPER ...]    # from the stores in recorded/ and docs/measured/
    python -m research.papers.page page

What every paper reports is in docs/paper_numbers/. Whatever stands there is either measured or listed with the reason
why not; tests/test_measured_pages.py holds the page against it.
"""

import dataclasses
import json
from collections import Counter
from typing import Any

import click

from research.blocks import columns, markdown, read_figures, write, write_figures
from research.papers.systems import PAPERS
from research.systems.figures import ROOT, cell

FIGURES = ROOT / "docs" / "measured" / "reproduction.json"
PAGE = ROOT / "docs" / "research" / "systems.md"
TITLES = {
    "monitor_generate_verify": "Monitor-Generate-Verify",
    "metacogagent": "MetaCogAgent",
    "metacrit": "MetaCrit",
    "early_token_confidence": "Early-token confidence in debate",
    "caelf": "CAELF",
}


@click.group()
def main() -> None:
    """Measure the papers' numbers, and write the page."""


@main.command()
@click.argument("names", nargs=-1, type=click.Choice(list(PAPERS)))
def measure(names: tuple[str, ...]) -> None:
    """Measure these papers' numbers again, or all; the others keep what was measured before."""
    found = read_figures(FIGURES)
    for name in names or PAPERS:
        paper = json.loads((ROOT / "docs" / "paper_numbers" / f"{name}.json").read_text(encoding="utf-8"))
        found[name] = dataclasses.asdict(PAPERS[name](paper))
        print(f"{name}: {len(found[name]['figures'])} numbers, {len(found[name]['missing'])} reasons")
        ordered = {name: found[name] for name in PAPERS if name in found}
        write_figures(FIGURES, ordered)


@main.command("page")
def write_page() -> None:
    """Write docs/research/systems.md, and its further tables, from what was measured."""
    found = read_figures(FIGURES)
    write(PAGE, "answer", [answer(found), ""])
    write(PAGE, "verdicts", [*verdicts(found), ""])
    documents = {
        "document": lambda name, section: f"[{TITLES[name]}](#{TITLES[name].lower().replace(' ', '-')})",
        "its models": lambda name, section: section["model"],
        "models here": lambda name, section: section["with_models"] or "-",
        "numbers measured": lambda name, section: sum(row["here"] is not None for row in section["figures"]),
        "reasons why others are not": lambda name, section: len(section["missing"]),
    }
    write(PAGE, "documents", [*columns(found.items(), documents), ""])
    claims = [(TITLES[name], row) for name, section in found.items() for row in section["figures"] if row["sign"]]
    rows = [[name, row["what"], row["paper"], shown(row), against(row), verdict(row)] for name, row in claims]
    write(PAGE, "directions", [*markdown(["document", "difference", *SIDES, "controlled", "verdict"], rows), ""])
    write(PAGE, "tables", [line for name, section in found.items() for line in lines_of(TITLES[name], section)])


SIDES = ("paper", "here")


def shown(row: dict[str, Any]) -> str:
    """Our number with its interval, in the form of the paper's."""
    return cell({"value": row["here"], "orders": row["orders"]} if row["here"] else None, row["form"])


def verdicts(found: dict[str, Any]) -> list[str]:
    """Returns the one table of the measured page: how many of each document's differences hold."""
    words = ("holds", "undecided", "falls to a control", "the other way round", "depends on the order")
    rows = []
    for name, section in found.items():
        told = Counter(verdict(row).strip("*") for row in section["figures"] if row["sign"])
        measured = sum(row["here"] is not None for row in section["figures"])
        rows.append([TITLES[name], str(measured), *(str(told[word]) for word in words), str(len(section["missing"]))])
    return markdown(["document", "numbers measured", *words, "not measured, with the reason"], rows)


def answer(found: dict[str, Any]) -> str:
    """Returns the first paragraph of the page."""
    rows = [row for section in found.values() for row in section["figures"]]
    said = Counter(verdict(row).strip("*") for row in rows if row["sign"])
    missing = sum(len(section["missing"]) for section in found.values())
    return (
        f"Of {said.total()} differences that the papers report and that small models could measure, {said['holds']} "
        f"hold here against every control, {said['undecided']} are undecided, and {said['falls to a control']} fall "
        "to a "
        f"control that the papers do not have. {said['the other way round']} go the other way round, "
        f"{said['depends on the order']} depend on the order of the items, and {said['not controlled']} could not be "
        f"controlled. {sum(row['here'] is not None for row in rows)} numbers stand beside the papers' own, and "
        f"{missing} could not be measured, each with "
        "its reason. In points of accuracy, Monitor-Generate-Verify gains "
        f"{control_of(found, 'monitor_generate_verify', 'its own first answer')} over its own first answer, and "
        f"MetaCogAgent {control_of(found, 'metacogagent', 'best agent alone')} over its best agent alone."
    )


def control_of(found: dict[str, Any], paper: str, name: str) -> str:
    """Returns our difference to a control, in the form of the first row of the paper that has it."""
    rows = ((row, control) for row in found[paper]["figures"] for control in row["controls"])
    row, control = next(pair for pair in rows if pair[1]["name"] == name)
    return shown({**row, **control, "orders": None})


def verdict(row: dict[str, Any]) -> str:
    """Says what holds of a claim: it stands only if its controlled differences do, and every order."""
    side = side_of(row, row)
    if side == 0:
        return "undecided"
    if not (row["controls"] or row["same"]):
        return "not controlled"
    if killers(row):
        return "**falls to a control**"
    orders = [one["orders"] for one in [row, *row["controls"]] if one["orders"]]
    if any(side * row["sign"] * order <= 0 for pair in orders for order in pair):
        return "depends on the order"
    return "holds" if side > 0 else "**the other way round**"


def killers(row: dict[str, Any]) -> list[str]:
    """The controls against which our difference is not shown to lie on the side where it lies by itself."""
    side = side_of(row, row)
    return [control["name"] for control in row["controls"] if side and side_of(control, row) != side]


def side_of(part: dict[str, Any], row: dict[str, Any]) -> int:
    """1 where the whole interval of `part` is on the paper's side of 0, -1 where it is on the other, 0 else."""
    _, low, high = (value * row["sign"] for value in part["here"])
    low, high = min(low, high), max(low, high)
    return 1 if low > 0 else -1 if high < 0 else 0


def against(row: dict[str, Any]) -> str:
    """Our difference against each control; in bold those that it falls to."""
    dead = killers(row)
    parts = []
    for control in row["controls"]:
        name = f"**{control['name']}**" if control["name"] in dead else control["name"]
        parts.append(f"{name}: {shown({**row, **control})}")
    return "; ".join(parts) or row["same"] or "-"


def lines_of(title: str, section: dict[str, Any]) -> list[str]:
    """One document's part of the page."""
    lines = [
        f"## {title}",
        "",
        f"{section['paper']}. {section['task']}".replace("<", "&lt;").strip(),
        "",
        *section["about"],
    ]
    if section["figures"]:
        rows = [
            [row["where"], row["what"], row["paper"], shown(row), "-" if row["here"] is None else f"{row['n']:,}"]
            for row in section["figures"]
        ]
        lines += ["", *markdown(["where", "what", "paper", "here", "n"], rows)]
    if section["missing"]:
        rows = [[row["where"], row["why"]] for row in section["missing"]]
        lines += ["", "Not measured:", "", *markdown(["number", "why not"], rows)]
    if section["doubts"]:
        lines += ["", "What the document itself leaves open or contradicts:", ""]
        lines += [f"- {doubt}" for doubt in section["doubts"]]
    return [*lines, ""]


if __name__ == "__main__":
    main()
