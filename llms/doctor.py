"""Asks an OpenAI-compatible endpoint a few small questions that show what it does to log-probabilities.

`doctor_findings` says what the answers mean. At most `MOST_REQUESTS` requests are made, each once and within a time
limit, with a few dozen tokens; only a model that thinks is given more.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from metaprobe.llms.base import LLMError
from metaprobe.llms.endpoint import KEY_VARIABLE, Endpoint, EndpointError
from metaprobe.llms.openai_client import CHAT
from metaprobe.llms.pricing import OPENAI_HOST
from metaprobe.records.endings import TOOL_CALL, refuse_error
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.parse import from_json, parse_text
from metaprobe.records.reading import as_list, fields
from metaprobe.records.response import ParsedText
from metaprobe.records.segments import CLOSINGS, OPENINGS

MOST_REQUESTS = 10
"""Most requests that are made. Checks that would need more are reported as unknown."""
ALTERNATIVES = 5
"""Likeliest tokens asked for at each place."""
HOT = 1.5
"""The higher temperature. Far enough from 1 to be seen, low enough that the answer stays one of words."""
CUT_AT = 4
"""Tokens of the answer that is to be cut: fewer than the answer needs."""
SHORT, LONG = 48, 96
"""Tokens that an answer may have. The longer limit is for the question that a model should think about."""

PLAIN = "What is the capital of France? Answer in one short sentence."
OPEN = "Name any animal, city or number that comes to your mind, and say in one sentence why."
TOOL = "What is the weather in Paris now? Call the tool get_weather; do not answer in words."
THINK = "Is 91 a prime number? Think step by step, then answer yes or no."
TOOL_NAME = "get_weather"
_TOOL = {
    "name": TOOL_NAME,
    "description": "Returns the weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@dataclass(frozen=True, slots=True)
class EndpointReply:
    """Holds the answer to one request."""

    body: Any = None
    """The JSON object, or the list of a stream's chunks; None where the request failed."""
    failure: EndpointError | None = None
    ends: int = 0
    """Number of `[DONE]` lines of a stream."""
    late: int = 0
    """Number of chunks after the first `[DONE]`."""


@dataclass(slots=True)
class Interview:
    """All replies of one endpoint, by the name of the question, and what asking cost."""

    endpoint: str
    model: str
    replies: dict[str, EndpointReply] = field(default_factory=dict)
    """Replies to `models`, `plain`, `without`, `alone`, `streamed`, `cut`, `hot`, `two`, `tool`, `forced`, `thinking`;
    a question that was not asked has no reply."""
    first_failure: EndpointError | None = None
    """Why the first question failed, where asking anew in another way helped."""
    has_alternatives: bool = True
    """Whether alternatives and a temperature are asked for."""
    thinks: bool = False
    """Whether the first answer held thinking."""
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def body(self, name: str) -> Any:
        """Returns the body of that reply; None where the question was not asked or failed."""
        reply = self.replies.get(name)
        return reply.body if reply else None

    def failure(self, name: str) -> EndpointError | None:
        """Returns why that question has no answer; None where it has one."""
        reply = self.replies.get(name)
        return reply.failure if reply else EndpointError("it was not asked", passing=False)


class Interviewer:
    """Asks one endpoint. `thinking_tokens`: what a model that thinks may use for each answer beside the answer itself.

    `extra_body`: further fields of every request. `key_variable`: the environment variable that holds the key.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key_variable: str = KEY_VARIABLE,
        timeout_s: float = 60.0,
        thinking_tokens: int = 512,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises `LLMError` for what is no address, and for a key that cannot be one."""
        if not model:
            raise LLMError("the model's name is empty; expected one that the endpoint knows: see its /models")
        self._endpoint = Endpoint(
            url,
            concurrency=1,
            timeout_s=timeout_s,
            attempts=1,
            max_wait_s=timeout_s,
            sleep=asyncio.sleep,
            key_variable=key_variable,
        )
        # OpenAI's newer models know only the newer name, and many other servers only the older one.
        self._limit = "max_completion_tokens" if self._endpoint.host == OPENAI_HOST else "max_tokens"
        self._thinking_tokens = thinking_tokens
        self._extra = dict(extra_body or {})
        self._interview = Interview(self._endpoint.address, model)

    async def ask_all(self) -> Interview:
        """Returns all replies. Raises `LLMError` where the endpoint answers no question at all."""
        started = time.perf_counter()
        try:
            await self._ask("models", "/models", None)
            await self._first()
            if _has_logprobs(self._interview.body("plain")):
                await self._chats()
            else:
                await self._chat("streamed", PLAIN, SHORT, stream=True)
        finally:
            await self._endpoint.aclose()
        self._interview.seconds = time.perf_counter() - started
        return self._interview

    async def _first(self) -> None:
        """The plain question. Where it fails, whether asking for log-probabilities is what makes it fail."""
        interview = self._interview
        failure = (await self._chat("plain", PLAIN, SHORT)).failure
        if failure:
            bare: dict[str, Any] = {"logprobs": None, "top_logprobs": None, "temperature": None}
            without = await self._chat("without", PLAIN, SHORT, **bare)
            if without.failure:
                raise LLMError(f"the endpoint could not be asked: {failure}") from None
            interview.first_failure = failure
            if (await self._chat("plain", PLAIN, SHORT)).failure:  # not by chance
                interview.has_alternatives = False
                alone = await self._chat("alone", PLAIN, SHORT)
                if alone.failure is None:
                    interview.replies["plain"] = alone
        interview.thinks = _thinks(interview.body("plain"))
        if interview.thinks:
            await self._chat("plain", PLAIN, SHORT)

    async def _chats(self) -> None:
        await self._chat("streamed", PLAIN, SHORT, stream=True)
        await self._chat("cut", OPEN, CUT_AT, room=0)
        if self._interview.has_alternatives:
            await self._chat("hot", OPEN, 16, room=0, temperature=HOT)
        await self._chat("two", OPEN, 16, n=2, temperature=1.0 if self._interview.has_alternatives else None)
        tools: dict[str, Any] = {"tools": [{"type": "function", "function": _TOOL}]}
        read = _read((await self._chat("tool", TOOL, SHORT, tool_choice="auto", **tools)).body)
        if read is None or read.finish_reason != TOOL_CALL:
            forced = {"type": "function", "function": {"name": TOOL_NAME}}
            await self._chat("forced", TOOL, SHORT, tool_choice=forced, **tools)
        if not self._interview.thinks:
            await self._chat("thinking", THINK, LONG)

    @property
    def _room(self) -> int:
        return self._thinking_tokens if self._interview.thinks else 0

    async def _chat(
        self, name: str, content: str, tokens: int, *, room: int | None = None, stream: bool = False, **more: Any
    ) -> EndpointReply:
        """`room`: tokens for the thinking, by default as many as it may have. A field of None is not sent."""
        body: dict[str, Any] = {"model": self._interview.model, "messages": [{"role": "user", "content": content}]}
        body |= {self._limit: tokens + (self._room if room is None else room), "logprobs": True}
        if self._interview.has_alternatives:
            body |= {"temperature": 0.0, "top_logprobs": ALTERNATIVES}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        body |= self._extra | more
        return await self._ask(name, CHAT, {key: value for key, value in body.items() if value is not None})

    async def _ask(self, name: str, path: str, body: Mapping[str, Any] | None) -> EndpointReply:
        """Makes one request, unless all requests are spent."""
        if self._interview.requests >= MOST_REQUESTS:
            failure = EndpointError(f"not asked: {MOST_REQUESTS} requests are spent", passing=False)
            self._interview.replies[name] = EndpointReply(failure=failure)
            return self._interview.replies[name]
        self._interview.requests += 1
        try:
            async with self._endpoint.slot() as client:
                # The answer is taken as text: `records` reads it, and a stream's [DONE] is seen.
                sent = client.get(path, cast_to=str) if body is None else client.post(path, body=body, cast_to=str)
                came = await self._endpoint.once(sent, name)
            streamed = bool(body and body.get("stream"))
            reply = read_stream(came) if streamed else EndpointReply(_object(came))
        except InvalidResponse as error:
            reply = EndpointReply(failure=EndpointError(f"{name}: no readable answer: {error}", passing=False))
        except EndpointError as error:
            reply = EndpointReply(failure=error)
        self._count(reply.body)
        self._interview.replies[name] = reply
        return reply

    def _count(self, body: Any) -> None:
        parts = body if isinstance(body, list) else [body]
        counted = [used for part in parts if (used := fields((fields(part) or {}).get("usage")))]
        for kind in ("prompt_tokens", "completion_tokens"):
            spent = max((n for used in counted if type(n := used.get(kind)) is int), default=0)
            setattr(self._interview, kind, getattr(self._interview, kind) + spent)


def read_stream(came: str) -> EndpointReply:
    """Returns the chunks of a stream's text. Raises `InvalidResponse` where one is not JSON."""
    chunks: list[Any] = []
    ends = late = 0
    # Not by splitlines: JSON may hold U+2028 as it is.
    for line in re.split(r"\r\n|\n|\r", came):
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or not data:
            continue
        if data == "[DONE]":
            ends += 1
        else:
            chunks.append(from_json(data))
            late += ends > 0
    if not chunks:
        raise InvalidResponse(f"a stream came without chunks ({came[:60]!r}); expected `data:` and JSON, line by line")
    return EndpointReply(chunks, ends=ends, late=late)


def _object(came: str) -> Mapping[str, Any]:
    held = from_json(came)
    if not isinstance(held, Mapping):
        raise InvalidResponse(f"JSON of the kind {type(held).__name__} came; expected an object")
    refuse_error(held)
    return held


def _has_logprobs(answer: Any) -> bool:
    """Returns whether the first choice came with log-probabilities, right or wrong."""
    choices = as_list((fields(answer) or {}).get("choices")) or ()
    given = fields((fields(choices[0]) or {}).get("logprobs")) if choices else None
    return any((given or {}).get(name) for name in ("content", "reasoning_content", "token_logprobs"))


def _read(answer: Any) -> ParsedText | None:
    try:
        return parse_text(answer)
    except InvalidResponse:
        return None


def _thinks(answer: Any) -> bool:
    """Whether an answer holds thinking, told apart or not."""
    if (read := _read(answer)) is None:
        return False
    shown = read.text.lstrip()
    return read.thinking is not None or shown.startswith(OPENINGS) or any(mark in shown for mark in CLOSINGS)
