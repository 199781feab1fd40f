"""The items of 57 task families, read from the recorded answers of SmolLM2-135M, which was asked all of them.

They were drawn once by programs, 30 a family in three levels, each with an answer that a program computed.
"""

import itertools
from collections import defaultdict
from pathlib import Path

from metaprobe.records.store import RunStore
from metaprobe.records.types import Item

NAME = "breadth"
STORE = Path(__file__).parent.parent.parent / "recorded" / NAME / "smollm2-135m"
EACH = 30
"""Items of each family."""
ARITHMETIC = (
    "addition binary-numbers clock-times compare-numbers days-between divisibility everyday-scales geometry "
    "mixed-arithmetic money months multiplication number-series number-words percentages remainders roman-numerals "
    "rounding unit-conversion weekdays word-problems"
).split()
"""Families whose questions take numbers or quantities."""


def breadth_items(each: int = EACH) -> list[Item]:
    """Returns `each` items of every family, the families in turn: every beginning of the list is a fair sample.

    The first n of a longer list are those of a shorter one. Raises `ValueError` where `each` is more than `EACH`.
    """
    if each > EACH:
        raise ValueError(f"each={each}; expected at most {EACH}, the items that a family has")
    families: dict[str, dict[str, Item]] = defaultdict(dict)
    for run in RunStore(STORE).runs(hidden=False):
        families[run.item.dimension][run.item.id] = run.item
    rows = [[items[key] for key in sorted(items)][:each] for _, items in sorted(families.items())]
    return list(itertools.chain.from_iterable(zip(*rows, strict=True)))
