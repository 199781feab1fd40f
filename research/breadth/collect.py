"""Records what three models answer to the items of all families.

    python -m research.breadth.collect --models MODELS [--each N] [NAME ...]

MODELS holds `qwen-coder-0.5b/model.gguf` and `qwen-coder-1.5b/model.gguf`. Each store resumes
where it was stopped, also with a larger N: the items come in a fixed order of which every beginning is a fair sample.
`python -m research.breadth.pack` makes the small copies that are kept in `recorded/`.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import click

from metaprobe.collecting.collect import CollectReport, collect
from metaprobe.llms.base import LLM
from metaprobe.llms.cache import CachedLLM, CallCache
from metaprobe.llms.local import LocalLLM
from metaprobe.pipelines import Models, Setup, System
from metaprobe.records.store import RunStore
from metaprobe.records.types import Item, Run
from research.breadth.asking import ONCE, prompts_of
from research.breadth.items import EACH, breadth_items

MODELS = {
    "smollm2-135m": "smollm2-135m",
    "qwen-coder-0.5b": "{models}/qwen-coder-0.5b/model.gguf",
    "qwen-coder-1.5b": "{models}/qwen-coder-1.5b/model.gguf",
}
ALTERNATIVES = 5
STORES = [f"breadth/{name}" for name in MODELS]


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(STORES))
@click.option("--models", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out"))
@click.option("--each", type=click.IntRange(1, EACH), default=EACH, help="Items of each family.")
@click.option("--batch-size", type=click.IntRange(1), default=64)
def main(names: tuple[str, ...], models: Path, out: Path, each: int, batch_size: int) -> None:
    """Record the named stores, or all in turn, into OUT."""
    for name in names or STORES:
        weights = MODELS[name.partition("/")[2]].format(models=models)
        llm = LocalLLM.load(weights, batch_size=batch_size, top_logprobs=ALTERNATIVES)
        report = asyncio.run(record(ONCE, breadth_items(each), llm, out / name, batch_size))
        click.echo(f"{name}: {report.done} recorded, {report.stored_before} stored before, {len(report.failed)} failed")


async def record(system: System, items: Sequence[Item], llm: LLM, folder: Path, batch_size: int) -> CollectReport:
    """Ask `llm` every item that `folder` does not hold yet. Every finished call is kept in a cache beside it at once.

    Items are asked in blocks of two batches, so that a stop leaves a beginning of the list and not parts of all of it.
    """
    store = RunStore(folder)
    started, told = time.monotonic(), 0

    def tell(run: Run | None, reason: str) -> None:
        nonlocal told
        told += 1
        if told % 200 == 0 or reason:
            click.echo(f"{folder.name}: {told} runs in {time.monotonic() - started:.0f} s {reason}")

    folder.mkdir(parents=True, exist_ok=True)
    with CallCache(folder.with_name(f"{folder.name}-calls.sqlite")) as cache:
        setup = Setup(Models(CachedLLM(llm, cache)), prompts_of(system))
        return await collect(
            system,
            items,
            setup,
            store,
            concurrency=batch_size * 3,
            settings={"items": system.name},
            on_run=tell,
        )


if __name__ == "__main__":
    main()
