"""Learned stages of Self-Refine and Self-Verification: what is planted is found, what was never seen is the paper's."""

import dataclasses
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scripted import Answer, ScriptedLLM, run_once

from metaprobe.llms.base import Request
from metaprobe.pipelines import SYSTEMS
from metaprobe.pipelines.answers import canonical, final_answer
from metaprobe.pipelines.self_verification import distinct
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Decision, Item, Label, Run
from metaprobe.routing.actions import AGAIN, STOP
from metaprobe.routing.explore import Exhaustive
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.policy import Outcome, Policy, State
from metaprobe.training.common.calibrate import sigmoid
from research.stages.policy import StagePolicy
from research.stages.read import candidate_rows, candidates_of, cycle_rows, cycles_of, stage_data
from research.stages.state import COLUMNS, answer_rows
from research.stages.train import PointStudy, train_stages
from research.stages.ways import LEARNED, ORACLE, RULE

RECORDED = Path(__file__).parent.parent / "recorded"
ITEM = Item(id="i", question="Ann has 3 bags of 4 apples. How many?", gold=("12",), check="number")
RIGHT = "Answer: 12"
T = 3
Tells = Callable[[int], float | None]
"""Round of an answer -> the mean log-probability of its last quarter; None: the answer has no log-probabilities."""


class Telling(ScriptedLLM):
    """Its answers' ends tell something; the mean of their log-probabilities, which simple ways read, is noise."""

    def __init__(self, answers: dict[str, Answer], tells: Tells, seed: int = 0) -> None:
        super().__init__(answers)
        self.tells, self.rng = tells, np.random.default_rng(seed)

    def _call(self, request: Request, text: str) -> Call:
        call, end = super()._call(request, text), self.tells(request.round)
        if end is None:
            return dataclasses.replace(call, logprobs=None)
        begin = (8 * self.rng.normal() - 2 * end) / 6
        return dataclasses.replace(call, logprobs=np.array([begin] * 6 + [end] * 2, np.float32))


def labelled(run: Run, name: str) -> Run:
    """The run under another name, every answer checked."""
    right = {call.id: float("12" in call.text) for call in run.calls if call.stage == "answer"}
    labels = tuple(Label(call, "correct", value, "program") for call, value in right.items())
    item = dataclasses.replace(run.item, id=name, group=name)
    return dataclasses.replace(run, id=name, item=item, labels=labels, outcome=1.0)


def refinements(n: int, policy: Policy, *, content: float = 0.2, seed: int = 0) -> list[Run]:
    """Self-Refine: where the answers' ends are likely, another cycle breaks them; elsewhere it mends them.

    The critic is content by chance.
    """
    rng, runs = np.random.default_rng(seed), []
    for number in range(n):
        x = rng.normal()
        right = [rng.random() < 0.5]
        for _ in range(T - 1):
            right.append(rng.random() >= sigmoid(-1 + 3 * x) if right[-1] else rng.random() < sigmoid(-1 - 3 * x))
        said: dict[str, Answer] = {
            "answer": [RIGHT if good else f"Answer: {t}" for t, good in enumerate(right)],
            "feedback": [f"Verdict: {'GOOD' if rng.random() < content else 'IMPROVE'}" for _ in range(T)],
        }
        llm = Telling(said, lambda _, x=x: x, seed=number)  # type: ignore[misc]
        runs.append(labelled(run_once(SYSTEMS["self-refine"], ITEM, llm, policy=policy), f"r{number}"))
    return runs


def verifications(n: int, *, seed: int = 0) -> list[Run]:
    """Self-Verification: the right answer has the likeliest end; the backward calls tell nothing."""
    rng, runs = np.random.default_rng(seed), []
    for number in range(n):
        right = rng.integers(4)  # 3: none is
        ends = rng.normal(size=3) + 4 * (np.arange(3) == right)
        torn = number % 5 > 0
        said: dict[str, Answer] = {
            "answer": [RIGHT if t == right else f"Answer: {t}" for t in range(3)] if torn else "Answer: 7",
            "backward": lambda _: f"Answer: {rng.integers(3, 5)}",
        }
        llm = Telling(said, lambda t, ends=ends: float(ends[t]) if t < 3 else -1.0, seed=number)  # type: ignore[misc]
        runs.append(labelled(run_once(SYSTEMS["self-verification"], ITEM, llm), f"v{number}"))
    return runs


Trained = tuple[StagePolicy, dict[str, PointStudy]]


def trained(path: Path, runs: Sequence[Run]) -> Trained:
    checkpoint, studies = train_stages(path / "c", runs, folds=3, seeds=1)
    return StagePolicy(checkpoint), studies


@pytest.fixture(scope="module")
def refining(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """From runs that the paper's rule ended."""
    return trained(tmp_path_factory.mktemp("refine"), refinements(180, PaperRules()))


@pytest.fixture(scope="module")
def verifying(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("verify"), verifications(150))


def test_what_was_planted_is_found_in_runs_that_the_critic_ended(refining: Trained) -> None:
    policy, studies = refining
    assert policy.system == "self-refine"
    assert set(studies) == {"iterate"}
    study = studies["iterate"]
    assert study.used, study.why
    assert study.gains[ORACLE].high <= 0
    assert study.ways[LEARNED].correct.mean() > study.ways[RULE].correct.mean() + 0.1
    assert "always 3 cycles" not in study.ways, "what the critic's word cut off is not known"


def test_the_answer_with_the_likeliest_end_is_returned_where_that_was_planted(verifying: Trained) -> None:
    policy, studies = verifying
    assert policy.system == "self-verification"
    assert set(studies) == {"select"}
    study = studies["select"]
    assert study.used, study.why
    ways = study.ways
    assert ways[LEARNED].correct.mean() > 0.9 * ways[ORACLE].correct.mean()
    assert {"first answer", "most frequent answer", "highest mean log-probability", "any answer"} < ways.keys()


def refined(policy: Policy, said: Answer, tells: Tells) -> Run:
    llm = Telling({"answer": ["Answer: 5", RIGHT, "Answer: 6"], "feedback": said}, tells)
    return run_once(SYSTEMS["self-refine"], ITEM, llm, policy=policy)


def test_self_refine_goes_on_or_stops_as_its_head_says(refining: Trained) -> None:
    sure = refined(refining[0], "Verdict: IMPROVE", lambda _: 1.5)
    unsure = refined(refining[0], "Verdict: IMPROVE", lambda number: -1.5 if number == 0 else 1.5)
    assert [d.action for d in sure.decisions] == [STOP]
    assert sure.final_answer == "5"
    assert [d.action for d in unsure.decisions] == [AGAIN, STOP]
    assert unsure.final_answer == "12"
    assert all(d.reason.startswith("P(fixes)") for d in (*sure.decisions, *unsure.decisions))


def test_where_the_critic_is_content_the_paper_decides_as_no_run_went_on_there(refining: Trained) -> None:
    run = refined(refining[0], "Verdict: GOOD", lambda _: -1.5)
    assert [d.action for d in run.decisions] == [STOP]
    assert "no run in training went on where it stops: evaluated at 1.000" in run.decisions[0].reason


def test_runs_that_tried_everything_teach_what_to_do_where_the_critic_is_content(tmp_path: Path) -> None:
    policy, studies = trained(tmp_path, refinements(120, Exhaustive()))
    assert "always 3 cycles" in studies["iterate"].ways
    run = refined(policy, "Verdict: GOOD", lambda number: -1.5 if number == 0 else 1.5)
    assert [d.action for d in run.decisions] == [AGAIN, STOP]
    assert run.decisions[0].reason.startswith("P(fixes)")


def test_self_verification_returns_what_its_head_finds_likeliest(verifying: Trained) -> None:
    def run(policy: Policy, tells: Tells) -> Run:
        said: dict[str, Answer] = {"answer": ["Answer: 7", "Answer: 5", RIGHT], "backward": "Answer: 3"}
        return run_once(SYSTEMS["self-verification"], ITEM, Telling(said, tells), policy=policy)

    def ends(number: int) -> float:
        return 4.0 if number == 2 else 0.0

    assert run(PaperRules(), ends).final_answer == "7"
    learned = run(verifying[0], ends)
    assert learned.final_answer == "12"
    assert learned.decisions[-1].reason.startswith("P(right)")
    blind = run(verifying[0], lambda _: None)
    assert blind.final_answer == "7"
    assert "_logprob is not known" in blind.decisions[-1].reason


def test_without_log_probabilities_self_refine_is_the_papers(refining: Trained) -> None:
    run = refined(refining[0], ["Verdict: IMPROVE", "Verdict: GOOD"], lambda _: None)
    assert [d.action for d in run.decisions] == [AGAIN, STOP]
    assert "_logprob is not known, and was in training" in run.decisions[0].reason


# What is learned from is what happened.


def test_runs_that_went_on_are_cut_where_the_rule_stops_if_it_ended_others() -> None:
    ruled, whole = refinements(60, PaperRules()), refinements(60, Exhaustive())
    ended, mixed, every = cycles_of(ruled), cycles_of([*ruled[:30], *whole[30:]]), cycles_of(whole)
    assert (ended.exhaustive, ended.beyond, every.exhaustive, every.beyond) == (False, False, True, True)
    assert set(ended.ran) == {1, 2, 3}
    assert set(every.ran) == {T}
    for name in ("rows", "correct", "quality", "tokens", "votes", "ran"):
        np.testing.assert_array_equal(getattr(mixed, name), getattr(ended, name), err_msg=name)
    early = ended.ran == 1
    np.testing.assert_array_equal(ended.correct[early], np.repeat(every.correct[early, :1], T, axis=1))
    assert not ended.tokens[early, 1:].any()
    assert not ended.went_on[early].any()
    assert ended.went_on.sum() == sum(d.action == AGAIN for run in ruled for d in run.decisions)


def test_runs_that_another_policy_ended_are_refused() -> None:
    short = dataclasses.replace(refinements(1, PaperRules(cycles=1), content=0)[0], id="short")
    with pytest.raises(RecordError, match=r"1 of 61 runs ended before cycle 3 though .* not content, as short"):
        cycles_of([*refinements(60, PaperRules()), short])


def test_where_hardly_any_answers_differ_there_is_nothing_to_select_from() -> None:
    with pytest.raises(RecordError, match=r"40 of 50 runs, in 40 groups, have different answers to choose from"):
        stage_data(verifications(50))


class Spy:
    """The paper's rules, remembering what they were shown."""

    def __init__(self) -> None:
        self.states: list[State] = []

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        self.states.append(state)
        return PaperRules().decide(state, legal_actions)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """It learns nothing."""


def forms_of(run: Run, calls: Sequence[Call]) -> list[str]:
    return [canonical(run.item, final_answer(run.item, call.text)) for call in calls]


def test_rows_of_recorded_refinements_are_those_that_the_policy_was_shown() -> None:
    spy = Spy()
    llm = Telling(
        {"answer": ["Answer: 5", "I do not know", "Answer: 5.0"], "feedback": ["hm", "Verdict: IMPROVE", "no"]},
        lambda number: -1.0 - number,
    )
    run = labelled(run_once(SYSTEMS["self-refine"], ITEM, llm, policy=spy), "r")
    calls = [call for call in run.calls if call.stage == "answer"]
    rows = cycle_rows(run, calls, forms_of(run, calls), T)
    assert len(spy.states) == T
    for t, state in enumerate(spy.states):
        np.testing.assert_array_equal(answer_rows(state), rows[t, : t + 1])
        assert state.signals == state.candidates[str(t)]
    assert rows[-1, :, COLUMNS.index("agreeing")].tolist() == [0.5, 0.0, 0.5]
    np.testing.assert_array_equal(rows[-1, :, COLUMNS.index("quality")], [np.nan, 0.0, np.nan])


def test_rows_of_recorded_candidates_are_those_that_the_policy_was_shown() -> None:
    spy = Spy()
    said: dict[str, Answer] = {"answer": ["I do not know", RIGHT, "Answer: 7"], "backward": ["Answer: 3", "?"] * 2}
    run = labelled(
        run_once(SYSTEMS["self-verification"], ITEM, Telling(said, lambda number: -1.0 - number), policy=spy), "v"
    )
    calls = [call for call in run.calls if call.stage == "answer"]
    forms = forms_of(run, calls)
    assert distinct(forms) == [1, 2, 0], "what cannot be read comes last"
    rows = candidate_rows(run, calls, forms, distinct(forms))
    np.testing.assert_array_equal(answer_rows(spy.states[0]), rows)
    np.testing.assert_array_equal(rows[:, COLUMNS.index("quality")], [0.5, 0.5, np.nan])
    assert rows[:, COLUMNS.index("answered")].tolist() == [1.0, 1.0, 0.0]


# Real runs.


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[Run]]:
    return {name: list(RunStore(RECORDED / f"gsm8k-{name}")) for name in ("self-refine", "self-verification")}


@pytest.mark.parametrize("system", ["self-refine", "self-verification"])
def test_without_a_policy_the_systems_ask_and_decide_as_they_did_when_recorded(
    system: str, recorded: dict[str, list[Run]]
) -> None:
    for run in sorted(recorded[system], key=lambda run: len(run.calls))[::13]:
        texts = {call.id.removeprefix(run.id): call.text for call in run.calls}
        again = run_once(SYSTEMS[system], run.item, ScriptedLLM({"*": lambda r, t=texts: t[r.id.removeprefix("r")]}))
        assert [call.messages for call in again.calls] == [call.messages for call in run.calls]
        assert [call.sampling for call in again.calls] == [call.sampling for call in run.calls]
        assert again.final_answer == run.final_answer
        now, then = ([dataclasses.replace(d, id="") for d in each.decisions] for each in (again, run))
        assert now == then


def test_recorded_refinements_are_read_as_they_went(recorded: dict[str, list[Run]]) -> None:
    runs = recorded["self-refine"]
    data = cycles_of(runs)
    assert (len(data), data.cycles, data.exhaustive) == (len(runs), T, False)
    steps = [sum(call.stage == "answer" for call in run.calls) for run in runs]
    assert data.ran.tolist() == steps
    assert data.correct[:, -1].tolist() == [run.outcome for run in runs], "the last answer is returned"
    changed = sum(a != b for run in runs for a, b in pairwise(labels_of(run)))
    assert int((data.correct[:, 1:] != data.correct[:, :-1]).sum()) == changed


def labels_of(run: Run) -> list[float | None]:
    return [run.label("correct", call.id) for call in run.calls if call.stage == "answer"]


def test_the_rule_on_recorded_candidates_returns_what_was_returned(recorded: dict[str, list[Run]]) -> None:
    runs = recorded["self-verification"]
    data = candidates_of(runs)
    best = np.nan_to_num(data.quality, nan=-1.0).argmax(axis=1)
    assert [str(int(data.given[i, column])) for i, column in enumerate(best)] == [
        run.decisions[0].action for run in runs
    ]
    assert data.correct[np.arange(len(runs)), best].mean() == np.mean([run.outcome for run in runs])
    assert (data.counts == 1).sum() == sum(not any(c.stage == "backward" for c in run.calls) for run in runs)
