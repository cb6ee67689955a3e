"""The options that all optimisers share."""

from collections.abc import Mapping
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

REFUSED: Mapping[str, str] = {
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
"""Options of other optimisers, with what to do instead."""

REFUSED_BY_PRECONDITIONED: Mapping[str, str] = {
    **REFUSED,
    "betas": (
        "omit it with a learned geometry, which has its own; otherwise set momentum (β₁) and "
        "second_momentum (β₂)"
    ),
    "eps": "omit it: directions are divided by their own size, and need no such number",
    "amsgrad": "omit it: second moments are those of normalised directions",
    "nesterov": "set lookahead instead, which is the default",
    "ns_steps": "omit it: directions are computed by inverses, whose number is part of the map",
    "ns_coefficients": "omit it: directions are computed by inverses",
    "adjust_lr_fn": "omit it: step sizes depend on the kind and the width of each layer",
}
"""Options of AdamW and Muon, with what to do instead."""


def checked_options(options: Options, refused: Mapping[str, str] = REFUSED) -> dict[str, Any]:
    """Return all options with their defaults, or raise for unknown options and wrong values.

    Args:
        options: Options of the user.
        refused: Options of other optimisers, with what to do instead.
    """
    for name in options:
        if name in refused:
            raise TypeError(f"{name} is not an option of mirror descent: {refused[name]}")
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
