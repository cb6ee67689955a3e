"""Small networks for recipes and experiments."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MLP_WIDTHS = (784, 50, 40, 30, 20, 10)


def initialised(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a network with PyTorch's default initialisation, determined by a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # layers draw their initialisation from the global generator
        return make()


def moons_network() -> nn.Sequential:
    """Return a dense network 2 → 50 → 1 with a ReLU: 201 parameters, one logit."""
    return dense((2, 50, 1))


def mlp() -> nn.Sequential:
    """Return a dense network 784 → 50 → 40 → 30 → 20 → 10 with ReLUs: 43 350 parameters.

    Images are flattened.
    """
    return nn.Sequential(nn.Flatten(), *dense(MLP_WIDTHS))


def small_cnn() -> nn.Sequential:
    """Return a small convolutional network for images (1, 14, 14), with 2970 parameters.

    It has a 3×3 convolution to 8 channels, 2×2 max-pooling, a ReLU and a dense layer 288 → 10. The
    ReLU commutes with the pooling; after the pooling it is four times cheaper.
    """
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)
    )


def dense(widths: tuple[int, ...]) -> nn.Sequential:
    """Return dense layers of these widths, beginning with the input, with ReLUs between them."""
    layers: list[nn.Module] = []
    for incoming, outgoing in pairwise(widths):
        layers += [nn.ReLU(), nn.Linear(incoming, outgoing)]
    return nn.Sequential(*layers[1:])


class Residual(nn.Module):
    """A residual block: ReLU(x + B(C(ReLU(B(C(x)))))) with convolutions C and batch norms B."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        )
        self.second = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        return F.relu(x + self.second(F.relu(self.first(x))))


def small_resnet(channels: int = 16) -> nn.Sequential:
    """Return a small residual network for images (1, 28, 28).

    It has a convolution, two residual blocks, the mean over all pixels, and a dense layer.
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
