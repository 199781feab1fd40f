"""Hidden states by vLLM's connector beside those of our replay: cosines at each layer, and one layer or token off.

    python -m research.engines.vllm_states --vllm PYTHON --out docs/measured/vllm_states.json
    python -m research.engines.vllm_states --read STATES.npz --out docs/measured/vllm_states.json   # written before

PYTHON is the interpreter of an environment with vLLM and metaprobe (docs/engines.md).
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray

from metaprobe.llms.hidden_capture import chosen_layers, layer_hooks
from metaprobe.llms.local import LocalLLM
from research.engines.vllm_worker import MODEL

ROOT = Path(__file__).parent.parent.parent


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


def compared(pairs: list[tuple[NDArray[np.float32], NDArray[np.float32]]]) -> dict[str, Any]:
    """Compares their states and ours (T, layers, width) by the lowest cosine of a layer in the mean over tokens, and by
    the highest where layers or tokens are one off."""
    same = np.concatenate([cosine(a, b) for a, b in pairs]).mean(axis=0)
    layer = np.concatenate([cosine(a[:, 1:], b[:, :-1]) for a, b in pairs]).mean(axis=0)
    token = np.concatenate([cosine(a[1:], b[:-1]) for a, b in pairs]).mean(axis=0)
    return {
        "calls": len(pairs),
        "tokens": sum(len(a) for a, _ in pairs),
        "layers": len(same),
        "least": float(same.min()),
        "by_layer": [round(float(x), 5) for x in same],
        "layer_off": float(layer.max()),
        "token_off": float(token.max()),
    }


@click.command()
@click.option("--vllm", help="Interpreter of vLLM's environment.")
@click.option("--read", type=click.Path(path_type=Path), help="States that the worker wrote before.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(vllm: str | None, read: Path | None, out: Path) -> None:
    """Has vLLM read, compares, and records the cosines."""
    with tempfile.TemporaryDirectory() as folder:
        if read is None:
            read = Path(folder) / "states.npz"
            environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
            command = [str(vllm), "-m", "research.engines.vllm_worker", "states", str(read)]
            subprocess.run(command, env=environment, cwd=ROOT, check=True)
        found = np.load(read)
        llm = LocalLLM.load(MODEL)
        count = sum(name.startswith("ids") for name in found)
        result = compared([(found[f"all{i}"], here(llm, found[f"ids{i}"].tolist())) for i in range(count)])
    out.write_text(json.dumps(result, indent=1) + "\n")
    click.echo(json.dumps(result))


if __name__ == "__main__":
    main()
