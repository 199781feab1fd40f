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
        max_failures: int,
        pause_s: float,
        *,
        on_change: Callable[[BreakerState], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Makes a closed breaker.

        Args:
            max_failures: number of failures in a row that opens the breaker.
            pause_s: seconds for which the agent is then skipped, before jitter.
            on_change: called with each new state.
            clock: returns seconds.
            draw: returns a number in [0, 1) for the jitter.
        """
        self._max_failures, self._pause_s, self._on_change, self._clock, self._draw = (
            max_failures,
            pause_s,
            on_change,
            clock,
            draw,
        )
        self._failures = 0
        self._failing_callers: set[str | None] = set()
        """Callers whose requests failed in a row."""
        self._answer_time_of_caller: dict[str, float] = {}
        """Maps a caller to the time when the agent last answered one of its requests. The number of keys bounds it."""
        self._last_answer_at = -math.inf
        """Time when the agent last answered anybody."""
        self._failed_trials = 0
        """Number of trials in a row that failed."""
        self._retry_at = 0.0
        """Time from which the agent may be tried again, while the breaker is open."""
        self.state: BreakerState = "closed"

    def begin_trial(self) -> bool:
        """Starts the trial of a skipped agent if its pause is over. Returns whether the trial was started."""
        if self.state != "open" or self._clock() < self._retry_at:
            return False
        self._enter("half_open")
        return True

    def end_trial(self) -> None:
        """Ends a trial without a result. The next request may try."""
        if self.state == "half_open":
            self._enter("open")

    def answered(self, caller: str = "") -> None:
        """Closes the breaker, because the agent answered a request of this caller."""
        self._failures = self._failed_trials = 0
        self._failing_callers.clear()
        self._answer_time_of_caller[caller] = self._last_answer_at = self._clock()
        if self.state != "closed":
            self._enter("closed")

    def failed(self, caller: str | None = "", took_s: float = 0.0) -> None:
        """Counts a failure. Opens the breaker after too many in a row, and after a failed trial.

        `caller` is the key of the caller whose request failed; None if no request can be the cause. `took_s` is the
        number of seconds since the request began.
        """
        if self.state != "half_open" and self._clock() - took_s < self._last_answer_at:
            return  # the agent has answered since then, so this request alone takes too long
        self._failures += 1
        self._failing_callers.add(caller)
        if self.state == "half_open":
            self._failed_trials += 1
        elif self.state == "open" or self._failures < self._max_failures or self._answers_others():
            return
        pause_s = self._pause_s * min(2**self._failed_trials, LONGEST_PAUSE)
        self._retry_at = self._clock() + pause_s * (1 + JITTER * (2 * self._draw() - 1))
        self._enter("open")

    def _answers_others(self) -> bool:
        """Returns whether only one caller's requests fail, and the agent answered another caller recently."""
        if len(self._failing_callers) > 1 or None in self._failing_callers:
            return False
        since = self._clock() - VOUCHED_S
        return any(
            answered_at >= since
            for caller, answered_at in self._answer_time_of_caller.items()
            if caller not in self._failing_callers
        )

    def why(self) -> str:
        """Returns why the agent is skipped, for the reason of a verdict."""
        if self.state == "half_open":
            return f"{self._failures} failures in a row, and another request tries it now"
        return f"{self._failures} failures in a row, tried again in {max(0.0, self._retry_at - self._clock()):.0f} s"

    def _enter(self, state: BreakerState) -> None:
        self.state = state
        self._on_change(state)
