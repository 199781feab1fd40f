"""The papers' rules at their points, held against the numbers that the papers give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.papers.policies.explore import EpsilonGreedy, Exhaustive
from metaprobe.papers.policies.review import ReviewRules
from metaprobe.probes.signals import Signal, Signals
from metaprobe.records.errors import RecordError
from metaprobe.routing.paper import DEFAULTS, FRACTIONS, PaperRules
from metaprobe.routing.policy import Action, Policy, State

RULES = PaperRules()
UNIT = st.integers(0, 100).map(lambda percent: percent / 100)


def signals(**known: float | None) -> Signals:
    return Signals(**{name: Signal(value, "stated") for name, value in known.items() if value is not None})


def assess(
    stated: float | None, profile: float | None = 0.5, rules: PaperRules = RULES, legal=(Action.EXECUTE, Action.ASK)
):
    own = signals(confidence=stated, profile=profile)
    return rules.decide(State(decision_id="d", point="assess", agent="a", signals=own), legal)


def assign(others: dict[str, tuple[float | None, float]], rules: PaperRules = RULES, legal: tuple[str, ...] = ()):
    peers = {agent: signals(confidence=stated, profile=profile) for agent, (stated, profile) in others.items()}
    return rules.decide(State(decision_id="d", point="assign", others=peers), legal or (*others, Action.COLLABORATE))


def test_exactly_the_conflict_threshold_does_not_raise_theta_and_exactly_theta_suffices() -> None:
    assert 0.8 - 0.5 > 0.3  # in binary
    assert assess(0.8, 0.5).scores[Action.ASK] == 0.5
    assert assess(0.81, 0.5).scores[Action.ASK] == pytest.approx(0.562)
    rules = PaperRules(theta=0.01, weight=0.3)
    assert rules.confidence(signals(confidence=0.01, profile=0.01))[0] < 0.01  # in binary
    assert assess(0.01, 0.01, rules).action == Action.EXECUTE
    assert assign({"b": (0.01, 0.01)}, rules).action == "b"


def test_peers_are_held_against_theta_and_not_the_raised_threshold() -> None:
    stated, profile = 0.9, 0.0  # c 0.54, and a threshold of 0.68
    assert assess(stated, profile).action == Action.ASK
    assert assign({"b": (stated, profile)}).action == "b"


def test_no_peer_at_theta_means_a_vote_and_an_action_that_is_not_legal_is_never_taken() -> None:
    assert assess(0.1, legal=(Action.EXECUTE,)).action == Action.EXECUTE
    with pytest.raises(RecordError, match="no legal action"):
        assess(0.1, legal=())
    with pytest.raises(RecordError, match="no legal action"):
        PaperRules().decide(State("d", "regulate", Signals()), ["something else"])
    others = {"b": (0.3, 0.5), "c": (0.4, 0.5)}
    assert assign(others).action == Action.COLLABORATE
    alone = assign(others, legal=("b", "c"))
    assert (alone.action, set(alone.scores)) == ("c", {"b", "c"})


def test_what_is_not_stated_is_taken_as_configured_and_the_reason_says_so() -> None:
    decision = assess(None)
    assert decision.action == Action.EXECUTE
    assert "0.5 (nothing stated)" in decision.reason
    assert assess(None, rules=PaperRules(unstated=0.4)).action == Action.ASK
    assert "0.5 for b (nothing stated)" in assign({"b": (None, 0.5), "c": (0.5, 0.5)}).reason
    assert assess(0.6, None).scores[Action.EXECUTE] == 0.6  # without a profile, the statement alone


@given(stated=UNIT, profile=UNIT, more=UNIT, theta=UNIT)
def test_propensities_name_the_action_and_a_lower_theta_never_asks_more(
    stated: float, profile: float, more: float, theta: float
) -> None:
    decision = assess(stated, profile, PaperRules(theta=theta))
    assert decision.propensities[decision.action] == 1 == sum(decision.propensities.values())
    if decision.action == Action.EXECUTE:
        assert assess(stated, profile, PaperRules(theta=theta * more)).action == Action.EXECUTE


@given(stated=UNIT, profile=UNIT)
def test_c_lies_between_what_is_stated_and_the_profile(stated: float, profile: float) -> None:
    c, delta, _ = RULES.confidence(signals(confidence=stated, profile=profile))
    assert min(stated, profile) - 1e-12 <= c <= max(stated, profile) + 1e-12
    assert delta == abs(stated - profile)


def test_iteration_stops_at_a_good_score_or_after_three_cycles_and_the_budget_grows_with_the_difficulty() -> None:
    for quality, cycles, action in (
        (0.85, 1, Action.STOP),
        (0.849, 1, Action.AGAIN),
        (0.1, 3, Action.STOP),
        (None, 1, Action.AGAIN),
        (None, 3, Action.STOP),
    ):
        state = State(decision_id="d", point="iterate", signals=signals(quality=quality), round=cycles)
        assert RULES.decide(state, (Action.STOP, Action.AGAIN)).action == action
    state = State(decision_id="d", point="budget", signals=signals(difficulty=0.25))
    assert RULES.decide(state, ("generate",)).scores == pytest.approx({"max_tokens": 500, "temperature": 0.35})


def test_constants_are_read_from_text_and_misspelt_ones_are_named() -> None:
    assert PaperRules.parse("theta=0.4,cycles=2") == PaperRules(theta=0.4, cycles=2)
    assert PaperRules.parse("") == RULES
    with pytest.raises(RecordError, match="thta"):
        PaperRules.parse("thta=0.4")
    with pytest.raises(RecordError, match="know no point 'lunch'"):
        RULES.decide(State(decision_id="d", point="lunch"), ("eat",))


@pytest.mark.parametrize("name", FRACTIONS)
def test_a_fraction_may_be_0_and_1_and_nothing_beyond(name: str) -> None:
    for value in (0.0, 1.0):
        assert getattr(PaperRules.parse(f"{name}={value}"), name) == value
    for value in ("-0.01", "1.01", "nan"):
        with pytest.raises(RecordError, match=f"constant {name} is {value}; expected a number from 0 to 1"):
            PaperRules.parse(f"{name}={value}")


def test_a_run_has_at_least_one_cycle_and_one_token_and_no_setting_is_negative_or_endless() -> None:
    for name in ("base_tokens", "cycles"):
        assert getattr(PaperRules.parse(f"{name}=1"), name) == 1
        with pytest.raises(RecordError, match=f"constant {name} is 0; expected at least 1"):
            PaperRules.parse(f"{name}=0")
    assert PaperRules(tokens_per_difficulty=0, base_temperature=0, temperature_per_difficulty=0)
    for name in ("base_temperature", "temperature_per_difficulty"):
        for value in ("-0.1", "inf"):
            with pytest.raises(RecordError, match=f"constant {name} is {value}; expected a number of at least 0"):
                PaperRules.parse(f"{name}={value}")


def test_the_constants_are_the_papers() -> None:
    assert DEFAULTS == {
        **{"theta": 0.5, "weight": 0.6, "conflict": 0.3, "damping": 0.2, "unstated": 0.5, "initial": 0.5, "rate": 0.1},
        **{"good": 0.85, "cycles": 3, "base_tokens": 400, "tokens_per_difficulty": 400},
        **{"base_temperature": 0.3, "temperature_per_difficulty": 0.2},
    }


def test_the_reason_holds_the_comparison_that_decided() -> None:
    assert assess(0.45, 0.27).reason == "c 0.378 (0.45 (stated), profile 0.27) < 0.500"
    raised = assess(1.0, 0.5).reason
    assert raised == "c 0.800 (1.00 (stated), profile 0.50) >= 0.600, raised as |c_v - c_p| is 0.50"
    assert assess(0.6, None).reason == "c 0.600 (0.60 (stated), no profile) >= 0.500"
    assert assign({"b": (0.3, 0.5), "c": (0.4, 0.5)}).reason == "best other agent c 0.440 < 0.5"
    assert assign({}, legal=(Action.COLLABORATE,)).reason == "best other agent (none) 0.000 < 0.5"
    state = State("d", "iterate", signals(quality=0.9), round=1)
    assert RULES.decide(state, (Action.STOP, Action.AGAIN)).reason == "evaluated at 0.900 >= 0.85 after 1 of 3 cycles"
    unknown = RULES.decide(State("d", "iterate", round=2), (Action.STOP, Action.AGAIN))
    assert unknown.reason == "evaluated at nothing < 0.85 after 2 of 3 cycles"
    assert unknown.scores == {Action.STOP: -1.0, Action.AGAIN: 0.85}


def test_every_critic_is_heard_and_of_the_legal_ones_the_most() -> None:
    every = (Action.SYNTHESISE, Action.MONITOR, Action.MONITOR_CONTROL)
    heard = RULES.decide(State("d", "regulate"), every)
    assert (heard.action, heard.scores) == (
        Action.MONITOR_CONTROL,
        {Action.MONITOR_CONTROL: 3.0, Action.MONITOR: 2.0, Action.SYNTHESISE: 1.0},
    )
    assert RULES.decide(State("d", "regulate"), every[:2]).action == Action.MONITOR


def test_of_candidates_that_nobody_evaluated_the_first_is_selected_and_the_reason_says_so() -> None:
    known = {"one": signals(), "two": signals()}
    found = RULES.decide(State("d", "select", candidates=known), tuple(known))
    assert (found.action, found.reason) == ("one", "best evaluated of 2; none was evaluated")
    zero = RULES.decide(State("d", "select", candidates={"one": signals(), "two": signals(quality=0)}), tuple(known))
    assert (zero.action, zero.reason) == ("two", "best evaluated of 2")


def test_an_argument_is_kept_only_where_a_checkpoint_judged_it_or_nobody_can() -> None:
    def review(own: Signals, *legal: str) -> tuple[str, str]:
        decision = RULES.decide(State("d", "review", own), legal)
        assert decision.scores == {action: float(action == decision.action) for action in legal}
        return decision.action, decision.reason

    assert review(Signals(), Action.KEEP, Action.JUDGE) == (
        Action.JUDGE,
        "the paper's meta-evaluator judges every argument",
    )
    read = Signals(quality=Signal(0.0, "abc"))
    assert review(read, Action.KEEP, Action.JUDGE) == (Action.KEEP, "a checkpoint judges in the judge's place")
    assert review(Signals(), Action.KEEP) == (Action.KEEP, "this variant has no judge")
    assert review(read, Action.KEEP) == (Action.KEEP, "a checkpoint judges in the judge's place")


@pytest.mark.parametrize("policy", [RULES, Exhaustive(), EpsilonGreedy(RULES, epsilon=1.0), ReviewRules()])
def test_no_policy_lets_an_agent_that_failed_answer_however_sure_it_was(policy: Policy) -> None:
    reviews = isinstance(policy, ReviewRules)
    point, keeps, other = ("review", Action.KEEP, Action.JUDGE) if reviews else ("assess", Action.EXECUTE, Action.ASK)
    known = signals(confidence=1.0, profile=1.0, quality=1.0)
    for number in range(20):
        state = State(f"d{number}", point, known, "a", failed={"a": "timed out"})
        decision = policy.decide(state, [keeps, other])
        assert decision.action == other
        assert keeps not in decision.propensities
        with pytest.raises(RecordError, match=rf"nothing is left to do at {point}; failed: a \(timed out\)"):
            policy.decide(state, [keeps])


def test_nobody_delegates_to_an_agent_that_failed_it_has_no_vote_and_is_not_selected() -> None:
    peers = {"b": signals(confidence=1.0, profile=1.0), "c": signals(confidence=0.6, profile=0.6)}
    legal = ("b", "c", Action.COLLABORATE)
    state = State("d", "assign", signals(confidence=0.1), "a", peers, failed={"b": ""})
    decision = RULES.decide(state, legal)
    assert (decision.action, set(decision.scores)) == ("c", {"c", Action.COLLABORATE})
    assert decision.reason.endswith("; failed: b (no reason was given)")
    alone = State("d", "assign", signals(confidence=0.1), "a", peers, failed={"b": "x", "c": "y"})
    assert RULES.decide(alone, legal).action == Action.COLLABORATE, "a is left to answer"
    gone = State("d", "assign", signals(), "a", peers, failed={"a": "w", "b": "x", "c": "y"})
    with pytest.raises(RecordError, match=r"failed: a \(w\), b \(x\), c \(y\)"):
        RULES.decide(gone, legal)
    candidates = {"0": signals(quality=0.9), "1": signals(quality=0.2)}
    state = State("d", "select", candidates=candidates, failed={"0": "empty"})
    assert RULES.decide(state, ["0", "1"]).action == "1"
