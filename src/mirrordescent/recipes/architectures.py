"""The small networks of the experiments."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MLP_WIDTHS = (784, 50, 40, 30, 20, 10)


def initialised(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a network as PyTorch initialises it from a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # layers draw their initialisation from the global generator
        return make()


def moons_network() -> nn.Sequential:
    """2 → 50 → 1, dense with a ReLU between: 201 parameters, and one logit."""
    return dense((2, 50, 1))


def mlp() -> nn.Sequential:
    """784 → 50 → 40 → 30 → 20 → 10, dense with ReLUs between: 43 350 parameters. It flattens its
    images.
    """
    return nn.Sequential(nn.Flatten(), *dense(MLP_WIDTHS))


def small_cnn() -> nn.Sequential:
    """3×3 convolution to 8 channels, 2×2 max-pooling, ReLU, then 288 → 10, on images (1, 14, 14): 2
    970 parameters.

    The ReLU commutes with the pooling; it comes after it, where it is four times cheaper.
    """
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)
    )


def dense(widths: tuple[int, ...]) -> nn.Sequential:
    """Return dense layers of these widths, the input's first, with ReLUs between."""
    layers: list[nn.Module] = []
    for incoming, outgoing in pairwise(widths):
        layers += [nn.ReLU(), nn.Linear(incoming, outgoing)]
    return nn.Sequential(*layers[1:])


class Residual(nn.Module):
    """x + B(C(ReLU(B(C(x))))), then a ReLU, with convolutions C and batch normalisations B."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        )
        self.second = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add to x what two layers make of it."""
        return F.relu(x + self.second(F.relu(self.first(x))))


def small_resnet(channels: int = 16) -> nn.Sequential:
    """Return a convolution, two residual blocks, the mean over space, and a dense layer, for images
    (1, 28, 28).
    """
    stem = [
        nn.Conv2d(1, channels, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
    ]
    blocks = [Residual(channels), nn.MaxPool2d(2), Residual(channels)]
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)
    )
