"""Families of problems, on which methods are learned.

A problem is a function of a seed: the same seeds give the same problems. Hence an interrupted run
resumes to the same numbers, and processes can share a batch.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, SupportsInt

import torch
from torch import Generator, Tensor, nn

from mirrordescent.data.image_files import random_crops
from mirrordescent.data.random_masks import SHAPES
from mirrordescent.learn.bounds import bounds_within
from mirrordescent.problems import (
    SVM,
    Blur,
    Problem,
    TVDenoising,
    TVInpainting,
    gaussian_kernel,
    motion_kernel,
)
from mirrordescent.trees import Tree, leaves, tree_map, where

SEEDS = 2**31
"""Seeds for training are drawn from [0, SEEDS). Torch's generator has 2³² different seeds."""


@dataclass(frozen=True)
class Draw:
    """A batch of problems.

    Args:
        problem: Problems.
        x0: Starting points.
        lower: Lower bounds on the minimal values (batch,), if known.
    """

    problem: Problem
    x0: Tree
    lower: Tensor | None = None


class ProblemFamily(ABC):
    """A distribution over problems of one kind.

    A subclass implements :meth:`draw`, which makes one problem from every seed. If held-out
    problems need other data, and not only other seeds, it also overrides :meth:`validation`.
    """

    @abstractmethod
    def draw(self, seeds: Tensor) -> Draw:
        """Return the problems of some seeds, in the order of the seeds."""

    def validation(self, count: int) -> Draw:
        """Return the first ``count`` held-out problems, which are always the same.

        Their seeds are never drawn for training.
        """
        return self.draw(torch.arange(SEEDS, SEEDS + count))


class Pooled(ProblemFamily):
    """A finite pool of problems with lower bounds, so that losses can be gaps.

    If bounds cannot be proven, they are estimates (:func:`~mirrordescent.references.certify`).
    ``conditional_on`` lists the statements of users' classes that the bounds rest on. It is None if
    the bounds are estimates.

    Args:
        family: Family from which the problems are drawn.
        size: Number of problems.
        tolerance: Relative gap to which the bounds are certified.
        seed: Seed for the choice of the problems.
        reference: Function of a draw that returns bounds (batch,) instead of certified ones, for
            example from a long run if a proof takes too long.
        seconds: Time limit for the bounds of the pool. Those that are not proven in time are
            estimates; ``estimated`` is their number.
    """

    def __init__(
        self,
        family: ProblemFamily,
        size: int = 128,
        tolerance: float = 1e-3,
        seed: int = 0,
        reference: Callable[[Draw], Tensor] | None = None,
        seconds: float = math.inf,
    ) -> None:
        if size < 1:
            raise ValueError(f"the size of a pool must be at least 1, got {size}")
        self.family = family
        self.reference = reference
        self.seeds = draw_seeds(size, torch.Generator().manual_seed(seed))
        self.tolerance = tolerance
        self.conditional_on: list[str] | None = []
        self.seconds = seconds
        self.estimated = 0

    @property
    def proven(self) -> bool:
        """Whether all bounds computed so far are proven without conditions."""
        return self.conditional_on == []

    @cached_property
    def lower(self) -> Tensor:
        """The bounds of the pool, computed on the first use."""
        return self._bounds(self.family.draw(self.seeds))

    def draw(self, seeds: Tensor) -> Draw:
        index = seeds % len(self.seeds)
        drawn = self.family.draw(self.seeds[index])
        return Draw(drawn.problem, drawn.x0, self.lower[index])

    def unbounded(self) -> Draw:
        """Return all problems of the pool as the family draws them, without certified bounds."""
        return self.family.draw(self.seeds)

    def validation(self, count: int) -> Draw:
        """Return the held-out problems of the family with lower bounds."""
        drawn = self.family.validation(count)
        return Draw(drawn.problem, drawn.x0, self._bounds(drawn))

    def _bounds(self, drawn: Draw) -> Tensor:
        if self.reference is not None:
            return self.reference(drawn).to(next(leaves(drawn.x0)))
        bounds = bounds_within(drawn.problem, drawn.x0, self.tolerance, self.seconds)
        self.conditional_on = merge_conditions(self.conditional_on, bounds.conditions)
        self.estimated += bounds.estimated
        return bounds.lower


def merge_conditions(first: list[str] | None, second: list[str] | None) -> list[str] | None:
    """Return the statements that two bounds rest on together; None if one is an estimate."""
    if first is None or second is None:
        return None
    return list(dict.fromkeys([*first, *second]))


def lower_bounds(drawn: Draw, tolerance: float = 1e-3) -> tuple[Tensor, list[str] | None]:
    """Return lower bounds on the minimal values of a draw, and the statements they rest on.

    The list of statements is empty if the bounds are proven. It is None if they cannot be proven
    and are estimates.

    Args:
        drawn: Batch of problems.
        tolerance: Relative gap to which the bounds are certified.
    """
    bounds = bounds_within(drawn.problem, drawn.x0, tolerance)
    return bounds.lower, bounds.conditions


class OnDevice(ProblemFamily):
    """The problems of a family, moved to a device.

    Args:
        family: Family of problems.
        device: Device such as ``"cuda"``.
    """

    def __init__(self, family: ProblemFamily, device: str | torch.device) -> None:
        self.family = family
        self.device = require_device(device)

    def draw(self, seeds: Tensor) -> Draw:
        return self._move(self.family.draw(seeds))

    def validation(self, count: int) -> Draw:
        return self._move(self.family.validation(count))

    def _move(self, draw: Draw) -> Draw:
        lower = None if draw.lower is None else draw.lower.to(self.device)
        x0 = tree_map(lambda leaf: leaf.to(self.device), draw.x0)
        return Draw(draw.problem.to(self.device), x0, lower)


class Pictures(ProblemFamily):
    """Problems made from crops of pictures. A subclass implements :meth:`make`.

    Args:
        training: Pictures (channels, height, width) of any size.
        held_out: Pictures for validation.
        size: Side of the crops in pixels.
    """

    def __init__(self, training: Sequence[Tensor], held_out: Sequence[Tensor], size: int) -> None:
        self.training = training
        self.held_out = held_out
        self.size = size

    @abstractmethod
    def make(self, pictures: Sequence[Tensor], seeds: Tensor) -> Draw:
        """Make a problem from the pictures for every seed."""

    def draw(self, seeds: Tensor) -> Draw:
        return self.make(self.training, seeds)

    def validation(self, count: int) -> Draw:
        return self.make(self.held_out, torch.arange(count))


class InpaintingFamily(Pictures):
    """Inpainting of photographs: ½(‖Z(x − y)‖² + λ‖Dx‖₁) with random missing pixels and noise.

    Args:
        training: Pictures (channels, height, width) of any size.
        held_out: Pictures for validation.
        size: Side of the crops in pixels.
        missing: Share of missing pixels.
        noise: Standard deviation of the noise.
        weight: Weight λ of the total variation.
        fill: Whether the starting point is y with filled holes, instead of black holes.
            ``"alternate"`` fills the holes for even seeds.
    """

    def __init__(
        self,
        training: Sequence[Tensor],
        held_out: Sequence[Tensor],
        *,
        size: int = 32,
        missing: float = 0.2,
        noise: float = 0.05,
        weight: float = 0.15,
        fill: bool | Literal["alternate"] = False,
    ) -> None:
        super().__init__(training, held_out, size)
        if not 0 <= missing < 1:
            raise ValueError(f"missing must be a share of the pixels in [0, 1), got {missing}")
        self.missing = missing
        self.noise = noise
        self.weight = weight
        self.fill = fill

    def make(self, pictures: Sequence[Tensor], seeds: Tensor) -> Draw:
        """Crop a picture, remove pixels and add noise, for every seed."""
        observed = []
        masks = []
        for generator in generators(seeds):
            crop = random_crops(pictures, self.size, 1, generator)
            uniform = torch.rand(1, 1, self.size, self.size, generator=generator)
            mask = (uniform >= self.missing).to(crop)
            mask[..., 0, 0] = 1  # at least one pixel must be known
            observed.append(mask * crop + self.noise * torch.randn(crop.shape, generator=generator))
            masks.append(mask)
        problem = TVInpainting(torch.cat(observed), torch.cat(masks), self.weight)
        if self.fill != "alternate":
            return Draw(problem, problem.start(fill=self.fill))
        return Draw(problem, where(seeds % 2 == 0, problem.start(fill=True), problem.start()))


class RestorationFamily(Pictures):
    """Restoration of grey pictures with all kinds of damage: ½(‖Z(x − y)‖² + λ‖Dx‖₁).

    λ, the noise, the holes and the starting point are random:

    - log λ is distributed over ``weights``, more densely towards the middle.
    - A fifth of the problems has no noise. For the others its level is uniform up to ``noise``.
    - Of seven problems, one has no holes, three have scattered holes, and one each has blocks,
      scratches and writing. A problem without holes has a mask of ones.
    - A third of the problems starts with black holes, the others with filled holes.

    Args:
        training: Pictures (channels, height, width) of any size.
        held_out: Pictures for validation.
        size: Side of the crops in pixels.
        weights: Range of λ, for pictures in [0, 1].
        noise: Largest standard deviation of the noise.
        variants: Keywords of :class:`~mirrordescent.problems.TVInpainting`, such as
            ``isotropic=True``.
    """

    KINDS = ("none", "scattered", "scattered", "scattered", "blocks", "scratches", "writing")

    def __init__(
        self,
        training: Sequence[Tensor],
        held_out: Sequence[Tensor],
        *,
        size: int = 64,
        weights: tuple[float, float] = (5e-4, 15.0),
        noise: float = 0.2,
        **variants: Any,
    ) -> None:
        super().__init__(training, held_out, size)
        self.weights = weights
        self.noise = noise
        self.variants = variants

    def make(self, pictures: Sequence[Tensor], seeds: Tensor) -> Draw:
        """Crop and damage a picture for every seed."""
        observed = []
        masks = []
        weights = []
        filled = []
        for generator in generators(seeds):
            number = torch.rand(5, generator=generator).tolist()
            crop = random_crops(pictures, self.size, 1, generator)
            crop = crop[:, int(number[0] * crop.shape[1])].unsqueeze(1)  # one channel
            kind = self.KINDS[int(number[1] * len(self.KINDS))]
            if kind == "none":
                mask = torch.ones_like(crop)
            else:
                mask = SHAPES[kind](self.size, generator).to(crop)[None, None]
            mask[..., 0, 0] = 1  # at least one pixel must be known
            noise = self.noise * max(0.0, 1.25 * number[2] - 0.25)
            observed.append(mask * (crop + noise * torch.randn(crop.shape, generator=generator)))
            masks.append(mask)
            low, high = map(math.log, self.weights)
            side = 2 * number[3] - 1
            weights.append(math.exp((low + high) / 2 + (high - low) / 2 * side * abs(side)))
            filled.append(number[4] > 1 / 3)
        problem = TVInpainting(
            torch.cat(observed), torch.cat(masks), torch.tensor(weights), **self.variants
        )
        return Draw(problem, where(torch.tensor(filled), problem.start(fill=True), problem.start()))


class DeblurringFamily(Pictures):
    """Deblurring of grey pictures: ½(‖Ax − y‖² + λ‖Dx‖₁) with random blur, noise and λ.

    Half of the blurs are Gaussian, with a width between 0.6 and 2.5. The others are motions over 3
    to 13 pixels in a random direction.

    Args:
        training: Pictures (channels, height, width) of any size.
        held_out: Pictures for validation.
        size: Side of the crops in pixels.
        weights: Range of λ, for pictures in [0, 1].
        noise: Largest standard deviation of the noise.
    """

    SIDE = 17
    """Side of all blur kernels, so that they fit into one tensor."""

    def __init__(
        self,
        training: Sequence[Tensor],
        held_out: Sequence[Tensor],
        *,
        size: int = 64,
        weights: tuple[float, float] = (5e-4, 0.5),
        noise: float = 0.03,
    ) -> None:
        super().__init__(training, held_out, size)
        self.weights = weights
        self.noise = noise

    def make(self, pictures: Sequence[Tensor], seeds: Tensor) -> Draw:
        """Crop and blur a picture and add noise, for every seed."""
        crops = []
        kernels = []
        noises = []
        weights = []
        for generator in generators(seeds):
            number = torch.rand(6, generator=generator).tolist()
            crop = random_crops(pictures, self.size, 1, generator)
            crops.append(crop[:, int(number[0] * crop.shape[1])].unsqueeze(1))
            if number[1] < 0.5:
                kernel = gaussian_kernel(0.6 + 1.9 * number[2])
            else:
                kernel = motion_kernel(3 + 10 * number[2], math.pi * number[3])
            margin = (self.SIDE - kernel.shape[0]) // 2
            kernels.append(nn.functional.pad(kernel, (margin,) * 4))
            noises.append(
                self.noise * number[4] * torch.randn(crops[-1].shape, generator=generator)
            )
            low, high = map(math.log, self.weights)
            weights.append(math.exp(low + (high - low) * number[5]))
        blur = Blur(torch.stack(kernels))
        observed = blur.A(torch.cat(crops)) + torch.cat(noises)
        problem = TVInpainting(observed, None, torch.tensor(weights), operator=blur)
        return Draw(problem, problem.start())


class DenoisingFamily(Pictures):
    """Denoising of noisy images: ½(‖x − y‖² + λ‖Dx‖₁), started at y.

    Args:
        training: Noisy images (channels, height, width) of any size.
        held_out: Noisy images for validation.
        size: Side of the crops in pixels.
        weight: Weight λ of the total variation.
    """

    def __init__(
        self,
        training: Sequence[Tensor],
        held_out: Sequence[Tensor],
        *,
        size: int = 64,
        weight: float = 0.15,
    ) -> None:
        super().__init__(training, held_out, size)
        self.weight = weight

    def make(self, pictures: Sequence[Tensor], seeds: Tensor) -> Draw:
        crops = [random_crops(pictures, self.size, 1, generator) for generator in generators(seeds)]
        problem = TVDenoising(torch.cat(crops), self.weight)
        return Draw(problem, problem.start())


class SVMFamily(ProblemFamily):
    """One support vector machine from random starting points (w, b) ~ N(0, I).

    Args:
        features: Features (n, d).
        labels: Labels (n,), 1 or −1.
        C: Weight of the hinge loss.
    """

    def __init__(self, features: Tensor, labels: Tensor, C: float = 1.0) -> None:
        self.problem = SVM(features, labels, C)

    def draw(self, seeds: Tensor) -> Draw:
        dimension = self.problem.signed.shape[-1]
        starts = [torch.randn(dimension, generator=generator) for generator in generators(seeds)]
        return Draw(self.problem, torch.stack(starts).to(self.problem.signed))


def draw_seeds(count: int, generator: Generator) -> Tensor:
    """Draw seeds of problems for training."""
    return torch.randint(SEEDS, (count,), generator=generator)


def generators(seeds: Iterable[SupportsInt]) -> list[Generator]:
    """Return a random generator for every seed of a tensor, an array or a range.

    >>> len(generators(range(3)))
    3
    """
    return [torch.Generator().manual_seed(int(seed)) for seed in seeds]


def require_device(device: str | torch.device) -> torch.device:
    """Return a device, or raise if it is not available."""
    try:
        available = torch.device(device)
        torch.empty(1, device=available)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"the device {device} cannot be used here: {reason}") from error
    return available
