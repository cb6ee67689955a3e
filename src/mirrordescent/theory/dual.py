"""Dual-space preconditioning, x⁺ = x − t∇ψ*(∇f(x)): the constant that makes it converge, and what a
run does.

It is mirror descent on gradients p = ∇f(x), with ψ* to be minimised and f* for the geometry, since
∇f*(p⁺) = ∇f*(p) − t∇ψ*(p). So what is known of mirror descent holds with the roles exchanged: if ψ*
is L-smooth relative to f*,

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

from mirrordescent.methods import Preconditioned
from mirrordescent.mirrors import MirrorMap
from mirrordescent.problems import Problem
from mirrordescent.solving import Snapshot, solve
from mirrordescent.theory.constants import SAFETY, Constant
from mirrordescent.theory.geometry import difference
from mirrordescent.trees import Tree, dot


@dataclass(frozen=True)
class DualDescent:
    """ψ*(∇f(x_k)) − ψ*(0) along a run, (K + 1, batch), and its bound for k = 1, …, K, (K,
    batch).
    """

    measured: Tensor
    bound: Tensor

    @property
    def falls(self) -> bool:
        """Whether it never rises, up to rounding."""
        rounding = 1e3 * torch.finfo(self.measured.dtype).eps * self.measured[0]
        return bool((self.measured.diff(dim=0) <= rounding).all())

    @property
    def below(self) -> bool:
        """Whether it stays below the bound."""
        return bool((self.measured[1:] <= self.bound * (1 + 1e-6) + 1e-12).all())


def dual_smoothness(problem: Problem, mirror: MirrorMap, points: Sequence[Tree]) -> Constant:
    """Return the largest D_ψ*(∇f(x), ∇f(y))/D_f(y, x) over pairs of points, with a factor for
    safety.

    >>> import torch
    >>> from mirrordescent import Quadratic
    >>> from mirrordescent.mirrors import Euclidean
    >>> problem = Quadratic(torch.tensor([1.0, 4.0]), centre=torch.zeros(1, 2))
    >>> print(dual_smoothness(problem, Euclidean(), [torch.eye(2)[:1], torch.eye(2)[1:], torch.zeros(1, 2)]))
    5 (sampled: 4 times 1.25 for safety)
    """
    found = []
    for x, y in permutations(points, 2):
        p = problem.grad(x)
        q = problem.grad(y)
        above = (
            mirror.conjugate(p) - mirror.conjugate(q) - dot(mirror.to_primal(q), difference(p, q))
        )
        below = problem.value(y) - problem.value(x) - dot(p, difference(y, x))
        found.append(torch.where(below > 0, above / below, 0.0))
    return Constant(float(torch.cat(found).max()), "sampled", SAFETY)


def dual_descent(
    problem: Problem, method: Preconditioned, x0: Tree, iterations: int, least: Tensor | float
) -> DualDescent:
    """Run dual-space preconditioning and measure what the theorem is about.

    Args:
        problem: a convex problem.
        method: with a constant step; momentum, decay and normalised directions are outside the
            theorem and refused.
        x0: the start.
        iterations: how many steps to take.
        least: f*, the least value of f, or a lower bound of it.
    """
    if method.momentum or method.decay or method.normalised:
        raise ValueError(
            "the theorem is about x⁺ = x − t∇ψ*(∇f(x)): no momentum, no decay, no normalised directions"
        )
    values: list[Tensor] = []

    def look(at: Snapshot) -> None:
        values.append(method.mirror.conjugate(problem.grad(at.x)))

    solve(
        problem, method, x0, iterations=iterations, callbacks=[look], check_every=1, progress=False
    )
    at_zero = method.mirror.conjugate(_zero(x0))
    t = float(method.t(1))
    steps = torch.arange(1, len(values), dtype=values[0].dtype)[:, None]
    return DualDescent(torch.stack(values) - at_zero, (problem.value(x0) - least) / (t * steps))


def _zero(x: Tree) -> Tree:
    return difference(x, x)
