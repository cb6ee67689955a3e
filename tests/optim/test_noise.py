"""Why AMD has a cap: with noisy gradients and a constant rate, acceleration diverges slowly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mirrordescent import optim


def noisy_valley(cap):
    """Mean of x² after 300 and 600 steps on 1000 copies of 0.01·½x², with noise of variance 1."""
    generator = torch.Generator().manual_seed(0)
    x = nn.Parameter(torch.zeros(1000))
    optimizer = optim.AMD([x], lr=0.1, cap=cap)
    seen = []
    for _ in range(600):
        x.grad = 0.01 * x.detach() + torch.randn(1000, generator=generator)
        optimizer.step()
        seen.append(x.detach().square().mean().item())
    return seen[299], seen[599]


def test_the_variance_settles_with_a_cap_and_grows_without():
    half, end = noisy_valley(27)
    assert end == pytest.approx(half, rel=0.2)
    half_without, end_without = noisy_valley(None)
    assert end_without > 1.5 * half_without > 4 * half


def digits(cap):
    """Training loss of a small network after 600 steps on minibatches of 32."""
    from sklearn.datasets import load_digits

    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    images = images.float() / 16
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = optim.AMD(model.parameters(), lr=0.1, cap=cap)
    generator = torch.Generator().manual_seed(0)
    for _ in range(600):
        batch = torch.randint(len(images), (32,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    return nn.functional.cross_entropy(model(images), labels).item()


def test_minibatches_of_a_network():
    """Measured over three seeds: 0.05 with the cap, 0.65 and rising without."""
    assert 4 * digits(27) < digits(None)
