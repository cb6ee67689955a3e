"""Problem families: what learning trains on.

A problem is a function of a seed. Whoever holds the seeds can draw the same problems again, so runs
resume to the same numbers, and a batch can be shared out among processes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from mirrordescent.data.image_files import random_crops
from mirrordescent.data.random_masks import SHAPES
from mirrordescent.problems import (
    SVM,
    Blur,
    Problem,
    TVDenoising,
    TVInpainting,
    gaussian_kernel,
    motion_kernel,
)
from mirrordescent.references.certificate import NotCertifiable, certify
from mirrordescent.trees import Tree, batch_size, leaves, tree_map, where

SEEDS = (
    2**31
)  # seeds are drawn from [0, SEEDS); the generator of torch tells no more than 2³² apart


@dataclass(frozen=True)
class Draw:
    """A batch of problems, where to start on each, and lower bounds on their values if they are
    known.
    """

    problem: Problem
    x0: Tree
    lower: Tensor | None = None


class ProblemFamily(ABC):
    """A distribution over problems of one kind.

    To add a family, write ``draw``, which makes one problem from every seed; and ``validation``, if
    held-out problems are made from other data, and not only from other seeds.
    """

    @abstractmethod
    def draw(self, seeds: Tensor) -> Draw:
        """Return the problems of these seeds, in this order."""

    def validation(self, count: int) -> Draw:
        """Return the first ``count`` held-out problems, always the same: those of seeds beyond all
        that are drawn.
        """
        return self.draw(torch.arange(SEEDS, SEEDS + count))


class Pooled(ProblemFamily):
    """A finite pool of a family's problems with lower bounds, so that gaps can be trained on.

    Args:
        family: the family.
        size: how many problems.
        tolerance: to which relative gap the bounds are certified.
        seed: determines which problems.
        reference: returns bounds of a draw, (batch,), in place of certified ones: of a long run,
            for example, where a proof takes too long.

    Where nothing can be proven, the bounds are estimates
    (:func:`~mirrordescent.references.certify`), and ``proven`` is False.
    """

    def __init__(
        self,
        family: ProblemFamily,
        size: int = 128,
        tolerance: float = 1e-3,
        seed: int = 0,
        reference: Callable[[Draw], Tensor] | None = None,
    ) -> None:
        if size < 1:
            raise ValueError(f"a pool needs at least one problem, got size={size}")
        self.family = family
        self.reference = reference
        self.seeds = draw_seeds(size, torch.Generator().manual_seed(seed))
        self.tolerance = tolerance
        self.proven = True

    @cached_property
    def lower(self) -> Tensor:
        """The bounds of the pool, computed when it is first drawn from."""
        return self._certified(self.family.draw(self.seeds))

    def draw(self, seeds: Tensor) -> Draw:
        index = seeds % len(self.seeds)
        drawn = self.family.draw(self.seeds[index])
        return Draw(drawn.problem, drawn.x0, self.lower[index])

    def validation(self, count: int) -> Draw:
        """Return the family's held-out problems with their lower bounds."""
        drawn = self.family.validation(count)
        return Draw(drawn.problem, drawn.x0, self._certified(drawn))

    def _certified(self, drawn: Draw) -> Tensor:
        if self.reference is not None:
            return self.reference(drawn).to(next(leaves(drawn.x0)))
        lower, proven = reference_of(drawn, self.tolerance)
        self.proven = self.proven and proven
        return lower


def reference_of(drawn: Draw, tolerance: float = 1e-3) -> tuple[Tensor, bool]:
    """Return lower bounds on the values of a draw, (batch,), or estimates of their minima, and
    which of the two.
    """
    try:
        found = certify(drawn.problem, tolerance)
    except NotCertifiable:
        found = certify(drawn.problem, tolerance, estimate=True, x0=drawn.x0)
    lower = found.lower.to(next(leaves(drawn.x0)))
    return lower.expand(
        batch_size(drawn.x0)
    ), found.proven  # where all starts share a problem, they share its bound


class OnDevice(ProblemFamily):
    """The problems of a family, drawn where it draws them and then moved to a device."""

    def __init__(self, family: ProblemFamily, device: str | torch.device) -> None:
        self.family = family
        self.device = usable(device)

    def draw(self, seeds: Tensor) -> Draw:
        return self._moved(self.family.draw(seeds))

    def validation(self, count: int) -> Draw:
        return self._moved(self.family.validation(count))

    def _moved(self, draw: Draw) -> Draw:
        lower = None if draw.lower is None else draw.lower.to(self.device)
        x0 = tree_map(lambda leaf: leaf.to(self.device), draw.x0)
        return Draw(draw.problem.to(self.device), x0, lower)


class Pictures(ProblemFamily):
    """Problems made from crops of pictures (channels, height, width) of any size; validation uses
    other pictures.
    """

    def __init__(self, training: Sequence[Tensor], held_out: Sequence[Tensor], size: int) -> None:
        self.training = training
        self.held_out = held_out
        self.size = size

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
        fill: start from y with its holes filled, rather than black; ``"alternate"`` does so for
            even seeds.
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
            raise ValueError(f"missing must be a share in [0, 1), got {missing}")
        self.missing = missing
        self.noise = noise
        self.weight = weight
        self.fill = fill

    def make(self, pictures: Sequence[Tensor], seeds: Tensor) -> Draw:
        """Crop, remove and perturb, each problem by its own seed."""
        observed = []
        masks = []
        for generator in generators(seeds):
            crop = random_crops(pictures, self.size, 1, generator)
            mask = (torch.rand(1, 1, self.size, self.size, generator=generator) >= self.missing).to(
                crop
            )
            mask[..., 0, 0] = 1  # a problem with nothing observed has no meaning
            observed.append(mask * crop + self.noise * torch.randn(crop.shape, generator=generator))
            masks.append(mask)
        problem = TVInpainting(torch.cat(observed), torch.cat(masks), self.weight)
        if self.fill != "alternate":
            return Draw(problem, problem.start(fill=self.fill))
        return Draw(problem, where(seeds % 2 == 0, problem.start(fill=True), problem.start()))


class RestorationFamily(Pictures):
    """Crops of grey pictures, damaged in every way: ½(‖Z(x − y)‖² + λ‖Dx‖₁) with λ, noise, holes
    and start at random.

    log λ is spread over ``weights``, more densely towards the middle; the noise is uniform up to
    ``noise``, with a fifth of the problems free of it; a seventh of them has no holes, three have
    scattered ones, and one each blocks, scratches and writing. A third starts with black holes, the
    others with filled ones. A problem without holes has a mask of ones among those that have.

    Args:
        training, held_out, size: see :class:`Pictures`.
        weights: the range of λ, for pictures in [0, 1].
        noise: the largest standard deviation of the noise.
        variants: keywords of :class:`~mirrordescent.problems.TVInpainting`, such as
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
        """Crop and damage, each problem by its own seed."""
        observed = []
        masks = []
        weights = []
        filled = []
        for generator in generators(seeds):
            number = torch.rand(5, generator=generator).tolist()
            crop = random_crops(pictures, self.size, 1, generator)
            crop = crop[:, int(number[0] * crop.shape[1])].unsqueeze(1)  # a channel
            kind = self.KINDS[int(number[1] * len(self.KINDS))]
            mask = (
                torch.ones_like(crop)
                if kind == "none"
                else SHAPES[kind](self.size, generator).to(crop)[None, None]
            )
            mask[..., 0, 0] = 1  # a problem with nothing observed has no meaning
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
    """Blurred crops of grey pictures: ½(‖Ax − y‖² + λ‖Dx‖₁) with a blur, a noise and a λ of each
    one's own.

    Half of the blurs are Gaussian, of a width from 0.6 to 2.5, half are motions over 3 to 13 pixels
    in any direction.

    Args:
        training, held_out, size: see :class:`Pictures`.
        weights: the range of λ, for pictures in [0, 1].
        noise: the largest standard deviation of the noise.
    """

    SIDE = 17  # of all kernels, so that they fit into one tensor

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
        """Crop, blur and perturb, each problem by its own seed."""
        crops = []
        kernels = []
        noises = []
        weights = []
        for generator in generators(seeds):
            number = torch.rand(6, generator=generator).tolist()
            crop = random_crops(pictures, self.size, 1, generator)
            crops.append(crop[:, int(number[0] * crop.shape[1])].unsqueeze(1))
            gaussian = number[1] < 0.5
            kernel = (
                gaussian_kernel(0.6 + 1.9 * number[2])
                if gaussian
                else motion_kernel(3 + 10 * number[2], math.pi * number[3])
            )
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
    """Crops of images that are noisy already: ½(‖x − y‖² + λ‖Dx‖₁), started at y."""

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
        crops = torch.cat(
            [random_crops(pictures, self.size, 1, generator) for generator in generators(seeds)]
        )
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
        raise ValueError(
            f"the device {device} cannot be used here: {str(error).splitlines()[0]}"
        ) from error
    return chosen
