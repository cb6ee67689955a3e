"""Second-order cone programs: solutions of an interior-point method, bounds, exclusions."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import mirrordescent as md
from mirrordescent.methods import ADMM
from mirrordescent.oracles import Exact
from mirrordescent.parts import build, describe
from mirrordescent.problems.program_exclusions import is_infeasible, is_unbounded
from mirrordescent.problems.second_order_cones import Cones
from mirrordescent.references.program_bounds import program_bound
from mirrordescent.rivals import known_rivals

clarabel = pytest.importorskip("clarabel")
DOUBLE = torch.float64
SIZES = (3, 1, 4)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def random_program(seed=0, batch=4, n=7, equal=2, shared=True, definite=True, dtype=DOUBLE):
    """Return feasible programs with equalities, intervals and cones, and bounded variables."""
    rng = np.random.default_rng(seed)
    lead = () if shared else (batch,)
    root = rng.normal(size=(*lead, n, n if definite else n // 2))
    P = root @ np.swapaxes(root, -1, -2) / n + (0.1 * np.eye(n) if definite else 0)
    box = np.broadcast_to(np.eye(n), (*lead, n, n))
    total = sum(SIZES)
    A = np.concatenate([rng.normal(size=(*lead, equal + 2, n)), box], -2)
    A = np.concatenate([A, rng.normal(size=(*lead, total, n))], -2)
    x = 0.3 * rng.normal(size=(batch, n))
    Ax = np.einsum("...ij,bj->bi" if shared else "bij,bj->bi", A, x)
    lower = Ax - rng.random(Ax.shape)
    upper = Ax + rng.random(Ax.shape)
    lower[:, :equal] = upper[:, :equal] = Ax[:, :equal]
    lower[:, equal + 2 : -total] = -2
    upper[:, equal + 2 : -total] = 2
    upper[:, -total:] = math.inf
    begin = Ax.shape[1] - total
    for size in SIZES:  # x is inside: (t, s) = Ax − l with ‖s‖ < t
        s = rng.normal(size=(batch, size - 1))
        t = np.linalg.norm(s, axis=1) + 0.2 * rng.random(batch)
        lower[:, begin : begin + size] = Ax[:, begin : begin + size] - np.c_[t, s]
        begin += size
    q = 3 * rng.normal(size=(batch, n))
    data = [torch.tensor(each).to(dtype) for each in (P, q, A, lower, upper)]
    return md.QP(*data, cones=SIZES)


def minima_of(program):
    """Return solutions and minima by an interior-point method."""
    rival = next(each for each in known_rivals() if each.name == "Clarabel")
    precise = program.double()
    x = rival.prepare(precise, precise.start(len(program.q)))(1e-11)
    return x, precise.objective(x)


CASES = {
    "shared": {},
    "per sample": {"shared": False},
    "semidefinite": {"definite": False},
    "no equalities": {"equal": 0},
}


def test_projections_are_nearest_points():
    """The residual of a projection onto K is in −K and orthogonal to the projection."""
    cones = Cones(9, SIZES)
    low = normal(50, 9, seed=1)
    high = low + 1
    w = 3 * normal(50, 9)
    z = cones.project(w, low, high)
    torch.testing.assert_close(z[:, 0], w[:, 0].clamp(low[:, 0], high[:, 0]))
    inside = (z - low)[:, 1:]
    rest = (w - z)[:, 1:]
    begin = 0
    for size in SIZES:
        for point, sign in ((inside, 1), (-rest, 1)):
            part = sign * point[:, begin : begin + size]
            assert bool((part[:, 1:].norm(dim=1) <= part[:, 0] + 1e-12).all())
        products = (inside * rest)[:, begin : begin + size].sum(1)
        assert float(products.abs().max()) < 1e-12
        begin += size
    tiny = Cones(3, (3,)).project(
        torch.tensor([[0.0, 3e-30, 4e-30]]), torch.zeros(1, 3), torch.zeros(1, 3)
    )
    torch.testing.assert_close(
        tiny * 1e30, torch.tensor([[2.5, 1.5, 2.0]]), msg="squares must not underflow"
    )


def test_multipliers_with_a_largest_size_are_projected():
    """The nearest point of {−y ∈ K, −t ≤ κ}, found among many feasible ones."""
    cones = Cones(3, (3,))
    y = 3 * normal(20, 3)
    kappa = torch.tensor([[0.7]], dtype=DOUBLE)
    nearest = cones.polar(y, kappa)
    t = torch.rand(4000, 1, dtype=DOUBLE, generator=torch.Generator().manual_seed(2)) * 0.7
    s = normal(4000, 2, seed=3)
    radius = torch.rand(4000, 1, dtype=DOUBLE, generator=torch.Generator().manual_seed(4)) * t
    points = torch.cat([-t, s / s.norm(dim=1, keepdim=True) * radius], 1)
    assert bool((nearest[:, 1:].norm(dim=1) <= -nearest[:, 0] + 1e-12).all())
    assert float(-nearest[:, 0].min()) <= 0.7 + 1e-12
    distances = torch.cdist(y, points).amin(1)
    assert bool(((y - nearest).norm(dim=1) <= distances + 1e-12).all())


def test_shortened_multipliers_are_in_the_cone_exactly():
    cones = Cones(5, (5,))
    t = 10.0 ** torch.arange(-300, 300, 3, dtype=DOUBLE)
    s = normal(len(t), 4)
    s = s / s.norm(dim=1, keepdim=True) * t[:, None]
    safe = cones.certainly_polar(torch.cat([-t[:, None], s], 1))
    for row in safe.tolist():
        exact = [Fraction(each) for each in row]
        assert sum(each**2 for each in exact[1:]) <= exact[0] ** 2


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_solutions_are_those_of_an_interior_point_method(options, dtype):
    program = random_program(**options, dtype=dtype)
    tolerance = 1e-4
    solution = md.solve(program, ADMM(), stop=md.gap(tolerance), iterations=20_000, check_every=50)
    assert set(solution.statuses) == {md.Status.CONVERGED}
    start = program.value(program.start(4)).double()
    _, minima = minima_of(random_program(**options))
    rounding = 1e-4 if dtype == torch.float32 else 1e-8
    allowed = tolerance * (start - minima) + rounding
    assert bool((solution.lower.double() <= minima + rounding).all())
    assert bool(((program.objective(solution.x).double() - minima).abs() <= allowed).all())
    assert bool((program.violation(solution.x) * program.weight <= allowed).all())


def test_the_nearest_point_of_a_ball_has_a_closed_form():
    """½‖x − c‖² with ‖x‖ ≤ 1: the first row of the cone is 0, and t = 1."""
    centres = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=DOUBLE)
    A = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=DOUBLE)
    l = torch.tensor([-1.0, 0.0, 0.0], dtype=DOUBLE)  # noqa: E741
    program = md.QP(torch.eye(2, dtype=DOUBLE), -centres, A, l, cones=[3])
    solution = md.solve(program, ADMM(), stop=md.gap(1e-9), iterations=5000)
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4]], dtype=DOUBLE)
    torch.testing.assert_close(solution.x, expected, atol=1e-4, rtol=0)
    linear = md.QP(None, -centres, A, l, cones=[3])
    low, high = linear.variable_bounds()
    assert bool((low <= -1).all() and (high >= 1).all() and (high < 1.001).all())
    certificate = md.certify(linear, 1e-4, cache=False)
    assert certificate.proven
    assert bool((certificate.lower <= -centres.norm(dim=1)).all())


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_bounds_hold_for_any_point_and_multipliers(options):
    program = random_program(3, **options)
    _, minima = minima_of(program)
    for seed, size in enumerate((0.0, 0.1, 1.0, 10.0)):
        x = size * normal(4, 7, seed=seed)
        y = size * normal(4, program.rows, seed=seed + 10)
        assert bool((program.bound_of_pair(x, y) <= minima + 1e-8).all())
        assert bool((program_bound(program, x, y) <= minima + 1e-8).all())


def test_values_and_gradients():
    program = random_program()
    program.penalty = 2.0
    x = 2 * normal(4, 7, seed=1)
    Ax = x @ program.A.T
    k = program.rows - sum(SIZES)
    scalar = torch.maximum(Ax - program.u, program.l - Ax).clamp(min=0)[:, :k].sum(1)
    cones = 0.0
    for size in SIZES:
        w = (Ax - program.l)[:, k : k + size]
        cones = cones + (w[:, 1:].norm(dim=1) - w[:, 0]).clamp(min=0)
        k += size
    assert float(cones.max()) > 0
    torch.testing.assert_close(program.value(x), program.objective(x) + 2 * (scalar + cones))
    point = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(program.value(point).sum(), point)
    torch.testing.assert_close(program.grad(x), slope)
    torch.testing.assert_close(program.smoothed_grad(x, 1e-12), slope)


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_certificates_are_verified(options):
    program = random_program(5, **options)
    certificate = md.certify(program, 1e-5, cache=False)
    assert certificate.proven
    assert certificate.verify(program).confirmed
    raised = replace(certificate, lower=certificate.value + 1e-5 * certificate.value.abs())
    assert not raised.verify(program).confirmed
    assert float(certificate.relative_gap.max()) <= 1e-5
    assert bool((certificate.lower <= minima_of(program)[1] + 1e-8).all())


def test_primal_dual_methods_solve_cone_programs():
    program = random_program()
    solution = md.solve(program, md.CondatVu(1.0), stop=md.gap(1e-3), iterations=20_000)
    assert set(solution.statuses) == {md.Status.CONVERGED}
    start = program.value(program.start(4))
    minima = minima_of(program)[1]
    assert bool(((solution.value - minima).abs() <= 1e-3 * (start - minima) + 1e-8).all())


def test_sparse_programs_are_those_of_dense_matrices():
    program = random_program(definite=False)
    P = sp.csc_matrix(program.P.numpy())
    A = sp.csr_matrix(program.A.numpy())
    sparse = md.QP(P, program.q, A, program.l, program.u, cones=SIZES)
    x = normal(4, 7)
    torch.testing.assert_close(sparse.violations(x), program.violations(x))
    torch.testing.assert_close(sparse.variable_bounds(), program.variable_bounds())
    solution = md.solve(sparse, ADMM(), stop=md.gap(1e-4), iterations=20_000, check_every=100)
    assert set(solution.statuses) == {md.Status.CONVERGED}
    assert bool((solution.lower <= minima_of(program)[1] + 1e-7).all())


def test_infeasible_and_unbounded_cone_programs():
    """‖x‖ ≤ 1 does not meet x₀ + x₁ ≥ 2, but x₀ + x₁ ≥ 1. Along (1, 0, 0), ‖x₁, x₂‖ ≤ x₀ holds."""
    A = torch.tensor([[1.0, 1], [1, 0], [0, 1], [0, 0], [1, 0], [0, 1]], dtype=DOUBLE)
    lower = torch.tensor([[2.0, -2, -2, -1, 0, 0], [1, -2, -2, -1, 0, 0]], dtype=DOUBLE)
    upper = torch.tensor([math.inf, 2, 2] + 3 * [math.inf], dtype=DOUBLE)
    q = torch.zeros(2, 2, dtype=DOUBLE)
    program = md.QP(torch.eye(2, dtype=DOUBLE), q, A, lower, upper, cones=[3])
    solution = md.solve(program, ADMM(), stop=md.gap(1e-5), iterations=3000, check_every=50)
    assert solution.statuses == [md.Status.INFEASIBLE, md.Status.CONVERGED]
    for y in normal(50, 6):
        assert not is_infeasible(program, 1, y)
    eye = torch.eye(3, dtype=DOUBLE)
    costs = torch.tensor([[-2.0, 1.0, 0.0]], dtype=DOUBLE)
    free = md.QP(None, costs, eye, torch.zeros(3, dtype=DOUBLE), cones=[3])
    assert is_unbounded(free, 0, torch.tensor([1.0, -0.5, 0.0]))
    assert not is_unbounded(free, 0, torch.tensor([1.0, -1.5, 0.0]))
    assert not is_unbounded(free, 0, torch.tensor([-1.0, 0.0, 0.0]))
    rising = md.QP(None, -costs, eye, torch.zeros(3, dtype=DOUBLE), cones=[3])
    assert not is_unbounded(rising, 0, torch.tensor([1.0, -0.5, 0.0]))
    solution = md.solve(free, ADMM(), iterations=2000, check_every=50)
    assert solution.statuses == [md.Status.UNBOUNDED]


def test_residuals_are_those_of_the_optimality_conditions():
    """At the solution of a tight run all are small; at other points they are the definitions."""
    program = random_program()
    method = ADMM()
    solution = md.solve(program, method, stop=md.gap(1e-6), iterations=20_000)
    for name, values in method.residuals(program, solution.state).items():
        assert float(values.abs().max()) < 1e-3, name
    rough = md.solve(program, method, iterations=3, progress=False)
    found = method.residuals(program, rough.state)
    torch.testing.assert_close(found["primal"], program.violation(rough.x))
    y = rough.state.work.multipliers(rough.state)
    slope = rough.x @ program.P + program.q + y @ program.A
    torch.testing.assert_close(found["dual"], slope.abs().amax(-1))
    torch.testing.assert_close(
        found["gap"], program.value(rough.x) - program.bound_of_pair(rough.x, y)
    )
    assert bool((found["gap"] > 0).all())


def test_penalties_of_rows_and_cones_are_learned():
    program = random_program()
    count = program.reduced.cones.first + len(SIZES)
    method = ADMM(torch.ones(count, dtype=DOUBLE), polish=0)
    plain = ADMM(1.0, polish=0)
    points = {}
    for each in (method, plain):
        state = each.init(program.start(), program)
        for _ in range(5):
            state = each.step(program, state, Exact())
        points[each] = state.x
    torch.testing.assert_close(points[method], points[plain])
    (slope,) = torch.autograd.grad(program.value(points[method]).sum(), method.log_rho)
    assert bool(slope.isfinite().all())
    assert float(slope[-1].abs()) > 0
    run = md.solve(program, plain, iterations=5, progress=False)
    torch.testing.assert_close(run.x, points[plain])


def test_rivals_of_cone_programs_and_stored_ones():
    program = random_program()
    start = program.start()
    points = {}
    for rival in known_rivals():
        if rival.installed and (solve_to := rival.prepare(program, start)) is not None:
            points[rival.name] = solve_to(1e-9)
    assert set(points) == {"Clarabel", "SCS"}
    torch.testing.assert_close(points["SCS"], points["Clarabel"], atol=1e-5, rtol=0)
    copy = build(describe(program), program.state_dict())
    assert copy.cones == SIZES
    torch.testing.assert_close(copy.value(start), program.value(start))
    other = program.updated(q=program.q + 1)
    assert other.cones == SIZES


def test_bad_cones_are_refused():
    eye = torch.eye(3)
    q = torch.ones(3)
    with pytest.raises(ValueError, match="sum to at most the 3 rows"):
        md.QP(eye, q, eye, torch.zeros(3), cones=[4])
    with pytest.raises(ValueError, match="need finite l and u = ∞"):
        md.QP(eye, q, eye, cones=[3])
    with pytest.raises(ValueError, match="need finite l and u = ∞"):
        md.QP(eye, q, eye, torch.zeros(3), torch.ones(3), cones=[2])
    program = md.QP(eye, q, eye, torch.zeros(3), cones=[2])
    with pytest.raises(ValueError, match="the 2 inequalities and cones"):
        ADMM(torch.ones(3)).init(torch.zeros(1, 3), program)
