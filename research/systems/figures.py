"""The recorded runs of systems, and how numbers are written: for its neighbours and research/papers/."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from research.blocks import shown
from research.systems.metacog_orders import OverOrders

ROOT = Path(__file__).parent.parent.parent
PAGE, GUIDE = ROOT / "docs" / "research" / "systems.md", ROOT / "docs" / "systems.md"
Lines = list[str]
ABOUT_ORDERS = (
    "The order of the items matters, for profiles follow what came before: everything is run in {n} shuffled orders "
    "(seeds 0 to 9). Shown are the mean over the orders, [its interval over groups], and (the smallest to the largest "
    "single order)."
)


def recorded(name: str) -> list[Run]:
    """The runs of one store, none where it is missing."""
    folder = ROOT / "recorded" / name
    return list(RunStore(folder)) if folder.is_dir() else []


def about(runs: Sequence[Run]) -> Lines:
    """Describes the runs: models, items, tokens."""
    models = sorted({f"{call.model} ({call.model_dtype})" for run in runs for call in run.calls})
    tokens = sum(call.usage.completion_tokens for run in runs for call in run.calls)
    read = sum(call.usage.prompt_tokens for run in runs for call in run.calls)
    items = {run.item.id for run in runs}
    calls = sum(len(run.calls) for run in runs)
    return [
        f"Measured with {', '.join(models)} on {len(items)} items: {len(runs)} runs, {calls} calls, {tokens:,} tokens "
        f"generated, {read:,} read. Intervals are of 95 %, by a bootstrap over groups."
    ]


def share(value: Interval | None) -> str:
    """A proportion in percent with its interval."""
    return "-" if value is None else f"{value.estimate:.1%} [{value.low:.1%}, {value.high:.1%}] (n = {value.n})"


def packed(value: OverOrders | None) -> dict[str, Any] | None:
    """A number over several orders, as it is kept in docs/measured/."""
    if value is None:
        return None
    mean = value.value
    return {"value": [mean.estimate, mean.low, mean.high], "n": mean.n, "orders": [value.low, value.high]}


def cell(value: dict[str, Any] | None, form: str) -> str:
    """A packed number in a table: mean [interval] (smallest to largest order), these only where the orders differ."""
    if value is None:
        return "-"
    scale, shape = FORMS[form]
    estimate, low, high = (shape.format(scale * x) for x in value["value"])
    first, last = (shape.format(scale * x) for x in value["orders"] or (0, 0))
    return (
        estimate + ("" if form == "count" else f" [{low}, {high}]") + ("" if first == last else f" ({first} to {last})")
    )


FORMS = {
    **{"percent": (100, "{:.1f}%"), "points": (100, "{:+.1f}"), "count": (1, "{:,.0f}")},
    **{"number": (1, "{:.3f}"), "difference": (1, "{:+.3f}")},
}
"""Form of a number -> what it is multiplied by, and how it is written. A count has no interval."""


def number(value: Interval | None, form: str = ".3f") -> str:
    """An estimate with its interval."""
    return shown(value and (value.estimate, value.low, value.high), form)
