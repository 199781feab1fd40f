"""Learned stages: whether another cycle pays, which answer to return, which critics to hear, how long an answer gets.

Stands in for the papers' rules in Monitor-Generate-Verify (points `budget`, `iterate`, `select`), Self-Refine
(`iterate`), Self-Verification (`select`) and MetaCrit (`regulate`). Each point has its own heads, logistic regressions
in one graph (`research.stages.train`), and a head that did not win on held-out groups is not used: there, and where a
head lacks what it was trained on, the paper's rule decides and the reason says why.

| point | heads | decision |
|---|---|---|
| iterate | P(the next cycle fixes the answer), P(it breaks it) | again where fixes - breaks exceeds a cycle's price |
| select | P(right) of each answer | the likeliest, the first of equals |
| regulate | P(right) after each choice of critics | argmax of P(right) - price of what is then generated |
| budget | tokens that a finished answer stays within | max_tokens; the temperature is the rule's |

The look-ahead is one cycle: a cycle that pays only together with the one after it is not seen.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, ContractMismatch, load_checkpoint
from metaprobe.probes.signals import Signals
from metaprobe.records.types import Decision
from metaprobe.routing.actions import AGAIN, MONITOR, MONITOR_CONTROL, STOP, SYNTHESISE
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.policy import Outcome, State, make_decision
from research.stages.state import COLUMNS, READS, answer_rows

KIND = "stages"
INPUT = "answers"
FIXES, BREAKS, RIGHT, LENGTH = "fixes", "breaks", "right", "length"
ACTIONS = (SYNTHESISE, MONITOR, MONITOR_CONTROL)
MOST_TOKENS = 2048
"""Longest answer that the budget can be: the head gives a share of it."""
LEAST_TOKENS = 32
TOKEN_PRICE = "token_price"
"""Threshold: share of right answers that 1,000 generated tokens must bring."""
ALWAYS = 0.95
"""Share of the training rows with a column from which a missing one is no part of what was trained on."""
MARGIN = 0.1
"""How far outside a column's range in training a value may lie, as a share of that range."""


def after(action: str) -> str:
    """The graph's output for P(right) after these critics."""
    return f"right after {action}"


OUTPUTS = {
    "iterate": (FIXES, BREAKS),
    "select": (RIGHT,),
    "regulate": tuple(after(action) for action in ACTIONS),
    "budget": (LENGTH,),
}
SYSTEM_POINTS = {
    "monitor-generate-verify": ("iterate", "select", "budget"),
    "metacrit": ("regulate",),
    "self-refine": ("iterate",),
    "self-verification": ("select",),
}
"""A checkpoint is of one system: its name in the contract -> the points that its heads decide."""
PRICED = {"iterate": (AGAIN,), "regulate": ACTIONS}
"""Point -> the actions that have something generated; the contract holds how many tokens on average."""
BEYOND = "beyond_rule"
"""In the contract: whether any run went on where the paper's rule stops. Where none did, what would come after is not
known, and the rule stops there."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A column on the training rows of one point."""

    low: float
    high: float
    known: float
    """Share of the rows that had it."""


@dataclass(frozen=True, slots=True)
class StageHead:
    """What a checkpoint says of one point."""

    used: bool
    why: str
    """Why it is used, or why not: a clause."""
    seen: Mapping[str, Seen]

    def unsupported(self, row: NDArray[np.float32]) -> str:
        """What this row lacks or has that the training rows did not, as a clause; empty where it is like them."""
        for name, seen in self.seen.items():
            value = float(row[COLUMNS.index(name)])
            if math.isnan(value):
                if seen.known >= ALWAYS:
                    return f"{name} is not known, and was in training"
            elif seen.known > 0:  # a column that no training row had has no weight
                margin = MARGIN * (seen.high - seen.low) + 1e-6
                if not seen.low - margin <= value <= seen.high + margin:
                    return f"{name} is {value:.3g}; in training {seen.low:.3g} to {seen.high:.3g}"
        return ""


class StagePolicy:
    """The learned heads where they are of use, the paper's rules elsewhere. May be shared by threads."""

    def __init__(
        self, checkpoint: Checkpoint, rules: PaperRules | None = None, *, token_price: float | None = None
    ) -> None:
        """`token_price`: see `TOKEN_PRICE`; by default the one the checkpoint was trained for.

        Raises `ContractMismatch` for a checkpoint of another kind, with other columns, or not whole.
        """
        manifest = checkpoint.manifest
        if manifest.kind != KIND or tuple(manifest.contract.get("columns", ())) != COLUMNS:
            raise ContractMismatch(
                f"{checkpoint.path}: expected kind {KIND!r} with the columns {list(COLUMNS)}, got {manifest.kind!r} "
                f"with {manifest.contract.get('columns')}; train it with `python -m research.stages.command`"
            )
        self.checkpoint, self.rules = checkpoint, rules or PaperRules()
        try:
            self.system = str(manifest.contract["system"])
            self.heads = {point: _head(manifest.contract, manifest.support, point) for point in _points(self.system)}
            self.tokens = {name: float(n) for name, n in manifest.contract["tokens"].items()}
            self.beyond = "iterate" not in self.heads or manifest.contract[BEYOND] is True
            price = manifest.thresholds[TOKEN_PRICE] if token_price is None else token_price
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ContractMismatch(f"{checkpoint.path} is no whole stage policy ({error!r}); train it again") from error
        given = {spec.name for spec in manifest.outputs}
        needed = {name for point in self.heads for name in OUTPUTS[point]}
        steps = {action for point in self.heads for action in PRICED.get(point, ())}
        if missing := sorted((needed - given) | (steps - self.tokens.keys())):
            raise ContractMismatch(f"{checkpoint.path} lacks {', '.join(missing)}; train it again")
        self.label = f"learned (stages of {self.system})"
        self.own = tuple(self.heads)
        if not 0 <= price < math.inf:
            raise ContractMismatch(f"token_price is {price}; expected a number of at least 0")
        self.token_price = price

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        rules: PaperRules | None = None,
        token_price: float | None = None,
        sha256: str | None = None,
    ) -> "StagePolicy":
        """The policy in a checkpoint folder, verified. `sha256`: the digest its author gave you."""
        return cls(load_checkpoint(path, sha256=sha256), rules, token_price=token_price)

    def __repr__(self) -> str:
        return f"StagePolicy({self.checkpoint.digest[:16]}, token_price={self.token_price:g}, {self.rules})"

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Point -> the signals that decide there: of a head in use those that its training rows had."""
        signals = {field.name for field in dataclasses.fields(Signals)}
        heads = {
            point: tuple(name for name in READS[point] if name in signals and head.seen[name].known > 0)
            for point, head in self.heads.items()
            if head.used
        }
        # The rule's temperature goes by its own signals, and so do its decisions, where an input is unlike training.
        return {
            point: tuple(dict.fromkeys((*heads.get(point, ()), *names))) for point, names in self.rules.reads.items()
        }

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        """A learned decision, or the paper's with the reason why it is."""
        head = self.heads.get(state.point)
        if head is None:
            return self._by_rule(state, legal_actions, f"no head for {state.point} was trained")
        if not head.used:
            return self._by_rule(state, legal_actions, head.why)
        rows = answer_rows(state)
        if state.point == "iterate":
            rows = rows[-1:]
            if state.round >= self.rules.cycles:
                return self._by_rule(state, legal_actions, f"{self.rules.cycles} cycles are the most")
            if not self.beyond and self.rules.decide(state, legal_actions).action == STOP:
                return self._by_rule(state, legal_actions, "no run in training went on where it stops")
        if why := next(filter(None, map(head.unsupported, rows)), ""):
            return self._by_rule(state, legal_actions, why)
        outputs = self.checkpoint.run({INPUT: rows})
        given = {name: [float(value) for value in outputs[name].ravel()] for name in OUTPUTS[state.point]}
        decide: dict[str, Callable[[State, Sequence[str], dict[str, list[float]]], Decision]] = {
            "iterate": self._iterate,
            "select": self._select,
            "regulate": self._regulate,
            "budget": self._budget,
        }
        return decide[state.point](state, legal_actions, given)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Fitted beforehand; outcomes are learned from by training again."""

    def _iterate(self, state: State, legal_actions: Sequence[str], given: dict[str, list[float]]) -> Decision:
        [fixes], [breaks], price = given[FIXES], given[BREAKS], self._price(AGAIN)
        gain = fixes - breaks - price
        action = AGAIN if gain > 0 else STOP
        if action not in legal_actions:
            return self._by_rule(state, legal_actions, f"{action} is not legal")
        reason = f"P(fixes) {fixes:.3f} - P(breaks) {breaks:.3f} - price {price:.3f} is {gain:+.3f}"
        return make_decision(state, action, legal_actions, {STOP: 0.0, AGAIN: gain}, reason)

    def _select(self, state: State, legal_actions: Sequence[str], given: dict[str, list[float]]) -> Decision:
        chances = dict(zip(state.candidates, given[RIGHT], strict=False))
        scores = {name: chances[name] for name in legal_actions if name in chances}
        if not scores:
            return self._by_rule(state, legal_actions, "no legal answer is among the candidates")
        best = max(scores, key=lambda name: scores[name])  # the first of equals
        return make_decision(state, best, legal_actions, scores, f"P(right) {scores[best]:.3f}, best of {len(scores)}")

    def _regulate(self, state: State, legal_actions: Sequence[str], given: dict[str, list[float]]) -> Decision:
        chances = {action: given[after(action)][0] for action in ACTIONS if action in legal_actions}
        if not chances:
            return self._by_rule(state, legal_actions, f"none of {', '.join(ACTIONS)} is legal")
        scores = {action: chance - self._price(action) for action, chance in chances.items()}
        best = max(scores, key=lambda action: scores[action])
        reason = f"P(right) {chances[best]:.3f}, after its price {scores[best]:.3f}, best of {len(scores)}"
        return make_decision(state, best, legal_actions, scores, reason)

    def _budget(self, state: State, legal_actions: Sequence[str], given: dict[str, list[float]]) -> Decision:
        rule = self.rules.decide(state, legal_actions)
        tokens = budget_tokens(given[LENGTH][0])
        reason = f"a finished answer stays within {tokens} tokens; temperature by the paper's rule: {rule.reason}"
        return dataclasses.replace(rule, scores={**rule.scores, "max_tokens": float(tokens)}, reason=reason)

    def _price(self, step: str) -> float:
        return self.token_price * self.tokens[step] / 1000

    def _by_rule(self, state: State, legal_actions: Sequence[str], why: str) -> Decision:
        decision = self.rules.decide(state, legal_actions)
        return dataclasses.replace(decision, reason=f"the paper's rule, as {why}: {decision.reason}")


def budget_tokens(length: float) -> int:
    """max_tokens for what the budget's head gives."""
    return max(LEAST_TOKENS, math.ceil(length * MOST_TOKENS))


def _points(system: str) -> tuple[str, ...]:
    if system not in SYSTEM_POINTS:
        raise ValueError(f"system {system!r}; expected one of {', '.join(SYSTEM_POINTS)}")
    return SYSTEM_POINTS[system]


def _head(contract: Mapping[str, Any], support: Mapping[str, Any], point: str) -> StageHead:
    said = contract["points"][point]
    seen = {name: Seen(*map(float, support[point][name])) for name in READS[point]}
    if not isinstance(said["used"], bool):
        raise TypeError(f"{point}: used is {said['used']!r}; expected true or false")
    return StageHead(said["used"], str(said["why"]), seen)
