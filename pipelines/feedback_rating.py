"""How good feedback on an essay is for its student: a language model rates it on the four criteria of CAELF's table 7.

The paper asks people, who rate from 1 to 5. Here a judge rates each feedback twice, with the criteria in the table's
order and in the reverse order, so that its agreement with itself can be measured; another judge over the same runs
gives the agreement between judges. Ratings by a model are no human ratings: labels name the model as their source.
"""

import json

from metaprobe.pipelines.judging import STAGE, json_object, whole_number
from metaprobe.pipelines.session import Session
from metaprobe.records.types import Call, Sampling

CRITERIA = ("readability", "factuality", "self_regulation", "future_improvement")
LOWEST, HIGHEST = 1, 5
REVERSED = ":reversed"
"""Suffix of the source of the ratings that were asked for in the reverse order."""
RATING_TOKENS = 64


async def rate_feedback(session: Session, feedback: Call, *, rubric: str) -> None:
    """Ask the judge for both ratings of one feedback, and note each criterion as a label in 1 to 5.

    A rating that cannot be read is missing; it is not asked for again.
    """
    for round_, criteria in enumerate((CRITERIA, CRITERIA[::-1])):
        texts = [session.messages(f"rate_{criterion}")[0].content for criterion in criteria]
        messages = session.messages(
            "rate",
            feedback=feedback.text.strip(),
            rubric=rubric,
            criteria="\n\n".join(texts),
            names=", ".join(criteria),
        )
        call = await session.send(
            messages,
            Sampling(max_tokens=RATING_TOKENS, json_schema=rating_schema(criteria)),
            stage=STAGE,
            agent=f"rater-{feedback.round}",
            round=round_,
            parent=feedback,
        )
        for name, value in parse_rating(call.text).items():
            session.label(feedback, name, value, source=f"{STAGE}:{call.model}" + (REVERSED if round_ else ""))


def rating_schema(criteria: tuple[str, ...]) -> str:
    """JSON Schema of a rating, the criteria in this order."""
    grade = {"type": "integer", "enum": list(range(LOWEST, HIGHEST + 1))}
    properties = dict.fromkeys(criteria, grade)
    return json.dumps(
        {"type": "object", "properties": properties, "required": list(criteria), "additionalProperties": False}
    )


def parse_rating(text: str) -> dict[str, int]:
    """Criterion -> grade from 1 to 5, of all four; empty where one is missing or is no whole number in range."""
    rating = json_object(text) or {}
    grades = {
        name: grade for name in CRITERIA if (grade := whole_number(rating.get(name), LOWEST, HIGHEST)) is not None
    }
    return grades if len(grades) == len(CRITERIA) else {}
