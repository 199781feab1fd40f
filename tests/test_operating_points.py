"""Where a checkpoint gives the number, its own operating point takes the paper's place, and a one-way rule is named."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from scripted import ScriptedLLM
from test_mgv import Reader, run, source

from metaprobe.eval.systems.decision_figures import decision_points
from metaprobe.papers.collecting.collect import store_settings
from metaprobe.papers.collecting.collection_summary import summarize_runs
from metaprobe.papers.policies.explore import Exhaustive
from metaprobe.papers.systems import SYSTEMS, Models, Prompts, Setup
from metaprobe.probes.signals import Signal, Signals, combine_probabilities
from metaprobe.records.store import RunStore
from metaprobe.records.types import Decision
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.policy import Action, State
from metaprobe.training.thresholds import match_share, operating_points

RECORDED = Path(__file__).parent.parent / "recorded"
RULES = PaperRules()
OWN = {"iterate": 0.3, "accept": 0.6, "flag": 0.4}


def iterate(value: float, thresholds: dict[str, float], rules: PaperRules = RULES, *, origin: str = "abc") -> Decision:
    signals = Signals(quality=Signal(value, origin, thresholds))
    return rules.decide(State("d", "iterate", signals, round=1), (Action.STOP, Action.AGAIN))


def test_a_read_quality_meets_the_checkpoints_own_threshold_and_the_reason_says_whose_it_is() -> None:
    assert (iterate(0.35, OWN).action, iterate(0.25, OWN).action) == (Action.STOP, Action.AGAIN)
    assert iterate(0.35, OWN).scores == {Action.STOP: 0.35, Action.AGAIN: 0.3}
    assert "evaluated at 0.350 >= 0.300 (the checkpoint's `iterate`)" in iterate(0.35, OWN).reason


@pytest.mark.parametrize(
    ("has", "threshold", "whose"),
    [
        ({"accept": 0.6, "flag": 0.4}, 0.6, "`accept`"),
        ({"flag": 0.4}, 0.4, "`flag`"),
        ({"critical": 0.2}, 0.85, "has no operating point of its own"),
    ],
)
def test_an_older_checkpoint_falls_back_to_the_thresholds_that_it_has(
    has: dict[str, float], threshold: float, whose: str
) -> None:
    decision = iterate(0.5, has)
    assert decision.scores[Action.AGAIN] == threshold
    assert whose in decision.reason


def test_a_threshold_that_was_given_wins_also_where_it_is_the_papers_own() -> None:
    for text, threshold in (("good=0.7", 0.7), ("good=0.85", 0.85)):
        decision = iterate(0.5, OWN, PaperRules.parse(text))
        assert decision.scores[Action.AGAIN] == threshold
        assert "(good, as given)" in decision.reason
    assert repr(PaperRules.parse("good=0.85")) != repr(PaperRules())  # another collection, with runs of its own
    assert repr(PaperRules.parse("cycles=3")) == repr(PaperRules()) == repr(PaperRules.parse(""))
    assert "given" not in repr(PaperRules.parse("good=0.7"))


def test_a_stated_number_meets_the_papers_threshold_and_a_joined_one_the_joined_threshold() -> None:
    assert iterate(0.84, {}, origin="stated").scores[Action.AGAIN] == 0.85
    both = iterate(0.6, OWN, origin="stated+abc")
    assert both.scores[Action.AGAIN] == pytest.approx(combine_probabilities(0.85, 0.3))
    assert "joined" in both.reason


def test_c_meets_a_threshold_mixed_as_c_is_of_the_checkpoints_and_of_theta_for_the_profile() -> None:
    own = Signals(confidence=Signal(0.6, "abc", {"flag": 0.7}), profile=Signal(0.5, "profile"))
    rules = PaperRules()
    decision = rules.decide(State("d", "assess", own, agent="a"), (Action.EXECUTE, Action.ASK))
    assert decision.scores == pytest.approx({Action.EXECUTE: 0.56, Action.ASK: 0.6 * 0.7 + 0.4 * 0.5})
    assert decision.action == Action.ASK
    assert "the checkpoint's `flag`" in decision.reason
    peers = {"b": own, "c": Signals(confidence=Signal(0.55, "abd", {"flag": 0.3}), profile=Signal(0.4, "profile"))}
    assigned = rules.decide(State("d", "assign", own, "a", peers), ("b", "c", Action.COLLABORATE))
    assert assigned.action == Action.COLLABORATE  # b is best, and below its own threshold
    given = PaperRules.parse("theta=0.5").decide(State("d", "assess", own, agent="a"), (Action.EXECUTE, Action.ASK))
    assert (given.action, given.scores[Action.ASK]) == (Action.EXECUTE, 0.5)


def test_a_quality_that_never_reaches_0_85_stops_a_run_at_its_own_threshold() -> None:
    reader = Reader([0.2, 0.4], "answer", thresholds={"iterate": 0.3})
    found, llm = run(signals=source(quality=reader))
    assert llm.stages.count("answer") == 2
    assert "(the checkpoint's `iterate`)" in found.decisions[-2].reason
    reader = Reader([0.2, 0.4, 0.4], "answer", thresholds={"iterate": 0.3})
    _, llm = run(signals=source(quality=reader), policy=PaperRules.parse("good=0.85"))
    assert llm.stages.count("answer") == 3


def test_the_settings_of_a_collection_say_which_threshold_a_checkpoints_number_meets() -> None:
    system = SYSTEMS["monitor-generate-verify"]
    prompts = Prompts.load(system.name, system.prompts)
    setup = Setup(Models(ScriptedLLM({})), prompts, signals=source(quality=Reader([], "answer", thresholds=OWN)))
    told = store_settings(system, setup, text=True)["operating points"]
    assert told == {"iterate: quality": "0.3 (the checkpoint's `iterate`)"}
    fixed = dataclasses.replace(setup, policy=Exhaustive(PaperRules.parse("good=0.85")))
    assert store_settings(system, fixed, text=True)["operating points"] == {"iterate: quality": "0.85 (good, as given)"}
    assert "operating points" not in store_settings(
        system, Setup(setup.models, prompts), text=True
    )  # as in older stores


def test_the_threshold_is_reached_as_often_as_the_stated_number_reached_the_papers() -> None:
    rng = np.random.default_rng(0)
    probability, stated = np.round(rng.beta(2, 8, size=400), 6), rng.choice([0.8, 0.85, 0.95], size=400)
    ids = [f"c{i}" for i in range(400)]
    assert probability.max() < 0.85
    found = operating_points(probability, ids, dict(zip(ids, stated.tolist(), strict=True)))
    assert (probability >= found["iterate"]).mean() == pytest.approx((stated >= 0.85).mean(), abs=0.003)
    assert operating_points(probability, ids, dict.fromkeys(ids, 0.9)) == {}  # always reached: nothing to match
    assert operating_points(probability, ids, dict(zip(ids[:40], stated[:40].tolist(), strict=True))) == {}
    assert match_share(np.array([0.1, 0.2, 0.2, 0.3]), 0.6) == pytest.approx(0.2, abs=1e-4)


def decision(number: int, value: float, threshold: float, action: str) -> Decision:
    return Decision(
        f"d{number}",
        "iterate",
        action,
        {Action.STOP: value, Action.AGAIN: threshold},
        {Action.STOP: 0.5, Action.AGAIN: 0.5},
        "why",
    )


def test_a_rule_that_decides_one_way_every_time_is_reported_as_such() -> None:
    found, _ = run([0.9])
    again = [decision(i, 0.01 * (i % 42), 0.85, Action.AGAIN) for i in range(60)]
    ended = [decision(100 + i, 0.3, 0.85, Action.STOP) for i in range(30)]  # the last cycle ended the run
    told = decision_points([dataclasses.replace(found, decisions=(*again, *ended))])["iterate"]
    assert told.one_way == (
        "iterate: again in 60 of 60 decisions: the threshold 0.85 is never reached (largest value 0.41)"
    )
    assert (told.actions, told.forced) == ({Action.AGAIN: 60, Action.STOP: 30}, 30)
    both = dataclasses.replace(found, decisions=(*again, decision(99, 0.9, 0.85, Action.STOP)))
    assert decision_points([both])["iterate"].one_way == ""
    for count, one_way in ((19, False), (20, True)):
        few = dataclasses.replace(found, decisions=tuple(again[:count]))
        assert bool(decision_points([few])["iterate"].one_way) == one_way


def test_the_summary_of_recorded_runs_names_the_rule_that_hears_every_critic_and_is_json() -> None:
    stopped = list(RunStore(RECORDED / "gsm8k-mgv"))[:60]
    (summary,) = summarize_runs(stopped, resamples=20)
    told = summary["decisions"]["iterate"]
    assert told["one_way"] == ""  # 0.85 was reached by some stated evaluations and not by others
    assert told["forced"] > 0  # everything was tried all the same
    json.dumps(summary, allow_nan=False)
