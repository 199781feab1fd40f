"""Mathematical computation: one step for easy, two digits or two steps for medium, more for hard."""

from collections.abc import Sequence
from fractions import Fraction
from math import comb, factorial, gcd, lcm
from random import Random
from typing import Any

from research.metacog_eval.templates import EASY, GOODS, HARD, MEDIUM, NAMES, Draft, Template, number, pick, templates

DIGIT = range(2, 10)
TEENS = range(11, 20)
TENS = range(20, 100, 10)
TWO = range(21, 99)
THREE = range(112, 989)


def _some(name: str, level: str, text: str, answer: Any, where: Any = None, **slots: Sequence[Any]) -> Template:
    """A word problem: `{who}`, `{other}` and `{goods}` are filled in beside the numbers, and do not matter."""
    people: dict[str, Sequence[Any]] = {
        slot: pool for slot, pool in (("who", NAMES), ("other", NAMES), ("goods", GOODS)) if f"{{{slot}}}" in text
    }

    def numbers_only(rule: Any) -> Any:
        return lambda **values: rule(**{slot: values[slot] for slot in slots})

    return number(name, level, text, numbers_only(answer), where and numbers_only(where), **slots, **people)


TEMPLATES: list[Template] = [
    number("sum", EASY, "What is {a} + {b}?", lambda a, b: a + b, a=DIGIT, b=DIGIT),
    number("difference", EASY, "What is {a} - {b}?", lambda a, b: a - b, lambda a, b: a > b, a=DIGIT, b=DIGIT),
    number("product", EASY, "What is {a} * {b}?", lambda a, b: a * b, a=range(2, 6), b=DIGIT),
    number("times-ten", EASY, "What is {a} times 10?", lambda a: 10 * a, a=range(2, 40)),
    number("double", EASY, "What is {a} + {a}?", lambda a: 2 * a, a=(*range(5, 16), 20, 25, 30, 40, 50, 100)),
    number("half", EASY, "What is half of {a}?", lambda a: a // 2, a=range(4, 42, 2)),
    number("tens-sum", EASY, "What is {a} + {b}?", lambda a, b: a + b, a=TENS, b=TENS),
    number("one-more", EASY, "What number comes right after {a}?", lambda a: a + 1, a=range(10, 99)),
    number("count-on", EASY, lambda a: f"Count on: {a}, {a + 1}, {a + 2}, {a + 3}, ", lambda a: a + 4, a=range(1, 90)),
    number(
        "count-by",
        EASY,
        lambda s: f"Count on: {s}, {2 * s}, {3 * s}, {4 * s}, ",
        lambda s: 5 * s,
        s=(2, 3, 4, 5, 10, 20, 50, 100),
    ),
    number("minus-one", EASY, "What is {a} - 1?", lambda a: a - 1, a=range(5, 60)),
    number("tenth", EASY, "What is {a} divided by 10?", lambda a: a // 10, a=range(20, 300, 10)),
    number("square", EASY, "What is the square of {a}?", lambda a: a * a, a=range(2, 11)),
    _some(
        "gets-more",
        EASY,
        "{who} has {a} {goods} and gets {b} more. How many {goods} does {who} have now?",
        lambda a, b: a + b,
        a=DIGIT,
        b=DIGIT,
    ),
    number("sum", MEDIUM, "What is {a} + {b}?", lambda a, b: a + b, a=TWO, b=TEENS),
    number("difference", MEDIUM, "What is {a} - {b}?", lambda a, b: a - b, a=TWO, b=TEENS),
    number("product", MEDIUM, "What is {a} * {b}?", lambda a, b: a * b, a=range(6, 10), b=range(6, 13)),
    number("quotient", MEDIUM, lambda a, b: f"What is {a * b} divided by {a}?", lambda a, b: b, a=DIGIT, b=DIGIT),
    number("three-terms", MEDIUM, "What is {a} + {b} + {c}?", lambda a, b, c: a + b + c, a=DIGIT, b=DIGIT, c=DIGIT),
    number("percent", MEDIUM, "What is {p}% of {a}?", lambda p, a: p * a // 100, p=(10, 50), a=range(20, 400, 20)),
    number("missing-term", MEDIUM, lambda a, b: f"{a} + x = {a + b}. What is x?", lambda a, b: b, a=DIGIT, b=DIGIT),
    number(
        "average-of-two",
        MEDIUM,
        "What is the average of {a} and {b}?",
        lambda a, b: (a + b) // 2,
        lambda a, b: a < b and (a + b) % 2 == 0,
        a=range(2, 20),
        b=range(2, 30),
    ),
    number(
        "perimeter-of-square",
        MEDIUM,
        "A square has a side of {a} cm. What is its perimeter in cm?",
        lambda a: 4 * a,
        a=range(2, 16),
    ),
    number(
        "area",
        MEDIUM,
        "A rectangle is {a} cm wide and {b} cm long. What is its area in square cm?",
        lambda a, b: a * b,
        lambda a, b: a < b,
        a=DIGIT,
        b=DIGIT,
    ),
    _some(
        "gives-away",
        MEDIUM,
        "{who} has {a} {goods} and gives {b} to {other}. How many {goods} does {who} have left?",
        lambda a, b: a - b,
        lambda a, b: a > b,
        a=range(5, 20),
        b=DIGIT,
    ),
    _some(
        "bags",
        MEDIUM,
        "{who} has {a} bags with {b} {goods} in each. How many {goods} are there?",
        lambda a, b: a * b,
        a=range(2, 7),
        b=DIGIT,
    ),
    number(
        "hundreds",
        MEDIUM,
        "What is {a} - {b}?",
        lambda a, b: a - b,
        lambda a, b: a > b,
        a=range(200, 1000, 100),
        b=range(100, 900, 100),
    ),
    number("sum", HARD, "What is {a} + {b}?", lambda a, b: a + b, a=THREE, b=THREE),
    number("product", HARD, "What is {a} * {b}?", lambda a, b: a * b, a=TEENS, b=TWO),
    number("precedence", HARD, "What is {a} + {b} * {c}?", lambda a, b, c: a + b * c, a=DIGIT, b=DIGIT, c=DIGIT),
    number(
        "percent", HARD, "What is {p}% of {a}?", lambda p, a: p * a // 100, p=(15, 35, 45, 65, 85), a=range(40, 400, 20)
    ),
    number(
        "linear",
        HARD,
        lambda a, x, b: f"{a}x + {b} = {a * x + b}. What is x?",
        lambda a, x, b: x,
        a=DIGIT,
        x=DIGIT,
        b=DIGIT,
    ),
    number(
        "remainder",
        HARD,
        "What is the remainder when {a} is divided by {b}?",
        lambda a, b: a % b,
        a=TWO,
        b=range(3, 10),
    ),
    number("power", HARD, "What is {a} to the power of {b}?", lambda a, b: a**b, a=range(2, 7), b=range(3, 7)),
    number(
        "gcd",
        HARD,
        "What is the greatest common divisor of {a} and {b}?",
        lambda a, b: gcd(a, b),
        lambda a, b: a < b and gcd(a, b) > 1,
        a=range(12, 60),
        b=range(12, 99),
    ),
    number(
        "lcm",
        HARD,
        "What is the least common multiple of {a} and {b}?",
        lambda a, b: lcm(a, b),
        lambda a, b: a < b and gcd(a, b) > 1,
        a=range(4, 16),
        b=range(4, 21),
    ),
    number(
        "mean-of-four",
        HARD,
        "What is the mean of {a}, {b}, {c} and {d}?",
        lambda a, b, c, d: (a + b + c + d) // 4,
        lambda a, b, c, d: (a + b + c + d) % 4 == 0,
        a=TWO,
        b=TWO,
        c=TWO,
        d=TWO,
    ),
    number(
        "decimals",
        HARD,
        lambda a, b: f"What is {a / 10} * {b / 10}?",
        lambda a, b: Fraction(a * b, 100),
        a=TEENS,
        b=TEENS,
    ),
    number(
        "combinations",
        HARD,
        "In how many ways can {k} people be chosen from {n}?",
        lambda n, k: comb(n, k),
        n=range(5, 10),
        k=range(2, 5),
    ),
    number(
        "triangular",
        HARD,
        "What is the sum of all whole numbers from 1 to {n}?",
        lambda n: n * (n + 1) // 2,
        n=range(8, 41),
    ),
    number(
        "factorial",
        HARD,
        "What is {n} factorial divided by {m} factorial?",
        lambda n, m: factorial(n) // factorial(m),
        lambda n, m: n > m,
        n=range(5, 9),
        m=range(3, 7),
    ),
    _some(
        "shop",
        HARD,
        "{who} buys {a} {goods} at {b} dollars each and pays with {c} dollars. How many dollars are given back?",
        lambda a, b, c: c - a * b,
        lambda a, b, c: c > a * b,
        a=DIGIT,
        b=DIGIT,
        c=(20, 50, 100),
    ),
    _some(
        "speed",
        HARD,
        "A train runs {a} km in {b} hours. How many km does it run in {c} hours?",
        lambda a, b, c: a * c // b,
        lambda a, b, c: a % b == 0 and c != b,
        a=range(60, 400, 20),
        b=range(2, 6),
        c=range(2, 8),
    ),
]

template = templates(TEMPLATES)


@template(EASY)
def _largest(rng: Random) -> Draft:
    few = rng.sample(range(2, 100), 3)
    return pick("Which number is the largest: {options}?", str(max(few)), [str(n) for n in few], rng)


@template(MEDIUM)
def _smallest(rng: Random) -> Draft:
    few = rng.sample(range(100, 1000), 4)
    return pick("Which number is the smallest: {options}?", str(min(few)), [str(n) for n in few], rng)


@template(HARD)
def _prime(rng: Random) -> Draft:
    primes = [n for n in range(30, 130) if all(n % d for d in range(2, 12))]
    odd = [n for n in range(31, 130, 2) if n not in primes and n % 5]
    prime = rng.choice(primes)
    return pick("Which number is prime: {options}?", str(prime), [str(n) for n in (prime, *rng.sample(odd, 3))], rng)
