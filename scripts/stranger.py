"""Walks a stranger's path in a fresh clone and a fresh environment, and times every step of it.

    python scripts/stranger.py > docs/measured/stranger.json
    python scripts/stranger.py --pip-args "--constraint my-constraints.txt" --folder /somewhere/empty
    python scripts/stranger.py --page                      # the table in docs/start.md, from that file

It types what the pages say to type: install the base, score with the bundled predictor, train on 1,000 lines in the
OpenAI format, serve the predictor over HTTP. Needs Python and git. If a step fails, its output goes to stderr.
"""

import argparse
import datetime
import json
import os
import platform
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "docs" / "measured" / "stranger.json"
PAGE = ROOT / "docs" / "start.md"
KEY = "a-key-for-this-walk-only"
READY_S = 600
"""Longest wait for the server: machines may be slow, but it must end."""

LINES = """
import json, sys
from metaprobe.records.store import RunStore
lines = []
for run in RunStore("recorded/qwen-metacog-eval"):
    call = next(call for call in run.calls if call.stage == "answer")
    content = [{"token": "", "logprob": float(x)} for x in call.logprobs]
    message = {"role": "assistant", "content": call.text}
    choice = {"index": 0, "message": message, "finish_reason": call.finish_reason, "logprobs": {"content": content}}
    response = {"object": "chat.completion", "model": call.model, "choices": [choice]}
    labels = {"correct": run.label("correct", call.id)}
    lines.append({"id": run.id, "group": run.item.group, "labels": labels, "response": response})
    if len(lines) == 1000:
        break
print("\\n".join(map(json.dumps, lines)))
"""
"""Program that writes a log like a user's own, from recorded answers."""


class Failed(Exception):
    """A step did not do what the page promises."""


class Walk:
    """One environment in one clone, and the times of its steps."""

    def __init__(self, folder: Path, pip_args: list[str]) -> None:
        self.repository = folder / "metaprobe"
        self.lines = folder / "lines.jsonl"
        self.steps: list[dict[str, Any]] = []
        self._pip_args = pip_args
        self._bin = folder / "venv" / "bin"
        self._environment = {**os.environ, "METAPROBE_API_KEY": KEY}

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Measures the wall seconds, and the CPU seconds of the processes that ended meanwhile."""
        start, before = time.monotonic(), _cpu_s()
        yield
        taken = {"step": step, "wall_s": round(time.monotonic() - start, 1), "cpu_s": round(_cpu_s() - before, 1)}
        self.steps.append(taken)
        sys.stderr.write(json.dumps(taken) + "\n")

    def clone(self, source: str) -> None:
        self._run("git", "clone", "--quiet", source, str(self.repository), cwd=Path.cwd())

    def base(self) -> None:
        with self.timed("`python -m venv`"):
            self._run(sys.executable, "-m", "venv", str(self._bin.parent))
        with self.timed("`pip install .`"):
            self._pip(".")

    def first_scores(self) -> None:
        """Runs the first block of docs/start.md, and the same by the command."""
        block = re.search(r"```python\n(.*?)```", (self.repository / "docs" / "start.md").read_text("utf-8"), re.S)
        if block is None:
            raise Failed("docs/start.md has no block of Python")
        with self.timed("score 14 responses, in Python"):
            self._scored(self._python(block[1]).splitlines(), 14)
        with self.timed("the same by `metaprobe score`"):
            self._scored(self._metaprobe("score", "bundled:quality", "examples/responses.jsonl").splitlines(), 14)

    def train(self) -> None:
        with self.timed("`pip install '.[fit,serve]'`"):
            self._pip(".[fit,serve]")
        self.lines.write_text(self._python(LINES), encoding="utf-8")
        with self.timed("`metaprobe import`: 1,000 lines"):
            self._metaprobe("import", str(self.lines), "--out", "out/runs")
        with self.timed("`metaprobe train quality`: 5 folds, audits, export"):
            self._metaprobe("train", "quality", "out/runs", "--target", "correct", "--out", "out/own")
        with self.timed("`metaprobe inspect`"):
            self._metaprobe("inspect", "out/own")
        with self.timed("`metaprobe score`: 1,000 lines"):
            self._scored(self._metaprobe("score", "out/own", str(self.lines)).splitlines(), 1000)

    def serve(self) -> None:
        """Measures the way from the command to the first verdict over HTTP, and to the end by Ctrl-C."""
        with self.timed("`metaprobe serve`, one verdict by HTTP, Ctrl-C"), self._server() as url:
            body = json.dumps(json.loads(self.lines.read_text("utf-8").splitlines()[0])["response"]).encode()
            headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
            with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/score", body, headers)) as answer:
                if not 0 < json.load(answer)["score"] < 1:
                    raise Failed("the server gave no score")

    @contextmanager
    def _server(self) -> Iterator[str]:
        said = self.repository / "serve.log"
        with said.open("w") as log:
            command = [str(self._bin / "metaprobe"), *"serve out/own --port 0".split()]
            server = subprocess.Popen(command, cwd=self.repository, stderr=log, env=self._environment)
            try:
                yield _ready(server, said)
            finally:
                server.send_signal(signal.SIGINT)
                server.wait(READY_S)

    def _scored(self, lines: list[str], n: int) -> None:
        if len(lines) != n:
            raise Failed(f"{len(lines)} lines were scored; expected {n}")

    def _pip(self, what: str) -> None:
        self._run(str(self._bin / "python"), "-m", "pip", "install", "--quiet", *self._pip_args, what)

    def _python(self, code: str) -> str:
        return self._run(str(self._bin / "python"), "-c", code)

    def _metaprobe(self, *arguments: str) -> str:
        return self._run(str(self._bin / "metaprobe"), *arguments)

    def _run(self, *command: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            command, cwd=cwd or self.repository, env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Failed(f"{shlex.join(command)[:200]}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _ready(server: "subprocess.Popen[bytes]", said: Path) -> str:
    """Returns the address at which the server listens, once it says that it is ready."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until and server.poll() is None:
        if found := re.search(r"http://[\d.]+:\d+", said.read_text(encoding="utf-8")):
            try:
                with urllib.request.urlopen(f"{found[0]}/healthz"):
                    return found[0]
            except urllib.error.URLError:
                pass
        time.sleep(0.1)
    raise Failed(f"the server did not come up:\n{said.read_text(encoding='utf-8')}")


def machine() -> dict[str, Any]:
    """Describes the machine; the load shows what else ran."""
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "system": platform.system(),
        "load_before": round(os.getloadavg()[0], 1),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def page(measured: dict[str, Any]) -> list[str]:
    """Returns the lines of the table in docs/start.md."""
    m = measured["machine"]
    rows = [f"| {row['step']} | {row['wall_s']:.1f} | {row['cpu_s']:.1f} |" for row in measured["steps"]]
    beside = f", beside other work (load {m['load_before']} before the first step)" if m["load_before"] >= 0.5 else ""
    return [
        f"{m['cores']} cores ({m['architecture']}), Python {m['python']}, {m['date']}{beside}:",
        "",
        "| step | seconds | of them CPU |",
        "| --- | --- | --- |",
        *rows,
    ]


def write_page() -> None:
    """Writes the table of the last numbers."""
    write(PAGE, page(json.loads(MEASURED.read_text(encoding="utf-8"))))


def write(path: Path, lines: list[str]) -> None:
    """Replaces the text between the markers."""
    mark = re.compile(r"(<!-- stranger:.*? -->\n).*?(<!-- /stranger -->)", re.S)
    text, count = mark.subn(lambda m: m[1] + "\n" + "\n".join(lines) + "\n" + m[2], path.read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"{path.name} has lost its markers")
    path.write_text(text, encoding="utf-8")


def walked(folder: Path, source: str, pip_args: list[str]) -> dict[str, Any]:
    """Runs every step in turn; the first that fails ends the walk.

    Args:
        folder: an empty folder.
        source: the repository.
        pip_args: further arguments of pip.
    """
    about = machine()
    walk = Walk(folder, pip_args)
    walk.clone(source)
    steps: tuple[Callable[[], None], ...] = (walk.base, walk.first_scores, walk.train, walk.serve)
    for step in steps:
        step()
    return {"machine": about, "steps": walk.steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default=str(ROOT), help="repository to clone; this one by default")
    parser.add_argument(
        "--folder", type=Path, help="empty folder to walk in, which is kept; a temporary one by default"
    )
    parser.add_argument("--pip-args", default="", help="further arguments of every pip install, in one string")
    parser.add_argument("--page", action="store_true", help="walk nothing; write docs/start.md from the last numbers")
    arguments = parser.parse_args()
    if arguments.page:
        write_page()
        return
    pip_args = shlex.split(arguments.pip_args)
    try:
        with tempfile.TemporaryDirectory() as made:
            folder = arguments.folder.resolve() if arguments.folder else Path(made)
            folder.mkdir(parents=True, exist_ok=True)
            sys.stdout.write(json.dumps(walked(folder, arguments.source, pip_args), indent=1) + "\n")
    except Failed as failed:
        raise SystemExit(f"FAILED: {failed}") from failed


if __name__ == "__main__":
    main()
