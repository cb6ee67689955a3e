"""Steps on images, many a call: f(x) = s·(‖Z(x − y)‖² + λ‖Dx‖₁) and its relatives, without an
operator.

``numbers`` has what a step needs to know for every step and sample, (steps, samples, columns) in
double precision; one row for all samples, or for all steps, will do. ``isotropic`` and ``coupled``
say which differences are limited together.
"""

import math

import numpy as np
import torch
from torch import Tensor

from mirrordescent.kernels.call import function

Dual = tuple[Tensor, Tensor]
AMD_COLUMNS = ("curvature", "bound", "fidelity", "side", "far", "near", "mixing", "share")
PRIMAL_DUAL_COLUMNS = ("tau", "pull", "shift", "sigma", "bound", "side", "shrink")
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
    """With g the gradient of f, its kinks rounded, and S the stencil (side, 1 − 2·side, side) in
    both directions:

    z⁺ = z − far·SgS,  x⁺ = mixing·z⁺ + (1 − mixing)(x − near·SgS);  mean⁺ = mean + share·(w −
    mean), w = g − 2sZ(x − y)

    Returns x, z and mean after these steps; the last is None if mean is.
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


def primal_dual(
    x: Tensor,
    u: Dual,
    y: Tensor,
    mask: Tensor | None,
    box: tuple[Tensor, Tensor] | None,
    numbers: Tensor,
    steps: int,
    *,
    isotropic: bool = False,
    coupled: bool = False,
) -> tuple[Tensor, Dual]:
    """With w = Dᵀu, S a stencil as above and P the limits on u, which are ``bound`` long:

    .. code-block:: none

        x⁺ = x − τw + pull·Z(y − x + shift·w), clipped to [low, high]      if side = 0
        x⁺ = x − τS(w + (pull/τ)Z(x − y))S                                 else
        u⁺ = P(shrink·(u + σD(2x⁺ − x)))

    Returns x and both parts of u after these steps.
    """
    x, y = _images(x, y)
    x = x.clone()
    (v, h) = (part.contiguous().clone() for part in u)
    low, high = (None, None) if box is None else (end.contiguous() for end in box)
    function("primal_dual", x.dtype)(
        **_shape(x, y, numbers, PRIMAL_DUAL_COLUMNS, steps, isotropic, coupled),
        **_mask(mask, x),
        x=x,
        v=v,
        h=h,
        low=low,
        high=high,
    )
    return x, (v, h)


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
    """With x(v) = y − pull·Dᵀv, clipped to the box, and P as above:

    u⁺ = P(shrink·(v + σDx(v))),  θ⁺ = (1 + √(1+4θ²))/2,  v⁺ = u⁺ + (θ−1)/θ⁺ (u⁺ − u);

    but v⁺ = u⁺ and θ⁺ = 1 in a sample where ⟨v − u⁺, u⁺ − u⟩ > 0. Returns x(u), u, v and θ after
    these steps, at least one.
    """
    (y,) = _images(y)
    x = torch.empty_like(y)
    theta = theta.clone()
    (low, high) = (end.contiguous() for end in box)
    own, ahead = ([part.contiguous().clone() for part in dual] for dual in (u, v))
    function("dual_fista", y.dtype)(
        **_shape(
            y, y, numbers.expand(-1, len(y), -1), DUAL_FISTA_COLUMNS, steps, isotropic, coupled
        ),
        x=x,
        v=own[0],
        h=own[1],
        v_ahead=ahead[0],
        h_ahead=ahead[1],
        theta=theta,
        low=low,
        high=high,
    )
    u = (own[0], own[1])
    v = (ahead[0], ahead[1])
    return (
        (x, v, u, theta) if steps % 2 else (x, u, v, theta)
    )  # in C they change places at every step


def image_sums(y: Tensor, mask: Tensor | None, x: Tensor) -> Tensor:
    """Return per sample the number of observed pixels, Σ(y − c) and Σ(y − c)² over them, c the
    first, and Σ|Dx|.
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
    """Move u in place to Dᵀu = 0 where the mask is 0, as far as its ``bound`` allows, one for all
    or (batch,).
    """
    v, h = u
    if not (v.is_contiguous() and h.is_contiguous() and v.dtype == h.dtype == mask.dtype):
        raise ValueError(
            f"a kernel changes contiguous tensors of one type in place, got {v.dtype}, {mask.dtype}"
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
    """Return Σ min s·m(x − y)² + w(x − low) over the box, Σ of the sizes of these terms, Σ(x −
    low), and ‖u‖².

    w is given, or Dᵀu of a u that is limited to its bound first. ``numbers`` are s and the bound,
    (1, 2) or (batch, 2). The sums are of every sample, (batch, 4), in double precision.
    """
    (y,) = _images(y)
    batch, channels, height, width = y.shape
    seen, masks = planes_of(mask, y)
    v, h = (None, None) if u is None else (part.contiguous() for part in u)
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
    """Return for every plane of a mask the number of missing pixels, and the sum of their distances
    from observed ones.

    Distances are in steps to one of eight neighbours; none counts as more than ``deepest`` + 1.
    """
    *planes, height, width = mask.shape
    found = torch.empty(*planes, 2, dtype=torch.float64)
    function("hole_depths", mask.dtype)(
        planes=math.prod(planes),
        height=height,
        width=width,
        mask=mask.contiguous(),
        deepest=deepest,
        depths=found,
    )
    return found


def numbers(*columns: Tensor | float) -> Tensor:
    """Put columns beside one another: numbers, (steps,) or (steps, samples), with 1 in place of
    either.

    >>> numbers(1.0, torch.tensor([2.0, 3.0])).tolist()
    [[[1.0, 2.0]], [[1.0, 3.0]]]
    """
    tables = [column.numpy() if isinstance(column, Tensor) else column for column in columns]
    tables = [
        table.reshape(-1, 1) if isinstance(table, np.ndarray) and table.ndim < 2 else table
        for table in tables
    ]
    shapes = [table.shape for table in tables if isinstance(table, np.ndarray)]
    found = np.empty((*np.broadcast_shapes((1, 1), *shapes), len(tables)))
    for i, table in enumerate(tables):
        found[..., i] = table
    return torch.from_numpy(found)


def planes_of(mask: Tensor | None, x: Tensor) -> tuple[Tensor | None, int]:
    """Return a mask as kernels read it, and its number of planes: one, one per sample, or one per
    channel.
    """
    if mask is None:
        return None, 0
    batch, _, *size = x.shape
    shared = mask.shape in ((1, 1, *size), (batch, 1, *size))
    mask = (mask if shared else mask.expand_as(x)).contiguous()
    return mask, mask.shape[0] * mask.shape[1]


def _images(*images: Tensor) -> list[Tensor]:
    """Return images as C reads them, all of one shape and type."""
    kinds = {(image.shape, image.dtype, image.device.type) for image in images}
    if len(kinds) > 1 or images[0].device.type != "cpu":
        raise ValueError(f"a kernel needs images of one shape and type, on the CPU; got {kinds}")
    return [image.contiguous() for image in images]


def _mask(mask: Tensor | None, x: Tensor) -> dict[str, Tensor | int | None]:
    """Return the arguments that say which pixels are seen."""
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
    """Return the arguments that all kernels share."""
    batch, channels, height, width = x.shape
    period, samples, found = numbers.shape
    if (
        numbers.dtype != torch.float64
        or found != len(columns)
        or samples not in (1, batch)
        or period not in (1, steps)
    ):
        raise ValueError(
            f"a kernel needs {', '.join(columns)} for every step and sample; got {tuple(numbers.shape)}"
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
