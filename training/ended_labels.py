"""Whether an answer ends by itself: a label that the finish reason gives, without anybody's judgement.

An answer that its token limit cuts costs as many tokens as an answer can, and is seldom right. The label is 1 for an
answer that the model ended, and 0 for an answer that the limit cut. All answers have the same limit, because an answer
that a lower limit cuts may end by itself under a higher one. Answers with another end are left out: a content filter
or a tool call says nothing about the length.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from metaprobe.checkpoints.flagging import ENDED
from metaprobe.eval.answer_table import answers_in_words
from metaprobe.records.errors import RecordError
from metaprobe.records.reading import LENGTH, STOP
from metaprobe.records.response import answer_logprobs
from metaprobe.records.types import Call, Label, Run, Sampling

FINISH_REASON = "finish_reason"
"""Source of the labels `ended`."""
SAME_LIMIT = 0.95
"""Share of the longest cut answer's tokens. Answers without a recorded limit that are cut at this length or later were
cut at one limit: a stored answer may lack its last tokens, as a stop text or half a character.
"""


@dataclass(frozen=True, slots=True, eq=False)
class EndedLabels:
    """Runs with the labels `ended`."""

    runs: list[Run]
    token_limit: int
    """The most tokens that each labelled answer could have."""
    note: str
    """Says in a line for card and terminal how many answers ended or were cut, and which were left out."""


def with_ended_labels(
    runs: Sequence[Run], *, stage: str | None = None, agent: str | None = None, token_limit: int | None = None
) -> EndedLabels:
    """Returns the runs with a label `ended` for each answer that ended by itself or was cut by its token limit.

    Stored labels of this name are dropped.

    Args:
        runs: runs of a store or of lines.
        stage: only calls of this stage; by default the only stage of the runs.
        agent: only calls of this agent; by default of any.
        token_limit: only answers with this limit; by default the only limit by which answers were cut.

    Raises `RecordError` where the calls are of several stages and none is named, where no answer was cut, and where
    answers were cut by several limits and none is chosen.
    """
    calls = [
        (run, call) for run in runs for call in run.calls if stage in (None, call.stage) and agent in (None, call.agent)
    ]
    if len(stages := sorted({call.stage for _, call in calls})) > 1:
        raise RecordError(
            f"the calls are of the stages {', '.join(stage or 'without a name' for stage in stages)}; expected one, "
            "because each has its own kind of answers: name it (`--stage`)"
        )
    # Leave out what neither ended by itself nor was cut by the limit.
    left_out: Counter[str] = Counter()
    answers: list[tuple[Run, Call]] = []
    for run, call in calls:
        if why := _unlabelled(call):
            left_out[why] += 1
        else:
            answers.append((run, call))
    # Find the limit, and leave out answers with another.
    stated = [_stated_limit(run, call) for run, call in answers]
    cut_at = [_length(call) for (_, call), limit in zip(answers, stated, strict=True) if _is_cut(call) and not limit]
    same = bool(cut_at) and min(cut_at) >= SAME_LIMIT * max(cut_at)
    limits = [
        limit or (max(cut_at) if same else _length(call) if _is_cut(call) else 0)
        for (_, call), limit in zip(answers, stated, strict=True)
    ]
    chosen = _chosen_limit([call for _, call in answers], limits, token_limit, left_out)
    labels: dict[str, float] = {}
    for (_, call), limit in zip(answers, limits, strict=True):
        if limit == chosen:
            labels[call.id] = float(not _is_cut(call))
        else:
            left_out["with another token limit" if limit else "whose token limit is not known"] += 1
    labelled = [
        replace(
            run,
            labels=(
                *(label for label in run.labels if label.name != ENDED),
                *(Label(call.id, ENDED, labels[call.id], FINISH_REASON) for call in run.calls if call.id in labels),
            ),
        )
        for run in runs
    ]
    ended = int(sum(labels.values()))
    note = (
        f"{ended} answers ended by themselves, and {len(labels) - ended} were cut by the token limit of {chosen}"
        f"{_listed(left_out)}"
    )
    return EndedLabels(labelled, chosen, note)


def _is_cut(call: Call) -> bool:
    return call.finish_reason == LENGTH


def _length(call: Call) -> int:
    """Returns the number of generated tokens, thinking included."""
    stored = max(len(call.tokens), 0 if call.logprobs is None else len(call.logprobs))
    return call.usage.completion_tokens or stored


def _stated_limit(run: Run, call: Call) -> int | None:
    """Returns the token limit of the request; None if it was not recorded.

    An imported line that states no limit gets the default, which is therefore not read from it.
    """
    limit = call.sampling.max_tokens
    return None if run.imported and limit == Sampling().max_tokens else limit


def _unlabelled(call: Call) -> str:
    """Returns why the call has no label, in words; empty if it has one."""
    if not call.finish_reason:
        return "that do not say how they ended"
    if not answers_in_words(call) or call.finish_reason not in (STOP, LENGTH):
        return f"that ended by {call.finish_reason}"
    answer = answer_logprobs(call)
    return "without a token of the answer, as where thinking was cut" if answer is not None and not len(answer) else ""


def _chosen_limit(calls: Sequence[Call], limits: Sequence[int], chosen: int | None, left_out: Counter[str]) -> int:
    """Returns the token limit whose answers are labelled. Raises as `with_ended_labels`.

    Args:
        calls: the answers.
        limits: the token limit of each; 0 where it is not known.
        chosen: the limit that the user chose; None for none.
        left_out: number of answers left out by the reason.
    """
    asked = Counter(limits)
    cut = Counter(limit for call, limit in zip(calls, limits, strict=True) if _is_cut(call))
    if not cut:
        raise RecordError(
            f"none of {len(calls)} answers was cut by its token limit (finish_reason {LENGTH}){_listed(left_out)}; "
            "expected answers that ended by themselves and answers that were cut: collect answers with a lower "
            "max_tokens, or do without such a gate"
        )
    in_words = ", ".join(f"{limit} ({cut[limit]} of {asked[limit]} answers cut)" for limit in sorted(cut))
    if chosen is None and len(cut) > 1:
        raise RecordError(
            f"answers were cut by the token limits {in_words}; expected one limit, because another limit makes it "
            f"another question: choose one, as with --token-limit {max(cut, key=lambda limit: cut[limit])}"
        )
    if chosen is not None and chosen not in cut:
        raise RecordError(f"no answer was cut by a token limit of {chosen}; answers were cut by {in_words}: choose one")
    return next(iter(cut)) if chosen is None else chosen


def _listed(left_out: Counter[str]) -> str:
    """Returns the numbers of answers left out, by the reason; empty for none."""
    parts = [f"{count} {why}" for why, count in sorted(left_out.items())]
    return f". Left out: {', '.join(parts)}" if parts else ""
