"""The breaker: which agent is left out after failures, and when it is tried again."""

from hypothesis import given
from hypothesis import strategies as st

from metaprobe.production.http.breaker import JITTER, LONGEST_PAUSE, Breaker, BreakerState


class Clock:
    """A clock that stands until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def breaker(failures: int = 3, draw: float = 0.5) -> tuple[Breaker, Clock, list[BreakerState]]:
    clock, states = Clock(), list[BreakerState]()
    return Breaker(failures, 10.0, on_change=states.append, clock=clock, draw=lambda: draw), clock, states


def test_it_opens_after_failures_in_a_row_and_not_before() -> None:
    one, _, states = breaker()
    for _ in range(2):
        one.failed()
    one.answered()
    for _ in range(2):
        one.failed()
    assert (one.state, states) == ("closed", [])
    one.failed()
    assert states == ["open"]
    assert "3 failures in a row" in one.why()


def test_after_the_pause_one_request_tries_and_its_answer_closes() -> None:
    one, clock, states = breaker(1)
    one.failed()
    clock.now = 9.9
    assert not one.begin_trial()
    clock.now = 10.0
    assert [one.begin_trial(), one.begin_trial()] == [True, False]
    one.answered()
    assert states == ["open", "half_open", "closed"]


def test_a_trial_that_shows_nothing_is_taken_by_the_next_request() -> None:
    one, clock, _ = breaker(1)
    one.failed()
    clock.now = 10.0
    one.begin_trial()
    one.end_trial()
    assert one.begin_trial()


def test_pauses_grow_while_trials_fail_and_no_further_than_said() -> None:
    one, clock, _ = breaker(1)
    one.failed()
    pauses = []
    for _ in range(6):
        before = clock.now
        while not one.begin_trial():
            clock.now += 10.0
        pauses.append(clock.now - before)
        one.failed()
    assert pauses == [10.0, 20.0, 40.0, *3 * [10.0 * LONGEST_PAUSE]]


@given(st.floats(0, 1, exclude_max=True))
def test_a_pause_is_drawn_around_its_length(draw: float) -> None:
    one, clock, _ = breaker(1, draw)
    one.failed()
    clock.now = 10.0 * (1 - JITTER) - 0.01
    assert not one.begin_trial()
    clock.now = 10.0 * (1 + JITTER) + 0.01
    assert one.begin_trial()


@given(st.lists(st.sampled_from(["failed", "answered", "begin_trial", "end_trial", "wait"])))
def test_whatever_happens_an_agent_that_answers_is_asked_again(events: list[str]) -> None:
    one, clock, _ = breaker()
    for event in events:
        if event == "wait":
            clock.now += 100.0
        else:
            getattr(one, event)()
    one.answered()
    assert one.state == "closed"
    assert not one.begin_trial()


def test_one_callers_failures_alone_leave_out_no_agent_that_answers_others() -> None:
    one, clock, states = breaker()
    one.answered("honest")
    clock.now = 1.0
    for _ in range(20):
        one.failed("hostile")
    assert states == []
    one.failed("honest")
    assert states == ["open"], "it fails others, too"


@given(st.lists(st.sampled_from(["a", None]), min_size=3))
def test_a_caller_alone_and_faults_that_no_caller_makes_open_it(failing: list[str | None]) -> None:
    one, clock, states = breaker()
    one.answered("a")
    one.answered("b")
    clock.now = 61.0 if None not in failing[:3] else 1.0  # by then b has not been answered for long
    for caller in failing:
        one.failed(caller)
    assert states == ["open"]


def test_a_failure_shows_nothing_where_the_agent_answered_since_its_request_began() -> None:
    one, clock, states = breaker()
    clock.now = 100.0
    one.answered("a")
    clock.now = 101.0
    for _ in range(5):
        one.failed("a", 60.0)
    assert states == []
    for _ in range(3):
        one.failed("a", 0.5)
    assert states == ["open"]
