"""Shared by tests of several upstreams behind one URL: upstreams that do as told, a server before them, its panel."""

import asyncio
import json
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from chat_completions import answer_choice, chat_completion, chunk_of, piece, server_sent
from made_once import MadeOnce
from panel_worlds import completion, topics, trained
from served import answering, respond, running
from serving_clients import Served
from starlette.types import Receive, Scope, Send

from metaprobe.production.http.app import create_app
from metaprobe.production.http.settings import Settings
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.compared_answers import PanelAnswer, PanelStep


@pytest.fixture(scope="module")
def team(made_once: MadeOnce) -> Path:
    return trained(topics, made_once)


@pytest.fixture(autouse=True)
def one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the panel name history, then maths, then stop."""

    def named(self: Panel, question: str, dimension: Any, answers: Sequence[PanelAnswer], *_: Any, **__: Any) -> Any:
        came = {one.agent for one in answers}
        agent = next((name for name in ("history", "maths") if name not in came), None)
        return PanelStep(agent, {"history": 0.2, "maths": 0.1}, f"on {dimension}")

    monkeypatch.setattr(Panel, "next", named)
    monkeypatch.setattr(Panel, "ask_plan", lambda self, **_: None)


class Speaks:
    """An upstream that says one thing, answers with this object or with what a function makes of the request, or with a
    status."""

    def __init__(self, answer: Any = "", status: int = 200, *, logprobs: bool = True, wait_s: float = 0.0) -> None:
        self.answer, self.status, self.logprobs, self.wait_s = answer, status, logprobs, wait_s
        self.hold: threading.Event | None = None
        """Where there is one, requests that come now are answered once it is set."""
        self.left = threading.Event()
        """Set when a caller closed the connection before the answer."""
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    @answering
    async def __call__(self, scope: Scope, raw: bytes, receive: Receive, send: Send) -> None:
        body = json.loads(raw)
        hold = self.hold  # read first: whoever sees the request may change it for the next one
        self.bodies.append(body)
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        while hold is not None and not hold.is_set():
            await asyncio.sleep(0.01)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.wait_s):
                await receive()
                self.left.set()
                return
        answer = self.answer(body) if callable(self.answer) else self.answer
        if isinstance(answer, dict):
            await respond(send, 200, answer)
            return
        status = 400 if body.get("logprobs") and not self.logprobs else self.status
        usage = {"prompt_tokens": 1000, "completion_tokens": 1000, "total_tokens": 2000}
        whole = completion(answer, model=body["model"]) | {"usage": usage}
        await respond(send, status, whole if status == 200 else {"error": {"message": f"no, {status}"}})


class Streams(Speaks):
    """An upstream that answers by stream where it is asked to, piece by piece."""

    def __init__(self, answer: dict[str, Any], *, fault: str = "") -> None:
        """`fault`: `refuses` or `refuses without a word` for one that refuses streams; `ends early` for one that leaves
        out how the answer ended; `errs` for one that sends an error as an event, `errs at the end` after its answer;
        `is not called one` for another content type; `stays open` for one that does not close the stream."""
        super().__init__(answer)
        self.fault = fault

    @answering
    async def __call__(self, scope: Scope, raw: bytes, receive: Receive, send: Send) -> None:
        body = json.loads(raw)
        self.bodies.append(body)
        if not body.get("stream"):
            await respond(send, 200, self.answer)
        elif self.fault.startswith("refuses"):
            word = "no" if "without" in self.fault else "stream is not supported"
            await respond(send, 400, {"error": {"message": word}})
        else:
            kind = b"text/plain" if self.fault == "is not called one" else SSE
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
            for chunk in self.chunks():
                await send({"type": "http.response.body", "body": server_sent(chunk), "more_body": True})
            stays = self.fault == "stays open"
            await send({"type": "http.response.body", "body": server_sent("[DONE]"), "more_body": stays})
            while stays and (await receive())["type"] != "http.disconnect":
                pass

    def chunks(self) -> list[dict[str, Any]]:
        """The chunks of the answer: its text a character at a time, each with its log-probability."""
        error = {"error": {"message": "overloaded", "code": 500}}
        if self.fault == "errs":
            return [error]
        [choice] = self.answer["choices"]
        message = dict(choice["message"])
        text, calls = message.pop("content") or "", message.pop("tool_calls", [])
        entries = (choice.get("logprobs") or {}).get("content") or []
        deltas = [message, *({"content": sign} for sign in text)]
        for number, call in enumerate(calls):
            function = {"name": call["function"]["name"], "arguments": ""}
            deltas.append({"tool_calls": [{"index": number, **call, "function": function}]})
            signs = call["function"]["arguments"]
            deltas += [{"tool_calls": [{"index": number, "function": {"arguments": sign}}]} for sign in signs]
        pieces = [piece(delta) for delta in deltas]
        for brought, entry in zip(pieces[1:], entries, strict=False):
            brought["logprobs"] = {"content": [entry]}
        if self.fault != "ends early":
            pieces.append(piece({}, end=choice["finish_reason"]))
        chunks = [chunk_of(self.answer, brought) for brought in pieces]
        usage = {**chunk_of(self.answer), "usage": self.answer.get("usage")}
        return [*chunks, error if self.fault == "errs at the end" else usage]


SSE = b"text/event-stream"


class Drips:
    """An upstream that sends a piece of its answer again and again, and never ends."""

    def __init__(self, kind: bytes, piece: bytes) -> None:
        """`kind`: content type."""
        self.kind, self.piece = kind, piece
        self.open = 0
        """Requests that are being answered."""
        self.begun = 0

    @answering
    async def __call__(self, scope: Scope, raw: bytes, receive: Receive, send: Send) -> None:
        self.begun += 1
        self.open += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", self.kind)]})
            gone = asyncio.ensure_future(receive())
            while not gone.done():
                await send({"type": "http.response.body", "body": self.piece, "more_body": True})
                await asyncio.wait({gone}, timeout=0.02)
        finally:
            self.open -= 1


def calling(*calls: tuple[str, str], model: str = "m") -> dict[str, Any]:
    """A completion that calls tools: the name and arguments of each. Its ids are call_0, call_1, ..."""
    made = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": None, "tool_calls": made}
    choice = answer_choice([], logprobs=False, message=message, finish_reason="tool_calls")
    return chat_completion(choice, model=model, prompt_tokens=None)


class World(ExitStack):
    """A server in front of upstreams."""

    def __init__(self, checkpoint: Path, team: Path | None, upstreams: dict[str, Any], **settings: Any) -> None:
        """`team`: the panel; None for the one upstream `""`."""
        super().__init__()
        self.checkpoint, self.team, self.upstreams, self.settings = checkpoint, team, upstreams, settings

    def __enter__(self) -> Any:
        super().__enter__()
        named = []
        for name, app in self.upstreams.items():
            url = app if isinstance(app, str) else f"{self.enter_context(running(app))[0]}/v1"
            named.append(f"{name}={url}" + ("#gpt-x" if name == "maths" else "") if name else url)
        given = {"checkpoint": self.checkpoint, "panel": self.team, "upstreams": tuple(named), **self.settings}
        return Served(self.enter_context(running(create_app(Settings(**given))))[0])
