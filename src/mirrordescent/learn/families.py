"""Problem families: what learning trains on.

A problem is a function of a seed. Whoever holds the seeds can draw the same problems again, so runs resume to the
same numbers, and a batch can be shared out among processes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from mirrordescent.data.images import random_crops
from mirrordescent.problems import SVM, Problem, TVDenoising, TVInpainting
from mirrordescent.references.certificate import certify
from mirrordescent.trees import Tree, batch_size, tree_map, where

SEEDS = 2**31  # seeds are drawn from [0, SEEDS); the generator of torch tells no more than 2³² apart


@dataclass(frozen=True)
class Draw:
    """A batch of problems, where to start on each, and lower bounds on their values if they are known."""

    problem: Problem
    x0: Tree
    lower: Tensor | None = None


class ProblemFamily(ABC):
    """A distribution over problems of one kind.

    To add a family, write ``draw``, which makes one problem from every seed; and ``validation``, if held-out
    problems are made from other data, and not only from other seeds.
    """

    @abstractmethod
    def draw(self, seeds: Tensor) -> Draw:
        """Return the problems of these seeds, in this order."""

    def validation(self, count: int) -> Draw:
        """Return the first ``count`` held-out problems, always the same: those of seeds beyond all that are drawn."""
        return self.draw(torch.arange(SEEDS, SEEDS + count))


class Pooled(ProblemFamily):
    """A finite pool of a family's problems with certified lower bounds, so that gaps can be trained on."""

    def __init__(self, family: ProblemFamily, size: int = 128, tolerance: float = 1e-3, seed: int = 0) -> None:
        if size < 1:
            raise ValueError(f"a pool needs at least one problem, got size={size}")
        self.family = family
        self.seeds = draw_seeds(size, torch.Generator().manual_seed(seed))
        self.tolerance = tolerance
        self.lower = self._certified(family.draw(self.seeds))

    def draw(self, seeds: Tensor) -> Draw:
        index = seeds % len(self.seeds)
        drawn = self.family.draw(self.seeds[index])
        return Draw(drawn.problem, drawn.x0, self.lower[index])

    def validation(self, count: int) -> Draw:
        """Return the family's held-out problems with their lower bounds."""
        drawn = self.family.validation(count)
        return Draw(drawn.problem, drawn.x0, self._certified(drawn))

    def _certified(self, drawn: Draw) -> Tensor:
        data = next(drawn.problem.buffers())
        lower = certify(drawn.problem, self.tolerance).lower.to(data)
        return lower.expand(batch_size(drawn.x0))  # where one problem is shared by all starts, so is its bound


class OnDevice(ProblemFamily):
    """The problems of a family, drawn where it draws them and then moved to a device."""

    def __init__(self, family: ProblemFamily, device: str | torch.device) -> None:
        self.family, self.device = family, usable(device)

    def draw(self, seeds: Tensor) -> Draw:
        return self._moved(self.family.draw(seeds))

    def validation(self, count: int) -> Draw:
        return self._moved(self.family.validation(count))

    def _moved(self, draw: Draw) -> Draw:
        lower = None if draw.lower is None else draw.lower.to(self.device)
        x0 = tree_map(lambda leaf: leaf.to(self.device), draw.x0)
        return Draw(draw.problem.to(self.device), x0, lower)


class Pictures(ProblemFamily):
    """Problems made from crops of pictures (channels, height, width) of any size; validation uses other pictures."""

    def __init__(self, training: Sequence[Tensor], held_out: Sequence[Tensor], size: int) -> None:
        self.training, self.held_out, self.size = training, held_out, size

    @abstractmethod
    def make(self, pictures: Sequence[Tensor], seeds: Tensor) -> Draw:
        """Make a problem from these pictures for every seed."""

    def draw(self, seeds: Tensor) -> Draw:
        return self.make(self.training, seeds)

    def validation(self, count: int) -> Draw:
        return self.make(self.held_out, torch.arange(count))


class InpaintingFamily(Pictures):
    """Crops of photographs with random pixels missing and noise on all: ½(‖Z(x − y)‖² + λ‖Dx‖₁).

    Args:
        training: pictures (channels, height, width) of any size.
        held_out: pictures for validation.
        size: side of the crops.
        missing, noise: the damage.
        weight: λ.
        fill: start from y with its holes filled, rather than black; ``"alternate"`` does so for even seeds.
    """

    def __init__(
        self, training: Sequence[Tensor], held_out: Sequence[Tensor], *, size: int = 32, missing: float = 0.2,
        noise: float = 0.05, weight: float = 0.15, fill: bool | Literal["alternate"] = False,
    ) -> None:  # fmt: skip
        super().__init__(training, held_out, size)
        if not 0 <= missing < 1:
            raise ValueError(f"missing must be a share in [0, 1), got {missing}")
        self.missing, self.noise, self.weight, self.fill = missing, noise, weight, fill

    def make(self, pictures: Sequence[Tensor], seeds: Tensor) -> Draw:
        """Crop, remove and perturb, each problem by its own seed."""
        observed, masks = [], []
        for generator in generators(seeds):
            crop = random_crops(pictures, self.size, 1, generator)
            mask = (torch.rand(1, 1, self.size, self.size, generator=generator) >= self.missing).to(crop)
            mask[..., 0, 0] = 1  # a problem with nothing observed has no meaning
            observed.append(mask * crop + self.noise * torch.randn(crop.shape, generator=generator))
            masks.append(mask)
        problem = TVInpainting(torch.cat(observed), torch.cat(masks), self.weight)
        if self.fill != "alternate":
            return Draw(problem, problem.start(fill=self.fill))
        return Draw(problem, where(seeds % 2 == 0, problem.start(fill=True), problem.start()))


class DenoisingFamily(Pictures):
    """Crops of images that are noisy already: ½(‖x − y‖² + λ‖Dx‖₁), started at y."""

    def __init__(
        self, training: Sequence[Tensor], held_out: Sequence[Tensor], *, size: int = 64, weight: float = 0.15
    ) -> None:
        super().__init__(training, held_out, size)
        self.weight = weight

    def make(self, pictures: Sequence[Tensor], seeds: Tensor) -> Draw:
        crops = torch.cat([random_crops(pictures, self.size, 1, generator) for generator in generators(seeds)])
        problem = TVDenoising(crops, self.weight)
        return Draw(problem, problem.start())


class SVMFamily(ProblemFamily):
    """One support vector machine from many starts (w, b) ~ N(0, I)."""

    def __init__(self, features: Tensor, labels: Tensor, C: float = 1.0) -> None:
        self.problem = SVM(features, labels, C)

    def draw(self, seeds: Tensor) -> Draw:
        dimension = self.problem.signed.shape[-1]
        starts = [torch.randn(dimension, generator=generator) for generator in generators(seeds)]
        return Draw(self.problem, torch.stack(starts).to(self.problem.signed))


def draw_seeds(count: int, generator: Generator) -> Tensor:
    """Draw seeds of problems."""
    return torch.randint(SEEDS, (count,), generator=generator)


def generators(seeds: Tensor) -> list[Generator]:
    """Return a generator for every seed."""
    return [torch.Generator().manual_seed(seed) for seed in seeds.tolist()]


def usable(device: str | torch.device) -> torch.device:
    """Return a device, or say that it cannot be used."""
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"the device {device} cannot be used here: {str(error).splitlines()[0]}") from error
    return chosen
