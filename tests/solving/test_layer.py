"""A solver as a layer: its derivatives against closed forms and finite differences."""

from __future__ import annotations

import pytest
import torch

import mirrordescent as md
from mirrordescent.domains import Box, DomainError, PositiveOrthant, Simplex
from mirrordescent.methods import PDHG, ProjectedGradient
from mirrordescent.mirrors.singular_values import SpectralBall
from mirrordescent.problems import (
    Blur,
    Counts,
    EntropicTransport,
    Multiple,
    Problem,
    SquaredError,
)
from mirrordescent.solving.implicit import solve_hessian_system

DOUBLE = torch.float64


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def test_ridge_regression_by_its_closed_form():
    """dx*/db of ½‖Ax − b‖² is the pseudoinverse of A."""
    A = data(6, 3)
    b = data(1, 6, seed=1).requires_grad_()
    problem = md.LeastSquares(A, b)
    x = md.layer(problem, md.GD(1 / problem.smoothness()), iterations=3000, last=1000)
    rows = torch.stack([torch.autograd.grad(x[0, i], b, retain_graph=True)[0][0] for i in range(3)])
    torch.testing.assert_close(rows, torch.linalg.pinv(A))


def test_total_variation_by_finite_differences():
    """With respect to the picture and to λ, through PDHG with its dual variables."""
    y = data(1, 1, 3, 2).requires_grad_()
    weight = torch.tensor([0.3], dtype=DOUBLE, requires_grad=True)

    def solved(y, weight):
        return md.layer(md.TVInpainting(y, None, weight), PDHG(0.3), iterations=700, last=250)

    assert torch.autograd.gradcheck(solved, (y, weight), eps=1e-5, atol=1e-4, rtol=1e-3)


def test_constraints_that_are_active_pass_nothing_on():
    A = torch.eye(2, dtype=DOUBLE)
    b = torch.tensor([[1.0, -1.0]], dtype=DOUBLE, requires_grad=True)
    x = md.layer(
        md.LeastSquares(A, b, PositiveOrthant()), ProjectedGradient(PositiveOrthant(), 0.5), last=40
    )
    (gradient,) = torch.autograd.grad(x.sum(), b)
    torch.testing.assert_close(gradient, torch.tensor([[1.0, 0.0]], dtype=DOUBLE))


def test_inside_a_network():
    """The weight of a total variation is learned by a loss on its solutions."""
    clean = torch.zeros(1, 1, 8, 8, dtype=DOUBLE)
    clean[..., 2:6, 2:6] = 1
    noisy = clean + 0.2 * data(1, 1, 8, 8)
    log_weight = torch.tensor([-5.0], dtype=DOUBLE, requires_grad=True)
    optimiser = torch.optim.Adam([log_weight], 0.3)
    losses = []
    for _ in range(10):
        loss = (
            (md.layer(md.TVInpainting(noisy, None, log_weight.exp()), PDHG(0.3)) - clean)
            .square()
            .mean()
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


def test_counts_that_make_no_sense():
    with pytest.raises(ValueError, match="1 ≤ last ≤ iterations"):
        md.layer(md.LeastSquares(data(2, 2), data(1, 2)), md.GD(0.1), iterations=5, last=6)


@pytest.mark.parametrize("through", ["steps", "solution"])
def test_a_method_without_the_constraints_of_the_problem(through):
    """A layer used to return the minimum without constraints."""
    problem = md.LeastSquares(torch.eye(2), torch.tensor([[3.0, 0.5]]), Box(0.0, 1.0))
    with pytest.raises(DomainError, match="answer of GD is outside the domain of LeastSquares"):
        md.layer(problem, md.GD(0.5), iterations=50, through=through)
    inside = md.layer(
        problem, ProjectedGradient(problem.domain, 0.5), iterations=50, through=through
    )
    assert torch.allclose(inside, torch.tensor([[1.0, 0.5]]))


@pytest.mark.parametrize(
    "make",
    [
        lambda number: md.TVDenoising(torch.rand(1, 1, 4, 4), scale=number),
        lambda number: md.TVDenoising(torch.rand(1, 1, 4, 4), huber=number),
        lambda number: SquaredError(torch.ones(1, 3), curvature=number),
        lambda number: Counts(torch.ones(1, 3), background=number),
        lambda number: EntropicTransport(torch.eye(2), torch.ones(1, 2), torch.ones(2), number),
        lambda number: md.SVM(torch.rand(4, 2), torch.ones(4), C=number),
        lambda number: Multiple(number, Blur(torch.ones(3, 3))),
        lambda number: Box(0.0, number),
    ],
    ids=["scale", "huber", "curvature", "background", "epsilon", "C", "factor", "upper"],
)
def test_numbers_without_derivatives_are_refused(make):
    """Their derivatives used to be lost without a word."""
    make(torch.tensor(0.5))
    with pytest.raises(TypeError, match="must be a number, because there are no derivatives"):
        make(torch.tensor(0.5, requires_grad=True))


@pytest.mark.parametrize("through", ["steps", "solution"])
@pytest.mark.parametrize("kind", ["inpainting", "denoising", "composite", "L1", "ridge"])
def test_one_learnable_weight_for_all_samples(kind, through):
    """A weight of shape () gets the sum of the derivatives of weights (batch,)."""
    y = data(2, 1, 3, 2)
    fit = md.SquaredError(y)
    ridge = md.problems.Ridge(0.1)
    make = {
        "inpainting": lambda w: md.TVInpainting(y, None, w, huber=0.3),
        "denoising": lambda w: md.TVDenoising(y, w, huber=0.3),
        "composite": lambda w: md.Composite(fit, [md.problems.TV(w, huber=0.3)]),
        "L1": lambda w: md.Composite(fit, [md.L1(w), ridge]),
        "ridge": lambda w: md.Composite(fit, [md.problems.Ridge(w)]),
    }[kind]
    if (kind, through) == ("L1", "solution"):
        pytest.skip("it has kinks")
    method = PDHG(0.3) if kind == "L1" else md.GD(0.1)
    one = torch.tensor(0.2, dtype=DOUBLE, requires_grad=True)
    each = torch.full((2,), 0.2, dtype=DOUBLE, requires_grad=True)
    options = {"iterations": 1500, "last": 500, "through": through}
    (found,) = torch.autograd.grad(md.layer(make(one), method, **options).pow(2).sum(), one)
    (expected,) = torch.autograd.grad(md.layer(make(each), method, **options).pow(2).sum(), each)
    assert found.shape == ()
    assert abs(float(found)) > 1e-3
    torch.testing.assert_close(found, expected.sum())


def test_weights_of_shape_nothing_without_derivatives_are_numbers():
    assert md.TVDenoising(data(1, 1, 3, 3), torch.tensor(0.5)).weight == 0.5
    assert isinstance(md.L1(torch.tensor(0.5)).weight, float)
    for make in (md.L1, lambda w: md.TVDenoising(data(1, 1, 3, 3), w)):
        with pytest.raises(ValueError, match="weight must be positive"):
            make(torch.tensor(-0.5, requires_grad=True))


@pytest.mark.parametrize("through", ["steps", "solution"])
def test_the_kernel_of_a_blur_is_learned_again_and_again(through):
    """Two backward passes of one operator; layers begin with steps without a graph."""
    kernel = (0.1 * data(3, 3).abs()).requires_grad_()
    blur = md.problems.Blur(kernel)
    problem = md.Composite(md.SquaredError(data(1, 1, 4, 4), blur), [md.problems.Ridge(0.5)])
    found = []
    for _ in range(2):
        x = md.layer(problem, md.GD(0.3), iterations=400, last=100, through=through)
        loss = x.square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        found.append(kernel.grad.clone())
        kernel.grad = None
    assert float(found[0].norm()) > 0
    torch.testing.assert_close(found[0], found[1])


def test_a_run_that_has_not_converged_says_so():
    """The derivative is 1, of which 20 slow steps give 0.02."""
    centre = torch.ones(1, 2, dtype=DOUBLE, requires_grad=True)
    slow = md.Quadratic(torch.tensor([1.0, 1e-3], dtype=DOUBLE), centre)
    for options in ({}, {"last": 200}, {"last": 1}):
        with pytest.warns(UserWarning, match="layer has not converged: x still moves"):
            md.layer(slow, md.GD(1.0), **options)
    fast = md.Quadratic(torch.tensor([1.0, 0.5], dtype=DOUBLE), centre)
    x = md.layer(fast, md.GD(1.0), last=60)
    (gradient,) = torch.autograd.grad(x.sum(), centre)
    torch.testing.assert_close(gradient, torch.ones_like(gradient))
    md.layer(fast, md.GD(1.0), centre.detach())  # at the solution from the start


# Through the solution, by the implicit function theorem


def through(problem, method=None, **options):
    """Steps of a known length where there is one, since finite differences take many solves."""
    if method is None:
        with torch.no_grad():
            method = ProjectedGradient(problem.domain, 1 / problem.smoothness())
    return md.layer(problem, method, iterations=600, through="solution", **options)


def test_the_theorem_for_least_squares_by_its_closed_form():
    """x* = A⁺b of a batch, with respect to A and b, against autograd through the pseudoinverse."""
    A = data(2, 6, 3).requires_grad_()
    b = data(2, 6, seed=1).requires_grad_()
    weights = data(2, 3, seed=2)
    found = torch.autograd.grad((weights * through(md.LeastSquares(A, b))).sum(), (A, b))
    closed = (torch.linalg.pinv(A) @ b[..., None])[..., 0]
    for ours, theirs in zip(
        found, torch.autograd.grad((weights * closed).sum(), (A, b)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


def huber(y, weight):
    return md.TVInpainting(y, None, weight, huber=0.3)


class Blurred(Problem):
    """½‖k ∗ x − y‖² + ½‖x‖²/5, to be differentiated with respect to the kernel k."""

    def __init__(self, kernel, y):
        super().__init__(1, (4, 3), y=y)
        self.kernel = kernel

    def smoothness(self):
        return 0.2 + float(self.kernel.detach().abs().sum()) ** 2

    def value(self, x):
        return 0.5 * (self._residual(x).square() + x.square() / 5).sum((1, 2))

    def grad(self, x):
        back = torch.nn.functional.conv_transpose2d(
            self._residual(x)[:, None], self.kernel[None, None], padding=1
        )
        return back[:, 0] + x / 5

    def _residual(self, x):
        return (
            torch.nn.functional.conv2d(x[:, None], self.kernel[None, None], padding=1)[:, 0]
            - self.y
        )


GRADIENTS = {
    "huber, picture and weight": (
        huber,
        lambda: (data(1, 1, 3, 2), torch.tensor([0.3], dtype=DOUBLE)),
    ),
    "a blur and what it left": (Blurred, lambda: (0.3 * data(3, 3), data(1, 4, 3, seed=1))),
    "logistic regression": (
        lambda features: md.LogisticRegression(features, data(8, seed=5).sign(), ridge=0.1),
        lambda: (data(8, 2),),
    ),
    "on the orthant": (
        lambda A, b: md.LeastSquares(A, b, PositiveOrthant()),
        lambda: (data(6, 4), data(1, 6, seed=1)),
    ),
    "in a box": (
        lambda A, b: md.LeastSquares(A, b, Box(-0.1, 0.2)),
        lambda: (data(6, 4), data(1, 6, seed=1)),
    ),
    "on a simplex": (
        lambda A, b: md.LeastSquares(A, b, Simplex()),
        lambda: (data(6, 5), data(1, 6, seed=1)),
    ),
}


@pytest.mark.parametrize(("make", "inputs"), GRADIENTS.values(), ids=GRADIENTS)
def test_the_theorem_by_finite_differences(make, inputs):
    tensors = tuple(tensor.requires_grad_() for tensor in inputs())
    assert torch.autograd.gradcheck(
        lambda *given: through(make(*given)), tensors, eps=1e-5, atol=1e-4, rtol=1e-3
    )


@pytest.mark.parametrize(
    "domain", [PositiveOrthant(), Box(-0.1, 0.2), Simplex()], ids=["orthant", "box", "simplex"]
)
def test_some_constraints_of_these_problems_are_active_and_some_are_not(domain):
    """Or the tests above would test nothing."""
    A = data(6, 5 if isinstance(domain, Simplex) else 4)
    b = data(1, 6, seed=1)
    problem = md.LeastSquares(A, b, domain)
    x = through(problem)
    moved = problem.domain.along_face(x, torch.arange(1.0, 1 + x.shape[-1]).to(x)[None])
    assert 0 < int((moved == 0).sum()) < x.shape[-1]


def test_functions_of_dicts_and_of_what_they_capture():
    """x* = (a/2, 3b) of (u − a/2)² + (v − 3b)⁴ + (v − 3b)²."""
    a = torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)
    b = torch.tensor(0.5, dtype=DOUBLE, requires_grad=True)

    def f(x):
        v = x["v"] - 3 * b
        return (x["u"] - a / 2).square().sum(-1) + (v.pow(4) + v.square()).sum(-1)

    x0 = {"u": torch.zeros(2, 1, dtype=DOUBLE), "v": torch.zeros(2, 2, dtype=DOUBLE)}
    x = through(md.Function(f), md.GD(0.1), x0=x0)
    torch.testing.assert_close(
        x["v"].detach(), torch.full((2, 2), 1.5, dtype=DOUBLE), atol=1e-6, rtol=0
    )
    found = torch.autograd.grad(x["u"].sum() + 10 * x["v"].sum(), (a, b))
    torch.testing.assert_close(
        torch.stack(found), torch.tensor([1.0, 120.0], dtype=DOUBLE), atol=1e-5, rtol=0
    )


def test_what_the_theorem_cannot_do_is_said():
    with pytest.raises(
        TypeError, match="has kinks, where the implicit function theorem says nothing"
    ):
        through(md.TVDenoising(data(1, 1, 3, 3)), PDHG())
    flat = md.LeastSquares(data(1, 3), data(1, 1).requires_grad_())
    with pytest.raises(ValueError, match="not the only one nearby"):
        through(flat)[0].sum().backward()
    y = data(1, 6, seed=1).requires_grad_()
    with pytest.warns(UserWarning, match="layer has not converged"):
        md.layer(md.LeastSquares(data(6, 3), y), md.GD(1e-3), iterations=3, through="solution")
    with pytest.raises(TypeError, match="SpectralBall needs a method _along_face"):
        through(InABall(), ProjectedGradient(InABall.domain, 0.5)).sum().backward()
    with pytest.raises(ValueError, match="unknown through 'stpes'"):
        md.layer(flat, md.GD(0.1), through="stpes")


class InABall(Problem):
    domain = SpectralBall(0.5)

    def __init__(self):
        super().__init__(1, (2, 2), c=data(1, 2, 2).requires_grad_())

    def value(self, x):
        return 0.5 * (x - self.c).square().sum((1, 2))

    def grad(self, x):
        return x - self.c


def test_conjugate_gradients_solve_every_sample_by_itself():
    A = data(3, 5, 5)
    H = A @ A.mT + 0.1 * torch.eye(5, dtype=DOUBLE)
    b = data(3, 5, seed=1)
    b[1] = 0
    found = solve_hessian_system(lambda v: (H @ v[..., None])[..., 0], b)
    torch.testing.assert_close(found, torch.linalg.solve(H, b), atol=1e-8, rtol=1e-8)
    with pytest.warns(UserWarning, match="was not found in 2 steps"):
        solve_hessian_system(lambda v: (H @ v[..., None])[..., 0], b, iterations=2)
