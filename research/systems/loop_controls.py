"""Measures what a loop (evaluate, refine, verify) adds to its first answer, for systems.py and reproduction.py.

Two systems whose loops are compared may differ in the prompt that makes the first answer, and then their final answers
differ for that reason alone. So each is held against its own first answer, paired on the problem, and the difference of
these gains is what the loops differ by.
"""

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval
from metaprobe.eval.systems import mgv
from metaprobe.records.answers import canonical, final_answer
from metaprobe.records.types import Call, Run
from metaprobe.routing.paper import PaperRules

Floats = NDArray[np.float64]
THRESHOLD = PaperRules().good
SAME_PROMPT = "gsm8k-self-refine-execute"
"""The store of Self-Refine with Monitor-Generate-Verify's solve prompt for its first answer."""


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """One system on its problems, by id; right or wrong as 0 or 1."""

    ids: tuple[str, ...]
    groups: tuple[str, ...]
    first: Floats
    """Correctness of the answer that was there before the loop began."""
    final: Floats
    """Correctness of the answer that was returned."""

    def on(self, ids: Set[str]) -> "Loop":
        """The same on these problems only."""
        kept = [place for place, name in enumerate(self.ids) if name in ids]
        names, groups = (tuple(each[place] for place in kept) for each in (self.ids, self.groups))
        return Loop(names, groups, self.first[kept], self.final[kept])

    def gain(self) -> Interval:
        """Returns what the loop adds to its own first answer."""
        return self.mean(self.final - self.first)

    def mean(self, values: Floats) -> Interval:
        """A mean over the problems, by a bootstrap over groups."""
        return mean_interval(values, cluster_weights(self.groups))


def loop_of(runs: Sequence[Run]) -> Loop:
    """The answers of one system. Where all cycles were kept whatever the score: stopped at the paper's threshold."""
    ordered = sorted(runs, key=lambda run: run.item.id)
    tried = [mgv.attempts(run) for run in ordered]
    return Loop(
        ids=tuple(run.item.id for run in ordered),
        groups=tuple(run.item.group or run.item.id for run in ordered),
        first=np.array([each[0].correct for each in tried]),
        final=np.array([returned(run, each) for run, each in zip(ordered, tried, strict=True)]),
    )


def returned(run: Run, tried: Sequence[mgv.Attempt]) -> float:
    """Whether the returned answer is right."""
    if run.system != "monitor-generate-verify":
        return run.outcome or 0.0
    good = (number for number, attempt in enumerate(tried, 1) if (attempt.quality or 0.0) >= THRESHOLD)
    kept = tried[: next(good, len(tried))]
    return max(kept, key=lambda attempt: -1.0 if attempt.quality is None else attempt.quality).correct


def over(ours: Loop, others: Loop) -> Interval:
    """Difference of the returned answers, paired on the problem, where one of both may have solved a part of them only.

    Raises ValueError for other problems.
    """
    ours, others = _matched(ours, others)
    return ours.mean(ours.final - others.final)


def over_in_gain(ours: Loop, others: Loop) -> Interval:
    """Difference of what the loops add to their own first answers: nothing, if only the solve prompts differ."""
    ours, others = _matched(ours, others)
    return ours.mean((ours.final - ours.first) - (others.final - others.first))


def over_in_first(ours: Loop, others: Loop) -> Interval:
    """Difference of the first answers, before any loop."""
    ours, others = _matched(ours, others)
    return ours.mean(ours.first - others.first)


def controls(ours: Loop, others: Loop, same_prompt: Loop | None) -> dict[str, Interval]:
    """Returns the differences that `ours` over `others` has to survive, by name. `same_prompt`: `others` begun with our
    prompt."""
    found = {
        "its own first answer": ours.gain(),
        "what the loop adds to the own first answer, in both": over_in_gain(ours, others),
    }
    if same_prompt is not None:
        found["the other loop from the same solve prompt"] = over(ours, same_prompt)
    return found


def most_given(runs: Sequence[Run]) -> Floats:
    """(problems,) right or wrong: of several candidates of a run the answer that most give, the first of equals."""
    won = []
    for run in sorted(runs, key=lambda run: run.item.id):
        answers = sorted((call for call in run.calls if call.stage == "answer"), key=lambda call: call.round)
        forms = [canonical(run.item, final_answer(run.item, call.text)) for call in answers]
        votes = Counter(form for form in forms if form)
        best = max(range(len(forms)), key=lambda place: (votes[forms[place]], -place))
        won.append(run.label("correct", answers[best].id) or 0.0)
    return np.array(won)


def surest(runs: Sequence[Run]) -> Floats:
    """(problems,) right or wrong: of several candidates of a run that of highest mean log-probability.

    Raises ValueError where a candidate has no log-probabilities.
    """
    won = []
    for run in sorted(runs, key=lambda run: run.item.id):
        answers = sorted((call for call in run.calls if call.stage == "answer"), key=lambda call: call.round)
        means = [_mean_logprob(call) for call in answers]
        won.append(run.label("correct", answers[int(np.argmax(means))].id) or 0.0)
    return np.array(won)


def _mean_logprob(call: Call) -> float:
    if call.logprobs is None or not len(call.logprobs):
        raise ValueError(f"call {call.id} has no log-probabilities")
    return float(np.mean(call.logprobs, dtype=np.float64))


def _matched(ours: Loop, others: Loop) -> tuple[Loop, Loop]:
    """Both on the problems of whichever solved fewer."""
    common = set(ours.ids) & set(others.ids)
    if len(common) < min(len(ours.ids), len(others.ids)):
        raise ValueError("the two systems did not solve the same problems")
    return ours.on(common), others.on(common)
