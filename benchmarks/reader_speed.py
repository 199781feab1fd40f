"""How long the embedded reader takes for a prompt of 64 tokens, on one thread, at each layer that training may choose.

    python -m benchmarks.reader_speed [--out FILE.json]

The processor's time of the thread is given beside the wall clock, which counts what other programs took meanwhile.
Prompts are distinct, so that none is cached.
"""

import json
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from metaprobe.probes.prompt_reader import MEAN, PromptReader, PromptTokens
from metaprobe.training.recipes.prompt_states import cut_reader, output_name, reader_files

TOKENS = 64
"""Tokens of a prompt, without those of the chat template."""
WORD = " cat"
"""A word of one token; so is a digit."""


def prompt(number: int) -> str:
    """Returns a prompt of `TOKENS` tokens that no other number gives; `number` is below 1,000."""
    return f"{number:03d}" + WORD * (TOKENS - 3)


@click.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--turns", default=5, show_default=True, help="The turn with the lowest median counts.")
@click.option("--calls", default=9, show_default=True, help="Prompts a turn.")
def main(out: Path | None, turns: int, calls: int) -> None:
    """Times the reader at each of its layers."""
    files = reader_files("smollm2-135m", [prompt(number) for number in range(16)])
    tokens = PromptTokens(files.tokenizer, files.layout)
    around = len(files.layout.prefix) + len(files.layout.suffix)
    found: dict[str, Any] = {"read_tokens": len(tokens.ids([prompt(0)])[0]), "layers": {}}
    if found["read_tokens"] != TOKENS + around:
        raise click.ClickException(f"the prompt has {found['read_tokens'] - around} tokens; expected {TOKENS}")
    for layer in files.layers:
        reader = PromptReader(cut_reader(files.graph, output_name(layer, MEAN)), tokens)
        reader.state(prompt(999))
        medians = []
        for turn in range(turns):
            taken = []
            for call in range(calls):
                text = prompt(turn * calls + call)
                wall, processor = time.perf_counter(), time.thread_time()
                reader.state(text)
                taken.append((time.perf_counter() - wall, time.thread_time() - processor))
            medians.append(np.median(taken, axis=0) * 1e3)
        wall_ms, processor_ms = np.min(medians, axis=0).round(1).tolist()
        found["layers"][str(layer)] = {"processor_ms": processor_ms, "wall_ms": wall_ms}
        print(f"layer {layer}: {processor_ms} ms of the processor, {wall_ms} ms in all", flush=True)
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
