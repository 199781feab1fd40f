"""From stored runs of many tasks, with hidden states, to the checkpoint of a blend for tasks that they do not hold."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from metaprobe.checkpoints import Checkpoint
from metaprobe.eval.method_results import Finding
from metaprobe.probes.blend import FEWEST, INPUT, KIND, OUTPUT
from metaprobe.records.activations import CONVENTION
from metaprobe.records.errors import RecordError
from metaprobe.training.blend.fit import POSITION, Floats, choose_layer, weights_of
from metaprobe.training.blend.held_out import (
    BLEND,
    FREE_ALONE,
    MEAN,
    PROBE,
    TasksLeftOut,
    centred_states,
    judge_held_out,
)
from metaprobe.training.common.graphs import linear_graph
from metaprobe.training.common.write_checkpoint import Export, write_checkpoint
from metaprobe.training.common.writing import writes
from metaprobe.training.crossfit.evidence import load_evidence, reader_contract
from metaprobe.training.crossfit.held_out import training_record
from metaprobe.training.crossfit.methods import RUN_IDENTITY, Evidence
from metaprobe.training.linear.states import States
from metaprobe.training.linear.states_choice import Wanted
from metaprobe.training.options import BlendOptions

FEWEST_TASKS = 10
"""Tasks below which leaving some out says little of the next one."""


@writes(KIND)
def train_blend(stores: Sequence[str | Path], options: BlendOptions) -> Checkpoint:
    """Returns the blend's checkpoint, its probe fitted on all labelled answers of these stores.

    The card holds what the blend reached on whole tasks that were left out. Raises `RecordError` for hidden states of
    several models, for fewer than ten tasks, and where the blend is not above the mean log-probability on tasks left
    out.
    """
    evidence = load_evidence(
        stores,
        target=options.target,
        stage=options.stage,
        agent=options.agent,
        wanted=Wanted(options.layers, (POSITION,)),
    )
    states = evidence.states
    if states is None:
        raise RecordError(
            f"{evidence.without_hidden} of {len(evidence.table)} labelled answers have no hidden states at {POSITION}: "
            "run `metaprobe extract` first"
        )
    _check(evidence)
    options.on_step("tasks left out")
    found = judge_held_out(evidence, states)
    gain = found.gains(BLEND, MEAN)
    options.on_line(f"tasks left out: blend {_shown(found, BLEND)}, mean log-probability {_shown(found, MEAN)}")
    if gain.estimate <= 0:
        raise RecordError(
            f"on tasks left out the blend is not above the mean log-probability ({gain.estimate:+.3f} AUROC within "
            f"runs, {gain.low:+.3f} to {gain.high:+.3f}), so none is written: use bundled:quality, or record more tasks"
        )
    options.on_step("fit and export")
    return _write(evidence, states, found, options)


def _check(evidence: Evidence) -> None:
    """Raises `RecordError` for answers to too few tasks."""
    tasks = set(evidence.table.tasks.tolist())
    if len(tasks) < FEWEST_TASKS:
        raise RecordError(
            f"the answers are to {len(tasks)} tasks; expected at least {FEWEST_TASKS}, of which some are left out in"
            " turn: for the tasks at hand there is `metaprobe train hidden`"
        )


def _write(evidence: Evidence, states: States, found: TasksLeftOut, options: BlendOptions) -> Checkpoint:
    """Fits layer and weights on all answers, and writes them with what was found on tasks left out."""
    table, y = evidence.table, evidence.table.y
    runs, rows = RUN_IDENTITY.cells(table), np.arange(len(y))
    inputs = centred_states(states, runs)
    layer = choose_layer(inputs, y, runs, table.tasks, rows)
    weights = weights_of(inputs[layer], y, runs, rows)
    read = states.read(layer, POSITION).astype(np.float32)
    centre, weights = _in_one_unit(read.astype(np.float64), weights)
    return write_checkpoint(
        options.out,
        Export(
            kind=KIND,
            title=f"Travelling blend: {options.target}",
            summary=_summary(layer, found),
            graph=linear_graph(
                input_name=INPUT,
                mean=centre,
                scale=np.ones(len(centre)),
                weights=weights[:, None],
                intercept=np.zeros(1),
                outputs=[OUTPUT],
                probabilities=False,
            ),
            input_name=INPUT,
            inputs=read,
            expected={OUTPUT: (read.astype(np.float64) - centre) @ weights},
            contract={
                "layer": layer,
                "position": POSITION,
                "width": len(weights),
                "convention": CONVENTION,
                "target": options.target,
                "free": FREE_ALONE,
                "standardised_on": f"at least {FEWEST} unlabelled answers of one run",
                **reader_contract(evidence),
            },
            generator=evidence.generator,
            training=training_record(evidence, options.seed, options.recorded("train_blend")),
            calibration="none: scores order the answers of one run",
            calibrated_on="nothing",
            metrics={
                "auroc_within_runs_without_task": found.auroc(BLEND),
                "auroc_within_runs_without_task_of_probe_alone": found.auroc(PROBE),
                "auroc_within_runs_without_task_of_scaled_log_probability": found.auroc(FREE_ALONE),
                "auroc_within_runs_without_task_of_mean_log_probability": found.auroc(MEAN),
                "auroc_within_runs_without_task_gain_over_mean_log_probability": found.gains(BLEND, MEAN),
                "auroc_within_runs_without_task_gain_over_scaled_log_probability": found.gains(BLEND, FREE_ALONE),
            },
            audits=_audits(found),
            packages=("onnx",),
        ),
    )


def _audits(found: TasksLeftOut) -> list[Finding]:
    """Returns, for either free number, whether the blend was above it on tasks left out, with its interval above 0."""
    audits = []
    for free, name in ((MEAN, "mean log-probability"), (FREE_ALONE, "scaled log-probability")):
        gain = found.gains(BLEND, free)
        detail = f"gain in AUROC within runs on tasks left out {gain.estimate:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
        audits.append(Finding(f"blend is above the {name} on tasks left out", gain.low > 0, detail, "weak"))
    return audits


def _in_one_unit(read: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Returns a centre (d,), and weights by which scores of these states have standard deviation 1."""
    centre = read.mean(axis=0)
    return centre, weights / (float(((read - centre) @ weights).std()) or 1.0)


def _shown(found: TasksLeftOut, name: str) -> str:
    reached = found.auroc(name)
    return f"{reached.estimate:.3f} [{reached.low:.3f}, {reached.high:.3f}]"


def _summary(layer: int, found: TasksLeftOut) -> str:
    """Returns the card's first paragraph."""
    return (
        f"Orders the answers of one run (a model, a task, a way of asking) to a task that it has not seen. It adds two "
        f"scores, each standardised on the run's unlabelled answers: a strongly regularised logistic probe on layer "
        f"{layer} at {POSITION}, learned from {len(set(found.tasks.tolist()))} tasks, and the total log-probability "
        f"over the root of the length. Layer 0 is the embeddings' output, layer i the output of block i. It gives no "
        f"probability and no flag, for how often a new task is answered rightly cannot be seen in its scores; without "
        f"a hidden state the log-probabilities stand alone. Numbers below: tasks left out, AUROC inside a run, mean "
        f"over runs with five right and five wrong answers; intervals draw whole tasks."
    )
