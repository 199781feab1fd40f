"""Decisions of a policy in recorded runs: how often it chose each action, and rules that always choose the same."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from metaprobe.records.types import Decision, Run
from metaprobe.routing.policy import Action

MIN_FREE_DECISIONS = 20
"""Fewest free decisions for the remark that all chose the same action. With fewer, it may be chance."""
COMPARED_ACTIONS = {"iterate": (Action.STOP, Action.AGAIN), "assess": (Action.EXECUTE, Action.ASK)}
"""Maps a point to two actions. The score of the first action is a number that is compared with a threshold, and the
score of the second action is that threshold. The papers' rules and the learned rules write their scores in this way.
"""
ROUNDING_ERROR = 1e-9
"""How far a number may be below its threshold and still count as reaching it."""


@dataclass(frozen=True, slots=True)
class PointDecisions:
    """Figures of the decisions that were made at one point of a system."""

    actions: dict[str, int]
    """Maps an action to its number of decisions, if more than one action was legal."""
    forced: int
    """Number of decisions that the rule's comparison did not make: it was the last cycle, or everything was tried."""
    one_way: str
    """A sentence that all free decisions chose the same action, and why. Empty if they did not, or if there are fewer
    than `MIN_FREE_DECISIONS`.
    """


def decision_points(runs: Iterable[Run]) -> dict[str, PointDecisions]:
    """Returns the figures of each point at which more than one action was legal in these runs."""
    by_point: dict[str, list[Decision]] = {}
    for run in runs:
        for decision in run.decisions:
            if len(decision.propensities) > 1:
                by_point.setdefault(decision.point, []).append(decision)
    summaries = {}
    for point, decisions in by_point.items():
        unforced = [decision for decision in decisions if not _is_forced(decision)]
        one_way = ""
        if len({decision.action for decision in unforced}) == 1 and len(unforced) >= MIN_FREE_DECISIONS:
            count, reason = len(unforced), _why(point, unforced)
            one_way = f"{point}: {unforced[0].action} in {count} of {count} decisions: {reason}"
        actions = dict(Counter(decision.action for decision in decisions))
        summaries[point] = PointDecisions(actions, len(decisions) - len(unforced), one_way)
    return summaries


def _is_forced(decision: Decision) -> bool:
    """Whether the action is not the one that the decision's own numbers call for."""
    number_and_threshold = _number_and_threshold(decision)
    if number_and_threshold is None:
        return False
    number, threshold = number_and_threshold
    action_if_reached, action_if_not = COMPARED_ACTIONS[decision.point]
    return decision.action != (action_if_reached if number >= threshold - ROUNDING_ERROR else action_if_not)


def _number_and_threshold(decision: Decision) -> tuple[float, float] | None:
    """Returns the number and the threshold that the decision compared; None if it wrote none."""
    action_if_reached, action_if_not = COMPARED_ACTIONS.get(decision.point, ("", ""))
    if action_if_reached not in decision.scores or action_if_not not in decision.scores:
        return None
    return decision.scores[action_if_reached], decision.scores[action_if_not]


def _why(point: str, decisions: list[Decision]) -> str:
    """Returns why all decisions are on one side of a threshold; the last reason if there is no threshold."""
    pairs = [pair for decision in decisions if (pair := _number_and_threshold(decision)) is not None]
    if len(pairs) < len(decisions):
        return decisions[-1].reason
    numbers, thresholds = [number for number, _ in pairs], sorted({f"{threshold:.3g}" for _, threshold in pairs})
    threshold_text = (
        f"the threshold {thresholds[0]}" if len(thresholds) == 1 else f"the thresholds {', '.join(thresholds[:3])}"
    )
    if decisions[0].action == COMPARED_ACTIONS[point][0]:
        return f"{threshold_text} is always reached (smallest value {min(numbers):.3g})"
    if max(numbers) < 0:
        return f"nothing was evaluated, so that {threshold_text} is never reached"
    return f"{threshold_text} is never reached (largest value {max(numbers):.3g})"
