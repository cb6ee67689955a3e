"""The small networks of the experiments."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

MLP_WIDTHS = (784, 50, 40, 30, 20, 10)


def moons_network() -> nn.Sequential:
    """2 → 50 → 1, dense with a ReLU between: 201 parameters, and one logit."""
    return dense((2, 50, 1))


def mlp() -> nn.Sequential:
    """784 → 50 → 40 → 30 → 20 → 10, dense with ReLUs between: 43 350 parameters. It flattens its images."""
    return nn.Sequential(nn.Flatten(), *dense(MLP_WIDTHS))


def small_cnn() -> nn.Sequential:
    """3×3 convolution to 8 channels, 2×2 max-pooling, ReLU, then 288 → 10, on images (1, 14, 14): 2 970 parameters.

    The ReLU comes after the pooling, with which it commutes, where it is four times cheaper.
    """
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))


def dense(widths: tuple[int, ...]) -> nn.Sequential:
    """Return dense layers of these widths, the input's first, with ReLUs between."""
    layers: list[nn.Module] = []
    for incoming, outgoing in pairwise(widths):
        layers += [nn.ReLU(), nn.Linear(incoming, outgoing)]
    return nn.Sequential(*layers[1:])
