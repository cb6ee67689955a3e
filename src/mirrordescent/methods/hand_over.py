"""A method that begins, and a primal-dual one that finishes."""

from functools import lru_cache
from typing import Any, cast

import torch
from torch import Generator, Tensor

from mirrordescent.conditioning import ConditionalLaws
from mirrordescent.methods.base import GradientMethod, Method, Run, StatefulWrapper, Wrapped
from mirrordescent.methods.certified import Certified
from mirrordescent.methods.conditioned import Conditioned
from mirrordescent.methods.primal_dual import PDHG, CondatVu, PrimalDual
from mirrordescent.mirrors import Stencil
from mirrordescent.oracles import Exact, Oracle, Rounded
from mirrordescent.parts import Config
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree


class HandOver(StatefulWrapper):
    """A method for the first ``after`` steps, then a primal-dual one, by default PDHG.

    It is certified throughout, at the price of a mean of gradients; or only from then on, if
    ``certified`` is False. The second begins with u = prox_{aG*}(aKx), where a is the curvature
    that the first one's own oracle has reached, or σ. Learned methods are ahead in the first tens
    of steps; PDHG proves the result, and is good at the last digits.

    >>> import torch
    >>> from mirrordescent import TVDenoising, gap, solve, zoo
    >>> problem = TVDenoising(torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0)))
    >>> method = HandOver(zoo.load("ellipse-denoise-conjugate"), after=10)
    >>> solve(problem, method, iterations=2000, stop=gap(1e-4), check_every=10).statuses
    [<Status.CONVERGED: 1>]
    """

    def __init__(
        self,
        first: GradientMethod[Any],
        after: int,
        then: PrimalDual[Any] | None = None,
        certified: bool = True,
    ) -> None:
        if after < 1:
            raise ValueError(f"HandOver needs after ≥ 1, got {after}")
        super().__init__(Certified(first) if certified else first)
        self.after = after
        self.then = then or PDHG(0.3)
        self.certified = certified

    @property
    def first(self) -> GradientMethod[Any]:
        """The method that begins."""
        return (
            self.method.method
            if isinstance(self.method, Certified)
            else cast(GradientMethod[Any], self.method)
        )

    def active_method(self, state: Wrapped) -> Method[Any]:
        return self.then if state.own else self.method

    def resolve_oracle(self, oracle: Oracle) -> Oracle:
        """Return what the first method asks; an oracle that the second could not honour is
        refused.
        """
        self.then.resolve_oracle(oracle)
        return super().resolve_oracle(oracle)

    def init(self, x0: Tree, problem: Problem | None = None) -> Wrapped:
        return Wrapped(self.method.init(x0, problem), False)

    def step(
        self, problem: Problem, state: Wrapped, oracle: Oracle, generator: Generator | None = None
    ) -> Wrapped:
        state = self._handed_over(problem, state)
        oracle = Exact() if state.own else oracle
        return Wrapped(
            self.active_method(state).step(problem, state.inner, oracle, generator), state.own
        )

    def kernel(self, problem: Problem, oracle: Oracle) -> Run[Wrapped] | None:
        """Return compiled steps of both methods, or plain ones for a method that has none."""
        first = self.method.kernel(problem, oracle)
        second = lru_cache(lambda: self.then.kernel(problem, Exact()))
        if (first is None and second() is None) or self.resolve_oracle(oracle).stochastic:
            return None

        def run(state: Wrapped, steps: int) -> Wrapped:
            while steps > 0:
                state = self._handed_over(problem, state)
                kernel, left = (
                    (second(), steps) if state.own else (first, min(steps, self.after - state.k))
                )
                if kernel is None:
                    state = self.step(problem, state, oracle)
                    left = 1
                else:
                    state = Wrapped(kernel(state.inner, left), state.own)
                steps -= left
            return state

        return run

    def config(self) -> Config:
        return {
            "first": self.first,
            "after": self.after,
            "then": self.then,
            "certified": self.certified,
        }

    def _handed_over(self, problem: Problem, state: Wrapped) -> Wrapped:
        """Let the second method begin where the first has got to, if it is time."""
        if state.own or state.k < self.after:
            return state
        x = cast(Tensor, self.method.answer(state.inner))
        return Wrapped(
            self.then.init(x, problem, self._curvature(problem))._replace(k=state.k), True
        )

    @torch.no_grad()
    def _curvature(self, problem: Problem) -> float | Tensor:
        own = self.first.oracle
        return (
            own.curvature(self.after) if isinstance(own, Rounded) else self.then.dual_step(problem)
        )


def beginning(method: Method[Any]) -> GradientMethod[Any] | None:
    """Return what can be handed over: a method that is told gradients, alone or where an entry ends
    by itself.
    """
    method = method.method if isinstance(method, Conditioned) else method
    method = method.first if isinstance(method, HandOver) else method
    return method if isinstance(method, GradientMethod) else None


def proven(
    method: Method[Any], after: int = 20, then: PrimalDual[Any] | None = None
) -> Method[Any]:
    """Return a method that proves as soon as it can how good it is: handed over after a few steps,
    and certified.

    By default to Condat and Vũ's method in the geometry of a stencil, which is the fastest to a
    proof on images; the ratio of its steps is 0.3·(λ/λ₀)^−½ for a method that knows λ. What depends
    on the problem, and entries that end with a primal-dual method by themselves, may be handed over
    sooner.

    >>> import mirrordescent as md
    >>> type(proven(md.zoo.load("image-tv")))
    <class 'mirrordescent.methods.conditioned.Conditioned'>
    """
    first = beginning(method)
    if first is None:
        raise TypeError(f"{type(method).__name__} is told no gradients, and cannot be handed over")
    if not isinstance(method, Conditioned):
        return HandOver(first, after, then or CondatVu(0.3, Stencil(0.6)))
    ratio = ConditionalLaws([1], [0.3], exponents={"unit": -1.0, "weight": -0.5}).requires_grad_(
        False
    )
    return Conditioned(HandOver(first, after, then or CondatVu(ratio, Stencil(0.6))))
