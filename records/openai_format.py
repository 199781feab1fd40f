"""Reads OpenAI's formats, from any server: chat and text completions, and responses of the Responses API.

Those that hold no answer are told from the others. A response of the Responses API may come whole or as a list of its
stream's events.
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
"""Finish reasons of answers that the server did not finish, by any cause of its own."""


def failure_of(response: object) -> str:
    """Returns why a chat completion holds nothing that could be kept; empty where it holds an answer.

    An answer is a text that is not blank, a call of a tool, a refusal, or sound. Never raises.
    """
    held = fields(response)
    if held is None:
        return f"a {type(response).__name__} came; expected a chat completion"
    if held.get("error"):
        return error_message(held) or "the response is an error without a message"
    choices = as_list(held.get("choices")) or ()
    choice = fields(choices[0]) if choices else None
    if choice is None:
        return error_message(held) or "the response holds no choice"
    if choice.get("error"):
        return error_message(choice) or "the choice is an error without a message"
    end = text(choice.get("finish_reason"))
    if end.lower() in BROKEN_ENDS:
        return f"the answer ended with finish_reason {end!r}"
    message = fields(choice.get("message")) or {}
    kept = [message.get(name) for name in ("tool_calls", "function_call", "refusal", "audio")]
    if any(kept) or _has_text(message.get("content")):
        return ""
    return "the answer is empty" + (f" (finish_reason {end!r})" if end else "")


def _has_text(content: object) -> bool:
    """Whether a message's content, a text or a list of parts, holds more than blanks."""
    if isinstance(content, str):
        return not content.isspace() and content != ""
    for part in as_list(content) or ():
        held = fields(part) or {}
        if held.get("type", "text") != "text" or text(held.get("text")).strip() or (isinstance(part, str) and part):
            return True
    return False


CALLED = (
    "the answer is a tool call, and how sure the model is of a call is not whether it is right; expected an answer in"
    " words: leave tool calls out"
)


_CALLS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<function=", "<|tool_call")
"""Beginnings of tool calls that a server without a parser for them gives as text."""


_WHOLE = frozenset(("", "completed", "complete", "success", "succeeded", "ok", "done"))
"""States of a whole answer, where a server names one beside the choices."""


def content_text(content: object) -> str:
    """The text of a message's `content`: a string, a list of parts (of which the text ones count), or None."""
    if isinstance(content, str):
        return content
    return "".join(text((fields(part) or {}).get("text")) for part in as_list(content) or ())


def read_completion(response: Mapping[str, Any], choice: int, top: bool = True) -> ParsedResponse:
    """Reads a chat or text completion, whichever of the two shapes its log-probabilities have."""
    answer, chosen = read_said(response, choice)
    given = fields(chosen.get("logprobs")) or {}
    rest: dict[str, Any] = {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "model": answer.model,
        "usage": answer.usage,
        "note": first_of(len(response["choices"]), choice),
    }
    if before := as_list(given.get("reasoning_content")):
        # DeepSeek gives the thinking's log-probabilities under a key of their own.
        both = [*before, *(as_list(given.get("content")) or ())]
        parsed = parse_entries(both, f"choices[{choice}].logprobs", top=top, **rest)
        segments = Segment("thinking", 0, len(before)), Segment("answer", len(before), len(both))
        return check_text(replace(parsed, segments=segments[: 1 + (len(both) > len(before))]), both)
    # The tokens of a refusal stand under a key of their own.
    entries = given.get("content") if given.get("content") is not None else given.get("refusal")
    has_none = answer.finish_reason in (TOOL_CALL, REFUSAL)
    if answer.finish_reason == TOOL_CALL and not entries and not given.get("token_logprobs"):
        raise InvalidResponse(CALLED)  # OpenAI gives none of a call, however they are asked for
    # The usage is of all choices together.
    alone = len(response["choices"]) == 1 and response.get("n", 1) == 1
    counted = len(as_list(chosen.get("token_ids")) or ()) or (answer.usage.completion_tokens if alone else 0)
    if entries is not None:
        parsed = parse_entries(entries, f"choices[{choice}].logprobs.content", top=top, **rest)
        if has_none:
            return parsed
        return settle(parsed, answer.thinking, answer.ending, as_list(entries) or (), counted=counted)
    if given.get("token_logprobs") is None:
        raise NoLogprobs(
            f"the response holds no log-probabilities (choices[{choice}].logprobs.content is missing); {LOGPROBS_HINT}"
        )
    tokens, logprobs, rows = _read_columns(given, answer.usage)
    if (
        len(logprobs) < len(given["token_logprobs"])
        and spelled(list(map(text, given["tokens"] or ())), answer.text).all
    ):
        rest["text"] = "".join(tokens)  # the prompt was echoed
    parsed = with_alternatives(ParsedResponse(tokens=tokens, logprobs=check_logprobs(logprobs), **rest), rows)
    parsed = parsed if top else replace(parsed, top_logprobs=None)
    return parsed if has_none else settle(parsed, answer.thinking, answer.ending, counted=counted)


def read_ending(finish_reason: object, spoken: str, message: Mapping[str, Any], logprobs: Mapping[str, Any]) -> str:
    """Returns how the answer ended: `TOOL_CALL` where it calls a tool, `REFUSAL` where it only says why there is none.

    A refusal has a message and tokens of its own. `message` may hold `refusal`, `tool_calls` and `function_call`.
    """
    if message.get("tool_calls") or message.get("function_call") or read_end(finish_reason) == TOOL_CALL:
        return TOOL_CALL
    if spoken.lstrip().startswith(_CALLS):
        return TOOL_CALL
    of_refusal = logprobs.get("content") is None and bool(logprobs.get("refusal"))
    return REFUSAL if of_refusal or (text(message.get("refusal")) and not spoken) else read_end(finish_reason)


def read_said(response: Mapping[str, Any], choice: int) -> tuple[ParsedText, Mapping[str, Any]]:
    """(what the choice says, the choice)."""
    choices = as_list(response.get("choices"))
    indices = [(fields(one) or {}).get("index") for one in choices or ()] if choices and len(choices) > 1 else []
    if indices and choices is not None and sorted(map(str, indices)) == sorted(map(str, range(len(choices)))):
        in_order = sorted(zip(indices, choices, strict=True), key=lambda pair: int(pair[0] or 0))
        choices = [one for _, one in in_order]
    if choices is None or not 0 <= choice < len(choices):
        came = f"the keys {some_keys(response)}" if choices is None else f"{len(choices)} choices"
        if error := error_message(response):
            came += f" and the error {error!r}"
        raise InvalidResponse(f"the response has {came}; expected a chat completion with choices[{choice}]")
    chosen = fields(choices[choice]) or {}
    for part in (response, chosen, fields(chosen.get("message")), fields(chosen.get("logprobs"))):
        refuse_error(part or {})
    if text(response.get("status")) not in _WHOLE:
        refuse_error({"error": f"status {text(response.get('status'))}"})
    message = fields(chosen.get("message"))
    if message is None and not isinstance(chosen.get("text"), str):
        raise InvalidResponse(
            f"choices[{choice}] has neither message nor text; expected a whole completion:"
            " join the chunks of a stream first, or pass the list of all of them"
        )
    counted = fields(response.get("usage")) or {}
    spoken = content_text(message.get("content")) if message is not None else chosen["text"]
    logprobs = fields(chosen.get("logprobs")) or {}
    answer = ParsedText(
        text=spoken,
        finish_reason=read_ending(end_of(chosen), spoken, message or {}, logprobs),
        model=once(text(response.get("model"))),
        usage=usage(counted.get("prompt_tokens"), counted.get("completion_tokens")),
        thinking=thinking_of(message or {}, counted),
        ending=ending_of(chosen.get("finish_reason"), chosen),
    )
    return answer, chosen


THINKING_KEYS = ("reasoning_content", "reasoning")
"""Keys under which servers put the thinking: DeepSeek, SGLang and llama.cpp; vLLM, Ollama and OpenRouter."""


def thinking_of(message: Mapping[str, Any], usage: Mapping[str, Any]) -> str | None:
    """The thinking that a message shows beside its answer; empty where it is counted and not shown, None where none."""
    for name in THINKING_KEYS:
        if isinstance(message.get(name), str) and message[name]:
            return str(message[name])
    parts = [*(as_list(message.get("content")) or ()), *(as_list(message.get("reasoning_details")) or ())]
    shown = []
    for part in filter(None, map(fields, parts)):
        kind = text(part.get("type"))
        if kind == "thinking":  # of Mistral
            shown.append(content_text(part.get("thinking")))
        elif kind.startswith("reasoning."):  # of OpenRouter
            shown.append(text(part.get("text")))
    if shown:
        return "".join(shown)
    counted = (fields(usage.get("completion_tokens_details")) or {}).get("reasoning_tokens")
    return "" if type(counted) is int and counted > 0 else None


def _read_columns(given: Mapping[str, Any], usage: Usage) -> tuple[tuple[str, ...], list[Any], list[list[Any]]]:
    """(tokens, log-probabilities, alternatives) of the answer in {tokens, token_logprobs, top_logprobs}.

    An echoed prompt (its first token has no log-probability, or there are as many tokens as prompt and answer have
    together) is left out. Alternatives are a mapping from token to log-probability for each token; that of a drawn
    token outside of the likeliest k, which most servers add, cannot be told from them and stays.
    """
    logprobs = as_list(given.get("token_logprobs"))
    if logprobs is None:
        raise InvalidResponse(
            f"logprobs.token_logprobs came as {type(given.get('token_logprobs')).__name__};"
            " expected a list with one number a token: request the completion with logprobs=k"
        )
    tokens = as_list(given.get("tokens"))
    top = as_list(given.get("top_logprobs"))
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
    called: bool = False,
    used: tuple[object, object, object] = (None, None, None),
    ended_by: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Returns the chat completion that says the same as an answer of another format.

    `thinking`: the text of the thinking, where it is known. `used`: tokens of the prompt, of the answer, and of the
    thinking. `ended_by`: `stop_reason`, as vLLM says it, where it is known what the answer ended with.
    """
    message = {"role": "assistant", "content": spoken} | ({"reasoning_content": thinking} if thinking else {})
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": TOOL_CALL if called else read_end(finish_reason),
        "logprobs": logprobs,
        **(ended_by or {}),
    }
    prompt, answer, thought = used
    usage = {"prompt_tokens": prompt, "completion_tokens": answer}
    if thought:
        usage["completion_tokens_details"] = {"reasoning_tokens": thought}
    return {"object": "chat.completion", "model": text(model), "choices": [choice], "usage": usage}


_ASK = 'request it with include=["message.output_text.logprobs"] (and top_logprobs=k for the alternatives)'
_WORDS = ("message", "reasoning")
CALLER_ITEMS = frozenset(
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
    called = bool(CALLER_ITEMS & other)
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
    reasoning = [item for item in each(response.get("output")) if item.get("type") == "reasoning"]
    texts = [text(part.get("text")) for item in reasoning for part in each(item.get("content"))]
    spent = (fields(counted.get("output_tokens_details")) or {}).get("reasoning_tokens")
    thought = "".join(texts) if reasoning or (type(spent) is int and spent > 0) else None
    return parsed if called else settle(parsed, thought, ending, entries, counted=drawn)


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
