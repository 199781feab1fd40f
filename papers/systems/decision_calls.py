"""Calls that ask a decision model typed questions about another call's answer, and what they say about it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from metaprobe.api import Call, DecisionAnswer, DecisionQuestion, Message


def questions_message(questions: Sequence[Mapping[str, Any]]) -> Message:
    """Returns the message by which a request carries its questions.

    Raises `InvalidResponse` as `DecisionQuestion.read_all` does.
    """
    DecisionQuestion.read_all(questions)
    return Message(DecisionQuestion.role, json.dumps(list(questions), ensure_ascii=False))


def messages_about(call: Call, questions: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Returns the messages that ask about a call's answer: what it answers, the answer, and the questions."""
    return (*call.messages, Message("assistant", call.text), questions_message(questions))


def asks_questions(call: Call) -> bool:
    """Returns whether the call asks questions about another call, and so is no answer to be judged."""
    return bool(call.messages) and call.messages[-1].role == DecisionQuestion.role


def answers_in(call: Call) -> tuple[DecisionAnswer, ...]:
    """Returns what a call that asks questions says about its parent, the call that it is about."""
    questions = DecisionQuestion.read_all(json.loads(call.messages[-1].content))
    source = f"{call.model}@{call.model_revision}"
    return DecisionQuestion.read_answers(call.text, call.parent or "", source=source, questions=questions)
