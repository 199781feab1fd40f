"""MMLU: questions of 57 subjects with four options. Hendrycks et al. 2021, arXiv:2009.03300."""

import re
from collections.abc import Iterator, Sequence

from metaprobe.records.types import Item
from metaprobe.tasks.task import Row, Task, question_with_options, shuffle_options

_REFERS = re.compile(
    r"\b(?:above|below|all of these|none of these|former|latter)\b"
    r"|^\W*(?:both |neither )?\(?[A-D]\)?,? (?:and|or|nor|only)\b|\([A-D]\)|\b[A-D],? (?:and|or|nor) [A-D]\b|^[A-D],",
    re.IGNORECASE,
)
PASSAGE = 200
"""Questions that begin with the same so many characters are one group: some subjects ask several about one passage."""


def items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """One item a question; the dimension is its subject. Options are shuffled, unless one speaks of others by place."""
    for row in rows:
        options, question = row.texts("choices"), row.text("question")
        fixed = any(_REFERS.search(option) for option in options)
        choices = options if fixed else shuffle_options(options, seed, row.text("id"))
        yield Item(
            id=row.text("id"),
            question=question_with_options(question, choices),
            gold=(options[row.whole("answer", 0, len(options) - 1)],),
            group=" ".join(question[:PASSAGE].split()).casefold(),
            choices=choices,
            dimension=row.text("subject"),
            check="choice",
        )


TASK = Task(
    name="mmlu",
    items=items,
    source="https://github.com/hendrycks/test",
    licence="MIT",
    folder="mmlu",
    hub="cais/mmlu:all@test",
)
