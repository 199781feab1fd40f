"""The numbers of `metaprobe compare`, as they stand in comparison.json and in the table of items."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from frozen.freeze import check, done
from frozen.test_trained import parts

pytestmark = pytest.mark.filterwarnings("ignore")


def metrics(method: dict[str, Any]) -> dict[str, Any]:
    """Metric -> estimate and interval, of everything that has one; and plain numbers."""
    found = {}
    for name, value in method.items():
        if isinstance(value, dict) and "estimate" in value:
            found[name] = [value[part] for part in ("estimate", "low", "high") if part in value]
        elif isinstance(value, dict):
            found |= {f"{name}.{inner}": numbers for inner, numbers in metrics(value).items()}
        elif isinstance(value, int | float):
            found[name] = value
    return found


def comparison(folder: Path) -> dict[str, Any]:
    runs, _ = parts(folder, "smollm2-metacog-eval", 120, 0)
    done("compare", runs, "--out", folder / "out", "--folds", 2, "--seed", 3)
    written = json.loads((folder / "out" / "comparison.json").read_text(encoding="utf-8"))
    found = {f"method {name}": metrics(method) for name, method in written["methods"].items()}
    found["all"] = metrics({name: value for name, value in written.items() if name != "methods"})
    with (folder / "out" / "items.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for name in sorted({row["method"] for row in rows}):
        own = [row for row in rows if row["method"] == name]
        sums = [
            math.fsum(float(row[column] or "nan") for row in own if row[column]) for column in ("score", "probability")
        ]
        found[f"items {name}"] = {"n": len(own), "y": sum(int(row["y"]) for row in own), "sums": sums}
    return found


PARTS = {"comparison": comparison}
WITHIN: dict[str, dict[str, float]] = {}


@pytest.mark.parametrize("part", PARTS)
def test_a_comparison_has_the_numbers_it_had(part: str, tmp_path: Path) -> None:
    check("report", part, PARTS[part](tmp_path), within=WITHIN.get(part))
