"""Turns of learners with the writing assistant: the four cases of MetaCrit's study retold, and labelled turns.

The rows were written once; `research/writing/README.md` in metaprobe's repository names their sources, and explains the
labels, which are the fields `stage` (`pre`, `during`, `post`, `none`) and `reasoning` (`yes`, `no`) of an item. No
program can check the answers; those of the stage classifier and of the reasoning check get the label `correct`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from metaprobe.papers.tasks.item_files import read_items
from metaprobe.papers.tasks.task import Row, Task
from metaprobe.records.types import Item

FOLDER = Path(__file__).parent / "rows"
CASES_FILE, TURNS_FILE = FOLDER / "writing-cases.jsonl", FOLDER / "writing-turns.jsonl"
SOURCE, LICENCE = "made here from templates", "Apache-2.0"


def cases(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Yields the 22 inputs of the four cases, in order. The group is the case; the seed changes nothing."""
    yield from read_items(CASES_FILE)


def turns(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Yields the labelled turns. The group is the template from which they were made; the seed changes nothing."""
    yield from read_items(TURNS_FILE)


CASES = Task(
    name="writing-cases", items=cases, source="the cases of MetaCrit's study, in words of ours", licence=LICENCE
)
TURNS = Task(name="writing-turns", items=turns, source=SOURCE, licence=LICENCE)
