"""The papers' rules, with their constants as defaults: one policy that answers at every point a pipeline asks.

The papers' thresholds 0.5 and 0.85 are meant for numbers that a model states. Where a checkpoint gives the number, the
rule uses the checkpoint's own operating point (`OPERATING_POINTS`) and says so, unless a threshold was given.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, get_type_hints

from metaprobe.checkpoints.display import explain_fields
from metaprobe.probes.signals import Signal, Signals, combine_probabilities
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Decision
from metaprobe.routing.policy import GOOD, Action, Outcome, State

RuleResult = tuple[str, dict[str, float], str]
"""Result of a paper's rule: the action, the scores, and the reason."""
THRESHOLD_TOLERANCE = 1e-9
"""A number within this distance of a threshold counts as equal to it: 0.8 - 0.5 does not exceed 0.3. The distance is
far above the rounding of a few sums, and far below the resolution of a confidence or success rate.
"""


OPERATING_POINTS: dict[str, tuple[str, ...]] = {
    "assess": ("accept", "flag"),
    "assign": ("accept", "flag"),
    "iterate": ("iterate", "accept", "flag"),
}
"""Point -> thresholds of a checkpoint that may take the place of the paper's; the first that it has does.

`accept` and `flag` say which answers may stand by themselves (`training.export.PROMISE_SENTENCES`).
`iterate` is the value that the checkpoint's number reaches as often as the stated evaluation reached the paper's
threshold in the runs it was trained on (`training.thresholds`).
"""


@explain_fields
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PaperRules:
    """Decides by the thresholds of MetaCogAgent (section III), MetaCrit, and Monitor-Generate-Verify (Algorithm 1).

    An example:

        >>> from metaprobe.probes.signals import Signal, Signals
        >>> from metaprobe.routing.policy import State
        >>> unsure = State("q1", "assess", Signals(confidence=Signal(0.3, "stated")))
        >>> PaperRules().decide(unsure, ("execute", "ask")).action
        'ask'
    """

    theta: float = 0.5
    """The confidence from which an agent answers alone, or a task is delegated to a peer."""
    weight: float = 0.6
    """Weight of the stated confidence against the profile (the paper's lambda)."""
    conflict: float = 0.3
    """Difference between stated and profile confidence above which theta is raised (theta_delta)."""
    damping: float = 0.2
    """The share of that difference by which theta is raised (gamma)."""
    unstated: float = 0.5
    """Value for a confidence or difficulty that the model did not state, which the papers leave open. The decision's
    reason names it.
    """
    initial: float = 0.5
    """The value of a profile before any outcome."""
    rate: float = 0.1
    """How fast a profile follows outcomes (alpha)."""
    good: float = GOOD
    """Mean evaluation score from which Monitor-Generate-Verify stops."""
    cycles: int = 3
    """The largest number of cycles."""
    base_tokens: int = 400
    """The largest number of tokens of an answer at difficulty 0."""
    tokens_per_difficulty: int = 400
    """Tokens added to `base_tokens` at difficulty 1."""
    base_temperature: float = 0.3
    """Temperature of an answer at difficulty 0."""
    temperature_per_difficulty: float = 0.2
    """Added to `base_temperature` at difficulty 1."""
    given: tuple[str, ...] = ()
    """Names among `theta` and `good` that the user set, even to the paper's own value. They replace a checkpoint's
    threshold too.
    """
    label: ClassVar[str] = "paper"
    """Name of this policy on the command line."""
    thresholds: ClassVar[Mapping[str, tuple[str, str]]] = {
        "assess": ("confidence", "theta"),
        "assign": ("confidence", "theta"),
        "iterate": ("quality", "good"),
    }
    """Maps a point to the signal that is compared with a threshold there, and to the name of the paper's constant."""
    constants: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "assess": ("theta", "weight", "conflict", "damping", "unstated", "initial", "rate"),
        "assign": ("theta", "weight", "unstated", "initial", "rate"),
        "regulate": (),
        "budget": (
            "unstated",
            "base_tokens",
            "tokens_per_difficulty",
            "base_temperature",
            "temperature_per_difficulty",
        ),
        "iterate": ("good", "cycles"),
        "select": (),
        "review": (),
    }
    """Maps a point to the constants that matter there. `initial` and `rate` belong to the profiles that are read there.
    """
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "assess": ("confidence", "profile"),
        "assign": ("confidence", "profile"),
        "regulate": (),
        "budget": ("difficulty",),
        "iterate": ("quality",),
        "select": ("quality",),
        "review": ("quality",),
    }
    """Maps a point to the signals that decide there."""

    def __post_init__(self) -> None:
        for field in FRACTIONS:
            if not 0 <= getattr(self, field) <= 1:
                raise RecordError(f"policy constant {field} is {getattr(self, field)}; expected a number from 0 to 1")
        for field in ("base_tokens", "cycles"):
            if getattr(self, field) < 1:
                raise RecordError(f"policy constant {field} is {getattr(self, field)}; expected at least 1")
        for field in ("tokens_per_difficulty", "base_temperature", "temperature_per_difficulty"):
            if not 0 <= getattr(self, field) < math.inf:
                raise RecordError(f"policy constant {field} is {getattr(self, field)}; expected a number of at least 0")

    def __repr__(self) -> str:
        """Text for the ids of runs. Without `given` if it is empty, so that earlier ids stay."""
        constants = [f"{name}={getattr(self, name)!r}" for name in DEFAULTS]
        return f"PaperRules({', '.join(constants)}{f', given={self.given!r}' if self.given else ''})"

    @property
    def changed(self) -> tuple[str, ...]:
        """Returns the names of the constants that were given: those with other values than the paper's, and `given`."""
        return tuple(n for n, value in DEFAULTS.items() if n in self.given or getattr(self, n) != value)

    @staticmethod
    def constants_in(text: str) -> list[tuple[str, str]]:
        """Returns the (name, value) pairs of a text such as `theta=0.4,cycles=2`. Raises `RecordError` for a repeated
        name."""
        parts = [part.partition("=") for part in filter(None, text.split(","))]
        found = [(name.strip(), value.strip()) for name, _, value in parts]
        names = [name for name, _ in found]
        if twice := next((name for name in names if names.count(name) > 1), None):
            values = " and ".join(value for name, value in found if name == twice)
            raise RecordError(f"policy constant {twice} is given twice, {values}: give one value")
        return found

    @classmethod
    def parse(cls, text: str) -> "PaperRules":
        """Returns the rules that a text such as `theta=0.4,cycles=2` names; the empty text gives the papers'."""
        kinds = {name: kind for name, kind in get_type_hints(cls).items() if name in DEFAULTS}
        values_given: dict[str, float | int] = {}
        for name, value in cls.constants_in(text):
            try:
                values_given[name] = kinds[name](value)
            except (KeyError, ValueError) as error:
                raise RecordError(
                    f"policy constant '{name}={value}': expected NAME=NUMBER with NAME one of " + ", ".join(DEFAULTS)
                ) from error
        set_at_default = tuple(
            sorted(n for n, value in values_given.items() if n in ("theta", "good") and value == DEFAULTS[n])
        )
        return cls(**values_given, given=set_at_default)  # type: ignore[arg-type]

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        """Returns the decision of the point's rule, among the agents that have not failed.

        Raises `RecordError` for a point without a rule in the papers, and if no agent and no answer is left.
        """
        state, legal_actions, failed_clause = state.without_failed(legal_actions)
        rules: dict[str, Callable[[State, Sequence[str]], RuleResult]] = {
            "assess": self._assess,
            "assign": self._assign,
            "regulate": self._regulate,
            "budget": self._budget,
            "iterate": self._iterate,
            "select": self._select,
            "review": self._review,
        }
        if state.point not in rules:
            raise RecordError(f"the papers' rules know no point {state.point!r}; they know {', '.join(rules)}")
        if not legal_actions:
            raise RecordError(f"decision {state.decision_id} at {state.point} has no legal action")
        chosen_action, scores, reason = rules[state.point](state, legal_actions)
        action = chosen_action if chosen_action in legal_actions else legal_actions[0]
        return state.make_decision(action, legal_actions, scores, reason + failed_clause)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Ignores the outcome, because a fixed rule learns nothing. (Profiles of agents learn.)"""

    def confidence(self, signals: Signals) -> tuple[float, float, str]:
        """Returns c = weight c_v + (1 - weight) c_p, |c_v - c_p|, and the values used (MetaCogAgent, equation 2)."""
        stated, note = self._value_and_words(signals, "confidence")
        past = signals.value("profile")
        if past is None:
            return stated, 0.0, f"{note}, no profile"
        return self.weight * stated + (1 - self.weight) * past, abs(stated - past), f"{note}, profile {past:.2f}"

    def _assess(self, state: State, legal_actions: Sequence[str]) -> RuleResult:
        c, delta, note = self.confidence(state.signals)
        raised = delta > self.conflict + THRESHOLD_TOLERANCE
        theta, whose = self.theta_of(state.signals, "assess")
        threshold = theta + self.damping * delta * raised
        sure = c >= threshold - THRESHOLD_TOLERANCE
        reason = f"c {c:.3f} ({note}) {'>=' if sure else '<'} {threshold:.3f}{whose}"
        reason += f", raised as |c_v - c_p| is {delta:.2f}" if raised else ""
        return Action.EXECUTE if sure else Action.ASK, {Action.EXECUTE: c, Action.ASK: threshold}, reason

    def _assign(self, state: State, legal_actions: Sequence[str]) -> RuleResult:
        scores = {agent: self.confidence(signals)[0] for agent, signals in state.others.items()}
        best = max(scores, key=lambda agent: scores[agent], default="")
        theta, whose = self.theta_of(state.others.get(best, Signals()), "assign")
        sure = bool(best) and scores[best] >= theta - THRESHOLD_TOLERANCE
        action = best if sure or Action.COLLABORATE not in legal_actions else Action.COLLABORATE
        shown = f"{theta:.3f}{whose}" if whose else f"{theta}"
        reason = f"best other agent {best or '(none)'} {scores.get(best, 0):.3f} {'>=' if sure else '<'} {shown}"
        if silent := [agent for agent, signals in state.others.items() if signals.confidence is None]:
            reason += f"; {self.unstated} for {', '.join(silent)} (nothing stated)"
        if Action.COLLABORATE in legal_actions:
            scores[Action.COLLABORATE] = theta
        return action, scores, reason

    def _regulate(self, state: State, legal_actions: Sequence[str]) -> RuleResult:
        ranked = [
            action for action in (Action.MONITOR_CONTROL, Action.MONITOR, Action.SYNTHESISE) if action in legal_actions
        ]
        if not ranked:
            raise RecordError(f"decision {state.decision_id} at regulate has no legal action of the paper's")
        scores = {action: float(len(ranked) - rank) for rank, action in enumerate(ranked)}
        return ranked[0], scores, "the paper hears them all"

    def _budget(self, state: State, legal_actions: Sequence[str]) -> RuleResult:
        d, note = self._value_and_words(state.signals, "difficulty")
        setting = {
            "max_tokens": float(round(self.base_tokens + self.tokens_per_difficulty * d)),
            "temperature": self.base_temperature + self.temperature_per_difficulty * d,
        }
        return Action.GENERATE, setting, f"difficulty {note}"

    def _iterate(self, state: State, legal_actions: Sequence[str]) -> RuleResult:
        score = state.signals.value("quality")
        threshold, whose = self.threshold_of(state.signals.quality, "iterate", "good")
        good = score is not None and score >= threshold - THRESHOLD_TOLERANCE
        stop = good or state.round >= self.cycles
        shown = "nothing" if score is None else f"{score:.3f}"
        limit = f"{threshold:.3f}{whose}" if whose else f"{threshold}"
        reason = f"evaluated at {shown} {'>=' if good else '<'} {limit} after {state.round} of {self.cycles} cycles"
        return (
            Action.STOP if stop else Action.AGAIN,
            {Action.STOP: -1.0 if score is None else score, Action.AGAIN: threshold},
            reason,
        )

    def _select(self, state: State, legal_actions: Sequence[str]) -> RuleResult:
        qualities = {name: signals.value("quality") for name, signals in state.candidates.items()}
        scores = {name: -1.0 if value is None else value for name, value in qualities.items()}
        best = max(scores, key=lambda name: scores[name])  # the first of equals, as argmax has it
        return best, scores, f"best evaluated of {len(scores)}" + ("; none was evaluated" if scores[best] < 0 else "")

    def _review(self, state: State, legal_actions: Sequence[str]) -> RuleResult:
        quality = state.signals.quality
        action = Action.KEEP if quality is not None or Action.JUDGE not in legal_actions else Action.JUDGE
        reason = "the paper's meta-evaluator judges every argument"
        if action == Action.KEEP:
            reason = "a checkpoint judges in the judge's place" if quality else "this variant has no judge"
        return action, {legal: float(legal == action) for legal in legal_actions}, reason

    def theta_of(self, signals: Signals, point: str) -> tuple[float, str]:
        """Returns the threshold for c at `assess` or `assign`, and whose it is: a clause, empty for the paper's theta.

        A checkpoint's operating point is a threshold for its own number. Because c mixes that number with the profile,
        the threshold mixes the operating point with theta, which remains the profile's threshold, in the same way.
        """
        theta, whose = self.threshold_of(signals.confidence, point, "theta")
        if signals.profile is None or theta == self.theta:
            return theta, whose
        return self.weight * theta + (1 - self.weight) * self.theta, f"{whose}, mixed with {self.theta} as c is"

    def threshold_of(self, signal: Signal | None, point: str, constant: str) -> tuple[float, str]:
        """Returns the threshold for a number at a point, and whose it is: a clause, empty for a stated number.

        A constant that was given takes precedence over the checkpoint's operating point, and that over the paper's
        constant. Where the stated number and the checkpoint's are joined, their thresholds are joined as well.
        """
        papers: float = getattr(self, constant)
        if signal is None or signal.source == "stated":
            return papers, ""
        if constant in self.changed:
            return papers, f" ({constant}, as given)"
        threshold_name = next((name for name in OPERATING_POINTS[point] if name in signal.thresholds), None)
        if threshold_name is None:
            return papers, " (the paper's: the checkpoint has no operating point of its own)"
        threshold = signal.thresholds[threshold_name]
        if signal.is_joined:
            return combine_probabilities(
                papers, threshold
            ), f" (the paper's {papers} and the checkpoint's `{threshold_name}`, joined)"
        return threshold, f" (the checkpoint's `{threshold_name}`)"

    def _value_and_words(self, signals: Signals, name: str) -> tuple[float, str]:
        signal = getattr(signals, name)
        if signal is None:
            return self.unstated, f"{self.unstated} (nothing stated)"
        return signal.value, f"{signal.value:.2f} ({'stated' if signal.source == 'stated' else 'read'})"


FRACTIONS = ("theta", "weight", "conflict", "damping", "unstated", "initial", "rate", "good")
DEFAULTS: dict[str, float] = {
    field.name: getattr(PaperRules(), field.name) for field in dataclasses.fields(PaperRules) if field.name != "given"
}
"""Maps a constant to the paper's value."""
