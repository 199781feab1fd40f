"""The papers' numbers beside what was measured here: docs/measured/reproduction.json and docs/research/reproduction.md.

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

from research.blocks import markdown, write
from research.papers.systems import PAPERS
from research.systems.figures import ROOT

FIGURES = ROOT / "docs" / "measured" / "reproduction.json"
PAGE = ROOT / "docs" / "research" / "reproduction.md"
GUIDE = ROOT / "docs" / "research" / "systems.md"
TITLES = {
    "monitor_generate_verify": "Monitor-Generate-Verify",
    "metacogagent": "MetaCogAgent",
    "metacrit": "MetaCrit",
    "early_token_confidence": "Early-token confidence in debate",
    "caelf": "CAELF",
}
HEAD = """\
This page shows each number of the five documents that could be measured with models of this machine, the paper's
beside ours. Below each table it lists the numbers that cannot be measured, or have not been, with the reason.
`research/papers/page.py` writes it from the runs in `recorded/` and the papers' numbers in `docs/paper_numbers/`; no
number on it is typed by hand.

**How to read it.** The papers ran far larger models, mostly behind APIs, in one run without intervals. Our models are
small, and where a paper's items were not published, they are rebuilt from its description. A lower number therefore
does not show that a result cannot be repeated: only the *order* of methods and the *direction* of effects can be
compared. Intervals are 95 % intervals from a bootstrap over groups; differences are paired on the items. MetaCogAgent
learns from earlier items, so its numbers are means over ten shuffled orders (seeds 0 to 9), with the smallest and the
largest order in parentheses. [The systems](../../systems.md) explains how each system is built, and what a paper leaves
open.
"""
CLAIMS = """## Directions

The table lists every difference that a document reports and that could be measured. Beside it are the controls that
could explain the difference, with our difference against each. A program derives the verdict from the intervals, and
from the ten shuffled orders where the order of the items matters (in parentheses are the smallest and the largest
single order). [The measurement](../systems.md) describes the controls.

- *holds*: our whole interval is on the paper's side of 0, and so are every order and every controlled difference;
- *the other way round*: all of these are on the other side;
- *undecided*: our interval contains 0;
- *falls to a control*: our difference is on one side of 0, but the difference to the controls in bold is not;
- *depends on the order*: some order is not on the same side as the mean over the orders.

Where no control is named, both sides are equal in everything except what is claimed, as is said there.

The rows of MetaCogAgent share one set of four comparisons of its full system: their verdicts are one finding and not
ten. Of a part that an ablation takes away they do not say that it brings nothing, but that the whole is no better than
its best agent. Rows with TruthfulQA in their names are the paper's; here they were measured on CREAK.
"""


@click.group()
def main() -> None:
    """Measure the papers' numbers, and write the page."""


@main.command()
@click.argument("names", nargs=-1, type=click.Choice(list(PAPERS)))
def measure(names: tuple[str, ...]) -> None:
    """Measure these papers' numbers again, or all; the others keep what was measured before."""
    found = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    for name in names or PAPERS:
        paper = json.loads((ROOT / "docs" / "paper_numbers" / f"{name}.json").read_text(encoding="utf-8"))
        found[name] = dataclasses.asdict(PAPERS[name](paper))
        print(f"{name}: {len(found[name]['figures'])} numbers, {len(found[name]['missing'])} reasons")
        ordered = {name: found[name] for name in PAPERS if name in found}
        FIGURES.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


@main.command("page")
def write_page() -> None:
    """Write docs/research/reproduction.md, and its further tables, from what was measured."""
    found = json.loads(FIGURES.read_text(encoding="utf-8"))
    write(PAGE, "answer", [answer(found), ""])
    write(PAGE, "verdicts", [*verdicts(found), ""])
    write(PAGE, "tables", page(found))
    write(GUIDE, "claims", [*in_short(found), ""])


def verdicts(found: dict[str, Any]) -> list[str]:
    """Returns the one table of the measured page: how many of each document's differences hold."""
    words = ("holds", "undecided", "falls to a control", "the other way round", "depends on the order")
    rows = []
    for name, section in found.items():
        told = Counter(verdict(row).strip("*") for row in section["figures"] if row["sign"])
        measured = sum(row["here"] is not None for row in section["figures"])
        rows.append([TITLES[name], str(measured), *(str(told[word]) for word in words), str(len(section["missing"]))])
    return markdown(["document", "numbers measured", *words, "not measured, with the reason"], rows)


def in_short(found: dict[str, Any]) -> list[str]:
    """Returns the one table of the page of systems: each difference with the first control that it falls to."""
    rows = []
    for name, section in found.items():
        for row in (row for row in section["figures"] if row["sign"] and row["form"] == "points"):
            dead = killers(row)
            control = next((one for one in row["controls"] if one["name"] in dead), None)
            against = f"{control['name']}: {shown({**row, **control, 'orders': None})}" if control else "-"
            here = shown({**row, "orders": None})
            rows.append([TITLES[name], row["what"], row["paper"], here, against, verdict(row).strip("*")])
    return markdown(["document", "difference", "paper", "here", "falls to", "verdict"], rows)


def page(found: dict[str, Any]) -> list[str]:
    """Returns the page of further tables."""
    rows = [
        [
            f"[{TITLES[name]}](#{TITLES[name].lower().replace(' ', '-')})",
            section["model"],
            section["with_models"] or "-",
            str(sum(row["here"] is not None for row in section["figures"])),
            str(len(section["missing"])),
        ]
        for name, section in found.items()
    ]
    head = ["document", "its models", "models here", "numbers measured", "reasons why others are not"]
    parts = [HEAD, *markdown(head, rows), "", CLAIMS, *claims(found), ""]
    for name, section in found.items():
        parts += lines_of(TITLES[name], section)
    return parts


def answer(found: dict[str, Any]) -> str:
    """The page in three sentences."""
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
        "its reason."
    )


def claims(found: dict[str, Any]) -> list[str]:
    """All claims, with a verdict that follows from the intervals alone."""
    rows = [
        [TITLES[name], row["what"], row["paper"], shown(row), against(row), verdict(row)]
        for name, section in found.items()
        for row in section["figures"]
        if row["sign"]
    ]
    return markdown(["document", "difference", "paper", "here", "controlled", "verdict"], rows)


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


def shown(row: dict[str, Any]) -> str:
    """Our number with its interval, in the form of the paper's."""
    if row["here"] is None:
        return "-"
    scale, form = {"percent": (100, "{:.1f}%"), "points": (100, "{:+.1f}"), "count": (1, "{:,.0f}")}.get(
        row["form"], (1, "{:+.3f}" if row["form"] == "difference" else "{:.3f}")
    )
    estimate, low, high = (form.format(value * scale) for value in row["here"])
    around = "" if row["form"] == "count" else f" [{low}, {high}]"
    first, last = (form.format(value * scale) for value in row["orders"] or (0, 0))
    return estimate + around + (f" ({first} to {last})" if first != last else "")


if __name__ == "__main__":
    main()
