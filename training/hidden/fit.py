"""Fits a probe on hidden states on all groups, and exports it. Held-out metrics come from the folds."""

from pathlib import Path

import numpy as np

from metaprobe.checkpoints import Checkpoint, FlagOptions
from metaprobe.checkpoints.flag_options import USUAL_FLAGS
from metaprobe.probes import hidden as hidden_probe
from metaprobe.training.common.graphs import linear_graph
from metaprobe.training.common.operating_points import PROMISE
from metaprobe.training.common.roles import final_roles
from metaprobe.training.common.write_checkpoint import Export, write_checkpoint
from metaprobe.training.crossfit.evidence import origin_of_states, reader_contract
from metaprobe.training.crossfit.folds import CrossFit
from metaprobe.training.crossfit.held_out import final_calibrator, measure_held_out, training_record
from metaprobe.training.crossfit.methods import (
    Evidence,
    HiddenProbeMethod,
    LowRankProbe,
)
from metaprobe.training.crossfit.stored_thresholds import ScoredAnswers, flagging_of, own_points
from metaprobe.training.linear.probe import LinearProbe


def export_hidden(
    path: str | Path,
    evidence: Evidence,
    fits: CrossFit,
    *,
    method: HiddenProbeMethod | LowRankProbe,
    target: str,
    seed: int,
    command: str,
    flags: FlagOptions = USUAL_FLAGS,
) -> Checkpoint:
    """The probe of that method for `target`, fitted on all groups, its calibrator in its graph.

    `flags`: what the stored threshold flags.
    """
    states, table = evidence.states, evidence.table
    assert states is not None, "write_hidden has looked"
    roles = final_roles(list(table.groups), table.y, seed=seed)
    probe = method.probe(evidence, roles, seed=seed)
    hidden = probe.read(states)
    scores = probe.score_of(hidden)
    calibrator = final_calibrator(scores, table, roles.calibration, seed)
    rows, held_out = roles.calibration, fits[method.name].probability
    exported = calibrator.probability(scores[rows])
    stored = flagging_of(ScoredAnswers(table, rows, scores, calibrator, exported, held_out, held_out), flags, seed=seed)
    own = own_points(scores, evidence, rows, calibrator)
    metrics, report = measure_held_out(evidence, fits, method, seed)
    before = probe.position == "prompt_last"
    return write_checkpoint(
        path,
        Export(
            kind=hidden_probe.KIND,
            title=f"{'Difficulty' if before else 'Confidence'} probe: {target}",
            summary=_summary_of(probe, target, evidence) + stored.said() + "".join(PROMISE[name] for name in own),
            graph=linear_graph(
                input_name=hidden_probe.INPUT,
                mean=probe.mean,
                scale=probe.scale,
                weights=probe.weights[:, None],
                intercept=np.array([probe.intercept]),
                outputs=[target],
                calibrator=calibrator,
            ),
            input_name=hidden_probe.INPUT,
            inputs=hidden,
            expected={target: calibrator.probability(scores)},
            contract={**probe.contract(target), **reader_contract(evidence)},
            generator=evidence.generator,
            training=training_record(evidence, seed, command),
            calibration=calibrator.name,
            metrics=metrics,
            audits=report.audits,
            not_audited=report.skipped,
            thresholds={**stored.thresholds, **own},
            flagging=stored.flagging,
            promises=stored.promises,
            operating=stored.operating,
            heads=[f"{target}: a probability{stored.lacking}"] if stored.lacking else (),
            packages=("onnx",),
        ),
    )


def _summary_of(probe: LinearProbe, target: str, evidence: Evidence) -> str:
    """Returns the beginning of the card's first paragraph: what the probe reads and gives."""
    will = "will be" if probe.position == "prompt_last" else "is"
    return (
        f"Probability that the answer {will} {target}, from the hidden state of layer "
        f"{', '.join(map(str, probe.layers))} at {probe.position} ({probe.kind}, then a calibrator; chosen among "
        f"{probe.tried} combinations on learning rows). Layer 0 is the embeddings' output, layer i the output of block "
        "i. Difficulty is one minus that probability." + "".join(f" {line}." for line in origin_of_states(evidence))
    )
