"""What a report shows of a probe that chose its layer."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics import Interval

Place = tuple[int, str]
"""A layer and a position."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerSweep:
    """One kind of probe over all layers. Each fold chooses by `training.hidden.one_standard_error`, which need not be
    where `selection_auroc` is highest."""

    probe: str
    layers: tuple[int, ...]
    """0 is the embeddings' output, i the output of block i."""
    positions: tuple[str, ...]
    selection_auroc: NDArray[np.floating]
    """(layers, positions), on selection data, averaged over the folds."""
    choices: tuple[Place, ...]
    """What each fold chose, in the folds' order."""
    shipped: Place | None = None
    """What the checkpoint of this probe reads, which chose anew from all groups; None where no checkpoint is known."""
    test_auroc: Interval
    """Of the chosen ones, on held-out answers."""

    @property
    def chosen(self) -> Place:
        """What most folds chose; of several the last."""
        return max(set(self.choices), key=lambda place: (self.choices.count(place), place))

    @property
    def counted(self) -> tuple[tuple[Place, int], ...]:
        """What the folds chose and how many of them, the most frequent first."""
        places = sorted(set(self.choices), key=lambda place: (-self.choices.count(place), place))
        return tuple((place, self.choices.count(place)) for place in places)
