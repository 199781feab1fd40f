"""Cross-domain: each question needs two dimensions, one after the other.

Countries and elements are those that knowledge retrieval leaves out, so the two share no fact. Among themselves cross
items are grouped by template, and one country may stand in several templates.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from research.metacog_eval.facts import accepted, cross, table, where
from research.metacog_eval.templates import CROSS, GOODS, NAMES, Draft, Template, pick, printed

LOGIC, KNOWLEDGE, CODE, MATH, COMMON = (
    "logical reasoning",
    "knowledge retrieval",
    "code generation",
    "mathematical computation",
    "commonsense inference",
)

FAMOUS = tuple(row for row in cross("countries") if row["fame"] in "12")
ELEMENTS = tuple(row for row in cross("elements") if row["fame"] in "12")
COUNTS = tuple(row for row in table("counts") if row["level"] == "easy" and int(row["number"]) < 13)
SOUNDS = tuple((row["thing"], accepted(row["answer"])[0]) for row in where("everyday", relation="sound"))
UNITS = where("units", level="easy")

TEMPLATES: list[Template] = []
NEEDS: dict[str, tuple[str, str]] = {}
"""The two dimensions each template needs, by its name."""


def _needs(first: str, second: str) -> Callable[[Callable[[Random], Draft]], Callable[[Random], Draft]]:
    def add(draw: Callable[[Random], Draft]) -> Callable[[Random], Draft]:
        name = draw.__name__.strip("_").replace("_", "-")
        NEEDS[name] = (first, second)
        TEMPLATES.append(Template(name, CROSS, draw))
        return draw

    return add


def _number(question: str, value: Any) -> Draft:
    return Draft(question, (str(value),), "number")


def _whole(row: dict[str, str]) -> str:
    """ "a spider" -> "spiders", as in "3 spiders"."""
    noun = row["thing"].split(" ", 1)[1]
    return {"octopus": "octopuses", "bus": "buses"}.get(noun, noun[:-1] + "ies" if noun.endswith("y") else noun + "s")


@_needs(COMMON, MATH)
def _parts_of_several(rng: Random) -> Draft:
    row, n = rng.choice(COUNTS), rng.randrange(2, 6)
    return _number(f"How many {row['has']} do {n} {_whole(row)} have in total?", n * int(row["number"]))


@_needs(COMMON, MATH)
def _parts_together(rng: Random) -> Draft:
    legged = [row for row in COUNTS if row["has"] == "legs"]
    a, b = rng.sample(legged, 2)
    return _number(
        f"How many legs do {a['thing']} and {b['thing']} have together?", int(a["number"]) + int(b["number"])
    )


@_needs(COMMON, MATH)
def _units_of_time(rng: Random) -> Draft:
    row, n = rng.choice(UNITS), rng.randrange(2, 5)
    return _number(f"How many {row['small']} are there in {n} {row['large']}s?", n * int(row["factor"]))


@_needs(COMMON, MATH)
def _days_later(rng: Random) -> Draft:
    days = [row["name"] for row in where("calendar", kind="day")]
    at, n = rng.randrange(7), rng.randrange(2, 6)
    return Draft(f"Today is {days[at]}. Which day is it in {n} days?", (days[(at + n) % 7],))


@_needs(COMMON, MATH)
def _change(rng: Random) -> Draft:
    name, price = rng.choice(NAMES), rng.choice((1, 2, 3, 4, 6, 7, 8))
    return _number(
        f"{name} buys a cake for {price} dollars and pays with a 10 dollar bill. How many dollars does {name} "
        "get back?",
        10 - price,
    )


@_needs(COMMON, MATH)
def _eaten(rng: Random) -> Draft:
    name, n = rng.choice(NAMES), rng.randrange(5, 10)
    k = rng.randrange(1, 4)
    verb = rng.choice(("eats", "breaks", "boils and eats"))
    return _number(f"{name} has {n} raw eggs and {verb} {k} of them. How many raw eggs are left?", n - k)


@_needs(KNOWLEDGE, MATH)
def _month_lengths(rng: Random) -> Draft:
    months = [row for row in where("calendar", kind="month") if row["days"]]
    a, b = rng.sample(months, 2)
    return _number(f"How many days do {a['name']} and {b['name']} have together?", int(a["days"]) + int(b["days"]))


@_needs(KNOWLEDGE, MATH)
def _atomic_number_plus(rng: Random) -> Draft:
    row, n = rng.choice([row for row in ELEMENTS if int(row["number"]) < 31]), rng.randrange(1, 6)
    return _number(f"What is the atomic number of {accepted(row['element'])[0]} plus {n}?", int(row["number"]) + n)


@_needs(KNOWLEDGE, MATH)
def _letters_of_capital(rng: Random) -> Draft:
    row = rng.choice([row for row in FAMOUS if row["capital"].isalpha()])
    return _number(f"How many letters does the name of the capital of {row['country']} have?", len(row["capital"]))


@_needs(KNOWLEDGE, LOGIC)
def _lives_in_capital(rng: Random) -> Draft:
    (a, b), (p, q) = rng.sample(NAMES, 2), rng.sample(FAMOUS, 2)
    person, row = rng.choice(((a, p), (b, q)))
    return Draft(
        f"{a} lives in the capital of {p['country']}, {b} in the capital of {q['country']}. In which city does "
        f"{person} live?",
        accepted(row["capital"]),
    )


@_needs(KNOWLEDGE, LOGIC)
def _from_the_country(rng: Random) -> Draft:
    (a, b), (p, q) = rng.sample(NAMES, 2), rng.sample(FAMOUS, 2)
    gold, row = rng.choice(((a, p), (b, q)))
    return pick(
        f"{a} lives in {accepted(p['capital'])[0]}. {b} lives in {accepted(q['capital'])[0]}. Who lives in "
        f"{row['country']}: {{options}}?",
        gold,
        (a, b),
        rng,
    )


@_needs(KNOWLEDGE, LOGIC)
def _same_country(rng: Random) -> Draft:
    a, b = rng.sample(NAMES, 2)
    row = rng.choice([row for row in FAMOUS if row["language"]])
    return Draft(
        f"{a} speaks only the language of {row['country']}. {b} speaks the same language as {a}. Which "
        f"language does {b} speak?",
        accepted(row["language"]),
    )


@_needs(KNOWLEDGE, CODE)
def _first_letter_of_capital(rng: Random) -> Draft:
    row = rng.choice([row for row in FAMOUS if row["capital"].isalpha()])
    return Draft(
        f"The Python string s holds the capital of {row['country']}. What does print(s[0]) print?", (row["capital"][0],)
    )


@_needs(KNOWLEDGE, CODE)
def _symbol_in_code(rng: Random) -> Draft:
    row, n = rng.choice(ELEMENTS), rng.choice((2, 3))
    return Draft(
        f"The Python string s holds the chemical symbol of {accepted(row['element'])[0]}. What does print(s * "
        f"{n}) print?",
        (row["symbol"] * n,),
    )


@_needs(KNOWLEDGE, CODE)
def _looked_up(rng: Random) -> Draft:
    p, q = rng.sample(FAMOUS, 2)
    row = rng.choice((p, q))
    a, b = rng.sample(range(2, 90), 2)
    cities = [accepted(r["capital"])[0] for r in (p, q)]
    value = {id(p): a, id(q): b}[id(row)]
    return _number(
        f'd = {{"{cities[0]}": {a}, "{cities[1]}": {b}}}\n'
        f"In this Python dictionary, which value has the capital of {row['country']}?",
        value,
    )


@_needs(CODE, COMMON)
def _counted_in_code(rng: Random) -> Draft:
    row, n = rng.choice(COUNTS), rng.randrange(1, 6)
    return _number(
        f"x is how many {row['has']} {row['thing']} has. What does the Python code print(x + {n}) print?",
        int(row["number"]) + n,
    )


@_needs(CODE, COMMON)
def _days_list(rng: Random) -> Draft:
    days = [row["name"] for row in where("calendar", kind="day")]
    at = rng.randrange(7)
    return Draft(
        f"days is a Python list of the days of the week from Monday to Sunday. What does print(days[{at}]) print?",
        (days[at],),
    )


@_needs(CODE, COMMON)
def _chooses_tool(rng: Random) -> Draft:
    weather, things = rng.choice((("rain", ("umbrella", "sunglasses")), ("snow", ("sled", "swimsuit"))))
    now = rng.choice(("rain", "snow", "sun"))
    code = f'weather = "{now}"\nif weather == "{weather}":\n    print("{things[0]}")\nelse:\n    print("{things[1]}")'
    return printed(code, "What does this Python code advise to take along?")


@_needs(CODE, MATH)
def _area_in_code(rng: Random) -> Draft:
    a, b = rng.sample(range(2, 10), 2)
    return printed(f"width = {a}\nheight = {b}\nprint(2 * (width + height))")


@_needs(CODE, MATH)
def _power_in_code(rng: Random) -> Draft:
    return printed(f"print({rng.randrange(2, 6)} ** {rng.randrange(2, 4)} + {rng.randrange(1, 5)})")


@_needs(CODE, MATH)
def _write_formula(rng: Random) -> Draft:
    name, what, body = rng.choice(
        (
            ("square_area(side)", "the area of a square", "return side * side"),
            ("square_perimeter(side)", "the perimeter of a square", "return 4 * side"),
            ("cube_volume(side)", "the volume of a cube", "return side ** 3"),
            ("hours_to_minutes(hours)", "how many minutes that is", "return 60 * hours"),
            ("weeks_to_days(weeks)", "how many days that is", "return 7 * weeks"),
            ("meters_to_centimeters(meters)", "how many centimeters that is", "return 100 * meters"),
        )
    )
    code = f"def {name}:\n    {body}"
    scope: dict[str, Any] = {}
    exec(code, scope)
    called = name.split("(")[0]
    gold = tuple(f"assert {called}({n}) == {scope[called](n)}" for n in (1, 3, 10))
    return Draft(f"Write a Python function {name} that returns {what}.", gold, "function", solution=code)


@_needs(LOGIC, MATH)
def _as_many_as(rng: Random) -> Draft:
    (a, b, c), goods = rng.sample(NAMES, 3), rng.choice(GOODS)
    n, k = rng.randrange(2, 9), rng.randrange(1, 5)
    return _number(
        f"{a} has {n} {goods}. {b} has {k} more than {a}. {c} has as many as {b}. How many {goods} does {c} have?",
        n + k,
    )


@_needs(LOGIC, MATH)
def _largest_sum(rng: Random) -> Draft:
    people = rng.sample(NAMES, 3)
    pairs = [rng.sample(range(1, 10), 2) for _ in people]
    sums = [sum(pair) for pair in pairs]
    if len(set(sums)) < 3:
        return _largest_sum(rng)
    facts = ", ".join(f"{n} has {a} + {b}" for n, (a, b) in zip(people, pairs, strict=True))
    return pick(f"{facts} points. Who has the most points: {{options}}?", people[sums.index(max(sums))], people, rng)


@_needs(LOGIC, COMMON)
def _whose_pet(rng: Random) -> Draft:
    (a, b), (p, q) = rng.sample(NAMES, 2), rng.sample(SOUNDS, 2)
    gold, (animal, _) = rng.choice(((a, p), (b, q)))
    return pick(
        f'{a}\'s animal makes the sound "{p[1]}". {b}\'s animal makes the sound "{q[1]}". '
        f"Who has the {animal}: {{options}}?",
        gold,
        (a, b),
        rng,
    )


@_needs(LOGIC, COMMON)
def _bigger_animal(rng: Random) -> Draft:
    sizes = [row["thing"] for row in where("sizes", kind="animal-size")]
    people, places = rng.sample(NAMES, 3), rng.sample(range(len(sizes)), 3)
    facts = ", ".join(f"{n} draws {sizes[at]}" for n, at in zip(people, places, strict=True))
    end, at = rng.choice((("biggest", max(places)), ("smallest", min(places))))
    return pick(f"{facts}. Who draws the {end} animal: {{options}}?", people[places.index(at)], people, rng)


@_needs(LOGIC, COMMON)
def _not_the_opposite(rng: Random) -> Draft:
    row = rng.choice(where("everyday", relation="opposite", level="easy"))
    name = rng.choice(NAMES)
    return Draft(
        f"{name}'s box is either {row['thing']} or the opposite of {row['thing']}. It is not {row['thing']}. "
        "What is it?",
        accepted(row["answer"]),
    )


@_needs(LOGIC, CODE)
def _boolean_in_code(rng: Random) -> Draft:
    p, q = (rng.random() < 0.5 for _ in range(2))
    operator = rng.choice(("and", "or"))
    return printed(f"print({p} {operator} not {q})")


@_needs(LOGIC, CODE)
def _greater_in_code(rng: Random) -> Draft:
    order = rng.sample("abc", 3)
    return printed(
        f"{order[0]}, {order[1]}, {order[2]} = "
        f"{', '.join(str(n) for n in rng.sample(range(1, 30), 3))}\nprint({order[0]} > {order[2]})"
    )


@_needs(KNOWLEDGE, LOGIC)
def _lives_in_city(rng: Random) -> Draft:
    (a, b), (p, q) = rng.sample(NAMES, 2), rng.sample(FAMOUS, 2)
    person, row = rng.choice(((a, p), (b, q)))
    cities = [accepted(place["capital"])[0] for place in (p, q)]
    question = f"{a} lives in {cities[0]}. {b} lives in {cities[1]}. In which country does {person} live?"
    return Draft(question, accepted(row["country"]))


@_needs(KNOWLEDGE, LOGIC)
def _what_it_holds(rng: Random) -> Draft:
    p, q = rng.sample(ELEMENTS, 2)
    box, row = rng.choice((("box", p), ("bag", q)))
    names = [accepted(element["element"])[0] for element in (p, q)]
    question = (
        f"The box holds {names[0]}. The bag holds {names[1]}. What is the chemical symbol of what the {box} holds?"
    )
    return Draft(question, (row["symbol"],))


@_needs(KNOWLEDGE, LOGIC)
def _native_speaker(rng: Random) -> Draft:
    people = rng.sample(NAMES, 3)
    spoken = {accepted(row["language"])[0]: row for row in FAMOUS if row["language"]}
    rows = rng.sample(list(spoken.values()), 3)
    asked = rng.randrange(3)
    facts = ", ".join(f"{name} is from {row['country']}" for name, row in zip(people, rows, strict=True))
    language = accepted(rows[asked]["language"])[0]
    return pick(f"{facts}. Whose language is {language}: {{options}}?", people[asked], people, rng)


@_needs(KNOWLEDGE, CODE)
def _printed_city(rng: Random) -> Draft:
    row = rng.choice(FAMOUS)
    city = accepted(row["capital"])[0]
    question = f'city = "{city}"\nprint(city)\nIn which country is the city that this Python code prints?'
    return Draft(question, accepted(row["country"]))


@_needs(CODE, COMMON)
def _printed_word(rng: Random) -> Draft:
    row = rng.choice(where("everyday", relation="opposite", level="medium"))
    question = f'word = "{row["thing"]}"\nprint(word)\nWhat is the opposite of the word that this Python code prints?'
    return Draft(question, accepted(row["answer"]))


@_needs(CODE, COMMON)
def _printed_animal(rng: Random) -> Draft:
    row = rng.choice(where("everyday", relation="sound"))
    question = (
        f'animal = "{row["thing"]}"\nprint(animal)\nWhat sound does the animal make that this Python code prints?'
    )
    return Draft(question, accepted(row["answer"]))


@_needs(LOGIC, COMMON)
def _every_pet(rng: Random) -> Draft:
    row, name = rng.choice(where("everyday", relation="young", level="easy")), rng.choice(NAMES)
    question = f"Every animal of {name} is a {row['thing']}. What is a young animal of {name} called?"
    return Draft(question, accepted(row["answer"]))


@_needs(LOGIC, COMMON)
def _color_of_what(rng: Random) -> Draft:
    (a, b), (p, q) = rng.sample(NAMES, 2), rng.sample(where("everyday", relation="color", level="easy"), 2)
    if p["answer"] == q["answer"]:
        return _color_of_what(rng)
    person, row = rng.choice(((a, p), (b, q)))
    question = f"{a} paints {p['thing']}. {b} paints {q['thing']}. Which color does {person} need?"
    return Draft(question, accepted(row["answer"]))
