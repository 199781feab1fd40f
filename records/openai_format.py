"""Reads OpenAI's formats from any server: chat and text completions, and responses of the Responses API.

Responses that hold no answer are recognised. A response of the Responses API may be whole, or a list of its stream's
events.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from metaprobe.records.errors import InvalidResponse, NoLogprobs
from metaprobe.records.reading import (
    REFUSAL,
    STOP,
    TOOL_CALL,
    as_list,
    each,
    end_of,
    error_message,
    fields,
    once,
    only_choice,
    read_end,
    read_temperature,
    refuse_error,
    some_keys,
    text,
    usage,
)
from metaprobe.records.response import (
    LOGPROBS_HINT,
    ParsedResponse,
    ParsedText,
    check_logprobs,
    check_text,
    first_of,
    parse_entries,
    settle,
    with_alternatives,
)
from metaprobe.records.segments import Ending, ending_of
from metaprobe.records.spelling import spelled
from metaprobe.records.types import Segment, Usage

BROKEN_ENDS = frozenset(
    "error abort aborted cancelled canceled failed failure timeout insufficient_system_resource".split()
)
"""Finish reasons of answers that the server did not finish for reasons of its own."""


def failure_of(response: object) -> str:
    """Returns why a chat completion holds nothing to keep; empty if it holds an answer.

    An answer is a text that is not blank, a tool call, a refusal, or sound. Never raises.
    """
    completion_fields = fields(response)
    if completion_fields is None:
        return f"a {type(response).__name__} came; expected a chat completion"
    if completion_fields.get("error"):
        return error_message(completion_fields) or "the response is an error without a message"
    choices = as_list(completion_fields.get("choices")) or ()
    choice = fields(choices[0]) if choices else None
    if choice is None:
        return error_message(completion_fields) or "the response holds no choice"
    if choice.get("error"):
        return error_message(choice) or "the choice is an error without a message"
    end = text(choice.get("finish_reason"))
    if end.lower() in BROKEN_ENDS:
        return f"the answer ended with finish_reason {end!r}"
    message = fields(choice.get("message")) or {}
    other_answers = [message.get(name) for name in ("tool_calls", "function_call", "refusal", "audio")]
    if any(other_answers) or _has_text(message.get("content")):
        return ""
    return "the answer is empty" + (f" (finish_reason {end!r})" if end else "")


def _has_text(content: object) -> bool:
    """Whether a message's content, a string or a list of parts, holds more than blanks."""
    if isinstance(content, str):
        return not content.isspace() and content != ""
    for part in as_list(content) or ():
        part_fields = fields(part) or {}
        if (
            part_fields.get("type", "text") != "text"
            or text(part_fields.get("text")).strip()
            or (isinstance(part, str) and part)
        ):
            return True
    return False


CALLED = (
    "the answer is a tool call, and how sure the model is of a call is not whether it is right; expected an answer in"
    " words: leave tool calls out"
)


_TOOL_CALL_STARTS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<function=", "<|tool_call")
"""Beginnings of tool calls that a server without a parser for them returns as text."""


_COMPLETE_STATES = frozenset(("", "completed", "complete", "success", "succeeded", "ok", "done"))
"""States of a whole answer, if a server names a state beside the choices."""


def content_text(content: object) -> str:
    """Returns the text of a message's `content`: a string, a list of parts (only text parts count), or None."""
    if isinstance(content, str):
        return content
    return "".join(text((fields(part) or {}).get("text")) for part in as_list(content) or ())


def read_completion(response: Mapping[str, Any], choice: int, top: bool = True) -> ParsedResponse:
    """Reads a chat or text completion, in either format of log-probabilities.

    Args:
        response: the completion.
        choice: number of the answer, if there are several.
        top: whether alternatives are read.
    """
    answer, choice_fields = read_text_and_choice(response, choice)
    sent_logprobs = fields(choice_fields.get("logprobs")) or {}
    common_fields: dict[str, Any] = {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "model": answer.model,
        "usage": answer.usage,
        "note": first_of(len(response["choices"]), choice),
    }
    if thinking_entries := as_list(sent_logprobs.get("reasoning_content")):
        # DeepSeek gives the thinking's log-probabilities under a key of their own.
        all_entries = [*thinking_entries, *(as_list(sent_logprobs.get("content")) or ())]
        parsed = parse_entries(all_entries, f"choices[{choice}].logprobs", top=top, **common_fields)
        segments = (
            Segment("thinking", 0, len(thinking_entries)),
            Segment("answer", len(thinking_entries), len(all_entries)),
        )
        return check_text(
            replace(parsed, segments=segments[: 1 + (len(all_entries) > len(thinking_entries))]), all_entries
        )
    # The tokens of a refusal stand under a key of their own.
    entries = sent_logprobs.get("content") if sent_logprobs.get("content") is not None else sent_logprobs.get("refusal")
    has_none = answer.finish_reason in (TOOL_CALL, REFUSAL)
    if answer.finish_reason == TOOL_CALL and not entries and not sent_logprobs.get("token_logprobs"):
        raise InvalidResponse(CALLED)  # OpenAI never gives log-probabilities of a tool call
    # The usage counts all choices together.
    is_only_choice = len(response["choices"]) == 1 and response.get("n", 1) == 1
    counted = len(as_list(choice_fields.get("token_ids")) or ()) or (
        answer.usage.completion_tokens if is_only_choice else 0
    )
    if entries is not None:
        parsed = parse_entries(entries, f"choices[{choice}].logprobs.content", top=top, **common_fields)
        if has_none:
            return parsed
        return settle(parsed, answer.thinking, answer.ending, as_list(entries) or (), counted=counted)
    if sent_logprobs.get("token_logprobs") is None:
        raise NoLogprobs(
            f"the response holds no log-probabilities (choices[{choice}].logprobs.content is missing); {LOGPROBS_HINT}"
        )
    tokens, logprobs, rows = _read_columns(sent_logprobs, answer.usage)
    if (
        len(logprobs) < len(sent_logprobs["token_logprobs"])
        and spelled(list(map(text, sent_logprobs["tokens"] or ())), answer.text).all
    ):
        common_fields["text"] = "".join(tokens)  # the prompt was echoed
    parsed = with_alternatives(ParsedResponse(tokens=tokens, logprobs=check_logprobs(logprobs), **common_fields), rows)
    parsed = parsed if top else replace(parsed, top_logprobs=None)
    return parsed if has_none else settle(parsed, answer.thinking, answer.ending, counted=counted)


def read_ending(finish_reason: object, spoken: str, message: Mapping[str, Any], logprobs: Mapping[str, Any]) -> str:
    """Returns how the answer ended: `TOOL_CALL` if it calls a tool, `REFUSAL` if it only says why there is no answer.

    Args:
        finish_reason: the server's word for the end.
        spoken: text of the answer.
        message: may hold `refusal`, `tool_calls` and `function_call`.
        logprobs: log-probabilities; those of a refusal have a key of their own.
    """
    if message.get("tool_calls") or message.get("function_call") or read_end(finish_reason) == TOOL_CALL:
        return TOOL_CALL
    if spoken.lstrip().startswith(_TOOL_CALL_STARTS):
        return TOOL_CALL
    has_refusal_logprobs = logprobs.get("content") is None and bool(logprobs.get("refusal"))
    return REFUSAL if has_refusal_logprobs or (text(message.get("refusal")) and not spoken) else read_end(finish_reason)


def read_text_and_choice(response: Mapping[str, Any], choice: int) -> tuple[ParsedText, Mapping[str, Any]]:
    """Returns the text of a choice with its metadata, and the fields of the choice."""
    choices = as_list(response.get("choices"))
    indices = (
        [(fields(listed_choice) or {}).get("index") for listed_choice in choices or ()]
        if choices and len(choices) > 1
        else []
    )
    if indices and choices is not None and sorted(map(str, indices)) == sorted(map(str, range(len(choices)))):
        in_order = sorted(zip(indices, choices, strict=True), key=lambda pair: int(pair[0] or 0))
        choices = [listed_choice for _, listed_choice in in_order]
    if choices is None or not 0 <= choice < len(choices):
        received_text = f"the keys {some_keys(response)}" if choices is None else f"{len(choices)} choices"
        if error := error_message(response):
            received_text += f" and the error {error!r}"
        raise InvalidResponse(f"the response has {received_text}; expected a chat completion with choices[{choice}]")
    choice_fields = fields(choices[choice]) or {}
    message, logprobs = fields(choice_fields.get("message")), fields(choice_fields.get("logprobs"))
    for part in filter(None, (response, choice_fields, message, logprobs)):
        refuse_error(part)
    if text(response.get("status")) not in _COMPLETE_STATES:
        refuse_error({"error": f"status {text(response.get('status'))}"})
    if message is None and not isinstance(choice_fields.get("text"), str):
        raise InvalidResponse(
            f"choices[{choice}] has neither message nor text; expected a whole completion:"
            " join the chunks of a stream first, or pass the list of all of them"
        )
    usage_fields = fields(response.get("usage")) or {}
    spoken = content_text(message.get("content")) if message is not None else choice_fields["text"]
    answer = ParsedText(
        text=spoken,
        finish_reason=read_ending(end_of(choice_fields), spoken, message or {}, logprobs or {}),
        model=once(text(response.get("model"))),
        usage=usage(usage_fields.get("prompt_tokens"), usage_fields.get("completion_tokens")),
        thinking=thinking_of(message or {}, usage_fields),
        ending=ending_of(choice_fields.get("finish_reason"), choice_fields),
    )
    return answer, choice_fields


THINKING_KEYS = ("reasoning_content", "reasoning")
"""Keys under which servers put the thinking: DeepSeek, SGLang and llama.cpp; vLLM, Ollama and OpenRouter."""


def thinking_of(message: Mapping[str, Any], usage: Mapping[str, Any]) -> str | None:
    """Returns the thinking beside a message's answer; empty if it is counted but not shown, None if there is none."""
    for name in THINKING_KEYS:
        if isinstance(message.get(name), str) and message[name]:
            return str(message[name])
    parts = [*(as_list(message.get("content")) or ()), *(as_list(message.get("reasoning_details")) or ())]
    thinking_texts = []
    for part in filter(None, map(fields, parts)):
        kind = text(part.get("type"))
        if kind == "thinking":  # of Mistral
            thinking_texts.append(content_text(part.get("thinking")))
        elif kind.startswith("reasoning."):  # of OpenRouter
            thinking_texts.append(text(part.get("text")))
    if thinking_texts:
        return "".join(thinking_texts)
    thinking_count = (fields(usage.get("completion_tokens_details")) or {}).get("reasoning_tokens")
    return "" if type(thinking_count) is int and thinking_count > 0 else None


def _read_columns(columns: Mapping[str, Any], usage: Usage) -> tuple[tuple[str, ...], list[Any], list[list[Any]]]:
    """Returns (tokens, log-probabilities, alternatives) of the answer from {tokens, token_logprobs, top_logprobs}.

    An echoed prompt is left out. It shows by a first token without log-probability, or by as many tokens as prompt and
    answer have together. Alternatives are a mapping from token to log-probability for each token. Most servers add a
    drawn token that is not among the likeliest k. It cannot be distinguished from the others, so it stays.
    """
    logprobs = as_list(columns.get("token_logprobs"))
    if logprobs is None:
        raise InvalidResponse(
            f"logprobs.token_logprobs came as {type(columns.get('token_logprobs')).__name__};"
            " expected a list with one number a token: request the completion with logprobs=k"
        )
    tokens = as_list(columns.get("tokens"))
    top = as_list(columns.get("top_logprobs"))
    for name, column in (("tokens", tokens), ("top_logprobs", top)):
        if column and len(column) != len(logprobs):
            raise InvalidResponse(
                f"logprobs.{name} has {len(column)} entries and token_logprobs {len(logprobs)}; expected as many:"
                " was the response cut or edited?"
            )
    start, counts = 0, (usage.prompt_tokens, usage.completion_tokens)
    if all(counts) and len(logprobs) == sum(counts):
        start = usage.prompt_tokens
    elif len(logprobs) and logprobs[0] is None and len(logprobs) != usage.completion_tokens:
        raise InvalidResponse(
            f"the first token has no log-probability, so the prompt was echoed, but where it ends is not known: there"
            f" are {len(logprobs)} tokens, and the usage counts {usage.prompt_tokens} + {usage.completion_tokens};"
            " request the completion without echo"
        )
    rows = []
    for number, row in enumerate((top or ())[start:]):
        if not isinstance(row, Mapping | None):
            raise InvalidResponse(
                f"logprobs.top_logprobs of token {number} came as {type(row).__name__};"
                " expected {token: log-probability}"
            )
        rows.append(list(row.values()) if row else [])
    return tuple(map(text, (tokens or ())[start:])), list(logprobs[start:]), rows


def completion(
    spoken: str,
    logprobs: Mapping[str, Any] | None,
    *,
    model: object = "",
    finish_reason: str = "",
    thinking: str = "",
    is_tool_call: bool = False,
    token_counts: tuple[object, object, object] = (None, None, None),
    end_fields: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Returns an answer of another format as a chat completion.

    Args:
        spoken: text of the answer.
        logprobs: its log-probabilities.
        model: name of the model.
        finish_reason: how the answer ended, in the words of its API.
        thinking: text of the thinking, if it is known.
        is_tool_call: whether the answer is a tool call.
        token_counts: numbers of tokens of the prompt, of the answer, and of the thinking.
        end_fields: `stop_reason` in vLLM's form, if it is known what ended the answer.
    """
    message = {"role": "assistant", "content": spoken} | ({"reasoning_content": thinking} if thinking else {})
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": TOOL_CALL if is_tool_call else read_end(finish_reason),
        "logprobs": logprobs,
        **(end_fields or {}),
    }
    prompt_count, answer_count, thinking_count = token_counts
    usage = {"prompt_tokens": prompt_count, "completion_tokens": answer_count}
    if thinking_count:
        usage["completion_tokens_details"] = {"reasoning_tokens": thinking_count}
    return {"object": "chat.completion", "model": text(model), "choices": [choice], "usage": usage}


_ASK = 'request it with include=["message.output_text.logprobs"] (and top_logprobs=k for the alternatives)'
_TEXT_ITEMS = ("message", "reasoning")
CALLER_ITEMS = frozenset(
    "function_call custom_tool_call computer_call local_shell_call shell_call apply_patch_call"
    " mcp_approval_request".split()
)
"""Kinds of items that the caller has to run or to allow. The server runs the other tools by itself."""


def is_response(response: object) -> bool:
    """Whether this is a whole response of the Responses API."""
    return isinstance(response, Mapping) and (
        response.get("object") == "response" or ("output" in response and "choices" not in response)
    )


def is_event(part: object) -> bool:
    """Whether this is an event of a response's stream."""
    return isinstance(part, Mapping) and text(part.get("type")).startswith("response.")


def begins_call(event: Mapping[str, Any]) -> bool:
    """Whether this event belongs to a tool call of the caller or the server. An unknown kind of item counts as one."""
    item = fields(event.get("item"))
    return "_call" in text(event.get("type")) or (item is not None and item.get("type") not in _TEXT_ITEMS)


def read_response(response: Mapping[str, Any], choice: int, top: bool = True) -> ParsedResponse:
    """Reads a response of the Responses API: the text of all its messages, joined as in openai's `output_text`.

    Tool calls and refusals have no log-probabilities there, and are skipped. So is the reasoning at OpenAI; vLLM's
    log-probabilities cover the reasoning too, which is then separated. Raises `InvalidResponse` if nothing else came.
    If the caller has to run a tool call, the finish reason is `tool_calls`. The API does not say whether its
    log-probabilities are raw.

    Args:
        response: the response.
        choice: number of the answer; a response has one.
        top: whether alternatives are read.
    """
    only_choice(choice, "a response of the Responses API")
    failure_fields = {"error": response.get("error") or "failed"} if response.get("status") == "failed" else {}
    refuse_error({**response, **failure_fields})
    parts, other = text_parts(response.get("output"))
    entries: list[Any] = []
    for part in parts:
        logprobs = as_list(part.get("logprobs"))
        if not logprobs and part.get("text"):
            raise NoLogprobs(f"the response holds text without log-probabilities; {_ASK}")
        entries.extend(logprobs or ())
    if not entries:
        received = ", ".join(sorted(other)) or "no output"
        raise InvalidResponse(
            f"the response holds no text with log-probabilities (it came with {received}); expected a message of"
            f" output_text: leave refusals and tool calls out; otherwise {_ASK}"
        )
    usage_fields, end_word = fields(response.get("usage")) or {}, _end_word(response)
    refusal_note = "a part of the response is a refusal" if "refusal" in other else ""
    is_call = bool(CALLER_ITEMS & other)
    parsed = parse_entries(
        entries,
        "output_text.logprobs",
        top=top,
        text="".join(text(part.get("text")) for part in parts),
        finish_reason=("" if end_word == "in_progress" else read_end(end_word)) if not is_call else TOOL_CALL,
        model=once(text(response.get("model"))),
        usage=usage(usage_fields.get("input_tokens"), usage_fields.get("output_tokens")),
        temperature=read_temperature(response.get("temperature")),
        note=refusal_note,
    )
    ending: Ending = "some" if parsed.finish_reason == STOP else ""
    drawn_count = parsed.usage.completion_tokens if not other else 0  # other items are counted too
    reasoning = [item for item in each(response.get("output")) if item.get("type") == "reasoning"]
    texts = [text(part.get("text")) for item in reasoning for part in each(item.get("content"))]
    thinking_count = (fields(usage_fields.get("output_tokens_details")) or {}).get("reasoning_tokens")
    thinking = "".join(texts) if reasoning or (type(thinking_count) is int and thinking_count > 0) else None
    return parsed if is_call else settle(parsed, thinking, ending, entries, counted=drawn_count)


def response_as_completion(response: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a response of the Responses API as a chat completion without log-probabilities."""
    parts, _ = text_parts(response.get("output"))
    usage_fields = fields(response.get("usage")) or {}
    return completion(
        "".join(text(part.get("text")) for part in parts),
        None,
        model=response.get("model"),
        finish_reason=_end_word(response),
        token_counts=(usage_fields.get("input_tokens"), usage_fields.get("output_tokens"), None),
    )


def _end_word(response: Mapping[str, Any]) -> str:
    """Returns the API's word for how a response ended. A message may state another end than its completed response."""
    reason = fields(response.get("incomplete_details")) or {}
    end_word = text(reason.get("reason")) or text(response.get("status"))
    return (_message_state(response) or end_word) if end_word == "completed" else end_word


def _message_state(response: Mapping[str, Any]) -> str:
    """Returns the first state of a message that is not completed; empty if all are completed."""
    states = [text(item.get("status")) for item in each(response.get("output")) if item.get("type") == "message"]
    return next((state for state in states if state not in ("", "completed")), "")


def from_events(events: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the response that the events of its stream make up, even if the stream was cut.

    Events may come in any order if all are numbered. The closing event holds the whole response, which is used. Without
    a closing event the deltas are joined.
    """
    events = list(events)
    if all(type(event.get("sequence_number")) is int for event in events):
        events.sort(key=lambda event: event["sequence_number"])
    whole_response: Mapping[str, Any] = {}
    part_of_index: dict[tuple[int, int], dict[str, Any]] = {}
    for event in events:
        whole_response = fields(event.get("response")) or whole_response
        if event.get("type") in ("response.output_text.delta", "response.output_text.done"):
            indices = event.get("output_index"), event.get("content_index")
            index = (indices[0] if type(indices[0]) is int else 0, indices[1] if type(indices[1]) is int else 0)
            part = part_of_index.setdefault(index, {"type": "output_text", "text": "", "logprobs": []})
            part["text"] = text(event.get("text")) or part["text"] + text(event.get("delta"))
            if event["type"].endswith("done"):
                continue  # it gives all log-probabilities once more
            part["logprobs"].extend(as_list(event.get("logprobs")) or ())
    final_parts, _ = text_parts(whole_response.get("output"))
    if any(part.get("logprobs") for part in final_parts) or not part_of_index:
        return whole_response
    parts = [part_of_index[index] for index in sorted(part_of_index)]
    if spoken := "".join(
        text(part.get("text")) for part in final_parts
    ):  # the closing event has the text, and no numbers
        entries = [entry for part in parts for entry in part["logprobs"]]
        parts = [{"type": "output_text", "text": spoken, "logprobs": entries}]
    items = [item for item in each(whole_response.get("output")) if item.get("type") != "message"]
    message = {"type": "message", "content": parts, "status": _message_state(whole_response)}
    return {**whole_response, "output": [*items, message]}


def text_parts(output: object) -> tuple[list[Mapping[str, Any]], set[str]]:
    """Returns (the parts that are text, the kinds of all other items)."""
    parts: list[Mapping[str, Any]] = []
    other_kinds: set[str] = set()
    for item in each(output):
        if item.get("type") != "message":
            other_kinds.add(text(item.get("type"))[:40] or "an item of no type")
            continue
        for part in each(item.get("content")):
            if part.get("type") == "output_text":
                parts.append(part)
            else:
                other_kinds.add(text(part.get("type"))[:40] or "a part of no type")
    return parts, other_kinds
