"""Quadratic maps that couple entries, and learned weights: against matrices written out."""

from __future__ import annotations

import pytest
import torch

import mirrordescent as md
from mirrordescent.domains import Box, PositiveOrthant, Simplex
from mirrordescent.mirrors import (
    DenseQuadratic,
    Euclidean,
    Logit,
    NegativeEntropy,
    OrthantEntropy,
    PNorm,
    SimplexEntropy,
    SquaredPNorm,
    Weighted,
)
from mirrordescent.mirrors.dense import KroneckerQuadratic, LowRankQuadratic
from mirrordescent.mirrors.weighted import WeightedSimplexEntropy

DOUBLE = torch.float64


def learned(mirror, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mirror = mirror.to(DOUBLE)
    with torch.no_grad():
        for p in mirror.parameters():
            p.add_(0.4 * torch.randn(p.shape, generator=generator, dtype=DOUBLE))
    return mirror


QUADRATIC = {
    "full": lambda: DenseQuadratic((2, 3), 0.7),
    "low rank": lambda: LowRankQuadratic((2, 3), rank=2, scale=0.7),
    "kronecker": lambda: KroneckerQuadratic((2, 3), 0.7),
}
WEIGHTED = {
    "euclidean": (lambda: Weighted(Euclidean(), 5), torch.randn),
    "orthant": (lambda: Weighted(NegativeEntropy(), 5), torch.rand),
    "hyperbolic": (lambda: Weighted(OrthantEntropy(0.3), 5), torch.rand),
    "box": (lambda: Weighted(Logit(-1.0, 2.0), 5), torch.rand),
    "simplex": (lambda: WeightedSimplexEntropy(5), torch.rand),
}


def matrix_of(function):
    """The 6 × 6 matrix of a linear function of points (2, 3), column by column."""
    return function(torch.eye(6, dtype=DOUBLE).view(6, 2, 3)).detach().reshape(6, 6).T


@pytest.mark.parametrize("kind", QUADRATIC)
def test_quadratic_maps_are_symmetric_positive_definite_matrices_and_their_inverses(kind):
    mirror = learned(QUADRATIC[kind]())
    P = matrix_of(mirror.to_primal)
    Q = matrix_of(mirror.to_dual)
    torch.testing.assert_close(P, P.T)
    torch.testing.assert_close(P @ Q, torch.eye(6, dtype=DOUBLE))
    values = torch.linalg.eigvalsh(P)
    assert values.min() > 0
    assert mirror.strong_convexity.alpha <= float(1 / values.max()) * (1 + 1e-9)
    assert mirror.smoothness >= float(1 / values.min()) * (1 - 1e-9)
    if kind != "low rank":  # whose constants are bounds
        assert mirror.strong_convexity.alpha == pytest.approx(float(1 / values.max()))
        assert mirror.smoothness == pytest.approx(float(1 / values.min()))
    x = torch.randn(4, 2, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    flat = x.flatten(1)
    torch.testing.assert_close(mirror.potential(x).detach(), 0.5 * (flat * (flat @ Q)).sum(1))


def test_a_kronecker_product_is_one():
    mirror = learned(KroneckerQuadratic((2, 3), 0.7))
    left, right = (
        part.factor().detach() @ part.factor().detach().T for part in (mirror.rows, mirror.columns)
    )
    torch.testing.assert_close(matrix_of(mirror.to_primal), torch.kron(left, right))


def test_newton_in_one_step():
    """With P = A⁻¹, mirror descent on ½(x − c)ᵀA(x − c) is done after one step of length 1."""
    B = torch.randn(4, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    A = B @ B.T + torch.eye(4, dtype=DOUBLE)
    problem = md.Quadratic(A, torch.ones(1, 4, dtype=DOUBLE))
    mirror = DenseQuadratic.from_matrix(torch.linalg.inv(A))
    assert float(md.solve(problem, md.MD(mirror, 1.0), iterations=1).value) < 1e-20


def test_what_is_no_metric_is_refused():
    with pytest.raises(ValueError, match="symmetric and positive definite"):
        DenseQuadratic.from_matrix(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
    with pytest.raises(ValueError, match="symmetric and positive definite"):
        DenseQuadratic.from_matrix(torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="needs samples of shape"):
        DenseQuadratic(3).to_primal(torch.ones(1, 4))
    with pytest.raises(ValueError, match="LowRankQuadratic"):
        DenseQuadratic(10_000)
    with pytest.raises(TypeError, match="needs an elementwise map"):
        Weighted(SquaredPNorm(1.5), 3)


@pytest.mark.parametrize("kind", WEIGHTED)
def test_weighted_maps_are_gradients_with_exact_inverses(kind):
    make, draw = WEIGHTED[kind]
    mirror = learned(make())
    x = draw(3, 5, dtype=DOUBLE, generator=torch.Generator().manual_seed(2)) + (
        0.05 if draw is torch.rand else 0
    )
    x = x / x.sum(-1, keepdim=True) if kind == "simplex" else x
    y = mirror.to_dual(x)
    torch.testing.assert_close(mirror.to_primal(y), x)
    point = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(mirror.potential(point).sum(), point)
    off = (gradient - y).detach()
    torch.testing.assert_close(
        off - off.mean(-1, keepdim=True) if kind == "simplex" else off, torch.zeros_like(off)
    )
    dual = (y + 0.1).detach().requires_grad_()
    assert torch.autograd.gradcheck(mirror.to_primal, dual)
    v = torch.linspace(-1, 1, 5, dtype=DOUBLE).expand(3, 5)
    torch.testing.assert_close(mirror.step(x, v, 0.3), mirror.to_primal(y - 0.3 * v))


def test_equal_weights_are_no_weights():
    x = torch.rand(3, 5, dtype=DOUBLE, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(Weighted(PNorm(3.0), 5).double().to_dual(x), PNorm(3.0).to_dual(x))
    y = 40 * x - 20
    torch.testing.assert_close(
        WeightedSimplexEntropy(5).double().to_primal(y), SimplexEntropy().to_primal(y)
    )


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_the_weighted_simplex_at_extremes(dtype):
    mirror = WeightedSimplexEntropy(4).to(dtype)
    with torch.no_grad():
        mirror.log_weights.copy_(torch.tensor([-3.0, 3.0, 0.0, 1.0]))
    y = torch.tensor(
        [[1e4, 0, 0, -1e4], [0, 0, 0, 0], [-1e4, 1e-4, 5, 1e4], [1e-3, 0, 0, 0]], dtype=dtype
    )
    x = mirror.to_primal(y)
    assert bool(x.isfinite().all())
    assert bool((x >= 0).all())
    torch.testing.assert_close(x.sum(-1), torch.ones(4, dtype=dtype))


def test_the_derivative_with_respect_to_weights():
    mirror = learned(WeightedSimplexEntropy(4))
    y = torch.randn(2, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(3))

    def primal(log_weights):
        return torch.func.functional_call(_Call(mirror), {"mirror.log_weights": log_weights}, (y,))

    assert torch.autograd.gradcheck(primal, mirror.log_weights.detach().clone().requires_grad_())


class _Call(torch.nn.Module):
    def __init__(self, mirror):
        super().__init__()
        self.mirror = mirror

    def forward(self, y):
        return self.mirror.to_primal(y)


@pytest.mark.parametrize(
    "domain", [Box(-1.0, 2.0), Simplex(), PositiveOrthant()], ids=lambda d: type(d).__name__
)
def test_the_least_of_a_linear_function(domain):
    """Against many points of the set, and against one where it is attained."""
    g = torch.randn(3, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    g = g.abs() if isinstance(domain, PositiveOrthant) else g
    least = domain.least(g)
    points = domain.project(
        5 * torch.randn(1000, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    )
    assert bool((points @ g.T >= least - 1e-12).all())
    far = domain.project(-1e6 * g)
    torch.testing.assert_close((far * g).sum(-1), least)
    assert float(PositiveOrthant().least(-torch.ones(1, 2))) == -torch.inf
