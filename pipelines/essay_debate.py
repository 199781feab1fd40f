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

from metaprobe.pipelines.judging import JUDGE_TOKENS, MOST, json_object, judge, whole_number
from metaprobe.pipelines.judging import STAGE as JUDGE_STAGE
from metaprobe.pipelines.options import Constant
from metaprobe.pipelines.session import Session
from metaprobe.pipelines.system import System
from metaprobe.pipelines.verifiable import check_argument
from metaprobe.records.types import Call, Item, Run

ARGUMENT_STAGE = "argument"
SCORE_STAGE = "score"
ADVOCATE, SKEPTIC = "advocate", "skeptic"

ARGUMENT_TOKENS = 320
SCORE_TOKENS = 16
DEBATE_TEMPERATURE = Constant("temperature", 1.0, "at which the debaters draw", low=0, high=2)

NO_JUDGE = "no-judge"
SCAFFOLD = "scaffold"


async def essay_debate(session: Session) -> Run:
    """Argue for the essay, argue against it, score it, and judge both arguments."""
    form = "_scaffold" if session.variant == SCAFFOLD else ""
    advocate = await session.ask(
        ADVOCATE + form,
        stage=ARGUMENT_STAGE,
        agent=ADVOCATE,
        max_tokens=ARGUMENT_TOKENS,
        temperature=session.constant(DEBATE_TEMPERATURE),
        hidden=True,
    )
    skeptic = await session.ask(
        SKEPTIC + form,
        stage=ARGUMENT_STAGE,
        agent=SKEPTIC,
        parent=advocate,
        max_tokens=ARGUMENT_TOKENS,
        temperature=session.constant(DEBATE_TEMPERATURE),
        hidden=True,
        opponent=advocate.text.strip(),
    )
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
    await assess(session, advocate)
    await assess(session, skeptic, opponent=advocate.text)
    return session.run("" if score is None else str(score))


async def assess(session: Session, argument: Call, *, opponent: str = "") -> None:
    """Label one argument: by the program always; by the meta-evaluator, or by the checkpoint that replaces it.

    The program's labels come first, so that the last `critical` of a call is the language model's where it gave one.
    """
    role, fields = argument.agent, session.item.fields
    findings = check_argument(
        argument.text,
        fields["essay"],
        role=role,
        elsewhere=(fields["rubric"], fields["essay_prompt"], opponent),
    )
    for name, value in findings.labels().items():
        session.label(argument, name, value, source="program")
    judgement = None
    if session.variant != NO_JUDGE and session.signals.asks("quality", role):
        judgement = await judge(session, argument, role=role)
    session.signal("quality", agent=role, stated=None if judgement is None else judgement.q / MOST, call=argument)


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
    found = json_object(text)
    return None if found is None else whole_number(found.get("score"), *score_range(item))


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
    signals={"quality": ARGUMENT_STAGE},
    answer_stages=(SCORE_STAGE,),
    extract_answer=extract_answer,
    limits={ARGUMENT_STAGE: ARGUMENT_TOKENS, SCORE_STAGE: SCORE_TOKENS, JUDGE_STAGE: JUDGE_TOKENS},
    calls=lambda setup, variant: {ARGUMENT_STAGE: 2, SCORE_STAGE: 2, JUDGE_STAGE: 0 if variant == NO_JUDGE else 4},
    constants=(DEBATE_TEMPERATURE,),
)
