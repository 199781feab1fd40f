"""Knowledge retrieval: one fact asked forwards or backwards; every question about a fact is in that fact's group."""

from collections.abc import Callable, Sequence
from random import Random

from research.metacog_eval.facts import Row, accepted, own
from research.metacog_eval.templates import EASY, HARD, MEDIUM, Draft, Template


def _ask(
    level: str,
    name: str,
    fact: tuple[str, str],
    text: str,
    subject: str,
    answer: str,
    fame: Sequence[str],
    number: bool = False,
    more: Callable[[Row], tuple[str, ...]] = lambda _row: (),
) -> Template:
    """A question on the facts of a table, `fact` being the table and the column that names the fact."""
    source, key = fact
    rows = [row for row in own(source) if row["fame"] in fame and row[answer] and row[subject]]

    def draw(rng: Random) -> Draft:
        row = rng.choice(rows)
        gold = (*accepted(row[answer]), *more(row))
        question = text.format(accepted(row[subject])[0])
        return Draft(question, gold, "number" if number else "exact", fact=f"{source}/{accepted(row[key])[0]}")

    return Template(name, level, draw)


COUNTRY, ELEMENT, WORK, LANDMARK, EVENT = (
    ("countries", "iso"),
    ("elements", "element"),
    ("works", "work"),
    ("landmarks", "landmark"),
    ("events", "event"),
)


def _with_adjective(row: Row) -> tuple[str, ...]:
    """ "Japanese yen" where the table says "yen"."""
    return tuple(f"{a} {c}" for a in accepted(row["adjective"]) for c in accepted(row["currency"]))


TEMPLATES: list[Template] = [
    _ask(EASY, "capital", COUNTRY, "What is the capital of {}?", "country", "capital", "1"),
    _ask(EASY, "country-of-capital", COUNTRY, "{} is the capital of which country?", "capital", "country", "1"),
    _ask(EASY, "continent", COUNTRY, "On which continent is {}?", "country", "continent", "1"),
    _ask(EASY, "language", COUNTRY, "Which language is spoken in {}?", "country", "language", "1"),
    _ask(EASY, "symbol", ELEMENT, "What is the chemical symbol of {}?", "element", "symbol", "1"),
    _ask(EASY, "author", WORK, "Who wrote {}?", "work", "author", "1"),
    _ask(EASY, "landmark", LANDMARK, "In which country is {}?", "landmark", "country", "1"),
    _ask(MEDIUM, "capital", COUNTRY, "What is the capital of {}?", "country", "capital", "2"),
    _ask(MEDIUM, "country-of-capital", COUNTRY, "{} is the capital of which country?", "capital", "country", "2"),
    _ask(
        MEDIUM,
        "element-of-number",
        ELEMENT,
        "Which chemical element has the atomic number {}?",
        "number",
        "element",
        "1",
    ),
    _ask(MEDIUM, "currency", COUNTRY, "What is the currency of {}?", "country", "currency", "12", more=_with_adjective),
    _ask(MEDIUM, "atomic-number", ELEMENT, "What is the atomic number of {}?", "element", "number", "1", True),
    _ask(MEDIUM, "element", ELEMENT, "Which chemical element has the symbol {}?", "symbol", "element", "2"),
    _ask(MEDIUM, "symbol", ELEMENT, "What is the chemical symbol of {}?", "element", "symbol", "2"),
    _ask(MEDIUM, "author", WORK, "Who wrote {}?", "work", "author", "2"),
    _ask(MEDIUM, "event", EVENT, "In which year did {}?", "event", "year", "12", True),
    _ask(MEDIUM, "landmark", LANDMARK, "In which country is {}?", "landmark", "country", "2"),
    _ask(HARD, "capital", COUNTRY, "What is the capital of {}?", "country", "capital", "3"),
    _ask(HARD, "country-of-capital", COUNTRY, "{} is the capital of which country?", "capital", "country", "3"),
    _ask(HARD, "currency", COUNTRY, "What is the currency of {}?", "country", "currency", "3", more=_with_adjective),
    _ask(HARD, "atomic-number", ELEMENT, "What is the atomic number of {}?", "element", "number", "2", True),
    _ask(
        HARD,
        "element-of-number",
        ELEMENT,
        "Which chemical element has the atomic number {}?",
        "number",
        "element",
        "2",
    ),
    _ask(HARD, "element", ELEMENT, "Which chemical element has the symbol {}?", "symbol", "element", "3"),
    _ask(HARD, "symbol", ELEMENT, "What is the chemical symbol of {}?", "element", "symbol", "3"),
    _ask(HARD, "author", WORK, "Who wrote {}?", "work", "author", "3"),
    _ask(HARD, "event", EVENT, "In which year did {}?", "event", "year", "3", True),
    _ask(HARD, "landmark", LANDMARK, "In which country is {}?", "landmark", "country", "3"),
]
