"""The gate's heads never see the future, and the gate judges every kind of token and stream of an answer soundly."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_completions import piece, token_entry
from conftest import made_up

from metaprobe.checkpoints import CheckpointError, ContractMismatch, Draft, save_checkpoint
from metaprobe.eval.gate_performance import first_below
from metaprobe.probes.features import features, schema
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Run, Sampling
from metaprobe.routing.gate import LOGPROBS_ALONE, Gate, StreamingGate, head_name, threshold_name
from metaprobe.routing.watch_stream import watch
from metaprobe.training.evidence import Evidence
from metaprobe.training.linear_probe import linear_graph
from metaprobe.training.recipes.gate import train_gate, write_gate
from metaprobe.training.training_options import GateOptions

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")


@pytest.fixture(scope="module")
def learned() -> Evidence:
    return made_up(500, signal=2.5, seed=1)


@pytest.fixture(scope="module")
def folder(learned: Evidence, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gate") / "checkpoint"
    checkpoint, report = write_gate(learned, GateOptions(out=path, folds=2, command="test"))
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


def probabilities(gates: StreamingGate, answers: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """P(good) of whole answers at each look, (n, looks); NaN beyond their end."""
    outputs = gates.checkpoint.run({"features": features(gates.schema, answers)})
    lengths = np.array([len(answer) for answer in answers])
    return np.stack([np.where(lengths >= n, outputs[head_name(n)][:, 0], np.nan) for n in gates.looks], axis=1)


def test_a_head_never_sees_the_future(gates: StreamingGate, answers: list[np.ndarray[Any, Any]]) -> None:
    long = [answer for answer in answers if len(answer) > max(gates.looks)][:20]
    before = probabilities(gates, long)
    for column, look in enumerate(gates.looks):
        changed = [np.r_[answer[:look], answer[look:] * 7 - 3] for answer in long]
        after = probabilities(gates, changed)
        np.testing.assert_array_equal(after[:, : column + 1], before[:, : column + 1])
        other = [np.r_[answer[:look] * 7 - 3, answer[look:]] for answer in long]
        assert (probabilities(gates, other)[:, column] != before[:, column]).any()  # it does see the past


def test_pushing_tokens_agrees_with_the_whole_answer(gates: StreamingGate, answers: list[np.ndarray[Any, Any]]) -> None:
    p = probabilities(gates, answers)
    thresholds = gates.checkpoint.manifest.thresholds
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


def test_a_host_that_has_numpy_raise_gets_the_same_actions(gates: StreamingGate) -> None:
    longest = max(gates.looks) + 1
    for logprob in (-1e-300, -1e-40, -700.0, -1e37):
        plain, raising = gates.start(), gates.start()
        expected = [plain.push(logprob) for _ in range(longest)]
        with np.errstate(all="raise"):
            assert [raising.push(logprob) for _ in range(longest)] == expected
        assert raising.score == plain.score is not None


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


def test_the_smaller_rate_escalates(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"escalate=0\.2 is above stop=0\.05"):
        StreamingGate.load(folder, stop=0.05, escalate=0.2)
    for wrong in ("0.05", [0.05], True):
        with pytest.raises(TypeError, match="expected a false-alarm rate"):
            StreamingGate.load(folder, stop=wrong)  # type: ignore[arg-type]
    with pytest.raises(ContractMismatch, match=r"stop@0.001/look3.*0\.2, 0\.3"):
        StreamingGate.load(folder, stop=0.001)
    plain = StreamingGate.load(folder)
    assert (plain.stop, plain.escalate) == (0.05, None)
    with pytest.raises(CheckpointError, match="digest"):
        StreamingGate.load(folder, sha256="0" * 64)
    same = StreamingGate.load(folder, stop=0.2, escalate=0.2).start()
    assert {same.push(-9.0) for _ in range(20)} == {"continue", "escalate"}  # whatever is ended is then escalated
    watching, only = StreamingGate.load(folder, stop=None), StreamingGate.load(folder, stop=None, escalate=0.2)
    actions = {watching.start().push(-1.0)}
    gate, other = watching.start(), only.start()
    for _ in range(20):
        actions.add(gate.push(-9.0))
        other.push(-9.0)
    assert actions == {"continue"}  # but it judges
    assert gate.score is not None
    assert other.action == "escalate"


class WrittenScores:
    """Stands where the gates of a checkpoint would: at its only look it has the score that was written down."""

    def __init__(self, score: float, limits: dict[int, tuple[float, float]]) -> None:
        self.limits, self.looks, self.score = {LOGPROBS_ALONE: limits}, tuple(limits), score

    def probability(self, logprobs: list[float], form: None = None, states: None = None) -> float:
        return self.score


@pytest.mark.parametrize(
    ("score", "action"), [(0.19, "escalate"), (0.2, "stop"), (0.39, "stop"), (0.4, "continue"), (0.0, "escalate")]
)
def test_a_response_that_scores_just_a_threshold_is_not_below_it(score: float, action: str) -> None:
    gate = Gate(WrittenScores(score, {2: (0.2, 0.4)}))  # type: ignore[arg-type]
    assert (gate.push(-1.0), gate.fired_at) == ("continue", None)
    assert (gate.push(-1.0), gate.fired_at) == (action, None if action == "continue" else 2)
    never = Gate(WrittenScores(score, {1: (0.0, 0.0)}))  # type: ignore[arg-type]
    assert never.push(-1.0) == "continue", "no rate was given"


def test_an_answer_of_another_model_is_warned_of(gates: StreamingGate) -> None:
    with pytest.warns(UserWarning, match="response of 'other', checkpoint trained on m"):
        gates.start(model="other")
    gates.start(model="m", logprobs_mode="raw")


def test_a_rate_that_was_asked_for_and_cannot_be_kept_stops_the_training(learned: Evidence, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"false-alarm rate of 0\.001 needs.*999 groups"):
        write_gate(learned, GateOptions(out=tmp_path / "gate", alpha=[0.2, 0.001], folds=2))
    assert not (tmp_path / "gate").exists()


def test_a_watched_stream_ends_where_the_gate_fires(gates: StreamingGate, answers: list[np.ndarray[Any, Any]]) -> None:
    class Unasked:
        checkpoint = gates.checkpoint

        def predict(self, response: object) -> None:
            raise AssertionError("an answer that was stopped is not finished, and not the predictor's to judge")

    def chunks(answer: np.ndarray[Any, Any]) -> Iterator[dict[str, Any]]:
        for logprob in answer.tolist():
            yield {"choices": [piece({"content": "x"}, [token_entry("x", logprob)])]}

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


@pytest.mark.slow
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
    train_gate([tmp_path / "runs"], GateOptions(out=tmp_path / "gate", target="critical", alpha=[0.2], folds=2))
    gates = StreamingGate.load(tmp_path / "gate", stop=0.2)

    def stops(answer: np.ndarray[Any, Any]) -> bool:
        gate = gates.start()
        return any(gate.push(float(logprob)) == "stop" for logprob in answer)

    stopped = np.array([stops(answer) for answer in table.logprobs])
    assert stopped[table.y == 1].mean() < 0.3 < stopped[table.y == 0].mean()


@pytest.mark.parametrize(
    ("contract", "said"),
    [
        (
            {"schema": "full", "features": list(schema("full").names)},
            "schema 'full' does not see the first 10 tokens alone",
        ),
        ({"schema": "no such"}, "no such"),
        ({"features": ["made.up"]}, "was made for other 'prefix-10' features than this version computes"),
        ({"looks": []}, r"states looks \[\] and has outputs"),
        ({"looks": [10, 10]}, r"expected rising numbers of tokens and an output such as '.*' for each"),
        ({"looks": [20]}, r"states looks \[20\]"),
        ({"looks": ["10"]}, "expected rising numbers of tokens"),
        ({"looks": None}, "states looks None"),
    ],
)
def test_heads_of_another_contract_are_refused(tmp_path: Path, contract: dict[str, Any], said: str) -> None:
    prefix = schema("prefix-10")
    width, name = len(prefix.names), head_name(10)
    model = linear_graph(
        input_name="features",
        mean=np.zeros(width),
        scale=np.ones(width),
        weights=np.zeros((width, 1)),
        intercept=np.zeros(1),
        outputs=[name],
        impute=True,
    )
    stated = {"schema": "prefix-10", "features": list(prefix.names), "looks": [10]}
    for number, given in enumerate((stated, stated | contract)):
        saved = save_checkpoint(
            tmp_path / str(number),
            Draft(kind="gate", contract=given),
            model=model,
            golden_inputs={"features": np.zeros((1, width), np.float32)},
            expected={name: np.full((1, 1), 0.5)},
            card="",
        )
        if given is stated:
            assert StreamingGate(saved, stop=None).looks == (10,)
            continue
        with pytest.raises(ContractMismatch, match=said):
            StreamingGate(saved, stop=None)
