"""Splines and multipliers: against scipy, against one map per group, and to the last digit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, interpolate
from torch.func import functional_call

from mirrordescent.mirrors import Multipliers, Spline
from mirrordescent.mirrors.tied import Tied

GROUPS = {
    "one": torch.tensor(0),
    "columns": torch.tensor([[0, 1, 2]]),
    "rows": torch.tensor([[1], [0]]),
    "full": torch.tensor([[0, 1, 0], [2, 2, 3]]),
}
ties = pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS.keys())


def spline(groups, seed=0, knots=4, reach=1.5, **options):
    """A spline with slopes from 0.05 to 6."""
    mirror = Spline(groups, knots, reach, **options).double()
    with torch.no_grad():
        noise = torch.randn(mirror.raw_slopes.shape, generator=torch.Generator().manual_seed(seed))
        mirror.raw_slopes.add_(2 * noise)
    return mirror


def samples(seed=0, count=200, spread=1.0):
    return spread * torch.randn(
        count, 2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def oracle(mirror, group):
    """The same spline by scipy, which continues the outermost pieces by itself."""
    knots = np.linspace(-mirror.reach, mirror.reach, 2 * mirror.knots + 1)
    return interpolate.make_interp_spline(knots, mirror.values[group].detach().numpy(), k=1)


@pytest.mark.parametrize("knots", [1, 4, 20])
def test_values_slopes_and_areas_are_those_of_scipy(knots):
    mirror = spline(torch.tensor([0, 1]), knots=knots)
    x = (
        torch.linspace(-3, 3.001, 400, dtype=torch.float64)[:, None]
        .expand(-1, 2)
        .clone()
        .requires_grad_()
    )  # no knots
    y = mirror.to_dual(x)
    (slopes,) = torch.autograd.grad(y.sum(), x)
    for group in (0, 1):
        sigma = oracle(mirror, group)
        points = x[:, group].detach().numpy()
        np.testing.assert_allclose(y[:, group].detach(), sigma(points), rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(slopes[:, group], sigma.derivative()(points), rtol=1e-12)
        area = sigma.antiderivative()
        alone = Spline(torch.tensor(0), knots, mirror.reach).double()
        alone.raw_slopes.data.copy_(mirror.raw_slopes[group : group + 1])
        np.testing.assert_allclose(
            alone.potential(x[:, group : group + 1]).detach(), area(points) - area(0), atol=1e-13
        )


def test_the_potential_is_the_integral_of_the_map():
    mirror = spline(torch.tensor(0)).requires_grad_(False)
    edges = np.linspace(-mirror.reach, mirror.reach, 2 * mirror.knots + 1)
    for end in (-2.7, -1.5, -0.3, 0.2, 0.375, 1.9):
        between = [t for t in edges if min(0, end) < t < max(0, end)]
        area, _ = integrate.quad(
            lambda t: float(mirror.to_dual(torch.tensor([[t]], dtype=torch.float64))),
            0,
            end,
            points=between,
        )
        assert float(mirror.potential(torch.tensor([[end]], dtype=torch.float64))) == pytest.approx(
            area, rel=1e-10
        )


def test_the_inverse_is_scipys_spline_with_knots_and_values_exchanged():
    mirror = spline(torch.tensor(0), knots=20)
    y = torch.linspace(-5, 5, 501, dtype=torch.float64)[:, None]
    sigma = oracle(mirror, 0)
    inverse = interpolate.make_interp_spline(sigma(sigma.t[1:-1]), sigma.t[1:-1], k=1)
    np.testing.assert_allclose(
        mirror.to_primal(y)[:, 0].detach(), inverse(y[:, 0]), rtol=1e-12, atol=1e-13
    )


@ties
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_round_trip_to_rounding(groups, dtype):
    mirror = spline(groups, knots=20, reach=1.0).to(dtype).requires_grad_(False)
    knots = torch.linspace(-1, 1, 41, dtype=dtype)
    x = torch.cat(
        [
            samples().to(dtype),
            samples(1, spread=30.0).to(dtype),
            knots[:, None, None].expand(-1, 2, 3),
        ]
    )
    # Rounding in y is magnified by 1/slope, and rounding of the pieces' ends, at most 1 or their
    # value, comes on top.
    slope = float(mirror.slopes.min())
    size = x.abs() + 1 + float(mirror.values.abs().max()) / slope
    assert (
        (mirror.to_primal(mirror.to_dual(x)) - x).abs() <= 4 * torch.finfo(dtype).eps * size
    ).all()
    y = mirror.to_dual(x).detach()
    assert (
        (mirror.to_dual(mirror.to_primal(y)) - y).abs()
        <= 8 * torch.finfo(dtype).eps * (y.abs() + 10)
    ).all()


def test_small_numbers_keep_their_digits():
    mirror = spline(torch.tensor(0)).float()
    x = torch.tensor([[1e-20, -1e-20, 3e-30, 0.0]])
    torch.testing.assert_close(mirror.to_primal(mirror.to_dual(x)), x, rtol=3e-7, atol=0)
    middle = mirror.slopes[0, [mirror.knots, mirror.knots - 1]]
    torch.testing.assert_close(mirror.to_dual(x)[0, :2], x[0, :2] * middle, rtol=3e-7, atol=0)


@ties
@pytest.mark.parametrize("kind", [Spline, Multipliers])
def test_tied_entries_go_through_the_map_of_their_group(kind, groups):
    mirror = spline(groups) if kind is Spline else Multipliers(groups).double()
    (learned,) = mirror.parameters()
    with torch.no_grad():
        learned.add_(torch.randn(learned.shape, generator=torch.Generator().manual_seed(1)))
    x = samples()
    v = samples(1)
    by_entry = groups.expand(2, 3)
    for group in range(mirror.count):
        alone = spline(torch.tensor(0)) if kind is Spline else Multipliers(torch.tensor(0)).double()
        next(alone.parameters()).data.copy_(learned[group : group + 1])
        mine = by_entry == group
        for whole, one in (
            (mirror.to_dual(x), alone.to_dual(x[:, mine])),
            (mirror.to_primal(x), alone.to_primal(x[:, mine])),
            (mirror.step(x, v, 0.3), alone.step(x[:, mine], v[:, mine], 0.3)),
        ):
            torch.testing.assert_close(whole[:, mine], one, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kind", [Spline, Multipliers])
@pytest.mark.parametrize("what", ["to_dual", "to_primal", "potential", "step"])
def test_differentiable_twice_in_points_and_parameters(kind, what):
    groups = torch.tensor([0, 1, 0])
    mirror = (
        spline(groups, knots=2, reach=1.0) if kind is Spline else Multipliers(groups, 0.7).double()
    )
    (name, learned) = next(iter(mirror.named_parameters()))
    x = torch.tensor(
        [[-1.7, 0.21, 0.8], [0.3, -0.4, -0.6]], dtype=torch.float64, requires_grad=True
    )
    v = torch.full_like(x, 0.1, requires_grad=True)
    t = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    class Call(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mirror = mirror

        def forward(self, *arguments):
            return getattr(self.mirror, what)(*arguments)

    def function(learned, *arguments):
        return functional_call(Call(), {f"mirror.{name}": learned}, arguments)

    arguments = (learned.detach().clone().requires_grad_(), x, *((v, t) if what == "step" else ()))
    assert torch.autograd.gradcheck(function, arguments)
    assert torch.autograd.gradgradcheck(function, arguments)


def test_before_learning_the_map_is_a_multiple_of_the_identity():
    for slope in (1.0, 0.02, 50.0):
        mirror = Spline(torch.tensor(0), slope=slope).double()
        torch.testing.assert_close(
            mirror.to_dual(samples()), slope * samples(), rtol=1e-6, atol=1e-7 * slope
        )
        assert mirror.strong_convexity.alpha == pytest.approx(slope, rel=1e-6)


def test_what_is_no_number_passes_through():
    mirror = spline(torch.tensor(0))
    odd = torch.tensor(
        [[float("nan"), float("inf"), -float("inf"), 1e300, -1e300]], dtype=torch.float64
    )
    left = mirror.slopes[0, 0].detach()
    right = mirror.slopes[0, -1].detach()
    expected = torch.stack([odd[0, 0], odd[0, 1], odd[0, 2], right * 1e300, -left * 1e300])[None]
    torch.testing.assert_close(mirror.to_dual(odd).detach(), expected, equal_nan=True)
    back = torch.stack([odd[0, 0], odd[0, 1], odd[0, 2], 1e300 / right, -1e300 / left])[None]
    torch.testing.assert_close(mirror.to_primal(odd).detach(), back, equal_nan=True)


@ties
def test_memory_is_a_few_numbers_for_each_entry(groups):
    mirror = spline(groups, knots=20)
    x = samples(count=1000).requires_grad_()
    saved = {}

    def note(tensor):
        saved[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        mirror.step(x, x.detach(), 0.1)
    tables = 10 * mirror.raw_slopes.numel()
    assert (
        sum(saved.values()) <= 6 * x.numel() + tables
    )  # twice: the point, its interval, its slope


def test_slopes_stay_above_their_floor():
    mirror = Spline(torch.tensor([0, 1]), floor=0.01)
    with torch.no_grad():
        mirror.raw_slopes.fill_(-200.0)
    assert mirror.strong_convexity == (pytest.approx(0.01), 2.0)
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(mirror.to_primal(mirror.to_dual(x)), x)


def test_multipliers_scale_the_gradient():
    mirror = Multipliers(torch.tensor([0, 1, 0]), 0.5)
    with torch.no_grad():
        mirror.log_multiplier[1] = np.log(3.0)
    x = samples()[:, 0].float()
    v = samples(1)[:, 0].float()
    torch.testing.assert_close(mirror.step(x, v, 0.1), x - 0.1 * torch.tensor([0.5, 3.0, 0.5]) * v)
    torch.testing.assert_close(mirror.multipliers, torch.tensor([0.5, 3.0]))
    assert mirror.strong_convexity == (pytest.approx(1 / 3), 2.0)


def test_other_ties_for_the_same_map():
    two = torch.tensor([0, 1])
    three = torch.tensor([0, 1, 2])
    multipliers = Multipliers(two)
    multipliers.log_multiplier.data.copy_(torch.tensor([1.0, 4.0]).log())
    torch.testing.assert_close(
        multipliers.regrouped(torch.tensor([[1, 0]])).multipliers, torch.tensor([1.0, 4.0])
    )
    torch.testing.assert_close(multipliers.regrouped(three).multipliers, torch.full((3,), 2.0))
    mirror = spline(two, floor=0.01)
    torch.testing.assert_close(
        mirror.regrouped(two[None]).slopes, mirror.slopes, rtol=1e-12, atol=0
    )
    mean = mirror.slopes.mean(0, keepdim=True).expand(3, -1)
    again = mirror.regrouped(three)
    torch.testing.assert_close(again.slopes, mean, rtol=1e-12, atol=0)
    assert (again.knots, again.reach, again.floor) == (mirror.knots, mirror.reach, mirror.floor)
    assert again.raw_slopes.requires_grad


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tied(torch.tensor([0.0, 1.0])), "integers"),
        (lambda: Tied(torch.zeros(0, dtype=torch.long)), "integers"),
        (lambda: Tied(torch.tensor([0, 2])), "without gaps"),
        (lambda: Tied(torch.tensor([0, -1])), "without gaps"),
        (lambda: Multipliers(torch.tensor(0), 0.0), "initial > 0"),
        (lambda: Spline(torch.tensor(0), knots=0), "knots ≥ 1"),
        (lambda: Spline(torch.tensor(0), reach=-1.0), "reach > 0"),
        (lambda: Spline(torch.tensor(0), slope=1e-3), "floor < slope"),
        (lambda: Spline(torch.tensor(0), floor=0.0), "floor < slope"),
        (
            lambda: Multipliers(torch.arange(5)).to_dual(torch.ones(2, 1)),
            r"\(5,\), do not broadcast to .* \(1,\)",
        ),
        (
            lambda: Spline(torch.arange(5)).to_primal(torch.ones(5)),
            r"\(5,\), do not broadcast to .* \(\)",
        ),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
