"""Checks whether a checkpoint still holds after a change: another engine, quantisation, number format or prompt.

The answers after the change are compared with the checkpoint's stored held-out figures, or, question by question, with
answers before the change. Every figure has a margin. The figure holds if its 95 % interval lies inside the margin, is
broken if the interval lies outside, and is open otherwise. So a figure does not hold merely because no difference was
found. If the true change lies at the edge of the margin, each wrong verdict occurs in at most 2.5 % of the samples.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import ContractMismatch, FlagOptions, Metric
from metaprobe.checkpoints.checkpoint import load_verified
from metaprobe.checkpoints.flagging import FLAG, USUAL_FLAGS, threshold_of
from metaprobe.checkpoints.manifest import Manifest
from metaprobe.checkpoints.rendered_table import format_interval
from metaprobe.eval.answer_table import AnswerTable, answer_table
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, statistic_interval
from metaprobe.eval.metrics.ranked import StratifiedAuroc, auroc
from metaprobe.probes.blend import BlendPredictor
from metaprobe.probes.hidden import HiddenProbe
from metaprobe.probes.quality import MAIN_HEADS, QualityPredictor
from metaprobe.probes.score_lines import StoredStates, predict_of
from metaprobe.probes.training_runs import SEPARATOR, name_of_run
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore, fingerprint
from metaprobe.records.types import Call, Run
from metaprobe.training.calibrators import mean_gap
from metaprobe.training.folds import join_table
from metaprobe.training.stored_runs import load_runs
from metaprobe.training.stored_states import StatesRequest, load_states
from metaprobe.training.thresholds import share_of

Status = Literal["PASS", "THRESHOLD STALE", "SCORER DEGRADED", "INCONCLUSIVE"]
ClaimStatus = Literal["holds", "broken", "open"]
CheckedFigure = Literal["order", "share flagged", "risk", "level"]
"""`order`: AUROC. `risk`: share of wrong answers among those not flagged. `level`: mean score less share right."""
CheckedPredictor = QualityPredictor | HiddenProbe
PREDICTOR_CLASSES: dict[str, type[QualityPredictor] | type[HiddenProbe]] = {
    "quality": QualityPredictor,
    "blend": BlendPredictor,
    "hidden": HiddenProbe,
}
Floats = NDArray[np.float64]
Statistic = Callable[[NDArray[np.integer]], Floats]

ACCEPTED_CHANGE = 0.05
"""Largest change of AUROC, or of a share of the answers, that counts as no change."""
MIN_BOOTSTRAP_GROUPS = 30
"""Fewest groups for a bootstrap interval. With fewer, the interval is too narrow."""
MIN_GROUPS_PER_LABEL = 10
"""Fewest groups with a right answer, and with a wrong answer, for a judgement of the AUROC."""
MAX_FURTHER_LABELS = 1_000_000
"""Largest number of further labels that is reported. If more would be needed, the change lies on the margin itself."""
WITHIN_RUNS_METRIC = "auroc_within_runs"
"""Name of the stored AUROC over pairs of answers of one run."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One figure before and after the change."""

    name: CheckedFigure
    before: float
    after: Interval
    change: Interval
    """Figure after the change minus the figure before it."""
    low: float
    """Lowest change that still counts as no change."""
    high: float
    verdict: ClaimStatus
    more: int | None
    """Approximate number of further labels that would decide an open figure, if the change is as estimated. None if
    the figure is not open, or no number of labels would decide it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Whether a checkpoint still holds."""

    status: Status
    criteria: tuple[Criterion, ...]
    reference: str
    """The answers or figures that were compared with, as a clause."""
    more: int | None
    """Approximate number of further labels that would decide `status`. None if it is decided, or no number of labels
    would decide it."""
    reasons: tuple[str, ...]
    """The meaning of each figure that does not hold, and what was not checked."""
    digest: str
    """Digest of the checkpoint."""


def _no_names() -> NDArray[np.str_]:
    return np.empty(0, dtype=np.str_)


@dataclass(frozen=True, slots=True, eq=False)
class CheckedAnswers:
    """n labelled answers with the checkpoint's scores."""

    y: NDArray[np.int64]
    score: Floats
    groups: NDArray[np.str_]
    runs: NDArray[np.str_] = field(default_factory=_no_names)
    """Run of each answer (n,); empty if all answers are assumed to be of one run."""
    questions: NDArray[np.str_] = field(default_factory=_no_names)
    """Name of each answer's question (n,); empty if questions are not compared."""

    @property
    def has_several_runs(self) -> bool:
        """Whether the answers are of several runs."""
        return len(np.unique(self.runs)) > 1

    def rows(self, chosen: NDArray[np.bool_]) -> "CheckedAnswers":
        """Returns the chosen answers. Their runs and questions must be known."""
        runs, questions = self.runs[chosen], self.questions[chosen]
        return CheckedAnswers(self.y[chosen], self.score[chosen], self.groups[chosen], runs, questions)


def load_reader(location: str | os.PathLike[str], *, sha256: str | None = None) -> CheckedPredictor:
    """Returns the predictor or probe in a checkpoint, by its kind."""
    kind = load_verified(location).manifest.kind
    if kind not in PREDICTOR_CLASSES:
        raise ContractMismatch(
            f"{location} is a checkpoint of kind {kind!r}; expected one of {', '.join(PREDICTOR_CLASSES)}"
        )
    return PREDICTOR_CLASSES[kind].load(location, sha256=sha256)


def labelled_answers(
    paths: Sequence[str | os.PathLike[str]],
    readers: Sequence[CheckedPredictor],
    *,
    target: str,
    stage: str | None,
    agent: str | None,
) -> tuple[AnswerTable, list[tuple[Run, Call]]]:
    """Returns the labelled answers as a table and with their runs and calls.

    Raises `RecordError` where one of the checkpoints was trained on exactly these runs.
    """
    runs = load_runs([Path(path) for path in paths])
    data_fingerprint = fingerprint(runs)
    for reader in readers:
        training = reader.checkpoint.manifest.training
        if training is not None and training.fingerprint == data_fingerprint:
            raise RecordError(f"{reader.checkpoint.path} was trained on these runs; give held-out ones")
    table = answer_table(runs, target=target, stage=stage, agent=agent)
    by_id = {call.id: (run, call) for run in runs for call in run.calls}
    return table, [by_id[call_id] for call_id in table.call_ids.tolist()]


def target_probabilities(
    reader: CheckedPredictor, target: str, answers: Sequence[tuple[Run, Call]], stores: Sequence[str | os.PathLike[str]]
) -> Floats:
    """Returns P(target) of each call, (n,).

    Args:
        reader: gives the probabilities.
        target: name of the head.
        answers: the calls, each with its run.
        stores: run stores that hold the hidden states, if a probe or a blend reads them.

    Raises `RecordError` if an answer lacks its states, or if the source of the states is not known to be sound: without
    states a blend judges differently.
    """
    manifest, calls = reader.checkpoint.manifest, [call for _, call in answers]
    heads = [output.name for output in manifest.outputs]
    if target not in heads or target in manifest.contract.get("scales", {}):
        raise ContractMismatch(f"{reader.checkpoint.path} gives no probability of {target!r}; its heads are {heads}")
    if isinstance(reader, QualityPredictor) and not isinstance(reader, BlendPredictor):
        return np.array([verdict.heads[target] for verdict in reader.predict_many(calls)])
    run_stores = [RunStore(Path(store)) for store in stores if Path(store).is_dir()]
    lacking_text = "{} of {} answers have no stored hidden states: run `metaprobe extract`"
    if isinstance(reader, BlendPredictor):
        stored_states = [StoredStates(store, reader) for store in run_stores]
        hidden = [
            next((held_states.of(call.id) for held_states in stored_states if call.id in held_states.call_ids), None)
            for call in calls
        ]
        if reader.states and (without_count := sum(held_states is None for held_states in hidden)):
            raise RecordError(lacking_text.format(without_count, len(calls)))
        for call, states_of_call in zip(calls, hidden, strict=True):
            if states_of_call is not None and (fault := reader.states_fault(states_of_call, call.model)):
                raise RecordError(f"call {call.id}: {fault}")
        calls_with_states = (
            (run, replace(call, hidden=states_of_call))
            for (run, call), states_of_call in zip(answers, hidden, strict=True)
        )
        return np.array([predict_of(reader, run, call)(call).heads[target] for run, call in calls_with_states])
    request = StatesRequest(",".join(map(str, reader.layers)), (reader.position,), reader.reader)
    states, without_count = load_states(run_stores, [call.id for call in calls], request=request)
    if states is None:
        raise RecordError(lacking_text.format(without_count, len(calls)))
    if states.model and not reader.reader:
        raise RecordError(
            f"the stored hidden states are those of {states.model}, and {reader.checkpoint.path} reads the answering "
            "model's own: run `metaprobe extract` with the model that answered"
        )
    for model in {states.model or call.model for call in calls}:
        if fault := reader.guard.source_fault(states.canaries, model):
            raise RecordError(fault)
    blocks: NDArray[Any] = np.stack([states.read(layer, reader.position) for layer in reader.layers], axis=1)
    if fault := reader.guard.states_fault(blocks.swapaxes(0, 1), reader.layers):
        raise RecordError(fault)
    return reader.probability(blocks).astype(np.float64)


def check(
    location: str | os.PathLike[str],
    after: Sequence[str | os.PathLike[str]],
    *,
    before: Sequence[str | os.PathLike[str]] = (),
    sha256: str | None = None,
    target: str | None = None,
    stage: str | None = None,
    agent: str | None = None,
    run: str | None = None,
    flags: FlagOptions = USUAL_FLAGS,
    margin: float = ACCEPTED_CHANGE,
    seed: int = 0,
) -> Check:
    """Returns whether the predictor or probe at `location` still holds for the labelled answers `after` a change.

    Args:
        location: location of the checkpoint.
        after: run stores, or files of import lines with labels, after the change.
        before: the same questions, answered before the change, which are compared question by question. Without them
            the stored held-out figures are compared.
        sha256: digest that the checkpoint must have.
        target: label that the head predicts; by default the label of the score.
        stage: only calls of this stage.
        agent: only calls of this agent.
        run: the checkpoint's run whose base rate all answers after the change have; by default the run of the same task
            and way of asking.
        flags: sets the threshold in service, if it is not the stored one. It needs `before`.
        margin: largest change that counts as no change.
        seed: seed of the bootstrap.

    Raises `RecordError` for answers that the checkpoint was trained on, and if `after` and `before` share no question.
    """
    if not margin > 0:
        raise RecordError(f"margin is {margin:g}; expected a change above 0 that is still taken for none, such as 0.05")
    if flags.flags and not before:
        raise RecordError(
            f"{next(iter(flags.flags))} is another threshold than the stored one, and only of that one the held-out "
            "figures are stored: give the same questions answered before the change (--before)"
        )
    reader = load_reader(location, sha256=sha256)
    if isinstance(reader, BlendPredictor):  # "ignore" would accept states of another model
        reader = BlendPredictor(reader.checkpoint, on_mismatch="note", **flags.flags)
    elif isinstance(reader, QualityPredictor):  # answers of another model are to be expected in a check
        reader = QualityPredictor.of(reader.checkpoint, on_mismatch="ignore", **flags.flags)
    head = target or main_head(reader)
    now, notes = _scored(reader, after, target=head, stage=stage, agent=agent, run=run)
    then = None
    if before:
        scored_before, _ = _scored(reader, before, target=head, stage=stage, agent=agent)
        now, then, left_out = _same_questions(now, scored_before)
        notes += left_out
    threshold = threshold_of(reader.checkpoint.manifest, flags) if head == main_head(reader) else None
    return check_scores(reader, now, then, target=head, threshold=threshold, margin=margin, notes=notes, seed=seed)


def check_scores(
    reader: CheckedPredictor,
    now: CheckedAnswers,
    then: CheckedAnswers | None = None,
    *,
    target: str,
    threshold: float | None,
    margin: float = ACCEPTED_CHANGE,
    notes: Sequence[str] = (),
    seed: int = 0,
) -> Check:
    """Returns whether the checkpoint holds for scored answers.

    Args:
        reader: the checkpoint's predictor or probe.
        now: answers after the change.
        then: answers before the change; None to compare with the stored figures.
        target: label that the head predicts.
        threshold: threshold in service; None for none.
        margin: largest change that counts as no change.
        notes: what was not checked.
        seed: seed of the bootstrap.
    """
    manifest, reasons = reader.checkpoint.manifest, list(notes)
    stored_auroc = _stored(manifest, target, WITHIN_RUNS_METRIC) if now.has_several_runs else None
    if then is None and stored_auroc is None:  # compare the AUROC over pairs of all answers instead
        now, stored_auroc = replace(now, runs=_no_names()), _stored(manifest, target, "auroc")
    if then is None and stored_auroc is None:
        raise RecordError(
            f"{reader.checkpoint.path} stores no held-out AUROC of {target!r} to compare with: give the same questions "
            "answered before the change (--before)"
        )
    # The figures after the change, each with its verdict.
    groups_of_both = now.groups if then is None else np.concatenate([now.groups, then.groups])
    comparison = _Comparison(now, then, cluster_weights(groups_of_both.tolist(), seed=seed), margin)
    criteria = [comparison.order(stored_auroc)]
    if threshold is None:
        reasons.append("the checkpoint stores no threshold: nothing is checked but the order and level of its scores")
    elif (shares := _stored_shares(manifest)) is None and then is None:
        reasons.append("what the stored threshold flags was never measured: nothing is checked but order and level")
    else:
        criteria += comparison.flags(threshold, shares)
    criteria.append(comparison.level())
    # The worst verdict, and the number of labels that would decide the open ones.
    by_verdict = {criterion.name: criterion.verdict for criterion in criteria}
    is_broken = "broken" in by_verdict.values()
    status: Status = (
        "SCORER DEGRADED"
        if by_verdict["order"] == "broken"
        else "THRESHOLD STALE"
        if is_broken
        else "INCONCLUSIVE"
        if "open" in by_verdict.values()
        else "PASS"
    )
    further_labels = [criterion.more for criterion in criteria if criterion.verdict == "open"]
    more = (
        None if None in further_labels else max((count for count in further_labels if count is not None), default=None)
    )
    reference = (
        f"the stored held-out figures, of {stored_auroc.n if stored_auroc else 0} answers"
        if then is None
        else f"answers of before to the same {len(np.unique(now.questions))} questions"
    )
    return Check(
        status=status,
        criteria=tuple(criteria),
        reference=reference,
        more=more,
        reasons=tuple(filter(None, (*reasons, *map(_meaning, criteria)))),
        digest=reader.checkpoint.digest,
    )


def _meaning(criterion: Criterion) -> str:
    """Returns a sentence about a figure that does not hold; empty for one that does."""
    if criterion.verdict == "holds":
        return ""
    change = format_interval(criterion.change, 3, signed=True)
    allowed = " to ".join(f"{end:+g}" for end in (criterion.low, criterion.high) if math.isfinite(end))
    figure_words = {
        "order": "AUROC, the order of right above wrong answers, changed by",
        "share flagged": "the share of answers that is flagged changed by",
        "risk": "the share of wrong answers among those not flagged changed by",
        "level": "the mean score less the share of right answers is",
    }[criterion.name]
    if criterion.verdict == "broken":
        return f"{figure_words} {change}, surely beyond {allowed}"
    labels_clause = (
        "no number of labels alone would tell"
        + ("" if criterion.name == "level" else ": give the same questions answered before the change (--before)")
        if criterion.more is None
        else f"about {criterion.more:,} more labels would tell, if the change is what it seems"
    )
    return f"{figure_words} {change}, not surely on one side of {allowed}; {labels_clause}"


class _Comparison:
    """Compares figures of the answers after a change with figures before it, or with the stored ones."""

    def __init__(
        self, now: CheckedAnswers, then: CheckedAnswers | None, weights: NDArray[np.int32], margin: float
    ) -> None:
        self.now, self.then, self.weights, self.margin = now, then, weights, margin
        self.size = len(now.y)
        groups_per_label = [len(np.unique(now.groups[now.y == label])) for label in (0, 1)]
        self.fewest = min(groups_per_label)
        self.groups = len(np.unique(now.groups))

    def order(self, stored: Metric | None) -> Criterion:
        """Compares the AUROC; if there are several runs, the AUROC within runs."""

        def statistic_of(side: CheckedAnswers) -> Statistic:
            metric = StratifiedAuroc(side.runs) if side.has_several_runs else auroc
            return lambda weight: np.asarray(metric(side.y, side.score, weight))

        return self._compare("order", statistic_of, stored, low=-self.margin, high=math.inf)

    def flags(self, threshold: float, stored: "tuple[Metric, Metric] | None") -> list[Criterion]:
        """Compares the share of flagged answers, and the share of wrong answers among the others."""

        def share(side: CheckedAnswers) -> Statistic:
            return share_of(side.score < threshold, np.ones(len(side.y), dtype=np.bool_))

        def risk(side: CheckedAnswers) -> Statistic:
            kept_share = side.score >= threshold
            return share_of(kept_share & (side.y == 0), kept_share)

        kept_share = min(float((side.score >= threshold).mean()) for side in (self.now, self.then or self.now))
        groups, margin = self.groups, self.margin
        kept_groups = max(round(kept_share * groups), 1)
        return [
            self._compare("share flagged", share, stored and stored[0], low=-margin, high=margin, group_count=groups),
            self._compare("risk", risk, stored and stored[1], low=-math.inf, high=margin, group_count=kept_groups),
        ]

    def level(self) -> Criterion:
        """Compares the mean score with the share of right answers, which needs no answers of before."""
        gap = interval(mean_gap, self.now.y, self.now.score, self.weights[:, : self.size])
        margin = self.margin
        return self._judge("level", before=0.0, after=gap, change=gap, fixed_half_width=0.0, low=-margin, high=margin)

    def _compare(
        self,
        name: CheckedFigure,
        statistic_of: Callable[[CheckedAnswers], Statistic],
        stored: Metric | None,
        *,
        low: float,
        high: float,
        group_count: int = 0,
    ) -> Criterion:
        """Returns one figure after the change, compared with the figure before it.

        For 30 groups without any change, a bootstrap alone would give an interval from 0 to 0. The interval of a share
        is therefore at least as wide as Wilson's. The interval of its change is at least as wide as Wilson's for a
        share of 0.

        Args:
            name: the figure.
            statistic_of: returns the figure's function of multiplicities for the answers of one side.
            stored: the stored figure; used if there are no answers before the change.
            low: lowest change that counts as no change.
            high: highest change that counts as no change.
            group_count: number of groups over which the figure is a share; 0 if it is no share.
        """
        n, statistic_now = self.size, statistic_of(self.now)
        after = statistic_interval(statistic_now, self.weights[:, :n])
        if group_count:
            wilson = Interval.of_share(after.estimate, group_count)
            after = replace(after, low=min(after.low, wilson.low), high=max(after.high, wilson.high))
        if self.then is None:
            assert stored is not None  # `check_scores` asks for nothing else
            # The halves of the intervals of two independent estimates add as roots of squares (MOVER; Zou and Donner
            # 2008, doi:10.1002/sim.3095).
            stored_above, stored_below = stored.high - stored.estimate, stored.estimate - stored.low
            gap = after.estimate - stored.estimate
            ends = (
                gap - math.hypot(after.estimate - after.low, stored_above),
                gap + math.hypot(after.high - after.estimate, stored_below),
            )
            change = Interval(gap, *ends, after.n, after.groups)
            return self._judge(
                name,
                before=stored.estimate,
                after=after,
                change=change,
                fixed_half_width=max(stored_above, stored_below),
                low=low,
                high=high,
            )
        statistic_then = statistic_of(self.then)
        change = statistic_interval(
            lambda weight: statistic_now(weight[:, :n]) - statistic_then(weight[:, n:]), self.weights
        )
        half_width = Interval.of_share(0.0, group_count).high if group_count else 0.0
        ends = min(change.low, change.estimate - half_width), max(change.high, change.estimate + half_width)
        before = float(statistic_then(np.ones((1, len(self.then.y)), dtype=np.int32))[0])
        change = Interval(change.estimate, *ends, n, self.groups)
        return self._judge(name, before=before, after=after, change=change, fixed_half_width=0.0, low=low, high=high)

    def _judge(
        self,
        name: CheckedFigure,
        *,
        before: float,
        after: Interval,
        change: Interval,
        fixed_half_width: float,
        low: float,
        high: float,
    ) -> Criterion:
        """Returns the figure with its verdict, and the number of further labels that would decide an open one.

        Args:
            name: the figure.
            before: value before the change.
            after: value after the change.
            change: `after` minus `before`.
            fixed_half_width: half the width of the part of the change's interval that more labels do not narrow.
            low: lowest change that counts as no change.
            high: highest change that counts as no change.
        """
        is_finite = math.isfinite(change.low + change.high)
        min_groups_per_label = MIN_GROUPS_PER_LABEL if name == "order" else 0
        needed_factor = max(MIN_BOOTSTRAP_GROUPS / self.groups, min_groups_per_label / max(self.fewest, 0.5))
        verdict: ClaimStatus = "open"
        if needed_factor <= 1 and is_finite and low < change.low and change.high < high:
            verdict = "holds"
        elif needed_factor <= 1 and is_finite and (change.high < low or change.low > high):
            verdict = "broken"
        # The factor by which labels must grow until the interval lies on one side of each end of the margin.
        is_inside = low < change.estimate < high
        deciding_ends = [
            end for end in (low, high) if math.isfinite(end) and (is_inside or abs(change.estimate - end) > 0)
        ]
        if not is_inside:  # only the end that the change has passed matters
            deciding_ends = sorted(deciding_ends, key=lambda end: abs(change.estimate - end))[:1]
        for end in deciding_ends if is_finite else ():
            half_width = change.estimate - change.low if end < change.estimate else change.high - change.estimate
            room = (change.estimate - end) ** 2 - fixed_half_width**2
            needed_factor = max(
                needed_factor, max(half_width**2 - fixed_half_width**2, 0.0) / room if room > 0 else math.inf
            )
        needed_factor = max(needed_factor, 1.0)
        more = None if needed_factor * self.size > MAX_FURTHER_LABELS else math.ceil((needed_factor - 1) * self.size)
        return Criterion(name, before, after, change, low, high, verdict, more if verdict == "open" else None)


def _stored(manifest: Manifest, target: str, name: str) -> Metric | None:
    """Returns a stored held-out figure of a head. With several heads its name begins with that of the head."""
    return manifest.metrics.get(f"{target}.{name}") or manifest.metrics.get(name)


def _stored_shares(manifest: Manifest) -> "tuple[Metric, Metric] | None":
    """Returns two shares of held-out answers by the stored threshold: flagged, and wrong among those not flagged.

    The second share is computed from the flagged shares of wrong and of right answers. Its interval is Wilson's, with
    groups counted instead of answers.
    """
    operating, training = manifest.operating, manifest.training
    if operating is None or FLAG not in manifest.thresholds:
        return None
    wrong, right = (
        (1 - share_of_label.estimate) * share_of_label.n for share_of_label in (operating.caught, operating.cost)
    )
    groups = operating.flagged.n if training is None else min(training.groups, operating.flagged.n)
    kept_groups = max(round(groups * (1 - operating.flagged.estimate)), 1)
    risk = wrong / max(wrong + right, 1e-9)
    interval_of_risk = Interval.of_share(risk, kept_groups)
    return operating.flagged, Metric(risk, interval_of_risk.low, interval_of_risk.high, round(wrong + right))


def main_head(reader: CheckedPredictor) -> str:
    """Returns the head that gives the score; the first head if none of `MAIN_HEADS` is there."""
    names = [output.name for output in reader.checkpoint.manifest.outputs]
    return next((name for name in MAIN_HEADS if name in names), names[0])


def _scored(
    reader: CheckedPredictor,
    paths: Sequence[str | os.PathLike[str]],
    *,
    target: str,
    stage: str | None,
    agent: str | None,
    run: str | None = None,
) -> tuple[CheckedAnswers, list[str]]:
    """Returns the labelled answers with the checkpoint's scores, and notes that a reader of the scores needs.

    Each score assumes the base rate that the answer's run had before the change.

    Args:
        reader: the checkpoint's predictor or probe.
        paths: run stores, or files of import lines with labels.
        target: label that the head predicts.
        stage: only calls of this stage.
        agent: only calls of this agent.
        run: the checkpoint's run whose base rate all answers have; None to find the run of each answer.
    """
    table, answers = labelled_answers(paths, (reader,), target=target, stage=stage, agent=agent)
    table, _ = join_table(table)
    questions = np.array(["/".join(columns) for columns in zip(table.tasks, table.items, table.variants, strict=True)])
    run_names = np.array(
        [name_of_run(*columns) for columns in zip(table.models, table.tasks, table.variants, strict=True)]
    )
    notes = []
    if not isinstance(reader, QualityPredictor) or not reader.runs:
        scores = target_probabilities(reader, target, answers, paths)
    else:
        scores, unknown_count = np.full(len(answers), np.nan), 0
        for run_name in np.unique(run_names).tolist():
            rows = np.flatnonzero(run_names == run_name)
            known_run = run or run_before(run_name, reader.runs)
            unknown_count += 0 if known_run else len(rows)
            answers_of_run = [answers[i] for i in rows.tolist()]
            scores[rows] = target_probabilities(reader.of_run(known_run or run_name), target, answers_of_run, paths)
        if unknown_count:
            notes.append(
                f"the checkpoint knows no run of the task and way of asking of {unknown_count} answers, whose scores "
                "assume an average run: name one of its runs (--run), or adapt it"
            )
    generator, answer_modes = reader.checkpoint.manifest.generator, {call.logprobs_mode for _, call in answers}
    if generator is not None and generator.logprobs_mode not in (
        "unknown",
        *answer_modes,
    ):  # another scale of these numbers
        notes.append(
            f"the log-probabilities of these {len(table)} answers are {' and '.join(sorted(answer_modes))}, and the "
            f"checkpoint learned from {generator.logprobs_mode} ones: compare only what is of one mode"
        )
    return CheckedAnswers(table.y, scores, table.groups, run_names, questions), notes


def run_before(name: str, known_runs: Sequence[str]) -> str | None:
    """Returns the known run that a run had before its engine, model or prompt changed; None if no known run fits.

    It is the run of the same name. Without one it is the only run of the same task and way of asking, else the only run
    of the same task.
    """
    if name in known_runs:
        return name
    _, task, variant = name.split(SEPARATOR, 2)
    for ending in (f"{SEPARATOR}{task}{SEPARATOR}{variant}", f"{SEPARATOR}{task}{SEPARATOR}"):
        matching_runs = [
            known_name
            for known_name in known_runs
            if known_name.endswith(ending) or (ending.endswith(SEPARATOR) and ending in known_name)
        ]
        if len(matching_runs) == 1:
            return matching_runs[0]
    return None


def _same_questions(now: CheckedAnswers, then: CheckedAnswers) -> tuple[CheckedAnswers, CheckedAnswers, list[str]]:
    """Returns the answers to the questions that both sides hold, with equal groups, and notes on left-out answers.

    A question's name holds the way of asking, unless no name is then on both sides, as after a change of the prompt.
    """
    if not np.intersect1d(now.questions, then.questions).size:
        now, then = (
            replace(side, questions=np.array([q.rpartition("/")[0] for q in side.questions.tolist()]))
            for side in (now, then)
        )
    shared = np.intersect1d(now.questions, then.questions)
    if not shared.size:
        raise RecordError(
            f"no question was answered before and after: {now.questions[0]!r} is none of before's, such as "
            f"{then.questions[0]!r}; expected the same tasks and items on both sides"
        )
    new, old = now.rows(np.isin(now.questions, shared)), then.rows(np.isin(then.questions, shared))
    group_of_question = dict(zip(new.questions.tolist(), new.groups.tolist(), strict=True))
    old = replace(old, groups=np.array([group_of_question[q] for q in old.questions.tolist()]))
    left_counts = len(now.y) - len(new.y), len(then.y) - len(old.y)
    notes = [
        f"{left_counts[0]} answers of after and {left_counts[1]} of before are left out: the other side lacks their "
        "questions"
    ]
    return new, old, notes if any(left_counts) else []
