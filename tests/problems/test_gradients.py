"""Every analytic gradient against automatic differentiation of the value."""

from __future__ import annotations

import pytest
import torch

from mirrordescent import (
    SVM,
    EntropicTransport,
    GridTV,
    LeastSquares,
    LogisticRegression,
    MatrixGame,
    Quadratic,
    TrendFiltering,
    TVDenoising,
    TVInpainting,
)
from mirrordescent.problems import Blur, gaussian_kernel


def random(*shape):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64
    )


def problems():
    A = random(5, 4)
    labels = random(7).sign()
    mask = random(6, 5) > -0.5
    blur = Blur(gaussian_kernel(0.8)).double()
    return {
        "diagonal quadratic": Quadratic(random(4).abs(), random(4)),
        "quadratic": Quadratic(A.T @ A, random(3, 4)),
        "quadratics": Quadratic(
            torch.stack([A.T @ A, torch.eye(4, dtype=torch.float64)]), random(4)
        ),
        "least squares": LeastSquares(A, random(5)),
        "least squares, batched": LeastSquares(random(2, 5, 4), random(2, 5)),
        "logistic": LogisticRegression(random(7, 3), labels, ridge=0.2),
        "logistic, batched": LogisticRegression(random(2, 7, 3), labels),
        "svm": SVM(random(7, 3), labels, C=2.0),
        "svm, batched": SVM(random(2, 7, 3), labels.expand(2, 7)),
        "transport": EntropicTransport(random(4, 5), random(2, 4).exp(), random(5).exp(), 0.5),
        "game": MatrixGame(random(5, 4)),
        "games": MatrixGame(random(2, 5, 4)),
        "denoising": TVDenoising(random(2, 3, 6, 5), weight=0.3, scale=1.0),
        "inpainting": TVInpainting(random(2, 3, 6, 5), mask, weight=0.3),
        "inpainting, a mask each": TVInpainting(
            random(2, 1, 6, 5), random(2, 1, 6, 5) > -1, weight=0.3
        ),
        "deblurring": TVInpainting(random(2, 3, 6, 5), mask, operator=blur, scale=2.0),
        "signals": GridTV(random(2, 2, 9), 0.3, axis_weights=(1.5,), huber=0.1),
        "volumes": GridTV(random(2, 2, 3, 4, 5), 0.3, axis_weights=(0.5, 1, 2), isotropic=True),
        "four axes": GridTV(random(1, 1, 2, 3, 2, 3), coupled=True),
        "trends": TrendFiltering(random(2, 1, 4, 6), 0.3, axis_weights=(0.5, 1)),
        "one row": TVDenoising(random(1, 1, 1, 5)),
        "one pixel": TVDenoising(random(1, 1, 1, 1)),
    }


PROBLEMS = problems()
every = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())


def point(problem, batch=2):
    count = problem.batch or batch
    generator = torch.Generator().manual_seed(7)
    return torch.randn(count, *problem.sample_shape, generator=generator, dtype=torch.float64)


@every
def test_gradient(problem):
    x = point(problem).requires_grad_()
    value = problem.value(x)
    assert value.shape == (len(x),)
    (expected,) = torch.autograd.grad(value.sum(), x)
    torch.testing.assert_close(problem.grad(x.detach()), expected, rtol=1e-10, atol=1e-12)


@every
def test_samples_do_not_see_each_other(problem):
    if problem.batch == 1:
        pytest.skip("a single problem has no neighbours")
    x = point(problem)
    other = x.clone()
    other[1:] = 100.0
    assert torch.equal(problem.value(x)[:1], problem.value(other)[:1])
    assert torch.equal(problem.grad(x)[:1], problem.grad(other)[:1])


@every
def test_convexity_and_smoothness(problem):
    """f(b) ≥ f(a) + ⟨∇f(a), b − a⟩, and ≤ the same + (L/2)‖b − a‖² where L is known."""
    a = point(problem)
    b = a + torch.randn(a.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    bregman = problem.value(b) - problem.value(a) - (problem.grad(a) * (b - a)).flatten(1).sum(1)
    assert (bregman >= -1e-10).all()
    if problem.smoothness() is not None:
        assert (
            bregman <= problem.smoothness() / 2 * (b - a).flatten(1).square().sum(1) + 1e-10
        ).all()


@every
def test_float32_and_devices(problem, device):
    import copy

    small = copy.deepcopy(problem).float().to(device)
    x = small.start(2)
    small.check(x)
    assert x.device.type == device.type
    x = point(problem).float().to(device)
    torch.testing.assert_close(
        small.value(x).cpu().double(), problem.value(point(problem)), rtol=1e-4, atol=1e-4
    )
    assert small.grad(x).dtype == torch.float32
    assert small.start().shape[1:] == problem.sample_shape
