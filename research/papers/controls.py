"""Measures what the papers' claims about loops and critics have to survive: for research/papers/systems.py.

Two systems whose loops are compared may differ in the prompt that makes the first answer, and then their final answers
differ for that reason alone. So each is held against its own first answer, paired on the problem, and the difference of
these gains is what the loops differ by.

A small model often ends without a readable answer, which counts as wrong: a stage that merely repairs the form gains by
that. And a claim is true or false, so an answer that never reads it is right half of the time.
"""

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval
from metaprobe.eval.systems import mgv_figures as mgv
from metaprobe.papers.systems import SYSTEMS
from metaprobe.records.correctness import canonical
from metaprobe.records.types import Run
from metaprobe.routing.paper import PaperRules
from research.systems.metacog_controls import half_of

Floats = NDArray[np.float64]
THRESHOLD = PaperRules().good
SAME_PROMPT = "gsm8k-self-refine-execute"
"""The store of Self-Refine with Monitor-Generate-Verify's solve prompt for its first answer."""
FINAL = "final"
CONSTANT = "the same answer to every claim (chosen on the other half)"
CHAIN = "one chain of thought, without agents"
HALF = "unreadable answers counted as half right"


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


def loop_over(ours: Loop, others: Loop) -> Interval:
    """Difference of the returned answers, paired on the problem, where one of both may have solved a part of them only.

    Raises ValueError for other problems.
    """
    ours, others = _matched(ours, others)
    return ours.mean(ours.final - others.final)


def loop_controls(ours: Loop, others: Loop, same_prompt: Loop | None) -> dict[str, Interval]:
    """Returns the differences that `ours` over `others` has to survive, by name. `same_prompt`: `others` begun with our
    prompt."""
    mine, theirs = _matched(ours, others)
    found = {
        "its own first answer": ours.gain(),
        # Nothing, if only the solve prompts differ.
        "what the loop adds to the own first answer, in both": mine.mean(
            (mine.final - mine.first) - (theirs.final - theirs.first)
        ),
    }
    if same_prompt is not None:
        found["the other loop from the same solve prompt"] = loop_over(ours, same_prompt)
    return found


def _matched(ours: Loop, others: Loop) -> tuple[Loop, Loop]:
    """Both on the problems of whichever solved fewer."""
    common = set(ours.ids) & set(others.ids)
    if len(common) < min(len(ours.ids), len(others.ids)):
        raise ValueError("the two systems did not solve the same problems")
    return ours.on(common), others.on(common)


def right(runs: Sequence[Run], stage: str = FINAL, *, half: bool = False) -> Floats:
    """(claims,) by id, of the returned answer or of one stage's. `half`: what cannot be read counts 0.5, not 0."""
    found = []
    for run in sorted(runs, key=lambda run: run.item.id):
        answer, value = run.final_answer, run.outcome or 0.0
        if stage != FINAL:
            (call,) = [call for call in run.calls if call.stage == stage]
            answer = SYSTEMS[run.system].extract_answer(run.item, call, run.variant)
            value = run.label("correct", call.id) or 0.0
        found.append(0.5 if half and not canonical(run.item, answer) else value)
    return np.array(found)


def constant(runs: Sequence[Run]) -> Floats:
    """(claims,) by id: the gold answer that is most frequent in the other half of the groups, said of every claim."""
    ordered = sorted(runs, key=lambda run: run.item.id)
    halves = [half_of(run.item) for run in ordered]
    golds = [run.item.gold[0] for run in ordered]
    most = {
        half: Counter(gold for gold, own in zip(golds, halves, strict=True) if own != half).most_common(1)[0][0]
        for half in set(halves)
    }
    return np.array([float(gold == most[half]) for gold, half in zip(golds, halves, strict=True)])


def difference(runs: Sequence[Run], ours: Floats, others: Floats) -> Interval:
    """The mean difference, paired on the claim, by a bootstrap over groups."""
    ordered = sorted(runs, key=lambda run: run.item.id)
    return mean_interval(ours - others, cluster_weights([run.item.group or run.item.id for run in ordered]))
