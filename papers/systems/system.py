"""A monitor-control system as the collection sees it."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from metaprobe.api import Call, Item, RecordError, Run, final_answer
from metaprobe.papers.policies.profiles import Experience
from metaprobe.papers.systems.session import Session
from metaprobe.papers.systems.system_options import Constant, Need


def _extract(item: Item, call: Call, variant: str) -> str:
    return final_answer(item, call.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system: what runs, in which variants, and which of its calls are answers."""

    name: str
    run: Callable[[Session], Awaitable[Run]]
    prompts: tuple[str, ...] | Mapping[str, str]
    """Names of its prompt files, in `papers/systems/prompts/<folder>/`; or a mapping from a name to the text of such a
    file.
    """
    variants: tuple[str, ...] = ("plain",)
    """Names of its variants; the first is the paper's own."""
    panel_variants: tuple[str, ...] = ()
    """Variants in which a panel keeps one of several answers; each needs a panel's checkpoint."""
    default_variants: tuple[str, ...] = ()
    """Variants that are collected if no variant is named; by default the first one."""
    stages: tuple[str, ...] = ("answer",)
    """Every stage at which it asks, except `read`: each may have a model of its own."""
    roles: tuple[str, ...] = ()
    """Its agents if they are fixed: each may have a model of its own."""
    fields: tuple[str, ...] = ()
    """`Item.fields` that its prompts need."""
    signals: Mapping[str, str] = field(default_factory=dict)
    """Maps a number that a checkpoint may replace, or give if nothing states it, to the stage whose model it reads."""
    heads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Maps a signal to the heads that its checkpoint must have, if a probability or quality is not enough."""
    uses: tuple[str, ...] = ()
    """Signals that the system itself shows, notes or returns, whatever the policy does with them."""
    decides: tuple[str, ...] = ()
    """The points at which it asks the policy, with more than one legal action or for a setting."""
    without: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Maps a variant to the signals and points of those above, and the names of the constants below, that it lacks."""
    answer_stages: tuple[str, ...] = ("answer",)
    """Stages whose calls are answers to the item; each gets a label if a program can check it."""
    extract_answer: Callable[[Item, Call, str], str] = _extract
    """`(item, call, variant) -> str` returns the answer within an answer call."""
    agents: tuple[str, ...] = ()
    """Its agents by default, if it takes any number of them."""
    experiences: Callable[[Run], Iterable[Experience]] | None = None
    """Returns what the agents' profiles learn from a labelled run; None if no item depends on earlier outcomes."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Maps a stage to its default limit of tokens. A call of a stage that is not among `stages` has the limit of the
    stage whose model it asks.
    """
    constants: tuple[Constant[Any], ...] = ()
    """Constants that can be set by name, besides those of the policy's rules."""
    needs: tuple[Need, ...] = ()
    """Packages that it needs besides those of its models."""
    folder: str = ""
    """Folder of its prompts, if several systems share one; by default its name. A system from outside the package gives
    the whole path of a folder of its own, or the texts themselves (`prompts`).
    """

    async def run_session(self, session: Session) -> Run:
        """Returns the run of one item. Raises `RecordError` if the system returns something else than a run."""
        run = await self.run(session)
        if not isinstance(run, Run):
            raise RecordError(
                f"{self.name} returned a {type(run).__name__}; expected a Run: end with `return session.run(answer)`"
            )
        return run

    def chosen(self, variants: Sequence[str] = ()) -> tuple[str, ...]:
        """Returns these variants, or those that are collected if none is named."""
        return tuple(dict.fromkeys(variants)) or self.default_variants or self.variants[:1]

    def limited(self, stage: str) -> str:
        """Returns the stage whose limit holds for the calls of this one."""
        return next((name for name in self.stages if stage == name or stage.startswith(f"{name}-")), stage)

    def signals_in(self, variant: str) -> tuple[str, ...]:
        """Returns the names of the numbers that this variant asks for, in the order of `signals`."""
        return tuple(name for name in self.signals if name not in self.without.get(variant, ()))

    def points_in(self, variant: str) -> tuple[str, ...]:
        """Returns the points at which this variant asks the policy, in the order of `decides`."""
        return tuple(point for point in self.decides if point not in self.without.get(variant, ()))

    def constants_in(self, variant: str) -> tuple[Constant[Any], ...]:
        """Returns the constants that this variant uses, in the order of `constants`."""
        return tuple(constant for constant in self.constants if constant.name not in self.without.get(variant, ()))
