"""Reads the short line: the text of an answer with its log-probabilities beside it, in place of a whole response.

    {"question": "...", "answer": "...", "logprobs": [...], "tokens": [...], "finish_reason": "stop"}

`logprobs` is a list of numbers, with `tokens` as a list of strings beside it, or a list of {token, logprob,
top_logprobs}. Only `answer` is required. Files of lines and `parse_response` both accept the short line.
"""

from collections.abc import Mapping
from typing import Any

from metaprobe.records.errors import ImportFileError, name_value

FINISH_REASON = "finish_reason"
"""Key that says how the answer ended."""
FIELDS_BESIDE_TEXT = ("logprobs", "tokens", FINISH_REASON)
"""Fields beside the text of an answer from which the response is made."""


def is_short(response: object) -> bool:
    """Returns whether a record is a short line (a text under `answer`), or a line whose `response` is an object."""
    if not isinstance(response, Mapping) or "choices" in response:
        return False
    return isinstance(response.get("response"), Mapping) or (
        "response" not in response and isinstance(response.get("answer"), str)
    )


def response_of_short_line(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the response of a line that `is_short` accepts. For Batch output it is the body."""
    response = line.get("response")
    if not isinstance(response, Mapping):
        return completion_of(line["answer"], line)
    return response["body"] if isinstance(response.get("body"), Mapping) else response


def completion_of(text: str, line_fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the chat completion of a text, with the fields named in `FIELDS_BESIDE_TEXT`.

    Raises `ImportFileError` if the log-probabilities are no list.
    """
    choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}, "logprobs": None}
    logprobs, tokens, finish_reason = (line_fields.get(name) for name in FIELDS_BESIDE_TEXT)
    if finish_reason is not None:
        choice[FINISH_REASON] = finish_reason
    if logprobs is not None:
        if not isinstance(logprobs, list):
            raise ImportFileError(f'"logprobs" is {name_value(logprobs)}; expected a JSON list, an entry a token')
        if logprobs and isinstance(logprobs[0], dict):
            choice["logprobs"] = {"content": logprobs}
        else:
            choice["logprobs"] = {"token_logprobs": logprobs} | ({} if tokens is None else {"tokens": tokens})
    return {"object": "chat.completion", "choices": [choice]}
