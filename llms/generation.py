"""Generates a batch of answers: the loop around transformers' `generate`, and what is recorded of each row.

The recorder is the last logits processor of `generate`, so it sees the model's own logits. It draws the tokens itself,
row by row, each row with its own temperature, top-p, seed and JSON Schema, and hands `generate` logits whose argmax is
that choice: a row's tokens do not depend on the random state of the other rows in its batch. What is recorded is raw:
the model's distribution before temperature, top-p and schema. A batch goes on with fewer rows when many have ended.
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
    """Finds the first stop text in an answer that grows by a token at a time.

    Looked for in decoded text, so that it may begin and end anywhere within tokens, but only the newest tokens are
    decoded at each step: as many as the longest stop text has bytes, for a token has at least one.
    """

    def __init__(self, stops: Sequence[str], decode: Decode) -> None:
        self._stops = stops
        self._decode = decode
        # Some tokenizers drop a space at the beginning of what they decode, or begin within a character.
        self.window = max(len(stop.encode(errors="surrogatepass")) for stop in stops) + 4
        """A stop text that ends in the newest token begins within this many tokens."""

    def cut(self, tokens: Sequence[int]) -> tuple[str, int] | None:
        """The text before the stop text and how many tokens make it up; None where there is no stop text.

        A token that begins before the stop text and ends in it is one of those that make up the text.
        """
        newest = self._decode(tokens[-self.window :])
        if not any(stop in newest for stop in self._stops):
            return None
        text = self._decode(tokens)
        start = max(len(text) - len(newest), 0)
        places = [place for stop in self._stops if (place := text.find(stop, start)) >= 0]
        if not places:
            return None
        return text[: min(places)], self._needed(tokens, text[: min(places)])

    def safe(self, tokens: Sequence[int]) -> int:
        """Returns how many tokens stay whatever comes: the others may turn out to begin a stop text."""
        window = tokens[-self.window :]
        newest = self._decode(window)
        whole = newest.rstrip("\ufffd")  # a character whose last bytes are still to come
        begun = [n for stop in self._stops for n in range(1, len(stop)) if whole.endswith(stop[:n])]
        return len(tokens) - len(window) + self._needed(window, whole[: len(whole) - max(begun, default=0)])

    def _needed(self, tokens: Sequence[int], text: str) -> int:
        """The fewest tokens whose text begins with `text`, leaving out no more than a window."""
        count = len(tokens)
        while count > max(len(tokens) - self.window, 0) and self._decode(tokens[: count - 1])[: len(text)] == text:
            count -= 1
        return count


# One way to set spaces, that of Python's json module: a small model that may write any amount of them never ends.
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammars:
    """The schemas asked for so far, compiled for one tokenizer."""

    def __init__(self, tokenizer: Any, *, vocabulary: int, eos_ids: Sequence[int]) -> None:
        """`vocabulary`: logits that the model gives, which may be more than the tokenizer has tokens."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._eos_ids = list(eos_ids)
        self._converted: Any = None
        self._compiled: dict[str, Any] = {}

    def matcher(self, schema: str) -> "Matcher":
        """A matcher at the beginning of a text. Raises `LLMError` for a schema that cannot be followed."""
        if schema in self._compiled:
            return Matcher(self._compiled[schema].deep_copy(), self._vocabulary)
        llguidance = require("llguidance", "train")
        if self._converted is None:  # about a second
            convert = require("llguidance.hf", "train").from_tokenizer
            try:
                self._converted = convert(self._tokenizer, n_vocab=self._vocabulary, eos_token=self._eos_ids)
            except ValueError as error:
                raise LLMError(f"json_schema: llguidance cannot work with this model's tokenizer: {error}") from error
        try:
            parsed = json.loads(schema)
        except ValueError as error:
            raise LLMError(f"json_schema is not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise LLMError(f"json_schema must be a JSON object, got {schema[:80]!r}")
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=SPACING)
        matcher = llguidance.LLMatcher(self._converted, grammar, log_level=0)
        if matcher.is_error():
            raise LLMError(f"json_schema cannot be followed: {matcher.get_error()}")
        self._compiled[schema] = matcher
        return Matcher(matcher.deep_copy(), self._vocabulary)


class Matcher:
    """Tells which tokens may come next in one answer."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def allowed(self) -> Tensor:
        """Tokens that may come next, bool (V,); only those that end the answer once the text is complete."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return torch.from_numpy(np.unpackbits(bits, bitorder="little")[: self._vocabulary].view(bool))

    def accept(self, token: int) -> None:
        """Go on by a token. Raises `LLMError` where it may not come next, or the schema is too complex to go on."""
        if not self._matcher.consume_token(token):
            raise LLMError(f"json_schema: {self._matcher.get_error()}")


class GivenAnswer:
    """Stands for a matcher that allows one answer only: these tokens, then an end token."""

    def __init__(self, tokens: Sequence[int], *, vocabulary: int, eos_ids: Sequence[int]) -> None:
        self._tokens = deque(tokens)
        self._vocabulary = vocabulary
        self._ends = list(eos_ids)

    def allowed(self) -> Tensor:
        """The token that comes next, bool (V,); after the last one, the tokens that end an answer."""
        mask = torch.zeros(self._vocabulary, dtype=torch.bool)
        mask[self._tokens[0] if self._tokens else self._ends or slice(None)] = True
        return mask

    def accept(self, token: int) -> None:
        """Goes on by a token."""
        if self._tokens:
            self._tokens.popleft()


SHRINK_AT = 0.9
"""A batch goes on without its finished rows once no more than this share of its rows is still being answered."""


class Cancelled(Exception):
    """Generation was asked to stop."""


@dataclass(slots=True, eq=False)
class BatchRow:
    """One answer as it grows."""

    sampling: Sampling
    stops: StopTexts | None = None
    matcher: Matcher | GivenAnswer | None = None
    states: RowStates | None = None
    listener: Callable[[int], None] | None = None
    """Called with how many tokens are certain to stay, whenever there are more of them."""
    abandoned: Event = field(default_factory=Event)
    """Set when nobody waits for this answer any more."""
    tokens: list[int] = field(default_factory=list)
    """Without the end-of-sequence token."""
    logprobs: list[float] = field(default_factory=list)
    top: list[FloatArray] = field(default_factory=list)
    text: str | None = None
    """The text before the stop text, where one ended the answer."""
    finish_reason: str = ""
    """`stop` for an answer that ended by itself or at a stop text, `length` for one that max_tokens cut."""
    error: LLMError | None = None
    ended: float | None = None
    """When, by `time.perf_counter`."""

    @property
    def limit(self) -> int:
        """The most tokens of the answer. `LocalLLM` refuses a request without a limit."""
        assert self.sampling.max_tokens is not None
        return self.sampling.max_tokens

    def add(self, token: int, logprob: float, top: FloatArray | None, *, ends: bool) -> None:
        """One more token. `ends`: it is an end-of-sequence token."""
        if self.ended is not None:
            return
        if self.text is not None or self.abandoned.is_set():  # what was drawn last needed a pass for its hidden state
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
        cut = self.stops.cut(self.tokens) if self.stops else None
        if cut is not None and cut[1] <= limit:
            read = len(self.tokens) - 1  # the newest token was drawn, but the model has not read it yet
            self.text, kept = cut
            self.finish_reason = "stop"
            self._keep(kept)
            if kept <= read or self.states is None:
                self._end("stop")
        elif len(self.tokens) > limit:
            # One token more than the limit is drawn and dropped: it separates an answer that had just ended from one
            # that was cut, and its forward pass gives the hidden state of the last token that counts.
            self._keep(limit)
            self._end("length")
        elif self.listener is not None:
            self.listener(self.stops.safe(self.tokens) if self.stops else len(self.tokens))

    def _keep(self, count: int) -> None:
        del self.tokens[count:], self.logprobs[count:], self.top[count:]
        if self.states is not None:
            self.states.trim(count)

    def _end(self, reason: str) -> None:
        self.finish_reason = reason
        self.ended = time.perf_counter()
        if self.listener is not None:
            self.listener(len(self.tokens))


class BatchRecorder(LogitsProcessor):
    """Draws and records the tokens of left-padded rows; for one batch."""

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
        self._eos = frozenset(eos_ids)
        self._k = top_logprobs
        self._reader = reader
        self._cancel = cancel
        self._steps = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Record one step. `scores`: raw logits (B, V). Returns logits whose argmax is the drawn token."""
        if self._cancel is not None and self._cancel.is_set():
            raise Cancelled
        if self._reader is not None:
            # Before step s is drawn, the model has just read answer token s - 1 (at s = 0: the last prompt token).
            latest = self._reader.latest()
            for place, row in enumerate(self._rows):
                if row.states is not None and row.ended is None:
                    count = row.states.count
                    if count is None:
                        row.states.begin(latest[:, place])
                    else:
                        row.states.add(latest[:, place], row.tokens[count])
        logprobs = torch.log_softmax(scores.float(), dim=-1)  # (B, V)
        drawn, chosen = self._draw(logprobs)
        values = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
        top = logprobs.topk(self._k, dim=-1).values.cpu().numpy() if self._k else None
        for place, (row, token, value) in enumerate(zip(self._rows, chosen.tolist(), values, strict=True)):
            row.add(token, value, None if top is None else top[place], ends=token in self._eos)
        self._steps += 1
        return drawn

    @property
    def done(self) -> Tensor:
        """Rows that have ended, (B,); all of them where it is time to `shrink`."""
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
        """Go on with the rows that have not ended: their places in the batch so far."""
        going = [place for place, row in enumerate(self._rows) if row.ended is None]
        self._rows = [self._rows[place] for place in going]
        self._generators = [self._generators[place] for place in going]
        return going

    def _draw(self, logprobs: Tensor) -> tuple[Tensor, Tensor]:
        """Greedy, or by the Gumbel-max trick: argmax(log p + Gumbel noise) is a draw from p."""
        changed: dict[int, Tensor] = {}
        for place, (row, generator) in enumerate(zip(self._rows, self._generators, strict=True)):
            sampling = row.sampling
            if row.ended is not None or (row.matcher is None and sampling.temperature == 0):
                continue
            scores = logprobs[place]
            if row.matcher is not None:
                scores = scores.masked_fill(~row.matcher.allowed().to(scores.device), float("-inf"))
            if sampling.temperature > 0:
                kept = nucleus(scores / sampling.temperature, sampling.top_p)
                uniform = torch.rand(kept.shape, generator=generator, device=kept.device).clamp_(min=1e-20)
                scores = kept - torch.log(-torch.log(uniform))
            changed[place] = scores
        drawn = logprobs.clone() if changed else logprobs
        for place, scores in changed.items():
            drawn[place] = scores
        return drawn, drawn.argmax(dim=-1)


class RowsDone(StoppingCriteria):
    """Stops each row when its recorder says so."""

    def __init__(self, recorder: BatchRecorder) -> None:
        self._recorder = recorder

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return self._recorder.done


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Logits (V,) with everything outside the smallest set of probability `top_p` at -inf."""
    if top_p >= 1:
        return logits
    ordered, order = logits.sort(descending=True)
    before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
    return logits.clone().index_fill_(0, order[before >= top_p], float("-inf"))


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
    """Answer every prompt (token ids), until the recorder says that its row has ended.

    A finished row costs as much as any other until it leaves the batch. On SmolLM2-135M with 32 answers of 2 to 363
    tokens, generation takes half the time when finished rows leave.
    """
    nothing = Prefixes((0,) * len(prompts), (0,) * len(prompts), (0,))
    grouping = prefixes(prompts) if share_prefix else nothing
    ids, mask = pad_rows(prompts, pad, grouping, model.device)
    past = build_group_cache(model, ids, mask, grouping)
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
            **{CACHE: past},
            generation_config=config,
            logits_processor=[recorder],
            stopping_criteria=[RowsDone(recorder)],
        )
        places = recorder.shrink()
        if not places:
            return
        kept = torch.tensor(places, device=ids.device)
        new = generated.sequences.shape[1] - ids.shape[1]
        ids, past = generated.sequences[kept], getattr(generated, CACHE)
        mask = torch.cat([mask, mask.new_ones(mask.shape[0], new)], dim=1)[kept]
        past.batch_select_indices(kept)
