"""A fixed number of steps as a module, for ``torch.export`` and ``torch.compile``."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from mirrordescent.methods.base import Method
from mirrordescent.oracles import Default
from mirrordescent.problems.base import Problem


class FixedSteps(nn.Module):
    """A module that takes a fixed number of steps of a method on problems of one shape.

    It has no stopping rule and no checks, so that its graph has no branches. It can be exported,
    compiled, or be part of a larger module. Derivatives pass through all steps. For answers with a
    status, use :func:`~mirrordescent.solve`.

    ``torch.export`` refuses methods whose steps branch on values, such as FISTA with backtracking
    or safeguarded methods, and those that compute norms of the data, such as PDHG.

    Args:
        problem: Problems of the class, which determine the shapes of the data.
        method: The method, such as a learned one.
        iterations: Number of steps.

    >>> import torch
    >>> import mirrordescent as md
    >>> problem = md.LeastSquares(torch.eye(2), torch.tensor([[1.0, 2.0]]))
    >>> steps = FixedSteps(problem, md.GD(0.5), iterations=20)
    >>> steps(torch.zeros(1, 2))
    tensor([[1.0000, 2.0000]])
    >>> steps(torch.zeros(1, 2), {"b": torch.tensor([[3.0, 4.0]])})  # another problem
    tensor([[3.0000, 4.0000]])
    >>> program = torch.export.export(steps, (torch.zeros(1, 2),))
    >>> program.module()(torch.zeros(1, 2))
    tensor([[1.0000, 2.0000]])
    """

    def __init__(self, problem: Problem, method: Method[Any], iterations: int) -> None:
        super().__init__()
        if iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {iterations}")
        self.run = _Run(problem, method, iterations)

    def forward(self, x0: Tensor, data: dict[str, Tensor] | None = None) -> Tensor:
        """Return the answers of the method.

        Args:
            x0: Starts, (batch, …).
            data: Data that replace buffers of the problem, by name, such as ``{"b": b}``. They are
                not checked.
        """
        if not data:
            return self.run(x0)
        buffers = dict(self.run.problem.named_buffers())
        for name in data:
            if name not in buffers:
                raise ValueError(
                    f"{type(self.run.problem).__name__} has no data called {name!r}: "
                    f"choose from {sorted(buffers)}"
                )
        replaced = {f"problem.{name}": tensor for name, tensor in data.items()}
        return functional_call(self.run, replaced, (x0,))


class _Run(nn.Module):
    """The steps for the data that the problem holds."""

    def __init__(self, problem: Problem, method: Method[Any], iterations: int) -> None:
        super().__init__()
        self.problem = problem
        self.method = method
        self.iterations = iterations

    def forward(self, x0: Tensor) -> Tensor:
        """Take all steps with plain torch operations."""
        state = self.method.init(x0, self.problem)
        oracle = self.method.resolve_oracle(Default())
        for _ in range(self.iterations):
            state = self.method.step(self.problem, state, oracle)
        x = self.method.answer(state)
        assert isinstance(x, Tensor)
        return x
