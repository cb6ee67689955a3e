"""Sums of profiles of the responses of a filter bank, and their gradients, by one kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from mirrordescent.kernels.call import function


def ridge_gradient(
    x: Tensor,
    filters: Tensor,
    positions: Tensor,
    coefficients: Tensor,
    base: Tensor,
    weight: float | Tensor = 1.0,
) -> Tensor:
    """Return base + weight · Wᵀφ′(Wx).

    Wx are the responses of the filters at the positions where they lie inside the image, and
    φₖ′(t) = Σⱼ cⱼ min(max(t, −bⱼ), bⱼ) for filter k.

    Args:
        x: Images, (batch, channels, height, width).
        filters: Filters, (count, channels, rows, columns), correlated with the images.
        positions: Positions b > 0, (count, pieces); or (batch, count, pieces).
        coefficients: Coefficients c, in the shape of the positions.
        base: Tensor to which the gradient is added, in the shape of the images.
        weight: Weight, a number or (batch,).
    """
    gradient = torch.empty_like(x, memory_format=torch.contiguous_format)
    _call(x, filters, positions, coefficients, weight, base.contiguous(), gradient, None)
    return gradient


def ridge_sums(
    x: Tensor, filters: Tensor, positions: Tensor, coefficients: Tensor
) -> tuple[Tensor, Tensor]:
    """Return Σφ(Wx) and Σ|φ(Wx)| in double precision, (batch,) each.

    φₖ(t) = Σⱼ cⱼ tⱼ (t − tⱼ/2) with tⱼ = min(max(t, −bⱼ), bⱼ), computed in the type of x. The
    arguments are those of :func:`ridge_gradient`.
    """
    sums = torch.empty(len(x), x.shape[-2] - filters.shape[-2] + 1, 2, dtype=torch.float64)
    _call(x, filters, positions, coefficients, 1.0, None, None, sums)
    values, sizes = sums.sum(1).unbind(-1)
    return values, sizes


def ridge_sums_and_gradient(
    x: Tensor, filters: Tensor, positions: Tensor, coefficients: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σφ(Wx) and Σ|φ(Wx)|, as :func:`ridge_sums` does, and Wᵀφ′(Wx), in one pass."""
    sums = torch.empty(len(x), x.shape[-2] - filters.shape[-2] + 1, 2, dtype=torch.float64)
    gradient = torch.empty_like(x, memory_format=torch.contiguous_format)
    base = torch.zeros_like(gradient)
    _call(x, filters, positions, coefficients, 1.0, base, gradient, sums)
    values, sizes = sums.sum(1).unbind(-1)
    return values, sizes, gradient


def _call(
    x: Tensor,
    filters: Tensor,
    positions: Tensor,
    coefficients: Tensor,
    weight: float | Tensor,
    base: Tensor | None,
    gradient: Tensor | None,
    sums: Tensor | None,
) -> None:
    """Call the kernel, or raise if shapes or types do not fit."""
    batch, channels, height, width = x.shape
    count, _, rows, columns = filters.shape
    profiles = len(positions) if positions.ndim == 3 else 1
    pieces = positions.shape[-1]
    weights = torch.as_tensor(weight, dtype=torch.float64, device="cpu").reshape(-1)
    given = [x, filters, positions, coefficients]
    if base is not None:
        given.append(base)
    if (
        filters.shape[1] != channels
        or height < rows
        or width < columns
        or positions.shape != coefficients.shape
        or positions.shape[-2:] != (count, pieces)
        or profiles not in (1, batch)
        or len(weights) not in (1, batch)
        or (base is not None and base.shape != x.shape)
        or len({(tensor.dtype, tensor.device.type) for tensor in given}) > 1
    ):
        raise ValueError(
            "all tensors must be on the CPU with one dtype, images at least as large as the "
            "filters, and profiles and weights shared or one per sample; "
            f"got {[(tuple(tensor.shape), tensor.dtype) for tensor in given]} and "
            f"{len(weights)} weights"
        )
    function("ridges", x.dtype)(
        samples=batch,
        channels=channels,
        height=height,
        width=width,
        filter_count=count,
        rows=rows,
        columns=columns,
        pieces=pieces,
        profiles=profiles,
        x=x.contiguous(),
        filters=filters.contiguous(),
        positions=positions.contiguous(),
        coefficients=coefficients.contiguous(),
        weights=weights,
        weight_count=len(weights),
        base=base,
        gradient=gradient,
        sums=sums,
    )
