"""The items of all families, in an order of which every beginning is a fair sample."""

import itertools
from collections.abc import Callable, Iterator
from random import Random

from metaprobe.records.types import Item
from research.breadth import logic, numbers, quantities, spelling, texts, words, world
from research.metacog_eval.templates import Draft

NAME = "breadth"
SEED = 20261123
LEVELS = ("easy", "medium", "hard")

FAMILIES: dict[str, Callable[[Random, int], Draft]] = {
    **numbers.FAMILIES,
    **quantities.FAMILIES,
    **logic.FAMILIES,
    **texts.FAMILIES,
    **spelling.FAMILIES,
    **words.FAMILIES,
    **world.FAMILIES,
}
"""Name of a family -> what draws one of its questions at level 0, 1 or 2."""

_IN_VAIN = 400


def breadth_items(each: int, seed: int = SEED) -> list[Item]:
    """`each` items of every family, the levels in turn. The first n of a longer list are those of a shorter one.

    Raises `ValueError` where a family has fewer questions than `each`.
    """
    families = [list(itertools.islice(_of_family(name, seed), each)) for name in FAMILIES]
    if short := [name for name, found in zip(FAMILIES, families, strict=True) if len(found) < each]:
        raise ValueError(f"each={each}, and {', '.join(short)} have fewer questions: give a smaller number")
    order = Random(seed)
    rounds = [list(one) for one in zip(*families, strict=True)]
    for one in rounds:
        order.shuffle(one)
    return [item for one in rounds for item in one]


def _of_family(name: str, seed: int) -> Iterator[Item]:
    """Different questions of one family, as long as there are any; a level that has no more is left out."""
    rng, asked = Random(f"{seed}/{name}"), set[str]()
    open_levels = list(range(len(LEVELS)))
    for number in itertools.count():
        if not open_levels:
            return
        level = open_levels[number % len(open_levels)]
        drafts = (FAMILIES[name](rng, level) for _ in range(_IN_VAIN))
        draft = next((draft for draft in drafts if draft.question not in asked), None)
        if draft is None:
            open_levels.remove(level)
            continue
        asked.add(draft.question)
        yield _item(name, level, len(asked), draft)


def _item(name: str, level: int, number: int, draft: Draft) -> Item:
    identity = f"{NAME}/{name}-{number:04}"
    return Item(
        id=identity,
        question=draft.question,
        gold=draft.gold,
        group=draft.fact or identity,
        choices=draft.choices,
        dimension=name,
        level=LEVELS[level],
        task=f"{NAME}-{name}",
        source="made by research/breadth",
        check=draft.check,
    )
