"""Composite problems: closed forms of the parts, validity of bounds, and other solvers."""

from __future__ import annotations

import copy
import math
from functools import cache
from types import SimpleNamespace

import pytest
import torch

import mirrordescent as md
from mirrordescent import FISTA, PDHG, CondatVu, certify, solve
from mirrordescent.domains import Box, PositiveOrthant, Simplex
from mirrordescent.methods.fista import ProximalNesterov
from mirrordescent.problems import (
    L1,
    TV,
    AreaMeans,
    Blur,
    Chain,
    Composite,
    Counts,
    Fourier,
    Haar,
    LeastSquares,
    Linear,
    LogisticRegression,
    Matrix,
    ParallelBeam,
    PoissonTomography,
    Ridge,
    Roughness,
    Sampling,
    SquaredError,
    TVDenoising,
    TVInpainting,
    gaussian_kernel,
    radial_mask,
)
from mirrordescent.problems.fits import Fit
from mirrordescent.problems.operators import norm_bound, require_adjoint
from mirrordescent.solving import Rule

DOUBLE = torch.float64


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def images(count=2, channels=1, size=8, seed=0):
    return random(count, channels, size, size, seed=seed).sigmoid()


def weights(low=0.02, high=0.1):
    return torch.tensor([low, high], dtype=DOUBLE)


def fourier(real):
    return Fourier(radial_mask(8, 3).double(), real)


PROBLEMS = {
    "denoising": lambda: Composite(SquaredError(images()), [TV(0.1)]),
    "isotropic inpainting on a box": lambda: Composite(
        SquaredError(images(), mask=images(seed=3) > 0.4),
        [TV(weights(), isotropic=True), Box(0.0, 1.0)],
    ),
    "deblurring": lambda: Composite(
        SquaredError(images(), Blur(gaussian_kernel(0.8).double())), [TV(weights())]
    ),
    "complex MRI": lambda: Composite(
        SquaredError(fourier(False).A(images(channels=2)), fourier(False)),
        [TV(0.02, isotropic=True, coupled=True)],
    ),
    "real MRI, wavelets": lambda: Composite(
        SquaredError(fourier(True).A(images()), fourier(True)), [L1(0.01, Haar(2))]
    ),
    "MRI with two terms": lambda: Composite(
        SquaredError(fourier(True).A(images()), fourier(True)),
        [TV(weights(0.005, 0.02)), L1(0.01, Haar(1))],
    ),
    "CT with positivity": lambda: Composite(
        SquaredError(ParallelBeam(8, 5, 11).A(images()), ParallelBeam(8, 5, 11)),
        [TV(0.02), PositiveOrthant()],
    ),
    "lasso": lambda: Composite(
        SquaredError(random(2, 6), Matrix(random(2, 6, 9))), [L1(weights(0.5, 1.0))]
    ),
    "lasso, not negative": lambda: Composite(
        SquaredError(random(2, 6), Matrix(random(6, 9))), [L1(0.5), PositiveOrthant()]
    ),
    "elastic net": lambda: Composite(
        SquaredError(random(2, 6), Matrix(random(6, 9))), [L1(0.5), Ridge(0.1)]
    ),
    "least squares, not negative": lambda: Composite(
        SquaredError(random(2, 6), Matrix(random(6, 4).abs())), [PositiveOrthant()]
    ),
    "least squares on the simplex": lambda: Composite(
        SquaredError(random(2, 6), Matrix(random(6, 4))), [Simplex()]
    ),
    "counts": lambda: Composite(
        Counts((5 * images()).round(), Blur(gaussian_kernel(0.8).double()))
    ),
    "counts with TV": lambda: Composite(
        Counts((5 * images()).round(), Blur(gaussian_kernel(0.8).double())), [TV(0.1)]
    ),
    "sparse logistic regression": lambda: Composite(
        LogisticRegression(random(2, 20, 5), random(2, 20, seed=1).sign(), ridge=0.01), [L1(0.02)]
    ),
    "Huber": lambda: Composite(SquaredError(images()), [TV(0.1, huber=0.05)]),
    "smooth": lambda: Composite(
        SquaredError(images(), mask=images(seed=3) > 0.4), [Roughness(0.3), Ridge(0.1)]
    ),
}


@pytest.fixture(params=PROBLEMS)
def problem(request):
    return PROBLEMS[request.param]()


@cache
def optimum(name):
    return certify(PROBLEMS[name](), 1e-6, cache=False)


@pytest.fixture
def best(request):
    return optimum(request.node.callspec.params["problem"])


def inside(problem, seed=5):
    x = random(problem.batch, *problem.sample_shape, seed=seed)
    return problem.domain.project(x.abs() if isinstance(problem.domain, PositiveOrthant) else x)


def test_the_gradient_is_that_of_the_value(problem):
    x = (inside(problem) + 0.01).requires_grad_()
    assert torch.allclose(
        torch.autograd.grad(problem.value(x).sum(), x)[0], problem.grad(x.detach()), atol=1e-10
    )


def test_samples_do_not_know_of_each_other(problem):
    x = inside(problem)
    other = x.clone()
    other[1] = inside(problem, seed=6)[1]
    assert torch.equal(problem.value(x)[0], problem.value(other)[0])
    assert torch.equal(problem.grad(x)[0], problem.grad(other)[0])


def test_rounded_kinks_tend_to_kinks(problem):
    x = inside(problem) + 0.01
    assert torch.allclose(problem.smoothed_grad(x, 1e-12), problem.grad(x), atol=1e-8)


@pytest.mark.parametrize("explicit", [False, True])
def test_the_saddle_point_form_is_one(problem, explicit):
    """Check the adjoint and the norm of K, and that the prox of G* with σ = 0 is a projection."""
    form = problem.explicit() if explicit else problem
    x = random(problem.batch, *problem.sample_shape)
    y = random(problem.batch, *problem.sample_shape, seed=1)
    if not form.block_norms:
        return
    u = form.K(y)
    forward = sum((a * b).sum() for a, b in zip(form.K(x).values(), u.values(), strict=True))
    assert float(forward) == pytest.approx(float((x * form.K_adjoint(u)).sum()), rel=1e-9)
    for _ in range(30):
        x = form.K_adjoint(form.K(x / x.norm()))
    assert float(x.norm()) ** 0.5 <= form.K_norm * (1 + 1e-9)
    once = form.prox_G_conjugate(u, 0.0)
    for name, block in form.prox_G_conjugate(once, 0.0).items():
        assert torch.allclose(block, once[name], atol=1e-10)


@pytest.mark.parametrize("sigma", [0.3, torch.tensor([0.2, 3.0], dtype=DOUBLE)])
def test_proxes_of_conjugates_minimise(problem, sigma):
    """No point nearby has a lesser G*(u') + ‖u' − u‖²/(2σ)."""
    parts = [(term, term.K(3 * inside(problem)), term.conjugate) for term in problem.parts]
    step = sigma if isinstance(sigma, torch.Tensor) else torch.full((2,), sigma, dtype=DOUBLE)
    if isinstance(fit := problem.smooth, Fit):  # the data, as a block like the others
        alone = SimpleNamespace(
            prox_conjugate=lambda v, t: {"data": fit.prox_conjugate(v["data"], t)}
        )
        seen = {"data": fit.apply_mask(random(*fit.y.shape)).clamp(max=0.9)}
        parts.append((alone, seen, lambda v: fit.conjugate(fit.apply_mask(v["data"]))[0]))
    for term, u, conjugate in parts:
        found = term.prox_conjugate(u, sigma)

        def cost(v, u=u, conjugate=conjugate):
            return conjugate(v) + sum((v[n] - u[n]).square().flatten(1).sum(1) for n in u) / (
                2 * step
            )

        for seed in range(5):
            moved = {n: b + 0.01 * random(*b.shape, seed=seed) for n, b in found.items()}
            near = term.prox_conjugate(moved, 0.0)  # where the conjugate is finite
            assert bool((cost(near) >= cost(found) - 1e-10).all())


def test_certificates_prove(problem, best):
    assert best.proven
    assert bool((best.relative_gap <= 1e-6).all())
    assert bool((best.lower <= best.value).all())
    assert bool(problem.domain.contains(best.x, closed=True).all())


def test_bounds_are_below_everything(problem, best):
    """No primal and dual points give a bound above the optimum."""
    for seed in range(4):
        x = inside(problem, seed)
        y = 2 * inside(problem, seed + 10)
        for form in (problem, problem.explicit()):
            u = form.K(y)
            assert bool((form.bound_of_pair(x, u) <= best.value + 1e-12).all())
        at = problem.bound_at(x)
        assert at is None or bool((at <= best.value + 1e-12).all())


def test_bounds_in_single_precision_are_below_too(problem, best):
    single = copy.deepcopy(problem).float()
    exact = certify(single, 1e-6, cache=False)  # of data that were rounded
    at = single.bound_at(best.x.float())
    assert at is None or bool((at.double() <= exact.value).all())


@pytest.mark.parametrize("method", [PDHG, CondatVu, FISTA])
def test_classical_solvers_find_the_minimum(problem, best, method):
    """Each solver that applies to the problem finds the minimum."""
    if method is PDHG and not problem.proximable:
        with pytest.raises(TypeError, match="CondatVu"):
            solve(problem, PDHG(), iterations=1, progress=False)
        return
    if method is CondatVu and problem.dual_data and isinstance(problem.smooth, Counts):
        return  # whose curvature is large, so that its steps are short
    if method is FISTA and math.isinf(problem.smoothness()) and problem.proximal() is None:
        return  # kinks without a simple prox
    made = method(3.0) if method is not FISTA else FISTA()
    target = best.value + 3e-4 * (best.start_value - best.lower).clamp(min=1e-3)
    reached = Rule(lambda snapshot: snapshot.value <= target)
    iterations = 1000 if method is FISTA else 2000
    found = solve(problem, made, iterations=iterations, stop=reached, progress=False)
    assert bool((found.best_value <= target).all())


@pytest.mark.parametrize("scale", [1e-3, 1e6])
def test_certificates_do_not_depend_on_the_unit(scale):
    """y and x times c, f times c²: weights of total variation go with c."""
    blur = Blur(gaussian_kernel(0.8).double())
    plain = certify(Composite(SquaredError(images(), blur), [TV(0.05)]), 1e-5, cache=False)
    found = certify(
        Composite(SquaredError(scale * images(), blur), [TV(scale * 0.05)]), 1e-5, cache=False
    )
    assert bool((found.relative_gap <= 1e-5).all())
    assert torch.allclose(found.value / scale**2, plain.value, rtol=1e-4)


def test_total_variation_is_the_one_of_the_problems_that_have_kernels():
    y = images()
    mask = images(seed=2) > 0.3
    x = images(seed=4)
    own = Composite(SquaredError(y, mask=mask), [TV(0.05, isotropic=True)])
    known = TVInpainting(y, mask.double(), 0.1, isotropic=True)
    assert torch.allclose(own.value(x), known.value(x))
    assert torch.allclose(own.grad(x), known.grad(x))
    assert torch.allclose(
        certify(own, 1e-7, cache=False).value, certify(known, 1e-7, cache=False).value, rtol=1e-6
    )
    plain = TVDenoising(y, 0.1)
    own = Composite(SquaredError(y), [TV(0.05)])
    assert torch.allclose(
        certify(own, 1e-8, cache=False).x, certify(plain, 1e-8, cache=False).x, atol=1e-4
    )


def test_counts_are_those_of_tomography():
    beam = ParallelBeam(6, 4, 9)
    y = (10 * random(2, 1, 4, 9).abs()).round()
    x = images(size=6)
    own = Composite(Counts(y, beam, 1.5), [Roughness(0.3)])
    known = PoissonTomography(y, beam, 1.0, 1.5, 0.3)
    assert torch.allclose(own.value(x), known.value(x))
    assert torch.allclose(own.grad(x), known.grad(x))
    assert torch.allclose(
        certify(own, 1e-6, cache=False).value, certify(known, 1e-6, cache=False).value, rtol=1e-5
    )


def test_soft_thresholding_solves_sparse_denoising():
    y = torch.tensor([[3.0, -0.4, 0.2, -2.0]], dtype=DOUBLE)
    x = certify(Composite(SquaredError(y), [L1(0.5)]), 1e-10, cache=False).x
    assert torch.allclose(x, torch.tensor([[2.5, 0.0, 0.0, -1.5]], dtype=DOUBLE), atol=1e-5)


def test_the_lasso_is_that_of_scikit_learn():
    from sklearn.linear_model import Lasso

    A = random(30, 12)
    b = random(30, seed=1)
    x = certify(Composite(SquaredError(b[None], Matrix(A)), [L1(2.0)]), 1e-9, cache=False).x[0]
    known = Lasso(alpha=2.0 / 30, fit_intercept=False, tol=1e-10, max_iter=100_000).fit(
        A.numpy(), b.numpy()
    )
    assert torch.allclose(x, torch.from_numpy(known.coef_), atol=1e-4)


def test_least_squares_on_a_set_are_the_same():
    A = random(6, 4)
    b = random(2, 6)
    own = certify(Composite(SquaredError(b, Matrix(A)), [Simplex()]), 1e-8, cache=False)
    known = certify(LeastSquares(A, b, Simplex()), 1e-8, cache=False)
    assert torch.allclose(own.value, known.value, rtol=1e-6)


def test_proximal_steps_that_are_given_find_the_minimum_too():
    """A step of 1/(2L) converges; kinks without a simple prox raise an error."""
    for name in ("lasso", "lasso, not negative", "elastic net", "real MRI, wavelets"):
        problem = PROBLEMS[name]()
        best = optimum(name)
        smooth, _ = problem.proximal()
        found = solve(
            problem, ProximalNesterov(0.5 / smooth.smoothness()), iterations=2000, progress=False
        )
        assert bool((found.value - best.value <= 1e-4 * (best.start_value - best.lower)).all())
    with pytest.raises(TypeError, match=r"needs a problem that offers proximal\(\)"):
        solve(PROBLEMS["denoising"](), ProximalNesterov(0.1), iterations=1, progress=False)


def test_without_terms_and_set_the_minimum_is_that_of_what_is_smooth():
    smooth = LeastSquares(random(6, 4), random(2, 6))
    assert torch.equal(Composite(smooth).minimiser(1e-6)[0], smooth.minimiser(1e-6)[0])
    assert Composite(smooth, [Box(0.0, 0.1)]).minimiser(1e-6) is None


def test_what_cannot_be_proven_says_so():
    problem = Composite(
        SquaredError(random(2, 3), Matrix(random(3, 5))), [L1(0.1, Matrix(random(4, 5, seed=1)))]
    )
    with pytest.raises(TypeError, match="cannot be certified"):
        certify(problem, cache=False)


OPERATORS = {
    "blur": (lambda: Blur(random(2, 3, 5)), (1, 8, 8)),
    "matrix": (lambda: Matrix(random(5, 12), (3, 4)), (3, 4)),
    "a matrix each": (lambda: Matrix(random(2, 5, 12)), (12,)),
    "sampling": (lambda: Sampling(random(2, 1, 4, 4) > 0), (1, 4, 4)),
    "Fourier": (lambda: fourier(False), (2, 8, 8)),
    "real Fourier": (lambda: fourier(True), (1, 8, 8)),
    "Haar": (lambda: Haar(2), (3, 8, 4)),
    "chain": (lambda: Chain(Blur(gaussian_kernel(1.0).double()), fourier(True)), (1, 8, 8)),
    "any function": (
        lambda: Linear(lambda x: x.flip(-1).cumsum(-1)[..., ::2], (1, 6, 6)),
        (1, 6, 6),
    ),
    "area means": (lambda: AreaMeans(2), (3, 4, 6)),
    "beam": (lambda: ParallelBeam(8, 5, 11), (1, 8, 8)),
}


@pytest.fixture(params=OPERATORS)
def operator(request):
    make, shape = OPERATORS[request.param]
    return make(), random(2, *shape)


def dense(A, x):
    """Return the matrices of an operator, one for every sample: (batch, m, n)."""
    n = x[0].numel()
    columns = [
        A.A(torch.eye(n, dtype=DOUBLE)[j].reshape(x[0].shape).expand_as(x).contiguous())
        for j in range(n)
    ]
    return torch.stack([column.flatten(1) for column in columns], -1)


def test_operators_have_their_adjoint_and_norm(operator):
    A, x = operator
    require_adjoint(A, x, A.A(x))
    true = float(torch.linalg.matrix_norm(dense(A, x), 2).max())
    assert true <= norm_bound(A, x) * (1 + 1e-9)


def test_operators_can_be_differentiated(operator):
    A, x = operator
    weight = random(*A.A(x).shape, seed=3)
    x.requires_grad_()
    found = torch.autograd.grad((A.A(x) * weight).sum(), x)[0]
    assert torch.allclose(found, A.A_adjoint(weight), atol=1e-9)


@pytest.mark.parametrize("name", ["sampling", "Fourier", "real Fourier", "area means"])
def test_resolvents_solve_their_equation(name):
    make, shape = OPERATORS[name]
    A = make()
    x = random(2, *shape)
    t = torch.tensor([0.3, 7.0], dtype=DOUBLE).reshape(2, 1, 1, 1)
    found = A.resolvent(x, t)
    assert torch.allclose(found + t * A.A_adjoint(A.A(found)), x)


def test_norms_of_operators_of_every_sample_are_found():
    """A test with one sample would see only the smaller norm."""
    A = Linear(lambda x: x * torch.tensor([1.0, 9.0], dtype=x.dtype)[: len(x), None], (3,))
    assert norm_bound(A, random(2, 3)) >= 9.0


def test_complex_data_are_two_channels():
    y = torch.complex(random(2, 8, 8), random(2, 8, 8, seed=1))
    for data in (y, y.unsqueeze(1)):
        assert torch.equal(SquaredError(data, fourier(False)).y, torch.stack([y.real, y.imag], 1))


def test_the_transform_of_magnetic_resonance_is_that_of_fft():
    x = random(1, 8, 8)
    seen = Fourier(torch.ones(8, 8), real=True).double().A(x.unsqueeze(1))
    known = torch.fft.fft2(x, norm="ortho")
    assert torch.allclose(seen, torch.stack([known.real, known.imag], 1))


BAD = {
    "two sets": (
        lambda: Composite(SquaredError(images()), [Box(0, 1), PositiveOrthant()]),
        "one set",
    ),
    "no term": (lambda: Composite(SquaredError(images()), [3.0]), "instances of Term or Domain"),
    "kinks": (lambda: Composite(TVDenoising(images()), []), "pass functions with kinks as terms"),
    "weights": (
        lambda: Composite(SquaredError(images(3)), [TV(weights())]),
        "same number of problems",
    ),
    "negative weight": (lambda: TV(-1.0), "weight must be positive"),
    "a weight that is not": (lambda: L1(torch.tensor([1.0, -1.0])), "weight must be positive"),
    "no images": (lambda: Composite(SquaredError(random(2, 5)), [TV(1.0)]), "needs signals"),
    "NaN": (lambda: SquaredError(torch.full((1, 3), torch.nan)), "NaN"),
    "mask": (lambda: SquaredError(images(), mask=images()), "0 .missing. or 1"),
    "counts": (lambda: Counts(-images()), "counts ≥ 0"),
    "no adjoint": (lambda: SquaredError(images(), Wrong()), "Linear"),
    "shape": (lambda: Matrix(random(3, 4), (5,)), "shape must have 4 entries"),
    "Haar": (lambda: Composite(SquaredError(images(size=6)), [L1(1.0, Haar(2))]), "multiples of 4"),
    "a wrong adjoint of a term": (
        lambda: Composite(SquaredError(images()), [L1(1.0, Wrong())]),
        "not the adjoint",
    ),
    "any function": (
        lambda: Composite(md.Function(lambda x: x.sum(-1)), [L1(1.0)]),
        "shape of points",
    ),
}


class Wrong:
    def A(self, x):
        return x.cumsum(-1)

    def A_adjoint(self, y):
        return y.cumsum(-1)


@pytest.mark.parametrize("name", BAD)
def test_what_makes_no_sense_is_refused(name):
    make, message = BAD[name]
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_data_may_require_derivatives():
    y = images().requires_grad_()
    problem = Composite(
        SquaredError(y), [TV(torch.tensor([0.1, 0.2], dtype=DOUBLE, requires_grad=True))]
    )
    x = md.layer(problem, PDHG(0.3), iterations=600, last=20)
    assert bool(torch.autograd.grad(x.sum(), y)[0].isfinite().all())


class Physics:
    """A third-party operator that works in single precision, with vectors as images."""

    def __init__(self):
        self.matrix = random(40, 64).float() / 8

    def A(self, x, **unused):
        return x.flatten(1) @ self.matrix.T

    def A_adjoint(self, y, **unused):
        return (y @ self.matrix).reshape(len(y), 1, 8, 8)


def test_operators_of_others_are_certified_in_their_own_precision():
    """Compressed sensing, whose data are not images."""
    physics = Physics()
    problem = Composite(SquaredError(physics.A(images().float()), physics), [TV(0.02)])
    found = certify(problem, 1e-3, cache=False)
    assert not found.proven  # the bound rests on the adjoint that Physics states
    assert any("Physics" in statement for statement in found.conditional_on)
    assert bool((found.relative_gap <= 1e-3).all())
    same = Composite(
        SquaredError(problem.smooth.y.double(), Matrix(physics.matrix.double(), (1, 8, 8))),
        [TV(0.02)],
    )
    assert torch.allclose(found.value.double(), certify(same, 1e-6, cache=False).value, rtol=2e-3)


def test_features_have_the_weight_of_every_term():
    y = torch.rand(2, 1, 6, 6, dtype=torch.float64)

    def features(first, second):
        problem = Composite(SquaredError(y), [TV(first), L1(second)])
        return problem.features(problem.start())

    found = features(0.1, 0.3)
    twice = features(0.2, 0.3)
    assert {"term 1", "term 2"} <= found.keys()
    change = twice["term 1"] - found["term 1"]
    torch.testing.assert_close(change, torch.full_like(change, math.log(2)))
    torch.testing.assert_close(twice["term 2"], found["term 2"])
