"""A method on one parameter: what of its state is stored beside the parameter, and the step of the
pure method.
"""

import copy
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from mirrordescent.domains import DomainError, WholeSpace
from mirrordescent.methods.base import GradientMethod
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.optim.forms import diagonal
from mirrordescent.optim.sharding import local, spread_like
from mirrordescent.parts import written_together
from mirrordescent.schedules import Schedule

_OF_MODULES = vars(nn.Module()).keys()


class Rate(Schedule):
    """t(k) = lr·s(k), where lr is set before every step."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self.schedule = schedule
        self.lr = 1.0

    def __call__(
        self, k: int
    ) -> float:  # without the hooks of modules, which would take longer than the product
        return self.lr * float(self.schedule(k))


class Slot:
    """The method of a parameter, which others of its kind with the same map may share.

    Args:
        method: the method that makes the steps.
        mirror: the map, for methods that have none.
        like: the parameter, or its local part.
        dtype: the type to store in, if it is not that of the parameter.
    """

    def __init__(
        self,
        method: GradientMethod[Any],
        mirror: MirrorMap,
        like: Tensor,
        dtype: torch.dtype | None,
    ) -> None:
        self.method = method
        self.mirror = mirror if method.mirror is None else method.mirror
        self.converts = dtype is not None
        d = diagonal(self.mirror, like) if method.steps_in_place and not self.converts else None
        self.in_place = d is not None
        self.plain = isinstance(d, float) and d == 1
        self.together = (
            method.steps_together
            and not self.converts
            and like.dtype in (torch.float32, torch.float64)
        )
        self.form: Any = None  # what a kernel has to know of the map, where one is used
        self.kind = (like.dtype, like.device, _settings(method))
        self.fields: tuple[str, ...] | None = None  # what is stored, known from the first start on
        self._stored_in = dtype or like.dtype
        self._computed_in = _widest(self._stored_in, self.mirror)
        self._may_leave = not isinstance(self.mirror.dual_domain, WholeSpace)
        self._rounds = self._stored_in != like.dtype and (
            method.needs_x or not self._declares("needs_x")
        )

    def start(self, parameter: Tensor) -> dict[str, Any]:
        """Return what is stored at the start of a run: the one sample of every tensor, and anything
        else as it is.
        """
        x = self._sample(parameter.detach())
        state = self.method.init(x)._replace(x=x)
        carried = self.method.carried if self._declares("carried") else None
        if carried is None:
            carried = tuple(field for field in state._fields if field not in ("k", "x"))
        self._state = type(state)
        self.fields = (*carried, *(("x",) if self._rounds else ()))
        start = {field: getattr(state, field) for field in self.fields}
        self._shapes = {
            field: v.shape[1:] for field, v in start.items() if isinstance(v, Tensor) and v.ndim
        }
        for field, shape in self._shapes.items():
            part = self._kept(start[field][0])
            start[field] = spread_like(parameter, part) if shape == x.shape[1:] else part
        return start

    def follow(self, x: Tensor, left: Tensor | None, stored: dict[str, Any], name: str) -> None:
        """Start anew at x, where somebody has put the parameter, or its local part.

        What is tied to the place, such as a dual, is what a fresh start would store, and anything
        else stays, such as means of gradients. If it is known where the last step had left the
        parameter, entries whose fresh start would be the same here and there stay as well: with a
        map that acts entry by entry, those that were not moved.
        """
        mirror = self.mirror
        closed = self.mirror.defined_on_boundary
        if self.method.maps_points:
            mirror.primal_domain.require(
                x[None], f"parameter {name}, which was moved,", str(mirror), closed=closed
            )
        there = None if left is None else self._tied(left)
        for field, here in self._tied(x).items():
            kept = local(stored[field])
            kept.copy_(here if there is None else torch.where(here != there[field], here, kept))

    def shift(self, x: Tensor, left: Tensor, stored: dict[str, Any]) -> None:
        """Move what is stored as far as a fresh start moves with the parameter, which a decay has
        just moved.
        """
        there = self._tied(left)
        for field, here in self._tied(x).items():
            local(stored[field]).add_(here - there[field])

    def tied_to(self, stored: dict[str, Any]) -> bool:
        """Tell whether anything of what is stored may depend on where the parameter is: a dual
        does, a momentum not.
        """
        return bool(stored) and (self.method.maps_points or "x" in stored)

    @torch.enable_grad()
    def _tied(self, x: Tensor) -> dict[str, Tensor]:
        """Return those fields of a start at x that depend on x."""
        sample = self._sample(x.detach()).requires_grad_()
        state = self.method.init(sample)._replace(x=sample)
        fields = {field: getattr(state, field) for field in self._shapes}
        return {
            field: self._kept(value.detach()[0])
            for field, value in fields.items()
            if value.requires_grad
        }

    def step(self, k: int, x: Tensor, stored: dict[str, Any], g: Tensor) -> None:
        """Replace x and what is stored by what the method makes of them."""
        tensors = [
            ("x", x),
            *((field, local(stored[field])) for field in self._shapes),
        ]  # x may be stored as well
        before = {field: self._sample(tensor) for field, tensor in tensors}
        others = {field: stored[field] for field in self.fields or () if field not in before}
        state = self._state(
            **{**dict.fromkeys(self._state._fields, before["x"]), **before, **others, "k": k}
        )
        after = self.method.update(state, self._sample(g))
        if (
            self._may_leave
            and (inside := self.method.inside(after)) is not None
            and not bool(inside.all())
        ):
            raise DomainError(f"a step left the domain of {self.mirror}: use a smaller lr")
        stored.update({field: getattr(after, field) for field in others})
        old = {tensor.data_ptr() for _, tensor in tensors}
        new = [getattr(after, field)[0] for field, _ in tensors]
        kept = [
            value.clone() if value.data_ptr() in old else value for value in new
        ]  # a new x may be an old z
        for (_, tensor), value in zip(tensors, kept, strict=True):
            tensor.copy_(value)

    def restored(self, saved: dict[str, Any], parameter: Tensor) -> dict[str, Any]:
        """Return a copy of what was saved, in the type and on the device it is computed in."""
        if self.fields is None:
            self.start(parameter)
        if set(saved) != set(self.fields or ()):
            raise ValueError(
                f"the state has {', '.join(saved) or 'nothing'} beside the parameters, and this optimiser "
                f"{', '.join(self.fields or ()) or 'nothing'}: was it made with another map or dual_dtype?"
            )
        tensors_saved = all(isinstance(saved[field], Tensor) for field in self._shapes)
        if not tensors_saved or any(
            local(saved[field]).shape != shape for field, shape in self._shapes.items()
        ):
            raise ValueError("the state is of parameters of other shapes")
        tensors = {field: self._kept(saved[field].to(parameter.device)) for field in self._shapes}
        return {
            field: tensors[field] if field in tensors else copy.deepcopy(saved[field])
            for field in self.fields or ()
        }

    def _declares(self, name: str) -> bool:
        return written_together(type(self.method), name, "update")

    def _kept(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._stored_in if tensor.is_floating_point() else tensor.dtype, copy=True)

    def _sample(self, tensor: Tensor) -> Tensor:
        """Return the local part of a tensor as a batch of one, in the type it is computed in."""
        return local(tensor).to(self._computed_in if tensor.is_floating_point() else tensor.dtype)[
            None
        ]


def shrink(factor: float, slots: list[Slot], x: list[Tensor], stored: list[dict[str, Any]]) -> None:
    """Scale parameters, and let what is stored with them move along."""
    free = [
        place
        for slot, place, fields in zip(slots, x, stored, strict=True)
        if not slot.tied_to(fields)
    ]
    if free:
        torch._foreach_mul_(free, factor)
    for slot, place, fields in zip(slots, x, stored, strict=True):
        if slot.tied_to(fields):
            left = place.clone()
            place.mul_(factor)
            slot.shift(place, left, fields)


def _widest(dtype: torch.dtype, mirror: MirrorMap) -> torch.dtype:
    """Return a type that can hold both exactly, since a method mixes parameters with their images
    under a map.
    """
    tensors = (*mirror.parameters(), *mirror.buffers())
    return reduce(
        torch.promote_types,
        (tensor.dtype for tensor in tensors if tensor.is_floating_point()),
        dtype,
    )


def _settings(method: GradientMethod[Any]) -> Any:
    """Return all that methods may differ in besides their maps; where it is the same, they can be
    stepped together.
    """

    def of(part: Any) -> Any:
        if part is method.mirror:
            return "its map"
        if isinstance(part, MirrorMap):
            return type(part), part.diagonal() if isinstance(part.diagonal(), float) else id(part)
        if not isinstance(part, nn.Module):
            return part if part is None or isinstance(part, bool | int | float | str) else id(part)
        plain = {name: value for name, value in vars(part).items() if name not in _OF_MODULES}
        named = {**plain, **part._modules, **part._parameters, **part._buffers}
        return type(part), *((name, of(value)) for name, value in named.items())

    return of(method)
