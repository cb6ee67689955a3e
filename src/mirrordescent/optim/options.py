"""The settings that all optimisers share."""

from typing import Any, Literal, TypeAlias, TypedDict

import torch

from mirrordescent._internal.suggestions import unknown
from mirrordescent.schedules import ScheduleLike

Nonfinite: TypeAlias = Literal["raise", "skip"] | None


class Decoupled(float):
    """c of a decay that does not go through the gradient: before every step, x ← (1 − t_k c)·x.

    What a method stores beside x moves along, as far as ∇ψ(x) does, so that momentum stays as it
    is. With Adam's method this is AdamW.

    >>> import torch
    >>> from mirrordescent import optim
    >>> x = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = optim.SMD([x], lr=0.5, weight_decay=optim.Decoupled(0.1))
    >>> x.grad = torch.zeros(1)
    >>> optimizer.step()
    >>> x.detach()
    tensor([0.9500])
    """


class Options(TypedDict, total=False):
    """Settings of all optimisers, which :class:`MirrorOptimizer` explains."""

    t: ScheduleLike | None
    weight_decay: float
    maximize: bool
    foreach: bool | None
    fused: bool | None
    max_grad_norm: float | None
    nonfinite: Nonfinite
    dual_dtype: torch.dtype | None


OF_GROUPS: dict[str, Any] = {"weight_decay": 0.0, "maximize": False, "foreach": None}
"""What a group may have of its own, besides lr, mirror and t; states that were written before one
of them was known.
"""

DEFAULTS: dict[str, Any] = {
    "t": None,
    **OF_GROUPS,
    "fused": None,
    "max_grad_norm": None,
    "nonfinite": "raise",
    "dual_dtype": None,
}

REFUSED = {
    "capturable": "there are no CUDA graphs of steps: with nonfinite=None and watches = False they do not wait",
    "differentiable": "steps of optimisers have no gradients: those of mirrordescent.methods are pure, and do",
    "momentum": "the momentum of AMD is cap / (r + cap): choose those; other methods have none",
    "betas": "the momentum of AMD is cap / (r + cap): choose those; other methods have none",
    "amsgrad": "there is no such form of mirror descent",
}


def checked(options: Options) -> dict[str, Any]:
    """Return all options, or say which are not known, and what to use instead."""
    for name in options:
        if name in REFUSED:
            raise TypeError(f"{name} is not an option of mirror descent: {REFUSED[name]}")
        if name not in DEFAULTS:
            raise TypeError(unknown(name, list(DEFAULTS), "option of an optimiser"))
    chosen: dict[str, Any] = {**DEFAULTS, **options}
    most, nonfinite, dtype = (chosen[name] for name in ("max_grad_norm", "nonfinite", "dual_dtype"))
    if most is not None and not most > 0:
        raise ValueError(f"max_grad_norm must be positive, or None; got {most}")
    if nonfinite not in ("raise", "skip", None):
        raise ValueError(f"nonfinite must be 'raise', 'skip' or None, got {nonfinite!r}")
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"dual_dtype must be a floating-point type, got {dtype}")
    return chosen
