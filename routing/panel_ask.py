"""Asks for the answers of a panel until one more answer is not worth its price."""

import asyncio
import inspect
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metaprobe.checkpoints.display import explain_fields
from metaprobe.records.errors import RecordError
from metaprobe.records.reading import each, fields, without_surrogates
from metaprobe.routing.panel_answers import MOST_TOGETHER, PanelVerdict, told
from metaprobe.routing.panel_stops import Setting, draw_of

if TYPE_CHECKING:
    from metaprobe.routing.panel import Panel


@explain_fields
@dataclass(frozen=True, slots=True)
class PanelAnswered:
    """What asking a model several times came to."""

    response: Any
    """The response to keep; None where none can be read."""
    verdict: PanelVerdict | None
    """The panel's verdict on all answers; None where none came."""
    responses: tuple[Any, ...]
    """All that came, in the order in which they came."""
    asked: int
    """Requests that were begun, those that failed or were cancelled among them."""
    setting: Setting
    """The way to stop that decided."""
    reason: str
    """What is doubtful, and what failed; empty for nothing."""


async def _create(client: Any, request: Mapping[str, Any]) -> Any:
    """Returns the response of one request. A client that is not asynchronous is called in a thread, which goes on where
    this is cancelled; an asynchronous one then never begins."""

    def create() -> Any:
        try:
            return client.chat.completions.create(**request)
        except StopIteration as error:  # which no future can hold: whoever waits for it would wait for ever
            raise RuntimeError("the client raised StopIteration") from error

    made = asyncio.ensure_future(asyncio.to_thread(create))
    try:
        response = await asyncio.shield(made)
    except asyncio.CancelledError:
        made.add_done_callback(_close)
        raise
    return await response if inspect.isawaitable(response) else response


def _close(made: "asyncio.Future[Any]") -> None:
    """Closes the coroutine of a request that nobody waits for any more, so that it is not left half begun."""
    if not made.cancelled() and made.exception() is None and inspect.iscoroutine(made.result()):
        made.result().close()


def _question_in(messages: Sequence[Any]) -> str:
    """Returns the text of the last message; empty where it has none."""
    said = (fields(messages[-1]) or {}).get("content") if messages else ""
    parts = [said] if isinstance(said, str) else [part.get("text") for part in each(said)]
    return "\n".join(part for part in parts if isinstance(part, str))


def _identity(request: Mapping[str, Any]) -> str:
    """Returns a text that is the same for the same request; of one that JSON cannot hold, that of its names alone."""
    try:
        return json.dumps(request, sort_keys=True, default=str)
    except Exception:  # of an object that a caller made
        return json.dumps(sorted(request))


async def ask(
    panel: "Panel",
    client: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    model: str,
    at_most: int,
    price: float | None,
    samples: float | None,
    at_once: int,
    dimension: str,
    choices: Sequence[str],
    same: Callable[[str], Hashable | None] | None,
    request: Mapping[str, Any],
) -> PanelAnswered:
    """Asks one model, as `Panel.ask` says."""
    if not all(type(count) is int and count >= 1 for count in (at_most, at_once)) or at_most > MOST_TOGETHER:
        raise RecordError(f"at_most={at_most!r}, at_once={at_once!r}; expected counts from 1 to {MOST_TOGETHER}")
    if request.get("n") not in (None, 1) or request.get("stream"):
        raise RecordError("n or stream was given; each request is of one whole answer: leave both out")
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise RecordError(f"messages came as {type(messages).__name__}; expected a list of role and content")
    asked = {"messages": list(messages), "model": model, "logprobs": True, **request}
    setting = panel.plan(price=price, samples=samples).setting(draw_of(_identity(asked)))
    named: dict[str, Any] = {
        "dimension": dimension,
        "question": _question_in(asked["messages"]),
        "choices": choices,
        "same": same,
    }
    panel.judge([""], **named)  # what is wrong with these is told before anything is paid for
    responses: list[Any] = []
    failures: list[str] = []
    verdict: PanelVerdict | None = None
    begun = 0
    pending: set[asyncio.Task[Any]] = set()
    try:
        while True:
            while begun < min(at_most, panel.most) and len(pending) < at_once:
                pending.add(asyncio.ensure_future(_create(client, asked)))
                begun += 1
            if not pending:
                break
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task.cancelled():
                    failures.append("CancelledError: the client gave the request up")
                elif (error := task.exception()) is not None:
                    failures.append(told(error))
                else:
                    responses.append(task.result())
            if responses:
                verdict = panel.judge([(one, 0) for one in responses], **named)  # one answer of each request
                if panel.stops(verdict, setting, len(responses) + len(failures), len(responses)):
                    break
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    failed = f"{len(failures)} of {begun} requests failed ({failures[0]})" if failures else ""
    said = [verdict.reason if verdict else "no answer came", str(without_surrogates(failed))]
    reason = "; ".join(filter(None, said))
    kept = None if verdict is None or verdict.kept is None else responses[verdict.kept]
    return PanelAnswered(kept, verdict, tuple(responses), begun, setting, reason)
