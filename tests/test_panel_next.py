"""Whom a panel asks next: planted strengths are found, budgets kept, and one question is decided as many are."""

import asyncio
import dataclasses
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_once import MadeOnce
from panel_worlds import completion
from routed_worlds import outcomes, planted_strengths

from metaprobe.checkpoints import ContractMismatch
from metaprobe.llms.pricing import Price
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.compared_answers import PanelAnswer
from metaprobe.routing.panel.model_rows import JOINT
from metaprobe.routing.panel.planner import (
    AGREE,
    ASKS,
    CASCADE,
    GAIN,
    ONE,
    PRICED,
    TABLE,
    WORDS,
    AskPlan,
    AskSetting,
    Curves,
    mixed,
)
from metaprobe.routing.panel.priced_cascade import Surety
from metaprobe.training.panel import fitted_asks
from metaprobe.training.panel.fitted_asks import FittedAsks, fit_asks
from metaprobe.training.panel.fitted_panel import cross_fit
from metaprobe.training.panel.labelled_panels import Panels, panels_of_outcomes
from metaprobe.training.panel.played_asks import by_agent, play_setting
from metaprobe.training.panel.question_words import count_words
from metaprobe.training.recipes.panel import train_panel, train_router
from metaprobe.training.recipes.panel_evaluate import evaluate_panel
from metaprobe.training.training_options import PanelOptions, RouterOptions

TOPICS = ("maths", "history")


def specialists(n: int = 200, **changes: Any) -> list[QuestionOutcomes]:
    """Two cheap agents, each right on its own topic nine times of ten and else hardly ever, and a dear one, right six
    times of ten. The dimension is not told: the question's words say the topic. `changes`: fields of every outcome."""
    rng = np.random.default_rng(3)
    made = []
    for i in range(n):
        topic, agents = TOPICS[i % 2], {}
        for name in (*TOPICS, "dear"):
            right = rng.random() < (0.6 if name == "dear" else 0.9 if name == topic else 0.1)
            answer = f"right{i}" if right else f"wrong{i} {name}"
            cost = 0.01 if name == "dear" else 0.001  # of 100 tokens that are read and 10 that are written
            one = AgentOutcome(answer, float(right), cost_usd=cost, prompt_tokens=100.0, completion_tokens=10.0)
            agents[name] = dataclasses.replace(one, **changes)
        words = {"maths": "sum of the numbers", "history": "year of the battle"}[topic]
        made.append(QuestionOutcomes(f"q{i}", f"q{i}", f"{words} {i}", "", agents))
    return made


def panel_of_specialists(made_once: MadeOnce) -> Panel:
    """The panel that is trained on the specialists, once a run."""
    data = panels_of_outcomes(specialists())
    return Panel.load(made_once("specialists", lambda out: train_panel(data, PanelOptions(out=out))))


@pytest.fixture(scope="module")
def special(made_once: MadeOnce) -> Panel:
    return panel_of_specialists(made_once)


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Panel:
    """Three agents that state no confidence, so that agreement decides unless another way is ahead."""
    names = ("tiny", "middle", "huge")
    made = [
        dataclasses.replace(
            one, agents={name: dataclasses.replace(one.agents[name], confidence=None) for name in names}
        )
        for one in outcomes(150)
    ]
    return Panel(train_router(made, RouterOptions(out=tmp_path_factory.mktemp("silent") / "c")))


@pytest.fixture(scope="module")
def data() -> Panels:
    return by_agent(panels_of_outcomes(outcomes(300)))


@pytest.fixture(scope="module")
def fitted(data: Panels) -> FittedAsks:
    return fit_asks(data, count_words(data.questions), cross_fit(data), JOINT)


@pytest.fixture(scope="module")
def team(data: Panels, tmp_path_factory: pytest.TempPathFactory) -> Panel:
    return Panel(train_panel(data, PanelOptions(out=tmp_path_factory.mktemp("team") / "c")))


@pytest.mark.parametrize("topic", TOPICS)
def test_the_agent_that_knows_the_topic_is_asked_by_the_words_alone(special: Panel, topic: str) -> None:
    words = {"maths": "sum of the numbers 7", "history": "year of the battle 7"}[topic]
    step = special.next(words, None, [], budget=1.2)
    assert step.agent == topic
    assert step.keep is None
    answered = [PanelAnswer("right7", agent=topic)]
    assert special.next(words, None, answered, budget=1.2).keep in (0, None)


def test_what_was_spent_is_counted_by_the_checkpoints_prices_where_no_others_are_given(special: Panel) -> None:
    messages = [{"role": "user", "content": "sum of the numbers 7"}]
    clients = dict.fromkeys(("maths", "dear"), lambda **_: completion("right7"))
    by_checkpoint = asyncio.run(special.ask(clients, messages, budget=1.2)).spent
    assert by_checkpoint["maths"] == pytest.approx(0.001)
    given = asyncio.run(special.ask(clients, messages, budget=1.2, prices={"maths": 0.5, "dear": 9.0})).spent
    assert given["maths"] == 0.5


def test_a_price_of_tokens_decides_by_the_mean_tokens_of_training(special: Panel) -> None:
    words = "sum of the numbers 7"
    same = {"maths": Price(5.0, 50.0), "history": Price(5.0, 50.0), "dear": Price(50.0, 500.0)}
    assert special.next(words, None, [], budget=1.2, prices=same) == special.next(words, None, [], budget=1.2)
    dearer = {**same, "maths": Price(500.0, 5000.0)}
    by_answer = {"maths": 0.1, "history": 0.001, "dear": 0.01}
    step = special.next(words, None, [], price=0.01, prices=dearer)
    assert step == special.next(words, None, [], price=0.01, prices=by_answer)
    assert step.agent == "dear"


def test_a_priced_cascade_looks_once_at_what_asking_is_worth(team: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []
    whole = Surety.worth

    def counted(self: Surety, price: float, *known: Any) -> Any:
        looked.append(price)
        return whole(self, price, *known)

    monkeypatch.setattr(Surety, "worth", counted)
    step = team.next("red", None, [], price=0.01, prices=dict.fromkeys(team.agents.names, 0.5))
    assert PRICED in step.reason
    assert len(looked) == 1


def test_a_way_that_asks_one_agent_is_called_so_and_its_answer_alone_is_no_doubt(silent: Panel) -> None:
    assert silent.asks is not None
    least = silent.asks.curves.least
    assert silent.ask_plan(budget=least).first.way == AGREE
    first = silent.next("red", None, [], budget=least)
    assert first.agent is not None
    last = silent.next("red", None, [PanelAnswer("yes", agent=first.agent)], budget=least)
    assert last.agent is None
    assert first.reason == last.reason == "by one agent"
    new = panels_of_outcomes(outcomes(60), same=silent.same)
    [figures] = evaluate_panel(silent, new, budget=least, resamples=50)["budgets"].values()
    assert figures["by"] == "one agent"
    assert figures["asked"] == 1.0


def test_a_plan_of_two_settings_is_called_by_both() -> None:
    one, three = AskSetting(AGREE, 0.0, (0,), (), 1.0, 0.5), AskSetting(AGREE, 0.0, (0, 1, 2), (), 3.0, 0.7)
    assert AskPlan(one, three, 0.5, 0.6).name == "one agent or two agree"
    assert AskPlan(one, three, 0.0, 0.7).name == AskPlan(three, three, 1.0, 0.7).name == "two agree"


def test_a_planted_optimum_is_expected_at_a_tenth_of_the_dear_agents_price(special: Panel) -> None:
    assert special.ask_plan(budget=1.2).accuracy > 0.85


def test_one_question_is_decided_as_many_are_at_once(data: Panels, fitted: FittedAsks, team: Panel) -> None:
    assert team.asks is not None
    rows = np.arange(25)
    part = data.take(rows)
    view = fitted.view(part, count_words(part.questions))
    stated = {row: [None if np.isnan(v) else v for v in data.signals[row, :, -2]] for row in rows}
    texts = {q.id: q for q in outcomes(300)}
    for way in ASKS:
        for setting in team.asks.curves.settings[way][:: max(len(team.asks.curves.settings[way]) // 3, 1)]:
            played = play_setting(view, setting, team.pick)
            for row in rows.tolist():
                dimension = data.dimensions[data.dimension[row]] if data.dimension[row] < len(data.dimensions) else None
                answers: list[PanelAnswer] = []
                while (step := _next(team, setting, data.questions[row], dimension, answers)).agent is not None:
                    at = data.agents.index(step.agent)
                    text = texts[data.ids[row]].agents[step.agent].answer
                    answers.append(PanelAnswer(text, agent=step.agent, stated=stated[row][at]))
                asked = [data.agents[at] for at in played.order[row].tolist() if at >= 0]
                assert [one.agent for one in answers] == asked
                assert step.keep is not None
                assert answers[step.keep].agent == data.agents[played.kept[row]]


def _next(panel: Panel, setting: AskSetting, question: str, dimension: str | None, answers: list[PanelAnswer]):  # type: ignore[no-untyped-def]
    """The step by one setting, whatever the checkpoint's curves would choose."""
    assert panel.asks is not None
    only = Curves({setting.way: [setting]}, np.array([setting.cost]), {setting.way: np.array([1.0])})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panel, "asks", dataclasses.replace(panel.asks, curves=only))
        return panel.next(question, dimension, answers)


def test_a_budget_is_kept_by_mixing_two_neighbouring_settings(fitted: FittedAsks, data: Panels) -> None:
    for settings in fitted.settings.values():
        costs = [one.cost for one in settings]
        assert costs == sorted(costs)
        for budget in np.linspace(costs[0], costs[-1], 7):
            first, second, share = mixed(settings, float(budget))
            assert share * first.cost + (1 - share) * second.cost == pytest.approx(budget)


def test_a_retry_decides_alike_and_the_draw_follows_from_the_request(team: Panel) -> None:
    plan = next(p for b in np.linspace(0.2, 3, 30) if 0.2 < (p := team.ask_plan(budget=float(b))).share < 0.8)
    steps = [team.next("red new", "sums", [], budget=plan.cost, request_id=f"r{i}").agent for i in range(40)]
    again = [team.next("red new", "sums", [], budget=plan.cost, request_id=f"r{i}").agent for i in range(40)]
    assert steps == again


def test_without_a_request_id_the_question_decides_so_that_a_budget_is_kept(team: Panel) -> None:
    dear = AskSetting(ONE, 0.0, (1,), (), 3.0, 0.9)
    curves = Curves({ONE: [AskSetting(ONE, 0.0, (0,), (), 1.0, 0.5), dear]}, np.array([1.0, 3.0]), {ONE: np.ones(2)})
    assert team.asks is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "asks", dataclasses.replace(team.asks, curves=curves))
        asked = [team.next(f"question {i}", "sums", [], budget=2.0).agent for i in range(400)]
        assert asked == [team.next(f"question {i}", "sums", [], budget=2.0).agent for i in range(400)]
    assert asked.count(team.agents.names[0]) == pytest.approx(200, abs=40)


def test_a_way_that_spends_more_than_the_budget_is_not_taken() -> None:
    cheap, dear = AskSetting(ONE, 0.0, (0,), (), 1.0, 0.5), AskSetting(GAIN, 0.0, (0, 1), (), 5.0, 0.9)
    curves = Curves({ONE: [cheap], GAIN: [dear]}, np.array([1.0, 5.0]), {ONE: np.full(2, -2.0), GAIN: np.full(2, 0.9)})
    assert curves.plan(budget=2.0).first == cheap
    assert curves.plan(budget=5.0).first == dear


def test_where_every_answer_is_free_the_best_are_asked() -> None:
    data = by_agent(panels_of_outcomes(specialists(120, cost_usd=0.0)))
    fitted = fit_asks(data, count_words(data.questions), cross_fit(data), JOINT, ways=(ONE, TABLE, WORDS))
    assert {one.cost for settings in fitted.settings.values() for one in settings} == {0.0}


@pytest.mark.parametrize("change", [{"budgets": (-2.0, -1.0)}, {"budgets": (1e-9, 2e-9)}, {"words": 3e38}])
def test_what_could_fail_only_once_it_is_asked_is_refused_at_load(team: Panel, change: dict[str, Any]) -> None:
    held = team.checkpoint
    asks, extra = dict(held.manifest.contract["asks"]), dict(held.extra)
    if "words" in change:
        words = np.frombuffer(extra["words.f32"], dtype="<f4").copy()
        words[0] = change["words"]
        extra["words.f32"] = words.tobytes()
    else:
        asks["budgets"] = np.linspace(*change["budgets"], len(asks["budgets"])).tolist()
    manifest = dataclasses.replace(held.manifest, contract={**held.manifest.contract, "asks": asks})
    with pytest.raises(ContractMismatch):
        Panel(dataclasses.replace(held, manifest=manifest, extra=extra))


@pytest.mark.parametrize("price", ["x", True, -1.0, None, math.nan, Price(1.0, 2.0)])
def test_a_price_that_is_none_or_of_tokens_where_the_training_had_none_is_refused_before_anybody_is_asked(
    team: Panel, price: object
) -> None:
    begun: list[object] = []
    clients = dict.fromkeys(("tiny", "huge"), lambda **_: begun.append(1))
    of_tokens = "price of tiny is of tokens, .* prompt_tokens and completion_tokens"
    with pytest.raises(RecordError, match=of_tokens if isinstance(price, Price) else "price of tiny"):
        asyncio.run(team.ask(clients, [{"role": "user", "content": "red"}], prices={"tiny": price}))  # type: ignore[dict-item]
    assert not begun


def test_an_agent_that_cannot_be_asked_failed_or_gave_no_text_is_passed_over(team: Panel) -> None:
    first = team.next("red new", "sums", [], budget=1.0).agent
    assert first is not None
    other = team.next("red new", "sums", [], budget=1.0, prices={first: math.inf}).agent
    assert other not in (None, first)
    after = team.next("red new", "sums", [PanelAnswer("", agent=first, cut=True)], budget=1.0).agent
    assert after not in (None, first)
    broken = PanelAnswer(None, agent=first)  # type: ignore[arg-type]  # else a loop would go on for ever
    assert team.next("red new", "sums", [broken], budget=1.0).agent != first


def test_where_the_agents_of_a_way_failed_or_cannot_be_asked_another_is(team: Panel) -> None:
    names = team.agents.names
    chain = AskSetting(CASCADE, 0.0, (0, 1), (0.0,), 1.0, 0.5)
    for setting in (AskSetting(ONE, 0.0, (0,), (), 1.0, 0.5), chain):
        failed = [PanelAnswer("", agent=names[at], cut=True) for at in setting.agents]
        other = _next(team, setting, "red", "sums", failed).agent
        assert other in set(names) - {one.agent for one in failed}
        kept = _next(team, setting, "red", "sums", [*failed, PanelAnswer("yes", agent=other or "")])
        assert (kept.agent, kept.keep) == (None, len(failed))


def test_where_nobody_is_left_asking_stops_with_a_reason_and_keeps_nothing(team: Panel) -> None:
    failed = [PanelAnswer("", agent=name, cut=True) for name in team.agents.names]
    step = team.next("red new", "sums", failed, budget=1.0)
    assert (step.agent, step.keep) == (None, None)
    assert "nobody is left" in step.reason


def test_a_caller_s_prices_change_whom_it_asks_and_one_of_a_stranger_is_told(team: Panel) -> None:
    dear = dict.fromkeys(team.agents.names, 1.0) | {"huge": 0.0}
    assert team.next("red new", "sums", [], price=1.0, prices=dear).agent == "huge"
    assert "stranger" in team.next("red", "sums", [], budget=1.0, prices={"stranger": 1.0}).reason


def test_a_cascade_keeps_the_last_answer_that_can_be_read(team: Panel) -> None:
    names = team.agents.names
    chain = AskSetting(CASCADE, 0.0, (names.index("tiny"), names.index("huge")), (9.0,), 1.0, 0.5)
    answers = [PanelAnswer("no", agent="tiny"), PanelAnswer("yes", agent="huge")]
    assert _next(team, chain, "red", "sums", answers).keep == 1
    answers[1] = dataclasses.replace(answers[1], cut=True)
    assert _next(team, chain, "red", "sums", answers).keep == 0


def test_the_worth_of_agents_is_told_where_it_decides_and_by_a_verdict(team: Panel) -> None:
    names = set(team.agents.names)
    setting = AskSetting(GAIN, 0.01, tuple(range(len(names))), (), 1.0, 0.5)
    assert _next(team, setting, "red", "sums", []).worth.keys() == names
    verdict = team.judge([PanelAnswer("no", agent="tiny")], question="red", dimension="sums")
    assert verdict.worth.keys() == names - {"tiny"}


@pytest.mark.parametrize(
    ("more", "noun"),
    [
        ({"budget": 1.0, "price": 1.0}, "budget"),
        ({"budget": 1e-9}, "budget"),
        ({"budget": math.nan}, "budget"),
        ({"price": -1.0}, "price"),
        ({"price": True}, "price"),
        ({"prices": {"tiny": -1.0}}, "price"),
        ({"prices": {"tiny": math.nan}}, "price"),
        ({"same": 3}, "same"),
        ({"request_id": 3}, "request_id"),
        ({"answers": ["yes"]}, "PanelAnswer"),
        ({"answers": None}, "PanelAnswer"),
        ({"answers": [PanelAnswer("yes", 3)]}, "agents"),
    ],
)
def test_what_cannot_be_is_refused(team: Panel, more: dict[str, object], noun: str) -> None:
    with pytest.raises(RecordError, match=noun):
        team.next(**{"question": "red", "dimension": "sums", "answers": [], **more})  # type: ignore[arg-type]


def test_one_panel_serves_many_threads_as_it_does_one(team: Panel) -> None:
    questions = [(f"{word} {n}", topic) for word in ("red", "old") for topic in ("sums", "facts") for n in range(10)]

    def decided(asked: tuple[str, str]) -> tuple[object, ...]:
        answers = [PanelAnswer("yes", agent="tiny", stated=0.3), PanelAnswer("no", agent="huge", stated=0.9)]
        steps = [team.next(*asked, answers[:count], budget=1.0) for count in range(3)]
        return *steps, team.judge(answers, question=asked[0], dimension=asked[1])

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(decided, questions * 5)) == [decided(one) for one in questions] * 5


def test_without_costs_nothing_is_learned_of_whom_to_ask_and_it_is_said(tmp_path: Path) -> None:
    lines: list[str] = []
    options = PanelOptions(out=tmp_path / "c", on_line=lines.append)
    panel = Panel(train_panel(panels_of_outcomes(specialists(120, cost_usd=None)), options))
    assert panel.asks is None
    assert any("cost" in line for line in lines)
    with pytest.raises(RecordError, match="costs"):
        panel.next("sum", None, [])


def test_the_loop_asks_as_the_steps_say_and_keeps_what_the_last_one_keeps(special: Panel) -> None:
    asked: list[str] = []

    def client(name: str) -> Callable[..., object]:
        return lambda **_: asked.append(name) or completion(f"answer of {name}")

    clients = {name: client(name) for name in (*TOPICS, "dear")}
    messages = [{"role": "user", "content": "sum of the numbers 7"}]
    answered = asyncio.run(special.ask(clients, messages, budget=1.2, request_id="r"))
    assert answered.asked == answered.agents == ("maths",)
    assert asked == ["maths"]


def test_the_card_holds_what_asking_is_worth_and_an_audit_that_can_fail(special: Panel, team: Panel) -> None:
    name = "whom to ask: beats one agent at the same budget"
    assert special.checkpoint.manifest.audits[name].passed  # planted: each specialist on its own topic
    over = special.checkpoint.manifest.metrics["asking.accuracy_over_one_agent"]
    assert over.low > 0.1
    assert name in team.checkpoint.manifest.audits


def test_where_one_agent_is_best_everywhere_asking_is_not_called_sound(tmp_path: Path) -> None:
    rng, same = np.random.default_rng(5), []
    for i in range(150):
        drawn = {name: float(rng.random() < chance) for name, chance in (("good", 0.8), ("bad", 0.2))}
        agents = {name: AgentOutcome(f"{name} {i}", right, None, 0.001) for name, right in drawn.items()}
        same.append(QuestionOutcomes(f"q{i}", f"q{i}", f"question {i}", "", agents))
    made = train_panel(panels_of_outcomes(same), PanelOptions(out=tmp_path / "c")).manifest
    assert not made.audits["whom to ask: beats one agent at the same budget"].passed


def test_an_evaluation_spends_its_budget_and_names_the_decisions(team: Panel, data: Panels) -> None:
    result = evaluate_panel(team, data, budget=1.5, resamples=50)
    [one] = result["budgets"].values()
    assert one["cost_per_1000"]["estimate"] == pytest.approx(1.5, rel=0.1)
    assert set(one["ways"]) == set(ASKS)
    spent = one["cost_per_1000"]["estimate"]
    assert [way["cost_per_1000"] for way in one["ways"].values()] == pytest.approx([spent] * len(ASKS), rel=1e-6)
    assert len(result["decisions"]) == len(data)
    assert all(line["kept"] in line["asked"] for line in result["decisions"])
    rights = [line["correct"] for line in result["decisions"]]
    assert set(rights) <= {0.0, 1.0}, "labels of the outcomes, no estimates"


@pytest.mark.slow
@pytest.mark.parametrize("questions", [200, 1000])
def test_a_router_of_planted_strengths_is_not_shown_behind_the_cascade_and_spends_what_its_card_says(
    questions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The thresholds that ship: with the fewer ones of the quick tests no cascade spends as much as the panel.
    monkeypatch.setattr(fitted_asks, "CUTS", 64)
    monkeypatch.setattr(fitted_asks, "ASK_TREES", {**fitted_asks.ASK_TREES, "rounds": 150})
    panel = Panel(train_router(planted_strengths(questions, seed=0), RouterOptions(out=tmp_path / "c")))
    new = panels_of_outcomes(planted_strengths(1000, seed=1), same=panel.same)
    for budget, one in evaluate_panel(panel, new)["budgets"].items():
        cascade = one["ways"][CASCADE]
        assert cascade["cost_per_1000"] == pytest.approx(one["cost_per_1000"]["estimate"], rel=1e-6), budget
        assert cascade["panel_over_it"]["high"] >= -1e-9, budget
    plan = panel.ask_plan()
    [by_default] = evaluate_panel(panel, new, budget=plan.cost)["budgets"].values()
    card, here = panel.checkpoint.manifest.metrics["asking.cost_per_1000"], by_default["cost_per_1000"]
    assert card.estimate == pytest.approx(plan.cost)
    assert card.low <= here["high"]
    assert here["low"] <= card.high
