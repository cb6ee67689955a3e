"""Two interleaved half circles."""

import math

import numpy as np
import torch
from torch import Tensor


def half_circles(count: int = 500, noise: float = 0.05, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return points (count, 2) of two interleaved half circles, and their labels 0 and 1.

    They are the points of ``sklearn.datasets.make_moons``.

    Args:
        count: Number of points of both half circles.
        noise: Standard deviation of the noise on the points.
        seed: Seed of the order and the noise.
    """
    random = np.random.RandomState(seed)  # the stream of scikit-learn
    outer = np.linspace(0, math.pi, count // 2)
    inner = np.linspace(0, math.pi, count - count // 2)
    horizontal = np.append(np.cos(outer), 1 - np.cos(inner))
    vertical = np.append(np.sin(outer), 1 - np.sin(inner) - 0.5)
    labels = np.append(np.zeros(len(outer)), np.ones(len(inner)))
    order = np.arange(count)
    random.shuffle(order)
    points = np.stack([horizontal, vertical], 1)[order]
    points = points + random.normal(scale=noise, size=points.shape)
    return torch.from_numpy(points).float(), torch.from_numpy(labels[order]).float()
