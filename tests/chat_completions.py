"""Builds chat completions and their streams as OpenAI's API sends them; the fake upstreams of the tests send these."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Body = dict[str, Any]


def token_entry(token: str, logprob: Any, top: Sequence[Body] = ()) -> Body:
    """Returns one token with its log-probability. `top`: the alternatives at its position."""
    return {"token": token, "logprob": logprob, "bytes": None, "top_logprobs": list(top)}


def text_of(entries: Iterable[Mapping[str, Any]]) -> str:
    """Returns the text that the tokens spell."""
    return "".join(entry["token"] for entry in entries)


def answer_choice(entries: Sequence[Body], *, logprobs: bool = True, index: int = 0, **changes: Any) -> Body:
    """Returns a choice whose text is that of its tokens.

    Args:
        entries: tokens of the answer.
        logprobs: whether the choice brings their log-probabilities; else None stands there.
        index: number of the choice.
        changes: further fields, or other values of the usual ones, as `finish_reason`.
    """
    message = {"role": "assistant", "content": text_of(entries)}
    listed = {"content": list(entries)} if logprobs else None
    return {"index": index, "message": message, "logprobs": listed, "finish_reason": "stop", **changes}


def chat_completion(*choices: Body, model: str = "m", prompt_tokens: int | None = 5, **changes: Any) -> Body:
    """Returns a whole answer with these choices.

    Args:
        choices: its choices; the usage counts the log-probabilities of all of them.
        model: name of the model that answers.
        prompt_tokens: number of tokens of the prompt; None for an answer without usage.
        changes: further fields, or other values of the usual ones.
    """
    whole: Body = {"id": "c", "object": "chat.completion", "created": 1, "model": model, "choices": list(choices)}
    if prompt_tokens is not None:
        count = sum(len((choice["logprobs"] or {}).get("content") or ()) for choice in choices)
        total = prompt_tokens + count
        whole["usage"] = {"prompt_tokens": prompt_tokens, "completion_tokens": count, "total_tokens": total}
    return whole | changes


def chunk_of(whole: Body, *choices: Body) -> Body:
    """Returns a chunk of the stream of a whole answer, with these choices."""
    known = {name: value for name, value in whole.items() if name not in ("choices", "usage")}
    return {**known, "object": "chat.completion.chunk", "choices": list(choices)}


def piece(delta: Body, entries: Sequence[Body] | None = None, end: Any = None, *, index: int = 0) -> Body:
    """Returns a choice of a chunk. `entries`: its tokens; `end`: its finish reason."""
    listed = {"content": list(entries)} if entries else None
    return {"index": index, "delta": delta, "logprobs": listed, "finish_reason": end}


def chunks_of(whole: Body, tokens_per_chunk: int = 1, *, logprobs: bool = True) -> Iterator[Body]:
    """Yields the chunks of a whole answer, one choice after the other, and last the usage.

    Args:
        whole: the answer. A choice of it without log-probabilities comes in one chunk.
        tokens_per_chunk: number of tokens that a chunk brings.
        logprobs: whether the chunks bring the log-probabilities of their tokens.
    """
    for choice in whole["choices"]:
        index, entries = choice["index"], (choice["logprobs"] or {}).get("content") or ()
        for first in range(0, len(entries), tokens_per_chunk):
            some = entries[first : first + tokens_per_chunk]
            yield chunk_of(whole, piece({"content": text_of(some)}, some if logprobs else None, index=index))
        if not entries:
            yield chunk_of(whole, piece({"content": choice["message"]["content"]}, index=index))
        yield chunk_of(whole, piece({}, end=choice["finish_reason"], index=index))
    yield {**chunk_of(whole), "usage": whole["usage"]}


def server_sent(event: object) -> bytes:
    """Returns one event of a stream: a value as JSON, or the text or bytes of its data."""
    data = event if isinstance(event, bytes) else (event if isinstance(event, str) else json.dumps(event)).encode()
    return b"data: " + data + b"\n\n"
