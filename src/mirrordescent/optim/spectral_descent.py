"""Spectral descent: the optimiser for a whole model, with learned step sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from mirrordescent.execution.sharding import local
from mirrordescent.mirrors.module_roles import roles_of_tensors
from mirrordescent.mirrors.roles import Role, roles_by_name
from mirrordescent.optim.base import Params
from mirrordescent.optim.geometry import MirrorLike, NamedTensor
from mirrordescent.optim.names import members_of
from mirrordescent.optim.options import Options
from mirrordescent.optim.preconditioned import Preconditioned


class SpectralDescent(Preconditioned):
    """Train a network without tuning a learning rate: one line in place of AdamW or Muon.

    .. code-block:: none

        optimizer = md.optim.SpectralDescent(model, steps=1000)

    With the gradient g of a tensor x, its momenta m and v, and its second moments n:

    .. code-block:: none

        m⁺ = βm + (1 − β)g,    v = βm⁺ + (1 − β)g,    u = ∇ψ*(v), scaled to mean square 1
        x⁺ = (1 − t_k ℓ w)x − t_k ℓ u/√n⁺               t_k = lr·s(k)

    It is dual-space preconditioning (:class:`Preconditioned`), the dual twin of mirror descent: the
    mirror map acts on momenta instead of weights. The geometry is spectral. Matrices inside the
    network get a function of the singular values of their momentum, close to the polar factor of
    Muon; output layers, embeddings and vectors get powers of their entries. The size ℓ of the steps
    of a tensor depends on its role, width and depth, by laws that were learned on small networks of
    several kinds, as were β, the second moments and the schedule s.

    Roles are read from the layers of the model (:func:`~mirrordescent.mirrors.roles_of`).
    :meth:`summary` prints them. If parameters are given in groups, pass ``model=`` too.

    Args:
        params: Model, or named parameters, or groups as in ``torch.optim``. Groups without names
            need ``model``.
        lr: Factor of all learned step sizes. It is not a learning rate of AdamW; 1 is the default.
        mirror: Entry of the zoo with the learned geometry, or another geometry; see
            :class:`Preconditioned`.
        steps: Length of the run in optimiser steps.
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

    def __init__(
        self,
        params: nn.Module | Params,
        lr: float | Tensor | None = None,
        mirror: MirrorLike = "network-spectral",
        *,
        steps: int | None = None,
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
        super().__init__(params, lr, mirror, steps=steps, roles=roles, **options)

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

    def _role_of(self, named: NamedTensor) -> Role:
        role = self._roles_by_tensor.get(named.tensor)
        return super()._role_of(named) if role is None else role

    def summary(self) -> None:
        """Print the role of every tensor, the matrices it is read as, and the size of its steps.

        The size of a step is the root mean square of its entries, for the next step and for the
        longest steps of the run, and as a share of the root mean square of the weights.
        """
        rows = [("tensor", "shape", "role", "matrices", "inputs", "step", "of weights")]
        for number, group in enumerate(self.param_groups):
            rate = self._rates[number]
            rate.lr = float(group["lr"])
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
        return {**super().__getstate__(), "_roles_by_tensor": {}}


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
