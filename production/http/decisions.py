"""`POST /v1/decisions`: typed questions about an answer, in the wire format of openai-python's `decisions.create`.

A checkpoint answers a predicate or score that has the name of one of its heads, or whose text its contract lists. Every
other question gets a refusal. One request costs one run of each checkpoint that it needs, for any number of questions.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from starlette.requests import Request

from metaprobe.api import (
    DecisionQuestion,
    InvalidResponse,
    Message,
    ParsedResponse,
    QualityPredictor,
    RecordError,
    TextAnswer,
    parse_response,
    read_parts,
    spoken_text,
)
from metaprobe.production.http.bodies import REQUESTS, Refusal, Scoring, aside
from metaprobe.production.http.completion_json import UNREADABLE
from metaprobe.production.http.guard import trial_id
from metaprobe.production.http.judges import Allowance, Judges, Scorer, plain_text
from metaprobe.production.http.request_log import RequestLog, ServerLog
from metaprobe.production.http.settings import Settings

REQUEST_FIELDS = {"model", "input", "questions", "prompt_cache_key", "prompt_cache_options", "safety_identifier"}
TEXT_TYPES_OF_ROLE = {
    "user": ("input_text",),
    "developer": ("input_text",),
    "system": ("input_text",),
    "assistant": ("output_text",),
}
"""Maps the role of a message to the types of its parts that hold text."""
FIELDS_OF_CALL = {"function_call": ("name", "arguments", "call_id"), "custom_tool_call": ("name", "input", "call_id")}
CALL_OF_OUTPUT = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}
MEASURED_FIELD = "metaprobe"
"""Field of the last assistant message with measurements: `{"response": <its response>}`, `{"decision": <another
decision model's decision about it>}`, or both.
"""
RESPONSE_KEY, DECISION_KEY = "response", "decision"
MAX_TEXT_CHARS = 1 << 20
"""Most characters of question and answer that a text reader is given. Tokenizing more would delay others."""
CHAR_COST = 8
"""How many times longer a text reader takes for a character than a predictor for a byte."""
MAX_LISTED_HEADS = 12
"""Most heads that a refusal names."""

NO_USAGE: dict[str, Any] = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}
"""Billed tokens, which the format requires; nothing is billed here."""
LEVELS_UNKNOWN = "the checkpoint gives the expected level alone, in metaprobe.verdicts, and no probability of each"


@dataclass(slots=True)
class Subject:
    """The messages of a request, and what was measured of the last one."""

    messages: list[Message] = field(default_factory=list)
    unread: str = ""
    """Kind of a part that no checkpoint here reads, such as `an image`; empty if there is none."""
    response: bytes | ParsedResponse | None = None
    """Response of the last message, with its log-probabilities. Raw bytes if it cannot be read; None if there is no
    response.
    """
    decision: Any = None
    """Another decision model's decision about the last message; None if there is none."""
    fault: str = ""
    """Why the response or decision cannot belong to the last message; empty if it can."""

    @property
    def last_question(self) -> str | None:
        """Text of the last user message; None if there is none."""
        return next((message.content for message in reversed(self.messages) if message.role == "user"), None)

    @property
    def answer(self) -> str | None:
        """Text of the last message if the assistant wrote it; None if there is no answer yet."""
        return self.messages[-1].content if self.messages and self.messages[-1].role == "assistant" else None


def read_request(body: bytes) -> tuple[str, Subject, list[DecisionQuestion]]:
    """Returns (model, subject, questions). Raises `Refusal` (400), naming the field, if a field is wrong."""
    try:
        fields_of_body = json.loads(body)
    except UNREADABLE as error:
        raise Refusal(400, "invalid_json", f"the body is not JSON ({type(error).__name__})") from error
    try:
        if not isinstance(fields_of_body, dict):
            raise InvalidResponse("the body is no JSON object; expected model, input and questions")
        if unknown_fields := sorted(fields_of_body.keys() - REQUEST_FIELDS):
            raise InvalidResponse(
                f"{_cut(unknown_fields[0])} is no field of a decision request; expected model, input, questions"
            )
        model = fields_of_body.get("model")
        if not isinstance(model, str) or not model:
            raise InvalidResponse("model is no name; expected a string")
        for name, allowed_types in (
            ("prompt_cache_key", str),
            ("safety_identifier", str),
            ("prompt_cache_options", dict),
        ):
            if not isinstance(fields_of_body.get(name), (allowed_types, type(None))):
                raise InvalidResponse(f"{name} has another type than the format says")
        questions = DecisionQuestion.read_all(fields_of_body.get("questions"))
        subject = _subject(fields_of_body.get("input"))
        try:
            texts = [model, fields_of_body["questions"], [message.content for message in subject.messages]]
            json.dumps(texts, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:  # no answer could repeat it
            raise InvalidResponse("a text holds half of a surrogate pair; expected Unicode") from error
        return model, subject, questions
    except InvalidResponse as error:
        raise Refusal(400, "invalid_request", str(error).encode("utf-8", "backslashreplace").decode()) from error
    except RecursionError as error:
        raise Refusal(400, "invalid_request", "the body is nested too deeply") from error


def _subject(content: object) -> Subject:
    if isinstance(content, str):
        return Subject([Message("user", content)])
    if not isinstance(content, list) or not content:
        raise InvalidResponse("input is neither a string nor a list of messages")
    subject = Subject()
    open_calls: dict[str, str] = {}
    for number, item in enumerate(content):
        json_path = f"input[{number}]"
        if not isinstance(item, dict):
            raise InvalidResponse(f"{json_path} is no object")
        kind = item.get("type", "message")
        if not isinstance(kind, str):
            raise InvalidResponse(f"{json_path}.type is no string")
        if kind == "message":
            _add_message(subject, item, json_path, last=number == len(content) - 1)
        elif kind in FIELDS_OF_CALL:
            if not all(isinstance(item.get(name), str) for name in FIELDS_OF_CALL[kind]):
                raise InvalidResponse(f"{json_path}: a {kind} needs {', '.join(FIELDS_OF_CALL[kind])}")
            open_calls[item["call_id"]] = kind
            subject.unread = subject.unread or "a tool call"
        elif kind in CALL_OF_OUTPUT:
            read_parts(item.get("output"), f"{json_path}.output")
            if not isinstance(item.get("call_id"), str) or open_calls.get(item["call_id"]) != CALL_OF_OUTPUT[kind]:
                raise InvalidResponse(f"{json_path}.call_id names no {CALL_OF_OUTPUT[kind]} before it")
            subject.unread = subject.unread or "the output of a tool"
        else:
            raise InvalidResponse(
                f"{json_path}.type is {_cut(kind)}; expected message, {', '.join([*FIELDS_OF_CALL, *CALL_OF_OUTPUT])}"
            )
    return subject


def _add_message(subject: Subject, item: Mapping[str, Any], json_path: str, *, last: bool) -> None:
    role, content = item.get("role"), item.get("content")
    if not isinstance(role, str) or role not in TEXT_TYPES_OF_ROLE:
        raise InvalidResponse(f"{json_path}.role is {_cut(str(role))}; expected {', '.join(TEXT_TYPES_OF_ROLE)}")
    if role == "assistant" and isinstance(content, list):
        refused = [part for part in content if isinstance(part, dict) and part.get("type") == "refusal"]
        if not all(isinstance(part.get("refusal"), str) for part in refused):
            raise InvalidResponse(f"{json_path}.content: a refusal needs its text")
        if refused:
            subject.unread = subject.unread or "a refusal of the assistant"
        content = [part for part in content if part not in refused]
    text, unread = read_parts(content, f"{json_path}.content", kinds=TEXT_TYPES_OF_ROLE[role])
    if unread and role != "user":
        raise InvalidResponse(f"{json_path}.content holds {unread}; expected text of {role}")
    subject.unread = subject.unread or unread
    subject.messages.append(Message(role, text))
    if item.get(MEASURED_FIELD) is None:
        return
    measured_answer = item[MEASURED_FIELD]
    has_known_fields = (
        isinstance(measured_answer, dict) and measured_answer and measured_answer.keys() <= {RESPONSE_KEY, DECISION_KEY}
    )
    if role != "assistant" or not has_known_fields:
        raise InvalidResponse(
            f'{json_path}.{MEASURED_FIELD} is not what an assistant message may bring: {{"response": RESPONSE}} or '
            '{"decision": DECISION}'
        )
    if not last:
        subject.fault = "what was measured is of a message that is not the last one"
        return
    subject.decision = measured_answer.get(DECISION_KEY)
    if RESPONSE_KEY not in measured_answer:
        return
    try:
        subject.response = parse_response(measured_answer["response"])
    except RecordError:
        subject.response = json.dumps(measured_answer["response"]).encode()  # the predictor says what is wrong with it
    else:
        response_text = subject.response.text
        if text.strip() not in (response_text.strip(), spoken_text(response_text).strip()):
            subject.fault = "the message has another text than the response with the log-probabilities"


@dataclass(frozen=True, slots=True)
class DecisionDesk:
    """Answers decision requests with the loaded checkpoints."""

    settings: Settings
    judges: Judges
    log: ServerLog | None
    scoring: Scoring

    async def answer(self, body: bytes, request: Request) -> dict[str, Any]:
        """Returns the decision. Raises `Refusal` for a request that breaks the format."""
        model, subject, questions = await aside(len(body), partial(read_request, body), REQUESTS)
        request_log = RequestLog(self.log, request, one_usage=False) if self.log else None
        if request_log is not None and self.settings.log_texts:
            request_log.question = subject.last_question
        choose = partial(self._choose, subject, questions, model, trial_id(request))
        choices = await aside(len(body), choose, REQUESTS)
        verdicts = {}
        for scorer in dict.fromkeys(scorer for scorer, _ in choices if scorer is not None):
            verdicts[scorer] = await self._judge_subject(scorer, subject, request_log, len(body))
        answers = [
            _refusal(question, head_or_reason)
            if scorer is None
            else _wire_answer(question, scorer, head_or_reason, verdicts[scorer])
            for (scorer, head_or_reason), question in zip(choices, questions, strict=True)
        ]
        return {
            "model": model,
            "answers": answers,
            "usage": NO_USAGE,
            MEASURED_FIELD: {"verdicts": list(verdicts.values())},
        }

    def _choose(
        self, subject: Subject, questions: Sequence[DecisionQuestion], model: str, request_id: str
    ) -> list[tuple[Scorer | None, str]]:
        """Returns for each question the checkpoint that answers it and its head; or None, and why no checkpoint
        answers.

        The checkpoint that reads the request's log-probabilities comes first.

        Args:
            subject: the messages.
            questions: the questions.
            model: model that the request names.
            request_id: id of the request; it decides whether a checkpoint on trial judges it.
        """
        answering_model = subject.response.model if isinstance(subject.response, ParsedResponse) else model
        measured_scorer = self.judges.pick(answering_model, request_id)
        scorers_of_head: dict[str, list[Scorer]] = {}
        heads_of_text: dict[str, set[str]] = {}  # text of a question -> the heads whose contract lists it
        for scorer in (
            measured_scorer,
            *(seat.of(request_id, self.judges.share) for seat in self.judges.texts.values()),
        ):
            for head in scorer.heads:
                scorers_of_head.setdefault(head, []).append(scorer)
            for head, texts in scorer.texts.items():
                for text in texts:
                    heads_of_text.setdefault(text, set()).add(head)

        def choose(question: DecisionQuestion) -> tuple[Scorer | None, str]:
            if unread := subject.unread or question.unread:
                where = "input" if subject.unread else "question"
                return None, f"the {where} holds {unread}, which no checkpoint here reads"
            heads_by_name = {question.name} if question.name is not None and question.name in scorers_of_head else set()
            meant_heads = heads_of_text.get(plain_text(question.instructions), set()) | heads_by_name
            if len(meant_heads) != 1:
                ambiguity = f"the question names {' and '.join(sorted(meant_heads))} at once; " if meant_heads else ""
                return None, f"{ambiguity}this server answers only: {', '.join([*scorers_of_head][:MAX_LISTED_HEADS])}"
            (head,) = meant_heads
            if subject.fault and measured_scorer in scorers_of_head[head]:
                return None, subject.fault
            for scorer in scorers_of_head[head]:
                evidence = subject.decision if scorer.reads_decisions else subject.response
                if scorer.reads_text or evidence is not None:
                    misfit = _misfit(question, scorer, head)
                    return (None, misfit) if misfit else (scorer, head)
            if measured_scorer.reads_decisions:
                return None, (
                    f"{head} is read from what another decision model said, and the last message brings nothing of "
                    f'it; send its decision under "{MEASURED_FIELD}": {{"decision": ...}}'
                )
            return None, (
                f"{head} is read from log-probabilities, and the last message brings none; send the response it came"
                f' in under "{MEASURED_FIELD}": {{"response": ...}}'
            )

        return [choose(question) for question in questions]

    async def _judge_subject(
        self, scorer: Scorer, subject: Subject, request_log: RequestLog | None, size: int
    ) -> dict[str, Any]:
        logging_scorer = scorer.of(request_log)
        if not scorer.reads_text:
            allowance = Allowance(self.settings.max_scored_tokens)
            evidence = subject.decision if scorer.reads_decisions else subject.response
            return await self.scoring.of(size, partial(logging_scorer.verdict, evidence, allowance))
        answer = subject.answer
        if len(subject.last_question or "") + len(answer or "") > MAX_TEXT_CHARS:
            return logging_scorer.none(f"the texts are longer than {MAX_TEXT_CHARS} characters together")
        text = TextAnswer(answer or "", question=subject.last_question, answered=answer is not None)
        size = len(subject.last_question or "") + len(answer or "")
        return await REQUESTS.run(partial(logging_scorer.verdict, text), CHAR_COST * size)


def _misfit(question: DecisionQuestion, scorer: Scorer, head: str) -> str:
    """Returns why the head does not answer this kind of question; empty if it does.

    Args:
        question: the question.
        scorer: the checkpoint's scorer.
        head: the head.
    """
    low, high = scorer.scales.get(head, (0.0, 1.0))
    if question.kind == "choice":
        return f"{head} is no choice between options; ask a predicate or a score"
    if question.kind == "predicate":
        return f"{head} is a level from {low:g} to {high:g}; ask a score" if head in scorer.scales else ""
    levels = int(high - low) + 1
    if len(question.options) != levels:
        return f"{head} has {levels} levels, and the question {len(question.options)}; expected as many"
    return ""


def _wire_answer(question: DecisionQuestion, scorer: Scorer, head: str, verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answer in the wire format.

    Args:
        question: the question.
        scorer: the checkpoint's scorer.
        head: the head that answers.
        verdict: the checkpoint's verdict.
    """
    value = verdict["heads"].get(head)
    if value is None:
        return _refusal(question, verdict["reason"] or "the checkpoint gave no number", scorer)
    low, high = scorer.scales.get(head, (0.0, 1.0))
    value = min(max(value, low), high)  # rounded beyond its scale at most, which the predictor has checked
    p_at_least = [value]
    if head in scorer.scales:
        outputs = [QualityPredictor.level_output(head, level) for level in range(int(low) + 1, int(high) + 1)]
        if not verdict["heads"].keys() >= set(outputs):
            return _refusal(question, LEVELS_UNKNOWN, scorer)
        p_at_least = [verdict["heads"][name] for name in outputs]
    provenance = {"head": head, "checkpoint": scorer.digest, "reason": verdict["reason"]}
    common_fields = {"name": question.name, "type": question.kind}
    if question.kind == "predicate":
        return {**common_fields, "probability": value, MEASURED_FIELD: provenance}
    bounded_p_at_least = [1.0, *falling(p_at_least), 0.0]
    p_of_level = [p_from - p_above for p_from, p_above in pairwise(bounded_p_at_least)]
    levels = [
        {"value": level, "label": label, "probability": probability}
        for level, (label, probability) in enumerate(zip(question.options, p_of_level, strict=True))
    ]
    score = math.fsum(bounded_p_at_least[1:])
    return {
        **common_fields,
        "score": score,
        "confidence": max(p_of_level),
        "probabilities": levels,
        MEASURED_FIELD: provenance,
    }


def falling(steps: Sequence[float]) -> list[float]:
    """Returns the nearest falling sequence, with the same sum: values that rise are replaced by their mean."""
    pools: list[tuple[float, int]] = []
    for step in steps:
        total, count = min(max(step, 0.0), 1.0), 1
        while pools and pools[-1][0] / pools[-1][1] < total / count:
            previous = pools.pop()
            total, count = total + previous[0], count + previous[1]
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]


def _refusal(question: DecisionQuestion, reason: str, scorer: Scorer | None = None) -> dict[str, Any]:
    provenance = {"checkpoint": None if scorer is None else scorer.digest, "reason": reason}
    return {"name": question.name, "type": "refusal", MEASURED_FIELD: provenance}


def _cut(text: str) -> str:
    return repr(text[:60])
