from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from skimage.transform import iradon, radon
from tests.blobs import DOUBLE, blob, blob_projections, round_image

from mirrordescent._internal import cache
from mirrordescent.data import filtered_back_projection, noisy_phantoms, reconstruct_noisily
from mirrordescent.problems import ParallelBeam


def test_back_projection_agrees_with_scikit_image(generator):
    image = round_image(generator)
    degrees = np.arange(3.0, 180.0, 6.0)
    size = image.shape[-1]
    sinogram = radon(image[0, 0].numpy(), theta=degrees, circle=True)
    expected = iradon(sinogram, theta=degrees, filter_name="ramp", circle=True)
    beam = ParallelBeam(size, torch.from_numpy(np.deg2rad(degrees)), size, reach=1.0)
    ours = filtered_back_projection(
        torch.from_numpy(sinogram.T.copy())[None, None] * (2 / size), beam
    )
    inside = expected != 0
    assert np.abs(ours[0, 0].numpy() - expected)[inside].max() < 1e-10


def test_back_projection_inverts_projection_where_there_are_enough_angles():
    beam = ParallelBeam(96, angles=180, detectors=151)
    image = blob(96)
    assert (filtered_back_projection(beam.A(image), beam) - image).abs().max() < 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_have_the_type_and_device_of_their_argument(dtype, device):
    sinogram = torch.ones(2, 1, 4, 17, dtype=dtype, device=device)
    result = filtered_back_projection(sinogram, ParallelBeam(12, 4, 17).to(device))
    assert (result.dtype, result.device) == (sinogram.dtype, sinogram.device)


def test_a_batch_is_its_images(generator):
    beam = ParallelBeam(12, 4, 17)
    sinogram = torch.rand(3, 2, 4, 17, dtype=DOUBLE, generator=generator)
    single = filtered_back_projection(sinogram[1:2, 1:], beam)
    assert torch.allclose(filtered_back_projection(sinogram, beam)[1:2, 1:], single)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="sinograms"):
        filtered_back_projection(torch.zeros(1, 1, 4, 11), ParallelBeam(8, 5, 11))


def test_the_noise_is_white_with_the_stated_level(generator):
    clean = blob(32).float().expand(8, 1, 32, 32)
    geometry = {"angles": 10, "detectors": 47, "simulated": 64}

    def noise(level, seed):
        noisy = reconstruct_noisily(
            clean, noise=level, generator=torch.Generator().manual_seed(seed), **geometry
        )
        return noisy - reconstruct_noisily(clean, noise=0, generator=generator, **geometry)

    assert torch.allclose(2 * noise(0.025, 1), noise(0.05, 1), atol=1e-5)
    # Expected power: that of white noise of 0.025 × the mean of the known projections.
    beam = ParallelBeam(32, 10, 47)
    s = (torch.arange(47, dtype=DOUBLE) + 0.5) * (2 * math.sqrt(2) / 47) - math.sqrt(2)
    level = 0.025 * float(blob_projections(beam.angles, s).mean())
    white = level * torch.randn(64, 1, 10, 47, generator=generator)
    expected = filtered_back_projection(white, beam).square().mean()
    assert float(noise(0.025, 2).square().mean() / expected) == pytest.approx(1, abs=0.15)


SMALL = {"count": 3, "size": 24, "angles": 6, "detectors": 35, "simulated": 48}


def test_noisy_phantoms_are_computed_once(monkeypatch):
    clean, noisy = noisy_phantoms(**SMALL, seed=1)
    assert clean.shape == noisy.shape == (3, 1, 24, 24)
    assert not torch.equal(clean, noisy_phantoms(**SMALL, seed=2)[0])
    assert not torch.equal(noisy, noisy_phantoms(**SMALL, seed=1, noise=0.05)[1])

    def fail(*arguments, **options):
        raise AssertionError("computed again")

    monkeypatch.setattr("mirrordescent.data.reconstruction.ellipse_phantoms", fail)
    again = noisy_phantoms(**SMALL, seed=1)
    assert torch.equal(again[0], clean)
    assert torch.equal(again[1], noisy)


def test_a_damaged_entry_of_the_cache_is_made_anew():
    clean, noisy = noisy_phantoms(**SMALL)
    (entry,) = cache.directory().glob("*.safetensors")
    entry.write_bytes(entry.read_bytes()[:100])
    again = noisy_phantoms(**SMALL)
    assert torch.equal(again[0], clean)
    assert torch.equal(again[1], noisy)


def test_noisy_phantoms_resemble_the_clean_ones():
    clean, noisy = noisy_phantoms(2, 64)
    error = (noisy - clean).square().mean((1, 2, 3))
    assert bool((error < 0.2 * clean.square().mean((1, 2, 3))).all())
    assert bool((error > 1e-4).all())


def test_unknown_settings_of_a_scan_are_refused():
    with pytest.raises(TypeError, match="angels"):
        noisy_phantoms(**SMALL, angels=3)
