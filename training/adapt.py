"""Adapts a predictor to a new model, from labelled answers of that model.

The answers come with everything that the predictor reads. `training/rescale.py` fits the base rates and the scale.
"""

import dataclasses
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metaprobe.checkpoints import (
    Checkpoint,
    FlagOptions,
    check_target,
)
from metaprobe.checkpoints.flagging import AGREEMENT, USUAL_FLAGS
from metaprobe.eval.answer_table import answer_table
from metaprobe.eval.compare import Judged, method_results
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.ranked import auroc_within
from metaprobe.probes.blend import INPUT_NAMES, STATED_INPUTS, BlendPredictor
from metaprobe.probes.decision_predictor import DecisionPredictor
from metaprobe.probes.features import TERM_NAMES, features
from metaprobe.probes.quality import ENDED_ONLY, FEATURES_INPUT, MAIN_HEADS, QualityPredictor
from metaprobe.probes.score_lines import StoredStates
from metaprobe.probes.training_runs import ITSELF, BaseRates, other_reader
from metaprobe.probes.verdict import Verdict
from metaprobe.records.bad_lines import BadFile, reason_of
from metaprobe.records.errors import InvalidResponse, RecordError, of_kind
from metaprobe.records.extras import require
from metaprobe.records.parse import parse_response
from metaprobe.records.reading import without_surrogates
from metaprobe.records.response import cut_to_answer
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Run, Statement
from metaprobe.training.base_rates import AGREEMENT_SD, INTERCEPT_SD
from metaprobe.training.calibrators import log_odds_of, mean_gap
from metaprobe.training.evidence import Evidence, evidence_of, read_decisions, runs_of
from metaprobe.training.export import NO_FLAGS
from metaprobe.training.folds import join_copies
from metaprobe.training.rescale import (
    Inputs,
    Rescaled,
    TermsBeside,
    check_rescalable,
    probability_heads,
    rescale,
    rescaled_contract,
    title_of,
    write_rescaled,
)
from metaprobe.training.stored_runs import load_runs
from metaprobe.training.study import ENOUGH_FOR_ECE, figures_within
from metaprobe.training.thresholds import (
    critical_thresholds,
    flagging_of,
)
from metaprobe.training.training_options import LEFT_OUT, NEW_ONLY, LineOptions, ReplaceOptions

NO_ORDER = (
    "answers with higher scores are not right more often here, so that the adapted scores say next to nothing: look at "
    "the labels, or train on them"
)
CORRECT = MAIN_HEADS[0]
"""Head for P(right) that a predictor of agreement gets once labels are added."""


def adapt_quality(
    checkpoint: str | Path,
    labelled: Sequence[str | Path],
    *,
    out: str | Path,
    flags: FlagOptions = USUAL_FLAGS,
    writing: ReplaceOptions = NEW_ONLY,
    lines: LineOptions = LEFT_OUT,
    stage: str | None = None,
    agent: str | None = None,
    seed: int = 0,
    command: str = "",
) -> Checkpoint:
    """Returns the checkpoint with the base rates and the scale of the labelled answers, written to `out`.

    Heads that are probabilities and have labels are adapted. Other heads stay unchanged.

    Args:
        checkpoint: the folder of a predictor or blend.
        labelled: run stores, or files of import lines with labels.
        out: the folder to write.
        flags: what the stored threshold flags.
        writing: whether a checkpoint in `out` may be replaced.
        lines: how bad lines are handled; by default they are left out and counted.
        stage: only answers of this stage; by default all labelled answers.
        agent: only answers of this agent; by default all.
        seed: the seed of folds and resamples.
        command: how the training was started, for the checkpoint's record.

    Raises `RecordError` if a head has fewer than 20 labelled answers, fewer than 3 of either kind, or too few for the
    option in `flags`.
    """
    require("onnx", "fit")
    with writing.replacing(), lines.handling():
        predictor = QualityPredictor.load(checkpoint)
        check_target(out, predictor.checkpoint.manifest.kind)
        runs = keep_labels_of(load_runs(labelled), stage, agent)
        if isinstance(predictor, BlendPredictor):
            # The labelled calls get the hidden states that their store has and the blend reads.
            stores = [StoredStates(RunStore(path), predictor) for path in map(Path, labelled) if path.is_dir()]
            labelled_ids = {label.call_id for run in runs for label in run.labels}

            def with_stored_states(call: Call) -> Call:
                states_of_call = (states.of(call.id) for states in stores) if call.id in labelled_ids else ()
                return replace(
                    call,
                    hidden=next(
                        (states_found for states_found in states_of_call if states_found is not None), call.hidden
                    ),
                )

            runs = [replace(run, calls=tuple(map(with_stored_states, run.calls))) for run in runs]
        return adapt_predictor(predictor, runs, out=out, flags=flags, seed=seed, command=command)


def keep_labels_of(runs: Sequence[Run], stage: str | None, agent: str | None) -> list[Run]:
    """Returns the runs with only the labels of calls of this stage and agent. None matches any stage or agent.

    Raises `RecordError`, which names the stages and agents with labels, if no labelled call matches.
    """
    if stage is None and agent is None:
        return list(runs)
    calls = {call.id: call for run in runs for call in run.calls}
    labelled_ids = {label.call_id for run in runs for label in run.labels} & calls.keys()
    wanted_ids = {
        call_id
        for call_id in labelled_ids
        if stage in (None, calls[call_id].stage) and agent in (None, calls[call_id].agent)
    }
    if not wanted_ids:
        stages, agents = ({getattr(calls[call_id], name) for call_id in labelled_ids} for name in ("stage", "agent"))
        raise RecordError(
            f"no labelled answer is of stage {stage or 'any'} and agent {agent or 'any'}; expected one of the stages "
            f"{', '.join(sorted(stages)) or '(none)'} and the agents {', '.join(sorted(agents)) or '(none)'}"
        )
    return [
        replace(run, labels=tuple(run_label for run_label in run.labels if run_label.call_id in wanted_ids))
        for run in runs
    ]


def adapt_predictor(
    predictor: QualityPredictor,
    runs: Sequence[Run],
    *,
    out: str | Path,
    flags: FlagOptions = USUAL_FLAGS,
    seed: int = 0,
    command: str = "",
) -> Checkpoint:
    """Adapts a predictor to runs that are already in memory. Raises `CheckpointExists` if `out` is the predictor's own
    folder.
    """
    check_rescalable(predictor.checkpoint, out)
    if predictor.schema.uses_top:
        raise RecordError(
            f"the checkpoint reads the schema {predictor.schema.name!r}; expected one without '+top', "
            "for the labelled answers' log-probabilities are all that is adapted to: train on them instead"
        )
    # The heads to adapt.
    runs = [with_whole_names(run) for run in runs]
    heads = probability_heads(predictor.checkpoint)
    sources = {name: name for name in heads}
    if AGREEMENT in heads and CORRECT not in heads:
        # The head of agreement was learned without labels. Labels make P(right) of it, in a head of its own.
        sources, heads = {CORRECT: AGREEMENT}, [CORRECT]
    contract = predictor.checkpoint.manifest.contract
    # Agreement is learned from answers that ended. It says nothing of cut answers, and neither would P(right) from it.
    ended_only = {*contract.get(ENDED_ONLY, ()), *(name for name, source in sources.items() if source != name)}
    base_rates = BaseRates.from_contract(contract, heads)
    labels = {label.name for run in runs for label in run.labels}
    if not (targets := [name for name in heads if name in labels]):
        raise RecordError(
            f"the labelled answers hold {'labels ' + ', '.join(sorted(labels)) if labels else 'no labels'}; the "
            f"checkpoint's heads that are probabilities are {', '.join(heads)}: label at least one of these, as "
            f'"labels": {{"{heads[0] if heads else "correct"}": 1}}'
        )
    # The labelled answers of each head.
    reads_decisions, is_blend = isinstance(predictor, DecisionPredictor), isinstance(predictor, BlendPredictor)
    tables = {name: answer_table(runs, target=name, bare=reads_decisions or is_blend) for name in targets}
    cut_answers = {name: int(tables[name].cut.sum()) for name in targets if name in ended_only}
    tables = {name: table.rows(~table.cut) if cut_answers.get(name) else table for name, table in tables.items()}
    if emptied := [name for name, table in tables.items() if not len(table)]:
        raise RecordError(
            f"{emptied[0]}: all {cut_answers[emptied[0]]} labelled answers were cut by their token limit; expected "
            "answers that ended by themselves, of which the checkpoint has learned: label some of these"
        )
    evidence_by_head = evidence_of(runs, tables)
    for name, evidence in evidence_by_head.items():  # answers that agree token by token are copies, and get one group
        table, note = join_copies(evidence.table)
        regrouped = "; ".join(filter(None, (evidence.regrouped, note)))
        evidence_by_head[name] = replace(evidence, table=table, regrouped=regrouped)
    if reads_decisions:
        evidence_by_head = {
            name: read_decisions(evidence, predictor.schema.names) for name, evidence in evidence_by_head.items()
        }
    _check_reader(predictor.checkpoint.manifest.contract, next(iter(evidence_by_head.values())))
    # Fit the base rates and the scale of each head.
    adapted: dict[str, Rescaled] = {}
    inputs: dict[str, Inputs] = {}
    for name, evidence in evidence_by_head.items():
        table = evidence.table
        inputs[name] = _inputs(predictor, evidence, runs)
        before = log_odds_of(predictor.checkpoint.run(inputs[name])[sources[name]].ravel())
        learned_without_labels = sources[name] == AGREEMENT
        with_terms = (
            learned_without_labels and not is_blend and tuple(predictor.schema.names[-len(TERM_NAMES) :]) == TERM_NAMES
        )
        adapted[name] = rescale(
            name,
            table,
            runs_of(table),
            before,
            base_rates,
            may_bend=True,
            mean_sd=AGREEMENT_SD if learned_without_labels else INTERCEPT_SD,
            beside=TermsBeside.of(inputs[name][FEATURES_INPUT]) if with_terms else None,
            seed=seed,
        )
        if adapted[name].says_nothing:
            warnings.warn(f"{name}: {NO_ORDER}", stacklevel=2)
    # Thresholds of the score and of critical faults.
    main_head = next((name for name in MAIN_HEADS if name in adapted), None)
    if main_head is None and flags.flags:
        raise RecordError(
            f"{next(iter(flags.flags))} sets the threshold of the score, and the labels are of {', '.join(adapted)}: "
            f"label {MAIN_HEADS[0]}, or leave the option out"
        )
    stored = NO_FLAGS if main_head is None else flagging_of(adapted[main_head].scored, flags, seed=seed)
    critical: Mapping[str, float] = {}
    if Verdict.critical_head in adapted:
        answers = adapted[Verdict.critical_head].scored
        inverted = replace(answers, table=replace(answers.table, y=1 - answers.table.y), scores=-answers.scores)
        with suppress(RecordError):  # too few groups
            critical = critical_thresholds(inverted, seed=seed)
    # Figures and sentences for the card.
    metrics, card_lines = dict[str, Interval](), list[str]()
    for name, head in adapted.items():
        prefix = f"{name}." if len(adapted) > 1 else ""
        metrics |= {f"{prefix}{figure}": value for figure, value in measure_adapted(head, seed).items()}
        run_count = len(np.unique(head.runs))
        head_line = (
            f"{name}: {head.in_words}, {len(head.table)} labelled answers of {run_count} "
            f"run{'s' * (run_count > 1)}, {head.table.y.mean():.0%} of them 1"
        )
        head_line += f"; {NO_ORDER}" if head.says_nothing else ""
        card_lines += [head_line + (stored.lacking if name == main_head else "")]
        if cut_count := cut_answers.get(name):
            card_lines.append(
                f"{cut_count} labelled answers that were cut by their token limit are left out: such answers get no "
                "score"
            )
        card_lines += filter(None, [evidence_by_head[name].without_decisions])
        for input_name, rows in inputs[name].items() if is_blend else ():
            if without_count := int(np.isnan(rows).all(axis=1).sum()):
                card_lines.append(
                    f"{without_count} of {len(rows)} labelled answers came without {INPUT_NAMES[input_name]}, and are "
                    "scored by the rest"
                )
    # Write the checkpoint.
    described_head = main_head or next(iter(adapted))
    scales = (
        {} if base_rates is None else {name: base_rates.scale[name] for name in adapted if name in base_rates.scale}
    )
    return write_rescaled(
        predictor,
        adapted,
        out,
        inputs[described_head],
        sources=sources,
        title=f"{title_of(predictor)}, adapted",
        summary=(
            f"Checkpoint {predictor.checkpoint.digest[:16]} with the base rates and the scale of "
            f"{len(evidence_by_head[described_head].table)} labelled answers; "
            + (
                "labels and agreement are joined in one fit, so that labels may change the order."
                if adapted[described_head].beside is not None
                else "the order of answers of one run is as before."
            )
        ),
        # Labels do not say when their answers were given, so any of them may be as late as now.
        contract=rescaled_contract(predictor, adapted, scales, time.time())
        | ({ENDED_ONLY: sorted(ended_only)} if ended_only else {}),
        **evidence_by_head[described_head].origin(seed, command),
        logprobs_reader=evidence_by_head[described_head].logprobs_reader,
        calibrated_on="the labelled answers; numbers by five folds over their groups",
        metrics=metrics,
        stored=stored,
        thresholds=critical,
        runs=len(np.unique(adapted[described_head].runs)),
        heads=card_lines,
    )


def _inputs(predictor: QualityPredictor, evidence: Evidence, runs: Sequence[Run]) -> Inputs:
    """Returns the inputs (n, d) of the predictor's graph for n answers, by name of the input.

    Raises `RecordError` if a blend cannot read the hidden states of an answer, or an answer may not be scored.
    """
    if isinstance(predictor, DecisionPredictor):
        return {FEATURES_INPUT: evidence.features}
    if not isinstance(predictor, BlendPredictor):
        return {FEATURES_INPUT: features(predictor.schema, list(evidence.table.logprobs))}
    calls = {call.id: (run, call) for run in runs for call in run.calls}
    rows = []
    for call_id in evidence.table.call_ids.tolist():
        run, call = calls[call_id]
        if call.hidden is not None and (fault := predictor.states_fault(call.hidden, call.model)):
            raise RecordError(f"call {call_id}: {fault}")
        try:
            rows.append(predictor.inputs(call, **{name: run.stated_of(call, name) for name in STATED_INPUTS}))
        except InvalidResponse as error:
            raise RecordError(f"call {call_id}: {error}") from error
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def adapt_responses(
    predictor: QualityPredictor,
    responses: Sequence[object],
    labels: ArrayLike,
    groups: Sequence[object] | None,
    target: str,
    *,
    out: str | Path,
    flags: FlagOptions = USUAL_FLAGS,
    replace: bool = False,
    strict: bool = False,
    seed: int = 0,
) -> Checkpoint:
    """Adapts to responses, in any format that the predictor reads, each with its label of 0 or 1.

    A response that cannot be read, or whose label is neither 0 nor 1, is left out. A warning counts such responses by
    reason. Raises `RecordError` if more than half cannot be read.

    Args:
        predictor: the predictor.
        responses: the responses.
        labels: label of each response.
        groups: group of each response; None if each response is a group of its own.
        target: name of the label.
        out: the folder to write.
        flags: what the stored threshold flags.
        replace: whether the checkpoint in `out` is replaced, unless it is known to be in service.
        strict: whether the first response that cannot be used raises an error.
        seed: the seed of folds and resamples.
    """
    responses = list(responses)
    labels_shape = np.shape(labels) if isinstance(labels, np.ndarray) else (len(list(labels)),)  # type: ignore[arg-type]
    if labels_shape != (len(responses),) or (groups is not None and len(groups) != len(responses)):
        raise RecordError(
            f"{len(responses)} responses came with labels of shape {labels_shape}"
            f"{'' if groups is None else f' and {len(groups)} groups'}; expected one of each a response"
        )
    runs = []
    bad = BadFile("those given", strict=strict, unit="responses")
    for i, (response, response_label) in enumerate(zip(responses, labels, strict=True)):  # type: ignore[arg-type]
        name = f"response-{i}"
        group = "" if groups is None or groups[i] is None else str(groups[i])
        item = Item(id=name, task="", group=group or name, question="")
        try:
            label = Label(name, target, _label_value(response_label), "caller")
            run_fields: dict[str, Any] = {
                "id": name,
                "system": "adapt",
                "variant": "",
                "item": item,
                "labels": (label,),
            }
            runs.append(_run_of_response(predictor, response, run_fields))
        except RecordError as error:
            if strict:
                raise
            bad.leave_out(of_kind(f"response {i}: {error}", reason_of(error)))
        else:
            bad.sound += 1
    if refusal := bad.refusal():
        raise RecordError(refusal)
    if bad.bad:
        warnings.warn(bad.said(), stacklevel=3)
    with ReplaceOptions(replace=replace).replacing():
        return adapt_predictor(predictor, runs, out=out, flags=flags, seed=seed, command="QualityPredictor.adapt")


def _label_value(label: object) -> float:
    """Returns a label as 0 or 1. Raises `RecordError` for anything else."""
    try:
        value = float(label)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise RecordError(
            f"the labels cannot be read as numbers ({error}); expected 0 or 1 for each response"
        ) from error
    if value not in (0.0, 1.0):
        raise RecordError(f"the label is {label!r}; expected 0 or 1 for each response")
    return value


def _run_of_response(predictor: QualityPredictor, response: object, run_fields: Mapping[str, Any]) -> Run:
    """Returns the run of one response. Raises `InvalidResponse` for a response that the predictor does not read."""
    name: str = run_fields["id"]
    if isinstance(predictor, DecisionPredictor):
        answers = tuple(dataclasses.replace(answer, call_id=name) for answer in DecisionPredictor.answers_in(response))
        return Run(**run_fields, calls=(Call(id=name, stage="answer"),), decision_answers=answers)
    parsed = cut_to_answer(parse_response(response))
    call = Call(
        id=name,
        stage="answer",
        hidden=parsed.hidden,
        model=parsed.model or "",
        logprobs=np.asarray(parsed.logprobs, dtype=np.float32),
        logprobs_mode=parsed.logprobs_mode,
        reader=parsed.reader,
        finish_reason=parsed.finish_reason,
    )
    stated = tuple(Statement(name, kind, value) for kind, value in parsed.stated.items())
    return Run(**run_fields, calls=(call,), statements=stated)


def _check_reader(contract: Mapping[str, Any], evidence: Evidence) -> None:
    """Raises `RecordError` if another model than in training read the log-probabilities of the answers."""
    reader = evidence.logprobs_reader
    if evidence.generator is not None and (trained := other_reader(reader, contract)):
        raise RecordError(
            f"the labelled answers hold log-probabilities of {reader or ITSELF}, and the checkpoint was trained on "
            f"those of {trained}: read the answers with that model (`metaprobe extract RUNS --logprobs MODEL --out "
            "RUNS2`), or train on them instead"
        )


def measure_adapted(head: Rescaled, seed: int) -> dict[str, Interval]:
    """Returns held-out figures of the adapted scores: AUROC, Brier skill, AURC, and mean score minus share right."""
    table, p = head.table, head.held_out
    weights = cluster_weights(table.groups.tolist(), seed=seed)
    [result] = method_results(
        table, [Judged("adapted", "learned", p, head.ranking, 1.0)], fold=head.fold if head.reordered else None
    )
    metrics = {"auroc": result.auroc, "brier_skill": result.brier_skill, "aurc": result.aurc}
    if len(table) >= ENOUGH_FOR_ECE:
        metrics["ece"] = result.ece
    mean = np.array([values.mean() for values in table.logprobs]) if table.measured else None
    within_fold = auroc_within(head.fold if head.reordered else None)
    if head.has_several_runs:
        within = auroc_within(head.fold, head.runs)
        metrics = figures_within(within, table.y, head.before, mean, weights) | metrics
    if mean is not None:
        gain = paired_difference(within_fold, table.y, head.ranking, mean, weights)
        metrics["auroc_gain_over_mean_log_probability"] = gain
    metrics["mean_score_minus_share_right"] = interval(mean_gap, table.y, p, weights)
    return metrics


def with_whole_names(run: Run) -> Run:
    """Returns the run with names that a manifest can hold: without surrogates, as a store returns them."""
    names = {"model", "stage", "agent", "reader"}
    calls = tuple(
        replace(call, **{name: without_surrogates(getattr(call, name)) for name in names}) for call in run.calls
    )
    item = replace(run.item, task=without_surrogates(run.item.task), group=without_surrogates(run.item.group))
    return replace(run, item=item, calls=calls, variant=without_surrogates(run.variant))
