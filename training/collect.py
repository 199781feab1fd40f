"""Runs a system over a task, keeps every run, and labels every answer that a program can check."""

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metaprobe.eval.tasks.loading import DEFAULT_SEED, load_task
from metaprobe.eval.tasks.scoring import is_correct
from metaprobe.llms.base import LLM, LLMError
from metaprobe.pipelines import SYSTEMS, Prompts, System
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.extras import require
from metaprobe.records.store import RunStore
from metaprobe.records.types import Item, Label, Run
from metaprobe.records.writer import RunWriter

SETTINGS_FILE = "collection.json"


@dataclass(frozen=True, slots=True)
class CollectReport:
    """What a collection did."""

    done: int
    """Runs collected now."""
    stored_before: int
    """Runs that were already there and were not repeated."""
    failed: tuple[str, ...] = field(default=())
    """`run id: reason` of runs that did not come to an end; they are tried again next time."""


async def collect(
    system: System,
    items: Sequence[Item],
    llm: LLM,
    store: RunStore,
    *,
    prompts: Prompts,
    variants: Sequence[str] = (),
    concurrency: int = 128,
    shard_runs: int = 64,
    text: bool = True,
    settings: Mapping[str, Any] | None = None,
    on_run: Callable[[Run | None], None] = lambda run: None,
) -> CollectReport:
    """Run `system` on every item in every variant (all by default) and append the runs to `store`.

    Resumes: runs already stored are skipped. A kill at any moment loses at most the runs of the unfinished shard.
    `on_run` is called for each run, with None where it failed or was stored before. Raises `StoreMismatch` where the
    store was collected with another model, other prompts, another system or other `settings`.
    """
    asked_with = {"system": system.name, "model": llm.name, "revision": llm.revision, "prompts": prompts.digest}
    pin_settings(store.path, {**asked_with, **(settings or {})})
    wanted = [(item, variant) for item in items for variant in (variants or system.variants)]
    stored = store.run_ids()
    todo = [(item, variant) for item, variant in wanted if run_id(system, variant, llm.name, item) not in stored]
    for _ in range(len(wanted) - len(todo)):
        on_run(None)
    gate = asyncio.Semaphore(concurrency)
    failed: list[str] = []

    async def one(item: Item, variant: str, writer: RunWriter) -> None:
        async with gate:
            identity = run_id(system, variant, llm.name, item)
            try:
                run = await system.run(item, llm, variant=variant, run_id=identity, prompts=prompts)
            except LLMError as error:
                failed.append(f"{identity}: {error}")
                on_run(None)
                return
            labelled = await asyncio.to_thread(label, run, system)
            writer.add(labelled)
            on_run(labelled)

    with store.writer(shard_runs=shard_runs, text=text) as writer:
        try:
            async with asyncio.TaskGroup() as tasks:
                for item, variant in todo:
                    tasks.create_task(one(item, variant, writer))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None  # the others are the same, or follow from it
    return CollectReport(done=len(todo) - len(failed), stored_before=len(wanted) - len(todo), failed=tuple(failed))


def collect_local(
    system: str,
    task: str,
    model: str,
    out: Path,
    *,
    limit: int | None = None,
    task_seed: int = DEFAULT_SEED,
    variants: Sequence[str] = (),
    prompts_folder: Path | None = None,
    capture: str | None = None,
    top_logprobs: int = 0,
    batch_size: int = 32,
    concurrency: int = 128,
    shard_runs: int = 64,
    text: bool = True,
    on_total: Callable[[int], None] = lambda total: None,
    on_run: Callable[[Run | None], None] = lambda run: None,
) -> CollectReport:
    """`collect` by names: a system, a task set or file of items, a model that `llms.weights.resolve` finds.

    `capture`: layers whose hidden states are kept at every answer: `all`, `every:N`, or numbers such as `0,8,16`.
    """
    if system not in SYSTEMS:
        raise RecordError(f"no system {system!r}; there are: {', '.join(SYSTEMS)}")
    chosen = SYSTEMS[system]
    if unknown := [variant for variant in variants if variant not in chosen.variants]:
        raise RecordError(f"{system} has no variant {unknown[0]!r}; there are: {', '.join(chosen.variants)}")
    items = load_task(task, seed=task_seed, limit=limit)
    prompts = Prompts.load(chosen.name, chosen.prompts, prompts_folder)
    require("torch", "train")
    from metaprobe.llms.local import LocalLLM  # not above: a replayed collection needs no torch

    llm = LocalLLM.load(model, batch_size=batch_size, top_logprobs=top_logprobs, layers=capture)
    on_total(len(items) * len(variants or chosen.variants))
    return asyncio.run(
        collect(
            chosen,
            items,
            llm,
            RunStore(out),
            prompts=prompts,
            variants=variants,
            concurrency=concurrency,
            shard_runs=shard_runs,
            text=text,
            settings={"capture": capture, "top_logprobs": top_logprobs, "text": text},
            on_run=on_run,
        )
    )


def run_id(system: System, variant: str, model: str, item: Item) -> str:
    """The same for the same system, variant, model and item, so that a collection can resume.

    An item whose question or gold answer changed is another item, though it has the same id.
    """
    asked = hashlib.sha256(json.dumps([item.question, item.choices, item.gold]).encode()).hexdigest()
    return f"{system.name}/{variant}/{model}/{item.id}/{asked[:8]}"


def label(run: Run, system: System) -> Run:
    """The run with a program's `correct` label on every answer, and its outcome; unchanged if nothing can check it."""
    if run.item.check == "none":
        return run
    answers = {
        call.id: system.extract_answer(run.item, call, variant=run.variant)
        for call in run.calls
        if call.stage in system.answer_stages
    }
    # Each distinct answer once: checking a function starts a process.
    right = {text: float(is_correct(run.item, text)) for text in {*answers.values(), run.final_answer}}
    labels = [
        Label(call_id=call, name="correct", value=right[text], source="program") for call, text in answers.items()
    ]
    return dataclasses.replace(run, labels=(*run.labels, *labels), outcome=right[run.final_answer])


def pin_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write down what a store is collected with; refuse to go on with something else."""
    path = folder / SETTINGS_FILE
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        if changed := [key for key in settings if before.get(key) != settings[key]]:
            was = ", ".join(f"{key} {before.get(key)!r}, now {settings[key]!r}" for key in changed)
            raise StoreMismatch(f"{folder} was collected with {was}: collect into another folder, or delete this one")
        return
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
