"""Reads how an answer ended, by the words that APIs use for it.

Only the ends listed here are known. Every other word is kept as it came, and a verdict on the answer says it: an answer
that was aborted, or that a server broke off with an error, is not an answer that ended by itself.
"""

from collections.abc import Mapping
from typing import Any

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.reading import fields, text

STOP = "stop"
"""The finish reason, here, of an answer that the model ended, by an end token or a stop text."""
LENGTH = "length"
"""The finish reason, here, of an answer that its token limit cut."""
FILTERED = "content_filter"
"""The finish reason, here, of an answer that the server's content filter cut."""
REFUSAL = "refusal"
"""The finish reason, here, of an answer that only says why there is none; chat completions call it `stop`."""
TOOL_CALL = "tool_calls"
"""The finish reason, here, of every answer that calls a tool; of a call that was forced servers say `stop`."""

SAID_BESIDE = ("stop_reason", "matched_stop")
"""Fields in which vLLM and SGLang say, beside the finish reason, by what an answer ended."""

_WORDS = {
    STOP: "stop eos eos_token end_turn stop_sequence complete completed",
    LENGTH: "length max_tokens max_output_tokens model_length",
    FILTERED: "content_filter safety recitation blocklist prohibited_content spii",
    TOOL_CALL: "tool_calls tool_call tool_use function_call",
    REFUSAL: "refusal",
}
_KNOWN = {word: end for end, words in _WORDS.items() for word in words.split()}
"""The word of OpenAI, vLLM, SGLang, llama.cpp, TGI, Ollama, Gemini, Anthropic, Cohere, Mistral and Inspect -> the end
that it means. Words are compared in lower case."""

_SAID = {
    LENGTH: "the answer is cut by its token limit, and scored as far as it came",
    FILTERED: "the server's content filter cut the answer",
    REFUSAL: "the answer is a refusal, and has no score",
    TOOL_CALL: "the answer calls a tool, and has no score",
}


def read_end(given: object) -> str:
    """Returns one of the known ends, or the server's own word where it is none of them; empty where nothing is said.

    A mapping names its end under `type` (SGLang) or `reason`. A word that is doubled (LangChain joins what a provider
    says in two chunks: `lengthlength`) counts once.
    """
    held = given if isinstance(given, str) else fields(given)
    if isinstance(held, Mapping):
        stated = [text(held.get(name)) for name in ("type", "reason")]
        held = both_ends(*map(read_end, stated)) or str(dict(held))[:80]
    if not held:
        return "" if given is None or given == "" else repr(given)[:80]
    word = once(held)
    return _KNOWN.get(word.casefold(), word)


def both_ends(first: str, then: str) -> str:
    """Returns the end that two statements make: one of them where they agree, or only one says something, else both."""
    return first if then in ("", first) else f"{first}, then {then}" if first else then


def end_of(choice: Mapping[str, Any]) -> str:
    """Returns how a choice ended, by its finish reason and by what else it says of its end."""
    end = read_end(choice.get("finish_reason"))
    details = fields(choice.get("finish_details")) or {}
    for other in (choice.get("native_finish_reason"), details.get("type")):
        if other and read_end(other) != end:
            end = both_ends(end, read_end(other)) if end != TOOL_CALL else end
    filters = fields(choice.get("content_filter_results")) or {}
    if any((fields(one) or {}).get("filtered") is True for one in filters.values()):
        end = FILTERED if end == STOP else end
    return end


def once(word: str) -> str:
    """Returns a text that was joined to itself once only; other texts are returned unchanged."""
    half = len(word) // 2
    return word[:half] if half >= 3 and word == word[:half] * 2 else word


UNSTATED = "the response does not say how the answer ended: is it cut?"


def doubt(end: str) -> str:
    """Returns what a verdict must say of a response that ended so; empty for an answer that the model ended."""
    if end == STOP:
        return ""
    if not end:
        return UNSTATED
    return _SAID.get(end) or f"the answer ended by {end!r}, not by the model, and is scored as far as it came"


def refuse_error(held: Mapping[str, Any]) -> None:
    """Raises `InvalidResponse` where a response, a part of it, a chunk or an event is an error of the server."""
    error = error_of(held) or (
        text(held.get("message")) or "error" if "error" in (held.get("type"), held.get("object")) else ""
    )
    if error:
        raise InvalidResponse(
            f"the server broke the answer off with the error {error!r}; expected a whole answer: ask again, or leave it"
            " out"
        )


def error_of(held: Mapping[str, Any]) -> str:
    """Returns what an answer, a choice or a chunk says of an error, cut to 200 characters; empty where it says none."""
    error = held.get("error") or held.get("errors") or held.get("error_code")
    if not error:
        return ""
    inside = fields(error) or {}
    message = ": ".join(filter(None, (text(inside.get("code")), text(inside.get("message"))))) or text(error)
    return (message or repr(error))[:200]
