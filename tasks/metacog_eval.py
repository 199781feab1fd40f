"""A rebuilt MetaCog-Eval (MetaCogAgent, Table I): 600 questions in five dimensions and three levels, 100 cross.

The rows were drawn once, by programs, from templates and tables of facts; a program computed every answer.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from metaprobe.records.errors import RecordError
from metaprobe.records.types import Item
from metaprobe.tasks.items_file import read_items
from metaprobe.tasks.task import Row, Task

ROWS = Path(__file__).parent / "rows" / "metacog-eval.jsonl"
SEED = 20261121
"""Seed with which the rows were drawn."""


def items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """The 700 items, in the order of Table I. Raises `RecordError` for another seed than that of the rows."""
    if seed != SEED:
        raise RecordError(
            f"metacog-eval ships the items of seed {SEED}; got seed {seed}: leave it out, or give items "
            "of your own as a .jsonl file"
        )
    yield from read_items(ROWS)


TASK = Task(name="metacog-eval", items=items, source="made here from templates", licence="Apache-2.0")
