"""The streaming gate: its promise, what its heads may see, and what it does with every kind of token."""

import dataclasses
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import made_up
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.checkpoints import ContractMismatch
from metaprobe.eval.gate import HeldOutLooks, Stronger, asked_again, first_below, gate_markdown, gate_report
from metaprobe.gate_cli import train_gate_command
from metaprobe.probes.features import features, schema
from metaprobe.probes.stream import StreamReader, threshold_name
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Run, Sampling
from metaprobe.routing.gate import StreamingGate
from metaprobe.serving.watch import watch
from metaprobe.training.evidence import load_evidence
from metaprobe.training.gate import export_gate, train_gate
from metaprobe.training.gate_folds import held_out_looks
from metaprobe.training.gate_heads import SCHEMA, rising_calibrator
from metaprobe.training.gate_thresholds import (
    NO_LOOK,
    Surprise,
    conformal_threshold,
    groups_needed,
    joint_statistic,
    one_a_group,
    rate_at_most,
    score_thresholds,
)
from metaprobe.training.methods import Evidence

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

LOOKS = (3, 5, 10, 20)
ALPHAS = (0.05, 0.2)
Floats = np.ndarray[Any, np.dtype[np.float64]]


def good_scores(rng: np.random.Generator, n: int) -> Floats:
    """(n, looks): scores of good answers, each look on its own scale, related to the one before; NaN beyond the end."""
    walk = np.cumsum(rng.standard_normal((n, len(LOOKS))), axis=1)
    scores: Floats = walk**3 * np.array([1.0, 10.0, 0.1, 5.0]) + np.array([0.0, 3.0, -2.0, 100.0])
    lengths = rng.choice([2, 4, 8, 15, 40], size=n, p=[0.05, 0.15, 0.2, 0.2, 0.4])
    scores[lengths[:, None] < np.array(LOOKS)] = np.nan
    return scores


def simulated(alpha: float, *, jointly: bool, calibration: int = 60, repeats: int = 400, new: int = 50) -> Floats:
    """Share of new good answers that are stopped at some look, in each repetition."""
    rng = np.random.default_rng(0)
    stopped = []
    for _ in range(repeats):
        reference, seen, unseen = (good_scores(rng, n) for n in (150, calibration, new))
        surprises = {k: Surprise.fit(column[np.isfinite(column)]) for k, column in zip(LOOKS, reference.T, strict=True)}
        of = [surprise.of(column) for surprise, column in zip(surprises.values(), seen.T, strict=True)]
        if jointly:
            found = score_thresholds(surprises, joint_statistic(of), [alpha])[alpha]
        else:  # what must not be done: each look by itself
            found = {
                k: surprises[k].score_at(conformal_threshold(np.where(np.isnan(look), NO_LOOK, look), alpha))
                for k, look in zip(LOOKS, of, strict=True)
            }
        stopped.append(np.mean((unseen < np.array([found[k] for k in LOOKS])).any(axis=1)))
    return np.array(stopped)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_of_good_answers_at_most_alpha_are_stopped_at_any_look_and_hardly_fewer(alpha: float) -> None:
    n, repeats, new = 60, 400, 50
    stopped = simulated(alpha, jointly=True)
    exact = math.floor(alpha * (n + 1)) / (n + 1)  # what the conformal quantile gives where nothing is tied
    # A repetition's rate is beta distributed with this mean; counting `new` answers adds the binomial's variance.
    error = math.sqrt(exact * (1 - exact) * (1 / (n + 2) + 1 / new) / repeats)
    assert exact <= alpha
    assert abs(stopped.mean() - exact) < 4 * error


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_threshold_for_each_look_by_itself_breaks_the_promise(alpha: float) -> None:
    assert simulated(alpha, jointly=False).mean() > 1.4 * alpha


def test_the_conformal_threshold_is_the_known_order_statistic() -> None:
    values = np.arange(1.0, 20.0)  # 19
    assert conformal_threshold(values, 0.05) == 19
    assert conformal_threshold(values, 0.1) == 18
    assert conformal_threshold(values[:9], 0.3) == 7  # 0.3 x 10 is three answers, whatever its float says
    assert [groups_needed(alpha) for alpha in (0.01, 0.02, 0.05, 0.1, 0.3)] == [99, 49, 19, 9, 3]


def test_a_rate_that_the_groups_do_not_allow_is_refused_with_the_number_that_would() -> None:
    with pytest.raises(RecordError, match=r"at least 99 groups, there are 98.*at least 0\.01"):
        conformal_threshold(np.arange(98.0), 0.01)
    conformal_threshold(np.arange(99.0), 0.01)
    with pytest.raises(RecordError, match="between 0 and 1"):
        conformal_threshold(np.arange(98.0), 0.0)


def test_what_one_gate_keeps_scatters_less_with_more_groups() -> None:
    assert rate_at_most(0.2, 9) > rate_at_most(0.2, 99) > 0.2
    assert rate_at_most(0.2, 9) == pytest.approx(0.3684, abs=1e-3)  # beta(2, 8) at 0.9, from a table
    rates = simulated(0.2, jointly=True, calibration=19, new=1000, repeats=150)
    assert abs(np.mean(rates <= rate_at_most(0.2, 19)) - 0.9) < 0.1


def test_one_answer_is_drawn_from_each_group_and_no_other() -> None:
    groups = np.array(["a", "b", "a", "c", "b", "a"])
    drawn = one_a_group(np.array([0, 1, 2, 4, 5]), groups, seed=3)
    assert sorted(groups[drawn]) == ["a", "b"]
    picks = {int(one_a_group(np.array([0, 2, 5]), groups, seed=seed)[0]) for seed in range(40)}
    assert picks == {0, 2, 5}


finite = st.floats(-50, 50, allow_subnormal=False)


@given(reference=st.lists(finite, min_size=1, max_size=30), scores=st.lists(finite, min_size=2, max_size=10))
def test_surprise_never_rises_with_the_score_and_its_threshold_stops_no_less_surprising_one(
    reference: list[float], scores: list[float]
) -> None:
    surprise = Surprise.fit(np.array(reference))
    ordered = np.sort(np.array(scores))
    nats = surprise.of(ordered)
    assert (np.diff(nats) <= 1e-12).all()
    for threshold in nats.tolist():
        below = ordered < surprise.score_at(threshold) - 1e-9 * max(1.0, float(np.abs(ordered).max()))
        assert (nats[below] >= threshold - 1e-9).all()


def test_an_answer_without_a_look_is_never_stopped_and_counts() -> None:
    looks = [np.array([1.0, np.nan, np.nan]), np.array([0.5, 2.0, np.nan])]
    np.testing.assert_array_equal(joint_statistic(looks), [1.0, 2.0, NO_LOOK])
    assert Surprise.fit(np.array([0.0, 1.0])).score_at(NO_LOOK) == math.inf


def test_scores_that_go_the_wrong_way_fire_nowhere() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    calibrator = rising_calibrator(rng.normal(size=80) - 3 * y, y, [f"g{i}" for i in range(80)])
    p = calibrator.probability(np.linspace(-9, 9, 50))
    assert (np.diff(p) >= 0).all()
    assert np.ptp(p) < 1e-5
    assert p[0] == pytest.approx(0.5)  # the share of good answers


@pytest.fixture(scope="module")
def learned() -> Evidence:
    return made_up(500, signal=2.5, seed=1)


@pytest.fixture(scope="module")
def folder(learned: Evidence, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gate") / "checkpoint"
    checkpoint, report = export_gate(path, learned, folds=2, command="test")
    assert checkpoint.manifest.kind == "gate"
    assert {rate.alpha for rate in report.rates} <= set(checkpoint.manifest.contract["alphas"])
    assert report.looks[0].auroc.low > 0.6  # there is something to be seen early
    audits = checkpoint.manifest.audits
    assert audits["shuffled labels are at chance"].passed
    assert audits["splits share no group"].passed
    return path


@pytest.fixture(scope="module")
def gates(folder: Path) -> StreamingGate:
    return StreamingGate.load(folder, stop=0.2, escalate=0.05)


@pytest.fixture(scope="module")
def answers(learned: Evidence) -> list[np.ndarray[Any, Any]]:
    return list(made_up(120, signal=2.5, seed=9).table.logprobs)


def test_a_head_never_sees_the_future(gates: StreamingGate, answers: list[np.ndarray[Any, Any]]) -> None:
    long = [answer for answer in answers if len(answer) > max(gates.looks)][:20]
    before = gates.heads.probabilities(long)
    for column, look in enumerate(gates.looks):
        changed = [np.r_[answer[:look], answer[look:] * 7 - 3] for answer in long]
        after = gates.heads.probabilities(changed)
        np.testing.assert_array_equal(after[:, : column + 1], before[:, : column + 1])
        other = [np.r_[answer[:look] * 7 - 3, answer[look:]] for answer in long]
        assert (gates.heads.probabilities(other)[:, column] != before[:, column]).any()  # it does see the past


def test_pushing_tokens_agrees_with_the_whole_answer(gates: StreamingGate, answers: list[np.ndarray[Any, Any]]) -> None:
    p = gates.heads.probabilities(answers)
    thresholds = gates.heads.checkpoint.manifest.thresholds
    stop, escalate = (
        np.array([thresholds[threshold_name(alpha, look)] for look in gates.looks]) for alpha in (0.2, 0.05)
    )
    fired = first_below(p, stop, gates.looks)
    seen = set()
    for answer, known, at in zip(answers, p, fired.tolist(), strict=True):
        gate = gates.start()
        actions = [gate.push(float(token)) for token in answer]
        assert gate.tokens_seen == len(answer)
        judged = known[np.isfinite(known)]
        assert gate.score == pytest.approx(judged[-1], abs=1e-6) if len(judged) else gate.score is None
        assert gate.fired_at == (at or None)
        expected = "continue"
        if at:
            column = gates.looks.index(at)
            expected = "escalate" if known[column] < escalate[column] else "stop"
        first = at - 1 if at else len(answer)
        assert actions == ["continue"] * first + [expected] * (len(answer) - first)  # and it keeps to it
        seen.add(expected)
    assert seen == {"continue", "stop", "escalate"}


BAD: tuple[Any, ...] = (math.nan, 0.5, -math.inf, math.inf, -1e300, "-0.5", None, [-0.5], True, False)


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_what_is_no_log_probability_is_refused_and_changes_nothing(
    bad: Any, gates: StreamingGate, answers: list[np.ndarray[Any, Any]]
) -> None:
    answer = max(answers, key=len).tolist()
    disturbed, calm = gates.start(), gates.start()
    for position, token in enumerate(answer):
        if position in (0, 4, len(answer) - 1):
            with pytest.raises(InvalidResponse, match=f"token {position}: log-probability"):
                disturbed.push(bad)
        assert disturbed.push(token) == calm.push(token)
    assert (disturbed.score, disturbed.tokens_seen, disturbed.fired_at) == (calm.score, len(answer), calm.fired_at)


def test_gates_of_one_checkpoint_do_not_disturb_each_other(
    gates: StreamingGate, answers: list[np.ndarray[Any, Any]]
) -> None:
    def outcome(answer: np.ndarray[Any, Any]) -> tuple[str, float | None, int | None]:
        gate = gates.start()
        action = [gate.push(token) for token in answer][-1]
        return action, gate.score, gate.fired_at

    alone = [outcome(answer) for answer in answers]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(outcome, answers * 3)) == alone * 3
    interleaved = [gates.start() for _ in answers]
    for position in range(max(map(len, answers))):
        for gate, answer in zip(interleaved, answers, strict=True):
            if position < len(answer):
                gate.push(answer[position])
    assert [(gate.action, gate.score, gate.fired_at) for gate in interleaved] == alone


def test_alternatives_may_come_in_any_order_and_bad_ones_change_nothing() -> None:
    kind = schema("prefix-5+top")
    vectors: list[np.ndarray[Any, Any]] = []
    heads = SimpleNamespace(schema=kind, looks=(5,), probability=lambda vector, look: vectors.append(vector) or 0.5)
    logprobs, rng = [-0.5, -1.0, -0.1, -2.0, -0.7], np.random.default_rng(0)
    tops = -np.sort(rng.exponential(size=(5, 4))).astype(np.float32)
    reader = StreamReader(heads)  # type: ignore[arg-type]
    for logprob, top in zip(logprobs, tops, strict=True):
        for bad in (["-1"], [[-1.0]], [0.3], [-1.0, [2.0]], -1.0, [None]):
            with pytest.raises(InvalidResponse, match="top log-probabilities"):
                reader.push(logprob, bad)  # type: ignore[arg-type]
        reader.push(logprob, rng.permutation(top))
    assert reader.score == 0.5
    np.testing.assert_allclose(vectors[0], features(kind, [logprobs], [tops])[0], rtol=1e-5, atol=1e-6)


def test_the_smaller_rate_escalates(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"escalate=0\.2 is above stop=0\.05"):
        StreamingGate.load(folder, stop=0.05, escalate=0.2)
    watching, only = StreamingGate.load(folder, stop=None), StreamingGate.load(folder, stop=None, escalate=0.2)
    actions = {watching.start().push(-1.0)}
    gate, other = watching.start(), only.start()
    for _ in range(20):
        actions.add(gate.push(-9.0))
        other.push(-9.0)
    assert actions == {"continue"}  # but it judges
    assert gate.score is not None
    assert other.action == "escalate"


def test_a_rate_without_thresholds_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(ContractMismatch, match=r"stop@0.001/look3.*0\.2, 0\.3"):
        StreamingGate.load(folder, stop=0.001)


def test_an_answer_of_another_model_is_warned_of(gates: StreamingGate) -> None:
    with pytest.warns(UserWarning, match="response of other, checkpoint trained on m"):
        gates.start(model="other")
    gates.start(model="m", logprobs_mode="raw")


def test_thresholds_are_looser_where_more_false_alarms_are_allowed(gates: StreamingGate) -> None:
    stored = gates.heads.checkpoint.manifest.thresholds
    for look in gates.looks:
        assert stored[threshold_name(0.05, look)] <= stored[threshold_name(0.2, look)]


def test_a_rate_that_was_asked_for_and_cannot_be_kept_stops_the_training(learned: Evidence, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"false-alarm rate of 0\.001 needs.*999 groups"):
        export_gate(tmp_path / "gate", learned, alphas=[0.2, 0.001], folds=2)
    assert not (tmp_path / "gate").exists()


def test_answers_that_are_all_too_short_have_no_gate(learned: Evidence, tmp_path: Path) -> None:
    logprobs = np.empty(len(learned.table), dtype=object)
    logprobs[:] = [answer[:2] for answer in learned.table.logprobs]
    table = dataclasses.replace(learned.table, logprobs=logprobs, tokens=np.full(len(logprobs), 2))
    with pytest.raises(RecordError, match=r"no look can be fitted\. 3: of the train answers of 3 tokens 0 are good"):
        export_gate(tmp_path / "gate", dataclasses.replace(learned, table=table), folds=2)


def known_answers() -> HeldOutLooks:
    """Four answers of 10 tokens, two to each of two questions; the bad ones alone are stopped, after 3 tokens."""
    table = made_up(20).table.rows(np.arange(4))
    logprobs = np.empty(4, dtype=object)
    logprobs[:] = [np.full(10, -1.0, np.float32)] * 4
    table = dataclasses.replace(
        table,
        items=np.array(["a", "a", "b", "b"]),
        groups=np.array(["a", "a", "b", "b"]),
        y=np.array([1, 0, 0, 1]),
        tokens=np.full(4, 10),
        logprobs=logprobs,
    )
    p = np.array([[0.9], [0.1], [0.2], [0.8]])
    return HeldOutLooks(table, (3,), p, p[:, 0], {0.1: first_below(p, np.array([0.5]), (3,))})


def test_figures_of_a_case_worked_by_hand() -> None:
    report = gate_report(known_answers(), stronger=Stronger(accuracy=0.5, price=2.0), resamples=50)
    [look], [rate] = report.looks, report.rates
    assert (look.auroc.estimate, look.mean_logprob.estimate, look.share) == (1.0, 0.5, 1.0)
    assert (rate.false_alarms.estimate, rate.bad_stopped.estimate, rate.median_look) == (0.0, 1.0, 3.0)
    again, escalated = rate.uses
    # Asked again, each gets the good answer that the question also had: (10 + 13 + 13 + 10) / 4 tokens, not 60 / 4.
    assert (again.accuracy.estimate, again.tokens.estimate) == (1.0, 11.5)
    assert again.saved.estimate == pytest.approx(1 - 46 / 60)
    assert again.saved_full.estimate == pytest.approx(1 - 46 / 60)  # the predictor must give up the same two
    assert (escalated.accuracy.estimate, escalated.tokens.estimate) == (0.75, 16.5)
    assert escalated.saved.estimate == pytest.approx(1 - 66 / 80)
    assert "asked again" in gate_markdown(report)
    assert "other answers to that question" in report.assumptions[0]


def test_a_question_that_was_asked_once_gets_the_average_answer() -> None:
    table = dataclasses.replace(known_answers().table, items=np.array(["a", "b", "c", "d"]))
    again = asked_again(table)
    np.testing.assert_array_equal(again.good, 0.5)
    assert "average accuracy (50.0%)" in again.assumption


def test_a_gate_that_lowers_quality_saves_nothing_at_equal_quality() -> None:
    held_out = known_answers()
    worse = dataclasses.replace(held_out, fired={0.1: np.array([3, 0, 0, 3])})
    [rate] = gate_report(worse, resamples=20).rates
    assert rate.uses[0].accuracy.estimate == 0.0
    assert math.isnan(rate.uses[0].saved_full.estimate)


def test_held_out_false_alarms_on_recorded_answers_keep_the_promise() -> None:
    store = Path(__file__).parent.parent / "recorded" / "metacog-every-agent"
    evidence = load_evidence([store], stage="answer", agent="alpha", hidden=False)
    X = features(SCHEMA, list(evidence.table.logprobs))
    held_out, _ = held_out_looks(evidence, X, alphas=(0.1, 0.3), folds=3)
    for rate in gate_report(held_out, resamples=200).rates:
        # 3 sets of thresholds, each from some 37 groups, judged on 137 groups in all.
        error = math.sqrt(rate.alpha * (1 - rate.alpha) * (1 / (3 * 37) + 1 / rate.false_alarms.n))
        assert rate.false_alarms.estimate < rate.alpha + 3 * error
        assert rate.bad_stopped.estimate > rate.false_alarms.estimate
    assert set(held_out.fired) == {0.1, 0.3}


@pytest.mark.slow
def test_the_command_trains_a_gate_with_all_looks_on_recorded_mathematics(tmp_path: Path) -> None:
    store = Path(__file__).parent.parent / "recorded" / "gsm8k-mgv"
    out = tmp_path / "gate"
    result = CliRunner().invoke(train_gate_command, [str(store), "--stage", "answer", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "promised 0.2: stops" in result.stderr
    gates = StreamingGate.load(out, stop=0.2)
    assert gates.looks == (3, 5, 10, 20, 30, 50)
    assert gates.heads.checkpoint.manifest.metrics["false_alarms@0.2"].low < 0.2


def test_a_watched_stream_ends_where_the_gate_fires(gates: StreamingGate, answers: list[np.ndarray[Any, Any]]) -> None:
    class Unasked:
        checkpoint = gates.heads.checkpoint

        def predict(self, response: object) -> None:
            raise AssertionError("an answer that was stopped is not finished, and not the predictor's to judge")

    def chunks(answer: np.ndarray[Any, Any]) -> Iterator[dict[str, Any]]:
        for logprob in answer.tolist():
            entry = {"token": "x", "logprob": logprob, "top_logprobs": []}
            yield {"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": [entry]}}]}

    fired = 0
    for answer in answers:
        gate = gates.start()
        action = next((said for logprob in answer if (said := gate.push(float(logprob))) != "continue"), "continue")
        if action == "continue":
            continue
        passed = list(watched := watch(chunks(answer), Unasked(), gates))  # type: ignore[arg-type]
        assert (watched.action, len(passed)) == (action, gate.fired_at)
        assert watched.verdict is not None
        assert (watched.verdict.score, watched.verdict.flagged) == (gate.score, True)
        fired += 1
    assert fired > 5


def test_a_gate_on_critical_failures_stops_them_and_not_the_sound_answers(tmp_path: Path) -> None:
    store, signal = RunStore(tmp_path / "runs"), made_up(400, signal=2.5, seed=3)
    table = signal.table
    store.append(
        Run(
            id=f"r{i}",
            system="import",
            variant="",
            item=Item(id=f"i{i}", question=f"question {i}", group=f"g{i}"),
            calls=(Call(id=f"c{i}", logprobs=table.logprobs[i], sampling=Sampling()),),
            labels=(Label(f"c{i}", "critical", float(1 - table.y[i]), "judge"),),
        )
        for i in range(len(table))
    )
    train_gate(tmp_path / "gate", [tmp_path / "runs"], target="critical", alphas=[0.2], folds=2)
    gates = StreamingGate.load(tmp_path / "gate", stop=0.2)

    def stops(answer: np.ndarray[Any, Any]) -> bool:
        gate = gates.start()
        return any(gate.push(float(logprob)) == "stop" for logprob in answer)

    stopped = np.array([stops(answer) for answer in table.logprobs])
    assert stopped[table.y == 1].mean() < 0.3 < stopped[table.y == 0].mean()


def test_rates_that_are_no_numbers_are_named(gates: StreamingGate) -> None:
    for wrong in ("0.05", [0.05], True):
        with pytest.raises(TypeError, match="expected a false-alarm rate"):
            StreamingGate(gates.heads, stop=wrong)  # type: ignore[arg-type]
