"""Claims that are true or false.

- `creak`: claims about entities, by common sense. Onoe et al. 2021, arXiv:2109.01653.
- `true-false`: short statements of simple facts. Marks & Tegmark 2023, arXiv:2310.06824 (geometry of truth); Azaria &
  Mitchell 2023, arXiv:2304.13734.
"""

import re
from collections.abc import Iterator, Sequence

from metaprobe.api import Item
from metaprobe.papers.tasks.task import Record, Row, Task


def creak_items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Yields one item a claim. A group is the claims about one entity and about those with which it is contrasted."""
    group_of: dict[str, str] = {}
    for row in rows:
        names = {_entity(row), row.optional("pair_id") and f"pair {row.text('pair_id')}"} - {""}
        joined_groups = {group_of.get(name, name) for name in names}
        first_group = min(joined_groups)
        group_of |= dict.fromkeys(names, first_group) | {
            name: first_group for name, group in group_of.items() if group in joined_groups
        }
    for row in rows:
        yield Item(
            id=row.text("id"),
            question=f"Claim: {row.text('claim')}\n\nIs the claim true or false? Answer true or false.",
            gold=(row.one_of("label", "true", "false"),),
            group=group_of[_entity(row)],
            choices=("true", "false"),
            check="choice",
        )


def _entity(row: Row) -> str:
    return (row.optional("entity") or row.text("id")).casefold()


def creak_record(record: Record) -> Record:
    """Returns a record of the original, which has `sentence` and `ex_id`, in our layout."""
    return record if "claim" in record else {**record, "claim": record["sentence"], "id": record["ex_id"]}


CREAK = Task(
    name="creak",
    items=creak_items,
    source="https://github.com/yasumasaonoe/creak",
    licence="MIT",
    folder="creak",
    files={"dev": "data", "contrast": "data", "train": "data"},
    adapt=creak_record,
)


_QUOTED = re.compile(r"'([^']+)'")
_NAME = re.compile(r"(?:[A-Z][\w.'-]*)(?: (?:of |de )?[A-Z][\w.'-]*)*")
_OPENING = re.compile(r"^(?:the city of |it is the case (?:both |either )?that |the |an |a )+", re.IGNORECASE)


def statement_items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Yields one item a statement; the dimension is its subset, and a group is the statements about one subject."""
    for row in rows:
        statement = row.text("statement")
        label = row.whole("label", 0, 1)
        yield Item(
            id=row.text("id"),
            question=f"Statement: {statement}\n\nIs the statement true or false? Answer true or false.",
            gold=("true" if label else "false",),
            group=subject(statement),
            dimension=row.text("subset"),
            choices=("true", "false"),
            check="choice",
        )


def subject(statement: str) -> str:
    """Returns the subject of a statement: a quoted word, else the name it begins with, else its first two words.

    A conjunction of two statements is grouped by the first.
    """
    if quoted := _QUOTED.search(statement):
        return quoted[1].casefold()
    later_words = _OPENING.sub("", statement)
    name = _NAME.match(later_words)
    return name[0].casefold() if name else " ".join(later_words.split()[:2]).casefold()


TRUE_FALSE = Task(
    name="true-false",
    items=statement_items,
    source="https://github.com/saprmarks/geometry-of-truth",
    licence="none stated (geometry-of-truth); MIT (Azaria & Mitchell)",
    folder="true_false_statements",
)
