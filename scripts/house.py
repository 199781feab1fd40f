"""Measures the house: imports, names that stand for several things, files entered on the five walks, and lines.

    python scripts/house.py              # prints the tables
    python scripts/house.py --json       # the same as one JSON object
    python scripts/house.py --budgets    # exits 1 if a ceiling of [tool.house] in pyproject.toml is passed
    python scripts/house.py --no-walks   # without the walks, in two seconds
    python scripts/house.py --names      # lists the names that stand for several things
    python scripts/house.py --draw 100   # docstrings drawn at random, for a fresh reader to mark

**Lines** are all lines of the `.py` files, with comments and blank lines. They are for information and have no ceiling.
What counts is what one person must hold for one job, so the lines of the files that each walk enters are shown too.

**Imports** are those at the top of a file, those inside functions, those for type checkers only, and modules that are
required by name (`require("metaprobe...")`). A cycle is a strongly connected component of more than one file. An import
goes upward or sideways if the other room's floor is not below.

**Houses.** Production and papers import names of `metaprobe.api`, and nothing else of the core or of each other; texts
that name a module are read too. The names are counted.

**Walks.** A walk really runs, in a new process, from a public name or a command to its result, on a small input made of
recorded runs. `sys.setprofile`, in all threads, notes the file of every function of the package that is called.
Functions that an import runs (module bodies, decorators) are left out, so that a first call counts the same as a warm
second one. A file counts once. Loading a checkpoint and starting the server are not part of a walk.

The issue that set the targets (35) counted by reading: it followed one parameter from end to end. Its figures were 14
files for response to verdict, 23 for runs to checkpoint, 46 for outcomes to router, and at least 13 for request to
estimate. On the same tree this script counts 21, 72, 44 and 65. The reasons:

- *Runs to checkpoint* and *request to estimate* enter many files besides those of the one parameter: audits, intervals,
  operating points and the guard of the checkpoint; access, quota, metrics, the log's writer and the command's table.
- *Outcomes to router* is nearly the same: to follow one value there, the reader had to enter nearly every file.
- *Response to verdict* also enters each file that is asked whether the response has its format, and answers no.

So the targets of [tool.house] are the issue's, in proportion: today's count times (the issue's target / its count).
"""

import ast
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import urllib.error
import urllib.request
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import click

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "metaprobe"
RECORDED = ROOT / "recorded" / "smollm2-metacog-eval"
FLOORS = {
    "records": 0,
    "checkpoints": 0,
    "llms": 1,
    "probes": 2,
    "routing": 3,
    "eval": 4,
    "training": 5,
    "metaprobe": 6,
    "production.monitoring": 7,
    "production": 8,
    "papers.policies": 7,
    "papers.systems": 8,
    "papers.tasks": 9,
    "papers": 10,
}
"""Maps a room to its floor. `metaprobe` is the front door: the files of the package itself."""
ROOMS = tuple(room for room in FLOORS if room != "metaprobe" and "." not in room)
"""The rooms that are top-level folders."""
HOUSES = ("production", "papers")
"""Rooms that are houses: they import the core, never each other, and the core imports neither."""
API = "metaprobe.api"
"""The only module of the core that houses import from."""
MODULE = re.compile(r"metaprobe(\.\w+)+(:\w+)?")
"""Matches a text that names a module of the package, or a name in one."""
IMPORTERS = {"import_module", "importlib.import_module", "__import__"}
"""Functions that import a module by any text."""
OUTSIDE = {"apps": ("apps",), "tests": ("tests",), "research": ("research", "benchmarks", "scripts")}
"""Maps a name in the budgets to the folders outside the package that are counted under it."""
NAMED = {"require", "import_module", "importlib.import_module"}
"""Functions that import the module that their first argument names."""
WITHIN_S = 60.0
"""Seconds for which a walk waits for its server, and for the log to hold its answer."""


def sources() -> dict[str, Path]:
    """Returns the path of each shipped module by the module's full name."""
    files = {path: ("metaprobe", path.stem) for path in PACKAGE.glob("*.py")}
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        files[path] = ("metaprobe", *path.relative_to(ROOT).with_suffix("").parts)
    names = {".".join(parts).removesuffix(".__init__"): path for path, parts in files.items()}
    return dict(sorted(names.items()))


@dataclass(frozen=True)
class FileFacts:
    """Holds what the measures read of a file.

    Syntax trees are not kept, because every garbage collection would look at their millions of nodes.
    """

    nodes: list[ast.AST]
    """Imports, texts that name a module of the package, and calls of `NAMED` and `IMPORTERS` with arguments."""
    classes: list[str]
    """Names of the classes, also of those inside functions."""
    functions: list[str]
    """Names of the module's public functions."""
    constants: list[tuple[str, str]]
    """Names and values of the module's public constants; a value is the dump of its expression."""
    aliases: list[tuple[str, str]]
    """Names and values of the module's type aliases and type variables, in the form of `constants`."""

    def named_like(self, name: str) -> list[tuple[str, str]] | None:
        """Returns the list for a module's variable of this name: `constants`, `aliases`, or None for others."""
        if re.fullmatch("[A-Z][A-Z0-9_]*", name):
            return self.constants
        return self.aliases if re.fullmatch("_?[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*", name) else None


@cache
def facts_of(path: Path) -> FileFacts:
    """Returns the facts of a file; each file is parsed once."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    facts = FileFacts([], [], [], [], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            facts.classes.append(node.name)
        elif _is_marked(node):
            facts.nodes.append(node)
    for statement in tree.body:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign) and statement.value:
            targets = [statement.target]
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and not statement.name.startswith("_"):
            facts.functions.append(statement.name)
        for target in targets:
            if isinstance(target, ast.Name) and (named := facts.named_like(target.id)) is not None:
                assert isinstance(statement, ast.Assign | ast.AnnAssign)
                assert statement.value is not None
                named.append((target.id, ast.dump(statement.value)))
    return facts


def _is_marked(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and MODULE.fullmatch(node.value) is not None
    if isinstance(node, ast.Call):
        return bool(node.args) and dotted(node.func) in NAMED | IMPORTERS
    return isinstance(node, ast.Import | ast.ImportFrom)


def dotted(node: ast.expr) -> str:
    """Returns the dotted name of an expression, such as `importlib.import_module`; "" for other expressions."""
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""


def room_of(module: str) -> str:
    """Returns the room of a module of the package; a folder with a floor of its own is a room."""
    parts = module.split(".")[1:]
    rooms = (".".join(parts[:count]) for count in (2, 1))
    return next((room for room in rooms if room in FLOORS), "metaprobe")


def house_of(module: str) -> str:
    """Returns the house of a module: one of `HOUSES`, or `core`."""
    room = room_of(module).partition(".")[0]
    return room if room in HOUSES else "core"


def lines(paths: Iterable[Path]) -> int:
    """Returns the number of lines of these files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def lines_by_room() -> dict[str, int]:
    """Returns the lines of each room, of all rooms (`shipped`), and of each part outside the package."""
    modules = sources()
    rooms = {room: lines(path for name, path in modules.items() if room_of(name) == room) for room in FLOORS}
    outside = dict.fromkeys(OUTSIDE, 0)
    for name, folders in OUTSIDE.items():
        for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
            outside["tests" if "tests" in path.relative_to(ROOT).parts else name] += lines([path])  # also those of apps
    return {**rooms, "shipped": sum(rooms.values()), **outside}


def imported_by(path: Path) -> Iterator[str]:
    """Yields every module that a file imports, wherever the import is."""
    for node in facts_of(path).nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func) in NAMED:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value


def imports(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Returns for each module the modules of the package that it imports, also inside functions."""
    arrows = {}
    for name, path in modules.items():
        wanted = set(imported_by(path))
        arrows[name] = {other for other in wanted if other in modules and other != name}
    return arrows


def cycles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Returns each group of modules that import each other in a circle (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    circles = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in sorted(arrows.get(module, ())):
            if other not in number:
                visit(other)
            if other in stack:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == number[module]:
            start = stack.index(module)
            circle = stack[start:]
            del stack[start:]
            if len(circle) > 1:
                circles.append(sorted(circle))

    for module in sorted(arrows):
        if module not in number:
            visit(module)
    return sorted(circles)


def not_downwards(arrows: dict[str, set[str]]) -> list[str]:
    """Returns the imports, as `importer -> imported`, into a room whose floor is not below, or into another house."""
    return sorted(
        f"{importer} -> {other}"
        for importer, others in arrows.items()
        for other in others
        if (room_of(importer) != room_of(other) and FLOORS[room_of(importer)] <= FLOORS[room_of(other)])
        or house_of(importer) != house_of(other) != "core"
    )


def class_names(modules: dict[str, Path]) -> dict[str, int]:
    """Returns how many classes have each public class name."""
    counts = Counter(name for path in modules.values() for name in facts_of(path).classes)
    return {name: count for name, count in counts.items() if not name.startswith("_")}


class Entered:
    """Notes the files of the package whose functions are called, in all threads, while `noting`."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.noting = False
        self._importing: dict[int, int] = defaultdict(int)
        """Maps a thread to the number of module bodies that it is running."""
        self._folders = tuple(f"{path.resolve()}{os.sep}" for path in [PACKAGE, *(ROOT / room for room in ROOMS)])

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Installs the profiler. Threads that were started before are not seen."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def walk(self) -> Iterator[None]:
        """Counts the calls in this context as part of the walk."""
        self.noting = True
        try:
            yield
        finally:
            self.noting = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if frame.f_code.co_name == "<module>":
            self._importing[threading.get_ident()] += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and self.noting and not self._importing[threading.get_ident()]:
            self.files.add(frame.f_code.co_filename)

    def names(self) -> list[str]:
        """Returns the files of the package that were entered, by their paths in the repository."""
        entered = (Path(file).resolve() for file in self.files if file.endswith(".py"))
        return sorted(path.relative_to(ROOT).as_posix() for path in entered if str(path).startswith(self._folders))


def recorded_completion() -> dict[str, Any]:
    """Returns a recorded answer of more than fifty tokens, as an OpenAI chat completion with log-probabilities."""
    from metaprobe import RunStore

    calls = (call for run in RunStore(RECORDED) for call in run.calls)
    call = next(call for call in calls if call.tokens and len(call.tokens) > 50)
    assert call.tokens is not None
    assert call.logprobs is not None
    tokens: list[dict[str, Any]] = [
        {"token": token, "logprob": float(logprob), "bytes": None, "top_logprobs": []}
        for token, logprob in zip(call.tokens, call.logprobs, strict=True)
    ]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(call.tokens)},
        "logprobs": {"content": tokens, "refusal": None},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 9, "completion_tokens": len(tokens), "total_tokens": 9 + len(tokens)}
    fields = {"id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "smollm2-135m"}
    return {**fields, "choices": [choice], "usage": usage}


def response_to_verdict(entered: Entered, _: Path) -> None:
    """Walks from a chat completion to the verdict of the bundled quality predictor, which is loaded already."""
    import metaprobe

    completion, predictor = recorded_completion(), metaprobe.load("bundled:quality")
    with entered.walk():
        verdict = predictor.predict(completion)
    assert verdict.score is not None, verdict


def stream_to_gate(entered: Entered, _: Path) -> None:
    """Walks from the chunks of a watched stream to the gate's decisions, and to the verdict at its end."""
    import metaprobe

    completion, predictor = recorded_completion(), metaprobe.load("bundled:quality")
    gates = metaprobe.StreamingGate.load(stop=0.02)
    [choice] = completion["choices"]
    parts: list[tuple[str, Any, str | None]] = [
        (entry["token"], {"content": [entry], "refusal": None}, None) for entry in choice["logprobs"]["content"]
    ]
    chunks = [
        {
            **{key: completion[key] for key in ("id", "created", "model")},
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": {"content": text}, "logprobs": logprobs, "finish_reason": finish}],
        }
        for text, logprobs, finish in [*parts, ("", None, "stop")]
    ]
    with entered.walk():
        for _chunk in (watched := metaprobe.watch(chunks, predictor, gates)):
            pass
    assert watched.action or watched.verdict, watched.reason


def runs_to_checkpoint(entered: Entered, folder: Path) -> None:
    """Walks from sixty recorded runs to the checkpoint of a quality predictor."""
    import metaprobe

    metaprobe.RunStore(folder / "runs").append(islice(metaprobe.RunStore(RECORDED), 60))
    with entered.walk():
        metaprobe.train_quality(folder / "runs", folds=2, out=folder / "quality")


def outcomes_to_router(entered: Entered, folder: Path) -> None:
    """Walks from a file with outcomes of two agents on 120 questions to the checkpoint of a panel with prices."""
    import metaprobe

    draw = random.Random(0)
    with (folder / "outcomes.jsonl").open("w", encoding="utf-8") as file:
        for number in range(120):
            agents = {}
            for name, skill, cost in (("small", 0.6, 0.0001), ("large", 0.85, 0.002)):
                right = draw.random() < skill
                confidence = draw.betavariate(5, 2) if right else draw.betavariate(3, 3)
                agents[name] = {"correct": int(right), "confidence": confidence, "cost_usd": cost, "latency_ms": 100.0}
            line = {"id": f"q{number}", "question": f"question {number}", "dimension": "facts", "agents": agents}
            file.write(json.dumps(line) + "\n")
    with entered.walk():
        metaprobe.train_router(folder / "outcomes.jsonl", out=folder / "router")


def request_to_estimate(entered: Entered, folder: Path) -> None:
    """Walks from a chat completion through the proxy of `metaprobe serve` into the score log, and `metaprobe estimate`
    on it.
    """
    completion = json.dumps(recorded_completion()).encode()
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as free:
        log, port = folder / "scores.sqlite", free.server_port
    failed: list[BaseException] = []

    def ask_and_estimate() -> None:
        try:
            _wait_for(lambda: _asked(f"http://127.0.0.1:{port}/readyz") is not None, "the server")
            body = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "why?"}]}
            with entered.walk():
                answer = _asked(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode())
                assert answer is not None
                assert answer["metaprobe"]["score"] is not None, answer
                _wait_for(lambda: _estimated(log), "an estimate of the logged answer")
        except BaseException as error:
            failed.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    with _upstream(completion) as url:
        client = threading.Thread(target=ask_and_estimate)
        client.start()
        options = ("--upstream", url, "--log", str(log), "--port", str(port), "--no-auth")
        _command("serve", "bundled:quality", *options)
        client.join()
    if failed:
        raise failed[0]


def _command(*words: str) -> None:
    from metaprobe.cli import main

    main.main(list(words), standalone_mode=False)


def _asked(url: str, body: bytes | None = None) -> dict[str, Any] | None:
    """Returns the server's answer; None if nobody listens yet."""
    request = urllib.request.Request(url, data=body, headers={"content-type": "application/json"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=WITHIN_S) as answer:
            raw = answer.read()
    except urllib.error.URLError:
        return None
    return dict(json.loads(raw)) if body else {}


def _estimated(log: Path) -> bool:
    """Runs the command, and returns whether the log held an answer."""
    shown = io.StringIO()
    with suppress(click.UsageError), redirect_stdout(shown):  # there is no log before the first answer is written
        _command("estimate", "--log", str(log), "--json")
    return bool(shown.getvalue())


def _wait_for(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {WITHIN_S:g} s")
        time.sleep(0.05)


@contextmanager
def _upstream(answer: bytes) -> Iterator[str]:
    """Yields the base URL of an endpoint that answers every request with these bytes."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Prints nothing about a request."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


WALKS = {
    "response to verdict": response_to_verdict,
    "runs to checkpoint": runs_to_checkpoint,
    "outcomes to router": outcomes_to_router,
    "request to estimate": request_to_estimate,
    "stream to gate": stream_to_gate,
}
"""Maps a name to the walk. A walk gets an empty folder, and marks its own part with `entered.walk()`."""


def files_entered(walk: str) -> list[str]:
    """Returns the files that a walk enters, by their paths in the repository. It runs in a new process."""
    command = [sys.executable, str(Path(__file__).resolve()), "--walk", walk]
    paths = os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"the walk {walk!r} failed:\n{done.stderr}")
    return list(json.loads(done.stdout.splitlines()[-1]))


def _walk_here(name: str) -> list[str]:
    entered = Entered()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), entered.installed():
        warnings.simplefilter("ignore")  # so few runs pass no audit, which is not the subject here
        WALKS[name](entered, Path(folder))
    return entered.names()


def names_of_several_things(modules: dict[str, Path]) -> dict[str, list[str]]:
    """Returns the names that stand for several things, by kind: constants, functions, types and file names.

    A public constant counts if several files define it, not all with the same value. So does a type: an alias or a type
    variable, and a class, which differs from all other classes. Types count also if they are private. A public function
    of a module and a file name count if several files have it.
    """
    constants: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    types: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    functions: dict[str, set[str]] = defaultdict(set)
    for module, path in modules.items():
        for function in facts_of(path).functions:
            functions[function].add(module)
        for constant, value in facts_of(path).constants:
            constants[constant][value].add(module)
        for alias, value in facts_of(path).aliases:
            types[alias][value].add(module)
        for class_name in facts_of(path).classes:
            types[class_name][f"class of {module}"].add(module)
    stems = Counter(path.stem for path in modules.values() if path.stem != "__init__")
    return {
        "constants": _of_several_files(constants),
        "functions": sorted(name for name, where in functions.items() if len(where) > 1),
        "types": _of_several_files(types),
        "file names": sorted(stem for stem, count in stems.items() if count > 1),
    }


def _of_several_files(files: dict[str, dict[str, set[str]]]) -> list[str]:
    """Returns the names that have several values, not all in one file. `files` maps a name and a value to files."""
    return sorted(name for name, by in files.items() if len(by) > 1 and len(set().union(*by.values())) > 1)


def names_across(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Returns for each house except the core the names of the core that it imports.

    A name of `API` counts once for all houses. An import that bypasses `API` counts as `module:name`, and is an error
    as well.
    """
    crossing: dict[str, set[str]] = {house: set() for house in HOUSES}
    for module, path in modules.items():
        if house_of(module) == "core":
            continue
        for node in facts_of(path).nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    target = whole if whole in modules else node.module
                    if target in modules and house_of(target) == "core":
                        crossing[house_of(module)].add(f"{node.module}:{alias.name}")
    return crossing


def past_the_api(modules: dict[str, Path]) -> list[str]:
    """Returns imports of one house from another, or from the core except names of `API`: `importer -> imported`.

    Imports count wherever they are, and so do texts that name a module, such as the one in
    `require("metaprobe.records.store")`. `API` as a module counts too, because names that are read from it would be
    hidden from the count. So does a module that is imported by a name that is made while the program runs.
    """
    wrong = []
    for module, path in modules.items():
        house = house_of(module)
        if house == "core":
            continue
        for node in facts_of(path).nodes:
            reached: list[str] = []
            if isinstance(node, ast.Import):
                reached = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module != API:
                modules_in = [f"{node.module}.{alias.name}" for alias in node.names]
                reached = [str(node.module), *(name for name in modules_in if name in modules)]
                reached = ["." * node.level] if node.level else reached
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                reached = [node.value.partition(":")[0]]
            elif isinstance(node, ast.Call) and dotted(node.func) in IMPORTERS:
                reached = [] if isinstance(node.args[0], ast.Constant) else [ast.unparse(node.args[0])]
                reached = [name if name.startswith("metaprobe") else f"metaprobe {name}" for name in reached]
            wrong += [f"{module} -> {name}" for name in reached if _is_closed_to(house, name, modules)]
    return sorted(wrong)


def _is_closed_to(house: str, name: str, modules: dict[str, Path]) -> bool:
    """Whether a house may not reach the thing of this name: a module of the core or of another house, or a
    name in one.

    Args:
        house: the house.
        name: the name.
        modules: paths of the modules.
    """
    if name == "metaprobe" or name.startswith((".", "metaprobe ")):
        return True
    parts = name.split(".")
    prefixes = (".".join(parts[:count]) for count in range(len(parts), 1, -1))
    module = next((module for module in prefixes if module in modules), None)
    return module is not None and house_of(module) != house


def docstrings(modules: dict[str, Path]) -> list[str]:
    """Returns every docstring with its place, to draw some that a fresh reader marks: is it clear at first reading?"""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)} {getattr(node, 'name', '(module)')}\n    {text}"
        for path in modules.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, documented) and (text := ast.get_docstring(node))
    ]


def measure(*, walks: bool = True) -> dict[str, dict[str, int]]:
    """Returns every measure: maps a part to a name to a number. Lines are for information and have no ceiling."""
    modules = sources()
    arrows = imports(modules)
    entered = {name: files_entered(name) for name in WALKS} if walks else {}
    return {
        "lines": lines_by_room(),
        "lines of the files entered": {name: lines(map(ROOT.joinpath, files)) for name, files in entered.items()},
        "imports": {
            "files in cycles": sum(map(len, cycles(arrows))),
            "not downwards": len(not_downwards(arrows)),
            "past the api": len(past_the_api(modules)),
        },
        "names": {
            "that stand for several things": sum(map(len, names_of_several_things(modules).values())),
            "that houses import from the core": len(set().union(*names_across(modules).values())),
        },
        "walks": {name: len(files) for name, files in entered.items()},
    }


def budgets() -> dict[str, dict[str, dict[str, int]]]:
    """Returns [tool.house] of pyproject.toml: maps a part to a name to `at_most` and `target`."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return dict(tomllib.load(file)["tool"]["house"])


def over(measured: dict[str, dict[str, int]]) -> list[str]:
    """Returns a line for every measure that is above its ceiling, or has none in a part that has ceilings."""
    return [
        f"{name} ({part}): {count:,}; expected at most {ceiling:,}"
        for part, ceilings in budgets().items()
        for name, count in measured.get(part, {}).items()
        if count > (ceiling := ceilings.get(name, {}).get("at_most", 0))
    ]


def table(measured: dict[str, dict[str, int]]) -> str:
    """Returns the measures with their ceilings and targets, as text."""
    rows = [("", "now", "at most", "target")]
    for part, counts in measured.items():
        for name, count in counts.items():
            budget = budgets().get(part, {}).get(name, {})
            most, target = (f"{budget[key]:,}" if key in budget else "-" for key in ("at_most", "target"))
            rows.append((f"{part}: {name}", f"{count:,}", most, target))
    return "\n".join(f"{name:<50}{now:>9}{most:>9}{target:>9}" for name, now, most, target in rows)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--budgets", "hold", is_flag=True, help="Exit with 1 where a ceiling is passed.")
@click.option("--walks/--no-walks", default=True, help="Whether to run the walks, which take a minute.")
@click.option("--walk", type=click.Choice(list(WALKS)), help="Run this walk alone, and print its files as JSON.")
@click.option("--names", "show_names", is_flag=True, help="List the names that stand for several things.")
@click.option("--draw", type=int, metavar="N", help="Print N docstrings drawn at random, for a fresh reader to mark.")
def main(as_json: bool, hold: bool, walks: bool, walk: str | None, show_names: bool, draw: int | None) -> None:
    """Measure the house."""
    if walk:
        click.echo(json.dumps(_walk_here(walk)))
        return
    if draw is not None:
        click.echo("\n\n".join(random.sample(docstrings(sources()), draw)))
        return
    if show_names:
        for kind, names in names_of_several_things(sources()).items():
            click.echo(f"{len(names)} {kind}: {' '.join(names)}")
        return
    measured, arrows = measure(walks=walks), imports(sources())
    circles, upwards = cycles(arrows), not_downwards(arrows)
    if as_json:
        click.echo(json.dumps({**measured, "cycles": circles, "imports not downwards": upwards}, indent=1))
    else:
        click.echo(table(measured))
        for circle in circles:
            click.echo(f"cycle: {', '.join(circle)}")
        for arrow in upwards:
            click.echo(f"not downwards: {arrow}")
        for arrow in past_the_api(sources()):
            click.echo(f"past the api: {arrow}")
    if hold and (passed := over(measured)):
        raise click.ClickException("; ".join(passed))


if __name__ == "__main__":
    main()
