"""Steps in place on lists of tensors, for maps with ∇ψ(x) = d·x: the same mathematics as ``Method.update``.

Each function takes the count k + 1 of the step, the parameters x, which hold the query point, what is stored with
each, their gradients g, and the d of each, or None where all are 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from mirrordescent import methods
from mirrordescent.optim.slot import Slot

Tensors: TypeAlias = list[Tensor]
T = TypeVar("T")
Twin: TypeAlias = Callable[[Any, int, Tensors, Tensors, Tensors, Tensors | None], None]


def md(method: methods.MD, count: int, x: Tensors, nothing: Tensors, g: Tensors, d: Tensors | None) -> None:
    """x ← x − t g/d."""
    _add(x, g, d, -float(method.t(count)))


def amd(method: methods.AMD, count: int, x: Tensors, z: Tensors, g: Tensors, d: Tensors | None) -> None:
    """z ← z − w t g,  x ← λ z/d + (1 − λ)(x − γ t g), or with γ t g/d there."""
    t = method.t(count)
    torch._foreach_add_(z, g, alpha=-float(method.dual_weight(count) * t))
    _add(x, g, d if method.regulariser is method.mirror else None, -float(method.gamma(count) * t))
    _mix(x, z, d, float(method.mixing(count + 1)))


def asmd(method: methods.ASMD, count: int, x: Tensors, y: Tensors, g: Tensors, d: Tensors | None) -> None:
    """y ← y − w t g,  x ← λ y/d + (1 − λ) x."""
    torch._foreach_add_(y, g, alpha=-float(method.t(count) * method.dual_weight(count)))
    _mix(x, y, d, float(method.mixing(count + 1)))


TWINS: dict[type, Twin] = {methods.MD: md, methods.AMD: amd, methods.ASMD: asmd}


def step_in_place(k: int, slots: list[Slot], x: Tensors, stored: list[Tensors], g: Tensors) -> list[int]:
    """Take the steps that can be taken in place, with few kernels; return the numbers of the tensors that are left."""
    plain = [i for i, slot in enumerate(slots) if slot.in_place and slot.curvature is None]
    scaled = [i for i, slot in enumerate(slots) if slot.in_place and slot.curvature is not None]
    d = [curvature() for slot in slots if slot.in_place and (curvature := slot.curvature) is not None]
    for batch, divisors in ((plain, None), (scaled, d)):
        if batch:
            method = slots[batch[0]].method  # others differ in their maps alone, whose part d has taken
            beside = [tensor for i in batch for tensor in stored[i]]
            TWINS[type(method)](method, k + 1, pick(x, batch), beside, pick(g, batch), divisors)
    return [i for i, slot in enumerate(slots) if not slot.in_place]


def pick(items: list[T], numbers: list[int]) -> list[T]:
    """Return some of the items, in increasing order."""
    return items if len(numbers) == len(items) else [items[i] for i in numbers]


def _add(x: Tensors, y: Tensors, d: Tensors | None, weight: float) -> None:
    """x ← x + weight · y/d."""
    if d is None:
        torch._foreach_add_(x, y, alpha=weight)
    else:
        torch._foreach_addcdiv_(x, y, d, value=weight)


def _mix(x: Tensors, y: Tensors, d: Tensors | None, weight: float) -> None:
    """x ← weight · y/d + (1 − weight) x."""
    if d is None:
        torch._foreach_lerp_(x, y, weight)
    else:
        torch._foreach_mul_(x, 1 - weight)
        torch._foreach_addcdiv_(x, y, d, value=weight)
