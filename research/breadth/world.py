"""Families of facts about the world, from the tables of MetaCog-Eval in words of their own."""

from random import Random

from research.breadth.numbers import yes_no
from research.metacog_eval.facts import Row, accepted, table
from research.metacog_eval.templates import Draft, pick

CONTINENTS = ("Africa", "Asia", "Europe", "North America", "South America", "Oceania", "Australia", "Antarctica")
ALSO_CALLED = {
    "GB": ("UK", "Great Britain", "Britain", "England"),
    "US": ("USA", "US", "America", "United States of America"),
    "NL": ("Holland",),
    "KR": ("Korea", "Republic of Korea"),
    "CZ": ("Czechia",),
    "CN": ("People's Republic of China",),
}


def _row(rng: Random, name: str, level: int, *columns: str) -> Row:
    """A row of a table, of this level's fame, whose columns have exactly one value each."""
    rows = [row for row in table(name) if row["fame"] == str(level + 1) and all(row[column] for column in columns)]
    return rng.choice(rows)


def capitals(rng: Random, level: int) -> Draft:
    row = _row(rng, "countries", level)
    fact = f"country/{row['iso']}"
    capital = accepted(row["capital"])
    asks = rng.randrange(3)
    if asks == 0:
        return Draft(f"Which city is the capital of {row['country']}?", capital, "exact", (), fact)
    if asks == 1:
        text = f"{capital[0]} is the capital of a country. Which country is it?"
        return Draft(text, (row["country"], *ALSO_CALLED.get(row["iso"], ())), "exact", (), fact)
    return Draft(f"What is the name of the capital city of {row['country']}?", capital, "exact", (), fact)


def capital_checks(rng: Random, level: int) -> Draft:
    row, holds = _row(rng, "countries", level), rng.random() < 0.5
    others = [other for other in table("countries") if other is not row]
    near = [other for other in others if other["continent"] == row["continent"]] or others
    shown = row if holds else rng.choice(near)
    fact = f"country/{row['iso']}"
    text = rng.choice(("Is {} the capital of {}?", "Does {} serve as the capital of {}?"))
    return yes_no(text.format(accepted(shown["capital"])[0], row["country"]), holds, fact=fact)


def currencies_and_tongues(rng: Random, level: int) -> Draft:
    column = rng.choice(("currency", "language"))
    row = _row(rng, "countries", level, column)
    asks = {"currency": "Which currency do people pay with in {}?", "language": "What is the main language of {}?"}
    gold = accepted(row[column])
    if column == "currency":
        gold += tuple(f"{name}s" for name in gold)
        gold += tuple(f"{whose} {name}" for whose in accepted(row["adjective"]) for name in gold)  # the Indian rupee
    gold += tuple(word.capitalize() for word in gold)  # case counts where the question has the word in other case
    return Draft(asks[column].format(row["country"]), gold, "exact", (), f"country/{row['iso']}")


def continents(rng: Random, level: int) -> Draft:
    """Which of some countries lies on a continent; at the easiest level, on which continent a country lies."""
    row = _row(rng, "countries", level, "continent")
    fact = f"country/{row['iso']}"
    home = accepted(row["continent"])
    if level == 0 or rng.random() < 0.4:
        return Draft(f"On which continent does {row['country']} lie?", home, "choice", CONTINENTS, fact)
    others = [o["country"] for o in table("countries") if o["continent"] and o["continent"] != row["continent"]]
    options = [row["country"], *rng.sample(others, 3)]
    return pick(f"Which of these countries lies in {home[0]}: {{options}}?", row["country"], options, rng, fact=fact)


def chemical_symbols(rng: Random, level: int) -> Draft:
    row = _row(rng, "elements", level)
    element = accepted(row["element"])
    fact = f"element/{row['symbol']}"
    asks = rng.randrange(4 if level else 2)
    if asks == 0:
        return Draft(f"Which symbol does {element[0]} have in chemistry?", (row["symbol"],), "exact", (), fact)
    if asks in (1, 2):
        return Draft(f"In chemistry, which element has the symbol {row['symbol']}?", element, "exact", (), fact)
    return Draft(f"How many protons does an atom of {element[0]} have?", (row["number"],), "number", (), fact)


def element_checks(rng: Random, level: int) -> Draft:
    row, other = _row(rng, "elements", level), _row(rng, "elements", level)
    name = accepted(row["element"])[0]
    fact = f"element/{row['symbol']}"
    if rng.random() < 0.5 and other is not row:
        text = f"Does an atom of {name} have more protons than an atom of {accepted(other['element'])[0]}?"
        return yes_no(text, int(row["number"]) > int(other["number"]), fact=fact)
    shown = row if rng.random() < 0.5 else other
    return yes_no(f'Is "{shown["symbol"]}" the chemical symbol of {name}?', shown is row, fact=fact)


FAMILIES = {
    "capitals": capitals,
    "capital-checks": capital_checks,
    "currencies-and-tongues": currencies_and_tongues,
    "continents": continents,
    "chemical-symbols": chemical_symbols,
    "element-checks": element_checks,
}
