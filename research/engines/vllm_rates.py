"""Tokens a second of vLLM's engine beside transformers, and of its asynchronous one watched and plain, in turn.

    python -m research.engines.vllm_rates --vllm PYTHON --out docs/measured/vllm_rates.json

PYTHON is the interpreter of an environment with vLLM and metaprobe (docs/engines.md). Each turn is a process of its
own; loading and a first batch are not counted.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parent.parent.parent
ROUNDS = 3


@click.command()
@click.option("--vllm", required=True, help="Interpreter of an environment with vLLM.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True)
def main(vllm: str, out: Path) -> None:
    """Measure in turn, and keep the rates."""
    found: dict[str, list[float]] = {"transformers": [], "vllm": []}
    for _ in range(ROUNDS):
        for engine, python in (("transformers", sys.executable), ("vllm", vllm)):
            found[engine].append(measured(python, engine)["tokens_per_s"])
            click.echo(f"{engine}: {found[engine][-1]:.0f} tokens/s")
    pairs = [ours / theirs for theirs, ours in zip(found["transformers"], found["vllm"], strict=True)]
    turns = measured(vllm, "async")
    watched = [ours / theirs for ours, theirs in zip(turns["watched"], turns["plain"], strict=True)]
    click.echo(f"asynchronous, watched over plain: {watched}")
    kept = {"rates": found, "ratios": pairs, "median": {name: statistics.median(of) for name, of in found.items()}}
    kept |= {"ratio": statistics.median(pairs), "asynchronous": turns | {"ratios": watched}}
    out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def measured(python: str, engine: str) -> dict[str, Any]:
    """Returns the figures that one process measured. Raises `ClickException` with the end of its output where it
    fails."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "rate.json"
        command = [python, "-m", "research.engines.vllm_worker", f"rate-{engine}", str(kept)]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise click.ClickException(f"{engine} failed: {done.stderr[-1500:]}")
        return dict(json.loads(kept.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
