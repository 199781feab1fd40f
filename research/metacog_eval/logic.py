"""Logical reasoning, easy and medium: premises in invented or interchangeable terms, so only they give the answer."""

from random import Random

from research.metacog_eval import deduction
from research.metacog_eval.pools import BOXES, COLORS, NONSENSE, ODD_ONES, ORDERINGS, PETS, ROOMS, THINGS
from research.metacog_eval.templates import EASY, MEDIUM, NAMES, Draft, Template, number, pick, templates

TEMPLATES: list[Template] = []
template = templates(TEMPLATES)


@template(EASY)
def _instance(rng: Random) -> Draft:
    kind, color = rng.choice(NONSENSE), rng.choice(COLORS)
    name = rng.choice(NAMES)
    return Draft(f"Every {kind} is {color}. {name} is a {kind}. What color is {name}?", (color,))


@template(EASY)
def _owner(rng: Random) -> Draft:
    (a, b), (p, q) = rng.sample(NAMES, 2), rng.sample(PETS, 2)
    asked = rng.randrange(2)
    return Draft(f"{a} has a {p}. {b} has a {q}. Who has the {(p, q)[asked]}?", ((a, b)[asked],))


@template(EASY)
def _pet(rng: Random) -> Draft:
    (a, b), (p, q) = rng.sample(NAMES, 2), rng.sample(PETS, 2)
    asked = rng.randrange(2)
    return Draft(f"{a} has a {p}. {b} has a {q}. What pet does {(a, b)[asked]} have?", ((p, q)[asked],))


@template(EASY)
def _modus_ponens(rng: Random) -> Draft:
    name = rng.choice(NAMES)
    weather = rng.choice(("rains", "snows", "gets dark", "gets cold"))
    does, do = rng.choice(
        (("reads", "a book"), ("goes", "home"), ("makes", "tea"), ("plays", "chess"), ("bakes", "bread"))
    )
    gold = (f"{does} {do}", f"{does.removesuffix('s')} {do}", do)
    return Draft(f"If it {weather}, {name} {does} {do}. It {weather}. What does {name} do?", gold)


@template(EASY)
def _repetition(rng: Random) -> Draft:
    a, b = rng.sample(COLORS, 2)
    shown, follow = ((a, b, a, b, a), b) if rng.random() < 0.5 else ((a, b, a, b), a)
    return Draft(f"Which color comes next? {', '.join(shown)},", (follow,))


@template(EASY)
def _odd_one_out(rng: Random) -> Draft:
    many, one = rng.sample(sorted(ODD_ONES), 2)
    gold = rng.choice(ODD_ONES[one])
    return pick(
        "Which word does not belong with the others: {options}?", gold, [*rng.sample(ODD_ONES[many], 3), gold], rng
    )


@template(EASY)
def _comparison(rng: Random) -> Draft:
    a, b = rng.sample(NAMES, 2)
    more, less = rng.choice(ORDERINGS)
    gold, word = rng.choice(((a, more), (b, less)))
    return pick(f"{a} is {more} than {b}. Who is {word}: {{options}}?", gold, (a, b), rng)


@template(EASY)
def _either(rng: Random) -> Draft:
    (p, q), thing = rng.sample(BOXES, 2), rng.choice(THINGS)
    gold, out = rng.choice(((p, q), (q, p)))
    return Draft(f"The {thing} is in the {p} or in the {q}. It is not in the {out}. Where is the {thing}?", (gold,))


@template(EASY)
def _same(rng: Random) -> Draft:
    a, b = rng.sample(NAMES, 2)
    color = rng.choice(COLORS)
    return Draft(f"{a} and {b} like the same color. {a} likes {color}. Which color does {b} like?", (color,))


@template(EASY)
def _same_word(rng: Random) -> Draft:
    a, b = rng.sample(NAMES, 2)
    word = rng.choice(("taller", "older", "faster", "richer", "stronger"))
    premise = rng.choice((f"{a} is {word} than {b}.", f"Compared with {b}, {a} is {word}."))
    return pick(f"{premise} Who is {word}: {{options}}?", a, (a, b), rng)


@template(EASY)
def _all_of_them(rng: Random) -> Draft:
    people = rng.sample(NAMES, 3)
    room = rng.choice(ROOMS)
    return Draft(
        f"{people[0]}, {people[1]} and {people[2]} are all in the {room}. Where is {rng.choice(people)}?", (room,)
    )


@template(MEDIUM)
def _chain(rng: Random) -> Draft:
    a, b = rng.sample(NONSENSE, 2)
    color, name = rng.choice(COLORS), rng.choice(NAMES)
    return Draft(f"Every {a} is a {b}. Every {b} is {color}. {name} is a {a}. What color is {name}?", (color,))


@template(MEDIUM)
def _two_rules(rng: Random) -> Draft:
    (a, b), (p, q), name = rng.sample(NONSENSE, 2), rng.sample(COLORS, 2), rng.choice(NAMES)
    asked = rng.randrange(2)
    return Draft(
        f"Every {a} is {p}. Every {b} is {q}. {name} is a {(a, b)[asked]}. What color is {name}?", ((p, q)[asked],)
    )


@template(MEDIUM)
def _three_owners(rng: Random) -> Draft:
    people, pets = rng.sample(NAMES, 3), rng.sample(PETS, 3)
    asked = rng.randrange(3)
    facts = " ".join(f"{n} has a {p}." for n, p in zip(people, pets, strict=True))
    return Draft(f"{facts} Who has the {pets[asked]}?", (people[asked],))


@template(EASY)
def _moved(rng: Random) -> Draft:
    name, (p, q, r) = rng.choice(NAMES), rng.sample(ROOMS, 3)
    return Draft(
        f"{name} was in the {p}. Then {name} went to the {q}. Then {name} went to the {r}. Where is {name} now?", (r,)
    )


@template(MEDIUM)
def _two_people_move(rng: Random) -> Draft:
    (a, b), (p, q, r) = rng.sample(NAMES, 2), rng.sample(ROOMS, 3)
    person, room = rng.choice(((a, r), (b, q)))
    return Draft(f"{a} was in the {p}. {b} went to the {q}. {a} went to the {r}. Where is {person} now?", (room,))


@template(MEDIUM)
def _transitive(rng: Random) -> Draft:
    a, b, c = rng.sample(NAMES, 3)
    more, less = rng.choice(ORDERINGS)
    premises = [f"{a} is {more} than {b}.", f"{b} is {more} than {c}."]
    rng.shuffle(premises)
    gold, word = rng.choice(((a, more), (c, less)))
    return pick(f"{' '.join(premises)} Who is the {word[:-1]}st: {{options}}?", gold, (a, b, c), rng)


@template(MEDIUM)
def _three_places(rng: Random) -> Draft:
    places, thing = rng.sample(BOXES, 3), rng.choice(THINGS)
    gold = rng.choice(places)
    out = [place for place in places if place != gold]
    listed = f"the {places[0]}, the {places[1]} or the {places[2]}"
    return Draft(
        f"The {thing} is in {listed}. It is not in the {out[0]}. It is not in the {out[1]}. Where is the {thing}?",
        (gold,),
    )


@template(MEDIUM)
def _neighbours(rng: Random) -> Draft:
    people = rng.sample(NAMES, 3)
    gold = rng.choice((people[0], people[2]))
    side = "first" if gold == people[0] else "last"
    return pick(
        f"{people[1]} stands behind {people[0]} and in front of {people[2]}. Who is {side} in the line: {{options}}?",
        gold,
        people,
        rng,
    )


@template(MEDIUM)
def _swap(rng: Random) -> Draft:
    (a, b), (p, q) = rng.sample(NAMES, 2), rng.sample(PETS, 2)
    asked = rng.randrange(2)
    return Draft(f"{a} has a {p}. {b} has a {q}. They swap. What does {(a, b)[asked]} have now?", ((q, p)[asked],))


@template(MEDIUM)
def _opposite_day(rng: Random) -> Draft:
    a, b = rng.sample(NAMES, 2)
    color, other = rng.sample(COLORS, 2)
    gold = rng.choice((a, b))
    out = b if gold == a else a
    return Draft(
        f"One of {a} and {b} wears a {color} hat, the other a {other} one. {out} does not wear the {color} "
        f"one. Who wears the {color} hat?",
        (gold,),
    )


@template(MEDIUM)
def _syllogism(rng: Random) -> Draft:
    a, b, c = rng.sample(NONSENSE, 3)
    first, second, gold = rng.choice(
        (
            (f"All {a}s are {b}s.", f"All {b}s are {c}s.", "yes"),
            (f"All {a}s are {b}s.", f"No {b}s are {c}s.", "no"),
        )
    )
    return Draft(f"{first} {second} Are all {a}s {c}s? Answer yes or no.", (gold,), "choice", ("yes", "no"))


TEMPLATES += [
    number(
        "count-by-rule",
        MEDIUM,
        lambda a, s: f"Which number comes next? {a}, {a + s}, {a + 2 * s}, {a + 3 * s},",
        lambda a, s: a + 4 * s,
        a=range(1, 20),
        s=(3, 4, 6, 7),
    ),
    *deduction.TEMPLATES,
]
