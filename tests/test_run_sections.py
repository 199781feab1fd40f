"""Answers and grades that a comparison takes from the runs themselves."""

from dataclasses import replace

import numpy as np
import pytest
from stored_runs import example

from metaprobe.eval.table import AnswerTable, bare_table
from metaprobe.records.types import Call, Run
from metaprobe.training.recipes.comparison import (
    answers_of,
)


def table_of(*call_ids: str) -> AnswerTable:
    bare = bare_table(np.ones(len(call_ids), dtype=np.int64), np.array(call_ids))
    return replace(bare, call_ids=np.array(call_ids))


def answer(name: str, text: str, system: str = "someone else's") -> Run:
    call = Call(id=name, stage="answer", text=text)
    return replace(example(1), id=f"r-{name}", system=system, variant="step-by-step", calls=(call,), labels=())


def test_answers_come_in_the_order_of_the_table_as_the_system_that_gave_them_reads_them() -> None:
    runs = [
        answer("a", " 7 \n"),
        answer("b", ""),
        answer("c", "I think so.\nAnswer: 8", "self-report"),
        answer("d", "9"),
    ]
    items, found = answers_of(runs, table_of("c", "b", "a"))
    assert found == ["8", None, "7"], "read by its system, not stored, and as it stands"
    assert items == [runs[2].item, runs[1].item, runs[0].item]
    with pytest.raises(KeyError):
        answers_of(runs[:1], table_of("c"))
