"""Recorded OpenAI-format responses, one JSON object a line, as runs; and samples of other programs' logs.

    {"id", "group", "messages", "response": <chat completion with logprobs>, "labels": {"correct": 0|1, ...},
     "verbalized_confidence": 0..1 or null, "model", "task", "stage", "agent", "run_id", "sampling", "logprobs_mode"}

`correct` may also stand at the top. Only `response` is required; an answer without log-probabilities needs a
`verbalized_confidence`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from metaprobe.records.errors import ImportFileError, InvalidResponse, NoLogprobs
from metaprobe.records.json_lines import OnError, at_line
from metaprobe.records.label_state import why_not_right
from metaprobe.records.line_fields import (
    labels_of,
    messages_of,
    mode_of,
    sampling_of,
    segments_of,
    statements_of,
    string,
    with_labels,
)
from metaprobe.records.logs.detect import LINES, LogFormat
from metaprobe.records.logs.sample import NO_LOGPROBS, LogOptions, Sample, without_zeros
from metaprobe.records.native_formats import as_completion, is_native, is_ollama_chunk
from metaprobe.records.parse import from_json, parse_response, parse_text
from metaprobe.records.response import ParsedResponse, ParsedText
from metaprobe.records.segments import spoken_text
from metaprobe.records.types import Call, Item, Run

LOWEST = -9999.0
"""What OpenAI and vLLM write for a token that is not among the likeliest. No model says less of a token that it drew;
what is lower is a mask, as -1e9, -1e30 or the lowest float32."""

NOT_STATED = ", and the answer states no confidence that can be read"

KEYS = (
    "id",
    "group",
    "run_id",
    "model",
    "task",
    "stage",
    "agent",
    "logprobs_mode",
    "messages",
    "response",
    "labels",
    "verbalized_confidence",
    "sampling",
    "segments",
)


def read_openai_lines(path: str | Path, *, on_error: OnError | None = None) -> Iterator[Run]:
    """One run with one call for each line. A bad line raises `ImportFileError`, or goes to `on_error` if given.

    The run's id is the line's `id`, after `run_id` and a slash where that is given, so that two collections over the
    same questions can share a store; the call has the same id. A line without an id is called FILE-line-N, N counting
    every line of the file from 1.
    """
    return (line.run for line in read_log(Path(path), LINES, LogOptions(on_error=on_error)))


@dataclass(frozen=True, slots=True)
class Line:
    """A line that was read, with its number."""

    number: int
    record: dict[str, Any]
    run: Run
    place: str = ""
    """Where it stands in a log that has no lines."""
    taken: str = ""
    """What the reader took for `correct`, as `Sample.taken`."""

    def error(self, path: Path, what: str) -> ImportFileError:
        """Returns an error about it."""
        return _at(path, Sample(self.place, self.record, number=None if self.place else self.number), what)

    def without_answer(self) -> "Line":
        """The same without what takes room: thousands of lines are held until they are compared with the store."""
        # Of an answer without log-probabilities the text is all that it can be known again by.
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
    on_left_out: Callable[[Sample, str], object] = lambda sample, reason: None,
) -> Iterator[Line]:
    """Yields each answer of a log as a line; what is no answer, or has no log-probabilities, goes to `on_left_out`.

    `stated` reads a confidence out of the text of an answer without log-probabilities, which is then taken for it;
    with `options.plain` it is taken in any case. What is wrong with an answer goes to `options.on_error`, or is raised.
    """
    name = path.name
    for suffix in (".gz", ".zst", ".jsonl"):
        name = name.removesuffix(suffix)
    places: dict[str, str] = {}
    for count, found in enumerate(form.read(path, options), 1):
        # Lines in our own format say what their writer means.
        sample = found if form.name == LINES.name else without_zeros(found)
        if sample.line is None:
            on_left_out(sample, sample.left_out)
            continue
        number = sample.number or count
        try:
            record, taken = with_labels(sample.line), sample.taken
            if form.name == LINES.name and (why := _why_not(record)):
                labels = {name: value for name, value in record["labels"].items() if name != "correct"}
                record, taken = {**record, "labels": labels}, f"no label: {why}"
            run = _run_of_sample(replace(sample, line=record), f"{name}-line-{number}", stated, plain=options.plain)
            _check_lowest(run)
            if run.id in places:
                raise ImportFileError(
                    f"id {run.id!r} was already used on {places[run.id]}; expected every line to have its own:"
                    ' lines about one question share a "group", repeated collections differ in "run_id"'
                )
        except NoLogprobs as problem:
            if form.name == LINES.name and stated is None:
                _hand(_at(path, sample, str(problem)), options, problem)
            else:
                on_left_out(sample, (sample.left_out or NO_LOGPROBS) + (NOT_STATED if stated is not None else ""))
        except (ImportFileError, InvalidResponse) as problem:
            _hand(_at(path, sample, str(problem)), options, problem)
        else:
            places[run.id] = sample.place
            yield Line(number, record, run, "" if sample.number else sample.place, taken)


def _why_not(record: Mapping[str, Any]) -> str:
    """Why a line's label `correct` does not count, by the other fields of the line; empty where it does."""
    labels = record.get("labels")
    if not isinstance(labels, dict) or labels.get("correct") is None:
        return ""
    return why_not_right({key: value for key, value in record.items() if key not in KEYS})


def _run_of_sample(
    sample: Sample, default_id: str, stated: Callable[[str], float | None] | None, *, plain: bool
) -> Run:
    line = sample.line or {}
    try:
        return run_of_line(line, default_id)
    except NoLogprobs:
        value = stated(parse_text(_told(line["response"])).text) if stated is not None else None
        if value is not None:
            line = {**line, "verbalized_confidence": value}
        elif not plain:
            raise
        return run_of_line(line, default_id, plain=plain)


def _at(path: Path, sample: Sample, what: str) -> ImportFileError:
    source = sample.line if sample.source is None else sample.source
    if sample.number is not None:
        return at_line(path, sample.number, what, source)
    error = ImportFileError(f"{path}: {sample.place}: {what}")
    error.source = source
    return error


def _hand(error: ImportFileError, options: LogOptions, problem: Exception) -> None:
    if options.on_error is None:
        raise error from problem
    options.on_error(error)


def _check_lowest(run: Run) -> None:
    """A scored answer may hold such a number; fits on a few of them would learn nothing else."""
    logprobs = run.calls[0].logprobs
    if logprobs is not None and logprobs.min() < LOWEST:
        token = int(logprobs.argmin())
        raise ImportFileError(
            f"the log-probability of token {token} (of {logprobs.size}) is {logprobs[token]:g}; expected at least"
            f" {LOWEST:g}: what is lower stands for minus infinity, a token that the sampler ruled out, so ask the"
            " server for raw log-probabilities (before temperature, top-k and top-p), or leave this line out"
        )


def run_of_line(record: dict[str, Any], default_id: str, *, plain: bool = False) -> Run:
    """The run that one line tells of. A bare completion or response, or a line of Batch output, will do as well.

    With `plain` it may be one without log-probabilities, which has its text and labels and no numbers.
    Raises `ImportFileError` or `InvalidResponse` without file and line, which only the caller knows.
    """
    record = with_labels(_checked(record))
    response = _answer(record, plain=plain)
    line_id, run_id, id = _ids(record, default_id)
    messages = messages_of(record.get("messages"))
    sampling = sampling_of(record.get("sampling"))
    measured: dict[str, Any] = {}
    if isinstance(response, ParsedResponse):
        measured = {name: getattr(response, name) for name in ("tokens", "logprobs", "top_logprobs", "segments")}
        measured |= segments_of(record, len(response.logprobs))
        if response.temperature is not None and not record.get("sampling"):
            sampling = replace(sampling, temperature=response.temperature)
    labels = labels_of(record.get("labels"), id)
    return Run(
        id=id,
        system="import",
        variant=run_id,
        item=Item(
            id=line_id,
            question=next((message.content for message in reversed(messages) if message.role == "user"), ""),
            group=string(record, "group", number=True) or line_id,
            task=string(record, "task"),
        ),
        calls=(
            Call(
                id=id,
                stage=string(record, "stage"),
                agent=string(record, "agent"),
                model=string(record, "model") or response.model,
                messages=messages,
                text=response.text,
                sampling=sampling,
                logprobs_mode=mode_of(record.get("logprobs_mode"), getattr(response, "logprobs_mode", "unknown")),
                finish_reason=response.finish_reason,
                usage=response.usage,
                note=_note_of(response),
                **measured,
            ),
        ),
        statements=statements_of(record, id),
        labels=labels,
        final_answer=spoken_text(response.text),
        outcome=next((label.value for label in labels if label.name == "correct"), None),
    )


def _checked(record: dict[str, Any]) -> dict[str, Any]:
    """The line with its answer under `response`, however it came."""
    if is_ollama_chunk(record) or ("response" not in record and is_native(record)):
        own = {key: record[key] for key in (*KEYS, "correct") if key in record and key not in ("model", "response")}
        record = {**own, "response": record}
    if "response" not in record and ("choices" in record or record.get("object") == "response"):
        record = {**{key: value for key, value in record.items() if key != "model"}, "response": record}
    batch = record.get("response")
    if isinstance(batch, dict) and isinstance(batch.get("body"), dict):
        # A line of OpenAI's Batch output: the completion is the body, and `custom_id` is the user's own id.
        record = {**record, "id": record.get("custom_id", record.get("id")), "response": batch["body"]}
    for key in sorted(record.keys() - set(KEYS)):
        # A misspelt key would lose its data without a word; other keys are the user's own and are left alone.
        if near := get_close_matches(key, KEYS, 1, cutoff=0.85):
            raise ImportFileError(f"unknown key {key!r}; did you mean {near[0]!r}? rename it, or remove it")
    if record.get("response") is None:
        raise ImportFileError(
            f'"response" is missing (the keys are {sorted(record)}); expected a chat completion with log-probabilities'
        )
    return record


def _of_batch(record: dict[str, Any]) -> bool:
    """Whether it is a line of OpenAI's Batch output, also of a request that failed."""
    held = record.get("response")
    if isinstance(held, dict):
        return isinstance(held.get("body"), dict)
    return held is None and "custom_id" in record


def _answer(record: dict[str, Any], *, plain: bool) -> ParsedResponse | ParsedText:
    """What the line's response says; without log-probabilities only where it may be, or has a stated confidence."""
    try:
        return parse_response(record["response"])
    except NoLogprobs as error:
        if record.get("verbalized_confidence") is None and not plain:
            raise NoLogprobs(
                f'{error}. With a "verbalized_confidence" the line is taken as it is, for that confidence alone; with'
                " --plain, for another model to read (metaprobe extract --logprobs MODEL)"
            ) from error
        return parse_text(_told(record["response"]))


def _told(response: Any) -> Any:
    """The response as OpenAI's API would say it, for its text alone."""
    if isinstance(response, (str, bytes)):
        response = from_json(response)
    return as_completion(response) if isinstance(response, Mapping) else response


def _note_of(response: ParsedResponse | ParsedText) -> str:
    """What a verdict on the answer must mention; empty for nothing."""
    if isinstance(response, ParsedText):
        return ""
    return "; ".join(filter(None, (response.note, response.top_fault)))


def id_of_line(record: dict[str, Any], default_id: str) -> str:
    """The id that the run of this line has, or would have if the line were right."""
    try:
        return _ids(record, default_id)[2]
    except ImportFileError:
        return default_id


def _ids(record: dict[str, Any], default_id: str) -> tuple[str, str, str]:
    """(the line's id, its run_id, both together). In Batch output the user's own id is `custom_id`."""
    own = "custom_id" if isinstance(record.get("custom_id"), str) and _of_batch(record) else "id"
    line_id = string(record, own, number=True) or default_id
    run_id = string(record, "run_id", number=True)
    return line_id, run_id, f"{run_id}/{line_id}" if run_id else line_id
