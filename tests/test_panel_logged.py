"""Learning from logged decisions: where the log is biased, the propensities tell the truth."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from metaprobe.checkpoints_cli import evaluate
from metaprobe.eval.ope import NoOverlap
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes, write_outcomes
from metaprobe.routing.learned import LearnedRouter
from metaprobe.routing.learned_state import Known
from metaprobe.training.router.data import outcomes_of, pasts_of
from metaprobe.training.router.evaluate import evaluate_router
from metaprobe.training.router.train import write_router
from metaprobe.training_cli import train_router_command

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

# Share of right answers by dimension: either agent is best on one. "plain" questions are easy for both.
SKILL = {"left": {"red": 0.9, "blue": 0.3, "plain": 0.95}, "right": {"red": 0.4, "blue": 0.8, "plain": 0.95}}
PRICES = {"left": 0.0002, "right": 0.0003}
HINTS = {"hard": -0.25, "soft": 0.1}
"""A word of the question moves both agents' skill, and the logging policy saw it."""


def skill(name: str, dimension: str, word: str) -> float:
    return SKILL[name][dimension] + (HINTS[word] if dimension != "plain" else 0.0)


def full(n: int, seed: int) -> list[QuestionOutcomes]:
    rng = np.random.default_rng(seed)
    found = []
    for i in range(n):
        dimension, word = str(rng.choice(["red", "blue", "plain"])), str(rng.choice(list(HINTS)))
        agents = {
            name: AgentOutcome("", float(rng.random() < skill(name, dimension, word)), None, PRICES[name], 500.0)
            for name in SKILL
        }
        found.append(QuestionOutcomes(f"{seed}-{i}", f"{seed}-{i}", f"a {word} question", dimension, agents))
    return found


def logged(questions: Sequence[QuestionOutcomes], seed: int, *, bias: float = 0.85) -> list[QuestionOutcomes]:
    """As by a policy that hands most of the hard questions to "right", and most of the soft ones to "left"."""
    rng = np.random.default_rng(seed)
    found = []
    for question in questions:
        p = bias if "hard" in question.question else 1 - bias
        chosen = "right" if rng.random() < p else "left"
        found.append(
            replace(
                question,
                agents={chosen: question.agents[chosen]},
                chosen=chosen,
                propensities={"left": 1 - p, "right": p},
            )
        )
    return found


TRUTH = full(1500, seed=0)
LOG = logged(TRUTH, seed=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("router") / "checkpoint"
    write_router(path, LOG, folds=2, states=4000)
    return path


def rates(pasts: Mapping[str, Mapping[str, object]]) -> dict[tuple[str, str], float]:
    return {
        (name, dimension): float(1 / (1 + np.exp(-past.rate)))  # type: ignore[attr-defined]
        for name, by in pasts.items()
        for dimension, past in by.items()
        if dimension
    }


def test_past_rates_are_those_of_all_questions_and_not_of_those_that_an_agent_was_given() -> None:
    truth = {(name, d): np.mean([skill(name, d, word) for word in HINTS]) for name in SKILL for d in SKILL[name]}
    weighted = rates(pasts_of(outcomes_of(LOG)))
    naive = rates(pasts_of(outcomes_of([replace(q, propensities={}) for q in LOG])))
    worst = {
        way: max(abs(found[key] - truth[key]) for key in truth)
        for way, found in (("weighted", weighted), ("naive", naive))
    }
    assert worst["weighted"] < 0.07
    assert worst["naive"] > 0.09, "or the log was not biased, and the test says nothing"


def test_it_asks_the_agent_that_is_best_on_the_dimension_though_the_log_hid_it(folder: Path) -> None:
    router = LearnedRouter.load(folder, lambda_=0.01)
    for dimension, best in (("red", "left"), ("blue", "right")):
        for word in HINTS:
            routed = router.decide(Known(question=f"a {word} question", dimension=dimension))
            assert (routed.action, routed.agent) == ("ask", best)
    assert router.max_asked == 1


def test_the_curve_of_logged_decisions_is_what_the_full_outcomes_would_have_shown(folder: Path) -> None:
    router = LearnedRouter.load(folder)
    held_out = full(3000, seed=5)
    for point in router.curve[::8]:
        at = router.at(point.lambda_)
        cases = {}
        for question in held_out[:60]:
            case = question.question, question.dimension
            cases[case] = cases.get(case) or at.decide(Known(question=case[0], dimension=case[1])).agent
        chosen = [q.agents[cases.get((q.question, q.dimension), "left")] for q in held_out]
        assert point.accuracy == pytest.approx(np.mean([one.score for one in chosen]), abs=0.05)
        assert point.cost == pytest.approx(1000 * np.mean([one.cost_usd for one in chosen]), rel=0.1)


def test_the_card_says_that_it_was_learned_from_a_log_and_how_often_agents_were_tried(folder: Path) -> None:
    checkpoint = LearnedRouter.load(folder).checkpoint
    card = (folder / "README.md").read_text()
    assert "doubly robust" in card
    assert "every agent was tried often enough" in card
    left = checkpoint.manifest.contract["alone"][0]
    assert left[0] == "left"
    assert left[1] == pytest.approx(np.mean([q.agents["left"].score for q in TRUTH]), abs=0.06)


def test_an_agent_that_was_hardly_tried_fails_the_audit(tmp_path: Path) -> None:
    rare = [q for q in logged(TRUTH, 3, bias=0.5)[:600] if q.chosen == "left" or int(q.id.split("-")[1]) % 12 == 0]
    checkpoint = write_router(tmp_path / "c", rare, folds=2, states=4000)
    audit = checkpoint.manifest.audits["every agent was tried often enough"]
    assert not audit.passed
    assert audit.detail.startswith("right:")


def test_what_a_router_would_have_earned_is_estimated_within_its_interval(folder: Path, tmp_path: Path) -> None:
    held_out = full(1200, seed=9)
    truth = LearnedRouter.load(folder, lambda_=0.01)
    asked = [q.agents[truth.decide(Known(question=q.question, dimension=q.dimension)).agent] for q in held_out]
    accuracy, cost = np.mean([one.score for one in asked]), 1000 * np.mean([one.cost_usd for one in asked])
    write_outcomes(tmp_path / "log.jsonl", logged(held_out, seed=4))
    line = [str(folder), str(tmp_path / "log.jsonl"), "--lambda", "0.01", "--decisions", str(tmp_path / "d.jsonl")]
    done = CliRunner().invoke(evaluate, ["router", "--json", *line])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    for way in ("ips", "snips", "doubly_robust"):
        assert found["accuracy"][way]["low"] <= accuracy <= found["accuracy"][way]["high"]
    assert found["cost_per_1000"]["estimate"] == pytest.approx(cost, rel=0.05)
    assert found["accuracy_over_the_logging_policy"]["low"] > 0.05
    assert found["mean_weight"]["low"] <= 1 <= found["mean_weight"]["high"]
    assert (found["logged"], found["reliable"], found["first_agent_only"]) == (True, True, False)
    assert len((tmp_path / "d.jsonl").read_text().splitlines()) == len(held_out)


def test_what_was_never_tried_is_not_estimated(folder: Path) -> None:
    always = [
        replace(q, agents={"left": q.agents["left"]}, chosen="left", propensities={"left": 1.0, "right": 0.0})
        for q in full(100, seed=2)
    ]
    router = LearnedRouter.load(folder, lambda_=0.01)
    found, _ = evaluate_router(router, always)  # where nobody else could be asked, the router asks whom it may
    assert found["accuracy"]["ips"]["estimate"] == pytest.approx(np.mean([q.agents["left"].score for q in always]))
    strange = [replace(q, propensities={"left": 0.5, "new": 0.5}) for q in always]
    with pytest.raises(RecordError, match="knows nothing of new"):
        evaluate_router(router, strange)
    assert issubclass(NoOverlap, RecordError)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"chosen": None}, "chosen = None"),
        ({"chosen": "left", "agents": TRUTH[0].agents}, "scored outcomes of left, right"),
        ({"propensities": {"left": 0.0, "right": 1.0}}, "above 0 for 'left'"),
        ({"propensities": {"left": 0.5, "right": 0.2}}, "1 in all"),
    ],
)
def test_a_decision_that_does_not_tell_what_is_needed_is_refused(change: dict[str, object], told: str) -> None:
    question = replace(
        TRUTH[0],
        agents={"left": TRUTH[0].agents["left"]},
        chosen="left",
        propensities={"left": 0.5, "right": 0.5},
    )
    outcomes_of([question])
    with pytest.raises(RecordError, match=told):
        outcomes_of([replace(question, **change)])  # type: ignore[arg-type]


def test_logged_and_full_outcomes_may_be_learned_from_together_but_not_judged(folder: Path, tmp_path: Path) -> None:
    both = [*full(60, seed=6), *logged(full(200, seed=7), seed=7)]
    data = outcomes_of(both)
    assert data.logged
    assert np.array_equal(data.weight[:60], np.ones((60, 2)))
    write_outcomes(tmp_path / "both.jsonl", both)
    options = ["--out", str(tmp_path / "c"), "--folds", "2", "--states", "1000"]
    done = CliRunner().invoke(train_router_command, [str(tmp_path / "both.jsonl"), *options])
    assert done.exit_code == 0, done.output
    with pytest.raises(RecordError, match="60 of 260 questions have no propensities"):
        evaluate_router(LearnedRouter.load(folder), both)
