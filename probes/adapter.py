"""The adapter probe: a small language model with a confidence head, exported. Texts in, P(right) out, without torch.

It reads a plain layout of its own, whatever chat template the answer was generated with: `prompt` is the text of the
last user message, `answer` the text of the answer. So nothing but the tokenizer stored in the checkpoint is needed.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import (
    Checkpoint,
    ContractMismatch,
    GoldenMismatch,
    NotACheckpoint,
    Pretrained,
    load_checkpoint,
)
from metaprobe.checkpoints.checkpoint import check_kind
from metaprobe.probes.training_runs import OnMismatch, check_choice, mismatch
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.extras import require
from metaprobe.records.types import Call, Message

ADAPTER = "adapter"
TOKENIZERS_REQUIREMENT = "tokenizers>=0.21"
IDS, MASK = "input_ids", "attention_mask"
BATCH_SIZE = 8
"""Texts that are read at once. More need more memory and save no time on one thread."""
TOKENIZER = "tokenizer.json"

JudgementTime = Literal["before", "after"]
"""The judgement: whether an answer will be right, from the question alone, or whether a given answer is right."""

LAYOUT: dict[JudgementTime, str] = {
    "before": "{prompt}\n\nWill the answer be right?",
    "after": "{prompt}\n\nAnswer: {answer}\n\nIs the answer right?",
}
"""Text that the model reads, before and after the answer. It ends the same way in every row, so the head always reads
the same token.
"""

SAMPLE = 'What is 3 + 4?\n\nAnswer: "7", naïve – 日本 \t{x}\n\nIs the answer right?'
"""A text whose token ids are in the contract: another version of `tokenizers` must read it in the same way."""


def layout(prompt: str, answer: str | None) -> str:
    """Returns the text that is judged: prompt and answer, or the prompt alone if there is no answer yet."""
    return LAYOUT["before" if answer is None else "after"].format(prompt=prompt, answer=answer)


def prompt_of(messages: Sequence[Message]) -> str | None:
    """Returns the text of the last user message; None if there is no user message."""
    return next((message.content for message in reversed(messages) if message.role == "user"), None)


def read_tokenizer(data: bytes) -> Any:
    """Returns the tokenizer in the bytes of a tokenizer.json, without padding. Raises `ContractMismatch` for others."""
    tokenizers = require("tokenizers", TOKENIZERS_REQUIREMENT)
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(data)
    except ValueError as error:
        raise ContractMismatch(f"{TOKENIZER} cannot be read by tokenizers {tokenizers.__version__}: {error}") from error
    tokenizer.no_padding()
    return tokenizer


class Encoder:
    """Turns texts into token ids with the `tokenizers` package. Only the end of a long text is kept."""

    def __init__(self, tokenizer: bytes, *, max_length: int) -> None:
        """`tokenizer`: the bytes of a tokenizer.json. Raises `ContractMismatch` if they cannot be read."""
        self._tokenizer = read_tokenizer(tokenizer)
        self._tokenizer.enable_truncation(max_length, direction="left")

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the token ids of each text."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]


def padded_batches(
    ids: Sequence[Sequence[int]], batch_size: int
) -> Iterator[tuple[NDArray[np.intp], dict[str, NDArray[np.int64]]]]:
    """Yields batches of rows of similar length: their indices, and `input_ids` and `attention_mask` (n, T), padded on
    the right.
    """
    order = np.argsort([len(row) for row in ids], kind="stable")
    for start in range(0, len(order), batch_size):
        row_indices = order[start : start + batch_size]
        lengths = np.array([len(ids[row]) for row in row_indices])
        mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
        tokens = np.zeros_like(mask)
        tokens[mask == 1] = np.concatenate([ids[row] for row in row_indices])
        yield row_indices, {IDS: tokens, MASK: mask}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AdapterProbe(Pretrained):
    """Gives P(right) of an answer from its text. Several threads may share one probe."""

    checkpoint: Checkpoint
    when: tuple[JudgementTime, ...]
    """The judgements that it was trained for."""
    target: str
    """The label it predicts."""
    encoder: Encoder = field(repr=False)
    on_mismatch: OnMismatch = "warn"

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, sha256: str | None = None, on_mismatch: OnMismatch = "warn"
    ) -> "AdapterProbe":
        """Returns the verified probe of a checkpoint folder. `sha256`: the digest that its author gave you.

        `on_mismatch`: what `read` does with a call of a model that the probe was not trained on. Raises a
        `CheckpointError`, and `MissingExtra` where the `tokenizers` package is absent.
        """
        return cls.of(load_checkpoint(path, sha256=sha256), on_mismatch=on_mismatch)

    @classmethod
    def of(cls, checkpoint: Checkpoint, *, on_mismatch: OnMismatch = "warn") -> "AdapterProbe":
        """Returns the probe in a checkpoint that is loaded; raises as `load`."""
        manifest, path = checkpoint.manifest, checkpoint.path
        check_kind(checkpoint.path, manifest.kind, ADAPTER)
        if TOKENIZER not in checkpoint.extra:
            raise NotACheckpoint(f"{path} holds no {TOKENIZER}; copy the whole folder")
        contract = manifest.contract
        stated_layouts, max_length, target = (contract.get(key) for key in ("layout", "max_length", "target"))
        if not isinstance(stated_layouts, dict) or not isinstance(max_length, int) or not isinstance(target, str):
            raise ContractMismatch(f"{path}: contract needs layout, max_length and target, has {sorted(contract)}")
        when = tuple(name for name in LAYOUT if name in stated_layouts)
        if stated_layouts != {name: LAYOUT[name] for name in when} or {o.name for o in manifest.outputs} != set(when):
            raise ContractMismatch(
                f"{path} was made for another layout of prompt and answer than this version writes: train it again, or "
                f"use the version of metaprobe it names"
            )
        encoder = Encoder(checkpoint.extra[TOKENIZER], max_length=max_length)
        if encoder.ids([SAMPLE])[0] != contract.get("sample_ids"):
            raise GoldenMismatch(
                f"{path}: the installed version of tokenizers reads a sample text in another way than the one it was "
                f"trained with ({manifest.versions.get('tokenizers', 'unknown')}): install that one"
            )
        return cls(checkpoint, when, target, encoder, check_choice(on_mismatch))

    def probability(self, prompts: Sequence[str], answers: Sequence[str] | None = None) -> NDArray[np.float64]:
        """Returns calibrated P(right) (n,) of answers to prompts. Without answers it is P(right) of an answer that is
        still to come. Raises `InvalidResponse`.

        `prompts`: the last user message of each conversation. Only the end of a long text is read.
        """
        when: JudgementTime = "before" if answers is None else "after"
        if isinstance(prompts, str) or isinstance(answers, str):
            raise InvalidResponse("got one text; expected a list of prompts, and of answers: [prompt], [answer]")
        if answers is not None and len(answers) != len(prompts):
            raise InvalidResponse(f"got {len(prompts)} prompts and {len(answers)} answers; expected as many")
        if when not in self.when:
            remedy = "give the answers" if answers is None else "leave the answers out"
            raise InvalidResponse(
                f"{self.checkpoint.path} was trained to judge {' and '.join(self.when)} the answer only: {remedy}, or "
                f"train it with --when both"
            )
        given_answers: Sequence[str | None] = [None] * len(prompts) if answers is None else answers
        texts = [layout(prompt, answer) for prompt, answer in zip(prompts, given_answers, strict=True)]
        probabilities = np.full(len(texts), np.nan)
        for rows, inputs in padded_batches(self.encoder.ids(texts), BATCH_SIZE):
            probabilities[rows] = self.checkpoint.run(dict(inputs))[when][:, 0]
        return probabilities

    def read(self, call: Call, *, when: JudgementTime = "after") -> float:
        """Returns P(right) of one recorded call. Raises `InvalidResponse` if the texts of the call were not stored."""
        mismatch(self.checkpoint.manifest.generator, model=call.model, on_mismatch=self.on_mismatch, stacklevel=3)
        prompt = prompt_of(call.messages)
        if prompt is None:
            raise InvalidResponse(f"call {call.id} has no user message: this probe reads texts")
        return float(self.probability([prompt], [call.text] if when == "after" else None)[0])
