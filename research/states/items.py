"""The items that both coders are asked, a list a task, of which every beginning is a fair sample."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import mul
from pathlib import Path
from random import Random

from metaprobe.papers.tasks.named_tasks import load_task
from metaprobe.records.types import Item

SHORT = {"mmlu": 320, "bbq": 450}
"""Set -> the most characters of a question with its options: what is read costs as much as what is said, and is read
again for each thing that is asked."""
MOST = 100_000
WITH_LICENCE = frozenset({"capitals", "animals", "inventions", "elements", "facts"})
"""Kinds of true-false statements that may be given on (MIT, Azaria & Mitchell); the others state no licence."""
EACH_SUM = 400
"""Questions of each kind of arithmetic."""


def short(name: str, data: Path) -> list[Item]:
    """Returns the items of a set with short questions."""
    return [item for item in spread(name, data) if len(item.question) <= SHORT[name]]


def spread(name: str, data: Path, split: str | None = None) -> list[Item]:
    """Returns all items of a task set, in turn over its dimensions and levels."""
    return load_task(name, data=data / FOLDERS[name], split=split, limit=MOST)


def sums(seed: int = 20261126) -> list[Item]:
    """Returns arithmetic that a small model gets right about every other time, the kinds in turn."""
    return list(chain.from_iterable(zip(*(_kind(name, seed) for name in KINDS), strict=True)))


def _kind(name: str, seed: int) -> Iterator[Item]:
    random = Random(f"{seed}/{name}")
    asked: set[str] = set()
    while len(asked) < EACH_SUM:
        text, value = KINDS[name](random)
        if text in asked:
            continue
        asked.add(text)
        yield Item(
            id=f"{name}-{len(asked) - 1}",
            question=f"What is {text}?",
            gold=(str(value),),
            group=text,
            dimension=name,
            task="arithmetic",
            check="number",
        )


def _sum(digits: Sequence[int], text: str, value: Callable[..., int]) -> Callable[[Random], tuple[str, int]]:
    """Returns what draws numbers of so many digits, and gives the text of the sum and its value."""

    def drawn(random: Random) -> tuple[str, int]:
        numbers = [random.randint(10 ** (n - 1) + (n == 1), 10**n - 1) for n in digits]  # nothing times 1
        return text.format(*numbers), value(*numbers)

    return drawn


KINDS: Mapping[str, Callable[[Random], tuple[str, int]]] = {
    "product 2x2": _sum((2, 2), "{} * {}", mul),
    "product 3x2": _sum((3, 2), "{} * {}", mul),
    "product 3x1": _sum((3, 1), "{} * {}", mul),
    "sum and difference": _sum((3, 3, 3), "{} + {} - {}", lambda a, b, c: a + b - c),
    "product and sum": _sum((2, 1, 3), "{} * {} + {}", lambda a, b, c: a * b + c),
}

FOLDERS = {
    "places": "place_country_popularity",
    "true-false": "true_false_statements",
    "creak": "creak",
    "mmlu": "mmlu",
    "factual-qa": "factual_qa",
    "bbq": "bbq",
    "truthfulqa": "truthfulqa",
    "gsm8k": "gsm8k",
}
"""Task -> its folder within the data."""

ITEMS: Mapping[str, Callable[[Path], list[Item]]] = {
    "places": lambda data: spread("places", data),
    "true-false": lambda data: [one for one in spread("true-false", data) if one.dimension in WITH_LICENCE],
    "true-false-others": lambda data: [one for one in spread("true-false", data) if one.dimension not in WITH_LICENCE],
    "creak": lambda data: [one for split in ("dev", "train") for one in spread("creak", data, split)],
    "arithmetic": lambda data: sums(),
    "mmlu": lambda data: short("mmlu", data),
    "triviaqa": lambda data: [one for one in spread("factual-qa", data) if one.dimension == "triviaqa"],
    # The ambiguous ones are left out: the 1.5B coder had 1 in 40 right, so the condition alone would tell right from
    # wrong.
    "bbq": lambda data: [one for one in short("bbq", data) if one.level == "disambig"],
    "metacog-eval": lambda data: load_task("metacog-eval", limit=MOST),
    "gsm8k": lambda data: spread("gsm8k", data, "train"),
}
"""Name of a list -> its items."""
