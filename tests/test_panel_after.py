"""Tests that few labels go a long way, that luck does not decide whom to ask, and that P(right) holds at the end."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.model_rows import JOINT
from metaprobe.routing.panel.planner import AGREE, GAIN, ONE, PRICED, After, AskSetting, Curves
from metaprobe.routing.panel.priced_cascade import Surety
from metaprobe.training.panel.fitted_asks import fit_asks
from metaprobe.training.panel.fitted_panel import cross_fit
from metaprobe.training.panel.labelled_panels import agents_in, panels_of_outcomes
from metaprobe.training.panel.played_asks import View, by_agent, play_setting
from metaprobe.training.panel.question_words import count_words
from metaprobe.training.recipes.panel import train_panel
from metaprobe.training.training_options import PanelOptions


def tenths(n: int, *, hard: float, seed: int = 0) -> list[QuestionOutcomes]:
    """Three agents, of rising skill and price, that state how sure they are. `hard`: log-odds by which questions differ
    for all agents alike. Each of ten dimensions differs too."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        topic, shared = i % 10, hard * rng.normal()
        agents = {}
        for place, name in enumerate(("cheap", "middle", "dear")):
            odds = -0.5 + place + shared + 0.5 * (topic - 4.5) / 3
            right = rng.random() < 1 / (1 + np.exp(-odds))
            stated = 1 / (1 + np.exp(-(2 * right - 1 + rng.normal())))
            answer = f"right{i}" if right else f"wrong{i} {name}"
            agents[name] = AgentOutcome(answer, float(right), round(float(stated), 2), 0.001 * 4**place)
        made.append(QuestionOutcomes(f"q{seed}-{i}", f"q{seed}-{i}", f"question {i}", f"topic {topic}", agents))
    return made


def test_rates_of_few_labels_on_a_dimension_lie_near_what_the_agent_and_the_dimension_are_elsewhere() -> None:
    few, many = (agents_in(panels_of_outcomes(tenths(n, hard=0.0, seed=n))) for n in (60, 3000))
    raw = panels_of_outcomes(tenths(60, hard=0.0, seed=60))
    cells = np.array([[raw.score[raw.dimension == d][raw.agent[raw.dimension == d] == a].mean() for d in range(10)]
                      for a in range(3)])  # fmt: skip
    truth, shrunk = (1 / (1 + np.exp(-one.rate[:, :10])) for one in (many, few))
    assert ((shrunk - truth) ** 2).mean() < 0.5 * ((cells - truth) ** 2).mean()


@pytest.mark.parametrize(("hard", "low", "high"), [(0.0, 0.0, 0.3), (4.0, 0.4, 1.2)])
def test_an_answer_tells_of_the_others_where_questions_are_hard_for_all(hard: float, low: float, high: float) -> None:
    data = by_agent(panels_of_outcomes(tenths(400, hard=hard)))
    fitted = fit_asks(data, count_words(data.questions), cross_fit(data), JOINT, ways=(ONE, PRICED))
    assert fitted.sure is not None
    assert low <= fitted.sure.carry <= high


def test_a_priced_cascade_asks_the_cheap_agent_first_and_on_where_it_is_unsure() -> None:
    sure = Surety(np.array([2.0, 0.5]), 0.2, 0.02)
    rate, dollars, both = np.array([[0.0, 2.0]]), np.array([[1.0, 10.0]]), np.array([[True, True]])
    nobody = np.zeros((1, 2), dtype=bool)
    _, first = sure.worth(0.02, rate, dollars, both, np.zeros((1, 2)), nobody)
    assert first[0] == 0
    cheap, left = np.array([[True, False]]), np.array([[False, True]])
    asked_on = [sure.worth(0.02, rate, dollars, left, np.array([[odds, 0.0]]), cheap)[1][0] for odds in (-2.0, 3.0)]
    assert asked_on == [1, -1]
    assert sure.worth(1.0, rate, dollars, left, np.array([[-2.0, 0.0]]), cheap)[1][0] == -1  # the price is too high


def test_two_that_agree_are_believed_and_else_a_third_is_asked() -> None:
    data = by_agent(panels_of_outcomes([dataclasses.replace(q, agents={
        name: dataclasses.replace(one, confidence=None) for name, one in q.agents.items()
    }) for q in tenths(200, hard=0.0)]))  # fmt: skip
    fitted = fit_asks(data, count_words(data.questions), cross_fit(data), JOINT, ways=(ONE, AGREE))
    view: View = fitted.view(data, count_words(data.questions))
    played = play_setting(view, AskSetting(AGREE, 0.0, (0, 1, 2), (), 0.0, 0.0), JOINT)
    equal = data.answer_class[:, 0] == data.answer_class[:, 1]
    assert (played.asked.sum(axis=1) == np.where(equal, 2, 3)).all()
    assert (played.kept == np.where(equal, 1, 2)).all()


def test_another_way_is_taken_only_where_it_is_ahead_beyond_its_margin() -> None:
    one, other = AskSetting(ONE, 0.0, (0,), (), 1.0, 0.7), AskSetting(PRICED, 0.1, (0, 1), (), 1.0, 0.7)
    for margin, way in ((0.05, PRICED), (0.01, ONE)):
        accuracy = {ONE: np.array([0.72]), PRICED: np.array([0.7])}
        curves = Curves({ONE: [one], PRICED: [other]}, np.array([1.0]), accuracy, {ONE: np.array([margin])})
        plan = curves.plan(budget=1.0)
        assert plan.first.way == way
        assert plan.accuracy == accuracy[way][0], "what is expected has no margin taken off"


def test_a_way_does_not_win_at_a_budget_by_what_it_does_for_more_money(tmp_path: Path) -> None:
    """Where prices are far apart, the expected gain does not tell the two low ones apart, and asks the better agent."""
    rng = np.random.default_rng(5)
    asked = []
    for i in range(200):
        agents = {}
        for name, chance, price in (("cheap", 0.4, 1e-6), ("middle", 0.8, 2e-6), ("dear", 0.8, 1e-2)):
            right = rng.random() < chance
            stated = round(float(0.3 * rng.random() + 0.3 * right), 3)
            agents[name] = AgentOutcome("A" if right else "BCD"[rng.integers(3)], float(right), stated, price)
        asked.append(QuestionOutcomes(f"q{i}", f"q{i}", f"question {i} (A, B, C, D)?", "", agents))
    panel = Panel(train_panel(panels_of_outcomes(asked), PanelOptions(out=tmp_path / "c")))
    assert panel.asks is not None
    curves = panel.asks.curves
    assert curves.settings[GAIN][0].cost > 1.5 * curves.least
    assert panel.ask_plan().accuracy >= max(values.max() for values in curves.accuracy.values()) - 0.01


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Panel:
    options = PanelOptions(out=tmp_path_factory.mktemp("after") / "c")
    return Panel(train_panel(panels_of_outcomes(tenths(250, hard=1.0)), options))


def test_a_checkpoint_keeps_how_far_answers_move_p_right_and_its_correction(panel: Panel, tmp_path: Path) -> None:
    assert panel.asks is not None
    assert panel.asks.sure is not None
    assert any(panel.asks.after.weights)
    again = Panel.load(panel.checkpoint.path)
    assert again.asks is not None
    assert again.asks.sure is not None
    assert again.asks.sure.spread == pytest.approx(panel.asks.sure.spread)
    assert again.asks.after == panel.asks.after


def test_the_card_shows_how_sure_and_how_right_by_number_asked_and_whether_a_simple_way_is_as_good(
    panel: Panel,
) -> None:
    metrics = panel.checkpoint.manifest.metrics
    counts = [count for count in (1, 2, 3) if f"asking.after_{count}.said" in metrics]
    assert counts
    for count in counts:
        said, right = metrics[f"asking.after_{count}.said"], metrics[f"asking.after_{count}.right"]
        assert right.low - 0.05 <= said.estimate <= right.high + 0.05
    assert "whom to ask: not behind a simple way" in panel.checkpoint.manifest.audits


def test_copies_of_questions_do_not_narrow_how_right_the_card_says_answers_are(tmp_path: Path) -> None:
    """Copies of a question are of one group, and tell nothing new."""
    metrics = []
    for copies in (1, 4):
        asked = [
            dataclasses.replace(q, id=f"{q.id} {copy}", question=f"{q.question} {copy}")
            for copy in range(copies)
            for q in tenths(60, hard=1.0, seed=3)
        ]
        options = PanelOptions(out=tmp_path / f"{copies}")
        metrics.append(train_panel(panels_of_outcomes(asked), options).manifest.metrics)
    widths = [one["asking.after_1.right"].high - one["asking.after_1.right"].low for one in metrics]
    assert widths[1] > 0.7 * widths[0]


def test_no_correction_changes_nothing_and_one_lowers_what_is_said_after_three() -> None:
    assert After().probability(0.9, 3, 0) == 0.9
    corrected = After((0.0, 0.0, -0.1, -1.0, 0.5))
    assert corrected.probability(0.9, 3, 0) < corrected.probability(0.9, 3, 1) < corrected.probability(0.9, 1, 0)
