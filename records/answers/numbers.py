r"""Reads the number that an answer gives: the whole number with its unit, or nothing.

A number is never read from a part of a longer expression: `\\sqrt{17}` is not 17, `5x` is not 5, `3:45` is not 45. Each
numeral is read with the signs beside it. If these signs are unknown, the numeral has no value.
"""

import itertools
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from metaprobe.records.answers.beside_number import is_known_after, is_known_before, is_known_beside
from metaprobe.records.answers.number_words import (
    EXPONENT_OF_LETTER,
    FRACTION_OF,
    FRACTION_WORD,
    MYRIADS,
    SCALE_OF,
    SCALE_WORD,
    SMALL_FRACTION_WORD,
    TO_THE_POWER,
    power_sign,
    with_digits,
)
from metaprobe.records.answers.texts import (
    ASKS_BACK,
    HEDGES,
    SENTENCE_END,
    TAKES_BACK,
    has_words,
    plain_form,
    sentences,
    stem,
    strip_decoration,
    without_accents,
    words,
    words_beside,
)
from metaprobe.records.answers.units import (
    QUESTION_READ,
    is_rate_named,
    suits_question,
    unit_at,
    unit_of,
    units_in,
    without_asked,
)
from metaprobe.records.spelling import MAX_READ_DIGITS

MOST_READ = 2000
"""Characters at the end of an answer in which numbers are searched. A number with its sentence has some hundred."""
MOST_NUMERALS = 64
"""Most numerals of a text that are read. A sentence that gives an answer has fewer, and a text with more is compared as
text. The limit bounds the time for a text of digits alone.
"""
BEFORE_DIGIT = 8
"""Characters before a digit in which its number may begin with a sign, a currency or a point."""
MOST_AROUND_NUMBER = 400
"""Most characters before and after a number that are read to see whether it is part of a formula."""
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
    per: str = ""
    """Word of a rate after a numeral without a unit: "day" in "9 eggs per day"; empty if there is none."""
    decreases: bool = False
    """Whether the words beside the numeral say that it is a decrease, as in "5 less" and "a loss of $5"."""

    @property
    def key(self) -> tuple[object, str]:
        """Key that is equal for equal quantities."""
        return (self.text if self.value is None else self.value, self.unit)


_GROUPED = "|".join(
    (
        r"(?:\d{1,3}(?:,\d{3})++(?!\d)",
        r"\d{1,2}(?:,\d{2})+,\d{3}(?!\d)",  # 12,34,567 in India
        r"\d{1,3}(?:'\d{3})++(?!\d)",
        r"\d{1,3}(?:_\d{3})++(?![\w])",
        r"\d{1,3}(?:\ \d{3})++(?![\d/])",
        r"\d{1,3}(?:\.\d{3})+,\d+",  # 1.234,5
        r"\d{1,3}(?:\.\d{3}){2,}(?!\d)",
        r"\d++)",
    )
)
_NUMERAL = rf"(?:{_GROUPED}(?:\.\d++)?|\.\d++)"
_WITHOUT_SEPARATORS = str.maketrans("", "", ",'_ ")
_RAISED = r"\s?(?:\^|\*\*)\s?(?:\{\s?(?P<e1>[+-]?\d+)\s?\}|\((?P<e2>[+-]?\d+)\)|(?P<e3>[+-]?\d+))"
_CURRENCY = r"(?:(?<![^\W_])(?:US\$\s?|(?:USD|EUR|GBP|JPY|CHF|Fr\.|CAD|AUD|INR|CNY|RMB|Rs\.?)\s?)|[$€£¥₹₩₽₺₱₪฿₫₦]\s?)"
_SIGN = r"(?<![\w)\]}.])-|(?<![\w)\]}.])\+(?!/)|(?<=[=(])\s*-\s|(?<=\w\ )-(?=[\d.$£€¥₹₩₽₺₱₪฿₫₦])"
_QUANTITY = re.compile(
    rf"""(?P<sign>{_SIGN})?(?P<currency>{_CURRENCY})?(?P<inner>-)?
    (?P<numeral>{_NUMERAL})
    (?:[eE](?P<e>[+-]?\d+)(?!\w)
      |{_RAISED}
      |\s?(?:[×·*]|x|X)\s?10{_RAISED.replace("e1", "t1").replace("e2", "t2").replace("e3", "t3")}
      |\s?/\s?(?P<bottom>{_NUMERAL})
      |\ (?P<top>\d{{1,4}})\s?/\s?(?P<under>\d{{1,4}})(?![\d.,]*\d)
      |\ and\ (?P<parts>an?|\d{{1,3}})[\ -](?P<rest>{FRACTION_WORD})(?!\w)
    )?
    (?:[\ -](?P<part>{FRACTION_WORD}|{SMALL_FRACTION_WORD})(?!\w))?
    (?:[\ -](?P<scale>(?:{SCALE_WORD})s?(?:\ (?:{SCALE_WORD})s?)?)\.?(?!\w)(?:\ d[ei](?=\ ))?
      |\s?(?P<myriad>[百千백천]?[万萬億亿兆만억조]|[百千백천])
      |(?(currency)\s?(?P<short>[kmbt]|bn|mn|mm|tn)(?![\w/])|(?!)))?""",
    re.X | re.I,
)

_JOINED_BEFORE = (
    r"(?![有是为為共計计約约はがで了剩下得])[^\W\d_]\.?",  # a letter: x5, v.5
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
    r"[<>≤≥±∓≠∈×÷·^√π{\[|\\:](?<!\w:)(?<![^\W\d_]{2}\s:)",
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
_KNOWN_SIGNS = (
    r"""\s\w!-/:-@\[-`{-~$€£¥₹₩₽₺₱₪฿₫₦¢±∓√∞π×÷·•–—≤≥≠≈∈∉∪∩°…“”‘’„«»‹›¿¡。、，；！？：「」『』（）《》〈〉【】।،؛؟۔"""
)
"""Signs beside a numeral that the patterns here read, or that are decoration. White space and letters are read too."""
_UNKNOWN_BEFORE = re.compile(rf"[^{_KNOWN_SIGNS}\u2600-\u27bf\U0001f000-\U0001ffff\ufe0f]\s{{0,2}}$")
_UNKNOWN_AFTER = re.compile(rf"\s{{0,2}}[^{_KNOWN_SIGNS}\u2600-\u27bf\U0001f000-\U0001ffff\ufe0f]")
_DENIED_BEFORE = re.compile(r"(?:不是|并非|没有|沒有|不|非)\s?$")
_DENIED_AFTER = re.compile(r"[^\W\d_]?(?:では(?:な|あり)|じゃな|[이가]?\s?아[니닙])")
"""Match what makes a number no answer in Chinese, Japanese and Korean: "it is not 5"."""
_DIGIT_BEFORE = re.compile(r"[\d)]\s$")
_COMMA_AFTER = re.compile(r"\s*,\s*-?\d|,$")
NEAREST = 6
"""Characters before a numeral that `_BAD_BEFORE` reads."""
_BULLETS = re.compile(r"(?:^|\n)\s*[-+*•·]\s*$")
_SENTENCE_ENDS = r"(?:です|である|だ|입니다|이다|となり)(?!\w)"
"""Pattern of words that end a sentence of Japanese or Korean right after a number."""
_BAD_AFTER = re.compile(
    "|".join(
        (
            rf"(?![个個人名只隻本枚歳岁回次牙颗顆개명살]|{_SENTENCE_ENDS})"
            r"[\w^_(\[\]{}\\√π∞|°'](?<!'\s)",  # a letter that counts nothing
            r"[:,/.]\d|[:-](?=[^\s\w.,;!?)'\"*_-])|:[a-zA-Z-]|\.\(|/|\.\.(?=\d)|\s{1,2}[\[\]{}|\\^:]",
            r"-(?=\w)|\s?[–—](?=\s?\d)|\s*-\s?(?=[\d(.√\\\[\]{}<>^+*/-]|[a-zA-Zα-ωΑ-Ω]\b)",
            r"\s?(?:\*\*?(?=[\w(])|[×÷·^≤≥±∓≠∪∩π√∞])|\s*[+*/]|\s*[<>](?!\w*>)|\+|\s*[-+*/×÷](?=\s*$)",
            r"\s?[xX]\s?(?=[\d(.])|\s(?![aAI]\b)[a-zA-Zα-ωΑ-Ω]\b(?!['.])|\s?\\(?!\s)|!(?=\w)|[\"'](?=\s*$)",
            r"\)\s?[/^*×÷·]",
            r"\s+(?:squared|cubed|factorial|pi|mod)\b",
            r"\s+(?:plus|minus|times|over|divided\s+by|multiplied\s+by)\s+(?=[\d(])",
            r"\s+(?:or|and)\s+(?:more|less|fewer|above|below|over|under|up|higher|lower|older|younger|greater|smaller)\b",
            r"\s+and\s+(?:change|counting)\b|\s+below\b|\s+(?:and\s+a|et|y|e)\s+(?:half|quarter|demie?|medi[ao]|meia|mezz[ao])\b",
        )
    )
)
"""Matches text after a numeral that changes its meaning."""
_WORD_AFTER = re.compile(r"\s([a-z]{2,})")
_OPERATES = frozenset("squared cubed factorial pi mod plus minus times over divided multiplied or and below et".split())
"""Words that may change the meaning of a numeral before them. After other words `_BAD_AFTER` is not searched."""
_FUNCTION_BEFORE = re.compile(
    r"\b(?:sqrt|cbrt|log|ln|lg|sin|cos|tan|exp|(?:root|half|third|quarter|logarithm)\s+of|twice|double|triple"
    r"|plus|times|divided\s+by|multiplied\s+by|minus|plus\s+or\s+minus"
    r"|(?:half|quarter)\s+(?:past|to|till|after|before)|halb)\s+$|\d\s+(?:over|past|till)\s+$",
    re.I,
)
_FUNCTIONS_END = frozenset(
    """since until sqrt cbrt log ln lg sin cos tan exp past till after before halb under above
    below of twice double triple plus times by minus over least most more fewer less
    than to mindestens hochstens maximal minimal als moins maximum minimum max de menos massimo minimo maximo almeno di
    менее более минимум максимум az fazla cok yuzde
    almost nearly virtually practically as within beyond exceed exceeds exceeded exceeding approaching nearing
    uber unter fast beinahe knapp nahezu zu presque jusqu'a casi hasta quase quasi oltre a bijna ruim dan hoogstens
    minstens maximaal minimaal tot prawie ponad niz najmniej najwyzej nastan minst hogst почти больше меньше свыше до
    чем майже понад""".split()
)
"""Last words of the texts that `_FUNCTION_BEFORE` and `_BOUND_BEFORE` match."""
_OPENS = "\\([{$"
_ABOVE_WORDS = r"(?:over|under|above|below)"
_COMPARED = r"(?:more|less|fewer|greater|smaller|larger|bigger|higher|lower)"
_BOUND_BEFORE = re.compile(
    rf"(?:\b|\A\W{{0,3}})((?:\A\W{{0,3}}|\b(?:is|are|was|were|just|slightly|well|little|bit|somewhat|far|has|have|had"
    rf"|makes?|made|gets?|got|sells?|sold|needs?|costs?|takes?|took|earns?|earned)\s+){_ABOVE_WORDS}"
    rf"|(?:at|no)\s+(?:the\s+)?(?:very\s+)?(?:least|most|more|fewer|less)|{_COMPARED}\s+than(?:\s+or\s+equal\s+to)?|up\s+to"
    r"|minimum|maximum|max|almost|nearly|virtually|practically|within|beyond|short\s+of"
    r"|close\s+to|(?:in\s+excess|upwards)\s+of|exceed(?:s|ed|ing)?|approaching|nearing"
    r"|as\s+(?:many|much|few|little|high|low)\s+as"
    r"|uber|unter|bis\s+zu|fast|beinahe|knapp|nahezu|mindestens|hochstens|maximal|minimal|(?:weniger|mehr)\s+als"
    r"|presque|pres\s+de|jusqu'a|au\s+(?:moins|plus|maximum|minimum)|(?:moins|plus)\s+de"
    r"|casi|hasta|quase|quasi|oltre|fino\s+a|al\s+(?:menos|massimo|minimo|maximo)|(?:por|pe)\s*lo\s+menos"
    r"|como\s+(?:maximo|minimo)|(?:mas|menos)\s+de|no\s+maximo|almeno|non\s+(?:piu|meno)\s+di|(?:piu|meno)\s+di"
    r"|bijna|ruim|(?:meer|minder)\s+dan|hoogstens|minstens|maximaal|minimaal|tot"
    r"|prawie|ponad|(?:mniej|wiecej)\s+niz|(?:co\s+)?najmniej|najwyzej|nastan|minst|hogst"
    r"|почти|майже|(?:не\s+)?(?:менее|более|больше|меньше)(?:\s+чем)?|свыше|понад|до|минимум|максимум"
    r"|en\s+(?:az|fazla|cok)|yuzde)(?:\s+of)?\s+(?:than\s+)?$",
    re.I,
)
"""Matches words that make the number a bound, unless the question has these words. "About 18" is not among them: a gold
answer may be rounded, so an approximate number is the number.
"""
_BOUND_AFTER = re.compile(
    r"(?:\s[a-z]+)?,?\s(at\s(?:the\s)?(?:very\s)?(?:least|most|latest|earliest)|minimum|maximum|max|tops|plus(?!\s*[\d(]))\b",
    re.I,
)
"""Matches words after a number that make it a bound, unless the question has these words."""
_MAY_BOUND = re.compile(r" at |imum|max|tops|plus", re.I)
"""Matches what every text has that `_BOUND_AFTER` matches. It is faster."""
_DATED_BEFORE = re.compile(r"\b(before|after|since|until|prior\s+to)\s$", re.I)
"""Matches words before a year that make it a bound, unless the question has them."""
_MONTHS = re.compile(
    r"\b(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b\.?"
)
_MAY_BE_MONTH = re.compile(r"[JFMASOND](?:an|eb|ar|pr|ay|un|ul|ug|ep|ct|ov|ec)")
"""Matches what every text has that `_MONTHS` matches. It is faster."""
_MONTH_BEFORE = re.compile(rf"{_MONTHS.pattern}(?:\s\d{{1,2}},)?\s$")
_MONTH_AFTER = re.compile(rf"(?:\sof)?\s{_MONTHS.pattern}")
_MONTH_ABROAD = re.compile(
    r"\.?(?:\sde)?\s(?:"
    r"januar|februar|marz|mai|juni|juli|oktober|dezember|janvier|fevrier|mars|avril|juin|juillet|aout|septembre|octobre"
    r"|novembre|decembre|enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre|setiembre|octubre|noviembre|diciembre"
    r"|janeiro|fevereiro|marco|maio|junho|julho|setembro|outubro|novembro|dezembro|gennaio|febbraio|aprile|maggio|giugno"
    r"|luglio|settembre|ottobre|dicembre|января|февраля|марта|апреля|мая|июня|июля|августа|сентября|октября|ноября|декабря"
    r")\b\.?(?:\sde|\sdel)?\s\d{4}\b",
    re.I,
)
"""Matches a month with its year after the number of a day, in German, French, Spanish, Portuguese, Italian, Russian."""
_DIGIT = re.compile(r"\d")
_DECIMAL_COMMA = re.compile(
    rf"(?P<currency>{_CURRENCY})?(?<![\d.,])(?:\d{{1,15}},\d{{1,2}}|0,\d{{1,15}})(?!\d|[.,]\d)", re.I
)
_MAY_BE_DECIMAL = re.compile(r"\d,(?:\d{1,2}(?!\d)|(?<=0,)\d)")
"""Matches what every text has that `_DECIMAL_COMMA` matches. It is faster."""
_SCALED = re.compile(rf"\s?(?:[×·*]\s?10\s?(?:\^|\*\*)|(?:{SCALE_WORD})\b|[€£¥$])", re.I)
"""Matches what follows a decimal number, but no list of two numbers."""
_ERAS = {
    "BC": re.compile(r"\b(?:v\.\s?Chr\b\.?|av\.\s?J\.\s?-\s?C\b\.?|a\.\s?C\.|до\sн\.\s?э\.)"),
    "AD": re.compile(r"\b(?:n\.\s?Chr\b\.?|ap\.\s?J\.\s?-\s?C\b\.?|d\.\s?C\.|н\.\s?э\.)"),
}
"""Years before and after Christ, in German, French, Spanish, Italian and Russian."""
_ARROWS = re.compile(r"[-=]>|→|⇒|⟹")
_SIDE = re.compile(r"=|≈|\b(?:is|are|equals|makes)\b")
_ASSIGNED = re.compile(r"(?<![^\W_])([^\W\d_])\s?=(?!=)")
_ASSIGNED_AGAIN = re.compile(
    r"(?<![^\W_])([^\W\d_])\s?=[^=\n]{1,80}?(?:[,;&]|\band\b)\W{0,4}(?:\band\b\W{0,4})?\1\s?=(?!=)"
)
"""Matches two values of one letter: "x = 3 and x = 4"."""
_SOLVABLE = re.compile(r"[\d\s+*/×÷·().,$%xX-]+")
_CONCLUDES = re.compile(r"\b(?:so|therefore|thus|hence)\b", re.I)
_CONCLUDING = re.compile(
    rf"\W*(?:{_CONCLUDES.pattern}|(?:the\s+)?(?:(?:final|correct)\s+)?answer\s+(?:is|should\s+be|must\s+be)\b)", re.I
)
"""Matches the beginning of a sentence that concludes from the sentences before it."""
_OPENERS = frozenset("sure certainly ok okay alright right well great absolutely".split())
"""Words that alone, as the first sentence of an answer, are no answer."""
_EXCLAIMED = re.compile(r"-?\d{1,15}!+(?!\S)")
"""Matches a number with an exclamation mark that begins an answer. "18!" is 18, or the factorial of 18: both readings
are whole, so the answer is compared as text.
"""
_SHORT = re.compile(r"(-?)(\$?)(\d{1,15}|\d{1,3}(?:,\d{3}){1,4})(\.\d{1,12})?\.?")
"""Matches the most frequent answers: a number alone, with or without currency."""
_WORDS = re.compile(r"[^\W_]+")
_UNSURE = (HEDGES - {"and", "but"}) | set("otherwise geen non inte ikke ingen tidak bukan khong degil नह".split())
_TOO_MUCH = re.compile(r"\d\S*(?:\s\w+)?\s(?:is|are|was|were|seems|would\sbe)\s(?:\w+\s)?too\s\w", re.I)
"""Matches words that call a number too high or too low."""
_NUMBERS_NEXT = re.compile(r"(?:st|nd|rd|th)\b(?!\s+(?:of|or)\b)")
"""Matches the end of an ordinal that numbers the next word: "the 2nd day", but not "the 2nd of 9"."""
_LOWER_END = re.compile(r"(?<!difference )\bbetween\s+$", re.I)
_UPPER_END = re.compile(r"(?<!difference )\bbetween\s+\S{1,20}(?:\s+[^\W\d_]{1,20})?\s+and\s+$", re.I)
"""Match the text before the ends of a range: "between 16 and 18"."""
MOST_BEFORE_END = 60
"""Most characters before a number in which "between" is searched."""
_SAID_AGAIN = re.compile(r"[^\W\d_]|[(=≈,;+*/×÷·^-]")
"""Matches a word or sign between two numbers, of which one may be the answer and the other its explanation."""
_NEAR = 4
"""Number of words before a number in which "not" negates the number."""
_DRESS = r"[^\w=+*/^×÷-]{0,3}"
_JOINT = re.compile(rf"{_DRESS}(?:[^\W\d_]+{_DRESS})?(?:[,;&]|\b(?:and|or)\b){_DRESS}(?:(?:and|or)\b{_DRESS})?", re.I)
"""Separators between the numbers of a list."""

_ASKS_IN_COMMAS = re.compile(
    r"\b(?:wie\s?viele?|welche[rs]?|berechne|combien|calcule[rz]?|cuant[oa]s?|calcul[ae]|quant[oaie]s?|calcola|hoeveel"
    r"|сколько|вычислите|найдите|скільки|ile|oblicz|kolik|hur\s+(?:mycket|manga)|hvor\s+(?:mye|mange))\b",
    re.I,
)
"""Matches words that ask for a number in a language that writes 3,5 for three and a half."""


@lru_cache(maxsize=64)
def _asks_in_commas(question: str) -> bool:
    """Returns whether a question is asked in a language with decimal commas, and holds no decimal point itself."""
    text = without_accents(question[-QUESTION_READ:])
    return _ASKS_IN_COMMAS.search(text) is not None and re.search(r"\d\.\d{1,2}(?!\d)", text) is None


_SHORT_POWER = re.compile(
    r"(?<![^\W\d_])(sq|cu)(?:\.\s?|(?=[a-z]))(?=(?:ft|feet|foot|in|inch(?:es)?|yds?|yards?|mi|miles?|mm|cm|m|km|met(?:er|re)s?)\b)",
    re.I,
)
"""Matches "sq." and "cu." before a unit of length. Their point ends no sentence."""


_HOURS_MINUTES = re.compile(r"(?<![\w.,:/])(\d{1,3})\s?[hH](?:\s?(\d{1,2})\s?(?:m|mins?|mn)|(\d\d))(?![\w:])")
"""Matches "1h30", "1h30m" and "1 h 30 m"."""
_MAY_BE_HOURS = re.compile(r"\d\s?[hH]\s?\d")
"""Matches what every text has that `_HOURS_MINUTES` matches. It is faster."""


_RELATION_OF = {"<=": "≤", "=<": "≤", ">=": "≥", "!=": "≠", "=/=": "≠"}
_ASCII_RELATIONS = re.compile(r"(?<![<>=!-])(?:<=|=<|>=|!=|=/=)(?![<>=])")
"""Matches relations of two signs. "=>" is an arrow."""
_ABOUT = re.compile(r"\b(?:c|ca|cca|approx|est|abt)\.\s?(?=[\d$£€~])", re.I)
"""Matches an abbreviation of "about" before a number. Its point ends no sentence."""
_MIXED = re.compile(r"(?<![\d.,/^])(\d{1,6})\ (?:and|&)\ (\d{1,3})\s?/\s?(\d{1,3})(?![\d./^]*\d)")
"""Matches "2 and 7/8"."""
_NAMES_SEVERAL = re.compile(
    r"\b(?:roots?|solutions?|zeros?|zeroes|values|numbers|answers|both|respectively|fractions|slopes|x\s?=)", re.I
)
"""Matches words of a text or question that want several numbers: "2 and 1/2" are two roots."""


def _one_number(found: re.Match[str]) -> str:
    """Returns "2 7/8" for "2 and 7/8", unless it may be a list of two numbers."""
    whole, top, bottom = found.groups()
    before = found.string[: found.start()].rstrip()
    several = before.endswith((",", ";", "=")) or _NAMES_SEVERAL.search(found.string)
    return found.group() if several or int(top) >= int(bottom) else f"{whole} {top}/{bottom}"


def folded(text: str, question: str = "") -> str:
    """Returns a text with number words as digits, arrows as `=`, and years before and after Christ as BC and AD.

    A decimal comma becomes a point where `question` is asked in a language that writes it, or where a unit follows.
    """
    text = with_digits(text)
    if "sq" in text or "Sq" in text or "cu" in text:
        text = _SHORT_POWER.sub(r"\1 ", text)
    if "=" in text or ">" in text:
        text = _ASCII_RELATIONS.sub(lambda found: _RELATION_OF[found.group()], text)
    if "." in text:
        text = _ABOUT.sub("about ", text)
    if "/" in text and " and " in text:
        text = text if _NAMES_SEVERAL.search(question[-QUESTION_READ:]) else _MIXED.sub(_one_number, text)
    if " to the " in text:
        text = TO_THE_POWER.sub(power_sign, text)
    if _MAY_BE_HOURS.search(text):
        text = _HOURS_MINUTES.sub(r"\1 h \2\3 min", text)
    if "," in text and _MAY_BE_DECIMAL.search(text) and _DECIMAL_COMMA.search(text):
        always = _asks_in_commas(question)
        text = _DECIMAL_COMMA.sub(lambda found: _with_point(found, always=always), text)
    for era, pattern in _ERAS.items():
        if "." in text:
            text = pattern.sub(era, text)
    return _ARROWS.sub(_equals_sign, text) if ">" in text or not text.isascii() else text


def _equals_sign(arrow: re.Match[str]) -> str:
    """Returns "=" for an arrow to a result. After a letter alone the arrow stays: "x -> 5" is a limit."""
    before = arrow.string[: arrow.start()].rstrip()[-2:]
    return "→" if before[-1:].isalpha() and not before[:-1].isalpha() else "="


def _with_point(found: re.Match[str], *, always: bool) -> str:
    """Returns a numeral with a point for its comma, if it is one number and no list.

    A currency, a unit, a scale or a power of ten beside it shows that. With `always` it needs none.
    """
    text, end = found.string, found.end()
    is_one = always or found["currency"] or _SCALED.match(text, end) or unit_at(text, end)
    return found.group().replace(",", ".") if is_one else found.group()


@lru_cache(maxsize=256)  # the parts of one answer are looked at several times
def quantities(text: str, question: str = "") -> tuple[Quantity, ...]:
    """Returns the numerals of a folded text. A numeral has a value if everything that belongs to it can be read.

    If `question` asks for a scale or per cent, the numeral's own scale or per cent is dropped. Of a text with more than
    `MOST_NUMERALS` the first ones are returned, and the next one has no value.
    """
    months = _MAY_BE_MONTH.search(text) is not None and _MONTHS.search(text) is not None
    found: list[Quantity] = []
    place = 0
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
        if found and found[-1].unit and not match["sign"] and text[found[-1].end : match.start()].isspace():
            before = ""  # "1 h 30 min"
        if value is not None and _is_part(before, text, end, match, question, months=months):
            value = None
        if after_month := _MONTH_ABROAD.match(text, end):
            value, end = None, after_month.end()
        if name.startswith("%^"):  # "18%3"
            value = None
        if name in _PARTS:
            if value is not None and not (name == "%" and _asks_percent(question)):
                value /= _PARTS[name]
            name = dimension = ""
        every = None if name or unit else _PER.match(text, end)
        glued = _GLUED.match(text, end)
        about = before.rpartition(" ")[2] + text[match.start() : glued.end() if glued else end]
        found.append(
            Quantity(
                value,
                name,
                dimension,
                match.start(),
                end,
                about,
                match["numeral"],
                every[1] if every else "",
                _LESS_AFTER.match(text, end) is not None
                or (before.rstrip().lower().endswith(_LESS_ENDS) and _LESS_BEFORE.search(before) is not None),
            )
        )
        if len(found) > MOST_NUMERALS:
            found[-1] = Quantity(
                None, "", "", match.start(), end, text[match.start() : match.start() + MOST_AROUND_NUMBER]
            )
            break
        place = max(end, match.end(), place + 1)
    return tuple(_summed(found, text)) if len(found) > 1 else tuple(found)


_ADDS = re.compile(r"\s*(?:,\s*)?(?:(?:and|und|et|y|e|и)\s+)?", re.I)
"""Matches text between two quantities that are one, as in "1 hour and 30 minutes"."""


def _summed(found: list[Quantity], text: str) -> list[Quantity]:
    """Returns quantities with those in two units of one kind added up: "1 h 30 min" is 90 min.

    The smaller unit comes second, and its number gives less than one of the larger unit. The sum is in the smaller
    unit, but money is in the larger one: "5 dollars and 20 cents" is $5.20.

    Args:
        found: numerals of a text, in order.
        text: the text.
    """
    summed = found[:1]
    for quantity in found[1:]:
        one, ratio = summed[-1], units_in(summed[-1].unit, quantity.unit)
        if (
            ratio
            and one.value is not None
            and quantity.value is not None
            and one.value.denominator == 1
            and 0 <= quantity.value < ratio
            and _ADDS.fullmatch(text, one.end, quantity.start)
        ):
            is_money = quantity.dimension == "money"
            value = abs(one.value) + quantity.value / ratio if is_money else abs(one.value) * ratio + quantity.value
            summed[-1] = replace(
                quantity,
                value=-value if one.value < 0 else value,
                unit=one.unit if is_money else quantity.unit,
                start=one.start,
                text=text[one.start : quantity.end],
                numeral="",
                decreases=one.decreases or quantity.decreases,
            )
        else:
            summed.append(quantity)
    return summed


_COUNTED = re.compile(r"\s([^\W\d_]{2,})(?![\w-])")
_PER = re.compile(r"(?:\s[^\W\d_]{2,30}){0,2}(?:\s?/\s?|\sper\s)([^\W\d_]{3,30})")
_LESS_AFTER = re.compile(r"\s(?:less|fewer|lower|down)\b(?!\sthan\b)", re.I)
_LESS_BEFORE = re.compile(
    r"\b(?:decrease|loss|drop|fall|reduction|decline)\s+of\s+$"
    r"|\b(?:down|decreas(?:ed|es)|dropp?(?:ed|s)|f(?:ell|alls)|declin(?:ed|es)|reduc(?:ed|es)|shr(?:ank|inks))\s+(?:by\s+)?$",
    re.I,
)
_LESS_ENDS = ("of", "by", "down", "ed", "es", "s", "fell", "shrank")
"""Ends of the texts that `_LESS_BEFORE` matches."""
_ASKS_LESS = re.compile(
    r"\b(?:less|fewer|lower|down|decreas\w*|declin\w*|drop\w*|f[ae]ll\w*|reduc\w*|los[est]\w*|discount\w*|cheaper|save\w*"
    r"|behind|smaller|shorter|younger|slower|shr[aiu]nk\w*|difference)\b",
    re.I,
)
"""Matches words of a question that make a decrease the answer, so that "5" and "5 less" are one."""
_PARTS = {"%": 100, "‰": 1000}
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
    if not text.isascii() and (
        _UNKNOWN_BEFORE.search(before)
        or _UNKNOWN_AFTER.match(after)
        or _DENIED_BEFORE.search(before)
        or _DENIED_AFTER.match(after)
    ):
        return True
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
        dated = _DATED_BEFORE.search(before) if _YEAR.fullmatch(match["numeral"]) else None
        if dated and dated[1].lower() not in question.lower() and not _COUNTED.match(after):
            return True
    bound_after = _BOUND_AFTER.match(after) if _MAY_BOUND.search(after) else None
    if bound_after and bound_after[1].lower() not in question.lower():
        return True
    if "." in match["numeral"] and after.startswith(("...", "…")):
        return True
    if after.startswith("!") and asks_factorial(question):
        return True
    return months and (_MONTH_BEFORE.search(before) is not None or _MONTH_AFTER.match(after) is not None)


_FACTORIAL_ASKED = re.compile(
    r"factorial|\b(?:(?:many|different|possible|distinct)\s(?:[a-z]+\s)?(?:ways|orders|arrangements|seatings)|permutation"
    r"|combinations?\b|arranged\b|rearrange|orderings?\b|probabilit|trailing|simplif|evaluat|expression)|[\dn]\s?!",
    re.I,
)
"""Matches words of a question about arrangements, chances or formulas, and a factorial."""


@lru_cache(maxsize=64)
def asks_factorial(question: str) -> bool:
    """Returns whether a factorial may answer a question. "18!" is then 18 factorial, also in a sentence."""
    return _FACTORIAL_ASKED.search(question[-QUESTION_READ:]) is not None


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
        count = int(match["parts"]) if match["parts"].isdigit() else 1
        value += Fraction(count, FRACTION_OF[match["rest"].lower()])
    if match["part"] is not None and not _asks_scale(question, match["part"].lower().rstrip("s")):
        value /= FRACTION_OF[match["part"].lower()]
    for scale in (match["scale"] or "").lower().split():
        name = scale if scale in SCALE_OF else scale.rstrip("s")
        if not _asks_scale(question, name):
            value *= SCALE_OF[name]
    for sign in match["myriad"] or "":
        value *= MYRIADS[sign]
    if match["short"] is not None:
        value *= 10 ** EXPONENT_OF_LETTER[match["short"].lower()]
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
    return Fraction(numeral.translate(_WITHOUT_SEPARATORS))


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
    found = quantities(folded(strip_decoration(gold), question), question)
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
    text = _undressed(answer, question)
    if _OWED.fullmatch(text):
        return None
    if (equation := _PLAIN_EQUATION.fullmatch(text)) and int(equation[1]) != int(equation[2]):
        return None
    if _EXCLAIMED.match(text):
        return None
    if _is_unsure(text, question):
        return None
    if compared := _COMPARES.fullmatch(text):
        # "9.9 is bigger than 9.11" answers "Which is bigger?", and not "Which is smaller?".
        text = compared["subject"] if compared["how"].lower() in _names_in(question) else ""
    parts = [part for part in SENTENCE_END.split(text) if has_words(part)]
    if _calculates_several([part for part in parts if _DIGIT.search(part)]):
        return None
    return _of_sentence(conclusion, question) if (conclusion := _conclusion(parts)) else _of_first(parts, question)


_PLAIN_EQUATION = re.compile(r"(-?\d{1,15})\s?=\s?(-?\d{1,15})\.?")
"""Matches an equation of two plain numbers. "5 = 6" is wrong, and says neither number."""
_COMPARES = re.compile(r"(?P<subject>\S*\d\S*)\s(?:is|are|was|were)\s(?:\w+\s)?(?P<how>[A-Za-z]+)\sthan\s\S*\d\S*")
"""Matches a comparison of two numbers."""


def _is_unsure(text: str, question: str) -> bool:
    """Returns whether a text holds a hedge or a negation that the question does not have before the same word."""
    lower = text.lower()
    if TAKES_BACK.search(text) or ("too" in lower and _TOO_MUCH.search(text)):
        return True
    if "?" in text and ASKS_BACK.fullmatch(text):
        return True
    found = _WORDS.findall(lower.replace("'", ""))
    if _UNSURE.isdisjoint(found):
        return False
    return any(_hedges(word, after, question) for word, after in itertools.pairwise([*found, ""]))


def _hedges(word: str, after: str, question: str) -> bool:
    """Returns whether a word before the word `after` is a hedge or a negation that the question does not have there.

    "Or so" is none: it says "about".
    """
    return word in _UNSURE and (word, after) != ("or", "so") and (word, after) not in _pairs_in(question)


@lru_cache(maxsize=16)
def _pairs_in(question: str) -> frozenset[tuple[str, str]]:
    """Returns each word of a question with the word after it, in lower case."""
    return frozenset(itertools.pairwise(_WORDS.findall(question[-QUESTION_READ:].lower().replace("'", ""))))


def _conclusion(parts: list[str]) -> str:
    """Returns the last sentence with a numeral if it concludes from a sentence with a numeral before it: "So she has
    9."; empty otherwise.

    Args:
        parts: the sentences of a text.
    """
    numbered = [part for part in parts if _DIGIT.search(part)]
    if len(numbered) < 2 or _CONCLUDING.match(numbered[-1]):
        return numbered[-1] if len(numbered) > 1 else ""
    return numbered[-1] if _goes_on(numbered) else ""


_EXPLAINS = re.compile(
    r"\W*(?:(?:to\s+)?(?:check|verify)|verification|proof|this|that|it|because|since|as|note)\b", re.I
)


def _calculates_several(numbered: list[str]) -> bool:
    """Returns whether sentences calculate two results of which neither is used for the other: "2 * 3 = 6. 2 * 7 = 14."

    Args:
        numbered: the sentences with a numeral.
    """
    if len(numbered) < 2 or "=" not in numbered[0] or "=" not in numbered[-1] or _EXPLAINS.match(numbered[-1]):
        return False
    first, last = (part.rpartition("=") for part in (numbered[0], numbered[-1]))
    one, other = quantities(first[2]), quantities(last[2])
    if not one or not other or _goes_on(numbered) or _CONCLUDING.match(numbered[-1]):
        return False
    before = {quantity.numeral for part in numbered[:-1] for quantity in quantities(part)}
    return other[0].numeral not in before


def _goes_on(numbered: list[str]) -> bool:
    """Returns whether the last sentence calculates with the result of an earlier sentence: "12 - 3 = 9. 9 * 2 = 18."

    Args:
        numbered: the sentences with a numeral, at least two.
    """
    left, equals, right = numbered[-1].rpartition("=")
    if not equals or not _DIGIT.search(right) or _EXPLAINS.match(numbered[-1]):
        return False
    used = {quantity.numeral for quantity in quantities(left)}
    ends = [quantities(part.rpartition("=")[2]) for part in numbered[:-1] if "=" in part]
    return "=" in numbered[0] and any(end and end[0].numeral in used for end in ends)


def _of_first(parts: list[str], question: str) -> Quantity | None:
    """Returns the number of the first sentence. If that sentence has only numbers of the question, returns the one
    number that the sentences together add.

    A first sentence of at most `MAX_TEXT_ANSWER_WORDS` words without a number may be the answer: "Impossible."

    Args:
        parts: the sentences of a text. A sentence after the first may explain.
        question: the question.
    """
    if (
        len(parts) < 2
        or _added(parts[0], question)
        or not (rest := [part for part in parts[1:] if _added(part, question)])
    ):
        return _of_sentence(parts[0], question) if parts else None
    spoken = _WORDS.findall(parts[0].lower())
    if len(spoken) <= MAX_TEXT_ANSWER_WORDS and not _OPENERS.issuperset(spoken) and not _DIGIT.search(parts[0]):
        return None
    keys = {quantity.key for part in rest for quantity in _added(part, question)}
    return _of_sentence(rest[0], question) if len(keys) == 1 else None


def _added(sentence: str, question: str) -> list[Quantity]:
    """Returns the numbers of a sentence that the question does not give, and whose factorial it does not give."""
    given_keys = _given(question)
    return [
        quantity
        for quantity in quantities(sentence, question)
        if quantity.key not in given_keys and not (quantity.numeral in given_keys and "!" in quantity.text)
    ]


def _of_sentence(sentence: str, question: str) -> Quantity | None:
    """Returns the one number that a sentence gives; None if there is none or several.

    Args:
        sentence: the sentence, folded. Only its part after "so" or "therefore" is read, if that part has a numeral.
        question: numbers that the question gives count only if there is no other.
    """
    if _has_several_values(sentence):
        return None
    if sentence.rstrip(" .").endswith("="):
        return None
    if (aside := _ASIDE.search(sentence)) and _DIGIT.search(sentence, 0, aside.start()):
        found_before = _of_sentence(sentence[: aside.start()], question)
        if found_before is not None and found_before.value is not None:
            if _is_explained_by(aside[1], {found_before.value}, question):
                return found_before
            if found_before.key not in _given(question):
                return None
    if (because := _BECAUSE.search(sentence)) and _DIGIT.search(sentence, 0, because.start()):
        stated, explanation = sentence[: because.start()], sentence[because.end() :]
        found_before = _of_sentence(stated, question)
        if found_before is not None and found_before.value is not None and found_before.key not in _given(question):
            return found_before if _only_explains(explanation, {found_before.value}, question) else None
        sentence = sentence if _SIDE.search(explanation) else stated
    conclusion = _CONCLUDES.split(sentence)[-1]
    first = conclusion if _DIGIT.search(conclusion) else sentence
    # The sides of an equation, the last one first.
    sides = [(side, found) for side in _SIDE.split(first) if (found := quantities(side, question))]
    if _is_equation(first):
        return None
    if len(sides) > 1:
        for side, found in (sides[-1], *reversed(sides[:-1])):
            if len({quantity.key for quantity in found}) == 1 and found[0].value is not None:
                if found[0].key in _given(question) and _only_describes(first, side, question):
                    break  # "160 days for 3 books that are 400 pages each"
                if _LONG_WORD.search(side, 0, found[0].start) and _is_counted_subject(sides[0]):
                    break  # "9 are left after 3 are sold"
                return found[0] if _is_answer(side, found[0].start, found[-1].end, question) else None
            if not _SOLVABLE.fullmatch(side):
                break
        if any(quantity.value is None for quantity in sides[-1][1]) and _SOLVABLE.fullmatch(sides[-1][0]) is None:
            return None
    # Numbers that the question did not give.
    found = quantities(first, question)
    if any(not _SAID_AGAIN.search(first[quantity.end : other.start]) for quantity, other in itertools.pairwise(found)):
        return None  # "5 5" is not 5
    found = tuple(quantity for quantity in found if not _NUMBERS_NEXT.match(first, quantity.end)) or found
    values = {quantity.key: quantity for quantity in found}
    given_keys = _given(question)
    left = {
        key: quantity
        for key, quantity in values.items()
        if key not in given_keys and not (quantity.value is None and quantity.numeral in given_keys)
    }
    left = left or values
    if len(left) != 1 or _is_listed_with_others(first, found, left, question):
        return None
    quantity = next(iter(left.values()))
    before = first[max(0, quantity.start - MOST_BEFORE_END) : quantity.start]
    if _LOWER_END.search(before) or _UPPER_END.search(before):
        return None
    alone = quantity.value is not None and _is_answer(first, quantity.start, quantity.end, question)
    return quantity if alone else None


def _is_explained_by(aside: str, stated: Set[Fraction], question: str) -> bool:
    """Returns whether numbers in brackets only explain the stated values.

    They are numbers of the question, or at most as large as the largest stated value, and `_only_explains` holds.
    """
    inside = quantities(aside, question)
    if "=" in aside or (inside and all(quantity.value in stated for quantity in inside)):
        return not _is_unsure(aside, question) and _only_explains(aside, stated, question)
    if _changes(aside):
        return False
    most, given_keys = max(map(abs, stated), default=0), _given(question)
    small = all(
        quantity.value is not None and (abs(quantity.value) <= most or quantity.key in given_keys)
        for quantity in inside
    )
    return small and _only_explains(aside, stated, question)


_BECAUSE = re.compile(
    r",?\s(?:because|since|(?<=,\s)as(?=\s\d)"
    r"|as(?=\s(?:she|he|it|they|we|you|I|there|the|this|that|these|those|all|each|every|her|his|its|their|our|my)\b))\s"
)
"""Matches what leads from a number to its explanation: "18 because she ate 2". In "18 as well as 17" and "written as
18" there is none.
"""
_CLAUSE_ENDS = re.compile(
    r"[,;:.()]|\b(?:and|but|or|so|thus|hence|if|unless|when|whenever|while|with|without|because|since|as|that|which|who"
    r"|after|before|though|although|otherwise|assuming|counting|including|excluding)\b",
    re.I,
)
"""Matches the ends of the part of an explanation in which a number stands."""
_EACH = re.compile(r"\s?/|(?:\s[^\W\d_]+)?\s(?:each|apiece|every|per|an?|at\s+a\s+time)\b", re.I)
"""Matches what makes a number a rate: "9 each", "9 eggs per day"."""
_STATING = frozenset(
    """she he it they we you i there is are am has have equals gives makes get gets be the a an of her his its their
    our your my them this that these those still only just exactly about really actually
    in total totally altogether overall then left remaining remain remains leaves leave alone answer also""".split()
)
"""Words with which a number states what is asked, whatever that is: "she has 17 left". Words of the past tell what was
before, and are not among them: "she had 20".
"""
_PRESENT = frozenset("now today currently".split())
_ANOTHER_TIME = frozenset("will would was were did had ago later".split())
"""Words of a question that asks for another time, so that "she is 13 now" is not what is asked."""
_COUNTED_NOUN = re.compile(r"\bhow\s+(?:many|much)\s+([^\W\d_]+)", re.I)


def _only_explains(explanation: str, stated: Set[Fraction], question: str) -> bool:
    """Returns whether no number of an explanation contradicts the stated values.

    "18 because she ate 2" is 18. In "18 because she has 17 left" and "18 (17 if 1 is broken)" a second number states
    what is asked, so that the answer is neither number.

    Args:
        explanation: text after "because", or in brackets.
        stated: values that the answer states before the explanation.
        question: the question.
    """
    if "=" in explanation:
        result = quantities(explanation.rpartition("=")[2], question)
        return bool(result) and result[0].value in stated
    inside = quantities(explanation, question)
    asking = _asking_stems(question)
    neutral = _STATING_STEMS | (_PRESENT if asking.isdisjoint(_ANOTHER_TIME) else frozenset())
    noun = {stem(found[1].lower()) for found in _COUNTED_NOUN.finditer(question[-QUESTION_READ:])}
    calculated = _calculated([quantity.value for quantity in inside if quantity.value is not None])
    for quantity in inside:
        if quantity.value is None or quantity.value in stated or quantity.key in _given(question):
            continue
        if _EACH.match(explanation, quantity.end):
            continue
        before = _CLAUSE_ENDS.split(explanation[: quantity.start])[-1]
        after = explanation[quantity.end :]
        ended = _CLAUSE_ENDS.search(after)
        clause = words(f"{before} {after[: ended.start()] if ended else after}")
        beside = set(map(stem, clause)) - neutral
        is_condition = ended is not None and ended.group().lower() in _CONDITIONS
        if beside <= asking and (is_condition or not beside <= noun or calculated.isdisjoint(stated)):
            return False
    return True


_STATING_STEMS = frozenset(map(stem, _STATING))
_CONDITIONS = frozenset(
    "if unless when whenever with without before after otherwise assuming counting including excluding".split()
)
"""Words after a number that make it the answer in another case: "17 if 1 is broken"."""


def _calculated(values: Sequence[Fraction]) -> set[Fraction]:
    """Returns the sum of values, and of two values also the difference, product and quotient."""
    results = {sum(values, Fraction(0))} if len(values) > 1 else set()
    if len(values) == 2:
        one, other = values
        results |= {one - other, other - one, one * other}
        results |= {top / bottom for top, bottom in ((one, other), (other, one)) if bottom}
    return results


@lru_cache(maxsize=64)
def _asking_stems(question: str) -> frozenset[str]:
    """Returns the stems of the words of the sentence that asks."""
    parts = sentences(without_accents(question[-QUESTION_READ:]))
    asking = next((part for part in reversed(parts) if part.rstrip().endswith("?")), parts[-1] if parts else "")
    return frozenset(map(stem, words(asking)))


MIN_REPEATED = 2
"""Fewest numbers of a question's list that an answer repeats before its own number."""
_LISTED = re.compile(r"\s*(?:,|;|&|(?:,\s*)?\b(?:and|or)\b)\s*")


def _is_listed_with_others(
    text: str, found: tuple[Quantity, ...], left: dict[tuple[object, str], Quantity], question: str
) -> bool:
    """Returns whether a number of the answer stands in a list beside a number that the question gives: "2 and 1/2" to
    "What are the two numbers?". A list that only goes on with the question's own list does not count.

    Args:
        text: the text.
        found: its numbers, in order.
        left: the numbers that the question does not give.
        question: the question.
    """
    repeated = text[found[0].start : found[-1].start].rstrip(" ,")
    if len(found) > MIN_REPEATED and found[-1].key in left and repeated in question:
        return False  # "4, 8, 12, 16" to "Count on: 4, 8, 12"
    return any(
        (one.key in left) != (other.key in left) and _LISTED.fullmatch(text, one.end, other.start)
        for one, other in itertools.pairwise(found)
    )


def _is_answer(text: str, start: int, end: int, question: str) -> bool:
    """Returns whether a number is part of no formula, and only known words and signs stand right beside it.

    Args:
        text: the text.
        start: where the number begins in the text.
        end: where the number ends.
        question: the question.
    """
    return _is_alone(text, start, end) and is_known_beside(text, start, end, question)


def _has_several_values(text: str) -> bool:
    """Returns whether a text gives values to several letters, or several values to one."""
    return len(set(_ASSIGNED.findall(text))) > 1 or _ASSIGNED_AGAIN.search(text) is not None


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


_SUBJECT = re.compile(r"\W*(?:[^\W\d_]+\W*){0,2}")


def _is_counted_subject(side: tuple[str, tuple[Quantity, ...]]) -> bool:
    """Returns whether a part of a sentence is one number with at most two words: "9" or "9 red eggs" before "are"."""
    text, found = side
    alone = len(found) == 1 and found[0].value is not None and not has_words(text[: found[0].start])
    return alone and _SUBJECT.fullmatch(text, found[0].end) is not None


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
    before, after = (
        text[max(0, start - MOST_AROUND_NUMBER) : start].rpartition("=")[2],
        text[end : end + MOST_AROUND_NUMBER],
    )
    beside = _LONG_WORD_WHOLE.findall(_COMMANDS.sub(" ", f"{before} {after}").replace("π", " "))
    if any(
        word.lower() not in _OPERATES_ON and (len(word) > 2 or word in ("in", "AD") or not unit_at(word, 0))
        for word in beside
    ):
        return True
    return not beside and not _OPERATORS.search(before) and not _OPERATORS.search(after)


@lru_cache(maxsize=16)
def _given(question: str) -> frozenset[object]:
    """Returns `Quantity.key` and the digits (`Quantity.numeral`) of each number that a question states."""
    parts = SENTENCE_END.split(folded(without_accents(question[-QUESTION_READ:]), question))
    found = [quantity for part in parts for quantity in quantities(part, question)]
    return frozenset((*(quantity.key for quantity in found), *(quantity.numeral for quantity in found)))


_HALF = re.compile(r"\W*(?:one\s+|a\s+)?half\W*", re.I)
_OWED = re.compile(r"\(\s?[$€£¥]\s?[\d.,]+\s?\)")
"""Matches an amount in brackets, which accountants read as negative."""
_TIGHT_LIST = re.compile(r"[-−–]?\d+(?:,[-−–]?\d+){2,}")
_GROUPED_ONLY = re.compile(_GROUPED)
_SPACED_MINUS = re.compile(r"[-−–]\s+(?=[\d.$£€¥])([^\n]*)")
_CROSSED_OUT = re.compile(r"~~[^~\n]+~~")
_CALCULATED = re.compile(r"<<[^<>\n]{1,200}>>")
"""Matches the note of a calculator as GSM8K writes it: "2 + 1 = <<2+1=3>>3"."""


@lru_cache(maxsize=16)  # an answer that is no single number is read as several numbers next
def _undressed(answer: str, question: str) -> str:
    """Returns the last part of an answer, folded and without decoration.

    A minus before a lone number is read as its sign, not as a bullet.
    """
    text = last_part(answer.strip())
    if "<<" in text:
        text = _CALCULATED.sub("", text)
    if "~~" in text:
        text = _CROSSED_OUT.sub("", text)
    if _HALF.fullmatch(text):
        return "1/2"
    if _TIGHT_LIST.fullmatch(text) and not _GROUPED_ONLY.fullmatch(text.lstrip("-−–")):
        text = text.replace(",", ", ")  # "1,2,3"
    spaced = _SPACED_MINUS.fullmatch(text)
    if spaced and not any(map(str.isalpha, text)):
        text = "-" + spaced[1]
    return folded(strip_decoration(text), question)


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
    stated = _several_numbers(question, answer)
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


_YEAR = re.compile(r"1\d{3}|20\d\d")
"""Matches a number that is a year unless a known unit follows."""


@lru_cache(maxsize=64)
def _names_in(question: str) -> frozenset[str]:
    """Returns the stems of the words of a question."""
    return frozenset(map(stem, words(without_accents(question[-QUESTION_READ:]))))


def _form(quantity: Quantity, question: str) -> str:
    """Returns the value with its unit."""
    unit = without_asked(quantity.unit, quantity.dimension, question)
    if quantity.per and not _is_named(quantity.per.casefold(), question):
        unit = f"{unit}/{stem(quantity.per.casefold())}"
    less = "less" if quantity.decreases and not _asks_less(question) else ""
    return " ".join(part for part in (less, str(quantity.value), unit) if part)


@lru_cache(maxsize=64)
def _asks_less(question: str) -> bool:
    return _ASKS_LESS.search(question[-QUESTION_READ:]) is not None


def _is_named(word: str, question: str) -> bool:
    """Returns whether a question names what is counted, also in the plural: "fish" in "How many fishes?"."""
    named = _names_in(question)
    return stem(word) in named or any(name.startswith(word) for name in named)


def _several_numbers(question: str, answer: str) -> str:
    """Returns the numbers of an answer that is no single number, with what makes them another answer: "3 5", "3 or 5",
    "not 5".

    A list is numbers with at most one word after each, and a comma, "and" or "or" between them. All numbers of the
    answer belong to the list, but those that the question gives. Empty if there is no such list, or if a number of the
    list cannot be read as a whole.
    """
    text = _undressed(answer, question)
    if _OWED.fullmatch(text):
        return ""
    if (aside := _ASIDE.search(text)) and _DIGIT.search(text, 0, aside.start()):
        before_aside = quantities(text[: aside.start()], question)
        stated = {quantity.value for quantity in before_aside if quantity.value is not None}
        text = text[: aside.start()] if _is_explained_by(aside[1], stated, question) else text
    whole, text = text, _conclusion([part for part in SENTENCE_END.split(text) if has_words(part)]) or text
    found = quantities(text, question)
    if not found or len(found) > MOST_NUMERALS or _EXCLAIMED.match(text):
        return ""
    if _has_several_values(text) or _is_equation(text) or text.rstrip(" .").endswith("="):
        return ""
    found = _without_given(text, found, question)
    between = [text[quantity.end : other.start] for quantity, other in itertools.pairwise(found)]
    first = len(found) - 1
    while first > 0 and _JOINT.fullmatch(between[first - 1]):
        first -= 1
    listed = found[first:]
    known = {*_given(question), *(quantity.key for quantity in listed)}
    if any(quantity.value is None for quantity in listed) or any(quantity.key not in known for quantity in found):
        return ""
    if first and not _is_apart(words(between[first - 1])):
        return ""
    if not _is_alone(text, listed[0].start, listed[-1].end) or _OR_AFTER.match(text, listed[-1].end):
        return ""
    ends = [*(_JOINT_ENDS.sub("", text[: quantity.start]) for quantity in listed[1:]), text]
    if not is_known_before(text, listed[0].start, question) or not all(
        is_known_after(until, quantity.end, question) for until, quantity in zip(ends, listed, strict=True)
    ):
        return ""
    if _calculates_several([part for part in SENTENCE_END.split(whole) if _DIGIT.search(part)]):
        return ""
    if any("than" in words(joint) for joint in between) or (len(listed) == 1 and _is_denied_after(text, listed[0])):
        return ""
    values = [_form(quantity, question) for quantity in listed]
    form = values[:1]
    for joint, value in zip(between[first:], values[1:], strict=True):
        form += ["or", value] if "or" in words(joint) else [value]
    before = words(between[first - 1] if first else text[: found[0].start])[-_NEAR:]
    hedges = [one for one, after in itertools.pairwise([*before, ""]) if _hedges(one, after, question)]
    return " ".join([*hedges, *form])


_JOINT_ENDS = re.compile(r"(?:\b(?:and|or)\b|[^\w\s)]|\s)+\Z", re.I)
"""Matches what joins a number of a list to the next number, without the word that says what is counted."""
_DENIES_AFTER = re.compile(
    r"[^.!?\n]{0,40}\b(?:is|was|are|seems|looks)(?:\s(?:not\s(?:right|correct|true|the\sanswer)|wrong|incorrect|false)|n't\s(?:right|correct))"
    r"|[^.!?\n]{0,20}\?\s*(?:no|nope|wrong)\b",
    re.I,
)


def _is_denied_after(text: str, quantity: Quantity) -> bool:
    """Returns whether the text takes a number back: "18 is wrong", "18? No." and "18. My mistake"."""
    return bool(_DENIES_AFTER.match(text, quantity.end) or TAKES_BACK.search(text) or _TOO_MUCH.search(text))


_ASIDE = re.compile(r"\s\(([^()\n]{0,200}\d[^()\n]{0,200})\)?[\s.!*]*\Z")
"""Matches an explanation with a number in brackets at the end: "28.3 cm (using 3.14)"."""
_CHANGING = _UNSURE | {"mod", "base", "to"}


def _changes(aside: str) -> bool:
    """Returns whether an explanation in brackets makes a number another answer: "5 (mod 7)", "5 (or 6)"."""
    said = words(aside)
    return not any(map(str.isalpha, said)) or not _CHANGING.isdisjoint(said)


_OR_AFTER = re.compile(r"\W*\bor\b(?!\s+(?:so|about)\b)", re.I)
"""Matches another answer after a number: "7 or undefined"."""
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


def _is_apart(joint: tuple[str, ...]) -> bool:
    """Returns whether the words between two numbers start a second statement; in "3 to 5" and "5 or 6" they do not."""
    if joint[-2:] in _RATIOS or "or" in joint:
        return False
    return (len(joint) > 1 and any(_LONG_WORD.search(word.replace("π", " ")) for word in joint)) or "but" in joint


_RATIOS = (("out", "of"), ("of", "the"), ("for", "every"), ("for", "each"), ("in", "every"))
"""Last words between two numbers that make a ratio of them."""


_MATHEMATICAL = re.compile(r"[\d\\^√π∞∅±=<>≤≥+∪∩]")
MAX_TEXT_ANSWER_WORDS = 2
"""Most words of an answer without a numeral that is compared as text, such as "no solution". A longer one counts as no
answer.
"""


MAX_NUMBER_TEXT_WORDS = 6
"""Most words of an answer whose number is spelled out and that is compared as text, such as "ten past seven"."""


def _as_text(question: str, answer: str) -> str:
    """Returns an answer that is no number as a text that never equals a number. Empty if it only says that
    it has none.
    """
    if len(answer) > MOST_READ:
        return f"{AS_TEXT} {plain_form(answer)}"
    bare = strip_decoration(answer)
    spoken = words_beside(bare, question)
    count = len(bare.split())
    with_number = count <= MAX_NUMBER_TEXT_WORDS and _DIGIT.search(with_digits(bare))
    if not spoken or not (_MATHEMATICAL.search(bare) or count <= MAX_TEXT_ANSWER_WORDS or with_number):
        return ""
    return f"{AS_TEXT} {' '.join(spoken)}"


AS_TEXT = "text:"
"""Prefix of the form of an answer that is not a number, although the question asks for one."""


def same_quantity(one: Quantity, gold: Quantity, question: str) -> bool:
    """Returns whether a number equals the gold number.

    If the gold has no unit, the answer may have a unit that `suits_question`: "18 dollars" equals 18 if the question
    does not ask for something else. A per cent, a dozen or a thousand is no unit but a part of the value.

    Args:
        one: number of the answer.
        gold: the gold number.
        question: the question.
    """
    if one.per and not gold.per and not is_rate_named(one.per, question):
        return False
    if one.value != gold.value or (one.decreases and not gold.decreases and not _asks_less(question)):
        return False
    unit, gold_unit = (without_asked(each.unit, each.dimension, question) for each in (one, gold))
    if gold_unit:
        return unit == gold_unit
    return not unit or suits_question(one.unit, one.dimension, question)
