"""`Panel.ask` with several clients: it asks whom the panel names, and accounts for what each costs."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from made_once import MadeOnce
from panel_worlds import completion, topics, trained

from metaprobe.llms.base import Request
from metaprobe.llms.pricing import Price
from metaprobe.records.errors import RecordError
from metaprobe.routing.panel import Panel
from metaprobe.routing.panel_answers import PanelAnswer, PanelStep

MESSAGES = [{"role": "user", "content": "What is 5 + 7?"}]


@pytest.fixture(scope="module")
def team(made_once: MadeOnce) -> Panel:
    return Panel.load(trained(topics, made_once))


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


class Client:
    """Gives one answer to every request, or raises it."""

    def __init__(self, answer: str | Exception, *, later: bool = True, usage: int = 0) -> None:
        self.answer, self.usage = answer, usage
        self.models: list[str] = []
        self.cancelled = 0
        create = self._later if later else self._now
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=create))

    def _now(self, **request: Any) -> Any:
        self.models.append(request["model"])
        if isinstance(self.answer, Exception):
            raise self.answer
        usage = {"usage": {"prompt_tokens": self.usage, "completion_tokens": self.usage}} if self.usage else {}
        return completion(self.answer) | usage

    async def _later(self, **request: Any) -> Any:
        response = self._now(**request)
        try:
            await asyncio.sleep(0.02 * (len(self.models) - 1))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return response


class Own:
    """A model of metaprobe."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Any:
        self.requests.append(request)
        return request.call(model="own", text=self.answer, finish_reason="stop", cost_usd=0.5)


def ask(team: Panel, clients: Any, way: Naming, **more: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "next", way)
        return asyncio.run(team.ask(clients, MESSAGES, **more))


def test_it_asks_whom_the_panel_names_and_stops_when_nobody_is_named(team: Panel) -> None:
    clients = {"history": Client("It is 7"), "maths": Client("It is 12"), "neither": Client("It is 3")}
    answered = ask(team, clients, Naming("history", "maths"), dimension="maths", prices={"history": 0.1, "maths": 0.2})
    assert answered.asked == answered.agents == ("history", "maths")
    assert answered.verdict.kept == 1, "on sums the panel has learned to believe the second"
    assert answered.response is answered.responses[1]
    assert answered.spent == {"history": 0.1, "maths": 0.2}
    assert (answered.stopped, clients["neither"].models) == ("not worth it", [])


def test_each_agent_is_asked_for_its_own_model_in_its_own_way(team: Panel) -> None:
    later, now, own = Client("It is 12"), Client("It is 12", later=False), Own("It is 12")
    clients = {"history": later, "maths": now.chat.completions.create, "neither": own}
    way = Naming("history", "maths", "neither")
    answered = ask(team, clients, way, model={"maths": "gpt-x"}, temperature=0.7, max_tokens=9)
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
    answered = ask(team, clients, way)
    assert (answered.asked, answered.agents) == (("maths", "history"), ("history",))
    assert "1 of 2 requests failed (maths: ConnectionError: down)" in answered.reason
    answers, prices, _ = way.seen[1]
    assert [(one.agent, one.cut) for one in answers] == [("maths", True)]
    assert prices == {"maths": math.inf, "neither": math.inf}, "neither has no client"


def test_where_the_panel_insists_on_a_client_that_failed_the_next_best_is_asked(team: Panel) -> None:
    clients = {"maths": Client(TimeoutError()), "neither": Client("It is 3"), "history": Client("It is 12")}
    answered = ask(team, clients, Naming("maths", insists=True))
    assert answered.agents == ("history",)
    assert "maths would have been asked, and history was" in answered.reason
    assert "cannot be asked" in answered.stopped


def test_where_all_fail_a_reason_comes_and_no_exception(team: Panel) -> None:
    answered = ask(team, {"maths": Client(TimeoutError("slow"))}, Naming("maths", "history"))
    assert (answered.response, answered.verdict, answered.spent) == (None, None, {})
    assert "no answer came" in answered.reason
    assert "no client is left" in answered.stopped


def test_tokens_are_priced_where_they_are_counted(team: Panel) -> None:
    clients = {"maths": Client("It is 12", usage=1000), "history": Client("It is 12")}
    prices = dict.fromkeys(clients, Price(1.0, 3.0))
    answered = ask(team, clients, Naming("maths", "history"), prices=prices)
    assert answered.spent == {"maths": pytest.approx(0.004), "history": None}


def test_several_samples_of_one_agent_are_asked_together_and_the_rest_is_cancelled(team: Panel) -> None:
    client = Client("It is 12")
    answered = ask(team, {"maths": client}, Naming("maths"), at_once=3, at_most=3)
    assert (answered.asked, answered.agents) == (("maths",) * 3, ("maths",))
    assert client.cancelled == len(client.models) - 1


def test_the_same_request_has_the_same_id_and_another_one_another(team: Panel) -> None:
    def id_of(**more: Any) -> str:
        way = Naming("maths")
        ask(team, {"maths": Client("It is 12")}, way, **more)
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
def test_what_cannot_be_asked_is_refused_before_it_is_paid_for(
    team: Panel, clients: Any, more: dict[str, Any], match: str
) -> None:
    with pytest.raises(RecordError, match=match):
        ask(team, clients, Naming("maths"), **more)


def test_a_checkpoint_without_a_way_of_asking_says_so(team: Panel) -> None:
    client = Client("It is 12")
    with pytest.raises(RecordError, match="no way of asking"):
        asyncio.run(team.ask({"maths": client}, MESSAGES))
    assert client.models == []
