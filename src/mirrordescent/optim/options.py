"""The options that all optimisers share."""

from typing import Any, Literal, TypeAlias, TypedDict

import torch

from mirrordescent._internal.suggestions import unknown
from mirrordescent.schedules import ScheduleLike

Nonfinite: TypeAlias = Literal["raise", "skip"] | None


class Decoupled(float):
    """c of a decoupled weight decay: before every step, x ← (1 − t_k c)·x.

    The stored dual moves as far as ∇ψ(x) does, so that momentum is not affected. With Adam's method
    this is AdamW.

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
    """Options of all optimisers, explained in :class:`MirrorOptimizer`."""

    t: ScheduleLike | None
    weight_decay: float
    maximize: bool
    foreach: bool | None
    fused: bool | None
    max_grad_norm: float | None
    nonfinite: Nonfinite
    dual_dtype: torch.dtype | None


GROUP_DEFAULTS: dict[str, Any] = {"weight_decay": 0.0, "maximize": False, "foreach": None}
"""Options that a group may override, besides lr, mirror and t, with their defaults."""

DEFAULTS: dict[str, Any] = {
    "t": None,
    **GROUP_DEFAULTS,
    "fused": None,
    "max_grad_norm": None,
    "nonfinite": "raise",
    "dual_dtype": None,
}

_NO_MOMENTUM = "the momentum of AMD is cap / (r + cap): set cap and r; other methods have none"

REFUSED = {
    "capturable": (
        "steps cannot be captured in CUDA graphs; with nonfinite=None and track_changes = False "
        "they do not synchronise"
    ),
    "differentiable": (
        "steps of optimisers have no gradients; the methods in mirrordescent.methods are pure "
        "and have"
    ),
    "momentum": _NO_MOMENTUM,
    "betas": _NO_MOMENTUM,
    "amsgrad": "mirror descent has no such variant",
}


def checked_options(options: Options) -> dict[str, Any]:
    """Return all options with their defaults, or raise for unknown options and wrong values."""
    for name in options:
        if name in REFUSED:
            raise TypeError(f"{name} is not an option of mirror descent: {REFUSED[name]}")
        if name not in DEFAULTS:
            raise TypeError(unknown(name, list(DEFAULTS), "option of an optimiser"))
    chosen: dict[str, Any] = {**DEFAULTS, **options}
    max_grad_norm = chosen["max_grad_norm"]
    nonfinite = chosen["nonfinite"]
    dual_dtype = chosen["dual_dtype"]
    if max_grad_norm is not None and not max_grad_norm > 0:
        raise ValueError(f"max_grad_norm must be positive, or None; got {max_grad_norm}")
    if nonfinite not in ("raise", "skip", None):
        raise ValueError(f"nonfinite must be 'raise', 'skip' or None, got {nonfinite!r}")
    if dual_dtype is not None and not dual_dtype.is_floating_point:
        raise ValueError(f"dual_dtype must be a floating-point type, got {dual_dtype}")
    return chosen
