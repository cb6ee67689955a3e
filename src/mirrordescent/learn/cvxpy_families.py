"""Families of programs that are written in CVXPY."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor

from mirrordescent._internal.extras import requires_extra
from mirrordescent.learn.families import Draw, ProblemFamily, generators
from mirrordescent.problems.programs import QP

LARGEST_DENSE = 500
"""Number of variables up to which matrices are dense."""

Sampler: TypeAlias = Callable[[Generator], Mapping[str, Any]]
CONES = {
    "soc": "second-order cones",
    "exp": "exponential cones",
    "psd": "semidefinite cones",
    "p3d": "power cones",
    "pnd": "power cones",
}


class CVXPYFamily(ProblemFamily):
    """Programs of one CVXPY problem with random parameters; see :func:`from_cvxpy`.

    Args:
        problem: Problem of CVXPY.
        parameters: Function of a random generator that returns the values of all parameters by
            name.
        dtype: Type of the data.
    """

    def __init__(
        self, problem: Any, parameters: Sampler, dtype: torch.dtype = torch.float32
    ) -> None:
        with requires_extra("rivals", "Problems of CVXPY", "cvxpy"):
            import cvxpy
        if not isinstance(problem, cvxpy.Problem):
            raise TypeError(f"problem must be a cvxpy.Problem, got {type(problem).__name__}")
        checked: Any = problem
        if not checked.is_dcp(dpp=True):
            raise ValueError(
                "the problem must follow the rules of disciplined parametrised programming (DPP): "
                "parameters must enter affinely, see problem.is_dcp(dpp=True)"
            )
        if problem.is_mixed_integer():
            raise ValueError("integer variables are not supported")
        self.problem = problem
        self.parameters = parameters
        self.dtype = dtype
        self._by_name = {each.name(): each for each in problem.parameters()}
        self._columns: dict[int, int] = {}

    def draw(self, seeds: Tensor) -> Draw:
        values = [self.parameters(generator) for generator in generators(seeds)]
        program = self._program(values)
        return Draw(program, program.start(len(values)))

    def program(self, **values: Any) -> QP:
        """Return the programs for given parameters, arrays with a leading batch dimension."""
        count = len(next(iter(values.values())))
        return self._program(
            [{name: value[i] for name, value in values.items()} for i in range(count)]
        )

    def unpack(self, x: Tensor) -> dict[str, Tensor]:
        """Return the values of the variables of the CVXPY problem by name, (batch, …) each.

        Args:
            x: Points of a program of this family.
        """
        found = {}
        for variable in self.problem.variables():
            if variable.id not in self._columns:
                raise ValueError(
                    f"{variable.name()} has attributes, such as nonneg, that CVXPY replaces by "
                    "other variables: write them as constraints"
                )
            first = self._columns[variable.id]
            flat = x[:, first : first + variable.size]
            # CVXPY stores matrices by columns.
            turned = flat.reshape(len(x), *reversed(variable.shape))
            found[variable.name()] = turned.permute(0, *range(turned.ndim - 1, 0, -1))
        return found

    def _program(self, values: list[Mapping[str, Any]]) -> QP:
        forms = [self._canonical(each) for each in values]
        P, q, A, lower, upper = zip(*forms, strict=True)
        linear = all(each is None or not each.nnz for each in P)
        return QP(
            None if linear else self._stack(P),
            torch.tensor(np.stack(q), dtype=self.dtype),
            self._stack(A),
            torch.tensor(np.stack(lower), dtype=self.dtype),
            torch.tensor(np.stack(upper), dtype=self.dtype),
        )

    def _canonical(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return P, q, A, l and u by CVXPY's own map from parameters to a program."""
        import cvxpy

        if values.keys() != self._by_name.keys():
            raise ValueError(
                f"values are needed for the parameters {sorted(self._by_name)}, "
                f"got {sorted(values)}"
            )
        for name, value in values.items():
            array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
            self._by_name[name].value = array.astype(float)
        data, _, _ = self.problem.get_problem_data(cvxpy.CLARABEL)
        dims = data["dims"]
        for kind, name in CONES.items():
            if getattr(dims, kind, None):
                raise ValueError(
                    f"the problem needs {name}, which are not supported: only linear and quadratic "
                    "programs are"
                )
        self._columns = dict(data["param_prob"].var_id_to_col)
        right = np.asarray(data["b"], dtype=float)
        lower = np.full(len(right), -np.inf)
        lower[: dims.zero] = right[: dims.zero]
        P = data.get("P")
        if P is not None:
            P = P + P.T - _diagonal(P)  # CVXPY may store one triangle
            full = data["P"]
            P = full if abs(full - full.T).nnz == 0 else P
        return P, np.asarray(data["c"], dtype=float), data["A"], lower, right

    def _stack(self, matrices: tuple[Any, ...]) -> Any:
        """Return one matrix if all are the same, else a batch of dense matrices."""
        first = matrices[0].tocsr()
        shared = all(_equal(first, each.tocsr()) for each in matrices[1:])
        if not shared:
            return torch.tensor(np.stack([each.toarray() for each in matrices]), dtype=self.dtype)
        if first.shape[1] > LARGEST_DENSE:
            return first
        return torch.tensor(first.toarray(), dtype=self.dtype)


def _diagonal(P: Any) -> Any:
    import scipy.sparse as sp

    return sp.diags(P.diagonal())


def _equal(first: Any, second: Any) -> bool:
    return first.shape == second.shape and abs(first - second).nnz == 0


def from_cvxpy(
    problem: Any, parameters: Sampler, dtype: torch.dtype = torch.float32
) -> CVXPYFamily:
    """Return a CVXPY problem with random parameters as a family of programs.

    CVXPY itself translates the problem to a linear or quadratic program for every value of the
    parameters. If the matrices do not depend on the parameters, all programs share them. Constant
    terms of the objective are left out.

    Args:
        problem: Problem of CVXPY that follows its rules for parameters (DPP).
        parameters: Function of a random generator that returns the values of all parameters by
            name.
        dtype: Type of the data.

    .. code-block:: python

        x = cp.Variable(4, name="x")
        q = cp.Parameter(4, name="q")
        problem = cp.Problem(cp.Minimize(cp.sum_squares(x) + q @ x), [cp.sum(x) == 1, x >= 0])
        family = md.from_cvxpy(problem, lambda g: {"q": torch.randn(4, generator=g)})
        md.auto(family)
    """
    return CVXPYFamily(problem, parameters, dtype)
