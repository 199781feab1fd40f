"""At `review` the learned rules go by P(critical) and quality, with the thresholds given, the checkpoint's, or none."""

from collections.abc import Sequence

import pytest

from metaprobe.papers.policies.review import ReviewRules
from metaprobe.probes.signals import Signal, Signals
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Decision
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.policy import Action, State

CRITICAL = {"critical": 0.3, "critical_sure": 0.8}
QUALITY = {"flag": 0.4}
LEGAL = (Action.KEEP, Action.AGAIN, Action.JUDGE)


def signals(critical: float | None = None, quality: float | None = None, *, bare: bool = False) -> Signals:
    """Returns the signals that checkpoints read of an argument; `bare`: by checkpoints that have no thresholds."""
    return Signals(
        critical=None if critical is None else Signal(critical, "abc", {} if bare else CRITICAL),
        quality=None if quality is None else Signal(quality, "def", {} if bare else QUALITY),
    )


def review(known: Signals, rules: ReviewRules | None = None, legal: Sequence[str] = LEGAL) -> Decision:
    return (rules or ReviewRules()).decide(State("d", "review", known), legal)


@pytest.mark.parametrize(
    ("critical", "quality", "action"),
    [
        (0.29, None, Action.KEEP),
        (0.3, None, Action.JUDGE),
        (0.79, None, Action.JUDGE),
        (0.8, None, Action.AGAIN),
        (None, 0.39, Action.JUDGE),
        (None, 0.4, Action.KEEP),
        (0.1, 0.39, Action.JUDGE),
        (0.1, 0.4, Action.KEEP),
        (0.3, 0.9, Action.JUDGE),
        (0.8, 0.9, Action.AGAIN),
    ],
)
def test_either_signal_alone_decides_and_each_threshold_belongs_to_the_side_that_it_opens(
    critical: float | None, quality: float | None, action: str
) -> None:
    decision = review(signals(critical, quality))
    assert decision.action == action
    assert decision.propensities == {legal: float(legal == action) for legal in LEGAL}


def test_the_scores_are_p_critical_and_the_rest_and_0_where_it_is_unknown() -> None:
    assert review(signals(0.25)).scores == {Action.KEEP: 0.75, Action.AGAIN: 0.25, Action.JUDGE: 0.25}
    assert review(signals(quality=0.9)).scores == {Action.KEEP: 1.0, Action.AGAIN: 0.0, Action.JUDGE: 0.0}
    assert review(signals(0.25), legal=(Action.KEEP, Action.JUDGE)).scores == {Action.KEEP: 0.75, Action.JUDGE: 0.25}


def test_the_reason_names_every_comparison_and_whose_threshold_it_was() -> None:
    assert review(signals(0.1, 0.9)).reason == (
        "P(critical) 0.100 < 0.300 (the checkpoint's `critical`), quality 0.900 >= 0.400 (the checkpoint's `flag`)"
    )
    assert review(signals(quality=0.2)).reason == "quality 0.200 < 0.400 (the checkpoint's `flag`)"
    assert review(signals(0.9)).reason == "P(critical) 0.900 >= 0.800 (the checkpoint's `critical_sure`)"
    given = ReviewRules(again=0.7, critical=0.2, keep=0.6)
    assert review(signals(0.7, 0.9), given).reason == "P(critical) 0.700 >= 0.700 (as given)"
    assert review(signals(0.2, 0.9), given).reason == "P(critical) 0.200 >= 0.200 (as given)"
    assert review(signals(0.1, 0.5), given).reason == "quality 0.500 < 0.600 (as given)"


def test_a_checkpoint_without_thresholds_flags_from_one_half_never_asks_again_and_lets_every_quality_pass() -> None:
    assert review(signals(0.49, bare=True)).reason == "P(critical) 0.490 < 0.500 (by default)"
    assert [review(signals(p, bare=True)).action for p in (0.49, 0.5, 1.0)] == [Action.KEEP, Action.JUDGE, Action.JUDGE]
    poor = review(signals(quality=0.0, bare=True))
    assert (poor.action, poor.reason) == (Action.KEEP, "nothing speaks against it")


def test_a_threshold_of_0_that_was_given_holds_like_any_other() -> None:
    assert review(signals(0.0), ReviewRules(again=0)).action == Action.AGAIN
    assert review(signals(0.0), ReviewRules(critical=0)).action == Action.JUDGE
    kept = review(signals(quality=0.0), ReviewRules(keep=0))
    assert (kept.action, kept.reason) == (Action.KEEP, "quality 0.000 >= 0.000 (as given)")


def test_what_is_not_legal_is_not_done_and_the_reason_says_so() -> None:
    assert review(signals(0.9), legal=(Action.KEEP, Action.JUDGE)).action == Action.JUDGE  # asked again once already
    alone = review(signals(0.9), legal=(Action.KEEP,))
    assert alone.action == Action.KEEP
    assert alone.reason.endswith("; judge is not legal here")


def test_an_argument_that_no_checkpoint_could_read_and_every_other_point_are_the_papers() -> None:
    rules = PaperRules(good=0.6)
    unread = review(Signals(), ReviewRules(rules))
    paper = rules.decide(State("d", "review"), LEGAL)
    assert (unread.action, unread.scores) == (Action.JUDGE, paper.scores)
    assert unread.reason == f"no checkpoint could read it: {paper.reason}"
    state = State("d", "iterate", signals(0.9, 0.7, bare=True))
    assert ReviewRules(rules).decide(state, (Action.STOP, Action.AGAIN)) == rules.decide(
        state, (Action.STOP, Action.AGAIN)
    )


def test_each_constant_may_be_0_and_1_and_nothing_beyond() -> None:
    for name in ("again", "critical", "keep"):
        for value in (0.0, 1.0):
            assert getattr(ReviewRules.parse(f"{name}={value}"), name) == value
        for value in ("-0.01", "1.01"):
            with pytest.raises(RecordError, match=f"policy constant {name} is {value}; expected a number from 0 to 1"):
                ReviewRules.parse(f"{name}={value}")


def test_a_constant_needs_the_signal_that_it_is_a_threshold_on() -> None:
    rules = ReviewRules(again=0.8, keep=0)
    assert rules.needs == {
        "deciding at review": ("critical", "quality"),
        "the constant again": ("critical",),
        "the constant keep": ("quality",),
    }
    assert rules.reads == {**PaperRules().reads, "review": ("critical", "quality")}
