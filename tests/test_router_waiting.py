"""What waiting costs: a limit on seconds, where a slow agent and a dear one are as good."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from metaprobe.checkpoints_cli import evaluate, route
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes, write_outcomes
from metaprobe.routing.learned import LearnedRouter
from metaprobe.routing.learned_budget import Alone, Point, plan_of
from metaprobe.routing.learned_play import play
from metaprobe.routing.learned_policy import AgentPolicy
from metaprobe.routing.learned_state import Known, Past
from metaprobe.training.router.data import outcomes_of
from metaprobe.training.router.fit import fit_router
from metaprobe.training.router.rows import Rates
from metaprobe.training.router.train import write_router
from metaprobe.training.router.words import Words

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

AGENTS = {  # share of right answers, US dollars, seconds
    "small": (0.6, 0.0001, 0.5),
    "slow": (0.9, 0.0003, 20.0),
    "dear": (0.9, 0.0012, 1.0),
}


def planted(n: int, seed: int = 0, *, timed: bool = True) -> list[QuestionOutcomes]:
    """Confidences tell little, so that one agent a question is best: which, is a matter of its price."""
    rng = np.random.default_rng(seed)
    return [
        QuestionOutcomes(
            f"{seed}-{i}",
            f"{seed}-{i}",
            agents={
                name: AgentOutcome(
                    f"{name}{i}",
                    float(rng.random() < right),
                    float(rng.normal()),
                    price,
                    1000 * seconds * rng.uniform(0.5, 1.5) if timed else None,
                )
                for name, (right, price, seconds) in AGENTS.items()
            },
        )
        for i in range(n)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("router") / "checkpoint"
    write_router(path, planted(500), folds=2, states=4000)
    return path


@pytest.fixture(scope="module")
def timeless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("router") / "timeless"
    write_router(path, planted(120, timed=False), folds=2, states=600)
    return path


HELD_OUT = planted(400, seed=1)


def answered(router: LearnedRouter) -> tuple[float, float, float]:
    """Accuracy, US dollars for 1,000 questions, seconds a question."""
    games = [play(router, question) for question in HELD_OUT]
    return (
        float(np.mean([game.score for game in games])),
        float(1000 * np.mean([game.cost_usd for game in games])),
        float(np.mean([game.latency_ms for game in games]) / 1000),
    )


@pytest.mark.slow
def test_a_limit_on_waiting_is_kept_by_asking_the_dear_agent_in_place_of_the_slow_one(folder: Path) -> None:
    accuracy, cost, seconds = answered(LearnedRouter.load(folder, budget=0.5))
    assert accuracy > 0.85
    assert cost < 0.5 * 1.1
    assert seconds > 10, "where waiting costs nothing, the slow agent is as good as the dear one, and cheaper"
    accuracy, cost, seconds = answered(LearnedRouter.load(folder, seconds=3.0))
    assert accuracy > 0.85
    assert cost > 0.8
    assert seconds < 3.0 * 1.1


@pytest.mark.slow
def test_both_limits_hold_at_once(folder: Path) -> None:
    accuracy, cost, seconds = answered(LearnedRouter.load(folder, budget=0.6, seconds=8.0))
    assert accuracy > 0.62, "better than the small agent, which is all that is cheap and quick"
    assert cost < 0.6 * 1.1
    assert seconds < 8.0 * 1.15


@pytest.mark.slow
def test_a_second_with_a_price_is_avoided(folder: Path) -> None:
    free, priced = (answered(LearnedRouter.load(folder, lambda_=0.02, per_second=p)) for p in (0.0, 0.02))
    assert priced[2] < 3 < free[2]


def test_dues_are_lambda_times_the_price_and_the_price_of_the_time() -> None:
    data = outcomes_of(planted(200))
    fitted = fit_router(data, (words := Words.of(data.questions)), np.arange(len(data)), states=4000)
    board = fitted.board(data, words, np.arange(1))
    one, rates = np.arange(1), Rates(np.array([0.05]), np.array([0.01]))
    expected = [0.05 * 1000 * AGENTS[name][1] + 0.01 * AGENTS[name][2] for name in data.agents]
    assert board.views.dues(one, rates)[0] == pytest.approx(expected, rel=0.1)
    assert np.exp(board.views.log_priced(one, rates)) == pytest.approx(board.views.dues(one, rates))


@pytest.mark.slow
def test_the_checkpoint_asks_whom_the_fitted_heads_would(folder: Path) -> None:
    questions = planted(500)
    data = outcomes_of(questions)
    words = Words.of(data.questions)
    fitted = fit_router(data, words, np.arange(len(data)), states=4000)
    board = fitted.board(data, words, np.arange(60))
    rates = Rates(np.full(60, 0.05), np.full(60, 0.01))
    mask, _ = board.play(fitted.gain, np.arange(60), np.zeros((60, 3), dtype=bool), rates)
    router = LearnedRouter.load(folder, lambda_=0.05, per_second=0.01)
    asked = [set(play(router, question).asked) for question in questions[:60]]
    assert asked == [{data.agents[column] for column in np.flatnonzero(row)} for row in mask]


@pytest.mark.slow
def test_waiting_without_known_times_is_refused(timeless: Path, folder: Path) -> None:
    with pytest.raises(RecordError, match="latency_ms"):
        LearnedRouter.load(timeless, seconds=2.0)
    with pytest.raises(RecordError, match=r"how long .*slow.* takes is not known"):
        LearnedRouter.load(timeless, lambda_=0.1, per_second=0.1)
    with pytest.raises(RecordError, match="how long new takes is not known"):
        LearnedRouter.load(folder, lambda_=0.1, per_second=0.1).with_agent("new", {"": Past(rate=1.0, price_usd=0.1)})
    LearnedRouter.load(timeless, budget=0.5)


@pytest.mark.slow
def test_what_no_way_keeps_to_is_refused_with_the_quickest(folder: Path) -> None:
    with pytest.raises(RecordError, match=r"no way keeps within 0\.01 s of waiting; the quickest takes 0\.[45]"):
        LearnedRouter.load(folder, seconds=0.01)
    with pytest.raises(RecordError, match="below"):
        LearnedRouter.load(folder, budget=0.001, seconds=30)
    with pytest.raises(RecordError, match="per_second is -1"):
        LearnedRouter.load(folder, lambda_=0.1, per_second=-1)
    with pytest.raises(ValueError, match="fix lambda_ and per_second"):
        LearnedRouter.load(folder, seconds=3, lambda_=0.1)


def test_the_simplest_of_equally_accurate_ways_is_taken() -> None:
    curve = [Point(0.1, 0.8, 1.0, 0.0, 5.0), Point(0.1, 0.7, 0.5, 0.3, 1.0)]
    rule = [Point(0.2, 0.75, 0.6, 0.1, 1.5)]
    alone = [Alone("a", 0.75, 0.4, 1.5), Alone("b", 0.99, 9.0, 9.0)]
    assert plan_of(curve, rule, alone, seconds=9, budget=2).instead == ""
    quick = plan_of(curve, rule, alone, seconds=2)
    assert (quick.agent, quick.lambda_) == ("a", 0.1)
    assert "a alone had 0.750" in quick.instead
    ruled = plan_of(curve, rule, [], seconds=2)
    assert (ruled.lambda_, ruled.per_second, ruled.agent) == (0.2, 0.1, "")
    assert "past success rates alone had 0.750" in ruled.instead
    better = plan_of(curve, [], [Alone("a", 0.9, 0.9, 4.0)], budget=1.0)
    assert (better.agent, better.lambda_) == ("a", plan_of(curve, [], [], budget=1.0).lambda_), (
        "the budget's price stays"
    )
    assert plan_of(curve, [], [], seconds=2).per_second == 0.3


@pytest.mark.slow
def test_where_past_rates_do_better_the_rule_decides_and_says_so(folder: Path) -> None:
    checkpoint = LearnedRouter.load(folder).checkpoint
    contract = {**checkpoint.manifest.contract, "rule": [[0.01, 0.999, 0.4, 0.0, 1.0]], "alone": []}
    router = LearnedRouter(replace(checkpoint, manifest=replace(checkpoint.manifest, contract=contract)), budget=0.5)
    found = play(router, HELD_OUT[0])
    assert found.kept == "slow"
    assert "past success rates alone had 0.999 of the held-out questions right" in found.reason
    assert found.fell_back


@pytest.mark.slow
def test_where_the_agent_that_is_better_alone_may_not_be_asked_the_learned_way_decides(folder: Path) -> None:
    checkpoint = LearnedRouter.load(folder).checkpoint
    contract = {**checkpoint.manifest.contract, "alone": [["slow", 0.999, 0.3, 20.0]]}
    router = LearnedRouter(replace(checkpoint, manifest=replace(checkpoint.manifest, contract=contract)), budget=0.5)
    assert router.decide(Known()).agent == "slow"
    other = router.decide(Known(agents=("small", "dear")))
    assert not other.fallback
    assert router.lambda_ == LearnedRouter.load(folder, budget=0.5).lambda_


@pytest.mark.slow
def test_in_a_pipeline_the_slow_agent_is_not_handed_the_question(folder: Path) -> None:
    free, priced = (AgentPolicy(LearnedRouter.load(folder, lambda_=0.02, per_second=p)) for p in (0.0, 0.1))
    slow = [policy._answer("slow", "") - policy._answer("dear", "") for policy in (free, priced)]
    assert slow[0] < 0 < slow[1]
    assert repr(free) != repr(priced), "a store must tell the two apart"


@pytest.mark.slow
def test_the_limits_are_options_of_the_command_line(folder: Path, tmp_path: Path) -> None:
    write_outcomes(tmp_path / "held-out.jsonl", HELD_OUT[:80])
    line = [str(folder), str(tmp_path / "held-out.jsonl")]
    found = CliRunner().invoke(evaluate, ["router", *line, "--seconds", "3", "--json"])
    assert found.exit_code == 0, found.output
    assert '"seconds": 3.0' in found.output
    assert CliRunner().invoke(route, [*line, "--budget", "0.5", "--seconds", "3"]).exit_code == 0
    refused = CliRunner().invoke(route, [*line, "--seconds", "3", "--lambda", "1"])
    assert refused.exit_code == 2
    assert "--budget and --seconds fix --lambda and --per-second" in refused.output
