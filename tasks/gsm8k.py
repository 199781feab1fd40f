"""GSM8K: grade-school word problems whose answer is a number. Cobbe et al. 2021, arXiv:2110.14168."""

from collections.abc import Iterable, Iterator, Sequence

from metaprobe.records.correctness import numbers
from metaprobe.records.errors import ImportFileError
from metaprobe.records.types import Item
from metaprobe.tasks.task import Record, Row, Task

LEVELS = ((2, "1-2 steps"), (4, "3-4 steps"), (99, "5 or more steps"))
"""Up to so many lines of the reference solution: the level."""


def items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """One item a problem; the level is the length of the reference solution."""
    for row in rows:
        gold = row.text("final").replace(",", "")
        if len(numbers(gold)) != 1:
            raise ImportFileError(f"{row.where}: field 'final' is {gold!r}; expected a number")
        steps = row.whole("n_steps", 1, 99)
        yield Item(
            id=row.text("id"),
            question=row.text("question"),
            gold=(gold,),
            group=row.text("id"),
            level=next(level for most, level in LEVELS if steps <= most),
            check="number",
        )


def adapt(record: Record) -> Iterable[Record]:
    """The original's `answer` holds the solution and, after ####, the number."""
    if "final" in record:
        return [record]
    solution, _, final = record["answer"].partition("####")
    steps = sum(bool(line.strip()) for line in solution.splitlines())
    return [{**record, "final": final.strip(), "n_steps": max(steps, 1)}]


TASK = Task(
    name="gsm8k",
    items=items,
    source="https://github.com/openai/grade-school-math",
    licence="MIT",
    folder="gsm8k",
    files={"train": "train", "test": "test"},
    hub="openai/gsm8k:main@train",
    adapt=adapt,
)
