"""Spectral descent: the optimiser for a whole model, with learned step sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from mirrordescent import methods
from mirrordescent.execution.matrices import is_approximated, unscaled
from mirrordescent.execution.parameters import GradientBatch
from mirrordescent.execution.sharding import (
    Replicated,
    is_sharded,
    local,
    local_parts,
    replicas_of,
    spread_like,
)
from mirrordescent.execution.tensors import Tensors
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.mirrors.module_roles import roles_of_tensors
from mirrordescent.mirrors.roles import Role, roles_by_name
from mirrordescent.optim.averaging import AveragedWeights, averaging_share
from mirrordescent.optim.base import Group, Params
from mirrordescent.optim.geometry import MirrorLike, NamedTensor
from mirrordescent.optim.names import members_of
from mirrordescent.optim.options import Options
from mirrordescent.optim.preconditioned import Preconditioned, schedule_of
from mirrordescent.optim.rate import Finish, factor_of
from mirrordescent.schedules import ScheduleLike


class SpectralDescent(Preconditioned):
    """Train a network without tuning a learning rate: one line in place of AdamW or Muon.

    .. code-block:: none

        optimizer = md.optim.SpectralDescent(model, steps=1000)

    With the gradient g of a tensor x, its momenta m and v, and its second moments n:

    .. code-block:: none

        m⁺ = βm + (1 − β)g,    v = βm⁺ + (1 − β)g,    u = ∇ψ*(v), scaled to mean square 1
        x⁺ = (1 − t_k ℓ w)x − t_k r^η ℓ u/√n⁺           t_k = lr·s(k)

    It is dual-space preconditioning (:class:`Preconditioned`), the dual twin of mirror descent: the
    mirror map acts on momenta instead of weights. The geometry is spectral. Matrices inside the
    network get a function of the singular values of their momentum, close to the polar factor of
    Muon; output layers, embeddings and vectors get powers of their entries. The size ℓ of the steps
    of a tensor depends on its role, width and depth, by laws that were learned on small networks of
    several kinds, as were β, η, the second moments and the schedule s. r is the ratio of signal to
    noise of recent gradients (:class:`~mirrordescent.methods.DampedPreconditioned`).

    Roles are read from the layers of the model (:func:`~mirrordescent.mirrors.roles_of`).
    :meth:`summary` prints them. If parameters are given in groups, pass ``model=`` too.

    If several processes train the model (``DistributedDataParallel`` or FSDP2), each computes the
    directions of its share of the matrices and sends them to the others. Pass the wrapped model,
    and take steps only with gradients that are the same on all processes.

    If the length of the run is not known, omit ``steps``. Step sizes then fall slowly with k
    (:class:`~mirrordescent.schedules.OpenEnded`), and weights are averaged as in schedule-free
    learning. :meth:`eval` shows the average in the model and :meth:`train` returns to training, or
    use ``with optimizer.averaged():``. To end the run, call :meth:`finish` before its last steps.

    ``lr`` of a group shows the rate t_k of the last step, for monitors. If you multiply it by a
    number, all later rates are multiplied by that number.

    Args:
        params: Model, or named parameters, or groups as in ``torch.optim``. Groups without names
            need ``model``.
        lr: Factor of all learned step sizes. It is not a learning rate of AdamW; 1 is the default.
        mirror: Entry of the zoo with the learned geometry, or another geometry; see
            :class:`Preconditioned`.
        steps: Length of the run in optimiser steps; None if it is not known.
        average: Whether weights are averaged. By default they are if ``steps`` and ``t`` are not
            given and no parameter is of half precision. Averages take as much memory as the
            parameters.
        model: Model whose parameters are in the groups.
        roles: Roles by name, in place of those that are read from the model.
        weight_decay: w in the units of AdamW; see :class:`Preconditioned`. 0 by default.
        options: Options of :class:`Preconditioned` and :class:`MirrorOptimizer`.

    >>> import torch
    >>> from mirrordescent import optim
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> optimizer = optim.SpectralDescent(model, steps=100)
    >>> inputs = torch.eye(3)
    >>> for _ in range(100):
    ...     optimizer.zero_grad()
    ...     loss = (model(inputs) - 1).square().mean()
    ...     loss.backward()
    ...     optimizer.step()
    >>> bool(loss < 1e-2)
    True
    """

    _average: AveragedWeights | None = None

    def __init__(
        self,
        params: nn.Module | Params,
        lr: float | Tensor | None = None,
        mirror: MirrorLike = "network-spectral",
        *,
        steps: int | None = None,
        average: bool | None = None,
        model: nn.Module | None = None,
        roles: Mapping[str, Role] | None = None,
        **options: Unpack[Options],
    ) -> None:
        if isinstance(params, nn.Module):
            model = params
            params = [(name, p) for name, p in model.named_parameters() if p.is_floating_point()]
            if not params:
                raise ValueError(f"{type(model).__name__} has no parameters to train")
        self._roles_by_tensor = {} if model is None else roles_of_tensors(model)
        self._replicas = None if model is None else replicas_of(model)
        open_ended = steps is None and options.get("t") is None
        super().__init__(params, lr, mirror, steps=steps, roles=roles, **options)
        precise = self._is_precise()
        if average and not precise:
            raise ValueError(
                "average=True needs parameters of single or double precision: averages of half "
                "precision would be rounded to the old ones"
            )
        if average or (average is None and open_ended and precise):
            self._average = AveragedWeights()

    def _is_precise(self) -> bool:
        """Return whether all parameters are of single or double precision."""
        parameters = (p for group in self.param_groups for p in group["params"])
        return all(p.dtype in (torch.float32, torch.float64) for p in parameters)

    # The length of the run

    def _own_schedule(self, learned: methods.Preconditioned | None) -> ScheduleLike:
        if self._steps is None:
            return schedule_of(learned).open_ended()
        return super()._own_schedule(learned)

    def finish(self, over: int) -> None:
        """Let step sizes decrease to 0 over the next steps, which are the last ones.

        The average becomes shorter. After the last step it is the weights themselves.

        Args:
            over: Number of steps.
        """
        if over < 1:
            raise ValueError(f"over must be ≥ 1, got {over}")
        if any("finish" in group for group in self.param_groups):
            raise RuntimeError("finish was called before: a run is finished once")
        for group in self.param_groups:
            group["finish"] = [group["k"], int(over)]

    def _finish_of(self, group: Group) -> Finish | None:
        return Finish(*group["finish"]) if "finish" in group else None

    def _last_step(self, group: Group) -> int | None:
        finish = self._finish_of(group)
        return self._steps if finish is None else finish.end

    def _set_rate(self, number: int) -> None:
        super()._set_rate(number)
        self._rates[number].finish = self._finish_of(self.param_groups[number])

    # Averaged weights

    def _execute(
        self, number: int, batch: GradientBatch, moves: bool, shrink: list[float] | None
    ) -> None:
        if self._average is None or not moves:
            super()._execute(number, batch, moves, shrink)
            return
        group = self.param_groups[number]
        if group.get("shows_average"):
            raise RuntimeError(
                "the model shows averaged weights: call optimizer.train() before training goes on"
            )
        finish = self._finish_of(group)
        k = group["k"] + 1
        remaining = None if finish is None else max(0, finish.end - k)
        z, scaled = self._average.begin(batch.parameters, batch.x)
        super()._execute(number, batch._replace(x=z), moves, shrink)
        share = averaging_share(k, remaining)
        self._average.end(batch.parameters, batch.x, z, scaled, share)

    def step_on(self, indices: Sequence[int], x: Tensors, g: Tensors) -> None:
        super().step_on(indices, x, g)
        if self._average is not None:
            self._average.forget_versions()  # graphs write to parameters after a step

    @torch.no_grad()
    def eval(self) -> None:
        """Show averaged weights in the model, for evaluation. Without averages nothing changes."""
        for group in self.param_groups:
            if self._average is not None and not group.get("shows_average"):
                self._average.show_average(group["params"], local_parts(group["params"]))
                group["shows_average"] = True

    @torch.no_grad()
    def train(self) -> None:
        """Show the weights of the next gradient again, after :meth:`eval`."""
        for group in self.param_groups:
            if self._average is not None and group.get("shows_average"):
                self._average.hide_average(group["params"], local_parts(group["params"]))
                group["shows_average"] = False

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Show averaged weights in the model inside this context."""
        shown = [group.get("shows_average", False) for group in self.param_groups]
        self.eval()
        try:
            yield
        finally:
            if not all(shown):
                self.train()

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with the sequence z of averaged weights."""
        saved = super().state_dict()
        if self._average is None:
            return saved
        parameters = [p for group in self.param_groups for p in group["params"]]
        for i, p in enumerate(parameters):
            z = self._average.z.get(p)
            if z is not None:
                saved["state"][i] = {**saved["state"].get(i, {}), "z": spread_like(p, z)}
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the state of an optimiser of the same class.

        Raises:
            ValueError: The state is of another optimiser, or of a run with averaged weights while
                this one has none.
        """
        stored = {i: fields["z"] for i, fields in state_dict["state"].items() if "z" in fields}
        if stored and self._average is None:
            raise ValueError(
                "this state has averaged weights, of a run of unknown length: omit steps here too "
                "and call optimizer.finish(over=n) for the last n steps, or pass average=True"
            )
        state = {
            i: {name: value for name, value in fields.items() if name != "z"}
            for i, fields in state_dict["state"].items()
        }
        super().load_state_dict({**state_dict, "state": state})
        if self._average is None:
            return
        saved = [i for group in state_dict["param_groups"] for i in group["params"]]
        parameters = [p for group in self.param_groups for p in group["params"]]
        self._average = AveragedWeights()
        for i, p in zip(saved, parameters, strict=True):
            if i in stored:
                self._average.z[p] = local(stored[i]).detach().to(local(p), copy=True)

    # Roles

    def _find_roles(self, params: list[Any], given: Mapping[str, Role] | None) -> dict[str, Role]:
        members = members_of(params)
        found: dict[str, Role] = {}
        for member in members:
            role = self._roles_by_tensor.get(member.tensor)
            if role is not None:
                found[member.name] = role
        missing = [member for member in members if member.name not in found]
        if self._roles_by_tensor and missing:
            names = ", ".join(member.name for member in missing)
            raise ValueError(f"these parameters are not parameters of the model: {names}")
        unnamed = [member for member in missing if not member.named]
        if unnamed:
            raise ValueError(
                f"{len(unnamed)} parameters have no names, which the roles of layers are read "
                f"from: construct SpectralDescent(model, …), or pass model=model beside the groups"
            )
        found |= roles_by_name({each.name: tuple(each.tensor.shape) for each in missing})
        return {**found, **(given or {})}

    def _map_of(self, named: NamedTensor, mirror: MirrorMap) -> MirrorMap:
        own = super()._map_of(named, mirror)
        if self._replicas is None or is_sharded(named.tensor) or not is_approximated(unscaled(own)):
            return own
        return Replicated(own, self._replicas)

    def _role_of(self, named: NamedTensor) -> Role:
        role = self._roles_by_tensor.get(named.tensor)
        return super()._role_of(named) if role is None else role

    def summary(self) -> None:
        """Print the role of every tensor, the matrices it is read as, and the size of its steps.

        The column ``step`` is the root mean square of the entries of the next step. The column
        ``of weights`` is its ratio to the root mean square of the weights.
        """
        rows = [("tensor", "shape", "role", "matrices", "inputs", "step", "of weights")]
        for number, group in enumerate(self.param_groups):
            rate = self._rates[number]
            rate.lr = factor_of(group)
            t = rate(group["k"] + 1)
            executor = self._executors[number]
            updates = zip(self._names(number), group["params"], executor.updates, strict=True)
            for name, p, update in updates:
                role = self._roles.get(name) or self._role_of(NamedTensor(name, p, True))
                step = t * update.mirror.direction_size
                rows.append(
                    (name, *_described(role, tuple(p.shape)), f"{step:.2g}", _share(step, p))
                )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            print("  ".join(cells).rstrip())

    def __getstate__(self) -> dict[str, Any]:
        # Roles by tensor refer to the tensors of this model; those of all groups are kept by name.
        state = super().__getstate__()
        return {**state, "_roles_by_tensor": {}, "_replicas": None, "_average": self._average}


def _described(role: Role, shape: tuple[int, ...]) -> tuple[str, str, str, str]:
    """Return the shape, role, matrices and number of inputs of a tensor as text."""
    size = " × ".join(map(str, shape)) or "1"
    if role.kind in ("vector", "embedding"):
        return size, role.kind, "", ""
    oriented = shape[::-1] if role.transposed else shape
    count, rows, columns = role.layout.block_shape(oriented)
    matrices = f"{rows} × {columns}" if count == 1 else f"{count} of {rows} × {columns}"
    return size, role.kind, matrices, str(role.fan_in)


@torch.no_grad()
def _share(step: float, p: Tensor) -> str:
    """Return the size of a step as a share of the weights, on this process."""
    part = local(p.detach())
    rms = float(part.float().square().mean().sqrt()) if part.numel() else 0.0
    return f"{step / rms:.2%}" if rms else "–"
