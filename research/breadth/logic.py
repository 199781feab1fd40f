"""Families of reasoning: what follows from what is said."""

from itertools import pairwise
from random import Random

from research.breadth.numbers import number, yes_no
from research.metacog_eval.pools import COLORS, NONSENSE, ORDERINGS, ROOMS, THINGS
from research.metacog_eval.templates import NAMES, Draft, pick

TRUE_FALSE = ("true", "false")
COMPASS = ("north", "east", "south", "west")
_SYLLOGISMS = (
    (
        ("All {a}s are {b}s. {n} is one of the {a}s.", "Is {n} one of the {b}s?", True),
        ("No {a} is a {b}. {n} is one of the {a}s.", "Can {n} be one of the {b}s?", False),
        ("All {a}s are {color}. {n} is not {color}.", "Can {n} be one of the {a}s?", False),
        ("Everything {color} is a {b}. {n} is {color}.", "Must {n} be a {b}?", True),
    ),
    (
        ("All {a}s are {b}s. All {b}s are {c}s.", "Must every {a} be a {c}?", True),
        ("All {a}s are {b}s. No {b} is a {c}.", "Can any {a} be a {c}?", False),
        ("Some {a}s are {b}s. All {b}s are {c}s.", "Must some {a}s be {c}s?", True),
        ("All {a}s are {b}s. {n} is one of the {b}s.", "Must {n} be one of the {a}s?", False),
    ),
    (
        ("All {a}s are {b}s. Some {b}s are {c}s.", "Must some {a}s be {c}s?", False),
        ("No {a} is a {b}. All {c}s are {b}s.", "Can a {c} be one of the {a}s?", False),
        ("If something is a {a}, it is a {b}. {n} is not a {b}.", "Must it be true that {n} is no {a}?", True),
        ("If something is a {a}, it is a {b}. {n} is not a {a}.", "Must it be true that {n} is no {b}?", False),
        ("Some {a}s are not {b}s. All {c}s are {b}s.", "Must some {a}s be no {c}s?", True),
    ),
)


def syllogisms(rng: Random, level: int) -> Draft:
    text, asks, holds = rng.choice(_SYLLOGISMS[level])
    a, b, c = rng.sample(NONSENSE, 3)
    words = {"a": a, "b": b, "c": c, "n": rng.choice(NAMES), "color": rng.choice(COLORS)}
    return yes_no(f"{text.format(**words)} {asks.format(**words)}", holds)


def propositions(rng: Random, level: int) -> Draft:
    """A statement about colored things, joined by and, or, not; its truth follows from what is said of them."""
    things, colors = rng.sample(THINGS, 3), [rng.choice(COLORS[:4]) for _ in range(3)]
    shown = min(level + 2, 3)
    said = " ".join(f"The {t} is {c}." for t, c in list(zip(things, colors, strict=True))[:shown])
    parts, values = [], []
    for place in range(shown if level else 1):
        claimed = rng.choice((colors[place], rng.choice(COLORS[:4])))
        denied = level > 0 and rng.random() < 0.4
        parts.append(f"the {things[place]} is {'not ' * denied}{claimed}")
        values.append((claimed == colors[place]) != denied)
    join = rng.choice(("and", "or"))
    holds = all(values) if join == "and" else any(values)
    statement = f" {join} ".join(parts)
    text = f'{said} Is the statement "{statement}" true or false?'
    return Draft(text, (TRUE_FALSE[not holds],), "choice", TRUE_FALSE)


def boolean_code(rng: Random, level: int) -> Draft:
    def part(depth: int) -> str:
        if depth == 0:
            a, b = rng.randint(1, 20), rng.randint(1, 20)
            return rng.choice(("True", "False", f"{a} > {b}", f"{a} <= {b}", f"{a} == {a + rng.randrange(2)}"))
        left, right = part(depth - 1), part(depth - 1)
        return f"{'not ' * (rng.random() < 0.4)}({left} {rng.choice(('and', 'or'))} {right})"

    code = part(level) if level else f"{rng.choice(('', 'not '))}{part(0)}"
    return Draft(
        f"Here is a Python expression: {code}\nIs its value True or False?",
        (str(bool(eval(code))).lower(),),
        "choice",
        TRUE_FALSE,
    )


def turns(rng: Random, level: int) -> Draft:
    facing = start = rng.randrange(4)
    name, steps = rng.choice(NAMES), []
    for _ in range((1, 2, 4)[level]):
        way, by = rng.choice((("right", 1), ("left", -1), ("around", 2)))
        steps.append(f"turns {way}")
        facing = (facing + by) % 4
    text = f"{name} faces {COMPASS[start]} and {', then '.join(steps)}. Which direction does {name} face now?"
    return Draft(text, (COMPASS[facing],), "choice", COMPASS)


def orderings(rng: Random, level: int) -> Draft:
    people = rng.sample(NAMES, level + 3)
    more, less = rng.choice(ORDERINGS)
    facts = [rng.choice((f"{a} is {more} than {b}.", f"{b} is {less} than {a}.")) for a, b in pairwise(people)]
    rng.shuffle(facts)
    if level == 2 and rng.random() < 0.5:
        a, b = sorted(rng.sample(range(len(people)), 2))
        holds = rng.random() < 0.5
        first, second = (people[a], people[b]) if holds else (people[b], people[a])
        return yes_no(f"{' '.join(facts)} Is {first} {more} than {second}?", holds)
    gold, word = rng.choice(((people[0], more), (people[-1], less)))
    return pick(f"{' '.join(facts)} Who is the {word[:-1]}st: {{options}}?", gold, people, rng)


def moving_things(rng: Random, level: int) -> Draft:
    thing, other = rng.sample(THINGS, 2)
    rooms = rng.sample(ROOMS, 5)
    name = rng.choice(NAMES)
    steps = [f"{name} puts the {thing} in the {rooms[0]}."]
    if level:
        steps.append(f"{name} puts the {other} in the {rooms[1]}.")
    steps.append(f"{name} takes the {thing} to the {rooms[2]}.")
    where = {thing: rooms[2], other: rooms[1]}
    if level == 2:
        steps.append(f"Then the {other} goes to where the {thing} is, and the {thing} goes to the {rooms[3]}.")
        where = {thing: rooms[3], other: rooms[2]}
        if rng.random() < 0.5:
            steps.append(f"At last the {thing} and the {other} change places.")
            where = {thing: rooms[2], other: rooms[3]}
    asked = rng.choice([thing, other] if level else [thing])
    return Draft(f"{' '.join(steps)} Where is the {asked} now?", (where[asked],), "choice", tuple(sorted(ROOMS)))


def family_ties(rng: Random, level: int) -> Draft:
    """How many children, brothers or people there are in a described family."""
    girl, boy = (
        rng.choice(("Anna", "Carla", "Emma", "Grace", "Ida", "Kate", "Mia")),
        rng.choice(("Ben", "David", "Felix", "Henry", "Jack", "Leo", "Nick")),
    )
    sisters, brothers = rng.randint(1, 6), rng.randint(2, 6)
    ends = "s" * (sisters > 1), "s" * (brothers > 1)
    if level == 0:
        sisters, brothers = rng.randint(1, 15), rng.randint(1, 15)
        return number(
            f"A couple has {sisters + 1} daughters and {brothers + 1} sons. How many children does the couple have?",
            sisters + brothers + 2,
        )
    told = f"{girl} has {sisters} sister{ends[0]} and {brothers} brother{ends[1]}. "
    if level == 1:
        return number(f"{told}How many children are there in the family, with {girl}?", sisters + brothers + 1)
    asked = rng.choice((("sisters", sisters + 1), ("brothers", brothers - 1)))
    return number(f"{told}{boy} is one of these brothers. How many {asked[0]} does {boy} have?", asked[1])


FAMILIES = {
    "syllogisms": syllogisms,
    "propositions": propositions,
    "boolean-code": boolean_code,
    "turns": turns,
    "orderings": orderings,
    "moving-things": moving_things,
    "family-ties": family_ties,
}
