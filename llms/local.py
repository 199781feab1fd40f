"""A language model on this machine, through transformers: batched, with log-probabilities and hidden states."""

import time
from collections.abc import Sequence
from functools import cache
from threading import Event
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from metaprobe.llms.base import LLMError, Request
from metaprobe.llms.batching import BatchQueue
from metaprobe.llms.prefix import padded, prefix_cache, shareable, shared_length
from metaprobe.llms.recorder import BatchRecorder, Cancelled, Capture, RowsDone, chosen_layers
from metaprobe.llms.weights import DEFAULT_MODEL, Weights, resolve
from metaprobe.records.types import Call, Message, Usage

# For base models that ship without a chat template.
PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] | capitalize }}: {{ m['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


class LocalLLM:
    """Answers concurrent requests in batches. Log-probabilities are raw: the model's own, before temperature."""

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
        self._model = model.eval()
        self._tokenizer = tokenizer
        self._top_logprobs = top_logprobs
        self._capture = capture
        self._queue = BatchQueue[tuple[Request, list[int]], Call](self._answer, batch_size=batch_size)
        self._eos_ids = _eos_ids(model, tokenizer)
        self._shareable = shareable(model)
        self._context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30
        self._piece = cache(lambda token: str(tokenizer.decode([token])))

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
        """Load an embedded model, a local folder, a GGUF file or a hub id, in bfloat16.

        `layers`: whose hidden states to keep at answers: `all`, `every:N`, or numbers such as `0,8,16`.
        `device`: a torch device; by default a GPU where torch sees one, else the CPU.
        """
        weights: Weights = resolve(model)
        try:
            tokenizer = AutoTokenizer.from_pretrained(weights.location, padding_side="left")
            network = AutoModelForCausalLM.from_pretrained(weights.location, dtype=torch.bfloat16)
        except (OSError, ValueError) as error:
            raise LLMError(f"model {model!r} cannot be loaded: {error}") from error
        if tokenizer.chat_template is None:
            tokenizer.chat_template = PLAIN_TEMPLATE
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        network.to(torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))  # type: ignore[arg-type]
        revision = weights.revision or str(getattr(network.config, "_commit_hash", None) or "unknown")
        return cls(
            network,
            tokenizer,
            name=weights.name,
            revision=revision,
            batch_size=batch_size,
            top_logprobs=top_logprobs,
            capture=Capture(chosen_layers(layers, network)) if layers else None,
        )

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Prompt token ids, by the model's chat template."""
        chat = [{"role": message.role, "content": message.content} for message in messages]
        text = self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        return [int(token) for token in self._tokenizer(text, add_special_tokens=False).input_ids]

    async def complete(self, request: Request) -> Call:
        """The finished call. Raises `LLMError` for a prompt that leaves no room in the model's context."""
        prompt = self.encode(request.messages)
        max_tokens = request.sampling.max_tokens
        if max_tokens < 1:
            raise LLMError(f"request {request.id}: max_tokens must be at least 1, got {max_tokens}")
        if len(prompt) + max_tokens + 1 > self._context:
            raise LLMError(
                f"request {request.id}: a prompt of {len(prompt)} tokens and max_tokens {max_tokens} exceed the "
                f"context of {self.name} ({self._context} tokens): shorten one of them"
            )
        return await self._queue.submit((request, prompt), kind=max_tokens, length=len(prompt))

    def _answer(self, batch: Sequence[tuple[Request, list[int]]], abandoned: Event) -> list[Call | Exception]:
        if not batch:
            return []
        # A capture for one stage must not slow down the batches of the others.
        captured = [self._captures(request) for request, _ in batch]
        recorder = BatchRecorder(
            [request.sampling for request, _ in batch],
            eos_ids=self._eos_ids,
            device=self._model.device,
            top_logprobs=self._top_logprobs,
            capture=self._capture if any(captured) else None,
            cancel=abandoned,
        )
        prompts = [prompt for _, prompt in batch]
        shared = shared_length(prompts) if self._shareable else 0
        ids, mask = padded(prompts, self._tokenizer.pad_token_id, shared, self._model.device)
        # A model's own generation defaults (repetition penalty, top-k) would change what is recorded as raw.
        config = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=max(request.sampling.max_tokens for request, _ in batch) + 1,
            do_sample=False,
            eos_token_id=self._eos_ids,
            pad_token_id=self._tokenizer.pad_token_id,
        )
        started = time.perf_counter()
        try:
            with torch.inference_mode():
                past = prefix_cache(self._model, ids[:1, :shared], len(batch)) if shared else None
            with torch.inference_mode(), recorder.hooks(self._model):
                self._model.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    past_key_values=past,
                    generation_config=config,
                    logits_processor=[recorder],
                    stopping_criteria=[RowsDone(recorder)],
                )
        except Cancelled:
            return [LLMError("generation was cancelled")] * len(batch)
        except RuntimeError as error:  # out of memory, above all
            return [LLMError(f"{self.name} failed on a batch of {len(batch)}: {error}; try a smaller batch")] * len(
                batch
            )
        latency_ms = (time.perf_counter() - started) * 1000
        return [
            self._call(request, prompt, recorder, row, latency_ms, captured[row])
            for row, (request, prompt) in enumerate(batch)
        ]

    def _captures(self, request: Request) -> bool:
        return self._capture is not None and (not self._capture.stages or request.stage in self._capture.stages)

    def _call(
        self, request: Request, prompt: list[int], recorder: BatchRecorder, row: int, latency_ms: float, captured: bool
    ) -> Call:
        ids = recorder.tokens(row)
        top = recorder.top_logprobs(row)
        return Call(
            id=request.id,
            stage=request.stage,
            agent=request.agent,
            round=request.round,
            parent=request.parent,
            model=self.name,
            model_revision=self.revision,
            model_dtype=self.dtype,
            messages=request.messages,
            prompt_token_ids=np.asarray(prompt, dtype=np.int32),
            text=str(self._tokenizer.decode(ids, skip_special_tokens=True)),
            tokens=tuple(self._piece(token) for token in ids),
            token_ids=np.asarray(ids, dtype=np.int32),
            logprobs=recorder.logprobs(row).numpy(),
            top_logprobs=None if top is None else top.numpy(),
            sampling=request.sampling,
            logprobs_mode="raw",
            finish_reason=recorder.finish_reason(row),
            usage=Usage(prompt_tokens=len(prompt), completion_tokens=len(ids)),
            latency_ms=latency_ms,
            hidden=recorder.hidden(row) if captured else None,
        )


def _eos_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends an answer, by the tokenizer and by the model's own generation settings."""
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    listed = configured if isinstance(configured, list) else [configured]
    return sorted({int(token) for token in [*listed, tokenizer.eos_token_id] if token is not None})
