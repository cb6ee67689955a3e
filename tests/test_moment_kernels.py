"""C kernels for running means and steps, against torch, entry by entry."""

from __future__ import annotations

import pytest
import torch

from mirrordescent import kernels, optim
from mirrordescent.mirrors import spectral_by_kind
from mirrordescent.recipes.architectures import initialised, small_cnn

SHAPES = [(3, 5), (1,), (0,), (70_001,), (4, 2, 3)]


pytestmark = pytest.mark.usefixtures("compiled", "every_level")


def numbers(seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES
    ]


@pytest.mark.parametrize("beta", [0.9, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_momenta_are_running_means_that_look_ahead(dtype, beta):
    m = numbers(0, dtype)
    g = [1e-9 * each for each in numbers(1, dtype)]
    new = [beta * a + (1 - beta) * b for a, b in zip(m, g, strict=True)]
    v = kernels.momenta(m, g, beta)
    for each, wanted, ahead, b in zip(m, new, v, g, strict=True):
        torch.testing.assert_close(each, wanted)
        torch.testing.assert_close(ahead, beta * wanted + (1 - beta) * b, atol=0, rtol=1e-5)


@pytest.mark.parametrize("second", [0.8, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_divided_by_the_roots_of_second_moments(dtype, second):
    x = numbers(0, dtype)
    u = numbers(1, dtype)
    n = [each.square() for each in numbers(2, dtype)]
    steps = [0.1 * (i + 1) for i in range(len(SHAPES))]
    w = [torch.tensor(0.1 * i, dtype=dtype) for i in range(len(SHAPES))]
    weights = [second * each + 1 - second for each in w]
    moments = [second * a + (1 - second) * b.square() for a, b in zip(n, u, strict=True)]
    places = zip(x, moments, weights, u, steps, strict=True)
    wanted = [
        0.95 * a - step * weight.sqrt() * b / (c.sqrt() + 1e-8) for a, c, weight, b, step in places
    ]
    kernels.adaptive_step(x, n, w, u, steps, second=second, keep=0.95, tiny=1e-8)
    for found, expected in ((x, wanted), (n, moments), (w, weights)):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)


def test_only_tensors_without_gaps_of_one_precision_are_taken():
    a = torch.zeros(3, 4)
    b = torch.zeros(3, 4)
    assert kernels.has_moments([a, b], [b, a])
    assert not kernels.has_moments([a], [b.T])
    assert not kernels.has_moments([a], [b.double()])
    assert not kernels.has_moments([a.half()], [b.half()])
    assert not kernels.has_moments([a], [b[:2]])
    assert not kernels.has_moments([a, b], [b])


@pytest.mark.parametrize("second", [None, 0.9, 0.0])
def test_optimisers_take_the_same_steps_with_kernels_and_without(second):
    images = torch.rand(16, 1, 14, 14, generator=torch.Generator().manual_seed(0)).double()
    labels = torch.arange(16) % 10
    ends = []
    for fused in (True, False):
        model = initialised(small_cnn, 0).double()
        options = {
            "mirror": spectral_by_kind(),
            "second_momentum": second,
            "weight_decay": 0.1,
            "fused": fused,
        }
        optimizer = optim.Preconditioned(model.named_parameters(), lr=0.02, **options)
        for _ in range(6):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*ends, rtol=1e-8, atol=1e-9)


def test_graphs_know_that_kernels_have_moved_parameters():
    w = torch.nn.Parameter(torch.ones(4, 5))
    optimizer = optim.Preconditioned([w], lr=0.01, second_momentum=0.9, fused=True)
    loss = w.square().sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_shapes_that_do_not_fit_are_an_error_with_kernels_too():
    w = torch.nn.Parameter(torch.ones(4, 5))
    optimizer = optim.Preconditioned([w], lr=0.01, second_momentum=0.9, fused=True)
    w.grad = torch.ones(4, 5)
    optimizer.step()
    w.data = torch.ones(2, 5)
    w.grad = None
    w.grad = torch.ones(2, 5)
    with pytest.raises(RuntimeError):
        optimizer.step()
