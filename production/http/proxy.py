"""The proxy: passes on the upstream's answer with a verdict; or a panel chooses among several upstreams.

A caller gets the upstream's answer. The verdict is added under `metaprobe`. If the caller of a chat completion
requested no log-probabilities, they are added to the request and removed from the answer. Text completions and
responses are scored if they have log-probabilities. They pass unchanged, and so do embeddings. An error of the upstream
passes with its status and body.

With several upstreams the panel chooses whom to ask, asks further ones, and keeps one answer. Every upstream that is
asked gets the caller's request with its own model, for one answer. It is asked by stream, so that it stops writing when
it is cancelled (`joined_events`); an upstream that refuses streams is asked for a whole answer. If an upstream fails,
only its answer is lost. After several failures it is skipped for a while (`breaker`). Each answer is scored and logged,
kept or not. A conversation in the middle of tool calls continues with the agent that began them (`tool_turns`).
"""

import asyncio
import logging
import math
import re
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from metaprobe.api import InvalidResponse, Panel, PanelAnswered, PanelVerdict, Price, RecordError, StreamingGate
from metaprobe.production.http.bodies import (
    LARGE_BYTES,
    OWNER,
    REQUESTS,
    SCOPE_LEASE,
    Busy,
    Lease,
    Refusal,
    aside,
    json_response,
    read_json_body,
    values_bytes,
    while_connected,
)
from metaprobe.production.http.breaker import Breaker, BreakerState
from metaprobe.production.http.completion_json import (
    UNREADABLE,
    ChatRequest,
    for_one_answer,
    for_stream,
    hide_logprobs,
    lenient_object,
    model_of,
    read_chat,
    with_verdict,
)
from metaprobe.production.http.exchange import (
    Declined,
    ScoredRequest,
    UpstreamExchange,
    failure_in,
    failure_of_whole,
    no_logprobs,
    unscored,
)
from metaprobe.production.http.guard import trial_id
from metaprobe.production.http.joined_events import JoinedEvents
from metaprobe.production.http.judges import Judges, JudgesHolder
from metaprobe.production.http.keys import Keys
from metaprobe.production.http.metrics import Metrics, log_unexpected
from metaprobe.production.http.panels import PANEL_COST, PanelDesk, with_panel
from metaprobe.production.http.request_log import SCOPE_CALLERS_ID, RequestLog, ServerLog, tags_of
from metaprobe.production.http.settings import Settings, SettingsError
from metaprobe.production.http.tool_turns import (
    Turn,
    WantedCall,
    tag_of,
    turn_of,
    wanted_call,
    with_agent_ids,
    with_own_ids,
)
from metaprobe.production.http.upstream import (
    EVENT_STREAM,
    TOO_SLOW_CODE,
    UNREACHABLE_CODE,
    UpstreamClient,
    redirect,
    to_caller,
)

logger = logging.getLogger(__name__)

CHAT = "/chat/completions"
PANEL_MODEL = "panel"
"""Name of the panel in the list of models. A request may name any model."""
ANSWER_MEMORY_FACTOR = 4
"""Least memory of an agent's answer, in multiples of its bytes: its parts, the joined answer, and the decoded answer.

An answer of many values takes more, and is counted by them (`bodies.values_bytes`).
"""
DIMENSION_TAG = "dimension"
"""Tag of a request that names the question's dimension."""
HEDGE_HEADER = "metaprobe-hedge-after"
"""Header with a request's own seconds without an answer after which the next agent is asked too; `none` for never."""
TRIAL_S = 1.0
"""Seconds without an answer after which the next agent is asked too, if a skipped agent is being tried again.

The caller should not wait for an agent that is probably still down.
"""
BREAKER_STATES: dict[BreakerState, int] = {"closed": 0, "half_open": 1, "open": 2}
"""Numbers of a breaker's states in `/metrics`."""
TIMED_OUT_STATUS = 504
"""Status of an agent that did not answer in time."""
UNBILLED_CODES = (UNREACHABLE_CODE, "upstream_status", "upstream_redirect")
"""Codes of failures that an upstream does not bill: it was not reached, or answered with an error or a redirect. After
other failures, such as a timeout, it bills the tokens that it read and wrote.
"""
UNSTREAMED_S = 3600.0
"""Seconds for which an agent is asked for whole answers after it refused a stream."""
UNREADABLE_STREAM_S = 60.0
"""Seconds for which an agent is asked for whole answers after a stream that could not be read. The fault may be brief.
"""
CLOSING_S = 0.25
"""Seconds to wait for the end of a stream after its last event, so that the connection can be used again."""
NO_STREAM_STATUSES = (400, 405, 415, 422, 501)
"""Statuses with which an agent may refuse a stream."""
_ABOUT_STREAMS = re.compile(rb"(?i)(?<!up)stream")
"""Matches an error that is about streams, and not about an upstream."""
OVERLOAD_STATUSES = (408, 429)
"""Statuses with which an agent refuses a request because of its own load. They count as failures, so that it gets a
pause.
"""


_Reply = tuple[int, tuple[tuple[bytes, bytes], ...], bytes, float]
"""Status, headers, body and seconds of an upstream's answer."""
_Bill = tuple[str, float | None]
"""(agent, US dollars of a request to it). The dollars are None if no answer came, or one without its usage."""


class UpstreamCompletion(dict[str, Any]):
    """A decoded completion of an upstream, with its raw bytes."""

    def __init__(self, raw: bytes, agent: str, seconds: float, no_logprobs_reason: str) -> None:
        super().__init__(lenient_object(raw))
        self.raw, self.agent, self.seconds = raw, agent, seconds
        self.no_logprobs_reason = no_logprobs_reason
        """Why the answer has no log-probabilities, if this is known."""


class _Message(msgspec.Struct):
    tool_calls: list[dict[str, Any]] | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Completion(msgspec.Struct):
    """Fields that an upstream's answer must have so that it can be passed on, also as a stream."""

    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]


class UpstreamFailed(Refusal):
    """An upstream answered with a status from 400 on."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(status, "upstream_status", f"the upstream answered {status}", headers)
        self.body = body

    @property
    def of_request(self) -> bool:
        """Whether the request is at fault, and not the upstream, or this server's key or credit there."""
        return self.status < 500 and self.status not in (401, 402, 403, 407)


class Chooser:
    """Answers requests for chat completions with a panel of upstreams."""

    def __init__(
        self,
        settings: Settings,
        judges_holder: JudgesHolder,
        panel: Panel,
        keys: Keys,
        metrics: Metrics,
        log: ServerLog | None,
    ) -> None:
        """Raises `SettingsError` if the panel cannot choose among the settings' upstreams.

        Args:
            settings: the settings.
            judges_holder: holds the judges.
            panel: the panel.
            keys: keys of callers.
            metrics: the metrics.
            log: the log; None for none.
        """
        upstreams = settings.named_upstreams
        if unknown_agents := sorted(set(upstreams) - set(panel.agents.names)):
            raise SettingsError(
                f"the panel knows no agent {', '.join(unknown_agents)}; expected --upstream NAME=URL with names among "
                f"{', '.join(panel.agents.names)}"
            )
        asks_several = len(upstreams) > 1 or not panel.settings
        try:
            if asks_several:
                panel.ask_plan(price=settings.panel_price, budget=settings.panel_budget)
            elif settings.panel_budget is not None:
                raise RecordError("a panel's budget is for several upstreams, and one is given: give a price")
            else:
                panel.plan(price=settings.panel_price)
        except RecordError as error:
            raise SettingsError(str(error)) from error
        prices = None if settings.prices is None else Price.read(settings.prices)
        price_by_agent = {
            name: Price.of_model(upstream.model, upstream.host, prices) for name, upstream in upstreams.items()
        }
        self.settings, self.judges_holder, self.panel, self.metrics, self.log = (
            settings,
            judges_holder,
            panel,
            metrics,
            log,
        )
        self.upstreams = upstreams
        self.clients = {
            name: UpstreamClient(settings, keys, agent_upstream=upstream) for name, upstream in upstreams.items()
        }
        self.prices = {name: price for name, price in price_by_agent.items() if price is not None}
        """Maps an agent to the price of its tokens, if it is known."""
        self.declined = {name: Declined() for name in upstreams}
        self.streaming: set[str] = set()
        """Agents that have answered a request for a stream, by stream or whole: they do not refuse streams."""
        self.unstreamed: dict[str, float] = {}
        """Maps an agent to the event loop's time until which it is asked for whole answers."""
        self.breakers = {name: self._breaker(name) for name in upstreams}
        self.tags = {tag_of(name): name for name in upstreams}
        """Maps a tag in ids of tool calls to its agent."""
        if len(self.tags) < len(upstreams):
            raise SettingsError(
                f"two of {', '.join(upstreams)} have one tag in the ids of tool calls; train the panel with another "
                "name for an agent"
            )
        self._trials: set[asyncio.Task[Any]] = set()
        budget = settings.panel_budget
        self.budget_controller = panel.budget_control(budget) if asks_several and budget is not None else None
        """Keeps the mean spending at the budget; None without a budget. A restart and each worker begin it anew."""
        self.under_way = 0
        """Requests for which the panel chooses whom to ask, and which have not ended."""
        if self.budget_controller is not None:
            metrics.panel_correction.set(self.budget_controller.correction)

    def next_budget(self) -> float | None:
        """Returns the budget that a request's plan is made for, in US dollars for 1,000; None without one."""
        return None if self.budget_controller is None else self.budget_controller.next_budget(self.under_way)

    def pay(self, bills: "Sequence[_Bill]", mean_prices: Mapping[str, float], questions: int = 1) -> None:
        """Counts what a caller's request cost. A request that nobody bills is left out.

        Args:
            bills: what the upstreams bill for the request.
            mean_prices: US dollars by agent, used for bills that are not known.
            questions: number of questions to add to the mean's denominator; 0 if this request was already counted.
        """
        if self.budget_controller is None or not bills:
            return
        dollars = sum(mean_prices.get(agent, math.nan) if cost is None else cost for agent, cost in bills)
        if self.budget_controller.paid(dollars, questions):
            self.metrics.panel_questions.inc(questions)
            self.metrics.panel_spent.inc(dollars)
            self.metrics.panel_correction.set(self.budget_controller.correction)

    def _breaker(self, agent: str) -> Breaker:
        state_gauge = self.metrics.agent_state.labels(agent)
        state_gauge.set(BREAKER_STATES["closed"])
        return Breaker(
            self.settings.agent_failures,
            self.settings.agent_pause_s,
            on_change=lambda state: state_gauge.set(BREAKER_STATES[state]),
        )

    def hedge_after(self, request: Request) -> float | None:
        """Returns the request's seconds until the next agent is asked too. Raises `Refusal` for an invalid number."""
        default_seconds = self.settings.hedge_after_s
        header = request.headers.get(HEDGE_HEADER)
        if header is None:
            return default_seconds
        if default_seconds is None:
            message = f"this server asks one agent after another; start it with --hedge-after to allow {HEDGE_HEADER}"
            raise Refusal(400, "invalid_request", message)
        if header.strip().lower() == "none":
            return None
        try:
            seconds = float(header)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds < math.inf:
            message = f"{HEDGE_HEADER} is no number of seconds; expected one from 0 on, or none"
            raise Refusal(400, "invalid_request", message)
        return seconds

    def try_again(self, trial: Coroutine[Any, Any, "UpstreamCompletion"]) -> "asyncio.Task[UpstreamCompletion]":
        """Starts the trial of a skipped agent. The trial continues if the request that started it has ended."""
        task = asyncio.ensure_future(trial)
        self._trials.add(task)
        task.add_done_callback(self._tried)
        return task

    def _tried(self, task: "asyncio.Task[UpstreamCompletion]") -> None:
        self._trials.discard(task)
        if not task.cancelled():
            task.exception()  # the breaker has counted the error; this call keeps Python from warning about it

    async def complete(self, request: Request) -> Response:
        """Returns the kept answer with its verdict and an account of the asking. Raises `Refusal` if no upstream
        answers.
        """
        judges = self.judges_holder.current  # a reload while the request comes in does not change who judges it
        body = await read_json_body(request, self.settings)
        chat = await aside(len(body), lambda: read_chat(body), REQUESTS)
        if chat.wants_several:
            message = "n is not 1, and the panel decides how many answers it asks for; leave n out"
            raise Refusal(400, "invalid_request", message)
        tags, hedge_after = tags_of(request, chat), self.hedge_after(request)
        log = RequestLog(self.log, request, chat, one_usage=False, tags=tags) if self.log else None
        lease = Lease(request.scope[SCOPE_LEASE].memory)
        asking = _Asking(self, request, chat, judges, log, tags, hedge_after, lease)
        try:
            return await while_connected(request.receive, asking.answer())
        finally:
            lease.close()

    async def models(self, request: Request) -> Response:
        """Returns a list of models with the panel as the only one."""
        model = {"id": PANEL_MODEL, "object": "model", "created": 0, "owned_by": "metaprobe"}
        if "model" not in request.path_params:
            return json_response({"object": "list", "data": [model]})
        if request.path_params["model"] != PANEL_MODEL:
            raise Refusal(404, "unknown_model", f"there is one model, {PANEL_MODEL}")
        return json_response(model)

    async def close(self) -> None:
        """Ends running trials, and closes the connections to all upstreams."""
        for task in self._trials:
            task.cancel()
        await asyncio.gather(*self._trials, return_exceptions=True)
        for client in self.clients.values():
            await client.close()


@dataclass(slots=True, eq=False)
class _Asking:
    """One request: asks the upstreams, and scores and logs their answers."""

    chooser: Chooser
    request: Request
    chat: ChatRequest
    judges: Judges
    log: RequestLog | None
    tags: Mapping[str, str]
    hedge_after: float | None
    lease: Lease
    """Memory of the answers."""
    memory: dict[str, int] = field(default_factory=dict)
    """Maps an agent to the memory of its answer so far, in bytes."""
    completions: list[UpstreamCompletion] = field(default_factory=list)
    failed: dict[str, Refusal] = field(default_factory=dict)
    asked_agents: list[str] = field(default_factory=list)
    """Agent of each request to an upstream, in the order of asking."""
    unanswered: list[str] = field(default_factory=list)
    """Agents that took a request and gave no whole answer: it was cancelled, took too long, or broke off."""
    discarded: list[str] = field(default_factory=list)
    """Agent of each stream that was thrown away after its answer had begun: it cannot be read, or ended in an error."""
    reason_notes: list[str] = field(default_factory=list)
    """Additional parts of the verdict's reason."""
    skipped_agents: list[str] = field(default_factory=list)
    """Agents that are skipped, because they failed several times in a row."""
    trials: dict[str, "asyncio.Task[UpstreamCompletion] | None"] = field(default_factory=dict)
    """Agents that this request tries again, with the trial once it has started."""
    wanted_call: WantedCall | None = None
    """Tool call that the request requires instead of a text."""
    sent: bytes = b""
    """The request with log-probabilities, and with the agents' own ids of tool calls."""
    plain: bytes = b""
    """The caller's original request, with the agents' own ids of tool calls."""
    deadline: float = 0.0
    """Time when the asking ends, by the event loop's clock."""
    task: "asyncio.Task[Any] | None" = None
    """Task of the whole request, which is cancelled if the caller leaves."""
    is_planned: bool = False
    """Whether the panel chose whom to ask, so that what was spent counts for its budget."""

    async def answer(self) -> Response:
        """Returns the kept answer, whole or as a stream."""
        chooser = self.chooser
        kept_answer: UpstreamCompletion | None = None
        verdict: dict[str, Any] | None = None
        account: dict[str, Any] = {}
        if (messages := self.chat.messages) is None:
            raise Refusal(400, "invalid_request", "messages is no list; expected a list of role and content")
        try:
            turn = await aside(len(self.chat.body), partial(self._read_tool_fields, messages), REQUESTS)
            kept_answer, account = await self._choose(messages, turn)
        except (Refusal, RecordError) as error:
            if not self.completions:
                raise error if isinstance(error, Refusal) else Refusal(400, "invalid_request", str(error)) from error
            kept_answer, account = self._first_answer_after(error)
        except Exception as error:  # an answer that came is paid for, and must reach its caller
            kept_answer, account = self._first_answer_after(error)
        finally:  # answers that came are paid for, so they are logged even if the caller has left
            for agent, trial in self.trials.items():
                if trial is None:  # the agent was not asked after all
                    chooser.breakers[agent].end_trial()
            if self.is_planned:
                chooser.under_way -= 1
                self._pay()
            for completion in self.completions:
                scored = await self._scored(completion, kept=completion is kept_answer)
                verdict = scored if completion is kept_answer else verdict
        if kept_answer is None or verdict is None:
            return self._refused()
        verdict = with_panel(verdict, {"agent": kept_answer.agent, **account}, panel_only=True)
        return await aside(len(kept_answer.raw), partial(self._response, kept_answer, verdict), begun=True)

    async def _in_turn(self, work: Callable[[], Any]) -> Any:
        """Runs a task that reads and judges the answers so far: in a thread, unless the answers are short."""
        return await aside(PANEL_COST * sum(len(completion.raw) for completion in self.completions), work)

    def _reserve_memory(self, agent: str, size: int, values: int = 0) -> None:
        """Counts the memory of an agent's answer as it arrives. Raises `Refusal` if there is none left.

        Args:
            agent: name of the agent.
            size: bytes of the answer so far.
            values: bytes that its values take once they are read.
        """
        self.memory[agent] = max(ANSWER_MEMORY_FACTOR * size, 2 * size + values)
        total = sum(self.memory.values())
        try:
            self.lease.hold(total, large=total > ANSWER_MEMORY_FACTOR * LARGE_BYTES)
        except Refusal as refusal:  # the message's advice is for requests, and this is about an answer
            raise Refusal(refusal.status, refusal.code, refusal.message.partition(";")[0]) from refusal

    def _read_tool_fields(self, messages: list[Any]) -> Turn:
        """Reads the request's fields about tools, and returns whose tool calls wait for an answer."""
        chat, several = self.chat, len(self.chooser.upstreams) > 1
        self.wanted_call = wanted_call(chat.fields)
        self.plain = with_own_ids(chat.body) if several else chat.body
        self.sent = self.plain if not chat.is_changed else with_own_ids(chat.sent) if several else chat.sent
        return turn_of(messages, self.chooser.tags) if several else Turn()

    async def _choose(self, messages: list[Any], turn: Turn) -> tuple[UpstreamCompletion | None, dict[str, Any]]:
        """Asks the agents, and returns the answer to keep with its account; None if no answer came."""
        self.deadline = asyncio.get_running_loop().time() + self.chooser.settings.total_timeout_s
        self.task = asyncio.current_task()
        admitted = self._admitted()
        self.reason_notes += [turn.reason] * bool(turn.reason)
        if turn.agent:  # a conversation in the middle of tool calls goes to the agent that began them
            if kept_answer := await self._ask_first_caller_of_tools(turn.agent, turn.agent in admitted):
                turn_verdict = await self._judged([kept_answer], messages)
                score = turn_verdict.classes[0].probability if turn_verdict.classes else None
                stopped = f"{kept_answer.agent} began the tool calls that are answered here, and goes on alone"
                account = self._account(
                    score=score,
                    none=turn_verdict.none,
                    stopped=stopped,
                    reason=turn_verdict.reason,
                    checkpoint=turn_verdict.checkpoint,
                )
                return kept_answer, account
            admitted = [name for name in admitted if name != turn.agent]
        answered = await self._ask_by_panel(admitted, messages) if admitted else None
        if (
            not self.completions and self.skipped_agents and not self._request_refused()
        ):  # a breaker alone refuses nobody
            names = self.skipped_agents
            self.reason_notes += [f"{name} failed ({failure.message})" for name, failure in self.failed.items()]
            self.reason_notes.append(f"no other agent answered, so these are asked all the same: {', '.join(names)}")
            answered = await self._ask_by_panel(names, messages, hurried=True)
        if answered is None:
            return None, {}
        panel_verdict, kept_answer = answered.verdict, answered.response
        score = answered.score
        if kept_answer is None and self.completions:
            kept_answer = next(iter(answered.responses), self.completions[0])
            if self.wanted_call and not answered.responses:
                self.reason_notes.append("tool_choice asks for a tool call, and no answer holds it")
                panel_verdict = await self._judged(self.completions, messages)
                kept_answer = self.completions[panel_verdict.kept or 0]
                score = panel_verdict.score
        none, checkpoint = (None, "") if panel_verdict is None else (panel_verdict.none, panel_verdict.checkpoint)
        return kept_answer, self._account(
            score=score, none=none, stopped=answered.stopped, reason=answered.reason, checkpoint=checkpoint
        )

    async def _judged(self, completions: Sequence[UpstreamCompletion], messages: list[Any]) -> PanelVerdict:
        """Returns the panel's verdict on answers that the panel did not request itself."""
        agents, question = [completion.agent for completion in completions], Panel.question_in(messages)
        verdict: PanelVerdict = await self._in_turn(
            lambda: self.chooser.panel.judge(completions, agents=agents, dimension=self._dimension, question=question)
        )
        return verdict

    @property
    def _dimension(self) -> str:
        return self.tags.get(DIMENSION_TAG, "")

    def _account(
        self, *, score: float | None, none: float | None, stopped: str, reason: str, checkpoint: str
    ) -> dict[str, Any]:
        """Returns the account of the asking, which becomes part of the verdict.

        Args:
            score: P(right) of the kept answer; None without a panel verdict.
            none: P(no answer is right); None without a panel verdict.
            stopped: why the asking stopped.
            reason: the panel's reason.
            checkpoint: digest of the panel.
        """
        return {
            "score": score,
            "none": none,
            "asked": self.asked_agents,
            "spent": self._spent(),
            "stopped": stopped,
            "reason": "; ".join(filter(None, [reason, *self.reason_notes])),
            "checkpoint": checkpoint,
        }

    def _spent(self) -> dict[str, float | None]:
        """Returns the US dollars by agent for the answers that came. Plans are made by the prices that the panel
        learned: these only count what was spent."""
        agents, mean_prices = (
            [completion.agent for completion in self.completions],
            self.chooser.panel.mean_prices(self._dimension),
        )
        return Panel.spent_on(agents, self.completions, self.chooser.prices, mean_prices)

    def _pay(self) -> None:
        """Counts what was spent for the panel's budget. The answer of a trial that goes on is counted when it ends."""
        chooser = self.chooser
        mean_prices = chooser.panel.mean_prices(self._dimension)
        bills = self._bills()
        chooser.pay(bills, mean_prices)
        questions = int(not bills)  # if only trials were asked, the first one that ends counts the question

        def pay_late(agent: str, _: "asyncio.Task[UpstreamCompletion]") -> None:
            nonlocal questions
            if late_bills := [bill for bill in self._bills() if bill[0] == agent]:
                chooser.pay(late_bills, mean_prices, questions)
                questions = 0

        for agent, trial in self.trials.items():
            if trial is not None and not trial.done():
                trial.add_done_callback(partial(pay_late, agent))

    def _bills(self) -> list[_Bill]:
        """Returns what the upstreams bill for the requests that have ended.

        They bill what they wrote of an answer that did not come, or was thrown away; nobody says how much that was.
        """
        unknown_bills: list[_Bill] = [(agent, None) for agent in (*self.unanswered, *self.discarded)]
        return [*self._spent().items(), *unknown_bills]

    def _first_answer_after(self, error: Exception) -> tuple[UpstreamCompletion | None, dict[str, Any]]:
        """Returns (the first answer that arrived or None, the account for the verdict) after choosing failed."""
        if isinstance(error, Busy):
            doubts = [f"not chosen: {error.message.partition(';')[0]}", *self.reason_notes]
            return next(iter(self.completions), None), {"asked": self.asked_agents, "reason": "; ".join(doubts)}
        log_unexpected(logger, "choosing", error)
        self.chooser.metrics.errors.labels("choosing").inc()
        reason = f"choosing failed ({type(error).__name__}); the server's log has more"
        return next(iter(self.completions), None), {
            "asked": self.asked_agents,
            "reason": "; ".join([reason, *self.reason_notes]),
        }

    def _admitted(self) -> list[str]:
        """Returns the agents that may be asked, without skipped ones. If a pause is over, the agent gets a trial."""
        admitted = []
        for name, breaker in self.chooser.breakers.items():
            if breaker.state == "closed":
                admitted.append(name)
            elif breaker.begin_trial():
                self.trials[name] = None
                admitted.append(name)
            else:
                self.skipped_agents.append(name)
                self.reason_notes.append(f"{name} is left out ({breaker.why()})")
        return admitted

    async def _ask_first_caller_of_tools(self, agent: str, is_admitted: bool) -> UpstreamCompletion | None:
        """Returns the answer of the agent that began the tool calls; None, with the reason recorded, if it
        gives none.
        """
        if not is_admitted:
            self.reason_notes.append(f"{agent} began these tool calls, and the others are asked in its place")
            return None
        within_s = TRIAL_S if agent in self.trials else None
        try:
            async with asyncio.timeout(within_s):
                return await self._create(agent, model=self.chooser.upstreams[agent].model)
        except (Refusal, TimeoutError) as error:
            reason = error.message if isinstance(error, Refusal) else f"no answer within {within_s:g} s"
            self.reason_notes.append(
                f"{agent} began these tool calls and failed ({reason}); the others are asked in its place"
            )
            return None

    async def _ask_by_panel(
        self, agents: Sequence[str], messages: list[Any], *, hurried: bool = False
    ) -> PanelAnswered:
        """Lets the panel ask these agents.

        Args:
            agents: names of the agents.
            messages: messages of the request.
            hurried: whether the agents are probably down, so that none is waited for long.
        """
        chooser, hedge_after = self.chooser, self.hedge_after
        models = {name: chooser.upstreams[name].model for name in agents}
        chooser.under_way += not self.is_planned
        self.is_planned = True
        if hurried or self.trials:
            hedge_after = TRIAL_S if hedge_after is None else min(hedge_after, TRIAL_S)
        return await chooser.panel.ask(
            {name: partial(self._create, name) for name in models},
            messages,
            model=models,
            price=chooser.settings.panel_price,
            budget=chooser.next_budget(),
            dimension=self._dimension,
            request_id=str(self.request.scope.get(SCOPE_CALLERS_ID) or ""),
            within=None if math.isinf(self.deadline) else max(0.0, self.deadline - asyncio.get_running_loop().time()),
            hedge_after=hedge_after,
            in_turn=self._in_turn,
        )

    async def _create(self, agent: str, *, model: str, **_: Any) -> UpstreamCompletion:
        """Returns an upstream's answer. Raises `Refusal` if there is none, or if it lacks a required tool call.

        The trial of a skipped agent continues if nobody waits for it any more.
        """
        if agent in self.trials and self.trials[agent] is None:
            self.reason_notes.append(f"{agent} is tried again after failures")
            trial = self.trials[agent] = self.chooser.try_again(self._ask_and_record(agent, model))
            completion = await asyncio.shield(trial)
        else:
            completion = await self._ask_and_record(agent, model)
        if self.wanted_call is not None and not self.wanted_call.made_in(completion):
            raise Refusal(502, "no_tool_call", "it answered without the tool call that tool_choice asks for")
        return completion

    async def _ask_and_record(self, agent: str, model: str) -> UpstreamCompletion:
        """Returns an upstream's answer, and reports to the agent's breaker how the request ended."""
        chooser, clock = self.chooser, asyncio.get_running_loop().time
        settings, breaker, started = chooser.settings, chooser.breakers[agent], clock()
        self.asked_agents.append(agent)
        outcome, counts_as_failure = "failed", False
        caller: str | None = OWNER.get()[0]
        try:
            completion = await self._ask_with_logprobs(
                agent, model, min(self.deadline, started + settings.agent_timeout_s)
            )
            outcome = "answered"
        except Refusal as refusal:
            self.failed[agent] = refusal
            if refusal.code not in UNBILLED_CODES:
                self.unanswered.append(agent)
            chooser.metrics.errors.labels(refusal.code).inc()
            is_refused = isinstance(refusal, UpstreamFailed) and refusal.of_request
            outcome = "refused" if is_refused else "timeout" if refusal.status == TIMED_OUT_STATUS else "failed"
            # An agent that was asked when the request's time was nearly over has shown too little.
            cut_short = refusal.code == TOO_SLOW_CODE and clock() >= self.deadline
            is_overload = isinstance(refusal, UpstreamFailed) and refusal.status in OVERLOAD_STATUSES
            is_ours = refusal.code in (
                "out_of_memory",
                "too_many_values",
            )  # this server's memory, not the agent's fault
            counts_as_failure = (
                not is_ours
                and (is_overload or not is_refused)
                and not (cut_short and clock() - started < settings.total_timeout_s / 2)
            )
            if refusal.code == UNREACHABLE_CODE:  # no request can cause this
                caller = None
            raise
        except asyncio.CancelledError:
            self.unanswered.append(agent)
            # The server's own time limit, not the caller's header, decides whether an agent is slow.
            slow_after_s, waited_s = settings.hedge_after_s, clock() - started
            caller_gone = self.task is not None and self.task.cancelling() > 0
            is_overtaken = (
                bool(slow_after_s)
                and slow_after_s is not None
                and waited_s >= slow_after_s
                and bool(self.completions)
                and not caller_gone
            )
            counts_as_failure = is_overtaken or (clock() >= self.deadline and waited_s >= settings.total_timeout_s / 2)
            outcome = "overtaken" if is_overtaken else "cancelled"
            raise
        finally:
            chooser.metrics.agent_requests.labels(agent, outcome).inc()
            if counts_as_failure:
                breaker.failed(caller, clock() - started)
            elif outcome == "answered":
                breaker.answered(OWNER.get()[0])
            elif agent in self.trials:
                breaker.end_trial()
        self.completions.append(completion)
        return completion

    async def _ask_with_logprobs(self, agent: str, model: str, deadline: float) -> UpstreamCompletion:
        """Asks with log-probabilities; if this fails because of them, asks again with the caller's original request.

        Args:
            agent: name of the agent.
            model: its model.
            deadline: time when the answer must be complete, by the event loop's clock.
        """
        chat, declined = self.chat, self.chooser.declined[agent]
        failure = declined.why(model, chat.added) if chat.added else ""
        is_second_try = False
        if not failure:
            status, headers, body, seconds = await self._post(
                agent, for_one_answer(self.sent, model), deadline, final=not chat.added
            )
            find_failure = partial(failure_of_whole, status, headers, body)
            failure = await aside(len(body), find_failure, begun=True) if chat.added else ""
            if not failure:
                if chat.added and status == 200:
                    declined.gave(model, chat.added)
                return await aside(
                    len(body),
                    partial(_completion_of, status, headers, body, agent=agent, seconds=seconds, no_logprobs_reason=""),
                    begun=True,
                )
            is_second_try = True
            self.chooser.metrics.errors.labels("logprobs_declined").inc()
        unstreamed_before = self.chooser.unstreamed.get(agent)
        status, headers, body, seconds = await self._post(
            agent, for_one_answer(self.plain, model), deadline, final=True
        )
        refuses_streams = self.chooser.unstreamed.get(agent) not in (None, unstreamed_before)  # found out just now
        if is_second_try and status == 200 and not refuses_streams:
            declined.failed(model, chat.added, failure)
        no_logprobs_reason = no_logprobs(failure, again=is_second_try)
        return await aside(
            len(body),
            partial(
                _completion_of,
                status,
                headers,
                body,
                agent=agent,
                seconds=seconds,
                no_logprobs_reason=no_logprobs_reason,
            ),
            begun=True,
        )

    async def _post(self, agent: str, body: bytes, deadline: float, *, final: bool) -> _Reply:
        """Returns an upstream's reply, by stream, or whole if the agent refuses streams or does not end them.

        Args:
            agent: name of the agent.
            body: request for a whole answer.
            deadline: time when the answer must be complete, by the event loop's clock.
            final: whether no other form of the request is tried after this one.
        """
        chooser, now = self.chooser, asyncio.get_running_loop().time()
        if now < chooser.unstreamed.get(agent, 0.0):
            return await self._send_for_whole(agent, body, deadline)
        pause_s = UNSTREAMED_S
        try:
            reply = await self._send(agent, for_stream(body), deadline, streamed=True)
        except InvalidResponse as error:
            reason, pause_s = f"its stream cannot be read: {error}", UNREADABLE_STREAM_S
            chooser.unstreamed[agent] = now + pause_s  # also if there is no time left for a whole answer
        else:
            status, _, reply_headers, _ = reply
            if status == 200:
                chooser.streaming.add(agent)
                chooser.unstreamed.pop(agent, None)
            may_refuse = final and agent not in chooser.streaming
            if status not in NO_STREAM_STATUSES or not (may_refuse or _ABOUT_STREAMS.search(reply_headers)):
                return reply
            reason = f"it answered {status} to a request for a stream"
        reply = await self._send_for_whole(agent, body, deadline)
        if reply[0] == 200:
            chooser.unstreamed[agent] = now + pause_s
            chooser.metrics.errors.labels("stream_declined").inc()
            logger.warning(
                "%s is asked for whole answers for %g s, because %s: it may write a cancelled answer to its end",
                agent,
                pause_s,
                reason,
            )
            self.reason_notes.append(f"{agent} was asked for a whole answer, because {reason}")
        return reply

    async def _send_for_whole(self, agent: str, body: bytes, deadline: float) -> _Reply:
        """Returns the reply to a request for a whole answer."""
        try:
            return await self._send(agent, body, deadline, streamed=False)
        except InvalidResponse as error:
            message = f"the upstream answered a request for a whole answer with a stream that cannot be read ({error})"
            raise Refusal(502, "upstream_answer", message) from error

    async def _send(self, agent: str, body: bytes, deadline: float, *, streamed: bool) -> _Reply:
        """Returns an upstream's reply to this body, whole or by stream.

        Raises `InvalidResponse` for a stream that does not make up a whole answer, and, if a stream was asked for
        (`streamed`), for an answer that is neither a stream nor a JSON object.
        """
        chooser, started = self.chooser, time.perf_counter()
        limit, reserve_memory = chooser.settings.max_answer_bytes, partial(self._reserve_memory, agent)
        async with chooser.clients[agent].asking(self.request, "POST", CHAT, body, deadline=deadline) as answer:
            if answer.status == 200 and answer.is_stream:
                joined_events, size = JoinedEvents(limit, reserve_memory), 0
                try:
                    with suppress(TimeoutError):
                        async with aclosing(answer.parts()) as parts, asyncio.timeout(None) as last_wait:
                            async for part in parts:
                                await aside(len(part), partial(joined_events.feed, part), begun=True)
                                size += len(part)
                                if (
                                    joined_events.done
                                ):  # the end is waited for a little: the connection can be used again
                                    last_wait.reschedule(asyncio.get_running_loop().time() + CLOSING_S)
                    reply_body = await aside(size, joined_events.body, begun=True)
                except InvalidResponse:
                    self.discarded += [agent] * joined_events.begun
                    raise
                self.discarded += [agent] * (joined_events.begun and joined_events.failed)
            else:
                reply_body = await answer.whole(limit, reserve_memory)
                await aside(
                    len(reply_body), lambda: reserve_memory(len(reply_body), values_bytes(reply_body)), begun=True
                )
                if streamed and answer.status == 200 and not reply_body.lstrip().startswith(b"{"):
                    raise InvalidResponse("it is not called a stream, and is no JSON object")
        if 300 <= answer.status < 400:
            raise redirect(answer)
        seconds = time.perf_counter() - started
        chooser.metrics.upstream_seconds.observe(seconds)
        return answer.status, answer.headers, reply_body, seconds

    async def _scored(self, completion: UpstreamCompletion, *, kept: bool) -> dict[str, Any]:
        """Returns the verdict on one answer, logged with the agent's name and whether the answer was kept."""
        model = self.chooser.upstreams[completion.agent].model
        scorer = self.judges.pick(model, trial_id(self.request)).of(self.log)
        if self.log is not None:
            self.log.tags = {**self.tags, "agent": completion.agent, "kept": str(int(kept))}
            self.log.model, self.log.started = model, time.perf_counter() - completion.seconds
        if completion.no_logprobs_reason and not self.chat.wants_logprobs:
            return scorer.none(completion.no_logprobs_reason)
        try:
            return await aside(len(completion.raw), partial(scorer.verdict, completion.raw, asked_model=model))
        except Busy as busy:  # the answer is paid for, and passes on without a score
            return scorer.none(unscored(busy))

    def _response(self, kept: UpstreamCompletion, verdict: dict[str, Any]) -> Response:
        """Returns the kept answer with its verdict, whole, or as a stream if the caller requested one."""
        body = hide_logprobs(kept.raw, self.chat)
        if len(self.chooser.upstreams) > 1:
            body = with_agent_ids(body, kept.agent)
        body = with_verdict(body, verdict)
        if bytes(self.chat.fields.get("stream", b"")).strip() != b"true":
            return Response(body, media_type="application/json")
        return Response(b"".join(_events(body, self.chat)), media_type=EVENT_STREAM)

    def _request_refused(self) -> bool:
        """Returns whether every upstream that was asked refused the request itself."""
        failures = self.failed.values()
        return bool(failures) and all(
            isinstance(failure, UpstreamFailed) and failure.of_request for failure in failures
        )

    def _refused(self) -> Response:
        """Returns the error of upstreams that refuse the request.

        Raises `Refusal` for other failures: 504 if the time was over, else 502.
        """
        last = next(reversed(self.failed.values()), None)
        if isinstance(last, UpstreamFailed) and self._request_refused():
            return Response(last.body, last.status, last.headers)
        failure_by_agent = {name: failure.message for name, failure in self.failed.items()}
        failure_by_agent |= {
            name: "no answer came in time" for name in self.asked_agents if name not in failure_by_agent
        }
        all_late = all(
            name not in self.failed or self.failed[name].status == TIMED_OUT_STATUS for name in failure_by_agent
        )
        message = "; ".join(f"{name}: {reason}" for name, reason in failure_by_agent.items()) or "none was asked"
        status = TIMED_OUT_STATUS if failure_by_agent and all_late else 502
        raise Refusal(status, "upstream_all_failed", f"no upstream answered ({message})")


def _completion_of(
    status: int,
    headers: tuple[tuple[bytes, bytes], ...],
    body: bytes,
    *,
    agent: str,
    seconds: float,
    no_logprobs_reason: str,
) -> UpstreamCompletion:
    """Returns an upstream's reply as a completion. Raises `Refusal` if the reply is no completion.

    Args:
        status: HTTP status.
        headers: headers of the reply.
        body: body of the reply.
        agent: name of the agent that answered.
        seconds: how long the agent took.
        no_logprobs_reason: why the answer has no log-probabilities; empty if they were requested.
    """
    if status >= 400:
        raise UpstreamFailed(status, body, to_caller(headers))
    if status != 200 or failure_in(body):
        raise Refusal(502, "upstream_status", f"the upstream answered {status} without an answer")
    try:
        completion = UpstreamCompletion(body, agent, seconds, no_logprobs_reason)
    except UNREADABLE as error:
        raise Refusal(502, "upstream_answer", "the upstream's answer is not a JSON object") from error
    try:
        msgspec.convert(completion, _Completion)
    except msgspec.ValidationError as error:
        raise Refusal(502, "upstream_answer", f"the upstream's answer is no chat completion ({error})") from error
    return completion


def _events(body: bytes, chat: ChatRequest) -> Iterator[bytes]:
    """Yields a whole completion as the events of a stream: its message, its end with the verdict, its usage."""
    completion = lenient_object(body)
    common_fields = {name: value for name, value in completion.items() if name not in ("choices", "usage", "metaprobe")}
    common_fields["object"] = "chat.completion.chunk"
    choice: dict[str, Any] = completion["choices"][0]
    delta = {name: value for name, value in choice["message"].items() if value is not None}
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    first_choice = {"index": 0, "delta": delta, "logprobs": choice.get("logprobs"), "finish_reason": None}
    last_choice: dict[str, Any] = {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": choice.get("finish_reason"),
    }
    chunks = [
        {**common_fields, "choices": [first_choice]},
        {**common_fields, "choices": [last_choice], "metaprobe": completion["metaprobe"]},
    ]
    options = msgspec.json.decode(chat.fields.get("stream_options", b"null"))
    if isinstance(options, dict) and options.get("include_usage") is True:
        chunks.append({**common_fields, "choices": [], "usage": completion.get("usage")})
    yield from (b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks)
    yield b"data: [DONE]\n\n"


EMBEDDINGS = "/embeddings"
FORWARDED = (CHAT, "/completions", "/responses", EMBEDDINGS)
"""Paths below the upstream's base address that are forwarded."""
_NOT_IN_MODEL_NAMES = re.compile(r"[;%\ufffd\x00-\x1f]")
"""Matches characters that no model's name holds, and that may lead to another path of the upstream."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """Answers requests by asking the upstream, and nothing else."""

    settings: Settings
    judges_holder: JudgesHolder
    gates: StreamingGate | None
    client: UpstreamClient
    metrics: Metrics
    log: ServerLog | None
    panels: PanelDesk | None
    declined: Declined = field(default_factory=Declined)

    async def __call__(self, request: Request) -> Response:
        """Returns the upstream's answer with a verdict. Raises `Refusal` for a request that is not forwarded."""
        judges = self.judges_holder.current  # a reload while the request comes in does not change who judges it
        body = await read_json_body(request, self.settings)
        started = time.perf_counter()
        path = request.url.path.rpartition("/v1")[2]
        chat, scorer, model = None, None, ""
        if path == CHAT:
            chat = await aside(len(body), lambda: read_chat(body), REQUESTS)
            model = chat.model
        elif path != EMBEDDINGS:
            model = await aside(len(body), lambda: model_of(body), REQUESTS)
        if path != EMBEDDINGS:
            scorer = judges.pick(model, trial_id(request))
            if log := self.log:
                scorer = scorer.of(await aside(len(body), lambda: RequestLog(log, request, chat), REQUESTS))
        gates, panels = (self.gates, self.panels) if chat else (None, None)
        seconds_here = time.perf_counter() - started
        scored_request = ScoredRequest(self.settings, body, scorer, chat, gates, panels)
        exchange_options = {"metrics": self.metrics, "declined": self.declined}
        return UpstreamExchange(scored_request, request, path, self.client, seconds_here, **exchange_options)

    async def models(self, request: Request) -> Response:
        """Returns the upstream's list of models, or its data about one model, unchanged."""
        async with self.client.asking(request, "GET", _model_path(request), None) as answer:
            body = await answer.whole(self.settings.max_answer_bytes)
        if 300 <= answer.status < 400:
            raise redirect(answer)
        return Response(body, answer.status, to_caller(answer.headers))


def _model_path(request: Request) -> str:
    """Returns the path of the model that the caller names, as written; of the list if no model is named."""
    if "model" not in request.path_params:
        return "/models"
    name = request.path_params["model"]
    # `..` in the path could reach an upstream path other than /models. Servers differ in what they take for `..`: some
    # leave out `;x`, some decode twice (`%252e`), some read bytes that are no UTF-8.
    if {"", ".", ".."} & set(name.replace("\\", "/").split("/")) or _NOT_IN_MODEL_NAMES.search(name):
        raise Refusal(404, "unknown_model", "this is no name of a model")
    raw_name: bytes = request.scope["raw_path"].partition(b"/models/")[2]
    return f"/models/{raw_name.decode('latin-1')}"
