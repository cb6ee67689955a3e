from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from skimage.transform import radon
from tests.blobs import DOUBLE, blob, blob_projections, round_image

from mirrordescent.problems import ParallelBeam, TVInpainting
from mirrordescent.problems.fingerprint import fingerprint
from mirrordescent.problems.operators import LinearOperator


def test_projections_of_a_gaussian_are_the_known_ones():
    beam = ParallelBeam(200, angles=7, detectors=91)
    s = (torch.arange(91, dtype=DOUBLE) + 0.5) * (2 * math.sqrt(2) / 91) - math.sqrt(2)
    expected = blob_projections(beam.angles, s)
    assert (beam.A(blob(200))[0, 0] - expected).abs().max() < 5e-3 * expected.max()


def test_two_resolutions_of_one_object_agree():
    coarse, fine = (ParallelBeam(size, 12, 41).A(blob(size)) for size in (60, 180))
    assert (coarse - fine).abs().max() < 1e-2 * fine.max()


def test_projection_agrees_with_scikit_image(generator):
    image = round_image(generator)
    degrees = np.arange(0.0, 180.0, 9.0)
    size = image.shape[-1]
    expected = radon(image[0, 0].numpy(), theta=degrees, circle=True).T
    beam = ParallelBeam(size, torch.from_numpy(np.deg2rad(degrees)), size, reach=1.0)
    ours = beam.A(image)[0, 0].numpy() * (size / 2)  # they count pixels
    # Rotating and summing, as they do, smooths a little differently from following the rays.
    assert np.linalg.norm(ours - expected) < 1e-2 * np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("size", "angles", "detectors", "reach"), [(16, 5, 23, 1.4), (9, 4, 6, 0.7), (1, 1, 1, 1)]
)
def test_the_adjoint_is_exact(size, angles, detectors, reach, generator):
    beam = ParallelBeam(size, angles, detectors, reach)
    x = torch.randn(2, 3, size, size, dtype=DOUBLE, generator=generator)
    y = torch.randn(2, 3, angles, detectors, dtype=DOUBLE, generator=generator)
    forward = (beam.A(x) * y).sum()
    backward = (x * beam.A_adjoint(y)).sum()
    assert abs(float(forward - backward)) < 1e-10


def test_axis_parallel_rays_sum_rows_and_columns(generator):
    size = 8
    beam = ParallelBeam(size, torch.tensor([0.0, math.pi / 2]), size, reach=1.0)
    x = torch.rand(1, 1, size, size, dtype=DOUBLE, generator=generator)
    columns, rows = beam.A(x)[0, 0] * (size / 2)
    assert torch.allclose(columns, x[0, 0].sum(0), atol=1e-6)
    assert torch.allclose(rows, x[0, 0].sum(1).flip(0), atol=1e-6)  # from the bottom row up


def test_derivatives_of_any_order(generator):
    beam = ParallelBeam(5, 3, 7)
    x = torch.randn(1, 2, 5, 5, dtype=DOUBLE, generator=generator, requires_grad=True)
    y = torch.randn(1, 2, 3, 7, dtype=DOUBLE, generator=generator, requires_grad=True)
    for function, argument in ((beam.A, x), (beam.A_adjoint, y)):
        assert torch.autograd.gradcheck(function, (argument,))
        assert torch.autograd.gradgradcheck(lambda t, f=function: f(t).square(), (argument,))


def test_the_norm_is_a_bound_on_the_largest_singular_value():
    beam = ParallelBeam(8, 5, 11)
    matrix = beam.A(torch.eye(64, dtype=DOUBLE).reshape(64, 1, 8, 8)).flatten(1).T
    largest = float(torch.linalg.matrix_norm(matrix, 2))
    assert largest <= beam.norm <= 1.5 * largest


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_have_the_type_and_device_of_their_argument(dtype, device):
    beam = ParallelBeam(12, 4, 17).to(device)
    x = torch.ones(2, 1, 12, 12, dtype=dtype, device=device)
    sinogram = beam.A(x)
    for result in (sinogram, beam.A_adjoint(sinogram)):
        assert (result.dtype, result.device) == (x.dtype, x.device)


def test_a_batch_is_its_images(generator):
    beam = ParallelBeam(12, 4, 17)
    x = torch.rand(3, 2, 12, 12, dtype=DOUBLE, generator=generator)
    sinogram = beam.A(x)
    single = beam.A(x[1:2, 1:])
    assert torch.allclose(sinogram[1:2, 1:], single)
    assert torch.allclose(beam.A_adjoint(sinogram)[1:2, 1:], beam.A_adjoint(single))


def test_it_is_an_operator_of_imaging_problems(generator):
    beam = ParallelBeam(8, 5, 11)
    assert isinstance(beam, LinearOperator)
    truth = torch.rand(2, 1, 8, 8, dtype=DOUBLE, generator=generator)
    problem = TVInpainting(beam.A(truth), None, operator=beam)
    x = torch.rand(2, 1, 8, 8, dtype=DOUBLE, generator=generator, requires_grad=True)
    (expected,) = torch.autograd.grad(problem.value(x).sum(), x)
    assert torch.allclose(problem.grad(x.detach()), expected)
    assert fingerprint(problem, "test") is not None


@pytest.mark.parametrize(
    "arguments",
    [
        {"size": 0},
        {"size": 8, "angles": 0},
        {"size": 8, "angles": torch.tensor([math.nan])},
        {"size": 8, "reach": 0.0},
    ],
)
def test_impossible_geometries_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        ParallelBeam(**arguments)


def test_wrong_shapes_are_refused():
    beam = ParallelBeam(8, 5, 11)
    with pytest.raises(ValueError, match=r"images must be \(batch, channels, 8, 8\)"):
        beam.A(torch.zeros(1, 1, 8, 9))
    with pytest.raises(ValueError, match=r"sinograms must be \(batch, channels, 5, 11\)"):
        beam.A_adjoint(torch.zeros(5, 11))
