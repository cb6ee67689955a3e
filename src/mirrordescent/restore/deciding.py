"""The decision which objective and which method restore a photograph."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mirrordescent import kernels, zoo
from mirrordescent._internal.suggestions import require_known
from mirrordescent.methods.tangent_bound import TangentBound
from mirrordescent.problems import RidgePrior
from mirrordescent.problems.prior_problems import FILLING_LEVEL
from mirrordescent.restore.degradation import Degradation
from mirrordescent.restore.objectives import DegradedVariation
from mirrordescent.restore.planning import RestorationPlan, Task
from mirrordescent.restore.prior_objective import PriorObjective
from mirrordescent.restore.request import PriorLike, Request
from mirrordescent.restore.weight import POWER, RULE

TV = "tv"
AUTO = "auto"
PHOTO = "photo"
ENTRIES = {3: "photo-prior", 1: "photo-prior-grey"}
"""Entries of the learned priors of photographs by their number of channels."""


class PriorRange(NamedTuple):
    """Photographs for which the learned prior is the default: channels and largest noise level."""

    channels: tuple[int, ...]
    largest_level: float


# Chosen on the validation photographs of BSDS500, where the learned prior is ahead in this range.
PRIOR_RANGES: dict[Task, PriorRange] = {
    "denoise": PriorRange((1, 3), 0.2),
    "inpaint": PriorRange((3,), 0.2),
    "deblur": PriorRange((3,), 0.03),
    "upsample": PriorRange((), 0.0),
}
# Entries of the learned steps.
METHODS: dict[Task, str] = {
    "denoise": "photo-prior-denoise",
    "inpaint": "photo-prior-inpaint",
    "deblur": "photo-prior-deblur",
    "upsample": "photo-prior-deblur",
}
# Weights of blurred and of small photographs, relative to those of noisy ones.
DEBLURRING = 0.27
UPSAMPLING = 0.1
LEAST_NOISE = 0.004  # assumed where an operator is undone, which amplifies the smallest errors
# Smallest noise levels of a prior.
LEAST_LEVELS: dict[Task, float] = {
    "denoise": 0.0,
    "inpaint": FILLING_LEVEL,
    "deblur": LEAST_NOISE,
    "upsample": LEAST_NOISE,
}
# Iterations of the method of a prior, and the steps before its first bound.
PRIOR_ITERATIONS: dict[Task, int] = {
    "denoise": 100,
    "inpaint": 300,
    "deblur": 300,
    "upsample": 300,
}
FIRST_BOUND = 4


def require_prior(prior: PriorLike) -> None:
    """Raise an error that names the choices if a prior cannot be used."""
    if isinstance(prior, str) and not _is_file(prior):
        require_known(prior, (AUTO, TV, PHOTO, *zoo.list()), "prior")
    if prior == PHOTO:
        load_prior(PHOTO, 3)
    elif prior not in (AUTO, TV):
        load_prior(prior, 0)


def prior_source(prior: PriorLike) -> str:
    """Return a text that identifies a prior, for records of finished work."""
    if prior in (AUTO, PHOTO):
        known = [zoo.fingerprint(name) for name in ENTRIES.values() if name in zoo.list()]
        return f"{prior}, {', '.join(known)}"
    if isinstance(prior, (str, Path)) and prior != TV:
        return zoo.fingerprint(prior)
    return _name(prior)


def load_prior(prior: PriorLike, channels: int) -> RidgePrior | None:
    """Return a learned prior, or None for total variation.

    Args:
        prior: Prior of a request.
        channels: Number of channels of the photographs.
    """
    if prior == TV:
        return None
    if prior in (AUTO, PHOTO):
        entry = ENTRIES.get(channels)
        if entry is None or entry not in zoo.list():
            if prior == AUTO:
                return None
            raise ValueError(f"there is no learned prior for photographs of {channels} channels")
        loaded = _load(entry)
    elif isinstance(prior, (str, Path)):
        loaded = _load(prior)
    else:
        loaded = prior
    if not isinstance(loaded, RidgePrior):
        raise ValueError(f"{_name(prior)} is a {type(loaded).__name__}, not a prior of photographs")
    return loaded


def decide_prior(request: Request, level: float, channels: int) -> RidgePrior | None:
    """Return the learned prior for a photograph, or None if total variation is used.

    Args:
        request: What is to be done.
        level: Standard deviation of the noise.
        channels: Number of channels of the photograph.
    """
    if request.prior == AUTO:
        ahead = PRIOR_RANGES[request.task]
        is_ahead = channels in ahead.channels and level <= ahead.largest_level
        return load_prior(AUTO, channels) if is_ahead else None
    return load_prior(request.prior, channels)


def prior_name(request: Request, channels: int) -> str:
    """Return the name of the learned prior that a request uses."""
    if request.prior in (AUTO, PHOTO):
        return ENTRIES[channels]
    return Path(_name(request.prior)).stem


def prior_objective(
    y: Tensor, mask: Tensor | None, request: Request, levels: list[float], prior: RidgePrior
) -> PriorObjective:
    """Return the objective with a learned prior.

    Args:
        y: Photographs, (batch, channels, height, width).
        mask: 1 at known pixels, or None.
        request: What is to be done.
        levels: Standard deviations of the noise.
        prior: The prior.
    """
    least = LEAST_LEVELS[request.task]
    sigma = [request.strength * max(level, least) for level in levels]
    noise = torch.tensor(sigma, dtype=y.dtype, device=y.device)
    # A copy, because a loaded prior is shared.
    return PriorObjective(y, mask, request.degradation, noise, copy.deepcopy(prior).to(y))


def prior_plan(request: Request, plan: RestorationPlan) -> RestorationPlan:
    """Return the method for a learned prior, with the tolerance of a plan.

    Args:
        request: What is to be done.
        plan: Plan for total variation.
    """
    entry = METHODS[request.task]
    learned = _load(entry)
    assert isinstance(learned, TangentBound)
    method = TangentBound(learned.method, FIRST_BOUND, within=plan.tolerance)
    iterations = plan.requested_iterations or PRIOR_ITERATIONS[request.task]
    if plan.fused:
        kernels.library()  # raises an error if there are no compiled kernels
    return replace(
        plan,
        label=entry,
        method=method,
        iterations=iterations,
        then="",
        check_every=1,
        fused=None if plan.fused else plan.fused,
    )


def degraded_variation(y: Tensor, request: Request, level: float) -> DegradedVariation:
    """Return the objective by which total variation undoes a blur or a reduction of size.

    Args:
        y: Photograph, (1, channels, height, width).
        request: What is to be done.
        level: Standard deviation of the noise.
    """
    weight = request.weight
    if weight is None:
        weight = _operator_weight(request.degradation, request.strength * max(level, LEAST_NOISE))
    return DegradedVariation(y, request.degradation, weight, request.variant)


def _operator_weight(degradation: Degradation, level: float) -> float:
    factor = UPSAMPLING if degradation.kernel is None else DEBLURRING
    return factor * RULE * level**POWER


def _load(entry: str | Path) -> nn.Module:
    """Load an entry; one that was loaded before and has not changed is not read again."""
    path = zoo.path_of(entry)
    stat = path.stat()
    return _load_file(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _load_file(path: Path, changed: int, size: int) -> nn.Module:
    return zoo.load(path)


def _is_file(prior: str) -> bool:
    return prior.endswith(".safetensors") or Path(prior).exists()


def _name(prior: PriorLike) -> str:
    return str(prior) if isinstance(prior, (str, Path)) else type(prior).__name__
