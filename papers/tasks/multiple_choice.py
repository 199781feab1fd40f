"""Questions with options, of which one is right.

- `mmlu`: 57 subjects with four options. Hendrycks et al. 2021, arXiv:2009.03300.
- `truthfulqa`: the form MC1. Lin, Hilton and Evans 2022, arXiv:2109.07958. The open form needs a judge of truth, which
  is not a program; it is left out.
"""

import re
from collections.abc import Iterator, Sequence

from metaprobe.api import ImportFileError, Item
from metaprobe.papers.tasks.task import Record, Row, Task, question_with_options, shuffle_options

_REFERS_TO_PLACE = re.compile(
    r"\b(?:above|below|all of these|none of these|former|latter)\b"
    r"|^\W*(?:both |neither )?\(?[A-D]\)?,? (?:and|or|nor|only)\b|\([A-D]\)|\b[A-D],? (?:and|or|nor) [A-D]\b|^[A-D],",
    re.IGNORECASE,
)
PASSAGE_CHARS = 200
"""Questions that share this many first characters are one group: some subjects ask several questions about
one passage.
"""


def mmlu_items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Yields one item a question; the dimension is its subject. Options are shuffled, unless one refers to another's
    place.
    """
    for row in rows:
        options, question = row.texts("choices"), row.text("question")
        keeps_order = any(_REFERS_TO_PLACE.search(option) for option in options)
        choices = options if keeps_order else shuffle_options(options, seed, row.text("id"))
        yield Item(
            id=row.text("id"),
            question=question_with_options(question, choices),
            gold=(options[row.whole("answer", 0, len(options) - 1)],),
            group=" ".join(question[:PASSAGE_CHARS].split()).casefold(),
            choices=choices,
            dimension=row.text("subject"),
            check="choice",
        )


MMLU = Task(
    name="mmlu",
    items=mmlu_items,
    source="https://github.com/hendrycks/test",
    licence="MIT",
    folder="mmlu",
    hub="cais/mmlu:all@test",
)


def truthfulqa_items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Yields one item a question. The data give the right option first; here they are shuffled, and no two
    are equal.
    """
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


def truthfulqa_record(record: Record) -> Record:
    """Returns a record of the hub, which has `mc1_targets` with choices and labels, in our layout."""
    if "mc1_choices" in record:
        return record
    targets = record["mc1_targets"]
    return {**record, "mc1_choices": targets["choices"], "mc1_labels": targets["labels"]}


TRUTHFULQA = Task(
    name="truthfulqa",
    items=truthfulqa_items,
    source="https://github.com/sylinrl/TruthfulQA",
    licence="Apache-2.0",
    folder="truthfulqa",
    files={"validation": "data"},
    hub="truthfulqa/truthful_qa:multiple_choice@validation",
    adapt=truthfulqa_record,
)
