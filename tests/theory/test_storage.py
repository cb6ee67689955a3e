"""What a bounded error of the inverse does: to primal storage, to acceleration, to dual storage."""

from __future__ import annotations

import pytest
import torch

from mirrordescent import AMD, ASMD, MD, SMD, Quadratic, solve
from mirrordescent.mirrors import Euclidean
from mirrordescent.theory import bounds, observe
from mirrordescent.theory.inverse_consistency import (
    UpdateErrors,
    dual_update_error,
    primal_update_error,
)

CURVATURE = torch.tensor([0.5, 1.0], dtype=torch.float64)
ERROR = torch.tensor([0.01, -0.02], dtype=torch.float64)


class Off(Euclidean):
    """∇M = I with ∇M*(y) = y + e: an inverse with a bounded error."""

    exact = False

    def _to_primal(self, y):
        return y + ERROR


@pytest.fixture
def problem():
    return Quadratic(CURVATURE, torch.tensor([[1.0, -1.0]], dtype=torch.float64))


def gap(problem, method, iterations):
    return float(solve(problem, method, iterations=iterations).value)


def test_primal_storage_stalls_acceleration_does_not_and_dual_storage_is_exact(problem):
    """MD stops where t∇f = e, at ½⟨e/t, A⁻¹e/t⟩ above the minimum.

    AMD weighs its gradients by k/r, so that ∇f ~ 1/k.
    """
    t = 0.5
    predicted = float(0.5 * (ERROR / t).square() @ (1 / CURVATURE))
    assert gap(problem, MD(Off(), t), 500) == pytest.approx(predicted, rel=1e-6)
    assert gap(problem, MD(Off(), t), 2000) == pytest.approx(predicted, rel=1e-6)

    accelerated = [
        gap(problem, AMD(Off(), t, storage="primal", returns="x_tilde"), k) for k in (500, 2000)
    ]
    assert accelerated[0] < 1e-3 * predicted
    assert accelerated[1] < accelerated[0] / 4

    assert gap(problem, SMD(Off(), t), 500) < 1e-25
    assert gap(problem, AMD(Off(), t), 2000) < 1e-10  # O(1/k²) with no error to wait for
    assert gap(problem, ASMD(Off(), t), 4000) < 1e-2 * predicted


def test_the_stall_is_of_the_size_that_theorem_2_allows(problem):
    """C = −⟨U, x − x*⟩ at the end is twice the stall of a quadratic: the bound is tight up to 2."""
    t = 0.5
    record = observe(problem, MD(Off(), t), minimiser=problem.centre, iterations=600).record
    torch.testing.assert_close(record["error"][-1], (ERROR / t).norm().reshape(1))
    stall = float(record["gap"][-1])
    constant = -float(record["error_pairing"][-1])
    assert constant == pytest.approx(2 * stall, rel=1e-6)
    bound = bounds.smd_realised_bound(record, alpha=1.0)
    assert (bounds.weighted_mean_gap(record) <= bound).all()
    strong = float(record["error"][-1].square() / (2 * CURVATURE.min()))
    assert stall <= strong <= 4 * stall


def test_theorem_1_bounds_acceleration_with_errors(problem):
    t = 0.5
    method = AMD(Off(), t, storage="primal", returns="x_tilde")
    record = observe(
        problem, method, minimiser=problem.centre, iterations=500, exact_iterates=True
    ).record
    assert (bounds.amd_slack(record, 3.0) >= -1e-12).all()
    first = bounds.amd_first_energy(
        record["divergence"][0], record["gap"][0], t, 3.0, record["error"][0]
    )
    largest = record.running_maximum("error")
    assert float(largest[-1]) > 0
    assert (record["gap"][1:] <= bounds.amd_bound(first, record.steps, 3.0, largest)).all()
    torch.testing.assert_close(
        record["distance"], torch.full_like(record["distance"], float(ERROR.norm()))
    )


def test_the_error_terms_of_lmd(problem):
    """Against their definitions, with the exact iterate in closed form: x̂ = x − t∇f(x)."""
    t = 0.5
    record = observe(
        problem, MD(Off(), t), minimiser=problem.centre, iterations=3, exact_iterates=True
    ).record
    x = torch.zeros(1, 2, dtype=torch.float64)
    for k in range(3):
        x_hat = x - t * problem.grad(x)
        x = x_hat + ERROR
        dual = ((x_hat - x) * (problem.centre - x)).sum(1)
        primal = (problem.grad(x_hat) * (x - x_hat)).sum(1)
        torch.testing.assert_close(record["dual_error"][k], dual)
        torch.testing.assert_close(record["primal_error"][k], primal, rtol=1e-6, atol=1e-12)


class Warped(Euclidean):
    """∇M = I with ∇M*(y) = y + 0.1 sin y, whose error depends on where one is."""

    exact = False

    def _to_primal(self, y):
        return y + 0.1 * y.sin()


def test_update_errors_against_the_exact_step(problem):
    """∇M(x⁺) − ∇M(x̂⁺) for both updates, from its definition: x̂⁺ is the exact step from x."""
    mirror = Warped()
    t = 0.3
    y = torch.tensor([[0.4, 2.0]], dtype=torch.float64)
    x = mirror.to_primal(y)
    g = problem.grad(x)
    exact = x - t * g
    torch.testing.assert_close(
        primal_update_error(mirror, x, g, t), mirror.to_primal(x - t * g) - exact
    )
    torch.testing.assert_close(
        dual_update_error(mirror, y, g, t), mirror.to_primal(y - t * g) - exact
    )


def test_update_errors_of_dual_storage_telescope(problem):
    updates = UpdateErrors(every=1)
    solve(problem, SMD(Warped(), 0.1), iterations=60, callbacks=[updates], check_every=1)
    series = updates.series
    assert updates.iterations == list(range(60))
    # Steps shrink, and with them the error that dual storage makes; the other one stays and adds
    # up.
    assert series["dual_update"][-1] < 0.05 * series["dual_update"][0]
    assert series["primal_update"][-1] > 0.5 * series["primal_update"][0]
    assert series["dual_total"][-1] < 0.3
    assert series["primal_total"][-1] > 10 * series["dual_total"][-1]
    torch.testing.assert_close(series["dual"][0], torch.zeros(1, dtype=torch.float64))
    few = UpdateErrors(every=6)
    solve(problem, SMD(Warped(), 0.1), iterations=60, callbacks=[few], check_every=1)
    assert few.iterations == list(range(0, 60, 6))
    torch.testing.assert_close(few.series["primal"], series["primal"][::6])
    torch.testing.assert_close(
        few.series["primal_total"][-1], series["primal_total"][-1], rtol=0.1, atol=0
    )


def test_update_errors_want_every_step_of_a_dual_stored_run(problem):
    with pytest.raises(ValueError, match="check_every=1"):
        solve(problem, SMD(Warped(), 0.1), iterations=60, callbacks=[UpdateErrors()])
    with pytest.raises(TypeError, match="SMD, not of MD"):
        solve(problem, MD(Warped(), 0.1), iterations=3, callbacks=[UpdateErrors()], check_every=1)
