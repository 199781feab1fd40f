"""The recipe of P(success) before asking: outcomes, ladder of rates, dimensions, surface and prompt states, export."""

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, Training
from metaprobe.checkpoints.checkpoint import LEARNED_UNTIL
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.calibration import ece_interval
from metaprobe.eval.metrics.ranked import auroc_within
from metaprobe.llms.weights import DEFAULT_MODEL
from metaprobe.probes.adapter import TOKENIZER
from metaprobe.probes.prompt_reader import READER_GRAPH, PromptReader, PromptTokens
from metaprobe.records.errors import RecordError
from metaprobe.records.labelled_scores import equal_chance_mask
from metaprobe.records.outcomes import QuestionOutcomes, only_agents, read_outcomes
from metaprobe.routing.success_estimator import (
    FORMS_FILE,
    LABEL_WEIGHTS,
    LABELLED_FILE,
    LABELLED_STATES_FILE,
    MOST_CANDIDATES,
    OUTPUT,
    PRIOR,
    SAMPLE_REQUEST,
    SPREAD_FILE,
    STATE,
    STATES,
    SUCCESS_KIND,
    SURFACE_FILE,
    probability,
)
from metaprobe.training.export import Export, GraphBuilder, write_checkpoint, writes
from metaprobe.training.recipes.prompt_states import ReaderFiles, cut_reader, prompt_states, reader_files
from metaprobe.training.success_fit import (
    SUCCESS_FOLDS,
    FittedSuccess,
    Floats,
    Heads,
    Ints,
    SuccessData,
    fit_logistic,
    fit_success,
    fold_numbers,
    label_counts,
    success_data,
)
from metaprobe.training.success_options import SuccessOptions
from metaprobe.training.surface_fit import read_surfaces
from metaprobe.training.training_options import WrongOptions

EMBEDDED_READER = "embedded"
"""Name of the default reader in the option `read_by`."""
MAX_LEARNED_QUESTIONS = 20_000
"""Most labelled questions whose coordinates a checkpoint stores. If there are more, a random draw is stored. Each takes
132 bytes.
"""
MOST_FIGURES = 12
"""Most candidates whose figures the card shows, the first by name."""
SUCCESS_PACKAGES = ("sklearn", "scipy", "onnx")
SUCCESS_SUMMARY = """P(success) of each candidate on a request, before any of them is asked. It goes by: {rung}.

```python
import metaprobe

for one in metaprobe.load("PATH").estimate(messages):
    print(one.candidate, one.p, one.interval, one.evidence, one.reason)
```"""
MEASURED_SUCCESS = (
    f"On groups left out, in {SUCCESS_FOLDS} folds: models and calibrators that have not seen the question's group. "
    "AUROC is over pairs of one fold."
)
MEASURED_ON_DRAWN = (
    " Of labels that were drawn with unequal chances, each is kept with probability (smallest chance) / (its chance), "
    "so that these figures are of answers that were equally likely to be drawn."
)


@writes(SUCCESS_KIND, *SUCCESS_PACKAGES)
def train_success(outcomes: str | Path | Sequence[QuestionOutcomes], options: SuccessOptions) -> Checkpoint:
    """Returns the checkpoint that estimates P(success), fitted on outcomes of the candidates.

    `outcomes`: a file with one question on each line, a table with a column a model, or the outcomes. Raises
    `RecordError` where there are too few labels, `WrongOptions` for a version of a candidate without labels, and with
    `read_by` what `reader_files` raises.
    """
    command = options.recorded("train_success")
    if isinstance(outcomes, str | Path):
        options.on_step(f"reading {Path(outcomes).name}")
        outcomes = read_outcomes(outcomes, agents=options.candidate)
    outcomes = only_agents(outcomes, options.candidate)
    data = success_data(outcomes)
    for note in data.notes:
        options.on_line(note)
    answered = newest_answers(outcomes)
    if len(data.candidates) > MOST_CANDIDATES:
        raise RecordError(f"{len(data.candidates)} candidates came; at most {MOST_CANDIDATES} fit into a checkpoint")
    if strange := sorted(set(options.versions()) - set(data.candidates)):
        raise WrongOptions(f"version of {', '.join(strange)}: there are labels of {', '.join(data.candidates)}")
    files: ReaderFiles | None = None
    states: Mapping[str, NDArray[np.floating[Any]]] | None = None
    if options.read_by:
        if not all(question.strip() for question in data.questions):
            raise RecordError('read_by needs the text of every question; give "question" in each line')
        options.on_step(f"read the prompts with {options.read_by}")
        files = reader_files(DEFAULT_MODEL if options.read_by == EMBEDDED_READER else options.read_by, data.questions)
        states = prompt_states(files, data.questions, on_step=options.on_step)
    fitted = fit_success(data, states, seed=options.seed, on_step=options.on_step)
    for step in fitted.steps:
        options.on_line(str(step))
    return write_checkpoint(options.out, _export(data, fitted, files, states, options, command, answered))


def newest_answers(outcomes: Sequence[QuestionOutcomes]) -> dict[str, float]:
    """Returns candidate -> time of its newest labelled answer, in seconds since 1970; without those of unknown time."""
    newest: dict[str, float] = {}
    for question in outcomes:
        if question.answered is not None and not question.propensities:
            for name, outcome in question.agents.items():
                if outcome.score is not None:
                    newest[name] = max(newest.get(name, question.answered), question.answered)
    return newest


def _dates(data: SuccessData, options: SuccessOptions, answered: Mapping[str, float]) -> dict[str, str]:
    """Returns candidate -> date of its newest label; without candidates of which it is not known."""
    if options.labels_until:
        return dict.fromkeys(data.candidates, options.labels_until)
    return {
        name: datetime.datetime.fromtimestamp(answered[name], datetime.UTC).date().isoformat()
        for name in data.candidates
        if name in answered
    }


def _export(
    data: SuccessData,
    fitted: FittedSuccess,
    files: ReaderFiles | None,
    states: Mapping[str, NDArray[np.floating[Any]]] | None,
    options: SuccessOptions,
    command: str,
    answered: Mapping[str, float],
) -> Export:
    """Returns the estimator's export. `answered`: what `newest_answers` gives of the outcomes."""
    heads, A = fitted.heads, len(data.candidates)
    # The inputs of golden rows, and the log-odds that the graph must give for them.
    prior = fitted.prior.log_odds(data, read_surfaces(data.questions)).astype(np.float32)
    inputs: dict[str, NDArray[Any]] = {PRIOR: prior[:16]}
    logit = inputs[PRIOR].astype(np.float64)
    extra: dict[str, bytes] = {}
    reader: dict[str, Any] = {}
    if heads is not None and files is not None and states is not None:
        inputs[STATE] = states[heads.choice.output][:16].astype(np.float32)
        logit = logit + inputs[STATE].astype(np.float64) @ unfolded(heads, heads.weights)[:, :-1].T
        logit = logit + unfolded(heads, heads.weights)[:, -1]
        assert fitted.labelled_states is not None
        extra, reader = _reader_parts(data, fitted, heads, files)
    # Further files: the directions and heads of the surface, and how far the truth may lie from the estimates.
    spread = [np.linalg.cholesky(fitted.posterior.covariance)]
    if fitted.span is not None:
        extra[SURFACE_FILE] = fitted.span.surface.to_bytes()
    if fitted.prior.weights is not None:
        spread.append(fitted.prior.weights)
    if heads is not None:
        components = np.eye(heads.choice.components, heads.choice.components + 1)
        spread.append(unfolded(heads, components))
    if fitted.forms is not None:
        kept_rows = _stored_rows(len(fitted.forms.points))
        extra[FORMS_FILE] = replace(fitted.forms, points=fitted.forms.points[kept_rows]).to_bytes()
    extra[SPREAD_FILE] = b"".join(np.ascontiguousarray(part, dtype="<f4").tobytes() for part in spread)
    expected = probability(logit * fitted.calibration[:, 0] + fitted.calibration[:, 1])
    # Held-out figures, and the checkpoint's fields.
    metrics, audits = figures(data, fitted, states, seed=options.seed)
    table = fitted.prior.table
    by_dimension = bool(np.ptp(table, axis=1).any())
    versions, dates = options.versions(), _dates(data, options, answered)
    return Export(
        kind=SUCCESS_KIND,
        title="P(success) before asking",
        summary=SUCCESS_SUMMARY.format(rung=fitted.rung),
        graph=success_graph(heads, fitted.calibration),
        inputs=inputs,
        expected={f"{OUTPUT}{column}": expected[:, column] for column in range(A)},
        contract={
            "candidates": list(data.candidates),
            "dimensions": list(data.dimensions),
            "rung": fitted.rung,
            "base": fitted.prior.rung,
            "by_dimension": by_dimension,
            "table": table.tolist(),
            "labels": label_counts(data).tolist(),
            **({"label_weights": LABEL_WEIGHTS} if data.is_weighted else {}),
            **({LEARNED_UNTIL: max(answered.values())} if answered else {}),
            "calibration": fitted.calibration.tolist(),
            "directions": 0 if fitted.span is None else len(fitted.span.surface.centre),
            "outside": fitted.posterior.outside.tolist(),
            "no_dimension": fitted.posterior.no_dimension.tolist(),
            "labels_until": dates,
            "versions": versions,
            "ladder": [str(step) for step in fitted.steps],
            **({"reader": reader} if reader else {}),
        },
        generator=None,
        training=Training(data.fingerprint, len(data.questions), len(set(data.groups)), options.seed, command),
        calibration="slope and intercept of each candidate's log-odds",
        calibrated_on="groups left out",
        metrics=metrics,
        measured=MEASURED_SUCCESS + (MEASURED_ON_DRAWN if data.is_weighted else ""),
        audits=audits,
        not_audited=["near-duplicate questions: give questions of one source one group before training"],
        packages=("scikit-learn", "onnx", *(("torch", "transformers", "tokenizers") if reader else ())),
        extra=extra,
        reads=[
            f"candidates: {', '.join(data.candidates)}",
            f"versions that the labels are of: {json.dumps(versions) if versions else 'not told'}",
            f"newest labels: {', '.join(f'{name} {date}' for name, date in dates.items()) or 'not told'}",
            *(_weights_told(data) if data.is_weighted else []),
            *(
                [f"reader: {reader['model']} ({reader['revision']}), {reader['output']}, int8 products"]
                if reader
                else ["reader: none"]
            ),
            *(f"step: {step}" for step in fitted.steps),
        ],
    )


def _reader_parts(
    data: SuccessData, fitted: FittedSuccess, heads: Heads, files: ReaderFiles
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Returns the files of the reader and of the labelled questions, and the contract's entry `reader`."""
    labelled_states = fitted.labelled_states
    assert labelled_states is not None
    graph, tokens = cut_reader(files.graph, heads.choice.output), PromptTokens(files.tokenizer, files.layout)
    stored_rows = _stored_rows(len(labelled_states.points))
    labelled_states = labelled_states.with_points(labelled_states.points[stored_rows])
    extra = {
        READER_GRAPH: graph,
        TOKENIZER: files.tokenizer,
        LABELLED_STATES_FILE: labelled_states.to_bytes(),
        LABELLED_FILE: np.isfinite(data.score[stored_rows]).astype(np.uint8).tobytes(),
    }
    reader = {
        "model": files.model,
        "revision": files.revision,
        "output": heads.choice.output,
        "components": heads.choice.components,
        "penalty": heads.choice.penalty,
        "prefix": list(files.layout.prefix),
        "suffix": list(files.layout.suffix),
        "head": files.layout.head,
        "tail": files.layout.tail,
        "sample_ids": tokens.ids([SAMPLE_REQUEST])[0],
        "sample_state": PromptReader(graph, tokens).state(SAMPLE_REQUEST).astype(np.float64).round(4).tolist(),
        "width": len(labelled_states.mean),
        "place_components": len(labelled_states.spread),
        "questions": len(stored_rows),
        "neighbours": labelled_states.neighbours,
    }
    return extra, reader


def _stored_rows(count: int) -> Ints:
    """Returns the labelled questions whose coordinates are stored: all, or a draw of `MAX_LEARNED_QUESTIONS`."""
    return np.sort(np.random.default_rng(0).permutation(count)[:MAX_LEARNED_QUESTIONS])


def _weights_told(data: SuccessData) -> list[str]:
    """Returns a line for each candidate: its labels, their chances to be drawn, and how many equal ones they equal."""
    lines = []
    for column, name in enumerate(data.candidates):
        chances = data.propensity[np.isfinite(data.score[:, column]), column]
        lines.append(
            f"weights of {name}: {len(chances)} labels, drawn with chances of {chances.min():.2g} to "
            f"{chances.max():.2g}, weigh 1 / chance and tell as much as {label_counts(data)[column, -1]} of equal "
            "weight"
        )
    return lines


def unfolded(heads: Heads, weights: Floats) -> Floats:
    """Converts weights (A, d + 1) of the components to weights (A, D + 1) of the original states."""
    components, d = heads.components, weights.shape[1] - 1
    wide = weights[:, :-1] @ (components.directions[:d] / components.spread[0]) / components.scale
    return np.column_stack([wide, weights[:, -1] - wide @ components.mean])


def success_graph(heads: Heads | None, calibration: Floats) -> bytes:
    """Returns the graph: log-odds without prompt states (n, A) and the state (n, D) to P(success) (n, 1) of each."""
    graph, A = GraphBuilder(), len(calibration)
    value, inputs = PRIOR, {PRIOR: A}
    if heads is not None:
        wide = unfolded(heads, heads.weights)
        moved = graph.add("MatMul", STATE, graph.number(wide[:, :-1].T))
        value = graph.add("Add", graph.add("Add", value, moved), graph.number(wide[None, :, -1]))
        inputs[STATE] = wide.shape[1] - 1
    value = graph.add("Mul", value, graph.number(calibration[None, :, 0]))
    value = graph.add("Add", value, graph.number(calibration[None, :, 1]))
    every = graph.add("Sigmoid", value)
    outputs = [f"{OUTPUT}{column}" for column in range(A)]
    for column, name in enumerate(outputs):
        graph.add("Gather", every, graph.constant([column]), name=name, axis=1)
    return graph.model(inputs, outputs)


# Figures on groups left out.


def figures(
    data: SuccessData,
    fitted: FittedSuccess,
    states: Mapping[str, NDArray[np.floating[Any]]] | None,
    *,
    seed: int,
) -> tuple[dict[str, Interval], list[tuple[str, bool, str]]]:
    """Returns AUROC and ECE of each candidate, AUROC over the simple steps, and the audits.

    AUROC is over pairs of one fold: each fold has a model of its own, and a rate learned on the other folds is lower
    where its fold holds more right answers.
    """
    weights, metrics = cluster_weights(data.groups, 400), dict[str, Interval]()
    lower = [name for name in fitted.held.logit if name != fitted.rung]
    for column, name in list(enumerate(data.candidates))[:MOST_FIGURES]:
        labelled = np.flatnonzero(np.isfinite(data.score[:, column]))
        rows = (
            labelled[equal_chance_mask(data.propensity[labelled, column], seed=seed)] if data.is_weighted else labelled
        )
        if not len(rows):
            continue
        y = (data.score[rows, column] >= 0.5).astype(np.int64)
        if y.min() == y.max():
            continue
        p, here = probability(fitted.held.calibrated[rows, column]), weights[:, rows]
        within_fold = auroc_within(fitted.held.fold[rows])
        metrics[f"{name}.auroc"] = interval(within_fold, y, p, here)
        metrics[f"{name}.ece"] = ece_interval(y, p, here)
        for step in lower:
            other = probability(fitted.held.logit[step][rows, column])
            metrics[f"{name}.auroc_over_{step.replace(' ', '_')}"] = paired_difference(within_fold, y, p, other, here)
    audits = []
    if fitted.heads is not None and states is not None:
        shuffled = _shuffled(data, fitted.heads, states[fitted.heads.choice.output], seed)
        detail = f"mean AUROC {shuffled:.3f} of heads that learned shuffled labels; expected 0.45 to 0.55"
        audits.append(("shuffled labels", 0.45 <= shuffled <= 0.55, detail))
        length = np.array([len(question) for question in data.questions], dtype=np.float64)
        mean_auroc = _mean_auroc(data, fitted.held.logit[STATES], fitted.held.fold)
        by_length = _length_auroc(data, np.log1p(length), seed)
        detail = f"mean AUROC {mean_auroc:.3f}; by the length of the question alone {by_length:.3f}"
        audits.append(("ahead of question length", mean_auroc > by_length, detail))
    return metrics, audits


def _mean_auroc(data: SuccessData, logit: Floats, fold: Ints, score: Floats | None = None) -> float:
    """Returns the mean over candidates of the AUROC within folds; `score`: other labels than the data's."""
    values, every = [], data.score if score is None else score
    for column in range(logit.shape[1]):
        rows = np.isfinite(every[:, column])
        y = (every[rows, column] >= 0.5).astype(np.int64)
        if 0 < y.sum() < len(y):
            values.append(float(np.asarray(auroc_within(fold[rows])(y, logit[rows, column]))))
    return float(np.mean(values)) if values else 0.5


def _shuffled(data: SuccessData, heads: Heads, states: NDArray[np.floating[Any]], seed: int) -> float:
    """Returns the mean AUROC on groups left out of heads that learned labels of other questions."""
    drawn = np.random.default_rng(seed).permutation(len(data.questions))
    Z, score = heads.components.project(states)[:, : heads.choice.components], data.score[drawn]
    fold, logit = fold_numbers(data.groups, SUCCESS_FOLDS, seed), np.empty(data.score.shape)
    for number in range(SUCCESS_FOLDS):
        in_fold = fold == number
        W = fit_logistic(Z[~in_fold], np.zeros_like(score[~in_fold]), score[~in_fold], heads.choice.penalty)
        logit[in_fold] = Z[in_fold] @ W[:, :-1].T
    return _mean_auroc(data, logit, fold, score)


def _length_auroc(data: SuccessData, length: Floats, seed: int) -> float:
    """Returns the mean AUROC on groups left out of the length, whose direction is learned."""
    X = (length - length.mean())[:, None] / (length.std() or 1.0)
    fold, logit = fold_numbers(data.groups, SUCCESS_FOLDS, seed), np.empty(data.score.shape)
    for number in range(SUCCESS_FOLDS):
        in_fold = fold == number
        W = fit_logistic(X[~in_fold], np.zeros_like(data.score[~in_fold]), data.score[~in_fold], 1.0)
        logit[in_fold] = X[in_fold] @ W[:, :-1].T
    return _mean_auroc(data, logit, fold)
