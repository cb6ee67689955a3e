"""Outside solvers of smooth problems: SciPy, batched Newton, and whitened gradient descent."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from mirrordescent.domains import Box, PositiveOrthant, Simplex, WholeSpace
from mirrordescent.problems.base import Problem
from mirrordescent.rivals.registry import Rival, SolveTo, register
from mirrordescent.trees import Tree

LARGEST = 500
"""Number of variables up to which Hessians are computed."""

SMALL = 60
"""Number of variables up to which trust-constr is tried."""


def _smooth(problem: Problem, x0: Tree) -> bool:
    return isinstance(x0, Tensor) and problem.smoothness() != math.inf


class _OneByOne:
    """Values and gradients of a single problem of a batch, for solvers that take one at a time.

    The whole batch is evaluated, unless all problems share their data.
    """

    def __init__(self, problem: Problem, x0: Tensor) -> None:
        self.problem = problem
        self.x0 = x0

    def at(self, i: int, flat: Any) -> tuple[float, Any]:
        """Return f and ∇f of problem i."""
        x = self.x0.detach().clone()
        x[i] = torch.from_numpy(np.asarray(flat)).to(x).reshape(x.shape[1:])
        if self.problem.batch is None:
            x = x[i : i + 1]
            i = 0
        with torch.no_grad():
            value = float(self.problem.value(x)[i])
            gradient = cast(Tensor, self.problem.grad(x))[i]
        return value, gradient.flatten().double().cpu().numpy()


def _scipy(method: str) -> Any:
    """Return the preparation of a method of ``scipy.optimize.minimize``."""

    def prepare(problem: Problem, x0: Tree) -> SolveTo | None:
        domain = problem.domain
        simple = isinstance(domain, WholeSpace | Box | PositiveOrthant)
        constrained = method == "trust-constr"
        if not _smooth(problem, x0) or (constrained and type(domain) is not Simplex):
            return None
        if not constrained and not simple:
            return None
        points = cast(Tensor, x0)
        if constrained and points[0].numel() > SMALL:
            return None
        one = _OneByOne(problem, points)
        return lambda tolerance: _minimise(method, one, points, tolerance)

    return prepare


def _minimise(method: str, one: _OneByOne, x0: Tensor, tolerance: float) -> Tensor:
    from scipy.optimize import Bounds, LinearConstraint, minimize

    domain = one.problem.domain
    n = x0[0].numel()
    options: dict[str, Any] = {}
    if isinstance(domain, Box):
        options["bounds"] = Bounds(domain.lower, domain.upper)
    elif not isinstance(domain, WholeSpace):
        options["bounds"] = Bounds(0.0, np.inf)
    if type(domain) is Simplex:
        options["constraints"] = LinearConstraint(np.ones((1, n)), 1.0, 1.0)
    solutions = []
    for i in range(len(x0)):
        found = minimize(
            lambda flat, i=i: one.at(i, flat),
            x0[i].flatten().double().cpu().numpy(),
            jac=True,
            method=method,
            tol=tolerance * 1e-2,
            **options,
        )
        solutions.append(torch.from_numpy(found.x))
    return torch.stack(solutions).reshape(x0.shape).to(x0)


def _hessians(problem: Problem, x: Tensor) -> Tensor:
    """Return ∇²f of every problem, (batch, n, n), by automatic differentiation of the gradient."""
    n = x[0].numel()
    with torch.enable_grad():
        point = x.detach().clone().requires_grad_()
        gradient = cast(Tensor, problem.grad(point)).reshape(len(x), n)
        entries = gradient.sum(0)
    columns = []
    for j in range(n):
        direction = torch.zeros_like(entries)
        direction[j] = 1
        (column,) = torch.autograd.grad(entries, point, direction, retain_graph=True)
        columns.append(column.reshape(len(x), n))
    H = torch.stack(columns, -1)
    return (H + H.mT) / 2


def _newton(problem: Problem, x0: Tree) -> SolveTo | None:
    """Prepare Newton's method on all problems at once, with halved steps while f does not fall."""
    fits = _smooth(problem, x0) and isinstance(problem.domain, WholeSpace)
    if not fits or cast(Tensor, x0)[0].numel() > LARGEST:
        return None
    start = cast(Tensor, x0)
    try:
        with torch.no_grad():
            _hessians(problem, start)
    except Exception:  # a gradient that cannot be differentiated
        return None
    return lambda tolerance: _newton_steps(problem, start, tolerance)


@torch.no_grad()
def _newton_steps(problem: Problem, x: Tensor, tolerance: float, steps: int = 30) -> Tensor:
    value = problem.value(x)
    n = x[0].numel()
    for _ in range(steps):
        g = cast(Tensor, problem.grad(x)).reshape(len(x), n)
        H = _hessians(problem, x)
        size = torch.diagonal(H, dim1=-2, dim2=-1).abs().amax(-1)[:, None, None]
        identity = torch.eye(n, dtype=x.dtype, device=x.device)
        direction, _ = torch.linalg.solve_ex(H + 1e-7 * size * identity, g)
        decrease = (g * direction).sum(-1)
        t = torch.ones_like(value)
        for _ in range(20):
            moved = (x.reshape(len(x), n) - t.unsqueeze(-1) * direction).reshape(x.shape)
            new = problem.value(moved)
            worse = ~(new <= value)
            if not bool(worse.any()):
                break
            t = torch.where(worse, t / 2, t)
        better = (new <= value).reshape(-1, *[1] * (x.ndim - 1))
        x = torch.where(better, moved, x)
        value = torch.minimum(new, value)
        if bool((decrease.abs() <= tolerance * (1e-30 + value.abs())).all()):
            break
    return x


def _whitened(problem: Problem, x0: Tree) -> SolveTo | None:
    """Prepare Nesterov's method with steps H₀⁻¹∇f, where H₀ is the Hessian at the start."""
    if _newton(problem, x0) is None:
        return None
    start = cast(Tensor, x0)
    return lambda tolerance: _whitened_steps(problem, start, tolerance)


@torch.no_grad()
def _whitened_steps(problem: Problem, x0: Tensor, tolerance: float) -> Tensor:
    n = x0[0].numel()
    H = _hessians(problem, x0)
    size = torch.diagonal(H, dim1=-2, dim2=-1).abs().amax(-1)[:, None, None]
    identity = torch.eye(n, dtype=x0.dtype, device=x0.device)
    inverse = torch.linalg.inv(H + 1e-4 * size * identity)
    x = x0
    ahead = x0
    steps = max(5, round(-10 * math.log10(max(tolerance, 1e-12))))
    for k in range(steps):
        g = cast(Tensor, problem.grad(ahead)).reshape(len(x0), n)
        new = ahead - torch.einsum("bij,bj->bi", inverse, g).reshape(x0.shape)
        ahead = new + k / (k + 3) * (new - x)
        x = new
    return x


register(Rival("SciPy L-BFGS-B", _scipy("L-BFGS-B"), "scipy"))
register(Rival("SciPy trust-constr", _scipy("trust-constr"), "scipy", (1e-3, 1e-6, 1e-9)))
register(Rival("batched Newton", _newton, tolerances=(1e-2, 1e-4, 1e-6, 1e-10)))
register(Rival("whitened Nesterov", _whitened))
