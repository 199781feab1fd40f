"""The agents behind a panel's URL are asked by stream; what a caller gets is the whole answer all the same."""

import json
from pathlib import Path
from typing import Any

import agents_behind
import pytest
import serving_clients
from agents_behind import Speaks, Streams, World, calling
from panel_worlds import completion
from served import KEY

callers_keys = serving_clients.callers_keys
checkpoint = serving_clients.checkpoint
team = agents_behind.team
one_after_another = agents_behind.one_after_another

USAGE = {"usage": {"prompt_tokens": 9, "completion_tokens": 8, "total_tokens": 17}}
TEXT: dict[str, Any] = completion("It is 12", model="maths") | USAGE | {"timings": {"speed": 3.5}}
CALLS = calling(("add", '{"a": 5, "b": 7}'), ("see", "{}"), model="maths") | USAGE


def account(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = answer["metaprobe"]["panel"]
    return found


def answer_of(checkpoint: Path, team: Path, upstream: Any, **more: Any) -> dict[str, Any]:
    with World(checkpoint, team, {"maths": upstream}) as server:
        answer: dict[str, Any] = json.loads(server.ask(more=more).content)
    return answer


@pytest.mark.parametrize("whole", [TEXT, CALLS])
@pytest.mark.parametrize("logprobs", [True, False])
def test_a_caller_gets_what_a_whole_request_gives(
    checkpoint: Path, team: Path, whole: dict[str, Any], logprobs: bool
) -> None:
    upstreams = Streams(whole), Speaks(whole)
    streamed, expected = (answer_of(checkpoint, team, one, logprobs=logprobs, top_logprobs=1) for one in upstreams)
    assert upstreams[0].bodies[0]["stream"] is True
    for answer in (streamed, expected):
        assert account(answer)["asked"] == ["maths"]
        del answer["metaprobe"]
    assert streamed == expected


@pytest.mark.parametrize("fault", ["refuses", "refuses without a word", "ends early", "is not called one"])
def test_an_agent_that_cannot_stream_is_asked_whole_from_there_on_and_the_reason_says_so(
    checkpoint: Path, team: Path, fault: str
) -> None:
    upstream = Streams(TEXT, fault=fault)
    with World(checkpoint, team, {"maths": upstream}) as server:
        first, second = (json.loads(server.ask().content) for _ in range(2))
        counted = server.get("/metrics", authorization=f"Bearer {KEY}").text
    assert [one["choices"][0]["message"]["content"] for one in (first, second)] == ["It is 12"] * 2
    assert "whole answer" in account(first)["reason"]
    assert not upstream.bodies[-2].get("stream")
    assert not upstream.bodies[-1].get("stream"), "it is asked once for a stream, and not at every request"
    assert upstream.bodies[-1]["logprobs"] is True, "the fault is not taken for one of log-probabilities"
    assert 'metaprobe_errors_total{code="stream_declined"} 1.0' in counted


def test_an_agent_that_does_not_close_its_stream_holds_up_nobody(checkpoint: Path, team: Path) -> None:
    with World(checkpoint, team, {"maths": Streams(TEXT, fault="stays open")}, agent_timeout_s=3.0) as server:
        answers = [json.loads(server.ask().content) for _ in range(2)]
    assert [one["choices"][0]["message"]["content"] for one in answers] == ["It is 12"] * 2


def test_an_error_that_comes_as_an_event_is_not_asked_for_again(checkpoint: Path, team: Path) -> None:
    upstream = Streams(TEXT, fault="errs")
    with World(checkpoint, team, {"maths": upstream}) as server:
        assert server.ask(more={"logprobs": True, "top_logprobs": 1}).status_code == 502
    assert len(upstream.bodies) == 1


def test_an_agent_that_has_streamed_and_refuses_a_request_is_not_asked_twice(checkpoint: Path, team: Path) -> None:
    upstream = Streams(TEXT)
    with World(checkpoint, team, {"maths": upstream}) as server:
        server.ask(more={"logprobs": True, "top_logprobs": 1})
        upstream.fault = "refuses without a word"
        server.ask(more={"logprobs": True, "top_logprobs": 1})
    assert len(upstream.bodies) == 2


def test_a_stream_that_is_longer_than_an_answer_may_be_is_refused(checkpoint: Path, team: Path) -> None:
    long = completion("so " * 4000, model="maths")
    with World(checkpoint, team, {"maths": Streams(long)}, max_answer_bytes=10_000) as server:
        refused = server.ask()
    assert refused.status_code == 502
    assert "larger than 10000 bytes" in refused.json()["error"]["message"]


@pytest.mark.parametrize("kind", [Streams, Speaks])
def test_an_answer_of_many_values_is_counted_by_their_memory_and_the_next_question_is_answered(
    checkpoint: Path, team: Path, kind: type[Speaks]
) -> None:
    wide = completion("It is 12", model="maths", logprob=-0.1)
    wide["choices"][0]["logprobs"]["content"][0]["x"] = [[]] * 20_000  # 80 kB, which become 2 MB
    upstream = kind(wide)
    with World(checkpoint, team, {"maths": upstream}, max_body_bytes=100_000) as server:
        refused = server.ask(more={"logprobs": True})
        upstream.answer = TEXT
        answer = json.loads(server.ask(more={"logprobs": True}).content)
    assert refused.status_code == 502
    assert "MiB" in refused.json()["error"]["message"], "the memory is the reason"
    assert answer["choices"][0]["message"]["content"] == "It is 12"
