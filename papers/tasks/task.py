"""A task set: items from rows of data, the metrics of answers to them, and the results of guessing."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from random import Random
from typing import Any

import numpy as np

from metaprobe.api import (
    ImportFileError,
    Interval,
    Item,
    RecordError,
    is_correct,
)

Record = Mapping[str, Any]
MetricIntervals = dict[str, Interval]
"""Maps the name of a metric to its value with an interval over groups of items."""


class Row:
    """One line of a data set, read field by field. A field of a wrong form raises `ImportFileError`, with its place."""

    def __init__(self, values: Record, where: str) -> None:
        self.values = values
        self.where = where
        """`file:line`, or data set and row."""

    def text(self, name: str) -> str:
        value = self.values.get(name)
        return value if isinstance(value, str) and value.strip() else self._wrong(name, "a text")

    def optional(self, name: str) -> str:
        """Returns a text, or "" if the field is null or absent."""
        return "" if self.values.get(name) is None else self.text(name)

    def texts(self, name: str, *, blank: bool = False) -> tuple[str, ...]:
        """Returns a list of texts; some may be empty if `blank`."""
        value = self.values.get(name)
        is_valid = (
            isinstance(value, list)
            and value
            and all(isinstance(part, str) and (blank or part.strip()) for part in value)
        )
        return tuple(value) if is_valid and value else self._wrong(name, "a list of texts")

    def whole(self, name: str, low: int, high: int) -> int:
        """Returns a whole number from `low` to `high`.

        Args:
            name: the field.
            low: lowest number.
            high: highest number.
        """
        value = self.values.get(name)
        is_whole = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value % 1 == 0
        is_valid = is_whole and value is not None and low <= value <= high
        return (
            int(value) if is_valid and value is not None else self._wrong(name, f"a whole number from {low} to {high}")
        )

    def one_of(self, name: str, *known: str) -> str:
        value = self.values.get(name)
        return value if isinstance(value, str) and value in known else self._wrong(name, f"one of {', '.join(known)}")

    def part(self, name: str) -> "Row | None":
        """Returns the object in a field, or None if it is null or absent."""
        value = self.values.get(name)
        if value is None:
            return None
        return Row(value, f"{self.where}: in {name!r}") if isinstance(value, dict) else self._wrong(name, "an object")

    def _wrong(self, name: str, expected: str) -> Any:
        received = f"is {self.values[name]!r}"[:200] if name in self.values else "is missing"
        raise ImportFileError(f"{self.where}: field {name!r} {received}; expected {expected}")


def shuffle_options(choices: Sequence[str], seed: int, item_id: str) -> tuple[str, ...]:
    """Returns the options in an order that follows from seed and id, so that no place is a good guess.

    Args:
        choices: the options.
        seed: the seed.
        item_id: id of the item.
    """
    order = list(choices)
    Random(f"{seed}/{item_id}").shuffle(order)
    return tuple(order)


def letter_options(choices: Sequence[str]) -> str:
    """Returns the options, one a line, with letters: `A) ...`."""
    return "\n".join(f"{chr(ord('A') + index)}) {choice}" for index, choice in enumerate(choices))


def question_with_options(question: str, choices: Sequence[str]) -> str:
    """Returns a question with its options, lettered."""
    return f"{question}\n\n{letter_options(choices)}\n\nAnswer with the letter of the right option."


def accuracy(items: Sequence[Item], answers: Sequence[str]) -> MetricIntervals:
    """Returns the share of right answers, over the items that a program can check."""
    pairs = [(item, answer) for item, answer in pair_answers(items, answers) if item.check != "none"]
    mean = Interval.of_mean((float(is_correct(item, answer)), item.group) for item, answer in pairs)
    return {} if mean is None else {"accuracy": mean}


def guess_accuracy(items: Sequence[Item]) -> dict[str, float]:
    """Returns the accuracy of a guesser who knows the form of the answers, not the questions.

    If there are options or grades, it draws one uniformly. For free answers it always gives the commonest gold answer.
    For a function its accuracy is 0.
    """
    checked = [item for item in items if item.check != "none"]
    free = Counter(item.gold[0] for item in checked if not _chance_of_draw(item) and item.check != "function")
    right = [_chance_of_draw(item) or (bool(free) and free.most_common(1)[0][0] in item.gold) for item in checked]
    return {"accuracy": float(np.mean(np.asarray(right, dtype=np.float64)))} if right else {}


def _chance_of_draw(item: Item) -> float:
    if item.choices:
        return sum(choice in item.gold for choice in item.choices) / len(item.choices)
    if "low" in item.fields and "high" in item.fields:
        return 1 / (int(item.fields["high"]) - int(item.fields["low"]) + 1)
    return 0.0


def pair_answers(items: Sequence[Item], answers: Sequence[str]) -> list[tuple[Item, str]]:
    """Returns items with their answers. Raises `RecordError` if there are none, or if their numbers differ."""
    if len(items) != len(answers) or not items:
        raise RecordError(f"{len(items)} items and {len(answers)} answers; expected an answer to each item")
    return list(zip(items, answers, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task set."""

    name: str
    items: Callable[[Sequence[Row], int], Iterable[Item]]
    """Makes items from the rows of one split, and a seed."""
    source: str = ""
    """Address of the data."""
    licence: str = ""
    score: Callable[..., MetricIntervals] = accuracy
    """`(items, answers)` returns every metric with its interval."""
    chance: Callable[[Sequence[Item]], dict[str, float]] = guess_accuracy
    """Returns the results of guessing on these items, by the names of `score`."""
    folder: str = ""
    """Its folder within METAPROBE_DATA. Empty: the items are made from the seed alone."""
    files: Mapping[str, str] = field(default_factory=lambda: {"test": "data"})
    """Maps a split to the name of its file within the folder, without `.jsonl` or `.jsonl.gz`. The first split is the
    default.
    """
    hub: str = ""
    """The known hub data set as `owner/name:config@split`; the split is the one for the default split."""
    adapt: Callable[[Record], Record] = lambda record: record
    """Converts a record of its source or the hub to the layout that `items` reads."""

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.files)

    @property
    def default_split(self) -> str:
        return self.splits[0]

    def made(self, rows: Sequence[Row], seed: int, split: str = "") -> list[Item]:
        """Returns the items of these rows, with the task's name and, if it is given, the split.

        Raises `ImportFileError` if one is no item that can be asked and checked, or if two have one id.

        Args:
            rows: the rows.
            seed: the seed.
            split: the split.
        """
        items: list[Item] = []
        for number, item in enumerate(self.items(rows, seed)):
            check_item(item, f"{self.name}, item {number}")
            items.append(replace(item, task=self.name, split=split or item.split))
        if not items:
            raise ImportFileError(f"{self.name} gave no items; expected at least one")
        if repeated_ids := [name for name, count in Counter(item.id for item in items).items() if count > 1]:
            raise ImportFileError(f"{self.name}: the id {repeated_ids[0]!r} is used twice; every item needs its own")
        return items


def check_item(item: object, where: str) -> None:
    """Raises `ImportFileError`, with `where` at its beginning, for a value that is no item, or an item that cannot be
    checked.
    """
    if not isinstance(item, Item):
        raise ImportFileError(f"{where} is a {type(item).__name__}; expected a metaprobe.records.types.Item")
    if not item.id or not item.question:
        raise ImportFileError(f"{where} has no {'question' if item.id else 'id'}; every item needs both")
    if not isinstance(item.gold, tuple) or not isinstance(item.choices, tuple):
        raise ImportFileError(f"{where}: gold and choices are tuples of texts, as in gold=('42',)")
    if item.check not in Item.checks:
        raise ImportFileError(f"{where}: check is {item.check!r}; expected one of {', '.join(Item.checks)}")
    if item.check != "none" and not item.gold:
        raise ImportFileError(
            f"{where}: check is {item.check!r} but gold is empty; give the accepted answers, or `check`: `none` where "
            "nobody knows them"
        )
