"""Tells by its content of which program a log is: the list of all formats that `metaprobe import --from` takes."""

import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from metaprobe.records.csv_lines import csv_lines
from metaprobe.records.csv_rows import is_csv
from metaprobe.records.errors import ImportFileError
from metaprobe.records.logs import helm
from metaprobe.records.logs.document import first_keys
from metaprobe.records.logs.helm import read_helm
from metaprobe.records.logs.inspect_log import read_inspect
from metaprobe.records.logs.lm_eval import read_lm_eval
from metaprobe.records.logs.openai_batch import read_openai_batch
from metaprobe.records.logs.promptfoo import read_promptfoo
from metaprobe.records.logs.sample import LogOptions, Sample
from metaprobe.records.logs.tables import is_table, records_of


@dataclass(frozen=True, slots=True)
class LogFormat:
    """One format of logs."""

    name: str
    what: str
    """What it is of, for people."""
    read: Callable[[Path, LogOptions], Iterator[Sample]]
    keys: tuple[frozenset[str], ...] = ()
    """Keys at the top of its document or line, any of these sets of them."""


def read_lines(path: Path, options: LogOptions) -> Iterator[Sample]:
    """Yields each line of a file in the import format; of a Parquet, Arrow or CSV file each row."""
    if options.correct:
        raise ImportFileError(
            f'{path}: answer lines have "labels" and no scores, so there is none called {options.correct!r}'
        )
    rows = csv_lines(path, on_error=options.on_error, on_bytes=options.on_bytes) if is_csv(path) else None
    for number, record in rows if rows is not None else records_of(path, options):
        yield Sample(f"line {number}", record, number=number)


LINES = LogFormat("lines", "answer lines of the import format", read_lines)
FORMATS = (
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
"""The first whose keys are all there reads the file; what is none of the others are answer lines."""
NAMES = tuple(form.name for form in FORMATS)


def format_of(path: Path, name: str = "auto") -> LogFormat:
    """Returns the format of that name, or the one that the content tells. Raises `ImportFileError` for neither."""
    if name != "auto":
        for form in FORMATS:
            if form.name == name:
                return form
        raise ImportFileError(f"there is no format {name!r}; expected auto, {', '.join(NAMES)}")
    if path.is_dir():
        if (path / helm.STATE).is_file():
            return format_of(path, "helm")
        raise ImportFileError(f"{path} is a folder and no run of HELM; expected a file, or a folder with {helm.STATE}")
    keys = _keys(path)
    return next((form for form in FORMATS if any(wanted <= keys for wanted in form.keys)), LINES)


def _keys(path: Path) -> set[str]:
    """The keys at the top of the document, or of the first line or row; those of a header where it is an archive."""
    if is_csv(path):
        return set()  # no other format is a table of texts
    keys = first_keys(path)  # says what is wrong with a file that cannot be opened
    with path.open("rb") as file:
        packed = file.read(2) == b"PK"
    if packed:
        if not zipfile.is_zipfile(path):
            raise ImportFileError(f"{path} begins as a zip archive and is none; copy or make it again")
        return {"eval", "status"}  # no other format is an archive; its reader says what is missing
    if is_table(path):
        first = next(iter(records_of(path, LogOptions())), None)
        return set(first[1]) if first is not None else set()
    return {*keys, *(f"results.{key}" for key in first_keys(path, "results"))}
