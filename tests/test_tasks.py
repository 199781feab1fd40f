"""The task sets: Table I, groups, balance, gold answers, and items from a file."""

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from metaprobe.papers.tasks import TASKS, load_task
from metaprobe.records.correctness import chosen, is_correct
from metaprobe.records.errors import ImportFileError, RecordError
from metaprobe.records.sandbox import run_assertions
from metaprobe.records.types import Item

ITEMS = load_task("metacog-eval")


def test_counts_are_those_of_table_i() -> None:
    table_i = {
        "logical reasoning": (42, 38, 40),
        "knowledge retrieval": (38, 42, 40),
        "code generation": (40, 38, 42),
        "mathematical computation": (41, 40, 39),
        "commonsense inference": (39, 42, 39),
    }
    counts = Counter((item.dimension, item.level) for item in ITEMS)
    expected = {
        (dimension, level): n
        for dimension, row in table_i.items()
        for level, n in zip(("easy", "medium", "hard"), row, strict=True)
    }
    assert counts == expected | {("cross", "cross"): 100}
    assert len(ITEMS) == 700


def test_the_right_option_is_in_every_place_about_equally_often() -> None:
    places = defaultdict(Counter)
    for item in ITEMS:
        if item.check == "choice" and "Answer yes" not in item.question and "true or false" not in item.question:
            places[item.dimension, item.level, len(item.choices)][item.choices.index(item.gold[0])] += 1
    for (_, _, options), counts in places.items():
        n = sum(counts.values())
        assert max(counts.values()) <= n / options + 2, counts
    assert len(places) > 5


def test_yes_and_no_come_about_equally_often_and_are_few() -> None:
    answers = defaultdict(Counter)
    for item in ITEMS:
        if set(item.choices) in ({"yes", "no"}, {"yes", "no", "unknown"}, {"true", "false"}):
            answers[item.level, item.choices][item.gold[0]] += 1
    for counts in answers.values():
        assert max(counts.values()) - min(counts.values()) <= 2, answers
    assert sum(sum(counts.values()) for counts in answers.values()) < 35


def test_options_are_distinct_and_hold_the_gold_and_the_question_lists_them() -> None:
    for item in ITEMS:
        if item.check == "choice":
            assert len(set(item.choices)) == len(item.choices) >= 2
            assert item.gold[0] in item.choices
            assert all(choice in item.question for choice in item.choices)


def test_every_gold_answer_is_accepted_plain_and_as_an_announced_answer() -> None:
    for item in ITEMS:
        if item.check != "function":
            for gold in item.gold:
                assert is_correct(item, gold), (item.id, gold)
            assert is_correct(item, f"The answer is {item.gold[0]}."), item
            assert is_correct(item, f"Answer: **{item.gold[0]}**"), item


def test_snippets_print_what_the_gold_says_when_run_apart() -> None:
    shown = [i for i in ITEMS if i.question.startswith("What does this Python code print?")]
    assert len(shown) > 80
    for item in shown[::8]:
        code = item.question.split("\n", 1)[1]
        wrapped = (
            f"import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n    exec({code!r})"
        )
        assert run_assertions(wrapped, [f"assert out.getvalue() == {item.gold[0] + chr(10)!r}"]).passed, item


# --- load_task


def test_a_named_task_is_its_items() -> None:
    assert load_task("metacog-eval") == ITEMS
    with pytest.raises(RecordError, match=r"seed 20261121; got seed 5: .* as a \.jsonl file"):
        load_task("metacog-eval", seed=5)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(RecordError, match=r"no task 'metacog'.*metacog-eval"):
        load_task("metacog")
    assert "metacog-eval" in TASKS


@pytest.mark.parametrize("limit", [16, 32, 160])
def test_a_limit_spreads_evenly_over_dimensions_and_levels(limit: int) -> None:
    some = load_task("metacog-eval", limit=limit)
    assert len(some) == limit
    assert set(Counter((i.dimension, i.level) for i in some).values()) == {limit // 16}
    assert some == load_task("metacog-eval", limit=limit)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(RecordError, match=f"limit is {limit}; expected"):
        load_task("metacog-eval", limit=limit)


def _file(folder: Path, *lines: object) -> str:
    path = folder / "mine.jsonl"
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines), encoding="utf-8")
    return str(path)


def test_items_of_a_file_are_loaded_with_defaults(tmp_path: Path) -> None:
    first = {"id": "a", "question": "2 + 2?", "gold": "4", "check": "number"}
    second = {
        **{"id": "b", "question": "Red or blue?", "gold": ["red"], "choices": ["red", "blue"], "check": "choice"},
        "fields": {"hint": "not blue"},
    }
    items = load_task(_file(tmp_path, first, second))
    assert items[0] == Item(id="a", question="2 + 2?", gold=("4",), group="a", task="mine", check="number")
    assert items[1].choices == ("red", "blue")
    assert items[1].fields == {"hint": "not blue"}
    assert is_correct(items[0], "It is 4.")


GOOD = {"id": "a", "question": "q?", "gold": "g"}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("{broken", "mine.jsonl:2"),
        ({**GOOD, "id": "b", "choises": ["x"]}, "mine.jsonl:2.*unknown field 'choises'"),
        ({**GOOD, "id": "b", "check": "magic"}, "mine.jsonl:2.*check is 'magic'"),
        ({**GOOD, "id": "b", "gold": 3}, "mine.jsonl:2.*gold is 3"),
        ({**GOOD, "id": "b", "fields": {"n": 3}}, "mine.jsonl:2.*fields is .*expected an object of strings"),
        ({"id": "b", "question": "q?"}, "mine.jsonl:2.*gold is empty"),
        ({"question": "q?", "gold": "g"}, "mine.jsonl:2.*id and question are needed"),
        (GOOD, "mine.jsonl:2.*already used on line 1"),
        ({**GOOD, "id": "b", "choices": ["x", 1]}, "mine.jsonl:2.*expected a string or a list of strings"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path: Path, bad: object, says: str) -> None:
    with pytest.raises(ImportFileError, match=says):
        load_task(_file(tmp_path, GOOD, bad))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("The claim is not true.", "false"),
        ("It is untrue.", "false"),
        ("The claim is not false.", "true"),
        ("The claim is not true. The claim is false.", "false"),
        ("The claim is not entirely true.", None),
        ("It is true, not false.", "true"),
        ("It is true. No, it is not true.", None),
    ],
)
def test_what_is_not_true_is_false(answer: str, said: str | None) -> None:
    claim = Item(id="c", question="True or false?", gold=("true",), choices=("true", "false"), check="choice")
    assert chosen(claim, answer) == said
