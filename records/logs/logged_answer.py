"""Holds parts that readers of logs share: their samples, and how they read a log's JSON document.

Every reader yields samples one by one. A sample has its import line, or the reason why it has none.
"""

import codecs
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from metaprobe.records.bad_lines import OTHER_TOKENS, RawLine, reason_of
from metaprobe.records.errors import ImportFileError, RecordError, name_value
from metaprobe.records.import_line import LABEL_BOUNDS, LABEL_VALUES
from metaprobe.records.lines import OnBytes, OnError, hand_over, is_damage, opened

MAX_JSON_VALUE_CHARS = 256 << 20
"""Most characters of one JSON value. A sample of an agent with thousands of messages has some megabytes."""
_BLOCK_BYTES = 1 << 16
_NEAR_END_CHARS = 16
"""Characters near the end of the text read so far. A fault there may only mean that the rest is not read yet."""
_DECODER = json.JSONDecoder()


def elements(
    path: Path,
    *where: str,
    on_bytes: OnBytes | None = None,
    missing_message: Callable[[dict[str, Any]], str] | None = None,
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yields (fields before the list, element) for each element of a list in a JSON document.

    The fields before the list are the members of all objects on the way; of repeated names the last counts. Raises
    `ImportFileError` if the document is not JSON, is cut off, or holds no such list.

    Args:
        path: the file.
        where: key of the list; two keys for a list in an object under the first key; no key if the document is the
            list.
        on_bytes: called with the number of bytes read so far.
        missing_message: returns the message for a whole document whose list is missing or null, from the fields before
            it.
    """
    with opened(path, on_bytes) as file:
        text = _JsonText(file, path)
        before: dict[str, Any] = {}
        try:
            for key in where:
                is_there = text.enter(key, before)
                if missing_message is not None and (not is_there or text.next_is("n")):  # a null
                    raise ImportFileError(f"{path}: {missing_message(before)}")
                if not is_there:
                    raise text.error(f"there is no {key!r} in it")
            text.take("[")
            while not text.next_is("]"):
                yield before, text.value()
                text.comma("]")
            text.take("]")
            text.rest(len(where))
        except Exception as error:
            if is_damage(error):
                raise text.error(f"the compressed file is damaged or cut off here ({error})") from error
            raise


def first_keys(path: Path, inside: str = "") -> list[str]:
    """Returns the first keys of the object that a file begins with; none if the file is damaged.

    With `inside`, the keys of the object under this key. None if that key comes later, or holds no object.
    """
    with opened(path) as file:
        try:
            head = file.read(_BLOCK_BYTES)
        except Exception as error:
            if not is_damage(error):
                raise
            return []  # the reader of the whole file names the damage
    return keys_at_the_top(head.decode("utf-8-sig", errors="replace"), inside)


def keys_at_the_top(head: str, inside: str = "") -> list[str]:
    """Returns the first keys of the object that a text begins with, even if the text is cut off; none for other texts.

    `inside` is as in `first_keys`.
    """
    keys: list[str] = []
    position = _skip_space(head, 0)
    if head[position : position + 1] != "{":
        return keys
    position += 1
    try:
        while True:
            key, position = _DECODER.raw_decode(head, _skip_space(head, position))
            if not isinstance(key, str):
                return keys
            if inside and key == inside:
                return keys_at_the_top(head[_skip_space(head, _skip_space(head, position) + 1) :])
            keys.append(key)
            _, position = _DECODER.raw_decode(head, _skip_space(head, _skip_space(head, position) + 1))
            position = _skip_space(head, position) + 1  # the comma
    except (ValueError, RecursionError):
        return [] if inside else keys


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


class _JsonText:
    """Text of a JSON document, read and dropped block by block."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path = file, path
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._position, self._dropped_chars = "", 0, 0
        self._has_ended = False

    def error(self, message: str) -> ImportFileError:
        """Returns an error with the file and the number of the character."""
        return ImportFileError(
            f"{self._path}: character {self._dropped_chars + self._position + 1}: {message}; expected one whole JSON "
            "document of its format: copy or write it again"
        )

    def enter(self, key: str, before: dict[str, Any]) -> bool:
        """Enters the object here and stops at the value of `key`. The members before it are stored in `before`."""
        self.take("{")
        while not self.next_is("}"):
            name = self.value()
            if not isinstance(name, str):
                raise self.error(f"{name!r:.40} stands where a key should")
            self.take(":")
            if name == key:
                return True
            before[name] = self.value()
            self.comma("}")
        return False

    def rest(self, depth: int) -> None:
        """Reads the rest after the list, so that a truncated document is detected."""
        for _ in range(depth):
            while not self.next_is("}"):
                self.take(",")
                self.value()
                self.take(":")
                self.value()
            self.take("}")

    def comma(self, closing: str) -> None:
        """Skips a comma, after which another element must follow."""
        if not self.next_is(closing):
            self.take(",")
            if self.next_is(closing):
                raise self.error(f"there is a comma before {closing}")

    def next_is(self, character: str) -> bool:
        """Returns whether this character comes next, after spaces."""
        while True:
            self._position = _skip_space(self._text, self._position)
            if self._position < len(self._text):
                return self._text[self._position] == character
            if not self._read_more():
                raise self.error("it breaks off")

    def take(self, character: str) -> None:
        """Skips this character, which must come next."""
        if not self.next_is(character):
            raise self.error(f"{self._text[self._position]!r} stands where {character!r} should")
        self._position += 1

    def value(self) -> Any:
        """Returns the JSON value that comes next."""
        self.next_is("")  # past spaces
        self._text, self._dropped_chars, self._position = (
            self._text[self._position :],
            self._dropped_chars + self._position,
            0,
        )
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text)
            except json.JSONDecodeError as error:
                may_be_unfinished = (
                    error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _NEAR_END_CHARS
                )
                if not may_be_unfinished or not self._read_more(len(self._text)):
                    raise self.error(f"it is no JSON: {error.msg} ({error.pos} characters on)") from error
            except (ValueError, RecursionError) as error:  # a number of 5,000 digits; a thousand brackets
                raise self.error(f"it cannot be read: {error}") from error
            else:
                # A number may go on in the next block, after its point too.
                next_character = self._text[end : end + 1]
                if (next_character and next_character in ",]}: \t\r\n") or not self._read_more(len(self._text)):
                    self._position = end
                    return value

    def _read_more(self, size: int = 0) -> bool:
        """Reads at least as many characters as are in memory, so that a long value is parsed only a few times."""
        if len(self._text) > MAX_JSON_VALUE_CHARS:
            raise self.error(f"a value is longer than {MAX_JSON_VALUE_CHARS} characters")
        if self._has_ended:
            return False
        block = self._file.read(max(size, _BLOCK_BYTES))
        self._has_ended = not block
        try:
            self._text += self._decoder.decode(block, self._has_ended)
        except UnicodeDecodeError as error:
            raise self.error(f"it is not UTF-8 ({error.reason})") from error
        return not self._has_ended


GIVEN_TEXT = "the likelihood of a given text, which is no answer of the model"

END_TOKENS = re.compile(
    r"<\|(im_end|endoftext|eot_id|eom_id|end_of_text|end|return|END_OF_TURN_TOKEN)\|>|</s>|<eos>|<end_of_turn>|<pad>"
)
"""Matches tokens that end an answer, or fill a batch after its end. A harmony answer ends with `<|return|>`."""
_ESCAPED = re.compile(r"\\x[0-9a-fA-F]{2}|<0x[0-9a-fA-F]{2}>|[^!-~]")
"""Matches characters that tokenizers spell differently: single bytes, spaces, and everything that is not ASCII."""
_LONGEST_END = 32
"""Most characters of an end token."""


def without_end_tokens(text: str) -> str:
    """Returns the text without end tokens at its end."""
    end = len(text)
    while end and text[end - 1] == ">":
        begin = text.rfind("<", max(0, end - _LONGEST_END), end)
        if begin < 0 or not END_TOKENS.fullmatch(text, begin, end):
            break
        end = begin
    return text[:end]


class NoAnswer(RecordError):
    """Raised for a record that is no answer, or whose numbers belong to another one; its message is a reason to count
    by.
    """


@dataclass(frozen=True, slots=True)
class LoggedAnswer:
    """One answer of a log."""

    location: str
    """Location of the answer in the log, such as `line 3` or `sample q1, epoch 2`."""
    line: dict[str, Any] | None
    """The answer as an import line; None if it cannot be imported."""
    left_out: str = ""
    """Why the answer cannot be imported, in words that are equal for all such answers, so that they can be counted."""
    number: int | None = None
    """Number of its line in the file, if the log has lines."""
    source: object = None
    """The log's own record, for the file of bad lines; by default the line."""
    label_source: str = ""
    """Source of the label `correct`, or why there is no such label, in words to count by."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Settings of a reader."""

    correct: str = ""
    """Name of the score whose 1 and 0 mean right and wrong; by default the one of the format."""
    requests: Path | None = None
    """The file of requests from which a batch was made."""
    on_error: OnError | None = None
    """Called with the error about each bad record; by default the first error is raised."""
    on_bytes: OnBytes | None = None
    plain: bool = False
    """Whether answers without log-probabilities are kept, for another model to read."""


def read_record(
    path: Path, location: str, answers: Iterable[LoggedAnswer], options: LogOptions, source: object
) -> list[LoggedAnswer]:
    """Returns the answers of one record, or one entry that says why there are none. An error goes to `on_error`, or is
    raised.

    Args:
        path: the file.
        location: where the record is in the log, for messages.
        answers: the answers, made while they are read here.
        options: how the log is read.
        source: the log's own record.
    """
    try:
        is_raw_line = isinstance(source, RawLine)  # a line as it came goes before what was made of it
        return [
            replace(answer, source=source) if is_raw_line or answer.source is None else answer for answer in answers
        ]
    except NoAnswer as reason:
        return [LoggedAnswer(location, None, str(reason), source=source)]
    except ImportFileError as problem:
        error = ImportFileError(f"{path}: {location}: {problem}")
        error.source, error.kind = source, reason_of(problem)
        hand_over(error, options.on_error, problem)
        return []


def labels_from(scores: Mapping[str, float], right: str | None, correct: str = "") -> tuple[dict[str, float], str]:
    """Returns (labels by the scores' names, source of the label `correct`).

    `correct` gets the value of one score, if that is 0 or 1. A score between 0 and 1, as for partly right, gives no
    `correct`. A score that has the name of one of our labels becomes `score.NAME`. Raises `ImportFileError` if the
    score that the caller names is missing.

    Args:
        scores: scores by name.
        right: name of the score that gives `correct` in this format.
        correct: name of the score that the caller chooses instead.
    """
    if correct and correct not in scores:
        raise ImportFileError(
            f"there is no score {correct!r}, which shall say what is correct; expected one of"
            f" {', '.join(sorted(scores)) or '(there are none)'}"
        )
    right = correct or right
    reserved = LABEL_VALUES.keys() | LABEL_BOUNDS.keys()
    labels = {(f"score.{name}" if name in reserved else name): value for name, value in scores.items()}
    if right is None:
        return labels, "no label: none of the scores says right or wrong"
    if scores.get(right) in (0.0, 1.0):
        return {"correct": scores[right], **labels}, f"labelled by {right}"
    return labels, f"no label: {right} says neither right nor wrong"


def finite_number(value: object) -> float | None:
    """Returns a finite number as a float, True and False as 1 and 0; None for anything else."""
    if isinstance(value, (bool, int, float)):
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if math.isfinite(number) else None
    return None


def answer_tokens(tokens: Sequence[str], text: str, thinking: str) -> int:
    """Returns how many of the tokens may belong to the answer: those before the first end token that the text lacks.

    Later tokens fill a batch. Whether the tokens spell the text is checked when the answer is parsed. Raises `NoAnswer`
    if the tokens spell more than the text, and the surplus is not the thinking.

    Args:
        tokens: tokens of the log.
        text: the answer's text.
        thinking: text of the thinking that the log shows before the answer.
    """
    lacking_end_tokens = {token for token in set(tokens) if END_TOKENS.fullmatch(token) and token not in text}
    count = next((n for n, token in enumerate(tokens) if token in lacking_end_tokens), len(tokens))
    if not count and not text:
        raise NoAnswer("the answer is empty")
    written, answer, thought = (_ESCAPED.sub("", part) for part in ("".join(tokens[:count]), text, thinking))
    if thought not in written and written != answer:
        raise NoAnswer(OTHER_TOKENS)
    return count or len(tokens)


def short_name(value: object) -> str:
    """Returns a name for a JSON value; equal values have equal names."""
    written = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return (
        written
        if len(written) <= 80
        else f"{written[:40]}...{sha256(written.encode(errors='replace')).hexdigest()[:12]}"
    )


def mapping(value: object, name: str) -> Mapping[str, Any]:
    """Returns the value if it is an object, an empty one for null. Raises `ImportFileError` for anything else."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ImportFileError(f"{name} is {name_value(value)}; expected an object")
    return value


def sequence(value: object, name: str) -> Sequence[Any]:
    """Returns the value if it is a list, and an empty one for null. Raises `ImportFileError` for anything else."""
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise ImportFileError(f"{name} is {name_value(value)}; expected a list")
    return value


def text_or_empty(value: object) -> str:
    """Returns the value if it is a string, else an empty string. For fields that only describe an answer."""
    return value if isinstance(value, str) else ""
