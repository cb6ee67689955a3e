"""Methods that prove how good they are: a duality gap from gradients alone, and a hand-over to a primal-dual method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Generator, Tensor

from mirrordescent.methods.base import Method
from mirrordescent.methods.fused import Fused
from mirrordescent.methods.primal_dual import PDHG, DualFISTA
from mirrordescent.methods.watching import Means, Watching
from mirrordescent.oracles import Rounded
from mirrordescent.trees import Tree

if TYPE_CHECKING:
    from mirrordescent.mirrors.base import MirrorMap
    from mirrordescent.oracles import Oracle
    from mirrordescent.problems.base import Problem


class CertifiedState(NamedTuple):
    """Steps taken, the query point, the method's own state, and the weighted means of gradients and of their points."""

    k: int
    x: Tree
    inner: Any
    gradient: Tree | None
    point: Tree | None


class Certified(Method[CertifiedState]):
    """Any method that is told gradients, with a lower bound on min f from the means of what it was told:

    .. code-block:: none

        f(x) = q(x) + sλ‖Dx‖₁,  q quadratic:    gᵢ = ∇q(xᵢ) + Dᵀuᵢ,  |uᵢ| ≤ sλ
        ḡ = Σ wᵢgᵢ,  x̄ = Σ wᵢxᵢ,  Σ wᵢ = 1:     ḡ − ∇q(x̄) = Dᵀū,  ū = Σ wᵢuᵢ,  |ū| ≤ sλ

    so that ū, which nobody has to know, is a feasible dual point, whether the gradients were those of |·| or of a
    smoothed one. The means converge where single duals jump about; wᵢ ∝ i², so that the first ones are forgotten. It
    costs two images of memory and two passes over them a step, less with a kernel, and the iterates are those of the
    method.

    There is none for random gradients, which prove nothing, and for problems that cannot make a bound of the means
    (``Problem.bound_from_means``).
    """

    def __init__(self, method: Method[Any]) -> None:
        super().__init__()
        self.method = method

    @property
    def mirror(self) -> MirrorMap | None:
        """The map of the method, if it has one."""
        return getattr(self.method, "mirror", None)

    def init(self, x0: Tree) -> CertifiedState:
        """Start as the method does."""
        inner = self.method.init(x0)
        return CertifiedState(0, inner.x, inner, None, None)

    def step(
        self, problem: Problem, state: CertifiedState, oracle: Oracle, generator: Generator | None = None
    ) -> CertifiedState:
        """Let the method step, and watch what it is told."""
        count = state.k + 1
        means = Means(6 * count / ((count + 1) * (2 * count + 1)), state.gradient, state.point)  # i² / Σⱼ j²
        inner = self.method.step(problem, state.inner, Watching(oracle, means), generator)
        return CertifiedState(count, inner.x, inner, means.gradient, means.point)

    def answer(self, state: CertifiedState) -> Tree:
        """Return what the method would."""
        return self.method.answer(state.inner)

    def inside(self, state: CertifiedState) -> Tensor | None:
        """Ask the method."""
        return self.method.inside(state.inner)

    def lower_bound(self, problem: Problem, state: CertifiedState) -> Tensor | None:
        """Evaluate the dual at ū."""
        if state.gradient is None or state.point is None:
            return None
        return problem.bound_from_means(state.gradient, state.point)


class HandOverState(NamedTuple):
    """Steps taken, the point reached, and the state of the method that is at work; the other one is None."""

    k: int
    x: Tree
    first: CertifiedState | None
    second: Any | None


class HandOver(Method[HandOverState]):
    """A method for the first ``after`` steps, then a primal-dual one, by default PDHG; certified throughout.

    The second begins with u = prox_{aG*}(aKx), where a is the curvature that the first one's own oracle has reached, or
    σ. What was learned is ahead in the first tens of steps; PDHG proves it, and is good at the last digits.

    >>> import torch
    >>> from mirrordescent import TVDenoising, gap, solve, zoo
    >>> problem = TVDenoising(torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0)))
    >>> method = HandOver(zoo.load("ellipse-denoise-conjugate"), after=10)
    >>> solve(problem, method, iterations=2000, stop=gap(1e-4), check_every=10).statuses
    [<Status.CONVERGED: 1>]
    """

    def __init__(self, first: Method[Any], after: int, then: PDHG | DualFISTA | Fused | None = None) -> None:
        super().__init__()
        if after < 1:
            raise ValueError(f"HandOver needs after ≥ 1, got {after}")
        self.first, self.after, self.then = Certified(first), after, then or PDHG(0.3)

    def init(self, x0: Tree) -> HandOverState:
        """Start as the first method does."""
        first = self.first.init(x0)
        return HandOverState(0, first.x, first, None)

    def step(
        self, problem: Problem, state: HandOverState, oracle: Oracle, generator: Generator | None = None
    ) -> HandOverState:
        """Take a step of the method whose turn it is."""
        count = state.k + 1
        if count <= self.after:
            assert state.first is not None
            first = self.first.step(problem, state.first, oracle, generator)
            return HandOverState(count, first.x, first, None)
        second: Any = state.second
        if second is None:
            assert state.first is not None
            second = self.then.begin(problem, cast(Tensor, self.first.answer(state.first)), self._curvature())
        second = self.then.step(problem, second, oracle, generator)
        return HandOverState(count, second.x, None, second)

    @torch.no_grad()
    def _curvature(self) -> float | None:
        own = getattr(self.first.method, "oracle", None)
        return float(own.curvature(self.after)) if isinstance(own, Rounded) else None

    def answer(self, state: HandOverState) -> Tree:
        """Return what the method at work would."""
        return state.x if state.first is None else self.first.answer(state.first)

    def inside(self, state: HandOverState) -> Tensor | None:
        """Ask the method at work."""
        return None if state.first is None else self.first.inside(state.first)

    def lower_bound(self, problem: Problem, state: HandOverState) -> Tensor | None:
        """Ask the method at work."""
        if state.second is not None:
            return self.then.lower_bound(problem, state.second)
        assert state.first is not None
        return self.first.lower_bound(problem, state.first)
