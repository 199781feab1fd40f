"""Typed questions about a text and their answers, in the wire format of `client.decisions.create` of openai-python.

A question is a predicate (is this true?), a choice (which option?) or a score (which of these ordered levels?). An
answer holds probabilities; a refusal holds none. Levels are counted from 0, and a score is the mean level.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard, get_args

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.types import DecisionAnswer, DecisionKind

MOST_QUESTIONS = 400
OPTIONS = {"choice": (2, 255, "choices", "value"), "score": (2, 10, "levels", "label")}
"""Maps a kind to (fewest options, most options, field that lists the options, key of an option's name)."""
PROBABILITY_ROUNDING = 0.01 + 1e-9
"""Tolerance for the sum of probabilities, and for a score's distance from its mean level as a share of the scale.

Servers round the numbers that they send.
"""


@dataclass(frozen=True, slots=True)
class DecisionQuestion:
    """One typed question."""

    kind: DecisionKind
    """Kind of the question: `predicate`, `choice` or `score`."""
    instructions: str
    """The statement or question as text. Parts are joined by line breaks, and JSON parts are written as JSON."""
    name: str | None = None
    options: tuple[str | bool, ...] = ()
    """Values of a choice, or labels of a score's levels from lowest to highest; empty for a predicate."""
    unread: str = ""
    """Kind of a part that is not text, such as `an image`; empty if all parts are text."""
    role: ClassVar[str] = "questions"
    """Role of the message that holds a request's questions as JSON. It is the last message of the call that asks them.
    """

    @classmethod
    def read_all(cls, question_list: object) -> "list[DecisionQuestion]":
        """Returns the questions of a request. Raises `InvalidResponse`, naming the question that breaks the format."""
        if not isinstance(question_list, (list, tuple)) or not 1 <= len(question_list) <= MOST_QUESTIONS:
            decision_fields = (
                f"{len(question_list)} of them"
                if isinstance(question_list, (list, tuple))
                else _short_repr(question_list)
            )
            raise InvalidResponse(f"questions: got {decision_fields}; expected a list of 1 to {MOST_QUESTIONS}")
        questions = [_question(question, f"questions[{number}]") for number, question in enumerate(question_list)]
        names = [question.name for question in questions if question.name is not None]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidResponse(f"questions: {twice!r} names two questions; expected different names")
        return questions

    @staticmethod
    def read_answers(
        decision: object, call_id: str, *, source: str = "", questions: "Sequence[DecisionQuestion] | None" = None
    ) -> tuple[DecisionAnswer, ...]:
        """Returns the answers of a decision about one call, in the order of the questions.

        With `questions`, each answer must fit its question: another name, kind, number of answers or option raises
        `InvalidResponse`. An option without a probability is named in the answer's reason.

        Args:
            decision: openai's `Decision`, its dictionary or JSON text, or its list of answers.
            call_id: the call that the decision is about.
            source: who decided; by default the model that the decision names.
            questions: the questions that were asked, if they are known.
        """
        parsed: Any = decision
        if isinstance(decision, (str, bytes)):
            try:
                parsed = json.loads(decision)
            except (ValueError, RecursionError) as error:
                raise InvalidResponse(f"a decision is no JSON ({type(error).__name__}); expected answers") from error
        elif hasattr(decision, "model_dump"):
            parsed = decision.model_dump()
        answer_list = parsed.get("answers") if isinstance(parsed, Mapping) else parsed
        if not isinstance(answer_list, list):
            raise InvalidResponse(f"a decision has no list of answers but {_short_repr(answer_list)}; expected answers")
        if questions is not None and len(questions) != len(answer_list):
            raise InvalidResponse(
                f"{len(answer_list)} answers came to {len(questions)} questions; expected one for each"
            )
        if not source and isinstance(parsed, Mapping):
            source = parsed["model"] if isinstance(parsed.get("model"), str) else ""
        answers = [
            _parse_answer(answer, number, call_id, source, None if questions is None else questions[number])
            for number, answer in enumerate(answer_list)
        ]
        question_names = [answer.question for answer in answers]
        if len(set(question_names)) < len(question_names):
            raise InvalidResponse("two answers of a decision have one name; expected different names")
        return tuple(answers)


def _question(value: object, json_path: str) -> DecisionQuestion:
    """Returns a question as JSON gives it; raises `InvalidResponse` with the path of what is wrong."""
    if not isinstance(value, Mapping):
        raise InvalidResponse(f"{json_path} is {_short_repr(value)}; expected an object")
    kind, name = value.get("type"), value.get("name")
    if kind not in ("predicate", *OPTIONS):
        raise InvalidResponse(f"{json_path}.type is {_short_repr(kind)}; expected predicate, choice or score")
    if name is not None and not isinstance(name, str):
        raise InvalidResponse(f"{json_path}.name is {_short_repr(name)}; expected a string")
    instructions, unread = read_parts(value.get("instructions"), f"{json_path}.instructions")
    if not instructions.strip() and not unread:
        raise InvalidResponse(f"{json_path}.instructions is empty; expected a text")
    options: tuple[str | bool, ...] = ()
    if kind in OPTIONS:
        fewest, most_options, field, key = OPTIONS[kind]
        option_list = value.get(field)
        if not isinstance(option_list, (list, tuple)) or not fewest <= len(option_list) <= most_options:
            raise InvalidResponse(
                f"{json_path}.{field} is {_short_repr(option_list)}; expected a list of {fewest} to {most_options}"
            )
        for number, option in enumerate(option_list):
            fields_of_option, where = (option if isinstance(option, Mapping) else {}), f"{json_path}.{field}[{number}]"
            if not isinstance(fields_of_option.get(key), (str, bool) if kind == "choice" else str):
                raise InvalidResponse(f"{where}.{key} is {_short_repr(fields_of_option.get(key))}; expected a string")
            if not isinstance(fields_of_option.get("description"), str | None):
                raise InvalidResponse(
                    f"{where}.description is {_short_repr(fields_of_option['description'])}; expected a string"
                )
            options = (*options, fields_of_option[key])
        if len({(type(option), option) for option in options}) < len(options):
            raise InvalidResponse(f"{json_path}.{field} holds one {key} twice; expected different ones")
    return DecisionQuestion(kind, instructions, name, options, unread)


def read_parts(content: object, json_path: str, *, kinds: Sequence[str] = ("input_text",)) -> tuple[str, str]:
    """Returns (text, kind of a part that is not text) of a content: a string, or a list of text, image and JSON parts.

    Raises `InvalidResponse` for any other content.

    Args:
        content: the content.
        json_path: path of the content, for errors.
        kinds: types of the parts that hold text.
    """
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, (list, tuple)):
        raise InvalidResponse(f"{json_path} is {_short_repr(content)}; expected a string or a list of parts")
    texts, unread = [], ""
    for number, part in enumerate(content):
        fields_of_part = part if isinstance(part, Mapping) else {}
        kind = fields_of_part.get("type")
        if kind in kinds and isinstance(fields_of_part.get("text"), str):
            texts.append(fields_of_part["text"])
        elif kind == "input_json" and isinstance(fields_of_part.get("data"), (Mapping, list)):
            texts.append(json.dumps(fields_of_part["data"], ensure_ascii=False))
        elif kind == "input_image" and isinstance(fields_of_part.get("image_url"), str):
            unread = "an image"
        else:
            raise InvalidResponse(
                f"{json_path}[{number}] is {_short_repr(part)}; expected a part of {', '.join(kinds)}"
            )
    return "\n".join(texts), unread


def _parse_answer(
    content: object, number: int, call_id: str, source: str, question: DecisionQuestion | None
) -> DecisionAnswer:
    """Returns one answer of a decision. Raises `InvalidResponse` if it is invalid, or does not fit its question.

    Args:
        content: the answer as received.
        number: index of the answer in the decision.
        call_id: the call that the decision is about.
        source: who decided.
        question: the question; None if it is not known.
    """
    json_path = f"answers[{number}]"
    fields_of_answer = content if isinstance(content, Mapping) else {}
    kind, name = str(fields_of_answer.get("type")), fields_of_answer.get("name")
    if kind not in get_args(DecisionKind) or (name is not None and not isinstance(name, str)):
        raise InvalidResponse(f"{json_path} is {_short_repr(content)}; expected a predicate, choice, score or refusal")
    if question is not None and (name != question.name or kind not in (question.kind, "refusal")):
        raise InvalidResponse(
            f"{json_path} is a {kind} named {name!r}; "
            f"expected a {question.kind} named {question.name!r}, or its refusal"
        )
    answer_fields: dict[str, Any] = {"call_id": call_id, "question": name or f"question {number + 1}", "source": source}
    answer_fields["kind"] = kind
    if kind == "refusal":
        return DecisionAnswer(**answer_fields, reason=f"{source or 'the judge'} refused to answer")
    if kind == "predicate":
        return DecisionAnswer(
            **answer_fields, value=_share(fields_of_answer.get("probability"), f"{json_path}.probability")
        )
    options = None if question is None else question.options
    names, probabilities = _distribution(fields_of_answer.get("probabilities"), kind, json_path, options)
    options_without_number = [option for option, p in zip(names, probabilities, strict=True) if p is None]
    reason = (
        f"no probability of {', '.join(options_without_number)}"
        if options_without_number
        else ""
        if names
        else "no probabilities came"
    )
    confidence = fields_of_answer.get("confidence")
    answer_fields |= {
        "options": names,
        "probabilities": probabilities,
        "confidence": None if confidence is None else _share(confidence, f"{json_path}.confidence"),
        "reason": reason,
    }
    if kind == "choice":
        choice = fields_of_answer.get("choice")
        known_options = (
            options if options is not None else [option["value"] for option in fields_of_answer["probabilities"]]
        )
        if not isinstance(choice, (str, bool)) or (known_options and not _among(choice, known_options)):
            raise InvalidResponse(f"{json_path}.choice is {_short_repr(choice)}; expected one of the options")
        return DecisionAnswer(**answer_fields, choice=_option_name(choice))
    return DecisionAnswer(
        **answer_fields,
        value=_score(fields_of_answer.get("score"), probabilities, bool(options_without_number), json_path),
    )


def _distribution(
    value: object, kind: str, json_path: str, options: Sequence[str | bool] | None
) -> tuple[tuple[str, ...], tuple[float | None, ...]]:
    """Returns (names, probabilities) of the options, in the question's order if it is known.

    Args:
        value: list of options with probabilities, as received.
        kind: kind of the question.
        json_path: path of the answer, for errors.
        options: options of the question, if they are known.
    """
    if not isinstance(value, list):
        raise InvalidResponse(f"{json_path}.probabilities is {_short_repr(value)}; expected a list")
    probabilities: dict[str, float] = {}
    for number, option in enumerate(value):
        fields_of_option, where = (
            (option if isinstance(option, Mapping) else {}),
            f"{json_path}.probabilities[{number}]",
        )
        key = "value" if kind == "choice" else "label"
        if not isinstance(fields_of_option.get(key), (str, bool) if kind == "choice" else str):
            raise InvalidResponse(f"{where} is {_short_repr(option)}; expected {key} and probability")
        if kind == "score" and type(fields_of_option.get("value")) is not int:
            raise InvalidResponse(
                f"{where}.value is {_short_repr(fields_of_option.get('value'))}; expected the level's number"
            )
        name = _option_name(fields_of_option[key])
        if options is not None and not _among(fields_of_option[key], options):
            raise InvalidResponse(
                f"{where} names {_short_repr(fields_of_option[key])}; expected one of the question's options"
            )
        if name in probabilities:
            raise InvalidResponse(f"{where} names {name!r} again; expected each option once, and none written alike")
        probabilities[name] = _share(fields_of_option.get("probability"), f"{where}.probability")
    if kind == "score":
        levels = [option["value"] for option in value]
        known_names = [_option_name(option) for option in options] if options is not None else None
        for name, level in zip(probabilities, levels, strict=True):
            if known_names is not None and (not 0 <= level < len(known_names) or known_names[level] != name):
                raise InvalidResponse(
                    f"{json_path}.probabilities: level {level} is named {name!r}; expected {known_names}"
                )
        order = sorted(range(len(levels)), key=levels.__getitem__)
        if known_names is None and [levels[i] for i in order] != list(range(len(levels))):
            raise InvalidResponse(
                f"{json_path}.probabilities has levels {sorted(levels)}; expected each from 0 up once"
            )
        names = tuple(known_names) if known_names is not None else tuple(list(probabilities)[i] for i in order)
    else:
        names = tuple(probabilities) if options is None else tuple(_option_name(option) for option in options)
    total = math.fsum(probabilities.values())
    if total > 1 + PROBABILITY_ROUNDING or (
        probabilities and len(probabilities) == len(names) and total < 1 - PROBABILITY_ROUNDING
    ):
        raise InvalidResponse(f"{json_path}.probabilities add up to {total:g}; expected 1")
    return names, tuple(probabilities.get(name) for name in names)


def _score(value: object, probabilities: Sequence[float | None], is_incomplete: bool, json_path: str) -> float:
    highest_level = len(probabilities) - 1 if probabilities else OPTIONS["score"][1] - 1
    if not _is_number(value) or not 0 <= value <= highest_level * (1 + PROBABILITY_ROUNDING):
        raise InvalidResponse(f"{json_path}.score is {_short_repr(value)}; expected a level from 0 to {highest_level}")
    mean = math.fsum(level * (p or 0.0) for level, p in enumerate(probabilities))
    if probabilities and not is_incomplete and abs(value - mean) > max(highest_level, 1) * 2 * PROBABILITY_ROUNDING:
        raise InvalidResponse(f"{json_path}.score is {value:g}, and its levels' mean is {mean:g}; expected the mean")
    return min(float(value), float(highest_level))


def _share(value: object, json_path: str) -> float:
    if not _is_number(value) or not 0 <= value <= 1:
        raise InvalidResponse(f"{json_path} is {_short_repr(value)}; expected a number from 0 to 1")
    return float(value)


def _is_number(value: object) -> TypeGuard[int | float]:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _among(option: str | bool, options: Sequence[str | bool]) -> bool:
    """Returns whether the option is one of the options. The string `true` differs from the boolean."""
    return any(type(other) is type(option) and other == option for other in options)


def _option_name(option: str | bool) -> str:
    return option if isinstance(option, str) else str(option).lower()


def _short_repr(value: object) -> str:
    if isinstance(value, (Mapping, list, tuple)):
        return f"{'an object' if isinstance(value, Mapping) else 'a list'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
