"""Treats bad lines of every file by one rule: they are left out, counted by reason, and the first of each is named.

A reader opens `BadFile.reading(path)`, passes each bad line to `BadFile.leave_out`, and counts the good lines in
`BadFile.sound`. A command sets beforehand, with `handling`, whether the first bad line stops it and which file keeps
bad lines. If more than half of a file's lines are bad, the file is refused. Standard library only.
"""

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from metaprobe.records.errors import ImportFileError, InvalidResponse, NoLogprobs, of_kind
from metaprobe.records.writing import atomic_write

MOST_REASONS = 20
"""Most reasons that are counted separately for one file. Lines with further reasons are counted together."""
OTHERS = "for other reasons"
NO_LOGPROBS = "no log-probabilities"
OTHER_TOKENS = "the tokens with the log-probabilities do not spell the answer, so they are of another"
ZEROS = "every log-probability is 0, or the same, which stands for none here"
"""Reasons that readers of logs and readers of lines share."""
LONGEST_REASON = 120
"""Most characters of a reason that are kept. The message about the first line is kept whole."""


class RawLine(dict[str, Any]):
    """The object of a line, with the raw bytes of the line."""

    __slots__ = ("head", "raw")

    def __init__(self, values: Mapping[str, Any], raw: bytes, head: bytes = b"") -> None:
        """`raw`: the line with its line end, or all lines of a CSV row. `head`: the line with the columns' names."""
        super().__init__(values)
        self.raw, self.head = raw, head


@dataclass(slots=True)
class Reason:
    """Number of lines that are bad for one reason."""

    count: int
    first: str
    """Message about the first of these lines, with file and line."""


class BadFile:
    """Counts the bad lines of one file by reason."""

    def __init__(self, path: str | Path, *, strict: bool = False, unit: str = "lines") -> None:
        """`strict`: whether the first bad line raises. `unit`: what the file consists of, in the plural."""
        self.path, self.strict, self.unit = path, strict, unit
        self.sound = self.bad = 0
        """Number of lines read, and number of lines left out."""
        self.reasons: dict[str, Reason] = {}
        self.keep: KeptLines | None = None
        """File that keeps the bad lines as raw bytes; None if they are not kept."""

    @classmethod
    @contextmanager
    def reading(cls, path: str | Path, *, strict: bool | None = None, unit: str = "lines") -> Iterator["BadFile"]:
        """Yields the counts of a file's bad lines. After the block a warning reports what was left out.

        Raises `ImportFileError` after the block if more than half of the lines are bad.

        Args:
            path: the file.
            strict: whether the first bad line raises; by default as the running command has set it, else False.
            unit: what the file consists of, in the plural.
        """
        rule = _rule_of_command.get() or _Rule()
        bad = cls(path, strict=rule.strict if strict is None else strict, unit=unit)
        absolute_path = Path(path).absolute()
        was_reported = absolute_path in rule.reported
        bad.keep = None if was_reported else rule.keep
        yield bad
        bad.check()
        rule.reported.add(absolute_path)
        if bad.bad and not was_reported:
            warnings.warn(bad.said(), stacklevel=4)

    def leave_out(self, error: ImportFileError) -> None:
        """Counts a bad line, and keeps it if a file for bad lines is set. Raises the error if `strict`."""
        if self.strict:
            raise error
        self.bad += 1
        reason = reason_of(error)
        if reason not in self.reasons and len(self.reasons) >= MOST_REASONS:
            reason = OTHERS
        self.reasons.setdefault(reason, Reason(0, str(error))).count += 1
        if self.keep is not None:
            self.keep.add(error.source)

    def leave_out_line(self, number: int, reason: str, line: object) -> None:
        """Counts a line as bad, and keeps it, as `leave_out` does.

        Args:
            number: the line, counted from 1.
            reason: what is wrong with it.
            line: what the line holds.
        """
        self.leave_out(at_line(self.path, number, reason, line))

    def leave_out_record(self, number: int, reason: str, record: object = None) -> None:
        """Counts a record as bad, and keeps it if it is given, as `leave_out` does.

        Args:
            number: the record, counted from 1.
            reason: what is wrong with it.
            record: its content; None if it cannot be kept.
        """
        error = of_kind(f"{self.path}, record {number}: {reason}", words_of_reason(reason))
        if record is not None:
            error.line, error.source = number, record
        self.leave_out(error)

    def check(self) -> None:
        """Raises `ImportFileError` if more than half of the lines are bad."""
        if refusal := self.refusal():
            raise ImportFileError(refusal)

    def refusal(self) -> str:
        """Returns why the file is refused, if more than half of its lines are bad; else an empty text."""
        if self.bad <= self.sound:
            return ""
        first = next(iter(self.reasons.values())).first
        reason_counts = [f"{reason.count} x {kind}" for kind, reason in self.reasons.items()]
        summary = first if self.bad == 1 else f"{first} ({', '.join(reason_counts)})"
        return (
            f"{self.bad} of {self.bad + self.sound} {self.unit} of {self.path} are bad, more than half, so that nothing"
            f" of it is taken; the first: {summary}"
        )

    def said(self) -> str:
        """Returns what was left out, with one line for each reason; empty if nothing was left out."""
        if not self.bad:
            return ""
        lines = [f"{self.bad} of {self.bad + self.sound} {self.unit} of {self.path} are bad and left out:"]
        lines += [f"{reason.count} x {kind}; the first: {reason.first}" for kind, reason in self.reasons.items()]
        return "\n  ".join(lines)


class KeptLines:
    """A file to which bad lines are written as raw bytes, so that they can be corrected and read again.

    The file gets its name when the command has ended without an error, and only if there was a bad line.
    """

    def __init__(self, path: str | Path) -> None:
        """Raises `ImportFileError` if the file exists: it may hold lines that somebody corrected."""
        self.path = Path(path)
        if self.path.is_dir() or (self.path.exists() and self.path.stat().st_size):
            raise ImportFileError(
                f"{self.path} exists and is not replaced, for it may hold mended lines; expected a new file for bad"
                " lines: give another name, or move it away"
            )
        if not self.path.parent.is_dir():
            raise ImportFileError(f"{self.path.parent} is no folder; expected one for the file of bad lines: make it")
        self._open_file_stack = ExitStack()
        self._file: IO[bytes] | None = None
        self._head = b""
        self._last_source: object = None

    def add(self, source: object) -> None:
        """Writes a line: its bytes if they are known, else the object as JSON.

        If one line holds several answers, the line is written once.
        """
        if source is self._last_source and isinstance(source, RawLine):
            return
        self._last_source = source
        if self._file is None:
            self._file = self._open_file_stack.enter_context(atomic_write(self.path))
        raw, head = (source.raw, source.head) if isinstance(source, RawLine) else (source, b"")
        if head and head != self._head:
            self._file.write(_with_line_end(head))
            self._head = head
        if not isinstance(raw, bytes):
            raw = json.dumps(raw, ensure_ascii=False, default=str).encode(errors="backslashreplace")
        self._file.write(_with_line_end(raw))

    def __enter__(self) -> "KeptLines":
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open_file_stack.__exit__(*raised)


def _with_line_end(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n"


@dataclass(slots=True)
class _Rule:
    """How the running command treats bad lines."""

    strict: bool = False
    keep: KeptLines | None = None
    reported: set[Path] = field(default_factory=set)
    """Files whose bad lines were already reported. A command may read a file several times."""


_rule_of_command: ContextVar[_Rule | None] = ContextVar("bad_lines", default=None)
"""Rule of the running command. A context variable, because the readers are many calls below the command."""


@contextmanager
def handling(*, strict: bool = False, bad: str | Path | None = None) -> Iterator[None]:
    """Sets how readers treat bad lines within the block. What was left out is reported once for each file.

    With `strict`, readers stop at the first bad line. Bad lines are written to the file `bad`, if it is given. Raises
    `ImportFileError` if the file `bad` exists.
    """
    with ExitStack() as stack:
        keep = None if bad is None else stack.enter_context(KeptLines(bad))
        token = _rule_of_command.set(_Rule(strict, keep))
        try:
            yield
        finally:
            _rule_of_command.reset(token)


# Reasons in words that are the same for all lines with one fault.

_NAMED_VALUE = re.compile(r" (is|came|are|has) (?!missing|null|empty).{1,400}? \((\w+)\)(?=[;,.]|$)", re.DOTALL)
_SHOWN_VALUE = re.compile(
    r" (is|came|are) (?=[\"'\[{\d-]|(?:true|false|nan|none)\b)[^;]{1,400}(?=; expected)", re.IGNORECASE
)
_QUOTED = re.compile(r"(?<!\w)'(?:[^'\\]|\\.)*'(?!\w)|\"(?![\w.]{1,40}\")(?:[^\"\\]|\\.)*\"")
_LIST = re.compile(r"\[[^\]]*\]")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


def reason_of(error: Exception) -> str:
    """Returns why a line is bad, in words that are equal for all lines with this fault."""
    if isinstance(error, ImportFileError) and error.kind:
        return error.kind
    if isinstance(error, NoLogprobs):
        return ZEROS if error.placeholders else NO_LOGPROBS
    if isinstance(error, InvalidResponse) and error.other_tokens:
        return OTHER_TOKENS
    return words_of_reason(str(error))


def at_line(path: str | Path, number: int, message: str | Exception, source: object = None) -> ImportFileError:
    """Returns an error about one line of a file.

    Args:
        path: the file.
        number: number of the line, from 1.
        message: what is wrong with the line: a message, or the error that says it.
        source: object or bytes of the line, for the file of bad lines.
    """
    error = ImportFileError(f"{path}:{number}: {message}")
    error.line, error.source = number, source
    error.kind = reason_of(message if isinstance(message, Exception) else ImportFileError(message))
    return error


def words_of_reason(message: str) -> str:
    """Returns the first clause of a message, with the values of its line taken out."""
    words = _NAMED_VALUE.sub(r" \1 ... (\2)", message)
    words = _SHOWN_VALUE.sub(r" \1 ...", words)
    words = _QUOTED.sub("'...'", words)
    words = _NUMBER.sub("N", _LIST.sub("[...]", words))
    return words.partition("; ")[0].partition("\n")[0][:LONGEST_REASON].strip()


def counted(lines: Iterable[Any], bad: BadFile) -> Iterator[Any]:
    """Yields the same lines, and counts each as read in `bad.sound`."""
    for line in lines:
        bad.sound += 1
        yield line
