"""`POST /v1/panel`: which of several answers to one question to keep, and how sure it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from metaprobe.checkpoints import ContractMismatch
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.routing.panel import Panel, PanelAnswer
from metaprobe.serving.http.refusal import Refusal
from metaprobe.serving.http.wire import UNREADABLE, batch, choices_of

MOST_ANSWERS = 128
"""Answers to one question in a request: every answer is held against every class, so that time and memory grow with
their square."""


class _About(msgspec.Struct):
    """What a request says beside its answers."""

    agents: list[str] | None = None
    dimension: str = ""
    question: str = ""
    choices: list[str] = []


_about = msgspec.json.Decoder(_About)


@dataclass(frozen=True, slots=True)
class PanelDesk:
    """Judges the panels that callers send."""

    panel: Panel

    def judge(self, body: bytes) -> dict[str, Any]:
        """Returns the verdict on the choices of one response, or on `{"responses": [...]}` with agents, dimension,
        question and choices.

        Raises `Refusal` for what is no such JSON, for more than `MOST_ANSWERS` answers, and for none.
        """
        answers = batch(body, MOST_ANSWERS)
        about = _About()
        if answers is None:
            try:
                answers = choices_of(body)
            except UNREADABLE as error:
                raise Refusal(400, "invalid_request", "the body is no JSON object; expected responses") from error
            if len(answers) > MOST_ANSWERS:
                message = f"{len(answers)} answers in one request; at most {MOST_ANSWERS} are judged together"
                raise Refusal(413, "batch_too_large", message)
        else:
            try:
                about = _about.decode(body)
            except UNREADABLE as error:
                raise Refusal(
                    400, "invalid_request", f"{error}; expected agents, dimension, question, choices"
                ) from error
        try:
            verdict = self.panel.judge(
                [_answer(one) for one in answers],
                agents=about.agents,
                dimension=about.dimension,
                question=about.question,
                choices=about.choices,
            )
        except RecordError as error:
            raise Refusal(400, "invalid_request", str(error)) from error
        return verdict.to_dict()

    def verdict(self, choices: Sequence[bytes]) -> dict[str, Any]:
        """Returns which choice of a completion to keep, as a completion for each. Never raises."""
        try:
            if len(choices) > MOST_ANSWERS:
                return {"kept": None, "reason": f"{len(choices)} choices; at most {MOST_ANSWERS} are judged together"}
            return self.panel.judge(list(choices)).to_dict()
        except (RecordError, ContractMismatch) as error:
            return {"kept": None, "reason": str(error)}


def _answer(raw: bytes) -> bytes | PanelAnswer | InvalidResponse:
    """Returns a response as it came; a JSON string is a text without log-probabilities."""
    if not raw.lstrip().startswith(b'"'):
        return raw
    try:
        return PanelAnswer(msgspec.json.decode(raw, type=str))
    except UNREADABLE as error:
        return InvalidResponse(f"it is no JSON string ({error})")
