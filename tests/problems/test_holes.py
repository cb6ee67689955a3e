"""Dual points with small Dᵀu at missing pixels, and the bounds they prove."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
import torch

import mirrordescent as md
from mirrordescent.problems import hole_duals, tv_bounds
from mirrordescent.problems.differences import add_adjoint, differences, times
from mirrordescent.problems.hole_duals import reduce_divergence
from mirrordescent.problems.tv_bounds import adjoint_bound, dual_bound

VARIANTS = {
    "anisotropic": {},
    "isotropic": {"isotropic": True},
    "coupled": {"coupled": True},
    "both": {"isotropic": True, "coupled": True},
    "huber": {"isotropic": True, "huber": 0.1},
}
pytestmark = pytest.mark.usefixtures("every_level")

variants = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
SHAPE = (2, 2, 12, 10)


def random(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def block(rows, columns):
    mask = torch.ones(SHAPE[-2:], dtype=torch.bool)
    mask[rows, columns] = False
    return mask


MASKS = {
    "a fifth": random(*SHAPE[-2:], seed=1) > 0.2,
    "nine tenths": random(*SHAPE[-2:], seed=2) > 0.9,
    "a mask per channel": random(*SHAPE, seed=3) > 0.4,
    "a mask per image": random(2, 1, *SHAPE[-2:], seed=4) > 0.5,
    "a block": block(slice(3, 8), slice(2, 8)),
    "a block at the border": block(slice(0, 5), slice(6, None)),
    "whole rows": block(slice(4, 6), slice(None)),
    "all but a pixel": ~block(slice(5, 6), slice(5, 6)),
    "the whole border": ~block(slice(2, -2), slice(2, -2)),
}
masks = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def make(mask, variant=None, weight=None):
    y = random(*SHAPE, seed=7) + random(2, 2, 1, 1, seed=8)
    return md.TVInpainting(
        y, mask, torch.tensor([0.3, 0.8]).double() if weight is None else weight, **(variant or {})
    )


def in_holes(problem, u):
    return (1 - problem.mask) * add_adjoint(torch.zeros_like(problem.y), u)


def forms(u, problem):
    """Return the results with and without the kernel."""
    feasible = problem.groups.project(u, problem.kink)
    plain = hole_duals._reduce_divergence(
        feasible, problem.mask.expand(problem.y.shape), problem.groups, problem.kink
    )
    return reduce_divergence(u, problem.mask, problem.groups, problem.kink), plain


@variants
@masks
def test_closed_points_are_feasible_and_nearly_vanish_in_the_holes(variant, mask, compiled):
    problem = make(mask, variant)
    u = times(3 * problem.kink, differences(random(*SHAPE, seed=9) - 0.5))
    hidden = (1 - problem.mask).expand(SHAPE)
    before = in_holes(problem, problem.groups.project(u, problem.kink)).flatten(2).abs().sum(2)
    ours, plain = forms(u, problem)
    for name, k in (("vertical", -2), ("horizontal", -1)):
        torch.testing.assert_close(ours[name], plain[name])
        near = hidden.narrow(k, 0, hidden.shape[k] - 1) + hidden.narrow(k, 1, hidden.shape[k] - 1)
        if problem.groups.single:
            expected = u[name].clamp(
                -problem.kink.reshape(-1, 1, 1, 1), problem.kink.reshape(-1, 1, 1, 1)
            )
            torch.testing.assert_close(ours[name][near == 0], expected[near == 0])
    assert (problem.groups.largest(ours) <= problem.kink * (1 + 1e-12)).all()
    assert (in_holes(problem, ours).flatten(2).abs().sum(2) <= 0.03 * before + 1e-12).all()


def test_one_pixel_in_closed_form(compiled):
    """The four differences of a pixel share Dᵀu equally, unless they reach the bound."""
    problem = make(block(slice(4, 5), slice(4, 5)), weight=0.5)
    u = times(0.05, differences(random(*SHAPE, seed=9) - 0.5))
    excess = in_holes(problem, u)[..., 4, 4]
    assert (excess != 0).all()
    for found in forms(u, problem):
        change = {name: found[name] - u[name] for name in u}
        within = {"rtol": 2e-2, "atol": 1e-9}  # the iteration stops at 1 % of the initial error
        torch.testing.assert_close(change["vertical"][..., 3, 4], -excess / 4, **within)
        torch.testing.assert_close(change["vertical"][..., 4, 4], excess / 4, **within)
        torch.testing.assert_close(change["horizontal"][..., 4, 3], -excess / 4, **within)
        torch.testing.assert_close(change["horizontal"][..., 4, 4], excess / 4, **within)
        assert sum(int((part.abs() > 1e-12).sum()) for part in change.values()) == 4 * 2 * 2


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_depths_are_distances_on_a_chess_board(depth):
    mask = torch.ones(1, 1, 15, 17)
    mask[..., 3 : 2 + 2 * depth, 4 : 3 + 2 * depth] = 0
    assert float(hole_duals._depths(mask)) == depth


@variants
@masks
def test_bounds_in_one_pass_are_those_pixel_by_pixel(variant, mask, compiled, monkeypatch):
    problem = make(mask, variant)
    u = times(problem.kink, differences(random(*SHAPE, seed=9) - 0.5))
    w = torch.as_tensor(problem.kink).reshape(-1, 1, 1, 1) * (random(*SHAPE, seed=10) - 0.5)
    fast = dual_bound(problem.pixels, u), adjoint_bound(problem.pixels, w, torch.zeros_like(w))
    monkeypatch.setattr(tv_bounds, "_compiled", lambda *_: False)
    for ours, plain in zip(
        fast,
        (dual_bound(problem.pixels, u), adjoint_bound(problem.pixels, w, torch.zeros_like(w))),
        strict=True,
    ):
        torch.testing.assert_close(ours, plain, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@masks
def test_relative_errors_are_charged_as_if_they_were_given_pixel_by_pixel(mask, dtype):
    problem = make(mask).to(dtype)
    kink = problem.kink.reshape(-1, 1, 1, 1)
    w = kink * (6 * random(*SHAPE, seed=10).to(dtype) - 3)
    each = 1e-3 * (w.abs().double() + 4 * kink)
    by_number = adjoint_bound(problem.pixels, w, 1e-3)
    by_pixel = adjoint_bound(problem.pixels, w, each)
    torch.testing.assert_close(by_number, by_pixel, rtol=1e-5, atol=1e-9)
    assert bool((by_number <= by_pixel + 1e-12).all())
    wide = (problem.high > problem.low).flatten(1).any(1)
    exact = adjoint_bound(problem.pixels, w, torch.zeros_like(w))
    assert torch.equal(by_number < exact, wide)
    w[0, 0, 1, 1] = 4.01 * kink[0]  # which no feasible u has, if errors are small
    for error, feasible in ((1e-4, False), (1e-2, True)):
        each = error * (w.abs().double() + 4 * kink)
        for bound in (
            adjoint_bound(problem.pixels, w, error),
            adjoint_bound(problem.pixels, w, each),
        ):
            assert bool(bound[0].isfinite()) == feasible
            assert bool(bound[1:].isfinite().all())


def exact_dual_value(problem, u, sample):
    """min over the box of s·Σ m(x − y)² + ⟨u, Dx⟩, for feasible u, in rational numbers."""
    data = problem.pixels
    scale = Fraction(data.fidelity) / 2
    _, channels, height, width = data.y.shape
    total = Fraction(0)
    for channel, i, j in product(range(channels), range(height), range(width)):
        at = (sample, channel)
        vertical = u["vertical"][at]
        horizontal = u["horizontal"][at]
        w = Fraction(0)
        w += Fraction(vertical[i - 1, j].item()) if i > 0 else 0
        w -= Fraction(vertical[i, j].item()) if i + 1 < height else 0
        w += Fraction(horizontal[i, j - 1].item()) if j > 0 else 0
        w -= Fraction(horizontal[i, j].item()) if j + 1 < width else 0
        low = Fraction(data.low[at].item())
        high = Fraction(data.high[at].item())
        y = Fraction(data.y[(*at, i, j)].item())
        if data.mask is None or data.mask.expand_as(data.y)[(*at, i, j)] > 0:
            x = min(max(y - w / (2 * scale), low), high)
            total += scale * (x - y) ** 2 + w * x
        else:
            total += w * (low if w > 0 else high)
    return total


@pytest.mark.parametrize("kernel", [False, True], ids=["torch", "kernel"])
@pytest.mark.parametrize("mask", [None, MASKS["a mask per image"]], ids=["all", "half"])
@pytest.mark.parametrize("size", [0.01, 0.3, 30.0], ids="dual points of size {}".format)
def test_bounds_are_exact_up_to_rounding_and_never_above(size, mask, kernel, compiled, monkeypatch):
    """If dual points are large, minimisers over the box lie on both of its ends."""
    if not kernel:
        monkeypatch.setattr(tv_bounds, "_compiled", lambda *_: False)
    problem = make(mask, weight=2 * size)
    u = times(size, differences(2 * random(*SHAPE, seed=9) - 1))
    u = problem.groups.project(u, problem.kink)
    w = add_adjoint(torch.zeros_like(problem.y), u)
    error = torch.full_like(w, 1e-13 * size)
    bounds = {
        "dual": dual_bound(problem.pixels, u),
        "adjoint": adjoint_bound(problem.pixels, w, error),
    }
    for sample in range(len(problem.y)):
        exact = exact_dual_value(problem, u, sample)
        for name, bound in bounds.items():
            found = Fraction(bound[sample].item())
            assert found < exact, name
            assert exact - found < 1e-9 * (1 + size), name


@variants
@masks
def test_bounds_are_below_the_optimum(variant, mask):
    """Bounds of random dual points, and of PDHG iterates, which become nearly optimal."""
    problem = make(mask, variant)
    method = md.PDHG(0.3)
    end = md.solve(problem, method, iterations=800, check_every=400)
    for scale in (0.1, 1.0, 10.0):
        assert (
            problem.tight_bound(times(scale, differences(random(*SHAPE, seed=11))))
            <= end.best_value
        ).all()
    state = method.init(problem.start(fill=True), problem)
    for _ in range(20):
        state = method.step(problem, state, md.oracles.Exact())
        tight = problem.tight_bound(state.u)
        assert (problem.lower_bound(state.u) <= tight).all()
        assert (tight <= end.best_value).all()
    assert (problem.tight_bound(end.state.u) <= end.best_value * (1 + 1e-12)).all()
    assert (problem.tight_bound(end.state.u) >= 0.99 * end.best_value - 1e-6).all()


@masks
def test_single_precision_never_promises_too_much(mask):
    """The problem in single precision has its own optimum, with nearly optimal dual points."""
    y = make(mask).y.float()
    weight = torch.tensor([0.3, 0.8])
    single = md.TVInpainting(y, mask, weight)
    double = md.TVInpainting(y.double(), mask, weight.double())
    best = md.solve(double, md.PDHG(0.3), iterations=2000, check_every=1000)
    u = {name: part.float() for name, part in best.state.u.items()}
    for factor in (1.0, 1 + 1e-6, 2.0):
        for bound in (single.lower_bound(times(factor, u)), single.tight_bound(times(factor, u))):
            assert (bound.double() <= best.best_value).all()


def test_bounds_of_flat_images_are_exact():
    problem = md.TVInpainting(torch.full((1, 1, 6, 6), 0.3), random(6, 6) > 0.5)
    assert float(problem.tight_bound(differences(random(1, 1, 6, 6).float()))) == 0


def test_a_sample_does_not_depend_on_its_neighbours():
    problem = make(MASKS["a mask per image"], {"isotropic": True})
    u = differences(random(*SHAPE, seed=12))
    for i in range(2):
        alone = md.TVInpainting(
            problem.y[i : i + 1], problem.mask[i : i + 1], float(problem.weight[i]), isotropic=True
        )
        mine = {name: part[i : i + 1] for name, part in u.items()}
        torch.testing.assert_close(
            alone.tight_bound(mine), problem.tight_bound(u)[i : i + 1], rtol=1e-10, atol=0
        )


@pytest.mark.parametrize("missing", [0.2, 0.8])
def test_the_proven_gap_is_at_most_three_times_the_true_one(missing):
    """After 50 steps of PDHG, the plain bound leaves several times as large a gap."""
    line = torch.linspace(0, 2, 40, dtype=torch.float64)
    smooth = (line.sin()[:, None] + line / 2).expand(1, 1, 40, 40)
    mask = random(40, 40, seed=5) > missing
    problem = md.TVInpainting(smooth + 0.1 * random(1, 1, 40, 40), mask, 0.15)
    optimum = md.solve(problem, md.PDHG(0.3), iterations=2000, check_every=1000).best_value
    state = md.solve(problem, md.PDHG(0.3), problem.start(fill=True), iterations=50).state
    value = problem.value(state.x)
    assert value - problem.tight_bound(state.u) <= 3 * (value - optimum)
    assert value - dual_bound(problem.pixels, state.u) > 3 * (value - optimum)
