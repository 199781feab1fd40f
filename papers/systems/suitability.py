"""Whether a system can use the signals and the policy that it is given, checked before any model is loaded or called.

A system declares which numbers a checkpoint may give it (`System.signals`), which heads their checkpoints must have
(`System.heads`), and at which points it asks the policy (`System.decides`), and exceptions by variant
(`System.without`). A policy declares which signals it reads at which point; if it declares nothing, it is taken to read
them all, everywhere.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence

from metaprobe.api import PaperRules, Policy, RecordError, Replacement, SignalSource
from metaprobe.papers.systems.system import System


def check_system(system: System) -> None:
    """Raises `RecordError` if a system contradicts itself, with what it says and what was expected.

    For systems from outside; a test checks those of the package in the same way.
    """
    _check_texts(system)
    run = system.run
    if not (inspect.iscoroutinefunction(run) or inspect.iscoroutinefunction(type(run).__call__)):
        raise _contradiction(
            system, f"run is {run!r}; expected an `async def` that takes a Session and returns its run(...)"
        )
    for field, names, known_names in (
        ("answer_stages", map(system.limited, system.answer_stages), system.stages),
        ("default_variants", system.default_variants, system.variants),
        ("without", system.without, system.variants),
        ("limits", system.limits, system.stages),
        ("signals", system.signals, SignalSource.names),
        ("signals", system.signals.values(), system.stages),
        ("heads", system.heads, tuple(system.signals)),
        ("uses", system.uses, tuple(system.signals)),
    ):
        if unknown_names := [name for name in names if name not in known_names]:
            raise _contradiction(
                system, f"{field} names {unknown_names[0]!r}; expected {' or '.join(known_names) or 'nothing'}"
            )


def _check_texts(system: System) -> None:
    """Raises if a name is no name, or if there is a text instead of several, as in `stages=("answer")`."""
    if not isinstance(system.name, str) or not re.fullmatch(r"\w[\w.-]*", system.name):
        raise _contradiction(system, "name is empty or not of letters, digits, '-', '_' and '.' alone")
    for field in ("stages", "variants", "prompts", "answer_stages", "default_variants", "decides", "agents", "roles"):
        value = getattr(system, field)
        if isinstance(value, str) or not all(isinstance(name, str) and name for name in value):
            raise _contradiction(
                system, f'{field} is {value!r}; expected texts, as in {field}=("a", "b") or {field}=("a",)'
            )
    for field in ("stages", "variants"):
        if not getattr(system, field):
            raise _contradiction(system, f"{field} is empty; expected at least one name")


def _contradiction(system: System, problem: str) -> RecordError:
    return RecordError(f"system {system.name!r} contradicts itself: {problem}")


def check_suitability(
    system: System, variants: Sequence[str], signals: SignalSource, policy: Policy, *, agents: Sequence[str] = ()
) -> None:
    """Raises `RecordError` if these variants of the system cannot use a signal, its checkpoint, or the policy.

    The message names what was given, what the system reads or decides, and what to do.

    Args:
        system: the system.
        variants: the variants that are run; by default the system's default ones.
        signals: source of the signals.
        policy: the policy.
        agents: names of the agents, if the system takes any number of them.
    """
    variants = system.chosen(variants)
    for key in signals.description:
        name, _, agent = key.partition("@")
        _check_name(system, key, (*(agents or system.agents), *system.roles))
        for variant in variants:
            _check_read(system, variant, key, policy)
        replacement = signals.replacement(name, agent)
        if isinstance(replacement, Replacement):  # else numbers of another kind, as a replay's
            _check_heads(system, key, replacement)
    for variant in variants:
        _check_asked(system, variant, policy)
    _check_constants(system, variants, policy)
    # Signals that the policy, or one of its constants, needs may be missing.
    given_names = {key.partition("@")[0] for key in signals.description}
    needed: Mapping[str, Sequence[str]] = getattr(getattr(policy, "policy", policy), "needs", {})
    for purpose, names in needed.items():
        if not set(names) & given_names:
            raise RecordError(
                f"policy {_name(policy)}: {purpose} needs the signal {' or '.join(names)}, and "
                f"{_list(sorted(given_names)) or 'none'} is given: add --signal {names[0]}=CHECKPOINT, or leave it away"
            )


def check_panel(system: System, variants: Sequence[str], has_panel: bool) -> None:
    """Raises `RecordError` if a variant keeps an answer by a panel and none is given, or the other way round.

    Args:
        system: the system.
        variants: the variants.
        has_panel: whether a panel is given.
    """
    chosen = system.chosen(variants)
    if needing := [variant for variant in chosen if variant in system.panel_variants]:
        if not has_panel:
            raise RecordError(f"{system.name} ({_list(needing)}) keeps an answer by a panel: add --panel CHECKPOINT")
    elif has_panel:
        panel_variants_text = (
            f"only {_list(system.panel_variants)}" if system.panel_variants else "no variant of it does"
        )
        raise RecordError(
            f"panel: {system.name} ({_list(chosen)}) keeps no answer by one, {panel_variants_text}: leave --panel away"
        )


def _check_name(system: System, key: str, agent_names: Sequence[str]) -> None:
    """Raises if the system has no such number, or no such agent.

    Args:
        system: the system.
        key: `NAME` or `NAME@AGENT`.
        agent_names: names of all agents.
    """
    name, _, agent = key.partition("@")
    if name not in system.signals:
        what_it_takes = f"it takes {_list(system.signals)}" if system.signals else "it takes none: leave --signal away"
        raise RecordError(
            f"signal {key!r}: {system.name} has no such number that a checkpoint could replace; {what_it_takes}"
        )
    if agent and agent not in agent_names:
        what_it_has = f"it has {_list(agent_names)}" if agent_names else f"it has none by name: give {name}=CHECKPOINT"
        raise RecordError(f"signal {key!r}: {system.name} has no agent {agent!r}; {what_it_has}")


def _check_read(system: System, variant: str, key: str, policy: Policy) -> None:
    """Raises if neither the variant nor the policy, at the points at which this variant asks it, reads the number.

    Args:
        system: the system.
        variant: the variant.
        key: `NAME` or `NAME@AGENT`.
        policy: the policy.
    """
    name = key.partition("@")[0]
    if name not in system.signals_in(variant):
        other_variants = [other for other in system.variants if name in system.signals_in(other)]
        raise RecordError(
            f"signal {key!r}: the variant {variant!r} of {system.name} does not read {name}, only "
            f"{_list(other_variants)}: leave the signal away, or collect {variant!r} into a store of its own"
        )
    reads: Mapping[str, Sequence[str]] | None = getattr(policy, "reads", None)
    points = system.points_in(variant)
    if name in system.uses or reads is None or any(name in reads.get(point, ()) for point in points):
        return
    reads_at = "; ".join(f"at {point} {_list(reads.get(point, ())) or 'none'}" for point in points)
    raise RecordError(
        f"signal {key!r}: nothing would read {name} in {system.name} ({variant}). The policy {_name(policy)} reads "
        f"these signals: {reads_at}. Leave the signal away, or give a policy that reads it, as --policy "
        f"learned:CHECKPOINT, trained on runs that had {name}"
    )


def _check_heads(system: System, key: str, replacement: Replacement) -> None:
    """Raises if the checkpoint lacks a head that the number needs in this system.

    Args:
        system: the system.
        key: `NAME` or `NAME@AGENT`.
        replacement: the checkpoint.
    """
    name = key.partition("@")[0]
    needed = system.heads.get(name)
    lacks = _lacking(needed, replacement)
    if not lacks:
        return
    hints = (
        f", or give it as {other}=CHECKPOINT"
        for other in system.signals
        if other != name and not _lacking(system.heads.get(other), dataclasses.replace(replacement, name=other))
    )
    targets = " ".join(f"--target {head}" for head in needed or (lacks.split(" ")[0],))
    raise RecordError(
        f"signal {key!r}: {replacement.reader.checkpoint.path} predicts {_list(replacement.heads)}, and not {lacks}; "
        f"for {name} {system.name} needs {_list(needed or ()) or lacks}, all from one checkpoint: train it with "
        f"`metaprobe train quality RUNS {targets} --out CHECKPOINT`" + next(hints, "")
    )


def _lacking(needed: Sequence[str] | None, replacement: Replacement) -> str:
    """Returns the heads that a signal needs and the checkpoint lacks; empty if it has all."""
    if needed is None:
        return replacement.missing_head
    return _list(head for head in needed if head not in replacement.heads)


def _check_asked(system: System, variant: str, policy: Policy) -> None:
    """Raises if the policy was made for points at which this variant asks nothing.

    Args:
        system: the system.
        variant: the variant.
        policy: the policy.
    """
    own_points, points = getattr(policy, "own", ()), system.points_in(variant)
    if not own_points or set(own_points) & set(points):
        return
    decides = f"decides at {_list(points)}" if points else "decides nothing"
    other_variants = [other for other in system.variants if set(own_points) & set(system.points_in(other))]
    remedy = f"collect {_list(other_variants)}, or leave" if other_variants else "leave"
    raise RecordError(
        f"policy {_name(policy)}: it is for {_list(own_points)}, and {system.name} ({variant}) {decides}, "
        f"so that nothing would ask it: {remedy} --policy and --epsilon away"
    )


def _check_constants(system: System, variants: Sequence[str], policy: Policy) -> None:
    """Raises if a constant of the papers' rules was given on which none of the points depends.

    Args:
        system: the system.
        variants: the variants.
        policy: the policy.
    """
    rules = policy if isinstance(policy, PaperRules) else getattr(policy, "rules", None)
    asked_points = {point: None for variant in variants for point in system.points_in(variant)}
    if not isinstance(rules, PaperRules) or not asked_points.keys() <= PaperRules.constants.keys():
        return
    for name in rules.changed:
        if not any(name in PaperRules.constants[point] for point in asked_points):
            points = [point for point, names in PaperRules.constants.items() if name in names]
            raise RecordError(
                f"policy constant {name}={getattr(rules, name):g}: it is for {_list(points)}, and {system.name} "
                f"({_list(variants)}) decides at {_list(asked_points) or 'no point'}: leave it away"
            )


def _name(policy: Policy) -> str:
    return str(getattr(policy, "label", type(policy).__name__))


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
