"""`Panel.ask` asks one model until another answer is not worth its price, whatever its requests do."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from made_once import MadeOnce
from panel_worlds import biased_vote, completion, topics, trained

from metaprobe.records.errors import RecordError
from metaprobe.routing.panel import Panel
from metaprobe.routing.panel_asks import FIRST_TO, Setting

MESSAGES = [{"role": "user", "content": "What is 5 + 7?"}]


@pytest.fixture(scope="module")
def panel(made_once: MadeOnce) -> Panel:
    return Panel.load(trained(biased_vote, made_once))


class Client:
    """Answers each request with the next of its answers: a text, or an exception to raise."""

    def __init__(self, *answers: str | Exception, wait: bool = True) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []
        self.cancelled = 0
        create = self._later if wait else self._now
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=create))

    def _now(self, **request: Any) -> Any:
        self.asked.append(request)
        answer = self.answers[(len(self.asked) - 1) % len(self.answers)]
        if isinstance(answer, Exception):
            raise answer
        return completion(answer, logprob=-0.03)

    async def _later(self, **request: Any) -> Any:
        place = len(self.asked)
        try:
            response = self._now(**request)
            await asyncio.sleep(0.005 * place)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return response


def ask(panel: Panel, client: Client, **more: Any) -> Any:
    return asyncio.run(panel.ask(client, MESSAGES, model="m", **more))


def test_it_stops_before_the_last_answer_where_the_answers_agree(panel: Panel) -> None:
    client = Client("It is 12")
    answered = ask(panel, client, at_most=16, samples=3)
    assert len(client.asked) <= len(answered.asked) < 16
    assert answered.verdict.kept is not None
    assert answered.response in answered.responses
    assert answered.reason == ""
    assert all(request["logprobs"] is True for request in client.asked)


def test_it_asks_all_where_it_never_stops_and_no_more(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel, "settings", (Setting(FIRST_TO, 99, 16.0, 1.0),))
    client = Client("It is 12", "It is 7")
    answered = ask(panel, client, at_most=5, at_once=2)
    assert (len(answered.asked), len(answered.responses), len(client.asked)) == (5, 5, 5)


def test_it_never_asks_more_than_the_checkpoint_learned_from(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel, "settings", (Setting(FIRST_TO, 99, 16.0, 1.0),))
    assert ask(panel, Client("It is 12", "It is 7"), at_most=16).asked == ("m",) * panel.most


def test_what_is_under_way_when_it_stops_is_cancelled(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel, "settings", (Setting(FIRST_TO, 1, 1.0, 1.0),))
    client = Client("It is 12")
    answered = ask(panel, client, at_most=8, at_once=4)
    assert len(answered.responses) == 1
    assert len(answered.asked) == 4
    assert client.cancelled == len(client.asked) - 1, "each that began, but for the one that answered"


def test_a_request_that_fails_costs_its_answer_and_not_the_others(panel: Panel) -> None:
    client = Client(ConnectionError("refused"), "It is 12", "It is 12", "It is 12")
    answered = ask(panel, client, at_most=4)
    assert answered.response is not None
    assert "1 of" in answered.reason
    assert "refused" in answered.reason


def test_where_all_fail_a_reason_comes_and_no_exception(panel: Panel) -> None:
    client = Client(TimeoutError("too slow"))
    answered = ask(panel, client, at_most=3)
    assert (answered.response, answered.verdict, len(answered.asked)) == (None, None, 3)
    assert "no answer came" in answered.reason


def test_an_answer_that_is_no_response_is_unreadable(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("It is 12", wait=False)
    monkeypatch.setattr(client.chat.completions, "create", lambda **request: {"error": {"message": "overloaded"}})
    answered = ask(panel, client, at_most=2)
    assert answered.response is None
    assert "cannot be read" in answered.reason


def test_a_client_that_is_not_asynchronous_is_asked_too(panel: Panel) -> None:
    answered = ask(panel, Client("It is 12", wait=False), at_most=4)
    assert answered.verdict.kept is not None


def test_a_retry_decides_alike(panel: Panel) -> None:
    first, second = (ask(panel, Client("It is 12"), samples=3.3) for _ in range(2))
    assert first.setting == second.setting


def test_bounds_are_checked_before_anything_is_asked(panel: Panel) -> None:
    client = Client("It is 12")
    with pytest.raises(RecordError, match="at_most"):
        ask(panel, client, at_most=0)
    with pytest.raises(RecordError, match="price"):
        ask(panel, client, price=0.1, samples=2)
    assert client.asked == []


def test_the_store_of_a_panel_of_agents_has_no_plan(made_once: MadeOnce) -> None:
    with pytest.raises(RecordError, match="several agents"):
        ask(Panel.load(trained(topics, made_once)), Client("It is 12"))


@pytest.mark.parametrize(
    "more", [{"at_most": 2.5}, {"at_most": float("nan")}, {"at_once": 1.5}, {"price": "1"}, {"n": 4}, {"stream": True}]
)
def test_what_cannot_be_asked_is_refused_before_it_is_paid_for(panel: Panel, more: dict[str, Any]) -> None:
    client = Client("It is 12")
    with pytest.raises(RecordError):
        ask(panel, client, **more)
    assert client.asked == []


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [StopIteration(), Unspeakable(), ValueError("\ud800")])
@pytest.mark.parametrize("wait", [True, False])
def test_whatever_a_client_raises_costs_an_answer(panel: Panel, error: Exception, wait: bool) -> None:
    if wait and isinstance(error, StopIteration):
        pytest.skip("a coroutine turns it into a RuntimeError by itself")
    answered = ask(panel, Client(error, wait=wait), at_most=2)
    assert (answered.response, len(answered.asked)) == (None, 2)
    answered.reason.encode()


def test_a_client_that_gives_a_request_up_cancels_nobody_else(panel: Panel) -> None:
    async def create(**request: Any) -> Any:
        raise asyncio.CancelledError

    client = Client("It is 12")
    client.chat.completions.create = create
    assert "gave the request up" in ask(panel, client, at_most=2).reason


def test_each_request_is_one_answer_however_many_choices_come(panel: Panel) -> None:
    client = Client("It is 12", wait=False)
    client.chat.completions.create = lambda **request: completion("It is 12", "It is 7", "It is 9")
    answered = ask(panel, client, at_most=3)
    assert answered.verdict.classes[0].members == tuple(range(len(answered.responses)))


def test_a_caller_that_waits_no_longer_leaves_nothing_under_way(panel: Panel) -> None:
    async def late() -> int:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(panel.ask(client, MESSAGES, model="m"), 0.05)
        for _ in range(200):  # a thread may still be on its way to the client
            if len(asyncio.all_tasks()) == 1:
                break
            await asyncio.sleep(0.05)
        return len(asyncio.all_tasks())

    client = Client("It is 12")

    async def create(**request: Any) -> None:
        await asyncio.sleep(60)

    client.chat.completions.create = create
    assert asyncio.run(late()) == 1
