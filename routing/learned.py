"""The learned router: whom to ask next, or whose answer to keep, by expected gain and price.

There are two heads in one graph, with one row for each agent. The success head gives P(right) of every agent from
what is known so far; no column names an agent, so a new one needs a price and a past, but no training. The gain head
gives what asking an agent is expected to add to P(right) of the answer kept in the end, minus the cost of asking
others after it. The agent with the highest gain - lambda * price is asked while that number is above a small margin;
then the answer most likely to be right is kept. A price is in dollars, and in seconds of waiting where a second has a
price. Cascades and routing are one policy here (Dekoninck et al. 2025, "A Unified Approach to Routing and Cascading
for LLMs", arXiv:2410.10347); the heads, and how they are fitted (`training.router.train`), are this project's own.
"""

import copy
import json
import math
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from metaprobe.checkpoints import Checkpoint, ContractMismatch, Pretrained, load_checkpoint
from metaprobe.checkpoints.checkpoint import check_kind
from metaprobe.probes.contract import OnMismatch, check_choice
from metaprobe.records.errors import RecordError
from metaprobe.routing.learned_budget import Alone, BudgetPlan, Point, plan_of
from metaprobe.routing.learned_state import (
    ANY,
    FLOOR,
    NAN,
    PRICED,
    AskedAgent,
    Candidates,
    Known,
    Past,
    describe_mismatch,
    rows,
)
from metaprobe.routing.learned_stored import AGENTS, WORDS, read_pasts, read_words

KIND = "router"
SOURCES = "confidence_sources"
"""In the contract: agent -> where the confidences are from that the router learned from."""
INPUT, SUCCESS, GAIN = "agents", "success", "gain"
ALWAYS = 0.95
"""Share of answers with a confidence from which a missing one is no part of what was trained on."""
ASK: Literal["ask"] = "ask"
KEEP: Literal["keep"] = "keep"
NONE: Literal["none"] = "none"


@dataclass(frozen=True, slots=True)
class Routed:
    """The next step for one question."""

    action: Literal["ask", "keep", "none"]
    """`none`: every agent that may be asked has failed, so that no answer can be kept; the reason names them."""
    agent: str
    """The agent to ask, or whose answer to keep; empty where the action is `none`."""
    expected: float
    """P(the answer of this agent is right), given what is known."""
    reason: str
    scores: dict[str, float] = field(default_factory=dict)
    """Agent -> P(right) if it was asked; otherwise the value of asking: gain - lambda * price, also of waiting."""
    fallback: bool = False
    """Whether the fixed rule decided, for the reason given."""


class LearnedRouter(Pretrained):
    """Decides for one question at a time. Several threads may share it.

        >>> from metaprobe.routing.learned_state import Known
        >>> router = LearnedRouter.load("bundled:router")
        >>> router.decide(Known({}, question="What is 17 * 23?")).action  # nobody has been asked yet
        'ask'

    Where an input that it was trained on is missing, or cannot be of the same kind, a fixed rule decides, and the
    reason says why: ask the agent with the highest past success rate - lambda * price on the dimension, and keep its
    answer. The fixed rule, or one agent alone, also decides for a whole budget within which it was more accurate on
    the held-out questions.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        budget: float | None = None,
        seconds: float | None = None,
        lambda_: float | None = None,
        per_second: float | None = None,
        on_mismatch: OnMismatch = "warn",
    ) -> None:
        """`budget`: US dollars for 1,000 questions; `seconds`: seconds of waiting for an answer; both on average. The
        accuracy that a dollar and a second must gain then follows from the checkpoint's own curve (`plan_of`).

        Or give these prices: `lambda_`, accuracy for a dollar per 1,000 questions, and `per_second`, accuracy for a
        second, by default 0. By default lambda is the checkpoint's: the least at which its curve is within 0.005 of its
        best. `on_mismatch`: what to do with a confidence from another source than the router learned from (a
        checkpoint's in place of a stated one): `warn` says so once and lets the fixed rule decide, `refuse` raises
        `ContractMismatch`, `ignore` takes the number. Raises `RecordError` for limits that no way of routing can keep,
        and where waiting has a price and no latency is known.
        """
        manifest = checkpoint.manifest
        check_kind(checkpoint.path, manifest.kind, KIND)
        if manifest.contract.get("columns") != list(PRICED):
            raise ContractMismatch(
                f"{checkpoint.path}: expected the columns {list(PRICED)}, got {manifest.contract.get('columns')}; "
                "train it again with `metaprobe train router`"
            )
        limits = {"budget": budget, "seconds": seconds}
        prices = {"lambda_": lambda_, "per_second": per_second}
        given = {name: value for name, value in {**limits, **prices}.items() if value is not None}
        if given.keys() & limits.keys() and given.keys() & prices.keys():
            raise ValueError(f"{given} were given; budget and seconds fix lambda_ and per_second")
        self.checkpoint = checkpoint
        self.sources: dict[str, str]
        """Agent -> where the confidences were from that it learned from; an agent of which that is not known is not
        among them."""
        self._on_mismatch = check_choice(on_mismatch)
        self._told: set[tuple[str, str]] = set()
        try:
            self.sources = {str(agent): str(source) for agent, source in manifest.contract.get(SOURCES, {}).items()}
            self._columns = {str(name): column for column, name in enumerate(manifest.contract["offered"])}
            stored = float(manifest.thresholds["lambda"])
            self.curve = tuple(Point(*point) for point in manifest.contract["curve"])
            rule = tuple(Point(*point) for point in manifest.contract.get("rule", ()))
            alone = tuple(Alone(*one) for one in manifest.contract["alone"])
            self.max_asked = int(manifest.contract["max_asked"])
            self.margin = float(manifest.contract["margin"])
            self._pasts = read_pasts(json.loads(checkpoint.extra[AGENTS]))
            self.offered = tuple(manifest.contract["offered"])
            self.words = read_words(checkpoint.extra[WORDS], len(self.offered))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError, RecursionError) as error:
            raise ContractMismatch(f"{checkpoint.path} is no whole router ({error!r}); train it again") from error
        if given.keys() & limits.keys():
            self.plan = plan_of(self.curve, rule, alone, budget=budget, seconds=seconds)
        else:
            self.plan = BudgetPlan(stored if lambda_ is None else lambda_, per_second or 0.0)
        self._check_prices()
        self._run = checkpoint.session.run
        # Small dictionaries of what every decision needs; a lost race only computes a value twice.
        self._panels: dict[tuple[str, tuple[str, ...]], Candidates] = {}
        self._texts = lru_cache(maxsize=4096)(self.words.of)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        budget: float | None = None,
        seconds: float | None = None,
        lambda_: float | None = None,
        per_second: float | None = None,
        sha256: str | None = None,
        on_mismatch: OnMismatch = "warn",
    ) -> "LearnedRouter":
        """Returns the router in a checkpoint folder, verified. `sha256`: the digest that its author gave you."""
        checkpoint = load_checkpoint(path, sha256=sha256)
        return cls(
            checkpoint,
            budget=budget,
            seconds=seconds,
            lambda_=lambda_,
            per_second=per_second,
            on_mismatch=on_mismatch,
        )

    @property
    def lambda_(self) -> float:
        """The accuracy that a US dollar for 1,000 questions must gain."""
        return self.plan.lambda_

    @property
    def per_second(self) -> float:
        """The accuracy that a second of waiting must gain."""
        return self.plan.per_second

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents with a known past. The router asks others than `offered` only where none of these may be asked."""
        return tuple(self._pasts)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The dimensions that it has seen in training."""
        return tuple(sorted({name for pasts in self._pasts.values() for name in pasts} - {ANY}))

    def past(self, name: str, dimension: str = ANY) -> Past:
        """Returns an agent's past on a dimension, or over all dimensions where this one is unknown."""
        return self._pasts[name].get(dimension) or self._pasts[name][ANY]

    def at(self, lambda_: float, per_second: float = 0.0) -> "LearnedRouter":
        """Returns the same router at other prices, which decides by its heads even where a simpler way was better."""
        other = copy.copy(self)
        other.plan = BudgetPlan(lambda_, per_second)
        other._check_prices()
        return other

    def with_agent(self, name: str, pasts: Mapping[str, Past]) -> "LearnedRouter":
        """Returns the same router with one more agent, or with another past of a known agent, without training.

        `pasts`: by dimension, with the key "" for all other dimensions. `training.router.data.pasts_of` makes them from
        outcomes, and `Past(rate=..., price_usd=...)` makes one from numbers.
        """
        if ANY not in pasts:
            raise RecordError(f'agent {name!r} has pasts on {sorted(pasts)}; one for the key "" is needed too')
        other = copy.copy(self)
        other._pasts, other._panels = {**self._pasts, name: dict(pasts)}, {}
        other.offered = tuple(dict.fromkeys((*self.offered, name)))
        other._check_prices()
        return other

    def _check_prices(self) -> None:
        lambda_, per_second = self.plan.lambda_, self.plan.per_second
        if not 0 < lambda_ < math.inf:
            raise RecordError(f"lambda is {lambda_}; expected a number above 0: accuracy a dollar per 1,000 must bring")
        if not 0 <= per_second < math.inf:
            raise RecordError(f"per_second is {per_second}; expected a number of at least 0")
        timeless = [name for name, pasts in self._pasts.items() if any(p.seconds is None for p in pasts.values())]
        if per_second and timeless:
            raise RecordError(
                f"a second of waiting has a price ({per_second:g}), but how long {', '.join(timeless)} takes is not "
                "known: outcomes with latency_ms say it"
            )

    def decide(self, known: Known) -> Routed:
        """Returns the next step for one question, from `known` alone: of agents that were not asked, only the past is
        read. A failed agent (`AskedAgent.failure`) is neither kept nor asked again, and the reason names it; where
        nobody else is left the action is `none`. Raises `RecordError` where no agent was there to ask or keep at all.
        """
        failed = {name: why for name, one in known.asked.items() if (why := one.failure)} if known.asked else {}
        if not failed:
            return self._step(known, self._legal(known))
        told = "failed: " + ", ".join(f"{name} ({why})" for name, why in failed.items())
        known = replace(known, asked={name: one for name, one in known.asked.items() if name not in failed})
        if names := self._legal(known, failed):
            step = self._step(known, names)
            return replace(step, reason=f"{step.reason}; {told}")
        strangers = f"; nothing is known of {', '.join(known.asked)}, which was asked" if known.asked else ""
        return Routed(NONE, "", 0.0, f"nobody is left to ask, and no answer to keep; {told}{strangers}", {}, True)

    def _step(self, known: Known, names: tuple[str, ...]) -> Routed:
        dimension = known.dimension
        panel = self._panels.get((dimension, names)) or self._panel(dimension, names)
        asked = [(names.index(name), answer) for name, answer in known.asked.items() if name in names]
        if self.plan.agent in names:
            return self._by_one(panel, known)
        ruled = "" if self.plan.agent else self.plan.instead  # without that agent the learned way decides
        if why := ruled or self._unsupported(known, panel, asked):
            return self._by_rule(panel, asked, len(known.question), why)
        text = self._texts(known.question) if known.question else None
        if text is None:
            texts: Sequence[float] = (NAN,) * len(names)
        else:
            texts = [text[self._columns.get(name, -1)] for name in names]
        made, prices = rows(panel, asked, texts, len(known.question))
        lambda_, log_lambda = self.plan.lambda_, math.log(self.plan.lambda_)
        dues = [1000 * lambda_ * price for price in prices]
        waits = self._waits(panel)
        for column, row in enumerate(made):
            # To the last bit what training makes of it: with a price of waiting, and without.
            log_priced = row[5] + log_lambda
            if waits:
                dues[column] += waits[column]
                log_priced += math.log1p(waits[column] / (lambda_ * max(1000 * prices[column], FLOOR)))
            row += (log_priced, log_lambda)
        outputs = self._run({INPUT: np.array(made, dtype=np.float32)})
        success, gain = outputs[SUCCESS].ravel().tolist(), outputs[GAIN].ravel().tolist()
        return self._decide(panel, {column for column, _ in asked}, success, gain, prices, dues, self._note(known))

    def _decide(
        self,
        panel: Candidates,
        asked: set[int],
        success: Sequence[float],
        gain: Sequence[float],
        prices: Sequence[float],
        dues: Sequence[float],
        note: str,
    ) -> Routed:
        names = panel.names
        scores: dict[str, float] = {}
        best = next_ = -1
        # Before anything is known the gain head gives what is gained over the first agent's own P(right).
        first = not asked
        for column, name in enumerate(names):
            if column in asked:
                scores[name] = success[column]
                if best < 0 or success[column] > success[best]:
                    best = column
            else:
                start = success[column] if first else 0.0
                scores[name] = start + gain[column] - dues[column]
                if next_ < 0 or scores[name] > scores[names[next_]]:
                    next_ = column
        go_on = first or (next_ >= 0 and scores[names[next_]] > self.margin and len(asked) < self.max_asked)
        if go_on:
            worth = "best first" if first else f"gain - lambda * price {scores[names[next_]]:+.3f} > {self.margin:g}"
            reason = f"ask {names[next_]}: {worth}, P(right) {success[next_]:.2f}, {1000 * prices[next_]:.3f} per 1000"
            if not first:
                reason += f"; {names[best]} is at {success[best]:.2f}"
            return Routed(ASK, names[next_], success[next_], reason + note, scores)
        if next_ < 0:
            why = "all were asked"
        elif len(asked) >= self.max_asked:
            why = f"{len(asked)} were asked"
        else:
            why = f"asking {names[next_]} is worth {scores[names[next_]]:+.3f}, not above {self.margin:g}"
        return Routed(KEEP, names[best], success[best], f"keep {names[best]}: {success[best]:.2f}; {why}{note}", scores)

    def _legal(self, known: Known, failed: Collection[str] = ()) -> tuple[str, ...]:
        """Agents to decide among: those asked, and of those that may be asked the ones that training found of use."""
        asked, allowed = known.asked, known.agents
        if allowed is None and not failed and asked.keys() <= self._columns.keys():
            return self.offered
        able = [name for name in self._pasts if name not in failed and (allowed is None or name in allowed)]
        may = [name for name in able if name in self.offered]
        if not may and (failed or allowed is not None):  # better one that was of little use than none
            may = able
        return tuple(name for name in self._pasts if name in may or name in asked)

    def _panel(self, dimension: str, names: tuple[str, ...]) -> Candidates:
        if not names:
            raise RecordError(f"no agent that may be asked is known; the router knows {', '.join(self._pasts)}")
        panel = Candidates.of(names, [self.past(name, dimension) for name in names])
        if len(self._panels) < 1024:  # dimensions come from outside
            self._panels[dimension, names] = panel
        return panel

    def _unsupported(self, known: Known, panel: Candidates, asked: Sequence[tuple[int, AskedAgent]]) -> str:
        if len(asked) < len(known.asked):
            strangers = [name for name in known.asked if name not in panel.names]
            return f"nothing is known of {', '.join(strangers)}, which was asked"
        for column, answer in asked:
            past = panel.pasts[column]
            if answer.confidence is not None and (why := self._mismatch(panel.names[column], answer.source)):
                return why
            if answer.confidence is None:
                if past.stated >= ALWAYS:
                    return f"{panel.names[column]} gave no confidence, and always did in training"
            elif past.knots and (answer.confidence != answer.confidence or past.odd(answer.confidence)):
                return (
                    f"{panel.names[column]} has confidence {answer.confidence:g}; in training {past.knots[0]:g} to "
                    f"{past.knots[-1]:g}"
                )
        return ""

    def _mismatch(self, agent: str, source: str) -> str:
        """Why a confidence from this source cannot be used; empty where it can. Warns once for each agent and source.

        A number from another source is another number, whatever its range: a stated 0.9 and a predictor's 0.9 are not
        right equally often, and the router's calibration is that of the one it learned from.
        """
        if self._on_mismatch == "ignore" or not (why := describe_mismatch(self.sources, agent, source)):
            return ""
        if self._on_mismatch == "refuse":
            raise ContractMismatch(f"{self.checkpoint.path}: {why}")
        if self._on_mismatch == "warn" and (agent, source) not in self._told:
            self._told.add((agent, source))  # two threads may both say it, which does no harm
            warnings.warn(f"metaprobe: {why}; the fixed rule decides in the router's place", stacklevel=4)
        return why

    def _by_rule(self, panel: Candidates, asked: Sequence[tuple[int, AskedAgent]], chars: int, why: str) -> Routed:
        rates = [1 / (1 + math.exp(-rate)) for rate in panel.rates]
        if asked:
            kept = max((column for column, _ in asked), key=lambda column: rates[column])
            reason = f"fixed rule, as {why}: keep the answer of the agent that was right most often"
            return Routed(
                KEEP, panel.names[kept], rates[kept], reason, dict(zip(panel.names, rates, strict=True)), True
            )
        dues = [1000 * self.plan.lambda_ * past.price(chars) for past in panel.pasts]
        if waits := self._waits(panel):
            dues = [due + wait for due, wait in zip(dues, waits, strict=True)]
        worth = [rate - due for rate, due in zip(rates, dues, strict=True)]
        best = worth.index(max(worth))
        reason = f"fixed rule, as {why}: ask the agent of highest past success rate - lambda * price"
        return Routed(ASK, panel.names[best], rates[best], reason, dict(zip(panel.names, worth, strict=True)), True)

    def _by_one(self, panel: Candidates, known: Known) -> Routed:
        agent = self.plan.agent
        rate = 1 / (1 + math.exp(-panel.rates[panel.names.index(agent)]))
        action = KEEP if agent in known.asked else ASK
        return Routed(action, agent, rate, f"fixed rule, as {self.plan.instead}", {agent: rate}, True)

    def _waits(self, panel: Candidates) -> list[float]:
        """Accuracy that the time of each agent must bring; empty where waiting has no price."""
        per_second = self.plan.per_second
        return [per_second * (past.seconds or 0.0) for past in panel.pasts] if per_second else []

    def _note(self, known: Known) -> str:
        if known.dimension and known.dimension not in next(iter(self._pasts.values())):
            return f"; dimension {known.dimension!r} was not seen in training and is taken as unknown"
        return "" if known.dimension else "; dimension unknown"
