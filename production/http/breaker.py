"""Remembers which agent is down, so that not every request waits for it.

An agent that failed several times in a row is skipped for a pause (open). Then one request tries it again (half-open),
and an answer closes the breaker. Every worker counts for itself.

A caller can make requests fail by their content, for example with an answer that takes longer than the time limit. So a
failure does not count if the agent has answered anybody since that request began. And failures of one caller alone do
not open the breaker while the agent answers others.
"""

import math
import random
import time
from collections.abc import Callable
from typing import Literal

BreakerState = Literal["closed", "half_open", "open"]

JITTER = 0.2
"""Share by which a pause is randomly shorter or longer, so that workers do not all try an agent at one moment."""
LONGEST_PAUSE = 8
"""Longest pause, in multiples of the first. A pause doubles with every trial that fails."""
VOUCHED_S = 60.0
"""Seconds for which an answer to one caller shows that the agent is up, although another caller's requests fail."""


class Breaker:
    """Counts one agent's failures. For one event loop, without a lock."""

    def __init__(
        self,
        failures: int,
        pause_s: float,
        *,
        changed: Callable[[BreakerState], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Makes a closed breaker.

        Args:
            failures: failures in a row that open it.
            pause_s: seconds for which the agent is then skipped, before jitter.
            changed: called with each new state.
            clock: returns seconds.
            draw: returns a number in [0, 1) for the jitter.
        """
        self._most, self._pause_s, self._changed, self._clock, self._draw = failures, pause_s, changed, clock, draw
        self._failures = 0
        self._failing: set[str | None] = set()
        """Callers whose requests failed in a row."""
        self._answered: dict[str, float] = {}
        """Maps a caller to the time when the agent last answered its request. There are as many entries as keys."""
        self._last = -math.inf
        """Time when the agent last answered anybody."""
        self._trials = 0
        """Number of trials in a row that failed."""
        self._until = 0.0
        """Time from which the agent may be tried again, while the breaker is open."""
        self.state: BreakerState = "closed"

    def begin_trial(self) -> bool:
        """Starts the trial of a skipped agent if its pause is over. Returns whether the trial was started."""
        if self.state != "open" or self._clock() < self._until:
            return False
        self._enter("half_open")
        return True

    def end_trial(self) -> None:
        """Ends a trial without a result. The next request may try."""
        if self.state == "half_open":
            self._enter("open")

    def answered(self, caller: str = "") -> None:
        """Closes the breaker, because the agent answered a request of this caller."""
        self._failures = self._trials = 0
        self._failing.clear()
        self._answered[caller] = self._last = self._clock()
        if self.state != "closed":
            self._enter("closed")

    def failed(self, caller: str | None = "", took_s: float = 0.0) -> None:
        """Counts a failure. Opens the breaker after too many in a row, and after a failed trial.

        `caller` is whose request failed; None if no request can be the cause. `took_s` is seconds since the request
        began.
        """
        if self.state != "half_open" and self._clock() - took_s < self._last:
            return  # the agent has answered since: it is this request that takes too long
        self._failures += 1
        self._failing.add(caller)
        if self.state == "half_open":
            self._trials += 1
        elif self.state == "open" or self._failures < self._most or self._answers_others():
            return
        pause_s = self._pause_s * min(2**self._trials, LONGEST_PAUSE)
        self._until = self._clock() + pause_s * (1 + JITTER * (2 * self._draw() - 1))
        self._enter("open")

    def _answers_others(self) -> bool:
        """Returns whether only one caller's requests fail, and the agent answered another caller recently."""
        if len(self._failing) > 1 or None in self._failing:
            return False
        since = self._clock() - VOUCHED_S
        return any(
            answered_at >= since for caller, answered_at in self._answered.items() if caller not in self._failing
        )

    def why(self) -> str:
        """Returns why the agent is skipped, for the reason of a verdict."""
        if self.state == "half_open":
            return f"{self._failures} failures in a row, and another request tries it now"
        return f"{self._failures} failures in a row, tried again in {max(0.0, self._until - self._clock()):.0f} s"

    def _enter(self, state: BreakerState) -> None:
        self.state = state
        self._changed(state)
