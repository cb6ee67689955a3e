"""Oracles: how gradients are computed.

A call ``oracle(problem, x, k, generator)`` returns ∇f(x) or an estimate of it, where k is the
number of steps taken. All randomness comes from the generator.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Generator, Tensor, nn

from mirrordescent.parts import Part, replace_children
from mirrordescent.problems.base import Problem
from mirrordescent.schedules import ScheduleLike, as_schedule
from mirrordescent.trees import Tree, per_sample, tree_map


class Oracle(Part, nn.Module):
    """An estimate of ∇f(x) at iteration k. To add an oracle, write ``forward``."""

    kind = "oracle"
    proves: bool = False
    """Whether lower bounds on min f follow from its gradients.

    True for exact gradients of f, or of f with rounded kinks.
    """

    def __init__(self) -> None:
        super().__init__()

    @property
    def stochastic(self) -> bool:
        """Whether the oracle draws random numbers and needs a generator."""
        return False

    def forward(
        self, problem: Problem, x: Tree, k: int, generator: Generator | None = None
    ) -> Tree:
        """Return the estimate of ∇f(x)."""
        raise NotImplementedError

    def combine_with(self, own: Oracle | None) -> Oracle:
        """Return the oracle to use if this one is given to a method with an oracle of its own.

        Args:
            own: Oracle that belongs to the method, or None.

        Raises:
            TypeError: If the two cannot be combined.
        """
        if own is None:
            return self
        raise TypeError(
            f"the method brings its own oracle, {type(own).__name__}, and cannot use "
            f"{type(self).__name__} in its place; leave the oracle out, or use the method inside "
            "(method.method)"
        )


class Exact(Oracle):
    """G(x) = ∇f(x), or a subgradient."""

    proves = True

    def forward(
        self, problem: Problem, x: Tree, k: int, generator: Generator | None = None
    ) -> Tree:
        return problem.grad(x)


class Default(Exact):
    """The oracle if none is given: the method's own, or G(x) = ∇f(x) if it has none."""

    def combine_with(self, own: Oracle | None) -> Oracle:
        return self if own is None else own


class WrappedOracle(Oracle):
    """An oracle that changes the gradients of another.

    If a method has its own oracle, that oracle becomes the inner one. To add a wrapped oracle,
    write ``forward`` and call ``self.oracle`` in it.

    Args:
        oracle: Inner oracle.
    """

    oracle: Oracle

    def __init__(self, oracle: Oracle | None = None) -> None:
        super().__init__()
        self.oracle = oracle or Default()

    @property
    def stochastic(self) -> bool:
        return self.oracle.stochastic

    def combine_with(self, own: Oracle | None) -> Self:
        if own is None:
            return self
        return replace_children(self, {"oracle": self.oracle.combine_with(own)})


class Minibatch(Oracle):
    """G(x) = an unbiased estimate of ∇f(x) from a random subset of the terms of f = Σᵢ fᵢ.

    The terms are the data points of a classification problem, or the rows of the operator of a
    least-squares problem. Every iteration draws one subset without replacement for the whole batch.

    Args:
        size: Number of terms; or, as a float, their fraction.
    """

    stochastic = True

    def __init__(self, size: int | float) -> None:
        super().__init__()
        valid = 0 < size <= 1 if isinstance(size, float) else size >= 1
        if not valid:
            raise ValueError(
                "Minibatch needs a whole number ≥ 1, or a fraction in (0, 1] as a float, "
                f"got size={size}"
            )
        self.size = size

    def forward(
        self, problem: Problem, x: Tree, k: int, generator: Generator | None = None
    ) -> Tree:
        terms = _terms(problem, self)
        size = math.ceil(self.size * terms) if isinstance(self.size, float) else self.size
        if size > terms:
            raise ValueError(f"Minibatch size {size} exceeds the {terms} terms of the problem")
        subset = self._subset(terms, size, k, require_generator(generator, self))
        return problem.grad_of_terms(x, subset)

    def _subset(self, terms: int, size: int, k: int, generator: Generator) -> Tensor:
        return torch.randperm(terms, generator=generator, device=generator.device)[:size]


class Epochs(Minibatch):
    """Minibatches in epochs, as in data loaders: the terms are shuffled and taken in this order.

    Every term is used once in an epoch, except for the last terms if they do not fill a minibatch.
    The order depends only on the number of the epoch and on the seed of the generator, not on its
    state. So a run that is continued in the middle of an epoch uses the rest of it.

    Args:
        size: Number of terms of a minibatch; or, as a float, their fraction.
    """

    def __init__(self, size: int | float) -> None:
        super().__init__(size)
        self._order: Tensor | None = None
        self._order_key: tuple[object, ...] | None = None

    def _subset(self, terms: int, size: int, k: int, generator: Generator) -> Tensor:
        epoch, index = divmod(k, terms // size)
        device = generator.device
        key = (generator.initial_seed(), epoch, terms, device)
        if self._order is None or self._order_key != key:
            seed = (generator.initial_seed() + 1_000_003 * epoch) % 2**63
            epoch_generator = torch.Generator(device).manual_seed(seed)
            self._order = torch.randperm(terms, generator=epoch_generator, device=device)
            self._order_key = key
        return self._order[index * size : (index + 1) * size]


class InTurn(Oracle):
    """G(x) = an estimate of ∇f(x) from one term of f = Σᵢ fᵢ at a time, in a fixed order.

    Consecutive terms are far apart. A pass over all terms is deterministic, and has a smaller error
    than the same number of random terms.
    """

    def forward(
        self, problem: Problem, x: Tree, k: int, generator: Generator | None = None
    ) -> Tree:
        return problem.grad_of_terms(x, torch.tensor([spread_out(k, _terms(problem, self))]))


class Relative(WrappedOracle):
    """G(x) = oracle(x)/s, where s is the sensitivity of the problem, such as Aᵀ1.

    Mirror descent on G with Σ φ(xⱼ) is mirror descent on f with Σ sⱼφ(xⱼ). So step sizes are
    dimensionless: they can be learned for one number of counts, rays or angles and used for
    another.

    Args:
        oracle: Inner oracle.
    """

    def forward(
        self, problem: Problem, x: Tree, k: int, generator: Generator | None = None
    ) -> Tree:
        sensitivity = getattr(problem, "sensitivity", None)
        if sensitivity is None:
            raise TypeError(
                f"Relative needs a problem with a sensitivity; {type(problem).__name__} has none"
            )
        return tree_map(lambda g: g / sensitivity, self.oracle(problem, x, k, generator))


class Noisy(WrappedOracle):
    """G(x) = oracle(x) + σ·N(0, I), additive Gaussian noise.

    Args:
        sigma: σ ≥ 0.
        oracle: Inner oracle.
    """

    stochastic = True

    def __init__(self, sigma: float, oracle: Oracle | None = None) -> None:
        super().__init__(oracle)
        if not 0 <= sigma < float("inf"):
            raise ValueError(f"Noisy needs a finite sigma ≥ 0, got {sigma}")
        self.sigma = float(sigma)

    def forward(
        self, problem: Problem, x: Tree, k: int, generator: Generator | None = None
    ) -> Tree:
        generator = require_generator(generator, self)

        def perturb(g: Tensor) -> Tensor:
            noise = torch.randn(
                g.shape, generator=generator, device=generator.device, dtype=g.dtype
            )
            return torch.add(g, noise.to(g.device), alpha=self.sigma)

        return tree_map(perturb, self.oracle(problem, x, k, generator))


class Scaled(WrappedOracle):
    """G(x) = c·oracle(x), with a factor c for every sample.

    Args:
        factor: c, (batch,).
        oracle: Inner oracle.
    """

    factor: Tensor

    def __init__(self, factor: Tensor, oracle: Oracle | None = None) -> None:
        super().__init__(oracle)
        self.register_buffer("factor", factor)

    def forward(
        self, problem: Problem, x: Tree, k: int, generator: Generator | None = None
    ) -> Tree:
        return tree_map(
            lambda g: per_sample(self.factor, g) * g, self.oracle(problem, x, k, generator)
        )


class FirstOrder(WrappedOracle):
    """G(x) = oracle(x) without a graph: meta-gradients do not pass through ∇f.

    Args:
        oracle: Inner oracle.
    """

    def forward(
        self, problem: Problem, x: Tree, k: int, generator: Generator | None = None
    ) -> Tree:
        with torch.no_grad():
            return self.oracle(problem, tree_map(torch.Tensor.detach, x), k, generator)


class Smoothed(Oracle):
    """G(x) = ∇f_μ(x), the gradient of f with its kinks rounded over a width μ(k + 1).

    Total variation becomes a Huber function of the differences, the hinge a smooth hinge. Reported
    values are still those of f.

    Args:
        width: Schedule μ.
    """

    proves = True

    def __init__(self, width: ScheduleLike) -> None:
        super().__init__()
        self.width = as_schedule(width, "width")

    def forward(
        self, problem: Problem, x: Tree, k: int, generator: Generator | None = None
    ) -> Tree:
        return problem.smoothed_grad(x, self.width(k + 1))


class Rounded(Oracle):
    """G(x) = ∇f_μ(x) with the width μ at which rounded kinks have the second derivative a(k + 1).

    For a kink h|d| this width is μ = h/a. Then bounds on ∇²f_μ do not depend on h, so that step
    sizes learned for one height h are as safe for any other. For total variation, a·DᵀD + 2s·I is
    such a bound.

    Args:
        curvature: Schedule a.
    """

    proves = True

    def __init__(self, curvature: ScheduleLike) -> None:
        super().__init__()
        self.curvature = as_schedule(curvature, "curvature")

    def forward(
        self, problem: Problem, x: Tree, k: int, generator: Generator | None = None
    ) -> Tree:
        if problem.kink is None:
            raise TypeError(
                f"Rounded needs the height of the kinks (Problem.kink), which "
                f"{type(problem).__name__} does not state: use Smoothed"
            )
        return problem.smoothed_grad(x, problem.kink / self.curvature(k + 1))


def require_generator(generator: Generator | None, who: object) -> Generator:
    """Return the generator, or raise a ValueError that names the object that needs one."""
    if generator is None:
        raise ValueError(
            f"{type(who).__name__} is random: pass generator=torch.Generator().manual_seed(0)"
        )
    return generator


def spread_out(k: int, terms: int) -> int:
    """Return the k-th term in a cyclic order in which consecutive terms are far apart.

    The stride is about the golden ratio of the number of terms, and coprime to it.

    >>> [spread_out(k, 8) for k in range(9)]
    [0, 5, 2, 7, 4, 1, 6, 3, 0]
    """
    stride = round(0.618 * terms)
    while math.gcd(stride, terms) != 1:
        stride += 1
    return k * stride % terms


def _terms(problem: Problem, oracle: Oracle) -> int:
    if problem.terms is None:
        raise TypeError(
            f"{type(oracle).__name__} needs a finite sum, and "
            f"{type(problem).__name__} is not a finite sum"
        )
    return problem.terms
