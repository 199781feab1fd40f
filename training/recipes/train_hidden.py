"""The recipe of a linear probe on hidden states, from run stores or from plain arrays of states."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, FlagOptions, Generator
from metaprobe.checkpoints.flagging import AGREEMENT, USUAL_FLAGS, promise_refused
from metaprobe.eval.answer_table import bare_table
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.records.types import HIDDEN, POSITIONS
from metaprobe.training.agreement import NOT_RIGHT, SAID_AGAIN_AFTER, SAID_AGAIN_BEFORE, flagged_by
from metaprobe.training.calibrators import calibrator_on
from metaprobe.training.evidence import INVERTED, Evidence, origin_of_states
from metaprobe.training.export import Export, named_reader, write_checkpoint, writes
from metaprobe.training.folds import final_roles
from metaprobe.training.linear_probe import unseen_probe_scores
from metaprobe.training.methods import AFTER, BEFORE, HiddenProbeMethod, control_methods
from metaprobe.training.stored_states import InMemory, canaries_file
from metaprobe.training.study import Study, crossfit, held_out_fields, load_with_states, study_of
from metaprobe.training.thresholds import ScoredAnswers
from metaprobe.training.training_options import HiddenOptions, WrongOptions


@writes(HIDDEN)
def train_hidden(stores: Sequence[str | Path], options: HiddenOptions) -> Checkpoint:
    """Returns the probe's checkpoint, fitted on the labelled answers of these stores that have hidden states.

    Raises `RecordError` if data or options do not suffice, and `CheckpointExists` if `out` holds something else.
    """
    if options.target in INVERTED:
        raise WrongOptions(
            f"target {options.target}: probes give the probability of what is good; train a quality predictor"
        )
    if options.when == "before" and options.position and "prompt_last" not in options.position:
        raise WrongOptions(f"before an answer only prompt_last is known, not {' or '.join(options.position)}")
    if options.target == AGREEMENT and (refused := promise_refused(options)):
        raise WrongOptions(refused)
    evidence = load_with_states(stores, options)
    positions_of(evidence, options.when)  # raises now rather than after minutes of fitting
    study = study_of(evidence, folds=options.folds, seed=options.seed, on_step=options.on_step)
    options.on_step("audit and export")
    command, flags = options.recorded("train_hidden"), options.as_flags()
    return write_hidden(options.out, study, when=options.when, target=options.target, command=command, flags=flags)


def write_hidden(
    path: str | Path, study: Study, *, when: str, target: str, command: str, flags: FlagOptions = USUAL_FLAGS
) -> Checkpoint:
    """Fits the probe `is_before` the answer (difficulty) or `after` it (confidence) on all groups, and writes it.

    The checkpoint's graph includes a calibrator, and the held-out metrics come from the study's folds.

    Args:
        path: folder of the checkpoint.
        study: the study.
        when: `is_before` or `after`.
        target: name of the label.
        command: command that made the checkpoint.
        flags: which answers the stored threshold flags.
    """
    # Fit and calibrate the probe on all groups.
    evidence, table, seed = study.evidence, study.evidence.table, study.seed
    positions_of(evidence, when)
    states, name = evidence.states, BEFORE if when == "before" else AFTER
    method = next(method for method in study.methods if method.name == name)
    assert states is not None, "positions_of has looked"
    assert isinstance(method, HiddenProbeMethod)
    roles = final_roles(list(table.groups), table.y, seed=seed)
    probe, rows = method.probe(evidence, roles, seed=seed), roles.calibration
    hidden = probe.read(states)
    scores = probe.score_of(hidden)
    unseen = unseen_probe_scores(probe, states, table.y, table.groups.tolist(), roles, seed=seed)
    calibrator = calibrator_on(np.flatnonzero(np.isfinite(unseen)), unseen, table, seed)
    held_out = study.fits[name].probability, study.fits.rank_shares[name]
    answers = ScoredAnswers.of(table, rows, scores, calibrator, *held_out)
    # Write the checkpoint.
    is_before = probe.position == "prompt_last"
    meaning = f"Probability that the answer {'will be' if is_before else 'is'} {target}"
    addition = "Difficulty is one minus that probability."
    if target == AGREEMENT:
        meaning, addition = SAID_AGAIN_BEFORE if is_before else SAID_AGAIN_AFTER, NOT_RIGHT
    summary = (
        f"{meaning}, from the hidden state of layer "
        f"{', '.join(map(str, probe.layers))} at {probe.position} (logistic, then a calibrator; chosen among "
        f"{probe.tried} combinations on learning rows). Layer 0 is the embeddings' output, layer i the output of block "
        f"i. {addition}" + "".join(f" {line}." for line in origin_of_states(evidence))
    )
    return write_checkpoint(
        path,
        Export(
            kind=HIDDEN,
            title=f"{'Difficulty' if when == 'before' else 'Confidence'} probe: {target}",
            summary=summary,
            graph=probe.graph(target, calibrator),
            inputs={HIDDEN: hidden},
            expected={target: calibrator.probability(scores)},
            contract={**probe.contract(target), **named_reader(evidence.reader), **flagged_by(target)},
            calibration=calibrator.name,
            packages=("onnx",),
            extra=canaries_file(states.canaries, probe.layers),
            **held_out_fields(study, method, answers, target=target, flags=flags, command=command),
        ),
    )


def positions_of(evidence: Evidence, when: str) -> tuple[str, ...]:
    """Returns the captured positions `before` or `after` the answer. Raises `RecordError` if there are none."""
    states = evidence.states
    if states is None:
        raise RecordError(
            f"{evidence.without_hidden} of {len(evidence.table)} labelled answers have no hidden states: run "
            "`metaprobe extract`"
        )
    positions = tuple(p for p in states.positions if (p == "prompt_last") == (when == "before"))
    if not positions:
        other = "after" if when == "before" else "before"
        raise RecordError(
            f"no position {when} the answer was captured; there are: {', '.join(states.positions)}, "
            f"which --when {other} reads"
        )
    return positions


# A probe from plain arrays of hidden states, without a run store and without log-probabilities.

NO_GROUPS_NOTE = (
    "no groups were given, so each row stands for itself: rows that share a question make the numbers too good"
)
"""Note of a checkpoint whose rows had no groups."""


def fit_arrays(
    path: str | Path,
    X: Any,
    y: Any,
    *,
    groups: Sequence[object] | None,
    layers: Sequence[int] | None,
    position: str,
    target: str,
    model: str,
    folds: int,
    seed: int,
    command: str,
    questions: Sequence[str] | None = None,
    answers: Sequence[str] | None = None,
    logprobs: Sequence[Any] | None = None,
) -> Checkpoint:
    """Returns the checkpoint of a probe fitted on arrays of hidden states and labels.

    Roles, solver, choice of the layer, calibration, held-out metrics and audits are those of `metaprobe train hidden`.
    Raises `RecordError` for arrays of a wrong shape, or with wrong values.

    Args:
        path: folder of the checkpoint.
        X: hidden states (n, d) or (n, layers, d).
        y: labels (n,) of 0 and 1.
        groups: group of each row (n,); by default each row is a group of its own.
        layers: the layers of X; by default 0, 1, ...
        position: token position of the states.
        target: name of the label.
        model: name of the model whose states these are; empty if it is not known.
        folds: outer folds, for held-out metrics.
        seed: seed of folds and fits.
        command: command that made the checkpoint.
        questions: texts (n) for controls on words. Layer 0 is a control too, if there are other layers.
        answers: texts (n) for controls on words.
        logprobs: a series for each row, for controls on log-probabilities.
    """
    # Check the arrays.
    states, labels = _states(X, layers, position), _array(y, "y")
    values = states.activations.values
    n = len(values)
    if labels.shape != (n,):
        raise RecordError(f"y has shape {labels.shape}; expected one label a row of X, ({n},)")
    if other_values := sorted({*labels.tolist()} - {0, 1})[:3]:
        raise RecordError(
            f"y holds {', '.join(map(str, other_values))}; expected 0 and 1. For the success rate of samples, give "
            "each sample a row, and one group to the samples of a question"
        )
    groups, questions, answers, logprobs = (
        None if texts_or_groups is None else list(texts_or_groups)
        for texts_or_groups in (groups, questions, answers, logprobs)
    )
    columns = {"groups": groups, "questions": questions, "answers": answers, "logprobs": logprobs}
    for name, column in columns.items():
        if column is not None and len(column) != n:
            raise RecordError(f"{name} has {len(column)} entries; expected one a row of X, {n}")
    for name, texts in (("questions", questions), ("answers", answers)):
        if not all(isinstance(text, str) for text in texts or ()):
            raise RecordError(f"{name} holds what is no text; expected one text a row of X")
    series = (
        None
        if logprobs is None
        else [_array(series_of_row, "logprobs").astype(np.float32) for series_of_row in logprobs]
    )
    for row, series_of_row in enumerate(series or ()):
        if (
            series_of_row.ndim != 1
            or not series_of_row.size
            or not np.isfinite(series_of_row).all()
            or series_of_row.max() > 0
        ):
            raise RecordError(f"logprobs of row {row}: expected one number a token, finite and at most 0")
    # Make evidence of them.
    labels = labels.astype(np.int64)
    group_names = np.array([f"row {i}" for i in range(n)] if groups is None else [str(group) for group in groups])
    one_position = values[:, :, 0]
    digest = hashlib.sha256(
        repr(one_position.shape).encode() + one_position.astype("<f4").tobytes() + labels.astype("<i8").tobytes()
    )
    digest.update("\0".join(group_names.tolist()).encode())
    evidence = Evidence(
        table=bare_table(labels, group_names, questions=questions, answers=answers, logprobs=series),
        features=np.empty((n, 0), dtype=np.float32),
        feature_names=(),
        schema="",
        states=states,
        generator=Generator(model) if model else None,
        fingerprint=digest.hexdigest(),
        regrouped="" if groups is not None else NO_GROUPS_NOTE,
    )
    # Fit the probe beside its controls, and write it.
    name = BEFORE if position == "prompt_last" else AFTER
    method = HiddenProbeMethod(name, (position,))
    methods = (*control_methods(evidence), method)
    study = Study(evidence, methods, crossfit(evidence, methods, folds=folds, seed=seed), seed)
    when = "before" if name == BEFORE else "after"
    return write_hidden(path, study, when=when, target=target, command=command)


def _states(X: Any, layers: Sequence[int] | None, position: str) -> InMemory:
    """Returns hidden states (n, d) or (n, layers, d) of the caller. Raises `RecordError` for wrong shapes or values."""
    if position not in POSITIONS:
        raise RecordError(f"position {position!r}: expected one of {', '.join(POSITIONS)}")
    values = _array(X, "X")
    if values.ndim == 2:
        values = values[:, None]
    if values.ndim != 3 or not values.size:
        raise RecordError(f"X has shape {np.shape(X)}; expected (n, d), or (n, layers, d) for several layers")
    values = values.astype(np.float32)
    if bad := int((~np.isfinite(values)).any(axis=(1, 2)).sum()):
        raise RecordError(
            f"X holds NaN or infinity in {bad} of {len(values)} rows: capture them in bfloat16 or float32"
        )
    layer_numbers = tuple(range(values.shape[1])) if layers is None else tuple(int(layer) for layer in layers)
    if len(set(layer_numbers)) != values.shape[1] or min(layer_numbers) < 0:
        raise RecordError(
            f"layers {list(layer_numbers)} for X of {values.shape[1]} layers: expected as many different numbers, 0 "
            "for the embeddings' output and i for the output of block i"
        )
    rows = tuple(f"row {i}" for i in range(len(values)))
    return InMemory(Activations(rows, values[:, :, None], layer_numbers, (position,)))


def _array(values: Any, name: str) -> NDArray[Any]:
    """Returns the values as a NumPy array; a torch tensor may be on any device and of any type."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().float().numpy()
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{name} is no array ({error}); expected numbers, all rows of one length") from error
    if array.dtype.kind not in "fiub":
        raise RecordError(f"{name} came as {array.dtype}; expected numbers, all rows of one length")
    return array
