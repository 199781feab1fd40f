"""The notebooks in examples/notebooks/ run from top to bottom, and hold what they showed when they ran."""

import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from metaprobe.quickstart import quickstart

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
notebooks = importlib.import_module("notebooks")

PATHS = {path.stem: path for path in sorted(notebooks.FOLDER.glob("*.ipynb"))}
NAMES = ["adapt", "panel", "route", "loop", "production", "compare", "probes", "itself"]
LARGEST = 100_000
"""Bytes of a notebook with its outputs."""


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds(cell: dict[str, Any]) -> list[tuple[str, ...]]:
    """Returns the kinds of a cell's outputs, without words and numbers, which may differ between machines."""
    return [(output["output_type"], *sorted(output.get("data", ()))) for output in cell["outputs"]]


def test_there_is_one_for_each_kind_of_user() -> None:
    assert set(PATHS) == {*NAMES}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_shows_what_it_showed(name: str) -> None:
    if name in ("compare", "itself", "probes"):
        pytest.importorskip("torch")
    before, now = code(read(PATHS[name])), code(notebooks.executed(PATHS[name]))
    assert [kinds(cell) for cell in now] == [kinds(cell) for cell in before]


@pytest.mark.parametrize("name", PATHS)
def test_a_notebook_is_kept_small_and_was_run_to_its_end(name: str) -> None:
    assert PATHS[name].stat().st_size < LARGEST
    cells = code(read(PATHS[name]))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert sum(bool(cell["outputs"]) for cell in cells) >= 4


def test_the_notebook_of_quickstart_shows_its_figures_step_by_step() -> None:
    shown, printed = quickstart(), " ".join(json.dumps(code(read(PATHS["adapt"]))).split())
    wrong = f"{shown['wrong_among_least_sure']:.0%}"
    assert (
        f"of the {shown['least_sure_count']} least sure answers {wrong} are wrong, of all {1 - shown['right']:.0%}"
        in printed
    )
    held_out = shown["held_out"]
    caught, cost = (sum(one["flagged"] for one in held_out if one["right"] is right) for right in (False, True))
    assert f"caught: {caught} of" in printed
    assert f"cost: {cost} of" in printed


@pytest.mark.parametrize("name", PATHS)
def test_links_of_a_notebook_lead_to_pages(name: str) -> None:
    text = "".join(line for cell in read(PATHS[name])["cells"] for line in cell["source"])
    links = [part.partition(")")[0] for part in text.split("](")[1:]]
    assert links
    assert [link for link in links if not (PATHS[name].parent / link).exists()] == []


def test_a_cell_that_fails_is_named(tmp_path: Path) -> None:
    path = shutil.copy(PATHS["production"], tmp_path / "broken.ipynb")
    notebook = read(Path(path))
    code(notebook)[0]["source"] = ["1 / 0"]
    Path(path).write_text(json.dumps(notebook), encoding="utf-8")
    with pytest.raises(ZeroDivisionError) as failed:
        notebooks.executed(Path(path))
    assert failed.value.__notes__ == ["broken.ipynb, code cell 1"]
