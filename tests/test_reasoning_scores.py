"""Every reader of an answer leaves out the thinking: predictor, features, store, import, training, gate and probes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from watched_streams import FakeGate

from metaprobe.eval.answer_table import answer_table
from metaprobe.probes.features import features_one, schema
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.signals import Signals
from metaprobe.records.answer_stream import AnswerStream
from metaprobe.records.errors import ImportFileError
from metaprobe.records.import_store import import_file
from metaprobe.records.parse import parse_response
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Run, Segment
from metaprobe.routing.watch_stream import watch
from metaprobe.training.evidence import evidence_of

SHAPES = Path(__file__).parent / "responses" / "reasoning"
THINKING, ANSWER = [-0.5, -2.0, -0.25, -1.0], [-0.125, -0.75, -0.5]
MARKERS = -9.0
SEGMENTS = (Segment("thinking", 1, 5), Segment("answer", 6, 9))


def shape(name: str) -> Any:
    return json.loads((SHAPES / f"{name}.json").read_text("utf-8"))


def call(identity: str = "c", segments: tuple[Segment, ...] = SEGMENTS) -> Call:
    values = [MARKERS, *THINKING, MARKERS, *ANSWER]
    tokens = ("<think>", "a", "b", "c", "d", "</think>", "x", "y", "z")
    return Call(id=identity, text="".join(tokens), tokens=tokens, logprobs=np.float32(values), segments=segments)


def run(number: int) -> Run:
    identity = f"r{number}"
    label = Label(identity, "correct", float(number % 2), "program")
    return Run(identity, "s", "", Item(identity, "?", group=identity), (call(identity),), labels=(label,))


@pytest.fixture(scope="module")
def predictor() -> QualityPredictor:
    return QualityPredictor.load(on_mismatch="note")


def test_the_score_is_that_of_the_answer_alone_and_the_verdict_says_so(predictor: QualityPredictor) -> None:
    verdict, alone = predictor.predict(call()), predictor.predict(ANSWER)
    assert verdict.score == alone.score
    assert verdict.reason.startswith("scored are the answer's 3 tokens, not the 4 of the thinking before it")
    assert predictor.predict_many([call()])[0] == verdict
    assert predictor.predict(call(segments=())).score != alone.score
    signals = predictor.signals(call())
    assert signals.value("mean_logprob") == pytest.approx(np.mean(ANSWER))
    assert Signals.of(call()).value("tokens") == 3


# ---- records


def test_a_store_gives_segments_back_and_old_stores_have_none(tmp_path: Path, recorded_runs: Path) -> None:
    store = RunStore(tmp_path / "runs")
    store.append([run(0)])
    assert next(iter(store)).calls[0].segments == SEGMENTS
    assert next(iter(RunStore(recorded_runs))).calls[0].segments == ()


def lines(tmp_path: Path, **more: Any) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps({"id": "q", "response": shape("vllm_chat"), **more}))
    return path


def test_a_line_may_state_its_segments(tmp_path: Path) -> None:
    stated = [{"kind": "thinking", "start": 0, "end": 10}, {"kind": "answer", "start": 10, "end": 29}]
    import_file(lines(tmp_path, segments=stated), RunStore(tmp_path / "runs"))
    [stored] = RunStore(tmp_path / "runs")
    assert stored.calls[0].segments == (Segment("thinking", 0, 10), Segment("answer", 10, 29))


@pytest.mark.parametrize(
    ("segments", "why"),
    [
        ([{"kind": "answer", "start": 0}], 'expected a list of {"kind", "start", "end"}'),
        ([{"kind": "answer", "start": 0, "end": 2.0}], "the last two in tokens"),
        ("answer", "expected a list of"),
        ([{"kind": "answer", "start": 0, "end": 30}], "within the 29 tokens that came"),
        ([{"kind": "doubt", "start": 0, "end": 3}], "expected thinking, answer or tool"),
    ],
)
def test_stated_segments_that_cannot_be_are_refused(tmp_path: Path, segments: Any, why: str) -> None:
    with pytest.raises(ImportFileError, match=why):
        import_file(lines(tmp_path, segments=segments), RunStore(tmp_path / "runs"))


# ---- training


def test_training_reads_the_answer_alone() -> None:
    runs = [run(number) for number in range(6)]
    table = answer_table(runs)
    assert [x.tolist() for x in table.logprobs] == [ANSWER] * 6
    assert table.tokens.tolist() == [3] * 6
    evidence = evidence_of(runs, {"correct": table})["correct"]
    np.testing.assert_array_equal(evidence.features[0], features_one(schema("full+terms"), ANSWER))


# ---- streams


def pushed(name: str) -> list[float]:
    gate = FakeGate(at=1000)
    stream = watch(shape(name), QualityPredictor.load(on_mismatch="note"), gate)
    for _ in stream:
        pass
    assert stream.verdict is not None
    return gate.pushed


@pytest.mark.parametrize("name", ["vllm_chat_stream", "sglang_chat_stream", "sglang_chat_stream_older"])
def test_a_gate_sees_the_answers_tokens_alone(name: str) -> None:
    whole = parse_response(shape(name))
    [span] = [s for s in whole.segments if s.kind == "answer"]
    answer = whole.logprobs[span.start : span.end]
    np.testing.assert_array_equal(np.float32(pushed(name)), answer)


def chunk(token: str, **delta: str) -> dict[str, Any]:
    entry = {"token": token, "logprob": -0.5}
    return {"choices": [{"index": 0, "delta": delta, "logprobs": {"content": [entry]}}]}


def spoken(chunks: list[dict[str, Any]]) -> Iterator[str]:
    joined = AnswerStream()
    for one in chunks:
        piece = joined.add(one)
        yield "".join(str(entry["token"]) for entry in piece.spoken)


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([chunk("a", content="a"), chunk("b", content="b")], ["a", "b"]),
        # the server parses nothing, and the markers stand in the text
        ([chunk(t, content=t) for t in ("<", "think>", "hm", "</think>", "\n", "a")], ["", "", "", "", "", "a"]),
        ([chunk(t, content=t) for t in ("<", "b>", "a")], ["", "<b>", "a"]),
        # the thinking was opened in the prompt, and the first token came without a text
        ([chunk("Hm"), chunk(".", reasoning="Hm."), chunk("</think>"), chunk("a", content="a")], ["", "", "", "a"]),
        # the markers are cut out of the tokens; a chunk that holds both texts
        ([chunk("Hm", reasoning="Hm"), chunk("a", content="a"), chunk("b", content="b")], ["", "a", "b"]),
        ([chunk("Hm", reasoning="Hm"), chunk("a", reasoning=".", content="a")], ["", "a"]),
        ([chunk("Hm", reasoning="Hm"), chunk(".a", reasoning=".", content="a")], ["", ""]),
    ],
)
def test_of_a_stream_the_answers_tokens_are_told_as_soon_as_they_are_known(
    chunks: list[dict[str, Any]], expected: list[str]
) -> None:
    assert list(spoken(chunks)) == expected
