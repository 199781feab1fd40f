"""A rebuilt MetaCog-Eval (MetaCogAgent, Table I): 600 questions in five dimensions and three levels, 100 cross."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle
from random import Random

from metaprobe.records.types import Item
from research.metacog_eval import code, commonsense, cross, knowledge, logic, mathematics
from research.metacog_eval.templates import CROSS, EASY, HARD, MEDIUM, Draft, Template

NAME = "metacog-eval"
SEED = 20261121

TABLE_I = {
    "logical reasoning": ("lr", logic.TEMPLATES, {EASY: 42, MEDIUM: 38, HARD: 40}),
    "knowledge retrieval": ("kr", knowledge.TEMPLATES, {EASY: 38, MEDIUM: 42, HARD: 40}),
    "code generation": ("cg", code.TEMPLATES, {EASY: 40, MEDIUM: 38, HARD: 42}),
    "mathematical computation": ("mc", mathematics.TEMPLATES, {EASY: 41, MEDIUM: 40, HARD: 39}),
    "commonsense inference": ("ci", commonsense.TEMPLATES, {EASY: 39, MEDIUM: 42, HARD: 39}),
    CROSS: ("cd", cross.TEMPLATES, {CROSS: 100}),
}
"""Dimension: short name, templates, items a level."""

MAX_GROUP = 8
_TRIES = 40


def metacog_eval(seed: int = SEED) -> list[Item]:
    """The 700 items, in the order of Table I. The same seed gives the same items."""
    return [item for item, _ in _drawn(seed)]


def solutions(seed: int = SEED) -> dict[str, str]:
    """For each function item, by id: code that passes its assertions."""
    return {item.id: draft.solution for item, draft in _drawn(seed) if item.check == "function"}


def _drawn(seed: int) -> Iterator[tuple[Item, Draft]]:
    asked: set[str] = set()
    for dimension, (short, found, counts) in TABLE_I.items():
        groups: Counter[str] = Counter()
        for level, count in counts.items():
            rng = Random(f"{seed}/{dimension}/{level}")
            mine = [template for template in found if template.level == level]
            for n, (template, draft) in enumerate(_spread(mine, count, rng, asked, groups), start=1):
                needs = f": {' + '.join(cross.NEEDS[template.name])}" if level == CROSS else ""
                item = Item(
                    id=f"{NAME}/{short}-{level}-{n:03}" if level != CROSS else f"{NAME}/{short}-{n:03}",
                    question=draft.question,
                    gold=draft.gold,
                    group=f"{short}/{draft.fact or template.name}",
                    choices=draft.choices,
                    dimension=dimension,
                    level=level,
                    source=f"{template.name}{' of ' + draft.fact if draft.fact else ''}{needs}",
                    task=NAME,
                    check=draft.check,
                )
                yield item, draft


def _spread(
    found: Sequence[Template], count: int, rng: Random, asked: set[str], groups: Counter[str]
) -> Iterator[tuple[Template, Draft]]:
    """`count` drafts, the templates in turn, so that groups stay small and answers even.

    Of several draws that one is kept whose group, then answer within the template, then place among the options came
    least often so far: no template gives its answer away, and no place in a list of options is a good guess.
    """
    answers: Counter[tuple[str, str]] = Counter()
    places: Counter[tuple[int, int]] = Counter()
    order = list(found)
    rng.shuffle(order)
    left, idle = count, 0
    for template in cycle(order):
        if left == 0:
            return
        drafts = [draft for draft in (template.draw(rng) for _ in range(_TRIES)) if draft.question not in asked]
        rated = [
            (groups[d.fact or template.name], answers[template.name, d.gold[0]], places[_place(d)]) for d in drafts
        ]
        best = min(range(len(drafts)), key=rated.__getitem__, default=None)
        if best is None or rated[best][0] >= MAX_GROUP:
            idle += 1
            if idle > len(order):
                raise ValueError(f"the templates have {left} questions too few for groups of at most {MAX_GROUP}")
            continue
        idle, left, draft = 0, left - 1, drafts[best]
        asked.add(draft.question)
        groups[draft.fact or template.name] += 1
        answers[template.name, draft.gold[0]] += 1
        places[_place(draft)] += 1
        yield template, draft


def _place(draft: Draft) -> tuple[int, int]:
    """How many options, and which of them is right."""
    return (len(draft.choices), draft.choices.index(draft.gold[0])) if draft.choices else (0, 0)
