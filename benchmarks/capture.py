"""Measures the time and memory of keeping hidden states: no layer, 4, all, and all as transformers keeps them.

    python -m benchmarks.capture [--llm smollm2-135m] [--pairs 6] [--prompt 400] [--tokens 40] [--out FILE.json]

Each way runs in a process of its own for memory (the peak of the process, the model included), and all in one process
for time: in turn, a round at a time, so that what slows the machine slows all alike. The noise is that of plain against
plain.
"""

import asyncio
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from metaprobe.llms.base import Request
from metaprobe.llms.hidden_capture import Capture, decoder_blocks
from metaprobe.llms.local import LocalLLM
from metaprobe.records.types import Message, Sampling

WAYS = ("plain", "plain again", "4 layers", "all layers", "output_hidden_states")
BATCH = 8


def generated(llm: LocalLLM, way: str, prompt: int, tokens: int) -> float:
    """Seconds for a batch of answers."""
    import torch

    text = " ".join(f"w{i % 97}" for i in range(prompt // 3))
    last = len(decoder_blocks(llm.model))
    layers = {"all layers": range(last + 1), "4 layers": np.linspace(0, last, 4).astype(int).tolist()}.get(way, ())
    llm.capture = Capture(tuple(layers)) if layers else None
    asked = [(f"{way}{i}", (Message("user", f"{i} {text}"),)) for i in range(BATCH)]
    limit = Sampling(max_tokens=tokens)
    requests = [Request(id=name, messages=said, sampling=limit, hidden=bool(layers)) for name, said in asked]
    start = time.perf_counter()
    if way == "output_hidden_states":
        rows = [llm.encode(request.messages) for request in requests]
        ids = torch.tensor([row[: min(map(len, rows))] for row in rows])
        with torch.inference_mode():
            llm.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                output_hidden_states=True,
                return_dict_in_generate=True,
                pad_token_id=0,
            )
    else:

        async def ask() -> None:
            await asyncio.gather(*(llm.complete(request) for request in requests))

        asyncio.run(ask())
    return time.perf_counter() - start


@click.command()
@click.option("--llm", "model", default="smollm2-135m", show_default=True)
@click.option("--pairs", default=6, show_default=True, help="Rounds.")
@click.option("--prompt", default=400, show_default=True, help="About so many tokens a prompt.")
@click.option("--tokens", default=40, show_default=True, help="Generated at most.")
@click.option("--memory-of", "memory_of", type=click.Choice(WAYS), hidden=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path))
def main(model: str, pairs: int, prompt: int, tokens: int, memory_of: str | None, out: Path | None) -> None:
    """Print times relative to plain generation, and peaks of memory."""
    llm = LocalLLM.load(model, batch_size=BATCH)
    if memory_of is not None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        generated(llm, memory_of, prompt, tokens)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps({"loaded_mb": round(before / 1024), "peak_mb": round(peak / 1024)}))
        return
    generated(llm, "plain", prompt, tokens)
    seconds = np.array([[generated(llm, way, prompt, tokens) for way in WAYS[:4]] for _ in range(pairs)])
    ratio = seconds / seconds[:, :1]
    result: dict[str, Any] = {"model": model, "batch": BATCH, "prompt": prompt, "tokens": tokens, "rounds": pairs}
    for i, way in enumerate(WAYS[:4]):
        low, middle, high = np.quantile(ratio[:, i], [0.1, 0.5, 0.9])
        result[way] = {"time": round(float(middle), 3), "from": round(float(low), 3), "to": round(float(high), 3)}
    for way in WAYS[:1] + WAYS[2:]:
        line = [sys.executable, __file__, "--llm", model, "--prompt", str(prompt), "--tokens", str(tokens)]
        said = subprocess.run([*line, "--memory-of", way], check=True, capture_output=True, text=True).stdout
        result.setdefault(way, {}).update(json.loads(said.splitlines()[-1]))
    print(json.dumps(result, indent=2))
    if out is not None:
        out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
