r"""Reads the number that an answer gives: the whole number with its unit, or nothing.

A number is never read from a part of a longer expression: `\\sqrt{17}` is not 17, `5x` is not 5, `3:45` is not 45. Each
numeral is read with the signs beside it. If these signs are unknown, the numeral has no value.
"""

import itertools
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from metaprobe.records.answers.texts import (
    HEDGES,
    NUMBER_WORDS,
    SENTENCE_END,
    has_words,
    plain_form,
    sentences,
    strip_decoration,
    without_accents,
    words,
    words_beside,
)
from metaprobe.records.answers.units import QUESTION_READ, asked_units, unit_at, unit_of, without_asked
from metaprobe.records.spelling import MAX_READ_DIGITS

MOST_READ = 2000
"""Characters at the end of an answer in which numbers are searched. A number with its sentence has some hundred."""
MOST_NUMERALS = 64
"""Most numerals of a text that are read. A sentence that gives an answer has fewer, and a text with more is compared as
text. The limit bounds the time for a text of digits alone.
"""
BEFORE_DIGIT = 8
"""Characters before a digit in which its number may begin with a sign, a currency or a point."""
MOST_END = 400
"""Characters at the end of an answer in which its last number is searched."""
MOST_EXPONENT = 1000
"""Largest exponent that is computed. Numbers with a larger one are compared as text."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A numeral in a text, with the unit and signs that belong to it."""

    value: Fraction | None
    """Value of the numeral; None if the signs beside it make it a root, a time, a range or the like."""
    unit: str
    """Unit of the numeral; empty if it has no known unit."""
    dimension: str
    """The dimension that the unit measures."""
    start: int
    end: int
    text: str
    """Text around the numeral, from blank to blank."""
    numeral: str = ""
    """Digits of the numeral as written."""

    @property
    def key(self) -> tuple[object, str]:
        """Key that is equal for equal quantities."""
        return (self.text if self.value is None else self.value, self.unit)


_GROUPED = "|".join(
    (
        r"(?:\d{1,3}(?:,\d{3})++(?!\d)",
        r"\d{1,2}(?:,\d{2})+,\d{3}(?!\d)",  # 12,34,567 in India
        r"\d{1,3}(?:'\d{3})++(?!\d)",
        r"\d{1,3}(?:\ \d{3})++(?![\d/])",
        r"\d{1,3}(?:\.\d{3})+,\d+",  # 1.234,5
        r"\d{1,3}(?:\.\d{3}){2,}(?!\d)",
        r"\d++)",
    )
)
_NUMERAL = rf"(?:{_GROUPED}(?:\.\d++)?|\.\d++)"
_RAISED = r"\s?(?:\^|\*\*)\s?(?:\{\s?(?P<e1>[+-]?\d+)\s?\}|\((?P<e2>[+-]?\d+)\)|(?P<e3>[+-]?\d+))"
_SIZES = {
    **{"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "bn": 9, "trillion": 12, "quadrillion": 15},
    **{"lakh": 5, "lac": 5, "crore": 7},
    **dict.fromkeys("tausend mille tysiac tysiecy тысяча тысячи тысяч".split(), 3),
    **dict.fromkeys("millionen millones millon milhao milhoes milione milioni miljoen miljoner milyon juta".split(), 6),
    **dict.fromkeys("миллион миллиона миллионов миллиона milion miliony milionow".split(), 6),
    **dict.fromkeys(
        "milliard milliarde milliarden miliardi miliardo miljard milyar miliar миллиард миллиардов".split(), 9
    ),
    **dict.fromkeys("mio mln".split(), 6),
    **dict.fromkeys("mrd mld".split(), 9),
}
"""Maps a word without accents to its power of ten, in the languages that answers use.

An unknown word, such as "mil", is read as a unit, so that it is not dropped.
"""
_SCALE = "|".join(sorted((*_SIZES, "dozen"), key=len, reverse=True))
_MYRIADS = {"百": 10**2, "千": 10**3, "万": 10**4, "萬": 10**4, "億": 10**8, "亿": 10**8, "兆": 10**12}
_PART = "half|halves|third|thirds|quarter|quarters|fourth|fourths|fifth|fifths|sixths|eighth|eighths|tenth|tenths"
_SMALL = "sevenths|ninths|hundredths?|thousandths?|millionths?|billionths?|trillionths?"
_CURRENCY = r"(?:(?<![^\W_])(?:US\$\s?|(?:USD|EUR|GBP|JPY|CHF|CAD|AUD|INR|CNY|RMB|Rs\.?)\s?)|[$€£¥₹₩₽₺₱₪฿₫₦]\s?)"
_SIGN = r"(?<![\w)\]}.])-|(?<![\w)\]}.])\+(?!/)|(?<=[=(])\s*-\s|(?<=\w\ )-(?=[\d.$£€¥₹₩₽₺₱₪฿₫₦])"
_QUANTITY = re.compile(
    rf"""(?P<sign>{_SIGN})?(?P<currency>{_CURRENCY})?(?P<inner>-)?
    (?P<numeral>{_NUMERAL})
    (?:[eE](?P<e>[+-]?\d+)(?!\w)
      |{_RAISED}
      |\s?(?:[×·*]|x|X)\s?10{_RAISED.replace("e1", "t1").replace("e2", "t2").replace("e3", "t3")}
      |\s?/\s?(?P<bottom>{_NUMERAL})
      |\ (?P<top>\d{{1,4}})\s?/\s?(?P<under>\d{{1,4}})(?![\d.,]*\d)
      |\ and\ (?:an?|1)\ (?P<rest>half|third|quarter|fourth|fifth)(?!\w)
    )?
    (?:[\ -](?P<part>{_PART}|{_SMALL})(?!\w))?
    (?:[\ -](?P<scale>(?:{_SCALE})s?(?:\ (?:{_SCALE})s?)?)\.?(?!\w)
      |\s?(?P<myriad>[百千]?[万萬億亿兆]|[百千])
      |(?(currency)\s?(?P<short>[kmbt]|bn|mn|mm|tn)(?![\w/])|(?!)))?""",
    re.X | re.I,
)
_TENTHS = {
    **dict.fromkeys(("half", "halves"), 2),
    **dict.fromkeys(("third", "thirds"), 3),
    **dict.fromkeys(("quarter", "quarters", "fourth", "fourths"), 4),
    **dict.fromkeys(("fifth", "fifths"), 5),
    **{"sixths": 6, "sevenths": 7, "eighth": 8, "eighths": 8, "ninths": 9, "tenth": 10, "tenths": 10},
    **{
        f"{name}th{s}": 10**size
        for name, size in (("hundred", 2), ("thousand", 3), ("million", 6), ("billion", 9), ("trillion", 12))
        for s in ("", "s")
    },
}
_SCALES = {name: 10**size for name, size in _SIZES.items()} | {"dozen": 12}
_SHORT_SCALES = {"k": 3, "m": 6, "mn": 6, "mm": 6, "b": 9, "bn": 9, "t": 12, "tn": 12}
"""Maps a letter after an amount of money to its power of ten."""

_JOINED_BEFORE = (
    r"(?![有是为為共約约はがで了剩得])[^\W\d_]\.?",  # a letter: x5, v.5
    r"[\d)]\s?[,.]",
    r"\d",
    r"[_\\^√{\[|<>≤≥±∓∈≠∞π!&]",
    r"\d[:/]|/|∪|∩",
    r"\w\(",  # f(5)
    r"[-–—](?<=\w[-–—])|\d\s*[–—]",  # a range
    r"(?:[\w)\]}%]|²)\s?[+*×÷·^/]",
    r"\+\s?/\s?-|\+-",
    r"[\])}]|(?<!\w):|:[+-]",
    r"[*×÷·/^]\s?\(|--",  # 2/(3)
    r"[<>^\[\]+*/xπ±√∞-]\s?[-+*/xX]",
)
_APART_BEFORE = (
    r"[<>≤≥±∓≠∈×÷·^√π{\[|\\:](?<!\w:)",
    r"(?<![\w'])[b-zB-HJ-Z]",  # a lone letter, which is no "a" and no "I"
    r"[\d)}%π∞]\s?\s?[xX]",
    r"[\d)}%]\s*-",
    r"[)\d]\s*[*+/]",
    r"\b[a-zA-Z]\s*[-+*/]",
    r"\d:|[\]}]|(?<!\w)/|[<>^\[\]+*/π±√∞-]\s?[-+*/xX]",
)
_BAD_BEFORE = re.compile(
    rf"(?:{'|'.join(_JOINED_BEFORE)})$|(?:{'|'.join(_APART_BEFORE)})\s{{1,2}}$|\d[xX]$|[\w)\]}}%π√∞]\s*[*×÷·/+]\s*$|[\]}}]\s*-\s*$|\d\s*-\s*$"
)
"""Matches text before a numeral that changes its meaning: a letter, an operator, a bracket."""
_DIGIT_BEFORE = re.compile(r"[\d)]\s$")
_COMMA_AFTER = re.compile(r"\s*,\s*-?\d|,$")
NEAREST = 6
"""Characters before a numeral that `_BAD_BEFORE` reads."""
_BULLETS = re.compile(r"(?:^|\n)\s*[-+*•·]\s*$")
_BAD_AFTER = re.compile(
    "|".join(
        (
            r"(?![个個人名只隻本枚歳岁回次牙颗顆개명살])[\w^_(\[\]{}\\√π∞|°'](?<!'\s)",  # a letter that counts nothing
            r"[:,/.]\d|[:-](?=[^\s\w.,;!?)'\"*_-])|:[a-zA-Z-]|\.\(|/|\.\.(?=\d)|\s{1,2}[\[\]{}|\\^:]",
            r"-(?=\w)|\s?[–—](?=\s?\d)|\s*-\s?(?=[\d(.√\\\[\]{}<>^+*/-]|[a-zA-Z]\b)",
            r"\s?(?:\*\*?(?=[\w(])|[×÷·^≤≥±∓≠∪∩π√∞])|\s*[+*/]|\s*[<>](?!\w*>)|\+|\s*[-+*/×÷](?=\s*$)",
            r"\s?[xX]\s?(?=[\d(.])|\s(?![aAI]\b)[a-zA-Z]\b(?!['.])|\s?\\(?!\s)|!(?=\w)|[\"'](?=\s*$)",
            r"\)\s?[/^*×÷·]",
            r"\s+(?:squared|cubed|factorial|pi|mod)\b",
            r"\s+(?:plus|minus|times|over|divided\s+by|multiplied\s+by)\s+(?=[\d(])",
        )
    )
)
"""Matches text after a numeral that changes its meaning."""
_WORD_AFTER = re.compile(r"\s([a-z]{2,})")
_OPERATES = frozenset("squared cubed factorial pi mod plus minus times over divided multiplied".split())
"""Words that may change the meaning of a numeral before them. After other words `_BAD_AFTER` is not searched."""
_FUNCTION_BEFORE = re.compile(
    r"\b(?:sqrt|cbrt|log|ln|lg|sin|cos|tan|exp|(?:root|half|third|quarter|logarithm)\s+of|twice|double|triple"
    r"|plus|times|divided\s+by|multiplied\s+by|minus|plus\s+or\s+minus)\s+$|\d\s+(?:over)\s+$",
    re.I,
)
_FUNCTIONS_END = frozenset(
    """sqrt cbrt log ln lg sin cos tan exp of twice double triple plus times by minus over least most more fewer less
    than to""".split()
)
"""Last words of the texts that `_FUNCTION_BEFORE` and `_BOUND_BEFORE` match."""
_OPENS = "\\([{$"
_BOUND_BEFORE = re.compile(
    r"\b((?:at|no)\s+(?:least|most|more|fewer|less)|(?:more|less|fewer|greater)\s+than|up\s+to)\s+(?:than\s+)?$", re.I
)
"""Matches words that make the number a bound, unless the question has these words."""
_MONTHS = re.compile(
    r"\b(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b\.?"
)
_MONTH_BEFORE = re.compile(rf"{_MONTHS.pattern}(?:\s\d{{1,2}},)?\s$")
_MONTH_AFTER = re.compile(rf"(?:\sof)?\s{_MONTHS.pattern}")
_DIGIT = re.compile(r"\d")
_LETTERS = re.compile(r"[a-z]+")
_ARROWS = re.compile(r"[-=]>|→|⇒|⟹")
_SIDE = re.compile(r"=|≈|\b(?:is|are|equals|makes)\b")
_ASSIGNED = re.compile(r"(?<![^\W_])([^\W\d_])\s?=(?!=)")
_SOLVABLE = re.compile(r"[\d\s+*/×÷·().,$%xX-]+")
_CONCLUDES = re.compile(r"\b(?:so|therefore|thus|hence)\b")
_PLAIN = re.compile(r"-?\d{1,15}")
_SHORT = re.compile(r"(-?)(\$?)(\d{1,15}|\d{1,3}(?:,\d{3}){1,4})(\.\d{1,12})?\.?")
"""Matches the most frequent answers: a number alone, with or without currency."""
_WORDS = re.compile(r"[^\W\d_]+")
_UNSURE = HEDGES - {"and", "but"}
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b")
_SAID_AGAIN = re.compile(r"[^\W\d_]|[(=≈,;+*/×÷·^-]")
"""Matches a word or sign between two numbers, of which one may be the answer and the other its explanation."""
_NEAR = 4
"""Number of words before a number in which "not" negates the number."""
_DRESS = r"[^\w=+*/^×÷-]{0,3}"
_JOINT = re.compile(rf"{_DRESS}(?:[^\W\d_]+{_DRESS})?(?:[,;&]|\b(?:and|or)\b){_DRESS}(?:(?:and|or)\b{_DRESS})?", re.I)
"""Separators between the numbers of a list."""

_TENS = {name: 10 * n for n, name in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)}
_UNITS = {name: int(digits) for name, digits in NUMBER_WORDS.items()} | _TENS | {"fourty": 40}
_BIG = {name: _SCALES[name] for name in ("thousand", "million", "billion", "bn", "trillion", "quadrillion")}
_SPELLED = "|".join(sorted((*_UNITS, "hundred", *_BIG), key=len, reverse=True))
_NUMBER_WORDS = re.compile(
    rf"(?<![\w-])(?:(?P<minus>minus|negative)\s+)?(?P<words>(?:(?:an?\s+)(?=hundred|thousand|million|billion|dozen))?"
    rf"(?:{_SPELLED})(?:(?:\s+and\s+|\s+|-)(?:{_SPELLED}))*(?:\s+point(?:\s+(?:{_SPELLED}))+)?)(?!\w|-(?!(?:{_PART}|{_SMALL})\b))",
    re.I,
)
_MINUS_WORD = re.compile(r"\b(?:minus|negative)\s+(?=[\d.$£€])", re.I)
_DOZEN = re.compile(r"\ban?\s+(?=dozen\b)", re.I)
_COUNTING = frozenset((*_UNITS, *_SCALES, "minus", "negative"))
_JOINS = re.compile(r"[\s-]+")


def _with_digits(text: str) -> str:
    """Returns the text with number words replaced by digits, each number read as a whole: "twenty-five" is 25."""
    if _COUNTING.isdisjoint(_LETTERS.findall(text.lower())):
        return text
    text = _MINUS_WORD.sub(_negative, text)
    text = _DOZEN.sub("1 ", text)
    return _NUMBER_WORDS.sub(lambda found: _spelled_out(found) or found.group(), text)


def _negative(found: re.Match[str]) -> str:
    """Returns a minus sign for the word, unless a number before the word makes it a subtraction."""
    before = found.string[: found.start()].rstrip()[-1:]
    return found.group() if before.isdigit() else "-"


def _spelled_out(found: re.Match[str]) -> str | None:
    """Returns digits for number words; a last "million" stays a word. None if the words are not one number."""
    names = [name for name in _JOINS.split(found["words"].lower()) if name not in ("and", "a", "an")]
    if not names:
        return None
    whole, _, after = " ".join(names).partition(" point ")
    names = whole.split() or ["zero"]
    if found["words"].lower().startswith("a") and names[0] in _SCALES:
        names = ["one", *names]
    scale = ""
    if len(names) > 1 and names[-1] in _SCALES and not after and not any(n in _BIG for n in names[:-1]):
        scale = f" {names.pop()}"
    total, part, last = 0, 0, 10**15
    for name in names:
        if name in _BIG:
            if not part or _BIG[name] >= last:
                return None
            total, last, part = total + part * _BIG[name], _BIG[name], 0
        elif name == "hundred":
            if not 0 < part < 100:
                return None
            part *= 100
        else:
            value = _UNITS[name]
            tens = part % 100
            room = 1000 if not part else 100 if not tens else 10 if tens >= 20 and not part % 10 else 1
            if value >= room or (part and not value):
                return None
            part += value
    decimals = [_UNITS.get(name, 99) for name in after.split()]
    if any(value > 9 for value in decimals):
        return None
    digits = str(total + part) + ("." + "".join(map(str, decimals)) if decimals else "")
    return ("-" if found["minus"] else "") + digits + scale


def folded(text: str) -> str:
    """Returns a text with number words as digits and arrows as `=`."""
    return _ARROWS.sub("=", _with_digits(text))


@lru_cache(maxsize=256)  # the parts of one answer are looked at several times
def quantities(text: str, question: str = "") -> tuple[Quantity, ...]:
    """Returns the numerals of a folded text. A numeral has a value if everything that belongs to it can be read.

    If `question` asks for a scale or per cent, the numeral's own scale or per cent is dropped. Of a text with more than
    `MOST_NUMERALS` the first ones are returned, and the next one has no value.
    """
    months = _MONTHS.search(text) is not None
    found, place = [], 0
    while digit := _DIGIT.search(text, place):
        match = _QUANTITY.search(text, max(place, digit.start() - BEFORE_DIGIT))
        if match is None:
            break
        value = _value(match, question)
        unit = unit_at(text, match.end())
        name, dimension = unit_of(unit) if unit else ("", "")
        end = unit.end() if unit else match.end()
        if currency := match["currency"]:
            currency_name, currency_dimension = _unit_named(currency)
            per = name.partition("/")[2]
            if unit and name and not name.startswith(currency_name):
                value = None
            name, dimension = (f"{currency_name}/{per}", "money/per") if per else (currency_name, currency_dimension)
            if not unit and (rate := _RATE.match(text, end)):
                name, dimension, end = f"{currency_name}/{_unit_named(rate[1])[0]}", "money/per", rate.end()
        before = text[max(0, match.start() - 24) : match.start()]
        if value is not None and _is_part(before, text, end, match, question, months=months):
            value = None
        if dimension == "part" and name == "%":
            if value is not None and not _asks_percent(question):
                value /= 100
            name = dimension = ""
        glued = _GLUED.match(text, end)
        about = before.rpartition(" ")[2] + text[match.start() : glued.end() if glued else end]
        found.append(Quantity(value, name, dimension, match.start(), end, about, match["numeral"]))
        if len(found) > MOST_NUMERALS:
            found[-1] = Quantity(None, "", "", match.start(), end, text[match.start() : match.start() + MOST_END])
            break
        place = max(end, match.end(), place + 1)
    return tuple(found)


_GLUED = re.compile(r"\S{1,24}")
_RATE = re.compile(r"\s?(?:/|per\b)\s?([^\W\d_]+)")


@lru_cache(maxsize=64)
def _asks_percent(question: str) -> bool:
    """Returns whether the sentence that asks, or its end, names per cent."""
    parts = sentences(question[-QUESTION_READ:])
    asking = next((part for part in reversed(parts) if part.rstrip().endswith("?")), parts[-1] if parts else "")
    return re.search(r"percent|per\s+cent|(?<!\d)\s%|%\s*\?", asking, re.I) is not None


@lru_cache(maxsize=64)
def _asks_scale(question: str, scale: str) -> bool:
    """Returns whether the question asks in a scale, such as dozens or millions: names it without a number before it."""
    parts = sentences(without_accents(question[-QUESTION_READ:]))
    asking = next((part for part in reversed(parts) if part.rstrip().endswith("?")), parts[-1] if parts else "")
    return re.search(rf"(?<!\d\s)(?<!\d)\b{scale}s?\b", asking, re.I) is not None


def _unit_named(name: str) -> tuple[str, str]:
    found = unit_at(name.strip().rstrip("."), 0)
    return unit_of(found) if found else (name.strip().casefold(), "")


def _is_part(before: str, text: str, end: int, match: re.Match[str], question: str, *, months: bool) -> bool:
    """Returns whether the numeral belongs to something longer that is not a number: a root, a range, a bound, a date.

    Args:
        before: the characters before the numeral.
        text: the whole text.
        end: where the numeral ends in the text, with its unit.
        match: the numeral, as `_QUANTITY` finds it.
        question: a bound that the question names is no part of the answer.
        months: whether the text names a month.
    """
    after = text[end : end + 24]
    sign = match["sign"]
    if sign == "-" and (before.endswith("-") or _DIGIT_BEFORE.search(before)):  # "--5", "5 -3"
        return True
    if (len(before) > 2 and before[-1] == " " and before[-3:-1].isalpha() and "π" not in before[-3:]) or (
        not before and not sign and not match["currency"]
    ):
        joined = None  # a word before it
    else:
        joined = not (sign and sign.strip() != sign) and _BAD_BEFORE.search(before, max(0, len(before) - NEAREST))
    if joined and not _BULLETS.search(before):
        return True
    if before.endswith("(") and (after[:1] == "]" or _COMMA_AFTER.match(after)):
        return True
    word = _WORD_AFTER.match(after)
    if not (after in ("", ".") or (word and word[1] not in _OPERATES)) and _BAD_AFTER.match(after):
        return True
    last = before.rstrip().rpartition(" ")[2] if before[-1:].isspace() else ""
    if last.startswith("\\"):  # a command of LaTeX
        return True
    if last.lstrip(_OPENS).lower() in _FUNCTIONS_END:
        bound = _BOUND_BEFORE.search(before)
        if _FUNCTION_BEFORE.search(before) or (bound and bound[1].lower() not in question.lower()):
            return True
    if "." in match["numeral"] and after.startswith(("...", "…")):
        return True
    return months and (_MONTH_BEFORE.search(before) is not None or _MONTH_AFTER.match(after) is not None)


def _value(match: re.Match[str], question: str) -> Fraction | None:
    """Returns the value of a numeral with its exponent, fraction and scale; None if the number is too long
    to compute.
    """
    if len(match.group()) > MAX_READ_DIGITS:
        return None
    value = _plain_value(match["numeral"])
    if value is None or (match["inner"] and match["sign"] and not match["currency"]):  # "--5"
        return None
    power = next((match[name] for name in ("e1", "e2", "e3") if match[name] is not None), None)
    ten = next((match[name] for name in ("e", "t1", "t2", "t3") if match[name] is not None), None)
    for exponent in (power, ten):
        if exponent is not None and (len(exponent) > 5 or abs(int(exponent)) > MOST_EXPONENT):
            return None
    if power is not None:
        if (not value and int(power) <= 0) or (len(match["numeral"]) * abs(int(power))) > 4 * MOST_EXPONENT:
            return None
        value = value ** int(power)
    if ten is not None:
        value *= Fraction(10) ** int(ten)
    if (bottom := match["bottom"]) is not None:
        divisor = _plain_value(bottom)
        if not divisor:
            return None
        value /= divisor
    if match["under"] is not None:
        if not int(match["under"]) or value.denominator != 1:
            return None
        value += Fraction(int(match["top"]), int(match["under"]))
    if match["rest"] is not None:
        value += Fraction(1, _TENTHS[match["rest"].lower()])
    if match["part"] is not None and not _asks_scale(question, match["part"].lower().rstrip("s")):
        value /= _TENTHS[match["part"].lower()]
    for scale in (match["scale"] or "").lower().split():
        name = scale if scale in _SCALES else scale.rstrip("s")
        if not _asks_scale(question, name):
            value *= _SCALES[name]
    for sign in match["myriad"] or "":
        value *= _MYRIADS[sign]
    if match["short"] is not None:
        value *= 10 ** _SHORT_SCALES[match["short"].lower()]
    minus = ((match["sign"] or "").strip() == "-") != (match["inner"] is not None)
    return -value if minus else value


def _plain_value(numeral: str) -> Fraction | None:
    """Returns the value of digits with separators."""
    if "," in numeral and "." in numeral and numeral.index(".") < numeral.index(","):
        numeral = numeral.replace(".", "").replace(",", ".")  # 1.234,56
    elif numeral.count(".") > 1:
        numeral = numeral.replace(".", "")
    if numeral.isdigit():
        return Fraction(int(numeral))
    return Fraction(numeral.replace(",", "").replace("'", "").replace(" ", ""))


@lru_cache(maxsize=64)  # one answer is held against several marks in turn
def numbers(text: str) -> tuple[Fraction, ...]:
    """Returns the numbers in the last `MOST_READ` characters of a text, in order.

    Reads digits with separators, decimals, fractions, exponents and words. A numeral that is part of something else,
    such as the 5 of "5x", is left out.
    """
    found = quantities(folded(without_accents(text[-MOST_READ:])))
    return tuple(quantity.value for quantity in found if quantity.value is not None)


def gold_number(gold: str, question: str) -> Quantity | None:
    """Returns the gold answer as a number; None if it is not exactly one number."""
    found = quantities(folded(strip_decoration(gold)), question)
    return found[0] if len(found) == 1 and found[0].value is not None else None


def read_number(question: str, answer: str) -> Fraction | None:
    """Returns the value of the number that an answer gives, without the unit; None as for `read_quantity`."""
    found = read_quantity(question, answer)
    return found.value if found is not None else None


@lru_cache(maxsize=64)
def read_quantity(question: str, answer: str) -> Quantity | None:
    """Returns the one number that an answer gives; None if there is none or several, or if it hedges or adds more.

    A number that stands alone on the last side of an equation counts first, then a number that the question did not
    give.
    """
    # A short number alone, which is most answers.
    text = answer.strip()
    if short := _SHORT.fullmatch(text):
        minus, dollars, digits, decimals = short.groups("")
        digits = digits.replace(",", "")
        value = Fraction(int(digits)) if not decimals else Fraction(digits + decimals)
        unit, dimension = ("$", "money") if dollars else ("", "")
        return Quantity(-value if minus else value, unit, dimension, 0, len(text), text, digits)
    # The sentence with the conclusion.
    text = _undressed(text)
    if _OWED.fullmatch(text):
        return None
    if text.endswith("!") and _PLAIN.fullmatch(text.rstrip("!")):
        return None
    # A sentence after the first may explain, unless it takes something back.
    first = next((part for part in SENTENCE_END.split(text) if has_words(part)), "")
    if not _UNSURE.isdisjoint(_WORDS.findall(text.lower().replace("'", ""))) or len(set(_ASSIGNED.findall(first))) > 1:
        return None
    conclusion = _CONCLUDES.split(first)[-1]
    first = conclusion if _DIGIT.search(conclusion) else first
    # The sides of an equation, the last one first.
    sides = [(side, found) for side in _SIDE.split(first) if (found := quantities(side, question))]
    if _is_equation(first):
        return None
    if len(sides) > 1:
        for side, found in (sides[-1], *reversed(sides[:-1])):
            if len({quantity.key for quantity in found}) == 1 and found[0].value is not None:
                if found[0].key in _given(question) and _only_describes(first, side, question):
                    break  # "160 days for 3 books that are 400 pages each"
                return found[0] if _is_alone(side, found[0].start, found[-1].end) else None
            if not _SOLVABLE.fullmatch(side):
                break
        if any(quantity.value is None for quantity in sides[-1][1]) and _SOLVABLE.fullmatch(sides[-1][0]) is None:
            return None
    # Numbers that the question did not give.
    found = quantities(first, question)
    if any(not _SAID_AGAIN.search(first[quantity.end : other.start]) for quantity, other in itertools.pairwise(found)):
        return None  # "5 5" is not 5
    found = tuple(quantity for quantity in found if not _ORDINAL.match(first, quantity.end)) or found
    values = {quantity.key: quantity for quantity in found}
    given_keys = _given(question)
    left = {
        key: quantity
        for key, quantity in values.items()
        if key not in given_keys and not (quantity.value is None and quantity.numeral in given_keys)
    }
    if not left and (text.find(first) + len(first) < len(text)) and _goes_on(text, first, question):
        return None
    left = left or values
    if len(left) != 1:
        return None
    quantity = next(iter(left.values()))
    return quantity if quantity.value is not None and _is_alone(first, quantity.start, quantity.end) else None


def _only_describes(sentence: str, side: str, question: str) -> bool:
    """Returns whether "is" or "are" leads to `side`, and the part of the sentence before states a number of its own.

    Args:
        sentence: the sentence.
        side: its part after "is" or "are", or after "=".
        question: numbers that the question gives do not count.
    """
    before = sentence[: sentence.rfind(side)]
    return before[-1:].isalpha() and any(
        quantity.key not in _given(question) for quantity in quantities(before, question)
    )


_OPERATORS = re.compile(r"[±∓√π∞^<>≤≥≠∈∉∪∩|{}\[\]\\×÷·/!_%°&]|[+*-]\s*$|=\s*\S|\)\s?[A-Za-z]")
_OPERATES_ON = frozenset("mod log ln lg sin cos tan exp sqrt cbrt lim max min gcd lcm".split())
_COMMANDS = re.compile(r"\\[A-Za-z]+")


def _is_alone(text: str, start: int, end: int) -> bool:
    r"""Returns whether only words and their marks stand beside a number, so that it is not part of a formula.

    If there are only signs beside it, the number is part of a formula: `\times 12`, `∞ 12`, `log 12`. Text before "="
    belongs to another side, and is not read.

    Args:
        text: the text.
        start: where the number begins in the text.
        end: where the number ends.
    """
    before, after = text[max(0, start - MOST_END) : start].rpartition("=")[2], text[end : end + MOST_END]
    beside = _LONG_WORD_WHOLE.findall(_COMMANDS.sub(" ", f"{before} {after}").replace("π", " "))
    if any(
        word.lower() not in _OPERATES_ON and (len(word) > 2 or word == "in" or not unit_at(word, 0)) for word in beside
    ):
        return True
    return not beside and not _OPERATORS.search(before) and not _OPERATORS.search(after)


def _goes_on(text: str, first: str, question: str) -> bool:
    """Returns whether a text states, after its first sentence, a number that is not in the question.

    Args:
        text: the text.
        first: its first sentence, which only repeats the question.
        question: the question.
    """
    rest = text[text.find(first) + len(first) :]
    return any(quantity.key not in _given(question) for quantity in quantities(rest[-MOST_END:], question))


@lru_cache(maxsize=16)
def _given(question: str) -> frozenset[object]:
    """Returns the keys and the digits of the numbers that a question states."""
    parts = SENTENCE_END.split(folded(without_accents(question[-QUESTION_READ:])))
    found = [quantity for part in parts for quantity in quantities(part, question)]
    return frozenset((*(quantity.key for quantity in found), *(quantity.numeral for quantity in found)))


_HALF = re.compile(r"\W*(?:one\s+|a\s+)?half\W*", re.I)
_OWED = re.compile(r"\(\s?[$€£¥]\s?[\d.,]+\s?\)")
"""Matches an amount in brackets, which accountants read as negative."""
_TIGHT_LIST = re.compile(r"[-−–]?\d+(?:,[-−–]?\d+){2,}")
_GROUPED_ONLY = re.compile(_GROUPED)
_SPACED_MINUS = re.compile(r"[-−–]\s+(?=[\d.$£€¥])([^\n]*)")


def _undressed(answer: str) -> str:
    """Returns the last part of an answer, folded and without decoration.

    A minus before a lone number is read as its sign, not as a bullet.
    """
    text = last_part(answer.strip())
    if _HALF.fullmatch(text):
        return "1/2"
    if _TIGHT_LIST.fullmatch(text) and not _GROUPED_ONLY.fullmatch(text.lstrip("-−–")):
        text = text.replace(",", ", ")  # "1,2,3"
    spaced = _SPACED_MINUS.fullmatch(text)
    if spaced and not any(map(str.isalpha, text)):
        text = "-" + spaced[1]
    return folded(strip_decoration(text))


_LONE_LETTER = re.compile(r"(?<![^\W\d_])[^\W\d_](?![^\W\d_])")
_LONG_WORD = re.compile(r"[^\W\d_]{2}")
_LONG_WORD_WHOLE = re.compile(r"[^\W\d_]{2,}")
_TIMES = re.compile(r"(?<=\d)\s?[xX]\s?(?=\d)")
_NAMED_VALUE = re.compile(r"\s*[^\W\d_]\w*(?:\([^()]*\))?\s*")


def _is_equation(text: str) -> bool:
    """Returns whether a text is a formula with an unsolved letter: "2x = 10", but not "x = 5" or "f(2) = 5"."""
    before, equals, _ = text.rpartition("=")
    left = _TIMES.sub("*", before.rpartition("=")[2])
    if not equals or _LONG_WORD.search(left):
        return False
    return _LONE_LETTER.search(left) is not None and _NAMED_VALUE.fullmatch(left) is None


def last_part(text: str) -> str:
    """Returns the last `MOST_READ` characters of a text, from the beginning of a sentence if there is one."""
    if len(text) <= MOST_READ:
        return text
    end = SENTENCE_END.search(text, len(text) - MOST_READ)
    return text[end.end() if end and end.end() < len(text) else len(text) - MOST_READ :]


def canonical_number(question: str, answer: str) -> str:
    """Returns a form in which equal numbers are equal, such as "1/2", "5 cm" and "3 5" for a list.

    An answer that is no number gives a text form. Empty for no answer.
    """
    quantity = read_quantity(question, answer)
    if quantity is not None:
        assigned = _ASSIGNED.match(answer.strip().lstrip("\\([{$*"))
        if assigned and not _is_asked(assigned[1], question):
            return f"{assigned[1]} = {_form(quantity, question)}"
        return _form(quantity, question)
    stated = _last_numbers(question, answer)
    return stated or _as_text(question, answer)


@lru_cache(maxsize=64)
def _is_asked(letter: str, question: str) -> bool:
    """Returns whether a value of this letter answers the question.

    This is so if the question asks for the letter. If it names no letter, the usual `x` and `n` count, and letters that
    begin a word of the question, as F begins "force". Otherwise "x = 3" and "y = 3" are two answers.
    """
    parts = sentences(question[-QUESTION_READ:])
    asking = next((part for part in reversed(parts) if part.rstrip().endswith("?")), parts[-1] if parts else "")
    for text in (asking, question[-QUESTION_READ:]):
        if letters := set(_LONE_LETTER.findall(text)) - {"a", "A", "I"}:
            return letter in letters
    initials = {word[0].lower() for word in _LONG_WORD_WHOLE.findall(question[-QUESTION_READ:])}
    return letter.lower() in initials | {"x", "n"}


def _form(quantity: Quantity, question: str) -> str:
    unit = without_asked(quantity.unit, quantity.dimension, question)
    return f"{quantity.value} {unit}" if unit else str(quantity.value)


def _last_numbers(question: str, answer: str) -> str:
    """Returns the last number of an answer, with what makes it another answer: "5", but "3 or 5", "3 5" and "not 5".

    A list is numbers with at most one word after each, and a comma, "and" or "or" between them. Empty if there is no
    number, or if the last number cannot be read as a whole.
    """
    text = _undressed(answer)
    if _OWED.fullmatch(text):
        return ""
    cut = len(text) - MOST_END
    if cut > 0:
        blank = _BLANK.search(text, cut)
        text = text[blank.end() :] if blank else ""
    found = quantities(text, question)
    if not found or len(found) > MOST_NUMERALS or (text.endswith("!") and _PLAIN.fullmatch(text.rstrip("!"))):
        return ""
    if len(set(_ASSIGNED.findall(text))) > 1 or _is_equation(text):
        return ""
    found = _without_given(text, found, question)
    between = [text[quantity.end : other.start] for quantity, other in itertools.pairwise(found)]
    if found and between and _is_parallel(between[-1], found):
        return ""
    first = len(found) - 1
    while first > 0 and _JOINT.fullmatch(between[first - 1]):
        first -= 1
    if any(quantity.value is None for quantity in found[first:]) or (cut > 0 and not first):
        return ""
    if first and not _is_apart(words(between[first - 1])):
        return ""
    if not _is_alone(text, found[first].start, found[-1].end):
        return ""
    values = [_form(quantity, question) for quantity in found[first:]]
    form = values[:1]
    for joint, value in zip(between[first:], values[1:], strict=True):
        form += ["or", value] if "or" in words(joint) else [value]
    before = words(between[first - 1] if first else text[: found[0].start])[-_NEAR:]
    hedges = _UNSURE - set(words(question[-QUESTION_READ:]))
    return " ".join([*(word for word in before if word in hedges), *form])


_STATES = re.compile(r"=|\b(?:is|are|was|were|be|equals|makes|making|total|so|thus|therefore|hence)\b", re.I)


def _without_given(text: str, found: tuple[Quantity, ...], question: str) -> tuple[Quantity, ...]:
    """Returns the numbers up to the last one that the question did not state.

    Of "1 minute longer if all 3 lights are red" only the 1 stays. A number after "=" or "is" stays. All numbers stay if
    the last sentence states no other number.

    Args:
        text: the text.
        found: its numbers, in order.
        question: the question.
    """
    given_keys, end = _given(question), len(found)
    while end > 1 and found[end - 1].key in given_keys and found[end - 1].value is not None:
        joint = text[found[end - 2].end : found[end - 1].start]
        if (
            _STATES.search(joint)
            or SENTENCE_END.search(joint)
            or not _LONG_WORD.search(joint)
            or _JOINT.fullmatch(joint)
        ):
            return found
        end -= 1
        if found[end - 1].key not in given_keys:
            return found[:end]
    return found


_AND = re.compile(r"\b(?:and|while|whereas)\b", re.I)


def _is_parallel(joint: str, found: tuple[Quantity, ...]) -> bool:
    """Returns whether the last two numbers are parallel, so that neither is the answer: "5 on Monday and 7
    on Tuesday".
    """
    return (
        found[-1].unit == found[-2].unit
        and _AND.search(joint) is not None
        and _JOINT.fullmatch(joint) is None
        and _STATES.search(joint) is None
        and SENTENCE_END.search(joint) is None
    )


def _is_apart(joint: tuple[str, ...]) -> bool:
    """Returns whether the words between two numbers start a second statement; in "3 to 5" and "5 or 6" they do not."""
    if joint[-2:] in _RATIOS or "or" in joint:
        return False
    return (len(joint) > 1 and any(_LONG_WORD.search(word.replace("π", " ")) for word in joint)) or "but" in joint


_RATIOS = (("out", "of"), ("for", "every"), ("for", "each"), ("in", "every"))
"""Last words between two numbers that make a ratio of them."""


_BLANK = re.compile(r"\s")
_MATHEMATICAL = re.compile(r"[\d\\^√π∞∅±=<>≤≥+∪∩]")
MAX_TEXT_ANSWER_WORDS = 2
"""Most words of an answer without a numeral that is compared as text, such as "no solution". A longer one counts as no
answer.
"""


def _as_text(question: str, answer: str) -> str:
    """Returns an answer that is no number as a text that never equals a number. Empty if it only says that
    it has none.
    """
    if len(answer) > MOST_READ:
        return f"{AS_TEXT} {plain_form(answer)}"
    bare = strip_decoration(answer)
    spoken = words_beside(bare, question)
    if not spoken or not (_MATHEMATICAL.search(bare) or len(bare.split()) <= MAX_TEXT_ANSWER_WORDS):
        return ""
    return f"{AS_TEXT} {' '.join(spoken)}"


AS_TEXT = "text:"
"""Prefix of the form of an answer that is not a number, although the question asks for one."""


def same_quantity(one: Quantity, gold: Quantity, question: str) -> bool:
    """Returns whether a number equals the gold number.

    If the gold has no unit, the answer may have any unit, unless the question asks in another unit of that dimension.

    Args:
        one: number of the answer.
        gold: the gold number.
        question: the question.
    """
    if one.value != gold.value:
        return False
    unit, gold_unit = (without_asked(each.unit, each.dimension, question) for each in (one, gold))
    if gold_unit:
        return unit == gold_unit
    return not (unit and _asks_other(one, question))


def _asks_other(quantity: Quantity, question: str) -> bool:
    """Returns whether the question asks in another unit of the same dimension."""
    asked_unit, _ = asked_units(question)
    return asked_unit is not None and asked_unit[1] == quantity.dimension and asked_unit[0] != quantity.unit
