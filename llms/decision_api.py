"""A decision API as a model that judges: `client.decisions.create` of openai-python, on any server that has it.

The last message of a request has the role `DecisionQuestion.role` (`records/decision_questions.py`) and holds the
questions as JSON. The text of the answering call is the answers, JSON in the server's own form. So it is stored, cached
and replayed as any other call.
"""

import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Unpack

from metaprobe.llms.base import Capabilities, LLMError, Request, Token
from metaprobe.llms.endpoint import EndpointLLM, Reach
from metaprobe.llms.pricing import DECISION_PRICES, Price
from metaprobe.records.decision_questions import DecisionQuestion
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.types import Call, Message, Usage

DECISIONS_PATH = "/decisions"
MESSAGE_ROLES = ("user", "system", "developer", "assistant")
LONG_PROMPT = 272_000
"""Prompt tokens above which OpenAI charges more than the listed price. The cost of such a call is not estimated."""


class DecisionsLLM(EndpointLLM):
    """Asks typed questions about the messages of a request, all in one HTTP request.

    Errors, waiting and retries are those of `OpenAILLM`. An answer that does not fit its question counts as unreadable,
    and is requested again. The options mean the same as in `OpenAILLM`.
    """

    SCHEME = "decisions:"

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        revision: str = "unknown",
        prices: Mapping[str, Price] | None = None,
        **connection_options: Unpack[Reach],
    ) -> None:
        """Raises `LLMError` for an empty name, and for an invalid address.

        Args:
            model: name of the model.
            base_url: address of the endpoint.
            revision: version of the weights.
            prices: prices by model.
            **reach: options of the connection, see `Reach`.
        """
        super().__init__(model, base_url, revision, **connection_options)
        self._price = Price.of_model(model, self._endpoint.host, prices, DECISION_PRICES)

    @property
    def asked_how(self) -> str:
        """The address, on which answers depend, without secrets."""
        return f"{self.SCHEME}{self.endpoint}"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(text=False)

    async def complete(self, request: Request) -> Call:
        """Returns the call whose text is `{"answers": [...]}`. Raises `LLMError`, also for a request
        without questions.
        """
        name = f"request {request.id}"
        try:
            *input_messages, last_message = request.messages
            if last_message.role != DecisionQuestion.role:
                raise ValueError(f"its last message is of role {last_message.role!r}")
            questions_json = json.loads(last_message.content)
            questions = DecisionQuestion.read_all(questions_json)
            body = {
                "model": self.name,
                "input": [_input_item(message) for message in input_messages],
                "questions": questions_json,
            }
        except (ValueError, InvalidResponse) as error:
            raise LLMError(
                f"{name} is no request to the decision model {self.name}: {error}; expected messages of user, system, "
                f"developer or assistant, and then the questions (role {DecisionQuestion.role!r})"
            ) from error
        async with self._endpoint.slot() as client:

            async def ask() -> Call:
                started = time.perf_counter()
                decision = await client.post(DECISIONS_PATH, body=body, cast_to=object)
                latency_ms = (time.perf_counter() - started) * 1000
                if not isinstance(decision, Mapping):
                    raise InvalidResponse(f"a decision is {type(decision).__name__}; expected an object with answers")
                DecisionQuestion.read_answers(decision, "", questions=questions)  # refuses an answer that does not fit
                return self._call_of_decision(request, decision, latency_ms)

            return await self._endpoint.ask(ask, name)

    async def stream(self, request: Request) -> AsyncIterator[Token | Call]:
        """Yields only the finished call: decisions arrive all at once."""
        yield await self.complete(request)

    def _call_of_decision(self, request: Request, decision: Mapping[str, Any], latency_ms: float) -> Call:
        """Returns a decision of the API as a call, with its cost if the price is known."""
        usage_fields = decision.get("usage")
        counts = [
            usage_fields.get(key) if isinstance(usage_fields, Mapping) else None
            for key in ("input_tokens", "output_tokens")
        ]
        usage = Usage(*(count if type(count) is int and count >= 0 else 0 for count in counts))
        price = self._price if 0 < usage.prompt_tokens <= LONG_PROMPT else None
        served_model = decision.get("model")
        return request.call(
            model=self.name,
            model_revision=served_model
            if isinstance(served_model, str) and served_model not in ("", self.name)
            else self.revision,
            text=json.dumps({"answers": decision["answers"]}, ensure_ascii=False),
            finish_reason="stop",
            usage=usage,
            latency_ms=latency_ms,
            cost_usd=price.cost_usd(usage) if price else None,
        )


def decision_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options for endpoints that apply to decisions; the others are about texts."""
    return {
        name: options[name] for name in ("revision", "timeout_s", "max_wait_s", "attempts", "prices") if name in options
    }


def _input_item(message: Message) -> dict[str, str]:
    if message.role not in MESSAGE_ROLES:
        raise ValueError(f"a message is of role {message.role!r}")
    return {"role": message.role, "content": message.content}
