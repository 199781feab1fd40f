"""TruthfulQA as multiple choice with one right option (MC1). Lin, Hilton and Evans 2022, arXiv:2109.07958.

Its open form needs a judge of truth, which is not a program; it is left out.
"""

from collections.abc import Iterable, Iterator, Sequence

from metaprobe.records.errors import ImportFileError
from metaprobe.records.types import Item
from metaprobe.tasks.task import Record, Row, Task, question_with_options, shuffle_options


def items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """One item a question. The data give the right option first; here they are shuffled, and no two are equal."""
    for row in rows:
        options = row.texts("mc1_choices", blank=True)
        labels = row.values.get("mc1_labels")
        if not isinstance(labels, list) or sorted(labels) != [0] * (len(options) - 1) + [1]:
            raise ImportFileError(
                f"{row.where}: field 'mc1_labels' is {labels!r}; expected {len(options) - 1} times 0 and one 1"
            )
        choices = shuffle_options(tuple(dict.fromkeys(filter(str.strip, options))), seed, row.text("id"))
        yield Item(
            id=row.text("id"),
            question=question_with_options(row.text("question"), choices),
            gold=(options[labels.index(1)],),
            group=row.text("id"),
            choices=choices,
            dimension=row.optional("category"),
            level=row.optional("type"),
            check="choice",
        )


def adapt(record: Record) -> Iterable[Record]:
    """The hub has `mc1_targets` with choices and labels."""
    if "mc1_choices" in record:
        return [record]
    targets = record["mc1_targets"]
    return [{**record, "mc1_choices": targets["choices"], "mc1_labels": targets["labels"]}]


TASK = Task(
    name="truthfulqa",
    items=items,
    source="https://github.com/sylinrl/TruthfulQA",
    licence="Apache-2.0",
    folder="truthfulqa",
    files={"validation": "data"},
    hub="truthfulqa/truthful_qa:multiple_choice@validation",
    adapt=adapt,
)
