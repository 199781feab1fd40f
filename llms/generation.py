"""Generates a batch of answers: the loop around transformers' `generate`, and the record of each row.

The recorder is the last logits processor of `generate`, so it sees the model's own logits. It draws the tokens itself,
row by row, each row with its own temperature, top-p, seed and JSON Schema. It passes logits to `generate` whose argmax
is the drawn token. So a row's tokens do not depend on the random state of other rows. The recorded distribution is raw:
before temperature, top-p and schema. When many rows have ended, the batch continues with the others.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria

from metaprobe.llms.base import LLMError
from metaprobe.llms.forward import CACHE, Prefixes, build_group_cache, pad_rows, prefixes
from metaprobe.llms.hidden_capture import RowStates, StateReader
from metaprobe.records.extras import require
from metaprobe.records.types import FloatArray, Sampling

Decode = Callable[[Sequence[int]], str]


class StopTexts:
    """Finds the first stop text in an answer that grows token by token.

    Stop texts are searched in decoded text, so they may begin and end within tokens. At each step only the newest
    tokens are decoded: as many as the longest stop text has bytes, because a token has at least one byte.
    """

    def __init__(self, stops: Sequence[str], decode: Decode) -> None:
        self._stops = stops
        self._decode = decode
        # Some tokenizers drop a space at the beginning of what they decode, or begin within a character.
        self.window = max(len(stop.encode(errors="surrogatepass")) for stop in stops) + 4
        """Number of newest tokens in which a stop text that ends in the newest token must begin."""

    def cut(self, tokens: Sequence[int]) -> tuple[str, int] | None:
        """Returns the text before the stop text, and the number of its tokens; None if there is no stop text.

        A token that begins before the stop text and ends in it counts as part of the text.
        """
        text_of_window = self._decode(tokens[-self.window :])
        if not any(stop in text_of_window for stop in self._stops):
            return None
        text = self._decode(tokens)
        start = max(len(text) - len(text_of_window), 0)
        stop_starts = [stop_start for stop in self._stops if (stop_start := text.find(stop, start)) >= 0]
        if not stop_starts:
            return None
        return text[: min(stop_starts)], self._tokens_needed(tokens, text[: min(stop_starts)])

    def safe(self, tokens: Sequence[int]) -> int:
        """Returns how many tokens are certain to stay. The others may be the beginning of a stop text."""
        window = tokens[-self.window :]
        text_of_window = self._decode(window)
        whole_characters = text_of_window.rstrip("\ufffd")  # a character whose last bytes are still to come
        possible_stops = [
            length for stop in self._stops for length in range(1, len(stop)) if whole_characters.endswith(stop[:length])
        ]
        return (
            len(tokens)
            - len(window)
            + self._tokens_needed(window, whole_characters[: len(whole_characters) - max(possible_stops, default=0)])
        )

    def _tokens_needed(self, tokens: Sequence[int], text: str) -> int:
        """Returns the smallest number of first tokens whose text begins with `text`.

        It is at most `window` less than the number of all tokens.
        """
        count = len(tokens)
        while count > max(len(tokens) - self.window, 0) and self._decode(tokens[: count - 1])[: len(text)] == text:
            count -= 1
        return count


# One way to set spaces, that of Python's json module: a small model that may write any amount of them never ends.
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammars:
    """Compiles the requested JSON schemas for one tokenizer, each once."""

    def __init__(self, tokenizer: Any, *, vocabulary: int, eos_ids: Sequence[int]) -> None:
        """`vocabulary` is the number of the model's logits, which may exceed the number of the tokenizer's tokens.

        Args:
            tokenizer: the tokenizer.
            vocabulary: number of logits.
            eos_ids: ids of end tokens.
        """
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._eos_ids = list(eos_ids)
        self._guidance_tokenizer: Any = None
        self._matcher_of_schema: dict[str, Any] = {}

    def matcher(self, schema: str) -> "Matcher":
        """Returns a matcher at the beginning of a text. Raises `LLMError` for a schema that cannot be enforced."""
        if schema in self._matcher_of_schema:
            return Matcher(self._matcher_of_schema[schema].deep_copy(), self._vocabulary)
        llguidance = require("llguidance", "train")
        if self._guidance_tokenizer is None:  # about a second
            convert = require("llguidance.hf", "train").from_tokenizer
            try:
                self._guidance_tokenizer = convert(self._tokenizer, n_vocab=self._vocabulary, eos_token=self._eos_ids)
            except ValueError as error:
                raise LLMError(f"json_schema: llguidance cannot work with this model's tokenizer: {error}") from error
        try:
            parsed = json.loads(schema)
        except ValueError as error:
            raise LLMError(f"json_schema is not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise LLMError(f"json_schema must be a JSON object, got {schema[:80]!r}")
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=SPACING)
        matcher = llguidance.LLMatcher(self._guidance_tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise LLMError(f"json_schema cannot be followed: {matcher.get_error()}")
        self._matcher_of_schema[schema] = matcher
        return Matcher(matcher.deep_copy(), self._vocabulary)


class Matcher:
    """Says which tokens may come next in one answer."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def allowed(self) -> Tensor:
        """Returns the tokens that may come next, bool (V,). Once the text is complete, only end tokens may."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return torch.from_numpy(np.unpackbits(bits, bitorder="little")[: self._vocabulary].view(bool))

    def accept(self, token: int) -> None:
        """Advances by a token. Raises `LLMError` if it is not allowed, or if the schema is too complex to continue."""
        if not self._matcher.consume_token(token):
            raise LLMError(f"json_schema: {self._matcher.get_error()}")


class GivenAnswer:
    """Stands for a matcher that allows one answer only: these tokens, then an end token."""

    def __init__(self, tokens: Sequence[int], *, vocabulary: int, eos_ids: Sequence[int]) -> None:
        self._tokens = deque(tokens)
        self._vocabulary = vocabulary
        self._eos_ids = list(eos_ids)

    def allowed(self) -> Tensor:
        """Returns the token that comes next, bool (V,); after the last one, the tokens that end an answer."""
        mask = torch.zeros(self._vocabulary, dtype=torch.bool)
        mask[self._tokens[0] if self._tokens else self._eos_ids or slice(None)] = True
        return mask

    def accept(self, token: int) -> None:
        """Advances by a token."""
        if self._tokens:
            self._tokens.popleft()


SHRINK_AT = 0.9
"""A batch drops its finished rows when at most this share of its rows is still running."""


class Cancelled(Exception):
    """Raised when generation was asked to stop."""


@dataclass(slots=True, eq=False)
class BatchRow:
    """One growing answer."""

    sampling: Sampling
    stops: StopTexts | None = None
    matcher: Matcher | GivenAnswer | None = None
    states: RowStates | None = None
    listener: Callable[[int], None] | None = None
    """Called with the number of tokens that are certain to stay, whenever this number grows."""
    abandoned: Event = field(default_factory=Event)
    """Set when nobody waits for this answer any more."""
    tokens: list[int] = field(default_factory=list)
    """Token ids, without the end-of-sequence token."""
    logprobs: list[float] = field(default_factory=list)
    top: list[FloatArray] = field(default_factory=list)
    drawn_from: list[FloatArray] = field(default_factory=list)
    """States from which each token was drawn, float32 (layers, width); only kept where a `listener` hears of tokens and
    `states` are kept.
    """
    text: str | None = None
    """The text before the stop text, if a stop text ended the answer."""
    finish_reason: str = ""
    """`stop` for an answer that ended by itself or at a stop text, `length` for one that was cut by max_tokens."""
    error: LLMError | None = None
    ended: float | None = None
    """Time when the answer ended, by `time.perf_counter`."""

    @property
    def limit(self) -> int:
        """Most tokens of the answer. `LocalLLM` refuses a request without a limit."""
        assert self.sampling.max_tokens is not None
        return self.sampling.max_tokens

    def add(self, token: int, logprob: float, top: FloatArray | None, *, ends: bool) -> None:
        """Adds one token.

        Args:
            token: id of the token.
            logprob: its log-probability.
            top: log-probabilities of its alternatives.
            ends: whether it is an end-of-sequence token.
        """
        if self.ended is not None:
            return
        # After a stop text, this token was drawn only so that the pass gives the last token's hidden state.
        if self.text is not None or self.abandoned.is_set():
            self._end(self.finish_reason)
            return
        if ends:
            self._end("stop")
            return
        try:
            if self.matcher is not None:
                self.matcher.accept(token)
        except LLMError as error:
            self.error = error
            self._end("")
            return
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if top is not None:
            self.top.append(top)
        limit = self.limit
        text_and_count = self.stops.cut(self.tokens) if self.stops else None
        if text_and_count is not None and text_and_count[1] <= limit:
            tokens_read = len(self.tokens) - 1  # the newest token was drawn, but the model has not read it yet
            self.text, kept_count = text_and_count
            self.finish_reason = "stop"
            self._trim(kept_count)
            if kept_count <= tokens_read or self.states is None:
                self._end("stop")
        elif len(self.tokens) > limit:
            # One token more than the limit is drawn and dropped: it separates an answer that had just ended from one
            # that was cut, and its forward pass gives the hidden state of the last token that counts.
            self._trim(limit)
            self._end("length")
        elif self.listener is not None:
            self.listener(self.stops.safe(self.tokens) if self.stops else len(self.tokens))

    def _trim(self, kept_count: int) -> None:
        del self.tokens[kept_count:], self.logprobs[kept_count:], self.top[kept_count:], self.drawn_from[kept_count:]
        if self.states is not None:
            self.states.trim(kept_count)

    def _end(self, reason: str) -> None:
        self.finish_reason = reason
        self.ended = time.perf_counter()
        if self.listener is not None:
            self.listener(len(self.tokens))


class BatchRecorder(LogitsProcessor):
    """Draws and records the tokens of left-padded rows, for one batch."""

    def __init__(
        self,
        rows: Sequence[BatchRow],
        *,
        eos_ids: Sequence[int],
        device: torch.device,
        top_logprobs: int = 0,
        reader: StateReader | None = None,
        cancel: Event | None = None,
    ) -> None:
        self._rows = list(rows)
        self._generators = [torch.Generator(device) for _ in rows]
        for row, generator in zip(rows, self._generators, strict=True):
            if row.sampling.seed is None:
                generator.seed()
            else:
                generator.manual_seed(row.sampling.seed)
        self._device = device
        self._eos_ids = frozenset(eos_ids)
        self._top_logprobs = top_logprobs
        self._reader = reader
        self._cancel = cancel
        self._steps = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Records one step. `scores`: raw logits (B, V). Returns logits whose argmax is the drawn token."""
        if self._cancel is not None and self._cancel.is_set():
            raise Cancelled
        if self._reader is not None:
            # Before step s is drawn, the model has just read answer token s - 1 (at s = 0: the last prompt token).
            latest_states = self._reader.latest()
            for row_index, row in enumerate(self._rows):
                if row.states is not None and row.ended is None:
                    if row.listener is not None:
                        row.drawn_from.append(latest_states[:, row_index].cpu().numpy())
                    count = row.states.count
                    if count is None:
                        row.states.begin(latest_states[:, row_index])
                    else:
                        row.states.add(latest_states[:, row_index], row.tokens[count])
        logprobs = torch.log_softmax(scores.float(), dim=-1)  # (B, V)
        forced_logits, drawn_tokens = self._draw(logprobs)
        token_logprobs = logprobs.gather(1, drawn_tokens[:, None])[:, 0].tolist()
        top = logprobs.topk(self._top_logprobs, dim=-1).values.cpu().numpy() if self._top_logprobs else None
        for row_index, (row, token, value) in enumerate(
            zip(self._rows, drawn_tokens.tolist(), token_logprobs, strict=True)
        ):
            row.add(token, value, None if top is None else top[row_index], ends=token in self._eos_ids)
        self._steps += 1
        return forced_logits

    @property
    def done(self) -> Tensor:
        """Whether each row has ended, (B,); all True if it is time to call `shrink`."""
        ended = [row.ended is not None for row in self._rows]
        if len(ended) - sum(ended) <= SHRINK_AT * len(ended):
            ended = [True] * len(ended)
        return torch.tensor(ended, device=self._device)

    @property
    def remaining(self) -> int:
        """Most tokens that the rows still need, with the one that is drawn and dropped."""
        limits = [row.limit for row in self._rows if row.ended is None]
        return max(limits, default=0) + 1 - self._steps

    def shrink(self) -> list[int]:
        """Drops the rows that have ended, and returns the previous indices of the others."""
        unfinished_indices = [row_index for row_index, row in enumerate(self._rows) if row.ended is None]
        self._rows = [self._rows[row_index] for row_index in unfinished_indices]
        self._generators = [self._generators[row_index] for row_index in unfinished_indices]
        return unfinished_indices

    def _draw(self, logprobs: Tensor) -> tuple[Tensor, Tensor]:
        """Draws a token for each row: greedily, or with the Gumbel-max trick.

        In the Gumbel-max trick, argmax(log p + Gumbel noise) is a draw from p. Returns logits (B, V) whose argmax is
        the drawn token, and the drawn tokens (B,).
        """
        scores_of_row: dict[int, Tensor] = {}
        for row_index, (row, generator) in enumerate(zip(self._rows, self._generators, strict=True)):
            sampling = row.sampling
            if row.ended is not None or (row.matcher is None and sampling.temperature == 0):
                continue
            scores = logprobs[row_index]
            if row.matcher is not None:
                scores = scores.masked_fill(~row.matcher.allowed().to(scores.device), float("-inf"))
            if sampling.temperature > 0:
                nucleus_logits = nucleus(scores / sampling.temperature, sampling.top_p)
                uniform = torch.rand(nucleus_logits.shape, generator=generator, device=nucleus_logits.device).clamp_(
                    min=1e-20
                )
                scores = nucleus_logits - torch.log(-torch.log(uniform))
            scores_of_row[row_index] = scores
        forced_logits = logprobs.clone() if scores_of_row else logprobs
        for row_index, scores in scores_of_row.items():
            forced_logits[row_index] = scores
        return forced_logits, forced_logits.argmax(dim=-1)


class RowsDone(StoppingCriteria):
    """Stops each row when its recorder says so."""

    def __init__(self, recorder: BatchRecorder) -> None:
        self._recorder = recorder

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return self._recorder.done


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Returns logits (V,) with -inf for all tokens outside the smallest set of probability `top_p`."""
    if top_p >= 1:
        return logits
    sorted_logits, order = logits.sort(descending=True)
    probability_before = sorted_logits.softmax(-1).cumsum(-1) - sorted_logits.softmax(-1)
    return logits.clone().index_fill_(0, order[probability_before >= top_p], float("-inf"))


@torch.inference_mode()
def generate(
    model: Any,
    recorder: BatchRecorder,
    prompts: Sequence[list[int]],
    *,
    eos_ids: Sequence[int],
    pad: int,
    share_prefix: bool = True,
) -> None:
    """Answers every prompt (token ids), until the recorder says that its row has ended.

    A finished row costs as much as any other until it leaves the batch. On SmolLM2-135M with 32 answers of 2 to 363
    tokens, generation takes half the time if finished rows leave.

    Args:
        model: the model.
        recorder: draws and records the tokens.
        prompts: token ids of the prompts.
        eos_ids: ids of end tokens.
        pad: id of the padding token.
        share_prefix: whether a common prefix of prompts is read once.
    """
    no_prefixes = Prefixes((0,) * len(prompts), (0,) * len(prompts), (0,))
    grouping = prefixes(prompts) if share_prefix else no_prefixes
    ids, mask = pad_rows(prompts, pad, grouping, model.device)
    cache = build_group_cache(model, ids, mask, grouping)
    while True:
        # A model's own generation defaults (repetition penalty, top-k) would change what is recorded as raw.
        config = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=recorder.remaining,
            do_sample=False,
            eos_token_id=list(eos_ids),
            pad_token_id=pad,
            return_dict_in_generate=True,
        )
        generated = model.generate(
            input_ids=ids,
            attention_mask=mask,
            **{CACHE: cache},
            generation_config=config,
            logits_processor=[recorder],
            stopping_criteria=[RowsDone(recorder)],
        )
        unfinished_indices = recorder.shrink()
        if not unfinished_indices:
            return
        kept_rows = torch.tensor(unfinished_indices, device=ids.device)
        new_token_count = generated.sequences.shape[1] - ids.shape[1]
        ids, cache = generated.sequences[kept_rows], getattr(generated, CACHE)
        mask = torch.cat([mask, mask.new_ones(mask.shape[0], new_token_count)], dim=1)[kept_rows]
        cache.batch_select_indices(kept_rows)
