"""The server's entries in the score log: one for each verdict, under the id that the caller gets with it."""

import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request

from metaprobe.api import ParsedResponse, ParsedText, Price
from metaprobe.production.http.bodies import Refusal
from metaprobe.production.http.completion_json import UNREADABLE, ChatRequest
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.settings import Settings
from metaprobe.production.monitoring.entry import MAX_NOTE, Entry

if TYPE_CHECKING:
    from metaprobe.production.monitoring.log import AnswerLengths, ScoreLog


TAGS_HEADER = "x-metaprobe-tags"
TAGS_METADATA = "metaprobe-tags"
"""Key of a chat request's `metadata` that may replace the header."""
SCOPE_ID = "metaprobe.request_id"
"""Key of the ASGI scope under which the guard stores the request's id."""
SCOPE_CALLERS_ID = "metaprobe.callers_id"
"""Key of the ASGI scope with the caller's own id of the request; empty for none."""
SCOPE_CALLER = "metaprobe.caller"
"""Key of the ASGI scope with the caller."""
_CALLERS_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
NOT_LOGGED_REASON = "this verdict is not logged: the score log takes no more entries now"
"""Reason of a verdict that was not logged because the log's queue was full."""
MAX_TAGS = 16
MAX_TAGS_TEXT = 8192
"""Most characters of all tags as written, with spaces: `MAX_TAGS` of the longest take two thirds of it."""
WAIT_S = 5.0
"""Seconds for which labels wait for another process that locks the log's file, before they are refused for now."""

_QUOTE = re.compile(r"""(?<!\w)(['"])(?:\\.|(?!\1)[^\\])*(?:\1|\\?$)""", re.DOTALL)
"""Matches a text as Python's `repr` writes it, even with its end cut off. An apostrophe after a letter does
not count.
"""
_TAG = re.compile(r"([A-Za-z0-9_.-]{1,64})=([^,=\x00-\x1f]{0,256})")


class _Metadata(msgspec.Struct):
    """The part of a request's metadata that is read. The rest is not decoded."""

    tags: msgspec.Raw = msgspec.field(name=TAGS_METADATA, default=msgspec.Raw(b'""'))


@dataclass(frozen=True, slots=True)
class ServerLog:
    """The log of one server."""

    log: "ScoreLog"
    settings: Settings
    metrics: Metrics
    prices: Mapping[str, Price] | None = None
    """Prices by the model's name; None for OpenAI's list."""
    lengths: "AnswerLengths | None" = None
    """Lengths of answers that the gate did not stop; None if there is no gate."""
    host: str = ""
    """Host of the upstream, which decides the prices."""
    offer: Callable[[Request, ChatRequest, str, ParsedResponse | ParsedText], None] | None = None
    """Takes each logged first answer to a chat, with its request and its entry's id, and may ask the question again
    (`metaprobe.production.http.second_answer`); None if no question is asked again.
    """

    @classmethod
    def open(cls, settings: Settings, metrics: Metrics, *, gated: bool) -> Self:
        """Opens the log that the settings name.

        Raises `LogError` if it cannot be opened, and `LLMError` for unreadable prices. `gated` says whether there is a
        gate, whose savings are to be estimated.
        """
        prices = None if settings.prices is None else Price.read(settings.prices)
        # Not above: the middleware runs in an engine's environment, where a log, and its database, may not be wanted.
        from metaprobe.production.monitoring.log import AnswerLengths, ScoreLog

        log = ScoreLog.open(settings.log, wait_s=WAIT_S, spool=settings.log_spool)
        lengths = AnswerLengths.of_log(log.tables) if gated else None
        return cls(log, settings, metrics, prices, lengths, urlsplit(settings.upstream).hostname or "")

    def price_of(self, *models: str) -> Price | None:
        """Returns the price of the first of these models whose price is known; None if none is."""
        prices = (Price.of_model(model, self.host, self.prices) for model in models)
        return next((price for price in prices if price is not None), None)

    def count(self) -> None:
        """Copies the log's counts into the metrics."""
        self.metrics.count_log(self.log.dropped, self.log.repeated, self.log.spooled)


class RequestLog:
    """Logs the answers to one request."""

    def __init__(
        self,
        server: ServerLog,
        request: Request,
        question: ChatRequest | None = None,
        *,
        one_usage: bool = True,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Reads the request's tags. Raises `Refusal` for unreadable tags.

        Args:
            server: the server's log.
            request: the request.
            question: the parsed chat request; None for other requests.
            one_usage: whether all answers belong to one response of the upstream, whose token count is for all of them.
            tags: replace the request's own tags.
        """
        caller = request.scope.get(SCOPE_CALLER)
        self._server, self._one_usage, self._key_name = server, one_usage, caller.name if caller else ""
        self._request, self._chat = request, question
        self._callers_id = str(request.scope.get(SCOPE_CALLERS_ID, ""))
        self._request_id = self._last_id = str(request.scope.get(SCOPE_ID, ""))
        self._max_tokens = None if question is None else question.max_tokens
        self._answer_count, self._cost_is_logged = 0, False
        self.tags = tags_of(request, question) if tags is None else tags
        self.model = "" if question is None else question.model
        """Model that the request names."""
        self.question = _question_text(question) if server.settings.log_texts else None
        self.started = time.perf_counter()
        """Time when the answer was requested, by `time.perf_counter`."""

    def add(
        self,
        verdict_fields: dict[str, Any],
        answer: ParsedResponse | ParsedText | None,
        gate: Mapping[str, Any] | None = None,
    ) -> None:
        """Logs a verdict, and adds the id of its entry to it.

        The second of several answers to one request has the id `ID:1`.

        Args:
            verdict_fields: the verdict as the caller gets it; `request_id` is added to it.
            answer: the answer; None if it cannot be read.
            gate: what the gate did, and the model, if the gate ended the answer.
        """
        suffix = f":{self._answer_count}" if self._answer_count else ""
        self._answer_count += 1
        self._last_id = verdict_fields["request_id"] = f"{self._request_id}{suffix}"
        callers_entry_id = f"{self._callers_id}{suffix}" if self._callers_id else ""
        if not self._write(self._last_id, verdict_fields, answer, gate, callers_id=callers_entry_id):
            verdict_fields["reason"] = "; ".join(filter(None, [verdict_fields["reason"], NOT_LOGGED_REASON]))
            return  # asking again would cost money, and nobody reads the agreement of an answer that is not logged
        offer = self._server.offer
        if offer is not None and self._chat is not None and answer is not None and self._answer_count == 1:
            offer(self._request, self._chat, self._last_id, answer)

    def add_shadow(self, verdict_fields: Mapping[str, Any], answer: ParsedResponse | ParsedText) -> None:
        """Logs a shadow checkpoint's verdict on the answer that was added last."""
        self._write(f"{self._last_id}:shadow", verdict_fields, answer, None, shadow_of=self._last_id)

    def _write(
        self,
        entry_id: str,
        verdict_fields: Mapping[str, Any],
        answer: ParsedResponse | ParsedText | None,
        gate: Mapping[str, Any] | None,
        *,
        shadow_of: str = "",
        callers_id: str = "",
    ) -> bool:
        """Writes an entry, and returns whether the log accepted it.

        Args:
            entry_id: id of the entry.
            verdict_fields: the verdict.
            answer: the answer; None if it cannot be read.
            gate: what the gate did; None if it did nothing.
            shadow_of: id of the entry that a shadow's verdict accompanies.
            callers_id: the caller's own id.
        """
        logprobs = answer.logprobs if isinstance(answer, ParsedResponse) else None
        tokens = len(logprobs) if logprobs is not None else gate["tokens"] if gate else None
        model = (answer.model if answer else gate["model"] if gate else "") or self.model
        settings, lengths, tokens_saved = self._server.settings, self._server.lengths, None
        if lengths is not None and tokens is not None and not shadow_of:
            if gate is None:  # lengths of answers that were not stopped tell how many tokens a stop saves
                lengths.add(model, tokens)
            else:
                tokens_saved = lengths.estimate_left(model, tokens, self._max_tokens)
        accepted = self._server.log.write(
            Entry(
                request_id=entry_id,
                time=time.time(),
                model=model,
                checkpoint=verdict_fields["checkpoint"],
                score=verdict_fields["score"],
                flagged=verdict_fields["flagged"],
                critical=verdict_fields["critical"],
                heads=verdict_fields["heads"],
                reason=verdict_fields["reason"] if settings.log_texts else without_quotes(verdict_fields["reason"]),
                finish_reason=answer.finish_reason if answer else "",
                action=gate["action"] if gate else "",
                prompt_tokens=(answer.usage.prompt_tokens or None) if answer else None,
                tokens=tokens,
                tokens_saved=tokens_saved,
                cost_usd=None if shadow_of or answer is None else self._cost_usd(answer),
                latency_s=time.perf_counter() - self.started,
                shadow_of=shadow_of,
                tags=self.tags,
                logprobs=logprobs if settings.log_logprobs else None,  # type: ignore[arg-type]
                question=self.question,
                answer=answer.text if answer and settings.log_texts else None,
                callers_id=callers_id,
                key_name=self._key_name,
            )
        )
        self._server.count()
        return accepted

    def _cost_usd(self, answer: ParsedResponse | ParsedText) -> float | None:
        """Returns the cost of the tokens that the upstream counted; None without a price or a count.

        Of several answers, the first one gets the cost of all.
        """
        usage, price = answer.usage, self._server.price_of(answer.model, self.model)
        if price is None or not usage.prompt_tokens:
            return None
        was_logged, self._cost_is_logged = self._cost_is_logged, self._one_usage
        return 0.0 if was_logged else price.cost_usd(usage)


def without_quotes(reason: str) -> str:
    """Returns the reason without its quotes, which may hold parts of the answer: a token, a line of text, an error's
    message.
    """
    return _QUOTE.sub("'...'", reason[:MAX_NOTE])


def callers_id(header: str) -> str:
    """Returns the caller's `X-Request-ID`; empty for an invalid one."""
    return header if _CALLERS_ID.fullmatch(header) else ""


def read_tags(header: str) -> dict[str, str]:
    """Returns tags as a caller writes them: `task=faq, prompt=v7`. Raises `Refusal` (400) for anything else."""
    if not header.strip():
        return {}
    if len(header) > MAX_TAGS_TEXT:
        raise Refusal(
            400, "invalid_tags", f"{TAGS_HEADER} has {len(header)} characters; expected {MAX_TAGS_TEXT} at most"
        )
    tags = {}
    for part in header.split(","):
        tag = _TAG.fullmatch("=".join(side.strip() for side in part.split("=", 2)))
        if tag is None:
            message = f"{TAGS_HEADER} is not NAME=VALUE, separated by commas, such as task=faq,prompt=v7"
            raise Refusal(400, "invalid_tags", message)
        tags[tag[1]] = tag[2]
    if len(tags) > MAX_TAGS:
        raise Refusal(400, "invalid_tags", f"{TAGS_HEADER} holds {len(tags)} tags; at most {MAX_TAGS} are kept")
    return tags


def tags_of(request: Request, question: ChatRequest | None) -> dict[str, str]:
    """Returns the tags of a request, from its header or else its metadata. Raises `Refusal` (400) as `read_tags`."""
    tags_text = request.headers.get(TAGS_HEADER, "")
    with suppress(UnicodeDecodeError):  # headers are read as latin-1, and most clients send UTF-8
        tags_text = tags_text.encode("latin-1").decode("utf-8")
    if not tags_text and question is not None and "metadata" in question.fields:
        metadata, raw_tags = None, b'""'
        with suppress(*UNREADABLE):  # what else it may be is the upstream's to judge
            metadata = msgspec.json.decode(question.fields["metadata"], type=_Metadata | None)
        if metadata is not None:
            raw_tags = bytes(metadata.tags)
        try:
            tags_text = msgspec.json.decode(raw_tags, type=str)
        except UNREADABLE:
            tags_text = raw_tags[:64].decode("utf-8", "replace")  # no text, and refused as such
    return read_tags(tags_text)


def _question_text(question: ChatRequest | None) -> str | None:
    """Returns the messages of a chat as text: a single user message alone, several messages each after its role."""
    messages = None if question is None else question.messages
    if messages is None or not all(isinstance(message, dict) for message in messages):
        return None
    spoken = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        spoken.append((str(message.get("role", "")), content if isinstance(content, str) else ""))
    if len(spoken) == 1 and spoken[0][0] == "user":
        return spoken[0][1]
    return "\n\n".join(f"{role}: {content}" for role, content in spoken)
