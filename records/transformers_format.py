"""Reads what transformers' `generate` returns, with `return_dict_in_generate=True` and its logits or scores.

No tensor library is imported: a step's row is turned into a NumPy array, and its log-softmax taken in float64.

Where an answer ends. Rows of a batch that end early are padded, and the output says neither by what nor after what, so:

- one row alone is never padded: all its tokens count, the end-of-sequence token too if it came;
- say what ends an answer, `parse_response({**output, "eos_token_id": model.generation_config.eos_token_id})`, and a row
  is cut exactly: that token and what follows are left out, as in a `Call`;
- otherwise a row of a batch is refused, because it may be padded.

Where thinking ends. The output has no texts, so it is told likewise by `"thinking_end_token_id"`, the id of `</think>`,
and `"thinking_start_token_id"` where the model writes `<think>` itself; without the first, all counts as the answer.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.logprobs import check_logprobs
from metaprobe.records.reading import array, as_list, get
from metaprobe.records.response import ParsedResponse
from metaprobe.records.types import LogprobsMode, Segment, Usage

_STATE = (
    "expected to be told what ends one:"
    ' parse_response({**output, "eos_token_id": model.generation_config.eos_token_id})'
)


def is_generated(response: object) -> bool:
    """Whether this is what `generate` returns, or its fields in a dictionary."""
    return get(response, "sequences") is not None and not callable(get(response, "sequences"))


def read_generated(response: object, choice: int, top: bool = True) -> ParsedResponse:
    """The answer in row `choice` of the sequences: raw from the logits where they came, else processed from the scores.

    `sequences` may begin with the prompt. Alternatives are never read, whatever `top` says. Beams are refused, for a
    step's row is not the sequence's there.
    """
    mode, steps = _steps(response)
    sequences = array(get(response, "sequences"))
    if sequences.ndim != 2 or sequences.dtype.kind not in "iu" or sequences.shape[1] < len(steps):
        raise InvalidResponse(
            f"sequences came as {sequences.dtype} with shape {sequences.shape} beside {len(steps)} steps; expected"
            " token ids, shape (rows, prompt and answer)"
        )
    if not 0 <= choice < len(sequences):
        raise InvalidResponse(f"sequences has {len(sequences)} rows; expected a row {choice}")
    if get(response, "beam_indices") is not None or get(response, "sequences_scores") is not None:
        raise InvalidResponse(
            "the output is of a beam search, whose scores are the beams'; expected greedy search or sampling:"
            " pass what model.compute_transition_scores gives for this sequence instead"
        )
    answers = sequences[:, sequences.shape[1] - len(steps) :]
    ids = _ended(answers, choice, get(response, "eos_token_id"))
    segments = _segments(response, ids)
    logprobs = [
        _logprob(step, choice, int(token), number)
        for number, (step, token) in enumerate(zip(steps[: len(ids)], ids, strict=True))
    ]
    return ParsedResponse(
        text="",
        tokens=(),
        logprobs=check_logprobs(np.array(logprobs)),
        usage=Usage(completion_tokens=len(ids)),
        logprobs_mode=mode,
        segments=segments,
    )


def _segments(response: object, ids: NDArray[Any]) -> tuple[Segment, ...]:
    """Thinking and answer, where the caller says what ends the thinking; empty where nobody does, or none was."""
    closing = get(response, "thinking_end_token_id")
    if closing is None or not len(ids):
        return ()
    opening = get(response, "thinking_start_token_id")
    ends = np.flatnonzero(np.isin(ids, array(closing)))
    begins = int(opening is not None and bool(np.isin(ids[0], array(opening))))
    if not len(ends):
        return (Segment("thinking", begins, len(ids)),) if begins else ()
    end = int(ends[0])
    return tuple(s for s in (Segment("thinking", begins, end), Segment("answer", end + 1, len(ids))) if s.start < s.end)


def _steps(response: object) -> tuple[LogprobsMode, Sequence[Any]]:
    named: tuple[tuple[str, LogprobsMode], ...] = (("logits", "raw"), ("scores", "processed"))
    for name, mode in named:
        given = get(response, name)
        if given is None:
            continue
        if not (steps := as_list(given)):
            raise InvalidResponse(
                f"{name} came empty or as {type(given).__name__}; expected a tuple of arrays (rows, vocabulary)"
            )
        return mode, steps
    raise InvalidResponse(
        "the output of generate holds no logits or scores; generate with return_dict_in_generate=True and"
        " output_logits=True (raw log-probabilities) or output_scores=True (processed ones)"
    )


def _ended(answers: NDArray[Any], row: int, eos: object) -> NDArray[Any]:
    """The tokens of a row without what does not belong to its answer (see above)."""
    ids: NDArray[Any] = answers[row]
    if eos is not None:
        ends = np.flatnonzero(np.isin(ids, array(eos)))
        return ids[: ends[0]] if len(ends) else ids
    if len(answers) == 1:
        return ids
    raise InvalidResponse(
        f"row {row} of this batch of {len(answers)} may end in padding, which the output does not tell from an answer;"
        f" {_STATE}"
    )


def _logprob(step: Any, row: int, token: int, number: int) -> float:
    try:
        scores = array(step[row])
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidResponse(
            f"step {number} came as {type(step).__name__} without a row {row}; expected an array (rows, vocabulary)"
        ) from error
    if scores.ndim != 1 or scores.dtype.kind not in "fiu" or not 0 <= token < len(scores):
        raise InvalidResponse(
            f"step {number} has a row of {scores.dtype} with shape {scores.shape} for token {token};"
            " expected one score for each token of the vocabulary"
        )
    exact = scores.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):  # what is not finite is refused by its place
        above = exact - exact.max()
        return float(above[token] - np.log(np.exp(above).sum()))
