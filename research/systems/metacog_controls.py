"""Makes the controls of a learned signal in MetaCogAgent: constants, the best agent, votes, and itself, shuffled.

For live_signals.py and research/papers/metacogagent.py. The items are halved by group; whatever a control knows of an
item (how often an agent is right, which agent is the best) is taken from the other half, as what a checkpoint knows is.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.systems import metacogagent_figures as metacogagent
from metaprobe.eval.systems.dispatch import DispatchedRun
from metaprobe.papers.policies.profiles import UNKNOWN_DIMENSION
from metaprobe.papers.systems.metacogagent import extract_final
from metaprobe.papers.systems.vote_counting import most_voted
from metaprobe.probes.signal_source import ReadPart, SignalSource
from metaprobe.records.types import Item, Run
from research.systems.figures import recorded
from research.systems.metacog_orders import Floats, Series
from research.systems.metacog_replays import ORDERS, Given, GivenSignals, Recording

BEST, MAJORITY, WEIGHTED = "best agent alone", "majority vote", "vote weighted by log-odds of the accuracy"
CONSTANT, BY_DIMENSION = "constant per agent", "constant per agent and dimension"
SHUFFLED, WITHIN = "shuffled within agent", "shuffled within agent and dimension"
FEWEST = 5
"""Items of a dimension in the other half from which an agent's rate on it is taken; else its rate on all."""


def half_of(item: Item) -> int:
    """0 or 1, by the hash of the group."""
    return hashlib.sha256((item.group or item.id).encode()).digest()[0] % 2


class World:
    """The recorded answers as arrays (items, agents), the items by id."""

    def __init__(self, runs: Sequence[Run]) -> None:
        """`runs`: of the variant `every-agent`, whole."""
        self.runs = sorted(runs, key=lambda run: run.item.id)
        self.recording = Recording(self.runs)
        known = [line["agents"] for line in metacogagent.metacogagent_outcomes(self.runs)]
        self.agents = tuple(sorted(known[0]))
        self.right, self.stated = (
            np.array([[line[agent][name] for agent in self.agents] for line in known], dtype=np.float64)
            for name in ("correct", "confidence")
        )  # None becomes nan
        self.half = np.array([half_of(run.item) for run in self.runs])
        self.dimension = np.array([DispatchedRun(run).dimension or UNKNOWN_DIMENSION for run in self.runs])
        """Dimension that the classifier gives: all that the system itself knows of a new question."""
        self._place = {run.item.id: place for place, run in enumerate(self.runs)}

    def play(
        self,
        values: Callable[[int], Floats] | None = None,
        *,
        with_stated: bool = False,
        when: ReadPart | None = None,
        variant: str = "algorithm",
        constants: str = "",
        orders: Sequence[int] = ORDERS,
    ) -> Series:
        """The variant in every order. `values`: order -> (items, agents), in the place of the stated confidence; nan
        where there is none. `with_stated`, `when`: as in `Given`."""
        replays = []
        for order in orders:
            signals = None if values is None else self._signals(values(order), with_stated, when)
            replays.append(self.recording.replayed(variant, constants, order=order, signals_of=signals))
        return Series(replays)

    def _signals(self, values: Floats, with_stated: bool, when: ReadPart | None) -> Callable[[Item], SignalSource]:
        def of(item: Item) -> SignalSource:
            row = values[self._place[item.id]]
            known = {a: None if np.isnan(x) else float(x) for a, x in zip(self.agents, row, strict=True)}
            return GivenSignals(Given(known, "given", with_stated, when))

        return of


@lru_cache
def every_agent() -> World:
    """The recorded runs. Raises ValueError where they are missing."""
    return World(recorded("metacog-every-agent"))


@lru_cache
def series(variant: str, constants: str = "") -> Series:
    """A variant of the recorded runs, or other constants of the paper's rules, in every order."""
    return every_agent().play(variant=variant, constants=constants)


def rates(world: World) -> Floats:
    """(items, agents): each agent's accuracy on the other half."""
    by_half = np.array([world.right[world.half != half].mean(axis=0) for half in (0, 1)])
    return np.asarray(by_half[world.half])


def rates_by_dimension(world: World) -> Floats:
    """The same, on items of the same classified dimension; on all where they are fewer than `FEWEST`."""
    found = rates(world)
    for half in (0, 1):
        for dimension in np.unique(world.dimension):
            of = world.dimension == dimension
            others = of & (world.half != half)
            if others.sum() >= FEWEST:
                found[of & (world.half == half)] = world.right[others].mean(axis=0)
    return found


def shuffled_within(world: World, values: Floats, seed: int, *, by_dimension: bool = False) -> Floats:
    """The values of each agent, dealt out again among the items of a half (and of a dimension): what is left says which
    agent spoke (and of what dimension), and no more which question."""
    rng = np.random.default_rng(seed)
    cells: NDArray[np.generic] = world.half
    if by_dimension:
        cells = np.array([f"{half} {name}" for half, name in zip(world.half, world.dimension, strict=True)])
    dealt = values.copy()
    for cell in np.unique(cells):
        rows = np.flatnonzero(cells == cell)
        for agent in range(values.shape[1]):
            dealt[rows, agent] = values[rng.permutation(rows), agent]
    return dealt


def voted(world: World, *, weighted: bool) -> Floats:
    """(items,) right or wrong: all answer and vote, evenly or by the log-odds of their accuracy on the other half."""
    accuracy = np.clip(rates(world), 0.01, 0.99)
    weights = np.maximum(np.log(accuracy / (1 - accuracy)), 0.0) if weighted else np.ones_like(accuracy)
    won = []
    for run, own, right in zip(world.runs, weights, world.right, strict=True):
        texts = {call.agent: extract_final(run.item, call, run.variant) for call in run.calls if call.stage == "answer"}
        votes = {agent: (texts[agent], float(w)) for agent, w in zip(world.agents, own, strict=True)}
        won.append(right[world.agents.index(most_voted(run.item, votes))])
    return np.array(won)


def without_signal(world: World) -> dict[str, Floats]:
    """The controls that read no signal and ask nobody how sure it is: name -> (items,)."""
    # The agent that is the best on the other half answers everything.
    best = world.right[np.arange(len(world.runs)), rates(world).argmax(axis=1)]
    return {BEST: best, MAJORITY: voted(world, weighted=False), WEIGHTED: voted(world, weighted=True)}


def with_constants(world: World, orders: Sequence[int] = ORDERS) -> dict[str, Series]:
    """The system itself with constants in the place of the stated confidence."""
    return {
        CONSTANT: world.play(lambda order: rates(world), orders=orders),
        BY_DIMENSION: world.play(lambda order: rates_by_dimension(world), orders=orders),
    }


def with_shuffled(
    world: World,
    values: Floats,
    *,
    with_stated: bool = False,
    when: ReadPart | None = None,
    orders: Sequence[int] = ORDERS,
) -> dict[str, Series]:
    """The system itself with the same signal shuffled; in each order another draw, with the order's seed."""

    def dealt(by_dimension: bool) -> Series:
        return world.play(
            lambda order: shuffled_within(world, values, order, by_dimension=by_dimension),
            with_stated=with_stated,
            when=when,
            orders=orders,
        )

    return {SHUFFLED: dealt(False), WITHIN: dealt(True)}
