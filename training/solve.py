"""Logistic probes, many at a time: all folds and penalties of a block share each pass over its hidden states.

Each problem is min over (w, b) of  (1 / N) sum_i m_i loss(w z_i + b, y_i) + (alpha / 2) |w|^2,  where m says which rows
its fold learns from and N is their number. Newton's method, each step by conjugate gradients; what makes them few is
that the Hessians of all folds are close to one matrix a penalty, Z'Z / 4n + alpha I (Böhning 1992), whose Cholesky
factor turns the problems into nearly round ones. A step costs two matrix products, whatever the number of problems.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

GRADIENT_TOLERANCE = 1e-4
"""Largest entry of the gradient at which a problem counts as solved: the default of scikit-learn's `lbfgs`."""
ROUGH_TOLERANCE = 1e-3
"""Tolerance of the gradient for rounded states: about as much as rounding moves the gradient."""
ROUGH_STEPS = 6
"""Most Newton steps with rounded states, before exact states are used."""
NEWTON_STEPS = 40
CG_STEPS = 60
CURVATURE = 0.25
"""Largest second derivative of the logistic loss."""


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """F folds x P penalties of one block (a layer at a position)."""

    weights: Tensor
    """Weights for standardised hidden states: float32 (F, P, D)."""
    intercept: Tensor
    """Intercepts: float32 (F, P)."""
    scores: Tensor
    """Scores w z + b of every row, those that the fold did not learn from included: float32 (F, P, n)."""
    gradient: float
    """Largest entry of any gradient at the end; at most `GRADIENT_TOLERANCE` unless the steps ran out."""


@torch.inference_mode()
def solve_logistic(Z: Tensor, y: Tensor, learns: Tensor, penalties: Tensor) -> Solved:
    """Solves every fold and penalty of a block.

    `Z` (n, D) float32, standardised (`standardise`); `y` (n,) in [0, 1]; `learns` (F, n), whether fold f learns from
    row i; `penalties` (P,), alpha above, positive. A target between 0 and 1 is a success rate: the loss is then the
    cross-entropy to it.
    """
    D, F, P = Z.shape[1], len(learns), len(penalties)
    weakest_first = penalties.argsort()
    problems = _Problems(
        y=y,
        share=(learns / learns.sum(dim=1, keepdim=True)).repeat(P, 1),
        alpha=penalties[weakest_first].repeat_interleave(F)[:, None],
        factors=_factors(Z, penalties[weakest_first]),
    )
    rough, start = Z.to(_rounded_type()), (torch.zeros(P * F, D), torch.zeros(P * F, 1))
    # Nearly all of the way with rounded states, which leaves little of it to exact products.
    w, b, _, _ = problems.solve(*start, rough, rough, ROUGH_TOLERANCE, ROUGH_STEPS)
    w, b, scores, gradient = problems.solve(w, b, Z, rough, GRADIENT_TOLERANCE, ROUGH_STEPS)
    if not gradient <= GRADIENT_TOLERANCE:
        # Under next to no penalty rounding can lead astray, and far: begin again without.
        w, b, scores, gradient = problems.solve(*start, Z, Z, GRADIENT_TOLERANCE, NEWTON_STEPS)
    back = weakest_first.argsort()
    w, b, scores = (part.view(P, F, -1)[back].transpose(0, 1).contiguous() for part in (w, b, scores))
    return Solved(w, b[..., 0], scores, gradient)


def standardise(X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (Z, mean (..., D), scale (..., D)) of float32 states X (..., n, D).

    A constant unit becomes 0, its scale infinity.
    """
    mean = X.mean(dim=-2)
    Z = X - mean[..., None, :]
    scale = Z.square().mean(dim=-2).sqrt()
    # float32 leaves a constant unit a spread of about 1e-7 of its size.
    scale = torch.where(scale > 1e-6 * mean.abs(), scale, torch.inf)
    return Z.div_(scale[..., None, :]), mean, scale


def _rounded_type() -> torch.dtype:
    """Returns the type that states may be rounded to where a product decides only the direction of a step.

    bfloat16 is four times as fast where the processor multiplies it, and slower than float32 where it does not.
    """
    able = torch.cpu.get_capabilities()
    return torch.bfloat16 if any(able.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16")) else torch.float32


def _factors(Z: Tensor, penalties: Tensor) -> Tensor:
    """Returns Cholesky factors (P, D, D) of a matrix that all folds' Hessians are close to, at each penalty."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")  # rounds the states, but not their sums of products
    try:
        gram = Z.T @ Z
    finally:
        torch.set_float32_matmul_precision(before)
    # Rounding must not make it indefinite: 1 is the mean eigenvalue of standardised states, the rounding 1e-3 of it.
    bound = gram.mul_(CURVATURE / len(Z)).repeat(len(penalties), 1, 1)
    bound.diagonal(dim1=1, dim2=2).add_(penalties[:, None] + 1e-3)
    factors: Tensor = torch.linalg.cholesky(bound)
    return factors


Point = tuple[Tensor, Tensor]
"""Weights (C, D) and intercepts (C, 1) of C problems."""


@dataclass(frozen=True, slots=True, eq=False)
class _Problems:
    """C = P x F problems, all folds of a penalty together and the weakest penalty first: it takes the most steps, so
    that the problems which are not solved yet are the first ones."""

    y: Tensor  # (n,)
    share: Tensor  # (C, n): each row's share in its problem's loss
    alpha: Tensor  # (C, 1)
    factors: Tensor  # (P, D, D)

    def solve(
        self, w: Tensor, b: Tensor, rows: Tensor, curved: Tensor, tolerance: float, steps: int
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        """Returns (weights, intercepts, scores, largest gradient), from a start.

        Of rows (n, D), rounded or not, and with the curvature of `curved` (n, D).
        """
        w, b = w.clone(), b.clone()
        scores, left = _product(w, rows.T) + b, torch.full((len(w),), torch.inf)
        size = len(w)
        for _ in range(steps):
            problem = self.first(size)
            p = torch.sigmoid(scores[:size])
            error = problem.share * (p - self.y)
            gradient = _product(error, rows) + problem.alpha * w[:size], error.sum(dim=1, keepdim=True)
            left[:size] = torch.cat(gradient, dim=1).abs().amax(dim=1)
            if not (size := self.unsolved(left[:size] > tolerance)):
                break
            problem, p, gradient = self.first(size), p[:size], (gradient[0][:size], gradient[1][:size])
            step = problem._newton_step(curved, gradient, problem.share * p * (1 - p))
            moved = _product(step[0], rows.T) + step[1]
            value = problem._objective(scores[:size], w[:size])
            # The full step all but always lowers the objective; where it does not, half of it, and so on.
            length = torch.ones_like(value)
            for _ in range(8):
                objective_there = problem._objective(scores[:size] + length * moved, w[:size] + length * step[0])
                worse = objective_there > value + 1e-6 * value.abs()
                if not worse.any():
                    break
                length = torch.where(worse, length / 2, length)
            for values, change in ((w, step[0]), (b, step[1]), (scores, moved)):
                values[:size] += length * change
        return w, b, scores, float(left.max())

    def unsolved(self, still: Tensor) -> int:
        """Returns the number of first problems, in whole penalties, that include all problems which are `still`
        unsolved.
        """
        folds, places = len(self.alpha) // len(self.factors), still.nonzero()
        return (int(places.max()) // folds + 1) * folds if len(places) else 0

    def first(self, size: int) -> Self:
        """Returns the first problems, of whole penalties."""
        factors = self.factors[: size * len(self.factors) // len(self.alpha)]
        return replace(self, share=self.share[:size], alpha=self.alpha[:size], factors=factors)

    def _objective(self, scores: Tensor, w: Tensor) -> Tensor:
        """Returns each problem's penalised log loss (C, 1)."""
        each = torch.nn.functional.softplus(scores) - self.y * scores
        return (self.share * each).sum(dim=1, keepdim=True) + self.alpha * w.square().sum(dim=1, keepdim=True) / 2

    def _newton_step(self, rows: Tensor, gradient: Point, second: Tensor) -> Point:
        """Minus the inverse Hessian times the gradient, loosely while the gradient is large.

        The inexact Newton method: the relative residual is at most min(0.1, sqrt(|gradient|)) (Nocedal & Wright 2006,
        section 7.1).
        """
        problem, point = self, (torch.zeros_like(gradient[0]), torch.zeros_like(gradient[1]))
        residual = -gradient[0], -gradient[1]
        size = _dot(residual, residual).sqrt()
        goal = size * size.sqrt().clamp_max(0.1)
        direction = steepest = self._round(residual)
        rho = _dot(residual, steepest)
        for _ in range(CG_STEPS):
            weighed = second * (_product(direction[0], rows.T) + direction[1])
            image = _product(weighed, rows) + problem.alpha * direction[0], weighed.sum(dim=1, keepdim=True)
            bent = _dot(direction, image)
            length = torch.where(bent > 0, rho / bent, 0.0)
            for values, change in zip(point, direction, strict=True):
                values[: len(change)] += length * change
            residual = _along(residual, -length, image)
            if not (left := problem.unsolved((_dot(residual, residual).sqrt() > goal)[:, 0])):
                break
            if left < len(rho):
                problem, second, goal, rho = problem.first(left), second[:left], goal[:left], rho[:left]
                residual, direction = (
                    (residual[0][:left], residual[1][:left]),
                    (direction[0][:left], direction[1][:left]),
                )
            steepest = problem._round(residual)
            following = _dot(residual, steepest)
            direction = _along(steepest, torch.where(rho > 0, following / rho, 0.0), direction)
            rho = following
        return point

    def _round(self, v: Point) -> Point:
        """Returns the inverse of the shared matrix of each problem's penalty times v."""
        (C, D), P = v[0].shape, len(self.factors)
        columns = v[0].reshape(P, C // P, D).mT  # (P, D, F)
        # Not cholesky_solve, which copies the factors each time.
        half = torch.linalg.solve_triangular(self.factors, columns, upper=False)
        solved = torch.linalg.solve_triangular(self.factors.mT, half, upper=True)
        return solved.mT.reshape(C, D), v[1] / CURVATURE


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Returns a @ b in float32, with a rounded as b is."""
    return (a.to(b.dtype) @ b).float()


def _dot(a: Point, b: Point) -> Tensor:
    return (a[0] * b[0]).sum(dim=1, keepdim=True) + a[1] * b[1]


def _along(start: Point, length: Tensor, direction: Point) -> Point:
    return start[0] + length * direction[0], start[1] + length * direction[1]
