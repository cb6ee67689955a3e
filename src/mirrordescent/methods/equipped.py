"""A method together with the oracle it was learned with."""

from typing import Any, cast

from torch import Generator

from mirrordescent.methods.base import GradientMethod, Run, Wrapper
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree


class Equipped(Wrapper[Any], GradientMethod[Any]):
    """A method that brings its own oracle, so that both can be learned, stored and used as one.

    An oracle that wraps another, such as ``Noisy(0.1)``, is put around the method's own; one that
    would replace it is refused.

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
                f"{type(method).__name__} asks for no gradients: an oracle is of no use to it"
            )
        super().__init__(method)
        self._modules["oracle"] = oracle  # the property below finds it

    @property
    def oracle(self) -> Oracle:
        return cast(Oracle, self._modules["oracle"])

    def resolve_oracle(self, oracle: Oracle) -> Oracle:
        return self.method.resolve_oracle(oracle.combine_with(self.oracle))

    @property
    def steps_by_update(self) -> bool:
        return type(self).step is Equipped.step and self.method.steps_by_update

    def update(self, state: Any, grad: Tree) -> Any:
        """Update the method along a gradient of its own oracle."""
        return self.method.update(state, grad)

    def gradient(
        self, problem: Problem, state: Any, oracle: Oracle, generator: Generator | None = None
    ) -> Tree:
        """Ask the method's own oracle, or the given one around it."""
        return self.method.gradient(problem, state, oracle.combine_with(self.oracle), generator)

    def step(
        self, problem: Problem, state: Any, oracle: Oracle, generator: Generator | None = None
    ) -> Any:
        """Let the method step with its own oracle, or the given one around it."""
        return self.method.step(problem, state, oracle.combine_with(self.oracle), generator)

    def kernel(self, problem: Problem, oracle: Oracle) -> Run[Any] | None:
        """Return the method's compiled steps with its own oracle."""
        return self.method.kernel(problem, oracle.combine_with(self.oracle))
