"""Reads what vLLM gives offline (`LLM.generate`), by shape alone: vLLM is not imported."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from metaprobe.records.endings import STOP, read_end
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.logprobs import check_logprobs
from metaprobe.records.reading import as_list, get, text, usage
from metaprobe.records.response import ParsedResponse, first_of, settle, with_alternatives
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
    drawn, rows = [], []
    for number, (token, position) in enumerate(zip(ids, positions(given), strict=True)):
        entry = drawn_entry(token, position)
        if entry is None:
            raise InvalidResponse(
                f"the log-probabilities of token {number} do not hold the drawn token; expected an entry for its id in"
                " token_ids: was the output edited?"
            )
        drawn.append(entry)
        rows.append(likeliest(list(position.values())))
    parsed = ParsedResponse(
        text=text(get(response, "text")),
        tokens=tuple(text(of_entry(entry, "decoded_token")) for entry in drawn),
        logprobs=check_logprobs([of_entry(entry, "logprob") for entry in drawn]),
        finish_reason=read_end(get(response, "finish_reason")),
        usage=usage(len(prompt), len(ids)),
        logprobs_mode="raw",
        note=note,
    )
    ended = _ending(response, parsed)
    parsed = with_alternatives(parsed, rows)
    return settle(parsed if top else replace(parsed, top_logprobs=None), None, ended)


def _ending(response: object, parsed: ParsedResponse) -> Ending:
    """How the answer ended. vLLM leaves an end token in `token_ids` and `logprobs`, and not in the text."""
    reason = get(response, "stop_reason")
    if parsed.finish_reason != STOP or isinstance(reason, str):
        return "text" if parsed.finish_reason == STOP else ""
    return "token" if reason is None or type(reason) is int else ""


def positions(given: Any) -> list[Mapping[Any, Any]]:
    """Token id to its entry, for each position of a list or of a `FlatLogprobs`, which builds its entries when read."""
    try:
        found = [given[number] for number in range(len(given))]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidResponse(f"the vLLM log-probabilities cannot be read ({type(error).__name__}: {error})") from error
    for number, position in enumerate(found):
        if not isinstance(position, Mapping):
            raise InvalidResponse(
                f"the log-probabilities of token {number} came as {type(position).__name__};"
                " expected a mapping from token id to Logprob, as vLLM gives it"
            )
    return found


def drawn_entry(token: object, position: Mapping[Any, Any]) -> Any:
    """The entry of the token that was drawn, None where there is none. In JSON its id is text."""
    return position.get(token, position.get(str(token))) if isinstance(token, int) else None


def of_entry(entry: object, name: str) -> Any:
    """A field of a `Logprob`; older versions gave the bare number."""
    if isinstance(entry, (int, float)):
        return entry if name == "logprob" else None
    return get(entry, name)


def likeliest(entries: list[Any]) -> list[Any]:
    """The likeliest k of a position: without the drawn token where its rank says that it is none of them."""
    kind = type(entries[0])  # looked at once, for there may be thousands of them
    if any(type(entry) is not kind for entry in entries):
        raise InvalidResponse("a position mixes kinds of log-probabilities; expected a Logprob for each token id")
    if issubclass(kind, (int, float)):
        return entries
    if issubclass(kind, Mapping):
        given, ranks = [entry.get("logprob") for entry in entries], [entry.get("rank") for entry in entries]
    else:
        given, ranks = [getattr(e, "logprob", None) for e in entries], [getattr(e, "rank", None) for e in entries]
    most = len(entries)
    return [x for x, rank in zip(given, ranks, strict=True) if not (type(rank) is int and rank > most)]
