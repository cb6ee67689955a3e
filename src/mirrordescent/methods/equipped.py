"""A method together with the oracle it was learned with."""

from typing import Any, cast

from torch import Generator

from mirrordescent.methods.base import GradientMethod, Wrapper
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree


class Equipped(Wrapper[Any], GradientMethod[Any]):
    """A method with its own oracle, so that both are learned, stored and used together.

    If a solve is given an oracle that wraps another, such as ``Noisy(0.1)``, it wraps the method's
    own oracle. An oracle that would replace the method's own is an error.

    Args:
        method: Gradient method.
        oracle: Oracle of the gradients that the method receives.

    >>> import torch
    >>> from mirrordescent import GD, TVDenoising, solve
    >>> from mirrordescent.oracles import Smoothed
    >>> method = Equipped(GD(0.1), Smoothed(0.2))
    >>> problem = TVDenoising(torch.rand(1, 1, 8, 8))
    >>> bool(solve(problem, method, iterations=50).value < problem.value(problem.start()))
    True
    """

    method: GradientMethod[Any]

    def __init__(self, method: GradientMethod[Any], oracle: Oracle) -> None:
        if not isinstance(method, GradientMethod):
            raise TypeError(
                "Equipped needs a GradientMethod, since other methods use no oracle; "
                f"got {type(method).__name__}"
            )
        super().__init__(method)
        self._modules["oracle"] = oracle  # read by the property below

    @property
    def oracle(self) -> Oracle:
        return cast(Oracle, self._modules["oracle"])

    def resolve_oracle(self, oracle: Oracle) -> Oracle:
        return self.method.resolve_oracle(oracle.combine_with(self.oracle))

    def update(self, state: Any, grad: Tree) -> Any:
        return self.method.update(state, grad)

    def gradient(
        self, problem: Problem, state: Any, oracle: Oracle, generator: Generator | None = None
    ) -> Tree:
        return self.method.gradient(problem, state, oracle.combine_with(self.oracle), generator)

    def step(
        self, problem: Problem, state: Any, oracle: Oracle, generator: Generator | None = None
    ) -> Any:
        return self.method.step(problem, state, oracle.combine_with(self.oracle), generator)


def overrides_step(method: GradientMethod[Any]) -> bool:
    """Return whether a step differs from ``update`` along ``gradient``."""
    if isinstance(method, Equipped) and type(method).step is Equipped.step:
        return overrides_step(method.method)
    return type(method).step is not GradientMethod.step
