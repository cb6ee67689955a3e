"""A method that begins, and any other that goes on."""

from typing import Any

from torch import Generator

from mirrordescent.methods.base import Method, StatefulWrapper, Wrapped
from mirrordescent.oracles import Default, Oracle
from mirrordescent.parts import Config
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree


class Relay(StatefulWrapper):
    """One method for the first ``after`` steps, then another, which begins afresh at the answer of
    the first.

    For a learned method that is fast on most problems, and a classical one for those it has not
    finished by then. Where the second is primal-dual, :class:`HandOver` gives it a dual variable to
    begin with.

    >>> import torch
    >>> from mirrordescent import GD, Quadratic, solve
    >>> from mirrordescent.methods import LBFGS
    >>> bowl = Quadratic(torch.tensor([1.0, 100.0]), centre=torch.ones(1, 2))
    >>> bool(solve(bowl, Relay(GD(0.01), 5, LBFGS()), iterations=25).value < 1e-6)
    True
    """

    def __init__(self, first: Method[Any], after: int, then: Method[Any]) -> None:
        super().__init__(first)
        if after < 1:
            raise ValueError(f"Relay needs after ≥ 1, got {after}")
        self.after = int(after)
        self.then = then

    @property
    def first(self) -> Method[Any]:
        """The method that begins."""
        return self.method

    def config(self) -> Config:
        return {"first": self.first, "after": self.after, "then": self.then}

    def active_method(self, state: Wrapped) -> Method[Any]:
        return self.then if state.own else self.method

    def init(self, x0: Tree, problem: Problem | None = None) -> Wrapped:
        return Wrapped(self.method.init(x0, problem), False)

    def step(
        self, problem: Problem, state: Wrapped, oracle: Oracle, generator: Generator | None = None
    ) -> Wrapped:
        if not state.own and state.k >= self.after:
            state = Wrapped(
                self.then.resume(self.method.answer(state.inner), problem, state.k), True
            )
        oracle = Default() if state.own else oracle
        return Wrapped(
            self.active_method(state).step(problem, state.inner, oracle, generator), state.own
        )
