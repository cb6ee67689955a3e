"""A duality gap for methods that use only gradients."""

from typing import Any

from torch import Generator, Tensor

from mirrordescent.methods.base import GradientMethod, Method, StatefulWrapper, Wrapped
from mirrordescent.methods.equipped import overrides_step
from mirrordescent.methods.means import Means
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree


class Certified(StatefulWrapper):
    """A gradient method with a lower bound on min f from the means of its gradients.

    .. code-block:: none

        f(x) = q(x) + sλ‖Dx‖₁,  q quadratic:    gᵢ = ∇q(xᵢ) + Dᵀuᵢ,  |uᵢ| ≤ sλ
        ḡ = Σ wᵢgᵢ,  x̄ = Σ wᵢxᵢ,  Σ wᵢ = 1:     ḡ − ∇q(x̄) = Dᵀū,  ū = Σ wᵢuᵢ,  |ū| ≤ sλ

    So ū is a feasible dual point, which need not be computed, whether the gradients are those of
    |·| or of a smoothed one. The means converge even if single dual points jump. The weights are
    wᵢ ∝ i², so that early gradients are forgotten. The iterates are those of the method. The means
    cost two images of memory and two passes over them a step, less with a C kernel.

    There is no bound if gradients are stochastic, or if the problem cannot derive one from the
    means (:meth:`Problem.bound_from_means`).

    Args:
        method: Gradient method that does not override ``step``.
    """

    method: GradientMethod[Any]

    def __init__(self, method: Method[Any]) -> None:
        if not isinstance(method, GradientMethod) or overrides_step(method):
            raise TypeError(
                "Certified needs a GradientMethod that does not override step(); "
                f"got {type(method).__name__}"
            )
        super().__init__(method)

    def init(self, x0: Tree, problem: Problem | None = None) -> Wrapped:
        inner = self.method.init(x0, problem)
        return Wrapped(inner, Means.empty(inner.x))

    def step(
        self, problem: Problem, state: Wrapped, oracle: Oracle, generator: Generator | None = None
    ) -> Wrapped:
        """Compute the gradient, include it in the means if it proves something, and step."""
        gradient = self.method.gradient(problem, state.inner, oracle, generator)
        means = state.own
        if self.resolve_oracle(oracle).proves:
            means = means.add(state.inner.x, gradient)
        return Wrapped(self.method.update(state.inner, gradient), means)

    def lower_bound(self, problem: Problem, state: Wrapped) -> Tensor | None:
        means = state.own
        if means.n == 0:
            return None
        return problem.bound_from_means(means.gradient, means.point, means.n)

    def tight_bound(self, problem: Problem, state: Wrapped) -> Tensor | None:
        return self.lower_bound(problem, state)
