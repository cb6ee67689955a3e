"""Blurs: the same as a direct convolution, with one kernel or one for each image."""

import math

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
