"""Reads what SGLang's own endpoint and engine give."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from metaprobe.records.endings import STOP, read_end
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.reading import as_list, fields, only_choice, text, usage
from metaprobe.records.response import ParsedResponse, parse_entries, settle, without_last
from metaprobe.records.segments import Ending


def is_sglang(response: object) -> bool:
    """Whether this is what `/generate` or `Engine.generate` gives for one prompt."""
    return isinstance(response, Mapping) and isinstance(response.get("meta_info"), Mapping)


def read_sglang(response: Mapping[str, Any], choice: int, top: bool = True) -> ParsedResponse:
    """SGLang's own answer: (log-probability, token id, text or None) for each token, and the same for alternatives.

    Taken for processed, that is after temperature and before top-k and top-p, as SGLang gives them unless
    `SGLANG_RETURN_ORIGINAL_LOGPROB` is set, which the answer does not show. The temperature is not in it either.
    The end token, which `finish_reason.matched` names, is left out.
    """
    only_choice(choice, "an SGLang answer")
    info = response["meta_info"]
    given = as_list(info.get("output_token_logprobs"))
    if given is None:
        raise InvalidResponse(
            "the SGLang answer holds no log-probabilities (meta_info.output_token_logprobs is missing);"
            " generate with return_logprob=True (and top_logprobs_num=k)"
        )
    triples = [_triple(entry, number) for number, entry in enumerate(given)]
    rows = as_list(info.get("output_top_logprobs")) or ()
    if rows and len(rows) != len(triples):
        raise InvalidResponse(
            f"meta_info.output_top_logprobs has {len(rows)} entries and output_token_logprobs {len(triples)};"
            " expected as many: was the answer edited?"
        )
    reason = fields(info.get("finish_reason"))
    entries = [
        {
            "token": text(triple[2]) if len(triple) > 2 else "",
            "logprob": triple[0],
            "top_logprobs": _firsts(rows[number], number) if rows else (),
        }
        for number, triple in enumerate(triples)
    ]
    parsed = parse_entries(
        entries,
        "meta_info.output_token_logprobs",
        text=text(response.get("text")),
        finish_reason=read_end(info.get("finish_reason")),
        usage=usage(info.get("prompt_tokens"), info.get("completion_tokens")),
        logprobs_mode="processed",
    )
    parsed = parsed if top else replace(parsed, top_logprobs=None)
    matched = reason.get("matched") if reason else None
    stopped = parsed.finish_reason == STOP
    if stopped and type(matched) is int and _id(triples[-1]) == matched and not _shows_end(parsed):
        parsed = without_last(parsed)
    ending: Ending = "text" if stopped and isinstance(matched, str) else ""
    return settle(parsed, None, ending, counted=parsed.usage.completion_tokens)


def _id(triple: Sequence[Any]) -> object:
    return triple[1] if len(triple) > 1 else None


def _shows_end(parsed: ParsedResponse) -> bool:
    """Whether the end token is in the text, as with `no_stop_trim`."""
    return bool(parsed.tokens[-1]) and parsed.text.endswith(parsed.tokens[-1])


def _triple(entry: object, number: int) -> Sequence[Any]:
    triple = as_list(entry)
    if not triple:
        raise InvalidResponse(
            f"the SGLang log-probability of token {number} came as {type(entry).__name__};"
            " expected (log-probability, token id, text)"
        )
    return triple


def _firsts(row: object, number: int) -> list[Any]:
    """The log-probabilities of a token's alternatives, each the first of its triple."""
    try:
        return [triple[0] for triple in as_list(row) or ()]
    except (LookupError, TypeError) as error:
        raise InvalidResponse(
            f"the alternatives of token {number} cannot be read ({type(error).__name__}); expected a list of"
            " (log-probability, token id, text)"
        ) from error
