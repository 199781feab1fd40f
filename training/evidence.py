"""Labelled answers of run stores and files, with what methods learn from.

That is features and hidden states (`load_evidence`), or the texts alone (`load_texts`).
"""

import hashlib
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Generator, Training
from metaprobe.checkpoints.flagging import AGREEMENT
from metaprobe.eval.audits_of_data import labels_by_source
from metaprobe.eval.table import AnswerTable, answer_table, answers_in_words
from metaprobe.probes.adapter import prompt_of
from metaprobe.probes.contract import SEPARATOR
from metaprobe.probes.decisions import decision_columns, decision_signals, question_of
from metaprobe.probes.features import DECIDED, features, schema
from metaprobe.records.bad_lines import at_line, reading
from metaprobe.records.errors import ImportFileError, NoLogprobs, RecordError, StoreMismatch, of_kind
from metaprobe.records.importer import LINES, read_log
from metaprobe.records.logs.sample import LogOptions
from metaprobe.records.store import RunStore, fingerprint
from metaprobe.records.types import Call, DecisionAnswer, Run
from metaprobe.routing.policy import GOOD, Action
from metaprobe.training.agreement import SAMPLES, AgreementPairs, agreement_pairs, with_agreement_labels
from metaprobe.training.checkpoint import POINT, models_in_words
from metaprobe.training.folds import join_table
from metaprobe.training.ladder import WHOLE, LadderColumns, LadderRows, decided_columns
from metaprobe.training.states import ANYTHING, ChosenRows, States, Wanted, load_states

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Everything that the methods may look at, row by row."""

    table: AnswerTable
    features: NDArray[np.float32]
    """(n, d) of the schema named below."""
    feature_names: tuple[str, ...]
    schema: str
    states: States | None = None
    """Hidden states; row i belongs to row i of the table."""
    generator: Generator | None = None
    """Models that answered; None where one of them is not named."""
    fingerprint: str = ""
    """SHA-256 of the runs, as `records.store.fingerprint` computes it."""
    labels_by_source: Mapping[str, Scores] = field(default_factory=dict)
    """Source -> its labels (n,), NaN where it gave none."""
    without_hidden: int = 0
    """Answers whose hidden states are not stored; the probes are left out unless it is 0."""
    states_refused: str = ""
    """Why stored hidden states are left out; empty where they are not."""
    reader: str = ""
    """Which model read the states (`NAME@REVISION`), where it is another than the one that answered."""
    logprobs_reader: str = ""
    """Model that gave the log-probabilities (`NAME@REVISION`), where it is another than the one that answered."""
    regrouped: str = ""
    """Which groups were joined because their questions or answers repeat, in words; empty where none were."""
    evaluated: Mapping[str, float] = field(default_factory=dict)
    """Call id -> what the answer was evaluated at by a verifier, in [0, 1] (`evaluations_of`)."""
    decision_names: tuple[str, ...] = ()
    """Columns of what decision models said of the answers; empty where none said anything."""
    decisions: Scores | None = None
    """(n, d) of these columns, NaN where a number is not known."""
    without_logprobs: int = 0
    """Labelled answers that are no rows here, because they hold no log-probabilities."""
    read: LadderColumns = WHOLE
    """How the ladder of the quality predictor reads the features."""
    judges: tuple[str, ...] = ()
    """Models that made the decisions."""
    without_decisions: str = ""
    """Which questions and answers were left out because decisions are missing, in words; empty where none were."""
    compared: str = ""
    """Which answers were compared with each other, where the label is `agreement`, in words; else empty. There an
    answer has a row for each other answer that it was compared with."""

    def sample(self, y: NDArray[np.int64] | None = None) -> LadderRows:
        """Returns the answers as a ladder is fitted on them, with other labels y (n,) where these are given."""
        table, names = self.table, self.feature_names
        return LadderRows(self.features, table.y if y is None else y, table.groups, runs_of(table), names, self.read)

    def origin(self, seed: int, command: str) -> dict[str, Any]:
        """Returns the fields of an `Export` that say what was learned from."""
        groups = len(set(self.table.groups.tolist()))
        training = Training(self.fingerprint, len(self.table), groups, seed, command, self.regrouped)
        return {"generator": self.generator, "training": training}


SCHEMA = "full+terms"


LEVELS: dict[str, tuple[int, int]] = {"instruction": (1, 3), "justification": (1, 3), "evidence": (1, 3)}
"""Heads with an ordinal label, and its scale."""
CRITICAL, QUALITY = "critical", "quality"
INVERTED = (CRITICAL,)
"""Heads whose label 1 is the bad one."""
SCALES: dict[str, tuple[int, int]] = {**LEVELS, QUALITY: (0, 9)}
"""Scale of each head that is not a probability."""


def load_evidence(
    stores: Sequence[str | Path],
    *,
    target: str = "correct",
    stage: str | None = None,
    agent: str | None = None,
    hidden: bool = True,
    wanted: Wanted | None = None,
    bare: bool = False,
) -> Evidence:
    """Returns the labelled answers of run stores and of files of lines (`load_runs`) with features, and with hidden
    states, which stores keep, where all answers have them.

    With `bare`, labelled answers are returned without features where at most half have log-probabilities.

    Groups that ask the same question are one group (`training.folds`), before anything is split.

    `wanted`: which hidden states, for a probe that is asked for. Without it, states that do not fit together (of
    several models, say) are left out with a warning; with it, they are refused.

    Raises `RecordError` where no answer is labelled, where log-probabilities were recorded in different modes, what
    `load_states` raises, and the store's own errors.
    """
    opened = [RunStore(store) for store in stores if not Path(store).is_file()]
    runs = load_runs(stores)
    pairs = agreement_pairs(runs, stage=stage, agent=agent) if target == AGREEMENT else None
    if pairs is not None:
        runs = with_agreement_labels(runs, pairs)
    table = answer_table(runs, target=target, stage=stage, agent=agent, bare=bare)
    chosen = [
        (run, call)
        for run in runs
        for call in run.calls
        if stage in (None, call.stage) and agent in (None, call.agent) and answers_in_words(call)
    ]
    labelled = sum(run.label(target, call.id) is not None for run, call in chosen)
    states, without, refused = None, len(table), ""
    if hidden and opened:
        ids = table.call_ids.tolist()
        try:
            models = {call.model for call in _calls(runs, ids)}
            states, without = load_states(opened, ids, wanted=wanted or ANYTHING, models=models)
        except StoreMismatch as error:
            if wanted is not None:
                raise
            refused = str(error)
            warnings.warn(f"probes are left out: {error}", stacklevel=2)
    evidence = replace(
        evidence_of(runs, {target: table})[target],
        states=states,
        without_hidden=without,
        states_refused=refused,
        reader="" if states is None else states.model,
        without_logprobs=labelled - len(table),
    )
    return evidence if pairs is None else paired(evidence, pairs)


def paired(evidence: Evidence, pairs: AgreementPairs) -> Evidence:
    """Returns the evidence of answers to one question with a row for each pair, whose label says whether both agree.

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
        decisions=None if evidence.decisions is None else evidence.decisions[rows],
        labels_by_source={SAMPLES: same.astype(np.float64)},
        compared=pairs.note,
    )


def evidence_of(runs: Sequence[Run], tables: Mapping[str, AnswerTable]) -> dict[str, Evidence]:
    """Returns target -> evidence of its table, without hidden states. Features of an answer are computed once.

    Groups that ask the same question are one group. Raises `RecordError` where log-probabilities were recorded in
    different modes, or are of several reading models.
    """
    logprobs = {c: s for t in tables.values() for c, s in zip(t.call_ids.tolist(), t.logprobs, strict=True)}
    row = {call_id: i for i, call_id in enumerate(logprobs)}
    computed = schema(SCHEMA)
    measured = all(table.measured for table in tables.values())
    X = features(computed, list(logprobs.values())) if measured else np.empty((len(logprobs), 0), dtype=np.float32)
    calls = _calls(runs, row)
    generator, data, evaluated = generator_of(calls), fingerprint(runs), evaluations_of(runs)
    readers = sorted({call.reader for call in calls})
    if len(readers) > 1:
        named = ", ".join(reader or "the answering model itself" for reader in readers)
        raise RecordError(
            f"log-probabilities of different readers ({named}) cannot be mixed; expected those of one: choose the "
            "calls by stage or agent, or read all of them with `metaprobe extract RUNS --logprobs MODEL --out RUNS2`"
        )
    decided: dict[str, list[DecisionAnswer]] = {}
    for run in runs:
        for answer in run.decision_answers:
            decided.setdefault(answer.call_id, []).append(answer)
    by_target = {}
    for target, given in tables.items():
        table, regrouped = join_table(given)
        ids = table.call_ids.tolist()
        judged = [decided.get(i, []) for i in ids]
        signals = [decision_signals(answers).signals for answers in judged]
        answered = {question_of(name) for of in signals for name in of}
        # A question that was always refused has a column without numbers.
        refused = {answer.question for answers in judged for answer in answers} - answered
        numbers = [{**dict.fromkeys(refused), **{name: one.value for name, one in of.items()}} for of in signals]
        decision_names, decisions = decision_columns(numbers)
        by_target[target] = Evidence(
            table=table,
            features=X[[row[call_id] for call_id in ids]],
            feature_names=computed.names if measured else (),
            schema=computed.name,
            without_hidden=len(table),
            generator=generator,
            logprobs_reader="".join(readers),
            fingerprint=data,
            labels_by_source=labels_by_source(runs, ids, target),
            regrouped=regrouped,
            evaluated=evaluated,
            decision_names=decision_names,
            decisions=decisions.astype(np.float64) if decision_names else None,
            judges=tuple(sorted({answer.source for of in judged for answer in of if answer.source})),
        )
    return by_target


ANSWERED = 0.8
"""Share of the labelled answers for which a question must have its numbers to be learned from."""


def read_decisions(evidence: Evidence, names: Sequence[str] = ()) -> Evidence:
    """Returns the evidence with decisions as its features: these columns, by default those of every question that was
    answered often enough. Answers that lack a number are left out, as the predictor refuses them.

    Raises `RecordError` where nothing is left.
    """
    X, known = evidence.decisions, evidence.decision_names
    if X is None:
        raise RecordError(
            "the labelled answers hold no decisions: ask a decision model (`metaprobe judge RUNS --questions FILE`), "
            "or import lines with decisions"
        )
    share = {name: float(np.isfinite(X[:, place]).mean()) for place, name in enumerate(known)}
    asked: dict[str, list[str]] = {}
    for name in known:
        asked.setdefault(question_of(name), []).append(name)
    kept = [q for q, columns in asked.items() if min(share[c] for c in columns) >= ANSWERED]
    used = tuple(names) or tuple(name for name in known if question_of(name) in kept)
    if lacking := [name for name in used if name not in share]:
        raise RecordError(f"the labelled answers hold no {', '.join(lacking)}, which the checkpoint reads")
    columns = X[:, [known.index(name) for name in used]]
    rows = np.flatnonzero(np.isfinite(columns).all(axis=1)) if used else np.arange(0)
    notes = [
        f"question {question} is left out: its numbers are known of {min(share[c] for c in asked[question]):.0%} of "
        f"the labelled answers, and {ANSWERED:.0%} are needed"
        for question in (() if names else [q for q in asked if q not in kept])
    ]
    if not len(rows):
        raise RecordError(f"no labelled answer holds all decisions that are read: {'; '.join(notes)}")
    if lost := len(X) - len(rows):
        notes.append(f"{lost} of {len(X)} labelled answers are left out: they lack {_names(used)}")
    return replace(
        evidence,
        table=evidence.table.rows(rows),
        features=columns[rows].astype(np.float32),
        feature_names=used,
        schema=DECIDED,
        decisions=X[rows],
        labels_by_source={source: values[rows] for source, values in evidence.labels_by_source.items()},
        read=decided_columns(used, columns[rows].astype(np.float32)),
        without_decisions="; ".join(notes),
    )


def read_decisions_alike(gathered: Mapping[str, Evidence]) -> dict[str, Evidence]:
    """Returns `read_decisions` of each head's evidence, with the columns that all heads have: they share an input.

    Raises `RecordError` where there are none.
    """
    read = {target: read_decisions(evidence) for target, evidence in gathered.items()}
    own = [evidence.feature_names for evidence in read.values()]
    if not (shared := [name for name in own[0] if all(name in names for names in own)]):
        raise RecordError(f"no question is answered for all of {', '.join(read)}: train each of them by itself")
    for target, evidence in read.items():
        if lost := [name for name in evidence.feature_names if name not in shared]:
            note = f"question {_names(lost)} is left out: another head has too few answers to it"
            alike = read_decisions(gathered[target], shared)
            notes = filter(None, (note, alike.without_decisions))
            read[target] = replace(alike, without_decisions="; ".join(notes))
    return read


def _names(columns: Sequence[str]) -> str:
    return " or ".join(dict.fromkeys(map(question_of, columns)))


def _calls(runs: Sequence[Run], ids: Collection[str]) -> list[Call]:
    wanted = set(ids)
    return [call for run in runs for call in run.calls if call.id in wanted]


def origin_of_states(evidence: Evidence) -> list[str]:
    """Returns the card's lines about left-out answers and the model that read the states; usually none."""
    lines = []
    if evidence.reader:
        answered = models_in_words(evidence.generator)
        lines.append(f"The states are those of {evidence.reader}, which read what {answered} said")
    if without := evidence.without_logprobs:
        lines.append(
            f"{without} of {len(evidence.table) + without} labelled answers were left out, for they hold no "
            "log-probabilities to compare a probe with"
        )
    return lines


def generator_of(calls: Sequence[Call]) -> Generator | None:
    """The model all answers are from, or the models; None where one of them is not named."""
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


def load_runs(paths: Sequence[str | Path], *, plain: bool = False, told: bool = False) -> list[Run]:
    """Returns all runs of run stores and of files of lines. `plain`: whether lines need no log-probabilities.

    Else lines that came without are left out, with a warning that counts them, unless that was `told` before. Bad lines
    are left out, counted by reason and named, as the running command says (`records.bad_lines`).

    Raises `RecordError` where two stores hold a run of the same id, and `ImportFileError` where more than half of the
    lines of a file are bad, or none holds log-probabilities.
    """
    runs: dict[str, Run] = {}
    for path in map(Path, paths):
        if path.is_file():
            runs |= {run.id: run for run in _runs_of_lines(path, runs, plain=plain, told=told)}
            continue
        for run in RunStore(path):
            if run.id in runs:
                raise RecordError(
                    f"{', '.join(map(str, paths))} hold the id {run.id!r} more than once; expected every answer in one "
                    "of them. Lines without an id are named after their file: rename one, or give the lines ids"
                )
            runs[run.id] = run
    return list(runs.values())


def _runs_of_lines(path: Path, known: Collection[str], *, plain: bool, told: bool) -> list[Run]:
    """Returns the runs of a file of lines. A line whose id is among those `known` of other files is bad."""
    runs: list[Run] = []
    bare: list[ImportFileError] = []
    with reading(path) as bad:

        def on_bad(error: ImportFileError) -> None:
            if isinstance(error.__cause__, NoLogprobs):
                bare.append(error)
                bad.sound += 1  # the line is whole, and another training can read it
            else:
                bad.leave_out(error)

        for line in read_log(path, LINES, LogOptions(plain=plain, on_error=on_bad)):
            if line.run.id in known:
                told_twice = of_kind(
                    f"the id {line.run.id!r} is in another of the files too; expected every answer in one of them."
                    " Lines without an id are named after their file: rename one, or give the lines ids",
                    "an id that another file has",
                )
                bad.leave_out(at_line(path, line.number, told_twice, line.record))
                continue
            runs.append(line.run)
            bad.sound += 1
    if bare and not runs:
        raise bare[0]
    if bare and not told:
        warnings.warn(
            f"{len(bare)} of {len(bare) + len(runs)} lines of {path} are left out: they hold no log-probabilities "
            f"(first: line {bare[0].line})",
            stacklevel=3,
        )
    return runs


def invert(evidence: Evidence) -> Evidence:
    """Returns the evidence with the opposite label: 1 where there is no critical failure."""
    table = replace(evidence.table, y=1 - evidence.table.y)
    sources = {source: 1 - labels for source, labels in evidence.labels_by_source.items()}
    return replace(evidence, table=table, labels_by_source=sources)


def evaluations_of(runs: Iterable[Run]) -> dict[str, float]:
    """Returns what each answer was evaluated at when a policy was asked at `iterate`, by call id, in [0, 1].

    Only what models stated: an answer that a checkpoint read is left out, and one whose evaluation could not be read.
    """
    evaluations: dict[str, float] = {}
    for run in runs:
        answers = {call.round: call.id for call in run.calls if call.stage == "answer"}
        for number, decision in enumerate(d for d in run.decisions if d.point == POINT):
            call_id = answers.get(number)
            if call_id is None or run.label("signal:quality", call_id) is not None:
                continue
            # The papers' rules write down what they compared; a learned policy writes something else.
            if decision.scores.get(Action.AGAIN) == GOOD and decision.scores.get(Action.STOP, -1.0) >= 0:
                evaluations[call_id] = decision.scores[Action.STOP]
    return evaluations


def runs_of(table: AnswerTable) -> NDArray[np.str_]:
    """Returns the run (n,) of each answer by name: its model, task and way of asking."""
    return np.array([SEPARATOR.join(run) for run in zip(table.models, table.tasks, table.variants, strict=True)])


# Texts: questions, answers and grades, for what reads neither log-probabilities nor states.

MOST_LEVELS = 10
"""Different labels up to which a target is taken for levels of a rubric."""
FEW = 10
"""Groups on either side of a step between two levels, below which the step is not learned."""


@dataclass(frozen=True, slots=True, eq=False)
class TextData:
    """n labelled answers with their texts. Entry i of each field is of row i of the table."""

    evidence: Evidence
    """The table of the answers, without features. Its `y` is the label, or whether a level is above the middle."""
    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    grades: NDArray[np.float64]
    """(n,): the labels as they came."""
    steps: tuple[int, ...] = ()
    """Levels k for which grade >= k can be learned; empty where labels are 0 and 1."""

    @property
    def table(self) -> AnswerTable:
        return self.evidence.table

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of everything that training depends on."""
        rows = zip(self.table.call_ids, self.table.groups, self.table.y, self.prompts, self.answers, strict=True)
        return hashlib.sha256(repr([(str(c), str(g), int(y), p, a) for c, g, y, p, a in rows]).encode()).hexdigest()


def load_texts(
    data: Sequence[str | Path], *, target: str = "correct", stage: str | None = None, agent: str | None = None
) -> TextData:
    """Returns every labelled answer with its texts, of run stores and of files of lines.

    Answers without a text of their own or of a user message are left out, with a warning.

    Raises `RecordError` where no answer is labelled, where labels are neither 0 and 1 nor whole levels, and where more
    than half have no text of a user message, as in a store that was kept without texts; the store's own errors; and
    `ImportFileError` for a line that is none.
    """
    runs = load_runs(data, plain=True)
    grades = {label.call_id: label.value for run in runs for label in run.labels if label.name == target}
    # A table holds labels of 0 and 1: levels are put in their place afterwards.
    present = [
        replace(run, labels=tuple(replace(one, value=1.0) if one.name == target else one for one in run.labels))
        for run in runs
    ]
    table, regrouped = join_table(answer_table(present, target=target, stage=stage, agent=agent, bare=True))
    calls = {call.id: call for run in runs for call in run.calls}
    chosen = [calls[call_id] for call_id in table.call_ids.tolist()]
    told = np.array([bool(call.text.strip()) for call in chosen])
    bare = [call.id for call in chosen if prompt_of(call.messages) is None]
    asked = ~np.isin(table.call_ids, bare)
    if 2 * len(bare) > len(chosen) or not (told & asked).any():
        raise RecordError(
            f"{len(bare)} of {len(chosen)} answers have no text of a user message, such as {bare[:3]}, and "
            f"{(~told).sum()} no text of their own; texts are read here: collect without --no-text"
        )
    for lacks, of in ((~told, "text"), (~asked, "text of a user message")):
        if lacks.any():
            warnings.warn(f"{lacks.sum()} labelled answers are left out: they have no {of}", stacklevel=2)
    table = table.rows(told & asked)
    values = np.array([grades[call_id] for call_id in table.call_ids.tolist()], dtype=np.float64)
    y, steps = _cut(values, table.groups, target)
    table = replace(table, y=y)
    chosen = [calls[call_id] for call_id in table.call_ids.tolist()]
    prompts = [prompt_of(call.messages) for call in chosen]
    evidence = Evidence(
        table,
        np.empty((len(table), 0), dtype=np.float32),
        feature_names=(),
        schema="",
        generator=generator_of(chosen),
        fingerprint=fingerprint(runs),
        labels_by_source={} if steps else labels_by_source(runs, table.call_ids.tolist(), target),
        regrouped=regrouped,
    )
    return TextData(evidence, tuple(p or "" for p in prompts), tuple(call.text for call in chosen), values, steps)


def grouped_by_content(texts: TextData) -> TextData:
    """Returns the texts with their groups named by their place in the order of their questions and answers.

    Folds follow the order of the groups' names. So they are the same for the same texts, however lines, ids and groups
    are called.
    """
    table = texts.table
    rows = zip(texts.prompts, texts.answers, texts.grades.tolist(), table.groups.tolist(), strict=True)
    places: dict[str, str] = {}
    for *_, group in sorted(rows):
        places.setdefault(group, f"{len(places):09d}")
    named = np.array([places[group] for group in table.groups.tolist()])
    return replace(texts, evidence=replace(texts.evidence, table=replace(table, groups=named)))


def _cut(
    grades: NDArray[np.float64], groups: NDArray[np.str_], target: str
) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """Returns labels of 0 and 1, and the steps between levels that can be learned, none where the labels are these."""
    levels = np.unique(grades)
    if np.isin(levels, (0, 1)).all():
        return grades.astype(np.int64), ()
    if (levels != np.rint(levels)).any() or len(levels) > MOST_LEVELS:
        raise RecordError(
            f"label {target} has {len(levels)} values from {levels[0]:g} to {levels[-1]:g}; expected 0 and 1, or at "
            f"most {MOST_LEVELS} whole levels: round it, or cut it in two"
        )
    cuts = [int(level) for level in levels[1:]]
    sides = {cut: min(len(np.unique(groups[side])) for side in (grades >= cut, grades < cut)) for cut in cuts}
    middle = max(cuts, key=lambda cut: sides[cut])
    return (grades >= middle).astype(np.int64), tuple(cut for cut in cuts if sides[cut] >= FEW) or (middle,)
