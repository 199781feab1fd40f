"""Reads logs of Inspect (`inspect_ai`): `.eval`, a zip archive, and `.json`.

A sample is one answer, the last one that the model gave in it (`output`). Answers of a sample's epochs share a group.

Inspect's own reader is not used, because a file from elsewhere may be damaged or malicious. Version 0.3.285 unpacks a
member of any size (600 kB took 3.7 GB), and compares no checksum, so a changed digit is read. It refuses logs that do
not list their samples, reopens the archive for each sample, and holds a whole `.json` in memory.
"""

import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from metaprobe.records.errors import ImportFileError, name_value, of_kind
from metaprobe.records.extras import require
from metaprobe.records.label_state import MAXIMIZE, LabelState, LabelWords
from metaprobe.records.lines import hand_over, is_damage
from metaprobe.records.logs.logged_answer import (
    LoggedAnswer,
    LogOptions,
    NoAnswer,
    answer_tokens,
    elements,
    finite_number,
    labels_from,
    mapping,
    read_record,
    sequence,
    text_or_empty,
)
from metaprobe.records.openai_format import completion

MAX_MEMBER = 256 << 20
"""Most bytes of one sample, unpacked."""
_GRADES = {"C": 1.0, "P": 0.5, "N": 0.0, "I": 0.0}
"""Maps the grades of Inspect's scorers (correct, partial, no answer, incorrect) to scores."""
_JUDGED = ("", "invalid_response_format", "refusal", "no_response")
"""Values of a score's `reason` with which the answer was judged. With other values the scorer or its grader failed."""
_UNGRADED = re.compile(r"\s*(no )?grade (was )?(not )?found\b", re.I)
"""Matches the beginning of an explanation that says no grade was found. Older versions of Inspect then
write incorrect.
"""
_GRADED = re.compile(r"grade\W{1,9}(c|p|i|n|(in)?correct|partial)\b", re.I)
"""Matches the grade in a grader's text, in the form that Inspect's own instructions ask for."""
_GRADERS = ("model_graded_qa", "model_graded_fact")
_FINISH_REASONS = {"max_tokens": "length", "model_length": "length", "unknown": ""}
_ZSTANDARD = 93
_ATTACHMENT = "attachment://"


def read_inspect(path: Path, options: LogOptions) -> Iterator[LoggedAnswer]:
    """Yields each sample of a log."""
    read_format = _from_archive if zipfile.is_zipfile(path) else _from_document
    quiet_options = replace(options, on_bytes=None, on_error=lambda error: None)
    header: Mapping[str, Any] | None = None
    for header_fields, sample in read_format(path, options):
        if (
            header is None
            and header_fields.get("invalidated")
            and not any(_is_invalid(inner_sample) for _, inner_sample in read_format(path, quiet_options))
        ):
            raise ImportFileError(
                f"{path}: the log says that samples of it were invalidated, and marks none of them; expected"
                " `invalidation` in each such sample: write the log again with inspect_ai's invalidate_samples, or take"
                " the mark off with uninvalidate_samples"
            )
        header = header_fields
        location = f"sample {sample.get('id')!r}, epoch {sample.get('epoch')}"
        yield from read_record(
            path, location, _logged_answers(location, header, sample, options), options, dict(sample)
        )
    if header is None:
        raise ImportFileError(f"{path}: {_no_samples_message({})}")


def _no_samples_message(header_fields: Mapping[str, Any]) -> str:
    """Returns what is wrong with a log that holds no samples; `header_fields` holds the known fields of the log."""
    status = text_or_empty(header_fields.get("status"))
    return (
        f"the log of Inspect holds no samples{f' (its status is {status!r})' if status else ''}; expected samples with"
        " their outputs: a header that was read alone (header_only), or a run with --no-log-samples, keeps none, so"
        " import the whole log, or run it again with --log-samples"
    )


def _is_invalid(sample: Mapping[str, Any]) -> bool:
    """Whether the sample is marked as invalid."""
    return sample.get("invalidation") is not None or bool(sample.get("invalidated"))


def _from_document(path: Path, options: LogOptions) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for before, sample in elements(path, "samples", on_bytes=options.on_bytes, missing_message=_no_samples_message):
        if "eval" not in before:
            raise ImportFileError(f"{path}: the samples stand before 'eval'; expected a log as Inspect writes it")
        try:
            yield before, mapping(sample, "a sample")
        except ImportFileError as problem:
            error = of_kind(f"{path}: {problem}", "a sample that is no object")
            error.source = sample
            hand_over(error, options.on_error, problem)


_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, struct.error, NotImplementedError)
"""Errors that Python raises for a damaged or truncated archive or member."""


def _from_archive(path: Path, options: LogOptions) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yields the header with each sample of a log. A damaged sample is handed over and skipped."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            # A log that is being written, or whose run was killed, has only the beginning of its journal.
            start = "header.json" if "header.json" in names else "_journal/start.json"
            if start not in names:
                raise ImportFileError(f"{path} holds neither header.json nor a journal; expected a log of Inspect")
            header = mapping(_member(path, archive, start), start)
            for name in names:
                if name.startswith("samples/") and name.endswith(".json"):
                    try:
                        sample = mapping(_member(path, archive, name), name)
                    except (ImportFileError, *_DAMAGE) as problem:
                        message = str(problem) if isinstance(problem, ImportFileError) else f"{path}: {name}: {problem}"
                        hand_over(of_kind(message, "a sample that is damaged"), options.on_error, problem)
                        continue
                    yield header, sample
                    if options.on_bytes is not None:
                        options.on_bytes(archive.getinfo(name).header_offset)
    except _DAMAGE as error:
        raise ImportFileError(
            f"{path}: the archive is damaged or cut off ({type(error).__name__}: {error}); copy or make it again"
        ) from error


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> object:
    """Returns the JSON of a member of the archive, after a check of its length and checksum."""
    info = archive.getinfo(name)
    try:
        if info.compress_type == _ZSTANDARD:
            data = _zstandard_member(path, info)
        else:
            with archive.open(info) as file:
                data = file.read(MAX_MEMBER + 1)
        if len(data) > MAX_MEMBER:
            raise ImportFileError(f"{path}: {name} is longer than {MAX_MEMBER} bytes; expected one sample")
        if zlib.crc32(data) != info.CRC:
            raise ImportFileError(f"{path}: {name} is damaged (its checksum is another); copy or make the log again")
        return json.loads(data)
    except (ValueError, RecursionError, RuntimeError) as error:
        if isinstance(error, ImportFileError):
            raise
        raise ImportFileError(f"{path}: {name} cannot be read: {error}; copy or make the log again") from error


def _zstandard_member(path: Path, info: zipfile.ZipInfo) -> bytes:
    """Returns the bytes of a member that is compressed with Zstandard, which Inspect writes by default.

    Python's zipfile reads Zstandard only from version 3.14 on.
    """
    zstandard = require("zstandard", "fit")
    with path.open("rb") as file:
        file.seek(info.header_offset)
        local_header = file.read(30)
        if len(local_header) < 30 or not local_header.startswith(b"PK\x03\x04"):
            raise ImportFileError(f"{path}: {info.filename} is not where the archive says; copy or make the log again")
        name_length, extra_length = struct.unpack("<HH", local_header[26:30])
        file.seek(name_length + extra_length, 1)
        packed = file.read(info.compress_size)
    try:
        with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as stream:
            return bytes(stream.read(MAX_MEMBER + 1))
    except Exception as error:
        if not is_damage(error):
            raise
        raise ImportFileError(f"{path}: {info.filename} is damaged ({error}); copy or make the log again") from error


def _logged_answers(
    location: str, header: Mapping[str, Any], sample: Mapping[str, Any], options: LogOptions
) -> Iterator[LoggedAnswer]:
    """Yields the answer of a sample, and each further choice as one without a score.

    Raises `NoAnswer` if the sample has no answer.
    """
    if sample.get("error"):
        message = mapping(sample.get("error"), "error").get("message")
        raise NoAnswer(f"the sample ended in an error ({text_or_empty(message).partition('(')[0][:60]})")
    if _is_invalid(sample):
        invalidation = sample.get("invalidation")
        reason = text_or_empty(invalidation.get("reason"))[:60] if isinstance(invalidation, Mapping) else ""
        raise NoAnswer(f"the sample was invalidated{f' ({reason})' if reason else ''}")
    identity = sample.get("id")
    if not isinstance(identity, (str, int)) or isinstance(identity, bool):
        raise ImportFileError(f"the sample's id is {name_value(identity)}; expected text or a whole number")
    attached = mapping(sample.get("attachments"), "attachments")
    spec, plan = mapping(header.get("eval"), "eval"), mapping(header.get("plan"), "plan")
    limit = text_or_empty(mapping(sample.get("limit"), "limit").get("type"))
    output = mapping(sample.get("output"), "output")
    response = response_of(output, limit, attached)
    if output.get("error"):
        raise NoAnswer(
            f"the model's output ended in an error ({text_or_empty(output.get('error')).partition('(')[0][:60]})"
        )
    labels, label_source = _labels(sample, options.correct)
    line = {
        "id": f"{identity}-epoch-{sample.get('epoch', 1)}",
        "question_id": str(identity),
        "run_id": text_or_empty(spec.get("eval_id")) or text_or_empty(spec.get("run_id")),
        "task": text_or_empty(spec.get("task")),
        "model": text_or_empty(output.get("model")) or text_or_empty(spec.get("model")),
        "messages": _prompt(sample, attached),
        "sampling": _sampling(spec, plan),
        "labels": labels,
        "response": response,
    }
    yield LoggedAnswer(location, line, label_source=label_source)
    for _ in sequence(output.get("choices"), "output.choices")[1:]:
        yield LoggedAnswer(location, None, "a further choice, which has no score", source=dict(sample))


def response_of(
    output: Mapping[str, Any], limit: str = "", attached: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns a `ModelOutput`, given as a mapping, as a chat completion. Raises `NoAnswer` if the output is no answer.

    Args:
        output: the `ModelOutput`.
        limit: kind of the limit that ended the sample.
        attached: the sample's attachments by id.
    """
    choices = sequence(output.get("choices"), "output.choices")
    if not choices:
        raise NoAnswer(f"the sample has no answer (limit: {limit})" if limit else "the sample has no answer")
    choice = mapping(choices[0], "output.choices[0]")
    message = mapping(choice.get("message"), "the answer's message")
    if message.get("tool_calls"):
        raise NoAnswer("the answer is a tool call")
    text = _message_text(message.get("content"), attached or {})
    reason = text_or_empty(choice.get("stop_reason"))
    usage = mapping(output.get("usage"), "usage")
    parts = _parts(message.get("content"))
    shown_reasoning = [part for part in parts if part.get("type") == "reasoning" and not part.get("redacted")]
    reasoning = "\n".join(text_or_empty(part.get("reasoning")) for part in shown_reasoning)
    entries = sequence(mapping(choice.get("logprobs"), "logprobs").get("content"), "logprobs.content")
    tokens = [text_or_empty(mapping(entry, "an entry of logprobs.content").get("token")) for entry in entries]
    return completion(
        text,
        {"content": list(entries[: answer_tokens(tokens, text, reasoning)])} if entries else None,
        model=output.get("model"),
        finish_reason="length"
        if limit == "token"
        else f"{limit}_limit"
        if limit
        else _FINISH_REASONS.get(reason, reason),
        thinking=reasoning,
        token_counts=(usage.get("input_tokens"), usage.get("output_tokens"), None),
    )


def _labels(sample: Mapping[str, Any], correct: str) -> tuple[dict[str, float], str]:
    """Returns (labels, source of `correct`). A label has the scorer's name, and the score's name if there are several.

    The first score that is a grade gives `correct`. If its scorer failed, there is no `correct`. A score whose scorer
    failed gives no label.
    """
    scores: dict[str, float] = {}
    failed: dict[str, str] = {}
    score_for_correct = None
    for scorer, score in mapping(sample.get("scores"), "scores").items():
        score_fields = mapping(score, f"the score {scorer!r}")
        value = score_fields.get("value")
        has_several = isinstance(value, Mapping)
        for name, single_value in value.items() if isinstance(value, Mapping) else [(scorer, value)]:
            number = _GRADES.get(single_value) if isinstance(single_value, str) else finite_number(single_value)
            if number is None:
                continue  # a text, or a sample that was not scored
            key = f"{scorer}/{name}" if has_several else str(scorer)
            scores[key] = number
            if reason := _why_unscored(str(scorer), score_fields):
                failed[key] = reason
            if score_for_correct is None and not has_several and isinstance(single_value, bool | str):
                # One of Inspect's grades says right or wrong, and so does a yes under a name for what is good.
                is_good_if_true = LabelWords(str(scorer)).direction == MAXIMIZE
                score_for_correct = (
                    key
                    if (is_good_if_true if isinstance(single_value, bool) else not LabelWords(str(scorer)).may_be_bad)
                    else None
                )
    sound_scores = {name: value for name, value in scores.items() if name not in failed}
    score_name = correct or score_for_correct
    if score_name in failed:
        return labels_from(sound_scores, None)[0], f"no label: {score_name}, {failed[score_name]}"
    return labels_from(sound_scores, score_for_correct, correct)


def _why_unscored(scorer: str, score: Mapping[str, Any]) -> str:
    """Returns why a score judges nothing, whatever its value; empty if it may judge the answer."""
    metadata = score.get("metadata")
    inner = {key: value for key, value in metadata.items() if key != "grading"} if isinstance(metadata, Mapping) else {}
    reason, explanation = text_or_empty(score.get("reason")), text_or_empty(score.get("explanation"))
    if reason not in _JUDGED:
        return f"its scorer failed ({reason[:40]})"
    state_fields = {key: value for key, value in score.items() if key not in ("value", "reason", "metadata", "history")}
    if fault := LabelState(state_fields, inner).why_not:
        return f"its scorer failed ({fault})"
    if _UNGRADED.match(explanation) or (scorer in _GRADERS and explanation and not _GRADED.search(explanation)):
        return "its grader gave no grade"
    return ""


def _prompt(sample: Mapping[str, Any], attached: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns the messages before the last answer."""
    messages = sequence(sample.get("messages"), "messages")
    message_list = [mapping(message, "a message") for message in messages]
    ends_with_answer = bool(message_list) and message_list[-1].get("role") == "assistant"
    return [
        {
            "role": text_or_empty(message.get("role")) or "user",
            "content": _message_text(message.get("content"), attached),
        }
        for message in message_list[: len(message_list) - ends_with_answer]
    ]


def _message_text(content: object, attached: Mapping[str, Any]) -> str:
    """Returns the text of a message, without its reasoning. Long parts may be stored in the sample's attachments."""
    if isinstance(content, str):
        if content.startswith(_ATTACHMENT):
            return text_or_empty(attached.get(content.removeprefix(_ATTACHMENT), content))
        return content
    return "\n".join(
        _message_text(part.get("text"), attached) for part in _parts(content) if part.get("type") == "text"
    )


def _parts(content: object) -> list[Mapping[str, Any]]:
    """Returns the parts of a message's content; none if the content is a string."""
    parts = () if isinstance(content, str) else sequence(content, "a message's content")
    return [mapping(part, "a part of a message") for part in parts]


def _sampling(spec: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the sampling settings that were set. Settings of the task's plan override those of the model."""
    configs = [mapping(config, "a config") for config in (spec.get("model_generate_config"), plan.get("config"))]
    keys = ("temperature", "top_p", "seed", "max_tokens")
    settings = {key: config[key] for config in configs for key in keys if config.get(key) is not None}
    return settings or None
