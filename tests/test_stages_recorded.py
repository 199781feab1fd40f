"""On recorded runs the stage policy learns from the rows that it would be shown, and uses a head only where it won."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from planted_stages import PLACE, PRICE, T, scored
from scripted import Answer, ScriptedLLM, run_once

from metaprobe.checkpoints import load_checkpoint
from metaprobe.pipelines import SYSTEMS
from metaprobe.pipelines.answers import canonical, final_answer
from metaprobe.probes.signals import Signal, Signals
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Decision, Item, Label, Run
from metaprobe.routing.actions import AGAIN, STOP
from metaprobe.routing.explore import Exhaustive
from metaprobe.routing.measured import QUESTION, measure_answers
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.policy import Outcome, State
from research.stages.command import train_stages_command
from research.stages.fit import best_evaluated
from research.stages.policy import StagePolicy
from research.stages.read import critic_row, cycle_rows, cycles_of, stage_data
from research.stages.state import answer_rows
from research.stages.train import study_stages, train_stages
from research.stages.ways import ORACLE, first_stop

RECORDED = Path(__file__).parent.parent / "recorded"


# What is read at run time is what was recorded.


class Spy:
    """A policy that remembers what it was shown."""

    def __init__(self, policy: Exhaustive | PaperRules) -> None:
        self.policy = policy
        self.states: list[State] = []

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        self.states.append(state)
        return self.policy.decide(state, legal_actions)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """It learns nothing."""


def answered(run: Run, stages: Sequence[str]) -> Run:
    """The run with every answer of these stages checked."""
    labels = tuple(Label(c.id, "correct", float(c.round == 1), "program") for c in run.calls if c.stage in stages)
    return dataclasses.replace(run, labels=labels, outcome=1.0)


def test_rows_of_recorded_cycles_are_those_that_the_policy_was_shown() -> None:
    item = Item(id="i", question="Ann has 3 bags of 4 apples. How many?", gold=("12",), check="number")
    script: dict[str, Answer] = {
        "monitor": ["Task_Features: a\nDifficulty (0-1): 0.25", "none", "Difficulty (0-1): 0.5"],
        "strategy": "Selected Strategy: multiplication",
        "answer": ["<answer> 11", "<answer> I do not know", "<answer>\n11.0\n</answer> so it is"],
        "verify": [scored(0.5, 0.7), "", scored(0.9, 0.9, 0.9, 0.8)],
    }
    spy = Spy(Exhaustive())
    run = answered(run_once(SYSTEMS["monitor-generate-verify"], item, ScriptedLLM(script), policy=spy), ["answer"])
    calls = [call for call in run.calls if call.stage == "answer"]
    rows = cycle_rows(run, calls, [canonical(item, final_answer(item, call.text)) for call in calls], T)
    iterate, budget = ([s for s in spy.states if s.point == p] for p in ("iterate", "budget"))
    assert len(iterate) == T
    for t, state in enumerate(iterate):
        np.testing.assert_array_equal(answer_rows(state), rows[t, : t + 1])
        assert np.isnan(rows[t, t + 1 :]).all()
    np.testing.assert_array_equal(answer_rows(spy.states[-1]), rows[-1])
    for t, state in enumerate(budget):
        reads = [PLACE[name] for name in ("difficulty", "log_question", "round")]
        np.testing.assert_array_equal(answer_rows(state)[0, reads], rows[-1, t, reads])
    assert rows[-1, :, PLACE["agreeing"]].tolist() == [0.5, 0.0, 0.5]
    assert rows[-1, :, PLACE["answered"]].tolist() == [1.0, 0.0, 1.0]
    np.testing.assert_allclose(rows[-1, :, PLACE["quality"]], [0.6, np.nan, 0.875])


def test_the_row_of_a_recorded_first_answer_is_the_one_that_the_policy_was_shown() -> None:
    item = Item(id="i", question="Is it so?", gold=("true",), choices=("true", "false"), check="choice")
    said = dict.fromkeys(("monitor", "control", "synthesis"), "Answer: true")
    spy = Spy(PaperRules())
    run = run_once(SYSTEMS["metacrit"], item, ScriptedLLM({"answer": "It is.\nAnswer: true", **said}), policy=spy)
    (state,) = spy.states
    np.testing.assert_array_equal(answer_rows(state), critic_row(run, run.calls[0]))
    assert answer_rows(state)[0, PLACE["answered"]] == 1.0


def test_measured_features_have_known_values() -> None:
    logprobs = np.array([-1, -2, -3, -4, -5, -6, -7, -9], dtype=np.float32)
    whole, bare = Call(id="a", logprobs=logprobs, finish_reason="length"), Call(id="b", finish_reason="stop")
    found = measure_answers("how?", [whole, bare, bare], ["4", "", "4"])
    assert found[QUESTION] == {"log_question": np.log1p(4)}
    assert found["0"] == {"cut": 1.0, "answered": 1.0, "last_logprob": -8.0, "agreeing": 0.5}
    assert found["1"] == {"cut": 0.0, "answered": 0.0, "agreeing": 0.0}
    assert "agreeing" not in measure_answers("", [whole], ["4"])["0"]
    four = measure_answers("how?", [bare] * 4, ["4", "4", "5", "4"])
    assert [four[str(place)]["agreeing"] for place in range(4)] == [2 / 3, 2 / 3, 0.0, 2 / 3]
    assert measure_answers("", [Call(id="c", logprobs=logprobs[:3])], ["4"])["0"]["last_logprob"] == -3.0


def test_each_call_needs_its_answer() -> None:
    with pytest.raises(ValueError, match="shorter"):
        measure_answers("", [Call(id="a"), Call(id="b")], ["4"])


def test_the_mean_of_a_long_answer_loses_no_digits() -> None:
    logprobs = -np.random.default_rng(0).random(4001).astype(np.float32)
    found = measure_answers("", [Call(id="a", logprobs=logprobs)], [""])["0"]["last_logprob"]
    assert found == pytest.approx(math.fsum(map(float, logprobs[-1000:])) / 1000, abs=1e-12)


# Real runs.


@pytest.fixture(scope="module")
def gsm8k() -> list[Run]:
    return list(RunStore(RECORDED / "gsm8k-mgv"))


def test_the_rule_on_recorded_cycles_is_the_papers_rule(gsm8k: list[Run]) -> None:
    data, rules = cycles_of(gsm8k), PaperRules()
    stops = first_stop(~(data.quality[:, :-1] >= rules.good))
    best = best_evaluated(data.quality)
    assert (len(data), data.cycles) == (200, T)
    assert 0.1 < stops.astype(bool).mean() < 0.5, "it stops early and late"
    for i, quality in enumerate(data.quality):
        signals = [Signals(quality=None if np.isnan(q) else Signal(q, "stated")) for q in quality]
        decisions = [rules.decide(State("d", "iterate", s, round=t + 1), [STOP, AGAIN]) for t, s in enumerate(signals)]
        assert [d.action for d in decisions].index(STOP) == stops[i]
        candidates = {str(c): s for c, s in enumerate(signals)}
        assert int(rules.decide(State("d", "select", candidates=candidates), list("012")).action) == best[i, -1]


def test_a_policy_trained_on_recorded_runs_uses_a_head_only_where_it_won(gsm8k: list[Run], tmp_path: Path) -> None:
    checkpoint, studies = train_stages(tmp_path / "c", gsm8k, folds=3, seeds=1)
    policy = StagePolicy(load_checkpoint(checkpoint.path))
    assert checkpoint.trust == "unaudited"
    assert set(studies) == set(policy.heads) == {"iterate", "select", "budget"}
    for point, study in studies.items():
        assert study.used == all(gain.low > 0 for way, gain in study.gains.items() if way != ORACLE)
        assert policy.heads[point].used == study.used
    data = cycles_of(gsm8k)
    assert studies["iterate"].ways["always one cycle"].correct.mean() == data.correct[:, 0].mean()
    assert studies["iterate"].ways["the last of 3 cycles"].correct.mean() == data.correct[:, -1].mean()


def test_the_command_trains_on_metacrits_runs_and_the_policy_is_loaded_by_its_kind(tmp_path: Path) -> None:
    line = [str(RECORDED / "creak-metacrit"), "--out", str(tmp_path / "c"), "--folds", "2"]
    result = CliRunner().invoke(train_stages_command, line)
    assert result.exit_code == 0, result.output
    assert "A1's answer, no synthesis" in result.output
    policy = StagePolicy.load(tmp_path / "c")
    assert policy.system == "metacrit"
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    assert manifest["thresholds"] == {"token_price": PRICE}


def test_runs_that_cannot_teach_are_refused_with_what_to_do(gsm8k: list[Run]) -> None:
    other = dataclasses.replace(gsm8k[0], id="x", system="metacrit")
    with pytest.raises(RecordError, match="runs of metacrit, monitor-generate-verify; a stage policy learns"):
        stage_data([*gsm8k, other])
    with pytest.raises(RecordError, match=r"49 of 49 runs, in 49 groups.*--policy exhaustive"):
        stage_data(gsm8k[:49])
    with pytest.raises(RecordError, match=r"0 of 1 runs.*--variant every-stage"):
        stage_data([other])
    with pytest.raises(RecordError, match="no head for regulate in these runs"):
        study_stages(cycles_of(gsm8k), use=["regulate"])


@given(st.lists(st.lists(st.booleans(), min_size=2, max_size=2), min_size=1, max_size=8))
def test_the_first_stop_is_that_of_going_through_the_cycles_one_by_one(again: list[list[bool]]) -> None:
    expected = [next((t for t, more in enumerate(each) if not more), 2) for each in again]
    assert first_stop(np.array(again)).tolist() == expected
