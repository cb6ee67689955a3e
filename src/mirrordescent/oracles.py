"""Oracles: how a method is told the gradient.

An oracle is called as ``oracle(problem, x, k, generator)`` and returns an estimate of ∇f(x), with
k counted from 0. All randomness comes from the generator.
"""

from __future__ import annotations

import copy
import math
from typing import Self

import torch
from torch import Generator, Tensor, nn

from mirrordescent.parts import Part
from mirrordescent.problems.base import Problem
from mirrordescent.schedules import ScheduleLike, as_schedule
from mirrordescent.trees import Tree, per_sample, tree_map


class Oracle(Part, nn.Module):
    """An estimate of ∇f(x) at iteration k."""

    kind = "oracle"
    proves: bool = False
    """Whether its answers are gradients of f, kinks rounded or not, so that bounds on min f follow
    from them.
    """

    @property
    def stochastic(self) -> bool:
        """Whether it draws random numbers, and so needs a generator."""
        return False

    def forward(
        self, problem: Problem, x: Tree, k: int, generator: Generator | None = None
    ) -> Tree:
        """Return the estimate."""
        raise NotImplementedError

    def combine_with(self, own: Oracle | None) -> Oracle:
        """Return the oracle to ask when a method brings its own, or raise if the two cannot be
        combined.
        """
        if own is None:
            return self
        raise TypeError(
            f"the method brings its own oracle, {type(own).__name__}, and cannot use {type(self).__name__} in its "
            f"place; use the method inside (method.method), or leave the oracle out"
        )


class Exact(Oracle):
    """G(x) = ∇f(x), or one subgradient."""

    proves = True

    def forward(
        self, problem: Problem, x: Tree, k: int, generator: Generator | None = None
    ) -> Tree:
        return problem.grad(x)


class Default(Exact):
    """G(x) = ∇f(x), unless the method brings its own oracle: the oracle where none was chosen."""

    def combine_with(self, own: Oracle | None) -> Oracle:
        return self if own is None else own


class WrappedOracle(Oracle):
    """An oracle made from the answers of another. Where a method brings its own oracle, it wraps
    that one.

    To add one, override ``forward`` and call ``self.oracle`` in it.
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
        wrapped = copy.copy(self)
        wrapped._modules = {**self._modules, "oracle": self.oracle.combine_with(own)}
        return wrapped


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
            raise ValueError(
                f"Minibatch needs a whole count ≥ 1, or a fraction in (0, 1] as a float, got size={size}"
            )
        self.size = size

    def forward(
        self, problem: Problem, x: Tree, k: int, generator: Generator | None = None
    ) -> Tree:
        terms = _terms(problem, self)
        size = math.ceil(self.size * terms) if isinstance(self.size, float) else self.size
        if size > terms:
            raise ValueError(f"Minibatch size {size} exceeds the {terms} terms of the problem")
        return problem.grad_of_terms(
            x, self._subset(terms, size, k, require_generator(generator, self))
        )

    def _subset(self, terms: int, size: int, k: int, generator: Generator) -> Tensor:
        return torch.randperm(terms, generator=generator, device=generator.device)[:size]


class Epochs(Minibatch):
    """The same in epochs, as data loaders do it: the terms are shuffled, and taken from the first
    to the last.

    In an epoch every term serves once, but for those at its end that do not fill a minibatch. The
    order follows from the number of the epoch and the seed of the generator, whatever else was
    drawn from it: so a run that is continued in the middle of an epoch sees the rest of it.
    """

    def __init__(self, size: int | float) -> None:
        super().__init__(size)
        self._last: tuple[tuple[int, int, int], Tensor] | None = None

    def _subset(self, terms: int, size: int, k: int, generator: Generator) -> Tensor:
        epoch, place = divmod(k, terms // size)
        key = generator.initial_seed(), epoch, terms
        if self._last is None or self._last[0] != key or self._last[1].device != generator.device:
            own = torch.Generator(generator.device).manual_seed(
                (key[0] + 1_000_003 * epoch) % 2**63
            )
            self._last = key, torch.randperm(terms, generator=own, device=generator.device)
        return self._last[1][place * size : (place + 1) * size]


class InTurn(Oracle):
    """G(x) = an estimate of ∇f(x) from one term of f = Σᵢ fᵢ at a time, in an order in which
    neighbours are far apart.

    A pass over all terms has less error than as many random ones, and nothing about it is random.
    """

    def forward(
        self, problem: Problem, x: Tree, k: int, generator: Generator | None = None
    ) -> Tree:
        return problem.grad_of_terms(x, torch.tensor([spread(k, _terms(problem, self))]))


class Relative(WrappedOracle):
    """G(x) = oracle(x)/s, where the problem states the weight s of each entry of x, such as Aᵀ1.

    Mirror descent on G with Σ φ(xⱼ) is mirror descent on f with Σ sⱼφ(xⱼ): steps have no unit, and
    what was learned for one number of counts, rays or angles serves for others.
    """

    def forward(
        self, problem: Problem, x: Tree, k: int, generator: Generator | None = None
    ) -> Tree:
        sensitivity = getattr(problem, "sensitivity", None)
        if sensitivity is None:
            raise TypeError(
                f"{type(problem).__name__} has no sensitivity by which Relative could divide"
            )
        return tree_map(lambda g: g / sensitivity, self.oracle(problem, x, k, generator))


class Noisy(WrappedOracle):
    """G(x) = oracle(x) + σ·N(0, I): additive Gaussian noise on another oracle."""

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
    """G(x) = c·oracle(x), with a factor c for every sample."""

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
    """G(x) = oracle(x) as a constant: a meta-gradient does not pass through ∇f."""

    def forward(
        self, problem: Problem, x: Tree, k: int, generator: Generator | None = None
    ) -> Tree:
        with torch.no_grad():
            return self.oracle(problem, tree_map(torch.Tensor.detach, x), k, generator)


class Smoothed(Oracle):
    """G(x) = ∇f_μ(x): the gradient of the problem with its kinks rounded over a width μ(k + 1).

    Total variation becomes a Huber function of the differences, the hinge a smooth hinge. The
    objective that is reported stays f itself.
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
    """G(x) = ∇f_μ(x) with the width μ that gives the rounded kinks the second derivative a(k + 1).

    For a kink h|d| that is μ = h/a. Step sizes learned for one height h are then just as safe for
    any other: a bound on ‖∇²f_μ‖ has no h in it. For total variation, a·DᵀD + 2s·I is such a bound.
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
                f"{type(problem).__name__} does not know how high its kinks are: use Smoothed"
            )
        return problem.smoothed_grad(x, problem.kink / self.curvature(k + 1))


def require_generator(generator: Generator | None, who: object) -> Generator:
    """Return the generator, or say that something random needs one."""
    if generator is None:
        raise ValueError(
            f"{type(who).__name__} is random: pass generator=torch.Generator().manual_seed(0), or another"
        )
    return generator


def spread(k: int, terms: int) -> int:
    """Return the k-th term in a cyclic order in which neighbours are far apart, by the golden
    ratio.

    >>> [spread(k, 8) for k in range(9)]
    [0, 5, 2, 7, 4, 1, 6, 3, 0]
    """
    stride = next(s for s in range(round(0.618 * terms), terms + 2) if math.gcd(s, terms) == 1)
    return k * stride % terms


def _terms(problem: Problem, oracle: Oracle) -> int:
    if problem.terms is None:
        raise TypeError(
            f"{type(problem).__name__} is not a finite sum, as {type(oracle).__name__} needs"
        )
    return problem.terms
