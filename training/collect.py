"""Runs a system over a task, keeps every run, and labels every answer that a program can check."""

import asyncio
import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metaprobe.eval.tasks.scoring import is_correct
from metaprobe.pipelines import Session, Setup, System
from metaprobe.pipelines.contract import check
from metaprobe.pipelines.session import UNREAD
from metaprobe.probes.signals import STATED, Signal
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.store import RunStore
from metaprobe.records.types import Item, Label, Run
from metaprobe.records.writer import RunWriter
from metaprobe.routing.paper import THRESHOLDS, PaperRules
from metaprobe.routing.profiles import Experience, Profiles

SETTINGS_FILE = "collection.json"
FAILURES_FILE = "failed.jsonl"

OnRun = Callable[[Run | None, str], None]
"""Told of each run that has ended: the run and "", or None and why it failed."""


@dataclass(frozen=True, slots=True)
class CollectReport:
    """What a collection did."""

    done: int
    """Runs collected now."""
    stored_before: int
    """Runs that were already there and were not repeated."""
    failed: tuple[str, ...] = field(default=())
    """`run id: reason` of runs that did not come to an end; they are tried again next time."""
    unread: dict[str, int] = field(default_factory=dict)
    """Name of a signal -> calls that its checkpoint should have read and could not."""


async def collect(
    system: System,
    items: Sequence[Item],
    setup: Setup,
    store: RunStore,
    *,
    variants: Sequence[str] = (),
    concurrency: int = 128,
    shard_runs: int = 64,
    text: bool = True,
    wave: int = 8,
    settings: Mapping[str, Any] | None = None,
    on_run: OnRun = lambda run, reason: None,
) -> CollectReport:
    """Run `system` on every item in these variants (its default ones where none is given) and append to `store`.

    Resumes: runs already stored are skipped. A kill at any moment loses at most the runs of the unfinished shard, and
    their calls only if no cache keeps them. A run that fails, whatever the reason, is reported and no other is harmed;
    the reasons also stand in the store's `failed.jsonl`. Where the agents learn, `wave` items run at once and the next
    ones see what came of them, in the items' order: 1 is the paper's own sequence. Raises `StoreMismatch` where the
    store was collected with another system, model, prompts, policy, signals or `settings`, and `RecordError` for a
    signal or policy that the system cannot use (`metaprobe.pipelines.contract`).
    """
    check(system, variants, setup.signals, setup.policy, agents=setup.agents)
    pinned = settings_of(system, setup, text=text)
    if system.experiences is not None:  # what an item sees depends on those before it
        pinned |= {"wave": wave}
    pin_settings(store.path, {**pinned, **(settings or {})})
    stored = store.run_ids()
    failed: list[str] = []
    unread: Counter[str] = Counter()
    counts = {"done": 0, "before": 0}
    gate = asyncio.Semaphore(concurrency)

    places = {item.id: place for place, item in enumerate(items)}

    async def one(item: Item, variant: str, setup: Setup, writer: RunWriter) -> Run | None:
        async with gate:
            identity = run_id(system, variant, setup, item)
            index = places[item.id]
            try:
                session = Session(setup, item, system=system.name, variant=variant, run_id=identity, index=index)
                run = await system.run(session)
                labelled = await asyncio.to_thread(label, run, system)
            except RecordError as error:
                failed.append(f"{identity}: {error}")
                on_run(None, str(error))
                return None
            writer.add(labelled)
            counts["done"] += 1
            unread.update(note.name.removeprefix(UNREAD) for note in run.labels if note.name.startswith(UNREAD))
            on_run(labelled, "")
            return labelled

    async def run_all(pairs: Sequence[tuple[Item, str]], setup: Setup, writer: RunWriter) -> list[Run]:
        new = [(item, variant) for item, variant in pairs if run_id(system, variant, setup, item) not in stored]
        counts["before"] += len(pairs) - len(new)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(item, variant, setup, writer)) for item, variant in new]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the others are the same, or follow from it
        return [run for task in tasks if (run := task.result()) is not None]

    chosen = tuple(variants) or system.chosen_by_default
    with store.writer(shard_runs=shard_runs, text=text) as writer:
        if system.experiences is None:
            await run_all([(item, variant) for item in items for variant in chosen], setup, writer)
        else:
            before = {run.id: run for run in store.runs(hidden=False)} if stored else {}
            for variant in chosen:
                past: list[Experience] = []
                for start in range(0, len(items), wave):
                    now = items[start : start + wave]
                    profiles = Profiles(past, initial=setup.profiles.initial, rate=setup.profiles.rate)
                    learned = dataclasses.replace(setup, profiles=profiles)
                    known = {run.id: run for run in await run_all([(item, variant) for item in now], learned, writer)}
                    ids = [run_id(system, variant, setup, item) for item in now]
                    ended = [known.get(identity) or before.get(identity) for identity in ids]
                    past += [experience for run in ended if run is not None for experience in system.experiences(run)]
    note_failures(store.path, failed)
    return CollectReport(counts["done"], counts["before"], tuple(failed), dict(unread))


def run_id(system: System, variant: str, setup: Setup, item: Item) -> str:
    """The same for the same system, variant, models, policy, signals and item, so that a collection can resume.

    An item whose question or gold answer changed is another item, though it has the same id.
    """
    digest = _digest([_asked(item), repr(setup.policy), setup.signals.description, setup.seed])
    return f"{system.name}/{variant}/{setup.models.description}/{item.id}/{digest}"


def label(run: Run, system: System) -> Run:
    """The run with a program's `correct` label on every answer, and its outcome; unchanged if nothing can check it."""
    if run.item.check == "none":
        return run
    answers = {
        call.id: system.extract_answer(run.item, call, run.variant)
        for call in run.calls
        if call.stage in system.answer_stages
    }
    # Each distinct answer once: checking a function starts a process.
    right = {text: float(is_correct(run.item, text)) for text in {*answers.values(), run.final_answer}}
    labels = [
        Label(call_id=call, name="correct", value=right[text], source="program") for call, text in answers.items()
    ]
    return dataclasses.replace(run, labels=(*run.labels, *labels), outcome=right[run.final_answer])


def settings_of(system: System, setup: Setup, *, text: bool) -> dict[str, Any]:
    """What a store's runs have in common."""
    models = setup.models
    return {
        "system": system.name,
        "model": models.description,
        "revision": "+".join(llm.revision for llm in models.all),
        "endpoints": [how for llm in models.all if (how := getattr(llm, "asked_how", ""))],
        "prompts": setup.prompts.digest,
        "policy": repr(setup.policy),
        "signals": setup.signals.description,
        "agents": list(setup.agents),
        "seed": setup.seed,
        "text": text,
        "top_logprobs": max(llm.capabilities.top_logprobs for llm in models.all),
        **_operating_points(system, setup),
    }


def _operating_points(system: System, setup: Setup) -> dict[str, Any]:
    """Which threshold each number that a checkpoint gives meets at each point, as the papers' rules have it.

    Nothing where no checkpoint gives one that is held against a threshold.
    """
    rules = setup.policy if isinstance(setup.policy, PaperRules) else getattr(setup.policy, "rules", None)
    if not isinstance(rules, PaperRules):
        return {}
    found = {}
    for key in setup.signals.description:
        name, _, agent = key.partition("@")
        replacement = setup.signals.replacement(name, agent)
        for point, (signal, constant) in THRESHOLDS.items():
            if replacement is not None and signal == name and point in system.decides:
                source = STATED * replacement.with_stated + replacement.digest
                number = Signal(0.0, source, replacement.thresholds)
                value, whose = rules.threshold_of(number, point, constant)
                found[f"{point}: {key}"] = f"{value:.6g}{whose}"
    return {"operating points": found} if found else {}


def note_failures(folder: Path, failed: Sequence[str]) -> None:
    """Write every failed run and its reason beside the runs; nothing failed, nothing is there."""
    path = folder / FAILURES_FILE
    if not failed:
        path.unlink(missing_ok=True)
        return
    pairs = (line.partition(": ")[::2] for line in failed)
    lines = [json.dumps({"run": run, "reason": reason}) for run, reason in pairs]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def pin_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write down what a store is collected with; refuse to go on with something else."""
    path = folder / SETTINGS_FILE
    if path.is_file():
        try:
            before = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise StoreMismatch(
                f"{path} is damaged ({error}), so it is not known what was collected here: collect into another folder"
            ) from error
        if changed := [key for key in settings if before.get(key) != settings[key]]:
            was = ", ".join(f"{key} {before.get(key)!r}, now {settings[key]!r}" for key in changed)
            raise StoreMismatch(f"{folder} was collected with {was}: collect into another folder, or delete this one")
        return
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def _asked(item: Item) -> list[Any]:
    """What makes an item the one that it is, beside its id."""
    return [item.question, item.choices, item.gold, item.check, item.fields]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
