"""Shows a learner's texts to a model: between marks that they cannot contain, shortened if they are long."""

import re
from collections.abc import Sequence
from hashlib import sha256

from metaprobe.papers.systems.system_options import Constant
from metaprobe.probes.hashed_words import lower_words

SHOWN_WORDS = Constant(
    "shown_words", 1200, "words of a text that are shown to the model, half of them from its end", 20
)
HISTORY_ENTRIES = 6
"""Number of the latest entries of a conversation that are shown."""
HISTORY_WORDS = 120
"""Most words of each of these entries."""
NOTHING = "(nothing)"
COMMON_WORDS = frozenset(
    "the of and to a in is it that for you was on are as with his they be at this have from or one had by but not "
    "what all were we when your can said there an which their if do will how about my me i so because please".split()
)
MIN_ENGLISH_WORDS = 15
"""Fewest words of a text that is long enough to tell whether it is English."""
ENGLISH_SHARE = 0.15
"""Smallest share of common English words in an English text."""

# A character of a script without blanks counts as a word. A longer run is cut into words of 40 characters.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\s\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{1,40}")
# Chat templates and instruction formats take these as the end of a turn: `<|im_end|>`, `</s>`, `[INST]`.
_SPECIAL = re.compile(r"<(?=[|/\uff5c]?[A-Za-z_])|\[(?=/?(?:INST|SYS)\b)|\[(?=(?:begin|end) )", re.IGNORECASE)


def quote_text(text: str, name: str, max_words: int = SHOWN_WORDS.default) -> str:
    """Returns a text between two marks that hold a digest of it, as a model is shown it; or the words for an empty
    text.

    Args:
        text: the text.
        name: name in the marks.
        max_words: most words.
    """
    shown = tame(shorten(text.strip(), max_words)[0])
    if not shown:
        return NOTHING
    mark = f"{name} {sha256(shown.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    return f"[begin {mark}]\n{shown}\n[end {mark}]"


def tame(text: str) -> str:
    """Returns a text in which a blank breaks what chat templates could take for a turn's end, and marks like ours."""
    return _SPECIAL.sub(lambda match: f"{match[0]} ", text)


def quote_history(history: Sequence[tuple[str, str]]) -> str:
    """Returns the latest entries of a conversation as one quoted text; or the words for an empty text."""
    entries = [f"{role}: {shorten(text.strip(), HISTORY_WORDS)[0]}" for role, text in history[-HISTORY_ENTRIES:]]
    return quote_text("\n".join(entries), "conversation", HISTORY_ENTRIES * (HISTORY_WORDS + 10))


def shorten(text: str, max_words: int) -> tuple[str, int]:
    """Returns the text, at most `max_words` words of its beginning and its end, and how many words were left out."""
    words = list(_WORD.finditer(text))
    left_out = len(words) - max_words
    if left_out <= 0:
        return text, 0
    head, tail = max_words - max_words // 2, max_words // 2
    end = text[words[-tail].start() :] if tail else ""
    return f"{text[: words[head - 1].end()]}\n[... {left_out} words left out ...]\n{end}".rstrip(), left_out


def looks_foreign(text: str) -> bool:
    """Returns whether a text is written in other letters than Latin ones, or holds hardly any common English word.

    A text of a few words is too short to tell: False.
    """
    letters = [letter for letter in text if letter.isalpha()]
    if len(letters) >= MIN_ENGLISH_WORDS and sum(letter > "\u024f" for letter in letters) > len(letters) / 2:
        return True
    words = lower_words(text)
    return len(words) >= MIN_ENGLISH_WORDS and sum(word in COMMON_WORDS for word in words) / len(words) < ENGLISH_SHARE
