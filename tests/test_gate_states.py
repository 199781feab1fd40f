"""A gate reads hidden states of a checked source where they foretell the cut, and keeps its promise either way."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metaprobe.checkpoints import ContractMismatch
from metaprobe.eval.gate_performance import first_below
from metaprobe.llms.readings import Reading, is_mean, span_of
from metaprobe.probes.features import COUNTS, features
from metaprobe.records.canaries import CANARIES, CANARY_POSITIONS, CanaryStates
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import (
    LOOK_POSITIONS,
    LOOK_STATES,
    LOOKS,
    Call,
    Hidden,
    Item,
    Label,
    Run,
    Sampling,
)
from metaprobe.routing.gate import BESIDE_LOGPROBS, NO_STATES, QUESTION_INPUT, STATES_INPUT, StreamingGate
from metaprobe.training.evidence import load_evidence
from metaprobe.training.folds import outer_folds
from metaprobe.training.gate_inputs import GateInputs, forms_of
from metaprobe.training.recipes.gate import GATE_SCHEMA, fit_gate, train_gate
from metaprobe.training.stored_states import StatesRequest
from metaprobe.training.training_options import GateOptions

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

LIMIT, WIDTH, LAYERS = 24, 6, (1, 3)
FAR = 3.0
"""Mean of each channel of the states, which are as long as states of models are: far from 0."""
QUESTION = "Question 3? " + "word " * 20
OPTIONS = GateOptions(out="gate", target="ended", layers="all", alpha=[0.2], folds=2, command="test")


def canaries(seed: int = 0, layers: tuple[int, ...] = LAYERS) -> CanaryStates:
    names = tuple(canary.id for canary in CANARIES)
    values = FAR + np.random.default_rng(seed).normal(size=(len(names), len(layers), len(CANARY_POSITIONS), WIDTH))
    ids = tuple((1, 2) for _ in names)
    return CanaryStates("made 1", "m", "r", "float32", layers, names, ids, ids, values.astype(np.float16))


GOLDEN = canaries()


@dataclasses.dataclass
class Planted:
    """Answers whose log-probabilities say nothing of their end, and the states from which each token was drawn."""

    runs: list[Run]
    states: list[np.ndarray[Any, Any]]
    """An array (LIMIT, layers, width) for each answer. One direction of layer 3 foretells the end."""


def planted(n: int, seed: int, *, signal: float = 1.0, source: CanaryStates | None = GOLDEN) -> Planted:
    """Plants n answers. Those to long questions are cut more often."""
    rng, made = np.random.default_rng(seed), Planted([], [])
    for i in range(n):
        count = int(rng.integers(5, 60))
        ends = bool(rng.random() < 1 / (1 + np.exp((count - 30) / 6)))
        length = int(rng.integers(12, LIMIT)) if ends else LIMIT
        states = FAR + rng.normal(size=(LIMIT, len(LAYERS), WIDTH))
        states[:, 1, 2] += signal * (2 * ends - 1) + 0.3 * rng.normal()
        states = states.astype(np.float16).astype(np.float32)
        ends_of_looks = [min(look, length) for look in LOOKS]
        kept = np.stack([states[max(0, end - LOOK_STATES) : end].mean(axis=0) for end in ends_of_looks], axis=1)
        call = Call(
            id=f"c{i}",
            model="m",
            finish_reason="stop" if ends else "length",
            logprobs=-rng.exponential(1.0, length).astype(np.float32),
            logprobs_mode="raw",
            sampling=Sampling(max_tokens=LIMIT),
            hidden=Hidden(kept.astype(np.float16), LAYERS, LOOK_POSITIONS, canaries=source),
        )
        item = Item(id=f"i{i}", question=f"Question {i}? " + "word " * count, group=f"g{i}")
        labels = (Label(call.id, "correct", float(rng.random() < 0.5), "program"),)
        made.runs.append(Run(f"r{i}", "made", "", item, (call,), labels=labels))
        made.states.append(states)
    return made


def stored(path: Path, runs: list[Run]) -> Path:
    RunStore(path).append(runs)
    return path


def trained(store: Path, **changes: Any) -> StreamingGate:
    folder = store.parent / "gate"
    train_gate([store], dataclasses.replace(OPTIONS, out=folder, **changes))
    return StreamingGate.load(folder, stop=0.2)


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> StreamingGate:
    return trained(stored(tmp_path_factory.mktemp("states") / "runs", planted(300, 1).runs))


def test_states_that_foretell_the_cut_are_read_where_log_probabilities_say_nothing(gates: StreamingGate) -> None:
    assert (gates.reads_states, gates.layer) == (True, 3)
    fresh = planted(200, 7)
    stopped: dict[bool, list[bool]] = {True: [], False: []}
    for run, states in zip(fresh.runs, fresh.states, strict=True):
        [call] = run.calls
        gate = gates.start(question=run.item.question, canaries=GOLDEN)
        assert gate.note.startswith("the request's token limit"), gate.note
        assert gate.reads_states
        for logprob, state in zip(call.logprobs.tolist(), states, strict=False):  # type: ignore[union-attr]
            gate.push(logprob, state[1])
        stopped[call.finish_reason == "stop"].append(gate.action == "stop")
    assert np.mean(stopped[True]) < 0.3 < 0.7 < np.mean(stopped[False])


@pytest.mark.parametrize("beside", BESIDE_LOGPROBS)
def test_of_answers_that_end_no_more_than_alpha_are_stopped_whatever_they_bring(beside: str, tmp_path: Path) -> None:
    alpha, shares = 0.2, []
    for seed in range(4):
        store = stored(tmp_path / str(seed), planted(400, 20 + seed, signal=0.5).runs)
        evidence = load_evidence([store], target="ended", request=StatesRequest(positions=LOOK_POSITIONS))
        table = evidence.table
        X = features(GATE_SCHEMA, list(table.logprobs))
        inputs = GateInputs(X, forms_of(table.asked), evidence.states)
        roles = next(outer_folds(table.groups.tolist(), table.y, folds=5, seed=seed))
        gate = fit_gate(inputs, table, roles, alphas=[alpha], seed=seed)
        assert gate.reads(QUESTION_INPUT)
        assert gate.reads(STATES_INPUT)
        good = roles.test[table.y[roles.test] == 1]
        p = gate.probability(inputs.rows(good).only(beside), table.tokens[good])
        shares.append(float((first_below(p, gate.limits(alpha, beside), COUNTS) > 0).mean()))
    assert np.mean(shares) <= alpha + 3 * np.sqrt(alpha * (1 - alpha) / 30 / len(shares))


def test_states_that_tell_nothing_are_not_read(tmp_path: Path) -> None:
    gates = trained(stored(tmp_path / "runs", planted(250, 3, signal=0.0).runs))
    assert (gates.reads_question, gates.reads_states) == (True, False)
    assert not gates.checkpoint.extra
    assert NO_STATES not in gates.start(question=QUESTION).note


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("no canaries", "canaries"),
        ("some without states", "of 120 answers have no hidden states"),
        ("whole answers", "not captured"),
    ],
)
def test_stored_states_that_a_gate_cannot_read_are_refused(change: str, why: str, tmp_path: Path) -> None:
    made = planted(120, 4, source=None if change == "no canaries" else GOLDEN).runs
    for index, run in enumerate(made):
        [call] = run.calls
        assert call.hidden is not None
        if change == "some without states" and index < 50:
            made[index] = dataclasses.replace(run, calls=(dataclasses.replace(call, hidden=None),))
        if change == "whole answers":
            hidden = dataclasses.replace(call.hidden, values=call.hidden.values[:, :1], positions=("answer_mean",))
            made[index] = dataclasses.replace(run, calls=(dataclasses.replace(call, hidden=hidden),))
    with pytest.raises(RecordError, match=why):
        trained(stored(tmp_path / "runs", made))


def scores(gates: StreamingGate, states: np.ndarray[Any, Any] | None, **asked: Any) -> list[float | None]:
    gate, found = gates.start(question=QUESTION, **asked), []
    for token in range(20):
        gate.push(-0.1 * token, None if states is None else states[token, 1])
        found.append(gate.score)
    return found


@pytest.mark.filterwarnings("ignore:metaprobe. hidden states are not scored")
def test_states_of_an_unchecked_or_failed_source_are_not_read_and_the_note_says_so(gates: StreamingGate) -> None:
    states = planted(1, 9).states[0]
    without = scores(gates, None)
    assert scores(gates, states, canaries=GOLDEN) != without
    with pytest.warns(UserWarning, match="response of 'another'"):
        of_another = gates.start(model="another", question=QUESTION, canaries=GOLDEN)
    assert "the states are of another" in of_another.note
    assert not of_another.reads_states
    for source, why in (
        (None, NO_STATES),
        (canaries(seed=5), "failed its check"),
        (canaries(layers=(1,)), "layers"),
        ({"layers": [3]}, "not checked"),
    ):
        assert scores(gates, states, canaries=source) == without
        gate = gates.start(question=QUESTION, canaries=source)  # type: ignore[arg-type]
        assert why in gate.note
        assert not gate.reads_states


def test_states_without_a_question_that_can_be_read_are_not_read(gates: StreamingGate) -> None:
    gate = gates.start(canaries=GOLDEN)
    assert not gate.reads_states
    assert "without the question" in gate.note


@pytest.mark.parametrize("broken", [None, np.full(WIDTH, np.nan), np.full(WIDTH, 1e300)])
def test_an_answer_that_loses_a_state_is_judged_no_further_and_it_is_said_once(
    gates: StreamingGate, broken: Any
) -> None:
    states = planted(1, 9).states[0]
    gate = gates.start(question=QUESTION, canaries=GOLDEN)
    scores_seen = set()
    for token in range(20):
        gate.push(-0.5, broken if token in (6, 8) else states[token, 1])
        scores_seen.add(gate.score)
    [lost] = [part for part in gate.note.split("; ") if "token 6" in part]
    assert "judged no further" in lost
    assert len(scores_seen - {None}) == 2, "after 3 and 5 tokens"
    assert gate.fired_at in (None, 3, 5)


@pytest.mark.parametrize("broken", [np.zeros(WIDTH + 1), "x", [[1.0], [2.0, 3.0]], object()])
def test_a_state_of_another_width_is_refused_and_changes_nothing(gates: StreamingGate, broken: Any) -> None:
    states = planted(1, 9).states[0]
    gate, other = (gates.start(question=QUESTION, canaries=GOLDEN) for _ in range(2))
    for token in range(10):
        with pytest.raises(InvalidResponse, match="hidden state"):
            gate.push(-0.5, broken)
        assert gate.push(-0.5, states[token, 1]) == other.push(-0.5, states[token, 1])
    assert gate.score == other.score is not None


@pytest.mark.filterwarnings("ignore:metaprobe. hidden states are not scored")
@pytest.mark.parametrize("factor", [0.0, 0.1, 30.0])
def test_states_of_another_scale_are_judged_no_further(gates: StreamingGate, factor: float) -> None:
    states = planted(1, 9).states[0]
    gate = gates.start(question=QUESTION, canaries=GOLDEN)
    for token in range(20):
        gate.push(-0.5, factor * states[token, 1])
    assert (gate.score, gate.action) == (None, "continue")
    assert gate.note.count("judged no further") == 1


def test_a_live_answer_scores_as_the_stored_one(gates: StreamingGate) -> None:
    made = planted(3, 11)
    for run, states in zip(made.runs, made.states, strict=True):
        [call] = run.calls
        assert call.hidden is not None
        assert call.logprobs is not None
        gate = gates.start(question=run.item.question, canaries=GOLDEN)
        form = forms_of([run.item.question])
        assert form is not None
        for count, logprob in enumerate(call.logprobs.tolist(), 1):
            gate.push(logprob, states[count - 1, 1].astype(np.float64))
            if count in gates.looks:
                kept = call.hidden.values[1, LOOKS.index(count)]
                expected = gates.probability(call.logprobs[:count].tolist(), form[0], kept)
                assert gate.score == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("changes", [None, {"layer": "3"}, {"width": 5}, {"newest": 10}, {"more": 1}])
def test_a_contract_that_does_not_say_which_states_are_read_is_refused(gates: StreamingGate, changes: Any) -> None:
    manifest = gates.checkpoint.manifest
    contract = {name: value for name, value in manifest.contract.items() if name != "states"}
    if changes is not None:
        contract["states"] = {**manifest.contract["states"], **changes}
    checkpoint = dataclasses.replace(gates.checkpoint, manifest=dataclasses.replace(manifest, contract=contract))
    with pytest.raises(ContractMismatch, match="of hidden states"):
        StreamingGate(checkpoint, stop=0.2)


def test_a_gate_on_states_without_golden_states_is_refused(gates: StreamingGate) -> None:
    with pytest.raises(ContractMismatch, match="canaries"):
        StreamingGate(dataclasses.replace(gates.checkpoint, extra={}), stop=0.2)


def test_states_along_an_answer_are_no_states_of_whole_answers(tmp_path: Path) -> None:
    evidence = load_evidence([stored(tmp_path / "runs", planted(40, 5).runs)], target="correct")
    assert evidence.states is None


@pytest.mark.parametrize(("tokens", "thinking"), [(3, 0), (30, 0), (60, 4), (2, 1)])
def test_a_look_reads_the_states_from_which_its_newest_tokens_were_drawn(tokens: int, thinking: int) -> None:
    prompt = 7
    first = prompt + thinking
    answer_at = np.arange(first, first + tokens)
    reading = Reading("c", [1] * prompt, [2] * (thinking + tokens), answer_at, answer_at[:0], answer_at[:0], True, None)
    for look, position in zip(LOOKS, LOOK_POSITIONS, strict=True):
        drawn = list(range(first - 1, first - 1 + min(look, tokens)))
        assert is_mean(position)
        assert span_of(reading, position).tolist() == drawn[-LOOK_STATES:]
