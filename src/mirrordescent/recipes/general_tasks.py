"""Training tasks with any network, any loss and any validation."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

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
        return self.follow(make, seed, directory, steps, parts=1)[0]

    def follow(
        self,
        make: Make,
        seed: int,
        directory: Path | None = None,
        steps: int | None = None,
        parts: int = 10,
    ) -> tuple[End, list[float]]:
        """Train a network, and return its end with the held-out loss after each part of the run.

        If the optimiser averages weights, the average is validated. Validation does not change
        the run.
        """
        steps = steps or self.steps
        marks = [math.ceil(part * steps / parts) for part in range(1, parts + 1)]
        held_out: list[float] = []
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model, loss, validate = self.start(seed, directory)
            optimiser, scheduler = make(model, steps)
            averaged: Any = getattr(optimiser, "averaged", nullcontext)
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
                diverged = math.isnan(losses[-1])
                if diverged:
                    marks = marks[: len(held_out)] + [k + 1] * (parts - len(held_out))
                for _ in range(marks.count(k + 1)):
                    model.eval()
                    # Residuals of equations need derivatives.
                    with averaged(), torch.enable_grad():
                        held_out.append(float(validate().detach()))
                    model.train()
                if diverged:
                    break
        last = losses[-max(1, steps // 10) :]
        return End(sum(last) / len(last), held_out[-1], float("nan"), seconds), held_out
