"""An ordinary small residual network, trained through ``torch.optim``: schedulers, a checkpoint, and Adam beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer

from mirrordescent import optim
from mirrordescent.mirrors import layerwise
from mirrordescent_lab.architectures import initialised, small_resnet
from mirrordescent_lab.experiments.networks import Source, images_of, source_for
from mirrordescent_lab.experiments.result import Claim, Result, Table
from mirrordescent_lab.experiments.scales import Say, Scale

Make = Callable[[nn.Module], Optimizer]
AMD_GRID, ADAM_GRID, SGD_GRID = (0.02, 0.05, 0.1), (1e-3, 3e-3, 1e-2), (0.02, 0.05, 0.1)


@dataclass(frozen=True)
class Size:
    """How large the experiment is."""

    channels: int
    batch: int
    runs: int
    images: int | None


SIZES: dict[Scale, Size] = {
    "quick": Size(4, 100, 1, 400),
    "standard": Size(16, 128, 3, 20_000),
    "paper": Size(32, 128, 10, None),
}


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Train for one epoch with every optimiser at its best learning rate, and interrupt and resume one of the runs."""
    size, source = SIZES[scale], source_for(scale, directory)
    result = Result("resnet", "A residual network through torch.optim", {"scale": scale, "data": source, **vars(size)})
    task = _Task(size, source, directory)
    optimisers: dict[str, tuple[Callable[[float], Make], tuple[float, ...]]] = {
        "AMD, layer-wise": (_amd, AMD_GRID),
        "Adam": (lambda lr: lambda model: torch.optim.Adam(model.parameters(), lr), ADAM_GRID),
        "SGD with momentum": (lambda lr: lambda model: torch.optim.SGD(model.parameters(), lr, 0.9), SGD_GRID),
    }
    accuracy, rows = {}, []
    for name, (make, rates) in optimisers.items():
        best = max(rates, key=lambda lr: task.train(make(lr), seed=100)[1])
        runs = torch.tensor([task.train(make(best), seed) for seed in range(size.runs)])
        accuracy[name] = float(runs[:, 1].mean())
        rows.append((name, f"{best:g}", f"{float(runs[:, 0].mean()):.4f}", f"{accuracy[name]:.2%}"))
        say(" ".join(rows[-1]))
    result.tables["After one epoch"] = Table(("optimiser", "learning rate", "test loss", "test accuracy"), rows)
    if scale != "quick":
        ends = [task.train(_amd(AMD_GRID[1]), 0, interrupted) for interrupted in (True, False)]
        result.claims = [
            Claim(
                "AMD reaches Adam's test accuracy within 1 point",
                accuracy["AMD, layer-wise"] >= accuracy["Adam"] - 0.01,
                ", ".join(f"{name} {share:.2%}" for name, share in accuracy.items()),
            ),
            Claim(
                "a run resumed from a checkpoint ends as the uninterrupted one",
                ends[0] == ends[1],
                ", ".join(f"test loss {loss:.6f}, accuracy {share:.2%}" for loss, share in ends),
            ),
        ]
    return result


def _amd(lr: float) -> Make:
    return lambda model: optim.AMD(model.named_parameters(), lr=lr, mirror=layerwise(model))


class _Task:
    """Data, and training for an epoch on it."""

    def __init__(self, size: Size, source: Source, directory: Path | None) -> None:
        self.size = size
        (images, labels), (test, self.test_labels) = (images_of(source, part, directory) for part in ("train", "test"))
        self.images, self.labels, self.test = images[: size.images, None], labels[: size.images], test[:, None]

    def train(self, make: Make, seed: int, interrupted: bool = False) -> tuple[float, float]:
        """Return test loss and accuracy after an epoch with a cosine schedule."""
        model = initialised(lambda: small_resnet(self.size.channels), seed)
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(seed))
        batches = torch.split(order, self.size.batch)
        optimiser = make(model)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, len(batches))
        for number, batch in enumerate(batches):
            if interrupted and number == len(batches) // 2:
                saved: dict[str, Any] = {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
                schedule_state = schedule.state_dict()
                model = small_resnet(self.size.channels)
                model.load_state_dict(saved["model"])
                optimiser = make(model)
                schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, len(batches))
                optimiser.load_state_dict(saved["optimiser"])
                schedule.load_state_dict(schedule_state)
            optimiser.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(self.images[batch]), self.labels[batch]))
            optimiser.step()
            schedule.step()
        return self._test(model)

    @torch.no_grad()
    def _test(self, model: nn.Module) -> tuple[float, float]:
        model.eval()
        outputs = torch.cat([model(part) for part in torch.split(self.test, 1000)])
        loss = F.cross_entropy(outputs, self.test_labels)
        return float(loss), float((outputs.argmax(1) == self.test_labels).float().mean())
