"""Decides after each argument of a debate: keep it, ask again, or pass it to the judge, by a checkpoint's reading.

The papers' rule passes every argument to the judge. This one passes on only arguments that are flagged or of doubtful
quality, so that the judge, a larger model, is paid only if it may change something.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from metaprobe.api import (
    Action,
    Decision,
    Outcome,
    PaperRules,
    RecordError,
    Signal,
    State,
)

REVIEW_POINT = "review"
DEFAULT_CRITICAL = 0.5
"""Least P(critical) of a flagged argument, if neither the user nor the checkpoint sets another."""


@dataclass(frozen=True, slots=True)
class ReviewRules:
    """Decides at `review` by thresholds on P(critical) and quality, and everywhere else by the papers' rules."""

    rules: PaperRules = dataclasses.field(default_factory=PaperRules)
    again: float | None = None
    """Least P(critical) at which an argument is asked for again. By default the checkpoint's `critical_sure`; if it has
    none, never.
    """
    critical: float | None = None
    """Least P(critical) at which an argument goes to the judge; by default the checkpoint's `critical`, else 0.5."""
    keep: float | None = None
    """An argument of lower quality also goes to the judge; by default the checkpoint's `flag`; none if it has none."""
    label: ClassVar[str] = "review"
    own: ClassVar[tuple[str, ...]] = (REVIEW_POINT,)

    def __post_init__(self) -> None:
        for name in ("again", "critical", "keep"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise RecordError(f"policy constant {name} is {value}; expected a number from 0 to 1")

    @classmethod
    def parse(cls, text: str) -> "ReviewRules":
        """Returns the rules of `again=0.8,critical=0.3,keep=0.5`, or of any part of it. Raises `RecordError`."""
        values: dict[str, float | None] = dict.fromkeys(("again", "critical", "keep"))
        for name, value in PaperRules.constants_in(text):
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if name not in values or math.isnan(number):
                raise RecordError(
                    f"policy constant '{name}={value}': expected NAME=NUMBER with NAME one of {', '.join(values)}"
                )
            values[name] = number
        return cls(again=values["again"], critical=values["critical"], keep=values["keep"])

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Maps a point to the signals that decide there."""
        return {**self.rules.reads, REVIEW_POINT: ("critical", "quality")}

    @property
    def needs(self) -> Mapping[str, tuple[str, ...]]:
        """Maps each part that cannot work without a signal (the rule itself or a constant) to the signals of which one
        is enough.
        """
        signals = {"again": ("critical",), "critical": ("critical",), "keep": ("quality",)}
        needed = {name: signal_names for name, signal_names in signals.items() if getattr(self, name) is not None}
        return {
            "deciding at review": ("critical", "quality"),
            **{f"the constant {name}": signal_names for name, signal_names in needed.items()},
        }

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        """Decides. At `review` the scores of `again` and `judge` are P(critical), 0 if it is unknown; that of `keep` is
        the rest.
        """
        state, legal_actions, note = state.without_failed(legal_actions)
        critical, quality = state.signals.critical, state.signals.quality
        if state.point != REVIEW_POINT or (critical is None and quality is None):
            decision = self.rules.decide(state, legal_actions)
            unread = "no checkpoint could read it: " if state.point == REVIEW_POINT else ""
            return dataclasses.replace(decision, reason=f"{unread}{decision.reason}{note}")
        p = 0.0 if critical is None else critical.value
        scores = {Action.AGAIN: p, Action.JUDGE: p, Action.KEEP: 1 - p}
        action, reason = self._choose_action(critical, quality, Action.AGAIN in legal_actions)
        if action not in legal_actions:
            action, reason = legal_actions[0], f"{reason}; {action} is not legal here"
        reason += note
        return state.make_decision(action, legal_actions, {name: scores[name] for name in legal_actions}, reason)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Learns nothing: the rule is fixed."""

    def _choose_action(self, critical: Signal | None, quality: Signal | None, may_ask: bool) -> tuple[str, str]:
        """Returns the action, and the comparison that led to it.

        Args:
            critical: P(critical), if known.
            quality: the quality, if known.
            may_ask: whether the argument can be asked for again.
        """
        comparisons = []
        if critical is not None:
            again_from, source = _threshold(self.again, critical, "critical_sure", 2.0)
            if may_ask and critical.value >= again_from:
                return Action.AGAIN, f"P(critical) {critical.value:.3f} >= {again_from:.3f} ({source})"
            critical_from, source = _threshold(self.critical, critical, "critical", DEFAULT_CRITICAL)
            if critical.value >= critical_from:
                return Action.JUDGE, f"P(critical) {critical.value:.3f} >= {critical_from:.3f} ({source})"
            comparisons.append(f"P(critical) {critical.value:.3f} < {critical_from:.3f} ({source})")
        if quality is not None:
            min_quality, source = _threshold(self.keep, quality, "flag", -1.0)
            if quality.value < min_quality:
                return Action.JUDGE, f"quality {quality.value:.3f} < {min_quality:.3f} ({source})"
            if min_quality >= 0:
                comparisons.append(f"quality {quality.value:.3f} >= {min_quality:.3f} ({source})")
        return Action.KEEP, ", ".join(comparisons) or "nothing speaks against it"


def _threshold(user_threshold: float | None, signal: Signal, name: str, default: float) -> tuple[float, str]:
    """Returns a threshold on a signal, and its source.

    Args:
        user_threshold: the user's threshold.
        signal: the signal.
        name: name of the checkpoint's threshold.
        default: the default.
    """
    if user_threshold is not None:
        return user_threshold, "as given"
    if name in signal.thresholds:
        return signal.thresholds[name], f"the checkpoint's `{name}`"
    return default, "by default"
