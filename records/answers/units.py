"""Reads units of measure beside a number. A unit is part of the answer: 5 cm is neither 5 m nor 5 cm^2."""

import re
from collections.abc import Iterator
from functools import lru_cache

from metaprobe.records.answers.texts import last_question, sentences, without_accents

_NAMES_OF_UNIT = {
    "length": {
        "mm": "millimeter millimetre мм 毫米",
        "cm": "centimeter centimetre zentimeter centimetro centimetros см 厘米",
        "m": "meter metre metros metri м 米",
        "km": "kms kilometer kilometre kilometro kilometros kilometri км 公里 千米 كم",
        "ft": "foot feet footage",
        "yd": "yard",
        "mi": "mile",
        "in": "inch inches",
        "nm": "nanometer nanometre",
        "µm": "μm micron micrometer micrometre",
        "pm": "picometer picometre",
        "angstrom": "Angstrom",
        "AU": "",
        "ly": "lightyear light-year",
        "nmi": "nautical_mile nautical_miles",
        "furlong": "",
        "fathom": "",
        "league": "",
    },
    "mass": {
        "µg": "μg mcg microgram",
        "mg": "milligram milligramm мг 毫克",
        "g": "gm gms gram gramme gramm gramo gramos г 克",
        "kg": "kgs kilogram kilogramme kilogramm kilo kilogramo kilogramos кг 公斤 千克 كغ",
        "lb": "lbs pound",
        "oz": "ounce",
        "ton": "tonne",
        "Da": "dalton u amu",
    },
    "amount": {"mol": "mole", "mmol": "millimole", "µmol": "μmol micromole", "kmol": "kilomole"},
    "concentration": {"mM": "millimolar", "µM": "μM micromolar", "molar": "", "ppm": "", "ppb": ""},
    "area": {"acre": "", "ha": "hectare"},
    "time": {
        "ns": "nanosecond",
        "µs": "μs microsecond",
        "ms": "millisecond",
        "s": "sec secs second sekunde sekunden seconde secondes segundo segundos secondi сек секунда секунды секунд 秒",
        "min": "mins minute minuten minuto minutos minuti мин минута минуты минут 分钟",
        "h": "hr hrs hour stunde stunden heure heures hora horas час часа часов 小时 時間",
        "day": "tage tagen jour jours dias giorno giorni день дня дней 天",
        "week": "wk woche wochen semaine semaines semana semanas settimana settimane неделя недели недель",
        "month": "monat monate monaten mois meses mesi месяц месяца месяцев",
        "year": "yr yrs jahr jahre jahren ans ano anos anno anni år jaar год года лет",
        "decade": "",
        "century": "centuries",
        "millennium": "millennia",
        "fortnight": "",
    },
    "volume": {
        "µL": "μL µl μl microliter microlitre",
        "dL": "dl deciliter decilitre",
        "ml": "mL milliliter millilitre",
        "l": "L liter litre litro litros litri литр литра литров л",
        "gal": "gallon",
        "qt": "quart",
        "pt": "pint",
        "cup": "cups",
        "tsp": "teaspoon",
        "tbsp": "tablespoon",
    },
    "money": {
        "$": "USD usd dollar buck US$",
        "€": "EUR eur euro",
        "£": "GBP gbp quid",
        "¥": "JPY jpy yen 円",
        "元": "CNY RMB cny rmb yuan 人民币",
        "₹": "INR inr rupee Rs",
        "¢": "cent",
        "CHF": "chf franc Fr",
        "CAD": "",
        "AUD": "",
        "₩": "KRW",
        "₽": "RUB ruble rouble руб рубль рубля рублей",
        "₺": "TRY lira",
        "₱": "PHP peso",
        "₪": "ILS shekel",
        "฿": "THB baht",
        "₫": "VND",
        "₦": "NGN naira",
        "SEK": "",
        "kr": "krona kronor krone kroner",
        "NOK": "",
        "DKK": "",
        "PLN": "zloty zł",
    },
    "part": {
        "%": "percent percents percentage pct per_cent prozent procent процент процента процентов pour_cent por_ciento "
        "por_cento per_cento ٪ パーセント 퍼센트 بالمئة بالمائة प्रतिशत पर्सेंट",
        "‰": "per_mille permille promille per_mil per_thousand pour_mille por_mil промилле",
        "bps": "basis_point basis_points ‱",
        "pp": "percentage_point percentage_points percent_point percent_points prozentpunkt prozentpunkte",
    },
    "era": {"BC": "BCE B.C. B.C.E.", "AD": "CE A.D. C.E."},
    "scale": {"mil": ""},
    "count": {"pair": ""},
    "angle": {"°": "deg degree", "rad": "radian"},
    "heat": {
        "°C": "celsius degree_Celsius degrees_Celsius degrees_celsius",
        "°F": "fahrenheit degree_Fahrenheit degrees_Fahrenheit degrees_fahrenheit",
        "K": "kelvin",
    },
    "speed": {"mph": "", "knot": "", "km/h": "kph kmh", "m/s": "mps"},
    "power": {"mW": "milliwatt", "W": "watt", "kW": "kilowatt", "MW": "megawatt", "GW": "gigawatt", "hp": "horsepower"},
    "energy": {
        **{"J": "joule", "kJ": "kilojoule", "MJ": "megajoule", "cal": "calorie", "kcal": "Cal kilocalorie"},
        **{"Wh": "", "kWh": "kilowatthour kilowatt-hour", "MWh": "", "BTU": "Btu btu", "therm": "", "erg": ""},
        **{"eV": "electronvolt", "keV": "", "MeV": "", "GeV": "", "TeV": ""},
    },
    "electricity": {
        **{"mV": "millivolt", "V": "volt", "kV": "kilovolt", "A": "ampere amp", "mA": "milliampere milliamp"},
        **{"µA": "μA", "Ω": "Ω ohm", "kΩ": "kΩ kohm kiloohm", "MΩ": "MΩ megaohm", "µF": "μF microfarad"},
        **{"nF": "", "pF": "", "farad": "", "coulomb": "", "µC": "μC", "nC": "", "tesla": "", "henry": "", "mH": ""},
    },
    "force": {"N": "newton", "kN": "kilonewton", "mN": "", "dyne": "dyn", "lbf": ""},
    "frequency": {"Hz": "hertz", "kHz": "kilohertz", "MHz": "megahertz", "GHz": "gigahertz", "rpm": "RPM", "THz": ""},
    "pressure": {
        **{"Pa": "pascal", "kPa": "kilopascal", "MPa": "megapascal", "GPa": "", "hPa": "", "atm": "atmosphere"},
        **{"bar": "", "mbar": "millibar", "torr": "Torr", "mmHg": "", "psi": "PSI"},
    },
    "radiation": {"Bq": "becquerel", "Ci": "curie", "Gy": "gray", "Sv": "sievert", "mSv": ""},
    "sound": {"dB": "decibel"},
    "light": {"lx": "lux", "lm": "lumen", "cd": "candela"},
    "size": {"px": "pixel"},
    "data": {"bit": "bits", "byte": "bytes", "KB": "kb kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte"},
    "clock": {"am": "a.m. AM A.M.", "pm": "p.m. PM P.M.", "o'clock": "Uhr uhr"},
}
"""Maps dimension -> unit -> other names of the unit. Full names may have an s at the end."""
_UNIT_OF_NAME: dict[str, tuple[str, str]] = {}
for _dimension, _units in _NAMES_OF_UNIT.items():
    for _unit, _other_names in _units.items():
        for _name in (_unit, *(name.replace("_", " ") for name in _other_names.split())):
            for _form in {_name, without_accents(_name), f"{_name}s" if len(_name) > 3 or _name == "day" else _name}:
                _UNIT_OF_NAME[_form] = (_unit, _dimension)
for _form, _unit_and_dimension in tuple(_UNIT_OF_NAME.items()):
    if len(_form) > 2:
        _UNIT_OF_NAME.setdefault(_form.lower(), _unit_and_dimension)  # "cal" stays what it is beside "Cal"

_LONG_NAMES = "|".join(map(re.escape, sorted((name for name in _UNIT_OF_NAME if len(name) > 3), key=len, reverse=True)))
_ALL_NAMES = "|".join(map(re.escape, sorted(_UNIT_OF_NAME, key=len, reverse=True)))
_PATTERN = (
    rf"(?:(?P<power_word>(?i:square|sq\.?|cubic|cu\.?))\s?)?(?P<unit>{_ALL_NAMES}|(?i:{_LONG_NAMES}))(?![^\W\d_])"
    r"(?:\s?(?:\^|\*\*)\s?\{?\s?(?P<power>-?\d)\s?\}?|(?P<digit>[23])(?!\w))?(?![^\W_])"
    r"(?:\s?(?:/|\bper\b)\s?(?P<per>[^\W\d_]+)(?:\^(?P<per_power>\d))?"
    r"|[\s·]\s?(?P<inverse>[^\W\d_]{1,3})\s?\^\s?\{?\s?-(?P<inverse_power>\d)\s?\}?)?"
)
UNIT = re.compile(rf"\s?{_PATTERN}")
"""Matches a unit, with its power and with the unit after "per"."""
_INCHES = re.compile(r"\s+in(?=\s+\w)")
"""Matches the word "in" before another word: there "in" is no unit."""
_FIRST_WORD = re.compile(r"\s?([^\W\d_]+|\S)")
_FIRST_WORDS = {"square", "sq", "cubic", "cu", *(_FIRST_WORD.match(name)[1].lower() for name in _UNIT_OF_NAME)}  # type: ignore[index]
"""First words of units, and signs. Most words after a number are in no unit; this set rejects them quickly."""
_WORD_OR_SIGN = re.compile(r"[^\W\d_]+|[^\s\d]")
_UNIT_IN_TEXT = re.compile(rf"(?<![^\W\d_]){_PATTERN}")
_CURRENCY_SIGN = re.compile(r"[$€£¥₹₩₽₺₱₪฿₫₦](?=\s?[\d.])")
_ASKING_FOR_UNIT = re.compile(
    r"\b(?:how\s+(?:many|much)(?:\s+(?:more|total|additional|extra|fewer|full|whole|us))*(?:\s+in)?|number\s+of|what\s+percent)\s+"
    r"|\b(?:in|as\s+a)\s+(?=[^\W\d_]+(?:\s?(?:/|per\s)\s?[^\W\d_]+)?(?:\^?\d)?\s*[?.]?\s*$)",
    re.I,
)


def unit_of(unit_match: re.Match[str]) -> tuple[str, str]:
    """Returns the unit that `UNIT` matched, and its dimension: ("cm^2", "length^2"), ("$/hour", "money/h")."""
    name = unit_match["unit"]
    unit, dimension = _UNIT_OF_NAME.get(name) or _UNIT_OF_NAME[name.lower()]
    power_initial = (unit_match["power_word"] or "").lower()[:1]
    power = {"s": "2", "c": "3"}.get(power_initial, unit_match["power"] or unit_match["digit"])
    if power and power != "1":
        unit, dimension = f"{unit}^{power}", f"{dimension}^{power}"
    if per := unit_match["per"] or unit_match["inverse"]:  # m/s, m s^-1
        per_unit = _UNIT_OF_NAME.get(per, _UNIT_OF_NAME.get(per.lower(), (per.casefold(), "")))[0]
        per_power = unit_match["per_power"] or unit_match["inverse_power"]
        per_unit += f"^{per_power}" if per_power not in (None, "1") else ""
        is_speed = dimension == "length" and _UNIT_OF_NAME.get(per_unit, ("", ""))[1] == "time"
        unit, dimension = f"{unit}/{per_unit}", "speed" if is_speed else f"{dimension}/per"
        unit = "mph" if unit == "mi/h" else unit
    return unit, dimension


_SMALLER_UNIT = {
    "week": ("day", 7),
    "day": ("h", 24),
    "h": ("min", 60),
    "min": ("s", 60),
    "year": ("month", 12),
    "decade": ("year", 10),
    "yd": ("ft", 3),
    "ft": ("in", 12),
    "lb": ("oz", 16),
    "km": ("m", 1000),
    "m": ("cm", 100),
    "cm": ("mm", 10),
    "kg": ("g", 1000),
    "l": ("ml", 1000),
    "$": ("¢", 100),
    "€": ("¢", 100),
}
"""Maps a unit to a smaller unit that may follow it in one quantity, and how many of the smaller unit it has."""


def units_in(unit: str, smaller: str) -> int:
    """Returns how many of a smaller unit are in a unit, as 60 min are in 1 h; 0 if the two make no quantity together.

    Both are units as `unit_of` returns them.
    """
    smaller_per_unit = 1
    while unit in _SMALLER_UNIT:
        unit, smaller_per_step = _SMALLER_UNIT[unit]
        smaller_per_unit *= smaller_per_step
        if unit == smaller:
            return smaller_per_unit
    return 0


def unit_at(text: str, start: int) -> re.Match[str] | None:
    """Returns the unit after a number, at the character `start` of the text; None if there is no unit."""
    first_word = _FIRST_WORD.match(text, start)
    if first_word is None or first_word[1].lower() not in _FIRST_WORDS:
        return None
    return None if _INCHES.match(text, start) else UNIT.match(text, start)


def _units_in_text(text: str) -> Iterator[re.Match[str]]:
    """Yields the units of a text from left to right, without the word "in".

    Most words begin no unit, and `_FIRST_WORDS` rejects them before the long pattern is tried.
    """
    position = 0
    while word := _WORD_OR_SIGN.search(text, position):
        position = word.end()
        if word.group().lower() in _FIRST_WORDS and (unit := _UNIT_IN_TEXT.match(text, word.start())):
            position = unit.end()
            if not _INCHES.match(text, unit.start() - 1):
                yield unit


@lru_cache(maxsize=64)
def _asking_sentence(question: str) -> str:
    """Returns the last sentence of a question that ends in "?", or else its last sentence, without accents."""
    return last_question(sentences(without_accents(question)[-QUESTION_READ:]))


@lru_cache(maxsize=64)
def asked_units(question: str) -> tuple[tuple[str, str] | None, frozenset[tuple[str, str]]]:
    """Returns the unit in which a question asks for its answer (or None), and all units that it names."""
    text = without_accents(question)[-QUESTION_READ:]
    named_units = {*map(unit_of, _units_in_text(text)), *(_UNIT_OF_NAME[sign] for sign in _CURRENCY_SIGN.findall(text))}
    for unit, dimension in tuple(named_units):
        if dimension == "speed":  # 60 km/h over 2 h names kilometres
            named_units.add(("mi" if unit == "mph" else unit.partition("/")[0], "length"))
    all_named = frozenset(named_units)
    asking_sentence = _asking_sentence(question)
    if _ASKS_AGE.search(asking_sentence):
        return ("year", "time"), all_named
    for lead in reversed(list(_ASKING_FOR_UNIT.finditer(asking_sentence))):
        if unit_match := UNIT.match(asking_sentence, lead.end()):
            return unit_of(unit_match), all_named
        if "percent" in lead.group().lower():
            return ("%", "part"), all_named
    return None, all_named


_ASKS_AGE = re.compile(
    r"\bhow\s+old\b|\bwhat\s+age\b|\bage\s*\?|\bage\s+(?:of|is|was|will)\b|'s?\s+age\b"
    r"|\bwie\s+alt\b|\bquel\s+age\b|\bcuant[oa]s\s+anos\b|\bquantos\s+anos\b|\bquanti\s+anni\b|\bhoe\s+oud\b"
    r"|\bhur\s+gammal\b|\bhvor\s+gammel\b|\bсколько\s+лет\b",
    re.I,
)
"""Matches words that ask for years."""
_RATE_WORDS = re.compile(r"\b(?:per|an?|each|every)\s+([^\W\d_]+)", re.I)


@lru_cache(maxsize=64)
def _asked_rates(question: str) -> frozenset[str]:
    """Returns the units or words per which the question wants its answer: "h" for "How much does he earn per hour?"."""
    asking_sentence = _asking_sentence(question)
    return frozenset(
        _UNIT_OF_NAME.get(word.lower(), (word.lower(), ""))[0] for word in _RATE_WORDS.findall(asking_sentence)
    )


_ASKS_FOR_MONEY = re.compile(
    r"\bhow\s+much\s+(?:money|change|profit|is|are|was|were|do|does|did|will|would|should|must|can|could|has|have|had|more|less)\b"
    r"|\b(?:price|cost|costs|money|salary|wage|profit|bill|budget|fee|revenue|income|rent|savings)\b",
    re.I,
)
"""Matches words of a question whose answer may be money although it names no currency. The answer is then
in dollars.
"""

QUESTION_READ = 4000
"""Characters at the end of a question in which units and numbers are searched."""


def without_asked(unit: str, dimension: str, question: str) -> str:
    """Returns the unit, or an empty text if the unit only repeats the unit that the question asks for.

    Args:
        unit: unit of the answer.
        dimension: dimension that the unit measures.
        question: the question.
    """
    if not unit:
        return ""
    asked_unit, named_in_question = asked_units(question)
    unit_without_rate, _, rate = unit.partition("/")
    if asked_unit is not None and asked_unit[0] == unit_without_rate != unit and rate in question:
        return ""  # "How many hours does he work per year?" - "72 hours per year"
    if rate in _asked_rates(question) and dimension.endswith("/per"):
        unit, dimension = unit_without_rate, dimension.removesuffix("/per")
    if asked_unit is not None and asked_unit[1] == dimension:
        return "" if asked_unit[0] == unit else unit
    if asked_unit is not None and asked_unit[1] == "speed" and dimension in ("length", "time"):
        return unit  # "How fast in km/h?" names kilometres, and "18 km" is no speed
    named_units = {unit_name for unit_name, dimension_of_unit in named_in_question if dimension_of_unit == dimension}
    if unit == "$" and not named_units and _ASKS_FOR_MONEY.search(question[-QUESTION_READ:]):
        return ""  # "How much does she pay?" is answered by "12" and by "$12"
    return "" if named_units == {unit} else unit


_CHANGES_VALUE = frozenset(("part", "scale", "count"))
"""Dimensions of which a unit multiplies the number before it. A question that wants such a unit names it."""
_ASKS_COUNT = re.compile(
    r"\b(?:how\s+many|number\s+of)(?:\s+(?:more|fewer|total|additional|extra|other|different|full|whole|new))*\s+"
    r"(?:people|children|men|women|fish|[a-z]{2,}[^s\W]s)\b(?<!\bdoes)",
    re.I,
)
"""Matches a question that asks for a number of things, if the things are no unit: "How many eggs"."""
_DIMENSIONS_OF_ADJECTIVE = {
    "far": ("length",),
    "tall": ("length",),
    "high": ("length",),
    "deep": ("length",),
    "wide": ("length",),
    "heavy": ("mass", "force"),
    "fast": ("speed", "frequency"),
    "hot": ("heat", "angle"),
    "cold": ("heat", "angle"),
    "long": ("length", "time", "area"),
}
"""Maps the word after "how" to the dimensions in which it is measured."""
_HOW_ADJECTIVE = re.compile(rf"\bhow\s+(?P<word>{'|'.join(_DIMENSIONS_OF_ADJECTIVE)})\b", re.I)
_COINS = re.compile(r"\b(?:coins?|penn(?:y|ies)|nickels?|dimes?|quarters?)\b", re.I)
"""Matches names of coins: a question with them may be answered in cents."""
_ASKS_YEAR = re.compile(r"\b(?:when|what\s+year|which\s+year)\b", re.I)
"""Matches a question whose answer may be a year, so that "1990s" is no number of seconds."""
_SHARING_WORDS = re.compile(r"\b(?:each|every\w*|average|mean|equally|per|rate|one)\b", re.I)
"""Matches words of a question that make "per person" say nothing."""
_ASKS_PAY = re.compile(
    r"\bhow\s+much\s+(?:money|change|profit"
    r"|(?:do|does|did|will|would|should|must|can|could|has|have|had|is|are)\b[^?]*\b(?:make|earn|pay|spend|cost|charge|owe))\b",
    re.I,
)
"""Matches a question whose answer is an amount of money."""


def is_rate_named(per: str, question: str) -> bool:
    """Returns whether a rate "per day" suits a question: it names days, or asks what each has if `per` is no time.

    Args:
        per: unit or word after "per".
        question: the question.
    """
    unit, dimension = _UNIT_OF_NAME.get(per.lower(), (per.lower(), ""))
    text = without_accents(question[-QUESTION_READ:])
    if dimension != "time":
        return _SHARING_WORDS.search(text) is not None or re.search(rf"\b{re.escape(per)}", text, re.I) is not None
    named_units = {name.partition("/")[0] for name, _ in asked_units(question)[1]} | _asked_rates(question)
    return unit in named_units or re.search(rf"\b(?:{re.escape(unit)}|dai)ly\b", text, re.I) is not None


def suits_question(unit: str, dimension: str, question: str) -> bool:
    """Returns whether an answer with this unit may be meant where the gold answer has no unit.

    The unit is not meant if the question asks for another unit or for a number of things, or if it names other units of
    the dimension. Nor is a unit meant that changes the value, as per cent does. Names of times do not count: "8 hours"
    may answer "How long does she work every day?".

    Args:
        unit: unit of the answer, as `unit_of` returns it.
        dimension: dimension that the unit measures.
        question: the question.
    """
    if dimension.partition("^")[0] in _CHANGES_VALUE or unit == "BC":
        return False
    asked_unit, named_in_question = asked_units(question)
    unit_without_rate, _, rate = unit.partition("/")
    named_without_power = {name.partition("/")[0].partition("^")[0] for name, _ in named_in_question}
    if (unit_without_rate == "¢" and unit_without_rate not in named_without_power and not _COINS.search(question)) or (
        unit_without_rate == "s" and _ASKS_YEAR.search(question)
    ):
        return False
    if asked_unit is not None:
        asked_without_rate, _, asked_rate = ("mi/h" if asked_unit[0] == "mph" else asked_unit[0]).partition("/")
        is_same_rate = (
            rate == asked_rate
            or (not asked_rate and is_rate_named(rate, question))
            or (not rate and dimension == "money")
        )
        return unit_without_rate == asked_without_rate and is_same_rate
    asking_sentence, unit_without_power = _asking_sentence(question), unit_without_rate.partition("^")[0]
    base_dimension = dimension.partition("^")[0].removesuffix("/per")
    if unit_without_power not in named_without_power and _ASKS_COUNT.search(asking_sentence):
        return False
    if (adjective_match := _HOW_ADJECTIVE.search(asking_sentence)) and base_dimension not in _DIMENSIONS_OF_ADJECTIVE[
        adjective_match["word"].lower()
    ]:
        return False
    if base_dimension != "money" and _ASKS_PAY.search(asking_sentence):
        return False
    if base_dimension == "money" and rate and not is_rate_named(rate, question):
        return False
    named_units = {
        name.partition("^")[0]
        for name, dimension_named in named_in_question
        if dimension_named.partition("^")[0] == base_dimension
    }
    return not named_units - {"¢"} or base_dimension == "time" or unit_without_power in named_units
