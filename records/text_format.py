"""Reads the older shape of log-probabilities, columns instead of entries: text completions, and some servers' chats."""

from collections.abc import Mapping
from typing import Any

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.reading import as_list, text
from metaprobe.records.types import Usage


def columns(given: Mapping[str, Any], usage: Usage) -> tuple[tuple[str, ...], list[Any], list[list[Any]]]:
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
    start = _echoed(logprobs, usage)
    rows = []
    for number, row in enumerate((top or ())[start:]):
        if not isinstance(row, Mapping | None):
            raise InvalidResponse(
                f"logprobs.top_logprobs of token {number} came as {type(row).__name__};"
                " expected {token: log-probability}"
            )
        rows.append(list(row.values()) if row else [])
    return tuple(map(text, (tokens or ())[start:])), list(logprobs[start:]), rows


def _echoed(logprobs: Any, usage: Usage) -> int:
    """How many tokens of an echoed prompt come first."""
    counts = (usage.prompt_tokens, usage.completion_tokens)
    if all(counts) and len(logprobs) == sum(counts):
        return usage.prompt_tokens
    if len(logprobs) and logprobs[0] is None and len(logprobs) != usage.completion_tokens:
        raise InvalidResponse(
            f"the first token has no log-probability, so the prompt was echoed, but where it ends is not known: there"
            f" are {len(logprobs)} tokens, and the usage counts {usage.prompt_tokens} + {usage.completion_tokens};"
            " request the completion without echo"
        )
    return 0
