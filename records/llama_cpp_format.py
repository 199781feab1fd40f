"""Reads what the own endpoint of llama.cpp's server gives, in its newer and older shapes."""

import math
from collections.abc import Mapping
from typing import Any

from metaprobe.records.endings import LENGTH, STOP, read_end
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.reading import as_list, fields, only_choice, read_temperature, text, usage
from metaprobe.records.response import ParsedResponse, parse_entries, settle
from metaprobe.records.segments import Ending

_ENDINGS: dict[str, Ending] = {"eos": "some", "word": "text", "limit": ""}
"""By `stop_type`. The end token comes with its log-probability and without text."""


def is_llama_cpp(response: object) -> bool:
    """Whether this is what llama.cpp's `/completion` gives."""
    return isinstance(response, Mapping) and ("completion_probabilities" in response or "tokens_predicted" in response)


def read_llama_cpp(response: Mapping[str, Any], choice: int, top: bool = True) -> ParsedResponse:
    """llama.cpp's own answer, in each of its shapes.

    {token, logprob, top_logprobs}: raw. {token, prob, top_probs}, asked for with `post_sampling_probs`, and the older
    {content, probs: [{tok_str, prob}]}: processed; at temperature 0 they are all 1, say nothing, and are refused.
    """
    only_choice(choice, "a llama.cpp answer")
    settings = fields(response.get("generation_settings")) or {}
    temperature = read_temperature(settings.get("temperature"))
    given = as_list(response.get("completion_probabilities"))
    entries = [fields(entry) for entry in given or ()]
    if not entries or None in entries:
        raise InvalidResponse(
            "the llama.cpp answer holds no log-probabilities (completion_probabilities is"
            f" {'empty or missing' if not given else 'not a list of objects'}); request it with n_probs=k"
        )
    raw = all("logprob" in entry for entry in entries if entry)
    parsed = parse_entries(
        entries if raw else [_logs(entry or {}, number) for number, entry in enumerate(entries)],
        "completion_probabilities",
        top=top,
        text=text(response.get("content")),
        finish_reason=_ended(response),
        model=text(response.get("model")),
        usage=usage(response.get("tokens_evaluated"), response.get("tokens_predicted")),
        logprobs_mode="raw" if raw else "processed",
        temperature=temperature,
    )
    if not raw and temperature == 0 and not parsed.logprobs.any():
        raise InvalidResponse(
            "the probabilities after sampling at temperature 0 are all 1 and say nothing; expected those before it:"
            " request it with post_sampling_probs=false, from a version of llama.cpp that gives logprob"
        )
    ending = _ENDINGS.get(text(response.get("stop_type")), "some" if parsed.finish_reason == STOP else "")
    return settle(parsed, None, ending, entries, counted=parsed.usage.completion_tokens)


def _logs(entry: Mapping[str, Any], number: int) -> dict[str, Any]:
    """An entry of probabilities as one of log-probabilities."""
    older = as_list(entry.get("probs"))
    rows = older if older is not None else as_list(entry.get("top_probs")) or ()
    held = [row for row in map(fields, rows) if row is not None]
    token, drawn = entry.get("token"), entry.get("prob")
    if older is not None:  # the drawn token is told by its text, and is missing where it is none of the likeliest
        token = entry.get("content")
        drawn = next((row.get("prob") for row in held if row.get("tok_str") == token), None)
        if drawn is None:
            raise InvalidResponse(
                f"the probability of token {number} is not among its {len(held)} likeliest; expected it there: request"
                " more with n_probs, or use a version of llama.cpp that gives it apart"
            )
    top = [{"logprob": _log(row.get("prob"), number)} for row in held]
    return {"token": token, "logprob": _log(drawn, number), "top_logprobs": top}


def _log(probability: object, number: int) -> float:
    if isinstance(probability, bool) or not isinstance(probability, (int, float)) or not 0 <= probability <= 1 + 1e-4:
        raise InvalidResponse(
            f"a probability of token {number} came as {type(probability).__name__} that is none; expected a number from"
            " 0 to 1"
        )
    return math.log(probability) if probability else -math.inf


def _ended(response: Mapping[str, Any]) -> str:
    """`stop` or `length`, as newer and older versions say it."""
    kind = text(response.get("stop_type"))
    if kind == "limit" or response.get("stopped_limit") is True:
        return LENGTH
    stopped = kind in ("eos", "word") or any(response.get(name) is True for name in ("stopped_eos", "stopped_word"))
    return STOP if stopped else read_end(kind)
