"""After each argument of a debate: keep it, ask again, or hand it to the judge, by what a checkpoint reads of it.

The papers' rule hands every argument to the judge. This one hands over only those that are flagged or of doubtful
quality, so that the judge, a larger model, is paid for where it may change something.
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
    make_decision,
    without_failed,
)

POINT = "review"
EVEN = 0.5
"""P(critical) from which an argument is flagged where neither the user nor the checkpoint says another."""


@dataclass(frozen=True, slots=True)
class ReviewRules:
    """At `review` by thresholds on P(critical) and quality, everywhere else by the papers' rules."""

    rules: PaperRules = dataclasses.field(default_factory=PaperRules)
    again: float | None = None
    """P(critical) from which an argument is asked for again; by default the checkpoint's `critical_sure`, and never
    where it has none."""
    critical: float | None = None
    """P(critical) from which an argument goes to the judge; by default the checkpoint's `critical`, else 0.5."""
    keep: float | None = None
    """Quality below which it does as well; by default the checkpoint's `flag`, and none where it has none."""
    label: ClassVar[str] = "review"
    own: ClassVar[tuple[str, ...]] = (POINT,)

    def __post_init__(self) -> None:
        for name in ("again", "critical", "keep"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise RecordError(f"policy constant {name} is {value}; expected a number from 0 to 1")

    @classmethod
    def parse(cls, text: str) -> "ReviewRules":
        """Returns the rules of `again=0.8,critical=0.3,keep=0.5`, or of any part of it. Raises `RecordError`."""
        given: dict[str, float | None] = dict.fromkeys(("again", "critical", "keep"))
        for name, value in PaperRules.constants_in(text):
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if name not in given or math.isnan(number):
                raise RecordError(
                    f"policy constant '{name}={value}': expected NAME=NUMBER with NAME one of {', '.join(given)}"
                )
            given[name] = number
        return cls(again=given["again"], critical=given["critical"], keep=given["keep"])

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Point -> the signals that decide there."""
        return {**self.rules.reads, POINT: ("critical", "quality")}

    @property
    def needs(self) -> Mapping[str, tuple[str, ...]]:
        """Maps each part that cannot work without a signal (the rule itself or a constant) to the signals of which one
        is enough."""
        signals = {"again": ("critical",), "critical": ("critical",), "keep": ("quality",)}
        given = {name: of for name, of in signals.items() if getattr(self, name) is not None}
        return {
            "deciding at review": ("critical", "quality"),
            **{f"the constant {name}": of for name, of in given.items()},
        }

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        """At `review` the scores of `again` and `judge` are P(critical), 0 where it is unknown; of `keep` the rest."""
        state, legal_actions, told = without_failed(state, legal_actions)
        critical, quality = state.signals.critical, state.signals.quality
        if state.point != POINT or (critical is None and quality is None):
            decision = self.rules.decide(state, legal_actions)
            unread = "no checkpoint could read it: " if state.point == POINT else ""
            return dataclasses.replace(decision, reason=f"{unread}{decision.reason}{told}")
        p = 0.0 if critical is None else critical.value
        scores = {Action.AGAIN: p, Action.JUDGE: p, Action.KEEP: 1 - p}
        action, reason = self._wanted(critical, quality, Action.AGAIN in legal_actions)
        if action not in legal_actions:
            action, reason = legal_actions[0], f"{reason}; {action} is not legal here"
        reason += told
        return make_decision(state, action, legal_actions, {name: scores[name] for name in legal_actions}, reason)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """A fixed rule learns nothing."""

    def _wanted(self, critical: Signal | None, quality: Signal | None, may_ask: bool) -> tuple[str, str]:
        """The action, and the comparison that led to it."""
        told = []
        if critical is not None:
            again, whose = _threshold(self.again, critical, "critical_sure", 2.0)
            if may_ask and critical.value >= again:
                return Action.AGAIN, f"P(critical) {critical.value:.3f} >= {again:.3f} ({whose})"
            flag, whose = _threshold(self.critical, critical, "critical", EVEN)
            if critical.value >= flag:
                return Action.JUDGE, f"P(critical) {critical.value:.3f} >= {flag:.3f} ({whose})"
            told.append(f"P(critical) {critical.value:.3f} < {flag:.3f} ({whose})")
        if quality is not None:
            least, whose = _threshold(self.keep, quality, "flag", -1.0)
            if quality.value < least:
                return Action.JUDGE, f"quality {quality.value:.3f} < {least:.3f} ({whose})"
            if least >= 0:
                told.append(f"quality {quality.value:.3f} >= {least:.3f} ({whose})")
        return Action.KEEP, ", ".join(told) or "nothing speaks against it"


def _threshold(given: float | None, signal: Signal, name: str, otherwise: float) -> tuple[float, str]:
    """A threshold on a signal, and whose it is."""
    if given is not None:
        return given, "as given"
    if name in signal.thresholds:
        return signal.thresholds[name], f"the checkpoint's `{name}`"
    return otherwise, "by default"
