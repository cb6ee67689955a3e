"""Restoration of images of one size: the path of the command line, of Python and of the app."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mirrordescent.problems import RidgePrior
from mirrordescent.problems.tv import TVDenoising, TVInpainting
from mirrordescent.restore.compression import Compression
from mirrordescent.restore.deciding import (
    TV,
    decide_prior,
    degraded_variation,
    prior_name,
    prior_objective,
    prior_plan,
)
from mirrordescent.restore.deep_holes import smooth_holes
from mirrordescent.restore.noise import Noise, estimate_noise
from mirrordescent.restore.objectives import restore_objective
from mirrordescent.restore.pipeline import Restored, restore
from mirrordescent.restore.planning import OPERATOR_TASKS, RestorationPlan
from mirrordescent.restore.request import Request
from mirrordescent.restore.tiling import Window
from mirrordescent.restore.weight import NEGLIGIBLE, POWER, WeightChoice, choose_weight
from mirrordescent.solving import Status


@dataclass(frozen=True, eq=False)
class RestoredImage:
    """A restored image.

    Args:
        x: Pixels in [0, 1], (channels, height, width).
        noise: Noise that was estimated or given; None if a weight was given.
        prior: Name of the prior that was used.
        weight: Weight λ of the total variation; None for a learned prior.
        kept: Whether known pixels stay as they are.
        choice: How the weight was chosen; None if it was not.
        batch: The solved batch to which the image belongs; None if it was left as it is.
        index: Index of the image in that batch.
    """

    x: Tensor
    noise: Noise | None = None
    prior: str = TV
    weight: float | None = None
    kept: bool = False
    choice: WeightChoice | None = None
    batch: Restored | None = None
    index: int = 0

    @property
    def left(self) -> bool:
        """Whether the image was left as it is, because it has no noise that can be told apart."""
        return self.batch is None

    @property
    def certain(self) -> bool:
        """Whether the noise is given or could be told from texture."""
        return self.noise is None or self.noise.certain

    @property
    def clean(self) -> bool:
        """Whether there is hardly any noise."""
        if self.choice is not None:
            return self.choice.clean
        return self.noise is not None and self.noise.level < NEGLIGIBLE

    @property
    def gap(self) -> float:
        """The proven relative gap to the minimum of the objective."""
        return 0.0 if self.batch is None else float(self.batch.gap[self.index])

    @property
    def status(self) -> Status:
        """The status of the solve."""
        return Status.CONVERGED if self.batch is None else self.batch.statuses[self.index]


@torch.no_grad()
def restore_images(
    y: Tensor,
    mask: Tensor | None,
    request: Request,
    plan: RestorationPlan,
    *,
    compression: Sequence[Compression | None] = (),
    announce: Callable[[str], object] | None = None,
    progress: bool | None = None,
) -> list[RestoredImage]:
    """Restore images of one size.

    Args:
        y: Images in [0, 1], (batch, channels, height, width).
        mask: True at known pixels, (batch, 1, height, width), for inpainting; else None.
        request: What is to be done.
        plan: The method for total variation, and when it stops.
        compression: Compression of each image if it comes from a JPEG file, else None.
        announce: Function that is called with messages about large images.
        progress: Whether to show a progress bar; by default on a terminal.
    """
    plan = replace(plan, method=plan.method.to(y.device))
    noises = _noises(y, mask, request, compression)
    solvers = _by_prior(y, request, noises)
    results: dict[int, RestoredImage] = {}
    for prior, indices in solvers:
        everything = len(indices) == len(y)
        job = _Job(
            y if everything else y[indices],
            mask if mask is None or everything else mask[indices],
            request,
            plan,
            None if noises is None else [noises[i] for i in indices],
            announce,
            progress,
        )
        results.update(zip(indices, _restore_with(job, prior), strict=True))
    return [results[i] for i in range(len(y))]


@dataclass(frozen=True, eq=False)
class _Job:
    """Images that are restored with one prior; the arguments of :func:`restore_images`."""

    y: Tensor
    mask: Tensor | None
    request: Request
    plan: RestorationPlan
    noises: list[Noise] | None
    announce: Callable[[str], object] | None
    progress: bool | None


def _by_prior(
    y: Tensor, request: Request, noises: list[Noise] | None
) -> list[tuple[RidgePrior | None, list[int]]]:
    """Return the priors, None for total variation, with the indices of their images."""
    if noises is None:
        return [(None, list(range(len(y))))]
    groups: dict[bool, tuple[RidgePrior | None, list[int]]] = {}
    for i, noise in enumerate(noises):
        prior = decide_prior(request, request.strength * noise.level, y.shape[1])
        groups.setdefault(prior is None, (prior, []))[1].append(i)
    return list(groups.values())


def _restore_with(job: _Job, prior: RidgePrior | None) -> list[RestoredImage]:
    if prior is not None:
        return _restore_with_prior(job, prior)
    if job.request.task in OPERATOR_TASKS:
        return _undo_operator(job)
    if job.noises is None:
        return _restore_with_weights(job, [None] * len(job.y))
    problem = _problem(job.y, job.mask, job.request, 1.0)
    choices = choose_weight(
        problem,
        noise=job.noises,
        checked=job.request.noise is None,
        fused=job.plan.fused,
    )
    return _restore_with_weights(job, choices)


def _restore_with_prior(job: _Job, prior: RidgePrior) -> list[RestoredImage]:
    """Restore images with a learned prior."""
    assert job.noises is not None
    request = job.request
    solved = [i for i, noise in enumerate(job.noises) if not _has_nothing(noise, request)]
    name = prior_name(request, job.y.shape[1])
    batch = None
    if solved:
        y = job.y if len(solved) == len(job.y) else job.y[solved]
        mask = job.mask if job.mask is None or len(solved) == len(job.y) else job.mask[solved]
        levels = [job.noises[i].level for i in solved]
        objective = prior_objective(y, mask, request, levels, prior)
        plan = prior_plan(request, job.plan)
        kept_ones = [_keeps_known_pixels(job.noises[i], request) for i in solved]

        def changes(sample: int, window: Window) -> bool:
            if mask is None or not kept_ones[sample]:
                return True
            return not bool(mask[(sample, slice(None), *window)].all())

        batch = restore_objective(
            objective, plan, progress=job.progress, announce=job.announce, changes=changes
        )
    images = []
    for i, noise in enumerate(job.noises):
        kept = job.mask is not None and _keeps_known_pixels(noise, request)
        if batch is None or i not in solved:
            images.append(RestoredImage(job.y[i], noise, name, None, kept))
            continue
        index = solved.index(i)
        x = batch.x[index].to(job.y.dtype).clamp(0, 1)
        if kept and job.mask is not None:
            x = torch.where(job.mask[i].bool().expand_as(x), job.y[i], x)
        images.append(RestoredImage(x, noise, name, None, kept, None, batch, index))
    return images


def _has_nothing(noise: Noise, request: Request) -> bool:
    """Return whether an image is left as it is, since it has no noise that can be told apart."""
    if request.task != "denoise":
        return False
    if request.noise is not None:
        return request.noise == 0
    return noise.level < NEGLIGIBLE or not noise.certain


def _keeps_known_pixels(noise: Noise, request: Request) -> bool:
    if request.keep_known is not None:
        return request.keep_known
    return noise.level < NEGLIGIBLE or not noise.certain


def _noises(
    y: Tensor, mask: Tensor | None, request: Request, compression: Sequence[Compression | None]
) -> list[Noise] | None:
    """Return the noise of every image, or None if a weight is given."""
    if request.weight is not None:
        return None
    if request.noise is None:
        return estimate_noise(y, mask, compression=compression)
    shared = [each is not None and each.halved for each in compression] or [False] * len(y)
    return [Noise(request.noise, each) for each in shared]


def _restore_with_weights(job: _Job, choices: Sequence[WeightChoice | None]) -> list[RestoredImage]:
    """Restore images by total variation, and leave those as they are that have no noise."""
    y = job.y
    mask = job.mask
    request = job.request
    weights = [_weight(choice, request) for choice in choices]
    solved = [i for i, choice in enumerate(choices) if not _is_left(choice, request)]
    batch = None
    if solved:
        chosen = y if len(solved) == len(y) else y[solved]
        masks = mask if mask is None or len(solved) == len(y) else mask[solved]
        weight = torch.tensor([weights[i] for i in solved], dtype=y.dtype, device=y.device)
        problem = _problem(chosen, masks, request, weight)
        batch = restore(problem, job.plan, progress=job.progress, announce=job.announce)
        del problem
    images = []
    for i, choice in enumerate(choices):
        noise = None if choice is None else Noise(choice.noise, certain=choice.certain)
        kept = mask is not None and _keeps_known(choice, request)
        if batch is None or i not in solved:
            images.append(RestoredImage(y[i], noise, TV, 0.0, kept, choice))
            continue
        index = solved.index(i)
        x = batch.x[index].to(y.dtype)
        x = _keep_known(x, y[i], mask[i]) if kept and mask is not None else x.clamp_(0, 1)
        images.append(RestoredImage(x, noise, TV, weights[i], kept, choice, batch, index))
    return images


def _weight(choice: WeightChoice | None, request: Request) -> float:
    if choice is None:
        assert request.weight is not None
        return request.weight
    return choice.weight * request.strength**POWER


def _is_left(choice: WeightChoice | None, request: Request) -> bool:
    """Return whether an image is left as it is."""
    if request.task != "denoise" or choice is None:
        return False
    if request.noise is not None:
        return request.noise == 0
    return choice.clean or not choice.certain


def _keeps_known(choice: WeightChoice | None, request: Request) -> bool:
    if request.keep_known is not None:
        return request.keep_known
    if choice is None:
        return False
    return choice.clean or not choice.certain


def _problem(
    y: Tensor, mask: Tensor | None, request: Request, weight: float | Tensor
) -> TVInpainting:
    if mask is None:
        return TVDenoising(y, weight, **request.variant)
    return TVInpainting(y, mask, weight, **request.variant)


def _keep_known(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Put known pixels back into a restored image, and let holes meet them smoothly."""
    known = mask.bool().expand_as(x)
    joined = torch.where(known, y, x)
    smooth = smooth_holes(joined.unsqueeze(0), known.unsqueeze(0))[0]
    return torch.where(known, joined, smooth.clamp(0, 1))


def _undo_operator(job: _Job) -> list[RestoredImage]:
    """Restore images that were blurred or reduced in size by total variation, one by one."""
    images = []
    for i in range(len(job.y)):
        noise = None if job.noises is None else job.noises[i]
        level = 0.0 if noise is None else noise.level
        objective = degraded_variation(job.y[i : i + 1], job.request, level)
        batch = restore_objective(objective, job.plan, progress=job.progress, announce=job.announce)
        x = batch.x[0].to(job.y.dtype).clamp(0, 1)
        assert isinstance(objective.weight, float)
        images.append(RestoredImage(x, noise, TV, objective.weight, batch=batch))
    return images
