"""Streams of the real openai client, watched: nothing is changed or lost, and there is a verdict at the end."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from faulty_server import FaultyServer
from served import TOKENS, Upstream, running, small_checkpoint

from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import InvalidResponse
from metaprobe.serving.scored import Scored
from metaprobe.serving.watch import AsyncWatchedStream, WatchedStream, watch
from metaprobe.training.methods import Evidence

LOGPROBS = [logprob for _, logprob in TOKENS]
TEXT = "".join(token for token, _ in TOKENS)


@pytest.fixture(scope="module")
def predictor(evidence: Evidence, tmp_path_factory: pytest.TempPathFactory) -> QualityPredictor:
    return QualityPredictor(small_checkpoint(tmp_path_factory.mktemp("checkpoints") / "quality", evidence))


@pytest.fixture(scope="module")
def upstream() -> Iterator[tuple[Upstream, str]]:
    told = Upstream()
    with running(told) as (url, _):
        yield told, f"{url}/v1"


@pytest.fixture
def client(upstream: tuple[Upstream, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=upstream[1], api_key="k", max_retries=0, timeout=20) as client:
        yield client


def ask(client: Any, said: str = "plain", **more: Any) -> Any:
    """A stream, or what is to be awaited for one."""
    options = {"model": "m", "messages": [{"role": "user", "content": said}], "stream": True, "logprobs": True} | more
    return client.chat.completions.create(**options)


class FakeGate:
    """Says `action` from the token `at` on."""

    score = 0.125

    def __init__(self, at: int, action: str = "stop") -> None:
        self.at, self.action = at, action
        self.pushed: list[tuple[float, Any]] = []
        self.started_for: list[str] = []

    def start(self, *, model: str = "") -> "FakeGate":
        self.started_for.append(model)
        return self

    def push(self, logprob: float, top: Any = None) -> str:
        self.pushed.append((logprob, top))
        return self.action if len(self.pushed) >= self.at else "continue"

    @property
    def tokens_seen(self) -> int:
        return len(self.pushed)

    @property
    def fired_at(self) -> int | None:
        return self.at if len(self.pushed) >= self.at else None


class Startless:
    """A gate that was started already."""

    def __init__(self, gate: FakeGate) -> None:
        self._gate = gate
        self.push, self.score = gate.push, gate.score

    @property
    def tokens_seen(self) -> int:
        return self._gate.tokens_seen

    @property
    def fired_at(self) -> int | None:
        return self._gate.fired_at


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


# Without a gate


def test_every_chunk_passes_untouched_and_the_verdict_is_that_of_the_whole_answer(
    client: openai.OpenAI, predictor: QualityPredictor
) -> None:
    unwatched = [chunk.model_dump() for chunk in ask(client)]
    chunks = list(watched := watch(ask(client), predictor))
    assert [chunk.model_dump() for chunk in chunks] == unwatched
    assert isinstance(chunks[0], openai.types.chat.ChatCompletionChunk)
    assert watched.verdict == predictor.predict(LOGPROBS)
    assert (watched.action, watched.tokens_seen, watched.reason) == ("continue", len(TOKENS), "")
    assert watched.scored is not None
    assert (watched.scored.response_id, watched.scored.model) == ("c-1", "m")
    assert list(watched) == []  # it has ended


def test_a_finished_response_scores_as_its_stream(client: openai.OpenAI, predictor: QualityPredictor) -> None:
    whole = ask(client, stream=False)
    before = whole.model_dump()
    list(watched := watch(ask(client), predictor))
    assert predictor.predict(whole) == watched.verdict
    assert whole.model_dump() == before


def test_chunks_come_as_the_server_sends_them(
    client: openai.OpenAI, upstream: tuple[Upstream, str], predictor: QualityPredictor
) -> None:
    told = upstream[0]
    told.begin()
    watched = watch(ask(client, "steps"), predictor)
    for token, _ in TOKENS:
        told.go_on.release()  # the server sends the next token only now
        assert text_of([next(watched)]) == token
        assert watched.verdict is None
    told.go_on.release()
    assert len(list(watched)) == 1
    assert watched.verdict == predictor.predict(LOGPROBS)


def test_the_async_client_is_watched_alike(upstream: tuple[Upstream, str], predictor: QualityPredictor) -> None:
    handed: list[Scored] = []

    async def take(scored: Scored) -> None:
        await asyncio.sleep(0)
        handed.append(scored)

    async def run() -> AsyncWatchedStream[Any]:
        async with openai.AsyncOpenAI(base_url=upstream[1], api_key="k", max_retries=0, timeout=20) as client:
            chunks = []
            async for chunk in (watched := watch(await ask(client), predictor, on_verdict=take)):
                chunks.append(chunk)
            assert text_of(chunks) == TEXT
            assert [chunk async for chunk in watched] == []
            return watched

    watched = asyncio.run(run())
    assert watched.verdict == predictor.predict(LOGPROBS)
    assert handed == [watched.scored]


def test_openais_own_streaming_helper_is_watched_too(client: openai.OpenAI, predictor: QualityPredictor) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "plain"}], "logprobs": True}
    with client.chat.completions.stream(**asked) as stream:
        watched = watch(stream, predictor)
        kinds = {event.type for event in watched}
        assert {"chunk", "content.delta"} <= kinds
        assert watched.get_final_completion().choices[0].message.content == TEXT  # its own methods are there
    assert watched.verdict == predictor.predict(LOGPROBS)
    assert watched.tokens_seen == len(TOKENS)


def test_of_several_answers_the_first_is_followed(client: openai.OpenAI, predictor: QualityPredictor) -> None:
    list(watched := watch(ask(client, n=2), predictor))
    assert watched.verdict == predictor.predict(LOGPROBS)


# With a gate


@pytest.mark.parametrize("action", ["stop", "escalate"])
def test_the_gate_ends_the_stream_and_the_server_is_told(
    client: openai.OpenAI, upstream: tuple[Upstream, str], predictor: QualityPredictor, action: str
) -> None:
    told, gate, handed = upstream[0], FakeGate(3, action), []
    told.begin()
    for _ in range(3):
        told.go_on.release()
    chunks = list(watched := watch(ask(client, "steps"), predictor, gate, on_verdict=handed.append))
    assert told.closed.wait(timeout=20)
    assert told.sent == 3
    assert text_of(chunks) == "".join(token for token, _ in TOKENS[:3])  # the deciding chunk is not withheld
    assert (watched.action, watched.tokens_seen, gate.started_for) == (action, 3, ["m"])
    assert gate.pushed == [(logprob, None) for logprob in LOGPROBS[:3]]
    assert watched.verdict is not None
    assert (watched.verdict.score, watched.verdict.flagged) == (gate.score, True)
    assert "3 tokens" in watched.reason
    assert handed == [watched.scored]


def test_the_gate_ends_an_async_stream(upstream: tuple[Upstream, str], predictor: QualityPredictor) -> None:
    told = upstream[0]
    told.begin()
    told.go_on.release()
    told.go_on.release()

    async def run() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=upstream[1], api_key="k", max_retries=0, timeout=20) as client:
            watched = watch(await ask(client, "steps"), predictor, FakeGate(2))
            return text_of([chunk async for chunk in watched]), watched.action

    assert asyncio.run(run()) == ("".join(token for token, _ in TOKENS[:2]), "stop")
    assert told.closed.wait(timeout=20)


def test_a_gate_that_never_fires_changes_nothing_and_sees_the_alternatives(
    client: openai.OpenAI, predictor: QualityPredictor
) -> None:
    gate = FakeGate(99)
    chunks = list(watched := watch(ask(client, top_logprobs=2), predictor, gate))
    assert text_of(chunks) == TEXT
    assert gate.pushed == [(logprob, [logprob, logprob - 1]) for logprob in LOGPROBS]
    assert watched.verdict == predictor.predict(LOGPROBS)


def test_a_gate_that_was_started_already_is_used_as_it_is(client: openai.OpenAI, predictor: QualityPredictor) -> None:
    gate = FakeGate(2)
    list(watched := watch(ask(client), predictor, Startless(gate)))
    assert (watched.action, watched.tokens_seen, gate.started_for) == ("stop", 2, [])


def test_a_gate_that_cannot_judge_lets_the_answer_pass(client: openai.OpenAI, predictor: QualityPredictor) -> None:
    class Refuses(FakeGate):
        def push(self, logprob: float, top: Any = None) -> str:
            raise InvalidResponse("no log-probability")

    assert text_of(list(watched := watch(ask(client), predictor, Refuses(1)))) == TEXT
    assert watched.verdict == predictor.predict(LOGPROBS)


# What goes wrong


def test_without_logprobs_there_is_a_reason_and_no_exception(
    client: openai.OpenAI, predictor: QualityPredictor
) -> None:
    gate, handed = FakeGate(1), []
    chunks = list(watched := watch(ask(client, logprobs=False), predictor, gate, on_verdict=handed.append))
    assert text_of(chunks) == TEXT
    assert watched.verdict is None
    assert "logprobs=True" in watched.reason
    assert (watched.action, watched.tokens_seen, gate.pushed) == ("continue", 0, [])
    assert handed == [watched.scored]


@pytest.fixture(scope="module")
def faulty() -> Iterator[openai.OpenAI]:
    with FaultyServer() as server, openai.OpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client:
        yield client


def test_a_log_probability_that_is_none_costs_the_verdict_only(
    faulty: openai.OpenAI, predictor: QualityPredictor
) -> None:
    chunks = list(watched := watch(ask(faulty, "q: bad-logprobs"), predictor, FakeGate(99)))
    assert text_of(chunks) == " w0 w1 w2 w3"
    assert watched.verdict is None
    assert "token 1" in watched.reason


def test_an_error_of_the_stream_passes_through_and_is_the_reason(
    faulty: openai.OpenAI, predictor: QualityPredictor
) -> None:
    handed: list[Scored] = []
    watched = watch(ask(faulty, "q: cut"), predictor, on_verdict=handed.append)
    assert text_of([next(watched) for _ in range(3)]) == " w0 w1"
    with pytest.raises((openai.APIConnectionError, httpx.TransportError)):  # openai 3, and 2
        next(watched)
    assert watched.verdict is None
    assert "after 2 tokens" in watched.reason
    assert handed == [watched.scored]


def test_a_stream_that_ends_early_is_scored_with_a_word_of_caution(
    faulty: openai.OpenAI, predictor: QualityPredictor
) -> None:
    lenient = QualityPredictor(predictor.checkpoint, on_mismatch="ignore")  # the server answers as another model
    list(watched := watch(ask(faulty, "q: ends-early"), lenient))
    assert watched.verdict is not None
    assert "cut" in watched.reason


def test_an_error_of_the_caller_passes_through_and_the_connection_is_closed(
    client: openai.OpenAI, upstream: tuple[Upstream, str], predictor: QualityPredictor
) -> None:
    told = upstream[0]
    told.begin()
    told.go_on.release()
    watched = watch(ask(client, "steps"), predictor)

    def mine() -> None:
        with watched:
            for _ in watched:
                raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        mine()
    assert told.closed.wait(timeout=20)
    assert watched.verdict is None
    assert "before its end, after 1 tokens" in watched.reason


def test_leaving_the_block_after_the_end_keeps_the_verdict(client: openai.OpenAI, predictor: QualityPredictor) -> None:
    handed: list[Scored] = []
    with watch(ask(client), predictor, on_verdict=handed.append) as watched:
        assert watched.response.status_code == 200  # attributes of openai's stream
        assert text_of(list(watched)) == TEXT
    assert watched.response.is_closed
    assert watched.verdict == predictor.predict(LOGPROBS)
    assert len(handed) == 1


def test_a_scoring_that_fails_is_logged_and_costs_the_caller_nothing(
    client: openai.OpenAI,
    predictor: QualityPredictor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(predictor, "predict", broken)
    assert text_of(list(watched := watch(ask(client), predictor))) == TEXT
    assert "ZeroDivisionError" in watched.reason
    assert "planted" in caplog.text


# The Responses API, whose events come from a server of the same kind


EVENTS: list[dict[str, Any]] = [
    {"type": "response.created", "response": {"id": "r-1", "object": "response", "model": "m", "output": []}},
    *(
        {
            "type": "response.output_text.delta",
            "output_index": 0,
            "content_index": 0,
            "item_id": "i",
            "delta": token,
            "logprobs": [{"token": token, "logprob": logprob, "top_logprobs": [{"token": "t", "logprob": logprob}]}],
        }
        for token, logprob in TOKENS
    ),
]
PART = {
    "type": "output_text",
    "text": TEXT,
    "annotations": [],
    "logprobs": [{"token": t, "logprob": p, "bytes": [], "top_logprobs": []} for t, p in TOKENS],
}
MESSAGE = {"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": [PART]}
COMPLETED = {
    "type": "response.completed",
    "response": {"id": "r-1", "object": "response", "model": "m", "status": "completed", "output": [MESSAGE]},
}


async def responses_server(scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    if scope["type"] == "lifespan":
        return
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message.get("more_body"):
            break
    streamed = bool(json.loads(body).get("stream"))
    kind = b"text/event-stream" if streamed else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    parts = [{**event, "sequence_number": n} for n, event in enumerate([*EVENTS, COMPLETED])]
    sent = [f"event: {part['type']}\ndata: {json.dumps(part)}\n\n" for part in parts]
    whole = "".join(sent) if streamed else json.dumps(COMPLETED["response"])
    await send({"type": "http.response.body", "body": whole.encode()})


@pytest.fixture(scope="module")
def responses() -> Iterator[Callable[..., Any]]:
    with (
        running(responses_server, lifespan="off") as (url, _),
        openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0, timeout=20) as client,
    ):
        yield lambda **more: client.responses.create(
            model="m", input="q", include=["message.output_text.logprobs"], **more
        )


def test_the_responses_api_is_scored_whole_and_streamed(
    responses: Callable[..., Any], predictor: QualityPredictor
) -> None:
    events = list(watched := watch(responses(stream=True), predictor, FakeGate(99)))
    assert [event.type for event in events] == [event["type"] for event in [*EVENTS, COMPLETED]]
    assert watched.verdict == predictor.predict(responses()) == predictor.predict(LOGPROBS)
    assert watched.tokens_seen == len(TOKENS)
    assert watched.scored is not None
    assert (watched.scored.response_id, watched.scored.model) == ("r-1", "m")


def test_the_gate_ends_a_stream_of_the_responses_api(
    responses: Callable[..., Any], predictor: QualityPredictor
) -> None:
    gate = FakeGate(2, "escalate")
    events = list(watched := watch(responses(stream=True), predictor, gate))
    assert isinstance(watched, WatchedStream)
    assert len(events) == 3
    assert gate.pushed == [(logprob, [logprob]) for logprob in LOGPROBS[:2]]
    assert (watched.action, gate.started_for) == ("escalate", ["m"])


def test_one_of_several_answers_never_ends_the_others(client: openai.OpenAI, predictor: QualityPredictor) -> None:
    passed = list(watched := watch(ask(client, n=2), predictor, FakeGate(at=9)))
    assert passed
    assert watched.action == "continue"


def test_an_error_in_the_middle_of_a_stream_is_no_answer(predictor: QualityPredictor) -> None:
    entry = {"token": "x", "logprob": -0.1, "top_logprobs": []}
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": [entry]}}]},
        {"error": {"message": "overloaded"}},
    ]
    assert list(watched := watch(chunks, predictor)) == chunks
    assert watched.verdict is None
    assert "an error instead of the rest" in watched.reason


def test_the_last_tokens_of_a_finished_answer_stop_nothing(predictor: QualityPredictor) -> None:
    entry = {"token": "x", "logprob": -0.1, "top_logprobs": []}
    choice = {"index": 0, "delta": {"content": "xxx"}, "logprobs": {"content": [entry] * 3}, "finish_reason": "stop"}
    list(watched := watch([{"choices": [choice]}], predictor, FakeGate(2)))
    assert watched.action == "continue"
    assert watched.verdict is not None
    assert "stopped" not in watched.verdict.reason


def test_arguments_that_were_mixed_up_are_told_at_once(predictor: QualityPredictor) -> None:
    gate = FakeGate(1)
    with pytest.raises(TypeError, match="predictor is a FakeGate"):
        watch([], gate, predictor)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="gate is a str"):
        watch([], predictor, "gate")  # type: ignore[arg-type]
    gate.push(-1.0)
    with pytest.raises(ValueError, match="has fired"):
        watch([], predictor, gate)
