"""Log-probabilities of answers that another model gave: this model reads messages and text, and draws nothing."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metaprobe.llms.base import LLMError
from metaprobe.llms.chat_prompt import encode_text
from metaprobe.llms.continuations import ScoredText, score
from metaprobe.llms.local import LocalLLM
from metaprobe.records.segments import marked
from metaprobe.records.types import Call

FAILED = "the call had failed"
NO_MESSAGES = "no messages are kept, so that there is no prompt to read"
NO_TEXT = "no text is kept, or the answer is empty"


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """A call as a reader leaves it."""

    call: Call
    """With the reader's tokens and log-probabilities; with none where it could not be read."""
    tokens: int
    """Of prompt and answer, as they were read; 0 where they were not."""
    unread: str
    """Why it could not be read; empty where it was."""


def reader_name(name: str, revision: str) -> str:
    """`NAME@REVISION`, as it stands in `Call.reader`."""
    return f"{name}@{revision}"


def read_answers(
    llm: LocalLLM, calls: Sequence[Call], *, batch_size: int = 32, top_logprobs: int = 0
) -> list[ReadAnswer]:
    """The calls in this order, each with the raw log-probabilities that `llm` gives its text, teacher-forced.

    The reader sees the messages through its own chat template, and the text as its own tokenizer splits it. Tokens,
    token ids, segments and log-probabilities are then the reader's; model, text, labels' ids and everything else stay
    those of the answer. What cannot be read (without messages or text, or longer than the reader's context) comes back
    without log-probabilities and with the reason: the answering model's own numbers are not left among the reader's.
    """
    taken = [_prepared(llm, call) for call in calls]
    pairs = {i: one for i, one in enumerate(taken) if not isinstance(one, str)}
    order = sorted(pairs, key=lambda i: sum(map(len, pairs[i])))  # of like length together: little is padded
    done: dict[int, ReadAnswer] = {}
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        scored = score(
            llm.model,
            [pairs[i] for i in rows],
            pad=llm.tokenizer.pad_token_id,
            top_logprobs=top_logprobs,
            share_prefix=llm.shareable,
        )
        done |= {i: _read(llm, calls[i], *pairs[i], said) for i, said in zip(rows, scored, strict=True)}
    reader = reader_name(llm.name, llm.revision)
    return [
        done[i] if i in done else ReadAnswer(without_numbers(call, reader), 0, str(taken[i]))
        for i, call in enumerate(calls)
    ]


def _read(llm: LocalLLM, call: Call, prompt: list[int], answer: list[int], said: ScoredText) -> ReadAnswer:
    logprobs = said.logprobs.numpy()
    if not np.isfinite(logprobs).all():
        raise LLMError(
            f"{llm.name} gives log-probabilities that are no numbers for call {call.id}: its weights are damaged, or "
            f"overflow in {llm.dtype}; load sound ones, in bfloat16 or float32"
        )
    tokens = tuple(llm.piece(token) for token in answer)
    read = dataclasses.replace(
        without_numbers(call, reader_name(llm.name, llm.revision)),
        prompt_token_ids=np.asarray(prompt, dtype=np.int32),
        tokens=tokens,
        token_ids=np.asarray(answer, dtype=np.int32),
        logprobs=logprobs,
        top_logprobs=None if said.top is None else said.top.numpy(),
        segments=marked(tokens),
        logprobs_mode="raw",
    )
    return ReadAnswer(read, len(prompt) + len(answer), "")


def without_numbers(call: Call, reader: str) -> Call:
    """The call without what the model that answered, or another reader, said of its tokens."""
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


def _prepared(llm: LocalLLM, call: Call) -> tuple[list[int], list[int]] | str:
    """Token ids of prompt and answer, or why there are none."""
    if call.error is not None:
        return FAILED
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
