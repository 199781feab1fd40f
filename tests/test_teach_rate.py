"""The server asks a share of the questions once more, and logs whether the answers agree."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import serving_clients
from chat_completions import answer_choice, chat_completion, chunks_of, token_entry
from served import KEY, answering, respond, running, stream_events
from serving_clients import Served

from metaprobe.production.http import second_answer
from metaprobe.production.http.app import create_app
from metaprobe.production.http.settings import Settings, SettingsError
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.records.parse import parse_text
from metaprobe.routing.panel.compared_answers import PanelAnswer

checkpoint = serving_clients.checkpoint
OUTCOME = "metaprobe_asked_again_total"


class Again:
    """An upstream that answers each question by the list of its answers, the last one again and again."""

    def __init__(self) -> None:
        self.answers: dict[str, list[str | int]] = {}
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.goes_on = threading.Event()
        """While it is not set, a second request for a question waits."""
        self.goes_on.set()

    @answering
    async def __call__(self, scope: Any, raw: bytes, receive: Any, send: Any) -> None:
        body = json.loads(raw)
        question = body["messages"][-1]["content"]
        given = sum(one["messages"][-1]["content"] == question for one in self.bodies)
        self.bodies.append(body)
        self.headers.append({name.decode().lower(): value.decode() for name, value in scope["headers"]})
        if given:
            await asyncio.to_thread(self.goes_on.wait, 30)
        answers = self.answers.get(question, ["12"])
        answer = answers[min(given, len(answers) - 1)]
        if isinstance(answer, int):
            await respond(send, answer, {"error": {"message": "no"}})
            return
        choice = answer_choice([token_entry(answer, -0.5)], logprobs=bool(body.get("logprobs")))
        whole = chat_completion(choice, usage={"prompt_tokens": 1000, "completion_tokens": 500})
        if body.get("stream"):
            *chunks, _ = chunks_of(whole)
            await stream_events(send, [*chunks, b"[DONE]"])
        else:
            await respond(send, 200, whole)


@contextmanager
def serving_again(checkpoint: Path, path: Path, **more: Any) -> Iterator[SimpleNamespace]:
    """Yields the upstream, a client, and the log of a server that asks every question again unless told otherwise."""
    upstream = Again()
    with running(upstream) as (url, _), pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAPROBE_API_KEY", KEY)
        patch.setenv("METAPROBE_UPSTREAM_KEY", "")
        given = {"teach_rate": 1.0, "log": str(path), "log_logprobs": True, **more}
        settings = Settings(checkpoint=checkpoint, upstream=f"{url}/v1", **given)
        with running(create_app(settings), lifespan="on") as (own, _):
            log = ScoreLog.open(path, entries=False)
            yield SimpleNamespace(upstream=upstream, server=Served(own), log=log)
            log.close()


def ask(server: Served, question: str, **more: Any) -> Any:
    messages = more.pop("messages", [{"role": "user", "content": question}])
    return server.client.chat.completions.create(model="m", messages=messages, **more)


def wait_for(known: Callable[[], Any]) -> Any:
    """Returns the first true value within a minute; the last one otherwise."""
    for _ in range(3000):
        if value := known():
            return value
        time.sleep(0.02)
    return known()


def counted(server: Served, outcome: str) -> float:
    lines = [
        line
        for line in server.get("/metrics", authorization=f"Bearer {KEY}").text.splitlines()
        if line.startswith(OUTCOME)
    ]
    return sum(float(line.split()[-1]) for line in lines if f'outcome="{outcome}"' in line)


@pytest.fixture(scope="module")
def again(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    folder = tmp_path_factory.mktemp("again")
    prices = folder / "prices.json"
    prices.write_text('{"m": {"prompt": 1.0, "completion": 2.0}}')
    with serving_again(checkpoint, folder / "scores.sqlite", prices=prices) as served:
        yield served


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("second", "same"), [("It is 7.0", True), ("8", False)])
def test_the_agreement_of_a_second_answer_is_logged_with_its_cost(
    again: SimpleNamespace, second: str, same: bool, stream: bool
) -> None:
    question = f"how many, {second}, {stream}?"
    again.upstream.answers[question] = ["7", second]
    before = len(again.log.agreements()[0])
    answer = ask(again.server, question, stream=stream, temperature=0.7, extra_headers={"idempotency-key": "k"})
    if stream:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices) == "7"
    else:
        assert answer.choices[0].message.content == "7"
    found = wait_for(lambda: again.log.agreements()[0][before:])
    assert [one.same for one in found] == [same]
    assert (found[0].prompt_tokens, found[0].tokens, found[0].cost_usd) == (1000, 500, pytest.approx(0.002))
    assert again.log.entry(found[0].request_id).model == "m"
    first, repeated = [one for one in again.upstream.bodies if one["messages"][-1]["content"] == question]
    assert first.get("stream", False) is stream
    assert not {"stream", "logprobs"} & set(repeated)
    assert repeated["temperature"] == 0.7
    assert "idempotency-key" not in again.upstream.headers[-1]


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
IN_TOOL_CALLS = [
    {"role": "user", "content": "weather?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "rain"},
]


@pytest.mark.parametrize(
    ("request_fields", "outcome"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"messages": IN_TOOL_CALLS}, "tools"),
        ({"n": 2}, "several_answers"),
        ({"temperature": 0}, "greedy"),
        ({"extra_body": {"top_k": 1}}, "greedy"),
        ({"extra_body": {"plugins": [{"id": "web"}]}}, "unknown_field"),
        ({"seed": 0}, "seed_or_store"),
        ({"store": True}, "seed_or_store"),
    ],
)
def test_a_question_is_not_asked_again_where_this_acts_twice_or_tells_nothing(
    again: SimpleNamespace, request_fields: dict[str, Any], outcome: str
) -> None:
    asked, before = len(again.upstream.bodies), counted(again.server, outcome)
    ask(again.server, f"once, {request_fields}", **request_fields)
    assert wait_for(lambda: counted(again.server, outcome) > before)
    ask(again.server, f"then, {request_fields}")  # which is asked again, after everything that waited
    wait_for(lambda: len(again.upstream.bodies) >= asked + 3)
    assert len(again.upstream.bodies) == asked + 3


def test_harmless_fields_of_a_local_server_are_sent_again(again: SimpleNamespace) -> None:
    fields = {"min_p": 0.1, "repetition_penalty": 1.0, "chat_template_kwargs": {"enable_thinking": False}}
    ask(again.server, "local", extra_body=fields, extra_headers={"accept": "text/event-stream"})
    wait_for(lambda: sum(one["messages"][-1]["content"] == "local" for one in again.upstream.bodies) == 2)
    assert fields.items() <= again.upstream.bodies[-1].items()
    assert [one["accept"] for one in again.upstream.headers[-2:]] == ["text/event-stream", "*/*"]


def test_a_long_answer_is_not_asked_for_again(again: SimpleNamespace) -> None:
    before = counted(again.server, "too_long")
    again.upstream.answers["long"] = ["word " * 20_000]
    ask(again.server, "long")
    assert counted(again.server, "too_long") == before + 1


def test_nothing_is_asked_again_for_an_answer_that_the_log_did_not_take(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_again(checkpoint, tmp_path / "scores.sqlite") as served:
        with monkeypatch.context() as patch:
            patch.setattr(ScoreLog, "write", lambda log, entry: False)
            ask(served.server, "q")
        ask(served.server, "then")
        assert wait_for(lambda: counted(served.server, "same") == 1)
        assert len(served.upstream.bodies) == 3


def test_an_agreement_whose_answer_is_not_stored_is_not_stored_either(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_again(checkpoint, tmp_path / "scores.sqlite") as served:
        with monkeypatch.context() as patch:
            patch.setattr(ScoreLog, "flush", lambda log, timeout_s=0: False)
            ask(served.server, "q")
            assert wait_for(lambda: counted(served.server, "not_logged") == 1)
        assert served.log.tables.read("SELECT count(*) FROM agreements")[0][0] == 0


def test_a_failing_second_request_leaves_the_first_answer_and_pauses_the_asking(
    checkpoint: Path, tmp_path: Path
) -> None:
    with serving_again(checkpoint, tmp_path / "scores.sqlite", agent_failures=2) as served:
        for number in range(3):
            served.upstream.answers[f"q{number}"] = ["1", 503]
            assert ask(served.server, f"q{number}").choices[0].message.content == "1"
            wait_for(lambda number=number: counted(served.server, "failed") + counted(served.server, "paused") > number)
        assert (counted(served.server, "failed"), counted(served.server, "paused")) == (2, 1)
        assert served.log.agreements()[0] == []
        assert len(served.upstream.bodies) == 5


def test_first_answers_wait_for_no_second_one_and_what_finds_no_room_is_dropped(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_answer, "MAX_WAITING", 2)
    with serving_again(checkpoint, tmp_path / "scores.sqlite") as served:
        served.upstream.goes_on.clear()
        for number in range(5):  # one is asked again, two wait
            assert ask(served.server, f"q{number}").choices[0].message.content == "12"
            assert number or wait_for(lambda: len(served.upstream.bodies) == 2)
        assert wait_for(lambda: counted(served.server, "queue_full") == 2)
        served.upstream.goes_on.set()
        assert wait_for(lambda: counted(served.server, "same") == 3)


def test_no_caller_pays_for_a_second_answer(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving_again(checkpoint, tmp_path / "a.sqlite", auth=False) as served:
        ask(served.server, "q", extra_headers={"authorization": "Bearer callers"})
        wait_for(lambda: len(served.upstream.headers) == 2)
        assert [one.get("authorization") for one in served.upstream.headers] == ["Bearer callers", None]
    with serving_again(checkpoint, tmp_path / "b.sqlite") as served:
        ask(served.server, "q")  # by a key of this server, which no upstream gets
        wait_for(lambda: len(served.upstream.headers) == 2)
        assert [one.get("authorization") for one in served.upstream.headers] == [None, None]


def test_by_default_nothing_is_asked_again(checkpoint: Path, tmp_path: Path) -> None:
    with serving_again(checkpoint, tmp_path / "scores.sqlite", teach_rate=0.0) as served:
        ask(served.server, "q")
        ask(served.server, "q")
        assert len(served.upstream.bodies) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"teach_rate": 0.1, "upstream": "http://127.0.0.1:9/v1"}, "no log is given"),
        ({"teach_rate": 0.1, "log": "x.sqlite"}, "without an upstream"),
        ({"teach_rate": 1.5, "log": "x.sqlite", "upstream": "http://127.0.0.1:9/v1"}, "teach_rate is 1.5"),
    ],
)
def test_a_rate_that_cannot_be_served_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings(checkpoint="bundled", auth=False, **given)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("The answer is 12.", "Answer: 12.0", True),
        ("12", "13", False),
        ("12", "twelve", True),
        ("12", "I do not know", False),
        ("5120", "5,120", True),
        ("429", "13 * 33 = 429", True),
        ("429", "13 * 33 = 430", False),
        ("12 km", "12 miles", False),
        ("(B)", "b", True),
        ("It is Paris.", "Paris", True),
        ("Paris", "Rome", False),
        ("Paris", " ", None),
    ],
)
def test_two_answers_are_compared_by_their_form(first: str, second: str, same: bool | None) -> None:
    question = "Which one is it?"
    assert PanelAnswer(first).same_as(PanelAnswer(second), question) is same
    assert PanelAnswer(second).same_as(PanelAnswer(first), question) is same
    assert PanelAnswer(first).same_as(PanelAnswer(second, cut=True), question) is None


def test_an_answer_is_compared_without_the_thinking_before_it() -> None:
    shown = {"message": {"content": "<think>5 or 7?</think>7"}, "finish_reason": "stop", "index": 0}
    assert PanelAnswer.of(parse_text({"choices": [shown]})).same_as(PanelAnswer("7")) is True
