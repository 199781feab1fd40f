"""Families that give something to read: a passage, a table, a list, a few words of Python."""

from random import Random

from research.breadth.lexicon import GROUPS, RELATED
from research.breadth.numbers import number
from research.metacog_eval.templates import NAMES, Draft, pick, printed

CITIES = "Lisbon Oslo Cairo Lima Seoul Dublin Quito Hanoi Perth Turin Bergen Leeds".split()
JOBS = "baker nurse pilot teacher painter farmer lawyer cook plumber singer tailor dentist".split()
HOBBIES = "chess tennis painting swimming gardening cooking hiking fishing dancing photography".split()
FOODS = "bread cheese rice honey milk butter salt tea sugar flour".split()


def passages(rng: Random, level: int) -> Draft:
    """Two to four people, each with a home, a trade and a pastime, told in changing order."""
    count = level + 2
    people, homes = rng.sample(NAMES, count), rng.sample(CITIES, count)
    trades, likes = rng.sample(JOBS, count), rng.sample(HOBBIES, count)
    told = []
    for n, h, t, k in zip(people, homes, trades, likes, strict=True):
        told.append(
            rng.choice(
                (
                    f"{n} grew up in {h} and became a {t}. After work, {n} enjoys {k}.",
                    f"In {h} lives {n}, who works as a {t} and loves {k}.",
                    f"The {t} of our story is {n}, born in {h}, whose favorite pastime is {k}.",
                )
            )
        )
    one = rng.randrange(count)
    by, asked = rng.sample((("name", people), ("home", homes), ("trade", trades), ("like", likes)), 2)
    known = {
        "name": "the person called {}",
        "home": "the person from {}",
        "trade": "the {}",
        "like": "the person who likes {}",
    }
    who = known[by[0]].format(by[1][one])
    wanted = {
        "name": f"What is the name of {who}?",
        "home": f"Which city does {who} come from?",
        "trade": f"What is the job of {who}?",
        "like": f"What is the favorite pastime of {who}?",
    }
    return Draft(f"{' '.join(told)} {wanted[asked[0]]}", (asked[1][one],), "choice", tuple(sorted(asked[1])))


def tables(rng: Random, level: int) -> Draft:
    rows, columns = (3, 4, 6)[level], (2, 3, 4)[level]
    names = rng.sample(FOODS, rows)
    heads = ("Monday", "Tuesday", "Wednesday", "Thursday")[:columns]
    cells = [[rng.randint(10, 99) for _ in heads] for _ in names]
    lines = ["item | " + " | ".join(heads)] + [
        f"{n} | " + " | ".join(map(str, row)) for n, row in zip(names, cells, strict=True)
    ]
    shown = "\n".join(lines)
    r, c = rng.randrange(rows), rng.randrange(columns)
    if level < 2 or rng.random() < 0.4:
        return number(f"Units sold:\n{shown}\nHow many units of {names[r]} were sold on {heads[c]}?", cells[r][c])
    if rng.random() < 0.5:
        return number(
            f"Units sold:\n{shown}\nHow many units of {names[r]} were sold on all {columns} days together?",
            sum(cells[r]),
        )
    column = [row[c] for row in cells]
    gold = names[column.index(max(column))]
    if column.count(max(column)) > 1:
        return tables(rng, level)
    return Draft(f"Units sold:\n{shown}\nWhich item sold most on {heads[c]}?", (gold,), "choice", tuple(names))


def sorting(rng: Random, level: int) -> Draft:
    count = (3, 5, 7)[level]
    down = level > 0 and rng.random() < 0.4
    values = rng.sample(range(1, (30, 100, 1000)[level]), count)
    gold = ", ".join(map(str, sorted(values, reverse=down)))
    way = "from largest to smallest" if down else "from smallest to largest"
    return Draft(f"The numbers are {', '.join(map(str, values))}. How do they read when sorted {way}?", (gold,))


def extremes(rng: Random, level: int) -> Draft:
    values = rng.sample(range(10, (100, 1000, 1000)[level]), (4, 7, 9)[level])
    ranked = sorted(values)
    word, gold = rng.choice(
        (
            (("smallest", ranked[0]), ("largest", ranked[-1])),
            (("smallest", ranked[0]), ("largest", ranked[-1]), ("second largest", ranked[-2])),
            (("second smallest", ranked[1]), ("second largest", ranked[-2]), ("third largest", ranked[-3])),
        )[level]
    )
    return number(f"The list is {', '.join(map(str, values))}. Which of its numbers is the {word}?", gold)


def unlike(kind: str) -> list[str]:
    """The other kinds of words, without those that one could count for this one."""
    return [other for other in sorted(GROUPS) if other != kind and frozenset((kind, other)) not in RELATED]


def counting_kinds(rng: Random, level: int) -> Draft:
    """How many of the listed words name things of one kind."""
    kind = rng.choice(sorted(GROUPS))
    others = rng.sample(unlike(kind), 2)
    many, beside = rng.randint(1, 3 + 2 * level), rng.randint(1, 3 + level)
    words = rng.sample(GROUPS[kind], many) + rng.sample(GROUPS[others[0]] + GROUPS[others[1]], beside)
    rng.shuffle(words)
    return number(f"Here is a list: {', '.join(words)}. How many of these words name {kind}?", many)


def list_places(rng: Random, level: int) -> Draft:
    kind = rng.choice(sorted(GROUPS))
    words = rng.sample(GROUPS[kind], (4, 6, 8)[level])
    place = rng.randrange(len(words))
    if level == 2 and rng.random() < 0.6:
        place = max(place, 1)
        asks, gold = f"Which word stands directly before {words[place]}?", words[place - 1]
    else:
        asks, gold = f"Which word is number {place + 1} of this list?", words[place]
    return Draft(f"The list is: {', '.join(words)}. {asks}", (gold,), "choice", tuple(words))


def _code(rng: Random, level: int) -> str:
    word = rng.choice([word for words in GROUPS.values() for word in words if word.isalpha() and len(word) > 4])
    a, b, c = rng.randint(2, 15), rng.randint(2, 9), rng.randint(1, 4)
    values = [rng.randint(1, 20) for _ in range(5)]
    return rng.choice(
        (
            (
                f'len("{word}")',
                f"max({values})",
                f"{values}[{c}]",
                f'"{word}".upper()',
                f"sum({values[:3]})",
                f"{a} + {b}",
            ),
            (
                f'len("{word}") * {b}',
                f'"{word}"[{c}]',
                f"{a * b + c} // {b}",
                f"{a * b + c} % {b}",
                f"sorted({values})[{c}]",
                f"sum(range({b}))",
                f"{values}[-{c}]",
            ),
            (
                f'"{word}"[::-1]',
                f"[n * {c + 1} for n in {values[:4]} if n > {a}]",
                f"sum(n for n in {values} if n % 2 == 0)",
                f'"{word}"[1:{c + 2}]',
                f"{a} ** 2 - {b} * {c}",
                f'"{word}".count("{word[c - 1]}") + {b}',
                f"len(set({[value % 4 for value in values]}))",
            ),
        )[level]
    )


def code_output(rng: Random, level: int) -> Draft:
    while True:
        code = _code(rng, level)
        value = str(eval(code))
        if value not in ("", "[]", "a", "A"):  # articles are no words to the scorer
            return printed(f"print({code})", "What does this line of Python print?")


def kinds(rng: Random, level: int) -> Draft:
    """Which option is of a named kind."""
    kind = rng.choice(sorted(GROUPS))
    other = rng.choice(unlike(kind))
    count = (3, 4, 6)[level]
    gold = rng.choice(GROUPS[kind])
    return pick(
        f"Which of these belongs to the {kind}: {{options}}?",
        gold,
        [*rng.sample(GROUPS[other], count - 1), gold],
        rng,
        fact=f"group/{kind}/{gold}",
    )


FAMILIES = {
    "passages": passages,
    "tables": tables,
    "sorting": sorting,
    "extremes": extremes,
    "counting-kinds": counting_kinds,
    "list-places": list_places,
    "code-output": code_output,
    "kinds": kinds,
}
