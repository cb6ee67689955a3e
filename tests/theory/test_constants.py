"""Constants against dense eigenvalues, formulas and certificates."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from mirrordescent import (
    SVM,
    Function,
    LeastSquares,
    LogisticRegression,
    MatrixGame,
    Quadratic,
    TVDenoising,
)
from mirrordescent.mirrors import (
    Burg,
    Conjugate,
    ConvICNN,
    DenseICNN,
    Diagonal,
    HyperbolicEntropy,
    Layerwise,
    LearnedPair,
    Logit,
    Multipliers,
    NegativeEntropy,
    PNorm,
    SimplexEntropy,
    Spline,
    SquaredPNorm,
)
from mirrordescent.theory import KnownConstant, map_constants, problem_constants
from mirrordescent.theory.curvature import asymmetry, extreme_eigenvalues, has_jump, smallest_secant
from mirrordescent.theory.geometry import exact_geometry


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomised(potential, seed=0):
    generator = torch.Generator().manual_seed(seed)
    potential = potential.double()
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.add_(
                0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            )
    return potential


def dense_eigenvalues(gradient, x):
    """All eigenvalues of the Jacobian at each sample, by autograd, entry by entry."""
    found = []
    for sample in x:
        shape = sample.shape
        jacobian = torch.func.jacrev(lambda p, s=shape: gradient(p.reshape(1, *s)).flatten())(
            sample.flatten()
        )
        found.append(torch.linalg.eigvalsh(jacobian.detach()))
    return torch.stack(found)


POTENTIALS = {"dense": DenseICNN(6, hidden=8), "images": ConvICNN(1, filters=3)}


@pytest.mark.parametrize("kind", POTENTIALS)
def test_learned_potentials(kind):
    potential = randomised(POTENTIALS[kind])
    x = random(3, 6) if kind == "dense" else random(3, 1, 4, 5)
    eigenvalues = dense_eigenvalues(potential.gradient, x)
    pair = LearnedPair(potential, potential)
    constants = map_constants(exact_geometry(pair, "primal"), [x])
    assert constants.smoothness.estimate == pytest.approx(float(eigenvalues.max()), rel=0.01)
    assert constants.smallest_curvature == pytest.approx(float(eigenvalues.min()), rel=0.01)
    assert constants.alpha == KnownConstant(potential.strong_convexity, "certified")
    assert constants.alpha.value <= float(eigenvalues.min())
    assert constants.dual_smoothness.value == 1 / constants.alpha.value

    conjugate = map_constants(Conjugate(potential), [x], duals=[x])
    assert conjugate.dual_smoothness.estimate == pytest.approx(float(eigenvalues.max()), rel=0.01)
    assert conjugate.dual_smoothness.value > eigenvalues.max()
    assert conjugate.alpha.value < 1 / eigenvalues.max()
    assert conjugate.smoothness == KnownConstant(1 / potential.strong_convexity, "certified")


@settings(max_examples=30)
@given(n=st.integers(1, 12), seed=st.integers(1, 10**6), rank=st.integers(1, 12))
def test_lanczos_finds_the_extremes_of_any_matrix(n, seed, rank):
    """Few distinct eigenvalues, low rank and different samples in a batch are included.

    Seed 0 also draws the first vector of Lanczos' method, which must not be an eigenvector.
    """
    factors = random(2, n, min(rank, n), seed=seed)
    matrices = torch.cat([factors @ factors.mT, 2 * torch.eye(n, dtype=torch.float64)[None]])
    low, high = extreme_eigenvalues(lambda x: torch.einsum("bij,bj->bi", matrices, x), random(3, n))
    eigenvalues = torch.linalg.eigvalsh(matrices)
    torch.testing.assert_close(low, eigenvalues[:, 0], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(high, eigenvalues[:, -1], rtol=1e-8, atol=1e-8)


def test_lanczos_on_a_large_matrix_in_single_precision():
    spectrum = torch.linspace(0.1, 1.0, 5000).square()
    low, high = extreme_eigenvalues(lambda x: {"w": spectrum * x["w"]}, {"w": torch.zeros(2, 5000)})
    torch.testing.assert_close(high, torch.ones(2), rtol=0.01, atol=0)
    assert (low >= 0.01 - 1e-5).all()
    assert (low <= 0.02).all()


def problems():
    A = random(7, 4)
    b = random(7)
    labels = random(7).sign()
    return {
        "quadratic": Quadratic(A.T @ A, random(4)),
        "least squares": LeastSquares(A, b),
        "logistic": LogisticRegression(A, labels, ridge=0.3),
        "function": Function(lambda x: (x.square() + x.square().square()).sum(-1)),
    }


@pytest.mark.parametrize("name", problems())
def test_problems(name):
    problem = problems()[name]
    x = random(3, 4, seed=1)
    constants = problem_constants(problem, [x])
    eigenvalues = dense_eigenvalues(problem.grad, x)
    low, high = extreme_eigenvalues(problem.grad, x)
    torch.testing.assert_close(high, eigenvalues[:, -1], rtol=0.01, atol=0)
    torch.testing.assert_close(low, eigenvalues[:, 0], rtol=0.01, atol=1e-6)
    assert constants.smoothness.value >= eigenvalues.max() * (1 - 1e-9)
    assert constants.strong_convexity.value <= eigenvalues.min() * (1 + 1e-9)
    assert constants.smoothness.source == ("sampled" if name == "function" else "formula")
    if name in ("quadratic", "least squares"):
        assert constants.smoothness.value == pytest.approx(float(eigenvalues.max()))
        assert constants.strong_convexity.value == pytest.approx(float(eigenvalues.min()), abs=1e-9)


def test_kinks_make_the_smoothness_infinite():
    image = random(1, 1, 4, 4)
    for problem, x, mu in (
        (TVDenoising(image), image, 1.0),
        (SVM(random(5, 3), random(5).sign()), random(2, 4), 0.0),
        (MatrixGame(random(3, 4)), random(2, 4).softmax(-1), None),
        (Function(lambda x: x.abs().sum(-1) + x.square().sum(-1)), random(2, 4), 2.0),
    ):
        constants = problem_constants(problem, [x, x.flip(0) * 0.5 - 0.3])
        assert math.isinf(constants.smoothness.value), problem
        if mu is not None:
            assert constants.strong_convexity.estimate == pytest.approx(mu)


def test_maps_without_strong_convexity_say_so():
    x = random(2, 3).abs() + 0.1
    for mirror in (NegativeEntropy(), Burg(), HyperbolicEntropy(), PNorm(3.0), SquaredPNorm(3.0)):
        constants = map_constants(mirror, [x])
        assert constants.alpha == KnownConstant(0.0, "formula")
        assert math.isinf(constants.dual_smoothness.value)
    assert map_constants(SimplexEntropy(), [x]).alpha.value == 1
    assert map_constants(Logit(0.0, 2.0), [x]).alpha.value == 2
    assert map_constants(Diagonal(torch.tensor([1.0, 3.0])), [x]).smoothness == KnownConstant(
        3.0, "formula"
    )


def test_jumps_differ_from_steep_slopes():
    points = [torch.tensor([[-1.0, 0.3]]), torch.tensor([[0.7, 0.4]])]
    assert has_jump(torch.sign, points)
    assert has_jump(lambda x: torch.where(x > 0.123, 1.2, 1.0) * x, points)
    assert not has_jump(lambda x: (1000 * x).tanh(), points)
    assert not has_jump(lambda x: x, points)
    assert not has_jump(torch.ones_like, points)


def test_symmetry_and_monotonicity():
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    x = random(2, 2)
    assert asymmetry(lambda x: x @ turn, x) > 0.1
    assert asymmetry(lambda x: x.tanh(), x) < 1e-12
    assert smallest_secant(lambda x: 3 * x, [x, x + 1]) == pytest.approx(3)
    assert smallest_secant(lambda x: -x, [x, x + 1]) == pytest.approx(-1)
    assert smallest_secant(lambda x: x, [x, x]) == math.inf


def test_constants_have_a_source():
    assert str(KnownConstant(3.0, "certified")) == "3 (certified)"
    assert KnownConstant(2.0, "sampled", 0.8).value == 1.6
    inverse = KnownConstant(2.0, "sampled", 0.8).inverse()
    assert inverse.value == pytest.approx(1 / 1.6)
    assert inverse.estimate == 0.5
    assert KnownConstant(0.0, "formula").inverse().value == math.inf
    assert (str(KnownConstant(math.inf, "sampled", 1.25)), str(KnownConstant(0.0, "formula"))) == (
        "∞ (sampled)",
        "0 (formula)",
    )


def test_maps_of_networks_have_formulas():
    """Against the curvature that is met at points in every interval of the splines."""
    spline = Spline(torch.tensor([0, 1, 1]), knots=2)
    multipliers = Multipliers(torch.tensor([0, 1, 1]))
    with torch.no_grad():
        for p in (*spline.parameters(), *multipliers.parameters()):
            p.add_(random(*p.shape))
    mirror = Layerwise({"w": spline.double(), "v": multipliers.double()})
    points = [
        {"w": torch.full((1, 3), a, dtype=torch.float64), "v": random(1, 3)}
        for a in (-0.8, -0.3, 0.3, 0.8)
    ]
    constants = map_constants(mirror, points)
    met = [float(e) for x in points for e in extreme_eigenvalues(mirror.to_dual, x)]
    assert (constants.alpha.source, constants.smoothness.source) == ("formula", "formula")
    assert constants.alpha.value == pytest.approx(min(met))
    assert constants.smoothness.value == pytest.approx(max(met))
    mixed = Layerwise({"w": spline, "v": LearnedPair(*[DenseICNN(3).double()] * 2)})
    assert map_constants(mixed, points).smoothness.source == "sampled"


def test_where_a_curvature_overflows_it_is_infinite():
    low, high = extreme_eigenvalues(
        lambda x: x.sinh(), torch.tensor([[1e4, 1.0], [0.0, 1.0]], dtype=torch.float64)
    )
    assert (low[0], high[0]) == (math.inf, math.inf)
    torch.testing.assert_close(
        torch.stack([low[1], high[1]]), torch.tensor([0.0, 1.0], dtype=torch.float64).cosh()
    )
