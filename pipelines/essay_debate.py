"""Debate about one trait of a student's essay, and judges of how well the debaters argued.

Early-token confidence paper, section 3 and appendix C: an Advocate argues for the essay, a Skeptic answers, a
Synthesizer-Judge gives the score, and a meta-evaluator judges both arguments. Beside it, `verifiable` notes what a
program can check. Items bring `essay`, `trait`, `rubric`, `essay_prompt`, `low` and `high` as fields.

The paper's debaters use "standard sampling" and its meta-evaluator decodes deterministically; of the scorer it says
nothing. Here: temperature 1 and no truncation for the debaters, greedy for the other two. It gives no token limits;
here the task asks for one paragraph of at most 120 words, and the limit leaves room for more.

The debaters are asked zero-shot, as in the paper. The variant `scaffold` shows each debater an example and prescribes
how its argument opens: small models then argue better, but it fixes the very tokens that early-token features read.
"""

import json
from typing import Any

from metaprobe.pipelines.argument_review import HEADS, join_judged, review
from metaprobe.pipelines.judging import JUDGE_TOKENS, json_object, judge, whole_number
from metaprobe.pipelines.judging import STAGE as JUDGE_STAGE
from metaprobe.pipelines.session import Session
from metaprobe.pipelines.system import System
from metaprobe.pipelines.system_options import Constant
from metaprobe.pipelines.verifiable import check_argument
from metaprobe.records.types import Call, Item, Run
from metaprobe.routing.policy import AGAIN, JUDGE
from metaprobe.routing.review import POINT

ARGUMENT_STAGE = "argument"
SCORE_STAGE = "score"
ADVOCATE, SKEPTIC = "advocate", "skeptic"

ARGUMENT_TOKENS = 320
SCORE_TOKENS = 16
DEBATE_TEMPERATURE = Constant("temperature", 1.0, "at which the debaters draw", low=0, high=2)
MOST_ATTEMPTS = Constant("attempts", 2, "arguments of a debater at most, where the policy asks again")

NO_JUDGE = "no-judge"
SCAFFOLD = "scaffold"


async def essay_debate(session: Session) -> Run:
    """Argue for the essay, argue against it, score it, and judge the arguments that the policy hands over: all of them
    in the paper."""
    advocate, judge_advocate = await argue(session, ADVOCATE)
    skeptic, judge_skeptic = await argue(session, SKEPTIC, opponent=advocate)
    scored = await session.ask(
        "score",
        stage=SCORE_STAGE,
        agent="synthesizer",
        parent=skeptic,
        max_tokens=SCORE_TOKENS,
        json_schema=score_schema(session.item),
        advocate=advocate.text.strip(),
        skeptic=skeptic.text.strip(),
    )
    low, high = score_range(session.item)
    score = parse_score(session.item, scored.text)
    if score is None:  # once more, as with the meta-evaluator
        again = (*scored.messages, *session.messages("score_again", output=scored.text))
        scored = await session.send(
            again, scored.sampling, stage=SCORE_STAGE, agent="synthesizer", round=1, parent=skeptic
        )
        score = parse_score(session.item, scored.text)
    session.state(scored, "score", None if score is None else (score - low) / (high - low))
    for argument, handed_over in ((advocate, judge_advocate), (skeptic, judge_skeptic)):
        judgement = await judge(session, argument, role=argument.agent) if handed_over else None
        join_judged(session, argument, None if judgement is None else judgement.q)
    return session.run("" if score is None else str(score))


async def argue(session: Session, role: str, *, opponent: Call | None = None) -> tuple[Call, bool]:
    """Returns a debater's argument, and whether it is handed to the judge: as the policy decides after each attempt.

    The program's labels of an attempt come first, then a checkpoint's, so that the last `critical` of a call is the
    judge's where it gave one. An attempt that is asked for again stays in the run, but nobody answers it.
    """
    form = "_scaffold" if session.variant == SCAFFOLD else ""
    slots = {} if opponent is None else {"opponent": opponent.text.strip()}
    most = session.constant(MOST_ATTEMPTS)
    for attempt in range(most):
        argument = await session.ask(
            role + form,
            stage=ARGUMENT_STAGE,
            agent=role,
            round=attempt,
            parent=opponent,
            max_tokens=ARGUMENT_TOKENS,
            temperature=session.constant(DEBATE_TEMPERATURE),
            hidden=True,
            **dict[str, Any](slots),
        )
        fields = session.item.fields
        elsewhere = (fields["rubric"], fields["essay_prompt"], "" if opponent is None else opponent.text)
        findings = check_argument(argument.text, fields["essay"], role=role, elsewhere=elsewhere)
        for name, value in findings.labels().items():
            session.label(argument, name, value, source="program")
        may_ask = attempt + 1 < most
        decision = review(session, argument, may_ask=may_ask, may_judge=session.variant != NO_JUDGE)
        if decision.action != AGAIN:
            break
    return argument, decision.action == JUDGE


def score_range(item: Item) -> tuple[int, int]:
    """The lowest and the highest score of the item's trait."""
    return int(item.fields["low"]), int(item.fields["high"])


def score_schema(item: Item) -> str:
    """JSON Schema of the Synthesizer-Judge's output. The paper states no format for it."""
    low, high = score_range(item)
    score = {"type": "integer", "enum": list(range(low, high + 1))}
    return json.dumps(
        {"type": "object", "properties": {"score": score}, "required": ["score"], "additionalProperties": False}
    )


def parse_score(item: Item, text: str) -> int | None:
    """The score in a JSON object; None where there is none, or one outside the trait's range."""
    output = json_object(text)
    return None if output is None else whole_number(output.get("score"), *score_range(item))


def extract_answer(item: Item, call: Call, variant: str) -> str:
    """The score as text, for the check against the human one; empty where it cannot be read."""
    score = parse_score(item, call.text)
    return "" if score is None else str(score)


SYSTEM = System(
    name="essay-debate",
    run=essay_debate,
    prompts=(
        *("advocate", "skeptic", "advocate_scaffold", "skeptic_scaffold"),
        *("score", "score_again", "judge", "judge_again"),
    ),
    variants=("paper", SCAFFOLD, NO_JUDGE),
    stages=(ARGUMENT_STAGE, SCORE_STAGE, JUDGE_STAGE),
    roles=(ADVOCATE, SKEPTIC),
    fields=("essay", "trait", "rubric", "essay_prompt", "low", "high"),
    signals={"quality": ARGUMENT_STAGE, "critical": ARGUMENT_STAGE},
    heads={"quality": HEADS},
    uses=("quality", "critical"),  # both are noted as what is known of the argument
    decides=(POINT,),
    answer_stages=(SCORE_STAGE,),
    extract_answer=extract_answer,
    limits={ARGUMENT_STAGE: ARGUMENT_TOKENS, SCORE_STAGE: SCORE_TOKENS, JUDGE_STAGE: JUDGE_TOKENS},
    constants=(MOST_ATTEMPTS, DEBATE_TEMPERATURE),
)
