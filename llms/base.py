"""The protocol that every language model here follows, and its requests."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, FloatArray, Message, Sampling


class LLMError(RecordError):
    """A language model could not be loaded, or could not answer."""

    refused = False
    """Whether an endpoint refuses the request in this form. Another form of the request may succeed."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The data that a model returns beside its text."""

    logprobs: bool = False
    """Whether every generated token comes with its log-probability."""
    top_logprobs: int = 0
    """Number of alternatives that are kept for each token."""
    hidden: bool = False
    """Whether requests that ask for hidden states get them."""
    stream: bool = False
    """Whether tokens arrive one by one."""
    text: bool = True
    """Whether the model writes texts. A decision model only answers typed questions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A question to a model, and its place in a run. The answering `Call` has the same id, stage and parent."""

    id: str
    messages: tuple[Message, ...]
    sampling: Sampling = field(default_factory=Sampling)
    stage: str = ""
    """Step of a system that makes the request, such as `generate`."""
    agent: str = ""
    round: int = 0
    parent: str | None = None
    """Id of the call from which this one follows; None for the first."""
    hidden: bool = False
    """Whether to keep the hidden states that the model was loaded to capture."""

    def call(self, **answer_fields: Any) -> Call:
        """Returns the call that answers this request; `answer_fields` gives its other fields. It asks no model."""
        return Call(
            id=self.id,
            stage=self.stage,
            agent=self.agent,
            round=self.round,
            parent=self.parent,
            messages=self.messages,
            sampling=self.sampling,
            **answer_fields,
        )

    def local_call(self, llm: Any, prompt: Sequence[int], **answer_fields: Any) -> Call:
        """Returns the call with which a local model answers this request. It asks no model.

        Args:
            llm: the model; it has `name`, `revision` and `dtype`.
            prompt: token ids of the prompt.
            **answer_fields: other fields of the call.
        """
        return self.call(
            model=llm.name,
            model_revision=llm.revision,
            model_dtype=llm.dtype,
            prompt_token_ids=np.asarray(prompt, dtype=np.int32),
            logprobs_mode="raw",
            **answer_fields,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """One streamed token."""

    text: str
    logprob: float | None = None
    """Log-probability in nats; None if the source gives none."""
    top_logprobs: FloatArray | None = None
    """Log-probabilities of the k likeliest tokens, descending: float32, shape (k,), nats."""
    state: FloatArray | None = None
    """Hidden states from which the token was drawn, float32 (layers, width): those of the token before it. None if the
    request asks for none."""


class LLM(Protocol):
    """Answers requests, many at a time."""

    @property
    def name(self) -> str:
        """The model's name in records."""

    @property
    def revision(self) -> str:
        """The version of the weights: a commit, or a fingerprint of the files."""

    @property
    def capabilities(self) -> Capabilities:
        """The data that the model returns beside its text."""

    async def complete(self, request: Request) -> Call:
        """Returns the finished call. Raises `LLMError` if the model cannot answer this request."""

    def stream(self, request: Request) -> AsyncIterator[Token | Call]:
        """Yields the tokens as they arrive, and last the finished call."""


class WrappedLLM:
    """Passes every call to a model. Subclasses do something before or after the calls."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    @property
    def name(self) -> str:
        return self._llm.name

    @property
    def revision(self) -> str:
        return self._llm.revision

    @property
    def capabilities(self) -> Capabilities:
        return self._llm.capabilities

    async def complete(self, request: Request) -> Call:
        return await self._llm.complete(request)

    def stream(self, request: Request) -> AsyncIterator[Token | Call]:
        return self._llm.stream(request)
