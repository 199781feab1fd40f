"""Reads what vLLM's `AsyncLLM.generate` yields while an answer is written, as chunks of a streamed chat completion."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.reading import as_list, get, text
from metaprobe.records.vllm_format import drawn_entry, likeliest, of_entry, positions


class StreamedOutputs:
    """Turns each `RequestOutput` of one request into a chunk with what it adds: tokens, text, and how it ended.

    vLLM gives only what is new (`RequestOutputKind.DELTA`) or all so far (`CUMULATIVE`, its default), and an output
    does not say which: its `cumulative_logprob`, always of all tokens so far, does.
    """

    def __init__(self) -> None:
        self._answers: dict[int, _Answer] = {}

    def chunk(self, output: object) -> dict[str, Any]:
        """The chunk. Raises `InvalidResponse` where tokens and their log-probabilities do not belong together."""
        outputs = as_list(get(output, "outputs")) or ()
        return {"id": text(get(output, "request_id")), "choices": [self._choice(one) for one in outputs]}

    def _choice(self, output: object) -> dict[str, Any]:
        index = get(output, "index")
        index = index if type(index) is int else 0
        answer = self._answers.setdefault(index, _Answer())
        ids, given = as_list(get(output, "token_ids")) or (), get(output, "logprobs")
        if given is not None and (as_list(given) is None or len(given) != len(ids)):
            came = type(given).__name__ if as_list(given) is None else f"{len(given)} positions"
            raise InvalidResponse(
                f"a vLLM output has {came} of log-probabilities and {len(ids)} token_ids; expected as many of both"
            )
        known = answer.count_in(ids, given, text(get(output, "text")), get(output, "cumulative_logprob"))
        ids = list(ids[known:])
        entries = None if given is None else _entries(ids, given[known:])
        brought = text(get(output, "text"))[len(answer.text) if known else 0 :]
        answer.add(ids, brought, entries)
        choice = {
            "index": index,
            "delta": {"content": brought},
            "logprobs": None if entries is None else {"content": entries},
            "token_ids": ids,
            "finish_reason": get(output, "finish_reason"),
        }
        return choice | ({"stop_reason": get(output, "stop_reason")} if choice["finish_reason"] else {})


@dataclass(slots=True)
class _Answer:
    """What is known of one answer."""

    ids: list[Any] = field(default_factory=list)
    text: str = ""
    total: float = 0.0
    """The sum of its log-probabilities."""
    whole: bool | None = None
    """Whether outputs hold all so far; None until one has shown it."""

    def count_in(self, ids: Sequence[Any], given: Any, said: str, cumulative: object) -> int:
        """How many of an output's tokens are known already."""
        if not self.ids or list(ids[: len(self.ids)]) != self.ids:
            return 0
        if self.whole is None and given is not None and isinstance(cumulative, int | float):
            here = _sum(_entries(ids, given))
            with_all, with_new = abs(cumulative - here), abs(cumulative - self.total - here)
            if with_all != with_new:  # zeros so far tell nothing, and not finite numbers neither
                self.whole = with_all < with_new
        whole = len(ids) > len(self.ids) and said.startswith(self.text) if self.whole is None else self.whole
        return len(self.ids) if whole else 0

    def add(self, ids: list[Any], brought: str, entries: Sequence[dict[str, Any]] | None) -> None:
        """Takes in what is new."""
        self.ids += ids
        self.text += brought
        self.total += _sum(entries or ())


def _entries(ids: Sequence[Any], given: Any) -> list[dict[str, Any]]:
    """The drawn tokens and their alternatives, as a chunk has them."""
    return [_entry(token, position) for token, position in zip(ids, positions(given), strict=True)]


def _entry(token: Any, position: Any) -> dict[str, Any]:
    drawn = drawn_entry(token, position)
    if drawn is None:
        raise InvalidResponse("a position of log-probabilities does not hold the drawn token; expected one for its id")
    others = likeliest(list(position.values())) if len(position) > 1 else ()
    return {
        "token": text(of_entry(drawn, "decoded_token")),
        "logprob": of_entry(drawn, "logprob"),
        "top_logprobs": [{"logprob": one} for one in others],
    }


def _sum(entries: Sequence[dict[str, Any]]) -> float:
    return sum(entry["logprob"] for entry in entries if isinstance(entry["logprob"], int | float))
