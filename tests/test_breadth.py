"""The items of the task families: right answers, ids, groups, and how they are asked."""

import re
from collections import Counter, defaultdict
from fractions import Fraction

import pytest
from breadth_sample import BY_FAMILY, EACH, ITEMS

from metaprobe.records.correctness import is_correct
from metaprobe.records.types import Item
from metaprobe.tasks.named_tasks import load_task
from research.breadth.items import FAMILIES, LEVELS, SEED, breadth_items


def test_there_are_many_families_with_as_many_items_each() -> None:
    assert len(FAMILIES) >= 40
    assert {name: len(items) for name, items in BY_FAMILY.items()} == dict.fromkeys(FAMILIES, EACH)


def test_ids_and_questions_are_distinct() -> None:
    assert len({item.id for item in ITEMS}) == len(ITEMS)
    assert len({item.question for item in ITEMS}) == len(ITEMS)


def test_a_longer_list_begins_with_the_shorter_one_and_every_beginning_holds_all_families() -> None:
    assert breadth_items(10) == ITEMS[: 10 * len(FAMILIES)]
    assert Counter(item.dimension for item in ITEMS[: 6 * len(FAMILIES)]) == Counter(dict.fromkeys(FAMILIES, 6))


def test_another_seed_gives_other_questions() -> None:
    others = {item.question for item in breadth_items(20, SEED + 1)}
    assert len(others & {item.question for item in ITEMS}) < len(others) / 3


def test_too_many_items_are_refused_with_the_families_that_lack_them() -> None:
    with pytest.raises(ValueError, match="plurals"):
        breadth_items(1000)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_three_levels_and_no_answer_that_a_blind_guess_finds(name: str) -> None:
    items = BY_FAMILY[name]
    assert {item.level for item in items} == set(LEVELS)
    (_, most), *_ = Counter(item.gold[0] for item in items).most_common(1)
    assert most <= 0.68 * len(items)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_scorer_takes_the_gold_in_a_sentence_and_no_other_items_gold(name: str) -> None:
    items = BY_FAMILY[name]
    for item, other in zip(items, items[1:] + items[:1], strict=True):
        assert all(is_correct(item, gold) for gold in item.gold), item
        assert is_correct(item, f"The answer is {item.gold[0]}."), item
        if not {gold.casefold() for gold in other.gold} & {gold.casefold() for gold in item.gold}:
            assert not is_correct(item, other.gold[0]) or _equal(item, other), (item, other)


def _equal(item: Item, other: Item) -> bool:
    """Whether two numbers are the same, as 3/12 and 1/4."""
    try:
        return Fraction(item.gold[0]) == Fraction(other.gold[0])
    except ValueError:
        return False


def test_choices_that_are_offered_stand_in_the_question() -> None:
    for item in ITEMS:
        if item.dimension in {"kinds", "antonyms", "odd-words", "alphabetical", "everyday-scales", "compare-numbers"}:
            assert all(choice in item.question for choice in item.choices), item


def test_no_question_is_one_of_another_task_set() -> None:
    asked = {item.question for name in ("metacog-eval", "arithmetic") for item in load_task(name)}
    assert not asked & {item.question for item in ITEMS}


def test_a_fact_is_one_group_in_whatever_family_it_is_asked() -> None:
    families = defaultdict(set)
    for item in ITEMS:
        families[item.group].add(item.dimension)
    assert {"capitals", "capital-checks"} <= families["country/FR"] | families["country/DE"] | families["country/PE"]
    for item in ITEMS:
        if item.dimension in {"translations-into", "translations-between"} and item.group == "word/dog":
            assert "dog" in item.question or {"Hund", "chien", "perro"} & set(re.findall(r"\w+", item.question))
    for name in ("letter-counts", "word-lengths", "nth-letters", "reversals"):
        assert all(item.group.removeprefix("letters/") in item.question for item in BY_FAMILY[name])


# The answers, computed a second time and in another way.
