"""Makes one request of a panel, by stream where the client can stream.

A server hears at the next token that a stream was cancelled. Of a whole answer it may hear that late or never:
llama.cpp's server writes such an answer to its end. So tokens are saved by streams alone. The answer is the one that a
whole request gives: the chunks are joined again.

These clients are asked by stream: models of metaprobe that stream, and the asynchronous clients of the package openai.
All others are asked for a whole answer, because it is not known that they take `stream`. So is a client whose server
refuses streams, or does not say in them how an answer ended.
"""

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import fields as dataclass_fields
from typing import Any, Literal
from weakref import WeakKeyDictionary

from metaprobe.llms.base import LLMError, Request
from metaprobe.records.answer_stream import AnswerStream
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.reading import each
from metaprobe.records.types import Call, Message, Sampling
from metaprobe.routing.panel.compared_answers import told
from metaprobe.routing.panel.planner import draw_of

NO_STREAM = (400, 405, 415, 422, 501)
"""HTTP statuses with which a server may refuse a stream. If it refuses the whole request too, that is the error."""
_SAMPLING = {field.name for field in dataclass_fields(Sampling)}
_asked_whole: "WeakKeyDictionary[Any, str]" = WeakKeyDictionary()
"""Maps a client to why it is asked for whole answers, so that a stream is refused once and not at every request."""

Note = Callable[[str], None]
"""Called with the reason where a whole answer is asked for, though the client can stream."""


class _NoStreamError(Exception):
    """A stream was refused, cannot be read, or broke off."""

    def __init__(self, why: str, fault: Literal["refused", "unreadable", "broken"]) -> None:
        super().__init__(why)
        self.fault = fault


def is_llm(client: Any) -> bool:
    """Returns whether this is one of metaprobe's own models, rather than a client of an API."""
    return hasattr(client, "complete") and not hasattr(client, "chat")


def llm_request(body: Mapping[str, Any], identity: str, agent: str) -> Request:
    """Returns the request of one of metaprobe's own models. Raises `RecordError` for what it does not take.

    Sampled answers differ by their seeds, which follow from the identity, so that a retry draws alike.
    """
    more = {name: value for name, value in body.items() if name not in ("messages", "logprobs")}
    if strange := sorted(set(more) - _SAMPLING):
        raise RecordError(f"{', '.join(strange)} came for {agent}; expected {', '.join(sorted(_SAMPLING))}")
    if more.get("temperature", 0) > 0 and more.get("seed") is None:
        more["seed"] = int(draw_of(identity) * 2**31)
    try:
        messages = tuple(Message(str(message["role"]), content_of(message["content"])) for message in body["messages"])
    except (KeyError, TypeError) as error:
        raise RecordError(f"a message cannot be read ({error!r}); expected role and content") from error
    return Request(id=identity, messages=messages, sampling=Sampling(**more), agent=agent)


def content_of(content: Any) -> str:
    """Returns the text of a message's content: the content itself, or the texts among its parts."""
    parts = [content] if isinstance(content, str) else [part.get("text") for part in each(content)]
    return "\n".join(part for part in parts if isinstance(part, str))


async def ask_llm(llm: Any, request: Request, note: Note) -> Call:
    """Returns the call with which one of metaprobe's own models answers."""
    if not getattr(getattr(llm, "capabilities", None), "stream", False):
        return await llm.complete(request)  # type: ignore[no-any-return]

    async def streamed() -> Call:
        has_begun = False
        try:
            async with aclosing(llm.stream(request)) as parts:
                async for part in parts:
                    if isinstance(part, Call):
                        return part
                    has_begun = True
        except LLMError as error:  # before the first token, the model has tried again where that helps
            if has_begun or error.refused:
                raise _NoStreamError(told(error), "refused" if error.refused else "broken") from error
            raise
        raise _NoStreamError("the stream gave no call", "unreadable")

    answer: Call = await _by_stream(llm, streamed, lambda: llm.complete(request), note)
    return answer


async def ask_client(client: Any, request: Mapping[str, Any], note: Note) -> Any:
    """Returns the response of an API's client, or of a function that takes the same."""
    if not _is_async_openai(client):
        return await _whole_response(client, request)
    create = client.chat.completions.create
    return await _by_stream(client, lambda: _streamed_response(create, request), lambda: create(**request), note)


async def _by_stream(
    client: Any, streamed: Callable[[], Awaitable[Any]], whole: Callable[[], Awaitable[Any]], note: Note
) -> Any:
    """Returns the answer by stream, or the whole answer where the stream fails and the whole request does not."""
    why = ""
    with suppress(TypeError):  # of an object that has neither a hash nor weak references
        why = _asked_whole.get(client, "")
    if why:
        note(why)
        return await whole()
    try:
        return await streamed()
    except _NoStreamError as error:
        failed = error
    why = f"whole answers were asked for, because the stream failed ({failed})"
    if failed.fault == "unreadable":  # the next stream is no better, whatever becomes of this request
        _remember(client, why)
    answer = await whole()
    note(why)
    if failed.fault == "refused":  # the stream was refused, and not the request
        _remember(client, why)
    return answer


def _remember(client: Any, why: str) -> None:
    with suppress(TypeError):  # of an object that has neither a hash nor weak references
        _asked_whole[client] = why


def _is_async_openai(client: Any) -> bool:
    kinds = type(client).__mro__
    return any(kind.__name__ == "AsyncOpenAI" and kind.__module__.partition(".")[0] == "openai" for kind in kinds)


async def _streamed_response(create: Callable[..., Awaitable[Any]], request: Mapping[str, Any]) -> Any:
    """Returns the chat completion that a stream of openai's client makes up."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    try:
        chunks: Any = await create(**{**request, **options})
    except Exception as error:
        if getattr(error, "status_code", None) in NO_STREAM:
            raise _NoStreamError(told(error), "refused") from error
        raise
    if not hasattr(chunks, "__aiter__"):  # something between, such as a cache, has made it whole
        return chunks
    stream = AnswerStream(keeps_all=True)
    try:
        async for chunk in chunks:
            stream.add(chunk)
        whole = stream.response()
    except InvalidResponse as error:
        raise _NoStreamError(told(error), "unreadable") from error
    except Exception as error:
        raise _NoStreamError(told(error), "broken") from error
    finally:
        close = getattr(chunks, "close", None) or getattr(
            chunks, "aclose", None
        )  # a tracing package may wrap the stream
        with suppress(Exception):  # the answer is there, whatever becomes of the connection
            if close is not None:
                await close()
    if not stream.ended:
        raise _NoStreamError("the stream ended before the answer did", "unreadable")
    return sys.modules["openai.types.chat"].ChatCompletion.construct(**whole)


async def _whole_response(client: Any, request: Mapping[str, Any]) -> Any:
    """Returns the whole response of one request.

    A client that may not be asynchronous is called in a thread, which goes on where this is cancelled; an asynchronous
    one then never begins.
    """
    call = client.chat.completions.create if hasattr(client, "chat") else client
    if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(inspect.getattr_static(call, "__call__", None)):
        return await call(**request)

    def create() -> Any:
        try:
            return call(**request)
        except StopIteration as error:  # which no future can hold: whoever waits for it would wait for ever
            raise RuntimeError("the client raised StopIteration") from error

    response_task = asyncio.ensure_future(asyncio.to_thread(create))
    try:
        response = await asyncio.shield(response_task)
    except asyncio.CancelledError:
        response_task.add_done_callback(_close)
        raise
    return await response if inspect.isawaitable(response) else response


def _close(future: "asyncio.Future[Any]") -> None:
    """Closes the coroutine of a request that nobody waits for any more, so that it is not left half begun."""
    if not future.cancelled() and future.exception() is None and inspect.iscoroutine(future.result()):
        future.result().close()
