"""Is an answer right? Exact match after normalisation, in the four forms of `Item.check`.

An answer may be dressed: "Answer: **Paris**.", "the yen (JPY)", "$1,200", "3 + 4 = 7", "The capital is Paris.";
beside the gold it may hold only words of the question's own sentence and words without content. It may not be hedged,
negated, or one of several: "not Paris", "Paris or London" and "Paris, London" are wrong.
"""

import re
import unicodedata
from collections.abc import Iterable
from fractions import Fraction

from metaprobe.eval.tasks.sandbox import run_assertions
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Item

Words = tuple[str, ...]

_UP_TO_TWENTY = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty"""
_HEDGES = """or either neither nor not no never isnt wasnt arent dont doesnt cannot cant unless maybe perhaps possibly
    but and actually wait sorry instead incorrect wrong"""
_FILLER = """is are was were be it its this that they there he she his her has have had in of to for on at by as with
    will would now so then therefore thus answer result output print make do return equal call called known located
    official officially spoken written mainly primarily typically usually correct value you we deep dark bright
    pale light"""

NUMBER_WORDS = {word: str(number) for number, word in enumerate(_UP_TO_TWENTY.split())}
ARTICLES = frozenset(("a", "an", "the"))
HEDGES = frozenset(_HEDGES.split())
"""Words that make an answer no answer, unless they belong to the gold."""
FILLER = frozenset(_FILLER.split())
"""Words that say nothing beside the gold (as stems), whatever the question."""

_LEAD = re.compile(
    r"^\W*(?:(?:the\s+)?(?:final\s+|correct\s+)?(?:answer|result|output)(?:\s+is\b\s*:?|\s*[:=])|a:)\s*", re.I
)
_FENCE = re.compile(r"```[\w+-]*[ \t]*\n?(.*?)(?:```|\Z)", re.S)
_ASIDE = re.compile(r"\s*\([^()]*\)")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?|(?<![\w.])-?\.\d+")
_SCALED = re.compile(r"\d\s*(?:(?:and\s+)?an?\s+)?(?:hundred|thousand|million|billion|dozen|half|third|quarter)", re.I)
_WORD = re.compile(r"-?\d+(?:\.\d+)?|[^\W_]+(?:'[^\W_]+)*")


def is_correct(item: Item, answer: str) -> bool:
    """Whether `answer` is what the item asks for. Raises `RecordError` where the item cannot be checked by a program.

    `answer` is the answer alone (a first line, or what followed "Answer:"); for functions the whole text.
    """
    if not item.gold:
        raise RecordError(f"item {item.id!r} has no gold answer: give one, or do not score it")
    if item.check == "function":
        code = function_code(answer)
        return code is not None and run_assertions(code, item.gold).passed
    if item.check == "number":
        return any(_is_number(answer, item.question, gold) for gold in item.gold)
    if item.check == "choice":
        return _is_choice(answer, item)
    if item.check == "exact":
        return any(_is_text(answer, item.question, gold) for gold in item.gold)
    raise RecordError(f"item {item.id!r} has check {item.check!r}: expected exact, number, choice or function")


def undressed(text: str) -> str:
    """The text without code fence, bold, leading "Answer:" or "The answer is", outer quotes, and accents."""
    fence = _FENCE.search(text)
    text = (fence.group(1) if fence else text).replace("**", "").replace("`", "").strip()
    text = _LEAD.sub("", text, count=1)
    text = unicodedata.normalize("NFKD", text.replace("−", "-").replace("’", "'"))
    text = "".join(c for c in text if not unicodedata.combining(c))
    return text.strip().strip("\"“”'").strip()


def words(text: str, *, fold: bool = True) -> Words:
    """The words of a text: no punctuation, no articles (unless nothing else is there), number words as digits."""
    found = [word.replace("'", "") for word in _WORD.findall(text)]
    folded = [NUMBER_WORDS.get(word.casefold(), word.casefold() if fold else word) for word in found]
    return tuple(word for word in folded if word.casefold() not in ARTICLES) or tuple(folded)


def function_code(text: str) -> str | None:
    """The Python code in a text: what is fenced, or else from the first line of code to the last that parses."""
    fence = _FENCE.search(text)
    lines = (fence.group(1) if fence else text).strip("\n").split("\n")
    starts = [i for i, line in enumerate(lines) if re.match(r"(?:def|import|from|class)\b|@|\w+\s*=", line)]
    for end in range(len(lines), 0, -1) if starts else ():
        code = "\n".join(lines[starts[0] : end])
        try:
            compile(code, "answer", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            continue
        return code
    return None


def _question_words(question: str) -> frozenset[str]:
    """The stems of the sentence that asks: the last one ending in "?", or everything where there is none."""
    asking = [part for part in _SENTENCE_END.split(question) if part.rstrip().endswith("?")]
    return frozenset(_stem(word) for word in words(asking[-1] if asking else question))


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _hedged(found: Iterable[str], allowed: Iterable[str]) -> bool:
    return not HEDGES.isdisjoint(set(found) - set(allowed))


def _places(found: Words, wanted: Words) -> list[int]:
    """Where `wanted` begins within `found`."""
    return [i for i in range(len(found) - len(wanted) + 1) if found[i : i + len(wanted)] == wanted]


def _is_text(answer: str, question: str, gold: str) -> bool:
    # `print("cat".upper())` must not be answered by copying: case counts where the question has the gold in other case.
    fold = gold in question or gold.casefold() not in question.casefold()
    wanted = words(undressed(gold), fold=fold)
    whole = undressed(answer)
    sentences = [part for part in _SENTENCE_END.split(whole) if words(part)]
    if not sentences or not wanted:
        return False
    aside = _ASIDE.sub("", whole)
    if words(aside) and not any(_hedged(words(found), ()) for found in _ASIDE.findall(whole)):
        whole = aside
    if _says(whole, wanted, question, fold=fold):
        return True
    first, rest = _ASIDE.sub("", sentences[0]), " ".join(sentences[1:])
    if len(words(rest)) >= 3 and not _hedged(words(rest), ()):
        return _says(first, wanted, question, fold=fold)
    head, _, apposition = whole.partition(", ")
    return (
        re.match(r"(?:an?|the|which|who)\b", apposition) is not None
        and not _hedged(words(apposition), ("and",))
        and words(head, fold=fold) == wanted
    )


def _says(text: str, wanted: Words, question: str, *, fold: bool) -> bool:
    """Whether the text is `wanted`, or `wanted` and otherwise only words of the question and filler."""
    found = words(text, fold=fold)
    if found == wanted:
        return True
    places = _places(found, wanted)
    if not places or _hedged(found, wanted):
        return False
    covered = {place + i for place in places for i in range(len(wanted))}
    beside = {_stem(word.casefold()) for i, word in enumerate(found) if i not in covered}
    return beside <= _question_words(question) | FILLER


def numbers(text: str) -> tuple[Fraction, ...]:
    """The numbers of a text in order: digits, thousands separators, decimals, proper fractions, words up to twenty."""
    text = re.sub(r"\b(?:minus|negative)\s+(?=\d)", "-", text, flags=re.I)
    text = re.sub(r"\b[A-Za-z]+\b", lambda m: NUMBER_WORDS.get(m.group().lower(), m.group()), text)
    found = []
    for match in _NUMBER.findall(text):
        top, _, bottom = match.replace(",", "").partition("/")
        if bottom and (int(bottom) == 0 or Fraction(top) % int(bottom) == 0):
            found += [Fraction(top), Fraction(bottom)]  # 10/2 is a sum to do, not the number 5
        else:
            found.append(Fraction(top) / int(bottom or 1))
    return tuple(found)


def _is_number(answer: str, question: str, gold: str) -> bool:
    text = undressed(answer)
    wanted = numbers(gold)
    if len(wanted) != 1:
        raise RecordError(f"the gold {gold!r} of a number item is not one number")
    # A sentence after the first may explain, unless it takes something back.
    first = next((part for part in _SENTENCE_END.split(text) if words(part)), "")
    if _hedged(words(text), ("and", "but")) or _SCALED.search(first):
        return False
    conclusion = re.split(r"\b(?:so|therefore|thus|hence)\b", first)[-1]
    first = conclusion if numbers(conclusion) else first
    sides = [side for side in re.split(r"=|≈|\b(?:is|are|equals|makes)\b", first) if numbers(side)]
    bare = [side for side in sides if len(set(numbers(side))) == 1 and not re.search(r"\d\s*[-+*/×x^]\s*\d", side)]
    given = set(numbers(question))
    if bare and len(sides) > 1:
        return set(numbers(bare[-1])) == set(wanted)
    found = set(numbers(first))
    return (found - given or found) == set(wanted)


def _is_choice(answer: str, item: Item) -> bool:
    if item.gold[0] not in item.choices:
        raise RecordError(f"the gold {item.gold[0]!r} of choice item {item.id!r} is none of its choices {item.choices}")
    text = undressed(answer)
    found = words(text)
    options = {choice: words(choice) for choice in item.choices}
    named = _named(found, options)
    if len(named) == 2 and "than" in found:
        # "Ben is shorter than Anna" names both and answers "Who is shorter?" with the first.
        left, right = found[: found.index("than")], found[found.index("than") + 1 :]
        subject, other = _named(left, options), _named(right, options)
        beside = {word for word in left if all(word not in options[choice] for choice in subject)}
        if len(subject) == len(other) == 1 and beside <= {"is", "are", "was"} | set(
            words(item.question.split(". ")[-1])
        ):
            named = subject
    if not named and found:
        content = [word for word in found if _stem(word) not in FILLER] or list(found)
        named = [choice for choice, option in options.items() if set(content) <= set(option)]
    if len(named) != 1 or named[0] not in item.gold:
        return False
    negatable = found[0] in ("yes", "no", "true", "false")
    return negatable or not _hedged(found, options[named[0]])


def _named(found: Words, options: dict[str, Words]) -> list[str]:
    """The choices that occur, the longest first, each word counted for one choice only."""
    taken: set[int] = set()
    named = []
    for choice, option in sorted(options.items(), key=lambda pair: -len(pair[1])):
        spans = [set(range(place, place + len(option))) for place in _places(found, option)]
        free = [span for span in spans if not span & taken]
        if free:
            named.append(choice)
            taken.update(*free)
    return named
