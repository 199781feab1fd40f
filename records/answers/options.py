"""Reads which option an answer names: by its letter or number if the question shows labels, else by its words."""

import itertools
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from metaprobe.records.answers.beside_number import is_english
from metaprobe.records.answers.texts import (
    AFTER_LEAD,
    ASKS_BACK,
    BEFORE_LEAD,
    FILLER,
    LEADS,
    NEGATIONS,
    NO_OF_SOMETHING,
    POLAR,
    TAKES_BACK,
    WORDS_FOR_IS,
    WORDS_FOR_IS_JOINED,
    Words,
    find_words,
    is_hedged,
    sentences,
    stem,
    strip_decoration,
    without_accents,
    words,
)
from metaprobe.records.spelling import AT_LINE
from metaprobe.records.types import Item

MOST_OPTION_TEXT = 4000
"""Most characters of an answer that are read. Of a longer answer the first half and the last half of this number are
read.
"""


def _any_of(names: Sequence[str]) -> str:
    """Returns a pattern that matches any of these words in a text without accents."""
    return "|".join(re.escape(without_accents(name)).replace(r"\ ", "[ ]") for name in names)


_TO_LETTER = rf"""\W{{0,8}}(?:(?:so|therefore|thus|hence)\b\W{{0,8}})?
    (?:(?:(?:{_any_of(BEFORE_LEAD)})(?:\s+|\b)){{0,2}}(?:{_any_of(LEADS[1:])})(?:\s+(?:{_any_of(AFTER_LEAD)}))?
    \s*(?:(?:{_any_of(WORDS_FOR_IS)})(?!\w)|{_any_of(WORDS_FOR_IS_JOINED)}|[-:：–—]|(?=\s[A-Z]\s))
    (?:\s+(?:la|el|le|il|a|o|die|opcion|opcao|opzione|option)(?=\s))?\W{{0,8}})?
    (?:选择?|選擇?)?
    (?:(?:i\s+(?:would\s+)?|i'd\s+|let\s+me\s+|let's\s+)(?:choose|pick|say|select|think|go\s+with)\s+)?(?:probably\s+)?(?:(?:that\s+)?it(?:'s|\s+is)\s+)?
    (?:the\s+)?(?:(?:correct|right|best|final)\s+)?(?:(?:option|choice|answer|letter)\b\s*(?:is\b)?\W{{0,8}})?
    (?:option\s+)?\W{{0,8}}"""
"""Words that may precede the letter with which an answer begins."""


@dataclass(frozen=True, slots=True)
class _Labels:
    """Patterns that find the label of an option in an answer."""

    at_start: re.Pattern[str]
    """Finds a label at the beginning of the answer."""
    after_option: re.Pattern[str]
    """Finds a label after "option" or "answer"."""
    another: re.Pattern[str]
    """Finds another label after the first."""
    at_line_start: re.Pattern[str]
    """Finds a label at the beginning of a line."""
    after_denied: re.Pattern[str]
    """Finds a label after denied labels, as in "Neither A nor B, it's C"."""
    overruling: re.Pattern[str]
    """Finds another label that takes the first one back, as in "C is tempting, but D is right"."""
    series: tuple[str, ...]
    """The labels in their order, as the question shows them."""

    def index(self, label: str) -> int:
        """Returns the index of a label among them, or -1 if it is none of these labels."""
        folded = label.casefold()
        return next((index for index, name in enumerate(self.series) if name.casefold() == folded), -1)


_NO_PRONOUN = r"(?!I\s+[a-z])"
"""Pattern that keeps the "I" of "so I choose C" from being the label of a ninth option."""


_TO_NEXT = r"\W*(?:(?:and|or|to|then|vs|versus|through|thru|plus|over|maybe|perhaps|possibly|also|either|no)\b\W*)*"
"""Pattern of what may lead from a label to another one, so that neither is the answer: "A. B", "A to B"."""


def _labels(series: Sequence[str], upper: str, lower: str, any_case: str) -> _Labels:
    marked_label = rf"\(?({any_case})\)?(?![\w'])"
    return _Labels(
        re.compile(
            rf"(?i:{_TO_LETTER})(?:({upper})(?![+#])(?=\s*[).:,;/\n–—-](?!\d)|\W*$|\s+(?:is|was|because|since|as|and|or)\b"
            rf"|\s*(?:{_any_of(('です', 'である', '입니다', '이다', 'है'))})\W*$|\s+\(not\s+[A-Z]\)\W*$)"
            rf"|({lower})(?=\s*[).:](?!\d)|\W*$))(?!')",
            re.X,
        ),
        re.compile(rf"\b(?i:option|choice|answer)\s+(?:(?i:is)\s+)?(?:(?i:option)\s+)?\(?({upper})(?!\w|'|\.\d)"),
        re.compile(
            rf"^\W*?(?:,|/|;|&|\band\b|\bor\b)\s*(?:(?:and|or|maybe|perhaps|possibly)\s+)*(?:option\s*)?{_NO_PRONOUN}(?:\(?({upper})(?![\w'])"
            rf"|\(?({lower})(?=[).:]|\W*$))"
            rf"|^{_TO_NEXT}(?:option\s*)?\(?(?:({upper})(?![\w'])(?=\)?\s*(?:[,;!?]|\.(?!\d)|\n|$))|({lower})(?=\W*$))"
        ),
        re.compile(rf"{AT_LINE}({upper})[).:](?!\d)", re.M),
        re.compile(
            rf"\W*(?:it'?s\s+|it\s+is\s+)?(?:neither\s+(?:option\s+)?{marked_label}\s+nor|not)\s+(?:option\s+)?{marked_label}\W+(?:(?:so|but|rather)\s+)?"
            rf"(?:it'?s\s+|it\s+is\s+|(?:the\s+)?(?:correct\s+|right\s+)?(?:answer|option|choice)\s+is\s+)?(?:option\s+)?{marked_label}\W*",
            re.I,
        ),
        re.compile(
            rf"\b(?i:but|therefore|thus|hence|so)\W+(?:(?i:(?:the\s+)?(?:correct\s+|right\s+)?answer\s+is|it's|it\s+is|option)\s+)*"
            rf"{_NO_PRONOUN}\(?({upper})(?![\w'])|(?<![\w'])({upper})\)?\s+(?i:is|would\s+be)\s+(?i:(?:the\s+|my\s+)?(?:right|correct|answer|better|best))\b"
            rf"|\b(?i:answer\s+(?:is|should\s+be|must\s+be))\W{{1,4}}(?:(?i:option)\s+)?\(?({upper})(?![\w'])"
        ),
        tuple(series),
    )


def _marked_labels(*series: str) -> _Labels:
    """Returns labels that an answer must set apart with a mark. Elsewhere they are words, as the Roman I is."""
    forms = {form for name in series for form in (name, name.lower())}
    names = "|".join(sorted(forms, key=len, reverse=True))
    return _labels(series, "(?!)", names, names)


_ALPHABET = string.ascii_uppercase
_LETTER_LABELS = _labels(_ALPHABET, "[A-Z]", "[a-z]", "[A-Za-z]")
_NUMBER_LABELS = _labels(tuple(map(str, range(1, 100))), r"\d{1,2}", r"\d{1,2}", r"\d{1,2}")
_ROMAN_LABELS = _marked_labels(*"I II III IV V VI VII VIII IX X XI XII".split())
_OTHER_SERIES = tuple(
    _marked_labels(*names) for names in ("АБВГДЕЖЗ", "ابجدهوز", "アイウエオカキク", "가나다라마바사", "甲乙丙丁戊己")
)
_LABEL_SERIES = (
    (tuple(_ALPHABET), _LETTER_LABELS),
    (tuple(_ALPHABET.lower()), _LETTER_LABELS),
    (_NUMBER_LABELS.series, _NUMBER_LABELS),
    (_ROMAN_LABELS.series, _ROMAN_LABELS),
    (tuple(name.lower() for name in _ROMAN_LABELS.series), _ROMAN_LABELS),
    *((labels.series, labels) for labels in _OTHER_SERIES),
)
"""Labels that a question may show before its options, and how an answer repeats them."""
MOST_LABELLED_OPTIONS = 40
"""Most options of a question whose labels are searched."""
_LABEL_TAKEN_BACK = re.compile(r"\b(?:wait|actually|sorry|(?:guess|think|maybe|perhaps|or|suppose)\s+not)\b", re.I)
_HEDGED_AFTER = re.compile(r"\W{0,3}\b(?:or|nor)\b", re.I)
"""Matches "or" right after a label, which offers something else."""
_BEFORE_LABEL = re.compile(
    r"(?:^|[\s\w\"'“”‘’«»()\[\]<>{*_`#:：=。、，,.|？?「『（【✅✓✔☑●◉→；;]|(?:^|[\w:：=*])\s*[-–—]+>?\s|[-–—•·+]\s|[:：]-)[\"'“‘«(\[<{*_`「『（【]*\Z"
)
"""Matches what may stand right before a label: blanks, words and marks that only set it apart."""
_AFTER_LABEL = re.compile(
    r"(?![!:?]?=)[)\]>}\"'”’»`」』）】]*(?:\*{2}|_{1,2})?[)\]>}\"'”’»`」』）】]*(?:[\s.,:;!?/。、，：；！？✅✓✔☑❌✗✘✖|&]|[-–—]+>?\s*[^\W_]|[-–—]\s|\(|\Z|(?![\x00-\xff])[^\W\d_]|…)"
)
"""Matches what may stand right after a label. "C-", "C*", "C!=" and "C♯" are other answers than C."""
_DENIED_LABEL = re.compile(
    r"^[^\w\n❌✗✘✖]{0,8}(?P<crossed>[❌✗✘✖])|^\W{0,8}(?:(?:is|was|seems|looks|can|could|would)(?:n't|\s?not)\b(?P<right>\s+(?:be\s+)?(?:(?:the\s+)?(?:right|correct|answer)))?"
    r"|(?:is|was|seems|looks|would\s+be|must\s+be|can\s+be)\s+(?:clearly\s+|also\s+|ruled\s+)?"
    r"(?P<wrong>(?:(?:the|a)\s+)?(?:wrong|worst|bad|poor|least)|incorrect|false|out|eliminated|excluded|impossible|my\s+first)\b"
    r"|(?P<fails>fails)\b|(?P<lone>no|wrong|incorrect|false)(?=\W*(?:\n|$|[A-Z][).:-]|[A-Z]\s-)|[.;]\s))",
    re.I,
)
"""Matches what says after a label that it is not the answer, unless the question asks for what is wrong."""
_DENIED_BEFORE_LABEL = re.compile(r"\b(wrong|incorrect|false|worst)\s+\Z", re.I)
_CROSS = re.compile("[❌✗✘✖]")
_VERDICT = re.compile(
    r"[^\w✅✓✔☑❌✗✘✖]{0,8}(?:(?P<tick>[✅✓✔☑]|\b(?:correct|right)\b)|[❌✗✘✖]|\b(?:incorrect|wrong)\b)\W{0,8}\Z", re.I
)
"""Matches what says at the end of a line whether its option is the answer."""
MOST_BESIDE_OPTION = 40
"""Most characters beside an option in a line that only repeats it, with its verdict."""
_MARK_BEFORE = re.compile("(?P<tick>[✅✓✔☑])|[❌✗✘✖]")
_STRUCK_OUT = re.compile(r"~~[^~\n]+~~")
_NOT_LABEL = re.compile(r"[,;]?\s*\bnot\s+(?:option\s+)?\(?[A-Z]\)?(?!\w)")
"""Matches another label that is denied after the first one: "C, not B"."""
_TO_LAST_LABEL = re.compile(r"\s*(?:[-–—]+>?|=>|→|⇒)\s*\(?([A-Z])\)?\W*")
"""Matches a range or a change to another label: "A-C", "C -> B"."""
_NEGATED = re.compile(r"(?:(?<=\w)n't|(?<!\s)\s*+\bnot)\s+(true|false)\b|(?<!\s)\s*+\buntrue\b", re.IGNORECASE)
"""Matches "not true" and "not false". True and false are the only options of which the negation of one
names the other.
"""


# The functions below cache a question and its options: many answers, and many lines of one, are compared with them.


@lru_cache(maxsize=16)
def _negations_in(question: str) -> frozenset[str]:
    return NEGATIONS & set(words(question))


@lru_cache(maxsize=512)
def _option_words(choice: str) -> Words:
    return words(strip_decoration(choice, lead=False))


@lru_cache(maxsize=512)
def _undecorated(text: str) -> str:
    return strip_decoration(text).rstrip(". ")


@lru_cache(maxsize=16)
def _last_sentence_words(question: str) -> frozenset[str]:
    return frozenset(words(question.split(". ")[-1]))


@lru_cache(maxsize=16)
def _labels_shown(question: str, choices: tuple[str, ...]) -> _Labels | None:
    """Returns the labels that a question shows before its options: letters (`A) ...`, `(a) ...`, `c. ...`) or numbers
    (`3) ...`). None if it shows none.
    """
    if not choices or len(choices) > MOST_LABELLED_OPTIONS:
        return None
    text, plain_choices = _plain_text(question), tuple(map(_plain_text, choices))
    # An option of emphasis alone, such as Python's `**`, is searched as it is written.
    shown_labels = [
        _labels_before(text, plain_choice) if plain_choice else _labels_before(question, choice)
        for plain_choice, choice in zip(plain_choices, choices, strict=True)
    ]
    for names, labels in _LABEL_SERIES:
        if len(choices) <= len(names) and all(
            name in shown_before for name, shown_before in zip(names, shown_labels, strict=False)
        ):
            return labels
    return None


_EMPHASIS = re.compile(r"\*\*|__|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w)")
_BOLD_LABEL = re.compile(r"(?:\*\*|__)([A-Za-z]|\d{1,2})(?:\*\*|__)(?=[^\S\n])")
_CIRCLED = re.compile("[\u2460-\u2473\u24b6-\u24e9]")
_NO_WORD_SIGN = r"[^\w\n]"


def _plain_text(text: str) -> str:
    """Returns a text without emphasis, with fullwidth and circled letters as plain ones, and without accents."""
    text = _CIRCLED.sub(r"\g<0>) ", text)
    return _EMPHASIS.sub("", _BOLD_LABEL.sub(r"\1)", without_accents(text))).strip()


_MARKED_LABEL = re.compile(rf"(?<![^\W_])([^\W_]{{1,4}}){_NO_WORD_SIGN}{{0,3}}[^\w\s]{_NO_WORD_SIGN}{{0,5}}\Z")
_LINE_LABEL = re.compile(r"^([^\W_]{1,4})([^\S\n]+)\Z", re.M)
MOST_BEFORE_OPTION = 16
"""Characters before an option in which its label is searched."""


def _labels_before(question: str, choice: str) -> set[str]:
    """Returns the labels that a question shows before an option: followed by marks such as ")". Blanks alone are enough
    only for a letter at the beginning of a line.
    """
    lowered_question, lowered_choice = question.replace("İ", "I").lower(), choice.replace("İ", "I").lower()
    shown_labels: set[str] = set()
    position = lowered_question.find(lowered_choice) if lowered_choice else -1
    while position >= 0:
        search_start = max(0, position - MOST_BEFORE_OPTION)
        if marked_label := _MARKED_LABEL.search(question, search_start, position):
            shown_labels.add(marked_label[1])
        elif (line_label := _LINE_LABEL.search(question, search_start, position)) and (
            line_label[1].isalpha() or line_label[2] == "\t"
        ):
            shown_labels.add(line_label[1])
        position = lowered_question.find(lowered_choice, position + 1)
    return shown_labels


_OPTION_LINE = re.compile(
    r"""^[^\S\n]*(?:[-+*•·>|][^\S\n]*)?(?:(?i:option|choice|选项)[^\S\n]*)?[("'\[<]{0,2}
    (?P<label>[A-Ja-j]|\d{1,2}|[IVX]{1,4}|[ivx]{1,4}|[АБВГДЕ]|[ابجده]|[アイウエオ]|[가나다라마])
    (?:[)\].:>、"']{1,3}|[^\S\n]+[-–—|]|\t)[^\S\n]*["']?(?P<text>\S[^\n]*?)["']?[^\S\n]*[|,;]?$""",
    re.M | re.X,
)
_OPTION_INSIDE = re.compile(
    r"""(?<![^\W_])["'(\[]{0,2}(?P<label>[A-Ja-j])["']?(?:[)\].:][)\].:"']{0,2})[^\S\n]*(?=\S)"""
)
MOST_OPTION_LINES = 40
"""Most lines beginning with a label that are read, counted from the end of the question."""


@lru_cache(maxsize=64)
def options_in(question: str) -> tuple[str, ...]:
    """Returns the options that a question shows with labels, a line each or in one line, from the last such list.

    Empty if there are fewer than two.
    """
    text = _plain_text(question[-MOST_OPTION_TEXT:])
    lines = [(match["label"], match["text"]) for match in _OPTION_LINE.finditer(text)][-MOST_OPTION_LINES:]
    if options := _last_list(lines):
        return options
    for line in reversed(text.splitlines()):
        marks = list(_OPTION_INSIDE.finditer(line))[:MOST_OPTION_LINES]
        if len(marks) < 2:
            continue
        ends = [*(mark.start() for mark in marks[1:]), len(line)]
        options_inside = [
            (mark["label"], line[mark.end() : end].strip(" ,;\t\"'{}[]()"))
            for mark, end in zip(marks, ends, strict=True)
        ]
        if options := _last_list(options_inside):
            return options
    return ()


def _last_list(labelled: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the options of the last list whose labels are the first ones of a series. Empty without a list."""
    for names, _ in _LABEL_SERIES:
        starts = [index for index, (label, _) in enumerate(labelled) if label == names[0]]
        if not starts:
            continue
        last_list = labelled[starts[-1] :]
        options = tuple(option for _, option in last_list)
        labels = tuple(label for label, _ in last_list)
        if labels == tuple(names[: len(last_list)]) and len(set(options)) == len(options) > 1 and all(options):
            return options
    return ()


def find_choices(among: Words, options: Mapping[str, Words]) -> list[str]:
    """Returns the choices that occur, the longest first. Each word counts for one choice only."""
    taken_positions: set[int] = set()
    found_choices = []
    for choice, option in sorted(options.items(), key=lambda pair: -len(pair[1])):
        spans = [set(range(position, position + len(option))) for position in find_words(among, option)]
        free_spans = [span for span in spans if not span & taken_positions]
        if free_spans:
            found_choices.append(choice)
            taken_positions.update(*free_spans)
    return found_choices


def chosen(item: Item, answer: str) -> str | None:
    """Returns the one option that an answer names, or None if it names none or several, hedges, or takes it back.

    If the question shows letters, a letter at the start ("B", "(b)", "B) ...", "option B is right") counts before
    words.
    """
    if len(answer) > MOST_OPTION_TEXT:
        answer = f"{answer[: MOST_OPTION_TEXT // 2]}\n{answer[-MOST_OPTION_TEXT // 2 :]}"
    if {choice.casefold() for choice in item.choices} == {"true", "false"}:
        answer = _NEGATED.sub(lambda match: " false" if (match[1] or "true").casefold() == "true" else " true", answer)
    answer = _STRUCK_OUT.sub("", answer) if "~~" in answer else answer
    text = strip_decoration(answer)
    if "?" in text and ASKS_BACK.fullmatch(text) and text not in item.choices:
        return None
    # An option alone, word for word.
    labels = _labels_shown(item.question, item.choices)
    undecorated_text = _undecorated(text)
    same_text = {choice for choice in item.choices if _undecorated(choice) == undecorated_text}
    if len(same_text) == 1 and not (labels and (len(undecorated_text) == 1 or undecorated_text.isdigit())):
        return same_text.pop()
    if labels is None:
        return _option_by_words(item, text, labels)
    if denied_match := labels.after_denied.fullmatch(text):
        label_indices = [labels.index(label) for label in denied_match.groups() if label]
        if label_indices[-1] not in label_indices[:-1] and label_indices[-1] < len(item.choices):
            return item.choices[label_indices[-1]]
        return None
    whole_answer = strip_decoration(answer, lead=False)  # in which "A: ..." keeps its letter
    if label_match := _chosen_label(labels, item, whole_answer):
        label_index = labels.index(label_match[1] or label_match[2])
        if labels is _NUMBER_LABELS and same_text and same_text != {item.choices[label_index]}:
            return None  # "3" is the number of one option and the text of another
        # The option of the letter, unless what follows is another letter or another option, or takes it back.
        option, text_after = item.choices[label_index], whole_answer[label_match.end() :]
        if _undecorated(text_after.lstrip(").:,;/–— ")) == _undecorated(option):
            return option
        other_indices = {index for index, choice in enumerate(item.choices) if choice != option}
        text_after = _NOT_LABEL.sub(" ", text_after)
        labels_after = [match[match.lastindex or 0] for match in labels.another.finditer(text_after)]
        labels_after += [match[1] for match in labels.at_line_start.finditer(text_after)]
        overruling_labels = [match[1] or match[2] or match[3] for match in labels.overruling.finditer(text_after)]
        labels_after += overruling_labels
        if changed_label := _TO_LAST_LABEL.fullmatch(text_after):
            labels_after.append(changed_label[1])
        text_beside = text_after.replace(option, "")
        if (
            not other_indices.isdisjoint(map(labels.index, labels_after))
            or _LABEL_TAKEN_BACK.search(text_beside)
            or TAKES_BACK.search(text_beside)
            or _HEDGED_AFTER.match(text_after)
            or _CROSS.search(whole_answer, 0, label_match.end())
            or _denies_label(text_beside, item.question)
            or not (overruling_labels or _is_known_comment(text_after, option, item))
        ):
            return None
        spoken_words, words_of_choice = words(text_after), {choice: words(choice) for choice in item.choices}
        opening_choices = [
            choice
            for choice, choice_words in words_of_choice.items()
            if choice_words and spoken_words[: len(choice_words)] == choice_words
        ]
        return option if not opening_choices or option in opening_choices else None
    return _option_by_words(item, text, labels)


_COMMENT_SIGNS = re.compile(r"[^\w]*")
_KNOWN_SIGNS = frozenset(
    " \t\n.,:;!()[]{}\"'`*_|/&-–—…→=<>$%#“”‘’«»。、，；！：「」『』（）【】✅✓✔☑🎉🎊✨👉➡➜🟢💡📌🏆⭐👍\ufe0f\u200d"
)
"""Signs right after an option that only set it apart. A question mark doubts the option, and is not among them."""
_ASIDE_SIGN = re.compile(r"[,;(–—，；（-]")
"""Matches a sign that begins a comment on the option before it. After another sign comes a sentence, or the option's
text.
"""
_COMMENTED = re.compile(r"\s*(?:\?|[,;(–—，；（]|-\s)")
"""Matches a sign after the words of an option that begins a comment on it, or doubts it."""
_SENTENCE_OF_COMMENT = re.compile(r"[.!?;\n。！？；)）](?!\d)")
_NO_DOUBT = re.compile(
    r"\b(?:no|without\s+(?:a|any)|without|beyond)\s+(?:reasonable\s+)?(?:doubt|question)\b"
    r"|\b(?:hands\s+down|for\s+sure|of\s+course|(?:by|process\s+of)\s+elimination)\b",
    re.I,
)
"""Matches words that affirm, each of which alone may deny."""
_AFFIRMING = frozenset(
    """obviously definitely certainly clearly surely absolutely indeed undoubtedly evidently yes yeah yep sure ok okay
    correct correctly right true final finally answer answers thank thanks you please done good luck hope this that
    helps help probably likely most very quite pretty fairly highly high medium low about approximately confidence
    confident certain certainty level score percent % probability only exactly simply best closest choice option letter
    is are was it so therefore thus hence i think believe feel guess would say my the a an and above below see shown
    stated given nearest one pick picked choose chosen chose select selected with of at in to by ans solution result
    there here heres why as explained calculated also both explanation explain reason reasons reasoning rationale
    justification note analysis details step steps summary conclusion difficulty difficult easy rating 100
    opcion correcta richtig juste giusta certa erklarung begrundung explicacion explication spiegazione""".split()
)
"""Words that beside an option only affirm it or say how sure the writer is."""
_EXPLAINING = frozenset(
    """because since as for so that's thats this that it its it's which who whom whose where when the a an he she they
    there these those we from in by due given based ie i.e namely meaning also known rather instead over and after
    before during at on to has have is are was were being making thus hence therefore all both each every
    weil denn da der die das dies es er sie parce car le la les l c'est puisque il elle porque ya el los las que ella
    pues perche poiche lo gli e o os as pois потому так поскольку это он она""".split()
)
"""Words with which a comment on an option begins that explains it: "C, because it is red", "C, the red planet"."""
_EXPLAINING_JOINED = tuple("因为 因為 由于 由於 是 なぜなら です である 왜냐하면 입니다 이다 है".split())
"""Beginnings of explanations in scripts that set no blanks between words."""
_AS_IF = re.compile(r"as\s+(?:if|though|well)\b", re.I)
_PREDICATE = re.compile(
    r"(?:(?:it|this|that|which|they|he|she)\s+)?(?:is|are|was|were|seems|looks|appears|sounds|may|might|could)\b"
    r"\s*(?P<next>[^\W_]*)",
    re.I,
)
"""Matches a verb that says something of the option, and the next word."""
_STATED_OF_OPTION = frozenset(
    """the a an one what where why how because in on at from by of my our his her their only called known used made
    found located defined caused based designed considered also always usually typically often both all to for as about
    much more""".split()
)
"""Words after "is" that begin a statement about an option that leaves it as the answer: "C is the red planet"."""
_SPEAKER_PHRASE = re.compile(
    r"i(?:'m|'d|'ll|'ve|\s+am|\s+would|\s+will|\s+have)?\s+"
    r"(?:(?:really|simply|just|firmly|strongly|certainly|definitely|therefore|also|still|very|pretty|quite|now)\s+)?(?P<verb>[^\W_]+)",
    re.I,
)
_SPEAKER_VERBS = frozenset(
    """think believe know choose chose chosen pick picked select selected say said go going went sure certain confident
    hope recall remember guess used use read checked verified found calculated counted computed see saw picking
    choosing selecting assume assumed considered""".split()
)
"""Verbs with which the writer stands by an option: "C, I am sure"."""
MOST_SHORT_COMMENT = 2
"""Most words of a sentence after an option that must be known one by one: "C. Unlikely." A longer one explains."""
LETTERS_OF_WORD = 3
"""Letters that count as a word in scripts that set no blanks between words."""


def _is_known_comment(rest: str, option: str, item: Item) -> bool:
    """Returns whether the text after an option, or after its label, is known to leave the option as the answer.

    Known are the option's own words, words that affirm, and explanations. "C, unlikely", "C?" and "C, I am not sure"
    are no answers.

    Args:
        rest: text right after the option or its label.
        option: text of the option.
        item: the item. The words of its question are known.
    """
    # The sign and the sentence after the option. The option said again is skipped.
    while True:
        signs = _COMMENT_SIGNS.match(rest)
        signs_before = signs.group() if signs else ""
        if not _KNOWN_SIGNS.issuperset(signs_before):
            return False
        comment = _NO_DOUBT.sub(" ", rest[len(signs_before) :]).lstrip()
        if not option or not comment.casefold().startswith(option.casefold()):
            break
        rest = comment[len(option) :]  # the option said again: what follows it counts
        if _COMMENTED.match(rest) is None:
            return True
    first_sentence = _SENTENCE_OF_COMMENT.split(comment, maxsplit=1)[0]
    # The words of that sentence.
    spoken = words(without_accents(first_sentence).casefold())
    option_words = {word for choice in item.choices for word in _option_words(choice)}
    known_words = _known_in_comment(item.question, item.choices)
    labels = _ALPHABET[: len(item.choices)].casefold()
    known_words |= set(labels[item.choices.index(option) :][:1])
    unknown_words = [word for word in spoken if word not in known_words and not word.replace(".", "").isdigit()]
    if not unknown_words or first_sentence.startswith(_EXPLAINING_JOINED):
        return True
    if unknown_words == ["not"] and option_words & set(spoken):
        return True  # "C, not Venus"
    # The sentence may say something of the writer, of the option or of the reason.
    sentence_lower = first_sentence.replace("’", "'").casefold()
    if speaker := _SPEAKER_PHRASE.match(sentence_lower):
        return speaker["verb"] in _SPEAKER_VERBS
    if predicate := _PREDICATE.match(sentence_lower):
        return predicate["next"] in known_words
    if _AS_IF.match(sentence_lower):
        return False
    opener_match = re.match(r"[\w'.]+", sentence_lower)
    opener = opener_match.group().rstrip(".") if opener_match else ""
    if opener in _EXPLAINING or without_accents(opener) in _EXPLAINING:
        return True
    is_long = sum(1 if word.isascii() else 1 + len(word) // LETTERS_OF_WORD for word in spoken) > MOST_SHORT_COMMENT
    if _ASIDE_SIGN.search(signs_before):
        return opener in option_words or opener[:1].isdigit() or (is_long and not is_english(item.question))
    return is_long or not option_words.isdisjoint(spoken)


@lru_cache(maxsize=64)
def _known_in_comment(question: str, choices: tuple[str, ...]) -> frozenset[str]:
    """Returns the words that may stand beside an option, and that begin a statement about it.

    Args:
        question: the question.
        choices: its options.
    """
    question_words = frozenset(words(question))
    negations_asked = NEGATIONS if question_words & (_EXCEPTION_WORDS | NEGATIONS) else frozenset()
    option_words = frozenset(word for choice in choices for word in _option_words(choice))
    return _AFFIRMING | _STATED_OF_OPTION | question_words | negations_asked | option_words


_EXCEPTION_WORDS = {"except", "wrong", "incorrect", "false"}
"""Words of a question to which what is not so is the answer."""


def _denies_label(text_after: str, question: str) -> bool:
    """Returns whether the text after a label says that it is not the answer.

    "C is wrong" denies C, unless the question asks what is wrong: "Which statement is wrong?".
    """
    denied_match = _DENIED_LABEL.match(text_after)
    if denied_match is None:
        return False
    question_words = set(words(question))
    if word := denied_match["wrong"] or denied_match["lone"]:
        return word.casefold().split()[-1] not in question_words
    return bool(denied_match["crossed"] or denied_match["fails"] or denied_match["right"]) or not (
        _negations_in(question) or question_words & _EXCEPTION_WORDS
    )


def names_letter(item: Item, line: str) -> bool:
    """Returns whether a line begins with an option's label, and the question shows labels."""
    labels = _labels_shown(item.question, item.choices)
    return labels is not None and _chosen_label(labels, item, line) is not None


def denies_letter(item: Item, line: str) -> bool:
    """Returns whether a line begins with an option's label and says that it is not the answer: "A: wrong"."""
    labels = _labels_shown(item.question, item.choices)
    label_match = _chosen_label(labels, item, line) if labels is not None else None
    is_denied = label_match is not None and (
        _denies_label(line[label_match.end() :], item.question) or _CROSS.search(line, 0, label_match.end()) is not None
    )
    return is_denied and chosen(item, line) is None


_TICK = re.compile(r"[✅✓✔☑]\ufe0f?|\[[xX]\](?!\()")
_LIST_MARK = re.compile(rf"(?P<tick>{_TICK.pattern})|\[[^\S\n]?\]|[☐□⬜◻❌✗✘✖]")
"""Matches a tick mark, an empty box or a cross."""


def ticked_options(item: Item, lines: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """Returns the options beside tick marks, and the number of lines up to the last mark; 0 without such an option.

    A mark belongs to the option after it if it begins its line, else to the option before it: "✓ A", "A ✓, C ✓".
    """
    options, line_count = [], 0
    for line_index, line in enumerate(lines):
        marks = list(_LIST_MARK.finditer(line[:MOST_OPTION_TEXT]))
        if not marks:
            continue
        marks_begin_line = not any(map(str.isalnum, line[: marks[0].start()]))
        cut_positions = [mark.end() if marks_begin_line else mark.start() for mark in marks]
        part_spans = itertools.pairwise([*cut_positions, len(line)] if marks_begin_line else [0, *cut_positions])
        for mark, (start, stop) in zip(marks, part_spans, strict=True):
            option = chosen(item, _LIST_MARK.sub(" ", line[start:stop]).strip(" ,;-*")) if mark["tick"] else None
            options += [] if option is None else [option]
        line_count = line_index + 1
    return tuple(dict.fromkeys(options)), line_count if options else 0


_RADIO_EMPTY = re.compile(r"^\W{0,4}?(?:[○◯⚪]|\(\s\))(?=\s)")
_RADIO_CHOSEN = re.compile(r"^\W{0,4}?(?:[●◉⬤⚫🔘]|\([xX•*]\))(?=\s)")
_BOX_EMPTY = re.compile(r"^\W{0,4}?(?:\[\s?\]|[☐□⬜◻])")


def with_check_boxes(lines: Sequence[str]) -> list[str]:
    """Returns the lines with round buttons as check boxes, and without a list of boxes of which none is ticked.

    A filled button counts only beside an empty one. Alone it is the mark of a list.
    """
    if any(map(_RADIO_EMPTY.match, lines)):
        lines = [_RADIO_EMPTY.sub("[ ]", _RADIO_CHOSEN.sub("[x]", line)) for line in lines]
    empty_boxes = [line for line in lines if _BOX_EMPTY.match(line)]
    if len(empty_boxes) < 2 or any(
        mark["tick"] for line in lines for mark in _LIST_MARK.finditer(line[:MOST_OPTION_TEXT])
    ):
        return list(lines)
    return [line for line in lines if line not in empty_boxes] or [""]


def discussed_options(item: Item, lines: Sequence[str]) -> tuple[str, ...]:
    """Returns the options that are not denied in a text that begins with a line about each option; empty for others."""
    labels, option_count = _labels_shown(item.question, item.choices), len(item.choices)
    if labels is None or not 1 < option_count <= len(lines):
        return ()
    for index, line in enumerate(lines[:option_count]):
        label_match = _chosen_label(labels, item, line)
        if label_match is None or labels.index(label_match[1] or label_match[2]) != index:
            return ()
    return tuple(dict.fromkeys(option for line in lines[:option_count] if (option := chosen(item, line))))


def repeats_option(item: Item, line: str) -> bool:
    """Returns whether a line is an option with its label as the question shows it, and nothing else."""
    labels = _labels_shown(item.question, item.choices)
    label_match = _chosen_label(labels, item, line) if labels is not None else None
    if labels is None or label_match is None:
        return False
    return words(line[label_match.end() :]) == words(item.choices[labels.index(label_match[1] or label_match[2])])


def repeated_options(item: Item, lines: Sequence[str]) -> tuple[str, ...] | None:
    """Returns the options that are ticked in a list of all options with which a text begins.

    They are those with a tick or "correct" beside them, or else, where some are crossed out, those that are not. None
    if the text does not begin with all options, a line each with its label and nothing but such a verdict.
    """
    labels, option_count = _labels_shown(item.question, item.choices), len(item.choices)
    if labels is None or not 1 < option_count <= len(lines):
        return None
    ticked, unmarked = [], []
    for index, (choice, line) in enumerate(zip(item.choices, lines, strict=False)):
        label_match = _chosen_label(labels, item, line)
        if label_match is None or labels.index(label_match[1] or label_match[2]) != index:
            return None
        text_after = line[label_match.end() :]
        if len(text_after) > len(choice) + MOST_BESIDE_OPTION:
            return None
        has_verdict_after = words(text_after) != words(choice)
        verdict = _VERDICT.search(text_after) if has_verdict_after else _MARK_BEFORE.search(line, 0, label_match.end())
        if has_verdict_after and (verdict is None or words(text_after[: verdict.start()]) != words(choice)):
            return None
        if verdict is None or verdict["tick"]:
            unmarked.append(choice)
        if verdict is not None and verdict["tick"]:
            ticked.append(choice)
    return tuple(ticked) or (tuple(unmarked) if len(unmarked) < option_count else ())


def _chosen_label(labels: _Labels, item: Item, answer: str) -> re.Match[str] | None:
    """Returns the option's label with which an answer begins; None if there is none.

    Args:
        labels: the labels of the options.
        item: the item.
        answer: the answer.
    """
    label_match = labels.at_start.match(answer)
    if (
        label_match
        and label_match.end() < len(answer)
        and answer[label_match.end()] == ":"
        and labels.index(label_match[1] or label_match[2]) == 0
    ):
        label_match = labels.at_start.match(answer, label_match.end() + 1) or label_match  # "A: B" answers B
    if label_match is None or not 0 <= labels.index(label_match[1] or label_match[2]) < len(item.choices):
        return None
    return label_match if _is_apart(answer, *label_match.span(1 if label_match[1] else 2)) else None


def _is_apart(text: str, start: int, end: int) -> bool:
    """Returns whether only marks that set a label apart stand beside it, and no sign that makes it another name."""
    before = _BEFORE_LABEL.search(text[max(0, start - 8) : start])
    return before is not None and _AFTER_LABEL.match(text, end) is not None and not _POINT_DIGIT.match(text, end)


_POINT_DIGIT = re.compile(r"\.\d")
_ANY_LABEL = re.compile(
    r"(?<![A-Za-z0-9'])([A-Z])(?![A-Za-z0-9'])(?!\s+[a-z]{2,}\b(?<!\bis)(?<!\bes)(?<!\best)(?<!\bto))"
)
"""Matches a letter that is no word: not the A of "A correct answer"."""
_LEADS_TO_LETTER = frozenset(
    """definitely clearly obviously certainly surely
    the answer answers option choice letter correct right best final is are would should must will be it its that so
    therefore thus hence i believe think guess feel my selected select choose chose pick picked go going with solution
    ans conclusion result opcion respuesta correcta correcto es la el lo por tanto antwort richtig richtige korrekt
    korrekte ist lautet die der das daher also somit losung reponse bonne juste correcte est le donc choix resposta
    correta certa e a o alternativa opcao letra portanto risposta corretta giusta opzione quindi lettera dogru cevap
    secenek yanit jawaban jawabannya adalah yang benar tepat pilihan antwoord juiste het svaret ar ratt ответ
    правильный верный вариант odpowiedz poprawna to dap an dung الاجابة الجواب الصحيحة هي هو
    因此 所以 故 本题 正确 答案 选项 应 选择 选 为 是 最终 答え 正解 は が です 解答 選項 選 選択肢
    정답 답 은 는 이 가 입니다""".split()
)
"""Words that may stand beside the letter of an option and only say that it is the answer."""
_JOINED_LEADS = re.compile("|".join(sorted((w for w in _LEADS_TO_LETTER if not w[0].isascii()), key=len, reverse=True)))
_MARKS_BESIDE_LETTER = frozenset(".,:;!?()[]\"'*|。、，：；！？「」（）")
"""Signs beside the letter of an option that only set it apart."""
MOST_BESIDE_LETTER = 120
"""Longest answer, in characters, in which a letter is read among words that only lead to it."""


def _letter_led_to(text: str) -> str | None:
    """Returns the one letter in a text that holds only words leading to it: "La opción C es correcta"."""
    if len(text) > MOST_BESIDE_LETTER:
        return None
    labels = list(_ANY_LABEL.finditer(text))
    letters = {label[1] for label in labels}
    if len(letters) != 1 or not all(_is_apart(text, *label.span(1)) for label in labels):
        return None
    letter = letters.pop()
    words_beside = words(_JOINED_LEADS.sub(" ", _ANY_LABEL.sub(" ", text)))
    known_words = _LEADS_TO_LETTER | _MARKS_BESIDE_LETTER | {letter.casefold()}
    return letter if known_words.issuperset(words_beside) else None


def _is_label_meant(text: str, label: re.Match[str], item: Item) -> bool:
    """Returns whether a label in a text is given as the answer: not in "the wrong answer is C" and "option C fails"."""
    denied_before = _DENIED_BEFORE_LABEL.search(text[max(0, label.start() - 20) : label.start()])
    if denied_before and denied_before[1].casefold() not in words(item.question):
        return False
    predicate = _PREDICATE.match(text[label.end() :].lstrip())
    if predicate and predicate["next"].casefold() not in _known_in_comment(item.question, item.choices):
        return False
    return not _denies_label(text[label.end() :], item.question)


_LABEL_ASIDE = re.compile(r"\(([A-Z])\)")
_LABEL_FIRST = re.compile(r"\W*([B-HJ-Z])(?![\w'+#])")
_LABEL_LAST = re.compile(r"(?<![\w'])([A-Z])\W*\Z")
"""Match a label before and after the words of an option: "D earth", "earth D"."""
_EXCLUDED = frozenset("except excluding exclude excluded eliminate eliminated ruled".split())
"""Words before or soon after an option that make it no answer, unless the question has them."""
_MOST_WORDS_TO_EXCLUDED = 4
"""Number of words after an option in which a word of `_EXCLUDED` is searched."""


def _option_by_words(item: Item, text: str, labels: _Labels | None) -> str | None:
    """Returns the one option that a text names by its words, or by a label after other words; None as for `chosen`.

    Args:
        item: the item.
        text: the answer, without decoration.
        labels: the labels that the question shows; None if it shows none.
    """
    spoken_words = words(text)
    words_of_choice = {choice: option_words for choice in item.choices if (option_words := _option_words(choice))}
    if spoken_words[:1] == ("no",) and NO_OF_SOMETHING.match(text):
        # "No fish is a bird. Is a fish a bird? No." repeats the question, and ends with its answer.
        last_words = words(sentences(text)[-1])
        return next(
            (
                choice
                for choice, option_words in words_of_choice.items()
                if option_words == last_words and POLAR.issuperset(option_words)
            ),
            None,
        )
    if spoken_words and spoken_words[0] in POLAR and spoken_words[:1] in words_of_choice.values():
        if spoken_words[1:2] in (("or",), ("and",)):
            return None
        return next(choice for choice, option_words in words_of_choice.items() if option_words == spoken_words[:1])
    # The options whose words occur. Without exactly one, those of labels or of a part of their words.
    found_choices = find_choices(spoken_words, words_of_choice)
    if len(found_choices) == 2 and "than" in spoken_words:
        # "Ben is shorter than Anna" names both and answers "Who is shorter?" with the first.
        than_index = spoken_words.index("than")
        words_before_than, words_after_than = spoken_words[:than_index], spoken_words[than_index + 1 :]
        subject = find_choices(words_before_than, words_of_choice)
        compared = find_choices(words_after_than, words_of_choice)
        words_beside = {
            word for word in words_before_than if all(word not in words_of_choice[choice] for choice in subject)
        }
        asking_words = {"is", "are", "was"} | _last_sentence_words(item.question)
        if len(subject) == len(compared) == 1 and words_beside <= asking_words:
            found_choices = subject
    if labels is _LETTER_LABELS and not found_choices and (label := _letter_led_to(text)):
        index = labels.index(label)
        return item.choices[index] if index < len(item.choices) else None
    if labels is not None and len(found_choices) != 1:
        indices = {
            labels.index(match[1]) for match in labels.after_option.finditer(text) if _is_label_meant(text, match, item)
        }
        found_choices = [item.choices[index] for index in indices if 0 <= index < len(item.choices)]
    elif not found_choices and spoken_words:
        content_words = {word for word in spoken_words if stem(word) not in FILLER} or set(spoken_words)
        found_choices = [
            choice for choice, option_words in words_of_choice.items() if content_words <= set(option_words)
        ]
    elif labels is not None and labels is not _NUMBER_LABELS:
        overruling_indices = {
            labels.index(match[1] or match[2] or match[3]) for match in labels.overruling.finditer(text)
        }
        overruling_indices |= {labels.index(label) for label in _LABEL_ASIDE.findall(text)}
        overruling_indices |= {
            labels.index(label[1])
            for label in (_LABEL_FIRST.match(text), _LABEL_LAST.search(text))
            if label and label[1].casefold() not in words_of_choice[found_choices[0]]
        }
        if any(
            0 <= index < len(item.choices) and item.choices[index] != found_choices[0] for index in overruling_indices
        ):
            return None  # "It is 4, so C" and "4 (C)" where 4 is option B
    if len(found_choices) != 1 or list(words_of_choice.values()).count(words_of_choice.get(found_choices[0], ())) > 1:
        return None
    option_words = words_of_choice.get(found_choices[0], ())
    # The words around the option, which may take it back.
    start = next(iter(find_words(spoken_words, option_words)), 0)
    words_before, words_after = spoken_words[:start], spoken_words[start + len(option_words) :]
    if len(option_words) == 1 and option_words[0] in POLAR:
        is_unsure = is_hedged(words_before) or is_hedged(words_after[:1], NEGATIONS)
    else:
        # "Who does not care?" may be answered with "Ben does not care", not with "Not Ben".
        is_unsure = is_hedged(words_before, option_words) or is_hedged(
            words_after, _negations_in(item.question) | set(option_words)
        )
    excluding_words = _EXCLUDED.intersection((*words_before, *words_after[:_MOST_WORDS_TO_EXCLUDED])) - {
        *words(item.question),
        *option_words,
    }
    found_choice = found_choices[0]
    is_taken_back = TAKES_BACK.search(text) and not TAKES_BACK.search(found_choice)
    text_after = text[len(found_choice) :] if text.casefold().startswith(found_choice.casefold()) else ""
    is_doubted = (
        POLAR.isdisjoint(option_words)
        and _COMMENTED.match(text_after)
        and not _is_known_comment(text_after, found_choice, item)
    )
    return None if is_unsure or excluding_words or is_taken_back or is_doubted else found_choice
