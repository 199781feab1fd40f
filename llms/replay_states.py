"""Hidden states of calls that were answered before: prompt and answer are read once more, and nothing is drawn."""

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metaprobe.llms.base import LLMError
from metaprobe.llms.chat_prompt import encode_text
from metaprobe.llms.continuations import score
from metaprobe.llms.hidden_capture import Capture, chosen_layers, layer_hooks
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.replay_logprobs import reader_name, without_numbers
from metaprobe.records.activations import to_float16
from metaprobe.records.answer_part import tokens_of
from metaprobe.records.segments import marked
from metaprobe.records.types import POSITIONS, Call, Hidden

CHECKED_TOKENS = 64
"""So many tokens of an answer are compared with what was recorded: enough to see another model or template."""
NO_LOGPROB = -1000.0
"""Servers write -9999 or so for a token that they know no log-probability of."""


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


class _DeepEnough(Exception):
    """The deepest layer that is wanted was read: the blocks above it need not be computed."""


class StateReplay:
    """Reads recorded calls in a loaded model.

    Layers are those of `metaprobe.llms.hidden_capture.Capture`, and so are the positions while a model answers.
    `before_exact` is the last token before the one in which the exact answer begins: the last prompt token where the
    answer begins with it, and the last answer token where the answer does not hold it, for there everything was said
    and no exact answer is to come.
    """

    def __init__(
        self, llm: LocalLLM, *, layers: str = "all", positions: Sequence[str] | None = None, tokens: bool = False
    ) -> None:
        """`layers`: `all`, `every:N`, or numbers. `positions`: those of a `Capture` by default. Raises `LLMError`."""
        self._llm, self._model, self._tokenizer = llm, llm.model, llm.tokenizer
        self.layers = chosen_layers(layers, self._model.config)
        wanted = Capture(self.layers).positions if positions is None else positions
        if unknown := set(wanted) - set(POSITIONS):
            raise LLMError(f"unknown positions {sorted(unknown)}; known: {', '.join(POSITIONS)}")
        self.positions = tuple(position for position in POSITIONS if position in wanted)
        if not self.positions:
            raise LLMError(f"no position to keep: give at least one of {', '.join(POSITIONS)}")
        self._tokens = tokens
        config = self._model.config.get_text_config()
        self._vocabulary: int = config.vocab_size

    def reading(self, call: Call, exact: str) -> Reading:
        """The call as it is read. Raises `LLMError` where it holds nothing to read, or what this model cannot read."""
        if call.reader and call.reader != reader_name(self._llm):  # its tokens are of another tokenizer
            call = without_numbers(call, "")
        if call.prompt_token_ids is None and not call.messages:
            raise LLMError(
                f"call {call.id} holds neither prompt token ids nor messages: there is nothing to read. It was stored "
                f"without texts (--no-text); collect it again, with --layers to keep hidden states at once"
            )
        kept = call.prompt_token_ids is not None and call.token_ids is not None
        prompt = self._llm.encode(call.messages) if call.prompt_token_ids is None else call.prompt_token_ids.tolist()
        answer = self._answer_ids(call) if call.token_ids is None else call.token_ids.tolist()
        for ids in (prompt, answer):
            if ids and not 0 <= (worst := max(ids, key=lambda i: abs(i - self._vocabulary / 2))) < self._vocabulary:
                raise LLMError(
                    f"call {call.id} has token id {worst}, and {self._llm.name} knows ids below {self._vocabulary}: "
                    f"the call is of another tokenizer; load the model that answered it"
                )
        if not prompt:
            raise LLMError(f"call {call.id} has an empty prompt: there is no state before its answer")
        if len(prompt) + len(answer) > self._llm.context:
            raise LLMError(
                f"call {call.id} has {len(prompt) + len(answer)} tokens, and the context of {self._llm.name} is "
                f"{self._llm.context}: load the model that answered it, or choose other calls by stage or agent"
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

    def read(self, readings: Sequence[Reading], *, batch_size: int = 32) -> list[ReadStates]:
        """The states of these calls, in this order. Calls of like length are read together, so that little is padded.

        What is kept of a call depends on who else is in its batch by no more than rounding: in float32 by less than
        float16 shows, in bfloat16 by 0.6 % of its length, at most 1.4 % (SmolLM2-135M, alone against batches of 32).
        """
        order = sorted(range(len(readings)), key=lambda i: readings[i].tokens)
        found: dict[int, ReadStates] = {}
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            found.update(zip(batch, self._batch([readings[i] for i in batch]), strict=True))
        return [found[i] for i in range(len(readings))]

    def disagreement(self, readings: Sequence[Reading]) -> float | None:
        """Mean absolute difference, in nats a token, of this model's log-probabilities from the recorded ones.

        None where none of the calls has any that could be compared. Only the beginning of an answer is compared.
        """
        pairs = [r for r in readings if r.logprobs is not None]
        if not pairs:
            return None
        scored = score(
            self._model,
            [(r.prompt, r.answer[:CHECKED_TOKENS]) for r in pairs],
            pad=self._tokenizer.pad_token_id,
            share_prefix=False,
        )
        recorded = np.concatenate([r.logprobs[:CHECKED_TOKENS] for r in pairs if r.logprobs is not None])
        here = np.concatenate([one.logprobs.numpy() for one in scored])
        usable = np.isfinite(recorded) & (recorded > NO_LOGPROB)
        return float(np.abs(recorded - here)[usable].mean()) if usable.any() else None

    def _places(self, call: Call, start: int, answer: list[int]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The places of the answer's tokens and of the thinking's, behind a prompt of `start` tokens."""
        segments = call.segments
        if segments and len(answer) != len(call.tokens):  # the ids are another splitting of the text
            segments = marked(self._llm.piece(token) for token in answer)
        answer_at = start + tokens_of(segments, "answer", len(answer))
        thinking_at = start + tokens_of(segments, "thinking", len(answer))
        nowhere = np.array([start - 1])
        return answer_at if len(answer_at) else nowhere, thinking_at if len(thinking_at) else nowhere

    def _answer_ids(self, call: Call) -> list[int]:
        """The recorded tokens as ids where the tokenizer knows each of them, else the text as the tokenizer splits it.

        A model may have split its answer otherwise than the tokenizer would; what it saw is what counts.
        """
        whole = self._ids(call.text)
        if not call.tokens or tuple(self._llm.piece(i) for i in whole) == call.tokens:
            return whole
        single = [self._ids(token) for token in call.tokens]
        exact = all(len(i) == 1 and self._llm.piece(i[0]) == t for i, t in zip(single, call.tokens, strict=True))
        return [ids[0] for ids in single] if exact else whole

    def _ids(self, text: str) -> list[int]:
        return encode_text(self._tokenizer, text)

    def _exact_token(self, answer: list[int], exact: str) -> int | None:
        start = exact_start(self._text(answer), exact)
        if start is None:
            return None
        # Tokens are counted on decoded beginnings: one token alone may be half a character.
        ends = range(1, len(answer) + 1)
        return bisect.bisect_right(ends, start, key=lambda count: len(self._text(answer[:count])))

    def _text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    @torch.inference_mode()
    def _batch(self, batch: Sequence[Reading]) -> list[ReadStates]:
        longest = max(r.tokens for r in batch)
        pad = self._tokenizer.pad_token_id
        device = self._model.device
        # Padding stands at the end, where no token sees it, and positions count from 0 as they do in the model.
        ids = torch.tensor([r.prompt + r.answer + [pad] * (longest - r.tokens) for r in batch], device=device)
        mask = torch.tensor([[1] * r.tokens + [0] * (longest - r.tokens) for r in batch], device=device)
        singles = [position for position in self.positions if not position.endswith("_mean")]
        at = torch.tensor([[_index(r, position) for position in singles] for r in batch], device=device)
        rows = torch.arange(len(batch), device=device)[:, None]
        states: list[Tensor] = []  # a layer each: (B, positions, D), float32
        answers: list[list[Tensor]] = []  # a layer each, a row each: (T, D), float32

        def keep(layer: int, hidden: Tensor) -> None:
            read = dict(zip(singles, hidden[rows, at].float().unbind(1), strict=True))
            for position in set(self.positions) - read.keys():
                spans = [hidden[i, _span(r, position)] for i, r in enumerate(batch)]
                read[position] = torch.stack([span.float().mean(0) for span in spans])
            states.append(torch.stack([read[position] for position in self.positions], dim=1))
            if self._tokens:
                answers.append([hidden[i, len(r.prompt) : r.tokens].float().cpu() for i, r in enumerate(batch)])
            if layer == self.layers[-1]:
                raise _DeepEnough

        try:
            with layer_hooks(self._model, self.layers, keep):
                self._model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=1)
        except _DeepEnough:
            pass
        values = to_float16(torch.stack(states, dim=1).cpu().numpy())  # (B, L, P, D)
        each = [to_float16(torch.stack(row, dim=1).numpy()) for row in zip(*answers, strict=True)]  # (T, L, D) each
        return [
            ReadStates(Hidden(values[i], self.layers, self.positions), each[i] if self._tokens else None)
            for i in range(len(batch))
        ]


def exact_start(text: str, exact: str) -> int | None:
    """Where the exact answer stands in the text: its last occurrence as a word of its own, else the last one of all."""
    if not exact:
        return None
    whole = [match.start() for match in re.finditer(rf"(?<!\w){re.escape(exact)}(?!\w)", text)]
    start = whole[-1] if whole else text.rfind(exact)
    return start if start >= 0 else None


def _span(reading: Reading, position: str) -> NDArray[np.intp]:
    """Where the tokens stand that a position of a segment is of."""
    return reading.thinking_at if position.startswith("thinking") else reading.answer_at


def _index(reading: Reading, position: str) -> int:
    prompt = len(reading.prompt) - 1
    if position == "prompt_last":
        return prompt
    if position == "before_exact":
        return reading.tokens - 1 if reading.exact is None else prompt + reading.exact
    return int(_span(reading, position)[0 if position.endswith("_first") else -1])
