"""Labels that say whether an answer ends by itself. The finish reason gives them, without anybody's judgement.

An answer that its token limit cuts costs as many tokens as an answer can, and is seldom right. The label is 1 for an
answer that the model ended, and 0 for an answer that the limit cut. All answers have the same limit, because an answer
that a lower limit cuts may end by itself under a higher one. An answer that had a higher limit is read only up to the
lower limit: the model would have written the same tokens. Answers with another end are left out: a content filter or
a tool call says nothing about the length.
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
MIN_SAME_LIMIT_SHARE = 0.95
"""Cut answers without a recorded limit count as cut at one limit if the shortest has at least this share of the longest
one's tokens. A stored answer may lack its last tokens, such as a stop text or half a character.
"""


@dataclass(frozen=True, slots=True, eq=False)
class EndedLabels:
    """Runs with the labels `ended`. Answers that had a higher token limit are cut."""

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
        token_limit: the limit. Longer answers are cut there, and answers with a lower limit are left out. By default
            the only limit by which answers were cut.

    Raises `RecordError` if the calls are of several stages and none is named. It is also raised if no answer was cut,
    or if answers were cut by several limits and none is chosen.
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
        if why := _why_unlabelled(call):
            left_out[why] += 1
        else:
            answers.append((run, call))
    # Find the limit, cut answers with a higher one, and leave out those with a lower one.
    limits = _limits(answers)
    chosen_limit = token_limit or _only_limit([call for _, call in answers], limits, left_out)
    labelled: dict[str, Call] = {}
    for (_, call), limit in zip(answers, limits, strict=True):
        if limit == chosen_limit:
            labelled[call.id] = call
        elif limit < chosen_limit:
            left_out["with a token limit that is lower, or may be"] += 1
        elif _hides_tokens(call):
            left_out["with a higher token limit and tokens that are not stored"] += 1
        else:
            labelled[call.id] = _cut_at(call, chosen_limit)
    cut_count = sum(_is_cut(call) for call in labelled.values())
    if not cut_count:
        raise RecordError(
            f"none of {len(labelled)} answers with a token limit of at least {chosen_limit} is longer than that"
            f"{_left_out_text(left_out)}; expected answers that would be cut: choose a lower limit"
        )
    # Write the labels.
    labels = {
        call_id: Label(call_id, ENDED, float(not _is_cut(call)), FINISH_REASON) for call_id, call in labelled.items()
    }
    labelled_runs = [
        replace(
            run,
            calls=tuple(labelled.get(call.id, call) for call in run.calls),
            labels=(
                *(label for label in run.labels if label.name != ENDED),
                *(labels[call.id] for call in run.calls if call.id in labels),
            ),
        )
        for run in runs
    ]
    note = (
        f"{len(labelled) - cut_count} answers end by themselves, and {cut_count} are cut by the token limit of "
        f"{chosen_limit}{_left_out_text(left_out)}"
    )
    return EndedLabels(labelled_runs, chosen_limit, note)


def _is_cut(call: Call) -> bool:
    return call.finish_reason == LENGTH


def _stored_length(call: Call) -> int:
    return max(len(call.tokens), 0 if call.logprobs is None else len(call.logprobs))


def _length(call: Call) -> int:
    """Returns the number of generated tokens, thinking included."""
    return call.usage.completion_tokens or _stored_length(call)


def _hides_tokens(call: Call) -> bool:
    """Whether more tokens were generated than are stored, as if thinking is hidden. The end token is not counted."""
    return call.usage.completion_tokens > _stored_length(call) + 1


def _cut_at(call: Call, limit: int) -> Call:
    """Returns the call as a lower token limit would have left it. The end token counts towards the limit too."""
    if not _is_cut(call) and _stored_length(call) < limit:
        return call
    segments = (replace(segment, end=min(segment.end, limit)) for segment in call.segments)
    return replace(
        call,
        finish_reason=LENGTH,
        tokens=call.tokens[:limit],
        token_ids=None if call.token_ids is None else call.token_ids[:limit],
        logprobs=None if call.logprobs is None else call.logprobs[:limit],
        top_logprobs=None if call.top_logprobs is None else call.top_logprobs[:limit],
        segments=tuple(segment for segment in segments if segment.start < segment.end),
    )


def _stated_limit(run: Run, call: Call) -> int | None:
    """Returns the token limit of the request; None if it was not recorded.

    An imported line without a limit has the default of `Sampling`, so this value counts as not recorded.
    """
    limit = call.sampling.max_tokens
    return None if run.imported and limit == Sampling().max_tokens else limit


def _limits(answers: Sequence[tuple[Run, Call]]) -> list[int]:
    """Returns the token limit of each answer.

    The limit of a cut answer without a recorded limit is its length; if such lengths are nearly equal, it is the
    greatest of them. The limit of an ended answer without a recorded limit is the least of these limits. If no such
    answer was cut, all of them had a limit above the longest answer.
    """
    stated_limits = [_stated_limit(run, call) for run, call in answers]
    without_limit = [call for (_, call), limit in zip(answers, stated_limits, strict=True) if not limit]
    cut_lengths = [_length(call) for call in without_limit if _is_cut(call)]
    if cut_lengths and min(cut_lengths) >= MIN_SAME_LIMIT_SHARE * max(cut_lengths):
        return [limit or max(cut_lengths) for limit in stated_limits]
    least_limit = min(cut_lengths, default=1 + max(map(_length, without_limit), default=0))
    return [
        limit or (_length(call) if _is_cut(call) else least_limit)
        for (_, call), limit in zip(answers, stated_limits, strict=True)
    ]


def _why_unlabelled(call: Call) -> str:
    """Returns why the call has no label, in words; empty if it has one."""
    if not call.finish_reason:
        return "that do not say how they ended"
    if not answers_in_words(call) or call.finish_reason not in (STOP, LENGTH):
        return f"that ended by {call.finish_reason}"
    answer = answer_logprobs(call)
    return "without a token of the answer, as where thinking was cut" if answer is not None and not len(answer) else ""


def _only_limit(calls: Sequence[Call], limits: Sequence[int], left_out: Counter[str]) -> int:
    """Returns the only token limit by which answers were cut. Raises `RecordError` if there is no limit, or several.

    Args:
        calls: the answers.
        limits: the token limit of each.
        left_out: number of answers left out by the reason.
    """
    answers_of_limit = Counter(limits)
    cut_of_limit = Counter(limit for call, limit in zip(calls, limits, strict=True) if _is_cut(call))
    if not cut_of_limit:
        raise RecordError(
            f"none of {len(calls)} answers was cut by its token limit (finish_reason "
            f"{LENGTH}){_left_out_text(left_out)}; "
            "expected answers that ended by themselves and answers that were cut: choose a limit below the longest "
            "answers (`--token-limit`), or do without such a gate"
        )
    if len(cut_of_limit) > 1:
        limits_text = ", ".join(
            f"{limit} ({cut_of_limit[limit]} of {answers_of_limit[limit]} answers cut)"
            for limit in sorted(cut_of_limit)
        )
        raise RecordError(
            f"answers were cut by the token limits {limits_text}; expected one limit, because another limit makes it "
            f"another question: choose one, as with --token-limit {min(cut_of_limit)}, where longer answers count as "
            "cut"
        )
    return next(iter(cut_of_limit))


def _left_out_text(left_out: Counter[str]) -> str:
    """Returns the numbers of answers left out, by the reason; empty for none."""
    parts = [f"{count} {why}" for why, count in sorted(left_out.items())]
    return f". Left out: {', '.join(parts)}" if parts else ""
