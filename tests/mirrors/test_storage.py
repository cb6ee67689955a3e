"""Every public map and potential can be saved and loaded without changing a bit."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
import torch
from torch import nn

from mirrordescent import mirrors, zoo
from mirrordescent.domains import Box, Simplex
from mirrordescent.mirrors import (
    Burg,
    ByKind,
    Conjugate,
    ConvICNN,
    DenseICNN,
    DenseQuadratic,
    Diagonal,
    Euclidean,
    HyperbolicEntropy,
    Layerwise,
    LearnedPair,
    Logit,
    MirrorMap,
    Multipliers,
    NegativeEntropy,
    OrthantEntropy,
    PNorm,
    SimplexEntropy,
    SingularValues,
    SoftSign,
    Spectral,
    SpectralPower,
    SpectralSpline,
    Spline,
    SquaredPNorm,
    Stencil,
    Weighted,
)
from mirrordescent.mirrors.by_kind import KINDS, ScaledMap
from mirrordescent.mirrors.dense import KroneckerQuadratic, LowRankQuadratic
from mirrordescent.mirrors.icnn import InputConvex, Potential
from mirrordescent.mirrors.odd import Saturating
from mirrordescent.mirrors.tied import Tied
from mirrordescent.mirrors.weighted import WeightedSimplexEntropy
from mirrordescent.parts import describe

ABSTRACT = {InputConvex, MirrorMap, Potential, Tied}
GROUPS = torch.tensor([0, 1, 0, 2])


def leaves():
    maps = {
        "0.weight": Spline(GROUPS, knots=3),
        "0.bias": Logit(-4, 4),
        "1": Conjugate(DenseICNN(4, 3), "scaled"),
    }
    return Layerwise(maps, dict.fromkeys(maps, (4,)))


def shared():
    network = DenseICNN(4, hidden=3)
    return LearnedPair(network, network)


CASES = {
    "burg": Burg,
    "by kind": lambda: ByKind(
        dict.fromkeys(KINDS, SpectralPower(0.5, products=4)), {"hidden": 0.3}, 0.4, 0.2
    ),
    "conjugate": lambda: Conjugate(DenseICNN(4, hidden=3)),
    "conjugate, scaled": lambda: Conjugate(ConvICNN(1, filters=2, kernel=1), start="scaled"),
    "convolutions": lambda: ConvICNN(
        1, filters=2, layers=3, padding="circular", activation="leaky_relu", mu=0.3
    ),
    "dense": lambda: DenseICNN(
        4, hidden=3, layers=1, quadratic=False, generator=torch.Generator().manual_seed(5)
    ),
    "diagonal, fixed": lambda: Diagonal(torch.tensor([1.0, 2.0, 3.0, 0.1])),
    "diagonal, learned": lambda: Diagonal(nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 0.1]))),
    "diagonal, a number": lambda: Diagonal(0.3),
    "euclidean": Euclidean,
    "euclidean on a simplex": lambda: Euclidean(Simplex()),
    "euclidean on a box": lambda: Euclidean(Box(0, 1)),
    "hyperbolic": lambda: HyperbolicEntropy(0.3),
    "layerwise": leaves,
    "layerwise, any shapes": lambda: Layerwise({"a": Euclidean(Simplex()), "b": NegativeEntropy()}),
    "logit": lambda: Logit(-1, 3),
    "multipliers": lambda: Multipliers(GROUPS, 0.3),
    "negative entropy": NegativeEntropy,
    "orthant": lambda: OrthantEntropy(0.3),
    "pair": lambda: LearnedPair(DenseICNN(4, hidden=3), DenseICNN(4, hidden=5)),
    "pair of one network": shared,
    "p-norm": lambda: PNorm(1.3),
    "saturating": lambda: Saturating([0.3, 0.7], ratio=3.0, floor=0.1),
    "scaled": lambda: ScaledMap(Multipliers(GROUPS, 0.3), 0.2),
    "simplex": SimplexEntropy,
    "singular values": lambda: SingularValues(Saturating([0.3, 0.7]), parts=2, products=3),
    "soft sign": lambda: SoftSign(0.3),
    "spectral": lambda: Spectral(0.7, knots=3),
    "spectral power": lambda: SpectralPower(0.3, parts=2),
    "spectral power, damped": lambda: SpectralPower(0.0, damping=0.3, products=5),
    "spectral splines": lambda: SpectralSpline(
        0.7, bands=2, knots=3, reach=2.0, slope=1.5, floor=0.01
    ),
    "spline": lambda: Spline(GROUPS, knots=3, reach=2.0, slope=0.5, floor=0.1),
    "squared p-norm": lambda: SquaredPNorm(1.3),
    "stencil": lambda: Stencil(0.3),
    "full matrix": lambda: DenseQuadratic(4, scale=0.3),
    "low rank": lambda: LowRankQuadratic([4], rank=2, scale=0.3),
    "kronecker": lambda: KroneckerQuadratic((6, 5), scale=0.3),
    "weighted logit": lambda: Weighted(Logit(-1, 3), 4),
    "weighted simplex": lambda: WeightedSimplexEntropy(4),
}
IMAGES = (Spectral, SpectralSpline, Stencil)
MATRICES = (KroneckerQuadratic,)


def learned(part, dtype):
    """Return the part with random parameters; those of a diagonal stay positive."""
    generator = torch.Generator().manual_seed(1)
    part = part.to(dtype)
    with torch.no_grad():
        for module in part.modules():
            for p in module.parameters(recurse=False):
                noise = 0.3 * torch.randn(p.shape, generator=generator, dtype=dtype)
                p.copy_(p * noise.exp() if isinstance(module, Diagonal) else p + noise)
    return part


def points(part, dtype):
    """Return points inside all domains: simplices along the last dimension."""
    images = isinstance(part, IMAGES) or any(
        isinstance(module, ConvICNN) for module in part.modules()
    )
    shape = (2, 1, 6, 5) if images else (2, 6, 5) if isinstance(part, MATRICES) else (2, 4)
    x = torch.rand(shape, generator=torch.Generator().manual_seed(2), dtype=dtype) + 0.1
    x = x / x.sum(-1, keepdim=True)
    if isinstance(part, ByKind):
        return {"0.weight": x.reshape(2, 2, 2), "0.bias": x}
    return dict.fromkeys(part.names, x) if isinstance(part, Layerwise) else x


def results(part, x):
    if isinstance(part, Potential):
        return [part.value(x), part.gradient(x)]
    y = part.to_dual(x)
    found = (
        part.potential(x),
        y,
        part.to_primal(y),
        part.dual_start(x),
        part.step(x, x, 0.1),
        part.divergence(x, x),
    )
    return [
        leaf for tree in found for leaf in (tree.values() if isinstance(tree, dict) else [tree])
    ]


def test_every_public_class_is_here():
    modules = [
        importlib.import_module(module.name)
        for module in pkgutil.iter_modules(mirrors.__path__, "mirrordescent.mirrors.")
    ]
    storable = {
        each
        for module in modules
        for name, each in vars(module).items()
        if isinstance(each, type)
        and issubclass(each, (MirrorMap, Potential))
        and not name.startswith("_")
    }
    assert {type(make()) for make in CASES.values()} == storable - ABSTRACT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", CASES.values(), ids=CASES.keys())
def test_what_is_saved_comes_back_to_the_last_bit(make, dtype, tmp_path):
    part = learned(make(), dtype)
    path = zoo.save(part, tmp_path / "entry")
    again = zoo.load(path)
    assert type(again) is type(part)
    assert str(again) == str(part)
    assert zoo.card(path).kind == ("potential" if isinstance(part, Potential) else "map")
    assert describe(again) == describe(part)
    x = points(part, dtype)
    with torch.no_grad():
        for found, expected in zip(results(again, x), results(part, x), strict=True):
            assert found.dtype == dtype
            assert torch.equal(found, expected)
    for domain in ("primal_domain", "dual_domain") if isinstance(part, MirrorMap) else ():
        assert getattr(again, domain).description == getattr(part, domain).description
