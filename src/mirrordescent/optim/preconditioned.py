"""Dual-space preconditioning for networks: a map for every tensor, chosen by its role."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from torch import Tensor

from mirrordescent import methods
from mirrordescent._internal.user_warnings import warn_user
from mirrordescent.execution.parameters import GradientBatch, GroupExecutor
from mirrordescent.execution.sharding import Gathered, is_sharded
from mirrordescent.methods.base import GradientMethod
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.mirrors.by_kind import SPECTRAL_BY_KIND_VERSION, ByKind, spectral_by_kind
from mirrordescent.mirrors.layerwise import Layerwise
from mirrordescent.mirrors.roles import Role, roles as roles_by_shape
from mirrordescent.mirrors.start import Start, starts
from mirrordescent.optim.base import Construction, Group, MirrorOptimizer, Params, Request
from mirrordescent.optim.geometry import GroupGeometry, MirrorLike, NamedTensor, load_entry
from mirrordescent.optim.names import doubts_of_names, members_of, named_shapes
from mirrordescent.optim.options import REFUSED_BY_PRECONDITIONED, Decoupled, Options
from mirrordescent.optim.rate import LearningRate, factor_of, has_scheduler, show_rate
from mirrordescent.schedules import OverRun, Schedule, ScheduleLike

LEARNING_RATE = 3e-3
"""Default for the geometry set by hand; a learned method has its own scales."""

SMALL_LEARNING_RATE = 0.03
"""Learning rates below it are warned of with a learned method, whose default is 1."""

MOMENTUM = 0.95
"""Default for the geometry set by hand; a learned method has its own momentum."""


class Preconditioned(MirrorOptimizer):
    """Dual-space preconditioning with momentum β. For k = 0, 1, …, with the gradient g at x:

    .. code-block:: none

        m⁺ = βm + (1 − β)g,    v = βm⁺ + (1 − β)g
        x⁺ = (1 − t_k c w)x − t_k c s(v) ∇ψ*(v)                  t_k = lr·s(k)

    The map acts on momenta, not on weights, and the step is normalised: before the scale c, the
    entries of a step have mean square 1 (:meth:`~mirrordescent.mirrors.MirrorMap.direction`). By
    default the map of a tensor is chosen by its role
    (:func:`~mirrordescent.mirrors.spectral_by_kind`). Matrices and convolutions inside the network
    get the polar factor, which commutes with rotations of a layer's inputs and outputs; the output
    layer, embeddings and vectors get a sign. c falls with the fan-in, so that one lr serves all
    widths. A learned geometry is given by name:

    .. code-block:: none

        md.optim.Preconditioned(model.named_parameters(), mirror="network-spectral", steps=1000)

    :class:`SpectralDescent` is the same optimiser with the learned geometry by default, and takes
    the model. Here, roles are those of the names of the parameters (:func:`mirrors.roles`), by a
    rule that does not change between releases. Pass ``roles=md.mirrors.roles_of(model)`` to read
    them from the layers. A mirror map of your own is used on every tensor.

    Tensors with similar maps are stepped together. On a CPU, one call of a C kernel steps all
    matrices. Under ``DistributedDataParallel`` nothing changes. Under FSDP2 every process keeps its
    shard of the momentum. A direction depends on the whole tensor, so momenta are gathered one
    tensor at a time. One process computes the direction, and each keeps its part.

    Args:
        params: See :class:`MirrorOptimizer`, which also explains the arguments not listed here.
        lr: Learning rate; by default 3e-3, and 1 with a learned method, which has its own scales.
        mirror: See :class:`MirrorOptimizer`; by default the geometry set by hand.
        steps: Length of the run, over which s(k) rises and falls
            (:class:`~mirrordescent.schedules.OverRun`). If it is not given, s = 1: use a scheduler
            of torch.
        momentum: β, by default 0.95.
        second_momentum: β₂ of second moments. If it is given, directions are divided by the root of
            their second moments (:class:`~mirrordescent.methods.AdaptivePreconditioned`).
        damping: η, by which steps along noisy gradients are shortened
            (:class:`~mirrordescent.methods.DampedPreconditioned`); needs ``second_momentum``.
        lookahead: Whether v looks one step ahead, as it does by default. A learned method has its
            own β, β₂, η and v.
        roles: Roles of the tensors, by name.
        weight_decay: w, decoupled and in the units of AdamW: where AdamW takes a step of size lr
            and shrinks the weights by lr·w, this takes a step of size t_k c and shrinks them by
            t_k c w. The map does not see it.

    >>> import torch
    >>> from mirrordescent import optim
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> optimizer = optim.Preconditioned(model.named_parameters(), lr=0.03, steps=100)
    >>> inputs = torch.eye(3)
    >>> for _ in range(100):
    ...     optimizer.zero_grad()
    ...     loss = (model(inputs) - 1).square().mean()
    ...     loss.backward()
    ...     optimizer.step()
    >>> bool(loss < 1e-2)
    True
    """

    _refused = REFUSED_BY_PRECONDITIONED
    _steps: int | None = None
    _default_map: MirrorMap | None = None
    _doubts: str | None = None
    _roles_used = False
    _has_own_schedule = False
    _reported_scheduler = False
    _reported_end = False

    def __init__(
        self,
        params: Params,
        lr: float | Tensor | None = None,
        mirror: MirrorLike = None,
        *,
        steps: int | None = None,
        momentum: float | None = None,
        second_momentum: float | None = None,
        damping: float | None = None,
        lookahead: bool | None = None,
        roles: Mapping[str, Role] | None = None,
        **options: Unpack[Options],
    ) -> None:
        # Parameters may come from an iterator. A single tensor is refused by torch.
        listed: list[Any] = [] if isinstance(params, Tensor) else list(params)
        self._roles = self._find_roles(listed, roles)
        self._tensors = {member.name: member.tensor for member in members_of(listed)}
        self._starts: dict[str, Start] = {}
        self._maps: dict[Any, MirrorMap] = {}
        learned = self._learned_method(mirror)
        self._steps = steps
        self._default_map = spectral_by_kind() if mirror is None else None
        if options.get("t") is None:
            options["t"] = self._own_schedule(learned)
            self._has_own_schedule = isinstance(options["t"], Schedule)
        elif steps is not None:
            raise ValueError(
                "give either steps, for a schedule over the run, or t, a schedule of your own"
            )
        settings: dict[str, Any] = {
            "momentum": momentum,
            "second_momentum": second_momentum,
            "damping": damping,
            "lookahead": lookahead,
        }
        settings = {name: value for name, value in settings.items() if value is not None}
        if learned is not None and settings:
            raise ValueError(
                f"{mirror!r} has a learned {' and '.join(settings)} of its own: omit it here"
            )
        make: Any = partial(methods.Preconditioned, normalised=True)
        if second_momentum is not None:
            make = methods.AdaptivePreconditioned
        if damping is not None:
            if second_momentum is None:
                raise ValueError("damping needs second_momentum; give both or neither")
            make = methods.DampedPreconditioned
        if lr is None:
            lr = LEARNING_RATE if learned is None else 1.0
        super().__init__(
            listed or params,
            lr,
            mirror if self._default_map is None else self._default_map,
            method=partial(make, **{"momentum": MOMENTUM, **settings}),
            **options,
        )
        self._tensors = {}
        # Arguments that torch refuses are reported first.
        if self._roles_used and self._doubts:
            warn_user(self._doubts)

    def _find_roles(self, params: list[Any], given: Mapping[str, Role] | None) -> dict[str, Role]:
        """Return the roles of all parameters by name, or by position if they have no names."""
        if given:
            return dict(given)
        named = named_shapes(params)
        found = roles_by_shape(named.shapes)
        self._doubts = doubts_of_names(named, found)
        return found

    def _learned_method(self, mirror: MirrorLike) -> methods.Preconditioned | None:
        """Return a learned method of this class, given itself or as an entry of the zoo."""
        if isinstance(mirror, methods.Preconditioned):
            return mirror
        if not isinstance(mirror, str | Path):
            return None
        entry = load_entry(mirror, self._entries)
        return entry if isinstance(entry, methods.Preconditioned) else None

    def _construct_executor(self, number: int, group: Group) -> tuple[GroupExecutor, LearningRate]:
        group["weight_decay"] = Decoupled(group["weight_decay"])
        group.setdefault("shown", None)
        self._warn_of_small_rate(group)
        return super()._construct_executor(number, group)

    def _warn_of_small_rate(self, group: Group) -> None:
        """Warn if lr is a learning rate of AdamW, and the scales of steps are those of an entry.

        A method that is given as an object, as in experiments that tune lr, is not warned of.
        """
        mirror = group["mirror"]
        lr = factor_of(group)
        if lr >= SMALL_LEARNING_RATE or not isinstance(mirror, str | Path):
            return
        if self._learned_method(mirror) is None:
            return
        warn_user(
            f"lr = {lr:g} makes the learned steps of {Path(mirror).name} {1 / lr:.0f} times "
            f"shorter. lr is a factor here, 1 by default: learning rates of AdamW or Muon do not "
            f"apply. Omit lr, or try 0.3 or 3"
        )

    def _decay_sizes(self, batch: GradientBatch) -> list[float]:
        return [update.mirror.direction_size for update in batch.updates]

    def _geometry_version(self, geometry: GroupGeometry) -> int | None:
        return SPECTRAL_BY_KIND_VERSION if geometry.mirror is self._default_map else None

    def _schedule_with(self, mirror: MirrorLike, request: Request) -> ScheduleLike | None:
        from_defaults = (
            request.t is self.defaults["t"] and request.mirror is self.defaults["mirror"]
        )
        if not self._has_own_schedule or not from_defaults:
            return request.t
        return self._own_schedule(self._learned_method(mirror))

    def _map_of(self, named: NamedTensor, mirror: MirrorMap) -> MirrorMap:
        if not is_sharded(named.tensor):
            return self._map_of_whole(named, mirror)
        if isinstance(mirror, Layerwise):
            raise ValueError(
                f"parameter {named.name} is sharded: use a map by kinds of layers, or one map for "
                f"all tensors"
            )
        return Gathered(self._map_of_whole(named, mirror), named.tensor)

    def _map_of_whole(self, named: NamedTensor, mirror: MirrorMap) -> MirrorMap:
        """Return the map of the whole tensor."""
        if isinstance(mirror, Layerwise):
            return named.map_from(mirror)
        if not isinstance(mirror, ByKind):
            return mirror
        self._roles_used = True
        role = self._role_of(named)
        start = self._start_of(named) if mirror.needs_start else None
        key = (id(mirror), role, start)
        if key not in self._maps:
            self._maps[key] = mirror.of(role, start)
        return self._maps[key]

    def _start_of(self, named: NamedTensor) -> Start:
        """Return the features of a tensor at the start of the run."""
        if not self._starts:
            roles = {name: self._role_by_name(name, each) for name, each in self._tensors.items()}
            self._starts = starts(self._tensors, roles)
        name = named.name.replace("_orig_mod.", "")
        if name not in self._starts:  # a group that was added later
            own = starts({name: named.tensor}, {name: self._role_of(named)})[name]
            for known in self._starts.values():
                own = own._replace(
                    network_scale=known.network_scale, network_peak=known.network_peak
                )
                break
            self._starts[name] = own
        return self._starts[name]

    def _own_schedule(self, learned: methods.Preconditioned | None) -> ScheduleLike:
        """Return the schedule over the run, or 1 if its length is not given."""
        if self._steps is None:
            return 1.0
        return schedule_of(learned).over(self._steps)

    def _set_rate(self, number: int) -> None:
        group = self.param_groups[number]
        self._rates[number].lr = factor_of(group)
        if self._has_own_schedule:
            self._warn_of_scheduler(group)
            self._warn_of_end(group)

    def _step_group(self, number: int, batch: GradientBatch, scale: float) -> None:
        super()._step_group(number, batch, scale)
        group = self.param_groups[number]
        rate = self._rates[number]
        show_rate(group, rate(max(1, group["k"])), rate.lr)

    def _warn_of_scheduler(self, group: Group) -> None:
        """Warn once if a scheduler of torch changes lr beside the schedule of this optimiser."""
        if self._reported_scheduler or not has_scheduler(group):
            return
        # Distributed checkpoints set lr to 0 for a moment.
        if float(group["lr"]) in (0.0, float(group["initial_lr"])):
            return
        self._reported_scheduler = True
        warn_user(
            f"a learning-rate scheduler multiplies the step sizes of {type(self).__name__}, which "
            f"has a schedule of its own. Remove the scheduler (lr_scheduler_type='constant' in the "
            f"Trainer of transformers), or leave the schedule to it: omit steps and pass t=1.0"
        )

    def _last_step(self, group: Group) -> int | None:
        """Return the number of the last step that was announced."""
        return self._steps

    def _warn_of_end(self, group: Group) -> None:
        """Warn once if a run goes on after the last step that was announced."""
        last = self._last_step(group)
        if self._reported_end or last is None or group["k"] < last:
            return
        self._reported_end = True
        warn_user(
            f"{type(self).__name__} takes step {group['k'] + 1} of a run of {last} steps. Step "
            f"sizes were small at step {last} and stay small. Give the right number of optimiser "
            f"steps (batches of all epochs over accumulated batches)"
        )

    def _for_run(self, method: GradientMethod[Any]) -> GradientMethod[Any]:
        if self._steps is not None and isinstance(method, methods.DampedPreconditioned):
            return method.over(self._steps)
        return method

    def _describe_group(
        self, group: Group, method: GradientMethod[Any], geometry: GroupGeometry
    ) -> None:
        super()._describe_group(group, method, geometry)
        number = next(
            i for i, each in enumerate(self.param_groups) if each["params"] is group["params"]
        )
        names = [name.replace("_orig_mod.", "") for name in self._names(number)]
        # Plain lists: the steps of a continued run depend on the weights at its start.
        group["starts"] = [list(self._starts.get(name, ())) for name in names]

    def _construction_for(self, number: int, saved: Group) -> Construction:
        recorded = saved.get("starts") or []
        names = [name.replace("_orig_mod.", "") for name in self._names(number)]
        before = dict(self._starts)
        for name, numbers in zip(names, recorded, strict=False):
            if numbers:
                self._starts[name] = Start(*numbers)
        construction = super()._construction_for(number, saved)
        if self._starts != before and construction.executor is self._executors[number]:
            return self._construct_again(number, self._requests[number].mirror)
        return construction

    def _role_of(self, named: NamedTensor) -> Role:
        return self._role_by_name(named.name, named.tensor)

    def _role_by_name(self, name: str, tensor: Tensor) -> Role:
        given = name
        name = name.replace("_orig_mod.", "")
        role = self._roles.get(name) or self._roles.get(name.removeprefix("module."))
        if role is not None:
            return role
        # A group that was added later, or a tensor without a name: depth and normalisation are
        # those of the network.
        role = next(iter(roles_by_shape({given: tuple(tensor.shape)}).values()))
        for known in self._roles.values():
            return role._replace(depth=known.depth, normed=known.normed)
        return role

    def __getstate__(self) -> dict[str, Any]:
        names = ("_roles", "_starts", "_maps", "_steps", "_default_map", "_has_own_schedule")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in names}}


def schedule_of(learned: methods.Preconditioned | None) -> OverRun:
    """Return the schedule of a learned method, or the default."""
    if learned is not None and isinstance(learned.t, OverRun):
        return learned.t
    return OverRun(1)
