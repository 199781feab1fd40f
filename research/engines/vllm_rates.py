"""Tokens a second of vLLM's engine beside transformers, in turn, on one thread: the same requests to the same model.

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
            found[engine].append(rate(python, engine))
            click.echo(f"{engine}: {found[engine][-1]:.0f} tokens/s")
    pairs = [ours / theirs for theirs, ours in zip(found["transformers"], found["vllm"], strict=True)]
    kept = {"rates": found, "ratios": pairs, "median": {name: statistics.median(of) for name, of in found.items()}}
    out.write_text(json.dumps(kept | {"ratio": statistics.median(pairs)}, indent=1) + "\n", encoding="utf-8")


def rate(python: str, engine: str) -> float:
    """Tokens a second of one process. Raises `ClickException` with the end of what it said where it fails."""
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
        return float(json.loads(kept.read_text(encoding="utf-8"))["tokens_per_s"])


if __name__ == "__main__":
    main()
