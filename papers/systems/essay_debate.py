"""Debate about one trait of a student's essay, and judges of how well the debaters argued.

Early-token confidence paper, section 3 and appendix C: an Advocate argues for the essay, a Skeptic answers, a
Synthesizer-Judge gives the score, and a meta-evaluator judges both arguments. In addition, `verifiable` notes what a
program can check. Items have `essay`, `trait`, `rubric`, `essay_prompt`, `low` and `high` as fields.

The paper's debaters use "standard sampling" and its meta-evaluator decodes deterministically; it says nothing about the
scorer. Here: temperature 1 and no truncation for the debaters, greedy for the other two. It gives no token limits; here
the task asks for one paragraph of at most 120 words, and the limit leaves room for more.

The debaters are asked zero-shot, as in the paper. The variant `scaffold` shows each debater an example and prescribes
how its argument opens. Small models then argue better, but it fixes the very tokens that early-token features read.

Each argument may be reviewed: kept, asked for again, or passed to the judge. Two signals may be read from it. `quality`
replaces the judge: one checkpoint gives every field that the judge would (`HEADS`), and Q with the judge's override, 0
if there is a critical issue. `critical` is P(critical) alone. A checkpoint's values are noted under its digest, never
as a judge's. The policy decides at `review`; the paper passes every argument to its judge.
"""

from dataclasses import replace
from typing import Any

from metaprobe.api import Action, Call, Decision, Item, Replacement, Run, Signal, Signals, Verdict
from metaprobe.papers.policies.review import DEFAULT_CRITICAL, REVIEW_POINT
from metaprobe.papers.systems.judging import (
    DIMENSIONS,
    JUDGE_STAGE,
    JUDGE_TOKENS,
    MAX_QUALITY,
    judge_argument,
    object_schema,
    only_json_object,
    whole_number,
)
from metaprobe.papers.systems.session import UNREAD_PREFIX, Session
from metaprobe.papers.systems.system import System
from metaprobe.papers.systems.system_options import Constant
from metaprobe.papers.systems.verifiable import check_argument

HEADS = (*DIMENSIONS, Verdict.critical_head)
"""Heads that a checkpoint needs to replace the judge."""


def review(session: Session, argument: Call, *, may_ask: bool, may_judge: bool) -> Decision:
    """Returns what the policy decides about an argument, after noting what checkpoints read from it.

    Args:
        session: the session.
        argument: the argument.
        may_ask: whether it can be asked for again.
        may_judge: whether the variant has a judge.
    """
    role = argument.agent
    replacement = session.signals.replacement("quality", role)
    verdict = None if replacement is None else replacement.verdict(argument)
    quality = critical = None
    if replacement is not None:
        quality, critical = _read_by_checkpoint(session, argument, replacement, verdict)
    critical_replacement = session.signals.replacement(Verdict.critical_head, role)
    if critical_replacement is not None:
        critical = session.signal(Verdict.critical_head, agent=role, call=argument)
        if critical is not None:
            flag = float(critical.value >= critical_replacement.thresholds.get(Verdict.critical_head, DEFAULT_CRITICAL))
            session.label(argument, Verdict.critical_head, flag, source=critical_replacement.digest)
    signals = replace(Signals.of(argument), quality=quality, critical=critical)
    legal = [Action.KEEP, *([Action.AGAIN] if may_ask else []), *([Action.JUDGE] if may_judge else [])]
    return session.decide(REVIEW_POINT, legal, agent=role, signals=signals)


def join_judged(session: Session, argument: Call, q: int | None) -> None:
    """Notes the quality of an argument if a checkpoint was used together with the judge: both joined, or whichever
    exists.

    Notes nothing if no checkpoint is used with the judge, or if it could not read the argument.

    Args:
        session: the session.
        argument: the argument.
        q: the judge's Q, from 0 to 9; None if it said nothing readable.
    """
    replacement = session.signals.replacement("quality", argument.agent)
    if replacement is None or not replacement.with_stated:
        return
    verdict = replacement.verdict(argument)
    if verdict is None:
        return
    read_quality = fields_of(verdict, replacement)["q"] / MAX_QUALITY
    joined = replacement.joined(None if q is None else q / MAX_QUALITY, read_quality)
    session.label(argument, "signal:quality", joined.value, source=joined.source)


def fields_of(verdict: Verdict, replacement: Replacement) -> dict[str, float]:
    """Returns the judge's fields as the checkpoint reads them, by label: levels from 1 to 3, a flag, and Q from 0 to 9.

    The flag is up if P(critical) reaches the checkpoint's own threshold. Then Q is 0; else it is the head `quality`, if
    there is one, or the sum of the levels.
    """
    fields = {name: verdict.heads[name] for name in DIMENSIONS}
    flag = verdict.heads[Verdict.critical_head] >= replacement.thresholds.get(Verdict.critical_head, DEFAULT_CRITICAL)
    q = 0.0 if flag else verdict.heads.get("quality", sum(fields.values()))
    return {**fields, Verdict.critical_head: float(flag), "q": q}


def _read_by_checkpoint(
    session: Session, argument: Call, replacement: Replacement, verdict: Verdict | None
) -> tuple[Signal | None, Signal | None]:
    """Returns the quality and P(critical) from the checkpoint that replaces the judge, both None if it cannot read.

    The quality is also None if the judge will be asked as well.

    Args:
        session: the session.
        argument: the argument.
        replacement: the checkpoint.
        verdict: its verdict.
    """
    if verdict is None:
        session.label(argument, UNREAD_PREFIX + "quality", 1.0, source=replacement.digest)
        return None, None
    fields = fields_of(verdict, replacement)
    for name, value in fields.items():
        session.label(argument, name, value, source=replacement.digest)
    critical = Signal(verdict.heads[Verdict.critical_head], replacement.digest, replacement.thresholds)
    if replacement.with_stated:
        return None, critical
    quality = Signal(fields["q"] / MAX_QUALITY, replacement.digest, replacement.thresholds)
    session.label(argument, "signal:quality", quality.value, source=quality.source)
    return quality, critical


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
    """Argues for the essay, argues against it, scores it, and judges the arguments that the policy passes on (in the
    paper all).
    """
    advocate, judge_advocate = await argue(session, ADVOCATE)
    skeptic, judge_skeptic = await argue(session, SKEPTIC, opponent=advocate)
    low, high = score_range(session.item)
    score_call = await session.ask(
        "score",
        stage=SCORE_STAGE,
        agent="synthesizer",
        parent=skeptic,
        max_tokens=SCORE_TOKENS,
        json_schema=object_schema({"score": {"type": "integer", "enum": list(range(low, high + 1))}}),
        advocate=advocate.text.strip(),
        skeptic=skeptic.text.strip(),
    )
    score = parse_score(session.item, score_call.text)
    if score is None:  # once more, as with the meta-evaluator
        messages_again = (*score_call.messages, *session.messages("score_again", output=score_call.text))
        score_call = await session.send(
            messages_again, score_call.sampling, stage=SCORE_STAGE, agent="synthesizer", round=1, parent=skeptic
        )
        score = parse_score(session.item, score_call.text)
    session.state(score_call, "score", None if score is None else (score - low) / (high - low))
    for argument, goes_to_judge in ((advocate, judge_advocate), (skeptic, judge_skeptic)):
        judgement = await judge_argument(session, argument, role=argument.agent) if goes_to_judge else None
        join_judged(session, argument, None if judgement is None else judgement.q)
    return session.run("" if score is None else str(score))


async def argue(session: Session, role: str, *, opponent: Call | None = None) -> tuple[Call, bool]:
    """Returns a debater's argument, and whether it is passed to the judge: the policy decides after each attempt.

    The program's labels of an attempt come first, then a checkpoint's, so that the last `critical` of a call is the
    judge's if it gave one. An attempt that is asked for again stays in the run, but nobody answers it.

    Args:
        session: the session.
        role: the debater.
        opponent: the argument to answer, if there is one.
    """
    prompt_suffix = "_scaffold" if session.variant == SCAFFOLD else ""
    slots = {} if opponent is None else {"opponent": opponent.text.strip()}
    max_attempts = session.constant(MOST_ATTEMPTS)
    for attempt in range(max_attempts):
        argument = await session.ask(
            role + prompt_suffix,
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
        other_texts = (fields["rubric"], fields["essay_prompt"], "" if opponent is None else opponent.text)
        findings = check_argument(argument.text, fields["essay"], role=role, other_texts=other_texts)
        for name, value in findings.labels().items():
            session.label(argument, name, value, source="program")
        may_ask = attempt + 1 < max_attempts
        decision = review(session, argument, may_ask=may_ask, may_judge=session.variant != NO_JUDGE)
        if decision.action != Action.AGAIN:
            break
    return argument, decision.action == Action.JUDGE


def score_range(item: Item) -> tuple[int, int]:
    """Returns the lowest and the highest score of the item's trait."""
    return int(item.fields["low"]), int(item.fields["high"])


def parse_score(item: Item, text: str) -> int | None:
    """Returns the score in a JSON object; None if there is none, or if it is outside the trait's range."""
    output = only_json_object(text)
    return None if output is None else whole_number(output.get("score"), *score_range(item))


def extract_score(item: Item, call: Call, variant: str) -> str:
    """Returns the score as text, to be checked against the human one; empty if it cannot be read.

    Args:
        item: the item.
        call: the answer.
        variant: the variant.
    """
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
    decides=(REVIEW_POINT,),
    answer_stages=(SCORE_STAGE,),
    extract_answer=extract_score,
    limits={ARGUMENT_STAGE: ARGUMENT_TOKENS, SCORE_STAGE: SCORE_TOKENS, JUDGE_STAGE: JUDGE_TOKENS},
    constants=(MOST_ATTEMPTS, DEBATE_TEMPERATURE),
)
