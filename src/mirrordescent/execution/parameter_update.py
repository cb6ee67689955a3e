"""A method on one parameter: its stored state, and the step by the method's ``update``."""

from __future__ import annotations

import copy
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from mirrordescent.domains import DomainError, WholeSpace
from mirrordescent.execution.sharding import local, spread_like
from mirrordescent.methods.base import GradientMethod
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.parts import claim_holds

Fields: TypeAlias = dict[str, Any]
"""Fields of a method's state that are stored with a parameter, by name."""

_MODULE_ATTRIBUTES = vars(nn.Module()).keys()


class ParameterUpdate:
    """The method of one parameter. Parameters of the same kind with the same map may share it.

    Args:
        method: Method that takes the steps.
        mirror: Map that is used if the method has none.
        like: The parameter, or its local part.
        dtype: Type of the stored state; None for the type of the parameter.
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
        self.kind = (like.dtype, like.device, _settings(method))
        """Parameters whose updates have the same kind can be stepped together."""
        self.fields: tuple[str, ...] | None = None
        """Names of the stored fields, known after the first start."""
        self._stored_dtype = dtype or like.dtype
        self._computing_dtype = _widest_dtype(self._stored_dtype, self.mirror)
        self._checks_domain = not isinstance(self.mirror.dual_domain, WholeSpace)
        rounds = self._stored_dtype != like.dtype
        self._stores_x = rounds and (method.needs_x or not self._declares("needs_x"))

    @property
    def depends_on_position(self) -> bool:
        """Whether a stored field may depend on the parameter: a dual does, a momentum does not."""
        return bool(self.fields) and (self.method.maps_points or "x" in (self.fields or ()))

    def start(self, parameter: Tensor) -> Fields:
        """Return the stored fields at the start of a run.

        Tensors of the state are stored without their batch dimension, other values as they are.
        """
        x = self._sample(parameter.detach())
        state = self.method.init(x)._replace(x=x)
        carried = self.method.carried if self._declares("carried") else None
        if carried is None:
            carried = tuple(field for field in state._fields if field not in ("k", "x"))
        self._state_type = type(state)
        self.fields = (*carried, "x") if self._stores_x else tuple(carried)
        start = {field: getattr(state, field) for field in self.fields}
        self._shapes = {
            field: value.shape[1:]
            for field, value in start.items()
            if isinstance(value, Tensor) and value.ndim
        }
        for field, shape in self._shapes.items():
            part = self._stored_copy(start[field][0])
            start[field] = spread_like(parameter, part) if shape == x.shape[1:] else part
        return start

    def restart(self, x: Tensor, previous: Tensor | None, stored: Fields, name: str) -> None:
        """Restart the fields that depend on the position at x, because the parameter was changed.

        Fields such as a dual get their initial values at x. Other fields, such as means of
        gradients, stay. If the previous value is known, entries whose initial values agree at both
        positions stay too. For an elementwise map, these are the unchanged entries.

        Args:
            x: Present value of the parameter, or of its local part.
            previous: Value after the last step, if it is known.
            stored: Stored fields.
            name: Name of the parameter.
        """
        mirror = self.mirror
        if self.method.maps_points:
            mirror.primal_domain.require(
                x[None],
                f"parameter {name}, which was changed,",
                str(mirror),
                closed=mirror.defined_on_boundary,
            )
        before = None if previous is None else self._position_fields(previous)
        for field, fresh in self._position_fields(x).items():
            values = local(stored[field])
            if before is not None:
                fresh = torch.where(fresh != before[field], fresh, values)
            values.copy_(fresh)

    def shift(self, x: Tensor, previous: Tensor, stored: Fields) -> None:
        """Shift the stored fields by the change of their initial values between both positions."""
        before = self._position_fields(previous)
        for field, fresh in self._position_fields(x).items():
            local(stored[field]).add_(fresh - before[field])

    @torch.enable_grad()
    def _position_fields(self, x: Tensor) -> dict[str, Tensor]:
        """Return the initial values of the fields that depend on the position x."""
        sample = self._sample(x.detach()).requires_grad_()
        state = self.method.init(sample)._replace(x=sample)
        fields: dict[str, Tensor] = {}
        for field in self._shapes:
            value = getattr(state, field)
            if value.requires_grad:
                fields[field] = self._stored_copy(value.detach()[0])
        return fields

    def step(self, k: int, x: Tensor, stored: Fields, g: Tensor) -> None:
        """Take step k + 1 along the gradient g by the method's ``update``, in place."""
        # If x is stored in another type, both x and the stored copy are written.
        targets = [("x", x), *((field, local(stored[field])) for field in self._shapes)]
        before = {field: self._sample(tensor) for field, tensor in targets}
        others = {field: stored[field] for field in self.fields or () if field not in before}
        unused = dict.fromkeys(self._state_type._fields, before["x"])
        state = self._state_type(**{**unused, **before, **others, "k": k})
        after = self.method.update(state, self._sample(g))
        if self._checks_domain:
            self._require_inside(after)
        stored.update({field: getattr(after, field) for field in others})
        old_memory = {tensor.data_ptr() for _, tensor in targets}
        values = []
        for field, _ in targets:
            value = getattr(after, field)[0]
            # For example, the new x may share the memory of the old z.
            if value.data_ptr() in old_memory:
                value = value.clone()
            values.append(value)
        for (_, tensor), value in zip(targets, values, strict=True):
            tensor.copy_(value)

    def _require_inside(self, state: Any) -> None:
        inside = self.method.inside(state)
        if inside is not None and not bool(inside.all()):
            raise DomainError(f"a step left the domain of {self.mirror}: use a smaller lr")

    def restored(self, saved: Fields, parameter: Tensor) -> Fields:
        """Return a copy of saved fields, in the type and on the device of the computation."""
        if self.fields is None:
            self.start(parameter)
        fields = self.fields or ()
        if set(saved) != set(fields):
            raise ValueError(
                f"the state stores {', '.join(saved) or 'nothing'} with the parameters, and this "
                f"optimiser stores {', '.join(fields) or 'nothing'}: use the map and the "
                f"dual_dtype that the state was saved with"
            )
        for field, shape in self._shapes.items():
            if not isinstance(saved[field], Tensor) or local(saved[field]).shape != shape:
                raise ValueError("the state belongs to parameters of other shapes")
        restored: Fields = {}
        for field in fields:
            if field in self._shapes:
                restored[field] = self._stored_copy(saved[field].to(parameter.device))
            else:
                restored[field] = copy.deepcopy(saved[field])
        return restored

    def _declares(self, name: str) -> bool:
        """Return whether a declaration of the method's class applies to its own ``update``."""
        return claim_holds(type(self.method), name, "update")

    def _stored_copy(self, tensor: Tensor) -> Tensor:
        dtype = self._stored_dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(dtype, copy=True)

    def _sample(self, tensor: Tensor) -> Tensor:
        """Return the local part of a tensor as a batch of one, in the computing type."""
        dtype = self._computing_dtype if tensor.is_floating_point() else tensor.dtype
        return local(tensor).to(dtype)[None]


def _widest_dtype(dtype: torch.dtype, mirror: MirrorMap) -> torch.dtype:
    """Return a type that represents numbers of this type and of the map's tensors exactly."""
    tensors = (*mirror.parameters(), *mirror.buffers())
    dtypes = (tensor.dtype for tensor in tensors if tensor.is_floating_point())
    return reduce(torch.promote_types, dtypes, dtype)


def _settings(method: GradientMethod[Any]) -> Any:
    """Return all settings of a method except its map, as a hashable value."""

    def settings_of(part: Any) -> Any:
        if part is method.mirror:
            return "map"
        if isinstance(part, MirrorMap):
            d = part.diagonal()
            return type(part), d if isinstance(d, float) else id(part)
        if not isinstance(part, nn.Module):
            plain = part is None or isinstance(part, bool | int | float | str)
            return part if plain else id(part)
        attributes = {
            name: value for name, value in vars(part).items() if name not in _MODULE_ATTRIBUTES
        }
        attributes |= {**part._modules, **part._parameters, **part._buffers}
        return type(part), *((name, settings_of(value)) for name, value in attributes.items())

    return settings_of(method)
