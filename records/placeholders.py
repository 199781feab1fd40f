"""Numbers that stand for no log-probability, and alternatives that cannot be.

Servers that know no log-probability write 0 or a constant, for all tokens or for those that another model proposed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import NoLogprobs
from metaprobe.records.reading import as_list, fields
from metaprobe.records.types import FloatArray

FEW = 5
"""Tokens from which on log-probabilities that are all equal stand for none. The numbers of a shorter answer may be
equal by themselves: a model that is certain gives 0 for each token."""
NO_LOGPROB = -1000.0
"""Servers write -9999 or so for a token whose log-probability they do not know."""
MOST_EQUAL, MOST_ZEROS = 0.5, 0.75
"""Shares of the tokens above which one value that they share is said to be doubtful. A model that is certain gives 0
for many tokens, and no other value twice."""
LOOKED_AT = 6
"""Of so many tokens the alternatives are looked at where no feature needs them: the faults are the server's, and show
in most tokens. Reading all of them takes longer than the rest of a response."""
_SUM = 1.02
"""The highest sum of probabilities that rounding explains: sixteen bits hold three digits."""
_BELOW = 0.02
"""Nats by which rounding may put the likeliest alternative below the drawn token."""


def refuse_placeholders(logprobs: FloatArray, drawn: FloatArray | None = None, top: FloatArray | None = None) -> None:
    """Raises `NoLogprobs` where the log-probabilities of a server's response stand for none.

    `logprobs` (T,), nats. `drawn` (S,) and `top` (S, k): the numbers and the alternatives of those tokens whose
    alternatives were looked at; None where none have any.
    """
    why = constant(logprobs, top) or (_bare(drawn, top) if drawn is not None and top is not None else "")
    if why:
        raise NoLogprobs(
            f"{why}; expected the log-probability of each drawn token: ask the server for real ones, or leave this"
            " response out"
        )


def constant(logprobs: FloatArray, top: FloatArray | None = None) -> str:
    """Returns why log-probabilities that are all equal stand for none; empty where they may be a model's own.

    `logprobs` (T,), nats; `top` (T, k), the alternatives of some or all tokens, None where none are known.
    """
    if len(logprobs) < FEW or logprobs.min() != logprobs.max():
        return ""
    if logprobs[0] < 0:
        return f"all {len(logprobs)} log-probabilities are {logprobs[0]:g}, a constant that stands for none"
    if top is not None and np.nan_to_num(top).any():
        return ""  # a model that is certain: its alternatives have other numbers
    return f"all {len(logprobs)} log-probabilities are 0, as servers write that have none"


def _bare(drawn: FloatArray, top: FloatArray) -> str:
    """Why some of the numbers stand for none: they are 0 and have no alternatives, which the other tokens have."""
    given = (np.nan_to_num(top, nan=NO_LOGPROB) > NO_LOGPROB).any(axis=1)
    bare = int(np.count_nonzero(~given & (drawn == 0)))
    if not bare or not given.any():
        return ""
    return (
        f"log-probabilities are 0 where alternatives are missing, in {bare} of {len(top)} tokens that were looked at:"
        " speculative decoding and cached tokens are written so"
    )


def doubtful(logprobs: FloatArray) -> str:
    """Returns what a verdict must say of numbers that may stand for none and may be a model's own; else empty."""
    ordered = np.sort(logprobs)
    equal = len(ordered) < FEW or ordered[0] == ordered[-1]
    said = [constant(logprobs) if equal else _mostly_one(ordered)]
    if ordered[0] <= NO_LOGPROB:
        unknown = ordered[0]
        said.append(f"a log-probability is {unknown:g}, as servers write of a token whose own they do not know")
    return "; ".join(filter(None, said))


def _mostly_one(ordered: FloatArray) -> str:
    """Why numbers of which more than half are one value stand for none; empty where they may be a model's own.

    `ordered` (T,): ascending. A value that more than half share is the median, and the first or third quartile.
    """
    tokens = len(ordered)
    value = ordered[tokens // 2]
    if value not in (ordered[tokens // 4], ordered[3 * tokens // 4]):
        return ""
    same = int(np.count_nonzero(ordered == value))
    if same < FEW or same <= (MOST_ZEROS if value == 0 else MOST_EQUAL) * tokens:
        return ""
    return f"{same} of {tokens} log-probabilities are {value:g}, as servers write of unknown ones"


def implausible(logprobs: FloatArray, top: FloatArray) -> str:
    """Returns why the alternatives cannot be the likeliest tokens, or empty where they can.

    `logprobs` (T,), `top` (T, k) in descending order, NaN where a token has fewer than k.
    """
    with np.errstate(under="ignore"):
        sums = np.exp(np.nan_to_num(top.astype(np.float64), nan=-np.inf)).sum(axis=1)
    likeliest: NDArray[Any] = np.where(np.isnan(top[:, 0]), np.inf, top[:, 0])
    if (too_much := int(np.count_nonzero(sums > _SUM))) > 0:
        return (
            f"the probabilities of {too_much} of {len(top)} tokens' alternatives sum to up to {sums.max():.2f}, more"
            " than 1: a token is listed twice, or they are of another distribution"
        )
    if (below := int(np.count_nonzero(likeliest < logprobs - _BELOW))) > 0:
        return (
            f"the likeliest alternative of {below} of {len(top)} tokens is less likely than the drawn token: they are"
            " of another distribution, or of another token"
        )
    inside = np.nan_to_num(top, nan=np.inf).min(axis=1) + _BELOW < logprobs  # likelier than the last that is listed
    unlisted = inside & (np.nan_to_num(np.abs(top - logprobs[:, None]), nan=np.inf).min(axis=1) > _BELOW)
    if (missing := int(np.count_nonzero(unlisted))) > 0:
        return (
            f"the drawn token of {missing} of {len(top)} tokens is likelier than the last of its alternatives and not"
            " among them: they are of another distribution, or of another token"
        )
    return ""


def listed_twice(entries: Sequence[Any]) -> str:
    """Returns why the alternatives of these tokens cannot be: a token that is listed twice, or the drawn token with two
    log-probabilities. Empty where neither is so.

    `entries`: {token, logprob, top_logprobs}, as mappings or a client's objects; only `LOOKED_AT` of them are read.
    """
    for entry in map(fields, entries if len(entries) <= 2 * LOOKED_AT else sample(entries, ())):
        drawn = (entry or {}).get("token")
        rows = [fields(row) or {} for row in as_list((entry or {}).get("top_logprobs")) or ()]
        given = [(row.get("logprob"), str(row.get("bytes"))) for row in rows if _names(row, drawn)]
        same = [value for value, _ in given if isinstance(value, float | int)]
        if len(set(given)) < len(given):  # two tokens with one text differ in their numbers or bytes
            return f"the drawn token {str(drawn)[:20]!r} is listed {len(same)} times among its alternatives"
        own = (entry or {}).get("logprob")
        if same and isinstance(own, float | int) and min(abs(own - value) for value in same) > _BELOW:
            return (
                f"the drawn token {str(drawn)[:20]!r} has the log-probability {own:g}, and {same[0]:g} among its"
                " alternatives: they are of another distribution, or of another token"
            )
    return ""


def _names(row: Mapping[str, Any], drawn: object) -> bool:
    """Whether an alternative is the drawn token by its text. Pieces of characters and empty ones name no token."""
    return isinstance(drawn, str) and drawn.strip("\ufffd \t\r\n") != "" and row.get("token") == drawn


def sample(entries: Sequence[Any], logprobs: Sequence[Any]) -> list[Any]:
    """Returns up to twice `LOOKED_AT` of the entries: the first, the last, others evenly between them, and as many of
    those whose log-probability is 0, which stand for none where they have no alternatives."""
    count = len(entries)
    if count <= LOOKED_AT:
        return list(entries)
    zeros = [i for i, value in enumerate(logprobs) if value == 0]
    evenly = {i * (count - 1) // (LOOKED_AT - 1) for i in range(LOOKED_AT)}
    return [entries[i] for i in sorted(evenly | set(zeros[:: max(1, len(zeros) // LOOKED_AT)][:LOOKED_AT]))]
