"""The decision which objective and which method restore a photograph."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from mirrordescent.restore.degradation import Degradation
from mirrordescent.restore.objectives import DegradedVariation
from mirrordescent.restore.request import PriorLike, Request
from mirrordescent.restore.weight import POWER, RULE

TV = "tv"
AUTO = "auto"
# Weights of blurred and of small photographs, relative to those of noisy ones. They were chosen on
# the training photographs of BSDS500.
DEBLURRING = 0.27
UPSAMPLING = 0.1
LEAST_NOISE = 0.004  # assumed where an operator is undone, which amplifies the smallest errors


def require_prior(prior: PriorLike) -> None:
    """Raise an error that names the choices if a prior cannot be used."""
    if prior in (AUTO, TV):
        return
    raise ValueError(f"prior must be auto or tv, got {_name(prior)}")


def prior_source(prior: PriorLike) -> str:
    """Return a text that identifies a prior, for records of finished work."""
    return _name(prior)


def decide_prior(request: Request, level: float) -> str:
    """Return the prior for a photograph: total variation, or a learned one if it is better.

    Args:
        request: What is to be done.
        level: Standard deviation of the noise.
    """
    require_prior(request.prior)
    return TV


def degraded_variation(y: Tensor, request: Request, level: float) -> DegradedVariation:
    """Return the objective by which a blur or a reduction of size is undone.

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


def _name(prior: PriorLike) -> str:
    return str(prior) if isinstance(prior, (str, Path)) else type(prior).__name__
