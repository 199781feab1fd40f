"""Reads answers in the engines' own formats: vLLM offline, SGLang, llama.cpp's server, transformers' `generate`.

Each format is recognised by its shape. No engine and no tensor library is imported: a step's row of transformers is
converted to a NumPy array, and its log-softmax is computed in float64.

Where an answer of transformers ends: rows of a batch that end early are padded, and the output states neither the
padding token nor the end token. So:

- A single row is never padded: all its tokens count, also an end-of-sequence token.
- With the end token given, `parse_response({**output, "eos_token_id": model.generation_config.eos_token_id})`, a row is
  cut exactly: that token and all later ones are left out, as in a `Call`.
- Otherwise a row of a batch is refused, because it may be padded.

Where its thinking ends: the output has no texts, so the caller gives `"thinking_end_token_id"`, the id of `</think>`,
and `"thinking_start_token_id"` if the model writes `<think>` itself. Without the first, all tokens count as the answer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.reading import (
    LENGTH,
    STOP,
    array,
    as_list,
    fields,
    get,
    only_choice,
    read_end,
    read_temperature,
    text,
    usage,
)
from metaprobe.records.response import ParsedResponse, check_logprobs, first_of, parse_entries, settle, without_last
from metaprobe.records.segments import Ending
from metaprobe.records.types import LogprobsMode, Segment, Usage


def is_vllm(response: object) -> bool:
    """Returns whether this is a `RequestOutput` or a `CompletionOutput`, or a dictionary with their fields."""
    if as_list(get(response, "outputs")) is not None and get(response, "prompt_token_ids") is not None:
        return True
    names = ("token_ids", "logprobs", "text", "finish_reason", "cumulative_logprob")
    return (isinstance(response, Mapping) and response.keys() >= set(names)) or all(hasattr(response, n) for n in names)


def read_vllm(response: object, choice: int, top: bool = True) -> ParsedResponse:
    """Returns the answer of a `RequestOutput` or a `CompletionOutput`. The end token and tokens of a stop text are left
    out.

    The log-probabilities count as raw, as vLLM gives them unless the engine's `logprobs_mode` is changed. The output
    shows neither this mode nor the temperature, so state the mode if you changed it.

    Args:
        response: the output.
        choice: index of the answer among the outputs of a `RequestOutput`.
        top: whether alternatives are read.
    """
    prompt: Sequence[int] = ()
    note = ""
    if (outputs := as_list(get(response, "outputs"))) is not None:
        if not 0 <= choice < len(outputs):
            raise InvalidResponse(f"the RequestOutput has {len(outputs)} outputs; expected outputs[{choice}]")
        prompt, response = as_list(get(response, "prompt_token_ids")) or (), outputs[choice]
        note = first_of(len(outputs), choice)
    ids, logprobs = as_list(get(response, "token_ids")), get(response, "logprobs")
    if logprobs is None:
        raise InvalidResponse("the vLLM output holds no log-probabilities; generate with SamplingParams(logprobs=k)")
    if ids is None or as_list(logprobs) is None or len(logprobs) != len(ids):
        received = f"{len(logprobs)} positions" if as_list(logprobs) is not None else type(logprobs).__name__
        raise InvalidResponse(
            f"the vLLM output has {received} of log-probabilities and {'no' if ids is None else len(ids)} token_ids;"
            " expected as many of both: was the output edited?"
        )
    parsed = parse_entries(
        entries_of(ids, logprobs),
        "the vLLM output",
        text=text(get(response, "text")),
        finish_reason=read_end(get(response, "finish_reason")),
        usage=usage(len(prompt), len(ids)),
        logprobs_mode="raw",
        note=note,
    )
    reason = get(response, "stop_reason")
    ending: Ending = ""
    if parsed.finish_reason == STOP:  # vLLM leaves an end token in `token_ids` and `logprobs`, and not in the text
        ending = "text" if isinstance(reason, str) else "token" if reason is None or type(reason) is int else ""
    return settle(parsed if top else replace(parsed, top_logprobs=None), None, ending)


def entries_of(ids: Sequence[Any], mappings: Any, *, alone: bool = True) -> list[dict[str, Any]]:
    """Returns {token, logprob, top_logprobs} of each drawn token; `top_logprobs` holds only numbers.

    Raises `InvalidResponse` if a position cannot be read or lacks its drawn token.

    Args:
        ids: ids of the drawn tokens.
        mappings: list of mappings from token id to `Logprob`, or a `FlatLogprobs`, which builds them when it is read.
        alone: whether `top_logprobs` has the drawn token if it is the only token of its position.
    """
    try:
        positions = [mappings[number] for number in range(len(mappings))]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidResponse(f"the vLLM log-probabilities cannot be read ({type(error).__name__}: {error})") from error
    entries = []
    for number, (token, position) in enumerate(zip(ids, positions, strict=True)):
        if not isinstance(position, Mapping):
            raise InvalidResponse(
                f"the log-probabilities of token {number} came as {type(position).__name__};"
                " expected a mapping from token id to Logprob, as vLLM gives it"
            )
        # In JSON the token's id is text.
        drawn_entry = position.get(token, position.get(str(token))) if isinstance(token, int) else None
        if drawn_entry is None:
            raise InvalidResponse(
                f"the log-probabilities of token {number} do not hold the drawn token; expected an entry for its id in"
                " token_ids: was the output edited?"
            )
        alternative_count = len(position)
        ranked = [(get(entry, "logprob"), get(entry, "rank")) for entry in position.values()]
        # A drawn token that is not among the k likeliest is added to them. Its rank shows this, and it is left out.
        top = [logprob for logprob, rank in ranked if not (type(rank) is int and rank > alternative_count)]
        entries.append(
            {
                "token": text(get(drawn_entry, "decoded_token")),
                "logprob": get(drawn_entry, "logprob"),
                "top_logprobs": top if alone or alternative_count > 1 else [],
            }
        )
    return entries


def is_sglang(response: object) -> bool:
    """Returns whether this is an answer of SGLang's `/generate` or `Engine.generate` to one prompt."""
    return isinstance(response, Mapping) and isinstance(response.get("meta_info"), Mapping)


def read_sglang(response: Mapping[str, Any], choice: int, top: bool = True) -> ParsedResponse:
    """Returns an answer in SGLang's own format. The end token, which `finish_reason.matched` names, is left out.

    The format has (log-probability, token id, text or None) for each token, and the same for alternatives. The numbers
    count as processed, that is after temperature and before top-k and top-p. SGLang gives these unless
    `SGLANG_RETURN_ORIGINAL_LOGPROB` is set. The answer shows neither this setting nor the temperature.

    Args:
        response: the answer.
        choice: index of the answer; SGLang gives one.
        top: whether alternatives are read.
    """
    only_choice(choice, "an SGLang answer")
    info = response["meta_info"]
    # Find the log-probabilities.
    token_logprobs = as_list(info.get("output_token_logprobs"))
    if token_logprobs is None:
        raise InvalidResponse(
            "the SGLang answer holds no log-probabilities (meta_info.output_token_logprobs is missing);"
            " generate with return_logprob=True (and top_logprobs_num=k)"
        )
    rows = as_list(info.get("output_top_logprobs")) or ()
    if rows and len(rows) != len(token_logprobs):
        raise InvalidResponse(
            f"meta_info.output_top_logprobs has {len(rows)} entries and output_token_logprobs {len(token_logprobs)};"
            " expected as many: was the answer edited?"
        )
    # Read one entry a token.
    entries = []
    for number, token_entry in enumerate(token_logprobs):
        triple = as_list(token_entry)
        if not triple:
            raise InvalidResponse(
                f"the SGLang log-probability of token {number} came as {type(token_entry).__name__};"
                " expected (log-probability, token id, text)"
            )
        try:
            alternative_logprobs = [other[0] for other in as_list(rows[number]) or ()] if rows else []
        except (LookupError, TypeError) as error:
            raise InvalidResponse(
                f"the alternatives of token {number} cannot be read ({type(error).__name__}); expected a list of"
                " (log-probability, token id, text)"
            ) from error
        entries.append(
            {
                "token": text(triple[2]) if len(triple) > 2 else "",
                "logprob": triple[0],
                "top_logprobs": alternative_logprobs,
            }
        )
    # Parse them, and drop an end token that the text lacks.
    parsed = parse_entries(
        entries,
        "meta_info.output_token_logprobs",
        text=text(response.get("text")),
        finish_reason=read_end(info.get("finish_reason")),
        usage=usage(info.get("prompt_tokens"), info.get("completion_tokens")),
        logprobs_mode="processed",
    )
    parsed = parsed if top else replace(parsed, top_logprobs=None)
    matched = (fields(info.get("finish_reason")) or {}).get("matched")
    has_stopped = parsed.finish_reason == STOP
    # With `no_stop_trim` the end token is in the text.
    shows_end = bool(parsed.tokens[-1]) and parsed.text.endswith(parsed.tokens[-1])
    if has_stopped and type(matched) is int and list(token_logprobs[-1][1:2]) == [matched] and not shows_end:
        parsed = without_last(parsed)
    ending: Ending = "text" if has_stopped and isinstance(matched, str) else ""
    return settle(parsed, None, ending, counted=parsed.usage.completion_tokens)


_STOP_TYPES: dict[str, Ending] = {"eos": "some", "word": "text", "limit": ""}
"""Maps `stop_type` to how the answer ended. The end token has a log-probability and no text."""


def is_llama_cpp(response: object) -> bool:
    """Returns whether this is an answer of llama.cpp's `/completion`."""
    return isinstance(response, Mapping) and ("completion_probabilities" in response or "tokens_predicted" in response)


def read_llama_cpp(response: Mapping[str, Any], choice: int, top: bool = True) -> ParsedResponse:
    """Returns an answer in one of llama.cpp's own formats.

    The format {token, logprob, top_logprobs} is raw. The format {token, prob, top_probs}, requested with
    `post_sampling_probs`, and the older {content, probs: [{tok_str, prob}]} are processed. At temperature 0 these are
    all 1, say nothing, and are refused.

    Args:
        response: the answer.
        choice: index of the answer; llama.cpp gives one.
        top: whether alternatives are read.
    """
    only_choice(choice, "a llama.cpp answer")
    settings = fields(response.get("generation_settings")) or {}
    temperature = read_temperature(settings.get("temperature"))
    probabilities = as_list(response.get("completion_probabilities"))
    entries = [fields(entry) for entry in probabilities or ()]
    if not entries or None in entries:
        raise InvalidResponse(
            "the llama.cpp answer holds no log-probabilities (completion_probabilities is"
            f" {'empty or missing' if not probabilities else 'not a list of objects'}); request it with n_probs=k"
        )
    is_raw = all("logprob" in entry for entry in entries if entry)
    stop_type = text(response.get("stop_type"))
    # Older versions say how an answer ended by a field for each way.
    if stop_type == "limit" or response.get("stopped_limit") is True:
        end = LENGTH
    elif stop_type in ("eos", "word") or response.get("stopped_eos") is True or response.get("stopped_word") is True:
        end = STOP
    else:
        end = read_end(stop_type)
    parsed = parse_entries(
        entries if is_raw else [_entry_of_logprobs(entry or {}, number) for number, entry in enumerate(entries)],
        "completion_probabilities",
        top=top,
        text=text(response.get("content")),
        finish_reason=end,
        model=text(response.get("model")),
        usage=usage(response.get("tokens_evaluated"), response.get("tokens_predicted")),
        logprobs_mode="raw" if is_raw else "processed",
        temperature=temperature,
    )
    if not is_raw and temperature == 0 and not parsed.logprobs.any():
        raise InvalidResponse(
            "the probabilities after sampling at temperature 0 are all 1 and say nothing; expected those before it:"
            " request it with post_sampling_probs=false, from a version of llama.cpp that gives logprob"
        )
    ending = _STOP_TYPES.get(stop_type, "some" if end == STOP else "")
    return settle(parsed, None, ending, entries, counted=parsed.usage.completion_tokens)


def _entry_of_logprobs(entry: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Returns an entry of probabilities as an entry of log-probabilities."""
    older_rows = as_list(entry.get("probs"))
    rows = older_rows if older_rows is not None else as_list(entry.get("top_probs")) or ()
    alternatives = [row for row in map(fields, rows) if row is not None]
    token, drawn_probability = entry.get("token"), entry.get("prob")
    if older_rows is not None:  # the drawn token is found by its text; it is missing if it is not among the likeliest
        token = entry.get("content")
        drawn_probability = next((row.get("prob") for row in alternatives if row.get("tok_str") == token), None)
        if drawn_probability is None:
            raise InvalidResponse(
                f"the probability of token {number} is not among its {len(alternatives)} likeliest; expected it there:"
                " request more with n_probs, or use a version of llama.cpp that gives it apart"
            )
    top = [{"logprob": _log_of_probability(row.get("prob"), number)} for row in alternatives]
    return {"token": token, "logprob": _log_of_probability(drawn_probability, number), "top_logprobs": top}


def _log_of_probability(probability: object, number: int) -> float:
    if isinstance(probability, bool) or not isinstance(probability, (int, float)) or not 0 <= probability <= 1 + 1e-4:
        raise InvalidResponse(
            f"a probability of token {number} came as {type(probability).__name__} that is none; expected a number "
            "from 0 to 1"
        )
    return math.log(probability) if probability else -math.inf


def is_generated(response: object) -> bool:
    """Returns whether this is an output of transformers' `generate`, or a dictionary with its fields."""
    return get(response, "sequences") is not None and not callable(get(response, "sequences"))


def read_generated(response: object, choice: int, top: bool = True) -> ParsedResponse:
    """Returns the answer in one row of the sequences: raw if the logits are there, else processed from the scores.

    `sequences` may begin with the prompt. Beams are refused, because a step's row does not belong to one sequence
    there.

    Args:
        response: the output.
        choice: index of the row.
        top: ignored; alternatives are never read.
    """
    # Refuse an output that cannot be read.
    mode, steps = _mode_and_steps(response)
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
    # Ids of the answer, up to its end token.
    ids: NDArray[Any] = sequences[choice, sequences.shape[1] - len(steps) :]
    if (eos := get(response, "eos_token_id")) is not None:
        ends = np.flatnonzero(np.isin(ids, array(eos)))
        ids = ids[: ends[0]] if len(ends) else ids
    elif len(sequences) > 1:
        raise InvalidResponse(
            f"row {choice} of this batch of {len(sequences)} may end in padding, which the output does not tell from an"
            " answer; expected to be told what ends one:"
            ' parse_response({**output, "eos_token_id": model.generation_config.eos_token_id})'
        )
    # Thinking and answer.
    segments: tuple[Segment, ...] = ()
    closing_id, opening_id = get(response, "thinking_end_token_id"), get(response, "thinking_start_token_id")
    if closing_id is not None and len(ids):
        ends = np.flatnonzero(np.isin(ids, array(closing_id)))
        thinking_start = int(opening_id is not None and bool(np.isin(ids[0], array(opening_id))))
        if len(ends):
            parts = Segment("thinking", thinking_start, int(ends[0])), Segment("answer", int(ends[0]) + 1, len(ids))
            segments = tuple(part for part in parts if part.start < part.end)
        elif thinking_start:
            segments = (Segment("thinking", thinking_start, len(ids)),)
    # The log-probability of each token.
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


def _mode_and_steps(response: object) -> tuple[LogprobsMode, Sequence[Any]]:
    """Returns what the output of `generate` holds: raw logits or processed scores, an array for each step."""
    fields_and_modes: tuple[tuple[str, LogprobsMode], ...] = (("logits", "raw"), ("scores", "processed"))
    for name, mode in fields_and_modes:
        step_rows = get(response, name)
        if step_rows is None:
            continue
        if not (steps := as_list(step_rows)):
            raise InvalidResponse(
                f"{name} came empty or as {type(step_rows).__name__}; expected a tuple of arrays (rows, vocabulary)"
            )
        return mode, steps
    raise InvalidResponse(
        "the output of generate holds no logits or scores; generate with return_dict_in_generate=True and"
        " output_logits=True (raw log-probabilities) or output_scores=True (processed ones)"
    )


def _logprob(step: Any, row: int, token: int, number: int) -> float:
    """Returns the log-probability of a token at a step, computed from the scores of all tokens."""
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
    exact_scores = scores.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):  # what is not finite is refused by its place
        shifted_scores = exact_scores - exact_scores.max()
        return float(shifted_scores[token] - np.log(np.exp(shifted_scores).sum()))
