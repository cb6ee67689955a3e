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

LARGEST_MAP = 10_000_000
"""Number of entries of the map from parameters to bounds up to which it is stored."""

Sampler: TypeAlias = Callable[[Generator], Mapping[str, Any]]
CONES = {
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
        self._class: _AffineClass | None = None
        self._searched = False

    def draw(self, seeds: Tensor) -> Draw:
        values = [self.parameters(generator) for generator in generators(seeds)]
        stacked = {name: np.stack([_array(each[name]) for each in values]) for name in values[0]}
        program = self.program(**stacked)
        return Draw(program, program.start(len(values)))

    def program(self, **values: Any) -> QP:
        """Return the programs for given parameters, arrays with a leading batch dimension.

        If only q and the bounds depend on the parameters, all programs share their matrices and
        what methods derive from them, see :meth:`QP.updated <mirrordescent.QP.updated>`.
        """
        self._check_names(values)
        arrays = {name: _array(value) for name, value in values.items()}
        count = len(next(iter(arrays.values())))
        if self._class is None and not self._searched:
            self._find_class({name: array[0] for name, array in arrays.items()})
        program = None if self._class is None else self._class.program(arrays)
        if program is not None:
            return program
        return self._stacked(
            [{name: array[i] for name, array in arrays.items()} for i in range(count)]
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

    def _find_class(self, values: Mapping[str, Any]) -> None:
        """Look for an affine map from parameters to the vectors of a program."""
        self._searched = True
        canonical = self._canonical(values)
        found = _AffineClass.of(self, canonical)
        if found is not None and found.confirmed(values, canonical):
            self._class = found

    def _check_names(self, values: Mapping[str, Any]) -> None:
        if values.keys() != self._by_name.keys():
            raise ValueError(
                f"values are needed for the parameters {sorted(self._by_name)}, "
                f"got {sorted(values)}"
            )

    def _stacked(self, values: list[Mapping[str, Any]]) -> QP:
        forms = [self._canonical(each) for each in values]
        P, q, A, lower, upper, cones = zip(*forms, strict=True)
        linear = all(each is None or not each.nnz for each in P)
        return QP(
            None if linear else self._stack(P),
            torch.tensor(np.stack(q), dtype=self.dtype),
            self._stack(A),
            torch.tensor(np.stack(lower), dtype=self.dtype),
            torch.tensor(np.stack(upper), dtype=self.dtype),
            cones=cones[0],
        )

    def _canonical(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return P, q, A, l, u and cones by CVXPY's own map from parameters to a program.

        CVXPY writes b − Ax ∈ K. Rows of second-order cones are negated.
        """
        import cvxpy

        self._check_names(values)
        for name, value in values.items():
            self._by_name[name].value = _array(value)
        data, _, _ = self.problem.get_problem_data(cvxpy.CLARABEL)
        dims = data["dims"]
        for kind, name in CONES.items():
            if getattr(dims, kind, None):
                raise ValueError(
                    f"the problem needs {name}, which are not supported: only linear, quadratic "
                    "and second-order cone programs are"
                )
        self.canonical_map = data["param_prob"]
        self._columns = dict(self.canonical_map.var_id_to_col)
        right = np.asarray(data["b"], dtype=float)
        lower = np.full(len(right), -np.inf)
        lower[: dims.zero] = right[: dims.zero]
        upper = right.copy()
        cones = tuple(dims.soc)
        first = len(right) - sum(cones)
        lower[first:] = -right[first:]
        upper[first:] = np.inf
        A = data["A"]
        if cones:
            A = _negated(A, first)
        P = data.get("P")
        if P is not None:
            P = P + P.T - _diagonal(P)  # CVXPY may store one triangle
            full = data["P"]
            P = full if abs(full - full.T).nnz == 0 else P
        return P, np.asarray(data["c"], dtype=float), A, lower, upper, cones

    def _stack(self, matrices: tuple[Any, ...]) -> Any:
        """Return one matrix if all are the same, else a batch of dense matrices."""
        first = matrices[0].tocsr()
        shared = all(_equal(first, each.tocsr()) for each in matrices[1:])
        if not shared:
            return torch.tensor(np.stack([each.toarray() for each in matrices]), dtype=self.dtype)
        if first.shape[1] > LARGEST_DENSE:
            return first
        return torch.tensor(first.toarray(), dtype=self.dtype)


class _AffineClass:
    """Programs of which only q and the bounds depend, affinely, on the parameters.

    Rows that are negatives of each other, such as x ≤ 1 and −x ≤ 1, are one row with two bounds.

    Args:
        template: A program of the class.
        q: Matrix that gives q from (parameters, 1).
        bounds: Matrix that gives the right-hand sides of CVXPY's rows.
        merged: Rows that are kept, and for every row of CVXPY its kept row and its sign.
        equalities: Number of equalities, which come first.
        parameters: Names and first columns of the parameters.
    """

    def __init__(
        self,
        template: QP,
        q: Any,
        bounds: Any,
        merged: tuple[Any, Any, Any],
        equalities: int,
        parameters: dict[str, int],
    ) -> None:
        self.template = template
        self.q = q
        self.bounds = bounds
        self.parameters = parameters
        kept, row_of, sign = merged
        self.constant_q = not q[:, :-1].any()
        # Bounds for parameters 0, then the rows of CVXPY that move an upper or a lower bound.
        self.upper = np.full(len(kept), np.inf)
        self.upper[row_of[sign > 0]] = bounds[sign > 0, -1]
        self.lower = np.full(len(kept), -np.inf)
        self.lower[:equalities] = bounds[:equalities, -1]
        self.lower[row_of[sign < 0]] = -bounds[sign < 0, -1]
        varying = bounds[:, :-1].any(1)
        above = varying & (sign > 0)
        below = varying & (sign < 0)
        equal = varying & (np.arange(len(sign)) < equalities)
        self.above = (row_of[above], bounds[above, :-1])
        self.below = (
            np.concatenate([row_of[below], row_of[equal]]),
            np.concatenate([-bounds[below, :-1], bounds[equal, :-1]]),
        )

    @classmethod
    def of(cls, family: CVXPYFamily, canonical: tuple[Any, ...]) -> _AffineClass | None:
        """Return the class of a family; None if matrices depend on parameters or are large."""
        P, q, A, lower, upper, cones = canonical
        n = len(q)
        stuffed = family.canonical_map
        count = stuffed.total_param_size
        if n > LARGEST_DENSE or count * len(upper) > LARGEST_MAP:
            return None
        if stuffed.P is not None and stuffed.P[:, :count].nnz:
            return None
        entries = stuffed.A.tocoo()  # rows of (A, b), column by column
        in_matrix = entries.row < n * len(upper)
        if (entries.col[in_matrix] < count).any():
            return None
        bounds = np.zeros((len(upper), count + 1))
        rows = entries.row[~in_matrix] - n * len(upper)
        np.add.at(bounds, (rows, entries.col[~in_matrix]), entries.data[~in_matrix])
        dense = A.toarray()
        first = len(upper) - sum(cones)
        equalities = int(np.isfinite(lower[:first]).sum())
        merged = _merged_rows(dense[:first], equalities)
        merged = _with_cones(merged, first, len(upper))
        kept = merged[0]
        end = len(kept) - sum(cones)
        template = QP(
            None if P is None or not P.nnz else torch.tensor(P.toarray(), dtype=family.dtype),
            torch.tensor(q, dtype=family.dtype),
            torch.tensor(dense[kept], dtype=family.dtype),
            np.where(np.arange(len(kept)) < end, -np.inf, 0.0),
            cones=cones,
        )
        names = {each.id: each.name() for each in family.problem.parameters()}
        columns = stuffed.param_id_to_col
        if not set(names) <= set(columns):
            return None
        parameters = {name: columns[key] for key, name in names.items()}
        q_map = np.asarray(stuffed.q[:-1].todense())
        return cls(template, q_map, bounds, merged, equalities, parameters)

    def columns(self, values: Mapping[str, Any]) -> Any:
        """Return the parameters of every problem as a row."""
        count = len(next(iter(values.values())))
        columns = np.zeros((count, self.q.shape[1] - 1))
        for name, first in self.parameters.items():
            value = np.asarray(values[name])
            # CVXPY orders the entries of a matrix by columns.
            flat = value.reshape(count, -1, order="F") if value.ndim > 1 else value[:, None]
            columns[:, first : first + flat.shape[1]] = flat
        return columns

    def confirmed(self, values: Mapping[str, Any], canonical: tuple[Any, ...]) -> bool:
        """Return whether the map gives the program that CVXPY itself gives."""
        _, q, _, lower, upper, _ = canonical
        row = np.append(self.columns({name: _array(v)[None] for name, v in values.items()}), 1.0)
        right = np.where(np.isinf(upper), -lower, upper)
        return bool(np.allclose(self.q @ row, q) and np.allclose(self.bounds @ row, right))

    def program(self, values: Mapping[str, Any]) -> QP | None:
        """Return the programs for parameters with a leading batch dimension.

        None if two bounds contradict each other: such programs need separate rows.
        """
        columns = self.columns(values)
        q = None if self.constant_q else columns @ self.q[:, :-1].T + self.q[:, -1]
        upper = np.repeat(self.upper[None], len(columns), 0)
        lower = np.repeat(self.lower[None], len(columns), 0)
        for bound, (rows, moves) in ((upper, self.above), (lower, self.below)):
            if len(rows):
                bound[:, rows] += columns @ moves.T
        moved = np.union1d(self.above[0], self.below[0])
        if bool((lower[:, moved] > upper[:, moved]).any()):
            return None
        return self.template.updated(q, lower, upper)


def _merged_rows(A: Any, equalities: int) -> tuple[Any, Any, Any]:
    """Return the rows to keep, and for every row the kept one and its sign.

    An inequality is merged with an earlier one that is its negative.
    """
    single: dict[bytes, int] = {}
    kept = list(range(equalities))
    row_of = list(range(equalities))
    signs = [1] * equalities
    for i in range(equalities, len(A)):
        opposite = single.pop((0.0 - A[i]).tobytes(), None)
        if opposite is None:
            single[(A[i] + 0.0).tobytes()] = len(kept)  # −0 becomes 0
            row_of.append(len(kept))
            kept.append(i)
        else:
            row_of.append(opposite)
        signs.append(1 if opposite is None else -1)
    return np.array(kept, int), np.array(row_of, int), np.array(signs, int)


def _with_cones(merged: tuple[Any, Any, Any], first: int, rows: int) -> tuple[Any, Any, Any]:
    """Add the rows of cones, which are kept, with the sign that they have in CVXPY."""
    kept, row_of, signs = merged
    last = np.arange(first, rows)
    return (
        np.append(kept, last),
        np.append(row_of, len(kept) + last - first),
        np.append(signs, np.full(len(last), -1)),
    )


def _negated(A: Any, first: int) -> Any:
    """Return a matrix with the opposite of its last rows."""
    import scipy.sparse as sp

    signs = np.ones(A.shape[0])
    signs[first:] = -1
    return sp.csc_matrix(sp.diags(signs) @ A)


def _array(value: Any) -> Any:
    return (value.numpy() if isinstance(value, Tensor) else np.asarray(value)).astype(float)


def _diagonal(P: Any) -> Any:
    import scipy.sparse as sp

    return sp.diags(P.diagonal())


def _equal(first: Any, second: Any) -> bool:
    return first.shape == second.shape and abs(first - second).nnz == 0


def from_cvxpy(
    problem: Any, parameters: Sampler, dtype: torch.dtype = torch.float32
) -> CVXPYFamily:
    """Return a CVXPY problem with random parameters as a family of programs.

    CVXPY itself translates the problem to a linear, quadratic or second-order cone program for
    every value of the parameters. If the matrices do not depend on the parameters, all programs
    share them. Constant terms of the objective are left out.

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
