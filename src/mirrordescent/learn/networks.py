"""Families of networks to train: random initialisations on one data set, and few-shot tasks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mirrordescent.data.omniglot import Tasks, sample_tasks
from mirrordescent.learn.families import SEEDS, Draw, ProblemFamily, generators
from mirrordescent.problems.networks import NetworkTraining, repeat


class NetworkFamily(ProblemFamily):
    """One architecture on one data set, from PyTorch's random initialisation.

    Minibatches are the oracle's business: ``learn(family, method, oracle=Minibatch(500))``. To learn in a reasonable
    time let ``evaluation`` data points stand for all of them when the loss is measured.

    Args:
        model: the architecture.
        inputs, targets: (n, …) and (n,); see :class:`~mirrordescent.problems.networks.NetworkTraining`.
        evaluation: how many data points the loss is measured on, the first ones; all by default.
    """

    def __init__(self, model: nn.Module, inputs: Tensor, targets: Tensor, *, evaluation: int | None = None) -> None:
        self.problem = NetworkTraining(model, inputs, targets, evaluation=evaluation)

    def draw(self, seeds: Tensor) -> Draw:
        """Initialise a network by every seed."""
        return Draw(self.problem, self.problem.initial(seeds))


def moons_family(points: int = 500, noise: float = 0.05, seed: int = 0) -> NetworkFamily:
    """Return networks 2 → 50 → 1 that tell two interleaved half circles apart."""
    from sklearn.datasets import make_moons

    inputs, targets = make_moons(points, noise=noise, random_state=seed)
    model = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 1))
    return NetworkFamily(model, torch.from_numpy(inputs).float(), torch.from_numpy(targets).float())


class FewShotFamily(ProblemFamily):
    """Tasks to tell ``way`` characters apart from ``shot`` drawings of each, with a network of its own for each task.

    Args:
        model: the architecture, for inputs (1, height, width).
        characters: (characters, drawings, height, width), to draw tasks from.
        held_out: other characters, for validation.
        way, shot: of the tasks.
        initial: one network, name → tensor, to start from on every task; a random one for each by default.
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
    ) -> None:
        self.model, self.characters, self.held_out = model, characters, held_out
        self.way, self.shot, self.initial = way, shot, initial

    def draw(self, seeds: Tensor) -> Draw:
        """Make a task from every seed, and a network where it is random."""
        return self.begin(self.tasks(seeds), seeds)

    def validation(self, count: int) -> Draw:
        """Make tasks from the held-out characters."""
        seeds = torch.arange(SEEDS, SEEDS + count)
        return self.begin(self.tasks(seeds, held_out=True), seeds)

    def tasks(self, seeds: Tensor, held_out: bool = False) -> Tasks:
        """Return the task of every seed, with its test part."""
        characters = self.held_out if held_out else self.characters
        each = [sample_tasks(characters, 1, self.way, self.shot, generator) for generator in generators(seeds)]
        return Tasks(*map(torch.cat, zip(*each, strict=True)))

    def begin(self, tasks: Tasks, seeds: Tensor) -> Draw:
        """Return the training of one network for every task, from the start that goes with its seed."""
        problem = NetworkTraining(self.model, tasks.train_images.unsqueeze(2), tasks.train_labels)
        if self.initial is not None:
            return Draw(problem, repeat(self.initial, len(seeds)))
        return Draw(problem, problem.initial(seeds))
