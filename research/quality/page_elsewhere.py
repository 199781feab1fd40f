"""The sections of docs/research/quality.md on first tokens and on tasks and models left out."""

from collections.abc import Mapping
from typing import Any

from research.blocks import markdown
from research.quality.controls import (
    plain,
    signed,
)
from research.quality.prose import AWAY, MEAN, SEEN, STEADY, TERMS

Figures = Mapping[str, Any]
Lines = list[str]


WHAT_IS_SEEN = {"trees, first k": "trees", "mean of the first k": "mean", "trees, whole answer": "whole"}


def prefixes(sets: Figures) -> Lines:
    """AUROC against tokens seen."""
    measured = {name: found for name, found in sets.items() if found.get("prefix")}
    if not measured:
        return ["Not measured yet."]
    counts = sorted({int(k) for found in measured.values() for k in found["prefix"]})
    rows = []
    for name, found in measured.items():
        cells = [found["prefix"].get(str(k)) for k in counts]
        rows.append([name, "answers", *(f"{cell['n']:,}" if cell else "-" for cell in cells)])
        for what, key in WHAT_IS_SEEN.items():
            rows.append(["", what, *(plain(cell[key]) if cell else "-" for cell in cells)])
        rows.append(["", "first k - whole", *(signed(cell["trees_over_whole"]) if cell else "-" for cell in cells)])
    return [*SEEN.splitlines(), "", *markdown(["set", "", *(f"k = {k}" for k in counts)], rows)]


def left_out(sets: Figures) -> Lines:
    """One part in turn left out of what is learned from."""
    rows = []
    for name, found in sets.items():
        for division, cells in found.get("left_out", {}).items():
            for part, row in cells["parts"].items():
                for method in (STEADY, TERMS):
                    cell = row[method]
                    rows.append(
                        [
                            name,
                            f"{division}: {part}",
                            str(row["n"]),
                            method,
                            plain(cell["elsewhere"]),
                            plain(cell["at home"]),
                            plain(row[MEAN]),
                            signed(cell["elsewhere over mean"]),
                        ]
                    )
    if not rows:
        return ["Not measured yet.", ""]
    head = ["set", "left out", "n", "method", "learned elsewhere", "learned on all", MEAN, "elsewhere over the mean"]
    return [
        *AWAY.splitlines(),
        "",
        *markdown(head, rows),
        "",
    ]


def between(cells: Figures | None) -> Lines:
    """From one data set to another."""
    if cells is None:
        return ["Between data sets: not measured yet."]
    rows = [[where, *(plain(cell[name]) for name in (MEAN, STEADY, TERMS))] for where, cell in cells["figures"].items()]
    return [
        "Learned on one data set, used on another (all of its answers):",
        "",
        *markdown(["learned on -> used on", MEAN, STEADY, TERMS], rows),
    ]
