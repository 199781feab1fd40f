"""Removes the decoration of an answer, and reads its words and the signs that carry meaning.

Decoration is a fixed list: quotes, bold, a fence, LaTeX that only sets type, marks that end a sentence. Every other
sign makes answers differ: C, C++ and C# are three answers, and so are `x<5` and `x>5`.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

from metaprobe.records.answers.latex import plain_latex
from metaprobe.records.spelling import normalize

Words = tuple[str, ...]

_UP_TO_TWENTY = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty"""
_HEDGES = """or either neither nor not no never isnt wasnt arent dont doesnt cannot cant unless maybe perhaps possibly
    but and actually wait sorry instead incorrect wrong nicht kein keine oder sondern pas ou ni nao niet nie oppure
    sino не нет или ليس"""
_FILLER = """is are was were be it its this that they there he she his her has have had in of to for on at by as with
    will would now so then therefore thus answer result output print make do return equal call called known located
    official officially spoken written mainly primarily typically usually correct value you we"""
_COLOR_SHADES = "deep dark bright pale light"

NUMBER_WORDS = {word: str(number) for number, word in enumerate(_UP_TO_TWENTY.split())}
ARTICLES = frozenset(("a", "an", "the"))
HEDGES = frozenset(_HEDGES.split())
"""Words that make an answer no answer, unless they occur in the gold."""
NEGATIONS = frozenset("not no never isnt wasnt arent dont doesnt cannot cant".split())
TAKES_BACK = re.compile(
    r"\b(?:just kidding|my (?:mistake|bad)|on second thoughts?|scratch that|correction(?=[:,])|oops"
    r"|i (?:meant|doubt))\b",
    re.I,
)
"""Matches words that take back the answer before them, or doubt the answer after them."""
ASKS_BACK = re.compile(r"\W*(?:is|are|was|were|could|would|might|should|does|did|can)\b[^.!?]*\?\W*", re.I)
"""Matches an answer that is a question itself: "Is it 18?"."""
FILLER = frozenset(f"{_FILLER} {_COLOR_SHADES}".split())
"""Stems of words that add nothing beside the gold, for any question."""
POLAR = frozenset(("yes", "no", "true", "false"))
"""Options after which an explanation may hold a "not"."""

NO_OF_SOMETHING = re.compile(
    r"\W*[Nn][Oo]\s+(?!(?:it|its|that|this|these|those|he|she|they|we|you|there|because|as|since|the|a|an|not|and|or)\b)[a-z]"
)
"""Matches a "no" that denies the next word, and does not answer a question: "no answer", "no idea"."""
_CONTENTLESS = frozenset(_FILLER.split())
"""Words that add nothing when two answers are compared.

`FILLER` has more words, for comparison with the gold: "light" and "dark" tell two answers apart, but do not matter
beside a gold.
"""
_QUESTION_WORDS = frozenset("who whom whose what which when where how why".split())
_OFFERING_WORDS = frozenset("or and between against versus vs v".split())
_OPTION_SEPARATORS = re.compile(r"[:;/&]|\s[-–—]\s|,[^,]*,|\A\W*(?:who|whom|whose|which|what)\b[^,]*,", re.I)
"""Matches separators that may list options in the sentence that asks: "Who is taller: Ann, Bob?"."""

_NO_TITLE = "".join(rf"(?<!\b{title}\.)" for title in ("Mr", "Mrs", "Ms", "Dr", "St", "Prof"))
"""Pattern that keeps the point of a title, as in "Mrs. Snyder", from ending a sentence."""
SENTENCE_END = re.compile(rf"(?<=[.!?]){_NO_TITLE}\s+|\n+|(?<=[。！？।])(?=\s*\S)")
LEADS = (
    *("answer", "antwort", "lösung", "réponse", "reponse", "respuesta", "resposta", "risposta", "antwoord", "svar"),
    *(
        "odpowiedź",
        "odpověď",
        "cevap",
        "ответ",
        "відповідь",
        "jawaban",
        "đáp án",
        "答案",
        "答え",
        "回答",
        "解答",
        "正解",
    ),
    *("정답", "답", "उत्तर", "الإجابة", "الجواب", "תשובה", "απάντηση", "คำตอบ", "উত্তর", "జవాబు", "jibu", "选项"),
    *("vastaus", "válasz", "răspuns", "जवाब", "సమాధానం", "விடை", "பதில்", "جواب", "پاسخ", "atsakymas", "vastus"),
    *("opción correcta", "opción", "opção", "opzione"),
)
"""Words before a colon that lead to an answer, in the languages in which models are asked."""
BEFORE_LEAD = (
    *(
        "die",
        "der",
        "la",
        "le",
        "el",
        "il",
        "o",
        "a",
        "het",
        "my",
        "richtige",
        "endgültige",
        "korrekte",
        "finale",
        "bonne",
    ),
    *(
        "juiste",
        "rätt",
        "rätta",
        "rigtige",
        "riktige",
        "doğru",
        "правильный",
        "верный",
        "правильна",
        "सही",
        "最终",
        "正确",
    ),
)
"""Words between the beginning of a sentence and a word of `LEADS`."""
AFTER_LEAD = (
    *("correcta", "correcto", "correcte", "correta", "correto", "corretta", "corretto", "juste", "exacte", "final"),
    *("yang benar", "yang tepat", "đúng", "chính xác", "الصحيحة", "الصحيح"),
)
"""Words between a word of `LEADS` and "is"."""
WORDS_FOR_IS = ("is", "ist", "lautet", "est", "es", "é", "è", "er", "är", "adalah", "là", "to", "هي", "هو", "คือ", "ni")
"""Words for "is" that are set between blanks."""
WORDS_FOR_IS_JOINED = ("是", "为", "為", "は", "은", "는", "คือ")
"""Words for "is" that are written without blanks."""
_LEAD = re.compile(
    r"^\W*(?:(?:the\s+)?(?:final\s+|correct\s+)?(?:answer|result|output)(?:\s+is\b\s*:?|\s*[:=：])|a:"
    rf"|(?:{'|'.join(LEADS)})(?:\s+(?:ist|est|es|é|è|is)\b\s*[:：]?|\s*[:：]|是)|(?:答案|正解)は)\s*",
    re.I,
)
_FENCE = re.compile(r"```[\w+-]*[ \t]*\n?(.*?)(?:```|\Z)", re.S)
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3})(?=[^\s*])([^*\n]*)(?<=[^\s*])\*{1,3}(?![\w*])")
_SPECIAL_NAMES = (
    "init main name str repr len iter next call eq hash doc file dict class new del enter exit add getitem all"
)
"""Names that Python writes between double underscores, which are no bold type there."""
_BOLD = re.compile(
    rf"(?<!\w)__(?!(?:{_SPECIAL_NAMES.replace(' ', '|')})__)(?=[^\s_])([^_\n]*)(?<=[^\s_])__(?!\w)"
    r"|(?<!\w)_(?=[^\s_])([^_\n]*)(?<=[^\s_])_(?!\w)"
)
_BULLET = re.compile(r"^[^\S\n]*(?:[-*+•·][^\S\n]+(?=\w)|(?:#{1,6}|>)[^\S\n]+(?=[^\W\d_]{2}))", re.M)
_TICK_BESIDE = re.compile(r"^[✅✓✔☑]\ufe0f?\s+(?=\w)|(?<=[\w.!)])\s+[✅✓✔☑]\ufe0f?\s*$")
"""Matches a tick mark before or after an answer."""
_FORMATS = re.compile("[\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufe00-\ufe0f\ufeff]")
"""Matches invisible characters that direct or join text."""
_QUOTES = "\"“”'‘’„«»"
_HAS_WORD = re.compile(r"[^\W_]")

_DIGIT_OF_POWER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_RAISED = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_ONE_SIGN_FRACTION = re.compile(" ?[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒]")
_DASHES = re.compile(
    "[‐‑‒–−﹣－➖﹘˗](?=\\s*[\\d.$£€])|(?<!\\w)[—―](?=[\\d.])|(?<=\\b[^\\W\\d_])[‐‑‒–−﹣－﹘](?=\\W*\\Z)"
)
"""Matches signs that mean minus before a digit, or after a letter that stands alone, such as a grade."""
_ACCENTS = re.compile(
    "[\u0300-\u0333\u0339-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed]"
)
"""Matches accents of letters and points of Hebrew and Arabic, which some writers leave out.

Other combining characters make other letters: か and が, क and क्. So does the stroke that makes ≠ of =.
"""
_SHORT_I = re.compile("(?<=[иИ])\u0306")
"""Matches the mark that makes й of и. Nobody leaves it out."""
_REPEATED_DIGIT = re.compile("(?<=\\d)[\u0304\u0305\u0307]")
"""Matches a line or a dot over a digit that repeats without end."""

_PLACEHOLDER = "\ufdd0"
"""A character that no text holds, in place of a mark that is kept."""
_PLAIN_SIGNS = str.maketrans({"٫": ".", "٬": ",", "−": "-", "⁄": "/", "∕": "/"})

_NUMBER = r"(?<![^\W\d_]{2})-?\d+(?:\.\d+)*|\d+(?:\.\d+)*|(?<![\w.])-?\.\d+"
_SIGNED_NAME = r"[^\W\d_](?:[^\W\d_]*[+#]++(?![\w+#])|[^\W\d_]?-(?![\w>-])|\*(?![\w*]))"
"""Pattern of a name that ends in signs: C++, F#, A+, A-, A*."""
_SPELLED_WORD = r"[^\W_]+(?:'[^\W_]+)*"
_MEANINGFUL_SIGNS = "|".join(
    (
        r"(?<=\d)[:,;](?=\d)|(?<=\w)(?:::?|;)(?=\w)|(?<=\b[^\W\d_]),(?=\s*[^\W_])",  # 3:45, "a, b"
        r"(?<=[^\W_]{2})\.(?=[a-z0-9_]{2})|(?<=\b[A-Za-z])\.(?=[A-Za-z]\b)|(?<![\w.])\.(?=[^\W\d_]{2})",  # a.b, .NET
        r"(?<=\d)(?:\.{3}|…)",
        r"\.{1,2}(?=[/\\*+?])",  # ../a, .*
        r"(?<=[^\W_])_+(?=[^\W_])|(?<!\w)_+(?=[^\W_])|(?<=[a-z])__(?!\w)",  # a_b, __init__
        r"(?<=\b[^\W\d_])'+(?=\()",  # f'(x)
        r"[!:.?-](?==)|(?<=<)[!?]|\?(?=>)|(?<=#)!",  # :=, -=, <?, #!
        r"(?<![\w!?.)])!(?=\w)|(?<=\w)\?{1,2}\.?(?=\w)",
        r"(?<![\w-])-{1,2}(?=[^\W\d_]|[∞π√(\\$£€])|(?<=[^\W_])-{1,2}(?=[.\s]*\Z)",  # -x, i--
        r"(?<=\d\s)-(?=\s\d)|(?<=\b\w\s)-(?=\s\w\b)|(?<=\b\w)-(?=\w\b)|-(?=>)|(?<=<)-",
        r"(?<=\w)·(?=\w)|(?<=\w\s)·(?=\s\w)",
        r"(?<=\w)\((?=[^\s)])|(?<=\w)\(\)|\((?=[^()]{0,40}[-+*/^×÷<>=])|\)(?=\s*[-+*/^×÷])",  # f(x), 2 * (3 + 4)
    )
)
"""Pattern of decoration that carries meaning in its place: "3:45", "os.path", "a_b", "!=", "-x", "f(x)"."""
_SCRIPT_MARKS = "¿¡。、，；！？：「」『』《》〈〉【】।،؛؟۔"
"""Marks of other scripts that set sentences, quotes and lists apart."""
_PLAIN_CHARACTERS = (
    rf"""\s\w.,;:!?{_SCRIPT_MARKS}'"“”‘’„«»‹›`´()…·•–—―‐\-_\x00-\x1f\x7f-\x9f\ufffd\U0001f000-\U0001ffff"""
)
"""Characters of white space, letters, and signs that are decoration unless `_MEANINGFUL_SIGNS` matches them."""
_TOKEN = re.compile(
    rf"(?=[\d.-])(?:{_NUMBER})|(?=[^\W_])(?:{_SIGNED_NAME}|{_SPELLED_WORD})|[^{_PLAIN_CHARACTERS}]|(?=[:,;._!?()·…'-])(?:{_MEANINGFUL_SIGNS})"
)
_SIMPLE_TEXT = re.compile(r"\s*[A-Za-z0-9][A-Za-z0-9\s]*(?:\.|(?<=[A-Za-z]{2})!|(?<=[A-Za-z0-9]{2})\?)?")
_SIMPLE_TOKEN = re.compile(r"\d+|[A-Za-z][A-Za-z0-9]*")
_INITIALS = re.compile(
    r"(?<![\w.])(?:(?:[A-Z]\.\s?)+[A-Z]\.|(?:[A-Z]\.){2,}[A-Z]|(?:[A-Z][a-z]?\.)+[A-Z]\.|(?:[a-z]\.){2,})(?!\w|\.\w)"
)
"""Matches letters with a point each: "U.S.", "J. R. R.", "Ph.D.", "a.m."."""
_LITERAL_TOKEN = re.compile(rf"{_NUMBER}|{_SPELLED_WORD}|[^\s\w]|_")
_TUPLE = re.compile(r"(?<!\w)\([-\d'\"][^(),\n]{0,200},[^()\n]{0,200}\)")
_CLOSED_BY = {"[": "])", "{": "}", "(": ")]"}
_FACTORIAL = re.compile(r"\s*(?:\d+|[a-z])(!+)\s*")
_STOP_AFTER_SIGN = re.compile(rf"(?<=[^{_PLAIN_CHARACTERS}])[.,;:]\s*\Z")
"""Matches the stop after a text of signs, as in "∞." but not in "?."."""
_SIGN_AT_END = re.compile(r"(?:[A-Za-z]|\S*[\])}*+])(\?+)")
"""Matches "?" that belongs to the sign or to the one letter before it, as in the pattern `a?`.

After a word this mark only ends a sentence.
"""
_INCHES = re.compile(r"\s*\d+(?:\.\d+)?\s*(['\"])\s*")
"""Matches a length in feet or inches that stands alone."""
_PRIMED = re.compile(r"[^\W\d_]('+)")
"""Matches a letter with primes, such as a derivative."""
_SPACED_MINUS = re.compile(r"-\s+[\d.,/]+\s?%?")
_MINUS_INSIDE = re.compile(r"([$€£¥₹])\s?-\s?(?=[\d.])")


def strip_decoration(text: str, *, lead: bool = True) -> str:
    r"""Returns the text without code fence, bold, \\boxed, outer quotes and accents.

    With `lead` also "Answer:" before the text is removed. An answer of signs alone, such as `""`, stays unchanged.
    """
    if "```" in text and (fence := _FENCE.search(text)):
        text = fence.group(1)
    if "\\" in text or "$" in text or "{" in text or "~" in text:
        text = plain_latex(text)
    if "*" in text:
        is_bold = text.startswith("**") and text.endswith("**") and text.count("*") == 4
        text = text[2:-2] if is_bold else _EMPHASIS.sub(r"\2", text)
    if "_" in text:
        text = _BOLD.sub(lambda match: match[1] or match[2], text)
    text = without_accents(text.replace("`", "")).strip()
    text = _LEAD.sub("", text, count=1) if lead else text
    if "-" in text:
        if _SPACED_MINUS.fullmatch(text):
            return "-" + text[1:].lstrip()
        text = _MINUS_INSIDE.sub(r"-\1", text)  # $-5
    undecorated = _BULLET.sub("", text).strip()
    undecorated = undecorated if undecorated.isascii() else _TICK_BESIDE.sub("", undecorated)
    if (
        undecorated[-1:] in ("'", '"')
        and undecorated[0] not in _QUOTES
        and (undecorated[-2:-1].isdigit() or _PRIMED.fullmatch(undecorated))
    ):
        return undecorated  # feet, inches, a derivative
    return undecorated.strip(_QUOTES).strip() or text.strip()


def without_accents(text: str) -> str:
    """Returns the text with compatible characters replaced by plain ones, without accents.

    Powers, one-sign fractions and minus signs are spelled out before.
    """
    if text.isascii():
        return text
    text = _RAISED.sub(lambda match: "^" + match.group().translate(_DIGIT_OF_POWER), _FORMATS.sub("", text))
    text = _ONE_SIGN_FRACTION.sub(
        lambda match: " " + unicodedata.normalize("NFKC", match.group().strip()).replace("⁄", "/"), text
    )
    text = _DASHES.sub("-", text).replace("’", "'").replace("ʼ", "'").replace("′", "'").replace("″", '"')
    text = _REPEATED_DIGIT.sub("…", normalize("NFKD", text))
    text = _ACCENTS.sub("", _SHORT_I.sub(_PLACEHOLDER, text)).replace(_PLACEHOLDER, "\u0306")
    text = normalize("NFC", text)
    if any(character.isdecimal() and not character.isascii() for character in text):
        text = "".join(
            str(unicodedata.decimal(character)) if character.isdecimal() else character for character in text
        )
    return text.translate(_PLAIN_SIGNS)


def words(text: str, *, fold: bool = True) -> Words:
    """Returns the words of a text, and the signs that carry meaning.

    Number words become digits. Letters with points are one word: "U.S." is "US". Articles are left out, unless the
    text has nothing else. A text of marks alone gives these marks.
    """
    if "." in text:
        text = _INITIALS.sub(lambda match: "".join(filter(str.isalpha, match.group())), text)
    tokens = _SIMPLE_TOKEN.findall(text) if _SIMPLE_TEXT.fullmatch(text) else _tokens(text)
    folded_words = [NUMBER_WORDS.get(word.casefold(), word.casefold() if fold else word) for word in tokens]
    if ARTICLES.isdisjoint(map(str.casefold, folded_words)):
        return tuple(folded_words)
    # An article stands before a word. Elsewhere it is a name, as in "vitamin A" and "a + b".
    next_words = [*folded_words[1:], ""]
    without_articles = [
        word
        for word, next_word in zip(folded_words, next_words, strict=True)
        if word.casefold() not in ARTICLES or not next_word[:1].isalnum()
    ]
    return tuple(without_articles)


def _tokens(text: str) -> list[str]:
    """Returns the words and signs of a text that holds more than letters, digits and blanks."""
    literal_start, literal_end = _literal_part(text)
    patterns_and_parts = (
        (_TOKEN, text[:literal_start]),
        (_LITERAL_TOKEN, text[literal_start:literal_end]),
        (_TOKEN, text[literal_end:]),
    )
    tokens = [
        word.replace("'", "") or ('"' if len(word) == 1 else word)
        for pattern, text_part in patterns_and_parts
        if text_part
        for word in pattern.findall(text_part)
    ]
    if not any(map(str.isalnum, text)):
        tokens = [sign for sign in _STOP_AFTER_SIGN.sub("", text) if not sign.isspace()]
    elif text.endswith("!") and (factorial := _FACTORIAL.fullmatch(text)):
        tokens.append(factorial[1])
    elif text[-1] == "?" and (marks := _SIGN_AT_END.fullmatch(text)):
        tokens.append(marks[1])
    elif inches := _INCHES.fullmatch(text) or _PRIMED.fullmatch(text):
        tokens.append(inches[1])
    return tokens


def _literal_part(text: str) -> tuple[int, int]:
    """Returns where a list, set or tuple begins and ends in a text. Without one, both numbers are the text's end.

    Every sign within a literal counts when answers are compared.
    """
    if _is_literal(text):
        return 0, len(text)
    opening = min((index for index in map(text.find, "[{") if index >= 0), default=-1)
    closing_end = max(map(text.rfind, "]}")) + 1
    if opening < 0 or closing_end <= opening:
        group = _TUPLE.search(text)
        return group.span() if group else (len(text), len(text))
    return opening, closing_end


def _is_literal(text: str) -> bool:
    """Returns whether a text is a list, set, tuple or interval, in which every sign counts."""
    text = text.strip()
    if text[:1] not in ("[", "{", "(") or text[-1] not in _CLOSED_BY[text[0]]:
        return False
    return text[0] != "(" or text[-1] == "]" or "," in text or any(map(str.isdigit, text))


def has_words(text: str) -> bool:
    """Returns whether the text holds a letter or a digit."""
    return _HAS_WORD.search(text) is not None


def sentences(text: str) -> list[str]:
    """Returns the sentences and lines that hold a word."""
    return [sentence for sentence in SENTENCE_END.split(text) if has_words(sentence)]


def words_beside(answer: str, question: str) -> Words:
    """Returns the words that distinguish an answer from others to the question: "Bamako" in "The capital is Bamako."

    Leaves out the question's words and words without content, but never a number, a sign, "yes" or "not". If nothing is
    left, the question's words are kept. If still nothing is left, all words are kept.
    """
    spoken_words = words(strip_decoration(answer))
    if _only_affirms(spoken_words, question):
        return spoken_words[:1]
    for contentless_stems in (_asking_words(question) | _CONTENTLESS, _CONTENTLESS):
        content_words = [
            word
            for word in spoken_words
            if stem(word) not in contentless_stems or word in HEDGES | POLAR or not word.isalpha()
        ]
        if not HEDGES.issuperset(content_words):
            return tuple(content_words)
    return spoken_words


_REFERRING_WORDS = frozenset("it is are was were he she they that this there does do did".split())
"""Words of a short sentence after "yes" or "no": "No, it is not"."""


def _only_affirms(spoken_words: Words, question: str) -> bool:
    """Returns whether an answer is "yes" or "no" with words of the question: "Yes, 7 is prime." to "Is 7 prime?".

    "No" may have a "not" beside it.
    """
    if len(spoken_words) < 2 or spoken_words[0] not in ("yes", "no"):
        return False
    question_words = set(words(without_accents(question)))
    words_after = set(spoken_words[1:]) - (NEGATIONS - {"no"} if spoken_words[0] == "no" else set()) - _REFERRING_WORDS
    return question_words.isdisjoint(_OFFERING_WORDS | NEGATIONS | {"than"}) and question_words >= words_after


MAX_COMPARED_CHARS = 4000
"""Longest text that is compared by its words, in characters. A longer text is compared by all its characters but blanks
and case, which takes a tenth of the time.
"""


def plain_form(text: str) -> str:
    """Returns a text in lower case with single blanks."""
    return " ".join(text.casefold().split())


@lru_cache(maxsize=16)
def _asking_words(question: str) -> frozenset[str]:
    """Returns the stems of the sentence that asks, because answers repeat them. Empty if the sentence may hold the
    answers.

    "Ann, by 3 cm" and "Bob, by 3 cm" are two answers to "Who is taller, Ann or Bob?", to "Who is taller: Ann, Bob?" and
    to "Is Ann taller than Bob?".
    """
    question_sentences = sentences(without_accents(question))
    with_question_mark = [sentence for sentence in question_sentences if sentence.rstrip().endswith("?")]
    asking_sentences = with_question_mark[-1:] or question_sentences
    if len(asking_sentences) != 1 or _OPTION_SEPARATORS.search(asking_sentences[0]):
        return frozenset()
    asking_words = with_past(words(asking_sentences[0]))
    asks_without_offer = asking_words & _QUESTION_WORDS and not asking_words & _OFFERING_WORDS
    return frozenset(map(stem, asking_words)) if asks_without_offer else frozenset()


def last_question(text_sentences: Sequence[str]) -> str:
    """Returns the last of some sentences that ends in a question mark, or else the last one; empty if there is none."""
    return next(
        (sentence for sentence in reversed(text_sentences) if sentence.rstrip().endswith("?")),
        text_sentences[-1] if text_sentences else "",
    )


def with_past(asking_words: Words) -> set[str]:
    """Returns the words of a question, with "ended" where it asks when something did end."""
    past_forms = (
        {word + ending for word in asking_words for ending in ("d", "ed") if len(word) > 2}
        if "did" in asking_words
        else set()
    )
    return {*asking_words, *past_forms}


def stem(word: str) -> str:
    """Returns the word without the s of a plural or a verb."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def is_hedged(said_words: Iterable[str], allowed: Iterable[str] = ()) -> bool:
    """Returns whether any of the words is in `HEDGES` and is not allowed."""
    return not HEDGES.isdisjoint(set(said_words) - set(allowed))


def find_words(among: Words, wanted: Words) -> list[int]:
    """Returns the indices in `among` at which `wanted` begins."""
    positions = range(len(among) - len(wanted) + 1)
    return [
        position
        for position in positions
        if among[position : position + 1] == wanted[:1] and among[position : position + len(wanted)] == wanted
    ]
