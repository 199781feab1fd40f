"""One answer in every format that `parse_response` takes, as its library or server writes it, as plain JSON values."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metaprobe.records.store import RunStore

_FOLDER = Path(__file__).parent / "responses"
CORPUS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(_FOLDER.glob("*.json"))}
"""Small answers in the shapes that the libraries document or gave here; see the README beside them."""

REFUSED = {"llama_cpp_python_echo"}
"""Those that hold no answer that can be told from the prompt: what was echoed is shifted by one token there."""


@dataclass(frozen=True)
class Answer:
    """Holds what every format must say of an answer."""

    tokens: list[str]
    logprobs: list[float]
    top: list[list[float]]
    """The likeliest two of each token, descending; the drawn token is the first of them or none."""

    @property
    def text(self) -> str:
        return "".join(self.tokens)

    def entries(
        self, logprob: str = "logprob", top: str = "top_logprobs", *, exp: bool = False
    ) -> list[dict[str, Any]]:
        value = math.exp if exp else float
        return [
            {
                "token": token,
                logprob: value(drawn),
                "bytes": list(token.encode()),
                top: [{"token": f"<{i}>", "bytes": [60], logprob: value(x)} for i, x in enumerate(row)],
            }
            for token, drawn, row in zip(self.tokens, self.logprobs, self.top, strict=True)
        ]


def recorded_answers(store: Path, *, most: int = 12) -> list[Answer]:
    """Returns recorded answers of a model, shortened, with alternatives made up around them."""
    rng = np.random.default_rng(0)
    found = []
    for call in (call for run in RunStore(store) for call in run.calls):
        if call.logprobs is None or not len(call.logprobs):
            continue
        drawn = [float(x) for x in call.logprobs[:most]]
        tokens = list(call.tokens[:most]) or [f"t{i}" for i in range(len(drawn))]
        first = [x if x > -0.6 else float(np.float32(-0.5 * rng.random())) for x in drawn]
        found.append(Answer(tokens, drawn, [[x, float(np.float32(x - 1 - rng.random()))] for x in first]))
    return found


def chat(answer: Answer) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": answer.text, "refusal": None},
        "logprobs": {"content": answer.entries(), "refusal": None},
        "finish_reason": "stop",
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1760000000,
        "model": "m",
        "choices": [choice],
        "usage": {"prompt_tokens": 5, "completion_tokens": len(answer.tokens), "total_tokens": 5 + len(answer.tokens)},
    }


def chat_stream(answer: Answer) -> list[dict[str, Any]]:
    def chunk(delta: dict[str, Any], entries: list[Any] | None, end: str | None = None) -> dict[str, Any]:
        logprobs = {"content": entries, "refusal": None} if entries else None
        choices = [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": end}]
        return {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}

    pieces = [chunk({"content": entry["token"]}, [entry]) for entry in answer.entries()]
    usage = {"prompt_tokens": 5, "completion_tokens": len(pieces), "total_tokens": 5 + len(pieces)}
    last = {**chunk({}, None), "choices": [], "usage": usage}
    return [chunk({"role": "assistant", "content": ""}, None), *pieces, chunk({}, None, "stop"), last]


def columns(answer: Answer) -> dict[str, Any]:
    return {
        "tokens": answer.tokens,
        "token_logprobs": answer.logprobs,
        "top_logprobs": [{f"<{i}>": x for i, x in enumerate(row)} for row in answer.top],
        "text_offset": [0] * len(answer.tokens),
    }


def completion(answer: Answer) -> dict[str, Any]:
    choice = {"index": 0, "text": answer.text, "logprobs": columns(answer), "finish_reason": "stop"}
    return {**chat(answer), "object": "text_completion", "choices": [choice]}


def chat_with_columns(answer: Answer) -> dict[str, Any]:
    whole = chat(answer)
    whole["choices"][0]["logprobs"] = columns(answer)
    return whole


def completion_stream(answer: Answer) -> list[dict[str, Any]]:
    pieces = [Answer([t], [x], [row]) for t, x, row in zip(answer.tokens, answer.logprobs, answer.top, strict=True)]
    chunks = [completion(piece) for piece in pieces]
    for chunk in chunks:
        del chunk["usage"]
        chunk["choices"][0]["finish_reason"] = None
    chunks[-1]["choices"][0]["finish_reason"] = "stop"
    chunks[-1]["usage"] = chat(answer)["usage"]
    return chunks


def response(answer: Answer) -> dict[str, Any]:
    part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": answer.entries()}
    output = [
        {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]},
    ]
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1760000000.0,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": "m",
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 0.7,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": 5,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": len(answer.tokens),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 5 + len(answer.tokens),
        },
    }


def response_stream(answer: Answer) -> list[dict[str, Any]]:
    place = {"item_id": "msg_1", "output_index": 1, "content_index": 0}
    begun = {**response(answer), "status": "in_progress", "output": [], "usage": None}
    done = response(answer)
    done["output"][1]["content"][0]["logprobs"] = []  # so that the deltas are what is read
    events = [{"type": "response.created", "response": begun}]
    events += [
        {"type": "response.output_text.delta", "delta": entry["token"], "logprobs": [entry], **place}
        for entry in answer.entries()
    ]
    events += [
        {"type": "response.output_text.done", "text": answer.text, "logprobs": answer.entries(), **place},
        {"type": "response.completed", "response": done},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def sglang(answer: Answer) -> dict[str, Any]:
    rows = zip(answer.logprobs, answer.tokens, strict=True)
    return {
        "text": answer.text,
        "output_ids": list(range(len(answer.tokens))),
        "meta_info": {
            "id": "1",
            "finish_reason": {"type": "stop", "matched": 2},
            "prompt_tokens": 5,
            "completion_tokens": len(answer.tokens),
            "output_token_logprobs": [[x, i, token] for i, (x, token) in enumerate(rows)],
            "output_top_logprobs": [[[x, i, None] for i, x in enumerate(row)] for row in answer.top],
        },
    }


def llama_cpp(answer: Answer) -> dict[str, Any]:
    return {
        "content": answer.text,
        "tokens": [],
        "stop": True,
        "model": "m",
        "tokens_predicted": len(answer.tokens),
        "tokens_evaluated": 5,
        "generation_settings": {"temperature": 0.7, "n_probs": 2, "post_sampling_probs": False},
        "stop_type": "eos",
        "completion_probabilities": answer.entries(),
    }


def llama_cpp_after_sampling(answer: Answer) -> dict[str, Any]:
    return {**llama_cpp(answer), "completion_probabilities": answer.entries("prob", "top_probs", exp=True)}


def vllm(answer: Answer) -> dict[str, Any]:
    """A `RequestOutput`; its objects have the same names."""
    rows = zip(answer.tokens, answer.logprobs, answer.top, strict=True)
    logprobs = []
    for number, (token, drawn, row) in enumerate(rows):
        rank = 1 if drawn == row[0] else 50
        position = {str(number): {"logprob": drawn, "rank": rank, "decoded_token": token}}
        others = [(i, x) for i, x in enumerate(row) if not (rank == 1 and i == 0)]
        position |= {str(1000 + i): {"logprob": x, "rank": i + 1, "decoded_token": "x"} for i, x in others}
        logprobs.append(position)
    output = {
        "index": 0,
        "text": answer.text,
        "token_ids": list(range(len(answer.tokens))),
        "cumulative_logprob": sum(answer.logprobs),
        "logprobs": logprobs,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    return {"request_id": "0", "prompt_token_ids": [1, 2, 3, 4, 5], "outputs": [output], "finished": True}


def generated(answer: Answer) -> dict[str, Any]:
    """Two rows of transformers' output, of which the first is the answer, over a vocabulary of three."""
    ids = [number % 2 for number in range(len(answer.logprobs))]
    logits = []
    for token, drawn in zip(ids, answer.logprobs, strict=True):
        rest = math.log(max(-math.expm1(drawn), 1e-30))
        row = [rest, rest, -1e9]
        row[token], row[1 - token] = drawn, rest
        logits.append([[x + 3.0 for x in row], [0.0, 0.0, 0.0]])
    return {"sequences": [[2, 2, *ids], [2, 2, *([1] * len(ids))]], "logits": logits, "eos_token_id": 2}


def plain(answer: Answer) -> list[float]:
    return list(answer.logprobs)


FORMATS: dict[str, Callable[[Answer], Any]] = {
    function.__name__: function
    for function in (
        chat,
        chat_stream,
        chat_with_columns,
        completion,
        completion_stream,
        response,
        response_stream,
        sglang,
        llama_cpp,
        llama_cpp_after_sampling,
        vllm,
        generated,
        plain,
    )
}


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value inside."""
    if isinstance(value, dict):
        items: Any = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return
    for key, inner in list(items):
        yield value, key
        yield from places(inner)


ANSWER = Answer(["Par", "is", "."], [-0.5, -3.0, -0.25], [[-0.5, -1.5], [-0.125, -2.5], [-0.25, -4.0]])
