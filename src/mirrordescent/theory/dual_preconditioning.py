"""Dual-space preconditioning, x⁺ = x − t∇ψ*(∇f(x)): its smoothness constant and its runs.

It is mirror descent on gradients p = ∇f(x): ψ* is minimised, and f* is the geometry, because
∇f*(p⁺) = ∇f*(p) − t∇ψ*(p). The theory of mirror descent therefore holds with the roles exchanged.
If ψ* is L-smooth relative to f*,

.. code-block:: none

    D_ψ*(∇f(x), ∇f(y)) ≤ L D_f*(∇f(x), ∇f(y)) = L D_f(y, x),

and t ≤ 1/L, then ψ*(∇f(x_k)) never rises, and for convex f

.. code-block:: none

    ψ*(∇f(x_k)) − ψ*(0) ≤ (f(x₀) − f*)/(tk).

Reference: Maddison, Paulin, Teh, Doucet, SIAM J. Optim. 31 (2021).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

from mirrordescent._internal.deprecation import renamed_property
from mirrordescent.methods import Preconditioned
from mirrordescent.mirrors import MirrorMap
from mirrordescent.problems import Problem
from mirrordescent.solving import Snapshot, solve
from mirrordescent.theory.constants import SAFETY, KnownConstant
from mirrordescent.theory.geometry import difference
from mirrordescent.trees import Tree, dot, tree_map


@dataclass(frozen=True)
class DualDescent:
    """ψ*(∇f(x_k)) − ψ*(0) along a run, and its bound.

    Attributes:
        measured: The quantity for k = 0, …, K: (K + 1, batch).
        bound: Its bound (f(x₀) − f*)/(tk) for k = 1, …, K: (K, batch).
    """

    measured: Tensor
    bound: Tensor

    falls = renamed_property("falls", "non_increasing")
    below = renamed_property("below", "below_bound")

    @property
    def non_increasing(self) -> bool:
        """Whether the quantity never rises, up to rounding."""
        rounding = 1e3 * torch.finfo(self.measured.dtype).eps * self.measured[0]
        return bool((self.measured.diff(dim=0) <= rounding).all())

    @property
    def below_bound(self) -> bool:
        """Whether the quantity stays below its bound."""
        return bool((self.measured[1:] <= self.bound * (1 + 1e-6) + 1e-12).all())


def dual_smoothness(problem: Problem, mirror: MirrorMap, points: Sequence[Tree]) -> KnownConstant:
    """Estimate L, the largest D_ψ*(∇f(x), ∇f(y))/D_f(y, x) over pairs of points.

    The estimate comes with a safety factor.

    Args:
        problem: Problem with a convex f.
        mirror: Map with potential ψ.
        points: Points of which all pairs are compared.

    >>> import torch
    >>> from mirrordescent import Quadratic
    >>> from mirrordescent.mirrors import Euclidean
    >>> problem = Quadratic(torch.tensor([1.0, 4.0]), centre=torch.zeros(1, 2))
    >>> points = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.zeros(1, 2)]
    >>> print(dual_smoothness(problem, Euclidean(), points))
    5 (sampled: 4 times 1.25 for safety)
    """
    ratios = []
    for x, y in permutations(points, 2):
        p = problem.grad(x)
        q = problem.grad(y)
        linear = dot(mirror.to_primal(q), difference(p, q))
        dual_divergence = mirror.conjugate(p) - mirror.conjugate(q) - linear
        divergence = problem.value(y) - problem.value(x) - dot(p, difference(y, x))
        ratios.append(torch.where(divergence > 0, dual_divergence / divergence, 0.0))
    return KnownConstant(float(torch.cat(ratios).max()), "sampled", SAFETY)


def dual_descent(
    problem: Problem, method: Preconditioned, x0: Tree, iterations: int, least: Tensor | float
) -> DualDescent:
    """Run dual-space preconditioning and measure ψ*(∇f(x_k)) − ψ*(0).

    Args:
        problem: Problem with a convex f.
        method: Method with a constant step, without momentum, decay and normalised directions.
        x0: Start.
        iterations: Number of steps.
        least: The minimum f* of f, or a lower bound on it.
    """
    if method.momentum or method.decay or method.normalised:
        raise ValueError(
            "the theorem about x⁺ = x − t∇ψ*(∇f(x)) allows no momentum, no decay, no normalised "
            "directions; set momentum, decay and normalised to zero or False"
        )
    values: list[Tensor] = []

    def measure(snapshot: Snapshot) -> None:
        values.append(method.mirror.conjugate(problem.grad(snapshot.x)))

    solve(
        problem,
        method,
        x0,
        iterations=iterations,
        callbacks=[measure],
        check_every=1,
        progress=False,
    )
    at_zero = method.mirror.conjugate(tree_map(torch.zeros_like, x0))
    t = float(method.t(1))
    k = torch.arange(1, len(values), dtype=values[0].dtype)[:, None]
    return DualDescent(torch.stack(values) - at_zero, (problem.value(x0) - least) / (t * k))
