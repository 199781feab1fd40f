"""Answers from recorded calls: a pipeline runs again, or runs in a test, without its model."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence

from metaprobe.llms.base import LLMError, Request
from metaprobe.records.types import Call, Message, Run, Sampling


class ReplayLLM:
    """Answers a request with the recorded call that had the same messages and sampling."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self._calls = {_key(call.messages, call.sampling): call for call in calls}
        if not self._calls:
            raise LLMError("no recorded calls to replay: the store is empty, or was written without texts (--no-text)")
        first = next(iter(self._calls.values()))
        self.name = first.model
        self.revision = first.model_revision

    @classmethod
    def from_runs(cls, runs: Iterable[Run]) -> "ReplayLLM":
        """All calls of these runs that kept their messages."""
        return cls(call for run in runs for call in run.calls if call.messages)

    async def complete(self, request: Request) -> Call:
        """The recorded call, under the request's id. Raises `LLMError` where nothing like it was recorded."""
        call = self._calls.get(_key(request.messages, request.sampling))
        if call is None:
            question = request.messages[-1].content if request.messages else ""
            raise LLMError(
                f"request {request.id} was not recorded: {len(self._calls)} calls of {self.name} are known, none with "
                f"these messages and sampling (last message: {question[:80]!r})"
            )
        return dataclasses.replace(
            call,
            id=request.id,
            stage=request.stage,
            agent=request.agent,
            round=request.round,
            parent=request.parent,
        )


def _key(messages: Sequence[Message], sampling: Sampling) -> str:
    said = [[message.role, message.content] for message in messages]
    return hashlib.sha256(json.dumps([said, dataclasses.asdict(sampling)]).encode()).hexdigest()
