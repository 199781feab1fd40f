"""In which country is this place? Graded by how often it is read about. Gurnee & Tegmark 2023, arXiv:2310.02207."""

from collections.abc import Iterator, Sequence

from metaprobe.records.types import Item
from metaprobe.tasks.task import Row, Task

SAME = (
    ("United States", "United States of America", "USA", "US", "America"),
    ("United Kingdom", "UK", "Great Britain", "England", "Scotland", "Wales", "Northern Ireland"),
    ("Czech Republic", "Czechia"),
    ("Netherlands", "Holland"),
    ("China", "People's Republic of China"),
    ("Ireland", "Republic of Ireland"),
)
"""Names that count as one country. Parts of the United Kingdom are among them: the question does not exclude them."""


def items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """One item a place; the level is the decile of its page views, 9 the most famous."""
    for row in rows:
        country = row.text("country")
        yield Item(
            id=row.text("id"),
            question=row.text("question"),
            gold=tuple(dict.fromkeys((country, *(name for names in SAME if country in names for name in names)))),
            group=row.text("name").casefold(),
            dimension=row.text("entity_type"),
            level=f"popularity {row.whole('popularity_decile', 0, 9)}",
            check="exact",
        )


TASK = Task(
    name="places",
    items=items,
    source="https://github.com/wesg52/world-models",
    licence="MIT",
    folder="place_country_popularity",
)
