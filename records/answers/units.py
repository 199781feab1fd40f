"""Reads units of measure beside a number. A unit is part of the answer: 5 cm is neither 5 m nor 5 cm^2."""

import re
from functools import lru_cache

from metaprobe.records.answers.texts import sentences, without_accents

_NAMES = {
    "length": {
        "mm": "millimeter millimetre",
        "cm": "centimeter centimetre",
        "m": "meter metre",
        "km": "kilometer kilometre",
        "ft": "foot feet",
        "yd": "yard",
        "mi": "mile",
        "in": "inch inches",
        "nm": "nanometer nanometre",
        "µm": "μm micron micrometer micrometre",
        "pm": "picometer picometre",
        "angstrom": "Angstrom",
        "AU": "",
        "ly": "lightyear light-year",
    },
    "mass": {
        "µg": "μg mcg microgram",
        "mg": "milligram",
        "g": "gram gramme",
        "kg": "kilogram kilogramme kilo",
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
        "s": "sec secs second",
        "min": "mins minute",
        "h": "hr hrs hour",
        "day": "",
        "week": "wk",
        "month": "",
        "year": "yr yrs",
    },
    "volume": {
        "µL": "μL µl μl microliter microlitre",
        "dL": "dl deciliter decilitre",
        "ml": "mL milliliter millilitre",
        "l": "L liter litre",
        "gal": "gallon",
        "qt": "quart",
        "pt": "pint",
    },
    "money": {
        "$": "USD usd dollar buck US$",
        "€": "EUR eur euro",
        "£": "GBP gbp quid",
        "¥": "JPY jpy yen",
        "元": "CNY RMB cny rmb yuan",
        "₹": "INR inr rupee Rs",
        "¢": "cent",
        "CHF": "chf franc",
        "CAD": "",
        "AUD": "",
        "₩": "KRW",
        "₽": "RUB ruble rouble",
        "₺": "TRY lira",
        "₱": "PHP peso",
        "₪": "ILS shekel",
        "฿": "THB baht",
        "₫": "VND",
        "₦": "NGN naira",
        "SEK": "",
        "NOK": "",
        "DKK": "",
        "PLN": "zloty",
    },
    "part": {"%": "percent percents percentage pct per_cent", "bps": "basis_point basis_points"},
    "era": {"BC": "BCE B.C. B.C.E."},
    "scale": {"mil": ""},
    "angle": {"°": "deg degree", "rad": "radian"},
    "heat": {"°C": "celsius", "°F": "fahrenheit", "K": "kelvin"},
    "speed": {"mph": "", "km/h": "kph kmh", "m/s": "mps"},
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
    "data": {"KB": "kb kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte"},
    "clock": {"am": "a.m. AM A.M.", "pm": "p.m. PM P.M.", "o'clock": ""},
}
"""Maps dimension -> unit -> other names of the unit. Full names may have an s at the end."""
_CANONICAL: dict[str, tuple[str, str]] = {}
for _dimension, _units in _NAMES.items():
    for _unit, _others in _units.items():
        for _name in (_unit, *(name.replace("_", " ") for name in _others.split())):
            for _form in {_name, f"{_name}s" if len(_name) > 3 or _name == "day" else _name}:
                _CANONICAL[_form] = (_unit, _dimension)
                if len(_form) > 2:
                    _CANONICAL[_form.lower()] = (_unit, _dimension)

_LONG = "|".join(map(re.escape, sorted((name for name in _CANONICAL if len(name) > 3), key=len, reverse=True)))
_SYMBOLS = "|".join(map(re.escape, sorted(_CANONICAL, key=len, reverse=True)))
_PATTERN = (
    rf"(?:(?P<power_word>(?i:square|sq\.?|cubic|cu\.?))\s?)?(?P<unit>{_SYMBOLS}|(?i:{_LONG}))(?![^\W\d_])"
    r"(?:\s?(?:\^|\*\*)\s?\{?\s?(?P<power>-?\d)\s?\}?|(?P<digit>[23])(?!\w))?(?![^\W_])"
    r"(?:\s?(?:/|\bper\b)\s?(?P<per>[^\W\d_]+)(?:\^(?P<per_power>\d))?"
    r"|[\s·]\s?(?P<inverse>[^\W\d_]{1,3})\s?\^\s?\{?\s?-(?P<inverse_power>\d)\s?\}?)?"
)
UNIT = re.compile(rf"\s?{_PATTERN}")
"""Matches a unit, with its power and with the unit after "per"."""
_INCHES = re.compile(r"\s+in(?=\s+\w)")
"""Matches the word "in" before another word: there "in" is no unit."""
_BEGINS = re.compile(r"\s?([^\W\d_]+|\S)")
_FIRST = {"square", "sq", "cubic", "cu", *(_BEGINS.match(name)[1].lower() for name in _CANONICAL)}  # type: ignore[index]
"""First words of units, and signs. Most words after a number are in no unit; this set rejects them quickly."""
_IN_TEXT = re.compile(rf"(?<![^\W\d_]){_PATTERN}")
_MONEY = re.compile(r"[$€£¥₹₩₽₺₱₪฿₫₦](?=\s?[\d.])")
_ASKED = re.compile(
    r"\b(?:how\s+(?:many|much)(?:\s+(?:more|total|additional|extra|fewer|full|whole|us))*|number\s+of|what\s+percent)\s+"
    r"|\b(?:in|as\s+a)\s+(?=[^\W\d_]+(?:\s?(?:/|per\s)\s?[^\W\d_]+)?(?:\^?\d)?\s*[?.]?\s*$)",
    re.I,
)


def unit_of(found: re.Match[str]) -> tuple[str, str]:
    """Returns the unit that `UNIT` matched, and its dimension: ("cm^2", "length^2"), ("$/hour", "money/h")."""
    name = found["unit"]
    unit, dimension = _CANONICAL.get(name) or _CANONICAL[name.lower()]
    squared = (found["power_word"] or "").lower()[:1]
    power = {"s": "2", "c": "3"}.get(squared, found["power"] or found["digit"])
    if power and power != "1":
        unit, dimension = f"{unit}^{power}", f"{dimension}^{power}"
    if per := found["per"] or found["inverse"]:  # m/s, m s^-1
        other = _CANONICAL.get(per, _CANONICAL.get(per.lower(), (per.casefold(), "")))[0]
        raised = found["per_power"] or found["inverse_power"]
        other += f"^{raised}" if raised not in (None, "1") else ""
        is_speed = dimension == "length" and _CANONICAL.get(other, ("", ""))[1] == "time"
        unit, dimension = f"{unit}/{other}", "speed" if is_speed else f"{dimension}/per"
        unit = "mph" if unit == "mi/h" else unit
    return unit, dimension


def unit_at(text: str, place: int) -> re.Match[str] | None:
    """Returns the unit at a place of the text, after a number; None if there is no unit."""
    begins = _BEGINS.match(text, place)
    if begins is None or begins[1].lower() not in _FIRST:
        return None
    return None if _INCHES.match(text, place) else UNIT.match(text, place)


@lru_cache(maxsize=64)
def asked_units(question: str) -> tuple[tuple[str, str] | None, frozenset[tuple[str, str]]]:
    """Returns the unit in which a question asks for its answer (or None), and all units that it names."""
    text = without_accents(question)[-QUESTION_READ:]
    shown = (unit for unit in _IN_TEXT.finditer(text) if not _INCHES.match(text, unit.start() - 1))
    named_units = {*map(unit_of, shown), *(_CANONICAL[sign] for sign in _MONEY.findall(text))}
    for unit, dimension in tuple(named_units):
        if dimension == "speed":  # 60 km/h over 2 h names kilometres
            named_units.add(("mi" if unit == "mph" else unit.partition("/")[0], "length"))
    everywhere = frozenset(named_units)
    parts = sentences(text)
    asking = next((part for part in reversed(parts) if part.rstrip().endswith("?")), parts[-1] if parts else "")
    if _AGE.search(asking):
        return ("year", "time"), everywhere
    for lead in reversed(list(_ASKED.finditer(asking))):
        if found := UNIT.match(asking, lead.end()):
            return unit_of(found), everywhere
        if "percent" in lead.group().lower():
            return ("%", "part"), everywhere
    return None, everywhere


_AGE = re.compile(r"\bhow\s+old\b|\bwhat\s+age\b|\bage\s*\?|\bage\s+(?:of|is|was|will)\b|'s?\s+age\b", re.I)
"""Matches words that ask for years."""
_RATE_WORDS = re.compile(r"\b(?:per|an?|each|every)\s+([^\W\d_]+)", re.I)


@lru_cache(maxsize=64)
def _asked_rates(question: str) -> frozenset[str]:
    """Returns the units or words per which the question wants its answer: "h" for "How much does he earn per hour?"."""
    parts = sentences(without_accents(question)[-QUESTION_READ:])
    asking = next((part for part in reversed(parts) if part.rstrip().endswith("?")), parts[-1] if parts else "")
    return frozenset(_CANONICAL.get(word.lower(), (word.lower(), ""))[0] for word in _RATE_WORDS.findall(asking))


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
    asked_unit, everywhere = asked_units(question)
    alone, _, per = unit.partition("/")
    if asked_unit is not None and asked_unit[0] == alone != unit and per in question:
        return ""  # "How many hours does he work per year?" - "72 hours per year"
    if per in _asked_rates(question) and dimension.endswith("/per"):
        unit, dimension = alone, dimension.removesuffix("/per")
    if asked_unit is not None and asked_unit[1] == dimension:
        return "" if asked_unit[0] == unit else unit
    named_units = {unit_name for unit_name, dimension_of_unit in everywhere if dimension_of_unit == dimension}
    if unit == "$" and not named_units and _ASKS_FOR_MONEY.search(question[-QUESTION_READ:]):
        return ""  # "How much does she pay?" is answered by "12" and by "$12"
    return "" if named_units == {unit} else unit
