"""Elements of a list inside one large JSON document, an element in memory at a time."""

import codecs
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from metaprobe.records.compressed import OnBytes, is_damage, opened
from metaprobe.records.errors import ImportFileError

MAX_VALUE = 256 << 20
"""Characters of one value. A sample of an agent with thousands of messages has some megabytes."""
_BLOCK = 1 << 16
_NEAR = 16
"""A fault this near to the end of what is read may be that the rest is not read yet."""
_DECODER = json.JSONDecoder()


def elements(
    path: Path, *where: str, on_bytes: OnBytes | None = None, absent: Callable[[dict[str, Any]], str] | None = None
) -> Iterator[tuple[dict[str, Any], Any]]:
    """(what stands before the list, element) for each element of the list under these keys.

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
                found = text.enter(key, before)
                if absent is not None and not (found and not text.is_null()):
                    raise ImportFileError(f"{path}: {absent(before)}")
                if not found:
                    raise text.error(f"there is no {key!r} in it")
            yield from ((before, element) for element in text.listed())
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
    found: list[str] = []
    at = _skip(head, 0)
    if head[at : at + 1] != "{":
        return found
    at += 1
    try:
        while True:
            key, at = _DECODER.raw_decode(head, _skip(head, at))
            if not isinstance(key, str):
                return found
            if inside and key == inside:
                return keys_at_the_top(head[_skip(head, _skip(head, at) + 1) :])
            found.append(key)
            _, at = _DECODER.raw_decode(head, _skip(head, _skip(head, at) + 1))
            at = _skip(head, at) + 1  # the comma
    except (ValueError, RecursionError):
        return [] if inside else found


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
        self._take("{")
        while not self._next_is("}"):
            name = self._value()
            if not isinstance(name, str):
                raise self.error(f"{name!r:.40} stands where a key should")
            self._take(":")
            if name == key:
                return True
            before[name] = self._value()
            self._comma("}")
        return False

    def is_null(self) -> bool:
        """Returns whether a null stands here."""
        return self._next_is("n")

    def listed(self) -> Iterator[Any]:
        """Yields each element of the list here."""
        self._take("[")
        while not self._next_is("]"):
            yield self._value()
            self._comma("]")
        self._take("]")

    def rest(self, depth: int) -> None:
        """Reads what stands after the list, so that a document that breaks off is known."""
        for _ in range(depth):
            while not self._next_is("}"):
                self._take(",")
                self._value()
                self._take(":")
                self._value()
            self._take("}")

    def _comma(self, closing: str) -> None:
        if not self._next_is(closing):
            self._take(",")
            if self._next_is(closing):
                raise self.error(f"there is a comma before {closing}")

    def _next_is(self, character: str) -> bool:
        while True:
            self._at = _skip(self._held, self._at)
            if self._at < len(self._held):
                return self._held[self._at] == character
            if not self._more():
                raise self.error("it breaks off")

    def _take(self, character: str) -> None:
        if not self._next_is(character):
            raise self.error(f"{self._held[self._at]!r} stands where {character!r} should")
        self._at += 1

    def _value(self) -> Any:
        self._next_is("")  # past spaces
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
        if len(self._held) > MAX_VALUE:
            raise self.error(f"a value is longer than {MAX_VALUE} characters")
        if self._ended:
            return False
        block = self._file.read(max(size, _BLOCK))
        self._ended = not block
        try:
            self._held += self._decoder.decode(block, self._ended)
        except UnicodeDecodeError as error:
            raise self.error(f"it is not UTF-8 ({error.reason})") from error
        return not self._ended
