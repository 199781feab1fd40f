"""A model at any endpoint that speaks OpenAI's chat completions: OpenAI, vLLM, SGLang, llama.cpp, and most others."""

import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar, Unpack

import numpy as np
import openai

from metaprobe.llms.base import Capabilities, LLMError, Request, Token
from metaprobe.llms.endpoint import Endpoint, EndpointError, EndpointLLM, Reach
from metaprobe.llms.pricing import OPENAI_HOST, Price
from metaprobe.records.answer_stream import AnswerStream
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.parse import parse_response, parse_text
from metaprobe.records.reading import each, fields, text
from metaprobe.records.types import Call, FloatArray, IntArray, LogprobsMode, Usage

CHAT_PATH = "/chat/completions"


@dataclass(slots=True)
class OpenStream:
    """A streamed answer while it is being read."""

    chunks: openai.AsyncStream[object]
    answer_stream: AnswerStream = field(default_factory=AnswerStream)
    waiting: list[Token] = field(default_factory=list)
    """Tokens that have arrived and that `take` has not yet returned."""
    taken_count: int = 0
    """Number of tokens that `take` has returned."""
    started: float = field(default_factory=time.perf_counter)
    """Time of the request, on the clock of `time.perf_counter`."""

    @classmethod
    async def begin(cls, client: openai.AsyncOpenAI, body: Mapping[str, Any]) -> Self:
        """Requests a chat completion as a stream, and reads it up to its first token."""
        started = time.perf_counter()
        chunks = await client.post(
            CHAT_PATH,
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
        """Waits for the next chunk. Returns False at the end. Raises `InvalidResponse` if the stream was cut."""
        try:
            chunk = await anext(self.chunks)
        except StopAsyncIteration:
            if not self.answer_stream.ended:
                raise InvalidResponse("the stream ended before the answer did") from None
            return False
        piece = self.answer_stream.add(chunk)
        if piece.entries:
            self.waiting += [_token_of_entry(entry) for entry in piece.entries]
        elif piece.text:
            self.waiting.append(Token(piece.text))
        return True

    def take(self) -> list[Token]:
        """Returns the tokens that have arrived since the last call."""
        tokens, self.waiting = self.waiting, []
        self.taken_count += len(tokens)
        return tokens


async def post(client: openai.AsyncOpenAI, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the JSON object in the answer to a POST request. Raises `InvalidResponse` for anything else.

    The object is plain, as in a stream. The client's own models of requests and answers take more than a millisecond
    each, and fail for unusual servers.

    Args:
        client: the client.
        path: path of the URL.
        body: the request.
    """
    try:
        answer = await client.post(path, body=body, cast_to=object)
    except json.JSONDecodeError as error:
        raise InvalidResponse(f"it sent what is not JSON ({error}); was it cut off?") from None
    if not isinstance(answer, Mapping):  # another content type comes as text
        received = "what is not JSON" if isinstance(answer, str) else f"JSON of the kind {type(answer).__name__}"
        raise InvalidResponse(f"it sent {received}; expected an object: is this the address of an API?")
    return answer


async def served_models(url: str) -> list[str]:
    """Returns the names of the models that an endpoint lists. Raises `LLMError` if it lists none."""
    endpoint = Endpoint(url, concurrency=1, attempts=1)
    try:
        async with endpoint.slot() as client:
            model_list = await endpoint.once(client.get("/models", cast_to=object), "its list of models")
    finally:
        await endpoint.aclose()
    names = [text(model.get("id")) for model in each((fields(model_list) or {}).get("data"))]
    if not (model_names := [name for name in names if name]):
        raise LLMError(f"{endpoint.address} lists no models; name the one to ask")
    return model_names


def token_ids(sent_ids: object, count: int, *, left_out: int = 0) -> IntArray | None:
    """Returns token ids that some servers send on request (vLLM: `return_token_ids`); None unless each token has one.

    Args:
        sent_ids: the ids.
        count: number of tokens of the answer.
        left_out: how many tokens at the end were left out, with their ids.
    """
    if (
        not isinstance(sent_ids, list)
        or len(sent_ids) != count + left_out
        or not all(type(token) is int for token in sent_ids)
    ):
        return None
    return np.asarray(sent_ids[:count], dtype=np.int32)


def _token_of_entry(entry: Mapping[str, Any]) -> Token:
    logprob = entry.get("logprob")
    alternatives = [
        x["logprob"]
        for x in entry.get("top_logprobs") or ()
        if isinstance(x, Mapping) and isinstance(x.get("logprob"), (int, float))
    ]
    top: FloatArray | None = -np.sort(-np.array(alternatives, np.float32)) if alternatives else None
    return Token(str(entry.get("token") or ""), float(logprob) if isinstance(logprob, (int, float)) else None, top)


SchemaForm = Literal["auto", "json_schema", "json_object", "none"]
Answer = TypeVar("Answer")

PLAIN_SAMPLING: Mapping[str, float] = {"repeat_penalty": 1.0, "repetition_penalty": 1.0, "min_p": 0.0, "top_k": 0}
"""An `extra_body` that switches off samplers that vLLM and llama.cpp add by default.

Without it, llama-cpp-python penalises repetition (1.1) even at temperature 0, so the tokens are not the likeliest ones.
vLLM takes such settings from the model's own folder. OpenAI does not know these fields and refuses them.
"""

_FIELDS_OF_REQUESTS = {
    "model",
    "messages",
    "prompt",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "max_tokens",
    "n",
    "stream",
}
_FIELDS_OF_REQUESTS |= {"max_completion_tokens", "logprobs", "top_logprobs", "response_format"}
"""Fields that requests set themselves, so that `extra_body` may not hold them."""

logger = logging.getLogger(__name__)


class OpenAILLM(EndpointLLM):
    """Answers requests through an endpoint, many at a time.

    A request is retried after a failure that may pass: no connection, no answer in time, 408, 409, 425, 429, 5xx, an
    unreadable answer. It waits as long as `Retry-After` says, or else an exponentially growing random time. The
    client's own retries are off: they see neither an unreadable answer nor a cut stream, and give up on a `Retry-After`
    above two minutes. The key is read from `OPENAI_API_KEY`.

    Args:
        model: name of the model.
        base_url: address; by default `OPENAI_BASE_URL`, else OpenAI.
        top_logprobs: alternatives requested for each token.
        logprobs: whether log-probabilities are requested; False for models that refuse to give them.
        logprobs_mode: `raw` or `processed`, as the endpoint gives them; vLLM (by default) and llama.cpp give `raw`
            ones.
        schema_form: how a JSON Schema is sent: `json_schema` (OpenAI, vLLM, SGLang), `json_object` with a schema
            (llama-cpp-python), `none` (not sent), or `auto`. `auto` uses the first form until the endpoint refuses it
            and accepts the second; this is logged.
        revision: version of the weights. It must not change while a store or a cache is filled, so it is never taken
            from an answer. What the server states is in each `Call.model_revision`.
        prices: prices by model, see `pricing.Price.of_model`.
        extra_body: additional fields of every request, such as `PLAIN_SAMPLING`, or vLLM's `{"return_token_ids":
            True}`, whose ids are then recorded.
        timeout_s: time limit of one attempt in seconds; for a stream, between two chunks.
        max_wait_s: longest `Retry-After` that is followed; a longer one is an error at once.
        attempts: most attempts, with the first.
        sleep: waits between attempts.
    """

    SCHEME = "openai:"

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        top_logprobs: int = 0,
        logprobs: bool = True,
        logprobs_mode: LogprobsMode = "unknown",
        schema_form: SchemaForm = "auto",
        revision: str = "unknown",
        prices: Mapping[str, Price] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **connection_options: Unpack[Reach],
    ) -> None:
        """Raises `LLMError` for an empty name, a negative number of alternatives, or fields of `extra_body` that
        requests set.
        """
        super().__init__(model, base_url, revision, **connection_options)
        if top_logprobs < 0:
            raise LLMError(f"top_logprobs is {top_logprobs}; expected at least 0")
        if forbidden := _FIELDS_OF_REQUESTS & set(extra_body or ()):
            raise LLMError(
                f"extra_body holds {', '.join(sorted(forbidden))}: a call would be recorded with other values"
            )
        self._requested_form = schema_form
        self.schema_form: SchemaForm = schema_form
        """Form in which a JSON Schema is sent; `auto` until the endpoint has accepted a form."""
        self._top_logprobs = top_logprobs
        self._logprobs = logprobs
        self._logprobs_mode: LogprobsMode = logprobs_mode
        self.price = Price.of_model(model, self._endpoint.host, prices)
        """Price of the model's tokens; None if it is not known."""
        self.extra_body = dict(extra_body or {})
        self._has_warned = False

    @property
    def asked_how(self) -> str:
        """Address and settings on which answers and their records depend, without secrets."""
        settings = [self.endpoint, self.extra_body, self._logprobs, self._logprobs_mode, self._requested_form]
        return json.dumps(settings, sort_keys=True)

    @property
    def capabilities(self) -> Capabilities:
        """The data requested from the endpoint. If the endpoint does not return them, the calls show this."""
        return Capabilities(
            logprobs=self._logprobs,
            top_logprobs=self._top_logprobs if self._logprobs else 0,
            stream=True,
        )

    async def complete(self, request: Request) -> Call:
        """Returns the finished call; `latency_ms` is that of the successful attempt. Raises `LLMError`.

        If the server sent no log-probabilities, or impossible ones, the call has none.
        """
        async with self._endpoint.slot() as client:

            async def ask(request_body: dict[str, Any]) -> Call:
                started = time.perf_counter()
                answer = await post(client, CHAT_PATH, request_body | self.extra_body)
                return self._call_of_answer(request, answer, _ms_since(started))

            return await self._ask_trying_schema_forms(request, ask)

    async def stream(self, request: Request) -> AsyncIterator[Token | Call]:
        """Yields the tokens as they arrive, then the finished call. Raises `LLMError`.

        It retries only before the first token, because yielded tokens cannot be taken back.
        """
        async with self._endpoint.slot() as client:

            async def begin(body: dict[str, Any]) -> OpenStream:
                return await OpenStream.begin(client, body | self.extra_body)

            stream = await self._ask_trying_schema_forms(request, begin)
            try:
                while True:
                    for token in stream.take():
                        yield token
                    so_far = f"after {stream.taken_count} tokens"
                    if not await self._endpoint.once(stream.read(), _request_name(request), so_far):
                        break
            finally:
                await stream.chunks.close()
            yield self._call_of_answer(request, stream.answer_stream.response(), _ms_since(stream.started))

    async def _ask_trying_schema_forms(
        self, request: Request, ask: Callable[[dict[str, Any]], Awaitable[Answer]]
    ) -> Answer:
        """Returns the answer of `ask` for the request's body, with the JSON Schema in a form that the
        endpoint accepts.
        """
        sampling = request.sampling
        if sampling.max_tokens is not None and sampling.max_tokens < 1:
            raise LLMError(f"{_request_name(request)}: max_tokens must be at least 1, got {sampling.max_tokens}")

        async def ask_in_form(form: SchemaForm) -> Answer:
            body = self._body(request, form)
            return await self._endpoint.ask(lambda: ask(body), _request_name(request))

        if not sampling.json_schema or self.schema_form != "auto":
            return await ask_in_form(self.schema_form)
        try:
            answer = await ask_in_form("json_schema")
            self.schema_form = "json_schema"
            return answer
        except EndpointError as error:
            if not error.refused:
                raise
            refusal = error
        try:
            answer = await ask_in_form("json_object")
        except EndpointError as error:
            # Both refused: the schema itself is at fault, or something else in the request.
            raise (refusal if error.refused else error) from None
        if self.schema_form == "auto":
            self.schema_form = "json_object"
            logger.warning("%s; it takes json_object with a schema, which is sent from here on", refusal)
        return answer

    def _body(self, request: Request, form: SchemaForm) -> dict[str, Any]:
        """Returns the body of a request to the server, with the JSON schema in this form."""
        sampling = request.sampling
        # OpenAI's newer models know only the newer name, and many other servers only the older one.
        limit = "max_completion_tokens" if self._endpoint.host == OPENAI_HOST else "max_tokens"
        body: dict[str, Any] = {
            "model": self.name,
            "messages": [{"role": message.role, "content": message.content} for message in request.messages],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.max_tokens is not None:  # a reasoning model is not cut while it thinks
            body[limit] = sampling.max_tokens
        if self._logprobs:
            # llama.cpp gives log-probabilities only with alternatives: at least one is requested, which
            # `_call_of_answer` removes again.
            body |= {"logprobs": True, "top_logprobs": max(1, self._top_logprobs)}
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.json_schema and form != "none":
            try:
                schema = json.loads(sampling.json_schema)
            except ValueError as error:
                raise LLMError(f"{_request_name(request)}: its json_schema is not JSON ({error})") from error
            body["response_format"] = (
                {"type": "json_object", "schema": schema}
                if form == "json_object"
                else {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
            )
        return body

    def _call_of_answer(self, request: Request, answer: Mapping[str, Any], latency_ms: float) -> Call:
        parsed_text = parse_text(answer)
        usage, scored_fields = parsed_text.usage, dict[str, Any]()
        token_count = left_out = 0
        try:
            parsed_response = parse_response(answer)
        except InvalidResponse as error:
            if self._logprobs and not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "%r: this answer is recorded without log-probabilities, and later ones may be: %s", self, error
                )
        else:
            token_count, left_out, top_logprobs = (
                len(parsed_response.tokens),
                parsed_response.left_out,
                parsed_response.top_logprobs,
            )
            # Some servers give more alternatives than were asked for.
            top_logprobs = (
                top_logprobs[:, : self._top_logprobs] if top_logprobs is not None and self._top_logprobs else None
            )
            scored_fields = {name: getattr(parsed_response, name) for name in ("tokens", "logprobs", "segments")}
            scored_fields["top_logprobs"] = top_logprobs
            if answer.get("usage") is None:  # llama-cpp-python does not count in a stream
                usage = Usage(completion_tokens=token_count)
        # The version is what the server states: the served model, if it has another name, and the fingerprint.
        model = answer.get("model")
        stated_model_and_fingerprint = (model if model != self.name else None, answer.get("system_fingerprint"))
        # Without a count of prompt tokens, the cost would be too low.
        price = self.price if usage.prompt_tokens else None
        return request.call(
            model=self.name,
            model_revision=" ".join(str(part) for part in stated_model_and_fingerprint if part) or self.revision,
            prompt_token_ids=token_ids(answer.get("prompt_token_ids"), usage.prompt_tokens),
            text=parsed_text.text,
            token_ids=token_ids(answer["choices"][0].get("token_ids"), token_count, left_out=left_out),
            **scored_fields,
            logprobs_mode=self._logprobs_mode,
            finish_reason=parsed_text.finish_reason,
            usage=usage,
            latency_ms=latency_ms,
            cost_usd=price.cost_usd(usage) if price else None,
        )


def _request_name(request: Request) -> str:
    return f"request {request.id}"


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000
