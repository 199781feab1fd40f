"""Measures how many planted faults the quick suite finds, room by room.

    python scripts/mutants.py map                              # once: which tests run which lines (minutes)
    python scripts/mutants.py map tests/test_new.py            # of these tests alone, into the same map
    python scripts/mutants.py run probes routing --seed 7      # 60 random mutants a room; out/mutants/ROOM.json
    python scripts/mutants_page.py                             # table and survivors, in docs/research/mutants.md

A mutant is one small change of one file: another comparison, sign, constant, `and` for `or`, a statement or a named
argument left out. It is killed where a test fails, or where the tests take much longer. Only tests that run the
changed line are run. Everything happens in copies of the tree: nothing here is changed.
"""

import ast
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from math import ceil
from pathlib import Path
from queue import Queue
from threading import Timer

import click
import release

ROOT = Path(__file__).parent.parent
OUT = ROOT / "out" / "mutants"
MAP = OUT / "map.json"
REASONS = ROOT / "scripts" / "mutants_reasons.json"
"""Mutant -> why it changes nothing that anyone could see, judged by a person; these do not count."""
ROOMS = tuple(
    "checkpoints collecting eval llms monitoring pipelines probes records routing serving tasks training "
    "metaprobe".split()
)
SAID = "said_of_mutant"
PAGES = ("test_written_blocks", "test_measured_pages", "test_examples", "test_docs", "test_packaging", "test_release")
"""Tests of pages and packages: they run much of everything, and promise nothing of it."""
SECONDS = 60.0
"""A mutant's tests may take this and five times what they took where nothing was changed; longer counts as killed.

Seconds of the processor. What waits and computes nothing is ended after `PATIENCE` times as long by the clock.
"""
PATIENCE = 10

ENOUGH = 60.0
"""Of a line that half of the suite runs, so many seconds of tests are tried: where these pass, the mutant lives."""

SOON = 4.0
"""Seconds of tests that are tried before the others are even read: most faults are found by them."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
SIGNS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: bytes `start` to `end` of `path` become `text`."""

    path: str
    line: int
    start: int
    end: int
    before: str
    text: str
    code: str
    """The line that it begins on: places with the same change are distinguished by it, and it stays when lines move."""

    def __str__(self) -> str:
        change = f"{' '.join(self.before.split())} -> {' '.join(self.text.split())}"
        return f"{self.path}: {change} | {' '.join(self.code.split())}"


@dataclass(slots=True)
class Outcome:
    mutant: Mutant
    killed_by: str = ""
    """The test that failed, "time" or "import"; empty where it survived."""
    tests: int = 0
    """How many tests run the line."""
    seconds: float = field(default=0.0)


def files(room: str) -> list[Path]:
    """Returns the room's Python files, relative to the root."""
    folder = ROOT / ("src/metaprobe" if room == "metaprobe" else room)
    found = folder.glob("*.py") if room == "metaprobe" else folder.rglob("*.py")
    return sorted(path.relative_to(ROOT) for path in found)


def mutants(path: Path) -> Iterator[Mutant]:
    """Yields every mutant of a file; annotations, docstrings and the inside of f-strings are left alone."""
    source = (ROOT / path).read_bytes()
    lines, offsets = source.splitlines(keepends=True), [0]
    for code in lines:
        offsets.append(offsets[-1] + len(code))
    for node, changed in _changes(ast.parse(source)):
        start = offsets[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = offsets[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        text = changed if isinstance(changed, str) else f"({ast.unparse(changed)})"
        line = node.lineno  # type: ignore[attr-defined]
        yield Mutant(str(path), line, start, end, source[start:end].decode(), text, lines[line - 1].decode())


def _changes(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | str]]:
    for node in _code(tree):
        match node:
            case ast.Compare(left, [op], comparators) if type(op) in COMPARISONS:
                yield node, ast.Compare(left, [COMPARISONS[type(op)]()], comparators)
            case ast.BinOp(left, op, right) if type(op) in SIGNS:
                yield node, ast.BinOp(left, SIGNS[type(op)](), right)
            case ast.BoolOp(op, values):
                yield node, ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            case ast.UnaryOp(ast.Not() | ast.USub(), operand):
                yield node, operand
            case ast.Constant(bool() as value):
                yield node, str(not value)
            case ast.Constant(int() as value):
                yield node, str(value + 1)
            case ast.Constant(float() as value):
                yield node, str(2 * value or 1.0)
            case ast.Call(ast.Name(name) | ast.Attribute(_, name)) if name in TWINS:
                yield node.func, ast.unparse(node.func)[: -len(name)] + TWINS[name]
            case ast.Raise() | ast.Expr(ast.Call() | ast.Await()):
                yield node, "pass"
            case ast.Continue():
                yield node, "break"
            case ast.Break():
                yield node, "continue"
        if isinstance(node, ast.Call) and not _is_zip(node):
            for i, keyword in enumerate(node.keywords):
                if keyword.arg is not None:
                    yield node, ast.Call(node.func, node.args, node.keywords[:i] + node.keywords[i + 1 :])


def _is_zip(node: ast.AST) -> bool:
    """`strict=True` is a guard against mistakes of whoever changes the code: it never fires, no test can hold it."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip"


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes that run: no annotation, no f-string (their places are unknown), no reading of types."""
    yield node
    types_only = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    for name, value in ast.iter_fields(node):
        if types_only and name != "orelse":
            continue
        if name in ("annotation", "returns", "decorator_list", "type_comment") or (
            name == "keywords" and _is_zip(node)
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield from _code(child)


@dataclass(frozen=True, slots=True)
class Map:
    """Which tests run which lines, and how long each takes."""

    lines: dict[str, dict[str, list[str]]]
    seconds: dict[str, float]
    _reach: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls) -> "Map":
        """Reads what `mutants.py map` wrote."""
        return cls(**json.loads(MAP.read_text()))

    def write(self) -> None:
        """Keeps it for `mutants.py run`."""
        MAP.write_text(json.dumps({"lines": self.lines, "seconds": self.seconds}))

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Returns the tests that run the line, those of its subject first, of these the quickest; `ENOUGH` seconds.

        Of a line that runs at import: the tests that run anything of its file.
        """
        of_file = self.lines.get(mutant.path, {})
        running = set(of_file.get(str(mutant.line), []))
        if "" in running:
            running |= {test for tests in of_file.values() for test in tests}
        whole = {test.removesuffix("::*") for test in running if test.endswith("::*")}  # a fixture ran it
        single = {test for test in running - {""} if test.partition("::")[0] not in whole}
        reached = self.reach()
        found = sorted(whole | single, key=lambda test: (reached[test.partition("::")[0]], self.time_of(test), test))
        taken = accumulate(map(self.time_of, found))
        return [test for test, seconds in zip(found, taken, strict=True) if seconds <= ENOUGH] or found[:1]

    def reach(self) -> Counter[str]:
        """Returns of how many source files each test file runs something: few for tests of one subject."""
        if not self._reach:
            for of_file in self.lines.values():
                self._reach.update({test.partition("::")[0] for tests in of_file.values() for test in tests})
        return self._reach

    def time_of(self, test: str) -> float:
        """Returns a test's seconds, or the sum of a whole file's."""
        if "::" in test:
            return self.seconds.get(test, 0.0)
        return sum(took for name, took in self.seconds.items() if name.partition("::")[0] == test)


class Tests:
    """A process that has imported the libraries, and runs tests in forks of itself: seconds saved for each mutant."""

    def __init__(self, tree: Path) -> None:
        """Starts it, for a copy of the tree of its own."""
        self.tree = tree
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree / "src")}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        command = [sys.executable, str(ROOT / "scripts" / "mutants_warm.py")]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=tree, env=environment)

    def failed(self, tests: list[str], seconds: float) -> str:
        """Returns the first test that failed, "time", "import", or nothing."""
        listed, said = self.tree / "tests_of_mutant", self.tree / SAID
        listed.write_text("\n".join(tests))
        arguments = ["-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-x", f"@{listed}"]
        arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of libraries that are imported already
        ask, answers = self._process.stdin, self._process.stdout
        assert ask is not None
        assert answers is not None
        asked = {"arguments": arguments, "tree": str(self.tree), "said": str(said), "seconds": ceil(seconds)}
        ask.write(json.dumps(asked) + "\n")
        ask.flush()
        limit = Timer(PATIENCE * seconds, os.killpg, (int(answers.readline()), signal.SIGKILL))
        limit.start()
        code = int(answers.readline())
        limit.cancel()
        if code < 0:
            return "time" if code in (-signal.SIGKILL, -signal.SIGXCPU) else "import"
        names = [line.split(" ")[1] for line in said.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))]
        return (names[0] if names else "import") if code else ""

    def said(self) -> str:
        """Returns the end of what the last run printed."""
        return (self.tree / SAID).read_text()[-2000:]

    def end(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def outcome(mutant: Mutant, known: Map, tests: Tests) -> Outcome:
    """Runs the tests on the mutant in a copy of the tree, and puts the file back."""
    begun = time.monotonic()
    names = known.tests_of(mutant)
    if not names:
        return Outcome(mutant)
    path = tests.tree / mutant.path
    source = path.read_bytes()
    try:
        path.write_bytes(source[: mutant.start] + mutant.text.encode() + source[mutant.end :])
        limit = SECONDS + 5 * sum(map(known.time_of, names))
        taken = accumulate(map(known.time_of, names))
        soon = max(1, sum(seconds <= SOON for seconds in taken))
        failed = tests.failed(names[:soon], limit) or (tests.failed(names[soon:], limit) if names[soon:] else "")
    finally:
        path.write_bytes(source)
    return Outcome(mutant, failed, len(names), round(time.monotonic() - begun, 1))


@click.group(help=__doc__)
def main() -> None:
    """Takes one of three commands."""


@main.command("map")
@click.argument("tests", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--workers", default=2, show_default=True)
def map_tests(tests: tuple[Path, ...], workers: int) -> None:
    """Run the quick suite once, and write down which tests run which lines; of TESTS, only these anew."""
    import coverage

    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = release.copy_sources(Path(folder))
        data = tree / "coverage"
        data.mkdir()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutants_map"]
        command += ["-n", str(workers), "--dist", "loadfile", *map(str, tests)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MUTANTS_DATA": str(data)}
        environment["PYTHONPATH"] = f"{tree / 'src'}{os.pathsep}{ROOT / 'scripts'}"
        command += [f"--ignore=tests/{name}.py" for name in PAGES]
        if subprocess.run(command, cwd=tree, env=environment, check=False).returncode:
            click.echo("tests fail where nothing is changed: what they are run on counts as killed; mend them first")
        took = Counter[str]()
        for part in data.glob("*.seconds"):
            took.update(json.loads(part.read_text()))
        found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for part in set(data.iterdir()) - set(data.glob("*.seconds")):
            measured = coverage.CoverageData(str(part))
            measured.read()
            for name in measured.measured_files():
                path = str(Path(name).relative_to(tree.resolve()))
                path = path.removeprefix("src/metaprobe/") if path.count("/") > 2 else path
                for line, contexts in measured.contexts_by_lineno(name).items():
                    found[path][str(line)] |= set(contexts)
    if tests:
        _join(found, took, Map.read(), {str(path) for path in tests})
    kept = {path: {line: sorted(names) for line, names in lines.items()} for path, lines in found.items()}
    Map(kept, dict(took)).write()
    click.echo(f"{len(kept)} files")


def _join(found: dict[str, dict[str, set[str]]], took: Counter[str], before: Map, anew: set[str]) -> None:
    """Adds what an earlier map knows of the test files that were not run anew. No line may have moved since."""
    for path, lines in before.lines.items():
        for line, names in lines.items():
            found[path][line] |= {name for name in names if name.partition("::")[0] not in anew}
    took.update({name: seconds for name, seconds in before.seconds.items() if name.partition("::")[0] not in anew})


@main.command()
@click.argument("rooms", nargs=-1, type=click.Choice(ROOMS))
@click.option("--n", default=60, show_default=True, help="Mutants a room.")
@click.option("--seed", required=True, type=int)
@click.option("--workers", default=2, show_default=True)
def run(rooms: tuple[str, ...], n: int, seed: int, workers: int) -> None:
    """Plant N random mutants a room, and run the tests that run their lines."""
    known = Map.read()
    with tempfile.TemporaryDirectory() as folder:
        free: Queue[Tests] = Queue()
        for i in range(workers):
            (Path(folder) / str(i)).mkdir()
            free.put(tests := Tests(release.copy_sources(Path(folder) / str(i))))
            if failed := tests.failed(["tests/test_features.py"], SECONDS):
                raise click.ClickException(f"{failed} fails where nothing is changed: {tests.said()}")

        def judged(mutant: Mutant) -> Outcome:
            tests = free.get()
            try:
                found = outcome(mutant, known, tests)
                click.echo(f"{found.seconds:6.1f} s {found.killed_by or 'ALIVE'} {mutant}", err=True)
                return found
            finally:
                free.put(tests)

        for room in rooms or ROOMS:
            every = [mutant for path in files(room) for mutant in mutants(path)]
            drawn = random.Random(f"{room} {seed}").sample(every, min(n, len(every)))
            found = list[Outcome]()
            with ThreadPoolExecutor(workers) as pool:
                for each in pool.map(judged, drawn):  # kept one by one: a stopped run is a smaller sample
                    found.append(each)
                    made = {"seed": seed, "possible": len(every), "outcomes": [asdict(one) for one in found]}
                    (OUT / f"{room}.json").write_text(json.dumps(made, indent=1))
            click.echo(f"{room}: {sum(bool(each.killed_by) for each in found)} of {len(found)} killed")
        while not free.empty():
            free.get().end()


if __name__ == "__main__":
    main()
