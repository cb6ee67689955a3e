"""Total-variation problems: operators, proximal maps, bounds, starts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from mirrordescent import TVDenoising, TVInpainting, certify
from mirrordescent._internal.dct import solve_poisson
from mirrordescent.problems import Blur, gaussian_kernel
from mirrordescent.problems.differences import add_adjoint, differences
from mirrordescent.problems.operators import norm_bound
from mirrordescent.problems.tv import fill_holes
from mirrordescent.trees import dot, tree_map


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def variants():
    y = random(2, 3, 7, 6)
    mask = random(2, 1, 7, 6, seed=1) > -0.5
    return {
        "denoising": TVDenoising(y, weight=0.3),
        "inpainting": TVInpainting(y, mask, weight=0.3, scale=0.8),
        "deblurring": TVInpainting(
            y, mask, weight=0.3, scale=0.8, operator=Blur(gaussian_kernel(0.8)).double()
        ),
    }


VARIANTS = variants()
every = pytest.mark.parametrize("problem", VARIANTS.values(), ids=VARIANTS.keys())


def test_the_value_by_hand():
    y = torch.tensor([[[[0.0, 1.0], [2.0, 4.0]]]])
    x = torch.tensor([[[[1.0, 1.0], [3.0, 0.0]]]])
    problem = TVInpainting(y, torch.tensor([[1.0, 1.0], [1.0, 0.0]]), weight=0.5, scale=2.0)
    assert problem.fidelity(x).item() == 1 + 0 + 1  # the last pixel is not observed
    assert problem.total_variation(x).item() == (2 + 1) + (0 + 3)
    assert problem.value(x).item() == 2 * (2 + 0.5 * 6)


@every
def test_adjoint_and_norm(problem):
    x = random(2, 3, 7, 6)
    u = problem.K(random(2, 3, 7, 6, seed=5))
    torch.testing.assert_close(dot(problem.K(x), u), dot(x, problem.K_adjoint(u)))
    assert (dot(problem.K(x), problem.K(x)) <= problem.K_norm**2 * dot(x, x)).all()


def test_blur_is_the_direct_convolution_with_an_exact_adjoint():
    kernel = random(3, 5)
    blur = Blur(kernel)
    x = random(2, 3, 9, 8)
    y = random(2, 3, 9, 8, seed=1)
    weight = kernel.flip(0, 1).expand(3, 1, 3, 5)
    direct = torch.nn.functional.conv2d(x, weight, padding=(1, 2), groups=3)
    torch.testing.assert_close(blur.A(x), direct)
    torch.testing.assert_close(dot(blur.A(x), y), dot(x, blur.A_adjoint(y)))
    assert (blur.A(x).norm() <= blur.norm * x.norm()).all()


def test_an_operator_without_a_norm_gets_one():
    class Scaling:
        def A(self, x):
            return 3 * x

        def A_adjoint(self, y):
            return 3 * y

    assert 3 <= norm_bound(Scaling(), random(1, 1, 4, 4)) <= 3.3
    problem = TVInpainting(
        random(1, 1, 4, 4), torch.ones(4, 4, dtype=torch.float64), operator=Scaling()
    )
    assert problem.K_norm**2 >= 8 + 9


@every
@pytest.mark.parametrize("tau", [0.1, 2.0])
def test_prox_of_F_minimises(problem, tau):
    """No perturbed point within the box has a smaller F(p) + ‖p − x‖²/(2τ)."""
    x = random(2, 3, 7, 6, seed=3)

    def objective(p):
        fidelity = problem.scale * problem.fidelity(p) if problem.operator is None else 0.0
        return fidelity + (p - x).square().flatten(1).sum(1) / (2 * tau)

    prox = problem.prox_F(x, tau)
    for seed in range(20):
        other = prox + 0.01 * random(2, 3, 7, 6, seed=seed)
        if problem.operator is None:
            other = other.clamp(problem.low, problem.high)
        assert (objective(other) >= objective(prox) - 1e-12).all()


@every
def test_prox_of_the_conjugate_by_moreau(problem):
    """prox_{σG*}(u) = u − σ prox_{G/σ}(u/σ): soft thresholding and a quadratic, written out."""
    sigma = 0.7
    bound = problem.scale * problem.weight
    u = tree_map(lambda v: 2 * v, problem.K(random(2, 3, 7, 6, seed=4)))
    proxed = problem.prox_G_conjugate(u, sigma)
    for name in ("vertical", "horizontal"):
        v = u[name] / sigma
        shrunk = v.sign() * (v.abs() - bound / sigma).clamp(min=0)
        torch.testing.assert_close(proxed[name], u[name] - sigma * shrunk)
    if "data" in u:
        target = problem.y if problem.mask is None else problem.mask * problem.y
        minimiser = (u["data"] + 2 * problem.scale * target) / (sigma + 2 * problem.scale)
        torch.testing.assert_close(proxed["data"], u["data"] - sigma * minimiser)


class Gain:
    """A diagonal operator with one factor per pixel and sample."""

    def __init__(self, factors):
        self.factors = factors

    def A(self, x):
        return self.factors * x

    def A_adjoint(self, y):
        return self.factors * y


class Identity:
    """An operator that returns its argument itself."""

    norm = 1.0

    def A(self, x):
        return x

    def A_adjoint(self, y):
        return y


def small_problems():
    y = random(3, 3, 4, 3, seed=1) + 2
    mask = random(3, 3, 4, 3, seed=2) > -0.5
    per_sample = Gain(1 + random(3, 1, 4, 3, seed=3).abs())
    return {
        "denoising": TVDenoising(y, weight=0.7),
        "inpainting, a mask per channel": TVInpainting(y, mask, weight=0.7),
        "blur": TVInpainting(y, mask, weight=0.7, operator=Blur(gaussian_kernel(0.6)).double()),
        "an operator per sample": TVInpainting(y, None, weight=0.7, operator=per_sample),
        "an operator that returns its argument": TVInpainting(
            y, None, weight=0.7, operator=Identity()
        ),
    }


def by_scipy(problem, sample, channel):
    """Solve min s‖Z(Ax − y)‖² + sλ Σ t, |Dx| ≤ t, with a general quadratic-programming solver."""
    shape = torch.Size(problem.sample_shape[1:])

    def image(x):
        full = torch.zeros_like(problem.y)
        full[sample, channel] = torch.as_tensor(x[: shape.numel()]).reshape(shape)
        return full

    def residual(x):
        whole = image(x) if problem.operator is None else problem.operator.A(image(x))
        return problem.smooth.apply_mask(whole - problem.y)[sample, channel].flatten().numpy()

    def slopes(x):
        return torch.cat(
            [d[sample, channel].flatten() for d in differences(image(x)).values()]
        ).numpy()

    edges = len(slopes(torch.zeros(shape.numel())))
    start = np.concatenate([problem.y[sample, channel].flatten().numpy(), np.full(edges, 10.0)])
    jacobian = np.stack(
        [residual(e) - residual(np.zeros_like(start)) for e in np.eye(len(start))], 1
    )
    D = np.stack([slopes(e) for e in np.eye(len(start))], 1)
    T = np.eye(len(start))[shape.numel() :]
    s = problem.scale
    best = minimize(
        lambda x: s * (residual(x) ** 2).sum() + s * problem.weight * x[shape.numel() :].sum(),
        start,
        jac=lambda x: 2 * s * jacobian.T @ residual(x) + s * problem.weight * T.sum(0),
        constraints=[
            {"type": "ineq", "fun": lambda x: (T - D) @ x, "jac": lambda x: T - D},
            {"type": "ineq", "fun": lambda x: (T + D) @ x, "jac": lambda x: T + D},
        ],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    return best.fun


SMALL = small_problems()


@pytest.mark.parametrize("problem", SMALL.values(), ids=SMALL.keys())
def test_certificates_enclose_the_optimum_of_a_general_solver(problem):
    optimum = sum(by_scipy(problem, 1, channel) for channel in range(3))
    reference = certify(problem, 1e-7, cache=False)
    assert float(reference.lower[1]) == pytest.approx(optimum, rel=1e-4)
    assert float(reference.lower[1]) <= optimum * (1 + 1e-6)
    assert float(reference.value[1]) >= optimum * (1 - 1e-6)


@pytest.mark.parametrize("problem", SMALL.values(), ids=SMALL.keys())
def test_no_dual_point_gives_more_than_the_optimum(problem):
    """Maximise the bound by gradient ascent from a random dual point."""
    optimum = certify(problem, 1e-9, cache=False).value
    u = {
        name: (0.1 * block).requires_grad_()
        for name, block in problem.K(random(3, 3, 4, 3, seed=6)).items()
    }
    ascent = torch.optim.Adam(u.values(), lr=0.03)
    first = problem.lower_bound(u).detach()
    for _ in range(300):
        bound = problem.lower_bound(u)
        assert (bound <= optimum * (1 + 1e-9)).all()
        ascent.zero_grad()
        (-bound.sum()).backward()
        ascent.step()
    assert bound.sum() > first.sum() + 1


def test_one_pixel_behind_an_operator():
    problem = TVInpainting(random(1, 1, 1, 1), None, operator=Blur(torch.ones(1, 1)).double())
    assert float(certify(problem, cache=False).value) == pytest.approx(0, abs=1e-9)


def test_a_huge_weight_is_certified_by_its_own_measure():
    """Relative to f(y) almost anything would do; the optimum is the constant image."""
    problem = TVDenoising(random(1, 1, 8, 8), weight=1e3)
    reference = certify(problem, 1e-6, cache=False)
    constant = problem.y.mean((-2, -1), keepdim=True).expand_as(problem.y)
    assert float(reference.value) == pytest.approx(float(problem.value(constant)), rel=1e-3)
    assert float(reference.lower) == pytest.approx(float(reference.value), rel=1e-3)


def test_poisson_against_a_dense_solve():
    r = random(2, 1, 5, 4)
    r = r - r.mean((-2, -1), keepdim=True)
    phi = solve_poisson(r)
    torch.testing.assert_close(add_adjoint(torch.zeros_like(r), differences(phi)), r)
    assert phi.mean((-2, -1)).abs().max() < 1e-12


def test_holes_are_filled_from_their_neighbours():
    y = torch.tensor([[[[1.0, 9.0, 3.0], [9.0, 9.0, 9.0], [9.0, 9.0, 9.0]]]])
    mask = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    filled = fill_holes(y, mask)
    torch.testing.assert_close(filled[0, 0, :2], torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]))
    assert ((filled >= 1) & (filled <= 3)).all()
    problem = TVInpainting(y, mask)
    torch.testing.assert_close(problem.start(fill=True), filled)
    torch.testing.assert_close(problem.start(), mask * y)


def test_bad_images_are_refused():
    y = torch.rand(2, 3, 4, 4)
    cases = [
        (lambda: TVDenoising(torch.rand(4, 4)), ValueError, r"y must be images"),
        (lambda: TVDenoising(torch.rand(0, 3, 4, 4)), ValueError, "empty batch"),
        (lambda: TVDenoising(y * float("nan")), ValueError, "y has NaN"),
        (lambda: TVDenoising((255 * y).byte()), TypeError, "y must be a floating-point"),
        (lambda: TVDenoising(y, weight=-0.1), ValueError, "weight must be positive"),
        (lambda: TVDenoising(y, scale=0.0), ValueError, "scale must be positive"),
        (
            lambda: TVInpainting(y, torch.zeros(4, 4)),
            ValueError,
            "has no observed pixel in sample 0, channel 0",
        ),
        (
            lambda: TVInpainting(y, torch.ones(5, 4)),
            ValueError,
            r"mask must broadcast to y .* \(5, 4\)",
        ),
        (lambda: TVInpainting(y, torch.full((4, 4), 0.5)), ValueError, "mask must be 0"),
        (
            lambda: TVInpainting(y, torch.ones(4, 4).double()),
            TypeError,
            "mask and y must share dtype",
        ),
        (lambda: Blur(torch.ones(2, 2)), ValueError, "odd sides"),
    ]
    for make, error, message in cases:
        with pytest.raises(error, match=message):
            make()
