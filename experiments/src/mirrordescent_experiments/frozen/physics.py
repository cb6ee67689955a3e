"""Frozen tasks in which a network is a function of coordinates: equations and a picture."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from mirrordescent.recipes.general_tasks import Training


class TanhNetwork(nn.Module):
    """A dense network with tanh between its layers."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in pairs[:-1]])
        self.head = nn.Linear(*pairs[-1])

    def forward(self, x: Tensor) -> Tensor:
        """Return one value for each point: (points,)."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)[:, 0]


def _derivatives(u: Tensor, points: Tensor) -> Tensor:
    return torch.autograd.grad(u.sum(), points, create_graph=True)[0]


def burgers(seed: int, directory: Path | None) -> Training:
    """Viscous Burgers, u_t + u u_x = 0.05 u_xx on [−1, 1] × [0, 1], u(x, 0) = −sin πx.

    The loss is the mean squared residual on 600 points, plus the conditions at the border and at
    the start on 100 points each. It is validated on other points.
    """
    model = TanhNetwork(2, 32, 32, 32, 1)

    def sampled(generator_seed: int) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(generator_seed)
        inside = torch.rand(600, 2, generator=generator) * torch.tensor([2.0, 1.0])
        inside = inside - torch.tensor([1.0, 0.0])
        x = 2 * torch.rand(100, generator=generator) - 1
        start = torch.stack([x, torch.zeros(100)], 1)
        side = torch.where(torch.arange(100) % 2 == 0, 1.0, -1.0)
        border = torch.stack([side, torch.rand(100, generator=generator)], 1)
        return inside, start, border

    def residual(points: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        inside, start, border = points
        inside = inside.clone().requires_grad_()
        u = model(inside)
        slopes = _derivatives(u, inside)
        curvature = _derivatives(slopes[:, 0], inside)[:, 0]
        equation = slopes[:, 1] + u * slopes[:, 0] - 0.05 * curvature
        initial = model(start) + torch.sin(math.pi * start[:, 0])
        return equation.square().mean() + initial.square().mean() + model(border).square().mean()

    training = sampled(seed)
    held_out = sampled(seed + 10**6)
    return Training(model, lambda k: residual(training), lambda: residual(held_out))


def poisson(seed: int, directory: Path | None) -> Training:
    """−Δu = f on the unit square by random points, judged by the distance to the solution.

    u vanishes on the border by construction: u = x(1 − x)y(1 − y)·network. The solution is
    sin(πx) sin(2πy).
    """
    model = TanhNetwork(2, 40, 40, 1)
    generator = torch.Generator().manual_seed(seed)

    def solution(points: Tensor) -> Tensor:
        return torch.sin(math.pi * points[:, 0]) * torch.sin(2 * math.pi * points[:, 1])

    def u(points: Tensor) -> Tensor:
        x, y = points.unbind(1)
        return x * (1 - x) * y * (1 - y) * model(points)

    def loss(k: int) -> Tensor:
        points = torch.rand(256, 2, generator=generator).requires_grad_()
        slopes = _derivatives(u(points), points)
        laplacian = sum(_derivatives(slopes[:, i], points)[:, i] for i in range(2))
        return (laplacian + 5 * math.pi**2 * solution(points)).square().mean() / 100

    grid = torch.cartesian_prod(torch.linspace(0, 1, 33), torch.linspace(0, 1, 33))

    def validate() -> Tensor:
        return (u(grid) - solution(grid)).square().mean() / solution(grid).square().mean()

    return Training(model, loss, validate)


class SineNetwork(nn.Module):
    """Three sine layers sin(30(Wx + b)) with the initialisation of SIREN, and a dense layer."""

    def __init__(self, width: int = 96, frequency: float = 30.0) -> None:
        super().__init__()
        self.frequency = frequency
        first = nn.Linear(2, width)
        hidden = [nn.Linear(width, width) for _ in range(2)]
        self.layers = nn.ModuleList([first, *hidden])
        self.head = nn.Linear(width, 1)
        bound = math.sqrt(6 / width) / frequency
        nn.init.uniform_(first.weight, -1 / 2, 1 / 2)
        for layer in (*hidden, self.head):
            nn.init.uniform_(layer.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Return one value for each point: (points,)."""
        for layer in self.layers:
            x = torch.sin(self.frequency * layer(x))
        return self.head(x)[:, 0]


def sine_network(seed: int, directory: Path | None) -> Training:
    """A sine network on every fourth pixel of a picture of 128² pixels, full batch.

    The picture is a sum of waves and discs that the seed determines.
    """
    model = SineNetwork()
    side = torch.linspace(-1, 1, 128)
    points = torch.cartesian_prod(side, side)
    generator = torch.Generator().manual_seed(seed)
    values = torch.zeros(len(points))
    for _ in range(6):
        frequency = 6 * torch.randn(2, generator=generator)
        phase = 6 * torch.rand(1, generator=generator)
        values += 0.2 * torch.sin(points @ frequency + phase)
        centre = 2 * torch.rand(2, generator=generator) - 1
        distance = (points - centre).norm(dim=1)
        values += 0.4 * torch.sigmoid(20 * (0.4 - distance))
    values = (values - values.mean()) / values.std()
    row = torch.arange(len(points)) // 128
    column = torch.arange(len(points)) % 128
    seen = (row % 2 == 0) & (column % 2 == 0)

    def loss(k: int) -> Tensor:
        return (model(points[seen]) - values[seen]).square().mean()

    def validate() -> Tensor:
        with torch.no_grad():
            return (model(points[~seen]) - values[~seen]).square().mean()

    return Training(model, loss, validate)
