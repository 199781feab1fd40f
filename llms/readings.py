"""Reads recorded calls again, without sampling: hidden states of their tokens, or another model's log-probabilities."""

import bisect
import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metaprobe.llms.base import LLMError
from metaprobe.llms.forward import ScoredText, score_continuations
from metaprobe.llms.hidden_capture import Capture, chosen_layers, layer_hooks
from metaprobe.llms.known_good import library
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.weights import encode_text
from metaprobe.records.activations import to_float16
from metaprobe.records.canaries import CANARIES, CANARIES_AT_ONCE, CANARY_POSITIONS, FEWEST_CANARIES, CanaryStates
from metaprobe.records.response import NO_LOGPROB, tokens_of
from metaprobe.records.segments import marked
from metaprobe.records.spelling import last_index
from metaprobe.records.types import (
    LOOK_POSITIONS,
    LOOK_STATES,
    LOOKS,
    POSITIONS,
    Call,
    FloatArray,
    Hidden,
    Message,
)

READ_POSITIONS = (*POSITIONS, *LOOK_POSITIONS)
"""All positions at which a recorded call can be read."""
CHECKED_TOKENS = 64
"""Tokens of an answer that are compared with the record: enough to detect another model or template."""


class CallReader(Protocol):
    """A model that reads token ids: `LocalLLM`, or vLLM's engine."""

    name: str
    """The model's name in records."""
    revision: str
    dtype: str
    """Type of the weights, in NumPy's names."""
    tokenizer: Any
    """The model's own tokenizer, from transformers."""
    context: int
    """Most tokens that the model reads at once."""
    vocabulary: int
    """Upper bound of token ids, exclusive."""
    piece: Any
    """A function from a token id to the token's own text."""

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Returns the prompt's token ids, by the model's chat template."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """One call as token ids to read."""

    call_id: str
    prompt: list[int]
    answer: list[int]
    answer_at: NDArray[np.intp]
    """Indices of the answer's tokens in prompt and answer, without thinking and markers: (A,), at least one.

    If there are no such tokens, it is the index of the last prompt token.
    """
    thinking_at: NDArray[np.intp]
    """Indices of the thinking's tokens, in the same form."""
    exact_at: NDArray[np.intp]
    """Indices of the tokens that spell the exact answer, in the same form; empty if the answer does not hold it."""
    rebuilt: bool
    """Whether template and tokenizer made the ids, because none were recorded."""
    logprobs: NDArray[np.float32] | None
    """Recorded raw log-probabilities of `answer`; None if they cannot be compared."""

    @property
    def tokens(self) -> int:
        """Number of tokens of prompt and answer."""
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True, slots=True, eq=False)
class ReadStates:
    """Hidden states that were kept of one call."""

    hidden: Hidden
    tokens: NDArray[np.float16] | None
    """States of every answer token, (T, layers, width); None if they were not requested."""


class Readings(ABC):
    """Converts recorded calls to token ids, and reads them, for certain layers and positions.

    Layers are those of `metaprobe.llms.hidden_capture.Capture`, and so are the positions while a model answers.
    `before_exact` is the last token before the token in which the exact answer begins. If the answer begins with the
    exact answer, this is the last prompt token. If the answer does not hold the exact answer, it is the last answer
    token, because all words were said by then. `exact_last` and `exact_mean` read the tokens that spell the exact
    answer, or all answer tokens if the answer does not hold it (Orgad et al. 2024, arXiv:2410.02707).
    """

    def __init__(
        self, reader: CallReader, config: Any, *, layers: str, positions: Sequence[str] | None, tokens: bool
    ) -> None:
        """Raises `LLMError` for unknown layers or positions.

        Args:
            reader: the model that reads.
            config: the model's configuration, from transformers.
            layers: `all`, `every:N`, or numbers.
            positions: token positions; by default those of a `Capture`.
            tokens: whether the states of every answer token are kept.
        """
        self._reader = reader
        self.layers = chosen_layers(layers, config)
        kept_positions = Capture(self.layers).positions if positions is None else positions
        if unknown_positions := set(kept_positions) - set(READ_POSITIONS):
            raise LLMError(f"unknown positions {sorted(unknown_positions)}; known: {', '.join(READ_POSITIONS)}")
        self.positions = tuple(position for position in READ_POSITIONS if position in kept_positions)
        if not self.positions:
            raise LLMError(f"no position to keep: give at least one of {', '.join(READ_POSITIONS)}")
        self._tokens = tokens

    def reading(self, call: Call, exact: str) -> Reading:
        """Returns the call as token ids. Raises `LLMError` if there is nothing to read, or this model
        cannot read it.
        """
        if call.reader not in ("", reader_name(self._reader.name, self._reader.revision)):
            call = without_readings(call, "")  # its tokens are those of another tokenizer
        if call.prompt_token_ids is None and not call.messages:
            raise LLMError(
                f"call {call.id} holds neither prompt token ids nor messages: there is nothing to read. It was stored "
                f"without texts (--no-text); collect it again, with --layers to keep hidden states at once"
            )
        # Take the recorded token ids, or make them of the messages and the text.
        has_ids = call.prompt_token_ids is not None and call.token_ids is not None
        prompt = self._reader.encode(call.messages) if call.prompt_token_ids is None else call.prompt_token_ids.tolist()
        answer = self._answer_ids(call) if call.token_ids is None else call.token_ids.tolist()
        vocabulary = self._reader.vocabulary
        for ids in (prompt, answer):
            if ids and not 0 <= (farthest_id := max(ids, key=lambda i: abs(i - vocabulary / 2))) < vocabulary:
                raise LLMError(
                    f"call {call.id} has token id {farthest_id}, and {self._reader.name} knows ids below {vocabulary}: "
                    f"the call is of another tokenizer; load the model that answered it"
                )
        if not prompt:
            raise LLMError(f"call {call.id} has an empty prompt: there is no state before its answer")
        if len(prompt) + len(answer) > self._reader.context:
            raise LLMError(
                f"call {call.id} has {len(prompt) + len(answer)} tokens, and the context of {self._reader.name} is "
                f"{self._reader.context}: load the model that answered it, or choose other calls by stage or agent"
            )
        # Find the tokens of the answer and of the thinking.
        has_comparable_logprobs = (
            call.logprobs_mode == "raw" and call.logprobs is not None and len(call.logprobs) == len(answer) > 0
        )
        segments = call.segments
        if segments and len(answer) != len(call.tokens):  # the ids are another splitting of the text
            segments = marked(self._reader.piece(token) for token in answer)
        answer_at = len(prompt) + tokens_of(segments, "answer", len(answer))
        thinking_at = len(prompt) + tokens_of(segments, "thinking", len(answer))
        last_prompt_index = np.array([len(prompt) - 1])
        return Reading(
            call_id=call.id,
            prompt=prompt,
            answer=answer,
            answer_at=answer_at if len(answer_at) else last_prompt_index,
            thinking_at=thinking_at if len(thinking_at) else last_prompt_index,
            exact_at=len(prompt) + self._exact_tokens(answer, exact),
            rebuilt=not has_ids,
            logprobs=np.asarray(call.logprobs, dtype=np.float32) if has_comparable_logprobs else None,
        )

    @abstractmethod
    def at(self, positions: Sequence[str]) -> "Readings":
        """Returns readings of the same layers at other positions."""

    @property
    @abstractmethod
    def source(self) -> str:
        """Library or engine that reads, with its version."""

    def canaries(self) -> CanaryStates | None:
        """Returns the states of the canary texts, read in the same way as calls.

        Returns None if fewer than `FEWEST_CANARIES` canaries fit into the model's context.
        """
        replay = self.at(CANARY_POSITIONS)
        readings: dict[str, Reading] = {}
        for canary in CANARIES:
            try:
                call = Call(id=canary.id, messages=canary.messages, text=canary.answer)
                readings[canary.id] = replay.reading(call, "")
            except Exception:  # too long for the context, or refused by the chat template, which may raise anything
                continue
        if len(readings) < FEWEST_CANARIES:
            return None
        read_states = replay.read(list(readings.values()), batch_size=CANARIES_AT_ONCE)
        return CanaryStates(
            source=self.source,
            model=self._reader.name,
            revision=self._reader.revision,
            dtype=self._reader.dtype,
            layers=self.layers,
            ids=tuple(readings),
            prompts=tuple(tuple(reading.prompt) for reading in readings.values()),
            answers=tuple(tuple(reading.answer) for reading in readings.values()),
            values=np.stack([states.hidden.values for states in read_states]),
        )

    @abstractmethod
    def read(self, readings: Sequence[Reading], *, batch_size: int = 32) -> list[ReadStates]:
        """Returns the states of these calls, in this order."""

    @abstractmethod
    def logprobs_of(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[FloatArray]:
        """Returns the log-probabilities (T,), in nats, of each continuation after its prompt; both are token ids."""

    def disagreement(self, readings: Sequence[Reading]) -> float | None:
        """Returns the mean absolute difference of this model's log-probabilities from the recorded ones, in nats a
        token.

        None if no call has comparable ones. Only the beginning of an answer is compared.
        """
        comparable_readings = [r for r in readings if r.logprobs is not None]
        if not comparable_readings:
            return None
        computed = np.concatenate(
            self.logprobs_of([(r.prompt, r.answer[:CHECKED_TOKENS]) for r in comparable_readings])
        )
        recorded = np.concatenate([r.logprobs[:CHECKED_TOKENS] for r in comparable_readings if r.logprobs is not None])
        usable = np.isfinite(recorded) & (recorded > NO_LOGPROB)
        return float(np.abs(recorded - computed)[usable].mean()) if usable.any() else None

    def _answer_ids(self, call: Call) -> list[int]:
        """Returns the recorded tokens as ids if the tokenizer knows each of them, else the tokenized text.

        A model may have split its answer in another way than the tokenizer would. The model's own split counts.
        """
        ids_of_text = self._ids(call.text)
        if not call.tokens or tuple(self._reader.piece(i) for i in ids_of_text) == call.tokens:
            return ids_of_text
        ids_by_token = [self._ids(token) for token in call.tokens]
        is_each_token_one_id = all(
            len(i) == 1 and self._reader.piece(i[0]) == t for i, t in zip(ids_by_token, call.tokens, strict=True)
        )
        return [ids[0] for ids in ids_by_token] if is_each_token_one_id else ids_of_text

    def _ids(self, text: str) -> list[int]:
        return encode_text(self._reader.tokenizer, text)

    def _exact_tokens(self, answer: list[int], exact: str) -> NDArray[np.intp]:
        """Returns the indices of the answer tokens that spell the exact answer; none if the answer does not hold it."""
        text = self._decode(answer)
        # A whole word is preferred to a part of a word, and the last occurrence to earlier ones.
        pattern = rf"(?<!\w){re.escape(exact)}(?!\w)" if 0 < len(exact) <= LONGEST_WORD else ""
        whole_word_starts = [match.start() for match in re.finditer(pattern, text)] if pattern else []
        start = whole_word_starts[-1] if whole_word_starts else last_index(text, exact)
        if not exact or start < 0:
            return np.arange(0)
        # Tokens are counted on decoded beginnings: one token alone may be half a character.
        ends = range(1, len(answer) + 1)
        first_token, last_token = (
            bisect.bisect_right(ends, character, key=lambda count: len(self._decode(answer[:count])))
            for character in (start, start + len(exact) - 1)
        )
        return np.arange(first_token, last_token + 1)

    def _decode(self, ids: list[int]) -> str:
        return str(self._reader.tokenizer.decode(ids, skip_special_tokens=True))


LONGEST_WORD = 200
"""Longest exact answer, in characters, that is searched as a separate word. A longer one occurs only once
in its text.
"""


def is_mean(position: str) -> bool:
    """Returns whether a position holds the mean over several tokens, those of `span_of`."""
    return position.endswith("_mean") or position in LOOK_POSITIONS


def span_of(reading: Reading, position: str) -> NDArray[np.intp]:
    """Returns the indices of the tokens of the part that a position belongs to."""
    if position in LOOK_POSITIONS:
        first_tokens = reading.answer_at[: LOOKS[LOOK_POSITIONS.index(position)]]
        is_empty = first_tokens[0] < len(reading.prompt)  # no token belongs to the answer
        return first_tokens if is_empty else first_tokens[-LOOK_STATES:] - 1
    if position.startswith("thinking"):
        return reading.thinking_at
    return reading.exact_at if position.startswith("exact") and len(reading.exact_at) else reading.answer_at


def place_of(reading: Reading, position: str) -> int:
    """Returns the index in prompt and answer of the token that a position names."""
    if position == "prompt_last":
        return len(reading.prompt) - 1
    if position == "before_exact":
        return int(reading.exact_at[0]) - 1 if len(reading.exact_at) else reading.tokens - 1
    return int(span_of(reading, position)[0 if position.endswith("_first") else -1])


CALL_HAD_FAILED = "the call had failed"
NO_MESSAGES = "no messages are kept, so that there is no prompt to read"
NO_TEXT = "no text is kept, or the answer is empty"


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """A call after another model has read it."""

    call: Call
    """The call with the reader's tokens and log-probabilities; without any if it could not be read."""
    tokens: int
    """Number of tokens of prompt and answer that were read; 0 if nothing was read."""
    unread: str
    """Why the call could not be read; empty if it was read."""


def reader_name(name: str, revision: str) -> str:
    """Returns `NAME@REVISION`, the form of `Call.reader`."""
    return f"{name}@{revision}"


def read_answers(
    llm: LocalLLM, calls: Sequence[Call], *, batch_size: int = 32, top_logprobs: int = 0
) -> list[ReadAnswer]:
    """Returns the calls in this order, each with the raw log-probabilities that `llm` gives its text, teacher-forced.

    The reader sees the messages through its own chat template, and the text in its own tokenization. Tokens, token ids,
    segments and log-probabilities are then the reader's; model, text, labels' ids and everything else stay. A call that
    cannot be read (without messages or text, or longer than the reader's context) is returned without
    log-probabilities, with the reason. So the answering model's numbers are never mixed with the reader's.

    Args:
        llm: the model that reads.
        calls: the calls.
        batch_size: calls read at once.
        top_logprobs: alternatives kept for each token.
    """
    ids_or_reasons = [_ids_or_reason(llm, call) for call in calls]
    ids_of_index = {i: ids for i, ids in enumerate(ids_or_reasons) if not isinstance(ids, str)}
    order = sorted(
        ids_of_index, key=lambda i: sum(map(len, ids_of_index[i]))
    )  # of like length together: little is padded
    answer_of_index: dict[int, ReadAnswer] = {}
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        scored = score_continuations(
            llm.model,
            [ids_of_index[i] for i in batch],
            pad=llm.tokenizer.pad_token_id,
            top_logprobs=top_logprobs,
        )
        answer_of_index |= {
            i: _read_answer(llm, calls[i], *ids_of_index[i], score) for i, score in zip(batch, scored, strict=True)
        }
    reader = reader_name(llm.name, llm.revision)
    return [
        answer_of_index[i]
        if i in answer_of_index
        else ReadAnswer(without_readings(call, reader), 0, str(ids_or_reasons[i]))
        for i, call in enumerate(calls)
    ]


def _read_answer(
    llm: LocalLLM, call: Call, prompt: list[int], answer: list[int], scored_text: ScoredText
) -> ReadAnswer:
    """Returns the call with the reader's tokens and log-probabilities.

    Args:
        llm: the model that has read the call.
        call: the call.
        prompt: token ids of the prompt.
        answer: token ids of the answer.
        scored_text: log-probabilities of the answer's tokens.
    """
    logprobs = scored_text.logprobs.numpy()
    if not np.isfinite(logprobs).all():
        raise LLMError(
            f"{llm.name} gives log-probabilities that are no numbers for call {call.id}: its weights are damaged, or "
            f"overflow in {llm.dtype}; load sound ones, in bfloat16 or float32"
        )
    tokens = tuple(llm.piece(token) for token in answer)
    read_call = dataclasses.replace(
        without_readings(call, reader_name(llm.name, llm.revision)),
        prompt_token_ids=np.asarray(prompt, dtype=np.int32),
        tokens=tokens,
        token_ids=np.asarray(answer, dtype=np.int32),
        logprobs=logprobs,
        top_logprobs=None if scored_text.top is None else scored_text.top.numpy(),
        segments=marked(tokens),
        logprobs_mode="raw",
    )
    return ReadAnswer(read_call, len(prompt) + len(answer), "")


def without_readings(call: Call, reader: str) -> Call:
    """Returns the call without all data about its tokens from the answering model or another reader."""
    return dataclasses.replace(
        call,
        prompt_token_ids=None,
        tokens=(),
        token_ids=None,
        logprobs=None,
        top_logprobs=None,
        segments=(),
        hidden=None,
        reader=reader,
    )


def _ids_or_reason(llm: LocalLLM, call: Call) -> tuple[list[int], list[int]] | str:
    """Returns the token ids of prompt and answer, or why there are none."""
    if call.error is not None:
        return CALL_HAD_FAILED
    if not call.messages:
        return NO_MESSAGES
    if not call.text:
        return NO_TEXT
    try:
        prompt = llm.encode(call.messages)
    except Exception as error:  # a chat template is a program of others: it may raise anything
        return f"the chat template of {llm.name} does not take these messages ({error})"
    answer = encode_text(llm.tokenizer, call.text)
    if not prompt or not answer:
        return NO_TEXT
    if len(prompt) + len(answer) > llm.context:
        return f"prompt and answer are longer than the context of {llm.name} ({llm.context} tokens)"
    return prompt, answer


class _DeepEnough(Exception):
    """Raised after the deepest requested layer was read, so that the blocks above it are not computed."""


class StateReplay(Readings):
    """Reads recorded calls in a loaded model, with transformers."""

    def __init__(
        self, llm: LocalLLM, *, layers: str = "all", positions: Sequence[str] | None = None, tokens: bool = False
    ) -> None:
        """Raises `LLMError` for unknown layers or positions.

        Args:
            llm: the model.
            layers: `all`, `every:N`, or numbers.
            positions: token positions; by default those of a `Capture`.
            tokens: whether the states of every answer token are kept.
        """
        super().__init__(llm, llm.model.config, layers=layers, positions=positions, tokens=tokens)
        self._llm, self._model, self._tokenizer = llm, llm.model, llm.tokenizer

    @property
    def source(self) -> str:
        return library("transformers")

    def at(self, positions: Sequence[str]) -> "StateReplay":
        return StateReplay(self._llm, layers=",".join(map(str, self.layers)), positions=positions)

    def read(self, readings: Sequence[Reading], *, batch_size: int = 32) -> list[ReadStates]:
        """Returns the states of these calls, in this order. Calls of similar length are read together, so that little
        is padded.

        The other calls in a batch change a call's states only by rounding. In float32 this is less than float16 shows;
        in bfloat16 it is 0.6 % of its length, at most 1.4 % (SmolLM2-135M, alone against batches of 32).
        """
        order = sorted(range(len(readings)), key=lambda i: readings[i].tokens)
        states: dict[int, ReadStates] = {}
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            states.update(zip(batch, self._batch([readings[i] for i in batch]), strict=True))
        return [states[i] for i in range(len(readings))]

    def _last_index(self, reading: Reading) -> int:
        """Returns the index of the last token that must be read; for a gate's looks, one of the answer's beginning."""
        if self._tokens or not set(self.positions) <= set(LOOK_POSITIONS):
            return reading.tokens - 1
        return int(max(span_of(reading, position)[-1] for position in self.positions))

    def logprobs_of(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[FloatArray]:
        pad = self._tokenizer.pad_token_id
        return [scored.logprobs.numpy() for scored in score_continuations(self._model, pairs, pad=pad)]

    @torch.inference_mode()
    def _batch(self, batch: Sequence[Reading]) -> list[ReadStates]:
        sequences = [(r.prompt + r.answer)[: self._last_index(r) + 1] for r in batch]
        longest_tokens = max(map(len, sequences))
        pad = self._tokenizer.pad_token_id
        device = self._model.device
        # Padding stands at the end, where no token sees it, and positions count from 0 as they do in the model.
        ids = torch.tensor([ids + [pad] * (longest_tokens - len(ids)) for ids in sequences], device=device)
        mask = torch.tensor([[1] * len(ids) + [0] * (longest_tokens - len(ids)) for ids in sequences], device=device)
        single_positions = [position for position in self.positions if not is_mean(position)]
        token_indices = [[place_of(r, position) for position in single_positions] for r in batch]
        # Empty where only means are kept.
        index_tensor = torch.tensor(token_indices, dtype=torch.long, device=device)
        rows = torch.arange(len(batch), device=device)[:, None]
        states_by_layer: list[Tensor] = []  # a layer each: (B, positions, D), float32
        answer_states_by_layer: list[list[Tensor]] = []  # a layer each, a row each: (T, D), float32

        def keep(layer: int, hidden: Tensor) -> None:
            states_at = dict(zip(single_positions, hidden[rows, index_tensor].float().unbind(1), strict=True))
            for position in set(self.positions) - states_at.keys():
                spans = [hidden[i, span_of(r, position)] for i, r in enumerate(batch)]
                states_at[position] = torch.stack([span.float().mean(0) for span in spans])
            states_by_layer.append(torch.stack([states_at[position] for position in self.positions], dim=1))
            if self._tokens:
                answer_states_by_layer.append(
                    [hidden[i, len(r.prompt) : r.tokens].float().cpu() for i, r in enumerate(batch)]
                )
            if layer == self.layers[-1]:
                raise _DeepEnough

        try:
            with layer_hooks(self._model, self.layers, keep):
                self._model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=1)
        except _DeepEnough:
            pass
        values = to_float16(torch.stack(states_by_layer, dim=1).cpu().numpy())  # (B, L, P, D)
        token_states = [
            to_float16(torch.stack(row, dim=1).numpy()) for row in zip(*answer_states_by_layer, strict=True)
        ]  # (T, L, D) each
        return [
            ReadStates(Hidden(values[i], self.layers, self.positions), token_states[i] if self._tokens else None)
            for i in range(len(batch))
        ]
