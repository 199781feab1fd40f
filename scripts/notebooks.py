"""Runs the code of notebooks from top to bottom and writes each cell's output below it. Standard library only.

    python scripts/notebooks.py                      # all in examples/notebooks/
    python scripts/notebooks.py examples/notebooks/compare.ipynb

A cell shows what it prints and the value of its last line, as text and as HTML if the value has it. Cells run in the
notebook's folder, as Jupyter runs them.
"""

import ast
import contextlib
import io
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "notebooks"


def main(paths: list[str]) -> None:
    """Runs these notebooks, or all, and writes them with their outputs."""
    for path in map(Path, paths or sorted(map(str, FOLDER.glob("*.ipynb")))):
        notebook = executed(path)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        sys.stdout.write(f"{path.name}: {path.stat().st_size / 1000:.0f} kB\n")


def executed(path: Path) -> dict[str, Any]:
    """Returns the notebook with the outputs of its cells. A cell's error ends it, and names the cell."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for number, cell in enumerate(code, start=1):
            try:
                cell["outputs"] = shown("".join(cell["source"]), names, f"{path.name}, cell {number}", number)
            except Exception as error:
                error.add_note(f"{path.name}, code cell {number}")
                raise
            cell["execution_count"] = number
    finally:
        os.chdir(before)
    return notebook


def shown(source: str, names: dict[str, Any], where: str, number: int) -> list[dict[str, Any]]:
    """Returns the printed output of a cell, and the value of its last line.

    Args:
        source: the code.
        names: the names that earlier cells have defined.
        where: place of the cell in messages.
        number: number of the cell.
    """
    tree, value = ast.parse(source), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of little data, which the text of the notebook says
        exec(compile(tree, where, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": text})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if callable(html := getattr(value, "_repr_html_", None)):
            data["text/html"] = str(html()).splitlines(keepends=True)
        outputs.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return outputs


if __name__ == "__main__":
    main(sys.argv[1:])
