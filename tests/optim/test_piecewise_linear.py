"""Kernels evaluate splines exactly: against NumPy, at and beyond the ends of intervals."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
import torch
from torch import nn

from mirrordescent import kernels, optim
from mirrordescent.execution.spline_tables import MIN_LEAVES, spline_table
from mirrordescent.mirrors import Spline

pytestmark = pytest.mark.usefixtures("compiled")
FLOOR = 1e-4


def random(knots):
    return np.exp(np.random.default_rng(knots).normal(size=2 * knots))


SLOPES = {
    "equal": lambda knots: np.ones(2 * knots),
    "random": random,
    "small near 0": lambda knots: np.where(
        np.abs(np.arange(2 * knots) - knots + 0.5) < 0.4 * knots, 1e-3, 20.0
    ),
    "large near 0": lambda knots: np.where(
        np.abs(np.arange(2 * knots) - knots + 0.5) < 0.4 * knots, 50.0, 2e-4
    ),
    "in turn": lambda knots: np.where(np.arange(2 * knots) % 2, 1e-3, 1e3),
    "one wall": lambda knots: np.where(np.arange(2 * knots) < 2 * knots - 2, 2e-4, 1e4),
    "over many scales": lambda knots: np.geomspace(2e-4, 1e4, 2 * knots),
}
kinds = pytest.mark.parametrize("kind", SLOPES)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])


def shape(spline, slopes):
    """Give a spline its slopes."""
    above = torch.as_tensor(slopes).double() - FLOOR
    with torch.no_grad():
        spline.raw_slopes.copy_((above + (-(-above).expm1()).log())[None])


def spline_with(kind, knots, dtype):
    spline = Spline(torch.tensor(0), knots=knots, reach=0.8, floor=FLOOR).to(dtype)
    shape(spline, SLOPES[kind](knots))
    return spline


def pieces(spline):
    """Return the knots, the values there and the slopes in between, as the spline has them."""
    t = torch.arange(-spline.knots, spline.knots + 1, dtype=spline.slopes.dtype) * (
        spline.reach / spline.knots
    )
    return [
        each.detach().numpy().astype(np.longdouble)
        for each in (t, spline.values[0], spline.slopes[0])
    ]


def joined(tensors):
    return torch.cat([tensor.detach() for tensor in tensors]).numpy().astype(np.longdouble)


def evaluated(at, x, y, slopes):
    """Evaluate the piecewise linear function through (x, y), from the ends nearer to 0."""
    piece = np.searchsorted(x[1:-1], at, side="right")
    end = piece + (piece < len(slopes) // 2)
    return y[end] + slopes[piece] * (at - x[end])


def steepest(y, values, slopes):
    """The largest slope of the inverse near y; a rounded end may belong to either interval."""
    at = np.searchsorted(values[1:-1], y, side="right")
    around = np.clip(at + np.array([[-1], [0], [1]]), 0, len(slopes) - 1)
    return 1 / slopes[around].min(0)


def numbers(values, dtype):
    """Ends, numbers near, between and far from them, tiny ones, infinities and NaN, shuffled."""
    kind = np.float32 if dtype == torch.float32 else np.float64
    ends = values.astype(kind)
    next_to = [np.nextafter(ends, kind(side)) for side in (-np.inf, np.inf)]
    special = np.array([0.0, -0.0, 1e-30, -1e-30, 1e30, -1e30, np.inf, -np.inf, np.nan])
    drawn = np.random.default_rng(0).uniform(*(1.5 * values[[0, -1]].astype(float)), size=1501)
    near_0 = np.random.default_rng(1).normal(size=1000) * values[len(values) // 2 + 1].astype(float)
    every = np.concatenate(
        [ends, *next_to, (ends[1:] + ends[:-1]) / 2, special, drawn, near_0]
    ).astype(kind)
    return torch.as_tensor(np.random.default_rng(2).permutation(every))


def assert_close(ours, expected, size, dtype):
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(ours[~finite], expected[~finite])
    info = torch.finfo(dtype)
    allowed = 16 * info.eps * (np.abs(expected) + size) + info.smallest_normal
    assert np.all(np.abs(ours - expected)[finite] <= allowed[finite])


@dtypes
@kinds
@pytest.mark.parametrize("knots", [1, 2, 20, 700])
def test_every_number_takes_its_line(kind, knots, dtype):
    """With steps of 0 and λ = 1, the accelerated kernel returns ∇ψ*(z)."""
    spline = spline_with(kind, knots, dtype)
    (t, values, slopes) = pieces(spline)
    table = spline_table(spline.linear_pieces())
    y = numbers(values, dtype)
    z = [part.clone() for part in y.split([1, 2, 3, 5, 255, len(y) - 266])]
    x, g = ([torch.zeros_like(part) for part in z] for _ in range(2))
    lists = {
        name: array("Q", [part.data_ptr() for part in parts])
        for name, parts in {"x": x, "z": z, "g": g}.items()
    }
    nowhere = array("Q", [0] * len(z))
    kernels.KernelFunction("amd_spline", dtype)(
        count=len(z),
        sizes=array("l", [part.numel() for part in z]),
        tables=array("Q", [table.data_ptr()] * len(z)),
        leaves=(table.numel() // 2 - 4) // 5,
        far_step=0.0,
        near_step=0.0,
        mixing=1.0,
        copies=nowhere,
        sums=nowhere,
        moved=array("i", [0] * len(z)),
        **lists,
    )
    at = joined([y])
    with np.errstate(invalid="ignore"):
        expected = evaluated(at, values, t, 1 / slopes)
        steep = steepest(at, values, slopes)
        assert_close(joined(x), expected, np.abs(at) * steep, dtype)


@dtypes
@kinds
@pytest.mark.parametrize("knots", [1, 20])
def test_steps_of_mirror_descent(kind, knots, dtype):
    """x ← ∇ψ*(∇ψ(x) − t·g), before and after a change of the map, on short and long tensors."""
    spline = spline_with("equal", knots, dtype)
    x = numbers(pieces(spline)[0], dtype)
    parts = [nn.Parameter(part.clone()) for part in x.split([1, 2, 3, 5, 255, len(x) - 266])]
    optimiser = optim.MD(parts, lr=0.3, mirror=spline, fused=True)
    for change in (lambda: None, lambda: shape(spline, SLOPES[kind](knots))):
        change()
        t, values, slopes = pieces(spline)
        for k, part in enumerate(parts):
            generator = torch.Generator().manual_seed(k)
            part.grad = torch.randn(part.shape, generator=generator, dtype=dtype)
        before = joined(parts)
        g = joined([part.grad for part in parts])
        optimiser.step()
        with np.errstate(invalid="ignore"):
            dual = evaluated(before, t, values, slopes)
            expected = evaluated(dual - 0.3 * g, values, t, 1 / slopes)
            size = (np.abs(dual) + np.abs(0.3 * g)) * steepest(dual - 0.3 * g, values, slopes)
            assert_close(joined(parts), expected, size, dtype)


def test_cells_have_one_end_where_that_is_possible():
    """Then one comparison finds the piece. Otherwise a cell has a tree of ends."""
    equal = spline_with("equal", 20, torch.float64)
    small = spline_with("small near 0", 20, torch.float64)
    assert spline_table(equal.linear_pieces())[2] == MIN_LEAVES
    assert spline_table(small.linear_pieces())[2] < MIN_LEAVES
