"""The meta-evaluator: a language model that judges how well another model argued, not what it argued about.

Early-token confidence paper, section 3.4 and figures 7 and 8: three dimensions from 1 to 3 and a flag for critical
failures. The judge's output follows a JSON schema. An output that does not, or with reasons that are unreadable or
copied from the judge's input, is no judgement: it is asked for once more, then the judgement is missing.

A decision model (`--judge decisions:MODEL@URL`) is asked the same as three scores and a predicate. Its labels are the
likeliest levels and the likelier side of the flag; all its probabilities stay in the run as well.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metaprobe.api import Call, Sampling
from metaprobe.papers.systems.session import Session
from metaprobe.papers.systems.verifiable import is_copied, is_gibberish, is_repetitive

JUDGE_STAGE = "judge"

JUDGE_TOKENS = 192
"""Limit of tokens, enough for both texts at their greatest length."""

DIMENSIONS = {
    "instruction": "instruction_following",
    "justification": "justification_quality",
    "evidence": "evidence_grounding",
}
"""Maps the name of the label to the field of the judge's JSON object."""
CRITICAL_FIELD = "critical_flag"
DESCRIPTION_FIELD = "critical_issues_description"
REASONING_FIELD = "reasoning"

MAX_QUALITY = 9
"""Highest value of Q, the sum of the three scores."""


def object_schema(fields: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the JSON Schema of an object with these fields and no others, as text."""
    return json.dumps({"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False})


JUDGEMENT_SCHEMA = object_schema(
    {
        **{field: {"type": "integer", "enum": [1, 2, 3]} for field in DIMENSIONS.values()},
        CRITICAL_FIELD: {"type": "integer", "enum": [0, 1]},
        # The paper sets no limit, but a small model under a schema may never close a string by itself.
        DESCRIPTION_FIELD: {"type": "string", "maxLength": 100},
        REASONING_FIELD: {"type": "string", "maxLength": 240},
    }
)
"""JSON Schema of a judgement, the fields in the paper's order: the scores come before the reasons."""


_RESPONSE = "The last message is an agent's response in a debate about a student's essay. Judge this response only."
_LEVELS = {
    "instruction": (
        "How well does the response follow its instructions?",
        "breaks or ignores an important instruction, retells the essay, or argues for the other side",
        "follows its instructions, with one small slip",
        "keeps to its role throughout and does all it was told",
    ),
    "justification": (
        "How well are the claims of the response explained?",
        "vague, or claims without explanation",
        "at least one claim with support, but shallow or repetitive",
        "several claims, each with an explanation and what follows from it",
    ),
    "evidence": (
        "How well does the response use the text of the essay?",
        "no clear reference to the essay",
        "one clear reference, the rest general",
        "two or more exact references, quoted or retold in detail",
    ),
}
JUDGE_QUESTIONS: list[dict[str, Any]] = [
    *(
        {
            "type": "score",
            "name": name,
            "instructions": f"{_RESPONSE} {question}",
            "levels": [
                {"label": label, "description": text}
                for label, text in zip(("low", "medium", "high"), levels, strict=True)
            ],
        }
        for name, (question, *levels) in _LEVELS.items()
    ),
    {
        "type": "predicate",
        "name": "critical",
        "instructions": f"{_RESPONSE} It cites something that is not in the essay, contradicts itself badly, breaks an "
        "explicit instruction, or makes no sense.",
    },
]
"""Questions to a decision model: the criteria of the prompt `judge`."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A meta-evaluator's judgement of one response."""

    instruction: int
    """Score from 1 to 3 for following the instruction. `justification` and `evidence` have the same range."""
    justification: int
    evidence: int
    critical: bool
    description: str = ""
    """Description of the critical issue, if there is one."""
    reasoning: str = ""

    @property
    def rubric_sum(self) -> int:
        """The sum of the three dimensions, 3 to 9."""
        return self.instruction + self.justification + self.evidence

    @property
    def q(self) -> int:
        """0 if there is a critical issue, else the sum: in [0, 9], though 1 and 2 cannot occur."""
        return 0 if self.critical else self.rubric_sum


def only_json_object(text: str) -> dict[str, Any] | None:
    """Returns the one JSON object in a text, fenced or with words around it; None if there is none, or more
    than one.
    """
    begin, end = text.find("{"), text.rfind("}")
    if begin < 0 or end < begin:
        return None
    try:
        value = json.loads(text[begin : end + 1], object_pairs_hook=_fields_given_once)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def whole_number(value: object, low: int, high: int) -> int | None:
    """Returns `value` if it is a whole number from `low` to `high`, else None. As in JSON Schema, 3.0 is whole.

    Args:
        value: the value.
        low: lowest number.
        high: highest number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if low <= value <= high and value == int(value) else None


def parse_judgement(text: str) -> Judgement | None:
    """Returns a judge's output; None if a score is missing, out of range or not a whole number. The texts may be
    missing.
    """
    output = only_json_object(text)
    if output is None:
        return None
    instruction, justification, evidence = (whole_number(output.get(field), 1, 3) for field in DIMENSIONS.values())
    flag = whole_number(output.get(CRITICAL_FIELD), 0, 1)
    if instruction is None or justification is None or evidence is None or flag is None:
        return None
    description, reasoning = (str(output.get(field) or "") for field in (DESCRIPTION_FIELD, REASONING_FIELD))
    return Judgement(instruction, justification, evidence, bool(flag), description, reasoning)


def is_own_judgement(judgement: Judgement, judge_input: Sequence[str]) -> bool:
    """Returns whether the judge's texts are readable and in its own words. Missing texts count as its own.

    `judge_input` is everything that the judge was given. A judge that copies from it has not judged.
    """
    reasons = [text for text in (judgement.description, judgement.reasoning) if text.strip()]
    if any(is_copied(text, judge_input) or is_repetitive(text) for text in reasons):
        return False
    return not judgement.reasoning.strip() or not is_gibberish(judgement.reasoning)


async def judge_argument(session: Session, argument: Call, *, role: str) -> Judgement | None:
    """Asks the meta-evaluator about one argument and labels it; None if two attempts gave no judgement of its own.

    It sees what the agent saw: its system instructions, its task with trait, rubric and essay, and then its response.
    It decodes greedily, so the second attempt is shown the first and what is wrong with it. The labels' source is
    `judge:MODEL`.

    Args:
        session: the session.
        argument: the argument.
        role: the debater.
    """
    if not session.setup.models.of(JUDGE_STAGE).capabilities.text:
        return await _judge_by_questions(session, argument, role=role)
    agent = f"{JUDGE_STAGE}-{role}"  # the role alone would ask the debater's own model
    turns = {message.role: message.content for message in argument.messages}  # earlier messages of a role are examples
    messages = session.messages(
        "judge",
        role=role.capitalize(),
        instructions=turns.get("system", ""),
        context=turns.get("user", ""),
        response=argument.text.strip(),
    )
    judge_input = [message.content for message in messages]
    for round_number in (0, 1):
        call = await session.send(
            messages,
            Sampling(max_tokens=JUDGE_TOKENS, json_schema=JUDGEMENT_SCHEMA),
            stage=JUDGE_STAGE,
            agent=agent,
            round=round_number,
            parent=argument,
        )
        judgement = parse_judgement(call.text)
        if judgement is not None and is_own_judgement(judgement, judge_input):
            return _label(session, argument, judgement, f"{JUDGE_STAGE}:{call.model}")
        messages = (*messages, *session.messages("judge_again", output=call.text))
    return None


async def _judge_by_questions(session: Session, argument: Call, *, role: str) -> Judgement | None:
    """Judges in the same way by a decision model; None, and no label, if it refuses a question or leaves a level out.

    Args:
        session: the session.
        argument: the argument.
        role: the debater.
    """
    answers = await session.judge_by_questions(
        argument, JUDGE_QUESTIONS, stage=JUDGE_STAGE, agent=f"{JUDGE_STAGE}-{role}"
    )
    *levels, flag = answers
    if flag.value is None or not all(level.probabilities and None not in level.probabilities for level in levels):
        return None
    distributions = (np.array(level.probabilities, dtype=np.float64) for level in levels)
    instruction, justification, evidence = (1 + int(probabilities.argmax()) for probabilities in distributions)
    judgement = Judgement(instruction, justification, evidence, flag.value >= 0.5)
    return _label(session, argument, judgement, f"{JUDGE_STAGE}:{flag.source.partition('@')[0]}")


def _label(session: Session, argument: Call, judgement: Judgement, source: str) -> Judgement:
    for name in DIMENSIONS:
        session.label(argument, name, getattr(judgement, name), source=source)
    session.label(argument, "critical", judgement.critical, source=source)
    session.label(argument, "q", judgement.q, source=source)
    return judgement


def _fields_given_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field is given twice")
    return fields
