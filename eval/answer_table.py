"""Runs as a table for fitting and comparing: one row a labelled answer, with what is known about it."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import RecordError
from metaprobe.records.reading import REFUSAL, TOOL_CALL
from metaprobe.records.response import NO_LOGPROB, answer_logprobs, constant_fault, series_of
from metaprobe.records.types import Call, Item, Run

LOGPROBS_NEEDED = (
    "Everything trained is compared with the log-probabilities, also a probe of hidden states that were extracted "
    "afterwards: collect or import the answers again with log-probabilities (`logprobs` in the request)"
)
DECISIONS_HINT = "; these answers hold decisions, which `metaprobe train quality --reads decisions` learns from"

ITEM_LEVELS = ("easy", "medium", "hard", "cross")
"""Levels of items, in the order in which tables show them; `cross` is another kind of item, not a harder one."""

STATED_COLUMNS = {"stated_difficulty": "difficulty", "stated_confidence": "confidence", "p_true": "p_true"}
"""Maps a column of stated numbers to the kind of statement that fills it."""


def level_place(level: str) -> tuple[int, str]:
    """Returns the place of a level in tables: other names come after `ITEM_LEVELS`, in alphabetical order."""
    return ITEM_LEVELS.index(level) if level in ITEM_LEVELS else len(ITEM_LEVELS), level


@dataclass(frozen=True, slots=True, eq=False)
class AnswerTable:
    """n labelled answers. Every field has n entries."""

    call_ids: NDArray[np.str_]
    items: NDArray[np.str_]
    tasks: NDArray[np.str_]
    groups: NDArray[np.str_]
    """Group of each answer. Answers of one group stay in one split."""
    variants: NDArray[np.str_]
    dimensions: NDArray[np.str_]
    levels: NDArray[np.str_]
    questions: NDArray[np.str_]
    models: NDArray[np.str_]
    y: NDArray[np.int64]
    """The target label, 0 or 1."""
    stated_difficulty: NDArray[np.float64]
    """Stated difficulty, in [0, 1]; `Run.stated_of` says to which call it belongs. NaN if the model stated none."""
    stated_confidence: NDArray[np.float64]
    """Stated confidence, in [0, 1]; NaN if the model stated none."""
    p_true: NDArray[np.float64]
    """Probability with which the model calls its answer true, in [0, 1]; NaN if it was not asked."""
    logprobs: NDArray[np.object_]
    """Each entry float32 (T,), nats: the answer's log-probabilities, without the thinking before it."""
    tokens: NDArray[np.int64]
    cut: NDArray[np.bool_]
    """Whether max_tokens ended the answer."""
    answers: NDArray[np.object_] | None = None
    """Each entry is the text of the answer, empty if it was not stored; None if no text was stored."""
    prompts: NDArray[np.object_] | None = None
    """Each entry is the user's last message as the model got it, empty if it was not stored; None if no message was
    stored."""

    def __len__(self) -> int:
        return len(self.y)

    @property
    def measured(self) -> bool:
        """Whether the answers hold log-probabilities: all of them do, or none."""
        return bool(self.tokens.any())

    @property
    def asked(self) -> list[str]:
        """The user's last message of each request as the model got it, with what a template wrote around the question;
        the questions where no message was stored."""
        return list(self.questions.tolist() if self.prompts is None else self.prompts)

    def rows(self, chosen: NDArray[Any]) -> "AnswerTable":
        """Returns the chosen rows, by index or by mask."""
        names = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})


def bare_table(
    y: NDArray[np.int64],
    groups: NDArray[np.str_],
    *,
    questions: Sequence[str] | None = None,
    answers: Sequence[str] | None = None,
    logprobs: Sequence[NDArray[np.float32]] | None = None,
) -> AnswerTable:
    """Returns a table of answers about which little is known.

    Args:
        y: the labels (n,).
        groups: the groups (n,).
        questions: the questions, if known.
        answers: the texts, if known.
        logprobs: the log-probabilities, if known.
    """
    n = len(y)
    row_names, empty_texts = np.array([f"row-{i}" for i in range(n)]), np.full(n, "")
    series = [np.empty(0, dtype=np.float32)] * n if logprobs is None else list(logprobs)
    return AnswerTable(
        call_ids=row_names,
        items=row_names,
        groups=groups,
        y=y,
        questions=empty_texts if questions is None else np.array(questions, dtype=np.str_),
        **dict.fromkeys(("tasks", "variants", "dimensions", "levels", "models"), empty_texts),
        **dict.fromkeys(STATED_COLUMNS, np.full(n, np.nan)),
        logprobs=_object_column(series),
        tokens=np.array([len(values) for values in series], dtype=np.int64),
        cut=np.zeros(n, dtype=bool),
        answers=None if answers is None else _object_column(answers),
    )


def _object_column(values: Sequence[Any]) -> NDArray[np.object_]:
    column = np.empty(len(values), dtype=object)
    column[:] = list(values)
    return column


def answer_table(
    runs: Iterable[Run],
    *,
    target: str = "correct",
    stage: str | None = None,
    agent: str | None = None,
    bare: bool = False,
) -> AnswerTable:
    """Returns a row for every call with a label `target`, log-probabilities and at least one token.

    With `bare`, log-probabilities are dropped if at most half of the labelled calls have them. The table then has a row
    for every call with the label. Left out with a warning are refusals and tool calls, because no predictor scores
    them, and answers whose log-probabilities are missing or made up. Another warning counts answers with numbers that
    stand for unknown log-probabilities. Raises `RecordError` if nothing is left, or if a label is not 0 or 1.

    Args:
        runs: the runs.
        target: name of the label.
        stage: only calls of this stage.
        agent: only calls of this agent.
        bare: whether a table without log-probabilities is allowed.
    """
    rows: list[dict[str, Any]] = []
    rows_without_logprobs: list[dict[str, Any]] = []
    selected_count = unlabelled_count = wordless_count = made_up_count = 0
    names_found: dict[str, set[str]] = {"labels": set(), "stages": set(), "agents": set()}
    has_decisions = False
    # Sort labelled calls into those with and without log-probabilities.
    for run in runs:
        has_decisions = has_decisions or bool(run.decision_answers)
        names_found["labels"].update(label.name for label in run.labels)
        for call in run.calls:
            names_found["stages"].add(call.stage)
            names_found["agents"].add(call.agent)
            if (stage is not None and call.stage != stage) or (agent is not None and call.agent != agent):
                continue
            selected_count += 1
            label_value = run.label(target, call.id)
            if label_value is None:
                unlabelled_count += 1
                continue
            if label_value not in (0.0, 1.0):
                raise RecordError(f"call {call.id}: label {target} is {label_value}; expected 0 or 1")
            if not answers_in_words(call):
                wordless_count += 1
                continue
            logprobs = answer_logprobs(call)
            has_logprobs = logprobs is not None and len(logprobs) > 0
            if has_logprobs and constant_fault(np.asarray(call.logprobs), call.top_logprobs):
                has_logprobs, made_up_count = False, made_up_count + 1
            (rows if has_logprobs else rows_without_logprobs).append(_table_row(run, call, int(label_value)))
    # Refuse a selection without calls.
    found_text = {kind: ", ".join(sorted(filter(None, names))) or "none" for kind, names in names_found.items()}
    if not rows and not selected_count:
        raise RecordError(
            f"no call of stage {stage or 'any'} by agent {agent or 'any'}; stages found: {found_text['stages']}; "
            f"agents found: {found_text['agents']}"
        )
    # Drop the log-probabilities if most answers have none and that is allowed.
    lost_count = len(rows_without_logprobs) - made_up_count if rows else 0
    if bare and len(rows) <= len(rows_without_logprobs):
        if rows:
            warnings.warn(
                f"the log-probabilities of {len(rows)} labelled answers are not read: the other "
                f"{len(rows_without_logprobs)} have none",
                stacklevel=2,
            )
            lost_count = made_up_count = 0
        no_logprobs = np.empty(0, dtype=np.float32)
        rows = rows_without_logprobs + [{**row, "logprobs": no_logprobs, "tokens": 0} for row in rows]
    if not rows:
        lacking_text = "" if bare else f"{len(rows_without_logprobs)} have it but no log-probabilities, "
        raise RecordError(
            f"no answer with a label {target!r}{'' if bare else ' and log-probabilities'}: {unlabelled_count} calls "
            f"have no such label, {lacking_text}{wordless_count} are refusals or tool calls; labels found: "
            f"{found_text['labels']}"
            + (f". {LOGPROBS_NEEDED}" if rows_without_logprobs else "")
            + (DECISIONS_HINT if rows_without_logprobs and has_decisions else "")
        )
    _warn_of_left_out(rows, wordless_count=wordless_count, made_up_count=made_up_count, lost_count=lost_count)
    # Runs are stored in the order in which they ended; folds and fits must not depend on that.
    rows.sort(key=lambda row: row["call_ids"])
    columns: dict[str, Any] = {
        name: (_object_column if name in ("logprobs", "answers", "prompts") else np.array)([row[name] for row in rows])
        for name in rows[0]
    }
    for name in ("answers", "prompts"):
        if not any(map(len, columns[name])):
            del columns[name]
    return AnswerTable(**columns)


def answers_in_words(call: Call) -> bool:
    """Whether the call answers in words. Refusals and tool calls do not, and no predictor scores them."""
    return call.finish_reason not in (REFUSAL, TOOL_CALL)


def _warn_of_left_out(
    rows: Sequence[dict[str, Any]], *, wordless_count: int, made_up_count: int, lost_count: int
) -> None:
    """Warns about labelled answers that are left out, and about numbers that are not the model's own.

    Args:
        rows: the rows that are kept.
        wordless_count: number of refusals and tool calls.
        made_up_count: number of answers with made-up log-probabilities.
        lost_count: number of answers without log-probabilities.
    """
    if wordless_count:
        warnings.warn(
            f"{wordless_count} labelled refusals and tool calls are left out: no predictor scores them", stacklevel=3
        )
    if made_up_count:
        warnings.warn(
            f"{made_up_count} labelled answers are left out: their log-probabilities are all 0 or all the same, as "
            "servers write that have none",
            stacklevel=3,
        )
    if lost_count:
        warnings.warn(f"{lost_count} labelled answers are left out: they hold no log-probabilities", stacklevel=3)
    if unknown_count := sum(len(row["logprobs"]) > 0 and row["logprobs"].min() <= NO_LOGPROB for row in rows):
        warnings.warn(
            f"{unknown_count} of {len(rows)} labelled answers hold a log-probability of {NO_LOGPROB:g} or lower, as "
            "servers write of a token whose own they do not know; such answers weigh heavily in a fit, which may be "
            "better without them",
            stacklevel=3,
        )


def _table_row(run: Run, call: Call, y: int) -> dict[str, Any]:
    """Returns what the table keeps of one labelled call; keys are its columns.

    Args:
        run: the run.
        call: the call.
        y: its label.
    """
    logprobs_of_call = call.logprobs if call.logprobs is not None else np.empty(0, dtype=np.float32)
    logprobs, _ = series_of(logprobs_of_call, call.segments)
    item = run.item
    return {
        "call_ids": call.id,
        "items": item.id,
        "tasks": item.task,
        "groups": group_of(item),
        "variants": run.variant,
        "dimensions": item.dimension,
        "levels": item.level,
        "questions": item.question,
        "models": call.model,
        "y": y,
        **{column: np.float64(run.stated_of(call, kind)) for column, kind in STATED_COLUMNS.items()},  # None is NaN
        "logprobs": logprobs,
        "answers": call.text.strip(),
        "tokens": len(logprobs),
        "cut": call.finish_reason == "length",
        "prompts": next((message.content for message in reversed(call.messages) if message.role == "user"), ""),
    }


def group_of(item: Item) -> str:
    """Returns the group that stays in one split: the item's group, or the item itself if it states none."""
    return f"{item.task}/{item.group or item.id}"


def runs_by_variant(runs: Iterable[Run]) -> dict[tuple[str, str], list[Run]]:
    """Maps (system, variant) to its runs, in order of appearance."""
    by_variant: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        by_variant.setdefault((run.system, run.variant), []).append(run)
    return by_variant


def usable_groups(groups: Sequence[str], y: NDArray[np.int64], *, folds: int) -> int:
    """Returns the number of groups. Raises `RecordError` if `folds` group-wise folds with both classes cannot be made.

    Args:
        groups: the group of each answer.
        y: the labels (n,).
        folds: number of folds.
    """
    group_counts = {
        int(label): len({g for g, label_of_answer in zip(groups, y, strict=True) if label_of_answer == label})
        for label in (0, 1)
    }
    if min(group_counts.values()) == 0:
        only = "1" if group_counts[0] == 0 else "0"
        raise RecordError(
            f"all {len(y)} labels are {only}: there is nothing to distinguish; add runs of the other class"
        )
    # Each fold's learning groups are split again, by five, into the roles.
    if min(group_counts.values()) < (needed := max(2 * folds, 10)):
        raise RecordError(
            f"{group_counts[1]} groups have a label 1 and {group_counts[0]} a label 0; {folds} folds by group need at "
            f"least {needed} of each: add runs{', or ask for fewer folds' if needed > 10 else ''}"
        )
    return len(set(groups))
