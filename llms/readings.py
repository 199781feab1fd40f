"""Recorded calls as the token ids that are read again, and where the positions of hidden states stand in them."""

import bisect
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from metaprobe.llms.base import LLMError
from metaprobe.llms.chat_prompt import encode_text
from metaprobe.llms.hidden_capture import Capture, chosen_layers
from metaprobe.llms.replay_logprobs import reader_name, without_numbers
from metaprobe.records.logprobs import NO_LOGPROB
from metaprobe.records.response import tokens_of
from metaprobe.records.segments import marked
from metaprobe.records.spelling import last_place
from metaprobe.records.types import POSITIONS, Call, FloatArray, Hidden, Message

CHECKED_TOKENS = 64
"""So many tokens of an answer are compared with what was recorded: enough to see another model or template."""


class CallReader(Protocol):
    """A model that reads token ids: `LocalLLM`, or vLLM's engine."""

    @property
    def name(self) -> str:
        """As it stands in records."""
        ...

    @property
    def revision(self) -> str:
        """Which weights these are."""
        ...

    @property
    def dtype(self) -> str:
        """Of the weights, as NumPy names it."""
        ...

    @property
    def tokenizer(self) -> Any:
        """The model's own, of transformers."""
        ...

    @property
    def context(self) -> int:
        """Most tokens that it reads at once."""
        ...

    @property
    def vocabulary(self) -> int:
        """Token ids are below it."""
        ...

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Prompt token ids, by the model's chat template."""
        ...

    @property
    def piece(self) -> Any:
        """A function from a token id to the token's own text."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """One call as the token ids that are read."""

    call_id: str
    prompt: list[int]
    answer: list[int]
    answer_at: NDArray[np.intp]
    """Where in prompt and answer the tokens of the answer stand, thinking and markers left out: (A,), at least one;
    the last prompt token's place where there are none."""
    thinking_at: NDArray[np.intp]
    """The same of the thinking."""
    exact: int | None
    """Index of the answer token in which the exact answer begins; None where the answer does not hold it."""
    rebuilt: bool
    """Whether ids were made by template and tokenizer, because none were recorded."""
    logprobs: NDArray[np.float32] | None
    """The recorded raw log-probabilities of `answer`, where they can be compared."""

    @property
    def tokens(self) -> int:
        """Of prompt and answer."""
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True, slots=True, eq=False)
class ReadStates:
    """What was kept of one call."""

    hidden: Hidden
    tokens: NDArray[np.float16] | None
    """Every answer token, (T, layers, width), where asked for."""


class Readings(ABC):
    """Makes readings of recorded calls, for certain layers and positions, and reads them.

    Layers are those of `metaprobe.llms.hidden_capture.Capture`, and so are the positions while a model answers.
    `before_exact` is the last token before the one in which the exact answer begins: the last prompt token where the
    answer begins with it, and the last answer token where the answer does not hold it, for there everything was said
    and no exact answer is to come.
    """

    def __init__(
        self, reader: CallReader, config: Any, *, layers: str, positions: Sequence[str] | None, tokens: bool
    ) -> None:
        """`config`: the model's, of transformers. `layers`: `all`, `every:N`, or numbers. `positions`: those of a
        `Capture` by default. Raises `LLMError`."""
        self._reader = reader
        self.layers = chosen_layers(layers, config)
        wanted = Capture(self.layers).positions if positions is None else positions
        if unknown := set(wanted) - set(POSITIONS):
            raise LLMError(f"unknown positions {sorted(unknown)}; known: {', '.join(POSITIONS)}")
        self.positions = tuple(position for position in POSITIONS if position in wanted)
        if not self.positions:
            raise LLMError(f"no position to keep: give at least one of {', '.join(POSITIONS)}")
        self._tokens = tokens

    def reading(self, call: Call, exact: str) -> Reading:
        """The call as it is read. Raises `LLMError` where it holds nothing to read, or what this model cannot read."""
        if call.reader not in ("", reader_name(self._reader.name, self._reader.revision)):
            call = without_numbers(call, "")  # its tokens are those of another tokenizer
        if call.prompt_token_ids is None and not call.messages:
            raise LLMError(
                f"call {call.id} holds neither prompt token ids nor messages: there is nothing to read. It was stored "
                f"without texts (--no-text); collect it again, with --layers to keep hidden states at once"
            )
        kept = call.prompt_token_ids is not None and call.token_ids is not None
        prompt = self._reader.encode(call.messages) if call.prompt_token_ids is None else call.prompt_token_ids.tolist()
        answer = self._answer_ids(call) if call.token_ids is None else call.token_ids.tolist()
        known = self._reader.vocabulary
        for ids in (prompt, answer):
            if ids and not 0 <= (worst := max(ids, key=lambda i: abs(i - known / 2))) < known:
                raise LLMError(
                    f"call {call.id} has token id {worst}, and {self._reader.name} knows ids below {known}: the call "
                    f"is of another tokenizer; load the model that answered it"
                )
        if not prompt:
            raise LLMError(f"call {call.id} has an empty prompt: there is no state before its answer")
        if len(prompt) + len(answer) > self._reader.context:
            raise LLMError(
                f"call {call.id} has {len(prompt) + len(answer)} tokens, and the context of {self._reader.name} is "
                f"{self._reader.context}: load the model that answered it, or choose other calls by stage or agent"
            )
        comparable = call.logprobs_mode == "raw" and call.logprobs is not None and len(call.logprobs) == len(answer) > 0
        answer_at, thinking_at = self._places(call, len(prompt), answer)
        return Reading(
            call_id=call.id,
            prompt=prompt,
            answer=answer,
            answer_at=answer_at,
            thinking_at=thinking_at,
            exact=self._exact_token(answer, exact),
            rebuilt=not kept,
            logprobs=np.asarray(call.logprobs, dtype=np.float32) if comparable else None,
        )

    @abstractmethod
    def read(self, readings: Sequence[Reading], *, batch_size: int = 32) -> list[ReadStates]:
        """The states of these calls, in this order."""

    @abstractmethod
    def said(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[FloatArray]:
        """The log-probabilities, nats, of each continuation (T,) after its prompt; both are token ids."""

    def disagreement(self, readings: Sequence[Reading]) -> float | None:
        """Mean absolute difference, in nats a token, of this model's log-probabilities from the recorded ones.

        None where none of the calls has any that could be compared. Only the beginning of an answer is compared.
        """
        compared = [r for r in readings if r.logprobs is not None]
        if not compared:
            return None
        here = np.concatenate(self.said([(r.prompt, r.answer[:CHECKED_TOKENS]) for r in compared]))
        recorded = np.concatenate([r.logprobs[:CHECKED_TOKENS] for r in compared if r.logprobs is not None])
        usable = np.isfinite(recorded) & (recorded > NO_LOGPROB)
        return float(np.abs(recorded - here)[usable].mean()) if usable.any() else None

    def _places(self, call: Call, start: int, answer: list[int]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The places of the answer's tokens and of the thinking's, behind a prompt of `start` tokens."""
        segments = call.segments
        if segments and len(answer) != len(call.tokens):  # the ids are another splitting of the text
            segments = marked(self._reader.piece(token) for token in answer)
        answer_at = start + tokens_of(segments, "answer", len(answer))
        thinking_at = start + tokens_of(segments, "thinking", len(answer))
        nowhere = np.array([start - 1])
        return answer_at if len(answer_at) else nowhere, thinking_at if len(thinking_at) else nowhere

    def _answer_ids(self, call: Call) -> list[int]:
        """The recorded tokens as ids where the tokenizer knows each of them, else the text as the tokenizer splits it.

        A model may have split its answer otherwise than the tokenizer would; what it saw is what counts.
        """
        whole = self._ids(call.text)
        if not call.tokens or tuple(self._reader.piece(i) for i in whole) == call.tokens:
            return whole
        single = [self._ids(token) for token in call.tokens]
        exact = all(len(i) == 1 and self._reader.piece(i[0]) == t for i, t in zip(single, call.tokens, strict=True))
        return [ids[0] for ids in single] if exact else whole

    def _ids(self, text: str) -> list[int]:
        return encode_text(self._reader.tokenizer, text)

    def _exact_token(self, answer: list[int], exact: str) -> int | None:
        start = exact_start(self._text(answer), exact)
        if start is None:
            return None
        # Tokens are counted on decoded beginnings: one token alone may be half a character.
        ends = range(1, len(answer) + 1)
        return bisect.bisect_right(ends, start, key=lambda count: len(self._text(answer[:count])))

    def _text(self, ids: list[int]) -> str:
        return str(self._reader.tokenizer.decode(ids, skip_special_tokens=True))


LONGEST_WORD = 200
"""Characters of an exact answer that is looked for as a word of its own; a longer one stands in its text but once."""


def exact_start(text: str, exact: str) -> int | None:
    """Where the exact answer stands in the text: its last occurrence as a word of its own, else the last one of all."""
    if not exact:
        return None
    word = len(exact) <= LONGEST_WORD
    whole = [match.start() for match in re.finditer(rf"(?<!\w){re.escape(exact)}(?!\w)", text)] if word else []
    start = whole[-1] if whole else last_place(text, exact)
    return start if start >= 0 else None


def span_of(reading: Reading, position: str) -> NDArray[np.intp]:
    """Where the tokens stand that a position of a segment is of."""
    return reading.thinking_at if position.startswith("thinking") else reading.answer_at


def place_of(reading: Reading, position: str) -> int:
    """Where the token stands that a position is, in prompt and answer."""
    prompt = len(reading.prompt) - 1
    if position == "prompt_last":
        return prompt
    if position == "before_exact":
        return reading.tokens - 1 if reading.exact is None else prompt + reading.exact
    return int(span_of(reading, position)[0 if position.endswith("_first") else -1])
