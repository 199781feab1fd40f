"""Logical reasoning: premises in invented or interchangeable terms, so that nothing but the premises gives the answer."""

from random import Random

from metaprobe.eval.tasks.templates import EASY, HARD, MEDIUM, NAMES, Draft, Template, number, pick, templates

NONSENSE = ("blick", "dax", "fep", "glim", "jorp", "lurn", "mib", "narp", "plov", "tull", "wug", "zib")
COLORS = ("red", "blue", "green", "yellow", "black", "white", "pink", "brown")
PETS = ("cat", "dog", "horse", "rabbit", "bird", "fish", "goat", "duck")
ROOMS = ("kitchen", "garden", "garage", "bedroom", "office", "cellar", "attic")
BOXES = ("drawer", "box", "bag", "cupboard", "basket", "jar")
THINGS = ("key", "ring", "letter", "coin", "phone", "ticket")
ORDERINGS = (("taller", "shorter"), ("older", "younger"), ("faster", "slower"), ("richer", "poorer"))
ODD_ONES = {
    "fruits": ("apple", "banana", "pear", "grape", "orange"),
    "animals": ("cat", "horse", "sheep", "tiger", "rabbit"),
    "furniture": ("chair", "table", "sofa", "bed", "desk"),
    "colors": ("red", "blue", "green", "yellow", "purple"),
    "clothes": ("shirt", "sock", "coat", "hat", "glove"),
    "vehicles": ("car", "bus", "train", "truck", "bicycle"),
    "tools": ("hammer", "saw", "drill", "wrench", "pliers"),
    "body parts": ("hand", "foot", "knee", "elbow", "nose"),
}

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
def _room(rng: Random) -> Draft:
    (a, b), (p, q) = rng.sample(NAMES, 2), rng.sample(ROOMS, 2)
    asked = rng.randrange(2)
    return Draft(f"{a} is in the {p}. {b} is in the {q}. Where is {(a, b)[asked]}?", ((p, q)[asked],))


@template(EASY)
def _modus_ponens(rng: Random) -> Draft:
    name, other = rng.sample(NAMES, 2)
    weather = rng.choice(("rains", "snows", "gets dark", "gets cold"))
    thing = rng.choice(("reads a book", "goes to bed", "makes tea", "plays chess", "calls home", "bakes bread"))
    return pick(
        f"If it {weather}, {name} {thing}. It {weather}. What happens: {{options}}?",
        f"{name} {thing}",
        (f"{name} {thing}", f"{other} {thing}", "nothing"),
        rng,
    )


@template(EASY)
def _letters(rng: Random) -> Draft:
    start = rng.randrange(0, 20)
    letters = [chr(ord("A") + start + i) for i in range(5)]
    return Draft(f"Which letter comes next? {', '.join(letters[:4])},", (letters[4],))


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
    a, b, c = rng.sample(NAMES, 3)
    color = rng.choice(COLORS)
    return Draft(f"{a}'s hat is {color}. {b}'s hat has the same color as {a}'s. What color is {b}'s hat?", (color,))


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


@template(MEDIUM)
def _moved(rng: Random) -> Draft:
    name, (p, q, r) = rng.choice(NAMES), rng.sample(ROOMS, 3)
    return Draft(
        f"{name} was in the {p}. Then {name} went to the {q}. Then {name} went to the {r}. Where is {name} now?", (r,)
    )


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
def _skipping_letters(rng: Random) -> Draft:
    start = rng.randrange(0, 17)
    letters = [chr(ord("A") + start + 2 * i) for i in range(5)]
    return Draft(f"Which letter comes next? {', '.join(letters[:4])},", (letters[4],))


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
        f"One of {a} and {b} wears a {color} hat, the other a {other} one. {out} does not wear the {color} one. Who wears the {color} hat?",
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
    premises = [f"{a} is {more} than {b}." for a, b in zip(people, people[1:], strict=False)]
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
        f"Three people sit in a row. {ends[0]} sits at the left end. {ends[1]} does not sit next to {ends[0]}. Who sits in the middle: {{options}}?",
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
        f"{a} is {ages[0]} years old. {b} is {ages[1]} years older than {a}. {c} is {ages[2]} years younger than {b}. How old is {c}?",
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
        f"{name} faces {compass[at]} and turns {turns[0]}, then {turns[1]}, then {turns[2]}. Which way does {name} face: {{options}}?",
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
        f"{people[0]}, {people[1]} and {people[2]} wear a {colors[0]}, a {colors[1]} and a {colors[2]} hat, in some order. "
        f"{people[i]}'s is not {colors[1]} and not {colors[2]}. {people[j]}'s is not {colors[1]}. Who wears the {colors[1]} hat: {{options}}?",
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


TEMPLATES += [
    number(
        "count-by-rule",
        MEDIUM,
        lambda a, s: f"Which number comes next? {a}, {a + s}, {a + 2 * s}, {a + 3 * s},",
        lambda a, s: a + 4 * s,
        a=range(1, 20),
        s=(3, 4, 6, 7),
    ),
    number(
        "growing-steps",
        HARD,
        lambda a, s: f"Which number comes next? {a}, {a + s}, {a + 3 * s}, {a + 6 * s},",
        lambda a, s: a + 10 * s,
        a=range(1, 12),
        s=(1, 2, 3, 4),
    ),
]
