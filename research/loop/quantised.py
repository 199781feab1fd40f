"""Records what SmolLM2-135M answers once its weights are quantised further, to the items of the 57 task families.

    python -m research.loop.quantised                     # into out/, or goes on where it stopped; then packs it
    python -m research.loop.measure estimates --data DATA --only quantised      # and recalibration, drift

The weights that come with the package are 4-bit ones with a scale and an offset a block (Q4_1); llama.cpp makes of them
ones with a scale alone (Q4_0). Every item is asked directly, as `research.breadth.collect` asked the model before.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import click

from metaprobe.llms.local import LocalLLM
from metaprobe.llms.weights import DEFAULT_MODEL, embedded_file
from metaprobe.records.store import RunStore
from research.breadth.asking import DIRECT, ONCE
from research.breadth.collect import record
from research.breadth.items import EACH, breadth_items
from research.breadth.pack import table
from research.stores.collect import pack

ROOT = Path(__file__).parent.parent.parent
NAME = f"{DEFAULT_MODEL}-q4_0"
PACKED = ROOT / "recorded" / "quantised" / NAME


@click.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out"))
@click.option("--each", type=click.IntRange(1, EACH), default=EACH, show_default=True, help="Items of each family.")
@click.option("--batch-size", type=click.IntRange(1), default=64)
def main(out: Path, each: int, batch_size: int) -> None:
    """Quantise, record and pack."""
    weights, folder = out / "models" / f"{NAME}.gguf", out / "quantised" / NAME
    if not weights.exists():
        quantise(embedded_file(DEFAULT_MODEL), weights)
    llm = LocalLLM.load(str(weights), batch_size=batch_size)
    system = replace(ONCE, variants=(DIRECT,), default_variants=(DIRECT,))
    report = asyncio.run(record(system, breadth_items(each), llm, folder, batch_size))
    click.echo(f"{NAME}: {report.done} recorded, {report.stored_before} stored before, {len(report.failed)} failed")
    PACKED.parent.mkdir(exist_ok=True)
    pack(folder, PACKED, text=True, alternatives=lambda run: False)
    click.echo(table(list(RunStore(PACKED).runs(hidden=False)))[-1])


def quantise(source: Path, target: Path) -> None:
    """Writes the weights of a GGUF file as Q4_0. The file appears whole or not at all."""
    import llama_cpp

    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_suffix(".partial")
    how = llama_cpp.llama_model_quantize_default_params()
    how.ftype, how.allow_requantize, how.nthread = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, True, 1
    if llama_cpp.llama_model_quantize(str(source).encode(), str(beside).encode(), how):
        beside.unlink(missing_ok=True)
        raise click.ClickException(f"llama.cpp could not quantise {source}")
    beside.replace(target)


if __name__ == "__main__":
    main()
