"""One owner asks the upstream and closes its answer: whatever goes wrong between, no connection stays behind."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import openai
import pytest
import serving_clients
from chat_completions import server_sent
from served import KEY, chunks, completion, running
from serving_clients import PLAIN, Served

from metaprobe.production.http import endpoints
from metaprobe.production.http.app import create_app
from metaprobe.production.http.settings import Settings

callers_keys = serving_clients.callers_keys
checkpoint = serving_clients.checkpoint

OTHER_KEY = "another-key-of-this-test"
WATCHED = ("exchange.py", "proxy.py", "upstream.py", "streamed_answer.py")
"""The files of which each line that runs for a request fails once."""
CLOSERS = {("upstream.py", "asking"), ("upstream.py", "close")}
"""Functions that do the closing; they cannot be asked to survive it."""


class CountingUpstream:
    """Answers and says how many connections are open.

    A stream that is `endless` has no end but its caller's; one that is `cut` lacks [DONE] and the end of its chunks.
    """

    def __init__(self, *, endless: bool = False, cut: bool = False) -> None:
        self.endless, self.cut = endless, cut
        self.asked = 0
        self.open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                body = json.loads(await reader.readexactly(int(length.partition(b":")[2])))
                self.asked += 1
                await self._answer(head.split(b" ")[1].decode(), body, writer)
                if body.get("stream") and self.endless:
                    await reader.read()  # until its caller closes it
                if self.endless or self.cut:
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.open.discard(writer)
            writer.close()

    async def _answer(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        body = {"messages": [], **body}
        if not body.get("stream"):
            whole = json.dumps(completion(body)).encode()
            head = b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(whole)
            writer.write(head + whole)
        else:
            writer.write(b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            ends = [] if self.endless or self.cut else ["[DONE]"]
            for event in map(server_sent, [*chunks(body), *ends]):
                writer.write(b"%x\r\n" % len(event) + event + b"\r\n")
            if not self.endless and not self.cut:
                writer.write(b"0\r\n\r\n")
        await writer.drain()


@contextmanager
def counting(*, endless: bool = False, cut: bool = False) -> Iterator[tuple[CountingUpstream, str]]:
    """The upstream in a thread of its own, and its base URL."""
    told, begun, ports = CountingUpstream(endless=endless, cut=cut), threading.Event(), []
    ending = asyncio.Event()

    async def serve() -> None:
        ports.append(asyncio.get_running_loop())
        server = await asyncio.start_server(told.serve, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        begun.set()
        await ending.wait()
        server.close()
        for writer in list(told.open):
            writer.transport.abort()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert begun.wait(20)
    try:
        yield told, f"http://127.0.0.1:{ports[1]}/v1"
    finally:
        ports[0].call_soon_threadsafe(ending.set)
        thread.join(timeout=20)


def until(done: Any, seconds: float = 20.0) -> bool:
    """Whether that becomes true in time."""
    waiting = threading.Event()
    for _ in range(int(seconds * 100)):
        if done():
            return True
        waiting.wait(0.01)
    return bool(done())


REQUESTS = [
    ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "a"}]}),
    ("/v1/completions", {"model": "m", "prompt": "a", "logprobs": 1}),
    ("/v1/responses", {"model": "m", "input": "a"}),
    ("/v1/embeddings", {"model": "m", "input": "a"}),
]


def test_what_refuses_a_request_does_so_before_the_upstream_is_asked(checkpoint: Path, tmp_path: Path) -> None:
    too_many = ",".join(f"t{i}=1" for i in range(17))
    with counting(endless=True) as (told, url):
        settings = Settings(checkpoint=checkpoint, upstream=url, log=str(tmp_path / "scores.sqlite"))
        with running(create_app(settings)) as (base, _):
            client = Served(base)
            for (path, asked), tags, stream in product(REQUESTS[:3], ("no tag", "a=b=c", too_many), (False, True)):
                answer = client.post(path, {**asked, "stream": stream}, x_metaprobe_tags=tags)
                assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_tags"), (path, tags)
    assert told.asked == 0
    assert not told.open


class Breaker:
    """Raises at the first watched line that runs for a request and has not raised for an earlier request."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        """The lines that have raised, as `FILE:NUMBER`."""
        self.where = ""
        """The line that raised in this request; empty as long as there is none."""
        self.begun = False
        """Whether the upstream has answered this request; lines before that do not raise."""

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        """Is called by the interpreter for each function, and then for each line of a watched function."""
        if not self._watches(frame):
            return None
        line = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        if event == "line" and self.begun and not self.where and line not in self.broken:
            self.where = line
            self.broken.add(line)
            raise MemoryError("as planned")
        return self.trace

    def _watches(self, frame: FrameType) -> bool:
        code = frame.f_code
        name = code.co_filename.rpartition("/")[2]
        return "production/http" in code.co_filename and name in WATCHED and (name, code.co_name) not in CLOSERS

    def breaking(self, app: Any) -> Any:
        """Returns the app with this breaker in the task of each request."""

        async def answered(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                sys.settrace(self.trace)
            await app(scope, receive, send)

        return answered

    def begin(self) -> None:
        """Looks at the next request."""
        self.begun, self.where = False, ""  # in this order: the request before may still be ending


@pytest.fixture
def breaker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Breaker]:
    """Begins to look at lines once the upstream has answered."""
    from metaprobe.production.http import upstream

    breaker = Breaker()
    made = upstream.UpstreamAnswer.__init__

    def noted(self: Any, *given: Any) -> None:
        made(self, *given)
        breaker.begun = True

    monkeypatch.setattr(upstream.UpstreamAnswer, "__init__", noted)
    return breaker


MOST_REQUESTS = 600
"""More than there are lines between asking and closing."""


def read_answer(url: str, body: bytes, headers: dict[str, str]) -> None:
    """Reads an answer, whatever its status, until it ends, fails, or says `stop`: a stream without an end is left."""
    with suppress(httpx.HTTPError), httpx.stream("POST", url, content=body, headers=headers, **PLAIN) as answer:
        for line in answer.iter_lines():
            if line.startswith("data:") and '"stop"' in line:
                break


@pytest.mark.parametrize(
    ("path", "asked", "stream"),
    [
        (*REQUESTS[0], False),
        (*REQUESTS[0], True),
        pytest.param(*REQUESTS[1], False, marks=pytest.mark.slow),
        pytest.param(*REQUESTS[1], True, marks=pytest.mark.slow),
        (*REQUESTS[3], False),
    ],
)
def test_a_fault_at_any_step_after_the_upstream_was_asked_leaves_no_connection_and_counts(
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    breaker: Breaker,
    path: str,
    asked: dict[str, Any],
    stream: bool,
) -> None:
    """Asks again and again. In each request the next line between asking and closing raises, until none is left.

    A stream would go on for ever if nobody closed it, so a connection that stays open is a line that forgot to close.
    """
    monkeypatch.setenv("METAPROBE_API_KEY", KEY)
    with counting(endless=stream) as (told, url):
        settings = Settings(checkpoint=checkpoint, upstream=url, key_in_flight=1)

        with running(breaker.breaking(create_app(settings))) as (base, _):
            body = json.dumps({**asked, "stream": stream, "max_tokens": 2}).encode()
            headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
            for _ in range(MOST_REQUESTS):
                breaker.begin()
                read_answer(f"{base}{path}", body, headers)
                kept_open = 0 if stream else 1  # an answer that is read whole may leave its connection for the next
                assert until(lambda: len(told.open) <= kept_open), f"{breaker.where} leaves a connection"  # noqa: B023
                if not breaker.where:  # every line has raised once
                    break
            counted = httpx.get(f"{base}/openapi.json", headers=headers, **PLAIN)
            assert counted.status_code == 200, "a request that failed no longer counts as being answered"
        assert told.asked <= len(breaker.broken) + 1, "a request that fails is not asked again"
    assert len(breaker.broken) > 8


def test_a_request_that_fails_after_the_upstream_was_asked_counts_toward_the_limits(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAPROBE_API_KEY", KEY)
    monkeypatch.setattr("metaprobe.production.http.exchange.to_caller", lambda headers: 1 / 0)
    with counting(endless=True) as (told, url):
        settings = Settings(checkpoint=checkpoint, upstream=url, key_per_minute=3, key_in_flight=1)
        with running(create_app(settings)) as (base, _):
            asked = {**REQUESTS[1][1], "stream": True}
            statuses = [Served(base).post("/v1/completions", asked).status_code for _ in range(5)]
            assert until(lambda: not told.open)
    assert statuses == [500, 500, 500, 429, 429]
    assert told.asked == 3


def test_a_stream_that_is_cut_between_the_verdict_and_its_end_ends_with_an_error(checkpoint: Path) -> None:
    asked = {**REQUESTS[0][1], "stream": True, "stream_options": {"include_usage": True}}
    with (
        counting(cut=True) as (_, url),
        running(create_app(Settings(checkpoint=checkpoint, upstream=url))) as (base, _),
    ):
        content = Served(base).post("/v1/chat/completions", asked).text
        *_, verdict, usage, error = (json.loads(event[6:]) for event in content.strip().split("\n\n"))
        with pytest.raises(openai.APIError, match="before its answer was whole"):
            list(Served(base).chat(stream=True, stream_options={"include_usage": True}))
    assert verdict["metaprobe"]["score"] is not None
    assert usage["usage"]
    assert error["error"]["code"] == "upstream_cut"
    assert "metaprobe" not in error
    assert "[DONE]" not in content


def test_nothing_but_the_exchange_second_answers_and_the_list_of_models_asks_the_upstream() -> None:
    """So that the tests above are of all that asks; the chooser's are in `test_serving_choosing`, those of second
    answers in `test_teach_rate`."""
    folder = Path(endpoints.__file__).parent
    asking = {file.name for file in folder.glob("*.py") if ".asking(" in file.read_text()}
    assert asking == {"exchange.py", "proxy.py", "second_answer.py"}
