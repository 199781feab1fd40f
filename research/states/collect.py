"""Records what two coders say and how sure they are, on the lists of items that the probes are measured on.

    python -m research.states.collect --models MODELS --data DATA [--out OUT] [--until ROUND] [JOB ...]
    python -m research.states.collect --models MODELS --data DATA --pack [JOB ...]

MODELS holds `qwen-coder-0.5b/model.gguf` and `qwen-coder-1.5b/model.gguf`. Jobs are done in rounds, so that a stop at
any moment leaves equal beginnings of all lists. Every finished call is kept in a cache in OUT, finished runs in stores,
and what stands in `recorded/states/` already is not asked again. Several processes may work at once: each takes the
next store that no other holds. No states are kept: LAYERS and POSITIONS say which to read again from the packed runs.
"""

import asyncio
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from metaprobe.llms.base import LLM
from metaprobe.llms.cache import CallCache
from metaprobe.papers.collecting.collect import collect_runs
from metaprobe.papers.systems import SYSTEMS, Models, Prompts, Setup, System
from metaprobe.papers.systems.system_options import Options
from metaprobe.records.errors import StoreHeld
from metaprobe.records.store import RunStore
from metaprobe.records.types import Item, Run
from research.states.asking import DIRECT, SAMPLED, STATED, WORKED
from research.states.items import ITEMS
from research.stores.collect import ALL, NONE, pack

KEPT = Path(__file__).parent.parent.parent / "recorded" / "states"
MODELS = ("qwen-coder-1.5b", "qwen-coder-0.5b")
ALTERNATIVES = 5
LAYERS = "every:2"
POSITIONS = ("prompt_last", "answer_mean", "before_exact", "answer_last")
"""Positions that `metaprobe extract` reads again for the probes, of the calls at stage `answer`."""


@dataclass(frozen=True, slots=True)
class Job:
    """One store: a list of items, and what is asked about each."""

    items: str
    most: int
    """Items at the end."""
    system: System = SYSTEMS["self-report"]
    variant: str = "p-true"
    constants: Mapping[str, int] = field(default_factory=dict)
    text: bool = True
    """Whether texts may be given on."""
    alternatives: bool = True
    """Whether the packed store keeps the likeliest tokens of the answers."""
    after: int = 0
    """Number of the round from which on it is done."""


JOBS = {
    "places": Job("places", 3000),
    "true-false": Job("true-false", 2000, STATED, DIRECT),
    "creak": Job("creak", 2000, STATED, DIRECT),
    "arithmetic": Job("arithmetic", 2000),
    "triviaqa": Job("triviaqa", 2000),
    "mmlu": Job("mmlu", 2000, STATED, DIRECT),
    "bbq": Job("bbq", 1550, STATED, DIRECT),
    "true-false-others": Job("true-false-others", 1000, STATED, DIRECT, text=False, after=4),
    "metacog-eval-samples": Job("metacog-eval", 700, SAMPLED, "plain", {"samples": 8}, alternatives=False, after=1),
    "places-samples": Job("places", 500, SAMPLED, "plain", alternatives=False, after=1),
    "triviaqa-samples": Job("triviaqa", 500, SAMPLED, "plain", alternatives=False, after=1),
    "arithmetic-samples": Job("arithmetic", 500, SAMPLED, "plain", alternatives=False, after=1),
    "gsm8k": Job("gsm8k", 1000, STATED, WORKED, after=4),
}
"""Name of a store -> what is in it, the most wanted first."""
ROUNDS = (64, 200, 500, 1000, 2000, 3000)
"""Items of each list at the end of each round."""


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(JOBS)))
@click.option("--models", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out/states"))
@click.option("--model", "asked", type=click.Choice(MODELS), multiple=True, help="Only this model.")
@click.option("--until", type=click.IntRange(1, len(ROUNDS)), default=len(ROUNDS), help="Last round.")
@click.option("--batch-size", type=click.IntRange(1), default=64)
@click.option("--engine", type=click.Choice(["", "vllm:"]), default="", help="By vLLM, in its environment.")
@click.option("--pack", "packs", is_flag=True, help="Ask nothing; pack what is there into recorded/states/.")
def main(
    names: tuple[str, ...],
    models: Path,
    data: Path,
    out: Path,
    asked: tuple[str, ...],
    until: int,
    batch_size: int,
    engine: str,
    packs: bool,
) -> None:
    """Ask the models in turn, or pack."""
    jobs = {name: JOBS[name] for name in names or JOBS}
    for model in asked or MODELS:
        if packs:
            for name in jobs:
                keep(out / model / name, KEPT / model / name, JOBS[name])
            continue
        llm = loaded(f"{engine}{models / model / 'model.gguf'}", batch_size)
        with CallCache(folder(out / model) / "calls.sqlite") as cache:
            asyncio.run(work(jobs, cache.wrap(llm), data, out / model, until, batch_size))


def loaded(weights: str, batch_size: int) -> LLM:
    """Returns the model in the engine that its prefix names."""
    if weights.startswith("vllm:"):
        from metaprobe.llms.vllm_engine import EngineLLM

        # Its blocks are what a prefix is shared by: those of 128 tokens would share nothing of these prompts.
        options = {"block_size": 32, "max_model_len": 2048, "max_num_seqs": batch_size}
        return EngineLLM.load(weights.removeprefix("vllm:"), top_logprobs=ALTERNATIVES, **options)
    from metaprobe.llms.local import LocalLLM

    return LocalLLM.load(weights, batch_size=batch_size, top_logprobs=ALTERNATIVES)


async def work(jobs: Mapping[str, Job], llm: LLM, data: Path, out: Path, until: int, batch_size: int) -> None:
    """Do all jobs, round by round; one that another process is at is left to it, and looked at again."""
    lists = {name: ITEMS[name](data) for name in {job.items for job in jobs.values()}}
    for number, count in enumerate(ROUNDS[:until]):
        left = [name for name, job in jobs.items() if job.after <= number]
        while left:
            held = []
            for name in left:
                items = lists[jobs[name].items][: min(count, jobs[name].most)]
                try:
                    await record(name, jobs[name], items, llm, out, batch_size)
                except StoreHeld:
                    held.append(name)
            if held == left:
                break  # the other process does these, and this one goes on with the next round
            left = held


async def record(name: str, job: Job, items: list[Item], llm: LLM, out: Path, batch_size: int) -> None:
    """Ask what the store `name` does not hold yet, and say how many answers came and how many are right."""
    store = RunStore(begun(out / name, KEPT / out.name / name))
    started = time.monotonic()
    right: dict[str, list[float]] = defaultdict(list)
    tokens = 0

    def tell(run: Run | None, reason: str) -> None:
        nonlocal tokens
        if run is None:
            click.echo(f"{out.name}/{name}: {reason}", err=True)
            return
        tokens += sum(call.usage.completion_tokens for call in run.calls)
        right[run.item.dimension].append(run.outcome or 0.0)

    setup = Setup(
        Models(llm),
        Prompts.load(job.system.folder or job.system.name, job.system.prompts),
        options=Options(constants=dict(job.constants)),
    )
    report = await collect_runs(
        job.system, items, setup, store, variants=(job.variant,), concurrency=batch_size * 3, on_run=tell
    )
    if report.done:
        seconds = time.monotonic() - started
        values = [value for some in right.values() for value in some]
        click.echo(
            f"{time.strftime('%H:%M')} {out.name}/{name}: {report.stored_before} + {report.done} runs, "
            f"{sum(values) / len(values):.3f} right, {seconds:.0f} s, {tokens / seconds:.1f} tokens/s; "
            + ", ".join(f"{kind} {sum(some) / len(some):.2f}" for kind, some in sorted(right.items())[:8])
        )
        sys.stdout.flush()


def begun(path: Path, kept: Path) -> Path:
    """Returns the store at `path`, which begins with what is kept of it in the repository."""
    if not path.exists() and kept.exists():
        partial = folder(path.parent) / f".{path.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(kept, partial)
        partial.rename(path)
    return path


def keep(runs: Path, packed: Path, job: Job) -> None:
    """Pack one store, where there is one."""
    if runs.exists() and len(RunStore(runs)):
        packed.parent.mkdir(parents=True, exist_ok=True)
        pack(runs, packed, text=job.text, alternatives=ALL if job.alternatives else NONE)


def folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


if __name__ == "__main__":
    main()
