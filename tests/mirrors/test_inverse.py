"""The inverse of a gradient: against closed forms and dense Newton, and its derivatives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from mirrordescent.conjugate_gradients import conjugate_gradients
from mirrordescent.mirrors import ConvICNN, DenseICNN, HyperbolicEntropy
from mirrordescent.mirrors.icnn import Potential
from mirrordescent.mirrors.inverse import NotConverged, invert
from mirrordescent.trees import sum_per_sample


class QuadraticPotential(Potential):
    """½ xᵀHx."""

    def __init__(self, matrix):
        super().__init__()
        self.matrix = nn.Parameter(matrix)

    @property
    def strong_convexity(self):
        return float(torch.linalg.eigvalsh(self.matrix.detach())[0])

    def value(self, x):
        return 0.5 * sum_per_sample(x * self.gradient(x))

    def gradient(self, x):
        return x @ self.matrix


class Elementwise(Potential):
    """μ/2 x² + a mirror map's own potential: steep or flat, far from quadratic."""

    def __init__(self, mirror, mu):
        super().__init__()
        self.mirror = mirror
        self.mu = mu

    @property
    def strong_convexity(self):
        return self.mu

    def value(self, x):
        return 0.5 * self.mu * sum_per_sample(x.square()) + self.mirror.potential(x)

    def gradient(self, x):
        return self.mu * x + self.mirror.to_dual(x)


def random_potential(kind, seed, quadratic=True):
    generator = torch.Generator().manual_seed(seed)
    if kind == "dense":
        potential = DenseICNN(4, hidden=4, layers=2, quadratic=quadratic).double()
    else:
        potential = ConvICNN(1, filters=2, layers=2, quadratic=quadratic).double()
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.add_(
                0.7 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            )
    shape = (3, 4) if kind == "dense" else (3, 1, 3, 3)
    return potential, 2 * torch.randn(shape, generator=generator, dtype=torch.float64)


def spd(n, condition, seed=0):
    generator = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    return (
        basis
        @ torch.diag(torch.logspace(0, torch.tensor(condition).log10(), n, dtype=torch.float64))
        @ basis.T
    )


def test_conjugate_gradients_solve_each_sample_to_its_own_tolerance():
    matrices = torch.stack([spd(12, 10.0), spd(12, 1000.0, 1), spd(12, 100.0, 2)])
    b = torch.randn(3, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    tolerance = torch.tensor([1e-12, 1e-8, 0.9], dtype=torch.float64)

    def product(v):
        return (matrices @ v[..., None])[..., 0]

    s, converged, _ = conjugate_gradients(product, b, tolerance)
    relative = (product(s) - b).norm(dim=1) / b.norm(dim=1)
    assert converged.all()
    assert (relative <= 2 * tolerance).all()
    assert relative[2] > 1e-6  # the third one stopped early, while the others went on
    _, converged, _ = conjugate_gradients(product, b, tolerance, max_iterations=2)
    assert converged.tolist() == [False, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_quadratic_is_inverted_by_its_matrix(dtype):
    potential = QuadraticPotential(spd(6, 50.0)).to(dtype)
    y = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=dtype)
    found = invert(potential, y)
    expected = torch.linalg.solve(potential.matrix.detach(), y.T).T
    assert found.converged.all()
    assert found.x.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(found.x.detach(), expected, rtol=tolerance, atol=tolerance)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), size=st.floats(1e-3, 1e3), beta=st.sampled_from([0.01, 1.0]))
def test_an_elementwise_potential_is_inverted_everywhere(seed, size, beta):
    """arsinh(x/β) is steep at 0 and flat far away: full Newton steps from y overshoot."""
    potential = Elementwise(HyperbolicEntropy(beta), mu=0.05).double()
    x = size * torch.randn(5, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = invert(potential, potential.gradient(x))
    assert found.converged.all()
    bound = found.residual / potential.strong_convexity
    assert ((found.x - x).norm(dim=1) <= bound + 1e-12 * x.norm(dim=1)).all()


def test_a_full_newton_step_may_overshoot_and_is_shortened():
    class Root(Elementwise):
        """√(1+x²) and little more: from x = 30 full Newton steps run away, |x| → |x|³."""

        def __init__(self):
            super().__init__(None, 1e-9)

        def gradient(self, x):
            return self.mu * x + x / (1 + x.square()).sqrt()

    far = torch.full((1, 1), 30.0, dtype=torch.float64)
    full_step = far - far * (1 + far.square())
    assert full_step.abs() > 1e4
    found = invert(Root(), torch.zeros_like(far), start=far)
    assert found.converged.all()
    assert found.x.abs() < 1e-9


@pytest.mark.parametrize("kind", ["dense", "images"])
@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_dense_newton(kind, seed):
    potential, y = random_potential(kind, seed)
    found = invert(potential, y)
    assert found.converged.all()
    for x, target in zip(found.x.detach(), y, strict=True):

        def gradient(flat, shape=x.shape):
            return potential.gradient(flat.reshape(1, *shape)).flatten()

        refined = x.flatten() + 0.1
        for _ in range(40):
            hessian = torch.autograd.functional.jacobian(gradient, refined)
            refined = refined + torch.linalg.solve(
                hessian, target.flatten() - gradient(refined).detach()
            )
        torch.testing.assert_close(x.flatten(), refined, rtol=1e-8, atol=1e-8)


def test_a_converged_sample_moves_no_more():
    potential, y = random_potential("dense", 0)
    solution = invert(potential, y).x.detach()
    start = torch.stack([solution[0], 100 * y[1], solution[2] + 1e-13])
    found = invert(potential, y, start=start)
    assert found.steps.tolist()[::2] == [0, 0]
    assert found.steps[1] > 0
    assert torch.equal(found.x[0], start[0])
    assert torch.equal(found.x[2], start[2])
    alone = invert(potential, y[1:2], start=start[1:2])
    torch.testing.assert_close(found.x[1:2], alone.x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["dense", "images"])
@pytest.mark.parametrize("quadratic", [False, True])
def test_derivatives_agree_with_finite_differences(kind, quadratic):
    potential, y = random_potential(kind, 1, quadratic)
    names = [name for name, _ in potential.named_parameters()]
    inputs = [
        y[:1].requires_grad_(),
        *(p.detach().requires_grad_() for p in potential.parameters()),
    ]

    def inverse(y, *parameters):
        swapped = {f"potential.{name}": p for name, p in zip(names, parameters, strict=True)}
        return torch.func.functional_call(_Inverse(potential), swapped, (y,))

    assert torch.autograd.gradcheck(
        inverse, inputs, atol=1e-6, rtol=1e-4, fast_mode=kind == "images"
    )


class _Inverse(nn.Module):
    def __init__(self, potential):
        super().__init__()
        self.potential = potential

    def forward(self, y):
        return invert(self.potential, y, tolerance=1e-13).x


def test_derivatives_of_a_quadratic_in_closed_form():
    potential = QuadraticPotential(spd(4, 10.0))
    y = torch.randn(
        2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True
    )
    v = torch.randn(2, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wrt_y, wrt_matrix = torch.autograd.grad(invert(potential, y).x, [y, potential.matrix], v)
    inverse = torch.linalg.inv(potential.matrix.detach())
    torch.testing.assert_close(wrt_y, v @ inverse, rtol=1e-8, atol=1e-8)
    expected = -torch.einsum("bi,bj->ij", y.detach() @ inverse, v @ inverse)
    torch.testing.assert_close(wrt_matrix, expected, rtol=1e-8, atol=1e-8)


def test_second_derivatives_are_refused_rather_than_wrong():
    potential, y = random_potential("dense", 0)
    y.requires_grad_()
    (first,) = torch.autograd.grad(invert(potential, y).x.square().sum(), y, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_no_graph_without_need():
    potential, y = random_potential("dense", 0)
    with torch.no_grad():
        assert not invert(potential, y.requires_grad_()).x.requires_grad
    potential.requires_grad_(False)
    assert not invert(potential, y.detach()).x.requires_grad
    assert invert(potential, y).x.requires_grad


@pytest.mark.parametrize("kind", ["dense", "images"])
def test_in_inference_mode(kind):
    potential, y = random_potential(kind, 0)
    expected = invert(potential, y).x.detach()
    with torch.inference_mode():
        for given in (y, y.clone()):  # the latter is an inference tensor
            assert torch.equal(invert(potential, given).x, expected)


def test_samples_that_do_not_converge_are_named():
    potential, y = random_potential("dense", 0)
    start = torch.stack([invert(potential, y).x.detach()[0], 50 * y[1], 50 * y[2]])
    with pytest.warns(
        NotConverged, match=r"DenseICNN has not converged for samples \[1, 2\]: residual"
    ):
        found = invert(potential, y, start=start, max_iterations=1)
    assert found.converged.tolist() == [True, False, False]
    assert (found.residual[1:] > 1e-6).all()


def test_a_tolerance_below_rounding_ends_with_a_warning():
    potential, y = random_potential("dense", 0)
    with pytest.warns(NotConverged):
        found = invert(potential.float(), y.float(), tolerance=1e-14, max_iterations=1000)
    assert found.steps.max() < 50
    assert (found.residual <= 1e-5 * y.norm(dim=1)).all()


def test_non_finite_samples_leave_their_neighbours_alone():
    potential, y = random_potential("dense", 0)
    clean = invert(potential, y).x
    y = y.clone()
    y[1] = float("nan")
    with pytest.warns(NotConverged, match=r"samples \[1\]"):
        found = invert(potential, y)
    assert found.converged.tolist() == [True, False, True]
    torch.testing.assert_close(found.x[::2], clean[::2], rtol=1e-9, atol=1e-9)


def test_an_impossible_tolerance_is_refused():
    potential, y = random_potential("dense", 0)
    with pytest.raises(ValueError, match="tolerance"):
        invert(potential, y, tolerance=0.0)
