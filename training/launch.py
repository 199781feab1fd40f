"""A collection by names, as the command line gives them: from specifications to models, policy, signals, and runs."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from metaprobe.eval.tasks.loading import DEFAULT_SEED, load_task
from metaprobe.llms.base import LLM, Request
from metaprobe.llms.cache import CachedLLM, CallCache
from metaprobe.pipelines import SYSTEMS, Models, Prompts, Setup, System
from metaprobe.probes.source import SignalSource
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Message, Sampling
from metaprobe.routing.explore import EpsilonGreedy, Exhaustive
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.policy import Policy
from metaprobe.routing.profiles import Profiles
from metaprobe.training.collect import CollectReport, OnRun, collect, run_id

CACHE_FILE = "calls.sqlite"
JUDGE = "judge"
API_OPTIONS = (
    "logprobs_mode",
    "schema_form",
    "extra_body",
    "revision",
    "timeout_s",
    "attempts",
    "max_wait_s",
    "prices",
)
"""Options of `OpenAILLM` that a command may set; `prices` is a file (`metaprobe.llms.pricing.read_prices`)."""

T = TypeVar("T")

_NAMED = re.compile(r"([A-Za-z][\w-]*)=(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is collected, by names."""

    system: str
    task: str
    llms: tuple[str, ...] = ("smollm2-135m",)
    """`L`, the default model, and `NAME=L` for the stage or agent NAME. L: what `llms.weights.resolve` finds, or
    `openai:MODEL`, or `openai:MODEL@BASE_URL`."""
    judge: str | None = None
    """`L` for every stage called `judge`."""
    api: tuple[str, ...] = ()
    """`KEY=VALUE` for every `openai:` model, of `API_OPTIONS`; values as JSON or plain text."""
    policy: str = "paper"
    """`paper` or `exhaustive`, with constants after a colon: `paper:theta=0.4,cycles=2`."""
    epsilon: float = 0.0
    """Probability with which a decision is drawn evenly from the legal ones."""
    signals: tuple[str, ...] = ()
    """`NAME=CHECKPOINT` (see `metaprobe.probes.source`)."""
    agents: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    data: str | None = None
    """Folder that holds the task's data, or `hf:` and a hub id."""
    split: str | None = None
    limit: int | None = None
    task_seed: int = DEFAULT_SEED
    seed: int = 0
    prompts: Path | None = None
    capture: str | None = None
    """Layers whose hidden states are kept at every answer: `all`, `every:N`, or numbers such as `0,8,16`."""
    top_logprobs: int = 0
    batch_size: int = 32
    concurrency: int = 128
    shard_runs: int = 64
    text: bool = True
    cache: Path | None = None
    """File of calls shared between collections; by default one in the store, which goes when all runs are stored."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a collection will about take."""

    runs: int
    tokens_per_run: int
    """At most."""
    tokens_per_second: float
    """Of a warm-up of a few tokens; long prompts come on top."""

    @property
    def seconds(self) -> float:
        return self.runs * self.tokens_per_run / self.tokens_per_second


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told how a collection goes."""

    on_estimate: Callable[[Estimate], None] = lambda estimate: None
    on_total: Callable[[int], None] = lambda total: None
    on_call: Callable[[Call], None] = lambda call: None
    on_run: OnRun = lambda run, reason: None


def launch(plan: Plan, out: Path, watch: Watch = Watch()) -> CollectReport:
    """Collect what `plan` says into the run store `out`; again, and it goes on where it stopped.

    Every finished call is kept at once, so a kill loses the calls in flight and nothing else. Raises `RecordError` for
    a name that does not exist or a combination that cannot work, before anything is asked.
    """
    system = _one_of(SYSTEMS, plan.system, "system")
    for variant in plan.variants:
        _one_of(dict.fromkeys(system.variants), variant, f"variant of {system.name}")
    policy, signals = policy_of(plan), SignalSource.load(plan.signals)
    items = load_task(plan.task, seed=plan.task_seed, limit=plan.limit, data=plan.data, split=plan.split)
    prompts = Prompts.load(
        system.folder or system.name, system.prompts, plan.prompts, optional=plan.agents or system.agents
    )
    return asyncio.run(_launch(plan, out, watch, system, items, policy, signals, prompts))


async def _launch(
    plan: Plan,
    out: Path,
    watch: Watch,
    system: System,
    items: Sequence[Item],
    policy: Policy,
    signals: SignalSource,
    prompts: Prompts,
) -> CollectReport:
    own_cache = out / CACHE_FILE
    async with AsyncExitStack() as stack:
        out.mkdir(parents=True, exist_ok=True)
        cache = stack.enter_context(CallCache(plan.cache or own_cache))
        models = load_models(plan, signals)
        for llm in models.all:
            if isinstance(llm, AbstractAsyncContextManager):  # it has connections to close
                await stack.enter_async_context(llm)
        check_signals(signals, models)
        rules = policy_rules(policy)
        kept = {id(llm): CachedLLM(llm, cache) for llm in models.all}
        setup = Setup(
            models=Models(kept[id(models.default)], {name: kept[id(llm)] for name, llm in models.by_name.items()}),
            prompts=prompts,
            policy=policy,
            signals=signals,
            profiles=Profiles(initial=rules.initial, rate=rules.rate),
            agents=plan.agents or system.agents,
            seed=plan.seed,
            on_call=watch.on_call,
        )
        store = RunStore(out)
        variants = plan.variants or system.default_variants or system.variants[:1]
        wanted = {run_id(system, variant, setup, item) for item in items for variant in variants}
        todo = len(wanted - store.run_ids())
        watch.on_total(todo)
        if todo:
            rate = await warm_up(models.default, at_once=min(plan.batch_size, plan.concurrency, todo))
            watch.on_estimate(Estimate(todo, system.tokens, rate))
        report = await collect(
            system,
            items,
            setup,
            store,
            variants=variants,
            concurrency=plan.concurrency,
            shard_runs=plan.shard_runs,
            text=plan.text,
            capture=plan.capture,
            on_run=watch.on_run,
        )
    if plan.cache is None and not report.failed:
        for path in out.glob(f"{CACHE_FILE}*"):
            path.unlink()
    return report


def policy_of(plan: Plan) -> Policy:
    """The policy of a plan. Raises `RecordError` for one that does not exist."""
    name, _, constants = plan.policy.partition(":")
    rules = PaperRules.parse(constants)
    if name not in ("paper", "exhaustive"):
        raise RecordError(f"policy {plan.policy!r}: expected paper or exhaustive, with constants as in paper:theta=0.4")
    policy: Policy = rules if name == "paper" else Exhaustive(rules)
    return EpsilonGreedy(policy, epsilon=plan.epsilon, seed=plan.seed) if plan.epsilon else policy


def policy_rules(policy: Policy) -> PaperRules:
    """The papers' rules that a policy is, or rests on."""
    while not isinstance(policy, PaperRules):
        policy = policy.rules if isinstance(policy, Exhaustive) else policy.policy  # type: ignore[attr-defined]
    return policy


def load_models(plan: Plan, signals: SignalSource) -> Models:
    """The models of a plan, each loaded once."""
    specs: dict[str, str] = {}
    for spec in (*plan.llms, *([f"{JUDGE}={plan.judge}"] if plan.judge else [])):
        match = None if Path(spec).exists() else _NAMED.fullmatch(spec)
        name, model = match.groups() if match else ("", spec)
        if name in specs:
            raise RecordError(f"two models for {name or 'the default'}: {specs[name]!r} and {model!r}; give one")
        specs[name] = model
    default = specs.pop("", None) or next(iter(specs.values()))
    layers = _layers(plan.capture, signals.layers)
    loaded = {model: _load(model, plan, layers) for model in dict.fromkeys([default, *specs.values()])}
    return Models(loaded[default], {name: loaded[model] for name, model in specs.items()})


def check_signals(signals: SignalSource, models: Models) -> None:
    """Raises `RecordError` where a checkpoint reads what a model does not give."""
    if signals.layers and not all(llm.capabilities.hidden for llm in models.all):
        without = next(llm.name for llm in models.all if not llm.capabilities.hidden)
        raise RecordError(
            f"a signal reads hidden states, and {without} gives none: use a local model or another signal"
        )
    if signals.description and not all(llm.capabilities.logprobs for llm in models.all):
        without = next(llm.name for llm in models.all if not llm.capabilities.logprobs)
        raise RecordError(f"a signal reads log-probabilities, and {without} gives none")


async def warm_up(llm: LLM, *, at_once: int, tokens: int = 16) -> float:
    """Tokens a second, from `at_once` short requests of the same kind."""
    messages = (Message("user", "Count slowly upwards from one, one number a line."),)

    async def ask(number: int) -> int:
        sampling = Sampling(temperature=1.0, seed=number & 0xFFFF, max_tokens=tokens)
        call = await llm.complete(Request(id=f"warm-up/{number}", messages=messages, sampling=sampling))
        return call.usage.completion_tokens

    await ask(-1)  # the first call of all pays for what is set up once
    started = time.perf_counter()
    made = sum(await asyncio.gather(*(ask(number) for number in range(at_once))))
    return max(made, 1) / (time.perf_counter() - started)


def _load(spec: str, plan: Plan, layers: str | None) -> LLM:
    if spec.startswith("openai:"):
        require("openai", "api")
        from metaprobe.llms.openai_client import OpenAILLM  # not above: a local collection needs no client

        options = api_options(plan.api)
        return OpenAILLM.parse(spec, top_logprobs=plan.top_logprobs, concurrency=plan.concurrency, **options)
    require("torch", "train")
    from metaprobe.llms.local import LocalLLM  # not above: a collection over an API needs no torch

    return LocalLLM.load(spec, batch_size=plan.batch_size, top_logprobs=plan.top_logprobs, layers=layers)


def api_options(given: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts as options of `OpenAILLM`. Raises `RecordError` for one that is none."""
    options: dict[str, Any] = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator or key not in API_OPTIONS:
            raise RecordError(f"api option {text!r}: expected KEY=VALUE with KEY one of {', '.join(API_OPTIONS)}")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    if "prices" in options:
        from metaprobe.llms.pricing import read_prices

        options["prices"] = read_prices(options["prices"])
    return options


def _layers(capture: str | None, needed: Iterable[int]) -> str | None:
    """The layers of a capture and those that checkpoints read, as `LocalLLM.load` takes them."""
    needed = sorted(needed)
    if capture is None or not needed:
        return capture or ",".join(map(str, needed)) or None
    if capture == "all":
        return capture
    if not re.fullmatch(r"\d+(,\d+)*", capture):
        raise RecordError(
            f"capture {capture!r} beside signals that read layers {needed}: give all, or numbers, such as "
            f"{','.join(map(str, needed))}"
        )
    return ",".join(map(str, sorted({*map(int, capture.split(",")), *needed})))


def _one_of(known: dict[str, T], name: str, what: str) -> T:
    if name not in known:
        raise RecordError(f"no {what} {name!r}; there are: {', '.join(known)}")
    return known[name]
