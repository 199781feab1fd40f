"""`Panel.ask` asks one model until another answer is not worth its price, or several whom the panel names."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from made_once import MadeOnce
from panel_worlds import biased_vote, completion, topics, trained

from metaprobe.llms.base import Request
from metaprobe.llms.pricing import Price
from metaprobe.records.errors import RecordError
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.compared_answers import PanelAnswer, PanelStep
from metaprobe.routing.panel.planner import FIRST_TO, Setting

MESSAGES = [{"role": "user", "content": "What is 5 + 7?"}]


@pytest.fixture(scope="module")
def panel(made_once: MadeOnce) -> Panel:
    return Panel.load(trained(biased_vote, made_once))


@pytest.fixture(scope="module")
def team(made_once: MadeOnce) -> Panel:
    return Panel.load(trained(topics, made_once))


class Client:
    """Answers each request with the next of its answers: a text, or an exception to raise."""

    def __init__(self, *answers: str | Exception, wait: bool = True, usage: int = 0) -> None:
        self.answers, self.usage = list(answers), usage
        self.asked: list[dict[str, Any]] = []
        self.cancelled = 0
        create = self._later if wait else self._now
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=create))

    @property
    def models(self) -> list[str]:
        return [request["model"] for request in self.asked]

    def _now(self, **request: Any) -> Any:
        self.asked.append(request)
        answer = self.answers[(len(self.asked) - 1) % len(self.answers)]
        if isinstance(answer, Exception):
            raise answer
        usage = {"usage": {"prompt_tokens": self.usage, "completion_tokens": self.usage}} if self.usage else {}
        return completion(answer, logprob=-0.03) | usage

    async def _later(self, **request: Any) -> Any:
        place = len(self.asked)
        try:
            response = self._now(**request)
            await asyncio.sleep(0.01 * place)
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


def test_the_one_client_of_a_panel_whose_answers_named_no_agent_is_asked(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panel, "agents", replace(panel.agents, names=("",)))
    answered = ask(panel, Client("It is 7"), at_most=4)
    assert answered.response is not None
    assert "known" not in answered.reason, "the answers are of the agent that it learned from"


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


class Hangs:
    """A client that never answers."""

    cancelled = False

    async def __call__(self, **_: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True


def test_what_came_within_the_time_is_kept_and_the_rest_is_cancelled(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panel, "settings", (Setting(FIRST_TO, 99, 16.0, 1.0),))
    first, hangs = Client("It is 12"), Hangs()
    calls = iter([first.chat.completions.create, hangs])

    async def create(**request: Any) -> Any:
        return await next(calls, hangs)(**request)

    answered = asyncio.run(panel.ask(create, MESSAGES, model="m", at_once=2, within=0.2))
    assert len(answered.responses) == 1
    assert answered.response is not None
    assert "time was over" in answered.reason
    assert "0.2 s" in answered.stopped
    assert hangs.cancelled


@pytest.mark.parametrize("given", [{"within": -1}, {"within": math.nan}, {"hedge_after": math.inf}, {"within": "1"}])
def test_a_time_that_is_no_seconds_is_refused(panel: Panel, given: dict[str, Any]) -> None:
    client = Client("It is 12")
    with pytest.raises(RecordError, match="seconds"):
        ask(panel, client, **given)
    assert not client.asked


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


def test_the_store_of_a_panel_of_agents_has_no_plan(team: Panel) -> None:
    with pytest.raises(RecordError, match="several agents"):
        ask(team, Client("It is 12"))


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


# Several clients: it asks whom the panel names, and accounts for what each costs.


class Naming:
    """Names these agents in turn, one after each answer, then nobody; None for every further one: it insists."""

    def __init__(self, *agents: str, insists: bool = False) -> None:
        self.agents, self.insists = agents, insists
        self.seen: list[tuple[Sequence[PanelAnswer], Mapping[str, float] | None, str]] = []

    def __call__(
        self,
        question: str,
        dimension: str | None,
        answers: Sequence[PanelAnswer],
        price: float | None,
        prices: Mapping[str, float] | None,
        request_id: str,
        **more: Any,
    ) -> PanelStep:
        self.seen.append((answers, prices, request_id))
        place = 0 if self.insists else len(answers)
        agent = self.agents[place] if place < len(self.agents) else None
        return PanelStep(agent, {"history": 0.1, "maths": 0.2, "neither": -0.1}, "named" if agent else "not worth it")


class Own:
    """A model of metaprobe."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Any:
        self.requests.append(request)
        return request.call(model="own", text=self.answer, finish_reason="stop", cost_usd=0.5)


def ask_team(team: Panel, clients: Any, way: Naming, **more: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "next", way)
        return asyncio.run(team.ask(clients, MESSAGES, **more))


def test_the_next_client_is_asked_beside_one_that_hangs(team: Panel) -> None:
    hangs, other = Hangs(), Client("It is 12")
    way = Naming("history", insists=True)
    answered = ask_team(team, {"history": hangs, "maths": other}, way, hedge_after=0.05, within=20)
    assert answered.asked == ("history", "maths")
    assert answered.agents == ("maths",)
    assert answered.response is not None
    assert hangs.cancelled
    assert math.isinf(way.seen[1][1]["history"]), "beside it, the panel names another"


def test_it_asks_whom_the_panel_names_and_stops_when_nobody_is_named(team: Panel) -> None:
    clients = {"history": Client("It is 7"), "maths": Client("It is 12"), "neither": Client("It is 3")}
    answered = ask_team(
        team, clients, Naming("history", "maths"), dimension="maths", prices={"history": 0.1, "maths": 0.2}
    )
    assert answered.asked == answered.agents == ("history", "maths")
    assert answered.verdict.kept == 1, "on sums the panel has learned to believe the second"
    assert answered.response is answered.responses[1]
    assert answered.spent == {"history": 0.1, "maths": 0.2}
    assert (answered.stopped, clients["neither"].models) == ("not worth it", [])


def test_each_agent_is_asked_for_its_own_model_in_its_own_way(team: Panel) -> None:
    later, now, own = Client("It is 12"), Client("It is 12", wait=False), Own("It is 12")
    clients = {"history": later, "maths": now.chat.completions.create, "neither": own}
    way = Naming("history", "maths", "neither")
    answered = ask_team(team, clients, way, model={"maths": "gpt-x"}, temperature=0.7, max_tokens=9)
    assert answered.agents == ("history", "maths", "neither")
    assert (later.models, now.models) == (["history"], ["gpt-x"])
    [request] = own.requests
    assert (request.messages[0].content, request.sampling.max_tokens) == ("What is 5 + 7?", 9)
    assert request.sampling.seed is not None
    assert answered.spent == {"history": None, "maths": None, "neither": 0.5}, "None: not known"
    assert [(one.agent, one.text) for one in way.seen[-1][0]] == [(name, "It is 12") for name in clients]


def test_a_client_that_fails_costs_its_answer_and_is_not_asked_again(team: Panel) -> None:
    clients = {"history": Client("It is 12"), "maths": Client(ConnectionError("down"))}
    way = Naming("maths", "history")
    answered = ask_team(team, clients, way)
    assert (answered.asked, answered.agents) == (("maths", "history"), ("history",))
    assert "1 of 2 requests failed (maths: ConnectionError: down)" in answered.reason
    answers, prices, _ = way.seen[1]
    assert [(one.agent, one.cut) for one in answers] == [("maths", True)]
    assert prices == {"maths": math.inf, "neither": math.inf}, "neither has no client"


def test_where_the_panel_insists_on_a_client_that_failed_the_next_best_is_asked(team: Panel) -> None:
    clients = {"maths": Client(TimeoutError()), "neither": Client("It is 3"), "history": Client("It is 12")}
    answered = ask_team(team, clients, Naming("maths", insists=True))
    assert answered.agents == ("history",)
    assert "maths would have been asked, and history was" in answered.reason
    assert "cannot be asked" in answered.stopped


def test_where_all_clients_fail_a_reason_comes_and_no_exception(team: Panel) -> None:
    answered = ask_team(team, {"maths": Client(TimeoutError("slow"))}, Naming("maths", "history"))
    assert (answered.response, answered.verdict, answered.spent) == (None, None, {})
    assert "no answer came" in answered.reason
    assert "no client is left" in answered.stopped


def test_tokens_are_priced_where_they_are_counted(team: Panel) -> None:
    clients = {"maths": Client("It is 12", usage=1000), "history": Client("It is 12")}
    prices = dict.fromkeys(clients, Price(1.0, 3.0))
    answered = ask_team(team, clients, Naming("maths", "history"), prices=prices)
    assert answered.spent == {"maths": pytest.approx(0.004), "history": None}


def test_several_samples_of_one_agent_are_asked_together_and_the_rest_is_cancelled(team: Panel) -> None:
    client = Client("It is 12")
    answered = ask_team(team, {"maths": client}, Naming("maths"), at_once=3, at_most=3)
    assert (answered.asked, answered.agents) == (("maths",) * 3, ("maths",))
    assert client.cancelled == len(client.models) - 1


def test_the_same_request_has_the_same_id_and_another_one_another(team: Panel) -> None:
    def id_of(**more: Any) -> str:
        way = Naming("maths")
        ask_team(team, {"maths": Client("It is 12")}, way, **more)
        return way.seen[0][2]

    assert id_of() == id_of() != id_of(temperature=0.3)
    assert id_of(request_id="r1") == "r1"


@pytest.mark.parametrize(
    ("clients", "more", "match"),
    [
        ({}, {}, "a name for each"),
        ({"maths": Client("1")}, {"model": {"other": "m"}}, "models of other"),
        ({"maths": Client("1")}, {"samples": 3}, "one client"),
        ({"maths": Own("1")}, {"logit_bias": {}}, "logit_bias"),
        ({"maths": Client("1")}, {"at_once": 0}, "at_once"),
    ],
)
def test_what_cannot_be_asked_of_several_is_refused_before_it_is_paid_for(
    team: Panel, clients: Any, more: dict[str, Any], match: str
) -> None:
    with pytest.raises(RecordError, match=match):
        ask_team(team, clients, Naming("maths"), **more)


def test_a_checkpoint_without_a_way_of_asking_says_so(team: Panel) -> None:
    client = Client("It is 12")
    with pytest.raises(RecordError, match="no way of asking"):
        asyncio.run(team.ask({"maths": client}, MESSAGES))
    assert client.models == []
