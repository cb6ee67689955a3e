"""Primal-dual steps, values and bounds of total variation on grids of one to three axes.

Points are (batch, channels, …). Dual variables have one block of differences for every axis, in the
order of the axes. ``held`` tells for every axis whether the groups of its last layer stay as they
are; values and bounds leave these groups out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mirrordescent.kernels.call import function

MOST_AXES = 3


class GridShape(NamedTuple):
    """Which differences of a grid there are, and which of them form groups."""

    axis_weights: tuple[float, ...]
    isotropic: bool = False
    coupled: bool = False
    held: tuple[bool, ...] = ()


class GridResult(NamedTuple):
    """Iterates after primal-dual steps, and the points of the last step."""

    x: Tensor
    u: list[Tensor]
    point: Tensor
    dual_point: list[Tensor]


def grid_primal_dual(
    x: Tensor,
    u: Sequence[Tensor],
    y: Tensor,
    shape: GridShape,
    numbers: Tensor,
    steps: int,
    *,
    relaxed: bool,
) -> GridResult:
    """Take at least one primal-dual step, with P the projection of u onto its bound:

    .. code-block:: none

        p = (1 − pull)(x − τDᵀu) + pull·y,   q = P(shrink·(u + σD(2p − x)))
        (x, u) ← (x, u) + relaxation·((p, q) − (x, u))

    Args:
        x: Primal iterate.
        u: Blocks of the dual iterate.
        y: Observed points.
        shape: Axes and groups.
        numbers: τ, pull, σ, the bound, shrink and relaxation of every sample, (batch, 6).
        steps: Number of steps.
        relaxed: Whether the relaxation differs from 1.
    """
    _require_alike(x, y)
    _require_blocks(u, y)
    x = x.contiguous().clone()
    u = [block.contiguous().clone() for block in u]
    point = torch.empty_like(x) if relaxed else x
    dual_point = [torch.empty_like(block) for block in u] if relaxed else u
    weights = torch.tensor(_three(shape.axis_weights, 0.0), dtype=torch.float64)
    table = torch.cat([numbers.expand(len(x), -1), weights.expand(len(x), -1)], 1).contiguous()
    function("grid_steps", x.dtype)(
        **_shape(x, shape),
        x=x,
        **_blocks("", u),
        to_x=point if relaxed else None,
        **_blocks("to_", dual_point if relaxed else [None] * len(u)),
        y=y.contiguous(),
        numbers=table,
        steps=steps,
    )
    return GridResult(x, u, point, dual_point)


def grid_value(x: Tensor, y: Tensor, shape: GridShape, huber: float) -> Tensor:
    """Return Σ(x − y)² and Σ_g h(|(Dx)_g|) of every sample in double precision, (batch, 2)."""
    return layer_values(x, y, shape, huber).sum(1)


def layer_values(x: Tensor, y: Tensor, shape: GridShape, huber: float) -> Tensor:
    """Return the sums of :func:`grid_value` for every layer of a volume, (batch, depth, 2).

    The group of a point belongs to the layer of this point.
    """
    _require_alike(x, y)
    numbers = torch.tensor([huber, *_three(shape.axis_weights, 0.0)], dtype=torch.float64)
    sizes = _shape(x, shape)
    sums = torch.empty(len(x), sizes["depth"], 2, dtype=torch.float64)
    function("grid_value", x.dtype)(
        **sizes, x=x.contiguous(), y=y.contiguous(), numbers=numbers, sums=sums
    )
    return sums


def grid_bound(
    u: Sequence[Tensor],
    y: Tensor,
    shape: GridShape,
    radius: Tensor,
    fidelity: float,
    centre: Tensor,
) -> Tensor:
    """Return four sums of every sample in double precision, (batch, 4).

    With u scaled into the ball of a radius, w = Dᵀu and c the fidelity, they are the sums of
    w(y − centre) − w²/(2c), of the magnitudes of these terms, of |y − centre| + |w|/c, and of u².

    Args:
        u: Blocks of the dual variable.
        y: Observed points.
        shape: Axes and groups.
        radius: Radius of the ball, (batch,).
        fidelity: Curvature c of the data term.
        centre: Numbers near the entries of y, (batch, channels).
    """
    return layer_bounds(u, y, shape, radius, fidelity, centre).sum(1)


def layer_bounds(
    u: Sequence[Tensor],
    y: Tensor,
    shape: GridShape,
    radius: Tensor,
    fidelity: float,
    centre: Tensor,
) -> Tensor:
    """Return the sums of :func:`grid_bound` for every layer of a volume, (batch, depth, 4)."""
    u = [block.to(y.dtype) for block in u]
    _require_blocks(u, y)
    weights = torch.tensor(_three(shape.axis_weights, 0.0), dtype=torch.float64)
    columns = [
        radius.double().reshape(-1, 1).expand(len(y), 1),
        torch.full((len(y), 1), 1 / (2 * fidelity), dtype=torch.float64),
        weights.expand(len(y), -1),
        centre.double(),
    ]
    sizes = _shape(y, shape)
    sums = torch.empty(len(y), sizes["depth"], 4, dtype=torch.float64)
    function("grid_bound", y.dtype)(
        **sizes,
        **_blocks("", [block.contiguous() for block in u]),
        y=y.contiguous(),
        numbers=torch.cat(columns, 1).contiguous(),
        sums=sums,
    )
    return sums


def blocks_fit(u: Sequence[Tensor], y: Tensor) -> bool:
    """Tell whether dual variables have the shapes of the differences of y, and its type."""
    if len(u) != y.ndim - 2:
        return False
    for axis, block in enumerate(u, start=2):
        shape = list(y.shape)
        shape[axis] -= 1
        if list(block.shape) != shape or block.dtype != y.dtype or block.device != y.device:
            return False
    return True


def _require_blocks(u: Sequence[Tensor], y: Tensor) -> None:
    if not blocks_fit(u, y):
        found = [(tuple(block.shape), block.dtype) for block in u]
        raise ValueError(
            f"the dual variables must be differences of points {tuple(y.shape)} of type {y.dtype}, "
            f"one block per axis; got {found}"
        )


def _require_alike(x: Tensor, y: Tensor) -> None:
    if x.shape != y.shape or x.dtype != y.dtype or x.device != y.device:
        raise ValueError(
            f"points must be {tuple(y.shape)} of type {y.dtype}, as the data; got "
            f"{tuple(x.shape)} of type {x.dtype}"
        )


def _three(numbers: Sequence[float], missing: float) -> list[float]:
    """Return three numbers; axes that a grid does not have come first."""
    return [missing] * (MOST_AXES - len(numbers)) + list(numbers)


def _shape(x: Tensor, shape: GridShape) -> dict[str, int]:
    """Return the arguments that all kernels share."""
    depth, height, width = (int(n) for n in _three(x.shape[2:], 1))
    held = [int(each) for each in _three(shape.held or (False,) * (x.ndim - 2), 0)]
    return {
        "samples": len(x),
        "channels": x.shape[1],
        "depth": depth,
        "height": height,
        "width": width,
        "groups": shape.isotropic + 2 * shape.coupled,
        "held": 4 * held[0] + 2 * held[1] + held[2],
    }


def _blocks(prefix: str, u: Sequence[Tensor | None]) -> dict[str, Tensor | None]:
    """Return the blocks under the names of the arguments; missing axes have no block."""
    three = [None] * (MOST_AXES - len(u)) + list(u)
    return dict(zip((f"{prefix}deep", f"{prefix}tall", f"{prefix}wide"), three, strict=True))
