"""The methods of this library as a solver of benchopt's total-variation benchmark.

Copy this file into ``solvers/`` of https://github.com/benchopt/benchmark_tv_2d, then

    benchopt run benchmark_tv_2d -s mirrordescent

The benchmark minimises ½‖Au − y‖² + reg ‖Du‖₁, which is ½(‖Au − y‖² + λ‖Du‖₁) with λ = 2·reg.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchopt import BaseSolver
from mirrordescent import TVInpainting, solve
from mirrordescent.methods import named

STEPS = {"gd": 0.02, "nesterov": 0.002, "adam": 0.005, "amd": 0.02}


class Matrix:
    """Whatever the benchmark multiplies an image with, and its transpose."""

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix

    def A(self, x: Tensor) -> Tensor:
        """Au."""
        return self._apply(self.matrix, x)

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Aᵀu."""
        return self._apply(self.matrix.T, y)

    @staticmethod
    def _apply(matrix: Any, x: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(matrix @ x[0, 0].numpy()))[None, None].to(x)


class Solver(BaseSolver):
    """Any method of the library by its name."""

    name = "mirrordescent"
    sampling_strategy = "iteration"
    requirements = ("pip::mirrordescent",)
    parameters = {"method": ["pdhg", "nesterov", "adam", "amd"]}  # noqa: RUF012 - as benchopt wants it

    def skip(self, isotropy: str, data_fit: str, **others: Any) -> tuple[bool, str | None]:
        """Leave out what is another problem."""
        if isotropy != "anisotropic":
            return True, "mirrordescent has the anisotropic total variation only"
        if data_fit != "lsq":
            return True, "mirrordescent has the least-squares data term only"
        return False, None

    def set_objective(self, A: Any, y: Any, reg: float, **others: Any) -> None:
        """Take the data, in double precision as the benchmark has them."""
        observed = torch.from_numpy(np.asarray(y, dtype=np.float64))[None, None]
        self.problem = TVInpainting(observed, None, weight=2 * reg, operator=Matrix(A))
        self.iterate = torch.zeros_like(self.problem.start())

    def run(self, n_iter: int) -> None:
        """Run from the start."""
        if n_iter > 0:
            start = torch.zeros_like(self.iterate)
            method = named(self.method, t=STEPS.get(self.method))
            self.iterate = solve(
                self.problem, method, start, iterations=n_iter, trace=[n_iter], progress=False
            ).x

    def get_result(self) -> dict[str, Any]:
        """Return the image."""
        return {"u": self.iterate[0, 0].numpy()}
