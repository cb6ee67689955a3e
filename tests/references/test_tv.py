"""Certified optima of total-variation problems."""

from __future__ import annotations

import pytest
import torch
from skimage import data
from skimage.transform import resize

from mirrordescent import (
    PDHG,
    DualFISTA,
    Function,
    TVDenoising,
    TVInpainting,
    certify,
    gap,
    relative_gap,
    solve,
)
from mirrordescent.kernels import disabled
from mirrordescent.problems import Blur, gaussian_kernel


def photographs(size, names=("astronaut", "chelsea")):
    images = [resize(getattr(data, name)(), (size, size), anti_aliasing=True) for name in names]
    return torch.stack(
        [torch.tensor(image, dtype=torch.float64).permute(2, 0, 1) for image in images]
    )


def noisy(images, sigma=0.05):
    noise = torch.randn(
        images.shape, generator=torch.Generator().manual_seed(0), dtype=images.dtype
    )
    return images + sigma * noise


def missing(size, share=0.2):
    return (
        torch.rand(size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        > share
    )


def assert_certified(problem, reference, tolerance):
    torch.testing.assert_close(reference.value, problem.double().value(reference.x))
    assert (reference.lower <= reference.value).all()
    assert (
        relative_gap(reference.value, reference.lower, problem.value(problem.start())) <= tolerance
    ).all()


def test_denoising_128():
    problem = TVDenoising(noisy(photographs(128).mean(1, keepdim=True), 0.1))
    reference = certify(problem, 1e-6)
    assert_certified(problem, reference, 1e-6)
    other = solve(problem, PDHG(0.25), iterations=5000, stop=gap(1e-6), check_every=50)
    # Two methods, two certificates: each lower bound is below the other's value.
    assert (other.lower <= reference.value).all()
    assert (reference.lower <= other.best_value).all()


def test_inpainting_3_96():
    images = photographs(96)
    problem = TVInpainting(missing(96) * noisy(images), missing(96)).float()
    reference = certify(problem, 1e-6)
    assert reference.x.dtype == torch.float64
    assert_certified(problem, reference, 1e-6)


def test_deblurring():
    blur = Blur(gaussian_kernel(1.0)).double()
    problem = TVInpainting(missing(24) * noisy(blur.A(photographs(24))), missing(24), operator=blur)
    assert_certified(problem, certify(problem, 1e-5), 1e-5)


def test_two_pixels_in_closed_form():
    """min (x₁−a)² + (x₂−b)² + λ|x₂−x₁|, halved: the pixels move together by min(λ/2, |b−a|/2)."""
    for a, b in ((0.0, 1.0), (0.3, 0.35)):
        problem = TVDenoising(torch.tensor([[[[a, b]]]], dtype=torch.float64), weight=0.2)
        move = min(0.1, (b - a) / 2)
        expected = torch.tensor([[[[a + move, b - move]]]], dtype=torch.float64)
        torch.testing.assert_close(certify(problem, 1e-9).x, expected, rtol=0, atol=1e-5)


def test_a_constant_image_is_its_own_optimum():
    problem = TVInpainting(torch.full((1, 1, 5, 5), 0.4), torch.eye(5))
    reference = certify(problem)
    assert reference.value.item() == pytest.approx(0, abs=1e-10)


def test_methods_certify_themselves_in_float32():
    problem = TVDenoising(noisy(photographs(32)).float())
    for method in (PDHG(0.3), DualFISTA()):
        solution = solve(problem, method, iterations=2000, stop=gap(1e-4), check_every=10)
        assert all(status.name == "CONVERGED" for status in solution.statuses)
        exact = certify(problem)
        assert (solution.best_value.double() >= exact.lower - 1e-4).all()
        assert (solution.lower.double() <= exact.value + 1e-4).all()


def test_what_cannot_be_certified_is_said():
    with pytest.raises(
        TypeError, match="Function cannot be certified: it has neither a saddle-point form"
    ):
        certify(Function(lambda x: x.sum(-1)))
    with pytest.raises(ValueError, match="tolerance"):
        certify(TVDenoising(torch.rand(1, 1, 4, 4)), 0.0)
    with pytest.raises(TypeError, match="PDHG needs proximal operators, which Function"):
        solve(Function(lambda x: x.square().sum(-1)), PDHG(), torch.ones(1, 2), iterations=1)
    with pytest.raises(TypeError, match="DualFISTA needs a strongly convex"):
        solve(TVInpainting(torch.rand(1, 1, 4, 4), torch.eye(4)), DualFISTA(), iterations=1)


def test_a_tolerance_out_of_reach_is_reported(monkeypatch):
    monkeypatch.setattr("mirrordescent.references.certificate.ITERATIONS", 50)
    with pytest.warns(UserWarning, match="certified to a relative gap of"):
        certify(TVDenoising(noisy(photographs(32))), 1e-12, cache=False)


def test_kernels_certify_the_same(monkeypatch, compiled):
    problem = TVInpainting(noisy(photographs(20)), missing(20))
    with disabled():
        plain = certify(problem, 1e-6, cache=False)
    steps = []
    monkeypatch.setattr(
        PDHG, "step", lambda *arguments: steps.append(arguments)
    )  # what the kernel replaces
    fused = certify(problem, 1e-6, cache=False)
    assert not steps
    # The bounds of kernels are better in holes, so they are done sooner.
    assert (fused.lower <= plain.value).all()
    assert (plain.lower <= fused.value).all()
    torch.testing.assert_close(fused.value, plain.value, rtol=1e-6, atol=0)
