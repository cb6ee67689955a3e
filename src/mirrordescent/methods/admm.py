"""ADMM for linear, quadratic and cone programs, with one decomposition for a whole class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, cast, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Generator, Tensor, nn

from mirrordescent.methods.base import Method
from mirrordescent.methods.program_starts import AffineStart
from mirrordescent.oracles import Oracle
from mirrordescent.problems.active_sets import polish_active_set
from mirrordescent.problems.base import Problem
from mirrordescent.problems.program_exclusions import is_infeasible, is_unbounded
from mirrordescent.problems.programs import QP
from mirrordescent.problems.quadratics import matvec
from mirrordescent.problems.reduced_programs import (
    ProgramMatrices,
    ReducedProgram,
    SparseProgram,
    sparse_step,
)
from mirrordescent.schedules import ScheduleLike, as_schedule
from mirrordescent.trees import Tree

Precision: TypeAlias = Literal["problem", "single"]

CERTAIN = 1e3
"""A certificate of infeasibility must exclude points this many times larger than the iterate."""


class ADMMState(NamedTuple):
    """Steps taken, images z of the point, multipliers y, and the samples that are solved exactly.

    ``v`` is the primal iterate of a sparse program. ``work`` holds the matrices of the class.
    """

    k: int
    z: Tensor
    y: Tensor
    v: Tensor
    exact: Tensor
    work: Any

    @property
    def x(self) -> Tensor:
        """The point in the variables of the program."""
        return self.work.point(self)


class PenaltyMatrices:
    """The matrices of an iteration on dense programs, for all programs that share P and A.

    Args:
        matrices: Matrices of the reduced program.
        penalties: Penalties ρ of all inequalities, in double precision.
        dtype: Type of the iteration.
    """

    def __init__(self, matrices: ProgramMatrices, penalties: Tensor, dtype: torch.dtype) -> None:
        K, M = matrices.factor(penalties)
        self.K = K
        self.penalties = penalties
        self.rho = penalties.to(dtype)
        self.M = M.to(dtype)
        self.KC = K @ matrices.C.mT
        self._relaxed: dict[float, Tensor] = {}

    def relaxed(self, alpha: float) -> Tensor:
        """Return (I − αCKCᵀR)ᵀ for a run, computed once for every over-relaxation α."""
        if alpha not in self._relaxed:
            identity = torch.eye(len(self.rho)).to(self.M)
            self._relaxed[alpha] = (identity - alpha * self.M * self.rho).mT.contiguous()
        return self._relaxed[alpha]


class DenseWork:
    """The data of an iteration on dense programs.

    Args:
        program: The reduced program.
        parts: Its matrices.
        like: A tensor in the type of the problem.
    """

    def __init__(self, program: ReducedProgram, parts: PenaltyMatrices, like: Tensor) -> None:
        self.program = program
        self.parts = parts
        self.like = like
        dtype = parts.M.dtype
        self.bias = -matvec(parts.KC.mT, program.g).to(dtype)
        self.low = program.low.to(dtype)
        self.high = program.high.to(dtype)

    def start(self, x0: Tensor) -> tuple[Tensor, Tensor]:
        image = (self.program.image_of(x0.double())).to(x0)
        return self.program.cones.project(image, self.low.to(x0), self.high.to(x0)), x0[:, :0]

    def step(self, state: ADMMState, alpha: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rho = self.parts.rho
        z = state.z.to(rho)
        y = state.y.to(rho)
        ahead = self.bias + matvec(self.parts.M, rho * z - y)
        v = alpha * ahead + (1 - alpha) * z
        z_new = self.program.cones.project(v + y / rho, self.low, self.high)
        y_new = y + rho * (v - z_new)
        keep = state.exact.unsqueeze(-1)
        return (
            state.v,
            torch.where(keep, state.z, z_new.to(state.z)),
            torch.where(keep, state.y, y_new.to(state.y)),
        )

    def residual(self, state: ADMMState) -> Tensor:
        """Return ‖R^½(w⁺ − w)‖ of a step without over-relaxation, where w = z + y/ρ, (batch,).

        It is 0 at solutions, and a step never increases it.
        """
        rho = self.parts.rho
        _, z, y = self.step(state, 1.0)
        change = rho * (z - state.z).to(rho) + (y - state.y).to(rho)
        return (change / rho.sqrt()).square().sum(-1)

    def point(self, state: ADMMState) -> Tensor:
        rho = self.parts.penalties
        pull = matvec(self.parts.KC, rho * state.z.double() - state.y.double())
        v = pull - matvec(self.parts.K, self.program.g)
        return (self.program.start + matvec(self.program.matrices.N, v)).to(self.like)

    def multipliers(self, state: ADMMState) -> Tensor:
        x = self.point(state).double()
        return self.program.multipliers(x, state.y.double())

    def polish(self, state: ADMMState, rounds: int) -> ADMMState:
        """Solve the systems of the predicted active sets, and keep solutions that are verified."""
        schur = self.program.schur
        if schur is None or not self.program.rows:
            return state
        y, z, solved = polish_active_set(
            schur,
            self.program,
            state.y.double(),
            state.z.double(),
            self.parts.penalties,
            rounds,
            ~state.exact,
        )
        accepted = solved.unsqueeze(-1)
        return state._replace(
            z=torch.where(accepted, z.to(state.z), state.z),
            y=torch.where(accepted, y.to(state.y), state.y),
            exact=state.exact | solved,
        )


class _SparseWork:
    """The decomposition of a sparse program."""

    def __init__(self, problem: QP, program: SparseProgram, rho: Tensor) -> None:
        if rho.requires_grad and torch.is_grad_enabled():
            raise TypeError("ADMM on sparse programs cannot be differentiated: use dense matrices")
        self.program = program
        weights = (rho.detach().double() * program.unit).expand(program.rows).cpu()
        self.solver, self.rho, self.sigma = program.factor(weights)

    def start(self, x0: Tensor) -> tuple[Tensor, Tensor]:
        image = torch.sparse.mm(self.program.C, x0.double().mT).mT
        return self.program.cones.project(image, self.program.low, self.program.high).to(x0), x0

    def step(self, state: ADMMState, alpha: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return sparse_step(
            self.program,
            self.solver,
            self.rho,
            self.sigma,
            state.v,
            state.z,
            state.y,
            float(alpha),
        )

    def point(self, state: ADMMState) -> Tensor:
        return state.v

    def multipliers(self, state: ADMMState) -> Tensor:
        return self.program.scale * state.y.double()

    def polish(self, state: ADMMState, rounds: int) -> ADMMState:
        return state


class ADMM(Method[ADMMState]):
    """The alternating direction method of multipliers on a program without its equalities:

    .. code-block:: none

        v  = (H + CᵀRC)⁻¹ (Cᵀ(Rz − y) − g)
        w  = αCv + (1 − α)z
        z⁺ = min(max(w + y/ρ, low), high)
        y⁺ = y + ρ(w − z⁺)

    with R = diag(ρ). In the rows of cones, z⁺ − low is the projection of w + y/ρ − low onto K.
    Equalities are eliminated once for the class, and (H + CᵀRC)⁻¹ is computed
    once for all problems that share their matrices, so that a step is one product with a matrix.
    Penalties ρ, one for each inequality or cone, are the metric of the method; they can be learned,
    and so can the over-relaxation α and the start. A learned start is used for the samples whose
    residual it makes smaller.

    After every ``polish`` steps the active set is predicted: constraints at a bound whose
    multiplier has the right sign. The system of its optimality conditions is solved, the set is
    corrected a few times, and the solution is used if it satisfies all optimality conditions up to
    rounding. Otherwise the iteration goes on where it was. This needs an objective that is
    strongly convex where the equalities hold, and no cones.

    The method proves lower bounds (:class:`~mirrordescent.problems.QP`), so that ``gap(1e-4)``
    works, and :meth:`residuals` returns primal and dual residuals. Problems without a feasible
    point, or without a minimum, end with the status ``INFEASIBLE`` or ``UNBOUNDED``;
    :meth:`certificate` returns the reason.

    Args:
        rho: Penalty, relative to the scale of the objective: a number, or one for each inequality
            and each cone.
        relaxation: Over-relaxation α in (0, 2), a number or a schedule.
        polish: Number of steps between predictions of the active set; 0 for none.
        rounds: Corrections of a predicted active set.
        start: Learned start; by default iterates begin at x₀ with multipliers 0.
        precision: ``"problem"`` to iterate in the type of the problem, ``"single"`` to iterate in
            single precision. Active sets are always polished in double precision, so that
            solutions of problems in double precision are accurate either way.

    References: Boyd et al., Found. Trends Mach. Learn. 3 (2011); Stellato et al., OSQP, Math.
        Program. Comput. 12 (2020).

    >>> from mirrordescent import gap, solve
    >>> program = QP(torch.eye(2), torch.tensor([[-1.0, -2.0]]), torch.ones(1, 2), u=torch.ones(1))
    >>> solution = solve(program, ADMM(), stop=gap(1e-4))
    >>> solution.statuses, solution.x.round(decimals=3)
    ([<Status.CONVERGED: 1>], tensor([[0., 1.]]))
    """

    cli_names: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        rho: float | Tensor | Sequence[float] = 1.0,
        relaxation: ScheduleLike = 1.6,
        polish: int = 10,
        rounds: int = 4,
        start: AffineStart | None = None,
        precision: Precision = "problem",
    ) -> None:
        super().__init__()
        if isinstance(rho, Sequence):  # as it is stored
            rho = torch.tensor(rho)
        if not bool((torch.as_tensor(rho) > 0).all()):
            raise ValueError(f"rho must be positive, got {rho}")
        if polish < 0 or rounds < 0:
            raise ValueError(f"polish and rounds must be at least 0, got {polish} and {rounds}")
        self._rho = 1.0 if isinstance(rho, Tensor) else float(rho)
        self.log_rho: nn.Parameter | None = None
        if isinstance(rho, Tensor):
            self.log_rho = nn.Parameter(rho.detach().log())
        self.relaxation = as_schedule(relaxation, "relaxation")
        self.polish = int(polish)
        self.rounds = int(rounds)
        self.start = start
        if precision not in get_args(Precision):
            raise ValueError(f"precision must be 'problem' or 'single', got {precision!r}")
        self.precision: Precision = precision

    @property
    def rho(self) -> float | Tensor:
        """The penalties: a number, or a tensor that can be learned."""
        return self._rho if self.log_rho is None else self.log_rho.exp()

    def relaxation_parameters(self) -> list[Tensor]:
        """Return the parameters of the over-relaxation."""
        return [*self.relaxation.parameters(), *self.relaxation.buffers()]

    def init(self, x0: Tree, problem: Problem | None = None) -> ADMMState:
        work = self._work(problem)
        z, v = work.start(cast(Tensor, x0))
        exact = torch.zeros(len(z), dtype=torch.bool, device=z.device)
        state = ADMMState(0, z, torch.zeros_like(z), v, exact, work)
        if self.start is None or not isinstance(work, DenseWork):
            return state
        predicted = state._replace(**self.start(work.program, z.dtype))
        better = (work.residual(predicted) <= work.residual(state)).unsqueeze(-1)
        return state._replace(
            z=torch.where(better, predicted.z, state.z),
            y=torch.where(better, predicted.y, state.y),
        )

    def warm_start(self, state: ADMMState, problem: Problem) -> ADMMState:
        """Return a state with the same multipliers and images, clipped to the new bounds."""
        work = self._work(problem)
        program = work.program
        z = program.cones.project(state.z, program.low.to(state.z), program.high.to(state.z))
        exact = torch.zeros_like(state.exact)
        return ADMMState(0, z, state.y, state.v, exact, work)

    def step(
        self, problem: Problem, state: ADMMState, oracle: Oracle, generator: Generator | None = None
    ) -> ADMMState:
        count = state.k + 1
        if bool(state.exact.all()):
            return state._replace(k=count)
        v, z, y = state.work.step(state, self.relaxation(count))
        new = ADMMState(count, z, y, v, state.exact, state.work)
        graph = torch.is_grad_enabled() and y.requires_grad
        if self.polish and count % self.polish == 0 and not graph:
            new = state.work.polish(new, self.rounds)
        return new

    def lower_bound(self, problem: Problem, state: ADMMState) -> Tensor | None:
        return cast(QP, problem).bound_of_pair(state.x, state.work.multipliers(state))

    @torch.no_grad()
    def residuals(self, problem: Problem, state: ADMMState) -> dict[str, Tensor]:
        """Return the residuals of the optimality conditions, and the gap to the lower bound.

        .. code-block:: none

            primal  the largest violation of a constraint
            dual    ‖Px + q + Aᵀy‖_∞
            gap     f(x) − lower bound, which is infinite if nothing is proven

        Args:
            problem: The programs.
            state: State of a run, such as ``solution.state``.

        Returns:
            ``primal``, ``dual`` and ``gap``, (batch,) each, in double precision.

        >>> from mirrordescent import solve
        >>> program = QP(torch.eye(2), torch.tensor([[-1.0, 0.0]]), torch.eye(2), torch.zeros(2))
        >>> solution = solve(program, ADMM(), iterations=50)
        >>> float(ADMM().residuals(program, solution.state)["dual"]) < 1e-5
        True
        """
        program = cast(QP, problem)
        x = state.x
        y = state.work.multipliers(state)
        slope = program.times_P(x) + program.q + program.times_A_adjoint(y.to(program.q))
        lower = program.bound_of_pair(x, y)
        return {
            "primal": program.violation(x).double(),
            "dual": slope.abs().amax(-1).double(),
            "gap": program.value(x).double() - lower.double(),
        }

    def excluded(self, problem: Problem, state: ADMMState) -> tuple[Tensor, Tensor]:
        """Return the samples without a feasible point, and those without a minimum, (batch,).

        Only samples for which this is proven count (:mod:`~.problems.program_exclusions`).
        """
        program = cast(QP, problem)
        y, direction = self._differences(program, state)
        size = 1 + state.x.abs().amax(-1).double()
        infeasible = _excluded_radius(program, y) > CERTAIN * size
        for sample in infeasible.nonzero().flatten().tolist():
            infeasible[sample] = is_infeasible(program, sample, y[sample])
        inconsistent = self._inconsistent(program, state)
        if inconsistent is not None:
            for sample in (~infeasible).nonzero().flatten().tolist():
                infeasible[sample] = is_infeasible(program, sample, inconsistent[sample])
        unbounded = ~infeasible & _falls_forever(program, direction)
        for sample in unbounded.nonzero().flatten().tolist():
            unbounded[sample] = is_unbounded(program, sample, direction[sample])
        return infeasible, unbounded

    def _inconsistent(self, program: QP, state: ADMMState) -> Tensor | None:
        """Return multipliers of equalities that may contradict each other, or None if none do.

        The residual r of least squares satisfies Eᵀr = 0 and ⟨e, r⟩ = −‖r‖².
        """
        reduced = state.work.program
        if isinstance(reduced, SparseProgram):
            return None
        rows = reduced.matrices.equal_index
        mismatch = reduced.mismatch[:, : len(rows)]
        if not len(rows):
            return None
        worst = mismatch.abs().amax(-1)
        if not bool((worst > 1e-6 * (1 + worst)).any()):
            return None
        y = mismatch.new_zeros(len(mismatch), program.rows)
        y[:, rows] = mismatch
        return _normalised(y)

    def certificate(self, problem: Problem, state: ADMMState) -> dict[str, Tensor]:
        """Return multipliers y that prove infeasibility, and directions along which f falls.

        For every x with ‖x‖_∞ < R, ⟨y, Ax⟩ ≤ ‖Aᵀy‖₁R < min_{l ≤ w ≤ u} ⟨y, w⟩. So no such x is
        feasible. ``radius`` is R, which is infinite if Aᵀy = 0.

        Returns:
            ``multipliers`` (batch, m), ``radius`` (batch,) and ``direction`` (batch, n).
        """
        program = cast(QP, problem)
        y, direction = self._differences(program, state)
        return {
            "multipliers": y,
            "radius": _excluded_radius(program, y),
            "direction": direction,
        }

    @torch.no_grad()
    def _differences(self, program: QP, state: ADMMState) -> tuple[Tensor, Tensor]:
        """Return the changes of y and x in a step, of length 1.

        They converge to certificates if there is no solution.
        """
        v, z, y = state.work.step(state, 1.0)
        after = ADMMState(state.k, z, y, v, state.exact, state.work)
        dx = (after.x - state.x).double()
        dy = state.work.multipliers(after) - state.work.multipliers(state)
        return _normalised(dy), _normalised(dx)

    def _work(self, problem: Problem | None) -> Any:
        if not isinstance(problem, QP):
            name = "None" if problem is None else type(problem).__name__
            raise TypeError(f"ADMM needs a problem of class QP, got {name}")
        program = problem.reduced
        rho = torch.as_tensor(self.rho, device=problem.q.device)
        if rho.ndim:
            count = program.cones.first + len(program.cones.sizes)
            if rho.shape != (count,):
                raise ValueError(
                    f"rho must be a number or have one entry for each of the {count} inequalities "
                    f"and cones, got {tuple(rho.shape)}"
                )
            rho = program.cones.penalties_of_rows(rho)
        if isinstance(program, SparseProgram):
            if self.precision == "single":
                raise ValueError("ADMM iterates on sparse programs in double precision only")
            return _SparseWork(problem, program, rho)
        dtype = torch.float32 if self.precision == "single" else problem.q.dtype
        return DenseWork(program, self._parts(program.matrices, rho, dtype), problem.q)

    def _parts(self, matrices: ProgramMatrices, rho: Tensor, dtype: torch.dtype) -> PenaltyMatrices:
        """Return the matrices for the penalties, kept until another class or penalty is used."""
        assert matrices.unit is not None
        penalties = (rho.double() * matrices.unit).expand(matrices.rows)
        if penalties.requires_grad and torch.is_grad_enabled():
            return PenaltyMatrices(matrices, penalties, dtype)
        known = _KEPT.get(self)
        if known is not None and known[0] is matrices:
            parts = known[1]
            if parts.M.dtype == dtype and torch.equal(parts.penalties, penalties):
                return parts
        with torch.inference_mode(False), torch.no_grad():
            parts = PenaltyMatrices(matrices, penalties.detach().clone(), dtype)
        _KEPT[self] = (matrices, parts)
        return parts


_KEPT: WeakKeyDictionary[ADMM, tuple[ProgramMatrices, PenaltyMatrices]] = WeakKeyDictionary()
"""The matrices that a method used last."""


def _normalised(direction: Tensor) -> Tensor:
    size = direction.abs().amax(-1, keepdim=True) if direction.shape[-1] else direction.sum(-1)
    if not direction.shape[-1]:
        return direction
    return torch.where(size > 0, direction / size, 0.0)


def _excluded_radius(program: QP, y: Tensor) -> Tensor:
    """Return the R below which no ‖x‖_∞ is feasible, by multipliers y; 0 if y excludes nothing."""
    y = program.with_signs(y)
    supports = program.supports(y)
    support = supports.sum(-1)
    size = supports.abs().sum(-1)
    clear = -support > 1e-6 * size.nan_to_num(posinf=0.0)
    pull = program.times_A_adjoint(y.to(program.q)).double().abs().sum(-1)
    rounding = 1e-7 if program.q.dtype == torch.float32 else 1e-14
    return torch.where(clear & (y != 0).any(-1), -support / (pull + rounding), 0.0)


def _falls_forever(program: QP, direction: Tensor) -> Tensor:
    """Return the samples whose objective falls along a direction that stays feasible, (batch,)."""
    d = direction.to(program.q)
    slope = (program.q * d).sum(-1)
    steepness = program.q.abs().sum(-1).clamp(min=1e-30)
    tolerance = 1e-4
    bent = program.times_P(d).abs().amax(-1) > tolerance * slope.abs()
    Ad = program.times_A(d)
    leaves = program.recession_violations(Ad) > tolerance
    stays = ~leaves.any(-1)
    return (slope < -tolerance * steepness) & ~bent & stays
