"""Questions whose answer is a number, a name or a few words.

- `gsm8k`: grade-school word problems. Cobbe et al. 2021, arXiv:2110.14168.
- `ciar`: counter-intuitive arithmetic, in which the first guess is wrong. Liang et al. 2024, arXiv:2305.19118.
- `factual-qa`: open questions of TriviaQA (Joshi et al. 2017) and, much harder, SimpleQA (Wei et al. 2024).
- `places`: the country of a place, graded by how often it is read about. Gurnee & Tegmark 2023, arXiv:2310.02207.
"""

import re
from collections.abc import Iterator, Sequence

from metaprobe.api import ImportFileError, Item, read_number
from metaprobe.papers.tasks.task import Record, Row, Task

STEP_LEVELS = ((2, "1-2 steps"), (4, "3-4 steps"), (99, "5 or more steps"))
"""Pairs of the most lines that a reference solution may have at a level, and the level's name."""


def gsm8k_items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Yields one item a problem; the level is the length of the reference solution."""
    for row in rows:
        gold = row.text("final").replace(",", "")
        if read_number("", gold) is None:
            raise ImportFileError(f"{row.where}: field 'final' is {gold!r}; expected a number")
        steps = row.whole("n_steps", 1, 99)
        yield Item(
            id=row.text("id"),
            question=row.text("question"),
            gold=(gold,),
            group=row.text("id"),
            level=next(level for max_steps, level in STEP_LEVELS if steps <= max_steps),
            check="number",
        )


def gsm8k_record(record: Record) -> Record:
    """Returns a record of the original, whose `answer` holds the solution and, after ####, the number, in
    our layout.
    """
    if "final" in record:
        return record
    solution, _, final = record["answer"].partition("####")
    steps = sum(bool(line.strip()) for line in solution.splitlines())
    return {**record, "final": final.strip(), "n_steps": max(steps, 1)}


GSM8K = Task(
    name="gsm8k",
    items=gsm8k_items,
    source="https://github.com/openai/grade-school-math",
    licence="MIT",
    folder="gsm8k",
    files={"train": "train", "test": "test"},
    hub="openai/gsm8k:main@train",
    adapt=gsm8k_record,
)


_PLAIN_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:/\d+)?%?")


def ciar_items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Yields one item a question, right with any of its accepted strings.

    If all of these are plain numbers, fractions or percentages, the answer is read as a number, so that it may have
    units; "6 or 12", "1:1" and "1/e" are compared as text.
    """
    for row in rows:
        accepted = row.texts("answers")
        yield Item(
            id=row.text("id"),
            question=row.text("question"),
            gold=accepted,
            group=row.text("id"),
            check="number" if all(_PLAIN_NUMBER.fullmatch(answer) for answer in accepted) else "exact",
        )


CIAR = Task(
    name="ciar",
    items=ciar_items,
    source="https://github.com/Skytliang/Multi-Agents-Debate (data/CounterintuitiveQA)",
    licence="GPL-3.0",
    folder="ciar",
)


def factual_items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Yields one item a question, which is its group; the dimension is the data set it is from."""
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


FACTUAL_QA = Task(
    name="factual-qa",
    items=factual_items,
    source="https://github.com/dylanbouchard/llm-cascade-frontiers",
    licence="Apache-2.0 (the collection)",
    folder="factual_qa",
)


SAME_COUNTRY = (
    ("United States", "United States of America", "USA", "US", "America"),
    ("United Kingdom", "UK", "Great Britain", "England", "Scotland", "Wales", "Northern Ireland"),
    ("Czech Republic", "Czechia"),
    ("Netherlands", "Holland"),
    ("China", "People's Republic of China"),
    ("Ireland", "Republic of Ireland"),
)
"""Names that count as one country. Parts of the United Kingdom are among them: the question does not exclude them."""


def place_items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Yields one item a place; the level is the decile of its page views, 9 the most famous."""
    for row in rows:
        country = row.text("country")
        yield Item(
            id=row.text("id"),
            question=row.text("question"),
            gold=tuple(
                dict.fromkeys((country, *(name for names in SAME_COUNTRY if country in names for name in names)))
            ),
            group=row.text("name").casefold(),
            dimension=row.text("entity_type"),
            level=f"popularity {row.whole('popularity_decile', 0, 9)}",
            check="exact",
        )


PLACES = Task(
    name="places",
    items=place_items,
    source="https://github.com/wesg52/world-models",
    licence="MIT",
    folder="place_country_popularity",
)
