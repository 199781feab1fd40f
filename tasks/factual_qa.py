"""Open questions of fact from TriviaQA (Joshi et al. 2017) and, much harder, SimpleQA (Wei et al. 2024)."""

from collections.abc import Iterator, Sequence

from metaprobe.records.types import Item
from metaprobe.tasks.task import Row, Task


def items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """One item a question, which is its group; the dimension is the data set it is from."""
    for row in rows:
        aliases = row.texts("aliases") if row.values.get("aliases") else ()
        yield Item(
            id=row.text("id"),
            question=row.text("question"),
            gold=tuple(dict.fromkeys((row.text("answer"), *aliases))),
            group=row.text("question").casefold(),
            dimension=row.one_of("dataset", "triviaqa", "simpleqa"),
            check="exact",
        )


TASK = Task(
    name="factual-qa",
    items=items,
    source="https://github.com/dylanbouchard/llm-cascade-frontiers",
    licence="Apache-2.0 (the collection)",
    folder="factual_qa",
)
