"""What a question is made from: a `Template` draws `Draft`s, and four constructors cover the common shapes.

Slots are filled at random from pools (`a=range(1, 10)`, `name=NAMES`); the answer comes from a function of the slots,
or from running the code, never from a written-out answer.
"""

from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from fractions import Fraction
from io import StringIO
from random import Random
from string import Template as Text
from typing import Any

from metaprobe.records.types import Check

EASY, MEDIUM, HARD, CROSS = "easy", "medium", "hard", "cross"

NAMES = (
    "Anna",
    "Ben",
    "Carla",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Henry",
    "Ida",
    "Jack",
    "Kate",
    "Leo",
    "Mia",
    "Nick",
)
GOODS = ("apples", "books", "coins", "eggs", "pens", "cards", "balls", "cookies")

_TRIES = 1000


@dataclass(frozen=True, slots=True)
class Draft:
    """A question that has no id and no place in the set yet."""

    question: str
    gold: tuple[str, ...]
    check: Check = "exact"
    choices: tuple[str, ...] = ()
    fact: str = ""
    """What to group by in place of the template, for questions about one fact."""
    solution: str = ""
    """A function that passes, for `check == "function"`."""


@dataclass(frozen=True, slots=True)
class Template:
    """A named source of drafts of one level. Templates of one name at several levels are one group."""

    name: str
    level: str
    draw: Callable[[Random], Draft]


def templates(found: list[Template]) -> Callable[..., Callable[[Callable[[Random], Draft]], Callable[[Random], Draft]]]:
    """A decorator that appends drawing functions to `found`: `@template(EASY)`, the name taken from the function's."""

    def at(level: str) -> Callable[[Callable[[Random], Draft]], Callable[[Random], Draft]]:
        def add(draw: Callable[[Random], Draft]) -> Callable[[Random], Draft]:
            found.append(Template(draw.__name__.strip("_").replace("_", "-"), level, draw))
            return draw

        return add

    return at


def fill(rng: Random, slots: dict[str, Sequence[Any]], where: Callable[..., bool] | None = None) -> dict[str, Any]:
    """A value for each slot, all different within a pool that several slots share, such that `where` holds."""
    for _ in range(_TRIES):
        values = {slot: rng.choice(pool) for slot, pool in slots.items()}
        shared = [values[slot] for slot, pool in slots.items() if pool is NAMES or pool is GOODS]
        if len(set(shared)) == len(shared) and (where is None or where(**values)):
            return values
    raise ValueError(f"no values of the slots {', '.join(slots)} met the condition in {_TRIES} draws: widen the pools")


def number(
    name: str,
    level: str,
    text: str | Callable[..., str],
    answer: Callable[..., Any],
    where: Callable[..., bool] | None = None,
    **slots: Sequence[Any],
) -> Template:
    """A question whose answer is a number: `answer(**slots)`, an int or a Fraction with a finite decimal form."""

    def draw(rng: Random) -> Draft:
        values = fill(rng, slots, where)
        question = text.format(**values) if isinstance(text, str) else text(**values)
        return Draft(question, (plain(answer(**values)),), "number")

    return Template(name, level, draw)


def snippet(
    name: str, level: str, code: str, where: Callable[..., bool] | None = None, **slots: Sequence[Any]
) -> Template:
    """What does this code print? `$slot` is filled in, and the code is run to find out. It must print one line."""

    def draw(rng: Random) -> Draft:
        return printed(Text(code).substitute(fill(rng, slots, where)))

    return Template(name, level, draw)


def function(name: str, level: str, text: str, solution: str, calls: Sequence[str], **slots: Sequence[Any]) -> Template:
    """Write a function; `{slot}` is filled in everywhere. Gold assertions are what `solution` returns for `calls`."""

    def draw(rng: Random) -> Draft:
        values = fill(rng, slots)
        code = solution.format(**values)
        scope: dict[str, Any] = {}
        exec(code, scope)
        gold = [f"assert {call} == {eval(call, scope)!r}" for call in (call.format(**values) for call in calls)]
        return Draft(text.format(**values), tuple(gold), "function", solution=code)

    return Template(name, level, draw)


def pick(question: str, gold: str, choices: Sequence[str], rng: Random, *, fact: str = "") -> Draft:
    """A question with its options listed, in random order, in place of `{options}`."""
    options = list(choices)
    rng.shuffle(options)
    listed = ", ".join(options[:-1]) + f" or {options[-1]}"
    return Draft(question.format(options=listed), (gold,), "choice", tuple(options), fact)


def printed(code: str, lead: str = "What does this Python code print?") -> Draft:
    """A draft whose gold is what the code really prints."""
    out = StringIO()
    with redirect_stdout(out):
        exec(code, {})
    line = out.getvalue().removesuffix("\n")
    assert line, f"a snippet must print something:\n{code}"
    assert "\n" not in line, f"a snippet must print one line, this printed {line!r}:\n{code}"
    return Draft(f"{lead}\n{code}", (line,), "number" if line.lstrip("-").replace(".", "", 1).isdigit() else "exact")


def plain(value: Any) -> str:
    """A number as one would write it: 3, not 3.0; 2.5, not 5/2."""
    exact = Fraction(value)
    return str(exact.numerator) if exact.denominator == 1 else repr(float(exact))
