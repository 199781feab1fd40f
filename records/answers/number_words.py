"""Reads numbers that are written as words: "twenty-five", "two and three quarters", "3 million", "minus 5"."""

import re

from metaprobe.records.answers.texts import NUMBER_WORDS, without_accents

_EXPONENT_OF_NAME = {
    **{"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "bn": 9, "trillion": 12, "quadrillion": 15},
    **{"lakh": 5, "lac": 5, "crore": 7, "लाख": 5, "करोड़": 7, "हज़ार": 3},
    **dict.fromkeys(
        "tausend tsd mille millier tysiac tysiecy tys tusen duizend ezer ribu тысяча тысячи тысяч тыс".split(), 3
    ),
    **dict.fromkeys("nghin ngan тисяча тисячі тисяч хиляди الف الاف".split(), 3),
    **dict.fromkeys("millionen millones millon milhao milhoes milione milioni miljoen miljoner milyon juta".split(), 6),
    **dict.fromkeys(
        "миллион миллиона миллионов миллиона milion miliony milionow trieu мільйон мільйони мільйонів".split(), 6
    ),
    **dict.fromkeys("مليون ملايين".split(), 6),
    **dict.fromkeys(
        """milliard milliarde milliarden miliardi miliardo miljard milyar miliar миллиард миллиарда миллиардов
        мільярд مليار""".split(),
        9,
    ),
    **dict.fromkeys("mio mln млн".split(), 6),
    **dict.fromkeys("mrd mld млрд".split(), 9),
}
_EXPONENT_OF_NAME = {without_accents(name): size for name, size in _EXPONENT_OF_NAME.items()}
"""Maps a word without accents to its power of ten, in the languages that answers use.

An unknown word, such as "mil", is read as a unit, so that it is not dropped.
"""
SCALE_WORD = "|".join(sorted((*_EXPONENT_OF_NAME, "dozen"), key=len, reverse=True))
"""Pattern of any word of a scale."""
MYRIADS = {
    **{"百": 10**2, "千": 10**3, "万": 10**4, "萬": 10**4, "億": 10**8, "亿": 10**8, "兆": 10**12},
    **{"백": 10**2, "천": 10**3, "만": 10**4, "억": 10**8, "조": 10**12},
}
"""Maps a sign of Chinese, Japanese or Korean to the number by which it multiplies the numeral before it."""
FRACTION_WORD = "half|halves|thirds?|quarters?|fourths?|fifths?|sixths|eighths?|tenths?"
SMALL_FRACTION_WORD = "sevenths|ninths|hundredths?|thousandths?|millionths?|billionths?|trillionths?"
"""Patterns of words for fractions, such as "quarters"."""
FRACTION_OF = {
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
"""Maps a word for a fraction to its denominator."""
SCALE_OF = {name: 10**size for name, size in _EXPONENT_OF_NAME.items()} | {"dozen": 12}
"""Maps a word of a scale to its value: "million" to 10**6."""
EXPONENT_OF_LETTER = {"k": 3, "m": 6, "mn": 6, "mm": 6, "b": 9, "bn": 9, "t": 12, "tn": 12}
"""Maps a letter after an amount of money to its power of ten."""
_TENS = {
    name: 10 * tens for tens, name in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)
}
_SMALL_NUMBERS = {name: int(digits) for name, digits in NUMBER_WORDS.items()} | _TENS | {"fourty": 40}
_BIG_NUMBERS = {name: SCALE_OF[name] for name in ("thousand", "million", "billion", "bn", "trillion", "quadrillion")}
_ORDINALS = {
    name: number
    for number, name in enumerate(
        "second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split(), 2
    )
}
_SPELLED_NUMBER = "|".join(sorted((*_SMALL_NUMBERS, "hundred", *_BIG_NUMBERS), key=len, reverse=True))
_NUMBER_WORDS = re.compile(
    rf"(?<![\w-])(?:(?P<minus>minus|negative)\s+)?(?P<words>(?:(?:an?\s+)(?=hundred|thousand|million|billion|dozen))?"
    rf"(?:{_SPELLED_NUMBER})(?:(?:\s+and\s+|\s+|-)(?:{_SPELLED_NUMBER}))*(?:\s+point(?:\s+(?:{_SPELLED_NUMBER}))+)?)(?!\w|-(?!(?:{FRACTION_WORD}|{SMALL_FRACTION_WORD})\b))",
    re.I,
)
_MINUS_WORD = re.compile(
    r"(?<!\bal )(?<!\bau )(?<!\blo )(?<!\bo )(?<!\bou )(?<!\bou de )\b"
    r"(?:minus|negative|negativ|negatif|negativo|moins|menos|meno|eksi|минус|мінус|ناقص|سالب|ऋण|माइनस|마이너스)"
    r"\s*(?=[\d.$£€])|[负負](?=[\d.])|マイナス\s?(?=[\d.])",
    re.I,
)
"""Matches a word for minus before digits. After "al", "au" or "lo" the word says "at least"."""
_MIXED_NUMBER = re.compile(
    rf"\b({_SPELLED_NUMBER}|\d+)\s+and\s+({'|'.join(list(NUMBER_WORDS)[1:10])})([\s-]+(?:{FRACTION_WORD}))\b", re.I
)
"""Matches "two and three quarters"."""
TO_THE_POWER = re.compile(
    rf"(?<=[\d)])\s+(?:raised\s+)?to\s+the\s+(?:power\s+(?:of\s+)?)?"
    rf"(?:(-?\d{{1,4}})(?:st|nd|rd|th)?|({'|'.join(_ORDINALS)})|({_SPELLED_NUMBER}))(?![\w-])(?:\s+power\b)?",
    re.I,
)
"""Matches "to the 8th power" after a number."""
_HALF_OF = re.compile(
    rf"(?<!\band )(?<!\band a )(?<!\d )(?<!\d a )\b(?:(?:an?|one)\s+)?half(?:\s+of)?"
    rf"(?:\s+an?\s+|[\s-]+)(?=(?:{SCALE_WORD})\b)",
    re.I,
)
"""Matches "half a" before a scale, as in "half a million"."""
_AND_A_HALF = re.compile(r"\b(?:an?|one)\s+([a-z]+)\s+and\s+a\s+half\b", re.I)
"""Matches "an hour and a half"."""
_A_DOZEN = re.compile(r"\ban?\s+(?=dozen\b)", re.I)
_MINUS_NAMES = frozenset("minus negative negativ negatif negativo moins menos meno eksi".split())
_NUMBER_NAMES = frozenset((*_SMALL_NUMBERS, *SCALE_OF)) | _MINUS_NAMES
_HAN_DIGITS = {
    name: value for value, names in enumerate("零〇 一 二两兩 三 四 五 六 七 八 九".split()) for name in names
}
_HAN_TENS = {"十": 10, "百": 100, "千": 1000}
_HAN_MYRIADS = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_HAN_NUMERALS = "".join((*_HAN_DIGITS, *_HAN_TENS, *_HAN_MYRIADS))
_HAN_NUMBER = re.compile(
    rf"(?<!\d\s)(?:(?<![^\W_])|(?<=[是为為有共约約は於于到得出了剩计計等负負]))(?:(?P<bottom>[{_HAN_NUMERALS}]+)分之)?(?P<whole>[{_HAN_NUMERALS}]+)"
    rf"(?:点(?P<decimals>[{''.join(_HAN_DIGITS)}]+))?"
    r"(?=(?P<end>[\s.。!！?？]*\Z|です|である|[%％\s。!！?？;；])|[个個人名只隻本枚歳岁回次颗顆条條张張辆輛块塊元円天年小分秒米公斤])"
)
"""Matches a number in Chinese or Japanese numerals, between signs or known words of a sentence."""
_LETTERS = re.compile(r"[a-z]+")
_WORD_SEPARATOR = re.compile(r"[\s-]+")


def with_digits(text: str) -> str:
    """Returns the text with number words replaced by digits, each number read as a whole: "twenty-five" is 25."""
    if " and a half" in text:
        text = _AND_A_HALF.sub(r"1.5 \1", text)
    if text.isascii():
        spelled_names = _NUMBER_NAMES.intersection(_LETTERS.findall(text.lower()))
        if not spelled_names:
            return text
        has_minus = not _MINUS_NAMES.isdisjoint(spelled_names)
    else:
        text = _HAN_NUMBER.sub(lambda match: _han_digits(match) or match.group(), text)
        has_minus = True
    if has_minus:
        text = _MINUS_WORD.sub(_negative, text)
    if "half" in text.lower():
        text = _HALF_OF.sub("0.5 ", text)
    if "dozen" in text.lower():
        text = _A_DOZEN.sub("1 ", text)
    if "and" in text.lower():
        text = _MIXED_NUMBER.sub(lambda match: f"{match[1]} and {_SMALL_NUMBERS[match[2].lower()]}{match[3]}", text)
    return _NUMBER_WORDS.sub(lambda match: _spelled_out(match) or match.group(), text)


def _han_digits(match: re.Match[str]) -> str | None:
    """Returns digits for Chinese numerals: "42", "3/4", "1.5"; None if they are no number.

    A numeral of one sign may be a part of a word. It is read only at the end of a text.
    """
    numerals, denominator_numerals, decimals = match["whole"], match["bottom"], match["decimals"]
    if len(numerals) == 1 and not denominator_numerals and not decimals and (match["end"] is None or numerals == "〇"):
        return None
    value = _han_value(numerals)
    if value is None:
        return None
    if decimals:
        return None if denominator_numerals else f"{value}.{''.join(str(_HAN_DIGITS[digit]) for digit in decimals)}"
    if denominator_numerals == "百":
        return f"{value}%"
    if denominator_numerals is None:
        return str(value)
    denominator = _han_value(denominator_numerals)
    return f"{value}/{denominator}" if denominator else None


def _han_value(numerals: str) -> int | None:
    """Returns the value of Chinese numerals; None if they are no number, or may be one of two.

    "一百五" is 150 in Chinese and 105 in Japanese, and "三四" says "three or four".
    """
    if _HAN_DIGITS.keys() >= set(numerals):
        has_zero = len(numerals) > 2 and not {"〇", "零"}.isdisjoint(numerals)
        is_read = len(numerals) in (1, 4) or has_zero
        return int("".join(str(_HAN_DIGITS[digit]) for digit in numerals)) if is_read else None
    total, section, digit = 0, 0, None
    smallest_myriad, smallest_ten, previous_sign = 10**12, 10**4, ""
    for sign in numerals:
        if sign in _HAN_MYRIADS:
            section += digit or 0
            if not section or _HAN_MYRIADS[sign] >= smallest_myriad:
                return None
            total, section, digit = total + section * _HAN_MYRIADS[sign], 0, None
            smallest_myriad, smallest_ten = _HAN_MYRIADS[sign], 10**4
        elif sign in _HAN_TENS:
            if _HAN_TENS[sign] >= smallest_ten or digit == 0 or (digit is None and sign != "十" and previous_sign):
                return None
            section += (1 if digit is None else digit) * _HAN_TENS[sign]
            digit, smallest_ten = None, _HAN_TENS[sign]
        elif _HAN_DIGITS[sign]:
            if digit:
                return None
            digit = _HAN_DIGITS[sign]
        else:
            digit = None if digit is None else 0
            if digit == 0:
                return None
        previous_sign = sign
    if digit and numerals[-2] not in "十零〇":
        return None
    return total + section + (digit or 0)


def power_sign(match: re.Match[str]) -> str:
    """Returns the power that "to the 8th power" says."""
    digits, ordinal, name = match.groups()
    power = digits or (_ORDINALS[ordinal.lower()] if ordinal else _SMALL_NUMBERS.get(name.lower()))
    return f"^{power}" if power is not None else match.group()


def _negative(match: re.Match[str]) -> str:
    """Returns a minus sign for the word, unless a number before the word makes it a subtraction."""
    before = match.string[: match.start()].rstrip()[-1:]
    return match.group() if before.isdigit() else "-"


def _spelled_out(match: re.Match[str]) -> str | None:
    """Returns digits for number words; a last "million" stays a word. None if the words are not one number.

    A word must be smaller than what the words before it leave open: after "twenty" only one to nine may follow.
    """
    names = [name for name in _WORD_SEPARATOR.split(match["words"].lower()) if name not in ("and", "a", "an")]
    if not names:
        return None
    integer_words, _, decimal_words = " ".join(names).partition(" point ")
    names = integer_words.split() or ["zero"]
    if match["words"].lower().startswith("a") and names[0] in SCALE_OF:
        names = ["one", *names]
    # A last scale stays a word.
    scale = ""
    if (
        len(names) > 1
        and names[-1] in SCALE_OF
        and not decimal_words
        and not any(name_before in _BIG_NUMBERS for name_before in names[:-1])
    ):
        scale = f" {names.pop()}"
    # The words before the point, in groups of thousands, and the digits after it.
    total, group_value, last_big_number = 0, 0, 10**15
    for name in names:
        if name in _BIG_NUMBERS:
            if not group_value or _BIG_NUMBERS[name] >= last_big_number:
                return None
            total, last_big_number, group_value = total + group_value * _BIG_NUMBERS[name], _BIG_NUMBERS[name], 0
        elif name == "hundred":
            if not 0 < group_value < 100:
                return None
            group_value *= 100
        else:
            word_value = _SMALL_NUMBERS[name]
            below_hundred = group_value % 100
            if not group_value:
                next_limit = 1000
            elif not below_hundred:
                next_limit = 100
            else:
                next_limit = 10 if below_hundred >= 20 and not group_value % 10 else 1
            if word_value >= next_limit or (group_value and not word_value):
                return None
            group_value += word_value
    decimals = [_SMALL_NUMBERS.get(name, 99) for name in decimal_words.split()]
    if any(word_value > 9 for word_value in decimals):
        return None
    digits = str(total + group_value) + ("." + "".join(map(str, decimals)) if decimals else "")
    return ("-" if match["minus"] else "") + digits + scale
