"""Reads the output lines of OpenAI's Batch API, and joins them by `custom_id` with the requests that they answer."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from metaprobe.records.errors import ImportFileError, name_value
from metaprobe.records.lines import json_object, opened, records_of
from metaprobe.records.logs.logged_answer import (
    LoggedAnswer,
    LogOptions,
    NoAnswer,
    mapping,
    read_record,
    short_name,
    text_or_empty,
)
from metaprobe.records.openai_format import CALLER_ITEMS, is_response, text_parts
from metaprobe.records.reading import TOOL_CALL, read_end

TOOL_CALL_REASON = "the answer is a tool call"


def read_openai_batch(path: Path, options: LogOptions) -> Iterator[LoggedAnswer]:
    """Yields each line of a batch's output. With `options.requests` its prompt is added, and repeats share a group."""
    if options.correct:
        raise ImportFileError(f"{path}: a batch has no scores, so there is none called {options.correct!r}")
    with TemporaryFile() as requests_file:
        requests = _Requests(options.requests, requests_file) if options.requests is not None else None
        for number, record in records_of(path, on_error=options.on_error, on_bytes=options.on_bytes):
            custom_id = record.get("custom_id")
            location = f"line {number} (custom_id {custom_id!r})" if isinstance(custom_id, str) else f"line {number}"
            yield from read_record(path, location, _logged_answers(location, number, record, requests), options, record)


class _Requests:
    """Requests of a batch, copied to a file and found by `custom_id`. Only their offsets are in memory."""

    def __init__(self, path: Path, copy_file: IO[bytes]) -> None:
        self._path, self._copy = path, copy_file
        self._offsets: dict[str, int] = {}
        offset = 0
        with opened(path) as file:
            for number, raw in enumerate(iter(file.readline, b""), 1):
                if raw.strip():
                    custom_id = json_object(raw).get("custom_id")
                    if not isinstance(custom_id, str) or custom_id in self._offsets:
                        raise ImportFileError(
                            f'{path}:{number}: "custom_id" is {name_value(custom_id)}; expected text, on each'
                            " line another"
                        )
                    self._offsets[custom_id] = offset
                copy_file.write(raw)
                offset += len(raw)

    def body(self, custom_id: str) -> Mapping[str, Any]:
        """Returns the request's body with that id. Raises `ImportFileError` if there is none."""
        if custom_id not in self._offsets:
            raise ImportFileError(
                f"no request in {self._path} has the custom_id {custom_id!r}; expected the batch's own"
            )
        self._copy.seek(self._offsets[custom_id])
        return mapping(json_object(self._copy.readline()).get("body"), '"body"')


def _logged_answers(
    location: str, number: int, record: Mapping[str, Any], requests: _Requests | None
) -> Iterator[LoggedAnswer]:
    """Yields the answers of a result line, one for each choice.

    Raises `NoAnswer` if the request failed, or if the answer is a tool call.
    """
    # Whether the request has an answer in words.
    custom_id = record.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise ImportFileError(f'"custom_id" is {name_value(custom_id)}; expected text')
    response = mapping(record.get("response"), '"response"')
    body = mapping(response.get("body"), '"body"')
    status = response.get("status_code", 200)
    if record.get("error") or body.get("error") or not response or status != 200:
        error = record.get("error") or body.get("error")
        message = text_or_empty(error.get("code")) if isinstance(error, Mapping) else text_or_empty(error)
        raise NoAnswer(f"the request failed ({message[:60] or f'status {status}'})")
    fields_of_line = {
        key: value for key, value in record.items() if key not in ("custom_id", "error")
    }  # labels, a group
    if is_response(body):
        parts, other_kinds = text_parts(body.get("output"))
        if CALLER_ITEMS & other_kinds:
            raise NoAnswer(TOOL_CALL_REASON)
        if not any(part.get("text") for part in parts):
            raise NoAnswer(f"the response holds no text (it holds {', '.join(sorted(other_kinds))[:60] or 'nothing'})")
    line: dict[str, Any] = {**fields_of_line, "id": custom_id, "response": body}
    # The request, if its file is given.
    if requests is not None:
        request = requests.body(custom_id)
        messages = request.get("messages") or request.get("input") or request.get("prompt")
        line["messages"] = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        line.setdefault("group", f"prompt-{short_name(json.dumps(messages, sort_keys=True))[-12:]}")
        limit = request.get("max_completion_tokens") or request.get("max_tokens") or request.get("max_output_tokens")
        sampling = {key: request.get(key) for key in ("temperature", "top_p", "seed")} | {"max_tokens": limit}
        line["sampling"] = {key: value for key, value in sampling.items() if value is not None} or None
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) < 2:
        yield _logged_answer(location, line, number)
        return
    # `usage` counts the tokens of all choices together.
    shared_fields = {key: value for key, value in body.items() if key != "usage"}
    for choice_number, choice in enumerate(choices, 1):
        own_id = custom_id if choice_number == 1 else f"{custom_id}-choice-{choice_number}"
        choice_line: dict[str, Any] = {
            "id": own_id,
            "group": line.get("group", custom_id),
            "response": {**shared_fields, "choices": [choice]},
        }
        if choice_number > 1:
            choice_line["labels"] = {}  # the line's labels are those of the first choice
        yield _logged_answer(location, line | choice_line, number)


def _logged_answer(location: str, line: dict[str, Any], number: int) -> LoggedAnswer:
    """Returns the line as a sample. A tool call is left out, because it is no answer in words.

    Args:
        location: where the line is in the file, for messages.
        line: the line.
        number: its number.
    """
    choices = line["response"].get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    message = choice.get("message")
    message_fields = message if isinstance(message, Mapping) else {}
    tool_calls = message_fields.get("tool_calls") or message_fields.get("function_call")
    if tool_calls or read_end(choice.get("finish_reason")) == TOOL_CALL:
        return LoggedAnswer(location, None, TOOL_CALL_REASON, number, line)
    label_names = ", ".join(sorted(map(str, mapping(line.get("labels"), '"labels"'))))
    return LoggedAnswer(
        location,
        line,
        number=number,
        label_source=f"labelled by the line ({label_names})" if label_names else "no label",
    )
