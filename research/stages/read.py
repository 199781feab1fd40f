"""From recorded runs to `research.stages.data`.

Where a policy stopped early, what another cycle would have given is not known. So runs must have tried everything
(`collect --policy exhaustive`; MetaCrit's variant `every-stage`; Self-Verification always does), but for Self-Refine's
under the paper's rule: there the critic ended them, and whether to go on is learned for the other states alone.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.systems.mgv import attempts
from metaprobe.eval.table import group_of
from metaprobe.pipelines.answers import canonical, final_answer
from metaprobe.pipelines.self_verification import distinct
from metaprobe.pipelines.session import READ
from metaprobe.probes.signals import Signal, signals_of
from metaprobe.records.errors import RecordError
from metaprobe.records.fingerprint import fingerprint
from metaprobe.records.types import Call, Run
from metaprobe.routing.measured import measure_answers
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.policy import State
from metaprobe.training.common.grouping import join_items
from metaprobe.training.crossfit.evidence import generator_of
from research.stages.data import (
    METACRIT,
    MONITOR_GENERATE_VERIFY,
    SELF_REFINE,
    SELF_VERIFICATION,
    Candidates,
    Critics,
    Cycles,
    Floats,
    StageData,
)
from research.stages.policy import SYSTEM_POINTS
from research.stages.state import COLUMNS, answer_rows

FEWEST_GROUPS = 50
STAGES_OF = (
    ("synthesis-without-both",),
    ("monitor", "synthesis-without-control"),
    ("monitor", "control", "synthesis"),
)
"""What is generated after A1's answer by each of `policy.ACTIONS`; the last stage gives the answer."""


def stage_data(runs: Sequence[Run]) -> StageData:
    """What runs of one system teach. Raises `RecordError` for several systems, another one, or too few whole runs."""
    systems = {run.system for run in runs}
    if len(systems) != 1 or not systems <= SYSTEM_POINTS.keys():
        raise RecordError(
            f"runs of {', '.join(sorted(systems)) or 'no system'}; a stage policy learns from the runs of one of "
            f"{', '.join(SYSTEM_POINTS)}: name stores of one system, and train another checkpoint for another"
        )
    (system,) = systems
    read: dict[str, Callable[[Sequence[Run]], StageData]] = {
        MONITOR_GENERATE_VERIFY: cycles_of,
        METACRIT: critics_of,
        SELF_REFINE: cycles_of,
        SELF_VERIFICATION: candidates_of,
    }
    return read[system](runs)


def cycles_of(runs: Sequence[Run]) -> Cycles:
    """The runs that have as many cycles as most have; of Self-Refine, also those that the paper's rule stopped."""
    system, answers = runs[0].system, {run.id: _answers(run) for run in runs}
    counts = Counter(map(len, answers.values()))
    T = max(counts) if system == SELF_REFINE else counts.most_common(1)[0][0]
    remedy = "collect with `--policy exhaustive`"
    if system == SELF_REFINE:
        whole = list(runs)
        if others := [run.id for run in runs if len(answers[run.id]) < T and not _content(attempts(run)[-1].quality)]:
            raise RecordError(
                f"{len(others)} of {len(runs)} runs ended before cycle {T} though the critic was not content, as "
                f"{others[0]}: not the paper's rule stopped them, and what they lack is not known; {remedy}, or by "
                "`--policy paper`"
            )
    else:
        whole = [run for run in runs if len(answers[run.id]) == T]
    _check_enough(whole, runs, T > 1, "as many cycles, two at least", remedy)
    tried = [attempts(run) for run in whole]
    exhaustive = all(len(each) == T for each in tried)
    ends = [T if exhaustive else _stop([a.quality for a in each]) for each in tried]
    cut = [each[:end] for each, end in zip(tried, ends, strict=True)]
    calls = [answers[run.id][:end] for run, end in zip(whole, ends, strict=True)]
    forms = [_forms(run, each) for run, each in zip(whole, calls, strict=True)]
    correct = _padded([[a.correct for a in each] for each in cut], T)
    return Cycles(
        **_grouped(whole),
        rows=np.stack([cycle_rows(run, each, f, T) for run, each, f in zip(whole, calls, forms, strict=True)]),
        correct=np.where(np.isnan(correct), np.array([[each[-1].correct] for each in cut]), correct),
        quality=_padded([[np.nan if a.quality is None else a.quality for a in each] for each in cut], T),
        tokens=np.nan_to_num(_padded([[a.tokens for a in each] for each in cut], T)),
        lengths=_padded([[_length(call) for call in each] for each in calls], T),
        limits=_padded([[_limit(call) for call in each] for each in calls], T),
        votes=np.nan_to_num(_padded([_votes(each, each) for each in forms], T)),
        ran=np.array(ends),
        fingerprint=fingerprint(whole),
        generator=generator_of([call for each in calls for call in each]),
        system=system,
        exhaustive=exhaustive,
    )


def cycle_rows(run: Run, calls: Sequence[Call], forms: Sequence[str], T: int) -> NDArray[np.float32]:
    """(T, T, len(COLUMNS)) of one run, as `Cycles.rows`: by the states that the policy was shown after each cycle.

    `calls`: its answers, which may be fewer than T, or than were given.
    """
    rows = np.full((T, T, len(COLUMNS)), np.nan, dtype=np.float32)
    signals = {
        str(place): replace(
            signals_of(call),
            difficulty=_signal(_difficulty(run, call.round, attempt.difficulty)),
            quality=_signal(attempt.quality),
        )
        for place, (call, attempt) in enumerate(zip(calls, attempts(run), strict=False))
    }
    for t in range(len(calls)):
        shown = {str(place): signals[str(place)] for place in range(t + 1)}
        features = measure_answers(run.item.question, calls[: t + 1], forms[: t + 1])
        rows[t, : t + 1] = answer_rows(State("", "select", candidates=shown, features=features, round=t + 1))
    return rows


def candidates_of(runs: Sequence[Run]) -> Candidates:
    """Every run's different answers. Where all are the same, nothing is learned from it."""
    answers = [_answers(run) for run in runs]
    forms = [_forms(run, calls) for run, calls in zip(runs, answers, strict=True)]
    shown = [distinct(each) for each in forms]
    torn = [run for run, places in zip(runs, shown, strict=True) if len(places) > 1]
    _check_enough(torn, runs, True, "different answers to choose from", "collect more of them")
    K = max(map(len, shown))
    rows = np.full((len(runs), K, len(COLUMNS)), np.nan, dtype=np.float32)
    for row, run, calls, each, places in zip(rows, runs, answers, forms, shown, strict=True):
        row[: len(places)] = candidate_rows(run, calls, each, places)
    tried = [[attempts(run)[place] for place in places] for run, places in zip(runs, shown, strict=True)]
    return Candidates(
        **_grouped(runs),
        rows=rows,
        correct=np.nan_to_num(_padded([[a.correct for a in each] for each in tried], K)),
        quality=_padded([[np.nan if a.quality is None else a.quality for a in each] for each in tried], K),
        votes=np.nan_to_num(
            _padded([_votes([f[p] for p in places], f) for f, places in zip(forms, shown, strict=True)], K)
        ),
        given=_padded(shown, K),
        tokens=np.array([sum(map(_length, run.calls)) for run in runs]),
        fingerprint=fingerprint(runs),
        generator=generator_of([call for calls in answers for call in calls]),
    )


def candidate_rows(run: Run, calls: Sequence[Call], forms: Sequence[str], places: Sequence[int]) -> NDArray[np.float32]:
    """(k, len(COLUMNS)): the answers at these places, as the policy was shown them."""
    tried = attempts(run)
    candidates = {
        str(place): replace(signals_of(calls[place]), quality=_signal(tried[place].quality)) for place in places
    }
    features = measure_answers(run.item.question, calls, forms)
    return answer_rows(State("", "select", candidates=candidates, features=features))


def critics_of(runs: Sequence[Run]) -> Critics:
    """The runs that hold a checked answer after every choice of critics."""
    calls = {run.id: {call.stage: call for call in run.calls} for run in runs}
    needed = {"answer"}.union(*STAGES_OF)
    whole = [run for run in runs if needed <= calls[run.id].keys() and run.outcome is not None]
    _check_enough(whole, runs, True, "an answer after every stage", "collect with `--variant every-stage`")
    first = [calls[run.id]["answer"] for run in whole]
    return Critics(
        **_grouped(whole),
        rows=np.concatenate([critic_row(run, call) for run, call in zip(whole, first, strict=True)]),
        first=np.array([_checked(run, call) for run, call in zip(whole, first, strict=True)]),
        correct=np.array([[_checked(run, calls[run.id][stages[-1]]) for stages in STAGES_OF] for run in whole]),
        tokens=np.array(
            [[sum(_length(calls[run.id][stage]) for stage in stages) for stages in STAGES_OF] for run in whole]
        ),
        fingerprint=fingerprint(whole),
        generator=generator_of(first),
    )


def critic_row(run: Run, answer: Call) -> NDArray[np.float32]:
    """(1, len(COLUMNS)): A1's answer as the policy was shown it."""
    read = {name: _signal(_read(run, answer, name)) for name in ("difficulty", "confidence", "quality")}
    features = measure_answers(run.item.question, [answer], _forms(run, [answer]))
    return answer_rows(State("", "regulate", signals=replace(signals_of(answer), **read), features=features))


def _grouped(runs: Sequence[Run]) -> dict[str, Any]:
    """The fields of stage data that say which problems belong together."""
    joined = join_items([run.item for run in runs])
    return {"groups": tuple(joined.groups.tolist()), "regrouped": joined.note}


def _check_enough(whole: Sequence[Run], runs: Sequence[Run], usable: bool, what: str, remedy: str) -> None:
    groups = len({group_of(run.item) for run in whole})
    if not usable or groups < FEWEST_GROUPS:
        raise RecordError(
            f"{len(whole)} of {len(runs)} runs, in {groups} groups, have {what}; a stage policy needs "
            f"{FEWEST_GROUPS} groups of them: {remedy}"
        )


def _answers(run: Run) -> list[Call]:
    return sorted((call for call in run.calls if call.stage == "answer"), key=lambda call: call.round)


def _forms(run: Run, calls: Sequence[Call]) -> list[str]:
    return [canonical(run.item, final_answer(run.item, call.text)) for call in calls]


def _votes(forms: Sequence[str], among: Sequence[str]) -> list[float]:
    """How often each is given among them; 0 for "", which is no answer."""
    return [float(among.count(form)) if form else 0.0 for form in forms]


def _content(quality: float | None) -> bool:
    """Whether the paper's rule stops at such an evaluation."""
    return quality is not None and quality >= PaperRules().good


def _stop(qualities: Sequence[float | None]) -> int:
    """Cycles after which the paper's rule stops; all of them where it does not."""
    return next((n for n, quality in enumerate(qualities, start=1) if _content(quality)), len(qualities))


def _padded(values: Sequence[Sequence[float]], width: int) -> Floats:
    """(len(values), width); NaN where a row has fewer."""
    return np.array([[*each, *[np.nan] * (width - len(each))] for each in values])


def _difficulty(run: Run, number: int, stated: float | None) -> float | None:
    """What a probe read of the executor's prompt in that cycle, where one did; else what the monitor stated."""
    prompts = [call for call in run.calls if call.stage == READ and call.round == number]
    read = _read(run, prompts[-1], "difficulty") if prompts else None
    return stated if read is None else read


def _read(run: Run, call: Call, name: str) -> float | None:
    """What a checkpoint in place of a stated number read of the call (`pipelines.session.Session.signal`)."""
    return run.label(f"signal:{name}", call.id)


def _signal(value: float | None) -> Signal | None:
    return None if value is None else Signal(value, "recorded")


def _checked(run: Run, call: Call) -> float:
    correct = run.label("correct", call.id)
    if correct is None:
        raise RecordError(f"answer {call.id} has no label 'correct': collect a task that a program can check")
    return correct


def _limit(call: Call) -> float:
    """The most tokens that the call could have had."""
    return math.inf if call.sampling.max_tokens is None else float(call.sampling.max_tokens)


def _length(call: Call) -> float:
    return float(call.usage.completion_tokens or (0 if call.logprobs is None else len(call.logprobs)))
