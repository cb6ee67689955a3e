"""Maps learned on small networks, used unchanged on larger ones and on other data, against tuned Adam."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import nn

from mirrordescent import zoo
from mirrordescent.experiments.contest import Tunable, grid
from mirrordescent.experiments.networks import (
    ARCHITECTURES,
    TEST_SEED,
    TUNING_SEED,
    Size,
    Source,
    source_for,
    training,
)
from mirrordescent.experiments.result import Claim, Curve, Panel, Result, Table
from mirrordescent.experiments.scales import Say, Scale
from mirrordescent.experiments.training import LOSS, QUANTITIES, TEST_ACCURACY
from mirrordescent.methods import AMD, Adam
from mirrordescent.mirrors import transfer
from mirrordescent.mirrors.layerwise import Layerwise, Ties
from mirrordescent.problems.architectures import dense

ADAM_GRID = grid(1e-3, 1e-2)


@dataclass(frozen=True)
class Target:
    """A network and data that the map of an entry was not learned on; without a source, those it was."""

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
    """Train as long as the method was learned for, with it and with Adam, tuned for each target."""
    size, result = SIZES[scale], Result("transfer", "Learned maps on other networks and data", {"scale": scale})
    curves: list[Curve] = []
    rows = []
    for target in QUICK if scale == "quick" else TARGETS:
        runs = _compare(target, scale, size, directory)
        curves += [replace(measured[LOSS], name=f"{target.name}: {name}") for name, measured in runs.items()]
        parameters = sum(p.numel() for p in target.model().parameters())
        ends = {name: {what: measured[what].values[-1] for what in QUANTITIES} for name, measured in runs.items()}
        ours, adam = (ends[name] for name in runs)
        rows.append(
            [
                target.name,
                f"{parameters:,}",
                *(f"{float(end[LOSS].mean()):.4g}" for end in (ours, adam)),
                *(f"{float(end[TEST_ACCURACY].mean()):.2%}" for end in (ours, adam)),
                list(runs)[1],
            ]
        )
        if scale != "quick":
            holds = float(ours[LOSS].mean()) <= float(adam[LOSS].mean())
            result.claims.append(
                Claim(
                    f"{target.name}: LAMD* is not behind tuned Adam in training loss",
                    holds,
                    f"{rows[-1][2]}, {rows[-1][3]}",
                )
            )
        say(" ".join(rows[-1]))
    result.panels["training loss"] = Panel(curves, QUANTITIES[LOSS], scales=("linear", "log"))
    result.tables["At the end"] = Table(
        ("network", "parameters", "LAMD*, loss", "Adam, loss", "LAMD*, test accuracy", "Adam, test accuracy", "rival"),
        rows,
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
    rate = tuning.tune(Tunable("Adam", Adam, ADAM_GRID))
    method = _transferred(target, base.entry, shown.problem.inputs[:1])
    return {name: shown.run(name, each) for name, each in (("LAMD*", method), (f"Adam ({rate:g})", Adam(rate)))}


def _transferred(target: Target, entry: str, example: torch.Tensor) -> AMD:
    """Use the map and the schedules of an entry on another network, as they are."""
    method = cast(AMD, zoo.load(entry))
    mirror = transfer(cast(Layerwise, method.mirror), target.model(), target.ties, example)
    mirror.requires_grad_(False)
    regulariser = mirror if method.regulariser is method.mirror else None
    return AMD(mirror, method.t, gamma=method.gamma, regulariser=regulariser, cap=method.cap)
