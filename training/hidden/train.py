"""From a study to the checkpoint of one of its probes."""

from pathlib import Path

from metaprobe.checkpoints import Checkpoint
from metaprobe.records.errors import RecordError
from metaprobe.training.crossfit.methods import (
    AFTER,
    BEFORE,
    Evidence,
    HiddenProbeMethod,
    LowRankProbe,
)
from metaprobe.training.crossfit.study import Study
from metaprobe.training.hidden.fit import export_hidden


def train_hidden(path: str | Path, of: Study, *, when: str, target: str, command: str) -> Checkpoint:
    """The probe `before` the answer (difficulty) or `after` it (confidence), of the kind the study was made with."""
    positions = positions_of(of.evidence, when)
    name = BEFORE if when == "before" else AFTER
    for method in of.methods:
        if isinstance(method, HiddenProbeMethod | LowRankProbe) and method.name == name:
            return export_hidden(
                path, of.evidence, of.fits, method=method, target=target, seed=of.seed, command=command
            )
    raise AssertionError(f"no method reads {positions}")


def positions_of(evidence: Evidence, when: str) -> tuple[str, ...]:
    """Positions captured `before` or `after` the answer. Raises `RecordError` where there are none."""
    states = evidence.states
    if states is None:
        raise RecordError(
            f"{evidence.without_hidden} of {len(evidence.table)} labelled answers have no hidden states: collect them "
            f"with a local model and --capture, or run `metaprobe extract`"
        )
    positions = tuple(p for p in states.positions if (p == "prompt_last") == (when == "before"))
    if not positions:
        other = "after" if when == "before" else "before"
        raise RecordError(
            f"no position {when} the answer was captured; there are: {', '.join(states.positions)}, "
            f"which --when {other} reads"
        )
    return positions
