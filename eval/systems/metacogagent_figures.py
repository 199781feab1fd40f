"""Figures of the MetaCogAgent paper (Tables II and III, sections V-F and V-G), from runs of any of its variants.

An item is *asked about* if the agent that got it did not answer alone. It was then *delegated* to one other agent, or
all agents *collaborated*. By the paper's remark on cross-domain tasks, its 218 delegated tasks are those asked about.

The paper defines delegation precision by "routed to an agent that produces the correct answer". It is computed here
over the items that one other agent got, because no count out of 218 gives the paper's 0.841. It needs only that agent's
answer. Whether a delegation *improved* on the first agent needs the first agent's own answer as well. Only the variant
`every-agent` has it for every item.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, mean_interval
from metaprobe.eval.metrics.calibration import brier_skill, debiased_ece, ece, ece_equal_width
from metaprobe.eval.systems.dispatch import DispatchedRun
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Run
from metaprobe.routing.policy import Action

ANSWER = "answer"
"""Stage of an agent's answer."""
STATED_KIND, READ_LABEL = "confidence", "signal:confidence"
"""Kind of a stated confidence, and name of the label that holds a confidence read in its place."""
ASKING = ("assess", "read", ANSWER)
"""Stages of an agent's calls."""

RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class StatedCalibrationTable:
    """How well a confidence fits the share of right answers."""

    ece: Interval
    """Calibration error over 15 bins of equal mass."""
    ece_equal_width: Interval
    """Calibration error over 10 bins of equal width, as for the paper's 0.087."""
    ece_debiased: Interval
    """Calibration error over 15 bins of equal mass, with the bias from few answers a bin subtracted."""
    brier_skill: Interval
    """Brier skill score; nan if all answers are right, or all wrong."""
    n: int
    """Number of answers of executing agents whose confidence is known."""


@dataclass(frozen=True, slots=True)
class MetaCogAgentResult:
    """The numbers of one variant. A number is None if there is nothing to compute it from."""

    items: int
    accuracy: Interval | None
    """Accuracy of final answers, over the items that can be checked."""
    asked: Interval
    """Share of items that the first agent did not answer alone: the paper's delegation rate."""
    delegated: Interval
    """Share of items that one other agent got."""
    collaborated: Interval
    """Share of items on which all voted, after an agent asked."""
    precision: Interval | None
    """Share of delegated items that the other agent answers correctly."""
    improved: Interval | None
    """Share of delegated items that the other agent has right and the first has wrong."""
    worsened: Interval | None
    """Share of delegated items that the other agent has wrong and the first has right."""
    flow: dict[tuple[str, str], int]
    """Maps (from, to) to the number of delegated items."""
    calibration: StatedCalibrationTable | None
    """Calibration of c, equation 2."""
    calibration_stated: StatedCalibrationTable | None
    """Calibration of c_v: the stated confidence, or the number read in its place."""
    calls: dict[str, int]
    """Maps a stage to its number of calls: `classify`, `assess`, `read`, `answer`."""
    by_level: dict[str, "MetaCogAgentResult"] = field(default_factory=dict)
    by_dimension: dict[str, "MetaCogAgentResult"] = field(default_factory=dict)
    """By the item's own dimension, whatever the classifier said."""


def measure_metacogagent(runs: Iterable[Run], *, resamples: int = RESAMPLES, seed: int = 0) -> MetaCogAgentResult:
    """Returns the numbers of runs of one variant, over all and by level and dimension; intervals by a bootstrap over
    groups.

    Raises `RecordError` if there is no run.

    Args:
        runs: the runs.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    run_list = list(runs)

    def result_of_name(names: Sequence[str]) -> dict[str, MetaCogAgentResult]:
        return {
            name: _evaluate(
                [run for run, name_of_run in zip(run_list, names, strict=True) if name_of_run == name], resamples, seed
            )
            for name in dict.fromkeys(names)
        }

    whole = _evaluate(run_list, resamples, seed)
    levels, dimensions = (
        result_of_name([run.item.level for run in run_list]),
        result_of_name([run.item.dimension for run in run_list]),
    )
    return dataclasses.replace(whole, by_level=levels, by_dimension=dimensions)


def metacogagent_outcomes(runs: Iterable[Run], *, by_classifier: bool = False) -> Iterator[dict[str, Any]]:
    """Yields a line of OUTCOMES.jsonl for each run, with every agent that answered: its answer, confidence and cost.

    With `by_classifier` the lines have the dimension that the classifier gave, because only that is known about a new
    question. Otherwise they have the item's own dimension. Cost and latency are those of the agent's assessment and
    answer together.
    """
    for run in runs:
        fields_of_agent = {}
        for agent in dict.fromkeys(call.agent for call in run.calls if call.stage == ANSWER):
            calls = [call for call in run.calls if call.agent == agent and call.stage in ASKING]
            correct = DispatchedRun(run).correctness(agent)
            answer_text = [call for call in calls if call.stage == ANSWER][-1].text.strip()
            fields_of_agent[agent] = {
                **(
                    {"answer": answer_text} if answer_text else {}
                ),  # a store without texts does not mean that the call failed
                "correct": None if correct is None else int(correct),
                "confidence": _confidence(run, agent),
                "cost_usd": _total([call.cost_usd for call in calls]),
                "latency_ms": _total([call.latency_ms for call in calls]),
            }
        yield {
            "id": run.item.id,
            "group": _group(run),
            "question": run.item.question,
            "dimension": (DispatchedRun(run).dimension or "") if by_classifier else run.item.dimension,
            "agents": fields_of_agent,
        }


def _evaluate(runs: list[Run], resamples: int, seed: int) -> MetaCogAgentResult:
    if not runs:
        raise RecordError("no run to evaluate: give the runs of one variant of metacogagent")
    # The agent that got each item first, the agent it was delegated to, and whether the first agent asked.
    first_agents = [DispatchedRun(run).first for run in runs]
    delegates = [delegate(run) for run in runs]
    is_asked = [
        any(d.point == "assign" for d in run.decisions) or delegate_agent is not None
        for run, delegate_agent in zip(runs, delegates, strict=True)
    ]
    delegations = [
        (run, first_agent or "", delegate_agent)
        for run, first_agent, delegate_agent in zip(runs, first_agents, delegates, strict=True)
        if delegate_agent is not None
    ]
    first_correctness = {run.id: DispatchedRun(run).correctness(first_agent) for run, first_agent, _ in delegations}
    delegate_correctness = {
        run.id: DispatchedRun(run).correctness(delegate_agent) for run, _, delegate_agent in delegations
    }
    delegated_runs = [run for run, _, _ in delegations]

    def mean(values: Iterable[float | None], over: list[Run]) -> Interval | None:
        with_value = ((value, _group(run)) for value, run in zip(values, over, strict=True) if value is not None)
        return Interval.of_mean(with_value, resamples=resamples, seed=seed)

    def share_changed_by(gain: float) -> Interval | None:
        both = [
            run
            for run in delegated_runs
            if first_correctness[run.id] is not None and delegate_correctness[run.id] is not None
        ]
        return mean([float(delegate_correctness[r.id] - first_correctness[r.id] == gain) for r in both], both)  # type: ignore[operator]

    # Shares of all items, and the calibration of two confidences.
    item_weights = cluster_weights([_group(run) for run in runs], resamples, seed)

    def share_of_items(flags: Iterable[bool]) -> Interval:
        return mean_interval(list(flags), item_weights)

    def calibration(column: int) -> StatedCalibrationTable | None:
        if not judged_answers:
            return None
        confidence, correct = [row[column] for row in judged_answers], [row[2] for row in judged_answers]
        weights = cluster_weights([group for *_, group in judged_answers], resamples, seed)
        return StatedCalibrationTable(
            ece=interval(ece, correct, confidence, weights),
            ece_equal_width=interval(ece_equal_width, correct, confidence, weights),
            ece_debiased=debiased_ece(correct, confidence, weights),
            brier_skill=interval(brier_skill, correct, confidence, weights),
            n=len(correct),
        )

    judged_answers = [
        (c, stated, is_right, _group(run))
        for run in runs
        for agent in DispatchedRun(run).executing
        if (stated := _confidence(run, agent)) is not None
        and (is_right := DispatchedRun(run).correctness(agent)) is not None
        and (c := competence(run, agent)) is not None
    ]
    return MetaCogAgentResult(
        items=len(runs),
        accuracy=mean([run.outcome for run in runs], runs),
        asked=share_of_items(is_asked),
        delegated=share_of_items(delegate_agent is not None for delegate_agent in delegates),
        collaborated=share_of_items(
            was_asked and delegate_agent is None for was_asked, delegate_agent in zip(is_asked, delegates, strict=True)
        ),
        precision=mean([delegate_correctness[run.id] for run in delegated_runs], delegated_runs),
        improved=share_changed_by(1.0),
        worsened=share_changed_by(-1.0),
        flow=dict(Counter((first_agent, delegate_agent) for _, first_agent, delegate_agent in delegations)),
        calibration=calibration(0),
        calibration_stated=calibration(1),
        calls=dict(Counter(call.stage for run in runs for call in run.calls)),
    )


def delegate(run: Run) -> str | None:
    """Returns the one other agent that got the item; None if there is none."""
    agents = DispatchedRun(run).executing
    return agents[0] if len(agents) == 1 and DispatchedRun(run).first not in (None, agents[0]) else None


def _confidence(run: Run, agent: str) -> float | None:
    """Returns c_v: the number that was read in place of the statement, else the stated one."""
    calls = [call.id for call in run.calls if call.agent == agent and call.stage in ASKING]
    values = [value for call in calls if (value := run.label(READ_LABEL, call)) is not None]
    values += [value for call in calls if (value := run.stated(STATED_KIND, call)) is not None]
    return values[0] if values else None


def competence(run: Run, agent: str) -> float | None:
    """Returns the score that the policy gave the agent: c of equation 2 under the paper's rules."""
    point, action = ("assess", Action.EXECUTE) if agent == DispatchedRun(run).first else ("assign", agent)
    return next((d.scores[action] for d in run.decisions if d.point == point and action in d.scores), None)


def _total(values: list[float | None]) -> float | None:
    summands = [value for value in values if value is not None]
    return sum(summands) if summands else None


def _group(run: Run) -> str:
    return run.item.group or run.item.id
