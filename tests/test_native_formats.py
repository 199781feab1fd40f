"""Answers of APIs that do not speak OpenAI's format: read where they hold a number for each token, else named."""

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import ImportFileError, InvalidResponse, NoLogprobs
from metaprobe.records.import_store import import_file
from metaprobe.records.parse import parse_response
from metaprobe.records.reading import TOOL_CALL, UNSTATED
from metaprobe.records.store import RunStore

WORDS = ("It", " is", " 4", ".")
VALUES = (-0.1, -0.2, -0.4, -0.05)
ENTRIES = [
    {
        "token": word,
        "logprob": value,
        "top_logprobs": [{"token": word, "logprob": value}, {"token": "x", "logprob": -5.0}],
    }
    for word, value in zip(WORDS, VALUES, strict=True)
]
TEXT = "".join(WORDS)


def ollama_chat(**more: Any) -> dict[str, Any]:
    return {
        "model": "smollm2-135m",
        "created_at": "2025-11-12T00:00:00Z",
        "message": {"role": "assistant", "content": TEXT},
        "done": True,
        "done_reason": "stop",
        "logprobs": ENTRIES,
        "prompt_eval_count": 9,
        "eval_count": 4,
    } | more


def ollama_generate(**more: Any) -> dict[str, Any]:
    return {key: value for key, value in ollama_chat().items() if key != "message"} | {"response": TEXT} | more


def tgi(ended: str = "eos_token", **more: Any) -> dict[str, Any]:
    tokens = [
        {"id": n, "text": word, "logprob": value, "special": False}
        for n, (word, value) in enumerate(zip(WORDS, VALUES, strict=True))
    ]
    if ended == "eos_token":
        tokens.append({"id": 2, "text": "</s>", "logprob": -3.0, "special": True})
    rows = [[token, {"id": 9, "text": "x", "logprob": -5.0, "special": False}] for token in tokens]
    details = {"finish_reason": ended, "generated_tokens": len(tokens), "seed": None, "prefill": [], "tokens": tokens}
    return {"generated_text": TEXT, "details": details | {"top_tokens": rows} | more}


def gemini(ended: str = "STOP", **more: Any) -> dict[str, Any]:
    chosen = [
        {"token": w, "tokenId": n, "logProbability": v} for n, (w, v) in enumerate(zip(WORDS, VALUES, strict=True))
    ]
    mask = {"token": "ont", "logProbability": -1.2676506e30}
    rows = [{"candidates": [one, {"token": "x", "logProbability": -5.0}, mask]} for one in chosen]
    candidate = {
        "content": {"role": "model", "parts": [{"text": TEXT}]},
        "finishReason": ended,
        "avgLogprobs": -0.1875,
        "logprobsResult": {"chosenCandidates": chosen, "topCandidates": rows},
    }
    return {
        "candidates": [candidate | more],
        "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 4, "totalTokenCount": 13},
        "modelVersion": "smollm2-135m",
    }


def cohere(ended: str = "COMPLETE", **more: Any) -> dict[str, Any]:
    chunks = [
        {"text": w, "token_ids": [n], "logprobs": [v]} for n, (w, v) in enumerate(zip(WORDS, VALUES, strict=True))
    ]
    return {
        "id": "c14c80c3",
        "finish_reason": ended,
        "message": {"role": "assistant", "content": [{"type": "text", "text": TEXT}]},
        "usage": {
            "billed_units": {"input_tokens": 5, "output_tokens": 4},
            "tokens": {"input_tokens": 9, "output_tokens": 4},
        },
        "logprobs": chunks,
    } | more


SOUND: dict[str, Mapping[str, Any]] = {
    "Ollama chat": ollama_chat(),
    "Ollama generate": ollama_generate(),
    "TGI": tgi(),
    "TGI stopped": tgi("stop_sequence"),
    "Gemini": gemini(),
    "Cohere": cohere(),
}


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("as_text", [False, True])
def test_a_number_for_each_token_is_read_to_the_bit(name: str, as_text: bool) -> None:
    response = SOUND[name]
    parsed = parse_response(json.dumps(response) if as_text else response)
    assert (parsed.text, parsed.tokens, parsed.finish_reason) == (TEXT, WORDS, "stop")
    assert parsed.logprobs.tolist() == np.float32(VALUES).tolist()
    if name != "Cohere":
        assert parsed.top_logprobs is not None
        assert parsed.top_logprobs.tolist() == [[float(np.float32(value)), -5.0] for value in VALUES]
    if not name.startswith("TGI"):
        assert (parsed.usage.prompt_tokens, parsed.usage.completion_tokens) == (9, 4)
    assert 0 < QualityPredictor.load().predict(response).score < 1


BARE = {
    "Ollama": (ollama_chat(logprobs=None), r"Ollama.*logprobs=true.*/v1/chat/completions"),
    "Ollama old": ({k: v for k, v in ollama_generate().items() if k != "logprobs"}, r"Ollama.*logprobs=true"),
    "TGI": ({"generated_text": TEXT}, r"TGI.*details.*/v1/chat/completions"),
    "Gemini": (gemini(logprobsResult=None, avgLogprobs=None), r"Gemini.*no log-probabilities.*responseLogprobs"),
    "Gemini average": (gemini(logprobsResult=None), r"Gemini.*avgLogprobs.*responseLogprobs"),
    "Cohere": (cohere(logprobs=None), r"Cohere.*logprobs=true"),
}


@pytest.mark.parametrize("name", BARE)
def test_what_came_without_is_named_with_what_to_ask_for(name: str, tmp_path: Path) -> None:
    response, why = BARE[name]
    with pytest.raises(NoLogprobs, match=why):
        parse_response(response)
    for number, line in enumerate((response, {"response": response})):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(json.dumps(line) + "\n")
        with pytest.raises(ImportFileError, match=why):
            import_file(path, RunStore(tmp_path / f"runs-{number}"))
        report = import_file(path, RunStore(tmp_path / f"plain-{number}"), plain=True)
        (run,) = RunStore(tmp_path / f"plain-{number}")
        assert (report.without_logprobs, run.calls[0].text, run.calls[0].logprobs) == (1, TEXT, None)


REFUSED = [
    (ollama_chat(done=False), "a chunk of a stream of Ollama's"),
    ({"type": "message", "role": "assistant", "content": [{"type": "text", "text": "4"}]}, "Anthropic.*--plain"),
    ({"text": "4", "generation_id": "g", "finish_reason": "COMPLETE", "meta": {}}, "Cohere's /v1/chat.*/v2/chat"),
    ({"promptFeedback": {"blockReason": "SAFETY"}}, "0 candidates, and the prompt was blocked"),
    (cohere(logprobs=[{"text": "It", "token_ids": [1, 2], "logprobs": [-0.1]}]), "2 token_ids and 1 logprobs"),
    (tgi(top_tokens=[[]]), "5 tokens and 1 top_tokens"),
]


@pytest.mark.parametrize(("response", "why"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_what_cannot_be_read_says_what_it_is_and_the_way_on(
    response: Mapping[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidResponse, match=why):
        parse_response(response)
    (tmp_path / "a.jsonl").write_text(json.dumps({"response": response}) + "\n")
    with pytest.raises(ImportFileError, match=why):
        import_file(tmp_path / "a.jsonl", RunStore(tmp_path / "runs"))


def test_tool_calls_and_thinking_are_told_apart() -> None:
    called = ollama_chat(message={"role": "assistant", "content": TEXT, "tool_calls": [{"function": {}}]})
    assert parse_response(called).finish_reason == TOOL_CALL
    with pytest.raises(InvalidResponse, match="tool call"):
        parse_response(ollama_chat(message={"content": "", "tool_calls": [{}]}, logprobs=None))
    thought = ollama_chat(message={"content": " 4.", "thinking": "It is"}, eval_count=4)
    parts = [{"text": "It is", "thought": True}, {"text": " 4."}]
    for response in (thought, gemini(content={"parts": parts})):
        kinds = [(segment.kind, segment.start, segment.end) for segment in parse_response(response).segments]
        assert kinds == [("thinking", 0, 2), ("answer", 2, 4)]


def test_bare_lines_keep_labels_beside_the_answer(tmp_path: Path) -> None:
    lines = [{**SOUND[name], "id": name, "correct": n % 2} for n, name in enumerate(SOUND)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    import_file(tmp_path / "a.jsonl", RunStore(tmp_path / "runs"))
    found = {run.id: run for run in RunStore(tmp_path / "runs")}
    assert {name: run.outcome for name, run in found.items()} == {name: n % 2 for n, name in enumerate(SOUND)}
    assert {run.calls[0].text for run in found.values()} == {TEXT}


def stream(kind: str, cuts: list[int]) -> list[dict[str, Any]]:
    """Ollama's stream of the answer, cut after these tokens."""
    places = [0, *sorted({cut for cut in cuts if 0 < cut < len(WORDS)}), len(WORDS)]
    chunks = []
    for begin, end in pairwise(places):
        said = "".join(WORDS[begin:end])
        own = {"message": {"role": "assistant", "content": said}} if kind == "chat" else {"response": said}
        chunks.append({"model": "smollm2-135m", **own, "done": False, "logprobs": ENTRIES[begin:end]})
    own = {"message": {"role": "assistant", "content": ""}} if kind == "chat" else {"response": ""}
    return [*chunks, {"model": "smollm2-135m", **own, "done": True, "done_reason": "stop", "eval_count": 4}]


@given(st.sampled_from(["chat", "generate"]), st.lists(st.integers(0, 4)))
def test_the_chunks_of_an_ollama_stream_are_the_whole_answer(kind: str, cuts: list[int]) -> None:
    parsed, whole = parse_response(stream(kind, cuts)), parse_response(ollama_chat())
    assert (parsed.text, parsed.tokens, parsed.finish_reason) == (whole.text, whole.tokens, whole.finish_reason)
    assert parsed.logprobs.tolist() == whole.logprobs.tolist()
    assert parsed.note == ""


def test_a_cut_stream_of_ollama_is_said_to_be_cut() -> None:
    chunks = stream("chat", [1, 2])[:-1]
    assert parse_response(chunks).finish_reason == ""
    assert UNSTATED in QualityPredictor.load().predict(chunks).reason
