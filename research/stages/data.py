"""What the stage heads learn from: every answer with what was known of it, and whether it was right."""

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Generator
from metaprobe.routing.paper import PaperRules
from research.stages.policy import SYSTEM_POINTS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MONITOR_GENERATE_VERIFY, METACRIT, SELF_REFINE, SELF_VERIFICATION = SYSTEM_POINTS


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """n problems with up to K answers each, one of which is returned; fewer come first."""

    groups: tuple[str, ...]
    rows: NDArray[np.float32]
    """(n, K, len(COLUMNS)), in the order in which the policy is shown them; NaN where there are fewer than K."""
    correct: Floats
    """(n, K), 0 or 1; 0 where there are fewer."""
    quality: Floats
    """(n, K): evaluation, or verified share; NaN where there is none."""
    votes: Floats
    """(n, K): how many of the answers that were given are this one; 0 where none can be read."""
    given: Floats
    """(n, K): place in which it was given; NaN where there are fewer."""
    tokens: Floats
    """(n,): generated in the whole run."""
    regrouped: str = ""
    """Which groups were joined because their questions repeat, in words; empty where none were."""
    fingerprint: str = ""
    generator: Generator | None = None
    system: str = SELF_VERIFICATION

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def there(self) -> NDArray[np.bool_]:
        """(n, K)"""
        return np.isfinite(self.given)

    @property
    def counts(self) -> Ints:
        """(n,): answers to choose from."""
        return np.asarray(self.there.sum(axis=1))

    def take(self, chosen: Ints) -> "Candidates":
        """Those problems alone."""
        return _taken(self, chosen, "rows", "correct", "quality", "votes", "given", "tokens")


@dataclass(frozen=True, slots=True, eq=False)
class Cycles:
    """n problems with up to T cycles of Monitor-Generate-Verify or Self-Refine each.

    Where fewer were run, going on gives what was there: the last answer's `correct`, and no tokens.
    """

    groups: tuple[str, ...]
    rows: NDArray[np.float32]
    """(n, T, T, len(COLUMNS)): [i, t, c] is answer c as it looks after t + 1 cycles; NaN for c > t, or t not run."""
    correct: Floats
    """(n, T), 0 or 1."""
    quality: Floats
    """(n, T): the mean evaluation, NaN where none was given."""
    tokens: Floats
    """(n, T): generated in the cycle, by all stages."""
    lengths: Floats
    """(n, T): generated tokens of the answer alone."""
    limits: Floats
    """(n, T): the max_tokens that the answer had."""
    votes: Floats
    """(n, T): how many of the answers are this one; 0 where none can be read."""
    ran: Ints
    """(n,): cycles that were run."""
    regrouped: str = ""
    """Which groups were joined because their questions repeat, in words; empty where none were."""
    fingerprint: str = ""
    generator: Generator | None = None
    system: str = MONITOR_GENERATE_VERIFY
    exhaustive: bool = True
    """Whether all T cycles were run of every problem; else each is cut where the paper's rule stops."""

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def cycles(self) -> int:
        return int(self.correct.shape[1])

    @property
    def steps(self) -> NDArray[np.float32]:
        """(n, T - 1, len(COLUMNS)): the last answer after each cycle but the T-th, where going on is decided."""
        return np.stack([self.rows[:, t, t] for t in range(self.cycles - 1)], axis=1)

    @property
    def went_on(self) -> NDArray[np.bool_]:
        """(n, T - 1): whether another cycle was run after it."""
        return np.arange(1, self.cycles) < self.ran[:, None]

    @property
    def beyond(self) -> bool:
        """Whether any was gone on with where the paper's rule stops."""
        return bool((self.went_on & (self.quality[:, :-1] >= PaperRules().good)).any())

    @property
    def candidates(self) -> Candidates:
        """The answers of all cycles, to choose from."""
        given = np.where(np.arange(self.cycles) < self.ran[:, None], np.arange(float(self.cycles)), np.nan)
        return Candidates(
            groups=self.groups,
            rows=self.rows[:, -1],
            correct=self.correct,
            quality=self.quality,
            votes=self.votes,
            given=given,
            tokens=self.tokens.sum(axis=1),
            system=self.system,
        )

    def take(self, chosen: Ints) -> "Cycles":
        """Those problems alone."""
        return _taken(self, chosen, "rows", "correct", "quality", "tokens", "lengths", "limits", "votes", "ran")


@dataclass(frozen=True, slots=True, eq=False)
class Critics:
    """n questions that MetaCrit answered with each choice of critics."""

    groups: tuple[str, ...]
    rows: NDArray[np.float32]
    """(n, len(COLUMNS)): A1's answer."""
    first: Floats
    """(n,): whether A1's own answer was right, 0 or 1."""
    correct: Floats
    """(n, 3): whether the synthesis was, after each of `policy.ACTIONS`."""
    tokens: Floats
    """(n, 3): generated after A1's answer."""
    regrouped: str = ""
    """Which groups were joined because their questions repeat, in words; empty where none were."""
    fingerprint: str = ""
    generator: Generator | None = None
    system: str = METACRIT

    def __len__(self) -> int:
        return len(self.groups)

    def take(self, chosen: Ints) -> "Critics":
        """Those questions alone."""
        return _taken(self, chosen, "rows", "first", "correct", "tokens")


StageData = Cycles | Candidates | Critics
Taken = TypeVar("Taken", Cycles, Candidates, Critics)


def _taken(data: Taken, chosen: Ints, *arrays: str) -> Taken:
    groups = tuple(data.groups[i] for i in chosen)
    return replace(data, groups=groups, **{name: getattr(data, name)[chosen] for name in arrays})
