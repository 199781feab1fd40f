"""What a killed training need not do again: every finished fold of every method, in a folder beside the checkpoint."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.atomic import atomic_write
from metaprobe.training.common.roles import Roles
from metaprobe.training.crossfit.methods import Evidence, Method, Scores
from metaprobe.training.linear.probe import LinearProbe, SweepPoint

_PLAIN = ("kind", "layers", "position", "penalty", "intercept", "tried")
_ARRAYS = ("mean", "scale", "weights")


@dataclass(frozen=True, slots=True, eq=False)
class FoldFit:
    """One method, fitted in one fold."""

    scores: Scores
    """(n,) of every answer, not only of the held-out ones; not yet probabilities."""
    selection_auroc: float
    probe: LinearProbe | None = None
    """Where the method is a probe."""


class Progress:
    """Finished folds as `.npz` files, found again by what went into them: answers, roles, method, seed, version.

    Without a folder it remembers nothing.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def fold(self, evidence: Evidence, method: Method, roles: Roles, *, seed: int) -> FoldFit:
        """The method fitted with these roles; read from the folder where a training before has done it."""
        path = None
        if self._folder is not None and method.fitted:  # what is given needs no keeping
            path = self._folder / f"{_identity(evidence, method, roles, seed)}.npz"
        if path is not None and (known := _read(path)) is not None:
            return known
        fitted = method.fit(evidence, roles, seed=seed)
        fit = FoldFit(fitted.score(np.arange(len(evidence.table))), fitted.selection_auroc, fitted.probe)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as file:
                np.savez(file, **_arrays(fit))
        return fit


@contextmanager
def keep_beside(checkpoint: Path) -> Iterator[Progress]:
    """Progress in the hidden folder `.NAME.partial` beside a checkpoint to be; removed once that is written."""
    target = checkpoint.resolve()
    folder = target.with_name(f".{target.name}.partial")
    yield Progress(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _identity(evidence: Evidence, method: Method, roles: Roles, seed: int) -> str:
    table, states = evidence.table, evidence.states
    parts = [
        version("metaprobe"),
        evidence.fingerprint,
        evidence.schema,
        "" if states is None else f"{states.layers} {states.positions} {evidence.reader}",
        repr(method),
        str(seed),
        *map(str, table.call_ids.tolist()),
    ]
    digest = hashlib.sha256("\0".join(parts).encode())
    # One block stands for all of them: another model's states, or states read again, differ in each.
    block = [] if states is None else [states.read(states.layers[0], states.positions[0])]
    for array in (table.y, *asdict(roles).values(), *block):
        digest.update(b"\0" + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _arrays(fit: FoldFit) -> dict[str, Any]:
    known: dict[str, object] = {"selection_auroc": fit.selection_auroc}
    arrays: dict[str, NDArray[np.generic]] = {"scores": fit.scores}
    if (probe := fit.probe) is not None:
        known |= {name: getattr(probe, name) for name in _PLAIN}
        known["sweep"] = [asdict(point) for point in probe.sweep]
        arrays |= {name: getattr(probe, name) for name in _ARRAYS}
    return {**arrays, "known": np.array(json.dumps(known))}


def _read(path: Path) -> FoldFit | None:
    """None where there is no such file, or a damaged one: the fold is then fitted again."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        known = json.loads(str(arrays.pop("known")))
        scores, selected = arrays.pop("scores"), float(known.pop("selection_auroc"))
        if not known:
            return FoldFit(scores, selected)
        sweep = tuple(SweepPoint(**point) for point in known.pop("sweep"))
        layers = tuple(known.pop("layers"))
        return FoldFit(scores, selected, LinearProbe(**known, **arrays, layers=layers, sweep=sweep))
    except (OSError, EOFError, BadZipFile, ValueError, KeyError, TypeError, RecursionError):
        return None
