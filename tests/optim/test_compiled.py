"""C kernels take the same steps as the methods."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mirrordescent import kernels, optim
from mirrordescent.execution.changes import LARGE, PART
from mirrordescent.kernels import KernelsUnavailable
from mirrordescent.mirrors import Diagonal, Euclidean, Layerwise, Multipliers, Spline
from mirrordescent.schedules import Reciprocal

sys.path.insert(0, str(Path(__file__).parent))
from steps import choices

pytestmark = pytest.mark.usefixtures("compiled", "every_level")


def learned_spline(seed, knots=20):
    spline = Spline(torch.tensor(0), knots=knots)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        spline.raw_slopes.add_(torch.randn(spline.raw_slopes.shape, generator=generator))
    return spline


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    shapes = [(70, 300), (5,), (4, 3, 3, 3), (20_000,), (7, 11)]
    return [
        nn.Parameter(0.7 * torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes
    ]


MAPS = {
    "euclidean": lambda: Euclidean(),
    "one multiplier": lambda: Layerwise(
        {f"p{i}": Multipliers(torch.tensor(0), 0.3 + 0.2 * i) for i in range(5)}
    ),
    "multipliers of columns": lambda: Layerwise(
        {
            "p0": Multipliers(torch.arange(300)[None] % 7, 0.5),
            "p1": Diagonal(torch.linspace(0.5, 2, 5)),
            "p2": Multipliers(torch.arange(27).reshape(1, 3, 3, 3), 2.0),
            "p3": Multipliers(torch.tensor(0), 0.1),
            "p4": Multipliers(torch.arange(7)[:, None], 0.4),  # of rows: no kernel, so foreach
        }
    ),
    "splines": lambda: Layerwise(
        {f"p{i}": learned_spline(i, knots=20 if i else 3) for i in range(5)}
    ),
}
OPTIMISERS = {
    "MD": lambda named, **options: optim.MD(named, lr=0.1, **options),
    "SMD": lambda named, **options: optim.SMD(named, lr=0.1, t=Reciprocal(1.0), **options),
    "AMD": lambda named, **options: optim.AMD(named, lr=0.05, gamma=0.7, **options),
    "AMD mirror": lambda named, **options: optim.AMD(
        named, lr=0.05, correction="mirror", **options
    ),
    "ASMD": lambda named, **options: optim.ASMD(named, lr=0.05, **options),
}


def run(make, mirror, dtype, fused, steps=6):
    ours = parameters(dtype)
    optimiser = make([(f"p{i}", p) for i, p in enumerate(ours)], mirror=mirror, fused=fused)
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        for p in ours:
            p.grad = torch.randn(p.shape, generator=generator, dtype=dtype)
        optimiser.step()
    return ours, optimiser


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("geometry", MAPS)
@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_same_steps(name, geometry, dtype):
    mirror = MAPS[geometry]().to(dtype)
    if name == "ASMD" or (name, geometry) == ("AMD mirror", "splines"):
        with pytest.raises(ValueError, match="no parameter can be stepped by a kernel"):
            run(OPTIMISERS[name], mirror, dtype, fused=True)
        return
    fused, optimiser = run(OPTIMISERS[name], mirror, dtype, fused=True)
    plain, reference = run(OPTIMISERS[name], copy.deepcopy(mirror), dtype, fused=False)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    for a, b in zip(fused, plain, strict=True):
        assert float((a - b).detach().abs().max()) <= tolerance * float(b.detach().abs().max())
    by_rows = geometry == "multipliers of columns"
    assert [choice.kernel is not None for choice in choices(optimiser)] == [True] * 4 + [
        not by_rows
    ]
    assert not any(choice.kernel for choice in choices(reference))


def test_by_default_where_they_are_compiled(monkeypatch):
    named = [("p", nn.Parameter(torch.ones(3)))]
    for options in ({}, {"foreach": None}, {"fused": True}, {"fused": True, "foreach": False}):
        assert choices(optim.AMD(named, **options))[0].kernel is not None
    for options in (
        {"foreach": True},
        {"foreach": False},
        {"fused": False},
        {"dual_dtype": torch.float64},
    ):
        assert choices(optim.AMD(named, **options))[0].kernel is None
    monkeypatch.setattr(kernels, "available", lambda: False)
    assert choices(optim.AMD(named))[0].kernel is None
    assert choices(optim.AMD(named, fused=True))[0].kernel is not None


@pytest.mark.parametrize("fused", [False, True])
def test_graphs_know_that_parameters_have_moved(fused):
    p = nn.Parameter(torch.ones(3))
    optimiser = optim.AMD([p], lr=0.1, fused=fused)
    loss = p.square().sum()
    loss.backward(retain_graph=True)
    optimiser.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_map_learned_by_kernels_is_read_anew():
    mirror = Diagonal(nn.Parameter(torch.ones(3)))
    p = nn.Parameter(torch.zeros(3))
    inner = optim.MD([p], lr=1.0, mirror=mirror, fused=True)
    outer = optim.MD([mirror.d], lr=1.0, fused=True)
    for expected in (-1.0, -1.5):
        p.grad = torch.ones(3)
        mirror.d.grad = -torch.ones(3)
        inner.step()
        outer.step()
        torch.testing.assert_close(p.detach(), torch.full((3,), expected))


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has gradients of one type only"
)
@pytest.mark.parametrize("name", ["SMD", "AMD"])
@pytest.mark.parametrize(
    "mirror", [None, Diagonal(2.0), Spline(torch.tensor(0))], ids=lambda m: type(m).__name__
)
def test_gradients_that_kernels_cannot_read_are_left_to_others(name, mirror):
    """Gradients of another type, which torch allows on request, or that are not contiguous.

    All gradients, some of them, or the gradients of some steps.
    """

    def end(fused, prepare):
        generator = torch.Generator().manual_seed(0)
        params = [nn.Parameter(torch.randn(30, 20, generator=generator)) for _ in range(3)]
        optimiser = getattr(optim, name)(params, lr=0.1, mirror=mirror, fused=fused)
        for k in range(6):
            for i, p in enumerate(params):
                p.grad_dtype = None
                g = torch.randn(30, 20, generator=generator).bfloat16()
                p.grad = prepare(g, i, k)
            optimiser.step()
        return torch.stack([p.detach() for p in params])

    expected = end(False, lambda g, i, k: g.float())
    for prepare in (
        lambda g, i, k: g,
        lambda g, i, k: g if i == 1 else g.float(),
        lambda g, i, k: g if k % 2 else g.float(),
        lambda g, i, k: g.float().t().contiguous().t() if i == 1 else g.float(),
        lambda g, i, k: g.double(),
    ):
        torch.testing.assert_close(end(True, prepare), expected, rtol=1e-5, atol=1e-6)


def test_parameters_that_are_not_contiguous():
    def end(arrange, fused):
        generator = torch.Generator().manual_seed(0)
        params = [
            nn.Parameter(arrange(torch.randn(30, 20, generator=generator))),
            nn.Parameter(torch.ones(7)),
        ]
        optimiser = optim.AMD(params, lr=0.1, fused=fused)
        for _ in range(4):
            for p in params:
                p.grad = torch.randn(p.shape, generator=generator)
            optimiser.step()
        return params[0].detach()

    transposed = end(lambda w: w.t().contiguous().t(), True)
    assert not transposed.is_contiguous()
    torch.testing.assert_close(transposed, end(lambda w: w, False))


def test_parameters_that_move_in_memory_are_followed():
    ours, theirs = ([nn.Parameter(torch.ones(300)), nn.Parameter(torch.ones(5))] for _ in range(2))
    first = optim.AMD(ours, lr=0.1, fused=True)
    second = optim.AMD(theirs, lr=0.1, fused=False)
    generator = torch.Generator().manual_seed(0)
    for k in range(6):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        first.step()
        second.step()
        ours[0].data = ours[0].data.clone()
        first.state[ours[1]]["z"] = first.state[ours[1]]["z"].clone()
        if k == 3:
            first = copy.deepcopy(first)
            ours = first.param_groups[0]["params"]
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("geometry", ["euclidean", "multipliers of columns", "splines"])
@pytest.mark.parametrize("size", [300, 20_003, 140_001])
def test_kernels_notice_what_was_moved(geometry, size, dtype):
    """The dual restarts at changed entries of small tensors and of tensors changed before.

    For other large tensors, the dual restarts in the parts that contain changed entries.
    """
    maps = {
        "euclidean": Euclidean(),
        "multipliers of columns": Diagonal(torch.linspace(0.5, 2, size, dtype=dtype)),
        "splines": learned_spline(0).to(dtype),
    }
    p = nn.Parameter(torch.linspace(-1, 1, size, dtype=dtype))
    optimiser = optim.AMD([p], lr=0.1, mirror=maps[geometry], fused=True)

    def step(gradient):
        p.grad = torch.full((size,), gradient, dtype=dtype)
        optimiser.step()
        return optimiser.state[p]["z"].clone()

    for _ in range(3):
        before = step(1.0)
    assert optimiser._executors[0].compared_by_kernels(optimiser._tracker) == {0}
    for entries in ([size - 1, 3], [size // 2]):
        p.data[entries] += 1.0
        after = step(0.0)
        anew = torch.zeros(size, dtype=torch.bool)
        part = PART if size > LARGE and len(entries) == 2 else 1
        for entry in entries:
            anew[entry // part * part : (entry // part + 1) * part] = True
        assert torch.equal(after[~anew], before[~anew])
        here = maps[geometry].to_dual(p.detach()[None])[0]
        assert not torch.allclose(before[entries], here[entries], rtol=1e-3)
        torch.testing.assert_close(after[entries], here[entries], rtol=1e-3, atol=1e-3)
        before = after


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_and_torch_remember_alike_where_parameters_were_left(dtype):
    """Steps without kernels, in between, are not mistaken for changes by others."""
    ends = []
    for fused in (True, False):
        generator = torch.Generator().manual_seed(0)
        p = nn.Parameter(torch.randn(40_003, generator=generator, dtype=dtype))
        optimiser = optim.AMD([p], lr=0.1, fused=fused)
        for k in range(6):
            g = torch.randn(2 * len(p), generator=generator, dtype=dtype)
            p.grad = g[::2] if k % 2 else g[: len(p)]
            optimiser.step()
        assert not optimiser._tracker._changed
        ends.append(p.detach())
    torch.testing.assert_close(*ends)


def test_a_map_that_has_become_another_is_refused():
    mirror = Diagonal(torch.ones(3))
    (p,) = params = [nn.Parameter(torch.ones(3))]
    optimiser = optim.MD(params, lr=0.1, mirror=mirror, fused=True)
    p.grad = torch.ones(3)
    optimiser.step()
    mirror.d = torch.ones(3, dtype=torch.float64)
    with pytest.raises(
        RuntimeError, match="another type or shape than when the optimiser was constructed"
    ):
        optimiser.step()


def test_maps_that_change_are_read_anew():
    mirror = MAPS["splines"]()
    ours, optimiser = run(OPTIMISERS["SMD"], mirror, torch.float32, fused=True, steps=1)
    before = copy.deepcopy(ours)
    with torch.no_grad():
        for part in mirror.maps:
            part.raw_slopes.fill_(0.5)
    slope = float(mirror.maps[0].slopes[0, 0].detach())
    optimiser.step()
    for p, old in zip(ours, before, strict=True):
        torch.testing.assert_close(p, old - 0.1 / 2 * p.grad / slope, rtol=1e-4, atol=1e-5)


def test_fused_requires_kernels(no_library):
    x = [nn.Parameter(torch.ones(3))]
    with pytest.raises(KernelsUnavailable, match="no compiled kernels"):
        optim.SMD(x, fused=True)
    assert choices(optim.SMD(x))[0].kernel is None
