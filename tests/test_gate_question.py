"""A gate reads the form of the question where it tells, says where it does not, and keeps its promise either way."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import made_up

from metaprobe.checkpoints import ContractMismatch, Draft, save_checkpoint
from metaprobe.eval.answer_table import answer_table
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.probes.features import features
from metaprobe.probes.question_form import QUESTION_FORM, question_form
from metaprobe.production.http.completion_json import read_chat
from metaprobe.records.types import Call, Item, Label, Message, Run
from metaprobe.routing.gate import LOGPROBS_ALONE, NO_QUESTION, QUESTION_INPUT, StreamingGate, threshold_name
from metaprobe.routing.watch_stream import GatedAnswer
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import outer_folds
from metaprobe.training.gate_inputs import GateInputs, forms_of
from metaprobe.training.linear_probe import linear_graph
from metaprobe.training.recipes import gate as recipe
from metaprobe.training.recipes.gate import GATE_SCHEMA, fit_gate, fit_head, write_gate
from metaprobe.training.training_options import GateOptions

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")


def told_by_question(n: int, *, seed: int) -> Evidence:
    """Answers that are likelier wrong the longer the question is; their log-probabilities tell nothing."""
    rng, evidence = np.random.default_rng(seed), made_up(n, signal=0.0, seed=seed)
    words = rng.integers(5, 60, n)
    y = (rng.uniform(size=n) < 1 / (1 + np.exp((words - 30) / 6))).astype(np.int64)
    questions = np.array([f"Question {i}? " + "word " * count for i, count in enumerate(words.tolist())])
    groups = np.array([f"g{i}" for i in range(n)])
    return dataclasses.replace(
        evidence, table=dataclasses.replace(evidence.table, y=y, questions=questions, groups=groups)
    )


@pytest.fixture(scope="module")
def planted() -> Evidence:
    return told_by_question(250, seed=2)


@pytest.fixture(scope="module")
def folder(planted: Evidence, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gate") / "checkpoint"
    write_gate(planted, GateOptions(out=path, folds=2, alpha=[0.1], command="test"))
    return path


@pytest.fixture(scope="module")
def gates(folder: Path) -> StreamingGate:
    return StreamingGate.load(folder, stop=0.1)


def test_the_form_counts_what_it_says() -> None:
    text = "Ann has 3 apples and 1,250 pears. How many is 10% of 4.5?"
    counts = np.expm1(question_form(text)).round().astype(int).tolist()
    assert dict(zip(QUESTION_FORM, counts, strict=True)) == {
        "characters": len(text),
        "words": 13,
        "sentences": 2,
        "numbers": 4,
        "digits": 9,
    }
    assert np.isnan(question_form(" \n")).all()
    assert forms_of(["one", ""]) is None


def test_the_form_is_learned_of_the_message_that_the_model_gets_as_the_proxy_reads_it() -> None:
    runs, bodies = [], []
    for number in range(4):
        prompt = f"Question: what is {number} + 1?\n\nThink step by step. End with a line that holds 1 number."
        call = Call(
            id=f"c{number}",
            messages=(Message("system", "Be brief."), Message("user", prompt)),
            text="So 2",
            tokens=("So", " 2"),
            logprobs=np.array([-0.1, -0.2 - number], dtype=np.float32),
        )
        labels = (Label(f"c{number}", "correct", float(number % 2), "test"),)
        runs.append(Run(f"r{number}", "s", "", Item(f"q{number}", f"what is {number} + 1?"), (call,), labels=labels))
        bodies.append({"model": "m", "messages": [{"role": one.role, "content": one.content} for one in call.messages]})
    table = answer_table(runs)
    served = [question_form(read_chat(json.dumps(body).encode()).question) for body in bodies]
    np.testing.assert_array_equal(forms_of(table.asked), served)
    assert not (question_form(table.questions[0]) == served[0]).all()
    bare = [dataclasses.replace(run, calls=(dataclasses.replace(run.calls[0], messages=()),)) for run in runs]
    assert answer_table(bare).asked == table.questions.tolist()
    assert forms_of(answer_table([*runs[:2], *bare[2:]]).asked) is None, "prompts and bare questions are not mixed"


@pytest.mark.parametrize("question", [None, ["What is 1 + 1?"], b"What is 1 + 1?"])
def test_a_question_that_is_no_text_is_refused_by_name(gates: StreamingGate, question: Any) -> None:
    with pytest.raises(TypeError, match=f"question came as {type(question).__name__}; expected the text"):
        gates.start(question=question)


def test_a_question_that_tells_is_read_and_orders_answers(gates: StreamingGate, planted: Evidence) -> None:
    fresh = told_by_question(200, seed=7)
    known, alone = [], []
    for question, logprobs in zip(fresh.table.questions.tolist(), fresh.table.logprobs, strict=True):
        for scores, given in ((known, question), (alone, "")):
            gate = gates.start(question=given)
            for logprob in logprobs[:3].tolist():
                gate.push(logprob)
            scores.append(gate.score)
    assert gates.reads_question
    assert auroc(fresh.table.y, np.array(known, float)) > 0.8
    assert auroc(fresh.table.y, np.array(alone, float)) < 0.65


def test_a_question_that_tells_nothing_is_not_read(tmp_path: Path) -> None:
    evidence = made_up(250, signal=2.5, seed=1)
    checkpoint, _ = write_gate(evidence, GateOptions(out=tmp_path / "gate", folds=2, alpha=[0.2], command="test"))
    assert [spec.name for spec in checkpoint.manifest.inputs] == ["features"]
    gate = StreamingGate.load(tmp_path / "gate", stop=0.2).start(question="How many are 3 and 4?")
    assert gate.note == ""


def test_without_the_question_the_look_is_judged_as_by_a_gate_that_reads_none(planted: Evidence) -> None:
    table, X = planted.table, features(GATE_SCHEMA, list(planted.table.logprobs))
    forms = forms_of(table.asked)
    assert forms is not None
    roles = next(outer_folds(table.groups.tolist(), table.y, folds=5))
    alone, inputs = GateInputs(X), GateInputs(X, forms)
    plain, both = (fit_head(given, table, roles, 3) for given in (alone, inputs))
    np.testing.assert_array_equal(plain.probability(alone.at(3)), both.probability(alone.at(3)))
    assert not np.allclose(plain.probability(alone.at(3)), both.probability(inputs.at(3), QUESTION_INPUT))


def test_a_question_that_pays_at_too_few_looks_is_read_at_none(
    planted: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, X = planted.table, features(GATE_SCHEMA, list(planted.table.logprobs))
    inputs, bare = GateInputs(X, forms_of(table.asked)), GateInputs(X)
    roles = next(outer_folds(table.groups.tolist(), table.y, folds=5))
    reading = fit_gate(inputs, table, roles, alphas=[0.2])
    monkeypatch.setattr(recipe, "MIN_PAYING_SHARE", 1.1)  # more than all looks
    tried, alone = (fit_gate(given, table, roles, alphas=[0.2]) for given in (inputs, bare))
    assert reading.reads(QUESTION_INPUT)
    assert tried.thresholds == alone.thresholds == {LOGPROBS_ALONE: reading.thresholds[LOGPROBS_ALONE]}
    np.testing.assert_array_equal(tried.probability(inputs, table.tokens), alone.probability(bare, table.tokens))


@pytest.mark.parametrize("with_question", [False, True])
def test_of_good_answers_no_more_than_alpha_are_stopped_with_and_without_the_question(with_question: bool) -> None:
    alpha, shares = 0.2, []
    for seed in range(4):
        evidence = told_by_question(400, seed=10 + seed)
        table, X = evidence.table, features(GATE_SCHEMA, list(evidence.table.logprobs))
        inputs = GateInputs(X, forms_of(table.asked))
        for roles in outer_folds(table.groups.tolist(), table.y, folds=5, seed=seed):
            gate = fit_gate(inputs, table, roles, alphas=[alpha], seed=seed)
            assert gate.reads(QUESTION_INPUT)
            good = roles.test[table.y[roles.test] == 1]
            beside = QUESTION_INPUT if with_question else LOGPROBS_ALONE
            p = gate.probability(inputs.rows(good).only(beside), table.tokens[good])
            limits = gate.limits(alpha, beside)
            shares.append(float((p < limits).any(axis=1).mean()))
            break  # one fold a seed: the others repeat its answers
    assert np.mean(shares) <= alpha + 3 * np.sqrt(alpha * (1 - alpha) / 30 / len(shares))


def test_a_question_unlike_those_of_the_training_is_not_read_and_it_is_said(gates: StreamingGate) -> None:
    long = gates.start(question="word " * 5000)
    assert "the question has 24999 characters" in long.note
    assert "reads the log-probabilities alone" in long.note
    none = gates.start()
    assert none.note == NO_QUESTION
    for gate in (long, none):
        for _ in range(3):
            gate.push(-0.5)
    assert long.score == none.score


def test_answers_with_their_question_have_thresholds_of_their_own(folder: Path, gates: StreamingGate) -> None:
    stored = gates.checkpoint.manifest.thresholds
    for look in gates.looks:
        for beside in (LOGPROBS_ALONE, QUESTION_INPUT):
            assert gates.limits[beside][look][1] == stored[threshold_name(0.1, look, beside)]
    assert gates.limits[LOGPROBS_ALONE] != gates.limits[QUESTION_INPUT]
    fired = StreamingGate.load(folder, stop=0.1).start(question="Question 1? " + "word " * 58)
    assert [fired.push(-0.5) for _ in range(3)][-1] == "stop"
    spared = StreamingGate.load(folder, stop=0.1).start(question="Question 1? " + "word " * 6)
    assert [spared.push(-0.5) for _ in range(3)][-1] == "continue"


@pytest.mark.parametrize("stated", [None, {"counts": ["words"]}, {"counts": list(QUESTION_FORM), "least": [0.0] * 5}])
def test_a_contract_that_does_not_say_what_of_the_question_is_read_is_refused(tmp_path: Path, stated: Any) -> None:
    graph = linear_graph(
        input_name=QUESTION_INPUT,
        mean=np.zeros(5),
        scale=np.ones(5),
        weights=np.ones((5, 1)),
        intercept=np.zeros(1),
        outputs=["look3"],
    )
    X = np.zeros((3, 5), np.float32)
    contract = {"schema": GATE_SCHEMA.name, "features": list(GATE_SCHEMA.names), "looks": [3], "alphas": [0.1]}
    draft = Draft(kind="gate", contract={**contract, **({} if stated is None else {"question": stated})})
    half = {"look3": np.full((3, 1), 0.5, np.float32)}
    save_checkpoint(tmp_path / "odd", draft, model=graph, golden_inputs={QUESTION_INPUT: X}, expected=half, card="")
    with pytest.raises(ContractMismatch, match="of the question"):
        StreamingGate.load(tmp_path / "odd", stop=None)


def test_the_proxy_hands_the_gate_the_last_message_of_the_user() -> None:
    messages = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": [{"type": "text", "text": "second"}, {"type": "image_url", "image_url": {}}]},
    ]
    request = read_chat(json.dumps({"model": "m", "messages": messages}).encode())
    assert request.question == "second"
    assert read_chat(b'{"messages": [{"role": "system", "content": "s"}, 3]}').question == ""
    started: list[dict[str, str]] = []

    class Started:
        note = ""

        def push(self, logprob: float) -> str:
            return "continue"

    class Gates:
        def start(self, **given: str) -> Started:
            started.append(given)
            return Started()

    GatedAnswer(Gates(), question=request.question).push([{"logprob": -1.0}], "m", shown=True)  # type: ignore[arg-type]
    assert started == [{"model": "m", "question": "second"}]
