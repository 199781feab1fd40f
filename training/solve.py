"""Logistic probes, many at a time: all folds and penalties of a block share each pass over its hidden states.

Each problem is min over (w, b) of  (1 / N) sum_i m_i loss(w z_i + b, y_i) + (alpha / 2) |w|^2,  where m says which rows
its fold learns from and N is their number. Newton's method, each step by conjugate gradients; what makes them few is
that the Hessians of all folds are close to one matrix a penalty, Z'Z / 4n + alpha I (Böhning 1992), whose Cholesky
factor turns the problems into nearly round ones. A step costs two matrix products, whatever the number of problems.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = 1e-4
"""Largest entry of the gradient at which a problem counts as solved; scikit-learn's default for its `lbfgs`."""
NEWTON_STEPS = 40
CG_STEPS = 60
CURVATURE = 0.25
"""Largest second derivative of the logistic loss."""


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """B blocks (a layer at a position each) x F folds x P penalties."""

    weights: Tensor
    """float32 (B, F, P, D), for standardised hidden states."""
    intercept: Tensor
    """float32 (B, F, P)."""
    scores: Tensor
    """float32 (B, F, P, n): w z + b of every row, those included that the fold did not learn from."""
    gradient: float
    """Largest entry of any gradient where it ended; at most `TOLERANCE` unless the steps ran out."""


@torch.inference_mode()
def solve_logistic(Z: Tensor, y: Tensor, learns: Tensor, penalties: Tensor) -> Solved:
    """Every fold and penalty of every block.

    `Z` (B, n, D) float32, standardised (`standardised`); `y` (n,) in [0, 1]; `learns` (F, n), whether fold f learns
    from row i; `penalties` (P,), alpha above, positive. A target between 0 and 1 is a success rate: the loss is then
    the cross-entropy to it.
    """
    B, n, D = Z.shape
    F, P = learns.shape[0], len(penalties)
    columns = Z.transpose(1, 2).contiguous()  # products are fastest of what is contiguous
    problems = _Problems(
        rows=Z,
        columns=columns,
        y=y,
        share=(learns / learns.sum(dim=1, keepdim=True)).repeat_interleave(P, dim=0),
        alpha=penalties.to(Z.dtype).repeat(F)[:, None],
        factors=_factors(Z, columns, penalties),
    )
    w, b, scores, gradient = problems.solve()
    return Solved(w.view(B, F, P, D), b.view(B, F, P), scores.view(B, F, P, n), gradient)


def standardised(X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(Z, mean (B, D), scale (B, D)) of float32 blocks X (B, n, D); a constant unit becomes 0, its scale infinity."""
    mean = X.mean(dim=1)
    Z = X - mean[:, None]
    scale = torch.linalg.vector_norm(Z, dim=1) / X.shape[1] ** 0.5
    # float32 leaves a constant unit a spread of about 1e-7 of its size.
    scale = torch.where(scale > 1e-6 * mean.abs().clamp_min(1e-2), scale, torch.inf)
    return Z.div_(scale[:, None]), mean, scale


@contextmanager
def _rough_products() -> Iterator[None]:
    """Matrix products of float32 may round their factors (bfloat16 on CPUs that have it, TF32 on GPUs).

    Four times as fast where the hardware can, and enough for the direction of a step: where it leads is then computed
    exactly.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _factors(Z: Tensor, columns: Tensor, penalties: Tensor) -> Tensor:
    """(B, P, D, D): Cholesky factors of what all folds' Hessians are close to, at each penalty."""
    with _rough_products():
        gram = columns @ Z
    identity = torch.eye(Z.shape[2], dtype=Z.dtype, device=Z.device)
    bound = (CURVATURE / Z.shape[1]) * (gram + gram.transpose(1, 2)) / 2
    # Rounding must not make it indefinite: 1 is the mean eigenvalue of standardised states, the rounding 1e-3 of it.
    factors: Tensor = torch.linalg.cholesky(bound[:, None] + (penalties[:, None, None] + 1e-3) * identity)
    return factors


Point = tuple[Tensor, Tensor]
"""Weights (B, C, D) and intercepts (B, C, 1) of C problems of each block."""


@dataclass(frozen=True, slots=True, eq=False)
class _Problems:
    rows: Tensor  # (B, n, D)
    columns: Tensor  # (B, D, n)
    y: Tensor  # (n,)
    share: Tensor  # (C, n): each row's share in its problem's loss
    alpha: Tensor  # (C, 1)
    factors: Tensor  # (B, P, D, D)

    def solve(self) -> tuple[Tensor, Tensor, Tensor, float]:
        """(weights, intercepts, scores, largest gradient)."""
        B, n, D = self.rows.shape
        C = len(self.share)
        w, b = self.rows.new_zeros(B, C, D), self.rows.new_zeros(B, C, 1)
        scores = self.rows.new_zeros(B, C, n)
        value, left = self._objective(scores, w), float("inf")
        for _ in range(NEWTON_STEPS):
            p = torch.sigmoid(scores)
            error = self.share * (p - self.y)
            gradient = error @ self.rows + self.alpha * w, error.sum(dim=2, keepdim=True)
            if (left := max(float(part.abs().max()) for part in gradient)) <= TOLERANCE:
                break
            with _rough_products():
                step = self._newton_step(gradient, self.share * p * (1 - p))
            moved = step[0] @ self.columns + step[1]
            # The full step all but always lowers the objective; where it does not, half of it, and so on.
            length = torch.ones_like(value)
            for _ in range(8):
                found = self._objective(scores + length * moved, w + length * step[0])
                worse = found > value + 1e-6 * value.abs()
                if not worse.any():
                    break
                length = torch.where(worse, length / 2, length)
            w, b, scores, value = w + length * step[0], b + length * step[1], scores + length * moved, found
        return w, b, scores, left

    def _objective(self, scores: Tensor, w: Tensor) -> Tensor:
        """(B, C, 1)."""
        each = torch.nn.functional.softplus(scores) - self.y * scores
        return (self.share * each).sum(dim=2, keepdim=True) + self.alpha * w.square().sum(dim=2, keepdim=True) / 2

    def _newton_step(self, gradient: Point, second: Tensor) -> Point:
        """Minus the inverse Hessian times the gradient, loosely while the gradient is large.

        The inexact Newton method: the relative residual is at most min(0.1, sqrt(|gradient|)) (Nocedal & Wright 2006,
        section 7.1).
        """
        at = torch.zeros_like(gradient[0]), torch.zeros_like(gradient[1])
        residual = -gradient[0], -gradient[1]
        size = _dot(residual, residual).sqrt()
        goal = size * size.sqrt().clamp_max(0.1)
        direction = steepest = self._rounded(residual)
        rho = _dot(residual, steepest)
        for _ in range(CG_STEPS):
            weighed = second * (direction[0] @ self.columns + direction[1])
            image = weighed @ self.rows + self.alpha * direction[0], weighed.sum(dim=2, keepdim=True)
            bent = _dot(direction, image)
            length = torch.where(bent > 0, rho / bent, 0.0)
            at, residual = _along(at, length, direction), _along(residual, -length, image)
            if bool((_dot(residual, residual).sqrt() <= goal).all()):
                break
            steepest = self._rounded(residual)
            following = _dot(residual, steepest)
            direction = _along(steepest, torch.where(rho > 0, following / rho, 0.0), direction)
            rho = following
        return at

    def _rounded(self, v: Point) -> Point:
        """The inverse of the shared matrix of each problem's penalty times v."""
        (B, C, D), P = v[0].shape, self.factors.shape[1]
        columns = v[0].view(B, C // P, P, D).permute(0, 2, 3, 1)  # (B, P, D, F)
        solved = torch.cholesky_solve(columns, self.factors).permute(0, 3, 1, 2).reshape(B, C, D)
        return solved, v[1] / CURVATURE


def _dot(a: Point, b: Point) -> Tensor:
    return (a[0] * b[0]).sum(dim=2, keepdim=True) + a[1] * b[1]


def _along(start: Point, length: Tensor, direction: Point) -> Point:
    return start[0] + length * direction[0], start[1] + length * direction[1]
