"""Runs a system over a task, stores every run, and labels every answer that a program can check."""

import asyncio
import copy
import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from metaprobe.api import (
    Item,
    Label,
    Outcome,
    PaperRules,
    Policy,
    RecordError,
    Run,
    RunStore,
    Signal,
    Unwritable,
    atomic_write,
    is_correct,
)
from metaprobe.papers.policies.explore import learns
from metaprobe.papers.systems import Session, Setup, System
from metaprobe.papers.systems.session import UNREAD_PREFIX
from metaprobe.papers.systems.suitability import check_suitability

OnRun = Callable[[Run | None, str], None]
"""Called when a run has ended: with the run and "", or with None and the reason of its failure."""


@dataclass(frozen=True, slots=True)
class CollectReport:
    """Says what a collection did."""

    done: int
    """Number of runs collected now."""
    stored_before: int
    """Number of runs that were already stored and were not repeated."""
    failed: tuple[str, ...] = field(default=())
    """`run id: reason` for each run that failed; these are tried again next time."""
    unread: dict[str, int] = field(default_factory=dict)
    """Maps the name of a signal to the number of calls that its checkpoint should have read and could not."""
    cut: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Maps a stage of answers to the number that its token limit ended, and the number of all; only stages with any."""


async def collect_runs(
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
    """Runs `system` on every item in these variants (by default the system's default ones), and appends the runs to
    `store`.

    Runs that are already stored are skipped. A kill at any moment loses at most the runs of the unfinished shard, and
    their calls only if no cache keeps them. A run that fails, whatever the reason, is reported and does not affect
    others; the reasons are also in the store's `failed.jsonl`. The policy learns the outcomes of runs (`observe`) in
    the items' order. If the agents or the policy learn, `wave` items run at once, and the next items use what these
    have taught; 1 is the paper's own sequence.

    Raises `StoreMismatch` if the store was collected with another system, model, prompts, policy, signals, options or
    `settings`. Raises `StoreHeld` if another process writes into it. Raises `RecordError` as `check_learners` does, and
    for a signal or policy that the system cannot use (`metaprobe.papers.systems.suitability`). Raises `Unwritable` at
    the first answer that cannot be stored, as on a full disk: then no model is asked again, and the message says how
    many runs are stored.

    Args:
        system: the system.
        items: the items.
        setup: models, policy, signals, prompts and options.
        store: the run store.
        variants: the variants.
        concurrency: most runs at once.
        shard_runs: runs in one file.
        text: whether texts and token ids are stored.
        wave: items that run at once if something learns.
        settings: further settings that the store is pinned to.
        on_run: called when a run has ended.
    """
    chosen_variants = system.chosen(variants)
    check_suitability(system, variants, setup.signals, setup.policy, agents=setup.agents)
    check_learners(setup.policy, chosen_variants)
    in_waves = system.experiences is not None or learns(setup.policy)
    with store.alone(), say_what_is_stored(store):
        store_settings_now = all_settings(system, setup, text, wave, settings)
        if not store.check_settings(store_settings_now, assumed_settings(system)):
            store.path.mkdir(parents=True, exist_ok=True)
            with atomic_write(store.path / RunStore.settings_name) as file:
                file.write((json.dumps(store_settings_now, indent=2) + "\n").encode())
        with store.writer(shard_runs=shard_runs, text=text) as writer:
            collecting = _Collecting(system, items, setup, store.run_ids(), writer.add, concurrency, on_run)
            if in_waves:
                stored_by_id = {run.id: run for run in store.runs(hidden=False)} if collecting.stored else {}
                for variant in chosen_variants:
                    await collecting.in_waves(variant, wave, stored_by_id)
            else:
                for run in await collecting.together(
                    [(item, variant) for item in items for variant in chosen_variants]
                ):
                    report_outcomes(setup.policy, run)
    if collecting.failed:
        pairs = (line.partition(": ")[::2] for line in collecting.failed)
        with atomic_write(store.path / RunStore.failures_name) as file:
            file.write("".join(json.dumps({"run": run, "reason": fault}) + "\n" for run, fault in pairs).encode())
    else:
        (store.path / RunStore.failures_name).unlink(missing_ok=True)
    return collecting.report()


@contextmanager
def say_what_is_stored(store: RunStore) -> Iterator[None]:
    """Adds to an `Unwritable` how many runs are stored, and how to go on."""
    try:
        yield
    except Unwritable as error:
        raise Unwritable(
            f"{error}. Nothing more is asked. {len(store)} runs are stored in {store.path}: make room, and run the "
            "same again, which goes on from there"
        ) from error


class _Collecting:
    """The runs of one collection as they end."""

    def __init__(
        self,
        system: System,
        items: Sequence[Item],
        setup: Setup,
        stored: Set[str],
        store_run: Callable[[Run], object],
        concurrency: int,
        on_run: OnRun,
    ) -> None:
        """Sets up the collection.

        Args:
            system: the system that runs.
            items: the items.
            setup: models, prompts, policy and signals of the runs.
            stored: ids of the runs that are already stored.
            store_run: called with each new run, to store it.
            concurrency: number of runs at once.
            on_run: called with each run that ended, and with the reason why a run failed.
        """
        self.system, self.items, self.setup, self.stored = system, items, setup, stored
        self.done = self.stored_before = 0
        self.failed: list[str] = []
        self.unread: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.cut: Counter[str] = Counter()
        self._index_of_item = {item.id: index for index, item in enumerate(items)}
        self._store_run, self._on_run = store_run, on_run
        self._gate = asyncio.Semaphore(concurrency)

    def report(self) -> CollectReport:
        """Returns what was done."""
        cut = {stage: (count, self.answers[stage]) for stage, count in self.cut.items()}
        return CollectReport(self.done, self.stored_before, tuple(self.failed), dict(self.unread), cut)

    async def in_waves(self, variant: str, wave: int, stored_by_id: Mapping[str, Run]) -> None:
        """Runs all items in one variant, `wave` at once; the agents' profiles learn from each wave.

        A wave is written in the items' order.

        Args:
            variant: the variant.
            wave: number of items at once.
            stored_by_id: the stored runs by id; the profiles learn from them as well.
        """
        profiles = copy.deepcopy(self.setup.profiles)
        for start in range(0, len(self.items), wave):
            wave_items = self.items[start : start + wave]
            setup = dataclasses.replace(self.setup, profiles=profiles)
            ended_runs = {run.id: run for run in await self.together([(item, variant) for item in wave_items], setup)}
            for item in wave_items:
                identity = run_id(self.system, variant, self.setup, item)
                if identity in ended_runs:
                    self._store_run(ended_runs[identity])
                if run := ended_runs.get(identity) or stored_by_id.get(identity):
                    report_outcomes(self.setup.policy, run)
                    for experience in self.system.experiences(run) if self.system.experiences else ():
                        profiles.learn(experience)

    async def together(self, pairs: Sequence[tuple[Item, str]], setup: Setup | None = None) -> list[Run]:
        """Returns the runs of these items and variants that are new and did not fail, in their order.

        If `setup` is given, runs use it, because profiles have learned meanwhile, and nothing is written yet. Ids are
        made from the first setup.
        """
        ids = [run_id(self.system, variant, self.setup, item) for item, variant in pairs]
        new = [(identity, *pair) for identity, pair in zip(ids, pairs, strict=True) if identity not in self.stored]
        self.stored_before += len(pairs) - len(new)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._collect_item(*arguments, setup)) for arguments in new]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the other errors are the same, or follow from the first
        return [run for task in tasks if (run := task.result()) is not None]

    async def _collect_item(self, identity: str, item: Item, variant: str, setup: Setup | None) -> Run | None:
        async with self._gate:
            name, index = self.system.name, self._index_of_item[item.id]
            try:
                session = Session(setup or self.setup, item, system=name, variant=variant, run_id=identity, index=index)
                run = await self.system.run_session(session)
                labelled = await asyncio.to_thread(label_run, run, self.system)
            except Unwritable:  # the next answer could not be stored either
                raise
            except RecordError as error:
                self.failed.append(f"{identity}: {error}")
                self._on_run(None, str(error))
                return None
            if setup is None:  # a wave is written when it has ended
                self._store_run(labelled)
            self.done += 1
            self.unread.update(
                note.name.removeprefix(UNREAD_PREFIX) for note in run.labels if note.name.startswith(UNREAD_PREFIX)
            )
            answers = [call for call in run.calls if call.stage in self.system.answer_stages]
            self.answers.update(self.system.limited(call.stage) for call in answers)
            cut = [call for call in answers if call.finish_reason == "length"]
            self.cut.update(self.system.limited(call.stage) for call in cut)
            self._on_run(labelled, "")
            return labelled


def check_learners(policy: Policy, variants: Sequence[str]) -> None:
    """Raises `RecordError` if two variants would learn from each other."""
    if len(variants) > 1 and learns(policy):
        raise RecordError(
            f"variants {', '.join(variants)} with a policy that learns: each would see what came of the other; collect "
            "one at a time"
        )


def report_outcomes(policy: Policy, run: Run) -> None:
    """Reports to a policy the outcome of each decision of a run: all of them led to its answer, cost and time.

    Cost and time are sums over the calls, None if no call has one.
    """
    costs = [call.cost_usd for call in run.calls if call.cost_usd is not None]
    times = [call.latency_ms for call in run.calls if call.latency_ms is not None]
    outcome = Outcome(run.outcome, sum(costs) if costs else None, sum(times) if times else None)
    for decision in run.decisions:
        policy.observe(decision.id, outcome)


def run_id(system: System, variant: str, setup: Setup, item: Item) -> str:
    """Returns an id that depends only on the system, variant, models, policy, signals, seed, options and item.

    A resumed collection finds finished runs by this id. An item whose question or gold answer changed is another item,
    even with an unchanged `item.id`.

    Args:
        system: the system.
        variant: the variant.
        setup: the setup.
        item: the item.
    """
    panel_digest = [setup.panel.checkpoint.digest] if setup.panel and variant in system.panel_variants else []
    descriptions = [*setup.options.description, *panel_digest]  # nothing by default
    parts_of_item = [item.question, item.choices, item.gold, item.check, item.fields]
    content = json.dumps(
        [parts_of_item, repr(setup.policy), setup.signals.description, setup.seed, *descriptions], sort_keys=True
    )
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    return f"{system.name}/{variant}/{setup.models.description}/{item.id}/{digest}"


def label_run(run: Run, system: System) -> Run:
    """Returns the run with a program's `correct` label on every answer, and its outcome; unchanged if nothing can check
    it.
    """
    if run.item.check == "none":
        return run
    answers = {
        call.id: system.extract_answer(run.item, call, run.variant)
        for call in run.calls
        if call.stage in system.answer_stages
    }
    # Each distinct answer is checked once, because checking a function starts a process.
    right = {text: float(is_correct(run.item, text)) for text in {*answers.values(), run.final_answer}}
    labels = [
        Label(call_id=call, name="correct", value=right[text], source="program") for call, text in answers.items()
    ]
    return dataclasses.replace(run, labels=(*run.labels, *labels), outcome=right[run.final_answer])


def store_settings(system: System, setup: Setup, *, text: bool) -> dict[str, Any]:
    """Returns the settings that a store's runs have in common.

    Args:
        system: the system.
        setup: the setup.
        text: whether texts are stored.
    """
    models = setup.models
    return {
        "system": system.name,
        "model": models.description,
        "revision": "+".join(llm.revision for llm in models.all),
        "endpoints": [how for llm in models.all if (how := getattr(llm, "asked_how", ""))],
        "prompts": setup.prompts.digest,
        "policy": repr(setup.policy),
        "signals": setup.signals.description,
        **({"panel": setup.panel.checkpoint.digest} if setup.panel else {}),
        "agents": list(setup.agents),
        "seed": setup.seed,
        "text": text,
        "top_logprobs": max(llm.capabilities.top_logprobs for llm in models.all),
        "tokens": dict(setup.options.tokens),
        "constants": {constant.name: setup.options.value(constant) for constant in system.constants},
        **_operating_points(system, setup),
    }


def all_settings(
    system: System, setup: Setup, text: bool, wave: int, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns everything that a store of this collection is pinned to; the caller adds `settings`.

    Args:
        system: the system.
        setup: the setup.
        text: whether texts are stored.
        wave: items that run at once if something learns.
        settings: further settings.
    """
    # With learners, what an item sees depends on the items before it.
    order = {"wave": wave} if system.experiences is not None or learns(setup.policy) else {}
    return {**store_settings(system, setup, text=text), **order, **(settings or {})}


def assumed_settings(system: System) -> dict[str, Any]:
    """Returns settings to assume if a store does not record them, as most of recorded/ do not."""
    return {"tokens": {}, "constants": {constant.name: constant.default for constant in system.constants}}


def _operating_points(system: System, setup: Setup) -> dict[str, Any]:
    """Returns the threshold that each number of a checkpoint is compared with at each point, by the papers' rules.

    Empty if no checkpoint gives a number that is compared with a threshold.
    """
    rules = setup.policy if isinstance(setup.policy, PaperRules) else getattr(setup.policy, "rules", None)
    if not isinstance(rules, PaperRules):
        return {}
    points = {}
    for key in setup.signals.description:
        name, _, agent = key.partition("@")
        replacement = setup.signals.replacement(name, agent)
        for point, (signal, constant) in PaperRules.thresholds.items():
            # Numbers of another kind than a checkpoint's, as a replay's, have no thresholds.
            if (
                replacement is not None
                and hasattr(replacement, "thresholds")
                and signal == name
                and point in system.decides
            ):
                source = replacement.source
                number = Signal(0.0, source, replacement.thresholds)
                value, whose = rules.threshold_of(number, point, constant)
                points[f"{point}: {key}"] = f"{value:.6g}{whose}"
    return {"operating points": points} if points else {}
