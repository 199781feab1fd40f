"""Outcomes of stored runs, whoever labelled them, into a file of profiles that a collection begins with."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from metaprobe.pipelines import SYSTEMS
from metaprobe.pipelines.named_systems import known_system
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.routing.profile_store import ProfileStore
from metaprobe.routing.profiles import Observation, Profiles, every_answer, run_observations


def fold_profiles(stores: Sequence[Path], out: Path, *, every: bool = False) -> dict[str, Any]:
    """Add the outcomes of these stores to a profile file, one store after another and each in the order it was stored.

    `every`: of each agent whose answer was judged, not only of those that were chosen; one variant of an item counts.
    What comes back: how many outcomes were read, how many of them the file did not hold as they are now, and each
    agent's rate by dimension (the paper's moving average). Raises `RecordError` where the runs name no agent.
    """
    found: list[Observation] = []
    seen: set[str] = set()
    for place, run in enumerate(run for store in stores for run in RunStore(store)):
        system = known_system(run.system)
        if system is not None and system.experiences is not None and not (every and run.item.id in seen):
            found += run_observations(run, every_answer if every else system.experiences, time=place)
            seen.add(run.item.id)
    if not found:
        names = ", ".join(name for name, system in SYSTEMS.items() if system.experiences is not None)
        raise RecordError(
            f"{', '.join(map(str, stores))}: no outcome of an agent; expected runs of {names} whose answers are "
            f"labelled (`metaprobe label`)"
        )
    with ProfileStore(out) as file:
        after = file.next_time
        added = file.add(replace(one, time=after + one.time) for one in found)
        known = file.observations()
    learned = Profiles(known)
    pairs = sorted({(one.agent, one.dimension) for one in known})
    rates = {agent: {d: learned.rate_of(agent, d) for a, d in pairs if a == agent} for agent, _ in pairs}
    return {"outcomes": len(found), "new": added, "profiles": rates}
