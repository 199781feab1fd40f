"""Learning from logged decisions: where the log is biased, the propensities tell the truth."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from metaprobe.checkpoints_cli import evaluate
from metaprobe.eval.ope import NoOverlap
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.routing.panel.asking import Panel
from metaprobe.training.panel.labelled_panels import logged_panels
from metaprobe.training.recipes.panel import train_router
from metaprobe.training.recipes.panel_evaluate import evaluate_logged
from metaprobe.training.training_options import RouterOptions

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
    made = []
    for i in range(n):
        dimension, word = str(rng.choice(["red", "blue", "plain"])), str(rng.choice(list(HINTS)))
        agents = {
            name: AgentOutcome("", float(rng.random() < skill(name, dimension, word)), None, PRICES[name])
            for name in SKILL
        }
        made.append(QuestionOutcomes(f"{seed}-{i}", f"{seed}-{i}", f"a {word} question", dimension, agents))
    return made


def logged(questions: Sequence[QuestionOutcomes], seed: int, *, bias: float = 0.85) -> list[QuestionOutcomes]:
    """Logs outcomes of a policy that hands most of the hard questions to "right", and most of the soft ones to
    "left"."""
    rng = np.random.default_rng(seed)
    made = []
    for question in questions:
        p = bias if "hard" in question.question else 1 - bias
        chosen = "right" if rng.random() < p else "left"
        one = {chosen: question.agents[chosen]}
        made.append(replace(question, agents=one, chosen=chosen, propensities={"left": 1 - p, "right": p}))
    return made


TRUTH = full(1500, seed=0)
LOG = logged(TRUTH, seed=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_router(LOG, RouterOptions(out=tmp_path_factory.mktemp("logged") / "c")).path


@pytest.fixture(scope="module")
def panel(folder: Path) -> Panel:
    return Panel.load(folder)


def asked_first(panel: Panel, question: QuestionOutcomes, budget: float) -> AgentOutcome:
    """Returns the outcome of the agent that is asked first."""
    step = panel.next(question.question, question.dimension, [], budget=budget, request_id=question.id)
    assert step.agent is not None
    return question.agents[step.agent]


def test_rates_are_those_of_all_questions_and_not_of_those_that_an_agent_was_given() -> None:
    data = logged_panels(LOG)
    weighted = data.shrunk_mean(data.score)
    worst = {"weighted": 0.0, "naive": 0.0}
    for place, dimension in enumerate(data.single.dimensions):
        here = data.single.dimension == place
        for column, name in enumerate(data.single.agents):
            truth = np.mean([skill(name, dimension, word) for word in HINTS])
            naive = data.score[here & (data.action == column)].mean()
            worst["weighted"] = max(worst["weighted"], abs(weighted[here, column][0] - truth))
            worst["naive"] = max(worst["naive"], abs(naive - truth))
    assert worst["weighted"] < 0.07
    assert worst["naive"] > 0.09, "or the log was not biased, and the test says nothing"


def test_the_agent_that_is_best_on_the_dimension_is_asked_alone_though_the_log_hid_it(panel: Panel) -> None:
    assert not {"cascade", "gain"} & set(panel.asks.curves.settings), "what a second answer adds is not in the log"
    for dimension, best in (("red", "left"), ("blue", "right")):
        for word in HINTS:
            assert panel.next(f"a {word} question", dimension, [], price=0.01).agent == best


def test_the_curve_of_logged_decisions_is_what_the_full_outcomes_would_have_shown(panel: Panel) -> None:
    held_out = full(600, seed=5)
    for budget in (0.2, 0.25, 0.3):
        plan = panel.ask_plan(budget=budget)
        chosen = [asked_first(panel, question, budget) for question in held_out]
        assert plan.accuracy == pytest.approx(np.mean([one.score for one in chosen]), abs=0.06)
        # On "plain" questions the agents tie, and a third of all questions may change hands between two fits.
        assert plan.cost == pytest.approx(1000 * np.mean([one.cost_usd for one in chosen]), rel=0.15)


def test_an_agent_that_was_hardly_tried_fails_the_audit(panel: Panel) -> None:
    assert panel.checkpoint.manifest.audits["every agent was tried often enough"].passed
    rare = [q for q in logged(TRUTH, 3, bias=0.5)[:600] if q.chosen == "left" or int(q.id.split("-")[1]) % 12 == 0]
    _, passed, detail = logged_panels(rare).audit
    assert not passed
    assert detail.startswith("right:")


def test_what_a_panel_would_have_earned_is_estimated_within_its_interval(panel: Panel, tmp_path: Path) -> None:
    held_out = full(1200, seed=9)
    chosen = [asked_first(panel, question, 0.25) for question in held_out]
    accuracy, cost = np.mean([one.score for one in chosen]), 1000 * np.mean([one.cost_usd for one in chosen])
    QuestionOutcomes.write(tmp_path / "log.jsonl", logged(held_out, seed=4))
    line = [str(panel.checkpoint.path), str(tmp_path / "log.jsonl"), "--budget", "0.25"]
    done = CliRunner().invoke(evaluate, ["router", "--json", *line, "--decisions", str(tmp_path / "d.jsonl")])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    for way in ("ips", "snips", "doubly_robust"):
        assert figures["accuracy"][way]["low"] <= accuracy <= figures["accuracy"][way]["high"]
    assert figures["cost_per_1000"]["estimate"] == pytest.approx(cost, rel=0.05)
    assert figures["accuracy_over_the_logging_policy"]["low"] > 0.05
    assert figures["mean_weight"]["low"] <= 1 <= figures["mean_weight"]["high"]
    assert (figures["logged"], figures["reliable"]) == (True, True)
    assert len((tmp_path / "d.jsonl").read_text().splitlines()) == len(held_out)
    shown = CliRunner().invoke(evaluate, ["router", *line])
    assert "The estimates may be relied on." in shown.output


def test_what_was_never_tried_is_not_estimated(panel: Panel) -> None:
    always = [
        replace(q, agents={"left": q.agents["left"]}, chosen="left", propensities={"left": 1.0, "right": 0.0})
        for q in full(100, seed=2)
    ]
    figures, _ = evaluate_logged(panel, always, budget=0.3)  # where nobody else could be asked, left is
    assert figures["accuracy"]["ips"]["estimate"] == pytest.approx(np.mean([q.agents["left"].score for q in always]))
    strange = [replace(q, propensities={"left": 0.5, "new": 0.5}) for q in always]
    with pytest.raises(RecordError, match="new could be chosen and never was"):
        evaluate_logged(panel, strange)
    other = [replace(q, agents={"new": q.agents["left"]}, chosen="new", propensities={"new": 1.0}) for q in always]
    with pytest.raises(RecordError, match="knows nothing of new"):
        evaluate_logged(panel, other)
    assert issubclass(NoOverlap, RecordError)


@pytest.mark.parametrize(
    ("change", "noun"),
    [
        ({"chosen": None}, "chosen = None"),
        ({"chosen": "left", "agents": TRUTH[0].agents}, "scored outcomes of left, right"),
        ({"propensities": {"left": 0.0, "right": 1.0}}, "above 0 for 'left'"),
        ({"propensities": {"left": 0.5, "right": 0.2}}, "1 in all"),
        ({"agents": {"left": replace(TRUTH[0].agents["left"], cost_usd=None)}}, "no cost_usd"),
    ],
)
def test_a_decision_that_does_not_tell_what_is_needed_is_refused(change: dict[str, object], noun: str) -> None:
    one = {"left": TRUTH[0].agents["left"]}
    question = replace(TRUTH[0], agents=one, chosen="left", propensities={"left": 0.5, "right": 0.5})
    with pytest.raises(RecordError, match=noun):
        logged_panels([replace(question, **change)])  # type: ignore[arg-type]


def test_logged_and_full_outcomes_are_neither_learned_from_nor_judged_together(panel: Panel, tmp_path: Path) -> None:
    both = [*full(60, seed=6), *logged(full(200, seed=7), seed=7)]
    with pytest.raises(RecordError, match="60 of 260 questions have no propensities"):
        train_router(both, RouterOptions(out=tmp_path / "c"))
    with pytest.raises(RecordError, match="60 of 260 questions have no propensities"):
        evaluate_logged(panel, both)
