"""What the optimisers share: parameter groups, steps, checkpoints."""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeAlias, Unpack, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from mirrordescent import kernels
from mirrordescent.methods.base import Tensors
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.optim.compiled import form_of
from mirrordescent.optim.geometry import (
    Leaf,
    MakeMethod,
    MirrorLike,
    choose,
    kind,
    require_same,
    settings_of,
)
from mirrordescent.optim.gradients import all_finite, clipping, nonfinite
from mirrordescent.optim.options import OF_GROUPS, Decoupled, Options, checked
from mirrordescent.optim.plan import Moving, Plan, pick
from mirrordescent.optim.sharding import is_distributed, local, local_gradients, local_parts
from mirrordescent.optim.slot import Rate, Slot, shrink
from mirrordescent.optim.traced import name_in_graphs, step_in_graph
from mirrordescent.optim.watch import Watch

Params: TypeAlias = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]
Group: TypeAlias = dict[str, Any]
_layout = attrgetter("layout")


class MirrorOptimizer(Optimizer):
    """A method of :mod:`mirrordescent.methods` on the parameters of a network, tensor by tensor,
    with t_k = lr·s(k).

    The parameters hold the point x at which the method wants the next gradient; after the last step
    they are its answer. What a method carries beside x is in ``state``, made from the parameters at
    the first step, and ``param_groups`` has the number k of steps taken. The map is not part of the
    state: give the same one again when a run is continued, just as the model.

    A parameter that was moved since the last step (``p.data.copy_``, ``model.load_state_dict``, a
    swap with averaged weights) is taken from where it is now: its dual starts anew there, ∇ψ(x),
    while k goes on; for AMD and ASMD this is the dual sequence, z or y, for momentum a fresh start.
    To notice it, the bits of every parameter with something stored beside it are summed before and
    after a step: by kernels on the way, otherwise in two passes over memory. Of small parameters,
    and of those that have been moved before, there is a copy, and with a map that acts entry by
    entry only the entries that were moved start anew. Where nobody moves parameters,
    ``optimizer.watches = False`` saves all of this.

    A group may have its own ``lr``, ``mirror``, ``t``, ``weight_decay``, ``maximize`` and
    ``foreach``. While its lr is 0 it does not move, and its steps are not counted.

    Args:
        params: tensors, named parameters (which a layer-wise map needs:
            ``model.named_parameters()``), or groups.
        lr: the learning rate; learning-rate schedulers of torch change it.
        mirror: a :class:`~mirrordescent.mirrors.MirrorMap`, applied to every parameter as to a
            batch of one; a layer-wise one, which has a map for each; an entry of the zoo, by name
            or file; None for the Euclidean map.
        method: makes a :class:`~mirrordescent.methods.GradientMethod` of a map and step sizes t: a
            class, such as ``methods.SMD`` or your own, or a function. An entry of the zoo that is a
            method of the same class, or of one that extends it, replaces it, with all its settings;
            without a ``method``, the entry may be any method.
        t: s of t_k = lr·s(k), a schedule or a function of k ≥ 1. By default 1, or that of the zoo's
            entry.
        weight_decay: c of a penalty ½c‖x‖² that is added to f, so c·x to the gradient, whatever the
            map; 0 by default. :class:`Decoupled` (c) shrinks the parameters instead, as AdamW does.
        maximize: ascend instead of descend.
        foreach: step in place on all tensors at once. By default wherever it can be done: for maps
            with ∇ψ(x) = d·x.
        fused: use kernels in C where there are any: on a CPU, for MD, SMD and AMD with multipliers
            that repeat along a tensor or with a spline for all of it, and for matrices, momenta and
            second moments of :class:`Preconditioned`. The numbers are the same but for rounding. By
            default they are used if they have been compiled already and ``foreach`` is not given;
            True compiles them, which takes a few seconds once, and needs a parameter that they can
            be used on.
        max_grad_norm: scale the gradients down so that their norm, over all groups, is at most
            this.
        nonfinite: what to do about a gradient with a NaN or an infinity, before anything is
            changed: ``"raise"``, the default, or ``"skip"`` the whole step and count it in
            ``skipped_steps``. None does not look, which saves a pass over the gradients, and on a
            GPU the wait for its result.
        dual_dtype: compute and store in this type, such as ``torch.float32`` for parameters in
            bfloat16, which are then the rounded image of what is stored, so that small steps are
            not lost. Besides the dual, x is stored, unless every step computes it from the dual
            alone (SMD). If it is the parameters' own type, SMD still stores the dual.

    >>> import torch
    >>> from mirrordescent import methods
    >>> x = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = MirrorOptimizer([x], lr=0.1, method=lambda mirror, t: methods.Nesterov(t))
    >>> for _ in range(100):
    ...     optimizer.zero_grad()
    ...     x.square().sum().backward()
    ...     optimizer.step()
    >>> bool(x.norm() < 1e-3)
    True
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        mirror: MirrorLike = None,
        *,
        method: MakeMethod | None = None,
        **options: Unpack[Options],
    ) -> None:
        chosen = checked(options)
        self.max_grad_norm = chosen.pop("max_grad_norm")
        self.nonfinite = chosen.pop("nonfinite")
        self.dual_dtype = chosen.pop("dual_dtype")
        self.fused = chosen.pop("fused")
        if self.fused:
            kernels.library()  # now, and not in the middle of the first step
        self.skipped_steps = 0
        self._method = method
        self.watches = True
        self._watch = Watch()
        self._plans: list[Plan] = []
        self._sharded, self._name_in_graphs = False, name_in_graphs(self)
        super().__init__(params, {"lr": lr, "mirror": mirror, **chosen})
        if self.fused and not any(
            self._uses_kernels(slot) for plan in self._plans for slot in plan.slots
        ):
            raise ValueError(
                "fused=True, but no parameter can be stepped by a kernel: those are for MD, SMD and AMD on a CPU, with "
                "multipliers that repeat along a tensor, or with a spline, and for matrices and powers in "
                "Preconditioned. fused=None uses them where it can"
            )

    # Parameter groups

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters, with the group's own settings where it names any."""
        super().add_param_group(dict(param_group))
        group = self.param_groups[-1]
        try:
            self._plans.append(self._prepare(group))
        except Exception:
            self.param_groups.pop()
            raise
        self._sharded |= any(map(is_distributed, group["params"]))
        momenta = [plan.momentum for plan in self._plans]
        if momenta[-1] is not None and "momentum" not in param_group:
            group["momentum"] = momenta[-1]
        self.defaults.pop("momentum", None)
        if None not in momenta:  # by this, schedulers know that they may cycle it
            self.defaults["momentum"] = momenta[0]

    def _prepare(self, group: Group) -> Plan:
        """Check a group, find the method of every parameter, and leave nothing but plain data in
        the group.
        """
        _check_numbers(group)
        group["decoupled"] = isinstance(group["weight_decay"], Decoupled)
        group["weight_decay"] = float(group["weight_decay"])
        chosen = choose(group["mirror"], group.pop("t"), group["params"][0].device)
        rate = Rate(chosen.schedule)
        shared = dict[Any, Slot]()
        slots = list[Slot]()
        for name, p in zip(self._names(len(self.param_groups) - 1), group["params"], strict=True):
            if not p.is_floating_point():
                raise ValueError(
                    f"parameter {name} is of type {p.dtype}; mirror maps are of real numbers"
                )
            if p.is_meta:
                raise ValueError(
                    f"parameter {name} is on the meta device, and has no numbers yet: model.to_empty first"
                )
            leaf = Leaf(name, p, "param_names" in group)
            own = self._map_of(leaf, chosen.mirror)
            x = local(p.detach())
            like = (id(own), x.dtype, x.device, x.shape)
            if like not in shared:
                shared[like] = Slot(
                    leaf.method(self._method, chosen, own, rate), own, x, self.dual_dtype
                )
                self._choose_way(shared[like], x, group["foreach"])
            if shared[like].method.maps_points:
                own.primal_domain.require(
                    x[None], f"parameter {name}", str(own), closed=own.defined_on_boundary
                )
            slots.append(shared[like])
        called = self if type(self) is not MirrorOptimizer else slots[0].method
        described = settings_of(slots[0].method, chosen.mirror)
        group.update(
            method=type(called).__name__, mirror=kind(chosen.mirror), settings=described, k=0
        )
        return Plan(slots, rate)

    def _map_of(self, leaf: Leaf, mirror: MirrorMap) -> MirrorMap:
        """Return the map of one parameter."""
        return leaf.part(mirror)

    def _choose_way(self, slot: Slot, x: Tensor, foreach: bool | None) -> None:
        """Let a parameter be stepped in place or by a kernel, if that is possible and wanted."""
        if foreach and not (slot.in_place or slot.together):
            raise ValueError(
                f"foreach=True needs a method that can step in place, a map with ∇ψ(x) = d·x, of the parameters' type "
                f"and on their device, and no dual_dtype; got {kind(slot.mirror)}. foreach=None uses it where it can"
            )
        slot.in_place, slot.together = (
            way and foreach is not False for way in (slot.in_place, slot.together)
        )
        if self.fused or (self.fused is None and foreach is None and kernels.ready()):
            slot.form = form_of(slot, x)

    def _uses_kernels(self, slot: Slot) -> bool:
        return slot.form is not None

    def _name(self, number: int, p: Tensor) -> str:
        return next(
            n
            for n, each in zip(
                self._names(number), self.param_groups[number]["params"], strict=True
            )
            if each is p
        )

    def _names(self, number: int) -> list[str]:
        group = self.param_groups[number]
        return group.get("param_names") or [
            f"{i} of group {number}" for i in range(len(group["params"]))
        ]

    # Steps

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step along the gradients; ``closure``, if given, computes them and returns the
        loss.

        In a function that is compiled by torch, a step is one operation of its graph; with a
        closure, or with sharded parameters, the graph is left for it.
        """
        if torch.compiler.is_compiling() and closure is None and not self._sharded:
            there = [p for group in self.param_groups for p in group["params"]]
            numbers = [i for i, p in enumerate(there) if p.grad is not None]
            if numbers:
                x = [there[i] for i in numbers]
                step_in_graph(x, [p.grad for p in x], numbers, self._name_in_graphs)
            return None
        return self._step(closure)

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _step(self, closure: Callable[[], float] | None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._advance([self._moving(number) for number in range(len(self.param_groups))])
        return loss

    def step_on(self, numbers: Sequence[int], x: Tensors, g: Tensors) -> None:
        """Step some of all parameters, by their numbers, whose memory is x, along g: what a
        compiled step calls.
        """
        given = dict(zip(numbers, zip(x, g, strict=True), strict=True))
        work = []
        first = 0
        for plan, group in zip(self._plans, self.param_groups, strict=True):
            there = [i for i in range(len(group["params"])) if first + i in given]
            places, gradients = ([given[first + i][which] for i in there] for which in (0, 1))
            work.append(
                Moving(pick(plan.slots, there), pick(group["params"], there), places, gradients)
            )
            first += len(group["params"])
        self._advance(work)

    def _advance(self, work: list[Moving]) -> None:
        """Step every group, if the gradients of all are as they should be."""
        gradients = [g for moving in work for g in moving.g]
        if set(map(_layout, gradients)) - {torch.strided}:
            raise RuntimeError(
                f"{type(self).__name__} does not take sparse gradients; use dense ones (sparse=False)"
            )
        if self.nonfinite is not None and not all_finite(gradients):
            self._skip_or_raise(work, gradients)
            return
        scale = 1.0 if self.max_grad_norm is None else clipping(gradients, self.max_grad_norm)
        for number, moving in enumerate(work):
            if moving.slots:
                self._step_group(number, moving, scale)

    def _moving(self, number: int) -> Moving:
        """Return the parameters of a group that have gradients."""
        parameters = self.param_groups[number]["params"]
        gradients = [p.grad for p in parameters]
        there = [i for i, g in enumerate(gradients) if g is not None]
        moving = pick(parameters, there)
        return Moving(
            pick(self._plans[number].slots, there),
            moving,
            local_parts(moving),
            pick(gradients, there),
        )

    def _skip_or_raise(self, work: list[Moving], gradients: Tensors) -> None:
        if self.nonfinite == "skip":
            self.skipped_steps += 1
            return
        names = [
            self._name(number, p) for number, moving in enumerate(work) for p in moving.parameters
        ]
        raise FloatingPointError(
            f"the gradient of parameter {', '.join(names[i] for i in nonfinite(gradients))} is not finite; nothing was "
            f"changed. A smaller lr or max_grad_norm may help; nonfinite='skip' leaves such steps out"
        )

    def _step_group(self, number: int, moving: Moving, scale: float) -> None:
        group = self.param_groups[number]
        plan = self._plans[number]
        (slots, parameters, x, gradients) = moving
        g = local_gradients(gradients, parameters)
        if scale != 1:
            g = list(torch._foreach_mul(g, scale))
        if group["maximize"]:
            g = list(torch._foreach_neg(g))
        if group["weight_decay"] and not group["decoupled"]:
            g = list(torch._foreach_add(g, x, alpha=float(group["weight_decay"])))
        stored = [
            {} if slot.fields == () else self._stored(slot, p, place)
            for slot, p, place in zip(slots, parameters, x, strict=True)
        ]
        plan.rate.lr = float(group["lr"])
        plan.set_momentum(group.get("momentum"))
        plan.sort(slots, parameters, x, stored, g)
        decays = bool(group["weight_decay"] and group["decoupled"])
        watch = (
            self._watch if self.watches and not decays else None
        )  # a kernel would take a decay for a move
        looked_at = plan.looked_at(watch) if watch and plan.rate.lr else set()
        tied = (slot.tied_to(each) for slot, each in zip(slots, stored, strict=True))
        watched = [i for i, each in enumerate(tied) if each and i not in looked_at]
        places = (pick(parameters, watched), pick(x, watched)) if self.watches else ([], [])
        for i, left in self._watch.moved(*places):
            slots[watched[i]].follow(
                places[1][i], left, stored[watched[i]], self._name(number, places[0][i])
            )
        if plan.rate.lr:
            if decays:
                shrink(1 - plan.rate(group["k"] + 1) * group["weight_decay"], slots, x, stored)
            plan.step(group["k"], x, stored, g, watch)
            group["k"] += 1
        self._watch.leave(*places)

    def _stored(self, slot: Slot, p: Tensor, x: Tensor) -> dict[str, Any]:
        """Return what is stored with a parameter whose local part is x, made from it at the first
        step.
        """
        stored: dict[str, Any] = self.state.get(p, {})
        if not stored and (stored := slot.start(p if is_distributed(p) else x)):
            self.state[p] = stored
        return stored

    # Checkpoints

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the state of an optimiser of the same class, with maps and parameters of
        the same kind.
        """
        restored: dict[Tensor, dict[str, Tensor]] = {}

        def look(_: Optimizer, incoming: dict[str, Any]) -> None:
            for plan, group, saved in zip(
                self._plans, self.param_groups, incoming["param_groups"], strict=False
            ):
                for what in ("method", "mirror"):
                    if saved.get(what) != (here := group[what]):
                        other = saved.get(what, "another optimiser")
                        raise ValueError(
                            f"this is a state of {other}, and cannot be loaded where {what} is {here}"
                        )
                _check_saved(saved)
                if group["settings"] and saved.get(
                    "settings"
                ):  # states of earlier versions have none
                    require_same(saved["settings"], group["settings"])
                for slot, p, number in zip(
                    plan.slots, group["params"], saved["params"], strict=False
                ):
                    if stored := incoming["state"].get(number):
                        restored[p] = slot.restored(stored, p)

        handle = self.register_load_state_dict_pre_hook(
            look
        )  # now, so that it comes after those of the user
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        self.state.update(restored)  # torch has cast what was stored to the type of the parameters
        # the parameters are what the state was saved with, or will be before the next step
        self._watch.forget()

    def __getstate__(self) -> dict[str, Any]:
        own = (
            "max_grad_norm",
            "nonfinite",
            "dual_dtype",
            "skipped_steps",
            "fused",
            "watches",
            "_method",
            "_plans",
            "_sharded",
        )
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._watch, self._name_in_graphs = Watch(), name_in_graphs(self)
        for group in self.param_groups:  # written before there was such an option
            for option, default in {
                **OF_GROUPS,
                "decoupled": False,
                "settings": None,
                "k": 0,
            }.items():
                group.setdefault(option, default)


def _check_saved(group: Group) -> None:
    """Raise unless the numbers of a group can be used; a schedule may have ended with lr = 0."""
    for name in ("lr", "weight_decay", "k"):
        number = group.get(name, 0)
        kinds = (int,) if name == "k" else (int, float, Tensor)
        if (
            not isinstance(number, kinds)
            or isinstance(number, bool)
            or not 0 <= float(number) < float("inf")
        ):
            raise ValueError(
                f"the state has {name} = {number!r}: it is damaged, or of another optimiser"
            )


def _check_numbers(group: Group) -> None:
    lr = group["lr"]
    weight_decay = group["weight_decay"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if not 0 < float(lr) < float("inf"):
        raise ValueError(f"lr must be positive and finite, got {float(lr)}")
    if not 0 <= weight_decay < float("inf"):
        raise ValueError(f"weight_decay must be ≥ 0 and finite, got {weight_decay}")
