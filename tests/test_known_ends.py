"""An answer that did not end by itself says so; placeholders and alternatives that cannot be are named."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tiny import tiny_quality

from metaprobe import QualityPredictor
from metaprobe.probes.score_lines import score_lines
from metaprobe.records.errors import InvalidResponse, NoLogprobs
from metaprobe.records.import_store import import_file
from metaprobe.records.parse import parse_response
from metaprobe.records.reading import doubt, read_end
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call
from metaprobe.routing.watch_stream import watch

WORDS = ("alpha", " beta", " gamma", " delta", " eps", " zeta", " eta", " theta")
LOGPROBS = (-0.5, -0.25, -1.5, -0.125, -2.0, -0.75, -0.0625, -3.0)


def completion(
    finish: Any = "stop", *, tops: list[Any] | None = None, logprobs: Any = LOGPROBS, **choice: Any
) -> dict[str, Any]:
    words = WORDS[: len(logprobs)]
    entries = [{"token": w, "logprob": v, "top_logprobs": []} for w, v in zip(words, logprobs, strict=True)]
    for entry, row in zip(entries, tops or (), strict=False):
        entry["top_logprobs"] = row
    one = {"index": 0, "message": {"content": "".join(words)}, "logprobs": {"content": entries}}
    return {"model": "m", "choices": [{**one, "finish_reason": finish, **choice}]}


def plausible(logprobs: Any = LOGPROBS) -> list[list[dict[str, Any]]]:
    return [
        [{"token": w, "logprob": v}, {"token": "x", "logprob": float(np.log(-np.expm1(v) / 2 + 1e-9))}]
        for w, v in zip(WORDS, logprobs, strict=False)
    ]


@pytest.fixture(scope="module")
def predictor() -> QualityPredictor:
    return QualityPredictor.load(on_mismatch="ignore")


def reason(predictor: QualityPredictor, response: object) -> str:
    """Returns the verdict's reason without the part that every answer of an unknown run has."""
    known = predictor.predict(completion()).reason
    verdict = predictor.predict(response)
    assert verdict.score is not None
    return verdict.reason.removesuffix(known).rstrip("; ")


@pytest.mark.parametrize(
    ("finish", "end"),
    [
        *((word, "stop") for word in ("stop", "eos_token", "STOP", "end_turn", "stopstop", {"type": "stop"})),
        *((word, "length") for word in ("length", "MAX_TOKENS", "lengthlength")),
    ],
)
def test_ends_are_known_by_every_name_and_those_of_the_model_are_scored_without_a_word(
    predictor: QualityPredictor, finish: Any, end: str
) -> None:
    for form in (completion(finish), json.dumps(completion(finish))):
        assert parse_response(json.dumps(completion(finish))).finish_reason == parse_response(form).finish_reason == end
        why = reason(predictor, form)
        assert why == "" if end == "stop" else "token limit" in why


@given(
    st.text(min_size=1, max_size=12)
    | st.dictionaries(st.sampled_from(["type", "reason", "x"]), st.text(max_size=5), min_size=1, max_size=2)
    | st.integers()
    | st.sampled_from([True, "abort", "error", "failed", "insufficient_system_resource", "OTHER", "unknown"])
)
def test_every_other_end_is_said(finish: Any) -> None:
    assume(read_end(finish) not in {"stop", "length", "content_filter", "refusal", "tool_calls"})
    for parsed in (parse_response(completion(finish)), parse_response(json.dumps(completion(finish)))):
        assert "ended by" in doubt(parsed.finish_reason)


def test_what_is_filtered_broken_off_or_not_said_to_have_ended_is_said(predictor: QualityPredictor) -> None:
    for word in ("SAFETY", "RECITATION", "content_filter"):
        assert "filter" in reason(predictor, completion(word))
    assert "does not say how" in reason(predictor, completion(None))
    stored = Call(id="c", text="a b", tokens=("a", " b"), logprobs=np.float32([-1, -0.5]), finish_reason="abort")
    assert "'abort'" in reason(predictor, stored)
    for broken in (completion("error", error={"message": "gone"}), {**completion(), "error": {"code": "502"}}):
        for form in (broken, json.dumps(broken)):
            with pytest.raises(InvalidResponse, match="error"):
                predictor.predict(form)


def chunks(*last: dict[str, Any]) -> list[dict[str, Any]]:
    whole = completion()["choices"][0]
    deltas = [
        {"choices": [{"index": 0, "delta": {"content": e["token"]}, "logprobs": {"content": [e]}}]}
        for e in whole["logprobs"]["content"]
    ]
    return [*deltas, *last]


@pytest.mark.parametrize(
    "last",
    [
        {"error": {"message": "Provider disconnected"}, "choices": []},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "error", "error": {"code": 502}}]},
        {"type": "error", "message": "overloaded"},
    ],
)
def test_an_error_within_a_stream_is_one_for_every_reader(predictor: QualityPredictor, last: dict[str, Any]) -> None:
    given_chunks = chunks(last)
    with pytest.raises(InvalidResponse, match="error"):
        predictor.predict(given_chunks)
    passed = list(watched := watch(given_chunks, predictor))
    assert passed == given_chunks
    assert watched.verdict is None
    assert "error" in watched.reason


def test_the_ends_of_a_response_of_the_responses_api(predictor: QualityPredictor) -> None:
    entries = completion()["choices"][0]["logprobs"]["content"]
    part = {"type": "output_text", "text": "".join(WORDS), "logprobs": entries}
    whole = {"object": "response", "status": "completed", "output": [{"type": "message", "content": [part]}]}
    assert reason(predictor, whole) == ""
    assert "'cancelled'" in reason(predictor, {**whole, "status": "cancelled"})
    cut = {**whole, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    assert "token limit" in reason(predictor, cut)
    for failed in ({"status": "failed"}, {"status": "failed", "error": {"code": "server_error", "message": "x"}}):
        with pytest.raises(InvalidResponse, match="error"):
            predictor.predict({**whole, **failed})


@pytest.mark.parametrize("top", [True, False])
def test_numbers_that_stand_for_none_are_refused(top: bool) -> None:
    first = completion(tops=plausible()[:1], logprobs=(-0.5, *[0.0] * 7))
    for response in (
        completion(logprobs=(0.0,) * 8),
        completion(logprobs=(-1.386294,) * 8),
        first,
        completion(logprobs=(-0.5, -0.25, 0.0, 0.0, -0.1, 0.0, 0.0, 0.0), tops=plausible()[:2]),
    ):
        for read in (parse_response, lambda r, top: parse_response(json.dumps(r), top=top)):
            with pytest.raises(NoLogprobs, match="log-probabilities"):
                read(response, top=top)


@pytest.mark.parametrize("top", [True, False])
def test_a_model_that_is_certain_is_believed(top: bool) -> None:
    certain = completion(logprobs=(0.0,) * 8, tops=[[{"token": w, "logprob": 0.0}, X] for w in WORDS])
    for response in (certain, completion(logprobs=(0.0,) * 4), completion(logprobs=(-0.5, *[0.0] * 6, -0.1))):
        assert parse_response(response, top=top).logprobs[1] == 0
        assert parse_response(json.dumps(response), top=top).logprobs[1] == 0


X = {"token": "x", "logprob": -17.5}


def test_a_list_of_numbers_is_scored_and_doubted(predictor: QualityPredictor) -> None:
    assert "constant" in predictor.predict([-0.7] * 6).reason
    assert "6 of 7 log-probabilities are 0" in predictor.predict([-4.0] + [0.0] * 6).reason
    assert "log-probabilities are" not in predictor.predict([-4.0, 0.0, 0.0]).reason
    assert "29 of 30 log-probabilities are -1.5" in predictor.predict([-0.2] + [-1.5] * 29).reason
    assert "log-probabilities are" not in predictor.predict([0.0] * 20 + [-0.25 * i for i in range(10)]).reason


FAULTS: dict[str, list[Any]] = {
    "drawn twice": [[{"token": w, "logprob": v}] * 2 + [X] for w, v in zip(WORDS, LOGPROBS, strict=True)],
    "sums above 1": [[{"token": "p", "logprob": -0.1}, {"token": "q", "logprob": -0.2}] for _ in WORDS],
    "below the drawn": [[{"token": "p", "logprob": v - 1}, X] for v in LOGPROBS],
    "another number": [[{"token": w, "logprob": v + 0.05 if v < -0.1 else -0.02}] for w, v in zip(WORDS, LOGPROBS)],  # noqa: B905
    "not readable": [[{"token": "p", "logprob": "much"}] for _ in WORDS],
    "positive": [[{"token": "p", "logprob": 2.0}] for _ in WORDS],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_alternatives_that_cannot_be_are_said_and_refused_where_they_are_read(
    predictor: QualityPredictor, fault: str, tmp_path: Path
) -> None:
    response = completion(tops=FAULTS[fault])
    body = json.dumps(response)
    assert reason(predictor, response) == reason(predictor, body) != ""
    for parsed in (parse_response(response), parse_response(body)):
        assert parsed.top_fault
        assert parsed.top_logprobs is None
    reads = QualityPredictor(tiny_quality(tmp_path / "top", reads="full+top"), on_mismatch="ignore")
    for form in (response, body):
        with pytest.raises(InvalidResponse, match="predictor"):
            reads.predict(form)
    assert reads.predict(completion(tops=plausible())).score is not None
    assert "none came" in reads.predict(completion()).reason


def test_sound_alternatives_are_said_nothing_of(predictor: QualityPredictor) -> None:
    sound = completion(tops=plausible())
    ruled_out = copy.deepcopy(sound)
    ruled_out["choices"][0]["logprobs"]["content"][2]["top_logprobs"][0]["logprob"] = None
    twins = copy.deepcopy(sound)  # two tokens with the same text and other numbers
    twins["choices"][0]["logprobs"]["content"][0]["top_logprobs"].append({"token": WORDS[0], "logprob": -4.0})
    for response in (sound, ruled_out, twins):
        for form in (response, json.dumps(response)):
            assert reason(predictor, form) == ""
        read = parse_response(response).top_logprobs
        np.testing.assert_array_equal(read, parse_response(json.dumps(response)).top_logprobs)
        assert read is not None


@pytest.mark.parametrize(
    "broken",
    [
        {"message": {"content": "".join(WORDS), "error": {"message": "gone"}}},
        {"errors": ["gone"]},
        {"delta": {}, "error": "gone"},
    ],
)
def test_an_error_beside_the_answer_is_one(predictor: QualityPredictor, broken: dict[str, Any]) -> None:
    with pytest.raises(InvalidResponse, match="error"):
        predictor.predict(completion(**broken))
    with pytest.raises(InvalidResponse, match="error"):
        predictor.predict({**completion(), "status": "failed"})
    native = {"content": "a b", "tokens_predicted": 2, "stop_type": "eos", "completion_probabilities": [{}]}
    with pytest.raises(InvalidResponse, match="error"):
        predictor.predict({**native, "error": "gone"})


@pytest.mark.parametrize(
    "late",
    [
        {"object": "error", "message": "CUDA OOM", "code": 500},
        {"detail": "Internal"},
        {"message": "overloaded", "code": 500},
        {"choices": [{"index": 0, "delta": {"error": "gone"}}]},
    ],
)
def test_what_is_no_chunk_is_an_error_also_after_the_end(predictor: QualityPredictor, late: dict[str, Any]) -> None:
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 8}}
    assert reason(predictor, chunks(end, usage)) == ""
    with pytest.raises(InvalidResponse, match="expected"):
        predictor.predict(chunks(end, late))
    list(watched := watch(chunks(end, late), predictor))
    assert watched.verdict is None


def test_an_end_that_is_stated_twice_is_said_where_the_two_differ(predictor: QualityPredictor) -> None:
    cut = {"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    assert "abort, then stop" in reason(predictor, chunks(cut, end))
    assert reason(predictor, chunks(end, end)) == ""
    for beside in ({"native_finish_reason": "MAX_TOKENS"}, {"finish_details": {"type": "max_tokens"}}):
        assert "length" in reason(predictor, completion(**beside))
    assert reason(predictor, completion(native_finish_reason="STOP")) == ""
    filtered = {"content_filter_results": {"hate": {"filtered": True}}}
    assert "filter" in reason(predictor, completion(**filtered))
    assert "ended by" in reason(predictor, completion({"type": "stop", "reason": "length"}))


def test_a_stream_of_the_responses_api_is_held_against_the_text_of_its_end(predictor: QualityPredictor) -> None:
    place = {"output_index": 0, "content_index": 0}
    deltas = [
        {"type": "response.output_text.delta", "delta": w, "logprobs": [{"token": w, "logprob": v}], **place}
        for w, v in zip(WORDS, LOGPROBS, strict=True)
    ]

    def closing(text: str, **item: str) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "logprobs": []}
        response = {"status": "completed", "output": [{"type": "message", "content": [part], **item}]}
        return {"type": "response.completed", "response": response}

    assert reason(predictor, [*deltas, closing("".join(WORDS))]) == ""
    for faulty in ([*deltas[:3], *deltas[4:], closing("".join(WORDS))], [*deltas, closing("No, 17.")]):
        with pytest.raises(InvalidResponse, match="log-probabilities"):
            predictor.predict(faulty)
    assert "incomplete" in reason(predictor, [*deltas, closing("".join(WORDS), status="incomplete")])


def test_a_tool_call_in_words_and_choices_out_of_order(predictor: QualityPredictor) -> None:
    call = '<tool_call>{"name": "f"}</tool_call>'
    tokens = [{"token": call, "logprob": -0.5}]
    with pytest.raises(InvalidResponse, match="tool call"):
        predictor.predict(
            completion(message={"content": call}, logprobs=(-0.5,))
            | {"choices": [{"message": {"content": call}, "logprobs": {"content": tokens}, "finish_reason": "stop"}]}
        )
    first, second = completion()["choices"][0], completion(logprobs=(-3.0, -2.0))["choices"][0]
    swapped = {"choices": [{**second, "index": 1}, {**first, "index": 0}]}
    assert len(parse_response(swapped).logprobs) == len(WORDS)


def test_zeros_between_places_that_are_looked_at_are_found(predictor: QualityPredictor) -> None:
    entries = [
        {"token": " w", "logprob": 0.0 if i % 6 in (1, 2) else -0.5 - i / 100, "top_logprobs": []} for i in range(30)
    ]
    for entry in entries:
        if entry["logprob"]:
            entry["top_logprobs"] = [{"token": " w", "logprob": entry["logprob"]}, {"token": "z", "logprob": -5.0}]
    response = {
        "choices": [{"message": {"content": " w" * 30}, "logprobs": {"content": entries}, "finish_reason": "stop"}]
    }
    for top in (True, False):
        for read in (parse_response, lambda r, top: parse_response(json.dumps(r), top=top)):
            with pytest.raises(NoLogprobs, match="log-probabilities"):
                read(response, top=top)


def test_many_words_of_few_tokens_without_names_are_refused_and_bytes_are_names(predictor: QualityPredictor) -> None:
    def said(text: str, *entries: dict[str, Any]) -> dict[str, Any]:
        return {
            "choices": [{"message": {"content": text}, "logprobs": {"content": list(entries)}, "finish_reason": "stop"}]
        }

    nameless = [{"token": "token_id:7", "logprob": -0.5}, {"token": None, "logprob": -0.25}]
    with pytest.raises(InvalidResponse, match="log-probabilities"):
        predictor.predict(said("word " * 1000, *nameless))
    assert predictor.predict(said("two words", *nameless)).score is not None
    spelled = [{"token": "", "logprob": -0.5 - i, "bytes": list(b)} for i, b in enumerate((b"Hello", b" there"))]
    assert predictor.predict(said("Hello there", *spelled)).score is not None
    with pytest.raises(InvalidResponse, match="log-probabilities"):
        predictor.predict(said("Nope, sorry", *spelled))


def test_what_predict_says_of_a_response_is_said_of_its_line_and_of_its_stored_answer(tmp_path: Path) -> None:
    fewer = completion() | {"usage": {"prompt_tokens": 3, "completion_tokens": 60}}
    twice = completion(tops=FAULTS["drawn twice"])
    responses = {"fewer": fewer, "twice": twice, "aborted": completion("abort"), "sound": completion()}
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps({"id": name, "response": one}) + "\n" for name, one in responses.items()))
    predictor = QualityPredictor.load(on_mismatch="ignore")

    def plain(reason: str) -> str:  # `predict` looks at the alternatives of six tokens, and an import at all
        return re.sub(r"[\d.]+", "N", reason)

    said = {name: plain(predictor.predict(one).reason) for name, one in responses.items()}
    assert len(set(said.values())) == 4
    lines = {line["id"]: plain(line["reason"]) for line in score_lines(predictor, path)}
    store = RunStore(tmp_path / "runs")
    report = import_file(path, store)
    stored = {run.id: plain(predictor.predict(run.calls[0]).reason) for run in store}
    assert lines == stored == said
    assert sum(report.doubts.values()) == 3
    assert any("'abort'" in doubt for doubt in report.doubts)


@pytest.mark.parametrize(("end", "what"), [("refusal", "is a refusal"), ("tool_calls", "calls a tool")])
def test_an_import_says_of_an_answer_without_score_that_it_has_none(tmp_path: Path, end: str, what: str) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps({"id": "a", "response": completion(end)}) + "\n")
    [line] = score_lines(QualityPredictor.load(on_mismatch="ignore"), path)
    assert line["score"] is None
    assert import_file(path, RunStore(tmp_path / "runs")).doubts == {f"the answer {what}, and has no score": 1}


def test_a_chunk_of_an_unknown_type_is_refused_and_the_clients_own_events_are_passed_over() -> None:
    entry = {"token": "4", "logprob": -0.1, "top_logprobs": []}
    chunk = {"choices": [{"index": 0, "delta": {"content": "4"}, "logprobs": {"content": [entry]}}]}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    helper = {"type": "content.delta", "delta": "4", "snapshot": "4"}
    assert parse_response([chunk, helper, end]).text == "4"
    with pytest.raises(InvalidResponse, match="choices"):
        parse_response([chunk, {"type": "moderation", "verdict": "cut"}, end])
