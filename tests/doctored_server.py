"""An OpenAI-compatible endpoint that answers `metaprobe doctor` soundly, or with one fault."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from local_server import JSON, Asked, Reply, serving

Body = dict[str, Any]
Fault = Callable[[Body, Body], Any]
"""Gets the request and the sound answer; returns the answer that is sent: a dictionary, (status, dictionary), or the
lines of a stream."""

SAID = {
    "the capital": ["The", " capital", " of", " France", " is", " Paris", "."],
    "Name any": ["A", " fox", ",", " for", " it", " is", " clever", "."],
    "91": ["No", ",", " 7", " times", " 13", " is", " 91", "."],
    "weather": ["I", " do", " not", " know", "."],
}
OTHERS = ["A", " b", " c", " d", " e"]


def sound(path: str, body: Body) -> Body:
    """The answer of an engine that keeps to the API and gives raw log-probabilities."""
    choices = [_chat_choice(body, i) for i in range(body.get("n", 1))]
    counted = sum(len(choice["logprobs"]["content"]) for choice in choices if choice["logprobs"])
    usage = {"prompt_tokens": 9, "completion_tokens": counted, "total_tokens": 9 + counted}
    return {"id": "x", "object": "chat.completion", "model": "m", "choices": choices, "usage": usage}


def drawn(asked: str, temperature: float, most: int, number: int = 0) -> list[Body]:
    """The tokens of one answer with five alternatives; above temperature 0 every third one is not the likeliest."""
    words = next(tokens for start, tokens in SAID.items() if start in asked)
    found = []
    for i, word in enumerate(words[:most]):
        top = [-0.3 - 0.01 * i, -2.1, -3.4, -4.2, -5.3]
        rows = [{"token": token, "logprob": x} for token, x in zip([word, *OTHERS[1:]], top, strict=True)]
        rank = 1 + number if temperature and i % 3 == 2 else 0
        found.append({**rows[rank], "bytes": None, "top_logprobs": rows})
    return found


def joined(entries: list[Body]) -> str:
    return "".join(entry["token"] for entry in entries)


def _chat_choice(body: Body, number: int) -> Body:
    if body.get("tools"):
        call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return {"index": number, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
    asked = body["messages"][-1]["content"]
    entries = drawn(asked, body.get("temperature", 1.0), body.get("max_tokens", 99), number)
    whole = len(entries) == len(drawn(asked, 0.0, 99))
    return {
        "index": number,
        "message": {"role": "assistant", "content": joined(entries)},
        "logprobs": {"content": entries} if body.get("logprobs") else None,
        "finish_reason": "stop" if whole else "length",
    }


def chunks(answer: Body, per_chunk: int = 1) -> list[Any]:
    """The sound stream of an answer: chunks of so many tokens, the end, the usage, [DONE]."""
    [choice] = answer["choices"]
    entries = (choice["logprobs"] or {}).get("content") or []
    known = {key: answer[key] for key in ("id", "model")}
    parts = []
    for i in range(0, len(entries), per_chunk):
        some = entries[i : i + per_chunk]
        parts.append({"delta": {"content": joined(some)}, "logprobs": {"content": some}, "finish_reason": None})
    if not entries:
        parts.append({"delta": {"content": choice["message"]["content"]}, "finish_reason": None})
    parts.append({"delta": {}, "logprobs": None, "finish_reason": choice["finish_reason"]})
    sent: list[Any] = [known | {"choices": [{"index": 0, **part}]} for part in parts]
    return [*sent, known | {"choices": [], "usage": answer["usage"]}, "[DONE]"]


@contextmanager
def upstream(fault: Fault | None = None) -> Iterator[tuple[str, list[Body]]]:
    """(base URL, the requests that came) of a server with this fault."""
    came: list[Body] = []

    def reply(request: Asked) -> Reply:
        body = request.json()
        asked = {"path": request.path, "headers": request.headers, **body}
        came.append(asked)
        answer = sound(request.path, body)
        said = fault(asked, answer) if fault else answer
        status, said = said if isinstance(said, tuple) else (200, said)
        if status == 200 and body.get("stream"):
            lines = said if isinstance(said, list) else chunks(said)
            text = "".join(f"data: {x if isinstance(x, str) else json.dumps(x)}\n\n" for x in lines)
        else:
            text = json.dumps(said)
        kind = "text/event-stream" if body.get("stream") else JSON
        return Reply(text.encode(), status, {"Content-Type": kind})

    with serving(reply) as url:
        yield f"{url}/v1", came
