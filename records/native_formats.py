"""Reads answers of APIs that do not speak OpenAI's format: Ollama, TGI, Gemini and Cohere.

Each answer is converted to a chat completion. The error about an answer without log-probabilities names the API's
option that requests them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from metaprobe.records.errors import InvalidResponse, NoLogprobs
from metaprobe.records.openai_format import completion, is_response, read_completion, response_as_completion
from metaprobe.records.reading import TOOL_CALL, as_list, each, error_message, fields, only_choice, text
from metaprobe.records.response import ParsedResponse

RULED_OUT = -9999.0
"""An alternative with a lower log-probability is masked: Gemini writes -1.3e30 for tokens that are not allowed."""


@dataclass(frozen=True, slots=True)
class Native:
    """One API with a format of its own."""

    name: str
    recognises: Callable[[Mapping[str, Any]], bool]
    completion: Callable[[Mapping[str, Any], int], dict[str, Any]]
    """Converts a response to a chat completion; the number chooses one of several answers."""
    ask: str
    """Request option with which the API gives log-probabilities."""


def native_of(response: object) -> Native | None:
    """Returns the API of an answer; None if it is of no known API."""
    if not isinstance(response, Mapping) or "choices" in response:
        return None
    return next((native for native in NATIVES if native.recognises(response)), None)


def is_native(response: object) -> bool:
    """Whether this is a whole answer of one of these APIs."""
    return native_of(response) is not None


def as_completion(response: Mapping[str, Any], choice: int = 0) -> Mapping[str, Any]:
    """Returns a response as a chat completion. A response of an unknown API is returned unchanged."""
    if is_response(response):
        return response_as_completion(response)
    native = native_of(response)
    return response if native is None else native.completion(response, choice)


def read_native(response: Mapping[str, Any], choice: int, top: bool = True) -> ParsedResponse:
    """Reads an answer of one of these APIs. Raises `NoLogprobs`, with the option to set, if it has no
    log-probabilities.

    Args:
        response: the answer.
        choice: number of the answer, if there are several.
        top: whether alternatives are read.
    """
    native = native_of(response)
    assert native is not None  # as `is_native` has said
    as_chat = native.completion(response, choice)
    choice_fields = as_chat["choices"][0]
    if not choice_fields["logprobs"]["content"] and choice_fields["finish_reason"] != TOOL_CALL:
        has_average = any(_get(candidate, "avgLogprobs") is not None for candidate in each(response.get("candidates")))
        received = "only the average of them (avgLogprobs)" if has_average else "no log-probabilities"
        raise NoLogprobs(f"the answer of {native.name} holds {received}; expected one for each token: {native.ask}")
    return read_completion(as_chat, 0, top)


def _entry(token: object, logprob: object, top: Iterable[tuple[object, object]] = ()) -> dict[str, Any]:
    """Returns {token, logprob, top_logprobs}, without alternatives that were masked.

    Args:
        token: text of the token.
        logprob: its log-probability.
        top: alternatives, as pairs of text and log-probability.
    """
    alternatives = [
        {"token": text(other), "logprob": value}
        for other, value in top
        if not isinstance(value, int | float) or value >= RULED_OUT
    ]
    return {"token": text(token), "logprob": logprob, "top_logprobs": alternatives}


def _get(response_fields: Mapping[str, Any], name: str) -> Any:
    """Returns the value under a name in camel case, or in snake case, which Google's Python client writes."""
    if name in response_fields:
        return response_fields[name]
    return response_fields.get("".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name))


# Ollama


def is_ollama_chunk(part: object) -> bool:
    """Whether this is an answer of Ollama's `/api/chat` or `/api/generate`, or a chunk of its stream."""
    return (
        isinstance(part, Mapping)
        and "done" in part
        and "model" in part
        and "choices" not in part
        and (fields(part.get("message")) is not None or isinstance(part.get("response"), str))
    )


def ollama_as_chunk(part: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a chunk of Ollama's stream as a chunk of a chat completion."""
    [choice] = _ollama(part, 0)["choices"]
    message, is_tool_call = choice["message"], choice["finish_reason"] == TOOL_CALL
    choice = {
        "index": 0,
        "delta": message | ({"tool_calls": [{}]} if is_tool_call else {}),
        "logprobs": choice["logprobs"] if choice["logprobs"]["content"] else None,
        "finish_reason": choice["finish_reason"] or ("unknown" if part.get("done") else None),
    }
    return {"object": "chat.completion.chunk", "model": text(part.get("model")), "choices": [choice]}


def _ollama(response: Mapping[str, Any], choice: int) -> dict[str, Any]:
    only_choice(choice, "an answer of Ollama")
    message = fields(response.get("message")) or {"content": response.get("response"), **response}
    return completion(
        text(message.get("content")),
        {"content": each(response.get("logprobs"))},
        model=response.get("model"),
        finish_reason=text(response.get("done_reason")),
        thinking=text(message.get("thinking")),
        is_tool_call=bool(message.get("tool_calls")),
        token_counts=(response.get("prompt_eval_count"), response.get("eval_count"), None),
    )


# Text Generation Inference


def _tgi(response: Mapping[str, Any], choice: int) -> dict[str, Any]:
    """Returns an answer of TGI as a chat completion."""
    only_choice(choice, "an answer of TGI")
    details = fields(response.get("details")) or {}
    tokens, rows = each(details.get("tokens")), as_list(details.get("top_tokens")) or ()
    if rows and len(rows) != len(tokens):
        raise InvalidResponse(f"details has {len(tokens)} tokens and {len(rows)} top_tokens; expected as many")
    entries = [
        _entry(
            token.get("text"),
            token.get("logprob"),
            [
                (alternative.get("text"), alternative.get("logprob"))
                for alternative in (each(rows[index]) if rows else ())
            ],
        )
        for index, token in enumerate(tokens)
    ]
    end_word = text(details.get("finish_reason"))
    end_fields: dict[str, object] = {"stop_reason": end_word} if end_word == "stop_sequence" else {}
    if end_word == "eos_token" and tokens and tokens[-1].get("special"):
        end_fields = {"stop_reason": None}  # the end token is the last of the tokens
    return completion(
        text(response.get("generated_text")),
        {"content": entries},
        finish_reason=end_word,
        token_counts=(None, details.get("generated_tokens"), None),
        end_fields=end_fields,
    )


# Gemini


def _gemini(response: Mapping[str, Any], choice: int) -> dict[str, Any]:
    """Returns a candidate of Gemini as a chat completion."""
    candidates = each(response.get("candidates"))
    if not 0 <= choice < len(candidates):
        blocked = _get(fields(_get(response, "promptFeedback")) or {}, "blockReason")
        blocked_text = f", and the prompt was blocked ({_word(blocked)})" if blocked else ""
        raise InvalidResponse(
            f"the answer of Gemini has {len(candidates)} candidates{blocked_text}; expected number {choice}"
        )
    candidate = candidates[choice]
    parts = each((fields(candidate.get("content")) or {}).get("parts"))
    logprobs = fields(_get(candidate, "logprobsResult")) or {}
    drawn_candidates, rows = each(_get(logprobs, "chosenCandidates")), each(_get(logprobs, "topCandidates"))
    if rows and len(rows) != len(drawn_candidates):
        raise InvalidResponse(
            f"logprobsResult has {len(drawn_candidates)} chosenCandidates and {len(rows)} topCandidates; "
            "expected as many"
        )
    entries = [
        _entry(
            token.get("token"),
            _get(token, "logProbability"),
            [
                (alternative.get("token"), _get(alternative, "logProbability"))
                for alternative in each(rows[index].get("candidates"))
            ]
            if rows
            else (),
        )
        for index, token in enumerate(drawn_candidates)
    ]
    usage_fields = fields(_get(response, "usageMetadata")) or {}
    thinking_count, answer_count = _get(usage_fields, "thoughtsTokenCount"), _get(usage_fields, "candidatesTokenCount")
    return completion(
        "".join(text(part.get("text")) for part in parts if not part.get("thought")),
        {"content": entries},
        model=_get(response, "modelVersion"),
        finish_reason=_word(_get(candidate, "finishReason")),
        thinking="".join(text(part.get("text")) for part in parts if part.get("thought")),
        is_tool_call=any(_get(part, "functionCall") for part in parts),
        token_counts=(
            _get(usage_fields, "promptTokenCount"),
            answer_count if len(candidates) == 1 else None,
            thinking_count,
        ),
    )


def _word(value: object) -> str:
    """Returns the word of a string, or of a member of an enumeration."""
    return text(getattr(value, "value", value))


# Cohere


def _cohere(response: Mapping[str, Any], choice: int) -> dict[str, Any]:
    """Returns an answer of Cohere as a chat completion."""
    only_choice(choice, "an answer of Cohere")
    message = fields(response.get("message")) or {}
    content = message.get("content")
    parts = [{"text": content}] if isinstance(content, str) else each(content)
    entries: list[dict[str, Any]] = []
    for number, chunk in enumerate(each(response.get("logprobs"))):
        ids, values = as_list(chunk.get("token_ids")) or (), as_list(chunk.get("logprobs")) or ()
        if len(ids) != len(values):
            raise InvalidResponse(
                f"logprobs[{number}] of Cohere's answer has {len(ids)} token_ids and {len(values)} logprobs; expected"
                " one log-probability for each token: ask again, or leave this response out"
            )
        entries.extend(_entry(chunk.get("text") if index == 0 else "", value) for index, value in enumerate(values))
    usage_fields = fields((fields(response.get("usage")) or {}).get("tokens")) or {}
    end_word = _word(response.get("finish_reason"))
    return completion(
        "".join(text(part.get("text")) for part in parts),
        {"content": entries},
        finish_reason=end_word,
        thinking="".join(text(part.get("thinking")) for part in parts),
        is_tool_call=bool(message.get("tool_calls")),
        token_counts=(usage_fields.get("input_tokens"), usage_fields.get("output_tokens"), None),
        end_fields={"stop_reason": end_word} if end_word == "STOP_SEQUENCE" else None,
    )


NATIVES = (
    Native(
        "Ollama's own API",
        lambda response: is_ollama_chunk(response) and bool(response["done"]),
        _ollama,
        "ask with logprobs=true and top_logprobs=k (Ollama 0.12.11 and later), or its endpoint /v1/chat/completions",
    ),
    Native(
        "TGI's /generate",
        lambda response: isinstance(response.get("generated_text"), str),
        _tgi,
        'ask with "parameters": {"details": true, "top_n_tokens": k}, or its /v1/chat/completions with logprobs',
    ),
    Native(
        "Gemini's generateContent",
        lambda response: (
            as_list(response.get("candidates")) is not None or _get(response, "promptFeedback") is not None
        ),
        _gemini,
        "ask with generationConfig.responseLogprobs=true and generationConfig.logprobs=k",
    ),
    Native(
        "Cohere's /v2/chat",
        lambda response: fields(response.get("message")) is not None and _word(response.get("finish_reason")).isupper(),
        _cohere,
        "ask with logprobs=true",
    ),
)
NATIVE_FORMAT_NAMES = ", ".join(native.name for native in NATIVES)


def refusal_of(response: Mapping[str, Any]) -> str:
    """Returns why an answer of another known API cannot be read, and what to do; empty for an unknown shape."""
    if is_ollama_chunk(response):
        return (
            "the response is a chunk of a stream of Ollama's (done is false); expected the whole answer: ask with"
            " stream=false, or pass the list of all chunks"
        )
    if response.get("type") == "message" and "content" in response and not error_message(response):
        return (
            "the response is a message of Anthropic's API, which gives no log-probabilities; expected one for each"
            ' token: as {"choices": [{"message": {"content": TEXT}}]} it can be imported with --plain, for another'
            " model to read"
        )
    if "generation_id" in response and "text" in response:
        return (
            "the response is of Cohere's /v1/chat, which gives no log-probabilities; expected one for each token: ask"
            " /v2/chat with logprobs=true"
        )
    return ""
