"""Families of the experiments: tomography of random ellipses, and few-shot tasks."""

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
    """Counts y ~ Poisson(Ax + b) of random ellipse phantoms x, started from constant images.

    Args:
        size: side of the images.
        angles: the number of angles.
        counts: the average number of counts in a cell of the detector.
        background: b, the expected background counts in a cell.
        weight: ρ, the weight of the roughness.
        terms: the number of groups of angles.
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
        """Return the phantoms of these seeds, (count, 1, size, size), and the problem to
        find them.
        """
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
    """Tasks to tell ``way`` characters apart from ``shot`` drawings of each, with a network of its
    own for each task.

    Args:
        model: the architecture, for inputs (1, height, width).
        characters: (characters, drawings, height, width), to draw tasks from.
        held_out: other characters, for validation.
        way, shot: characters in a task, and drawings of each to learn from.
        initial: one network, name → tensor, to start from on every task; by default a random one
            for each.
        training: makes the problem from the model, images and labels.
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
        """Make a task from every seed, and a network for it unless all start from the same one."""
        return self.begin(self.tasks(seeds), seeds)

    def validation(self, count: int) -> Draw:
        """Make tasks from the held-out characters."""
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
        """Return the training of one network for every task, from the start that goes with its
        seed.
        """
        problem = self.training(self.model, tasks.train_images.unsqueeze(2), tasks.train_labels)
        if self.initial is not None:
            return Draw(problem, repeat(self.initial, len(seeds)))
        return Draw(problem, problem.initial(seeds))
