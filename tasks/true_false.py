"""Short statements of simple facts, true or false.

Marks & Tegmark 2023, arXiv:2310.06824 (geometry of truth); Azaria & Mitchell 2023, arXiv:2304.13734.
"""

import re
from collections.abc import Iterator, Sequence

from metaprobe.records.types import Item
from metaprobe.tasks.task import Row, Task

_QUOTED = re.compile(r"'([^']+)'")
_NAME = re.compile(r"(?:[A-Z][\w.'-]*)(?: (?:of |de )?[A-Z][\w.'-]*)*")
_OPENING = re.compile(r"^(?:the city of |it is the case (?:both |either )?that |the |an |a )+", re.IGNORECASE)


def items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """One item a statement; the dimension is its subset, and a group is the statements about one subject."""
    for row in rows:
        statement = row.text("statement")
        label = row.whole("label", 0, 1)
        yield Item(
            id=row.text("id"),
            question=f"Statement: {statement}\n\nIs the statement true or false? Answer true or false.",
            gold=("true" if label else "false",),
            group=subject(statement),
            dimension=row.text("subset"),
            choices=("true", "false"),
            check="choice",
        )


def subject(statement: str) -> str:
    """Returns the subject of a statement: a quoted word, else the name it begins with, else its first two words.

    A conjunction of two statements is grouped by the first.
    """
    if quoted := _QUOTED.search(statement):
        return quoted[1].casefold()
    rest = _OPENING.sub("", statement)
    name = _NAME.match(rest)
    return name[0].casefold() if name else " ".join(rest.split()[:2]).casefold()


TASK = Task(
    name="true-false",
    items=items,
    source="https://github.com/saprmarks/geometry-of-truth",
    licence="none stated (geometry-of-truth); MIT (Azaria & Mitchell)",
    folder="true_false_statements",
)
