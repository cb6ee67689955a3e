"""Dual-space preconditioning for networks: a map for every tensor, chosen by what the tensor is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Unpack, cast

from torch import Tensor

from mirrordescent import kernels, methods, zoo
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.mirrors.by_kind import ByKind, spectral_by_kind, unscaled
from mirrordescent.mirrors.layerwise import Layerwise
from mirrordescent.mirrors.norms import PNorm
from mirrordescent.mirrors.roles import Role, roles
from mirrordescent.mirrors.singular_values import SingularValues
from mirrordescent.optim.base import Group, MirrorOptimizer, Params
from mirrordescent.optim.geometry import Leaf, MirrorLike
from mirrordescent.optim.options import Decoupled, Options
from mirrordescent.optim.plan import Moving, Plan
from mirrordescent.optim.sharding import Gathered, is_distributed
from mirrordescent.optim.slot import Slot
from mirrordescent.schedules import OverRun, ScheduleLike

# of the geometry set by hand; a learned method brings its own
LEARNING_RATE = 3e-3
MOMENTUM = 0.95


class Preconditioned(MirrorOptimizer):
    """Dual-space preconditioning with momentum β. For k = 0, 1, …, with the gradient g at x:

    .. code-block:: none

        m⁺ = βm + (1 − β)g,    v = βm⁺ + (1 − β)g
        x⁺ = (1 − t_k w)x − t_k c s(v) ∇ψ*(v)                    t_k = lr·s(k)

    The map acts on momenta, not on weights, and the step is normalised: before the scale c, the
    entries of a step have the mean square 1 (:meth:`~mirrordescent.mirrors.MirrorMap.direction`).
    By default every tensor gets a map by what it is
    (:func:`~mirrordescent.mirrors.spectral_by_kind`): matrices and convolutions inside the network
    the polar factor, which commutes with rotations of a layer's inputs and outputs; the output
    layer, embeddings and vectors a sign. c falls with the fan-in, so that one lr serves all widths.
    A learned geometry is given by name:

    .. code-block:: none

        md.optim.Preconditioned(model.named_parameters(), mirror="network-spectral", steps=1000)

    Pass names, so that embeddings, gates, layers that normalise and the like are recognised; for
    grouped convolutions, norms without gains and embeddings with unusual names, pass
    ``roles=md.mirrors.roles_of(model)``. A mirror map of your own is used on every tensor.

    Tensors are stepped together where their maps are alike, and matrices in one call of a kernel if
    kernels have been compiled; ``fused=True`` compiles them. Under ``DistributedDataParallel``
    nothing changes. Under FSDP2 every process keeps its shard of the momentum, and momenta are
    gathered one tensor at a time, since a direction depends on the whole of it; all processes
    compute it, and each keeps its part.

    Args:
        params: see :class:`MirrorOptimizer`, which also has the arguments that are not listed here.
        lr: by default 3e-3, and 1 with a learned method, which brings its own scales.
        mirror: see :class:`MirrorOptimizer`; by default the geometry set by hand.
        steps: the length of the run, over which s(k) rises and falls
            (:class:`~mirrordescent.schedules.OverRun`). If it is not given, s = 1: use a scheduler
            of torch.
        momentum: β, by default 0.95.
        second_momentum: β₂, if the entries of directions are to be divided by the root of their
            second moments (:class:`~mirrordescent.methods.AdaptivePreconditioned`).
        lookahead: whether v looks one step ahead, as it does by default. A learned method has its
            own β, β₂ and v.
        roles: what the tensors are, by name.
        weight_decay: w, decoupled as in AdamW: it shrinks the weights, and the map does not see it.

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

    def __init__(
        self,
        params: Params,
        lr: float | Tensor | None = None,
        mirror: MirrorLike = None,
        *,
        steps: int | None = None,
        momentum: float | None = None,
        second_momentum: float | None = None,
        lookahead: bool | None = None,
        roles: Mapping[str, Role] | None = None,
        **options: Unpack[Options],
    ) -> None:
        given: list[Any] = [] if isinstance(params, Tensor) else list(params)
        self._roles = dict(roles or _roles(given))
        self._maps = dict[Any, MirrorMap]()
        learned = _learned(mirror)
        if options.get("t") is None:
            options["t"] = _over(steps, learned)
        elif steps is not None:
            raise ValueError(
                "give either steps, for a schedule over the run, or t, a schedule of your own"
            )
        named: dict[str, Any] = {
            "momentum": momentum,
            "second_momentum": second_momentum,
            "lookahead": lookahead,
        }
        chosen = {name: value for name, value in named.items() if value is not None}
        if learned is not None and chosen:
            raise ValueError(
                f"{mirror!r} was learned with a {' and '.join(chosen)} of its own: leave that out"
            )
        plain: Any = partial(methods.Preconditioned, normalised=True)
        kind: Any = plain if second_momentum is None else methods.AdaptivePreconditioned
        made = partial(kind, **{"momentum": MOMENTUM, **chosen})
        lr = (LEARNING_RATE if learned is None else 1.0) if lr is None else lr
        super().__init__(
            given or params,
            lr,
            spectral_by_kind() if mirror is None else mirror,
            method=made,
            **options,
        )

    def _prepare(self, group: Group) -> Plan:
        group["weight_decay"] = Decoupled(group["weight_decay"])
        return super()._prepare(group)

    def _map_of(self, leaf: Leaf, mirror: MirrorMap) -> MirrorMap:
        if not is_distributed(leaf.tensor) or all(
            each.is_replicate() for each in leaf.tensor.placements
        ):
            return self._whole_map_of(leaf, mirror)
        if isinstance(mirror, Layerwise):
            raise ValueError(
                f"parameter {leaf.called} is sharded: use a map by kinds of layers, or one for all tensors"
            )
        return Gathered(self._whole_map_of(leaf, mirror), leaf.tensor)

    def _whole_map_of(self, leaf: Leaf, mirror: MirrorMap) -> MirrorMap:
        if isinstance(mirror, Layerwise):
            return leaf.part(mirror)
        if not isinstance(mirror, ByKind):
            return mirror
        name = leaf.called.replace("_orig_mod.", "")
        role = self._roles.get(name) or self._roles.get(name.removeprefix("module."))
        if role is None:  # of a group that was added later, or of a tensor without a name
            role = next(iter(_roles([(leaf.called, leaf.tensor)]).values()))
            if known := next(iter(self._roles.values()), None):
                role = role._replace(depth=known.depth, normed=known.normed)
        key = (id(mirror), role)
        return self._maps.setdefault(key, mirror.of(role))

    def _step_group(self, number: int, moving: Moving, scale: float) -> None:
        foreach = self.param_groups[number]["foreach"]
        unwanted = self.fused is False or (self.fused is None and foreach is not None)
        with kernels.without() if unwanted else nullcontext():
            super()._step_group(number, moving, scale)

    def _uses_kernels(self, slot: Slot) -> bool:
        """Tell whether a kernel is used: for second moments, directions of matrices, and powers of
        entries.
        """
        mirror = unscaled(slot.mirror)
        parts = slot.mirror.modules()
        return (
            isinstance(slot.method, methods.AdaptivePreconditioned)
            or isinstance(mirror, PNorm)
            or any(isinstance(part, SingularValues) and part.products is not None for part in parts)
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_roles": self._roles, "_maps": self._maps}


def _learned(mirror: MirrorLike) -> methods.Preconditioned | None:
    entry = zoo.load(mirror) if isinstance(mirror, str | Path) else None
    return entry if isinstance(entry, methods.Preconditioned) else None


def _over(steps: int | None, learned: methods.Preconditioned | None) -> ScheduleLike:
    """Return a schedule over a run of so many steps, as it was learned, or a constant if their
    number is not known.
    """
    if steps is None:
        return 1.0
    return (
        learned.t.over(steps)
        if learned is not None and isinstance(learned.t, OverRun)
        else OverRun(steps)
    )


def _roles(params: list[Any]) -> dict[str, Role]:
    """Tell the roles of all parameters of all groups, by their names or their places."""
    groups = (
        [each["params"] for each in params] if params and isinstance(params[0], dict) else [params]
    )
    shapes: dict[str, tuple[int, ...]] = {}
    for number, group in enumerate(groups):
        members = [group] if isinstance(group, Tensor) else cast(list[Any], group)
        for i, each in enumerate(members):
            name, tensor = each if isinstance(each, tuple) else (f"{i} of group {number}", each)
            if isinstance(tensor, Tensor):
                shapes[name.replace("_orig_mod.", "")] = tuple(tensor.shape)
    return roles(shapes)
