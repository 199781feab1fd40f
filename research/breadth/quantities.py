"""Families about units, money, time, shapes and short stories with numbers."""

from datetime import date, timedelta
from fractions import Fraction
from random import Random

from research.breadth.numbers import number
from research.metacog_eval.templates import GOODS, NAMES, Draft, pick

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January February March April May June July August September October November December".split()
)  # fmt: skip
UNITS = (
    (
        ("hours", "minutes", 60),
        ("days", "hours", 24),
        ("weeks", "days", 7),
        ("meters", "centimeters", 100),
        ("kilograms", "grams", 1000),
        ("years", "months", 12),
        ("minutes", "seconds", 60),
    ),
    (
        ("kilometers", "meters", 1000),
        ("liters", "milliliters", 1000),
        ("centimeters", "millimeters", 10),
        ("feet", "inches", 12),
        ("yards", "feet", 3),
        ("tonnes", "kilograms", 1000),
        ("centuries", "years", 100),
    ),
    (
        ("pounds", "ounces", 16),
        ("hours", "seconds", 3600),
        ("gallons", "pints", 8),
        ("square meters", "square centimeters", 10000),
        ("days", "minutes", 1440),
        ("bytes", "bits", 8),
        ("kilometers", "centimeters", 100000),
    ),
)
"""For each level: large unit, small unit, how many small ones make a large one."""
SCALES = {
    "heavier lighter": "a feather,a coin,an egg,a brick,a bicycle,a piano,a car,an elephant,a full truck,a cargo ship",
    "larger smaller": "a grain of salt,a pea,a plum,a football,a chair,a car,a house,a stadium,a mountain,the Moon",
    "faster slower": "a snail,a crawling baby,a jogger,a galloping horse,a train,an airliner,a bullet,a ray of light",
    "hotter colder": "liquid nitrogen,ice,a cool drink,a warm bath,boiling water,a pizza oven,molten iron,the Sun",
    "longer shorter": "an ant,a pencil,a guitar,a canoe,a bus,a football field,a marathon,the Nile",
}
"""Two words, then things from the least to the most of the first."""


def unit_conversion(rng: Random, level: int) -> Draft:
    large, small, factor = rng.choice(UNITS[level])
    count = rng.randint(2, (10, 20, 30)[level])
    if rng.random() < 0.65:
        return number(f"Convert {count} {large} to {small}. How many {small} is that?", count * factor)
    return number(f"Convert {count * factor} {small} to {large}. How many {large} is that?", count)


def weekdays(rng: Random, level: int) -> Draft:
    today, step = rng.randrange(7), rng.randint(*((1, 3), (4, 13), (15, 100))[level])
    back = rng.random() < 0.35
    gold = WEEKDAYS[(today + (-step if back else step)) % 7]
    days = "day" if step == 1 else "days"
    asks = f"Which weekday was it {step} {days} ago?" if back else f"Which weekday will it be in {step} {days}?"
    return Draft(f"Today is {WEEKDAYS[today]}. {asks}", (gold,), "choice", WEEKDAYS)


def months(rng: Random, level: int) -> Draft:
    month, step = rng.randrange(12), rng.randint(*((1, 2), (3, 8), (13, 40))[level])
    if rng.random() < 0.35:
        asks, gold = f"Which month was it {step} months ago?", MONTHS[(month - step) % 12]
    else:
        asks, gold = f"Which month will it be in {step} months?", MONTHS[(month + step) % 12]
    return Draft(f"It is now {MONTHS[month]}. {asks}", (gold,), "choice", tuple(MONTHS))


def days_between(rng: Random, level: int) -> Draft:
    first = date(2023, rng.randint(1, 10 if level < 2 else 9), rng.randint(1, 12))
    last = first + timedelta(days=rng.randint(*((2, 9), (18, 45), (50, 95))[level]))
    asks = f"How many days after {MONTHS[first.month - 1]} {first.day} is {MONTHS[last.month - 1]} {last.day}?"
    return number(f"The year is not a leap year. {asks}", (last - first).days)


def clock_times(rng: Random, level: int) -> Draft:
    step = (60, 15, 1)[level]
    start = rng.randint(6 * 60, 17 * 60) // step * step
    took = rng.randint(*((1, 5), (2, 12), (70, 380))[level]) * step
    end = start + took
    hours, minutes = divmod(took, 60)
    parts = [f"{hours} hour{'s' * (hours > 1)}"] * (hours > 0) + [f"{minutes} minutes"] * (minutes > 0)
    gold = f"{end // 60:02}:{end % 60:02}"
    accepted = (gold, gold.lstrip("0")) if gold.startswith("0") else (gold,)
    what = rng.choice(("A film", "A train ride", "A meeting", "A concert", "A hike"))
    lasts = " and ".join(parts)
    told = f"{what} begins at {start // 60:02}:{start % 60:02} and takes {lasts}."
    return Draft(f"{told} On a 24-hour clock, at what time does it end?", accepted)


def money(rng: Random, level: int) -> Draft:
    price, count = rng.randint(2, 12), rng.randint(2, (4, 8, 11)[level])
    note = rng.choice([value for value in (20, 50, 100, 200) if value > price * count])
    goods = rng.choice(GOODS)
    if level == 0:
        return number(
            f"{goods.capitalize()} cost {price} dollars each. How many dollars do {count} {goods} cost?", price * count
        )
    if level == 1:
        text = f"Somebody buys {count} {goods} at {price} dollars each and pays with {note} dollars."
        return number(f"{text} How many dollars does the buyer get back?", note - price * count)
    other = rng.randint(3, 30)
    off = rng.choice((10, 20, 25, 50))
    cost = Fraction((price * count * 20 + other * 20) * (100 - off), 100)
    text = f"{count * 20} {goods} at {price} dollars each and a bag for {other * 20} dollars are bought"
    return number(f"{text} with {off} percent off. How many dollars are paid in all?", cost)


def word_problems(rng: Random, level: int) -> Draft:
    name, other = rng.sample(NAMES, 2)
    goods = rng.choice(GOODS)
    a, b, c = rng.randint(5, 20), rng.randint(2, 9), rng.randint(2, 6)
    easy = (
        (f"{name} has {a} {goods} and finds {b} more. How many {goods} does {name} have now?", a + b),
        (f"{name} had {a + b} {goods} and lost {b} of them. How many {goods} are left?", a),
    )
    middle = (
        (
            f"{name} fills {a} bags with {c} {goods} each and gives away {b}. How many {goods} does {name} keep?",
            a * c - b,
        ),
        (
            f"{name} has {a} {goods}. {other} has {b} more than {name}. How many {goods} do they have together?",
            2 * a + b,
        ),
        (
            f"{a * c} {goods} are shared evenly by {c} children. Then each child gets {b} more. "
            f"How many {goods} does each child have?",
            a + b,
        ),
    )
    hard = (
        (
            f"{name} earns {a} dollars an hour and works {b} hours a day for {c} days, then spends {a + b} dollars. "
            "How many dollars are left?",
            a * b * c - a - b,
        ),
        (
            f"{other} has {c} times as many {goods} as {name}, and together they have {(c + 1) * a}. "
            f"{other} gives {b} to a friend. How many {goods} does {other} have now?",
            c * a - b,
        ),
        (
            f"A box holds {a} red {goods} and twice as many blue ones. "
            f"{name} takes {c} red and {b} blue ones out. How many {goods} are left in the box?",
            3 * a - b - c,
        ),
    )
    return number(*rng.choice((easy, middle, hard)[level]))


def geometry(rng: Random, level: int) -> Draft:
    a, b, c = rng.randint(3, 15), rng.randint(2, 12), rng.randint(2, 9)
    if level == 0:
        a, b = rng.randint(2, 10), rng.randint(2, 10)
        return number(f"A rectangle is {a} meters long and {b} meters wide. What is its area in square meters?", a * b)
    if level == 1:
        return rng.choice(
            (
                number(f"A rectangle has sides of {a} and {b} meters. What is its perimeter in meters?", 2 * (a + b)),
                number(
                    f"A triangle has a base of {2 * a} and a height of {b} meters. What is its area in square meters?",
                    a * b,
                ),
                number(f"A square has a perimeter of {4 * a} meters. What is its area in square meters?", a * a),
            )
        )
    return rng.choice(
        (
            number(
                f"A box is {a} by {b} by {c} meters. What is its surface in square meters?", 2 * (a * b + b * c + a * c)
            ),
            number(
                f"Two angles of a triangle have {a * 4} and {b * 5} degrees. How many degrees has the third angle?",
                180 - a * 4 - b * 5,
            ),
            number(
                f"A garden of {a + 4} by {b + 4} meters has a path of 1 meter along its inner edge. "
                "How many square meters does the path cover?",
                (a + 4) * (b + 4) - (a + 2) * (b + 2),
            ),
        )
    )


def everyday_scales(rng: Random, level: int) -> Draft:
    words, listed = rng.choice(list(SCALES.items()))
    things = listed.split(",")
    apart = (4, 2, 1)[level]
    low = rng.randrange(len(things) - apart)
    pair = [things[low], things[low + apart if level else rng.randrange(low + apart, len(things))]]
    if level == 2 and low + 2 < len(things):
        pair.append(things[low + 2])
    most = rng.random() < 0.5
    word = words.split()[0 if most else 1]
    word = f"the {word[:-1]}st" if len(pair) > 2 else word
    gold = max(pair, key=things.index) if most else min(pair, key=things.index)
    fact = f"scale/{words.split()[0]}/{'-'.join(sorted(pair))}"
    return pick(f"Which is usually {word}: {{options}}?", gold, pair, rng, fact=fact)


FAMILIES = {
    "unit-conversion": unit_conversion,
    "weekdays": weekdays,
    "months": months,
    "days-between": days_between,
    "clock-times": clock_times,
    "money": money,
    "word-problems": word_problems,
    "geometry": geometry,
    "everyday-scales": everyday_scales,
}
