"""Bounds hold for the data as given: no rounding of data, weights or shapes goes unnoticed."""

import math
import tempfile
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

import mirrordescent as md
from mirrordescent.methods import PDHG, TautString
from mirrordescent.methods.primal_dual import PDHGState
from mirrordescent.problems.grid_tv import WindowTV
from mirrordescent.problems.program_exclusions import is_infeasible, is_unbounded
from mirrordescent.references import Certificate, Witness
from mirrordescent.references.verification import recompute
from mirrordescent.restore import denoise_grids, denoise_large

DOUBLE = torch.float64


def test_redundant_equalities_are_charged_for_rounding():
    """Ax = b and −Ax = −b: charges of both rows must add up, not cancel."""
    B = torch.tensor([[1.0, 1.0], [1.0, 1 - 1e-5]], dtype=DOUBLE)
    x = torch.tensor([1001730.2488850311, 1358831.0068034823], dtype=DOUBLE)
    e = B @ x
    q = torch.tensor([6.64813323038966e-18, -6.6481664711389144e-18], dtype=DOUBLE)
    both = torch.cat([e, -e])
    program = md.QP(None, q[None], torch.cat([B, -B]), both, both, penalty=1.0)
    bound = program.bound_of_pair(x[None], torch.zeros(1, 4, dtype=DOUBLE))
    # The only feasible point, by Cramer's rule.
    (a, b), (c, d) = [[Fraction(each) for each in row] for row in B.tolist()]
    r, s = [Fraction(each) for each in e.tolist()]
    point = ((r * d - b * s) / (a * d - b * c), (a * s - c * r) / (a * d - b * c))
    optimum = sum(Fraction(cost) * each for cost, each in zip(q.tolist(), point, strict=True))
    assert Fraction(float(bound)) <= optimum


def test_programs_without_a_bound_have_none():
    """Infinite and undefined bounds are −∞, and no finite number."""
    one = torch.ones(1, 1, dtype=DOUBLE)
    program = md.QP(None, one, one, u=one[0])  # x is unbounded
    for y in (0.0, 1.0, math.inf, math.nan):
        bound = program.bound_of_pair(0 * one, y * one)
        assert float(bound) == -math.inf


def two_point_minimum(scale, weight, difference):
    """Return min s(‖x − y‖² + λ|x₂ − x₁|) for y = (0, d): s(λd − λ²/2), or sd²/2 if λ ≥ d."""
    s, weight, d = (Fraction(float(each)) for each in (scale, weight, difference))
    return s * d * d / 2 if weight >= d else s * (weight * d - weight * weight / 2)


@pytest.mark.parametrize("images", [False, True])
def test_products_of_weights_and_scales_are_charged_for_rounding(images):
    generator = torch.Generator().manual_seed(3)
    for _ in range(40):
        numbers = 0.1 + 5 * torch.rand(3, generator=generator, dtype=DOUBLE)
        scale, weight, difference = numbers.tolist()
        tensor = torch.tensor([weight])
        y = torch.tensor([[[0.0, difference]]])
        if images:
            problem = md.TVDenoising(y[None], weight=tensor, scale=scale)
            solution = md.solve(problem, md.DualFISTA(), iterations=60, progress=False)
        else:
            problem = md.GridTV(y, weight=tensor, scale=scale)
            solution = md.solve(problem, TautString(), iterations=1, progress=False)
        minimum = two_point_minimum(scale, tensor[0], y[..., 1])
        assert Fraction(float(solution.lower)) <= minimum
        assert float(solution.lower) >= float(minimum) * (1 - 1e-5)


def test_kernels_refuse_other_shapes_and_types():
    problem = md.GridTV(torch.rand(1, 1, 1000), 0.5)
    run = md.solve(problem, PDHG(problem.ratio), iterations=5, progress=False)
    precise = md.GridTV(problem.y.double(), 0.5)
    state = PDHGState(0, run.x.double(), run.state.u)
    with pytest.raises(ValueError, match="must be differences of points"):
        md.solve(precise, PDHG(precise.ratio), state=state, iterations=5, progress=False)
    state = PDHGState(0, run.x, {"horizontal": torch.zeros(1, 1, 5)})
    with pytest.raises((ValueError, RuntimeError), match="must"):
        md.solve(problem, PDHG(problem.ratio), state=state, iterations=5, progress=False)
    several = torch.rand(3, 1, 1000)
    expected = [float(problem.value(x[None])) for x in several]
    torch.testing.assert_close(problem.value(several), torch.tensor(expected))
    with pytest.raises(RuntimeError):
        problem.value(torch.ones(1, 1, 10))
    with pytest.raises(RuntimeError):
        problem.lower_bound({"horizontal": torch.zeros(1, 1, 3)})


def test_tiny_scales_do_not_underflow():
    """min s((x₁)² + (x₂ − 1)² + ½|x₂ − x₁|) = s(½ − ⅛)."""
    for scale in (1e-200, 1e-100, 1.0, 1e100):
        problem = md.GridTV(torch.tensor([[[0.0, 1.0]]], dtype=DOUBLE), 0.5, scale)
        bound = problem.lower_bound(md.solve(problem, TautString(), iterations=1).state.u)
        assert float(bound) <= 0.375 * scale
        assert float(bound) >= 0.374 * scale


def test_large_arrays_are_solved_as_they_are(tmp_path):
    """In single precision the step of .2 would become one of 8, or none."""
    y = np.full((40, 40), 1e8 + 3.9)
    y[:, 20:] = 1e8 + 4.1
    options = {"weight": 0.1, "memory": 10**7, "progress": False}
    found = denoise_large(y, np.empty_like(y), tmp_path / "a", **options)
    at_data = 0.5 * 0.1 * np.abs(np.diff(y, axis=1)).sum()
    assert 0 < found.lower <= at_data
    whole = np.full((40, 40), 2**25 + 1, np.int32)
    whole[:, 20:] = 2**25 + 3
    found = denoise_large(whole, np.empty_like(whole), tmp_path / "b", **options)
    assert 0 < found.lower <= 0.5 * 0.1 * 40 * 2
    with pytest.raises(ValueError, match="cannot hold"):
        denoise_large(y, y.copy(), tmp_path / "c", dtype=torch.float32, **options)
    huge = np.full((40, 40), 2**60 + 1)
    with pytest.raises(ValueError, match="cannot hold"):
        denoise_large(huge, huge.copy(), tmp_path / "d", **options)
    numbers = np.array([[2**25 + 1] * 5 + [2**25 + 3] * 5])
    assert denoise_grids(numbers, (0, 1), weight=1e-3).lower[0] <= 0.5 * 1e-3 * 2


def test_the_array_itself_is_no_output(tmp_path):
    options = {"weight": 0.1, "memory": 10**7, "progress": False}
    y = np.random.default_rng(0).normal(size=(40, 40))
    for out in (y, y[:]):
        with pytest.raises(ValueError, match="must not be the array itself"):
            denoise_large(y, out, tmp_path, **options)
    path = tmp_path / "y.npy"
    np.save(path, y)
    maps = [np.load(path, mmap_mode="r+") for _ in range(2)]
    with pytest.raises(ValueError, match="must not be the array itself"):
        denoise_large(*maps, tmp_path, **options)


def test_a_journal_belongs_to_its_data(tmp_path):
    random = np.random.default_rng(0)
    options = {"weight": 0.3, "memory": 10**7, "progress": False}
    first = random.normal(size=(40, 40))
    denoise_large(first, np.empty_like(first), tmp_path, **options)
    other = random.normal(size=(40, 40))
    again = denoise_large(other, np.empty_like(other), tmp_path, **options)
    with tempfile.TemporaryDirectory() as folder:
        fresh = denoise_large(other, np.empty_like(other), folder, **options)
    assert again == fresh
    for path in tmp_path.glob("dual-*.npy"):
        path.unlink()
    assert denoise_large(other, np.empty_like(other), tmp_path, **options) == fresh


def test_windows_are_not_verified_as_whole_grids():
    y = torch.tensor([[[[0.0, 0.0], [3.0, 0.0]]]], dtype=DOUBLE)
    problem = WindowTV(y, 1.0, axis_weights=[1, 1], held=[True, False])
    witness = Witness(
        "dual point",
        {
            "term 1 vertical": torch.tensor([[[[0.5, 0.0]]]], dtype=DOUBLE),
            "term 1 horizontal": torch.tensor([[[[0.0], [-0.5]]]], dtype=DOUBLE),
        },
    )
    assert recompute(witness, problem) is None
    number = torch.tensor([2.2], dtype=DOUBLE)
    certificate = Certificate(y, number, number, number, witness=witness)
    assert not certificate.verify(problem).confirmed


def test_tiny_residuals_are_residuals():
    """v = 1e-163 proves nothing about min ½‖x − y‖² = 0, though its square underflows."""
    problem = md.Composite(md.problems.SquaredError(torch.full((1, 1, 2), -1e12, dtype=DOUBLE)), [])
    witness = Witness(
        "dual point",
        {
            "x": torch.zeros(1, 1, 2, dtype=DOUBLE),
            "data": torch.full((1, 1, 2), 1e-163, dtype=DOUBLE),
        },
    )
    bound = recompute(witness, problem)
    assert bound is None or float(bound) <= 0


def test_extreme_multipliers_prove_nothing():
    program = md.QP(None, torch.ones(1, 1), torch.ones(4, 1), l=torch.zeros(4), cones=[3])
    for number in (math.nan, math.inf, -math.inf, 1e200):
        multipliers = torch.full((4,), number, dtype=DOUBLE)
        assert not is_infeasible(program, 0, multipliers)
        assert not is_unbounded(program, 0, multipliers[:1])


def test_a_stated_radius_makes_no_program_infeasible():
    program = md.QP(None, torch.ones(1, 1), torch.ones(1, 1), l=torch.tensor([5.0]), radius=1)
    assert not is_infeasible(program, 0, torch.tensor([-1.0], dtype=DOUBLE))


@pytest.mark.parametrize("huge", [1e300, 1e150, 1e20])
def test_huge_entries_of_a_witness_are_scaled_exactly_enough(huge):
    """A tiny weight divided by a huge number is not a normal number, and has few digits.

    For y = (0, 0, d) with d ≥ 3λ, trend filtering with s = ½ has the minimum ½(λd − 3λ²/2).
    """
    for weight in torch.linspace(1e-15, 2e-15, 20, dtype=DOUBLE).tolist():
        y = torch.tensor([[[0.0, 0.0, 10 * weight]]], dtype=DOUBLE)
        problem = md.TrendFiltering(y, weight=weight)
        blocks = {"x": y, "data": torch.zeros_like(y)}
        blocks["term 1 horizontal"] = torch.full((1, 1, 1), huge, dtype=DOUBLE)
        bound = recompute(Witness("dual point", blocks), problem)
        difference = Fraction(float(y[..., 2]))
        minimum = (Fraction(weight) * difference - Fraction(3, 2) * Fraction(weight) ** 2) / 2
        assert Fraction(float(bound)) <= minimum
        if huge < 1e200:  # otherwise the quotient is infinite, and the dual point 0
            assert float(bound) >= 0.99 * float(minimum)


def test_certificates_of_diverged_runs_are_confirmed():
    """A point that is infinite in single precision contradicts no bound."""
    program = md.QP(None, torch.ones(1, 1), torch.ones(1, 1), torch.zeros(1), torch.ones(1))
    found = md.certify(program, 1e-3, cache=False)
    assert replace(found, x=torch.full((1, 1), 1e200, dtype=DOUBLE)).verify(program).confirmed
