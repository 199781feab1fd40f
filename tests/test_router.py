"""The learned router: what it decides, from what it knows, and what that is worth where the truth was planted."""

import json
import math
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.checkpoints import ContractMismatch
from metaprobe.checkpoints_cli import evaluate, route
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes, write_outcomes
from metaprobe.routing.learned import GAIN, SUCCESS, LearnedRouter
from metaprobe.routing.learned_budget import Alone, Point, lambda_of_budget, plan_of
from metaprobe.routing.learned_play import play
from metaprobe.routing.learned_state import AskedAgent, Known, Past
from metaprobe.training.promotion import promote_router as promote
from metaprobe.training.router.data import outcomes_of, pasts_of
from metaprobe.training.router.evaluate import evaluate_router, read_known
from metaprobe.training.router.fit import fit_router
from metaprobe.training.router.rows import Rates
from metaprobe.training.router.train import state_rows, write_router
from metaprobe.training.router.words import Words, texts_of
from metaprobe.training_cli import train_router_command

# Whether so little data passes every audit is not the subject here.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

PRICES = {"small": 0.0001, "middle": 0.0004, "large": 0.002}
SKILL = {
    "small": {"easy": 0.85, "hard": 0.3},
    "middle": {"easy": 0.9, "hard": 0.5},
    "large": {"easy": 0.95, "hard": 0.85},
}
STATES = 4000
"""Far fewer than in earnest: a test takes seconds."""


def planted(n: int, seed: int = 0, skill: dict[str, dict[str, float]] = SKILL) -> list[QuestionOutcomes]:
    """Each agent is right with its skill on the dimension; its confidence tells a right from a wrong answer, mostly."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(n):
        dimension = "easy" if rng.random() < 0.5 else "hard"
        agents = {}
        for name, levels in skill.items():
            right = rng.random() < levels[dimension]
            confidence = float(1 / (1 + math.exp(-rng.normal(1.2 if right else -0.6, 0.8))))
            answer = "yes" if right else f"no{rng.integers(3)}"
            agents[name] = AgentOutcome(answer, float(right), confidence, PRICES.get(name, 0.0003), 100.0)
        found.append(QuestionOutcomes(f"{seed}-{i}", f"g{seed}-{i}", f"question {i % 7}", dimension, agents))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("router") / "checkpoint"
    write_router(path, planted(600), folds=2, states=STATES, command="test")
    return path


@pytest.fixture(scope="module")
def router(folder: Path) -> LearnedRouter:
    return LearnedRouter.load(folder, lambda_=0.1)


HELD_OUT = planted(500, seed=1)


def value(router: LearnedRouter, questions: Sequence[QuestionOutcomes]) -> float:
    games = [play(router, question) for question in questions]
    return float(np.mean([game.score - router.lambda_ * 1000 * game.cost_usd for game in games]))


def test_it_beats_every_single_agent_at_its_own_price(router: LearnedRouter) -> None:
    singles = [
        np.mean([q.agents[name].score - router.lambda_ * 1000 * PRICES[name] for q in HELD_OUT]) for name in PRICES
    ]
    assert value(router, HELD_OUT) > max(singles) + 0.02


@pytest.mark.slow
def test_its_regret_falls_towards_that_of_the_planted_truth_with_more_data(tmp_path: Path) -> None:
    """Without confidences and answers the best choice is known: the agent of highest skill - lambda * price, alone."""
    rng, lambda_ = np.random.default_rng(11), 0.02
    dimensions = [f"d{i}" for i in range(8)]
    skill = {name: {d: float(rng.uniform(0.3, 0.95)) for d in dimensions} for name in PRICES}

    def worth(name: str, dimension: str) -> float:
        return skill[name][dimension] - lambda_ * 1000 * PRICES[name]

    def outcomes(n: int, seed: int) -> list[QuestionOutcomes]:
        draws = np.random.default_rng(seed)
        return [
            QuestionOutcomes(
                f"{n}-{i}",
                f"{n}-{i}",
                dimension=(d := dimensions[i % 8]),
                agents={a: AgentOutcome("", float(draws.random() < skill[a][d]), None, PRICES[a]) for a in PRICES},
            )
            for i in range(n)
        ]

    regrets = []
    for n in (64, 1600):
        write_router(tmp_path / str(n), outcomes(n, seed=n), folds=2, states=STATES)
        trained = LearnedRouter.load(tmp_path / str(n), lambda_=lambda_)
        lost = []
        for question in outcomes(8, seed=0):
            game, d = play(trained, question), question.dimension
            paid = lambda_ * 1000 * sum(PRICES[name] for name in game.asked)
            lost.append(max(worth(a, d) for a in PRICES) - (skill[game.kept][d] - paid))
        regrets.append(float(np.mean(lost)))
    assert regrets[1] < regrets[0] / 2
    assert -1e-9 <= regrets[1] < 0.02


def test_a_question_is_decided_without_anything_of_agents_that_were_not_asked(router: LearnedRouter) -> None:
    games = [play(router, question) for question in HELD_OUT[:100]]
    changed = 0
    for question, game in zip(HELD_OUT[:100], games, strict=True):
        others = {
            name: replace(outcome, confidence=0.01, answer="another") if name not in game.asked else outcome
            for name, outcome in question.agents.items()
        }
        changed += others != question.agents
        assert play(router, replace(question, agents=others)) == game
    assert changed > 10, "some agents must have been left unasked, or nothing was shown"


def test_what_an_asked_agent_gave_changes_the_decision(router: LearnedRouter) -> None:
    sure, unsure = (Known({"small": AskedAgent("yes", c)}, "", "hard") for c in (0.97, 0.05))
    assert router.decide(sure).action == "keep"
    assert router.decide(unsure).action == "ask"


def test_a_dearer_lambda_asks_less(router: LearnedRouter) -> None:
    cost = [sum(play(router.at(x), q).cost_usd for q in HELD_OUT[:150]) for x in (0.01, 0.1, 1.0)]
    assert cost[0] > cost[1] > cost[2]


def test_the_budget_is_kept_on_other_questions_within_noise(folder: Path) -> None:
    for budget in (0.3, 0.8):
        router = LearnedRouter.load(folder, budget=budget)
        cost = 1000 * np.array([play(router, question).cost_usd for question in HELD_OUT])
        assert cost.mean() <= budget + 3 * cost.std() / math.sqrt(len(cost)) + 0.1 * budget


def test_a_budget_below_the_cheapest_way_is_refused(folder: Path) -> None:
    with pytest.raises(RecordError, match="below"):
        LearnedRouter.load(folder, budget=0.001)


POINTS = st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 2)), min_size=1, max_size=8)


@given(POINTS, st.floats(0.02, 3))
def test_a_budget_buys_the_most_accurate_point_that_it_pays_for(
    points: list[tuple[float, float]], budget: float
) -> None:
    curve = [Point(0.1 * 2**i, accuracy, cost) for i, (accuracy, cost) in enumerate(points)]
    within = [point for point in curve if point.cost <= budget * (1 + 1e-9)]
    if not within:
        with pytest.raises(RecordError, match="below"):
            lambda_of_budget(curve, budget)
        return
    found, best = lambda_of_budget(curve, budget), max(point.accuracy for point in within)
    assert 0.1 * (1 - 1e-9) <= found <= curve[-1].lambda_ * (1 + 1e-9)
    simple = [Point(9.0, best, budget), Point(9.0, 1.0, budget + 0.1)]
    plan = plan_of(curve, simple, [Alone("a", best, budget), Alone("b", 1.0, budget + 0.1)], budget=budget)
    assert (plan.lambda_, plan.instead) == (found, ""), "as good is not better, and what costs more is not bought"


def test_between_two_points_the_budget_is_interpolated() -> None:
    curve = [Point(0.1, 0.9, 2.0), Point(0.4, 0.8, 1.0), Point(1.6, 0.7, 0.5)]
    assert lambda_of_budget(curve, 1.5) == pytest.approx(0.2)
    assert lambda_of_budget(curve, 1.0) == pytest.approx(0.4)
    assert lambda_of_budget(curve, 9.0) == pytest.approx(0.1)


def test_where_one_agent_is_better_alone_it_is_asked_alone(router: LearnedRouter) -> None:
    checkpoint = router.checkpoint
    contract = {**checkpoint.manifest.contract, "alone": [["large", 0.999, 0.5]]}
    manifest = replace(checkpoint.manifest, contract=contract)
    alone = LearnedRouter(replace(checkpoint, manifest=manifest), budget=0.6)
    first = alone.decide(Known(dimension="easy"))
    assert (first.action, first.agent, first.fallback) == ("ask", "large", True)
    assert "0.999" in first.reason
    assert alone.decide(Known({"large": AskedAgent("yes", 0.1)}, "", "easy")).action == "keep"
    assert not LearnedRouter(replace(checkpoint, manifest=manifest), budget=0.4).plan.agent


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"small": AskedAgent("yes", None)}, "gave no confidence"),
        ({"small": AskedAgent("yes", -12.0)}, "in training"),
        ({"small": AskedAgent("yes", math.nan)}, "in training"),
        ({"unheard": AskedAgent("yes", 0.5)}, "nothing is known of unheard"),
    ],
)
def test_missing_or_strange_inputs_fall_back_with_the_reason(
    router: LearnedRouter, asked: dict[str, AskedAgent], why: str
) -> None:
    routed = router.decide(Known(asked, "", "hard"))
    assert routed.fallback
    assert why in routed.reason
    assert "fixed rule" in routed.reason
    assert routed.action == ("ask" if "unheard" in asked else "keep")


def test_dimension_and_text_may_be_missing(router: LearnedRouter) -> None:
    nothing = router.decide(Known())
    assert nothing.action == "ask"
    assert not nothing.fallback
    assert "dimension unknown" in nothing.reason
    unseen = router.decide(Known(dimension="poetry"))
    assert "'poetry' was not seen" in unseen.reason
    assert unseen.scores == nothing.scores


def test_a_new_agent_takes_part_without_training(router: LearnedRouter) -> None:
    def past(rate: float) -> Past:
        return Past(rate=math.log(rate / (1 - rate)), price_usd=0.0001)

    expert = router.with_agent("expert", {"": past(0.98), "hard": past(0.98), "easy": past(0.98)})
    dunce = router.with_agent("dunce", {"": past(0.05)})
    assert expert.decide(Known(dimension="hard")).agent == "expert"
    assert dunce.decide(Known(dimension="hard")).agent != "dunce"
    assert "expert" not in router.agents
    with pytest.raises(RecordError, match='key ""'):
        router.with_agent("expert", {"hard": past(0.9)})


def test_a_new_agents_past_can_be_made_from_a_few_outcomes(router: LearnedRouter) -> None:
    skill = {"fresh": {"easy": 0.97, "hard": 0.97}, **SKILL}
    few, many = planted(60, 5, skill), planted(300, 6, skill)
    larger = router.with_agent("fresh", pasts_of(outcomes_of(few))["fresh"])
    assert value(larger, many) > value(router, many) + 0.02


def test_only_agents_that_may_be_asked_are_named(router: LearnedRouter) -> None:
    routed = router.decide(Known(agents=("middle",)))
    assert routed.agent == "middle"
    assert set(routed.scores) == {"middle"}
    with pytest.raises(RecordError, match="no agent"):
        router.decide(Known(agents=("unheard",)))


def test_the_graph_says_what_the_fitted_heads_say(folder: Path, router: LearnedRouter) -> None:
    data = outcomes_of(planted(600))
    words = Words.of(data.questions)
    fitted = fit_router(data, words, np.arange(len(data)), states=STATES)
    board = fitted.board(data, words, np.arange(50))
    mask = np.random.default_rng(0).random((50, 3)) < 0.4
    X, success, gain = state_rows(board, fitted, np.arange(50), mask, Rates.of(np.full(50, 0.1)))
    for state in range(50):
        outputs = router.checkpoint.run({"agents": X[state]})
        np.testing.assert_allclose(outputs[SUCCESS].ravel(), success[state], atol=1e-5)
        np.testing.assert_allclose(outputs[GAIN].ravel(), gain[state], atol=1e-5)


def test_words_of_one_question_are_scored_as_those_of_many() -> None:
    questions = [replace(q, question=f"{q.question} about {q.dimension} things") for q in planted(200)]
    data = outcomes_of(questions)
    words = Words.of(data.questions)
    scores = fit_router(data, words, np.arange(200), states=500).words
    many = texts_of(scores, words, np.arange(20))
    one = [scores.of(question) for question in data.questions[:20]]
    np.testing.assert_allclose(np.array(one)[:, :-1], many, atol=1e-5)
    assert scores.of("zzz qqq") is None or len(scores.of("zzz qqq") or ()) == 4


def test_threads_share_a_router(router: LearnedRouter) -> None:
    alone = [play(router, question) for question in HELD_OUT[:60]]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda question: play(router, question), HELD_OUT[:60])) == alone


@pytest.mark.slow
def test_only_a_better_version_is_promoted(tmp_path: Path, folder: Path, router: LearnedRouter) -> None:
    rng = np.random.default_rng(3)
    deaf = [
        replace(q, agents={a: replace(o, score=float(rng.random() < 0.5)) for a, o in q.agents.items()})
        for q in planted(300, seed=8)
    ]
    write_router(tmp_path / "worse", deaf, folds=2, states=STATES)
    worse = LearnedRouter.load(tmp_path / "worse", lambda_=0.1)
    assert promote(router, worse, HELD_OUT).promoted
    kept = promote(worse, router, HELD_OUT)
    assert not kept.promoted
    assert kept.digest == router.checkpoint.digest
    assert not promote(router, router, HELD_OUT).promoted, "equal is not better"
    assert LearnedRouter.load(folder, sha256=kept.digest).checkpoint.digest == kept.digest
    with pytest.raises(RecordError, match="trained on"):
        promote(worse, router, planted(600))


def test_evaluation_counts_every_agent_asked_and_looks_at_nothing_else(router: LearnedRouter) -> None:
    figures, decisions = evaluate_router(router, HELD_OUT[:120], resamples=50)
    for question, line in zip(HELD_OUT, decisions, strict=False):
        assert line["kept"] in line["asked"]
        assert len(set(line["asked"])) == len(line["asked"])
        assert line["cost_usd"] == pytest.approx(sum(PRICES[name] for name in line["asked"]))
        assert line["score"] == question.agents[line["kept"]].score
    assert figures["cost_per_1000"]["estimate"] == pytest.approx(1000 * np.mean([d["cost_usd"] for d in decisions]))
    assert figures["accuracy"]["estimate"] <= figures["controls"]["oracle"]["accuracy"]["estimate"]
    spent = figures["cost_per_1000"]["estimate"]
    controls = {name: one for name, one in figures["controls"].items() if name.endswith("at the same cost")}
    assert {name.removesuffix(" at the same cost") for name in controls} == {
        *("random mixture", "domain table", "TF-IDF logistic", "kNN on TF-IDF SVD", "tuned cascade")
    }
    for control in controls.values():
        assert control["cost_per_1000"]["estimate"] <= 1.15 * spent  # as other folds, or the training, told it
        assert 0 <= control["p_holm"] <= 1
    assert figures["verdict"]["word"] in ("ahead", "tie", "behind")
    assert figures["verdict"]["strongest_control"] in figures["controls"]
    json.dumps(figures, allow_nan=False)


def test_it_cannot_be_fooled_by_a_checkpoint_of_another_kind(folder: Path, tmp_path: Path) -> None:
    from metaprobe.checkpoints import load_checkpoint

    checkpoint = load_checkpoint(folder)
    other = replace(checkpoint, manifest=replace(checkpoint.manifest, kind="choice"))
    with pytest.raises(ContractMismatch, match="router"):
        LearnedRouter(other)
    with pytest.raises(ContractMismatch, match="no whole router"):
        LearnedRouter(replace(checkpoint, extra={}))


@pytest.mark.slow
def test_the_command_line_trains_routes_and_evaluates(tmp_path: Path) -> None:
    write_outcomes(tmp_path / "o.jsonl", planted(150))
    write_outcomes(tmp_path / "new.jsonl", planted(60, seed=2))
    run = CliRunner()
    made = run.invoke(
        train_router_command,
        [str(tmp_path / "o.jsonl"), "--out", str(tmp_path / "c"), "--folds", "2", "--states", "2000"],
    )
    assert made.exit_code == 0, made.output
    lines = [
        {"id": "q1", "dimension": "hard", "agents": {"small": {"answer": "no", "confidence": 0.02}}},
        {"question": "what?", "candidates": ["large"]},
        {"id": "q3", "agents": {"small": {"confidence": "high"}}},
    ]
    (tmp_path / "k.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "no json\n")
    routed = run.invoke(route, [str(tmp_path / "c"), str(tmp_path / "k.jsonl")])
    out = [json.loads(line) for line in routed.stdout.splitlines()]
    assert routed.exit_code == 1  # two lines could not be read
    assert [line["line"] for line in out] == [1, 2, 3, 4]
    assert all(set(line) == {"line", "id", "action", "agent", "expected", "reason"} for line in out)
    assert out[1]["agent"] == "large"
    assert out[2]["action"] is None
    assert "confidence" in out[2]["reason"]
    options = ["--json", "--budget", "0.5", "--decisions", str(tmp_path / "d.jsonl")]
    evaluated = run.invoke(evaluate, ["router", str(tmp_path / "c"), str(tmp_path / "new.jsonl"), *options])
    figures = json.loads(evaluated.stdout)
    decided = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    assert figures["questions"] == len(decided) == 60
    assert {"accuracy", "cost_per_1000", "curve", "controls"} <= set(figures)


def test_scores_on_a_line_to_route_are_not_looked_at() -> None:
    line = {"id": "a", "agents": {"m": {"answer": "x", "confidence": 0.5, "correct": 1, "cost_usd": 3}}}
    assert read_known(line, 1).asked == {"m": AskedAgent("x", 0.5)}


def failing(questions: Sequence[QuestionOutcomes], seed: int = 5) -> list[QuestionOutcomes]:
    """The same questions; on a third of them the small agent fails, at a price that no line tells."""
    lost = np.random.default_rng(seed).random(len(questions)) < 1 / 3
    failed = AgentOutcome("", 0.0, None, None, 30_000.0, error="timed out")
    return [
        replace(question, agents={**question.agents, "small": failed}) if gone else question
        for question, gone in zip(questions, lost, strict=True)
    ]


def test_a_router_learns_from_failures_and_never_keeps_one(tmp_path: Path) -> None:
    said: list[str] = []
    lacking = [replace(q, agents={"small": q.agents["small"]}) if i < 9 else q for i, q in enumerate(planted(600))]
    write_router(tmp_path / "c", failing(lacking), folds=2, states=STATES, on_line=said.append)
    missing, failures = said
    assert missing.startswith("9 of 600 lines (large 9, middle 9) lack agents: ")
    assert re.match(r"(19|20|21)\d of 600 lines \(small \d+\) hold failed calls: each counts as not right", failures)
    trained = LearnedRouter.load(tmp_path / "c", lambda_=0.02)
    assert trained.past("small").price_usd == pytest.approx(PRICES["small"])
    assert trained.past("small").stated == 1.0, "a failed call is no answer without a confidence"
    games = [play(trained, question) for question in failing(HELD_OUT, seed=6)]
    worst = min(game.score for game in games)
    for question, game in zip(failing(HELD_OUT, seed=6), games, strict=True):
        assert question.agents[game.kept].error is None
        if "small" in game.asked and question.agents["small"].error is not None:
            assert "failed: small (timed out)" in game.reason
    assert worst == 0.0
    assert np.mean([game.score for game in games]) > 0.8
    figures, decided = evaluate_router(trained, failing(HELD_OUT, seed=6))
    assert figures["accuracy"]["estimate"] == pytest.approx(np.mean([game.score for game in games]))
    assert [one["kept"] for one in decided] == [game.kept for game in games]


def test_the_success_of_an_agent_that_is_not_asked_yet_counts_its_failures(tmp_path: Path) -> None:
    write_router(tmp_path / "sound", planted(600), folds=2, states=STATES)
    write_router(tmp_path / "failing", failing(planted(600)), folds=2, states=STATES)
    sound, lossy = (LearnedRouter.load(tmp_path / name, lambda_=0.02) for name in ("sound", "failing"))
    before = [1 / (1 + math.exp(-one.past("small", "easy").rate)) for one in (sound, lossy)]
    assert before[1] == pytest.approx(before[0] * 2 / 3, abs=0.08)
    heard = Known({"small": AskedAgent("yes", 0.9)}, "question 1", "easy", ["small"])
    assert lossy.decide(heard).expected == pytest.approx(sound.decide(heard).expected, abs=0.08)


def test_where_all_agents_fail_a_game_is_lost_and_paid_for(router: LearnedRouter) -> None:
    gone = {name: AgentOutcome("", 0.0, None, price, error="away") for name, price in PRICES.items()}
    question = replace(HELD_OUT[0], agents=gone)
    game = play(router, question)
    assert (game.kept, game.score, len(game.asked)) == ("", 0.0, 3)
    assert game.cost_usd == pytest.approx(sum(PRICES.values()))
    _, (decided, *_) = evaluate_router(router, [question, *HELD_OUT[1:80]])
    assert (decided["kept"], decided["score"]) == (None, 0.0)
