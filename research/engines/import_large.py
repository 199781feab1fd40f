"""A gigabyte of answer lines into a store: most memory, rate, and that a killed import goes on.

python -m research.engines.import_large --megabytes 1000 --out docs/measured/import_large.json
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np

from research.blocks import write_figures

TOKENS = 400
KILLED_AFTER = 0.3
"""Share of the time of a whole import after which one is killed."""


def write_lines(path: Path, size: int) -> int:
    """Answer lines of that many bytes together, each its own; returns how many."""
    rng = np.random.default_rng(0)
    words = [f"word{i}" for i in range(997)]
    lines = 0
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            said = -rng.exponential(0.6, TOKENS).round(6)
            entries = [
                {"token": f" {words[i % 997]}", "logprob": float(x), "bytes": None, "top_logprobs": []}
                for i, x in enumerate(said, lines)
            ]
            answer = {"message": {"content": "".join(e["token"] for e in entries)}, "logprobs": {"content": entries}}
            line = {
                "id": f"q{lines}",
                "group": f"g{lines // 2}",
                "model": "m",
                "messages": [{"role": "user", "content": f"Question {lines}?"}],
                "labels": {"correct": int(said.mean() > -0.6)},
                "response": {"choices": [{**answer, "finish_reason": "length"}], "model": "m"},
            }
            file.write(json.dumps(line) + "\n")
            lines += 1
    return lines


def imported(file: Path, store: Path, kill_after: float | None = None) -> dict[str, Any]:
    """Runs `metaprobe import` in a process of its own; its seconds, its most memory, and what it reported."""
    command = [sys.executable, "-m", "metaprobe.cli", "import", str(file), "--out", str(store)]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if kill_after is not None:
        time.sleep(kill_after)
        process.send_signal(signal.SIGKILL)
    assert process.stdout is not None
    said = process.stdout.read()
    _, _, usage = os.wait4(process.pid, 0)
    report = json.loads(said) if said.strip() else {}
    return {"seconds": time.perf_counter() - started, "peak_mb": usage.ru_maxrss / 1024, "report": report}


@click.command()
@click.option("--megabytes", default=1000)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(megabytes: int, out: Path) -> None:
    """Writes the lines, imports them, kills an import and goes on, and records what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lines.jsonl"
        lines = write_lines(file, megabytes << 20)
        small = Path(folder) / "small.jsonl"
        with file.open("rb") as whole, small.open("wb") as part:
            part.writelines(islice(whole, lines // 10))  # a child's most memory begins with this process's own
        tenth = imported(small, Path(folder) / "tenth")
        full = imported(file, Path(folder) / "full")
        imported(file, Path(folder) / "killed", KILLED_AFTER * full["seconds"])
        rest = imported(file, Path(folder) / "killed")
        found = {"megabytes": file.stat().st_size >> 20, "lines": lines}
        found |= {"tenth": tenth, "whole": full, "after a kill": rest}
    write_figures(out, found)
    click.echo(json.dumps(found))


if __name__ == "__main__":
    main()
