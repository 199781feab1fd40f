"""Trains a new predictor on stored runs and the log together; stored runs are thinned to resemble current answers.

A classifier separates stored from logged answers by their terms (`probes.features`). Its odds say how much likelier an
answer is now than before: the importance weight. The trainers here take no weights, so stored runs are drawn with a
probability in proportion to their weight. Runs that resemble today's answers stay, others mostly go. All labelled
answers of the log are used except the latest, which are left for the guard (`promote --log`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from metaprobe.api import (
    AGREEMENT,
    Call,
    Checkpoint,
    Item,
    Label,
    LogprobsMode,
    Message,
    QualityOptions,
    QualityPredictor,
    RecordError,
    Run,
    RunStore,
    Usage,
    importance,
    load_runs,
    train_quality,
)
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.label_draw import RETRAINED
from metaprobe.production.monitoring.log import ScoreLog

TARGET = "correct"
HELD_BACK_SHARE = 0.3
"""Share of the labelled answers, the latest ones, that are left for the guard."""
RECENT_ANSWERS = 2000
"""Number of logged answers that represent current answers."""
MIN_LOGGED_ANSWERS = 50
"""Fewest logged answers with log-probabilities for a comparison."""
SECOND_ANSWERS = "samples"
"""Source of a label `agreement` that a second answer gave (`serve --teach-rate`)."""
LOG_SYSTEM = "logged"
"""System of the runs that are made from a log."""
KEPT_QUANTILE = 0.9
"""Stored runs whose weight is above this quantile are all kept."""


@dataclass(frozen=True, slots=True)
class Retrained:
    """A new checkpoint, and the data on which it was trained."""

    checkpoint: Checkpoint
    stored: int
    """Number of stored runs."""
    kept: int
    """Number of stored runs that were kept."""
    logged: int
    """Number of labelled answers of the log from which it learned."""
    held_back: int
    """Number of latest labelled answers, from which it did not learn."""
    until: float
    """Time of the last answer from which it learned; -1 if there is none."""
    without_logprobs: int = 0
    """Number of labelled answers that are not used because the log lacks their log-probabilities."""


def retrain_quality(
    stores: Sequence[str | Path],
    log: ScoreLog,
    options: QualityOptions,
    *,
    model: str | None = None,
    since: float | None = None,
    held_back: float = HELD_BACK_SHARE,
    logprobs_mode: LogprobsMode = "unknown",
) -> Retrained:
    """Returns the new checkpoint, trained on stored runs that resemble the log's answers, and on the log's labels.

    The log must store log-probabilities. Raises `RecordError` if fewer than 50 of the selected answers have any, if
    stored ones have another mode, and as `train_quality` does.

    Args:
        stores: run stores.
        log: the score log.
        options: options of the training.
        model: model whose answers represent current ones; by default any.
        since: earliest time of these answers, in seconds since 1970.
        held_back: share of the labelled answers, the latest, that is left for the guard.
        logprobs_mode: mode of the log's log-probabilities, which a log does not know.
    """
    check_held_back(held_back)
    options.check(options.out, QualityPredictor.kind)
    recent = _logged_runs(
        log, model, since, logprobs_mode, labelled=False, max_answers=RECENT_ANSWERS, seed=options.seed
    )
    if len(recent) < MIN_LOGGED_ANSWERS:
        raise RecordError(
            f"the log holds {len(recent)} of these answers with log-probabilities, and telling what answers are like "
            f"now takes {MIN_LOGGED_ANSWERS}: serve with --log-logprobs, or choose more by --since and --model"
        )
    labelled_columns = log.columns(model=model, since=since, labelled=True)
    labelled_runs = _logged_runs(log, model, since, logprobs_mode, labelled=True, max_answers=None, seed=options.seed)
    learned_runs, time_of_answer = labelled_runs[: len(labelled_runs) - round(held_back * len(labelled_runs))], {}
    if learned_runs:
        columns = log.columns(ids=True, labelled=True)
        time_of_answer = dict(zip(columns.request_id.tolist(), columns.time.tolist(), strict=True))
    stored_runs = load_runs([Path(store) for store in stores]) if stores else []
    if other_modes := {call.logprobs_mode for run in stored_runs for call in run.calls if call.logprobs is not None} - {
        logprobs_mode
    }:
        raise RecordError(
            f"the stored log-probabilities are {', '.join(sorted(other_modes))}, those of the log {logprobs_mode}; say"
            " what the log's are (--logprobs-mode), or train on the log alone"
        )
    kept_runs = []
    if stored_runs:
        weights = importance(stored_runs, recent, target=TARGET)
        full_weight = float(np.quantile(weights[weights > 0], KEPT_QUANTILE))
        is_kept = np.random.default_rng(options.seed).random(len(stored_runs)) * full_weight < weights
        kept_runs = [stored_runs[index] for index in np.flatnonzero(is_kept)]
    with TemporaryDirectory() as folder:
        RunStore(Path(folder) / "runs").append([*kept_runs, *learned_runs])
        checkpoint = train_quality([Path(folder) / "runs"], replace(options, target=TARGET))
    until = max((float(time_of_answer[run.id]) for run in learned_runs), default=-1.0)
    log.event(RETRAINED, {"to": checkpoint.digest, "until": until, "kept": len(kept_runs), "logged": len(learned_runs)})
    held_back_count, without_logprobs = (
        len(labelled_runs) - len(learned_runs),
        int(np.isfinite(labelled_columns.label).sum()) - len(labelled_runs),
    )
    return Retrained(
        checkpoint, len(stored_runs), len(kept_runs), len(learned_runs), held_back_count, until, without_logprobs
    )


def retrain_on_agreement(
    log: ScoreLog,
    options: QualityOptions,
    *,
    model: str | None = None,
    since: float | None = None,
    held_back: float = HELD_BACK_SHARE,
    logprobs_mode: LogprobsMode = "unknown",
) -> Retrained:
    """Returns a new checkpoint that learned from the log which answers the model gives again. No label is read.

    The log must store log-probabilities, and hold the agreement of second answers (`serve --teach-rate`). A promotion
    is decided by labels of answers after the last one that was learned from. Raises `RecordError` where fewer than 20
    answers are left to learn from, and as `train_quality` does.

    Args:
        log: the score log.
        options: options of the training.
        model: model whose answers are learned from; by default any.
        since: earliest time of these answers, in seconds since 1970.
        held_back: share of the answers that were asked for again, the latest, that is left for the guard.
        logprobs_mode: mode of the log's log-probabilities, which a log does not know.
    """
    check_held_back(held_back)
    options.check(options.out, QualityPredictor.kind)
    agreements, _ = log.agreements(since=since, model=model)
    if not agreements:
        raise RecordError(
            "the log holds no agreement of second answers of that time and model: serve with --teach-rate 0.01 and "
            "--log-logprobs, and wait for some 200 of them"
        )
    timed_runs: list[tuple[float, Run]] = []
    """Time of the second answer, and the answer as a run."""
    entries = log.entries_named(agreement.request_id for agreement in agreements)
    for agreement, entry in zip(agreements, entries, strict=True):
        run = run_of_entry(entry, logprobs_mode)
        if run is not None:
            label = Label(run.id, AGREEMENT, float(agreement.same), SECOND_ANSWERS)
            timed_runs.append((agreement.time, replace(run, labels=(label,))))
    if not timed_runs:
        raise RecordError(
            f"the log holds the agreement of {len(agreements)} answers, and log-probabilities of none: serve with "
            "--log-logprobs"
        )
    timed_runs.sort(key=lambda pair: pair[0])
    learned_runs = timed_runs[: len(timed_runs) - round(held_back * len(timed_runs))]
    with TemporaryDirectory() as folder:
        RunStore(Path(folder) / "runs").append(run for _, run in learned_runs)
        try:
            checkpoint = train_quality([Path(folder) / "runs"], replace(options, target=AGREEMENT))
        except RecordError as error:
            if held_back_count := len(timed_runs) - len(learned_runs):
                raise RecordError(
                    f"{error}. The log holds {held_back_count} more, held back (hold_back={held_back:g})"
                ) from error
            raise
    until = learned_runs[-1][0]
    log.event(RETRAINED, {"to": checkpoint.digest, "until": until, "agreements": len(learned_runs)})
    return Retrained(
        checkpoint,
        0,
        0,
        len(learned_runs),
        len(timed_runs) - len(learned_runs),
        until,
        len(agreements) - len(timed_runs),
    )


def check_held_back(share: float) -> None:
    """Raises `RecordError` for a share outside [0, 1)."""
    if not 0 <= share < 1:
        raise RecordError(f"held_back is {share:g}; expected a share in [0, 1)")


def _logged_runs(
    log: ScoreLog,
    model: str | None,
    since: float | None,
    logprobs_mode: LogprobsMode,
    *,
    labelled: bool,
    max_answers: int | None,
    seed: int,
) -> list[Run]:
    """Returns answers with log-probabilities as runs, in the order of time; drawn at random if there are more than
    `max_answers`.

    Args:
        log: the score log.
        model: model that answered; None for any.
        since: earliest time, in seconds since 1970; None for any.
        logprobs_mode: mode of the log-probabilities.
        labelled: whether to return only labelled answers.
        max_answers: most answers; None for all.
        seed: seed of the draw.
    """
    columns = log.columns(model=model, since=since, labelled=labelled, ids=True)
    rows = np.flatnonzero(np.isfinite(columns.label)) if labelled else np.arange(len(columns))
    if max_answers is not None and len(rows) > max_answers:
        rows = np.sort(np.random.default_rng(seed).choice(rows, max_answers, replace=False))
    runs = []
    for row, entry in zip(rows.tolist(), log.entries_named(columns.request_id[rows].tolist()), strict=True):
        run = run_of_entry(entry, logprobs_mode)
        if run is None:
            continue
        right = float(columns.label[row] >= 0.5) if labelled else None
        labels = () if right is None else (Label(run.id, TARGET, right, "feedback"),)
        runs.append(replace(run, labels=labels, outcome=right))
    return runs


def run_of_entry(entry: Entry | None, logprobs_mode: LogprobsMode) -> Run | None:
    """Returns a logged answer as a run without labels; None if its log-probabilities are not in the log.

    `logprobs_mode`: mode of the log-probabilities.
    """
    if entry is None or entry.logprobs is None or not len(entry.logprobs):
        return None
    name, question = entry.request_id, entry.question
    call = Call(
        id=name,
        stage="answer",
        model=entry.model,
        messages=() if question is None else (Message("user", question),),
        text=entry.answer or "",
        logprobs=np.asarray(entry.logprobs, dtype=np.float32),
        logprobs_mode=logprobs_mode,
        finish_reason=entry.finish_reason,
        usage=Usage(entry.prompt_tokens or 0, entry.tokens or 0),
        latency_ms=None if entry.latency_s is None else 1e3 * entry.latency_s,
        cost_usd=entry.cost_usd,
    )
    item = Item(name, question or "", group=name, task=entry.tags.get("task", ""))
    return Run(name, LOG_SYSTEM, "", item, (call,), final_answer=call.text)
