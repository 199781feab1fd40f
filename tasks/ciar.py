"""CIAR: counter-intuitive arithmetic, where the first guess is wrong. Liang et al. 2024, arXiv:2305.19118."""

import re
from collections.abc import Iterator, Sequence

from metaprobe.records.types import Item
from metaprobe.tasks.task import Row, Task

_PLAIN = re.compile(r"-?\d+(?:\.\d+)?(?:/\d+)?%?")


def items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """One item a question, right with any of its accepted strings.

    Where all of these are plain numbers, fractions or percentages, the answer is read as a number, so that units may
    stand beside it; "6 or 12", "1:1" and "1/e" are compared as text.
    """
    for row in rows:
        accepted = row.texts("answers")
        yield Item(
            id=row.text("id"),
            question=row.text("question"),
            gold=accepted,
            group=row.text("id"),
            check="number" if all(_PLAIN.fullmatch(answer) for answer in accepted) else "exact",
        )


TASK = Task(
    name="ciar",
    items=items,
    source="https://github.com/Skytliang/Multi-Agents-Debate (data/CounterintuitiveQA)",
    licence="GPL-3.0",
    folder="ciar",
)
