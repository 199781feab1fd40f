"""An upstream's answers are input too: bounded, read off the event loop, and never at the cost of other callers' turns.

Nothing here measures time. Counted are verdicts, rows of the log, bytes, and the threads in which work is done.
"""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import serving_clients
from chat_completions import server_sent
from hypothesis import given
from hypothesis import strategies as st
from served import KEY, answering, running
from serving_clients import LOGPROBS, Served, serving
from starlette.types import Receive, Scope, Send

from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.verdict import Verdict
from metaprobe.production.dashboard import routes
from metaprobe.production.http import bodies, decisions
from metaprobe.production.http.app import create_app
from metaprobe.production.http.bodies import LOOP_BYTES, Busy, FairThreads, Lease
from metaprobe.production.http.completion_json import MAX_CHOICES, choices_of, read_chat
from metaprobe.production.http.exchange import REASON_HEADER
from metaprobe.production.http.judges import Scorer
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.settings import Settings
from metaprobe.production.http.streamed_answer import EventSplitter, FirstEvent, ScoredStream
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.production.monitoring.tables import LogUnavailable, Tables

checkpoint = serving_clients.checkpoint
predictor = serving_clients.predictor
callers_keys = serving_clients.callers_keys
upstream = serving_clients.upstream


class Says:
    """An upstream that answers every request with the bytes that it is given."""

    def __init__(self) -> None:
        self.body, self.stream, self.announces = b"{}", False, False

    @answering
    async def __call__(self, scope: Scope, raw: bytes, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream" if self.stream else b"application/json")]
        headers += [(b"content-length", str(len(self.body)).encode())] * self.announces
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class Watched:
    """A predictor that notes in which thread it is asked."""

    input_kind = QualityPredictor.input_kind

    def __init__(self, predictor: QualityPredictor) -> None:
        self.parse = predictor.parse
        self.checkpoint, self.schema, self._predictor = predictor.checkpoint, predictor.schema, predictor
        self.threads: list[str] = []

    def predict(self, response: Any) -> Verdict:
        self.threads.append(threading.current_thread().name)
        return self._predictor.predict(response)

    @property
    def only_in_workers(self) -> bool:
        return bool(self.threads) and all(name.startswith("metaprobe-") for name in self.threads)


class Hostile:
    """A server with a log before an upstream that says anything."""

    def __init__(self, says: Says, watched: Watched, client: Served, log: Path) -> None:
        self.says, self.watched, self.client, self.log = says, watched, client, log

    def answer(self, body: bytes, *, stream: bool = False, **more: Any) -> httpx.Response:
        """The answer to a caller, of an upstream that says this."""
        self.says.body, self.says.stream = body, stream
        self.watched.threads.clear()
        return self.client.ask(more={"stream": stream, **more})

    def rows(self) -> int:
        with ScoreLog.open(self.log, entries=False) as log:
            return len(log.columns())


@contextmanager
def hostile(predictor: QualityPredictor, checkpoint: Path, folder: Path, **settings: Any) -> Iterator[Hostile]:
    says, watched, log = Says(), Watched(predictor), folder / "scores.sqlite"
    with running(says) as (url, _):
        given = Settings(checkpoint=checkpoint, upstream=f"{url}/v1", log=str(log), **settings)
        with running(create_app(given, predictor=watched)) as (own, _):  # type: ignore[arg-type]
            yield Hostile(says, watched, Served(own), log)


def choice(text: str = " w" * len(LOGPROBS), logprobs: Any = LOGPROBS, **more: Any) -> dict[str, Any]:
    entries = [{"token": " w", "logprob": value, "bytes": [32, 119], "top_logprobs": []} for value in logprobs]
    said = {"role": "assistant", "content": text}
    return {"index": 0, "message": said, "logprobs": {"content": entries}, "finish_reason": "stop", **more}


def completion(*choices: Any) -> bytes:
    return json.dumps({"id": "c", "model": "m", "choices": choices}).encode()


HONEST = completion(choice())


# Choices


@pytest.mark.parametrize(
    ("body", "count"),
    [
        pytest.param(completion(*[choice(index=n) for n in range(2048)]), 2048, id="n is 2048"),
        pytest.param(b'{"choices":[' + b"{}," * 100_000 + b"{}]}", 100_001, id="300 KB of objects"),
        pytest.param(b'{"choices":[' + b"[]," * 340_000 + b"[]]}", 340_001, id="1 MB of lists"),
        pytest.param(b'{"choices":[' + b"7," * 3000 + b"7]}", 3001, id="few bytes, many choices"),
    ],
)
def test_of_many_choices_the_first_are_scored_in_a_thread_and_one_row_stands_for_the_rest(
    predictor: QualityPredictor, checkpoint: Path, tmp_path: Path, body: bytes, count: int
) -> None:
    read: list[str] = []
    with hostile(predictor, checkpoint, tmp_path) as server, pytest.MonkeyPatch.context() as patch:
        verdict_of = Scorer.verdict

        def noted(self: Scorer, *given: Any, **named: Any) -> dict[str, Any]:
            read.append(threading.current_thread().name)
            return verdict_of(self, *given, **named)

        patch.setattr(Scorer, "verdict", noted)
        answer = server.answer(body)
    told = answer.json()["metaprobe"]
    assert len(answer.json()["choices"]) == count, "the caller gets every choice"
    assert (len(read), len(told["choices"])) == (MAX_CHOICES, MAX_CHOICES + 1)
    assert all(name.startswith("metaprobe-") for name in read)
    assert f"choices 128 to {count - 1} are not scored" in told["reason"]
    assert server.rows() == MAX_CHOICES + 1
    assert len(answer.content) < 2 * len(body) + (1 << 17)


def test_what_stands_beside_many_choices_is_not_copied_for_each() -> None:
    held = {"model": "m", "beside": "x" * (1 << 20), "choices": [choice(index=n) for n in range(3)]}
    choices, count = choices_of(json.dumps(held).encode())
    assert count == 3
    assert all(len(one) < 1 << 12 and json.loads(one)["model"] == "m" for one in choices)


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(b'{"choices":[' + b"{}," * 300_000 + b"{}]}", id="900 KB of objects"),
        pytest.param(
            json.dumps({"choices": [{"index": n, "delta": {"content": "a"}} for n in range(20_000)]}).encode(),
            id="900 KB of choices",
        ),
    ],
)
def test_a_streamed_event_of_many_choices_is_read_up_to_a_bound_and_in_a_thread(
    predictor: QualityPredictor, checkpoint: Path, tmp_path: Path, event: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[tuple[int, str]] = []
    feed = ScoredStream.feed

    def noted(self: ScoredStream, data: bytes, **more: Any) -> bytes:
        fed.append((len(data) + self.pending, threading.current_thread().name))
        return feed(self, data, **more)

    monkeypatch.setattr(ScoredStream, "feed", noted)
    body = b"data: " + event + b"\n\ndata: [DONE]\n\n"
    with hostile(predictor, checkpoint, tmp_path) as server:
        answer = server.answer(body, stream=True, logprobs=True, top_logprobs=1)
    assert answer.content.startswith(b"data: " + event)
    assert len(answer.content) < len(body) + (1 << 17)
    assert server.rows() <= MAX_CHOICES + 1
    assert all(name.startswith("metaprobe-") for size, name in fed if size > bodies.LOOP_BYTES)


def test_behind_the_first_event_of_a_stream_nothing_is_split_on_the_loop(
    predictor: QualityPredictor, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split: list[tuple[int, str]] = []
    feed = EventSplitter.feed

    def noted(self: EventSplitter, data: bytes) -> list[bytes]:
        split.append((len(data), threading.current_thread().name))
        return feed(self, data)

    monkeypatch.setattr(EventSplitter, "feed", noted)
    body = b": still here\n\n" * 20_000 + b"data: [DONE]\n\n"
    with hostile(predictor, checkpoint, tmp_path) as server:
        assert server.answer(body, stream=True).content.startswith(b": still here\n\n" * 20_000)
    assert split
    assert all(name.startswith("metaprobe-") for size, name in split if size > LOOP_BYTES)


@given(st.lists(st.sampled_from([b"data: x", b"\n", b"\r\n", b"\n\n", b": c", b"\r"])), st.integers(1, 5))
def test_the_first_event_ends_where_the_splitter_ends_it_however_the_bytes_are_torn(
    parts: list[bytes], size: int
) -> None:
    whole = b"".join(parts)
    first, splitter = FirstEvent(), EventSplitter()
    for start in range(0, len(whole), size):
        piece = whole[start : start + size]
        events, end = splitter.feed(piece), first.feed(piece)
        if events or end:
            assert first.received()[:end] == events[0]
            assert first.received() == whole[: start + size]
            break
    assert first.pending == len(first.received())


def test_choices_of_a_stream_beyond_the_bound_are_said_and_the_others_are_scored(
    predictor: QualityPredictor,
) -> None:
    stream = ScoredStream(
        Scorer(predictor, Metrics()), read_chat(b'{"logprobs":true,"top_logprobs":1,"n":200}'), max_bytes=9**9
    )
    for index in range(200):
        piece = {"index": index, "delta": {"content": " w w"}, "finish_reason": "stop"}
        entries = [{"token": " w", "logprob": value} for value in (-0.5, -0.25)]
        stream.feed(server_sent({"choices": [{**piece, "logprobs": {"content": entries}}]}))
    out = stream.feed(b"data: [DONE]\n\n")
    told = json.loads(out.split(b"\n\n")[0].removeprefix(b"data: "))["metaprobe"]
    assert len(told["choices"]) == MAX_CHOICES + 1
    assert "choices 128 to 199 are not scored" in told["reason"]


# Where too much waits


class Full(FairThreads):
    """Threads that have no room."""

    async def run(self, work: Any, weight: int = 0, *, begun: bool = False) -> Any:
        raise Busy(503, "busy", "9 pieces of work wait to be read; try again in 5 s", {"retry-after": "5"})


LONG = completion(choice(" w" * 4000, [-0.5, -0.25] * 2000))


def test_an_answer_that_finds_no_thread_passes_as_it_came_and_says_why(
    predictor: QualityPredictor, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies.aside, "__defaults__", (Full("full"),))
    with hostile(predictor, checkpoint, tmp_path) as server:
        whole = server.answer(LONG)
        assert (whole.content, server.watched.threads) == (LONG, [])
        assert "not scored: 9 pieces of work wait" in whole.headers[REASON_HEADER]
        small = server.answer(HONEST)
        assert small.json()["metaprobe"]["score"] is not None, "small answers need no thread"
        events = b"data: " + LONG.replace(b'"message"', b'"delta"') + b"\n\ndata: [DONE]\n\n"
        streamed = server.answer(events, stream=True)
    assert streamed.content.startswith(events.partition(b"data: [DONE]")[0])
    assert b"not scored: 9 pieces of work wait" in streamed.content
    assert streamed.content.endswith(b"data: [DONE]\n\n")
    assert server.rows() == 3


def test_an_answer_for_which_there_is_no_memory_passes_as_it_came_and_says_why(
    predictor: QualityPredictor, checkpoint: Path, tmp_path: Path
) -> None:
    body = completion({"message": {"content": "x" * (2 << 20)}, "finish_reason": "stop"})
    with hostile(predictor, checkpoint, tmp_path, max_body_bytes=100_000) as server:
        answer = server.answer(body)
        assert answer.content == body
        assert "not scored" in answer.headers[REASON_HEADER]
        events = b"".join(b"data: " + LONG.replace(b'"message"', b'"delta"') + b"\n\n" for _ in range(8))
        streamed = server.answer(events + b"data: [DONE]\n\n", stream=True)
        assert b"not scored" in streamed.content
        assert server.answer(HONEST).json()["metaprobe"]["score"] is not None, "the memory is free again"
    assert server.rows() == 3


def test_an_answer_is_counted_as_often_as_it_is_held_and_not_kept_where_it_announces_too_much(
    predictor: QualityPredictor, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    hold = Lease.hold

    def noted(self: Lease, wanted: int, *, large: bool) -> None:
        counted.append(wanted)
        hold(self, wanted, large=large)

    monkeypatch.setattr(Lease, "hold", noted)
    body = completion({"message": {"content": "x" * (2 << 20)}, "finish_reason": "stop"})
    with hostile(predictor, checkpoint, tmp_path) as server:
        assert "metaprobe" in server.answer(body).json()
    assert max(counted) >= 3 * len(body), "as it came, as text, and with the verdict"
    counted.clear()
    with hostile(predictor, checkpoint, tmp_path, max_body_bytes=250_000) as server:
        server.says.announces = True
        answer = server.answer(body)
        assert answer.content == body
        assert "not scored" in answer.headers[REASON_HEADER]
        assert server.answer(HONEST).json()["metaprobe"]["score"] is not None, "the memory is free again"
    of_answers = [wanted for wanted in counted if wanted > 4096]
    assert set(of_answers) == {3 * len(body)}, "it was refused by what it announced, before any of it was kept"


def test_a_long_answer_is_scored_in_a_thread_and_a_short_one_on_the_loop(
    predictor: QualityPredictor, checkpoint: Path, tmp_path: Path
) -> None:
    entries = [{"token": " w", "logprob": value, "bytes": [32, 119]} for value in (-0.5, -0.25) * 400]
    piece = {"index": 0, "delta": {"content": " w"}, "finish_reason": None}
    chunks = [{"choices": [{**piece, "logprobs": {"content": [entry]}}]} for entry in entries]
    events = b"".join(map(server_sent, chunks))
    events += b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    with hostile(predictor, checkpoint, tmp_path) as server:
        for body, stream in ((LONG, False), (events, True)):
            answer = server.answer(body, stream=stream, logprobs=True, top_logprobs=1)
            assert b'"metaprobe"' in answer.content
            assert server.watched.only_in_workers, server.watched.threads
        server.answer(HONEST)
        assert not server.watched.only_in_workers


def test_a_stream_of_128_tokens_is_read_at_once_and_its_end_reads_nothing_again(predictor: QualityPredictor) -> None:
    top = [{"token": " v", "logprob": -3.5, "bytes": [32, 118]}, {"token": " u", "logprob": -4.5, "bytes": None}]
    entries = [
        {"token": " w", "logprob": -0.5 - n % 7 / 8, "bytes": [32, 119], "top_logprobs": top} for n in range(128)
    ]
    ends = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    choices = [{**ends, "delta": {"content": " w"}, "logprobs": {"content": [entry]}} for entry in entries]
    choices = [*({**one, "finish_reason": None} for one in choices), ends]
    chunks = [{"id": "c", "created": 1, "model": "m", "choices": [one]} for one in choices]
    events = list(map(server_sent, chunks))
    assert sum(map(len, events)) > LOOP_BYTES, "with what stands around the tokens"
    stream = ScoredStream(Scorer(predictor, Metrics()), read_chat(b'{"model": "m", "messages": []}'), max_bytes=1 << 20)
    for event in events:
        stream.feed(event, max_reread=LOOP_BYTES)
    assert b'"score":0.' in stream.feed(b"data: [DONE]\n\n", max_reread=LOOP_BYTES)
    assert (stream.waiting_bytes, stream.bytes_at_end) == (0, 0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/score", {"model": "m", "choices": [choice(" w" * 4000, [-0.5] * 4000)]}),
        ("/v1/score", {"responses": [[-0.5, -0.25] * 1000] * 10}),
        ("/v1/score", {"choices": [choice("other words " * 4000, [-0.5, -0.25] * 500)]}),
    ],
)
def test_large_requests_are_scored_in_threads_and_refused_with_a_time_where_too_much_waits(
    predictor: QualityPredictor, checkpoint: Path, path: str, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    verdict_of = Scorer.verdict

    def noted(self: Scorer, *given: Any) -> dict[str, Any]:
        read.append(threading.current_thread().name)
        return verdict_of(self, *given)

    monkeypatch.setattr(Scorer, "verdict", noted)
    with serving(checkpoint) as client:
        client.post(path, body)
        assert read
        assert all(name.startswith("metaprobe-requests") for name in read)
        monkeypatch.setattr(FairThreads, "run", Full.run)
        refused = client.post(path, body)
        assert client.post("/v1/score", LOGPROBS).status_code == 200, "small ones need no thread"
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
    assert int(refused.headers["retry-after"]) > 0


def test_decisions_are_read_in_a_thread(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    read_request = decisions.read_request

    def noted(body: bytes) -> Any:
        read.append(threading.current_thread().name)
        return read_request(body)

    monkeypatch.setattr(decisions, "read_request", noted)
    question = {"type": "predicate", "name": "correct", "instructions": "Is it right?"}
    body = {"model": "m", "input": "x" * 500_000, "questions": [question]}
    with serving(checkpoint) as client:
        assert client.post("/v1/decisions", body).status_code == 200
    assert [name.startswith("metaprobe-requests") for name in read] == [True]


# Numbers outside JSON


def test_a_number_outside_json_is_the_fault_of_its_choice_alone(
    predictor: QualityPredictor, checkpoint: Path, tmp_path: Path
) -> None:
    body = completion(choice(), choice(logprobs=[-0.5, float("nan"), -0.25]), choice())
    assert b"NaN" in body
    with hostile(predictor, checkpoint, tmp_path) as server:
        for number in (b"NaN", b"1e999", b"-Infinity"):
            answer = server.answer(body.replace(b"NaN", number), logprobs=True, top_logprobs=1)
            told = answer.json()["metaprobe"]["choices"]
            assert [one["score"] is None for one in told] == [False, True, False], number
            assert told[1]["reason"]
            assert number in answer.content, "what is passed on is as it came"
        hidden = server.answer(body)
        assert [one["logprobs"] for one in hidden.json()["choices"]] == [None] * 3


# Faults of other parts


def raw_answer(url: str, head: bytes) -> bytes:
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head)
        return connection.recv(65536)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.0\r\nhost: localhost\r\nHost: evil.example\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\nhost: localhost, evil.example\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\nhost: localhost evil.example\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", b"200"),
        (b"GET /healthz HTTP/1.0\r\n\r\n", b"200"),
    ],
)
def test_a_request_names_one_host(hosted: str, head: bytes, status: bytes) -> None:
    assert raw_answer(hosted, head).split()[1] == status


@pytest.fixture(scope="module")
def hosted(checkpoint: Path) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAPROBE_API_KEY", KEY)
        with serving(checkpoint) as client:
            yield client.url


@pytest.mark.parametrize("path", ["/dashboard/data", "/dashboard/queue"])
def test_a_log_that_cannot_be_read_is_503_with_a_time_and_no_internal_error(
    checkpoint: Path, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(checkpoint, log=str(tmp_path / "log.sqlite")) as client:

        def away(*_: object, **__: object) -> None:
            raise LogUnavailable("the database is away: host nobody-elses-business")

        for kind in Tables.__subclasses__():
            monkeypatch.setattr(kind, "read", away)
        answer = client.get(path, authorization=f"Bearer {KEY}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "log_unavailable")
    assert int(answer.headers["retry-after"]) > 0
    assert "nobody-elses-business" not in answer.text


def test_a_database_that_hangs_is_503_and_holds_no_thread_more_for_each_request(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back, looks = threading.Event(), []
    with serving(checkpoint, log=str(tmp_path / "log.sqlite")) as client:
        overview = routes.overview

        def hanging(*given: Any) -> dict[str, Any]:
            looks.append(given)
            assert back.wait(30)
            return overview(*given)

        monkeypatch.setattr(routes, "overview", hanging)
        monkeypatch.setattr(routes, "PAGE_LIMIT_S", 0.05)
        for _ in range(4):
            answer = client.get("/dashboard/data", authorization=f"Bearer {KEY}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "log_unavailable")
        assert len(looks) == 2, "two look at one time, and keep their turn"
        back.set()
        monkeypatch.setattr(routes, "PAGE_LIMIT_S", 30.0)
        assert client.get("/dashboard/data", authorization=f"Bearer {KEY}").status_code == 200


def test_a_tool_call_is_no_error_of_the_shadow(predictor: QualityPredictor) -> None:
    metrics = Metrics()
    scorer = Scorer(predictor, metrics, shadow=Scorer(predictor, metrics, role="shadow"))
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    told = scorer.verdict(completion({**choice(), "message": said, "finish_reason": "tool_calls"}))
    assert told["score"] is None
    assert 'metaprobe_errors_total{code="shadow"}' not in metrics.exposition().decode()
