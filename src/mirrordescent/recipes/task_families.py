"""Families of problems: tomography of random ellipses, and few-shot tasks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mirrordescent.data import Tasks, ellipse_phantoms, sample_tasks
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import SEEDS, generators
from mirrordescent.problems import ParallelBeam, PoissonTomography
from mirrordescent.problems.network_training import NetworkTraining, repeat

# ∫x along a ray, on average over phantoms and rays of a detector that sees the whole square
MEAN_RAY = 0.32


class TomographyFamily(ProblemFamily):
    """Emission tomography with counts y ~ Poisson(Ax + b) of random ellipse phantoms x.

    Methods start from constant images.

    Args:
        size: Side of the images.
        angles: Number of angles.
        counts: Mean number of counts in a cell of the detector.
        background: Expected number b of background counts in a cell.
        weight: Weight ρ of the roughness.
        terms: Number of groups of angles.
    """

    def __init__(
        self,
        size: int = 64,
        angles: int = 40,
        *,
        counts: float = 45.0,
        background: float = 2.0,
        weight: float = 20.0,
        terms: int = 8,
    ) -> None:
        self.beam = ParallelBeam(size, angles, detectors=round(1.5 * size))
        self.exposure = counts / MEAN_RAY
        self.background = background
        self.weight = weight
        self.terms = terms

    def draw(self, seeds: Tensor) -> Draw:
        """Draw a phantom and its counts from every seed."""
        problem = self.simulate(seeds)[1]
        return Draw(problem, problem.start())

    def simulate(self, seeds: Tensor) -> tuple[Tensor, PoissonTomography]:
        """Return the phantoms (count, 1, size, size) of these seeds, and their problem."""
        phantoms = []
        counts = []
        for generator in generators(seeds):
            phantoms.append(ellipse_phantoms(1, self.beam.size, generator=generator))
            expected = self.exposure * self.beam.A(phantoms[-1]) + self.background
            counts.append(torch.poisson(expected, generator=generator))
        y = torch.cat(counts)
        problem = PoissonTomography(
            y, self.beam, self.exposure, self.background, self.weight, terms=self.terms
        )
        return torch.cat(phantoms), problem


class FewShotFamily(ProblemFamily):
    """Few-shot tasks: classify ``way`` characters, given ``shot`` drawings of each.

    Every task has its own network.

    Args:
        model: Architecture for inputs (1, height, width).
        characters: Drawings (characters, drawings, height, width) for learning.
        held_out: Drawings of other characters for validation.
        way: Number of characters in a task.
        shot: Number of drawings of each character to learn from.
        initial: Network to start from on every task, name → tensor; by default a random network for
            each task.
        training: Function that makes the problem from the model, images and labels.
    """

    def __init__(
        self,
        model: nn.Module,
        characters: Tensor,
        held_out: Tensor,
        *,
        way: int = 10,
        shot: int = 5,
        initial: dict[str, Tensor] | None = None,
        training: Callable[[nn.Module, Tensor, Tensor], NetworkTraining] = NetworkTraining,
    ) -> None:
        self.training = training
        self.model = model
        self.characters = characters
        self.held_out = held_out
        self.way = way
        self.shot = shot
        self.initial = initial

    def draw(self, seeds: Tensor) -> Draw:
        """Draw a task from every seed, and a network if there is no common start."""
        return self.begin(self.tasks(seeds), seeds)

    def validation(self, count: int) -> Draw:
        """Draw tasks from the held-out characters."""
        seeds = torch.arange(SEEDS, SEEDS + count)
        return self.begin(self.tasks(seeds, held_out=True), seeds)

    def tasks(self, seeds: Tensor, held_out: bool = False) -> Tasks:
        """Return the task of every seed, with its test part."""
        characters = self.held_out if held_out else self.characters
        each = [
            sample_tasks(characters, 1, self.way, self.shot, generator)
            for generator in generators(seeds)
        ]
        return Tasks(*map(torch.cat, zip(*each, strict=True)))

    def begin(self, tasks: Tasks, seeds: Tensor) -> Draw:
        """Return the training problem of all tasks, and the starts of the seeds."""
        problem = self.training(self.model, tasks.train_images.unsqueeze(2), tasks.train_labels)
        if self.initial is not None:
            return Draw(problem, repeat(self.initial, len(seeds)))
        return Draw(problem, problem.initial(seeds))
