"""How a comparison shows itself: one line, a table in a notebook, JSON's own types, a pandas table."""

from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from metaprobe.checkpoints.display import html_table
from metaprobe.eval.plain import plain
from metaprobe.records.errors import MissingExtra

IN_ITEMS = ("y", "probability", "ranking")
"""What has an entry for every answer."""
INTERVALS = ("auroc", "within_runs", "auprc", "brier_skill", "aurc", "ece", "diff_stated", "diff_control")
"""Figures of a method in the tables: an estimate with its interval each."""


class ShownComparison:
    """What `Comparison` shows of itself."""

    __slots__ = ()

    if TYPE_CHECKING:
        headline: str
        methods: tuple[Any, ...]
        y: Any

    def __repr__(self) -> str:
        named = [method for method in self.methods if method.name == self.headline]
        best = "".join(f", {method.name} AUROC {_format(method.auroc)}" for method in named)
        return f"Comparison({len(self.y)} answers, {len(self.methods)} methods{best})"

    def _repr_html_(self) -> str:
        """A table for notebooks: every method's AUROC and its paired differences, with 95 % intervals."""
        rows = [
            (m.name, m.family, f"{m.coverage:.0%}", *map(_format, (m.auroc, m.diff_stated, m.diff_control)))
            for m in self.methods
        ]
        head = ("method", "kind", "said", "AUROC", "minus stated confidence", "minus strongest control")
        return html_table(f"Comparison on {len(self.y)} answers", rows, head=head)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything it says but what there is an entry for every answer of, as JSON's own types.

        What is not a number is None.
        """
        return {
            "answers": len(self.y),
            "base_rate": plain(self.y.mean()),
            "methods": {method.name: _plain_fields(method, IN_ITEMS) for method in self.methods},
            **_plain_fields(self, (*IN_ITEMS, "methods")),
        }

    def to_pandas(self) -> Any:
        """Returns a pandas DataFrame with a row a method: kind, coverage, and each metric with `_low` and `_high`.

        Raises `MissingExtra` where pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise MissingExtra("pandas is needed here and not installed: pip install pandas") from error
        return pandas.DataFrame([_row(method) for method in self.methods]).set_index("method")


def _row(method: Any) -> dict[str, Any]:
    row = {"method": method.name, "family": method.family, "coverage": method.coverage}
    for name in INTERVALS:
        value = getattr(method, name)
        ends = (None, None, None) if value is None else (value.estimate, value.low, value.high)
        row |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
    return row


def _plain_fields(value: Any, without: Sequence[str]) -> dict[str, Any]:
    return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.name not in without}


def _format(interval: Any) -> str:
    return "-" if interval is None else f"{interval.estimate:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
