"""An answer that did not end by itself says so; placeholders and alternatives that cannot be are named."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tiny import tiny_quality

from metaprobe import QualityPredictor
from metaprobe.records.endings import read_end
from metaprobe.records.errors import InvalidResponse, NoLogprobs
from metaprobe.records.openai_format import parse_response
from metaprobe.records.raw_body import parse_body
from metaprobe.records.types import Call
from metaprobe.serving.watch_stream import watch

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
    """What the verdict says besides what it says of every answer of an unknown run."""
    known = predictor.predict(completion()).reason
    verdict = predictor.predict(response)
    assert verdict.score is not None
    return verdict.reason.removesuffix(known).rstrip("; ")


@pytest.mark.parametrize(
    "finish",
    ["stop", "eos", "eos_token", "STOP", "end_turn", "stop_sequence", "COMPLETE", "stopstop", {"type": "stop"}],
)
def test_ends_of_the_model_are_scored_without_a_word(predictor: QualityPredictor, finish: Any) -> None:
    for form in (completion(finish), json.dumps(completion(finish))):
        assert parse_body(json.dumps(completion(finish))).finish_reason == "stop"
        assert reason(predictor, form) == ""


@pytest.mark.parametrize("finish", ["length", "max_tokens", "MAX_TOKENS", "lengthlength", "model_length"])
def test_limits_are_known_by_every_name(predictor: QualityPredictor, finish: str) -> None:
    assert parse_response(completion(finish)).finish_reason == "length"
    assert "token limit" in reason(predictor, completion(finish))


@given(
    st.sampled_from(
        ["abort", "error", "cancelled", "failed", "insufficient_system_resource", "OTHER", "unknown", "load", "1"]
    )
    | st.text(min_size=1, max_size=12)
    | st.dictionaries(st.sampled_from(["type", "reason", "x"]), st.text(max_size=5), min_size=1, max_size=2)
    | st.integers()
    | st.just(True)
)
def test_every_other_end_is_said(finish: Any) -> None:
    known = {"stop", "length", "content_filter", "refusal", "tool_calls"}
    assume(read_end(finish) not in known)
    predictor = QualityPredictor.load(on_mismatch="ignore")
    for form in (completion(finish), json.dumps(completion(finish))):
        assert "ended by" in reason(predictor, form)


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


def test_a_name_that_was_joined_to_itself_counts_once() -> None:
    twice = {**completion("stopstop"), "model": "gpt-4o-minigpt-4o-mini"}
    for parsed in (parse_response(twice), parse_body(json.dumps(twice))):
        assert (parsed.model, parsed.finish_reason) == ("gpt-4o-mini", "stop")
    assert parse_response({**completion(), "model": "aa"}).model == "aa"


@pytest.mark.parametrize("top", [True, False])
def test_numbers_that_stand_for_none_are_refused(top: bool) -> None:
    first = completion(tops=plausible()[:1], logprobs=(-0.5, *[0.0] * 7))
    for response in (
        completion(logprobs=(0.0,) * 8),
        completion(logprobs=(-1.386294,) * 8),
        first,
        completion(logprobs=(-0.5, -0.25, 0.0, 0.0, -0.1, 0.0, 0.0, 0.0), tops=plausible()[:2]),
    ):
        for read in (parse_response, lambda r, top: parse_body(json.dumps(r), top=top)):
            with pytest.raises(NoLogprobs, match="log-probabilities"):
                read(response, top=top)


@pytest.mark.parametrize("top", [True, False])
def test_a_model_that_is_certain_is_believed(top: bool) -> None:
    certain = completion(logprobs=(0.0,) * 8, tops=[[{"token": w, "logprob": 0.0}, X] for w in WORDS])
    for response in (certain, completion(logprobs=(0.0,) * 4), completion(logprobs=(-0.5, *[0.0] * 6, -0.1))):
        assert parse_response(response, top=top).logprobs[1] == 0
        assert parse_body(json.dumps(response), top=top).logprobs[1] == 0


X = {"token": "x", "logprob": -17.5}


def test_a_list_of_numbers_is_scored_and_doubted(predictor: QualityPredictor) -> None:
    assert "constant" in predictor.predict([-0.7] * 6).reason
    assert "every log-probability but the first" in predictor.predict([-4.0] + [0.0] * 6).reason
    assert "but the first" not in predictor.predict([-4.0, 0.0, 0.0]).reason


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
    for parsed in (parse_response(response), parse_body(body)):
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
        np.testing.assert_array_equal(read, parse_body(json.dumps(response)).top_logprobs)
        assert read is not None
