"""A probe over all layers at once, of low rank: which layers to look at, and along which directions.

score = sum_r sum_l a[r, l] * (z_l @ b[r]) + intercept: each of the R components weighs the layers (a) and reads one
direction (b), so R * (L + D) numbers are learned and not L * D. For given layer weights it is logistic regression for
the directions, and for given directions logistic regression for the layer weights; the two take turns.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.training.folds import Roles
from metaprobe.training.linear import LinearProbe, SweepPoint
from metaprobe.training.solve import solve_logistic, standardise
from metaprobe.training.states import States, check_captured

RANKS = (1, 2)
PENALTIES = (0.1, 1.0, 10.0)
TURNS = 4
"""After four turns the objective of trial fits changed by less than 1e-3 of itself."""
LAYER_PENALTY = 0.1
"""For the layer weights, of which there are few."""


def fit_low_rank_probe(
    states: States,
    y: NDArray[np.int64],
    roles: Roles,
    *,
    positions: Sequence[str],
    ranks: Sequence[int] = RANKS,
    penalties: Sequence[float] = PENALTIES,
) -> LinearProbe:
    """The probe whose position, rank and penalty rank the selection rows best, fitted on all learning rows.

    Holds all layers of one position in memory as float32. Raises `RecordError` where a position was not captured.
    """
    check_captured(states, (), positions)
    learn = roles.learning
    target = torch.from_numpy(y[learn].astype(np.float32))
    train, selection = np.searchsorted(learn, roles.train), np.searchsorted(learn, roles.selection)
    best, chosen, tried = -1.0, (positions[0], ranks[0], penalties[0]), []
    for position in positions:
        Z, _, _ = standardise(_blocks(states, position)[:, learn])  # (L, n, D)
        for rank in ranks:
            fits = _alternate(Z, target, train, rank, penalties)
            for penalty, (weights, _) in zip(penalties, fits, strict=True):
                scores = torch.einsum("lnd,ld->n", Z[:, selection], weights).numpy()
                reached = float(auroc(y[roles.selection], scores))
                tried.append(SweepPoint(-1, f"{position}, rank {rank}", penalty, reached))
                if reached > best:
                    best, chosen = reached, (position, rank, penalty)
    position, rank, penalty = chosen
    Z, mean, scale = standardise(_blocks(states, position)[:, learn])
    [(weights, intercept)] = _alternate(Z, target, np.arange(len(learn)), rank, (penalty,))
    constant = scale.isinf()
    return LinearProbe(
        kind=f"low-rank ({rank})",
        layers=states.layers,
        position=position,
        penalty=penalty,
        mean=mean.double().numpy().ravel(),
        scale=torch.where(constant, 1.0, scale).double().numpy().ravel(),
        weights=torch.where(constant, 0.0, weights).double().numpy().ravel(),
        intercept=float(intercept),
        sweep=tuple(tried),
        tried=len(tried),
    )


def _blocks(states: States, position: str) -> Tensor:
    """(L, n, D) float32."""
    return torch.from_numpy(np.stack([states.read(layer, position).astype(np.float32) for layer in states.layers]))


def _alternate(
    Z: Tensor, y: Tensor, rows: NDArray[np.int64], rank: int, penalties: Sequence[float]
) -> list[tuple[Tensor, Tensor]]:
    """(weights (L, D), intercept) for each penalty."""
    Z, y = Z[:, rows], y[rows]
    L, n, D = Z.shape
    everyone = torch.ones(1, n)
    fits = []
    for penalty in penalties:
        # The first component looks at all layers alike; each further one begins at the layers that grow, then fall.
        a = torch.cos(torch.pi * torch.arange(rank)[:, None] * (torch.arange(L) + 0.5) / L)  # (R, L)
        b, intercept = torch.zeros(rank, D), torch.zeros(())
        for _ in range(TURNS):
            a = a / a.norm(dim=1, keepdim=True).clamp_min(1e-12)
            seen = torch.einsum("rl,lnd->nrd", a, Z).reshape(n, rank * D)
            solved = solve_logistic(seen, y, everyone, torch.tensor([penalty]))
            b, intercept = solved.weights[0, 0].view(rank, D), solved.intercept[0, 0]
            read = torch.einsum("rd,lnd->nrl", b, Z).reshape(n, rank * L)
            spread = read.std(dim=0)
            # A layer that says the same of all these rows (every answer ends alike, say) weighs nothing.
            spread = torch.where(spread > 1e-5 * read.abs().amax(dim=0), spread, torch.inf)
            solved = solve_logistic(read / spread, y, everyone, torch.tensor([LAYER_PENALTY]))
            a = (solved.weights[0, 0] / spread).view(rank, L)
            intercept = solved.intercept[0, 0]
        fits.append((torch.einsum("rl,rd->ld", a, b), intercept))
    return fits
