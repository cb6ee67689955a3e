"""The exact inverse of a potential's gradient, by Newton's method with conjugate gradients."""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mirrordescent.conjugate_gradients import conjugate_gradients
from mirrordescent.mirrors.icnn import Potential
from mirrordescent.trees import norm, per_sample

SUFFICIENT = 0.01
"""Share of the ideal decrease that a step must achieve."""

HALVINGS = 15
"""Largest number of halvings of a step; single precision does not resolve smaller decreases."""

LOOSEST = 0.5
"""Relative accuracy of the first Newton directions."""


class NotConverged(UserWarning):
    """A linear or nonlinear solve ended before it reached its tolerance."""


class Inversion(NamedTuple):
    """The result of :func:`invert`."""

    x: Tensor
    """Points with ∇ψ(x) ≈ y, (batch, …)."""

    converged: Tensor
    """Whether the tolerance was reached, (batch,)."""

    residual: Tensor
    """‖∇ψ(x) − y‖, (batch,)."""

    steps: Tensor
    """Number of Newton steps, (batch,)."""


def invert(
    potential: Potential,
    y: Tensor,
    *,
    start: Tensor | None = None,
    tolerance: float | None = None,
    max_iterations: int = 50,
) -> Inversion:
    """Solve ∇ψ(x) = y:  x = ∇ψ*(y) = argmin ψ(x) − ⟨y, x⟩, for a smooth, strongly convex ψ.

    .. code-block:: none

        ∇²ψ(x) p  ≈  y − ∇ψ(x)        by conjugate gradients, with increasing accuracy
        x⁺        =  x + s p           s = 1, ½, ¼, … until ‖∇ψ(x⁺) − y‖ < (1 − s/100)‖∇ψ(x) − y‖

    p is a descent direction for both the objective and the norm of its gradient. The line search
    uses the norm, which needs no values of ψ and, unlike a difference of values, is accurate to the
    last digits. The error is ‖x − ∇ψ*(y)‖ ≤ ‖∇ψ(x) − y‖/α, with the strong convexity α of ψ.

    The result can be differentiated once, with respect to y and to the parameters θ of ψ, by the
    implicit function theorem: dx = (∇²ψ)⁻¹(dy − d_θ∇ψ(x)). No graph of the iteration is stored.

    Args:
        potential: Potential ψ.
        y: Dual points, (batch, …).
        start: First x; y by default.
        tolerance: A sample stops if ‖∇ψ(x) − y‖ ≤ tolerance·max(1, ‖y‖). The default, the machine
            epsilon to the power ⅔, is attainable with rounded gradients: 4e-11 in double precision,
            2e-5 in single precision.
        max_iterations: Largest number of Newton steps. Samples that do not converge are reported by
            a :class:`NotConverged` warning.

    >>> import torch
    >>> from mirrordescent.mirrors import DenseICNN
    >>> potential = DenseICNN(3).double()
    >>> x = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
    >>> invert(potential, potential.gradient(x)).x.detach()
    tensor([[ 1.0000, -2.0000,  0.5000]], dtype=torch.float64)
    """
    tolerance = torch.finfo(y.dtype).eps ** (2 / 3) if tolerance is None else tolerance
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}")
    with torch.no_grad():
        result = _newton(potential, y, y if start is None else start, tolerance, max_iterations)
    if not result.converged.all():
        failed = (~result.converged).nonzero().flatten().tolist()
        worst = float(result.residual[~result.converged].max())
        _warn(
            f"the inverse of {type(potential).__name__} has not converged for samples {failed}: "
            f"residual {worst:.1e}"
        )
    learning = y.requires_grad or any(p.requires_grad for p in potential.parameters())
    if not (torch.is_grad_enabled() and learning):
        return result
    at = _Linearised(potential, result.x)
    x = _ImplicitFunction.apply(at.gradient - y, result.x, at, tolerance)  # type: ignore[no-untyped-call]
    return result._replace(x=x)


class _Linearised:
    """∇ψ at a point, with a graph for products with ∇²ψ.

    The graph refers to the parameters at construction, even if they are replaced later.
    """

    def __init__(self, potential: Potential, x: Tensor) -> None:
        with torch.inference_mode(False), torch.enable_grad():
            self.x = (x.clone() if x.is_inference() else x.detach()).requires_grad_()
            self.gradient = potential.gradient(self.x)

    def hessian_times(self, v: Tensor) -> Tensor:
        """∇²ψ(x) v, by one backward pass, because the Hessian is symmetric."""
        return torch.autograd.grad(self.gradient, self.x, v, retain_graph=True)[0]

    def residual(self, y: Tensor) -> Tensor:
        """y − ∇ψ(x)."""
        return y - self.gradient.detach()


def _newton(
    potential: Potential, y: Tensor, start: Tensor, tolerance: float, max_iterations: int
) -> Inversion:
    bound = tolerance * norm(y).clamp(min=1)
    at = _Linearised(potential, start)
    size = norm(at.residual(y))
    running = ~(size <= bound)
    steps = torch.zeros_like(size, dtype=torch.long)
    for _ in range(max_iterations):
        if not running.any():
            break
        # Increasing accuracy makes the convergence superlinear, and the first steps cheap.
        accuracy = (size / norm(y).clamp(min=1)).sqrt().clamp(max=LOOSEST)
        residual = torch.where(per_sample(running, y), at.residual(y), 0)
        direction = conjugate_gradients(at.hessian_times, residual, accuracy).x
        at, size, moved = _line_search(potential, y, at.x.detach(), direction, size, running)
        steps = steps + moved
        running = moved & ~(size <= bound)
    return Inversion(at.x.detach(), size <= bound, size, steps)


def _line_search(
    potential: Potential, y: Tensor, x: Tensor, direction: Tensor, size: Tensor, running: Tensor
) -> tuple[_Linearised, Tensor, Tensor]:
    """Halve the step of each sample until its residual decreases.

    Return the new point, its residual, and the mask of the samples that moved.
    """
    length = running.to(size.dtype)
    for trial in range(HALVINGS + 1):
        # A length of 0 means x itself, even if the direction is not finite.
        s = per_sample(length, x)
        at = _Linearised(potential, torch.where(s > 0, x + s * direction, x))
        new_size = norm(at.residual(y))
        good = (new_size < (1 - SUFFICIENT * length) * size) | (length == 0)
        if good.all():
            break
        shorter = 0.5 * length if trial < HALVINGS - 1 else torch.zeros_like(length)
        length = torch.where(good, length, shorter)
    return at, torch.where(length > 0, new_size, size), length > 0


class _ImplicitFunction(torch.autograd.Function):
    """x as a function of the residual ∇ψ_θ(x) − y, with dx = −(∇²ψ)⁻¹ d(residual)."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, x: Tensor, at: _Linearised, tolerance: float) -> Tensor:
        ctx.at = at
        ctx.tolerance = tolerance
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None, None, None]:
        accuracy = v.new_full((v.shape[0],), ctx.tolerance)
        solved: Tensor
        solved, converged, _ = conjugate_gradients(ctx.at.hessian_times, v, accuracy)
        if not converged.all():
            _warn("the derivative of an inverse has not converged")
        return -solved, None, None, None


def _warn(message: str) -> None:
    warnings.warn(message, NotConverged, stacklevel=3)
