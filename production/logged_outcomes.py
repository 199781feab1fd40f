"""Outcomes from the labelled answers of a score log, from which P(success) before asking is learned again.

Each answer becomes one outcome: the question, the model that answered, the label, and the probability with which the
answer was drawn for a label. `train success` and `promote` weigh the label by 1 / probability. So doubtful answers,
which `sample` draws more often, do not lower the rate of their model. Labels count by the rules of `promote`. Nothing
here corrects for who chose the model: a model that was asked easy questions has outcomes of easy questions.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from metaprobe.api import AgentOutcome, QuestionOutcomes, RecordError
from metaprobe.production.monitoring.entry import is_census
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.production.monitoring.rows import LogColumns, Texts
from metaprobe.production.promotion import NOT_DRAWN

UNSURE = "the label is unsure"
NO_QUESTION_TEXT = "the log holds no text of the question (serve --log-texts)"
NO_MODEL = "the log names no model that answered"
OLD_VERSION = "another version of the model answered last"
"""Reasons why labelled answers give no outcome."""
CHOSEN_BY_PEOPLE = (
    "no answer was drawn for a label, so all labels of a model weigh the same: its rate is right only if who chose "
    "its answers had no reason (draw answers with `metaprobe sample`)"
)
ROLE = r"(?:system|developer|user|assistant|tool|function): "
"""Begins each message of a logged chat with several messages."""
_LAST_MESSAGE = re.compile(rf"{ROLE}(?:.*\n\n{ROLE})?(?P<last>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LoggedOutcomes:
    """Outcomes of a log in the order of time, and what was left out."""

    learned: Sequence[QuestionOutcomes]
    """Outcomes to train on."""
    held_back: Sequence[QuestionOutcomes]
    """The latest outcomes, for `promote`."""
    left_out: Mapping[str, int]
    """Maps a reason to the number of labelled answers that were left out for it."""
    unlabelled: int
    """Number of answers that were drawn for a label and have none yet."""
    rates: Mapping[str, float]
    """Maps a model to its weighted share of right answers, among `learned` and `held_back`."""
    versions: Mapping[str, str]
    """Maps a model to the version that answered last; empty without a tag for versions."""
    note: str
    """Assumptions of the weights besides the draw, in words; empty if there are none."""


def outcomes_of_log(
    log: ScoreLog,
    *,
    model: str | None = None,
    since: float | None = None,
    version_tag: str = "",
    hold_back: float = 0.0,
) -> LoggedOutcomes:
    """Returns an outcome for each labelled answer whose label may count, with the probability of its draw.

    If nearly all answers of a model are labelled, each has probability 1. Otherwise only drawn answers count, if any
    was drawn. If none was, all labelled answers count alike. Raises `RecordError` if no outcome is left.

    Args:
        log: the score log.
        model: model that answered; by default any.
        since: earliest time of the answers, in seconds since 1970.
        version_tag: tag that holds the version of the model. Only answers of the version that answered last count.
        hold_back: share of the outcomes, the latest, that is not to be trained on; in [0, 1).
    """
    if not 0 <= hold_back < 1:
        raise RecordError(f"hold_back is {hold_back:g}; expected a share in [0, 1)")
    columns = log.columns(model=model, since=since, ids=True)
    models = columns.model.astype(np.str_)
    is_labelled, is_drawn = np.isfinite(columns.label), np.isfinite(columns.propensity)
    ids_with_judgement = {label.request_id for label in log.current_labels()}
    has_judgement = np.array([name in ids_with_judgement for name in columns.request_id.tolist()], dtype=np.bool_)
    # The version of each model, and the probability with which its answers were drawn.
    versions, is_of_version = (
        _newest_versions(columns, columns.tag(version_tag)) if version_tag else ({}, is_labelled | True)
    )
    propensity = columns.propensity.copy()
    for name in np.unique(models).tolist():
        rows = (models == name) & is_of_version
        if is_census(int((rows & is_labelled).sum()), int(rows.sum())):
            propensity[rows] = 1.0
    some_drawn = bool(np.isfinite(columns.propensity[is_labelled & is_of_version]).any())
    # An outcome for each label that counts.
    left_out, outcomes = Counter[str](), list[QuestionOutcomes]()
    judged_rows = np.flatnonzero(has_judgement)
    request_ids = columns.request_id[judged_rows].tolist()
    for row, request_id, entry in zip(judged_rows.tolist(), request_ids, log.entries_named(request_ids), strict=True):
        label_propensity = float(propensity[row])
        question = last_message((entry.question if entry else None) or "")
        reasons = {
            UNSURE: not is_labelled[row],
            NO_MODEL: not models[row],
            OLD_VERSION: not is_of_version[row],
            NOT_DRAWN: some_drawn and not np.isfinite(label_propensity),
            NO_QUESTION_TEXT: not question.strip(),
        }
        if fault := next((reason for reason, holds in reasons.items() if holds), ""):
            left_out[fault] += 1
            continue
        outcome = AgentOutcome(
            score=float(columns.label[row]),
            cost_usd=_number_or_none(columns.cost_usd[row]),
            latency_ms=None if np.isnan(columns.latency_s[row]) else 1e3 * float(columns.latency_s[row]),
            prompt_tokens=_number_or_none(columns.prompt_tokens[row]),
            completion_tokens=_number_or_none(columns.tokens[row]),
            label_propensity=_number_or_none(label_propensity),
        )
        group = hashlib.sha256(" ".join(question.lower().split()).encode()).hexdigest()[:16]
        agents = {str(models[row]): outcome}
        task, answered_at = str(columns.task[row]), float(columns.time[row])
        outcomes.append(QuestionOutcomes(request_id, group, question, task, agents, answered=answered_at))
    if not outcomes:
        why_none = "; ".join(f"{count} because {fault}" for fault, count in left_out.items()) or "none was labelled"
        raise RecordError(
            f"the log holds {len(columns)} answers of that time and model, and no outcome ({why_none}): draw answers "
            "with `metaprobe sample`, and label them (`metaprobe feedback`)"
        )
    learned_count = len(outcomes) - round(hold_back * len(outcomes))
    return LoggedOutcomes(
        learned=outcomes[:learned_count],
        held_back=outcomes[learned_count:],
        left_out=dict(left_out),
        unlabelled=int((is_drawn & ~has_judgement & is_of_version).sum()),
        rates=_rates(outcomes),
        versions={name: version for name, version in versions.items() if version},
        note=CHOSEN_BY_PEOPLE
        if any(
            agent_outcome.label_propensity is None
            for question in outcomes
            for agent_outcome in question.agents.values()
        )
        else "",
    )


def last_message(question: str) -> str:
    """Returns the text of the last message of a logged question, which is what P(success) is estimated from.

    The log holds a single user message alone, and several messages each after its role. A message that itself holds a
    blank line and a role is cut there.
    """
    last_match = _LAST_MESSAGE.fullmatch(question)
    return question if last_match is None else last_match["last"]


def _newest_versions(columns: LogColumns, version: Texts) -> tuple[dict[str, str], np.ndarray]:
    """Returns the version of each model's latest answer, and a mask (N,) of the answers of that version."""
    newest = dict(zip(columns.model.tolist(), version.tolist(), strict=True))  # each model's latest version stays
    latest = np.array([newest[name] for name in columns.model.tolist()], dtype=object)
    return newest, np.asarray(version == latest, dtype=np.bool_)


def _rates(outcomes: Sequence[QuestionOutcomes]) -> dict[str, float]:
    """Returns the weighted share of right answers of each model."""
    right, weights = defaultdict[str, float](float), defaultdict[str, float](float)
    for question in outcomes:
        for name, outcome in question.agents.items():
            weight = 1 / (outcome.label_propensity or 1.0)
            right[name] += weight * (outcome.score or 0.0)
            weights[name] += weight
    return {name: right[name] / weights[name] for name in sorted(weights)}


def _number_or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
