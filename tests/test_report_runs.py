"""What a report adds from whole runs: tokens seen, roles, stages, similarity, cost and quality."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from metaprobe.eval.answers import (
    agents_alone,
    auroc_by_tokens_seen,
    role_trajectories,
    trajectory_bands,
    with_runs,
)
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.results import Comparison
from metaprobe.eval.table import answer_table
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Run, Usage
from metaprobe.training.comparison import first_token_scores

RECORDED = Path(__file__).parent.parent / "recorded"


def run(number, logprobs, right, *, agent="", label=True):
    call = Call(id=f"c{number}", stage="answer", agent=agent, model="m", logprobs=np.array(logprobs, dtype=np.float32))
    return Run(
        id=f"r{number}",
        system="s",
        variant="v",
        item=Item(id=f"i{number}", question="q", group=f"g{number}"),
        calls=(call,),
        labels=(Label(call.id, "correct", float(right), "program"),) if label else (),
        outcome=float(right),
    )


@pytest.fixture(scope="module")
def planted():
    """Right and wrong answers that begin alike and part at the sixth token."""
    rng = np.random.default_rng(0)
    runs = []
    for number in range(80):
        right = number % 2
        start = rng.normal(-1, 0.2, 5)
        runs.append(run(number, [*start, *([-0.1 if right else -4.0] * rng.integers(3, 9))], right))
    return runs


def test_what_parts_at_the_sixth_token_cannot_be_told_before_and_can_after(planted):
    seen = auroc_by_tokens_seen(answer_table(planted), resamples=50)
    mean = next(method for method in seen.methods if method.name == "mean log-probability")
    by_k = dict(zip(seen.tokens, mean.auroc, strict=True))
    assert by_k[5].low < 0.5 < by_k[5].high
    assert by_k[10].estimate == 1.0


def test_tokens_beyond_the_end_of_nearly_all_answers_are_not_shown(planted):
    seen = auroc_by_tokens_seen(answer_table(planted), resamples=10)
    assert seen.tokens == (1, 2, 3, 5, 10, 20)
    assert seen.finished[3] == 0.0
    assert seen.finished[-1] == 1.0


def test_the_last_point_is_the_auroc_of_the_whole_answer():
    table = answer_table(RunStore(RECORDED / "smollm2-metacog-eval"))
    seen = auroc_by_tokens_seen(table, tokens=(1, 10_000), resamples=10)
    whole = [float(np.mean(values)) for values in table.logprobs]
    first = [float(values[0]) for values in table.logprobs]
    mean = seen.methods[0]
    assert mean.auroc[-1].estimate == pytest.approx(auroc(table.y, whole))
    assert mean.auroc[0].estimate == pytest.approx(auroc(table.y, first))


def test_learned_scores_are_shown_at_their_own_tokens_and_must_have_the_same(planted):
    table = answer_table(planted)
    perfect = {4: table.y, 8: table.y}
    seen = auroc_by_tokens_seen(table, learned={"trees": perfect}, resamples=10)
    assert seen.tokens == (4, 8)
    assert [interval.estimate for interval in seen.methods[-1].auroc] == [1.0, 1.0]
    with pytest.raises(RecordError, match=r"b has scores for k in \[4\]; the others for k in \[4, 8\]"):
        auroc_by_tokens_seen(table, learned={"a": perfect, "b": {4: table.y}})


def test_answers_whose_first_tokens_teach_nothing_are_shown_without_what_was_learned(evidence):
    alike = np.empty(len(evidence.table), dtype=object)
    alike[:] = [np.full(2, -0.5, dtype=np.float32)] * len(alike)
    table = replace(evidence.table, logprobs=alike, tokens=np.full(len(alike), 2))
    learned = first_token_scores(replace(evidence, table=table), folds=2, seed=0)
    assert learned == {}
    shown = auroc_by_tokens_seen(table, learned=learned, resamples=20)
    assert [method.name for method in shown.methods] == ["mean log-probability", "minimum log-probability"]


def test_the_first_length_at_which_no_more_than_a_twentieth_goes_on_is_the_last_that_is_shown():
    for longer, last in ((4, 5), (5, 10)):  # of 80
        runs = [run(n, [-1.0 - n % 2 / 9 - at / 100 for at in range(8 if n < longer else 5)], n % 2) for n in range(80)]
        seen = auroc_by_tokens_seen(answer_table(runs), resamples=5)
        assert seen.tokens[-1] == last
        assert seen.finished[seen.tokens.index(5)] == 1 - longer / 80


@pytest.mark.parametrize(("n", "tokens", "shown"), [(20, 5, True), (19, 5, False), (20, 4, False)])
def test_a_role_is_shown_from_ten_answers_of_either_kind_and_five_tokens_on(n, tokens, shown):
    runs = [run(number, [-1.0] * tokens, number % 2) for number in range(n)]
    assert bool(role_trajectories(runs)) == shown


def test_answers_of_one_kind_have_nothing_to_be_told():
    assert auroc_by_tokens_seen(answer_table([run(number, [-1.0], 1) for number in range(20)])) is None


def test_roles_are_named_by_what_differs_and_judged_by_their_own_label_or_the_runs_outcome():
    values = {True: [-0.1] * 6, False: [-2.0] * 6}
    runs = [run(n, values[bool(n % 2)], n % 2, agent="alpha") for n in range(40)]
    runs += [run(100 + n, values[bool(n % 2)], n % 2, agent="beta", label=False) for n in range(40)]
    runs += [run(200 + n, [-1.0], n % 2, agent="says a number") for n in range(40)]
    runs += [run(300 + n, values[bool(n % 2)], n % 2, agent="rare") for n in range(10)]
    found = {trajectories.role: trajectories for trajectories in role_trajectories(runs)}
    assert list(found) == ["alpha", "beta"]
    assert found["beta"].correct.n == 20
    np.testing.assert_allclose(found["beta"].wrong.mean, -2.0)


def test_recorded_metacrit_runs_fill_their_sections():
    runs = list(RunStore(RECORDED / "creak-metacrit"))
    empty = Comparison(title="t", summary=(), provenance={}, y=np.array([0, 1]), methods=())
    found = with_runs(empty, runs, resamples=20)
    assert {flow.reference for flow in found.similarity} == {"previous", "final"}
    assert [stage.stage for stage in found.similarity[0].stages] == ["monitor", "control", "synthesis"]
    assert {"answer", "synthesis", "final"} <= {row.stage for row in found.stages}
    assert any("monitor" in trajectories.role for trajectories in found.role_trajectories)
    assert found.routing == ()


def test_agents_alone_cost_what_they_generate_and_the_oracle_beats_them():
    runs = list(RunStore(RECORDED / "metacog-every-agent"))
    found = agents_alone(runs, resamples=20)
    points = {point.name: point for point in found.points}
    for agent in ("alpha", "beta", "gamma"):
        own = [call for one in runs for call in one.calls if call.agent == agent]
        assert points[agent].cost == pytest.approx(sum(len(call.logprobs) for call in own) / len(runs))
        right = [label.value for one in runs for label in one.labels if label.name == "correct"
                 and any(call.id == label.call_id for call in own if call in one.calls)]  # fmt: skip
        assert points[agent].accuracy == pytest.approx(np.mean(right))
    assert points["oracle"].accuracy > max(points[agent].accuracy for agent in ("alpha", "beta", "gamma"))
    asked_all = points["all asked, the most confident kept"]
    assert asked_all.cost == pytest.approx(sum(points[agent].cost for agent in ("alpha", "beta", "gamma")))
    assert set(found.hull) <= {(point.cost, point.accuracy) for point in found.points if point.kind != "oracle"}
    assert agents_alone(runs[:20]) is None
    assert agents_alone(runs[:29]) is None
    assert agents_alone(runs[:30], resamples=5).n == 30
    assert found.unit == "tokens generated a question"
    assert {point.name: point.kind for point in found.points} == {
        "alpha": "agent", "beta": "agent", "gamma": "agent", "all asked, the most confident kept": "control",
        "oracle": "oracle",
    }  # fmt: skip
    alone = [replace(one, calls=tuple(c for c in one.calls if c.agent in ("", "alpha"))) for one in runs[:40]]
    assert agents_alone(alone) is None
    counted = [
        replace(one, calls=tuple(replace(c, logprobs=None, usage=Usage(completion_tokens=7)) for c in one.calls))
        for one in runs[:30]
    ]
    by_name = {point.name: point.cost for point in agents_alone(counted, resamples=5).points}
    each = sum(call.agent == "alpha" for call in runs[0].calls)
    assert by_name["alpha"] == pytest.approx(7 * each)


def test_trajectories_of_any_length_weigh_the_same():
    bands = trajectory_bands([[-1.0], [-3.0, -1.0], np.linspace(-3, -1, 101)], points=5)
    assert bands.n == 3
    np.testing.assert_allclose(bands.position, [0, 25, 50, 75, 100])
    np.testing.assert_allclose(bands.mean, np.mean([[-1] * 5, *[[-3, -2.5, -2, -1.5, -1]] * 2], axis=0))
    assert np.all(bands.p10 <= bands.p25)
    assert np.all(bands.p75 <= bands.p90)
    np.testing.assert_allclose(trajectory_bands([[-2.0, -1.0]]).p90, np.linspace(-2, -1, 50))


@pytest.mark.parametrize(("answers", "message"), [([], "no answers"), ([[-1], []], "answer 1"), ([[np.nan]], "1 not")])
def test_trajectories_refuse_what_has_no_course(answers, message):
    with pytest.raises(ValueError, match=message):
        trajectory_bands(answers)
