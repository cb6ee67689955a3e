"""How the parameters of a group are stepped: many at once by kernels or in place, the others by the
pure method.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from mirrordescent.methods.base import Tensors
from mirrordescent.mirrors.together import Maps
from mirrordescent.optim.compiled import Compiled, Form
from mirrordescent.optim.forms import Reading
from mirrordescent.optim.sharding import local_parts
from mirrordescent.optim.slot import Rate, Slot
from mirrordescent.optim.watch import Watch

T = TypeVar("T")
Stored: TypeAlias = list[dict[str, Any]]
Step: TypeAlias = Callable[[int, Tensors, Stored, Tensors], None]
_dtype = attrgetter("dtype")


class Moving(NamedTuple):
    """The parameters of a group that have gradients, with their slots, and their local parts x,
    which are stepped.
    """

    slots: list[Slot]
    parameters: Tensors
    x: Tensors
    g: Tensors


class Plan:
    """Which parameters are stepped together is found out once, and again when something has
    changed.

    Args:
        slots: the methods of all parameters.
        rate: their step sizes.
    """

    def __init__(self, slots: list[Slot], rate: Rate) -> None:
        self.slots = slots
        self.rate = rate
        self._moving: list[Slot] = []
        self._formed: list[int] = []
        self._seen: Any = None
        self._compiled: list[tuple[list[int], Compiled]] = []
        self._batches: list[tuple[list[int], Step]] = []
        self._left: list[int] = []
        momenta = {slot.method.changing_momentum for slot in slots}
        self.momentum = (
            momenta.pop() if len(momenta) == 1 else None
        )  # that of all methods, if it can be changed

    def __reduce__(self) -> tuple[type[Plan], tuple[list[Slot], Rate]]:
        return Plan, (self.slots, self.rate)  # the tensors of a copy are elsewhere

    def set_momentum(self, momentum: float | None) -> None:
        """Step with another momentum from now on, if the methods have one."""
        if momentum is None or self.momentum in (None, momentum):
            return
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}")
        for slot in self.slots:
            slot.method.change_momentum(momentum)
        self.momentum = momentum

    def sort(
        self, slots: list[Slot], parameters: Tensors, x: Tensors, stored: Stored, g: Tensors
    ) -> None:
        """Find out how some parameters, with local parts x and what is stored with each, are
        stepped along g.
        """
        if slots != self._moving:
            self._moving = slots
            self._formed = [i for i, slot in enumerate(slots) if slot.form]
            self._seen = None
        seen: list[list[Any]] = [list(map(_dtype, g))]
        if self._formed:  # kernels are told addresses, and what has not moved is laid out as it was
            there = chain(pick(x, self._formed), beside(pick(stored, self._formed)))
            seen += list(map(Tensor.data_ptr, there)), list(map(Tensor.is_contiguous, g))
        if seen != self._seen:
            self._sort(parameters, x, stored, g)
            self._seen = seen

    def looked_at(self, watch: Watch) -> set[int]:
        """Return the numbers of those parameters whose kernels look by themselves whether somebody
        has moved them.
        """
        return {i for numbers, kernel in self._compiled if kernel.looks(watch) for i in numbers}

    def step(self, k: int, x: Tensors, stored: Stored, g: Tensors, watch: Watch | None) -> None:
        """Take step k + 1 on what was sorted last."""
        for numbers, kernel in self._compiled:
            kernel.step(k + 1, pick(g, numbers), watch)
        for numbers, step in self._batches:
            step(k + 1, pick(x, numbers), pick(stored, numbers), pick(g, numbers))
        for i in self._left:
            self._moving[i].step(k, x[i], stored[i], g[i])

    def _sort(self, parameters: Tensors, x: Tensors, stored: Stored, g: Tensors) -> None:
        alike: dict[tuple[Form | None, Any], list[int]] = {}
        self._compiled = []
        self._batches = []
        self._left = []
        for i, slot in enumerate(self._moving):
            tensors = [x[i], *beside([stored[i]]), g[i]]
            plain = all(isinstance(t, Tensor) and t.dtype == x[i].dtype for t in tensors)
            few = plain and len(tensors) <= 3  # kernels and steps in place know of one field
            form = slot.form if few and all(map(Tensor.is_contiguous, tensors)) else None
            if form or (few and slot.in_place) or (plain and slot.together):
                alike.setdefault((form, (slot.together, slot.plain, slot.kind)), []).append(i)
            else:
                self._left.append(i)
        for (form, _), numbers in alike.items():
            slots = pick(self._moving, numbers)
            some = pick(x, numbers)
            if form:
                kernel = Compiled(
                    slots, pick(parameters, numbers), some, beside(pick(stored, numbers))
                )
                self._compiled.append((numbers, kernel))
            else:
                step = together_step(slots) if slots[0].together else in_place(slots, some[0])
                self._batches.append((numbers, step))


def together_step(slots: list[Slot]) -> Step:
    """Return steps on several parameters, each with its own map, that share their work."""
    method = slots[0].method
    maps = Maps(slot.mirror for slot in slots)
    return lambda count, x, stored, g: method.together(count, maps, x, beside(stored), g)


def in_place(slots: list[Slot], like: Tensor) -> Step:
    """Return steps in place (``GradientMethod.in_place``) on several parameters, whose maps have
    ∇ψ(x) = d·x.
    """
    # the methods differ in their maps alone
    method = slots[0].method
    maps = [slot.mirror for slot in slots]

    def read() -> Tensors:
        return [
            torch.as_tensor(mirror.diagonal(), dtype=like.dtype, device=like.device)
            for mirror in maps
        ]

    d = None if slots[0].plain else Reading(maps, read)
    return lambda count, x, stored, g: method.in_place(
        count, x, beside(stored), g, None if d is None else d()
    )


def beside(stored: Stored) -> Tensors:
    """Return all that is stored with some parameters, in one list."""
    return local_parts([tensor for fields in stored if fields for tensor in fields.values()])


def pick(items: list[T], numbers: list[int]) -> list[T]:
    """Return some of the items, in increasing order."""
    return items if len(numbers) == len(items) else [items[i] for i in numbers]
