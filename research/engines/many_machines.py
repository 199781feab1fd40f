"""How fast one worker reads recorded calls again, in seconds of the processor: so that a busy machine does not count.

python -m research.engines.many_machines --out docs/measured/many_machines.json
"""

import json
import time
from pathlib import Path

import click
import torch

from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import StateReplay
from metaprobe.records.store import RunStore
from research.blocks import ROOT, write_figures

STORE = ROOT / "recorded" / "smollm2-135m-arithmetic"
CALLS = 48


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(out: Path) -> None:
    """Loads SmolLM2-135M, reads calls at all layers on one thread, and records the rate."""
    torch.set_num_threads(1)
    llm = LocalLLM.load("smollm2-135m")
    start = time.process_time()
    replay = StateReplay(llm)
    calls = [call for run in RunStore(STORE) for call in run.calls if call.stage == "answer"][:CALLS]
    readings = [replay.reading(call, "") for call in calls]
    begun = time.process_time()
    read = replay.read(readings, batch_size=16)
    seconds = time.process_time() - begun
    tokens = sum(reading.tokens for reading in readings)
    found = {
        "calls": len(read),
        "tokens_per_call": tokens / len(read),
        "tokens_per_s": tokens / seconds,
        "start_s": start,
        "bytes_per_call": read[0].hidden.values.nbytes,
    }
    write_figures(out, found)
    click.echo(json.dumps(found))


if __name__ == "__main__":
    main()
