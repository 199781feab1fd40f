"""Logical reasoning, hard: several steps, elimination, orderings, liars, and what does not follow."""

from itertools import pairwise
from random import Random

from research.metacog_eval.pools import COLORS, NONSENSE, ORDERINGS, PETS
from research.metacog_eval.templates import HARD, NAMES, Draft, Template, number, pick, templates

TEMPLATES: list[Template] = [
    number(
        "growing-steps",
        HARD,
        lambda a, s: f"Which number comes next? {a}, {a + s}, {a + 3 * s}, {a + 6 * s},",
        lambda a, s: a + 10 * s,
        a=range(1, 12),
        s=(1, 2, 3, 4),
    ),
]
template = templates(TEMPLATES)


@template(HARD)
def _modus_tollens(rng: Random) -> Draft:
    a, b, name = *rng.sample(NONSENSE, 2), rng.choice(NAMES)
    premise, gold = rng.choice(
        (
            (f"{name} is not a {b}. Is {name} a {a}?", "no"),
            (f"{name} is a {b}. Is {name} a {a}?", "unknown"),
            (f"{name} is a {a}. Is {name} a {b}?", "yes"),
        )
    )
    return Draft(
        f"Every {a} is a {b}. {premise} Answer yes, no or unknown.", (gold,), "choice", ("yes", "no", "unknown")
    )


@template(HARD)
def _four_in_order(rng: Random) -> Draft:
    people = rng.sample(NAMES, 4)
    more, _less = rng.choice(ORDERINGS)
    premises = [f"{a} is {more} than {b}." for a, b in pairwise(people)]
    rng.shuffle(premises)
    place = rng.randrange(1, 3)
    return pick(
        f"{' '.join(premises)} Who is the {('', 'second', 'third')[place]} {more[:-1]}st: {{options}}?",
        people[place],
        people,
        rng,
    )


@template(HARD)
def _knights(rng: Random) -> Draft:
    a, b = rng.sample(NAMES, 2)
    truth_a, truth_b = rng.choice(((True, False), (False, True), (False, False)))
    if truth_a or truth_b:
        says, gold = f'{a} says: "{b} is a liar." {b} says: "2 + 2 is {4 if truth_b else 5}."', a if truth_a else b
    else:
        says, gold = f'{a} says: "{b} tells the truth." {b} says: "2 + 2 is 5."', "neither"
    return pick(
        f"Each person always lies or always tells the truth. {says} Who tells the truth: {{options}}?",
        gold,
        (a, b, "neither"),
        rng,
    )


@template(HARD)
def _seats(rng: Random) -> Draft:
    a, b, c = rng.sample(NAMES, 3)
    gold = rng.choice((a, b, c))
    ends = [n for n in (a, b, c) if n != gold]
    rng.shuffle(ends)
    return pick(
        f"Three people sit in a row. {ends[0]} sits at the left end. {ends[1]} does not sit next to {ends[0]}. "
        f"Who sits in the middle: {{options}}?",
        gold,
        (a, b, c),
        rng,
    )


@template(HARD)
def _contrapositive(rng: Random) -> Draft:
    a, b = rng.sample(
        ("the lamp is on", "the door is open", "the alarm rings", "the engine runs", "the gate is locked"), 2
    )
    not_a, not_b = (
        x.replace(" is ", " is not ")
        if " is " in x
        else x.rsplit(" ", 1)[0] + " does not " + x.rsplit(" ", 1)[1].rstrip("s")
        for x in (a, b)
    )
    claim, gold = rng.choice(
        (
            (f"if {not_b}, then {not_a}", "yes"),
            (f"if {b}, then {a}", "no"),
            (f"if {not_a}, then {not_b}", "no"),
            (f"{not_a} or {b}", "yes"),
        )
    )
    return Draft(f"If {a}, then {b}. Does it follow that {claim}? Answer yes or no.", (gold,), "choice", ("yes", "no"))


@template(HARD)
def _sums_of_clues(rng: Random) -> Draft:
    a, b, c = rng.sample(NAMES, 3)
    ages = [rng.randrange(4, 15), rng.randrange(2, 6), rng.randrange(2, 6)]
    return Draft(
        f"{a} is {ages[0]} years old. {b} is {ages[1]} years older than {a}. {c} is {ages[2]} years younger "
        f"than {b}. How old is {c}?",
        (str(ages[0] + ages[1] - ages[2]),),
        "number",
    )


@template(HARD)
def _directions(rng: Random) -> Draft:
    compass = ("north", "east", "south", "west")
    at = rng.randrange(4)
    turns = [rng.choice(("left", "right", "around")) for _ in range(3)]
    end = (at + sum({"left": 3, "right": 1, "around": 2}[turn] for turn in turns)) % 4
    name = rng.choice(NAMES)
    return pick(
        f"{name} faces {compass[at]} and turns {turns[0]}, then {turns[1]}, then {turns[2]}. Which way does "
        f"{name} face: {{options}}?",
        compass[end],
        compass,
        rng,
    )


@template(HARD)
def _three_swaps(rng: Random) -> Draft:
    people, pets = rng.sample(NAMES, 3), rng.sample(PETS, 3)
    held = list(pets)
    steps = []
    for i, j in (rng.choice(((0, 1), (1, 2), (0, 2))) for _ in range(3)):
        held[i], held[j] = held[j], held[i]
        steps.append(f"{people[i]} and {people[j]} swap.")
    asked = rng.randrange(3)
    facts = " ".join(f"{n} has a {p}." for n, p in zip(people, pets, strict=True))
    return Draft(f"{facts} {' '.join(steps)} What does {people[asked]} have now?", (held[asked],))


@template(HARD)
def _skipping_letters(rng: Random) -> Draft:
    start = rng.randrange(0, 17)
    letters = [chr(ord("A") + start + 2 * i) for i in range(5)]
    return Draft(f"Which letter comes next? {', '.join(letters[:4])},", (letters[4],))


@template(HARD)
def _backwards_letters(rng: Random) -> Draft:
    start, first = rng.randrange(14, 25), rng.randrange(1, 3)
    places = [start]
    for step in range(first, first + 4):
        places.append(places[-1] - step)
    letters = [chr(ord("A") + place) for place in places]
    return Draft(f"Which letter comes next? {', '.join(letters[:4])},", (letters[4],))


@template(HARD)
def _who_with_what(rng: Random) -> Draft:
    people, colors = rng.sample(NAMES, 3), rng.sample(COLORS, 3)
    i, j, k = rng.sample(range(3), 3)
    return pick(
        f"{people[0]}, {people[1]} and {people[2]} wear a {colors[0]}, a {colors[1]} and a {colors[2]} hat, in "
        "some order. "
        f"{people[i]}'s is not {colors[1]} and not {colors[2]}. {people[j]}'s is not {colors[1]}. Who wears "
        f"the {colors[1]} hat: {{options}}?",
        people[k],
        people,
        rng,
    )


@template(HARD)
def _truth_value(rng: Random) -> Draft:
    p, q, r = (rng.random() < 0.5 for _ in range(3))
    shape, value = rng.choice(
        (
            ("(P and Q) or not R", (p and q) or not r),
            ("P and not (Q or R)", p and not (q or r)),
            ("not P or (Q and R)", not p or (q and r)),
        )
    )
    return Draft(
        f"P is {str(p).lower()}, Q is {str(q).lower()}, R is {str(r).lower()}. Is {shape} true or false?",
        (str(value).lower(),),
        "choice",
        ("true", "false"),
    )
