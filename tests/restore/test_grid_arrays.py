"""Denoising of arrays over some of their axes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mirrordescent as md
from mirrordescent.restore import denoise_grids


def steps(*shape, noise=0.1, seed=0):
    clean = np.zeros(shape)
    clean[..., shape[-1] // 3 :] = 1.0
    return clean, clean + noise * np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("shape", [(400,), (40, 42), (14, 15, 16)], ids=str)
def test_noise_is_estimated_and_removed(shape):
    clean, noisy = steps(*shape)
    result = denoise_grids(noisy, tuple(range(len(shape))))
    assert abs(result.noise[0] - 0.1) < 0.02
    # Morozov: the residual has the size of the noise
    residual = np.sqrt(np.mean((result.array - noisy) ** 2))
    assert abs(residual / result.noise[0] - 1) < 0.1
    assert np.mean((result.array - clean) ** 2) < 0.25 * np.mean((noisy - clean) ** 2)
    assert result.statuses == [md.Status.CONVERGED]
    assert result.gap[0] <= 1e-3


def test_other_axes_are_a_batch():
    _, noisy = steps(3, 5, 60)
    together = md.denoise(noisy, axes=1, weight=0.2)
    for i in range(3):
        for j in (0, 20, 59):
            alone = md.denoise(noisy[i, :, j], axes=0, weight=0.2)
            np.testing.assert_allclose(together[i, :, j], alone, atol=1e-12)


def test_spacing_divides_the_differences():
    _, noisy = steps(6, 7, 8)
    y = torch.from_numpy(noisy)
    problem = md.GridTV(y[None, None], 0.3, axis_weights=(0.5, 1, 1), isotropic=True)
    expected = md.solve(
        problem, md.PDHG(problem.ratio, 1.8), iterations=3000, stop=md.gap(1e-6), progress=False
    )
    found = md.denoise(y, axes=(0, 1, 2), spacing=(2, 1, 1), weight=0.3, gap=1e-5)
    torch.testing.assert_close(found, expected.x[0, 0], atol=1e-3, rtol=0)


def test_integers_keep_their_type_and_range():
    _, noisy = steps(30, 30)
    y = (255 * noisy).clip(0, 255).astype(np.uint8)
    found = md.denoise(y, axes=(0, 1))
    assert found.dtype == np.uint8
    assert found.shape == y.shape


def test_errors():
    y = np.zeros((3, 4))
    with pytest.raises(ValueError, match="axes must be different"):
        md.denoise(y, axes=(0, 0))
    with pytest.raises(ValueError, match="spacing needs 2 numbers"):
        md.denoise(y, axes=(0, 1), spacing=(1,))
    with pytest.raises(ValueError, match="spacing needs axes"):
        md.denoise(y, spacing=(1, 1))
    with pytest.raises(ValueError, match="give noise or weight"):
        md.denoise(y, axes=0, noise=0.1, weight=0.1)
    with pytest.raises(ValueError, match="total variation"):
        md.denoise(y, axes=0, prior="photo")
    with pytest.raises(ValueError, match="not finite"):
        md.denoise(y + np.nan, axes=0)
