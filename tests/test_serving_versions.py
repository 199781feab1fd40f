"""A request keeps the checkpoint that it began with, on every path, whatever is taken in meanwhile."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import serving_clients
from served import KEY, TOKENS, answering, respond, running, stream_events
from serving_clients import LOGPROBS, Served, serving
from starlette.types import Receive, Scope, Send
from tiny import tiny_quality

from metaprobe.checkpoints import Checkpoint
from metaprobe.production.http import judges

callers_keys = serving_clients.callers_keys


class Waits:
    """Answers in the form that the path has, once it may."""

    def __init__(self) -> None:
        self.asked, self.may = threading.Semaphore(0), threading.Event()

    @answering
    async def __call__(self, scope: Scope, raw: bytes, receive: Receive, send: Send) -> None:
        self.asked.release()
        await asyncio.to_thread(self.may.wait, 60)
        made = {"/v1/chat/completions": chat, "/v1/completions": text, "/v1/responses": response}[scope["path"]]
        whole, chunks = made()
        if json.loads(raw).get("stream"):
            await stream_events(send, [*chunks, b"[DONE]"])
        else:
            await respond(send, 200, whole)


SPELT = "".join(token for token, _ in TOKENS)
ENTRIES = [{"token": token, "logprob": logprob, "top_logprobs": []} for token, logprob in TOKENS]


def chat() -> tuple[Any, list[Any]]:
    choice = {"index": 0, "logprobs": {"content": ENTRIES}, "finish_reason": "stop"}
    known = {"id": "c", "object": "chat.completion", "created": 7, "model": "m"}
    whole = {**known, "choices": [{**choice, "message": {"role": "assistant", "content": SPELT}}]}
    return whole, [{**known, "object": "chat.completion.chunk", "choices": [{**choice, "delta": {"content": SPELT}}]}]


def text() -> tuple[Any, list[Any]]:
    columns = {"tokens": [token for token, _ in TOKENS], "token_logprobs": LOGPROBS, "top_logprobs": None}
    choice = {"index": 0, "text": SPELT, "logprobs": columns, "finish_reason": "stop"}
    whole = {"id": "t", "object": "text_completion", "created": 7, "model": "m", "choices": [choice]}
    return whole, [whole]


def response() -> tuple[Any, list[Any]]:
    part = {"type": "output_text", "text": SPELT, "annotations": [], "logprobs": ENTRIES}
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    known = {"id": "r", "object": "response", "created_at": 7, "model": "m", "status": "completed", "output": [message]}
    return known, [{"type": "response.completed", "response": known}]


@contextmanager
def reloadable(folder: Path, monkeypatch: pytest.MonkeyPatch, upstream: str) -> Iterator[tuple[Any, Any, Served]]:
    """A server that judges by one checkpoint, how to have it take in the other, and a client."""
    monkeypatch.setattr(judges, "PINS_CHECK_S", 0.02)
    one, other = tiny_quality(folder / "one"), tiny_quality(folder / "two", slope=2.0)
    pins = folder / "pins"

    def pin(checkpoint: Checkpoint) -> None:
        (folder / "fresh").write_text(f"{checkpoint.path} {checkpoint.digest}\n")
        (folder / "fresh").replace(pins)

    pin(one)
    with serving(one.path, pins=pins, upstream=upstream) as client:

        def take_in() -> None:
            pin(other)
            end = time.monotonic() + 60
            while client.get("/readyz").json()["checkpoint"] != other.digest:
                assert time.monotonic() < end
                time.sleep(0.02)

        yield (one, other), take_in, client


ASKED = {
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "a"}]},
    "/v1/completions": {"model": "m", "prompt": "a", "logprobs": 1},
    "/v1/responses": {"model": "m", "input": "a"},
}


def test_a_reload_while_the_upstream_answers_changes_nothing_of_that_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, asked = Waits(), [(path, {**ASKED[path], "stream": streamed}) for path in ASKED for streamed in (False, True)]
    with running(told) as (up, _), reloadable(tmp_path, monkeypatch, f"{up}/v1") as ((one, other), take_in, client):
        with ThreadPoolExecutor(len(asked)) as threads:
            begun = [threads.submit(client.post, path, body) for path, body in asked]
            for _ in asked:
                assert told.asked.acquire(timeout=60)
            take_in()
            told.may.set()
        for answer in (request.result().text for request in begun):
            assert one.digest in answer
            assert other.digest not in answer
        assert all(other.digest in client.post(path, body).text for path, body in asked)


def test_a_reload_while_a_request_comes_in_changes_nothing_of_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Waits()
    told.may.set()
    with running(told) as (up, _), reloadable(tmp_path, monkeypatch, f"{up}/v1") as ((one, other), take_in, client):
        host, port = client.url.removeprefix("http://").split(":")
        with ExitStack() as open_ones:
            begun = []
            for path, asked in (*ASKED.items(), ("/v1/score", LOGPROBS)):
                body = json.dumps(asked).encode()
                opened = open_ones.enter_context(socket.create_connection((host, int(port)), timeout=60))
                head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n"
                head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                opened.sendall(head.encode() + body[:5])
                begun.append((opened, body[5:]))
            time.sleep(0.2)  # the headers are in work
            take_in()
            for opened, rest in begun:
                opened.sendall(rest)
                answer = b"".join(iter(partial(opened.recv, 65536), b"")).decode()
                assert one.digest in answer
                assert other.digest not in answer
