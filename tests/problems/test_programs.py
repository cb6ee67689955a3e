"""Programs: values, bounds that are proofs, and solutions of an interior-point method."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from campaigns.exact import exact_value

import mirrordescent as md
from mirrordescent.methods import ADMM
from mirrordescent.oracles import Exact
from mirrordescent.problems.active_sets import polish_active_set
from mirrordescent.problems.program_exclusions import is_infeasible, is_unbounded
from mirrordescent.problems.statements import (
    ContradictoryBound,
    allowed_excess,
    require_consistent,
)

clarabel = pytest.importorskip("clarabel")
DOUBLE = torch.float64


def random_program(
    seed=0, batch=5, n=8, rows=12, equal=3, shared=True, definite=True, linear=False
):
    """Return P, q, A, l, u of feasible programs."""
    rng = np.random.default_rng(seed)
    lead = () if shared else (batch,)
    root = rng.normal(size=(*lead, n, n if definite else n // 2))
    P = root @ np.swapaxes(root, -1, -2) / n + (0.1 * np.eye(n) if definite else 0)
    A = rng.normal(size=(*lead, rows, n))
    if not definite:
        A[..., -n:, :] = np.eye(n)
    x = rng.normal(size=(batch, n))
    Ax = np.einsum("...ij,bj->bi" if shared else "bij,bj->bi", A, x)
    lower = Ax - rng.random((batch, rows))
    upper = Ax + rng.random((batch, rows))
    lower[:, :equal] = upper[:, :equal] = Ax[:, :equal]
    upper[:, equal] = math.inf
    q = 3 * rng.normal(size=(batch, n))
    return (None if linear else P), q, A, lower, upper


def reference(P, q, A, l, u, i):  # noqa: E741
    """Return the solution and the minimum of problem i by an interior-point method."""
    n = q.shape[-1]
    P = np.zeros((n, n)) if P is None else (P if P.ndim == 2 else P[i])
    A = A if A.ndim == 2 else A[i]
    equal = l[i] == u[i]
    up = ~equal & np.isfinite(u[i])
    down = ~equal & np.isfinite(l[i])
    stacked = np.vstack([A[equal], A[up], -A[down]])
    b = np.concatenate([u[i][equal], u[i][up], -l[i][down]])
    cones = [
        clarabel.ZeroConeT(int(equal.sum())),
        clarabel.NonnegativeConeT(int(up.sum() + down.sum())),
    ]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    solver = clarabel.DefaultSolver(
        sp.csc_matrix(np.triu(P)), q[i], sp.csc_matrix(stacked), b, cones, settings
    )
    found = solver.solve()
    return np.array(found.x), found.obj_val


CASES = {
    "shared": {},
    "per sample": {"shared": False},
    "semidefinite with bounds": {"definite": False},
    "linear": {"definite": False, "linear": True},
    "no equalities": {"equal": 0},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_solutions_are_those_of_an_interior_point_method(options, dtype):
    data = random_program(**options)
    program = md.QP(*(None if d is None else torch.tensor(d).to(dtype) for d in data))
    tolerance = 1e-4
    solution = md.solve(program, ADMM(), stop=md.gap(tolerance), iterations=20_000, check_every=50)
    assert set(solution.statuses) == {md.Status.CONVERGED}
    start = program.value(program.start(len(solution.x))).double()
    for i in range(len(solution.x)):
        _, minimum = reference(*data, i)
        rounding = 1e-4 if dtype == torch.float32 else 1e-8
        allowed = tolerance * (float(start[i]) - minimum)
        assert float(solution.lower[i]) <= minimum + rounding
        assert abs(float(program.objective(solution.x)[i]) - minimum) <= allowed + rounding
        assert float(program.violation(solution.x)[i]) <= allowed / float(program.weight[i])


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
def test_active_sets_are_verified_in_the_units_of_the_rows(unit):
    """No row is predicted to be active, so the solution violates the bounds by their own size."""
    identity = torch.eye(2, dtype=DOUBLE)
    q = torch.tensor([[-1.0, 0.5]], dtype=DOUBLE)
    bound = torch.full((2,), 0.1 * unit, dtype=DOUBLE)
    program = md.QP(identity, q, unit * identity, -bound, bound).reduced
    rho = torch.ones(program.rows, dtype=DOUBLE)
    zero = torch.zeros(1, program.rows, dtype=DOUBLE)
    *_, wrong = polish_active_set(program.schur, program, zero, zero, rho, rounds=0)
    assert not wrong.any()
    guess = -q * unit
    *_, right = polish_active_set(program.schur, program, zero, guess, rho, rounds=0)
    assert right.all()


@pytest.mark.parametrize("seed", range(4))
def test_polished_solutions_satisfy_all_optimality_conditions(seed):
    data = random_program(seed, equal=2)
    program = md.QP(*(torch.tensor(d) for d in data))
    method = ADMM(10.0, polish=20, rounds=8)
    state = method.init(program.start(), program)
    for _ in range(4000):
        state = method.step(program, state, Exact())
    assert bool(state.exact.all())
    y = state.work.multipliers(state)
    x = state.x
    stationarity = program.times_P(x) + program.q + program.times_A_adjoint(y)
    assert float(stationarity.abs().max()) < 1e-8
    assert float(program.violation(x).max()) < 1e-8
    Ax = program.times_A(x)
    slack = torch.where(y > 0, program.u - Ax, Ax - program.l)
    complementary = torch.where(y.abs() > 1e-9, slack.abs(), 0.0)
    assert float(complementary.max()) < 1e-7


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_bounds_hold_for_any_point_and_multipliers(options):
    data = random_program(3, **options)
    program = md.QP(*(None if d is None else torch.tensor(d) for d in data))
    generator = torch.Generator().manual_seed(0)
    minima = torch.tensor([reference(*data, i)[1] for i in range(5)], dtype=DOUBLE)
    for size in (0.0, 0.1, 1.0, 10.0):
        x = size * torch.randn(5, 8, generator=generator, dtype=DOUBLE)
        y = size * torch.randn(5, 12, generator=generator, dtype=DOUBLE)
        assert bool((program.bound_of_pair(x, y) <= minima + 1e-8).all())


def test_values_and_gradients():
    P, q, A, l, u = (torch.tensor(d) for d in random_program())  # noqa: E741
    program = md.QP(P, q, A, l, u, penalty=2.0)
    x = torch.randn(5, 8, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    Ax = x @ A.T
    over = torch.maximum(Ax - u, l - Ax).clamp(min=0)
    expected = 0.5 * (x @ P * x).sum(-1) + (q * x).sum(-1) + 2 * over.sum(-1)
    torch.testing.assert_close(program.value(x), expected)
    point = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(program.value(point).sum(), point)
    torch.testing.assert_close(program.grad(x), slope)
    torch.testing.assert_close(program.smoothed_grad(x, 1e-12), slope)


def test_a_penalty_that_is_too_small_never_counts_as_converged():
    data = [torch.tensor(d) for d in random_program()]
    program = md.QP(*data, penalty=1e-3)
    solution = md.solve(program, ADMM(), stop=md.gap(1e-6), iterations=500)
    assert md.Status.CONVERGED not in solution.statuses


def test_infeasible_and_unbounded_programs_have_certificates():
    q = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=DOUBLE)
    A = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, -1.0]], dtype=DOUBLE)
    l = torch.tensor([[1.0, -5.0, -1.0], [-1.0, -5.0, -1.0]], dtype=DOUBLE)  # noqa: E741
    u = torch.tensor([[2.0, 0.0, 1.0], [2.0, 0.0, 1.0]], dtype=DOUBLE)
    program = md.QP(torch.eye(2, dtype=DOUBLE), q, A, l, u)
    solution = md.solve(program, ADMM(), stop=md.gap(1e-6), iterations=2000, check_every=50)
    assert solution.statuses == [md.Status.INFEASIBLE, md.Status.CONVERGED]
    certificate = ADMM().certificate(program, solution.state)
    y = certificate["multipliers"][0]
    support = torch.maximum(u[0] * y, l[0] * y).sum()
    assert float(support) < 0
    assert float((A.T @ y).abs().sum()) * float(certificate["radius"][0]) <= -float(support) * 1.01
    down = md.QP(None, -torch.ones(1, 2, dtype=DOUBLE), A, torch.tensor([-1.0, -1.0, -1.0]))
    solution = md.solve(down, ADMM(), iterations=2000, check_every=50)
    assert solution.statuses == [md.Status.UNBOUNDED]
    inconsistent = md.QP(
        torch.eye(2),
        torch.ones(1, 2),
        torch.tensor([[1.0, 1.0], [1.0, 1.0]]),
        torch.tensor([0.0, 1.0]),
        torch.tensor([0.0, 1.0]),
    )
    solution = md.solve(inconsistent, ADMM(), iterations=100)
    assert solution.statuses == [md.Status.INFEASIBLE]


def test_sparse_programs_are_those_of_dense_matrices():
    P, q, A, l, u = random_program(n=8, rows=20, equal=2, definite=False)  # noqa: E741
    dense = md.QP(P, q, A, l, u)
    sparse = md.QP(sp.csc_matrix(P), q, sp.csr_matrix(A), l, u)
    x = torch.randn(5, 8, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(sparse.objective(x), dense.objective(x))
    torch.testing.assert_close(sparse.violations(x), dense.violations(x))
    solution = md.solve(sparse, ADMM(), stop=md.gap(1e-4), iterations=20_000, check_every=100)
    assert set(solution.statuses) == {md.Status.CONVERGED}
    for i in range(5):
        assert float(solution.lower[i]) <= reference(P, q, A, l, u, i)[1] + 1e-7


def test_a_large_sparse_program_is_solved():
    """A control problem: differences of neighbours are bounded."""
    n = 3000
    rng = np.random.default_rng(0)
    D = sp.diags([-np.ones(n), np.ones(n - 1)], [0, 1], shape=(n - 1, n))
    A = sp.vstack([D, sp.eye(n)]).tocsr()
    q = -np.cumsum(rng.normal(size=(2, n)), 1) / 10
    bound = np.concatenate([np.full(n - 1, 0.02), np.full(n, 10.0)])
    program = md.QP(sp.eye(n), q, A, -bound, bound)
    solution = md.solve(program, ADMM(), stop=md.gap(1e-3), iterations=3000, check_every=50)
    assert set(solution.statuses) == {md.Status.CONVERGED}


def test_bad_programs_are_refused():
    eye = torch.eye(2)
    q = torch.ones(2)
    with pytest.raises(ValueError, match="P must be symmetric"):
        md.QP(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), q)
    with pytest.raises(ValueError, match="positive semidefinite, but has the eigenvalue -1"):
        md.QP(-eye, q)
    with pytest.raises(ValueError, match="l ≤ u"):
        md.QP(eye, q, eye, torch.ones(2), torch.zeros(2))
    with pytest.raises(ValueError, match=r"l must be \(2,\)"):
        md.QP(eye, q, eye, torch.ones(3))
    with pytest.raises(ValueError, match="same number of problems"):
        md.QP(eye, torch.ones(3, 2), eye, torch.zeros(4, 2))
    with pytest.raises(ValueError, match="A must have 2 columns"):
        md.QP(eye, q, torch.ones(1, 3))
    with pytest.raises(TypeError, match="ADMM needs a problem of class QP, got Quadratic"):
        ADMM().init(q, md.Quadratic(q, q))
    with pytest.raises(ValueError, match="rho must be positive"):
        ADMM(0.0)
    program = md.QP(eye, q, eye, torch.zeros(2), torch.ones(2))
    with pytest.raises(ValueError, match="one entry for each of the 2 inequalities"):
        ADMM(torch.ones(3)).init(torch.zeros(1, 2), program)


def test_a_warm_start_of_a_solved_problem_is_solved():
    data = [torch.tensor(d) for d in random_program()]
    program = md.QP(*data)
    method = ADMM(polish=0)
    first = md.solve(program, method, stop=md.gap(1e-6), iterations=5000, check_every=10)
    again = md.solve(program, method, state=first.state, stop=md.gap(1e-6), check_every=10)
    assert int(again.steps.max()) < int(first.steps.max())
    nearby = md.QP(data[0], data[1] + 1e-3, *data[2:])
    stop = md.gap(1e-6, start_value=nearby.value(nearby.start()))
    cold = md.solve(nearby, method, stop=stop, iterations=5000, check_every=10)
    warm = md.solve(nearby, method, state=first.state, stop=stop, iterations=5000, check_every=10)
    assert int(warm.steps.sum()) < int(cold.steps.sum())


def test_penalties_are_learned_by_differentiation():
    program = md.QP(*(torch.tensor(d) for d in random_program()))
    method = ADMM(torch.ones(program.reduced.rows, dtype=DOUBLE), polish=0)
    state = method.init(program.start(), program)
    for _ in range(5):
        state = method.step(program, state, Exact())
    loss = program.value(state.x).sum()
    (slope,) = torch.autograd.grad(loss, method.log_rho)
    assert bool(slope.isfinite().all())
    assert float(slope.abs().max()) > 0


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_certificates_of_programs(options):
    data = random_program(5, **options)
    program = md.QP(*(None if d is None else torch.tensor(d) for d in data))
    certificate = md.certify(program, 1e-6, cache=False)
    assert certificate.proven
    assert certificate.verify(program).confirmed
    raised = replace(certificate, lower=certificate.value + 1e-6 * certificate.value.abs())
    assert not raised.verify(program).confirmed
    assert float(certificate.relative_gap.max()) <= 1e-6
    for i in range(5):
        assert float(certificate.lower[i]) <= reference(*data, i)[1] + 1e-7


def test_one_sided_variables_have_bounds_before_multipliers_are_exact():
    """min ⟨c, x⟩ with Ex = e and x ≥ 0, c > 0: small multiples of multipliers of E are feasible."""
    generator = torch.Generator().manual_seed(0)
    c = 0.5 + torch.rand(3, 9, generator=generator, dtype=DOUBLE)
    E = torch.randn(4, 9, generator=generator, dtype=DOUBLE)
    e = torch.rand(3, 9, generator=generator, dtype=DOUBLE) @ E.T
    A = torch.cat([E, torch.eye(9, dtype=DOUBLE)])
    lower = torch.cat([e, torch.zeros(3, 9, dtype=DOUBLE)], 1)
    upper = torch.cat([e, torch.full((3, 9), math.inf, dtype=DOUBLE)], 1)
    for dtype in (torch.float32, DOUBLE):
        program = md.QP(*(d if d is None else d.to(dtype) for d in (None, c, A, lower, upper)))
        solution = md.solve(program, ADMM(), stop=md.gap(1e-3), iterations=5000, check_every=20)
        assert set(solution.statuses) == {md.Status.CONVERGED}
        for i in range(3):
            _, minimum = reference(None, c.numpy(), A.numpy(), lower.numpy(), upper.numpy(), i)
            assert float(solution.lower[i]) <= minimum + (1e-5 if dtype == torch.float32 else 1e-9)
        rough = md.solve(program, ADMM(), iterations=30, progress=False)
        assert bool(ADMM().lower_bound(program, rough.state).isfinite().all())
    certificate = md.certify(program, 1e-4, cache=False)
    assert certificate.proven
    assert certificate.verify(program).confirmed


def test_a_sparse_program_is_certified_without_a_second_implementation():
    P, q, A, l, u = random_program(n=8, rows=20, equal=2, definite=False)  # noqa: E741
    sparse = md.QP(sp.csc_matrix(P), q, sp.csr_matrix(A), l, u)
    certificate = md.certify(sparse, 1e-2, cache=False)
    assert not certificate.proven
    for i in range(5):
        assert float(certificate.lower[i]) <= reference(P, q, A, l, u, i)[1] + 1e-7


def test_bounds_of_variables_follow_from_rows():
    """x ≥ 0 and x₁ + 2x₂ ≤ 4 bound both variables; x₃ − x₂ = 1 bounds the third."""
    A = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 2, 0], [0, -1, 1]], dtype=DOUBLE)
    l = torch.tensor([0, 0, -math.inf, 1], dtype=DOUBLE)  # noqa: E741
    u = torch.tensor([math.inf, math.inf, 4, 1], dtype=DOUBLE)
    low, high = md.QP(None, torch.ones(3, dtype=DOUBLE), A, l, u).variable_bounds()
    expected = (torch.tensor([0.0, 0, 1], dtype=DOUBLE), torch.tensor([4.0, 2, 3], dtype=DOUBLE))
    torch.testing.assert_close(low, expected[0], atol=1e-12, rtol=0)
    torch.testing.assert_close(high, expected[1], atol=1e-12, rtol=0)
    assert bool((low <= expected[0]).all())
    assert bool((high >= expected[1]).all())


def test_bounds_are_conditional_on_what_is_not_proven():
    A = torch.eye(2, dtype=DOUBLE)
    low = torch.zeros(2, dtype=DOUBLE)
    high = torch.ones(2, dtype=DOUBLE)
    q = torch.tensor([[1.0, -1.0]], dtype=DOUBLE)
    singular = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=DOUBLE)
    assert md.QP(singular, q, A, low, high).assumptions == ()
    doubtful = singular - 1e-16 * torch.eye(2, dtype=DOUBLE)
    doubtful[0, 1] = doubtful[1, 0] = 1 + 1e-15
    assert md.QP(doubtful, q, A, low, high).assumptions == ()
    program = md.QP(doubtful, q, A, low)
    assert program.assumptions == ("P is positive semidefinite",)
    assert md.problems.statements.premises(program) == program.assumptions
    with pytest.raises(ValueError, match="positive semidefinite"):
        md.QP(torch.diag(torch.tensor([1.0, -1e-8], dtype=DOUBLE)), q, A, low, high)
    limited = md.QP(None, q, radius=3.0)
    assert limited.assumptions == ("a minimiser has no entry larger than 3",)


def test_a_value_near_the_bound_is_no_convergence_at_an_infeasible_point():
    """min −x on 0 ≤ x ≤ 1 has the optimum −1 and the multiplier 1.

    With κ = 0.99, f(x) = −x + 0.99 (x − 1) decreases beyond x = 1. It is less than the bound −1
    there, by 0.01 (x − 1) only.
    """
    data = [torch.tensor(d, dtype=DOUBLE) for d in ([[-1.0]], [[1.0]], [0.0], [1.0])]
    beyond = torch.tensor([[3.0]], dtype=DOUBLE)
    for kappa, expected in ((0.99, md.Status.BUDGET), (2.0, md.Status.CONVERGED)):
        program = md.QP(None, *data, penalty=kappa)
        assert program.assumptions == ()
        assert float(program.infeasibility(beyond)) == pytest.approx(2 * kappa)
        solution = md.solve(
            program,
            md.PDHG(1.0),
            beyond,
            iterations=200,
            check_every=1,
            stop=md.gap(0.1, start_value=torch.zeros(1, dtype=DOUBLE)),
        )
        assert float(solution.lower) <= -1
        assert solution.statuses == [expected]
    assert float(solution.x) == pytest.approx(1, abs=0.1)


def test_a_small_penalty_may_lower_f_below_the_bound_within_rounding():
    """min −x on 0 ≤ x ≤ 1 with κ = 0.001: at 1.001, the penalty 1e-6 is less than rounding."""
    data = [torch.tensor(d) for d in ([[-1.0]], [[1.0]], [0.0], [1.0])]
    program = md.QP(None, *data, penalty=1e-3)
    x = torch.tensor([[1.001]])
    value = program.value(x)
    assert bool(program.infeasibility(x) < program.value_error(x, value))
    excess = allowed_excess(program, x)
    assert bool(excess.isinf())
    require_consistent(program, torch.tensor([-1.0]), value, value, error=lambda: excess)


def test_a_bound_above_a_feasible_value_is_contradictory():
    data = [torch.tensor(d, dtype=DOUBLE) for d in ([[-1.0]], [[1.0]], [0.0], [1.0])]
    program = md.QP(None, *data, penalty=0.5)
    lower = torch.tensor([-0.5], dtype=DOUBLE)
    for point, infeasible in ((0.75, False), (2.0, True)):
        x = torch.tensor([[point]], dtype=DOUBLE)
        excess = allowed_excess(program, x)
        assert bool(excess.isinf().all()) == infeasible
        value = program.value(x)
        assert float(value) < float(lower)
        if infeasible:
            require_consistent(program, lower, value, value, error=lambda e=excess: e)
        else:
            with pytest.raises(ContradictoryBound):
                require_consistent(program, lower, value, value, error=lambda e=excess: e)


@pytest.mark.parametrize("units", [1e-9, 1e-5, 1.0, 1e6])
def test_a_bounded_program_with_a_feasible_point_is_never_excluded(units):
    """min −x − 2y on the box 0 ≤ x, y ≤ 1 with x + y ≤ 1.5, in any units of the constraints."""
    A = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=DOUBLE) * units
    l = torch.tensor([0.0, 0.0, -1.0], dtype=DOUBLE) * units  # noqa: E741
    u = torch.tensor([1.0, 1.0, 1.5], dtype=DOUBLE) * units
    program = md.QP(None, torch.tensor([[-1.0, -2.0]], dtype=DOUBLE), A, l, u)
    solution = md.solve(program, ADMM(), iterations=300, check_every=10)
    assert solution.statuses[0] not in (md.Status.INFEASIBLE, md.Status.UNBOUNDED)
    direction = torch.tensor([1.0, 1.0], dtype=DOUBLE)
    assert not is_unbounded(program, 0, direction)
    for y in torch.randn(50, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(0)):
        assert not is_infeasible(program, 0, y)


def test_exclusions_are_proven_exactly():
    """The line x + y = 2 misses the box [0, 1/2]², by whatever multiplier close to (−½, −½, ½)."""
    A = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    l = torch.tensor([0.0, 0.0, 2.0])  # noqa: E741
    program = md.QP(None, torch.zeros(1, 2), A, l, torch.tensor([0.5, 0.5, 2.0]))
    assert is_infeasible(program, 0, torch.tensor([0.49, 0.51, -0.5]))
    assert not is_infeasible(program, 0, torch.tensor([-0.5, 0.5, 0.5]))
    costs = torch.tensor([[-3.0, 1.0]])
    one = torch.ones(1)
    free = md.QP(None, costs, A[2:], -one, one)
    assert is_unbounded(free, 0, torch.tensor([1.0, -0.99]))
    assert not is_unbounded(free, 0, torch.tensor([-1.0, 1.0]))
    assert not is_unbounded(free, 0, torch.tensor([1.0, 0.0]))
    curved = md.QP(torch.eye(2), costs, A[2:], -one)
    assert not is_unbounded(curved, 0, torch.tensor([1.0, -1.0]))


def test_the_rounding_of_a_value_is_bounded():
    """P has entries of 1e24, and Px cancels to a millionth of its terms."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        B = 1e12 * torch.randn(3, 3, dtype=DOUBLE, generator=generator)
        x = 1e-14 * torch.randn(1, 3, dtype=DOUBLE, generator=generator)
        x = (torch.linalg.solve(B, 1e-3 * B @ x[0]))[None].float()
        A = torch.randn(2, 3, dtype=DOUBLE, generator=generator).float()
        q = torch.randn(1, 3, dtype=DOUBLE, generator=generator).float()
        program = md.QP((B.T @ B).float(), q, A, -torch.ones(2), torch.ones(2), penalty=2.0)
        exact = exact_value(program, 0, x[0])
        error = abs(float(program.value(x)) - float(exact))
        assert error <= float(program.value_error(x, program.value(x)))
