"""A local language model, run by transformers: batched, with log-probabilities and hidden states."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from threading import Event, Lock
from typing import Any

import numpy as np

from metaprobe.records.extras import require

try:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
except ModuleNotFoundError:
    require("torch", "train")  # says what to install
    require("transformers", "train")
    raise

from metaprobe.llms.base import Capabilities, LLMError, Request, Token
from metaprobe.llms.forward import attends_to_whole_past, choose_batch
from metaprobe.llms.generation import BatchRecorder, BatchRow, Cancelled, GivenAnswer, Grammars, StopTexts, generate
from metaprobe.llms.hidden_capture import Capture, RowStates, StateReader, chosen_layers, source_sample
from metaprobe.llms.known_good import library
from metaprobe.llms.weights import (
    DEFAULT_MODEL,
    Weights,
    check_room,
    complete_tokenizer,
    encode_chat,
    encode_text,
    resolve,
)
from metaprobe.records.canaries import CANARIES, CANARIES_AT_ONCE, CANARY_POSITIONS, FEWEST_CANARIES, CanaryStates
from metaprobe.records.segments import marked
from metaprobe.records.types import Call, Message, Sampling, Usage


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request that waits for its answer."""

    job: "_Job"
    kind: int
    """Only requests of one kind share a batch: those with similar token limits."""
    length: int
    """Number of tokens of the prompt."""
    answer: "asyncio.Future[Call]"


class BatchQueue:
    """Answers requests of many tasks in batches: tasks await `submit`, and `run` answers a batch in a worker thread.

    A batch starts when every task that can submit has done so. It holds requests of one kind, the kind with most
    requests. If more requests wait than fit, it takes the longest, so that little is padded, or those that `choose`
    selects.
    """

    def __init__(
        self,
        run: Callable[[Sequence["_Job"], Event], Sequence[Call | Exception]],
        *,
        batch_size: int,
        choose: Callable[[Sequence["_Job"], int], Sequence[int]] | None = None,
    ) -> None:
        """Sets up the queue.

        Args:
            run: answers a batch. Its second argument is an event that is set when nobody waits for the batch any more,
                so that it may stop.
            batch_size: most requests in a batch.
            choose: selects requests to answer together, from requests in the order of their lengths and a number.
        """
        self._run = run
        self._batch_size = batch_size
        self._choose = choose
        self._waiting: list[_Waiting] = []
        self._worker: asyncio.Task[None] | None = None
        # Always the same thread: each new thread would keep memory of its own for tensors that are freed.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metaprobe-llm")

    async def submit(self, job: "_Job", *, kind: int, length: int) -> Call:
        """Returns the answer to one request; raises the exception that `run` returned for it.

        Args:
            job: the request.
            kind: only requests of one kind share a batch.
            length: tokens of the prompt.
        """
        waiting = _Waiting(job, kind, length, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._answer_waiting())
        return await waiting.answer

    async def _answer_waiting(self) -> None:
        """Answers batches until no request waits."""
        batch: list[_Waiting] = []
        abandoned = Event()
        try:
            while self._waiting:
                waiting_count = -1
                while waiting_count != len(self._waiting):  # the other tasks run until no new request arrives
                    waiting_count = len(self._waiting)
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                batch = self._take_batch()
                jobs = [waiting.job for waiting in batch]
                answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._run, jobs, abandoned)
                for waiting, answer in zip(batch, answers, strict=True):
                    if waiting.answer.done():  # its task was cancelled meanwhile
                        continue
                    if isinstance(answer, Exception):
                        waiting.answer.set_exception(answer)
                    else:
                        waiting.answer.set_result(answer)
        except BaseException as error:
            # Every waiting task gets an outcome, also if a whole batch fails or if this task is cancelled.
            for waiting in [*batch, *self._waiting]:
                if not waiting.answer.done():
                    waiting.answer.set_exception(error) if isinstance(error, Exception) else waiting.answer.cancel()
            self._waiting.clear()
            if not isinstance(error, Exception):
                abandoned.set()
                raise

    def _take_batch(self) -> list[_Waiting]:
        self._waiting = [waiting for waiting in self._waiting if not waiting.answer.done()]
        if not self._waiting:
            return []
        kind, _ = Counter(waiting.kind for waiting in self._waiting).most_common(1)[0]
        batch = sorted((w for w in self._waiting if w.kind == kind), key=lambda w: w.length)
        if len(batch) > self._batch_size and self._choose is not None:
            batch = [batch[i] for i in self._choose([w.job for w in batch], self._batch_size)]
        batch = batch[-self._batch_size :]
        batch_ids = {id(waiting) for waiting in batch}
        self._waiting = [waiting for waiting in self._waiting if id(waiting) not in batch_ids]
        return batch


@dataclass(slots=True, eq=False)
class _Job:
    """One request in the queue."""

    request: Request
    prompt: list[int]
    on_token: Callable[[Token], None] | None = None
    abandoned: Event = field(default_factory=Event)


class LocalLLM:
    """Answers concurrent requests in batches. Log-probabilities are raw: the model's own, before temperature.

    They are raw as well if `Sampling.json_schema` restricts the text: a token's log-probability is the model's among
    all tokens, not among the allowed ones. If a stop text ends an answer, the tokens of the text before it are kept. A
    token that holds the end of the text and the beginning of the stop text is kept whole, with its log-probability, and
    `text` ends within it.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        revision: str,
        batch_size: int = 32,
        top_logprobs: int = 0,
        capture: Capture | None = None,
    ) -> None:
        self.name = name
        self.revision = revision
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.capture = capture
        """Hidden states that are kept for requests that ask for them."""
        self.capabilities = Capabilities(
            logprobs=True,
            top_logprobs=top_logprobs,
            hidden=capture is not None,
            stream=True,
        )
        self.model = model.eval()
        """The transformers model; `StateReplay` uses it too."""
        self.tokenizer = tokenizer
        self.attends_to_whole_past = attends_to_whole_past(model)
        """Whether a common prefix of prompts may be read once."""
        self._queue = BatchQueue(
            self._answer_batch,
            batch_size=batch_size,
            choose=(lambda jobs, size: choose_batch([job.prompt for job in jobs], size))
            if self.attends_to_whole_past
            else None,
        )
        self._compute_lock = _lock_of_device(str(model.device))
        self._canaries: CanaryStates | None = None
        """States of the canaries by the model as it was when `_sample` was read."""
        self._sample: tuple[object, ...] = ()
        # Tokens that end an answer: those of the tokenizer, and those of the model's generation settings.
        configured_eos = model.generation_config.eos_token_id if model.generation_config is not None else None
        eos_ids = [*(configured_eos if isinstance(configured_eos, list) else [configured_eos]), tokenizer.eos_token_id]
        self._eos_ids = sorted({int(token) for token in eos_ids if token is not None})
        text_config = model.config.get_text_config()
        self.vocabulary: int = text_config.vocab_size
        """Upper bound of token ids, exclusive."""
        self._grammars = Grammars(tokenizer, vocabulary=self.vocabulary, eos_ids=self._eos_ids)
        self.context: int = getattr(text_config, "max_position_embeddings", None) or 1 << 30
        """Most tokens that the model reads at once."""
        self.piece = cache(lambda token: str(tokenizer.decode([token])))
        """Returns a token's own text."""

    @classmethod
    def load(
        cls,
        model: str = DEFAULT_MODEL,
        *,
        batch_size: int = 32,
        top_logprobs: int = 0,
        layers: str | None = None,
        device: str | None = None,
    ) -> "LocalLLM":
        """Loads an embedded model, a local folder, a GGUF file or a hub id, in bfloat16.

        Args:
            model: the name.
            batch_size: requests generated at once.
            top_logprobs: alternatives kept for each token.
            layers: layers whose hidden states are kept: `all`, `every:N`, or numbers such as `0,8,16`.
            device: a torch device; by default a GPU if torch sees one, else the CPU.
        """
        weights: Weights = resolve(model)
        try:
            config = AutoConfig.from_pretrained(weights.location)
            capture = Capture(chosen_layers(layers, config)) if layers else None  # refused before weights are read
            tokenizer = AutoTokenizer.from_pretrained(weights.location, padding_side="left")
            network = AutoModelForCausalLM.from_pretrained(weights.location, dtype=torch.bfloat16)
        except LLMError:
            raise
        except (OSError, ValueError) as error:
            raise LLMError(f"model {model!r} cannot be loaded: {error}") from error
        complete_tokenizer(tokenizer)
        network.to(torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))  # type: ignore[arg-type]
        return cls(
            network,
            tokenizer,
            name=weights.name,
            revision=weights.revision_loaded(network.config),
            batch_size=batch_size,
            top_logprobs=top_logprobs,
            capture=capture,
        )

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Returns the prompt's token ids, by the model's chat template."""
        return encode_chat(self.tokenizer, messages)

    async def complete(self, request: Request) -> Call:
        """Returns the finished call.

        Raises `LLMError` for a prompt that leaves no room in the model's context, and for a JSON Schema that cannot be
        enforced.
        """
        return await self._submit(request)

    async def stream(self, request: Request) -> AsyncIterator[Token | Call]:
        """Yields the tokens as they arrive, then the call that `complete` would return.

        A token that may belong to a stop text is held back until this is known. If the caller stops reading, the
        generation stops. With `request.hidden` each token brings the states from which it was drawn.
        """
        loop, tokens = asyncio.get_running_loop(), asyncio.Queue[Token | None]()

        def put(token: Token) -> None:  # in the thread that computes
            loop.call_soon_threadsafe(tokens.put_nowait, token)

        answer = asyncio.create_task(self._submit(request, put))
        answer.add_done_callback(lambda _: tokens.put_nowait(None))
        try:
            while (token := await tokens.get()) is not None:
                yield token
            yield await answer
        finally:
            answer.cancel()

    async def _submit(self, request: Request, on_token: Callable[[Token], None] | None = None) -> Call:
        """Returns the answer to a request, which the queue puts into a batch with others.

        Raises `LLMError` for a request that cannot be answered.
        """
        sampling = request.sampling
        prompt = self.encode(request.messages) if request.messages else []
        if not prompt:
            raise LLMError(f"request {request.id}: nothing to answer: there are no messages")
        if sampling.max_tokens is None or sampling.max_tokens < 1:
            raise LLMError(f"request {request.id}: max_tokens must be at least 1, got {sampling.max_tokens}")
        if not all(sampling.stop):
            raise LLMError(f"request {request.id}: a stop text must not be empty, got {sampling.stop!r}")
        check_room(request, self.name, self.context, len(prompt), sampling.max_tokens + 1, "max_tokens + 1 =")
        if sampling.json_schema:
            self._grammars.matcher(sampling.json_schema)  # compiled here, so that a bad one fails alone
        job = _Job(request, prompt, on_token=on_token)
        # Requests of one kind share a batch: of 1, up to 4, 16, 64, 256, 1024, ... tokens. Finished rows leave the
        # batch, so unequal limits cost little; but one long answer among many short ones would soon be alone.
        kind = ((sampling.max_tokens - 1).bit_length() + 1) // 2
        try:
            return await self._queue.submit(job, kind=kind, length=len(prompt))
        finally:
            job.abandoned.set()

    def _answer_batch(self, batch: Sequence[_Job], abandoned: Event) -> list[Call | Exception]:
        if not batch:
            return []
        # On a CPU, two models that compute at once wait for each other's threads: many times slower than in turn.
        while not self._compute_lock.acquire(timeout=0.1):
            if abandoned.is_set():
                return [LLMError("generation was cancelled")] * len(batch)
        try:
            return self._generate(batch, abandoned)
        except Cancelled:
            return [LLMError("generation was cancelled")] * len(batch)
        except RuntimeError as error:  # out of memory, above all
            return [LLMError(f"{self.name} failed on a batch of {len(batch)}: {error}; try a smaller batch")] * len(
                batch
            )
        finally:
            self._compute_lock.release()

    def _generate(self, batch: Sequence[_Job], abandoned: Event) -> list[Call | Exception]:
        rows = [self._batch_row(job) for job in batch]
        # A capture for some requests must not slow down the batches of the others.
        reader = StateReader(self.capture) if self.capture and any(row.states for row in rows) else None
        if reader:
            self._current_canaries(reader)
        recorder = BatchRecorder(
            rows,
            eos_ids=self._eos_ids,
            device=self.model.device,
            top_logprobs=self.capabilities.top_logprobs,
            reader=reader,
            cancel=abandoned,
        )
        started = time.perf_counter()
        with reader.hooks(self.model) if reader else nullcontext():
            generate(
                self.model,
                recorder,
                [job.prompt for job in batch],
                eos_ids=self._eos_ids,
                pad=self.tokenizer.pad_token_id,
                share_prefix=self.attends_to_whole_past,
            )
        return [
            row.error or self._call_of_row(job, row, ((row.ended or started) - started) * 1000)
            for job, row in zip(batch, rows, strict=True)
        ]

    def _batch_row(self, job: _Job) -> BatchRow:
        request, sampling = job.request, job.request.sampling
        row = BatchRow(
            sampling,
            stops=StopTexts(sampling.stop, self._decode) if sampling.stop else None,
            matcher=self._grammars.matcher(sampling.json_schema) if sampling.json_schema else None,
            abandoned=job.abandoned,
        )
        if self.capture is not None and request.hidden:
            row.states = RowStates(self.capture, self.piece, revocable_tokens=row.stops.window if row.stops else 0)
        if (on_token := job.on_token) is not None:
            sent_count = 0

            def send_safe_tokens(safe_count: int) -> None:
                nonlocal sent_count
                for i in range(sent_count, safe_count):
                    top, state = row.top[i] if row.top else None, row.drawn_from[i] if row.drawn_from else None
                    on_token(Token(self.piece(row.tokens[i]), row.logprobs[i], top, state))
                sent_count = max(sent_count, safe_count)

            row.listener = send_safe_tokens
        return row

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _call_of_row(self, job: _Job, row: BatchRow, latency_ms: float) -> Call:
        alternative_count = self.capabilities.top_logprobs
        tokens = tuple(self.piece(token) for token in row.tokens)
        return job.request.local_call(
            self,
            job.prompt,
            tokens=tokens,
            token_ids=np.asarray(row.tokens, dtype=np.int32),
            segments=marked(tokens),
            text=self._decode(row.tokens) if row.text is None else row.text,
            logprobs=np.asarray(row.logprobs, dtype=np.float32),
            top_logprobs=np.array(row.top, dtype=np.float32).reshape(-1, alternative_count)
            if alternative_count
            else None,
            finish_reason=row.finish_reason,
            usage=Usage(prompt_tokens=len(job.prompt), completion_tokens=len(row.tokens)),
            latency_ms=latency_ms,
            hidden=replace(row.states.hidden(), canaries=self._canaries) if row.states else None,
        )

    def canaries(self) -> CanaryStates | None:
        """Returns the states that generation gives to the canaries. They are read again if the model has changed.

        None if no layers are kept, or if the model's context is too short.
        """
        if self.capture is None:
            return None
        with self._compute_lock:
            return self._current_canaries(StateReader(self.capture))

    def _current_canaries(self, reader: StateReader) -> CanaryStates | None:
        """Returns the canaries' states by the model as it is. They are read again after a change of the model, such as
        an adapter: those of the model before say nothing of its states.
        """
        sample = source_sample(self.model, self.tokenizer, reader.capture.layers)
        if sample != self._sample:
            self._canaries, self._sample = self._read_canaries(reader), sample
        return self._canaries

    def _read_canaries(self, reader: StateReader) -> CanaryStates | None:
        """Returns the states that generation gives to the canaries; None where the context holds too few of them."""
        # Make the token ids of the canaries that this model can read.
        capture = Capture(reader.capture.layers, CANARY_POSITIONS)
        token_ids: dict[str, tuple[list[int], list[int]]] = {}
        for canary in CANARIES:
            try:
                prompt = self.encode(canary.messages)
            except Exception:  # a chat template is a program of others: it may refuse a system message, say
                continue
            answer = encode_text(self.tokenizer, canary.answer)
            if prompt and answer and len(prompt) + len(answer) < self.context:
                token_ids[canary.id] = prompt, answer
        if len(token_ids) < FEWEST_CANARIES:
            return None
        # Generate each canary's given answer, and keep the states on the way.
        rows = []
        for _, answer in token_ids.values():
            matcher = GivenAnswer(answer, vocabulary=self.vocabulary, eos_ids=self._eos_ids)
            row = BatchRow(Sampling(max_tokens=len(answer)), matcher=matcher)
            row.states = RowStates(capture, self.piece)
            rows.append(row)
        prompts = [prompt for prompt, _ in token_ids.values()]
        for start in range(0, len(rows), CANARIES_AT_ONCE):
            batch_slice = slice(start, start + CANARIES_AT_ONCE)
            recorder = BatchRecorder(rows[batch_slice], eos_ids=self._eos_ids, device=self.model.device, reader=reader)
            with reader.hooks(self.model):
                generate(
                    self.model,
                    recorder,
                    prompts[batch_slice],
                    eos_ids=self._eos_ids,
                    pad=self.tokenizer.pad_token_id,
                    share_prefix=self.attends_to_whole_past,
                )
        return CanaryStates(
            source=library("transformers"),
            model=self.name,
            revision=self.revision,
            dtype=str(self.model.dtype).removeprefix("torch."),
            layers=capture.layers,
            ids=tuple(token_ids),
            prompts=tuple(tuple(prompt) for prompt, _ in token_ids.values()),
            answers=tuple(tuple(answer) for _, answer in token_ids.values()),
            values=np.stack([row.states.hidden().values for row in rows if row.states]),
        )


@cache
def _lock_of_device(device: str) -> Lock:
    """Returns the lock that is held while a model computes on this device."""
    return Lock()
