"""One base URL in front of several upstreams: the panel chooses among them, and says what it asked and spent."""

import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import agents_behind
import openai
import pytest
import serving_clients
from agents_behind import Speaks, World
from click.testing import CliRunner
from databases import wait_until
from made_once import MadeOnce
from panel_worlds import biased_vote, completion, trained
from served import KEY, answering
from serving_clients import verdict_in, verdict_of

from metaprobe.cli import main
from metaprobe.production.http.app import create_app
from metaprobe.production.http.bodies import Busy, FairThreads
from metaprobe.production.http.settings import Settings, SettingsError
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.routing.panel.asking import Panel

callers_keys = serving_clients.callers_keys
checkpoint = serving_clients.checkpoint
team = agents_behind.team
one_after_another = agents_behind.one_after_another


@pytest.fixture
def two() -> dict[str, Speaks]:
    return {"history": Speaks("It is 7"), "maths": Speaks("It is 12")}


def test_a_plain_client_gets_the_kept_answer_and_its_account(
    checkpoint: Path, team: Path, two: dict[str, Speaks], tmp_path: Path
) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text('{"gpt-x": {"prompt": 1, "completion": 3}}')
    with World(checkpoint, team, two, prices=prices) as server:
        answer = server.chat(
            "What is 5 + 7?", model="panel", temperature=0.5, metadata={"metaprobe-tags": "dimension=maths"}
        )
    panel = verdict_of(answer)["panel"]
    assert answer.choices[0].message.content == "It is 12", "on sums the panel has learned to believe maths"
    assert (panel["agent"], panel["asked"]) == ("maths", ["history", "maths"])
    assert panel["spent"] == {"history": None, "maths": pytest.approx(0.004)}
    assert 0 < panel["score"] <= 1
    assert "score" not in verdict_of(answer), "one reply holds one score"
    assert panel["stopped"] == "on maths"
    assert answer.choices[0].logprobs is None, "the caller asked for none"
    assert [two[name].bodies[0]["model"] for name in two] == ["history", "gpt-x"]
    assert two["maths"].bodies[0]["temperature"] == 0.5
    assert two["maths"].bodies[0]["logprobs"] is True


def test_a_stream_is_the_kept_answer(checkpoint: Path, team: Path, two: dict[str, Speaks]) -> None:
    with World(checkpoint, team, two) as server:
        whole = server.chat()
        chunks = list(server.chat(stream=True, stream_options={"include_usage": True}))
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        == whole.choices[0].message.content
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None, "stop"]
    assert chunks[-1].usage.total_tokens == 2000
    assert verdict_in(iter(chunks))["panel"] == verdict_of(whole)["panel"]
    assert [body["stream"] for body in two["history"].bodies] == [True, True], "whatever the caller asks for"


def with_number(number: float) -> dict[str, Any]:
    """A completion of which one log-probability is a number that JSON has not."""
    held = completion("It is 7")
    held["choices"][0]["logprobs"]["content"][0]["logprob"] = number
    return held


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("others", [("It is 12",), ()])
def test_a_number_outside_json_costs_an_answer_its_score_and_nobody_an_answer(
    checkpoint: Path, team: Path, number: float, others: tuple[str, ...]
) -> None:
    upstreams: dict[str, Any] = {"history": Speaks(with_number(number))}
    upstreams["maths"] = Speaks(others[0]) if others else Speaks(with_number(number))
    with World(checkpoint, team, upstreams) as server:
        for stream in (False, True):
            answer = server.ask(more={"stream": stream})
            assert answer.status_code == 200, answer.text
            assert ("It is 12" if others else "It is") in answer.text


@pytest.mark.parametrize("stream", [False, True])
def test_a_number_of_more_digits_than_python_reads_costs_nobody_an_answer(
    checkpoint: Path, team: Path, stream: bool
) -> None:
    raw = json.dumps(completion("It is 7") | {"created": "many"}).replace('"many"', "9" * 5000).encode()

    @answering
    async def says(scope: Any, body: bytes, receive: Any, send: Any) -> None:
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(raw))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": raw})

    with World(checkpoint, team, {"history": says, "maths": says}) as server:
        answer = server.ask(more={"stream": stream})
    assert answer.status_code == 200, answer.text
    assert "It is 7" in answer.text


def test_long_answers_are_read_and_judged_in_threads_and_kept_where_too_much_waits(
    checkpoint: Path, team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[str] = []
    judge = Panel.judge

    def noted(self: Panel, *given: Any, **named: Any) -> Any:
        judged.append(threading.current_thread().name)
        return judge(self, *given, **named)

    monkeypatch.setattr(Panel, "judge", noted)
    long = "It is 12 " * 5000
    with World(checkpoint, team, {"history": Speaks(long), "maths": Speaks(long)}) as server:
        assert server.ask().status_code == 200
        assert judged
        assert all(name.startswith("metaprobe-answers") for name in judged)

        async def full(self: FairThreads, work: Any, weight: int = 0, *, begun: bool = False) -> Any:
            if begun:
                return work()
            raise Busy(503, "busy", "9 pieces of work wait to be read; try again in 5 s")

        monkeypatch.setattr(FairThreads, "run", full)
        answer = server.ask()
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == long, "it is paid for"
    assert "9 pieces of work wait" in answer.json()["metaprobe"]["panel"]["reason"]


@pytest.mark.parametrize("broken", [Speaks(status=500), "http://127.0.0.1:9/v1", Speaks("", status=302)])
def test_an_upstream_that_fails_costs_its_answer(checkpoint: Path, team: Path, broken: Any) -> None:
    with World(checkpoint, team, {"history": broken, "maths": Speaks("It is 12")}) as server:
        answer = server.chat()
    panel = verdict_of(answer)["panel"]
    assert answer.choices[0].message.content == "It is 12"
    assert "1 of 2 requests failed (history: " in panel["reason"]
    assert "127.0.0.1" not in json.dumps(panel)


@pytest.mark.parametrize(
    "choice", [None, {"message": "It is 7"}, {"message": {"content": "It is 7", "tool_calls": ["f"]}}]
)
def test_an_upstream_s_answer_that_is_no_completion_costs_it_whole_and_streamed(
    checkpoint: Path, team: Path, choice: Any
) -> None:
    with World(checkpoint, team, {"history": Speaks({"choices": [choice]}), "maths": Speaks("It is 12")}) as server:
        whole = server.chat()
        chunks = list(server.chat(stream=True))
    assert whole.choices[0].message.content == "It is 12"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "It is 12"
    assert "history" in verdict_of(whole)["panel"]["reason"]


def test_a_body_of_any_kind_is_answered_or_refused(checkpoint: Path, team: Path, two: dict[str, Speaks]) -> None:
    body = {"model": "panel", "messages": [{"role": "user", "content": "What is 5 + 7?"}]}
    odd: list[tuple[dict[str, Any], int]] = [
        ({"n": 10**30}, 400),
        ({"n": "x"}, 400),
        ({"messages": None}, 400),
        ({"messages": [5, {"role": "user", "content": [7, None]}]}, 200),
        ({"model": 5}, 200),
        ({"model": "x" * 100_000}, 200),
        ({"stream": True, "stream_options": 5}, 200),
        ({"metadata": {"metaprobe-tags": 5}}, 400),
        ({"temperature": "x", "top_logprobs": -1}, 200),
    ]
    with World(checkpoint, team, two) as server:
        for more, status in odd:
            assert server.post("/v1/chat/completions", {**body, **more}).status_code == status, more


def test_where_all_fail_the_upstreams_are_named(checkpoint: Path, team: Path) -> None:
    with World(checkpoint, team, {"history": Speaks(status=500), "maths": "http://127.0.0.1:9/v1"}) as server:
        refused = server.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "a"}]})
    assert refused.status_code == 502
    error = refused.json()["error"]
    assert error["message"].startswith("no upstream answered (history: the upstream answered 500; maths: ")
    assert error["type"] == "upstream_error"


def test_a_request_that_all_refuse_is_refused_in_their_words(checkpoint: Path, team: Path) -> None:
    world = World(checkpoint, team, {"history": Speaks(status=400), "maths": Speaks(status=422)})
    with world as server, pytest.raises(openai.UnprocessableEntityError, match="no, 422"):
        server.chat(logprobs=True)


def test_a_key_that_an_upstream_refuses_is_not_the_callers_fault(checkpoint: Path, team: Path) -> None:
    world = World(checkpoint, team, {"history": Speaks(status=401), "maths": Speaks(status=403)})
    with world as server, pytest.raises(openai.InternalServerError, match="history: the upstream answered 401; maths"):
        server.chat()


def test_an_upstream_without_log_probabilities_is_asked_again_without(checkpoint: Path, team: Path) -> None:
    bare = Speaks("It is 7", logprobs=False)
    with World(checkpoint, team, {"history": bare, "maths": Speaks("It is 12")}) as server:
        assert verdict_of(server.chat())["panel"]["asked"] == ["history", "maths"]
        server.chat()
    assert [body.get("logprobs") for body in bare.bodies] == [True, None, None], "then it is known"


def test_each_answer_is_logged_with_its_agent(
    checkpoint: Path, team: Path, two: dict[str, Speaks], tmp_path: Path
) -> None:
    path = tmp_path / "scores.sqlite"
    with World(checkpoint, team, two, log=str(path)) as server:
        verdict = verdict_of(server.chat())
    rows = {row.tags["agent"]: row for row in entries(path)}
    kept = verdict["panel"]["agent"]
    assert {name: (row.tags["kept"], row.model) for name, row in rows.items()} == {
        "history": (str(int(kept == "history")), "history"),
        "maths": (str(int(kept == "maths")), "gpt-x"),
    }
    assert rows[kept].request_id == verdict["request_id"], "a label for the caller's id is one for the kept answer"


def test_an_answer_is_logged_whose_caller_does_not_wait_for_the_next(
    checkpoint: Path, team: Path, tmp_path: Path
) -> None:
    path, slow = tmp_path / "scores.sqlite", Speaks("It is 12", wait_s=30.0)
    with World(checkpoint, team, {"history": Speaks("It is 7"), "maths": slow}, log=str(path)) as server:
        caller = HTTPConnection(server.url.removeprefix("http://"))
        asked = json.dumps({"model": "panel", "messages": [{"role": "user", "content": "a"}]})
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        caller.request("POST", "/v1/chat/completions", asked, headers)
        wait_until(lambda: slow.bodies)
        caller.close()
        assert slow.left.wait(20), "the upstream hears that nobody waits"
    assert [(row.tags["agent"], row.tags["kept"]) for row in entries(path)] == [("history", "0")]


def test_the_command_takes_upstreams_by_name(monkeypatch: pytest.MonkeyPatch, team: Path) -> None:
    taken: list[Settings] = []
    monkeypatch.setattr("metaprobe.production.http.app.run_server", taken.append)
    named = ["--upstream", "maths=http://h/v1#gpt-x", "--upstream", "history=http://g/v1"]
    told = CliRunner().invoke(main, ["serve", "--panel", str(team), *named, "--panel-budget", "0.5"])
    assert told.exit_code == 0, told.output
    [settings] = taken
    assert (settings.checkpoint, settings.panel_budget) == ("bundled:quality", 0.5)
    assert {name: (one.url, one.model) for name, one in settings.named_upstreams.items()} == {
        "maths": ("http://h/v1", "gpt-x"),
        "history": ("http://g/v1", "history"),
    }
    one = CliRunner().invoke(main, ["serve", "bundled:quality", "--upstream", "http://h/v1"])
    assert one.exit_code == 0, one.output
    assert taken[1].upstream == "http://h/v1"
    assert CliRunner().invoke(main, ["serve"]).exit_code == 2


def entries(path: Path) -> Iterator[Any]:
    log = ScoreLog.open(str(path))
    try:
        yield from log.entries()
    finally:
        log.close()


def test_no_upstream_gets_a_key_that_is_not_its_own(
    checkpoint: Path, team: Path, two: dict[str, Speaks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAPROBE_UPSTREAM_KEY_MATHS", "of-maths-alone-1234")
    body = {"messages": [{"role": "user", "content": "a"}]}
    with World(checkpoint, team, two) as server:
        server.post(
            "/v1/chat/completions", body, authorization="Bearer sk-callers", x_metaprobe_key=KEY, idempotency_key="i"
        )
    assert two["maths"].headers[0]["authorization"] == "Bearer of-maths-alone-1234"
    assert "authorization" not in two["history"].headers[0]
    assert "idempotency-key" not in two["history"].headers[0]


def test_what_a_panel_cannot_answer_is_refused(checkpoint: Path, team: Path, two: dict[str, Speaks]) -> None:
    with World(checkpoint, team, two) as server:
        with pytest.raises(openai.BadRequestError, match="leave n out"):
            server.chat(n=3)
        assert server.post("/v1/chat/completions", {"messages": "a"}).status_code == 400
        assert server.post("/v1/embeddings", {"input": "a"}).json()["error"]["code"] == "no_upstream"
        assert [model.id for model in server.client.models.list()] == ["panel"]
    assert not any(one.bodies for one in two.values())


def test_samples_of_one_upstream_are_asked_until_the_panel_stops(checkpoint: Path, made_once: MadeOnce) -> None:
    with World(checkpoint, trained(biased_vote, made_once), {"m": Speaks("It is 12")}) as server:
        panel = verdict_of(server.chat(temperature=0.7))["panel"]
    assert set(panel["asked"]) == {"m"}
    assert panel["stopped"]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"upstreams": ("a=http://h/v1",)}, "no panel that chooses"),
        ({"panel": "p", "upstreams": ("a=http://h/v1", "http://h/v1")}, "one without a name"),
        ({"panel": "p", "upstreams": ("a=http://h/v1", "a=http://g/v1")}, "two upstreams are called 'a'"),
        ({"panel": "p", "upstreams": ("a=ftp://h/v1",)}, "not a base URL"),
        ({"upstream": "http://h/v1", "panel_price": 0.1}, "price or budget is given"),
    ],
)
def test_upstreams_that_do_not_fit_are_refused(given: dict[str, Any], match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        Settings(checkpoint="c", **given)


def test_an_agent_that_the_panel_does_not_know_is_refused_at_the_start(checkpoint: Path, team: Path) -> None:
    settings = Settings(checkpoint=checkpoint, panel=team, upstreams=("maths=http://h/v1", "poetry=http://h/v1"))
    with pytest.raises(SettingsError, match=r"no agent poetry.*history, maths, neither"):
        create_app(settings)
