"""Oracles: how a method is told the gradient.

An oracle is called as ``oracle(problem, x, k, generator)`` and returns an estimate of ∇f(x), with
k counted from 0. All randomness comes from the generator.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor, nn

from mirrordescent.methods.expectation_maximisation import spread
from mirrordescent.schedules import ScheduleLike, as_schedule
from mirrordescent.trees import Tree, tree_map

if TYPE_CHECKING:
    from mirrordescent.problems.base import Problem


class Oracle(nn.Module):
    """An estimate of ∇f(x) at iteration k."""

    stochastic: bool = False

    def forward(self, problem: Problem, x: Tree, k: int, generator: Generator | None = None) -> Tree:
        """Return the estimate."""
        raise NotImplementedError


class Around(Oracle):
    """Another oracle, and something made of its answers."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__()
        self.oracle, self.stochastic = oracle, oracle.stochastic

    def around(self, oracle: Oracle) -> Around:
        """Return the same around another one."""
        raise NotImplementedError

    def instead(self, own: Oracle) -> Around:
        """Return the same, with what is innermost replaced: by the oracle that a method brings."""
        return self.around(self.oracle.instead(own) if isinstance(self.oracle, Around) else own)


class Exact(Oracle):
    """G(x) = ∇f(x), or one subgradient."""

    def forward(self, problem: Problem, x: Tree, k: int, generator: Generator | None = None) -> Tree:
        """Return the problem's own gradient."""
        return problem.grad(x)


class Minibatch(Oracle):
    """G(x) = an unbiased estimate of ∇f(x) from a random subset of the terms of f = Σᵢ fᵢ.

    The terms are the data points of a classification problem, the rows of the operator of a
    least-squares problem. ``size`` counts terms, or is a fraction of them if it is a float. One
    subset, drawn without replacement, serves the whole batch at every iteration.
    """

    stochastic = True

    def __init__(self, size: int | float) -> None:
        super().__init__()
        if not (0 < size <= 1 if isinstance(size, float) else size >= 1):
            raise ValueError(f"Minibatch needs a whole count ≥ 1, or a fraction in (0, 1] as a float, got size={size}")
        self.size = size

    def forward(self, problem: Problem, x: Tree, k: int, generator: Generator | None = None) -> Tree:
        """Return the gradient over a fresh subset of terms."""
        if problem.terms is None:
            raise TypeError(f"{type(problem).__name__} is not a finite sum, so Minibatch cannot sample its terms")
        size = math.ceil(self.size * problem.terms) if isinstance(self.size, float) else self.size
        if size > problem.terms:
            raise ValueError(f"Minibatch size {size} exceeds the {problem.terms} terms of the problem")
        generator = require_generator(generator, self)
        subset = torch.randperm(problem.terms, generator=generator, device=generator.device)[:size]
        return problem.grad_of_terms(x, subset)

    def extra_repr(self) -> str:
        """Show the size."""
        return f"size={self.size}"


class InTurn(Oracle):
    """G(x) = an estimate of ∇f(x) from one term of f = Σᵢ fᵢ after the other, neighbours in this order far apart.

    A pass over all terms has less error than as many random ones, and nothing about it is random.
    """

    def forward(self, problem: Problem, x: Tree, k: int, generator: Generator | None = None) -> Tree:
        """Return the gradient over the k-th term of the cyclic order."""
        if problem.terms is None:
            raise TypeError(f"{type(problem).__name__} is not a finite sum, so InTurn cannot go through its terms")
        return problem.grad_of_terms(x, torch.tensor([spread(k, problem.terms)]))


class Relative(Oracle):
    """G(x) = base(x)/s with the s of a problem that says how much each entry of x weighs in it, such as Aᵀ1.

    Mirror descent on G with Σ φ(xⱼ) is mirror descent on f with Σ sⱼφ(xⱼ): steps have no unit, and what was learned
    for one number of counts, rays or angles serves for others.
    """

    def __init__(self, base: Oracle | None = None) -> None:
        super().__init__()
        self.base = base or Exact()
        self.stochastic = self.base.stochastic

    def forward(self, problem: Problem, x: Tree, k: int, generator: Generator | None = None) -> Tree:
        """Return the base gradient, divided."""
        sensitivity = getattr(problem, "sensitivity", None)
        if sensitivity is None:
            raise TypeError(f"{type(problem).__name__} has no sensitivity by which Relative could divide")
        return tree_map(lambda g: g / sensitivity, self.base(problem, x, k, generator))


class Noisy(Oracle):
    """G(x) = base(x) + σ·N(0, I): additive Gaussian noise on another oracle."""

    stochastic = True

    def __init__(self, sigma: float, base: Oracle | None = None) -> None:
        super().__init__()
        if not 0 <= sigma < float("inf"):
            raise ValueError(f"Noisy needs a finite sigma ≥ 0, got {sigma}")
        self.sigma, self.base = float(sigma), base or Exact()

    def forward(self, problem: Problem, x: Tree, k: int, generator: Generator | None = None) -> Tree:
        """Return the base gradient plus noise."""
        generator = require_generator(generator, self)

        def perturb(g: Tensor) -> Tensor:
            noise = torch.randn(g.shape, generator=generator, device=generator.device, dtype=g.dtype)
            return torch.add(g, noise.to(g.device), alpha=self.sigma)

        return tree_map(perturb, self.base(problem, x, k, generator))

    def extra_repr(self) -> str:
        """Show σ."""
        return f"sigma={self.sigma:g}"


class Smoothed(Oracle):
    """G(x) = ∇f_μ(x): the gradient of the problem with its kinks rounded over a width μ(k + 1).

    Total variation becomes a Huber function of the differences, the hinge a smooth hinge. The
    objective that is reported stays f itself.
    """

    def __init__(self, width: ScheduleLike) -> None:
        super().__init__()
        self.width = as_schedule(width, "width")

    def forward(self, problem: Problem, x: Tree, k: int, generator: Generator | None = None) -> Tree:
        """Return the gradient of the smoothed problem."""
        return problem.smoothed_grad(x, self.width(k + 1))


class Rounded(Oracle):
    """G(x) = ∇f_μ(x) with the width μ that gives the rounded kinks the second derivative a(k + 1).

    Of a kink h|d| that is μ = h/a. Step sizes that were learned for one height h are so as safe for any other: a
    bound on ‖∇²f_μ‖ has no h in it. For total variation, a·DᵀD + 2s·I is such a bound.
    """

    def __init__(self, curvature: ScheduleLike) -> None:
        super().__init__()
        self.curvature = as_schedule(curvature, "curvature")

    def forward(self, problem: Problem, x: Tree, k: int, generator: Generator | None = None) -> Tree:
        """Return the gradient of the smoothed problem."""
        if problem.kink is None:
            raise TypeError(f"{type(problem).__name__} does not know how high its kinks are: use Smoothed")
        return problem.smoothed_grad(x, problem.kink / self.curvature(k + 1))


def require_generator(generator: Generator | None, oracle: Oracle) -> Generator:
    """Return the generator, or say that a stochastic oracle needs one."""
    if generator is None:
        raise ValueError(
            f"{type(oracle).__name__} is random: pass generator=torch.Generator().manual_seed(0), or another"
        )
    return generator
