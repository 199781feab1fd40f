"""Puts the answers of a file, lines of ours or a log of another program, into a run store."""

import json
import re
from collections import Counter
from collections.abc import Callable, Container
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from metaprobe.records.errors import ImportFileError, RecordError
from metaprobe.records.import_line import QUESTION, notes_of
from metaprobe.records.importer import LINES, Line, LogFormat, format_of, read_log
from metaprobe.records.lines import OnBytes
from metaprobe.records.logs.sample import NO_LOGPROBS, ZEROS, LogOptions, Sample
from metaprobe.records.reading import doubt
from metaprobe.records.store import RunStore, as_stored
from metaprobe.records.types import Run

KEPT_MESSAGES = 1000
"""Messages about bad lines that are kept; all lines are counted, and all go to the file of bad lines."""
HELD_LINES = 1024
"""Lines that are stored already are compared with the store so many at a time, so that memory stays bounded."""


_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
"""Left out of what is counted: doubts that differ by their numbers are of one kind."""


@dataclass(slots=True)
class ImportReport:
    """Counts of the lines of an import file, by what became of them."""

    imported: int = 0
    already_stored: int = 0
    """Lines whose answer the store held before, so that importing again adds nothing twice."""
    skipped: tuple[str, ...] = ()
    """Messages about the first 1,000 lines that were passed over, each with file and line."""
    labelled: int = 0
    """Lines that have the label `correct`, of those imported and those already stored."""
    labelled_otherwise: int = 0
    """Lines that have only other labels, such as scores between 0 and 1, of those imported and those already stored."""
    groups: int = 0
    """Different groups among all these lines: as many as lines where none gives a group."""
    relabelled: int = 0
    """Lines already stored that said something else of their answer (labels, group, confidence, prompt, ...)."""
    notes: tuple[str, ...] = ()
    """Notes on keys that look like a label or prompt in the wrong place: each key once, with its first line."""
    bad: int = 0
    """How many lines were passed over because something is wrong with them."""
    left_out: Counter[str] = field(default_factory=Counter)
    """How many samples of a log are no answers that can be taken, by reason."""
    form: str = LINES.name
    """The format that was read."""
    without_logprobs: int = 0
    """Lines that came without log-probabilities: for their stated confidence, or for another model to read."""
    taken: Counter[str] = field(default_factory=Counter)
    """Number of answers by what the reader took for the label `correct`, or by why they have none."""
    doubts: Counter[str] = field(default_factory=Counter)
    """Number of stored answers by what their verdicts will mention, such as that the answer was aborted."""


def import_file(
    path: str | Path,
    store: RunStore,
    *,
    form: str = "auto",
    on_error: Literal["stop", "skip"] = "stop",
    bad_lines: str | Path | None = None,
    correct: str = "",
    requests: str | Path | None = None,
    stated: Callable[[str], float | None] | None = None,
    plain: bool = False,
    on_line: Callable[[], object] = lambda: None,
    on_bytes: OnBytes | None = None,
) -> ImportReport:
    """Adds the answers of a file to a store.

        >>> answer = {"message": {"content": "4"}, "logprobs": {"content": [{"token": "4", "logprob": -0.1}]}}
        >>> line = {"id": "q1", "labels": {"correct": 1}, "response": {"choices": [answer]}}
        >>> _ = Path("lines.jsonl").write_text(json.dumps(line))
        >>> import_file("lines.jsonl", RunStore("imported")).imported
        1

    `form` is one of `metaprobe.records.importer.NAMES`, or `auto`, which recognises the format by the content.

    With `stop` the first bad line raises `ImportFileError`; the lines before it are stored, and the import continues
    there when it is called again with a corrected line. With `skip`, or where `bad_lines` names a file for them, bad
    lines are skipped and reported. Lines are identified by their ids: what a line says of an answer that is stored
    already replaces what was said before, and keys that it leaves out stay unchanged. An id that is stored with another
    answer or prompt makes a line bad, so two files whose lines have no ids need different names.

    `correct` names the score of a log that says whether an answer is right, and `requests` the file that a batch was
    made from. `stated` is a function that reads the confidence from the text of an answer without log-probabilities,
    which is then stored for its confidence alone; with `plain` every such answer is stored, without numbers, so that
    another model can read it (`metaprobe.collecting.extract`). `on_line` is called after every answer that was read,
    `on_bytes` with the bytes read so far. Raises `RecordError` where the store's folder holds other files and no runs,
    and `ImportFileError` where no answer of a log can be imported.
    """
    path = Path(path)
    _check_folder(store.path)
    log_format = format_of(path, form)
    _check_bad_target(path, bad_lines)
    with (
        store.alone(),  # what is stored is not stored again by another process meanwhile
        Path(bad_lines).open("w", encoding="utf-8", errors="backslashreplace")
        if bad_lines is not None
        else nullcontext() as bad,
    ):
        taken = _Import(path, store, log_format, skip=on_error == "skip" or bad_lines is not None, bad=bad)
        options = LogOptions(
            correct,
            None if requests is None else Path(requests),
            taken.on_bad if taken.skip else None,
            on_bytes,
            plain,
        )
        taken.read(options, stated, on_line)
    report = taken.report
    if report.left_out and not (report.imported or report.already_stored or report.bad):
        bare = any(reason.startswith((NO_LOGPROBS, ZEROS)) for reason in report.left_out)
        advice = (
            " Ask for log-probabilities when you run it (Inspect: logprobs=True; promptfoo and HELM: a provider or"
            " client that hands them on), or import it for stated confidence alone: --stated-only"
        )
        reasons = "; ".join(f"{count} x {reason}" for reason, count in report.left_out.most_common(5))
        raise ImportFileError(
            f"{path} ({log_format.what}): no answer of it can be taken: {reasons}; expected answers with"
            f" log-probabilities.{advice if bare else ''}"
        )
    return report


def _check_bad_target(path: Path, bad_lines: str | Path | None) -> None:
    """Raises `ImportFileError` where the file for bad lines would take the place of one that no import has written."""
    if bad_lines is None or not Path(bad_lines).is_file() or not Path(bad_lines).stat().st_size:
        return
    with Path(bad_lines).open("rb") as file:
        ours = file.readline().startswith((b'{"kind": "bad", "reason": ', b'{"kind": "left out", "reason": '))
    if not ours or (path.exists() and path.samefile(bad_lines)):
        raise ImportFileError(
            f"{bad_lines} exists and holds something else than bad lines of an import, and is not replaced; give "
            "another name for the file of bad lines"
        )


def _check_folder(folder: Path) -> None:
    """Raises `RecordError` for a folder that holds other files and no runs; hidden ones do not count."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    others = [name for name in names if not name.startswith(".")]
    if others and not any(name.startswith("runs-") and name.endswith(".parquet") for name in others):
        raise RecordError(
            f"{folder} is no run store: it holds {', '.join(others[:3])}{', ...' if len(others) > 3 else ''}; expected"
            f" a run store, an empty folder, or a new one, such as {folder / 'runs'}"
        )


class _Import:
    """One import, and what became of its lines so far."""

    def __init__(self, path: Path, store: RunStore, form: LogFormat, *, skip: bool, bad: IO[str] | None) -> None:
        self.skip, self.report = skip, ImportReport(form=form.name)
        self._path, self._store, self._form, self._bad_file = path, store, form, bad
        self._shards = store.shards_of_runs()
        self._again: list[Line] = []
        self._groups: set[tuple[str, str]] = set()
        self._noted: set[str] = set()
        """Keys that have a note."""

    def read(
        self, options: LogOptions, stated: Callable[[str], float | None] | None, on_line: Callable[[], object]
    ) -> None:
        """Reads the whole file. What was read when an error ends it is stored."""
        try:
            with self._store.writer() as writer:
                lines = read_log(self._path, self._form, options, stated=stated, on_left_out=self._on_left_out)
                for line in lines:
                    on_line()
                    if line.run.id in self._shards:
                        self._again.append(line.without_answer())
                        if len(self._again) >= HELD_LINES and (problem := self._relabel()):
                            raise problem
                    else:
                        writer.add(line.run)
                        self.report.imported += 1
                    self._count(line)
        finally:
            problem = self._relabel()
        if problem:
            raise problem

    def on_bad(self, error: ImportFileError) -> None:
        """Counts a bad line, and writes it into the file of bad lines."""
        self.report.bad += 1
        if len(self.report.skipped) < KEPT_MESSAGES:
            self.report.skipped += (str(error),)
        self._write("bad", str(error), error.source)

    def _count(self, line: Line) -> None:
        report, [call] = self.report, line.run.calls
        right = any(label.name == "correct" for label in line.run.labels)
        report.labelled += right
        report.labelled_otherwise += bool(line.run.labels) and not right
        report.taken.update([line.taken] if line.taken else ())
        report.without_logprobs += call.logprobs is None
        ended = doubt(call.finish_reason) if call.finish_reason else ""
        report.doubts.update(_NUMBERS.sub("N", doubtful) for doubtful in (call.note, ended) if doubtful)
        self._groups.add((line.run.item.task, line.run.item.group))
        report.groups = len(self._groups)
        if self._form.name == LINES.name:
            notes = {key: note for key, note in notes_of(line.record) if key not in self._noted}
            self._noted |= notes.keys()
            report.notes += tuple(str(line.error(self._path, note)) for note in notes.values())

    def _on_left_out(self, sample: Sample, reason: str) -> None:
        self.report.left_out[reason] += 1
        self._write("left out", f"{self._path}: {sample.place}: {reason}", sample.source or sample.line)

    def _write(self, kind: str, reason: str, source: object) -> None:
        if self._bad_file is not None:
            held: Any = source.decode(errors="backslashreplace") if isinstance(source, bytes) else source
            written = {"kind": kind, "reason": reason, "source": held}
            self._bad_file.write(json.dumps(written, ensure_ascii=False, default=str) + "\n")

    def _relabel(self) -> ImportFileError | None:
        """Replaces what the store says of its answers by what the lines held back say of them.

        Lines that are of another answer than the stored one are bad; where bad lines are not skipped, returns the error
        about the first.
        """
        left, self._again = {line.run.id: line for line in self._again}, []
        if not left:
            return None
        count, others = len(left), []
        shards = {self._shards[id] for id in left}

        def told(stored: Run) -> Run:
            line = left.pop(stored.id, None)
            if line is None:
                return stored
            run = as_stored(line.run)  # a store mends broken characters, which must not count as another prompt
            # A key of null or of nothing says nothing, but a confidence of null says that none was stated.
            keys = {key for key, value in line.record.items() if value not in (None, "", [], {})}
            keys |= line.record.keys() & {"verbalized_confidence"}
            if all(not call.tokens for call in stored.calls):
                keys -= {"messages"}  # a store kept without texts stays one
            if not _same_answer(stored, run, keys):
                others.append(line)
                return stored
            now = _updated(stored, run, keys)
            self.report.relabelled += now is not stored
            return now

        self._store.rewrite(told, shards)
        self.report.already_stored += count - len(others)
        errors = [
            line.error(
                self._path,
                f"id {line.run.id!r} is stored with another answer or prompt (as of {len(others)} lines); expected an"
                ' id to stand for one answer: repeated collections differ in "run_id", or go into another store',
            )
            for line in sorted(others, key=lambda line: line.number)
        ]
        for error in errors if self.skip else ():
            self.on_bad(error)
        return None if self.skip or not errors else errors[0]


_OF_RUN = {
    "labels": ("labels", "outcome"),
    "verbalized_confidence": ("statements",),
    "decisions": ("decision_answers",),
}
_OF_ITEM = {"group": ("group",), QUESTION: ("id", "group"), "task": ("task",), "messages": ("question",)}
_OF_CALL = {key: (key,) for key in ("messages", "model", "stage", "agent", "sampling", "logprobs_mode")}
"""Fields that the keys of a line fill."""


def _same_answer(stored: Run, told: Run, keys: Container[str]) -> bool:
    """Hidden states stay with the call, so a prompt may come late, but not change."""
    if stored.system != told.system:
        return False
    old, (new,) = stored.calls[0], told.calls  # a judge's calls may follow
    if "messages" in keys and old.messages and old.messages != new.messages:
        return False
    if old.logprobs is None or new.logprobs is None:
        alike = old.text in ("", new.text)  # a store kept without texts does not know them
        return old.logprobs is new.logprobs and alike
    return np.array_equal(old.logprobs, new.logprobs)


def _updated(stored: Run, told: Run, keys: Container[str]) -> Run:
    """The stored run with what is told under these keys; itself where that is nothing new."""
    (old, *judged), (new,) = stored.calls, told.calls
    of_run, of_item, of_call = (
        {
            field: getattr(now, field)
            for key, filled in fields.items()
            for field in filled
            if key in keys and getattr(now, field) != getattr(was, field)
        }
        for fields, was, now in (
            (_OF_RUN, stored, told),
            (_OF_ITEM, stored.item, told.item),
            (_OF_CALL, old, new),
        )
    )
    if not (of_run or of_item or of_call):
        return stored
    return replace(stored, item=replace(stored.item, **of_item), calls=(replace(old, **of_call), *judged), **of_run)
