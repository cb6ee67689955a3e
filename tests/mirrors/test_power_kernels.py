"""The C kernel for directions of powers, against torch in double precision and in maps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mirrordescent import kernels, optim
from mirrordescent.execution.matrices import direction_function
from mirrordescent.mirrors import PNorm

pytestmark = pytest.mark.usefixtures("compiled", "every_level")
SIZES = [(96, 64), (7,), (3, 4, 5), (1,), (70_000,)]


def numbers(*shape, seed=0, dtype=torch.float64):
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def by_torch(x, exponent):
    raised = x.double().sign() * (x.double().abs() / x.double().abs().max()).pow(exponent)
    return raised / raised.square().mean().sqrt()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
@pytest.mark.parametrize("exponent", [0.01, 0.2, 0.5, 1.0, 2.0, 3.7])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e15])
def test_powers(exponent, scale, dtype, tolerance):
    xs = [(scale * numbers(*size, seed=i)).to(dtype) for i, size in enumerate(SIZES)]
    for x, found in zip(xs, kernels.powers(xs, exponent), strict=True):
        assert found.shape == x.shape
        torch.testing.assert_close(
            found.double(), by_torch(x, exponent), rtol=tolerance, atol=tolerance
        )


def test_zeros_nothing_and_what_is_not_finite():
    broken = torch.ones(40)
    infinite = torch.ones(40)
    broken[3] = torch.nan
    infinite[3] = torch.inf
    x = [torch.zeros(5), torch.ones(0), broken, infinite, torch.tensor([0.0, -2.0])]
    zeros, nothing, *nan, signs = kernels.powers(x, 0.3)
    assert torch.equal(zeros, x[0])
    assert nothing.shape == (0,)
    assert all(each.isnan().all() for each in nan)
    torch.testing.assert_close(signs, torch.tensor([0.0, -(2**0.5)]))


def test_entries_far_below_the_others():
    x = torch.tensor([1.0, 1e-30, 1e-44, -1e-30])
    (found,) = kernels.powers([x], 0.5)
    torch.testing.assert_close(
        found, torch.tensor([2.0, 2e-15, 0.0, -2e-15]), rtol=1e-4, atol=1e-21
    )


@pytest.mark.parametrize("size", [2.9e-39, 1e-40, 6e-45])
def test_numbers_that_are_not_normal(size):
    (found,) = kernels.powers([torch.full((5,), size)], 0.3)
    torch.testing.assert_close(found, torch.ones(5))


def test_results_out_of_range():
    x = torch.cat([torch.ones(999), torch.tensor([1000.0])])
    assert kernels.powers([x], 60.0)[0].isnan().all()  # as in torch, since ∞/∞ is


def test_momenta_that_die_out_leave_weights_as_they_are():
    model = nn.Linear(3, 2)
    optimiser = optim.Preconditioned(
        model.named_parameters(), mirror=PNorm(4.0), momentum=0.5, fused=True
    )
    model(torch.eye(3)).sum().backward()
    optimiser.step()
    for p in model.parameters():
        p.grad.zero_()
    for _ in range(200):
        optimiser.step()
    assert all(p.isfinite().all() for p in model.parameters())


def test_subclasses_with_a_power_of_their_own():
    class Sign(PNorm):
        def _to_primal(self, y):
            return y.sign()

    (found,) = direction_function(Sign(3.0), fused=True)([torch.tensor([1.0, -4.0])])
    torch.testing.assert_close(found, torch.tensor([1.0, -1.0]))


def test_any_number_of_threads():
    x = [numbers(300_000, dtype=torch.float32), numbers(9, dtype=torch.float32)]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = kernels.powers(x, 0.3)
        torch.set_num_threads(2)
        assert all(map(torch.equal, alone, kernels.powers(x, 0.3)))
    finally:
        torch.set_num_threads(before)


def test_maps_find_the_same_with_and_without_kernels(monkeypatch):
    mirror = PNorm(4.0)
    ys = [numbers(30, 7), numbers(7, 30).mT, numbers(3)]
    asked = []
    monkeypatch.setattr(
        kernels, "powers", lambda *given, own=kernels.powers: asked.append(1) or own(*given)
    )
    by_kernel = direction_function(mirror, fused=True)(ys)
    assert asked == [1]
    for ours, theirs in zip(by_kernel, direction_function(mirror, fused=False)(ys), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert asked == [1]


def test_derivatives_do_not_go_through_kernels():
    y = numbers(4, 5).requires_grad_()
    direction_function(PNorm(3.0), fused=True)([y])[0].sum().backward()
    assert y.grad is not None
    assert y.grad.isfinite().all()
