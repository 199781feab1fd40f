"""Task sets that need no data from elsewhere.

- `arithmetic`: graded by digits, made from the seed, so that it cannot be remembered and never runs out.
- `metacog-eval`: a rebuilt MetaCog-Eval (MetaCogAgent, Table I): 600 questions in five dimensions and three levels, 100
  cross. The rows were drawn once, by programs, from templates and tables of facts; a program computed every answer.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from metaprobe.api import Item, RecordError
from metaprobe.papers.tasks.item_files import read_items
from metaprobe.papers.tasks.task import Row, Task

QUESTIONS_PER_CELL = 100
"""Number of questions of each operation and number of digits; products stop at three digits."""


def arithmetic_items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Yields sums, differences and products of two numbers of equally many digits; the level is that number."""
    random = Random(seed)
    for name, sign, max_digits in (("addition", "+", 5), ("subtraction", "-", 5), ("multiplication", "*", 3)):
        for digits in range(1, max_digits + 1):
            low, high = 10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1
            possible = (high - low + 1) ** 2
            for number, pair in enumerate(random.sample(range(possible), min(QUESTIONS_PER_CELL, possible))):
                a, b = low + pair // (high - low + 1), low + pair % (high - low + 1)
                value = a + b if sign == "+" else a - b if sign == "-" else a * b
                yield Item(
                    id=f"{name}-{digits}-{number}",
                    question=f"What is {a} {sign} {b}?",
                    gold=(str(value),),
                    group=f"{min(a, b)} {sign} {max(a, b)}",
                    dimension=name,
                    level=f"{digits} digits",
                    task="arithmetic",
                    check="number",
                )


ARITHMETIC = Task(name="arithmetic", items=arithmetic_items, source="made here from the seed", licence="Apache-2.0")


ROWS_FILE = Path(__file__).parent / "rows" / "metacog-eval.jsonl"
ROWS_SEED = 20261121
"""Seed with which the rows were drawn."""


def metacog_items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Yields the 700 items, in the order of Table I. Raises `RecordError` for a seed other than that of the rows."""
    if seed != ROWS_SEED:
        raise RecordError(
            f"metacog-eval ships the items of seed {ROWS_SEED}; got seed {seed}: leave it out, or give items "
            "of your own as a .jsonl file"
        )
    yield from read_items(ROWS_FILE)


METACOG_EVAL = Task(name="metacog-eval", items=metacog_items, source="made here from templates", licence="Apache-2.0")
