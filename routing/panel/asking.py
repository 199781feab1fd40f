"""The panel: judges several answers, and asks one model or several until one more answer is not worth its price.

The verdict on answers, and whom to ask next, come from `routing.panel.judgement`. One loop of asking serves all: a way
names the agent to ask next, or nobody; requests begin, answers come, and the rest is cancelled. For one agent the
checkpoint's curves of stopping decide, for several `Panel.next`.
"""

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from metaprobe.checkpoints.display import explain_fields
from metaprobe.llms.pricing import Price
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.reading import fields, get, usage, without_surrogates
from metaprobe.records.tool_calls import requires_tool_call
from metaprobe.records.types import Call
from metaprobe.routing.panel.compared_answers import (
    MOST_TOGETHER,
    PanelAnswer,
    PanelStep,
    PanelVerdict,
    answer_of,
    told,
)
from metaprobe.routing.panel.judgement import PanelJudge, PriceOf
from metaprobe.routing.panel.one_request import ask_client, ask_llm, content_of, is_llm, llm_request
from metaprobe.routing.panel.planner import FIXED, Setting

AT_ONCE = 2
"""Requests of one client that are under way together by default. Of several clients one is asked at a time."""


@explain_fields
@dataclass(frozen=True, slots=True)
class PanelAnswered:
    """Result of asking one model or several."""

    response: Any
    """The response to keep; None where none can be read."""
    score: float | None
    """Calibrated P(right) of that response; None where none is kept."""
    verdict: PanelVerdict | None
    """The panel's verdict on all answers; None where no answer came."""
    responses: tuple[Any, ...]
    """All responses, in the order in which they came."""
    agents: tuple[str, ...]
    """The agent that gave each response."""
    asked: tuple[str, ...]
    """The agent of each request in the order of asking, failed and cancelled requests among them."""
    spent: dict[str, float | None]
    """US dollars by agent for the responses that came: by the prices that were given, else by what a call says of its
    cost, else by the checkpoint's mean price; None where none of these is known."""
    setting: Setting | None
    """The way to stop that decided, where one agent is asked."""
    stopped: str
    """Why no further agent was asked."""
    reason: str
    """Says what is doubtful and what failed; empty where nothing is."""


class Panel(PanelJudge):
    """Judges several answers to one question. Several threads may share it.

    An example:

        >>> from metaprobe.train import train_panel
        >>> panel = Panel(train_panel("outcomes.jsonl", out="out/panel"))
        >>> verdict = panel.judge(["Paris", "Paris", "Lyon"], agents=["large", "small", "small"])
        >>> verdict.kept, len(verdict.classes), 0 < verdict.score < 1
        (0, 2, True)
    """

    async def ask(
        self,
        client: Any | Mapping[str, Any],
        messages: Sequence[Mapping[str, Any]],
        *,
        model: str | Mapping[str, str] = "",
        at_most: int = 16,
        price: float | None = None,
        samples: float | None = None,
        budget: float | None = None,
        prices: Mapping[str, PriceOf] | None = None,
        at_once: int | None = None,
        dimension: str = "",
        choices: Sequence[str] = (),
        same: Callable[[str], Hashable | None] | None = None,
        request_id: str = "",
        within: float | None = None,
        hedge_after: float | None = None,
        in_turn: "InTurn | None" = None,
        **request: Any,
    ) -> PanelAnswered:
        """Asks one client or several until one more answer is not worth its price, and returns which to keep.

        `client`: of the package openai, asynchronous or not, any other with `chat.completions.create`, a function that
        takes the same (`litellm.acompletion`), or a model of metaprobe; or a mapping of an agent's name, as the
        checkpoint knows it, to its client. `model`: what the API calls the model; of several clients a mapping, by
        default the agents' names. `at_most`: requests, those that fail among them, and never more than the answers to a
        question that the checkpoint learned from. `at_once`: how many requests of one agent are under way together; by
        default 2 of one client, 1 of several. When it stops, they are cancelled. Each request is of one answer: without
        `n` and `stream`. Asynchronous clients of openai and models of metaprobe are asked by stream, so that a server
        stops writing what is cancelled; their response is the whole one.

        `price` and `samples` are as for `plan`, of several clients `price` and `budget` as for `next`. `prices`:
        dollars an answer, or a `Price` of tokens, by agent. `dimension`, `choices` and `same` are as for `judge`.
        `request_id`: the same id decides alike; by default it follows from the request. `request` is handed on
        (temperature, max_tokens, ...), with log-probabilities asked for. Where its `tool_choice` requires a tool call,
        an answer in words counts against all others.

        `within`: seconds for all requests together. Then those under way are cancelled, and the best answer that came
        is kept. `hedge_after`: of several clients, seconds without an answer after which the next client is asked
        beside those under way. Once an answer has come, a client that was silent for so long is not
        waited for. 0 asks all at once, and waits for those whose answers are worth it. `in_turn` is awaited with
        what reads and judges answers, and returns what that returns: a server does long work off its event loop.

        Never raises for a request that fails: it costs an answer, and the reason says it. Of several clients one that
        failed is not asked again. Raises `RecordError` for `at_most` or `at_once` that are no counts of at least 1, for
        `within` or `hedge_after` that are no seconds, for `n` or `stream`, and as `plan`, `next` and `judge`.
        """
        if isinstance(client, Mapping):
            clients = dict(client)
        else:  # the one agent of answers that named no agent has no name
            clients = {self.agents.names[0] or str(model or "model"): client}
        several = isinstance(client, Mapping) and (len(clients) > 1 or not self.settings)
        at_once = (1 if several else AT_ONCE) if at_once is None else at_once
        if not all(type(count) is int and count >= 1 for count in (at_most, at_once)) or at_most > MOST_TOGETHER:
            raise RecordError(f"at_most={at_most!r}, at_once={at_once!r}; expected counts from 1 to {MOST_TOGETHER}")
        for name, seconds in (("within", within), ("hedge_after", hedge_after)):
            if seconds is not None and not (type(seconds) in (int, float) and 0 <= seconds < math.inf):
                raise RecordError(f"{name} is {seconds!r}; expected seconds from 0 on, or None")
        if request.get("n") not in (None, 1) or request.get("stream"):
            raise RecordError("n or stream was given; each request is of one whole answer: leave both out")
        if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
            raise RecordError(f"messages came as {type(messages).__name__}; expected a list of role and content")
        chat_request = {"messages": list(messages), "logprobs": True, **request}
        if not model and not isinstance(client, Mapping) and not is_llm(client):
            raise RecordError("model is missing; expected the name that the client's API knows")
        models = _models(clients, model)
        identity = request_id
        if not identity:  # equal requests get equal ids; where JSON cannot hold one, its fields' names decide
            try:
                identity = json.dumps({**chat_request, "model": models}, sort_keys=True, default=str)
            except Exception:  # of an object that a caller made
                identity = json.dumps(sorted([*chat_request, "model"]))
        named: dict[str, Any] = {
            "dimension": dimension,
            "question": self.question_in(chat_request["messages"]),
            "choices": choices,
            "same": same,
            "needs_call": requires_tool_call(request.get("tool_choice")),
        }
        for name, one in clients.items():
            if is_llm(one):
                llm_request(chat_request, identity, name)
        if several and samples is not None:
            raise RecordError("samples is for one client; give a price where several clients are asked")
        if not several and budget is not None:
            raise RecordError("budget is for several clients; give price or samples where one client is asked")
        setting = None
        if not several:
            # Bad arguments are refused before anything is paid for; with several agents `next` does so.
            self.judge([""], **named)
            setting = self.plan(price=price, samples=samples).setting_for(identity)
        means = {"price": price, "budget": budget, "prices": prices or {}}
        most = min(at_most, self.most)
        loop = _Loop(self, clients, chat_request, models, identity, named, means, most, in_turn or _at_once)
        end = None if within is None else time.monotonic() + within
        try:
            while agent := await loop.in_turn(loop.next if setting is None else partial(loop.next_sample, setting)):
                while len(loop.asked) < most and [*loop.pending.values()].count(agent) < at_once:
                    loop.begin(agent)
                if not loop.pending:
                    loop.stopped = f"{most} answers were asked for, and no more are"
                    break
                if not await loop.wait(end, hedge_after if several else None):
                    loop.stopped = f"the {within:g} s for all requests were over"
                    break
        finally:
            await loop.cancel()
        verdict = loop.verdict
        if several and loop.responses:
            verdict = await loop.in_turn(partial(self.judge, loop.read, agents=loop.agents, **named))
        reasons = [verdict.reason if verdict else "no answer came", loop.failures(), loop.whole_answers(), loop.reason]
        kept = loop.keep if loop.keep is not None else verdict.kept if verdict else None
        score = next((one.probability for one in verdict.classes if kept in one.members), None) if verdict else None
        if loop.keep is not None and loop.expected is not None:
            score = loop.expected
        return PanelAnswered(
            response=None if kept is None else loop.responses[kept],
            score=score,
            verdict=verdict,
            responses=tuple(loop.responses),
            agents=tuple(loop.agents),
            asked=tuple(loop.asked),
            spent=self.spent_on(loop.agents, loop.responses, prices or {}, self.mean_prices(dimension)),
            setting=setting,
            stopped=loop.stopped,
            reason="; ".join(filter(None, reasons)),
        )

    @staticmethod
    def spent_on(
        agents: Sequence[str], responses: Sequence[Any], prices: Mapping[str, PriceOf], means: Mapping[str, float]
    ) -> dict[str, float | None]:
        """Returns the dollars by agent; `means`: of an answer, where neither a price nor the response says it."""
        dollars: dict[str, float | None] = {}
        for response, agent in zip(responses, agents, strict=True):
            before, cost = dollars.get(agent, 0.0), _cost(response, prices.get(agent))
            if cost is None and agent not in prices:
                cost = means.get(agent)
            dollars[agent] = None if before is None or cost is None else before + cost
        return dollars

    @staticmethod
    def question_in(messages: Sequence[Any]) -> str:
        """Returns the text of the last message; empty where it has none."""
        return content_of((fields(messages[-1]) or {}).get("content")) if messages else ""


@dataclass(slots=True, eq=False)
class _Loop:
    """State of one question: who may be asked, open requests, responses, and the verdict on them."""

    panel: PanelJudge
    clients: Mapping[str, Any]
    request: Mapping[str, Any]
    """Fields that all requests have: messages, temperature, ..."""
    models: Mapping[str, str]
    """Agent -> name of the model in its requests."""
    identity: str
    named: Mapping[str, Any]
    """The question's properties: arguments of `PanelJudge.judge`."""
    means: Mapping[str, Any]
    """Price, budget and prices, where several agents are asked."""
    most: int
    """Requests, those that fail among them."""
    in_turn: "InTurn"
    """Does work that reads and judges answers."""
    verdict: PanelVerdict | None = None
    """The verdict on all responses of one agent so far; None where there are none."""
    stopped: str = ""
    reason: str = ""
    keep: int | None = None
    """Place of the response to keep, by the panel's last step; None where the verdict says it."""
    expected: float | None = None
    """P(right) of that response, by the panel's last step."""
    asked: list[str] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)
    """The agent of each response."""
    responses: list[Any] = field(default_factory=list)
    read: list[PanelAnswer | InvalidResponse] = field(default_factory=list)
    """The answer in each response."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Agent, and what went wrong, of each request that failed."""
    unstreamed: dict[str, str] = field(default_factory=dict)
    """Agent -> why it was asked for a whole answer, though its client can stream."""
    slow: set[str] = field(default_factory=set)
    """Agents beside which another one was asked, for they were silent: an answer that came is not held up by them."""
    pending: dict["asyncio.Task[Any]", str] = field(default_factory=dict)

    def begin(self, agent: str) -> None:
        """Begins one request."""
        client, number = self.clients[agent], len(self.asked)
        self.asked.append(agent)
        note = partial(self.unstreamed.__setitem__, agent)
        if is_llm(client):
            coming: Any = ask_llm(client, llm_request(self.request, f"{self.identity}/{number}", agent), note)
        else:
            coming = ask_client(client, {**self.request, "model": self.models[agent]}, note)
        self.pending[asyncio.ensure_future(coming)] = agent

    async def wait(self, end: float | None, hedge_after: float | None) -> bool:
        """Waits until a request ends, and takes what came. Returns False where the time ends before.

        Also ends where an answer is there and the agents under way are silent for too long: the panel then decides
        without them.

        Args:
            end: when the time ends, by `time.monotonic`; None for any time.
            hedge_after: seconds after which the next agent is asked beside; None for no such agent.
        """
        while True:
            seconds_left = None if end is None else max(0.0, end - time.monotonic())
            hedges = hedge_after is not None and (seconds_left is None or hedge_after < seconds_left)
            done, _ = await asyncio.wait(
                self.pending, timeout=hedge_after if hedges else seconds_left, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                break
            if not hedges:
                self.failed += [(agent, "no answer before the time was over") for agent in self.pending.values()]
                return False
            if hedge_after:
                self.slow |= set(self.pending.values())
                if self.responses:
                    return True
            if (beside := await self.in_turn(self.beside)) is None:
                hedge_after = None
            else:
                self.begin(beside)
        for task in done:
            agent = self.pending.pop(task)
            if task.cancelled():
                self.failed.append((agent, "CancelledError: the client gave the request up"))
            elif (error := task.exception()) is not None:
                self.failed.append((agent, told(error)))
            else:
                self.agents.append(agent)
                self.responses.append(task.result())
                self.read.append(await self.in_turn(partial(_parse_reply, task.result())))
        return True

    def beside(self) -> str | None:
        """Returns the agent to ask beside those under way, or None where nobody is left who would be asked."""
        busy = {*self.pending.values(), *(agent for agent, _ in self.failed)}
        legal = [name for name in self.clients if name not in busy]
        if not legal or len(self.asked) >= self.most:
            return None
        step = self.step(legal)
        if step.agent in legal:
            return step.agent
        return None if self.responses else max(legal, key=lambda name: step.worth.get(name, -math.inf))

    async def cancel(self) -> None:
        """Cancels what is under way."""
        for task in self.pending:
            task.cancel()
        await asyncio.gather(*self.pending, return_exceptions=True)

    def answers(self) -> list[PanelAnswer]:
        """Returns the answers as a panel reads them. A request that failed is an answer that cannot be read."""
        answers = [
            PanelAnswer("", agent, cut=True, note=f"cannot be read ({read_answer})")
            if isinstance(read_answer, InvalidResponse)
            else replace(read_answer, agent=agent)
            for read_answer, agent in zip(self.read, self.agents, strict=True)
        ]
        return answers + [PanelAnswer("", agent, cut=True, note=f"failed ({why})") for agent, why in self.failed]

    def failures(self) -> str:
        """Returns how many requests failed and what went wrong first; empty where none did."""
        if not self.failed:
            return ""
        agent, why = self.failed[0]
        whose = f"{agent[:80]}: " if len(self.clients) > 1 else ""
        return str(without_surrogates(f"{len(self.failed)} of {len(self.asked)} requests failed ({whose}{why})"))

    def whole_answers(self) -> str:
        """Returns which agents were asked for whole answers and why, though their clients can stream; else empty."""
        whose = ({agent: f"{agent[:80]}: " for agent in self.clients} if len(self.clients) > 1 else {}).get
        return str(without_surrogates("; ".join(whose(agent, "") + why for agent, why in self.unstreamed.items())))

    def next_sample(self, setting: Setting) -> str | None:
        """Returns the one agent, or None where a setting of the checkpoint's curves stops."""
        if self.read:
            self.verdict = self.panel.judge(self.read, **self.named)
        answers = len(self.read) + len(self.failed)
        if self.verdict and self.panel.stops(self.verdict, setting, answers, len(self.read)):
            self.stopped = f"{setting.way} ({setting.threshold:g})"
            return None
        most = min(setting.threshold, self.most) if setting.way == FIXED else self.most
        samples_left = int(most) - answers
        if (
            self.read
            and 0 < samples_left <= len(self.pending)
            and self.panel.settled(self.read, samples_left, **self.named)
        ):
            self.stopped = "no answer under way can change which is kept"
            return None
        return next(iter(self.clients))

    def next(self) -> str | None:
        """Returns the agent that the panel names, of those that can be asked, or None to stop. An agent whose request
        failed is not asked again: its price is infinite."""
        unavailable = {agent for agent, _ in self.failed} | (self.slow if self.responses else set())
        legal = [name for name in self.clients if name not in unavailable]
        if not legal:
            self.stopped = "no client is left that did not fail or take too long"
            return None
        step = self.step(legal)
        self.stopped, self.keep, self.expected = step.reason, step.keep, step.expected
        if step.agent in legal or (step.agent is None and self.responses):
            return step.agent
        if self.responses:
            self.stopped = f"{step.agent} would be asked next, and cannot be asked"
            return None
        best = max(legal, key=lambda name: step.worth.get(name, -math.inf))
        self.reason = f"{step.agent or 'nobody'} would have been asked, and {best} was"
        return best

    def step(self, legal: Sequence[str]) -> PanelStep:
        """Returns what the panel would do next where only these agents can be asked."""
        beyond = {name: math.inf for name in self.panel.agents.names if name not in legal}
        return self.panel.next(
            self.named["question"],
            self.named["dimension"] or None,
            self.answers(),
            self.means["price"],
            {**self.means["prices"], **beyond} or None,
            self.identity,
            budget=self.means["budget"],
            choices=self.named["choices"],
            same=self.named["same"],
            needs_call=self.named["needs_call"],
        )


InTurn = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Does a piece of work, now or later, and returns what the work returns."""


async def _at_once(work: Callable[[], Any]) -> Any:
    return work()


def _models(clients: Mapping[str, Any], model: str | Mapping[str, str]) -> dict[str, str]:
    """Returns agent -> name of the model to ask for. Raises `RecordError` for names that do not fit together."""
    if not clients or not all(isinstance(name, str) and name for name in clients):
        raise RecordError(f"clients came as {list(clients)!r}; expected a name for each: {{'small': client, ...}}")
    if isinstance(model, Mapping):
        if strange := sorted(set(model) - set(clients)):
            raise RecordError(f"models of {', '.join(map(str, strange))} came; expected those of {', '.join(clients)}")
        return {name: model.get(name, name) for name in clients}
    return {name: model or name for name in clients}


def _parse_reply(response: Any) -> PanelAnswer | InvalidResponse:
    """Returns the one answer of a request, or why it cannot be read."""
    try:
        return answer_of((response, 0))
    except InvalidResponse as error:
        return error
    except Exception as error:  # of an object that a caller made
        return InvalidResponse(told(error))


_COUNTS = ("prompt_tokens", "completion_tokens")


def _cost(response: Any, price: PriceOf | None) -> float | None:
    """Returns the dollars of one response: by answer or by its tokens; of a call without a price, its own cost."""
    if isinstance(price, Price):
        counted = fields(get(response, "usage")) or {}
        tokens = response.usage if isinstance(response, Call) else usage(*map(counted.get, _COUNTS))
        return price.cost_usd(tokens) if tokens.prompt_tokens else None
    if price is not None:
        return float(price)
    return response.cost_usd if isinstance(response, Call) else None
