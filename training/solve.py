"""Logistic probes, many at a time: all folds and penalties of a block share each pass over its hidden states.

Each problem is min over (w, b) of  (1 / N) sum_i m_i loss(w z_i + b, y_i) + (alpha / 2) |w|^2,  where m says which rows
its fold learns from and N is their number. It is solved by Newton's method, with each step by conjugate gradients. The
Hessians of all folds are close to one matrix for each penalty, Z'Z / 4n + alpha I (Böhning 1992). Its Cholesky factor
preconditions the problems, so that few conjugate gradients are needed. A step costs two matrix products, whatever the
number of problems.
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
"""Most Newton steps with exact states."""
CG_STEPS = 60
"""Most conjugate gradients of a Newton step."""
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

    A target between 0 and 1 is a success rate: the loss is then the cross-entropy to it.

    Args:
        Z: hidden states (n, D), float32, standardised (`standardise`).
        y: targets in [0, 1], (n,).
        learns: whether fold f learns from row i, (F, n).
        penalties: the penalties alpha (P,), positive.
    """
    D, F, P = Z.shape[1], len(learns), len(penalties)
    weakest_first = penalties.argsort()
    problems = _Problems(
        y=y,
        share=(learns / learns.sum(dim=1, keepdim=True)).repeat(P, 1),
        alpha=penalties[weakest_first].repeat_interleave(F)[:, None],
        factors=_factors(Z, penalties[weakest_first]),
    )
    rounded, start = Z.to(_rounded_type()), (torch.zeros(P * F, D), torch.zeros(P * F, 1))
    # Most steps use rounded states, which leaves few exact products.
    w, b, _, _ = problems.solve(
        *start, rows=rounded, curvature_rows=rounded, tolerance=ROUGH_TOLERANCE, steps=ROUGH_STEPS
    )
    w, b, scores, gradient = problems.solve(
        w, b, rows=Z, curvature_rows=rounded, tolerance=GRADIENT_TOLERANCE, steps=ROUGH_STEPS
    )
    if not gradient <= GRADIENT_TOLERANCE:
        # With almost no penalty, rounding can lead far astray: start again with exact states.
        w, b, scores, gradient = problems.solve(
            *start, rows=Z, curvature_rows=Z, tolerance=GRADIENT_TOLERANCE, steps=NEWTON_STEPS
        )
    original_order = weakest_first.argsort()
    w, b, scores = (part.view(P, F, -1)[original_order].transpose(0, 1).contiguous() for part in (w, b, scores))
    return Solved(w, b[..., 0], scores, gradient)


def standardise(X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (Z, mean (..., D), scale (..., D)) of float32 states X (..., n, D).

    A constant unit becomes 0, and its scale is infinity.
    """
    mean = X.mean(dim=-2)
    Z = X - mean[..., None, :]
    scale = Z.square().mean(dim=-2).sqrt()
    # float32 leaves a constant unit a spread of about 1e-7 of its size.
    scale = torch.where(scale > 1e-6 * mean.abs(), scale, torch.inf)
    return Z.div_(scale[..., None, :]), mean, scale


def _rounded_type() -> torch.dtype:
    """Returns the type to which states are rounded in products that decide only the direction of a step.

    bfloat16 is four times as fast as float32 if the processor multiplies it natively, and slower if not.
    """
    capabilities = torch.cpu.get_capabilities()
    return (
        torch.bfloat16 if any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16")) else torch.float32
    )


def _factors(Z: Tensor, penalties: Tensor) -> Tensor:
    """Returns Cholesky factors (P, D, D) of a matrix that all folds' Hessians are close to, at each penalty."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")  # rounds the states, but not their sums of products
    try:
        gram = Z.T @ Z
    finally:
        torch.set_float32_matmul_precision(before)
    # Rounding must not make the matrix indefinite. Standardised states have a mean eigenvalue of 1, and rounding
    # changes it by 1e-3, which is added.
    bound = gram.mul_(CURVATURE / len(Z)).repeat(len(penalties), 1, 1)
    bound.diagonal(dim1=1, dim2=2).add_(penalties[:, None] + 1e-3)
    factors: Tensor = torch.linalg.cholesky(bound)
    return factors


Point = tuple[Tensor, Tensor]
"""Weights (C, D) and intercepts (C, 1) of C problems."""


@dataclass(frozen=True, slots=True, eq=False)
class _Problems:
    """C = P x F problems, all folds of a penalty together, the weakest penalty first.

    The weakest penalty takes the most steps, so the problems that are not solved yet are the first ones.
    """

    y: Tensor  # (n,)
    share: Tensor  # (C, n): each row's share in its problem's loss
    alpha: Tensor  # (C, 1)
    factors: Tensor  # (P, D, D)

    def solve(
        self, w: Tensor, b: Tensor, *, rows: Tensor, curvature_rows: Tensor, tolerance: float, steps: int
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        """Returns weights (C, D), intercepts (C, 1), scores (C, n) and the largest gradient.

        Args:
            w: start of the weights (C, D).
            b: start of the intercepts (C, 1).
            rows: hidden states (n, D) of the objective, rounded or exact.
            curvature_rows: hidden states (n, D) of the Hessian, rounded or exact.
            tolerance: largest gradient of a solved problem.
            steps: most Newton steps.
        """
        w, b = w.clone(), b.clone()
        scores, largest_gradients = _product(w, rows.T) + b, torch.full((len(w),), torch.inf)
        unsolved_count = len(w)
        for _ in range(steps):
            problem = self.first(unsolved_count)
            p = torch.sigmoid(scores[:unsolved_count])
            residual = problem.share * (p - self.y)
            gradient = _product(residual, rows) + problem.alpha * w[:unsolved_count], residual.sum(dim=1, keepdim=True)
            largest_gradients[:unsolved_count] = torch.cat(gradient, dim=1).abs().amax(dim=1)
            if not (unsolved_count := self.unsolved(largest_gradients[:unsolved_count] > tolerance)):
                break
            problem, p, gradient = (
                self.first(unsolved_count),
                p[:unsolved_count],
                (gradient[0][:unsolved_count], gradient[1][:unsolved_count]),
            )
            step = problem._newton_step(curvature_rows, gradient, problem.share * p * (1 - p))
            score_change = _product(step[0], rows.T) + step[1]
            objective = problem._objective(scores[:unsolved_count], w[:unsolved_count])
            # The full step nearly always lowers the objective. If it does not, the step is halved, up to 8 times.
            length = torch.ones_like(objective)
            for _ in range(8):
                objective_at_step = problem._objective(
                    scores[:unsolved_count] + length * score_change, w[:unsolved_count] + length * step[0]
                )
                is_worse = objective_at_step > objective + 1e-6 * objective.abs()
                if not is_worse.any():
                    break
                length = torch.where(is_worse, length / 2, length)
            for values, change in ((w, step[0]), (b, step[1]), (scores, score_change)):
                values[:unsolved_count] += length * change
        return w, b, scores, float(largest_gradients.max())

    def unsolved(self, is_unsolved: Tensor) -> int:
        """Returns the smallest number of first problems, in whole penalties, that includes all unsolved problems."""
        folds, unsolved_indices = len(self.alpha) // len(self.factors), is_unsolved.nonzero()
        return (int(unsolved_indices.max()) // folds + 1) * folds if len(unsolved_indices) else 0

    def first(self, size: int) -> Self:
        """Returns the first `size` problems, a multiple of the number of folds."""
        factors = self.factors[: size * len(self.factors) // len(self.alpha)]
        return replace(self, share=self.share[:size], alpha=self.alpha[:size], factors=factors)

    def _objective(self, scores: Tensor, w: Tensor) -> Tensor:
        """Returns each problem's penalised log loss (C, 1)."""
        row_loss = torch.nn.functional.softplus(scores) - self.y * scores
        return (self.share * row_loss).sum(dim=1, keepdim=True) + self.alpha * w.square().sum(dim=1, keepdim=True) / 2

    def _newton_step(self, rows: Tensor, gradient: Point, second_derivative: Tensor) -> Point:
        """Returns minus the inverse Hessian times the gradient, less exactly while the gradient is large.

        This is the inexact Newton method: the relative residual is at most min(0.1, sqrt(|gradient|)) (Nocedal & Wright
        2006, section 7.1).

        Args:
            rows: hidden states (n, D).
            gradient: the gradient.
            second_derivative: second derivative of each row's loss in each problem, (C, n).
        """
        problem, point = self, (torch.zeros_like(gradient[0]), torch.zeros_like(gradient[1]))
        residual = -gradient[0], -gradient[1]
        residual_norm = _dot(residual, residual).sqrt()
        goal = residual_norm * residual_norm.sqrt().clamp_max(0.1)
        direction = preconditioned = self._precondition(residual)
        rho = _dot(residual, preconditioned)
        for _ in range(CG_STEPS):
            weighted = second_derivative * (_product(direction[0], rows.T) + direction[1])
            image = _product(weighted, rows) + problem.alpha * direction[0], weighted.sum(dim=1, keepdim=True)
            curvature = _dot(direction, image)
            length = torch.where(curvature > 0, rho / curvature, 0.0)
            for values, change in zip(point, direction, strict=True):
                values[: len(change)] += length * change
            residual = _along(residual, -length, image)
            if not (unsolved_count := problem.unsolved((_dot(residual, residual).sqrt() > goal)[:, 0])):
                break
            if unsolved_count < len(rho):
                problem, second_derivative, goal, rho = (
                    problem.first(unsolved_count),
                    second_derivative[:unsolved_count],
                    goal[:unsolved_count],
                    rho[:unsolved_count],
                )
                residual, direction = (
                    (residual[0][:unsolved_count], residual[1][:unsolved_count]),
                    (direction[0][:unsolved_count], direction[1][:unsolved_count]),
                )
            preconditioned = problem._precondition(residual)
            next_rho = _dot(residual, preconditioned)
            direction = _along(preconditioned, torch.where(rho > 0, next_rho / rho, 0.0), direction)
            rho = next_rho
        return point

    def _precondition(self, v: Point) -> Point:
        """Returns the inverse of the shared matrix of each problem's penalty times v."""
        (C, D), P = v[0].shape, len(self.factors)
        columns = v[0].reshape(P, C // P, D).mT  # (P, D, F)
        # `cholesky_solve` would copy the factors each time.
        half = torch.linalg.solve_triangular(self.factors, columns, upper=False)
        solved = torch.linalg.solve_triangular(self.factors.mT, half, upper=True)
        return solved.mT.reshape(C, D), v[1] / CURVATURE


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Returns a @ b in float32, after rounding a to the type of b."""
    return (a.to(b.dtype) @ b).float()


def _dot(a: Point, b: Point) -> Tensor:
    """Returns the inner product of each problem's two points, (C, 1)."""
    return (a[0] * b[0]).sum(dim=1, keepdim=True) + a[1] * b[1]


def _along(start: Point, length: Tensor, direction: Point) -> Point:
    """Returns start + length * direction."""
    return start[0] + length * direction[0], start[1] + length * direction[1]
