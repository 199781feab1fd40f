"""Finds the answer within a model's text, reads its words, number, code or option, and tells whether it is right.

There are the four forms of `Item.check`. Systems that vote compare answers by the same parts by which task sets score
them, so that votes and scores agree.

An answer may be dressed: "Answer: **Paris**.", "the yen (JPY)", "$1,200", "3 + 4 = 7", "The capital is Paris.";
beside the gold it may hold only words of the question's own sentence and words without content. It may not be hedged,
negated, or one of several: "not Paris", "Paris or London" and "Paris, London" are wrong.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

from metaprobe.records.errors import RecordError
from metaprobe.records.sandbox import run_assertions
from metaprobe.records.spelling import AT_LINE, MOST_DIGITS, normalize
from metaprobe.records.types import Item

Words = tuple[str, ...]


_UP_TO_TWENTY = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty"""
_HEDGES = """or either neither nor not no never isnt wasnt arent dont doesnt cannot cant unless maybe perhaps possibly
    but and actually wait sorry instead incorrect wrong"""
_FILLER = """is are was were be it its this that they there he she his her has have had in of to for on at by as with
    will would now so then therefore thus answer result output print make do return equal call called known located
    official officially spoken written mainly primarily typically usually correct value you we"""
_SHADES = "deep dark bright pale light"

NUMBER_WORDS = {word: str(number) for number, word in enumerate(_UP_TO_TWENTY.split())}
ARTICLES = frozenset(("a", "an", "the"))
HEDGES = frozenset(_HEDGES.split())
"""Words that make an answer no answer, unless they belong to the gold."""
NEGATIONS = frozenset("not no never isnt wasnt arent dont doesnt cannot cant".split())
FILLER = frozenset(f"{_FILLER} {_SHADES}".split())
"""Words that say nothing beside the gold (as stems), whatever the question."""
POLAR = frozenset(("yes", "no", "true", "false"))
"""Options that an explanation with a "not" in it may follow."""

_EMPTY = frozenset(_FILLER.split())
"""Words that say nothing where two answers are compared: "light" and "dark" are two answers, beside a gold they are
not."""
_ASKS = frozenset("who whom whose what which when where how why".split())
_OFFERS = frozenset("or and between against versus vs v".split())
_LISTS = re.compile(r"[:;/&]|\s[-–—]\s|,[^,]*,|\A\W*(?:who|whom|whose|which|what)\b[^,]*,", re.I)
"""Separators that may set options apart in the sentence that asks: "Who is taller: Ann, Bob?"."""

MOST_CODE = 100_000
"""Characters of code that is compiled; a function that answers a question has hundreds."""
MOST_CUTS = 20
"""Most times that a text is compiled, each time without the line that did not parse and what follows it."""

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_LEAD = re.compile(
    r"^\W*(?:(?:the\s+)?(?:final\s+|correct\s+)?(?:answer|result|output)(?:\s+is\b\s*:?|\s*[:=])|a:)\s*", re.I
)
_FENCE = re.compile(r"```[\w+-]*[ \t]*\n?(.*?)(?:```|\Z)", re.S)
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?|(?<![\w.])-?\.\d+")
_WORD = re.compile(r"-?\d+(?:\.\d+)?|[^\W_]+(?:'[^\W_]+)*")
_DRESS = r"[^\w=+*/^×÷-]{0,3}"
_JOINT = re.compile(rf"{_DRESS}(?:[^\W\d_]+{_DRESS})?(?:[,;&]|\b(?:and|or)\b){_DRESS}(?:(?:and|or)\b{_DRESS})?", re.I)
"""Separators between the numbers of a list."""
_NEAR = 4
"""Words before a number in which a "not" is of that number."""
_SCALED = re.compile(r"\d\s*(?:(?:and\s+)?an?\s+)?(hundred|thousand|million|billion|dozen|half|third|quarter)", re.I)

_TO_LETTER = r"""\W{0,8}(?:(?:so|therefore|thus|hence)\b\W{0,8})?
    (?:i\s+(?:would\s+)?(?:choose|pick|say|select|think)\s+)?(?:the\s+)?(?:(?:correct|right|best|final)\s+)?(?:(?:option|choice|answer|letter)\b\s*(?:is\b)?\W{0,8})?
    (?:option\s+)?\W{0,8}"""
_LETTER = re.compile(
    rf"(?i:{_TO_LETTER})(?:([A-Z])(?=\s*[).:,;/\n–—-]|\W*$|\s+(?:is|was|because|since|as|and|or)\b)"
    r"|([a-z])(?=\s*[).:]|\W*$))(?!')",
    re.X,
)
_ANY_LETTER = re.compile(r"\b(?i:option|choice|answer)\s+(?:(?i:is)\s+)?(?:(?i:option)\s+)?\(?([A-Z])(?![\w'])")
_NEXT_LETTER = re.compile(r"^\W*?(?:,|/|;|&|\band\b|\bor\b)\s*(?:option\s*)?\(?([A-Z])(?![\w'])")
_LINE_LETTER = re.compile(rf"{AT_LINE}([A-Z])[).:]", re.M)
_TAKEN_BACK = re.compile(r"^\W*(?:is|was)(?:n't|\s+(?:not|wrong|incorrect))\b|\b(?:wait|actually|sorry)\b", re.I)


def strip_decoration(text: str, *, lead: bool = True) -> str:
    """The text without code fence, bold, \\boxed, outer quotes and accents; `lead`: without "Answer:" before it too."""
    fence = _FENCE.search(text)
    text = _BOXED.sub(r"\1", (fence.group(1) if fence else text)).replace("**", "").replace("`", "").strip()
    text = _without_accents(_LEAD.sub("", text, count=1) if lead else text)
    return text.strip().strip("\"“”'").strip()


def _without_accents(text: str) -> str:
    text = normalize("NFKD", text.replace("−", "-").replace("’", "'"))
    return "".join(c for c in text if not unicodedata.combining(c))


def words(text: str, *, fold: bool = True) -> Words:
    """The words of a text: no punctuation, no articles (unless nothing else is there), number words as digits."""
    spelled = [word.replace("'", "") for word in _WORD.findall(text)]
    folded = [NUMBER_WORDS.get(word.casefold(), word.casefold() if fold else word) for word in spelled]
    return tuple(word for word in folded if word.casefold() not in ARTICLES) or tuple(folded)


def words_beside(answer: str, question: str) -> Words:
    """The words by which an answer differs from others to the same question: "Bamako" in "The capital is Bamako."

    Leaves out the question's own words and those that say nothing, but no number, no "yes" and no "not". Where nothing
    is left, the question's words stay, and where that leaves nothing either, all words do.
    """
    spoken = words(strip_decoration(answer))
    for empty in (_asking_words(question) | _EMPTY, _EMPTY):
        left = [word for word in spoken if stem(word) not in empty or word in HEDGES | POLAR or not word.isalpha()]
        if not HEDGES.issuperset(left):
            return tuple(left)
    return spoken


@lru_cache(maxsize=16)
def _asking_words(question: str) -> frozenset[str]:
    """The stems of the sentence that asks, which answers repeat; empty where the sentence may hold the answers.

    "Ann, by 3 cm" and "Bob, by 3 cm" are two answers to "Who is taller, Ann or Bob?", to "Who is taller: Ann, Bob?" and
    to "Is Ann taller than Bob?".
    """
    sentences = [part for part in SENTENCE_END.split(_without_accents(question)) if words(part)]
    asking = [part for part in sentences if part.rstrip().endswith("?")][-1:] or sentences
    asked = set(words(asking[0])) if len(asking) == 1 and not _LISTS.search(asking[0]) else set()
    return frozenset(map(stem, asked)) if asked & _ASKS and not asked & _OFFERS else frozenset()


def stem(word: str) -> str:
    """The word without the s of a plural or a verb."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def is_hedged(said_words: Iterable[str], allowed: Iterable[str] = ()) -> bool:
    """Whether a word of `HEDGES` is among them that is not allowed."""
    return not HEDGES.isdisjoint(set(said_words) - set(allowed))


def function_code(text: str) -> str | None:
    """The Python code in a text: what is fenced, or else from the first line of code to the last that parses.

    None also for code of more than `MOST_CODE` characters, and where more than `MOST_CUTS` ends of it do not parse.
    """
    fence = _FENCE.search(text)
    lines = (fence.group(1) if fence else text).strip("\n").split("\n")
    starts = [i for i, line in enumerate(lines) if re.match(r"(?:def|import|from|class)\b|@|\w+\s*=", line)]
    lines = lines[starts[0] :] if starts else []
    for _ in range(MOST_CUTS):
        code = "\n".join(lines)
        if not lines or len(code) > MOST_CODE:
            return None
        try:
            compile(code, "answer", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
            # A beginning that holds the line of the error has the same error, so it is cut before that line.
            line = getattr(error, "lineno", None) or len(lines)
            lines = lines[: min(max(line, 1), len(lines)) - 1]
            continue
        return code
    return None


@lru_cache(maxsize=64)  # one answer is held against several marks in turn
def numbers(text: str) -> tuple[Fraction, ...]:
    """The numbers of a text in order: digits, thousands separators, decimals, proper fractions, words up to twenty."""
    return tuple(value for match in _NUMBER.findall(_with_digits(text)) for value in _values(match))


def _with_digits(text: str) -> str:
    text = re.sub(r"\b(?:minus|negative)\s+(?=\d)", "-", text, flags=re.I)
    return re.sub(r"\b[A-Za-z]+\b", lambda m: NUMBER_WORDS.get(m.group().lower(), m.group()), text)


def _values(match: str) -> tuple[Fraction, ...]:
    top, _, bottom = (part[:MOST_DIGITS] for part in match.replace(",", "").partition("/"))
    if bottom and (int(bottom) == 0 or Fraction(top) % int(bottom) == 0):
        return Fraction(top), Fraction(bottom)  # 10/2 is a sum to do, not the number 5
    return (Fraction(top) / int(bottom or 1),)


def read_number(question: str, answer: str) -> Fraction | None:
    """The one number that an answer gives, or None where it gives none or several, or hedges.

    What stands alone on the last side of an equation counts, then what the question did not already give.
    """
    text = strip_decoration(answer)
    # A sentence after the first may explain, unless it takes something back.
    first = next((part for part in SENTENCE_END.split(text) if words(part)), "")
    scales = {scale.lower() for scale in _SCALED.findall(first)}
    # "7 dozen" is 7 where the question asks in dozens, and no plain number elsewhere.
    if is_hedged(words(text), ("and", "but")) or any(scale not in question.lower() for scale in scales):
        return None
    conclusion = re.split(r"\b(?:so|therefore|thus|hence)\b", first)[-1]
    first = conclusion if numbers(conclusion) else first
    sides = [side for side in re.split(r"=|≈|\b(?:is|are|equals|makes)\b", first) if numbers(side)]
    bare = [side for side in sides if len(set(numbers(side))) == 1 and not re.search(r"\d\s*[-+*/×x^]\s*\d", side)]
    if bare and len(sides) > 1:
        return numbers(bare[-1])[0]
    values = set(numbers(first))
    left = values - set(numbers(question)) or values
    return left.pop() if len(left) == 1 else None


def last_number(question: str, answer: str) -> str:
    """The last number of an answer, with what makes it another answer: "5", but "3 or 5", "3 5" and "not 5".

    A list is numbers with at most one word after each, and a comma, "and" or "or" between them. Empty without a number.
    """
    text = _with_digits(strip_decoration(answer))
    found = list(_NUMBER.finditer(text))
    between = [text[one.end() : other.start()] for one, other in itertools.pairwise(found)]
    first = len(found) - 1
    while first > 0 and _JOINT.fullmatch(between[first - 1]):
        first -= 1
    if not found:
        return ""
    values = ["/".join(map(str, _values(match.group()))) for match in found]
    form = values[first : first + 1]
    for joint, value in zip(between[first:], values[first + 1 :], strict=True):
        form += ["or", value] if "or" in words(joint) else [value]
    before = words(between[first - 1] if first else text[: found[0].start()])[-_NEAR:]
    hedges = HEDGES - {"and", "but"} - set(words(question))
    return " ".join([*(word for word in before if word in hedges), *form])


# The functions below cache a question and its options: many answers, and many lines of one, are compared with them.


@lru_cache(maxsize=16)
def _negations_in(question: str) -> frozenset[str]:
    return NEGATIONS & set(words(question))


@lru_cache(maxsize=512)
def _option_words(choice: str) -> Words:
    return words(strip_decoration(choice, lead=False))


def find_words(among: Words, wanted: Words) -> list[int]:
    """Returns the places in `among` at which `wanted` begins."""
    places = range(len(among) - len(wanted) + 1)
    return [i for i in places if among[i : i + 1] == wanted[:1] and among[i : i + len(wanted)] == wanted]


def find_choices(among: Words, options: Mapping[str, Words]) -> list[str]:
    """The choices that occur, the longest first, each word counted for one choice only."""
    taken: set[int] = set()
    named = []
    for choice, option in sorted(options.items(), key=lambda pair: -len(pair[1])):
        spans = [set(range(place, place + len(option))) for place in find_words(among, option)]
        free = [span for span in spans if not span & taken]
        if free:
            named.append(choice)
            taken.update(*free)
    return named


def letter_options(choices: Sequence[str]) -> str:
    """The options one a line, with letters: `A) ...`."""
    return "\n".join(f"{chr(ord('A') + place)}) {choice}" for place, choice in enumerate(choices))


@lru_cache(maxsize=16)
def _shows_letters(question: str, choices: tuple[str, ...]) -> bool:
    """Whether the question lists its options with letters: `A) ...`, `(A) ...`, `A. ...` or `A: ...`."""
    return bool(choices) and all(
        any(f"{chr(ord('A') + place)}{mark} {choice}" in question for mark in ").:")
        for place, choice in enumerate(choices)
    )


_NEGATED = re.compile(r"(?:(?<=\w)n't|(?<!\s)\s*+\bnot)\s+(true|false)\b|(?<!\s)\s*+\buntrue\b", re.IGNORECASE)
"""Matches "not true" and "not false": the one pair of options of which a negation names the other."""


def chosen(item: Item, answer: str) -> str | None:
    """The one option that an answer names, or None where it names none or several, hedges, or takes it back.

    Where the question shows letters, one at the start ("B", "(b)", "B) ...", "option B is right") goes before words.
    """
    if {choice.casefold() for choice in item.choices} == {"true", "false"}:
        answer = _NEGATED.sub(lambda match: " false" if (match[1] or "true").casefold() == "true" else " true", answer)
    text = strip_decoration(answer)
    bare = _bare(text)
    literal = {choice for choice in item.choices if _bare(choice) == bare}
    if len(literal) == 1 and not (_shows_letters(item.question, item.choices) and len(bare) == 1):
        return literal.pop()
    if _shows_letters(item.question, item.choices):
        whole = strip_decoration(answer, lead=False)  # in which "A: ..." keeps its letter
        if letter := chosen_letter(item, whole):
            # The option of the letter, unless what follows is another letter or another option, or takes it back.
            option, rest = item.choices[_place(letter)], whole[letter.end() :]
            if _bare(rest.lstrip(").:,;/–— ")) == _bare(option):
                return option
            known = {chr(ord("A") + place) for place, choice in enumerate(item.choices) if choice != option}
            following = [*_NEXT_LETTER.findall(rest), *_LINE_LETTER.findall(rest)]
            if not known.isdisjoint(following) or _TAKEN_BACK.search(rest.replace(option, "")):
                return None
            spoken, told = words(rest), {choice: words(choice) for choice in item.choices}
            opening = [choice for choice, said in told.items() if said and find_words(spoken, said)[:1] == [0]]
            return option if not opening or option in opening else None
    return _of_words(item, text)


def chosen_letter(item: Item, answer: str) -> re.Match[str] | None:
    """The letter of an option with which an answer begins, where the question shows letters."""
    if not _shows_letters(item.question, item.choices):
        return None
    letter = _LETTER.match(answer)
    if letter and letter.end() < len(answer) and answer[letter.end()] == ":" and _place(letter) == 0:
        letter = _LETTER.match(answer, letter.end() + 1) or letter  # "A: B" answers B
    return letter if letter and _place(letter) < len(item.choices) else None


@lru_cache(maxsize=512)
def _bare(text: str) -> str:
    return strip_decoration(text).rstrip(". ")


def _place(letter: re.Match[str]) -> int:
    return ord((letter.group(1) or letter.group(2)).upper()) - ord("A")


def _of_words(item: Item, text: str) -> str | None:
    spoken = words(text)
    options = {choice: option for choice in item.choices if (option := _option_words(choice))}
    if spoken and spoken[0] in POLAR and spoken[:1] in options.values():
        return None if spoken[1:2] in (("or",), ("and",)) else next(c for c, o in options.items() if o == spoken[:1])
    named = find_choices(spoken, options)
    if len(named) == 2 and "than" in spoken:
        # "Ben is shorter than Anna" names both and answers "Who is shorter?" with the first.
        left, right = spoken[: spoken.index("than")], spoken[spoken.index("than") + 1 :]
        subject, other = find_choices(left, options), find_choices(right, options)
        beside = {word for word in left if all(word not in options[choice] for choice in subject)}
        asking = {"is", "are", "was"} | set(words(item.question.split(". ")[-1]))
        named = subject if len(subject) == len(other) == 1 and beside <= asking else named
    if _shows_letters(item.question, item.choices) and len(named) != 1:
        letters = {ord(letter) - ord("A") for letter in _ANY_LETTER.findall(text)}
        named = [item.choices[place] for place in letters if place < len(item.choices)]
    elif not named and spoken:
        content = {word for word in spoken if stem(word) not in FILLER} or set(spoken)
        named = [choice for choice, option in options.items() if content <= set(option)]
    if len(named) != 1 or list(options.values()).count(options.get(named[0], ())) > 1:  # "p -> ~q" is not "~p -> q"
        return None
    option = options.get(named[0], ())
    place = next(iter(find_words(spoken, option)), 0)
    before, after = spoken[:place], spoken[place + len(option) :]
    if len(option) == 1 and option[0] in POLAR:
        unsure = is_hedged(before) or is_hedged(after[:1], NEGATIONS)
    else:
        # "Who does not care?" may be answered with "Ben does not care", not with "Not Ben".
        unsure = is_hedged(before, option) or is_hedged(after, _negations_in(item.question) | set(option))
    return None if unsure else named[0]


_IN_WHICH = re.compile(r"\bin (?:which|what)\b", re.IGNORECASE)
_PLACED = re.compile(r"^.*?\bin\s+", re.IGNORECASE | re.DOTALL)
_FURTHER = re.compile(r"^\W*(?:(?:more )?(?:specifically|precisely)\W+)?(?:in\s+)?", re.IGNORECASE)
_ASIDE = re.compile(r"(?<!\s)\s*+\([^()]*\)")


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
        for gold in item.gold:
            wanted = numbers(gold)
            if len(wanted) != 1:
                raise RecordError(f"the gold {gold!r} of a number item is not one number")
            if read_number(item.question, answer) == wanted[0]:
                return True
        return False
    if item.check == "choice":
        if missing := [gold for gold in item.gold if gold not in item.choices]:
            raise RecordError(
                f"the gold {missing[0]!r} of choice item {item.id!r} is none of its choices {item.choices}"
            )
        return chosen(item, answer) in item.gold
    if item.check == "exact":
        return any(_is_text(answer, item.question, gold) for gold in item.gold)
    raise RecordError(f"item {item.id!r} has check {item.check!r}: expected exact, number, choice or function")


def _is_text(answer: str, question: str, gold: str) -> bool:
    # `print("cat".upper())` must not be answered by copying: case counts where the question has the gold in other case.
    fold = gold in question or gold.casefold() not in question.casefold()
    wanted = words(strip_decoration(gold), fold=fold)
    whole = strip_decoration(answer)
    sentences = [part for part in SENTENCE_END.split(whole) if words(part)]
    if not sentences or not wanted:
        return False
    aside = _ASIDE.sub("", whole)
    if words(aside) and not any(is_hedged(words(inside)) for inside in _ASIDE.findall(whole)):
        whole = aside
    if _says(whole, wanted, question, fold=fold):
        return True
    if _IN_WHICH.search(question) and not is_hedged(words(whole), {*wanted, *words(question)}):
        # "In London, England" answers in which country, or city, something is.
        parts = _PLACED.sub("", whole, count=1).split(",")
        if any(words(_FURTHER.sub("", part)) == wanted for part in parts):
            return True
    first, rest = _ASIDE.sub("", sentences[0]), " ".join(sentences[1:])
    if len(words(rest)) >= 3 and not is_hedged(words(rest)):
        return _says(first, wanted, question, fold=fold)
    head, _, apposition = whole.partition(", ")
    return (
        re.match(r"(?:an?|the|which|who)\b", apposition) is not None
        and not is_hedged(words(apposition), ("and",))
        and words(head, fold=fold) == wanted
    )


def _says(text: str, wanted: Words, question: str, *, fold: bool) -> bool:
    """Whether the text is `wanted`, or `wanted` and otherwise only words of the question and filler."""
    spoken = words(text, fold=fold)
    if spoken == wanted:
        return True
    places = find_words(spoken, wanted)
    if not places or is_hedged(spoken, wanted):
        return False
    covered = {place + i for place in places for i in range(len(wanted))}
    beside = {stem(word.casefold()) for i, word in enumerate(spoken) if i not in covered}
    asked = _without_accents(question)  # as an answer is read that repeats its names
    # The sentence that asks is the last one that ends in "?"; where there is none, all of them count.
    asking = [part for part in SENTENCE_END.split(asked) if part.rstrip().endswith("?")]
    return beside <= {stem(word) for word in words(asking[-1] if asking else asked)} | FILLER


_TAGGED = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.IGNORECASE | re.DOTALL)
_MARKED = re.compile(
    r"(?:^|\n|[.!?]\s)\W{0,8}(?:(?:so|therefore|thus|hence)\b\W{0,8})?(?:the )?(?:(?:final|correct|right|numerical) )*"
    r"answer\W{0,8}(?::|is\b)[\s:*]*(.+)",
    re.IGNORECASE,
)
_HASHED = re.compile(r"^[^\S\n]*+####\s*(.+)", re.MULTILINE)


def final_answer(item: Item, text: str) -> str:
    """Returns the text in `<answer>`, after the last "Answer:" or "####", or in `\\boxed{}`; of a function all text.

    Else the first line if it is the letter of an option, or the last line that names an option, or, where a number is
    asked for, holds one; or the last line.
    """
    text = text.strip()
    if item.check == "function":
        return text
    for marker in (_TAGGED, _MARKED, _HASHED, _BOXED):
        if marked := [answer for answer in marker.findall(text) if answer.strip()]:
            return str(marked[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if item.choices and lines:
        if chosen_letter(item, lines[0]):
            return lines[0]
        return next((line for line in reversed(lines) if chosen(item, line)), lines[-1])
    if item.check == "number" and lines:
        return next((line for line in reversed(lines) if numbers(line)), lines[-1])
    return lines[-1] if lines else ""


def canonical(item: Item, answer: str) -> str:
    """A form in which equal answers are equal: the number, the choice, the code, or the words. Empty for no answer.

    Numbers and choices are read as the scorer reads them; of several numbers, which the scorer refuses, the last, but
    a list stays a list ("3 5"), "3 or 5" is neither, and "not 5" is not 5. Words are those that the question does not
    have: "Bamako" for "The capital of Mali is Bamako."
    """
    if item.check == "function":
        return function_code(answer) or ""
    if item.check == "number":
        stated = read_number(item.question, answer)
        return last_number(item.question, answer) if stated is None else str(stated)
    if item.choices:
        return chosen(item, answer) or ""
    return " ".join(words_beside(answer, item.question))


def most_voted(item: Item, answers: dict[str, tuple[str, float]]) -> str:
    """The name whose answer has most weight behind it; the heaviest single vote, then the first, among equals.

    `answers`: voter -> (answer, weight >= 0). Empty answers do not count while another is there. MetaCogAgent, eq. 3.
    """
    forms = {name: canonical(item, answer) for name, (answer, _) in answers.items()}
    voters = [name for name in answers if forms[name]] or list(answers)
    total = {form: sum(answers[v][1] for v in voters if forms[v] == form) for form in {forms[v] for v in voters}}
    return max(voters, key=lambda name: (total[forms[name]], answers[name][1]))
