"""A duality gap for methods that use only gradients."""

from typing import Any

from torch import Generator, Tensor

from mirrordescent.methods.base import GradientMethod, Run, StatefulWrapper, Wrapped
from mirrordescent.methods.means import Means
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree


class Certified(StatefulWrapper):
    """Any method that is told gradients, with a lower bound on min f from the means of what it was
    told:

    .. code-block:: none

        f(x) = q(x) + sλ‖Dx‖₁,  q quadratic:    gᵢ = ∇q(xᵢ) + Dᵀuᵢ,  |uᵢ| ≤ sλ
        ḡ = Σ wᵢgᵢ,  x̄ = Σ wᵢxᵢ,  Σ wᵢ = 1:     ḡ − ∇q(x̄) = Dᵀū,  ū = Σ wᵢuᵢ,  |ū| ≤ sλ

    so that ū, which need not be computed, is a feasible dual point, whether the gradients were
    those of |·| or of a smoothed one. The means converge where single duals jump about; wᵢ ∝ i², so
    that the first ones are forgotten. It costs two images of memory and two passes over them a
    step, less with a kernel, and the iterates are those of the method.

    There is no bound for random gradients, which prove nothing, nor for problems that cannot derive
    one from the means (``Problem.bound_from_means``).
    """

    method: GradientMethod[Any]

    def __init__(self, method: GradientMethod[Any]) -> None:
        if not (isinstance(method, GradientMethod) and method.steps_by_update):
            name = type(method).__name__
            raise TypeError(
                f"{name} asks for no gradients, of which Certified could make a bound, or has its own step"
            )
        super().__init__(method)

    def init(self, x0: Tree, problem: Problem | None = None) -> Wrapped:
        inner = self.method.init(x0, problem)
        return Wrapped(inner, Means.none(inner.x))

    def step(
        self, problem: Problem, state: Wrapped, oracle: Oracle, generator: Generator | None = None
    ) -> Wrapped:
        """Ask for the gradient, include it in the means if it proves something, and let the method
        step along it.
        """
        gradient = self.method.gradient(problem, state.inner, oracle, generator)
        means = (
            state.own.tell(state.inner.x, gradient)
            if self.resolve_oracle(oracle).proves
            else state.own
        )
        return Wrapped(self.method.update(state.inner, gradient), means)

    def kernel(self, problem: Problem, oracle: Oracle) -> Run[Wrapped] | None:
        """Return the method's compiled steps, if they compute means on the way."""
        run = getattr(self.method.kernel(problem, oracle), "with_means", None)
        return None if run is None else lambda state, steps: Wrapped(*run(*state, steps))

    def lower_bound(self, problem: Problem, state: Wrapped) -> Tensor | None:
        means = state.own
        return (
            problem.bound_from_means(means.gradient, means.point, means.told)
            if means.told
            else None
        )

    def tight_bound(self, problem: Problem, state: Wrapped) -> Tensor | None:
        return self.lower_bound(problem, state)
