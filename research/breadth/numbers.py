"""Families about numbers. Each function draws one question of level 0, 1 or 2; the answer is computed."""

from collections.abc import Callable
from fractions import Fraction
from random import Random

from research.metacog_eval.templates import Draft, pick, plain

YES_NO = ("yes", "no")
_ROMAN = (
    (1000, "M"),
    (900, "CM"),
    (500, "D"),
    (400, "CD"),
    (100, "C"),
    (90, "XC"),
    (50, "L"),
    (40, "XL"),
    (10, "X"),
    (9, "IX"),
    (5, "V"),
    (4, "IV"),
    (1, "I"),
)
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()


def number(question: str, value: object) -> Draft:
    """A draft whose answer is this number."""
    return Draft(question, (plain(value),), "number")


def yes_no(question: str, answer: bool, *, fact: str = "") -> Draft:
    """A draft that is answered with yes or no."""
    return Draft(f"{question} Answer yes or no.", (YES_NO[not answer],), "choice", YES_NO, fact)


def addition(rng: Random, level: int) -> Draft:
    if level == 0:
        terms = [rng.randint(2, 30), rng.randint(2, 9)]
    elif level == 1:
        terms = [rng.randint(120, 989), rng.randint(120, 989)]
    else:
        terms = [rng.randint(1200, 98000) for _ in range(3)]
    listed = ", ".join(map(str, terms[:-1])) + f" and {terms[-1]}"
    return number(f"Add {listed}. What is the sum?", sum(terms))


def multiplication(rng: Random, level: int) -> Draft:
    ranges = (((2, 10), (2, 12)), ((13, 99), (3, 9)), ((13, 999), (12, 99)))
    a, b = (rng.randint(*span) for span in ranges[level])
    return number(f"Multiply {a} by {b}. What is the product?", a * b)


def mixed_arithmetic(rng: Random, level: int) -> Draft:
    a, b, c, d = (rng.randint(2, 20) for _ in range(4))
    if level == 0:
        text = f"{a} + {b} - {min(a, c)}"
    elif level == 1:
        text = rng.choice((f"{a} + {b % 9 + 2} * {c % 9 + 2}", f"{b % 9 + 2} * {c % 9 + 2} - {a}"))
    else:
        text = rng.choice((f"({a} + {b}) * {c} - {d}", f"{a} * ({b} + {c}) + {d} * 3", f"{a} * {b} - {c} * {d}"))
    return number(f"Work out {text}. What is the result?", eval(text))


def number_series(rng: Random, level: int) -> Draft:
    start, step, other = rng.randint(1, 40), rng.randint(2, 12), rng.randint(1, 9)
    if level == 0:
        shown = [start + (1, 2, 3, 5, 10)[step % 5] * i for i in range(5)]
    elif level == 1:
        kinds: tuple[Callable[[int], int], ...] = (
            lambda i: start + 60 - step * i,
            lambda i: (start % 6 + 1) * 2**i,
            lambda i: (start % 4 + 1) * 3**i,
            lambda i: start * 10 + (step + 9) * i,
        )
        shown = list(map(rng.choice(kinds), range(5)))
    else:
        shown = _hard_series(rng, start, step, other)
    return number(f"Look at this series: {', '.join(map(str, shown[:-1]))}. Which number comes next?", shown[-1])


def _hard_series(rng: Random, start: int, step: int, other: int) -> list[int]:
    """Six numbers: squares, sums of the two before, growing steps, or two steps in turn."""
    kind = rng.randrange(4)
    if kind == 0:
        return [(start % 7 + i) ** 2 + other for i in range(6)]
    if kind == 1:
        found = [start % 9 + 1, start % 9 + 1 + other]
        while len(found) < 6:
            found.append(found[-1] + found[-2])
        return found
    if kind == 2:
        return [start + step * i + i * (i - 1) // 2 * other for i in range(6)]
    return [start + (step + other) * (i // 2) + step * (i % 2) for i in range(6)]


def percentages(rng: Random, level: int) -> Draft:
    if level == 0:
        percent, whole = rng.choice((10, 20, 50)), rng.randint(1, 40) * 10
    elif level == 1:
        percent, whole = rng.choice((5, 15, 30, 40, 60, 75, 80)), rng.randint(2, 45) * 20
    else:
        percent, whole = rng.choice((8, 12, 18, 35, 45, 62, 85)), rng.randint(3, 90) * 25
    if level == 2 and rng.random() < 0.5:
        after = Fraction(whole * (100 + percent), 100)
        return number(
            f"A price of {whole} dollars rises by {percent} percent. How many dollars is the new price?", after
        )
    return number(f"What is {percent} percent of {whole}?", Fraction(whole * percent, 100))


def roman(value: int) -> str:
    """The number from 1 to 3999 in Roman numerals."""
    text = ""
    for size, sign in _ROMAN:
        text += sign * (value // size)
        value %= size
    return text


def roman_numerals(rng: Random, level: int) -> Draft:
    value = rng.randint(*((2, 30), (31, 199), (200, 2999))[level])
    fact = f"roman/{value}"
    if rng.random() < 0.5:
        return Draft(f"Which number is the Roman numeral {roman(value)}?", (str(value),), "number", (), fact)
    return Draft(f"How is {value} written in Roman numerals?", (roman(value),), "exact", (), fact)


def binary_numbers(rng: Random, level: int) -> Draft:
    value = rng.randint(*((2, 15), (16, 63), (64, 511))[level])
    fact = f"binary/{value}"
    if rng.random() < 0.6:
        return Draft(f"The binary number {value:b} is given. What is it in decimal?", (str(value),), "number", (), fact)
    return Draft(f"The decimal number {value} is given. What is it in binary?", (f"{value:b}",), "number", (), fact)


def in_words(value: int) -> str:
    """A number from 0 to 999,999 in English words."""
    if value < 20:
        return _ONES[value]
    if value < 100:
        return _TENS[value // 10] + (f"-{_ONES[value % 10]}" if value % 10 else "")
    size, name = (1000, "thousand") if value >= 1000 else (100, "hundred")
    rest = value % size
    joint = " and " if rest < 100 else " "
    return f"{in_words(value // size)} {name}" + (f"{joint}{in_words(rest)}" if rest else "")


def number_words(rng: Random, level: int) -> Draft:
    value = rng.randint(*((13, 199), (1000, 9999), (10000, 999999))[level])
    if level and rng.random() < 0.5:  # with zeros inside, which are easily lost
        value -= value // 100 % 10 * 100
    return number(f'How do you write the number "{in_words(value)}" in digits?', value)


def divisibility(rng: Random, level: int) -> Draft:
    holds = rng.random() < 0.5
    if level == 0:
        value = rng.randint(5, 400) * 2 + (not holds)
        return yes_no(f"Is {value} an even number?", holds)
    if level == 1:
        by = rng.choice((3, 4, 5, 6, 9))
        value = rng.randint(5, 60) * by + (0 if holds else rng.randint(1, by - 1))
        return yes_no(f"Can {value} be divided by {by} without a remainder?", holds)
    while True:
        value = rng.randint(11, 399) | 1
        if is_prime(value) == holds:
            return yes_no(f"Is {value} a prime number?", holds)


def is_prime(value: int) -> bool:
    """Whether a whole number of 2 or more has no divisor but 1 and itself."""
    return all(value % by for by in range(2, int(value**0.5) + 1))


def compare_numbers(rng: Random, level: int) -> Draft:
    while True:
        if level == 0:
            texts = [str(rng.randint(1, 999)) for _ in range(2)]
        elif level == 1:
            whole = rng.randint(0, 12)
            texts = [f"{whole}.{rng.randint(1, 99)}", f"{whole}.{rng.randint(100, 999)}"]
        else:
            texts = [f"{rng.randint(1, 12)}/{rng.randint(3, 17)}" for _ in range(2)]
        if len({Fraction(text) for text in texts}) == 2:
            break
    word, chosen = rng.choice((("larger", max), ("smaller", min)))
    return pick(f"Which number is {word}: {{options}}?", chosen(texts, key=Fraction), texts, rng)


def rounding(rng: Random, level: int) -> Draft:
    unit, name = ((10, "ten"), (100, "hundred"), (1000, "thousand"))[rng.randrange(level + 1)]
    value = rng.randint(2, (9, 400, 9000)[level]) * unit + rng.choice([r for r in range(1, unit) if r != unit // 2])
    nearest = (value + unit // 2) // unit * unit
    return number(f"What is {value} rounded to the nearest {name}?", nearest)


def remainders(rng: Random, level: int) -> Draft:
    by = rng.randint(*((2, 4), (4, 10), (11, 40))[level])
    value = rng.randint(*((5, 20), (30, 120), (150, 990))[level])
    return number(f"When {value} is divided by {by}, what is the remainder?", value % by)


FAMILIES = {
    "addition": addition,
    "multiplication": multiplication,
    "mixed-arithmetic": mixed_arithmetic,
    "number-series": number_series,
    "percentages": percentages,
    "roman-numerals": roman_numerals,
    "binary-numbers": binary_numbers,
    "number-words": number_words,
    "divisibility": divisibility,
    "compare-numbers": compare_numbers,
    "rounding": rounding,
    "remainders": remainders,
}
