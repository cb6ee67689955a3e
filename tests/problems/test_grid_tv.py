"""Total variation on signals, images and volumes: kernels, bounds, and independent references."""

from __future__ import annotations

import itertools

import pytest
import torch

import mirrordescent as md
from mirrordescent import kernels
from mirrordescent.execution import steps_for
from mirrordescent.problems import TV, Composite, Roughness, SquaredError
from mirrordescent.problems.differences import add_adjoint, differences
from mirrordescent.problems.grid_tv import GridTV

SHAPES = [
    (3, 2, 40),
    (2, 2, 9, 1),
    (2, 1, 5, 7),
    (2, 1, 3, 4, 5),
    (1, 2, 20, 11, 13),
    (2, 3, 1, 1, 6),
    (1, 2, 5, 1, 1),
    (1, 2, 5, 1, 4),
    (1, 1, 1, 1, 1),
]
VARIANTS = list(itertools.product((False, True), (False, True), (0.0, 0.2), (1.0, 1.7)))


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def grid_tv(shape, variant, dtype=torch.float64):
    isotropic, coupled, huber, _ = variant
    axes = len(shape) - 2
    return GridTV(
        random(*shape, dtype=dtype),
        torch.linspace(0.3, 1.0, shape[0], dtype=dtype),
        0.7,
        axis_weights=(1.0, 0.5, 2.0)[:axes],
        isotropic=isotropic,
        coupled=coupled,
        huber=huber,
    )


@pytest.mark.usefixtures("compiled", "every_level")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_agree_with_torch(shape, threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for i, variant in enumerate(VARIANTS):
        dtype = (torch.float32, torch.float64)[(i + len(shape)) % 2]
        tolerance = 2e-4 if dtype == torch.float32 else 1e-10
        problem = grid_tv(shape, variant, dtype)
        method = md.PDHG(0.7, variant[3])
        oracle = md.oracles.Default()
        run = steps_for(method, problem, oracle, None, True)
        state = method.init(random(*shape, seed=1, dtype=dtype), problem)
        fast = run(run(state, 3), 4)
        for _ in range(7):
            state = method.step(problem, state, oracle)
        assert fast.k == state.k
        torch.testing.assert_close(fast.x, state.x, rtol=tolerance, atol=tolerance)
        for name, block in state.u.items():
            torch.testing.assert_close(fast.u[name], block, rtol=tolerance, atol=tolerance)
        value, bound = problem.value(fast.x), problem.lower_bound(fast.u)
        with kernels.disabled():
            torch.testing.assert_close(problem.value(fast.x), value, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(problem.lower_bound(fast.u), bound, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS[::2], ids=str)
def test_an_image_is_a_grid_of_two_axes(variant):
    isotropic, coupled, huber, _ = variant
    y = random(2, 3, 6, 5)
    options = {"isotropic": isotropic, "coupled": coupled, "huber": huber}
    image = md.TVDenoising(y, 0.3, **options)
    grid = GridTV(y, 0.3, **options)
    x = random(2, 3, 6, 5, seed=1)
    torch.testing.assert_close(grid.value(x), image.value(x))
    torch.testing.assert_close(grid.grad(x), image.grad(x))
    u = grid.K(random(2, 3, 6, 5, seed=2))
    for name, block in image.K(random(2, 3, 6, 5, seed=2)).items():
        assert torch.equal(u[name], block)
    # The bound of an image is over a box around the minimisers, so it is not smaller.
    assert bool((image.lower_bound(u).clamp(min=0) >= grid.lower_bound(u) - 1e-12).all())


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_differences_and_their_adjoint(axes):
    weights = (1.0, 0.5, 2.0, 3.0)[:axes]
    shape = (2, 2, 4, 3, 5, 2)[: 2 + axes]
    x = random(*shape)
    d = differences(x, weights)
    u = {name: random(*block.shape, seed=3) for name, block in d.items()}
    left = sum((block * u[name]).sum() for name, block in d.items())
    right = (add_adjoint(torch.zeros_like(x), u, 1.0, weights) * x).sum()
    torch.testing.assert_close(left, right)
    expected = weights[0] * torch.diff(x, dim=2)
    torch.testing.assert_close(next(iter(d.values())), expected)


@pytest.mark.parametrize("term", [TV(0.3, axis_weights=(1, 0.5, 2)), Roughness(0.3)], ids=str)
def test_a_volume_with_a_mask_or_an_operator_has_bounds(term):
    """The bound is below f everywhere, and tight at the solution."""
    y = random(2, 1, 4, 3, 5)
    mask = random(4, 3, 5, seed=5) > -0.5
    problem = Composite(SquaredError(y, mask=mask), [term])
    solution = md.solve(problem, md.PDHG(1.0), iterations=3000, stop=md.gap(1e-6), progress=False)
    assert solution.statuses == [md.Status.CONVERGED] * 2
    other = md.solve(problem, md.CondatVu(1.0), iterations=500, progress=False).best_value
    assert bool((solution.lower <= other + 1e-9).all())


def test_volume_against_skimage():
    """Chambolle's method of scikit-image solves the isotropic problem without axis weights."""
    skimage = pytest.importorskip("skimage.restoration")
    y = torch.rand(1, 1, 8, 9, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    problem = GridTV(y, 0.2, isotropic=True)
    solution = md.solve(problem, md.PDHG(problem.ratio, 1.8), iterations=2000, stop=md.gap(1e-8))
    # skimage minimises ½‖x − y‖²/weight + TV
    reference = skimage.denoise_tv_chambolle(
        y[0, 0].numpy(), weight=0.1, eps=1e-12, max_num_iter=4000
    )
    value = problem.value(torch.from_numpy(reference)[None, None])
    assert float(solution.lower) <= float(value)
    assert float(value - solution.lower) < 1e-2 * float(solution.value)
    assert solution.statuses == [md.Status.CONVERGED]


def test_bounds_at_the_start_and_beyond_float32():
    """Bright data and tiny differences: a bound is below the value at the constant point."""
    for dtype in (torch.float32, torch.float64):
        y = (1e6 + random(2, 1, 50)).to(dtype)
        problem = GridTV(y, 0.5)
        constant = y.double().mean(-1, keepdim=True).expand_as(y).to(dtype)
        for size in (1e-3, 1.0, 1e3):
            u = problem.K(random(2, 1, 50, seed=4).to(dtype) * size)
            bound = problem.lower_bound(u).double()
            double = GridTV(y.double(), 0.5)
            assert bool((bound <= double.value(constant.double())).all())


def test_wrong_shapes_are_errors():
    with pytest.raises(ValueError, match=r"signals \(batch, channels, length\)"):
        GridTV(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="axis_weights must be 1 numbers"):
        GridTV(torch.zeros(1, 1, 4), axis_weights=(1.0, 2.0))
    with pytest.raises(ValueError, match="axis_weights must be positive"):
        GridTV(torch.zeros(1, 1, 4), axis_weights=(0.0,))
