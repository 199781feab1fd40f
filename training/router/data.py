"""Outcomes as arrays, and what they show of each agent's past: rates, prices, calibrated confidences, words."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.records.outcomes import QuestionOutcomes
from metaprobe.routing.learned_state import ANY, Past
from metaprobe.routing.same_answers import agreement, content

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

KNOTS = 33
"""Confidences kept of an agent on a dimension: its quantiles."""
PRIOR = 5.0
"""Answers that an agent's rate over all dimensions weighs against its own on one."""
SLOPE_PENALTY = 1.0
"""Inverse strength of the L2 penalty on what a dimension adds to an agent's calibration."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """n questions, A agents."""

    agents: tuple[str, ...]
    dimensions: tuple[str, ...]
    score: Floats
    """(n, A), NaN where an agent was not asked."""
    confidence: Floats
    """(n, A), NaN where none was given."""
    cost: Floats
    """(n, A) US dollars; of a failed call without a recorded cost the mean of the agent's other calls."""
    seconds: Floats
    """(n, A) until its answer, NaN where it is not recorded; of a failed call as `cost`."""
    propensity: Floats
    """(n, A): probability with which the outcome came to be known; 1 of every known one that was not logged so, 0 of
    agents that could not be asked."""
    agreement: NDArray[np.float32]
    """(n, A, A) of the answers."""
    questions: tuple[str, ...]
    dimension: Ints
    """(n,): index into `dimensions`, -1 where unknown."""
    groups: tuple[str, ...]
    failed: NDArray[np.bool_]
    """(n, A): whether the agent was asked and failed. Its score is 0 then, and there is no answer to keep."""

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def chars(self) -> Floats:
        """(n,) characters of the question."""
        return np.array([len(question) for question in self.questions], dtype=np.float64)

    @property
    def known(self) -> NDArray[np.bool_]:
        """(n, A): whether what came of asking the agent is known."""
        return np.isfinite(self.score)

    @property
    def legal(self) -> NDArray[np.bool_]:
        """(n, A): who could be asked; of logged decisions more than is known."""
        return self.propensity > 0

    @property
    def weight(self) -> Floats:
        """(n, A): 1 / propensity of the known outcomes, 0 of the others."""
        return np.divide(self.known, self.propensity, out=np.zeros(self.score.shape), where=self.known)

    @property
    def logged(self) -> bool:
        """Whether some outcomes are known by chance, with recorded propensities."""
        return bool((self.legal & ~self.known).any() or (self.propensity[self.known] < 1).any())

    @property
    def timed(self) -> bool:
        """Whether the time of every answer is recorded."""
        return bool(np.isfinite(self.seconds[self.known]).all())

    def take(self, rows: Ints) -> "Outcomes":
        """The questions of these rows."""
        return dataclasses.replace(
            self,
            score=self.score[rows],
            confidence=self.confidence[rows],
            cost=self.cost[rows],
            seconds=self.seconds[rows],
            propensity=self.propensity[rows],
            agreement=self.agreement[rows],
            questions=tuple(self.questions[row] for row in rows),
            dimension=self.dimension[rows],
            groups=tuple(self.groups[row] for row in rows),
            failed=self.failed[rows],
        )

    def only(self, columns: Sequence[int]) -> "Outcomes":
        """The same questions with these agents."""
        at = list(columns)
        return dataclasses.replace(
            self,
            agents=tuple(self.agents[column] for column in at),
            score=self.score[:, at],
            confidence=self.confidence[:, at],
            cost=self.cost[:, at],
            seconds=self.seconds[:, at],
            propensity=self.propensity[:, at],
            agreement=self.agreement[:, at][:, :, at],
            failed=self.failed[:, at],
        )


def outcomes_of(questions: Sequence[QuestionOutcomes], agents: Sequence[str] | None = None) -> Outcomes:
    """Arrays of the questions that have a scored answer. `agents`: by default all, in order of their names.

    A question with propensities is a logged decision: of the agent that was chosen the outcome is known, and the others
    could have been. Raises `RecordError` where nothing is scored, a scored answer has no cost, or a logged decision
    does not say what was chosen, with which propensity, and what came of it.
    """
    named = {name for q in questions for name in (*q.agents, *q.propensities)}
    names = tuple(agents) if agents is not None else tuple(sorted(named))
    questions = [q for q in questions if any(o.score is not None for name, o in q.agents.items() if name in names)]
    if not questions:
        raise RecordError('no answer is scored; expected "correct" or "score" in the agents\' outcomes')
    n, A = len(questions), len(names)
    score, confidence, cost, seconds = (np.full((n, A), np.nan) for _ in range(4))
    propensity, failed = np.zeros((n, A)), np.zeros((n, A), dtype=bool)
    alike = np.zeros((n, A, A), dtype=np.float32)
    dimensions = tuple(sorted({q.dimension for q in questions} - {ANY}))
    for row, question in enumerate(questions):
        if question.propensities:
            _check_logged(question)
            propensity[row] = [question.propensities.get(name, 0.0) for name in names]
        words = [content(question.agents[name].answer) if name in question.agents else frozenset() for name in names]
        for column, name in enumerate(names):
            outcome = question.agents.get(name)
            if outcome is None or outcome.score is None:
                continue
            failed[row, column] = outcome.error is not None
            if outcome.cost_usd is None and outcome.error is None:
                raise RecordError(f"question {question.id}: {name} has no cost_usd; give one, 0 where it costs nothing")
            score[row, column] = outcome.score
            cost[row, column] = np.nan if outcome.cost_usd is None else outcome.cost_usd
            if not question.propensities:
                propensity[row, column] = 1.0
            confidence[row, column] = np.nan if outcome.confidence is None else outcome.confidence
            seconds[row, column] = np.nan if outcome.latency_ms is None else outcome.latency_ms / 1000
            for other in range(column):
                alike[row, column, other] = alike[row, other, column] = agreement(words[column], words[other])
    _fill(cost, failed)
    _fill(seconds, failed)
    if (dear := np.argwhere(failed & np.isnan(cost))).size:
        name = names[dear[0, 1]]
        raise RecordError(f"{name} has no cost_usd on any line, and failed on some; give one, 0 where it costs nothing")
    for mine in confidence.T:  # a log-probability of -inf is as the least of the others
        mine[mine == -np.inf] = np.nanmin(np.where(np.isfinite(mine), mine, np.nan), initial=0.0)
    return Outcomes(
        agents=names,
        dimensions=dimensions,
        score=score,
        confidence=confidence,
        cost=cost,
        seconds=seconds,
        propensity=propensity,
        agreement=alike,
        questions=tuple(q.question for q in questions),
        dimension=np.array([dimensions.index(q.dimension) if q.dimension else -1 for q in questions]),
        groups=tuple(q.group for q in questions),
        failed=failed,
    )


def _fill(values: Floats, failed: NDArray[np.bool_]) -> None:
    """Gives failed calls without a number the mean of the agent's other calls, where there are some."""
    for column, mine in enumerate(values.T):
        known = np.isfinite(mine)
        if known.any():
            mine[failed[:, column] & ~known] = mine[known].mean()


def _check_logged(question: QuestionOutcomes) -> None:
    scored = [name for name, outcome in question.agents.items() if outcome.score is not None]
    chosen, propensities = question.chosen, question.propensities
    if scored != [chosen]:
        raise RecordError(
            f"question {question.id} is a logged decision, with chosen = {chosen!r}, and has scored outcomes of "
            f"{', '.join(scored)}; expected one, of the chosen agent. Leave propensities out where all were asked"
        )
    if not propensities.get(chosen or "", 0.0) > 0 or not math.isclose(sum(propensities.values()), 1, abs_tol=1e-3):
        raise RecordError(
            f"question {question.id} has propensities {dict(propensities)}; expected those of every agent that could "
            f"be chosen, 1 in all, and above 0 for {chosen!r}, which was"
        )


def pasts_of(data: Outcomes) -> dict[str, dict[str, Past]]:
    """Each agent's past by dimension, and over all under the key "". Raises `RecordError` for one never asked."""
    chars = data.chars
    found: dict[str, dict[str, Past]] = {}
    for column, name in enumerate(data.agents):
        rows = np.flatnonzero(data.known[:, column])
        if not len(rows):
            raise RecordError(f"agent {name!r} has no scored answer; leave it out")
        lines = _calibration(data, column, rows)
        weight = data.weight[:, column]
        overall = float(np.average(data.score[rows, column], weights=weight[rows]))
        mine = found[name] = {}
        for dimension in (-1, *range(len(data.dimensions))):
            here = rows if dimension < 0 else rows[data.dimension[rows] == dimension]
            told = here[~data.failed[here, column]]
            rate = _shrunk(data.score[here, column], weight[here], overall)
            used = here if len(here) else rows
            price = np.average(data.cost[used, column], weights=weight[used])
            per_char = _slope(chars[here], data.cost[here, column])
            seconds = data.seconds[used, column]
            knots, scores = _normal_scores(data.confidence[here, column])
            intercept, slope = lines[dimension]
            mine[data.dimensions[dimension] if dimension >= 0 else ANY] = Past(
                rate=logit(rate),
                price_usd=float(price),
                price_per_char=float(per_char),
                mean_chars=float(np.average(chars[here], weights=weight[here])) if len(here) else 0.0,
                knots=knots,
                scores=scores,
                slope=slope,
                intercept=intercept,
                stated=float(np.isfinite(data.confidence[told, column]).mean()) if len(told) else 0.0,
                seconds=float(np.average(seconds, weights=weight[used])) if np.isfinite(seconds).all() else None,
            )
    return found


def _shrunk(score: Floats, weight: Floats, overall: float) -> float:
    """Weighted mean, as if `PRIOR` more answers of the usual weight had the overall rate."""
    if not len(score):
        return overall
    prior = PRIOR * weight.mean()
    return float((weight @ score + prior * overall) / (weight.sum() + prior))


def _slope(chars: Floats, cost: Floats) -> float:
    """Least squares; 0 where a longer question would be cheaper, or nothing can be estimated."""
    if len(chars) <= 10 or (spread := chars.var()) == 0:
        return 0.0
    return max(float(np.cov(chars, cost, ddof=0)[0, 1] / spread), 0.0)


def _normal_scores(confidence: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Quantiles of the confidences and their normal scores, by mid-ranks, so that ties get one score."""
    special = require("scipy.special", "fit")
    values, counts = np.unique(confidence[np.isfinite(confidence)], return_counts=True)
    if not len(values):
        return (), ()
    ranks = (np.cumsum(counts) - counts / 2) / counts.sum()
    keep = np.unique(np.searchsorted(ranks, np.linspace(0, 1, KNOTS)).clip(0, len(values) - 1))
    keep = np.unique(np.concatenate([[0], keep, [len(values) - 1]]))
    scores = special.ndtri(ranks[keep].clip(0.01, 0.99))
    return tuple(values[keep].tolist()), tuple(scores.tolist())


def _calibration(data: Outcomes, column: int, rows: Ints) -> dict[int, tuple[float, float]]:
    """Dimension -> (intercept, slope) of the log-odds of being right on the normal score; -1 over all.

    One logistic regression an agent: what a dimension adds to intercept and slope is shrunk. Scores between 0 and 1
    count as that part of a right answer.
    """
    linear = require("sklearn.linear_model", "fit")
    found: dict[int, tuple[float, float]] = {}
    stated = rows[np.isfinite(data.confidence[rows, column])]
    for pooled in (True, False):
        dimensions = [-1] if pooled else list(range(len(data.dimensions)))
        at = np.full(len(stated), -1) if pooled else data.dimension[stated]
        used = stated[at >= 0] if not pooled else stated
        at = at[at >= 0] if not pooled else at
        z = np.zeros(len(used))
        for dimension in dimensions:
            here = at == dimension
            knots, scores = _normal_scores(data.confidence[used[here], column])
            if len(knots):
                z[here] = np.interp(data.confidence[used[here], column], knots, scores)
        y = data.score[used, column]
        if len(used) < 10 or y.min() == y.max():  # nothing can be learned of its confidences: its rate must do
            weight = data.weight[:, column]
            overall = float(np.average(data.score[rows, column], weights=weight[rows]))
            for d in dimensions:
                here = rows if d < 0 else rows[data.dimension[rows] == d]
                found[d] = logit(_shrunk(data.score[here, column], weight[here], overall)), 0.0
            continue
        own = (at[:, None] == np.array(dimensions)).astype(np.float64)
        X = np.column_stack([z, z[:, None] * own / 2, own]) if not pooled else z[:, None]
        twice = np.concatenate([X, X])  # a score s is a right answer of weight s and a wrong one of weight 1 - s
        often = relative(data.weight[used, column])
        weight = np.concatenate([y * often, (1 - y) * often])
        kept = weight > 0
        model = linear.LogisticRegression(C=SLOPE_PENALTY, max_iter=1000)
        model.fit(twice[kept], np.repeat([1, 0], len(y))[kept], sample_weight=weight[kept])
        w, b = model.coef_[0], float(model.intercept_[0])
        k = len(dimensions)
        for place, dimension in enumerate(dimensions):
            extra = (0.0, 0.0) if pooled else (float(w[1 + k + place]), float(w[1 + place]) / 2)
            found[dimension] = b + extra[0], float(w[0]) + extra[1]
    return found


def relative(weight: Floats) -> Floats:
    """Of mean 1: so that a penalty weighs as much against rare outcomes as against known ones."""
    return weight / weight.mean() if len(weight) else weight


def logit(rate: float) -> float:
    """Log-odds, of a rate kept 0.02 from 0 and 1."""
    rate = min(max(float(rate), 0.02), 0.98)
    return float(np.log(rate / (1 - rate)))


def fingerprint_of(questions: Sequence[QuestionOutcomes]) -> str:
    """SHA-256 (hex) over ids, groups, dimensions and outcomes, in any order; texts do not matter."""
    lines = sorted(
        json.dumps(
            [
                q.id,
                q.group,
                q.dimension,
                sorted(
                    (name, o.score, o.confidence, o.cost_usd, *(["failed"] if o.error is not None else []))
                    for name, o in q.agents.items()
                ),
                *([sorted(q.propensities.items())] if q.propensities else []),
            ]
        )
        for q in questions
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def pasts_json(pasts: Mapping[str, Mapping[str, Past]]) -> bytes:
    """For `AGENTS` of a checkpoint."""
    record = {
        name: {dimension: dataclasses.asdict(past) for dimension, past in mine.items()} for name, mine in pasts.items()
    }
    return json.dumps(record).encode()
