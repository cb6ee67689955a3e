"""A small residual network trained with ``torch.optim``, schedulers and a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mirrordescent import optim
from mirrordescent.mirrors import layerwise
from mirrordescent.recipes.architectures import initialised, small_resnet
from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent.recipes.training_tasks import Make
from mirrordescent_experiments.contestants import (
    ADAMW,
    CONTROL,
    MUON,
    SGD,
    Shape,
    TunableOptimiser,
    grid,
    muon_in_single_precision,
    scheduled,
    sgd,
)
from mirrordescent_experiments.intervals import paired
from mirrordescent_experiments.ledger import in_turn, number, written
from mirrordescent_experiments.network_training_curves import Source, images_of, source_for
from mirrordescent_experiments.one_by_one import falling_contestants
from mirrordescent_experiments.result import Claim, Result, Table
from mirrordescent_experiments.scales import Say, Scale

AMD = "AMD, layer-wise"
AMD_RATE = 0.05
PAIRS = (
    *((AMD, rival, 0.01) for rival in (ADAMW, MUON)),
    *((ENTRY, rival, 0.0) for rival in (ADAMW, MUON, CONTROL)),
)
TUNING_SEED = 100


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
    """Train for one epoch with every optimiser; interrupt and resume one of the runs."""
    size = SIZES[scale]
    source = source_for(scale, directory)
    result = Result(
        "resnet",
        "A residual network through torch.optim",
        {"scale": scale, "data": source, **vars(size)},
    )
    task = _Task(size, source, directory)
    accuracy = {}
    rows = []
    for contestant in (
        TunableOptimiser(AMD, _amd, grid((0.05, 0.1), ("cosine", "linear"))),
        *falling_contestants(),
        TunableOptimiser(SGD, sgd, grid((0.05, 0.1), ("cosine", "linear"))),
    ):
        setting = task.tuned(contestant)
        runs = torch.tensor(
            [task.train(contestant.make(*setting), seed) for seed in range(size.runs)]
        )
        accuracy[contestant.name] = runs[:, 1].double()
        means = runs.mean(0).tolist()
        rows.append((contestant.name, written(setting), f"{means[0]:.4f}", f"{means[1]:.2%}"))
        say(" ".join(rows[-1]))
    result.tables["After one epoch"] = Table(
        ("optimiser", "setting", "test loss", "test accuracy"), rows
    )
    if scale != "quick":
        ends = [
            task.train(_amd(AMD_RATE, "cosine"), 0, interrupted) for interrupted in (True, False)
        ]
        result.claims = [
            *accuracy_claims(accuracy),
            Claim(
                "a run resumed from a checkpoint ends as the uninterrupted one",
                ends[0] == ends[1],
                ", ".join(f"test loss {loss:.6f}, accuracy {share:.2%}" for loss, share in ends),
            ),
        ]
    return result


def accuracy_claims(
    accuracy: dict[str, torch.Tensor], pairs: Sequence[tuple[str, str, float]] = PAIRS
) -> list[Claim]:
    """Judge whether one optimiser reaches another's test accuracy, within a tolerance."""
    claims = []
    for name, rival, within in pairs:
        margin = paired(accuracy[name] - accuracy[rival] + within)
        relation = f"reaches {rival}'s test accuracy" + (
            f" within {100 * within:g} point" if within else ""
        )
        found = f"{float(accuracy[name].mean()):.2%}, {float(accuracy[rival].mean()):.2%}"
        interval = f"margin {margin.mean:+.2%} [{margin.low:+.2%}, {margin.high:+.2%}]"
        claims.append(
            Claim.by(f"{name} {relation}", margin.low, margin.high, f"{found}; {interval}")
        )
    return claims


def _amd(lr: float, shape: Shape) -> Make:
    def make(model: nn.Module, steps: int) -> tuple[Optimizer, LRScheduler]:
        optimiser = optim.AMD(model.named_parameters(), lr=lr, mirror=layerwise(model))
        return optimiser, scheduled(optimiser, shape, steps)

    return make


class _Task:
    """Data, and training for an epoch on it."""

    def __init__(self, size: Size, source: Source, directory: Path | None) -> None:
        self.size = size
        (images, labels), (test, self.test_labels) = (
            images_of(source, part, directory) for part in ("train", "test")
        )
        self.images = images[: size.images, None]
        self.labels = labels[: size.images]
        self.test = test[:, None]

    def tuned(self, contestant: TunableOptimiser) -> Any:
        """Return the setting of least test loss on a tuning network, one number after the other."""
        if len(contestant.settings) == 1:
            return contestant.settings[0]
        return in_turn(
            contestant.settings,
            lambda setting: number(self.train(contestant.make(*setting), TUNING_SEED)[0]),
        )

    def train(self, make: Make, seed: int, interrupted: bool = False) -> tuple[float, float]:
        """Return test loss and accuracy after an epoch."""
        model = initialised(lambda: small_resnet(self.size.channels), seed)
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(seed))
        batches = torch.split(order, self.size.batch)
        optimiser, schedule = make(model, len(batches))
        for k, batch in enumerate(batches):
            if interrupted and k == len(batches) // 2:
                saved: list[dict[str, Any]] = [
                    part.state_dict() for part in (model, optimiser, schedule) if part
                ]
                model = small_resnet(self.size.channels)
                optimiser, schedule = make(model, len(batches))
                for part, state in zip((model, optimiser, schedule), saved, strict=False):
                    part.load_state_dict(state)  # type: ignore[union-attr]
            optimiser.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(self.images[batch]), self.labels[batch]))
            with muon_in_single_precision():
                optimiser.step()
            if schedule is not None:
                schedule.step()
        return self._test(model)

    @torch.no_grad()
    def _test(self, model: nn.Module) -> tuple[float, float]:
        model.eval()
        outputs = torch.cat([model(part) for part in torch.split(self.test, 1000)])
        loss = F.cross_entropy(outputs, self.test_labels)
        return float(loss), float((outputs.argmax(1) == self.test_labels).float().mean())
