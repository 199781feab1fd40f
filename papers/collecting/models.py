"""Models, limits and constants of a collection: from the command line's text to the model of each stage."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from metaprobe.api import LLM, ModelName, QualityPredictor, RecordError, Replacement, SignalSource
from metaprobe.papers.systems import Models, System
from metaprobe.papers.systems.system_options import Options

JUDGE = "judge"
_PART_AND_MODEL = re.compile(r"([A-Za-z][\w-]*)=(.+)")


def parse_models(llms: Sequence[str], judge: str | None, system: System, agents: Sequence[str]) -> dict[str, str]:
    """Maps each stage or agent to the specification of its model; "" is for the default.

    Raises `RecordError` for a stage or agent that the system does not have, and if two models are given for one.

    Args:
        llms: the specifications.
        judge: the judge's specification.
        system: the system.
        agents: names of the agents.
    """
    part_names = (*system.stages, *system.roles, *agents)
    model_by_part: dict[str, str] = {}
    for spec in (*llms, *([f"{JUDGE}={judge}"] if judge else [])):
        match = None if Path(spec).exists() or ModelName(spec).elsewhere else _PART_AND_MODEL.fullmatch(spec)
        name, model = match.groups() if match else ("", spec)
        if name and name not in part_names:
            raise RecordError(
                f"a model is for {name!r}, and {system.name} has no such stage or agent; it has {', '.join(part_names)}"
            )
        if name in model_by_part:
            # An address may hold a key.
            shown_specs = " and ".join(
                repr(spec_of_model.partition("@")[0]) for spec_of_model in (model_by_part[name], model)
            )
            raise RecordError(f"two models for {name or 'the default'}: {shown_specs}; give one")
        model_by_part[name] = model
    # If every model is for a stage or agent, the first one also answers all other stages.
    return {"": next(iter(model_by_part.values())), **model_by_part}


def model_for(model_by_part: Mapping[str, str], stage: str, agent: str = "") -> str:
    """Returns the model that an agent asks at a stage, as `Models.of` finds it; the name of no agent is empty.

    Args:
        model_by_part: specifications by part: a stage, a role or an agent; "" for the default.
        stage: the stage.
        agent: name of the agent.
    """
    return (agent and model_by_part.get(agent)) or model_by_part.get(stage) or model_by_part[""]


def load_models(
    model_by_part: dict[str, str],
    system: System,
    signals: SignalSource,
    agents: Sequence[str],
    *,
    api: Mapping[str, Any] | None = None,
    layers: str | None = None,
    top_logprobs: int = 0,
    batch_size: int = 32,
    concurrency: int = 128,
) -> Models:
    """Loads each model once.

    Raises `RecordError` if a checkpoint reads something that its model does not provide.

    Args:
        model_by_part: specifications by part: a stage, a role or an agent; "" for the default.
        system: the system.
        signals: source of the signals.
        agents: names of the agents.
        api: options of `OpenAILLM`.
        layers: layers whose hidden states are kept.
        top_logprobs: number of alternatives a token.
        batch_size: requests that are generated at once.
        concurrency: most requests in flight.
    """
    all_readings = list(readings(system, signals, agents))
    needed: dict[str, set[int]] = {model: set() for model in model_by_part.values()}
    for stage, agent, replacement in all_readings:
        needed[model_for(model_by_part, stage, agent)].update(replacement.layers)
    if layers is not None and (remote := [model for model in needed if not ModelName(model).keeps_states]):
        raise RecordError(f"layers {layers!r}: {remote[0]} gives no hidden states; leave it out, or use a local model")
    loaded: dict[str, LLM] = {}
    for model, signal_layers in needed.items():
        loaded[model] = ModelName(model).open(
            api=api,
            layers=_layers(layers, signal_layers),
            top_logprobs=top_logprobs,
            batch_size=batch_size,
            concurrency=concurrency,
        )
    if not loaded[model_by_part[""]].capabilities.text or any(
        not loaded[model].capabilities.text for name, model in model_by_part.items() if name not in ("", JUDGE)
    ):
        raise RecordError(
            "decisions: models answer typed questions and write no text: give one as --judge only, and another model "
            "for the other stages"
        )
    models = Models(loaded[model_by_part[""]], {name: loaded[model] for name, model in model_by_part.items() if name})
    for stage, agent, replacement in all_readings:
        _check_reading(models.of(stage, agent), replacement)
    return models


def readings(system: System, signals: SignalSource, agents: Sequence[str]) -> Iterator[tuple[str, str, Replacement]]:
    """Yields (stage, agent, checkpoint) for everything that a checkpoint reads.

    Args:
        system: the system.
        signals: source of the signals.
        agents: names of the agents.
    """
    readers = (*agents, *system.roles)
    for name, stage in system.signals.items():
        for agent in readers or ("",):
            if replacement := signals.replacement(name, agent):
                yield stage, agent, replacement


def _check_reading(llm: LLM, replacement: Replacement) -> None:
    """Refuses a checkpoint that could never be read, because every decision would use its fallback."""
    trained_on = replacement.reader.checkpoint.manifest.generator
    if replacement.needs_states and not llm.capabilities.hidden:
        raise RecordError(
            f"{replacement.reader.checkpoint.path} reads hidden states, and {llm.name} gives none: use a local model, "
            f"or a checkpoint on log-probabilities"
        )
    if replacement.layers and trained_on is not None and trained_on.model != llm.name:
        raise RecordError(
            f"{replacement.reader.checkpoint.path} reads hidden states of {trained_on.model}, not of {llm.name}: train "
            f"one on this model's runs, or name the agent it is for, as in confidence@NAME=CHECKPOINT"
        )
    if isinstance(replacement.reader, QualityPredictor) and not llm.capabilities.logprobs:
        raise RecordError(f"{replacement.reader.checkpoint.path} reads log-probabilities, and {llm.name} gives none")


def _layers(layers: str | None, needed: set[int]) -> str | None:
    """Returns the layers to keep and those that checkpoints read, as `LocalLLM.load` takes them."""
    needed_text = ",".join(map(str, sorted(needed)))
    if layers is None or not needed:
        return layers or needed_text or None
    if layers == "all":
        return layers
    if not re.fullmatch(r"\d+(,\d+)*", layers):
        raise RecordError(
            f"layers {layers!r} beside signals that read layers {needed_text}: give all, or numbers such as these"
        )
    return ",".join(map(str, sorted({*map(int, layers.split(",")), *needed})))


UNLIMITED = "none"


def call_options(system: System, tokens: Sequence[str] = (), constants: Sequence[str] = ()) -> Options:
    """Returns the options of calls. A constant with its default value counts as not given.

    Raises `RecordError` for an unknown stage or constant, for an invalid value, and if two values are given for one
    name; the message lists what there is.

    Args:
        system: the system.
        tokens: `STAGE=N`, or `N` for every stage, with `none` for no limit.
        constants: `NAME=VALUE`.
    """
    known_constants = {constant.name: constant for constant in system.constants}
    limits: dict[str, int | None] = {}
    for text in tokens:
        stage, _, value = text.rpartition("=")
        if stage not in ("", *system.stages):
            available = ", ".join(f"{name} ({limit})" for name, limit in system.limits.items()) or "none that generates"
            raise RecordError(
                f"tokens {text!r}: {system.name} has no stage {stage!r}; its stages, with their own limits: {available}"
            )
        if stage in limits:
            raise RecordError(f"tokens {text!r}: {stage or 'every stage'} has {limits[stage]} already; give one limit")
        if value != UNLIMITED and not re.fullmatch(r"[1-9]\d{0,8}", value):
            raise RecordError(f"tokens {text!r}: expected STAGE=N or N, with N a whole number above 0 or {UNLIMITED!r}")
        limits[stage] = None if value == UNLIMITED else int(value)
    limit_everywhere = {stage: limits[""] for stage in system.stages if "" in limits}
    values: dict[str, Any] = {}
    for text in constants:
        name, separator, value = text.partition("=")
        if name not in known_constants or not separator:
            available = "; ".join(map(str, system.constants)) or "none"
            raise RecordError(
                f"constant {text!r}: expected NAME=VALUE with a constant of {system.name}: {available}. "
                f"Those of the rules that decide are given with the policy, as in --policy paper:cycles=2"
            )
        if name in values:
            raise RecordError(f"constant {text!r}: {name} is {values[name]} already; give one value")
        values[name] = known_constants[name].parse(value)
    limits.pop("", None)
    return Options(
        {**limit_everywhere, **limits},
        {name: value for name, value in values.items() if value != known_constants[name].default},
    )


def check_constants(system: System, variants: Sequence[str], constants: Sequence[str]) -> None:
    """Raises `RecordError` for a constant (`NAME=VALUE`) that none of these variants uses.

    Args:
        system: the system.
        variants: the variants.
        constants: the constants.
    """
    for text in constants:
        name = text.partition("=")[0]
        if any(name == constant.name for variant in variants for constant in system.constants_in(variant)):
            continue
        other_names = [
            other for other in system.variants if any(name == constant.name for constant in system.constants_in(other))
        ]
        raise RecordError(
            f"constant {text!r}: {system.name} ({', '.join(variants)}) does not work with {name}, only "
            f"{', '.join(other_names)}: leave it away, or give --variant {other_names[0]}"
        )


def check_limits(options: Options, system: System, model_by_part: Mapping[str, str], agents: Sequence[str]) -> None:
    """Raises `RecordError` if a model on this machine would generate without a limit.

    Args:
        options: the options of calls.
        system: the system.
        model_by_part: specification of a model by its stage or agent, "" for the default.
        agents: names of the agents.
    """
    for stage, limit in options.tokens.items():
        specs = {model_for(model_by_part, stage, agent) for agent in (*agents, *system.roles, "")}
        if limit is None and (local := sorted(model for model in specs if not ModelName(model).elsewhere)):
            raise RecordError(
                f"tokens {stage}={UNLIMITED}: {local[0]} runs on this machine and would generate without an end; give "
                f"a number, or an endpoint (openai:MODEL@URL)"
            )
