"""What the optimisers share: parameter groups, steps, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from mirrordescent.kernels import library
from mirrordescent.methods.base import Method
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.optim.foreach import TWINS, Tensors, pick, step_in_place
from mirrordescent.optim.fused import Fused, geometry_of
from mirrordescent.optim.geometry import MirrorLike, as_mirror, kind, map_of
from mirrordescent.optim.gradients import all_finite, clipping, nonfinite
from mirrordescent.optim.sharding import local, local_gradients, local_map, local_parts, spread_like
from mirrordescent.optim.slot import Rate, Slot
from mirrordescent.schedules import Schedule, ScheduleLike

Params: TypeAlias = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]
Group: TypeAlias = dict[str, Any]
Nonfinite: TypeAlias = Literal["raise", "skip"] | None


class MirrorOptimizer(Optimizer):
    """A method of :mod:`mirrordescent.methods` on the parameters of a network, tensor by tensor, with t_k = lr·s(k).

    The parameters hold the point x at which the method wants the next gradient; after the last step they are its
    answer. What a method carries along beside x is in ``state``, made from the parameters at the first step, and
    ``param_groups`` has the number k of steps taken. The map is not part of the state: give the same one again when a
    run is continued, as is done with the model.

    A group may have its own ``lr``, ``mirror``, ``t``, ``weight_decay``, ``maximize`` and ``foreach``. While its lr is
    0 it does not move, and its steps are not counted.

    Args:
        params: tensors, named parameters (which a layer-wise map needs: ``model.named_parameters()``), or groups.
        lr: the learning rate; learning-rate schedulers of torch change it.
        mirror: a :class:`~mirrordescent.mirrors.MirrorMap`, applied to every parameter as to a batch of one; a
            layer-wise one, which has a map for each; an entry of the zoo, by name or file; None for the Euclidean map.
        t: s of t_k = lr·s(k), a schedule or a function of k ≥ 1. By default 1, or that of the zoo's entry.
        weight_decay: c of a penalty ½c‖x‖² that is added to f, so c·x to the gradient, whatever the map is.
        maximize: ascend.
        foreach: step in place on all tensors at once. By default wherever it can be done: for maps with ∇ψ(x) = d·x.
        fused: use kernels in C where there are any: on a CPU, for MD, SMD and AMD with multipliers that repeat along a
            tensor or with a spline for all of it. They are compiled when first asked for, in a few seconds, and kept
            in the cache. The numbers are the same but for rounding.
        max_grad_norm: scale the gradients down so that their norm, over all groups, is at most this.
        nonfinite: what to do about a gradient with a NaN or an infinity, before anything is changed: ``"raise"``, or
            ``"skip"`` the whole step and count it in ``skipped_steps``. None does not look, which saves a pass over
            the gradients, and on a GPU the wait for its result.
        dual_dtype: compute and store in this type, such as ``torch.float32`` for parameters in bfloat16, which are then
            the rounded image of what is stored, so that small steps are not lost. Besides the dual, x is stored, unless
            it can be had from the dual (SMD). If it is the parameters' own type, SMD stores the dual in any case.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        mirror: MirrorLike = None,
        *,
        t: ScheduleLike | None = None,
        weight_decay: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool = False,
        max_grad_norm: float | None = None,
        nonfinite: Nonfinite = "raise",
        dual_dtype: torch.dtype | None = None,
    ) -> None:
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm must be positive, or None; got {max_grad_norm}")
        if nonfinite not in ("raise", "skip", None):
            raise ValueError(f"nonfinite must be 'raise', 'skip' or None, got {nonfinite!r}")
        if dual_dtype is not None and not dual_dtype.is_floating_point:
            raise ValueError(f"dual_dtype must be a floating-point type, got {dual_dtype}")
        self.max_grad_norm, self.nonfinite, self.dual_dtype = max_grad_norm, nonfinite, dual_dtype
        self.skipped_steps, self.fused = 0, fused
        if fused:
            library()  # now, and not in the middle of the first step
        self._slots: list[list[Slot]] = []
        self._rates: list[Rate] = []
        self._kernels: list[Fused] = []
        defaults = dict(lr=lr, mirror=mirror, t=t, weight_decay=weight_decay, maximize=maximize, foreach=foreach)
        super().__init__(params, defaults)

    def _method(self, mirror: MirrorMap, t: Schedule) -> Method[Any]:
        """Return the method for parameters with this map."""
        raise NotImplementedError

    # Parameter groups

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters, with settings of their own where the group names any."""
        super().add_param_group(dict(param_group))
        try:
            slots, rate = self._prepare(self.param_groups[-1])
        except Exception:
            self.param_groups.pop()
            raise
        self._slots.append(slots)
        self._rates.append(rate)
        self._kernels.append(Fused())

    def _prepare(self, group: Group) -> tuple[list[Slot], Rate]:
        """Check a group, find the map of every parameter, and leave nothing but plain data in the group."""
        _check_numbers(group)
        mirror, schedule = as_mirror(group["mirror"], group.pop("t"), group["params"][0].device)
        group.update(method=type(self).__name__, mirror=kind(mirror), k=0)
        rate, shared, slots = Rate(schedule), dict[Any, Slot](), list[Slot]()
        for name, p in zip(self._names(len(self.param_groups) - 1), group["params"], strict=True):
            if not p.is_floating_point():
                raise ValueError(f"parameter {name} is of type {p.dtype}; mirror maps are of real numbers")
            whole = map_of(mirror, name if "param_names" in group else None, p)
            own, x = local_map(whole, p, name), local(p.detach())
            own.primal_domain.require(x[None], f"parameter {name}", str(own), closed=own.defined_on_boundary)
            like = (id(own), x.dtype, x.device, x.shape)
            if like not in shared:
                shared[like] = self._slot(own, x, rate, group["foreach"])
            slots.append(shared[like])
        return slots, rate

    def _slot(self, mirror: MirrorMap, x: Tensor, rate: Rate, foreach: bool | None) -> Slot:
        slot = Slot(mirror, self._method(mirror, rate), x, self.dual_dtype)
        possible = slot.in_place and type(slot.method) in TWINS
        if foreach and not possible:
            raise ValueError(
                f"foreach=True needs a map with ∇ψ(x) = d·x, of the parameters' type and on their device, and no "
                f"dual_dtype; got {kind(mirror)}. foreach=None uses it where it can be used"
            )
        slot.in_place = possible and foreach is not False
        slot.fused = geometry_of(slot, x) if self.fused else None
        return slot

    def _names(self, number: int) -> list[str]:
        group = self.param_groups[number]
        return group.get("param_names") or [f"{i} of group {number}" for i in range(len(group["params"]))]

    # Steps

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step along the gradients; ``closure``, if given, computes them and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        work = [
            [(slot, p, g) for slot, p in zip(slots, group["params"], strict=True) if (g := p.grad) is not None]
            for slots, group in zip(self._slots, self.param_groups, strict=True)
        ]
        gradients = [g for moving in work for _, _, g in moving]
        if {g.layout for g in gradients} - {torch.strided}:
            raise RuntimeError(f"{type(self).__name__} does not take sparse gradients; use dense ones (sparse=False)")
        if self.nonfinite is not None and not all_finite(gradients):
            self._skip_or_raise(gradients)
            return loss
        scale = 1.0 if self.max_grad_norm is None else clipping(gradients, self.max_grad_norm)
        for number, moving in enumerate(work):
            if moving:
                self._step_group(number, moving, scale)
        return loss

    def _skip_or_raise(self, gradients: Tensors) -> None:
        if self.nonfinite == "skip":
            self.skipped_steps += 1
            return
        names = [
            name
            for number, group in enumerate(self.param_groups)
            for name, p in zip(self._names(number), group["params"], strict=True)
            if p.grad is not None
        ]
        raise FloatingPointError(
            f"the gradient of parameter {', '.join(names[i] for i in nonfinite(gradients))} is not finite; nothing was "
            f"changed. A smaller lr or max_grad_norm may help; nonfinite='skip' leaves such steps out"
        )

    def _step_group(self, number: int, moving: list[tuple[Slot, Tensor, Tensor]], scale: float) -> None:
        group, rate = self.param_groups[number], self._rates[number]
        slots, parameters, gradients = (list(column) for column in zip(*moving, strict=True))
        x, g = local_parts(parameters), local_gradients(gradients, parameters)
        if scale != 1:
            g = list(torch._foreach_mul(g, scale))
        if group["maximize"]:
            g = list(torch._foreach_neg(g))
        if group["weight_decay"]:
            g = list(torch._foreach_add(g, x, alpha=group["weight_decay"]))
        stored = [self._stored(slot, p) if slot.fields else [] for slot, p in zip(slots, parameters, strict=True)]
        rate.lr = float(group["lr"])
        if rate.lr == 0:
            return
        for step in (self._kernels[number].step, step_in_place) if self.fused else (step_in_place,):
            left = step(group["k"], slots, x, stored, g)
            slots, stored, x, g = pick(slots, left), pick(stored, left), pick(x, left), pick(g, left)
            if not left:
                break
        for slot, *tensors in zip(slots, x, stored, g, strict=True):
            slot.step(group["k"], *tensors)
        group["k"] += 1

    def _stored(self, slot: Slot, p: Tensor) -> Tensors:
        """Return the local parts of what is stored with a parameter, made from it at the first step."""
        state = self.state[p]
        if not state:
            state.update({field: spread_like(p, start) for field, start in slot.start(local(p)).items()})
        return [local(state[field]) for field in slot.fields]

    # Checkpoints

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the state of an optimiser of the same class, with maps of the same kind, on such parameters."""
        restored: dict[Tensor, dict[str, Tensor]] = {}

        def look(_: Optimizer, incoming: dict[str, Any]) -> None:
            self._refuse_others(incoming["param_groups"])
            restored.update(self._restored(incoming))

        handle = self.register_load_state_dict_pre_hook(look)  # now, so that it comes after those of the user
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        self.state.update(restored)  # torch has cast what was stored to the type of the parameters

    def _refuse_others(self, saved_groups: list[Group]) -> None:
        for saved, group in zip(saved_groups, self.param_groups, strict=False):
            for what in ("method", "mirror"):
                if saved.get(what) != group[what]:
                    theirs = saved.get(what, "another optimiser")
                    raise ValueError(f"this is a state of {theirs}, and cannot be loaded where {what} is {group[what]}")

    def _restored(self, incoming: dict[str, Any]) -> dict[Tensor, dict[str, Tensor]]:
        return {
            p: slot.restored(fields, p)
            for slots, group, saved in zip(self._slots, self.param_groups, incoming["param_groups"], strict=False)
            for slot, p, number in zip(slots, group["params"], saved["params"], strict=False)
            if (fields := incoming["state"].get(number))
        }

    _kept: tuple[str, ...] = (
        "max_grad_norm", "nonfinite", "dual_dtype", "skipped_steps", "fused", "_slots", "_rates", "_kernels",
    )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{name: getattr(self, name) for name in self._kept}}


def _check_numbers(group: Group) -> None:
    lr, weight_decay = group["lr"], group["weight_decay"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if not 0 < float(lr) < float("inf"):
        raise ValueError(f"lr must be positive and finite, got {float(lr)}")
    if not 0 <= weight_decay < float("inf"):
        raise ValueError(f"weight_decay must be ≥ 0 and finite, got {weight_decay}")
