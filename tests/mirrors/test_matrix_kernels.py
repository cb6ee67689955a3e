"""The C kernel for directions of matrices, against LAPACK and in optimisers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mirrordescent import kernels, optim
from mirrordescent.execution.matrices import matrix_directions
from mirrordescent.mirrors import Euclidean, SpectralPower
from mirrordescent.mirrors.resolvents import Resolvents
from mirrordescent.mirrors.singular_values import MatrixLayout

H = Resolvents((0.5, 0.02, 0.3), (2e-4, 0.04))
SHAPES = [
    (64, 64),
    (200, 20),
    (20, 200),
    (50, 40),
    (40, 50),
    (17, 33),
    (3, 7),
    (1, 5),
    (5, 1),
    (1, 1),
    (16, 130),
    (128, 128),
    (150, 140),
    (130, 700),
    (1100, 150),
]
LARGE = [(530, 545), (560, 513)]
"""Shapes of which the threads compute one matrix together."""


pytestmark = pytest.mark.usefixtures("compiled", "every_level")


def numbers(*shape, seed=0, dtype=torch.float64):
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def by_svd(X, h=H):
    """Return U diag(h(σ/‖σ²‖^½)) Vᵀ of blocks (count, rows, columns), with total mean square 1."""
    U, sigma, V = torch.linalg.svd(X.double(), full_matrices=False)
    size = sigma.square().norm(dim=-1, keepdim=True).sqrt()
    D = U @ (h(sigma / size)[..., None] * V)
    return D / D.square().mean().sqrt()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [*SHAPES, *LARGE])
def test_resolvents_act_on_singular_values(shape, dtype):
    X = numbers(*shape, dtype=dtype)
    (found,) = kernels.directions([X], [H])
    wanted = by_svd(X[None])[0]
    # Small singular values are those of a Gram matrix, and keep half of their digits.
    assert float((found - wanted).norm() / wanted.norm()) < (
        1e-4 if dtype == torch.float32 else 1e-12
    )


@pytest.mark.parametrize("rank", [1, 5, 30])
@pytest.mark.parametrize("shape", [(20, 30), (128, 200), (400, 300)])
def test_matrices_of_low_rank_keep_their_digits(shape, rank):
    X = (numbers(shape[0], rank) @ numbers(rank, shape[1], seed=1)).float()
    (found,) = kernels.directions([X], [H])
    wanted = by_svd(X[None])[0]
    assert float((found - wanted).norm() / wanted.norm()) < 1e-3


@pytest.mark.parametrize("poles", [0, 1, 2, 3, 5])
def test_any_number_of_resolvents(poles):
    h = Resolvents(
        (0.2, *[1.0 / (k + 1) for k in range(poles)]), tuple(10.0**-k for k in range(poles))
    )
    X = numbers(12, 30, seed=1)
    (found,) = kernels.directions([X], [h])
    assert torch.allclose(found, by_svd(X[None], h)[0], atol=1e-11)


def test_blocks_are_matrices_of_their_own_and_are_scaled_together():
    X = numbers(3, 10, 6) * torch.tensor([1.0, 100.0, 1e-3]).double()[:, None, None]
    (found,) = kernels.directions([X.flatten(0, 1)], [H], [(3, 10, 6)])
    assert torch.allclose(found, by_svd(X).flatten(0, 1), atol=1e-10)
    assert float(found.square().mean()) == pytest.approx(1)
    with pytest.raises(ValueError, match="30 rows cannot be divided into 4 blocks"):
        MatrixLayout(parts=4).block_shape((30, 6))


def test_convolutions_vectors_and_numbers_are_matrices_too():
    for X, flat in ((numbers(6, 2, 3, 3), (6, 18)), (numbers(7), (7, 1)), (numbers(), (1, 1))):
        (found,) = kernels.directions([X], [H])
        assert torch.allclose(found, by_svd(X.reshape(1, *flat)).reshape(X.shape))


def test_many_at_once_are_as_they_are_alone_on_any_number_of_threads():
    shapes = [*SHAPES, *LARGE]
    Xs = [numbers(*shape, seed=i, dtype=torch.float32) for i, shape in enumerate(shapes)]
    functions = [
        Resolvents((0.1 * (i + 1), 0.02, 0.3), (1e-3 / (i + 1), 0.04)) for i in range(len(Xs))
    ]
    alone = [kernels.directions([X], [h])[0] for X, h in zip(Xs, functions, strict=True)]
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            together = kernels.directions(Xs, functions)
            assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float64, 1e-9)])
def test_degenerate_matrices(dtype, tolerance):
    zero = torch.zeros(20, 30, dtype=dtype)
    rank_one = torch.ones(20, 30, dtype=dtype)
    assert kernels.directions([torch.zeros(0, 5, dtype=dtype)], [H])[0].shape == (0, 5)
    found = kernels.directions([zero, rank_one, 1e-18 * rank_one, 1e12 * rank_one], [H] * 4)
    assert torch.equal(found[0], zero)
    for each in found[1:]:
        assert torch.allclose(each, rank_one, atol=tolerance)
    (broken,) = kernels.directions([torch.full((4, 5), torch.nan)], [H])
    assert broken.isnan().all()


def test_views_that_are_not_contiguous():
    X = numbers(30, 12)
    (found,) = kernels.directions([X.mT], [H])
    assert torch.allclose(found, by_svd(X[None])[0].mT, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_maps_find_the_same_with_and_without_kernels(dtype, monkeypatch):
    maps = [
        SpectralPower(p, products=4, parts=parts)
        for p, parts in ((0, 1), (0.5, 1), (0.2, 2), (0, 1))
    ]
    ys = [
        numbers(*shape, seed=i, dtype=dtype)
        for i, shape in enumerate([(24, 60), (60, 24), (30, 10), (600, 520)])
    ]
    asked = []
    monkeypatch.setattr(
        kernels, "directions", lambda *given, own=kernels.directions: asked.append(1) or own(*given)
    )
    by_kernel = matrix_directions(maps, ys, fused=True)
    batched = maps[0].direction(torch.stack([ys[0], 2 * ys[0]]))
    assert len(asked) == 2
    tolerance = 2e-4 if dtype == torch.float32 else 1e-11
    for ours, theirs in zip(by_kernel, matrix_directions(maps, ys), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < tolerance
    assert torch.allclose(batched[0], by_kernel[0])
    assert torch.allclose(batched[1], by_kernel[0], atol=10 * tolerance)
    assert len(asked) == 2


def test_derivatives_do_not_go_through_kernels():
    y = numbers(1, 6, 9).requires_grad_()
    SpectralPower(0.5, products=4).direction(y).sum().backward()
    assert y.grad is not None
    assert y.grad.isfinite().all()


def test_fused_preconditioning():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
    optimiser = optim.Preconditioned(model.named_parameters(), fused=True, steps=50, lr=0.03)
    for _ in range(50):
        optimiser.zero_grad()
        loss = (model(torch.eye(3)) - 1).square().mean()
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) < 0.05
    with pytest.raises(ValueError, match="no parameter can be stepped by a kernel"):
        optim.Preconditioned(model.named_parameters(), mirror=Euclidean(), fused=True)


def test_who_does_not_want_kernels_gets_none(monkeypatch):
    asked = []
    monkeypatch.setattr(
        kernels, "directions", lambda *given, own=kernels.directions: asked.append(1) or own(*given)
    )
    for options, wanted in (
        ({"fused": False}, 0),
        ({"fused": False, "foreach": False}, 0),
        ({"foreach": True}, 0),
        ({}, 1),
        ({"fused": True}, 2),
    ):
        model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
        optimiser = optim.Preconditioned(model.named_parameters(), **options)
        model(torch.eye(3)).sum().backward()
        optimiser.step()
        assert len(asked) == wanted
