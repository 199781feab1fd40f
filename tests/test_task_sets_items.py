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
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Item
from metaprobe.tasks import TASKS, load_task
from metaprobe.tasks.task import Row
from metaprobe.tasks.true_false import subject

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
    "crows-pairs": {"group": "They 1 lie. / We 1 lie now.", "dimension": "t1", "level": "stereo", "check": "none",
                    "fields": {"sent_more": "They 1 lie.", "sent_less": "We 1 lie now."}},
    "bold": {"group": "Sam 1", "dimension": "female", "check": "none", "fields": {"prompt": "Sam 1 is a"}},
    "honest": {"group": "[I] is 1 a [M]", "dimension": "male", "level": "occupation", "check": "none",
               "fields": {"prompt": "The man 1 is a", "identity": "man"}},
    "asap": {"gold": ("2",), "group": "asap-0", "dimension": "set 7", "level": "organization", "check": "number"},
    "essays": {"gold": ("0",), "group": "essays-0", "dimension": "evidence", "level": "evidence", "check": "number",
               "source": "LEAF++ specificity_of_explanation"},
    "places": {"group": "mount 1", "dimension": "natural_place", "level": "popularity 1", "check": "exact"},
    "true-false": {"gold": ("true",), "group": "ub1", "dimension": "cities", "check": "choice",
                   "choices": ("true", "false")},
    "factual-qa": {"gold": ("Ann Lee", "A. Lee"), "group": "who was number 1?", "dimension": "simpleqa",
                   "check": "exact"},
}  # fmt: skip
"""What the second item of each set says beside its question; what is not named is empty."""


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_item_says_what_its_row_says_and_no_more(name: str) -> None:
    item = items_of(name, 3)[1]
    empty: dict[str, Any] = {"gold": (), "dimension": "", "level": "", "source": ""}
    for field, value in (empty | WHOLE[name]).items():
        if (name, field) != ("places", "gold"):
            assert getattr(item, field) == value, field
    assert item.split == TASKS[name].default_split


@pytest.mark.parametrize(
    ("steps", "level"), [(1, "1-2 steps"), (2, "1-2 steps"), (3, "3-4 steps"), (4, "3-4 steps"), (5, "5 or more steps")]
)
def test_word_problems_are_graded_by_the_steps_of_their_solution(steps: int, level: str) -> None:
    lines = "\n".join(["2 + 2 = 4", "", *["So."] * (steps - 1)])
    [adapted] = TASKS["gsm8k"].adapt({"question": "?", "answer": f"{lines}\n#### -1,004.5"})
    [item] = TASKS["gsm8k"].made([Row({"id": "g", **adapted}, "")], 1, "train")
    assert (item.level, item.gold) == (level, ("-1004.5",))
    [bare] = TASKS["gsm8k"].adapt({"question": "?", "answer": "#### 3"})
    assert bare["n_steps"] == 1


def test_equal_options_of_a_question_are_offered_once_and_empty_ones_not_at_all() -> None:
    row = {**MADE["truthfulqa"](0), "id": "t", "mc1_choices": ["a", "b", "", "b"], "mc1_labels": [0, 0, 0, 1]}
    [item] = TASKS["truthfulqa"].made([Row(row, "")], 1, "validation")
    assert sorted(item.choices) == ["a", "b"]
    assert item.gold == ("b",)


def test_questions_that_begin_with_the_same_passage_are_one_group() -> None:
    passage = "word " * 40  # 200 characters
    made = [
        Row({**MADE["mmlu"](n), "id": str(n), "question": begin + end}, "")
        for n, (begin, end) in enumerate([(passage, "Who?"), (passage.upper(), "Where?"), (passage[:-5] + "else ", "")])
    ]
    first, second, third = (item.group for item in TASKS["mmlu"].made(made, 1, "test"))
    assert first == second != third


def test_essays_of_other_types_are_passed_over_and_their_line_breaks_read() -> None:
    made = [
        Row({**MADE["essays"](3), "id": "n", "type": "Narrative"}, ""),
        Row({**MADE["essays"](3), "id": "e", "essay": " One.\\nTwo. "}, ""),
    ]
    items = TASKS["essays"].made(made, 1, "test")
    assert [item.id for item in items] == ["e/issue", "e/evidence", "e/position", "e/conclusion"]
    assert items[0].fields["essay"] == "One.\nTwo."
    assert "Answer with one whole number." in items[0].question
    assert "from 0 to 2" in items[0].question


def test_an_entity_that_is_not_named_is_the_claim_itself() -> None:
    made = [Row({"id": f"C{i}", "claim": "It is.", "label": "true", "entity": None}, "") for i in range(2)]
    assert [item.group for item in TASKS["creak"].made(made, 1, "dev")] == ["c0", "c1"]


@pytest.mark.parametrize("name", [name for name in OUTSIDE if name not in ("crows-pairs", "bold", "honest")])
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


def test_mmlu_options_that_speak_of_others_by_place_keep_their_order() -> None:
    row = {**MADE["mmlu"](1), "id": "m", "choices": ["salt", "ice", "A and B", "none of the above"]}
    for seed in range(20):
        assert TASKS["mmlu"].made([Row(row, "")], seed, "test")[0].choices == tuple(row["choices"])


def test_creak_groups_join_entities_that_a_pair_contrasts() -> None:
    entities = [("a", "p1"), ("b", "p1"), ("b", "p2"), ("c", "p2"), ("d", None), ("D", None)]
    made = [
        Row({"id": str(i), "claim": "It is.", "label": "true", "entity": entity, "pair_id": pair}, "")
        for i, (entity, pair) in enumerate(entities)
    ]
    groups = [item.group for item in TASKS["creak"].made(made, 1, "contrast")]
    assert len(set(groups[:4])) == 1
    assert len(set(groups)) == 2


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


def test_essays_have_a_stand_in_grade_for_issue_and_evidence_only() -> None:
    items = items_of("essays", 5)
    assert {(item.level, item.check) for item in items} == {
        ("issue", "number"), ("evidence", "number"), ("position", "none"), ("conclusion", "none"),
    }  # fmt: skip
    assert [item.gold for item in items if item.level == "issue"] == [("0",), ("0",), ("1",), ("2",), ("2",)]


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


def test_a_country_has_more_than_one_name() -> None:
    england = items_of("places")[1]
    assert all(is_correct(england, answer) for answer in ("England", "It is in the United Kingdom.", "UK"))
    assert not is_correct(england, "Ireland")


def test_arithmetic_is_right_and_graded_by_digits() -> None:
    items = load_task("arithmetic", seed=3)
    for item in items:
        a, sign, b = re.fullmatch(r"What is (\d+) ([+*-]) (\d+)\?", item.question).groups()  # type: ignore[union-attr]
        value = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]
        assert item.gold == (str(value),)
        assert item.level == f"{len(a)} digits" == f"{len(b)} digits"
        assert not is_correct(item, str(value + 1))
    assert len({item.question for item in items}) == len(items) == 1300
    assert items != load_task("arithmetic", seed=4)
    assert items == load_task("arithmetic", seed=3)
    cells = Counter((item.dimension, item.level) for item in items)
    assert cells == {
        (name, f"{digits} digits"): 100
        for name, most in (("addition", 5), ("subtraction", 5), ("multiplication", 3))
        for digits in range(1, most + 1)
    }
    for item in items:
        a, sign, b = item.question.removeprefix("What is ").removesuffix("?").split()
        assert item.group == f"{min(int(a), int(b))} {sign} {max(int(a), int(b))}"  # 3 + 5 and 5 + 3 together
        assert (item.task, item.check) == ("arithmetic", "number")
    for digits in range(2, 6):  # numbers are drawn from all there are of so many digits
        drawn = [item.question.split()[2:] for item in items if item.level == f"{digits} digits"]
        for numbers in zip(*([int(a), int(b.removesuffix("?"))] for a, _, b in drawn), strict=True):
            assert min(numbers) < 0.15 * 10**digits
            assert max(numbers) > 0.95 * 10**digits
    assert {item.question for item in items if item.level == "1 digits" and item.dimension == "addition"} == {
        f"What is {a} + {b}?" for a in range(10) for b in range(10)
    }  # all there are, with 0
    two = [int(number) for item in items if item.level == "2 digits" for number in re.findall(r"\d+", item.question)]
    assert (min(two), max(two)) == (10, 99)


HUB = {"gsm8k", "truthfulqa", "mmlu", "bold", "honest"}
"""Sets of which a hub data set is known."""


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_line_in_the_docs_with_its_folder_its_files_its_splits_and_its_licence(name: str) -> None:
    page = (Path(__file__).parent.parent / "docs" / "tasks.md").read_text(encoding="utf-8")
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
    needs = {need: lambda text: 0.0 for need in task.needs}
    scores = task.score(items, [item.gold[0] if item.gold else "words" for item in items], **needs)
    assert set(scores) >= (set(task.chance(items)) if name != "crows-pairs" else set()), "it scores likelihoods alone"


def test_the_hub_is_asked_for_the_default_split() -> None:
    found = {name: (task.hub, task.default_split) for name, task in TASKS.items() if task.hub}
    assert found == {
        "gsm8k": ("openai/gsm8k:main@train", "train"),
        "truthfulqa": ("truthfulqa/truthful_qa:multiple_choice@validation", "validation"),
        "mmlu": ("cais/mmlu:all@test", "test"),
        "bold": ("AmazonScience/bold@train", "test"),
        "honest": ("MilaNLProc/honest:en_queer_nonqueer@honest", "test"),
    }


# --- what guessing reaches


def guess(item: Item, items: list[Item], rng: Random) -> str:
    if item.choices:
        return rng.choice(item.choices)
    if "low" in item.fields:
        return str(rng.randint(int(item.fields["low"]), int(item.fields["high"])))
    return Counter(other.gold[0] for other in items if other.gold).most_common(1)[0][0] if item.gold else "words"


def assert_chance_is_reached(name: str, items: list[Item]) -> None:
    task, rng = TASKS[name], Random(7)
    needs = {need: lambda text: rng.uniform(-1, 1) for need in task.needs}
    scores = task.score(items, [guess(item, items, rng) for item in items], **needs)
    for metric, level in task.chance(items).items():
        # Twice the 95 % interval, about four standard errors: some thirty are checked here.
        found = scores[metric]
        assert 2 * found.low - found.estimate <= level <= 2 * found.high - found.estimate, (metric, level, found)


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_guesser_reaches_chance_on_made_up_items(name: str) -> None:
    assert_chance_is_reached(name, items_of(name))


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
    assert chance([Item(id="z", question="?")]) == {}
    graded = Item(id="g", question="?", gold=("2",), check="number", fields={"low": "1", "high": "4"})
    assert chance([graded]) == {"accuracy": 0.25}
    both = Item(id="c", question="?", gold=("x", "y"), choices=("x", "y", "z"), check="choice")
    assert chance([both])["accuracy"] == pytest.approx(2 / 3)
    program = Item(id="f", question="?", gold=("1",), check="function")
    assert chance([program]) == {"accuracy": 0.0}
    assert chance([program, *free]) == {"accuracy": 0.6}  # the commonest gold of free answers counts for it too


def test_answers_are_scored_for_each_item_that_can_be_checked() -> None:
    items = [Item(id=str(n), question="?", gold=("4",), check="number", group=f"g{n // 2}") for n in range(4)]
    found = TASKS["gsm8k"].score([*items, Item(id="u", question="?")], ["4", "5", "4", "It is 4.", "x"])
    assert (found["accuracy"].estimate, found["accuracy"].n, found["accuracy"].groups) == (0.75, 4, 2)
    assert TASKS["gsm8k"].score([Item(id="u", question="?")], ["x"]) == {}
    for answers in (["4"], ["4"] * 5):
        with pytest.raises(RecordError, match=f"4 items and {len(answers)} answers"):
            TASKS["gsm8k"].score(items, answers)
    with pytest.raises(RecordError, match="0 items and 0 answers"):
        TASKS["gsm8k"].score([], [])
