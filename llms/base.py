"""Who is asked: the one protocol that every language model here follows."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, FloatArray, Message, Sampling


class LLMError(RecordError):
    """A language model could not be loaded or could not answer."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a model gives beside its text."""

    logprobs: bool = False
    """Of every generated token."""
    top_logprobs: int = 0
    """Alternatives a token that it was asked to keep."""
    hidden: bool = False
    """Hidden states, of requests that ask for them."""
    json_schema: bool = False
    """Text held to `Sampling.json_schema`."""
    stream: bool = False
    loglikelihood: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked, and where in a run it stands; the answering `Call` carries the same id, stage and parent."""

    id: str
    messages: tuple[Message, ...]
    sampling: Sampling = field(default_factory=Sampling)
    stage: str = ""
    agent: str = ""
    round: int = 0
    parent: str | None = None
    hidden: bool = False
    """Keep the hidden states that the model was loaded to capture."""

    def call(self, **answer: Any) -> Call:
        """Returns the call that answers this request; `answer` gives its other fields."""
        return Call(
            id=self.id,
            stage=self.stage,
            agent=self.agent,
            round=self.round,
            parent=self.parent,
            messages=self.messages,
            sampling=self.sampling,
            **answer,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """One streamed token."""

    text: str
    logprob: float | None = None
    """Nats."""
    top_logprobs: FloatArray | None = None
    """float32, shape (k,), nats, descending."""


class LLM(Protocol):
    """Answers requests, many at a time."""

    @property
    def name(self) -> str:
        """The model's name as it is written into records."""

    @property
    def revision(self) -> str:
        """Which weights these are: a commit, or a fingerprint of the files."""

    @property
    def capabilities(self) -> Capabilities:
        """What it gives beside its text."""

    async def complete(self, request: Request) -> Call:
        """The finished call. Raises `LLMError` where the model cannot answer this request."""

    def stream(self, request: Request) -> AsyncIterator[Token | Call]:
        """The tokens as they come, then the finished call, which is the last thing yielded."""

    async def loglikelihood(self, request: Request, continuation: str) -> Call:
        """The call whose answer would be `continuation`, with its tokens' log-probabilities; nothing is generated.

        A request without messages is plain text from its beginning, without a chat template. Raises `LLMError` where
        the model cannot say.
        """


class WrappedLLM:
    """The same model; a class made from this one does something before or after its calls."""

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

    async def loglikelihood(self, request: Request, continuation: str) -> Call:
        return await self._llm.loglikelihood(request, continuation)
