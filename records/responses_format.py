"""Reads what OpenAI's Responses API gives, whole or as a list of its stream's events."""

from collections.abc import Iterable, Mapping
from typing import Any

from metaprobe.records.endings import STOP, TOOL_CALL, once, read_end, refuse_error
from metaprobe.records.errors import InvalidResponse, NoLogprobs
from metaprobe.records.openai_format import completion
from metaprobe.records.reading import as_list, each, fields, only_choice, read_temperature, text, usage
from metaprobe.records.response import ParsedResponse, parse_entries, settle
from metaprobe.records.segments import Ending

_ASK = 'request it with include=["message.output_text.logprobs"] (and top_logprobs=k for the alternatives)'
_WORDS = ("message", "reasoning")
CALLS = frozenset(
    "function_call custom_tool_call computer_call local_shell_call shell_call apply_patch_call"
    " mcp_approval_request".split()
)
"""Items that the caller is to carry out or to allow; the others are tools that the server uses by itself."""


def is_response(response: object) -> bool:
    """Whether this is a whole response."""
    return isinstance(response, Mapping) and (
        response.get("object") == "response" or ("output" in response and "choices" not in response)
    )


def is_event(part: object) -> bool:
    """Whether this is an event of a response's stream."""
    return isinstance(part, Mapping) and text(part.get("type")).startswith("response.")


def begins_call(event: Mapping[str, Any]) -> bool:
    """Whether this event is of a tool call, the caller's or the server's; an unknown kind of item counts as one."""
    item = fields(event.get("item"))
    return "_call" in text(event.get("type")) or (item is not None and item.get("type") not in _WORDS)


def read_response(response: Mapping[str, Any], choice: int, top: bool = True) -> ParsedResponse:
    """Reads a response: the text of all its messages, one after the other, as openai's `output_text`.

    Tool calls and refusals have no log-probabilities there and are passed over, and so has the reasoning at OpenAI;
    vLLM's cover the reasoning too, which is told apart. Raises `InvalidResponse` where nothing but these came. Where
    the caller is to carry out a call, the finish reason is `tool_calls`. The API does not say whether its
    log-probabilities are raw.
    """
    only_choice(choice, "a response of the Responses API")
    failed = {"error": response.get("error") or "failed"} if response.get("status") == "failed" else {}
    refuse_error({**response, **failed})
    parts, other = text_parts(response.get("output"))
    entries: list[Any] = []
    for part in parts:
        given = as_list(part.get("logprobs"))
        if not given and part.get("text"):
            raise NoLogprobs(f"the response holds text without log-probabilities; {_ASK}")
        entries.extend(given or ())
    if not entries:
        came = ", ".join(sorted(other)) or "no output"
        raise InvalidResponse(
            f"the response holds no text with log-probabilities (it came with {came}); expected a message of"
            f" output_text: leave refusals and tool calls out; otherwise {_ASK}"
        )
    counted, ended = fields(response.get("usage")) or {}, _ended(response)
    refused = "a part of the response is a refusal" if "refusal" in other else ""
    called = bool(CALLS & other)
    parsed = parse_entries(
        entries,
        "output_text.logprobs",
        top=top,
        text="".join(text(part.get("text")) for part in parts),
        finish_reason=("" if ended == "in_progress" else read_end(ended)) if not called else TOOL_CALL,
        model=once(text(response.get("model"))),
        usage=usage(counted.get("input_tokens"), counted.get("output_tokens")),
        temperature=read_temperature(response.get("temperature")),
        note=refused,
    )
    ending: Ending = "some" if parsed.finish_reason == STOP else ""
    drawn = parsed.usage.completion_tokens if not other else 0  # other items are counted too
    return parsed if called else settle(parsed, _thinking(response, counted), ending, entries, counted=drawn)


def response_as_completion(response: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the chat completion that says the same as a response, without log-probabilities."""
    parts, _ = text_parts(response.get("output"))
    counted = fields(response.get("usage")) or {}
    return completion(
        "".join(text(part.get("text")) for part in parts),
        None,
        model=response.get("model"),
        finish_reason=_ended(response),
        used=(counted.get("input_tokens"), counted.get("output_tokens"), None),
    )


def _ended(response: Mapping[str, Any]) -> str:
    """Returns the API's word for how a response ended; a message may say otherwise than a completed response."""
    reason = fields(response.get("incomplete_details")) or {}
    ended = text(reason.get("reason")) or text(response.get("status"))
    return (_state(response) or ended) if ended == "completed" else ended


def _state(response: Mapping[str, Any]) -> str:
    """The first state of a message that is not completed; empty where all are."""
    states = [text(item.get("status")) for item in each(response.get("output")) if item.get("type") == "message"]
    return next((state for state in states if state not in ("", "completed")), "")


def _thinking(response: Mapping[str, Any], counted: Mapping[str, Any]) -> str | None:
    """The text of the reasoning, empty where only a summary of it or its length is known, None where there was none."""
    items = [item for item in each(response.get("output")) if item.get("type") == "reasoning"]
    texts = [text(part.get("text")) for item in items for part in each(item.get("content"))]
    spent = (fields(counted.get("output_tokens_details")) or {}).get("reasoning_tokens")
    return "".join(texts) if items or (type(spent) is int and spent > 0) else None


def from_events(events: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The response that the events of its stream amount to, also where the stream was cut.

    Events may come in any order where all are numbered. The closing event holds the whole response and is believed;
    without it, the deltas are joined.
    """
    events = list(events)
    if all(type(event.get("sequence_number")) is int for event in events):
        events.sort(key=lambda event: event["sequence_number"])
    known: Mapping[str, Any] = {}
    joined: dict[tuple[int, int], dict[str, Any]] = {}
    for event in events:
        known = fields(event.get("response")) or known
        if event.get("type") in ("response.output_text.delta", "response.output_text.done"):
            at = event.get("output_index"), event.get("content_index")
            place = (at[0] if type(at[0]) is int else 0, at[1] if type(at[1]) is int else 0)
            part = joined.setdefault(place, {"type": "output_text", "text": "", "logprobs": []})
            part["text"] = text(event.get("text")) or part["text"] + text(event.get("delta"))
            if event["type"].endswith("done"):
                continue  # it gives all log-probabilities once more
            part["logprobs"].extend(as_list(event.get("logprobs")) or ())
    whole, _ = text_parts(known.get("output"))
    if any(part.get("logprobs") for part in whole) or not joined:
        return known
    parts = [joined[place] for place in sorted(joined)]
    if spoken := "".join(text(part.get("text")) for part in whole):  # the closing event has the text, and no numbers
        entries = [entry for part in parts for entry in part["logprobs"]]
        parts = [{"type": "output_text", "text": spoken, "logprobs": entries}]
    items = [item for item in each(known.get("output")) if item.get("type") != "message"]
    message = {"type": "message", "content": parts, "status": _state(known)}
    return {**known, "output": [*items, message]}


def text_parts(output: object) -> tuple[list[Mapping[str, Any]], set[str]]:
    """Returns (the parts that are text, the kinds of everything else)."""
    parts: list[Mapping[str, Any]] = []
    other: set[str] = set()
    for item in each(output):
        if item.get("type") != "message":
            other.add(text(item.get("type"))[:40] or "an item of no type")
            continue
        for part in each(item.get("content")):
            if part.get("type") == "output_text":
                parts.append(part)
            else:
                other.add(text(part.get("type"))[:40] or "a part of no type")
    return parts, other
