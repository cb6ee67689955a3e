"""Linear, quadratic and second-order cone programs, in batches that may share their matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from mirrordescent._internal.arrays import as_tensor, is_sparse
from mirrordescent._internal.derived import Derived
from mirrordescent._internal.rounding import rounded_down, sum_error, unit
from mirrordescent.parts import Config
from mirrordescent.problems.active_sets import trajectory
from mirrordescent.problems.base import Problem
from mirrordescent.problems.outside_operators import SparseMatrix
from mirrordescent.problems.quadratics import Quadratic, matvec, symmetric_eigenvalues
from mirrordescent.problems.reduced_programs import (
    ProgramMatrices,
    ReducedProgram,
    SparseProgram,
    multipliers,
)
from mirrordescent.problems.saddle import SaddlePoint
from mirrordescent.problems.second_order_cones import Cones

LARGEST_DENSE = 2000
"""Number of variables up to which eigenvalues are computed."""

LARGEST_PROPAGATION = 20_000_000
"""Number of entries of all matrices up to which bounds of variables are propagated."""

PROPAGATIONS = 3
"""Rounds in which bounds of variables are propagated."""

SHRINKING = (1.0, 1 - 1e-9, 1 - 1e-6, 1 - 1e-4)
"""Factors of multipliers that are tried for a lower bound."""

PATIENCE = 40
"""Number of polished active sets in a row without a smaller gap after which a search ends."""

PENALTY = 2.0
"""Weight of violations, as a multiple of the largest multiplier of a short run."""


class _Shared:
    """The matrices of a class of programs, kept for all programs made by ``QP.updated``."""

    def __init__(self) -> None:
        self._matrices: ProgramMatrices | None = None
        self._kinds: tuple[Tensor, ...] = ()
        self._equal: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> _Shared:
        return _Shared()

    def __reduce__(self) -> tuple[type[_Shared], tuple[()]]:
        return _Shared, ()

    def matrices(
        self,
        P: Tensor | None,
        A: Tensor,
        l: Tensor,  # noqa: E741
        u: Tensor,
        cones: Cones,
    ) -> ProgramMatrices:
        """Return the matrices of a program, computed once for P, A and the kinds of rows."""
        kinds = (l == u, l == -math.inf, u == math.inf)
        kept = self._matrices
        fits = kept is not None and kept.fits(P, A)
        if kept is not None and fits and all(map(torch.equal, kinds, self._kinds)):
            return kept
        equal, unbounded_below, unbounded_above = (
            each.all(0) if each.ndim == 2 else each for each in kinds
        )
        free = unbounded_below & unbounded_above
        if (
            kept is not None
            and fits
            and torch.equal(equal, kept.equal)
            and torch.equal(free, kept.free)
        ):
            return kept
        differentiated = A.requires_grad or (P is not None and P.requires_grad)
        if differentiated or A.is_inference():
            return ProgramMatrices(P, A, equal, free, cones)
        with torch.inference_mode(False):
            self._matrices = ProgramMatrices(P, A, equal, free, cones)
        self._kinds = kinds
        return self._matrices

    def convexity(self, P: Tensor | None, A: Tensor, equal: Tensor) -> tuple[float, float]:
        """Return the convexity of programs with these equalities, computed once."""
        if self._equal is None or not torch.equal(self._equal, equal):
            self._equal = equal
        return _KNOWN_CONVEXITY(self, P, A, self._equal)


class QP(Problem, SaddlePoint):
    """min ½⟨x, Px⟩ + ⟨q, x⟩ subject to l ≤ Ax ≤ u; a linear program if P = 0.

    Rows with l = u are equalities. Bounds may be infinite. All problems of a batch may share P and
    A, or each has its own. The last rows may belong to second-order cones instead: then Ax − l ∈ K
    for these rows, with K = {(t, s): ‖s‖ ≤ t}. For example, ‖Fx + f‖ ≤ ⟨c, x⟩ + d has the rows
    (c, F) of A with l = (−d, −f).

    **Value.** Constraints enter f by an exact penalty with a weight κ:

    .. code-block:: none

        f(x) = ½⟨x, Px⟩ + ⟨q, x⟩ + κ Σᵢ max(aᵢx − uᵢ, lᵢ − aᵢx, 0)

    A cone adds κ max(‖s‖ − t, 0). If κ is larger than all multipliers, the minimisers of f are
    those of the program, and f(x) ≤ optimum + ε implies a violation of at most ε/(κ − ‖y*‖_∞),
    which is 2ε/κ for κ = 2‖y*‖_∞. If κ is too small, f is less than the optimum at some infeasible
    points. So a run to a gap of ε counts as converged only if the violation, summed over rows, is
    at most 2ε/κ. This holds for every κ.

    **Lower bounds.** For multipliers y with |y| ≤ κ and any point x, with δ = Px + q + Aᵀy,

    .. code-block:: none

        optimum ≥ ½⟨x, Px⟩ + ⟨q, x⟩ + ⟨y, Ax⟩ − Σᵢ max(uᵢyᵢ, lᵢyᵢ) − r(δ)

    Let E be the rows of the equalities. If P + ρEᵀE ⪰ μI with μ > 0, r is at most ‖δ‖²/(2μ), with
    ρEᵀ(Ex − e) added to δ. If all variables are bounded, r is at most the largest −⟨δ, x' − x⟩ over
    these bounds. The smaller number is used. The bound is computed in double precision, and all
    rounding errors are subtracted. ``assumptions`` lists the statements that it depends on. For
    cones, −y ∈ K, and the term of the sum is ⟨l, y⟩.

    Args:
        P: Symmetric positive semidefinite matrix, (n, n) or (batch, n, n); a sparse matrix of SciPy
            or torch; None for a linear program.
        q: Linear term, (n,) or (batch, n).
        A: Matrix of the constraints, (m, n) or (batch, m, n), or sparse; None for no constraints.
        l: Lower bounds, (m,) or (batch, m); None for −∞.
        u: Upper bounds, (m,) or (batch, m); None for ∞.
        penalty: Weight κ > ‖y*‖_∞, a number or (batch,). By default twice the largest multiplier
            after a short run.
        radius: Bound on ‖x‖_∞ of some minimiser, if it is known.
        cones: Sizes of second-order cones, to which the last rows of A belong. There l is finite
            and u = ∞.

    >>> P = torch.eye(2)
    >>> program = QP(P, torch.tensor([[-1.0, 0.0]]), torch.ones(1, 2), torch.ones(1), torch.ones(1))
    >>> program.violation(torch.tensor([[0.5, 0.0]]))
    tensor([0.5000])
    """

    convex = True
    proximable = False

    P: Tensor | SparseMatrix | None
    A: Tensor | SparseMatrix
    q: Tensor
    l: Tensor  # noqa: E741
    u: Tensor
    penalty: float | Tensor | None

    def __init__(
        self,
        P: Any,
        q: Any,
        A: Any = None,
        l: Any = None,  # noqa: E741
        u: Any = None,
        penalty: float | Tensor | None = None,
        radius: float | None = None,
        cones: Sequence[int] = (),
    ) -> None:
        q = as_tensor(q, "q")
        n = q.shape[-1]
        P = _matrix(P, "P", q, (n, n))
        A = _matrix(torch.zeros(0, n) if A is None else A, "A", q, None)
        m = A.size[0] if isinstance(A, SparseMatrix) else A.shape[-2]
        l = _bounds(l, -math.inf, "l", m, q)  # noqa: E741
        u = _bounds(u, math.inf, "u", m, q)
        tensors = {"q": (q, 1), "l": (l, 1), "u": (u, 1), "P": (P, 2), "A": (A, 2)}
        batch = _common_batch(tensors)
        super().__init__(batch, (n,), q=q)
        _check_shapes(P, A, n)
        self._fill(P, A, l, u, penalty, radius, Cones(m, cones), _Shared())

    def _fill(
        self,
        P: Tensor | SparseMatrix | None,
        A: Tensor | SparseMatrix,
        l: Tensor,  # noqa: E741
        u: Tensor,
        penalty: float | Tensor | None,
        radius: float | None,
        cones: Cones,
        shared: _Shared,
    ) -> None:
        """Set the data of a program, of which P and A were checked."""
        ordered = bool((l <= u).all())
        if not ordered or (l.numel() and (l.amax() == math.inf or u.amin() == -math.inf)):
            raise ValueError("bounds must satisfy l ≤ u with l < ∞ and u > −∞")
        in_cones = (l[..., cones.first :].isfinite(), u[..., cones.first :] == math.inf)
        if cones and not all(bool(each.all()) for each in in_cones):
            raise ValueError("the rows of cones need finite l and u = ∞")
        self.register_buffer("l", l)
        self.register_buffer("u", u)
        self._set("P", P)
        self._set("A", A)
        self.rows = l.shape[-1]
        self.radius = None if radius is None else float(radius)
        if isinstance(penalty, Tensor):
            self.register_buffer("penalty", penalty)
        else:
            self.penalty = penalty
        self.proximable = P is None
        self._cones = cones
        self._estimated: Tensor | None = None
        self._shared = shared

    def updated(
        self,
        q: Any = None,
        l: Any = None,  # noqa: E741
        u: Any = None,
    ) -> QP:
        """Return programs with the same matrices P and A, and other vectors.

        The matrices are neither checked nor decomposed again: the null space of the equalities and
        the decompositions of methods are shared by all programs made this way.

        Args:
            q: Linear terms, (n,) or (batch, n); the present ones by default.
            l: Lower bounds, (m,) or (batch, m).
            u: Upper bounds, (m,) or (batch, m).

        >>> program = QP(torch.eye(2), torch.ones(2), torch.ones(1, 2), l=torch.ones(1))
        >>> program.updated(q=torch.zeros(5, 2)).batch
        5
        """
        new_q = self.q if q is None else as_tensor(q, "q").to(self.q)
        n = self.q.shape[-1]
        if new_q.ndim not in (1, 2) or new_q.shape[-1] != n:
            raise ValueError(f"q must be ({n},) or (batch, {n}), got {tuple(new_q.shape)}")
        if bool(new_q.isnan().any()):
            raise ValueError("q has NaN entries")
        lower = self.l if l is None else _bounds(l, -math.inf, "l", self.rows, self.q)
        upper = self.u if u is None else _bounds(u, math.inf, "u", self.rows, self.q)
        vectors = {"q": (new_q, 1), "l": (lower, 1), "u": (upper, 1)}
        batch = _common_batch(vectors | {"P": (self.P, 2), "A": (self.A, 2)})
        program = QP.__new__(QP)
        Problem.__init__(program, batch, (n,), q=new_q)
        penalty = self.penalty
        if isinstance(penalty, Tensor) and penalty.ndim and len(penalty) != batch:
            penalty = float(penalty.max())
        program._fill(self.P, self.A, lower, upper, penalty, self.radius, self._cones, self._shared)
        return program

    def _set(self, name: str, matrix: Tensor | SparseMatrix | None) -> None:
        if isinstance(matrix, SparseMatrix):
            self.add_module(name, matrix)
        else:
            self.register_buffer(name, matrix)

    def config(self) -> Config:
        return {
            "P": self.P,
            "q": self.q,
            "A": self.A,
            "l": self.l,
            "u": self.u,
            "penalty": self.penalty,
            "radius": self.radius,
            "cones": list(self.cones),
        }

    @property
    def cones(self) -> tuple[int, ...]:
        """Sizes of the second-order cones of the last rows."""
        return self._cones.sizes

    @property
    def sparse(self) -> bool:
        """Whether a matrix is sparse."""
        return isinstance(self.P, SparseMatrix) or isinstance(self.A, SparseMatrix)

    # The function.

    def times_P(self, x: Tensor) -> Tensor:
        """Px."""
        return torch.zeros_like(x) if self.P is None else _product(self.P, x)

    def times_A(self, x: Tensor) -> Tensor:
        """Ax."""
        return _product(self.A, x)

    def times_A_adjoint(self, y: Tensor) -> Tensor:
        """Aᵀy."""
        if isinstance(self.A, SparseMatrix):
            return self.A.A_adjoint(y)
        return matvec(self.A.mT, y)

    def objective(self, x: Tensor) -> Tensor:
        """½⟨x, Px⟩ + ⟨q, x⟩ per sample, without the penalty: (batch,)."""
        return (x * (0.5 * self.times_P(x) + self.q)).sum(-1)

    def violations(self, x: Tensor) -> Tensor:
        """max(Ax − u, l − Ax, 0) of every row: (batch, m).

        The first row of a cone has max(‖s‖ − t, 0), and its other rows have 0.
        """
        Ax = self.times_A(x)
        over = torch.maximum(Ax - self.u, self.l - Ax).clamp(min=0)
        if not self._cones:
            return over
        scalar = over[..., : self._cones.first]
        in_cones = self._cones.violations(Ax - self.l)[..., self._cones.first :]
        return torch.cat([scalar, in_cones], -1)

    def violation(self, x: Tensor) -> Tensor:
        """The largest violation of a constraint, per sample: (batch,)."""
        violations = self.violations(x)
        return violations.amax(-1) if self.rows else violations.sum(-1)

    @property
    def weight(self) -> Tensor:
        """The weight κ of violations, a tensor of shape (1,) or (batch,)."""
        if self.penalty is not None:
            return torch.as_tensor(self.penalty, dtype=self.q.dtype, device=self.q.device).view(-1)
        if self._estimated is None:
            y = multipliers(self.reduced) if self.rows else self.q.new_zeros(1, 1).double()
            size = y.abs().amax(-1) + 1e-3 * self.q.double().abs().amax(-1)
            self._estimated = PENALTY * size.clamp(min=1e-6)
        return self._estimated.to(self.q)

    def value(self, x: Tensor) -> Tensor:
        return self.objective(x) + self.infeasibility(x)

    def value_error(self, x: Tensor, value: Tensor) -> Tensor:
        """Charge all sums of the objective and of the violations with the sums of magnitudes."""
        point = x.detach().double()
        size = _Magnitudes(self)
        _, Ax_size = size.A(point)
        _, Px_size = size.P(point)
        n = x.shape[-1]
        lower = self.l.double().abs().nan_to_num(posinf=0.0)
        upper = self.u.double().abs().nan_to_num(posinf=0.0)
        objective = (point.abs() * (Px_size + self.q.double().abs())).sum(-1)
        penalty = self.weight.double() * (Ax_size + torch.maximum(lower, upper)).sum(-1)
        error = 2 * unit(2 * n + self.rows, x.dtype) * (objective + penalty)
        return error.to(value.dtype)

    def infeasibility(self, x: Tensor) -> Tensor:
        """Return κ times the sum of the violations: (batch,)."""
        return self.weight * self.violations(x).sum(-1)

    def certainly_feasible(self, x: Tensor) -> Tensor:
        """Compare Ax with the bounds in double precision, and charge its rounding errors."""
        Ax, Ax_size = _Magnitudes(self).A(x.detach().double())
        error = sum_error(Ax_size, x.shape[-1])
        below = Ax + error <= self.u.double()
        above = Ax - error >= self.l.double()
        k = self._cones.first
        feasible = (below & above)[..., :k].all(-1)
        if self._cones:
            error = error + unit(4) * (Ax.abs() + self.l.double().abs())
            feasible = feasible & self._cones.contains(Ax - self.l.double(), error)
        return feasible

    def grad(self, x: Tensor) -> Tensor:
        """Return Px + q plus a subgradient of the penalty."""
        return self._gradient(x, 0.0)

    def smoothed_grad(self, x: Tensor, width: float | Tensor) -> Tensor:
        """Return the gradient with kinks smoothed over a width of Ax."""
        return self._gradient(x, width)

    def _gradient(self, x: Tensor, width: float | Tensor) -> Tensor:
        Ax = self.times_A(x)
        over = _ramp(Ax - self.u, width) - _ramp(self.l - Ax, width)
        if self._cones:
            over = torch.cat([over[..., : self._cones.first], self._cone_slopes(Ax, width)], -1)
        slope = self.weight.unsqueeze(-1) * over
        return self.times_P(x) + self.q + self.times_A_adjoint(slope)

    def _cone_slopes(self, Ax: Tensor, width: float | Tensor) -> Tensor:
        """Return the gradients of max(‖s‖ − t, 0) in the rows of cones."""
        relative = Ax - self.l
        return self._cones.slopes(relative, _ramp(self._cones.excess(relative), width))

    # The saddle-point form.

    @cached_property
    def _norms(self) -> tuple[float, float]:
        """Upper bounds on ‖P‖ and ‖A‖."""
        norms = []
        for matrix in (self.P, self.A):
            if matrix is None:
                norms.append(0.0)
            elif isinstance(matrix, SparseMatrix):
                norms.append(matrix.norm)
            elif matrix.numel() == 0:
                norms.append(0.0)
            else:
                norms.append(float(torch.linalg.matrix_norm(matrix.double(), 2).max()))
        return norms[0], norms[1]

    @property
    def K_norm(self) -> float:
        return self._norms[1] or 1.0

    @property
    def F_smoothness(self) -> float:
        return self._norms[0]

    @property
    def ratio(self) -> float | None:
        return None

    def K(self, x: Tensor) -> Tensor:
        return self.times_A(x)

    def K_adjoint(self, u: Tensor) -> Tensor:
        return self.times_A_adjoint(u)

    def grad_F(self, x: Tensor) -> Tensor:
        return self.times_P(x) + self.q

    def prox_F(self, x: Tensor, tau: float | Tensor) -> Tensor:
        """x − τq, for a linear program."""
        if self.P is not None:
            raise TypeError("the objective has no simple prox: use ADMM or CondatVu")
        step = tau.unsqueeze(-1) if isinstance(tau, Tensor) and tau.ndim else tau
        return x - step * self.q

    def prox_G_conjugate(self, u: Tensor, sigma: float | Tensor) -> Tensor:
        """Return u − σ P_[l, u](u/σ) with |u| ≤ κ; for σ = 0, clip u to allowed signs.

        In the rows of cones, return the projection of u − σl onto the points of −K with −t ≤ κ.
        """
        if isinstance(sigma, Tensor) and sigma.ndim:
            sigma = sigma.unsqueeze(-1)
        kappa = self.weight.unsqueeze(-1)
        in_cones = None
        if self._cones:
            in_cones = self._cones.polar(u - sigma * self.l, kappa)
            in_cones = in_cones[..., self._cones.first :]
        if not isinstance(sigma, Tensor) and sigma == 0:
            moved = u
        else:
            moved = u - sigma * torch.clamp(u / sigma, self.l, self.u)
        low = torch.where(self.l.isfinite(), -kappa, 0.0)
        high = torch.where(self.u.isfinite(), kappa, 0.0)
        clipped = torch.maximum(torch.minimum(moved, high), low)
        if in_cones is None:
            return clipped
        return torch.cat([clipped[..., : self._cones.first], in_cones], -1)

    def with_signs(self, y: Tensor) -> Tensor:
        """Return the multipliers closest to y that belong to bounds and cones that exist."""
        signed = torch.where(self.u.isfinite(), y, y.clamp(max=0))
        signed = torch.where(self.l.isfinite(), signed, signed.clamp(min=0))
        if not self._cones:
            return signed
        polar = self._cones.certainly_polar(self._cones.polar(y))
        return torch.cat([signed[..., : self._cones.first], polar[..., self._cones.first :]], -1)

    def supports(self, y: Tensor) -> Tensor:
        """Return the largest ⟨y, w⟩ over allowed images w, in double precision, row by row.

        Args:
            y: Multipliers with the right signs; −y ∈ K in the rows of cones.
        """
        lower = self.l.double()
        upper = self.u.double()
        supports = torch.maximum(_times(upper, y), _times(lower, y))
        if not self._cones:
            return supports
        k = self._cones.first
        return torch.cat([supports[..., :k], (lower * y)[..., k:]], -1)

    def recession_violations(self, Ad: Tensor) -> Tensor:
        """Return how far images leave the constraints along a direction d, row by row."""
        above = torch.where(self.u.isfinite(), Ad, 0.0)
        below = torch.where(self.l.isfinite(), -Ad, 0.0)
        over = torch.maximum(above, below).clamp(min=0)
        if not self._cones:
            return over
        k = self._cones.first
        return torch.cat([over[..., :k], self._cones.violations(Ad)[..., k:]], -1)

    # Lower bounds.

    def lower_bound(self, u: Tensor) -> Tensor:
        return self.bound_of_pair(cast(Tensor, self.start(len(u))), u)

    def bound_of_pair(self, x: Tensor, u: Tensor) -> Tensor:
        """Return the lower bound of the class docstring, rounded down."""
        bound, _ = self.best_bound(x, u)
        return rounded_down(bound, self.q.dtype)

    def best_bound(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best lower bound of a pair in double precision, and its multipliers.

        If variables with costs are bounded on one side only, a slope δ with the wrong sign makes
        the bound infinite. So multipliers that are smaller are tried too.

        Args:
            x: Points, (batch, n).
            u: Multipliers, which are first clipped to the allowed ones, (batch, m).
        """
        y = self._cones.certainly_polar(self.prox_G_conjugate(u, 0.0).double())
        x = x.detach().double()
        if self._convexity()[0] > 0:
            return self._bound(x, y), y
        candidates = [factor * y for factor in SHRINKING]
        candidates.append(self._with_right_signs(x, y))
        bounds = torch.stack([self._bound(x, each) for each in candidates])
        bound, index = bounds.max(0)
        stacked = torch.stack(candidates)
        return bound, stacked[index, torch.arange(len(bound), device=bound.device)]

    def _with_right_signs(self, x: Tensor, y: Tensor) -> Tensor:
        """Return multiples of y for which δ = Px + q + Aᵀy has the sign that bounds of x permit.

        Multipliers of rows that bound single variables are set to 0, since the bound accounts for
        these variables itself.
        """
        low, high = self.variable_bounds()
        y = torch.where(self._bounds_one_variable, 0.0, y)
        size = _Magnitudes(self)
        fixed = size.P(x)[0] + self.q.double()
        moved = size.A_adjoint(y)[0]
        # δ = fixed + t · moved must not be negative where x has no upper bound, for example.
        rising = torch.where(high.isinf(), -moved, torch.where(low.isinf(), moved, 0.0))
        room = torch.where(high.isinf(), fixed, torch.where(low.isinf(), -fixed, 0.0))
        largest = torch.where(rising > 0, room / rising.clamp(min=1e-300), math.inf).amin(-1)
        share = (SHRINKING[1] * largest).clamp(0, 1)
        return share.unsqueeze(-1) * y

    @cached_property
    def _bounds_one_variable(self) -> Tensor:
        """Whether a row has a single entry and belongs to no cone, (m,) bool."""
        if isinstance(self.A, SparseMatrix):
            single = self.A.starts.diff() == 1
        else:
            entries = (self.A != 0).sum(-1)
            single = (entries == 1).all(0) if entries.ndim == 2 else entries == 1
        single = single.clone()
        single[self._cones.first :] = False
        return single

    def _bound(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the lower bound of a pair in double precision."""
        convexity, stiffness = self._convexity()
        n = x.shape[-1]
        m = self.rows
        size = _Magnitudes(self)
        Ax, Ax_size = size.A(x)
        Px, Px_size = size.P(x)
        q = self.q.double()
        lower = self.l.double()
        upper = self.u.double()
        # Multiples of squared equalities vanish at feasible points, and make P positive definite.
        equal = torch.where(lower == upper, stiffness, 0.0)
        target = lower.nan_to_num(posinf=0.0, neginf=0.0)
        residual = torch.where(lower == upper, Ax - target, 0.0)
        residual_error = sum_error(Ax_size + target.abs(), n)
        residual_error = torch.where(lower == upper, residual_error, 0.0)
        pull = y + equal * residual
        back, back_size = size.A_adjoint(pull)
        back_error = sum_error(back_size, m)
        _, extra = size.A_adjoint(equal * residual_error)
        delta = Px + q + back
        delta_error = sum_error(Px_size + q.abs() + back.abs(), n + m)
        delta_error = delta_error + back_error + extra * (1 + unit(m))
        supports = self.supports(y)
        summands = [0.5 * x * Px, q * x, y * Ax, -supports, 0.5 * equal * residual.square()]
        sizes = [
            x.abs() * Px_size,
            (q * x).abs(),
            y.abs() * Ax_size,
            supports.abs(),
            equal * (residual.abs() + residual_error).square(),
        ]
        value = _total(summands)
        error = sum_error(_total(sizes), 4 * (n + m))
        error = error + (equal * residual.abs() * residual_error).sum(-1)
        slope = delta.abs() + delta_error
        rest = self._model_decrease(x, delta, delta_error, slope, convexity)
        bound = value - error * (1 + unit(8)) - rest
        return torch.where(bound.isfinite(), bound, -math.inf)

    def _model_decrease(
        self, x: Tensor, delta: Tensor, error: Tensor, slope: Tensor, convexity: float
    ) -> Tensor:
        """Return an upper bound on −min_x' ⟨δ, x' − x⟩ + (μ/2)‖x' − x‖² over all minimisers x'."""
        n = x.shape[-1]
        decrease = x.new_full((len(x),), math.inf)
        if convexity > 0:
            decrease = slope.square().sum(-1) / (2 * convexity) * (1 + unit(2 * n))
        low, high = self.variable_bounds()
        # A variable whose slope certainly has one sign needs a bound on one side only.
        rises = (delta + error).clamp(min=0)
        falls = (error - delta).clamp(min=0)
        down = torch.where(rises == 0, 0.0, rises * (x - low).clamp(min=0))
        up = torch.where(falls == 0, 0.0, falls * (high - x).clamp(min=0))
        boxed = torch.maximum(down, up)
        if self._bounded:
            # P may have a negative eigenvalue within rounding of 0.
            reach = torch.maximum((x - low).abs(), (high - x).abs())
            boxed = boxed + self._negative_curvature / 2 * reach.square()
        return torch.minimum(decrease, boxed.sum(-1) * (1 + unit(2 * n)))

    def variable_bounds(self) -> tuple[Tensor, Tensor]:
        """Return bounds on single variables, from the rows of A and ``radius``.

        Rows with one entry are used, and for a dense A interval arithmetic on all rows. If the
        first row of a cone is 0, so that ‖s‖ ≤ t for a fixed t, its other rows are bounded.
        """
        low, high = self.bounds_from_rows()
        if self.radius is None:
            return low, high
        return low.clamp(min=-self.radius), high.clamp(max=self.radius)

    def bounds_from_rows(self) -> tuple[Tensor, Tensor]:
        """Return the bounds on single variables that hold for all feasible points."""
        return _KNOWN_VARIABLE_BOUNDS(self, *self._arrays())

    def _arrays(self) -> tuple[Tensor, ...]:
        lower = self.l
        upper = self.u
        if self._cones:
            matrix = self.A.starts if isinstance(self.A, SparseMatrix) else self.A
            lower, upper = _KNOWN_ROW_BOUNDS(self, matrix, lower, upper)
        if isinstance(self.A, SparseMatrix):
            return self.A.entries, lower, upper, self.A.starts, self.A.columns
        return self.A, lower, upper

    def _convexity(self) -> tuple[float, float]:
        """Return μ and the multiple ρ of squared equalities for which P + ρEᵀE ⪰ μI."""
        if isinstance(self.P, SparseMatrix) or isinstance(self.A, SparseMatrix) or not self.rows:
            return self.strong_convexity(), 0.0
        equal = self.l == self.u
        return self._shared.convexity(self.P, self.A, equal.all(0) if equal.ndim == 2 else equal)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """P ⪰ 0, if rounding leaves it open and x is unbounded, and a given radius."""
        words = []
        if self._convexity()[0] == 0 and not (self._bounded or self._semidefinite):
            words.append("P is positive semidefinite")
        if self.radius is not None:
            words.append(f"a minimiser has no entry larger than {self.radius:g}")
        return tuple(words)

    @property
    def _bounded(self) -> bool:
        """Whether all variables are bounded and the eigenvalues of P are known."""
        low, high = self.variable_bounds()
        known = not isinstance(self.P, SparseMatrix)
        return known and bool(low.isfinite().all()) and bool(high.isfinite().all())

    @property
    def _negative_curvature(self) -> float:
        """A bound ν ≥ 0 with P ⪰ −νI, for a dense P."""
        if self.P is None:
            return 0.0
        return _KNOWN_NEGATIVE_CURVATURE(self, cast(Tensor, self.P))

    @cached_property
    def _semidefinite(self) -> bool:
        """Whether P ⪰ 0 is proven; it is unknown for sparse matrices."""
        if self.P is None:
            return True
        if isinstance(self.P, SparseMatrix):
            return False
        return Quadratic(self.P, self.q.new_zeros(self.q.shape[-1])).convex is True

    def strong_convexity(self) -> float:
        """μ with P ⪰ μI."""
        if self.P is None or isinstance(self.P, SparseMatrix):
            return 0.0
        eigenvalues, error = symmetric_eigenvalues(self.P)
        return max(float((eigenvalues.amin(-1) - error).min()), 0.0)

    def minimiser(self, tolerance: float) -> tuple[Tensor, Tensor] | None:
        """Return solutions and lower bounds, as :meth:`minimiser_and_pair` does."""
        optimum = self.minimiser_and_pair(tolerance)
        return None if optimum is None else optimum[:2]

    @torch.no_grad()
    def minimiser_and_pair(self, tolerance: float) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Return solutions by ADMM with polished active sets, lower bounds, and their proof.

        None for sparse programs, and if a bound is not finite: then constraints bound neither x nor
        the curvature.

        Returns:
            Solutions, lower bounds, and the points and multipliers of the lower bounds.
        """
        if self.sparse:
            return None
        program = self.reduced
        assert isinstance(program, ReducedProgram)
        start = self.value(cast(Tensor, self.start(program.batch)))
        best_x = cast(Tensor, self.start(program.batch))
        best_value = torch.full_like(start, math.inf)
        best_lower = torch.full_like(start, -math.inf)
        pair_x = best_x
        pair_y = torch.zeros(len(start), self.rows).to(best_x)
        last_gap = torch.full_like(start, math.inf)
        stalled = 0
        for x, y in trajectory(program):
            x = x.to(self.q)
            value = self.value(x)
            bound, y = self.best_bound(x, y.to(self.q))
            lower = rounded_down(bound, self.q.dtype)
            y = y.to(self.q)
            best_x = torch.where((value < best_value).unsqueeze(-1), x, best_x)
            best_value = torch.minimum(value, best_value)
            higher = (lower > best_lower).unsqueeze(-1)
            pair_x = torch.where(higher, x, pair_x)
            pair_y = torch.where(higher, y, pair_y)
            best_lower = torch.maximum(best_lower, lower)
            rounding = 1e-13 * (best_value.abs() + best_lower.abs())
            allowed = torch.maximum(tolerance * (start - best_lower), rounding)
            gap = best_value - best_lower
            if bool((gap <= allowed).all()):
                break
            if bool(((gap < 0.99 * last_gap) | gap.isinf()).any()):
                last_gap = gap
                stalled = 0
                continue
            stalled += 1
            if stalled == PATIENCE:
                break
        if not bool(best_lower.isfinite().all()):
            return None
        return best_x, best_lower, pair_x, pair_y

    def bound_at(self, x: Tensor, convexity: float | None = None) -> Tensor | None:
        """None: a point alone proves nothing without multipliers."""
        return None

    # The reduced program.

    @property
    def reduced(self) -> ReducedProgram | SparseProgram:
        """The program without its equalities, computed once."""
        if isinstance(self.P, SparseMatrix) or isinstance(self.A, SparseMatrix):
            return _KNOWN_SPARSE(self, self.q, self.l, self.u, *self._sparse_parts())
        return _KNOWN_REDUCTION(self, self.P, self.q, self.A, self.l, self.u)

    def _sparse_parts(self) -> tuple[Tensor, ...]:
        parts: list[Tensor] = []
        for matrix in (self.P, self.A):
            if isinstance(matrix, SparseMatrix):
                parts += [matrix.starts, matrix.columns, matrix.entries]
            else:
                dense = self.q.new_zeros(self.q.shape[-1], self.q.shape[-1])
                operator = SparseMatrix((dense if matrix is None else matrix).to_sparse())
                parts += [operator.starts, operator.columns, operator.entries]
        return tuple(parts)


class _Magnitudes:
    """Products with P, A and Aᵀ in double precision, and the same sums of magnitudes."""

    def __init__(self, program: QP) -> None:
        self.program = program

    def A(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return _product_with_size(self.program.A, x)

    def P(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.program.P is None:
            return torch.zeros_like(x), torch.zeros_like(x)
        return _product_with_size(self.program.P, x)

    def A_adjoint(self, y: Tensor) -> tuple[Tensor, Tensor]:
        A = self.program.A
        if isinstance(A, SparseMatrix):
            return A.A_adjoint(y), _absolute(A).A_adjoint(y.abs())
        return matvec(A.double().mT, y), matvec(A.double().abs().mT, y.abs())


def _product_with_size(matrix: Tensor | SparseMatrix, x: Tensor) -> tuple[Tensor, Tensor]:
    if isinstance(matrix, SparseMatrix):
        return matrix.A(x), _absolute(matrix).A(x.abs())
    return matvec(matrix.double(), x), matvec(matrix.double().abs(), x.abs())


def _absolute(matrix: SparseMatrix) -> SparseMatrix:
    """Return |A|."""
    return SparseMatrix.from_config(
        matrix.starts, matrix.columns, matrix.entries.abs(), matrix.size[0], list(matrix.shape)
    )


def _product(matrix: Tensor | SparseMatrix, x: Tensor) -> Tensor:
    return matrix.A(x) if isinstance(matrix, SparseMatrix) else matvec(matrix, x)


def _total(parts: list[Tensor]) -> Tensor:
    """Return the sum of all entries of all parts, per sample: (batch,)."""
    return torch.stack([part.sum(-1) for part in parts]).sum(0)


def _times(bound: Tensor, y: Tensor) -> Tensor:
    """Return bound · y, with 0 where y is 0, even for infinite bounds."""
    return torch.where(y == 0, 0.0, bound * y)


def _ramp(over: Tensor, width: float | Tensor) -> Tensor:
    """Return 1 where a constraint is violated; with a width, a slope from 0 to 1."""
    if isinstance(width, Tensor) and width.ndim == 1:
        width = width.unsqueeze(-1)
    if not isinstance(width, Tensor) and width == 0:
        return (over > 0).to(over.dtype)
    return (over / width).clamp(0, 1)


def _variable_bounds(A: Tensor, l: Tensor, u: Tensor, *csr: Tensor) -> tuple[Tensor, Tensor]:  # noqa: E741
    """Return the bounds on x that follow from rows with one entry, in double precision.

    Quotients are rounded outwards.
    """
    if csr:
        starts, columns = csr
        single = starts.diff() == 1
        first = starts[:-1][single]
        entries = A[first].double()
        where_to = columns[first]
        n = int(columns.max()) + 1 if len(columns) else 0
        rows = single.nonzero().flatten()
    else:
        n = A.shape[-1]
        nonzero = (A != 0).any(0) if A.ndim == 3 else A != 0
        rows = (nonzero.sum(-1) == 1).nonzero().flatten()
        where_to = nonzero[rows].int().argmax(-1)
        gathered = (
            A[..., rows, :].gather(-1, where_to.expand(*A.shape[:-2], -1).unsqueeze(-1)).squeeze(-1)
        )
        entries = gathered.double()
    lower = l[..., rows].double()
    upper = u[..., rows].double()
    zero = entries == 0
    ends = torch.stack([lower / entries, upper / entries])
    ends = torch.where(zero, torch.tensor([-math.inf, math.inf]).view(2, *[1] * lower.ndim), ends)
    margin = 4 * torch.finfo(torch.float64).eps * ends.abs().nan_to_num(posinf=0.0)
    low_ends = (ends - margin).amin(0)
    high_ends = (ends + margin).amax(0)
    shape = (*low_ends.shape[:-1], n)
    low = torch.full(shape, -math.inf, dtype=torch.float64, device=A.device)
    high = torch.full(shape, math.inf, dtype=torch.float64, device=A.device)
    index = where_to.expand_as(low_ends)
    low = low.scatter_reduce(-1, index, low_ends, "amax")
    high = high.scatter_reduce(-1, index, high_ends, "amin")
    return (low, high) if csr else _propagate(A.double(), l.double(), u.double(), low, high)


def _propagate(
    A: Tensor,
    l: Tensor,  # noqa: E741
    u: Tensor,
    low: Tensor,
    high: Tensor,
) -> tuple[Tensor, Tensor]:
    """Tighten the bounds of variables that have none, by interval arithmetic on every row.

    From Σₖ aₖxₖ ≤ u follows aⱼxⱼ ≤ u − Σ_{k≠j} min aₖxₖ. All bounds are rounded outwards.
    """
    batch = max([1, *(len(each) for each in (l, u, low) if each.ndim == 2)])
    if A.shape[-2] == 0 or A.numel() * batch > LARGEST_PROPAGATION:
        return low, high
    rows = torch.cat([A, -A], -2)
    right = torch.cat([u.expand(*low.shape[:-1], -1), -l.expand(*low.shape[:-1], -1)], -1)
    for _ in range(PROPAGATIONS):
        if bool(low.isfinite().all()) and bool(high.isfinite().all()):
            break
        ends = [_safe_product(rows, each.unsqueeze(-2)) for each in (low, high)]
        least = torch.minimum(ends[0], ends[1])
        infinite = least == -math.inf
        finite = torch.where(infinite, 0.0, least)
        total = finite.sum(-1, keepdim=True)
        size = finite.abs().sum(-1, keepdim=True) + right.abs().unsqueeze(-1)
        others_finite = infinite.sum(-1, keepdim=True) - infinite.int() == 0
        rest = right.unsqueeze(-1) - (total - finite)
        rest = rest + sum_error(size.nan_to_num(posinf=0.0), 2 * rows.shape[-1])
        usable = others_finite & (rows != 0) & right.isfinite().unsqueeze(-1)
        quotient = rest / torch.where(rows == 0, 1.0, rows)
        margin = 4 * torch.finfo(torch.float64).eps * quotient.abs()
        upper = torch.where(usable & (rows > 0), quotient + margin, math.inf).amin(-2)
        lower = torch.where(usable & (rows < 0), quotient - margin, -math.inf).amax(-2)
        # Bounds that exist are exact, so only missing ones are replaced.
        low = torch.where(low.isfinite(), low, lower)
        high = torch.where(high.isfinite(), high, upper)
    return low, high


def _safe_product(rows: Tensor, bounds: Tensor) -> Tensor:
    """Return a·x, with 0 for a = 0 even if x is infinite."""
    return torch.where(rows == 0, 0.0, rows * bounds)


def _augmented_convexity(P: Tensor | None, A: Tensor, equal: Tensor) -> tuple[float, float]:
    """Return μ ≥ 0 and ρ ≥ 0 with P + ρEᵀE ⪰ μI, where E has the rows of equalities.

    ρ = 0 is tried first. The rounding error of EᵀE is subtracted from μ.
    """
    n = A.shape[-1]
    if n > LARGEST_DENSE:
        return 0.0, 0.0
    base = torch.zeros(n, n, dtype=torch.float64, device=A.device) if P is None else P.double()
    if P is not None:
        eigenvalues, error = symmetric_eigenvalues(base)
        mu = float((eigenvalues.amin(-1) - error).min())
        scale = float(eigenvalues.abs().max())
        if mu > 1e-9 * scale:
            return mu, 0.0
    else:
        scale = 1.0
    if not bool(equal.any()):
        return 0.0, 0.0
    E = A.double()[..., equal, :]
    rho = (scale or 1.0) / float(torch.linalg.matrix_norm(E, 2).max()) ** 2
    gram = rho * E.mT @ E
    lost = rho * sum_error(torch.linalg.matrix_norm(E).square(), E.shape[-2] + 4)
    eigenvalues, error = symmetric_eigenvalues(base + gram)
    mu = float((eigenvalues.amin(-1) - error - 2 * lost).min())
    if mu <= 1e-12 * scale:
        return 0.0, 0.0
    return mu * (1 - unit(0)), rho


def _reduce(
    program: QP,
    P: Tensor | None,
    q: Tensor,
    A: Tensor,
    l: Tensor,  # noqa: E741
    u: Tensor,
) -> ReducedProgram:
    """Return a program without its equalities; matrices are those of its class."""
    return ReducedProgram(program._shared.matrices(P, A, l, u, program._cones), q, l, u)


def _reduce_sparse(program: QP, *parts: Tensor) -> SparseProgram:
    return SparseProgram(program._cones, *parts)


def _row_bounds(
    program: QP,
    matrix: Tensor,
    l: Tensor,  # noqa: E741
    u: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return bounds of Ax in double precision, also in the rows of cones with a fixed t.

    A cone has a fixed t if its first row in A is 0. Then |sᵢ| ≤ t. All bounds are rounded outwards.

    Args:
        program: The program.
        matrix: A if it is dense, otherwise the starts of its rows.
        l: Lower bounds.
        u: Upper bounds.
    """
    cones = program._cones
    zero = matrix.diff() == 0 if matrix.ndim == 1 else (matrix == 0).all(-1)
    zero = zero.all(0) if zero.ndim == 2 else zero
    fixed = cones.spread(zero[cones.first :][cones.heads])
    shift = l.double()[..., cones.first :]
    t = -cones.spread(shift[..., cones.heads])
    infinity = torch.full_like(shift, math.inf)
    low = torch.where(fixed, torch.nextafter(shift - t, -infinity), -infinity)
    high = torch.where(fixed, torch.nextafter(shift + t, infinity), infinity)
    tails = cones.is_tail.to(l.device)
    ends = (torch.where(tails, low, shift), torch.where(tails, high, infinity))
    bounds = []
    for rows, end in zip((l.double(), u.double()), ends, strict=True):
        scalar = rows[..., : cones.first].expand(*end.shape[:-1], -1)
        bounds.append(torch.cat([scalar, end], -1))
    return bounds[0], bounds[1]


def _largest_negative_curvature(P: Tensor) -> float:
    """Return ν ≥ 0 with P ⪰ −νI; 0 if P ⪰ 0 is proven."""
    if Quadratic(P, P.new_zeros(P.shape[-1])).convex is True:
        return 0.0
    eigenvalues, error = symmetric_eigenvalues(P)
    return max(0.0, float((error - eigenvalues.amin(-1)).max()))


_KNOWN_NEGATIVE_CURVATURE = Derived(_largest_negative_curvature)
_KNOWN_VARIABLE_BOUNDS = Derived(_variable_bounds)
_KNOWN_CONVEXITY = Derived(_augmented_convexity)
_KNOWN_REDUCTION = Derived(_reduce, with_owner=True)
_KNOWN_SPARSE = Derived(_reduce_sparse, with_owner=True)
_KNOWN_ROW_BOUNDS = Derived(_row_bounds, with_owner=True)


def _matrix(matrix: Any, name: str, like: Tensor, shape: tuple[int, int] | None) -> Any:
    """Return a matrix as a tensor or SparseMatrix in the type of another tensor."""
    if matrix is None or isinstance(matrix, SparseMatrix):
        return matrix
    if is_sparse(matrix) or (isinstance(matrix, Tensor) and matrix.layout != torch.strided):
        operator = SparseMatrix(matrix)
        if shape is not None and operator.size != shape:
            raise ValueError(f"{name} must be {shape}, got {operator.size}")
        operator.entries = operator.entries.to(like)
        return operator
    tensor = as_tensor(matrix, name).to(like)
    if tensor.ndim not in (2, 3):
        raise ValueError(f"{name} must have 2 or 3 dimensions, got {tuple(tensor.shape)}")
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{name} has NaN or infinite entries")
    if name == "P":
        rounding = 64 * torch.finfo(tensor.dtype).eps * float(tensor.abs().max())
        if bool(((tensor - tensor.mT).abs() > rounding).any()):
            raise ValueError("P must be symmetric: give (P + P.T)/2, which has the same values")
        tensor = (tensor + tensor.mT) / 2
        if not bool(tensor.any()):
            return None
        smallest = torch.linalg.eigvalsh(tensor.double()).amin(-1)
        size = tensor.double().abs().amax((-2, -1))
        rounding = 16 * tensor.shape[-1] * torch.finfo(tensor.dtype).eps
        if bool((smallest < -rounding * size).any()):
            raise ValueError(
                "P must be positive semidefinite, but has the eigenvalue "
                f"{float(smallest.min()):.3g}"
            )
    return tensor


def _bounds(bound: Any, default: float, name: str, rows: int, like: Tensor) -> Tensor:
    if bound is None:
        return like.new_full((rows,), default)
    tensor = as_tensor(bound, name).to(like)
    if tensor.ndim not in (1, 2) or tensor.shape[-1] != rows:
        raise ValueError(
            f"{name} must be ({rows},) or (batch, {rows}), one number per row of A, "
            f"got {tuple(tensor.shape)}"
        )
    if tensor.numel() and bool(tensor.amax().isnan()):
        raise ValueError(f"{name} has NaN entries")
    return tensor


def _common_batch(tensors: dict[str, tuple[Any, int]]) -> int | None:
    """Return the number of problems, or None if all share all data."""
    sizes = {}
    for name, (tensor, dimensions) in tensors.items():
        if isinstance(tensor, Tensor) and tensor.ndim > dimensions:
            sizes[name] = len(tensor)
    if len(set(sizes.values())) > 1:
        raise ValueError(f"data must have the same number of problems, got {sizes}")
    return next(iter(sizes.values()), None)


def _check_shapes(P: Any, A: Any, n: int) -> None:
    for name, matrix in (("P", P), ("A", A)):
        if matrix is None:
            continue
        shape = matrix.size if isinstance(matrix, SparseMatrix) else tuple(matrix.shape)
        if shape[-1] != n or (name == "P" and shape[-2] != n):
            raise ValueError(f"{name} must have {n} columns, one per entry of q, got {shape}")
