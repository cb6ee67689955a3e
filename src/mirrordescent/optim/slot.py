"""A method on one parameter: what of its state is stored beside the parameter, and the step of the pure method."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from mirrordescent import methods
from mirrordescent.domains import DomainError, WholeSpace
from mirrordescent.methods.accelerated import AMDState, ASMDState
from mirrordescent.methods.base import Method
from mirrordescent.methods.descent import MDState, SMDState
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.optim.curvature import curvature_of, is_identity
from mirrordescent.schedules import Schedule


class Rate(Schedule):
    """t(k) = lr·s(k), where lr is set before every step."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self.schedule, self.lr = schedule, 1.0

    def forward(self, k: int) -> float:
        """Return lr·s(k)."""
        return self.lr * float(self.schedule(k))


# How the state of a method is made of k, x and what is stored beside x.
_STATES: dict[type, Callable[..., Any]] = {
    methods.MD: MDState,
    methods.SMD: lambda k, x, y: SMDState(k, y, x),
    methods.AMD: lambda k, x, z: AMDState(k, z, x, x),  # x̃ is an answer, and does not go on
    methods.ASMD: lambda k, x, y: ASMDState(k, y, x),
}
_DUAL = {methods.MD: (), methods.SMD: ("y",), methods.AMD: ("z",), methods.ASMD: ("y",)}


class Slot:
    """The method of a parameter, which others with the same map may share.

    Args:
        mirror: the map.
        method: with this map.
        like: the parameter.
        dtype: to store in, if not in that of the parameter.
    """

    def __init__(self, mirror: MirrorMap, method: Method[Any], like: Tensor, dtype: torch.dtype | None) -> None:
        self.mirror, self.method, self.curvature = mirror, method, curvature_of(mirror)
        usable = is_identity(mirror) or (self.curvature is not None and self.curvature.fits(like))
        self.converts = dtype is not None
        self.in_place = usable and not self.converts
        self.fused: Any = None  # what a kernel needs to know of the map, where one is used
        self._stored_in = dtype or like.dtype
        rounds = self._stored_in != like.dtype and type(method) is not methods.SMD  # whose x is made of y alone
        self.fields: tuple[str, ...] = (*_DUAL[type(method)], *(("x",) if rounds else ()))
        self._computed_in = _widest(self._stored_in, mirror)
        self._may_leave = not isinstance(mirror.dual_domain, WholeSpace)

    def start(self, x: Tensor) -> dict[str, Tensor]:
        """Return what is stored at the start of a run from x."""
        sample = self._sample(x)
        start = self.method.init(sample)._replace(x=sample)
        return {field: getattr(start, field)[0].to(self._stored_in, copy=True) for field in self.fields}

    def step(self, k: int, x: Tensor, stored: list[Tensor], g: Tensor) -> None:
        """Replace x and what is stored by what the method makes of them."""
        fields = {"x": x, **dict(zip(self.fields, stored, strict=True))}
        before = _STATES[type(self.method)](k, **{name: self._sample(field) for name, field in fields.items()})
        after = self.method.update(before, self._sample(g))
        if self._may_leave and not bool(self.method.inside(after)):
            raise DomainError(f"a step left the domain of {self.mirror}: use a smaller lr")
        for tensor, field in zip((x, *stored), ("x", *self.fields), strict=True):
            tensor.copy_(getattr(after, field)[0])

    def restored(self, saved: dict[str, Tensor], parameter: Tensor) -> dict[str, Tensor]:
        """Return a copy of what was saved, in the type and on the device it is computed in."""
        if set(saved) != set(self.fields):
            raise ValueError(
                f"the state has {', '.join(saved) or 'nothing'} beside the parameters, and this optimiser "
                f"{', '.join(self.fields) or 'nothing'}: was it made with another map or dual_dtype?"
            )
        if any(tensor.shape != parameter.shape for tensor in saved.values()):
            raise ValueError("the state is of parameters of other shapes")
        return {name: tensor.to(parameter.device, self._stored_in, copy=True) for name, tensor in saved.items()}

    def _sample(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._computed_in)[None]


def _widest(dtype: torch.dtype, mirror: MirrorMap) -> torch.dtype:
    """Return a type that loses nothing of either, since a method mixes parameters with what a map makes of them."""
    tensors = (*mirror.parameters(), *mirror.buffers())
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors if tensor.is_floating_point()), dtype)
