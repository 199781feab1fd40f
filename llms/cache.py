"""Stores finished calls and returns them again: a kill loses no paid call, and a pipeline can run without its model.

The cache holds every finished call in one SQLite file in WAL mode. A committed call survives the death of the process
(SIGKILL), and several processes of one machine may share the file. After a power failure the last calls may be missing,
but the file stays valid. A replay answers from recorded calls, also in tests.
"""

import asyncio
import dataclasses
import hashlib
import io
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from weakref import WeakValueDictionary

import numpy as np

from metaprobe.llms.base import LLM, Capabilities, LLMError, Request, Token, WrappedLLM
from metaprobe.records.canaries import CanaryStates
from metaprobe.records.database import Database
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Hidden, Message, Run, Sampling, Segment, Usage


def question_key(messages: Sequence[Message], sampling: Sampling, *more: Any) -> str:
    """Returns a SHA-256 of the messages, the sampling, and other values that matter (as JSON).

    Args:
        messages: messages of the request.
        sampling: how tokens are drawn.
        more: other values on which the answer depends.
    """
    contents = [[message.role, message.content] for message in messages]
    # 1 and 1.0 draw alike, and a store gives back 1.0 for either.
    sampling_fields = dataclasses.asdict(sampling) | {
        "temperature": float(sampling.temperature),
        "top_p": float(sampling.top_p),
    }
    return hashlib.sha256(json.dumps([contents, sampling_fields, *more]).encode()).hexdigest()


class ReplayLLM:
    """Answers a request with the recorded call that has the same messages and sampling.

    If several calls have them, the one with the request's id is used, else the last.
    """

    def __init__(self, calls: Iterable[Call]) -> None:
        self._calls: dict[str, dict[str, Call]] = {}  # question -> id -> call
        for call in calls:
            self._calls.setdefault(question_key(call.messages, call.sampling), {})[call.id] = call
        if not self._calls:
            raise LLMError("no recorded calls to replay: the store is empty, or was written without texts (--no-text)")
        recorded = [call for calls_by_id in self._calls.values() for call in calls_by_id.values()]
        self.name = recorded[0].model
        self.revision = recorded[0].model_revision
        self.capabilities = Capabilities(
            logprobs=all(call.logprobs is not None for call in recorded),
            top_logprobs=min(0 if call.top_logprobs is None else call.top_logprobs.shape[1] for call in recorded),
            hidden=any(call.hidden is not None for call in recorded),
            stream=True,
        )

    @classmethod
    def from_runs(cls, runs: Iterable[Run]) -> "ReplayLLM":
        """Returns a replay of all calls of these runs whose messages were kept."""
        return cls(call for run in runs for call in run.calls if call.messages)

    async def complete(self, request: Request) -> Call:
        """Returns the recorded call with these messages and this sampling, under the request's id. Raises `LLMError` if
        none was recorded.
        """
        calls_by_id = self._calls.get(question_key(request.messages, request.sampling))
        if calls_by_id is None:
            question = request.messages[-1].content if request.messages else ""
            raise LLMError(
                f"request {request.id} was not recorded: {sum(map(len, self._calls.values()))} calls of {self.name} "
                f"are known, none with these messages and sampling (last message: {question[:80]!r})"
            )
        return renamed_for(request, calls_by_id.get(request.id) or list(calls_by_id.values())[-1])

    async def stream(self, request: Request) -> AsyncIterator[Token | Call]:
        """Yields the recorded tokens, then the recorded call."""
        call = await self.complete(request)
        for token in replay_tokens(call):
            yield token
        yield call


def renamed_for(request: Request, call: Call) -> Call:
    """Returns the call as an answer to `request`: with its id, stage, agent, round and parent."""
    place_fields = {name: getattr(request, name) for name in ("id", "stage", "agent", "round", "parent")}
    return dataclasses.replace(call, **place_fields)


def replay_tokens(call: Call) -> Iterator[Token]:
    """Yields the tokens of a finished call as if streamed; the whole text as one token if no tokens were kept."""
    for i, text in enumerate(call.tokens):
        yield Token(
            text,
            None if call.logprobs is None else float(call.logprobs[i]),
            None if call.top_logprobs is None else call.top_logprobs[i],
        )
    if not call.tokens and call.text:
        yield Token(call.text)


CACHE_FORMAT = 1
"""Version of the format. It is raised when an older reader could no longer read the file."""
APPLICATION_ID = 0x4D504343  # distinguishes our file from any other SQLite file
_TABLE = "CREATE TABLE IF NOT EXISTS calls (key TEXT PRIMARY KEY, call TEXT, arrays BLOB, sha256 TEXT) WITHOUT ROWID"
_CANARIES = "canaries "
"""Beginning of the keys under which states of canaries are kept; their digest follows."""
_ARRAYS = ("prompt_token_ids", "token_ids", "logprobs", "top_logprobs")
"""Fields of a call that are stored as arrays."""


class CallCache(Database):
    """Stores calls by key in one SQLite file. Safe for several processes and threads."""

    def __init__(self, path: str | Path) -> None:
        """Opens the file, or creates it. Raises `LLMError` if the file is of another kind, or damaged."""
        super().__init__(
            path,
            what="call cache",
            table=_TABLE,
            application=APPLICATION_ID,
            version=CACHE_FORMAT,
            lost="its calls are asked again",
            error=LLMError,
        )
        self._canaries: dict[str, CanaryStates] = {}

    def get(self, key: str) -> Call | None:
        """Returns the call stored under this key; None if there is none. A damaged call is deleted."""
        call, canaries = self._row_of_key(key)
        if call is None or call.hidden is None or not isinstance(canaries, str):
            return call
        hidden = dataclasses.replace(call.hidden, canaries=self._stored_canaries(_CANARIES + canaries))
        return dataclasses.replace(call, hidden=hidden)

    def _row_of_key(self, key: str) -> tuple[Call | None, Any]:
        """Returns the call stored under this key, and the digest of the canaries of its hidden states."""
        with self.named():
            row = self.execute("SELECT call, arrays, sha256 FROM calls WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None, None
            text, data, digest = row
            if isinstance(text, str) and isinstance(data, bytes) and _digest(text, data) == digest:
                # A row of a program that is not ours may have a right digest, which says nothing of its content.
                with suppress(ValueError, TypeError, LookupError, AttributeError, RecursionError, MemoryError):
                    facts = json.loads(text)
                    canaries = facts.pop("canaries", None)
                    return _call_of_facts(facts, io.BytesIO(data)), canaries
            self.execute("DELETE FROM calls WHERE key = ? AND sha256 IS ?", (key, digest))
            return None, None

    def put(self, key: str, call: Call) -> None:
        """Stores a call. The first call under a key is kept. Raises `Unwritable` if it cannot be written."""
        arrays = {name: value for name in _ARRAYS if (value := getattr(call, name)) is not None}
        facts = {f.name: getattr(call, f.name) for f in dataclasses.fields(call) if f.name not in (*_ARRAYS, "hidden")}
        for name in ("sampling", "usage"):
            facts[name] = dataclasses.asdict(facts[name])
        facts["messages"] = [[message.role, message.content] for message in call.messages]
        facts["segments"] = [[segment.kind, segment.start, segment.end] for segment in call.segments]
        if call.hidden is not None:
            arrays["hidden"] = call.hidden.values
            facts["hidden"] = [call.hidden.layers, call.hidden.positions]
            if call.hidden.canaries is not None:  # kept once, as a call of its own
                facts["canaries"] = call.hidden.canaries.digest
                name = _CANARIES + call.hidden.canaries.digest
                if not self._stored_canaries(name):
                    self.put(name, Call(id=name, text=call.hidden.canaries.to_json().decode()))
        file = io.BytesIO()
        for array in arrays.values():
            np.lib.format.write_array(file, array, allow_pickle=False)
        text, data = json.dumps(facts | {"arrays": list(arrays)}), file.getvalue()
        row = key, text, data, _digest(text, data)
        with self.named(keeping=True):
            self.execute("INSERT OR IGNORE INTO calls VALUES (?, ?, ?, ?)", row)

    def _stored_canaries(self, name: str) -> CanaryStates | None:
        """Returns the canaries' states that are stored under this name; None if there are none."""
        if name not in self._canaries and (stored := self.get(name)) is not None:
            with suppress(RecordError):
                states = CanaryStates.from_json(stored.text)
                if name == _CANARIES + states.digest:
                    self._canaries[name] = states
        return self._canaries.get(name)

    def wrap(self, llm: LLM, *, on_call: "OnCall | None" = None) -> "CachedLLM":
        """Returns a model that looks into this cache before it asks `llm`. `on_call`: called after each call."""
        return CachedLLM(llm, self, on_call=on_call or (lambda call, kept: None))

    def __len__(self) -> int:
        count_query = "SELECT count(*) FROM calls WHERE key NOT LIKE ?"
        with self.named():
            return int(self.execute(count_query, (f"{_CANARIES}%",)).fetchone()[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


OnCall = Callable[[Call, bool], None]
"""Called with each finished call, and whether the cache had it."""


class CachedLLM(WrappedLLM):
    """A model that is asked only what it was not asked before.

    A hit returns the recorded answer, latency and cost, under the new request's id, stage, agent, round and parent. Two
    requests are equal if model, revision and dtype, messages, sampling, and what is kept of the answer are equal. A
    sampled request without a seed must also have the same id, so that two draws stay two. Errors are not stored.
    """

    def __init__(self, llm: LLM, cache: CallCache, *, on_call: OnCall) -> None:
        """`on_call` is called for every finished call."""
        super().__init__(llm)
        self._cache = cache
        self._on_call = on_call
        self._lock_of_key: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def asked_how(self) -> str:
        """Address and settings with which an endpoint is asked; empty for a local model."""
        return str(getattr(self._llm, "asked_how", ""))

    async def complete(self, request: Request) -> Call:
        """Returns the stored call, or else asks. Of equal requests at the same time, only one is asked."""
        key = self.key(request)
        async with self._key_lock(key):
            call = self._cache.get(key)
            was_stored = call is not None
            if call is None:
                call = await self._llm.complete(request)
                self._store(key, call)
        self._on_call(call, was_stored)
        return renamed_for(request, call)

    async def stream(self, request: Request) -> AsyncIterator[Token | Call]:
        """Yields the tokens as they arrive, or as they were stored, then the call. A call is stored only if it is
        complete.
        """
        key = self.key(request)
        # Held only while looking: a stream that its reader has left open must not stop others.
        async with self._key_lock(key):
            stored_call = self._cache.get(key)
        if stored_call is not None:
            for token in replay_tokens(stored_call):
                yield token
            yield renamed_for(request, stored_call)
            return
        async for event in self._llm.stream(request):
            if isinstance(event, Call):
                self._store(key, event)
            yield event

    def key(self, request: Request) -> str:
        """Returns a SHA-256 of everything on which the answer depends."""
        llm, sampling = self._llm, request.sampling
        draws_anew = sampling.temperature > 0 and sampling.seed is None
        hidden = repr(getattr(llm, "capture", None)) if request.hidden and llm.capabilities.hidden else None
        # Two servers may give the same name to other weights, and record other log-probabilities.
        asked_how = [how] if (how := self.asked_how) else []
        model_identity = [llm.name, llm.revision, getattr(llm, "dtype", ""), *asked_how]
        return question_key(
            request.messages,
            sampling,
            [*model_identity, llm.capabilities.top_logprobs, hidden],
            None,  # place of a text that an older version scored; it stays, so that stored calls are found
            request.id if draws_anew else None,
        )

    def _store(self, key: str, call: Call) -> None:
        if call.error is None:
            self._cache.put(key, call)

    def _key_lock(self, key: str) -> asyncio.Lock:
        # There is one lock per key, and it goes when nobody holds it. The second request finds the first one's call.
        # If the first request failed or was cancelled, the second asks the model itself.
        return self._lock_of_key.setdefault(key, asyncio.Lock())


def _call_of_facts(facts: Any, file: io.BytesIO) -> Call:
    """Returns a stored call: its fields as JSON gives them, and its arrays, which are read from the file in order."""
    arrays = {name: np.lib.format.read_array(file, allow_pickle=False) for name in facts.pop("arrays")}
    hidden = None
    if "hidden" in facts:
        layers, positions = facts["hidden"]
        hidden = Hidden(values=arrays.pop("hidden"), layers=tuple(layers), positions=tuple(positions))
    return Call(
        **facts
        | arrays
        | {
            "messages": tuple(Message(*message) for message in facts["messages"]),
            "tokens": tuple(facts["tokens"]),
            "segments": tuple(Segment(*segment) for segment in facts.get("segments", ())),  # none in older rows
            "sampling": Sampling(**facts["sampling"] | {"stop": tuple(facts["sampling"]["stop"])}),
            "usage": Usage(**facts["usage"]),
            "hidden": hidden,
        }
    )


def _digest(text: str, data: bytes) -> str:
    return hashlib.sha256(text.encode() + b"\0" + data).hexdigest()
