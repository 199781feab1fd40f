"""Runs a collection by names, as the command line gives them: from specifications to models, policy,
signals, and runs.
"""

import asyncio
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from metaprobe.api import (
    Call,
    CallCache,
    Item,
    ModelName,
    Panel,
    PaperRules,
    Plugins,
    Policy,
    RecordError,
    RunStore,
    SignalSource,
    Unwritable,
    require,
)
from metaprobe.papers.collecting.collect import (
    CollectReport,
    OnRun,
    all_settings,
    assumed_settings,
    check_learners,
    collect_runs,
    run_id,
)
from metaprobe.papers.collecting.models import (
    call_options,
    check_constants,
    check_limits,
    load_models,
    parse_models,
)
from metaprobe.papers.collecting.plan import CollectionPlan
from metaprobe.papers.policies.explore import EpsilonGreedy, Exhaustive, learns
from metaprobe.papers.policies.panel_policy import AgentPolicy, check_sources
from metaprobe.papers.policies.profiles import Profiles
from metaprobe.papers.policies.review import ReviewRules
from metaprobe.papers.systems import Models, Prompts, Setup, System, load_system
from metaprobe.papers.systems.suitability import check_panel, check_suitability
from metaprobe.papers.tasks.named_tasks import DEFAULT_SEED, load_task

CACHE_FILE = "calls.sqlite"
POLICY_PLUGINS = Plugins("metaprobe.policies", Policy, "policy")  # type: ignore[type-abstract]
"""Policies that installed packages offer."""
LEARNED = "learned"
LEARNED_CONSTANTS = {name: name for name in ("price", "budget", "assessment")}
"""Further constants of `--policy learned:`, besides those of the papers' rules: maps a name to an argument of
`AgentPolicy`.
"""
LAYERS = re.compile(r"all|every:0*[1-9]\d*|\d+(\s*,\s*\d+)*")
CONSTANTS_PATTERN = re.compile(r"(,\s*[a-z_]+=[^,/\\]*)+$")


def _items_seed(plan: CollectionPlan) -> int:
    """Returns the task's seed, as given or by default."""
    return DEFAULT_SEED if plan.task_seed is None else plan.task_seed


@dataclass(frozen=True, slots=True)
class CollectionWatch:
    """Callbacks that follow a collection."""

    on_total: Callable[[int], None] = lambda total: None
    on_call: Callable[[Call, bool], None] = lambda call, kept: None
    """Called for every call that has ended, with whether it came from the cache."""
    on_run: OnRun = lambda run, reason: None


def launch(plan: CollectionPlan, out: Path, watch: CollectionWatch = CollectionWatch()) -> CollectReport:
    """Collects what `plan` says into the run store `out`. Called again, it resumes.

    Every finished call is stored at once, so a kill loses only the calls in flight. Raises `RecordError` for a name
    that does not exist or a combination that cannot work, before any model is asked.

    Args:
        plan: the options.
        out: folder of the run store.
        watch: follows the collection.
    """
    # The system, and everything that it needs.
    system = _system_of(plan)
    agents = tuple(plan.agent) or system.agents
    variants = system.chosen(plan.variant)
    for need in system.needs:  # packages that are not installed are named with their extra
        if not set(variants) <= set(need.without):
            require(need.module, need.extra)
    options = call_options(system, plan.tokens, plan.constant)
    check_constants(system, variants, plan.constant)
    if plan.layers is not None and not LAYERS.fullmatch(plan.layers.strip()):
        # No model has such layers. Whether a model has the given numbers is checked when it is loaded.
        raise RecordError(f"layers {plan.layers!r}: expected 'all', 'every:N', or numbers of layers such as 0,8,16")
    # The policy and the signals, and whether they fit the system.
    api = ModelName.api_options(plan.api, plan.prices)
    policy, rules = policy_of(plan)
    check_learners(policy, variants)
    signals = SignalSource.load(plan.signal)
    check_sources(policy, signals, agents)
    check_suitability(system, plan.variant, signals, policy, agents=agents)
    check_panel(system, plan.variant, plan.panel is not None)
    # The items, the models and the prompts.
    items = load_task(plan.task, seed=_items_seed(plan), limit=plan.limit, data=plan.data, split=plan.split)
    for item in items:
        if missing_fields := [name for name in system.fields if name not in item.fields]:
            raise RecordError(
                f"item {item.id!r} of {plan.task} has no field {', '.join(missing_fields)}, which {system.name} asks "
                "about: give a task that has them (see docs/own.md), or items with "
                f'"fields": {{{", ".join(f"{name!r}: ..." for name in system.fields)}}}'
            )
    names_of_models = parse_models(plan.llm, plan.judge, system, agents)
    check_limits(options, system, names_of_models, agents)
    fields = {name for item in items for name in item.fields}
    folder = system.folder or system.name
    prompts = Prompts.load(folder, system.prompts, plan.prompts, optional=agents, fields=fields)
    # Collect, alone in the store.
    store = RunStore(out)
    with store.alone():
        cache_path = plan.cache or out / CACHE_FILE
        if cache_path.exists():  # a damaged cache is refused before any model is asked
            with CallCache(cache_path) as cache:
                cache.check()
        setup = Setup(
            models=load_models(
                names_of_models,
                system,
                signals,
                agents,
                api=api,
                layers=plan.layers,
                top_logprobs=plan.top_logprobs,
                batch_size=plan.batch_size,
                concurrency=plan.concurrency,
            ),
            prompts=prompts,
            policy=policy,
            signals=signals,
            profiles=Profiles(initial=rules.initial, rate=rules.rate),
            agents=agents,
            seed=plan.seed,
            options=options,
            panel=None if plan.panel is None else Panel.load(plan.panel),
        )
        return asyncio.run(_collect(plan, system, items, setup, store, watch))


def _system_of(plan: CollectionPlan) -> System:
    """Returns the system, and checks that it has the plan's variants and takes its agents."""
    system = load_system(plan.system)
    for variant in plan.variant:
        if variant not in system.variants:
            raise RecordError(f"no variant of {system.name} {variant!r}; there are: {', '.join(system.variants)}")
    if plan.agent and not system.agents:
        raise RecordError(f"agents {', '.join(plan.agent)}: {system.name} takes no agents of your own")
    if len({name for name in plan.agent if name and name == name.strip() and "," not in name}) < len(plan.agent):
        raise RecordError(
            f"agents {', '.join(map(repr, plan.agent))}: expected different names, without commas and without blanks "
            "around them: give --agent NAME once for each"
        )
    return system


async def _collect(
    plan: CollectionPlan,
    system: System,
    items: Sequence[Item],
    setup: Setup,
    store: RunStore,
    watch: CollectionWatch,
) -> CollectReport:
    variants, out = system.chosen(plan.variant), store.path
    settings = {"task": plan.task, "split": plan.split, "task seed": _items_seed(plan), "capture": plan.layers}
    if system.experiences is not None or learns(setup.policy):  # the limit decides what an item has learned before
        settings["limit"] = plan.limit
    async with AsyncExitStack() as stack:
        for llm in setup.models.all:
            if isinstance(llm, AbstractAsyncContextManager):  # it has connections to close
                await stack.enter_async_context(llm)
        run_ids = {run_id(system, variant, setup, item) for item in items for variant in variants}
        store.check_settings(all_settings(system, setup, plan.text, plan.wave, settings), assumed_settings(system))
        watch.on_total(len(run_ids - store.run_ids()))
        cache = stack.enter_context(CallCache(plan.cache or out / CACHE_FILE))
        stack.enter_context(_with_count_when_full(cache))
        cached_models = {id(llm): cache.wrap(llm, on_call=watch.on_call) for llm in setup.models.all}
        by_name = {name: cached_models[id(llm)] for name, llm in setup.models.by_name.items()}
        models = Models(cached_models[id(setup.models.default)], by_name)
        report = await collect_runs(
            system,
            items,
            dataclasses.replace(setup, models=models),
            store,
            variants=variants,
            concurrency=plan.concurrency,
            wave=plan.wave,
            shard_runs=plan.shard_runs,
            text=plan.text,
            settings=settings,
            on_run=watch.on_run,
        )
    if plan.cache is None and not report.failed:
        for suffix in ("", "-wal", "-shm", "-journal"):  # SQLite's own files, and nothing of the user's
            (out / f"{CACHE_FILE}{suffix}").unlink(missing_ok=True)
    return report


def policy_of(plan: CollectionPlan) -> tuple[Policy, PaperRules]:
    """Returns the policy of a plan, and the papers' rules that it is or uses; their defaults for a policy from outside.

    Raises `RecordError` for an unknown policy, and a `CheckpointError` for a checkpoint that cannot be used.
    """
    name, _, constants_text = plan.policy.partition(":")
    policy: Policy
    if name == LEARNED:
        path, constants = checkpoint_and_constants(constants_text)
        own_arguments, rules = _own_constants(constants)
        agents = plan.agent or load_system(plan.system).agents
        policy = AgentPolicy(Panel.load(path), rules, agents=agents, **own_arguments)
    elif name in ("paper", "exhaustive"):
        rules = PaperRules.parse(constants_text)
        policy = rules if name == "paper" else Exhaustive(rules)
    elif name == ReviewRules.label:
        policy, rules = ReviewRules.parse(constants_text), PaperRules()
    elif (plugin := POLICY_PLUGINS.load(plan.policy)) is not None:
        if isinstance(plugin, type):  # a class has the methods as well
            raise RecordError(
                f"policy {plan.policy!r} is the class itself; give an object of it: NAME = {plugin.__name__}()"
            )
        policy, rules = plugin, PaperRules()
    else:
        raise RecordError(
            f"policy {plan.policy!r}: expected paper, exhaustive, review or learned:CHECKPOINT, with constants as in "
            "paper:theta=0.4 or learned:CHECKPOINT,budget=0.5,theta=0.4; or MODULE:NAME of your own"
        )
    return (EpsilonGreedy(policy, epsilon=plan.epsilon, seed=plan.seed) if plan.epsilon else policy), rules


def checkpoint_and_constants(text: str) -> tuple[Path, str]:
    """Splits `PATH,NAME=VALUE,...` into its two parts. The path ends before the first of the last parts of that form.

    If a longer beginning is the name of a folder, that is the path: it may hold commas, colons and `=`.
    """
    constants = CONSTANTS_PATTERN.search(text)
    possible_ends = [len(text)]
    if constants is not None:
        possible_ends += [index for index in range(len(text) - 1, constants.start() - 1, -1) if text[index] == ","]
    end_of_path = next((end for end in possible_ends if text[:end] and Path(text[:end]).is_dir()), possible_ends[-1])
    if not text[:end_of_path]:
        raise RecordError(f"policy learned:{text}: expected a checkpoint folder, as in learned:CHECKPOINT,budget=0.5")
    return Path(text[:end_of_path]), text[end_of_path:].lstrip(",")


def _own_constants(constants: str) -> tuple[dict[str, float], PaperRules]:
    """Splits constants into arguments of `AgentPolicy` and the papers' rules."""
    parts = PaperRules.constants_in(constants)
    try:
        own_arguments = {LEARNED_CONSTANTS[name]: float(value) for name, value in parts if name in LEARNED_CONSTANTS}
    except ValueError as error:
        raise RecordError(f"policy constants {constants!r}: {error}; expected NAME=NUMBER") from error
    try:
        rules = PaperRules.parse(",".join(f"{name}={value}" for name, value in parts if name not in LEARNED_CONSTANTS))
    except RecordError as error:
        raise RecordError(f"{error}; of a learned policy also {', '.join(LEARNED_CONSTANTS)}") from error
    return own_arguments, rules


@contextmanager
def _with_count_when_full(cache: CallCache) -> Iterator[None]:
    """Adds to an `Unwritable` how many calls are stored."""
    try:
        yield
    except Unwritable as error:
        raise Unwritable(f"{error}; {len(cache)} calls are kept in {cache.path} and are not asked again") from error
