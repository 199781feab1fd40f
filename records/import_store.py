"""Imports the answers of a file into a run store: lines of our own format, or a log of another program."""

import re
from collections import Counter
from collections.abc import Callable, Container
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from metaprobe.records.bad_lines import NO_LOGPROBS, ZEROS, BadFile, KeptLines, RawLine, Reason
from metaprobe.records.errors import ImportFileError, RecordError
from metaprobe.records.import_line import QUESTION_KEY, notes_of
from metaprobe.records.importer import LINES, LineWithRun, LogFormat, format_of, read_log
from metaprobe.records.lines import OnBytes
from metaprobe.records.logs.logged_answer import LoggedAnswer, LogOptions
from metaprobe.records.reading import doubt
from metaprobe.records.store import RunStore, as_stored
from metaprobe.records.types import Run

HELD_LINES = 1024
"""Number of already stored lines that are compared with the store at a time, so that memory stays bounded."""


_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
"""Matches the numbers in a doubt. They are removed before counting, so doubts that differ only by numbers
count as one.
"""


@dataclass(slots=True)
class ImportReport:
    """Number of lines of an import file, by the result of their import."""

    imported: int = 0
    already_stored: int = 0
    """Lines whose answer was already in the store. Importing a file again adds nothing twice."""
    labelled: int = 0
    """Lines with the label `correct`, among those imported and those already stored."""
    labelled_otherwise: int = 0
    """Lines with other labels only, such as scores between 0 and 1, among those imported and those already stored."""
    groups: int = 0
    """Number of different groups among these lines. Lines without a group each count as one."""
    relabelled: int = 0
    """Already stored lines whose labels, group, confidence, prompt or the like differed from the store."""
    notes: tuple[str, ...] = ()
    """Notes on keys that look like a label or prompt in the wrong place: each key once, with its first line."""
    bad: int = 0
    """Number of lines that were left out because they are bad."""
    reasons: dict[str, Reason] = field(default_factory=dict)
    """Maps the reason why lines are bad to their number and the message about the first."""
    said: str = ""
    """Message about the bad lines, with a line for each reason; empty if no line is bad."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of samples of a log that are not answers that can be imported, by reason."""
    form: str = LINES.name
    """Name of the format that was read."""
    without_logprobs: int = 0
    """Lines without log-probabilities, imported for their stated confidence, or for another model to read."""
    taken: Counter[str] = field(default_factory=Counter)
    """Number of answers, by the score that the reader took for `correct`, or by why they have none."""
    doubts: Counter[str] = field(default_factory=Counter)
    """Number of stored answers, by the doubt that their verdicts will mention, such as that the answer was aborted."""


def import_file(
    path: str | Path,
    store: RunStore,
    *,
    form: str = "auto",
    strict: bool = False,
    bad: str | Path | None = None,
    correct: str = "",
    requests: str | Path | None = None,
    stated: Callable[[str], float | None] | None = None,
    plain: bool = False,
    on_line: Callable[[], object] = lambda: None,
    on_bytes: OnBytes | None = None,
) -> ImportReport:
    """Adds the answers of a file to a store.

        >>> import json
        >>> answer = {"message": {"content": "4"}, "logprobs": {"content": [{"token": "4", "logprob": -0.1}]}}
        >>> line = {"id": "q1", "labels": {"correct": 1}, "response": {"choices": [answer]}}
        >>> _ = Path("lines.jsonl").write_text(json.dumps(line))
        >>> import_file("lines.jsonl", RunStore("imported")).imported
        1

    Bad lines are left out, and the report counts them by reason. A line is identified by its id. If the store already
    has its answer, the keys of the line replace the stored ones, and missing keys stay unchanged. A line is bad if its
    id is stored with another answer or prompt. So two files whose lines have no ids need different names.

    Raises `ImportFileError` if more than half of the lines are bad, and then stores nothing of them. Raises it too if
    no answer of a log can be imported, or if a compressed file is damaged; the answers before the damage are then
    stored. Raises `RecordError` if the store's folder holds other files and no runs.

    Args:
        path: the file, or a folder that HELM wrote.
        store: where the answers go.
        form: one of `metaprobe.records.importer.LOG_FORMAT_NAMES`, or `auto`, which recognises the format by the
            content.
        strict: whether the first bad line raises `ImportFileError`. The lines before it are stored, and a second call
            with a corrected line continues there.
        bad: a new file for the bad lines as raw bytes. For a log whose samples are not lines it holds objects with
            `kind`, `reason` and `source`, also for samples that are left out.
        correct: the score of a log that says whether an answer is right.
        requests: the file that a batch was made from.
        stated: a function that reads the confidence from the text of an answer without log-probabilities. The answer is
            then stored for its confidence alone.
        plain: whether every answer without log-probabilities is stored, without numbers, for another model to read
            (`metaprobe.llms.extract`).
        on_line: called after every answer that was read.
        on_bytes: called with the number of bytes read so far.
    """
    path = Path(path)
    _check_folder(store.path)
    log_format = format_of(path, form)
    with (
        nullcontext() if bad is None else KeptLines(bad) as keep,
        store.alone(),  # what is stored is not stored again by another process meanwhile
    ):
        options = LogOptions(correct, None if requests is None else Path(requests), None, on_bytes, plain)
        importing = _Import(path, store, log_format, options, stated, strict=strict, keep=keep)
        importing.read(on_line)
    report = importing.report
    if report.left_out and not (report.imported or report.already_stored or report.bad):
        lacks_logprobs = any(reason.startswith((NO_LOGPROBS, ZEROS)) for reason in report.left_out)
        advice = (
            " Ask for log-probabilities when you run it (Inspect: logprobs=True; promptfoo and HELM: a provider or"
            " client that hands them on), or import it for stated confidence alone: --stated-only"
        )
        reasons = "; ".join(f"{count} x {reason}" for reason, count in report.left_out.most_common(5))
        raise ImportFileError(
            f"{path} ({log_format.what}): no answer of it can be taken: {reasons}; expected answers with"
            f" log-probabilities.{advice if lacks_logprobs else ''}"
        )
    return report


def _check_folder(folder: Path) -> None:
    """Raises `RecordError` if a folder holds other files and no runs. Hidden files do not count."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    visible_names = [name for name in names if not name.startswith(".")]
    if visible_names and not any(name.startswith("runs-") and name.endswith(".parquet") for name in visible_names):
        raise RecordError(
            f"{folder} is no run store: it holds "
            f"{', '.join(visible_names[:3])}{', ...' if len(visible_names) > 3 else ''}; expected"
            f" a run store, an empty folder, or a new one, such as {folder / 'runs'}"
        )


class _Import:
    """State of one running import, with the results of its lines so far."""

    def __init__(
        self,
        path: Path,
        store: RunStore,
        form: LogFormat,
        options: LogOptions,
        stated: Callable[[str], float | None] | None,
        *,
        strict: bool,
        keep: KeptLines | None,
    ) -> None:
        """`keep` is the file for bad lines. The other arguments are those of `import_file`."""
        self.report = ImportReport(form=form.name)
        self._path, self._store, self._form, self._keep = path, store, form, keep
        self._stated = stated
        self._options = replace(options, on_error=self._on_bad)
        self._bad = BadFile(path, strict=strict, unit="lines" if form.name == LINES.name else "answers")
        self._shards = store.shards_of_runs()
        self._shards_before = set(self._shards.values())
        self._stored_lines: list[LineWithRun] = []
        self._groups: set[tuple[str, str]] = set()
        self._noted_keys: set[str] = set()
        """Keys of record fields about which the report already has a note."""
        self._may_change_stored = strict
        """Whether stored answers may be changed: at most half of all lines are bad, or the import is strict."""
        self._is_refused = False
        """Whether the file is refused, because more than half of its lines are bad."""

    def read(self, on_line: Callable[[], object]) -> None:
        """Reads the whole file. If an error ends it, the lines before are stored, unless most lines are bad."""
        has_read_all = False
        try:
            self._store_new_lines(on_line)
            has_read_all = True
        finally:
            try:
                self._relabel(has_read_all=has_read_all)
            finally:
                if self._is_refused:
                    self._store.take_back(self._shards_before)
                self.report.bad, self.report.reasons = self._bad.bad, self._bad.reasons
                self.report.said = self._bad.said()

    def _store_new_lines(self, on_line: Callable[[], object]) -> None:
        with self._store.writer() as writer:
            for line in read_log(
                self._path, self._form, self._options, stated=self._stated, on_left_out=self._on_left_out
            ):
                on_line()
                self._bad.sound += 1
                if line.run.id in self._shards:
                    self._stored_lines.append(line.without_answer())
                    if len(self._stored_lines) >= HELD_LINES:
                        self._check_before_changes()
                        self._relabel()
                else:
                    writer.add(line.run)
                    self.report.imported += 1
                self._count_line(line)

    def _check_before_changes(self) -> None:
        """Reads the whole file once before stored answers are changed, so that nothing changes if most
        lines are bad.
        """
        if self._may_change_stored or self._path.is_fifo():  # a pipe cannot be read twice
            return
        counts = BadFile(self._path, unit=self._bad.unit)

        def count(*_: object) -> None:
            counts.sound += 1

        options = replace(self._options, on_error=counts.leave_out, on_bytes=None)
        for line in read_log(self._path, self._form, options, stated=self._stated, on_left_out=count):
            count(line)
        self._refuse_if_mostly_bad(counts)
        self._may_change_stored = True

    def _refuse_if_mostly_bad(self, bad: BadFile) -> None:
        """Raises `ImportFileError` if more than half of the lines are bad, so that nothing of the file is stored."""
        try:
            bad.check()
        except ImportFileError:
            self._is_refused, self._stored_lines = True, []
            raise

    def _on_bad(self, error: ImportFileError) -> None:
        """Counts a bad line, and writes it into the file of bad lines. Raises the error if the import is strict."""
        self._bad.leave_out(error)
        if self._keep is not None:
            of_line = error.line is not None or isinstance(error.source, RawLine)
            self._keep.add(error.source if of_line else {"kind": "bad", "reason": str(error), "source": error.source})

    def _count_line(self, line: LineWithRun) -> None:
        report, [call] = self.report, line.run.calls
        has_correct = any(label.name == "correct" for label in line.run.labels)
        report.labelled += has_correct
        report.labelled_otherwise += bool(line.run.labels) and not has_correct
        report.taken.update([line.label_source] if line.label_source else ())
        report.without_logprobs += call.logprobs is None
        end_note = doubt(call.finish_reason) if call.finish_reason else ""
        report.doubts.update(_NUMBERS.sub("N", note) for note in (call.note, end_note) if note)
        self._groups.add((line.run.item.task, line.run.item.group))
        report.groups = len(self._groups)
        if self._form.name == LINES.name:
            notes = {key: note for key, note in notes_of(line.record) if key not in self._noted_keys}
            self._noted_keys |= notes.keys()
            report.notes += tuple(str(line.error(self._path, note)) for note in notes.values())

    def _on_left_out(self, answer: LoggedAnswer, reason: str) -> None:
        self.report.left_out[reason] += 1
        self._bad.sound += 1  # nothing is wrong with it
        if self._keep is not None:
            message = f"{self._path}: {answer.location}: {reason}"
            source = answer.source or answer.line
            of_line = answer.number is not None or isinstance(source, RawLine)
            self._keep.add(source if of_line else {"kind": "left out", "reason": message, "source": source})

    def _relabel(self, *, has_read_all: bool = False) -> None:
        """Updates stored answers with the labels, groups and other keys of the lines held back.

        A line whose answer differs from the stored one is bad. With `has_read_all` the whole file was read, so it is
        known whether most of its lines are bad.
        """
        waiting_lines, self._stored_lines = {line.run.id: line for line in self._stored_lines}, []
        shards = {self._shards[id] for id in waiting_lines}
        runs = (run for shard in sorted(shards) for run in self._store.runs_of(shard))
        conflicting = [waiting_lines[run.id] for run in runs if self._has_other_answer(run, waiting_lines)]
        errors = self._conflict_errors(sorted(conflicting, key=lambda line: line.number))
        self._bad.sound -= len(errors)
        for error in errors if not self._bad.strict else ():
            self._on_bad(error)
        if has_read_all and not self._bad.strict:
            self._refuse_if_mostly_bad(self._bad)
        for line in conflicting:
            del waiting_lines[line.run.id]

        def relabelled(stored: Run) -> Run:
            line = waiting_lines.get(stored.id)
            if line is None:
                return stored
            updated = _updated(stored, as_stored(line.run), _keys_with_value(stored, line))
            self.report.relabelled += updated is not stored
            return updated

        if waiting_lines:
            self._store.rewrite(relabelled, shards)
        self.report.already_stored += len(waiting_lines)
        if errors and self._bad.strict:
            raise errors[0]

    def _has_other_answer(self, stored: Run, waiting_lines: dict[str, LineWithRun]) -> bool:
        """Returns whether a line held back has another answer than the stored run of its id."""
        line = waiting_lines.get(stored.id)
        return line is not None and not _same_answer(stored, as_stored(line.run), _keys_with_value(stored, line))

    def _conflict_errors(self, conflicting: list[LineWithRun]) -> list[ImportFileError]:
        """Returns the errors about lines whose ids are stored with another answer."""
        source_of_line: dict[int, object] = {}
        if conflicting and self._keep is not None and not self._path.is_fifo():  # their answers are no longer in memory
            numbers = {line.number for line in conflicting}
            options = replace(self._options, on_error=lambda error: None, on_bytes=None)
            for answer in self._form.read(self._path, options):
                if answer.number in numbers:
                    source_of_line[answer.number or 0] = answer.line if answer.source is None else answer.source
        errors = []
        for line in conflicting:
            error = line.error(
                self._path,
                f"id {line.run.id!r} is stored with another answer or prompt (as of {len(conflicting)} lines); "
                "expected an"
                ' id to stand for one answer: repeated collections differ in "run_id", or go into another store',
            )
            error.kind, error.source = OTHER_ANSWER, source_of_line.get(line.number, error.source)
            errors.append(error)
        return errors


OTHER_ANSWER = "an id that is stored with another answer or prompt"
"""Reason why a line is bad."""


def _keys_with_value(stored: Run, line: LineWithRun) -> set[str]:
    """Returns the keys of a line that have a value.

    A null or empty value counts as missing. But a confidence of null says that the model stated none.
    """
    keys = {key for key, value in line.record.items() if value not in (None, "", [], {})}
    keys |= line.record.keys() & {"verbalized_confidence"}
    if all(not call.tokens for call in stored.calls):
        keys -= {"messages"}  # a store kept without texts stays one
    return keys


_RUN_FIELDS = {
    "labels": ("labels", "outcome"),
    "verbalized_confidence": ("statements",),
    "decisions": ("decision_answers",),
}
_ITEM_FIELDS = {"group": ("group",), QUESTION_KEY: ("id", "group"), "task": ("task",), "messages": ("question",)}
_CALL_FIELDS = {key: (key,) for key in ("messages", "model", "stage", "agent", "sampling", "logprobs_mode")}
"""These three tables map a key of the line to the fields of run, item and call that it fills."""


def _same_answer(stored: Run, imported: Run, keys: Container[str]) -> bool:
    """Returns whether the stored run and the line's run hold one answer.

    Hidden states stay with the call, so a prompt may be added later, but may not change.

    Args:
        stored: the run in the store.
        imported: the run of the line.
        keys: keys of the line that have a value.
    """
    if stored.system != imported.system:
        return False
    stored_call, (imported_call,) = stored.calls[0], imported.calls  # a judge's calls may follow
    if "messages" in keys and stored_call.messages and stored_call.messages != imported_call.messages:
        return False
    if stored_call.logprobs is None or imported_call.logprobs is None:
        is_same_text = stored_call.text in ("", imported_call.text)  # a store kept without texts does not know them
        return stored_call.logprobs is imported_call.logprobs and is_same_text
    return np.array_equal(stored_call.logprobs, imported_call.logprobs)


def _updated(stored: Run, imported: Run, keys: Container[str]) -> Run:
    """Returns the stored run with the line's values under these keys; the same object if nothing changes.

    Args:
        stored: the run in the store.
        imported: the run of the line.
        keys: keys of the line that have a value.
    """
    (stored_call, *judge_calls), (imported_call,) = stored.calls, imported.calls
    run_changes, item_changes, call_changes = (
        {
            field: getattr(new_record, field)
            for key, filled_fields in fields.items()
            for field in filled_fields
            if key in keys and getattr(new_record, field) != getattr(old_record, field)
        }
        for fields, old_record, new_record in (
            (_RUN_FIELDS, stored, imported),
            (_ITEM_FIELDS, stored.item, imported.item),
            (_CALL_FIELDS, stored_call, imported_call),
        )
    )
    if not (run_changes or item_changes or call_changes):
        return stored
    return replace(
        stored,
        item=replace(stored.item, **item_changes),
        calls=(replace(stored_call, **call_changes), *judge_calls),
        **run_changes,
    )
