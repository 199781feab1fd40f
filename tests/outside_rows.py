"""Shared by tests of the task sets from outside: made-up rows of each set, and where the real ones are."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metaprobe.papers.tasks import TASKS
from metaprobe.papers.tasks.task import Row
from metaprobe.records.types import Item

DATA = Path(os.environ.get("METAPROBE_DATA") or Path(__file__).parents[2] / "shared" / "data")
OUTSIDE = [name for name, task in TASKS.items() if task.folder]
real_data = pytest.mark.skipif(not DATA.is_dir(), reason="the task sets are not on this machine")


def traits(*names: str) -> Callable[[int], dict[str, int]]:
    return lambda grade: dict.fromkeys(names, grade)


SET_7 = traits("content_ideas", "organization", "style", "conventions")
SET_8 = traits("ideas_content", "organization", "voice", "word_choice", "sentence_fluency", "conventions")
LEAF = traits("clarity_of_topic", "specificity_of_explanation")


def bbq_row(number: int) -> dict[str, Any]:
    old, young = ("old", "nonOld") if number % 4 < 2 else ("nonOld", "old")
    condition = "ambig" if number % 3 == 0 else "disambig"
    return {
        "id": f"b{number}", "category": "Age", "context_condition": condition, "question_index": str(number % 40),
        "question_polarity": "neg" if number % 2 else "nonneg", "context": "An old man and a boy met.",
        "question": "Who does not listen?", "choices": ["The old man", "The boy", "Can't be determined"],
        "label": 2 if condition == "ambig" else number % 5 % 2, "answer_groups": [old, young, "unknown"],
        "stereotyped_groups": ["old"],
    }  # fmt: skip


MADE: dict[str, Callable[[int], dict[str, Any]]] = {
    "gsm8k": lambda n: {"question": f"Ann has {n} eggs. How many?", "final": f"{n % 9:,}", "n_steps": n % 7 + 1},
    "truthfulqa": lambda n: {
        "question": f"What happens at {n}?", "mc1_choices": [f"right {n}", "wrong", "worse", ""][: 4 - n % 2],
        "mc1_labels": [1, 0, 0, 0][: 4 - n % 2], "category": f"c{n % 3}", "type": "Adversarial",
    },
    "ciar": lambda n: {"question": f"How fast is {n}?", "answers": ["0.5", "1/2"] if n % 2 else ["6 or 12"]},
    "creak": lambda n: {"claim": f"Soup {n} is wet.", "label": ("true", "false")[n % 2], "entity": f"E{n % 90}"},
    "mmlu": lambda n: {"question": f"Which is {n}?", "choices": list("wxyz"), "answer": n % 4, "subject": f"s{n % 5}"},
    "bbq": bbq_row,
    "asap": lambda n: {
        "essay_set": 7 + n % 2, "essay": f"Once I waited {n} days. @PERSON1 laughed.",
        "rater1_traits": (SET_8 if n % 2 else SET_7)(n % 3 + 1), "rater2_traits": (SET_8 if n % 2 else SET_7)(2),
        "rater3_traits": SET_8(5) if n % 4 == 1 else None,
    },
    "places": lambda n: {
        "name": f"Mount {n}", "question": f"In which country is Mount {n} located?", "entity_type": "natural_place",
        "country": ("Peru", "England", "China")[n % 3], "popularity_decile": n % 10,
    },
    "true-false": lambda n: {"statement": f"The city of Ub{n} is in Peru.", "label": n % 2, "subset": "cities"},
    "factual-qa": lambda n: {
        "question": f"Who was number {n}?", "answer": "Ann Lee", "aliases": ["A. Lee"] if n % 2 else None,
        "dataset": ("triviaqa", "simpleqa")[n % 2],
    },
    "essays": lambda n: {"type": "Argumentative", "title": "Cars?", "essay": f"Cars {n}.", "traits": LEAF(n % 5 + 1)},
}  # fmt: skip


def rows(name: str, n: int = 300) -> list[Row]:
    return [Row({"id": f"{name}-{i}", **MADE[name](i)}, f"row {i}") for i in range(n)]


def items_of(name: str, n: int = 300, *, seed: int = 1) -> list[Item]:
    return TASKS[name].made(rows(name, n), seed, TASKS[name].default_split)
