"""Reads a file of answers as runs: lines in our own format, or a log of another program, recognised by its content.

`LOG_FORMATS` lists all formats that `metaprobe import --from` takes.
"""

import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from metaprobe.records.bad_lines import NO_LOGPROBS, OTHER_TOKENS, ZEROS, BadFile, at_line, counted, reason_of
from metaprobe.records.errors import ImportFileError, InvalidResponse, NoLogprobs, of_kind
from metaprobe.records.import_line import (
    KEYS,
    answer_records,
    run_of_line,
    text_of_line,
    with_labels,
    without_token_logprobs,
)
from metaprobe.records.label_state import why_not_right
from metaprobe.records.lines import hand_over, is_csv, is_table, iter_json_lines, records_of
from metaprobe.records.logs import helm
from metaprobe.records.logs.helm import read_helm
from metaprobe.records.logs.inspect_log import read_inspect
from metaprobe.records.logs.lm_eval import read_lm_eval
from metaprobe.records.logs.logged_answer import LoggedAnswer, LogOptions, first_keys
from metaprobe.records.logs.openai_batch import read_openai_batch
from metaprobe.records.logs.promptfoo import read_promptfoo
from metaprobe.records.types import Run


@dataclass(frozen=True, slots=True)
class LogFormat:
    """A format of files with answers."""

    name: str
    what: str
    """Description for users."""
    read: Callable[[Path, LogOptions], Iterator[LoggedAnswer]]
    keys: tuple[frozenset[str], ...] = ()
    """Sets of keys at the top of a document or line. The format is recognised if all keys of one set are there."""


def read_lines(path: Path, options: LogOptions) -> Iterator[LoggedAnswer]:
    """Yields each line of a file in the import format, or each row of a Parquet or CSV file."""
    if options.correct:
        raise ImportFileError(
            f'{path}: answer lines have "labels" and no scores, so there is none called {options.correct!r}'
        )
    for number, record in answer_records(path, on_error=options.on_error, on_bytes=options.on_bytes):
        yield LoggedAnswer(f"line {number}", record, number=number)


LINES = LogFormat("lines", "answer lines of the import format", read_lines)
LOG_FORMATS = (
    LogFormat("inspect", "a log of Inspect", read_inspect, (frozenset({"eval", "status"}),)),
    LogFormat("lm-eval", "samples of lm-evaluation-harness", read_lm_eval, (frozenset({"doc_id", "resps"}),)),
    LogFormat("helm", "a run of HELM", read_helm, (frozenset({"adapter_spec", "request_states"}),)),
    LogFormat(
        "promptfoo",
        "results of promptfoo",
        read_promptfoo,
        (
            frozenset({"evalId", "results"}),
            frozenset({"testIdx", "promptIdx"}),
            frozenset({"version", "timestamp", "results"}),  # what `evaluate` of the Node package gives
            frozenset({"version", "timestamp", "prompts"}),
            frozenset({"createdAt", "config", "results"}),
            frozenset({"results.version", "results.timestamp"}),  # older ones begin with the results
        ),
    ),
    LogFormat(
        "openai-batch",
        "output of OpenAI's Batch API",
        read_openai_batch,
        (frozenset({"custom_id", "response", "error"}),),
    ),
    LINES,
)
"""The first format whose keys are all there reads the file. A file that fits no other format holds answer lines."""
LOG_FORMAT_NAMES = tuple(form.name for form in LOG_FORMATS)


def format_of(path: Path, name: str = "auto") -> LogFormat:
    """Returns the format with that name, or the format that the content shows. Raises `ImportFileError` for neither."""
    if name != "auto":
        for form in LOG_FORMATS:
            if form.name == name:
                return form
        raise ImportFileError(f"there is no format {name!r}; expected auto, {', '.join(LOG_FORMAT_NAMES)}")
    if path.is_dir():
        if (path / helm.STATE).is_file():
            return format_of(path, "helm")
        raise ImportFileError(f"{path} is a folder and no run of HELM; expected a file, or a folder with {helm.STATE}")
    if is_csv(path):
        return LINES  # no other format is a table of texts
    keys = set(first_keys(path))  # says what is wrong with a file that cannot be opened
    with path.open("rb") as file:
        is_zip = file.read(2) == b"PK"
    if is_zip and not zipfile.is_zipfile(path):
        raise ImportFileError(f"{path} begins as a zip archive and is none; copy or make it again")
    if is_zip:
        keys = {"eval", "status"}  # no other format is an archive; its reader says what is missing
    elif is_table(path):
        keys = next((set(row) for _, row in records_of(path)), set())
    else:
        keys |= {f"results.{key}" for key in first_keys(path, "results")}
    form = _form_of(keys)
    return _form_of_lines(path) if form is LINES and not (is_zip or is_table(path)) else form


def _form_of(keys: Set[str]) -> LogFormat:
    """Returns the format of a document or line with these keys."""
    return next((form for form in LOG_FORMATS if any(needed_keys <= keys for needed_keys in form.keys)), LINES)


FORMAT_LINES = 9
"""Number of first lines from which the format is recognised: one of them may be bad."""


def _form_of_lines(path: Path) -> LogFormat:
    """Returns the format of most of the first lines of a file."""
    form_counts = Counter[str]()
    with suppress(ImportFileError):  # what is wrong with the file is said when it is read
        lines = islice(iter_json_lines(path, on_error=lambda error: None), FORMAT_LINES)
        form_counts.update(_form_of(record.keys()).name for _, record in lines)
    return format_of(path, form_counts.most_common(1)[0][0]) if form_counts else LINES


MASKED_LOGPROB = -9999.0
"""Number that OpenAI and vLLM write for a token that is not among the likeliest.

No model gives a lower log-probability to a token that it drew. A lower number is a mask, such as -1e9, -1e30 or the
lowest float32.
"""

SAME_ID = "an id that another line has"
MASKED = f"a log-probability below {MASKED_LOGPROB:g}"
"""Reasons why a line is bad."""
NOT_STATED = ", and the answer states no confidence that can be read"


def read_openai_lines(path: str | Path, *, strict: bool | None = None) -> Iterator[Run]:
    """Yields one run with one call for each line. Bad lines are left out, and a warning counts them by reason.

    The run's id is the line's `id`. If the line has a `run_id`, it comes first, followed by a slash. So two collections
    over the same questions can share a store. The call has the id of the run. A line without an id is called
    FILE-line-N, where N counts every line of the file from 1.

    `strict` says whether the first bad line raises `ImportFileError`; by default as the running command has set it,
    else False. Raises `ImportFileError` at the end if more than half of the lines are bad.
    """
    with BadFile.reading(path, strict=strict) as bad:
        for line in counted(read_log(Path(path), LINES, LogOptions(on_error=bad.leave_out)), bad):
            yield line.run


@dataclass(frozen=True, slots=True)
class LineWithRun:
    """A line that was read, with its number and its run."""

    number: int
    record: dict[str, Any]
    run: Run
    location: str = ""
    """Location of the answer in a log that has no lines; empty in a file of lines."""
    label_source: str = ""
    """Source of the label `correct`, as in `LoggedAnswer.label_source`."""

    def error(self, path: Path, message: str) -> ImportFileError:
        """Returns an error about this line."""
        return _error_at(
            path, LoggedAnswer(self.location, self.record, number=None if self.location else self.number), message
        )

    def without_answer(self) -> "LineWithRun":
        """Returns the line without its large fields, because thousands of lines wait for comparison with the store."""
        # An answer without log-probabilities can be known again by its text alone.
        texts = [call.text if call.logprobs is None else "" for call in self.run.calls]
        calls = tuple(
            replace(call, text=text, tokens=(), top_logprobs=None)
            for call, text in zip(self.run.calls, texts, strict=True)
        )
        record = {key: value for key, value in self.record.items() if key in KEYS and key != "response"}
        return replace(self, record=record, run=replace(self.run, calls=calls, final_answer=""))


def read_log(
    path: Path,
    form: LogFormat,
    options: LogOptions,
    *,
    stated: Callable[[str], float | None] | None = None,
    on_left_out: Callable[[LoggedAnswer, str], object] = lambda answer, reason: None,
) -> Iterator[LineWithRun]:
    """Yields each answer of a log as a line.

    An error about an answer goes to `options.on_error`, or is raised.

    Args:
        path: the file.
        form: its format.
        options: how to read it. With `options.plain` every answer without log-probabilities is kept.
        stated: reads a confidence from the text of an answer without log-probabilities, which is then kept.
        on_left_out: called with each record that is no answer or has no log-probabilities, and why.
    """
    # The file's name, from which lines without an id get their ids.
    name = path.name
    for suffix in (".gz", ".jsonl"):
        name = name.removesuffix(suffix)
    location_of_id: dict[str, str] = {}
    for answer_number, answer in enumerate(form.read(path, options), 1):
        if answer.line is None:
            on_left_out(answer, answer.left_out)
            continue
        # Make the run of an answer, or refuse it.
        number = answer.number or answer_number
        try:
            record, label_source = with_labels(answer.line), answer.label_source
            labels: Any = record.get("labels")
            labelled = form.name == LINES.name and isinstance(labels, dict) and labels.get("correct") is not None
            other_fields = {key: value for key, value in record.items() if key not in KEYS}
            if labelled and (fault := why_not_right(other_fields)):
                labels = {name: value for name, value in labels.items() if name != "correct"}
                record, label_source = {**record, "labels": labels}, f"no label: {fault}"
            run = _run_of_line(record, f"{name}-line-{number}", form, options, stated)
            if not run.id.isascii() and _HALF_CHARACTER.search(run.id):  # stored, it would be another name
                raise ImportFileError('"id" holds half of a character, \\ud800 to \\udfff; expected whole ones')
            logprobs = run.calls[0].logprobs
            if logprobs is not None and logprobs.min() < MASKED_LOGPROB:
                # A scored answer may hold such a number; fits on a few of them would learn nothing else.
                token = int(logprobs.argmin())
                raise of_kind(
                    f"the log-probability of token {token} (of {logprobs.size}) is {logprobs[token]:g}; expected at "
                    f"least {MASKED_LOGPROB:g}: what is lower stands for minus infinity, a token that the sampler "
                    "ruled out, so ask the server for raw log-probabilities (before temperature, top-k and top-p), or "
                    "leave this line out",
                    MASKED,
                )
            if run.id in location_of_id:
                raise of_kind(
                    f"id {run.id!r} was already used on {location_of_id[run.id]}; expected every line to have its own:"
                    ' lines about one question share a "group", repeated collections differ in "run_id"',
                    SAME_ID,
                )
        except (ImportFileError, InvalidResponse) as error:
            fault = ""
            if isinstance(error, NoLogprobs):
                fault = ZEROS if error.placeholders else NO_LOGPROBS
            elif isinstance(error, InvalidResponse) and error.other_tokens:
                fault = OTHER_TOKENS
            if not fault or (form.name == LINES.name and (stated is None or fault == OTHER_TOKENS)):
                hand_over(_error_at(path, answer, error), options.on_error, error)
            else:
                on_left_out(answer, (answer.left_out or fault) + (NOT_STATED if stated is not None else ""))
        else:
            location_of_id[run.id] = answer.location
            yield LineWithRun(number, record, run, "" if answer.number else answer.location, label_source)


_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
"""Matches half of a surrogate pair, which no file of UTF-8 or Parquet can hold."""


def _run_of_line(
    line: dict[str, Any],
    default_id: str,
    form: LogFormat,
    options: LogOptions,
    stated: Callable[[str], float | None] | None,
) -> Run:
    """Returns the run of a line. If log-probabilities of a log belong to other tokens, the answer is read without them.

    Args:
        line: the line.
        default_id: id of the run if the line has none.
        form: format of the file.
        options: how the file is read.
        stated: reads a confidence from the text of an answer without log-probabilities.
    """
    try:
        return run_of_line(line, default_id)
    except InvalidResponse as error:
        if error.other_tokens and form.name != LINES.name:
            line = {**line, "response": without_token_logprobs(line["response"])}
        elif not isinstance(error, NoLogprobs):
            raise
        value = stated(text_of_line(line).text) if stated is not None else None
        if value is not None:
            line = {**line, "verbalized_confidence": value}
        elif not options.plain:
            raise
        return run_of_line(line, default_id, plain=options.plain)


def _error_at(path: Path, answer: LoggedAnswer, message: str | Exception) -> ImportFileError:
    source = answer.line if answer.source is None else answer.source
    if answer.number is not None:
        return at_line(path, answer.number, message, source)
    error = ImportFileError(f"{path}: {answer.location}: {message}")
    error.source = source
    error.kind = reason_of(message if isinstance(message, Exception) else ImportFileError(message))
    return error
