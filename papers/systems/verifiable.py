"""The judge that is a program: what can be checked about an argument without a language model.

| check | how it is decided | severe |
|---|---|---|
| hallucinated | a quotation of `MIN_QUOTE_WORDS` words or more is nowhere in the prompt, the essay included | yes |
| scored | a score is given, in digits or words; quotations do not count | yes |
| wrong side | more clauses blame than praise (Advocate) or praise than blame (Skeptic), and at least two do | yes |
| copied | half of the argument's own five-word sequences are in the prompt: it argues nothing | yes |
| repetitive | half of the four-word sequences came before, the text shrinks to a fifth by compression, or loops | yes |
| gibberish | under five different words, hardly any function words, many without vowels, or few letters | yes |
| placeholders | how often @CAPS1 and the like occur outside of true quotations | no |

A severe finding makes the argument `critical`, as in the meta-evaluator's flag: hallucinated evidence, an explicit
instruction broken, nonsense. A program cannot find contradictions. Placeholders are not severe: if the essay calls
somebody @PERSON1, there is no other name. Sides are recognised by a short list of evaluative words with negation. The
list recognises neither irony nor meaning, so a side needs a majority of clauses.
"""

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from difflib import SequenceMatcher
from functools import lru_cache

from metaprobe.api import normalize

MIN_QUOTE_WORDS = 3
"""Shorter quotations are mostly terms and titles: they are neither evidence nor hallucinated."""

MAX_QUOTED_WORDS = 200
"""Most words of a part of a quotation that are compared: the work is their number times that of the source's words."""

MAX_SPELLED_LETTERS = 60
"""Most letters of a word whose spelling a quotation may correct. Longer words, which no language has, must be equal."""

MIN_LOOP_WORDS, MIN_LOOP_TURNS, MAX_LOOP_PERIOD = 8, 4, 10
"""A loop repeats up to `MAX_LOOP_PERIOD` words at least `MIN_LOOP_TURNS` times. It has at least `MIN_LOOP_WORDS` words.
"""

Words = tuple[str, ...]

_SCORE_WORDS = "zero|one|two|three|four|five|six|seven|eight|nine|ten"
_NUMBER = rf"(?:\d+(?:\.\d+)?|(?:{_SCORE_WORDS})\b)"
_COUNTED_NOUNS = "(?:goal|run|minute|hour|day|year|time)"
_SCORED = re.compile(
    rf"\b(?:score|rating|grade|mark)s?\b(?:\s+(?:of|is|as|would be|should be|at|:|=)|\s*[:=])*+\s*(?:an?\s+)?{_NUMBER}"
    rf"|\b(?:score[sd]?|rate[sd]?|grade[sd]?|deserves?|earns?|merits?|give[sn]?)\s+(?:it\s+|this\s+|the essay\s+)?"
    rf"(?:at\s+|as\s+|with\s+)?(?:an?\s+){_NUMBER}(?!-|\s*+(?:[a-z]++\s++)?[a-z]*?{_COUNTED_NOUNS})"
    rf"|\b{_NUMBER}\s*(?:/\s*\d+\b|out\s+of\s+{_NUMBER}\s*(?:points?|marks?|stars?|for\b|in\b|on\b|$|[.,;:!)]))"
    rf"|\b(?:giv|deserv|earn|award|merit)\w*\s+(?:[\w']+\s+){{0,3}}{_NUMBER}\s+(?:points?|marks?|stars?)\b"
    r"|\b(?:top|full|highest|perfect|maximum|lowest|high|low)\s+(?:possible\s+)?(?:score|rating|marks?)\b"
    r"|\bgrade\s+(?:of\s+)?[A-F]\b(?!\w)|\b(?:deserves|earns|merits)\s+an?\s+[A-F](?:[+-]|\b)",
    re.IGNORECASE,
)
_PLACEHOLDER = re.compile(r"@[A-Z]+\d*|\bplaceholders?\b|\banonymi[sz]\w*", re.IGNORECASE)

# A quotation mark touches a word on its inner side only. An apostrophe within a word touches letters on both sides.
_ELISION = r"(?!(?:em|cause|til|till|tis|twas|bout|cuz|n|\d0s)\b)"
_QUOTATION = re.compile(
    r'(?<![\w"])"(?=[^\s"])(?P<double>[^"\n]*[^\s"])"(?![\w"])'
    rf"|(?<![\w'])'{_ELISION}(?=[\w@.\"])(?P<single>(?:[^'\n]|(?<=\w)'(?=\w))*[^\s'])'(?![\w'])",
    re.IGNORECASE,
)
_DOUBLE_QUOTES = dict.fromkeys(map(ord, "“”„‟«»＂"), '"')
_SINGLE_QUOTES = dict.fromkeys(map(ord, "‘’‚‛ʼ`´＇"), "'")
_GAP = re.compile(r"\[[^\]]{0,200}\]|\.{3,}|…")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")

_PRAISE = """clear clearly effective effectively strong strongly vivid vividly engaging compelling excellent good great
    well logical logically coherent coherently smooth smoothly rich impressive successful successfully
    skillful skillfully appropriate thorough thoroughly strength strengths excels creative"""
_BLAME = """weak weakly weakness weaknesses unclear vague vaguely confusing poor poorly lacks lack lacking fails fail
    failing insufficient inadequate limited underdeveloped undeveloped repetitive incoherent disorganized disjointed
    choppy awkward shallow superficial generic simplistic hinder hinders undermine undermines falls short missing
    errors mistakes misspelled misspellings flaw flaws flawed"""
_NEGATION = frozenset(
    "not no never without hardly barely lacks lack lacking fails fail failing cannot nor less".split()
)
_SIGN = dict.fromkeys(_PRAISE.split(), 1) | dict.fromkeys(_BLAME.split(), -1)
_CLAUSE = re.compile(
    r"(?<![.!?;\n])[.!?;\n]+(?:\s|$)|\b(?:but|however|although|though|while|whereas|yet|despite)\b", re.IGNORECASE
)
_REPORTED = re.compile(r"\b(?:advocate|skeptic|opponent)\b", re.IGNORECASE)

_FUNCTION_WORDS = frozenset(
    """the a an and or but of to in on at by for with from as that this these those it its is are was were be been has
    have had do does did not no he she they we i you his her their our my who which what when where how there so if
    than then into about while because can could would should will may""".split()
)
_VOWEL = re.compile(r"[aeiouy]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of the program in one argument."""

    verbatim: int
    """Number of quotations that occur in the essay."""
    hallucinated: tuple[str, ...]
    """Quotations that occur nowhere."""
    scored: bool
    wrong_side: bool
    copied: bool
    repetitive: bool
    gibberish: bool
    placeholders: int

    @property
    def critical(self) -> bool:
        flags = (self.scored, self.wrong_side, self.copied, self.repetitive, self.gibberish)
        return bool(self.hallucinated) or any(flags)

    @property
    def evidence(self) -> int:
        """1 to 3, by the meta-evaluator's scale of evidence (none, one, more), from verbatim quotations only."""
        return 1 + min(self.verbatim, 2)

    def labels(self) -> dict[str, float]:
        """Maps label names to values: counts, and flags of 0 or 1. Only `critical` has the same meaning as for other
        judges.
        """
        checks = {f"check:{field.name}": getattr(self, field.name) for field in fields(self)}
        checks |= {"check:hallucinated": len(self.hallucinated), "check:evidence": self.evidence}
        return {**checks, "critical": self.critical}


def check_argument(argument: str, essay: str, *, role: str, other_texts: Sequence[str] = ()) -> Findings:
    """Checks one argument.

    Args:
        argument: the argument.
        essay: the essay.
        role: `advocate`, who may not blame, or `skeptic`, who may not praise.
        other_texts: other texts that the agent was shown (rubric, task, opponent). Quoting them is neither evidence nor
            invention.
    """
    text = straight_quotes(argument)
    in_essay, hallucinated = [], []
    source, other_words = plain_words(essay), [plain_words(other) for other in other_texts]
    for quotation in quotations(text):
        if occurs(quotation, source):
            in_essay.append(quotation)
        elif not any(occurs(quotation, other) for other in other_words):
            hallucinated.append(quotation)
    unquoted = _QUOTATION.sub(lambda match: ' " " ', text)
    outside_true_quotations = _QUOTATION.sub(
        lambda match: ' " " ' if occurs(_quoted_passage(match), source) else match.group(), text
    )
    return Findings(
        verbatim=len(set(map(plain_words, in_essay))),
        hallucinated=tuple(hallucinated),
        scored=_SCORED.search(unquoted) is not None,
        wrong_side=argues_against(unquoted, sign=1 if role == "advocate" else -1),
        copied=is_copied(unquoted, (essay, *other_texts)),
        repetitive=is_repetitive(argument),
        gibberish=is_gibberish(argument),
        placeholders=len(_PLACEHOLDER.findall(outside_true_quotations)),
    )


def straight_quotes(text: str) -> str:
    """Returns the text with every kind of quotation mark as `"` or `'`."""
    return normalize("NFC", text).translate(_DOUBLE_QUOTES | _SINGLE_QUOTES)


def quotations(text: str) -> list[str]:
    """Returns the quoted passages of `MIN_QUOTE_WORDS` words or more, outermost marks only, each within one line.

    A mark without its partner opens nothing. An apostrophe is no mark. After a plural's apostrophe (`dogs'`) a
    single-quoted passage may be cut short; the rest of a true quotation is still true.
    """
    passages = (_quoted_passage(match) for match in _QUOTATION.finditer(straight_quotes(text)))
    return [passage for passage in passages if len(plain_words(passage)) >= MIN_QUOTE_WORDS]


def occurs(quotation: str, source: Words) -> bool:
    """Returns whether a quotation occurs in a text, whatever its case, spacing and punctuation.

    Quoting may correct spelling (words that begin alike and share three quarters of their letters are the same), and
    one word in five may be missing or added, but never a negation; a different word is one missing and one added. Parts
    around `...` or `[...]` must follow each other.
    """
    start = 0
    for part in _GAP.split(quotation):
        quoted = plain_words(part)[:MAX_QUOTED_WORDS]
        end = _end_of_match(quoted, source[start:]) if quoted else 0
        if end is None:
            return False
        start += end
    return True


@lru_cache(maxsize=256)
def plain_words(text: str) -> Words:
    """Returns the words of a text, lower case, without apostrophes."""
    plain = normalize("NFKC", straight_quotes(text)).casefold()
    return tuple(word.replace("'", "") for word in _WORD.findall(plain))


def argues_against(text: str, *, sign: int) -> bool:
    """Returns whether at least two clauses, and most of those that take a side, take the side opposite to `sign`.

    `sign` is 1 for praise, -1 for blame.
    """
    sides = Counter(_side(clause) for clause in _CLAUSE.split(text) if clause and not _REPORTED.search(clause))
    return sides[-sign] >= 2 and sides[-sign] > sides[sign]


def is_copied(text: str, sources: Sequence[str]) -> bool:
    """Returns whether most of a text already occurs in the sources; False for a text too short to decide.

    Double quotes split the text, so that no sequence joins the words on both sides of a quotation.
    """
    known_sequences = {sequence for source in sources for sequence in _sequences(source, 5)}
    own_sequences = [sequence for part in text.split('"') for sequence in _sequences(part, 5)]
    return (
        len(own_sequences) >= 8
        and sum(sequence in known_sequences for sequence in own_sequences) >= len(own_sequences) / 2
    )


def is_repetitive(text: str) -> bool:
    """Returns whether a text repeats itself: as a whole, or in one place in which the same words follow each other.

    A short text is repetitive only if it loops ("the the the ..."); a single word said three times is not a loop.
    """
    sequences = _sequences(text, 4)
    if len(sequences) >= 16 and len(set(sequences)) <= len(sequences) / 2:
        return True
    raw = text.encode("utf-8", "surrogatepass")
    return (len(raw) >= 200 and len(zlib.compress(raw, 9)) <= len(raw) / 5) or _loops(plain_words(text))


def is_gibberish(text: str) -> bool:
    """Returns whether a text has too few words to be an argument, or does not look like English prose."""
    own_words = plain_words(text)
    if len(set(own_words)) < 5:
        return True
    letters = sum(char.isascii() and char.isalpha() for char in text)
    if letters < 0.6 * sum(not char.isspace() for char in text):
        return True
    odd_word_count = sum(_VOWEL.search(word) is None or len(word) > 24 for word in own_words if word.isalpha())
    if odd_word_count > len(own_words) / 4:
        return True
    return len(own_words) >= 20 and sum(word in _FUNCTION_WORDS for word in own_words) < len(own_words) / 8


def _loops(own_words: Words) -> bool:
    """Returns whether some words repeat without other words between them (`MIN_LOOP_WORDS`, `MIN_LOOP_TURNS`)."""
    for period in range(1, MAX_LOOP_PERIOD + 1):
        needed = max(MIN_LOOP_WORDS, MIN_LOOP_TURNS * period) - period
        repeated = 0
        for earlier_word, word in zip(own_words, own_words[period:], strict=False):
            repeated = repeated + 1 if word == earlier_word else 0
            if repeated >= needed:
                return True
    return False


def _sequences(text: str, length: int) -> list[Words]:
    own_words = plain_words(text)
    return [own_words[i : i + length] for i in range(len(own_words) - length + 1)]


def _quoted_passage(match: re.Match[str]) -> str:
    return match["double"] or match["single"]


def _side(clause: str) -> int:
    """Returns 1 for a clause that praises, -1 for one that blames, 0 for neither or both."""
    own_words, total = plain_words(clause), 0
    for index, word in enumerate(own_words):
        words_before = own_words[max(0, index - 3) : index]
        is_negated = any(word_before in _NEGATION or _is_contracted_not(word_before) for word_before in words_before)
        total += -_SIGN.get(word, 0) if is_negated else _SIGN.get(word, 0)
    return (total > 0) - (total < 0)


def _end_of_match(quoted: Words, source: Words) -> int | None:
    """Returns where the best approximate match of `quoted` in `source` ends; None if none is good enough.

    Sellers' algorithm over words: edit distance, with a free start and a free end in `source`.
    """
    drop_costs = [_edit_cost(word) for word in quoted]
    costs = [sum(drop_costs[:i]) for i in range(len(quoted) + 1)]  # costs[i]: of matching the first i words up to here
    best, end = len(quoted) // 5 + 1, None
    for position, word in enumerate(source, 1):
        diagonal, add_cost = costs[0], _edit_cost(word)
        for i, quoted_word in enumerate(quoted, 1):
            cost = min(costs[i] + add_cost, costs[i - 1] + drop_costs[i - 1])
            if diagonal < cost and _is_same_word(quoted_word, word):
                cost = diagonal
            diagonal, costs[i] = costs[i], cost
        if costs[-1] < best:
            best, end = costs[-1], position
            if best == 0:
                break
    return end


def _edit_cost(word: str) -> int:
    """Returns the cost of adding or dropping a word; for a negation it is too high for any quotation."""
    return 1_000_000 if word in _NEGATION or _is_contracted_not(word) else 1


def _is_contracted_not(word: str) -> bool:
    return word.endswith("nt") and word[:-2] in _AUXILIARIES


_AUXILIARIES = frozenset("do does did is are was were has have had ca could would should wo must ai".split())


@lru_cache(maxsize=100_000)
def _is_same_word(first: str, second: str) -> bool:
    """Returns whether two words are equal except for spelling."""
    if first == second:
        return True
    if min(len(first), len(second)) < 4 or first[0] != second[0] or abs(len(first) - len(second)) > 2:
        return False
    if _edit_cost(first) > 1 or _edit_cost(second) > 1 or len(first) > MAX_SPELLED_LETTERS:
        return False
    return SequenceMatcher(None, first, second, autojunk=False).ratio() >= 0.75
