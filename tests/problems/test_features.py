"""Features of images, in torch and by the kernel."""

import pytest
import torch

from mirrordescent import TVInpainting, kernels
from mirrordescent.problems.features import image_features


@pytest.mark.usefixtures("compiled", "every_level")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 2, 9, 14), (2, 1, 1, 8), (2, 3, 8, 1), (1, 1, 5, 5)])
@pytest.mark.parametrize("masked", ["none", "one", "each", "channels"])
def test_the_kernel_finds_the_same(monkeypatch, dtype, shape, masked):
    generator = torch.Generator().manual_seed(0)
    y, x = (torch.rand(shape, generator=generator, dtype=dtype) + 3 for _ in range(2))
    shapes = {"one": (1, 1, *shape[2:]), "each": (shape[0], 1, *shape[2:]), "channels": shape}
    mask = (
        None
        if masked == "none"
        else (torch.rand(shapes[masked], generator=generator) > 0.3).to(dtype)
    )
    if mask is not None:
        mask[..., 0, 0] = 1
    compiled = image_features(y, mask, 0.2, 0.5, x)
    monkeypatch.setattr(kernels, "available", lambda: False)
    plain = image_features(y, mask, 0.2, 0.5, x)
    for name, value in plain.items():
        torch.testing.assert_close(
            compiled[name], value, atol=1e-4 if dtype == torch.float32 else 1e-10, rtol=0
        )


def test_contrast_and_roughness_are_those_of_the_definition():
    generator = torch.Generator().manual_seed(1)
    y = torch.rand(2, 1, 6, 7, generator=generator, dtype=torch.float64)
    mask = torch.rand(2, 1, 6, 7, generator=generator) > 0.4
    problem = TVInpainting(y * mask, mask, 0.3)
    found = problem.features(y)
    for i in range(2):
        contrast = y[i][mask[i]].std(correction=0)
        assert float(found["weight"][i].exp()) == pytest.approx(0.3 / float(contrast) / 0.6)
        differences = torch.cat([y[i].diff(dim=d).flatten() for d in (-1, -2)])
        assert float(found["rough"][i].exp()) == pytest.approx(
            float(differences.abs().mean() / contrast) / 0.4
        )
