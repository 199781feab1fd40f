"""Watches an answer while it streams: every chunk passes unchanged, and at the end there is a verdict.

    for chunk in (watched := watch(stream, predictor, gates)): ...
    watched.verdict, watched.action

`stream` is what the openai client returns for `stream=True` (chat completions, text completions or Responses; sync or
async), or any other iterable of such chunks, for example LiteLLM's, the chunks of Ollama's own API, or what vLLM's
`AsyncLLM.generate` yields. Neither the client nor the stream is changed.
"""

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, Self, TypeVar, cast, overload

from metaprobe.checkpoints import ContractMismatch
from metaprobe.checkpoints.flagging import ENDED
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.scored_answer import OnVerdict, Scored
from metaprobe.probes.verdict import Verdict
from metaprobe.records.answer_stream import AnswerStream, Piece
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.reading import text
from metaprobe.records.response import first_of
from metaprobe.routing.gate import ENDED_OR_CUT, GOOD_OR_BAD, Gate, StreamingGate


class GatedAnswer:
    """One streamed answer and its gate, which is switched off for answers that it cannot judge."""

    def __init__(
        self, gates: StreamingGate | Gate | None, *, question: str = "", max_tokens: int | None = None
    ) -> None:
        """Sets up the gate of one answer.

        Args:
            gates: makes the answer's gate, or is the gate itself; None for no gate.
            question: the question, as for `StreamingGate.start`.
            max_tokens: token limit of the request, as for `StreamingGate.start`.
        """
        self._gates = gates
        self._asked: dict[str, Any] = {
            **({"question": question} if question else {}),
            **({"max_tokens": max_tokens} if max_tokens is not None else {}),
        }
        self._gate: Gate | None = None
        self._decided = ""
        self.note = ""
        """A warning about the gate, or why the gate stepped back."""
        self.action = ""
        """`stop` or `escalate` if the gate has decided to end the answer; empty before."""

    def follow(self, stream: AnswerStream, piece: Piece) -> None:
        """Takes in a chunk of a stream, as `AnswerStream.add` has read it.

        Neither a refusal nor a tool call has a score, and one of several answers must not end the others. The tokens of
        an echoed prompt are not the answer's.
        """
        if self._gates is None:
            return
        if stream.declined or stream.called or stream.has_others or stream.echoes or stream.fault:
            self.step_back()
        if not stream.ended:  # nothing is left to stop
            shown = stream.kind == "event" or bool(piece.text or piece.thought)
            self.push(piece.spoken, text(stream.known.get("model")), shown=shown)

    def push(self, entries: Sequence[Mapping[str, Any]], model: str, *, shown: bool) -> None:
        """Takes in the tokens of a chunk. `shown`: whether it brought text too.

        A decision on tokens without text takes effect at the next text. A server holds back the beginning of a tool
        call until it can name the tool, and a call that has begun is never ended.
        """
        if self._gates is None or self.action:
            return
        if not self._decided:
            self._judge(self._gates, entries, model)
        if shown and self._gates is not None:
            self.action = self._decided

    def _judge(self, gates: StreamingGate | Gate, entries: Sequence[Mapping[str, Any]], model: str) -> None:
        try:
            if self._gate is None:
                starts = hasattr(gates, "start")
                self._gate = (
                    cast("StreamingGate", gates).start(model=model, **self._asked) if starts else cast("Gate", gates)
                )
                self.note = getattr(self._gate, "note", "")
            for entry in entries:
                action = self._gate.push(entry["logprob"])
                if action != "continue":
                    self._decided = action
                    break
        except ContractMismatch as error:
            self.note = f"not gated: {error}"
            self.step_back()
        except (InvalidResponse, LookupError, TypeError):
            self.step_back()  # what is wrong with these tokens, the verdict on the whole answer says

    def step_back(self) -> None:
        """Switches the gate off for the rest of this answer."""
        self._gates = None

    def verdict(self) -> tuple[float | None, str, dict[str, Any]]:
        """Returns (score, reason, details) of an answer that the gate ended.

        The score is P(good). It is None for a gate that learned which answers end by themselves, because that is no
        probability of being right; the details then hold P(ends by itself) as `ended`.
        """
        assert self._gate is not None
        p, tokens = self._gate.score, self._gate.fired_at
        details: dict[str, Any] = {"action": self.action, "tokens": tokens}
        what = f"{'handed on' if self.action == 'escalate' else 'stopped'} early by the gate after {tokens} tokens"
        if getattr(self._gate, "token_limit", None):
            what += f": will probably be cut by the token limit ({ENDED_OR_CUT.probability} {p:.3f})"
            return None, "; ".join(filter(None, [what, self.note])), {**details, ENDED: p}
        at_score = "" if p is None else f", at {GOOD_OR_BAD.probability} {p:.3f}"
        return p, "; ".join(filter(None, [f"{what}{at_score}", self.note])), details


T = TypeVar("T")


@overload
def watch(
    stream: AsyncIterable[T],
    predictor: QualityPredictor,
    gate: StreamingGate | Gate | None = None,
    *,
    on_verdict: OnVerdict | None = None,
) -> "AsyncWatchedStream[T]": ...
@overload
def watch(
    stream: Iterable[T],
    predictor: QualityPredictor,
    gate: StreamingGate | Gate | None = None,
    *,
    on_verdict: OnVerdict | None = None,
) -> "WatchedStream[T]": ...
def watch(
    stream: Iterable[T] | AsyncIterable[T],
    predictor: QualityPredictor,
    gate: StreamingGate | Gate | None = None,
    *,
    on_verdict: OnVerdict | None = None,
) -> "WatchedStream[T] | AsyncWatchedStream[T]":
    """Returns a stream of the unchanged chunks, sync or async like `stream`, with a verdict at its end.

    The returned stream can be iterated once.

        >>> entry = {"token": "4", "logprob": -0.1}
        >>> chunk = {"choices": [{"index": 0, "delta": {"content": "4"}, "logprobs": {"content": [entry]}}]}
        >>> end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        >>> watched = watch([chunk, end], QualityPredictor.load())
        >>> len(list(watched)), 0 < watched.verdict.score < 1
        (2, True)

    `gate`: a `StreamingGate`, which is started for this answer, or a gate that was started already. When its action is
    `stop` or `escalate`, the upstream stream is closed, so that the server can end its work; the chunk that decided
    this still comes. `on_verdict` is called once: at the end, when the gate fires, when the stream fails (the error is
    then raised to the caller), or when it is closed before its end.
    """
    if not isinstance(stream, AsyncIterable):
        return WatchedStream(stream, predictor, gate, on_verdict)
    if not isinstance(stream, Iterable):
        return AsyncWatchedStream(stream, predictor, gate, on_verdict)
    return _EitherWatchedStream(stream, predictor, gate, on_verdict)


class _Watched(Generic[T]):
    """The streamed answer that `watch` returns, with what is known of it so far. Other attributes are those of the
    upstream stream.
    """

    def __init__(
        self,
        stream: Any,
        predictor: QualityPredictor,
        gate: StreamingGate | Gate | None,
        on_verdict: OnVerdict | None,
    ) -> None:
        # Said now, and not in the middle of the caller's stream.
        if not hasattr(predictor, "predict"):
            raise TypeError(f"predictor is a {type(predictor).__name__}; expected a QualityPredictor")
        if gate is not None and not hasattr(gate, "start") and not hasattr(gate, "push"):
            raise TypeError(f"gate is a {type(gate).__name__}; expected a StreamingGate, or a gate that it started")
        if getattr(gate, "fired_at", None) is not None:
            raise ValueError("this gate has fired for another answer; start a new one for this")
        self._stream = stream
        self._predictor = predictor
        self._on_verdict = on_verdict
        self._answer = AnswerStream()
        self._unreadable = ""
        self._gated = GatedAnswer(gate)
        self.tokens_seen = 0
        """The number of tokens with a log-probability so far."""
        self.scored: Scored | None = None
        """The verdict, with the answer it is about; None until the stream has ended."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self._stream, name)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict; None until the stream has ended, and None if there is no verdict, for which `reason` gives the
        cause. For an answer that the gate ended, its score is the gate's own P(good), because the predictor scores only
        finished answers; None for a gate with a `token_limit`, of which `reason` gives P(ends by itself).
        """
        return None if self.scored is None else self.scored.verdict

    @property
    def reason(self) -> str:
        """Why there is no verdict, or what makes it doubtful."""
        return "the stream has not ended" if self.scored is None else str(self.scored.as_metadata()["reason"])

    @property
    def action(self) -> str:
        """`continue`, or `stop` or `escalate` once the gate has said so."""
        return self._gated.action or "continue"

    def _end(self, scored: Scored) -> object:
        self.scored = scored
        return None if self._on_verdict is None else self._on_verdict(scored)

    def _add(self, chunk: object) -> bool:
        """Takes in one chunk; whether the gate ends the answer with it."""
        try:
            piece = self._answer.add(chunk)
        except InvalidResponse as error:
            self._unreadable = self._unreadable or str(error)
            self._gated.step_back()
            return False
        self.tokens_seen += len(piece.entries)
        self._gated.follow(self._answer, piece)
        return bool(self._gated.action)

    def _finished(self) -> Scored:
        try:
            response = self._answer.response()
        except InvalidResponse as error:
            return self._told(None, str(error))
        if self._unreadable:
            return self._told(None, self._unreadable)
        note = "; ".join(filter(None, [first_of(1 + self._answer.has_others, 0), self._gated.note]))
        scored = self._told(None, "")
        return Scored.of(self._predictor, response, note=note, response_id=scored.response_id, model=scored.model)

    def _gate_fired(self) -> Scored:
        value, reason, _ = self._gated.verdict()
        digest = self._predictor.checkpoint.digest
        verdict = Verdict(value, {}, critical=None, flagged=True, checkpoint=digest, reason=reason)
        return self._told(verdict, reason)

    def _unfinished(self, why: str) -> Scored:
        return self._told(None, f"{why}, after {self.tokens_seen} tokens")

    def _told(self, verdict: Verdict | None, reason: str) -> Scored:
        answer_fields, action = self._answer.known, "" if verdict is None else self._gated.action
        return Scored(verdict, reason, text(answer_fields.get("id")), text(answer_fields.get("model")), action=action)


class WatchedStream(_Watched[T], Iterator[T]):
    """A synchronous stream that `watch` returned."""

    def __next__(self) -> T:
        if self.scored is not None:
            raise StopIteration
        try:
            chunk: T = next(self._chunks)
        except StopIteration:
            self._end(self._finished())
            raise
        except Exception as error:
            self._end(self._unfinished(f"the stream failed ({type(error).__name__})"))
            raise
        if self._add(chunk):
            self._close()
            self._end(self._gate_fired())
        return chunk

    def close(self) -> None:
        """Closes the upstream stream. There is no verdict if the answer had not ended."""
        self._close()
        if self.scored is None:
            self._end(self._unfinished("the stream was closed before its end"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def _chunks(self) -> Iterator[T]:
        return iter(self._stream)

    def _close(self) -> None:
        close = getattr(self._stream, "close", None)
        if close is not None:
            close()


class AsyncWatchedStream(_Watched[T], AsyncIterator[T]):
    """An asynchronous stream that `watch` returned. Scoring takes less than a millisecond, in the event loop."""

    async def __anext__(self) -> T:
        if self.scored is not None:
            raise StopAsyncIteration
        try:
            chunk: T = await anext(self._achunks)
        except StopAsyncIteration:
            await _done(self._end(self._finished()))
            raise
        except Exception as error:
            await _done(self._end(self._unfinished(f"the stream failed ({type(error).__name__})")))
            raise
        if self._add(chunk):
            await self._aclose()
            await _done(self._end(self._gate_fired()))
        return chunk

    async def aclose(self) -> None:
        """Closes the upstream stream. There is no verdict if the answer had not ended."""
        await self._aclose()
        if self.scored is None:
            await _done(self._end(self._unfinished("the stream was closed before its end")))

    close: Any = aclose

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @cached_property
    def _achunks(self) -> AsyncIterator[T]:
        return aiter(self._stream)

    async def _aclose(self) -> None:
        close = getattr(self._stream, "aclose", None) or getattr(self._stream, "close", None)
        if close is not None:
            await _done(close())


class _EitherWatchedStream(WatchedStream[T], AsyncWatchedStream[T]):
    """Wraps a stream that is both synchronous and asynchronous, as LiteLLM's is. `close` is the synchronous one."""


async def _done(value: object) -> None:
    if inspect.isawaitable(value):
        await value
