"""Asks a share of the questions once more in the background, and logs whether both answers say the same.

The second request has the parameters of the first, but is not streamed. It begins after the first answer has ended. It
is another request to the upstream in every respect: it costs as much and counts against the upstream's limits. The
server's key pays, never a caller's: without one of the server the request goes without a key, as to an engine of one's
own.

A question is not asked again if it

- offers tools, or is in the middle of tool calls: a second run could act twice;
- asked for several answers (`n`), which agree or differ already;
- leaves nothing to chance (temperature 0, `top_k` 1, `top_p` 0, or a seed), or is stored by the upstream (`store`);
- has a field that is not in `SENT_AGAIN`;
- has no answer in words that ended by itself and was logged.

In one worker one question is asked at a time, and at most `MAX_WAITING` wait; further ones are dropped. After several
failures in a row nothing is asked for a while, as with one of several upstreams
(`metaprobe.production.http.breaker`).
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
from starlette.requests import Request

from metaprobe.api import InvalidResponse, Panel, PanelAnswer, ParsedResponse, ParsedText, Usage
from metaprobe.production.http.bodies import Busy, Refusal, aside
from metaprobe.production.http.breaker import Breaker
from metaprobe.production.http.completion_json import UNREADABLE, ChatRequest, lenient_object, unstreamed
from metaprobe.production.http.metrics import Metrics, Seldom, log_unexpected
from metaprobe.production.http.request_log import ServerLog
from metaprobe.production.http.settings import Settings
from metaprobe.production.http.upstream import UpstreamClient
from metaprobe.production.monitoring.log import LoggedAgreement
from metaprobe.production.monitoring.tables import LogError

logger = logging.getLogger(__name__)

MAX_WAITING = 32
"""Most questions that wait in one worker. Each holds its request."""
MAX_REQUEST_BYTES = 256 << 10
"""Longest request that is sent again: with `MAX_WAITING` of them 8 MiB are held."""
MAX_ANSWER_CHARS = 64 << 10
"""Longest first answer, in characters, whose question is asked again. A longer text would hardly be said again, and is
held while its question waits.
"""
MAX_SECOND_BYTES = 4 << 20
"""Longest second answer that is read."""
FLUSH_S = 5.0
"""Seconds for which an agreement waits for the first answer's entry to be stored."""
NATURAL_END = "stop"
UNKNOWN_FIELD = "unknown_field"
MAX_NAMED_FIELDS = 8
"""Most unknown fields that the server's log names. Callers choose their names."""
_TOOL_FIELDS, _FIXING_FIELDS = ("tools", "functions"), ("seed", "store")
"""Fields of a request that is not sent again if one of them is set."""
SENT_AGAIN = frozenset(
    """
    model messages n user safety_identifier metadata service_tier prompt_cache_key prompt_cache_retention
    temperature top_p top_k min_p typical_p frequency_penalty presence_penalty repetition_penalty repeat_penalty
    logit_bias max_tokens max_completion_tokens min_tokens stop stop_token_ids include_stop_str_in_output ignore_eos
    response_format structured_outputs guided_json guided_regex guided_choice guided_grammar grammar json_schema
    reasoning_effort verbosity chat_template_kwargs add_generation_prompt continue_final_message skip_special_tokens
    spaces_between_special_tokens stream stream_options logprobs top_logprobs return_token_ids
    return_tokens_as_token_ids tool_choice function_call parallel_tool_calls
    """.split()
)
"""Fields of a request that may be sent again, as OpenAI, vLLM and llama.cpp name them. Another field, as of a plugin or
a search, may make the upstream act, or charge for more than tokens.
"""
_TOOL_ROLES = ("tool", "function")
_HEADERS_SENT_AGAIN = (b"content-type", b"user-agent", b"accept-language", b"openai-beta")
"""Headers of the first request that the second request has too. Others may name the first request or its trace, ask for
a stream, or let the caller pay.
"""
_UNSET = (b"", b"null", b"false", b"[]")


@dataclass(frozen=True, slots=True, eq=False)
class _WaitingQuestion:
    """A question that waits to be asked again."""

    request_id: str
    """Id of the first answer's entry in the log."""
    answer: PanelAnswer
    question: str
    body: bytes
    request: Request
    """The caller's query and headers, without those that belong to the first request alone."""
    path: str
    model: str
    """Model that the request names."""


class SecondAnswers:
    """Draws questions, asks them again one after another, and logs the agreement."""

    def __init__(
        self,
        settings: Settings,
        client: UpstreamClient,
        metrics: Metrics,
        log: ServerLog,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Sets up the draws; nothing is asked before `begin`.

        Args:
            settings: the settings.
            client: the upstream's client.
            metrics: where outcomes are counted.
            log: the log.
            draw: returns a number in [0, 1).
        """
        self._settings, self._client, self._metrics, self._log, self._draw = settings, client, metrics, log, draw
        self._breaker = Breaker(settings.agent_failures, settings.agent_pause_s)
        self._seldom = Seldom(logger)
        self._named_fields: set[str] = set()
        self._queue: asyncio.Queue[_WaitingQuestion] = asyncio.Queue(MAX_WAITING)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Starts the asking, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        payer = "the server's key pays" if self._settings.upstream_key() else "no key is sent"
        logger.info("of 1,000 questions about %g are asked once more; %s", 1000 * self._settings.teach_rate, payer)
        self._task = asyncio.ensure_future(self._ask_all())

    async def close(self) -> None:
        """Ends the asking. Questions that wait are dropped."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def offer(self, request: Request, chat: ChatRequest, request_id: str, answer: ParsedResponse | ParsedText) -> None:
        """Draws whether the question is asked again. Returns at once, and may be called from any thread.

        Args:
            request: the caller's request.
            chat: the same request, parsed.
            request_id: id of the first answer's entry in the log.
            answer: the first answer.
        """
        if self._loop is None or self._draw() >= self._settings.teach_rate:
            return
        if reason := why_not_again(chat, answer):
            self._metrics.asked_again.labels(reason).inc()
            if reason == UNKNOWN_FIELD:
                self._name_fields(unknown_fields(chat))
            return
        try:
            first = PanelAnswer.of(answer)
        except InvalidResponse:
            self._metrics.asked_again.labels("no_answer").inc()
            return
        waiting_question = _WaitingQuestion(
            request_id,
            replace(first, logprobs=None),  # which are not compared, and would be held
            Panel.question_in(chat.messages or []),
            unstreamed(chat.body),
            without_identity(request),
            request.url.path.rpartition("/v1")[2],
            chat.model,
        )
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._put, waiting_question)

    def _name_fields(self, names: list[str]) -> None:
        """Names fields for which questions are not asked again in the server's log, each once."""
        for name in names:
            if name not in self._named_fields and len(self._named_fields) < MAX_NAMED_FIELDS:
                self._named_fields.add(name)
                logger.warning("questions with the field %r are not asked again: it may do more than ask", name[:64])

    def _put(self, waiting_question: _WaitingQuestion) -> None:
        try:
            self._queue.put_nowait(waiting_question)
        except asyncio.QueueFull:
            self._metrics.asked_again.labels("queue_full").inc()

    async def _ask_all(self) -> None:
        while True:
            waiting_question = await self._queue.get()
            try:
                outcome = await self._ask_again(waiting_question)
            except Exception as error:  # one question must not end the asking
                log_unexpected(logger, "asking again", error)
                outcome = "failed"
            self._metrics.asked_again.labels(outcome).inc()

    async def _ask_again(self, waiting_question: _WaitingQuestion) -> str:
        """Asks one question again, logs the agreement, and returns the outcome for the metrics."""
        breaker, settings = self._breaker, self._settings
        if breaker.state == "open" and not breaker.begin_trial():
            return "paused"
        # Ask. No caller waits, and none is told of a failure.
        deadline = asyncio.get_running_loop().time() + settings.total_timeout_s
        try:
            async with self._client.asking(
                waiting_question.request,
                "POST",
                waiting_question.path,
                waiting_question.body,
                within_s=settings.timeout_s,
                deadline=deadline,
            ) as answer:
                body = await answer.whole(MAX_SECOND_BYTES)
        except Refusal as refusal:
            breaker.failed(None)
            self._seldom(f"a question could not be asked again: {refusal.message}")
            return "failed"
        except asyncio.CancelledError:
            breaker.end_trial()
            raise
        if answer.status != 200:
            breaker.failed(None)
            self._seldom(f"a question could not be asked again: the upstream answered {answer.status}")
            return "failed"
        breaker.answered()
        # Compare the answers, in a thread if they are long and callers' answers leave one free.
        try:
            agreement = await aside(
                len(body) + len(waiting_question.body), lambda: self._compare(waiting_question, body)
            )
        except Busy:
            return "busy"
        if agreement is None:
            return "not_comparable"
        try:
            await asyncio.to_thread(self._store, agreement)
        except LogError as error:
            self._seldom(f"an agreement is not logged: {error}")
            return "not_logged"
        return "same" if agreement.same else "different"

    def _store(self, agreement: LoggedAgreement) -> None:
        """Stores the agreement after the first answer's entry, so that no reader meets it without its answer.

        Raises `LogError` if that entry is not stored in time: `drift` would read past the agreement for good.
        """
        if not self._log.log.flush(FLUSH_S):
            raise LogError(f"the first answer was not stored within {FLUSH_S:g} s; check the score log's database")
        self._log.log.add_agreement(agreement)

    def _compare(self, waiting_question: _WaitingQuestion, body: bytes) -> LoggedAgreement | None:
        """Returns the agreement of the first answer with the one in a body; None if they cannot be compared."""
        try:
            completion = lenient_object(body)
        except UNREADABLE:
            return None
        try:
            usage = msgspec.convert(completion, _CompletionUsage).usage
        except msgspec.ValidationError:
            usage = None
        cost_usd = None
        if usage is not None:
            self._metrics.asked_again_tokens.labels("prompt").inc(usage.prompt_tokens)
            self._metrics.asked_again_tokens.labels("completion").inc(usage.completion_tokens)
            if price := self._log.price_of(str(completion.get("model", "")), waiting_question.model):
                cost_usd = price.cost_usd(Usage(usage.prompt_tokens, usage.completion_tokens))
        try:
            second = PanelAnswer.of(completion)
        except InvalidResponse:
            return None
        says_same = None if second.calls else waiting_question.answer.same_as(second, waiting_question.question)
        if says_same is None:
            return None
        return LoggedAgreement(
            waiting_question.request_id,
            says_same,
            time.time(),
            prompt_tokens=None if usage is None else usage.prompt_tokens,
            tokens=None if usage is None else usage.completion_tokens,
            cost_usd=cost_usd,
        )


Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class _TokenCounts(msgspec.Struct):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0


class _CompletionUsage(msgspec.Struct):
    usage: _TokenCounts | None = None


def why_not_again(chat: ChatRequest, answer: ParsedResponse | ParsedText) -> str:
    """Returns why a question is not asked again, as a word for the metrics; empty if it may be."""
    if len(chat.body) > MAX_REQUEST_BYTES or len(answer.text) > MAX_ANSWER_CHARS:
        return "too_long"
    if chat.wants_several:
        return "several_answers"
    fields_set = _fields_set(chat)
    if fields_set.intersection(_TOOL_FIELDS) or _in_tool_calls(chat):
        return "tools"
    if fields_set.intersection(_FIXING_FIELDS):
        return "seed_or_store"
    if unknown_fields(chat):
        return UNKNOWN_FIELD
    temperature, top_p, top_k = (_number_of(chat, name) for name in ("temperature", "top_p", "top_k"))
    if top_k == 1 or any(number is not None and number <= 0 for number in (temperature, top_p)):
        return "greedy"
    return "" if answer.finish_reason == NATURAL_END and answer.text.strip() else "no_answer"


def unknown_fields(chat: ChatRequest) -> list[str]:
    """Returns the fields of a request that are set, and of which it is not known whether they may be sent again."""
    return sorted(_fields_set(chat) - SENT_AGAIN)


def _fields_set(chat: ChatRequest) -> set[str]:
    return {name for name, value in chat.fields.items() if bytes(value).strip() not in _UNSET}


def _number_of(chat: ChatRequest, name: str) -> float | None:
    """Returns the value of a field that holds a number; None for any other."""
    try:
        return msgspec.json.decode(chat.fields.get(name, b"null"), type=float | None)
    except UNREADABLE:
        return None


def _in_tool_calls(chat: ChatRequest) -> bool:
    """Returns whether a message calls a tool, or is a tool's result."""
    return any(
        isinstance(message, dict)
        and (message.get("role") in _TOOL_ROLES or message.get("tool_calls") or message.get("function_call"))
        for message in chat.messages or []
    )


def without_identity(request: Request) -> Request:
    """Returns a request with the same query, and those headers that say nothing of the first request or who pays."""
    headers = [(name, value) for name, value in request.scope["headers"] if name.lower() in _HEADERS_SENT_AGAIN]
    kept_scope = {name: request.scope[name] for name in ("type", "method", "path", "query_string")}
    return Request({**kept_scope, "headers": headers})
