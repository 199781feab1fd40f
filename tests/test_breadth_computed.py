"""Gold answers of the breadth items, against a second computation and what is known."""

import ast
import asyncio
import re
from collections import Counter
from datetime import date
from pathlib import Path

import pytest
from breadth_sample import BY_FAMILY, ITEMS, letters
from scripted import ScriptedLLM

from metaprobe.records.correctness import is_correct
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item
from research.breadth import pack
from research.breadth.asking import DIRECT, ONCE, PROMPTS, WORKED, answer_of, prompts_of
from research.breadth.collect import record
from research.breadth.lexicon import ANTONYMS, GROUPS, NEAR_IN_MEANING, WORDS
from research.breadth.numbers import in_words, is_prime, roman
from research.metacog_eval.facts import table

MONTHS = "January February March April May June July August September October November December".split()


DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


def integers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"\d+", text)]


def sums(item: Item) -> str:
    numbers = integers(item.question)
    return str(sum(numbers))


def products(item: Item) -> str:
    a, b = integers(item.question)
    return str(sum(a for _ in range(b)))


def mixed(item: Item) -> str:
    tree = ast.parse(item.question.removeprefix("Work out ").split(". What")[0], mode="eval")
    return str(_value(tree.body))


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant):
        return int(node.value)  # type: ignore[arg-type]
    assert isinstance(node, ast.BinOp)
    a, b = _value(node.left), _value(node.right)
    return {ast.Add: a + b, ast.Sub: a - b, ast.Mult: a * b}[type(node.op)]


def remaining(item: Item) -> str:
    value, by = integers(item.question)
    while value >= by:
        value -= by
    return str(value)


def rounded(item: Item) -> str:
    (value,) = integers(item.question)
    digits = {"ten": -1, "hundred": -2, "thousand": -3}[item.question.split()[-1].rstrip("?")]
    return str(round(value, digits))


def binary(item: Item) -> str:
    shown = re.findall(r"\d+", item.question)[0]
    return str(int(shown, 2)) if item.question.startswith("The binary") else f"{int(shown):b}"


def weekday(item: Item) -> str:
    (step,) = integers(item.question)
    today = next(day for day in DAYS if f"Today is {day}" in item.question)
    for _ in range(step):
        today = DAYS[DAYS.index(today) - 1] if "ago" in item.question else (DAYS * 2)[DAYS.index(today) + 1]
    return today


def days_after(item: Item) -> str:
    (first, a), (last, b) = re.findall(r"([A-Z][a-z]+) (\d+)", item.question.split("How many")[1])
    return str((date(2025, MONTHS.index(last) + 1, int(b)) - date(2025, MONTHS.index(first) + 1, int(a))).days)


def ended(item: Item) -> str:
    hour, minute = map(int, re.findall(r"(\d\d):(\d\d)", item.question)[0])
    hours, minutes = (re.findall(rf"(\d+) {unit}", item.question) for unit in ("hour", "minutes"))
    minute += 60 * int((hours or [0])[0]) + int((minutes or [0])[0])
    return f"{hour + minute // 60:02}:{minute % 60:02}"


def sorted_numbers(item: Item) -> str:
    numbers = integers(item.question)
    found = [n for n in range(1, 1001) if n in numbers]
    return ", ".join(map(str, found[::-1] if "from largest" in item.question else found))


def extreme(item: Item) -> str:
    numbers = integers(item.question)
    place = next((n for n, word in enumerate(("second", "third"), 1) if f"{word} " in item.question), 0)
    for _ in range(place):
        numbers.remove((max if "largest" in item.question else min)(numbers))
    return str((max if "largest" in item.question else min)(numbers))


def counted(item: Item) -> str:
    listed = item.question.split(": ")[1].split(".")[0].split(", ")
    kind = item.question.split(" name ")[1].rstrip("?")
    return str(sum(word in GROUPS[kind] for word in listed))


def backwards(item: Item) -> str:
    (word,) = re.findall(r'"(\w+)"', item.question)
    return "".join(word[-1 - i] for i in range(len(word)))


def stepped(item: Item) -> str:
    letter = item.question.rstrip("?")[-1]
    step = (integers(item.question) or [1])[0]
    return chr(ord(letter) + (-step if "before" in item.question else step))


def faced(item: Item) -> str:
    compass = ["north", "east", "south", "west"]
    facing = next(way for way in compass if f"faces {way}" in item.question)
    for way in re.findall(r"turns (\w+)", item.question):
        facing = compass[(compass.index(facing) + {"right": 1, "around": 2, "left": 3}[way]) % 4]
    return facing


def stated(item: Item) -> str:
    facts = set(re.findall(r"The (\w+) is (\w+)\.", item.question))
    statement = item.question.split('"')[1]
    parts = re.split(r" and | or ", statement)
    values = []
    for part in parts:
        thing, denied, color = re.fullmatch(r"the (\w+) is (not )?(\w+)", part).groups()  # type: ignore[union-attr]
        values.append(((thing, color) in facts) is not bool(denied))
    return "true" if (any(values) if " or " in statement else min(values)) else "false"


def boolean(item: Item) -> str:
    return str(eval(item.question.split(": ")[1].split("\n")[0])).lower()


def ordered(item: Item) -> str:
    above = set()
    for a, word, b in re.findall(r"(\w+) is (\w+) than (\w+)\.", item.question):
        above.add((a, b) if word in {"taller", "older", "faster", "richer"} else (b, a))
    people = {name for pair in above for name in pair}
    for _ in people:
        above |= {(a, d) for a, b in above for c, d in above if b == c}
    if asked := re.search(r"Is (\w+) \w+ than (\w+)\?", item.question):
        return "yes" if asked.groups() in above else "no"
    most = re.search(r"is the (tall|old|fast|rich)", item.question)
    wins = {name: sum(pair[0] == name for pair in above) for name in people}
    return (max if most else min)(wins, key=wins.__getitem__)


SECOND = {
    "addition": sums,
    "multiplication": products,
    "mixed-arithmetic": mixed,
    "remainders": remaining,
    "rounding": rounded,
    "binary-numbers": binary,
    "weekdays": weekday,
    "days-between": days_after,
    "clock-times": ended,
    "sorting": sorted_numbers,
    "extremes": extreme,
    "counting-kinds": counted,
    "letter-counts": letters,
    "reversals": backwards,
    "alphabet-steps": stepped,
    "turns": faced,
    "propositions": stated,
    "boolean-code": boolean,
    "orderings": ordered,
}


@pytest.mark.parametrize("name", SECOND)
def test_the_gold_answer_is_that_of_a_second_computation(name: str) -> None:
    assert [SECOND[name](item) for item in BY_FAMILY[name]] == [item.gold[0] for item in BY_FAMILY[name]]


def test_a_currency_may_be_given_with_its_country_and_a_word_with_its_article() -> None:
    adjectives = {f"country/{row['iso']}": row["adjective"].split("|")[0] for row in table("countries")}
    for item in BY_FAMILY["currencies-and-tongues"]:
        if "currency" in item.question:
            assert is_correct(item, f"People pay with the {adjectives[item.group]} {item.gold[0]}."), item
            assert is_correct(item, f"People pay with {adjectives[item.group]} {item.gold[0]}s."), item
            assert not is_correct(item, f"the {adjectives[item.group]} doubloons"), item
    for item in BY_FAMILY["translations-into"]:
        if "German" in item.question:
            assert is_correct(item, f"das {item.gold[0]}"), item
            assert not is_correct(item, f"das {item.gold[0]}haus"), item


def test_numerals_words_and_primes_are_as_known() -> None:
    assert [roman(n) for n in (4, 9, 14, 40, 90, 400, 944, 1999, 2026)] == (
        ["IV", "IX", "XIV", "XL", "XC", "CD", "CMXLIV", "MCMXCIX", "MMXXVI"]
    )
    assert in_words(40) == "forty"
    assert in_words(115) == "one hundred and fifteen"
    assert in_words(2309) == "two thousand three hundred and nine"
    assert in_words(80_012) == "eighty thousand and twelve"
    assert [n for n in range(2, 50) if is_prime(n)] == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47]


def test_no_syllogism_says_what_its_premises_do_not_force() -> None:
    """Every form is tried in all small worlds: "must" holds in each world of the premises, "can" in one."""
    for item in BY_FAMILY["syllogisms"]:
        assert item.gold[0] == ("yes" if _follows(item.question) else "no"), item.question


def _follows(question: str) -> bool:
    premises, asked = question.removesuffix(" Answer yes or no.").rsplit(". ", 1)
    terms = sorted(set(re.findall(r"\b(blick|dax|fep|glim|jorp|lurn|mib|narp|plov|tull|wug|zib)", question)))
    color = re.search(r"\b(red|blue|green|yellow|black|white|pink|brown)\b", question)
    terms += [color[0]] if color else []
    kinds = range(2 ** len(terms))
    worlds = ((some, one) for some in range(1, 2 ** len(kinds)) for one in kinds if some >> one & 1)
    claims = [_claim(text, terms) for text in premises.split(". ")]
    answer = _claim(_as_statement(asked), terms)
    told = [answer(some, one) for some, one in worlds if all(claim(some, one) for claim in claims)]
    return all(told) if asked.startswith(("Must", "Is ")) else any(told)


def _as_statement(asked: str) -> str:
    name = r"(?P<n>[A-Z]\w+)"
    forms = (
        (rf"(?:Is|Can|Must) {name} (?:be )?(?:one of the|a) (?P<a>\w+)\?", "{n} is one of the {a}"),
        (r"Must every (?P<a>\w+) be a (?P<b>\w+)\?", "All {a} are {b}"),
        (r"Can any (?P<a>\w+) be a (?P<b>\w+)\?", "Some {a} are {b}"),
        (r"Can a (?P<a>\w+) be one of the (?P<b>\w+)\?", "Some {a} are {b}"),
        (r"Must some (?P<a>\w+) be no (?P<b>\w+)\?", "Some {a} are not {b}"),
        (r"Must some (?P<a>\w+) be (?P<b>\w+)\?", "Some {a} are {b}"),
        (rf"Must it be true that {name} is no (?P<a>\w+)\?", "{n} is not a {a}"),
    )
    return next(text.format(**found.groupdict()) for form, text in forms if (found := re.fullmatch(form, asked)))


def _claim(text: str, terms: list[str]):  # type: ignore[no-untyped-def]
    """A test of worlds: which kinds of things there are (bits of a number), and of which kind the named one is."""

    def is_a(kind: int, word: str) -> bool:
        return bool(kind >> next(n for n, term in enumerate(terms) if word.startswith(term)) & 1)

    forms = (
        (r"All (\w+) are (\w+)", lambda a, b: lambda some, one: all(is_a(k, b) for k in _in(some, a, is_a))),
        (r"Everything (\w+) is a (\w+)", lambda a, b: lambda some, one: all(is_a(k, b) for k in _in(some, a, is_a))),
        (
            r"If something is a (\w+), it is a (\w+)",
            lambda a, b: lambda some, one: all(is_a(k, b) for k in _in(some, a, is_a)),
        ),
        (r"No (\w+) is a (\w+)", lambda a, b: lambda some, one: not any(is_a(k, b) for k in _in(some, a, is_a))),
        (r"Some (\w+) are not (\w+)", lambda a, b: lambda some, one: any(not is_a(k, b) for k in _in(some, a, is_a))),
        (r"Some (\w+) are (\w+)", lambda a, b: lambda some, one: any(is_a(k, b) for k in _in(some, a, is_a))),
        (r"\w+ is one of the (\w+)", lambda a: lambda some, one: is_a(one, a)),
        (r"\w+ is not a? ?(\w+)", lambda a: lambda some, one: not is_a(one, a)),
        (r"\w+ is (\w+)", lambda a: lambda some, one: is_a(one, a)),
    )
    return next(make(*found.groups()) for form, make in forms if (found := re.fullmatch(form, text.rstrip("."))))


def _in(some: int, word: str, is_a) -> list[int]:  # type: ignore[no-untyped-def]
    return [kind for kind in range(8) if some >> kind & 1 and is_a(kind, word)]


def test_wrong_options_of_antonyms_are_not_near_the_right_one() -> None:
    heads = {word: pair[0] for pair in ANTONYMS for word in pair}
    for item in BY_FAMILY["antonyms"]:
        head = item.group.removeprefix("antonym/")
        near = set().union(*(words for words in NEAR_IN_MEANING if head in words))
        assert not {heads[choice] for choice in item.choices if choice not in item.gold} & (near | {head})


def test_no_word_is_of_two_kinds() -> None:
    assert max(Counter(word for words in GROUPS.values() for word in words).values()) == 1
    assert len(set(WORDS)) == len(WORDS)


def test_a_direct_answer_is_its_first_line_and_a_worked_one_what_follows_the_mark() -> None:
    item = BY_FAMILY["addition"][0]
    call = Call(id="c", text="One cat has 4 legs.\nAnswer: 8")
    assert answer_of(item, call, DIRECT) == "One cat has 4 legs."
    assert answer_of(item, call, WORKED) == "8"
    turn = Call(id="c", text="Jack faces south and turns left, then left again. He now faces north.")
    assert answer_of(item, turn, WORKED) == "He now faces north."
    for text in ("```python\n12\n```", "The line prints:\n\n12", "12\nbecause 3 * 4 is 12"):
        assert answer_of(item, Call(id="c", text=text), DIRECT) == "12"


def test_the_prompts_show_no_question_that_is_asked_and_hold_the_slot() -> None:
    for name, text in prompts_of(ONCE).texts.items():
        assert "$question" in text, PROMPTS / name
    assert not any(item.question in text for item in ITEMS for text in prompts_of(ONCE).texts.values())


def test_a_recording_that_is_longer_the_second_time_asks_only_what_is_new(tmp_path: Path) -> None:
    llm = ScriptedLLM({"answer": "yes"})
    for count in (3, 5):
        asyncio.run(record(ONCE, ITEMS[:count], llm, tmp_path / "some-model", 2))
    runs = list(RunStore(tmp_path / "some-model"))
    assert len(llm.asked) == len(runs) == 10
    assert {(run.item.id, run.variant) for run in runs} == {(i.id, v) for i in ITEMS[:5] for v in (DIRECT, WORKED)}
    assert all(run.label("correct", run.calls[0].id) is not None for run in runs)


def test_the_table_counts_what_a_store_holds(tmp_path: Path) -> None:
    items = BY_FAMILY["syllogisms"][:6]
    asyncio.run(record(ONCE, items, ScriptedLLM({"answer": "yes"}), tmp_path / "some-model", 2))
    line = pack.table(list(RunStore(tmp_path / "some-model")))[1].split()
    right = sum(item.gold == ("yes",) for item in items) / 6
    assert line[:4] == ["syllogisms", "direct", "6", f"{right:.2f}"]
