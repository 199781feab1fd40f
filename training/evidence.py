"""Labelled answers of run stores and files as rows, with the features and hidden states that methods learn from."""

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Generator, Training
from metaprobe.checkpoints.flagging import AGREEMENT, ENDED
from metaprobe.eval.answer_table import AnswerTable, answer_table, answers_in_words
from metaprobe.eval.audits_of_data import labels_by_source
from metaprobe.probes.decision_predictor import decision_columns, decision_signals, question_of
from metaprobe.probes.features import DECIDED, features, schema
from metaprobe.probes.training_runs import SEPARATOR
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.store import RunStore, fingerprint
from metaprobe.records.types import Call, DecisionAnswer, Run
from metaprobe.routing.policy import GOOD, Action
from metaprobe.training.agreement import SAMPLES, AgreementPairs, agreement_pairs, with_agreement_labels
from metaprobe.training.ended_labels import with_ended_labels
from metaprobe.training.export import EVALUATED_POINT, models_in_words
from metaprobe.training.folds import join_table
from metaprobe.training.ladder import WHOLE, LadderColumns, LadderRows, decided_columns
from metaprobe.training.stored_runs import load_runs
from metaprobe.training.stored_states import ANY_STATES, ChosenRows, States, StatesRequest, load_states

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class DecisionColumns:
    """Numbers that decision models gave about n answers, in d columns."""

    names: tuple[str, ...]
    """Name of each of the d columns."""
    values: Scores
    """Numbers of the decisions (n, d); NaN if a number is not known."""
    judges: tuple[str, ...]
    """Models that made the decisions."""

    def rows(self, rows: NDArray[np.integer]) -> "DecisionColumns":
        """Returns the columns of these answers, in this order."""
        return replace(self, values=self.values[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Labelled answers with everything that the methods may read. Each answer has one row."""

    table: AnswerTable
    features: NDArray[np.float32]
    """Features (n, d) of the schema that `schema` names."""
    feature_names: tuple[str, ...]
    schema: str
    states: States | None = None
    """Hidden states; row i belongs to row i of the table."""
    generator: Generator | None = None
    """Models that answered; None if one of them has no name."""
    fingerprint: str = ""
    """SHA-256 of the runs, as `records.store.fingerprint` computes it."""
    labels_by_source: Mapping[str, Scores] = field(default_factory=dict)
    """Maps a source of labels to its labels (n,); NaN for an answer without a label of this source."""
    without_hidden: int = 0
    """Number of answers whose hidden states are not stored. The probes are left out unless it is 0."""
    states_refused: str = ""
    """Why stored hidden states are left out; empty if they are used."""
    reader: str = ""
    """Model that read the states (`NAME@REVISION`); empty if it is the model that answered."""
    logprobs_reader: str = ""
    """Model that gave the log-probabilities (`NAME@REVISION`); empty if it is the model that answered."""
    regrouped: str = ""
    """Which groups were joined because their questions or answers repeat, in words; empty for none."""
    evaluated: Mapping[str, float] = field(default_factory=dict)
    """Maps the id of a call to a verifier's evaluation of its answer, in [0, 1] (`evaluations_of`)."""
    decisions: DecisionColumns | None = None
    """Numbers that decision models gave about the answers; None if there are none."""
    without_logprobs: int = 0
    """Number of labelled answers that are left out because they hold no log-probabilities."""
    read: LadderColumns = WHOLE
    """How the ladder of the quality predictor reads the features."""
    without_decisions: str = ""
    """Which questions and answers were left out because decisions are missing, in words; empty for none."""
    compared: str = ""
    """Which answers were compared with each other, in words, if the label is `agreement`; else empty. With this label
    an answer has one row for each other answer that it was compared with.
    """
    token_limit: int = 0
    """The most tokens that each answer could have, if the label is `ended`; else 0."""
    ends: str = ""
    """How many answers ended or were cut, and which were left out, in words, if the label is `ended`; else empty."""

    def sample(self, y: NDArray[np.int64] | None = None) -> LadderRows:
        """Returns the answers in the form on which a ladder is fitted, with other labels y (n,) if they are given."""
        table, names = self.table, self.feature_names
        return LadderRows(self.features, table.y if y is None else y, table.groups, runs_of(table), names, self.read)

    def origin(self, seed: int, command: str) -> dict[str, Any]:
        """Returns the fields of an `Export` about the training data."""
        groups = len(set(self.table.groups.tolist()))
        training = Training(self.fingerprint, len(self.table), groups, seed, command, self.regrouped)
        return {"generator": self.generator, "training": training}


SCHEMA = "full+terms"
"""Schema of the features that are computed for every method."""


LABEL_LEVELS: dict[str, tuple[int, int]] = {"instruction": (1, 3), "justification": (1, 3), "evidence": (1, 3)}
"""Maps a head with an ordinal label to the lowest and highest level."""
CRITICAL, QUALITY = "critical", "quality"
INVERTED = (CRITICAL,)
"""Heads whose label 1 means a bad answer."""
SCALES: dict[str, tuple[int, int]] = {**LABEL_LEVELS, QUALITY: (0, 9)}
"""Maps each head that is not a probability to its lowest and highest value."""


def load_evidence(
    stores: Sequence[str | Path],
    *,
    target: str = "correct",
    stage: str | None = None,
    agent: str | None = None,
    hidden: bool = True,
    request: StatesRequest | None = None,
    bare: bool = False,
    same: str | None = None,
    token_limit: int | None = None,
) -> Evidence:
    """Returns the labelled answers of run stores and of files of lines (`load_runs`) with features.

    Hidden states are included if all answers have stored ones.

    Groups that ask the same question become one group (`training.folds`), before anything is split.

    Args:
        stores: run stores, or files of lines.
        target: name of the label.
        stage: only calls of this stage.
        agent: only calls of this agent.
        hidden: whether hidden states are loaded.
        request: hidden states that a probe asks for. States that do not fit together (of several models, say) are then
            refused. Without a request such states are left out with a warning.
        bare: whether labelled answers are returned without features if at most half have log-probabilities.
        same: the reading by which answers agree (`agreement_pairs`), for the target `agreement` alone.
        token_limit: the token limit at which answers are cut, for the target `ended` alone (`with_ended_labels`).

    Raises `RecordError` if no answer is labelled, or if log-probabilities were recorded in different modes; also raises
    the errors of `load_states` and of the store.
    """
    # The runs, with labels that are computed for the targets `agreement` and `ended`.
    opened = [RunStore(store) for store in stores if not Path(store).is_file()]
    runs = load_runs(stores)
    pairs = agreement_pairs(runs, stage=stage, agent=agent, same=same) if target == AGREEMENT else None
    if pairs is not None:
        runs = with_agreement_labels(runs, pairs)
    ends = None
    if target == ENDED:
        ends = with_ended_labels(runs, stage=stage, agent=agent, token_limit=token_limit)
        runs = ends.runs
    table = answer_table(runs, target=target, stage=stage, agent=agent, bare=bare)
    chosen_calls = [
        (run, call)
        for run in runs
        for call in run.calls
        if stage in (None, call.stage) and agent in (None, call.agent) and answers_in_words(call)
    ]
    labelled_count = sum(run.label(target, call.id) is not None for run, call in chosen_calls)
    # The hidden states, if they are asked for and stored.
    states, without_states, refused = None, len(table), ""
    if hidden and opened:
        ids = table.call_ids.tolist()
        try:
            models = {call.model for call in _calls_with_ids(runs, ids)}
            states, without_states = load_states(opened, ids, request=request or ANY_STATES, models=models)
        except StoreMismatch as error:
            if request is not None:
                raise
            refused = str(error)
            warnings.warn(f"probes are left out: {error}", stacklevel=2)
    evidence = replace(
        evidence_of(runs, {target: table})[target],
        states=states,
        without_hidden=without_states,
        states_refused=refused,
        reader="" if states is None else states.model,
        without_logprobs=labelled_count - len(table),
    )
    if ends is not None:
        return replace(evidence, token_limit=ends.token_limit, ends=ends.note)
    return evidence if pairs is None else paired(evidence, pairs)


def paired(evidence: Evidence, pairs: AgreementPairs) -> Evidence:
    """Returns the evidence with a row for each pair of answers to one question, labelled by whether both agree.

    `evidence` has one row for each answer. Raises `RecordError` where no answer of a pair is among them.
    """
    rows, same = pairs.rows_among(evidence.table.call_ids.tolist())
    if not len(rows):
        raise RecordError(
            "no answer that can be compared with another one to its question is among those that are read"
        )
    states = evidence.states
    return replace(
        evidence,
        table=replace(evidence.table.rows(rows), y=same),
        features=evidence.features[rows],
        states=None if states is None else ChosenRows(states, rows),
        decisions=None if evidence.decisions is None else evidence.decisions.rows(rows),
        labels_by_source={SAMPLES: same.astype(np.float64)},
        compared=pairs.note,
    )


def evidence_of(runs: Sequence[Run], tables: Mapping[str, AnswerTable]) -> dict[str, Evidence]:
    """Maps each target to the evidence of its table, without hidden states. Features of an answer are computed once.

    Groups that ask the same question become one group. Raises `RecordError` if log-probabilities were recorded in
    different modes, or come from several reading models.
    """
    # The features of every answer in any of the tables.
    logprobs = {c: s for t in tables.values() for c, s in zip(t.call_ids.tolist(), t.logprobs, strict=True)}
    row_of_call = {call_id: i for i, call_id in enumerate(logprobs)}
    feature_schema = schema(SCHEMA)
    measured = all(table.measured for table in tables.values())
    X = (
        features(feature_schema, list(logprobs.values()))
        if measured
        else np.empty((len(logprobs), 0), dtype=np.float32)
    )
    # Facts that the runs hold about these answers: model, reader of the log-probabilities, decisions.
    calls = _calls_with_ids(runs, row_of_call)
    generator, data_fingerprint, evaluated = generator_of(calls), fingerprint(runs), evaluations_of(runs)
    readers = sorted({call.reader for call in calls})
    if len(readers) > 1:
        reader_names = ", ".join(reader or "the answering model itself" for reader in readers)
        raise RecordError(
            f"log-probabilities of different readers ({reader_names}) cannot be mixed; expected those of one: choose "
            "the calls by stage or agent, or read all of them with `metaprobe extract RUNS --logprobs MODEL --out "
            "RUNS2`"
        )
    decisions_of_call: dict[str, list[DecisionAnswer]] = {}
    for run in runs:
        for answer in run.decision_answers:
            decisions_of_call.setdefault(answer.call_id, []).append(answer)
    # Each target's evidence: its rows of the features, with its own labels.
    by_target = {}
    for target, labelled in tables.items():
        table, regrouped = join_table(labelled)
        ids = table.call_ids.tolist()
        by_target[target] = Evidence(
            table=table,
            features=X[[row_of_call[call_id] for call_id in ids]],
            feature_names=feature_schema.names if measured else (),
            schema=feature_schema.name,
            without_hidden=len(table),
            generator=generator,
            logprobs_reader="".join(readers),
            fingerprint=data_fingerprint,
            labels_by_source=labels_by_source(runs, ids, target),
            regrouped=regrouped,
            evaluated=evaluated,
            decisions=_decisions_about([decisions_of_call.get(i, []) for i in ids]) if decisions_of_call else None,
        )
    return by_target


def _decisions_about(judged: Sequence[Sequence[DecisionAnswer]]) -> DecisionColumns | None:
    """Returns the columns of the decisions about n answers; None if there are no columns.

    `judged`: the decisions about each answer.
    """
    signals = [decision_signals(answers).signals for answers in judged]
    answered = {question_of(name) for answer_signals in signals for name in answer_signals}
    # A question that was always refused has a column without numbers.
    refused = {answer.question for answers in judged for answer in answers} - answered
    numbers = [
        {**dict.fromkeys(refused), **{name: signal.value for name, signal in answer_signals.items()}}
        for answer_signals in signals
    ]
    names, values = decision_columns(numbers)
    judges = tuple(sorted({answer.source for answers in judged for answer in answers if answer.source}))
    return DecisionColumns(names, values.astype(np.float64), judges) if names else None


MIN_ANSWERED_SHARE = 0.8
"""Least share of the labelled answers that must have the numbers of a decision question. A question with fewer is left
out.
"""


def read_decisions(evidence: Evidence, names: Sequence[str] = ()) -> Evidence:
    """Returns the evidence with decisions as its features.

    Answers that lack a number are left out, because the predictor refuses them. Raises `RecordError` if no answer is
    left.

    Args:
        evidence: the evidence.
        names: columns to use; by default those of every question that was answered often enough.
    """
    if evidence.decisions is None:
        raise RecordError(
            "the labelled answers hold no decisions: ask a decision model (`metaprobe judge RUNS --questions FILE`), "
            "or import lines with decisions"
        )
    # The columns to use.
    X, column_names = evidence.decisions.values, evidence.decisions.names
    known_share_of_column = {
        name: float(np.isfinite(X[:, column_index]).mean()) for column_index, name in enumerate(column_names)
    }
    columns_of_question: dict[str, list[str]] = {}
    for name in column_names:
        columns_of_question.setdefault(question_of(name), []).append(name)
    kept_questions = [
        q
        for q, columns in columns_of_question.items()
        if min(known_share_of_column[c] for c in columns) >= MIN_ANSWERED_SHARE
    ]
    used_columns = tuple(names) or tuple(name for name in column_names if question_of(name) in kept_questions)
    if lacking := [name for name in used_columns if name not in known_share_of_column]:
        raise RecordError(f"the labelled answers hold no {', '.join(lacking)}, which the checkpoint reads")
    # The answers that have all these numbers, and notes on what is left out.
    columns = X[:, [column_names.index(name) for name in used_columns]]
    rows = np.flatnonzero(np.isfinite(columns).all(axis=1)) if used_columns else np.arange(0)
    rare_questions = () if names else [q for q in columns_of_question if q not in kept_questions]
    least_share = {
        question: min(known_share_of_column[c] for c in columns_of_question[question]) for question in rare_questions
    }
    notes = [
        f"question {question} is left out: its numbers are known of {known_share:.0%} of the labelled answers, and "
        f"{MIN_ANSWERED_SHARE:.0%} are needed"
        for question, known_share in least_share.items()
    ]
    if not len(rows):
        raise RecordError(f"no labelled answer holds all decisions that are read: {'; '.join(notes)}")
    if lost_count := len(X) - len(rows):
        notes.append(
            f"{lost_count} of {len(X)} labelled answers are left out: they lack {_question_names(used_columns)}"
        )
    return replace(
        evidence,
        table=evidence.table.rows(rows),
        features=columns[rows].astype(np.float32),
        feature_names=used_columns,
        schema=DECIDED,
        decisions=evidence.decisions.rows(rows),
        labels_by_source={source: values[rows] for source, values in evidence.labels_by_source.items()},
        read=decided_columns(used_columns, columns[rows].astype(np.float32)),
        without_decisions="; ".join(notes),
    )


def read_decisions_alike(gathered: Mapping[str, Evidence]) -> dict[str, Evidence]:
    """Returns `read_decisions` of each head's evidence, with the columns that all heads have, because they share an
    input.

    Raises `RecordError` if the heads have no column in common.
    """
    evidence_of_target = {target: read_decisions(evidence) for target, evidence in gathered.items()}
    names_of_heads = [evidence.feature_names for evidence in evidence_of_target.values()]
    if not (shared := [name for name in names_of_heads[0] if all(name in names for names in names_of_heads)]):
        raise RecordError(
            f"no question is answered for all of {', '.join(evidence_of_target)}: train each of them by itself"
        )
    for target, evidence in evidence_of_target.items():
        if lost := [name for name in evidence.feature_names if name not in shared]:
            note = f"question {_question_names(lost)} is left out: another head has too few answers to it"
            alike = read_decisions(gathered[target], shared)
            notes = filter(None, (note, alike.without_decisions))
            evidence_of_target[target] = replace(alike, without_decisions="; ".join(notes))
    return evidence_of_target


def _question_names(columns: Sequence[str]) -> str:
    return " or ".join(dict.fromkeys(map(question_of, columns)))


def _calls_with_ids(runs: Sequence[Run], ids: Collection[str]) -> list[Call]:
    wanted = set(ids)
    return [call for run in runs for call in run.calls if call.id in wanted]


def origin_of_states(evidence: Evidence) -> list[str]:
    """Returns the card's lines about left-out answers and the model that read the states; usually none."""
    lines = []
    if evidence.reader:
        answered = models_in_words(evidence.generator)
        lines.append(f"The states are those of {evidence.reader}, which read what {answered} said")
    if without_count := evidence.without_logprobs:
        lines.append(
            f"{without_count} of {len(evidence.table) + without_count} labelled answers were left out, for they hold "
            "no log-probabilities to compare a probe with"
        )
    return lines


def generator_of(calls: Sequence[Call]) -> Generator | None:
    """Returns the model, or the models, that gave all answers; None if one of the models has no name."""
    modes = {call.logprobs_mode for call in calls}
    if len(modes) > 1:
        raise RecordError(
            f"log-probabilities of different modes ({', '.join(sorted(modes))}) cannot be mixed: raw ones are before "
            f"temperature, processed ones after; train on one kind"
        )
    names = sorted({call.model for call in calls})
    if not all(names) or not names:
        return None
    kinds = {(call.model_revision, call.model_dtype) for call in calls}
    revision, dtype = kinds.pop() if len(kinds) == 1 and len(names) == 1 else ("", "")
    return Generator(names[0], revision, dtype, logprobs_mode=modes.pop(), others=tuple(names[1:]))


def invert(evidence: Evidence) -> Evidence:
    """Returns the evidence with inverted labels: 1 if there is no critical failure."""
    table = replace(evidence.table, y=1 - evidence.table.y)
    sources = {source: 1 - labels for source, labels in evidence.labels_by_source.items()}
    return replace(evidence, table=table, labels_by_source=sources)


def evaluations_of(runs: Iterable[Run]) -> dict[str, float]:
    """Maps a call id to the answer's evaluation in [0, 1], which a policy read at the point `iterate`.

    Only evaluations that models stated are returned. Answers that a checkpoint scored, and answers whose evaluation
    could not be read, are left out.
    """
    evaluations: dict[str, float] = {}
    for run in runs:
        answers = {call.round: call.id for call in run.calls if call.stage == "answer"}
        for number, decision in enumerate(d for d in run.decisions if d.point == EVALUATED_POINT):
            call_id = answers.get(number)
            if call_id is None or run.label("signal:quality", call_id) is not None:
                continue
            # The papers' rules store the evaluation and its threshold as scores; a learned policy stores others.
            if decision.scores.get(Action.AGAIN) == GOOD and decision.scores.get(Action.STOP, -1.0) >= 0:
                evaluations[call_id] = decision.scores[Action.STOP]
    return evaluations


def runs_of(table: AnswerTable) -> NDArray[np.str_]:
    """Returns the run (n,) of each answer by name: its model, task and way of asking."""
    return np.array([SEPARATOR.join(run) for run in zip(table.models, table.tasks, table.variants, strict=True)])
