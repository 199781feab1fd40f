"""A probe from plain arrays of hidden states, wherever they come from: no run store, no log-probabilities."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, Generator
from metaprobe.eval.table import bare_table
from metaprobe.records.errors import RecordError
from metaprobe.records.types import POSITIONS
from metaprobe.training.crossfit.folds import crossfit
from metaprobe.training.crossfit.methods import AFTER, BEFORE, Evidence, HiddenProbeMethod, LowRankProbe, ProbeKind
from metaprobe.training.hidden.fit import export_hidden
from metaprobe.training.linear.states import Block, check_captured

ALONE = "no groups were given, so each row stands for itself: rows that share a question make the numbers too good"


@dataclass(frozen=True, slots=True, eq=False)
class ArrayStates:
    """Hidden states that are held as one array, at one position."""

    values: NDArray[np.float32]
    """(n, layers, D)."""
    layers: tuple[int, ...]
    positions: tuple[str, ...]

    def read(self, layer: int, position: str) -> Block:
        check_captured(self, (layer,), (position,))
        return self.values[:, self.layers.index(layer)]


def fit_arrays(
    path: str | Path,
    X: Any,
    y: Any,
    *,
    groups: Sequence[object] | None,
    layers: Sequence[int] | None,
    position: str,
    kind: ProbeKind,
    target: str,
    model: str,
    folds: int,
    seed: int,
    command: str,
) -> Checkpoint:
    """Returns the checkpoint of a probe fitted on these states X (n, d) or (n, layers, d) and labels y (n,) of 0 and 1.

    Roles, solver, choice of the layer, calibration, held-out metrics and audits are those of `metaprobe train hidden`,
    but for what needs log-probabilities. Raises `RecordError` for arrays that are not what they should be.
    """
    states = _states(X, layers, position)
    labels, named = _labels(y, len(states.values)), _groups(groups, len(states.values))
    evidence = Evidence(
        table=bare_table(labels, named),
        features=np.empty((len(labels), 0), dtype=np.float32),
        feature_names=(),
        schema="",
        states=states,
        generator=Generator(model) if model else None,
        fingerprint=_fingerprint(states.values, labels, named),
        regrouped="" if groups is not None else ALONE,
    )
    name = BEFORE if position == "prompt_last" else AFTER
    method = LowRankProbe(name, (position,)) if kind == "low-rank" else HiddenProbeMethod(name, (position,), kind)
    fits = crossfit(evidence, [method], folds=folds, seed=seed)
    return export_hidden(path, evidence, fits, method=method, target=target, seed=seed, command=command)


def _states(X: Any, layers: Sequence[int] | None, position: str) -> ArrayStates:
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
    named = tuple(range(values.shape[1])) if layers is None else tuple(int(layer) for layer in layers)
    if len(set(named)) != values.shape[1] or min(named) < 0:
        raise RecordError(
            f"layers {list(named)} for X of {values.shape[1]} layers: expected as many different numbers, 0 for the "
            "embeddings' output and i for the output of block i"
        )
    return ArrayStates(values, named, (position,))


def _labels(y: Any, n: int) -> NDArray[np.int64]:
    labels = _array(y, "y")
    if labels.shape != (n,):
        raise RecordError(f"y has shape {labels.shape}; expected one label a row of X, ({n},)")
    if strangers := sorted({*labels.tolist()} - {0, 1})[:3]:
        raise RecordError(
            f"y holds {', '.join(map(str, strangers))}; expected 0 and 1. For success rates there is `metaprobe train "
            "hidden --target success-rate`"
        )
    return labels.astype(np.int64)


def _groups(groups: Sequence[object] | None, n: int) -> NDArray[np.str_]:
    named = [f"row {i}" for i in range(n)] if groups is None else [str(group) for group in groups]
    if len(named) != n:
        raise RecordError(f"groups has {len(named)} entries; expected one a row of X, {n}")
    return np.array(named)


def _array(values: Any, name: str) -> NDArray[Any]:
    """As NumPy has it; a torch tensor may be on any device and of any type."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().float().numpy()
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{name} is no array ({error}); expected numbers, all rows of one length") from error
    if array.dtype.kind not in "fiub":
        raise RecordError(f"{name} came as {array.dtype}; expected numbers, all rows of one length")
    return array


def _fingerprint(values: NDArray[np.float32], y: NDArray[np.int64], groups: NDArray[np.str_]) -> str:
    digest = hashlib.sha256(repr(values.shape).encode() + values.astype("<f4").tobytes() + y.astype("<i8").tobytes())
    digest.update("\0".join(groups.tolist()).encode())
    return digest.hexdigest()
