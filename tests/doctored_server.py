"""An OpenAI-compatible endpoint that answers `metaprobe doctor` soundly, or with one fault."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from chat_completions import answer_choice, chat_completion, chunks_of, server_sent
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


def sound(body: Body) -> Body:
    """The answer of an engine that keeps to the API and gives raw log-probabilities."""
    choices = [_chat_choice(body, i) for i in range(body.get("n", 1))]
    return chat_completion(*choices, prompt_tokens=9)


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


def _chat_choice(body: Body, number: int) -> Body:
    if body.get("tools"):
        call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return {"index": number, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
    asked = body["messages"][-1]["content"]
    entries = drawn(asked, body.get("temperature", 1.0), body.get("max_tokens", 99), number)
    whole = len(entries) == len(drawn(asked, 0.0, 99))
    logprobs = bool(body.get("logprobs"))
    return answer_choice(entries, logprobs=logprobs, index=number, finish_reason="stop" if whole else "length")


def stream(answer: Body, per_chunk: int = 1) -> list[Any]:
    """The sound stream of an answer: chunks of so many tokens, the end, the usage, [DONE]."""
    return [*chunks_of(answer, per_chunk), "[DONE]"]


@contextmanager
def upstream(fault: Fault | None = None) -> Iterator[tuple[str, list[Body]]]:
    """(base URL, the requests that came) of a server with this fault."""
    came: list[Body] = []

    def reply(request: Asked) -> Reply:
        body = request.json()
        asked = {"path": request.path, "headers": request.headers, **body}
        came.append(asked)
        answer = sound(body)
        said = fault(asked, answer) if fault else answer
        status, said = said if isinstance(said, tuple) else (200, said)
        if status == 200 and body.get("stream"):
            raw = b"".join(server_sent(event) for event in (said if isinstance(said, list) else stream(said)))
        else:
            raw = json.dumps(said).encode()
        kind = "text/event-stream" if body.get("stream") else JSON
        return Reply(raw, status, {"Content-Type": kind})

    with serving(reply) as url:
        yield f"{url}/v1", came
