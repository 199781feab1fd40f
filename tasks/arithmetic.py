"""Arithmetic graded by digits: made from the seed, so that it can be neither remembered nor run out of."""

from collections.abc import Iterator, Sequence
from random import Random

from metaprobe.records.types import Item
from metaprobe.tasks.task import Row, Task

EACH = 100
"""Questions of each operation and number of digits; products stop at three digits."""


def items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Sums, differences and products of two numbers of equally many digits; the level is that number."""
    random = Random(seed)
    for name, sign, most in (("addition", "+", 5), ("subtraction", "-", 5), ("multiplication", "*", 3)):
        for digits in range(1, most + 1):
            low, high = 10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1
            possible = (high - low + 1) ** 2
            for number, pair in enumerate(random.sample(range(possible), min(EACH, possible))):
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


TASK = Task(name="arithmetic", items=items, source="made here from the seed", licence="Apache-2.0")
