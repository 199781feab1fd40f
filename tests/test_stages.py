"""The learned stages: they find what was planted, read what the pipelines know, and leave the rest to the paper."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scripted import Answer, ScriptedLLM, run_once

from metaprobe.checkpoints import Checkpoint, ContractMismatch, load_checkpoint
from metaprobe.pipelines import SYSTEMS
from metaprobe.pipelines.answers import canonical, final_answer
from metaprobe.probes.signals import Signal, Signals
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Decision, Item, Label, Run
from metaprobe.routing.explore import Exhaustive
from metaprobe.routing.paper import AGAIN, GENERATE, MONITOR, MONITOR_CONTROL, STOP, SYNTHESISE, PaperRules
from metaprobe.routing.policy import Outcome, State
from metaprobe.routing.stages import ACTIONS, RIGHT, StagePolicy, budget_tokens
from metaprobe.routing.stages_state import COLUMNS, QUESTION, answer_rows, measured
from metaprobe.stages_cli import train_stages_command
from metaprobe.training.calibrate import sigmoid
from metaprobe.training.stages import PointStudy, study_stages, train_stages, write_stages
from metaprobe.training.stages_data import Critics, Cycles
from metaprobe.training.stages_fit import FittedStages, best_evaluated, fit_stages
from metaprobe.training.stages_read import critic_row, cycle_rows, cycles_of, stage_data
from metaprobe.training.stages_ways import LEARNED, ORACLE, RULE, Played, first_stop, learned_critics, learned_stops

RECORDED = Path(__file__).parent.parent / "recorded"
T = 3
CYCLE_TOKENS = 100.0
PRICE = 0.02
PLACE = {name: column for column, name in enumerate(COLUMNS)}


# Planted truth: x is the last quarter's log-probability. Every cycle fixes a wrong answer with fix(x) and breaks a
# right one with fix(-x). The mean log-probability, which the tuned threshold reads, tells nothing.


def fix(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return sigmoid(-1 - 3 * x)


def chances(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, T): P(right) after each cycle."""
    right = [np.full(len(x), 0.5)]
    for _ in range(T - 1):
        right.append(right[-1] + (1 - right[-1]) * fix(x) - right[-1] * fix(-x))
    return np.stack(right, axis=1)


def blank_rows(n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    rows = np.full((n, T, T, len(COLUMNS)), np.nan, dtype=np.float32)
    for t in range(T):
        for c in range(t + 1):
            rows[:, t, c] = rng.normal(size=(n, len(COLUMNS)))
            rows[:, t, c, PLACE["round"]] = c
            rows[:, t, c, PLACE["log_tokens"]] = np.log1p(50)
            rows[:, t, c, PLACE["quality"]] = 0.5 + 0.1 * c
            rows[:, t, c, PLACE["quality_change"]] = 0.1 if c else np.nan
            rows[:, t, c, PLACE["agreeing"]] = 0.5 if t else np.nan
    return rows


def planted_cycles(n: int, seed: int) -> tuple[Cycles, NDArray[np.float64]]:
    """Problems, and what the last quarter's log-probability of each tells."""
    rng = np.random.default_rng(seed)
    x, rows = rng.normal(size=n), blank_rows(n, rng)
    rows[..., PLACE["last_logprob"]] = np.where(np.isnan(rows[..., 0]), np.nan, x[:, None, None])
    correct = np.zeros((n, T))
    correct[:, 0] = rng.random(n) < 0.5
    for t in range(1, T):
        fixed, broken = rng.random(n) < fix(x), rng.random(n) < fix(-x)
        correct[:, t] = np.where(correct[:, t - 1] == 1, ~broken, fixed)
    return cycles_with(rows, correct), x


def cycles_with(rows: NDArray[np.float32], correct: NDArray[np.float64]) -> Cycles:
    n = len(rows)
    return Cycles(
        groups=tuple(f"g{i}" for i in range(n)),
        rows=rows,
        correct=correct,
        quality=rows[:, -1, :, PLACE["quality"]].astype(np.float64),
        tokens=np.full((n, T), CYCLE_TOKENS),
        lengths=np.full((n, T), 50.0),
        limits=np.full((n, T), 600.0),
        votes=np.ones((n, T)),
        ran=np.full(n, T),
        fingerprint="f",
    )


def regret(stops: NDArray[np.intp], x: NDArray[np.float64]) -> float:
    """Against who knows every probability."""
    value = chances(x) - PRICE * CYCLE_TOKENS * np.arange(1, T + 1) / 1000
    return float((value.max(axis=1) - value[np.arange(len(x)), stops]).mean())


def test_the_continue_heads_regret_falls_to_the_oracles_with_more_problems() -> None:
    test, x = planted_cycles(3000, seed=9)
    regrets = [
        np.mean([regret(learned_stops(fit_stages(planted_cycles(n, seed)[0]), test, PRICE), x) for seed in range(2)])
        for n in (40, 500)
    ]
    fixed = min(regret(np.full(len(x), stop), x) for stop in range(T))
    assert fixed > 0.15, "there is something to learn"
    assert regrets[1] < 0.01
    assert regrets[1] < regrets[0] < fixed


@pytest.fixture(scope="module")
def planted() -> tuple[Cycles, dict[str, PointStudy]]:
    data, _ = planted_cycles(300, seed=1)
    return data, study_stages(data, token_price=PRICE, folds=3, seeds=1)


def test_a_head_that_finds_what_was_planted_wins_and_is_used(planted: tuple[Cycles, dict[str, PointStudy]]) -> None:
    _, studies = planted
    study = studies["iterate"]
    assert study.used
    assert all(gain.low > 0 for way, gain in study.gains.items() if way != ORACLE)
    assert study.gains[ORACLE].high <= 0, "nothing is better than the oracle"
    assert study.ways[LEARNED].correct.mean() > study.ways[RULE].correct.mean() + 0.1


def test_where_outcomes_have_nothing_to_do_with_the_answers_no_head_is_used() -> None:
    rng = np.random.default_rng(3)
    data = cycles_with(blank_rows(150, rng), (rng.random((150, T)) < 0.4).astype(float))
    studies = study_stages(data, token_price=PRICE, folds=3, seeds=1, use=["budget"])
    assert [point for point, study in studies.items() if study.used] == ["budget"], "which was asked for"
    assert studies["budget"].why.startswith("it was asked for, though its head was not better than")
    assert all("not better than" in study.why for study in studies.values())


def test_the_selection_head_returns_the_answer_that_was_planted_as_right() -> None:
    rng = np.random.default_rng(4)
    rows = blank_rows(300, rng)
    signal = rng.normal(size=(300, T))
    rows[:, -1, :, PLACE["last_logprob"]] = signal
    data = cycles_with(rows, (rng.random((300, T)) < sigmoid(4 * signal)).astype(float))
    study = study_stages(data, token_price=PRICE, folds=3, seeds=1)["select"]
    assert study.used
    assert study.ways[LEARNED].correct.mean() > 0.9 * study.ways[ORACLE].correct.mean()


def planted_critics(n: int, seed: int) -> tuple[Critics, NDArray[np.float64]]:
    """The longer the question, the more the critics help; P(right) of each action (n, 3) is known."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, len(COLUMNS))).astype(np.float32)
    rows[:, PLACE["log_tokens"]] = np.log1p(50)
    for name in ("quality", "difficulty", "agreeing", "quality_change"):
        rows[:, PLACE[name]] = np.nan
    x = rows[:, PLACE["log_question"]].astype(np.float64)
    p = np.stack([sigmoid(-2 * x), np.full(n, 0.5), sigmoid(2 * x)], axis=1)
    tokens = np.tile([100.0, 150.0, 250.0], (n, 1))
    groups = tuple(f"g{i}" for i in range(n))
    return Critics(groups, rows, (rng.random(n) < 0.5).astype(float), (rng.random((n, 3)) < p).astype(float), tokens), p


def test_the_stage_heads_hear_the_critics_where_they_help_and_spare_them_elsewhere() -> None:
    data, _ = planted_critics(300, seed=5)
    test, p = planted_critics(3000, seed=6)
    value = p - PRICE * test.tokens / 1000
    chosen = learned_critics(fit_stages(data), test, PRICE)
    regret = float((value.max(axis=1) - value[np.arange(len(p)), chosen]).mean())
    assert regret < 0.02
    assert float((value.max(axis=1) - value[:, 2]).mean()) > 0.15, "hearing them always is not as good"
    study = study_stages(data, token_price=PRICE, folds=3, seeds=1)["regulate"]
    assert study.used


# What is exported decides as what was fitted.


@pytest.fixture(scope="module")
def exported(
    planted: tuple[Cycles, dict[str, PointStudy]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Checkpoint, FittedStages]:
    """Every head in use, though only one won."""
    data, studies = planted
    used = {point: dataclasses.replace(study, used=True) for point, study in studies.items()}
    fitted = fit_stages(data, used=list(used))
    return write_stages(tmp_path_factory.mktemp("stages") / "c", data, fitted, used, token_price=PRICE), fitted


def state_of(rows: NDArray[np.float32], point: str = "iterate", without: Sequence[str] = ()) -> State:
    """The state whose rows these are, lacking the columns `without`."""
    named = [
        {name: float(v) for name, v in zip(COLUMNS, row, strict=True) if not np.isnan(v) and name not in without}
        for row in rows
    ]
    own = ("mean_logprob", "min_logprob", "quality", "difficulty")
    signals = {}
    for place, values in enumerate(named):
        found = {name: Signal(values[name], "planted") for name in own if name in values}
        if "log_tokens" in values:
            found["tokens"] = Signal(float(np.expm1(values["log_tokens"])), "planted")
        signals[str(place)] = Signals(**found)
    features = {str(place): {k: v for k, v in values.items() if k not in own} for place, values in enumerate(named)}
    return State("d", point, signals[str(len(rows) - 1)], candidates=signals, features=features, round=len(rows))


def test_the_exported_policy_decides_as_the_fitted_heads(
    exported: tuple[Checkpoint, FittedStages], planted: tuple[Cycles, dict[str, PointStudy]]
) -> None:
    checkpoint, fitted = exported
    assert not checkpoint.trustworthy, "heads are used that did not win, and it says so"
    policy, data = StagePolicy(checkpoint), planted[0].take(np.arange(50))
    stops, end = learned_stops(fitted, data, PRICE), fitted.output(RIGHT, data.rows[:, -1])
    for i in range(len(data)):
        for t in range(T - 1):
            decision = policy.decide(state_of(data.rows[i, t, : t + 1]), [STOP, AGAIN])
            assert decision.reason.startswith("P(fixes)")
            assert decision.action == (STOP if stops[i] <= t else AGAIN)
            if decision.action == STOP:
                break
        chosen = policy.decide(state_of(data.rows[i, -1], "select"), ["0", "1", "2"])
        assert int(chosen.action) == end[i].argmax()
        np.testing.assert_allclose([chosen.scores[str(c)] for c in range(T)], end[i], atol=1e-5)
        assert sum(chosen.propensities.values()) == 1


def test_a_higher_price_for_tokens_stops_earlier(
    exported: tuple[Checkpoint, FittedStages], planted: tuple[Cycles, dict[str, PointStudy]]
) -> None:
    def cycles(price: float) -> int:
        policy = StagePolicy(exported[0], token_price=price)
        states = [state_of(rows[0, :1]) for rows in planted[0].rows[:40]]
        return sum(policy.decide(state, [STOP, AGAIN]).action == AGAIN for state in states)

    assert cycles(0.0) > cycles(1.0) > cycles(9.0) == 0


def test_the_budget_head_sets_max_tokens_and_the_rule_the_temperature(
    exported: tuple[Checkpoint, FittedStages],
) -> None:
    known = {"difficulty": Signal(0.5, "stated")}
    state = State("d", "budget", Signals(**known), features={QUESTION: {"log_question": 0.3}}, round=1)
    decision = StagePolicy(exported[0]).decide(state, [GENERATE])
    assert decision.scores["temperature"] == PaperRules().decide(state, [GENERATE]).scores["temperature"]
    assert decision.scores["max_tokens"] == pytest.approx(50, abs=2)  # all planted answers have 50 tokens
    assert budget_tokens(1e-9) == 32


def test_critics_are_chosen_among_the_legal_actions(tmp_path: Path) -> None:
    data, _ = planted_critics(200, seed=5)
    fitted = fit_stages(data)
    gained = {"regulate": PointStudy({LEARNED: played(200)}, {}, True, "planted")}
    policy = StagePolicy(write_stages(tmp_path / "c", data, fitted, gained, token_price=PRICE))
    expected = learned_critics(fitted, data, PRICE)
    for i in range(30):
        whole = state_of(data.rows[i : i + 1], "regulate")
        state = dataclasses.replace(whole, candidates={}, round=0)
        assert policy.decide(state, list(ACTIONS)).action == ACTIONS[expected[i]]
        assert policy.decide(state, [MONITOR, MONITOR_CONTROL]).action in (MONITOR, MONITOR_CONTROL)
        assert policy.decide(state, [SYNTHESISE]).action == SYNTHESISE


def played(n: int) -> Played:
    return Played(np.zeros(n), np.zeros(n), np.zeros(n))


# Where it does not know, the paper's rule decides, and the reason says why.


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"without": ("last_logprob",)}, "last_logprob is not known"),
        ({"without": ("quality",)}, "quality is not known"),
        ({"values": {"mean_logprob": -40.0}}, "mean_logprob is -40; in training"),
        ({"values": {"cut": 30.0}}, "cut is 30; in training"),
    ],
)
def test_what_is_missing_or_strange_is_left_to_the_papers_rule(
    exported: tuple[Checkpoint, FittedStages],
    planted: tuple[Cycles, dict[str, PointStudy]],
    change: dict[str, dict[str, float]],
    why: str,
) -> None:
    rows = planted[0].rows[0, 0, :1].copy()
    for name, value in change.get("values", {}).items():
        rows[0, PLACE[name]] = value
    state = state_of(rows, without=tuple(change.get("without", ())))
    decision = StagePolicy(exported[0]).decide(state, [STOP, AGAIN])
    rule = PaperRules().decide(state, [STOP, AGAIN])
    assert (decision.action, decision.scores, decision.propensities) == (rule.action, rule.scores, rule.propensities)
    assert why in decision.reason
    assert rule.reason in decision.reason


def test_what_may_be_missing_in_training_may_be_missing_later(
    exported: tuple[Checkpoint, FittedStages], planted: tuple[Cycles, dict[str, PointStudy]]
) -> None:
    assert np.isnan(planted[0].rows[0, 0, 0, PLACE["agreeing"]])
    assert StagePolicy(exported[0]).decide(state_of(planted[0].rows[0, 0, :1]), [STOP, AGAIN]).reason.startswith("P(")


def test_no_more_cycles_than_the_rules_allow(
    exported: tuple[Checkpoint, FittedStages], planted: tuple[Cycles, dict[str, PointStudy]]
) -> None:
    state = state_of(planted[0].rows[0, 1, :2])
    decision = StagePolicy(exported[0], PaperRules(cycles=2)).decide(state, [STOP, AGAIN])
    assert decision.action == STOP
    assert "2 cycles are the most" in decision.reason
    rows = planted[0].rows[0, 2, :3].copy()
    rows[:, PLACE["quality"]] = [0.4, 0.5, 0.6]
    late = StagePolicy(exported[0], PaperRules(cycles=9)).decide(state_of(rows), [STOP, AGAIN])
    assert "round is 2; in training 0 to 1" in late.reason


def test_a_point_without_a_head_and_a_head_that_did_not_win_are_the_papers(
    planted: tuple[Cycles, dict[str, PointStudy]], tmp_path: Path
) -> None:
    data, studies = planted
    policy = StagePolicy(write_stages(tmp_path / "c", data, fit_stages(data), studies, token_price=PRICE))
    decision = policy.decide(state_of(data.rows[0, 2], "select"), ["0", "1", "2"])
    assert decision.action == "2"  # the best evaluated
    assert "not better than" in decision.reason
    assert "no head for regulate" in policy.decide(State("d", "regulate"), list(ACTIONS)).reason
    policy.observe("d", Outcome(correct=1.0))


def altered(checkpoint: Checkpoint, **changes: object) -> Checkpoint:
    return dataclasses.replace(checkpoint, manifest=dataclasses.replace(checkpoint.manifest, **changes))  # type: ignore[arg-type]


def test_a_checkpoint_that_is_not_a_whole_stage_policy_is_refused(exported: tuple[Checkpoint, FittedStages]) -> None:
    checkpoint, _ = exported
    contract = checkpoint.manifest.contract
    with pytest.raises(ContractMismatch, match="metaprobe train stages"):
        StagePolicy(altered(checkpoint, kind="router"))
    with pytest.raises(ContractMismatch, match="expected kind 'stages' with the columns"):
        StagePolicy(altered(checkpoint, contract={**contract, "columns": ["mean_logprob"]}))
    with pytest.raises(ContractMismatch, match="system 'other'; expected one of"):
        StagePolicy(altered(checkpoint, contract={**contract, "system": "other"}))
    with pytest.raises(ContractMismatch, match=r"no whole stage policy \(KeyError\('select'\)\)"):
        StagePolicy(altered(checkpoint, contract={**contract, "points": {"iterate": contract["points"]["iterate"]}}))
    points = {**contract["points"], "select": {"used": "yes", "why": ""}}
    with pytest.raises(ContractMismatch, match="used is 'yes'"):
        StagePolicy(altered(checkpoint, contract={**contract, "points": points}))
    outputs = tuple(spec for spec in checkpoint.manifest.outputs if spec.name != "fixes")
    with pytest.raises(ContractMismatch, match="lacks again, fixes"):
        StagePolicy(altered(checkpoint, outputs=outputs, contract={**contract, "tokens": {}}))
    with pytest.raises(ContractMismatch, match="no whole stage policy"):
        StagePolicy(altered(checkpoint, contract={**contract, "tokens": 3}))
    with pytest.raises(ContractMismatch, match="no whole stage policy"):
        StagePolicy(altered(checkpoint, support={**checkpoint.manifest.support, "select": {}}))
    with pytest.raises(ContractMismatch, match="token_price is -1"):
        StagePolicy(checkpoint, token_price=-1)


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


def scored(*scores: object) -> str:
    names = ("Coherence", "Plausibility", "Consistency", "Goal-conduciveness")
    return "<evaluate>\n" + "\n".join(f"{n}: {s}" for n, s in zip(names, scores, strict=False))


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


def test_the_pipeline_stops_where_the_continue_head_says_so(exported: tuple[Checkpoint, FittedStages]) -> None:
    item = Item(id="i", question="3 times 4?", gold=("12",), check="number")
    script: dict[str, Answer] = {
        "monitor": "Difficulty (0-1): 0.25",
        "strategy": "multiplication",
        "answer": "<answer> 11",
        "verify": scored(0.5, 0.5, 0.5, 0.5),
    }

    def run(price: float) -> Run:
        policy = StagePolicy(loosened(exported[0]), token_price=price)
        return run_once(SYSTEMS["monitor-generate-verify"], item, ScriptedLLM(script), policy=policy)

    dear, free = (sum(call.stage == "answer" for call in run(price).calls) for price in (9.0, 0.0))
    assert (dear, free) == (1, 3)
    assert all(d.reason.startswith("P(fixes)") for d in run(9.0).decisions if d.point == "iterate")


def loosened(checkpoint: Checkpoint) -> Checkpoint:
    """Everything is within its support."""
    support = {p: {c: [-1e9, 1e9, 0.5] for c in columns} for p, columns in checkpoint.manifest.support.items()}
    return altered(checkpoint, support=support)


def test_measured_features_have_known_values() -> None:
    logprobs = np.array([-1, -2, -3, -4, -5, -6, -7, -9], dtype=np.float32)
    whole, bare = Call(id="a", logprobs=logprobs, finish_reason="length"), Call(id="b", finish_reason="stop")
    found = measured("how?", [whole, bare, bare], ["4", "", "4"])
    assert found[QUESTION] == {"log_question": np.log1p(4)}
    assert found["0"] == {"cut": 1.0, "answered": 1.0, "last_logprob": -8.0, "agreeing": 0.5}
    assert found["1"] == {"cut": 0.0, "answered": 0.0, "agreeing": 0.0}
    assert "agreeing" not in measured("", [whole], ["4"])["0"]


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
    assert checkpoint.trustworthy
    assert set(studies) == set(policy.heads) == {"iterate", "select", "budget"}
    for point, study in studies.items():
        assert study.used == all(gain.low > 0 for way, gain in study.gains.items() if way != ORACLE)
        assert policy.heads[point].used == study.used
    data = cycles_of(gsm8k)
    assert studies["iterate"].ways["always one cycle"].correct.mean() == data.correct[:, 0].mean()
    assert studies["iterate"].ways["the last of 3 cycles"].correct.mean() == data.correct[:, -1].mean()


def test_the_command_trains_on_metacrits_runs_and_the_policy_is_loaded_by_its_kind(tmp_path: Path) -> None:
    from metaprobe.routing.learned_policy import load_policy

    line = [str(RECORDED / "creak-metacrit"), "--out", str(tmp_path / "c"), "--folds", "2"]
    result = CliRunner().invoke(train_stages_command, line)
    assert result.exit_code == 0, result.output
    assert "A1's answer, no synthesis" in result.output
    policy = load_policy(tmp_path / "c")
    assert isinstance(policy, StagePolicy)
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
