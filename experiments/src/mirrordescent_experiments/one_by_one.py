"""Networks trained one by one with ``torch.optim``, from the same starts in epochs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, get_args

import torch
from torch import nn
from torch.nn import functional as F

from mirrordescent import zoo
from mirrordescent.contests.training_runs import LOSS, TEST_ACCURACY
from mirrordescent.data.splits import Split
from mirrordescent.recipes.architectures import initialised
from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent.recipes.training_tasks import Make
from mirrordescent_experiments.contestants import (
    ADAMW,
    CONTROL,
    MULTIPLES,
    MUON,
    ONCE,
    TunableOptimiser,
    adamw,
    adamw_grid,
    control,
    grid,
    learned,
    muon,
    muon_in_single_precision,
)
from mirrordescent_experiments.ledger import TEST_SEED, TUNING_SEED, in_turn, number, written
from mirrordescent_experiments.network_training_curves import Architecture, Size, Source, images_of
from mirrordescent_experiments.result import Claim, Curve, Panel
from mirrordescent_experiments.training_claims import at_least, at_most


class OneByOne:
    """Data, and training on it."""

    def __init__(
        self, architecture: Architecture, size: Size, source: Source, directory: Path | None
    ) -> None:
        (images, self.labels), (test, self.test_labels) = (
            images_of(source, part, directory) for part in get_args(Split)
        )
        self.images = architecture.prepare(images)
        self.test = architecture.prepare(test)
        self.model = architecture.model
        self.size = size
        self.batch = min(architecture.batch, len(self.labels) // 4)
        self.epochs = architecture.epochs
        self.steps = self.epochs * len(self.labels) // self.batch

    def tuned(self, contestant: TunableOptimiser) -> tuple[str, Make]:
        """Tune an optimiser one setting after the other; return its name and the optimiser."""
        if len(contestant.settings) == 1:
            return contestant.name, contestant.make(*contestant.settings[0])
        setting = in_turn(contestant.settings, lambda each: self.final_loss(contestant.make(*each)))
        return f"{contestant.name} ({written(setting)})", contestant.make(*setting)

    def curves(self, name: str, make: Make) -> dict[str, Curve]:
        """Train all networks one by one; return curves of loss and test accuracy."""
        every = max(1, self.steps // self.size.looks)
        looks = [k for k in range(self.steps + 1) if k % every == 0 or k == self.steps]
        found = [self.train(make, TEST_SEED + i, looks) for i in range(self.size.networks)]
        seconds = torch.tensor([[look[0] for look in each] for each in found]).mean(0).tolist()
        return {
            quantity: Curve(
                name, looks, seconds, torch.tensor([[look[i] for look in each] for each in found]).T
            )
            for i, quantity in ((1, LOSS), (2, TEST_ACCURACY))
        }

    def final_loss(self, make: Make) -> float:
        """Return the mean loss at the end over the networks that settings are chosen on."""
        seeds = range(TUNING_SEED, TUNING_SEED + self.size.tuning_networks)
        ends = [number(self.train(make, seed, [self.steps])[-1][1]) for seed in seeds]
        return sum(ends) / len(ends)

    def train(self, make: Make, seed: int, looks: list[int]) -> list[tuple[float, float, float]]:
        """Train one network, and return seconds, loss and test accuracy at some counts of steps."""
        model = initialised(self.model, seed)
        generator = torch.Generator().manual_seed(seed)
        batches = torch.cat(
            [torch.randperm(len(self.labels), generator=generator) for _ in range(self.epochs)]
        )
        (optimiser, scheduler) = make(model, self.steps)
        seconds = 0.0
        seen = []
        for k in range(self.steps + 1):
            if k in looks:
                seen.append((seconds, *self._look(model)))
            if k == self.steps:
                break
            batch = batches[k * self.batch : (k + 1) * self.batch]
            inputs = self.images[batch]
            labels = self.labels[batch]
            began = perf_counter()
            optimiser.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(inputs), labels))
            with muon_in_single_precision():
                optimiser.step()
            seconds += perf_counter() - began
            if scheduler is not None:
                scheduler.step()
        return seen

    @torch.no_grad()
    def _look(self, model: nn.Module) -> tuple[float, float]:
        loss = F.cross_entropy(
            model(self.images[: self.size.evaluated]), self.labels[: self.size.evaluated]
        )
        accuracy = (model(self.test).argmax(1) == self.test_labels).float().mean()
        return float(loss), float(accuracy)


def falling_contestants() -> list[TunableOptimiser]:
    """Return the entry, the entry with identity maps, and AdamW and Muon with decaying steps."""
    entry: Any = zoo.load(ENTRY)
    return [
        TunableOptimiser(ENTRY, learned(entry), ONCE, of_entry=True),
        TunableOptimiser(CONTROL, control(entry), MULTIPLES[1:3], of_entry=True),
        TunableOptimiser(ADAMW, adamw, adamw_grid((3e-3, 1e-2), ("linear", "cosine"))),
        TunableOptimiser(MUON, muon, grid((3e-2, 1e-1), ("linear", "cosine"))),
    ]


def entry_claims(
    panels: dict[str, Panel], rivals: Sequence[str] = (ADAMW, MUON, CONTROL)
) -> list[Claim]:
    """Judge the entry against others after as many steps, by loss and by accuracy."""
    return [
        claim
        for rival in rivals
        for claim in (
            at_most(panels[LOSS], ENTRY, 1, rival),
            at_least(panels[TEST_ACCURACY], ENTRY, rival, 0.0),
        )
    ]
