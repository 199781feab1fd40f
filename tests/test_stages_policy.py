"""The exported stage policy decides as its fitted heads, and leaves what it does not know to the paper's rule."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import planted_stages
import pytest
from numpy.typing import NDArray
from planted_stages import PLACE, PRICE, T, planted_critics, scored
from scripted import Answer, ScriptedLLM, run_once

from metaprobe.checkpoints import Checkpoint, ContractMismatch, TamperedCheckpoint
from metaprobe.checkpoints.graph_session import Arrays, GraphSession
from metaprobe.pipelines import SYSTEMS
from metaprobe.probes.signals import Signal, Signals
from metaprobe.records.types import Item, Run
from metaprobe.routing.actions import AGAIN, GENERATE, MONITOR, MONITOR_CONTROL, STOP, SYNTHESISE
from metaprobe.routing.measured import QUESTION
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.policy import Outcome, State
from research.stages.data import Cycles
from research.stages.fit import FittedStages, fit_stages
from research.stages.policy import ACTIONS, RIGHT, StagePolicy, budget_tokens
from research.stages.state import COLUMNS
from research.stages.train import PointStudy, write_stages
from research.stages.ways import LEARNED, PlayedStages, learned_critics, learned_stops

planted = planted_stages.planted


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
    assert checkpoint.weaknesses, "heads are used that did not win, and it says so"
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


def played(n: int) -> PlayedStages:
    return PlayedStages(np.zeros(n), np.zeros(n), np.zeros(n))


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


class Saying(GraphSession):
    """A graph that gives the same outputs whatever it is shown."""

    def __init__(self, **outputs: list[float]) -> None:
        self.given = {name.replace("_", " "): np.array(values, dtype=np.float32) for name, values in outputs.items()}

    def run(self, inputs: Arrays) -> Arrays:
        return self.given


def test_another_cycle_must_bring_more_than_its_price_and_of_equals_the_first_is_taken(
    exported: tuple[Checkpoint, FittedStages],
) -> None:
    def deciding(**outputs: list[float]) -> StagePolicy:
        tokens = {AGAIN: 250.0, **dict.fromkeys(ACTIONS, 0.0)}
        contract = {**exported[0].manifest.contract, "tokens": tokens}
        checkpoint = altered(loosened(exported[0]), contract=contract)
        return StagePolicy(dataclasses.replace(checkpoint, session=Saying(**outputs)), token_price=1.0)

    even = deciding(fixes=[0.5], breaks=[0.25]).decide(state_of(ROW), [STOP, AGAIN])
    assert (even.action, even.scores) == (STOP, {STOP: 0.0, AGAIN: 0.0})
    gained = deciding(fixes=[0.75], breaks=[0.25]).decide(state_of(ROW), [STOP, AGAIN])
    assert (gained.action, gained.scores) == (AGAIN, {STOP: 0.0, AGAIN: 0.25})
    assert gained.reason == "P(fixes) 0.750 - P(breaks) 0.250 - price 0.250 is +0.250"
    three = state_of(np.repeat(ROW, 3, axis=0), "select")
    assert deciding(right=[0.25, 0.5, 0.5]).decide(three, ["0", "1", "2"]).action == "1"
    assert deciding(right=[0.75, 0.5, 0.5]).decide(three, ["1", "2"]).scores == {"1": 0.5, "2": 0.5}


def test_it_reads_what_its_heads_were_trained_with_and_what_the_rule_reads(
    exported: tuple[Checkpoint, FittedStages], planted: tuple[Cycles, dict[str, PointStudy]], tmp_path: Path
) -> None:
    missing = seen(exported[0], difficulty=[0.0, 0.0, 0.0])
    heads = {"mean_logprob", "min_logprob", "quality"}
    assert set(StagePolicy(missing).reads["iterate"]) == heads
    assert set(StagePolicy(exported[0]).reads["select"]) == heads | {"difficulty"}
    assert set(StagePolicy(exported[0]).reads["budget"]) == {"difficulty"}
    assert StagePolicy(exported[0]).reads["assess"] == PaperRules().reads["assess"]
    data, studies = planted
    unused = {point: dataclasses.replace(study, used=False) for point, study in studies.items()}
    lost = write_stages(tmp_path / "c", data, fit_stages(data), unused, token_price=PRICE)
    assert StagePolicy(lost).reads == PaperRules().reads


def test_an_answer_may_have_at_least_32_tokens_and_else_its_share_of_2048_rounded_up() -> None:
    assert [budget_tokens(share) for share in (0.0, 32 / 2048, 32.5 / 2048, 0.5, 1.0)] == [32, 32, 33, 1024, 2048]


def test_the_token_price_is_the_checkpoints_unless_one_is_given_and_may_be_nothing(
    exported: tuple[Checkpoint, FittedStages],
) -> None:
    checkpoint, _ = exported
    assert StagePolicy(checkpoint).token_price == PRICE
    assert StagePolicy(checkpoint, token_price=0).token_price == 0
    with pytest.raises(ContractMismatch, match="token_price is inf; expected a number of at least 0"):
        StagePolicy(checkpoint, token_price=float("inf"))
    loaded = StagePolicy.load(checkpoint.path, rules=PaperRules(cycles=2), token_price=0.5, sha256=checkpoint.digest)
    assert (loaded.token_price, loaded.rules.cycles) == (0.5, 2)
    with pytest.raises(TamperedCheckpoint):
        StagePolicy.load(checkpoint.path, sha256="0" * 64)


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


@pytest.mark.parametrize(("known", "rule"), [(1.0, True), (0.95, True), (0.94, False), (0.0, False)])
def test_a_column_belongs_to_training_where_at_least_95_in_100_rows_had_it(
    exported: tuple[Checkpoint, FittedStages], known: float, rule: bool
) -> None:
    policy = StagePolicy(seen(exported[0], agreeing=[0.0, 1.0, known]))
    reason = policy.decide(state_of(ROW), [STOP, AGAIN]).reason
    assert ("agreeing is not known, and was in training" in reason) == rule


@pytest.mark.parametrize(("value", "inside"), [(-0.19, True), (-0.21, False), (2.19, True), (2.21, False)])
def test_a_column_may_lie_a_tenth_of_its_range_outside_it(
    exported: tuple[Checkpoint, FittedStages], value: float, inside: bool
) -> None:
    row = ROW.copy()
    row[0, PLACE["cut"]] = value
    policy = StagePolicy(seen(exported[0], cut=[0.0, 2.0, 0.5]))
    assert policy.decide(state_of(row), [STOP, AGAIN]).reason.startswith("P(fixes)") == inside
    unheard = StagePolicy(seen(exported[0], cut=[0.0, 0.0, 0.0]))
    assert unheard.decide(state_of(row), [STOP, AGAIN]).reason.startswith("P(fixes)"), "no weight rests on it"


def seen(checkpoint: Checkpoint, **columns: list[float]) -> Checkpoint:
    """The checkpoint, everything within its support but where these columns of `iterate` say lowest, highest, known."""
    support = loosened(checkpoint).manifest.support
    return altered(checkpoint, support={**support, "iterate": {**support["iterate"], **columns}})


ROW = np.zeros((1, len(COLUMNS)), dtype=np.float32)
ROW[0, [PLACE["agreeing"], PLACE["quality_change"]]] = np.nan


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
    with pytest.raises(ContractMismatch, match="research"):
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
