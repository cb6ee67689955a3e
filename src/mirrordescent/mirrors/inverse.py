"""The exact inverse of a potential's gradient, by Newton's method with conjugate gradients."""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mirrordescent.conjugate_gradients import conjugate_gradients
from mirrordescent.mirrors.icnn import Potential
from mirrordescent.trees import norm, per_sample

SUFFICIENT = 0.01  # the share of the ideal decrease that a step must achieve
HALVINGS = 15  # more would ask for decreases that single precision cannot resolve
LOOSEST = 0.5  # relative accuracy of the first Newton directions


class NotConverged(UserWarning):
    """A linear or nonlinear solve ended before it reached its tolerance."""


class Inversion(NamedTuple):
    """x with ∇ψ(x) ≈ y, and per sample: whether the tolerance was reached, ‖∇ψ(x) − y‖, Newton
    steps.
    """

    x: Tensor
    converged: Tensor
    residual: Tensor
    steps: Tensor


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

        ∇²ψ(x) p  ≈  y − ∇ψ(x)        by conjugate gradients, ever more accurately
        x⁺        =  x + s p           s = 1, ½, ¼, … until ‖∇ψ(x⁺) − y‖ < (1 − s/100)‖∇ψ(x) − y‖

    p is a descent direction for both the objective and the norm of its gradient. The line search
    watches the
    norm: it needs no values of ψ, and unlike a difference of values it stays meaningful to the last
    digits. The error is ‖x − ∇ψ*(y)‖ ≤ ‖∇ψ(x) − y‖/α with the potential's strong convexity α.

    The result can be differentiated once, with respect to y and to the potential's parameters, by
    the implicit function theorem: dx = (∇²ψ)⁻¹(dy − d_θ∇ψ(x)). No graph of the iteration is kept.

    Args:
        potential: ψ.
        y: (batch, …).
        start: the first x; y by default.
        tolerance: a sample has converged, and moves no more, when ‖∇ψ(x) − y‖ ≤ tolerance·max(1,
            ‖y‖). By default the machine epsilon to the power ⅔, which rounded gradients can reach:
            4e-11 in double precision, 2e-5 in single.
        max_iterations: Newton steps. Samples that need more, and those that rounding stops earlier,
            are reported by a :class:`NotConverged` warning.

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
        found = _newton(potential, y, y if start is None else start, tolerance, max_iterations)
    if not found.converged.all():
        late = (~found.converged).nonzero().flatten().tolist()
        worst = float(found.residual[~found.converged].max())
        _warn(
            f"the inverse of {type(potential).__name__} has not converged for samples {late}: residual {worst:.1e}"
        )
    learning = y.requires_grad or any(p.requires_grad for p in potential.parameters())
    if not (torch.is_grad_enabled() and learning):
        return found
    at = _Linearised(potential, found.x)
    x = _ImplicitFunction.apply(at.gradient - y, found.x, at, tolerance)  # type: ignore[no-untyped-call]
    return found._replace(x=x)


class _Linearised:
    """∇ψ at a point, with a graph for products with ∇²ψ, which keeps the parameters even if they
    are swapped later.
    """

    def __init__(self, potential: Potential, x: Tensor) -> None:
        with torch.inference_mode(False), torch.enable_grad():
            self.x = (x.clone() if x.is_inference() else x.detach()).requires_grad_()
            self.gradient = potential.gradient(self.x)

    def hessian_times(self, v: Tensor) -> Tensor:
        """∇²ψ(x) v, by one backward pass: the Hessian is symmetric."""
        return torch.autograd.grad(self.gradient, self.x, v, retain_graph=True)[0]

    def missing(self, y: Tensor) -> Tensor:
        """y − ∇ψ(x)."""
        return y - self.gradient.detach()


def _newton(
    potential: Potential, y: Tensor, start: Tensor, tolerance: float, max_iterations: int
) -> Inversion:
    bound = tolerance * norm(y).clamp(min=1)
    at = _Linearised(potential, start)
    size = norm(at.missing(y))
    running = ~(size <= bound)
    steps = torch.zeros_like(size, dtype=torch.long)
    for _ in range(max_iterations):
        if not running.any():
            break
        # Accuracy that grows with the convergence makes the steps superlinear and the first ones
        # cheap.
        accuracy = (size / norm(y).clamp(min=1)).sqrt().clamp(max=LOOSEST)
        wanted = torch.where(per_sample(running, y), at.missing(y), 0)
        direction = conjugate_gradients(at.hessian_times, wanted, accuracy).x
        at, size, moved = _search(potential, y, at.x.detach(), direction, size, running)
        steps = steps + moved
        running = moved & ~(size <= bound)
    return Inversion(at.x.detach(), size <= bound, size, steps)


def _search(
    potential: Potential, y: Tensor, x: Tensor, direction: Tensor, size: Tensor, running: Tensor
) -> tuple[_Linearised, Tensor, Tensor]:
    """Halve the step of each sample until its residual falls; return the new point, its residual
    and who moved.
    """
    length = running.to(size.dtype)
    for trial in range(HALVINGS + 1):
        # A length of 0 means x itself, even if the direction is not finite.
        s = per_sample(length, x)
        at = _Linearised(potential, torch.where(s > 0, x + s * direction, x))
        new_size = norm(at.missing(y))
        good = (new_size < (1 - SUFFICIENT * length) * size) | (length == 0)
        if good.all():
            break
        shorter = 0.5 * length if trial < HALVINGS - 1 else torch.zeros_like(length)
        length = torch.where(good, length, shorter)
    return at, torch.where(length > 0, new_size, size), length > 0


class _ImplicitFunction(torch.autograd.Function):
    """x as a function of the residual ∇ψ_θ(x) − y, in which θ and y appear: dx = −(∇²ψ)⁻¹
    d(residual).
    """

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
