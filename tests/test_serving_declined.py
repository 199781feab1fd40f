"""An upstream that fails because of log-probabilities that the caller did not ask for costs a score and no answer."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import serving_clients
from faulty_server import FaultyServer
from served import KEY, answering, chunks, completion, respond, running, stream_events
from serving_clients import TEXT, Served, serving, verdict_in, verdict_of
from starlette.types import Receive, Scope, Send

from metaprobe.production.http.app import create_app
from metaprobe.production.http.exchange import MAX_FAILURES_IN_A_ROW, MAX_MODELS, REMEMBER_S, Declined
from metaprobe.production.http.middleware import VerdictMiddleware
from metaprobe.production.http.settings import Settings

callers_keys = serving_clients.callers_keys
checkpoint = serving_clients.checkpoint
ERROR = {"error": {"message": "as planned", "code": "planned"}}


class Failing:
    """Fails as `how` says when log-probabilities are asked for, and as `again` says when they are not.

    Faults: a status, `object`, `event`, `raise`, `silent` or `later`; an empty text for none.
    """

    def __init__(self, how: str, again: str = "") -> None:
        self.how, self.again = how, again
        self.bodies: list[dict[str, Any]] = []

    @answering
    async def __call__(self, scope: Scope, raw: bytes, receive: Receive, send: Send) -> None:
        body = json.loads(raw)
        self.bodies.append(body)
        how = self.how if body.get("logprobs") else self.again
        if not how and body.get("stream"):
            await stream_events(send, [*chunks(body), b"[DONE]"])
        elif not how:
            await respond(send, 200, completion(body))
        elif how == "raise":
            raise ValueError("as planned")
        elif how == "silent":
            await receive()  # until the caller goes
        elif how in ("event", "later"):
            before = list(chunks(body))[: 2 * (how == "later")]
            await stream_events(send, [*before, ERROR, b"[DONE]"])
        elif how == "object":
            await respond(send, 200, ERROR)
        else:
            status, _, said = how.partition(" ")
            more = [(b"retry-after", b"1")] * (said == "retry-after")
            await respond(send, int(status), {"error": {"message": said}}, more)


@contextmanager
def failing(checkpoint: Path, how: str, way: str, *, again: str = "", **more: Any) -> Iterator[tuple[Failing, Served]]:
    """A server before such an upstream, or such an application with the middleware around."""
    told = Failing(how, again)
    if way == "middleware":
        settings = Settings(checkpoint=checkpoint, upstream="http://127.0.0.1/v1", auth=False, **more)
        with running(VerdictMiddleware(told, settings=settings)) as (url, _):
            yield told, Served(url)
        return
    with running(told) as (up, _):
        app = create_app(Settings(checkpoint=checkpoint, upstream=f"{up}/v1", **more))
        with running(app) as (url, _):
            yield told, Served(url)


WAYS = pytest.mark.parametrize("way", ["proxy", "middleware"])


@WAYS
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["400", "403 no logprobs here", "500", "599"])
def test_whatever_status_it_fails_with_the_caller_gets_the_answer_and_the_reason(
    checkpoint: Path, how: str, stream: bool, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    with failing(checkpoint, how, way) as (told, served):
        answer = served.chat(stream=stream)
        if stream:
            events = list(answer)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in events) == TEXT
            verdict = verdict_in(events)
        else:
            assert answer.choices[0].message.content == TEXT
            verdict = verdict_of(answer)
    assert [body.get("logprobs") for body in told.bodies] == [True, None]
    assert verdict["score"] is None
    why = f"no log-probabilities: the upstream answered {how[:3]} to a request with logprobs; asked again without"
    assert verdict["reason"] == why
    told_operator = [one.getMessage() for one in caplog.records if one.name.endswith("exchange")]
    assert len(told_operator) == 1
    assert (
        f"answered {how[:3]} to a request of m with log-probabilities that the caller did not ask for"
        in told_operator[0]
    )


@WAYS
@pytest.mark.parametrize("how", ["object", "event"])
def test_an_error_in_place_of_an_answer_with_status_200_is_a_failure_too(checkpoint: Path, how: str, way: str) -> None:
    with failing(checkpoint, how, way) as (told, served):
        answer = served.chat(stream=how == "event")
        verdict = verdict_in(answer) if how == "event" else verdict_of(answer)
    assert len(told.bodies) == 2
    assert "the upstream answered an error to a request with logprobs; asked again without" in verdict["reason"]


def test_an_application_that_raises_is_asked_as_the_caller_asked(checkpoint: Path) -> None:
    with failing(checkpoint, "raise", "middleware") as (told, served):
        assert "answered ValueError to a request with logprobs" in verdict_of(served.chat())["reason"]
    assert len(told.bodies) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_connection_that_is_closed_on_a_changed_request_is_asked_again_once(checkpoint: Path, stream: bool) -> None:
    with FaultyServer() as faulty, serving(checkpoint, faulty.base_url) as client:
        answer = client.chat("a:reset ok", stream=stream)
        verdict = verdict_in(answer) if stream else verdict_of(answer)
        assert "answered with a closed connection to a request with logprobs" in verdict["reason"]
        with pytest.raises(openai.APIStatusError):
            client.chat("b:reset", stream=stream, model="other")
    assert [body.get("logprobs") for body in faulty.bodies] == [True, None, True, None]


@WAYS
def test_what_log_probabilities_cannot_cause_passes_and_is_asked_once(checkpoint: Path, way: str) -> None:
    with failing(checkpoint, "", way) as (told, served):
        for how in [*"401 402 407 408 429 503 504".split(), "403 not yours", "500 retry-after", "400 retry-after"]:
            told.how = how
            told.bodies.clear()
            with pytest.raises(openai.APIStatusError) as caught:
                served.chat()
            assert (caught.value.status_code, len(told.bodies)) == (int(how[:3]), 1), how


@WAYS
@pytest.mark.parametrize("how", ["400", "500"])
def test_who_asks_for_log_probabilities_gets_the_error_as_it_came(checkpoint: Path, how: str, way: str) -> None:
    with failing(checkpoint, f"{how} as planned", way) as (told, served):
        for more in ({}, {"top_logprobs": 2}):
            with pytest.raises(openai.APIStatusError, match="as planned") as caught:
                served.chat(logprobs=True, **more)
            assert caught.value.status_code == int(how)
    # Alternatives were added to the first, which is tried once as it came; the second is the caller's own.
    assert [body.get("top_logprobs") for body in told.bodies] == [1, None, 2]


@WAYS
@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_that_fails_anyway_is_asked_twice_and_no_more_and_nothing_is_remembered(
    checkpoint: Path, way: str, stream: bool
) -> None:
    with failing(checkpoint, "500 as planned", way, again="500 as planned") as (told, served):
        for number in (1, 2):
            with pytest.raises(openai.APIStatusError, match="as planned"):
                served.chat(stream=stream)
            assert len(told.bodies) == 2 * number
        told.how = told.again = ""
        answer = served.chat(stream=stream)
        assert (verdict_in(answer) if stream else verdict_of(answer))["score"] is not None


@WAYS
def test_nothing_is_asked_again_once_bytes_were_passed_on(checkpoint: Path, way: str) -> None:
    with failing(checkpoint, "later", way) as (told, served):
        content = served.post("/v1/chat/completions", {"model": "m", "messages": [], "stream": True}).content
    assert len(told.bodies) == 1
    assert b"as planned" in content


@pytest.mark.parametrize(
    ("way", "again"),
    [("proxy", "500 as planned"), ("middleware", "500 as planned"), ("middleware", "object"), ("proxy", "silent")],
)
def test_a_stream_whose_first_event_failed_ends_with_what_the_second_try_came_to(
    checkpoint: Path, way: str, again: str
) -> None:
    """The caller has got the head of the stream by then."""
    with failing(checkpoint, "event", way, again=again, timeout_s=1.0) as (told, served):
        message = "did not go on" if again == "silent" else "as planned"
        with served.chat(stream=True) as stream, pytest.raises(openai.APIError, match=message) as caught:
            list(stream)
    assert caught.value.body["code"] == ("upstream_timeout" if again == "silent" else "upstream_status")
    assert [body.get("logprobs") for body in told.bodies] == [True, None]


@WAYS
def test_the_model_is_remembered_for_a_while_and_others_are_not(checkpoint: Path, way: str) -> None:
    with failing(checkpoint, "500", way) as (told, served):
        served.chat()
        later = [verdict_of(served.chat())["reason"], verdict_in(served.chat(stream=True))["reason"]]
        assert [body.get("logprobs") for body in told.bodies] == [True, None, None, None]
        assert set(later) == {
            "no log-probabilities: the upstream answered 500 to an earlier request with logprobs; asked without"
        }
        served.chat(model="other")
        assert [body.get("logprobs") for body in told.bodies[4:]] == [True, None]


def test_a_name_of_megabytes_is_not_remembered() -> None:
    declined = Declined()
    for name, why in (("m" * 512, "500"), ("m" * 513, "")):
        declined.failed(name, "log-probabilities", "500")
        assert declined.why(name, "log-probabilities") == why


def test_the_second_try_is_within_the_time_that_the_upstream_has(checkpoint: Path) -> None:
    with FaultyServer() as faulty:
        settings = Settings(checkpoint=checkpoint, upstream=faulty.base_url, timeout_s=1.0)
        with running(create_app(settings)) as (url, _), pytest.raises(openai.APIStatusError) as caught:
            Served(url).chat("a:500 silent")
    assert caught.value.status_code == 504
    assert len(faulty.bodies) == 2


def test_what_is_remembered_expires_and_one_fault_of_a_model_that_gave_them_is_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    declined, kind = Declined(lambda: now[0]), "log-probabilities"
    declined.failed("m", kind, "500")
    assert declined.why("m", kind) == "500"
    assert declined.why("m", "alternatives") == declined.why("n", kind) == ""
    now[0] = REMEMBER_S + 1
    assert declined.why("m", kind) == ""
    declined.gave("m", kind)
    for _ in range(MAX_FAILURES_IN_A_ROW - 1):
        declined.failed("m", kind, "500")
        assert declined.why("m", kind) == ""
    declined.gave("m", kind)
    for _ in range(MAX_FAILURES_IN_A_ROW):
        declined.failed("m", kind, "500")
    assert declined.why("m", kind) == "500"
    for number in range(2 * MAX_MODELS):  # callers choose names
        declined.failed(f"a\nb {number}", kind, "500")
    assert len(declined._records) <= MAX_MODELS
    assert "a\nb" not in caplog.text


def test_what_it_cost_is_counted(checkpoint: Path) -> None:
    with failing(checkpoint, "500", "proxy") as (_, served):
        served.chat()
        text = served.get("/metrics", authorization=f"Bearer {KEY}").text
    assert 'metaprobe_errors_total{code="logprobs_declined"} 1.0' in text
    assert 'code="upstream_status"' not in text
