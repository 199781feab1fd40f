"""The survey, its orders, and the answers as they are stored."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from metaprobe.cli import main
from metaprobe.records.errors import ImportFileError, RecordError
from metaprobe_writing_assistant.page.session_file import SessionFile
from metaprobe_writing_assistant.page.sessions import Sessions
from metaprobe_writing_assistant.page.study import PART_COUNT, TASKS, StudyFile
from metaprobe_writing_assistant.study.answers import Sheet, one_kind, read_sheets, write_sheets
from metaprobe_writing_assistant.study.simulation import simulate_sheets
from metaprobe_writing_assistant.study.survey import (
    ALPHABET,
    ASPECTS,
    QUESTIONS,
    balanced_orders,
    draw_code,
    questions_of,
)

CONDITIONS = ("single", "multi", "metacrit")
SHARES = {"metacrit": 0.5, "multi": 0.2, "single": 0.3}


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_orders_are_balanced_for_places_and_for_what_comes_before(k: int) -> None:
    orders = balanced_orders([f"c{i}" for i in range(k)])
    assert len(set(orders)) == len(orders) == (k if k % 2 == 0 else 2 * k)
    places = Counter((place, name) for order in orders for place, name in enumerate(order))
    assert set(places.values()) == {len(orders) // k}
    followed = Counter(pair for order in orders for pair in pairwise(order))
    assert len(followed) == k * (k - 1)
    assert len(set(followed.values())) == 1


def test_orders_of_one_condition_or_of_one_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="expected two or more, each once"):
        balanced_orders(["a", "a"])
    with pytest.raises(ValueError, match="expected two or more, each once"):
        balanced_orders(["a"])


def test_after_every_order_has_come_once_the_texts_move_on_by_one(tmp_path: Path) -> None:
    orders = balanced_orders(CONDITIONS)
    rounds = len(TASKS)
    with SessionFile(tmp_path / "sessions.sqlite") as file:
        study = StudyFile(file, Sessions(file))
        begun = [study.begin() for _ in range(rounds * len(orders))]
        assert [study.get(one.token).code for one in begun] == [one.code for one in begun]
    assert [one.order for one in begun] == list(orders) * rounds
    ids = [task.id for task in TASKS]
    for number, one in enumerate(begun):
        first = number // len(orders)
        assert list(one.tasks) == [ids[(first + place) % len(ids)] for place in range(PART_COUNT)]
    # So every text is written with every condition equally often.
    pairs = Counter(pair for one in begun for pair in zip(one.tasks, one.order, strict=False))
    assert len(set(pairs.values())) == 1
    assert len(pairs) == len(TASKS) * len(CONDITIONS)


def test_codes_differ_and_hold_no_letters_that_look_alike() -> None:
    codes = {draw_code() for _ in range(500)}
    assert len(codes) == 500
    assert set("".join(codes)) <= {*ALPHABET, "-"}
    assert not set("01OIL") & (set(ALPHABET) - {"L"})


def test_the_survey_asks_as_often_for_each_aspect_as_the_papers_table_13() -> None:
    assert {aspect: len(questions_of(aspect)) for aspect in ASPECTS} == {
        "critical_thinking": 6,
        "instructiveness": 5,
        "interactiveness": 4,
        "intelligence": 8,
    }
    assert len({question.id for question in QUESTIONS}) == len({question.text for question in QUESTIONS}) == 23


def test_sheets_come_back_as_they_were_written(tmp_path: Path) -> None:
    sheets = [
        Sheet("K7QD-2MXA", CONDITIONS, {"ct1": "multi", "ct2": None}),
        *simulate_sheets({"intelligence": SHARES}, 3),
    ]
    path = tmp_path / "answers.jsonl"
    assert write_sheets(path, sheets) == 4
    assert read_sheets(path) == sheets


BAD = [
    ({"order": ["a"]}, "expected the conditions that were met"),
    ({"order": "abc"}, "expected a list of conditions"),
    ({"answers": {"ct1": "gpt"}}, "question ct1 is answered 'gpt'; expected null or one of single, multi, metacrit"),
    ({"answers": {"ct99": "multi"}}, r"answers name the questions \['ct99'\]; expected some of ct1"),
    ({"answers": [1]}, "expected|should be an object"),
    ({"code": ""}, "code is ''; expected a text"),
    ({"code": "FIRST"}, "code 'FIRST' came before"),
    ({"simulated_by": None}, "simulated_by is None; expected a text, empty for a person"),
]


@pytest.mark.parametrize(("change", "said"), BAD, ids=[str(change) for change, _ in BAD])
def test_a_line_that_is_no_sheet_is_named_with_its_number(tmp_path: Path, change: dict[str, object], said: str) -> None:
    good = {"code": "FIRST", "order": list(CONDITIONS), "answers": {"ct1": "multi"}}
    path = tmp_path / "answers.jsonl"
    path.write_text(f"{json.dumps(good)}\n{json.dumps({**good, 'code': 'B', **change})}\n")
    with pytest.raises(ImportFileError, match=said) as raised:
        read_sheets(path)
    assert f"{path}:2: " in str(raised.value)
    assert raised.value.line == 2


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text("\n")
    with pytest.raises(ImportFileError, match="holds no answers"):
        read_sheets(path)


def test_people_and_simulated_readers_are_never_one_table() -> None:
    person = Sheet("A", CONDITIONS, {"ct1": "multi"})
    simulated = simulate_sheets({"critical_thinking": SHARES}, 2)
    assert one_kind([person]) == ""
    assert one_kind(simulated) == "random numbers"
    with pytest.raises(RecordError, match="1 sheets are of participants and 2 of simulated readers"):
        one_kind([person, *simulated])


def run(*words: object) -> str:
    result = CliRunner().invoke(main, ["study", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_says_in_its_first_line_that_readers_were_simulated(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    said = run("simulate", "--shares", "a=0.6,b=0.2,c=0.2", "--readers", 12, "--out", path)
    assert "12 simulated readers, no participants" in said
    shown = run("analyse", path)
    assert shown.startswith("**SIMULATED: 12 simulated readers (random numbers)")
    assert "participants" not in shown
    figures = json.loads(run("analyse", path, "--json"))
    assert (figures["simulated_by"], figures["participants"]) == ("random numbers", 12)


def test_the_command_takes_one_kind_of_a_mixed_file(tmp_path: Path) -> None:
    people = [Sheet(f"P{i}", CONDITIONS, {"ct1": "multi"}) for i in range(4)]
    path = tmp_path / "answers.jsonl"
    write_sheets(path, [*people, *simulate_sheets({"critical_thinking": SHARES}, 6)])
    assert CliRunner().invoke(main, ["study", "analyse", str(path)]).exit_code == 1
    assert run("analyse", path, "--only", "participants").startswith("4 participants, in 1 different orders.")
    assert run("analyse", path, "--only", "simulated").startswith("**SIMULATED: 6 ")


def test_shares_that_are_none_are_refused() -> None:
    for shares, said in (
        ("a=x,b=1", "expected NAME=SHARE"),
        ("a=0.5,b=0.2", "expected two or more above 0 that add up"),
    ):
        result = CliRunner().invoke(main, ["study", "power", "--shares", shares])
        assert result.exit_code != 0
        assert said in result.output


GIVEN = ["--shares", "a=0.5, b=0.3,c=0.2"]


def plan(*options: str) -> Result:
    return CliRunner().invoke(main, ["study", "power", *GIVEN, *options])


def test_readers_who_repeat_themselves_need_a_larger_study() -> None:
    apart, alike = plan("--likeness", "0"), plan("--likeness", "0.9")
    assert apart.exit_code == alike.exit_code == 0
    assert apart.output.splitlines()[1:] != alike.output.splitlines()[1:]
    assert not apart.output.endswith("\n\n")


def test_an_option_outside_its_range_is_refused_with_the_range() -> None:
    for option, value in (("--likeness", "1"), ("--seed", str(2**32))):
        refused = plan(option, value)
        assert refused.exit_code == 2
        assert "is not in the range" in refused.output


@pytest.mark.parametrize(
    ("function", "words", "given", "named"),
    [
        (
            "participants_needed",
            "power --questions 7 --likeness 0.4 --wanted 0.9 --alpha 0.01 --seed 5",
            [0.5, 0.3, 0.2],
            {"questions": 7, "likeness": 0.4, "wanted": 0.9, "alpha": 0.01, "seed": 5},
        ),
        (
            "simulate_sheets",
            "simulate --readers 9 --likeness 0.4 --seed 5 --out x",
            {aspect: {"a": 0.5, "b": 0.3, "c": 0.2} for aspect in ASPECTS},
            {"likeness": 0.4, "seed": 5},
        ),
    ],
)
def test_a_study_is_planned_with_all_that_was_typed(
    monkeypatch: pytest.MonkeyPatch, function: str, words: str, given: object, named: dict[str, float]
) -> None:
    asked: list[tuple[Any, ...]] = []

    def reached(*values: Any, **options: Any) -> None:
        asked.append((values[0], options))
        raise click.ClickException("enough")

    monkeypatch.setattr(f"metaprobe_writing_assistant.study.simulation.{function}", reached)
    command, *options = words.split()
    CliRunner().invoke(main, ["study", command, *GIVEN, *options])
    assert asked == [(given, named)]
