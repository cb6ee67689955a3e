"""Outside solvers of linear and quadratic programs: DAQP, OSQP, Clarabel, HiGHS, PDLP, SCS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
from torch import Tensor

from mirrordescent.problems.base import Problem
from mirrordescent.rivals.forms import Array, DenseProgram, program_of
from mirrordescent.rivals.registry import Rival, SolveTo, register
from mirrordescent.trees import Tree

SolveOne: TypeAlias = Callable[[DenseProgram, float], list[Any]]

LARGE = 1e30
"""Number that stands for an infinite bound."""


def _register(
    name: str,
    package: str,
    solve: SolveOne,
    *,
    needs_rows: bool = False,
    linear: bool = False,
    cones: bool = False,
    **options: Any,
) -> None:
    def prepare(problem: Problem, x0: Tree) -> SolveTo | None:
        program = program_of(problem, x0)
        if program is None or (needs_rows and not program.A.shape[-2]):
            return None
        if (linear and program.P.any()) or (program.cones and not cones):
            return None

        def solve_to(tolerance: float) -> Tensor:
            return program.points(solve(program, tolerance), cast(Tensor, x0))

        return solve_to

    register(Rival(name, prepare, package, **options))


def _daqp(program: DenseProgram, tolerance: float) -> list[Any]:
    """Solve by a dual active-set method; a linear program gets a tiny curvature."""
    import daqp

    solutions = []
    for i in range(program.count):
        H = np.ascontiguousarray(program.P_of(i))
        A = np.ascontiguousarray(program.A_of(i))
        lower = np.maximum(program.l[i], -LARGE)
        upper = np.minimum(program.u[i], LARGE)
        sense = np.where(lower == upper, 5, 0).astype(np.int32)
        if not len(A):
            A = np.zeros((1, H.shape[0]))
            lower = np.array([-LARGE])
            upper = np.array([LARGE])
            sense = np.zeros(1, np.int32)
        x, _, flag, _ = daqp.solve(
            H, np.ascontiguousarray(program.q[i]), A, upper, lower, sense, eps_prox=1e-6
        )
        solutions.append(x if flag > 0 else np.full(H.shape[0], np.nan))
    return solutions


def _osqp(program: DenseProgram, tolerance: float) -> list[Any]:
    """Solve by OSQP; one setup and decomposition if matrices are shared."""
    import osqp

    solutions = []
    solver: Any = None
    shared = program.P.ndim == 2 and program.A.ndim == 2
    for i in range(program.count):
        if solver is None or not shared:
            solver = osqp.OSQP()
            solver.setup(
                program.sparse("P", i),
                program.q[i],
                program.sparse("A", i),
                program.l[i],
                program.u[i],
                verbose=False,
                eps_abs=tolerance,
                eps_rel=tolerance,
                max_iter=20_000,
            )
        else:
            solver.update(q=program.q[i], l=program.l[i], u=program.u[i])
        solutions.append(solver.solve(raise_error=False).x)
    return solutions


def _cone_form(program: DenseProgram, i: int) -> tuple[Array, Array, int, int]:
    """Return rows and right-hand sides of b − Ax ∈ K, and the numbers of zeros and inequalities.

    Rows of second-order cones come last.
    """
    everything = program.A_of(i)
    first = len(everything) - sum(program.cones)
    A = everything[:first]
    lower = program.l[i][:first]
    upper = program.u[i][:first]
    equal = lower == upper
    above = ~equal & np.isfinite(upper)
    below = ~equal & np.isfinite(lower)
    rows = np.vstack([A[equal], A[above], -A[below], -everything[first:]])
    ends = -program.l[i][first:]
    right = np.concatenate([upper[equal], upper[above], -lower[below], ends])
    return rows, right, int(equal.sum()), int(above.sum() + below.sum())


def _clarabel(program: DenseProgram, tolerance: float) -> list[Any]:
    """Solve by an interior-point method."""
    import clarabel
    import scipy.sparse as sp

    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tolerance
    solutions = []
    for i in range(program.count):
        rows, right, equal, other = _cone_form(program, i)
        cones = []
        if equal:
            cones.append(clarabel.ZeroConeT(equal))
        if other:
            cones.append(clarabel.NonnegativeConeT(other))
        cones += [clarabel.SecondOrderConeT(size) for size in program.cones]
        solver = clarabel.DefaultSolver(
            sp.csc_matrix(np.triu(program.P_of(i))),
            program.q[i],
            sp.csc_matrix(rows),
            right,
            cones,
            settings,
        )
        solutions.append(solver.solve().x)
    return solutions


def _scs(program: DenseProgram, tolerance: float) -> list[Any]:
    """Solve by SCS, a first-order method for cones."""
    import scipy.sparse as sp
    import scs

    solutions = []
    for i in range(program.count):
        rows, right, equal, other = _cone_form(program, i)
        data = {
            "P": sp.csc_matrix(np.triu(program.P_of(i))),
            "c": program.q[i],
            "A": sp.csc_matrix(rows),
            "b": right,
        }
        solver = scs.SCS(
            data,
            {"z": equal, "l": other, "q": list(program.cones)},
            eps_abs=tolerance,
            eps_rel=tolerance,
            verbose=False,
        )
        solutions.append(solver.solve()["x"])
    return solutions


def _highs(program: DenseProgram, tolerance: float) -> list[Any]:
    """Solve linear and quadratic programs by the simplex and active-set methods of HiGHS."""
    solutions = []
    for i in range(program.count):
        model = _highs_model(program, i)
        model.run()
        solutions.append(np.array(model.getSolution().col_value))
    return solutions


def _pdlp(program: DenseProgram, tolerance: float) -> list[Any]:
    """Solve linear programs by the primal-dual first-order method PDLP of HiGHS."""
    solutions = []
    for i in range(program.count):
        model = _highs_model(program, i)
        model.setOptionValue("solver", "pdlp")
        model.setOptionValue("pdlp_optimality_tolerance", tolerance)
        model.setOptionValue("primal_feasibility_tolerance", tolerance)
        model.setOptionValue("dual_feasibility_tolerance", tolerance)
        model.run()
        solutions.append(np.array(model.getSolution().col_value))
    return solutions


def _highs_model(program: DenseProgram, i: int) -> Any:
    """Return a model of HiGHS of problem i."""
    import highspy

    P = program.P_of(i)
    A = program.A_of(i)
    n = P.shape[0]
    model: Any = cast(Any, highspy).Highs()
    model.setOptionValue("output_flag", False)
    lp = highspy.HighsLp()
    lp.num_col_ = n
    lp.num_row_ = len(A)
    lp.col_cost_ = program.q[i]
    lp.col_lower_ = np.full(n, -highspy.kHighsInf)
    lp.col_upper_ = np.full(n, highspy.kHighsInf)
    lp.row_lower_ = program.l[i]
    lp.row_upper_ = program.u[i]
    _fill_matrix(lp.a_matrix_, A, highspy.MatrixFormat.kRowwise)
    model.passModel(lp)
    if P.any():
        hessian = highspy.HighsHessian()
        hessian.dim_ = n
        hessian.format_ = highspy.HessianFormat.kTriangular
        starts, index, entries = _lower_triangle(P)
        hessian.start_ = starts
        hessian.index_ = index
        hessian.value_ = entries
        model.passHessian(hessian)
    return model


def _fill_matrix(matrix: Any, A: Array, layout: Any) -> None:
    import scipy.sparse as sp

    rows = sp.csr_matrix(A)
    matrix.format_ = layout
    matrix.start_ = rows.indptr
    matrix.index_ = rows.indices
    matrix.value_ = rows.data


def _lower_triangle(P: Array) -> tuple[Any, Any, Any]:
    """Return the columns of the lower triangle of P in compressed form."""
    import scipy.sparse as sp

    columns = sp.csc_matrix(np.tril(P))
    return columns.indptr, columns.indices, columns.data


_register("DAQP", "daqp", _daqp, tolerances=(0.0,))
_register("OSQP", "osqp", _osqp)
_register("Clarabel", "clarabel", _clarabel, cones=True)
_register("HiGHS", "highspy", _highs, tolerances=(0.0,))
_register("PDLP", "highspy", _pdlp, linear=True, tolerances=(1e-2, 1e-4, 1e-6, 1e-8))
_register("SCS", "scs", _scs, needs_rows=True, cones=True)
