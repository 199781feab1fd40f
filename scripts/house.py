"""Measures the house and writes its numbers into docs/architecture.md.

python scripts/house.py
"""

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import click

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "metaprobe"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- house: written by scripts/house.py -->\n", "<!-- /house -->\n"
JOURNEYS = {
    "`import metaprobe`": "import metaprobe",
    "a response to a verdict": "import metaprobe; metaprobe.QualityPredictor",
    "`metaprobe train quality`": "import metaprobe.training.quality.train",
    "`metaprobe compare`": "import metaprobe.training.comparison.write_comparison",
}
"""What a user does -> what is imported for it; command line apart."""


def sources() -> dict[str, Path]:
    """Returns each shipped module by its full name."""
    found = [*PACKAGE.glob("*.py"), *(path for room in PACKAGE.iterdir() for path in room.rglob("*.py"))]
    return {_name(path): path for path in sorted(found)}


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Returns for each module the modules of ours that it imports when it is imported itself."""
    arrows: dict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                wanted = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                wanted = {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
            else:
                continue
            arrows[name] |= {module for module in wanted if module in modules and module != name}
    return arrows


def cycle(arrows: dict[str, set[str]]) -> list[str]:
    """Returns modules that import each other in a circle; empty where there are none."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def class_names(modules: dict[str, Path]) -> dict[str, int]:
    """Returns how often each public class name is given."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in modules.values())
    found = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {name: count for name, count in found.items() if not name.startswith("_")}


def function_lengths(modules: dict[str, Path]) -> dict[str, int]:
    """Returns the lines of each function from its `def` to its end."""
    return {
        f"{path.relative_to(PACKAGE)}: {node.name}": node.end_lineno - node.lineno + 1
        for path in modules.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    }


def files_imported(statement: str) -> int:
    """Returns how many files of ours an import brings."""
    script = f"import sys\n{statement}\nprint(sum(name.split('.')[0] == 'metaprobe' for name in sys.modules))"
    return int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout)


def block() -> str:
    """Returns the numbers as the page shows them."""
    modules = sources()
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules.items()}
    longest, functions = max(lines, key=lines.__getitem__), function_lengths(modules)
    far = max(functions, key=functions.__getitem__)
    rows = {
        "shipped files": f"{len(modules)}",
        "shipped lines of Python": f"{sum(lines.values()):,}",
        "longest file": f"`{modules[longest].relative_to(PACKAGE)}`, {lines[longest]} lines",
        "functions above 60 lines": f"{sum(n > 60 for n in functions.values())}; the longest `{far}`, {functions[far]}",
        "import cycles between files": "none" if not cycle(imports(modules)) else " -> ".join(cycle(imports(modules))),
        "class names given twice": ", ".join(n for n, count in class_names(modules).items() if count > 1) or "none",
        **{f"files imported for {what}": f"{files_imported(code)}" for what, code in JOURNEYS.items()},
    }
    table = "".join(f"| {what} | {value} |\n" for what, value in rows.items())
    return f"{BEGIN}| measure | |\n|---|---|\n{table}{END}"


@click.command()
def main() -> None:
    """Write the block anew."""
    page = ARCHITECTURE.read_text(encoding="utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    ARCHITECTURE.write_text(before + block() + after, encoding="utf-8")


if __name__ == "__main__":
    main()
