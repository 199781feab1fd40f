"""Simulates abandoning an answer at a look and sampling again, at equal tokens, on recorded samples.

    python -m research.states.abandon NAME recorded/gsm8k-samples    # into docs/measured/gate_states.json

A question's samples are drawn in random orders. A policy stops some of them at a look; a stopped sample costs the
tokens up to the look and has no vote. It goes on until so many samples are finished, whose majority answers. The same
number of tokens buys more finished samples without stopping: both are compared at equal mean tokens a question.
"""

import re
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe import RunStore
from metaprobe.eval.metrics.bootstrap import resampled_interval
from metaprobe.records.types import Call
from metaprobe.training.folds import outer_folds
from metaprobe.training.ladder import LadderRows, fit_ladder
from research.blocks import keep_figures, packed
from research.states.gate import FIGURES, SEED, stream_columns

LOOKS, SHARES = (30, 80, 130), (0.1, 0.25, 0.5)
"""Tokens after which samples are stopped, and the share of them that is."""
CUTS = (130, 180, 230)
"""A policy that needs no score: whatever has not ended after so many tokens is stopped."""
ORDERS, FINISHED, RESAMPLES = 20, 8, 1000
Floats = NDArray[np.float64]
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def answer_of(call: Call) -> str:
    """Returns the last number of an answer that ended by itself; empty for none, which has no vote."""
    found = _NUMBER.findall(call.text) if call.finish_reason == "stop" else []
    return found[-1].replace(",", "") if found else ""


def simulate(
    stopped: NDArray[np.bool_],
    cost: Floats,
    length: Floats,
    answers: NDArray[np.str_],
    right: NDArray[np.int64],
    most: int = FINISHED,
) -> tuple[Floats, Floats]:
    """Returns whether the majority of the first k finished samples is right, and the tokens spent until then.

    All of (questions, samples): `stopped` says which are stopped, at the tokens `cost`; `length`: tokens of whole ones.
    Both results are (questions, most), means over the orders. Where too few samples finish, the last state counts.
    """
    questions, samples = stopped.shape
    hits, spent = np.zeros((questions, most)), np.zeros((questions, most))
    rng = np.random.default_rng(SEED)
    for question in range(questions):
        for _ in range(ORDERS):
            votes: Counter[str] = Counter()
            is_right: dict[str, int] = {}
            tokens, finished = 0.0, 0
            for sample in rng.permutation(samples).tolist():
                tokens += cost[question, sample] if stopped[question, sample] else length[question, sample]
                if stopped[question, sample]:
                    continue
                answer = str(answers[question, sample])
                if answer:
                    votes[answer] += 1
                    is_right[answer] = int(right[question, sample])
                hits[question, finished] += is_right[votes.most_common(1)[0][0]] if votes else 0
                spent[question, finished] += tokens
                finished += 1
                if finished == most:
                    break
            for place in range(finished, most):  # all samples are spent
                hits[question, place] += is_right[votes.most_common(1)[0][0]] if votes else 0
                spent[question, place] += tokens
    return hits / ORDERS, spent / ORDERS


def beside(
    policy: tuple[Floats, Floats], plain: tuple[Floats, Floats], draws: NDArray[np.int64]
) -> list[dict[str, Any]]:
    """Returns for 1, 2, 4 and 8 finished samples the tokens, the accuracy, and its gain at equal tokens."""

    def gain(weight: Floats, place: int) -> tuple[float, float, float]:
        share = weight / weight.sum()
        tokens, accuracy = share @ policy[1][:, place], share @ policy[0][:, place]
        without = np.interp(tokens, share @ plain[1], share @ plain[0])
        return float(tokens), float(accuracy), float(accuracy - without)

    rows = []
    for place in (0, 1, 3, 7):
        tokens, accuracy, more = gain(np.ones(len(policy[0])), place)
        values = np.array([gain(draw.astype(float), place)[2] for draw in draws])
        interval = resampled_interval(more, values, draws)
        rows.append(
            {"finished": place + 1, "tokens": round(tokens, 1), "right": round(accuracy, 4), "gain": packed(interval)}
        )
    return rows


def held_out_scores(series: list[NDArray[np.float32]], y: NDArray[np.int64], groups: list[str], look: int) -> Floats:
    """Returns a score (n,) by the ladder on the first `look` log-probabilities, NaN for shorter answers; minus, in each
    fold, the quantiles are taken of learning rows alone."""
    rows = np.flatnonzero(np.array([len(x) for x in series]) > look)
    X, read = stream_columns([series[row] for row in rows], look)
    names, own = tuple(f"c{i}" for i in range(X.shape[1])), [groups[row] for row in rows]
    share = np.full(len(series), np.nan)
    for roles in outer_folds(own, y[rows], folds=5, seed=SEED):
        sample = LadderRows(X, y[rows], np.array(own), np.full(len(rows), ""), names, read)
        scores = fit_ladder(sample, roles, seed=SEED).score(X)
        known = np.sort(scores[roles.learning])
        share[rows[roles.test]] = np.searchsorted(known, scores[roles.test]) / len(known)
    return share


def measured(store: Path) -> dict[str, Any]:
    """Returns the figures of all policies."""
    questions: dict[str, list[tuple[Call, int]]] = {}
    for run in RunStore(store).runs():
        for call in run.calls:
            label = run.label("correct", call.id)
            if call.stage == "answer" and label is not None and call.logprobs is not None:
                questions.setdefault(run.item.id, []).append((call, int(label)))
    samples = min(map(len, questions.values()))
    calls = [[call for call, _ in of[:samples]] for of in questions.values()]
    right = np.array([[label for _, label in of[:samples]] for of in questions.values()])
    answers = np.array([[answer_of(call) for call in of] for of in calls])
    length = np.array([[len(call.logprobs) for call in of] for of in calls], dtype=float)  # type: ignore[arg-type]
    series = [call.logprobs for of in calls for call in of]
    groups = [name for name in questions for _ in range(samples)]
    draws = np.random.default_rng(SEED).multinomial(len(calls), np.full(len(calls), 1 / len(calls)), size=RESAMPLES)
    plain = simulate(np.zeros(right.shape, bool), length, length, answers, right, samples)
    found: dict[str, Any] = {"questions": len(calls), "samples": samples, "policies": {}}
    found["plain"] = [[round(float(v), 4) for v in of.mean(axis=0)] for of in plain]
    rng = np.random.default_rng(SEED)
    for look in LOOKS:
        place = held_out_scores(series, right.ravel(), groups, look).reshape(right.shape)  # type: ignore[arg-type]
        drawn = np.where(np.isfinite(place), rng.uniform(size=place.shape), np.nan)
        for name, score in (("log-probabilities", place), ("at random", drawn)):
            for share in SHARES:
                stopped = np.isfinite(score) & (score < share)
                policy = simulate(stopped, np.full(right.shape, float(look)), length, answers, right)
                found["policies"][f"{name}, {share:.0%} at {look}"] = beside(policy, plain, draws)
    for cut in CUTS:
        policy = simulate(length > cut, np.full(right.shape, float(cut)), length, answers, right)
        found["policies"][f"all that go on after {cut}"] = beside(policy, plain, draws)
    return found


def main() -> None:
    """Measures one store."""
    warnings.simplefilter("ignore")
    found = measured(Path(sys.argv[2]))
    for name, rows in found["policies"].items():
        print(name, [(row["finished"], row["tokens"], row["right"], row["gain"]) for row in rows], flush=True)
    keep_figures(FIGURES, found, "abandon", sys.argv[1])


if __name__ == "__main__":
    main()
