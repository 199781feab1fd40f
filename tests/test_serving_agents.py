"""Agents behind one URL: their tool calls, their time, and which of them is left out."""

import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import agents_behind
import httpx
import pytest
import serving_clients
from agents_behind import Drips, Speaks, World, calling
from databases import wait_until
from served import KEY
from serving_clients import Served, verdict_in, verdict_of

callers_keys = serving_clients.callers_keys
checkpoint = serving_clients.checkpoint
team = agents_behind.team
one_after_another = agents_behind.one_after_another

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("add", "see")]
QUESTION = {"role": "user", "content": "What is 5 + 7?"}
ADD = ("add", '{"a": 5, "b": 7}')


def ask(server: Served, messages: list[Any], **more: Any) -> Any:
    return server.client.chat.completions.create(model="panel", messages=messages, tools=TOOLS, **more)  # type: ignore[arg-type]


def account(answer: Any) -> dict[str, Any]:
    return dict(verdict_of(answer)["panel"])


def streamed_message(chunks: list[Any]) -> dict[str, Any]:
    """The message that a client makes of a stream, to send it back."""
    calls = [call for chunk in chunks if chunk.choices for call in chunk.choices[0].delta.tool_calls or []]
    made = [{"id": one.id, "type": "function", "function": one.function.model_dump()} for one in calls]
    return {"role": "assistant", "content": None, "tool_calls": made}


# Tool calls


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
@pytest.mark.parametrize("order", [("history", "maths"), ("maths", "history")])
def test_a_required_call_is_kept_whole_before_any_text(
    checkpoint: Path, team: Path, choice: Any, order: tuple[str, str]
) -> None:
    upstreams = {order[0]: Speaks(" 42"), order[1]: Speaks(calling(ADD, ("see", "{}")))}
    with World(checkpoint, team, upstreams) as server:
        answer = ask(server, [QUESTION], tool_choice=choice)
        chunks = list(ask(server, [QUESTION], tool_choice=choice, stream=True))
    called = answer.choices[0].message.tool_calls
    assert [(one.function.name, one.function.arguments) for one in called] == [ADD, ("see", "{}")]
    assert account(answer)["agent"] == order[1]
    assert streamed_message(chunks) == {
        "role": "assistant",
        "content": None,
        "tool_calls": [one.model_dump() for one in called],
    }
    assert [one.index for chunk in chunks if chunk.choices for one in chunk.choices[0].delta.tool_calls or []] == [0, 1]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_call_of_another_tool_than_the_named_one_is_no_candidate(checkpoint: Path, team: Path) -> None:
    upstreams = {"history": Speaks(calling(("see", "{}"))), "maths": Speaks(calling(ADD))}
    with World(checkpoint, team, upstreams) as server:
        answer = ask(server, [QUESTION], tool_choice={"type": "function", "function": {"name": "add"}})
    assert account(answer)["agent"] == "maths"
    assert "history" in account(answer)["reason"]


def test_where_nobody_calls_the_text_is_kept_and_its_lack_said(checkpoint: Path, team: Path, tmp_path: Path) -> None:
    upstreams = {"history": Speaks(" 42"), "maths": Speaks(" 42")}
    with World(checkpoint, team, upstreams) as server:
        answer = ask(server, [QUESTION], tool_choice="required")
    assert answer.choices[0].message.content == " 42"
    assert "tool_choice asks for a tool call" in account(answer)["reason"]
    assert set(account(answer)["spent"]) == {"history", "maths"}, "both are paid for"


@pytest.fixture
def two_that_call() -> dict[str, Speaks]:
    def answers(body: dict[str, Any]) -> dict[str, Any] | str:
        if any(one["role"] == "tool" for one in body["messages"]):
            return "It is 12"
        return calling(ADD, ADD)

    return {"history": Speaks(" 42"), "maths": Speaks(answers)}


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on_with_the_agent_that_began_its_calls(
    checkpoint: Path, team: Path, two_that_call: dict[str, Speaks], stream: bool
) -> None:
    with World(checkpoint, team, two_that_call) as server:
        if stream:
            message = streamed_message(list(ask(server, [QUESTION], tool_choice="required", stream=True)))
        else:
            message = ask(server, [QUESTION], tool_choice="required").choices[0].message.model_dump()
    results = [{"role": "tool", "tool_call_id": one["id"], "content": "12"} for one in message["tool_calls"]]
    before = len(two_that_call["history"].bodies)
    with World(checkpoint, team, two_that_call) as server:  # another server, which remembers nothing
        answer = ask(server, [QUESTION, message, *results], stream=stream)
        panel = verdict_in(answer)["panel"] if stream else account(answer)
    assert (panel["agent"], panel["asked"]) == ("maths", ["maths"])
    assert "maths" in panel["stopped"]
    assert 0 < panel["score"] < 1
    assert len(two_that_call["history"].bodies) == before
    seen = two_that_call["maths"].bodies[-1]["messages"]
    assert [one["id"] for one in seen[1]["tool_calls"]] == ["call_0", "call_1"], "the agent sees its own ids"
    assert [one["tool_call_id"] for one in seen[2:]] == ["call_0", "call_1"]


def test_calls_of_unknown_origin_are_asked_about_as_usual_and_it_is_said(
    checkpoint: Path, team: Path, two_that_call: dict[str, Speaks]
) -> None:
    message = calling(ADD)["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": "call_0", "content": "12"}
    with World(checkpoint, team, two_that_call) as server:
        panel = account(ask(server, [QUESTION, message, result]))
    assert panel["asked"] == ["history", "maths"]
    assert "not known who began" in panel["reason"]


def test_where_the_agent_that_began_fails_the_others_go_on_and_it_is_said(
    checkpoint: Path, team: Path, two_that_call: dict[str, Speaks]
) -> None:
    with World(checkpoint, team, two_that_call) as server:
        message = ask(server, [QUESTION], tool_choice="required").choices[0].message.model_dump()
        two_that_call["maths"].status, two_that_call["maths"].answer = 500, ""
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "12"}
        answer = ask(server, [QUESTION, message, result])
    assert answer.choices[0].message.content == " 42"
    assert account(answer)["asked"] == ["maths", "history"]
    assert "maths began these tool calls and failed" in account(answer)["reason"]


# Time


@pytest.fixture(params=[b"text/event-stream", b"application/json"])
def drips(request: pytest.FixtureRequest) -> Drips:
    """An upstream whose answer never ends, as events and as white space before JSON."""
    piece = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n' if b"event" in request.param else b" "
    return Drips(request.param, piece)


def test_an_agent_that_never_ends_costs_its_answer_and_is_closed(checkpoint: Path, team: Path, drips: Drips) -> None:
    upstreams = {"history": drips, "maths": Speaks("It is 12")}
    with World(checkpoint, team, upstreams, agent_timeout_s=1.0) as server:
        answer = server.chat()
        wait_until(lambda: not drips.open)
    assert answer.choices[0].message.content == "It is 12"
    assert "history: " in account(answer)["reason"]
    assert drips.begun == 1


def test_a_paid_answer_is_kept_where_the_time_of_all_is_over(checkpoint: Path, team: Path, drips: Drips) -> None:
    with World(checkpoint, team, {"history": Speaks("It is 7"), "maths": drips}, total_timeout_s=1.0) as server:
        answer = server.chat()
        wait_until(lambda: not drips.open)
    assert answer.choices[0].message.content == "It is 7"
    assert account(answer)["asked"] == ["history", "maths"]


def test_no_total_time_may_be_asked_for(checkpoint: Path, team: Path) -> None:
    upstreams = {"history": Speaks("It is 7"), "maths": Speaks("It is 12")}
    with World(checkpoint, team, upstreams, total_timeout_s=math.inf, agent_timeout_s=math.inf) as server:
        assert account(server.chat())["asked"] == ["history", "maths"]


def test_where_no_agent_ends_in_time_the_request_is_refused_as_late(checkpoint: Path, team: Path, drips: Drips) -> None:
    with World(checkpoint, team, {"history": drips, "maths": drips}, total_timeout_s=0.2) as server:
        refused = server.ask()
        wait_until(lambda: not drips.open)
    assert refused.status_code == 504
    assert "history" in refused.json()["error"]["message"]


def test_the_next_agent_is_asked_beside_one_that_is_slow_and_the_slow_one_is_closed(
    checkpoint: Path, team: Path, drips: Drips
) -> None:
    with World(checkpoint, team, {"history": drips, "maths": Speaks("It is 12")}, hedge_after_s=600.0) as server:
        answer = server.ask(metaprobe_hedge_after="0.1").json()
        wait_until(lambda: not drips.open)
    assert answer["choices"][0]["message"]["content"] == "It is 12"
    assert answer["metaprobe"]["panel"]["asked"] == ["history", "maths"]


def test_an_answer_that_came_is_not_held_up_by_a_slow_second_agent(checkpoint: Path, team: Path, drips: Drips) -> None:
    with World(checkpoint, team, {"history": Speaks("It is 7"), "maths": drips}, hedge_after_s=0.1) as server:
        answer = server.chat()
        wait_until(lambda: not drips.open)
    assert answer.choices[0].message.content == "It is 7"
    assert account(answer)["asked"] == ["history", "maths"]


def test_all_are_asked_at_once_where_the_caller_wants_it(checkpoint: Path, team: Path) -> None:
    upstreams, answer_now = {"history": Speaks("It is 7"), "maths": Speaks("It is 12")}, threading.Event()
    for upstream in upstreams.values():
        upstream.hold = answer_now
    with World(checkpoint, team, upstreams, hedge_after_s=600.0) as server, ThreadPoolExecutor(1) as callers:
        answer = callers.submit(server.ask, metaprobe_hedge_after="0")
        wait_until(lambda: all(one.bodies for one in upstreams.values()))
        assert not answer.done(), "neither has answered"
        answer_now.set()
        panel = answer.result().json()["metaprobe"]["panel"]
    assert panel["asked"] == ["history", "maths"]
    assert set(panel["spent"]) == {"history", "maths"}, "both are waited for"


@pytest.mark.parametrize(("allowed", "header"), [(None, "1"), (1.0, "x"), (1.0, "-1"), (1.0, "nan"), (1.0, "inf")])
def test_a_header_that_cannot_hold_is_refused_before_anything_is_paid(
    checkpoint: Path, team: Path, allowed: float | None, header: str
) -> None:
    upstreams = {"history": Speaks("It is 7"), "maths": Speaks("It is 12")}
    with World(checkpoint, team, upstreams, hedge_after_s=allowed) as server:
        assert server.ask(metaprobe_hedge_after=header).status_code == 400
    assert not any(one.bodies for one in upstreams.values())


@pytest.mark.parametrize("stream", [False, True])
def test_the_one_upstream_too_is_closed_when_its_time_is_over(checkpoint: Path, stream: bool) -> None:
    piece = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n' if stream else b" "
    drips = Drips(b"text/event-stream" if stream else b"application/json", piece)
    with World(checkpoint, None, {"": drips}, total_timeout_s=0.3) as server:
        answer = server.ask(more={"stream": stream})
        wait_until(lambda: not drips.open)
    if stream:
        assert answer.status_code == 200
        assert b"upstream_total_timeout" in answer.content
        assert b"[DONE]" not in answer.content
    else:
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "upstream_total_timeout"
    assert drips.begun == 1


def test_half_an_answer_that_is_too_large_to_be_read_is_not_taken_for_a_whole_one(checkpoint: Path) -> None:
    drips = Drips(b"application/json", b" " * 8192)
    with World(checkpoint, None, {"": drips}, total_timeout_s=0.4, max_body_bytes=1024) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            server.ask()
        wait_until(lambda: not drips.open)


# Agents that are left out


def shown(server: Served) -> dict[str, float]:
    """The state of each agent and how its requests ended, in the server's metrics."""
    lines = server.get("/metrics", authorization=f"Bearer {KEY}").text.splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if "metaprobe_agent_" in line[:16]
    }


def test_an_agent_that_failed_in_a_row_is_left_out_and_it_is_said(checkpoint: Path, team: Path) -> None:
    broken = Speaks(status=500)
    settings = {"agent_failures": 2, "agent_pause_s": 3600.0}
    with World(checkpoint, team, {"history": broken, "maths": Speaks("It is 12")}, **settings) as server:
        assert shown(server)['metaprobe_agent_state{agent="history"}'] == 0
        for _ in range(2):
            server.chat()
        counts = shown(server)
        asked = len(broken.bodies)
        answer = server.chat()
    assert counts['metaprobe_agent_state{agent="history"}'] == 2
    assert counts['metaprobe_agent_requests_total{agent="history",outcome="failed"}'] == 2
    assert len(broken.bodies) == asked, "it is left out"
    assert "history is left out (2 failures in a row" in account(answer)["reason"]
    assert answer.choices[0].message.content == "It is 12"


def test_an_agent_that_answers_when_it_is_tried_again_is_asked_as_before(checkpoint: Path, team: Path) -> None:
    broken = Speaks(status=500)
    settings = {"agent_failures": 1, "agent_pause_s": 0.01}
    with World(checkpoint, team, {"history": broken, "maths": Speaks("It is 12")}, **settings) as server:
        server.chat()
        broken.status, broken.answer = 200, "It is 7"
        wait_until(lambda: "tried again" in account(server.chat())["reason"])
        # On a busy machine a trial may end without a result, and the next request tries.
        wait_until(lambda: bool(server.chat()) and shown(server)['metaprobe_agent_state{agent="history"}'] == 0)
        panel = account(server.chat())
        counts = shown(server)
    assert panel["asked"] == ["history", "maths"]
    assert "left out" not in panel["reason"]
    assert counts['metaprobe_agent_requests_total{agent="history",outcome="answered"}'] >= 2


def test_where_all_are_left_out_they_are_asked_all_the_same(checkpoint: Path, team: Path) -> None:
    upstreams = {"history": Speaks(status=500), "maths": Speaks(status=503)}
    with World(checkpoint, team, upstreams, agent_failures=1, agent_pause_s=3600.0) as server:
        assert server.ask().status_code == 502
        upstreams["maths"].status, upstreams["maths"].answer = 200, "It is 12"
        answer = server.chat()
        assert answer.choices[0].message.content == "It is 12"
        assert "asked all the same" in account(answer)["reason"]
        assert shown(server)['metaprobe_agent_state{agent="maths"}'] == 0, "its answer closes it"


def test_who_is_left_out_is_asked_where_the_others_fail(checkpoint: Path, team: Path) -> None:
    upstreams = {"history": Speaks(status=500), "maths": Speaks("It is 12")}
    with World(checkpoint, team, upstreams, agent_failures=1, agent_pause_s=3600.0) as server:
        server.chat()
        upstreams["history"].status, upstreams["history"].answer = 200, "It is 7"
        upstreams["maths"].status = 500
        answer = server.chat()
    assert answer.choices[0].message.content == "It is 7"
    assert account(answer)["asked"] == ["maths", "history"]
    assert "maths failed (the upstream answered 500)" in account(answer)["reason"]


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_request_that_agents_refuse_leaves_nobody_out(checkpoint: Path, team: Path, status: int) -> None:
    upstreams = {"history": Speaks(status=status), "maths": Speaks("It is 12")}
    with World(checkpoint, team, upstreams, agent_failures=1) as server:
        server.chat()
        assert shown(server)['metaprobe_agent_state{agent="history"}'] == 0


@pytest.mark.parametrize("status", [401, 408, 429, 500, 503])
def test_an_agent_that_is_down_overloaded_or_without_credit_is_left_out(
    checkpoint: Path, team: Path, status: int
) -> None:
    upstreams = {"history": Speaks(status=status), "maths": Speaks("It is 12")}
    with World(checkpoint, team, upstreams, agent_failures=1) as server:
        server.chat()
        assert shown(server)['metaprobe_agent_state{agent="history"}'] == 2


def test_no_caller_alone_makes_an_agent_look_down_by_what_it_asks_for(
    checkpoint: Path, team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAPROBE_API_KEY", f"{KEY} other=another-key-0123456789")
    agent = Speaks("It is 7")
    settings = {"agent_failures": 2, "agent_pause_s": 3600.0}
    with World(checkpoint, team, {"history": agent, "maths": Speaks("It is 12")}, **settings) as server:
        server.chat()
        agent.status = 500  # as of an engine that fails at what this caller asks
        others = [server.ask(authorization="Bearer another-key-0123456789").status_code for _ in range(5)]
        before = shown(server)
        server.chat()
        after = shown(server)
    assert others == [200] * 5
    assert before['metaprobe_agent_requests_total{agent="history",outcome="failed"}'] == 5
    assert before['metaprobe_agent_state{agent="history"}'] == 0
    assert after['metaprobe_agent_state{agent="history"}'] == 2, "it fails others, too"


def test_a_hanging_agent_is_waited_for_once_and_not_on_every_request(checkpoint: Path, team: Path) -> None:
    hanging = Drips(b"application/json", b" ")
    settings = {"agent_failures": 1, "agent_pause_s": 3600.0, "agent_timeout_s": 1.0}
    with World(checkpoint, team, {"history": hanging, "maths": Speaks("It is 12")}, **settings) as server:
        answers = [server.chat() for _ in range(4)]
    assert hanging.begun == 1
    assert [account(one)["asked"] for one in answers] == [["history", "maths"], *3 * [["maths"]]]


def test_an_agent_that_is_always_overtaken_is_left_out(checkpoint: Path, team: Path) -> None:
    hanging = Drips(b"application/json", b" ")
    settings = {"agent_failures": 2, "agent_pause_s": 3600.0, "hedge_after_s": 0.05}
    with World(checkpoint, team, {"history": hanging, "maths": Speaks("It is 12")}, **settings) as server:
        for _ in range(4):
            server.chat()
        wait_until(lambda: not hanging.open)
    assert hanging.begun == 2


def test_no_caller_makes_an_agent_look_down_by_hurry(checkpoint: Path, team: Path) -> None:
    slow = Speaks("It is 7", wait_s=300.0)
    settings = {"agent_failures": 1, "hedge_after_s": 30.0}
    with World(checkpoint, team, {"history": slow, "maths": Speaks("It is 12")}, **settings) as server:
        for _ in range(3):
            assert server.ask(metaprobe_hedge_after="0.01").status_code == 200
        assert slow.left.wait(20), "it was overtaken"
        assert shown(server)['metaprobe_agent_state{agent="history"}'] == 0


def test_a_trial_goes_on_where_its_request_was_answered_by_another(
    checkpoint: Path, team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaprobe.production.http.proxy.TRIAL_S", 0.05)
    slow = Speaks(status=500)
    settings = {"agent_failures": 1, "agent_pause_s": 0.01}
    with World(checkpoint, team, {"history": slow, "maths": Speaks("It is 12")}, **settings) as server:
        server.chat()
        slow.status, slow.answer, slow.wait_s = 200, "It is 7", 0.5
        wait_until(lambda: account(server.chat())["asked"] == ["history", "maths"] or None)
        wait_until(lambda: shown(server)['metaprobe_agent_state{agent="history"}'] == 0)
    assert not slow.left.is_set(), "the trial was not cancelled"


def test_a_caller_who_leaves_closes_what_was_asked_for_it(checkpoint: Path, team: Path, drips: Drips) -> None:
    with World(checkpoint, team, {"history": drips, "maths": drips}, hedge_after_s=0.0) as server:
        caller = HTTPConnection(server.url.removeprefix("http://"))
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        caller.request("POST", "/v1/chat/completions", json.dumps({"messages": [QUESTION]}), headers)
        wait_until(lambda: drips.open == 2)
        caller.close()
        wait_until(lambda: not drips.open)
        assert shown(server)['metaprobe_agent_state{agent="history"}'] == 0
