"""The recipe of the streaming gate: a head for each look at the first tokens, and thresholds for all looks together.

A look judges by the ladder of `metaprobe.training.ladder`: by the best free number of the first tokens, or by a step
that is shown to be better. In each fold, and for the exported model, three things are fitted. Heads are fitted on
learning rows. The surprise that makes looks comparable is fitted on learning rows, with scores by fits that did not see
the row. Calibrators and joint thresholds are fitted on calibration rows.

If the form of the question pays at enough looks, it is read too, and so are hidden states. Answers that bring the
question, or states too, then have thresholds of their own (`metaprobe.training.gate_inputs`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint
from metaprobe.checkpoints.flagging import ENDED
from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.audits import AuditInputs, AuditReport
from metaprobe.eval.compare import control_names
from metaprobe.eval.controls import REVERSED
from metaprobe.eval.gate_performance import (
    GateReport,
    HeldOutLooks,
    first_below,
    gate_lines,
    gate_report,
    interval_text,
)
from metaprobe.eval.results import Finding
from metaprobe.probes.features import COUNTS, features, schema
from metaprobe.probes.question_form import QUESTION_FORM
from metaprobe.records.errors import RecordError
from metaprobe.records.types import LOOK_POSITIONS, LOOK_STATES
from metaprobe.routing.gate import (
    BESIDE_LOGPROBS,
    GATE,
    GATE_INPUT,
    LOGPROBS_ALONE,
    QUESTION_INPUT,
    STATES_INPUT,
    TOKEN_LIMIT,
    head_name,
    threshold_name,
    words_for,
)
from metaprobe.training.calibrators import PARITY, Calibrator, calibrator_on, fit_platt, rising_calibrator
from metaprobe.training.evidence import INVERTED, Evidence, Scores, invert, load_evidence
from metaprobe.training.export import Export, GraphBuilder, write_checkpoint, writes
from metaprobe.training.folds import Roles, final_roles, outer_folds
from metaprobe.training.gate_inputs import (
    GateInputs,
    GraphInputs,
    JoinedLook,
    LookOdds,
    PartScore,
    choose_layer,
    fit_question_score,
    fit_states_score,
    forms_of,
)
from metaprobe.training.ladder import (
    ALL_TERMS,
    WITH_TREES,
    Ladder,
    LadderColumns,
    LadderRows,
    fit_ladder,
    unseen_scores,
)
from metaprobe.training.methods import USUAL_LADDER, calibrators_of, control_methods
from metaprobe.training.stored_states import StatesRequest, canaries_file
from metaprobe.training.study import crossfit, run_possible_audits
from metaprobe.training.thresholds import (
    Surprise,
    joint_statistic,
    one_a_group,
    rate_at_most,
    score_thresholds,
    too_few_groups,
)
from metaprobe.training.training_options import GateOptions, OnStep, quiet

GATE_SCHEMA = schema("prefix-50")
"""Features of all looks. A look reads only those of the tokens that it has seen."""
LEARNING_ROLES = ("train", "selection", "calibration")
"""Roles whose rows a head learns from: for weights, choices or calibration."""
REFERENCE_FOLDS = 3
"""Number of parts of the learning rows. Each part is scored by steps that were fitted on the other parts."""
MIN_LOOK_ANSWERS = 5
"""Fewest good answers, and fewest bad ones, in each role for fitting a look."""
ROLE_PARTS = 5
"""Number of parts into which the groups are divided between the roles. The smallest role gets one part."""
MIN_PAYING_SHARE = 0.5
"""Least share of the looks at which the form of the question must pay, and the hidden states. At one look of six a form
that says nothing pays by chance in a third of the trainings.
"""
AUDIT_FOLDS = 2
"""Number of outer folds of the refits on shuffled labels. Their scores must be held out, but need not be good."""
GATE_METHOD = "streaming gate"
STEP_WORDS = {
    "mean": "the mean log-probability",
    "min": "the lowest log-probability",
    ALL_TERMS: "the lowest and the means at all looks so far",
    WITH_TREES: "LightGBM on statistics of the log-probabilities",
}
"""Maps a step of a look's ladder to its name in words."""
ALPHAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
"""False-alarm rates for which thresholds are stored, as far as there are enough calibration groups."""

Features = NDArray[np.float32]
Thresholds = Mapping[float, Mapping[int, float]]
"""Maps alpha to a mapping from a look to the P(good) below which an answer is stopped."""


def columns_at(look: int) -> LadderColumns:
    """Returns the columns that the linear part reads at a look: mean and minimum of the first tokens, and earlier
    means.

    All answers have the same length at a look, so total and scaled total order answers as the mean does. The mean of
    the three lowest is not read, because a stream does not keep it.
    """
    names = [f"first{look}.mean", f"first{look}.min", *(f"first{count}.mean" for count in COUNTS if count < look)]
    rest = (0.0,) * (len(names) - 2)
    free = {"mean": (1.0, 0.0, *rest), "min": (0.0, 1.0, *rest)}
    return LadderColumns(tuple(GATE_SCHEMA.names.index(name) for name in names), free, logprobs=True)


@dataclass(frozen=True, slots=True, eq=False)
class GateHead:
    """Judges an answer at one look of the gate."""

    scorer: Ladder
    calibrator: Calibrator
    """Maps the score to P(good). It rises strictly, so a threshold on the probability is also one on the score."""
    surprise: Surprise
    joined: Mapping[str, JoinedLook] = field(default_factory=dict)
    """Judges answers that bring more than their log-probabilities, by what they bring (`BESIDE_LOGPROBS`); without what
    is not read at this look.
    """

    def score(self, inputs: GraphInputs, beside: str = LOGPROBS_ALONE) -> Scores:
        """Returns log-odds (n,), not yet calibrated.

        Args:
            inputs: inputs of the graph, with what is named by `beside`.
            beside: what the answers bring beside their log-probabilities.
        """
        by_logprobs, judgement = self.scorer.score(inputs[GATE_INPUT]), self.judgement(beside)
        return judgement.score(by_logprobs, inputs) if isinstance(judgement, JoinedLook) else by_logprobs

    def probability(self, inputs: GraphInputs, beside: str = LOGPROBS_ALONE) -> Scores:
        """Returns P(good) (n,) from the arguments of `score`."""
        return self.judgement(beside).calibrator.probability(self.score(inputs, beside))

    def judgement(self, beside: str) -> "GateHead | JoinedLook":
        """Returns the judgement whose calibrator and surprise hold for answers that bring this.

        At a look that does not read the states, answers with states are judged as answers with their question are.
        """
        read = BESIDE_LOGPROBS[: BESIDE_LOGPROBS.index(beside) + 1]
        return next((self.joined[name] for name in reversed(read) if name in self.joined), self)

    def add_to(self, graph: GraphBuilder, output: str) -> None:
        """Adds P(good) to a graph as `output` (n, 1). Each row is judged by the inputs in which it is not NaN."""
        by_logprobs = self.scorer.add_to(graph, GATE_INPUT, len(GATE_SCHEMA.names))
        probability = self.calibrator.add_to(graph, by_logprobs, "" if self.joined else output)
        for index, joined in enumerate(self.joined.values()):
            name = output if index == len(self.joined) - 1 else ""
            probability = joined.add_to(graph, logprob_score=by_logprobs, otherwise=probability, output=name)


@dataclass(frozen=True, slots=True, eq=False)
class FittedLook:
    """A head that reads log-probabilities alone, and what may be joined with it."""

    head: GateHead
    odds: LookOdds
    parts: Mapping[str, PartScore] = field(default_factory=dict)
    """Maps the name of an input that pays at this look to its score."""

    def with_question(self, inputs: GateInputs, seed: int) -> "FittedLook":
        """Returns the look with the form of the question if the form pays."""
        if inputs.forms is None:
            return self
        odds = self.odds
        rows, counts = odds.roles.learning, inputs.forms
        form = fit_question_score(counts, odds.y, odds.groups, rows, folds=REFERENCE_FOLDS, seed=seed)
        return self._with(QUESTION_INPUT, form, seed)

    def with_states(self, inputs: GateInputs, look: int, seed: int) -> "FittedLook":
        """Returns the look with the hidden states if they pay beside the parts that are read already."""
        if inputs.states is None:
            return self
        assert inputs.layer is not None
        odds = self.odds
        probe = fit_states_score(inputs.states, inputs.layer, look, odds.y, odds.groups, odds.roles, seed=seed)
        return self._with(STATES_INPUT, probe, seed)

    def _with(self, name: str, part: PartScore | None, seed: int) -> "FittedLook":
        if part is None or not self.odds.pays(part, self.parts, seed):
            return self
        return replace(self, parts={**self.parts, name: part})

    def without(self, name: str) -> "FittedLook":
        """Returns the look without this part."""
        return replace(self, parts={part: score for part, score in self.parts.items() if part != name})

    def joined_head(self, inputs: GateInputs, look: int, seed: int) -> GateHead:
        """Returns the head with a judgement for each kind of answer whose inputs it reads."""
        names, graph_inputs = list(self.parts), inputs.at(look) if self.parts else {}
        return replace(
            self.head,
            joined={
                name: self.odds.join({part: self.parts[part] for part in names[: index + 1]}, graph_inputs, seed)
                for index, name in enumerate(names)
            },
        )


def fit_head(inputs: GateInputs, table: AnswerTable, roles: Roles, look: int, *, seed: int = 0) -> GateHead:
    """Returns the head of a look, with the inputs that pay. Raises `RecordError` if too few answers are that long.

    Args:
        inputs: what the answers bring. If they bring states, the layer must be chosen.
        table: the answers.
        roles: the answers of each role: train, selection, calibration and test.
        look: the number of tokens that the head sees.
        seed: seed of the folds.
    """
    fitted = fit_look(inputs.features, table, roles, look, seed=seed)
    return fitted.with_question(inputs, seed).with_states(inputs, look, seed).joined_head(inputs, look, seed)


def fit_look(X: Features, table: AnswerTable, roles: Roles, look: int, *, seed: int = 0) -> FittedLook:
    """Returns the head of a look that reads log-probabilities alone, fitted on answers of at least `look` tokens.

    Raises `RecordError` for too few. The ladder knows no runs, because the gate may watch a stream of any run.

    Args:
        X: features (n, d) of `GATE_SCHEMA`.
        table: the answers.
        roles: the answers of each role: train, selection, calibration and test.
        look: the number of tokens that the head sees.
        seed: seed of the folds.
    """
    # The answers that are long enough, and the features of the tokens that the look has seen.
    y, groups = table.y, table.groups
    long_roles = roles_at(table, roles, look)
    # Other columns are NaN, so trees never split on them. The graph takes all columns.
    seen_features = np.where(np.isin(GATE_SCHEMA.names, schema(f"prefix-{look}").names), X, np.float32(np.nan))
    learning_rows, calibration_rows = long_roles.learning, long_roles.calibration
    # Score, calibrator and surprise by the log-probabilities.
    sample = LadderRows(seen_features, y, groups, np.full(len(y), ""), GATE_SCHEMA.names, columns_at(look))
    ladder = fit_ladder(sample, long_roles, seed=seed)
    unseen = unseen_scores(ladder, sample, learning_rows, folds=REFERENCE_FOLDS, seed=seed)
    calibration_scores = ladder.score(X[calibration_rows])
    calibrator = rising_calibrator(
        calibration_scores, y[calibration_rows], groups[calibration_rows].tolist(), seed=seed
    )
    head = GateHead(ladder, calibrator, Surprise.fit(unseen[y[learning_rows] == 1]))
    # The log-odds that further parts are joined with.
    platt = fit_platt(unseen, y[learning_rows], rising=True)
    unseen_odds = np.full(len(y), np.nan)
    unseen_odds[learning_rows] = platt.logit(unseen)
    odds = LookOdds(platt, unseen_odds, platt.logit(calibration_scores), y, groups, long_roles)
    return FittedLook(head, odds)


def roles_at(table: AnswerTable, roles: Roles, look: int) -> Roles:
    """Returns the roles of the answers that have at least `look` tokens. Raises `RecordError` for too few of them."""
    is_long = table.tokens >= look
    long_roles = replace(
        roles,
        **{
            role: learning_rows[is_long[learning_rows]]
            for role in LEARNING_ROLES
            for learning_rows in (getattr(roles, role),)
        },
    )
    if any(
        np.bincount(table.y[getattr(long_roles, role)], minlength=2).min() < MIN_LOOK_ANSWERS for role in LEARNING_ROLES
    ):
        raise RecordError(_too_few(table.rows(roles.seen), look, ROLE_PARTS * MIN_LOOK_ANSWERS))
    return long_roles


def _too_few(table: AnswerTable, look: int, needed: int) -> str:
    """Returns an error text: how many good and bad answers are long enough for a look, and how many it needs."""
    is_long = table.tokens >= look
    bad, good = np.bincount(table.y[is_long], minlength=2)
    return (
        f"{good} good and {bad} bad answers, to questions of {len(np.unique(table.groups[is_long]))} groups, have "
        f"{look} "
        f"tokens or more; a gate needs at least {needed} good and {needed} bad ones, spread evenly over the groups"
    )


@dataclass(frozen=True, slots=True, eq=False)
class FittedGate:
    """Fitted heads by look, and the P(good) below which the gate stops, for each false-alarm rate and look."""

    heads: Mapping[int, GateHead]
    thresholds: Mapping[str, Thresholds]
    """Maps what answers bring beside their log-probabilities, as far as the gate reads it, to the thresholds for the
    rates that the calibration groups allow.
    """
    calibration_groups: int
    """Number of groups with a good calibration answer."""
    left_out: Mapping[int, str]
    """Maps a look that could not be fitted to the reason."""
    layer: int | None = None
    """The layer of the hidden states; None if the gate does not read them."""

    @property
    def alphas(self) -> tuple[float, ...]:
        """The false-alarm rates that the calibration groups allow."""
        return tuple(self.thresholds[LOGPROBS_ALONE])

    def reads(self, beside: str) -> bool:
        """Returns whether some look reads this, one of `BESIDE_LOGPROBS`."""
        return beside in self.thresholds

    def read_of(self, inputs: GateInputs) -> str:
        """Returns what the gate reads of answers that bring these inputs, one of `BESIDE_LOGPROBS`."""
        brought = BESIDE_LOGPROBS[: BESIDE_LOGPROBS.index(inputs.beside) + 1]
        return next(name for name in reversed(brought) if self.reads(name))

    def probability(self, inputs: GateInputs, tokens: NDArray[np.int64]) -> Scores:
        """Returns P(good) (n, len(COUNTS)); NaN beyond an answer's end, and at looks without a head.

        Args:
            inputs: what the answers bring.
            tokens: number of tokens of each answer (n,).
        """
        result = np.full((len(tokens), len(COUNTS)), np.nan)
        beside = self.read_of(inputs)
        read = replace(inputs.only(beside), layer=self.layer)
        for look, head in self.heads.items():
            if (rows := tokens >= look).any():
                result[rows, COUNTS.index(look)] = head.probability(read.rows(rows).at(look), beside)
        return result

    def limits(self, alpha: float, beside: str) -> Scores:
        """Returns the P(good) (len(COUNTS),) below which an answer is stopped; 0 at looks without a head.

        `beside`: what the gate reads of the answers (`read_of`). Raises `KeyError` for a rate without thresholds.
        """
        stored = self.thresholds[beside][alpha]
        return np.array([stored.get(look, 0.0) for look in COUNTS])


def fit_gate(
    inputs: GateInputs, table: AnswerTable, roles: Roles, *, alphas: Sequence[float] = (), seed: int = 0
) -> FittedGate:
    """Returns heads and thresholds. Raises `RecordError` if no look can be fitted.

    A look is left out if too few answers are long enough to fit a head or a calibrator. The form of the question is
    read if it pays at `MIN_PAYING_SHARE` of the looks or more, and so are the hidden states beside it.

    Args:
        inputs: what the answers bring.
        table: the answers.
        roles: the answers of each role: train, selection, calibration and test.
        alphas: the rates of false alarms; a rate that the calibration groups do not allow is left out.
        seed: seed of the folds and draws.
    """
    # Fit each look by the log-probabilities alone.
    looks: dict[int, FittedLook] = {}
    left_out: dict[int, str] = {}
    for look in COUNTS:
        try:
            looks[look] = fit_look(inputs.features, table, roles, look, seed=seed)
        except RecordError as error:
            left_out[look] = str(error)
    if not looks:
        raise RecordError(left_out[COUNTS[0]])
    # Add the form of the question, then the hidden states, each where it pays at enough looks.
    looks = _if_enough_pay({look: fitted.with_question(inputs, seed) for look, fitted in looks.items()}, QUESTION_INPUT)
    if inputs.states is not None:
        long_roles = {look: fitted.odds.roles for look, fitted in looks.items()}
        inputs = replace(inputs, layer=choose_layer(inputs.states, table.y, table.groups, long_roles, seed))
        looks = _if_enough_pay(
            {look: fitted.with_states(inputs, look, seed) for look, fitted in looks.items()}, STATES_INPUT
        )
    heads: dict[int, GateHead] = {}
    for look, fitted in looks.items():
        try:
            heads[look] = fitted.joined_head(inputs, look, seed)
        except RecordError as error:
            left_out[look] = str(error)
    if not heads:
        raise RecordError(left_out[COUNTS[0]])
    # Thresholds for each kind of answer, from one good calibration answer of each group.
    good = roles.calibration[table.y[roles.calibration] == 1]
    drawn_rows = one_a_group(good, table.groups, seed=seed)
    drawn, tokens = inputs.rows(drawn_rows), table.tokens[drawn_rows]
    read = [name for name in BESIDE_LOGPROBS if not name or any(name in head.joined for head in heads.values())]
    thresholds = {name: _joint_thresholds(heads, drawn.only(name), tokens, name, alphas) for name in read}
    layer = inputs.layer if STATES_INPUT in read else None
    return FittedGate(heads, thresholds, len(drawn_rows), left_out, layer)


def _if_enough_pay(looks: dict[int, FittedLook], name: str) -> dict[int, FittedLook]:
    """Returns the looks, without this part if it pays at fewer than `MIN_PAYING_SHARE` of them."""
    paying_count = sum(name in fitted.parts for fitted in looks.values())
    if paying_count >= MIN_PAYING_SHARE * len(looks):
        return looks
    return {look: fitted.without(name) for look, fitted in looks.items()}


def _joint_thresholds(
    heads: Mapping[int, GateHead],
    inputs: GateInputs,
    tokens: NDArray[np.int64],
    beside: str,
    alphas: Sequence[float],
) -> dict[float, dict[int, float]]:
    """Maps alpha and look to the P(good) below which an answer is stopped.

    The arrays belong to n good calibration answers, one of each group.

    Args:
        heads: the head of each look.
        inputs: what the answers bring.
        tokens: number of tokens of each answer (n,).
        beside: what is read of the answers, one of `BESIDE_LOGPROBS`.
        alphas: the rates of false alarms.
    """
    judgements = {look: head.judgement(beside) for look, head in heads.items()}
    surprises = {look: judgement.surprise for look, judgement in judgements.items()}
    surprise = [
        np.where(tokens >= look, surprises[look].of(head.score(inputs.at(look), beside)), np.nan)
        for look, head in heads.items()
    ]
    thresholds: dict[float, dict[int, float]] = {}
    for alpha, scores in score_thresholds(surprises, joint_statistic(surprise), alphas).items():
        thresholds[alpha] = {}
        for look, score in scores.items():  # lower by the rounding of a graph, so that ties are never stopped
            calibrator = judgements[look].calibrator
            p = float(calibrator.probability(np.array([score]))[0]) - PARITY if np.isfinite(score) else 0.0
            thresholds[alpha][look] = 1.0 if score == np.inf else max(0.0, p)
    return thresholds


def judge_gates(
    evidence: Evidence,
    inputs: GateInputs,
    *,
    alphas: Sequence[float],
    folds: int = 5,
    seed: int = 0,
    on_step: OnStep = quiet,
) -> tuple[HeldOutLooks, list[Roles]]:
    """Returns each answer's looks by the gate of its outer fold, which saw no answer of its group, and the folds'
    roles.

    A false-alarm rate is left out if a fold has too few calibration groups for it. Finished answers are judged too,
    unless the label is whether they end by themselves.

    Args:
        evidence: the labelled answers.
        inputs: what the answers bring.
        alphas: false-alarm rates.
        folds: number of outer folds.
        seed: seed of folds and fits.
        on_step: called with each step in words.
    """
    table = evidence.table
    n = len(table)
    is_ended_target = bool(evidence.token_limit)
    probability, full_probability = np.full((n, len(COUNTS)), np.nan), None if is_ended_target else np.full(n, np.nan)
    fold = np.zeros(n, np.int64)
    fired: dict[float, NDArray[np.int64]] = {alpha: np.zeros(n, np.int64) for alpha in alphas}
    splits = list(outer_folds(table.groups.tolist(), table.y, folds=folds, seed=seed))
    for fold_index, roles in enumerate(splits):
        on_step(f"fold {fold_index + 1} of {folds}")
        test, rows = roles.test, roles.calibration
        fold[test] = fold_index
        gate = fit_gate(inputs, table, roles, alphas=alphas, seed=seed)
        test_inputs = inputs.rows(test)
        probability[test] = gate.probability(test_inputs, table.tokens[test])
        for alpha in [*fired]:
            if alpha not in gate.alphas:
                del fired[alpha]
                continue
            limits = gate.limits(alpha, gate.read_of(test_inputs))
            fired[alpha][test] = first_below(probability[test], limits, COUNTS)
        if full_probability is not None:
            scores = USUAL_LADDER.fit(evidence, roles, seed=seed).score(np.arange(n))
            calibrator = calibrator_on(rows, scores, table, seed, calibrators_of(USUAL_LADDER))
            full_probability[test] = calibrator.probability(scores[test])
    return HeldOutLooks(
        table, COUNTS, probability, full_probability, fired, fold, ENDED if is_ended_target else ""
    ), splits


def at_one_look(held_out: HeldOutLooks) -> tuple[NDArray[np.int64], HeldOutLooks]:
    """Returns the rows that were judged at one look, and these answers as seen at that look, cut after its tokens.

    With several looks, the number of tokens seen would tell which short answers ended by themselves. The look is the
    one with the most answers of the rarer label; the latest of equal looks.
    """
    is_judged, table = np.isfinite(held_out.probability), held_out.table
    rarer_counts = [np.bincount(table.y[column], minlength=2).min() for column in is_judged.T]
    look_index = max(range(len(rarer_counts)), key=lambda column: (rarer_counts[column], column))
    rows, look = np.flatnonzero(is_judged[:, look_index]), held_out.looks[look_index]
    logprobs = np.empty(len(rows), dtype=object)
    logprobs[:] = [values[:look] for values in table.logprobs[rows]]
    table_at_look = replace(
        table.rows(rows), logprobs=logprobs, tokens=np.full(len(rows), look), cut=np.zeros(len(rows), dtype=bool)
    )
    probability = held_out.probability[rows, look_index : look_index + 1]
    return rows, HeldOutLooks(table_at_look, (look,), probability, None, {}, held_out.fold[rows], held_out.target)


def audit_gate(
    evidence: Evidence, inputs: GateInputs, held_out: HeldOutLooks, splits: Sequence[Roles], *, seed: int
) -> AuditReport:
    """Returns the audits of each answer's last judgement; for the target `ended`, of one look (`at_one_look`).

    Args:
        evidence: the labelled answers.
        inputs: what the answers bring.
        held_out: judgements of the gates of other folds.
        splits: roles of each fold.
        seed: seed of folds and fits.
    """
    # The answers as the gate saw them, without what came after its last look.
    labels = evidence.labels_by_source
    if held_out.target == ENDED:
        rows, held_out = at_one_look(held_out)
        evidence, inputs = replace(evidence, table=held_out.table), inputs.rows(rows)
        splits = [Roles(**{role: _indices_among(part, rows) for role, part in roles.parts.items()}) for roles in splits]
        labels = {source: values[rows] for source, values in labels.items()}
    table, no_numbers = evidence.table, np.full(len(evidence.table), np.nan)
    seen_logprobs = np.empty(len(table), dtype=object)  # the tokens that the gate has seen at its last look
    seen_logprobs[:] = [
        values[: max((look for look in COUNTS if look <= len(values)), default=len(values))]
        for values in table.logprobs
    ]
    seen = replace(table, logprobs=seen_logprobs, answers=None, stated_confidence=no_numbers, p_true=no_numbers)
    seen_evidence = replace(evidence, table=seen, features=inputs.features[:, :0], feature_names=(), states=None)
    # The controls, and a refit on other labels.
    fits = crossfit(seen_evidence, control_methods(seen_evidence), folds=len(splits), splits=splits, seed=seed)

    def refit_labels(y: NDArray[np.int64]) -> Scores:
        relabelled = replace(table, y=y)
        probability = np.full((len(y), len(COUNTS)), np.nan)
        for roles in outer_folds(table.groups.tolist(), y, folds=AUDIT_FOLDS, seed=seed):
            gate = fit_gate(inputs, relabelled, roles, seed=seed)
            probability[roles.test] = gate.probability(inputs.rows(roles.test), table.tokens[roles.test])
        return _last_judgement(probability)

    audit_inputs = AuditInputs(
        name=GATE_METHOD,
        table=seen,
        score=_last_judgement(held_out.probability),
        splits=[roles.parts for roles in splits],
        controls={name: fits[name].ranking for name in control_names(fits.methods)},
        refit_labels=refit_labels,
        labels=labels,
    )
    return run_possible_audits(audit_inputs, seed=seed)


def _indices_among(part: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the indices, ascending, of the entries of `rows` that are also in `part`."""
    return np.flatnonzero(np.isin(rows, part))


def _last_judgement(probability: Scores) -> Scores:
    """Returns the last judgement of each answer (n,). Answers that ended before the first look get the median."""
    last = np.full(len(probability), np.nan)
    for column in probability.T:
        last = np.where(np.isnan(column), last, column)
    return np.where(np.isnan(last), np.nanmedian(last), last)


@writes(GATE, "lightgbm", "sklearn", "onnxmltools")
def train_gate(stores: Sequence[str | Path], options: GateOptions) -> Checkpoint:
    """Returns the gate's checkpoint, fitted on the labelled answers of these stores; raises as `write_gate`."""
    request = StatesRequest(options.layers, LOOK_POSITIONS) if options.layers else None
    evidence = load_evidence(
        stores,
        target=options.target,
        stage=options.stage,
        agent=options.agent,
        hidden=request is not None,
        request=request,
        token_limit=options.token_limit,
    )
    if request is not None:
        _check_states(evidence)
    if options.target in INVERTED:
        evidence = invert(evidence)
    checkpoint, report = write_gate(evidence, options)
    for line in filter(None, (evidence.ends, *gate_lines(report))):
        options.on_line(line)
    return checkpoint


def write_gate(evidence: Evidence, options: GateOptions) -> tuple[Checkpoint, GateReport]:
    """Returns the gate's checkpoint, and its held-out figures.

    The options that choose stores and answers are not read here. Hidden states are tried if `options.layers` is given;
    the evidence then has those at the looks. Raises `RecordError` for a requested rate that the
    calibration groups do not allow, and if no look has enough answers.
    """
    table, target, seed, wanted_alphas = evidence.table, options.target, options.seed, tuple(options.alpha)
    # There must be enough answers for the gates of the folds, which learn from all folds but one.
    needed = math.ceil(ROLE_PARTS * MIN_LOOK_ANSWERS * options.folds / max(options.folds - 1, 1))
    if np.bincount(table.y[table.tokens >= COUNTS[0]], minlength=2).min() < needed:
        advice = "collect more answers, for good are those that end by themselves and bad those that are cut"
        raise RecordError(
            f"{_too_few(table, COUNTS[0], needed)}: {advice if evidence.token_limit else 'label more answers'}"
        )
    # Fit on all groups, and check the requested rates.
    states = evidence.states if options.layers else None
    inputs = GateInputs(features(GATE_SCHEMA, list(table.logprobs)), forms_of(table.asked), states)
    options.on_step("fit on all groups")
    roles = final_roles(table.groups.tolist(), table.y, seed=seed)
    gate = fit_gate(inputs, table, roles, alphas=wanted_alphas or ALPHAS, seed=seed)
    if refused := [alpha for alpha in wanted_alphas or ALPHAS[-1:] if alpha not in gate.alphas]:
        allowed = [alpha for alpha in ALPHAS if alpha >= 1 / (gate.calibration_groups + 1)]
        raise RecordError(
            f"{too_few_groups(refused[0], gate.calibration_groups)}. A fifth of the groups calibrate; of the usual "
            f"rates these runs allow {', '.join(f'{alpha:g}' for alpha in allowed) or 'none'}"
        )
    # Figures and audits from the folds.
    held_out, splits = judge_gates(
        evidence, inputs, alphas=gate.alphas, folds=options.folds, seed=seed, on_step=options.on_step
    )
    report = gate_report(held_out, seed=seed)
    options.on_step("audits")
    audits = audit_gate(evidence, inputs, held_out, splits, seed=seed)
    # Looks whose order is shown to be worse than that of the mean log-probability of the same tokens.
    looks_behind = [look for look in report.looks if look.gain.high < 0]
    look_gains = ", ".join(
        f"{interval_text(look.gain, '+.3f')} at {look.look}" for look in looks_behind or report.looks
    )
    order_finding = Finding(
        f"{GATE_METHOD} is nowhere behind the mean log-probability",
        not looks_behind,
        f"gain in AUROC {look_gains} tokens",
    )
    # Write the checkpoint.
    heads = {head_name(look): head for look, head in gate.heads.items()}
    metrics = {
        f"{head_name(look_result.look)}.auroc": look_result.auroc
        for look_result in report.looks
        if look_result.look in gate.heads
    }
    metrics |= {f"false_alarms@{rate.alpha:g}": rate.false_alarms for rate in report.rates}
    metrics |= {f"bad_stopped@{rate.alpha:g}": rate.bad_stopped for rate in report.rates}
    metrics |= {f"tokens_saved@{rate.alpha:g}": rate.tokens_saved for rate in report.rates}
    metrics |= {f"tokens_saved_bad@{rate.alpha:g}": rate.tokens_saved_bad for rate in report.rates}
    for rate in report.rates:
        metrics |= {f"false_alarms@{rate.alpha:g}.{task}": share for task, share in rate.by_task.items()}
    graph_inputs = _golden_inputs(gate, inputs)
    contract, extra = _contract_of_inputs(gate, inputs)
    export = Export(
        kind=GATE,
        title=f"Streaming gate: {target}",
        summary=_summary(gate, report, evidence, target),
        graph=_graph(heads, graph_inputs),
        inputs=graph_inputs,
        expected={name: _expected(head, graph_inputs) for name, head in heads.items()},
        contract={
            "schema": GATE_SCHEMA.name,
            "features": list(GATE_SCHEMA.names),
            "looks": list(gate.heads),
            "target": target,
            **({TOKEN_LIMIT: evidence.token_limit} if evidence.token_limit else {}),
            "alphas": list(gate.alphas),
            **contract,
        },
        extra=extra,
        **evidence.origin(seed, options.recorded("train_gate")),
        logprobs_reader=evidence.logprobs_reader,
        calibration=", ".join(dict.fromkeys(head.calibrator.name for head in gate.heads.values())),
        metrics=metrics,
        audits=(*audits.audits, order_finding),
        not_audited=audits.skipped,
        thresholds={
            threshold_name(alpha, look, beside): below
            for beside, by_rate in gate.thresholds.items()
            for alpha, by_look in by_rate.items()
            for look, below in by_look.items()
        },
        packages=("lightgbm", "onnxmltools", "onnx"),
    )
    return write_checkpoint(options.out, export), report


def _check_states(evidence: Evidence) -> None:
    """Raises `RecordError` for hidden states that a gate cannot read while an answer is written, or not check."""
    advice = "run `metaprobe extract RUNS --llm MODEL --position looks` with the model that answered"
    if evidence.states is None:
        raise RecordError(
            f"{evidence.without_hidden} of {len(evidence.table)} answers have no hidden states at the looks: {advice}"
        )
    if evidence.reader:
        raise RecordError(
            f"the hidden states are those of {evidence.reader}, and a stream brings those of the model that answers: "
            f"{advice}"
        )
    if evidence.states.canaries is None:
        raise RecordError(
            "the hidden states came without their source's states of the canaries, so that no source can be checked "
            f"against them: {advice}"
        )


def _golden_inputs(gate: FittedGate, inputs: GateInputs) -> dict[str, Features]:
    """Returns the inputs of golden rows. Rows take turns in what they bring of all that the gate reads.

    The states are those of the first look. A shorter answer has its own last ones there.
    """
    arrays: dict[str, Features] = {GATE_INPUT: inputs.features}
    read = [name for name in BESIDE_LOGPROBS if gate.reads(name)]
    turn = np.arange(len(inputs.features)) % len(read)
    brought = replace(inputs, layer=gate.layer).only(read[-1])
    for name, values in brought.at(next(iter(gate.heads))).items():
        if name != GATE_INPUT and gate.reads(name):
            has_it = turn >= read.index(name)
            arrays[name] = np.where(has_it[:, None], values, np.float32(np.nan)).astype(np.float32)
    return arrays


def _contract_of_inputs(gate: FittedGate, inputs: GateInputs) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Returns the contract's entries for the inputs beside the features, and the files that they need."""
    contract: dict[str, Any] = {}
    extra: dict[str, bytes] = {}
    if gate.reads(QUESTION_INPUT):
        assert inputs.forms is not None
        contract |= question_contract(inputs.forms)
    if gate.reads(STATES_INPUT):
        assert inputs.states is not None
        assert gate.layer is not None
        width = inputs.states.read(gate.layer, LOOK_POSITIONS[0]).shape[1]
        contract["states"] = {"layer": gate.layer, "width": width, "newest": LOOK_STATES}
        extra = canaries_file(inputs.states.canaries, [gate.layer])
    return contract, extra


def question_contract(forms: Features) -> dict[str, object]:
    """Returns the contract's entry for question forms (n, 5): names, least and largest values of the counts."""
    return {
        "question": {
            "counts": list(QUESTION_FORM),
            "least": [float(value) for value in forms.min(axis=0)],
            "largest": [float(value) for value in forms.max(axis=0)],
        }
    }


def _graph(heads: Mapping[str, GateHead], inputs: Mapping[str, Features]) -> bytes:
    """Returns the graph of the heads. Each input is float32 (n, d), and each head is an output (n, 1)."""
    graph = GraphBuilder()
    for name, head in heads.items():
        head.add_to(graph, name)
    return graph.model({name: values.shape[1] for name, values in inputs.items()}, list(heads))


def _expected(head: GateHead, inputs: Mapping[str, Features]) -> Scores:
    """Returns P(good) (n,); each row is judged by the inputs in which it is not NaN."""
    result = np.full(len(inputs[GATE_INPUT]), np.nan)
    for beside in BESIDE_LOGPROBS:
        if not beside or beside in inputs:
            rows = np.ones(len(result), np.bool_) if not beside else np.isfinite(inputs[beside]).all(axis=1)
            result[rows] = head.probability({name: values[rows] for name, values in inputs.items()}, beside)
    return result


def _summary(gate: FittedGate, report: GateReport, evidence: Evidence, target: str) -> str:
    """Returns the first paragraph of the card: what the gate gives, what it promises, and what was left out."""
    words, token_limit = words_for(target), evidence.token_limit
    # The features of each look.
    looks_of_step: dict[str, list[str]] = {}
    for look, head in gate.heads.items():
        unreversed = head.scorer.reached.removesuffix(REVERSED)
        looks_of_step.setdefault(f"{STEP_WORDS[unreversed]}{head.scorer.reached.removeprefix(unreversed)}", []).append(
            str(look)
        )
    judged_text = "; ".join(f"at {', '.join(looks)} by {what}" for what, looks in looks_of_step.items())
    # Looks that were left out, and rates that were not measured.
    left_out = "".join(f" No look at {look} tokens: {why}." for look, why in gate.left_out.items())
    if unmeasured := sorted({*gate.alphas} - {rate.alpha for rate in report.rates}):
        left_out += (
            f" What is kept of the rates {', '.join(f'{alpha:g}' for alpha in unmeasured)} was not measured: the folds "
            "have too few calibration groups for them."
        )
    # Conditions of the promise: all tasks together, answers with their question.
    by_task = ", ".join(
        f"at {rate.alpha:g} {rate.by_task[rate.worst_task].estimate:.0%} of those of {rate.worst_task}"
        for rate in report.rates
        if rate.worst_task
    )
    if by_task:
        by_task = (
            " It is a promise for all tasks together, in the shares they have here, and none for one of them. Of the "
            f"{words.good} of the task that it harms most are stopped: {by_task} (`false_alarms@ALPHA.TASK` has the "
            "others). For a promise of a task's own train a gate on that task alone."
        )
    with_question = ""
    if gate.reads(QUESTION_INPUT):
        with_question = (
            " Where the question is given, its form (length, count of numbers) is read beside the log-probabilities, "
            "with thresholds `stop@ALPHA/lookK+question`."
        )
    if gate.reads(STATES_INPUT):
        with_question += (
            f" Where a checked source gives hidden states, the mean of the newest {LOOK_STATES} of layer {gate.layer} "
            "is read too, with thresholds `stop@ALPHA/lookK+states`."
        )
    if with_question:
        with_question += " The figures are of answers that bring all of this."
    # The meaning of the probability.
    meaning = f"Probability that an answer will be {target}"
    if token_limit:
        meaning = (
            f"{words.probability}: probability that an answer ends before its token limit of {token_limit} cuts it"
        )
        left_out += (
            " It was learned without labels and is no probability of being right. Another token limit makes it another "
            f"question: train again. Good answers are here those that end by themselves. {evidence.ends}."
        )
    # The paragraph.
    group_count = gate.calibration_groups
    rates_text = ", ".join(f"{rate_at_most(alpha, group_count):.2g} (for {alpha:g})" for alpha in gate.alphas)
    return (
        f"{meaning}, given its first {', '.join(map(str, gate.heads))} tokens "
        f"({judged_text}; then a calibrator, for each look). An answer "
        f"below the threshold `stop@ALPHA/lookK` is stopped after K tokens: of the {words.good} at most a share "
        "ALPHA, at all looks together, on average over new groups and over the calibration data (conformal "
        f"quantile of the largest surprise over the looks; {group_count} calibration groups). With so many, the rate "
        "of "
        f"this one gate is, with a confidence of 90 %, at most {rates_text}. The promise is for answers that come as "
        "the calibration ones did, their lengths included: one that ends before a look does not have it, so that "
        f"where answers have become longer more good ones may be stopped.{with_question}{by_task}{left_out}"
    )
