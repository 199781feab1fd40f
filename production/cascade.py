"""Asks a weak model, judges its answer, and asks a strong model if the answer is not good enough.

    cascade = Cascade(Tier(client, "gpt-4o-mini"), Tier(client, "gpt-4o"), predictor, threshold=0.7)
    answer = cascade.chat.completions.create(messages=messages)
    answer.choices[0].message.content, answer.verdict.score, answer.answered_by, answer.cost_usd

It has the interface of an OpenAI client, sync (`Cascade`) and async (`AsyncCascade`). The clients are the user's own,
and are never changed.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from types import SimpleNamespace
from typing import Any, Literal, NoReturn, get_args
from urllib.parse import urlsplit

from metaprobe.api import (
    Action,
    Decision,
    InvalidResponse,
    Outcome,
    PaperRules,
    Policy,
    Price,
    QualityPredictor,
    RecordError,
    Scored,
    State,
    Verdict,
    failure_of,
)

CASCADE_POINT = "assess"
SPENT_USD, PRICE_USD = "spent_usd", "price_usd"
"""Keys of `State.features[""]`, for a user's own policy: the cost of the question so far, and the likely cost of the
strong model.
"""

Unjudged = Literal["strong", "keep"]
WeakError = Literal["raise", "strong"]
StrongError = Literal["raise", "weak"]


@dataclass(frozen=True, slots=True)
class Tier:
    """One of a cascade's two models."""

    client: Any
    """An `openai.OpenAI` or `openai.AsyncOpenAI`, or anything with the same `chat.completions.create`."""
    model: str
    """Name of the model for its client, and the agent's name in every decision."""
    price: Price | None = None
    """US dollars for a million tokens. Without it OpenAI's own models have their list price, and other models none."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields for requests to this model only, such as `temperature` or `extra_body`."""

    def cost_usd(self, response: object, at: "Tier | None" = None) -> float | None:
        """Returns the cost of an answer in US dollars, or its cost at the price of another tier; None if it
        is unknown.
        """
        price = (at or self).known_price
        return None if price is None else price.cost_of(response)

    @property
    def known_price(self) -> Price | None:
        """The given price, or the list price of one of OpenAI's models at OpenAI; else None."""
        host = urlsplit(str(getattr(self.client, "base_url", ""))).hostname or ""
        return self.price or Price.of_model(self.model, host)


@dataclass(frozen=True, slots=True)
class CascadeAnswer:
    """The answer that was kept, and how it was chosen. Every other attribute is that of `response`."""

    response: Any = field(repr=False)
    """Response of the model that answered, as its client returned it."""
    answered_by: str
    """Name of that model."""
    verdict: Verdict | None
    """Verdict on the weak model's answer; None if it could not be judged, see `reason`."""
    decision: Decision | None
    """The policy's decision; None if there was nothing to decide."""
    reason: str
    """Why this answer was kept."""
    cost_usd: float | None
    """US dollars for both models; None if the price or the tokens of a model that answered are unknown.

    A failed response is paid for by its tokens. A call that raised an error has no tokens, and adds nothing.
    """
    weak: Any = field(default=None, repr=False)
    """The weak model's answer; None if it failed."""
    strong: Any = field(default=None, repr=False)
    """The strong model's answer; None if it was not asked, or failed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in self.__dataclass_fields__:
            raise AttributeError(f"CascadeAnswer has no attribute {name!r}")
        return getattr(self.response, name)


@dataclass(frozen=True, slots=True)
class CascadeCounts:
    """Totals of a cascade so far."""

    questions: int = 0
    """Number of questions that were answered."""
    by_strong: int = 0
    """Number of questions that the strong model answered."""
    cost_usd: float | None = 0.0
    """US dollars for all questions; None as soon as the cost of one is unknown."""


class _Cascading:
    """Base of both cascades. It does everything except waiting for a client."""

    def __init__(
        self,
        weak: Tier,
        strong: Tier,
        predictor: QualityPredictor,
        *,
        threshold: float | None = None,
        policy: Policy | None = None,
        unjudged: Unjudged = "strong",
        on_weak_error: WeakError = "raise",
        on_strong_error: StrongError = "raise",
    ) -> None:
        """Sets up the cascade. Raises `RecordError` for options that do not fit together.

        At most one of `threshold` and `policy` may be given. Without either, the predictor's own operating point is the
        threshold (`accept`, else `flag`, else 0.5).

        A response without an answer (`failure_of`: an error, no choice, a blank text) is a failed call. It is never
        kept, but paid for. If the weak model's response fails, the strong model is asked, whatever the options say. If
        the strong model's response fails, `on_strong_error` decides. A request raises `InvalidResponse`, which names
        both models, if neither gave an answer.

        Args:
            weak: the weak model.
            strong: the strong model.
            predictor: judges the weak model's answer.
            threshold: score below which the strong model is asked.
            policy: decides at the point `assess`: `execute` keeps the answer, `ask` asks the strong model.
            unjudged: what to do with a weak model's answer without a score (a tool call, a refusal, no
                log-probabilities).
            on_weak_error: whether an error of the weak model is raised, or the strong model is asked.
            on_strong_error: whether an error of the strong model is raised, or the weak model's answer is kept.
        """
        if not hasattr(predictor, "signals"):
            raise RecordError(f"predictor is a {type(predictor).__name__}; expected a QualityPredictor")
        if getattr(predictor, "score_head", "") is None:
            raise RecordError(
                "predictor gives no score, so that the strong model would be asked for all answers, or for none; "
                "expected one with a head correct or quality: adapt it with labelled answers"
            )
        self.weak, self.strong, self._predictor = weak, strong, predictor
        if threshold is not None and policy is not None:
            raise RecordError("threshold and policy were given; give one of them")
        self.policy = policy or (PaperRules() if threshold is None else PaperRules(theta=threshold, given=("theta",)))
        self._unjudged = _one_of("unjudged", unjudged, Unjudged)
        self._on_weak_error = _one_of("on_weak_error", on_weak_error, WeakError)
        self._on_strong_error = _one_of("on_strong_error", on_strong_error, StrongError)
        self._counts = CascadeCounts()
        self._lock = Lock()
        self.chat = SimpleNamespace(completions=_Completions(self._create))

    @property
    def counts(self) -> CascadeCounts:
        """Totals so far."""
        return self._counts

    def _create(self, **request: Any) -> Any:
        raise NotImplementedError

    async def _ask_tier(self, tier: Tier, request: dict[str, Any]) -> Any:
        """Returns the client's response."""
        raise NotImplementedError

    async def _answer_request(self, request: dict[str, Any]) -> CascadeAnswer:
        """Asks the weak model, judges its answer, and asks the strong model if needed. Waits only in `_ask_tier`.

        Raises `RecordError` before any model is asked, for a request that a cascade cannot answer.
        """
        # Refuse requests that a cascade cannot judge.
        if request.get("stream"):
            raise RecordError(
                "stream=True: a cascade reads the whole answer before it can keep it; leave stream out, or watch the "
                "stream of one model (metaprobe.watch) and ask the other where the gate says escalate"
            )
        if (request.get("n") or 1) != 1:
            raise RecordError(f"n={request['n']}: a cascade judges one answer; ask for one at a time")
        if request.get("model", self.weak.model) != self.weak.model:
            raise RecordError(
                f"model={request['model']!r}: this cascade asks {self.weak.model} and, where it must, "
                f"{self.strong.model}; leave model out"
            )
        # Ask the weak model, and judge its answer.
        weak = strong = verdict = decision = None
        costs: list[float | None] = []
        try:
            to_send = {**request, **self.weak.options, "model": self.weak.model, "logprobs": True}
            answer = await self._ask_tier(self.weak, to_send)
        except Exception as error:
            if self._on_weak_error == "raise":
                raise
            asks_strong, reason = True, f"{self.weak.model} failed ({type(error).__name__}: {error})"
        else:
            costs.append(self.weak.cost_usd(answer))
            if failure := failure_of(answer):
                asks_strong, reason = True, f"{self.weak.model} failed ({failure})"
            else:
                weak = answer
                asks_strong, reason, verdict, decision = self._judge(weak, costs[0])
        # Ask the strong model, if the weak answer is not kept.
        if asks_strong:
            raises_error = self._on_strong_error == "raise" or weak is None
            try:
                to_send = {**request, **self.strong.options, "model": self.strong.model}
                answer = await self._ask_tier(self.strong, to_send)
            except Exception as error:
                if raises_error:
                    raise
                reason += f"; {self.strong.model} failed ({type(error).__name__}: {error})"
            else:
                costs.append(self.strong.cost_usd(answer))  # a failed response is paid for too
                if failure := failure_of(answer):
                    reason += f"; {self.strong.model} failed ({failure})"
                    if raises_error:
                        raise InvalidResponse(reason.removeprefix("; "))
                else:
                    strong = answer
        # Count the question and its cost.
        cost_usd = None if None in costs else sum(filter(None, costs))
        with self._lock:
            counts_before = self._counts
            total_usd = (
                None if cost_usd is None or counts_before.cost_usd is None else counts_before.cost_usd + cost_usd
            )
            self._counts = CascadeCounts(
                counts_before.questions + 1, counts_before.by_strong + (strong is not None), total_usd
            )
        if decision is not None:
            self.policy.observe(decision.id, Outcome(cost_usd=cost_usd))
        tier, response = (self.weak, weak) if strong is None else (self.strong, strong)
        return CascadeAnswer(response, tier.model, verdict, decision, reason, cost_usd, weak=weak, strong=strong)

    def _judge(self, weak: Any, spent_usd: float | None) -> tuple[bool, str, Verdict | None, Decision | None]:
        """Returns whether to ask the strong model after this answer of the weak one, the reason, the verdict, and the
        decision.
        """
        scored = Scored.of(self._predictor, weak)
        if scored.verdict is None or scored.verdict.score is None:
            reason = f"{self.weak.model} is not judged: {scored.as_metadata()['reason']}"
            return self._unjudged == "strong", reason, scored.verdict, None
        price_usd = self.weak.cost_usd(weak, at=self.strong)
        costs = {} if spent_usd is None or price_usd is None else {SPENT_USD: spent_usd, PRICE_USD: price_usd}
        signals = self._predictor.signals(scored.verdict)
        state = State.at(CASCADE_POINT, agent=self.weak.model, signals=signals, features={"": costs})
        decision = self.policy.decide(state, [Action.EXECUTE, Action.ASK])
        return decision.action == Action.ASK, decision.reason, scored.verdict, decision


class Cascade(_Cascading):
    """A cascade of two synchronous clients. Threads may share it if they may share the clients."""

    def _create(self, **request: Any) -> CascadeAnswer:
        coroutine = self._answer_request(request)
        while True:  # runs once, because nothing in the coroutine waits
            try:
                coroutine.send(None)
            except StopIteration as done:
                answer: CascadeAnswer = done.value
                return answer

    async def _ask_tier(self, tier: Tier, request: dict[str, Any]) -> Any:
        response = tier.client.chat.completions.create(**request)
        if inspect.isawaitable(response):
            if inspect.iscoroutine(response):
                response.close()  # else Python warns that nobody awaits it
            raise TypeError(f"the client of {tier.model} is asynchronous: take AsyncCascade")
        return response


class AsyncCascade(_Cascading):
    """A cascade of two asynchronous clients: `await cascade.chat.completions.create(...)`.

    The answer is judged in the event loop, which takes well under a millisecond.
    """

    async def _create(self, **request: Any) -> CascadeAnswer:
        return await self._answer_request(request)

    async def _ask_tier(self, tier: Tier, request: dict[str, Any]) -> Any:
        response = tier.client.chat.completions.create(**request)
        if not inspect.isawaitable(response):
            raise TypeError(f"the client of {tier.model} is synchronous: take Cascade")
        return await response


class _Completions:
    """The attribute `cascade.chat.completions`."""

    def __init__(self, create: Callable[..., Any]) -> None:
        self.create = create

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a cascade has chat.completions.create, and no {name!r}")


def _one_of(name: str, value: Any, literal_type: Any) -> Any:
    if value not in get_args(literal_type):
        raise RecordError(f"{name} is {value!r}; expected one of {', '.join(get_args(literal_type))}")
    return value
