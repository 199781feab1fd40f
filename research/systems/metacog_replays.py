"""MetaCogAgent replayed from the recorded answers of every agent, in any order, with any number in place of the stated.

For live_signals.py and research/papers/metacogagent.py. Every agent has answered every item and stated its
confidence, so no model is asked. The pipeline, the paper's rules and the profiles are the package's own; only the run
store is left out, and answers that were checked when they were recorded are not checked again.
"""

import asyncio
import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from metaprobe.llms.base import Request
from metaprobe.llms.cache import ReplayLLM, renamed_for
from metaprobe.papers.policies.profiles import Profiles
from metaprobe.papers.systems import SYSTEMS, Models, Prompts, Session, Setup
from metaprobe.probes.signal_source import ReadPart, SignalSource, combine_probabilities
from metaprobe.probes.signals import Signal
from metaprobe.records.types import Call, Item, Label, Message, Run
from metaprobe.routing.paper import PaperRules

SYSTEM = SYSTEMS["metacogagent"]
ORDERS = tuple(range(10))
"""Seeds of the orders that everything is run in which depends on the order of the items."""

SignalsOf = Callable[[Item], SignalSource]
"""Item -> where its numbers come from."""


def shuffled(items: Sequence[Item], order: int) -> list[Item]:
    """The items in the order of this seed, whatever order they come in."""
    found = sorted(items, key=lambda item: item.id)
    random.Random(order).shuffle(found)
    return found


@dataclass(frozen=True)
class Given:
    """Stands where a checkpoint stands, for one item: numbers that are known beforehand."""

    values: Mapping[str, float | None]
    """Agent -> the number in the place of its stated confidence; None where nothing could be read."""
    digest: str
    with_stated: bool = False
    """Whether the stated confidence is still asked for, and both are joined."""
    when: ReadPart | None = None
    """`answer` where an agent has to draft its answer before the number is known; None for a number that is free."""


class GivenSignals(SignalSource):
    """The source of signals with such numbers: for controls, and for checkpoints that have been read once for all."""

    def __init__(self, given: Given) -> None:
        """`given`: of the item that is run."""
        super().__init__()
        self.given = given

    def replacement(self, name: str, agent: str = "") -> Given | None:  # type: ignore[override]
        """The numbers, of the confidence."""
        return self.given if name == "confidence" else None

    def signal(
        self, name: str, *, agent: str = "", stated: float | None = None, call: Call | None = None
    ) -> Signal | None:
        """The agent's number, or it and the stated one joined as `--signal confidence=stated+CHECKPOINT` joins them."""
        value, source = self.given.values[agent], self.given.digest
        if self.given.with_stated and stated is not None:
            value, source = (
                (stated, "stated") if value is None else (combine_probabilities(stated, value), f"stated+{source}")
            )
        return None if value is None else Signal(value, source)

    @property
    def description(self) -> dict[str, str]:
        return {"confidence": self.given.digest}


class RenderedOnce:
    """The prompts of the system, each filled once: ten orders of thirty variants ask the same questions."""

    def __init__(self, prompts: Prompts) -> None:
        self.texts = prompts.texts
        self._prompts = prompts
        self._lists: dict[str, tuple[str, ...]] = {}
        self._filled: dict[tuple[object, ...], tuple[Message, ...]] = {}

    def messages(self, name: str, **slots: str) -> tuple[Message, ...]:
        """Renders a prompt as `Prompts.messages` does."""
        key = (name, *slots.items())
        if key not in self._filled:
            self._filled[key] = self._prompts.messages(name, **slots)
        return self._filled[key]

    def entries(self, name: str) -> tuple[str, ...]:
        """Lists entries as `Prompts.entries` does."""
        if name not in self._lists:
            self._lists[name] = self._prompts.entries(name)
        return self._lists[name]


class FoundOnce(ReplayLLM):
    """The recorded calls, each looked up once."""

    async def complete(self, request: Request) -> Call:
        """Answers as `ReplayLLM.complete` does; no two recorded calls of a run asked the same."""
        known: dict[tuple[object, ...], Call] = self.__dict__.setdefault("_found", {})
        key = (request.messages, request.sampling)
        if key not in known:
            known[key] = await super().complete(request)
        return renamed_for(request, known[key])


class Recording:
    """Runs of the variant `every-agent`, ready to be replayed as another variant, in another order."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.items = [run.item for run in runs]
        self._llm = FoundOnce.from_runs(runs)
        self._prompts = RenderedOnce(Prompts.load(SYSTEM.name, SYSTEM.prompts, optional=SYSTEM.agents))
        self._right = {
            (run.item.id, SYSTEM.extract_answer(run.item, call, run.variant)): run.label("correct", call.id)
            for run in runs
            for call in run.calls
            if call.stage in SYSTEM.answer_stages
        }

    def replayed(
        self, variant: str, constants: str = "", *, order: int | None = None, signals_of: SignalsOf | None = None
    ) -> list[Run]:
        """One item after another, as in the paper. `order`: its seed, or None for the order of the ids.

        `constants`: of the paper's rules, as in `--policy paper:theta=0.4`. The runs come in the order they ran in.
        """
        return asyncio.run(self._replayed(variant, PaperRules.parse(constants), order, signals_of))

    async def _replayed(
        self, variant: str, rules: PaperRules, order: int | None, signals_of: SignalsOf | None
    ) -> list[Run]:
        profiles = Profiles(initial=rules.initial, rate=rules.rate)
        setup = Setup(Models(self._llm), self._prompts, policy=rules, profiles=profiles, agents=SYSTEM.agents)
        items = sorted(self.items, key=lambda item: item.id) if order is None else shuffled(self.items, order)
        runs = []
        for place, item in enumerate(items):
            own = setup if signals_of is None else dataclasses.replace(setup, signals=signals_of(item))
            identity = f"{SYSTEM.name}/{variant}/{item.id}"
            session = Session(own, item, system=SYSTEM.name, variant=variant, run_id=identity, index=place)
            run = self._labelled(await SYSTEM.run(session))
            runs.append(run)
            assert SYSTEM.experiences is not None
            for experience in SYSTEM.experiences(run):
                profiles.learn(experience)
        return runs

    def _labelled(self, run: Run) -> Run:
        labels = []
        for call in run.calls:
            if call.stage in SYSTEM.answer_stages:
                right = self._right[run.item.id, SYSTEM.extract_answer(run.item, call, run.variant)]
                if right is not None:
                    labels.append(Label(call_id=call.id, name="correct", value=right, source="program"))
        outcome = self._right[run.item.id, run.final_answer]
        return dataclasses.replace(run, labels=(*run.labels, *labels), outcome=outcome)
