"""Reads what vLLM's `AsyncLLM.generate` yields while an answer is written, as chunks of a streamed chat completion."""

from collections.abc import Sequence
from typing import Any

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.reading import as_list, get, text
from metaprobe.records.vllm_format import likeliest, of_entry, positions


class StreamedOutputs:
    """Turns each `RequestOutput` of one request into a chunk with what it adds: tokens, text, and how it ended.

    vLLM gives only what is new (`RequestOutputKind.DELTA`) or all so far (`CUMULATIVE`, its default), and an output
    does not say which: its `cumulative_logprob`, always of all tokens so far, does.
    """

    def __init__(self) -> None:
        self._ids: dict[int, list[Any]] = {}
        self._text: dict[int, int] = {}
        self._total: dict[int, float] = {}

    def chunk(self, output: object) -> dict[str, Any]:
        """The chunk. Raises `InvalidResponse` where tokens and their log-probabilities do not belong together."""
        outputs = as_list(get(output, "outputs")) or ()
        return {"id": text(get(output, "request_id")), "choices": [self._choice(one) for one in outputs]}

    def _choice(self, output: object) -> dict[str, Any]:
        index = get(output, "index") or 0
        ids, given = list(as_list(get(output, "token_ids")) or ()), get(output, "logprobs")
        entries = None
        if given is not None:
            held = positions(given)
            if len(held) != len(ids):
                raise InvalidResponse(
                    f"a vLLM output has {len(held)} positions of log-probabilities and {len(ids)} token_ids;"
                    " expected as many of both"
                )
            entries = [_entry(token, position) for token, position in zip(ids, held, strict=True)]
        known = self._ids.setdefault(index, [])
        brought = text(get(output, "text"))
        if known and self._holds_all(index, ids, entries, get(output, "cumulative_logprob")):
            ids, entries = ids[len(known) :], entries and entries[len(known) :]
            brought = brought[self._text[index] :]
        known += ids
        self._text[index] = self._text.get(index, 0) + len(brought)
        self._total[index] = self._total.get(index, 0.0) + _sum(entries)
        choice = {
            "index": index,
            "delta": {"content": brought},
            "logprobs": None if entries is None else {"content": entries},
            "token_ids": ids,
            "finish_reason": get(output, "finish_reason"),
        }
        return choice | ({"stop_reason": get(output, "stop_reason")} if choice["finish_reason"] else {})

    def _holds_all(
        self, index: int, ids: list[Any], entries: Sequence[dict[str, Any]] | None, cumulative: object
    ) -> bool:
        """Whether this output begins with the tokens that are known already."""
        known = self._ids[index]
        if ids[: len(known)] != known:
            return False
        if isinstance(cumulative, int | float):
            here, before = _sum(entries), self._total[index]
            return bool(abs(cumulative - here) < abs(cumulative - before - here))
        return len(ids) > len(known)


def _entry(token: Any, position: Any) -> dict[str, Any]:
    """The drawn token and its alternatives, as a chunk has them."""
    drawn = position.get(token)
    if drawn is None:
        raise InvalidResponse("a position of log-probabilities does not hold the drawn token; expected one for its id")
    others = likeliest(list(position.values())) if len(position) > 1 else ()
    return {
        "token": text(of_entry(drawn, "decoded_token")),
        "logprob": of_entry(drawn, "logprob"),
        "top_logprobs": [{"logprob": one} for one in others],
    }


def _sum(entries: Sequence[dict[str, Any]] | None) -> float:
    return sum(entry["logprob"] for entry in entries or () if isinstance(entry["logprob"], int | float))
