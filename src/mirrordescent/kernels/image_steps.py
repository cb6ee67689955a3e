"""Many steps on images in one call, for f(x) = s·(‖Z(x − y)‖² + λ‖Dx‖₁) and its variants.

``numbers`` is a table (steps, samples, columns) in double precision with the numbers of every step
and sample. Its first and second dimension may be 1 if all steps or all samples share a row.
``isotropic`` and ``coupled`` choose which differences are bounded together.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mirrordescent.kernels.call import function

Dual = tuple[Tensor, Tensor]
AMD_COLUMNS = ("curvature", "bound", "fidelity", "side", "far", "near", "mixing", "share")
PRIMAL_DUAL_COLUMNS = (
    "tau",
    "pull",
    "shift",
    "sigma",
    "bound",
    "side",
    "shrink",
    "relaxation",
    "ahead",
    "momentum",
)
DUAL_FISTA_COLUMNS = ("sigma", "bound", "shrink", "pull")


def amd_stencil(
    x: Tensor,
    z: Tensor,
    y: Tensor,
    mask: Tensor | None,
    mean: Tensor | None,
    numbers: Tensor,
    steps: int,
    *,
    isotropic: bool = False,
    coupled: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Take steps of AMD with a stencil S = (side, 1 − 2·side, side) in both directions.

    With g the gradient of f, whose kinks are rounded:

    .. code-block:: none

        z⁺ = z − far·SgS
        x⁺ = mixing·z⁺ + (1 − mixing)(x − near·SgS)
        mean⁺ = mean + share·(w − mean),    w = g − 2sZ(x − y)

    Returns:
        x, z and mean after the last step; mean is None if none is given.
    """
    x, z, y = _images(x, z, y)
    x = x.clone()
    z = z.clone()
    mean = None if mean is None else mean.contiguous().clone()
    function("amd_stencil", x.dtype)(
        **_shape(x, y, numbers, AMD_COLUMNS, steps, isotropic, coupled),
        **_mask(mask, x),
        x=x,
        z=z,
        mean=mean,
    )
    return x, z, mean


class PrimalDualResult(NamedTuple):
    """Iterates after primal-dual steps, the points of the last step, and the last change of x.

    Without relaxation the points are the iterates. ``move`` is None if none was given.
    """

    x: Tensor
    u: Dual
    point: Tensor
    dual_point: Dual
    move: Tensor | None


def primal_dual(
    x: Tensor,
    u: Dual,
    y: Tensor,
    mask: Tensor | None,
    box: tuple[Tensor, Tensor] | None,
    numbers: Tensor,
    steps: int,
    *,
    relaxed: bool = False,
    move: Tensor | None = None,
    isotropic: bool = False,
    coupled: bool = False,
) -> PrimalDualResult:
    """Take at least one primal-dual step.

    With w = Dᵀu, S a stencil as in :func:`amd_stencil`, and P the projection of u onto its bounds:

    .. code-block:: none

        b  = x + momentum·move,                     c = b if shift ≠ 0, else x
        x⁺ = b − τw + pull·Z(y − c + shift·w), clipped to [low, high]      if side = 0
        x⁺ = b − τS(w + (pull/τ)Z(x − y))S                                 else
        u⁺ = P(shrink·(u + σD(x⁺ + ahead·(x⁺ − x))))
        (x, u) ← (x, u) + relaxation·((x⁺, u⁺) − (x, u)),   move ← the change of x

    Args:
        x: Primal iterate.
        u: Vertical and horizontal part of the dual iterate.
        y: Images.
        mask: Mask of observed pixels, or None.
        box: Lower and upper bound of x⁺, or None.
        numbers: Table of the numbers of the steps.
        steps: Number of steps.
        relaxed: Whether steps are relaxed. Otherwise the column ``relaxation`` is ignored.
        move: Last change of x. If it is None, there is no momentum.
        isotropic, coupled: Choice of the differences that share a bound.
    """
    x, y = _images(x, y)
    x = x.clone()
    v, h = (part.contiguous().clone() for part in u)
    point, dual_point = x, (v, h)
    if relaxed:
        point = torch.empty_like(x)
        dual_point = (torch.empty_like(v), torch.empty_like(h))
    if move is not None:
        move = move.contiguous().clone()
    low, high = None, None
    if box is not None:
        low, high = (end.contiguous() for end in box)
    function("primal_dual", x.dtype)(
        **_shape(x, y, numbers, PRIMAL_DUAL_COLUMNS, steps, isotropic, coupled),
        **_mask(mask, x),
        x=x,
        v=v,
        h=h,
        to_x=point if relaxed else None,
        to_v=dual_point[0] if relaxed else None,
        to_h=dual_point[1] if relaxed else None,
        move=move,
        low=low,
        high=high,
    )
    return PrimalDualResult(x, (v, h), point, dual_point, move)


def dual_fista(
    u: Dual,
    v: Dual,
    theta: Tensor,
    y: Tensor,
    box: tuple[Tensor, Tensor],
    numbers: Tensor,
    steps: int,
    *,
    isotropic: bool = False,
    coupled: bool = False,
) -> tuple[Tensor, Dual, Dual, Tensor]:
    """Take at least one step of FISTA on the dual problem.

    With x(v) = y − pull·Dᵀv, clipped to the box, and P as in :func:`primal_dual`:

    .. code-block:: none

        u⁺ = P(shrink·(v + σDx(v))),    θ⁺ = (1 + √(1+4θ²))/2,    v⁺ = u⁺ + (θ−1)/θ⁺ (u⁺ − u)

    In a sample with ⟨v − u⁺, u⁺ − u⟩ > 0, v⁺ = u⁺ and θ⁺ = 1.

    Returns:
        x(u), u, v and θ after the last step.
    """
    (y,) = _images(y)
    x = torch.empty_like(y)
    theta = theta.clone()
    low, high = (end.contiguous() for end in box)
    u_vertical, u_horizontal = (part.contiguous().clone() for part in u)
    v_vertical, v_horizontal = (part.contiguous().clone() for part in v)
    function("dual_fista", y.dtype)(
        **_shape(
            y, y, numbers.expand(-1, len(y), -1), DUAL_FISTA_COLUMNS, steps, isotropic, coupled
        ),
        x=x,
        v=u_vertical,
        h=u_horizontal,
        v_ahead=v_vertical,
        h_ahead=v_horizontal,
        theta=theta,
        low=low,
        high=high,
    )
    u = (u_vertical, u_horizontal)
    v = (v_vertical, v_horizontal)
    if steps % 2:  # u and v change places at every step in C
        return x, v, u, theta
    return x, u, v, theta


def image_sums(y: Tensor, mask: Tensor | None, x: Tensor) -> Tensor:
    """Return four sums per sample, (batch, 4).

    They are the number of observed pixels, Σ(y − c) and Σ(y − c)² over them, where c is the first
    of them, and Σ|Dx|.
    """
    y, x = _images(y, x)
    seen, masks = planes_of(mask, x)
    batch, channels, height, width = x.shape
    sums = torch.empty(batch, 4, dtype=torch.float64)
    function("image_sums", x.dtype)(
        samples=batch,
        channels=channels,
        height=height,
        width=width,
        y=y,
        mask=seen,
        masks=masks,
        x=x,
        sums=sums,
    )
    return sums


def close_holes(
    u: Dual,
    mask: Tensor,
    bound: Tensor,
    deepest: int,
    *,
    isotropic: bool = False,
    coupled: bool = False,
) -> None:
    """Move u in place towards Dᵀu = 0 where the mask is 0, as far as its bound allows.

    Args:
        u: Vertical and horizontal part of a dual variable.
        mask: Mask of observed pixels.
        bound: Bound on u, (1,) or (batch,).
        deepest: Largest depth of a hole that is closed.
        isotropic, coupled: Choice of the differences that share a bound.
    """
    v, h = u
    if not (v.is_contiguous() and h.is_contiguous() and v.dtype == h.dtype == mask.dtype):
        raise ValueError(
            f"close_holes needs contiguous tensors of one type, got u of {v.dtype} and a mask of "
            f"{mask.dtype}"
        )
    batch, channels, height, width = *h.shape[:3], v.shape[3]
    seen, masks = planes_of(mask, torch.empty(batch, channels, height, width, device="meta"))
    function("close_holes", v.dtype)(
        planes=batch * channels,
        channels=channels,
        coupled=channels if coupled else 1,
        height=height,
        width=width,
        v=v,
        h=h,
        mask=seen,
        masks=masks,
        bounds=bound,
        samples=len(bound),
        deepest=deepest,
        groups=isotropic + 2 * coupled,
    )


def dual_value(
    u: Dual | None,
    w: Tensor | None,
    y: Tensor,
    mask: Tensor | None,
    box: tuple[Tensor, Tensor],
    numbers: Tensor,
    *,
    isotropic: bool = False,
    coupled: bool = False,
) -> Tensor:
    """Return four sums per sample, (batch, 4) in double precision.

    They are Σ min s·m(x − y)² + w(x − low) over the box, Σ of the sizes of these terms, Σ(x − low),
    and ‖u‖².

    Args:
        u: Dual variable with w = Dᵀu, projected onto its bound first; None if w is given.
        w: w; None if u is given.
        y: Images.
        mask: Mask of observed pixels, or None.
        box: Lower and upper bound of x.
        numbers: s and the bound of u, (1, 2) or (batch, 2).
        isotropic, coupled: Choice of the differences that share a bound.
    """
    (y,) = _images(y)
    batch, channels, height, width = y.shape
    seen, masks = planes_of(mask, y)
    v, h = None, None
    if u is not None:
        v, h = (part.contiguous() for part in u)
    low, high = (end.contiguous() for end in box)
    sums = torch.empty(batch, channels, 4, dtype=torch.float64)
    function("dual_value", y.dtype)(
        planes=batch * channels,
        channels=channels,
        coupled=channels if coupled else 1,
        height=height,
        width=width,
        v=v,
        h=h,
        given=None if w is None else w.contiguous(),
        y=y,
        mask=seen,
        masks=masks,
        low=low,
        high=high,
        numbers=numbers.contiguous(),
        samples=len(numbers),
        groups=isotropic + 2 * coupled,
        sums=sums,
    )
    return sums.sum(1)


def hole_depths(mask: Tensor, deepest: int) -> Tensor:
    """Return two sums for every plane of a mask.

    They are the number of missing pixels, and the sum of their distances from observed pixels.
    A distance is a number of steps to one of the eight neighbours, at most ``deepest`` + 1.
    """
    *planes, height, width = mask.shape
    depths = torch.empty(*planes, 2, dtype=torch.float64)
    function("hole_depths", mask.dtype)(
        planes=math.prod(planes),
        height=height,
        width=width,
        mask=mask.contiguous(),
        deepest=deepest,
        depths=depths,
    )
    return depths


def numbers(*columns: Tensor | float) -> Tensor:
    """Return a table (steps, samples, columns) with these columns.

    Args:
        columns: Numbers, or tensors of shape (steps,) or (steps, samples). Either dimension may
            be 1.

    >>> numbers(1.0, torch.tensor([2.0, 3.0])).tolist()
    [[[1.0, 2.0]], [[1.0, 3.0]]]
    """
    values: list[np.ndarray | float] = []
    shapes: list[tuple[int, ...]] = [(1, 1)]
    for column in columns:
        if not isinstance(column, Tensor):
            values.append(column)
            continue
        array = column.numpy()
        if array.ndim < 2:
            array = array.reshape(-1, 1)
        values.append(array)
        shapes.append(array.shape)
    table = np.empty((*np.broadcast_shapes(*shapes), len(values)))
    for i, value in enumerate(values):
        table[..., i] = value
    return torch.from_numpy(table)


def planes_of(mask: Tensor | None, x: Tensor) -> tuple[Tensor | None, int]:
    """Return a contiguous mask and its number of planes.

    A mask has one plane, one per sample, or one per sample and channel.
    """
    if mask is None:
        return None, 0
    batch, _, *size = x.shape
    shared = mask.shape in ((1, 1, *size), (batch, 1, *size))
    mask = (mask if shared else mask.expand_as(x)).contiguous()
    return mask, mask.shape[0] * mask.shape[1]


def _images(*images: Tensor) -> list[Tensor]:
    """Return contiguous images, or raise if their shapes or types differ."""
    kinds = {(image.shape, image.dtype, image.device.type) for image in images}
    if len(kinds) > 1 or images[0].device.type != "cpu":
        raise ValueError(f"a kernel needs images of one shape and type, on the CPU; got {kinds}")
    return [image.contiguous() for image in images]


def _mask(mask: Tensor | None, x: Tensor) -> dict[str, Tensor | int | None]:
    """Return the arguments for a mask of observed pixels."""
    seen, masks = planes_of(mask, x)
    return {"mask": seen, "masks": masks}


def _shape(
    x: Tensor,
    y: Tensor,
    numbers: Tensor,
    columns: tuple[str, ...],
    steps: int,
    isotropic: bool,
    coupled: bool,
) -> dict[str, Tensor | int | None]:
    """Return the arguments that all kernels of steps share."""
    batch, channels, height, width = x.shape
    period, samples, column_count = numbers.shape
    if (
        numbers.dtype != torch.float64
        or column_count != len(columns)
        or samples not in (1, batch)
        or period not in (1, steps)
    ):
        raise ValueError(
            f"a kernel needs a table (steps, samples, {len(columns)}) of {', '.join(columns)} in "
            f"double precision; got {tuple(numbers.shape)} in {numbers.dtype}"
        )
    return {
        "planes": batch * channels,
        "channels": batch * channels // samples,
        "coupled": channels if coupled else 1,
        "height": height,
        "width": width,
        "y": y,
        "numbers": numbers.contiguous(),
        "period": period,
        "steps": steps,
        "groups": isotropic + 2 * coupled,
    }
