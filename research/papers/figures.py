"""One number of a paper beside ours, and what they are made from: for research/papers/page.py."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval
from metaprobe.records.types import Run
from research.systems.figures import about
from research.systems.metacog_orders import OverOrders

NOT_COLLECTED = "Can be measured, and is not collected yet: `python -m research.stores.collect {}`."
PROPRIETARY = "Needs {}, behind a paid API."
HUMAN = "Needs human readers."


@dataclass(frozen=True, slots=True)
class Control:
    """A difference of ours that the same claim has to survive, in the form of the number it belongs to."""

    name: str
    """Name of what takes the place of the claim's subject."""
    here: tuple[float, float, float]
    """Estimate, low, high."""
    orders: tuple[float, float] | None = None
    """The smallest and the largest of a single order of the items, where these matter."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a paper beside ours."""

    where: str
    """Table or section of the paper."""
    what: str
    paper: str
    """Number as the paper gives it, with its unit."""
    here: tuple[float, float, float] | None
    """Estimate, low, high; None where nothing can be taken over."""
    n: int = 0
    form: str = "number"
    """`percent` of a share, `points` of a difference of shares, `difference`, `count` without interval, or `number`."""
    sign: int = 0
    """Sign of a difference in the paper, 1 or -1: a claim that ours confirms, contradicts or leaves open."""
    orders: tuple[float, float] | None = None
    """The smallest and the largest of a single order of the items; None where nothing was run in an order."""
    controls: tuple[Control, ...] = ()
    """Controls of a claim: it holds only if it survives each."""
    same: str = ""
    """Names, for a claim without controls, what both sides share, so that only what is claimed can make the
    difference."""


@dataclass(frozen=True, slots=True)
class Missing:
    where: str
    why: str


@dataclass(frozen=True, slots=True)
class Section:
    """One paper's part of the page."""

    paper: str
    model: str
    task: str
    with_models: str
    about: tuple[str, ...]
    figures: tuple[Figure, ...] = ()
    missing: tuple[Missing, ...] = ()
    doubts: tuple[str, ...] = field(default=())


def figure(where: str, what: str, paper: str, value: Interval | None, form: str = "percent", sign: int = 0) -> Figure:
    """A number from an interval."""
    here = None if value is None else (value.estimate, value.low, value.high)
    return Figure(where, what, paper, here, 0 if value is None else value.n, form, sign)


def over_orders(where: str, what: str, paper: str, value: OverOrders | None, form: str = "percent") -> Figure:
    """A number from several orders of the items."""
    if value is None:
        return Figure(where, what, paper, None, 0, form)
    return dataclasses.replace(figure(where, what, paper, value.value, form), orders=value.spread)


def claim(
    where: str,
    what: str,
    points: float,
    value: Interval | OverOrders,
    *,
    controls: Mapping[str, Interval | OverOrders] = MappingProxyType({}),
    same: str = "",
) -> Figure:
    """A difference that the paper reports, in percentage points, beside ours, and what the claim has to survive."""
    own, orders = _split(value)
    made = figure(where, what, f"{points:+.1f}", own, "points", 1 if points > 0 else -1)
    against = tuple(control(name, difference) for name, difference in controls.items())
    return dataclasses.replace(made, orders=orders, controls=against, same=same)


def control(name: str, difference: Interval | OverOrders) -> Control:
    """A control from our difference against it."""
    value, orders = _split(difference)
    return Control(name, (value.estimate, value.low, value.high), orders)


def _split(value: Interval | OverOrders) -> tuple[Interval, tuple[float, float] | None]:
    return (value.value, value.spread) if isinstance(value, OverOrders) else (value, None)


def counted(where: str, what: str, paper: str, count: int) -> Figure:
    """A number that is a plain count."""
    return Figure(where, what, paper, (count, count, count), count, "count")


def section_of(
    paper: dict[str, Any], runs: Sequence[Run], *, nothing: str = "", models: str = "", **more: Any
) -> Section:
    """Makes the parts that are the same for every paper. `nothing`: the text where no run is recorded, and of whose
    models."""
    models = ", ".join(sorted({call.model for run in runs for call in run.calls})) or models
    task = f"{paper['task']}." if paper.get("task") else ""
    doubts = (*paper.get("contradictions", ()), *paper.get("unclear", ()), *paper.get("notes", ()))
    lines = tuple(about(runs)) if runs else (nothing or "Nothing of it is recorded here.",)
    return Section(paper["paper"], paper.get("model", "see the tables"), task, models, lines, doubts=doubts, **more)


def weights_of(runs: Sequence[Run]) -> Any:
    """Resamples of the runs by group."""
    return cluster_weights([run.item.group or run.item.id for run in runs])


def paired(runs: Sequence[Run], others: Sequence[Run]) -> Interval:
    """Difference of accuracy on the same items."""
    before = {run.item.id: run.outcome for run in others}
    return mean_interval([(run.outcome or 0.0) - (before[run.item.id] or 0.0) for run in runs], weights_of(runs))
