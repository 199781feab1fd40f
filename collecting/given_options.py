"""Limits and constants of a system as the command line gives them, refused before anything is asked."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from metaprobe.collecting.models import API, model_for
from metaprobe.pipelines import System
from metaprobe.pipelines.system_options import Options
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require

UNLIMITED = "none"


def options_of(system: System, tokens: Sequence[str] = (), constants: Sequence[str] = ()) -> Options:
    """`tokens`: `STAGE=N`, or `N` for every stage, with `none` for no limit; `constants`: `NAME=VALUE`.

    A constant that is given its default is as if it was not given. Raises `RecordError` for a stage or constant that
    the system does not have, a value that it cannot be, and for two values for one; the message names what there is.
    """
    known = {constant.name: constant for constant in system.constants}
    limits: dict[str, int | None] = {}
    for text in tokens:
        stage, _, value = text.rpartition("=")
        if stage not in ("", *system.stages):
            there = ", ".join(f"{name} ({n})" for name, n in system.limits.items()) or "none that generates"
            raise RecordError(
                f"tokens {text!r}: {system.name} has no stage {stage!r}; its stages, with their own limits: {there}"
            )
        if stage in limits:
            raise RecordError(f"tokens {text!r}: {stage or 'every stage'} has {limits[stage]} already; give one limit")
        limits[stage] = _limit(value, text)
    every = {stage: limits[""] for stage in system.stages if "" in limits}
    given: dict[str, Any] = {}
    for text in constants:
        name, separator, value = text.partition("=")
        if name not in known or not separator:
            there = "; ".join(map(str, system.constants)) or "none"
            raise RecordError(
                f"constant {text!r}: expected NAME=VALUE with a constant of {system.name}: {there}. Those of the rules "
                f"that decide are given with the policy, as in --policy paper:cycles=2"
            )
        if name in given:
            raise RecordError(f"constant {text!r}: {name} is {given[name]} already; give one value")
        given[name] = known[name].parse(value)
    limits.pop("", None)
    return Options({**every, **limits}, {name: v for name, v in given.items() if v != known[name].default})


def check_constants(system: System, variants: Sequence[str], constants: Sequence[str]) -> None:
    """Raises `RecordError` where a constant (`NAME=VALUE`) is given that none of these variants works with."""
    for text in constants:
        name = text.partition("=")[0]
        if any(name == one.name for variant in variants for one in system.constants_in(variant)):
            continue
        others = [other for other in system.variants if any(name == one.name for one in system.constants_in(other))]
        raise RecordError(
            f"constant {text!r}: {system.name} ({', '.join(variants)}) does not work with {name}, only "
            f"{', '.join(others)}: leave it away, or give --variant {others[0]}"
        )


def check_limits(options: Options, system: System, named: Mapping[str, str], agents: Sequence[str]) -> None:
    """Raises `RecordError` where a model of this machine would generate without a limit.

    `named`: specification of a model by the stage or agent that it is for, "" for the default.
    """
    for stage, limit in options.tokens.items():
        asked = {model_for(named, stage, agent) for agent in (*agents, *system.roles, "")}
        if limit is None and (local := sorted(model for model in asked if not model.startswith(API))):
            raise RecordError(
                f"tokens {stage}={UNLIMITED}: {local[0]} runs on this machine and would generate without an end; give "
                f"a number, or an endpoint (openai:MODEL@URL)"
            )


def check_needs(system: System, variants: Sequence[str]) -> None:
    """Raises `MissingExtra`, naming the extra, where a package that these variants need is not installed."""
    for need in system.needs:
        if not set(variants) <= set(need.without):
            require(need.module, need.extra)


def _limit(value: str, text: str) -> int | None:
    if value == UNLIMITED:
        return None
    if not re.fullmatch(r"[1-9]\d{0,8}", value):
        raise RecordError(f"tokens {text!r}: expected STAGE=N or N, with N a whole number above 0 or {UNLIMITED!r}")
    return int(value)
