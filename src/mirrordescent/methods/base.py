"""The interface of every method: ask for a gradient, be told it, move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from torch import Generator, Tensor, nn

from mirrordescent.trees import Tree

if TYPE_CHECKING:
    from mirrordescent.oracles import Oracle
    from mirrordescent.problems.base import Problem


class State(Protocol):
    """What a method carries from step to step: a NamedTuple with at least these two fields."""

    @property
    def k(self) -> int:
        """Steps taken."""

    @property
    def x(self) -> Tree:
        """The point at which the next gradient is wanted."""


S = TypeVar("S", bound=State)


class Method(nn.Module, Generic[S]):
    """An iteration that is told gradients.

    A method owns its mirror map and its schedules and holds no iterates; those live in a state, which
    ``update`` turns into the next one out of place. The caller brings the gradient of ``state.x``:
    from a batch of problems to solve them, inside an autograd graph to learn the method, from
    ``p.grad`` to train a network. To add a method, write ``init`` and ``update``.

    >>> import torch
    >>> from mirrordescent.methods import GD
    >>> method = GD(0.5)
    >>> state = method.init(torch.ones(1, 2))
    >>> state = method.update(state, grad=state.x)  # ∇ of ½‖x‖²
    >>> state.k, state.x
    (1, tensor([[0.5000, 0.5000]]))
    """

    def init(self, x0: Tree) -> S:
        """Return the state before the first step."""
        raise NotImplementedError

    def update(self, state: S, grad: Tree) -> S:
        """Return the state after a step along the gradient at ``state.x``."""
        raise NotImplementedError

    def answer(self, state: S) -> Tree:
        """Return what the method would return now."""
        return state.x

    def step(self, problem: Problem, state: S, oracle: Oracle, generator: Generator | None = None) -> S:
        """Ask the oracle and update. Methods that use more of a problem than gradients override this."""
        return self.update(state, oracle(problem, state.x, state.k, generator))

    def inside(self, state: S) -> Tensor | None:
        """Tell per sample whether the state still lies where the method is defined; None: always."""
        return None

    def lower_bound(self, problem: Problem, state: S) -> Tensor | None:
        """Return a proven lower bound on the optimal value per sample, if the method has one."""
        return None
