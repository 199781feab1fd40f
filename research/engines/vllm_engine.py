"""vLLM's engine beside transformers: tokens a second of both, and its connector's hidden states beside our replay's.

    python -m research.engines.vllm_engine rates --vllm PYTHON     # into docs/measured/vllm_rates.json
    python -m research.engines.vllm_engine states --vllm PYTHON    # into docs/measured/vllm_states.json

PYTHON is the interpreter of an environment with vLLM and metaprobe (docs/engines.md). Each turn is a process of its
own; loading and a first batch are not counted. The asynchronous engine is timed watched and plain, in turn. States are
compared by cosines at each layer, and with one layer or token off.
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
import numpy as np
import torch
from numpy.typing import NDArray

from metaprobe.llms.hidden_capture import chosen_layers, layer_hooks
from metaprobe.llms.local import LocalLLM
from research.blocks import MEASURED, ROOT, write_figures
from research.engines.vllm_server import OFFLINE
from research.engines.vllm_worker import MODEL

ROUNDS = 3
vllm_option = click.option("--vllm", required=True, help="Interpreter of an environment with vLLM.")


def worked(python: str, part: str, out: Path) -> Path:
    """Runs a part of the worker. Raises `ClickException` with the end of its output where it fails."""
    environment = os.environ | OFFLINE | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [python, "-m", "research.engines.vllm_worker", part, str(out)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise click.ClickException(f"{part} failed: {done.stderr[-1500:]}")
    return out


@click.group()
def main() -> None:
    """Measure vLLM's engine."""


@main.command("rates")
@vllm_option
def rates_command(vllm: str) -> None:
    """Measure in turn, and keep the rates."""
    with tempfile.TemporaryDirectory() as folder:

        def rate(python: str, engine: str) -> dict[str, Any]:
            return dict(json.loads(worked(python, f"rate-{engine}", Path(folder) / "rate.json").read_text()))

        found: dict[str, list[float]] = {"transformers": [], "vllm": []}
        for _ in range(ROUNDS):
            for engine, python in (("transformers", sys.executable), ("vllm", vllm)):
                found[engine].append(rate(python, engine)["tokens_per_s"])
                click.echo(f"{engine}: {found[engine][-1]:.0f} tokens/s")
        turns = rate(vllm, "async")
    pairs = [ours / theirs for theirs, ours in zip(found["transformers"], found["vllm"], strict=True)]
    watched = [ours / theirs for ours, theirs in zip(turns["watched"], turns["plain"], strict=True)]
    kept = {"ratios": pairs, "median": {name: statistics.median(of) for name, of in found.items()}}
    kept |= {"ratio": statistics.median(pairs), "asynchronous": turns | {"ratios": watched}}
    write_figures(MEASURED / "vllm_rates.json", kept)


@torch.inference_mode()
def here(llm: LocalLLM, ids: list[int]) -> NDArray[np.float32]:
    """The states of all tokens at all layers by transformers, (T, layers, width)."""
    found: list[Any] = []
    layers = chosen_layers("all", llm.model.config)
    with layer_hooks(llm.model, layers, lambda layer, hidden: found.append(hidden[0].float().numpy())):
        llm.model(input_ids=torch.tensor([ids]), use_cache=False, logits_to_keep=1)
    return np.stack(found, axis=1)


def cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Along the last axis."""
    return np.asarray((a * b).sum(-1) / np.maximum(np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1), 1e-9))


@main.command("states")
@vllm_option
def states_command(vllm: str) -> None:
    """Compares the states (T, layers, width) of both by the lowest mean cosine of a layer over tokens, and by the
    highest where layers or tokens are one off."""
    with tempfile.TemporaryDirectory() as folder:
        found, llm = np.load(worked(vllm, "states", Path(folder) / "states.npz")), LocalLLM.load(MODEL)
        count = sum(name.startswith("ids") for name in found)
        pairs = [(found[f"all{i}"], here(llm, found[f"ids{i}"].tolist())) for i in range(count)]
    same, layer, token = (
        np.concatenate([cosine(a, b) for a, b in shifted]).mean(axis=0)
        for shifted in (pairs, [(a[:, 1:], b[:, :-1]) for a, b in pairs], [(a[1:], b[:-1]) for a, b in pairs])
    )
    told = {"calls": len(pairs), "tokens": sum(len(a) for a, _ in pairs), "layers": len(same)}
    told |= {"least": float(same.min()), "layer_off": float(layer.max()), "token_off": float(token.max())}
    write_figures(MEASURED / "vllm_states.json", told)
    click.echo(json.dumps(told))


if __name__ == "__main__":
    main()
