"""Answers from recorded calls: a pipeline runs again, or runs in a test, without its model."""

import dataclasses
import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from metaprobe.llms.base import Capabilities, LLMError, Request, Token
from metaprobe.records.types import Call, Message, Run, Sampling


def question_key(messages: Sequence[Message], sampling: Sampling, *more: Any) -> str:
    """SHA-256 over what is asked, how tokens are drawn, and whatever else matters (as JSON)."""
    asked = [[message.role, message.content] for message in messages]
    # 1 and 1.0 draw alike, and a store gives back 1.0 for either.
    drawn = dataclasses.asdict(sampling) | {
        "temperature": float(sampling.temperature),
        "top_p": float(sampling.top_p),
    }
    return hashlib.sha256(json.dumps([asked, drawn, *more]).encode()).hexdigest()


class ReplayLLM:
    """Answers a request with the recorded call that had the same messages and sampling.

    Where several had, the one with the request's own id, else the last.
    """

    def __init__(self, calls: Iterable[Call]) -> None:
        self._calls: dict[str, dict[str, Call]] = {}  # question -> id -> call
        for call in calls:
            self._calls.setdefault(question_key(call.messages, call.sampling), {})[call.id] = call
        if not self._calls:
            raise LLMError("no recorded calls to replay: the store is empty, or was written without texts (--no-text)")
        known = [call for same in self._calls.values() for call in same.values()]
        self.name = known[0].model
        self.revision = known[0].model_revision
        self.capabilities = Capabilities(
            logprobs=all(call.logprobs is not None for call in known),
            top_logprobs=min(0 if call.top_logprobs is None else call.top_logprobs.shape[1] for call in known),
            hidden=any(call.hidden is not None for call in known),
            stream=True,
        )

    @classmethod
    def from_runs(cls, runs: Iterable[Run]) -> "ReplayLLM":
        """All calls of these runs that kept their messages."""
        return cls(call for run in runs for call in run.calls if call.messages)

    async def complete(self, request: Request) -> Call:
        """The recorded call, under the request's id. Raises `LLMError` where nothing like it was recorded."""
        same = self._calls.get(question_key(request.messages, request.sampling))
        if same is None:
            question = request.messages[-1].content if request.messages else ""
            raise LLMError(
                f"request {request.id} was not recorded: {sum(map(len, self._calls.values()))} calls of {self.name} "
                f"are known, none with these messages and sampling (last message: {question[:80]!r})"
            )
        return under(request, same.get(request.id) or list(same.values())[-1])

    async def stream(self, request: Request) -> AsyncIterator[Token | Call]:
        """The recorded tokens, then the recorded call."""
        call = await self.complete(request)
        for token in replay_tokens(call):
            yield token
        yield call


def under(request: Request, call: Call) -> Call:
    """The same answer as an answer to `request`: its id, stage, agent, round and parent."""
    return dataclasses.replace(
        call,
        id=request.id,
        stage=request.stage,
        agent=request.agent,
        round=request.round,
        parent=request.parent,
    )


def replay_tokens(call: Call) -> Iterator[Token]:
    """The tokens of a finished call, as they would be streamed; the whole text as one where it kept no tokens."""
    for i, text in enumerate(call.tokens):
        yield Token(
            text,
            None if call.logprobs is None else float(call.logprobs[i]),
            None if call.top_logprobs is None else call.top_logprobs[i],
        )
    if not call.tokens and call.text:
        yield Token(call.text)
