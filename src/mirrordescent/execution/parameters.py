"""Steps of optimisers: the entry point that maps methods and parameters to an executor.

The steps of each parameter are taken in the first of these ways that exists for its method, its map
and its memory:

1. a C kernel over all parameters of a kind (:mod:`~mirrordescent.execution.compiled`),
2. steps that share work between tensors (:mod:`~mirrordescent.execution.matrices`),
3. torch's foreach functions (:mod:`~mirrordescent.execution.foreach`),
4. the method's own ``update`` (:mod:`~mirrordescent.execution.parameter_update`).

Ways 1 to 3 are registered for exact classes. A method of another class, or a subclass, runs by its
own ``update``.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from mirrordescent import kernels
from mirrordescent.execution.changes import ChangeTracker
from mirrordescent.execution.compiled import KernelForm, KernelSteps, kernel_form
from mirrordescent.execution.foreach import diagonal_steps
from mirrordescent.execution.map_values import CachedMapValue, usable_diagonal
from mirrordescent.execution.matrices import SHARED_STEPS, uses_kernels
from mirrordescent.execution.parameter_update import Fields, ParameterUpdate
from mirrordescent.execution.sharding import is_distributed, local_parts
from mirrordescent.execution.tensors import Tensors, select
from mirrordescent.methods.base import GradientMethod
from mirrordescent.mirrors.base import MirrorMap

ListStep: TypeAlias = Callable[[int, Tensors, Tensors, Tensors], None]
"""A step on several parameters: count, points, stored tensors, gradients."""

_dtype = attrgetter("dtype")


def updates_for(
    methods: Sequence[GradientMethod[Any]],
    maps: Sequence[MirrorMap],
    parameters: Sequence[Tensor],
    *,
    foreach: bool | None = None,
    fused: bool | None = None,
    dual_dtype: torch.dtype | None = None,
) -> GroupExecutor:
    """Return the executor of a group of parameters. The execution of steps is chosen here, once.

    Args:
        methods: Method of each parameter. Parameters may share one.
        maps: Map of each parameter, for methods that have none.
        parameters: Local parts of the parameters.
        foreach: Whether steps are taken on lists of tensors; None means wherever possible.
        fused: Whether C kernels are used. None uses them if there are any and ``foreach`` is None.
        dual_dtype: Type of the stored state; None for the type of the parameters.
    """
    if fused is None:
        fused = foreach is None and kernels.available()
    shared: dict[Any, ParameterUpdate] = {}
    updates: list[ParameterUpdate] = []
    choices: dict[ParameterUpdate, StepChoice] = {}
    for method, mirror, x in zip(methods, maps, parameters, strict=True):
        key = (id(method), id(mirror), x.dtype, x.device, x.shape)
        update = shared.get(key)
        if update is None:
            update = ParameterUpdate(method, mirror, x, dual_dtype)
            shared[key] = update
            choices[update] = _choose_step(update, x, foreach, fused)
        updates.append(update)
    return GroupExecutor(updates, choices, fused)


class StepChoice(NamedTuple):
    """The fast forms of a parameter's step; without one, the method's ``update`` is called."""

    kernel: KernelForm | None
    """C kernel, or None."""

    shared: bool
    """Whether steps share work between tensors."""

    foreach: bool
    """Whether foreach functions are used."""

    unit_diagonal: bool
    """Whether ∇ψ(x) = x, so that foreach functions need no multipliers."""


def _choose_step(
    update: ParameterUpdate, x: Tensor, foreach: bool | None, fused: bool
) -> StepChoice:
    """Return the fast forms that exist for the steps of a parameter like x."""
    method = update.method
    d: Tensor | float | None = None
    if not update.converts and diagonal_steps(method) is not None:
        d = usable_diagonal(update.mirror, x)
    shares = (
        type(method) in SHARED_STEPS
        and not update.converts
        and x.dtype in (torch.float32, torch.float64)
    )
    if foreach and d is None and not shares:
        raise ValueError(
            f"foreach=True needs a method with a step on lists of tensors, a map with ∇ψ(x) = d·x "
            f"of the parameters' type and device, and no dual_dtype; got "
            f"{type(method).__name__} with {type(update.mirror).__name__}. "
            f"foreach=None uses foreach functions where possible"
        )
    form = None
    if fused and not update.converts:
        form = kernel_form(method, update.mirror, x)
    lists = foreach is not False
    return StepChoice(
        kernel=form,
        shared=lists and shares,
        foreach=lists and d is not None,
        unit_diagonal=isinstance(d, float) and d == 1,
    )


class GradientBatch(NamedTuple):
    """The parameters of a group that have gradients, with their updates and their local parts x."""

    updates: list[ParameterUpdate]
    parameters: Tensors
    x: Tensors
    gradients: Tensors


class GroupExecutor:
    """Steps of a group of parameters.

    The parameters are arranged into batches at the first step, and again when other parameters
    have gradients, or when tensors of kernels have moved in memory.

    Args:
        updates: Update of each parameter.
        choices: Fast forms of the steps, by update.
        fused: Whether C kernels are used.
    """

    def __init__(
        self,
        updates: list[ParameterUpdate],
        choices: dict[ParameterUpdate, StepChoice],
        fused: bool,
    ) -> None:
        self.updates = updates
        self.choices = choices
        self.fused = fused
        momenta = {update.method.adjustable_momentum for update in updates}
        self.momentum = momenta.pop() if len(momenta) == 1 else None
        """Momentum of all methods, if they share one that can be changed."""
        self._arranged: list[ParameterUpdate] = []
        self._arranged_for: list[Any] | None = None
        self._with_kernel: list[int] = []
        self._tracked: list[int] = []
        self._kernel_steps: list[tuple[list[int], KernelSteps]] = []
        self._list_steps: list[tuple[list[int], ListStep]] = []
        self._single_steps: list[int] = []

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy has new tensors, so it arranges its own batches.
        return GroupExecutor, (self.updates, self.choices, self.fused)

    @property
    def uses_kernels(self) -> bool:
        """Whether a C kernel can be used for at least one parameter."""
        for update, choice in self.choices.items():
            if choice.kernel is not None or uses_kernels(update.method, update.mirror):
                return True
        return False

    def disable_kernels(self) -> None:
        """Use torch alone from now on."""
        self.fused = False
        self.choices = {
            update: choice._replace(kernel=None) for update, choice in self.choices.items()
        }
        self._arranged = []

    def set_momentum(self, momentum: float) -> None:
        """Change the momentum of all methods, if they have one."""
        if self.momentum is None or momentum == self.momentum:
            return
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}")
        for update in self.updates:
            update.method.set_momentum(momentum)
        self.momentum = momentum

    def step(
        self,
        batch: GradientBatch,
        state: MutableMapping[Tensor, Fields],
        k: int,
        *,
        tracker: ChangeTracker | None,
        moves: bool = True,
        shrink: Sequence[float] | None = None,
        name_of: Callable[[Tensor], str] = str,
    ) -> None:
        """Take step k + 1 in place.

        Args:
            batch: Parameters and gradients.
            state: Stored fields by parameter.
            k: Steps taken.
            tracker: Tracker of changes by others; None if they are not tracked.
            moves: Whether the parameters are stepped. If not, only changes are handled.
            shrink: Factor of a decoupled weight decay of each parameter; None if there is none.
            name_of: Function that names a parameter in an error message.
        """
        updates, parameters, x, g = batch
        stored: list[Fields] = []
        for update, p, place in zip(updates, parameters, x, strict=True):
            fields = state.get(p)
            if not fields and update.fields != ():
                fields = update.start(p if is_distributed(p) else place)
                if fields:
                    state[p] = fields
            stored.append(fields or {})
        self._arrange_if_changed(batch, stored)
        tracked = self._tracked if tracker is not None else []
        kernel_tracker = None if shrink is not None else tracker  # a decay would look like a change
        if tracked and moves and kernel_tracker is not None:
            compared = self.compared_by_kernels(kernel_tracker)
            tracked = [i for i in tracked if i not in compared]
        if tracker is not None and tracked:
            changes = tracker.changes(select(parameters, tracked), select(x, tracked))
            for position, previous in changes:
                i = tracked[position]
                updates[i].restart(x[i], previous, stored[i], name_of(parameters[i]))
        if moves:
            if shrink is not None:
                self._shrink(shrink, x, stored)
            self._take_step(k, x, stored, g, kernel_tracker)
        if tracker is not None and tracked:
            tracker.record(select(parameters, tracked), select(x, tracked))

    def compared_by_kernels(self, tracker: ChangeTracker) -> set[int]:
        """Return the indices of parameters whose kernels detect changes by themselves."""
        found: set[int] = set()
        for indices, steps in self._kernel_steps:
            if steps.detects_changes(tracker):
                found.update(indices)
        return found

    def _take_step(
        self,
        k: int,
        x: Tensors,
        stored: list[Fields],
        g: Tensors,
        tracker: ChangeTracker | None,
    ) -> None:
        for indices, kernel_steps in self._kernel_steps:
            kernel_steps(k + 1, select(g, indices), tracker)
        for indices, step in self._list_steps:
            fields = stored_tensors(select(stored, indices))
            step(k + 1, select(x, indices), fields, select(g, indices))
        if not self._single_steps:
            return
        if self.fused:
            self._take_single_steps(k, x, stored, g)
        else:
            with kernels.disabled():
                self._take_single_steps(k, x, stored, g)

    def _take_single_steps(self, k: int, x: Tensors, stored: list[Fields], g: Tensors) -> None:
        for i in self._single_steps:
            self._arranged[i].step(k, x[i], stored[i], g[i])

    def _shrink(self, factors: Sequence[float], x: Tensors, stored: list[Fields]) -> None:
        """Scale parameters, and shift the stored fields that depend on their position."""
        dependent = set(self._tracked)
        free = [i for i in range(len(x)) if i not in dependent]
        if free:
            torch._foreach_mul_(select(x, free), [factors[i] for i in free])
        for i in self._tracked:
            previous = x[i].clone()
            x[i].mul_(factors[i])
            self._arranged[i].shift(x[i], previous, stored[i])

    def _arrange_if_changed(self, batch: GradientBatch, stored: list[Fields]) -> None:
        """Arrange the parameters into batches if anything that batches depend on has changed."""
        updates, _, x, g = batch
        if updates != self._arranged:
            self._arranged = updates
            self._arranged_for = None
            self._with_kernel = [i for i, each in enumerate(updates) if self.choices[each].kernel]
            self._tracked = [i for i, each in enumerate(updates) if each.depends_on_position]
        layout: list[Any] = list(map(_dtype, g))
        if self._with_kernel:  # kernels are called with addresses
            fields = stored_tensors(select(stored, self._with_kernel))
            layout += map(Tensor.data_ptr, chain(select(x, self._with_kernel), fields))
            layout += map(Tensor.is_contiguous, g)
        if layout != self._arranged_for:
            self._arrange(batch, stored)
            self._arranged_for = layout

    def _arrange(self, batch: GradientBatch, stored: list[Fields]) -> None:
        updates, parameters, x, g = batch
        self._kernel_steps = []
        self._list_steps = []
        self._single_steps = []
        by_form: dict[tuple[KernelForm, Any], list[int]] = {}
        by_kind: dict[tuple[bool, bool, Any], list[int]] = {}
        for i, update in enumerate(updates):
            choice = self.choices[update]
            tensors = [x[i], *stored_tensors([stored[i]]), g[i]]
            one_type = all(isinstance(t, Tensor) and t.dtype == x[i].dtype for t in tensors)
            at_most_one_field = one_type and len(tensors) <= 3
            contiguous = at_most_one_field and all(map(Tensor.is_contiguous, tensors))
            if choice.kernel is not None and contiguous:
                by_form.setdefault((choice.kernel, update.kind), []).append(i)
            elif (choice.shared and one_type) or (choice.foreach and at_most_one_field):
                key = (choice.shared, choice.unit_diagonal, update.kind)
                by_kind.setdefault(key, []).append(i)
            else:
                self._single_steps.append(i)
        for (form, _), indices in by_form.items():
            group = select(updates, indices)
            steps = KernelSteps(
                form,
                group[0].method,
                [update.mirror for update in group],
                select(parameters, indices),
                select(x, indices),
                stored_tensors(select(stored, indices)),
            )
            self._kernel_steps.append((indices, steps))
        for (shared, unit_diagonal, _), indices in by_kind.items():
            group = select(updates, indices)
            method = group[0].method
            maps = [update.mirror for update in group]
            step: ListStep
            if shared:
                step = SHARED_STEPS[type(method)](method, maps, self.fused)  # type: ignore[arg-type]
            else:
                step = foreach_step(method, maps, x[indices[0]], unit_diagonal)
            self._list_steps.append((indices, step))


def foreach_step(
    method: GradientMethod[Any], maps: Sequence[MirrorMap], like: Tensor, unit_diagonal: bool
) -> ListStep:
    """Return steps by foreach functions on several parameters, whose maps have ∇ψ(x) = d·x."""
    steps = diagonal_steps(method)
    assert steps is not None

    def diagonals() -> Tensors:
        return [
            torch.as_tensor(mirror.diagonal(), dtype=like.dtype, device=like.device)
            for mirror in maps
        ]

    cached = None if unit_diagonal else CachedMapValue(maps, diagonals)

    def step(count: int, x: Tensors, stored: Tensors, g: Tensors) -> None:
        sizes = steps.step_sizes(method, count)
        d = None if cached is None else cached()
        steps.foreach(method, sizes, x, stored, g, d)

    return step


def stored_tensors(stored: list[Fields]) -> Tensors:
    """Return all stored tensors of some parameters in one list, as local parts."""
    return local_parts([tensor for fields in stored if fields for tensor in fields.values()])
