"""The source of each confidence that a panel learned from, and whether the confidence of an answer is from there.

A confidence from another source is another number, on another scale. It is left out and the reason says it, never read
as if it were the one that the panel learned from. Log-probabilities that come are read where the panel learned from
those.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from metaprobe.records.response import check_logprobs
from metaprobe.routing.panel.compared_answers import PanelAnswer
from metaprobe.routing.panel.model_rows import SCORE, STATED

SOURCES_KEY = "confidence_sources"
"""In the contract: agent -> source of the confidences that the panel learned from, as `confidence_source` in outcomes
names it: `stated`, `logprobs`, the digest of a checkpoint, or that after `stated+` where both are joined. An agent
whose outcomes name no source is left out."""
SIGNAL_SOURCES = "signal_sources"
"""Key of the contract: maps a signal to its source: `logprobs`, the source of the agents' confidences, or the question
of a decision model. Empty if the source is not known.
"""
LEFT_OUT_KEY = "signals_left_out"
"""Key of the contract: maps a kind of signal to the share of training answers that had it, for kinds that were left out
because too few answers had them.
"""
STATED_BY_MODEL = "stated"
FROM_LOGPROBS = ("logprobs", "mean_logprob")
"""Names of sources that are the mean log-probability of the answer, or its exponential: the scale tells which."""


def signal_kind(signal: str) -> str:
    """Returns in words what kind of number a signal of an answer is."""
    return {STATED: "stated confidence", SCORE: "score"}.get(signal, "log-probabilities")


def source_for(sources: Mapping[str, str], agent: str | None) -> str:
    """Returns the source of an agent's confidences in training; with `agent` None, the common source of all agents.

    Empty if the source is unknown, or if the agents have several sources.
    """
    if agent is not None:
        return sources.get(agent, "")
    named_sources = set(sources.values())
    return named_sources.pop() if len(named_sources) == 1 else ""


def is_from(learned: str, source: str) -> bool:
    """Returns whether a confidence from `source` may be read by a panel that learned from the source `learned`.

    A joined source such as `stated+DIGEST` also accepts either of its two parts alone, as in training. A confidence
    without a source counts as stated by its agent. If the panel's source is unknown too, the two fit together.
    """
    if not learned or not source:
        return source == learned or learned.partition("+")[0] == STATED_BY_MODEL
    return source == learned or source in learned.split("+", 1)


def mean_confidence(mean_logprob: float, levels: Sequence[float]) -> float:
    """Returns the confidence that a mean log-probability is on the scale of training: itself, or its exponential.

    `levels`: rising quantiles in training. NaN where they are of neither scale.
    """
    if not levels or mean_logprob != mean_logprob:
        return math.nan
    if levels[-1] <= 0:
        return mean_logprob
    return math.exp(mean_logprob) if levels[0] >= 0 and levels[-1] <= 1 else math.nan


def with_learned_confidence(answer: PanelAnswer, learned: str, levels: Sequence[float]) -> tuple[PanelAnswer, str]:
    """Returns an answer with the confidence that a panel can read, and why another one was left out.

    Args:
        answer: the answer with all that came.
        learned: source of the confidences that the panel learned from; empty where it is not known.
        levels: rising quantiles of these in training; empty where there are none.

    Raises `InvalidResponse` for log-probabilities that are no numbers.
    """
    if answer.stated is not None and is_from(learned, answer.stated_source):
        return answer, ""
    if learned in FROM_LOGPROBS and answer.logprobs is not None and len(answer.logprobs):
        value = mean_confidence(float(np.mean(check_logprobs(answer.logprobs), dtype=np.float64)), levels)
        if value == value:
            return replace(answer, stated=value, stated_source=learned), ""
        return replace(answer, stated=None), "the scale on which the panel read log-probabilities is not known"
    if answer.stated is None:
        return answer, ""
    source_text = source_in_words(answer.stated_source) if answer.stated_source else "of no source that is named"
    learned_from = f"the panel learned from one that is {source_in_words(learned)}"
    if not learned:
        learned_from = "the panel does not name the source of those that it learned from (train it again)"
    return replace(answer, stated=None), f"the confidence is {source_text}, and {learned_from}: it was left out"


def source_in_words(source: str) -> str:
    """Returns a source in words."""
    first, _, digest = source.rpartition("+")
    if source in FROM_LOGPROBS:
        return "read off log-probabilities"
    if source.isidentifier() and len(source) < 20:
        return "stated by the model" if source == STATED_BY_MODEL else f"from {source}"
    return f"read by checkpoint {digest[:16]}" + (", joined with the stated one" if first else "")


def describe_mismatch(sources: Mapping[str, str], agent: str, source: str, *, whole: bool = False) -> str:
    """Returns what is wrong with an agent's confidence from this source, for a panel that learned from `sources`.

    Empty if nothing is wrong, or if one of the two sources is not known. A panel that learned from two joined sources
    accepts either one alone for single answers, as in training. It does not accept one of them as the only source of a
    `whole` collection. For a whole collection, a panel without a named source counts as one that learned from stated
    confidences.
    """
    learned = sources.get(agent, "stated" if whole else "")
    if not learned or not source or source == learned or (not whole and source in learned.split("+", 1)):
        return ""
    return (
        f"the confidence of {agent} is {source_in_words(source)}, and the panel learned from one that is "
        f"{source_in_words(learned)}: give it that one, or train it on this one (`metaprobe train router RUNS --signal "
        "confidence=CHECKPOINT`)"
    )


def read_left_out(contract: Mapping[str, Any]) -> dict[str, float]:
    """Returns kind of signal -> share of the answers learned from that had it, as a contract names them.

    Raises `AttributeError`, `TypeError` or `ValueError` where the contract holds something else.
    """
    return {str(kind): float(share) for kind, share in contract.get(LEFT_OUT_KEY, {}).items()}


def read_sources(contract: Mapping[str, Any]) -> dict[str, str]:
    """Returns agent -> source, as a contract names it; empty for a checkpoint that names none.

    Raises `AttributeError` where the contract holds something else.
    """
    return {str(agent): str(source) for agent, source in contract.get(SOURCES_KEY, {}).items()}
