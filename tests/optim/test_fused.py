"""Kernels in C take the same steps as the methods."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from mirrordescent import kernels, optim
from mirrordescent.kernels import BuildError, build
from mirrordescent.mirrors import Diagonal, Euclidean, Layerwise, Multipliers, Spline
from mirrordescent.schedules import Reciprocal

pytestmark = pytest.mark.usefixtures("compiled")


def learned_spline(seed, knots=20):
    spline = Spline(torch.tensor(0), knots=knots)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        spline.raw_slopes.add_(torch.randn(spline.raw_slopes.shape, generator=generator))
    return spline


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    shapes = [(70, 300), (5,), (4, 3, 3, 3), (20_000,), (7, 11)]
    return [nn.Parameter(0.7 * torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes]


MAPS = {
    "euclidean": lambda: Euclidean(),
    "one multiplier": lambda: Layerwise({f"p{i}": Multipliers(torch.tensor(0), 0.3 + 0.2 * i) for i in range(5)}),
    "multipliers of columns": lambda: Layerwise(
        {
            "p0": Multipliers(torch.arange(300)[None] % 7, 0.5),
            "p1": Diagonal(torch.linspace(0.5, 2, 5)),
            "p2": Multipliers(torch.arange(27).reshape(1, 3, 3, 3), 2.0),
            "p3": Multipliers(torch.tensor(0), 0.1),
            "p4": Multipliers(torch.arange(7)[:, None], 0.4),  # of rows: no kernel, so foreach
        }
    ),
    "splines": lambda: Layerwise({f"p{i}": learned_spline(i, knots=20 if i else 3) for i in range(5)}),
}
OPTIMISERS = {
    "MD": lambda named, **options: optim.MD(named, lr=0.1, **options),
    "SMD": lambda named, **options: optim.SMD(named, lr=0.1, t=Reciprocal(1.0), **options),
    "AMD": lambda named, **options: optim.AMD(named, lr=0.05, gamma=0.7, **options),
    "AMD mirror": lambda named, **options: optim.AMD(named, lr=0.05, correction="mirror", **options),
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
    fused, optimiser = run(OPTIMISERS[name], mirror, dtype, fused=True)
    plain, reference = run(OPTIMISERS[name], copy.deepcopy(mirror), dtype, fused=False)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    for a, b in zip(fused, plain, strict=True):
        assert float((a - b).detach().abs().max()) <= tolerance * float(b.detach().abs().max())
    used = [slot.fused is not None for slots in optimiser._slots for slot in slots]
    assert any(used) == (name != "ASMD" and (name, geometry) != ("AMD mirror", "splines"))
    assert not any(slot.fused for slots in reference._slots for slot in slots)


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


def test_no_compiler_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("MIRRORDESCENT_CACHE", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    kernels.library.cache_clear()
    with pytest.raises(BuildError, match="no C compiler"):
        optim.SMD([nn.Parameter(torch.ones(3))], fused=True)
    monkeypatch.setenv("CC", "false")
    with pytest.raises(BuildError, match="failed"):
        optim.SMD([nn.Parameter(torch.ones(3))], fused=True)
    assert list(tmp_path.iterdir()) == []
    kernels.library.cache_clear()
