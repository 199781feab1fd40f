"""`POST /v1/panel`: which of several answers to one question to keep, and how sure this is."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from metaprobe.api import ContractMismatch, InvalidResponse, Panel, PanelAnswer, RecordError
from metaprobe.production.http.bodies import Refusal
from metaprobe.production.http.completion_json import UNREADABLE, batch

PANEL_COST = 8
"""How many times longer a byte of a panel takes than a byte of a scored answer."""
MAX_PANEL_ANSWERS = 128
"""Most answers to one question in a request. Every answer is compared with every class, so time and memory grow
quadratically.
"""


class _PanelRequest(msgspec.Struct):
    """Fields of a request, except its answers."""

    agents: list[str | None] | None = None
    dimension: str | None = None
    question: str | None = None
    choices: list[str] | None = None


_panel_request = msgspec.json.Decoder(_PanelRequest)


def _read_panel_request(body: bytes) -> _PanelRequest:
    try:
        return _panel_request.decode(body)
    except msgspec.ValidationError:
        raise
    except UNREADABLE:  # JSON as Python writes it, with NaN or half of a surrogate pair in an answer
        return msgspec.convert(json.loads(body), _PanelRequest)


@dataclass(frozen=True, slots=True)
class PanelDesk:
    """Judges the panels of callers' requests."""

    panel: Panel

    def judge(self, body: bytes) -> dict[str, Any]:
        """Returns the verdict on the choices of one response, or on `{"responses": [...]}` with agents, dimension,
        question and choices.

        Raises `Refusal` for invalid JSON, for more than `MAX_PANEL_ANSWERS` answers, and for none.
        """
        answers = batch(body, MAX_PANEL_ANSWERS)
        request_fields = _PanelRequest()
        if answers is None:  # each choice is read from the one response: a copy for each would hold all else 128 times
            try:
                response = json.loads(body)
            except UNREADABLE as error:
                raise Refusal(400, "invalid_json", f"the body is not JSON ({type(error).__name__})") from error
            if not isinstance(response, dict):
                raise Refusal(400, "invalid_request", "the body is no JSON object; expected responses")
            choices = response.get("choices")
            if isinstance(choices, list) and len(choices) > MAX_PANEL_ANSWERS:
                message = f"{len(choices)} answers in one request; at most {MAX_PANEL_ANSWERS} are judged together"
                raise Refusal(413, "batch_too_large", message)
            judged_answers: Sequence[object] = [response]
        else:
            judged_answers = [_response_or_text(raw_answer) for raw_answer in answers]
            try:
                request_fields = _read_panel_request(body)
            except UNREADABLE as error:
                message = f"{error}; expected agents, dimension, question, choices"
                raise Refusal(400, "invalid_request", message) from error
        try:
            verdict = self.panel.judge(judged_answers, **msgspec.structs.asdict(request_fields))
        except RecordError as error:
            raise Refusal(400, "invalid_request", str(error)) from error
        except ContractMismatch as error:
            raise Refusal(500, "no_verdict", str(error)) from error
        return verdict.to_dict()

    def verdict(self, choices: Sequence[bytes], count: int, messages: list[Any]) -> dict[str, Any]:
        """Returns the panel's verdict on which choice of a completion to keep. Never raises.

        Args:
            choices: the choices that are read, each as a completion.
            count: number of choices of the completion.
            messages: messages of the request, the last of which is the question; empty if they are not known.
        """
        try:
            if count > MAX_PANEL_ANSWERS:
                return {"kept": None, "reason": f"{count} choices; at most {MAX_PANEL_ANSWERS} are judged together"}
            return self.panel.judge(list(choices), question=Panel.question_in(messages)).to_dict()
        except (RecordError, ContractMismatch) as error:
            return {"kept": None, "reason": str(error)}


def with_panel(verdict: dict[str, Any], panel: dict[str, Any], *, panel_only: bool) -> dict[str, Any]:
    """Returns the reply's content under `metaprobe`: the panel's verdict beside the predictor's, or `panel_only`.

    With `panel_only` one reply holds one score; the predictor's score is in the log. The id of the logged answer always
    stays.

    Args:
        verdict: the predictor's verdict.
        panel: the panel's verdict.
        panel_only: whether the predictor's verdict is left out.
    """
    kept_fields = {name: value for name, value in verdict.items() if not panel_only or name == "request_id"}
    return {**kept_fields, "panel": panel}


def _response_or_text(raw: bytes) -> bytes | PanelAnswer | InvalidResponse:
    """Returns a response unchanged; a JSON string becomes a text without log-probabilities."""
    if not raw.lstrip().startswith(b'"'):
        return raw
    try:
        return PanelAnswer(msgspec.json.decode(raw, type=str))
    except UNREADABLE as error:
        return InvalidResponse(f"it is no JSON string ({error})")
