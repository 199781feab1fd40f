"""Reads what an OpenAI-compatible endpoint sends: whole answers, streams, and echoed prompts."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import openai

from metaprobe.llms.base import Token
from metaprobe.llms.endpoint_errors import EndpointError
from metaprobe.records.answer_stream import AnswerStream
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.logprobs import check_logprobs
from metaprobe.records.types import FloatArray, IntArray

CHAT, TEXT = "/chat/completions", "/completions"


@dataclass(slots=True)
class OpenStream:
    """A streamed answer that is being read."""

    chunks: openai.AsyncStream[object]
    joined: AnswerStream = field(default_factory=AnswerStream)
    waiting: list[Token] = field(default_factory=list)
    """Tokens that have come and were not yet taken."""
    taken: int = 0
    started: float = field(default_factory=time.perf_counter)

    @classmethod
    async def begin(cls, client: openai.AsyncOpenAI, body: Mapping[str, Any]) -> Self:
        """Ask for a chat completion as a stream, and read it up to its first token."""
        started = time.perf_counter()
        chunks = await client.post(
            CHAT,
            body={**body, "stream": True, "stream_options": {"include_usage": True}},
            cast_to=object,
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        stream = cls(chunks, started=started)
        try:
            while not stream.waiting and await stream.read():
                pass
        except BaseException:
            await chunks.close()
            raise
        return stream

    async def read(self) -> bool:
        """Wait for the next chunk. False where there is none; raises `InvalidResponse` where the stream was cut."""
        try:
            chunk = await anext(self.chunks)
        except StopAsyncIteration:
            if not self.joined.ended:
                raise InvalidResponse("the stream ended before the answer did") from None
            return False
        piece = self.joined.add(chunk)
        if piece.entries:
            self.waiting += [_token(entry) for entry in piece.entries]
        elif piece.text:
            self.waiting.append(Token(piece.text))
        return True

    def take(self) -> list[Token]:
        """The tokens that have come since the last time."""
        tokens, self.waiting = self.waiting, []
        self.taken += len(tokens)
        return tokens


async def post(client: openai.AsyncOpenAI, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The JSON object that comes back. Raises `InvalidResponse` for anything else.

    As a plain object, as in a stream: the client's own models of questions and answers take time (more than a
    millisecond a request) and trip over odd servers.
    """
    try:
        answer = await client.post(path, body=body, cast_to=object)
    except json.JSONDecodeError as error:
        raise InvalidResponse(f"it sent what is not JSON ({error}); was it cut off?") from None
    if not isinstance(answer, Mapping):  # another content type comes as text
        what = "what is not JSON" if isinstance(answer, str) else f"JSON of the kind {type(answer).__name__}"
        raise InvalidResponse(f"it sent {what}; expected an object: is this the address of an API?")
    return answer


def read_echo(answer: Mapping[str, Any], prompt: str, continuation: str) -> Mapping[str, Any]:
    """A text completion that echoes `prompt`, as the chat completion whose answer is the `continuation` it ends with.

    The first token of a prompt has no log-probability and is left out. Raises `EndpointError` where there are no
    log-probabilities of the prompt, or where they cannot belong to its tokens.
    """
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, Sequence) and choices and isinstance(choices[0], Mapping) else {}
    text, given, usage = choice.get("text"), choice.get("logprobs"), answer.get("usage")
    if not isinstance(text, str) or not text.startswith(prompt) or not isinstance(given, Mapping):
        raise EndpointError("this endpoint gives no log-probabilities of a prompt (echo with logprobs)", passing=False)
    tokens, logprobs = given.get("tokens"), given.get("token_logprobs")
    counted = usage if isinstance(usage, Mapping) else {}
    read, drawn = counted.get("prompt_tokens"), counted.get("completion_tokens")
    if not (
        isinstance(tokens, list) and isinstance(logprobs, list) and isinstance(read, int) and isinstance(drawn, int)
    ):
        raise EndpointError("the echoed prompt came without tokens, log-probabilities or usage", passing=False)
    tokens = [str(token) for token in tokens]
    end = len(tokens) - drawn
    start, found = end, ""
    while start > 0 and len(found) < len(continuation):
        start -= 1
        found = tokens[start] + found
    # llama-cpp-python gives each token the log-probability of the next place where a prompt begins without the
    # beginning-of-sequence token: then one entry too few remains for what was drawn, or none is left out at the front.
    shifted = text[len(prompt) :] not in ("", "".join(tokens[end:])) or (drawn == 0 and len(tokens) >= read)
    if found != continuation or len(tokens) != len(logprobs) or shifted:
        raise EndpointError(
            f"the echoed tokens do not line up with the continuation {continuation[:40]!r}: one of them spans its "
            "beginning, or the prompt needs a beginning-of-sequence token (see `render`)",
            passing=False,
        )
    if start == 0 and logprobs[0] is None:
        start = 1
    try:
        check_logprobs(logprobs[start:end])
    except InvalidResponse as error:
        raise EndpointError(f"no log-likelihood: {error}", passing=False) from None
    entries = [{"token": t, "logprob": x} for t, x in zip(tokens[start:end], logprobs[start:end], strict=True)]
    said = "".join(tokens[start:end])
    completion = {"message": {"content": said}, "logprobs": {"content": entries}, "finish_reason": "stop"}
    return {**answer, "choices": [completion], "usage": {"prompt_tokens": read, "completion_tokens": 0}}


def token_ids(given: object, count: int, *, left_out: int = 0) -> IntArray | None:
    """Ids that some servers give on request (vLLM: `return_token_ids`), where there is one for each token.

    `left_out`: how many tokens at the end were left out, with their ids.
    """
    if not isinstance(given, list) or len(given) != count + left_out or not all(type(token) is int for token in given):
        return None
    return np.asarray(given[:count], dtype=np.int32)


def _token(entry: Mapping[str, Any]) -> Token:
    logprob = entry.get("logprob")
    alternatives = [
        x["logprob"]
        for x in entry.get("top_logprobs") or ()
        if isinstance(x, Mapping) and isinstance(x.get("logprob"), (int, float))
    ]
    top: FloatArray | None = -np.sort(-np.array(alternatives, np.float32)) if alternatives else None
    return Token(str(entry.get("token") or ""), float(logprob) if isinstance(logprob, (int, float)) else None, top)
