"""Steps on lists of tensors in place by torch's foreach functions, for maps with ∇ψ(x) = d·x."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch

from mirrordescent.domains import WholeSpace
from mirrordescent.execution.tensors import Tensors
from mirrordescent.methods.accelerated import AMD, ASMD
from mirrordescent.methods.base import GradientMethod
from mirrordescent.methods.baselines import GD, ProjectedGradient
from mirrordescent.methods.descent import MD
from mirrordescent.mirrors.quadratic import Euclidean

StepSizes: TypeAlias = tuple[float, ...]


class DiagonalSteps(NamedTuple):
    """Fast forms of one class of methods for maps with ∇ψ(x) = d·x.

    The arguments of ``foreach`` are the method, its step sizes, the points x, the stored field of
    each point (empty if the method stores none), the gradients g, and d; d = None stands for 1.
    """

    step_sizes: Callable[[Any, int], StepSizes]
    """Numbers of step k + 1 for a method and the count k + 1."""

    foreach: Callable[[Any, StepSizes, Tensors, Tensors, Tensors, Tensors | None], None]
    """The step of ``update`` on lists of tensors, in place."""

    kernel: str | None = None
    """Prefix of the names of the C kernels that take the same step, if there are any."""


def md_step_sizes(method: MD, count: int) -> StepSizes:
    """Return t_k."""
    return (float(method.t(count)),)


def md_step(
    method: MD, sizes: StepSizes, x: Tensors, stored: Tensors, g: Tensors, d: Tensors | None
) -> None:
    """x ← x − t g/d."""
    add_scaled(x, g, d, -sizes[0])


def amd_step_sizes(method: AMD, count: int) -> StepSizes:
    """Return (k/r) t_k, γ_k t_k, and the λ of the next point."""
    t = method.t(count)
    dual_step = method.dual_weight(count) * t
    correction_step = method.gamma(count) * t
    return float(dual_step), float(correction_step), float(method.mixing(count + 1))


def amd_step(
    method: AMD, sizes: StepSizes, x: Tensors, stored: Tensors, g: Tensors, d: Tensors | None
) -> None:
    """z ← z − far g,  x ← λ z/d + (1 − λ)(x − near g), or with near g/d if R is the map's."""
    far, near, mixing = sizes
    torch._foreach_add_(stored, g, alpha=-far)
    correction = d if corrects_in_map(method) else None
    add_scaled(x, g, correction, -near)
    mix_scaled(x, stored, d, mixing)


def asmd_step_sizes(method: ASMD, count: int) -> StepSizes:
    """Return the dual step and the w of the next point."""
    return float(method.t(count) * method.dual_weight(count)), float(method.mixing(count + 1))


def asmd_step(
    method: ASMD, sizes: StepSizes, x: Tensors, stored: Tensors, g: Tensors, d: Tensors | None
) -> None:
    """y ← y − length g,  x ← w y/d + (1 − w) x."""
    length, mixing = sizes
    torch._foreach_add_(stored, g, alpha=-length)
    mix_scaled(x, stored, d, mixing)


DIAGONAL_STEPS: dict[type[GradientMethod[Any]], DiagonalSteps] = {
    MD: DiagonalSteps(md_step_sizes, md_step, kernel="md"),
    GD: DiagonalSteps(md_step_sizes, md_step, kernel="md"),
    ProjectedGradient: DiagonalSteps(md_step_sizes, md_step, kernel="md"),
    AMD: DiagonalSteps(amd_step_sizes, amd_step, kernel="amd"),
    ASMD: DiagonalSteps(asmd_step_sizes, asmd_step),
}
"""Fast forms by the exact class of the method. A subclass does not inherit them."""


def diagonal_steps(method: GradientMethod[Any]) -> DiagonalSteps | None:
    """Return the fast form of a method for maps with ∇ψ(x) = d·x, or None.

    AMD has one if z is stored in the dual and the correction step is taken in the geometry of the
    map or in the Euclidean one.
    """
    if type(method) is AMD and not _amd_is_supported(method):
        return None
    return DIAGONAL_STEPS.get(type(method))


def _amd_is_supported(method: AMD) -> bool:
    regulariser = method.regulariser
    euclidean = type(regulariser) is Euclidean and isinstance(regulariser.primal_domain, WholeSpace)
    return method.storage == "dual" and (euclidean or regulariser is method.mirror)


def corrects_in_map(method: GradientMethod[Any]) -> bool:
    """Return whether the correction step of an accelerated method uses the map's geometry."""
    return method.mirror is not None and getattr(method, "regulariser", None) is method.mirror


def add_scaled(x: Tensors, y: Tensors, d: Tensors | None, weight: float) -> None:
    """x ← x + weight · y/d, in place."""
    if d is None:
        torch._foreach_add_(x, y, alpha=weight)
    else:
        torch._foreach_addcdiv_(x, y, d, value=weight)


def mix_scaled(x: Tensors, y: Tensors, d: Tensors | None, weight: float) -> None:
    """x ← weight · y/d + (1 − weight) x, in place."""
    if d is None:
        torch._foreach_lerp_(x, y, weight)
    else:
        torch._foreach_mul_(x, 1 - weight)
        torch._foreach_addcdiv_(x, y, d, value=weight)
