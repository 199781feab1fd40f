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
    last_question,
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

_BAD_RIGHT_BEFORE = (
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
_BAD_BEFORE_BLANK = (
    r"[<>≤≥±∓≠∈×÷·^√π{\[|\\:](?<!\w:)(?<![^\W\d_]{2}\s:)",
    r"(?<![\w'])[b-zB-HJ-Z]",  # a lone letter, which is no "a" and no "I"
    r"[\d)}%π∞]\s?\s?[xX]",
    r"[\d)}%]\s*-",
    r"[)\d]\s*[*+/]",
    r"\b[a-zA-Z]\s*[-+*/]",
    r"\d:|[\]}]|(?<!\w)/|[<>^\[\]+*/π±√∞-]\s?[-+*/xX]",
)
_BAD_BEFORE = re.compile(
    rf"(?:{'|'.join(_BAD_RIGHT_BEFORE)})$|(?:{'|'.join(_BAD_BEFORE_BLANK)})\s{{1,2}}$|\d[xX]$|[\w)\]}}%π√∞]\s*[*×÷·/+]\s*$|[\]}}]\s*-\s*$|\d\s*-\s*$"
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
_OPENING_SIGNS = "\\([{$"
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
_MAY_BE_DECIMAL_COMMA = re.compile(r"\d,(?:\d{1,2}(?!\d)|(?<=0,)\d)")
"""Matches what every text has that `_DECIMAL_COMMA` matches. It is faster."""
_SCALED = re.compile(rf"\s?(?:[×·*]\s?10\s?(?:\^|\*\*)|(?:{SCALE_WORD})\b|[€£¥$])", re.I)
"""Matches what follows a decimal number, but no list of two numbers."""
_ERAS = {
    "BC": re.compile(r"\b(?:v\.\s?Chr\b\.?|av\.\s?J\.\s?-\s?C\b\.?|a\.\s?C\.|до\sн\.\s?э\.)"),
    "AD": re.compile(r"\b(?:n\.\s?Chr\b\.?|ap\.\s?J\.\s?-\s?C\b\.?|d\.\s?C\.|н\.\s?э\.)"),
}
"""Years before and after Christ, in German, French, Spanish, Italian and Russian."""
_ARROWS = re.compile(r"[-=]>|→|⇒|⟹")
_SIDE_SIGNS = re.compile(r"=|≈|\b(?:is|are|equals|makes)\b")
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
_SHORT_ANSWER = re.compile(r"(-?)(\$?)(\d{1,15}|\d{1,3}(?:,\d{3}){1,4})(\.\d{1,12})?\.?")
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
_MOST_WORDS_TO_NEGATION = 4
"""Number of words before a number in which "not" negates the number."""
_DECORATION = r"[^\w=+*/^×÷-]{0,3}"
_JOINT = re.compile(
    rf"{_DECORATION}(?:[^\W\d_]+{_DECORATION})?(?:[,;&]|\b(?:and|or)\b){_DECORATION}(?:(?:and|or)\b{_DECORATION})?",
    re.I,
)
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
_ABOUT_ABBREVIATION = re.compile(r"\b(?:c|ca|cca|approx|est|abt)\.\s?(?=[\d$£€~])", re.I)
"""Matches an abbreviation of "about" before a number. Its point ends no sentence."""
_MIXED = re.compile(r"(?<![\d.,/^])(\d{1,6})\ (?:and|&)\ (\d{1,3})\s?/\s?(\d{1,3})(?![\d./^]*\d)")
"""Matches "2 and 7/8"."""
_NAMES_SEVERAL = re.compile(
    r"\b(?:roots?|solutions?|zeros?|zeroes|values|numbers|answers|both|respectively|fractions|slopes|x\s?=)", re.I
)
"""Matches words of a text or question that want several numbers: "2 and 1/2" are two roots."""


def _one_number(fraction_match: re.Match[str]) -> str:
    """Returns "2 7/8" for "2 and 7/8", unless it may be a list of two numbers."""
    whole_digits, top, bottom = fraction_match.groups()
    before = fraction_match.string[: fraction_match.start()].rstrip()
    may_be_list = before.endswith((",", ";", "=")) or _NAMES_SEVERAL.search(fraction_match.string)
    return fraction_match.group() if may_be_list or int(top) >= int(bottom) else f"{whole_digits} {top}/{bottom}"


def folded(text: str, question: str = "") -> str:
    """Returns a text with number words as digits, arrows as `=`, and years before and after Christ as BC and AD.

    A decimal comma becomes a point where `question` is asked in a language that writes it, or where a unit follows.
    """
    text = with_digits(text)
    if "sq" in text or "Sq" in text or "cu" in text:
        text = _SHORT_POWER.sub(r"\1 ", text)
    if "=" in text or ">" in text:
        text = _ASCII_RELATIONS.sub(lambda match: _RELATION_OF[match.group()], text)
    if "." in text:
        text = _ABOUT_ABBREVIATION.sub("about ", text)
    if "/" in text and " and " in text:
        text = text if _NAMES_SEVERAL.search(question[-QUESTION_READ:]) else _MIXED.sub(_one_number, text)
    if " to the " in text:
        text = TO_THE_POWER.sub(power_sign, text)
    if _MAY_BE_HOURS.search(text):
        text = _HOURS_MINUTES.sub(r"\1 h \2\3 min", text)
    if "," in text and _MAY_BE_DECIMAL_COMMA.search(text) and _DECIMAL_COMMA.search(text):
        needs_no_sign = _asks_in_commas(question)
        text = _DECIMAL_COMMA.sub(lambda match: _with_point(match, needs_no_sign=needs_no_sign), text)
    for era, pattern in _ERAS.items():
        if "." in text:
            text = pattern.sub(era, text)
    return _ARROWS.sub(_equals_sign, text) if ">" in text or not text.isascii() else text


def _equals_sign(arrow: re.Match[str]) -> str:
    """Returns "=" for an arrow to a result. After a letter alone the arrow stays: "x -> 5" is a limit."""
    before = arrow.string[: arrow.start()].rstrip()[-2:]
    return "→" if before[-1:].isalpha() and not before[:-1].isalpha() else "="


def _with_point(numeral_match: re.Match[str], *, needs_no_sign: bool) -> str:
    """Returns a numeral with a point for its comma, if it is one number and no list.

    A currency, a unit, a scale or a power of ten beside it shows that. With `needs_no_sign` it needs none.
    """
    text, end = numeral_match.string, numeral_match.end()
    is_one = needs_no_sign or numeral_match["currency"] or _SCALED.match(text, end) or unit_at(text, end)
    return numeral_match.group().replace(",", ".") if is_one else numeral_match.group()


@lru_cache(maxsize=256)  # the parts of one answer are looked at several times
def quantities(text: str, question: str = "") -> tuple[Quantity, ...]:
    """Returns the numerals of a folded text. A numeral has a value if everything that belongs to it can be read.

    If `question` asks for a scale or per cent, the numeral's own scale or per cent is dropped. Of a text with more than
    `MOST_NUMERALS` the first ones are returned, and the next one has no value.
    """
    names_month = _MAY_BE_MONTH.search(text) is not None and _MONTHS.search(text) is not None
    found_quantities: list[Quantity] = []
    position = 0
    while digit := _DIGIT.search(text, position):
        match = _QUANTITY.search(text, max(position, digit.start() - BEFORE_DIGIT))
        if match is None:
            break
        # The value, and the unit after the numeral or the currency before it.
        value = _value(match, question)
        unit = unit_at(text, match.end())
        unit_name, dimension = unit_of(unit) if unit else ("", "")
        end = unit.end() if unit else match.end()
        if currency := match["currency"]:
            currency_name, currency_dimension = _currency_unit(currency)
            rate = unit_name.partition("/")[2]
            if unit and unit_name and not unit_name.startswith(currency_name):
                value = None
            unit_name, dimension = (
                (f"{currency_name}/{rate}", "money/per") if rate else (currency_name, currency_dimension)
            )
            if not unit and (rate_match := _CURRENCY_RATE.match(text, end)):
                unit_name = f"{currency_name}/{_currency_unit(rate_match[1])[0]}"
                dimension, end = "money/per", rate_match.end()
        # Signs and words beside the numeral may take its value away.
        before = text[max(0, match.start() - 24) : match.start()]
        if (
            found_quantities
            and found_quantities[-1].unit
            and not match["sign"]
            and text[found_quantities[-1].end : match.start()].isspace()
        ):
            before = ""  # "1 h 30 min"
        if value is not None and _is_part(before, text, end, match, question, names_month=names_month):
            value = None
        if after_month := _MONTH_ABROAD.match(text, end):
            value, end = None, after_month.end()
        if unit_name.startswith("%^"):  # "18%3"
            value = None
        # A per cent is a part of the value.
        if unit_name in _DIVISOR_OF_SIGN:
            if value is not None and not (unit_name == "%" and _asks_percent(question)):
                value /= _DIVISOR_OF_SIGN[unit_name]
            unit_name = dimension = ""
        rate_match = None if unit_name or unit else _COUNTED_PER.match(text, end)
        match_until_blank = _UNTIL_BLANK.match(text, end)
        surrounding_text = (
            before.rpartition(" ")[2] + text[match.start() : match_until_blank.end() if match_until_blank else end]
        )
        found_quantities.append(
            Quantity(
                value,
                unit_name,
                dimension,
                match.start(),
                end,
                surrounding_text,
                match["numeral"],
                rate_match[1] if rate_match else "",
                _LESS_AFTER.match(text, end) is not None
                or (before.rstrip().lower().endswith(_LESS_ENDS) and _LESS_BEFORE.search(before) is not None),
            )
        )
        if len(found_quantities) > MOST_NUMERALS:
            found_quantities[-1] = Quantity(
                None, "", "", match.start(), end, text[match.start() : match.start() + MOST_AROUND_NUMBER]
            )
            break
        position = max(end, match.end(), position + 1)
    return tuple(_summed(found_quantities, text)) if len(found_quantities) > 1 else tuple(found_quantities)


_ADDED_UP = re.compile(r"\s*(?:,\s*)?(?:(?:and|und|et|y|e|и)\s+)?", re.I)
"""Matches text between two quantities that are one, as in "1 hour and 30 minutes"."""


def _summed(quantities_in_order: list[Quantity], text: str) -> list[Quantity]:
    """Returns quantities with those in two units of one kind added up: "1 h 30 min" is 90 min.

    The smaller unit comes second, and its number gives less than one of the larger unit. The sum is in the smaller
    unit, but money is in the larger one: "5 dollars and 20 cents" is $5.20.

    Args:
        quantities_in_order: numerals of a text, in order.
        text: the text.
    """
    summed = quantities_in_order[:1]
    for quantity in quantities_in_order[1:]:
        previous, smaller_per_larger = summed[-1], units_in(summed[-1].unit, quantity.unit)
        if (
            smaller_per_larger
            and previous.value is not None
            and quantity.value is not None
            and previous.value.denominator == 1
            and 0 <= quantity.value < smaller_per_larger
            and _ADDED_UP.fullmatch(text, previous.end, quantity.start)
        ):
            is_money = quantity.dimension == "money"
            value = (
                abs(previous.value) + quantity.value / smaller_per_larger
                if is_money
                else abs(previous.value) * smaller_per_larger + quantity.value
            )
            summed[-1] = replace(
                quantity,
                value=-value if previous.value < 0 else value,
                unit=previous.unit if is_money else quantity.unit,
                start=previous.start,
                text=text[previous.start : quantity.end],
                numeral="",
                decreases=previous.decreases or quantity.decreases,
            )
        else:
            summed.append(quantity)
    return summed


_COUNTED_NAME = re.compile(r"\s([^\W\d_]{2,})(?![\w-])")
_COUNTED_PER = re.compile(r"(?:\s[^\W\d_]{2,30}){0,2}(?:\s?/\s?|\sper\s)([^\W\d_]{3,30})")
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
_DIVISOR_OF_SIGN = {"%": 100, "‰": 1000}
_UNTIL_BLANK = re.compile(r"\S{1,24}")
_CURRENCY_RATE = re.compile(r"\s?(?:/|per\b)\s?([^\W\d_]+)")


@lru_cache(maxsize=64)
def _asks_percent(question: str) -> bool:
    """Returns whether the sentence that asks, or its end, names per cent."""
    asking_sentence = last_question(sentences(question[-QUESTION_READ:]))
    return re.search(r"percent|per\s+cent|(?<!\d)\s%|%\s*\?", asking_sentence, re.I) is not None


@lru_cache(maxsize=64)
def _asks_scale(question: str, scale: str) -> bool:
    """Returns whether the question asks in a scale, such as dozens or millions: names it without a number before it."""
    asking_sentence = last_question(sentences(without_accents(question[-QUESTION_READ:])))
    return re.search(rf"(?<!\d\s)(?<!\d)\b{scale}s?\b", asking_sentence, re.I) is not None


def _currency_unit(name: str) -> tuple[str, str]:
    unit_match = unit_at(name.strip().rstrip("."), 0)
    return unit_of(unit_match) if unit_match else (name.strip().casefold(), "")


def _is_part(before: str, text: str, end: int, match: re.Match[str], question: str, *, names_month: bool) -> bool:
    """Returns whether the numeral belongs to something longer that is not a number: a root, a range, a bound, a date.

    Args:
        before: the characters before the numeral.
        text: the whole text.
        end: where the numeral ends in the text, with its unit.
        match: the numeral, as `_QUANTITY` finds it.
        question: a bound that the question names is no part of the answer.
        names_month: whether the text names a month.
    """
    after = text[end : end + 24]
    sign = match["sign"]
    # Signs of other scripts, which an ASCII text has not.
    if not text.isascii() and (
        _UNKNOWN_BEFORE.search(before)
        or _UNKNOWN_AFTER.match(after)
        or _DENIED_BEFORE.search(before)
        or _DENIED_AFTER.match(after)
    ):
        return True
    if sign == "-" and (before.endswith("-") or _DIGIT_BEFORE.search(before)):  # "--5", "5 -3"
        return True
    # Signs and letters right before and right after the numeral.
    if (len(before) > 2 and before[-1] == " " and before[-3:-1].isalpha() and "π" not in before[-3:]) or (
        not before and not sign and not match["currency"]
    ):
        match_before = None  # a word before it
    else:
        match_before = not (sign and sign.strip() != sign) and _BAD_BEFORE.search(before, max(0, len(before) - NEAREST))
    if match_before and not _BULLETS.search(before):
        return True
    if before.endswith("(") and (after[:1] == "]" or _COMMA_AFTER.match(after)):
        return True
    word_after = _WORD_AFTER.match(after)
    if not (after in ("", ".") or (word_after and word_after[1] not in _OPERATES)) and _BAD_AFTER.match(after):
        return True
    word_before = before.rstrip().rpartition(" ")[2] if before[-1:].isspace() else ""
    if word_before.startswith("\\"):  # a command of LaTeX
        return True
    # Words that name a function, a bound or a date.
    if word_before.lstrip(_OPENING_SIGNS).lower() in _FUNCTIONS_END:
        bound_before = _BOUND_BEFORE.search(before)
        if _FUNCTION_BEFORE.search(before) or (bound_before and bound_before[1].lower() not in question.lower()):
            return True
        date_before = _DATED_BEFORE.search(before) if _YEAR.fullmatch(match["numeral"]) else None
        if date_before and date_before[1].lower() not in question.lower() and not _COUNTED_NAME.match(after):
            return True
    bound_after = _BOUND_AFTER.match(after) if _MAY_BOUND.search(after) else None
    if bound_after and bound_after[1].lower() not in question.lower():
        return True
    if "." in match["numeral"] and after.startswith(("...", "…")):
        return True
    if after.startswith("!") and asks_factorial(question):
        return True
    return names_month and (_MONTH_BEFORE.search(before) is not None or _MONTH_AFTER.match(after) is not None)


_FACTORIAL_ASKED = re.compile(
    r"factorial|\b(?:(?:many|different|possible|distinct)\s(?:[a-z]+\s)?(?:ways|orders|arrangements|seatings)|permutation"
    r"|combinations?\b|arranged\b|rearrange|orderings?\b|probabilit|trailing|simplif|evaluat|expression)|[\dn]\s?!",
    re.I,
)
"""Matches words of a question that a factorial may answer, as about arrangements, chances or formulas, and a factorial
that the question itself writes, such as "5!".
"""


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
    # The exponent of the numeral itself, or of a ten after it.
    own_exponent = next((match[name] for name in ("e1", "e2", "e3") if match[name] is not None), None)
    exponent_of_ten = next((match[name] for name in ("e", "t1", "t2", "t3") if match[name] is not None), None)
    for exponent in (own_exponent, exponent_of_ten):
        if exponent is not None and (len(exponent) > 5 or abs(int(exponent)) > MOST_EXPONENT):
            return None
    if own_exponent is not None:
        if (not value and int(own_exponent) <= 0) or (
            len(match["numeral"]) * abs(int(own_exponent))
        ) > 4 * MOST_EXPONENT:
            return None
        value = value ** int(own_exponent)
    if exponent_of_ten is not None:
        value *= Fraction(10) ** int(exponent_of_ten)
    # A fraction: "3/4", "2 7/8", "two and 3 quarters", "3 quarters".
    if (divisor_text := match["bottom"]) is not None:
        divisor = _plain_value(divisor_text)
        if not divisor:
            return None
        value /= divisor
    if match["under"] is not None:
        if not int(match["under"]) or value.denominator != 1:
            return None
        value += Fraction(int(match["top"]), int(match["under"]))
    if match["rest"] is not None:
        fraction_count = int(match["parts"]) if match["parts"].isdigit() else 1
        value += Fraction(fraction_count, FRACTION_OF[match["rest"].lower()])
    if match["part"] is not None and not _asks_scale(question, match["part"].lower().rstrip("s")):
        value /= FRACTION_OF[match["part"].lower()]
    # A scale after the numeral: "million", "万", "$3k".
    for scale in (match["scale"] or "").lower().split():
        name = scale if scale in SCALE_OF else scale.rstrip("s")
        if not _asks_scale(question, name):
            value *= SCALE_OF[name]
    for sign in match["myriad"] or "":
        value *= MYRIADS[sign]
    if match["short"] is not None:
        value *= 10 ** EXPONENT_OF_LETTER[match["short"].lower()]
    is_negative = ((match["sign"] or "").strip() == "-") != (match["inner"] is not None)
    return -value if is_negative else value


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
    found_quantities = quantities(folded(without_accents(text[-MOST_READ:])))
    return tuple(quantity.value for quantity in found_quantities if quantity.value is not None)


def gold_number(gold: str, question: str) -> Quantity | None:
    """Returns the gold answer as a number; None if it is not exactly one number."""
    found_quantities = quantities(folded(strip_decoration(gold), question), question)
    return found_quantities[0] if len(found_quantities) == 1 and found_quantities[0].value is not None else None


def read_number(question: str, answer: str) -> Fraction | None:
    """Returns the value of the number that an answer gives, without the unit; None as for `read_quantity`."""
    quantity = read_quantity(question, answer)
    return quantity.value if quantity is not None else None


@lru_cache(maxsize=64)
def read_quantity(question: str, answer: str) -> Quantity | None:
    """Returns the one number that an answer gives; None if there is none or several, or if it hedges or adds more.

    A number that stands alone on the last side of an equation counts first, then a number that the question did not
    give.
    """
    # A short number alone, which is most answers.
    text = answer.strip()
    if short_match := _SHORT_ANSWER.fullmatch(text):
        minus_sign, dollar_sign, digits, decimals = short_match.groups("")
        digits = digits.replace(",", "")
        value = Fraction(int(digits)) if not decimals else Fraction(digits + decimals)
        unit, dimension = ("$", "money") if dollar_sign else ("", "")
        return Quantity(-value if minus_sign else value, unit, dimension, 0, len(text), text, digits)
    text = _undecorated_end(answer, question)
    if _OWED.fullmatch(text):
        return None
    if (equation := _PLAIN_EQUATION.fullmatch(text)) and int(equation[1]) != int(equation[2]):
        return None
    if _EXCLAIMED.match(text):
        return None
    if _is_unsure(text, question):
        return None
    if comparison := _COMPARISON.fullmatch(text):
        # "9.9 is bigger than 9.11" answers "Which is bigger?", and not "Which is smaller?".
        text = comparison["subject"] if comparison["how"].lower() in _question_stems(question) else ""
    answer_sentences = [sentence for sentence in SENTENCE_END.split(text) if has_words(sentence)]
    if _calculates_several([sentence for sentence in answer_sentences if _DIGIT.search(sentence)]):
        return None
    return (
        _number_of_sentence(conclusion, question)
        if (conclusion := _conclusion(answer_sentences))
        else _number_of_first_sentence(answer_sentences, question)
    )


_PLAIN_EQUATION = re.compile(r"(-?\d{1,15})\s?=\s?(-?\d{1,15})\.?")
"""Matches an equation of two plain numbers. "5 = 6" is wrong, and says neither number."""
_COMPARISON = re.compile(r"(?P<subject>\S*\d\S*)\s(?:is|are|was|were)\s(?:\w+\s)?(?P<how>[A-Za-z]+)\sthan\s\S*\d\S*")
"""Matches a comparison of two numbers."""


def _is_unsure(text: str, question: str) -> bool:
    """Returns whether a text holds a hedge or a negation that the question does not have before the same word."""
    text_lower = text.lower()
    if TAKES_BACK.search(text) or ("too" in text_lower and _TOO_MUCH.search(text)):
        return True
    if "?" in text and ASKS_BACK.fullmatch(text):
        return True
    found_words = _WORDS.findall(text_lower.replace("'", ""))
    if _UNSURE.isdisjoint(found_words):
        return False
    return any(_hedges(word, word_after, question) for word, word_after in itertools.pairwise([*found_words, ""]))


def _hedges(word: str, word_after: str, question: str) -> bool:
    """Returns whether a word before `word_after` is a hedge or a negation that the question does not have there.

    "Or so" is none: it says "about".
    """
    return word in _UNSURE and (word, word_after) != ("or", "so") and (word, word_after) not in _pairs_in(question)


@lru_cache(maxsize=16)
def _pairs_in(question: str) -> frozenset[tuple[str, str]]:
    """Returns each word of a question with the word after it, in lower case."""
    return frozenset(itertools.pairwise(_WORDS.findall(question[-QUESTION_READ:].lower().replace("'", ""))))


def _conclusion(text_sentences: list[str]) -> str:
    """Returns the last sentence with a numeral if it concludes from a sentence with a numeral before it: "So she has
    9."; empty otherwise.

    Args:
        text_sentences: the sentences of a text.
    """
    sentences_with_number = [sentence for sentence in text_sentences if _DIGIT.search(sentence)]
    if len(sentences_with_number) < 2 or _CONCLUDING.match(sentences_with_number[-1]):
        return sentences_with_number[-1] if len(sentences_with_number) > 1 else ""
    return sentences_with_number[-1] if _goes_on(sentences_with_number) else ""


_EXPLAINING = re.compile(
    r"\W*(?:(?:to\s+)?(?:check|verify)|verification|proof|this|that|it|because|since|as|note)\b", re.I
)


def _calculates_several(sentences_with_number: list[str]) -> bool:
    """Returns whether sentences calculate two results of which neither is used for the other: "2 * 3 = 6. 2 * 7 = 14."

    Args:
        sentences_with_number: the sentences with a numeral.
    """
    if (
        len(sentences_with_number) < 2
        or "=" not in sentences_with_number[0]
        or "=" not in sentences_with_number[-1]
        or _EXPLAINING.match(sentences_with_number[-1])
    ):
        return False
    first_sides, last_sides = (
        sentence.rpartition("=") for sentence in (sentences_with_number[0], sentences_with_number[-1])
    )
    first_results, last_results = quantities(first_sides[2]), quantities(last_sides[2])
    if (
        not first_results
        or not last_results
        or _goes_on(sentences_with_number)
        or _CONCLUDING.match(sentences_with_number[-1])
    ):
        return False
    numerals_before = {quantity.numeral for sentence in sentences_with_number[:-1] for quantity in quantities(sentence)}
    return last_results[0].numeral not in numerals_before


def _goes_on(sentences_with_number: list[str]) -> bool:
    """Returns whether the last sentence calculates with the result of an earlier sentence: "12 - 3 = 9. 9 * 2 = 18."

    Args:
        sentences_with_number: the sentences with a numeral, at least two.
    """
    calculation, equals_sign, result = sentences_with_number[-1].rpartition("=")
    if not equals_sign or not _DIGIT.search(result) or _EXPLAINING.match(sentences_with_number[-1]):
        return False
    used_numerals = {quantity.numeral for quantity in quantities(calculation)}
    earlier_results = [
        quantities(sentence.rpartition("=")[2]) for sentence in sentences_with_number[:-1] if "=" in sentence
    ]
    return "=" in sentences_with_number[0] and any(
        results and results[0].numeral in used_numerals for results in earlier_results
    )


def _number_of_first_sentence(text_sentences: list[str], question: str) -> Quantity | None:
    """Returns the number of the first sentence. If that sentence has only numbers of the question, returns the one
    number that the sentences together add.

    A first sentence of at most `MAX_TEXT_ANSWER_WORDS` words without a number may be the answer: "Impossible."

    Args:
        text_sentences: the sentences of a text. A sentence after the first may explain.
        question: the question.
    """
    if (
        len(text_sentences) < 2
        or _numbers_not_in_question(text_sentences[0], question)
        or not (
            later_sentences := [
                sentence for sentence in text_sentences[1:] if _numbers_not_in_question(sentence, question)
            ]
        )
    ):
        return _number_of_sentence(text_sentences[0], question) if text_sentences else None
    first_words = _WORDS.findall(text_sentences[0].lower())
    if (
        len(first_words) <= MAX_TEXT_ANSWER_WORDS
        and not _OPENERS.issuperset(first_words)
        and not _DIGIT.search(text_sentences[0])
    ):
        return None
    added_keys = {
        quantity.key for sentence in later_sentences for quantity in _numbers_not_in_question(sentence, question)
    }
    return _number_of_sentence(later_sentences[0], question) if len(added_keys) == 1 else None


def _numbers_not_in_question(sentence: str, question: str) -> list[Quantity]:
    """Returns the numbers of a sentence that the question does not give, and whose factorial it does not give."""
    given_keys = _numbers_of_question(question)
    return [
        quantity
        for quantity in quantities(sentence, question)
        if quantity.key not in given_keys and not (quantity.numeral in given_keys and "!" in quantity.text)
    ]


def _number_of_sentence(sentence: str, question: str) -> Quantity | None:
    """Returns the one number that a sentence gives; None if there is none or several.

    Args:
        sentence: the sentence, folded. Only its part after "so" or "therefore" is read, if that part has a numeral.
        question: numbers that the question gives count only if there is no other.
    """
    if _has_several_values(sentence):
        return None
    if sentence.rstrip(" .").endswith("="):
        return None
    # A number before brackets or before "because", and its explanation.
    if (aside := _ASIDE.search(sentence)) and _DIGIT.search(sentence, 0, aside.start()):
        number_before = _number_of_sentence(sentence[: aside.start()], question)
        if number_before is not None and number_before.value is not None:
            if _is_explained_by(aside[1], {number_before.value}, question):
                return number_before
            if number_before.key not in _numbers_of_question(question):
                return None
    if (because_match := _BECAUSE.search(sentence)) and _DIGIT.search(sentence, 0, because_match.start()):
        statement, explanation = sentence[: because_match.start()], sentence[because_match.end() :]
        number_before = _number_of_sentence(statement, question)
        if (
            number_before is not None
            and number_before.value is not None
            and number_before.key not in _numbers_of_question(question)
        ):
            return number_before if _only_explains(explanation, {number_before.value}, question) else None
        sentence = sentence if _SIDE_SIGNS.search(explanation) else statement
    conclusion = _CONCLUDES.split(sentence)[-1]
    read_part = conclusion if _DIGIT.search(conclusion) else sentence
    # The sides of an equation, the last one first.
    sides = [
        (side, found_quantities)
        for side in _SIDE_SIGNS.split(read_part)
        if (found_quantities := quantities(side, question))
    ]
    if _is_equation(read_part):
        return None
    if len(sides) > 1:
        for side, found_quantities in (sides[-1], *reversed(sides[:-1])):
            if len({quantity.key for quantity in found_quantities}) == 1 and found_quantities[0].value is not None:
                if found_quantities[0].key in _numbers_of_question(question) and _only_describes(
                    read_part, side, question
                ):
                    break  # "160 days for 3 books that are 400 pages each"
                if _LONG_WORD.search(side, 0, found_quantities[0].start) and _is_counted_subject(sides[0]):
                    break  # "9 are left after 3 are sold"
                return (
                    found_quantities[0]
                    if _is_answer(side, found_quantities[0].start, found_quantities[-1].end, question)
                    else None
                )
            if not _SOLVABLE.fullmatch(side):
                break
        if any(quantity.value is None for quantity in sides[-1][1]) and _SOLVABLE.fullmatch(sides[-1][0]) is None:
            return None
    # Numbers that the question did not give.
    found_quantities = quantities(read_part, question)
    if any(
        not _SAID_AGAIN.search(read_part[quantity.end : next_quantity.start])
        for quantity, next_quantity in itertools.pairwise(found_quantities)
    ):
        return None  # "5 5" is not 5
    found_quantities = (
        tuple(quantity for quantity in found_quantities if not _NUMBERS_NEXT.match(read_part, quantity.end))
        or found_quantities
    )
    quantity_of_key = {quantity.key: quantity for quantity in found_quantities}
    given_keys = _numbers_of_question(question)
    new_quantities = {
        key: quantity
        for key, quantity in quantity_of_key.items()
        if key not in given_keys and not (quantity.value is None and quantity.numeral in given_keys)
    }
    new_quantities = new_quantities or quantity_of_key
    if len(new_quantities) != 1 or _is_listed_with_others(read_part, found_quantities, new_quantities, question):
        return None
    quantity = next(iter(new_quantities.values()))
    text_before = read_part[max(0, quantity.start - MOST_BEFORE_END) : quantity.start]
    if _LOWER_END.search(text_before) or _UPPER_END.search(text_before):
        return None
    is_answer = quantity.value is not None and _is_answer(read_part, quantity.start, quantity.end, question)
    return quantity if is_answer else None


def _is_explained_by(aside: str, stated_values: Set[Fraction], question: str) -> bool:
    """Returns whether numbers in brackets only explain the stated values.

    They are numbers of the question, or at most as large as the largest stated value, and `_only_explains` holds.
    """
    quantities_inside = quantities(aside, question)
    if "=" in aside or (quantities_inside and all(quantity.value in stated_values for quantity in quantities_inside)):
        return not _is_unsure(aside, question) and _only_explains(aside, stated_values, question)
    if _changes_number(aside):
        return False
    largest_stated, given_keys = max(map(abs, stated_values), default=0), _numbers_of_question(question)
    all_given_or_small = all(
        quantity.value is not None and (abs(quantity.value) <= largest_stated or quantity.key in given_keys)
        for quantity in quantities_inside
    )
    return all_given_or_small and _only_explains(aside, stated_values, question)


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
_RATE_AFTER = re.compile(r"\s?/|(?:\s[^\W\d_]+)?\s(?:each|apiece|every|per|an?|at\s+a\s+time)\b", re.I)
"""Matches what makes a number a rate: "9 each", "9 eggs per day"."""
_STATING_WORDS = frozenset(
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


def _only_explains(explanation: str, stated_values: Set[Fraction], question: str) -> bool:
    """Returns whether no number of an explanation contradicts the stated values.

    "18 because she ate 2" is 18. In "18 because she has 17 left" and "18 (17 if 1 is broken)" a second number states
    what is asked, so that the answer is neither number.

    Args:
        explanation: text after "because", or in brackets.
        stated_values: values that the answer states before the explanation.
        question: the question.
    """
    if "=" in explanation:
        result = quantities(explanation.rpartition("=")[2], question)
        return bool(result) and result[0].value in stated_values
    quantities_inside = quantities(explanation, question)
    asking_stems = _asking_stems(question)
    neutral_stems = _STATING_STEMS | (_PRESENT if asking_stems.isdisjoint(_ANOTHER_TIME) else frozenset())
    noun_stems = {stem(noun_match[1].lower()) for noun_match in _COUNTED_NOUN.finditer(question[-QUESTION_READ:])}
    calculated_values = _results_of([quantity.value for quantity in quantities_inside if quantity.value is not None])
    for quantity in quantities_inside:
        if quantity.value is None or quantity.value in stated_values or quantity.key in _numbers_of_question(question):
            continue
        if _RATE_AFTER.match(explanation, quantity.end):
            continue
        clause_before = _CLAUSE_ENDS.split(explanation[: quantity.start])[-1]
        text_after = explanation[quantity.end :]
        clause_end = _CLAUSE_ENDS.search(text_after)
        clause_words = words(f"{clause_before} {text_after[: clause_end.start()] if clause_end else text_after}")
        stems_beside = set(map(stem, clause_words)) - neutral_stems
        is_condition = clause_end is not None and clause_end.group().lower() in _CONDITIONS
        if stems_beside <= asking_stems and (
            is_condition or not stems_beside <= noun_stems or calculated_values.isdisjoint(stated_values)
        ):
            return False
    return True


_STATING_STEMS = frozenset(map(stem, _STATING_WORDS))
_CONDITIONS = frozenset(
    "if unless when whenever with without before after otherwise assuming counting including excluding".split()
)
"""Words after a number that make it the answer in another case: "17 if 1 is broken"."""


def _results_of(values: Sequence[Fraction]) -> set[Fraction]:
    """Returns the sum of values, and of two values also the difference, product and quotient."""
    results = {sum(values, Fraction(0))} if len(values) > 1 else set()
    if len(values) == 2:
        first, second = values
        results |= {first - second, second - first, first * second}
        results |= {dividend / divisor for dividend, divisor in ((first, second), (second, first)) if divisor}
    return results


@lru_cache(maxsize=64)
def _asking_stems(question: str) -> frozenset[str]:
    """Returns the stems of the words of the sentence that asks."""
    return frozenset(map(stem, words(last_question(sentences(without_accents(question[-QUESTION_READ:]))))))


MIN_REPEATED = 2
"""Fewest numbers of a question's list that an answer repeats before its own number."""
_LIST_SEPARATOR = re.compile(r"\s*(?:,|;|&|(?:,\s*)?\b(?:and|or)\b)\s*")


def _is_listed_with_others(
    text: str, found_quantities: tuple[Quantity, ...], new_quantities: dict[tuple[object, str], Quantity], question: str
) -> bool:
    """Returns whether a number of the answer stands in a list beside a number that the question gives: "2 and 1/2" to
    "What are the two numbers?". A list that only goes on with the question's own list does not count.

    Args:
        text: the text.
        found_quantities: its numbers, in order.
        new_quantities: the numbers that the question does not give.
        question: the question.
    """
    text_before_last = text[found_quantities[0].start : found_quantities[-1].start].rstrip(" ,")
    if (
        len(found_quantities) > MIN_REPEATED
        and found_quantities[-1].key in new_quantities
        and text_before_last in question
    ):
        return False  # "4, 8, 12, 16" to "Count on: 4, 8, 12"
    return any(
        (quantity.key in new_quantities) != (next_quantity.key in new_quantities)
        and _LIST_SEPARATOR.fullmatch(text, quantity.end, next_quantity.start)
        for quantity, next_quantity in itertools.pairwise(found_quantities)
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


def _only_describes(sentence: str, equation_side: str, question: str) -> bool:
    """Returns whether "is" or "are" leads to `equation_side`, and the part before states a number of its own.

    Args:
        sentence: the sentence.
        equation_side: its part after "is" or "are", or after "=".
        question: numbers that the question gives do not count.
    """
    text_before = sentence[: sentence.rfind(equation_side)]
    return text_before[-1:].isalpha() and any(
        quantity.key not in _numbers_of_question(question) for quantity in quantities(text_before, question)
    )


_COUNTED_WORDS_AFTER = re.compile(r"\W*(?:[^\W\d_]+\W*){0,2}")


def _is_counted_subject(text_and_quantities: tuple[str, tuple[Quantity, ...]]) -> bool:
    """Returns whether a part of a sentence is one number with at most two words: "9" or "9 red eggs" before "are"."""
    text, found_quantities = text_and_quantities
    is_only_number = (
        len(found_quantities) == 1
        and found_quantities[0].value is not None
        and not has_words(text[: found_quantities[0].start])
    )
    return is_only_number and _COUNTED_WORDS_AFTER.fullmatch(text, found_quantities[0].end) is not None


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
    words_beside_number = _LONG_WORD_WHOLE.findall(_COMMANDS.sub(" ", f"{before} {after}").replace("π", " "))
    if any(
        word.lower() not in _OPERATES_ON and (len(word) > 2 or word in ("in", "AD") or not unit_at(word, 0))
        for word in words_beside_number
    ):
        return True
    return not words_beside_number and not _OPERATORS.search(before) and not _OPERATORS.search(after)


@lru_cache(maxsize=16)
def _numbers_of_question(question: str) -> frozenset[object]:
    """Returns `Quantity.key` and the digits (`Quantity.numeral`) of each number that a question states."""
    question_sentences = SENTENCE_END.split(folded(without_accents(question[-QUESTION_READ:]), question))
    found_quantities = [quantity for sentence in question_sentences for quantity in quantities(sentence, question)]
    return frozenset(
        (*(quantity.key for quantity in found_quantities), *(quantity.numeral for quantity in found_quantities))
    )


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
def _undecorated_end(answer: str, question: str) -> str:
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
    spaced_minus = _SPACED_MINUS.fullmatch(text)
    if spaced_minus and not any(map(str.isalpha, text)):
        text = "-" + spaced_minus[1]
    return folded(strip_decoration(text), question)


_LONE_LETTER = re.compile(r"(?<![^\W\d_])[^\W\d_](?![^\W\d_])")
_LONG_WORD = re.compile(r"[^\W\d_]{2}")
_LONG_WORD_WHOLE = re.compile(r"[^\W\d_]{2,}")
_TIMES = re.compile(r"(?<=\d)\s?[xX]\s?(?=\d)")
_NAMED_VALUE = re.compile(r"\s*[^\W\d_]\w*(?:\([^()]*\))?\s*")


def _is_equation(text: str) -> bool:
    """Returns whether a text is a formula with an unsolved letter: "2x = 10", but not "x = 5" or "f(2) = 5"."""
    text_before, equals_sign, _ = text.rpartition("=")
    left_side = _TIMES.sub("*", text_before.rpartition("=")[2])
    if not equals_sign or _LONG_WORD.search(left_side):
        return False
    return _LONE_LETTER.search(left_side) is not None and _NAMED_VALUE.fullmatch(left_side) is None


def last_part(text: str) -> str:
    """Returns the last `MOST_READ` characters of a text, from the beginning of a sentence if there is one."""
    if len(text) <= MOST_READ:
        return text
    sentence_end = SENTENCE_END.search(text, len(text) - MOST_READ)
    return text[sentence_end.end() if sentence_end and sentence_end.end() < len(text) else len(text) - MOST_READ :]


def canonical_number(question: str, answer: str) -> str:
    """Returns a form in which equal numbers are equal, such as "1/2", "5 cm" and "3 5" for a list.

    An answer that is no number gives a text form. Empty for no answer.
    """
    quantity = read_quantity(question, answer)
    if quantity is not None:
        assignment = _ASSIGNED.match(answer.strip().lstrip("\\([{$*"))
        if assignment and not _is_asked(assignment[1], question):
            return f"{assignment[1]} = {_number_form(quantity, question)}"
        return _number_form(quantity, question)
    several_numbers = _several_numbers(question, answer)
    return several_numbers or _text_form(question, answer)


@lru_cache(maxsize=64)
def _is_asked(letter: str, question: str) -> bool:
    """Returns whether a value of this letter answers the question.

    This is so if the question asks for the letter. If it names no letter, the usual `x` and `n` count, and letters that
    begin a word of the question, as F begins "force". Otherwise "x = 3" and "y = 3" are two answers.
    """
    asking_sentence = last_question(sentences(question[-QUESTION_READ:]))
    for text in (asking_sentence, question[-QUESTION_READ:]):
        if letters := set(_LONE_LETTER.findall(text)) - {"a", "A", "I"}:
            return letter in letters
    initials = {word[0].lower() for word in _LONG_WORD_WHOLE.findall(question[-QUESTION_READ:])}
    return letter.lower() in initials | {"x", "n"}


_YEAR = re.compile(r"1\d{3}|20\d\d")
"""Matches a number that is a year unless a known unit follows."""


@lru_cache(maxsize=64)
def _question_stems(question: str) -> frozenset[str]:
    """Returns the stems of the words of a question."""
    return frozenset(map(stem, words(without_accents(question[-QUESTION_READ:]))))


def _number_form(quantity: Quantity, question: str) -> str:
    """Returns the value with its unit."""
    unit_form = without_asked(quantity.unit, quantity.dimension, question)
    if quantity.per and not _is_named(quantity.per.casefold(), question):
        unit_form = f"{unit_form}/{stem(quantity.per.casefold())}"
    less_word = "less" if quantity.decreases and not _asks_less(question) else ""
    return " ".join(part for part in (less_word, str(quantity.value), unit_form) if part)


@lru_cache(maxsize=64)
def _asks_less(question: str) -> bool:
    return _ASKS_LESS.search(question[-QUESTION_READ:]) is not None


def _is_named(word: str, question: str) -> bool:
    """Returns whether a question names what is counted, also in the plural: "fish" in "How many fishes?"."""
    question_stems = _question_stems(question)
    return stem(word) in question_stems or any(question_stem.startswith(word) for question_stem in question_stems)


def _several_numbers(question: str, answer: str) -> str:
    """Returns the numbers of an answer that is no single number, with what makes them another answer: "3 5", "3 or 5",
    "not 5".

    A list is numbers with at most one word after each, and a comma, "and" or "or" between them. All numbers of the
    answer belong to the list, but those that the question gives. Empty if there is no such list, or if a number of the
    list cannot be read as a whole.
    """
    # The text with the numbers: the conclusion, if there is one.
    text = _undecorated_end(answer, question)
    if _OWED.fullmatch(text):
        return ""
    if (aside := _ASIDE.search(text)) and _DIGIT.search(text, 0, aside.start()):
        before_aside = quantities(text[: aside.start()], question)
        stated_values = {quantity.value for quantity in before_aside if quantity.value is not None}
        text = text[: aside.start()] if _is_explained_by(aside[1], stated_values, question) else text
    whole_text = text
    text = _conclusion([sentence for sentence in SENTENCE_END.split(text) if has_words(sentence)]) or text
    found_quantities = quantities(text, question)
    if not found_quantities or len(found_quantities) > MOST_NUMERALS or _EXCLAIMED.match(text):
        return ""
    if _has_several_values(text) or _is_equation(text) or text.rstrip(" .").endswith("="):
        return ""
    # The list at the end: numbers that only separators join. The numbers before it must be the question's.
    found_quantities = _without_given(text, found_quantities, question)
    texts_between = [
        text[quantity.end : next_quantity.start] for quantity, next_quantity in itertools.pairwise(found_quantities)
    ]
    first_listed = len(found_quantities) - 1
    while first_listed > 0 and _JOINT.fullmatch(texts_between[first_listed - 1]):
        first_listed -= 1
    listed_quantities = found_quantities[first_listed:]
    known_keys = {*_numbers_of_question(question), *(quantity.key for quantity in listed_quantities)}
    if any(quantity.value is None for quantity in listed_quantities) or any(
        quantity.key not in known_keys for quantity in found_quantities
    ):
        return ""
    if first_listed and not _is_apart(words(texts_between[first_listed - 1])):
        return ""
    # Nothing beside the list that makes it something else.
    if not _is_alone(text, listed_quantities[0].start, listed_quantities[-1].end) or _OR_AFTER.match(
        text, listed_quantities[-1].end
    ):
        return ""
    list_ends = [*(_JOINT_ENDS.sub("", text[: quantity.start]) for quantity in listed_quantities[1:]), text]
    if not is_known_before(text, listed_quantities[0].start, question) or not all(
        is_known_after(list_end, quantity.end, question)
        for list_end, quantity in zip(list_ends, listed_quantities, strict=True)
    ):
        return ""
    if _calculates_several([sentence for sentence in SENTENCE_END.split(whole_text) if _DIGIT.search(sentence)]):
        return ""
    if any("than" in words(text_between) for text_between in texts_between) or (
        len(listed_quantities) == 1 and _is_denied_after(text, listed_quantities[0])
    ):
        return ""
    # The form, with "or" between two numbers and a hedge or "not" before the first one.
    number_forms = [_number_form(quantity, question) for quantity in listed_quantities]
    list_form = number_forms[:1]
    for text_between, number_form in zip(texts_between[first_listed:], number_forms[1:], strict=True):
        list_form += ["or", number_form] if "or" in words(text_between) else [number_form]
    text_before = texts_between[first_listed - 1] if first_listed else text[: found_quantities[0].start]
    words_before = words(text_before)[-_MOST_WORDS_TO_NEGATION:]
    hedges_before = [
        word for word, word_after in itertools.pairwise([*words_before, ""]) if _hedges(word, word_after, question)
    ]
    return " ".join([*hedges_before, *list_form])


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


def _changes_number(aside: str) -> bool:
    """Returns whether an explanation in brackets makes a number another answer: "5 (mod 7)", "5 (or 6)"."""
    aside_words = words(aside)
    return not any(map(str.isalpha, aside_words)) or not _CHANGING.isdisjoint(aside_words)


_OR_AFTER = re.compile(r"\W*\bor\b(?!\s+(?:so|about)\b)", re.I)
"""Matches another answer after a number: "7 or undefined"."""
_STATING_WORD = re.compile(r"=|\b(?:is|are|was|were|be|equals|makes|making|total|so|thus|therefore|hence)\b", re.I)


def _without_given(text: str, found_quantities: tuple[Quantity, ...], question: str) -> tuple[Quantity, ...]:
    """Returns the numbers up to the last one that the question did not state.

    Of "1 minute longer if all 3 lights are red" only the 1 stays. A number after "=" or "is" stays. All numbers stay if
    the last sentence states no other number.

    Args:
        text: the text.
        found_quantities: its numbers, in order.
        question: the question.
    """
    given_keys, end = _numbers_of_question(question), len(found_quantities)
    while end > 1 and found_quantities[end - 1].key in given_keys and found_quantities[end - 1].value is not None:
        joint = text[found_quantities[end - 2].end : found_quantities[end - 1].start]
        if (
            _STATING_WORD.search(joint)
            or SENTENCE_END.search(joint)
            or not _LONG_WORD.search(joint)
            or _JOINT.fullmatch(joint)
        ):
            return found_quantities
        end -= 1
        if found_quantities[end - 1].key not in given_keys:
            return found_quantities[:end]
    return found_quantities


def _is_apart(words_between: tuple[str, ...]) -> bool:
    """Returns whether the words between two numbers start a second statement; in "3 to 5" and "5 or 6" they do not."""
    if words_between[-2:] in _RATIOS or "or" in words_between:
        return False
    return (
        len(words_between) > 1 and any(_LONG_WORD.search(word.replace("π", " ")) for word in words_between)
    ) or "but" in words_between


_RATIOS = (("out", "of"), ("of", "the"), ("for", "every"), ("for", "each"), ("in", "every"))
"""Last words between two numbers that make a ratio of them."""


_MATHEMATICAL = re.compile(r"[\d\\^√π∞∅±=<>≤≥+∪∩]")
MAX_TEXT_ANSWER_WORDS = 2
"""Most words of an answer without a numeral that is compared as text, such as "no solution". A longer one counts as no
answer.
"""


MAX_NUMBER_TEXT_WORDS = 6
"""Most words of an answer whose number is spelled out and that is compared as text, such as "ten past seven"."""


def _text_form(question: str, answer: str) -> str:
    """Returns an answer that is no number as a text that never equals a number. Empty if it only says that
    it has none.
    """
    if len(answer) > MOST_READ:
        return f"{AS_TEXT} {plain_form(answer)}"
    undecorated = strip_decoration(answer)
    spoken_words = words_beside(undecorated, question)
    word_count = len(undecorated.split())
    has_short_number = word_count <= MAX_NUMBER_TEXT_WORDS and _DIGIT.search(with_digits(undecorated))
    if not spoken_words or not (
        _MATHEMATICAL.search(undecorated) or word_count <= MAX_TEXT_ANSWER_WORDS or has_short_number
    ):
        return ""
    return f"{AS_TEXT} {' '.join(spoken_words)}"


AS_TEXT = "text:"
"""Prefix of the form of an answer that is not a number, although the question asks for one."""


def same_quantity(answer_quantity: Quantity, gold: Quantity, question: str) -> bool:
    """Returns whether a number equals the gold number.

    If the gold has no unit, the answer may have a unit that `suits_question`: "18 dollars" equals 18 if the question
    does not ask for something else. A per cent, a dozen or a thousand is no unit but a part of the value.

    Args:
        answer_quantity: number of the answer.
        gold: the gold number.
        question: the question.
    """
    if answer_quantity.per and not gold.per and not is_rate_named(answer_quantity.per, question):
        return False
    if answer_quantity.value != gold.value or (
        answer_quantity.decreases and not gold.decreases and not _asks_less(question)
    ):
        return False
    unit, gold_unit = (
        without_asked(quantity.unit, quantity.dimension, question) for quantity in (answer_quantity, gold)
    )
    if gold_unit:
        return unit == gold_unit
    return not unit or suits_question(answer_quantity.unit, answer_quantity.dimension, question)
