"""Blurs: the same as a direct convolution, with one kernel or one for each image."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional as F

from mirrordescent.problems import Blur, gaussian_kernel, motion_kernel


def random(*shape):
    return torch.rand(
        shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64
    )


@pytest.mark.parametrize("kernel", [gaussian_kernel(1.3), motion_kernel(7.3, 0.4), random(3, 7)])
def test_it_is_a_convolution_with_zeros_beyond_the_border(kernel):
    x = random(2, 3, 11, 14)
    blur = Blur(kernel.double())
    weight = kernel.double().flip(0, 1)[None, None]
    padding = (kernel.shape[0] // 2, kernel.shape[1] // 2)
    direct = F.conv2d(x.reshape(6, 1, 11, 14), weight, padding=padding).reshape(x.shape)
    torch.testing.assert_close(blur.A(x), direct)
    y = random(2, 3, 14, 11).mT.contiguous()
    torch.testing.assert_close((blur.A(x) * y).sum(), (x * blur.A_adjoint(y)).sum())


def test_a_kernel_for_each_image():
    kernels = random(2, 3, 5)
    x = random(2, 1, 8, 9)
    both = Blur(kernels)
    for i in range(2):
        torch.testing.assert_close(both.A(x)[i : i + 1], Blur(kernels[i]).A(x[i : i + 1]))
    assert both.norm == pytest.approx(float(kernels.sum((1, 2)).max()))


def test_what_is_kept_is_forgotten_with_the_kernel():
    x = random(1, 1, 6, 6)
    blur = Blur(random(3, 3))
    before = blur.A(x)
    blur.kernel.mul_(2)
    torch.testing.assert_close(blur.A(x), 2 * before)
    torch.testing.assert_close(blur.float().A(x.float()), (2 * before).float())


def test_motion_goes_along_its_direction():
    level = motion_kernel(7.0)
    upright = motion_kernel(7.0, math.pi / 2)
    assert float(level[level.shape[0] // 2].sum()) == pytest.approx(1.0, abs=1e-5)
    torch.testing.assert_close(upright, level.T, atol=1e-5, rtol=0)
    assert int((level[level.shape[0] // 2] > 1e-3).sum()) == 7


def test_a_kernel_gets_its_derivative_after_a_call_without_a_graph():
    """And again by a second backward pass, although transforms are cached."""
    kernel = random(3, 3).requires_grad_()
    x = random(1, 1, 6, 7)
    blur = Blur(kernel)
    with torch.no_grad():
        blur.A(x)
    found = []
    for _ in range(2):
        kernel.grad = None
        blur.A(x).square().sum().backward()
        found.append(kernel.grad.clone())
    fresh = kernel.detach().clone().requires_grad_()
    weight = fresh.flip(0, 1)[None, None]
    F.conv2d(x, weight, padding=1).square().sum().backward()
    for gradient in found:
        torch.testing.assert_close(gradient, fresh.grad)


def test_threads_share_a_blur():
    blur = Blur(gaussian_kernel(1.0).double())
    images = [random(1, 1, n, n + 1) for n in range(5, 13)]
    expected = [blur.A(x) for x in images]

    def work(i):
        return all(torch.equal(blur.A(images[i]), expected[i]) for _ in range(100))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


@pytest.mark.parametrize("made_inside", [True, False])
def test_blurs_in_inference_mode(made_inside):
    x = random(1, 1, 6, 6)
    blur = Blur(gaussian_kernel(1.0).double())
    expected = Blur(gaussian_kernel(1.0).double()).A(x)
    with torch.inference_mode():
        if made_inside:
            blur = Blur(gaussian_kernel(1.0).double())
        assert torch.equal(blur.A(x), expected)
    if not made_inside:  # what was cached there can be differentiated here
        blur.A(x.requires_grad_()).sum().backward()
        assert x.grad is not None
