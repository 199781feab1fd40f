"""The plain scores that every learned one is compared with."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metaprobe.probes.features import Series
from metaprobe.probes.terms import MOST_SURPRISING
from metaprobe.records.errors import InvalidResponse

BASELINES = (
    "mean_logprob", "min_logprob", "lowest3_logprob", "scaled_logprob", "first_logprob", "length", "perplexity",
)  # fmt: skip


def baseline_scores(logprobs: Sequence[Series]) -> dict[str, NDArray[np.float64]]:
    """Each of `BASELINES` for n responses, (n,), as it is, so not all point the same way: a high perplexity is a bad
    sign, a high log-probability a good one, length either. `scaled_logprob` is the total over the root of
    the length, `lowest3_logprob` the mean of the three lowest (of all where there are fewer).
    Perplexities beyond e^700 are given as e^700.
    """
    lengths = np.array([len(x) for x in logprobs], np.intp)
    if not len(lengths):
        return {name: np.empty(0) for name in BASELINES}
    if not lengths.all():
        raise InvalidResponse(
            f"response {lengths.argmin()} has no tokens: at least 1 log-probability is needed; leave it out"
        )
    tokens = np.concatenate(logprobs, dtype=np.float64)
    starts = np.cumsum(lengths) - lengths
    mean = np.add.reduceat(tokens, starts) / lengths
    return {
        "mean_logprob": mean,
        "min_logprob": np.minimum.reduceat(tokens, starts),
        "lowest3_logprob": np.array([_lowest3(x) for x in np.split(tokens, starts[1:])]),
        "scaled_logprob": mean * np.sqrt(lengths),
        "first_logprob": tokens[starts],
        "length": lengths.astype(np.float64),
        "perplexity": np.exp(np.minimum(-mean, 700)),
    }


def _lowest3(values: NDArray[np.float64]) -> float:
    if len(values) > MOST_SURPRISING:
        values = np.partition(values, MOST_SURPRISING - 1)[:MOST_SURPRISING]
    return float(values.mean())
