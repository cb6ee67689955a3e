"""Training tasks with any network, any loss and any validation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from mirrordescent.recipes.training_tasks import End, Make


class Training(NamedTuple):
    """A network, and how it is trained and judged.

    Attributes:
        model: Network at the start.
        loss: Function from the number of a step to the loss of its minibatch.
        validate: Function that returns the loss on held-out data.
    """

    model: nn.Module
    loss: Callable[[int], Tensor]
    validate: Callable[[], Tensor]


Start: TypeAlias = Callable[[int, Path | None], Training]
"""Function from a seed and the folder of data sets to a training at its start."""


@dataclass(frozen=True)
class GeneralTask:
    """A network to train, judged by its loss on held-out data.

    Args:
        name: Name of the task.
        start: Function that returns the training; a seed determines all its random numbers.
        steps: Number of steps.
        decades: Whether losses of good runs differ by orders of magnitude, as for residuals of
            equations without noise.
    """

    name: str
    start: Start
    steps: int
    decades: bool = False

    def train(
        self, make: Make, seed: int, directory: Path | None = None, steps: int | None = None
    ) -> End:
        """Train a network. The loss of the end is the mean over the last tenth of the steps."""
        steps = steps or self.steps
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model, loss, validate = self.start(seed, directory)
            optimiser, scheduler = make(model, steps)
            losses: list[float] = []
            seconds = 0.0
            model.train()
            for k in range(steps):
                began = perf_counter()
                optimiser.zero_grad()
                value = loss(k)
                torch.autograd.backward(value)
                optimiser.step()
                seconds += perf_counter() - began
                losses.append(float(value.detach()))
                if scheduler is not None:
                    scheduler.step()
                if math.isnan(losses[-1]):
                    break
            model.eval()
            with torch.enable_grad():  # residuals of equations need derivatives
                held_out = float(validate().detach())
        last = losses[-max(1, steps // 10) :]
        return End(sum(last) / len(last), held_out, float("nan"), seconds)
