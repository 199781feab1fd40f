"""The items of the 57 task families, and how they are asked, recorded and counted."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from scripted import ScriptedLLM

from metaprobe.records.correctness import is_correct
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item
from metaprobe.tasks.named_tasks import load_task
from research.breadth.asking import DIRECT, ONCE, WORKED, answer_of
from research.breadth.collect import record
from research.breadth.items import ARITHMETIC, EACH, breadth_items

ITEMS = breadth_items()


def of_family(name: str) -> list[Item]:
    return [item for item in ITEMS if item.dimension == name]


def test_there_are_many_families_with_as_many_items_each_and_every_beginning_holds_all_families() -> None:
    families = Counter(item.dimension for item in ITEMS)
    assert len(families) == 57
    assert set(families.values()) == {EACH}
    assert set(ARITHMETIC) < set(families)
    assert Counter(item.dimension for item in ITEMS[: 6 * 57]) == dict.fromkeys(families, 6)
    assert breadth_items(10) == ITEMS[:570]
    with pytest.raises(ValueError, match="expected at most 30"):
        breadth_items(31)


def test_ids_and_questions_are_distinct_and_no_question_is_one_of_another_task_set() -> None:
    assert len({item.id for item in ITEMS}) == len({item.question for item in ITEMS}) == len(ITEMS)
    asked = {item.question for name in ("metacog-eval", "arithmetic") for item in load_task(name)}
    assert not asked & {item.question for item in ITEMS}


def test_the_scorer_takes_the_gold_answer_alone_and_in_a_sentence() -> None:
    for item in ITEMS:
        assert all(is_correct(item, gold) for gold in item.gold), item
        assert is_correct(item, f"The answer is {item.gold[0]}."), item


def test_a_direct_answer_is_its_first_line_and_a_worked_one_what_follows_the_mark() -> None:
    item = of_family("addition")[0]
    call = Call(id="c", text="One cat has 4 legs.\nAnswer: 8")
    assert answer_of(item, call, DIRECT) == "One cat has 4 legs."
    assert answer_of(item, call, WORKED) == "8"
    turn = Call(id="c", text="Jack faces south and turns left, then left again. He now faces north.")
    assert answer_of(item, turn, WORKED) == "He now faces north."
    for text in ("```python\n12\n```", "The line prints:\n\n12", "12\nbecause 3 * 4 is 12"):
        assert answer_of(item, Call(id="c", text=text), DIRECT) == "12"


def test_a_recording_that_is_longer_the_second_time_asks_only_what_is_new(tmp_path: Path) -> None:
    llm = ScriptedLLM({"answer": "yes"})
    for count in (3, 5):
        asyncio.run(record(ONCE, ITEMS[:count], llm, tmp_path / "some-model", 2))
    runs = list(RunStore(tmp_path / "some-model"))
    assert len(llm.asked) == len(runs) == 10
    assert {(run.item.id, run.variant) for run in runs} == {(i.id, v) for i in ITEMS[:5] for v in (DIRECT, WORKED)}
    assert all(run.label("correct", run.calls[0].id) is not None for run in runs)
