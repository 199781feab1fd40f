"""One predictor of hidden states, log-probabilities and what was stated, any of which may be missing."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from click.testing import CliRunner
from served import KEY, running

from metaprobe import load, watch
from metaprobe.checkpoints import Checkpoint, ContractMismatch
from metaprobe.cli import main
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.probes.blend import BlendPredictor
from metaprobe.probes.canary_guard import CANNOT_BE_CHECKED, NOT_CHECKED
from metaprobe.probes.signal_source import SignalSource
from metaprobe.production.http.app import create_app
from metaprobe.production.http.settings import Settings
from metaprobe.records.activations import activation_bytes, write_canaries
from metaprobe.records.canaries import CANARIES_FILE, CANARY_POSITIONS, CanaryStates
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.labelled_scores import LabelledScores
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Hidden, Item, Label, Run, Statement
from metaprobe.train import train_blend, train_quality
from metaprobe.training.adapt import adapt_quality
from metaprobe.training.check import check, load_reader
from metaprobe.training.recalibrate import recalibrate_quality
from metaprobe.training.versions import Promotion

WIDTH, N, FEW = 6, 300, 40
ALONE = "without log-probabilities: scored by hidden states of the answer"
LAYERS, POSITIONS = (0, 1), ("prompt_last", "answer_last", "answer_mean")
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")


def source(seed: int = 0) -> CanaryStates:
    """Returns the canaries' states of a source; another seed is another source."""
    rng, ids = np.random.default_rng(seed), tuple(f"canary {i}" for i in range(60))
    values = rng.normal(size=(len(ids), len(LAYERS), len(CANARY_POSITIONS), WIDTH)).astype(np.float16)
    values[:, 1, :, 0] *= 4  # as in `planted`
    tokens = tuple((i, i + 1) for i in range(len(ids)))
    return CanaryStates("an engine 1.0", "m", "1", "bfloat16", LAYERS, ids, tokens, tokens, values)


def planted(p_true: float = 0.0, canaries: CanaryStates | None = source()) -> list[Run]:  # noqa: B008  not changed
    """Answers of which layer 1 at answer_mean and the log-probabilities each tell a part, and P(true) as much as is
    said; stated confidence tells nothing. `canaries`: those of the states' source."""
    rng, runs = np.random.default_rng(3), []
    for i in range(N):
        by_state, by_tokens = rng.normal(size=2)
        good = by_state + by_tokens + 0.3 * rng.normal() > 0
        state = rng.normal(size=(2, 3, WIDTH))
        state[1, 2, 0] += 4 * by_state
        logprobs = -np.exp(-1.5 * by_tokens + 0.3 * rng.normal(size=5)).astype(np.float32)
        call = Call(
            id=f"c{i}",
            stage="answer",
            model="m",
            text="a b c d e",
            tokens=tuple("a b c d e".split(" ")),
            logprobs=logprobs,
            logprobs_mode="raw",
            finish_reason="stop",
            hidden=Hidden(state.astype(np.float16), LAYERS, POSITIONS, canaries=canaries),
        )
        item = Item(f"q{i}", f"what is {rng.integers(10**9)}?", group=f"g{i}", task="sums")
        said = (
            Statement(call.id, "confidence", float(rng.random())),
            Statement(call.id, "p_true", float(np.clip(0.5 + p_true * (good - 0.5) + 0.1 * rng.normal(), 0, 1))),
        )
        label = Label(call.id, "correct", float(good), "program")
        runs.append(Run(f"r{i}", "s", "", item, (replace(call, tokens=()),), labels=(label,), statements=said))
    return runs


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planted") / "runs"
    RunStore(path).append(planted())
    return path


@pytest.fixture(scope="module")
def made(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return train_blend(store, folds=2, out=tmp_path_factory.mktemp("blend") / "blend")


@pytest.fixture(scope="module")
def blend(made: Checkpoint) -> BlendPredictor:
    loaded = load(made.path)
    assert isinstance(loaded, BlendPredictor)
    return loaded


@pytest.fixture(scope="module")
def calls(store: Path) -> list[Call]:
    return [run.calls[0] for run in RunStore(store).runs(hidden=True)]


@pytest.fixture(scope="module")
def with_canaries(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A blend whose training knew P(true), and the canaries of the states' source."""
    folder = tmp_path_factory.mktemp("canaries")
    RunStore(folder / "runs").append(planted(p_true=0.4, canaries=source()))
    return train_blend(folder / "runs", folds=2, out=folder / "blend")


def right(store: Path) -> np.ndarray:
    return np.array([run.labels[0].value for run in RunStore(store)])


def test_what_tells_is_joined_and_what_tells_nothing_is_left_out(made: Checkpoint) -> None:
    manifest = made.manifest
    assert manifest.contract["states"] == {"hidden": {"layers": [1], "position": "answer_mean", "width": WIDTH}}
    assert {spec.name for spec in manifest.inputs} == {"features", "hidden"}, "neither confidence nor P(true) pays"
    alone = [manifest.metrics[f"auroc_from_{name}_alone"] for name in ("log_probabilities", "hidden_states")]
    assert manifest.metrics["auroc"].low > max(one.high for one in alone)


def test_states_of_a_source_that_failed_or_was_not_checked_are_left_out_with_the_reason(
    made: Checkpoint, calls: list[Call]
) -> None:
    assert calls[0].hidden is not None

    def of(canaries: CanaryStates | None) -> Call:
        return replace(calls[0], hidden=replace(calls[0].hidden, canaries=canaries))

    guarded, bare = BlendPredictor(made), BlendPredictor(replace(made, extra={}))
    without = guarded.predict(replace(calls[0], hidden=None))
    assert guarded.predict(of(source())).reason == ""
    assert guarded.predict(of(source())).score != without.score
    for canaries, reason, predictor in (
        (None, NOT_CHECKED, guarded),
        (source(1), "failed its check", guarded),
        (source(), CANNOT_BE_CHECKED, bare),
    ):
        with pytest.warns(UserWarning, match="are not scored"):
            verdict = predictor.predict(of(canaries))
        assert verdict.score == without.score
        assert "hidden states left out" in verdict.reason
        assert reason in verdict.reason
        with pytest.raises(InvalidResponse, match="hidden states left out"):  # nothing else came
            predictor.predict(replace(of(canaries), logprobs=None))


def test_a_stated_number_that_tells_is_joined(with_canaries: Checkpoint) -> None:
    assert "p_true" in {spec.name for spec in with_canaries.manifest.inputs}
    predictor = BlendPredictor(with_canaries)
    assert predictor.guard.golden is not None  # training stored what the source of its states gave the canaries
    assert predictor.guard.check(source()).passed
    call = replace(planted()[0].calls[0], hidden=None)
    sure, unsure = (predictor.predict(call, p_true=value) for value in (0.9, 0.1))
    assert sure.score > unsure.score
    assert "P(true)" in predictor.predict(call).reason
    with pytest.raises(InvalidResponse, match=r"p_true is 1.5; expected a number from 0 to 1"):
        predictor.predict(call, p_true=1.5)


def test_every_set_of_inputs_is_calibrated_and_names_what_was_missing(
    blend: BlendPredictor, calls: list[Call], store: Path
) -> None:
    y = right(store)
    for change, reason in (
        ({}, ""),
        ({"hidden": None}, "without hidden states of the answer: scored by log-probabilities"),
        ({"logprobs": None}, ALONE),
    ):
        verdicts = [blend.predict(replace(call, **change)) for call in calls]
        scores = np.array([verdict.score for verdict in verdicts])
        assert {verdict.reason for verdict in verdicts} == {reason}
        assert scores.mean() == pytest.approx(y.mean(), abs=0.06)
        assert auroc(y, scores) > (0.9 if not change else 0.7)
        together = blend.predict_many([replace(call, **change) for call in calls])
        assert [verdict.score for verdict in together] == pytest.approx(scores.tolist(), abs=1e-6)
    with pytest.raises(InvalidResponse, match="without log-probabilities"):
        blend.predict(replace(calls[0], hidden=None, logprobs=None))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda h: replace(h, values=h.values[:, :, :-1]), r"width 5 came; this blend reads layer 1 .* of width 6"),
        (lambda h: replace(h, layers=(0, 2)), r"layers \[0, 2\] at answer_mean came; this blend reads layer 1"),
        (lambda h: replace(h, layers=(1, 1)), "name a layer or position twice"),
        (lambda h: replace(h, positions=("prompt_last", "answer_last", "answer_first")), "answer_first came; this"),
        (lambda h: replace(h, values=h.values.astype(np.int8)), "came as int8; expected floating-point"),
        (lambda h: replace(h, values=h.values[:1]), r"shape \(1, 3, 6\) came for 2 layers and 3 positions"),
        (lambda h: replace(h, values=h.values * np.float16(np.nan)), "NaN or infinity"),
        (
            lambda h: replace(h, model="other", canaries=replace(source(), model="other")),
            "states of other came; this blend was trained on those of m",
        ),
    ],
)
def test_states_that_are_not_those_of_the_contract_are_refused(
    blend: BlendPredictor, calls: list[Call], change: Callable[[Hidden], Hidden], said: str
) -> None:
    hidden = calls[0].hidden
    assert hidden is not None
    with pytest.raises(InvalidResponse, match=said):
        blend.predict(replace(calls[0], hidden=change(hidden)))


def test_layers_in_another_order_are_read_by_their_names(blend: BlendPredictor, calls: list[Call]) -> None:
    hidden = calls[0].hidden
    assert hidden is not None
    turned = Hidden(hidden.values[::-1], hidden.layers[::-1], hidden.positions, canaries=source())
    assert blend.predict(replace(calls[0], hidden=turned)).score == blend.predict(calls[0]).score


def response(call: Call, signals: dict[str, Any] | None) -> dict[str, Any]:
    """A chat completion of the call's answer."""
    entries = [{"token": t, "logprob": float(v)} for t, v in zip("abcde", call.logprobs, strict=True)]  # type: ignore[arg-type]
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": "abcde"}, "logprobs": {"content": entries}}
    return {"model": "m", "choices": [choice], **({} if signals is None else {"metaprobe_signals": signals})}


def test_states_come_with_a_response_as_numbers_as_bytes_or_token_by_token(
    blend: BlendPredictor, calls: list[Call]
) -> None:
    call = calls[0]
    assert call.hidden is not None
    values = call.hidden.values.astype(np.float32)
    named = {"layers": list(LAYERS), "positions": list(POSITIONS), "canaries": json.loads(source().to_json())}
    packed = {"values": base64.b64encode(values.tobytes()).decode(), "dtype": "float32", "shape": list(values.shape)}
    tokens = np.repeat(values[None, :, 2], 5, axis=0)  # their mean is the state at answer_mean
    expected = blend.predict(call).score
    for states in ({**named, "values": values.tolist()}, {**named, **packed}, {**named, "tokens": tokens.tolist()}):
        given = response(call, {"hidden_states": states, "confidence": 0.5})
        for form in (given, json.dumps(given), json.dumps(given).encode()):
            assert blend.predict(form).score == pytest.approx(expected, abs=1e-5)
    alone = response(call, {"hidden_states": {**named, "values": values.tolist()}})
    alone["choices"][0]["logprobs"] = None
    assert blend.predict(alone).reason == ALONE


@pytest.mark.parametrize(
    ("signals", "said"),
    [
        (
            {"hidden_states": {"layers": [1], "tokens": [[[0.0] * WIDTH]] * 3}},
            "states of 3 tokens came for an answer of 5",
        ),
        ({"hidden_states": {"layers": [1], "positions": ["answer_mean"], "values": [[[1, "x"]]]}}, "cannot be read"),
        ({"hidden_states": {"layers": [1], "positions": ["middle"], "values": [[[1.0]]]}}, "at 'middle'"),
        ({"hidden_states": {"layers": "1", "positions": ["answer_mean"]}}, "layers of the hidden states are '1'"),
        ({"hidden_states": {"layers": [1], "positions": ["answer_mean"], "values": "AA==", "dtype": "int8"}}, "'int8'"),
        ({"hiden_states": {}}, "has 'hiden_states'; expected hidden_states, confidence, p_true"),
        ({"confidence": "high"}, "confidence is 'high'; expected a number from 0 to 1"),
    ],
)
def test_signals_that_cannot_be_read_are_named(
    blend: BlendPredictor, calls: list[Call], signals: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidResponse, match=said):
        blend.predict(json.dumps(response(calls[0], signals)))


def test_a_store_and_a_file_are_scored_from_the_command_line(
    blend: BlendPredictor, store: Path, calls: list[Call], tmp_path: Path
) -> None:
    done = CliRunner().invoke(main, ["score", str(blend.checkpoint.path), str(store)])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["call"] for line in lines] == [call.id for call in calls]
    assert {line["reason"] for line in lines} == {""}
    expected = [blend.predict(call).score for call in calls]
    assert [line["score"] for line in lines] == pytest.approx(expected, abs=1e-6)
    bare = tmp_path / "bare"
    runs = list(RunStore(store))[:3]  # without their states
    RunStore(bare).append(runs)
    hidden = {call.id: call.hidden for call in calls[:2]}
    other = {calls[2].id: calls[2].hidden}
    write_canaries(bare, hidden.values())  # type: ignore[arg-type]
    (bare / "states-000000000000-1.safetensors").write_bytes(activation_bytes(hidden))  # type: ignore[arg-type]
    (bare / "states-000000000000-2.safetensors").write_bytes(activation_bytes(other, model="other@1"))  # type: ignore[arg-type]
    done = CliRunner().invoke(main, ["score", str(blend.checkpoint.path), str(bare)])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["score"] for line in lines[:2]] == pytest.approx(expected[:2], abs=1e-6)
    assert "without hidden states" in lines[2]["reason"], "the states of another model are not read"
    file = tmp_path / "lines.jsonl"
    values = calls[0].hidden.values.tolist()  # type: ignore[union-attr]
    states = {
        "layers": list(LAYERS),
        "positions": list(POSITIONS),
        "values": values,
        "canaries": json.loads(source().to_json()),
    }
    given = [response(calls[0], {"hidden_states": states}), response(calls[0], None)]
    file.write_text("".join(json.dumps({"response": one}) + "\n" for one in given))
    with_states, without = map(
        json.loads, CliRunner().invoke(main, ["score", str(blend.checkpoint.path), str(file)]).stdout.splitlines()
    )
    assert with_states["score"] == pytest.approx(expected[0], abs=1e-5)
    assert without["reason"].endswith("scored by log-probabilities")


def test_it_is_taken_as_a_signal_and_watches_a_stream(blend: BlendPredictor, calls: list[Call]) -> None:
    source = SignalSource.load([f"confidence={blend.checkpoint.path}"])
    signal = source.signal("confidence", call=calls[0])
    assert signal is not None
    assert (signal.value, signal.source) == (pytest.approx(blend.predict(calls[0]).score), blend.checkpoint.digest)
    replacement = source.replacement("confidence")
    assert replacement is not None
    assert (replacement.layers, replacement.when) == ((1,), "answer")
    with pytest.raises(ContractMismatch, match="difficulty is asked for before there is one"):
        SignalSource.load([f"difficulty={blend.checkpoint.path}"])
    entry = {"token": "4", "logprob": -0.1}
    chunk = {"choices": [{"index": 0, "delta": {"content": "4"}, "logprobs": {"content": [entry]}}]}
    watched = watch([chunk, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}], blend)
    list(watched)
    assert watched.verdict is not None
    assert "without hidden states of the answer" in watched.reason


def test_the_server_takes_states_with_a_response(
    blend: BlendPredictor, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAPROBE_API_KEY", KEY)
    values, canaries = calls[0].hidden.values.tolist(), json.loads(source().to_json())  # type: ignore[union-attr]
    states = {"layers": list(LAYERS), "positions": list(POSITIONS), "values": values, "canaries": canaries}
    bad = {**states, "layers": [7, 8]}
    headers = {"authorization": f"Bearer {KEY}"}
    with running(create_app(Settings(checkpoint=blend.checkpoint.path))) as (url, _):

        def post(signals: dict[str, Any] | None) -> httpx.Response:
            return httpx.post(f"{url}/v1/score", json=response(calls[0], signals), headers=headers, trust_env=False)

        assert post({"hidden_states": states}).json()["score"] == pytest.approx(blend.predict(calls[0]).score, abs=1e-5)
        assert "without hidden states of the answer" in post(None).json()["reason"]
        refused = post({"hidden_states": bad})
    assert refused.status_code == 422
    assert "layers [7, 8] at answer_mean came; this blend reads layer 1" in refused.json()["error"]["message"]


@pytest.mark.slow
def test_what_the_comparison_recommends_is_written_and_the_report_names_the_command(
    store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    options = ["--folds", "2", "--out", str(out), "--export", str(tmp_path / "c")]
    done = CliRunner().invoke(main, ["compare", str(store), *options])
    assert done.exit_code == 0, done.output
    exported = load(tmp_path / "c")
    assert isinstance(exported, BlendPredictor)
    found = json.loads((out / "comparison.json").read_text())
    assert (found["headline"], "metaprobe train blend " in found["exported"]) == ("blend", True)
    again = CliRunner().invoke(main, ["compare", str(store), *options])
    assert again.exit_code != 0
    assert "exists; expected a new folder" in again.output


def test_answers_without_states_are_sent_to_extract(tmp_path: Path) -> None:
    RunStore(tmp_path / "runs").append(
        [replace(run, calls=(replace(run.calls[0], hidden=None),)) for run in planted()[:FEW]]
    )
    with pytest.raises(RecordError, match="40 of 40 labelled answers have no hidden states: run `metaprobe extract`"):
        train_blend(tmp_path / "runs", out=tmp_path / "c")


def test_a_blend_is_adapted_by_a_shift_and_a_scale_of_its_score(
    blend: BlendPredictor, store: Path, tmp_path: Path
) -> None:
    """Half of the right answers are labelled wrong: the order stays, the level follows the labels."""
    rng = np.random.default_rng(0)
    rarer = [
        replace(run, labels=(replace(run.labels[0], value=run.labels[0].value * (rng.random() < 0.5)),))
        for run in RunStore(store).runs(hidden=True)
    ]
    without = replace(rarer[0], calls=(replace(rarer[0].calls[0], hidden=None),))
    RunStore(tmp_path / "runs").append([without, *rarer[1:]])
    y = np.array([run.labels[0].value for run in rarer])
    done = CliRunner().invoke(
        main, ["adapt", str(blend.checkpoint.path), str(tmp_path / "runs"), "--out", str(tmp_path / "c")]
    )
    assert done.exit_code == 0, done.output
    card = (tmp_path / "c" / "README.md").read_text(encoding="utf-8")
    assert "1 of 300 labelled answers came without hidden states of the answer, and are scored by the rest" in card
    adapted = load(tmp_path / "c")
    assert isinstance(adapted, BlendPredictor)
    calls = [run.calls[0] for run in rarer]
    for change in ({}, {"hidden": None}):
        seen = [replace(call, **change) for call in calls]
        before, after = (np.array([v.score for v in one.predict_many(seen)]) for one in (blend, adapted))
        assert (np.argsort(after) == np.argsort(before)).mean() > 0.99
        assert after.mean() == pytest.approx(y.mean(), abs=0.06)
        assert before.mean() > y.mean() + 0.15
    assert adapted.threshold is not None
    assert adapted.predict(replace(calls[0], hidden=None)).reason.startswith("without hidden states of the answer")
    scores = np.array([verdict.score for verdict in blend.predict_many(calls)])
    none, names = np.full(len(y), np.nan), np.array([f"g{i}" for i in range(len(y))])
    logged = LabelledScores(scores, y, none, np.arange(1.0, len(y) + 1), np.full(len(y), "m"), names)
    recalibrated = BlendPredictor(recalibrate_quality(blend.checkpoint.path, logged, out=tmp_path / "again"))
    again, after = (one.predict_many(calls) for one in (recalibrated, adapted))
    assert [v.score for v in again] == pytest.approx([v.score for v in after], abs=0.01)
    handed = blend.adapt(calls, y.tolist(), out=tmp_path / "handed")
    assert handed.predict(calls[0]).score == pytest.approx(adapted.predict(calls[0]).score, abs=0.01)


def test_a_blend_is_not_adapted_to_states_that_it_does_not_read(
    blend: BlendPredictor, store: Path, tmp_path: Path
) -> None:
    other = {"model": "other", "canaries": replace(source(), model="other")}
    runs = [
        replace(run, calls=(replace(run.calls[0], hidden=replace(run.calls[0].hidden, **other)),))
        for run in RunStore(store).runs(hidden=True)
    ]
    with pytest.raises(RecordError, match="call response-0: hidden states of other came; this blend was trained on"):
        blend.adapt([run.calls[0] for run in runs], right(store).tolist(), out=tmp_path / "c")


@pytest.mark.filterwarnings("ignore:metaprobe. hidden states are not scored")
def test_an_adapted_blend_keeps_its_canaries_and_unchecked_states_neither_adapt_nor_check_it(
    with_canaries: Checkpoint, tmp_path: Path
) -> None:
    def stored(name: str, canaries: CanaryStates | None, answers: int = FEW) -> Path:
        runs = [replace(run, id=f"{run.id}{name}") for run in planted(0.4, canaries)[:answers]]
        RunStore(tmp_path / name).append(runs)
        return tmp_path / name

    adapted = adapt_quality(with_canaries.path, [stored("same", source(), N)], out=tmp_path / "adapted")
    assert adapted.extra[CANARIES_FILE] == with_canaries.extra[CANARIES_FILE]
    assert BlendPredictor(load(adapted.path).checkpoint).guard.golden is not None
    assert check(with_canaries.path, [tmp_path / "same"]).status
    for name, canaries, reason in (("bare", None, "was not checked"), ("other", source(1), "failed its check")):
        with pytest.raises(RecordError, match=f"call c0: .*{reason}"):
            adapt_quality(with_canaries.path, [stored(name, canaries)], out=tmp_path / "none")
        with pytest.raises(RecordError, match=f"call c0: .*{reason}"):
            check(with_canaries.path, [tmp_path / name])


def test_a_blend_is_checked_after_a_change_by_the_states_of_the_answers(made: Checkpoint, tmp_path: Path) -> None:
    """Answers that are the same pass; of answers whose states say the opposite the order is surely worse."""

    def stored(name: str, sign: int = 1) -> Path:
        def changed(call: Call) -> Call:
            assert call.hidden is not None
            return replace(call, hidden=replace(call.hidden, values=sign * call.hidden.values))

        runs = [replace(run, id=f"{run.id}{name}", calls=tuple(map(changed, run.calls))) for run in planted()]
        RunStore(tmp_path / name).append(runs)
        return tmp_path / name

    assert check(made.path, [stored("same")], before=[stored("before")]).status == "PASS"
    done = CliRunner().invoke(main, ["check", str(made.path), str(stored("lost", -1))])
    assert (done.exit_code, "SCORER DEGRADED" in done.output) == (4, True), done.output


def test_a_blend_is_promoted_by_the_states_of_the_runs_and_refused_without_them(
    made: Checkpoint, store: Path, tmp_path: Path
) -> None:
    unseen = [replace(run, id=f"{run.id}b") for run in planted()]
    RunStore(tmp_path / "unseen").append(unseen)
    words = train_quality(store, folds=2, out=tmp_path / "quality")
    decided = Promotion.on_runs(load_reader(made.path), load_reader(words.path), [tmp_path / "unseen"])
    assert decided.promoted, decided.reasons
    assert decided.auroc_gain.low > 0.02
    bare = [replace(run, id=f"{run.id}c", calls=(replace(run.calls[0], hidden=None),)) for run in planted()[:FEW]]
    RunStore(tmp_path / "bare").append(bare)
    with pytest.raises(RecordError, match="40 of 40 answers have no stored hidden states: run `metaprobe extract`"):
        Promotion.on_runs(load_reader(made.path), load_reader(words.path), [tmp_path / "bare"])
