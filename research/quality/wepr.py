"""EPR and WEPR: scores from the entropies of the likeliest tokens, the nearest published rivals, as baselines.

Moslonka, Randrianarivo, Garnier and Malherbe, "Learned Hallucination Detection in Black-Box LLMs Using Token-Level
Entropy Production Rate", ECIR 2026, arXiv:2509.04492, in nats, as their package `artefactual` (2026.9.1) computes them:
the paper writes bits. Of a token's k likeliest candidates, rank j contributes s_j = -p_j ln p_j. EPR is the mean over
the tokens of the sum over the ranks (Eq. 3 and 6); WEPR is a logistic regression on each rank's mean and maximum over
the tokens. Its weights are fitted, one set a language model: there are no constants to ship.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.parse import parse_response
from metaprobe.records.reading import as_list, fields
from metaprobe.records.response import LOGPROB_ROUNDING, ParsedResponse

RANKS = 15
"""Number of ranks that the published detectors were fitted with."""


@dataclass(frozen=True, slots=True)
class Wepr:
    """A fitted WEPR detector."""

    coefficients: tuple[float, ...]
    """Coefficients of the k means, then of the k maxima: scikit-learn's `coef_[0]`."""
    intercept: float

    def __post_init__(self) -> None:
        if not self.coefficients or len(self.coefficients) % 2:
            raise RecordError(f"{len(self.coefficients)} coefficients came; expected 2 k, a mean and a maximum a rank")

    @property
    def k(self) -> int:
        """How many ranks it reads."""
        return len(self.coefficients) // 2

    def probability(self, response: object) -> float:
        """P(hallucination), in [0, 1]: higher is worse. Raises `InvalidResponse` as `wepr_features` does."""
        log_odds = float(wepr_features(response, k=self.k) @ np.array(self.coefficients)) + self.intercept
        return float(np.exp(-np.logaddexp(0.0, -log_odds)))


def epr(response: object, *, k: int = RANKS) -> float:
    """The mean entropy of a response's tokens in nats, cut at k ranks: higher is worse. Needs no fitting.

    Raises `InvalidResponse` as `wepr_features` does.
    """
    return float(entropy_contributions(ranks(response, k)).sum(axis=1).mean())


def wepr_features(response: object, *, k: int = RANKS) -> NDArray[np.float64]:
    """Each rank's mean contribution over the tokens, then each rank's largest, (2 k,).

    `response`: any that `parse_response` takes and that has alternatives. Tokens without any are left out. Raises
    `InvalidResponse` where there are none, or a token has fewer than k: what was not asked for cannot be made up.
    """
    contributions = entropy_contributions(ranks(response, k))
    return np.concatenate([contributions.mean(axis=0), contributions.max(axis=0)])


def entropy_contributions(top: NDArray[np.float64]) -> NDArray[np.float64]:
    """-p ln p of log-probabilities in nats, any shape."""
    contributions: NDArray[np.float64] = np.exp(top)
    contributions *= -top
    return contributions


def ranks(response: object, k: int) -> NDArray[np.float64]:
    """The k likeliest log-probabilities of each token that has alternatives, descending, (T, k)."""
    top = _direct(response)
    if top is None:
        top = _parsed(response)
    if top.shape[1] < k:
        raise InvalidResponse(
            f"a token has {top.shape[1]} alternatives; expected at least {k}: request top_logprobs={k}, or use fewer"
            " ranks and weights fitted for them"
        )
    if (top[:, :-1] < top[:, 1:]).any():
        top = -np.sort(-top, axis=1)
    return top[:, :k]


def _direct(response: object) -> NDArray[np.float64] | None:
    """The alternatives of a chat completion's first choice, (T, m), where each token has as many; else None."""
    held = None if isinstance(response, (ParsedResponse, str, bytes, bytearray)) else fields(response)
    choices = as_list(held.get("choices")) if held is not None else None
    logprobs = fields((fields(choices[0]) or {}).get("logprobs")) if choices else None
    entries = as_list(logprobs.get("content")) if logprobs is not None else None
    if not entries:
        return None
    try:
        if type(entries[0]) is dict:
            rows = [entry["top_logprobs"] for entry in entries]
            flat = np.array([other["logprob"] for row in rows for other in row])
        else:
            rows = [entry.top_logprobs for entry in entries]
            flat = np.array([other.logprob for row in rows for other in row])
        width = len(rows[0])
        if flat.dtype != np.float64 or not width or set(map(len, rows)) != {width}:
            return None
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None
    # The slow way reports what is odd about a number.
    table: NDArray[np.float64] = flat.reshape(-1, width)
    return table if flat.max() <= 0 and flat.min() > -np.inf else None


def _parsed(response: object) -> NDArray[np.float64]:
    """Does the same as `_direct` for any response; m is the lowest count of a token, and tokens without are left
    out."""
    parsed = parse_response(response)
    if parsed.top_fault:
        raise InvalidResponse(parsed.top_fault)
    top = parsed.top_logprobs
    if top is None:
        raise InvalidResponse("the response has no alternatives; request the completion with top_logprobs=k")
    given = np.count_nonzero(~np.isnan(top), axis=1)
    kept: NDArray[np.float64] = top[given > 0][:, : given[given > 0].min(initial=top.shape[1])].astype(np.float64)
    if not kept.size or kept.max() > LOGPROB_ROUNDING:
        raise InvalidResponse("the response has no alternatives with a finite log-probability of at most 0")
    return kept
