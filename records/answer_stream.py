"""Lets the tokens of an answer through, of a stream that may think before it answers."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from metaprobe.records.boundary import END_TOKEN
from metaprobe.records.reading import text
from metaprobe.records.segments import SPACE, KindReader

Entry = Mapping[str, Any]


class AnswerTokens:
    """Told every chunk of one stream, gives the entries of those tokens that are known to be of the answer.

    A server says in its chunks what is thinking and what is answer, or the tokens hold the markers. Where neither is
    so, as with a template that opens the thinking in the prompt and a server that parses nothing, all tokens count as
    the answer's: nothing in the stream tells.
    """

    def __init__(self) -> None:
        self._reader: KindReader | None = KindReader()
        """None once everything that comes is of the answer."""
        self._waiting: deque[Entry] = deque()
        self._early: list[Entry] = []
        self._has_text = self._has_thought = False

    def feed(self, entries: Sequence[Entry], *, thought: str, brought: str) -> Sequence[Entry]:
        """The answer's tokens that are known now. `thought`, `brought`: the chunk's texts of thinking and answer."""
        if self._reader is None:
            return _without_ends(entries)
        if not self._has_text:  # until a text comes with them, tokens may be of either
            self._early.extend(entries)
            if not thought and not brought:
                return ()
            entries, self._early = self._early, []
            self._has_text = True
        if thought and not self._has_thought:
            self._has_thought = True
            if not self._reader.has_begun and not self._may_open(entries):
                self._reader = KindReader(opened=True)
        found = self._read(self._reader, entries)
        if self._has_thought and brought.strip(SPACE) and self._reader.is_thinking:
            self._reader = None  # the server has cut the markers out
            return _without_ends(entries if not thought else _ending_in(entries, brought))
        return _without_ends(found)

    def _may_open(self, entries: Sequence[Entry]) -> bool:
        """Whether the tokens themselves begin with what opens the thinking."""
        trial = KindReader()
        for entry in (*self._waiting, *entries):
            trial.push(text(entry.get("token")))
        return trial.is_thinking or not trial.has_begun

    def _read(self, reader: KindReader, entries: Sequence[Entry]) -> list[Entry]:
        found = []
        for entry in entries:
            self._waiting.append(entry)
            for kind in reader.push(text(entry.get("token"))):
                held = self._waiting.popleft()
                if kind == "answer":
                    found.append(held)
        return found


def _without_ends(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The tokens without end tokens: SGLang sends one before it says that the answer has ended."""
    return [entry for entry in entries if not END_TOKEN.fullmatch(text(entry.get("token")))]


def _ending_in(entries: Sequence[Entry], spoken: str) -> Sequence[Entry]:
    """The last of the tokens, those that make up the text that is spoken."""
    count, length = 0, 0
    while count < len(entries) and length < len(spoken):
        count += 1
        length += len(text(entries[-count].get("token")))
    return entries[len(entries) - count :] if length == len(spoken) else ()
