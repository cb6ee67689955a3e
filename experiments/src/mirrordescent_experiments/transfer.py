"""Maps learned on small networks, used unchanged on larger networks and other data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import nn

from mirrordescent import optim, zoo
from mirrordescent.contests.training_runs import LOSS, QUANTITIES, TEST_ACCURACY
from mirrordescent.methods import AMD
from mirrordescent.mirrors import transfer
from mirrordescent.mirrors.layerwise import Layerwise, Ties
from mirrordescent.recipes.architectures import dense
from mirrordescent.recipes.network_maps import rescaled
from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent.recipes.training_tasks import Make
from mirrordescent_experiments.contestants import ADAMW, CONTROL, MUON
from mirrordescent_experiments.network_training_curves import (
    ARCHITECTURES,
    Size,
    Source,
    source_for,
)
from mirrordescent_experiments.one_by_one import OneByOne, falling_contestants
from mirrordescent_experiments.result import Claim, Curve, Panel, Result, Table
from mirrordescent_experiments.scales import Say, Scale
from mirrordescent_experiments.training_claims import at_most


@dataclass(frozen=True)
class Target:
    """A network and data on which an entry was not learned; without a source, its own data."""

    name: str
    base: str
    model: Callable[[], nn.Module]
    ties: Ties
    networks: int
    source: Source | None = None


def wide_cnn(channels: int) -> Callable[[], nn.Module]:
    """Return the small convolutional network with more channels."""
    return lambda: nn.Sequential(
        nn.Conv2d(1, channels, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36 * channels, 10),
    )


def flat(*widths: int) -> Callable[[], nn.Module]:
    """Return a dense network on flattened images."""
    return lambda: nn.Sequential(nn.Flatten(), *dense(widths))


LEARNED = ("capped LAMD", "capped LAMD, steps halved")
MLP = ARCHITECTURES["mlp"]
CNN = ARCHITECTURES["cnn"]
TARGETS = (
    Target("MLP as learned on", "mlp", MLP.model, "tensor", 3),
    Target(
        "MLP, 5 times the parameters, wider", "mlp", flat(784, 200, 160, 120, 80, 10), "tensor", 3
    ),
    Target("MLP, 4 times the parameters, deeper", "mlp", flat(784, *[100] * 9, 10), "tensor", 3),
    Target("MLP on Fashion-MNIST", "mlp", MLP.model, "tensor", 3, "fashion-mnist"),
    Target("CNN as learned on", "cnn", CNN.model, "paper", 3),
    Target("CNN, 3 times the parameters, wider", "cnn", wide_cnn(24), "paper", 3),
    Target("CNN on Fashion-MNIST", "cnn", CNN.model, "paper", 3, "fashion-mnist"),
)
LARGE = (
    Target(
        "MLP, 13 times the parameters, wider", "mlp", flat(784, 400, 320, 240, 160, 10), "tensor", 3
    ),
    Target(
        "MLP, 106 times the parameters, wider",
        "mlp",
        flat(784, 1500, 1200, 900, 600, 10),
        "tensor",
        3,
    ),
    Target("MLP, 11 times the parameters, deeper", "mlp", flat(784, *[200] * 9, 10), "tensor", 3),
    Target("CNN, 10 times the parameters, wider", "cnn", wide_cnn(80), "paper", 3),
)
QUICK = (
    Target("MLP, wider", "mlp", flat(784, 60, 50, 40, 30, 10), "tensor", 1),
    Target("CNN as learned on", "cnn", CNN.model, "paper", 1),
)
OF_SCALE: dict[Scale, tuple[Target, ...]] = {
    "quick": QUICK,
    "standard": TARGETS,
    "paper": (*TARGETS, *LARGE),
}
SIZES: dict[Scale, Size] = {
    "quick": Size(1, 1, 2, 200),
    "standard": Size(3, 1, 4, 5000),
    "paper": Size(20, 4, 24, 60_000),
}


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Train with the learned method and with others, tuned for each target, for equal steps.

    All of them have steps that fall: those of learned methods as learned, of AdamW and Muon
    linearly or like a cosine.
    """
    size = SIZES[scale]
    result = Result("transfer", "Learned maps on other networks and data", {"scale": scale})
    rows = []
    for target in OF_SCALE[scale]:
        runs = _compare(target, scale, size, directory)
        losses = [measured[LOSS] for measured in runs.values()]
        result.panels[target.name] = Panel(losses, QUANTITIES[LOSS], scales=("linear", "log"))
        parameters = sum(p.numel() for p in target.model().parameters())
        ends = [
            [float(each[what].values[-1].mean()) for what in (LOSS, TEST_ACCURACY)]
            for each in runs.values()
        ]
        found = (f"{loss:.4g}, {share:.2%}" for loss, share in ends)
        chosen = "; ".join(name for name in runs if " (" in name)
        rows.append((target.name, f"{parameters:,}", *found, chosen))
        if scale != "quick":
            result.claims += target_claims(target.name, result.panels[target.name])
        say(" ".join(rows[-1]))
    result.tables["Training loss and test accuracy at the end"] = Table(
        ("network", "parameters", *LEARNED, ENTRY, CONTROL, ADAMW, MUON, "settings chosen"), rows
    )
    return result


def target_claims(target: str, loss: Panel) -> list[Claim]:
    """Judge learned methods against AdamW, and the geometry of matrices also against Muon."""
    pairs = [*((name, ADAMW) for name in (*LEARNED, ENTRY)), (ENTRY, MUON), (ENTRY, CONTROL)]
    claims = [at_most(loss, name, 1, rival) for name, rival in pairs]
    return [replace(claim, statement=f"{target}: {claim.statement}") for claim in claims]


def _compare(
    target: Target, scale: Scale, size: Size, directory: Path | None
) -> dict[str, dict[str, Curve]]:
    source: Source = source_for(scale, directory)
    base = replace(ARCHITECTURES[target.base], model=target.model)
    size = replace(size, networks=min(target.networks, size.networks))
    training = OneByOne(
        base, size, (target.source if source == "mnist" else None) or source, directory
    )
    method = transferred(target, base.entry, training.images[:1])
    learned = zip(LEARNED, (method, rescaled(method, 0.5)), strict=True)
    makes = {name: steps_of(each) for name, each in learned} | dict(
        map(training.tuned, falling_contestants())
    )
    return {name: training.curves(name, make) for name, make in makes.items()}


def transferred(target: Target, entry: str, example: torch.Tensor) -> AMD:
    """Use the map and the schedules of an entry on another network, as they are."""
    method = cast(AMD, zoo.load(entry))
    mirror = transfer(cast(Layerwise, method.mirror), target.model(), target.ties, example)
    mirror.requires_grad_(False)
    regulariser = mirror if method.regulariser is method.mirror else None
    return AMD(mirror, method.t, gamma=method.gamma, regulariser=regulariser, cap=method.cap)


def steps_of(method: AMD) -> Make:
    """Return the optimiser that takes the steps of a method, with its own schedules."""
    return lambda model, steps: (
        optim.AMD(
            model.named_parameters(),
            lr=1.0,
            mirror=method.mirror,
            t=method.t,
            gamma=method.gamma,
            cap=method.cap,
            correction="mirror" if method.regulariser is method.mirror else "euclidean",
            nonfinite=None,
        ),
        None,
    )
