"""A method whose numbers depend on the problem."""

from typing import Any

from torch import Generator

from mirrordescent.conditioning import Features, FeatureTable, given
from mirrordescent.methods.base import Method, StatefulWrapper, Wrapped
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree


class Conditioned(StatefulWrapper):
    """A method whose schedules and maps are functions of features φ of the problem.

    The features describe the problem and the start (:meth:`Problem.features`). Each feature is one
    number per sample. So each sample of a batch gets its own step sizes. States carry φ along.

    Args:
        method: Method with conditional parts, such as
            :class:`~mirrordescent.conditioning.ConditionalLaws`.

    >>> import torch
    >>> from mirrordescent import GD, TVDenoising, solve
    >>> from mirrordescent.conditioning import ConditionalLaws
    >>> t = ConditionalLaws([1], [0.5], power=0.5, exponents={"unit": -1.0})  # t ∝ 1/(2s)
    >>> y = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> once = solve(TVDenoising(y, scale=0.5), Conditioned(GD(t)), iterations=5)
    >>> twice = solve(TVDenoising(y, scale=1.0), Conditioned(GD(t)), iterations=5)
    >>> bool((once.x - twice.x).abs().max() < 1e-6)
    True
    """

    def __init__(self, method: Method[Any]) -> None:
        super().__init__(method)
        self._latest: tuple[Features, Method[Any]] | None = None

    def init(self, x0: Tree, problem: Problem | None = None) -> Wrapped:
        """Compute the features of the problem, and initialise the method for them."""
        if problem is None:
            raise TypeError("Conditioned needs the problem from the start: call init(x0, problem)")
        features = FeatureTable(problem.features(x0))
        return Wrapped(self._method_for(features).init(x0, problem), features)

    def step(
        self, problem: Problem, state: Wrapped, oracle: Oracle, generator: Generator | None = None
    ) -> Wrapped:
        inner = self._method_for(state.own).step(problem, state.inner, oracle, generator)
        return Wrapped(inner, state.own)

    def active_method(self, state: Wrapped) -> Method[Any]:
        return self._method_for(state.own)

    def _method_for(self, features: Features) -> Method[Any]:
        """Return the method for some features, cached because every step needs it."""
        if self._latest is None or self._latest[0] is not features:
            self._latest = features, given(self.method, features)
        return self._latest[1]
