"""Reads what vLLM gives offline (`LLM.generate`), by shape alone: vLLM is not imported."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from metaprobe.records.endings import STOP, read_end
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.reading import as_list, get, text, usage
from metaprobe.records.response import ParsedResponse, first_of, parse_entries, settle
from metaprobe.records.segments import Ending


def is_vllm(response: object) -> bool:
    """Whether this is a `RequestOutput` or a `CompletionOutput`, or their fields in a dictionary."""
    if as_list(get(response, "outputs")) is not None and get(response, "prompt_token_ids") is not None:
        return True
    names = ("token_ids", "logprobs", "text", "finish_reason", "cumulative_logprob")
    return (isinstance(response, Mapping) and response.keys() >= set(names)) or all(hasattr(response, n) for n in names)


def read_vllm(response: object, choice: int, top: bool = True) -> ParsedResponse:
    """The answer of a `RequestOutput` (`choice` of its outputs) or a `CompletionOutput`.

    Its log-probabilities are taken for raw, as vLLM gives them unless the engine's `logprobs_mode` says otherwise.
    The output does not show that: state it if you changed it. The temperature is not in the output either. The end
    token, and the tokens of a stop text, are left out.
    """
    prompt: Sequence[int] = ()
    note = ""
    if (outputs := as_list(get(response, "outputs"))) is not None:
        if not 0 <= choice < len(outputs):
            raise InvalidResponse(f"the RequestOutput has {len(outputs)} outputs; expected outputs[{choice}]")
        prompt, response = as_list(get(response, "prompt_token_ids")) or (), outputs[choice]
        note = first_of(len(outputs), choice)
    ids, given = as_list(get(response, "token_ids")), get(response, "logprobs")
    if given is None:
        raise InvalidResponse("the vLLM output holds no log-probabilities; generate with SamplingParams(logprobs=k)")
    if ids is None or as_list(given) is None or len(given) != len(ids):
        came = f"{len(given)} positions" if as_list(given) is not None else type(given).__name__
        raise InvalidResponse(
            f"the vLLM output has {came} of log-probabilities and {'no' if ids is None else len(ids)} token_ids;"
            " expected as many of both: was the output edited?"
        )
    parsed = parse_entries(
        entries_of(ids, given),
        "the vLLM output",
        text=text(get(response, "text")),
        finish_reason=read_end(get(response, "finish_reason")),
        usage=usage(len(prompt), len(ids)),
        logprobs_mode="raw",
        note=note,
    )
    return settle(parsed if top else replace(parsed, top_logprobs=None), None, _ending(response, parsed))


def _ending(response: object, parsed: ParsedResponse) -> Ending:
    """Returns how the answer ended. vLLM leaves an end token in `token_ids` and `logprobs`, and not in the text."""
    reason = get(response, "stop_reason")
    if parsed.finish_reason != STOP or isinstance(reason, str):
        return "text" if parsed.finish_reason == STOP else ""
    return "token" if reason is None or type(reason) is int else ""


def entries_of(ids: Sequence[Any], given: Any, *, alone: bool = True) -> list[dict[str, Any]]:
    """Returns {token, logprob, top_logprobs} of each drawn token; `top_logprobs` holds the numbers alone.

    `given` is a list of mappings from token id to `Logprob`, or a `FlatLogprobs`, which builds them when it is read.
    `alone`: whether the drawn token is listed where it is the only one of its position.
    Raises `InvalidResponse` where a position cannot be read or does not hold its drawn token.
    """
    try:
        positions = [given[number] for number in range(len(given))]
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
        drawn = position.get(token, position.get(str(token))) if isinstance(token, int) else None
        if drawn is None:
            raise InvalidResponse(
                f"the log-probabilities of token {number} do not hold the drawn token; expected an entry for its id in"
                " token_ids: was the output edited?"
            )
        entries.append(
            {
                "token": text(get(drawn, "decoded_token")),
                "logprob": get(drawn, "logprob"),
                "top_logprobs": _likeliest(list(position.values())) if alone or len(position) > 1 else [],
            }
        )
    return entries


def _likeliest(entries: list[Any]) -> list[Any]:
    """The likeliest k of a position: without the drawn token where its rank says that it is none of them."""
    most = len(entries)
    ranked = [(get(entry, "logprob"), get(entry, "rank")) for entry in entries]
    return [logprob for logprob, rank in ranked if not (type(rank) is int and rank > most)]
