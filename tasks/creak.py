"""CREAK: claims about entities, true or false by common sense. Onoe et al. 2021, arXiv:2109.01653."""

from collections.abc import Iterable, Iterator, Sequence

from metaprobe.records.types import Item
from metaprobe.tasks.task import Record, Row, Task


def items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """One item a claim. A group is the claims of one entity and of those it is contrasted with."""
    group_of: dict[str, str] = {}
    for row in rows:
        names = {_entity(row), row.optional("pair_id") and f"pair {row.text('pair_id')}"} - {""}
        joined = {group_of.get(name, name) for name in names}
        least = min(joined)
        group_of |= dict.fromkeys(names, least) | {name: least for name, group in group_of.items() if group in joined}
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


def adapt(record: Record) -> Iterable[Record]:
    """The original has `sentence` and `ex_id`."""
    if "claim" in record:
        return [record]
    return [{**record, "claim": record["sentence"], "id": record["ex_id"]}]


TASK = Task(
    name="creak",
    items=items,
    source="https://github.com/yasumasaonoe/creak",
    licence="MIT",
    folder="creak",
    files={"dev": "data", "contrast": "data", "train": "data"},
    adapt=adapt,
)
