"""Rows of the task sets become whole, distinct items in honest groups, on which guessing reaches chance."""

import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from outside_rows import DATA, MADE, OUTSIDE, items_of, real_data

from metaprobe.records.answers import canonical, final_answer
from metaprobe.records.correctness import is_correct
from metaprobe.records.types import Item
from metaprobe.tasks import TASKS, load_task
from metaprobe.tasks.task import Row
from metaprobe.tasks.true_or_false import subject

# --- items


@pytest.mark.parametrize("name", OUTSIDE)
def test_items_are_whole_and_distinct_and_gold_is_among_the_options(name: str) -> None:
    items = items_of(name)
    assert len({item.id for item in items}) == len(items) >= 300
    for item in items:
        assert item.task == name
        assert item.question
        assert item.group
        assert bool(item.gold) == (item.check != "none")
        assert not item.choices or set(item.gold) <= set(item.choices)
        assert item.fields.keys() == items[0].fields.keys()


WHOLE: dict[str, dict[str, Any]] = {
    "gsm8k": {"gold": ("1",), "group": "gsm8k-1", "level": "1-2 steps", "check": "number"},
    "truthfulqa": {"gold": ("right 1",), "group": "truthfulqa-1", "dimension": "c1", "level": "Adversarial",
                   "check": "choice"},
    "ciar": {"gold": ("0.5", "1/2"), "group": "ciar-1", "check": "number"},
    "creak": {"gold": ("false",), "group": "e1", "check": "choice", "choices": ("true", "false")},
    "mmlu": {"gold": ("x",), "group": "which is 1?", "dimension": "s1", "check": "choice"},
    "bbq": {"gold": ("The boy",), "group": "Age/1", "dimension": "Age", "level": "disambig", "check": "choice"},
    "asap": {"gold": ("2",), "group": "asap-0", "dimension": "set 7", "level": "organization", "check": "number"},
    "essays": {"gold": ("0",), "group": "essays-0", "dimension": "evidence", "level": "evidence", "check": "number",
               "source": "LEAF++ specificity_of_explanation"},
    "places": {"group": "mount 1", "dimension": "natural_place", "level": "popularity 1", "check": "exact"},
    "true-false": {"gold": ("true",), "group": "ub1", "dimension": "cities", "check": "choice",
                   "choices": ("true", "false")},
    "factual-qa": {"gold": ("Ann Lee", "A. Lee"), "group": "who was number 1?", "dimension": "simpleqa",
                   "check": "exact"},
}  # fmt: skip
"""Fields of the second item of each set beside its question; a field that is not named is empty."""


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_item_says_what_its_row_says_and_no_more(name: str) -> None:
    item = items_of(name, 3)[1]
    empty: dict[str, Any] = {"gold": (), "dimension": "", "level": "", "source": ""}
    for field, value in (empty | WHOLE[name]).items():
        if (name, field) != ("places", "gold"):
            assert getattr(item, field) == value, field
    assert item.split == TASKS[name].default_split


@pytest.mark.parametrize("name", OUTSIDE)
def test_the_gold_answer_is_right_and_nothing_is_wrong(name: str) -> None:
    for item in items_of(name, 40):
        if item.check != "none":
            assert is_correct(item, item.gold[0])
            assert is_correct(item, final_answer(item, f"Let me see.\nThe answer is {item.gold[0]}."))
            assert not is_correct(item, "")


@pytest.mark.parametrize("name", ["truthfulqa", "mmlu", "bbq"])
def test_options_are_lettered_and_their_order_follows_from_the_seed(name: str) -> None:
    items = items_of(name)
    places = Counter(item.choices.index(item.gold[0]) for item in items)
    assert min(places.values()) > len(items) / len(items[0].choices) / 2
    assert items == items_of(name)
    assert [item.choices for item in items] != [item.choices for item in items_of(name, seed=2)]
    for item in items[:20]:
        letter = chr(ord("A") + item.choices.index(item.gold[0]))
        assert f"{letter}) {item.gold[0]}" in item.question
        assert is_correct(item, letter)
        assert canonical(item, f"({letter})") == item.gold[0]


def test_asap_takes_the_third_rater_or_the_rounded_mean_and_hides_the_grade() -> None:
    items = {item.id: item for item in items_of("asap", 8)}
    assert items["asap-0/style"].gold == ("2",)  # 1 and 2
    assert items["asap-1/voice"].gold == ("5",)  # a third rater
    assert items["asap-2/style"].gold == ("3",)  # 3 and 2
    assert {(i.dimension, i.fields["low"], i.fields["high"]) for i in items.values()} == {
        ("set 7", "0", "3"),
        ("set 8", "1", "6"),
    }
    assert Counter(item.group for item in items.values()) == {f"asap-{n}": 6 if n % 2 else 4 for n in range(8)}
    item = items["asap-0/style"]
    assert item.fields.keys() == {"essay", "essay_prompt", "trait", "rubric", "low", "high"}
    assert "@PERSON1" in item.fields["essay"]
    assert item.fields["rubric"].count("\n") == 3


@pytest.mark.parametrize(
    ("statement", "about"),
    [
        ("The city of Rio de Janeiro is in Brazil.", "rio de janeiro"),
        ("It is the case either that the city of Baku is in India or that Ub is in Peru.", "baku"),
        ("The Spanish word 'con' does not mean 'to speak'.", "con"),
        ("Fifty-one is larger than sixty-one.", "fifty-one"),
        ("The platypus uses swimming for locomotion.", "platypus uses"),
        ("Edwin Herbert Hall lived in U.S.", "edwin herbert hall"),
    ],
)
def test_statements_about_one_subject_are_one_group(statement: str, about: str) -> None:
    assert subject(statement) == about


def test_arithmetic_is_right_and_graded_by_digits() -> None:
    items = load_task("arithmetic", seed=3)
    for item in items:
        a, sign, b = re.fullmatch(r"What is (\d+) ([+*-]) (\d+)\?", item.question).groups()  # type: ignore[union-attr]
        value = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]
        assert item.gold == (str(value),)
        assert item.level == f"{len(a)} digits" == f"{len(b)} digits"
        assert not is_correct(item, str(value + 1))
        assert item.group == f"{min(int(a), int(b))} {sign} {max(int(a), int(b))}"  # 3 + 5 and 5 + 3 together
    assert len({item.question for item in items}) == len(items) == 1300
    assert items != load_task("arithmetic", seed=4)
    assert items == load_task("arithmetic", seed=3)
    cells = Counter((item.dimension, item.level) for item in items)
    assert cells == {
        (name, f"{digits} digits"): 100
        for name, most in (("addition", 5), ("subtraction", 5), ("multiplication", 3))
        for digits in range(1, most + 1)
    }


HUB = {"gsm8k", "truthfulqa", "mmlu"}
"""Sets of which a hub data set is known."""


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_line_in_the_docs_with_its_folder_its_files_its_splits_and_its_licence(name: str) -> None:
    page = (Path(__file__).parent.parent / "docs" / "own.md").read_text(encoding="utf-8")
    task = TASKS[name]
    line = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
    _, _, folder, splits, *_, licence, _ = (cell.strip() for cell in line.split("|"))
    assert licence == task.licence
    assert [part.split(":")[0].strip() for part in splits.split(";")] == list(task.splits), "the first is the default"
    files = list(dict.fromkeys(task.files.values()))
    where = f"`{task.folder}/{files[0] if len(files) == 1 else '{' + ','.join(files) + '}'}`"
    assert folder == where if name in MADE else (task.folder, folder[:5]) == ("", "none:")
    assert task.source.startswith("https://") or name not in MADE
    assert bool(task.hub) == (name in HUB)
    items = items_of(name, 20) if name in MADE else load_task(name)[:20]
    scores = task.score(items, [item.gold[0] if item.gold else "words" for item in items])
    assert set(scores) >= set(task.chance(items))


# --- what guessing reaches


def guess(item: Item, items: list[Item], rng: Random) -> str:
    if item.choices:
        return rng.choice(item.choices)
    if "low" in item.fields:
        return str(rng.randint(int(item.fields["low"]), int(item.fields["high"])))
    return Counter(other.gold[0] for other in items if other.gold).most_common(1)[0][0] if item.gold else "words"


def assert_chance_is_reached(name: str, items: list[Item]) -> None:
    task, rng = TASKS[name], Random(7)
    scores = task.score(items, [guess(item, items, rng) for item in items])
    for metric, level in task.chance(items).items():
        # Twice the 95 % interval, about four standard errors: some thirty are checked here.
        found = scores[metric]
        assert 2 * found.low - found.estimate <= level <= 2 * found.high - found.estimate, (metric, level, found)


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_guesser_reaches_chance_on_made_up_items(name: str) -> None:
    assert_chance_is_reached(name, items_of(name))


@pytest.mark.slow
@real_data
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_guesser_reaches_chance_on_the_real_items(name: str) -> None:
    assert_chance_is_reached(name, load_task(name, limit=300, data=DATA))


def test_chance_is_computed_from_the_items() -> None:
    two = Item(id="a", question="?", gold=("x",), choices=("x", "y"), check="choice")
    four = Item(id="b", question="?", gold=("x",), choices=("x", "y", "z", "w"), check="choice")
    free = [Item(id=f"n{i}", question="?", gold=(gold,), check="number") for i, gold in enumerate("1123")]
    chance = TASKS["mmlu"].chance
    assert chance([two, four]) == {"accuracy": 0.375}
    assert chance(free) == {"accuracy": 0.5}
    assert chance([*free, two]) == {"accuracy": 0.5}
    graded = Item(id="g", question="?", gold=("2",), check="number", fields={"low": "1", "high": "4"})
    assert chance([graded]) == {"accuracy": 0.25}


def test_questions_that_begin_with_the_same_passage_are_one_group() -> None:
    passage = "word " * 40  # 200 characters
    made = [
        Row({**MADE["mmlu"](n), "id": str(n), "question": begin + end}, "")
        for n, (begin, end) in enumerate([(passage, "Who?"), (passage.upper(), "Where?"), (passage[:-5] + "else ", "")])
    ]
    first, second, third = (item.group for item in TASKS["mmlu"].made(made, 1, "test"))
    assert first == second != third


def test_creak_groups_join_entities_that_a_pair_contrasts() -> None:
    entities = [("a", "p1"), ("b", "p1"), ("b", "p2"), ("c", "p2"), ("d", None), ("D", None)]
    made = [
        Row({"id": str(i), "claim": "It is.", "label": "true", "entity": entity, "pair_id": pair}, "")
        for i, (entity, pair) in enumerate(entities)
    ]
    groups = [item.group for item in TASKS["creak"].made(made, 1, "contrast")]
    assert len(set(groups[:4])) == 1
    assert len(set(groups)) == 2
