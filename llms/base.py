"""Who is asked: the one protocol that every language model here follows."""

from dataclasses import dataclass, field
from typing import Protocol

from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Message, Sampling


class LLMError(RecordError):
    """A language model could not be loaded or could not answer."""


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


class LLM(Protocol):
    """Answers requests, many at a time."""

    @property
    def name(self) -> str:
        """The model's name as it is written into records."""
        ...

    @property
    def revision(self) -> str:
        """Which weights these are: a commit, or a fingerprint of the files."""
        ...

    async def complete(self, request: Request) -> Call:
        """The finished call. Raises `LLMError` where the model cannot answer this request."""
        ...
