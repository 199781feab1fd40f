"""Parts that readers of logs share: the samples that they give, and how they look into a log's document.

Every reader gives one sample after the other, each as an import line or with the reason for none.
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
from metaprobe.records.errors import ImportFileError, name_value
from metaprobe.records.import_line import LABEL_BOUNDS, LABEL_VALUES
from metaprobe.records.lines import OnBytes, OnError, hand_over, is_damage, opened

MAX_JSON_VALUE_CHARS = 256 << 20
"""Characters of one value. A sample of an agent with thousands of messages has some megabytes."""
_BLOCK = 1 << 16
_NEAR = 16
"""A fault this near to the end of what is read may be that the rest is not read yet."""
_DECODER = json.JSONDecoder()


def elements(
    path: Path, *where: str, on_bytes: OnBytes | None = None, absent: Callable[[dict[str, Any]], str] | None = None
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yields (what stands before the list, element) for each element of the list under these keys.

    With two keys, the list stands in the object under the first. Without one the document is the list. What stands
    before it are the members of all objects on the way, of all names the last. Raises `ImportFileError` where the
    document is none, breaks off, or holds no such list; `absent` then gives the message for a whole document whose list
    is missing or null, from what stands before it.
    """
    with opened(path, on_bytes) as file:
        text = _Text(file, path)
        before: dict[str, Any] = {}
        try:
            for key in where:
                is_there = text.enter(key, before)
                if absent is not None and (not is_there or text.next_is("n")):  # a null
                    raise ImportFileError(f"{path}: {absent(before)}")
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
    """Returns the first keys of the object that a file, plain or compressed, begins with; none where it is damaged.

    `inside`: those of the object under this key of it; none where the key is further on, or holds no object.
    """
    with opened(path) as file:
        try:
            head = file.read(_BLOCK)
        except Exception as error:
            if not is_damage(error):
                raise
            return []  # who reads all of it says where
    return keys_at_the_top(head.decode("utf-8-sig", errors="replace"), inside)


def keys_at_the_top(head: str, inside: str = "") -> list[str]:
    """Returns the first keys of the object that a text begins with, also where the text is cut off; none for others.

    `inside` as in `first_keys`.
    """
    keys: list[str] = []
    at = _skip(head, 0)
    if head[at : at + 1] != "{":
        return keys
    at += 1
    try:
        while True:
            key, at = _DECODER.raw_decode(head, _skip(head, at))
            if not isinstance(key, str):
                return keys
            if inside and key == inside:
                return keys_at_the_top(head[_skip(head, _skip(head, at) + 1) :])
            keys.append(key)
            _, at = _DECODER.raw_decode(head, _skip(head, _skip(head, at) + 1))
            at = _skip(head, at) + 1  # the comma
    except (ValueError, RecursionError):
        return [] if inside else keys


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


class _Text:
    """The document's text, read and forgotten block by block."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path = file, path
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._held, self._at, self._passed = "", 0, 0
        self._ended = False

    def error(self, what: str) -> ImportFileError:
        """Returns an error that names file and character."""
        return ImportFileError(
            f"{self._path}: character {self._passed + self._at + 1}: {what}; expected one whole JSON document of its"
            " format: copy or write it again"
        )

    def enter(self, key: str, before: dict[str, Any]) -> bool:
        """Goes into the object here, up to the value of that key, and keeps what stands before it."""
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
        """Reads what stands after the list, so that a document that breaks off is known."""
        for _ in range(depth):
            while not self.next_is("}"):
                self.take(",")
                self.value()
                self.take(":")
                self.value()
            self.take("}")

    def comma(self, closing: str) -> None:
        """Goes past a comma, after which more must come."""
        if not self.next_is(closing):
            self.take(",")
            if self.next_is(closing):
                raise self.error(f"there is a comma before {closing}")

    def next_is(self, character: str) -> bool:
        """Returns whether this character comes next, past spaces."""
        while True:
            self._at = _skip(self._held, self._at)
            if self._at < len(self._held):
                return self._held[self._at] == character
            if not self._more():
                raise self.error("it breaks off")

    def take(self, character: str) -> None:
        """Goes past this character, which must come next."""
        if not self.next_is(character):
            raise self.error(f"{self._held[self._at]!r} stands where {character!r} should")
        self._at += 1

    def value(self) -> Any:
        """Returns the value that comes next."""
        self.next_is("")  # past spaces
        self._held, self._passed, self._at = self._held[self._at :], self._passed + self._at, 0
        while True:
            try:
                value, end = _DECODER.raw_decode(self._held)
            except json.JSONDecodeError as error:
                unfinished = error.msg.startswith("Unterminated string") or error.pos >= len(self._held) - _NEAR
                if not unfinished or not self._more(len(self._held)):
                    raise self.error(f"it is no JSON: {error.msg} ({error.pos} characters on)") from error
            except (ValueError, RecursionError) as error:  # a number of 5,000 digits; a thousand brackets
                raise self.error(f"it cannot be read: {error}") from error
            else:
                # A number may go on in the next block, after its point too.
                follows = self._held[end : end + 1]
                if (follows and follows in ",]}: \t\r\n") or not self._more(len(self._held)):
                    self._at = end
                    return value

    def _more(self, size: int = 0) -> bool:
        """Reads on, at least as much as is held, so that a long value is tried a few times only."""
        if len(self._held) > MAX_JSON_VALUE_CHARS:
            raise self.error(f"a value is longer than {MAX_JSON_VALUE_CHARS} characters")
        if self._ended:
            return False
        block = self._file.read(max(size, _BLOCK))
        self._ended = not block
        try:
            self._held += self._decoder.decode(block, self._ended)
        except UnicodeDecodeError as error:
            raise self.error(f"it is not UTF-8 ({error.reason})") from error
        return not self._ended


GIVEN_TEXT = "the likelihood of a given text, which is no answer of the model"

END_TOKENS = re.compile(
    r"<\|(im_end|endoftext|eot_id|eom_id|end_of_text|end|return|END_OF_TURN_TOKEN)\|>|</s>|<eos>|<end_of_turn>|<pad>"
)
"""Tokens that end an answer, or fill a batch after its end. A harmony answer ends with `<|return|>`."""
_ESCAPED = re.compile(r"\\x[0-9a-fA-F]{2}|<0x[0-9a-fA-F]{2}>|[^!-~]")
"""Matches what tokenizers spell differently: single bytes, spaces, and whatever is not ASCII."""
_LONGEST_END = 32
"""Characters of an end token at most."""


def without_end_tokens(text: str) -> str:
    """Returns the text without end tokens at its end."""
    end = len(text)
    while end and text[end - 1] == ">":
        begin = text.rfind("<", max(0, end - _LONGEST_END), end)
        if begin < 0 or not END_TOKENS.fullmatch(text, begin, end):
            break
        end = begin
    return text[:end]


class NoAnswer(Exception):
    """A sample that is no answer, or whose numbers are of another one; says why, in words to count by."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of a log."""

    place: str
    """Place of the answer in the log, as `line 3` or `sample q1, epoch 2`."""
    line: dict[str, Any] | None
    """The import line that says the same; None for one that cannot be taken."""
    left_out: str = ""
    """Why it cannot be taken, in words that are the same for all such samples, so that they can be counted."""
    number: int | None = None
    """Its line in the file, where the log has lines."""
    source: object = None
    """The log's own record, for the file of bad lines; by default the line."""
    taken: str = ""
    """Source of the label `correct`, or why the answer has no such label; in words to count by."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Settings of a reader besides the file."""

    correct: str = ""
    """The score whose 1 and 0 mean right and wrong; by default the one that its format says."""
    requests: Path | None = None
    """The file of requests that a batch was made from."""
    on_error: OnError | None = None
    """Takes what is wrong with a sample; by default the first one raises."""
    on_bytes: OnBytes | None = None
    plain: bool = False
    """Whether answers without log-probabilities are taken as they are, for another model to read."""


def read_sample(path: Path, place: str, samples: Iterable[Sample], options: LogOptions, source: object) -> list[Sample]:
    """Returns the samples, or why there are none. A fault goes to `on_error`, or is raised."""
    try:
        whole = isinstance(source, RawLine)  # a line as it came goes before what was made of it
        return [replace(one, source=source) if whole or one.source is None else one for one in samples]
    except NoAnswer as reason:
        return [Sample(place, None, str(reason), source=source)]
    except ImportFileError as problem:
        error = ImportFileError(f"{path}: {place}: {problem}")
        error.source, error.kind = source, reason_of(problem)
        hand_over(error, options.on_error, problem)
        return []


def labels_from(scores: Mapping[str, float], right: str | None, correct: str = "") -> tuple[dict[str, float], str]:
    """Returns (labels by the scores' names, with `correct` where the score `right` is 1 or 0; `Sample.taken`).

    `correct`, the score that the caller names, counts for more than `right`. A score between 0 and 1, as partly right,
    gives no `correct`. A score with the name of a label of ours, which has values of its own, becomes `score.NAME`.
    Raises `ImportFileError` where the score that the caller names is not there.
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
    """Returns how many of the tokens may be the answer's: those before the first end token that the text does not hold.

    The tokens after it fill a batch. Whether they spell the text is found where the answer is parsed. Raises `NoAnswer`
    where they spell more than the text, and not the thinking that the log shows before it.
    """
    absent = {token for token in set(tokens) if END_TOKENS.fullmatch(token) and token not in text}
    count = next((n for n, token in enumerate(tokens) if token in absent), len(tokens))
    if not count and not text:
        raise NoAnswer("the answer is empty")
    written, answer, thought = (_ESCAPED.sub("", one) for one in ("".join(tokens[:count]), text, thinking))
    if thought not in written and written != answer:
        raise NoAnswer(OTHER_TOKENS)
    return count or len(tokens)


def short_name(value: object) -> str:
    """Returns a name for a value that JSON can hold, always the same for the same value."""
    written = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return (
        written
        if len(written) <= 80
        else f"{written[:40]}...{sha256(written.encode(errors='replace')).hexdigest()[:12]}"
    )


def mapping(value: object, what: str) -> Mapping[str, Any]:
    """Returns the value where it is an object, an empty one for null. Raises `ImportFileError` for anything else."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ImportFileError(f"{what} is {name_value(value)}; expected an object")
    return value


def sequence(value: object, what: str) -> Sequence[Any]:
    """Returns the value where it is a list, and an empty one for null. Raises `ImportFileError` for anything else."""
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise ImportFileError(f"{what} is {name_value(value)}; expected a list")
    return value


def text_or_empty(value: object) -> str:
    """Returns the value where it is text, else an empty string: for what only describes an answer."""
    return value if isinstance(value, str) else ""
