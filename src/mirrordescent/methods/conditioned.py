"""A method that looks at the problem before it begins."""

from typing import Any, cast

from torch import Generator

from mirrordescent.conditioning import Features, FeatureTable, given
from mirrordescent.methods.base import Method, Run, StatefulWrapper, Wrapped
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree


class Conditioned(StatefulWrapper):
    """A method with parts that depend on the problem: schedules and maps as functions of its
    features φ.

    φ is what the problem tells of itself and of the start (``Problem.features``), one number of a
    kind for every sample, so that each sample of a batch gets its own steps. The state carries φ
    along.

    >>> import torch
    >>> from mirrordescent import GD, TVDenoising, solve
    >>> from mirrordescent.conditioning import ConditionalLaws
    >>> steps = ConditionalLaws([1], [0.5], power=0.5, exponents={"unit": -1.0})  # t ∝ 1/(2s)
    >>> y = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> once, twice = (solve(TVDenoising(y, scale=s), Conditioned(GD(steps)), iterations=5) for s in (0.5, 1.0))
    >>> bool((once.x - twice.x).abs().max() < 1e-6)
    True
    """

    def __init__(self, method: Method[Any]) -> None:
        super().__init__(method)
        self._made: tuple[Features, Method[Any]] | None = None

    def init(self, x0: Tree, problem: Problem | None = None) -> Wrapped:
        """Ask the problem for its features, and start the method for them."""
        if problem is None:
            raise TypeError("Conditioned has to know the problem from the start: init(x0, problem)")
        features = FeatureTable(problem.features(x0))
        return Wrapped(self._for(features).init(x0, problem), features)

    def step(
        self, problem: Problem, state: Wrapped, oracle: Oracle, generator: Generator | None = None
    ) -> Wrapped:
        return Wrapped(
            self._for(state.own).step(problem, state.inner, oracle, generator), state.own
        )

    def kernel(self, problem: Problem, oracle: Oracle) -> Run[Wrapped] | None:
        """Return compiled steps, if the method has some."""
        if self.method.kernel(problem, oracle) is None:
            return None
        last: tuple[Method[Any], Run[Any]] | None = None

        def run(state: Wrapped, steps: int) -> Wrapped:
            nonlocal last
            method = self._for(state.own)
            if last is None or last[0] is not method:
                last = method, cast(Run[Any], method.kernel(problem, oracle))
            return Wrapped(last[1](state.inner, steps), state.own)

        return run

    def active_method(self, state: Wrapped) -> Method[Any]:
        return self._for(state.own)

    def _for(self, features: Features) -> Method[Any]:
        """Return the method for some features; it is kept, since every step asks for that of the
        same ones.
        """
        if self._made is None or self._made[0] is not features:
            self._made = features, given(self.method, features)
        return self._made[1]
