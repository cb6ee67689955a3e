"""Maps learned on small networks, used unchanged on larger ones and on other data, against tuned Adam."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from mirrordescent import zoo
from mirrordescent.methods import AMD, Adam, Method
from mirrordescent.mirrors import transfer
from mirrordescent.mirrors.layerwise import Layerwise, Ties
from mirrordescent_lab.architectures import dense
from mirrordescent_lab.experiments.contest import grid
from mirrordescent_lab.experiments.networks import (
    ARCHITECTURES,
    TEST_SEED,
    TUNING_SEED,
    Size,
    Source,
    source_for,
    training,
)
from mirrordescent_lab.experiments.result import Claim, Curve, Panel, Result, Table
from mirrordescent_lab.experiments.scales import Say, Scale
from mirrordescent_lab.experiments.training import LOSS, QUANTITIES, TEST_ACCURACY
from mirrordescent_lab.recipes.networks import rescaled

ADAM_GRID = grid(5e-4, 1e-1)
ADAM_START = 5e-3  # where the walk along the grid begins


@dataclass(frozen=True)
class Target:
    """A network and data that the map of an entry was not learned on; without a source, the data it was learned on."""

    name: str
    base: str
    model: Callable[[], nn.Module]
    ties: Ties
    networks: int
    source: Source | None = None


def wide_cnn() -> nn.Sequential:
    """The small convolutional network with ten times as many channels."""
    return nn.Sequential(nn.Conv2d(1, 80, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2880, 10))


def flat(*widths: int) -> Callable[[], nn.Module]:
    """Return a dense network on flattened images."""
    return lambda: nn.Sequential(nn.Flatten(), *dense(widths))


LEARNED = ("capped LAMD", "capped LAMD, steps halved")
MLP, CNN = ARCHITECTURES["mlp"], ARCHITECTURES["cnn"]
TARGETS = (
    Target("MLP as learned on", "mlp", MLP.model, "tensor", 4),
    Target("MLP, 13 times the parameters, wider", "mlp", flat(784, 400, 320, 240, 160, 10), "tensor", 3),
    Target("MLP, 106 times the parameters, wider", "mlp", flat(784, 1500, 1200, 900, 600, 10), "tensor", 1),
    Target("MLP, 11 times the parameters, deeper", "mlp", flat(784, *[200] * 9, 10), "tensor", 3),
    Target("MLP on Fashion-MNIST", "mlp", MLP.model, "tensor", 4, "fashion-mnist"),
    Target("CNN as learned on", "cnn", CNN.model, "paper", 4),
    Target("CNN, 10 times the parameters, wider", "cnn", wide_cnn, "paper", 2),
    Target("CNN on Fashion-MNIST", "cnn", CNN.model, "paper", 4, "fashion-mnist"),
)
QUICK = (
    Target("MLP, wider", "mlp", flat(784, 60, 50, 40, 30, 10), "tensor", 1),
    Target("CNN as learned on", "cnn", CNN.model, "paper", 1),
)
SIZES: dict[Scale, Size] = {
    "quick": Size(1, 1, 2, 200),
    "standard": Size(8, 1, 12, 5000),
    "paper": Size(20, 4, 24, 60_000),
}


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Train for as many steps as the method was learned for, with it and with Adam, tuned for each target."""
    size, result = SIZES[scale], Result("transfer", "Learned maps on other networks and data", {"scale": scale})
    curves: list[Curve] = []
    rows = []
    for target in QUICK if scale == "quick" else TARGETS:
        runs = _compare(target, scale, size, directory)
        curves += [replace(measured[LOSS], name=f"{target.name}: {name}") for name, measured in runs.items()]
        parameters = sum(p.numel() for p in target.model().parameters())
        losses, accuracies = (
            [float(measured[what].values[-1].mean()) for measured in runs.values()] for what in (LOSS, TEST_ACCURACY)
        )
        named = (f"{loss:.4g}, {share:.2%}" for loss, share in zip(losses, accuracies, strict=True))
        rows.append([target.name, f"{parameters:,}", *named, list(runs)[-1]])
        if scale != "quick":
            result.claims += [
                Claim(
                    f"{target.name}: {name} is not behind tuned Adam in training loss",
                    loss <= losses[-1],
                    f"{loss:.4g}, {losses[-1]:.4g}",
                )
                for name, loss in zip(list(runs)[:-1], losses, strict=False)
            ]
        say(" ".join(rows[-1]))
    result.panels["training loss"] = Panel(curves, QUANTITIES[LOSS], scales=("linear", "log"))
    result.tables["Training loss and test accuracy at the end"] = Table(
        ("network", "parameters", *LEARNED, "tuned Adam", "its step size"), rows
    )
    return result


def _compare(target: Target, scale: Scale, size: Size, directory: Path | None) -> dict[str, dict[str, Curve]]:
    source: Source = source_for(scale, directory)
    base = replace(ARCHITECTURES[target.base], model=target.model)
    count = min(target.networks, size.networks)
    shown, tuning = (
        training(base, (target.source if source == "mnist" else None) or source, size, number, seed, directory)
        for number, seed in ((count, TEST_SEED), (1, TUNING_SEED))
    )
    rate = walk(lambda lr: tuning.loss(Adam(lr)), ADAM_GRID, ADAM_START)
    method = _transferred(target, base.entry, shown.problem.inputs[:1])
    learned = zip(LEARNED, (method, rescaled(method, 0.5)), strict=True)
    methods: dict[str, Method[Any]] = {**dict(learned), f"Adam ({rate:g})": Adam(rate)}
    return {name: shown.run(name, each) for name, each in methods.items()}


def walk(loss: Callable[[float], float], rates: list[float], start: float) -> float:
    """Walk along a grid as long as the loss falls: on large networks there is no time to try every number."""
    here, losses = rates.index(start), dict[int, float]()
    while True:
        near = [i for i in (here - 1, here, here + 1) if 0 <= i < len(rates)]
        losses |= {i: loss(rates[i]) for i in near if i not in losses}
        best = min(near, key=lambda i: losses[i])
        if best == here:
            return rates[here]
        here = best


def _transferred(target: Target, entry: str, example: torch.Tensor) -> AMD:
    """Use the map and the schedules of an entry on another network, as they are."""
    method = cast(AMD, zoo.load(entry))
    mirror = transfer(cast(Layerwise, method.mirror), target.model(), target.ties, example)
    mirror.requires_grad_(False)
    regulariser = mirror if method.regulariser is method.mirror else None
    return AMD(mirror, method.t, gamma=method.gamma, regulariser=regulariser, cap=method.cap)
