"""What a chat or text completion says of the thinking before its answer, and where in its tokens that ends."""

from collections.abc import Mapping, Sequence
from typing import Any

from metaprobe.records.boundary import Ending, Parts, locate
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.reading import as_list, fields, fields_of_each, text

FIELDS = ("reasoning_content", "reasoning")
"""Where servers put the text of the thinking: DeepSeek, SGLang and llama.cpp; vLLM, Ollama and OpenRouter."""


def thinking_of(message: Mapping[str, Any], usage: Mapping[str, Any]) -> str | None:
    """The thinking that a message shows beside its answer; empty where it is counted and not shown, None where none."""
    for name in FIELDS:
        if isinstance(message.get(name), str) and message[name]:
            return str(message[name])
    parts = [*(as_list(message.get("content")) or ()), *(as_list(message.get("reasoning_details")) or ())]
    shown = [_thought(held) for held in map(fields, parts) if held is not None]
    if any(part is not None for part in shown):
        return "".join(part or "" for part in shown)
    counted = (fields(usage.get("completion_tokens_details")) or {}).get("reasoning_tokens")
    return "" if type(counted) is int and counted > 0 else None


def _thought(part: Mapping[str, Any]) -> str | None:
    """What a part of a message shows of the thinking: Mistral's `thinking`, OpenRouter's `reasoning.text`."""
    kind = text(part.get("type"))
    if kind == "thinking":
        inner = part.get("thinking")
        return (
            inner
            if isinstance(inner, str)
            else "".join(text((fields(p) or {}).get("text")) for p in as_list(inner) or ())
        )
    return text(part.get("text")) if kind.startswith("reasoning.") else None


def parts_of(
    tokens: Sequence[str], spoken: str, thinking: str | None, ending: Ending, entries: Sequence[Any] = ()
) -> Parts:
    """What the tokens of an answer are of. Raises `InvalidResponse` where that is unknown and the score hangs on it.

    `entries` have the bytes of tokens that are no whole characters, where the server gives them.
    """
    try:
        return locate(tokens, spoken, thinking, ending=ending)
    except InvalidResponse:
        pieces = [_from_bytes(entry) for entry in fields_of_each(entries)] if entries else [None]
        if None in pieces:
            raise
        shown, thought = (_bytewise(said or "") for said in (spoken, thinking))
        return locate([piece for piece in pieces if piece is not None], shown, thought, ending=ending)


def _from_bytes(entry: Mapping[str, Any] | None) -> str | None:
    """A token's bytes, each as one character; None where they did not come."""
    given = as_list((entry or {}).get("bytes"))
    if given is None or not all(type(value) is int and 0 <= value < 256 for value in given):
        return None
    return bytes(given).decode("latin-1")


def _bytewise(said: str) -> str:
    return said.encode("utf-8", "surrogatepass").decode("latin-1")
