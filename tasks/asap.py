"""ASAP essay sets 7 and 8 with human grades of every trait (Hewlett Foundation, Kaggle 2012).

The early-token confidence paper (appendix A) works on these and does not say which grade of the two raters it takes.
Here: the third rater's where there is one, as the set's own resolved score does, or else the mean of the two, halves
rounded up. The texts of tasks and grades are ours, short, after the set's rubrics. Essays stand as they were given,
placeholders such as @PERSON1 included.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from metaprobe.records.errors import ImportFileError
from metaprobe.records.types import Item
from metaprobe.tasks.grading import chance, make_item, score
from metaprobe.tasks.task import Row, Task

RUBRICS = Path(__file__).parent / "rows" / "asap-rubrics.json"
"""Set -> `prompt`, the students' task; `low`, the lowest grade; and each trait of the data -> its `name` and `grades`,
the meaning of each grade from `low` upwards."""


def items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """One item a trait of each essay; the dimension is the set ("set 7", "set 8"), the level the trait.

    Fields: `essay`, `essay_prompt`, `trait`, `rubric`, `low`, `high`. A group is an essay with all of its traits.
    """
    sets = json.loads(RUBRICS.read_text(encoding="utf-8"))
    for row in rows:
        number = row.whole("essay_set", 7, 8)
        essays = sets[str(number)]
        raters = [row.part(f"rater{rater}_traits") for rater in (1, 2, 3)]
        if raters[0] is None or raters[1] is None:
            raise ImportFileError(f"{row.where}: expected the grades of two raters in rater1_traits and rater2_traits")
        for key, trait in essays["traits"].items():
            low, high = essays["low"], essays["low"] + len(trait["grades"]) - 1
            first, second, *third = (rater.whole(key, low, high) for rater in raters if rater is not None)
            yield make_item(
                f"{row.text('id')}/{key}",
                essay=row.text("essay"),
                essay_prompt=essays["prompt"],
                trait=trait["name"],
                rubric=trait["grades"],
                low=low,
                gold=third[0] if third else (first + second + 1) // 2,
                group=row.text("id"),
                dimension=f"set {number}",
            )


TASK = Task(
    name="asap",
    items=items,
    source="https://www.kaggle.com/c/asap-aes",
    licence="rules of the Kaggle competition; not an open licence",
    score=score,
    chance=chance,
    folder="asap_7_8",
    files={"train": "data"},
)
