"""The base class of the optimisers: parameter groups, steps, checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypeAlias, Unpack, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mirrordescent import kernels
from mirrordescent._internal.deprecation import OUTLOOK, warn_deprecated
from mirrordescent.execution.changes import ChangeTracker
from mirrordescent.execution.parameters import GradientBatch, GroupExecutor, updates_for
from mirrordescent.execution.sharding import (
    is_distributed,
    local,
    local_gradients,
    local_parts,
)
from mirrordescent.execution.tensors import Tensors, select
from mirrordescent.methods.base import GradientMethod
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.optim.geometry import (
    GroupGeometry,
    MakeMethod,
    MirrorLike,
    NamedTensor,
    describe_settings,
    have_same_settings,
    map_name,
    other_versions,
    require_same_settings,
    resolve_geometry,
    saved_version_of,
)
from mirrordescent.optim.gradients import all_finite, clipping_factor, nonfinite_indices
from mirrordescent.optim.options import (
    GROUP_DEFAULTS,
    REFUSED,
    Decoupled,
    Options,
    checked_options,
)
from mirrordescent.optim.rate import LearningRate
from mirrordescent.optim.traced import register_optimizer, step_in_graph
from mirrordescent.schedules import ScheduleLike
from mirrordescent.zoo.versions import split_version

Params: TypeAlias = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]
Group: TypeAlias = dict[str, Any]

_layout = attrgetter("layout")
_STRIDED = {torch.strided}


class Request(NamedTuple):
    """The map and the schedule that a group was constructed with."""

    mirror: MirrorLike
    t: ScheduleLike | None


class Construction(NamedTuple):
    """A group as plain data, its execution, and its step sizes."""

    group: Group
    executor: GroupExecutor
    rate: LearningRate


class MirrorOptimizer(Optimizer):
    """A method of :mod:`mirrordescent.methods` on the parameters of a network, with t_k = lr·s(k).

    The method is applied to every tensor by itself. The parameters hold the point x of the next
    gradient; after the last step they are the answer of the method. Other fields of the method's
    state are in ``state``. They are initialised from the parameters at the first step.
    ``param_groups`` has the number k of steps taken. The map is not part of the state: give the
    same map again when a run is continued, like the model. For an entry of the zoo, the state has
    its name and version: the optimiser loads that version if it was constructed with a name without
    a version, even if a newer one was released since.

    If a parameter was changed since the last step (``p.data.copy_``, ``model.load_state_dict``, a
    swap with averaged weights), the method continues from its present value: its dual restarts
    there, at ∇ψ(x), while k goes on. For AMD and ASMD the dual sequence z or y restarts, so the
    momentum starts afresh. To detect changes, the bits of every parameter with a stored dual are
    summed before and after a step: by kernels on the way, otherwise in two passes over memory.
    Small parameters, and parameters that were changed before, are copied instead; with an
    elementwise map only their changed entries restart. If only the optimiser changes the
    parameters, ``optimizer.track_changes = False`` saves this work.

    A group may have its own ``lr``, ``mirror``, ``t``, ``weight_decay``, ``maximize`` and
    ``foreach``. While its lr is 0 it does not move, and its steps are not counted.

    Args:
        params: Tensors, named parameters (``model.named_parameters()``, which a layer-wise map
            needs), or groups.
        lr: Learning rate; learning-rate schedulers of torch change it.
        mirror: A :class:`~mirrordescent.mirrors.MirrorMap`, applied to every parameter as to a
            batch of one; a layer-wise map with a map for each parameter; a learned method with its
            map; the name or file of an entry of the zoo; None for the Euclidean map.
        method: Class or function that returns a :class:`~mirrordescent.methods.GradientMethod` for
            a map and step sizes t, such as ``methods.SMD``. If ``mirror`` names a learned method of
            the same class, or of a class that extends it, that method is used instead, with all its
            settings. Without ``method``, the entry may be any method.
        t: s of t_k = lr·s(k), a schedule or a function of k ≥ 1. By default 1, or the schedule of
            the zoo's entry.
        weight_decay: Weight c of a penalty ½c‖x‖² on f, which adds c·x to the gradient, for every
            map; 0 by default. :class:`Decoupled` (c) shrinks the parameters instead, as AdamW does.
        maximize: Whether to ascend instead of descend.
        foreach: Whether to step in place on all tensors at once. By default where possible: for
            maps with ∇ψ(x) = d·x.
        fused: Whether to use C kernels. There are kernels for CPUs: for MD, SMD and AMD with
            multipliers that repeat along a tensor or with one spline per tensor, and for matrices,
            momenta and second moments of :class:`Preconditioned`. Results are the same up to
            rounding. By default kernels are used where possible if ``foreach`` is not given. True
            requires them: an installation with compiled kernels, and a parameter that they can be
            used on. False uses torch only.
        max_grad_norm: Largest norm of the gradients of all groups together; larger gradients are
            scaled down.
        nonfinite: Reaction to a gradient with a NaN or an infinity, before anything is changed:
            ``"raise"``, the default, or ``"skip"`` the whole step and count it in
            ``skipped_steps``. None skips the check, which saves a pass over the gradients, and on a
            GPU a synchronisation.
        dual_dtype: Type of the computation and of the stored state, such as ``torch.float32`` for
            parameters in bfloat16. The parameters are then rounded values of the stored state, so
            that small steps are not lost. Besides the dual, x is stored, unless every step computes
            it from the dual alone (SMD). If it is the parameters' own type, SMD still stores the
            dual.

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

    _refused: ClassVar[Mapping[str, str]] = REFUSED

    track_changes: bool
    """Whether parameters that others have changed between two steps are detected."""

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        mirror: MirrorLike = None,
        *,
        method: MakeMethod | None = None,
        **options: Unpack[Options],
    ) -> None:
        chosen = checked_options(options, self._refused)
        self.max_grad_norm = chosen.pop("max_grad_norm")
        self.nonfinite = chosen.pop("nonfinite")
        self.dual_dtype = chosen.pop("dual_dtype")
        self.fused = chosen.pop("fused")
        if self.fused:
            kernels.library()  # raises an error if there are no compiled kernels
        self.skipped_steps = 0
        self.track_changes = True
        self._method = method
        self._tracker = ChangeTracker()
        self._executors: list[GroupExecutor] = []
        self._rates: list[LearningRate] = []
        self._requests: list[Request] = []
        self._sharded = False
        self._name_in_graphs = register_optimizer(self)
        super().__init__(params, {"lr": lr, "mirror": mirror, **chosen})
        if self.fused and not any(executor.uses_kernels for executor in self._executors):
            raise ValueError(
                "fused=True, but no parameter can be stepped by a kernel: kernels are for MD, SMD "
                "and AMD on a CPU, with multipliers that repeat along a tensor or with a spline, "
                "and for matrices and powers in Preconditioned. fused=None uses kernels where "
                "possible"
            )

    @property
    def watches(self) -> bool:
        """Old name of ``track_changes``."""
        warn_deprecated(f"watches was renamed to track_changes; {OUTLOOK}")
        return self.track_changes

    @watches.setter
    def watches(self, value: bool) -> None:
        warn_deprecated(f"watches was renamed to track_changes; {OUTLOOK}")
        self.track_changes = value

    @cached_property
    def _entries(self) -> dict[str, nn.Module]:
        """Entries of the zoo that were loaded for this optimiser, by name and device."""
        return {}

    # Parameter groups

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters, with the group's own settings where it has any."""
        super().add_param_group(dict(param_group))
        group = self.param_groups[-1]
        request = Request(group["mirror"], group["t"])
        try:
            executor, rate = self._construct_executor(len(self.param_groups) - 1, group)
        except Exception:
            self.param_groups.pop()
            raise
        self._executors.append(executor)
        self._rates.append(rate)
        self._requests.append(request)
        self._sharded |= any(map(is_distributed, group["params"]))
        if executor.momentum is not None and "momentum" not in param_group:
            group["momentum"] = executor.momentum
        self._set_default_momentum()

    def _set_default_momentum(self) -> None:
        """Give the defaults a momentum if all groups have one, so that schedulers cycle it."""
        self.defaults.pop("momentum", None)
        momenta = [each.momentum for each in self._executors]
        if None not in momenta:
            self.defaults["momentum"] = momenta[0]

    def _construct_executor(self, number: int, group: Group) -> tuple[GroupExecutor, LearningRate]:
        """Check a group, choose the method and the execution of every parameter.

        Afterwards the group contains only plain data, which checkpoints can store.

        Args:
            number: Number of the group.
            group: Options and parameters of the group.
        """
        _check_numbers(group)
        group["decoupled"] = isinstance(group["weight_decay"], Decoupled)
        group["weight_decay"] = float(group["weight_decay"])
        device = group["params"][0].device
        geometry = resolve_geometry(group["mirror"], group.pop("t"), device, self._entries)
        rate = LearningRate(geometry.schedule)
        described: GradientMethod[Any] | None = None
        methods: list[GradientMethod[Any]] = []
        maps: list[MirrorMap] = []
        tensors: Tensors = []
        shared: dict[Any, GradientMethod[Any]] = {}
        for name, p in zip(self._names(number), group["params"], strict=True):
            _check_parameter(name, p)
            named = NamedTensor(name, p, "param_names" in group)
            mirror = self._map_of(named, geometry.mirror)
            x = local(p.detach())
            key = (id(mirror), x.dtype, x.device, x.shape)
            if key not in shared:
                method = named.method(self._method, geometry, mirror, rate)
                described = described or method
                shared[key] = self._for_run(method)
            methods.append(shared[key])
            maps.append(mirror)
            tensors.append(x)
            if shared[key].maps_points:
                mirror.primal_domain.require(
                    x[None], f"parameter {name}", str(mirror), closed=mirror.defined_on_boundary
                )
        executor = updates_for(
            methods,
            maps,
            tensors,
            foreach=group["foreach"],
            fused=self.fused,
            dual_dtype=self.dual_dtype,
        )
        self._describe_group(group, described or methods[0], geometry)
        return executor, rate

    def _describe_group(
        self, group: Group, method: GradientMethod[Any], geometry: GroupGeometry
    ) -> None:
        """Store the settings that a checkpoint must share with this optimiser."""
        named = method if type(self) is MirrorOptimizer else self
        group["method"] = type(named).__name__
        group["mirror"] = map_name(geometry.mirror)
        group["entry"] = geometry.entry
        group["geometry_version"] = self._geometry_version(geometry)
        group["settings"] = describe_settings(method, geometry.mirror)
        group["k"] = 0

    def _geometry_version(self, geometry: GroupGeometry) -> int | None:
        """Return the version of the default geometry, or None for a geometry of the user."""
        return None

    def _schedule_with(self, mirror: MirrorLike, request: Request) -> ScheduleLike | None:
        """Return the schedule of a group for another version of its entry."""
        return request.t

    def _for_run(self, method: GradientMethod[Any]) -> GradientMethod[Any]:
        """Return a method with the settings for the length of this run."""
        return method

    def _map_of(self, named: NamedTensor, mirror: MirrorMap) -> MirrorMap:
        """Return the map of one parameter."""
        return named.map_from(mirror)

    def _name(self, number: int, p: Tensor) -> str:
        names = zip(self._names(number), self.param_groups[number]["params"], strict=True)
        return next(name for name, parameter in names if parameter is p)

    def _names(self, number: int) -> list[str]:
        group = self.param_groups[number]
        names = group.get("param_names")
        return names or [f"{i} of group {number}" for i in range(len(group["params"]))]

    # Steps

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step along the gradients.

        Inside a function that is compiled by torch, a step is one operation of its graph. With a
        closure, or with sharded parameters, a step breaks the graph.

        Args:
            closure: Function that computes the gradients and returns the loss.
        """
        if torch.compiler.is_compiling() and closure is None and not self._sharded:
            parameters = [p for group in self.param_groups for p in group["params"]]
            indices = [i for i, p in enumerate(parameters) if p.grad is not None]
            if indices:
                x = [parameters[i] for i in indices]
                step_in_graph(x, [p.grad for p in x], indices, self._name_in_graphs)
            return None
        return self._step(closure)

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _step(self, closure: Callable[[], float] | None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        batches: list[GradientBatch] = []
        for executor, group in zip(self._executors, self.param_groups, strict=True):
            gradients = [p.grad for p in group["params"]]
            indices = [i for i, g in enumerate(gradients) if g is not None]
            parameters = select(group["params"], indices)
            updates = select(executor.updates, indices)
            x = local_parts(parameters)
            batches.append(GradientBatch(updates, parameters, x, select(gradients, indices)))
        self._step_groups(batches)
        return loss

    def step_on(self, indices: Sequence[int], x: Tensors, g: Tensors) -> None:
        """Step some parameters along given gradients, for steps in compiled graphs.

        Args:
            indices: Indices of the parameters among those of all groups.
            x: Memory of the parameters.
            g: Gradients.
        """
        position = {index: i for i, index in enumerate(indices)}
        batches: list[GradientBatch] = []
        first = 0
        for executor, group in zip(self._executors, self.param_groups, strict=True):
            count = len(group["params"])
            present = [i for i in range(count) if first + i in position]
            positions = [position[first + i] for i in present]
            batch = GradientBatch(
                select(executor.updates, present),
                select(group["params"], present),
                [x[i] for i in positions],
                [g[i] for i in positions],
            )
            batches.append(batch)
            first += count
        self._step_groups(batches)

    def _step_groups(self, batches: list[GradientBatch]) -> None:
        """Step every group, after a check of all gradients."""
        gradients = [g for batch in batches for g in batch.gradients]
        if set(map(_layout, gradients)) - _STRIDED:
            raise RuntimeError(
                f"{type(self).__name__} needs dense gradients, got sparse ones: construct the "
                f"layer with sparse=False"
            )
        if self.nonfinite is not None and not all_finite(gradients):
            self._skip_or_raise(batches, gradients)
            return
        scale = 1.0
        if self.max_grad_norm is not None:
            scale = clipping_factor(gradients, self.max_grad_norm)
        for number, batch in enumerate(batches):
            if batch.updates:
                self._step_group(number, batch, scale)

    def _skip_or_raise(self, batches: list[GradientBatch], gradients: Tensors) -> None:
        if self.nonfinite == "skip":
            self.skipped_steps += 1
            return
        names = [
            self._name(number, p) for number, batch in enumerate(batches) for p in batch.parameters
        ]
        wrong = ", ".join(names[i] for i in nonfinite_indices(gradients))
        raise FloatingPointError(
            f"the gradient of parameter {wrong} is not finite; nothing was changed. "
            f"Use a smaller lr or max_grad_norm, or skip such steps with nonfinite='skip'"
        )

    def _step_group(self, number: int, batch: GradientBatch, scale: float) -> None:
        group = self.param_groups[number]
        rate = self._rates[number]
        executor = self._executors[number]
        weight_decay = group["weight_decay"]
        g = local_gradients(batch.gradients, batch.parameters)
        if scale != 1:
            g = list(torch._foreach_mul(g, scale))
        if group["maximize"]:
            g = list(torch._foreach_neg(g))
        if weight_decay and not group["decoupled"]:
            g = list(torch._foreach_add(g, batch.x, alpha=float(weight_decay)))
        self._set_rate(number)
        if group.get("momentum") is not None:
            executor.set_momentum(group["momentum"])
        moves = rate.lr != 0
        shrink = None
        if weight_decay and group["decoupled"]:
            decay = rate(group["k"] + 1) * weight_decay
            shrink = [1 - decay * size for size in self._decay_sizes(batch)]
        self._execute(number, batch._replace(gradients=g), moves, shrink)
        if moves:
            group["k"] += 1

    def _set_rate(self, number: int) -> None:
        """Set the factor of a group's step sizes for the next step."""
        self._rates[number].lr = float(self.param_groups[number]["lr"])

    def _execute(
        self, number: int, batch: GradientBatch, moves: bool, shrink: list[float] | None
    ) -> None:
        """Step the parameters of a group in place.

        Args:
            number: Number of the group.
            batch: Parameters, and gradients with everything that is added to them.
            moves: Whether the parameters are stepped. If not, only changes are handled.
            shrink: Factor of a decoupled weight decay of each parameter; None if there is none.
        """
        self._executors[number].step(
            batch,
            self.state,
            self.param_groups[number]["k"],
            tracker=self._tracker if self.track_changes else None,
            moves=moves,
            shrink=shrink,
            name_of=partial(self._name, number),
        )

    def _decay_sizes(self, batch: GradientBatch) -> list[float]:
        """Return the size of each parameter's steps, by which a decoupled decay is multiplied."""
        return [1.0] * len(batch.updates)

    # Checkpoints

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the state of an optimiser of the same class.

        The maps and the parameters must be of the same kinds as those of the saved optimiser. If
        the state was saved with another version of the same entry of the zoo, that version is
        loaded.

        Raises:
            ValueError: The state is of another optimiser, or of a version of an entry that is not
                installed.
        """
        restored: dict[Tensor, dict[str, Any]] = {}
        constructions: list[Construction] = []

        def check_and_restore(_: Optimizer, incoming: dict[str, Any]) -> None:
            groups = zip(self.param_groups, incoming["param_groups"], strict=False)
            for number, (_group, saved) in enumerate(groups):
                group, executor, _rate = construction = self._construction_for(number, saved)
                constructions.append(construction)
                _check_saved_group(saved, group)
                updates = zip(executor.updates, group["params"], saved["params"], strict=False)
                for update, p, index in updates:
                    stored = incoming["state"].get(index)
                    if stored:
                        restored[p] = update.restored(stored, p)

        # The hook is registered last, so that hooks of the user have been run before it.
        handle = self.register_load_state_dict_pre_hook(check_and_restore)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        # torch has cast the stored tensors to the type of the parameters: replace them.
        self.state.update(restored)
        self._executors = [construction.executor for construction in constructions]
        self._rates = [construction.rate for construction in constructions]
        self._set_default_momentum()
        # The parameters have the values they were saved with, or will have before the next step.
        self._tracker.clear()
        # torch has replaced the groups by the saved ones, which may lack what is recorded now.
        for group, construction in zip(self.param_groups, constructions, strict=True):
            _warn_of_other_geometry(
                group["geometry_version"], construction.group["geometry_version"]
            )
            for name in ("entry", "geometry_version", "settings"):
                group[name] = construction.group[name]

    def _construction_for(self, number: int, saved: Group) -> Construction:
        """Return a group with the version of its entry that a state was saved with."""
        group = self.param_groups[number]
        present = Construction(group, self._executors[number], self._rates[number])
        request = self._requests[number]
        if group["entry"] is None:
            return present
        entry = saved.get("entry")
        if entry is not None:
            other_version = split_version(entry)[0] == split_version(group["entry"])[0]
            if entry == group["entry"] or not other_version:
                return present
            mirror = saved_version_of(request.mirror, group["entry"], entry)
            return self._construct_again(number, mirror)
        if not have_same_settings(saved.get("settings"), group["settings"]):
            for mirror in other_versions(request.mirror):
                # States of earlier versions of the library name no entry, but describe it.
                construction = self._construct_again(number, mirror)
                if have_same_settings(saved["settings"], construction.group["settings"]):
                    return construction
        return present

    def _construct_again(self, number: int, mirror: MirrorLike) -> Construction:
        """Construct a group with another version of its entry."""
        group = dict(self.param_groups[number])
        group["mirror"] = mirror
        group["t"] = self._schedule_with(mirror, self._requests[number])
        if group["decoupled"]:
            group["weight_decay"] = Decoupled(group["weight_decay"])
        executor, rate = self._construct_executor(number, group)
        return Construction(group, executor, rate)

    def __getstate__(self) -> dict[str, Any]:
        names = (
            "max_grad_norm",
            "nonfinite",
            "dual_dtype",
            "skipped_steps",
            "fused",
            "track_changes",
            "_method",
            "_executors",
            "_rates",
            "_requests",
            "_sharded",
        )
        return {**super().__getstate__(), **{name: getattr(self, name) for name in names}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._tracker = ChangeTracker()
        self._name_in_graphs = register_optimizer(self)
        # Optimisers and states of earlier versions lack some fields.
        if "_requests" not in self.__dict__:
            self._requests = [Request(None, None) for _ in self.param_groups]
        defaults = {
            **GROUP_DEFAULTS,
            "decoupled": False,
            "entry": None,
            "geometry_version": None,
            "settings": None,
            "k": 0,
        }
        for group in self.param_groups:
            for option, default in defaults.items():
                group.setdefault(option, default)
        if "_executors" in state and self.fused is None and not kernels.available():
            # A copy on another machine, which lacks the kernels that were chosen by default.
            for executor in self._executors:
                executor.disable_kernels()


def _check_saved_group(saved: Group, group: Group) -> None:
    """Raise ValueError unless the settings of a saved group agree with those of a group."""
    for name in ("method", "mirror"):
        if saved.get(name) != group[name]:
            other = saved.get(name, "another optimiser")
            raise ValueError(
                f"this is a state of {other}, and cannot be loaded where {name} is {group[name]}"
            )
    _check_saved_numbers(saved)
    if group["settings"] and saved.get("settings"):  # states of earlier versions have none
        require_same_settings(saved["settings"], group["settings"])


def _warn_of_other_geometry(saved: int | None, present: int | None) -> None:
    """Warn if a state was not saved with the present version of the default geometry."""
    if present is None or saved == present:
        return
    version = "an unrecorded version" if saved is None else f"version {saved}"
    warnings.warn(
        f"this state was saved with {version} of the default geometry, mirrors.spectral_by_kind. "
        f"The training continues with version {present}, whose steps may differ. To continue as "
        f"before, use the version of mirrordescent that saved the state",
        stacklevel=3,
    )


def _check_saved_numbers(group: Group) -> None:
    """Raise ValueError unless the numbers of a group are finite and ≥ 0; lr may have become 0."""
    for name in ("lr", "weight_decay", "k"):
        number = group.get(name, 0)
        types = (int,) if name == "k" else (int, float, Tensor)
        valid = isinstance(number, types) and not isinstance(number, bool)
        if not valid or not 0 <= float(number) < float("inf"):
            raise ValueError(
                f"the state has {name} = {number!r}: it is damaged, or of another optimiser"
            )


def _check_numbers(group: Group) -> None:
    """Raise ValueError unless lr and weight_decay of a new group are valid."""
    lr = group["lr"]
    weight_decay = group["weight_decay"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if not 0 < float(lr) < float("inf"):
        raise ValueError(f"lr must be positive and finite, got {float(lr)}")
    if not 0 <= weight_decay < float("inf"):
        raise ValueError(f"weight_decay must be ≥ 0 and finite, got {weight_decay}")


def _check_parameter(name: str, p: Tensor) -> None:
    """Raise ValueError unless a parameter has real numbers."""
    if not p.is_floating_point():
        raise ValueError(
            f"parameter {name} must have a floating-point type for a mirror map, got {p.dtype}"
        )
    if p.is_meta:
        raise ValueError(
            f"parameter {name} is on the meta device and has no values: call model.to_empty first"
        )
