"""Commonsense inference: everyday things, their order in size or time, and where they end up."""

from random import Random

from research.metacog_eval.facts import accepted, table, where
from research.metacog_eval.templates import EASY, HARD, MEDIUM, NAMES, Draft, Template, pick, templates

OPEN = {
    "opposite": "What is the opposite of {}?",
    "color": "What color is {}?",
    "young": "What is a young {} called?",
    "sound": "What sound does a {} make?",
    "sense": "Which part of the body do you use to {}?",
}
"""Questions without options, by relation of `everyday.csv`."""

LISTED = {
    "tool": "What do you use to {}: {{options}}?",
    "place": "Where do you find {}: {{options}}?",
    "job": "Who {}: {{options}}?",
    "material": "What is {} made of: {{options}}?",
    "taste": "How does {} taste: {{options}}?",
    "kind": "What is {}: {{options}}?",
    "group": "What is a group of {} called: {{options}}?",
    "need": "What do you do when you are {}: {{options}}?",
}
"""Questions with options; the wrong ones are answers of the same relation and level."""

EXTREMES = {
    "animal-size": ("biggest", "smallest"),
    "size": ("largest", "smallest"),
    "speed": ("fastest", "slowest"),
    "weight": ("heaviest", "lightest"),
    "heat": ("hottest", "coldest"),
    "duration": ("longest", "shortest"),
    "price": ("most expensive", "cheapest"),
}
"""What is asked of each ascending row of `sizes.csv`."""

TASTES = ("sweet", "sour", "salty", "bitter", "spicy")


def _open(relation: str, level: str) -> Template:
    rows = where("everyday", relation=relation, level=level)

    def draw(rng: Random) -> Draft:
        row = rng.choice(rows)
        return Draft(OPEN[relation].format(row["thing"]), accepted(row["answer"]))

    return Template(relation, level, draw)


def _listed(relation: str, level: str, options: int) -> Template:
    rows = where("everyday", relation=relation, level=level)
    pool = TASTES if relation == "taste" else tuple(dict.fromkeys(row["answer"] for row in rows))

    def draw(rng: Random) -> Draft:
        row = rng.choice(rows)
        wrong = rng.sample([answer for answer in pool if answer != row["answer"]], options - 1)
        return pick(LISTED[relation].format(row["thing"]), row["answer"], [row["answer"], *wrong], rng)

    return Template(relation, level, draw)


def _extreme(kind: str, level: str, options: int) -> Template:
    things = [row["thing"] for row in where("sizes", kind=kind)]

    def draw(rng: Random) -> Draft:
        places = sorted(rng.sample(range(len(things)), options))
        if level == HARD:
            end, at = ("second " + EXTREMES[kind][0], -2) if rng.random() < 0.5 else ("second " + EXTREMES[kind][1], 1)
        else:
            end, at = (EXTREMES[kind][0], -1) if rng.random() < 0.5 else (EXTREMES[kind][1], 0)
        few = [things[place] for place in places]
        return pick(f"Which is the {end}: {{options}}?", few[at], few, rng)

    return Template(kind, level, draw)


def _count(level: str) -> Template:
    rows = where("counts", level=level)

    def draw(rng: Random) -> Draft:
        row = rng.choice(rows)
        return Draft(f"How many {row['has']} does {row['thing']} have?", (row["number"],), "number")

    return Template("count", level, draw)


TEMPLATES: list[Template] = [
    *(_open(relation, EASY) for relation in ("opposite", "color", "young", "sound", "sense")),
    *(_listed(relation, EASY, 3) for relation in ("tool", "place", "job", "material", "taste", "kind", "need")),
    *(_extreme(kind, EASY, 3) for kind in ("animal-size", "size", "weight")),
    _count(EASY),
    *(_open(relation, MEDIUM) for relation in ("opposite", "color", "young", "sound")),
    *(_listed(relation, MEDIUM, 3) for relation in ("tool", "place", "job", "material", "kind", "group", "need")),
    *(_extreme(kind, MEDIUM, 3) for kind in ("speed", "heat", "duration", "price")),
    _count(MEDIUM),
    *(_open(relation, HARD) for relation in ("opposite", "young")),
    *(_listed(relation, HARD, 4) for relation in ("tool", "place", "job", "kind", "group")),
    *(_extreme(kind, HARD, 4) for kind in ("animal-size", "speed", "duration", "price")),
    _count(HARD),
]

template = templates(TEMPLATES)


def _names(kind: str) -> list[str]:
    return [row["name"] for row in table("calendar") if row["kind"] == kind]


@template(EASY)
def _day_after(rng: Random) -> Draft:
    days = _names("day")
    at = rng.randrange(7)
    return Draft(f"Which day comes after {days[at]}?", (days[(at + 1) % 7],))


@template(EASY)
def _month_after(rng: Random) -> Draft:
    months = _names("month")
    at = rng.randrange(12)
    return Draft(f"Which month comes after {months[at]}?", (months[(at + 1) % 12],))


@template(MEDIUM)
def _day_before(rng: Random) -> Draft:
    days = _names("day")
    at = rng.randrange(7)
    return Draft(f"Which day comes before {days[at]}?", (days[at - 1],))


@template(HARD)
def _yesterday(rng: Random) -> Draft:
    days = _names("day")
    at = rng.randrange(7)
    given, asked, shift = rng.choice((("Yesterday was", "tomorrow", 2), ("Tomorrow is", "yesterday", -2)))
    verb = "is it" if asked == "tomorrow" else "was it"
    return Draft(f"{given} {days[at]}. Which day {verb} {asked}?", (days[(at + shift) % 7],))


@template(MEDIUM)
def _carried_along(rng: Random) -> Draft:
    name = rng.choice(NAMES)
    thing, box = rng.choice(("ball", "pen", "cup", "ring", "toy")), rng.choice(("bag", "box", "basket"))
    first, then = rng.sample(("kitchen", "garden", "office", "school", "park", "garage"), 2)
    return Draft(
        f"In the {first}, {name} puts a {thing} in a {box} and carries the {box} to the {then}. In which place "
        f"is the {thing} now?",
        (then,),
    )


@template(HARD)
def _false_belief(rng: Random) -> Draft:
    a, b = rng.sample(NAMES, 2)
    thing = rng.choice(("ball", "cake", "toy", "book"))
    first, then = rng.sample(("box", "basket", "cupboard", "drawer", "bag"), 2)
    if rng.random() < 0.5:
        return pick(
            f"{a} puts a {thing} in the {first} and leaves. {b} moves it to the {then} unseen. Where does {a} "
            f"look for it first: {{options}}?",
            f"the {first}",
            (f"the {first}", f"the {then}", "the garden"),
            rng,
        )
    return pick(
        f"{a} puts a {thing} in the {first} and leaves. {b} moves it to the {then} unseen. Where is it really: "
        f"{{options}}?",
        f"the {then}",
        (f"the {first}", f"the {then}", "the garden"),
        rng,
    )


@template(HARD)
def _left_behind(rng: Random) -> Draft:
    name = rng.choice(NAMES)
    rooms = rng.sample(("kitchen", "garden", "office", "bedroom", "garage", "hall"), 3)
    thing, other = rng.sample(("hat", "book", "phone", "cup", "bag"), 2)
    left, room = rng.choice(((thing, rooms[1]), (other, rooms[2])))
    return Draft(
        f"{name} carries a {thing} and a {other} from the {rooms[0]} to the {rooms[1]}, leaves the {left} "
        "there and goes on to "
        f"the {rooms[2]}. In which room is the {thing}?",
        (room,),
    )


@template(MEDIUM)
def _order_of_steps(rng: Random) -> Draft:
    steps = rng.choice(
        (
            ("wake up", "eat breakfast", "go to bed"),
            ("plant a seed", "water it", "pick the fruit"),
            ("buy eggs", "cook them", "eat them"),
            ("put on socks", "put on shoes", "go outside"),
            ("buy a ticket", "board the train", "arrive"),
            ("wash clothes", "dry them", "wear them"),
            ("mix the dough", "bake the cake", "eat the cake"),
            ("open the door", "walk in", "sit down inside"),
        )
    )
    word, at = rng.choice((("first", 0), ("last", 2)))
    return pick(f"Which do you do {word}: {{options}}?", steps[at], steps, rng)


@template(HARD)
def _outcome(rng: Random) -> Draft:
    cause, gold, wrong = rng.choice(
        (
            ("an ice cube lies in the sun", "it melts", ("it grows", "it burns", "it freezes")),
            ("an egg falls on a stone floor", "it breaks", ("it bounces", "it melts", "it floats")),
            ("a wet towel hangs in the wind", "it dries", ("it shrinks to nothing", "it rusts", "it melts")),
            ("an iron nail lies in wet grass for weeks", "it rusts", ("it dissolves", "it grows", "it burns")),
            ("a stone is dropped into a lake", "it sinks", ("it floats", "it dissolves", "it burns")),
            ("a cork is dropped into water", "it floats", ("it sinks", "it melts", "it rusts")),
            ("a plant gets no water for months", "it dies", ("it blooms", "it melts", "it rusts")),
            ("paper touches a flame", "it burns", ("it melts", "it rusts", "it sinks")),
            ("sugar is stirred into hot tea", "it dissolves", ("it floats", "it burns", "it rusts")),
        )
    )
    return pick(f"What happens when {cause}: {{options}}?", gold, (gold, *wrong), rng)
