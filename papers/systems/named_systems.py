"""Finds a system by its name, or by the place of a system of your own."""

from functools import cache

from metaprobe.api import Plugins, RecordError
from metaprobe.papers.systems.caelf import SYSTEM as CAELF
from metaprobe.papers.systems.essay_debate import SYSTEM as ESSAY_DEBATE
from metaprobe.papers.systems.expert_prompting import SYSTEM as EXPERT_PROMPTING
from metaprobe.papers.systems.metacogagent import SYSTEM as METACOGAGENT
from metaprobe.papers.systems.metacrit import SYSTEM as METACRIT
from metaprobe.papers.systems.monitor_generate_verify import SYSTEM as MONITOR_GENERATE_VERIFY
from metaprobe.papers.systems.multi_agent_debate import SYSTEM as MULTI_AGENT_DEBATE
from metaprobe.papers.systems.multi_expert import SYSTEM as MULTI_EXPERT
from metaprobe.papers.systems.self_refine import SYSTEM as SELF_REFINE
from metaprobe.papers.systems.self_report import SYSTEM as SELF_REPORT
from metaprobe.papers.systems.self_verification import SYSTEM as SELF_VERIFICATION
from metaprobe.papers.systems.suitability import check_system
from metaprobe.papers.systems.system import System
from metaprobe.papers.systems.universal_self_consistency import SYSTEM as UNIVERSAL_SELF_CONSISTENCY
from metaprobe.papers.systems.zero_shot_cot import SYSTEM as ZERO_SHOT_COT

SYSTEM_PLUGINS = Plugins("metaprobe.systems", System, "system")
"""Systems that installed packages offer."""

SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        SELF_REPORT,
        METACRIT,
        MONITOR_GENERATE_VERIFY,
        METACOGAGENT,
        ESSAY_DEBATE,
        CAELF,
        ZERO_SHOT_COT,
        SELF_REFINE,
        SELF_VERIFICATION,
        UNIVERSAL_SELF_CONSISTENCY,
        EXPERT_PROMPTING,
        MULTI_AGENT_DEBATE,
        MULTI_EXPERT,
    )
}
"""Every system that comes with the package, by name."""


def system_names() -> tuple[str, ...]:
    """Returns the names that `load_system` takes: those of the package, then those of installed packages."""
    return tuple(dict.fromkeys((*SYSTEMS, *SYSTEM_PLUGINS.names())))


def load_system(name: str) -> System:
    """Returns the system under a name of `system_names`, or under `MODULE:NAME` in code of your own.

    Raises `RecordError` for an unknown name, for a module that cannot be imported or holds no `System` there, and for a
    system that contradicts itself (`metaprobe.papers.systems.suitability.check_system`).
    """
    if name in SYSTEMS:
        return SYSTEMS[name]
    system = SYSTEM_PLUGINS.load(name)
    if system is None:
        raise RecordError(
            f"no system {name!r}; there are: {', '.join(system_names())}. One of your own is given as MODULE:NAME, or "
            f"by an entry point in {SYSTEM_PLUGINS.group}"
        )
    check_system(system)
    if SYSTEMS.get(system.name, system) is not system:
        raise RecordError(
            f"system {name!r} calls itself {system.name!r}, as one of the package: give it another name, or its runs "
            "would be taken for those"
        )
    return system


@cache  # it is asked for every stored run
def known_system(name: str) -> System | None:
    """Returns the system that stored runs name, if the package or an installed one has it, else None.

    A store's content never causes an import, except of entry points that the user has installed.
    """
    return load_system(name) if name in system_names() else None
