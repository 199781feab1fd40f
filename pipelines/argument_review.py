"""Review of an argument of the debate: kept, asked for again, or handed to the judge.

Two signals may be read of it. `quality` stands in the judge's place: one checkpoint gives every field that the judge
would (`HEADS`), and Q with the judge's override, 0 where there is a critical issue. `critical` is P(critical) alone.
What a checkpoint says is noted under its digest, never as a judge's word. The policy decides at `review`; the paper
hands every argument to its judge.
"""

from dataclasses import replace

from metaprobe.pipelines.judging import DIMENSIONS, MOST
from metaprobe.pipelines.session import UNREAD, Session
from metaprobe.probes.quality import CRITICAL
from metaprobe.probes.signals import STATED, Signal, combine_probabilities, signals_of
from metaprobe.probes.source import Replacement
from metaprobe.probes.verdict import Verdict
from metaprobe.records.types import Call, Decision
from metaprobe.routing.policy import AGAIN, JUDGE, KEEP
from metaprobe.routing.review import EVEN, POINT

HEADS = (*DIMENSIONS, CRITICAL)
"""Heads that a checkpoint needs in the judge's place."""


def review(session: Session, argument: Call, *, may_ask: bool, may_judge: bool) -> Decision:
    """Returns what the policy decides of an argument, after noting what checkpoints read of it.

    `may_ask`: whether it can be asked for again. `may_judge`: whether the variant has a judge.
    """
    role = argument.agent
    replacement = session.signals.replacement("quality", role)
    verdict = None if replacement is None else replacement.verdict(argument)
    quality = critical = None
    if replacement is not None:
        quality, critical = _judged_by(session, argument, replacement, verdict)
    own = session.signals.replacement(CRITICAL, role)
    if own is not None:
        critical = session.signal(CRITICAL, agent=role, call=argument)
        if critical is not None:
            flag = float(critical.value >= own.thresholds.get(CRITICAL, EVEN))
            session.label(argument, CRITICAL, flag, source=own.digest)
    known = replace(signals_of(argument), quality=quality, critical=critical)
    legal = [KEEP, *([AGAIN] if may_ask else []), *([JUDGE] if may_judge else [])]
    return session.decide(POINT, legal, agent=role, signals=known)


def join_judged(session: Session, argument: Call, q: int | None) -> None:
    """Notes the quality of an argument whose judge was asked beside a checkpoint: both joined, or what there is.

    `q`: the judge's, from 0 to 9; None where it said nothing readable. Nothing is noted where no checkpoint stands
    beside the judge, or where it could not read the argument.
    """
    replacement = session.signals.replacement("quality", argument.agent)
    if replacement is None or not replacement.with_stated:
        return
    verdict = replacement.verdict(argument)
    if verdict is None:
        return
    read = fields_of(verdict, replacement)["q"] / MOST
    value = read if q is None else combine_probabilities(q / MOST, read)
    source = replacement.digest if q is None else STATED + replacement.digest
    session.label(argument, "signal:quality", value, source=source)


def fields_of(verdict: Verdict, replacement: Replacement) -> dict[str, float]:
    """Returns the judge's fields as the checkpoint has them, by label: levels from 1 to 3, a flag, and Q from 0 to 9.

    The flag is up where P(critical) reaches the checkpoint's own threshold. Q is then 0; else the head `quality`, where
    there is one, or the sum of the levels.
    """
    fields = {name: verdict.heads[name] for name in DIMENSIONS}
    flag = verdict.heads[CRITICAL] >= replacement.thresholds.get(CRITICAL, EVEN)
    q = 0.0 if flag else verdict.heads.get("quality", sum(fields.values()))
    return {**fields, CRITICAL: float(flag), "q": q}


def _judged_by(
    session: Session, argument: Call, replacement: Replacement, verdict: Verdict | None
) -> tuple[Signal | None, Signal | None]:
    """The quality and P(critical) that the checkpoint in the judge's place gives, both None where it cannot read.

    The quality is None as well where the judge is still to be asked beside it.
    """
    if verdict is None:
        session.label(argument, UNREAD + "quality", 1.0, source=replacement.digest)
        return None, None
    fields = fields_of(verdict, replacement)
    for name, value in fields.items():
        session.label(argument, name, value, source=replacement.digest)
    critical = Signal(verdict.heads[CRITICAL], replacement.digest, replacement.thresholds)
    if replacement.with_stated:
        return None, critical
    quality = Signal(fields["q"] / MOST, replacement.digest, replacement.thresholds)
    session.label(argument, "signal:quality", quality.value, source=quality.source)
    return quality, critical
