"""Shared by tests of the server: a small trained checkpoint, servers in threads, and an upstream that does as told."""

import asyncio
import atexit
import json
import shutil
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
import uvicorn.server
from chat_completions import answer_choice, chat_completion, chunks_of, server_sent, token_entry
from sklearn.linear_model import LogisticRegression
from starlette.types import ASGIApp, Receive, Scope, Send

from metaprobe.checkpoints import Checkpoint, Draft, Generator, load_checkpoint, save_checkpoint
from metaprobe.training.evidence import Evidence
from metaprobe.training.linear_probe import linear_graph

KEY = "a-key-of-this-test-0"
TOKENS = tuple((f" w{i}", -0.25 - i / 8) for i in range(6))
"""Token and log-probability of every answer of `Upstream`."""


SMALL: dict[tuple[int, str], Path] = {}
"""Answers and model -> the checkpoint that was made of them."""


def small_checkpoint(path: Path, evidence: Evidence, *, model: str = "m") -> Checkpoint:
    """A logistic regression on the features of planted answers, fitted once a process."""
    if kept := SMALL.get((len(evidence.table), model)):
        shutil.copytree(kept, path)
        return load_checkpoint(path)
    X = evidence.features
    known = ~np.isnan(X).all(axis=0)  # no planted answer is long enough for the longest windows
    mean, scale = np.zeros(X.shape[1]), np.ones(X.shape[1])
    mean[known], scale[known] = np.nanmean(X[:, known], axis=0), np.nanstd(X[:, known], axis=0) + 1e-6
    Z = np.nan_to_num((X - mean) / scale)
    fitted = LogisticRegression(C=0.01, max_iter=1000).fit(Z, evidence.table.y)
    graph = linear_graph(
        input_name="features",
        mean=mean,
        scale=scale,
        weights=fitted.coef_.T,
        intercept=fitted.intercept_,
        outputs=["correct"],
        impute=True,
    )
    draft = Draft(
        kind="quality",
        contract={"schema": evidence.schema, "features": list(evidence.feature_names)},
        generator=Generator(model=model),
        thresholds={"flag": 0.5},
    )
    expected = fitted.predict_proba(Z)[:, 1:].astype(np.float32)
    made = save_checkpoint(
        path, draft, model=graph, golden_inputs={"features": X}, expected={"correct": expected}, card="# A test\n"
    )
    kept = SMALL[len(evidence.table), model] = Path(tempfile.mkdtemp()) / "small"
    atexit.register(shutil.rmtree, kept.parent)
    shutil.copytree(path, kept)
    return made


class Hurried:
    """Stands for `asyncio` in uvicorn's server, with a tenth of each wait.

    uvicorn looks ten times a second whether it is to end, and waits a tenth of a second more before it does.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


uvicorn.server.asyncio = Hurried()  # type: ignore[assignment]


def running(app: ASGIApp, **options: Any) -> AbstractContextManager[tuple[str, uvicorn.Server]]:
    """Base URL of the application under uvicorn, in a thread of its own, on a free port of this machine."""
    given: dict[str, Any] = {"loop": "asyncio", "http": "httptools", "ws": "none", "lifespan": "on", **options}
    return running_as(uvicorn.Config(app, log_config=None, access_log=False, interface="asgi3", **given))


ENDS_WITH: dict[str, list[Callable[[], object]]] = {}
"""Base URL of a running server -> what is called when it ends: its clients close. Whatever stays open until the garbage
collector comes fails another test."""


@contextmanager
def running_as(config: uvicorn.Config) -> Iterator[tuple[str, uvicorn.Server]]:
    """The same of what `config` says, but for its address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(256)  # from here on connections wait until the server takes them
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield url, server
        finally:
            for close in ENDS_WITH.pop(url, ()):
                close()
            server.should_exit = True
            thread.join(timeout=30)
            assert not thread.is_alive()


def answering(answer: Callable[..., Awaitable[None]]) -> Any:
    """Makes an ASGI application of what answers a request, whose body has been read: `answer(scope, body, ...)`."""

    # With the three that it needs: uvicorn takes what can be called without any for a factory.
    async def app(first: Any, second: Any, third: Any, *last: Any) -> None:
        *own, scope, receive, send = first, second, third, *last
        if scope["type"] == "lifespan":
            while (kind := (await receive())["type"]) != "lifespan.shutdown":
                await send({"type": f"{kind}.complete"})
            await send({"type": f"{kind}.complete"})
            return
        raw, more = b"", True
        while more:
            message = await receive()
            raw, more = raw + message.get("body", b""), message.get("more_body", False)
        await answer(*own, scope, raw, receive, send)

    return app


async def respond(send: Send, status: int, value: object, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """Answers with a value as JSON, or with the bytes of it."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    await send(_start(status, b"application/json", more))
    await send({"type": "http.response.body", "body": body})


async def stream_events(send: Send, events: Iterable[object]) -> None:
    """Answers with these objects as the events of a stream, each as it comes."""
    await send(_start(200, b"text/event-stream"))
    for event in events:
        await send({"type": "http.response.body", "body": server_sent(event), "more_body": True})
    await send({"type": "http.response.body"})


class Upstream:
    """Answers as the last message says: `plain`, `refuses-logprobs`, `redirect`, `nan`, `json-stream`, `steps`, ..."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.addresses: list[str] = []
        """Method, path and query of every request, as they were written."""
        self.begin()

    def begin(self, tokens: int = 0) -> None:
        """Forgets what came before in `steps`, of which so many tokens may be sent."""
        self.go_on = threading.Semaphore(tokens)
        """In `steps`, a token is sent each time it is released."""
        self.sent = 0
        """Tokens sent in `steps`."""
        self.closed = threading.Event()
        """Set when the caller of `steps` closed the connection."""

    @answering
    async def __call__(self, scope: Scope, raw: bytes, receive: Receive, send: Send) -> None:
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        self.addresses.append(f"{scope['method']} {(scope['raw_path'] + query).decode()}")
        if scope["method"] == "GET":
            self.headers.append({name.decode(): value.decode("utf-8", "replace") for name, value in scope["headers"]})
            known = scope["path"].endswith("/v1/models")
            listed = {"object": "list", "data": [{"id": "m", "object": "model", "created": 7, "owned_by": "x"}]}
            one = {"id": scope["path"].partition("/models/")[2], "object": "model", "created": 7, "owned_by": "x"}
            if one["id"] == "moved":
                await respond(send, 307, {}, [(b"location", b"http://169.254.169.254/")])
            else:
                await respond(send, 200 if known or one["id"] else 404, listed if known else one)
            return
        body = json.loads(raw)
        self.bodies.append(body)
        self.headers.append({name.decode(): value.decode("utf-8", "replace") for name, value in scope["headers"]})
        said = body["messages"][-1]["content"]
        if said == "needs-top" and not body.get("top_logprobs"):  # as llama.cpp's server
            body["logprobs"] = False
        refused = said.startswith("refuses-logprobs") and body.get("logprobs")
        if refused or (said == "refuses-top" and "top_logprobs" in body):
            status = int(said.removeprefix("refuses-logprobs").lstrip("-") or 400) if refused else 400
            await respond(send, status, {"error": {"message": "logprobs are not supported", "code": "unsupported"}})
        elif said == "redirect":
            await respond(send, 307, {}, [(b"location", b"http://169.254.169.254/")])
        elif said == "nan":
            await respond(send, 200, b'{"choices": [], "x": NaN}')
        elif body.get("stream"):
            await self._stream(body, said, receive, send)
        else:
            more = [(b"x-request-id", b"up-1")] * (said != "no-id")
            more += [(b"apim-request-id", b"gate-1"), (b"set-cookie", b"a=b"), (b"x-ratelimit-limit-requests", b"9")]
            more += [(b"openai-organization", "Müller – GmbH".encode())] * (said == "odd-header")
            await respond(send, 200, completion(body), more)

    async def _stream(self, body: dict[str, Any], said: str, receive: Receive, send: Send) -> None:
        await send(_start(200, b"text/event-stream"))
        gone = asyncio.ensure_future(receive()) if said == "steps" else None
        for chunk in chunks(body):
            if gone is not None:
                step = asyncio.ensure_future(asyncio.to_thread(self.go_on.acquire, timeout=20))
                await asyncio.wait({step, gone}, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    self.closed.set()
                    self.go_on.release()  # the thread that waits for it
                    await step
                    return
                if not step.result():  # the test has failed, and the server must still end within its time
                    return
                self.sent += 1
            event = b": still here\n\n" * (said == "comments") + server_sent(chunk)
            for part in [event[:7], event[7:]] if said == "torn" else [event]:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        if gone is not None:
            gone.cancel()
        end = {"no-done": b"", "half": b'data: {"id": "c-', "no-blank-line": b'data: {"choices": []}'}
        await send({"type": "http.response.body", "body": end.get(said, b"data: [DONE]\n\n")})


def completion(body: dict[str, Any]) -> dict[str, Any]:
    """The whole answer to a request: one choice with all tokens, each further one with a token fewer."""
    choices = []
    for index in range(body.get("n") or 1):
        entries = [entry(body, token, logprob) for token, logprob in TOKENS[: len(TOKENS) - index]]
        logprobs = bool(body.get("logprobs"))
        choices.append(answer_choice(entries, logprobs=logprobs, index=index, odd=12345678901234567890123))
    usage = {"prompt_tokens": 3, "completion_tokens": len(TOKENS), "total_tokens": 3 + len(TOKENS)}
    return chat_completion(*choices, model=body["model"], id="c-1", created=7, usage=usage, x_vendor={"a": 1e-30})


def chunks(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same answer as chunks."""
    *pieces, usage = chunks_of(completion(body | {"logprobs": True}), logprobs=bool(body.get("logprobs")))
    yield from pieces
    if (body.get("stream_options") or {}).get("include_usage"):
        yield usage


def entry(body: dict[str, Any], token: str, logprob: float) -> dict[str, Any]:
    top = [{"token": f"t{j}", "logprob": logprob - 4 * j, "bytes": None} for j in range(body.get("top_logprobs") or 0)]
    return token_entry(token, logprob, top)


def _start(status: int, kind: bytes, more: Sequence[tuple[bytes, bytes]] = ()) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", kind), *more]}
